"""Negatives: the alias table, the bits, what comes of both, and the loss."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxemb.ops import sampling
from tests import oracle
from tests.ops import randomness

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
  'zipf': _zipf(70_000),
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
  bits, alias = table.lines.reshape(-1, 2).T
  probability = np.ascontiguousarray(bits).view(np.float32)
  assert 0 <= alias.min() and alias.max() < len(weights)
  assert 0 <= probability.min() and probability.max() <= 1
  # Keep probabilities are float32: an error of 2^-25 in each entry.
  implied = probability.astype(np.float64)
  np.add.at(implied, alias, 1 - probability.astype(np.float64))
  implied /= len(alias)
  assert not implied[len(weights) :].any()
  implied = implied[: len(weights)]
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
  randomness.check_uniform((rows + 0.25) * 2)
  columns = np.corrcoef(rows.T) - np.eye(dim)
  assert np.abs(columns).max() < 5 / np.sqrt(num)
  some = np.corrcoef(rows[:512]) - np.eye(512)
  assert np.abs(some).max() < 6 / np.sqrt(dim) and abs(some.mean()) < 1e-3


@pytest.mark.slow
def test_no_row_is_another_one_moved_by_columns():
  # A single hash of 32 bits for the row makes a dozen pairs of them.
  num = 1 << 18
  rows = _rows(KEY, jnp.arange(num), jnp.arange(4), 1.0)
  unit = np.asarray((rows + 1) * 2**23).astype(np.uint64)
  pairs = [unit[:, i] << np.uint64(24) | unit[:, i + 1] for i in range(3)]
  assert len(np.unique(np.concatenate(pairs))) == 3 * num


def test_example_of_the_docstring():
  assert doctest.testmod(sampling) == (0, 2)


@pytest.mark.parametrize('label', [0, 1])
def test_value_and_slope_of_the_loss(label):
  some = [-3e38, -1000, -88.8, -1e-8, 0, 1e-8, 88.8, 1000, 3e38]
  scores = np.append(np.linspace(-30, 30, 241), some).astype(np.float32)

  def total(scores):
    value = sampling.logistic_loss(scores, jnp.full(scores.shape, float(label)))
    return value.sum(), value

  slope, value = jax.grad(total, has_aux=True)(scores)
  assert value.dtype == slope.dtype == jnp.float32
  expected = [oracle.logistic_loss(float(s), label) for s in scores]
  np.testing.assert_allclose(value, expected, 1e-5, 2e-6)
  expected = [oracle.sigmoid(float(s)) - label for s in scores]
  np.testing.assert_allclose(slope, expected, 1e-5, 1e-7)


def test_numbers_of_entries_are_the_same_from_whole_lines():
  rng = np.random.default_rng(0)
  lines = rng.integers(-(2**31), 2**31, (70, 128), dtype=np.int32)
  entries = rng.integers(0, 70 * 64, (9, 5), dtype=np.int32)
  for function in (sampling._from_lines, sampling._from_pairs):
    found = np.stack(jax.jit(function)(lines, entries), -1)
    np.testing.assert_array_equal(found, lines.reshape(-1, 2)[entries])
