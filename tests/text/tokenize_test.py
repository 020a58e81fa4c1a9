"""Tokenizing against plain Python: str methods, unicodedata, dict, Counter."""

import collections
import itertools
import random
import re
import sys
import unicodedata

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from numba.core import compiler_lock, registry

from jaxemb.ops import characters
from jaxemb.text import tokenize
from tests import marking

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
  'l\xb75\u0387\u05f4\u055b\u055e\u05f3צהո\xad\u2060\u200c',
  'में\u094d\u200d\u200c\u0dca\u0d9aمی\u0640\u064e\u200c\u200d\u180eᠠ',
  '\xad\u2060\u200e\u202b\u2069\ufeff\u061c\u200b\u06dd\u0601١',
  '❤☺🏽👩\u200d💻\ufe0f\u20e3🇩🇪🇫\U000e0067\U000e007f',
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


def _is_mark(char):
  category = unicodedata.category(char)
  if category == 'Cf':  # format signs that are seen; a newer Python has more
    return bool(
      re.match('[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2]', char)
      or re.match('[\U000110bd\U000110cd\U00013430-\U0001343f]', char)
      or re.match('[\U000e0020-\U000e007f]', char)
    )
  return (
    category[0] == 'M' or char in '\u055a\u055b\u055c\u055e\u05f3\ua789\ua78a'
  )


def _class(char, before=' ', after=' '):
  """One letter for what a character of 'words' does."""
  if re.match('[\n\r\x85\u2028\u2029]', char):
    return 'N'
  if re.match('[\U0001f1e6-\U0001f1ff]', char):
    return 'F'
  if re.match('[\U0001f3fb-\U0001f3ff]', char):
    return 'T'
  if (
    characters.code_points('words', False)[ord(char)] >> 32 == characters.EMOJI
  ):
    return 'E'
  if char.isalnum():
    return 'L'
  if char in '\u200c\u180e\u05f4':
    return 'J'
  if char == '\u200d':
    return 'Z'
  if char == '\xb7':
    return 'J' if before == after and before in 'lL' else 'S'
  if _is_mark(char):
    return 'M'
  is_format = unicodedata.category(char) == 'Cf' and char != '\u200b'
  return 'X' if is_format else 'S'


_ITEMS = re.compile(
  '(?P<emoji>(?:FM*F|[EFT])[MT]*(?:Z[EFT][MT]*)*)|(?P<word>L[LMJZX]*)|(N)'
)


def _words_and_emoji(chars):
  """Yields (text, kind): kind is 'word', 'emoji' or None at a line end."""
  text = ''.join(chars)
  signs = ''.join(map(_class, text, ' ' + text[:-1], text[1:] + ' '))
  for item in _ITEMS.finditer(signs):
    start, end = item.span()
    if item.lastgroup != 'word':
      yield text[start:end], item.lastgroup
      continue
    inside = [i for i in range(start, end) if signs[i] != 'X']
    run = ''.join(signs[i] for i in inside)
    # Joiners stay before something, the first of several; behind a mark ZWJ is
    # a letter's part.
    run = re.match('L(?:L|MZ*|[JZ]+(?=[LM]))*', run)[0]
    word = ''
    for part in re.finditer('L|MZ*|([JZ])[JZ]*', run):
      stop = part.start() + 1 if part[1] else part.end()
      word += ''.join(text[i] for i in inside[part.start() : stop])
    yield word, 'word'


def _tokens(chars):
  """Yields (text, kind) as `_words_and_emoji`, between white space."""
  for part in re.split('([\n\r\x85\u2028\u2029])', ''.join(chars)):
    if re.fullmatch('[\n\r\x85\u2028\u2029]', part):
      yield part, None
    else:
      yield from ((x, 'word') for x in re.split(r'[\s\x00-\x1f]', part) if x)


def _lower(char):
  lower = char.lower()
  return lower if len(lower) == 1 else char


def _expected(data, definition, lowercase, ends_line=True):
  """Words as bytes, with `_END` behind each sentence, and the counters."""
  out, num_overlong, num_emoji = [], 0, 0
  chars = [*_chars(data)]
  split = _tokens if definition == 'whitespace' else _words_and_emoji
  for text, kind in split([char for char, _ in chars]):
    if kind == 'emoji' and '+emoji' not in definition:
      num_emoji += 1
    elif kind:
      lower = ''.join(map(_lower, text)) if lowercase else text
      encoded = (lower if kind == 'word' else text).encode()
      num_overlong += len(encoded) > 255
      out += [encoded] * (len(encoded) <= 255)
    elif not out or out[-1] is not _END:
      out.append(_END)
  if ends_line and (not out or out[-1] is not _END):
    out.append(_END)
  num_words = sum(item is not _END for item in out)
  num_invalid = sum(not is_valid for _, is_valid in chars)
  return out, (num_words, num_invalid, num_overlong, num_emoji)


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


@pytest.mark.parametrize('definition', ['words', 'words+emoji', 'whitespace'])
@pytest.mark.parametrize('lowercase', [False, True])
def test_random_text_as_in_plain_python(definition, lowercase):
  rng = random.Random(f'{definition} {lowercase}')
  for _ in range(50):
    text = _random_text(rng, rng.choice([1, 3, 10, 100, 300]))
    ends_line = rng.random() < 0.5
    expected = _expected(text, definition, lowercase, ends_line)
    assert _words(text, definition, lowercase, ends_line) == expected, text


