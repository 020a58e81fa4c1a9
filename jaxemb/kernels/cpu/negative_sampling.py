"""Steps of skip-gram and CBOW with negative sampling, chunk by chunk.

A chunk is c centers, which share N negatives. Every chunk reads its rows, forms
all scores and slopes, and changes the rows at once: what follows learns from
it. So a call is as many steps of plain gradient descent as it has chunks, with
the gradients that `models.skipgram` and `models.cbow` state.

Scores of a chunk have a row for each word of its window, then for each
negative, and a column for each center. Of the window four centers, x to x + 3,
meet the words x to x + 3 + 2 W; weights keep the pairs. Four means of CBOW meet
their four centers, of which the first four rows are.

Words that share n-grams (`models.subwords`) are composed in buffers, once for
each chunk, and their gradients added to all of their rows (`subwords`).
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import arguments, rows, subwords, tiles, turns
from jaxemb.ops import memory

# Rows of the next chunk that are asked for with each tile. More lines at a time
# than a core can wait for would keep it from reading others.
_PREFETCHED = 1


def num_scratch(spec: Any) -> int:
  """Returns floats that a kernel here takes; with fewer it returns NaN.

  `spec` is a `models.base.WindowSpec`.
  """
  left = spec.chunk + 2 * spec.window + 3 * tiles.SIZE
  right = left + spec.shared_negatives
  columns = spec.dim + tiles.LANES
  # Words, means and outputs with their gradients, of which each has an address,
  # an id and a rate; scores, weights and fractions; what is awaited.
  num_rows = 2 * (2 * left + right)
  number = num_rows * (columns + 8) + left * (3 * right + left) + 1024
  return number // 16 * 16  # so that what follows stays aligned


@numba.njit(**rows.JIT)
def _set_distance_weights(numbers, window, num_columns, out):
  """Writes weights [words, centers] by distance; those of padding stay 0."""
  for y in range(out.shape[0]):
    for x in range(num_columns):
      distance = abs(y - window - x)
      is_near = (distance > 0) & (distance <= window)
      # After three numbers that are no weights.
      out[y, x] = numbers[2 + distance] if is_near else np.float32(0)


@numba.njit(**rows.JIT)
def _context_weights(left, right, window, work, out):
  """Weights [words, centers] of contexts: those by distance times a scale.

  Beyond a sentence, and beyond the window, they are 0.
  """
  befores, afters, scale = work.befores, work.afters, work.scale
  for x in range(left.size):
    befores[x] = np.float32(window + x - np.int64(left[x]))
    afters[x] = np.float32(window + x + np.int64(right[x]))
  for y in range(work.by_distance.shape[0]):
    row, weights, word = out[y], work.by_distance[y], np.float32(y)
    for x in range(befores.size):
      is_near = (word >= befores[x]) & (word <= afters[x])
      row[x] = scale[x] * weights[x] if is_near else np.float32(0)


@numba.njit(**rows.JIT)
def _negative_weights(ids, sizes, totals, out):
  """Weights [draws, centers] of skip-gram's negatives: of pairs without them.

  They follow those of words, and have `factor` times the `totals` of these; a
  draw that is a context of a center does not count for that pair.
  """
  num_words, factor = sizes.num_words, sizes.factor
  for y in range(num_words, num_words + sizes.num_draws):
    row, hits = out[y], 0
    for x in range(totals.size):
      row[x] = factor * totals[x]
    for j in range(num_words):
      hits += ids[j] == ids[y]
    if hits:
      for j in range(num_words):
        if ids[j] == ids[y]:
          word = out[j]
          for x in range(totals.size):
            row[x] += factor * word[x]


@numba.njit(**rows.JIT)
def _target_weights(ids, sizes, has_context, out):
  """Weights of CBOW's scores: -1 of a center itself, and of negatives."""
  tile, num_left, factor = tiles.SIZE, sizes.num_left, sizes.factor
  for y in range(tile):
    row = out[y]
    for x in range(num_left):
      row[x] = -has_context[x] * np.float32(x % tile == y)
  for y in range(sizes.num_draws):
    row, draw = out[tile + y], ids[num_left + y]
    for x in range(num_left):
      row[x] = has_context[x] * factor * np.float32(ids[x] != draw)


