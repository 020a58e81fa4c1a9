"""A growing hash table from words (UTF-8 bytes) to ids and counts.

Counting and encoding text is a byte loop, so it is compiled with numba and
releases the interpreter lock. The table is a NamedTuple of arrays: `slots` is
an open-addressing index (linear probing, a power of two long) into the entries
0..num_words-1, whose bytes lie one after the other in `arena`. Entries keep the
order in which the words came.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numba
import numpy as np


class WordTable(NamedTuple):
  """Words, their 64-bit hashes and counts; only `sizes[0]` entries are used."""

  slots: np.ndarray  # [num_slots] int32, entry or -1
  hashes: np.ndarray  # [max_words] uint64
  starts: np.ndarray  # [max_words + 1] int64, entry i is arena[starts[i]:...]
  counts: np.ndarray  # [max_words] int64
  arena: np.ndarray  # [max_bytes] uint8
  sizes: np.ndarray  # [1] int64, the number of words


# FNV-1a, 64 bits.
OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_REMIX = np.uint64(0xFF51AFD7ED558CCD)


@numba.njit(nogil=True, cache=True)
def empty(max_words: int, max_bytes: int) -> WordTable:
  """An empty table with room for `max_words` words; it grows when needed."""
  num_slots = 16
  while num_slots < 2 * max_words:
    num_slots *= 2
  return WordTable(
    np.full(num_slots, -1, np.int32),
    np.empty(max_words, np.uint64),
    np.zeros(max_words + 1, np.int64),
    np.zeros(max_words, np.int64),
    np.empty(max_bytes, np.uint8),
    np.zeros(1, np.int64),
  )


@numba.njit(nogil=True, cache=True)
def hash_bytes(text: np.ndarray, start: int, stop: int) -> np.uint64:
  """FNV-1a of `text[start:stop]` (uint8), 64 bits."""
  h = OFFSET_BASIS
  for i in range(start, stop):
    h = (h ^ np.uint64(text[i])) * PRIME
  return h


@numba.njit(nogil=True, cache=True, inline='always')
def _slot(h: np.uint64, mask: int) -> int:
  # FNV leaves its low bits weak; a multiplicative hash takes the high ones.
  return np.int64((h * _MIX) >> np.uint64(32)) & mask


@numba.njit(nogil=True, cache=True)
def find(
  table: WordTable, text: np.ndarray, start: int, stop: int, h: np.uint64
) -> int:
  """The entry of the word `text[start:stop]` whose hash is `h`, or -1."""
  mask = len(table.slots) - 1
  s = _slot(h, mask)
  while True:
    entry = table.slots[s]
    if entry < 0:
      return -1
    if table.hashes[entry] == h:
      first = table.starts[entry]
      if table.starts[entry + 1] - first == stop - start:
        i = 0
        while i < stop - start and table.arena[first + i] == text[start + i]:
          i += 1
        if i == stop - start:
          return entry
    s = (s + 1) & mask


@numba.njit(nogil=True, cache=True)
def _grow(table: WordTable, new_bytes: int) -> WordTable:
  """The same entries with room for one more word of `new_bytes` bytes."""
  n = table.sizes[0]
  used_bytes = table.starts[n]
  hashes, starts, counts = table.hashes, table.starts, table.counts
  slots, arena = table.slots, table.arena
  if n == len(counts):
    hashes = np.empty(2 * n, np.uint64)
    starts = np.zeros(2 * n + 1, np.int64)
    counts = np.zeros(2 * n, np.int64)
    hashes[:n] = table.hashes[:n]
    starts[: n + 1] = table.starts[: n + 1]
    counts[:n] = table.counts[:n]
    slots = np.full(2 * len(table.slots), -1, np.int32)
    mask = len(slots) - 1
    for entry in range(n):
      s = _slot(hashes[entry], mask)
      while slots[s] >= 0:
        s = (s + 1) & mask
      slots[s] = entry
  if used_bytes + new_bytes > len(arena):
    arena = np.empty(2 * len(arena) + new_bytes, np.uint8)
    arena[:used_bytes] = table.arena[:used_bytes]
  return WordTable(slots, hashes, starts, counts, arena, table.sizes)


@numba.njit(nogil=True, cache=True)
def append(
  table: WordTable, text: np.ndarray, start: int, stop: int, h: np.uint64
) -> WordTable:
  """Adds the word `text[start:stop]`, which must be absent, with count 0."""
  n = table.sizes[0]
  length = stop - start
  if n == len(table.counts) or table.starts[n] + length > len(table.arena):
    table = _grow(table, length)
  mask = len(table.slots) - 1
  s = _slot(h, mask)
  while table.slots[s] >= 0:
    s = (s + 1) & mask
  table.slots[s] = n
  table.hashes[n] = h
  table.counts[n] = 0
  first = table.starts[n]
  for i in range(length):
    table.arena[first + i] = text[start + i]
  table.starts[n + 1] = first + length
  table.sizes[0] = n + 1
  return table


@numba.njit(nogil=True, cache=True)
def merge(
  table: WordTable, arena: np.ndarray, starts: np.ndarray, counts: np.ndarray
) -> WordTable:
  """Adds the words `arena[starts[i]:starts[i + 1]]` with their counts."""
  for i in range(len(counts)):
    h = hash_bytes(arena, starts[i], starts[i + 1])
    entry = find(table, arena, starts[i], starts[i + 1], h)
    if entry < 0:
      table = append(table, arena, starts[i], starts[i + 1], h)
      entry = table.sizes[0] - 1
    table.counts[entry] += counts[i]
  return table


@numba.njit(nogil=True, cache=True)
def buckets(table: WordTable, num_buckets: int) -> np.ndarray:
  """[num_words] uint16: which of the buckets the hash of each word is in."""
  found = np.empty(table.sizes[0], np.uint16)
  for i in range(len(found)):
    # Not the bits of `_slot`: words of one bucket would share their slots.
    h = table.hashes[i]
    h = (h ^ (h >> np.uint64(33))) * _REMIX
    found[i] = (h >> np.uint64(33)) % np.uint64(num_buckets)
  return found


@numba.njit(nogil=True, cache=True)
def subset(
  table: WordTable, entries: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Some words, as `merge` takes them: bytes, where each starts, counts."""
  starts = np.zeros(len(entries) + 1, np.int64)
  counts = np.empty(len(entries), np.int64)
  for i in range(len(entries)):
    entry = entries[i]
    length = table.starts[entry + 1] - table.starts[entry]
    starts[i + 1] = starts[i] + length
    counts[i] = table.counts[entry]
  arena = np.empty(starts[-1], np.uint8)
  for i in range(len(entries)):
    first = table.starts[entries[i]]
    for j in range(starts[i + 1] - starts[i]):
      arena[starts[i] + j] = table.arena[first + j]
  return arena, starts, counts


