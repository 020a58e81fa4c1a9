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

A table over code points holds definition and lower-casing: what a code point
does and the UTF-8 to write. A line end closes a sentence, which training
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
from numba.core import compiler_lock, registry

from jaxemb.data import sentences

# Marks the end of a sentence in a sequence of ids.
END = sentences.END

# A "word" longer than this is data (base64, a long URL), not a word.
MAX_WORD_BYTES = 255

HASH_BITS = 62  # ranges of hashes fit int64

# Unicode has no letters, digits, marks or white space elsewhere.
_ASSIGNED = (range(0x40000), range(0xE0000, 0xE0200))

# What a code point does: 32 bits above its UTF-8 in `code_points`.
LETTER = 0  # belongs to a word, as digits do
MARK = 1  # belongs to the word before it, if there is one
JOINER = 2  # belongs to the word on both sides of it
MIDDLE_DOT = 3  # as a joiner between two l, and separates otherwise
IGNORED = 4  # vanishes
SEPARATOR = 5
LINE_END = 6
EMOJI = 7  # a word of its own, or dropped and counted

_LINE_ENDS = '\n\r\x85\u2028\u2029'
_ZWJ = 0x200D
_SMALL_L = ord('l')
# And the vowel separator of Mongolian, and gershayim.
_JOINERS = '\u200c\u200d\u180e\u05f4'
# Punctuation that stands within words: Armenian, Hebrew, letters of Africa.
_MARKS = '\u055a\u055b\u055c\u055e\u05f3\ua789\ua78a'
# Format signs that are seen: signs over numbers, joiners of hieroglyphs.
# Those of tags spell flags, such as that of Wales.
_VISIBLE_FORMATS = (
  range(0x600, 0x606), range(0x6DD, 0x6DE), range(0x70F, 0x710),
  range(0x890, 0x892), range(0x8E2, 0x8E3), range(0x110BD, 0x110CE),
  range(0x13430, 0x13440), range(0xE0020, 0xE0080),
)  # fmt: skip
_FLAGS = 0x1F1E6, 0x1F1FF  # two of these letters are a flag
_SKIN_TONES = 0x1F3FB, 0x1F3FF
# Unicode's Extended_Pictographic and these two, from the arrows on: signs such
# as (c) before them are rarely meant as emoji.
_EMOJI = (
  '2194-2199 21A9-21AA 231A-231B 2328 2388 23CF 23E9-23F3 23F8-23FA 24C2 '
  '25AA-25AB 25B6 25C0 25FB-25FE 2600-2605 2607-2612 2614-2685 2690-2705 '
  '2708-2712 2714 2716 271D 2721 2728 2733-2734 2744 2747 274C 274E 2753-2755 '
  '2757 2763-2767 2795-2797 27A1 27B0 27BF 2934-2935 2B05-2B07 2B1B-2B1C 2B50 '
  '2B55 3030 303D 3297 3299 1F000-1F0FF 1F10D-1F10F 1F12F 1F16C-1F171 '
  '1F17E-1F17F 1F18E 1F191-1F19A 1F1AD-1F20F 1F21A 1F22F 1F232-1F23A '
  '1F23C-1F23F 1F249-1F53D 1F546-1F64F 1F680-1F6FF 1F774-1F77F 1F7D5-1F7FF '
  '1F80C-1F80F 1F848-1F84F 1F85A-1F85F 1F888-1F88F 1F8AE-1F8FF 1F90C-1F93A '
  '1F93C-1F945 1F947-1FAFF 1FC00-1FFFD'
)

# A longer word is not written to its end. A joiner fits behind the longest one.
_MAX_WRITTEN_BYTES = MAX_WORD_BYTES + 4

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


@functools.cache
def code_points(definition: str, lowercase: bool) -> np.ndarray:
  """Returns a table of what each code point does and what to write for it.

  It is [num_code_points + 1] int64: `LETTER` to `EMOJI` above 32 bits of UTF-8
  with the first byte lowest, 0 for what is not written. The last one, [-1], is
  of U+FFFD, which replaces an invalid byte.
  """
  table = np.full(sys.maxunicode + 2, SEPARATOR << 32, np.int64)
  kind_of = _kind_of_word
  if definition == 'whitespace':
    kind_of = _kind_of_token
    rest = ''.join(map(chr, range(0x40000, sys.maxunicode + 1))).encode()
    table[0x40000:-1] = np.frombuffer(rest, '<u4')
  for point in itertools.chain(*_ASSIGNED):
    char = chr(point)
    kind, utf8 = kind_of(char), b''
    if kind <= MIDDLE_DOT:
      lower = char.lower() if lowercase else char
      # A few capitals, such as 'İ', have a lower case of two code points.
      out = lower if len(lower) == 1 else char
      utf8 = out.encode(errors='surrogatepass')
    table[point] = kind << 32 | int.from_bytes(utf8, 'little')
  if definition != 'whitespace':
    for first, _, last in (x.partition('-') for x in _EMOJI.split()):
      table[int(first, 16) : int(last or first, 16) + 1] = EMOJI << 32
  table[-1] = table[0xFFFD]
  return table


