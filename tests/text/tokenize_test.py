"""Tokenizing against plain Python: str methods, unicodedata, dict, Counter."""

import collections
import itertools
import random
import sys
import unicodedata

import numpy as np
import pytest

from jaxemb.text import tokenize

_END = None
# Where what may follow changes in UTF-8, and two letters.
_EDGES = bytes.fromhex('41 0a 80 8f 90 9f a0 bf c1 c2 e0 e2 ed f0 f4 f5 ff')
_POOLS = [
  'abcXYZ019',
  ' \t\r\n\v\f',
  '\n',
  ' ',
  '\r\n',
  '_-\'".,;:!?()[]/\\@#%&*+=<>|~^`$\0\x01\x1c\x1f\x7f',
  'äÖßéÉñÇøÅæŒſ',
  'ΣσςΑΩώЖжЯёЁ',
  'İıẞ\u212a\u212b\u023a\u01c5\u01c4\u2160\u24b6',
  '\u0301\u0308\u0345\u20dd\ufe0f\u093f\u0902\u094d\u0e31\u05b0\u064b',
  'हिन्दीதமிழ்ไทยעבריתعربي١٢٣',
  '東京大学日本語ひらカタカナ한국어\uac00\u3007\u30fc',
  '🦓🏴😀👩\u200d👩🏽\ufe0f🇩🇪',
  '\xa0\x85\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff\u2060',
  '½²₃Ⅷ①٣๙𝟘𝒜𝔸𐐀𐐨𞤀𞤢',
  '\U00020000\U0003134f\U00033479\U000e0100\U000e01ef\U000e0041\U000f0000'
  '\U0010fffd\U00040000\ufffd\uffff\ue000',
]


def _chars(data):
  """(character, whether it was valid) of UTF-8, byte by byte where it is not.

  Python's strict decoder decides what is valid.
  """
  i = 0
  while i < len(data):
    for length in range(1, 5):
      try:
        char = data[i : i + length].decode()
      except UnicodeDecodeError:
        continue
      yield char, True
      i += length
      break
    else:
      yield '\ufffd', False
      i += 1


def _is_inside(char, definition):
  if definition == 'whitespace':
    return not char.isspace() and char >= ' '
  return char.isalnum() or unicodedata.category(char).startswith('M')


def _lower(char):
  lower = char.lower()
  return lower if len(lower) == 1 else char


def _expected(data, definition, lowercase, ends_line=True):
  """Words as bytes, with `_END` behind each sentence, and the counters."""
  out, word = [], ''
  num_invalid = num_overlong = 0

  def end():
    if not out or out[-1] is not _END:
      out.append(_END)

  for char, is_valid in [*_chars(data), (None, True)]:
    num_invalid += not is_valid
    if char is not None and _is_inside(char, definition):
      word += _lower(char) if lowercase else char
      continue
    if word:
      encoded = word.encode()
      if len(encoded) > 255:
        num_overlong += 1
      else:
        out.append(encoded)
      word = ''
    if char == '\n':
      end()
  if ends_line:
    end()
  num_words = sum(item is not _END for item in out)
  return out, (num_words, num_invalid, num_overlong)


def _entries(words):
  """Words and counts in their order."""
  return [*zip(words.texts(), words.counts.tolist(), strict=True)]


def _words(data, definition='words', lowercase=False, ends_line=True):
  """What `tokenize` makes of a text, its words checked on the way."""
  ids, words, *dropped = tokenize.tokenize(
    data, definition, lowercase, ends_line
  )
  assert ids.dtype == np.int32
  names = [word for word, _ in _entries(words)]
  out = [_END if i == tokenize.END else names[i] for i in ids.tolist()]
  counts = collections.Counter(item for item in out if item is not _END)
  # In the order of first occurrence, each word once.
  assert _entries(words) == list(counts.items())
  return out, (counts.total(), *dropped)


def _random_text(rng, num_parts):
  parts = []
  for _ in range(num_parts):
    kind = rng.random()
    if kind < 0.1:
      parts.append(bytes(rng.choices(_EDGES, k=3)))
    elif kind < 0.2:
      point = rng.randrange(sys.maxunicode + 1)
      if not 0xD800 <= point < 0xE000:
        parts.append(chr(point).encode())
    elif kind < 0.22:
      repeats = rng.randrange(240, 270)
      parts.append(rng.choice('aÄ東🦓').encode() * repeats)
    elif kind < 0.25:
      parts.append(rng.randbytes(rng.randrange(4)))
    else:
      pool = rng.choice(_POOLS)
      parts.append(''.join(rng.choices(pool, k=rng.randrange(5))).encode())
  return b''.join(parts)


