"""Queries equal gensim's; every form of stored vectors loads the same."""

import gzip
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from gensim import models

import jaxemb
from jaxemb import embeddings, errors
from jaxemb.storage import export, vectors_npy

pytestmark = pytest.mark.filterwarnings('ignore:Call to deprecated')
_NAMES = [f'w{i}' for i in range(200)]
_VECTORS = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)


@pytest.fixture
def ours():
  return embeddings.Embeddings(list(_NAMES), _VECTORS.copy())


@pytest.fixture
def keyed():
  keyed = models.KeyedVectors(16)
  keyed.add_vectors(_NAMES, _VECTORS)
  return keyed


def _assert_same(ours, theirs):
  assert [word for word, _ in ours] == [word for word, _ in theirs]
  np.testing.assert_allclose(
    [value for _, value in ours], [value for _, value in theirs], rtol=2e-6
  )


@pytest.mark.parametrize(
  'args',
  [
    {'positive': 'w3'},
    {'positive': ['w3', 'w5'], 'negative': ['w7']},
    {'positive': ['w3', 'w5'], 'negative': 'w7', 'topn': 3},
    {'negative': ['w7'], 'topn': 1000},
    {'positive': [('w3', 0.3), 'w5', ('w9', -2.0)]},
    {'positive': [_VECTORS[0] * 3, 'w5'], 'restrict_vocab': 50},
    {'positive': [3, 'w5'], 'topn': 0},
    {'positive': [3, 'w5', 'w150'], 'restrict_vocab': 10},
  ],
)
def test_most_similar_equals_gensim(ours, keyed, args):
  _assert_same(ours.most_similar(**args), keyed.most_similar(**args))


def test_other_queries_equal_gensim(ours, keyed):
  every = {'positive': ['w1', 'w2'], 'topn': None, 'restrict_vocab': 70}
  np.testing.assert_allclose(
    ours.most_similar(**every), keyed.most_similar(**every), atol=1e-6
  )
  args = (['w3', 'w5'], ['w7'])
  _assert_same(
    ours.most_similar_cosmul(*args), keyed.most_similar_cosmul(*args)
  )
  _assert_same(
    ours.most_similar_cosmul('w3', topn=4),
    keyed.most_similar_cosmul('w3', topn=4),
  )
  _assert_same(
    ours.similar_by_vector(_VECTORS[4] + 1, 5, 90),
    keyed.similar_by_vector(_VECTORS[4] + 1, 5, 90),
  )
  _assert_same(
    ours.analogy('w7', 'w3', 'w5'), keyed.most_similar(['w3', 'w5'], ['w7'])
  )
  for i in range(50):
    words = [f'w{i + j}' for j in range(5)]
    assert ours.doesnt_match(words) == keyed.doesnt_match(words)
    assert ours.similarity(*words[:2]) == keyed.similarity(*words[:2])


def test_cosmul_honours_restrict_vocab(ours):
  found = ours.most_similar_cosmul('w3', topn=100, restrict_vocab=20)
  assert sorted(int(word[1:]) for word, _ in found) == sorted(
    {*range(20)} - {3}
  )


def test_look_up(ours, keyed):
  assert len(ours) == 200 and ours.vector_size == 16
  assert 'w3' in ours and 'x' not in ours and 3 not in ours
  assert ours.key_to_index['w3'] == 3 and ours.index_to_key[3] == 'w3'
  np.testing.assert_array_equal(ours['w3'], _VECTORS[3])
  np.testing.assert_array_equal(ours[['w3', 'w1']], _VECTORS[[3, 1]])
  np.testing.assert_array_equal(
    ours.get_vector('w3', norm=True), keyed.get_vector('w3', norm=True)
  )
  np.testing.assert_array_equal(
    ours.get_normed_vectors(), keyed.get_normed_vectors()
  )
  with pytest.raises(ValueError, match='read-only'):
    ours['w3'][0] = 1


def test_vectors_of_length_zero(ours):
  ours.vectors[5] = 0
  assert ours.similarity('w5', 'w3') == 0
  assert not np.isnan(ours.most_similar('w3', topn=None)).any()
  assert not ours.get_normed_vectors()[5].any()
  assert not ours.get_vector('w5', norm=True).any()


def test_unknown_word_is_named_with_near_spellings():
  words = ['Village', 'villages', 'the', 'king', 'village']
  ours = embeddings.Embeddings(words, np.eye(5, dtype=np.float32))
  for ask in (
    lambda: ours['vilage'],
    lambda: ours.most_similar('vilage'),
    lambda: ours.similarity('king', 'vilage'),
    lambda: ours.analogy('king', 'vilage', 'the'),
  ):
    with pytest.raises(KeyError, match="'vilage'.*near: .*village") as caught:
      ask()
    assert isinstance(caught.value, errors.UnknownWordError)
  with pytest.raises(KeyError, match='near: king'):
    ours['King']
  with pytest.raises(KeyError, match='no vector for 77'):
    ours.get_vector(77)
  with pytest.raises(ValueError, match='at least one'):
    ours.most_similar()
  with pytest.warns(UserWarning, match='vilage'):
    assert ours.doesnt_match(['king', 'vilage']) == 'king'