def _kind_of_token(char: str) -> int:
  """Returns what a character does where white space separates."""
  if char in _LINE_ENDS:
    return LINE_END
  return SEPARATOR if char.isspace() or char < ' ' else LETTER


def _kind_of_word(char: str) -> int:
  """Returns what a character does in words, as far as it is no emoji."""
  if char.isalnum():
    return LETTER
  if char in _LINE_ENDS:
    return LINE_END
  if char in _JOINERS:
    return JOINER
  if char == '\xb7':
    return MIDDLE_DOT
  category = unicodedata.category(char)
  # Marks carry vowels in Indic scripts and accents in decomposed text.
  if category[0] == 'M' or char in _MARKS:
    return MARK
  if category != 'Cf' or char == '\u200b':  # the space of zero width
    return SEPARATOR
  return MARK if any(ord(char) in x for x in _VISIBLE_FORMATS) else IGNORED


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
  is_half = _FLAGS[0] <= point <= _FLAGS[1]
  end, is_joined = i + length, False
  while end < len(text) and text[end] >= 0x80:
    point, length = _decode(text, end)
    kind = points[point] >> 32
    is_emoji = kind == EMOJI
    is_tone = _SKIN_TONES[0] <= point <= _SKIN_TONES[1]
    is_flag = _FLAGS[0] <= point <= _FLAGS[1]
    if is_emoji and not (is_tone or is_joined or (is_half and is_flag)):
      break
    if point == _ZWJ:
      # Belongs to it only before another emoji.
      after = np.int64(-1)
      if end + length < len(text) and text[end + length] >= 0x80:
        after, _ = _decode(text, end + length)
      if points[after] >> 32 != EMOJI:
        break
    elif not (is_emoji or kind == MARK):
      break
    is_joined, is_half = point == _ZWJ, is_half and not is_emoji
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
  if kind == MARK or point == _ZWJ and i == signs[0]:
    # Behind a virama a joiner makes a letter, also at the end of a word.
    signs[0] = end
    return True
  if kind == JOINER and i != signs[1]:
    signs[1], signs[2] = end, length
    return True
  # Of several joiners in a row the first stays.
  for j in range(2):
    if signs[j] == i:
      signs[j] = end
  return False


@numba.njit(**_INNER)
def _is_between_l(text, i):
  """Whether the same l is on both sides of a middle dot."""
  is_between = 0 < i < len(text) - 2 and text[i - 1] == text[i + 2]
  return is_between and text[i - 1] | 32 == _SMALL_L


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
def _find(slots, hashes, h):
  """Returns the slot of a word, empty if it is new, and its mixed hash."""
  # FNV mixes low bits badly, and the first letter of a word its high bits.
  hashed = np.int64(((h ^ (h >> np.uint64(32))) * _MIX) >> np.uint64(2))
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
    if kind == MIDDLE_DOT:
      kind = JOINER if _is_between_l(text, i) else SEPARATOR
    if kind < SEPARATOR:
      if kind != LETTER:
        out *= _is_written((kind, point, step), i, length, signs)
      length, h = _append(out, arena, first, length, h)
      i += step
      continue
    if i == signs[1] and length > 0:  # the joiner at its end goes
      length, h = signs[2], _hash(arena, first, first + signs[2])
    if kind == EMOJI and length > 0:
      step = 0  # the word before it ends first
    elif kind == EMOJI:
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
      ids[n] = entry
      n += 1
    length, h = 0, _FNV_BASIS
    if kind == LINE_END and _ends(text, i, point, ids, n, every_line):
      ids[n] = END
      n += 1
    i += step
  return i, n


def prepare(definition: str, lowercase: bool) -> None:
  """Makes ready what `tokenize` begins with, half a second of work.

  That is numba, which loads or compiles functions, and the table.
  """
  with compiler_lock.global_compiler_lock:  # other threads may compile
    registry.cpu_target.target_context.refresh()
  code_points(definition.removesuffix('+emoji'), lowercase)


def compile() -> None:
  """Compiles what `tokenize` calls."""
  spaces = np.full(128, SEPARATOR << 32)  # for a table, which takes a while
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
    points=code_points(definition.removesuffix('+emoji'), lowercase),
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
