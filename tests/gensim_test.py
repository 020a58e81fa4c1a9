"""`Embeddings` has what gensim's `KeyedVectors` has, and passes its tests."""

import copy
import inspect
import itertools
import math
import pathlib
import pickle
import re
import sys

import numpy as np
import pytest
from gensim import models

import jaxemb
from jaxemb import errors, missing_names
from jaxemb.evaluation import geometry, multivectors, subwords
from jaxemb.ops import growing
from jaxemb.ops import ngrams as ngrams_lib
from jaxemb.storage import export

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'experiments'))
import gensim_tests

_NAMES = [f'w{i}' for i in range(30)]
_VECTORS = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
_COUNTS = np.random.default_rng(1).permutation(30)


@pytest.fixture
def ours():
  return jaxemb.Embeddings(_NAMES, _VECTORS.copy(), _COUNTS)


@pytest.fixture
def keyed():
  keyed = models.KeyedVectors(4)
  keyed.add_vectors(_NAMES, _VECTORS)
  for name, count in zip(_NAMES, _COUNTS.tolist(), strict=True):
    keyed.set_vecattr(name, 'count', count)
  return keyed


def test_tests_of_gensim_pass(monkeypatch, capsys):
  results = gensim_tests.run()
  # Counts that nobody knows are not copied; pickles of gensim's are not read.
  missing = 'TestKeyedVectors.test_vectors_for_all_with_copy_vecattrs'
  assert results.failed.keys() == gensim_tests.OWN_FORMAT | {missing}
  assert len(results.passed) >= 31
  monkeypatch.setattr(gensim_tests, 'run', lambda _: results)
  monkeypatch.setattr(sys, 'argv', ['gensim_tests.py'])
  gensim_tests.main()
  lines = capsys.readouterr().out.splitlines()
  assert [x.split(':')[0] for x in lines[:-1]] == [*results.failed]
  assert lines[-1].startswith('31 of 32 tests passed')


def test_every_name_and_argument_of_gensim_is_there_or_says_what_is(ours):
  # Anything is passed to pickle.
  others = {'save': {'args', 'kwargs'}}
  for name, method in inspect.getmembers(models.KeyedVectors):
    if name.startswith('_'):
      continue
    if name in missing_names.INSTEAD:
      with pytest.raises(AttributeError, match=f'{name}.; '):
        getattr(ours, name)
      continue
    theirs = [*inspect.signature(method).parameters]
    found = [*inspect.signature(getattr(jaxemb.Embeddings, name)).parameters]
    theirs = [x for x in theirs if x not in others.get(name, ())]
    assert found[: len(theirs)] == theirs, name
  for name in (
    vars(models.KeyedVectors(2)).keys() - missing_names.INSTEAD.keys()
  ):
    assert hasattr(ours, name), name
  assert not hasattr(ours, 'anything')


def _assert_equal(ours, keyed):
  assert ours.index_to_key == keyed.index_to_key
  assert ours.key_to_index == keyed.key_to_index
  np.testing.assert_array_equal(ours.vectors, keyed.vectors)
  keyed.fill_norms(force=True)
  np.testing.assert_allclose(ours.norms, keyed.norms, 1e-6)


def test_changes_equal_those_of_gensim(ours, keyed):
  rng = np.random.default_rng(2)
  ours.fill_norms()
  for step in range(20):
    names = [f'w{i}' for i in rng.choice(60 + step, 1 + step % 7, False)]
    rows = rng.normal(size=(len(names), 4))
    for vectors in ours, keyed:
      if step % 3 == 0:
        vectors.add_vectors(names, list(rows))
      elif step % 3 == 1:
        vectors.add_vectors(names, rows, replace=True)
      else:
        vectors[names[0]] = rows[0]
    _assert_equal(ours, keyed)
  assert 'norms' in vars(ours)  # they are not computed again
  new = np.arange(4.0)
  assert ours.add_vector('new', new) == keyed.add_vector('new', new)
  _assert_equal(ours, keyed)
  assert ours.most_similar('new')[0][0] == keyed.most_similar('new')[0][0]
  ours.add_vector('new', new + 1)  # as in add_vectors
  np.testing.assert_array_equal(ours['new'], new)
  for vectors in ours, keyed:
    vectors.unit_normalize_all()
  np.testing.assert_allclose(ours.vectors, keyed.vectors, 1e-6)
  np.testing.assert_array_equal(ours.norms, keyed.norms)
  assert ours.get_vecattr('new', 'count') == 0 == len(ours.counts) - len(ours)


