"""Queries equal gensim's; every form of stored vectors loads the same."""

import copy
import gzip
import pickle

import numpy as np
import pytest
from gensim import models
from pyarrow import parquet

import jaxemb
from jaxemb import embeddings, errors
from jaxemb.evaluation import analogies, benchmarks
from jaxemb.storage import export
from jaxemb.storage import parquet as parquet_lib

pytestmark = pytest.mark.filterwarnings('ignore:Call to deprecated')
_NAMES = [f'w{i}' for i in range(200)]
_VECTORS = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)


@pytest.fixture
def ours():
  return jaxemb.Embeddings(list(_NAMES), _VECTORS.copy())


@pytest.fixture
def keyed():
  keyed = models.KeyedVectors(16)
  keyed.add_vectors(_NAMES, _VECTORS)
  return keyed


@pytest.mark.parametrize(
  ('method', 'args'),
  [
    ('most_similar', {'positive': ['w3', 'w5'], 'negative': ['w7']}),
    ('most_similar', {'positive': ['w3'], 'negative': 'w7', 'topn': 3}),
    ('most_similar', {'positive': [('w3', 0.3), 'w5', ('w9', -2.0)]}),
    ('most_similar', {'positive': [_VECTORS[0] * 3], 'restrict_vocab': 50}),
    ('most_similar', {'positive': ['w3', 'w5'], 'topn': 0}),
    ('most_similar', {'positive': ['w3', 'w5', 'w150'], 'restrict_vocab': 10}),
    ('most_similar', {'positive': 'w1', 'topn': None, 'restrict_vocab': 70}),
    ('most_similar_cosmul', {'positive': ['w3', 'w5'], 'negative': ['w7']}),
    ('similar_by_vector', {'vector': _VECTORS[4] + 1, 'restrict_vocab': 90}),
    ('get_vector', {'key': 'w3', 'norm': True}),
    ('get_normed_vectors', {}),
    ('similarity', {'w1': 'w3', 'w2': 'w5'}),
    ('most_similar', {'positive': 'w1', 'clip_start': 7, 'clip_end': 70}),
    ('most_similar', {'positive': 'w1', 'topn': None, 'clip_start': 70}),
    ('similar_by_key', {'key': 'w3', 'restrict_vocab': 30}),
    ('distances', {'word_or_vector': 'w3'}),
    ('distances', {'word_or_vector': _VECTORS[3], 'other_words': ['w5', 'w7']}),
    ('n_similarity', {'ws1': ['w3', 'w5'], 'ws2': ['w7']}),
    ('closer_than', {'key1': 'w3', 'key2': 'w5'}),
    ('rank', {'key1': 'w3', 'key2': 'w5'}),
    ('most_similar_to_given', {'key1': 'w3', 'keys_list': ['w5', 'w7', 'w9']}),
    ('relative_cosine_similarity', {'wa': 'w3', 'wb': 'w5'}),
    ('get_mean_vector', {'keys': ['w3', _VECTORS[9], 'w7']}),
    (
      'get_mean_vector',
      {'keys': ['w3', 'w5'], 'weights': [2, -1], 'post_normalize': True},
    ),
    (
      'cosine_similarities',
      {'vector_1': _VECTORS[3], 'vectors_all': _VECTORS[:9]},
    ),
    ('get_index', {'key': 'none', 'default': -7}),
    ('has_index_for', {'key': 'none'}),
  ],
)
def test_queries_equal_gensim(ours, keyed, method, args):
  expected = getattr(keyed, method)(**args)
  found = getattr(ours, method)(**args)
  if method in ('closer_than', 'most_similar_to_given'):
    assert found == expected
    return
  if isinstance(found, list):
    assert [word for word, _ in found] == [word for word, _ in expected]
    found, expected = ([x for _, x in result] for result in (found, expected))
  np.testing.assert_allclose(found, expected, 2e-6, 1e-7)


