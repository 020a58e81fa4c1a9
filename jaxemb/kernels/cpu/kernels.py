"""Steps of the word2vec models, chunk by chunk, each fused into one function.

  skip-gram, CBOW        a chunk is c centers, which share N negatives
  hierarchical softmax   a chunk is one center

Every chunk reads its rows, forms all scores and slopes, and changes the rows at
once: what follows learns from it. So a call is as many steps of plain gradient
descent as it has chunks, with the gradients that `models.skipgram`,
`models.cbow` and `models.hierarchical` state, however many chunks a call has.
Centers of a chunk meet its window in tiles of four, of which a mask keeps the
pairs:

  centers g to g + 3  x  window g to g + 3 + 2 W, then all N negatives

Losses cost more than all the rest, so they are those of every 64th chunk.

The buffers of a call (`turns`). Arguments that are only read are `left` and
`right` [k, c] uint8, the contexts on both sides of each center, at most W; then

  numbers     [3] float32, learning rate, parameter of `rows.Table`, and K
  integers    [5] int32, `rows.Table` from `optimizer` to `is_stochastic`, and
              whether hierarchical softmax averages: CBOW
  brakes      those of `rows.Table`, of both tables
  ids         int32, of the step's k chunks: windows [k, c + 2 W], then draws
              [k, N] or `exits`, `firsts` and `deep` of `ops.huffman.Split`

Changed are the vectors of both tables and their optimizer states. Kernels write
the loss, in nats, and the number of its examples.
"""

import math
from typing import Any

import numba
import numpy as np

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import rows, tiles, turns

_LOSS_EVERY_CHUNKS = 64

_LEFT, _RIGHT, _NUMBERS, _INTEGERS, _BRAKES, _, _IDS = range(
  turns.READ, turns.READ + 7
)
_VECTORS, _STATE = turns.RESULTS, turns.RESULTS + 2


def num_scratch(spec: Any, longest: int) -> int:
  """Returns floats that any kernel here takes; with fewer it does nothing.

  `spec` is a `models.base.WindowSpec`, `longest` the longest path of a tree.
  """
  left = spec.chunk + 2 * spec.window + 3 * tiles.SIZE
  right = left + spec.shared_negatives + longest
  columns = spec.dim + tiles.LANES
  # Words, means and outputs with their gradients, of which each has an address,
  # an id and a rate; scores, weights and fractions; the rows that each tile
  # meets.
  num_rows = 2 * (2 * left + right)
  number = num_rows * (columns + 6) + left * (3 * right + left) + 1024
  return number // 16 * 16  # so that what follows stays aligned


@numba.njit(**rows.JIT)
def _measure(scores, weights):
  """The loss, in nats, whose derivative is `rows.slopes`."""
  total = 0.0
  for x in range(weights.shape[0]):
    for j in range(weights.shape[1]):
      weight, score = weights[x, j], scores[x, j]
      if weight:
        score = -score if weight < 0 else score
        loss = max(score, 0.0) + math.log1p(math.exp(-abs(score)))
        total += abs(weight) * loss
  return total


@numba.njit(**rows.JIT)
def _context_weights(left, right, window, weight, is_mean, columns, out):
  """Weights [c, band] of the contexts in a center's window, for out[:, :band].

  Row x has the window of its tile, from x // 4 * 4 on. If it `is_mean`, all
  contexts of a center have the weight together. `columns` are 0, 1, ... as
  floats, because LLVM is slow at making them.
  """
  for x in range(left.size):
    before, after = -np.float32(left[x]), np.float32(right[x])
    each = weight
    if is_mean:
      each /= max(after - before, np.float32(1))
    row, center = out[x], np.float32(window + x % tiles.SIZE)
    for j in range(columns.size):
      offset = columns[j] - center
      is_near = (offset >= before) & (offset <= after) & (offset != 0)
      row[j] = each if is_near else np.float32(0)


