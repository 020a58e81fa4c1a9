"""Replicas against plain loops."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.models import base as model_base
from jaxemb.ops import rounding
from jaxemb.runtime import mesh
from jaxemb.strategies import base, policies, replicas
from jaxemb.tables import codecs, replicated, row_optimizers
from jaxemb.tables import spec as spec_lib
from tests import dispatches, marking, oracle

VOCAB, DIM, WINDOW, CHUNK = 3000, 6, 3, 4
STEP_WORDS, MAX_STEPS = 64, 7
KEY = dispatches.KEY
EVERY, LOOKUPS, MEMORY, RATE = 3, 3.0, 20.0, 0.3


@functools.cache
def _make(n, **fixed):
  settings = {
    'model.dim': DIM, 'model.window': WINDOW, 'model.shared_negatives': 3,
    'optimizer.learning_rate': RATE, 'optimizer.max_duplicates': 2.0,
    'strategy.name': 'replicas', 'train.batch_words': STEP_WORDS,
    'data.sample': 0.0,
  }  # fmt: skip
  trainable, strategy = dispatches.trainer(
    1e6 / (5 + np.arange(VOCAB)),
    settings,
    (n, 1),
    chunk=CHUNK,
    loss_every_steps=1,
    sync_words=EVERY * STEP_WORDS,
    sync_lookups=LOOKUPS,
    memory_lookups=MEMORY,
    **fixed,
  )
  specs = trainable.model.specs().items()
  lookups = {k: x.lookups_per_center for k, x in specs}
  policy = policies.bounded(
    lookups, n, STEP_WORDS, EVERY, LOOKUPS, MEMORY, RATE
  )
  return trainable, policy, strategy


def _batch(num_steps, n):
  """A part for each replica; all but the first one are a step shorter."""
  words = [
    max(num_steps - (i > 0), 1) * STEP_WORDS - STEP_WORDS // 2 for i in range(n)
  ]
  steps = _make(n)[0].steps
  return dispatches.random_batch(words, VOCAB, steps, MAX_STEPS)


def _rows():
  """Rows as large as trained ones."""
  rng = np.random.default_rng(3)
  rows = rng.normal(size=(2, VOCAB, DIM)).astype(np.float32) / 2
  return {'input': rows[0], 'output': rows[1]}


def _loops(n, fixed, batch, schedule, num_syncs):
  """Returns float64 tables of replicas and in common, loss and examples."""
  trainable, policy, _ = _make(n, **fixed)
  own = [
    {k: v.astype(np.float64) for k, v in _rows().items()} for _ in range(n)
  ]
  synced = {k: v.astype(np.float64) for k, v in _rows().items()}
  first, last = map(float, schedule[:2])
  count = batch.num_steps.max()
  loss = examples = 0
  for i in range(count):
    rate = first + (last - first) * i / count
    for replica, tables in enumerate(own):
      pieces = dispatches.pieces(trainable, batch, i, [replica])
      for j, piece in enumerate(pieces):
        truth = dispatches.true_step(trainable, oracle.skipgram, tables, piece)
        if j == 0:  # what of a step is measured
          loss, examples = loss + truth.loss, examples + truth.examples
        for k in synced:
          oracle.sgd(tables[k], {}, truth.ids[k], truth.grads[k], rate, 2)
    if (i + 1) % EVERY:
      continue
    num_syncs += 1
    rate = first + (last - first) * (i + 1) / count
    num_due = sum(num_syncs % period == 0 for period in policy.periods)
    for k in synced:
      for row in range(min(num_due * 1024, VOCAB)):
        m = float(policy.lookups[k][row]) * rate / RATE
        q = math.exp(-m / MEMORY)
        gain = sum(q**j for j in range(n)) / n
        synced[k][row] += gain * sum(x[k][row] - synced[k][row] for x in own)
        for x in own:
          x[k][row] = synced[k][row]
  return own, synced, loss, examples, num_syncs


# As an accelerator takes its steps: rows are written once, and loops run on,
# here for a step beyond a synchronisation.
ON_GPU = {'deduplicates': True, 'steps_per_loop': 2}
FUSED = {'fused': True}


@pytest.mark.parametrize(
  ('n', 'start', 'fixed'),
  # The last one so that rows of all levels are due.
  marking.slow_after(1, [(2, 254, {}), (3, 62, FUSED), (2, 0, ON_GPU)]),
)
def test_dispatches_equal_the_loops(n, start, fixed):
  _, policy, strategy = _make(n, **fixed)
  assert policy.periods[0] == 1 < policy.periods[-1]
  state = dispatches.start(strategy, _rows())
  num_syncs = jax.device_put(np.int32(start), state.num_syncs.sharding)
  num_steps = math.ceil(10 / n)
  schedule, batch = dispatches.schedule(0.3, 0.1), _batch(num_steps, n)
  own, synced, loss, examples, num = _loops(n, fixed, batch, schedule, start)
  state, metrics = dispatches.run(
    strategy, state._replace(num_syncs=num_syncs), batch, schedule
  )
  for k, before in _rows().items():
    found = np.asarray(state.tables[k].vectors)
    assert found.shape == (n, VOCAB, DIM)
    for replica in range(n):
      np.testing.assert_allclose(found[replica], own[replica][k], 1e-5, 2e-5)
    np.testing.assert_allclose(state.synced[k].vectors, synced[k], 1e-5, 2e-5)
    expected = synced[k] + sum(x[k] - synced[k] for x in own)
    np.testing.assert_allclose(
      strategy.export_rows(state, k).rows, expected, 1e-5, 5e-5
    )
    if start:
      continue
    # Some rows are synchronised, some were learned alone, some not at all.
    apart = np.abs(found[0] - found[1]).max(1) > 1e-4
    moved = np.abs(found[0] - before).max(1) > 1e-4
    assert apart.any() and (moved & ~apart).any() and (~moved).any()
  assert (state.num_syncs, state.num_steps) == (num, num_steps % EVERY)
  np.testing.assert_allclose(metrics.steps.loss, loss, 1e-5)
  np.testing.assert_allclose(metrics.steps.examples, examples, 1e-5)
  assert metrics.steps.first_bad_step == -1 and metrics.num_steps == num_steps
  assert metrics.counters['kept_words'] == batch.kept_words.sum()
  assert metrics.counters['pairs'] == batch.pairs.sum()


def _synchronised(specs, own, synced):
  """Replicas' tables and rows in common, as stored, after a synchronisation.

  Args:
    specs: of the tables, by name.
    own: stored rows by table, with a leading axis of replicas.
    synced: the same after the last synchronisation, without it.
  """
  n = len(jax.tree.leaves(own)[0])
  tables = {
    k: replicated.Replicated(x, row_optimizers.sgd(0)) for k, x in specs.items()
  }
  vocab = next(iter(specs.values())).vocab
  lookups = {k: np.full(vocab, 3, np.float32) for k in specs}
  policy = policies.Bounded(
    np.ones(1, np.int32),
    n,
    1,
    chunk_rows=vocab,
    lookups=lookups,
    memory_lookups=1.0,
    first_learning_rate=0.1,
  )

  def synchronise(own, synced):
    own = jax.tree.map(lambda x: x[0], own)
    own, synced = (
      {k: spec_lib.TableState(x) for k, x in rows.items()}
      for rows in (own, synced)
    )
    state = replicas.ReplicaState(own, (), (), synced, *[jnp.int32(0)] * 2)
    rate = jnp.float32(0.01)
    state = replicas.synchronise(state, tables, policy, rate, KEY, True)
    found = [
      {k: x.vectors for k, x in found.items()}
      for found in (state.tables, state.synced)
    ]
    return jax.tree.map(lambda x: x[None], found)

  over = jax.sharding.PartitionSpec(mesh.DATA)
  run = jax.shard_map(
    synchronise,
    mesh=mesh.make(mesh.Shape(n, 1)),
    in_specs=(over, jax.sharding.PartitionSpec()),
    out_specs=over,
    check_vma=False,
  )
  found = jax.device_get(jax.jit(run)(own, synced))
  first = jax.tree.map(lambda x: x[0], found[0])
  for each in found:  # all are the same
    for i in range(n):
      copy = jax.tree.map(lambda x, i=i: x[i], each)
      jax.tree.map(np.testing.assert_array_equal, copy, first)
  return first


@pytest.mark.parametrize('dtype', ['int8', marking.slow('bfloat16')])
def test_rows_that_meet_are_rounded_alike_and_once(dtype):
  num, rng = 40, np.random.default_rng(0)
  spec = spec_lib.TableSpec('t', num, 8, 0.0, dtype, 'stochastic')
  before = rng.normal(size=(num, 8)).astype(np.float32)
  moved = before + 0.1 * rng.normal(size=(2, num, 8)).astype(np.float32)
  synced, *own = (
    jax.device_get(rounding.encode(x, dtype)) for x in (before, *moved)
  )
  stacked = jax.tree.map(lambda *x: np.stack(x), *own)
  stored = _synchronised({'t': spec}, {'t': stacked}, {'t': synced})['t']
  synced, *own = (
    spec_lib.from_stored(x, dtype).decode() for x in (synced, *own)
  )
  # m / tau = 3 * 0.01 / 0.1
  wanted = synced + (1 + math.exp(-0.3)) / 2 * sum(x - synced for x in own)
  values = spec_lib.from_stored(stored, dtype).decode()
  spacing = np.abs(values) * 2.0**-7
  if dtype == 'int8':
    spacing = stored.scales[:, None] + np.zeros_like(values)
    assert (np.abs(wanted) > 127 * spacing).any()
    wanted = np.clip(wanted, -127 * spacing, 127 * spacing)
  assert (np.abs(values - wanted) <= 1.001 * spacing + 1e-6).all()


@pytest.mark.slow
def test_rows_that_nobody_changed_stay_as_they_are():
  num, dim = 2000, 5
  spec = spec_lib.TableSpec('wide', num, dim, 0.0)
  specs = {
    'wide': spec,
    'narrow': dataclasses.replace(spec, exchange_dtype='bfloat16'),
    'int8': dataclasses.replace(spec, dtype='int8', rounding='stochastic'),
  }
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(num, dim)).astype(np.float32)
  rows[::3] = rng.standard_t(2, size=rows[::3].shape)  # with outliers
  rows[0] = 0
  codec, ids = codecs.Codec(specs['int8']), np.arange(num)
  stored = codec.encode(jnp.asarray(rows), ids, KEY)
  rows[1::3] *= 0.95  # written once more, with the same scales or finer ones
  stored = codec.encode(jnp.asarray(rows), ids, KEY, codecs.encoding_of(stored))
  stored = jax.device_get(stored)
  # Some have the least code that their largest number may have.
  codes = np.where(np.arange(num)[:, None] % 4, stored.codes, 120)
  stored = rounding.Scaled(codes.astype(np.int8), stored.scales)
  synced = {'wide': rows, 'narrow': rows, 'int8': stored}
  found = _synchronised(
    specs, jax.tree.map(lambda x: np.stack([x] * 3), synced), synced
  )
  np.testing.assert_allclose(found['wide'], rows, 1e-6)  # a third, three times
  np.testing.assert_array_equal(found['narrow'], rows)
  jax.tree.map(np.testing.assert_array_equal, found['int8'], stored)


def test_exported_rows_keep_the_scales_of_rows_that_nobody_changed(monkeypatch):
  spec = spec_lib.TableSpec('input', 500, 8, 0.0, 'int8', 'stochastic')
  table = replicated.Replicated(spec, row_optimizers.sgd(0))
  trainable = base.Trainable(None, {'input': table}, None, 1)
  policy = policies.bounded({'input': np.ones(500)}, 3, 1, 1, 1.0, 1.0, 1.0)
  devices = mesh.make(mesh.Shape(3, 1))
  strategy = replicas.replicas(trainable, devices, lambda _: policy)
  rng = np.random.default_rng(0)
  codes = rng.integers(-120, 121, (500, 8)).astype(np.int8)
  codes[:, 0] = np.where(np.arange(500) % 2, 120, 127)
  synced = rounding.Scaled(codes, np.full(500, 0.0078125, np.float32))
  own = jax.tree.map(lambda x: np.stack([x] * 3), synced)
  moved = own.codes[1, -100:]
  moved[:] = np.clip(moved + 3, -127, 127)
  tables, synced = ({'input': spec_lib.TableState(x)} for x in (own, synced))
  state = replicas.ReplicaState(tables, (), (), synced, 0, 0)
  state = jax.tree.map(jnp.asarray, state)
  found = strategy.export_rows(state, 'input').encoded
  np.testing.assert_array_equal(found.data[:-100], codes[:-100])
  np.testing.assert_array_equal(found.data[-100:], moved)
  np.testing.assert_array_equal(found.scales, synced['input'].vectors.scales)
  # Copies of all rows of all replicas would take more memory than training.
  monkeypatch.setattr(replicas, '_NUMBERS_AT_ONCE', 40 * 8 * 3)
  read, sizes = replicated.Replicated.export_rows, []

  def counted(self, *args, **kwargs):
    block = read(self, *args, **kwargs)
    sizes.append(block.rows.shape[-2])
    return block

  monkeypatch.setattr(replicated.Replicated, 'export_rows', counted)
  pieces = strategy.export_rows(state, 'input').encoded
  assert max(sizes) == 32
  np.testing.assert_array_equal(pieces.data, found.data)
  np.testing.assert_array_equal(pieces.scales, found.scales)


class _Model(model_base.Model):
  """Without anything to train but its table."""

  vectors_table = 'input'


@pytest.mark.slow
@pytest.mark.parametrize(
  ('num', 'others', 'dtype'),
  [(3, 2, 'float32'), (2, 5, 'int8')],
)
def test_another_number_goes_on_from_what_was_learned(
  num, others, dtype, monkeypatch
):
  vocab, rng = 40, np.random.default_rng(0)
  spec = spec_lib.TableSpec('input', vocab, 8, 0.0, dtype)
  table = replicated.Replicated(spec, row_optimizers.adagrad(1e-6))
  trainable = base.Trainable(_Model(), {'input': table}, None, 1)

  def make_policy(n):
    return policies.hot({'input': np.ones(vocab)}, n, 1, 10, 2)

  def made(n):
    devices = mesh.make(mesh.Shape(n, 1))
    return replicas.replicas(trainable, devices, make_policy)

  first, then = made(num), made(others)
  rows = rng.normal(size=(num + 1, vocab, 8)).astype(np.float32)
  squares = rng.random((num + 1, vocab)).astype(np.float32)
  state = dispatches.start(first)
  synced, *own = (
    jax.device_get(rounding.encode(jnp.asarray(x), dtype)) for x in rows
  )
  state = state._replace(
    tables={
      'input': state.tables['input']._replace(
        vectors=jax.tree.map(lambda *x: np.stack(x), *own),
        opt_state=row_optimizers.AdagradState(squares[1:]),
      )
    },
    synced={
      'input': state.synced['input']._replace(
        vectors=synced, opt_state=row_optimizers.AdagradState(squares[0])
      )
    },
  )
  expected = first.export_rows(jax.tree.map(jnp.asarray, state), 'input')
  shapes, convert = then.from_replicas(num, 0.0)

  def filled(x, like):
    if np.ndim(x):  # with what is not to be used
      rest = np.full((like.shape[0] - len(x), *x.shape[1:]), 7, x.dtype)
      x = np.concatenate([x, rest])
    return jax.device_put(x, like.sharding)

  export_rows, sizes = replicated.Replicated.export_rows, []

  def counted(self, *args, **kwargs):
    block = export_rows(self, *args, **kwargs)
    sizes.append(block.rows.shape[-2])
    return block

  with monkeypatch.context() as patch:
    patch.setattr(spec_lib, 'NUMBERS_AT_ONCE', 15 * 8 * num)
    patch.setattr(replicated.Replicated, 'export_rows', counted)
    new = convert(jax.tree.map(filled, state, shapes))
  assert max(sizes) == 15  # the host may not have room for all
  like = jax.eval_shape(then.init, jax.random.key(0))
  assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, like)
  found = then.export_rows(new, 'input')
  # Scales may be others.
  tolerance = 0.03 if dtype == 'int8' else 1e-6
  np.testing.assert_allclose(found.rows, expected.rows, 1e-5, tolerance)
  squares = squares[0] + (squares[1:] - squares[0]).mean(0)
  np.testing.assert_allclose(expected.opt_state['sum_squares'], squares, 1e-5)
  np.testing.assert_allclose(found.opt_state['sum_squares'], squares, 1e-5)
  opt_state = np.asarray(new.tables['input'].opt_state.sum_squares)
  np.testing.assert_allclose(opt_state, np.tile(squares, (others, 1)), 1e-5)