def test_groups_equal_gensim(ours, keyed):
  for i in range(50):
    words = _NAMES[i : i + 5]
    assert ours.doesnt_match(words) == keyed.doesnt_match(words)
  found = ours.analogy('w7', 'w3', 'w5')
  assert found == ours.most_similar(['w3', 'w5'], ['w7'])
  # gensim's ignores the limit.
  found = ours.most_similar_cosmul('w3', topn=100, restrict_vocab=20)
  assert {word for word, _ in found} == {*_NAMES[:20]} - {'w3'}


def test_lookup(ours):
  assert len(ours) == 200 and ours.vector_size == 16
  assert 'w3' in ours and 'x' not in ours and 3 not in ours
  assert list(ours) == _NAMES
  np.testing.assert_array_equal(ours.row(3), _VECTORS[3])
  for number in (-1, 200):
    with pytest.raises(IndexError, match=f'no row {number}'):
      ours.row(number)
  assert ours[[]].shape == (0, 16)
  np.testing.assert_array_equal(ours[['w3', 'w1']], _VECTORS[[3, 1]])
  with pytest.raises(ValueError, match='read-only'):
    ours['w3'][0] = 1
  ours.vectors[5] = 0
  assert ours.similarity('w5', 'w3') == 0
  assert not np.isnan(ours.most_similar('w3', topn=None)).any()
  assert not ours.get_normed_vectors()[5].any()
  assert not ours.get_vector('w5', norm=True).any()
  halves = jaxemb.Embeddings(['a'], np.array([[100, 120]], np.int8))
  np.testing.assert_allclose(halves.norms, [24400**0.5], rtol=1e-6)


@pytest.mark.parametrize('kind', [int, np.float32, str])
def test_integers_are_names(kind):
  rng = np.random.default_rng(0)
  names = [str(x) for x in rng.permutation(50)] + ['7.5', 'x']
  vectors = rng.normal(size=(52, 4)).astype(np.float32)
  found = jaxemb.Embeddings(names, vectors)
  for name in map(str, range(50)):
    key = kind(name)
    assert key in found and found.get_index(key) == names.index(name)
    np.testing.assert_array_equal(found[key], found[name])
    assert found.most_similar(key) == found.most_similar(name)
    assert found.most_similar([(key, 2)]) == found.most_similar(name)
    assert found.similarity(key, kind(3)) == found.similarity(name, '3')
    scores = (
      found.edge_scores([(x, y)]) for x, y in ((key, kind(1)), (name, '1'))
    )
    np.testing.assert_array_equal(*scores)
  keys = np.array([kind(1), kind(2)])
  if keys.dtype.kind != 'f':  # which would be a vector
    assert found.most_similar(keys) == found.most_similar(['1', '2'])
  np.testing.assert_array_equal(found[keys], found[['1', '2']])
  assert 50 not in found and kind(1) in found
  with pytest.raises(KeyError, match='row'):
    found.most_similar(50)
  with pytest.raises(ValueError, match='may be two words'):
    found.most_similar((1, 2))


def test_vectors_that_do_not_fit_are_refused(ours):
  for bad in (np.full(16, np.nan), np.full(16, np.inf), np.ones(15)):
    for method in (ours.similar_by_vector, ours.distances):
      with pytest.raises(errors.UserError, match='give one of 16 finite'):
        method(bad.astype(np.float32))


def test_vectors_for_some_words(ours):
  with pytest.warns(UserWarning, match='without vectors: none'):
    some = ours.vectors_for_all(['w5', 'none', 'w3', 'w5'])
  assert some.index_to_key == ['w5', 'w3']
  np.testing.assert_array_equal(some.vectors, _VECTORS[[5, 3]])
  with pytest.warns(UserWarning, match='without vectors: none'):
    mean = ours.get_mean_vector(['w5', 'none'], pre_normalize=False)
  np.testing.assert_array_equal(mean, _VECTORS[5])
  with pytest.raises(KeyError, match='none'):
    ours.get_mean_vector(['w5', 'none'], ignore_missing=False)
  with pytest.raises(ValueError, match='none of the words'):
    ours.n_similarity(['none'], ['w3'])


