"""Products of tiles, slopes and sums of rows, against NumPy."""

import numba
import numpy as np
import pytest

from jaxemb.native import rows, tiles

every_size = pytest.mark.parametrize('num_vectors', [1, 2, 7])

# What Python cannot call.


@numba.njit
def _scores(a, i, b, j, out, x, y):
  tiles.scores(a, i, b, j, out, x, y)


@numba.njit
def _add_rows(weights, x, y, given, i, out, j):
  tiles.add_rows(weights, x, y, given, i, out, j)


@numba.njit
def _add_columns(weights, x, y, given, i, out, j):
  tiles.add_columns(weights, x, y, given, i, out, j)


@numba.njit
def _add_scaled(row, delta, scale):
  tiles.add_scaled(row, delta, scale)


@numba.njit
def _slopes(scores, weights):
  rows.slopes(scores, weights)


def _normal(*shape):
  rng = np.random.default_rng(sum(shape))
  return rng.normal(size=shape).astype(np.float32)


def _close(found, expected):
  np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@every_size
def test_products_of_tiles(num_vectors):
  size = num_vectors * tiles.LANES
  a, b, out = _normal(9, size), _normal(11, size), _normal(12, 10)
  expected = out.astype(np.float64)
  _scores(a, 5, b, 2, out, 3, 6)
  expected[3:7, 6:10] = a[5:9].astype(np.float64) @ b[2:6].T
  _close(out, expected)


@every_size
def test_weighted_sums_of_tiles(num_vectors):
  size = num_vectors * tiles.LANES
  weights, given = _normal(10, 9), _normal(11, size)
  four, own = weights[5:9, 2:6].astype(np.float64), given[7:11]
  for function, sums in ((_add_rows, four @ own), (_add_columns, four.T @ own)):
    out = _normal(12, size)
    expected = out.astype(np.float64)
    expected[8:] += sums
    function(weights, 5, 2, given, 7, out, 8)
    _close(out, expected)


def test_scaled_rows_of_any_size():
  for size in range(1, 3 * tiles.LANES + 4):
    table, delta = _normal(3, size), _normal(size + 5)
    expected = table.astype(np.float64)
    expected[1] -= 0.3 * delta[:size]
    _add_scaled(table[1], delta, np.float32(-0.3))
    _close(table, expected)


def test_slopes_of_scores_of_any_size():
  scores = np.concatenate([np.linspace(-40, 40, 4001), [0, -1e30, 1e30]])
  scores = scores.astype(np.float32)
  for weight in (-1.0, -0.25, 0.0, 0.5, 5.0):
    found = scores.copy()
    _slopes(found, np.full(len(scores), weight, np.float32))
    sign = -1 if weight < 0 else 1
    wide = np.clip(scores.astype(np.float64), -700, 700)
    expected = weight / (1 + np.exp(-sign * wide))
    np.testing.assert_allclose(found, expected, 0, 3e-7 * abs(weight))
