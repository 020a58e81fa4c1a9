"""Merging of parts whose words have several vectors."""

import dataclasses
import itertools

import numpy as np
import pytest

from jaxemb import embeddings, errors
from jaxemb.cli import merge
from jaxemb.evaluation import multivectors
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import multivectors as senses
from jaxemb.merging import parts as parts_lib
from tests import oracle, runs

_DIM, _WORDS, _AMBIGUOUS, _SENSES = 8, 400, 60, 4


def _objective(rows, priors, votes, places):
  """What matching maximizes, for one word, in loops."""
  total = 0.0
  for i, j in itertools.combinations(range(len(rows)), 2):
    for k, m in itertools.product(range(rows.shape[1]), repeat=2):
      lengths = np.linalg.norm(rows[i, k]) * np.linalg.norm(rows[j, m])
      if places[i][k] == places[j][m] and lengths:
        weight = np.sqrt(votes[i] * votes[j]) * min(priors[i, k], priors[j, m])
        total += np.sqrt(weight) * (rows[i, k] @ rows[j, m]) / lengths
  return total


@pytest.mark.parametrize(
  ('num_parts', 'num_senses'), [(2, 1), (2, 3), (2, 4), (4, 3)]
)
def test_no_permutation_of_one_part_matches_better(num_parts, num_senses):
  rng, shape = np.random.default_rng(num_senses), (num_parts, 20)
  rows = rng.normal(size=(*shape, num_senses, 5))
  priors = rng.dirichlet(np.ones(num_senses), shape)
  votes = rng.integers(1, 50, shape).astype(float)
  if num_senses > 1:
    rows[1, 3, 1] = priors[1, 3, 1] = 0  # the part lacks that sense
  found, (matched, in_order) = senses.match(rows, priors, votes)
  for b in range(20):
    word = rows[:, b], priors[:, b], votes[:, b]
    reached = _objective(*word, found[:, b])
    before = _objective(*word, np.tile(np.arange(num_senses), (num_parts, 1)))
    ratio = reached * in_order[b]
    assert ratio == pytest.approx(before * matched[b], rel=1e-6, abs=1e-9)
    for i in range(num_parts):
      for permutation in itertools.permutations(range(num_senses)):
        other = found[:, b].copy()
        other[i] = permutation
        assert _objective(*word, other) <= reached + 1e-6


def _truth(loss='negative_sampling', ambiguous=_AMBIGUOUS, contexts=False):
  """Words of which the first have several senses."""
  rng = np.random.default_rng(0)
  sizes = np.where(np.arange(_WORDS) < ambiguous, _SENSES, 1)
  starts = np.append(0, np.cumsum(sizes))
  priors = np.concatenate([rng.dirichlet(np.ones(size)) for size in sizes])
  scale = 1 / np.sqrt(1 + np.arange(_DIM))
  num_outputs = _WORDS - (loss == 'hierarchical_softmax')
  made = multivectors.MultiVectors(
    [f'w{i}' for i in range(_WORDS)],
    1000 - np.arange(_WORDS),
    starts,
    (rng.normal(size=(starts[-1], _DIM)) * scale).astype(np.float32),
    priors.astype(np.float32),
    rng.normal(size=(num_outputs, _DIM)).astype(np.float32),
    loss,
    5,
    3,
  )
  if not contexts:
    return made
  # Means are directions of some words.
  several = made.by_row(np.diff(starts) > 1)[:, None]
  means = several * 0.6 * made.directions[rng.integers(0, _WORDS, starts[-1])]
  return dataclasses.replace(
    made, outputs=None, means=means, concentration=8.0, half_weight=1.0
  )


def _copy(truth, seed, missing=0.0, noise=0.0):
  """Rotated, with senses in another order and without some words."""
  rng = np.random.default_rng(seed)
  turn = oracle.rotation(rng, _DIM).astype(np.float32)
  kept = np.sort(rng.permutation(_WORDS)[: round(_WORDS * (1 - missing))])
  by_word = np.split(np.arange(len(truth.vectors)), truth.starts[1:-1])
  rows = [rng.permutation(by_word[w]) for w in kept]
  starts = np.append(0, np.cumsum([len(x) for x in rows]))
  rows = np.concatenate(rows)
  vectors = truth.vectors[rows] @ turn
  vectors += noise * rng.normal(size=vectors.shape).astype(np.float32)
  outputs, means = truth.outputs, truth.means
  if outputs is not None:
    outputs = outputs @ turn
    outputs = outputs[kept] if truth.loss == 'negative_sampling' else outputs
  if means is not None:
    means = means[rows] @ turn
  return dataclasses.replace(
    truth, words=[truth.words[w] for w in kept], counts=truth.counts[kept],
    starts=starts, vectors=vectors, priors=truth.priors[rows], outputs=outputs,
    means=means,
  )  # fmt: skip


