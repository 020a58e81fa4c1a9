"""Queries equal gensim's; every form of stored vectors loads the same."""

import gzip
import time

import numpy as np
import pytest
from gensim import models

import jaxemb
from jaxemb import errors
from jaxemb.storage import export, vectors_npy

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
    ('most_similar', {'positive': 'w3'}),
    ('most_similar', {'positive': ['w3', 'w5'], 'negative': ['w7']}),
    ('most_similar', {'positive': ['w3'], 'negative': 'w7', 'topn': 3}),
    ('most_similar', {'negative': ['w7'], 'topn': 1000}),
    ('most_similar', {'positive': [('w3', 0.3), 'w5', ('w9', -2.0)]}),
    ('most_similar', {'positive': [_VECTORS[0] * 3], 'restrict_vocab': 50}),
    ('most_similar', {'positive': [3, 'w5'], 'topn': 0}),
    ('most_similar', {'positive': [3, 'w5', 'w150'], 'restrict_vocab': 10}),
    ('most_similar', {'positive': 'w1', 'topn': None, 'restrict_vocab': 70}),
    ('most_similar_cosmul', {'positive': ['w3', 'w5'], 'negative': ['w7']}),
    ('most_similar_cosmul', {'positive': 'w3', 'topn': 4}),
    ('similar_by_vector', {'vector': _VECTORS[4] + 1, 'restrict_vocab': 90}),
    ('get_vector', {'key': 'w3', 'norm': True}),
    ('get_normed_vectors', {}),
  ],
)
def test_queries_equal_gensim(ours, keyed, method, args):
  expected = getattr(keyed, method)(**args)
  if 'key' in args:
    args = {'word': args['key'], 'norm': True}
  found = getattr(ours, method)(**args)
  if isinstance(found, list):
    assert [word for word, _ in found] == [word for word, _ in expected]
    found, expected = ([x for _, x in result] for result in (found, expected))
  np.testing.assert_allclose(found, expected, 2e-6, 1e-7)


def test_pairs_and_groups_equal_gensim(ours, keyed):
  for i in range(50):
    words = [f'w{i + j}' for j in range(5)]
    assert ours.doesnt_match(words) == keyed.doesnt_match(words)
    assert ours.similarity(*words[:2]) == keyed.similarity(*words[:2])
  found = ours.analogy('w7', 'w3', 'w5')
  assert found == ours.most_similar(['w3', 'w5'], ['w7'])
  # gensim's ignores the limit.
  found = ours.most_similar_cosmul('w3', topn=100, restrict_vocab=20)
  assert {word for word, _ in found} == {*_NAMES[:20]} - {'w3'}


def test_look_up(ours):
  assert len(ours) == 200 and ours.vector_size == 16
  assert 'w3' in ours and 'x' not in ours and 3 not in ours
  assert ours.key_to_index['w3'] == 3 and ours.index_to_key[3] == 'w3'
  np.testing.assert_array_equal(ours['w3'], _VECTORS[3])
  np.testing.assert_array_equal(ours[['w3', 'w1']], _VECTORS[[3, 1]])
  with pytest.raises(ValueError, match='read-only'):
    ours['w3'][0] = 1


def test_vectors_of_length_zero(ours):
  ours.vectors[5] = 0
  assert ours.similarity('w5', 'w3') == 0
  assert not np.isnan(ours.most_similar('w3', topn=None)).any()
  assert not ours.get_normed_vectors()[5].any()
  assert not ours.get_vector('w5', norm=True).any()


def test_unknown_words_are_named_with_near_spellings(ours):
  words = ['Village', 'villages', 'the', 'king', 'village']
  vectors = jaxemb.Embeddings(words, np.eye(5, dtype=np.float32))
  for ask in (
    lambda: vectors['vilage'],
    lambda: vectors.most_similar('vilage'),
    lambda: vectors.similarity('king', 'vilage'),
    lambda: vectors.analogy('king', 'vilage', 'the'),
  ):
    with pytest.raises(errors.UnknownWordError, match="'vilage'.*village"):
      ask()
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
  # Spellings are looked for only when the message is shown.
  start = time.process_time()
  for i in range(20_000):
    with pytest.raises(KeyError):
      ours[f'w{i}x']
  assert time.process_time() - start < 5


