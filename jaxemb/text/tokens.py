"""From UTF-8 text to words: one compiled pass over the bytes.

Two definitions of a word (`config.data.tokens`):

  'words'       a run of letters, digits and marks of any script; everything
                else separates. "don't" is two words, "naïve" one.
  'whitespace'  a run without white space: text that was tokenized before.

A table over code points holds both definitions and the lower-casing: entry 0
is a separator, any other entry is the code point to write. A line end closes a
sentence, which training windows never cross; it is written as `END`.
"""

import functools
import itertools
import sys
import unicodedata
from typing import NamedTuple

import numba
import numpy as np

from jaxemb.text import word_table

# Marks the end of a sentence in a sequence of ids.
END = -1

# A "word" longer than this is data (base64, a long URL), not a word.
MAX_WORD_BYTES = 255

# Unicode has no letters, digits or marks elsewhere, nor white space.
_ASSIGNED = (range(0x40000), range(0xE0000, 0xE0200))
_REPLACEMENT = 0xFFFD

DEFINITIONS = ('words', 'whitespace')


class Counters(NamedTuple):
  """What one call of `tokenize` saw and dropped."""

  num_words: int
  invalid_bytes: int  # not UTF-8, replaced by U+FFFD
  overlong_words: int  # longer than MAX_WORD_BYTES, dropped


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
  """Code point at `i` and its length in bytes; (-1, 1) where invalid."""
  b = np.int64(text[i])
  if b < 0x80:
    return b, 1
  if 0xC2 <= b < 0xE0:
    length = 2
    point = b & 0x1F
  elif 0xE0 <= b < 0xF0:
    length = 3
    point = b & 0x0F
  elif 0xF0 <= b < 0xF5:
    length = 4
    point = b & 0x07
  else:
    return np.int64(-1), 1
  if i + length > len(text):
    return np.int64(-1), 1
  for j in range(1, length):
    c = np.int64(text[i + j])
    if c & 0xC0 != 0x80:
      return np.int64(-1), 1
    point = (point << 6) | (c & 0x3F)
  if length == 3 and (point < 0x800 or 0xD800 <= point < 0xE000):
    return np.int64(-1), 1
  if length == 4 and (point < 0x10000 or point > 0x10FFFF):
    return np.int64(-1), 1
  return point, length


@numba.njit(nogil=True, cache=True)
def _encode(point, word, n):
  """Writes a code point as UTF-8 at `word[n:]`; the new length."""
  if point < 0x80:
    word[n] = point
    return n + 1
  if point < 0x800:
    word[n] = 0xC0 | (point >> 6)
    word[n + 1] = 0x80 | (point & 0x3F)
    return n + 2
  if point < 0x10000:
    word[n] = 0xE0 | (point >> 12)
    word[n + 1] = 0x80 | ((point >> 6) & 0x3F)
    word[n + 2] = 0x80 | (point & 0x3F)
    return n + 3
  word[n] = 0xF0 | (point >> 18)
  word[n + 1] = 0x80 | ((point >> 12) & 0x3F)
  word[n + 2] = 0x80 | ((point >> 6) & 0x3F)
  word[n + 3] = 0x80 | (point & 0x3F)
  return n + 4


@numba.njit(nogil=True, cache=True, inline='always')
def _next_word(text, i, points, word, counters):
  """Reads one word from `text[i:]` into `word`.

  Returns its length in bytes (-1: a line end came first, 0: the text's end),
  its hash, and the position behind it.
  """
  length = 0
  h = word_table.OFFSET_BASIS
  while i < len(text):
    byte = text[i]
    if byte < 0x80:
      out = points[byte]
      if out != 0:
        if length <= MAX_WORD_BYTES:
          word[length] = np.uint8(out)
          length += 1
          h = (h ^ np.uint64(out)) * word_table.PRIME
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
          h = (h ^ np.uint64(word[j])) * word_table.PRIME
    i += step
  return length, h, i


@numba.njit(nogil=True, cache=True)
def _known_words(text, i, points, table, word, ids, n, counters):
  """Writes ids until a new word comes, which is left in `word`.

  Returns the position behind it, the number of ids, its length and hash.
  """
  while i < len(text):
    length, h, i = _next_word(text, i, points, word, counters)
    if length > MAX_WORD_BYTES:
      counters[2] += 1
    elif length > 0:
      entry = word_table.find(table, word, 0, length, h)
      if entry < 0:
        return i, n, length, h
      table.counts[entry] += 1
      ids[n] = entry
      n += 1
    elif length < 0 and (n == 0 or ids[n - 1] != END):
      # Also at the start: the line may have begun in the text before.
      ids[n] = END
      n += 1
  return i, n, 0, word_table.OFFSET_BASIS


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
      table = word_table.append(table, word, 0, length, h)
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
) -> tuple[np.ndarray, word_table.WordTable, Counters]:
  """Counts and numbers the words of a text, in one pass.

  Args:
    text: UTF-8; invalid bytes count as U+FFFD and are counted.
    definition: one of `DEFINITIONS`.
    lowercase: whether words are lower-cased.
    ends_line: whether the text's end is the end of a sentence.

  Returns:
    ids: [num_ids] int32, entries of the table in text order, with `END` after
      each sentence.
    table: the text's own words with their counts.
    counters: what was seen and dropped.
  """
  points = code_points(definition, lowercase)
  table = word_table.empty(1 << 12, 1 << 15)
  ids, table, counts = _tokenize(
    np.frombuffer(text, np.uint8), table, points, ends_line
  )
  return ids, table, Counters(*map(int, counts))
