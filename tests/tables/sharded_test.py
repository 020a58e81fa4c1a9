"""Tables with coded values: row i holds i + column / 1000."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.ops import rowopt
from jaxemb.tables import sharded
from jaxemb.tables import spec as spec_lib

VOCAB, DIM = 50, 6
LAYOUTS = {
  'replicated': sharded.replicated,
  'replicated_merging': functools.partial(
    sharded.replicated, merges_duplicates=True
  ),
}
every_layout = pytest.mark.parametrize('layout', LAYOUTS)

# Duplicates, both ends, and padding of three kinds.
IDS = np.array([7, 0, 49, 7, 50, 12, 51, 2**31 - 1, 7], np.int32)


def _table(layout, optimizer=None, scale=0.25):
  spec = spec_lib.TableSpec('words', VOCAB, DIM, scale)
  return LAYOUTS[layout](spec, optimizer or rowopt.sgd(0))


def _coded(table):
  state = table.init(jax.random.key(0))
  codes = np.arange(VOCAB)[:, None] + np.arange(DIM)[None, :] / 1000
  vectors = jax.device_put(codes.astype(np.float32), state.vectors.sharding)
  return state._replace(vectors=vectors)


@every_layout
def test_lookup_is_exact(layout):
  table = _table(layout)
  state = _coded(table)
  rows, after = jax.jit(table.lookup)(state, IDS)
  assert rows.shape == (len(IDS), DIM) and rows.dtype == jnp.float32
  codes = np.asarray(state.vectors)
  for i, word in enumerate(IDS):
    if word < VOCAB:
      np.testing.assert_array_equal(rows[i], codes[word])
    else:
      assert np.isfinite(rows[i]).all()
  jax.tree.map(np.testing.assert_array_equal, after, state)


@every_layout
def test_update_moves_what_the_ids_point_at(layout):
  table = _table(layout)
  state = _coded(table)
  grads = (1 + np.arange(len(IDS))[:, None]) * np.ones((1, DIM))
  after = jax.jit(table.update)(
    state, IDS, grads.astype(np.float32), jnp.float32(0.5)
  )
  expected = np.asarray(state.vectors).copy()
  for word, grad in zip(IDS, grads, strict=True):
    if word < VOCAB:
      expected[word] -= (0.5 * grad).astype(np.float32)
  np.testing.assert_allclose(after.vectors, expected, 1e-6)
  untouched = np.setdiff1d(np.arange(VOCAB), IDS)
  np.testing.assert_array_equal(
    np.asarray(after.vectors)[untouched], np.asarray(state.vectors)[untouched]
  )
  assert after.vectors.dtype == state.vectors.dtype


@every_layout
def test_padding_changes_nothing(layout):
  for optimizer in (rowopt.sgd(8), rowopt.adagrad(1e-6)):
    table = _table(layout, optimizer)
    state = _coded(table)
    ids = np.array([VOCAB, VOCAB + 1, 2**31 - 1], np.int32)
    grads = np.full((3, DIM), 1e6, np.float32)
    after = jax.jit(table.update)(state, ids, grads, jnp.float32(0.5))
    jax.tree.map(np.testing.assert_array_equal, after, state)


@every_layout
def test_update_keeps_the_slots_of_the_optimizer(layout):
  table = _table(layout, rowopt.adagrad(1e-6))
  state = _coded(table)
  ids, ones = np.array([3], np.int32), np.ones((1, DIM), np.float32)
  for i in range(1, 4):
    before = np.asarray(state.vectors)
    state = jax.jit(table.update)(state, ids, ones, jnp.float32(1))
    # The accumulator grows by one a step: steps of 1 / sqrt(i).
    moved = before[3] - np.asarray(state.vectors)[3]
    np.testing.assert_allclose(moved, np.full(DIM, i**-0.5), 1e-4)
    expected = np.zeros(VOCAB)
    expected[3] = i
    np.testing.assert_allclose(state.slots.sum_squares, expected)


@every_layout
def test_init(layout):
  table = _table(layout)
  vectors = np.asarray(table.init(jax.random.key(5)).vectors)
  assert vectors.shape == (VOCAB, DIM) and vectors.dtype == np.float32
  assert np.abs(vectors).max() <= 0.25
  # Uniform: the mean of 300 values within 4 standard errors, the spread too.
  error = 0.25 / np.sqrt(3 * vectors.size)
  assert abs(vectors.mean()) < 4 * error
  assert vectors.std() == pytest.approx(0.25 / np.sqrt(3), rel=0.1)
  assert len(np.unique(vectors)) > 0.99 * vectors.size
  zeros = _table(layout, scale=0.0).init(jax.random.key(5)).vectors
  assert zeros.shape == (VOCAB, DIM) and zeros.dtype == jnp.float32
  assert not np.asarray(zeros).any()


@every_layout
def test_init_is_a_function_of_the_key(layout):
  table = _table(layout, rowopt.adam(0.9, 0.999, 1e-6))
  first = jax.jit(table.init)(jax.random.key(5))
  again = jax.jit(table.init)(jax.random.key(5))
  jax.tree.map(np.testing.assert_array_equal, first, again)
  other = table.init(jax.random.key(6))
  assert (np.asarray(first.vectors) != np.asarray(other.vectors)).mean() > 0.9


@every_layout
def test_gather_gives_the_vectors_on_the_host(layout):
  table = _table(layout)
  state = _coded(table)
  vectors = table.gather(state)
  assert isinstance(vectors, np.ndarray) and vectors.dtype == np.float32
  for i in range(VOCAB):
    for j in range(DIM):
      assert vectors[i, j] == np.float32(i + j / 1000)