@numba.njit(nogil=True, cache=True)
def lookup(
  table: WordTable, arena: np.ndarray, starts: np.ndarray
) -> np.ndarray:
  """[num_words] int32, the entry of each word of an arena in `table`, or -1."""
  entries = np.empty(len(starts) - 1, np.int32)
  for i in range(len(entries)):
    h = hash_bytes(arena, starts[i], starts[i + 1])
    entries[i] = find(table, arena, starts[i], starts[i + 1], h)
  return entries


def from_words(words: Sequence[str]) -> WordTable:
  """A table whose entry i is `words[i]`, with counts 0.

  The words must be distinct.
  """
  encoded = [word.encode() for word in words]
  starts = np.zeros(len(words) + 1, np.int64)
  np.cumsum([len(word) for word in encoded], out=starts[1:])
  arena = np.frombuffer(b''.join(encoded) or b'\0', np.uint8)
  table = empty(max(len(words), 1), max(len(arena), 1))
  return merge(table, arena, starts, np.zeros(len(words), np.int64))


def words(table: WordTable) -> Iterator[bytes]:
  """The words in entry order, as UTF-8 bytes."""
  text = table.arena.tobytes()
  starts = table.starts
  for i in range(int(table.sizes[0])):
    yield text[starts[i] : starts[i + 1]]
