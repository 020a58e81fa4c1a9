"""What code points do in the words of a text, for tokenizers.

The three definitions of a word are those of `config.data.tokens`
(`text.tokenize`).
"""

import functools
import itertools
import sys
import unicodedata

import numpy as np

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
ZWJ = 0x200D
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
FLAGS = 0x1F1E6, 0x1F1FF  # two of these letters are a flag
SKIN_TONES = 0x1F3FB, 0x1F3FF
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