def test_of_equal_words_the_first_is_added_and_the_last_replaces():
  rows = np.arange(8).reshape(4, 2)
  for replace, expected in ((False, [[0, 1], [2, 3]]), (True, rows[2:])):
    vectors = jaxemb.Embeddings(2)
    vectors.add_vectors([*'abab'], rows, replace=replace)
    assert vectors.index_to_key == ['a', 'b']
    np.testing.assert_array_equal(vectors.vectors, expected)


def test_integers_that_are_added_are_names(monkeypatch):
  monkeypatch.setattr(geometry, '_BLOCK_ROWS', 2)
  vectors = jaxemb.Embeddings(vector_size=2, count=3, dtype=np.float16)
  vectors[[7, 5]] = np.eye(2)
  vectors[True] = np.ones(2)
  assert vectors.index_to_key == ['7', '5', 'true']
  np.testing.assert_array_equal(vectors[7], [1, 0])
  assert vectors.vectors.dtype == np.float16
  # In blocks, whatever the type.
  cosines = vectors.most_similar('7', topn=None)
  np.testing.assert_allclose(cosines, [1, 0, 0.5**0.5], 1e-3)


def test_what_vectors_are_from_stays(tmp_path):
  jaxemb.Embeddings(_NAMES, _VECTORS, _COUNTS).save(tmp_path)
  before = {x.name: x.read_bytes() for x in tmp_path.iterdir()}
  names, rows, counts = [*_NAMES], _VECTORS.copy(), _COUNTS.copy()
  given = jaxemb.Embeddings(names, rows, counts)
  for vectors in given, jaxemb.Embeddings.load(tmp_path, mmap='r'):
    first = vectors.vectors
    vectors.set_vecattr('w5', 'count', 77)
    vectors['w3'] = np.ones(4)
    vectors['new'] = np.ones(4)
    vectors.sort_by_descending_frequency()
    vectors.unit_normalize_all()
    np.testing.assert_array_equal(first, _VECTORS)
    assert vectors.index_to_key[0] == 'w5'
  assert names == _NAMES and (rows == _VECTORS).all()
  assert (counts == _COUNTS).all()
  assert before == {x.name: x.read_bytes() for x in tmp_path.iterdir()}


def test_copies_change_apart(ours):
  ours['new'] = np.ones(4)
  others = copy.copy(ours), pickle.loads(pickle.dumps(ours)), ours.in_memory()
  everyone = ours, *others, copy.deepcopy(ours)
  for number, vectors in enumerate(everyone):
    vectors[f'w{10 + number}'] = np.zeros(4)
    vectors.add_vector(f'x{number}', np.full(4, number))
    vectors['w3'] = np.full(4, number)
    vectors.set_vecattr('w3', 'count', number)
  for number, vectors in enumerate(everyone):
    assert vectors.index_to_key == [*_NAMES, 'new', f'x{number}']
    assert vectors.key_to_index[f'x{number}'] == 31
    assert (
      vectors['w3'].tolist() == vectors.vectors[31].tolist() == [number] * 4
    )
    assert vectors.get_vecattr('w3', 'count') == number
    zeros = np.flatnonzero(~vectors.vectors[10:20].any(1))
    assert zeros.tolist() == [number]
  assert len(pickle.dumps(jaxemb.Embeddings(100, count=1000))) < 10_000


def test_values_are_added_with_words(ours):
  before = ours.counts.tolist()
  for replace in False, True:
    names = ['w3', f'new{replace}', 'w4']
    values = {'count': np.array([5, 6, 7]), 'tag': np.array([*'abc'])}
    ours.add_vectors(names, np.zeros((3, 4)), values, replace=replace)
    assert ours.counts[-1] == 6 and ours.get_vecattr(names[1], 'tag') == 'b'
    rest = before[3:5] if not replace else [5, 7]
    assert ours.counts[3:5].tolist() == rest
    tags = [ours.get_vecattr(x, 'tag') for x in ('w3', 'w4', 'w5')]
    assert tags == (['a', 'c', 0] if replace else [0, 0, 0])
  assert ours.counts[5:30].tolist() == before[5:]


def test_words_beside_unseen_ones_change(monkeypatch, tmp_path):
  monkeypatch.setattr(growing, '_BLOCK_ROWS', 7)
  rng = np.random.default_rng(4)
  ngrams = subwords.NgramVectors(
    ngrams_lib.Subwords(3, 4, 50), rng.normal(size=(50, 4)).astype(np.float32)
  )
  vectors = jaxemb.Embeddings(_NAMES, _VECTORS, _COUNTS, subwords=ngrams)
  unseen, added = vectors['unseen'], vectors['added']
  for word in 'w3', 'added':
    vectors[word] = np.ones(4)
  assert len(vectors) == 31 and not np.allclose(added, 1)
  vectors.sort_by_descending_frequency()
  vectors.save(tmp_path / 'folder')
  vectors.save_fasttext(tmp_path / 'v.bin')
  for loaded in vectors, *map(jaxemb.load, sorted(tmp_path.iterdir())):
    assert loaded.counts[0] == 29 and not loaded.has_index_for('unseen')
    found = loaded[['w3', 'added', 'w5', 'unseen']]
    expected = [np.ones(4), np.ones(4), _VECTORS[5], unseen]
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
  before = loaded[_NAMES]  # of rows that are computed when they are read
  loaded['other'] = np.zeros(4)
  np.testing.assert_allclose(loaded[_NAMES], before, atol=1e-6)
  np.testing.assert_array_equal(loaded.vectors[-1], np.zeros(4))


