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
slots [vocab] or [1] float32; ids are int32, of a step's k chunks; `left` and
`right` [k, c] uint8 are the contexts on both sides of each center, at most W.
They take the chunks `first` to `stop` and return the loss, in nats, and the
examples that it was measured on.
"""

import math

import numba
import numpy as np

from jaxemb.native import rows, tiles

_LOSS_EVERY_CHUNKS = 64


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
  """Weights of the contexts in a center's window, for out[:, :band].

  Row x has the window of its tile, from x // 4 * 4 on. If it `shares`, all
  contexts of a center have the weight together. `columns` [band] are 0, 1, ...
  as floats, because LLVM is slow at making them.
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
  """Weights of skip-gram's negatives: pairs of a center without them.

  They come to out[:, first:]; of a part of the columns LLVM would not know that
  numbers are neighbors.
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
def skipgram(
  inputs, outputs, input_slots, output_slots, windows, draws, left, right,
  negatives, rule, first, stop, scratch,
):  # fmt: skip
  """Skip-gram with negative sampling.

  `windows` are [k, c + 2 W], `draws` [k, N]; `negatives` is K for each pair.
  """
  chunk, width = left.shape[1], windows.shape[1]
  window, num_draws = (width - chunk) // 2, draws.shape[1]
  tile, dim = tiles.SIZE, inputs.shape[1]
  factor = np.float32(negatives / num_draws)
  num_left, num_right = rows.padded(chunk, tile), rows.padded(num_draws, tile)
  band = rows.padded(tile + 2 * window, tile)
  # What a tile has beyond the window, or the draws, has no weight.
  num_rows = max(width + num_right, num_left - tile + band)
  size, num_columns = rows.padded(dim, tiles.LANES), band + num_right
  a, scratch = rows.take(scratch, num_left, size)
  b, scratch = rows.take(scratch, num_rows, size)
  a_grads, scratch = rows.take(scratch, num_left, size)
  b_grads, scratch = rows.take(scratch, num_rows, size)
  scores, scratch = rows.take(scratch, num_left, num_columns)
  weights, scratch = rows.take(scratch, num_left, num_columns)
  marks, scratch = rows.take_integers(scratch, 512)
  ids, scratch = rows.take_integers(scratch, width + num_draws)  # of outputs
  columns, scratch = rows.take_columns(scratch, band)
  loss = examples = 0.0
  for i in range(first, stop):
    if i + 1 < stop:
      rows.prefetch(inputs, windows[i + 1, window : window + chunk])
      rows.prefetch(outputs, windows[i + 1])
      rows.prefetch(outputs, draws[i + 1])
    rows.copy(windows[i], ids, 0)
    rows.copy(draws[i], ids, width)
    centers = ids[window : window + chunk]
    rows.gather(inputs, centers, a)
    rows.gather(outputs, ids, b)
    for g in range(0, num_left, tile):
      for y in range(0, num_columns, tile):
        j = g + y if y < band else width + y - band
        tiles.scores(a, g, b, j, scores, g, y)
    own, drawn = ids[:width], ids[width:]
    one = np.float32(1)
    _context_weights(left[i], right[i], window, -one, False, columns, weights)
    _negative_weights(
      left[i], right[i], own, drawn, factor, marks, band, weights
    )
    if i % _LOSS_EVERY_CHUNKS == 0:
      loss += _measure(scores, weights)
      examples += left[i].sum() + right[i].sum()
    rows.slopes(scores.reshape(-1), weights.reshape(-1))
    a_grads[:] = 0
    b_grads[:] = 0
    for g in range(0, num_left, tile):
      for y in range(0, num_columns, tile):
        j = g + y if y < band else width + y - band
        tiles.add_rows(scores, g, y, b, j, a_grads, g)
        tiles.add_columns(scores, g, y, a, g, b_grads, j)
    rows.descend(inputs, input_slots, centers, a_grads, rule, 2 * i)
    rows.descend(outputs, output_slots, ids, b_grads, rule, 2 * i + 1)
  return loss, examples


@numba.njit(**rows.JIT)
def cbow(
  inputs, outputs, input_slots, output_slots, windows, draws, left, right,
  negatives, rule, first, stop, scratch,
):  # fmt: skip
  """CBOW with negative sampling.

  Takes what `skipgram` takes.
  """
  chunk, num_draws = left.shape[1], draws.shape[1]
  window = (windows.shape[1] - chunk) // 2
  tile, dim = tiles.SIZE, inputs.shape[1]
  factor = np.float32(negatives / num_draws)
  num_left, num_right = rows.padded(chunk, tile), rows.padded(num_draws, tile)
  band = rows.padded(tile + 2 * window, tile)
  num_words = max(chunk + 2 * window, num_left - tile + band)
  num_rows = max(chunk + num_right, num_left)
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
  ids, scratch = rows.take_integers(scratch, chunk + num_draws)  # of outputs
  columns, scratch = rows.take_columns(scratch, band)
  loss = examples = 0.0
  for i in range(first, stop):
    if i + 1 < stop:
      rows.prefetch(inputs, windows[i + 1])
      rows.prefetch(outputs, windows[i + 1, window : window + chunk])
      rows.prefetch(outputs, draws[i + 1])
    rows.copy(windows[i, window : window + chunk], ids, 0)
    rows.copy(draws[i], ids, chunk)
    rows.gather(inputs, windows[i], words)
    rows.gather(outputs, ids, b)
    one = np.float32(1)
    _context_weights(left[i], right[i], window, one, True, columns, shares)
    a[:] = 0
    for g in range(0, num_left, tile):
      for y in range(0, band, tile):
        tiles.add_rows(shares, g, y, words, g + y, a, g)
      for y in range(0, num_columns, tile):
        j = g if y < tile else chunk + y - tile
        tiles.scores(a, g, b, j, scores, g, y)
    centers, drawn = ids[:chunk], ids[chunk:]
    _target_weights(left[i], right[i], centers, drawn, factor, weights)
    if i % _LOSS_EVERY_CHUNKS == 0:
      loss += _measure(scores, weights)
      for x in range(chunk):
        examples += (left[i, x] > 0) | (right[i, x] > 0)
    rows.slopes(scores.reshape(-1), weights.reshape(-1))
    a_grads[:] = 0
    b_grads[:] = 0
    word_grads[:] = 0
    for g in range(0, num_left, tile):
      for y in range(0, num_columns, tile):
        j = g if y < tile else chunk + y - tile
        tiles.add_rows(scores, g, y, b, j, a_grads, g)
        tiles.add_columns(scores, g, y, a, g, b_grads, j)
      for y in range(0, band, tile):
        tiles.add_columns(shares, g, y, a_grads, g, word_grads, g + y)
    rows.descend(inputs, input_slots, windows[i], word_grads, rule, 2 * i)
    rows.descend(outputs, output_slots, ids, b_grads, rule, 2 * i + 1)
  return loss, examples


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


@numba.njit(**rows.JIT)
def hierarchical(
  inputs, outputs, input_slots, output_slots, windows, exits, firsts, deep,
  left, right, averages, rule, first, stop, scratch,
):  # fmt: skip
  """Skip-gram or, if it `averages`, CBOW with hierarchical softmax.

  `windows` are [k, c + 2 W]; `exits` [vocab], `firsts` and `deep` are those of
  `ops.huffman.Split`.
  """
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
  nodes, scratch = rows.take_integers(scratch, longest)
  codes, scratch = rows.take_integers(scratch, longest)
  loss = examples = 0.0
  for center in range(first * chunk, stop * chunk):
    i, x = center // chunk, center % chunk
    before, after = np.int64(left[i, x]), np.int64(right[i, x])
    num_words = before + after + 1
    if num_words == 1:
      continue
    own = windows[i, x + window - before : x + window + after + 1]
    depth = _find_path(own[before], exits, firsts, deep, nodes, codes)
    rows.gather(inputs, own, words)
    rows.gather(outputs, nodes[:depth], b)
    if averages:
      for j in range(num_words):
        shares[0, j] = np.float32(j != before) / np.float32(num_words - 1)
      shares[0, num_words:] = 0
      a[:] = 0
      for j in range(0, num_words, tile):
        tiles.add_rows(shares, 0, j, words, j, a, 0)
    left_rows = a if averages else words
    left_grads = a_grads if averages else word_grads
    num_used = 1 if averages else num_words
    num_rows, num_columns = (
      rows.padded(num_used, tile),
      rows.padded(depth, tile),
    )
    for g in range(0, num_used, tile):
      for y in range(0, depth, tile):
        tiles.scores(left_rows, g, b, y, scores, g, y)
    for g in range(num_rows):
      is_used = (g < num_used) & (averages | (g != before))
      for y in range(num_columns):
        sign = 2 * np.float32(codes[min(y, longest - 1)]) - 1
        weights[g, y] = sign * np.float32(is_used & (y < depth))
    if center % (_LOSS_EVERY_CHUNKS * chunk) == 0:
      examples += num_used - (not averages)
      loss += _measure(
        scores[:num_used, :num_columns], weights[:num_used, :num_columns]
      )
    for g in range(num_rows):
      rows.slopes(scores[g, :num_columns], weights[g, :num_columns])
    left_grads[:num_rows] = 0
    b_grads[:num_columns] = 0
    for g in range(0, num_used, tile):
      for y in range(0, depth, tile):
        tiles.add_rows(scores, g, y, b, y, left_grads, g)
        tiles.add_columns(scores, g, y, left_rows, g, b_grads, y)
    if averages:
      word_grads[: rows.padded(num_words, tile)] = 0
      for j in range(0, num_words, tile):
        tiles.add_columns(shares, 0, j, a_grads, 0, word_grads, j)
    rows.descend(inputs, input_slots, own, word_grads, rule, 2 * center)
    own = nodes[:depth]
    rows.descend(outputs, output_slots, own, b_grads, rule, 2 * center + 1)
  return loss, examples
