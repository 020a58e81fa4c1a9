"""Row optimizers against loops over occurrences and rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.tables import dedup
from jaxemb.tables import row_optimizers as rowopt
from tests.tables import optimizers

VOCAB, DIM, RATE = 12, 5, 0.05

OPTIMIZERS = {
  'sgd': optimizers.with_oracle('sgd', max_duplicates=0),
  'sgd_limited': optimizers.SGD_LIMITED,
  'adagrad': optimizers.ADAGRAD,
  'adam': optimizers.ADAM,
  'adam_short': optimizers.with_oracle(
    'adam', beta1=0.5, beta2=0.8, epsilon=1e-3
  ),
}

every_optimizer = pytest.mark.parametrize('name', OPTIMIZERS)
# Occurrences as they come, or added up before.
both_ways = pytest.mark.parametrize('merges', [False, True])

# Ids of a step; rows from 10 on never occur, ids from VOCAB on are padding.
IDS = {
  'distinct': [3, 1, 4, 0, 5, 9, 2, 6],
  'duplicates': [3, 3, 3, 3, 3, 1, 1, 4],
  'one_row': [7] * 8,
  'padding': [VOCAB, 3, VOCAB, 3, VOCAB + 50, 2**31 - 1, 1, 3],
  'only_padding': [VOCAB] * 8,
}


def _row_grads(ids, grads):
  """Of occurrences that come one by one."""
  return rowopt.RowGrads(ids, grads, rowopt.mean_squares(grads))


@functools.cache
def _step(name, merges=False):
  optimizer = OPTIMIZERS[name][0]

  @jax.jit
  def step(table, slots, ids, row_grads, learning_rate):
    row_grads = _row_grads(ids, row_grads)
    if merges:
      row_grads = dedup.by_sorting(row_grads, VOCAB)
    deltas, slots = optimizer.update(slots, row_grads, learning_rate)
    return rowopt.add_rows(table, row_grads.ids, deltas, merges), slots

  return step


def _start(name):
  table = np.random.default_rng(0).normal(size=(VOCAB, DIM))
  table = table.astype(np.float32)
  return jnp.asarray(table), OPTIMIZERS[name][0].init(VOCAB, DIM)


def _grads(rng, num):
  # Of all sizes, as in training.
  scale = 10.0 ** rng.uniform(-3, 1, (num, 1))
  return (rng.normal(size=(num, DIM)) * scale).astype(np.float32)


@both_ways
@every_optimizer
@pytest.mark.parametrize('ids', IDS)
def test_steps_equal_the_loops(name, ids, merges):
  rng = np.random.default_rng(1)
  table, slots = _start(name)
  start = np.asarray(table)
  expected, expected_slots = start.astype(np.float64), {}
  for i in range(6):
    # Step by step other rows come along, so that counts differ.
    these = np.array(IDS[ids][i % 3 :] + IDS['distinct'][: i % 3], np.int32)
    row_grads = _grads(rng, len(these))
    row_grads[these >= VOCAB] = 1e15
    rate = np.float32(RATE / (1 + i))
    step = _step(name, merges)
    table, slots = step(table, slots, these, row_grads, rate)
    OPTIMIZERS[name][1](expected, expected_slots, these, row_grads, float(rate))
    np.testing.assert_allclose(table, expected, 1e-5, 1e-5)
    if hasattr(slots, 'scratch'):
      assert not np.asarray(slots.scratch).any()
  np.testing.assert_array_equal(table[10:], start[10:])


@both_ways
@every_optimizer
def test_rows_that_do_not_occur_keep_their_bits(name, merges):
  rng = np.random.default_rng(2)
  table, slots = _start(name)
  step = _step(name, merges)
  # Slots of all rows are in use.
  all_ids = np.arange(VOCAB, dtype=np.int32)
  table, slots = step(table, slots, all_ids, _grads(rng, VOCAB), RATE)
  ids = np.array([3, 8, 3, VOCAB], np.int32)
  after, slots_after = step(table, slots, ids, _grads(rng, 4), RATE)
  untouched = np.setdiff1d(np.arange(VOCAB), ids)
  before_leaves = jax.tree.leaves((table, slots))
  after_leaves = jax.tree.leaves((after, slots_after))
  for before, new in zip(before_leaves, after_leaves, strict=True):
    assert before.shape == new.shape and before.dtype == new.dtype
    if len(before):
      np.testing.assert_array_equal(new[untouched], before[untouched])
  assert (np.asarray(after)[[3, 8]] != np.asarray(table)[[3, 8]]).all()


@every_optimizer
def test_ids_of_any_shape(name):
  rng = np.random.default_rng(4)
  table, slots = _start(name)
  ids = np.array(IDS['duplicates'] + IDS['padding'], np.int32)
  grads = _grads(rng, len(ids))
  flat = _step(name)(table, slots, ids, grads, RATE)
  shaped = _step(name)(
    table, slots, ids.reshape(2, 4, 2), grads.reshape(2, 4, 2, DIM), RATE
  )
  jax.tree.map(np.testing.assert_array_equal, flat, shaped)


@pytest.mark.parametrize('name', ['adagrad', 'adam'])
def test_squares_are_taken_as_given(name):
  # Those of whole rows, where a device has a share of the columns.
  optimizer = OPTIMIZERS[name][0]
  ids = np.array(IDS['duplicates'], np.int32)
  grads = _grads(np.random.default_rng(5), len(ids))
  whole, whole_slots = jax.jit(optimizer.update)(
    optimizer.init(VOCAB, DIM), _row_grads(ids, grads), RATE
  )
  share = rowopt.RowGrads(ids, grads[:, 1:3], rowopt.mean_squares(grads))
  part, part_slots = jax.jit(optimizer.update)(
    optimizer.init(VOCAB, 2), share, RATE
  )
  np.testing.assert_allclose(part, whole[:, 1:3], 1e-6)
  for found, expected in zip(part_slots, whole_slots, strict=True):
    if expected.ndim == 2:
      expected = expected[:, 1:3]
    np.testing.assert_allclose(found, expected, 1e-6)


def test_limit_of_duplicates():
  # One occurrence more than the limit moves the row no further.
  optimizer = rowopt.sgd(4)
  update = jax.jit(optimizer.update)
  moved = []
  for num in (1, 3, 4, 5, 100):
    ids = np.full(100, VOCAB, np.int32)
    ids[:num] = 2
    ones = np.ones((100, DIM), np.float32)
    deltas, _ = update(optimizer.init(VOCAB, DIM), _row_grads(ids, ones), 1.0)
    moved.append(-np.asarray(deltas)[:num].sum(0)[0])
  np.testing.assert_allclose(moved, [1, 3, 4, 4, 4], 1e-6)


def test_adam_forgets_only_in_steps_where_a_row_occurs():
  # Lazy: a row's state after two updates does not tell how far apart they were.
  optimizer = rowopt.adam(0.9, 0.99, 1e-6)
  update = jax.jit(optimizer.update)
  ones = np.ones((2, DIM), np.float32)
  outcomes = []
  for gap in (0, 5):
    slots = optimizer.init(VOCAB, DIM)
    for row in [1] + [2] * gap + [1]:
      ids = np.array([row, VOCAB], np.int32)
      _, slots = update(slots, _row_grads(ids, ones), RATE)
    outcomes.append(jax.tree.map(lambda x: np.asarray(x)[1], slots))
  jax.tree.map(np.testing.assert_array_equal, *outcomes)


def test_adam_counts_updates_not_occurrences():
  optimizer = rowopt.adam(0.9, 0.999, 1e-6)
  slots = optimizer.init(VOCAB, DIM)
  update = jax.jit(optimizer.update)
  ids = np.array([1, 1, 1, 2, VOCAB], np.int32)
  row_grads = _row_grads(ids, np.ones((5, DIM), np.float32))
  for _ in range(50):
    _, slots = update(slots, row_grads, RATE)
  expected = np.zeros(VOCAB)
  expected[[1, 2]] = 50
  np.testing.assert_allclose(slots.num_updates, expected, 1e-5)
