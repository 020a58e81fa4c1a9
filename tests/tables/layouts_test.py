"""Tables on meshes: coded values, and updates against loops over occurrences.

Row i of a coded table holds i + column / 1000. Every device looks up ids of its
own; where columns are split, all devices of a table axis have the same ones.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.runtime import mesh
from jaxemb.tables import blocks, replicated, row_sharded
from jaxemb.tables import row_optimizers as rowopt
from jaxemb.tables import spec as spec_lib
from tests import oracle
from tests.tables import optimizers

# Three groups of rows in the row layout, the last one half empty; columns that
# four devices cannot share alike.
VOCAB, DIM = 600, 6
EACH = 9  # look-ups of a device
RATE = 0.05
CLASSES = row_sharded.NUM_CLASSES

LAYOUTS = {
  'replicated': replicated.Replicated,
  'replicated_merging': functools.partial(
    replicated.Replicated, deduplicates=True
  ),
  'column': functools.partial(replicated.Replicated, splits_columns=True),
  'column_merging': functools.partial(
    replicated.Replicated, splits_columns=True, deduplicates=True
  ),
  'row': row_sharded.RowSharded,
  # So little is sent at once that there are many rounds.
  'row_by_two': functools.partial(row_sharded.RowSharded, capacity=2),
}
CASES = [
  (layout, shape)
  for layout in LAYOUTS
  for shape in [(1, 1), (1, 4), (2, 2)]
  if shape != (1, 4) or 'merging' not in layout
]
every_case = pytest.mark.parametrize(
  ('layout', 'shape'),
  CASES,
  ids=[f'{layout}-{data}x{table}' for layout, (data, table) in CASES],
)
OPTIMIZERS = {
  'sgd': optimizers.SGD_LIMITED,
  'adagrad': optimizers.ADAGRAD,
  'adam': optimizers.ADAM,
}
every_case_and_optimizer = pytest.mark.parametrize(
  ('layout', 'shape', 'optimizer'),
  [
    (*case, optimizer)
    for case in CASES
    for optimizer in OPTIMIZERS
    if case[1] != (1, 4) or optimizer == 'sgd'
  ]
  # Devices that cannot share the numbers of rows alike.
  + [('column', (1, 5), 'adagrad')],
)


class Laid(NamedTuple):
  """A table on a mesh, with whole arrays in and out."""

  table: spec_lib.Table
  num_lookers: int  # devices, or groups of them, with ids of their own
  sharding: Any  # of the state
  init: Any
  lookup: Any
  update: Any


@functools.cache
def _lay(layout, shape, optimizer='sgd', scale=0.25, dim=DIM):
  devices = mesh.make(mesh.Shape(*shape))
  spec = spec_lib.TableSpec('words', VOCAB, dim, scale)
  axes = spec_lib.Axes(mesh.DATA, mesh.TABLE, *shape)
  table = LAYOUTS[layout](spec, OPTIMIZERS[optimizer][0], axes)
  names = [mesh.DATA]
  names += [mesh.TABLE] * (not layout.startswith('column'))
  num_lookers = int(np.prod([devices.shape[name] for name in names]))
  everywhere = jax.sharding.PartitionSpec()
  ids = jax.sharding.PartitionSpec(tuple(names))
  rows = jax.sharding.PartitionSpec(
    tuple(names), mesh.TABLE if layout.startswith('column') else None
  )
  functions = [
    (table.init, everywhere, table.partition),
    (
      lambda *args: table.lookup(*args)[:2],
      (table.partition, ids),
      (rows, table.partition),
    ),
    (
      lambda state, ids, grads, rate: table.update(
        state, ids, grads, None, spec_lib.Step(rate)
      ),
      (table.partition, ids, rows, everywhere),
      table.partition,
    ),
  ]
  if shape != (1, 1):  # one device needs no mesh
    functions = [
      (
        jax.shard_map(
          function,
          mesh=devices,
          in_specs=in_specs,
          out_specs=out_specs,
          check_vma=False,
        ),
      )
      for function, in_specs, out_specs in functions
    ]
  sharding = jax.tree.map(
    lambda x: jax.sharding.NamedSharding(devices, x), table.partition
  )
  jitted = [jax.jit(function[0]) for function in functions]
  return Laid(table, num_lookers, sharding, *jitted)


def _by_id(layout, array):
  return oracle.by_id(layout.split('_')[0], array, VOCAB, DIM)


def _start(layout, shape, values, optimizer='sgd'):
  laid = _lay(layout, shape, optimizer)
  state = jax.device_put(laid.init(jax.random.key(0)), laid.sharding)
  stored = oracle.in_layout(layout.split('_')[0], values, shape[1])
  assert stored.shape == state.vectors.shape
  return state._replace(vectors=jax.device_put(stored, laid.sharding.vectors))


def _coded():
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


KINDS = ['mixed', 'one_holder', 'one_row', 'only_padding']


def _grads(rng, layout, shape, num, dim=DIM):
  """Gradients of whole rows, and as the layout takes them."""
  scale = 10.0 ** rng.uniform(-3, 1, (num, 1))
  grads = (rng.normal(size=(num, dim)) * scale).astype(np.float32)
  if layout.startswith('column'):
    return grads, np.pad(grads, ((0, 0), (0, -dim % shape[1])))
  return grads, grads


@every_case
def test_lookup_is_exact(layout, shape):
  laid = _lay(layout, shape)
  state = _start(layout, shape, _coded())
  for kind in KINDS:
    ids = _ids(laid.num_lookers, kind)
    rows, after = laid.lookup(state, ids)
    rows = np.asarray(rows)
    assert rows.dtype == np.float32 and len(rows) == len(ids)
    assert not rows[:, DIM:].any()  # columns that only fill up
    for row, word in zip(rows[:, :DIM], ids, strict=True):
      if word < VOCAB:
        np.testing.assert_array_equal(row, _coded()[word])
      else:
        assert np.isfinite(row).all()
    jax.tree.map(np.testing.assert_array_equal, after, state)


@pytest.mark.parametrize(
  ('layout', 'shape'),
  [(layout, (1, 1)) for layout in ('replicated', 'column', 'row')]
  + [('row', (2, 2))],
)
def test_ids_of_any_shape(layout, shape):
  laid = _lay(layout, shape)
  state = _start(layout, shape, _coded())
  ids = _ids(laid.num_lookers, 'mixed')
  shaped = ids.reshape(-1, 3, 3)
  if shape == (1, 1):
    flat, _ = laid.lookup(state, ids)
    rows, _ = laid.lookup(state, shaped)
    assert rows.shape == (*shaped.shape, DIM)
    np.testing.assert_array_equal(np.asarray(rows).reshape(-1, DIM), flat)
  grads = np.ones((len(ids), DIM), np.float32)
  rate = np.float32(RATE)
  expected = laid.update(state, ids, grads, rate)
  after = laid.update(state, shaped, grads.reshape(*shaped.shape, DIM), rate)
  jax.tree.map(np.testing.assert_array_equal, after, expected)


def _slots_by_id(slots, optimizer):
  """The oracle's slots of all rows, in the order of the optimizer's."""
  if optimizer == 'sgd':
    return []
  if optimizer == 'adagrad':
    return [np.array([slots.get(i, 0.0) for i in range(VOCAB)])]
  nothing = np.zeros(DIM), 0.0, 0
  each = [slots.get(i, nothing) for i in range(VOCAB)]
  return [np.array(x) for x in zip(*each, strict=True)]


@every_case_and_optimizer
def test_steps_equal_the_loops(layout, shape, optimizer):
  laid = _lay(layout, shape, optimizer)
  rng = np.random.default_rng(1)
  start = rng.normal(size=(VOCAB, DIM)).astype(np.float32)
  state = _start(layout, shape, start, optimizer)
  expected, slots = start.astype(np.float64), {}
  seen = set()
  for i, kind in enumerate([*KINDS, 'mixed']):
    ids = _ids(laid.num_lookers, kind, i)
    whole, grads = _grads(rng, layout, shape, len(ids))
    rate = np.float32(RATE / (1 + i))
    state = laid.update(state, ids, grads, rate)
    OPTIMIZERS[optimizer][1](expected, slots, ids, whole, float(rate))
    found = _by_id(layout, state.vectors)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)
    seen |= set(ids.tolist())
  untouched = np.setdiff1d(np.arange(VOCAB), list(seen))
  assert len(untouched) > 400
  np.testing.assert_array_equal(found[untouched], start[untouched])
  arrays = [_by_id(layout, x) for x in state.slots]
  if hasattr(state.slots, 'scratch'):
    assert not arrays.pop().any()
  for array, truth in zip(arrays, _slots_by_id(slots, optimizer), strict=True):
    np.testing.assert_allclose(array, truth, 1e-5, 1e-6)
  if layout.startswith('row'):
    stored = np.asarray(state.vectors)[:, oracle.REVERSED]
    spare = stored.reshape(-1, DIM)[VOCAB:]
    assert len(spare) and np.isnan(spare).all()


@every_case_and_optimizer
def test_padding_changes_nothing(layout, shape, optimizer):
  laid = _lay(layout, shape, optimizer)
  state = _start(layout, shape, _coded(), optimizer)
  ids = _ids(laid.num_lookers, 'only_padding')
  _, grads = _grads(np.random.default_rng(0), layout, shape, len(ids))
  after = laid.update(state, ids, 1e6 * grads, np.float32(0.5))
  jax.tree.map(np.testing.assert_array_equal, after, state)


def test_the_ids_are_what_they_say():
  # Otherwise the tests above might not meet what they are about.
  ids = _ids(4, 'mixed').reshape(4, EACH)
  assert any(len(set(mine)) < len(mine) for mine in ids.tolist())
  assert len(set(ids[0]) & set(ids[1]) & set(range(VOCAB))) > 0
  _, counts = np.unique(ids[ids < VOCAB], return_counts=True)
  assert counts.max() > 2.5  # sgd's limit
  holders = row_sharded.holders(VOCAB, 4)
  assert set(holders[_ids(4, 'one_holder')]) == {0}
  assert len(set(_ids(4, 'one_holder').reshape(4, EACH)[0])) > 2


@every_case
def test_the_state_lies_on_the_mesh_as_its_partition_says(layout, shape):
  laid = _lay(layout, shape, 'adam' if shape == (2, 2) else 'sgd')
  state = jax.device_put(laid.init(jax.random.key(0)), laid.sharding)
  kind, num_table = layout.split('_')[0], shape[1]
  groups, columns = -(-VOCAB // CLASSES), -(-DIM // num_table)
  rows, scalars = {
    'replicated': ((VOCAB, DIM), (VOCAB,)),
    'column': ((VOCAB, columns), (groups * CLASSES // num_table,)),
    'row': (
      (groups, CLASSES // num_table, DIM),
      (groups, CLASSES // num_table),
    ),
  }[kind]
  for array in (state.vectors, *state.slots):
    expected = rows if array.ndim == state.vectors.ndim else scalars
    found = [x.data.shape for x in array.addressable_shards]
    assert found == [expected] * (shape[0] * num_table)
  _, grads = _grads(
    np.random.default_rng(0), layout, shape, EACH * laid.num_lookers
  )
  after = laid.update(state, _ids(laid.num_lookers, 'mixed'), grads, RATE)
  for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
    assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
    # Copies of a shard stay equal, to the last bit.
    pieces = {}
    for piece in x.addressable_shards:
      same = pieces.setdefault(str(piece.index), piece.data)
      np.testing.assert_array_equal(piece.data, same)


@pytest.mark.parametrize('shape', [(1, 4), (2, 2)])
def test_rows_lie_with_their_holders(shape):
  state = _start('row', shape, _coded())
  holders = row_sharded.holders(VOCAB, shape[1])
  found = {}
  for piece in state.vectors.addressable_shards:
    holder = (piece.index[1].start or 0) // (CLASSES // shape[1])
    rows = np.asarray(piece.data).reshape(-1, DIM)
    rows = rows[~np.isnan(rows[:, 0])]
    for row in rows:
      word = int(row[0])
      assert holders[word] == holder
      found[word] = found.get(word, 0) + 1
  # Once in every copy.
  assert found == dict.fromkeys(range(VOCAB), shape[0])
  # Ids that follow one another lie on different devices, as many on each.
  for first in range(0, VOCAB, shape[1]):
    assert sorted(holders[first : first + shape[1]]) == list(range(shape[1]))


@every_case
def test_init_depends_on_the_key_alone(layout, shape):
  laid = _lay(layout, shape)
  first = laid.init(jax.random.key(5))
  if layout.startswith('column'):
    assert not np.asarray(first.vectors)[:, DIM:].any()
  vectors = _by_id(layout, first.vectors)
  assert vectors.shape == (VOCAB, DIM) and vectors.dtype == np.float32
  # Uniform: the mean of 3600 values within 4 standard errors, the spread too.
  assert np.abs(vectors).max() <= 0.25
  assert abs(vectors.mean()) < 4 * 0.25 / np.sqrt(3 * vectors.size)
  assert vectors.std() == pytest.approx(0.25 / np.sqrt(3), rel=0.05)
  alone = _lay('replicated', (1, 1)).init(jax.random.key(5))
  np.testing.assert_array_equal(vectors, alone.vectors)
  other = _by_id(layout, laid.init(jax.random.key(6)).vectors)
  assert (vectors != other).mean() > 0.9
  assert not any(np.asarray(x).any() for x in first.slots)
  zeros = _lay(layout, shape, scale=0.0).init(jax.random.key(5)).vectors
  assert zeros.dtype == jnp.float32 and not np.asarray(zeros).any()


@pytest.mark.parametrize('block_numbers', [1 << 24, 50 * DIM])
@every_case
def test_rows_are_exported_and_imported_by_ids(
  layout, shape, block_numbers, monkeypatch
):
  monkeypatch.setattr(blocks, '_BLOCK_NUMBERS', block_numbers)
  laid = _lay(layout, shape, 'adam')
  state, rows = _start(layout, shape, _coded(), 'adam'), _coded()
  found = laid.table.export_rows(state)
  assert found.rows.dtype == np.float32 and found.rows.flags.c_contiguous
  np.testing.assert_array_equal(found.rows, rows)
  found = laid.table.export_rows(state, 250, 521)
  np.testing.assert_array_equal(found.rows, rows[250:521])
  slots = {k: x.copy() for k, x in laid.table.export_rows(state).slots.items()}
  assert slots.keys() == {'mean', 'mean_square', 'num_updates'}
  rng = np.random.default_rng(0)
  ids = np.append(rng.permutation(VOCAB)[:40], 2**31 - 1)
  rows[ids[:40]] = new = -rng.normal(size=(40, DIM))
  slots['mean'][ids[:40]], slots['num_updates'][ids[:40]] = new, 7
  shardings = [x.sharding for x in jax.tree.leaves(state)]
  new = np.append(new, np.ones((1, DIM)), 0)
  given = {'mean': new, 'num_updates': np.full(41, 7)}
  state = laid.table.import_rows(state, ids, new, given)
  found = laid.table.export_rows(state)
  np.testing.assert_array_equal(found.rows, rows)
  jax.tree.map(np.testing.assert_array_equal, found.slots, slots)
  for x, sharding in zip(jax.tree.leaves(state), shardings, strict=True):
    assert x.sharding.is_equivalent_to(sharding, x.ndim)


@pytest.mark.parametrize('vocab', [1, 255, 257])
def test_rows_of_any_number(vocab):
  # More devices than rows, or one row more than there are classes.
  axes = spec_lib.Axes(mesh.DATA, mesh.TABLE, 1, 4)
  spec = spec_lib.TableSpec('words', vocab, 3, 0.5)
  table = row_sharded.RowSharded(spec, rowopt.sgd(0), axes)
  on_devices = functools.partial(
    jax.shard_map, mesh=mesh.make(mesh.Shape(1, 4)), check_vma=False
  )
  everywhere = jax.sharding.PartitionSpec()
  over = jax.sharding.PartitionSpec(mesh.TABLE)
  state = jax.jit(
    on_devices(table.init, in_specs=everywhere, out_specs=table.partition)
  )(jax.random.key(1))
  vectors = table.export_rows(state).rows
  assert vectors.shape == (vocab, 3) and len(np.unique(vectors)) == 3 * vocab
  ids = np.array([0, vocab - 1, vocab, vocab // 2], np.int32)

  def step(state, ids):
    rows, state, _ = table.lookup(state, ids)
    return table.update(
      state, ids, jnp.ones_like(rows), rows, spec_lib.Step(0.25)
    )

  after = jax.jit(
    on_devices(
      step, in_specs=(table.partition, over), out_specs=table.partition
    )
  )(state, ids)
  expected = vectors.copy()
  for word in ids[ids < vocab]:
    expected[word] -= 0.25
  np.testing.assert_allclose(
    table.export_rows(after).rows, expected, 1e-6, 1e-6
  )
