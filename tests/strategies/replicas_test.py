"""Replicas against plain loops, and those that never meet against one alone."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.data import windows
from jaxemb.models import base as model_base
from jaxemb.models import skipgram
from jaxemb.ops import losses, rounding
from jaxemb.runtime import hlo, mesh
from jaxemb.strategies import base, policies, replicas, sync
from jaxemb.tables import blocks, codecs, replicated, row_optimizers
from jaxemb.tables import spec as spec_lib
from tests import compiling, dispatches, oracle

VOCAB, DIM, WINDOW, CHUNK = 3000, 6, 3, 4
STEP_WORDS, MAX_STEPS = 64, 7
KEY = dispatches.KEY
EVERY, LOOKUPS, MEMORY, RATE = 2, 3.0, 20.0, 0.3


@functools.cache
def _model():
  frequencies = 1 / (5 + np.arange(VOCAB))
  frequencies /= frequencies.sum()
  return skipgram.make(
    model_base.WindowSpec(VOCAB, DIM, WINDOW, 5, CHUNK, 3),
    model_base.Corpus((), 1e6 * frequencies, frequencies),
    losses.logistic_loss,
  )


def _trainable(num_parts, optimizer):
  model = _model()
  tables = {
    name: replicated.Replicated(table, optimizer)
    for name, table in model.specs().items()
  }
  steps = windows.Steps(STEP_WORDS, num_parts, WINDOW, CHUNK)
  return base.Trainable(model, tables, steps, 1)


@functools.cache
def _make(n):
  trainable = _trainable(n, row_optimizers.sgd(2))
  lookups = {
    k: x.lookups_per_center for k, x in trainable.model.specs().items()
  }
  policy = policies.bounded(
    lookups, n, STEP_WORDS, EVERY, LOOKUPS, MEMORY, RATE
  )
  devices = mesh.make(mesh.Shape(n, 1))
  return trainable, policy, replicas.replicas(trainable, devices, policy)


def _batch(num_steps, n):
  """A part for each replica; all but the first one are a step shorter."""
  words = [
    max(num_steps - (i > 0), 1) * STEP_WORDS - STEP_WORDS // 2 for i in range(n)
  ]
  steps = windows.Steps(STEP_WORDS, n, WINDOW, CHUNK)
  return dispatches.random_batch(words, VOCAB, steps, MAX_STEPS)


def _rows():
  """Rows as large as trained ones."""
  rng = np.random.default_rng(3)
  rows = rng.normal(size=(2, VOCAB, DIM)).astype(np.float32) / 2
  return {'input': rows[0], 'output': rows[1]}


def _loops(n, batch, schedule, num_meetings):
  """Each replica's tables in float64, rows when they met, loss and examples."""
  trainable, policy, _ = _make(n)
  own = [
    {k: v.astype(np.float64) for k, v in _rows().items()} for _ in range(n)
  ]
  met = {k: v.astype(np.float64) for k, v in _rows().items()}
  first, last = map(float, schedule[:2])
  count = batch.num_steps.max()
  loss = examples = 0
  for i in range(count):
    rate = first + (last - first) * i / count
    for replica, tables in enumerate(own):
      truth = dispatches.true_step(
        trainable, oracle.skipgram, tables, batch, i, [replica]
      )
      loss, examples = loss + truth.loss, examples + truth.examples
      for k in met:
        oracle.sgd(
          tables[k], {}, truth.ids[k], truth.grads[k], rate, max_duplicates=2
        )
    if (i + 1) % EVERY and i + 1 < count:
      continue
    num_meetings += 1
    rate = first + (last - first) * (i + 1) / count
    level = 0
    while num_meetings % 4 ** (level + 1) == 0:
      level += 1
    level = min(level, len(policy.due_chunks) - 1)
    for k in met:
      for row in range(min(policy.due_chunks[level] * 1024, VOCAB)):
        m = float(policy.lookups[k][row]) * rate / RATE
        m *= ((i % EVERY) + 1) / EVERY
        q = math.exp(-m / MEMORY)
        gain = sum(q**j for j in range(n)) / n
        met[k][row] += gain * sum(x[k][row] - met[k][row] for x in own)
        for x in own:
          x[k][row] = met[k][row]
  return own, met, loss, examples, num_meetings


