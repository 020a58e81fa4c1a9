"""An index finds what all cosines find, of these vectors and no others."""

import dataclasses
import json

import numpy as np
import pytest

import jaxemb
from jaxemb import errors
from jaxemb.evaluation import (
  geometry,
  multivectors,
  neighbor_index,
  subwords,
)
from jaxemb.ops import ngrams

pytest.importorskip('usearch', reason="needs usearch, of the extra 'ann'")
_DIM = 16


@pytest.fixture(autouse=True)
def few_head_rows(monkeypatch):
  """With more, all of these few rows would be searched in full."""
  monkeypatch.setattr(neighbor_index, '_HEAD_ROWS', 10)


def _clustered(num_rows: int) -> np.ndarray:
  rng = np.random.default_rng(0)
  centers = rng.normal(size=(50, _DIM))
  noise = rng.normal(size=(num_rows, _DIM))
  lengths = rng.lognormal(size=(num_rows, 1))
  rows = (centers[rng.integers(50, size=num_rows)] + 0.5 * noise) * lengths
  return rows.astype(np.float32)


@pytest.fixture(scope='module')
def vectors():
  rows = _clustered(3000)
  rows[77] = 0  # a word that was never trained
  return jaxemb.Embeddings([f'w{i}' for i in range(3000)], rows)


@pytest.fixture(scope='module')
def index(vectors):
  return vectors.index('hnsw', expansion_search=512)


def _nearest(rows, target, excluded, num):
  """Rows and cosines in plain loops, float64."""
  cosines = {}
  for i, row in enumerate(rows.astype(np.float64)):
    if i not in excluded and np.any(row):
      lengths = np.sqrt(row @ row) * np.sqrt(target @ target)
      cosines[i] = row @ target / lengths
  best = sorted(cosines, key=lambda i: -cosines[i])[:num]
  return best, [cosines[i] for i in best]


def test_words_and_sums_have_the_neighbors_that_all_cosines_give(
  vectors, index
):
  queries = [[f'w{i}'] for i in range(0, 3000, 150)]
  queries += [['w3', 'w5', 'w7'], [('w12', 0.5), vectors.vectors[13] * 7]]
  num_found = 0
  for query in queries:
    expected = vectors.most_similar(query, topn=20)
    result = vectors.most_similar(query, topn=20, indexer=index)
    assert len(result) == 20 and not {'w77', *map(str, query)} & {*dict(result)}
    num_found += len(dict(expected).keys() & dict(result).keys())
    cosines = dict(vectors.most_similar(query, topn=3000))
    for word, cosine in result:  # exact, though the index rounds
      np.testing.assert_allclose(cosine, cosines[word], atol=1e-6)
    assert [c for _, c in result] == sorted([c for _, c in result])[::-1]
  assert num_found >= 0.99 * 20 * len(queries)


@pytest.mark.parametrize('num_bytes', [1, 1 << 26])
def test_many_queries_at_once(vectors, index, num_bytes, monkeypatch):
  monkeypatch.setattr(neighbor_index, '_CANDIDATE_BYTES', num_bytes)
  rows = np.arange(0, 3000, 7)[:300]  # of more than a block
  targets = vectors.vectors[rows] * 3
  is_zero = rows == 77
  assert is_zero.any()
  found, cosines = index.search(targets, num=5)
  assert found.shape == cosines.shape == (300, 5)
  recalls = []
  for i in np.flatnonzero(~is_zero)[::20]:
    best, expected = _nearest(vectors.vectors, np.float64(targets[i]), (), 5)
    assert found[i, 0] == rows[i]
    recalls.append(len({*best} & {*found[i].tolist()}) / 5)
    if best == found[i].tolist():
      np.testing.assert_allclose(cosines[i], expected, atol=1e-6)
  # Threads build the graph, so that which rows it misses varies.
  assert np.mean(recalls) >= 0.95
  with pytest.raises(errors.UserError, match='16 dimensions'):
    index.search(np.ones((2, 3)))


def test_few_rows_are_all_found():
  rows = _clustered(15)
  rows[4] = 0  # never trained, and among the first
  vectors = jaxemb.Embeddings([f'w{i}' for i in range(15)], rows)
  index = vectors.index()
  expected = vectors.most_similar('w3', topn=50)
  result = vectors.most_similar('w3', topn=50, indexer=index)
  assert len(result) == 13
  assert [w for w, _ in result] == [w for w, _ in expected]
  found, _ = index.search(rows[:1], num=50)
  assert {*found[0, :14].tolist()} == {*range(15)} - {4}
  assert (found[0, 14:] == -1).all()