@numba.njit(**rows.JIT)
def draw(lines, integers, number, first, out):
  """Writes the draws of a chunk from out[first] on: `ops.sampling.draw`."""
  key0, key1 = np.uint32(integers[6]), np.uint32(integers[7])
  num_entries = np.uint64(integers[8])
  start, num = np.uint64(lines.ctypes.data), out.size - first
  # All entries of the table are asked for before the first is compared: what
  # comes after a guess that fails begins anew.
  for j in range(num):
    position = np.uint32(np.uint32(number) * np.uint32(num) + np.uint32(j))
    bits = np.uint32(position * np.uint32(0x9E3779B9) + key0)
    bits = rows.mix(np.uint32(rows.mix(bits) ^ key1))
    entry = np.uint64(bits) * num_entries >> np.uint64(32)
    memory.prefetch_to_read(start + np.uint64(8) * entry)
    out[first + j] = np.int32(bits)
  for j in range(num):
    bits = np.uint32(out[first + j])
    entry = np.uint64(bits) * num_entries >> np.uint64(32)
    line, column = entry >> np.uint64(6), np.uint64(2) * (entry & np.uint64(63))
    coin = rows.mix(np.uint32(bits + key1)) >> np.uint32(8)
    chance = rows.as_type(np.int32(lines[line, column]), np.float32)
    is_own = np.float32(coin) * np.float32(2**-24) < chance
    other = lines[line, column + np.uint64(1)]
    out[first + j] = np.int32(entry) if is_own else other


@numba.njit(**rows.JIT)
def _take_ids(frame, i, num_words, out):
  """Writes the words of chunk i's window, and draws, from out[num_words] on.

  Without an alias table the call has the draws as an argument.
  """
  left = ffi.matrix(frame, ffi.ARGUMENTS, arguments.LEFT, np.uint8)
  window = (
    ffi.vector(frame, ffi.ARGUMENTS, arguments.NUMBERS, np.float32).size - 3
  )
  integers = ffi.vector(frame, ffi.ARGUMENTS, arguments.INTEGERS, np.int32)
  tokens = ffi.matrix(frame, ffi.ARGUMENTS, arguments.TOKENS, np.int32)
  more = ffi.matrix(frame, ffi.ARGUMENTS, arguments.MORE, np.int32)
  num_chunks, chunk = left.shape
  run, start = arguments.find_window(tokens, chunk, num_chunks, i)
  for j in range(chunk + 2 * window):
    out[j] = tokens[run, start + j]
  if integers[8]:
    chunks = ffi.vector(frame, ffi.ARGUMENTS, arguments.CHUNKS, np.uint32)
    draw(more, integers, chunks[i], num_words, out)
  else:
    for j in range(more.shape[1]):
      out[num_words + j] = more[i, j]


@numba.njit(**rows.JIT)
def _add_up(weights, num_words, totals):
  """Writes what all contexts of a center count."""
  for x in range(totals.size):
    totals[x] = 0
  for y in range(num_words):
    row = weights[y]
    for x in range(totals.size):
      totals[x] -= row[x]


@numba.njit(**rows.JIT)
def _has_pairs(left, right, i):
  """Whether chunk i has pairs; none of a step's last chunks may."""
  num = 0
  for x in range(left.shape[1]):
    num += np.int64(left[i, x]) + np.int64(right[i, x])
  return num > 0


@numba.njit(**rows.JIT)
def _sum(numbers):
  total = np.float32(0)
  for x in range(numbers.size):
    total += numbers[x]
  return total


class _Sizes(NamedTuple):
  """Of chunks with negatives."""

  window: int
  num_draws: int
  # In whole tiles:
  num_left: int  # centers
  num_words: int  # of their windows
  num_right: int  # draws
  factor: np.float32  # K / N


@numba.njit(**rows.INLINE)
def _sizes(frame):
  numbers = ffi.vector(frame, ffi.ARGUMENTS, arguments.NUMBERS, np.float32)
  num_draws = ffi.vector(frame, ffi.ARGUMENTS, arguments.INTEGERS, np.int32)[5]
  left = ffi.matrix(frame, ffi.ARGUMENTS, arguments.LEFT, np.uint8)
  window, num_left = numbers.size - 3, rows.padded(left.shape[1], tiles.SIZE)
  return _Sizes(
    window,
    num_draws,
    num_left,
    rows.padded(num_left + 2 * window, tiles.SIZE),
    rows.padded(num_draws, tiles.SIZE),
    numbers[2] / np.float32(num_draws),
  )


