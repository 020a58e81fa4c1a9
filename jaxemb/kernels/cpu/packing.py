"""Batches of words, packed from blocks of ids by the threads of a kernel.

Two calls (`turns`), whose chunks are the B blocks of each of P parts, do what
`data.blocks.make_batch` does, bit for bit. The first drops frequent words: of
every id it writes how far a window would reach, 0 = dropped, and counts what a
block keeps. Sums of these counts say where blocks begin in the batch, where the
second writes each with its windows, cut at sentences.

  ids      a b | c d e | ...     | = END
  reaches  3 0 0 2 4 0 0         b and e are dropped
  batch    a c d

Both calls read, of `data.packing.Blocks`, ids [P, n], starts, lengths and stops
[P, B] int32, and sizes [3] int32, shortest window, longest window, vocabulary.
The first also reads positions [P, 2 B], key [P, 2] and highest_kept [P, vocab]
uint32, and makes reaches [P, 32 groups] uint8 and counts [P, B] int32. The
second also reads these two, and firsts [P, B] int32, where each block begins.
It makes ids [P, size + 2 W] int32, left and right [P, size] uint8, filled up
with padding, and pairs [P, B] int32.
"""

import numba
import numpy as np

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import rows, turns
from jaxemb.ops import hashing

GROUP = 32  # ids, as of `data.packing.num_groups`
STRIP = 256  # ids, and floats of scratch
_IDS, _STARTS, _LENGTHS, _STOPS, _SIZES = range(turns.READ, turns.READ + 5)
_POSITIONS, _KEY, _HIGHEST = range(turns.READ + 5, turns.READ + 8)
_READ_REACHES, _READ_COUNTS, _FIRSTS = range(turns.READ + 5, turns.READ + 8)
_REACHES, _COUNTS = range(turns.RESULTS, turns.RESULTS + 2)
_PACKED, _LEFT, _RIGHT, _PAIRS = range(turns.RESULTS, turns.RESULTS + 4)
_END = np.int32(-1)  # `data.sentences.END`


_read, _made = ffi.matrix_of(ffi.ARGUMENTS), ffi.matrix_of(ffi.RESULTS)


@numba.njit(**rows.JIT)
def _word(halves, part, number):
  """The 64 bits of the two halves of a number, the high ones first."""
  high, low = halves[part, 2 * number], halves[part, 2 * number + 1]
  return (np.uint64(high) << np.uint64(32)) | np.uint64(low)


@numba.njit(**rows.JIT)
def _draw(position, key, shortest, longest, highs, reaches):
  """Writes of each id the high half of its hash, and a reach from the low."""
  span = np.uint32(longest + 1 - shortest)
  for i in range(reaches.size):
    h = hashing.hashed(key ^ (position + np.uint64(i)))
    highs[i] = np.uint32(h >> np.uint64(32))
    reach = np.uint32((np.uint32(h) & np.uint32(0xFFFF)) * span)
    reaches[i] = np.uint8(np.uint32(shortest) + (reach >> np.uint32(16)))


@numba.njit(**rows.JIT)
def _drop(ids, highs, highest, reaches):
  """Clears what the windows of dropped words reach; returns how many stay."""
  num = 0
  for i in range(ids.size):
    id_ = ids[i]
    is_kept = highs[i] <= highest[id_ if id_ > 0 else 0]
    is_kept &= id_ != _END
    # Not a choice, which LLVM makes a branch that no processor could foresee.
    reaches[i] *= np.uint8(is_kept)
    num += is_kept
  return num


@numba.njit(**rows.JIT)
def _cut(right, start, stop, longest):
  """Cuts what windows reach at the end of a sentence of kept words."""
  first = stop - longest
  for j in range(first if first > start else start, stop):
    rest = stop - 1 - j
    right[j] = right[j] if right[j] < rest else rest


