"""Measures against closed forms; `embeddings_test` has gensim's evaluators."""

import json
import logging

import numpy as np
import pytest
from scipy import stats

from jaxemb import errors
from jaxemb.evaluation import benchmarks, geometry, words
from tests import oracle


def _evaluate(tmp_path, vectors, names, limit=0, **files):
  for name, text in files.items():
    (tmp_path / name).write_text(text)
  return words.evaluate(names, vectors, benchmarks.find([tmp_path]), limit)


def test_a_word_with_itself_ties(tmp_path):
  vectors = np.random.default_rng(3).normal(size=(21, 12)).astype(np.float32)
  names = [f'w{i}' for i in range(21)]
  lines = [f'w{i} w{i + j} {i}' for j in (0, 1) for i in range(20)]
  cosines = [1.0] * 20 + [*np.diag(oracle.cosines(vectors), 1)]
  expected = stats.spearmanr([*range(20)] * 2, cosines)[0]
  result = _evaluate(tmp_path, vectors, names, pairs='\n'.join(lines))
  assert result['pairs']['score'] == pytest.approx(expected, abs=1e-12)


def test_ties_and_vectors_of_length_zero_are_no_answers(tmp_path):
  vectors, names = np.ones((5, 4), np.float32), list('abcde')
  tied = _evaluate(tmp_path, vectors, names, questions='a b c d\n')
  assert tied['questions']['score'] == tied['questions']['score_cosmul'] == 0
  vectors = np.eye(5, 4, dtype=np.float32)
  vectors[3] = [-1, 1, 1, 0]
  lines = ': right\na b c d\n: wrong\na b c e\n'
  results = _evaluate(tmp_path, vectors, names, questions=lines)
  sections = results['questions']['sections']
  for name, score in (('right', 1), ('wrong', 0)):
    assert sections[name]['score'] == sections[name]['score_cosmul'] == score


def test_categories_of_planted_clusters(tmp_path):
  rng = np.random.default_rng(4)
  names = [f'w{i}' for i in range(60)]
  centers = rng.normal(size=(3, 10))
  vectors = centers[np.arange(60) % 3] + rng.normal(size=(60, 10)) / 10
  vectors = (vectors * rng.uniform(1, 9, (60, 1))).astype(np.float32)
  lines = [',category,word', *(f'{i},c{i % 3},w{i}' for i in range(60))]
  lines += ['60,c1,W1', '61,c2,', '62,c9,unknown', '63,c0,w0,more']
  results = _evaluate(tmp_path, vectors, names, groups='\n'.join(lines))
  assert results['groups'] == {
    'kind': 'categorization', 'layout': 'categories', 'score': 1.0,
    'found': 60, 'total': 61, 'oov': 1, 'clusters': 3, 'malformed': 1,
    'blank': 1, 'repeated': 1, 'restrict_vocab': 60, 'vocab': 60,
  }  # fmt: skip


@pytest.mark.parametrize('num_clusters', [5, 40])
def test_clusters_of_points(num_clusters):
  points = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
  points[10:20] = points[0]  # fewer different points than clusters
  found = geometry.cluster(points, num_clusters)
  assert found.shape == (40,) and set(found) <= set(range(num_clusters))
  assert len(set(found[10:20])) == 1
  np.testing.assert_array_equal(found, geometry.cluster(points, num_clusters))


def test_no_known_word_takes_one_line(tmp_path, caplog):
  caplog.set_level(logging.WARNING)
  results = _evaluate(
    tmp_path,
    np.eye(2, dtype=np.float32),
    ['x', 'y'],
    pairs='a b 1\nc d 2\n',
    one='x y 1\nc d 2\n',
    questions=': gram1\na b c d\n',
    groups=',category,word\n0,c,a\n',
    LICENSE='All rights are reserved by us.',
  )
  assert [result['score'] for result in results.values()] == [None] * 4
  assert caplog.messages == ['skipped 1 file(s) of unknown layout: LICENSE']
  json.dumps(results, allow_nan=False)
  del results['one']
  (line,) = words.format_table(results).splitlines()
  assert 'no item of' in line and 'questions' in line


def test_vectors_that_are_not_finite_are_refused(tmp_path):
  vectors = np.array([[1, 1], [1, np.nan], [1, 1]], np.float32)
  with pytest.raises(errors.UserError, match="'b'"):
    _evaluate(tmp_path, vectors, ['a', 'b', 'c'], pairs='a b 1\n')
  _evaluate(tmp_path, vectors, ['a', 'b', 'c'], limit=1)
