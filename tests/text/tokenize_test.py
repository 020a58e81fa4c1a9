"""Tokenizing against plain Python: str methods, unicodedata, dict, Counter."""

import collections
import random
import sys
import unicodedata

import numpy as np
import pytest

from jaxemb.text import tokenize

_END = None
_INVALID = [
  b'\x80',  # a continuation alone
  b'\xbf\xbf',
  b'\xc0\x80',  # overlong
  b'\xc1\xbf',
  b'\xe0\x80\x80',
  b'\xe0\x9f\xbf',
  b'\xf0\x80\x80\x80',
  b'\xf0\x8f\xbf\xbf',
  b'\xc3',  # truncated
  b'\xe2\x82',
  b'\xe2',
  b'\xf0\x9f\xa6',
  b'\xf0\x9f',
  b'\xf0',
  b'\xc3A',
  b'\xe2\x82\xc3\xa4',
  b'\xed\xa0\x80',  # surrogates
  b'\xed\xbf\xbf',
  b'\xf4\x90\x80\x80',  # above U+10FFFF
  b'\xf5\x80\x80\x80',
  b'\xf7\xbf\xbf\xbf',
  b'\xf8\x88\x80\x80\x80',
  b'\xfe',
  b'\xff',
]
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


def _entries(table):
  """Words and counts in entry order."""
  word, n = tokenize.reader(table), int(table.sizes[0])
  return [(word(i), int(table.counts[i])) for i in range(n)]


def _words(data, definition='words', lowercase=False, ends_line=True):
  """What `tokenize` makes of a text, its table checked on the way."""
  ids, table, counters = tokenize.tokenize(
    data, definition, lowercase, ends_line
  )
  assert ids.dtype == np.int32
  names = [word for word, _ in _entries(table)]
  out = [_END if i == tokenize.END else names[i] for i in ids.tolist()]
  counts = collections.Counter(item for item in out if item is not _END)
  # In the order of first occurrence, each word once.
  assert _entries(table) == list(counts.items())
  return out, tuple(counters)


def _random_text(rng, num_parts):
  parts = []
  for _ in range(num_parts):
    kind = rng.random()
    if kind < 0.1:
      parts.append(rng.choice(_INVALID))
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


@pytest.mark.parametrize('definition', tokenize.DEFINITIONS)
@pytest.mark.parametrize('lowercase', [False, True])
def test_random_text_as_in_plain_python(definition, lowercase):
  rng = random.Random(f'{definition} {lowercase}')
  for _ in range(150):
    text = _random_text(rng, rng.choice([1, 3, 10, 100, 300]))
    ends_line = rng.random() < 0.5
    expected = _expected(text, definition, lowercase, ends_line)
    assert _words(text, definition, lowercase, ends_line) == expected, text


@pytest.mark.parametrize('definition', tokenize.DEFINITIONS)
@pytest.mark.parametrize('lowercase', [False, True])
def test_every_kind_of_character(definition, lowercase):
  points = [*range(0x30000), *range(0x30000, sys.maxunicode + 1, 61)]
  points += range(0xE0000, 0xE0200)
  expected = []
  for point in points:
    char = chr(point)
    out = _lower(char) if lowercase else char
    expected.append(ord(out) if _is_inside(char, definition) else 0)
  table = tokenize.code_points(definition, lowercase)
  wrong = np.flatnonzero(table[points] != expected)
  assert not len(wrong), [hex(points[i]) for i in wrong[:10]]


@pytest.mark.parametrize('invalid', _INVALID)
@pytest.mark.parametrize('frame', [b'%s', b'a%sb', b' %s ', b'\xc3\xa4%s\n'])
def test_invalid_utf8_is_replaced_and_counted(invalid, frame):
  text = frame % invalid
  for definition in tokenize.DEFINITIONS:
    expected = _expected(text, definition, False)
    assert _words(text, definition) == expected
    assert expected[1][1] > 0
  # Cut off anywhere, the text's end is no trap.
  for stop in range(len(text)):
    expected = _expected(text[:stop], 'words', False)
    assert _words(text[:stop]) == expected


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
  for word, is_read in (
    ('a' * 255, True),
    ('a' * 256, False),
    ('a' * 100_000, False),
    ('ä' * 127 + 'a', True),  # 255 bytes
    ('ä' * 128, False),
    ('a' * 252 + '東', True),
    ('a' * 253 + '東', False),
    ('a' * 255 + '𐐀', False),
  ):
    out, counters = _words(f'x {word} y'.encode())
    assert out == [b'x', *[word.encode()] * is_read, b'y', _END]
    assert counters == (2 + is_read, 0, not is_read)
  # What counts is the length as written: in lower case these grow and shrink.
  for text, num_words in (('Ⱥ' * 127, (1, 0)), ('\u212a' * 200, (0, 1))):
    for lowercase in (False, True):
      counters = _words(text.encode(), 'words', lowercase)[1]
      assert counters[0] == num_words[lowercase]
  assert _words(b'\xff' * 85, 'whitespace')[1] == (1, 85, 0)
  assert _words(b'\xff' * 86, 'whitespace')[1] == (0, 86, 1)


