"""Replicas against plain loops, and those that never meet against one alone."""

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
  return {
    k: rng.normal(size=(VOCAB, DIM)).astype(np.float32) / 2
    for k in ('input', 'output')
  }


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


def _after_meeting(specs, own, met, lookups=3.0):
  """All replicas' rows, and what met, as stored, after all of them have met.

  Args:
    specs: of the tables, by name.
    own: stored rows by table, with a leading axis of replicas.
    met: the same at the last meeting, without it.
    lookups: of every row since.
  """
  n = len(jax.tree.leaves(own)[0])
  tables = {
    k: replicated.Replicated(x, row_optimizers.sgd(0)) for k, x in specs.items()
  }
  vocab = next(iter(specs.values())).vocab
  policy = policies.Bounded(
    {k: np.full(vocab, lookups, np.float32) for k in specs},
    n, 1, vocab, (1,), 1.0, 0.1,
  )  # fmt: skip
  trainable = base.Trainable(None, tables, None, 1)
  elapsed = policies.Elapsed(jnp.float32(0.01), jnp.int32(1))

  def meet(own, met):
    own = jax.tree.map(lambda x: x[0], own)
    own, met = (
      {k: spec_lib.TableState(x) for k, x in rows.items()}
      for rows in (own, met)
    )
    state = replicas.ReplicaState(own, (), (), met, jnp.int32(0))
    state = replicas.meet(state, trainable, policy, elapsed, n, KEY)
    found = [
      {k: x.vectors for k, x in tables.items()}
      for tables in (state.tables, state.met)
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
  return jax.device_get(jax.jit(run)(own, met))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'int8'])
def test_rows_that_meet_are_rounded_alike_and_once(dtype):
  num, rng = 40, np.random.default_rng(0)
  spec = spec_lib.TableSpec('t', num, 8, 0.0, dtype, 'stochastic')
  before = rng.normal(size=(num, 8)).astype(np.float32)
  moved = before + 0.1 * rng.normal(size=(2, num, 8)).astype(np.float32)
  met = jax.device_get(rounding.encode(before, dtype))
  own = [jax.device_get(rounding.encode(x, dtype)) for x in moved]
  stacked = jax.tree.map(lambda *x: np.stack(x), *own)
  found = _after_meeting({'t': spec}, {'t': stacked}, {'t': met})
  for each in found:
    for copy in range(2):
      jax.tree.map(
        lambda x, y, i=copy: np.testing.assert_array_equal(x[i], y[0]),
        each,
        found[0],
      )
  met, *own = (blocks.from_stored(x, dtype).decode() for x in (met, *own))
  # m / tau = 3 * 0.01 / 0.1
  wanted = met + (1 + math.exp(-0.3)) / 2 * sum(x - met for x in own)
  stored = jax.tree.map(lambda x: x[0], found[0]['t'])
  values = blocks.from_stored(stored, dtype).decode()
  spacing = np.abs(values) * {'float32': 2.0**-22}.get(dtype, 2.0**-7)
  if dtype == 'int8':
    spacing = stored.scales[:, None] + np.zeros_like(values)
    assert (np.abs(wanted) > 127 * spacing).any()
    wanted = np.clip(wanted, -127 * spacing, 127 * spacing)
  assert (np.abs(values - wanted) <= 1.001 * spacing + 1e-6).all()


def test_rows_that_nobody_changed_stay_as_they_are():
  num, dim = 2000, 5
  specs = {
    'wide': spec_lib.TableSpec('wide', num, dim, 0.0),
    'narrow': spec_lib.TableSpec(
      'narrow', num, dim, 0.0, exchange_dtype='bfloat16'
    ),
    'int8': spec_lib.TableSpec('int8', num, dim, 0.0, 'int8', 'stochastic'),
  }
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(num, dim)).astype(np.float32)
  rows[::3] = rng.standard_t(2, size=rows[::3].shape)  # with outliers
  rows[0] = 0
  codec, ids = codecs.Codec(specs['int8']), np.arange(num)
  stored = codec.encode(jnp.asarray(rows), ids, KEY)
  rows[1::3] *= 0.95  # written once more, with the same scales or finer ones
  stored = codec.encode(jnp.asarray(rows), ids, KEY, codec.encoding_of(stored))
  stored = jax.device_get(stored)
  # Some have the least code that their largest number may have.
  codes = np.where(np.arange(num)[:, None] % 4, stored.codes, 120)
  stored = rounding.Scaled(codes.astype(np.int8), stored.scales)
  met = {'wide': rows, 'narrow': rows, 'int8': stored}
  own = jax.tree.map(lambda x: np.stack([x] * 3), met)
  for tables in _after_meeting(specs, own, met):
    for name, found in tables.items():
      if name == 'wide':  # a third of it three times
        np.testing.assert_allclose(found[0], rows, 1e-6)
      else:
        jax.tree.map(
          lambda x, y: np.testing.assert_array_equal(x[0], y), found, met[name]
        )


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


# Replicas that never meet: devices, and models of each.
GROUPS = pytest.mark.parametrize('group', [(2, 1), (2, 2)], ids=['1', '2'])


