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
  for last in ('a', 'ä', '東', '𐐀', 'a' * 100_000):
    for num_before in range(250, 257):
      text = f'x {"a" * num_before}{last} y'.encode()
      assert _words(text) == _expected(text, 'words', False)
  # What counts is the length as written: in lower case these grow and shrink.
  for text, num_words in (('Ⱥ' * 127, (1, 0)), ('\u212a' * 200, (0, 1))):
    for lowercase in (False, True):
      counters = _words(text.encode(), 'words', lowercase)[1]
      assert counters[0] == num_words[lowercase]
  assert _words(b'\xff' * 85, 'whitespace')[1] == (1, 85, 0)
  assert _words(b'\xff' * 86, 'whitespace')[1] == (0, 86, 1)


# The hash table.


def _of(counts):
  """Words of {word: count}."""
  return tokenize.from_counts([*counts], np.array([*counts.values()], int))


def _random_words(rng, num_words):
  return [
    bytes(rng.choices(b'ab\xc3\xa4\x00\xff', k=rng.randint(1, 12)))
    for _ in range(num_words)
  ]


@pytest.mark.parametrize('max_words, max_bytes', [(1, 1), (1, 99), (4096, 1)])
@pytest.mark.parametrize('has_one_hash', [False, True])
def test_growing_table_counts_like_counter(max_words, max_bytes, has_one_hash):
  rng = random.Random(max_words)

  def words_of(counts):
    # Words of the same hash are told apart by their bytes.
    words = _of(counts)
    hashes = np.full_like(words.hashes, 7) if has_one_hash else words.hashes
    return words._replace(hashes=hashes)

  expected = collections.Counter()
  table = tokenize.empty(max_words, max_bytes)
  for num_words in (1, 2, 30, 300 if has_one_hash else 3000, 500):
    counts = collections.Counter(_random_words(rng, num_words))
    # Counter keeps the order of first occurrence, as the table should.
    expected.update(counts)
    table = tokenize.merge(table, words_of(counts))
    assert _entries(table.words()) == list(expected.items())
  asked = {*expected, *_random_words(rng, 300), *(b'\0' * n for n in range(4))}
  rows = {word: i for i, word in enumerate(expected)}
  found = tokenize.lookup(table, words_of(dict.fromkeys(asked, 0)))
  assert found.tolist() == [rows.get(word, -1) for word in asked]
  assert len(tokenize.lookup(table, words_of({}))) == 0
  assert len(table.slots) >= 2 * len(expected)
  frequent = tokenize.merge(tokenize.empty(1, 1), words_of(expected), 3)
  assert _entries(frequent.words()) == [x for x in expected.items() if x[1] > 2]


def test_hashes_are_even():
  words = _of({b'w%d' % i: i for i in range(100_000)})
  for num_ranges in (2, 7, 256):
    limits = (1 << tokenize.HASH_BITS) // num_ranges * np.arange(num_ranges + 1)
    sizes, _ = np.histogram(words.hashes, limits)
    expected = len(words.hashes) / num_ranges
    assert np.abs(sizes - expected).max() <= 6 * expected**0.5
  # Words of a range do not crowd into the same slots of a table of their own.
  part = words.subset(np.flatnonzero(words.hashes >= limits[-2]))
  table = tokenize.merge(tokenize.empty(512, 1), part)
  runs = ''.join('x' if slot >= 0 else ' ' for slot in table.slots).split()
  assert max(map(len, runs)) < 100
