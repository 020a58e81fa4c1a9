"""k-means finds planted clusters; purity by its definition."""

import numpy as np
import pytest

from jaxemb.evaluation import clusters


def _unit(points):
  points = points.astype(np.float32)
  return points / np.linalg.norm(points, axis=1, keepdims=True)


def _planted(rng, sizes, dim=20, spread=0.1):
  centers = rng.normal(size=(len(sizes), dim))
  labels = np.repeat(np.arange(len(sizes)), sizes)
  noise = rng.normal(size=(len(labels), dim)) * spread
  return _unit(centers[labels] + noise), labels


def test_planted_clusters_are_found():
  points, labels = _planted(np.random.default_rng(0), [5, 40, 17, 9, 30, 3])
  assert clusters.purity(points, labels) == 1
  # Names do not matter, and equal clusters are found each time.
  assert clusters.purity(points, np.array(list('qwerty'))[labels]) == 1


def test_purity_counts_the_largest_category():
  points, labels = _planted(np.random.default_rng(1), [10, 10])
  # Category 0 is the largest of both clusters: 10 of 10, and 6 of 10.
  labels[10:16] = 0
  assert clusters.purity(points, labels) == pytest.approx(16 / 20)


def test_inertia_is_a_local_optimum_and_repeats():
  rng = np.random.default_rng(2)
  points = _unit(rng.normal(size=(300, 10)))
  assigned = clusters.cluster(points, 7)
  np.testing.assert_array_equal(assigned, clusters.cluster(points, 7))
  centers = _unit(np.stack([points[assigned == k].sum(0) for k in range(7)]))
  np.testing.assert_array_equal((points @ centers.T).argmax(1), assigned)


def test_more_starts_fit_no_worse():
  points = _unit(np.random.default_rng(3).normal(size=(200, 10)))

  def fit(num_starts):
    assigned = clusters.cluster(points, 9, num_starts)
    sums = [points[assigned == k].sum(0) for k in range(9)]
    return sum(np.linalg.norm(x) for x in sums)

  fits = [fit(n) for n in (1, 4, 16)]
  assert fits == sorted(fits) and fits[0] < fits[-1]


@pytest.mark.parametrize('num_clusters', [1, 2, 5])
def test_equal_points_and_one_cluster(num_clusters):
  points = np.tile(_unit(np.ones((1, 4))), (5, 1))
  assigned = clusters.cluster(points, num_clusters)
  assert assigned.shape == (5,) and assigned.max() < num_clusters
  assert clusters.purity(points, np.zeros(5, int)) == 1
