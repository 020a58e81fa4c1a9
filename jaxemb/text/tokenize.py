"""Tokenizer: one compiled pass from UTF-8 text to words, counts and ids.

Two definitions of a word (`config.data.tokens`):

  'words'       a run of letters, digits and marks of any script; everything
                else separates. "don't" is two words, "naïve" one.
  'whitespace'  a run without white space, for text that is already tokenized.

A table over code points holds definition and lower-casing: 0 separates, any
other entry is the UTF-8 to write. A line end closes a sentence, which training
windows never cross, and is written as `END`. All loops over bytes are compiled
with numba and release the interpreter lock.
"""

import functools
import itertools
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numba
import numpy as np

# Marks the end of a sentence in a sequence of ids.
END = -1

# A "word" longer than this is data (base64, a long URL), not a word.
MAX_WORD_BYTES = 255

HASH_BITS = 62  # ranges of hashes fit int64

# Unicode has no letters, digits, marks or white space elsewhere.
_ASSIGNED = (range(0x40000), range(0xE0000, 0xE0200))

_FNV_BASIS = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Words(NamedTuple):
  """Different words with their hashes and counts."""

  hashes: np.ndarray  # [n] int64, HASH_BITS of FNV-1a, mixed
  counts: np.ndarray  # [n] int64
  starts: np.ndarray  # [n + 1] int64, word i is arena[starts[i]:starts[i + 1]]
  arena: np.ndarray  # [bytes] uint8, UTF-8

  def reader(self) -> Callable[[int], bytes]:
    """A function from the number of a word to its UTF-8."""
    starts, text = self.starts, self.arena.tobytes()
    return lambda i: text[starts[i] : starts[i + 1]]

  def texts(self) -> list[bytes]:
    """All words, as UTF-8."""
    return list(map(self.reader(), range(len(self.counts))))

  def subset(self, numbers: np.ndarray) -> 'Words':
    """Some of the words, in the order of their numbers."""
    lengths = np.diff(self.starts)[numbers]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    moved = np.repeat(self.starts[numbers] - starts[:-1], lengths)
    arena = self.arena[np.arange(len(moved)) + moved]
    return Words(self.hashes[numbers], self.counts[numbers], starts, arena)

  def best(self, min_count: int, max_vocab: int) -> np.ndarray:
    """[num_chosen] int64, numbers of the words that occur `min_count` times.

    By falling count, at most `max_vocab` (0 = all). Ties are sorted by their
    UTF-8, so that nothing depends on how work was divided.
    """
    order = np.flatnonzero(self.counts >= min_count)
    order = order[np.argsort(-self.counts[order], kind='stable')]
    # Ties are sorted one count at a time: few words need be Python objects.
    is_last = np.diff(self.counts[order], append=-1) != 0
    word, start = self.reader(), 0
    for stop in np.flatnonzero(is_last) + 1:
      order[start:stop] = sorted(order[start:stop].tolist(), key=word)
      start = stop
      if max_vocab and stop >= max_vocab:
        return order[:max_vocab]
    return order


class WordTable(NamedTuple):
  """Growing hash table from words to entries, in order of first occurrence.

  Open addressing with linear probing; the arrays of `Words` with room to grow.
  """

  slots: np.ndarray  # [num_slots] int32, entry or -1; a power of two long
  hashes: np.ndarray
  counts: np.ndarray
  starts: np.ndarray
  arena: np.ndarray
  size: np.ndarray  # [1] int64, the number of words

  def words(self) -> Words:
    """The words by entry, without a copy."""
    n = int(self.size[0])
    arena = self.arena[: self.starts[n]]
    return Words(self.hashes[:n], self.counts[:n], self.starts[: n + 1], arena)


@numba.njit(nogil=True, cache=True)
def empty(max_words: int = 1 << 16, max_bytes: int = 1 << 20) -> WordTable:
  """An empty table with room for `max_words`, a power of two; it can grow."""
  return WordTable(
    np.full(2 * max_words, -1, np.int32),
    np.empty(max_words, np.int64),
    np.empty(max_words, np.int64),
    np.zeros(max_words + 1, np.int64),
    np.empty(max_bytes, np.uint8),
    np.zeros(1, np.int64),
  )


@numba.njit(nogil=True, cache=True, inline='always')
def _finished(h: np.uint64) -> int:
  # FNV leaves its low bits weak, and the first letter of a word its high ones.
  return np.int64(((h ^ (h >> np.uint64(32))) * _MIX) >> np.uint64(2))


