"""Tables on meshes: lookups, and updates against loops over occurrences.

Every device looks up ids of its own; where columns are split, all devices of a
table axis have the same ones.
"""

import dataclasses

import jax
import numpy as np
import pytest

from jaxemb.tables import row_sharded
from jaxemb.tables import spec as spec_lib
from tests import marking
from tests.tables import laying

VOCAB, DIM = laying.VOCAB, laying.DIM
EACH = 9  # lookups of a device
RATE = 0.05
KEY = np.zeros(2, np.uint32)
CLASSES = row_sharded.NUM_CLASSES
# The quick ones are on the mesh that splits both lookups and tables.
CASES = [
  *((layout, (2, 2)) for layout in laying.LAYOUTS),
  ('replicated', (1, 1)),
  ('row', (1, 4)),
]
every_case = pytest.mark.parametrize(
  ('layout', 'shape'),
  [case if case[1] == (2, 2) else marking.slow(*case) for case in CASES],
)


def _coded():
  """[VOCAB, DIM] float32, row i holds i + column / 1000."""
  codes = np.arange(VOCAB)[:, None] + np.arange(DIM)[None, :] / 1000
  return codes.astype(np.float32)


def _ids(num_lookers, kind, seed=0):
  """[num_lookers * EACH] int32."""
  rng = np.random.default_rng(seed)
  shape = num_lookers, EACH
  padding = np.array([VOCAB, VOCAB + 1, 2**31 - 1])
  if kind == 'mixed':
    # Duplicates within and between devices, both ends, all kinds of padding.
    ids = rng.integers(0, 40, shape)
    ids[:, 1:4] = rng.integers(0, VOCAB, (num_lookers, 3))
    ids[:, 4] = ids[:, 5] = 255 + seed
    ids[0, :2], ids[-1, -3:] = [0, VOCAB - 1], padding
  elif kind == 'one_holder':
    # All rows that a device wants are with the same one, where rows are split.
    ids = CLASSES * rng.integers(0, 3, shape) + 4 * rng.integers(0, 8, shape)
  elif kind == 'one_row':
    ids = np.full(shape, 517)
    ids[0] = VOCAB
  else:
    ids = rng.choice(padding, shape)
  return ids.reshape(-1).astype(np.int32)


def _state_by_id(opt_state, optimizer):
  """The oracle's optimizer state of all rows, by name."""
  if 'sgd' in optimizer:
    return {}
  if optimizer == 'adagrad':
    return {'sum_squares': [opt_state.get(i, 0.0) for i in range(VOCAB)]}
  zeros = np.zeros(DIM)
  if optimizer == 'adagrad_full':
    return {'sum_squares': [opt_state.get(i, zeros) for i in range(VOCAB)]}
  square = zeros if 'full' in optimizer else 0.0
  each = [opt_state.get(i, (zeros, square, 0)) for i in range(VOCAB)]
  names = 'mean', 'mean_square', 'num_updates'
  return dict(zip(names, zip(*each, strict=True), strict=True))