def _part(name, made, seen=None):
  counts = made.by_row(np.asarray(made.counts if seen is None else seen))
  return parts_lib.Part(name, made.names(), made.vectors, counts, senses=made)


def _merge(tables, folder=None, **settings):
  parts = [
    x if isinstance(x, parts_lib.Part) else _part(f'p{i}', x)
    for i, x in enumerate(tables)
  ]
  parts = [parts_lib.check(part) for part in parts]
  if settings.get('method', 'alir') == 'alir':
    settings |= {'tolerance': 1e-12, 'max_iterations': 60}
  return senses.merge(parts, merge_lib.Spec(**settings), folder)


def _order(merged, truth):
  """Rows of the truth in the order of the result, by their distinct priors."""
  order = []
  for i, word in enumerate(merged.words):
    mine, its = merged.priors[merged.rows(i)], truth.rows(truth.index[word])
    gaps = np.abs(mine[:, None] - truth.priors[its][None])
    order.append(its.start + gaps.argmin(1))
    assert len(set(order[-1].tolist())) == len(mine)
  return np.concatenate(order)


def _check_cosines(merged, truth):
  order = _order(merged, truth)
  _check_angles(merged.vectors, truth.vectors[order])
  return order


def _check_angles(found, expected):
  found, expected = oracle.cosines(found), oracle.cosines(expected)
  np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize('loss', ['negative_sampling', 'hierarchical_softmax'])
@pytest.mark.parametrize('missing', [0.0, 0.3])
def test_rotated_and_permuted_copies_merge_to_the_original(
  loss, missing, tmp_path
):
  truth = _truth(loss)
  copies = [_copy(truth, i + 1, missing) for i in range(3)]
  merged = _merge(copies, tmp_path)
  found, report = merged.senses, merged.report['senses']
  assert set(found.words) == {word for copy in copies for word in copy.words}
  assert merged.words == found.names()
  order = _check_cosines(found, truth)
  np.testing.assert_allclose(found.priors, truth.priors[order], 1e-6)
  old, new = (np.linalg.norm(x.vectors, axis=1) for x in (truth, found))
  np.testing.assert_allclose(new, old[order], 1e-5)
  assert report['cosine_matched'] > 0.99999 and report['cosine_in_order'] < 0.6
  assert report['turned_by'] == 'words of one sense'
  if loss == 'hierarchical_softmax' and missing:
    assert found.outputs is None  # the parts have different trees
    assert 'other trees' in merged.report['warnings'][-1]
    return
  assert (found.loss, found.negatives, found.window) == (loss, 5, 3)
  scores = truth.vectors[order] @ truth.outputs.T
  if missing:
    scores = scores[:, [truth.index[word] for word in found.words]]
  np.testing.assert_allclose(found.vectors @ found.outputs.T, scores, atol=1e-5)
  even = _merge(copies, power=0.6).senses  # keeps inner products
  assert not np.allclose(np.linalg.norm(even.vectors, axis=1), new, rtol=0.1)
  np.testing.assert_allclose(even.vectors @ even.outputs.T, scores, atol=1e-4)


