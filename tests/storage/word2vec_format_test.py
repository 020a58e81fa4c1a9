"""Files equal to the last bit through gensim; damage is named, not loaded."""

import bz2
import gzip
import lzma
import pathlib
import pickle
import tempfile
import warnings

import hypothesis
import numpy as np
import pytest
from gensim import models
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from jaxemb import errors
from jaxemb.cli import query
from jaxemb.merging import parts
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
  monkeypatch.setattr(w2v, '_FORMATTED_ROWS', 2)
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
  rows = np.arange(200, dtype='<f4').reshape(100, 2)
  names = [b'a\xff', b'b', b'b', b'c', *(b'%d' % i for i in range(96))]
  lines = [
    name + b' ' + (row.tobytes() if is_binary else b'%d %d' % tuple(row))
    for name, row in zip(names, rows, strict=True)
  ]
  path = tmp_path / 'v'
  path.write_bytes(b'100 2\n' + b''.join(x + b'\n' for x in lines))
  with pytest.warns(UserWarning, match='v: ') as warned:
    loaded = w2v.read(path)
  assert loaded.words[:3] == ['a\ufffd', 'b', 'c'] and len(loaded.words) == 99
  np.testing.assert_array_equal(loaded.vectors[:3], rows[[0, 1, 3]])
  texts = [str(x.message).split(': ')[1] for x in warned]
  assert [x[:7] for x in texts] == ['1 words', '1 repea']


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
    (b'999999999999 2\na 1 2\n', '1 of the 999999999999 vectors'),
    (b'2 300\na 1 2\nb 1 2\n', 'line 2: 2 numbers behind a word, not 300'),
    (b'2 2\na 1 2\nb 1.5 1 2\n', 'line 3: 3 numbers behind a word, not 2'),
    (b'a 1 2\nb 1.5 1 2\nc 1 2\n', 'line 2: 3 numbers behind a word, not 2'),
    (b'3 1\na 1 .2\nb 1 .2\nc 1 .2', '3 of 3 rows have more numbers than 1'),
    (b'1 2\na 1 2\nb 3 4\n', 'line 3 follows the 1 vectors'),
    (b'1 2\na 1 2\nrest', 'line 3 follows the 1 vectors'),
    (b'1 1\na \1\2\3\4\nrest', '4 bytes or more follow'),
    (b'2 1\na ' + b'\1\2\3\4' * 2 + b'\nb ' + bytes(8), 'vector 2'),
    (b'a 1 2\rb 3 4\r', 'carriage returns alone'),
    (b'\xba\x16\x4f\x2f' + bytes(90), 'fastText; give its .vec'),
    (pickle.dumps({'a': 1}), 'of gensim: save_word2vec_format'),
    ('1 2\na 1 2\n'.encode('utf-16-be'), "encoding='utf-16'"),
    ('1 2\na 1 2\n'.encode('utf-32'), "encoding='utf-16'"),
    ('é 1 2\nß 1 2\n'.encode('latin-1'), 'its encoding, such as encoding='),
    (b'1 50000\nabcdefg', '0 of the 1 vectors'),
    (b'2 2\n' + b'x' * 300_000, 'no word before vector 1'),
    (b'2 2\na 0,1 -2,0\nb 3,5 4,5\n', 'decimal commas'),
    (b'a 0,1 -2,0\nb 3,5 4,5\n', 'decimal commas'),
    (b'0.1 -0.2 .3\n-0.4 0.5 .6\n', 'numbers without words'),
    (b'1.0e-2\t-2\t.1\n-4.000e-01\t5\t1\n.7\t1\t1\n', 'numbers without words'),
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


# Words and vectors as they may be, the first of them always usual.
_VOCABULARY = st.tuples(
  st.lists(
    st.text(st.characters(exclude_categories=['Cs'], exclude_characters='\n'))
    | st.sampled_from(
      ['San Francisco', 'a\nb', 'area 51', ' x', 'x ', '. . .', '7']
    ),
    max_size=7,
  ),
  st.integers(1, 5),
).flatmap(
  lambda x: st.tuples(
    st.just(['the', *dict.fromkeys(y for y in x[0] if y != 'the')]),
    st_numpy.arrays(
      np.float32,
      (len({*x[0], 'the'}), x[1]),
      elements=st.floats(-100, 100, width=32),
    ),
  )
)