# The last one so that rows of all levels are due.
@pytest.mark.parametrize(('n', 'start'), [(2, 0), (3, 0), (3, 62), (2, 254)])
def test_dispatches_equal_the_loops(n, start):
  trainable, policy, strategy = _make(n)
  assert len(policy.due_chunks) > 2 and policy.due_chunks[0] == 1
  state = dispatches.start(strategy, _rows())
  clock = jax.device_put(np.int32(start), state.clock.sharding)
  num_steps = math.ceil(10 / n)
  schedule, batch = dispatches.schedule(0.3, 0.1), _batch(num_steps, n)
  own, met, loss, examples, num = _loops(n, batch, schedule, start)
  state, metrics = dispatches.run(
    strategy, state._replace(clock=clock), batch, schedule
  )
  for k, before in _rows().items():
    found = np.asarray(state.tables[k].vectors)
    assert found.shape == (n, VOCAB, DIM)
    for replica in range(n):
      np.testing.assert_allclose(found[replica], own[replica][k], 1e-5, 2e-5)
    np.testing.assert_allclose(state.met[k].vectors, met[k], 1e-5, 2e-5)
    expected = met[k] + sum(x[k] - met[k] for x in own)
    np.testing.assert_allclose(
      strategy.export_rows(state, k).rows, expected, 1e-5, 5e-5
    )
    if start:
      continue
    # Some rows met, some were learned alone, some not at all.
    apart = np.abs(found[0] - found[1]).max(1) > 1e-4
    moved = np.abs(found[0] - before).max(1) > 1e-4
    assert apart.any() and (moved & ~apart).any() and (~moved).any()
  assert int(state.clock) == num
  np.testing.assert_allclose(metrics.steps.loss, loss, 1e-5)
  assert metrics.steps.examples == examples
  assert metrics.steps.first_bad_step == -1 and metrics.num_steps == num_steps
  assert metrics.counters['kept_words'] == batch.kept_words.sum()
  assert metrics.counters['pairs'] == batch.pairs.sum()


def test_first_bad_step_of_any_replica():
  _, _, strategy = _make(3)
  rows, word = _rows(), VOCAB // 2
  rows['input'][word] = np.inf
  for part, bad_step in ((0, 1), (2, 2)):
    state = dispatches.start(strategy, rows)
    batch = dispatches.with_rare_word(
      _batch(4, 3), word, part, bad_step * STEP_WORDS
    )
    _, metrics = dispatches.run(
      strategy, state, batch, dispatches.schedule(0.01, 0.01)
    )
    assert metrics.steps.first_bad_step == bad_step


