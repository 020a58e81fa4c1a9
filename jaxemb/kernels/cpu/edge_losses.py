"""Softmax of the edges of a chunk, with its gradients, in one pass.

A chunk has c sources A and as many targets B, of c edges, and N nodes more on
each side. Of its scores S = A B^T every row is a softmax over targets, every
column one over sources (`graphs.edge_models`). XLA forms these from arrays of
all chunks, one after the other and mostly in one thread; here a thread has a
chunk in its cache:

  G = (row softmax - 1) w + (column softmax - 1) w,   dA = G B,   dB = G^T A

Chunks know nothing of each other, so that gradients have the same bits with any
number of threads.

A call (`turns`) reads rows [k 2 m, d] float32, m = c + N, sources first; ids
[k, 2 m] int32, weights [k, c] float32, and the number of nodes [1] int32, from
which on ids are padding. It makes gradients of rows and losses [k, 16].
"""

from typing import NamedTuple

import numba
import numpy as np

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import rows, tiles, turns

_ROWS, _IDS, _WEIGHTS, _VOCAB = range(turns.READ, turns.READ + 4)
_GRADS, _LOSSES = range(turns.RESULTS, turns.RESULTS + 2)
_NEVER = np.float32(-1e9)  # the score of what does not count


def num_scratch(chunk: int, draws: int, dim: int) -> int:
  """Returns floats that a thread needs for a chunk; fewer do nothing."""
  left, right, drawn = (
    rows.padded.py_func(x, tiles.SIZE) for x in (chunk, chunk + draws, draws)
  )
  matrices = left * (left + 2 * right + drawn) + 2 * dim
  vectors = 2 * (5 * left + 3 * right + 2 * drawn)
  # And each of 16 arrays begins a line.
  return rows.padded.py_func(matrices + vectors, 16) + 16 * 16


@numba.njit(**rows.JIT)
def _exp(x):
  """Of numbers up to 0, to 2e-7; LLVM vectorizes it, but no call of exp."""
  x = max(x, np.float32(-87)) * np.float32(1.44269504)
  n = np.floor(x + np.float32(0.5))
  r = (x - n) * np.float32(0.69314718)
  p = np.float32(1.3888889e-3)
  p = p * r + np.float32(8.3333333e-3)
  p = p * r + np.float32(4.1666667e-2)
  p = p * r + np.float32(1.6666667e-1)
  p = p * r + np.float32(0.5)
  p = p * r + np.float32(1)
  p = p * r + np.float32(1)
  bits = np.uint32(np.int32(n) + np.int32(127)) << np.uint32(23)
  return p * rows.as_type(np.uint32(bits), np.float32)


@numba.njit(**rows.JIT)
def _largest(values, num, least):
  for j in range(num):
    least = max(least, values[j])
  return least


@numba.njit(**rows.JIT)
def _put_exps(values, num, top):
  """Replaces values by exp(value - top); returns their sum."""
  total = np.float32(0)
  for j in range(num):
    values[j] = _exp(values[j] - top)
    total += values[j]
  return total


@numba.njit(**rows.JIT)
def _by_rows(scores, ids, others, weights, vocab, out):
  """Writes slopes of softmaxes of rows [c, m] over columns; returns losses.

  `ids` [c] are those of the true columns, the first ones of `others` [m].
  """
  loss, num = np.float64(0), others.size
  for i in range(weights.size):
    row, slopes = scores[i], out[i]
    id_, true = ids[i], row[i]
    for j in range(num):
      counts = (others[j] != id_) & (others[j] < vocab)
      slopes[j] = row[j] if counts else _NEVER
    top = _largest(slopes, num, true)
    total = _put_exps(slopes, num, top)
    at_true = _exp(true - top)
    total += at_true
    scale = weights[i] / total
    for j in range(num):
      slopes[j] *= scale
    slopes[i] += at_true * scale - weights[i]
    loss += np.float64(weights[i]) * (np.log(np.float64(total)) + top - true)
  return loss


@numba.njit(**rows.JIT)
def _by_columns(scores, ids, drawn, others, weights, vocab, buffers, out):
  """Adds slopes of softmaxes of columns over rows, to [c, c]; returns losses.

  Column j also has the scores drawn[j], of ids `others`, which become slopes.
  `buffers` are [3, c] and [c, c].
  """
  (tops, totals, scales), exps = buffers
  num, loss = weights.size, np.float64(0)
  for j in range(num):
    row, top = drawn[j], scores[j, j]
    for i in range(others.size):
      counts = (others[i] != ids[j]) & (others[i] < vocab)
      row[i] = row[i] if counts else _NEVER
    tops[j], totals[j] = _largest(row, others.size, top), np.float32(0)
  for i in range(num):
    row, to, is_known = scores[i], exps[i], ids[i] < vocab
    for j in range(num):
      counts = (ids[j] != ids[i]) & is_known
      to[j] = row[j] if counts else _NEVER
      tops[j] = max(tops[j], to[j])
  for i in range(num):
    to = exps[i]
    for j in range(num):
      to[j] = _exp(to[j] - tops[j])
      totals[j] += to[j]
  for j in range(num):
    row, true, weight = drawn[j], scores[j, j], weights[j]
    at_true = _exp(true - tops[j])
    total = totals[j] + at_true + _put_exps(row, others.size, tops[j])
    scales[j] = weight / total
    for i in range(others.size):
      row[i] *= scales[j]
    out[j, j] += at_true * scales[j] - weight
    lack = np.log(np.float64(total)) + np.float64(tops[j] - true)
    loss += np.float64(weight) * lack
  for i in range(num):
    row, to = exps[i], out[i]
    for j in range(num):
      to[j] += row[j] * scales[j]
  return loss


