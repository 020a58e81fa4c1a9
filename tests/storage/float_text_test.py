"""Decimals are those of NumPy, digit for digit."""

import numpy as np

from jaxemb.storage import float_text


def _check(values):
  values = np.asarray(values, np.float32)
  lines = float_text.format_rows(values[:, None])
  assert [line.decode() for line in lines] == [f'{x!s}\n' for x in values]
  back = np.array([float(line) for line in lines]).astype(np.float32)
  is_nan = np.isnan(values)
  np.testing.assert_array_equal(
    back[~is_nan].view(np.int32), values[~is_nan].view(np.int32)
  )


def test_special_values():
  _check([0, -0.0, 1, -1, 0.1, 0.5, 123456, 999999.9, 1e6, 16777217, 3.4e38])
  _check([1e-4, 9.99e-5, 1e-5, 1e-13, 1e-14, 1.4e-45, 1 / 3])
  _check([np.inf, -np.inf, np.nan])


def test_around_powers_of_ten():
  for exponent in range(-16, 10):
    middle = np.float32(10.0**exponent).view(np.int32)
    bits = middle + np.arange(-100, 100, dtype=np.int32)
    _check(bits.view(np.float32))


def test_random_bits_and_usual_values():
  rng = np.random.default_rng(0)
  bits = rng.integers(2**32, size=50_000, dtype=np.uint32)
  _check(bits.view(np.float32))
  _check(rng.normal(size=50_000) * 10.0 ** rng.integers(-6, 6, 50_000))


def test_rows_with_and_without_usual_values():
  block = np.array([[1, -2.5], [1e20, 0.25], [3, 4]], np.float32)
  lines = float_text.format_rows(block)
  assert lines == [b'1.0 -2.5\n', b'1e+20 0.25\n', b'3.0 4.0\n']