class _Work(NamedTuple):
  """Buffers for a chunk with negatives."""

  scores: np.ndarray  # [words or a tile of targets, then draws; centers]
  weights: np.ndarray  # as the scores
  by_distance: np.ndarray  # [words, centers], weights
  befores: np.ndarray  # [centers]
  afters: np.ndarray  # [centers]
  scale: np.ndarray  # [centers], of their contexts
  totals: np.ndarray  # [centers]
  coming: np.ndarray  # [words, then draws] ids of the next chunk
  awaited: np.ndarray  # its rows, as of `rows.await_rows`


@numba.njit(**rows.INLINE)
def _take_work(frame, scratch, sizes, num_rows):
  """`_Work`, of which scores have so many rows, and the address after it."""
  num_left, num_words = sizes.num_left, sizes.num_words
  scores, rest = rows.take(scratch, num_rows, num_left)
  weights, rest = rows.take(rest, num_rows, num_left)
  by_distance, rest = rows.take(rest, num_words, num_left)
  for_centers, rest = rows.take(rest, 4, num_left)
  num_ids = num_words + sizes.num_draws
  coming, rest = rows.take_vector(rest, num_ids, np.int32)
  num_awaited = 2 + 2 * num_words + sizes.num_right
  awaited, rest = rows.take_vector(rest, num_awaited, np.uint64)
  work = _Work(
    scores,
    weights,
    by_distance,
    for_centers[0],
    for_centers[1],
    for_centers[2],
    for_centers[3],
    coming,
    awaited,
  )
  return work, rest


@numba.njit(**rows.INLINE)
def _prepare(frame, sizes, work, first):
  """Fills what all chunks of a turn share, and the ids of the first one."""
  numbers = ffi.vector(frame, ffi.ARGUMENTS, arguments.NUMBERS, np.float32)
  chunk = ffi.matrix(frame, ffi.ARGUMENTS, arguments.LEFT, np.uint8).shape[1]
  _set_distance_weights(numbers, sizes.window, chunk, work.by_distance)
  for j in range(work.coming.size):
    work.coming[j] = rows.NO_ID
  for x in range(chunk):
    work.scale[x] = -1  # unless a kernel sets it
  work.awaited[0] = 0
  _take_ids(frame, first, sizes.num_words, work.coming)


@numba.njit(**rows.INLINE)
def _take_next(frame, i, sizes, chunk, vectors, work):
  """Takes the ids of chunk i, and awaits rows of those that are new in it.

  `vectors` are those of the table that has rows of all words, and of the one of
  centers, then of draws.
  """
  of_words, of_centers, of_draws = vectors
  coming, window, num_words = work.coming, sizes.window, sizes.num_words
  work.awaited[0] = 0
  _take_ids(frame, i, num_words, coming)
  stop = chunk + 2 * window
  rows.await_rows(of_words, coming, 2 * window, stop, work.awaited)
  rows.await_rows(of_centers, coming, window, window + chunk, work.awaited)
  rows.await_rows(of_draws, coming, num_words, coming.size, work.awaited)


@numba.njit(**rows.JIT)
def _score(lefts, first, stop, rights, y, dim, out, awaited):
  """As `rows.score`, while rows of the next chunk are asked for."""
  for x in range(first, stop, tiles.LEFT):
    x = min(x, stop - tiles.LEFT)
    tiles.scores(lefts, x, rights, y, dim, out, x, y)
    rows.prefetch_some(awaited, _PREFETCHED)


@numba.njit(**rows.JIT)
def _score_pairs(others, centers, band, num_words, dim, scores, awaited):
  """Scores of a tile of centers with the words of its windows, and draws."""
  num_others, num_left = scores.shape
  for x in range(0, num_left, tiles.SIZE):
    _score(others, x, x + band, centers, x, dim, scores, awaited)
    _score(others, num_words, num_others, centers, x, dim, scores, awaited)


@numba.njit(**rows.JIT)
def _add_to_centers(
  slopes, band, num_words, others, centers, rates, awaited, dim
):
  """Adds to centers what words of their windows and all draws give."""
  for x in range(0, slopes.shape[1], tiles.SIZE):
    tiles.add_columns(
      slopes, x, x, others, x, band, num_words - x - band,
      slopes.shape[0] - num_words, centers, x, rates, dim,
    )  # fmt: skip
    rows.prefetch_some(awaited, _PREFETCHED)


