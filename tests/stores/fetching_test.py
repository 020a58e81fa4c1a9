"""Tables in stores learn what they would on the device, to the bit."""

import dataclasses
import os
import re

import jax
import numpy as np
import pytest

from jaxemb import errors
from jaxemb.data import windows
from jaxemb.graphs import inference
from jaxemb.runtime import hlo
from tests import dispatches, marking

VOCAB, MAX_STEPS, WORDS = 600, 40, 16
COUNTS = np.maximum(20_000 // np.arange(1, VOCAB + 1), 1)

CASES = {
  'kernel': ({'optimizer.name': 'sgd'}, True, 'memory'),
  'kernel-adagrad': ({'optimizer.name': 'adagrad'}, True, 'disk'),
  'sgd': ({'optimizer.name': 'sgd'}, False, 'memory'),
  'adam-cbow': (
    {'optimizer.name': 'adam', 'model.name': 'cbow'}, False, 'disk',
  ),
  'int8': ({'table.dtype': 'int8', 'table.rounding': 'nearest'}, False, 'disk'),
  'bfloat16': (
    {'table.dtype': 'bfloat16', 'table.rounding': 'nearest'}, True, 'memory',
  ),
}  # fmt: skip


def _trainer(settings, fused, earlier=None, **more):
  settings = {
    'model.dim': 12, 'model.window': 2, 'data.sample': 0.0, 'train.threads': 1,
    'train.batch_words': WORDS, 'optimizer.learning_rate': 0.1,
    'strategy.name': 'sync', 'model.shared_negatives': 4, **settings, **more,
  }  # fmt: skip
  steps = windows.Steps(WORDS, 1, 2, 8)
  if not fused:
    settings.pop('train.threads')
  args = COUNTS, settings, (1, 1), steps
  return dispatches.trainer(
    *args, fused=fused, chunk=8, shared_nodes=4, earlier=earlier
  )


def _batches(trainer, num):
  """Of words by their frequency, each with its schedule."""
  rng, made = np.random.default_rng(0), []
  chances = COUNTS / COUNTS.sum()
  for i in range(num):
    words = rng.choice(VOCAB, MAX_STEPS * WORDS - 7 * i, p=chances)
    args = [np.split(words, range(9, len(words), 9))], VOCAB
    batch = dispatches.pack(*args, trainer.trainable.steps, MAX_STEPS, i)
    key = dispatches.KEY + np.uint32(i)
    made.append((batch, dispatches.schedule(0.1, 0.05, key)))
  return [
    (jax.device_put(x, trainer.strategy.batch_sharding), y) for x, y in made
  ]


def _run(trainer, batches, state=None):
  """All dispatches; the state and their losses."""
  strategy, losses = trainer.strategy, []
  if state is None:
    state = strategy.init(jax.random.key(3))
  for i, (batch, schedule) in enumerate(batches):
    if strategy.store and i + 1 < len(batches) and i != 1:
      strategy.store.expect(*batches[i + 1])
    args = strategy.constants(), batch, schedule
    state, metrics = strategy.step(state, *args)
    losses.append(float(metrics.steps.loss))
  return state, losses


def _rows(trainer, state):
  export = trainer.strategy.export_rows
  found = {k: export(state, k, 5, VOCAB - 3) for k in trainer.trainable.tables}
  if store := trainer.strategy.store:
    for name, block in found.items():
      some = store.rows_on_demand(state, name)
      some = jax.tree.map(lambda x: x[5 : VOCAB - 3], some)
      _assert_equal(tuple(some), tuple(block))
  return {k: (x.encoded.data, x.opt_state) for k, x in found.items()}


def _assert_equal(x, y):
  jax.tree.map(np.testing.assert_array_equal, x, y)


def _as_elsewhere(store):
  """Has rows copied as to a device with memory of its own."""
  make = store.rows._make_store

  def make_store(*args):
    made = make(*args)
    made.swap = None
    return made

  store.rows._make_store = make_store


# Each policy is met in memory and on disk, with a kernel and with XLA's steps.
@pytest.mark.parametrize(
  ('policy', 'case'),
  [
    ('lru', 'kernel'),
    *marking.slow_after(
      0,
      [
        ('lru', 'adam-cbow'),
        ('lfu', 'bfloat16'),
        ('lfu', 'int8'),
        ('elsewhere', 'sgd'),
      ],
    ),
  ],
)
def test_a_store_changes_no_bit(policy, case, caplog):
  caplog.set_level('INFO', 'jaxemb')
  _check_bits(policy, *CASES[case], begins_with_rows=case == 'kernel')
  if case == 'kernel':
    assert re.search(r'rows of \d+ of 40 steps fit at once', caplog.text)


@pytest.mark.slow
@pytest.mark.ray
def test_a_store_on_actors_changes_no_bit():
  settings, fused, _ = CASES['int8']
  _check_bits('lfu', settings, fused, 'remote')


@pytest.mark.slow
@pytest.mark.parametrize('case', ['kernel', 'sgd'])
def test_rows_in_a_store_have_learned_before(case):
  _check_bits('lfu', *CASES[case], earlier=COUNTS // 20)


def _with_other_rows(trainer):
  """A new state, with rows of another model for every second word."""
  ids = np.arange(0, VOCAB, 2)
  rows = np.random.default_rng(1).normal(size=(len(ids), 12))
  state = trainer.strategy.init(jax.random.key(3))
  return trainer.strategy.import_rows(state, 'output', ids, rows, {})


def _check_bits(
  policy, settings, fused, store, begins_with_rows=False, earlier=None
):
  whole = _trainer(settings, fused, earlier)
  more = {
    'table.store': store, 'table.device_bytes': '25%',
    'table.evict': 'lfu' if policy == 'elsewhere' else policy,
  }  # fmt: skip
  stored = _trainer(settings, fused, earlier, **more)
  if policy == 'elsewhere':
    _as_elsewhere(stored.strategy.store)
  assert stored.strategy.store
  for table in stored.trainable.tables.values():
    assert table.num_rows <= 0.3 * VOCAB
  batches = _batches(whole, 4)
  (state, losses), (other, found) = (
    _run(x, batches, _with_other_rows(x) if begins_with_rows else None)
    for x in (whole, stored)
  )
  # Rows move beside the steps, as these copy no table, where memory is shared.
  is_beside = store != 'remote' and policy != 'elsewhere'
  assert stored.strategy.store.rows.is_beside == is_beside
  assert found == losses
  _assert_equal(_rows(stored, other), _rows(whole, state))
  for name, table in stored.trainable.tables.items():
    # The last is never used: dropped updates may write it as it was.
    last = [np.asarray(x)[-1] for x in table.arrays(other.tables[name])]
    assert not any(x.any() for x in last)
    assert table.num_rows - 1 not in stored.strategy.store._held(name)[0]
  counts = stored.strategy.store.take_counts()
  assert 0 < counts['rows_stored'] < counts['rows_fetched']
  assert counts['rows_fetched'] < counts['rows_needed']
  assert set(counts) == set(stored.strategy.store.counted)
  stored.strategy.store.close()


@pytest.mark.slow
def test_rows_wait_for_steps_that_copy_a_table(monkeypatch):
  settings, fused, _ = CASES['sgd']
  more = {'table.store': 'memory', 'table.device_bytes': '30%'}
  made = _trainer(settings, fused, **more)
  copied = {(made.trainable.tables['input'].num_rows, 12), (7, 12)}
  monkeypatch.setattr(hlo, 'copied_arrays', lambda text: copied)
  state = made.strategy.init(jax.random.key(3))
  args = made.strategy.constants(), *_batches(made, 1)[0]
  made.strategy.step.lower(state, *args)
  assert not made.strategy.store.rows.is_beside
  made.strategy.store.close()


@pytest.mark.slow
def test_what_was_exported_on_the_way_and_saved_goes_on(tmp_path):
  settings, fused, _ = CASES['kernel-adagrad']
  whole = _trainer(settings, fused)
  more = {'table.store': 'memory', 'table.device_bytes': '30%'}
  stored = _trainer(settings, fused, **more)
  batches = _batches(whole, 4)
  state, _ = _run(whole, batches[:2])
  half = _rows(whole, state)
  state, _ = _run(whole, batches[2:], state)
  end = _rows(whole, state)
  strategy, store = stored.strategy, stored.strategy.store
  state, _ = _run(stored, batches[:1])
  store.expect(*batches[2])  # its rows are under way when others are read
  args = strategy.constants(), *batches[1]
  state, _ = strategy.step(state, *args)
  _assert_equal(_rows(stored, state), half)
  rest, sums = store.save(state, tmp_path)
  state, _ = _run(stored, batches[2:], state)
  _assert_equal(_rows(stored, state), end)
  # In a new process.
  again = _trainer(settings, fused, **more)
  loaded = again.strategy.store.load(
    jax.random.key(3), tmp_path, rest, {'store': sums}
  )
  _assert_equal(_rows(again, loaded), half)
  loaded, _ = _run(again, batches[2:], loaded)
  _assert_equal(_rows(again, loaded), end)
  path = tmp_path / 'input'
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 4
  path.write_bytes(data)
  args = jax.random.key(3), tmp_path, rest, {'store': sums}
  with pytest.raises(ValueError, match='input is damaged'):
    again.strategy.store.load(*args)
  path.write_bytes(data[:-1])
  with pytest.raises(ValueError, match='is cut off'):
    again.strategy.store.load(*args)


def test_room_for_fewer_rows_than_a_step_needs_is_refused():
  more = {'table.store': 'memory', 'table.device_bytes': '2%'}
  with pytest.raises(errors.UserError, match='--config.table.device_bytes='):
    _trainer({}, True, **more)
  more['table.device_bytes'] = '25%'
  trainer = _trainer({}, True, **more)
  store = trainer.strategy.store
  store._begin([dataclasses.replace(x, capacity=8) for x in store.caches])
  # More different words than were expected.
  with pytest.raises(errors.UserError, match='a step looks up'):
    trainer.strategy.step(
      jax.jit(store.trainable.init)(jax.random.key(0)),
      trainer.strategy.constants(),
      *_batches(trainer, 1)[0],
    )


def test_tables_that_fit_are_on_the_device(caplog):
  with caplog.at_level('INFO', 'jaxemb'):
    trainer = _trainer({}, True, **{'table.device_bytes': '1GB'})
  assert not trainer.strategy.store and 'fit on the device' in caplog.text


def test_a_full_disk_is_one_line(monkeypatch, tmp_path):
  def full(*unused):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'posix_fallocate', full)
  more = {'table.store': 'disk', 'table.device_bytes': '30%'}
  with pytest.raises(errors.UserError, match='needs 0.0 GB for a table'):
    _trainer({}, True, **more).strategy.init(jax.random.key(0))
  # What layers of a GraphSAGE make, which would end the process while written.
  with pytest.raises(errors.UserError, match='GB for vectors of nodes'):
    inference._empty((9, 2), tmp_path)
