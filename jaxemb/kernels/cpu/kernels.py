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

In all functions tables are [vocab, dim], float32 or the bits of bfloat16, with
optimizer state [vocab] or [1] float32; ids are int32, of a step's k chunks;
`left` and `right` [k, c] uint8 are the contexts on both sides of each center,
at most W. They take the chunks `first` to `stop`, and write the loss, in nats,
and the number of its examples.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.kernels.cpu import ffi, rows, tiles

_LOSS_EVERY_CHUNKS = 64


class Call(NamedTuple):
  """What every kernel takes of a call."""

  inputs: np.ndarray
  outputs: np.ndarray
  input_state: np.ndarray
  output_state: np.ndarray
  left: np.ndarray
  right: np.ndarray
  negatives: np.float32  # K, for each pair
  averages: bool  # of trees: whether they are of CBOW
  input_rule: rows.Rule
  output_rule: rows.Rule
  first: int
  stop: int
  scratch: int  # the address of zeros
  scratch_stop: int  # and that of what follows them
  result: int  # the address of loss and examples, two float64


def num_scratch(spec: Any, longest: int) -> int:
  """Floats that any kernel here takes; with fewer it does nothing.

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
def _context_weights(left, right, window, weight, shares, columns, out):
  """Weights [c, band] of the contexts in a center's window, for out[:, :band].

  Row x has the window of its tile, from x // 4 * 4 on. If it `shares`, all
  contexts of a center have the weight together. `columns` are 0, 1, ... as
  floats, because LLVM is slow at making them.
  """
  for x in range(left.size):
    before, after = -np.float32(left[x]), np.float32(right[x])
    each = weight
    if shares:
      each /= max(after - before, np.float32(1))
    row, own = out[x], np.float32(window + x % tiles.SIZE)
    for j in range(columns.size):
      offset = columns[j] - own
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


@numba.njit(**rows.JIT)
def _add_bands(weights, band, given, out, rates, dim):
  """Adds to rows of windows what the tiles of centers that meet them give."""
  tile, num_left = tiles.SIZE, given.size
  for j in range(0, num_left - tile + band, tile):
    first, last = max(0, j - band + tile), min(j + tile, num_left)
    tiles.add_columns(
      weights, first, j - first, -tile, given, first, last - first, out, j,
      rates, dim,
    )  # fmt: skip


@numba.njit(**rows.INLINE)
def skipgram(call, windows, draws):
  """Skip-gram with negative sampling.

  `windows` are [k, c + 2 W], `draws` [k, N].
  """
  inputs, outputs, scratch = call.inputs, call.outputs, call.scratch
  left, right = call.left, call.right
  input_rule, output_rule = call.input_rule, call.output_rule
  chunk, width = left.shape[1], windows.shape[1]
  window, num_draws = (width - chunk) // 2, draws.shape[1]
  tile, dim = tiles.SIZE, inputs.shape[1]
  factor = np.float32(call.negatives / num_draws)
  num_left, num_right = rows.padded(chunk, tile), rows.padded(num_draws, tile)
  band = rows.padded(tile + 2 * window, tile)
  # What a tile has beyond the window, or the draws, has no weight.
  num_words = num_left - tile + band
  num_rows, num_columns = num_words + num_right, band + num_right
  size = rows.padded(dim, tiles.LANES)
  a, scratch = rows.take(scratch, num_left, size)
  b, scratch = rows.take(scratch, num_rows, size)
  a_grads, scratch = rows.take(scratch, num_left, size)
  b_grads, scratch = rows.take(scratch, num_rows, size)
  scores, scratch = rows.take(scratch, num_left, num_columns)
  weights, scratch = rows.take(scratch, num_left, num_columns)
  marks, scratch = rows.take_vector(scratch, 256, np.int32)
  centers, scratch = rows.take_vector(scratch, num_left, np.int32)
  ids, scratch = rows.take_vector(scratch, num_rows, np.int32)
  # Addresses of rows, of those that each tile meets, and of what changes.
  a_rows, scratch = rows.take_vector(scratch, num_left, np.uintp)
  b_rows, scratch = rows.take_vector(scratch, num_rows, np.uintp)
  num_met = num_left // tile * num_columns
  met, scratch = rows.take_vector(scratch, num_met, np.uintp)
  a_out, scratch = rows.take_vector(scratch, num_left, np.uintp)
  b_out, scratch = rows.take_vector(scratch, num_rows, np.uintp)
  a_rates, scratch = rows.take_vector(scratch, num_left, np.float32)
  b_rates, scratch = rows.take_vector(scratch, num_rows, np.float32)
  columns, scratch = rows.take_vector(scratch, band, np.float32)
  if scratch > call.scratch_stop:
    return
  marks[:] = 0
  centers[:] = rows.NO_ID
  ids[:] = rows.NO_ID
  rows.count(columns)
  loss = examples = 0.0
  for i in range(call.first, call.stop):
    if i + 1 < call.stop:
      rows.prefetch(inputs, windows[i + 1, window : window + chunk])
      rows.prefetch(outputs, windows[i + 1])
      rows.prefetch(outputs, draws[i + 1])
    rows.copy(windows[i, window : window + chunk], centers, 0)
    rows.copy(windows[i], ids, 0)
    rows.copy(draws[i], ids, num_words)
    rows.gather(inputs, centers, a, a_rows)
    rows.find(outputs, ids, b, b_rows)
    for g in range(0, num_left, tile):
      own = g // tile * num_columns
      for y in range(band):
        met[own + y] = b_rows[g + y]
      for y in range(num_right):
        met[own + band + y] = b_rows[num_words + y]
      for y in range(0, num_columns, tile):
        tiles.scores(a_rows, g, met, own + y, dim, scores, g, y)
    one = np.float32(1)
    _context_weights(left[i], right[i], window, -one, False, columns, weights)
    _negative_weights(
      left[i], right[i], windows[i], draws[i], factor, marks, band, weights
    )
    if i % _LOSS_EVERY_CHUNKS == 0:
      loss += _measure(scores, weights)
      for x in range(chunk):
        examples += np.int64(left[i, x]) + np.int64(right[i, x])
    rows.slopes(scores.reshape(-1), weights.reshape(-1))
    rows.aim(inputs, centers, input_rule, a_grads, a_out, a_rates)
    rows.aim(outputs, ids, output_rule, b_grads, b_out, b_rates)
    for g in range(0, num_left, tile):
      tiles.add_rows(
        scores, g, 0, 0, met, g // tile * num_columns, num_columns, a_out, g,
        a_rates, dim,
      )  # fmt: skip
    _add_bands(scores, band, a_rows, b_out, b_rates, dim)
    for y in range(0, num_right, tile):
      tiles.add_columns(
        scores, 0, band + y, 0, a_rows, 0, num_left, b_out, num_words + y,
        b_rates, dim,
      )  # fmt: skip
    rows.descend(inputs, call.input_state, centers, a_grads, input_rule, 2 * i)
    rows.descend(
      outputs, call.output_state, ids, b_grads, output_rule, 2 * i + 1
    )
  ffi.put(call.result, 0, loss, np.float64)
  ffi.put(call.result, 8, examples, np.float64)


@numba.njit(**rows.INLINE)
def cbow(call, windows, draws):
  """CBOW with negative sampling.

  Takes what `skipgram` takes.
  """
  inputs, outputs, scratch = call.inputs, call.outputs, call.scratch
  left, right = call.left, call.right
  input_rule, output_rule = call.input_rule, call.output_rule
  chunk, width = left.shape[1], windows.shape[1]
  window, num_draws = (width - chunk) // 2, draws.shape[1]
  tile, dim = tiles.SIZE, inputs.shape[1]
  factor = np.float32(call.negatives / num_draws)
  num_left, num_right = rows.padded(chunk, tile), rows.padded(num_draws, tile)
  band = rows.padded(tile + 2 * window, tile)
  num_words, num_rows = num_left - tile + band, num_left + num_right
  size, num_columns = rows.padded(dim, tiles.LANES), tile + num_right
  words, scratch = rows.take(scratch, num_words, size)
  a, scratch = rows.take(scratch, num_left, size)
  b, scratch = rows.take(scratch, num_rows, size)
  word_grads, scratch = rows.take(scratch, num_words, size)
  a_grads, scratch = rows.take(scratch, num_left, size)
  b_grads, scratch = rows.take(scratch, num_rows, size)
  scores, scratch = rows.take(scratch, num_left, num_columns)
  weights, scratch = rows.take(scratch, num_left, num_columns)
  shares, scratch = rows.take(scratch, num_left, band)
  word_ids, scratch = rows.take_vector(scratch, num_words, np.int32)
  # Those of the output rows.
  ids, scratch = rows.take_vector(scratch, num_rows, np.int32)
  word_rows, scratch = rows.take_vector(scratch, num_words, np.uintp)
  a_rows, scratch = rows.take_vector(scratch, num_left, np.uintp)
  b_rows, scratch = rows.take_vector(scratch, num_rows, np.uintp)
  word_out, scratch = rows.take_vector(scratch, num_words, np.uintp)
  a_out, scratch = rows.take_vector(scratch, num_left, np.uintp)
  b_out, scratch = rows.take_vector(scratch, num_rows, np.uintp)
  word_rates, scratch = rows.take_vector(scratch, num_words, np.float32)
  b_rates, scratch = rows.take_vector(scratch, num_rows, np.float32)
  ones, scratch = rows.take_vector(scratch, num_left, np.float32)
  columns, scratch = rows.take_vector(scratch, band, np.float32)
  if scratch > call.scratch_stop:
    return
  word_ids[:] = rows.NO_ID
  ids[:] = rows.NO_ID
  rows.count(columns)
  rows.point(a, a_rows)
  rows.point(a_grads, a_out)
  ones[:] = 1
  loss = examples = 0.0
  for i in range(call.first, call.stop):
    if i + 1 < call.stop:
      rows.prefetch(inputs, windows[i + 1])
      rows.prefetch(outputs, windows[i + 1, window : window + chunk])
      rows.prefetch(outputs, draws[i + 1])
    rows.copy(windows[i], word_ids, 0)
    rows.copy(windows[i, window : window + chunk], ids, 0)
    rows.copy(draws[i], ids, num_left)
    rows.find(inputs, word_ids, words, word_rows)
    rows.find(outputs, ids, b, b_rows)
    one = np.float32(1)
    _context_weights(left[i], right[i], window, one, True, columns, shares)
    a[:] = 0
    for g in range(0, num_left, tile):
      tiles.add_rows(shares, g, 0, 0, word_rows, g, band, a_rows, g, ones, dim)
      for y in range(0, num_columns, tile):
        j = g if y < tile else num_left + y - tile
        tiles.scores(a_rows, g, b_rows, j, dim, scores, g, y)
    _target_weights(left[i], right[i], ids[:chunk], draws[i], factor, weights)
    if i % _LOSS_EVERY_CHUNKS == 0:
      loss += _measure(scores, weights)
      for x in range(chunk):
        examples += (left[i, x] > 0) | (right[i, x] > 0)
    rows.slopes(scores.reshape(-1), weights.reshape(-1))
    rows.aim(inputs, word_ids, input_rule, word_grads, word_out, word_rates)
    rows.aim(outputs, ids, output_rule, b_grads, b_out, b_rates)
    a_grads[:] = 0
    for g in range(0, num_left, tile):
      for y, j, count in ((0, g, tile), (tile, num_left, num_right)):
        tiles.add_rows(scores, g, y, 0, b_rows, j, count, a_out, g, ones, dim)
    for g in range(0, num_left, tile):
      tiles.add_columns(
        scores, g, 0, 0, a_rows, g, tile, b_out, g, b_rates, dim
      )
    for y in range(0, num_right, tile):
      tiles.add_columns(
        scores, 0, tile + y, 0, a_rows, 0, num_left, b_out, num_left + y,
        b_rates, dim,
      )  # fmt: skip
    _add_bands(shares, band, a_out, word_out, word_rates, dim)
    rows.descend(
      inputs, call.input_state, word_ids, word_grads, input_rule, 2 * i
    )
    rows.descend(
      outputs, call.output_state, ids, b_grads, output_rule, 2 * i + 1
    )
  ffi.put(call.result, 0, loss, np.float64)
  ffi.put(call.result, 8, examples, np.float64)


@numba.njit(**rows.JIT)
def _find_path(word, exits, firsts, deep, nodes, codes):
  """Writes the inner nodes and codes of a word's path; returns how many."""
  num, none = 0, 2 * (exits.size - 1)
  for part in (firsts[exits[word]], deep[word]):
    for packed in part:
      if packed < none:
        nodes[num], codes[num] = packed >> 1, packed & 1
        num += 1
  return num


