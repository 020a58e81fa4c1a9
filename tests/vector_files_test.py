"""What files of vectors hold: all of it, or a line that says what is lost."""

import contextlib

import numpy as np
import pytest
from pyarrow import parquet

import jaxemb
from jaxemb import errors
from jaxemb.documents import trained
from jaxemb.evaluation import multivectors, subwords
from jaxemb.graphs import files as graph_files
from jaxemb.ops import ngrams as ngrams_lib
from jaxemb.storage import export

_VECTORS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
_FORMATS = {
  'save_safetensors': 'v.safetensors',
  'save_parquet': 'v.parquet',
  'save_onnx': 'v.onnx',
  'save_word2vec_format': 'v.txt',
  'save_static_model': 'model',
  'save_fasttext': 'v.bin',
  'save': 'folder',
}
_SETTINGS = {  # of documents
  'model': 'dbow', 'window': 5, 'dynamic_window': True, 'negatives': 5,
  'sample': 0.0, 'tokens': 'words', 'lowercase': True, 'epochs': 1,
  'learning_rate': 0.05, 'final_learning_rate': 0.0, 'seed': 1,
}  # fmt: skip
each_format = pytest.mark.parametrize('method', _FORMATS)


def _files(folder):
  return {x: x.read_bytes() for x in folder.rglob('*') if x.is_file()}


def _write(vectors, method, folder):
  if method == 'save_onnx':
    pytest.importorskip('onnx', reason="needs the extra 'onnx'")
  if method in ('save_safetensors', 'save_static_model'):
    pytest.importorskip('tokenizers', reason="needs the extra 'hub'")
  path = folder / _FORMATS[method]
  getattr(vectors, method)(path)
  return path


@each_format
def test_words_that_utf8_lacks_are_renamed_apart(method, tmp_path):
  words = ['b', 'a\udc80', r'a\udc80', 'ü']
  vectors = jaxemb.Embeddings(words, _VECTORS)
  renames = method != 'save_safetensors'
  expected = pytest.warns(UserWarning, match='1 words with white space or ch')
  with expected if renames else contextlib.nullcontext():
    path = _write(vectors, method, tmp_path)
  names = ['b', r'a\udc80_', r'a\udc80', 'ü'] if renames else words
  if method == 'save_parquet':
    assert parquet.read_table(path)['key'].to_pylist() == names
  elif method != 'save_onnx':
    loaded = jaxemb.load(path)
    assert loaded.index_to_key == names
    np.testing.assert_array_equal(loaded.vectors, _VECTORS)


def test_words_with_white_space_are_renamed_with_a_warning(tmp_path):
  vectors = jaxemb.Embeddings(['a b', 'a_b', ' ', 'c'], _VECTORS)
  with pytest.warns(UserWarning, match='folder: 2 words with white space'):
    vectors.save(tmp_path / 'folder')
  loaded = jaxemb.load(tmp_path / 'folder')
  assert loaded.index_to_key == ['a_b_', 'a_b', '_', 'c']


@each_format
@pytest.mark.parametrize('part', ['attributes', 'n-grams', 'relations'])
def test_what_a_format_does_not_hold_is_a_warning(
  method, part, tmp_path, recwarn
):
  relations = export.Relations(
    'translation', 'product', 0.0, ['r'], _VECTORS[:1]
  )
  ngrams = subwords.NgramVectors(
    ngrams_lib.Subwords(3, 4, 5), np.ones((5, 3), np.float32)
  )
  parts = {
    'attributes': {'attributes': {'tag': [*'wxyz']}},
    'n-grams': {'subwords': ngrams},
    'relations': {'relations': relations},
  }
  vectors = jaxemb.Embeddings([*'abcd'], _VECTORS, **parts[part])
  _write(vectors, method, tmp_path)
  holds = method == 'save' or (method, part) == ('save_fasttext', 'n-grams')
  lines = [str(x.message) for x in recwarn if 'not written' in str(x.message)]
  assert len(lines) == (not holds) and all(part in x for x in lines)
  assert all(x.filename == __file__ for x in recwarn)


