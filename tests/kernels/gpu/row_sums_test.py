"""The kernels that sum rows on a GPU, interpreted, against loops."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.kernels.gpu import row_sums
from jaxemb.tables import row_optimizers
from tests import marking


def _lookups(num, vocab, longest=0):
  """Ids of Zipf's law, some of padding; so many are the same."""
  rng = np.random.default_rng(num)
  ids = np.minimum(rng.zipf(1.3, num), vocab + 3).astype(np.int32) - 1
  ids[num - longest :] = vocab // 2
  return rng.permutation(ids)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('num', 'dim', 'longest', 'is_given'),
  # Runs in a tile, in two, and in more than are read at once.
  [(70, 300, 20, True), marking.slow(600, 40, 500, False)],
)
def test_sums_are_those_of_a_loop(num, dim, longest, is_given):
  vocab, rng = 50, np.random.default_rng(0)
  ids = _lookups(num, vocab, longest)
  grads = rng.standard_normal((num, dim)).astype(np.float32)
  squares, counts = None, np.ones(num, np.float32)
  if is_given:
    squares = rng.random(num).astype(np.float32)
    counts = rng.integers(1, 5, num).astype(np.float32)
  given = counts if is_given else None
  row_grads = row_optimizers.RowGrads(ids, grads, squares, given)
  found = jax.jit(row_sums.sums, static_argnums=(1, 2))(row_grads, vocab, True)
  places = np.asarray(found.ids)
  assert len(set(places)) == len(places) == num
  assert set(places[places < vocab]) == set(ids[ids < vocab])
  for at in np.flatnonzero(places < vocab):
    of = ids == places[at]
    expected = grads[of].astype(np.float64).sum(0)
    np.testing.assert_allclose(found.grads[at], expected, 1e-5, 1e-5)
    assert found.counts[at] == counts[of].sum()
    if is_given:
      np.testing.assert_allclose(found.squares[at], squares[of].sum(), 1e-5)


@pytest.mark.slow
def test_l2_is_of_the_row_once():
  optimizer = row_optimizers.adagrad(1e-6)
  rng = np.random.default_rng(2)
  rows, grads = rng.standard_normal((2, 9, 8)).astype(np.float32)
  row_grads = row_optimizers.RowGrads(np.arange(9), grads, None)
  kernel = row_sums.RowKernel(optimizer, interpret=True)
  opt_state = optimizer.init(9, 8)
  vectors, _ = kernel(jnp.asarray(rows), opt_state, row_grads, 0.3, 0.1)
  expected = rows - 0.1 * (grads + 0.3 * rows) / (
    np.sqrt(np.mean(grads**2, 1))[:, None] + 1e-6
  )
  np.testing.assert_allclose(vectors, expected, 1e-5, 1e-5)


@pytest.mark.parametrize(
  ('capability', 'expected'),
  [('7.5', False), ('8.0', True), ('12.0', True), ('gfx942', False)],
)
def test_gpus_that_triton_does_not_know_are_left_to_xla(capability, expected):
  device = types.SimpleNamespace(compute_capability=capability)
  assert row_sums.compiles_for(device) == expected
