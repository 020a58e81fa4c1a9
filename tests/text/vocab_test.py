"""The vocabulary: order, limits, counts files."""

import random

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.text import tokenize, vocab


def _table(counts):
  """A table of {word: count}."""
  words = [word.encode() for word in counts]
  return tokenize.from_words(words, list(counts.values()))


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
  vocabulary, ids = vocab.select(_table(counts), min_count, max_vocab)
  assert list(vocabulary.words) == chosen
  assert vocabulary.counts.tolist() == [counts[word] for word in chosen]
  row = {word: i for i, word in enumerate(chosen)}
  assert ids.tolist() == [row.get(word, -1) for word in counts]
  assert (ids.dtype, vocabulary.counts.dtype) == (np.int32, np.int64)


def test_too_few_words_are_refused_with_the_facts():
  message = _fails(vocab.select, _table({'a': 4, 'b': 3}), 5, 0)
  assert '5 times' in message and '2 different words' in message
  assert '4 times' in message and '--config.data.min_count' in message
  message = _fails(vocab.select, tokenize.empty(1, 1), 5, 0)
  assert '0 different words' in message and '0 times' in message
  message = _fails(vocab.select, _table({'ärger': 9, 'b': 3}), 5, 0)
  assert "'ärger'" in message and '--config.data.min_count' in message
  assert "'a'" in _fails(vocab.select, _table({'a': 9, 'b': 9}), 5, 1)


def test_counts_file_round_trip(tmp_path):
  counts = {'東京': 5, 'the': 10**11, '\xa0': 4, '\x1c': 3, '10': 2, 'x': 0}
  vocabulary, _ = vocab.select(_table(counts), 0, 0)
  path = tmp_path / 'vocab.txt'
  vocab.write_counts(path, vocabulary)
  assert path.read_bytes().startswith('the 100000000000\n東京 5\n'.encode())
  again, _ = vocab.select(vocab.read_counts(path), 0, 0)
  assert list(again.words) == list(vocabulary.words)
  assert again.counts.tolist() == vocabulary.counts.tolist()


def test_counts_file_of_others(tmp_path):
  path = tmp_path / 'counts'
  path.write_bytes(
    b'\xef\xbb\xbfrare\t3\r\n\n   \n  \xc3\xa4 \t 12  \r\nthe 0009\nlast 4'
  )
  table = vocab.read_counts(path)
  word = tokenize.reader(table)
  assert [word(i).decode() for i in range(4)] == ['rare', 'ä', 'the', 'last']
  assert table.counts[:4].tolist() == [3, 12, 9, 4]


@pytest.mark.parametrize(
  'line',
  ['word', '12', 'two words 3', 'word -3', 'word 3.5', 'word 1e3', 'word three',
   'word ٣', 'b\udcff\udcfed 3', 'word 99999999999999999999'],
)  # fmt: skip
def test_malformed_line_is_named(tmp_path, line):
  path = tmp_path / 'counts.txt'
  data = line.encode(errors='surrogateescape')
  path.write_bytes(b'good 3\n\n' + data + b'\nfine 4\n')
  message = _fails(vocab.read_counts, path)
  assert f'{path}, line 3:' in message
  assert data.decode(errors='replace') in message


def test_unusable_counts_file(tmp_path):
  path = tmp_path / 'counts.txt'
  for missing in (path, tmp_path):
    message = _fails(vocab.read_counts, missing)
    assert str(missing) in message and 'config.data.counts' in message
  for text, problem in (
    ('', 'empty'),
    ('\n \n', 'empty'),
    ('a 3\nb 4\na 5\nb 4\nb 1\n', '3 words twice'),
  ):
    path.write_text(text)
    message = _fails(vocab.read_counts, path)
    assert str(path) in message and problem in message
