"""PCA and t-SNE against loops in double precision."""

import math

import numpy as np
import pytest

from jaxemb.report import layout


def _points(num_points=30, dim=5, seed=0):
  return np.random.default_rng(seed).normal(size=(num_points, dim))


def test_pca_keeps_the_largest_variances():
  points = _points() * [5, 1, 3, 0.1, 0.5]
  positions, share = layout.pca(points)
  values, directions = np.linalg.eigh(np.cov(points.T))
  expected = (points - points.mean(axis=0)) @ directions[:, [-1, -2]]
  np.testing.assert_allclose(abs(positions), abs(expected), atol=1e-9)
  assert share == pytest.approx(values[-2:].sum() / values.sum())


@pytest.mark.parametrize('points', [np.ones((3, 4)), np.eye(3)[:, :1]])
def test_pca_of_few_directions(points):
  positions, share = layout.pca(points)
  assert positions.shape == (3, 2)
  assert np.isfinite(positions).all() and share == pytest.approx(1)


def test_affinities_have_the_perplexity():
  points = _points()
  distances = layout._squared_distances(points)
  joint = layout._affinities(distances, 7.0)
  expected = np.zeros_like(joint)
  for i in range(len(points)):
    # The conditional distribution, its width by plain bisection.
    gaps = distances[i] - np.delete(distances[i], i).min()
    gaps[i] = np.inf
    low, high = 1e-6, 1e6
    for _ in range(200):
      beta = (low + high) / 2
      row = np.exp(-beta * gaps)
      row /= row.sum()
      entropy = -sum(p * math.log(p) for p in row if p > 0)
      low, high = (beta, high) if entropy > math.log(7) else (low, beta)
    expected[i] += row / (2 * len(points))
    expected[:, i] += row / (2 * len(points))
  np.testing.assert_allclose(joint, expected, rtol=1e-6, atol=1e-11)
  assert joint.sum() == pytest.approx(1)


def test_gradient_is_that_of_the_divergence():
  positions = _points(12, 2, seed=1)
  affinities = layout._affinities(layout._squared_distances(_points(12)), 4.0)

  def divergence(positions):
    kernel = np.zeros((12, 12))
    for i in range(12):
      for j in range(12):
        if i != j:
          gap = positions[i] - positions[j]
          kernel[i, j] = 1 / (1 + gap @ gap)
    q = kernel / kernel.sum()
    return sum(
      affinities[i, j] * math.log(affinities[i, j] / q[i, j])
      for i in range(12)
      for j in range(12)
      if i != j
    )

  scratch = np.empty((2, 12, 12), np.float32)
  gradient = layout._gradient(affinities.astype(np.float32), positions, scratch)
  for i in range(12):
    for axis in range(2):
      step = np.zeros_like(positions)
      step[i, axis] = 1e-5
      slope = divergence(positions + step) - divergence(positions - step)
      assert gradient[i, axis] == pytest.approx(slope / 2e-5, abs=1e-5)


def test_tsne_keeps_groups_apart():
  rng = np.random.default_rng(2)
  centers = rng.normal(size=(6, 20)) * 3
  groups = np.repeat(np.arange(6), 15)
  points = centers[groups] + rng.normal(size=(90, 20))
  positions = layout.tsne(points, 10.0)
  gaps = np.linalg.norm(positions[:, None] - positions[None], axis=2)
  np.fill_diagonal(gaps, np.inf)
  assert (groups[gaps.argmin(axis=1)] == groups).mean() > 0.97
  assert positions[:, 0].std() >= positions[:, 1].std()
  np.testing.assert_array_equal(positions, layout.tsne(points, 10.0))


def test_tsne_of_equal_points():
  assert np.isfinite(layout.tsne(np.ones((20, 3)), 5.0)).all()
  twice = np.repeat(_points(10), 2, axis=0)
  assert np.isfinite(layout.tsne(twice, 5.0)).all()