@numba.njit(**rows.JIT)
def _add_to_words(slopes, band, num_words, centers, words, rates, awaited, dim):
  """Adds to rows of words what the centers, or means, that meet them give."""
  tile, num_left = tiles.SIZE, slopes.shape[1]
  for y in range(0, num_words, tile):
    first, stop = max(0, y - band + tile), min(num_left, y + tile)
    tiles.add_rows(
      slopes, y, first, centers, first, stop - first, 0, 0, words, y, rates, dim
    )
    rows.prefetch_some(awaited, _PREFETCHED)


@numba.njit(**rows.JIT)
def _add_to_draws(slopes, y, first, centers, others, rates, awaited, dim):
  """Adds to others from the first on, draws, what all centers give.

  Their slopes are those from row y on.
  """
  num_left = slopes.shape[1]
  for k in range(0, slopes.shape[0] - y, tiles.SIZE):
    tiles.add_rows(
      slopes, y + k, 0, centers, 0, num_left, 0, 0, others, first + k, rates,
      dim,
    )  # fmt: skip
    rows.prefetch_some(awaited, _PREFETCHED)


@numba.njit(**rows.JIT)
def _set_fractions_of_all(left, right, scale, has_context):
  """Writes what each context of a center is of their mean; if there is one."""
  for x in range(left.size):
    num = np.float32(np.int64(left[x]) + np.int64(right[x]))
    scale[x] = np.float32(1) / max(num, np.float32(1))
    has_context[x] = np.float32(num > 0)


@numba.njit(**rows.INLINE)
def _average_windows(fractions, band, words, means, dim):
  """Means of windows, by fractions [words, centers]; without gradients."""
  rows.clear(means.values, means.ids.size)
  rows.clear(means.grads, means.ids.size)
  for x in range(0, fractions.shape[1], tiles.SIZE):
    tiles.add_columns(
      fractions, x, x, words, x, band, 0, 0, means.sources, x, means.rates, dim
    )


@numba.njit(**rows.JIT)
def _split_ids(coming, window, chunk, num_words, words, others):
  """Copies ids of words, and of centers, in whole tiles, and draws."""
  rows.copy(coming[:num_words], words, 0)
  rows.copy(coming[window : window + chunk], others, 0)
  rows.copy(coming[num_words:], others, rows.padded(chunk, tiles.SIZE))


@numba.njit(**rows.JIT)
def _take_targets(others, x, num_left, out):
  """Writes addresses of the centers of a tile, then those of all draws."""
  for y in range(tiles.SIZE):
    out[y] = others[x + y]
  for y in range(num_left, others.size):
    out[tiles.SIZE + y - num_left] = others[y]


@numba.njit(**rows.JIT)
def _score_targets(others, means, targets, dim, scores, awaited):
  """Scores of means with their own centers' tile, and with draws."""
  num_left = scores.shape[1]
  for x in range(0, num_left, tiles.SIZE):
    _take_targets(others, x, num_left, targets)
    _score(targets, 0, targets.size, means, x, dim, scores, awaited)


@numba.njit(**rows.JIT)
def _add_to_means(slopes, others, targets, means, rates, awaited, dim):
  """Adds to means what their centers and all draws give."""
  num_left = slopes.shape[1]
  for x in range(0, num_left, tiles.SIZE):
    _take_targets(others, x, num_left, targets)
    tiles.add_columns(
      slopes, 0, x, targets, 0, targets.size, 0, 0, means, x, rates, dim
    )
    rows.prefetch_some(awaited, _PREFETCHED)


@numba.njit(**rows.JIT)
def _add_to_targets(slopes, means, others, rates, awaited, dim):
  """Adds to rows of centers what their own tile of means gives."""
  tile = tiles.SIZE
  for y in range(0, slopes.shape[1], tile):
    tiles.add_rows(slopes, 0, y, means, y, tile, 0, 0, others, y, rates, dim)
    rows.prefetch_some(awaited, _PREFETCHED)


@numba.njit(**rows.INLINE)
def _compare_pairs(left, right, sizes, work, centers, others, dim, is_measured):
  """Makes slopes of centers with others; returns loss and examples."""
  scores, weights, totals = work.scores, work.weights, work.totals
  band, num_words = tiles.SIZE + 2 * sizes.window, sizes.num_words
  loss = examples = 0.0
  _context_weights(left, right, sizes.window, work, weights)
  _add_up(weights, num_words, totals)
  _score_pairs(
    others.sources, centers.sources, band, num_words, dim, scores, work.awaited
  )
  _negative_weights(others.ids, sizes, totals, weights)
  if is_measured:
    loss, examples = arguments.measure(scores, weights), _sum(totals)
  rows.slopes(rows.flat(scores), rows.flat(weights))
  return loss, examples