def test_rows_are_added_one_by_one_in_linear_time():
  vectors = jaxemb.Embeddings(vector_size=1)
  buffers = set()
  for i in range(1000):
    vectors.add_vector(str(i), np.array([i]))
    buffers.add(len(vectors.vectors.base))
  assert len(buffers) < 25
  np.testing.assert_array_equal(vectors.vectors[:, 0], range(1000))
  reserved = jaxemb.Embeddings(1, count=1000)
  buffer = reserved.vectors.base
  reserved.add_vectors(vectors.index_to_key, vectors.vectors)
  assert len(buffer) == 1000 and reserved.vectors.base is buffer
  # The first change of a table makes one copy, no larger than it has to be.
  assert len(growing.grown(np.ones((10, 2)), 3, False).base) == 13


def test_norms_follow_what_is_set(ours):
  for change in (
    lambda: ours.__setattr__('vectors', ours.vectors * 2),
    lambda: (ours.vectors.__imul__(2), ours.fill_norms(force=True)),
    lambda: (ours.vectors.__imul__(2), ours.__setattr__('norms', None)),
  ):
    before = ours.norms
    change()
    np.testing.assert_allclose(ours.norms, 2 * before, 1e-6)
  ours['new'] = np.zeros(4)
  rows = ours.vectors = np.ones((31, 4), np.float32)  # in place of its copy
  ours['w3'] = np.zeros(4)
  assert ours.vectors.sum() == 4 * 30 and rows.all()
  ours.vectors = rows[:30]
  ours.index_to_key = [x.upper() for x in _NAMES]
  assert ours.get_index('W3') == 3 and 'w3' not in ours
  ours.init_sims(replace=True)
  np.testing.assert_allclose(np.linalg.norm(ours.vectors, axis=1), 1, 1e-6)


def test_what_does_not_fit_changes_nothing(ours):
  before = ours.in_memory()
  for keys, rows, extras in (
    ('new', np.ones(3), {}),
    (['new', 'w3'], np.ones((1, 4)), {}),
    ('new', np.full(4, np.nan), {}),
    (['new', b'x'], np.ones((2, 4)), {}),
    (['new', 'w3'], np.ones((2, 4)), {'weight': np.ones(3)}),
    (['new'], np.ones((1, 4)), {'weight': np.ones((1, 3))}),
    (['new'], np.ones((1, 4)), {'weight': 3}),
    (['new'], np.ones((1, 4)), {'count': [-1]}),
    (['new'], np.ones((1, 4)), {'count': [10**12]}),
    (['new', 'w3'], [np.ones(4), np.ones(3)], {}),
    ('new', 'text', {}),
    (['new'], (x for x in _VECTORS), {}),
  ):
    with pytest.raises(errors.UserError):
      ours.add_vectors(keys, rows, extras, replace=True)
  for attr, value in (('count', 0.5), ('count', 'many')):
    with pytest.raises(TypeError, match='values of int64'):
      ours.set_vecattr('w3', attr, value)
    with pytest.raises(TypeError, match='values of int64'):
      ours.add_vectors('new', np.ones(4), {attr: np.array([value])})
  for value in -1, 10**12:
    with pytest.raises(ValueError, match='from 0 to 999,999,999,999'):
      ours.set_vecattr('w3', 'count', value)
  with pytest.raises(KeyError, match='none'):
    ours.set_vecattr('none', 'count', 3)
  _assert_same(ours, before)
  with pytest.raises(TypeError, match='vector_size'):
    jaxemb.Embeddings(['a'])
  with pytest.raises(TypeError, match='vector_size'):
    jaxemb.Embeddings()


def _assert_same(ours, other):
  assert ours.index_to_key == other.index_to_key
  np.testing.assert_array_equal(ours.vectors, other.vectors)
  assert ours.expandos.keys() == other.expandos.keys()
  for name, values in ours.expandos.items():
    np.testing.assert_array_equal(values, other.expandos[name])


