"""Steps of paragraph vectors, PV-DBOW and PV-DM, with negative sampling.

A chunk is c centers, which share N negatives. PV-DBOW learns from all centers
of a document in a chunk at once: the document's row meets the output rows of
these words, then those of the draws. PV-DM learns from four centers at once:
the mean of a center's document and contexts takes the place of the row. A call
is as many steps of plain gradient descent, with the gradients that
`documents.models` states, but that rows are changed in their order: where
several centers or draws are the same word, each sees what the ones before it
have changed.

Arguments that are only read (`turns`) are

  documents    [k, c] int32, row of each center's document; above all = padding
  left, right  [k, c] uint8, contexts of each center, at most W
  numbers      [2] float32, learning rate and K
  integers     [9] int32, N; W; 6 and 7: the key of the draws; 8: entries of
               the alias table
  brakes       those of `rows.Table`, of documents, outputs and inputs
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
)  # of which there are brakes of each table
_TOKENS, _CHUNKS, _LINES = range(turns.READ + 8, turns.READ + 11)
_VECTORS, _OUTPUTS, _INPUTS = range(turns.RESULTS, turns.RESULTS + 3)


def num_scratch(spec: Any) -> int:
  """Returns floats that a kernel here takes; with fewer it returns NaN.

  `spec` is a `models.base.WindowSpec`.
  """
  right = spec.chunk + spec.shared_negatives + tiles.SIZE
  words = 2 * spec.window + 2 * _GROUP
  # Means, outputs, words and documents with their gradients, of which each has
  # addresses, an id and a rate; scores, weights, fractions; ids.
  num_rows = 2 * (2 * _GROUP + right + words)
  number = num_rows * (spec.dim + tiles.LANES + 8)
  number += (4 * _GROUP + 16) * (right + 32) + 32 * words + 1024
  return number // 16 * 16  # so that what follows stays aligned


class _Work(NamedTuple):
  """Buffers for the centers of a run or a tile, and what they meet."""

  lefts: rows.Rows  # of a document, or means
  rights: rows.Rows  # outputs, of centers, then of draws
  scores: np.ndarray  # [lefts, rights], then slopes
  positives: np.ndarray  # [lefts, rights], less than 0: as weights of scores
  negatives: np.ndarray  # [lefts, rights]
  weights: np.ndarray  # [lefts, rights], of both
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
  ids, rest = rows.take_vector(rest, num_ids, np.int32)
  coming, rest = rows.take_vector(rest, num_ids, np.int32)
  awaited, rest = rows.take_vector(rest, 2 + num_ids, np.uint64)
  work = _Work(
    lefts, rights, scores, positives, negatives, weights, ids, coming, awaited
  )
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
def _table(frame, number, sizes):
  brakes = _BRAKES + number - _VECTORS
  return rows.Table(
    ffi.matrix(frame, ffi.RESULTS, number, np.float32),
    sizes.learning_rate,
    np.float32(0),  # all occurrences of a row count
    ffi.vector(frame, ffi.ARGUMENTS, brakes, np.float32),
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
def _list_rights(first, stop, num_centers, work):
  """Lists the output rows of centers first to stop, then those of the draws.

  Returns how many there are.
  """
  ids, listed, num = work.ids, work.rights.ids, stop - first
  rows.copy(ids[first:stop], listed, 0)
  rows.copy(ids[num_centers:], listed, num)
  num += ids.size - num_centers
  for y in range(num, rows.padded(num, tiles.SIZE)):
    listed[y] = rows.NO_ID
  return num


@numba.njit(**rows.JIT)
def _weigh_run(work, num_rights, num_centers, factor):
  """Sets the weights of scores of a row that all centers have.

  A draw does not count for the centers that it equals.
  """
  positives, negatives = work.positives[0], work.negatives[0]
  listed = work.rights.ids
  for y in range(rows.padded(num_rights, tiles.SIZE)):
    is_draw = (y >= num_centers) & (y < num_rights)
    positives[y] = -np.float32(y < num_centers)
    negatives[y] = factor * np.float32(num_centers) * np.float32(is_draw)
  for x in range(num_centers):
    center = listed[x]
    for y in range(num_centers, num_rights):
      negatives[y] -= factor * np.float32(listed[y] == center)


@numba.njit(**rows.JIT)
def _weigh_centers(work, num_rights, num_centers, factor):
  """Sets the weights of scores of rows with a center each."""
  listed = work.rights.ids
  for x in range(num_centers):
    positives, negatives = work.positives[x], work.negatives[x]
    center = listed[x]
    for y in range(rows.padded(num_rights, tiles.SIZE)):
      is_draw = (y >= num_centers) & (y < num_rights)
      positives[y] = -np.float32(y == x)
      negatives[y] = factor * np.float32(is_draw & (listed[y] != center))


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


@numba.njit(**rows.JIT)
def _aim(learning_rate, brakes, ids, rights):
  """As `rows.aim`, of rows that were located by `rows.find`."""
  is_braked = brakes.size > 1
  for y in range(ids.size):
    rights.targets[y], rights.rates[y] = rights.sources[y], -learning_rate
    if is_braked and ids[y] < brakes.size:
      rights.rates[y] /= np.float32(1) + learning_rate * brakes[ids[y]]


@numba.njit(**rows.INLINE)
def _learn(outputs, work, num_lefts, num_rights, is_measured):
  """Adds to left rows and outputs what they give each other; returns a loss."""
  lefts, rights = work.lefts, work.rights
  dim, size = outputs.vectors.shape[1], rows.padded(num_rights, tiles.SIZE)
  ids = rights.ids[:size]
  rows.find(outputs, rights, ids)
  _aim(outputs.learning_rate, outputs.brakes, ids, rights)
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
  """Documents, both tables, sizes, `_Work` and the address after it."""
  documents = ffi.matrix(frame, ffi.ARGUMENTS, _DOCUMENTS, np.int32)
  integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
  sizes = _sizes(frame)
  vectors = _table(frame, _VECTORS, sizes)
  outputs = _table(frame, _OUTPUTS, sizes)
  num_ids = documents.shape[1] + np.int64(integers[0])
  work, rest = _take_work(scratch, num_ids, outputs.vectors.shape[1])
  return documents, (vectors, outputs), sizes, work, rest


def dbow(frame, first, stop, scratch, result):
  """PV-DBOW, of tables in float32."""
  documents, tables, sizes, work, rest = _begin(frame, scratch)
  if rest > turns.scratch_stop(frame, scratch):
    return
  (vectors, brakes), outputs = (tables[0].vectors, tables[0].brakes), tables[1]
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
      _weigh_run(work, num_rights, y - x, sizes.factor)
      address = np.uintp(vectors[documents[i, x]].ctypes.data)
      lefts.sources[0] = lefts.targets[0] = address
      lefts.rates[0] = rows.rate(
        sizes.learning_rate, np.float32(0), brakes, documents[i, x:y], 0
      )
      loss += _learn(outputs, work, 1, num_rights, is_measured)
      examples += is_measured * (y - x)
      x = y
    rows.prefetch_some(work.awaited, work.awaited.size)
  turns.report(result, loss, examples)


class _Members(NamedTuple):
  """Rows of whose means a tile of centers learns."""

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
  """Writes ids and fractions of the members of four means, from center x on.

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
  documents, (vectors, outputs), sizes, work, rest = _begin(frame, scratch)
  window, dim = sizes.window, outputs.vectors.shape[1]
  members, rest = _take_members(rest, window, dim)
  if rest > turns.scratch_stop(frame, scratch):
    return
  inputs = _table(frame, _INPUTS, sizes)
  for buffers in (work.lefts, work.rights, members.words, members.documents):
    rows.reset(buffers)
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
      _weigh_centers(work, num_rights, num, sizes.factor)
      loss += _learn(outputs, work, num, num_rights, is_measured)
      examples += is_measured * num
      _spread(members, means, dim)
    rows.prefetch_some(work.awaited, work.awaited.size)
  turns.report(result, loss, examples)