@numba.njit(**rows.INLINE)
def hierarchical(call, windows, exits, firsts, deep):
  """Skip-gram or, if it `averages`, CBOW with hierarchical softmax.

  `windows` are [k, c + 2 W]; `exits` [vocab], `firsts` and `deep` are those of
  `ops.huffman.Split`.
  """
  inputs, outputs, scratch = call.inputs, call.outputs, call.scratch
  left, right = call.left, call.right
  input_rule, output_rule = call.input_rule, call.output_rule
  averages = call.averages
  chunk, tile, dim = left.shape[1], tiles.SIZE, inputs.shape[1]
  window = (windows.shape[1] - chunk) // 2
  longest = firsts.shape[1] + deep.shape[1]
  num_left = rows.padded(2 * window + 1, tile)
  num_right = rows.padded(longest, tile)
  size = rows.padded(dim, tiles.LANES)
  words, scratch = rows.take(scratch, num_left, size)
  a, scratch = rows.take(scratch, tile, size)
  b, scratch = rows.take(scratch, num_right, size)
  word_grads, scratch = rows.take(scratch, num_left, size)
  a_grads, scratch = rows.take(scratch, tile, size)
  b_grads, scratch = rows.take(scratch, num_right, size)
  scores, scratch = rows.take(scratch, num_left, num_right)
  weights, scratch = rows.take(scratch, num_left, num_right)
  shares, scratch = rows.take(scratch, tile, num_left)
  word_ids, scratch = rows.take_vector(scratch, num_left, np.int32)
  nodes, scratch = rows.take_vector(scratch, num_right, np.int32)
  codes, scratch = rows.take_vector(scratch, num_right, np.int32)
  word_rows, scratch = rows.take_vector(scratch, num_left, np.uintp)
  a_rows, scratch = rows.take_vector(scratch, tile, np.uintp)
  b_rows, scratch = rows.take_vector(scratch, num_right, np.uintp)
  word_out, scratch = rows.take_vector(scratch, num_left, np.uintp)
  a_out, scratch = rows.take_vector(scratch, tile, np.uintp)
  b_out, scratch = rows.take_vector(scratch, num_right, np.uintp)
  word_rates, scratch = rows.take_vector(scratch, num_left, np.float32)
  b_rates, scratch = rows.take_vector(scratch, num_right, np.float32)
  ones, scratch = rows.take_vector(scratch, tile, np.float32)
  if scratch > call.scratch_stop:
    return
  rows.point(a, a_rows)
  rows.point(a_grads, a_out)
  ones[:] = 1
  loss = examples = 0.0
  for center in range(call.first * chunk, call.stop * chunk):
    i, x = center // chunk, center % chunk
    before, after = np.int64(left[i, x]), np.int64(right[i, x])
    num_words = before + after + 1
    if num_words == 1:
      continue
    own = windows[i, x + window - before : x + window + after + 1]
    depth = _find_path(own[before], exits, firsts, deep, nodes, codes)
    rows.copy(own, word_ids, 0)
    word_ids[num_words:] = rows.NO_ID
    nodes[depth:] = rows.NO_ID
    num_columns = rows.padded(depth, tile)
    own = word_ids[: rows.padded(num_words, tile)]
    path = nodes[:num_columns]
    rows.gather(inputs, own, words, word_rows)
    rows.find(outputs, path, b, b_rows)
    if averages:
      for j in range(num_words):
        shares[0, j] = np.float32(j != before) / np.float32(num_words - 1)
      shares[0, num_words:] = 0
      a[:] = 0
      tiles.add_rows(
        shares, 0, 0, 0, word_rows, 0, own.size, a_rows, 0, ones, dim
      )
    left_rows = a_rows if averages else word_rows
    num_used = 1 if averages else num_words
    num_rows = rows.padded(num_used, tile)
    for g in range(0, num_used, tile):
      for y in range(0, depth, tile):
        tiles.scores(left_rows, g, b_rows, y, dim, scores, g, y)
    for g in range(num_rows):
      is_used = (g < num_used) & (averages | (g != before))
      for y in range(num_columns):
        sign = 2 * np.float32(codes[y]) - 1
        weights[g, y] = sign * np.float32(is_used & (y < depth))
    if center % (_LOSS_EVERY_CHUNKS * chunk) == 0:
      examples += num_used - (not averages)
      loss += _measure(
        scores[:num_used, :num_columns], weights[:num_used, :num_columns]
      )
    for g in range(num_rows):
      rows.slopes(scores[g, :num_columns], weights[g, :num_columns])
    rows.aim(inputs, own, input_rule, word_grads, word_out, word_rates)
    rows.aim(outputs, path, output_rule, b_grads, b_out, b_rates)
    a_grads[:] = 0
    left_out = a_out if averages else word_out
    left_rates = ones if averages else word_rates
    for g in range(0, num_used, tile):
      tiles.add_rows(
        scores, g, 0, 0, b_rows, 0, num_columns, left_out, g, left_rates, dim
      )
    for y in range(0, depth, tile):
      tiles.add_columns(
        scores, 0, y, 0, left_rows, 0, num_rows, b_out, y, b_rates, dim
      )
    if averages:
      for j in range(0, num_words, tile):
        tiles.add_columns(
          shares, 0, j, 0, a_out, 0, tile, word_out, j, word_rates, dim
        )
    number = 2 * center
    rows.descend(inputs, call.input_state, own, word_grads, input_rule, number)
    rows.descend(
      outputs, call.output_state, path, b_grads, output_rule, number + 1
    )
  ffi.put(call.result, 0, loss, np.float64)
  ffi.put(call.result, 8, examples, np.float64)
