"""The kernel that sums rows on a GPU, interpreted, against loops and XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.tables import replicated, row_optimizers, row_sums
from jaxemb.tables import spec as spec_lib


def _lookups(num, vocab, longest=0):
  """Ids of Zipf's law, some of padding; the last ones are the same."""
  rng = np.random.default_rng(num)
  ids = np.minimum(rng.zipf(1.3, num), vocab + 3).astype(np.int32) - 1
  ids[num - longest :] = vocab // 2
  return rng.permutation(ids)


@pytest.mark.parametrize(
  ('num', 'dim', 'longest'),
  [(1, 5, 0), (70, 40, 0), (600, 128, 500), (33, 300, 3)],
)
@pytest.mark.parametrize('is_given', [False, True])
def test_sums_are_those_of_a_loop(num, dim, longest, is_given):
  vocab, rng = 50, np.random.default_rng(0)
  ids = _lookups(num, vocab, longest)
  grads = rng.standard_normal((num, dim)).astype(np.float32)
  squares = counts = None
  if is_given:
    squares = rng.random(num).astype(np.float32)
    counts = rng.integers(1, 5, num).astype(np.float32)
  row_grads = row_optimizers.RowGrads(ids, grads, squares, counts)
  found = jax.jit(row_sums.sums, static_argnums=(1, 2))(row_grads, vocab, True)
  places = np.asarray(found.ids)
  assert len(set(places)) == len(places)
  assert set(places[places < vocab]) == set(ids[ids < vocab])
  for at in np.flatnonzero(places < vocab):
    of = ids == places[at]
    expected = grads[of].astype(np.float64).sum(0)
    np.testing.assert_allclose(found.grads[at], expected, 1e-5, 1e-5)
    total = counts[of].sum() if is_given else of.sum()
    assert found.counts[at] == total
    if is_given:
      np.testing.assert_allclose(found.squares[at], squares[of].sum(), 1e-5)


OPTIMIZERS = {
  'sgd': row_optimizers.sgd(4.0),
  'sgd without limit': row_optimizers.sgd(0.0),
  'adagrad': row_optimizers.adagrad(1e-6),
  'adam': row_optimizers.adam(0.9, 0.99, 1e-6),
  'adagrad_full': row_optimizers.adagrad_full(1e-6),
  'adam_full': row_optimizers.adam_full(0.9, 0.99, 1e-6),
}


@pytest.mark.parametrize('name', OPTIMIZERS)
@pytest.mark.parametrize('decay', [0.0, 0.3])
def test_updates_are_those_of_xla(name, decay):
  vocab, dim, num = 60, 20, 300
  ids = jnp.asarray(_lookups(num, vocab, 120))
  rng = np.random.default_rng(1)
  grads = jnp.asarray(rng.standard_normal((num, dim)), jnp.float32)
  spec = spec_lib.TableSpec('x', vocab, dim, 0.1, decay=decay)
  found = []
  for row_kernel in None, row_sums.RowKernel(OPTIMIZERS[name], True):
    table = replicated.Replicated(
      spec, OPTIMIZERS[name], deduplicates=True, row_kernel=row_kernel
    )

    @jax.jit
    def steps(state, table=table):
      for i in range(3):
        args = ids, grads * (1 + i), None, spec_lib.Step(0.1)
        state = table.update(state, *args)
      return state

    found.append(steps(table.init(jax.random.key(0))))
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6), *found
  )