def _met(specs, own, met):
  """Replicas' tables and what met, as stored, after all rows have met.

  Args:
    specs: of the tables, by name.
    own: stored rows by table, with a leading axis of replicas.
    met: the same at the last meeting, without it.
  """
  n = len(jax.tree.leaves(own)[0])
  tables = {
    k: replicated.Replicated(x, row_optimizers.sgd(0)) for k, x in specs.items()
  }
  vocab = next(iter(specs.values())).vocab
  lookups = {k: np.full(vocab, 3, np.float32) for k in specs}
  policy = policies.Bounded(lookups, n, 1, vocab, (1,), 1.0, 0.1)
  elapsed = policies.Elapsed(jnp.float32(0.01), jnp.int32(1))

  def meet(own, met):
    own = jax.tree.map(lambda x: x[0], own)
    own, met = (
      {k: spec_lib.TableState(x) for k, x in rows.items()}
      for rows in (own, met)
    )
    state = replicas.ReplicaState(own, (), (), met, jnp.int32(0))
    state = replicas.meet(state, tables, policy, elapsed, KEY)
    found = [
      {k: x.vectors for k, x in found.items()}
      for found in (state.tables, state.met)
    ]
    return jax.tree.map(lambda x: x[None], found)

  over = jax.sharding.PartitionSpec(mesh.DATA)
  run = jax.shard_map(
    meet,
    mesh=mesh.make(mesh.Shape(n, 1)),
    in_specs=(over, jax.sharding.PartitionSpec()),
    out_specs=over,
    check_vma=False,
  )
  found = jax.device_get(jax.jit(run)(own, met))
  first = jax.tree.map(lambda x: x[0], found[0])
  for each in found:  # all are the same
    for i in range(n):
      copy = jax.tree.map(lambda x, i=i: x[i], each)
      jax.tree.map(np.testing.assert_array_equal, copy, first)
  return first


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'int8'])
def test_rows_that_meet_are_rounded_alike_and_once(dtype):
  num, rng = 40, np.random.default_rng(0)
  spec = spec_lib.TableSpec('t', num, 8, 0.0, dtype, 'stochastic')
  before = rng.normal(size=(num, 8)).astype(np.float32)
  moved = before + 0.1 * rng.normal(size=(2, num, 8)).astype(np.float32)
  met, *own = (
    jax.device_get(rounding.encode(x, dtype)) for x in (before, *moved)
  )
  stacked = jax.tree.map(lambda *x: np.stack(x), *own)
  stored = _met({'t': spec}, {'t': stacked}, {'t': met})['t']
  met, *own = (blocks.from_stored(x, dtype).decode() for x in (met, *own))
  # m / tau = 3 * 0.01 / 0.1
  wanted = met + (1 + math.exp(-0.3)) / 2 * sum(x - met for x in own)
  values = blocks.from_stored(stored, dtype).decode()
  spacing = np.abs(values) * {'float32': 2.0**-22}.get(dtype, 2.0**-7)
  if dtype == 'int8':
    spacing = stored.scales[:, None] + np.zeros_like(values)
    assert (np.abs(wanted) > 127 * spacing).any()
    wanted = np.clip(wanted, -127 * spacing, 127 * spacing)
  assert (np.abs(values - wanted) <= 1.001 * spacing + 1e-6).all()


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
  met = {'wide': rows, 'narrow': rows, 'int8': stored}
  found = _met(specs, jax.tree.map(lambda x: np.stack([x] * 3), met), met)
  np.testing.assert_allclose(found['wide'], rows, 1e-6)  # a third, three times
  np.testing.assert_array_equal(found['narrow'], rows)
  jax.tree.map(np.testing.assert_array_equal, found['int8'], stored)


def test_exported_rows_keep_the_scales_of_rows_that_nobody_changed():
  spec = spec_lib.TableSpec('input', 500, 8, 0.0, 'int8', 'stochastic')
  table = replicated.Replicated(spec, row_optimizers.sgd(0))
  trainable = base.Trainable(None, {'input': table}, None, 1)
  policy = policies.bounded({'input': np.ones(500)}, 3, 1, 1, 1.0, 1.0, 1.0)
  devices = mesh.make(mesh.Shape(3, 1))
  strategy = replicas.replicas(trainable, devices, policy)
  rng = np.random.default_rng(0)
  codes = rng.integers(-120, 121, (500, 8)).astype(np.int8)
  codes[:, 0] = np.where(np.arange(500) % 2, 120, 127)
  met = rounding.Scaled(codes, np.full(500, 0.0078125, np.float32))
  own = jax.tree.map(lambda x: np.stack([x] * 3), met)
  moved = own.codes[1, -100:]
  moved[:] = np.clip(moved + 3, -127, 127)
  tables, met = ({'input': spec_lib.TableState(x)} for x in (own, met))
  state = replicas.ReplicaState(tables, (), (), met, 0)
  state = jax.tree.map(jnp.asarray, state)
  found = strategy.export_rows(state, 'input').encoded
  np.testing.assert_array_equal(found.data[:-100], codes[:-100])
  np.testing.assert_array_equal(found.data[-100:], moved)
  np.testing.assert_array_equal(found.scales, met['input'].vectors.scales)