@numba.njit(**rows.INLINE)
def _exchange_pairs(sizes, work, centers, others, dim):
  """Adds what slopes give to targets of centers, words and draws."""
  slopes, awaited = work.scores, work.awaited
  band, num_words = tiles.SIZE + 2 * sizes.window, sizes.num_words
  _add_to_centers(
    slopes, band, num_words, others.sources, centers.targets, centers.rates,
    awaited, dim,
  )  # fmt: skip
  _add_to_words(
    slopes, band, num_words, centers.sources, others.targets, others.rates,
    awaited, dim,
  )  # fmt: skip
  _add_to_draws(
    slopes, num_words, num_words, centers.sources, others.targets,
    others.rates, awaited, dim,
  )  # fmt: skip
  rows.prefetch_some(awaited, awaited.size)


@numba.njit(**rows.INLINE)
def _compare_means(sizes, work, means, others, targets, dim, is_measured):
  """Makes slopes of means with others; returns loss and examples."""
  scores, weights, has_context = work.scores, work.weights, work.totals
  loss = examples = 0.0
  _score_targets(
    others.sources, means.sources, targets, dim, scores, work.awaited
  )
  _target_weights(others.ids, sizes, has_context, weights)
  if is_measured:
    loss, examples = arguments.measure(scores, weights), _sum(has_context)
  rows.slopes(rows.flat(scores), rows.flat(weights))
  return loss, examples


@numba.njit(**rows.INLINE)
def _exchange_means(
  sizes, work, fractions, words, means, others, targets, dim
):  # fmt: skip
  """Adds what slopes give to targets of means, of their words, and of others.

  `fractions` are what words get of the gradients of means.
  """
  slopes, awaited = work.scores, work.awaited
  band = tiles.SIZE + 2 * sizes.window
  _add_to_means(
    slopes, others.sources, targets, means.targets, means.rates, awaited, dim
  )
  _add_to_targets(
    slopes, means.sources, others.targets, others.rates, awaited, dim
  )
  _add_to_draws(
    slopes, tiles.SIZE, sizes.num_left, means.sources, others.targets,
    others.rates, awaited, dim,
  )  # fmt: skip
  _add_to_words(
    fractions, band, sizes.num_words, means.targets, words.targets, words.rates,
    awaited, dim,
  )  # fmt: skip
  rows.prefetch_some(awaited, awaited.size)


@numba.njit(**rows.INLINE)
def _cbow(frame, kind, first, stop, scratch):
  scratch_stop, sizes = turns.scratch_stop(frame, scratch), _sizes(frame)
  inputs, outputs, left, right = arguments.arrays(frame, kind)
  chunk, dim, window = left.shape[1], inputs.vectors.shape[1], sizes.window
  num_words, num_left, tile = sizes.num_words, sizes.num_left, tiles.SIZE
  band, num_targets = tile + 2 * window, tile + sizes.num_right
  words, scratch = rows.take_rows(scratch, num_words, dim)
  means, scratch = rows.take_rows(scratch, num_left, dim)
  others, scratch = rows.take_rows(scratch, num_left + sizes.num_right, dim)
  fractions, scratch = rows.take(scratch, num_words, num_left)
  targets, scratch = rows.take_vector(scratch, num_targets, np.uintp)
  work, scratch = _take_work(frame, scratch, sizes, num_targets)
  if scratch > scratch_stop:
    return np.nan, np.nan
  for chunk_rows in (words, means, others):
    rows.reset(chunk_rows)
  coming, has_context = work.coming, work.totals
  _prepare(frame, sizes, work, first)
  vectors = inputs.vectors, outputs.vectors, outputs.vectors
  loss = examples = 0.0
  for i in range(first, stop):
    _split_ids(coming, window, chunk, num_words, words.ids, others.ids)
    if i + 1 < stop and _has_pairs(left, right, i + 1):
      _take_next(frame, i + 1, sizes, chunk, vectors, work)
    if not _has_pairs(left, right, i):
      continue
    rows.find(inputs, words, words.ids)
    rows.find(outputs, others, others.ids)
    _set_fractions_of_all(left[i], right[i], work.scale, has_context)
    _context_weights(left[i], right[i], window, work, fractions)
    _average_windows(fractions, band, words.sources, means, dim)
    measured = _compare_means(
      sizes, work, means, others, targets, dim,
      i % arguments.LOSS_EVERY_CHUNKS == 0,
    )  # fmt: skip
    loss, examples = loss + measured[0], examples + measured[1]
    rows.aim(inputs, words, words.ids)
    rows.aim(outputs, others, others.ids)
    _exchange_means(sizes, work, fractions, words, means, others, targets, dim)
    rows.descend(inputs, words, words.ids, 2 * i)
    rows.descend(outputs, others, others.ids, 2 * i + 1)
  return loss, examples


