"""Tokenizer: one compiled pass from UTF-8 text to words, counts and ids.

Two definitions of a word (`config.data.tokens`):

  'words'       a run of letters, digits and marks of any script; everything
                else separates. "don't" is two words, "naïve" one.
  'whitespace'  a run without white space, for text that is already tokenized.

A table over code points holds definition and lower-casing: 0 separates, any
other entry is the UTF-8 to write. A line end closes a sentence, which training
windows never cross, and is written as `END`. All loops over bytes are compiled
with numba and release the interpreter lock.

A word is known by 62 bits of its hash: of 10 million different ones two are
taken for one with a probability of 1e-5.
"""

import functools
import itertools
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numba
import numpy as np

from jaxemb.data import blocks as blocks_lib

# Marks the end of a sentence in a sequence of ids.
END = blocks_lib.END

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
    """Returns a function from the index of a word to its UTF-8."""
    starts, text = self.starts, self.arena.tobytes()
    return lambda i: text[starts[i] : starts[i + 1]]

  def texts(self) -> list[bytes]:
    """Returns all words, as UTF-8."""
    return list(map(self.reader(), range(len(self.counts))))

  def subset(self, numbers: np.ndarray) -> 'Words':
    """Returns the words at these indices, in their order."""
    lengths = np.diff(self.starts)[numbers]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    shifts = np.repeat(self.starts[numbers] - starts[:-1], lengths)
    arena = self.arena[np.arange(len(shifts)) + shifts]
    return Words(
      hashes=self.hashes[numbers],
      counts=self.counts[numbers],
      starts=starts,
      arena=arena,
    )

  def best(self, min_count: int, max_vocab: int) -> np.ndarray:
    """Returns indices of the words that occur `min_count` times, by count.

    They are [num_chosen] int64, the most frequent first, at most `max_vocab`
    (0 = all). Ties are sorted by their UTF-8, so that nothing depends on how
    the work was divided.
    """
    order = np.flatnonzero(self.counts >= min_count)
    order = order[np.argsort(-self.counts[order], kind='stable')]
    # Ties are sorted count by count, to make few words Python objects.
    is_last = np.diff(self.counts[order], append=-1) != 0
    word, start = self.reader(), 0
    for stop in np.flatnonzero(is_last) + 1:
      order[start:stop] = sorted(order[start:stop].tolist(), key=word)
      start = stop
      if max_vocab and stop >= max_vocab:
        return order[:max_vocab]
    return order


_NONE = Words(
  hashes=np.zeros(0, np.int64),
  counts=np.zeros(0, np.int64),
  starts=np.zeros(1, np.int64),
  arena=np.zeros(0, np.uint8),
)


class _Table(NamedTuple):
  """Growing hash table from words to entries, in order of first occurrence.

  Open addressing with linear probing; the arrays of `Words` with room to grow.
  """

  slots: np.ndarray  # [num_slots] int32, entry or -1; length a power of two
  hashes: np.ndarray
  counts: np.ndarray
  starts: np.ndarray
  arena: np.ndarray
  size: np.ndarray  # [1] int64, the number of words

  def words(self) -> Words:
    """Returns the words by entry, without a copy."""
    n = int(self.size[0])
    return Words(
      hashes=self.hashes[:n],
      counts=self.counts[:n],
      starts=self.starts[: n + 1],
      arena=self.arena[: self.starts[n]],
    )


def _empty(max_words: int, max_bytes: int) -> _Table:
  """Returns an empty table with room for `max_words`, a power of two."""
  return _Table(
    slots=np.full(2 * max_words, -1, np.int32),
    hashes=np.empty(max_words, np.int64),
    counts=np.empty(max_words, np.int64),
    starts=np.zeros(max_words + 1, np.int64),
    arena=np.empty(max_bytes, np.uint8),
    size=np.zeros(1, np.int64),
  )


# Compiled functions are few and use loops: an assignment to a slice takes numba
# two seconds to compile. Tables grow outside of them.


@numba.njit(nogil=True)
def _finished(h):
  # FNV mixes low bits badly, and the first letter of a word its high bits.
  return np.int64(((h ^ (h >> np.uint64(32))) * _MIX) >> np.uint64(2))


@numba.njit(nogil=True)
def _find(slots, hashes, hashed):
  """Returns the slot of the word with a hash, empty if it is new."""
  slot = (hashed >> 16) & (len(slots) - 1)
  while slots[slot] >= 0 and hashes[slots[slot]] != hashed:
    slot = (slot + 1) & (len(slots) - 1)
  return slot


@numba.njit(nogil=True, cache=True)
def _place(hashes, slots):
  """Fills the empty slots of a table."""
  for entry in range(len(hashes)):
    slots[_find(slots, hashes, hashes[entry])] = entry


def _grown(table: _Table) -> _Table:
  """Returns a copy with room for twice the words and text, and a long word."""
  words, n = table.words(), table.size[0]
  out = _empty(2 * len(table.hashes), 2 * len(table.arena) + MAX_WORD_BYTES + 1)
  out.hashes[:n], out.counts[:n], out.starts[: n + 1] = words[:3]
  out.arena[: len(words.arena)] = words.arena
  out.size[0] = n
  _place(words.hashes, out.slots)
  return out