def _check_equal_or_refused(path, words, vectors, encoding='utf-8'):
  """Reads a file; empty words may be left out."""
  try:
    with warnings.catch_warnings(record=True) as warned:
      warnings.simplefilter('always')
      loaded = w2v.read(path, encoding)
  except errors.UserError as error:
    assert '\n' not in str(error)
    return False
  kept = [i for i, x in enumerate(words) if x.strip(' \t\n\r\v\f')]
  assert loaded.words == [words[i] for i in kept]
  np.testing.assert_array_equal(loaded.vectors, vectors[kept])
  assert len(warned) == (len(kept) < len(words))
  return True


def _folder():
  return tempfile.TemporaryDirectory(prefix='jaxemb-test-')


@hypothesis.settings(max_examples=60)
@hypothesis.given(is_binary=st.booleans(), vocabulary=_VOCABULARY)
def test_what_gensim_writes_is_read_or_refused(is_binary, vocabulary):
  words, vectors = vocabulary
  if is_binary:  # a word ends at its first space, and one number may be text
    hypothesis.assume(not any(' ' in x for x in words))
    hypothesis.assume(vectors.shape[1] > 1)
  keyed = models.KeyedVectors(vectors.shape[1])
  keyed.add_vectors(words, vectors)
  keyed.expandos['count'] = np.arange(len(words), 0, -1)
  with _folder() as folder:
    path = f'{folder}/v'
    keyed.save_word2vec_format(path, binary=is_binary)
    is_read = _check_equal_or_refused(path, words, vectors)
  is_usual = all(x.split() == [x] and '\0' not in x for x in words)
  assert is_read or not is_usual


@hypothesis.settings(max_examples=50)
@hypothesis.given(
  is_binary=st.booleans(),
  vocabulary=_VOCABULARY,
  suffix=st.sampled_from(['', '.gz', '.bz2', '.xz', '.zst', '.zip']),
)
def test_what_is_written_is_read(is_binary, vocabulary, suffix):
  words, vectors = vocabulary
  spelled, _ = w2v.spell(words)
  with _folder() as folder:
    path = f'{folder}/v{suffix}'
    w2v.write(path, words, vectors, is_binary)
    assert _check_equal_or_refused(path, spelled, vectors)


@hypothesis.given(
  vocabulary=_VOCABULARY,
  has_header=st.booleans(),
  signs=st.sampled_from([' ', '\t', '  ', ' \t']),
  end=st.sampled_from(['\n', '\r\n', ' \n', '\n\n']),
  has_bom=st.booleans(),
  encoding=st.sampled_from(['utf-8', 'utf-16', 'utf-32', 'gb18030']),
  pack=st.sampled_from([bytes, gzip.compress, bz2.compress, lzma.compress]),
  is_whole=st.booleans(),
)
def test_text_by_hand_is_read_or_refused(
  vocabulary, has_header, signs, end, has_bom, encoding, pack, is_whole
):
  words, vectors = vocabulary
  if signs in ('  ', ' \t'):
    hypothesis.assume(all(x == x.strip(' \t\r\v\f') for x in words))
  rows = np.round(vectors) if is_whole else vectors
  numbers = [[str(int(y) if is_whole else y) for y in x] for x in rows]
  lines = [signs.join([x, *row]) for x, row in zip(words, numbers, strict=True)]
  if has_header:
    lines.insert(0, f'{len(rows)} {rows.shape[1]}')
  text = ''.join(x + end for x in lines)
  has_bom &= encoding == 'utf-8'
  with _folder() as folder:
    path = pathlib.Path(folder, 'v.vec')
    text = ('\ufeff' * has_bom + text).encode(encoding)
    path.write_bytes(pack(text))
    is_read = _check_equal_or_refused(path, words, rows, encoding)
  is_usual = all(x.split() == [x] for x in words)
  assert is_read or not is_usual or (rows.shape[1] == 1 and not has_header)