class _Side(NamedTuple):
  """Addresses of some rows of a chunk, and of their gradients."""

  rows: np.ndarray
  grads: np.ndarray


@numba.njit(**rows.INLINE)
def _take_side(address, num):
  addresses, rest = rows.take_vector(address, num, np.uintp)
  of_grads, rest = rows.take_vector(rest, num, np.uintp)
  return _Side(addresses, of_grads), rest


@numba.njit(**rows.JIT)
def _add_grads(slopes, others, sides, sizes, ones, dim):
  """Adds to gradients of rows, by slopes of their scores."""
  lefts, rights, drawn = sides
  chunk, size = sizes
  # What is beyond has no slope.
  slopes[chunk:] = 0
  slopes[:, size:] = 0
  others[chunk:] = 0
  rows.add_rows(slopes, 0, rights.rows, 0, size, lefts.grads, ones, dim)
  rows.add_rows(others, 0, drawn.rows, 0, size - chunk, rights.grads, ones, dim)
  rows.add_columns(slopes, 0, lefts.rows, chunk, rights.grads, ones, dim)
  rows.add_columns(others, 0, rights.rows, chunk, drawn.grads, ones, dim)


def softmax(frame, first, stop, scratch, result):
  """All edges of the chunks `first` to `stop`."""
  vectors = ffi.matrix(frame, ffi.ARGUMENTS, _ROWS, np.float32)
  ids = ffi.matrix(frame, ffi.ARGUMENTS, _IDS, np.int32)
  weights = ffi.matrix(frame, ffi.ARGUMENTS, _WEIGHTS, np.float32)
  vocab = ffi.vector(frame, ffi.ARGUMENTS, _VOCAB, np.int32)[0]
  grads = ffi.matrix(frame, ffi.RESULTS, _GRADS, np.float32)
  losses = ffi.matrix(frame, ffi.RESULTS, _LOSSES, np.float32)
  scratch_stop = turns.scratch_stop(frame, scratch)
  chunk, both, dim = weights.shape[1], ids.shape[1], vectors.shape[1]
  size, tile = both // 2, tiles.SIZE
  num_left, num_right = rows.padded(chunk, tile), rows.padded(size, tile)
  num_drawn = rows.padded(size - chunk, tile)
  scores, scratch = rows.take(scratch, num_left, num_right)
  others, scratch = rows.take(scratch, num_left, num_drawn)
  exps, scratch = rows.take(scratch, num_left, num_left)
  slopes, scratch = rows.take(scratch, num_left, num_right)
  spares, scratch = rows.take(scratch, 2, dim)  # zeros, and not used
  lefts, scratch = _take_side(scratch, num_left)
  rights, scratch = _take_side(scratch, num_right)
  drawn, scratch = _take_side(scratch, num_drawn)
  ones, scratch = rows.take_vector(scratch, num_right, np.float32)
  columns, scratch = rows.take(scratch, 3, num_left)
  if scratch > scratch_stop:
    return
  ones[:] = 1
  spares[0] = 0
  for g in range(first, stop):
    start = g * both
    grads[start : start + both] = 0
    for side, row, num in (
      (lefts, start, chunk),
      (rights, start + size, size),
      (drawn, start + chunk, size - chunk),
    ):
      rows.point(vectors, row, num, spares[0], side.rows)
      rows.point(grads, row, num, spares[1], side.grads)
    for y in range(0, num_right, tile):
      rows.score(lefts.rows, 0, num_left, rights.rows, y, dim, scores)
    for y in range(0, num_drawn, tile):
      rows.score(rights.rows, 0, num_left, drawn.rows, y, dim, others)
    sources, targets = ids[g, :chunk], ids[g, size : size + chunk]
    loss = _by_rows(scores, targets, ids[g, size:], weights[g], vocab, slopes)
    loss += _by_columns(
      scores, sources, others, ids[g, chunk:size], weights[g], vocab,
      ((columns[0], columns[1], columns[2]), exps), slopes,
    )  # fmt: skip
    sides = lefts, rights, drawn
    _add_grads(slopes, others, sides, (chunk, size), ones, dim)
    losses[g, 0] = loss
  turns.report(result, 0.0, 0.0)