@pytest.mark.parametrize('num_head', [10, 750])  # 750 rows are 25 words
def test_a_word_with_several_senses_occurs_once(monkeypatch, num_head):
  monkeypatch.setattr(neighbor_index, '_HEAD_ROWS', num_head)
  names = [f's{i // 30}#{i % 30}' for i in range(3000)]
  words = [f's{i}' for i in range(100)]
  rows = _clustered(3000)
  rows[60:90] = rows[60]  # its senses fill the first candidates
  table = multivectors.MultiVectors(
    words=words,
    counts=None,
    starts=np.arange(0, 3001, 30),
    vectors=rows,
    priors=np.tile(np.linspace(0.01, 0.06, 30), 100).astype(np.float32),
  )
  vectors = jaxemb.Embeddings(names, rows, sense_table=table)
  index = vectors.index(expansion_search=512)
  target = rows[60] * 2
  for options in {}, {'min_prior': 0.03}:
    expected = vectors.most_similar([target], topn=20, **options)
    result = vectors.most_similar([target], topn=20, indexer=index, **options)
    same = {w for w, _ in expected} & {w for w, _ in result}
    assert len(same) >= 19
    assert len({w.split('#')[0] for w, _ in result}) == 20
  result = vectors.most_similar('s2', sense=0, topn=20, indexer=index)
  assert not any(w.startswith('s2#') for w, _ in result)


@pytest.mark.parametrize('has_senses', [False, True])
def test_nearest_of_some_rows(has_senses):
  rng = np.random.default_rng(0)
  starts = np.array([0, 1, 4, 6, 9, 10, 12])
  senses = multivectors.MultiVectors(
    words=[*'abcdef'],
    counts=None,
    starts=starts,
    vectors=np.zeros((12, 1)),
    priors=rng.choice([0.1, 0.5], 12).astype(np.float32),
  )
  for _ in range(50):
    size = rng.integers(1, 13)
    rows = np.sort(rng.choice(12, size, replace=False))
    scores = rng.choice([-np.inf, 0.25, 0.5, 0.75], size)  # with ties
    excluded = {*rng.choice(12, 2).tolist()}
    num = int(rng.integers(0, 5))
    word_of = {
      row: next(i for i in range(6) if starts[i] <= row < starts[i + 1])
      if has_senses
      else row
      for row in range(12)
    }
    expected, used = [], {word_of[row] for row in excluded}
    for position in sorted(range(size), key=lambda i: -scores[i]):
      row = rows[position]
      is_rare = has_senses and senses.priors[row] < 0.3
      if word_of[row] in used or is_rare or scores[position] == -np.inf:
        continue
      used.add(word_of[row])
      expected.append(position)
    best = geometry.nearest(
      scores,
      excluded=excluded,
      num=num,
      senses=senses if has_senses else None,
      min_prior=0.3,
      rows=rows,
    )
    # Which of equal scores are the last of the list is not stated.
    assert len(best) == min(num, len(expected)) and {*best} <= {*expected}
    np.testing.assert_array_equal(
      scores[best], scores[expected[: len(best)]].astype(float)
    )


class _Counted:
  """Rows that count how many of them are read."""

  def __init__(self, rows):
    self.rows, self.shape, self.num_read = rows, rows.shape, 0

  def __len__(self):
    return len(self.rows)

  def __getitem__(self, chosen):
    result = self.rows[chosen]
    self.num_read += len(result)
    return result


def test_a_query_reads_the_rows_that_it_compares_alone(index):
  counted = _Counted(index.vectors)
  index = dataclasses.replace(index, vectors=counted, current=lambda: counted)
  target = counted.rows[5] / np.linalg.norm(counted.rows[5])
  index.nearest(target, num=3)
  counted.num_read = 0
  index.nearest(target, num=3)
  index.search(target[None], num=3)
  assert counted.num_read <= 2 * (2 * 3 + 16)  # and not the first rows again


