"""Steps of the word2vec models with hierarchical softmax, center by center.

Every center reads the rows of its contexts and of the inner nodes of its path,
forms all scores and slopes, and changes the rows at once: what follows learns
from it. So a call is as many steps of plain gradient descent as it has centers,
with the gradients that `models.hierarchical` states. Scores have a row for each
context, or one for their mean, and a column for each node.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import arguments, rows, tiles, turns
from jaxemb.ops import memory

# Nodes next to the root of which a thread has copies: so many at most, and one
# for 8 centers of a call. With two cores that share no cache 64 nodes take 1.65
# us a center, 1,024 take 1.32.
_LOCAL_NODES, _LOCAL_CENTERS = 1024, 8
# Columns of scores, whose distance is constant so that the addresses of all
# rows are in few registers. With counts of 63 bits the longest first part of a
# path, and the longest rest, have 92 nodes together.
_STRIDE = 96


def local_nodes(num_centers: int) -> int:
  """Returns the nodes that a thread of so many centers has copies of."""
  return min(_LOCAL_NODES, num_centers // _LOCAL_CENTERS)


def num_scratch(spec: Any, longest: int, num_local: int) -> int:
  """Returns floats that the kernel takes; with fewer it returns NaN.

  `spec` is a `models.base.WindowSpec`, `longest` the longest path of the tree,
  `num_local` the nodes of which a thread has copies. Raises a `ValueError` for
  paths that are too long.
  """
  if longest > _STRIDE:
    raise ValueError(f'a path of {longest} nodes; at most {_STRIDE}')
  left, right = 2 * spec.window + tiles.SIZE, longest + tiles.SIZE
  columns = spec.dim + tiles.LANES
  # Words, a tile of means, nodes and local nodes, each twice, with addresses,
  # an id and a rate; scores, weights, fractions and signs; what is awaited.
  num_rows = 2 * (left + tiles.SIZE + right + num_local)
  number = num_rows * (columns + 8) + left * (2 * _STRIDE + tiles.SIZE)
  return (number + _STRIDE + 2 * right + 1024) // 16 * 16  # stays aligned


@numba.njit(**rows.INLINE)
def _average(words, means, fractions, num_words, dim):
  """The mean of a center's contexts, for one of four means; without gradients.

  Writes what each of the words is of it to `fractions` [4, padded words].
  """
  for j in range(fractions.shape[1]):
    is_word = np.float32(j < num_words)
    fractions[0, j] = is_word / np.float32(num_words)
  rows.clear(means.values, means.ids.size)
  rows.clear(means.grads, means.ids.size)
  rows.add_rows(
    fractions, 0, words, 0, num_words, means.sources, means.rates, dim
  )


@numba.njit(**rows.INLINE)
def _tree(frame):
  """`exits`, `firsts` and `deep`."""
  exits = ffi.vector(frame, ffi.ARGUMENTS, arguments.MORE, np.int32)
  firsts = ffi.matrix(frame, ffi.ARGUMENTS, arguments.MORE + 1, np.int32)
  deep = ffi.matrix(frame, ffi.ARGUMENTS, arguments.MORE + 2, np.int32)
  return exits, firsts, deep


@numba.njit(**rows.JIT)
def _take_path(packed, none, nodes, signs):
  """Writes a part of a path, and padding; returns how long it is."""
  num = 0
  for j in range(packed.size):
    is_node = packed[j] < none
    nodes[j] = packed[j] >> 1 if is_node else rows.NO_ID
    signs[j] = np.float32(2 * (packed[j] & 1) - 1) * np.float32(is_node)
    num += is_node
  return num


@numba.njit(**rows.JIT)
def _find_path(word, tree, nodes, signs):
  """Writes the inner nodes of a word's path, and weights; returns how many.

  Weights are 1 or -1 by the code, and 0 of what is no node.
  """
  exits, firsts, deep = tree
  none = 2 * (exits.size - 1)
  num = _take_path(firsts[exits[word]], none, nodes, signs)
  num += _take_path(deep[word], none, nodes[num:], signs[num:])
  for y in range(num, rows.padded(num, tiles.SIZE)):
    nodes[y], signs[y] = rows.NO_ID, 0
  return num


@numba.njit(**rows.JIT)
def _take_contexts(tokens, position, before, after, out):
  """Writes the words around a center, without it; returns how many."""
  rows.copy(tokens[position - before : position], out, 0)
  rows.copy(tokens[position + 1 : position + 1 + after], out[before:], 0)
  num = before + after
  for j in range(num, rows.padded(num, tiles.SIZE)):
    out[j] = rows.NO_ID
  return num


@numba.njit(**rows.JIT)
def _await_path(table, local, packed, out):
  """As `rows.await_row`, of the nodes of a path, which come before padding.

  `local` [n, padded dim] are copies of the first rows.
  """
  start, size = np.uint64(table.ctypes.data), np.uint64(table.strides[0])
  local_start = np.uint64(local.ctypes.data)
  local_size = np.uint64(local.strides[0])
  first, num = out[0], np.uint64(0)
  addresses = out[np.uint64(2) + first :]
  for j in range(packed.size):  # without branches, in vectors
    node = packed[j] >> 1
    address = start + np.uint64(node) * size
    local_address = local_start + np.uint64(node) * local_size
    is_local = node < local.shape[0]
    addresses[j] = local_address if is_local else address
    num += np.uint64(node < table.shape[0])
  out[0], out[1] = first + num, size


@numba.njit(**rows.INLINE)
def _await_center(tokens, position, window, tree, tables, work):
  """Awaits rows that the next center is the first to look up.

  These are its last context, and the nodes of its path that are far from the
  root. Where the paths of the two centers after it are listed is asked for.
  """
  (exits, _, deep), (inputs, outputs) = tree, tables
  awaited, num_tokens = work.awaited, tokens.size
  awaited[0] = 0
  if position + 3 < num_tokens and tokens[position + 3] < exits.size:
    start, word = np.uint64(exits.ctypes.data), np.uint64(tokens[position + 3])
    memory.prefetch_to_read(start + np.uint64(exits.itemsize) * word)
  if position + 1 + window < num_tokens:
    context = tokens[position + 1 + window]
    rows.await_row(inputs.vectors, context, awaited)
  if position + 2 < num_tokens and tokens[position + 2] < deep.shape[0]:
    path = deep[tokens[position + 2]]
    for offset in range(0, path.nbytes, memory.LINE):
      memory.prefetch_to_read(np.uint64(path.ctypes.data) + np.uint64(offset))
  if position + 1 < num_tokens and tokens[position + 1] < deep.shape[0]:
    path = deep[tokens[position + 1]]
    _await_path(outputs.vectors, work.local.values, path, awaited)


@numba.njit(**rows.JIT)
def _score_path(lefts, num_left, nodes, dim, scores, awaited):
  """Scores [rows, nodes] of some rows with a path, both by their addresses."""
  most = tiles.MOST_SCORED
  x, num_tiles = 0, rows.padded(num_left, most) // most
  for k in range(num_tiles, 0, -1):
    num = (num_left - x + k - 1) // k  # 4 + 3 rather than 6 + 1
    for y in range(0, nodes.size, tiles.SIZE):
      tiles.scores_of(num, lefts, x, nodes, y, dim, scores)
      rows.prefetch_some(awaited, 1)
    x += num


@numba.njit(**rows.INLINE)
def exchange(slopes, lefts, num_left, nodes, depth, dim):
  """Adds to words, or their mean, what a path gives, and to it what they do."""
  most = tiles.MOST_EXCHANGED if dim >= tiles.LANES else 1
  if num_left > most:  # what the first ones change, the next ones still need
    _copy_rows(lefts.sources, num_left, dim, lefts.values)
    _copy_rows(nodes.sources, depth, dim, nodes.values)
  for first in range(0, num_left, most):
    num = min(most, num_left - first)
    tiles.exchange(
      slopes, lefts.sources, lefts.targets, lefts.rates, first, num,
      nodes.sources, nodes.targets, nodes.rates, depth, dim,
    )  # fmt: skip


@numba.njit(**rows.JIT)
def _copy_rows(sources, num, dim, values):
  """Copies rows to `values`, and makes those the sources."""
  for i in range(num):
    start = np.uintp(values[i].ctypes.data)
    if sources[i] != start:
      tiles.copy(sources[i], start, dim)
      sources[i] = start


@numba.njit(**rows.JIT)
def _repeat(row, out):
  """Writes a row [n] to each of `out` [m, n]."""
  for x in range(out.shape[0]):
    rows.copy(row[: out.shape[1]], out[x], 0)


@numba.njit(**rows.JIT)
def _slopes(scores, num_rows, num_columns, signs):
  """`rows.slopes` of scores [rows, nodes], in whole vectors."""
  for x in range(num_rows):
    rows.slopes(scores[x][:num_columns], signs[:num_columns])


class _Work(NamedTuple):
  """Buffers for a center and its path."""

  words: rows.Rows
  means: rows.Rows  # of which one is used
  nodes: rows.Rows
  local: rows.LocalRows  # nodes
  fractions: np.ndarray  # [4, padded words], of the mean
  signs: np.ndarray  # [padded nodes], their weights
  awaited: np.ndarray  # rows of the next center, as of `rows.await_rows`


@numba.njit(**rows.INLINE)
def _take_work(scratch, num_left, num_right, num_local, dim):
  """`_Work`, and the address after it."""
  words, rest = rows.take_rows(scratch, num_left, dim)
  means, rest = rows.take_rows(rest, tiles.SIZE, dim)
  nodes, rest = rows.take_rows(rest, num_right, dim)
  local, rest = rows.take_local(rest, num_local, dim)
  fractions, rest = rows.take(rest, tiles.SIZE, num_left)
  signs, rest = rows.take_vector(rest, _STRIDE, np.float32)
  awaited, rest = rows.take_vector(rest, 3 + num_right, np.uint64)
  return _Work(words, means, nodes, local, fractions, signs, awaited), rest


@numba.njit(**rows.INLINE)
def _take_center(tokens, position, window, contexts, tree, tables, work):
  """Takes the words and the path of a center; returns how many each has."""
  before, after = contexts
  depth = _find_path(tokens[position], tree, work.nodes.ids, work.signs)
  num_words = _take_contexts(tokens, position, before, after, work.words.ids)
  _await_center(tokens, position, window, tree, tables, work)
  return num_words, depth


@numba.njit(**rows.INLINE)
def _learn_center(
  tables, work, sizes, averages, merge_uses, scratch, number, is_measured
):
  """Changes the rows of a center's words and path; returns loss, examples."""
  (inputs, outputs), (num_words, depth) = tables, sizes
  words, nodes, awaited = work.words, work.nodes, work.awaited
  dim = inputs.vectors.shape[1]
  ids = words.ids[: rows.padded(num_words, tiles.SIZE)]
  path = nodes.ids[: rows.padded(depth, tiles.SIZE)]
  rows.find(inputs, words, ids)
  rows.find(outputs, nodes, path)
  rows.aim(inputs, words, ids)
  rows.aim(outputs, nodes, path)
  if work.local.uses.size:
    sources, targets = nodes.sources, nodes.targets
    rows.find_local(
      outputs.vectors, path, merge_uses, work.local, sources, targets
    )
  lefts, num_used = words, num_words
  if averages:
    _average(words.sources, work.means, work.fractions, num_words, dim)
    lefts, num_used = work.means, 1
  scores, rest = rows.take(scratch, num_used, _STRIDE)
  loss, examples = 0.0, 0
  _score_path(
    lefts.sources, num_used, nodes.sources[: path.size], dim, scores, awaited
  )
  if is_measured:
    weights = rows.take(rest, num_used, path.size)[0]
    _repeat(work.signs, weights)
    loss, examples = arguments.measure(scores, weights), num_used
  _slopes(scores, num_used, rows.padded(depth, tiles.LANES), work.signs)
  exchange(scores, lefts, num_used, nodes, depth, dim)
  if averages:
    targets = words.targets[: ids.size]
    rows.add_columns(
      work.fractions, 0, lefts.targets, 1, targets, words.rates, dim
    )
  rows.prefetch_some(awaited, awaited.size)
  rows.descend(inputs, words, ids, 2 * number)
  rows.descend(outputs, nodes, path, 2 * number + 1)
  return loss, examples