def test_many_unknown_words_cost_little(ours):
  # Near spellings are looked for only when the message is shown.
  start = time.process_time()
  for i in range(20_000):
    try:
      ours[f'w{i}x']
    except KeyError:
      pass
  assert time.process_time() - start < 5


@pytest.mark.parametrize('dummy', [False, True])
@pytest.mark.parametrize('insensitive', [False, True])
def test_evaluations_equal_gensim(ours, keyed, tmp_path, dummy, insensitive):
  rng = np.random.default_rng(1)
  pairs, questions = tmp_path / 'pairs.tsv', tmp_path / 'questions.txt'
  words = [f'{"wW"[i % 3 == 0]}{i}' for i in range(230)]
  lines = [
    f'{words[a]}\t{words[b]}\t{a + b}'
    for a, b in rng.integers(230, size=(90, 2))
    if a != b
  ]
  pairs.write_text('\n'.join(lines))
  lines = [
    ' '.join(words[i] for i in q) for q in rng.integers(60, size=(90, 4))
  ]
  for line in lines[::2]:
    a, b, c, d = (int(word[1:]) for word in line.split())
    ours.vectors[d] = ours.vectors[b] + ours.vectors[c] - ours.vectors[a]
  keyed.vectors[:] = ours.vectors
  lines.insert(40, ': two')
  questions.write_text('\n'.join([': one', *lines, ': none', 'x y z w']))
  args = {'case_insensitive': insensitive, 'dummy4unknown': dummy}
  got = ours.evaluate_word_pairs(pairs, restrict_vocab=150, **args)
  expected = keyed.evaluate_word_pairs(str(pairs), restrict_vocab=150, **args)
  assert tuple(got[0]) == tuple(expected[0])
  assert tuple(got[1]) == tuple(expected[1])
  assert got[2] == pytest.approx(expected[2])
  for function in ('most_similar', 'most_similar_cosmul'):
    # gensim 4.4 takes `similarity_function` and ignores it.
    keyed.most_similar = getattr(keyed, function)
    score, sections = ours.evaluate_word_analogies(
      questions, similarity_function=function, **args
    )
    expected, expected_sections = keyed.evaluate_word_analogies(
      str(questions), **args
    )
    assert score == expected and 0 < score < 1
    if not dummy:
      # A section without a valid question: gensim keeps it too.
      assert expected_sections[2] == sections[2]
    assert sections == expected_sections


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
  counts = np.arange(200)[::-1]
  rows = vectors_npy.Encoded(_VECTORS)
  export.write(tmp_path / 'export', _NAMES, rows, counts)
  folder = tmp_path / 'export'
  packed = tmp_path / 'v.vec.gz'
  packed.write_bytes(gzip.compress((folder / 'vectors.txt').read_bytes()))
  mapped = [tmp_path, folder, str(folder), folder / 'vectors.npy']
  for path in [*mapped, folder / 'vectors.bin', folder / 'vectors.txt', packed]:
    loaded = jaxemb.load(path)
    assert isinstance(loaded, jaxemb.Embeddings)
    assert loaded.index_to_key == _NAMES
    np.testing.assert_array_equal(loaded.vectors, _VECTORS)
    if path in mapped:
      np.testing.assert_array_equal(loaded.counts, counts)
      assert isinstance(loaded.vectors.base, np.memmap)
      assert type(loaded['w1']) is np.ndarray
    else:
      assert loaded.counts is None
    assert len(loaded.most_similar('w3')) == 10


def test_save_and_load(ours, tmp_path):
  for binary in (True, False):
    ours.save_word2vec_format(tmp_path / 'v', binary=binary)
    np.testing.assert_array_equal(
      jaxemb.load(tmp_path / 'v').vectors, ours.vectors
    )
  with pytest.raises(ValueError, match='counts'):
    ours.save_word2vec_format(tmp_path / 'v', tmp_path / 'vocab')
  counted = embeddings.Embeddings(
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


def test_load_says_what_is_wrong(tmp_path):
  with pytest.raises(errors.UserError, match=r'no usable vectors\.npy'):
    jaxemb.load(tmp_path)
  rows = vectors_npy.Encoded(_VECTORS)
  export.write(tmp_path, _NAMES, rows, np.arange(200))
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


def test_words_and_vectors_must_fit():
  with pytest.raises(ValueError, match='do not fit'):
    embeddings.Embeddings(['a', 'a'], np.ones((2, 2), np.float32))
  with pytest.raises(ValueError, match='do not fit'):
    embeddings.Embeddings(['a'], np.ones((2, 2), np.float32))


def test_names_of_the_package():
  assert 'load' in dir(jaxemb)
  with pytest.raises(AttributeError, match='nothing'):
    _ = jaxemb.nothing


def test_version_is_that_of_the_project():
  path = Path(__file__).parents[1] / 'pyproject.toml'
  project = tomllib.loads(path.read_text())['project']
  assert jaxemb.__version__ == project['version']