def test_unseen_words_are_queries_too(tmp_path):
  rng = np.random.default_rng(0)
  source = subwords.NgramVectors(
    ngrams.Subwords(3, 4, 200), rng.normal(size=(200, 8)).astype(np.float32)
  )
  words = [f'{i * 7919:05}' for i in range(300)]
  composed = rng.normal(size=(300, 8)).astype(np.float32)
  vectors = jaxemb.Embeddings(words, composed, subwords=source)
  vectors.save_fasttext(tmp_path / 'model.bin')
  loaded = jaxemb.load(tmp_path / 'model.bin')  # composes rows when asked
  index = loaded.index(expansion_search=300)
  index.save(tmp_path / 'index')
  index = loaded.load_index(tmp_path / 'index')
  for word in 'unseen99', '77777':
    expected = dict(loaded.most_similar(word))
    result = dict(loaded.most_similar(word, indexer=index))
    assert {*result} == {*expected}
  found, _ = index.search(loaded[['unseen99', '77777']], num=10)
  assert {*found[1].tolist()} == {loaded.get_index(x) for x in expected}


def test_a_saved_index_belongs_to_its_vectors(vectors, index, tmp_path):
  index.save(tmp_path / 'index')
  vectors.save(tmp_path / 'vectors')
  again = jaxemb.load(tmp_path / 'vectors')
  mapped = again.load_index(tmp_path / 'index')
  assert mapped.settings == index.settings
  for word in 'w1', 'w2000':
    expected = vectors.most_similar(word, indexer=index)
    assert again.most_similar(word, indexer=mapped) == expected
  changed = vectors.vectors.copy()
  changed[2999, 15] += 1e-3
  for rows in changed, changed[:2000], changed[:, :8]:
    other = jaxemb.Embeddings(vectors.index_to_key[: len(rows)], rows)
    with pytest.raises(errors.UserError, match='of other vectors, 3,000 x 16'):
      other.load_index(tmp_path / 'index')
    with pytest.raises(errors.UserError, match='of other vectors than'):
      other.most_similar('w1', indexer=index)
  with pytest.raises(errors.UserError, match='of other vectors than'):
    vectors.most_similar('w1', indexer=mapped)
  again.add_vector('new', changed[0])
  for search in (
    lambda: again.most_similar('w1', indexer=mapped),
    lambda: mapped.search(changed[:2]),
  ):
    with pytest.raises(errors.UserError, match='have been changed'):
      search()


def test_an_index_that_does_not_fit_a_disk_is_one_line(index, tmp_path):
  class Graph:
    def save(self, path):
      raise RuntimeError('Failed to serialize into stream')

  full = dataclasses.replace(index, graph=Graph())
  with pytest.raises(errors.UserError, match='index: .*stream; free space'):
    full.save(tmp_path / 'index')
  assert not [*tmp_path.iterdir()]


def test_unusable_indexes_and_arguments_are_one_line(vectors, index, tmp_path):
  folder = tmp_path / 'index'
  with pytest.raises(errors.UserError, match='No such file.*index.save'):
    vectors.load_index(folder)
  index.save(folder)
  graph = (folder / 'graph.usearch').read_bytes()
  flipped = bytearray(graph)
  flipped[-99] ^= 1
  for damaged in graph[: len(graph) // 2], graph[:10], b'x' * 9999, flipped:
    (folder / 'graph.usearch').write_bytes(damaged)
    with pytest.raises(errors.UserError, match='damaged.*build it again'):
      vectors.load_index(folder)
  settings = json.loads((folder / 'index.json').read_text())
  for text in '{}', '[]', 'x', json.dumps(settings | {'unknown': 1}):
    (folder / 'index.json').write_text(text)
    with pytest.raises(errors.UserError, match='no index of vectors'):
      vectors.load_index(folder)
  row = vectors.vectors[0]
  for query, num in (
    (row, 1),
    (row[None, 1:], 1),
    (np.full((1, len(row)), np.nan), 1),
    (['w1'], 1),
    (row[None], 0),
    (row[None], -1),
  ):
    with pytest.raises(errors.UserError, match='queries|num='):
      index.search(query, num)
  for options in {'topn': None}, {'restrict_vocab': 9}, {'clip_start': 3}:
    with pytest.raises(errors.UserError, match='searches all words'):
      vectors.most_similar('w1', indexer=index, **options)
  for arguments in {'kind': 'annoy'}, {'trees': 9}, {'connectivity': 1.5}:
    with pytest.raises(errors.UserError, match='hnsw|connectivity'):
      vectors.index(**arguments)