def test_rows_that_have_further_vectors_cannot_be_changed():
  senses = multivectors.MultiVectors(
    words=['a'],
    counts=np.ones(1, int),
    starts=np.array([0, 1]),
    vectors=np.ones((1, 2), np.float32),
    priors=np.ones(1),
  )
  relations = export.Relations(
    'none', 'product', 0.0, [], np.ones((0, 2)), targets=senses.vectors
  )
  for options in {'sense_table': senses}, {'relations': relations}:
    vectors = jaxemb.Embeddings(['a'], senses.vectors, np.ones(1), **options)
    vectors.sort_by_descending_frequency()  # which they are
    with pytest.raises(errors.UserError, match='cannot be changed'):
      vectors['b'] = np.ones(2)


def test_attributes_are_sorted_chosen_and_saved(ours, keyed, tmp_path):
  for vectors in ours, keyed:
    for i, name in enumerate(_NAMES[:9]):
      vectors.set_vecattr(name, 'weight', i / 4)
      vectors.set_vecattr(name, 'tag', name * i)
      vectors.set_vecattr(name, 'file', i)
    vectors.sort_by_descending_frequency()
  _assert_equal(ours, keyed)
  equal = jaxemb.Embeddings(_NAMES, _VECTORS, np.ones(30))
  equal.sort_by_descending_frequency()  # gensim's turns them around
  assert equal.index_to_key == _NAMES and equal.vectors is _VECTORS
  for name, attr in itertools.product(_NAMES, ('count', 'weight', 'tag')):
    assert ours.get_vecattr(name, attr) == keyed.get_vecattr(name, attr)
  ours.add_vectors('new', np.ones(4), {'weight': np.array([7])})
  assert ours.get_vecattr('new', 'weight') == 7
  ours.save(tmp_path)
  loaded = jaxemb.load(tmp_path)
  assert ours.get_vecattr('new', 'tag') == 0  # as in gensim
  assert loaded.get_vecattr('new', 'tag') == ''
  assert loaded.get_vecattr('w8', 'file') == 8
  assert loaded.get_vecattr('w8', 'tag') == 'w8' * 8
  np.testing.assert_array_equal(
    loaded.expandos['weight'], ours.expandos['weight']
  )
  loaded.set_vecattr('w3', 'tag', 'longer than all others' * 3)
  assert len(loaded.get_vecattr('w3', 'tag')) == 66
  some = loaded.vectors_for_all(['w8', 'w2'], copy_vecattrs=True)
  assert some.get_vecattr('w2', 'weight') == 0.5
  assert some.counts.tolist() == [_COUNTS[8], _COUNTS[2]]
  assert not loaded.vectors_for_all(['w8', 'w2']).expandos
  with pytest.raises(KeyError, match='no attribute .x., but count, weight'):
    ours.get_vecattr('w3', 'x')
  ours.set_vecattr('w3', 'parent', None)
  with pytest.raises(errors.UserError, match="'parent' has Python objects"):
    ours.save(tmp_path)
  del ours.attributes['parent']
  jaxemb.Embeddings(_NAMES[:5], _VECTORS[:5]).save(tmp_path / 'other')
  (tmp_path / 'attributes.npz').rename(tmp_path / 'other/attributes.npz')
  with pytest.raises(errors.UserError, match='weight. of shape .31,. do not'):
    jaxemb.load(tmp_path / 'other')
  jaxemb.Embeddings(_NAMES, _VECTORS).save(tmp_path / 'other')
  assert not jaxemb.load(tmp_path / 'other').attributes


@pytest.mark.parametrize(
  ('kind', 'values', 'new', 'longer'),
  [
    (object, [*'abc'], 'd', 'longer than the others'),
    (object, [b'a', b'b', b'c'], b'd', b'longer than the others'),
    (bool, [True, False, True], True, False),
    (np.int8, np.array([1, -2, 3], np.int8), 5, -100),
    (np.float32, np.array([0.5, -2, 3], np.float32), 1.5, 1e30),
    ('M8[s]', np.array([1, 2, 3], 'M8[s]'), *np.array([4, 10**9], 'M8[s]')),
  ],
)
def test_values_of_any_type_stay_as_they_are(
  kind, values, new, longer, tmp_path
):
  names = ['w0', 'w1', 'w2']
  vectors = jaxemb.Embeddings(
    names, _VECTORS[:3], attributes={'value': values}, counts=[3, 2, 1]
  )
  vectors.add_vectors(['w3'], _VECTORS[3:4], {'value': np.array([new])})
  vectors.set_vecattr('w1', 'value', longer)
  expected = [values[0], longer, values[2], new]
  vectors.save(tmp_path)
  picked = vectors.vectors_for_all([*names, 'w3'], copy_vecattrs=True)
  for some in vectors, picked, jaxemb.load(tmp_path), copy.copy(vectors):
    assert some.attributes['value'].dtype == kind
    expected = np.array(expected, kind)
    np.testing.assert_array_equal(some.attributes['value'], expected)
  ngrams = subwords.NgramVectors(
    ngrams_lib.Subwords(3, 4, 50), np.ones((50, 4), np.float32)
  )
  for words in [], names:  # of unseen words they are zero
    vectors = jaxemb.Embeddings(
      words,
      _VECTORS[: len(words)],
      attributes={'value': values[: len(words)]},
      subwords=ngrams,
    )
    some = vectors.vectors_for_all(['unseen', *words], copy_vecattrs=True)
    found = some.attributes['value']
    assert found[0] == np.zeros(1, found.dtype)[0] and len(some) == len(found)