@pytest.mark.parametrize(
  ('layout', 'shape', 'optimizer'),
  [
    *marking.slow_after(
      9, ((x, (2, 2), 'sgd_limited') for x in laying.LAYOUTS), step=2
    ),
    marking.slow('column', (1, 4), 'sgd_limited'),
    ('replicated@cpu3', (1, 1), 'adagrad_full'),
    marking.slow('row_by_two', (2, 2), 'adam'),
    ('column', (2, 2), 'adagrad_full'),
    *marking.slow_after(
      0,
      [
        ('replicated', (1, 1), 'sgd'),
        ('replicated_merging', (1, 1), 'adagrad'),
        ('row', (2, 2), 'adam_full'),
        ('column_merging', (2, 2), 'adam'),
        # Kernels know neither optimizer nor layout.
        ('replicated_merging@tpu', (1, 1), 'adam_full'),
        ('row@gpu', (1, 1), 'adagrad'),
        ('replicated@cpu3', (1, 1), 'adagrad'),
        ('replicated@cpu3', (1, 1), 'adam_full'),
      ],
    ),
  ],
)
def test_steps_equal_the_loops(layout, shape, optimizer):
  laid = laying.lay(layout, shape, optimizer)
  rng = np.random.default_rng(1)
  rows = start = _coded()
  state, opt_state, seen = laid.start(rows), {}, set()
  expected = start.astype(np.float64)
  kinds = ['mixed', 'one_holder', 'one_row', 'only_padding', 'mixed']
  # Of kernels for more than a tile.
  num_lookers = 8 if '@' in layout else laid.num_lookers
  for i, kind in enumerate(kinds):
    ids = _ids(num_lookers, kind, i)
    # Of all sizes, as in training.
    scale = 10.0 ** rng.uniform(-3, 1, (len(ids), 1))
    grads = (rng.normal(size=(len(ids), DIM)) * scale).astype(np.float32)
    grads[ids >= VOCAB] = 1e15
    rate, before = np.float32(RATE / (1 + i)), state
    found, state = laid.step(before, ids, laid.widened(grads), rate, KEY)
    assert found.dtype == np.float32 and len(found) == len(ids)
    assert np.isfinite(found).all() and not found[:, DIM:].any()
    is_row = ids < VOCAB
    np.testing.assert_array_equal(found[is_row, :DIM], rows[ids[is_row]])
    laying.learn(optimizer, expected, opt_state, ids, grads, float(rate))
    block = laid.table.export_rows(state)
    rows = block.rows
    np.testing.assert_allclose(rows, expected, 1e-5, 1e-5)
    seen |= set(ids.tolist())
    if kind == 'only_padding':
      jax.tree.map(np.testing.assert_array_equal, state, before)
    for x, y in zip(*map(jax.tree.leaves, (state, before)), strict=True):
      assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
  untouched = np.setdiff1d(np.arange(VOCAB), list(seen))
  assert len(untouched) > 400
  np.testing.assert_array_equal(rows[untouched], start[untouched])
  truth = _state_by_id(opt_state, optimizer)
  assert block.opt_state.keys() == truth.keys()
  # A kernel for CPUs subtracts betas from 1 in float32.
  error = 5e-5 if '@cpu' in layout else 1e-5
  for name, array in block.opt_state.items():
    np.testing.assert_allclose(array, truth[name], error, 1e-6)
  if hasattr(state.opt_state, 'scratch'):
    assert not np.asarray(state.opt_state.scratch).any()
  is_split = layout in ('row', 'row_by_two', 'column', 'column_merging')
  for x in (state.vectors, *state.opt_state):
    pieces = x.addressable_shards
    # Copies of a shard stay equal, to the last bit.
    first = {str(piece.index): piece.data for piece in pieces[::-1]}
    for piece in pieces:
      np.testing.assert_array_equal(piece.data, first[str(piece.index)])
    if x is state.vectors:
      assert len(first) == (shape[1] if is_split else 1)


@pytest.mark.parametrize('shape', [(1, 4), (2, 2)])
def test_rows_lie_with_their_holders(shape):
  holders = row_sharded.holders(VOCAB, shape[1])
  state = laying.lay('row', shape).start(1 + _coded())
  for piece in state.vectors.addressable_shards:
    holder = (piece.index[1].start or 0) // (CLASSES // shape[1])
    found = np.asarray(piece.data)[..., 0]
    found = np.sort(found[found >= 1]) - 1  # places of no row have less
    np.testing.assert_array_equal(found, np.flatnonzero(holders == holder))
  for first in range(0, VOCAB, shape[1]):
    # Ids that follow one another lie on different devices, as many on each.
    assert sorted(holders[first : first + shape[1]]) == list(range(shape[1]))
  assert not holders[_ids(4, 'one_holder')].any()


@every_case
def test_init_depends_on_the_key_alone(layout, shape):
  laid = laying.lay(layout, shape)
  first = laid.init(jax.random.key(5))
  assert not any(np.asarray(x).any() for x in first.opt_state)
  if 'column' in layout:
    assert not np.asarray(first.vectors)[:, DIM:].any()
  vectors = laid.table.export_rows(first).rows
  assert vectors.shape == (VOCAB, DIM) and vectors.dtype == np.float32
  # Uniform: the mean of 3600 values within 4 standard errors, the spread too.
  assert np.abs(vectors).max() <= 0.25
  assert abs(vectors.mean()) < 4 * 0.25 / np.sqrt(3 * vectors.size)
  assert vectors.std() == pytest.approx(0.25 / np.sqrt(3), rel=0.05)
  alone = laying.lay('replicated', (1, 1)).init(jax.random.key(5))
  np.testing.assert_array_equal(vectors, alone.vectors)
  other = laid.table.export_rows(laid.init(jax.random.key(6))).rows
  assert (vectors != other).mean() > 0.9
  spec = dataclasses.replace(laying.SPEC, init_scale=0.0)
  zeros = laying.lay(layout, shape, spec=spec).init(jax.random.key(5)).vectors
  assert zeros.dtype == np.float32 and not np.asarray(zeros).any()


