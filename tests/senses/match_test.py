"""Which senses are the same: against plain loops over all permutations."""

import itertools

import numpy as np
import pytest

from jaxemb.senses import match


def _total(rows, priors, votes, places):
  """What is maximized, of one word, as its definition has it."""
  total = 0.0
  for i, j in itertools.combinations(range(len(rows)), 2):
    for k, m in itertools.product(range(rows.shape[1]), repeat=2):
      x, y = rows[i, k].astype(float), rows[j, m].astype(float)
      lengths = np.sqrt(x @ x) * np.sqrt(y @ y)
      if places[i][k] != places[j][m] or not lengths:
        continue
      weight = np.sqrt(votes[i] * votes[j]) * min(priors[i, k], priors[j, m])
      weight **= 0.5
      total += weight * (x @ y) / lengths
  return total


def _random(seed, num_parts, num_senses, dim=5, words=20):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(words, num_parts, num_senses, dim))
  priors = rng.dirichlet(np.ones(num_senses), (words, num_parts))
  votes = rng.integers(1, 50, (words, num_parts)).astype(float)
  return rows, priors, votes


@pytest.mark.parametrize('num_senses', [1, 2, 3, 4])
def test_of_two_parts_no_permutation_is_better(num_senses):
  rows, priors, votes = _random(num_senses, 2, num_senses)
  if num_senses > 2:
    rows[3, 1, 2] = priors[3, 1, 2] = 0  # one has no such sense
  pairs = match.compare(rows, priors, votes)
  found = match.match(pairs, votes).places
  straight = list(range(num_senses))
  for b in range(len(rows)):
    best = max(
      _total(rows[b], priors[b], votes[b], (straight, places))
      for places in itertools.permutations(straight)
    )
    mine = _total(rows[b], priors[b], votes[b], found[b])
    np.testing.assert_allclose(mine, best, 1e-6, 1e-9)
    assert sorted(found[b, 1]) == straight
  np.testing.assert_allclose(
    match.total(pairs.scores, found),
    [_total(*x) for x in zip(rows, priors, votes, found, strict=True)],
    1e-6,
    1e-9,
  )


def test_of_more_parts_none_can_be_placed_better():
  rows, priors, votes = _random(9, 4, 3)
  pairs = match.compare(rows, priors, votes)
  found = match.match(pairs, votes)
  assert found.rounds > 1
  reached = match.total(pairs.scores, found.places)
  for b, i in itertools.product(range(len(rows)), range(4)):
    for places in itertools.permutations(range(3)):
      other = found.places[b].copy()
      other[i] = places
      there = _total(rows[b], priors[b], votes[b], other)
      assert there <= reached[b] + 1e-6


def test_noise_hardly_matters():
  rng = np.random.default_rng(0)
  truth = rng.normal(size=(1000, 5, 20))
  rows, places = np.empty((1000, 3, 5, 20)), np.empty((1000, 3, 5), int)
  priors = np.empty((1000, 3, 5))
  chances = rng.dirichlet(np.ones(5), 1000)
  for b, i in itertools.product(range(1000), range(3)):
    places[b, i] = rng.permutation(5)
    rows[b, i] = truth[b, places[b, i]] + 0.5 * rng.normal(size=(5, 20))
    priors[b, i] = chances[b, places[b, i]]
  pairs = match.compare(rows, priors, np.ones((1000, 3)))
  found = match.match(pairs, np.ones((1000, 3))).places
  # Up to a permutation of all parts alike.
  same = np.argsort(found, -1)
  truly = np.take_along_axis(places, same, -1)
  assert np.mean(truly == truly[:, :1]) > 0.99


def test_senses_that_are_never_meant_take_what_is_left():
  rows = np.zeros((1, 2, 3, 2))
  rows[0, 0] = [[1, 0], [0, 1], [1, 0.1]]
  rows[0, 1] = [[0, 1], [1, 0.1], [1, 0]]
  priors = np.array([[[0.5, 0.5 - 1e-9, 1e-9], [0.5, 0.5 - 1e-9, 1e-9]]])
  votes = np.ones((1, 2))
  pairs = match.compare(rows, priors, votes)
  # The nearest one of the last would be that which the first one needs.
  assert match.match(pairs, votes).places[0, 1].tolist() == [1, 0, 2]


def test_cosines_are_those_of_what_is_made_one():
  rng = np.random.default_rng(4)
  first = rng.normal(size=(1, 1, 2, 3))
  rows = np.concatenate([first, 7 * first[:, :, ::-1]], 1)
  priors = np.array([[[0.25, 0.75], [0.75, 0.25]]])
  pairs = match.compare(rows, priors, np.ones((1, 2)))
  swapped = np.array([[[0, 1], [1, 0]]])
  np.testing.assert_allclose(match.cosines(pairs, swapped, swapped), 1)
  x, y = first[0, 0] / np.linalg.norm(first[0, 0], axis=1, keepdims=True)
  straight = np.tile([0, 1], (1, 2, 1))
  np.testing.assert_allclose(match.cosines(pairs, straight, straight), x @ y)
  # Over the same weights, of which these take less.
  share = 2 * 0.25**0.5 / (0.25**0.5 + 0.75**0.5)
  np.testing.assert_allclose(
    match.cosines(pairs, straight, swapped), share * (x @ y)
  )


def test_no_order_is_better_than_what_is_matched():
  rows, priors, votes = _random(5, 2, 4, dim=2, words=300)
  pairs = match.compare(rows, priors, votes)
  found = match.match(pairs, votes).places
  straight = np.broadcast_to(np.arange(4), found.shape)
  mine, its = (match.cosines(pairs, x, found) for x in (found, straight))
  assert (mine >= its - 1e-9).all()
  alone = match.cosines(pairs, straight, straight)
  assert (alone > mine).any()  # which would be taken for a better order
