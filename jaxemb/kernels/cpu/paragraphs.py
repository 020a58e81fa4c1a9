"""Steps of paragraph vectors, PV-DBOW and PV-DM, with negative sampling.

A chunk is c centers, which share N negatives. In PV-DBOW all centers of a
document in a chunk are learned from at once: its row meets the output rows of
these words and of the draws, each row once, with as much weight as it has
occurrences. In PV-DM some centers are, of which each has a mean of its
document's and of its context's rows. A call is as many steps of plain gradient
descent, with the gradients that `documents.models` states.

Arguments that are only read (`turns`) are

  documents    [k, c] int32, row of each center's document; above all = padding
  left, right  [k, c] uint8, contexts of each center, at most W
  numbers      [2] float32, learning rate and K
  integers     [9] int32, N; W; 6 and 7: the key of the draws; 8: entries of
               the alias table
  brakes       those of `rows.Table`, of outputs
  tokens       [P, L' + 2 W] int32, of runs of k / P chunks each
  chunks       [k] uint32, their numbers among the chunks that draw with the key
  lines        `ops.sampling.Alias.lines`

Changed are the vectors of documents, of outputs and, in PV-DM, of inputs.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import (
  arguments,
  negative_sampling,
  row_updates,
  rows,
  tiles,
  trees,
  turns,
)

# Centers of PV-DM that are learned from at once: a tile.
_GROUP = tiles.SIZE
# Rows of the next chunk that are asked for with each tile of scores.
_PREFETCHED = 4
_DOCUMENTS, _LEFT, _RIGHT, _NUMBERS, _INTEGERS, _BRAKES = range(
  turns.READ, turns.READ + 6
)
_TOKENS, _CHUNKS, _LINES = range(turns.READ + 6, turns.READ + 9)
_VECTORS, _OUTPUTS, _INPUTS = range(turns.RESULTS, turns.RESULTS + 3)


def num_scratch(spec: Any) -> int:
  """Returns floats that a kernel here takes; with fewer it does nothing.

  `spec` is a `models.base.WindowSpec`.
  """
  right = spec.chunk + spec.shared_negatives + tiles.SIZE
  words = 2 * spec.window + 2 * _GROUP
  # Means, outputs, words and documents with their gradients, of which each has
  # addresses, an id and a rate; scores, weights, fractions; the hash table.
  num_rows = 2 * (2 * _GROUP + right + words)
  number = num_rows * (spec.dim + tiles.LANES + 8)
  number += (4 * _GROUP + 16) * (right + 32) + 32 * words + 1024
  return number // 16 * 16  # so that what follows stays aligned


class _Work(NamedTuple):
  """Buffers for some centers and what they meet."""

  lefts: rows.Rows  # of a document, or means
  rights: rows.Rows  # outputs, each once
  scores: np.ndarray  # [lefts, rights], then slopes
  positives: np.ndarray  # [lefts, rights], less than 0: as weights of scores
  negatives: np.ndarray  # [lefts, rights]
  weights: np.ndarray  # [lefts, rights], of both
  draws: np.ndarray  # [rights] float32, how often each was drawn
  centers: np.ndarray  # [rights] float32, how many centers it is
  table: np.ndarray  # int32 of a hash table, 1 + places of rights, 0 = none
  ids: np.ndarray  # [centers, then draws] int32
  coming: np.ndarray  # the same of the next chunk
  awaited: np.ndarray  # its rows, as of `rows.await_rows`


@numba.njit(**rows.INLINE)
def _take_work(scratch, num_ids, dim):
  """`_Work`, and the address after it."""
  num_right = rows.padded(num_ids, tiles.SIZE)
  columns = rows.padded(num_ids, 16)
  lefts, rest = rows.take_rows(scratch, _GROUP, dim)
  rights, rest = rows.take_rows(rest, num_right, dim)
  scores, rest = rows.take(rest, _GROUP, columns)
  positives, rest = rows.take(rest, _GROUP, columns)
  negatives, rest = rows.take(rest, _GROUP, columns)
  weights, rest = rows.take(rest, _GROUP, columns)
  draws, rest = rows.take_vector(rest, columns, np.float32)
  centers, rest = rows.take_vector(rest, columns, np.float32)
  table, rest = rows.take_vector(
    rest, row_updates.table_size(num_ids), np.int32
  )
  ids, rest = rows.take_vector(rest, num_ids, np.int32)
  coming, rest = rows.take_vector(rest, num_ids, np.int32)
  awaited, rest = rows.take_vector(rest, 2 + num_ids, np.uint64)
  work = _Work(
    lefts, rights, scores, positives, negatives, weights, draws, centers, table,
    ids, coming, awaited,
  )  # fmt: skip
  return work, rest


class _Sizes(NamedTuple):
  """Of a call."""

  learning_rate: np.float32
  factor: np.float32  # K / N
  window: int


@numba.njit(**rows.INLINE)
def _sizes(frame):
  numbers = ffi.vector(frame, ffi.ARGUMENTS, _NUMBERS, np.float32)
  integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
  factor = numbers[1] / np.float32(integers[0])
  return _Sizes(numbers[0], factor, np.int64(integers[1]))


@numba.njit(**rows.INLINE)
def _table(frame, number, sizes, brakes):
  return rows.Table(
    ffi.matrix(frame, ffi.RESULTS, number, np.float32),
    sizes.learning_rate,
    np.float32(0),  # all occurrences of a row count
    brakes,
    np.uintp(0),
    frame,
    number,
  )


@numba.njit(**rows.JIT)
def _take_ids(frame, i, out):
  """Writes the centers of chunk i, and its draws."""
  documents = ffi.matrix(frame, ffi.ARGUMENTS, _DOCUMENTS, np.int32)
  integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
  tokens = ffi.matrix(frame, ffi.ARGUMENTS, _TOKENS, np.int32)
  chunks = ffi.vector(frame, ffi.ARGUMENTS, _CHUNKS, np.uint32)
  lines = ffi.matrix(frame, ffi.ARGUMENTS, _LINES, np.int32)
  num_chunks, chunk = documents.shape
  run, start = arguments.find_window(tokens, chunk, num_chunks, i)
  for j in range(chunk):
    out[j] = tokens[run, start + integers[1] + j]
  negative_sampling.draw(lines, integers, chunks[i], chunk, out)


@numba.njit(**rows.JIT)
def _enter(table, ids, num, id_):
  """Returns where an id is among the first ones; puts a new one at `num`."""
  last = np.uint32(table.size - 1)
  spread = np.uint32(np.uint32(id_) * np.uint32(0x9E3779B9))
  entry = (spread >> np.uint32(16)) & last
  while table[entry]:
    if ids[table[entry] - 1] == id_:
      return np.int64(table[entry] - 1)
    entry = (entry + np.uint32(1)) & last
  table[entry] = num + 1
  ids[num] = id_
  return num


@numba.njit(**rows.JIT)
def _list_rights(first, stop, num_centers, work):
  """Lists the rows of draws and of centers first to stop, each once.

  Returns how many there are.
  """
  ids, distinct = work.ids, work.rights.ids
  table, draws, centers = work.table, work.draws, work.centers
  for j in range(table.size):
    table[j] = 0
  num = 0
  for j in range(num_centers, ids.size):
    place = _enter(table, distinct, num, ids[j])
    if place == num:
      draws[num] = centers[num] = 0
      num += 1
    draws[place] += 1
  for j in range(first, stop):
    place = _enter(table, distinct, num, ids[j])
    if place == num:
      draws[num] = centers[num] = 0
      num += 1
    centers[place] += 1
  for y in range(num, rows.padded(num, tiles.SIZE)):
    distinct[y], draws[y], centers[y] = rows.NO_ID, 0, 0
  return num


@numba.njit(**rows.JIT)
def _weigh_run(work, size, num, factor):
  """Weights of scores of a row that all `num` centers have.

  A draw does not count for a center that it equals.
  """
  positives, negatives = work.positives[0], work.negatives[0]
  draws, centers = work.draws, work.centers
  for y in range(size):
    positives[y] = -centers[y]
    negatives[y] = factor * draws[y] * (np.float32(num) - centers[y])


@numba.njit(**rows.JIT)
def _weigh_centers(work, size, first, num, factor):
  """Weights of scores of rows of which each has one center."""
  for x in range(num):
    positives, negatives = work.positives[x], work.negatives[x]
    center, ids, draws = work.ids[first + x], work.rights.ids, work.draws
    for y in range(size):
      is_center = np.float32(ids[y] == center)
      positives[y] = -is_center
      negatives[y] = factor * draws[y] * (np.float32(1) - is_center)


@numba.njit(**rows.JIT)
def _score(work, num_lefts, size, dim):
  """Scores of left rows with outputs, while rows of the next chunk come."""
  most = tiles.MOST_SCORED
  for first in range(0, num_lefts, most):
    num = min(most, num_lefts - first)
    for y in range(0, size, tiles.SIZE):
      tiles.scores_of(
        num, work.lefts.sources, first, work.rights.sources, y, dim, work.scores
      )
      rows.prefetch_some(work.awaited, _PREFETCHED)


@numba.njit(**rows.JIT)
def _set_slopes(work, num_lefts, size, is_measured):
  """Makes slopes of scores; returns their loss, if it is measured."""
  loss = 0.0
  for x in range(num_lefts):
    scores, weights = work.scores[x], work.weights[x]
    positives, negatives = work.positives[x], work.negatives[x]
    if is_measured:
      one = work.scores[x : x + 1, :size]
      loss += arguments.measure(one, work.positives[x : x + 1, :size])
      loss += arguments.measure(one, work.negatives[x : x + 1, :size])
    for y in range(size):
      weights[y] = negatives[y] - positives[y]
    rows.slopes(scores[:size], weights[:size])
    for y in range(size):
      scores[y] += positives[y]
  return loss


@numba.njit(**rows.INLINE)
def _learn(outputs, work, num_lefts, num_rights, is_measured):
  """Adds to left rows and outputs what they give each other; returns a loss."""
  lefts, rights = work.lefts, work.rights
  dim, size = outputs.vectors.shape[1], rows.padded(num_rights, tiles.SIZE)
  rows.find(outputs, rights, rights.ids[:size])
  rows.aim(outputs, rights, rights.ids[:size])
  _score(work, num_lefts, size, dim)
  loss = _set_slopes(work, num_lefts, size, is_measured)
  trees.exchange(work.scores, lefts, num_lefts, rights, num_rights, dim)
  return loss


@numba.njit(**rows.JIT)
def _run_stop(documents, first):
  """Where a run of centers of one document ends."""
  stop = first + 1
  while stop < documents.size and documents[stop] == documents[first]:
    stop += 1
  return stop


@numba.njit(**rows.INLINE)
def _await_next(frame, outputs, work, i, stop):
  """Takes the ids of the next chunk, and awaits its rows."""
  rows.copy(work.coming, work.ids, 0)
  work.awaited[0] = 0
  if i + 1 < stop:
    _take_ids(frame, i + 1, work.coming)
    rows.await_rows(
      outputs.vectors, work.coming, 0, work.coming.size, work.awaited
    )


@numba.njit(**rows.INLINE)
def _begin(frame, scratch):
  """Documents, their rows, outputs, sizes, `_Work` and the address after it."""
  documents = ffi.matrix(frame, ffi.ARGUMENTS, _DOCUMENTS, np.int32)
  integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
  brakes = ffi.vector(frame, ffi.ARGUMENTS, _BRAKES, np.float32)
  sizes = _sizes(frame)
  outputs = _table(frame, _OUTPUTS, sizes, brakes)
  num_ids = documents.shape[1] + np.int64(integers[0])
  work, rest = _take_work(scratch, num_ids, outputs.vectors.shape[1])
  return documents, outputs, sizes, work, rest


def dbow(frame, first, stop, scratch, result):
  """PV-DBOW, of tables in float32."""
  documents, outputs, sizes, work, rest = _begin(frame, scratch)
  if rest > turns.scratch_stop(frame, scratch):
    return
  vectors = ffi.matrix(frame, ffi.RESULTS, _VECTORS, np.float32)
  rows.reset(work.lefts)
  rows.reset(work.rights)
  chunk, lefts = documents.shape[1], work.lefts
  _take_ids(frame, first, work.coming)
  loss = examples = 0.0
  for i in range(first, stop):
    _await_next(frame, outputs, work, i, stop)
    is_measured = i % arguments.LOSS_EVERY_CHUNKS == 0
    x = 0
    while x < chunk and documents[i, x] < vectors.shape[0]:
      y = _run_stop(documents[i], x)
      num_rights = _list_rights(x, y, chunk, work)
      size = rows.padded(num_rights, tiles.SIZE)
      _weigh_run(work, size, y - x, sizes.factor)
      address = np.uintp(vectors[documents[i, x]].ctypes.data)
      lefts.sources[0] = lefts.targets[0] = address
      lefts.rates[0] = -sizes.learning_rate
      loss += _learn(outputs, work, 1, num_rights, is_measured)
      examples += is_measured * (y - x)
      x = y
    rows.prefetch_some(work.awaited, work.awaited.size)
  turns.report(result, loss, examples)


class _Members(NamedTuple):
  """The rows that means of a tile of centers are of."""

  words: rows.Rows  # of the window of the tile
  documents: rows.Rows  # one for each center
  fractions: np.ndarray  # [words, then documents; centers]


@numba.njit(**rows.INLINE)
def _take_members(scratch, window, dim):
  """`_Members`, and the address after them."""
  num_words = rows.padded(_GROUP + 2 * window, tiles.SIZE)
  words, rest = rows.take_rows(scratch, num_words, dim)
  documents, rest = rows.take_rows(rest, _GROUP, dim)
  fractions, rest = rows.take(rest, num_words + _GROUP, _GROUP)
  return _Members(words, documents, fractions), rest


@numba.njit(**rows.JIT)
def _find_members(frame, i, x, window, members):
  """Writes ids and fractions of the rows that means from x on are of.

  Returns how many centers there are.
  """
  documents = ffi.matrix(frame, ffi.ARGUMENTS, _DOCUMENTS, np.int32)
  num_documents = ffi.matrix(frame, ffi.RESULTS, _VECTORS, np.float32).shape[0]
  left = ffi.matrix(frame, ffi.ARGUMENTS, _LEFT, np.uint8)
  right = ffi.matrix(frame, ffi.ARGUMENTS, _RIGHT, np.uint8)
  tokens = ffi.matrix(frame, ffi.ARGUMENTS, _TOKENS, np.int32)
  num_chunks, chunk = documents.shape
  run, start = arguments.find_window(tokens, chunk, num_chunks, i)
  ids, fractions, num = members.words.ids, members.fractions, 0
  for y in range(ids.size):
    token = start + x + y
    is_token = y < _GROUP + 2 * window and token < tokens.shape[1]
    ids[y] = tokens[run, token] if is_token else rows.NO_ID
  for k in range(_GROUP):
    before = after = np.int64(0)
    fraction = np.float32(0)
    document = documents[i, x + k] if x + k < chunk else rows.NO_ID
    if document < num_documents:
      before, after = np.int64(left[i, x + k]), np.int64(right[i, x + k])
      fraction = np.float32(1) / np.float32(before + after + 1)
      num += 1
    members.documents.ids[k] = document
    for y in range(ids.size):
      offset = y - window - k
      is_near = (offset >= -before) & (offset <= after) & (offset != 0)
      fractions[y, k] = fraction if is_near else np.float32(0)
    for y in range(_GROUP):
      fractions[ids.size + y, k] = fraction if y == k else np.float32(0)
  return num


@numba.njit(**rows.INLINE)
def _average(inputs, vectors, members, means):
  """Means of rows; without gradients."""
  words, documents, fractions = members
  dim = inputs.vectors.shape[1]
  rows.find(inputs, words, words.ids)
  rows.find(vectors, documents, documents.ids)
  rows.aim(inputs, words, words.ids)
  rows.aim(vectors, documents, documents.ids)
  rows.clear(means.values, _GROUP)
  rows.clear(means.grads, _GROUP)
  for first, num, sources in (
    (0, words.ids.size, words.sources),
    (words.ids.size, _GROUP, documents.sources),
  ):
    tiles.add_columns(
      fractions, first, 0, sources, 0, num, 0, 0, means.sources, 0,
      means.rates, dim,
    )  # fmt: skip


@numba.njit(**rows.INLINE)
def _spread(members, means, dim):
  """Adds to the rows of means their parts of the gradients."""
  words, documents, fractions = members
  for y in range(0, words.ids.size, tiles.SIZE):
    tiles.add_rows(
      fractions, y, 0, means.targets, 0, _GROUP, 0, 0, words.targets, y,
      words.rates, dim,
    )  # fmt: skip
  tiles.add_rows(
    fractions, words.ids.size, 0, means.targets, 0, _GROUP, 0, 0,
    documents.targets, 0, documents.rates, dim,
  )  # fmt: skip


def dm(frame, first, stop, scratch, result):
  """PV-DM, of tables in float32."""
  documents, outputs, sizes, work, rest = _begin(frame, scratch)
  window, dim = sizes.window, outputs.vectors.shape[1]
  members, rest = _take_members(rest, window, dim)
  if rest > turns.scratch_stop(frame, scratch):
    return
  vectors = _table(frame, _VECTORS, sizes, outputs.brakes[:0])
  inputs = _table(frame, _INPUTS, sizes, outputs.brakes[:0])
  for some in (work.lefts, work.rights, members.words, members.documents):
    rows.reset(some)
  chunk, means = documents.shape[1], work.lefts
  _take_ids(frame, first, work.coming)
  loss = examples = 0.0
  for i in range(first, stop):
    _await_next(frame, outputs, work, i, stop)
    is_measured = i % arguments.LOSS_EVERY_CHUNKS == 0
    for x in range(0, chunk, _GROUP):
      num = _find_members(frame, i, x, window, members)
      if not num:
        break
      _average(inputs, vectors, members, means)
      num_rights = _list_rights(x, x + num, chunk, work)
      size = rows.padded(num_rights, tiles.SIZE)
      _weigh_centers(work, size, x, num, sizes.factor)
      loss += _learn(outputs, work, num, num_rights, is_measured)
      examples += is_measured * num
      _spread(members, means, dim)
    rows.prefetch_some(work.awaited, work.awaited.size)
  turns.report(result, loss, examples)