@numba.njit(nogil=True, cache=True)
def _hashes(arena, starts):
  """[n] int64, FNV-1a of each word."""
  hashes = np.empty(len(starts) - 1, np.int64)
  for i in range(len(hashes)):
    h = _FNV_BASIS
    for j in range(starts[i], starts[i + 1]):
      h = (h ^ np.uint64(arena[j])) * _FNV_PRIME
    hashes[i] = _finished(h)
  return hashes


@numba.njit(nogil=True, cache=True, inline='always')
def _first_slot(hashed, slots):
  # Not the highest bits, which words of a range of hashes have in common.
  return (hashed >> 16) & (len(slots) - 1)


@numba.njit(nogil=True, cache=True)
def _find(table, text, start, stop, hashed):
  """The entry of the word `text[start:stop]`, or -1."""
  length = stop - start
  slot = _first_slot(hashed, table.slots)
  while True:
    entry = table.slots[slot]
    if entry < 0:
      return -1
    first = table.starts[entry]
    if (
      table.hashes[entry] == hashed
      and table.starts[entry + 1] - first == length
    ):
      i = 0
      while i < length and table.arena[first + i] == text[start + i]:
        i += 1
      if i == length:
        return entry
    slot = (slot + 1) & (len(table.slots) - 1)


@numba.njit(nogil=True, cache=True)
def _insert(slots, hashed, entry):
  slot = _first_slot(hashed, slots)
  while slots[slot] >= 0:
    slot = (slot + 1) & (len(slots) - 1)
  slots[slot] = entry


@numba.njit(nogil=True, cache=True)
def _grown(table, new_bytes):
  """A copy with space for more words, one of them of `new_bytes` bytes."""
  n = table.size[0]
  num_bytes = table.starts[n]
  out = empty(2 * len(table.hashes), 2 * len(table.arena) + new_bytes)
  out.hashes[:n] = table.hashes[:n]
  out.counts[:n] = table.counts[:n]
  out.starts[: n + 1] = table.starts[: n + 1]
  out.arena[:num_bytes] = table.arena[:num_bytes]
  out.size[0] = n
  for entry in range(n):
    _insert(out.slots, out.hashes[entry], entry)
  return out


@numba.njit(nogil=True, cache=True)
def _append(table, text, start, stop, hashed, count):
  """Adds the word `text[start:stop]`, which must be absent."""
  n = table.size[0]
  first, length = table.starts[n], stop - start
  if n == len(table.hashes) or first + length > len(table.arena):
    table = _grown(table, length)
  _insert(table.slots, hashed, n)
  table.hashes[n] = hashed
  table.counts[n] = count
  table.starts[n + 1] = first + length
  table.arena[first : first + length] = text[start:stop]
  table.size[0] = n + 1
  return table


@numba.njit(nogil=True, cache=True)
def merge(table: WordTable, words: Words, min_count: int = 0) -> WordTable:
  """Adds the counts of those words that have at least `min_count`."""
  hashes, counts, starts, arena = words
  for i in range(len(hashes)):
    if counts[i] >= min_count:
      start, stop = starts[i], starts[i + 1]
      entry = _find(table, arena, start, stop, hashes[i])
      if entry < 0:
        table = _append(table, arena, start, stop, hashes[i], counts[i])
      else:
        table.counts[entry] += counts[i]
  return table


@numba.njit(nogil=True, cache=True)
def lookup(table: WordTable, words: Words) -> np.ndarray:
  """[n] int32, the entry in `table` of each word, or -1."""
  hashes, _, starts, arena = words
  entries = np.empty(len(hashes), np.int32)
  for i in range(len(hashes)):
    entries[i] = _find(table, arena, starts[i], starts[i + 1], hashes[i])
  return entries


def from_counts(words: Sequence[bytes], counts: np.ndarray) -> Words:
  """Different words, in UTF-8, with their counts."""
  starts = np.cumsum([0, *map(len, words)])
  # Writable, as elsewhere: numba compiles again for read-only arrays.
  arena = np.frombuffer(bytearray(b''.join(words)), np.uint8)
  return Words(_hashes(arena, starts), counts, starts, arena)


