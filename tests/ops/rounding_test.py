"""Rounding against the neighbours of each value, and many small updates."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxemb.ops import rounding
from jaxemb.tables import spec as spec_lib
from tests import oracle
from tests.ops import randomness

KEY = np.array([0x13198A2E, 0x03707344], np.uint32)
KINDS = {'bfloat16': ml_dtypes.bfloat16, 'float16': np.float16}
SCALE = np.float32(0.0078125 * 1.01171875)  # of 16 bits
# Between the last two numbers of the type, denormal ones, and others.
SOME = {
  'bfloat16': (0.0781234, -1.2345678, 2.4e-40, -1e-39, 1.0000001, 3.385e38),
  'float16': (0.0781234, -1.2345678, 3.3e-8, -2.2e-9, 6.1e-5, 65_480.1),
  'int8': (0.0781234, -0.2345678, 3.3e-5, -0.0012, 1.0000001, 1.003),
}

_bits = jax.jit(rounding.random_bits)
_encode = jax.jit(rounding.encode, static_argnums=1)
_decode = jax.jit(rounding.decode, static_argnums=1)
every_type = pytest.mark.parametrize('dtype', SOME)
every_float = pytest.mark.parametrize('dtype', KINDS)


def _grid(dtype):
  """All finite numbers of a type, in order, as float32."""
  if dtype == 'int8':
    return np.arange(-127, 128).astype(np.float32) * SCALE
  codes = np.arange(2**16).astype(np.uint16).view(KINDS[dtype])
  values = codes.astype(np.float32)
  return np.unique(values[np.isfinite(values)])


def _stored(values, dtype, bits=None):
  """Rows, to and fro; bits broadcast."""
  values = np.asarray(values, np.float32)
  if bits is not None:
    bits = np.broadcast_to(np.asarray(bits, np.uint32), values.shape)
  scales = np.full(values.shape[:-1], SCALE) if dtype == 'int8' else None
  return np.asarray(_decode(_encode(values, dtype, bits, scales), dtype))


def _between(dtype):
  """Values of all sizes that have neighbours, none of them on the grid."""
  grid = _grid(dtype).astype(np.float64)
  rng = np.random.default_rng(0)
  low = rng.integers(0, len(grid) - 1, 3000)
  part = rng.uniform(0.001, 0.999, len(low))
  values = grid[low] + part * (grid[low + 1] - grid[low])
  values = np.append(values, SOME[dtype]).astype(np.float32)
  return values[~np.isin(values, _grid(dtype))]


@every_type
def test_exact_values_stay(dtype):
  grid = _grid(dtype)
  for bits in (None, 0, 2**32 - 1):
    found = _stored(grid, dtype, bits)
    np.testing.assert_array_equal(found, grid)
    signs = np.signbit(found) == np.signbit(grid)
    assert signs.all() or dtype == 'int8'
  stored = jax.device_get(_encode(grid, dtype, None, SCALE))
  host = spec_lib.from_stored(stored, dtype).decode()
  np.testing.assert_array_equal(host, grid)


@every_type
def test_others_go_to_a_neighbour_as_often_as_they_should(dtype):
  grid, values = _grid(dtype).astype(np.float64), _between(dtype)
  above = np.searchsorted(grid, values)
  low, high = grid[above - 1], grid[above]
  share = (values.astype(np.float64) - low) / (high - low)
  each = 2**12
  # Evenly spread bits in place of random ones: shares are met, not estimated.
  steps = (np.arange(each, dtype=np.uint32) << 20) | 0x80000
  many = np.broadcast_to(values, (each, len(values)))
  found = _stored(many, dtype, steps[:, None])
  assert ((found == low) | (found == high)).all()
  # Away from zero, of integers upwards.
  np.testing.assert_allclose((found == high).mean(0), share, 0, 1.5 / each)


@every_float
def test_nearest_is_that_of_ieee(dtype):
  grid = _grid(dtype)
  middles = (grid[1:].astype(np.float64) + grid[:-1]) / 2
  middles = middles.astype(np.float32)
  beside = [np.nextafter(middles, x) for x in np.float32([-np.inf, np.inf])]
  values = np.concatenate([_between(dtype), middles, *beside])
  with np.errstate(over='ignore'):
    expected = values.astype(KINDS[dtype]).astype(np.float32)
  np.testing.assert_array_equal(_stored(values, dtype), expected)


@every_float
@pytest.mark.parametrize('bits', [None, 0, 2**32 - 1])
def test_beyond_the_largest_and_not_a_number(dtype, bits):
  largest, huge = _grid(dtype)[-1], 3.4028e38
  payload = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
  values = [huge, -huge, np.inf, -np.inf, np.nan, *payload]
  expected = [largest, -largest, np.inf, -np.inf, np.nan, np.nan, np.nan]
  np.testing.assert_array_equal(_stored(values, dtype, bits), expected)


@pytest.mark.parametrize('bits', [None, 0, 2**32 - 1])
def test_rows_of_int8(bits):
  # Numbers are divided by multiplying with a reciprocal, which is rounded:
  # exact values of every scale stay.
  scales = np.arange(64, 128, dtype=np.float32) * np.float32(2.0**-20)
  codes = np.broadcast_to(np.arange(-127, 128, dtype=np.int8), (64, 255))
  values = codes * scales[:, None]
  if bits is not None:
    bits = np.full(values.shape, bits, np.uint32)
  found = _encode(values, 'int8', bits, scales)
  np.testing.assert_array_equal(found.codes, codes)
  # Rows that are not finite stay so, and others hold the largest numbers.
  largest = np.finfo(np.float32).max
  values = np.array(
    [[largest, 1e38], [-largest, 0], [3e38, -2e38], [1, np.nan], [np.inf, 0]],
    np.float32,
  )
  bits = None if bits is None else bits[:5, :2]
  stored = _encode(values, 'int8', bits)
  found = np.asarray(_decode(stored, 'int8'))
  assert np.isfinite(found).all(1).tolist() == [True] * 3 + [False] * 2
  assert np.abs(found - values)[:3].max() <= np.asarray(stored.scales)[:3].max()


def test_bits_are_the_stated_function():
  turned = KEY[::-1] ^ np.uint32(0x5BD1E995)
  ids, columns = (5, 2**31 - 1), (3, 4, 5)
  found = _bits(KEY, np.array(ids)[:, None], np.array(columns))
  for row, mine in zip(ids, found[:, 0].tolist(), strict=True):
    for column, bits in zip(columns, mine, strict=True):
      by_column = column * 0x9E3779B9 % 2**32
      first = oracle.random_bits(KEY, row) ^ by_column ^ (by_column >> 15)
      assert bits == first * (oracle.random_bits(turned, row) | 1) % 2**32


def test_bits_are_even_and_independent():
  keys = [rounding.key(KEY, i, j) for i in range(20) for j in range(3)]
  assert len({tuple(x.tolist()) for x in keys}) == 60
  rows, columns = 2048, 128
  found = [
    np.asarray(_bits(rounding.key(KEY, i), np.arange(rows), np.arange(columns)))
    for i in range(4)
  ]
  # float64 in [0, 1), of the upper 16 bits; neighbours in row, column and step
  # do not know of each other, nor do even and odd columns.
  unit = (np.stack(found) >> 16) / 2**16
  randomness.check_uniform(unit)
  halves = np.stack([unit[:, :, ::2], unit[:, :, 1::2]])
  randomness.check_uncorrelated(halves, 0)
  # Sums over rows and columns spread as those of independent numbers: scores of
  # rows do.
  for axis in (1, 2):
    sums = (unit - 0.5).sum(axis) / np.sqrt(unit.shape[axis] / 12)
    assert np.abs(sums).max() < 5
    assert sums.std() == pytest.approx(1, abs=0.1 if axis == 1 else 0.05)
  # Nor are some rows far off, which columns without their shift would be.
  wide = _bits(rounding.key(KEY, 9), np.arange(4 * rows), np.arange(512))
  sums = ((np.asarray(wide) >> 16) / 2**16 - 0.5).sum(1) / np.sqrt(512 / 12)
  assert np.mean(sums**4) == pytest.approx(3, abs=0.4)


def test_scales_of_int8():
  first = np.asarray(rounding.row_scales(np.float32(1)))
  assert 1 < 127 * first < 1 + 2**-6
  assert np.float64(first) * 127 == np.float32(127 * first)
  # Largest number, old scale and whether it is kept.
  cases = [
    (0, 0, True),
    (1, first, True),
    (1, 0, False),
    (0.97, first, True),
    (1.1, first, False),
    (0.9, first, False),
    (0, first, True),
    (np.nan, first, False),
  ]
  largest, old, kept = np.array(cases, np.float32).T
  found = np.asarray(rounding.row_scales(largest, old))
  np.testing.assert_array_equal(found == old, kept)
  assert (127 * found[:7] >= largest[:7]).all() and np.isnan(found[7])
  # What is beyond the spread is cut, but not more and more.
  cut = np.asarray(rounding.row_scales(largest, None, np.float32(0.5)))[1:5]
  np.testing.assert_allclose(127 * cut, 0.5, 2**-6)
  again = rounding.row_scales(127 * cut, cut, np.float32(0.1))
  np.testing.assert_array_equal(again, cut)
  # Nor is what an old scale had room for.
  finer = rounding.row_scales(np.float32(1), np.float32(1.2 / 127), 0.5)
  assert 1 <= 127 * np.float32(finer) < 1 + 2**-6
  assert rounding.row_scales(np.float32(0)) > 0


def test_finite():
  for dtype, value, expected in [
    *((x, 1e4, True) for x in KINDS),
    *((x, y, False) for x in KINDS for y in (np.inf, np.nan)),
    # What has grown beyond the largest number is there no more.
    ('float16', -6e4, True),
    ('float16', -1e9, False),
  ]:
    stored = _encode(np.array([-1, value], np.float32), dtype)
    assert bool(rounding.is_finite(stored)) == expected
  assert not rounding.is_finite(jnp.array([1, np.nan]))
  assert rounding.is_finite(jnp.arange(3))