@numba.njit(**rows.JIT)
def _negative_weights(left, right, ids, draws, factor, marks, first, out):
  """Weights [c, n] of skip-gram's negatives: pairs of a center without them.

  They come to out[:, first:]; a part of a row would look to LLVM as if its
  numbers were apart.

  Few draws are in the window: `marks`, zeros [a power of two], tell most of the
  others by their last bits.
  """
  window, last = (ids.size - left.size) // 2, marks.size - 1
  for x in range(left.size):
    weight = factor * np.float32(np.int64(left[x]) + np.int64(right[x]))
    row = out[x]
    for j in range(draws.size):
      row[first + j] = weight
  for id_ in ids:
    marks[id_ & last] = 1
  for j in range(draws.size):
    if marks[draws[j] & last]:
      for y in range(ids.size):
        if ids[y] == draws[j]:
          for x in range(max(0, y - 2 * window), min(left.size, y + 1)):
            offset = y - x - window
            is_near = (offset >= -np.int64(left[x])) & (offset <= right[x])
            if is_near & (offset != 0):
              out[x, first + j] -= factor
  for id_ in ids:
    marks[id_ & last] = 0


@numba.njit(**rows.JIT)
def _target_weights(left, right, centers, draws, factor, out):
  """Weights [c, 4 + n] of CBOW: -1 of the center itself, then of negatives."""
  for x in range(left.size):
    has_context = np.float32((left[x] > 0) | (right[x] > 0))
    row = out[x]
    for j in range(tiles.SIZE):
      row[j] = -has_context * np.float32(j == x % tiles.SIZE)
    for j in range(draws.size):
      differs = np.float32(draws[j] != centers[x])
      row[tiles.SIZE + j] = has_context * factor * differs


@numba.njit(**rows.INLINE)
def _table(frame, number, kind):
  """The table of inputs, 0, or of outputs, 1."""
  numbers = ffi.vector(frame, ffi.ARGUMENTS, _NUMBERS, np.float32)
  integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
  return rows.Table(
    ffi.matrix(frame, ffi.RESULTS, _VECTORS + number, kind),
    ffi.vector(frame, ffi.RESULTS, _STATE + number, np.float32),
    np.int64(integers[0]),
    numbers[0],
    numbers[1],
    np.uint32(integers[1]),
    np.uint32(integers[2]),
    integers[3] != 0,
    ffi.vector(frame, ffi.ARGUMENTS, _BRAKES + number, np.float32),
  )


@numba.njit(**rows.INLINE)
def _ids(frame, number):
  return ffi.matrix(frame, ffi.ARGUMENTS, _IDS + number, np.int32)


@numba.njit(**rows.INLINE)
def _arrays(frame, kind):
  """Both tables, `left` and `right`."""
  left = ffi.matrix(frame, ffi.ARGUMENTS, _LEFT, np.uint8)
  right = ffi.matrix(frame, ffi.ARGUMENTS, _RIGHT, np.uint8)
  return _table(frame, 0, kind), _table(frame, 1, kind), left, right


@numba.njit(**rows.INLINE)
def _sizes(frame, chunk, windows, draws):
  """K / N, W, and padded: centers, draws, and what a tile has of a window."""
  numbers = ffi.vector(frame, ffi.ARGUMENTS, _NUMBERS, np.float32)
  tile, num_draws = tiles.SIZE, draws.shape[1]
  factor, window = numbers[2] / num_draws, (windows.shape[1] - chunk) // 2
  num_left, num_right = rows.padded(chunk, tile), rows.padded(num_draws, tile)
  band = rows.padded(tile + 2 * window, tile)
  return np.float32(factor), window, num_left, num_right, band


@numba.njit(**rows.JIT)
def _score_bands(centers, others, band, met, scores, dim):
  """Scores of each tile of centers with its window, then with all draws.

  Rows are given by their addresses, of which `met` gets those for each tile.
  """
  tile, num_columns = tiles.SIZE, scores.shape[1]
  for g in range(0, centers.size, tile):
    start = g // tile * num_columns
    for y in range(band):
      met[start + y] = others[g + y]
    for y in range(band, num_columns):
      met[start + y] = others[centers.size - tile + y]
    for y in range(0, num_columns, tile):
      tiles.scores(centers, g, met, start + y, dim, scores, g, y)


@numba.njit(**rows.JIT)
def _add_bands(weights, band, sources, words, dim):
  """Adds to rows of windows what the tiles of centers that meet them give."""
  tile, num_left = tiles.SIZE, sources.size
  for j in range(0, num_left - tile + band, tile):
    first, last = max(0, j - band + tile), min(j + tile, num_left)
    tiles.add_columns(
      weights, first, j - first, -tile, sources, first, last - first,
      words.targets, j, words.rates, dim,
    )  # fmt: skip