@numba.njit(**rows.JIT)
def _pack(ids, reaches, longest, words, left, right):
  """Writes the kept words of a block, as many as there is room for.

  Returns (center, context) pairs.
  """
  n = start = np.intp(0)  # of all, and of the sentence
  for i in range(ids.size):
    if n == words.size:
      break  # the rest is dropped
    if ids[i] == _END:
      _cut(right, start, n, longest)
      start = n
      continue
    # Always written, and counted if it is kept: see `_drop`.
    words[n], reach = ids[i], np.intp(reaches[i])
    before = n - start
    left[n], right[n] = reach if reach < before else before, reach
    n += reach > 0
  _cut(right, start, n, longest)
  pairs = 0
  for j in range(n):
    pairs += np.intp(left[j]) + np.intp(right[j])
  return pairs


@numba.njit(**rows.JIT)
def _pad(part, number, words, left, right, first):
  """Writes what follows the words of a batch from `first` on: a block's part.

  `part` is (window, vocabulary, blocks).
  """
  window, vocab, num = part
  size = left.size - first
  start, stop = first + size * number // num, first + size * (number + 1) // num
  words[window + start : window + stop] = vocab
  left[start:stop] = 0
  right[start:stop] = 0
  if number == 0:
    words[:window] = vocab
  if number == num - 1:
    words[window + stop :] = vocab


@numba.njit(**rows.INLINE)
def _block(frame, part, block):
  """The ids of a block, and where its reaches begin."""
  first = np.intp(_read(frame, _STARTS, np.int32)[part, block])
  num = np.intp(_read(frame, _LENGTHS, np.int32)[part, block])
  stop = np.intp(_read(frame, _STOPS, np.int32)[part, block])
  ids = _read(frame, _IDS, np.int32)[part, first : first + num]
  return ids, GROUP * (stop - (num // GROUP + 1) * (num > 0))


def subsample(frame, first, stop, scratch, result):
  """The first call, of some blocks."""
  counts = _made(frame, _COUNTS, np.int32)
  sizes = ffi.vector(frame, ffi.ARGUMENTS, _SIZES, np.int32)
  shortest, longest = np.intp(sizes[0]), np.intp(sizes[1])
  # In strips, whose hashes stay in the cache.
  highs = rows.take_vector(scratch, STRIP, np.uint32)[0]
  for i in range(first, stop):
    part, block = i // counts.shape[1], i % counts.shape[1]
    ids, place = _block(frame, part, block)
    reaches = _made(frame, _REACHES, np.uint8)[part, place : place + ids.size]
    highest = _read(frame, _HIGHEST, np.uint32)[part]
    key = _word(_read(frame, _KEY, np.uint32), part, np.intp(0))
    position = _word(_read(frame, _POSITIONS, np.uint32), part, block)
    num = 0
    for j in range(0, ids.size, STRIP):
      strip = reaches[j : j + STRIP]
      _draw(position + np.uint64(j), key, shortest, longest, highs, strip)
      num += _drop(ids[j : j + STRIP], highs, highest, strip)
    counts[part, block] = num
  turns.report(result, 0.0, 0.0)


def pack(frame, first, stop, scratch, result):
  """The second call, of some blocks."""
  counts = _read(frame, _READ_COUNTS, np.int32)
  firsts = _read(frame, _FIRSTS, np.int32)
  sizes = ffi.vector(frame, ffi.ARGUMENTS, _SIZES, np.int32)
  window, num_blocks = np.intp(sizes[1]), counts.shape[1]
  for i in range(first, stop):
    part, block = i // num_blocks, i % num_blocks
    words = _made(frame, _PACKED, np.int32)[part]
    left = _made(frame, _LEFT, np.uint8)[part]
    right = _made(frame, _RIGHT, np.uint8)[part]
    ids, place = _block(frame, part, block)
    start, num = np.intp(firsts[part, block]), np.intp(counts[part, block])
    _made(frame, _PAIRS, np.int32)[part, block] = _pack(
      ids,
      _read(frame, _READ_REACHES, np.uint8)[part, place : place + ids.size],
      window,
      words[window + start : window + start + num],
      left[start : start + num],
      right[start : start + num],
    )
    last = num_blocks - 1
    num_words = np.intp(firsts[part, last]) + np.intp(counts[part, last])
    _pad(
      (window, sizes[2], num_blocks),
      block,
      words,
      left,
      right,
      num_words,
    )
  turns.report(result, 0.0, 0.0)