def test_a_sense_is_the_mean_of_its_parts_by_their_votes():
  truth, rng, parts = _truth(), np.random.default_rng(5), []
  for name in 'ab':
    vectors = truth.vectors + 0.01 * rng.normal(size=truth.vectors.shape)
    other = truth.priors * rng.uniform(0.9, 1.1, len(truth.priors))
    priors = other / truth.by_row(np.add.reduceat(other, truth.starts[:-1]))
    made = dataclasses.replace(
      truth, vectors=vectors.astype(np.float32), priors=priors
    )
    parts.append(_part(name, made, rng.integers(1, 100, _WORDS)))
  merged = _merge(parts, restore=False)
  turned = [
    part.vectors @ turn
    for part, turn in zip(parts, np.split(merged.rotations, 2), strict=True)
  ]
  votes = [part.counts * part.senses.priors for part in parts]
  expected = sum(v[:, None] * x for v, x in zip(votes, turned, strict=True))
  expected /= sum(votes)[:, None]
  priors = sum(votes) / sum(part.counts for part in parts)
  for word in range(_WORDS):  # whose senses are in any order
    rows = truth.rows(word)
    gaps = merged.vectors[rows][:, None] - expected[rows]
    at = np.abs(gaps).max(2).argmin(1)
    assert sorted(at) == list(range(len(at)))
    np.testing.assert_allclose(
      merged.vectors[rows], expected[rows][at], 0, 1e-5
    )
    found = merged.senses.priors[rows]
    np.testing.assert_allclose(found, priors[rows][at], 1e-5)


@pytest.mark.parametrize(('method', 'dim'), [('concat', 24), ('pca', 8)])
def test_concat_and_pca_match_senses_too(method, dim):
  truth = _truth()
  copies = [_copy(truth, i + 1, 0.2) for i in range(3)]
  merged = _merge(copies, method=method)
  common = set.intersection(*(set(x.words) for x in copies))
  assert set(merged.senses.words) == common
  assert merged.vectors.shape[1] == dim and merged.senses.outputs is None
  _check_cosines(merged.senses, truth)


def test_words_that_no_part_saw_stay_with_the_tree():
  truth = _truth('hierarchical_softmax')
  copies = [_copy(truth, i + 1) for i in range(2)]
  seen = np.array([truth.counts, truth.counts // 3])
  seen[:, -2:] = 0
  seen[0, 5] = 0
  copies[0].vectors[copies[0].rows(5)] = 100  # noise: the part never saw it
  parts = [_part(f'p{i}', copies[i], seen[i]) for i in range(2)]
  found = _merge(parts).senses
  assert found.words == truth.words
  np.testing.assert_array_equal(found.counts, truth.counts)
  assert found.outputs.shape == (_WORDS - 1, _DIM)
  rows = found.rows(5)
  assert np.abs(found.vectors[rows]).max() < 10
  np.testing.assert_allclose(found.priors[rows], copies[1].priors[rows], 1e-6)


@pytest.mark.parametrize(
  ('method', 'missing'),
  [('alir', 0.3), ('concat', 0.0)],
)
def test_merged_contexts_disambiguate_as_before(method, missing):
  truth = _truth(contexts=True)
  copies = [_copy(truth, i + 1, missing) for i in range(3)]
  found = _merge(copies, method=method).senses
  order, num_clear = _order(found, truth), 0
  rng = np.random.default_rng(2)
  for i in np.flatnonzero(np.diff(found.starts) > 1):
    ids = i, *rng.integers(0, len(found.words), 6)
    word, *context = (truth.index[found.words[x]] for x in ids)
    chances = found.posterior(i, ids[1:])
    senses_of = order[found.rows(i)] - truth.starts[word]
    expected = truth.posterior(word, context)[senses_of]
    np.testing.assert_allclose(chances, expected, 0, 0.02)
    num_clear += chances.max() > 1.5 * found.priors[found.rows(i)].max()
  assert num_clear > 5


def test_the_command_writes_an_export_of_senses(tmp_path, capsys):
  truth = _truth('hierarchical_softmax')
  folders = [str(tmp_path / f'p{i}' / 'export') for i in range(2)]
  for i, folder in enumerate(folders):
    runs.write_senses(folder, _copy(truth, i + 1))
  output = tmp_path / 'merged'
  assert merge.main([*folders, f'--output={output}']) == 0
  out = capsys.readouterr().out
  assert '60 words have several' in out and 'matched ones 1.000' in out
  chances = embeddings.load_vectors(output).disambiguate('w70 w3 w80', 1)
  assert len(chances) == _SENSES and abs(chances.sum() - 1) < 1e-6
  # Merged again, into vectors that cannot disambiguate.
  again = tmp_path / 'again'
  argv = [folders[0], str(output), f'--output={again}', '--method=pca']
  assert merge.main(argv) == 0
  assert 'cannot be disambiguated' in capsys.readouterr().err
  with pytest.raises(errors.UserError, match='cannot disambiguate'):
    embeddings.load_vectors(again).disambiguate('w70 w3 w80', 1)