def test_what_is_saved_is_packed_as_it_is_named(ours, tmp_path):
  path = tmp_path / 'v.txt.zip'
  ours.save_word2vec_format(path, write_header=False)
  assert path.read_bytes().startswith(b'PK')
  np.testing.assert_array_equal(jaxemb.load(path).vectors, _VECTORS)
  with pytest.raises(ValueError, match='needs its header'):
    ours.save_word2vec_format(path, binary=True, write_header=False)


def test_names_with_white_space_are_found_as_exports_spell_them():
  keys = ['a_b', 'c_d', 'c_d_', 'e', '_']
  found = jaxemb.Embeddings(keys, np.eye(5, dtype=np.float32))
  assert found.get_index('a b') == 0 and 'a b' in found
  # Of a node called `c d` beside another called `c_d`, exports have `c_d_`.
  for word in ('c d', 'e f', ''):
    assert word not in found
    with pytest.raises(errors.UnknownWordError):
      found.get_index(word)


def test_unknown_words_are_named_with_near_spellings():
  words = ['Village', 'villages', 'the', 'king', 'village']
  vectors = jaxemb.Embeddings(words, np.eye(5, dtype=np.float32))
  with pytest.raises(errors.UnknownWordError, match="'vilage'.*village"):
    vectors.analogy('king', 'vilage', 'the')
  with pytest.raises(KeyError, match='near: king$'):
    vectors['King']
  with pytest.raises(KeyError, match='near: Village, village, villages$'):
    vectors['VILLAGE']
  with pytest.raises(KeyError, match='no vector for 77'):
    vectors.get_vector(77)
  with pytest.raises(ValueError, match='at least one'):
    vectors.most_similar()
  with pytest.warns(UserWarning, match='vilage'):
    assert vectors.doesnt_match(['king', 'vilage']) == 'king'


@pytest.fixture(scope='module')
def asked(tmp_path_factory):
  """Files of pairs and questions, and vectors that answer half of those.

  Some words are there in two cases; of those asked, some in neither.
  """
  folder, rng = tmp_path_factory.mktemp('asked'), np.random.default_rng(1)
  names = [f'w{i}' for i in range(200)]
  names[150:] = [f'W{2 * i}' for i in range(50)][::-1]
  words = np.array([f'{"wW"[i % 3 == 0]}{i}' for i in range(190)])
  pairs = rng.integers(190, size=(400, 2))
  # The ratings have many ties.
  lines = [f'{words[a]}\t{words[b]}\t{a % 12}' for a, b in pairs if a != b]
  (folder / 'pairs').write_text('\n'.join(lines))
  rows, vectors = rng.integers(150, size=(150, 4)), _VECTORS.copy()
  for a, b, c, d in rows[::2]:
    vectors[d] = vectors[b] + vectors[c] - vectors[a] + rng.normal(size=16) / 2
  vectors[150:] = vectors[98::-2] + rng.normal(size=(50, 16)) / 9
  rows[1::8, 3] = rows[1::8, 1]  # words that are asked are no answers
  lines = [' '.join(words[row]) for row in rows]
  lines = [': one', *lines[:40], ': gram2', *lines[40:], ': none', 'x y z w']
  (folder / 'questions').write_text('\n'.join(lines))
  return folder, names, vectors