def test_values_that_do_not_fit_are_refused(ours):
  vectors = jaxemb.Embeddings(
    ['a'], np.ones((1, 4)), attributes={'small': np.array([7], np.int8)}
  )
  for value in 300, -129, 2**40:
    with pytest.raises(TypeError, match='int8'):
      vectors.set_vecattr('a', 'small', value)
    with pytest.raises(TypeError, match='int8'):
      vectors.add_vectors('b', np.ones(4), {'small': np.array([value])})
  for options in (
    {'counts': [1]},
    {'counts': [1, 2.5]},
    {'counts': [1, -1]},
    {'counts': [1, 10**12]},
    {'counts': np.ones((2, 1))},
    {'attributes': {'tag': [1]}},
    {'attributes': {'tag': [[1], [2]]}},
  ):
    with pytest.raises(ValueError, match='do not fit 2 words|counts must be'):
      jaxemb.Embeddings([*'ab'], np.ones((2, 3)), **options)
  for options in {'vector_size': 3}, {'count': 2}, {'dtype': np.float64}:
    with pytest.raises(TypeError, match='leave them out'):
      jaxemb.Embeddings([*'ab'], np.ones((2, 3)), **options)
  assert jaxemb.Embeddings(['a'], np.ones((1, 2)), [3.0]).counts.dtype == int
  vectors.attributes['text'] = np.array(['x'])  # as it is, with a limit
  vectors.set_vecattr('a', 'text', 'longer')
  assert vectors.get_vecattr('a', 'text') == 'longer'
  vectors.set_vecattr('a', 'pair', [1, [2]])  # an object of any kind
  assert vectors.get_vecattr('a', 'pair') == [1, [2]]
  for rows in [[1, 2], [3, 4]], np.array([[1, 2], [3, 4]]):
    numbers = jaxemb.Embeddings([*'ab'], rows)
    numbers.unit_normalize_all()
    np.testing.assert_allclose(numbers['b'], [0.6, 0.8], rtol=1e-6)
  named = jaxemb.Embeddings([7, True, 'x'], np.ones((3, 2)))
  assert named.index_to_key == ['7', 'true', 'x'] and 7.0 in named
  for bad in b'x', None, ('x',):
    with pytest.raises(errors.UserError, match='is no word'):
      jaxemb.Embeddings(['a', bad], np.ones((2, 2)))
  senses = multivectors.MultiVectors(
    words=['a'],
    counts=np.ones(1, int),
    starts=np.array([0, 2]),
    vectors=np.ones((2, 2), np.float32),
    priors=np.ones(2) / 2,
  )
  ngrams = subwords.NgramVectors(ngrams_lib.Subwords(3, 4, 5), np.ones((5, 4)))
  with pytest.raises(ValueError, match='of 4 numbers do not fit vectors of 3'):
    jaxemb.Embeddings([*'ab'], np.ones((2, 3)), subwords=ngrams)
  with pytest.raises(ValueError, match='2 senses do not fit 1 words'):
    jaxemb.Embeddings(['a'], np.ones((1, 2)), sense_table=senses)


@pytest.mark.parametrize('args', [(7,), (7, 5), (7, 5, np.float16)])
def test_the_first_arguments_are_those_of_gensim(args):
  ours, theirs = jaxemb.Embeddings(*args), models.KeyedVectors(*args)
  assert len(ours) == 0 and ours.vector_size == theirs.vector_size
  assert ours.vectors.dtype == theirs.vectors.dtype
  assert len(ours.vectors.base) == len(theirs.vectors)
  ours['a'] = np.ones(7)
  assert ours.counts is None and len(ours) == 1