@numba.njit(**rows.INLINE)
def _compute(frame, kind, first, stop, scratch, result):
  scratch_stop = turns.scratch_stop(frame, scratch)
  integers = ffi.vector(frame, ffi.ARGUMENTS, arguments.INTEGERS, np.int32)
  inputs, outputs, left, right = arguments.arrays(frame, kind)
  tables, tree = (inputs, outputs), _tree(frame)
  tokens = ffi.matrix(frame, ffi.ARGUMENTS, arguments.TOKENS, np.int32)
  (num_chunks, chunk), dim = left.shape, inputs.vectors.shape[1]
  numbers = ffi.vector(frame, ffi.ARGUMENTS, arguments.NUMBERS, np.float32)
  window = numbers.size - 3
  averages, merge_uses = integers[4] != 0, np.int64(integers[10])
  num_left = rows.padded(2 * window, tiles.SIZE)
  num_right = rows.padded(tree[1].shape[1] + tree[2].shape[1], tiles.SIZE)
  num_local = min(np.int64(integers[11]), outputs.vectors.shape[0])
  work, scratch = _take_work(scratch, num_left, num_right, num_local, dim)
  if rows.take(scratch, 2 * num_left, _STRIDE)[1] > scratch_stop:
    return np.nan, np.nan
  if num_local and first == stop:
    rows.merge_local(outputs.vectors, work.local)
    return 0.0, 0.0
  for chunk_rows in (work.words, work.means, work.nodes):
    rows.reset(chunk_rows)
  if num_local:
    turns.keep_open(result)
  loss = examples = 0.0
  for center in range(first * chunk, stop * chunk):
    i, x = center // chunk, center % chunk
    before, after = np.int64(left[i, x]), np.int64(right[i, x])
    if before + after == 0:
      continue
    run, start = arguments.find_window(tokens, chunk, num_chunks, i)
    position, contexts = start + x + window, (before, after)
    sizes = _take_center(
      tokens[run], position, window, contexts, tree, tables, work
    )
    is_measured = center % (arguments.LOSS_EVERY_CHUNKS * chunk) == 0
    measured = _learn_center(
      tables, work, sizes, averages, merge_uses, scratch, center, is_measured
    )
    loss += measured[0]
    examples += measured[1]
  return loss, examples


def hierarchical(kind):
  """Skip-gram or, if it averages, CBOW, for tables of a type."""

  def compute(frame, first, stop, scratch, result):
    loss, examples = _compute(frame, kind, first, stop, scratch, result)
    turns.report(result, loss, examples)

  return compute