@numba.njit(**rows.INLINE)
def _skipgram(frame, kind, first, stop, scratch):
  scratch_stop, one = turns.scratch_stop(frame, scratch), np.float32(1)
  inputs, outputs, left, right = _arrays(frame, kind)
  windows, draws = _ids(frame, 0), _ids(frame, 1)
  chunk, dim, tile = left.shape[1], inputs.vectors.shape[1], tiles.SIZE
  sizes = _sizes(frame, chunk, windows, draws)
  factor, window, num_left, num_right, band = sizes
  # What a tile has beyond the window, or the draws, has no weight.
  num_words, num_columns = num_left - tile + band, band + num_right
  centers, scratch = rows.take_rows(scratch, num_left, dim)
  others, scratch = rows.take_rows(scratch, num_words + num_right, dim)
  scores, scratch = rows.take(scratch, num_left, num_columns)
  weights, scratch = rows.take(scratch, num_left, num_columns)
  marks, scratch = rows.take_vector(scratch, 256, np.int32)
  num_met = num_left // tile * num_columns
  met, scratch = rows.take_vector(scratch, num_met, np.uintp)
  columns, scratch = rows.take_vector(scratch, band, np.float32)
  if scratch > scratch_stop:
    return np.nan, np.nan
  for chunk_rows in (centers, others):
    rows.reset(chunk_rows)
  _count(columns)
  loss = examples = 0.0
  for i in range(first, stop):
    if i + 1 < stop:
      rows.prefetch(inputs.vectors, windows[i + 1, window : window + chunk])
      rows.prefetch(outputs.vectors, windows[i + 1])
      rows.prefetch(outputs.vectors, draws[i + 1])
    rows.copy(windows[i, window : window + chunk], centers.ids, 0)
    rows.copy(windows[i], others.ids, 0)
    rows.copy(draws[i], others.ids, num_words)
    rows.gather(inputs, centers, centers.ids)
    rows.find(outputs, others, others.ids)
    _score_bands(centers.sources, others.sources, band, met, scores, dim)
    _context_weights(left[i], right[i], window, -one, False, columns, weights)
    _negative_weights(
      left[i], right[i], windows[i], draws[i], factor, marks, band, weights
    )
    if i % _LOSS_EVERY_CHUNKS == 0:
      loss += _measure(scores, weights)
      for x in range(chunk):
        examples += np.int64(left[i, x]) + np.int64(right[i, x])
    rows.slopes(scores.reshape(-1), weights.reshape(-1))
    rows.aim(inputs, centers, centers.ids)
    rows.aim(outputs, others, others.ids)
    rows.add_rows(
      scores, 0, met, 0, num_columns, num_columns, centers.targets,
      centers.rates, dim,
    )  # fmt: skip
    _add_bands(scores, band, centers.sources, others, dim)
    rows.add_columns(
      scores, band, centers.sources, num_left, others.targets[num_words:],
      others.rates[num_words:], dim,
    )  # fmt: skip
    rows.descend(inputs, centers, centers.ids, 2 * i)
    rows.descend(outputs, others, others.ids, 2 * i + 1)
  return loss, examples


