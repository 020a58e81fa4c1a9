"""Sums over equal ids against a loop, with sums that float32 holds exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.tables import dedup
from tests import compiling

VOCAB = 5000

# Sizes around one tile of 32, a tile of tiles, and a tile of those.
SIZES = [1, 2, 31, 32, 33, 64, 1024, 1025, 33_000]


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
  sums, counts = {}, {}
  for i, value in zip(ids.tolist(), values, strict=True):
    if i < VOCAB:
      counts[i] = counts.get(i, 0) + 1
      sums[i] = sums.get(i, 0) + value.astype(np.float64)
  return sums, counts


def _sorted(ids, values):
  return dedup.by_sorting(ids, values, VOCAB)


def _unsorted(ids, values):
  scratch = jnp.full(VOCAB, 10**6)  # of any values
  return dedup.by_scratch(ids, values, VOCAB, scratch)[0]


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('kind', ['zipf', 'one', 'distinct', 'padding'])
@pytest.mark.parametrize('merge', [_sorted, _unsorted])
def test_each_id_comes_once_with_its_sums(merge, kind, size):
  ids = _ids(kind, size)
  rng = np.random.default_rng(1)
  rows = rng.integers(-8, 9, (size, 3)).astype(np.float32)
  column = rng.integers(-8, 9, (size, 1)).astype(np.float32)
  merged = jax.jit(merge)(ids, {'rows': rows, 'column': column})
  merged = jax.device_get(merged)
  found = merged.ids
  assert len(np.unique(found)) == size and found.dtype == np.int32
  sums, counts = _expected(ids, rows)
  columns, _ = _expected(ids, column)
  used = np.flatnonzero(found < VOCAB)
  if merge is _sorted:
    assert (np.diff(found[used]) > 0).all()
  assert set(found[used].tolist()) == set(sums)
  for place in used:
    i = found[place]
    assert merged.counts[place] == counts[i]
    np.testing.assert_array_equal(merged.sums['rows'][place], sums[i])
    np.testing.assert_array_equal(merged.sums['column'][place], columns[i])


def test_models_side_by_side_are_each_as_alone():
  # Very different numbers of rows that come again.
  ids = np.stack([_ids(kind, 1000) for kind in ('zipf', 'one', 'distinct')])
  rng = np.random.default_rng(2)
  values = rng.normal(size=(3, 1000, 4)).astype(np.float32)
  together = jax.vmap(_unsorted)
  found = jax.jit(together)(ids, values)
  for i in range(3):
    alone = jax.jit(_unsorted)(ids[i], values[i])
    for mine, its in zip(found, alone, strict=True):
      np.testing.assert_array_equal(mine[i], its)
  # No turn of a loop chooses between old and new sums of all models.
  text = jax.jit(together).lower(ids, values).as_text().splitlines()
  assert any('stablehlo.while' in x for x in text)
  assert not any('select' in x and '3x1000x4xf32' in x for x in text)


@pytest.mark.parametrize('size', [1, 32, 33, 2000])
def test_running_sums(size):
  ids = np.sort(_ids('zipf', size))
  rng = np.random.default_rng(2)
  values = {
    'rows': rng.integers(-8, 9, (size, 3)).astype(np.float32),
    'ones': np.ones((size, 1), np.float32),
  }
  found = jax.device_get(jax.jit(dedup.running_sums)(ids, values))
  for name, rows in values.items():
    sums = {}
    for i, row in enumerate(rows):
      sums[ids[i]] = sums.get(ids[i], 0) + row
      np.testing.assert_array_equal(found[name][i], sums[ids[i]])


def test_ids_of_any_shape():
  ids = _ids('zipf', 240)
  rows = np.random.default_rng(0).normal(size=(240, 5)).astype(np.float32)
  flat = dedup.by_sorting(ids, rows, VOCAB)
  shaped = dedup.by_sorting(
    ids.reshape(4, 6, 10), rows.reshape(4, 6, 10, 5), VOCAB
  )
  jax.tree.map(np.testing.assert_array_equal, flat, shaped)


def test_precision_and_order():
  # Small numbers behind a large one are summed before they meet it, or not at
  # all, but always alike; and products are not rounded to fewer bits.
  ids = _ids('zipf', 3000)
  rows = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)
  merge = jax.jit(dedup.by_sorting, static_argnums=2)
  merged = merge(ids, rows, VOCAB)
  jax.tree.map(np.testing.assert_array_equal, merged, merge(ids, rows, VOCAB))
  merged = jax.device_get(merged)
  sums, counts = _expected(ids, rows)
  for place in np.flatnonzero(merged.ids < VOCAB):
    i = int(merged.ids[place])
    error = np.abs(merged.sums[place] - sums[i]).max()
    assert error <= 1e-7 * counts[i] ** 0.5 * 8


def test_nothing_is_scattered():
  text = (
    jax.jit(dedup.by_sorting, static_argnums=2)
    .lower(jnp.zeros(2000, jnp.int32), jnp.zeros((2000, 8)), VOCAB)
    .compile(compiler_options=compiling.AS_USERS_DO)
    .as_text()
  )
  assert ' sort(' in text and ' dot(' in text
  assert ' scatter(' not in text
