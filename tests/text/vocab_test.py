"""The vocabulary: order, limits, counts files."""

import random

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.storage import word2vec_format
from jaxemb.text import tokenize, vocab


def _words(counts):
  """Of {word: count}."""
  words = [word.encode() for word in counts]
  return tokenize.from_counts(words, np.array([*counts.values()], np.int64))


def _fails(function, *args):
  with pytest.raises(errors.UserError) as caught:
    function(*args)
  message = str(caught.value)
  assert '\n' not in message
  return message


@pytest.mark.parametrize('min_count', [0, 1, 2, 5, 7])
@pytest.mark.parametrize('max_vocab', [0, 2, 3, 50, 100_000])
def test_select_orders_by_count_then_bytes(min_count, max_vocab):
  rng = random.Random(min_count)
  letters = 'aAzZ0é東🦓\uffee'
  frequencies = [0, 1, 1, 1, 2, 2, 5, 6, 7, 7, 300]
  counts = {
    ''.join(rng.choices(letters, k=rng.randint(1, 4))): rng.choice(frequencies)
    for _ in range(600)
  }
  chosen = [word for word, count in counts.items() if count >= min_count]
  chosen.sort(key=lambda word: (-counts[word], word.encode()))
  chosen = chosen[: max_vocab or None]
  vocabulary, ids = vocab.select(_words(counts), min_count, max_vocab, 0, 0)
  assert list(vocabulary.words) == chosen
  assert vocabulary.counts.tolist() == [counts[word] for word in chosen]
  row = {word: i for i, word in enumerate(chosen)}
  assert ids.tolist() == [row.get(word, -1) for word in counts]
  assert (ids.dtype, vocabulary.counts.dtype) == (np.int32, np.int64)


@pytest.mark.parametrize(
  'counts, max_vocab, found',
  [
    ({'a': 4, 'b': 3}, 0, 'no word'),
    ({}, 0, 'no word'),
    ({'ärger': 9, 'b': 3}, 0, "only one word ('ärger')"),
    ({'a': 9, 'b': 9}, 1, "only one word ('a')"),
  ],
)
def test_too_few_words_are_refused_with_the_facts(counts, max_vocab, found):
  message = _fails(vocab.select, _words(counts), 5, max_vocab, 1234, 56)
  assert f'{found} occurs 5 times: 1,234 different words' in message
  assert '56 times' in message and '--config.data.min_count' in message


def test_counts_file_of_others(tmp_path):
  path = tmp_path / 'counts'
  path.write_bytes(
    b'\xef\xbb\xbfrare\t3\r\n\n   \n  \xc3\xa4 \t 12  \r\nthe 0009\nlast 4\n'
    b'\xe6\x9d\xb1 100000000000\n\xc2\xa0 2\n\x1c 0\n10 1'
  )
  words = vocab.read_counts(path)
  word = words.reader()
  found = {word(i).decode(): n for i, n in enumerate(words.counts.tolist())}
  expected = {'rare': 3, 'ä': 12, 'the': 9, 'last': 4, '東': 10**11}
  assert found == expected | {'\xa0': 2, '\x1c': 0, '10': 1}
  # Those that jaxemb writes.
  word2vec_format.write_vocab(path, [*found], words.counts)
  again = vocab.read_counts(path)
  for x, y in zip(again, words, strict=True):
    np.testing.assert_array_equal(x, y)


def test_unusable_counts_file(tmp_path):
  path = tmp_path / 'counts.txt'
  for missing in (path, tmp_path):
    message = _fails(vocab.read_counts, missing)
    assert str(missing) in message and 'config.data.counts' in message
  for text, problem in (
    ('', 'empty'), ('\n \n', 'empty'),
    ('a 3\nb 4\na 5\nb 4\nb 1\n', '3 words twice'),
  ):  # fmt: skip
    path.write_text(text)
    message = _fails(vocab.read_counts, path)
    assert str(path) in message and problem in message
  for line in (
    'word', '12', 'two words 3', 'word -3', 'word 3.5', 'word 1e3',
    'word three', 'word ٣', 'b\udcff\udcfed 3', 'word 99999999999999999999',
  ):  # fmt: skip
    data = line.encode(errors='surrogateescape')
    path.write_bytes(b'good 3\n\n' + data + b'\nfine 4\n')
    message = _fails(vocab.read_counts, path)
    assert f'{path}, line 3:' in message
    assert data.decode(errors='replace') in message