@numba.njit(**rows.INLINE)
def _cbow(frame, kind, first, stop, scratch):
  scratch_stop, one = turns.scratch_stop(frame, scratch), np.float32(1)
  inputs, outputs, left, right = _arrays(frame, kind)
  windows, draws = _ids(frame, 0), _ids(frame, 1)
  chunk, dim, tile = left.shape[1], inputs.vectors.shape[1], tiles.SIZE
  sizes = _sizes(frame, chunk, windows, draws)
  factor, window, num_left, num_right, band = sizes
  num_words, num_columns = num_left - tile + band, tile + num_right
  words, scratch = rows.take_rows(scratch, num_words, dim)
  means, scratch = rows.take_rows(scratch, num_left, dim)
  others, scratch = rows.take_rows(scratch, num_left + num_right, dim)
  scores, scratch = rows.take(scratch, num_left, num_columns)
  weights, scratch = rows.take(scratch, num_left, num_columns)
  fractions, scratch = rows.take(scratch, num_left, band)
  num_met = num_left // tile * num_columns
  met, scratch = rows.take_vector(scratch, num_met, np.uintp)
  columns, scratch = rows.take_vector(scratch, band, np.float32)
  if scratch > scratch_stop:
    return np.nan, np.nan
  for chunk_rows in (words, means, others):
    rows.reset(chunk_rows)
  _count(columns)
  loss = examples = 0.0
  for i in range(first, stop):
    if i + 1 < stop:
      rows.prefetch(inputs.vectors, windows[i + 1])
      rows.prefetch(outputs.vectors, windows[i + 1, window : window + chunk])
      rows.prefetch(outputs.vectors, draws[i + 1])
    rows.copy(windows[i], words.ids, 0)
    rows.copy(windows[i, window : window + chunk], others.ids, 0)
    rows.copy(draws[i], others.ids, num_left)
    rows.find(inputs, words, words.ids)
    rows.find(outputs, others, others.ids)
    _context_weights(left[i], right[i], window, one, True, columns, fractions)
    _average(words.sources, means, fractions, tile, band, dim)
    _score_bands(means.sources, others.sources, tile, met, scores, dim)
    centers = others.ids[:chunk]
    _target_weights(left[i], right[i], centers, draws[i], factor, weights)
    if i % _LOSS_EVERY_CHUNKS == 0:
      loss += _measure(scores, weights)
      for x in range(chunk):
        examples += (left[i, x] > 0) | (right[i, x] > 0)
    rows.slopes(scores.reshape(-1), weights.reshape(-1))
    rows.aim(inputs, words, words.ids)
    rows.aim(outputs, others, others.ids)
    _add_to_means(scores, others.sources, means, dim)
    _add_bands(scores, tile, means.sources, others, dim)
    rows.add_columns(
      scores, tile, means.sources, num_left, others.targets[num_left:],
      others.rates[num_left:], dim,
    )  # fmt: skip
    _add_bands(fractions, band, means.targets, words, dim)
    rows.descend(inputs, words, words.ids, 2 * i)
    rows.descend(outputs, others, others.ids, 2 * i + 1)
  return loss, examples


@numba.njit(**rows.INLINE)
def _add_to_means(scores, others, means, dim):
  """Gradients of means: what the row of each center, then draws give."""
  tile, num_left = tiles.SIZE, means.ids.size
  num_right = others.size - num_left
  for y, j, step, count in ((0, 0, tile, tile), (tile, num_left, 0, num_right)):
    rows.add_rows(
      scores, y, others, j, step, count, means.targets, means.rates, dim
    )


@numba.njit(**rows.JIT)
def _count(out):
  """Writes 0, 1, ... to an array [n]."""
  for j in range(out.size):
    out[j] = np.float32(j)


@numba.njit(**rows.INLINE)
def _average(words, means, fractions, step, count, dim):
  """Means of words by fractions, as of `rows.add_rows`; without gradients."""
  means.values[:] = 0
  means.grads[:] = 0
  rows.add_rows(
    fractions, 0, words, 0, step, count, means.sources, means.rates, dim
  )


@numba.njit(**rows.JIT)
def _find_path(word, exits, firsts, deep, nodes, codes):
  """Writes the inner nodes and codes of a word's path; returns how many."""
  num, none = 0, 2 * (exits.size - 1)
  for part in (firsts[exits[word]], deep[word]):
    for packed in part:
      if packed < none:
        nodes[num], codes[num] = packed >> 1, packed & 1
        num += 1
  nodes[num:] = rows.NO_ID
  return num


@numba.njit(**rows.JIT)
def _path_weights(codes, depth, num_used, excluded, shape, out):
  """Weights of the nodes of a path, for all rows used but the excluded one."""
  for g in range(shape[0]):
    is_used, row = (g < num_used) & (g != excluded), out[g]
    for y in range(shape[1]):
      sign = 2 * np.float32(codes[y]) - 1
      row[y] = sign * np.float32(is_used & (y < depth))


@numba.njit(**rows.JIT)
def _set_fractions(fractions, center, num_words):
  """Writes those of the mean of a center's contexts, for one of four means."""
  for j in range(num_words):
    fractions[0, j] = np.float32(j != center) / np.float32(num_words - 1)
  fractions[0, num_words:] = 0


@numba.njit(**rows.INLINE)
def _add_path(slopes, lefts, nodes, depth, dim):
  """Adds to rows of a path what the others give, and the other way."""
  rows.add_rows(
    slopes, 0, nodes.sources, 0, 0, depth, lefts.targets, lefts.rates, dim
  )
  targets = nodes.targets[:depth]
  rows.add_columns(
    slopes, 0, lefts.sources, slopes.shape[0], targets, nodes.rates, dim
  )