@every_case
def test_rows_are_exported_and_imported_by_ids(layout, shape, monkeypatch):
  if shape == (2, 2):  # piece by piece
    monkeypatch.setattr(spec_lib, 'NUMBERS_AT_ONCE', 50 * DIM)
  laid, rows = laying.lay(layout, shape, 'adam'), _coded()
  state = laid.start(rows)
  found = laid.table.export_rows(state)
  assert found.rows.dtype == np.float32 and found.rows.flags.c_contiguous
  np.testing.assert_array_equal(found.rows, rows)
  part = laid.table.export_rows(state, 250, 521)
  np.testing.assert_array_equal(part.rows, rows[250:521])
  opt_state = {k: x.copy() for k, x in found.opt_state.items()}
  assert opt_state.keys() == {'mean', 'mean_square', 'num_updates'}
  rng = np.random.default_rng(0)
  ids = np.append(rng.permutation(VOCAB)[:40], 2**31 - 1)
  new = -rng.normal(size=(41, DIM))
  rows[ids[:40]] = opt_state['mean'][ids[:40]] = new[:40]
  opt_state['num_updates'][ids[:40]] = 7
  shardings = [x.sharding for x in jax.tree.leaves(state)]
  given = {'mean': new, 'num_updates': np.full(41, 7)}
  state = laid.table.import_rows(state, ids, new, given)
  found = laid.table.export_rows(state)
  np.testing.assert_array_equal(found.rows, rows)
  jax.tree.map(np.testing.assert_array_equal, found.opt_state, opt_state)
  for x, sharding in zip(jax.tree.leaves(state), shardings, strict=True):
    assert x.sharding.is_equivalent_to(sharding, x.ndim)


@pytest.mark.parametrize('vocab', [257, marking.slow(1)])
def test_rows_of_any_number(vocab):
  # More devices than rows, or one row more than there are classes.
  spec = spec_lib.TableSpec('words', vocab, 3, 0.5)
  laid = laying.lay('row', (1, 4), 'sgd', spec)
  state = laid.init(jax.random.key(1))
  expected = laid.table.export_rows(state).rows.copy()
  assert expected.shape == (vocab, 3)
  assert len(np.unique(expected)) == 3 * vocab
  ids = np.array([0, vocab - 1, vocab, vocab // 2], np.int32)
  ones = np.ones((4, 3), np.float32)
  _, after = laid.step(state, ids, ones, np.float32(0.25), KEY)
  np.subtract.at(expected, ids[ids < vocab], 0.25)
  found = laid.table.export_rows(after).rows
  np.testing.assert_allclose(found, expected, 1e-6, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('layout', 'shape', 'updates_all'),
  [
    ('row_by_two', (2, 2), False),
    ('replicated@cpu3', (1, 1), False),
    ('replicated_merging', (1, 1), False),
    ('column', (2, 2), True),
  ],
)
def test_rows_decay_once_in_a_step(layout, shape, updates_all):
  laid = laying.lay(
    layout, shape, 'adam_full', decay=0.3, updates_all=updates_all
  )
  expected = _coded().astype(np.float64)
  state, opt_state = laid.start(_coded()), {}
  rng = np.random.default_rng(3)
  for i, kind in enumerate(['mixed', 'one_row', 'only_padding', 'mixed']):
    ids = _ids(laid.num_lookers, kind, i)
    grads = rng.normal(size=(len(ids), DIM)).astype(np.float32)
    _, state = laid.step(state, ids, laid.widened(grads), np.float32(0.1), KEY)
    some = np.unique(ids[ids < VOCAB])
    if updates_all and len(some):
      some = np.arange(VOCAB)
    # The decay is one more occurrence of each row.
    given = np.append(ids, some)
    added = np.concatenate([grads, 0.3 * expected[some]])
    laying.learn('adam_full', expected, opt_state, given, added, 0.1)
    rows = laid.table.export_rows(state).rows
    np.testing.assert_allclose(rows, expected, 2e-5, 2e-5)