def test_what_changes_nothing_copies_nothing(tmp_path, monkeypatch):
  jaxemb.Embeddings(_NAMES, _VECTORS, _COUNTS).save(tmp_path)
  vectors = jaxemb.load(tmp_path)
  before = vectors.vectors
  vectors.add_vector('w3', np.ones(4))
  vectors.add_vectors([], [])
  vectors.add_vectors(['w3'], np.ones((1, 4)), {'tag': ['x']})
  assert vectors.vectors is before and vectors.attributes['tag'][3] == 0
  vectors.fill_norms()
  vectors.set_vecattr('w3', 'weight', 0.5)
  vectors['new'] = np.ones(4)
  names = 'vectors', 'norms', 'counts'
  vectors['newer'] = np.ones(4)  # this copy has room for more
  arrays = [getattr(vectors, x) for x in names] + [vectors.attributes['weight']]
  for i in range(5):
    vectors[f'newest{i}'] = np.full(4, i)
  after = [getattr(vectors, x) for x in names] + [vectors.attributes['weight']]
  for old, new in zip(arrays, after, strict=True):
    assert new.base is old.base and len(new) == 37
  vectors.sort_by_descending_frequency()
  rows = vectors.vectors
  vectors['w3'] = np.zeros(4)
  assert np.shares_memory(vectors.vectors, rows)


def test_words_are_any_iterable_but_no_text(ours, keyed):
  for words in {'w1', 'w2', 'w5'}, {'w1': 0, 'w2': 1}.keys():
    cosines = [x.n_similarity(words, ['w7']) for x in (ours, keyed)]
    assert cosines[0] == pytest.approx(cosines[1], abs=1e-6)
    assert ours.wmdistance(words, ['w7']) > 0
    means = [x.get_mean_vector(words) for x in (ours, keyed)]
    np.testing.assert_allclose(*means, atol=1e-6)
    assert ours.doesnt_match(words) == keyed.doesnt_match(words)
    assert len(ours.distances('w1', words)) == len(words)
    assert len(ours.vectors_for_all(x for x in words)) == len(words)
  mixed = [['w1', _VECTORS[3], 'w2'], [1.0, -2.0, 0.5]]
  for options in {}, {'pre_normalize': False, 'post_normalize': True}:
    means = [x.get_mean_vector(*mixed, **options) for x in (ours, keyed)]
    np.testing.assert_allclose(*means, atol=1e-6)
  with pytest.raises(errors.UserError, match='not finite'):
    ours.get_mean_vector(['w1', 'w2'], [1, np.nan])
  infinite = jaxemb.Embeddings(['a', 'b'], np.array([[1.0, np.inf], [2, 3]]))
  with pytest.raises(errors.UserError, match='not finite'):
    infinite.get_mean_vector(['a', 'b'])
  for call in (
    lambda: ours.get_mean_vector('w1'),
    lambda: ours.n_similarity('w1', 'w2'),
    lambda: ours.doesnt_match('w1 w2'),
    lambda: ours.distances('w1', 'w2'),
    lambda: ours.vectors_for_all('w1'),
  ):
    with pytest.raises(TypeError, match='give a list of words'):
      call()
  with pytest.raises(ValueError, match='at least one word'):
    ours.most_similar_to_given('w1', [])
  unknown = [f'none{i}' for i in range(1025)]
  with pytest.warns(UserWarning, match='none19 and 1,005 more$'):
    assert not len(ours.vectors_for_all(unknown))


def test_unknown_counts_are_made_up_with_a_warning():
  vectors = jaxemb.Embeddings(_NAMES, _VECTORS)
  with pytest.warns(UserWarning, match='made up'):
    assert vectors.get_vecattr('w3', 'count') == 27
  with pytest.warns(UserWarning, match='rows stay'):
    vectors.sort_by_descending_frequency()
  assert vectors.counts is None
  vectors.set_vecattr('w3', 'count', 5)
  assert vectors.counts.tolist() == [0] * 3 + [5] + [0] * 26


def test_an_index_of_any_kind_is_asked_as_by_gensim(ours, keyed):
  class Indexer:
    def most_similar(self, vector, num):
      self.asked = vector, num
      return [('w7', 0.5)]

  indexers = Indexer(), Indexer()
  for vectors, indexer in zip((ours, keyed), indexers, strict=True):
    query = {'positive': ['w3', 'w5'], 'negative': ['w9'], 'topn': 4}
    near = vectors.most_similar(**query, indexer=indexer)
    assert near == [('w7', 0.5)] and indexer.asked[1] == 4
  np.testing.assert_allclose(*(x.asked[0] for x in indexers), 1e-6)


def test_a_limit_of_zero_is_none(ours, keyed):
  for method in 'most_similar', 'most_similar_cosmul':
    found, expected = (
      getattr(x, method)('w3', topn=40, restrict_vocab=0) for x in (ours, keyed)
    )
    assert [x for x, _ in found] == [x for x, _ in expected] and len(
      found
    ) == 29
  assert len(ours.most_similar('w3', topn=40, clip_end=0)) == 29