@numba.njit(**rows.INLINE)
def _cbow_subwords(frame, kind, first, stop, scratch):
  scratch_stop, sizes = turns.scratch_stop(frame, scratch), _sizes(frame)
  inputs, outputs, left, right = arguments.arrays(frame, kind)
  chunk, dim, window = left.shape[1], inputs.vectors.shape[1], sizes.window
  num_words, num_left, tile = sizes.num_words, sizes.num_left, tiles.SIZE
  band, num_targets = tile + 2 * window, tile + sizes.num_right
  words, scratch = rows.take_rows(scratch, num_words, dim)
  means, scratch = rows.take_rows(scratch, num_left, dim)
  others, scratch = rows.take_rows(scratch, num_left + sizes.num_right, dim)
  fractions, scratch = rows.take(scratch, num_words, num_left)
  targets, scratch = rows.take_vector(scratch, num_targets, np.uintp)
  work, scratch = _take_work(frame, scratch, sizes, num_targets)
  composed, bags, later, scratch = subwords.take(
    frame, kind, scratch, inputs, num_words
  )
  if scratch > scratch_stop:
    return np.nan, np.nan
  for chunk_rows in (words, means, others):
    rows.reset(chunk_rows)
  coming, has_context = work.coming, work.totals
  width, vocab = chunk + 2 * window, inputs.vectors.shape[0]
  _prepare(frame, sizes, work, first)
  subwords.find(composed, coming, 0, width, later)
  vectors = inputs.vectors, outputs.vectors, outputs.vectors
  loss = examples = 0.0
  for i in range(first, stop):
    _split_ids(coming, window, chunk, num_words, words.ids, others.ids)
    bags, later = later, bags
    composed.awaited[0] = 0
    if i + 1 < stop and _has_pairs(left, right, i + 1):
      _take_next(frame, i + 1, sizes, chunk, vectors, work)
      subwords.find(composed, coming, 0, width, later)
      subwords.await_bags(composed, later, 2 * window)
    if not _has_pairs(left, right, i):
      continue
    subwords.compose(composed, words, bags, False)
    rows.find(outputs, others, others.ids)
    subwords.set_fractions(
      left[i], right[i], window, words.ids, vocab, bags.firsts, work.scale,
      has_context,
    )  # fmt: skip
    _context_weights(left[i], right[i], window, work, fractions)
    _average_windows(fractions, band, words.sources, means, dim)
    measured = _compare_means(
      sizes, work, means, others, targets, dim,
      i % arguments.LOSS_EVERY_CHUNKS == 0,
    )  # fmt: skip
    loss, examples = loss + measured[0], examples + measured[1]
    subwords.clear_gradients(words)
    rows.aim(outputs, others, others.ids)
    subwords.count_once(work.scale)
    _context_weights(left[i], right[i], window, work, fractions)
    _exchange_means(sizes, work, fractions, words, means, others, targets, dim)
    subwords.descend(composed, words, bags, 2 * i)
    rows.descend(outputs, others, others.ids, 2 * i + 1)
  return loss, examples


# What XLA calls, of tables of a type. None is a closure of what it calls:
# numba's cache goes by a hash of closures, and that of compiled functions
# differs between processes.


