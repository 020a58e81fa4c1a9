"""Negatives: the alias table, the bits, and what comes out of both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxemb.ops import sampling
from tests import oracle

KEY = np.array([0x243F6A88, 0x85A308D3], np.uint32)

_bits = jax.jit(sampling.random_bits)
_draw = jax.jit(sampling.draw)
_rows = jax.jit(sampling.uniform_rows, static_argnums=3)


def _zipf(vocab):
  return (1e7 / np.arange(1, vocab + 1)) ** 0.75


def _positions(num, first=0):
  return ((first + np.arange(num, dtype=np.int64)) % 2**32).astype(np.uint32)


def _p_value(found, chance):
  """Of counts against chances; cells of under 10 are put together."""
  expected = chance / chance.sum() * found.sum()
  is_large = expected >= 10
  found, expected = (
    np.append(x[is_large], x[~is_large].sum()) for x in (found, expected)
  )
  last = -1 if expected[-1] < 10 else None
  found, expected = found[:last], expected[:last]
  expected = expected * (found.sum() / expected.sum())
  return scipy.stats.chisquare(found, expected).pvalue


WEIGHTS = {
  'one': np.array([3.0]),
  'two': np.array([1.0, 3.0]),
  'zipf': _zipf(70_000),
  'equal': np.full(1000, 0.1),
  'integers': np.arange(1, 100),
  'one_huge': np.append(np.ones(999), 1e12),
  'zeros': np.where(np.arange(5000) % 7, 0.0, 1.1),
  'all_on_last': np.append(np.zeros(4999), 5.0),
  'tiny': np.array([1e-300, 2e-300, 1e-300]),
}


@pytest.mark.parametrize('weights', WEIGHTS.values(), ids=WEIGHTS)
def test_draws_follow_the_weights(weights):
  before = weights.copy()
  table = sampling.alias_table(weights)
  np.testing.assert_array_equal(weights, before)
  probability, alias = table
  assert probability.dtype == np.float32 and alias.dtype == np.int32
  assert 0 <= alias.min() and alias.max() < len(weights)
  assert 0 <= probability.min() and probability.max() <= 1
  # Keep probabilities are float32: an error of 2^-25 in each slot met.
  implied = probability.astype(np.float64)
  np.add.at(implied, alias, 1 - probability.astype(np.float64))
  implied /= len(weights)
  chance = weights / weights.sum()
  np.testing.assert_allclose(implied, chance, 1e-5, 2**-24 / len(weights))
  drawn = np.asarray(_draw(table, KEY, _positions(1 << 20)))
  assert drawn.dtype == np.int32 and 0 <= drawn.min()
  found = np.bincount(drawn, minlength=len(weights))
  assert len(found) == len(weights)
  # A weight of zero is never drawn, not even by rounding.
  assert not implied[weights == 0].any() and not found[weights == 0].any()
  if chance.max() < 0.999:
    assert _p_value(found[weights > 0], weights[weights > 0]) > 1e-3


def test_neighbouring_draws_are_independent():
  table = sampling.alias_table(_zipf(1000))
  drawn = np.asarray(_draw(table, KEY, _positions(1 << 20)))
  found = np.bincount(drawn, minlength=1000)
  # Thinned to 20 x 20 cells.
  edges = np.searchsorted(np.cumsum(found), np.arange(1, 20) / 20 * len(drawn))
  cell = np.searchsorted(edges, drawn)
  joint = np.bincount(20 * cell[:-1:2] + cell[1::2], minlength=400)
  share = np.bincount(cell, minlength=20) / len(cell)
  chance = np.outer(share, share).reshape(-1)
  assert _p_value(joint[chance > 0], chance[chance > 0]) > 1e-3


def test_draw_is_a_pure_function_of_key_and_position():
  table = sampling.alias_table(_zipf(1000))
  first = np.asarray(_draw(table, KEY, _positions(512)))
  for key, start in [(KEY, 512), (KEY + np.uint32(1), 0), (KEY[::-1], 0)]:
    other = _draw(table, key, _positions(512, start))
    assert (np.asarray(other) == first).mean() < 0.2
  # What a device draws for some chunks is what one draws for all of them.
  order = np.random.default_rng(0).permutation(512)
  found = _draw(table, KEY, _positions(512)[order].reshape(16, 32))
  assert found.shape == (16, 32)
  np.testing.assert_array_equal(np.asarray(found).reshape(-1), first[order])


def test_bits_are_scaled_exactly():
  rng = np.random.default_rng(0)
  sizes = [1, 2, 3, 65_535, 65_536, 65_537, 10**6, 2**24 + 1, 2**30, 2**31 - 1]
  scale = jax.jit(sampling._scale, static_argnums=1)
  for size in (*sizes, *rng.integers(1, 2**31, 20).tolist()):
    # Random bits, the ends, and the bits where the result steps.
    values = np.append(rng.integers(0, size, 20), size - 1)
    steps = -(-(values << 32) // size)
    ends = 0, 2**32 - 1
    bits = [rng.integers(0, 2**32, 40), steps, np.maximum(steps - 1, 0), ends]
    bits = np.concatenate(bits).astype(np.uint32)
    expected = bits.astype(np.uint64) * np.uint64(size) >> np.uint64(32)
    np.testing.assert_array_equal(scale(bits, size), expected)


def test_bits_are_the_stated_hash():
  for start in (0, 15, 2**32 - 4):  # positions wrap at 2^32
    positions = _positions(9, start)
    found = _bits(KEY, positions)
    assert found.dtype == jnp.uint32
    expected = [oracle.random_bits(KEY, x) for x in positions.tolist()]
    assert found.tolist() == expected


def test_rows_are_uniform_and_independent():
  num, dim = 1 << 13, 64
  rows = np.asarray(_rows(KEY, jnp.arange(num), jnp.arange(dim), 0.25))
  assert rows.shape == (num, dim) and rows.dtype == np.float32
  assert -0.25 <= rows.min() < -0.2499 and 0.2499 < rows.max() < 0.25
  rows = rows.astype(np.float64)
  cells = np.floor((rows + 0.25) * 2 * 256).astype(int)
  found = np.bincount(cells.reshape(-1), minlength=256)
  assert scipy.stats.chisquare(found).pvalue > 1e-3
  columns = np.corrcoef(rows.T) - np.eye(dim)
  assert np.abs(columns).max() < 5 / np.sqrt(num)
  some = np.corrcoef(rows[:512]) - np.eye(512)
  assert np.abs(some).max() < 6 / np.sqrt(dim) and abs(some.mean()) < 1e-3
  for near, far in ((rows[1:], rows[:-1]), (rows[:, 1:], rows[:, :-1])):
    assert abs((near * far).mean()) / (0.25**2 / 3) < 4 / np.sqrt(near.size)


def test_a_number_of_a_row_depends_on_key_row_and_column_alone():
  whole = np.asarray(_rows(KEY, jnp.arange(600), jnp.arange(40), 0.5))
  # Any device's part of it, in any shape; the scale is a factor.
  ids = np.random.default_rng(0).permutation(600).astype(np.int32)
  columns = np.array([39, 3, 4, 5, 17], np.int32)
  found = _rows(KEY, ids.reshape(2, 3, 100), columns, 2.0)
  np.testing.assert_array_equal(
    np.asarray(found).reshape(600, 5), 4 * whole[ids][:, columns]
  )
  keys = [KEY[::-1]]
  for bit in range(0, 64, 7):  # every bit of the key matters
    keys.append(KEY.copy())
    keys[-1][bit // 32] ^= np.uint32(1 << (bit % 32))
  for key in keys:
    other = np.asarray(_rows(key, jnp.arange(600), jnp.arange(40), 0.5))
    assert (other == whole).mean() < 1e-3


def test_no_row_is_another_one_moved_by_columns():
  # A single hash of 32 bits for the row makes about fifty pairs of them.
  num = 1 << 19
  rows = _rows(KEY, jnp.arange(num), jnp.arange(4), 1.0)
  unit = np.asarray((rows + 1) * 2**23).astype(np.uint64)
  pairs = [unit[:, i] << np.uint64(24) | unit[:, i + 1] for i in range(3)]
  assert len(np.unique(np.concatenate(pairs))) == 3 * num