@hypothesis.settings(max_examples=40)
@hypothesis.given(
  is_binary=st.booleans(),
  vocabulary=_VOCABULARY,
  more_rows=st.integers(-3, 3),
  more_numbers=st.integers(-3, 3),
)
def test_a_wrong_header_is_refused(
  is_binary, vocabulary, more_rows, more_numbers
):
  words, vectors = vocabulary
  hypothesis.assume(more_rows or more_numbers)
  # Two binary rows might be one of twice the width.
  hypothesis.assume(not (is_binary and more_rows and more_numbers))
  words = [f'word{i}' for i in range(len(words))]
  num, dim = len(words) + more_rows, vectors.shape[1] + more_numbers
  with _folder() as folder:
    path = pathlib.Path(folder, 'v.vec')
    w2v.write(path, words, vectors, is_binary)
    _, rows = path.read_bytes().split(b'\n', 1)
    path.write_bytes(b'%d %d\n' % (num, dim) + rows)
    with pytest.raises(errors.UserError):
      w2v.read(path)


def test_spaces_in_binary_words(tmp_path):
  path = tmp_path / 'v.bin'
  rows = np.random.default_rng(0).normal(size=(3, 20)).astype('<f4')
  words = [b'New York', b'new', b'york']
  pairs = zip(words, map(np.ndarray.tobytes, rows), strict=True)
  lines = [b'%b %b' % x for x in pairs]
  path.write_bytes(b'3 20\n' + b''.join(lines))  # as gensim writes
  with pytest.raises(errors.UserError, match=r'v\.bin'):
    w2v.read(path)
  path.write_bytes(b'3 20\n' + b''.join(x + b'\n' for x in lines))
  _assert_read(path, ['New York', 'new', 'york'], rows)


def test_words_in_another_encoding(tmp_path, capsys):
  path = tmp_path / 'v.bin'
  words, vectors = ['größe', 'the'], np.ones((2, 2), np.float32)
  w2v.write(path, words, vectors, is_binary=True)
  path.write_bytes(path.read_bytes().replace('öß'.encode(), b'\xf6\xdf'))
  assert w2v.read(path, 'cp1252').words == words
  flags = [f'--vectors={path}', '--encoding=cp1252']
  assert query.main([*flags, 'größe']) == 0
  assert capsys.readouterr().out.startswith('the ')
  [part, _], _ = parts.open_all(
    [path, path], tmp_path, False, skip_bad=False, encoding='cp1252'
  )
  assert part.words == words
  for encoding in 'none', 'rot13':
    with pytest.raises(errors.UserError, match='no encoding'):
      w2v.read(path, encoding)
  with pytest.raises(errors.UserError, match='1 of 2 words'):
    w2v.read(path)


def test_empty_words_are_left_out_and_counted(tmp_path):
  path = tmp_path / 'v.vec'
  path.write_text('4 2\na 1 2\n 3 4\n  5 6\n\xa0 7 8\n')
  with pytest.warns(UserWarning, match='2 empty words'):
    loaded = w2v.read(path)
  assert loaded.words == ['a', '\xa0']
  np.testing.assert_array_equal(loaded.vectors, [[1, 2], [7, 8]])


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


def test_rows_without_words_or_finite_numbers(tmp_path):
  path = tmp_path / 'vectors.txt'
  path.write_text(' 7 1.5 2\n 8 3.5 4\n')
  with pytest.raises(errors.UserError, match='none of the 2 rows'):
    w2v.read(path)
  path.write_text('a 1 2\nb nan 2\nc 1 1e60\n')
  with pytest.warns(UserWarning, match='2 vectors that are not finite'):
    assert w2v.read(path).words == ['a', 'b', 'c']


def test_a_file_that_is_written_over_while_it_is_read_is_refused(
  tmp_path, monkeypatch
):
  path = tmp_path / 'vectors.txt'
  path.write_text('2 2\na 1 2\nb 3 4\n')
  read_text = w2v._read_text

  def then_write(*args, **more):
    rows = read_text(*args, **more)
    path.write_text('2 2\na 1 2\nb 5 6 \n')
    return rows

  monkeypatch.setattr(w2v, '_read_text', then_write)
  with pytest.raises(errors.UserError, match=r'vectors\.txt: it was changed'):
    w2v.read(path)