@each_format
def test_what_was_set_and_does_not_fit_is_not_written(method, tmp_path):
  for name, value in (
    ('vectors', _VECTORS[:2]),
    ('index_to_key', ['a', 'b']),
    ('index_to_key', ['a', 'b', 'c', 'a']),
    ('counts', np.array([4, 3, 2, -1])),
    ('counts', [1.5] * 4),
    ('attributes', {'tag': np.ones(3)}),
    ('attributes', {'count': np.ones(4)}),
  ):
    vectors = jaxemb.Embeddings([*'abcd'], _VECTORS, [4, 3, 2, 1])
    setattr(vectors, name, value)
    with pytest.raises(errors.UserError, match='before they are saved'):
      _write(vectors, method, tmp_path)
  assert not _files(tmp_path)
  vectors = jaxemb.Embeddings([*'abcd'], _VECTORS)
  vectors.vectors = _VECTORS[:, :2].tolist()  # fewer dimensions, all alike
  assert vectors.norms.shape == (4,)
  _write(vectors, method, tmp_path)


def test_senses_are_lost_in_files_of_rows(tmp_path):
  senses = multivectors.MultiVectors(
    words=['a', 'b'],
    counts=np.array([3, 2]),
    starts=np.array([0, 2, 4]),
    vectors=_VECTORS,
    priors=np.full(4, 0.5),
  )
  names = ['a#0', 'a#1', 'b#0', 'b#1']
  vectors = jaxemb.Embeddings(names, _VECTORS, sense_table=senses)
  with pytest.warns(UserWarning, match='v: senses are not written'):
    vectors.save_word2vec_format(tmp_path / 'v')


def test_saving_over_documents_makes_them_vectors(tmp_path):
  words = jaxemb.Embeddings([*'xyz'], _VECTORS[:3], [3, 2, 1])
  documents = trained.Documents(
    jaxemb.Embeddings(['old', 'older'], _VECTORS[:2]),
    outputs=words,
    inputs=None,
    settings=_SETTINGS,
  )
  documents.save(tmp_path)
  assert isinstance(jaxemb.load(tmp_path), trained.Documents)
  jaxemb.Embeddings([*'abcd'], _VECTORS).save(tmp_path)
  loaded = jaxemb.load(tmp_path)
  assert isinstance(loaded, jaxemb.Embeddings)
  assert loaded.index_to_key == [*'abcd']


def test_what_cannot_be_saved_leaves_the_folder_as_it_was(tmp_path):
  old = jaxemb.Embeddings(['old'], _VECTORS[:1], attributes={'tag': ['before']})
  old.save(tmp_path)
  before = _files(tmp_path)
  pruned = subwords.NgramVectors(
    ngrams_lib.Subwords(3, 4, 50),
    np.ones((1, 3), np.float32),
    buckets=np.array([7]),
    counts_missing=False,
  )
  for vectors, message in (
    (
      jaxemb.Embeddings(
        [*'abcd'], _VECTORS, attributes={'tag': [*'wxyz']}, subwords=pruned
      ),
      'quantized',
    ),
    (
      jaxemb.Embeddings([*'abcd'], _VECTORS, attributes={'x': [None] * 4}),
      'Python objects',
    ),
    (
      jaxemb.Embeddings([*'abcd'], _VECTORS, attributes={'x': ['', 'a\0'] * 2}),
      'Python objects',
    ),
    (jaxemb.Embeddings(3), 'no words'),
  ):
    with pytest.raises(errors.UserError, match=message):
      vectors.save(tmp_path)
    assert _files(tmp_path) == before
  with pytest.raises(errors.UserError, match='no words'):
    vectors.save_onnx(tmp_path / 'x')


@pytest.mark.parametrize(
  'name', ['n' * 300, 'a\0b', '~nobody/a', 'a.txt,' * 99]
)
def test_names_that_no_file_can_have_are_one_line(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  vectors = jaxemb.Embeddings(['a', 'b'], _VECTORS[:2])
  settings = {'path': name, 'labels': ''}
  for read in (
    jaxemb.load,
    jaxemb.load_phrases,
    vectors.evaluate_word_pairs,
    lambda x: graph_files.read(settings, tmp_path / 'cache', print),
  ):
    with pytest.raises(errors.UserError):
      read(name)
  for bad in '', 'a\0b':
    with pytest.raises(errors.UserError, match='the name of a file'):
      vectors.save_word2vec_format(bad)