def test_edges_are_scored_by_operators_of_relations(tmp_path):
  rng = np.random.default_rng(0)
  vectors = rng.standard_normal((3, 4)).astype(np.float32)
  rows = rng.standard_normal((2, 4)).astype(np.float32)
  names = ['in', 'in (inverse)']
  node, turn = vectors[0].view(np.complex64), rows[1].view(np.complex64)
  expected = {
    'translation': vectors[0] + rows[1],
    'diagonal': vectors[0] * (1 + rows[1]),
    'complex': (node * (1 + turn)).view(np.float32),
    'rotation': (node * (1 + turn) / abs(1 + turn)).view(np.float32),
  }
  for measure in ('product', 'cosine', 'distance'):
    for operator, wanted in expected.items():
      relations = export.Relations(operator, measure, 0.5, names, rows)
      made = jaxemb.Embeddings(list('abc'), vectors, relations=relations)
      made.save(tmp_path)
      found = jaxemb.load(tmp_path)
      near = found.related('a', 'in (inverse)')
      np.testing.assert_allclose(near, wanted, 1e-5, 1e-6)
      score = wanted @ vectors[2]
      if measure == 'cosine':
        score /= 0.5 * np.linalg.norm(wanted) * np.linalg.norm(vectors[2])
      if measure == 'distance':
        score = -np.sum((wanted - vectors[2]) ** 2)
      scores = found.edge_scores([('a', 'in (inverse)', 'c')] * 2)
      np.testing.assert_allclose(scores, [score] * 2, 1e-5)
  with pytest.raises(errors.UserError, match="relation 'at', but in, in .inv"):
    found.edge_scores([('a', 'at', 'b')])
  path = tmp_path / 'relations.npz'
  # As before there were other measures.
  np.savez(path, operator='none', names=names, rows=rows, is_cosine=True)
  assert jaxemb.load(tmp_path).relations[:3] == ('none', 'cosine', 1.0)
  path.write_bytes(path.read_bytes()[:200])
  with pytest.raises(errors.UserError, match='relations.npz: .*; export again'):
    jaxemb.load(tmp_path)
  targets = relations._replace(operator='none', targets=vectors)
  jaxemb.Embeddings(list('abc'), vectors, relations=targets).save(tmp_path)
  np.save(tmp_path / 'targets.npy', vectors[:2])
  with pytest.raises(
    errors.UserError, match=r'shape \(2, 4\); real numbers of shape \(3, 4\)'
  ):
    jaxemb.load(tmp_path)
  (tmp_path / 'targets.npy').unlink()
  with pytest.raises(errors.UserError, match='targets.npy: No such file'):
    jaxemb.load(tmp_path)
  made = jaxemb.Embeddings(list('abc'), vectors)
  made.save(tmp_path)
  loaded = jaxemb.load(tmp_path)
  assert loaded.relations is None and loaded.counts is None
  assert (tmp_path / 'vocab.txt').read_text() == 'a\nb\nc\n'
  with pytest.raises(errors.UserError, match="relation 'in', but none"):
    made.related('a', 'in')


@pytest.mark.parametrize(
  ('limit', 'dummy', 'insensitive'),
  [(1000, False, True), (120, False, True), (120, True, False)],
)
def test_evaluations_equal_gensim(
  asked, monkeypatch, limit, dummy, insensitive
):
  # A word outside a block must neither win nor be taken out in it.
  monkeypatch.setattr(analogies, '_BLOCK_ROWS', 50)
  folder, names, vectors = asked
  ours, keyed = jaxemb.Embeddings(names, vectors), models.KeyedVectors(16)
  keyed.add_vectors(names, vectors)
  pairs, questions = str(folder / 'pairs'), str(folder / 'questions')
  args = {'case_insensitive': insensitive, 'dummy4unknown': dummy,
          'restrict_vocab': limit}  # fmt: skip
  *found, unknown = ours.evaluate_word_pairs(pairs, **args)
  pearson, spearman, theirs = keyed.evaluate_word_pairs(pairs, **args)
  assert list(map(tuple, found)) == [tuple(pearson), tuple(spearman)]
  assert unknown == pytest.approx(theirs) and 0 < unknown < 100
  answers = []
  for function in ('most_similar', 'most_similar_cosmul'):
    # gensim 4.4 takes `similarity_function` and ignores it.
    keyed.most_similar = getattr(keyed, function)
    answers.append(keyed.evaluate_word_analogies(questions, **args))
    # A section without a valid question is kept, too.
    assert answers[-1] == ours.evaluate_word_analogies(
      questions, similarity_function=function, **args
    )
    assert 0 < answers[-1][0] < 0.95
  if dummy or not insensitive:
    return
  results = ours.evaluate(benchmarks.find([folder]), limit)
  result = results['pairs']
  expected = pytest.approx((spearman[0], pearson[0]), abs=1e-12)
  assert (result['score'], result['pearson']) == expected
  assert 100 * result['oov'] / result['total'] == pytest.approx(theirs)
  limits = result['restrict_vocab'], result['vocab']
  assert limits == (limit, min(limit, 200))
  result = results['questions']
  (score, sections), (score_cosmul, _) = answers
  assert (result['score'], result['score_cosmul']) == (score, score_cosmul)
  for section in sections[:-1]:
    part = result['sections'][section['section']]
    assert part['correct'] == len(section['correct'])
    assert part['found'] - part['correct'] == len(section['incorrect'])
    found = part['found']
    assert part['score'] == (part['correct'] / found if found else None)
  assert result['syntactic'] == result['sections']['gram2']
  assert result['semantic']['total'] == result['total'] - 110


