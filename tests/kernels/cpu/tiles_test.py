"""Products of tiles, slopes and sums of rows, against NumPy."""

import numba
import numpy as np
import pytest

from jaxemb.kernels.cpu import rows, tiles

every_size = pytest.mark.parametrize('size', [1, 7, 16, 36, 64, 100, 125])

# What Python cannot call.


@numba.njit
def _scores(a, i, b, j, size, out, x, y):
  tiles.scores(a, i, b, j, size, out, x, y)


@numba.njit
def _add_rows(weights, x, y, step, given, i, count, out, j, rates, size):
  tiles.add_rows(weights, x, y, step, given, i, count, out, j, rates, size)


@numba.njit
def _add_columns(weights, x, y, step, given, i, count, out, j, rates, size):
  tiles.add_columns(weights, x, y, step, given, i, count, out, j, rates, size)


@numba.njit
def _copy(source, target, size):
  tiles.copy(source, target, size)


@numba.njit
def _slopes(scores, weights):
  rows.slopes(scores, weights)


def _normal(*shape):
  rng = np.random.default_rng(sum(shape))
  return rng.normal(size=shape).astype(np.float32)


def _addresses(array):
  start = array.ctypes.data
  return start + array.strides[0] * np.arange(len(array), dtype=np.uintp)


def _close(found, expected):
  np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@every_size
def test_products_of_tiles(size):
  a, b, out = _normal(9, size), _normal(11, size), _normal(12, 10)
  expected = out.astype(np.float64)
  _scores(_addresses(a), 5, _addresses(b), 2, size, out, 3, 6)
  expected[3:7, 6:10] = a[5:9].astype(np.float64) @ b[2:6].T
  _close(out, expected)


@every_size
def test_weighted_sums_of_rows(size):
  weights, given = _normal(11, 13), _normal(11, size)
  wide, rates = weights.astype(np.float64), _normal(12)
  shifted = np.vstack([wide[2:6, 5:9], wide[6:10, 1:5]])  # by -4 columns
  for function, x, y, four in (
    (_add_rows, 5, 2, wide[5:9, 2:10]), (_add_columns, 2, 5, shifted.T)
  ):  # fmt: skip
    out = _normal(12, size)
    expected = out.astype(np.float64)
    expected[8:] += rates[8:, None] * (four @ given[3:11])
    places = _addresses(given), 3, 8, _addresses(out), 8
    function(weights, x, y, -4, *places, rates, size)
    _close(out, expected)


def test_weighted_sums_for_one_row_that_comes_twice():
  weights, given, out = _normal(4, 4), _normal(4, 9), _normal(2, 9)
  expected = out.astype(np.float64)
  sums = weights.astype(np.float64) @ given
  expected[0] += sums[0] + sums[1] + sums[3]
  expected[1] += sums[2]
  places = _addresses(given), 0, 4, _addresses(out)[[0, 0, 1, 0]], 0
  _add_rows(weights, 0, 0, 0, *places, np.ones(4, np.float32), 9)
  _close(out, expected)


@every_size
def test_copies_of_rows(size):
  given, out = _normal(2, size), _normal(3, size)
  expected = np.vstack([out[:1], given[1:], out[2:]])
  _copy(_addresses(given)[1], _addresses(out)[1], size)
  np.testing.assert_array_equal(out, expected)


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