@functools.cache
def code_points(definition: str, lowercase: bool) -> np.ndarray:
  """[num_code_points + 1] uint32: 0 separates, else UTF-8 to write, low first.

  The last entry, [-1], is that of U+FFFD, which stands for an invalid byte.
  """
  table = np.zeros(sys.maxunicode + 2, np.uint32)
  if definition == 'whitespace':
    others = ''.join(map(chr, range(0x40000, sys.maxunicode + 1))).encode()
    table[0x40000:-1] = np.frombuffer(others, '<u4')
  for point in itertools.chain(*_ASSIGNED):
    char = chr(point)
    if definition == 'whitespace':
      inside = not (char.isspace() or point < 32)
    else:
      # Marks carry vowels in Indic scripts and accents in decomposed text.
      inside = char.isalnum() or unicodedata.category(char)[0] == 'M'
    if inside:
      lower = char.lower() if lowercase else char
      # A few capitals have a lower case of two code points ('İ'): kept as is.
      out = lower if len(lower) == 1 else char
      table[point] = int.from_bytes(
        out.encode(errors='surrogatepass'), 'little'
      )
  table[-1] = table[0xFFFD]
  return table


@numba.njit(nogil=True, cache=True)
def _decode(text, i):
  """Code point of several bytes at `i`, and how many; (-1, 1) if invalid."""
  b = np.int64(text[i])
  length = 2 + (b >= 0xE0) + (b >= 0xF0)
  if not 0xC2 <= b < 0xF5 or i + length > len(text):
    return np.int64(-1), 1
  point = b & (0x7F >> length)
  for j in range(1, length):
    c = np.int64(text[i + j])
    if c & 0xC0 != 0x80:
      return np.int64(-1), 1
    point = (point << 6) | (c & 0x3F)
  is_overlong = point < (0x800 if length == 3 else 0x10000) and length > 2
  if is_overlong or 0xD800 <= point < 0xE000 or point > 0x10FFFF:
    return np.int64(-1), 1
  return point, length


@numba.njit(nogil=True, cache=True)
def _read_known(text, i, points, table, word, ids, n, dropped):
  """Writes ids up to the first new word, which it leaves in `word`.

  Returns the position after it, the number of ids, its length and its hash.
  """
  length, h = 0, _FNV_BASIS
  while i <= len(text):
    # The text's end ends a word like white space.
    point, step = np.int64(32), 1
    if i < len(text):
      point = np.int64(text[i])
      if point >= 0x80:
        point, step = _decode(text, i)
    out = np.int64(points[point])
    if out == 0:
      if length > MAX_WORD_BYTES:
        dropped[1] += 1
      elif length > 0:
        entry = _find(table, word, 0, length, _finished(h))
        if entry < 0:
          return i, n, length, _finished(h)
        table.counts[entry] += 1
        ids[n] = entry
        n += 1
      length, h = 0, _FNV_BASIS
      # Also at the start: the line may have begun in the text before.
      if point == 10 and (n == 0 or ids[n - 1] != END):
        ids[n] = END
        n += 1
    while out != 0:
      if length <= MAX_WORD_BYTES:
        word[length] = out & 0xFF
        length += 1
        h = (h ^ np.uint64(out & 0xFF)) * _FNV_PRIME
      out >>= 8
    dropped[0] += point < 0
    i += step
  return i, n, 0, 0


@numba.njit(nogil=True, cache=True)
def _tokenize(text, table, points, ends_line):
  ids = np.empty(len(text) + 2, np.int32)
  word = np.empty(MAX_WORD_BYTES + 1, np.uint8)
  dropped = np.zeros(2, np.int64)
  n = i = 0
  # The table is only replaced out here: numba would count references to its
  # arrays on every word of the inner loop, at four times the cost.
  while i <= len(text):
    i, n, length, hashed = _read_known(
      text, i, points, table, word, ids, n, dropped
    )
    if length > 0:
      ids[n] = table.size[0]
      n += 1
      table = _append(table, word, 0, length, hashed, 1)
  if ends_line and (n == 0 or ids[n - 1] != END):
    ids[n] = END
    n += 1
  return ids[:n].copy(), table, dropped


def tokenize(
  text: bytes, definition: str, lowercase: bool, ends_line: bool = True
) -> tuple[np.ndarray, Words, int, int]:
  """Counts the words of UTF-8 text and writes it as ids, in one pass.

  Returns [num_ids] int32, indices into the text's own words, with `END` after
  each sentence; these words; how many bytes were invalid, read as U+FFFD; and
  how many words were dropped as longer than `MAX_WORD_BYTES`. The end of the
  text ends a sentence only if `ends_line`.
  """
  data = np.frombuffer(text, np.uint8)
  points = code_points(definition, lowercase)
  table = empty(1 << 15, 1 << 18)
  ids, table, dropped = _tokenize(data, table, points, ends_line)
  return ids, table.words(), *dropped.tolist()
