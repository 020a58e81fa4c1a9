"""Kernels that copy rows on a TPU, interpreted, against loops and XLA."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.kernels.tpu import row_copies, sorted_sums
from jaxemb.tables import row_access
from tests import marking


# Blocks of 2048 rows of up to 128 numbers, and of 1024 rows of 300.
@pytest.mark.parametrize(
  ('vocab', 'dim', 'num', 'dtype'),
  [
    (50, 8, 1, np.float32),
    (3000, 8, 2048, np.int32),
    marking.slow(1500, 128, 2049, np.float32),
    marking.slow(1300, 300, 2500, np.float32),
  ],
)
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
def test_running_sums_are_those_of_a_loop():
  num, dim = 3000, 100
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


@pytest.mark.parametrize(('dim', 'dtype'), [(128, 'bfloat16'), (4, 'float32')])
def test_other_rows_are_left_to_xla(dim, dtype):
  table = jnp.zeros((8, dim), dtype)
  assert not row_copies.can_copy(table)
  ids = jnp.array([3, 9])
  ones = jnp.ones((2, dim), dtype)
  copies = row_access.Copies(row_copies.can_copy, take=None, put=None)
  rows = row_access.put(table, ids, ones, copies)
  assert float(rows.sum()) == dim
