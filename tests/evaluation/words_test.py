"""Measures against gensim's evaluators, to the last bit, and closed forms."""

import json
import logging

import numpy as np
import pytest
from gensim import models
from scipy import stats

from jaxemb import errors
from jaxemb.evaluation import geometry, words


def _evaluate(tmp_path, vectors, names, limit=0, **files):
  for name, text in files.items():
    (tmp_path / name).write_text(text)
  return words.evaluate(names, vectors, [tmp_path], limit)


@pytest.mark.parametrize('limit', [1000, 120])
def test_similarity_and_analogies_equal_gensim(tmp_path, limit):
  rng = np.random.default_rng(limit)
  # Some words exist in two cases; of those asked, some in neither.
  names = [f'w{i}' for i in range(200)]
  names[150:] = [f'W{2 * i}' for i in range(50)][::-1]
  vectors = rng.normal(size=(200, 12)).astype(np.float32)

  def pick(*shape):
    cases = np.array(['w', 'W'])[rng.integers(2, size=shape)]
    return np.char.add(cases, rng.integers(190, size=shape).astype(str))

  pairs, questions = pick(400, 2), pick(600, 4)
  lines = [
    f'{a}\t{b}\t{rng.integers(12) / 2}'  # many ties
    for a, b in pairs
    if a.upper() != b.upper()
  ]
  asked = [' '.join(question) for question in questions]
  asked[400:400], asked[100:100], asked[:0] = [': x'], [': gram1'], [': first']
  rows = {name.upper(): row for row, name in reversed([*enumerate(names)])}
  for a, b, c, d in np.char.upper(questions[::2]).tolist():
    if {a, b, c, d} <= rows.keys():
      moved = vectors[rows[b]] + vectors[rows[c]] - vectors[rows[a]]
      vectors[rows[d]] = moved + rng.normal(size=12) / 2
  found = _evaluate(
    tmp_path,
    vectors,
    names,
    limit,
    pairs='\n'.join(lines),
    asked='\n'.join(asked),
  )
  keyed = models.KeyedVectors(12)
  keyed.add_vectors(names, vectors)
  result = found['pairs']
  pearson, spearman, oov = keyed.evaluate_word_pairs(
    str(tmp_path / 'pairs'), restrict_vocab=limit
  )
  assert result['score'] == spearman[0] and result['pearson'] == pearson[0]
  assert 100 * result['oov'] / len(lines) == pytest.approx(oov)
  assert 0 < result['found'] < result['total'] == len(lines)
  limits = result['restrict_vocab'], result['vocab']
  assert limits == (limit, min(limit, 200))
  result = found['asked']
  score, sections = keyed.evaluate_word_analogies(
    str(tmp_path / 'asked'), restrict_vocab=limit
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
  vectors = np.random.default_rng(3).normal(size=(21, 12)).astype(np.float32)
  names = [f'w{i}' for i in range(21)]
  lines = [f'w{i} w{i + j} {i}' for j in (0, 1) for i in range(20)]
  unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  cosines = [1.0] * 20 + [float(unit[i] @ unit[i + 1]) for i in range(20)]
  expected = stats.spearmanr([*range(20)] * 2, cosines)[0]
  result = _evaluate(tmp_path, vectors, names, pairs='\n'.join(lines))
  assert result['pairs']['score'] == pytest.approx(expected, abs=1e-12)


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
  line = words.format_table(results).splitlines()[-1]
  assert ' '.join(line.split()) == (
    'groups 1.0000 60 / 61 (3 clusters, 1 malformed lines, 1 blank words, '
    '1 repeated words)'
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
  rows = [line.split() for line in words.format_table(results).splitlines()]
  assert 'one none none 1 / 2'.split() in rows
  assert 'questions none none 0 / 1'.split() in rows and ['gram1'] not in rows
  del results['one']
  (line,) = words.format_table(results).splitlines()
  assert 'no item of' in line and 'questions' in line


def test_vectors_that_are_not_finite_are_refused(tmp_path):
  vectors = np.array([[1, 1], [1, np.nan], [1, 1]], np.float32)
  with pytest.raises(errors.UserError, match="'b'"):
    _evaluate(tmp_path, vectors, ['a', 'b', 'c'], pairs='a b 1\n')
  _evaluate(tmp_path, vectors, ['a', 'b', 'c'], limit=1)