@numba.njit(**rows.INLINE)
def _hierarchical(frame, kind, first, stop, scratch):
  scratch_stop = turns.scratch_stop(frame, scratch)
  averages = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)[4] != 0
  inputs, outputs, left, right = _arrays(frame, kind)
  windows = _ids(frame, 0)
  exits = ffi.vector(frame, ffi.ARGUMENTS, _IDS + 1, np.int32)
  firsts, deep = _ids(frame, 2), _ids(frame, 3)
  chunk, dim, tile = left.shape[1], inputs.vectors.shape[1], tiles.SIZE
  window = (windows.shape[1] - chunk) // 2
  num_left = rows.padded(2 * window + 1, tile)
  num_right = rows.padded(firsts.shape[1] + deep.shape[1], tile)
  words, scratch = rows.take_rows(scratch, num_left, dim)
  means, scratch = rows.take_rows(scratch, tile, dim)
  nodes, scratch = rows.take_rows(scratch, num_right, dim)
  scores, scratch = rows.take(scratch, num_left, num_right)
  weights, scratch = rows.take(scratch, num_left, num_right)
  fractions, scratch = rows.take(scratch, tile, num_left)
  codes, scratch = rows.take_vector(scratch, num_right, np.int32)
  if scratch > scratch_stop:
    return np.nan, np.nan
  for chunk_rows in (words, means, nodes):
    rows.reset(chunk_rows)
  loss = examples = 0.0
  for center in range(first * chunk, stop * chunk):
    i, x = center // chunk, center % chunk
    before, after = np.int64(left[i, x]), np.int64(right[i, x])
    num_words = before + after + 1
    if num_words == 1:
      continue
    ids = windows[i, x + window - before : x + window + after + 1]
    depth = _find_path(ids[before], exits, firsts, deep, nodes.ids, codes)
    rows.copy(ids, words.ids, 0)
    words.ids[num_words:] = rows.NO_ID
    ids = words.ids[: rows.padded(num_words, tile)]
    path = nodes.ids[: rows.padded(depth, tile)]
    rows.gather(inputs, words, ids)
    rows.find(outputs, nodes, path)
    if averages:
      _set_fractions(fractions, before, num_words)
      _average(words.sources, means, fractions, 0, ids.size, dim)
    lefts, num_used = (means, 1) if averages else (words, num_words)
    shape = rows.padded(num_used, tile), path.size
    used = scores[: shape[0], : shape[1]]
    rows.score(lefts.sources, nodes.sources, dim, used)
    excluded = -1 if averages else before
    _path_weights(codes, depth, num_used, excluded, shape, weights)
    if center % (_LOSS_EVERY_CHUNKS * chunk) == 0:
      examples += num_used - (not averages)
      loss += _measure(used, weights[: shape[0], : shape[1]])
    for g in range(shape[0]):
      rows.slopes(scores[g, : shape[1]], weights[g, : shape[1]])
    rows.aim(inputs, words, ids)
    rows.aim(outputs, nodes, path)
    _add_path(used, lefts, nodes, path.size, dim)
    if averages:
      targets, rates = words.targets[: ids.size], words.rates
      rows.add_columns(fractions, 0, means.targets, tile, targets, rates, dim)
    rows.descend(inputs, words, ids, 2 * center)
    rows.descend(outputs, nodes, path, 2 * center + 1)
  return loss, examples


# What XLA calls, of tables of a type. None is a closure of what it calls:
# numba's cache goes by a hash of closures, and that of compiled functions
# differs between processes.


def skipgram(kind):
  """Skip-gram with negative sampling."""

  def compute(frame, first, stop, scratch, result):
    loss, examples = _skipgram(frame, kind, first, stop, scratch)
    turns.report(result, loss, examples)

  return compute


def cbow(kind):
  """CBOW with negative sampling."""

  def compute(frame, first, stop, scratch, result):
    loss, examples = _cbow(frame, kind, first, stop, scratch)
    turns.report(result, loss, examples)

  return compute


def hierarchical(kind):
  """Skip-gram or, if it averages, CBOW with hierarchical softmax."""

  def compute(frame, first, stop, scratch, result):
    loss, examples = _hierarchical(frame, kind, first, stop, scratch)
    turns.report(result, loss, examples)

  return compute
