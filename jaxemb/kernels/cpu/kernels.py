"""Steps of the word2vec models, chunk by chunk, each fused into one function.

  skip-gram, CBOW        a chunk is c centers, which share N negatives
  hierarchical softmax   a chunk is one center

Every chunk reads its rows, forms all scores and slopes, and changes the rows at
once: what follows learns from it. So a call is as many steps of plain gradient
descent as it has chunks, with the gradients that `models.skipgram`,
`models.cbow` and `models.hierarchical` state, however many chunks a call has.
Scores of a chunk have a row for each word of its window, then for each
negative, and a column for each center. Of the window four centers, x to x + 3,
meet the words x to x + 3 + 2 W; weights keep the pairs. Four means of CBOW meet
their four centers, of which the first four rows are.

Losses cost more than all the rest, so they are those of every 64th chunk.

The buffers of a call (`turns`). Arguments that are only read are `left` and
`right` [k, c] uint8, the contexts on both sides of each center, at most W; then

  numbers     [3 + W] float32, learning rate, parameter of the optimizer (of SGD
              occurrences of a row in a chunk that count, 0 = all; of Adagrad
              epsilon), K, and what a context counts, by its distance
  integers    [11] int32, `descent.SGD` or `ADAGRAD`; the key of stochastic
              rounding, and whether there is any; whether hierarchical softmax
              averages: CBOW; N; the key of the draws; entries of the alias
              table, 0 = draws are given; the number of `descent`, 0 = none;
              centers after which a thread merges its local copies of a tree's
              nodes into the table, 0 = it has none
  brakes      those of `rows.Table`, of both tables
  tokens      [P, L' + 2 W] int32, of runs of k / P chunks each
  chunks      [k] uint32, their numbers among the chunks that draw with the key
  more        `ops.sampling.Alias.lines`, or draws [k, N]; of a tree `exits`,
              `firsts` and `deep` of `ops.huffman.Split`

Changed are the vectors of both tables and their optimizer states. Kernels write
the loss, in nats, and the number of its examples.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import rows, tiles, turns
from jaxemb.ops import memory

_LOSS_EVERY_CHUNKS = 64
# Rows of the next chunk that are asked for with each tile. More lines at a time
# than a core can wait for would keep it from reading others.
_PREFETCHED = 1
_LOCAL_NODES = 64  # next to the root, of which threads have copies

_LEFT, _RIGHT, NUMBERS, INTEGERS, BRAKES, _, _TOKENS, _CHUNKS, _MORE = range(
  turns.READ, turns.READ + 9
)
VECTORS, STATE = turns.RESULTS, turns.RESULTS + 2


def num_scratch(spec: Any, longest: int) -> int:
  """Returns floats that any kernel here takes; with fewer it does nothing.

  `spec` is a `models.base.WindowSpec`, `longest` the longest path of a tree.
  """
  left = spec.chunk + 2 * spec.window + 3 * tiles.SIZE
  right = left + spec.shared_negatives + longest
  columns = spec.dim + tiles.LANES
  # Words, means and outputs with their gradients, of which each has an address,
  # an id and a rate; scores, weights and fractions; what is awaited.
  num_rows = 2 * (2 * left + right)
  num_rows += 2 * _LOCAL_NODES if longest else 0
  number = num_rows * (columns + 8) + left * (3 * right + left) + 1024
  return number // 16 * 16  # so that what follows stays aligned


@numba.njit(**rows.JIT)
def _measure(scores, weights):
  """The loss, in nats, whose derivative is `rows.slopes`."""
  total = 0.0
  for x in range(scores.shape[0]):
    for j in range(scores.shape[1]):
      weight, score = weights[x, j], scores[x, j]
      if weight:
        score = -score if weight < 0 else score
        loss = max(score, 0.0) + math.log1p(math.exp(-abs(score)))
        total += abs(weight) * loss
  return total


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
def _draw(lines, integers, number, first, out):
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


@numba.njit(**rows.INLINE)
def _table(frame, number, kind):
  """The table of inputs, 0, or of outputs, 1."""
  numbers = ffi.vector(frame, ffi.ARGUMENTS, NUMBERS, np.float32)
  integers = ffi.vector(frame, ffi.ARGUMENTS, INTEGERS, np.int32)
  descent = np.uintp(integers[9])
  return rows.Table(
    ffi.matrix(frame, ffi.RESULTS, VECTORS + number, kind),
    numbers[0],
    numbers[1],
    ffi.vector(frame, ffi.ARGUMENTS, BRAKES + number, np.float32),
    ffi.address(descent) if descent else np.uintp(0),
    frame,
    number,
  )


@numba.njit(**rows.INLINE)
def _arrays(frame, kind):
  """Both tables, `left` and `right`."""
  left = ffi.matrix(frame, ffi.ARGUMENTS, _LEFT, np.uint8)
  right = ffi.matrix(frame, ffi.ARGUMENTS, _RIGHT, np.uint8)
  return _table(frame, 0, kind), _table(frame, 1, kind), left, right


@numba.njit(**rows.JIT)
def _find_window(tokens, chunk, num_chunks, i):
  """The run that chunk i is of, and where its window begins there."""
  per_run = num_chunks // tokens.shape[0]
  return i // per_run, i % per_run * chunk


@numba.njit(**rows.JIT)
def _take_ids(frame, i, num_words, out):
  """Writes the words of chunk i's window, and draws, from out[num_words] on.

  These are made or, without an alias table, given.
  """
  left = ffi.matrix(frame, ffi.ARGUMENTS, _LEFT, np.uint8)
  window = ffi.vector(frame, ffi.ARGUMENTS, NUMBERS, np.float32).size - 3
  integers = ffi.vector(frame, ffi.ARGUMENTS, INTEGERS, np.int32)
  tokens = ffi.matrix(frame, ffi.ARGUMENTS, _TOKENS, np.int32)
  more = ffi.matrix(frame, ffi.ARGUMENTS, _MORE, np.int32)
  num_chunks, chunk = left.shape
  run, start = _find_window(tokens, chunk, num_chunks, i)
  for j in range(chunk + 2 * window):
    out[j] = tokens[run, start + j]
  if integers[8]:
    chunks = ffi.vector(frame, ffi.ARGUMENTS, _CHUNKS, np.uint32)
    _draw(more, integers, chunks[i], num_words, out)
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
  numbers = ffi.vector(frame, ffi.ARGUMENTS, NUMBERS, np.float32)
  num_draws = ffi.vector(frame, ffi.ARGUMENTS, INTEGERS, np.int32)[5]
  left = ffi.matrix(frame, ffi.ARGUMENTS, _LEFT, np.uint8)
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
  numbers = ffi.vector(frame, ffi.ARGUMENTS, NUMBERS, np.float32)
  chunk = ffi.matrix(frame, ffi.ARGUMENTS, _LEFT, np.uint8).shape[1]
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
def _cbow(frame, kind, first, stop, scratch):
  scratch_stop, sizes = turns.scratch_stop(frame, scratch), _sizes(frame)
  inputs, outputs, left, right = _arrays(frame, kind)
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
  coming, awaited = work.coming, work.awaited
  _prepare(frame, sizes, work, first)
  scores, weights, has_context = work.scores, work.weights, work.totals
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
    _score_targets(others.sources, means.sources, targets, dim, scores, awaited)
    _target_weights(others.ids, sizes, has_context, weights)
    if i % _LOSS_EVERY_CHUNKS == 0:
      loss += _measure(scores, weights)
      examples += _sum(has_context)
    rows.slopes(rows.flat(scores), rows.flat(weights))
    rows.aim(inputs, words, words.ids)
    rows.aim(outputs, others, others.ids)
    _add_to_means(
      scores, others.sources, targets, means.targets, means.rates, awaited, dim
    )
    _add_to_targets(
      scores, means.sources, others.targets, others.rates, awaited, dim
    )
    _add_to_draws(
      scores, tile, num_left, means.sources, others.targets, others.rates,
      awaited, dim,
    )  # fmt: skip
    _add_to_words(
      fractions, band, num_words, means.targets, words.targets, words.rates,
      awaited, dim,
    )  # fmt: skip
    rows.prefetch_some(awaited, awaited.size)
    rows.descend(inputs, words, words.ids, 2 * i)
    rows.descend(outputs, others, others.ids, 2 * i + 1)
  return loss, examples


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
  exits = ffi.vector(frame, ffi.ARGUMENTS, _MORE, np.int32)
  firsts = ffi.matrix(frame, ffi.ARGUMENTS, _MORE + 1, np.int32)
  return exits, firsts, ffi.matrix(frame, ffi.ARGUMENTS, _MORE + 2, np.int32)


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
def _find_path(word, exits, firsts, deep, nodes, signs):
  """Writes the inner nodes of a word's path, and weights; returns how many.

  Weights are 1 or -1 by the code, and 0 of what is no node.
  """
  none = 2 * (exits.size - 1)
  num = _take_path(firsts[exits[word]], none, nodes, signs)
  num += _take_path(deep[word], none, nodes[num:], signs[num:])
  for y in range(num, rows.padded(num, tiles.SIZE)):
    nodes[y], signs[y] = rows.NO_ID, 0
  return num


@numba.njit(**rows.JIT)
def _take_contexts(tokens, at, before, after, out):
  """Writes the words around a center, without it; returns how many."""
  rows.copy(tokens[at - before : at], out, 0)
  rows.copy(tokens[at + 1 : at + 1 + after], out[before:], 0)
  num = before + after
  for j in range(num, rows.padded(num, tiles.SIZE)):
    out[j] = rows.NO_ID
  return num


@numba.njit(**rows.JIT)
def _await_center(tokens, at, window, deep, inputs, outputs, awaited):
  """Awaits rows that the center after `at` is the first to look up.

  Of its path those next to the root are in the cache. What lists the path of
  the one after that is asked for.
  """
  awaited[0] = 0
  for place in range(at + 1 + window, min(at + 2 + window, tokens.size)):
    rows.await_row(inputs, tokens[place], awaited)
  if at + 2 < tokens.size and tokens[at + 2] < deep.shape[0]:
    path = deep[tokens[at + 2]]
    for offset in range(0, path.nbytes, memory.LINE):
      memory.prefetch_to_read(np.uint64(path.ctypes.data) + np.uint64(offset))
  if at + 1 < tokens.size and tokens[at + 1] < deep.shape[0]:
    for packed in deep[tokens[at + 1]]:
      rows.await_row(outputs, packed >> 1, awaited)


@numba.njit(**rows.JIT)
def _score_path(lefts, num_left, nodes, dim, scores, awaited):
  """Scores of rows with nodes, given by their addresses."""
  for y in range(0, scores.shape[1], tiles.SIZE):
    _score(lefts, 0, num_left, nodes, y, dim, scores, awaited)


@numba.njit(**rows.JIT)
def _add_to_lefts(slopes, nodes, depth, lefts, rates, awaited, dim):
  """Adds to words, or their mean, what the nodes of a path give."""
  for x in range(0, slopes.shape[0], tiles.SIZE):
    tiles.add_rows(slopes, x, 0, nodes, 0, depth, 0, 0, lefts, x, rates, dim)
    rows.prefetch_some(awaited, _PREFETCHED)


@numba.njit(**rows.JIT)
def _add_to_nodes(slopes, lefts, num_left, nodes, rates, awaited, dim):
  """Adds to the nodes of a path what words, or their mean, give."""
  for y in range(0, slopes.shape[1], tiles.SIZE):
    tiles.add_columns(
      slopes, 0, y, lefts, 0, num_left, 0, 0, nodes, y, rates, dim
    )
    rows.prefetch_some(awaited, _PREFETCHED)


@numba.njit(**rows.JIT)
def _repeat(row, out):
  """Writes a row [n] to each of `out` [m, n]."""
  for g in range(out.shape[0]):
    to = out[g]
    for y in range(to.size):
      to[y] = row[y]


class _TreeWork(NamedTuple):
  """Buffers for a center and its path."""

  words: rows.Rows
  means: rows.Rows  # of which one is used
  nodes: rows.Rows
  local: rows.LocalRows  # nodes
  fractions: np.ndarray  # [4, padded words], of the mean
  signs: np.ndarray  # [padded nodes], their weights
  awaited: np.ndarray  # rows of the next center, as of `rows.await_rows`


@numba.njit(**rows.INLINE)
def _take_tree_work(scratch, num_left, num_right, num_local, dim):
  """`_TreeWork`, and the address after it."""
  words, rest = rows.take_rows(scratch, num_left, dim)
  means, rest = rows.take_rows(rest, tiles.SIZE, dim)
  nodes, rest = rows.take_rows(rest, num_right, dim)
  local, rest = rows.take_local(rest, num_local, dim)
  fractions, rest = rows.take(rest, tiles.SIZE, num_left)
  signs, rest = rows.take_vector(rest, num_right, np.float32)
  awaited, rest = rows.take_vector(rest, 3 + num_right, np.uint64)
  return _TreeWork(words, means, nodes, local, fractions, signs, awaited), rest


@numba.njit(**rows.INLINE)
def _find_local(path, local, dim, out):
  rows.find_local(
    path, local.addresses, local.taken, local.values, local.before, dim, out
  )


@numba.njit(**rows.INLINE)
def _merge_local(table, local):
  if local.taken[0]:
    rows.merge_local(
      table.vectors, local.addresses, local.taken, local.values, local.before
    )


@numba.njit(**rows.INLINE)
def _take_center(tokens, at, window, contexts, tree, tables, work):
  """Takes the words and the path of a center; returns how many each has."""
  (before, after), (exits, firsts, deep), (inputs, outputs) = (
    contexts, tree, tables,
  )  # fmt: skip
  nodes, awaited = work.nodes, work.awaited
  depth = _find_path(tokens[at], exits, firsts, deep, nodes.ids, work.signs)
  num_words = _take_contexts(tokens, at, before, after, work.words.ids)
  _await_center(
    tokens, at, window, deep, inputs.vectors, outputs.vectors, awaited
  )
  return num_words, depth


@numba.njit(**rows.INLINE)
def _learn_center(tables, work, sizes, averages, scratch, number, is_measured):
  """Changes the rows of a center's words and path; returns loss, examples."""
  (inputs, outputs), (num_words, depth) = tables, sizes
  words, nodes, awaited = work.words, work.nodes, work.awaited
  dim = inputs.vectors.shape[1]
  ids = words.ids[: rows.padded(num_words, tiles.SIZE)]
  path = nodes.ids[: rows.padded(depth, tiles.SIZE)]
  rows.gather(inputs, words, ids)
  rows.find(outputs, nodes, path)
  rows.aim(inputs, words, ids)
  rows.aim(outputs, nodes, path)
  _find_local(path, work.local, dim, nodes.sources)
  _find_local(path, work.local, dim, nodes.targets)
  lefts, num_used = words, num_words
  if averages:
    _average(words.sources, work.means, work.fractions, num_words, dim)
    lefts, num_used = work.means, 1
  # Without gaps between rows, so that slopes are fast.
  num_rows, loss, examples = rows.padded(num_used, tiles.SIZE), 0.0, 0
  scores, rest = rows.take(scratch, num_rows, path.size)
  weights = rows.take(rest, num_rows, path.size)[0]
  num_scored = num_used if num_used > tiles.LEFT else tiles.LEFT
  _score_path(lefts.sources, num_scored, nodes.sources, dim, scores, awaited)
  _repeat(work.signs, weights)
  if is_measured:
    loss, examples = _measure(scores[:num_used], weights), num_used
  rows.slopes(rows.flat(scores), rows.flat(weights))
  _add_to_lefts(
    scores, nodes.sources, depth, lefts.targets, lefts.rates, awaited, dim
  )
  _add_to_nodes(
    scores, lefts.sources, num_used, nodes.targets, nodes.rates, awaited, dim
  )
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
def _hierarchical(frame, kind, first, stop, scratch):
  scratch_stop = turns.scratch_stop(frame, scratch)
  integers = ffi.vector(frame, ffi.ARGUMENTS, INTEGERS, np.int32)
  inputs, outputs, left, right = _arrays(frame, kind)
  tables, tree = (inputs, outputs), _tree(frame)
  tokens = ffi.matrix(frame, ffi.ARGUMENTS, _TOKENS, np.int32)
  (num_chunks, chunk), dim = left.shape, inputs.vectors.shape[1]
  window = ffi.vector(frame, ffi.ARGUMENTS, NUMBERS, np.float32).size - 3
  averages, merge_centers = integers[4] != 0, np.int64(integers[10])
  num_left = rows.padded(2 * window, tiles.SIZE)
  num_right = rows.padded(tree[1].shape[1] + tree[2].shape[1], tiles.SIZE)
  num_local = _LOCAL_NODES if merge_centers else 0
  work, scratch = _take_tree_work(scratch, num_left, num_right, num_local, dim)
  if rows.take(scratch, 2 * num_left, num_right)[1] > scratch_stop:
    return np.nan, np.nan
  for chunk_rows in (work.words, work.means, work.nodes):
    rows.reset(chunk_rows)
  loss = examples = 0.0
  for center in range(first * chunk, stop * chunk):
    i, x = center // chunk, center % chunk
    before, after = np.int64(left[i, x]), np.int64(right[i, x])
    if before + after == 0:
      continue
    run, start = _find_window(tokens, chunk, num_chunks, i)
    at, contexts = start + x + window, (before, after)
    sizes = _take_center(tokens[run], at, window, contexts, tree, tables, work)
    is_measured = center % (_LOSS_EVERY_CHUNKS * chunk) == 0
    measured = _learn_center(
      tables, work, sizes, averages, scratch, center, is_measured
    )
    loss += measured[0]
    examples += measured[1]
    if merge_centers and (center + 1) % merge_centers == 0:
      _merge_local(outputs, work.local)
  _merge_local(outputs, work.local)
  return loss, examples


