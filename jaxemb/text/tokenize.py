"""Tokenizer: one compiled pass from UTF-8 text to words, counts and ids.

Three definitions of a word (`config.data.tokens`):

  'words'        a letter or digit of any script, and the letters, digits, marks
                 and format signs behind it; everything else separates. "don't"
                 is two words, "naïve" one, as is Persian with its joiners.
  'words+emoji'  the same, and each emoji with its modifiers is a word.
  'whitespace'   a run without white space, for text that is already tokenized.

'words' follows UAX 29 but for apostrophes and signs in numbers, which separate:
format signs are part of the word around them (WB4), marks need a letter before
them, and Hebrew gershayim and the dot of Catalan's "l·l" join letters (WB6). Of
format signs only those are written that spelling depends on, so that a word
with and without a soft hyphen or a direction mark is the same.

A table over code points (`ops.characters`) holds definition and lower-casing:
what a code point does and the UTF-8 to write. A line end closes a sentence,
which training windows never cross, and is written as `END`. All loops over
bytes are compiled with numba and release the interpreter lock.

A word is known by 62 bits of its hash: of 10 million different ones two are
taken for one with a probability of 1e-5.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numba
import numpy as np
from numba.core import compiler_lock, registry

from jaxemb.data import sentences
from jaxemb.ops import characters

# Marks the end of a sentence in a sequence of ids.
END = sentences.END

# A "word" longer than this is data (base64, a long URL), not a word.
MAX_WORD_BYTES = 255

HASH_BITS = 62  # ranges of hashes fit int64

# A longer word is not written to its end. A joiner fits behind the longest one.
_MAX_WRITTEN_BYTES = MAX_WORD_BYTES + 4

_FNV_BASIS = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SMALL_L = ord('l')


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
    for stop in (np.flatnonzero(is_last) + 1).tolist():
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


def _placed(hashes: np.ndarray, num_slots: int) -> np.ndarray:
  """Returns the slots of a table that holds words with these hashes."""
  slots = np.full(num_slots, -1, np.int32)
  entries = np.arange(len(hashes), dtype=np.int32)
  places = (hashes >> 16) & (num_slots - 1)
  while len(entries):
    is_free = slots[places] < 0
    slots[places[is_free]] = entries[is_free]
    is_left = slots[places] != entries
    entries, places = entries[is_left], (places[is_left] + 1) & (num_slots - 1)
  return slots


def _grown(table: _Table) -> _Table:
  """Returns a copy with room for twice the words and text, and a long word."""
  words, n = table.words(), table.size[0]
  out = _empty(2 * len(table.hashes), 2 * len(table.arena) + _MAX_WRITTEN_BYTES)
  out.hashes[:n], out.counts[:n], out.starts[: n + 1] = words[:3]
  out.arena[: len(words.arena)] = words.arena
  out.size[0] = n
  return out._replace(slots=_placed(words.hashes, len(out.slots)))


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


# Numba takes a second to compile what slices arrays or calls many functions:
# these are few and use loops. Tables grow outside of them. Python calls one.
_INNER = {'nogil': True, 'no_cpython_wrapper': True, 'no_cfunc_wrapper': True}


@numba.njit(**_INNER)
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


@numba.njit(**_INNER)
def _emoji_bytes(text, i, points):
  """Returns the number of bytes of the emoji at `i`.

  As in UAX 29, marks, skin tones and tags belong to it, and other emoji behind
  a joiner; two letters of a flag are one.
  """
  point, length = _decode(text, i)
  is_half = characters.FLAGS[0] <= point <= characters.FLAGS[1]
  end, is_joined = i + length, False
  while end < len(text) and text[end] >= 0x80:
    point, length = _decode(text, end)
    kind = points[point] >> 32
    is_emoji = kind == characters.EMOJI
    is_tone = characters.SKIN_TONES[0] <= point <= characters.SKIN_TONES[1]
    is_flag = characters.FLAGS[0] <= point <= characters.FLAGS[1]
    if is_emoji and not (is_tone or is_joined or (is_half and is_flag)):
      break
    if point == characters.ZWJ:
      # Belongs to it only before another emoji.
      after = np.int64(-1)
      if end + length < len(text) and text[end + length] >= 0x80:
        after, _ = _decode(text, end + length)
      if points[after] >> 32 != characters.EMOJI:
        break
    elif not (is_emoji or kind == characters.MARK):
      break
    is_joined, is_half = point == characters.ZWJ, is_half and not is_emoji
    end += length
  return end - i


@numba.njit(**_INNER)
def _is_written(char, i, length, signs):
  """Whether a mark, joiner or ignored sign at `i` is part of a word.

  `signs` are positions behind the last mark and joiner, and the length of the
  word before that joiner, which goes if the joiner ends the word.
  """
  kind, point, step = char
  end = i + step
  if length == 0:
    return False
  if kind == characters.MARK or point == characters.ZWJ and i == signs[0]:
    # Behind a virama a joiner makes a letter, also at the end of a word.
    signs[0] = end
    return True
  if kind == characters.JOINER and i != signs[1]:
    signs[1], signs[2] = end, length
    return True
  # Of several joiners in a row the first stays.
  for j in range(2):
    if signs[j] == i:
      signs[j] = end
  return False


@numba.njit(**_INNER)
def _kind_of_dot(text, i):
  """Returns what a middle dot does: it joins two l, and separates otherwise."""
  is_between = 0 < i < len(text) - 2 and text[i - 1] == text[i + 2]
  if is_between and text[i - 1] | 32 == _SMALL_L:
    return characters.JOINER
  return characters.SEPARATOR


@numba.njit(**_INNER)
def _append(out, arena, first, length, h):
  """Writes a character behind a word; returns the new length and hash."""
  while out != 0:
    if length < _MAX_WRITTEN_BYTES:
      arena[first + length] = out & 0xFF
      length += 1
      h = (h ^ np.uint64(out & 0xFF)) * _FNV_PRIME
    out >>= 8
  return length, h


@numba.njit(**_INNER)
def _hash(arena, first, stop):
  h = _FNV_BASIS
  for i in range(first, stop):
    h = (h ^ np.uint64(arena[i])) * _FNV_PRIME
  return h


@numba.njit(**_INNER)
def _mixed(h):
  # FNV mixes low bits badly, and the first letter of a word its high bits.
  return np.int64(((h ^ (h >> np.uint64(32))) * _MIX) >> np.uint64(2))


@numba.njit(**_INNER)
def _find(slots, hashes, h):
  """Returns the slot of a word, empty if it is new, and its mixed hash."""
  hashed = _mixed(h)
  slot = (hashed >> 16) & (len(slots) - 1)
  while slots[slot] >= 0 and hashes[slots[slot]] != hashed:
    slot = (slot + 1) & (len(slots) - 1)
  return slot, hashed


@numba.njit(**_INNER)
def _ends(text, i, point, ids, n, every_line):
  """Whether a line end at `i` is written as `END`.

  Of `every_line` it is, also of an empty one: LF, CR or both together.
  """
  if not every_line:
    # At the start, too: the line may begin in the piece before.
    return n == 0 or ids[n - 1] != END
  is_first_of_two = point == 13 and i + 1 < len(text) and text[i + 1] == 10
  return point == 10 or (point == 13 and not is_first_of_two)


@numba.njit(nogil=True, cache=True)
def _read(text, i, points, table, ids, n, signs, dropped, flags):
  """Writes ids at `ids[n:]` from position `i` on, while the table has room.

  `flags` are whether emoji are words, and whether every line has an end.
  Returns the position reached, between words, and the new n. Counts what is
  `dropped`: invalid bytes, overlong words, emoji.
  """
  has_emoji, every_line = flags
  slots, hashes, counts, starts, arena, size = table
  # A word is written to the end of the arena, where it stays if it is new.
  length, h, first = np.int64(0), _FNV_BASIS, starts[size[0]]
  has_room, max_first = True, len(arena) - _MAX_WRITTEN_BYTES
  while has_room and i <= len(text):
    # The end of the text ends a word like white space.
    point, step = np.int64(text[i]) if i < len(text) else 32, 1
    if point >= 0x80:
      point, step = _decode(text, i)
      dropped[0] += point < 0
    kind, out = points[point] >> 32, points[point] & 0xFFFFFFFF
    # Letters and digits of ASCII, in a quicker way than below.
    if 0 < points[point] < 0x80 and length < _MAX_WRITTEN_BYTES:
      arena[first + length] = out
      length, i = length + 1, i + step
      h = (h ^ np.uint64(out)) * _FNV_PRIME
      continue
    if kind == characters.MIDDLE_DOT:
      kind = _kind_of_dot(text, i)
    if kind < characters.SEPARATOR:
      if kind != characters.LETTER:
        out *= _is_written((kind, point, step), i, length, signs)
      length, h = _append(out, arena, first, length, h)
      i += step
      continue
    if i == signs[1] and length > 0:  # the joiner at its end goes
      length, h = signs[2], _hash(arena, first, first + signs[2])
    if kind == characters.EMOJI and length > 0:
      step = 0  # the word before it ends first
    elif kind == characters.EMOJI:
      step = _emoji_bytes(text, i, points)
      dropped[2] += not has_emoji
      for j in range(i, i + step * has_emoji):
        length, h = _append(np.int64(text[j]), arena, first, length, h)
    dropped[1] += length > MAX_WORD_BYTES
    if 0 < length <= MAX_WORD_BYTES:
      slot, hashed = _find(slots, hashes, h)
      entry = slots[slot]
      if entry < 0:
        slots[slot] = entry = size[0]
        hashes[entry], counts[entry], size[0] = hashed, 0, entry + 1
        starts[entry + 1] = first = first + length
        has_room = first <= max_first and size[0] < len(hashes)
      counts[entry] += 1
      ids[n], n = entry, n + 1
    length, h = 0, _FNV_BASIS
    is_end = kind == characters.LINE_END
    if is_end and _ends(text, i, point, ids, n, every_line):
      ids[n], n = END, n + 1
    i += step
  return i, n


@numba.njit(nogil=True, cache=True)
def _write_hashes(starts, arena, hashes):
  for i in range(len(hashes)):
    hashes[i] = _mixed(_hash(arena, starts[i], starts[i + 1]))


def words_of(texts: Sequence[bytes]) -> Words:
  """Returns words in UTF-8, in this order, that occur once each."""
  starts = np.zeros(len(texts) + 1, np.int64)
  np.cumsum(np.array([len(x) for x in texts], np.int64), out=starts[1:])
  arena = np.frombuffer(b''.join(texts), np.uint8)
  hashes = np.empty(len(texts), np.int64)
  _write_hashes(starts, arena, hashes)
  counts = np.ones(len(texts), np.int64)
  return Words(hashes=hashes, counts=counts, starts=starts, arena=arena)


def prepare(definition: str, lowercase: bool) -> None:
  """Makes ready what `tokenize` begins with, half a second of work.

  That is numba, which loads or compiles functions, and the table.
  """
  with compiler_lock.global_compiler_lock:  # other threads may compile
    registry.cpu_target.target_context.refresh()
  characters.code_points(definition.removesuffix('+emoji'), lowercase)


def compile() -> None:
  """Compiles what `tokenize` calls."""
  # In place of the table, which takes a while.
  spaces = np.full(128, characters.SEPARATOR << 32)
  _tokenized(b'', points=spaces, flags=(False, False), ends_line=True)


def tokenize(
  text: bytes,
  definition: str,
  lowercase: bool,
  ends_line: bool = True,
  every_line: bool = False,
) -> tuple[np.ndarray, Words, int, int, int]:
  """Counts the words of UTF-8 text and writes it as ids, in one pass.

  Returns [num_ids] int32, indices into the words of the text, with `END` after
  each sentence; these words; the number of invalid bytes, read as U+FFFD; the
  number of words longer than `MAX_WORD_BYTES`, which are dropped; and that of
  emoji that are dropped. The end of the text ends a sentence only if
  `ends_line`. If `every_line`, one without words has its `END` as well, and
  other line ends than LF and CR end none.
  """
  return _tokenized(
    text,
    points=characters.code_points(definition.removesuffix('+emoji'), lowercase),
    flags=(definition.endswith('+emoji'), every_line),
    ends_line=ends_line,
  )


def _tokenized(text, points, flags, ends_line):
  data = np.frombuffer(text, np.uint8)
  ids, table = np.empty(len(data) + 2, np.int32), _empty(1 << 15, 1 << 18)
  signs, dropped = np.full(3, -1), np.zeros(3, np.int64)
  i = n = 0
  while i <= len(data):
    i, n = _read(data, i, points, table, ids, n, signs, dropped, flags)
    if i <= len(data):
      table = _grown(table)
  is_open = n == 0 or ids[n - 1] != END
  if flags[1]:  # the last line may have no word
    is_open = text[-1:] not in (b'', b'\n', b'\r')
  if ends_line and is_open:
    ids[n] = END
    n += 1
  return ids[:n].copy(), table.words(), *dropped.tolist()
