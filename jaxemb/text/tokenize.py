"""Tokenizer: one compiled pass from UTF-8 text to words, counts and ids.

Two definitions of a word (`config.data.tokens`):

  'words'       a run of letters, digits and marks of any script; everything
                else separates. "don't" is two words, "naïve" one.
  'whitespace'  a run without white space, for text that is already tokenized.

A table over code points holds the definition and the lower-casing: entry 0 is a
separator, any other entry is the code point to write. A line end closes a
sentence, which training windows never cross; it is written as `END`.

Words are counted in a `WordTable`. All loops over bytes are compiled with numba
and release the interpreter lock.
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

DEFINITIONS = ('words', 'whitespace')

# Unicode has no letters, digits, marks or white space elsewhere.
_ASSIGNED = (range(0x40000), range(0xE0000, 0xE0200))
_REPLACEMENT = 0xFFFD

# FNV-1a, 64 bits.
_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_REMIX = np.uint64(0xFF51AFD7ED558CCD)


class WordTable(NamedTuple):
  """Growing hash table from words to entries, in order of first occurrence.

  Open addressing with linear probing. Only `sizes[0]` entries are in use.
  """

  slots: np.ndarray  # [num_slots] int32, entry or -1; a power of two long
  hashes: np.ndarray  # [max_words] uint64
  starts: np.ndarray  # [max_words + 1] int64, entry i is arena[starts[i]:...]
  counts: np.ndarray  # [max_words] int64
  arena: np.ndarray  # [max_bytes] uint8, UTF-8
  sizes: np.ndarray  # [1] int64, the number of words


class Counters(NamedTuple):
  """What one call of `tokenize` read and dropped."""

  num_words: int
  invalid_bytes: int  # not UTF-8, replaced by U+FFFD
  overlong_words: int  # longer than MAX_WORD_BYTES, dropped


@numba.njit(nogil=True, cache=True)
def empty(max_words: int, max_bytes: int) -> WordTable:
  """An empty table; beyond this size it is copied to grow."""
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
  """FNV-1a of `text[start:stop]` (uint8)."""
  h = _OFFSET_BASIS
  for i in range(start, stop):
    h = (h ^ np.uint64(text[i])) * _PRIME
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
def _insert(slots, h, entry):
  mask = len(slots) - 1
  s = _slot(h, mask)
  while slots[s] >= 0:
    s = (s + 1) & mask
  slots[s] = entry


@numba.njit(nogil=True, cache=True)
def _grown(table: WordTable, new_bytes: int) -> WordTable:
  """A copy with space for one more word of `new_bytes` bytes."""
  n = table.sizes[0]
  max_words, max_bytes = len(table.counts), len(table.arena)
  if n == max_words:
    max_words *= 2
  if table.starts[n] + new_bytes > max_bytes:
    max_bytes = 2 * max_bytes + new_bytes
  out = empty(max_words, max_bytes)
  out.sizes[0] = n
  out.hashes[:n] = table.hashes[:n]
  out.starts[: n + 1] = table.starts[: n + 1]
  out.counts[:n] = table.counts[:n]
  out.arena[: table.starts[n]] = table.arena[: table.starts[n]]
  for entry in range(n):
    _insert(out.slots, out.hashes[entry], entry)
  return out


@numba.njit(nogil=True, cache=True)
def append(
  table: WordTable, text: np.ndarray, start: int, stop: int, h: np.uint64
) -> WordTable:
  """Adds the word `text[start:stop]`, which must be absent, with count 0."""
  n = table.sizes[0]
  first, length = table.starts[n], stop - start
  if n == len(table.counts) or first + length > len(table.arena):
    table = _grown(table, length)
  _insert(table.slots, h, n)
  table.hashes[n] = h
  table.counts[n] = 0
  for i in range(length):
    table.arena[first + i] = text[start + i]
  table.starts[n + 1] = first + length
  table.sizes[0] = n + 1
  return table


@numba.njit(nogil=True, cache=True)
def merge(
  table: WordTable, arena: np.ndarray, starts: np.ndarray, counts: np.ndarray
) -> WordTable:
  """Adds the counts of the words `arena[starts[i]:starts[i + 1]]`."""
  for i in range(len(counts)):
    h = hash_bytes(arena, starts[i], starts[i + 1])
    entry = find(table, arena, starts[i], starts[i + 1], h)
    if entry < 0:
      table = append(table, arena, starts[i], starts[i + 1], h)
      entry = table.sizes[0] - 1
    table.counts[entry] += counts[i]
  return table


def buckets(table: WordTable, num_buckets: int) -> np.ndarray:
  """[num_words] uint16, a bucket for each word, chosen by its hash."""
  # Not the bits of `_slot`: words of one bucket would share their slots.
  h = table.hashes[: int(table.sizes[0])] * _REMIX >> np.uint64(32)
  return (h * np.uint64(num_buckets) >> np.uint64(32)).astype(np.uint16)


@numba.njit(nogil=True, cache=True)
def subset(
  table: WordTable, entries: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Arena, starts and counts of some entries, as `merge` takes them."""
  firsts = table.starts[entries]
  starts = np.zeros(len(entries) + 1, np.int64)
  starts[1:] = np.cumsum(table.starts[entries + 1] - firsts)
  arena = np.empty(starts[-1], np.uint8)
  out = 0
  for i in range(len(entries)):
    first = firsts[i]
    for j in range(first, table.starts[entries[i] + 1]):
      arena[out] = table.arena[j]
      out += 1
  return arena, starts, table.counts[entries]