# What XLA calls, of tables of a type. None is a closure of what it calls:
# numba's cache goes by a hash of closures, and that of compiled functions
# differs between processes.


def skipgram(kind):
  """Skip-gram with negative sampling."""

  def compute(frame, first, stop, scratch, result):
    scratch_stop, sizes = turns.scratch_stop(frame, scratch), _sizes(frame)
    inputs, outputs, left, right = _arrays(frame, kind)
    chunk, dim, window = left.shape[1], inputs.vectors.shape[1], sizes.window
    band, num_words = tiles.SIZE + 2 * window, sizes.num_words
    num_others = num_words + sizes.num_right
    centers, scratch = rows.take_rows(scratch, sizes.num_left, dim)
    others, scratch = rows.take_rows(scratch, num_others, dim)
    work, scratch = _take_work(frame, scratch, sizes, num_others)
    if scratch > scratch_stop:
      return
    rows.reset(centers)
    rows.reset(others)
    coming, awaited = work.coming, work.awaited
    _prepare(frame, sizes, work, first)
    scores, weights, totals = work.scores, work.weights, work.totals
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
      _context_weights(left[i], right[i], window, work, weights)
      _add_up(weights, num_words, totals)
      _score_pairs(
        others.sources, centers.sources, band, num_words, dim, scores, awaited
      )
      _negative_weights(others.ids, sizes, totals, weights)
      if i % _LOSS_EVERY_CHUNKS == 0:
        loss += _measure(scores, weights)
        examples += _sum(totals)
      rows.slopes(rows.flat(scores), rows.flat(weights))
      rows.aim(inputs, centers, centers.ids)
      rows.aim(outputs, others, others.ids)
      _add_to_centers(
        scores, band, num_words, others.sources, centers.targets, centers.rates,
        awaited, dim,
      )  # fmt: skip
      _add_to_words(
        scores, band, num_words, centers.sources, others.targets, others.rates,
        awaited, dim,
      )  # fmt: skip
      _add_to_draws(
        scores, num_words, num_words, centers.sources, others.targets,
        others.rates, awaited, dim,
      )  # fmt: skip
      rows.prefetch_some(awaited, awaited.size)
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


def hierarchical(kind):
  """Skip-gram or, if it averages, CBOW with hierarchical softmax."""

  def compute(frame, first, stop, scratch, result):
    loss, examples = _hierarchical(frame, kind, first, stop, scratch)
    turns.report(result, loss, examples)

  return compute