def test_load_every_form(tmp_path):
  counts, folder = np.arange(200)[::-1], tmp_path / 'export'
  export.write(folder, _NAMES, export.Encoded(_VECTORS), counts)
  packed = tmp_path / 'v.vec.gz'
  packed.write_bytes(gzip.compress((folder / 'vectors.txt').read_bytes()))
  mapped = [tmp_path, folder, str(folder), folder / 'vectors.npy']
  for path in [*mapped, folder / 'vectors.bin', folder / 'vectors.txt', packed]:
    loaded = jaxemb.load(path)
    assert isinstance(loaded, jaxemb.Embeddings)
    assert loaded.index_to_key == _NAMES
    np.testing.assert_array_equal(loaded.vectors, _VECTORS)
    assert len(loaded.most_similar('w3')) == 10
    assert isinstance(loaded.vectors.base, np.memmap) == (path in mapped)
    assert type(loaded['w1']) is np.ndarray
    expected = counts.tolist() if path in mapped else None
    assert loaded.counts is expected or loaded.counts.tolist() == expected


def test_save_and_load(ours, tmp_path):
  with pytest.raises(ValueError, match='counts'):
    ours.save_word2vec_format(tmp_path / 'v', tmp_path / 'vocab')
  counted = jaxemb.Embeddings(
    ['a b', 'c'], np.ones((2, 2), np.float32), np.array([7, 3])
  )
  with pytest.warns(UserWarning, match='1 words'):
    counted.save_word2vec_format(tmp_path / 'v', tmp_path / 'vocab')
  assert (tmp_path / 'vocab').read_text() == 'a_b 7\nc 3\n'
  for vectors, words in ((ours, _NAMES), (counted, ['a_b', 'c'])):
    vectors.save(tmp_path / 'folder')
    loaded = jaxemb.load(tmp_path / 'folder')
    assert loaded.index_to_key == words
    np.testing.assert_array_equal(loaded.vectors, vectors.vectors)
  assert loaded.counts.tolist() == [7, 3]


def test_parquet_has_words_counts_and_vectors(tmp_path, monkeypatch):
  monkeypatch.setattr(parquet_lib, '_GROUP_ROWS', 60)
  counts = np.arange(200)
  jaxemb.Embeddings(_NAMES, _VECTORS, counts).save_parquet(tmp_path / 'v')
  table = parquet.read_table(tmp_path / 'v').to_pydict()
  assert table['key'] == _NAMES and table['count'] == counts.tolist()
  np.testing.assert_array_equal(np.array(table['vector'], 'f4'), _VECTORS)


def test_what_gensim_has_and_is_not_there_says_what_is(ours):
  for name, hint in (
    ('vocab', 'key_to_index'),
    ('resize_vectors', 'add_vectors'),
  ):
    with pytest.raises(AttributeError, match=hint):
      getattr(ours, name)
  assert not hasattr(ours, 'anything')
  assert len(copy.deepcopy(pickle.loads(pickle.dumps(ours)))) == 200
  with pytest.raises(KeyError, match="b'w3'"):
    ours.most_similar(b'w3')


def test_a_number_has_the_name_that_columns_give_it():
  words = ['7', 'true', '2.5', '1e+20']
  vectors = embeddings.Embeddings(words, np.eye(4, dtype=np.float32))
  found = [vectors.get_index(x) for x in (7.0, np.True_, 2.5, 1e20)]
  assert found == [0, 1, 2, 3] and float('nan') not in vectors