def test_vectors_of_exact_names_alone():
  vectors = jaxemb.Embeddings(['a_b', 'c'], np.eye(2, dtype=np.float32))
  assert vectors.vectors_for_all(['a b', 'c']).index_to_key == ['a b', 'c']
  with pytest.warns(UserWarning, match='without vectors: a b'):
    some = vectors.vectors_for_all(['a b', 'c'], allow_inference=False)
  assert some.index_to_key == ['c']


def test_words_are_ranked_by_centrality_as_in_gensim(ours, keyed):
  for use_norm in True, False:
    found, expected = (
      x.rank_by_centrality(_NAMES[3:9], use_norm) for x in (ours, keyed)
    )
    assert [word for _, word in found] == [word for _, word in expected]
    np.testing.assert_allclose(
      *([x for x, _ in y] for y in (found, expected)), 1e-5
    )


def _movers_distance(first, second):
  """Of as many points on each side, by trying every assignment."""
  costs = np.linalg.norm(first[:, None] - second, axis=-1)
  rows = np.arange(len(first))
  return min(
    costs[rows, [*x]].mean() for x in itertools.permutations(rows.tolist())
  )


def test_word_movers_distance_is_the_best_assignment(ours):
  rng = np.random.default_rng(3)
  for norm in True, False:
    rows = _VECTORS.astype(np.float64)
    if norm:
      rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for size in (1, 2, 3, 6, 6, 6):
      # Words occur several times, and in both documents.
      first, second = rng.integers(5, size=(2, size))
      expected = _movers_distance(rows[first], rows[second])
      documents = ([f'w{i}' for i in x] for x in (first, second))
      found = ours.wmdistance(*documents, norm=norm)
      assert found == pytest.approx(expected, abs=1e-6)
    # The second document twice is the same distribution.
    found = ours.wmdistance(['w1', 'w2'], ['w3', 'w4', 'w4', 'w3'], norm)
    expected = ours.wmdistance(['w1', 'w2'], ['w3', 'w4'], norm)
    assert found == pytest.approx(expected)
  assert ours.wmdistance(['w1'], ['w1', 'w1']) == 0
  with pytest.warns(UserWarning, match='without vectors: none'):
    assert ours.wmdistance(['w1'], ['none']) == math.inf
  with pytest.raises(TypeError, match='split'):
    ours.wmdistance('w1 w2', ['w1'])


@pytest.mark.parametrize('binary', [False, True])
def test_files_have_the_order_prefix_and_total_that_gensim_writes(
  ours, keyed, binary, tmp_path
):
  for name, vectors in (('ours', ours), ('theirs', keyed)):
    for i, word in enumerate(_NAMES):
      vectors.set_vecattr(word, 'weight', (i * 7 % 11) / 4)
    path, vocab = tmp_path / name, tmp_path / f'{name}.vocab'
    options = {'binary': binary, 'prefix': 'x_', 'total_vec': 60}
    vectors.save_word2vec_format(str(path), str(vocab), **options)
    vectors.save_word2vec_format(
      str(path),
      str(vocab),
      binary=binary,
      write_header=False,
      append=True,
      sort_attr='weight',
    )
  ours_vocab, their_vocab = (
    (tmp_path / f'{x}.vocab').read_text() for x in ('ours', 'theirs')
  )
  assert ours_vocab == their_vocab
  found, expected = (
    models.KeyedVectors.load_word2vec_format(tmp_path / x, binary=binary)
    for x in ('ours', 'theirs')
  )
  assert found.index_to_key == expected.index_to_key
  assert len(found) == 60 and found.index_to_key[0].startswith('x_')
  np.testing.assert_array_equal(found.vectors, expected.vectors)


def test_files_that_cannot_be_appended_to(ours, tmp_path):
  with pytest.raises(errors.UserError, match='appended to the archive'):
    ours.save_word2vec_format(tmp_path / 'v.zip', append=True)
  with pytest.raises(errors.UserError, match='cannot append to'):
    ours.save_word2vec_format(tmp_path, append=True)
  for _ in range(2):
    ours.save_word2vec_format(
      tmp_path / 'v.gz', write_header=False, append=True
    )
  with pytest.warns(UserWarning, match='30 repeated words'):
    assert len(jaxemb.load(tmp_path / 'v.gz')) == 30
  with pytest.raises(ValueError, match='no weights are known'):
    ours.save_word2vec_format(tmp_path / 'v', sort_attr='weight')
  with pytest.raises(TypeError, match='no pickle_protocol'):
    ours.save(tmp_path, pickle_protocol=4)
  with pytest.raises(ValueError, match='mmap'):
    jaxemb.Embeddings.load(tmp_path, mmap='r+')


