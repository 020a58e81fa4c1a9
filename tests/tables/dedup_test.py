"""Deduplication against a loop, with sums that float32 holds exactly."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.kernels.gpu import row_sums
from jaxemb.tables import dedup, row_access
from jaxemb.tables import row_optimizers as rowopt
from tests import compiling, marking

VOCAB = 5000

# Sizes around one tile of 32, a tile of tiles, and a tile of those.
SIZES = [1, 31, 32, 33, 1024, 1025, 33_000]


def _ids(kind, size):
  rng = np.random.default_rng(size)
  if kind == 'one':
    return np.full(size, 7, np.int32)
  if kind == 'distinct':
    return rng.permutation(max(VOCAB, size))[:size].astype(np.int32)
  if kind == 'padding':
    choice = [VOCAB, VOCAB + 1, 2**31 - 1, 3, VOCAB - 1, 0]
    return rng.choice(np.array(choice, np.int32), size)
  # Runs of all lengths, as words have.
  ranks = np.exp(rng.uniform(0, np.log(VOCAB), size)).astype(np.int32)
  return rng.permutation(ranks)


def _expected(ids, values):
  sums, counts = np.zeros((VOCAB, values.shape[1])), np.zeros(VOCAB)
  np.add.at(sums, ids[ids < VOCAB], values[ids < VOCAB])
  np.add.at(counts, ids[ids < VOCAB], 1)
  return sums, counts


def _sorted(ids, grads, squares=None):
  return dedup.by_sorting(rowopt.RowGrads(ids, grads, squares), VOCAB)


def _unsorted(ids, grads, squares=None):
  scratch = jnp.full(VOCAB, 10**6)  # of any values
  row_grads = rowopt.RowGrads(ids, grads, squares)
  return dedup.by_scratch(row_grads, VOCAB, scratch)[0]


@pytest.mark.parametrize(
  ('kind', 'size'),
  [
    *(('zipf', x) for x in SIZES),
    *((x, 1025) for x in ('one', 'distinct', 'padding')),
  ],
)
@pytest.mark.parametrize('deduplicate', [_sorted, _unsorted])
def test_each_id_comes_once_with_its_sums(deduplicate, kind, size):
  ids = _ids(kind, size)
  grads = np.random.default_rng(1).integers(-8, 9, (size, 3))
  grads = grads.astype(np.float32)
  found = jax.device_get(jax.jit(deduplicate)(ids, grads, grads[:, 0]))
  assert len(np.unique(found.ids)) == size and found.ids.dtype == np.int32
  used = found.ids < VOCAB
  here = found.ids[used]
  assert set(here.tolist()) == set(ids[ids < VOCAB].tolist())
  assert deduplicate is _unsorted or (np.diff(here) > 0).all()
  sums, counts = _expected(ids, grads)
  np.testing.assert_array_equal(found.counts[used], counts[here])
  np.testing.assert_array_equal(found.grads[used], sums[here])
  np.testing.assert_array_equal(found.squares[used], sums[here, 0])


@pytest.mark.parametrize('device', ['cpu', 'gpu', marking.slow('gpu_kernel')])
def test_rows_are_added(device, monkeypatch):
  kernels = row_access.XLA
  if device == 'gpu_kernel':
    sums = functools.partial(row_sums.sums, interpret=True)
    kernels = row_access.Kernels(sums=sums)
  if device != 'cpu':
    monkeypatch.setattr(
      jax.lax, 'platform_dependent', lambda *args, cuda, **_: cuda(*args)
    )
  rng = np.random.default_rng(0)
  ids = rng.integers(0, 12, (40, 3), np.int32)
  array, rows = (
    rng.integers(-8, 9, (*x, 5)).astype(np.float32) for x in ((10,), ids.shape)
  )
  expected = np.concatenate([array, np.zeros((2, 5), np.float32)])
  np.add.at(expected, ids, rows)  # ids of padding have a place of their own
  add = jax.jit(functools.partial(dedup.add, kernels=kernels))
  np.testing.assert_array_equal(add(array, ids, rows), expected[:10])


@pytest.mark.parametrize(
  ('num', 'bound', 'num_operands'),
  [
    (1, 2**31 - 1, 1),
    (2, 2**31 - 1, 1),
    (3, 2**31 - 1, 2),
    (4096, 2**20 - 1, 1),
    (4097, 2**20 - 1, 2),
    (4096, 2**20, 2),
  ],
)
def test_ids_are_sorted_in_one_number_with_their_positions(
  num, bound, num_operands
):
  rng = np.random.default_rng(0)
  few = rng.integers(0, bound, 5, endpoint=True)
  ids = rng.choice([*few, 0, bound], num).astype(np.int32)
  program = jax.jit(dedup.in_order, static_argnums=1)
  found, order = program(ids, bound)
  expected = np.argsort(ids, kind='stable')
  np.testing.assert_array_equal(order, expected)
  np.testing.assert_array_equal(found, ids[expected])
  (sort,) = (
    x for x in jax.make_jaxpr(program, static_argnums=1)(ids, bound)
    .eqns[0].params['jaxpr'].eqns if x.primitive.name == 'sort'
  )  # fmt: skip
  assert len(sort.invars) == num_operands
  # Else XLA sorts positions beside them.
  assert sort.params['is_stable'] == (num_operands > 1)


def test_nothing_is_scattered():
  lowered = jax.jit(_sorted).lower(jnp.zeros(2000, int), jnp.zeros((2000, 8)))
  text = compiling.text(lowered)
  assert ' sort(' in text and ' dot(' in text
  assert ' scatter(' not in text


def test_ones_are_not_summed():
  # XLA folds constant sums of a step's lookups: seconds, and a warning.
  jaxpr = jax.make_jaxpr(_sorted)(jnp.zeros(2000, int), jnp.zeros((2000, 8)))
  assert 'cumsum' not in str(jaxpr)