def skipgram(kind):
  """Skip-gram with negative sampling."""

  def compute(frame, first, stop, scratch, result):
    scratch_stop, sizes = turns.scratch_stop(frame, scratch), _sizes(frame)
    inputs, outputs, left, right = arguments.arrays(frame, kind)
    chunk, dim, window = left.shape[1], inputs.vectors.shape[1], sizes.window
    num_others = sizes.num_words + sizes.num_right
    centers, scratch = rows.take_rows(scratch, sizes.num_left, dim)
    others, scratch = rows.take_rows(scratch, num_others, dim)
    work, scratch = _take_work(frame, scratch, sizes, num_others)
    if scratch > scratch_stop:
      return
    rows.reset(centers)
    rows.reset(others)
    coming = work.coming
    _prepare(frame, sizes, work, first)
    vectors = outputs.vectors, inputs.vectors, outputs.vectors
    loss = examples = 0.0
    for i in range(first, stop):
      rows.copy(coming[window : window + chunk], centers.ids, 0)
      rows.copy(coming, others.ids, 0)
      if i + 1 < stop and _has_pairs(left, right, i + 1):
        _take_next(frame, i + 1, sizes, chunk, vectors, work)
      if not _has_pairs(left, right, i):
        continue
      rows.gather(inputs, centers, centers.ids)
      rows.find(outputs, others, others.ids)
      measured = _compare_pairs(
        left[i], right[i], sizes, work, centers, others, dim,
        i % arguments.LOSS_EVERY_CHUNKS == 0,
      )  # fmt: skip
      loss, examples = loss + measured[0], examples + measured[1]
      rows.aim(inputs, centers, centers.ids)
      rows.aim(outputs, others, others.ids)
      _exchange_pairs(sizes, work, centers, others, dim)
      rows.descend(inputs, centers, centers.ids, 2 * i)
      rows.descend(outputs, others, others.ids, 2 * i + 1)
    turns.report(result, loss, examples)

  return compute


def cbow(kind):
  """CBOW with negative sampling."""

  def compute(frame, first, stop, scratch, result):
    loss, examples = _cbow(frame, kind, first, stop, scratch)
    turns.report(result, loss, examples)

  return compute


def skipgram_subwords(kind):
  """Skip-gram with negative sampling, of words that share n-grams."""

  def compute(frame, first, stop, scratch, result):
    scratch_stop, sizes = turns.scratch_stop(frame, scratch), _sizes(frame)
    inputs, outputs, left, right = arguments.arrays(frame, kind)
    chunk, dim, window = left.shape[1], inputs.vectors.shape[1], sizes.window
    num_others = sizes.num_words + sizes.num_right
    centers, scratch = rows.take_rows(scratch, sizes.num_left, dim)
    others, scratch = rows.take_rows(scratch, num_others, dim)
    work, scratch = _take_work(frame, scratch, sizes, num_others)
    composed, bags, later, scratch = subwords.take(
      frame, kind, scratch, inputs, sizes.num_left
    )
    if scratch > scratch_stop:
      return
    subwords.begin(composed, first == stop, result)
    if first == stop:
      turns.report(result, 0.0, 0.0)
      return
    rows.reset(centers)
    rows.reset(others)
    coming = work.coming
    _prepare(frame, sizes, work, first)
    subwords.find(composed, coming, window, chunk, later)
    vectors = outputs.vectors, inputs.vectors, outputs.vectors
    loss = examples = 0.0
    for i in range(first, stop):
      rows.copy(coming[window : window + chunk], centers.ids, 0)
      rows.copy(coming, others.ids, 0)
      bags, later = later, bags
      composed.awaited[0] = 0
      if i + 1 < stop and _has_pairs(left, right, i + 1):
        _take_next(frame, i + 1, sizes, chunk, vectors, work)
        subwords.find(composed, coming, window, chunk, later)
        subwords.await_bags(composed, later, 0)
      if not _has_pairs(left, right, i):
        continue
      subwords.compose(composed, centers, bags, True)
      rows.find(outputs, others, others.ids)
      measured = _compare_pairs(
        left[i], right[i], sizes, work, centers, others, dim,
        i % arguments.LOSS_EVERY_CHUNKS == 0,
      )  # fmt: skip
      loss, examples = loss + measured[0], examples + measured[1]
      subwords.clear_gradients(centers)
      rows.aim(outputs, others, others.ids)
      _exchange_pairs(sizes, work, centers, others, dim)
      subwords.descend(composed, centers, bags, 2 * i)
      rows.descend(outputs, others, others.ids, 2 * i + 1)
    turns.report(result, loss, examples)

  return compute


def cbow_subwords(kind):
  """CBOW with negative sampling, of words that share n-grams."""

  def compute(frame, first, stop, scratch, result):
    loss, examples = _cbow_subwords(frame, kind, first, stop, scratch)
    turns.report(result, loss, examples)

  return compute