@functools.cache
def _apart(num_devices, per_device):
  """A strategy, and its program as users have it."""
  num = num_devices * per_device
  devices = mesh.make(mesh.Shape(num_devices, 1))
  trainable = _trainable(1, row_optimizers.adagrad(1e-6))
  strategy = replicas.replicas(trainable, devices, policies.Never(), per_device)
  args = _apart_args(strategy, range(num))
  lowered = strategy.step.lower(dispatches.start(strategy), *args)
  return strategy, lowered.compile(compiler_options=compiling.AS_USERS_DO)


def _own_batch(i):
  """A model's part, each with another number of steps."""
  steps = windows.Steps(STEP_WORDS, 1, WINDOW, CHUNK)
  words = (MAX_STEPS - 2 * i) * STEP_WORDS - i
  return dispatches.random_batch([words], VOCAB, steps, MAX_STEPS)


def _own_schedule(i):
  key = np.array([i, 3], np.uint32)
  return dispatches.schedule(0.2 + i / 10, 0.1, key)


def _apart_args(strategy, models):
  batch = jax.tree.map(
    lambda *x: np.concatenate(x), *[_own_batch(i) for i in models]
  )
  schedule = jax.tree.map(
    lambda *x: np.stack(x), *[_own_schedule(i) for i in models]
  )
  return dispatches.args(strategy, batch, schedule)


@functools.cache
def _alone(i):
  """The state and metrics of a device that has nothing else to do."""
  trainable = _trainable(1, row_optimizers.adagrad(1e-6))
  strategy = sync.sync(trainable, mesh.make(mesh.Shape(1, 1)))
  args = dispatches.args(strategy, _own_batch(i), _own_schedule(i))
  lowered = strategy.step.lower(dispatches.start(strategy), *args)
  program = lowered.compile(compiler_options=compiling.AS_USERS_DO)
  state, metrics = jax.device_get(program(dispatches.start(strategy), *args))
  return state.tables, metrics


@GROUPS
def test_each_learns_what_it_learns_alone(group):
  strategy, program = _apart(*group)
  models = list(range(math.prod(group)))[::-1]
  args = _apart_args(strategy, models)
  state, metrics = program(dispatches.start(strategy), *args)
  rows = strategy.export_rows(state, 'input').rows
  assert rows.shape == (len(models), VOCAB, DIM)
  for place, i in enumerate(models):
    own = jax.tree.map(lambda x, i=place: x[i], (state.tables, metrics))
    for x, y in zip(*map(jax.tree.leaves, (own, _alone(i))), strict=True):
      if group[1] == 1:
        np.testing.assert_array_equal(x, y)
      else:  # products of several are computed together
        np.testing.assert_allclose(x, y, 1e-4, 1e-5)
    assert metrics.num_steps[place] == MAX_STEPS - 2 * i
    np.testing.assert_array_equal(rows[place], own[0]['input'].vectors)


def test_one_that_has_nothing_to_do_stays_as_it_is():
  strategy, program = _apart(2, 1)
  constants, batch, schedule = _apart_args(strategy, [0, 1])
  batch = jax.tree.map(np.array, batch)
  batch.ids[1], batch.left[1], batch.right[1] = VOCAB, 0, 0
  for counts in batch[3:]:
    counts[1] = 0
  batch = jax.device_put(batch, strategy.batch_sharding)
  before = jax.device_get(dispatches.start(strategy))
  state, metrics = program(
    dispatches.start(strategy), constants, batch, schedule
  )
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(x[1], y[1]), state, before
  )
  assert metrics.num_steps.tolist() == [MAX_STEPS, 0]


@GROUPS
def test_no_collective_and_no_copy_of_a_table(group):
  text = _apart(*group)[1].as_text()
  assert not hlo.collectives(text)
  for word in ('send(', 'recv(', 'infeed(', 'outfeed(', 'partition-id'):
    assert word not in text, word
  # A device has its own models and no others.
  lines = text.splitlines()
  assert any(f'f32[{group[1]},{VOCAB},{DIM}]' in line for line in lines)
  for line in lines:
    is_copy = ' copy' in line.split('(')[0]
    assert not (is_copy and f'{VOCAB},{DIM}]' in line), line
  # Donated: every array of the state is written where it was read.
  aliases = re.search(r'input_output_alias=\{ (.*?) \}, entry', text)[1]
  pairs = re.findall(r'\{(\d)\}: \((\d)', aliases)
  assert pairs == [(str(i), str(i)) for i in range(4)]


def test_the_first_bad_step_of_each():
  strategy, program = _apart(2, 2)
  state = dispatches.start(strategy)
  vectors = np.array(state.tables['input'].vectors)
  vectors[2] = np.inf
  table = state.tables['input']._replace(
    vectors=jax.device_put(vectors, state.tables['input'].vectors.sharding)
  )
  state = state._replace(tables=state.tables | {'input': table})
  _, metrics = program(state, *_apart_args(strategy, range(4)))
  assert metrics.steps.first_bad_step.tolist() == [-1, -1, 0, -1]