@pytest.mark.parametrize(
  'definition, text, words',
  [
    ('words', "Don't stop", ['Don', 't', 'stop']),
    ('words', 'naïve e\u0301te\u0301', ['naïve', 'e\u0301te\u0301']),
    ('words', 'हिन्दी', ['हिन्दी']),
    ('words', '1,000.5 x_y', ['1', '000', '5', 'x', 'y']),
    ('words', '東京タワー', ['東京タワー']),
    ('words', 'a🦓b', ['a', 'b']),
    ('words', '葛\U000e0100飾区', ['葛\U000e0100飾区']),
    ('whitespace', "Don't 🦓-x\u3000a\xa0b _ \U00100000\tc",
     ["Don't", '🦓-x', 'a', 'b', '_', '\U00100000', 'c']),
  ],
)  # fmt: skip
def test_definitions(definition, text, words):
  expected = [*(word.encode() for word in words), _END]
  assert _words(text.encode(), definition)[0] == expected


# The hash table.


def _packed(words):
  """Arena and starts."""
  starts = np.cumsum([0, *map(len, words)]).astype(np.int64)
  return np.frombuffer(b''.join(words) + b'\0', np.uint8), starts


def _find(table, word, h=None):
  text, (_, length) = _packed([word])
  h = tokenize.hash_bytes(text, 0, length) if h is None else h
  return tokenize.find(table, text, 0, length, np.uint64(h))


def _append(table, word, h):
  text, (_, length) = _packed([word])
  return tokenize.append(table, text, 0, length, np.uint64(h))


def _random_words(rng, num_words, max_bytes=12):
  return [
    bytes(rng.choices(b'ab\xc3\xa4\x00\xff', k=rng.randint(1, max_bytes)))
    for _ in range(num_words)
  ]


@pytest.mark.parametrize('max_words, max_bytes', [(1, 1), (1, 99), (4096, 1)])
def test_growing_table_counts_like_counter(max_words, max_bytes):
  rng = random.Random(max_words)
  expected = collections.Counter()
  table = tokenize.empty(max_words, max_bytes)
  for num_words in (1, 2, 30, 3000, 500):
    counts = collections.Counter(_random_words(rng, num_words))
    expected.update(counts)
    numbers = np.array(list(counts.values()))
    table = tokenize.merge(table, *_packed(list(counts)), numbers)
    # Counter keeps the order of first occurrence, as the table should.
    assert _entries(table) == list(expected.items())
  for i, word in enumerate(expected):
    assert _find(table, word) == i
    assert (_find(table, word + b'!') >= 0) == (word + b'!' in expected)
  asked = [*expected, *_random_words(rng, 300)]
  rows = {word: i for i, word in enumerate(expected)}
  found = tokenize.lookup(table, *_packed(asked))
  assert found.tolist() == [rows.get(word, -1) for word in asked]
  assert len(tokenize.lookup(table, *_packed([]))) == 0
  num_slots = len(table.slots)
  assert num_slots & (num_slots - 1) == 0 and num_slots >= 2 * len(expected)


def test_equal_hashes_are_told_apart_by_bytes():
  # One hash for all: same length, prefixes, other lengths, through growth.
  words = [b'ab', b'ba', b'a', b'abc', b'\0', b'\0\0', b'ab\0']
  words += [b'w%d' % i for i in range(100)]
  table = tokenize.empty(1, 1)
  for i, word in enumerate(words):
    assert _find(table, word, 7) == -1
    table = _append(table, word, 7)
    assert _find(table, word, 7) == i
  assert [_find(table, word, 7) for word in words] == list(range(len(words)))
  assert _find(table, b'abcd', 7) == -1
  # The same bytes with another hash are another word to the table.
  assert _find(table, b'ab', 8) == -1


@pytest.mark.parametrize('num_buckets', [1, 2, 7, 256])
def test_buckets_are_chosen_by_the_word_and_even(num_buckets):
  words = [b'w%d' % i for i in range(100_000)]
  table = tokenize.from_words(words, range(len(words)))
  buckets = tokenize.buckets(table, num_buckets)
  backwards = tokenize.from_words(words[::-1], range(len(words)))
  np.testing.assert_array_equal(
    tokenize.buckets(backwards, num_buckets)[::-1], buckets
  )
  sizes = np.bincount(buckets, minlength=num_buckets)
  expected = len(words) / num_buckets
  assert len(sizes) == num_buckets
  assert np.abs(sizes - expected).max() <= 6 * expected**0.5
  # Words of a bucket do not crowd into the same slots of a table of their own.
  entries = np.flatnonzero(buckets == num_buckets - 1)
  part = tokenize.merge(
    tokenize.empty(len(entries), 1), *tokenize.subset(table, entries)
  )
  runs = ''.join('x' if s >= 0 else ' ' for s in part.slots).split()
  assert max(map(len, runs)) < 100


def test_subset_can_be_merged():
  rng = random.Random(2)
  counts = {word: rng.randint(1, 8) for word in _random_words(rng, 500)}
  table = tokenize.from_words(list(counts), list(counts.values()))
  for entries in ([], [3], [7, 0, 5], range(len(counts))):
    arrays = tokenize.subset(table, np.array(entries, np.int64))
    assert len(arrays[0]) == arrays[1][-1]
    merged = tokenize.merge(tokenize.empty(1, 1), *arrays)
    assert _entries(merged) == [list(counts.items())[i] for i in entries]


def test_repeated_words_are_added_up():
  words = ['der', 'Ä', 'der', '🦓']
  table = tokenize.from_words([word.encode() for word in words], [1, 2, 3, 4])
  assert _entries(table) == [(b'der', 4), ('Ä'.encode(), 2), ('🦓'.encode(), 4)]
  assert _entries(tokenize.from_words([], [])) == []
