"""Kernels that copy rows on a TPU, interpreted, against loops and XLA."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.kernels.tpu import row_copies, sorted_sums
from jaxemb.tables import replicated, row_access, row_optimizers, row_sharded
from jaxemb.tables import spec as spec_lib
from tests import marking

# Blocks of 2048 rows of up to 128 numbers, and of 1024 rows of 300.
SIZES = [(50, 8, 1), (3000, 8, 2048), (1500, 128, 2049), (1300, 300, 2500)]


@pytest.mark.parametrize(('vocab', 'dim', 'num'), marking.slow_after(2, SIZES))
@pytest.mark.parametrize('dtype', marking.slow_after(1, [np.float32, np.int32]))
def test_rows_are_read_and_written_as_by_a_loop(vocab, dim, num, dtype):
  rng = np.random.default_rng(num)
  table, rows = (
    rng.integers(-99, 99, (n, dim)).astype(dtype) for n in (vocab, num)
  )
  ids = rng.permutation(2 * vocab + num)[:num].astype(np.int32)
  ids[0] = vocab - 1 if vocab - 1 not in ids else ids[0]
  take, put = (
    jax.jit(functools.partial(x, interpret=True))
    for x in (row_copies.take, row_copies.put)
  )
  found, changed = take(table, ids), np.asarray(put(table, ids, rows))
  assert found.shape == (num, dim)
  expected = table.copy()
  for i, id_ in enumerate(ids):
    if id_ < vocab:
      np.testing.assert_array_equal(found[i], table[id_])
      expected[id_] = rows[i]
  np.testing.assert_array_equal(changed, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('num', 'dim'), marking.slow_after(1, [(5, 64), (3000, 100), (1100, 300)])
)
def test_running_sums_are_those_of_a_loop(num, dim):
  rng = np.random.default_rng(num)
  # Of some ids there are more than a block.
  ids = np.sort(np.minimum(rng.zipf(1.2, num), 40)).astype(np.int32)
  rows = rng.normal(size=(num, dim)).astype(np.float32)
  order = rng.permutation(num).astype(np.int32)
  expected = rows[order].astype(np.float64)
  for i in range(1, num):
    if ids[i] == ids[i - 1]:
      expected[i] += expected[i - 1]
  for fits in (True, False):
    args = rows, order, ids, 2 * rows, True, fits
    found, others = sorted_sums.running_sums(*args)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert (others is None) != fits
    if fits:
      np.testing.assert_array_equal(others, 2 * rows[order])


OPTIMIZERS = {
  'sgd': lambda k: row_optimizers.sgd(4.0),
  'adagrad': lambda k: row_optimizers.adagrad(1e-6),
  'adam': lambda k: row_optimizers.adam(0.9, 0.99, 1e-6, k),
  'adagrad_full': lambda k: row_optimizers.adagrad_full(1e-6, k),
  'adam_full': lambda k: row_optimizers.adam_full(0.9, 0.99, 1e-6, k),
}


# Kernels know neither optimizer nor layout.
@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'layout'),
  zip(OPTIMIZERS, itertools.cycle(('replicated', 'row')), strict=False),
)
def test_steps_by_the_kernels_are_those_of_others(monkeypatch, name, layout):
  calls = []

  def interpreted(function, **more):
    def call(*args, **named):
      calls.append(function.__name__)
      return function(*args, interpret=True, **named, **more)

    return call

  copies = row_access.Copies(
    can_copy=row_copies.can_copy,
    take=interpreted(row_copies.take),
    put=interpreted(row_copies.put),
  )
  running_sums = interpreted(sorted_sums.running_sums, fits=True)
  # Three blocks, each of two tiles: those of a block are compiled one by one.
  monkeypatch.setattr(row_copies, '_IDS_AT_ONCE', 256)
  monkeypatch.setattr(row_copies, '_BLOCK_BYTES', 256 * 4 * row_copies.LANES)
  rng = np.random.default_rng(0)
  ids = np.minimum(rng.zipf(1.3, 700), 601).astype(np.int32)  # 600: padding
  grads = jnp.asarray(rng.standard_normal((700, 70)), jnp.float32)
  found = []
  spec = spec_lib.TableSpec('x', 600, 70, 0.1)
  for kernels in (row_access.XLA, row_access.Kernels(copies, running_sums)):
    optimizer = OPTIMIZERS[name](kernels.copies)
    if layout == 'row':
      table = row_sharded.RowSharded(spec, optimizer, kernels=kernels)
    else:
      table = replicated.Replicated(
        spec, optimizer, deduplicates=True, kernels=kernels
      )

    @jax.jit
    def steps(state, table=table):
      rows = table.lookup(state, jnp.asarray(ids)).rows
      # With the rows that were looked up, and without.
      for i, known in enumerate((rows, None)):
        args = jnp.asarray(ids), grads * (1 + i), known, spec_lib.Step(0.1)
        state = table.update(state, *args)
      return rows, state

    found.append(steps(table.init(jax.random.key(0))))
    assert bool(calls) == bool(kernels.copies)
  (old_rows, old), (new_rows, new) = found
  is_row = ids < 600
  np.testing.assert_array_equal(new_rows[is_row], old_rows[is_row])
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6), new, old
  )
  assert {'take', 'put', 'running_sums'} <= set(calls)


@pytest.mark.parametrize(('dim', 'dtype'), [(128, 'bfloat16'), (4, 'float32')])
def test_other_rows_are_left_to_xla(dim, dtype):
  table = jnp.zeros((8, dim), dtype)
  assert not row_copies.can_copy(table)
  ids = jnp.array([3, 9])
  ones = jnp.ones((2, dim), dtype)
  copies = row_access.Copies(row_copies.can_copy, take=None, put=None)
  rows = row_access.put(table, ids, ones, copies)
  assert float(rows.sum()) == dim