@pytest.mark.parametrize('binary', [False, True])
@pytest.mark.parametrize('limit', [None, 1, 7, 99])
def test_files_of_gensim_are_loaded_as_it_does(keyed, binary, limit, tmp_path):
  path, vocab = str(tmp_path / 'v'), str(tmp_path / 'vocab')
  keyed.save_word2vec_format(path, vocab, binary=binary)
  load = jaxemb.Embeddings.load_word2vec_format
  for options in {'binary': binary}, {}, {'datatype': np.float16}:
    found = load(path, vocab, limit=limit, **options)
    expected = models.KeyedVectors.load_word2vec_format(
      path, vocab, limit=limit, **{'binary': binary, **options}
    )
    assert found.index_to_key == expected.index_to_key
    np.testing.assert_array_equal(found.vectors, expected.vectors)
    assert found.vectors.dtype == expected.vectors.dtype
    for word in found:
      expected_count = expected.get_vecattr(word, 'count')
      assert found.get_vecattr(word, 'count') == expected_count
  with pytest.raises(errors.UserError, match=f'give binary={binary}'):
    load(path, binary=not binary)
  ours = jaxemb.Embeddings(keyed.index_to_key, keyed.vectors)
  if not binary:
    ours.save_word2vec_format(tmp_path / 'w', write_header=False)
    found = load(tmp_path / 'w', no_header=True, limit=limit)
    assert len(found) == min(limit or 30, 30)
    with pytest.raises(errors.UserError, match='give no_header=True'):
      load(tmp_path / 'w', no_header=False)
  other = jaxemb.Embeddings(['w3', 'mine'], np.ones((2, 4), np.float32))
  other.intersect_word2vec_format(path, binary=binary)
  np.testing.assert_array_equal(other['w3'], _VECTORS[3])
  np.testing.assert_array_equal(other['mine'], np.ones(4))
  assert len(other) == 2
  with pytest.raises(TypeError, match='leave out lockf'):
    other.intersect_word2vec_format(path, lockf=1.0)
  wide = jaxemb.Embeddings(['w3'], np.ones((1, 5), np.float32))
  with pytest.raises(errors.UserError, match='these are of 5'):
    wide.intersect_word2vec_format(path)


def test_words_in_another_encoding_are_decoded_as_is_asked(tmp_path):
  path, vocab = tmp_path / 'v', tmp_path / 'vocab'
  path.write_bytes('2 2\nmüde 1 2\nwach 3 4\n'.encode('cp1252'))
  vocab.write_bytes('müde 5\n'.encode('cp1252'))
  load = jaxemb.Embeddings.load_word2vec_format
  with pytest.raises(UnicodeDecodeError, match='a word of .*v.; give its enc'):
    load(path)
  assert load(path, encoding='cp1252').index_to_key == ['müde', 'wach']
  with pytest.warns(UserWarning, match="no counts of 1 words, such as 'wach'"):
    found = load(path, vocab, unicode_errors='ignore')
  assert found.index_to_key == ['mde', 'wach']
  assert found.counts.tolist() == [5, 0]
  with pytest.raises(errors.UserError, match='replace or ignore'):
    load(path, unicode_errors='none')


def test_ratings_in_another_encoding(ours, tmp_path):
  path = tmp_path / 'pairs'
  vectors = jaxemb.Embeddings([*'äbcd'], _VECTORS[:4])
  path.write_bytes('ä\tb\t1\nb\tc\t2\nc\td\t3\n'.encode('cp1252'))
  assert vectors.evaluate_word_pairs(path, encoding='cp1252')[2] == 0
  assert vectors.evaluate_word_pairs(path)[2] == pytest.approx(100 / 3)
  with pytest.raises(errors.UserError, match='no encoding .none.'):
    vectors.evaluate_word_pairs(path, encoding='none')


def test_ours_and_gensim_exchange_vectors_in_memory(ours, keyed):
  theirs = models.KeyedVectors(ours.vector_size)
  theirs.add_vectors(ours.index_to_key, ours.vectors)
  assert theirs.most_similar('w3') == keyed.most_similar('w3')
  found = jaxemb.Embeddings(theirs.index_to_key, theirs.vectors)
  _assert_equal(found, keyed)
  values = {'attributes': keyed.expandos}
  found = jaxemb.Embeddings(keyed.index_to_key, keyed.vectors, **values)
  assert found.counts.tolist() == _COUNTS.tolist() and not found.attributes
  with pytest.raises(ValueError, match='attribute count as well'):
    jaxemb.Embeddings(_NAMES, _VECTORS, _COUNTS, **values)


def test_the_page_names_all():
  page = pathlib.Path(__file__).parents[1] / 'docs/guides/keyed_vectors.md'
  text = page.read_text()
  named = set(re.findall(r'(\w+)', ' '.join(re.findall('`([^`]*)`', text))))
  public = {x for x in dir(models.KeyedVectors) if not x.startswith('_')}
  assert public <= named