@functools.cache
def _apart():
  """Models that never meet, their program as users have it, its arguments.

  The last model has nothing to do.
  """
  trainable = _trainable(1, row_optimizers.adagrad(1e-6))
  devices = mesh.make(mesh.Shape(3, 1))
  strategy = replicas.replicas(trainable, devices, policies.Never())
  batches, schedules = zip(*map(_own, range(3)), strict=True)
  args = dispatches.args(
    strategy,
    jax.tree.map(lambda *x: np.concatenate(x), *batches),
    jax.tree.map(lambda *x: np.stack(x), *schedules),
  )
  return strategy, _compiled(strategy, args), args


def _compiled(strategy, args):
  lowered = strategy.step.lower(dispatches.start(strategy), *args)
  return lowered.compile(compiler_options=compiling.AS_USERS_DO)


def _own(i):
  """A model's batch and schedule."""
  steps = windows.Steps(STEP_WORDS, 1, WINDOW, CHUNK)
  words = [max(0, (6 - 3 * i) * STEP_WORDS - i)]
  batch = dispatches.random_batch(words, VOCAB, steps, MAX_STEPS)
  key = np.array([i, 3], np.uint32)
  return batch, dispatches.schedule(0.2 + i / 10, 0.1, key)


def test_each_learns_what_it_learns_alone():
  strategy, program, args = _apart()
  before = jax.device_get(dispatches.start(strategy))
  state, metrics = program(dispatches.start(strategy), *args)
  rows = strategy.export_rows(state, 'input').rows
  assert rows.shape == (3, VOCAB, DIM)
  assert metrics.num_steps.tolist() == [6, 3, 0]
  trainable = _trainable(1, row_optimizers.adagrad(1e-6))
  alone = sync.sync(trainable, mesh.make(mesh.Shape(1, 1)))
  alone_args = [dispatches.args(alone, *_own(i)) for i in range(3)]
  program = _compiled(alone, alone_args[0])
  for i in range(3):
    expected = program(dispatches.start(alone), *alone_args[i])
    own = jax.tree.map(lambda x, i=i: x[i], (state.tables, metrics))
    expected = expected[0].tables, expected[1]
    jax.tree.map(np.testing.assert_array_equal, own, expected)
    np.testing.assert_array_equal(rows[i], own[0]['input'].vectors)
  for name, old in before.tables.items():
    np.testing.assert_array_equal(own[0][name].vectors, old.vectors[2])


def test_no_collective_and_no_copy_of_a_table():
  text = _apart()[1].as_text()
  assert not hlo.collectives(text)
  for word in ('send(', 'recv(', 'infeed(', 'outfeed(', 'partition-id'):
    assert word not in text, word
  # A device has its own model and no other.
  lines = text.splitlines()
  assert any(f'f32[1,{VOCAB},{DIM}]' in line for line in lines)
  for line in lines:
    is_copy = ' copy' in line.split('(')[0]
    assert not (is_copy and f'{VOCAB},{DIM}]' in line), line
  # Donated: every array of the state is written where it was read.
  aliases = re.search(r'input_output_alias=\{ (.*?) \}, entry', text)[1]
  pairs = re.findall(r'\{(\d)\}: \((\d)', aliases)
  assert pairs == [(str(i), str(i)) for i in range(4)]


def test_the_first_bad_step_of_each():
  strategy, program, args = _apart()
  state = dispatches.start(strategy)
  vectors = np.array(state.tables['input'].vectors)
  vectors[1] = np.inf
  table = state.tables['input']._replace(
    vectors=jax.device_put(vectors, state.tables['input'].vectors.sharding)
  )
  state = state._replace(tables=state.tables | {'input': table})
  _, metrics = program(state, *args)
  assert metrics.steps.first_bad_step.tolist() == [-1, 0, -1]