@pytest.mark.parametrize('definition', ['words', 'whitespace'])
@pytest.mark.parametrize('lowercase', [False, True])
def test_random_text_as_in_plain_python(definition, lowercase):
  rng = random.Random(f'{definition} {lowercase}')
  for _ in range(150):
    text = _random_text(rng, rng.choice([1, 3, 10, 100, 300]))
    ends_line = rng.random() < 0.5
    expected = _expected(text, definition, lowercase, ends_line)
    assert _words(text, definition, lowercase, ends_line) == expected, text


@pytest.mark.parametrize('definition', ['words', 'whitespace'])
@pytest.mark.parametrize('lowercase', [False, True])
def test_every_kind_of_character(definition, lowercase):
  points = [*range(0x30000), *range(0x30000, sys.maxunicode + 1, 61)]
  points += range(0xE0000, 0xE0200)
  expected = []
  for point in points:
    char = chr(point)
    out = _lower(char) if lowercase else char
    encoded = out.encode(errors='surrogatepass')
    inside = _is_inside(char, definition)
    expected.append(int.from_bytes(encoded, 'little') if inside else 0)
  table = tokenize.code_points(definition, lowercase)
  wrong = np.flatnonzero(table[points] != expected)
  assert not len(wrong), [hex(points[i]) for i in wrong[:10]]


@pytest.mark.parametrize('definition', ['words', 'whitespace'])
def test_invalid_utf8_is_replaced_and_counted(definition):
  tails = [
    bytes(x) for n in range(4) for x in itertools.product(_EDGES, repeat=n)
  ]
  tails += [b'\xf0' + x for x in tails] + [b'\xf4' + x for x in tails]
  text = b' '.join(b'a%sb' % x for x in tails)
  assert _words(text, definition) == _expected(text, definition, False)
  # Cut off anywhere, the text's end is no trap.
  for text in ('aä'.encode(), 'a東'.encode(), 'a🦓'.encode()):
    for stop in range(len(text)):
      expected = _expected(text[:stop], definition, False)
      assert _words(text[:stop], definition) == expected


@pytest.mark.parametrize(
  'text, ends_line, expected',
  [
    (b'', True, '|'),
    (b'', False, ''),
    (b'\n\n\n', False, '|'),
    (b'a b\nc', True, 'ab|c|'),
    (b'a b\nc', False, 'ab|c'),
    (b'\na', True, '|a|'),  # the line may have begun in the piece before
    (b'a\n\n \n.\n\nb\n', True, 'a|b|'),
    (b'a\r\nb\r\n\r\n', True, 'a|b|'),
    ('a\rb\x0cc\u2028d\x85e'.encode(), True, 'abcde|'),
    (b'...', True, '|'),  # the line of the piece before ends here
    (b'...', False, ''),
  ],
)
def test_ends_of_sentences(text, ends_line, expected):
  expected = [_END if c == '|' else c.encode() for c in expected]
  assert _words(text, 'words', False, ends_line)[0] == expected


def test_overlong_words_are_counted_and_dropped():
  for last in ('a', '東', 'a' * 100_000):
    for num_before in range(250, 257):
      text = f'x {"a" * num_before}{last} y'.encode()
      assert _words(text) == _expected(text, 'words', False)
  # What counts is the length as written: in lower case these shrink.
  for lowercase in (False, True):
    text = ('\u212a' * 200).encode()
    assert _words(text, 'words', lowercase)[1][0] == lowercase


# Words of several texts.


def test_words_are_added_up_by_hash():
  rng, texts = random.Random(0), []
  for _ in range(3):
    names = [f'w{rng.randrange(999)}' for _ in range(2000)]
    texts.append(' '.join(names).encode())
  counts = collections.Counter(b' '.join(texts).split())
  parts = [tokenize.tokenize(x, 'words', False)[1] for x in texts]
  words = tokenize.add_up(parts)
  assert dict(_entries(words)) == counts and (np.diff(words.hashes) > 0).all()
  best = words.subset(words.best(3, 50))
  order = sorted(counts, key=lambda word: (-counts[word], word))
  assert best.texts() == [x for x in order if counts[x] >= 3][:50]
  assert _entries(tokenize.add_up([])) == []


def test_hashes_are_even():
  names = [b'w%d' % i for i in range(100_000)]
  _, words, *_ = tokenize.tokenize(b' '.join(names), 'words', False)
  assert words.texts() == names  # although the table grew
  for num_ranges in (2, 7, 256):
    limits = (1 << tokenize.HASH_BITS) // num_ranges * np.arange(num_ranges + 1)
    sizes, _ = np.histogram(words.hashes, limits)
    expected = len(words.hashes) / num_ranges
    assert np.abs(sizes - expected).max() <= 6 * expected**0.5
  assert len(np.unique(words.hashes)) == 100_000