@numba.njit(nogil=True, cache=True)
def lookup(
  table: WordTable, arena: np.ndarray, starts: np.ndarray
) -> np.ndarray:
  """[num_words] int32, the entry in `table` of each word of an arena, or -1."""
  entries = np.empty(len(starts) - 1, np.int32)
  for i in range(len(entries)):
    h = hash_bytes(arena, starts[i], starts[i + 1])
    entries[i] = find(table, arena, starts[i], starts[i + 1], h)
  return entries


def from_words(words: Sequence[bytes], counts: Sequence[int]) -> WordTable:
  """A table of words with their counts; repeated words are added up."""
  starts = np.zeros(len(words) + 1, np.int64)
  np.cumsum([len(word) for word in words], out=starts[1:])
  # Writable, as elsewhere: numba compiles again for read-only arrays.
  arena = np.frombuffer(bytearray(b''.join(words)), np.uint8)
  table = empty(max(len(words), 1), max(len(arena), 1))
  return merge(table, arena, starts, np.asarray(counts, np.int64))


def reader(table: WordTable) -> Callable[[int], bytes]:
  """A function that returns the word of an entry, as UTF-8."""
  starts = table.starts[: int(table.sizes[0]) + 1]
  text = table.arena[: starts[-1]].tobytes()
  return lambda i: text[starts[i] : starts[i + 1]]


@functools.cache
def code_points(definition: str, lowercase: bool) -> np.ndarray:
  """[num_code_points] uint32: 0 separates, else the code point to write."""
  is_whitespace = definition == 'whitespace'
  table = np.zeros(sys.maxunicode + 1, np.uint32)
  if is_whitespace:
    table[:] = np.arange(len(table))
  for point in itertools.chain(*_ASSIGNED):
    char = chr(point)
    if is_whitespace:
      inside = not (char.isspace() or point < 32)
    else:
      # Marks carry vowels in Indic scripts and accents in decomposed text.
      inside = char.isalnum() or unicodedata.category(char)[0] == 'M'
    lower = char.lower() if lowercase else char
    # A few capitals have a lower case of two code points ('İ'): kept as is.
    out = ord(lower) if len(lower) == 1 else point
    table[point] = out if inside else 0
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
def _encode(point, word, n):
  """Writes a code point as UTF-8 at `word[n:]`; returns the new length."""
  if point < 0x80:
    word[n] = point
    return n + 1
  if point < 0x800:
    word[n] = 0xC0 | point >> 6
    n += 1
  elif point < 0x10000:
    word[n] = 0xE0 | point >> 12
    word[n + 1] = 0x80 | point >> 6 & 0x3F
    n += 2
  else:
    word[n] = 0xF0 | point >> 18
    word[n + 1] = 0x80 | point >> 12 & 0x3F
    word[n + 2] = 0x80 | point >> 6 & 0x3F
    n += 3
  word[n] = 0x80 | point & 0x3F
  return n + 1


