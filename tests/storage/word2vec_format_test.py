"""Files equal to the last bit through gensim; damage is named, not loaded."""

import gzip
import warnings

import numpy as np
import pytest
from gensim import models

from jaxemb import errors
from jaxemb.storage import word2vec_format as w2v

_WORDS = ['the', 'Ωmega', 'naïve', '日本', '12', '-', 'a\u00a0b']
# All sorts of bits: usual, tiny, huge, whole numbers, zero.
_VECTORS = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
_VECTORS[0] = [0, -0.0, 1, 1e-40, 3.4e38]
_VECTORS[1] = [1 / 3, 16777216, 1e-5, -1e-4, 0.1]
every_form = pytest.mark.parametrize('is_binary', [True, False])
every_file = pytest.mark.parametrize(
  'name', ['v.bin', 'v.txt', 'v.bin.gz', 'v.txt.gz']
)


def _assert_read(path, words, vectors):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    loaded = w2v.read(path)
  assert loaded.words == words and loaded.counts is None
  assert loaded.vectors.dtype == np.float32
  # Bits: zero has a sign.
  np.testing.assert_array_equal(
    loaded.vectors.view(np.int32), np.float32(vectors).view(np.int32)
  )


@every_file
def test_round_trip_here_and_in_gensim(tmp_path, name, monkeypatch):
  monkeypatch.setattr(w2v, '_BLOCK_BYTES', 37)
  monkeypatch.setattr(w2v, '_BLOCK_ROWS', 3)
  path, is_binary = tmp_path / name, 'bin' in name
  assert w2v.write(path, _WORDS, _VECTORS, is_binary) == 0
  _assert_read(path, _WORDS, _VECTORS)
  keyed = models.KeyedVectors.load_word2vec_format(path, binary=is_binary)
  assert keyed.index_to_key == _WORDS
  np.testing.assert_array_equal(keyed.vectors, _VECTORS)
  if '.gz' not in name:
    # gensim leaves out the newline after a binary row.
    keyed.save_word2vec_format(path, binary=is_binary)
    _assert_read(path, _WORDS, _VECTORS)


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('the 0.5 1\nof 2 -3e-2\n', ['the', 'of']),
    ('the\t0.5\t1\r\nof\t2\t-3e-2', ['the', 'of']),
    ('2 2\nthe 0.5 1 \n. . . 2 -3e-2 \n', ['the', '. . .']),
    ('1 0.5 1\n2 2 -3e-2\n\n', ['1', '2']),
  ],
)
def test_glove_and_fasttext_text(tmp_path, text, words):
  path = tmp_path / 'v.vec'
  path.write_text(text, newline='')
  _assert_read(path, words, np.array([[0.5, 1], [2, -3e-2]]))


def test_text_of_numbers_that_are_not_finite():
  block = np.array([[np.nan, -np.inf], [1, 0.1]], np.float32)
  assert w2v.text_rows(block) == [b'nan -inf', b'1.0 0.1']


@every_form
def test_invalid_and_repeated_words_are_counted(tmp_path, is_binary):
  rows = np.arange(8, dtype='<f4').reshape(4, 2)
  lines = [
    name + b' ' + (row.tobytes() if is_binary else b'%d %d\n' % tuple(row))
    for name, row in zip([b'a\xff', b'b', b'b', b'c'], rows, strict=True)
  ]
  path = tmp_path / 'v'
  path.write_bytes(b'4 2\n' + b''.join(lines) + b'more')
  with pytest.warns(UserWarning, match='v: ') as warned:
    loaded = w2v.read(path)
  assert loaded.words == ['a\ufffd', 'b', 'c']
  np.testing.assert_array_equal(loaded.vectors, rows[[0, 1, 3]])
  texts = [str(x.message).split(': ')[1] for x in warned]
  assert [x[:7] for x in texts] == ['1 words', '1 repea', '4 bytes']


@every_form
def test_white_space_in_words_becomes_underscores(tmp_path, is_binary):
  words = ['new york', 'new_york', '', 'a\nb', 'c']
  vectors = np.ones((5, 2), np.float32)
  assert w2v.write(tmp_path / 'v', words, vectors, is_binary) == 3
  renamed = ['new_york_', 'new_york', '_', 'a_b', 'c']
  _assert_read(tmp_path / 'v', renamed, vectors)


@every_file
def test_truncated_anywhere_is_refused(tmp_path, name):
  path = tmp_path / name
  w2v.write(path, _WORDS, _VECTORS, 'bin' in name)
  whole = path.read_bytes()
  # Text cut inside its last number cannot be told from a shorter number.
  last = len(whole) - (1 if name == 'v.bin' else 14)
  for size in range(0, last, 7):
    path.write_bytes(whole[:size])
    with pytest.raises(errors.UserError, match=name):
      w2v.read(path)
  if name == 'v.bin':
    path.write_bytes(whole[:-1])
    _assert_read(path, _WORDS, _VECTORS)


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'', 'no word2vec file'),
    (b'the quick brown fox\n', 'no word2vec file'),
    (b'a 1 2\nb 3 4\nc 3\n', 'line 3'),
    (b'999999999999 300\na 1 2\n', '0 of the 999999999999 vectors'),
    (b'1 50000\nabcdefg', '0 of the 1 vectors'),
    (b'2 2\n' + b'x' * 300_000, 'no word before vector 1'),
  ],
)
def test_damaged_files_are_named(tmp_path, content, message):
  path = tmp_path / 'broken'
  for data in (content, gzip.compress(content)):
    path.write_bytes(data)
    with pytest.raises(errors.UserError, match='broken') as caught:
      w2v.read(path)
    assert '\n' not in str(caught.value)
    if data is content:
      assert message in str(caught.value)


def test_vocab_file(tmp_path):
  path = tmp_path / 'vocab.txt'
  counts = np.arange(len(_WORDS))[::-1]
  w2v.write_vocab(path, _WORDS, counts)
  assert path.read_bytes().split(b'\n')[0] == b'the 6'
  words, read_counts = w2v.read_vocab(path)
  assert words == _WORDS and read_counts.tolist() == counts.tolist()
  # Of others.
  path.write_bytes(
    b'\xef\xbb\xbfrare\t3\r\n\n   \n  \xc3\xa4 \t 12  \r\nthe 0009\nlast 4\n'
    b'\xe6\x9d\xb1 100000000000\n\xc2\xa0 2\n\x1c 0\n10 1'
  )
  words, counts = w2v.read_vocab(path)
  assert words == ['rare', 'ä', 'the', 'last', '東', '\xa0', '\x1c', '10']
  assert counts.tolist() == [3, 12, 9, 4, 10**11, 2, 0, 1]


@pytest.mark.parametrize(
  'line', ['word', 'two words 3', 'word -3', 'word ٣', 'b\udcff\udcfed 3']
)
def test_damaged_vocab_file(tmp_path, line):
  path = tmp_path / 'vocab.txt'
  text = f'good 3\n\n{line}\nfine 4\n'
  path.write_bytes(text.encode(errors='surrogateescape'))
  with pytest.raises(errors.UserError, match='vocab.txt, line 3: expected'):
    w2v.read_vocab(path)
