"""Measures against gensim's evaluators, to the last bit, and closed forms."""

import json
import logging

import numpy as np
import pytest
from gensim import models
from scipy import stats

from jaxemb import errors
from jaxemb.evaluation import geometry, words


def _keyed(names, vectors):
  keyed = models.KeyedVectors(vectors.shape[1])
  keyed.add_vectors(names, vectors)
  return keyed


def _random(rng, num_words, dim=12):
  """Words of which some exist in two cases."""
  names = [f'w{i}' for i in range(num_words)]
  for i in range(0, num_words // 4):
    names[-1 - i] = f'W{i * 2}'
  return names, rng.normal(size=(num_words, dim)).astype(np.float32)


def _pick(rng, num_words, shape):
  """Words in either case, some out of vocabulary."""
  numbers = rng.integers(num_words * 5 // 4, size=shape)
  cases = np.array(['w', 'W'])[rng.integers(2, size=shape)]
  return np.char.add(cases, numbers.astype(str))


@pytest.mark.parametrize('limit', [1000, 120])
def test_similarity_equals_gensim(tmp_path, limit):
  rng = np.random.default_rng(limit)
  names, vectors = _random(rng, 200)
  pairs = _pick(rng, 150, (400, 2))
  # Few different ratings: many ties.
  ratings = rng.integers(12, size=400) / 2
  lines = [f'{a}\t{b}\t{r}' for (a, b), r in zip(pairs, ratings, strict=True)]
  lines = [x for x in lines if len(set(x.upper().split()[:2])) == 2]
  path = tmp_path / 'pairs.txt'
  path.write_text('\n'.join(lines))
  result = words.evaluate(names, vectors, [path], limit)['pairs']
  pearson, spearman, oov = _keyed(names, vectors).evaluate_word_pairs(
    str(path), restrict_vocab=limit
  )
  assert result['score'] == spearman[0] and result['pearson'] == pearson[0]
  assert result['total'] == len(lines)
  assert 100 * result['oov'] / result['total'] == pytest.approx(oov)
  assert 0 < result['found'] < result['total']
  limits = result['restrict_vocab'], result['vocab']
  assert limits == (limit, min(limit, 200))


@pytest.mark.parametrize('limit', [1000, 120])
def test_analogies_equal_gensim(tmp_path, limit):
  rng = np.random.default_rng(limit)
  names, vectors = _random(rng, 200)
  questions = _pick(rng, 150, (600, 4))
  rows = {name.upper(): row for row, name in reversed([*enumerate(names)])}
  for a, b, c, d in np.char.upper(questions[::2]).tolist():
    if {a, b, c, d} <= rows.keys():
      moved = vectors[rows[b]] + vectors[rows[c]] - vectors[rows[a]]
      vectors[rows[d]] = moved + rng.normal(size=12) / 2
  lines = [' '.join(question) for question in questions]
  lines[400:400], lines[100:100], lines[:0] = [': x'], [': gram1'], [': first']
  path = tmp_path / 'questions.txt'
  path.write_text('\n'.join(lines))
  result = words.evaluate(names, vectors, [path], limit)['questions']
  score, sections = _keyed(names, vectors).evaluate_word_analogies(
    str(path), restrict_vocab=limit
  )
  assert result['score'] == score and 0.05 < score < 0.95
  for section in sections[:-1]:
    ours = result['sections'][section['section']]
    assert ours['correct'] == len(section['correct'])
    assert ours['found'] == len(section['correct'] + section['incorrect'])
    assert ours['score'] == ours['correct'] / ours['found']
  assert result['syntactic'] == result['sections']['gram1']
  assert result['semantic']['total'] == result['total'] - 300
  assert result['score_cosmul'] != result['score']


def test_a_word_with_itself_ties(tmp_path):
  names, vectors = _random(np.random.default_rng(3), 40)
  lines = [f'w{i} w{i} {i}' for i in range(20)]
  lines += [f'w{i} w{i + 1} {i}' for i in range(20)]
  path = tmp_path / 'pairs.txt'
  path.write_text('\n'.join(lines))
  unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  cosines = [1.0] * 20 + [float(unit[i] @ unit[i + 1]) for i in range(20)]
  expected = stats.spearmanr([*range(20)] * 2, cosines)[0]
  result = words.evaluate(names, vectors, [path])['pairs']
  assert result['score'] == pytest.approx(expected, abs=1e-12)


def test_categories_of_planted_clusters(tmp_path):
  rng = np.random.default_rng(4)
  names = [f'w{i}' for i in range(60)]
  centers = rng.normal(size=(3, 10))
  vectors = centers[np.arange(60) % 3] + rng.normal(size=(60, 10)) / 10
  lines = [f'{i},c{i % 3},{name}' for i, name in enumerate(names)]
  lines += ['60,c1,W1', '61,c2,', '62,c9,unknown', '63,c0,w0,more']
  path = tmp_path / 'groups.csv'
  path.write_text('\n'.join([',category,word', *lines]))
  vectors = (vectors * rng.uniform(1, 9, (60, 1))).astype(np.float32)
  results = words.evaluate(names, vectors, [path], 0)
  assert results['groups'] == {
    'kind': 'categorization', 'layout': 'categories', 'score': 1.0,
    'found': 60, 'total': 61, 'oov': 1, 'clusters': 3, 'malformed': 1,
    'blank': 1, 'repeated': 1, 'restrict_vocab': 60, 'vocab': 60,
  }  # fmt: skip
  line = words.format_table(results).splitlines()[-1]
  assert (
    line.split()
    == (
      'groups 1.0000 60 / 61 (3 clusters, 1 malformed lines, 1 blank words, '
      '1 repeated words)'
    ).split()
  )


@pytest.mark.parametrize('num_clusters', [1, 5, 40])
def test_clusters_of_points(num_clusters):
  points = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
  points[10:20] = points[0]  # fewer different points than clusters
  found = geometry.cluster(points, num_clusters)
  assert found.shape == (40,) and set(found) <= set(range(num_clusters))
  assert len(set(found[10:20])) == 1
  np.testing.assert_array_equal(found, geometry.cluster(points, num_clusters))


def test_no_known_word_takes_one_line(tmp_path, caplog):
  (tmp_path / 'pairs.txt').write_text('a b 1\nc d 2\n')
  (tmp_path / 'one.txt').write_text('x y 1\nc d 2\n')
  (tmp_path / 'questions.txt').write_text(': gram1\na b c d\n')
  (tmp_path / 'groups.csv').write_text(',category,word\n0,c,a\n')
  (tmp_path / 'LICENSE').write_text('All rights are reserved by us.')
  vectors = np.eye(2, dtype=np.float32)
  with caplog.at_level(logging.WARNING):
    results = words.evaluate(['x', 'y'], vectors, [tmp_path])
  assert [result['score'] for result in results.values()] == [None] * 4
  assert caplog.messages == ['skipped 1 file(s) of unknown layout: LICENSE']
  json.dumps(results, allow_nan=False)
  rows = [line.split() for line in words.format_table(results).splitlines()]
  assert 'one none none 1 / 2'.split() in rows
  assert 'questions none none 0 / 1'.split() in rows and ['gram1'] not in rows
  del results['one']
  (line,) = words.format_table(results).splitlines()
  assert 'no item of' in line and 'questions' in line


def test_vectors_that_are_not_finite_are_refused(tmp_path):
  (tmp_path / 'pairs.txt').write_text('a b 1\n')
  vectors = np.ones((3, 2), np.float32)
  vectors[1, 1] = np.nan
  with pytest.raises(errors.UserError, match="'b'"):
    words.evaluate(['a', 'b', 'c'], vectors, [tmp_path])
  words.evaluate(['a', 'b', 'c'], vectors, [tmp_path], restrict_vocab=1)