@numba.njit(nogil=True, cache=True, inline='always')
def _next_word(text, i, points, word, counters):
  """Reads one word from `text[i:]` into `word`.

  Returns its length in bytes (-1: a line end came first, 0: the text's end),
  its hash, and the position after it.
  """
  length = 0
  h = _OFFSET_BASIS
  while i < len(text):
    byte = text[i]
    if byte < 0x80:
      out = points[byte]
      if out != 0:
        if length <= MAX_WORD_BYTES:
          word[length] = np.uint8(out)
          length += 1
          h = (h ^ np.uint64(out)) * _PRIME
      elif length > 0:
        break
      elif byte == 10:
        return -1, h, i + 1
      i += 1
      continue
    point, step = _decode(text, i)
    valid = point >= 0
    if not valid:
      point = _REPLACEMENT
    out = points[point]
    if out == 0 and length > 0:
      break
    if not valid:
      counters[1] += 1
    if out != 0:
      if length <= MAX_WORD_BYTES:
        first = length
        length = _encode(np.int64(out), word, length)
        for j in range(first, length):
          h = (h ^ np.uint64(word[j])) * _PRIME
    i += step
  return length, h, i


@numba.njit(nogil=True, cache=True)
def _known_words(text, i, points, table, word, ids, n, counters):
  """Writes ids up to the first new word, which it leaves in `word`.

  Returns the position after it, the number of ids, its length and hash.
  """
  while i < len(text):
    length, h, i = _next_word(text, i, points, word, counters)
    if length > MAX_WORD_BYTES:
      counters[2] += 1
    elif length > 0:
      entry = find(table, word, 0, length, h)
      if entry < 0:
        return i, n, length, h
      table.counts[entry] += 1
      ids[n] = entry
      n += 1
    elif length < 0 and (n == 0 or ids[n - 1] != END):
      # Also at the start: the line may have begun in the text before.
      ids[n] = END
      n += 1
  return i, n, 0, _OFFSET_BASIS


@numba.njit(nogil=True, cache=True)
def _tokenize(text, table, points, ends_line):
  ids = np.empty(len(text) + 2, np.int32)
  word = np.empty(MAX_WORD_BYTES + 8, np.uint8)
  counters = np.zeros(3, np.int64)
  n = 0
  i = 0
  # The table is only replaced out here: numba would count references to its
  # arrays on every word of the inner loop, at four times the cost.
  while i < len(text):
    i, n, length, h = _known_words(
      text, i, points, table, word, ids, n, counters
    )
    if length > 0:
      table = append(table, word, 0, length, h)
      ids[n] = table.sizes[0] - 1
      table.counts[ids[n]] = 1
      n += 1
  if ends_line and (n == 0 or ids[n - 1] != END):
    ids[n] = END
    n += 1
  counters[0] = table.counts[: table.sizes[0]].sum()
  return ids[:n].copy(), table, counters


def tokenize(
  text: bytes, definition: str, lowercase: bool, ends_line: bool = True
) -> tuple[np.ndarray, WordTable, Counters]:
  """Counts the words of UTF-8 text and writes it as ids, in one pass.

  Returns [num_ids] int32, entries of the table, with `END` after each sentence;
  the table of the text's own words; and what was read and dropped. The text's
  end is a sentence's if it ends a line. Invalid bytes are read as U+FFFD.
  """
  data = np.frombuffer(text, np.uint8)
  points = code_points(definition, lowercase)
  table = empty(1 << 15, 1 << 18)
  ids, table, counts = _tokenize(data, table, points, ends_line)
  return ids, table, Counters(*map(int, counts))