def concatenated(parts: Iterable[Words]) -> Words:
  """Returns the words of all parts in a row."""
  parts = [_NONE, *parts]
  lengths = np.concatenate([np.diff(x.starts) for x in parts])
  return Words(
    hashes=np.concatenate([x.hashes for x in parts]),
    counts=np.concatenate([x.counts for x in parts]),
    starts=np.append(0, np.cumsum(lengths)),
    arena=np.concatenate([x.arena[x.starts[0] : x.starts[-1]] for x in parts]),
  )


def add_up(parts: Iterable[Words]) -> Words:
  """Returns the different words of all parts, sorted by hash."""
  words = concatenated(parts)
  order = np.argsort(words.hashes, kind='stable')  # merges what is sorted
  firsts = np.flatnonzero(np.diff(words.hashes[order], prepend=-1))
  counts = np.add.reduceat(words.counts[order], firsts)
  return words.subset(order[firsts])._replace(counts=counts)


@functools.cache
def code_points(definition: str, lowercase: bool) -> np.ndarray:
  """Returns a table of what to write for each code point.

  It is [num_code_points + 1] uint32: 0 separates words, other entries are UTF-8
  with the first byte lowest. The last one, [-1], is of U+FFFD, which replaces
  an invalid byte.
  """
  table = np.zeros(sys.maxunicode + 2, np.uint32)
  if definition == 'whitespace':
    rest = ''.join(map(chr, range(0x40000, sys.maxunicode + 1))).encode()
    table[0x40000:-1] = np.frombuffer(rest, '<u4')
  for point in itertools.chain(*_ASSIGNED):
    char = chr(point)
    if definition == 'whitespace':
      inside = not (char.isspace() or point < 32)
    else:
      # Marks carry vowels in Indic scripts and accents in decomposed text.
      inside = char.isalnum() or unicodedata.category(char)[0] == 'M'
    if inside:
      lower = char.lower() if lowercase else char
      # A few capitals, such as 'İ', have a lower case of two code points.
      out = lower if len(lower) == 1 else char
      table[point] = int.from_bytes(
        out.encode(errors='surrogatepass'), 'little'
      )
  table[-1] = table[0xFFFD]
  return table


@numba.njit(nogil=True)
def _decode(text, i):
  """Returns a code point and its number of bytes; (-1, 1) if invalid."""
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
def _read(text, i, points, table, ids, n, dropped):
  """Writes ids at `ids[n:]` from position `i` on, while the table has room.

  Returns the position reached, which is between words, and the new n.
  """
  slots, hashes, counts, starts, arena, size = table
  # A word is written to the end of the arena, where it stays if it is new.
  length, h, first = 0, _FNV_BASIS, starts[size[0]]
  has_room = size[0] < len(hashes) and first + MAX_WORD_BYTES < len(arena)
  while has_room and i <= len(text):
    # The end of the text ends a word like white space.
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
        hashed = _finished(h)
        slot = _find(slots, hashes, hashed)
        entry = np.int64(slots[slot])
        if entry < 0:
          entry = size[0]
          slots[slot], hashes[entry], counts[entry] = entry, hashed, 0
          first += length
          starts[entry + 1], size[0] = first, entry + 1
          has_room = size[0] < len(hashes)
          has_room &= first + MAX_WORD_BYTES < len(arena)
        counts[entry] += 1
        ids[n] = entry
        n += 1
      length, h = 0, _FNV_BASIS
      # Also at the start, as the line may begin in the piece before.
      if point == 10 and (n == 0 or ids[n - 1] != END):
        ids[n] = END
        n += 1
    while out != 0:
      if length <= MAX_WORD_BYTES:
        arena[first + length] = out & 0xFF
        length += 1
        h = (h ^ np.uint64(out & 0xFF)) * _FNV_PRIME
      out >>= 8
    dropped[0] += point < 0
    i += step
  return i, n


def tokenize(
  text: bytes, definition: str, lowercase: bool, ends_line: bool = True
) -> tuple[np.ndarray, Words, int, int]:
  """Counts the words of UTF-8 text and writes it as ids, in one pass.

  Returns [num_ids] int32, indices into the words of the text, with `END` after
  each sentence; these words; the number of invalid bytes, read as U+FFFD; and
  the number of words longer than `MAX_WORD_BYTES`, which are dropped. The end
  of the text ends a sentence only if `ends_line`.
  """
  data = np.frombuffer(text, np.uint8)
  points = code_points(definition, lowercase)
  ids, dropped = np.empty(len(data) + 2, np.int32), np.zeros(2, np.int64)
  table, i, n = _empty(1 << 15, 1 << 18), 0, 0
  while i <= len(data):
    i, n = _read(data, i, points, table=table, ids=ids, n=n, dropped=dropped)
    if i <= len(data):
      table = _grown(table)
  if ends_line and (n == 0 or ids[n - 1] != END):
    ids[n] = END
    n += 1
  return ids[:n].copy(), table.words(), *dropped.tolist()