@pytest.mark.parametrize('dummy', [False, True])
@pytest.mark.parametrize('insensitive', [False, True])
def test_evaluations_equal_gensim(ours, keyed, tmp_path, dummy, insensitive):
  rng = np.random.default_rng(1)
  pairs, questions = str(tmp_path / 'pairs'), str(tmp_path / 'questions')
  words = np.array([f'{"wW"[i % 3 == 0]}{i}' for i in range(230)])
  rows = rng.integers(230, size=(90, 2))
  lines = [f'{words[a]}\t{words[b]}\t{a + b}' for a, b in rows if a != b]
  (tmp_path / 'pairs').write_text('\n'.join(lines))
  rows = rng.integers(60, size=(90, 4))
  for a, b, c, d in rows[::2]:
    ours.vectors[d] = ours.vectors[b] + ours.vectors[c] - ours.vectors[a]
  keyed.vectors[:] = ours.vectors
  lines = [' '.join(words[row]) for row in rows]
  lines = [': one', *lines[:40], ': two', *lines[40:], ': none', 'x y z w']
  (tmp_path / 'questions').write_text('\n'.join(lines))
  args = {'case_insensitive': insensitive, 'dummy4unknown': dummy}
  limited = {**args, 'restrict_vocab': 150}
  *found, unknown = ours.evaluate_word_pairs(pairs, **limited)
  *expected, theirs = keyed.evaluate_word_pairs(pairs, **limited)
  assert list(map(tuple, found)) == list(map(tuple, expected))
  assert unknown == pytest.approx(theirs)
  for function in ('most_similar', 'most_similar_cosmul'):
    # gensim 4.4 takes `similarity_function` and ignores it.
    keyed.most_similar = getattr(keyed, function)
    score, sections = ours.evaluate_word_analogies(
      questions, similarity_function=function, **args
    )
    expected = keyed.evaluate_word_analogies(questions, **args)
    # A section without a valid question is kept, too.
    assert (score, sections) == expected and 0 < score < 1


def test_evaluations_name_the_wrong_file(ours, tmp_path):
  path = tmp_path / 'questions.txt'
  path.write_text(': one\na b c d\n')
  with pytest.raises(errors.UserError, match='no benchmark of similarity'):
    ours.evaluate_word_pairs(path)
  path.write_text('a b 3\n')
  with pytest.raises(errors.UserError, match='no benchmark of analogies'):
    ours.evaluate_word_analogies(path)
  with pytest.raises(errors.UserError, match='fewer than two'):
    ours.evaluate_word_pairs(path)


def test_load_every_form(tmp_path):
  counts, folder = np.arange(200)[::-1], tmp_path / 'export'
  export.write(folder, _NAMES, vectors_npy.Encoded(_VECTORS), counts)
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
  for binary in (True, False):
    ours.save_word2vec_format(tmp_path / 'v', binary=binary)
    loaded = jaxemb.load(tmp_path / 'v')
    np.testing.assert_array_equal(loaded.vectors, ours.vectors)
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


def test_load_says_what_is_wrong(ours, tmp_path):
  with pytest.raises(errors.UserError, match=r'no usable vectors\.npy'):
    jaxemb.load(tmp_path)
  ours.save(tmp_path)
  lines = (tmp_path / 'vocab.txt').read_text().splitlines()
  (tmp_path / 'vocab.txt').write_text('\n'.join(lines[:-1]))
  with pytest.raises(errors.UserError, match='199 words.*200 rows'):
    jaxemb.load(tmp_path)
  (tmp_path / 'vectors.npy').write_bytes(b'cut')
  with pytest.raises(errors.UserError, match=r'no usable vectors\.npy'):
    jaxemb.load(tmp_path)
  (tmp_path / 'twice').write_text('3 1\na 1\na 2\nb 3\n')
  with pytest.warns(UserWarning, match='1 repeated'):
    assert jaxemb.load(tmp_path / 'twice').index_to_key == ['a', 'b']
  for words in (['a', 'a'], ['a']):
    with pytest.raises(ValueError, match='do not fit'):
      jaxemb.Embeddings(words, np.ones((2, 2), np.float32))