_SIGNS = st.text(st.sampled_from(
  'aélL5 \n\r\u2028.\xb7\u05f4\u05d4\u0301\u094d\u200c\u200d\u180e'
  '\xad\u2060\u200b😀❤\ufe0f🏽🇩👩\U000e0067'
))  # fmt: skip


@hypothesis.given(_SIGNS, st.sampled_from(['words', 'words+emoji']))
@hypothesis.settings(max_examples=300, deadline=None)
def test_signs_within_words_as_in_plain_python(text, definition):
  data = text.encode()
  assert _words(data, definition) == _expected(data, definition, False)


@pytest.mark.parametrize(
  'text, expected',
  [
    # Persian, Sinhala, and Malayalam with a joiner that makes a letter.
    ('می\u200cخواهم', 'می\u200cخواهم'),
    ('ශ්\u200dරී ලංකා', 'ශ්\u200dරී ලංකා'),
    ('അവന്\u200d', 'അവന്\u200d'),
    # A joiner that joins nothing, or twice; marks and joiners without a word.
    ('کتاب\u200c\u200cها\u200c \u200cها', 'کتاب\u200cها ها'),
    ('\u0301 \u200d \ufe0f \u20e3 a', 'a'),
    ('co\xadop\u2060er\u200eation\ufeff', 'cooperation'),
    ('zero\u200bspace', 'zero space'),
    ('\u202bשלום\u202c', 'שלום'),
    ('צה״ל ״צבא״ ג׳ירף', 'צה״ל צבא ג׳ירף'),
    ('col·lecció L·L · 3·5 l·L N·m', 'col·lecció L·L 3 5 l L N m'),
    ('ինչո՞ւ', 'ինչո՞ւ'),
    ("don't l’été e-mail", 'don t l été e mail'),
    ('3.14 snake_case', '3 14 snake case'),
    ('good😀bad', 'good bad'),
  ],
)  # fmt: skip
def test_words_of_unicode(text, expected):
  words, _ = _words(text.encode())
  assert [x.decode() for x in words[:-1]] == expected.split()


def test_emoji_are_words_or_counted():
  emoji = [
    '😀',
    '❤️',
    '❤',
    '👩🏽‍💻',
    '👩‍👩‍👧',
    '🇫🇷',
    '🏴\U000e0067\U000e0062\U000e007f',
  ]
  text = f'so😀good ❤️❤\u200d 👩🏽‍💻👩‍👩‍👧🇫🇷{emoji[-1]}© 1️⃣'
  words, counts = _words(text.encode(), 'words+emoji')
  words = [x.decode() for x in words[:-1]]
  assert words == ['so', emoji[0], 'good', *emoji[1:], '1️⃣']
  assert counts == (10, 0, 0, 0)
  words, counts = _words(text.encode())
  assert words == [b'so', b'good', '1️⃣'.encode(), _END]
  assert counts == (3, 0, 0, 7)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('definition', 'lowercase'),
  [
    ('words', True),
    ('whitespace', False),
    marking.slow('words', False),
  ],
)
def test_every_kind_of_character(definition, lowercase):
  points = [*range(0x30000), *range(0x30000, sys.maxunicode + 1, 61)]
  points += range(0xE0000, 0xE0200)
  kinds = {
    'L': characters.LETTER, 'M': characters.MARK, 'J': characters.JOINER,
    'Z': characters.JOINER, 'X': characters.IGNORED,
    'D': characters.MIDDLE_DOT, 'S': characters.SEPARATOR,
    'N': characters.LINE_END,
  }  # fmt: skip
  table = characters.code_points(definition, lowercase)
  wrong = []
  for point, entry in zip(points, table[points].tolist(), strict=True):
    char = chr(point)
    kind = _class(char)
    if definition == 'whitespace' and kind != 'N':
      kind = 'S' if char.isspace() or char < ' ' else 'L'
    elif definition == 'words' and entry >> 32 == characters.EMOJI:
      wrong += [hex(point)] if char.isalnum() else []
      continue
    out = _lower(char) if lowercase else char
    utf8 = out.encode(errors='surrogatepass') if kind in 'LMJZ' else b''
    if char == '\xb7' and definition == 'words':
      kind, utf8 = 'D', char.encode()
    if entry != kinds.get(kind, -1) << 32 | int.from_bytes(utf8, 'little'):
      wrong.append(hex(point))
  assert not wrong


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
    ('a\rb\x0cc\u2028d\x85e\u2029f'.encode(), True, 'a|bc|d|e|f|'),
    (b'a\r\rb\r\n', False, 'a|b|'),
    (b'...', True, '|'),  # the line of the piece before ends here
    (b'...', False, ''),
  ],
)
def test_ends_of_sentences(text, ends_line, expected):
  expected = [_END if c == '|' else c.encode() for c in expected]
  assert _words(text, 'words', False, ends_line)[0] == expected


def test_overlong_words_are_counted_and_dropped():
  lengths = [(x, num) for x in ('a', '東') for num in range(252, 257)]
  for last, num_before in (*lengths, ('a' * 100_000, 0)):
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


def test_numba_is_made_ready_by_one_thread_at_a_time(monkeypatch):
  is_locked = []
  monkeypatch.setattr(
    registry.cpu_target.target_context,
    'refresh',
    lambda: is_locked.append(compiler_lock.global_compiler_lock.is_locked()),
  )
  tokenize.prepare('words', lowercase=True)
  assert is_locked == [True]
