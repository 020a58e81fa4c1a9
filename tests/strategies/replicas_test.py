"""Replicas: their timetable, the gain, and dispatches against plain loops."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.models import base as model_base
from jaxemb.models import skipgram
from jaxemb.ops import rounding
from jaxemb.runtime import mesh
from jaxemb.strategies import base, replicas, sync, timetables
from jaxemb.tables import blocks, codecs, replicated
from jaxemb.tables import row_optimizers as rowopt
from jaxemb.tables import spec as spec_lib
from jaxemb.text import loader
from tests import oracle

VOCAB, DIM, WINDOW, CHUNK = 3000, 6, 3, 4
BATCH_WORDS, NEGATIVES, SHARED = 64, 5, 3
MAX_STEPS = 6
KEY = np.array([0xA4093822, 0x299F31D0], np.uint32)
SPEC = timetables.ExchangeSpec(
  every_steps=2, lookups=3.0, memory_lookups=20.0, first_learning_rate=0.3
)
every_number = pytest.mark.parametrize('n', [2, 3, 4])


def _frequencies():
  weights = 1 / (5 + np.arange(VOCAB))
  return weights / weights.sum()


@functools.cache
def _make(n, spec=SPEC):
  model = skipgram.SkipGram(
    model_base.WindowSpec(VOCAB, DIM, WINDOW, NEGATIVES, CHUNK, SHARED),
    skipgram.negative_distribution(1e6 * _frequencies()),
  )
  tables = {
    name: replicated.Replicated(table, rowopt.sgd(2))
    for name, table in model.specs().items()
  }
  step_spec = base.StepSpec(BATCH_WORDS, n, WINDOW, CHUNK, 1)
  devices = mesh.make(mesh.Shape(n, 1))
  rates = model.lookup_rates(_frequencies(), _frequencies())
  return model, replicas.replicas(
    model, tables, step_spec, devices, spec, rates
  )


def _make_alone(num_parts):
  """One device that has all parts of a step at once."""
  model, _ = _make(num_parts)
  tables = {
    name: replicated.Replicated(table, rowopt.sgd(2))
    for name, table in model.specs().items()
  }
  step_spec = base.StepSpec(BATCH_WORDS, num_parts, WINDOW, CHUNK, 1)
  devices = mesh.make(mesh.Shape(1, 1))
  return model, sync.sync(model, tables, step_spec, devices)


def _batch(num_steps, n):
  """A part for each replica; all but the first one are a step shorter."""
  rng = np.random.default_rng(0)
  size = MAX_STEPS * BATCH_WORDS
  parts, kept = [], []
  for i in range(n):
    words = max(num_steps - (i > 0), 1) * BATCH_WORDS - BATCH_WORDS // 2
    kept.append(words)
    sentences = []
    while words > 0:
      length = int(min(words, rng.integers(1, 12)))
      sentences.append(rng.choice(VOCAB, length, p=_frequencies()))
      words -= length
    parts.append(oracle.pack(sentences, VOCAB, size, WINDOW, rng))
  ids, left, right = map(np.stack, zip(*parts, strict=True))
  pairs = (left.astype(int) + right).sum(1).astype(np.int32)
  kept = np.array(kept, np.int32)
  return loader.Batch(ids, left, right, -(-kept // BATCH_WORDS), kept, pairs)


def _step(strategy, state, batch, schedule):
  return strategy.step(
    state,
    jax.device_put(strategy.constants(), strategy.constants_sharding),
    jax.device_put(batch, strategy.batch_sharding),
    schedule,
  )


def _schedule(first, last):
  return base.Schedule(np.float32(first), np.float32(last), KEY)


def _start(strategy):
  """A state of training's size, the same in all replicas."""
  state = jax.jit(strategy.init, out_shardings=strategy.state_sharding)(
    jax.random.key(0)
  )
  rng = np.random.default_rng(3)
  values = {
    k: rng.normal(size=(VOCAB, DIM)).astype(np.float32) / 2
    for k in ('input', 'output')
  }

  def put(like, value):
    value = np.broadcast_to(value, like.shape)
    return jax.device_put(value, like.sharding)

  tables = {
    k: t._replace(vectors=put(t.vectors, values[k]))
    for k, t in state.tables.items()
  }
  exchanged = {
    k: x._replace(vectors=put(x.vectors, values[k]))
    for k, x in state.exchanged.items()
  }
  return state._replace(tables=tables, exchanged=exchanged), values


def _levels(num, factor=4):
  """How often the factor divides num."""
  level = 0
  while num % factor == 0:
    num, level = num // factor, level + 1
  return level


def _oracle(n, values, batch, schedule, spec, num_exchanges):
  """Each replica's tables in float64, and (loss, examples)."""
  model, _ = _make(n, spec)
  rates = model.lookup_rates(_frequencies(), _frequencies())
  table = timetables.timetable(rates, BATCH_WORDS, spec)
  mine = [
    {k: v.astype(np.float64) for k, v in values.items()} for _ in range(n)
  ]
  old = {k: v.astype(np.float64) for k, v in values.items()}
  ids_of = jax.jit(model.ids)
  count = batch.num_steps.max()
  first = float(schedule.first_learning_rate)
  last = float(schedule.last_learning_rate)
  loss = examples = 0
  for i in range(count):
    for replica in range(n):
      step = oracle.middle(
        oracle.Tokens(*(x[replica] for x in batch[:3])),
        i * BATCH_WORDS,
        BATCH_WORDS,
      )
      num_chunks = BATCH_WORDS // CHUNK
      chunks = (i * n + replica) * num_chunks + np.arange(num_chunks)
      ids = ids_of(
        model.constants(),
        model_base.StepBatch(
          *(x[None] for x in step), chunks.astype(np.uint32)
        ),
        KEY,
      )
      draws = np.asarray(ids['output'])[:, -SHARED:]
      truth = oracle.skipgram(
        *step, draws, mine[replica], WINDOW, CHUNK, NEGATIVES
      )
      loss, examples = loss + truth.loss, examples + truth.examples
      rate = first + (last - first) * i / count
      for k in old:
        oracle.sgd(
          mine[replica][k],
          {},
          truth.ids[k],
          truth.grads[k],
          rate,
          max_duplicates=2,
        )
    if (i + 1) % spec.every_steps and i + 1 < count:
      continue
    num_exchanges += 1
    rate = first + (last - first) * (i + 1) / count
    for k in rates:
      level = min(_levels(num_exchanges), len(table.due) - 1)
      for row in range(min(table.due[level] * table.chunk_rows, VOCAB)):
        m = float(table.lookups[k][row]) * rate / spec.first_learning_rate
        m *= ((i % spec.every_steps) + 1) / spec.every_steps
        q = math.exp(-m / spec.memory_lookups)
        gain = sum(q**j for j in range(n)) / n
        moved = sum(x[k][row] - old[k][row] for x in mine)
        new = old[k][row] + gain * moved
        for x in mine:
          x[k][row] = new
        old[k][row] = new
  return mine, old, loss, examples, num_exchanges


@pytest.mark.parametrize('start', [0, 62, 254])  # then all levels are due
@every_number
def test_dispatches_equal_the_loops(n, start):
  _, strategy = _make(n)
  state, values = _start(strategy)
  state = state._replace(
    num_exchanges=jax.device_put(np.int32(start), state.num_exchanges.sharding)
  )
  schedule = _schedule(0.3, 0.1)
  # Some steps of all replicas but one are padding.
  batch = _batch(math.ceil(10 / n), n)
  mine, old, loss, examples, num = _oracle(
    n, values, batch, schedule, SPEC, start
  )
  state, metrics = _step(strategy, state, batch, schedule)
  for k in values:
    found = np.asarray(state.tables[k].vectors)
    assert found.shape == (n, VOCAB, DIM)
    for replica in range(n):
      np.testing.assert_allclose(found[replica], mine[replica][k], 1e-5, 2e-5)
    np.testing.assert_allclose(state.exchanged[k].vectors, old[k], 1e-5, 2e-5)
    if start:
      continue  # rows of all levels were exchanged in the end
    # Some rows were exchanged, some were learned alone, some not at all.
    apart = np.abs(found[0] - found[1]).max(1) > 1e-4
    moved = np.abs(found[0] - values[k]).max(1) > 1e-4
    assert apart.any() and (moved & ~apart).any() and (~moved).any()
  assert int(state.num_exchanges) == num
  np.testing.assert_allclose(metrics.steps.loss, loss, 1e-5)
  assert metrics.steps.examples == examples
  assert metrics.steps.first_bad_step == -1
  assert metrics.num_steps == math.ceil(10 / n)
  assert metrics.kept_words == batch.kept_words.sum()
  assert metrics.pairs == batch.pairs.sum()
  expected = old['input'] + sum(x['input'] - old['input'] for x in mine)
  np.testing.assert_allclose(
    strategy.export_rows(state, 'input').rows, expected, 1e-5, 5e-5
  )


def test_one_step_each_is_one_step_of_both():
  """Exchanged in every step, remembering all: a larger synchronous batch."""
  spec = timetables.ExchangeSpec(1, 1e9, 1e9, 0.3)
  spec = replicas.dataclasses.replace(spec, lookups=1e-6)
  _, strategy = _make(2, spec)
  state, values = _start(strategy)
  batch, schedule = _batch(1, 2), _schedule(0.01, 0.01)
  state, _ = _step(strategy, state, batch, schedule)
  _, alone = _make_alone(2)
  total = {k: np.array(v) for k, v in values.items()}
  single = jax.device_get(alone.init(jax.random.key(0)))
  for replica in range(2):
    # The other part is padding: the draws are the same.
    half = jax.tree.map(np.copy, batch)
    half.ids[1 - replica] = VOCAB
    half.left[1 - replica] = half.right[1 - replica] = 0
    start = base.TrainState(
      {
        k: t._replace(vectors=jnp.array(values[k]))
        for k, t in single.tables.items()
      }
    )
    after, _ = _step(alone, start, half, schedule)
    for k in total:
      total[k] += np.asarray(after.tables[k].vectors) - values[k]
  for k in total:
    np.testing.assert_allclose(state.exchanged[k].vectors, total[k], 1e-4, 1e-5)


@every_number
def test_first_bad_step_of_any_replica(n):
  _, strategy = _make(n)
  batch, schedule = _batch(4, n), _schedule(0.01, 0.01)
  bad_word = VOCAB - 1
  for part, bad_step in ((0, 1), (n - 1, 2)):
    state, _ = _start(strategy)
    vectors = np.array(state.tables['input'].vectors)
    vectors[:, bad_word] = np.inf
    table = state.tables['input']._replace(
      vectors=jax.device_put(vectors, state.tables['input'].vectors.sharding)
    )
    # A word of which only one replica knows that its row is not finite.
    bad = jax.tree.map(np.copy, batch)
    bad.ids[bad.ids == bad_word] = 0
    place = bad_step * BATCH_WORDS
    bad.ids[part, WINDOW + place : WINDOW + place + 2] = [bad_word, 1]
    bad.right[part, place], bad.left[part, place + 1] = 1, 1
    state = state._replace(tables=state.tables | {'input': table})
    _, metrics = _step(strategy, state, bad, schedule)
    assert metrics.steps.first_bad_step == bad_step


def _exchanged_alike(specs, rows, lookups, num_replicas, key):
  """Tables, and what was exchanged last, where replicas have had the same."""
  num = len(next(iter(lookups.values())))

  tables = {
    k: replicated.Replicated(x, rowopt.sgd(0)) for k, x in specs.items()
  }
  states = {k: spec_lib.TableState(x) for k, x in rows.items()}

  def exchange(states):
    found = replicas._exchange_chunk(
      jnp.int32(0), states, states, lookups, jnp.float32(0.1), num,
      num_replicas, tables, key,
    )  # fmt: skip
    return jax.tree.map(lambda x: x.vectors, found, is_leaf=_is_state)

  everywhere = jax.sharding.PartitionSpec()
  run = jax.shard_map(
    exchange,
    mesh=mesh.make(mesh.Shape(num_replicas, 1)),
    in_specs=everywhere,
    out_specs=everywhere,
    check_vma=False,
  )
  return jax.device_get(jax.jit(run)(states))


def _is_state(x):
  return isinstance(x, spec_lib.TableState)


def test_an_exchange_of_what_is_alike_changes_nothing():
  """Whatever the tables travel in, one of them wider than the other."""
  specs = {
    'wide': spec_lib.TableSpec('wide', 8, 3, 0.0),
    'few': spec_lib.TableSpec('few', 8, 3, 0.0, exchange_dtype='bfloat16'),
  }
  rows = {name: jnp.full((8, 3), 0.3) for name in specs}
  lookups = {name: jnp.ones(8) for name in specs}
  key = jnp.zeros(2, jnp.uint32)
  for tables in _exchanged_alike(specs, rows, lookups, 2, key):
    for name, array in tables.items():
      np.testing.assert_allclose(array, rows[name], 1e-6)


@pytest.mark.parametrize('dtype', ['bfloat16', 'int8'])
def test_exchanged_rows_are_rounded_alike(dtype):
  """As float32 but for one rounding."""
  devices, num = mesh.make(mesh.Shape(2, 1)), 40
  spec = spec_lib.TableSpec('t', num, 8, 0.0, dtype, 'stochastic')
  table = replicated.Replicated(spec, rowopt.sgd(0))
  rng = np.random.default_rng(0)
  base_rows = rng.normal(size=(num, 8)).astype(np.float32)
  moved = base_rows + 0.1 * rng.normal(size=(2, num, 8)).astype(np.float32)
  old = jax.device_get(rounding.encode(base_rows, dtype))
  mine = [jax.device_get(rounding.encode(x, dtype)) for x in moved]
  lookups, forgetting = np.full(num, 3, np.float32), jnp.float32(0.1)

  def exchange(mine, old):
    mine = spec_lib.TableState(jax.tree.map(lambda x: x[0], mine))
    found = replicas._exchange_chunk(
      jnp.int32(0), {'t': mine}, {'t': spec_lib.TableState(old)},
      {'t': lookups}, forgetting, num, 2, {'t': table}, KEY,
    )  # fmt: skip
    return jax.tree.map(lambda x: x[None], [x['t'].vectors for x in found])

  everywhere = jax.sharding.PartitionSpec()
  over = jax.sharding.PartitionSpec(mesh.DATA)
  exchanged = jax.jit(
    jax.shard_map(
      exchange,
      mesh=devices,
      in_specs=(over, everywhere),
      out_specs=over,
      check_vma=False,
    )
  )(jax.tree.map(lambda *x: np.stack(x), *mine), old)
  found, common = jax.device_get(exchanged)
  for each in (found, common):
    for copy in range(2):
      jax.tree.map(
        lambda x, y, i=copy: np.testing.assert_array_equal(x[i], y[0]),
        each,
        found,
      )
  old, *mine = (blocks.from_stored(x, dtype).decode() for x in (old, *mine))
  wanted = old + (1 + math.exp(-0.3)) / 2 * sum(x - old for x in mine)
  kept = jax.tree.map(lambda x: x[0], found)
  values = blocks.from_stored(kept, dtype).decode()
  steps = np.abs(values) * 2.0**-7
  if dtype == 'int8':
    steps = room = kept.scales[:, None] + np.zeros_like(values)
    room = 127 * steps
    assert (np.abs(wanted) > room).any()
    wanted = np.clip(wanted, -room, room)
  assert (np.abs(values - wanted) <= 1.001 * steps + 1e-6).all()
  assert (values != np.round(wanted, 7)).any()


@pytest.mark.parametrize('dim', [1, 5, 64])
@pytest.mark.parametrize('num_replicas', [2, 3])
def test_rows_that_no_replica_has_changed_stay_as_they_are(num_replicas, dim):
  num = 2000
  spec = spec_lib.TableSpec('t', num, dim, 0.0, 'int8', 'stochastic')
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(num, dim)).astype(np.float32)
  rows[::3] = rng.standard_t(2, size=rows[::3].shape)  # with outliers
  rows[1::3] *= rng.uniform(0.8, 1, (len(rows[1::3]), 1))
  rows[0] = 0
  codec, ids = codecs.Codec(spec), np.arange(num)
  old = codec.encode(jnp.asarray(rows), ids, KEY)
  rows[1::3] *= 0.95  # written once more, with the same scales or finer ones
  old = codec.encode(jnp.asarray(rows), ids, KEY, codec.encoding_of(old))
  old = jax.device_get(old)
  # Some have the least code that their largest number may have.
  codes = np.where(np.arange(num)[:, None] % 4, old.codes, 120)
  old = rounding.Scaled(codes.astype(np.int8), old.scales)
  lookups = {'t': np.full(num, 3, np.float32)}
  exchanged = _exchanged_alike(
    {'t': spec}, {'t': old}, lookups, num_replicas, KEY
  )
  for tables in exchanged:
    jax.tree.map(np.testing.assert_array_equal, tables['t'], old)


def test_exported_rows_have_the_scales_of_rows_that_nobody_changed():
  inside = _make(3)[1].export_rows.__self__
  spec = spec_lib.TableSpec('input', 500, 8, 0.0, 'int8', 'stochastic')
  table = replicated.Replicated(spec, rowopt.sgd(0))
  inside = replicas.dataclasses.replace(inside, tables={'input': table})
  rng = np.random.default_rng(0)
  codes = rng.integers(-120, 121, (500, 8)).astype(np.int8)
  codes[:, 0] = np.where(np.arange(500) % 2, 120, 127)
  old = rounding.Scaled(codes, np.full(500, 0.0078125, np.float32))
  mine = jax.tree.map(lambda x: np.stack([x] * 3), old)
  moved = mine.codes[1, -100:]
  moved[:] = np.clip(moved + 3, -127, 127)
  state = replicas.ReplicaState(
    {'input': spec_lib.TableState(mine)}, {'input': spec_lib.TableState(old)}, 0
  )
  found = inside.export_rows(jax.tree.map(jnp.asarray, state), 'input').encoded
  expected = codes.copy()
  expected[-100:] = moved
  np.testing.assert_array_equal(found.data, expected)
  np.testing.assert_array_equal(found.scales, old.scales)


def test_more_steps_between_exchanges_leave_replicas_further_apart():
  def apart(spec):
    _, strategy = _make(2, spec)
    state, _ = _start(strategy)
    state, _ = _step(strategy, state, _batch(6, 2), _schedule(0.3, 0.3))
    found = np.asarray(state.tables['input'].vectors)
    return np.abs(found[0] - found[1]).mean()

  seldom = replicas.dataclasses.replace(SPEC, lookups=1e3)
  often = replicas.dataclasses.replace(SPEC, lookups=1e-3)
  assert apart(often) == 0
  assert apart(seldom) > apart(SPEC) > 0


@pytest.mark.parametrize('vocab', [1, 7, 1024, 1025, 5000, 100_000])
def test_timetable(vocab):
  rates = 1 / (3 + np.arange(vocab, dtype=np.float64))
  rates /= rates.sum()
  spec = timetables.ExchangeSpec(16, 8.0, 200.0, 0.1)
  table = timetables.timetable({'a': rates, 'b': rates / 9}, 256, spec)
  assert table.chunk_rows == min(vocab, 1024)
  assert (np.diff(table.due) >= 0).all()
  assert table.due[-1] * table.chunk_rows >= vocab  # every row has its time
  for row in {0, vocab // 2, vocab - 1}:
    chunk = row // table.chunk_rows
    level = int(np.argmax(table.due > chunk))
    steps = 16 * 4.0**level
    expected = rates[row] * 256 * steps
    np.testing.assert_allclose(table.lookups['a'][row], expected, 1e-5)
    np.testing.assert_allclose(table.lookups['b'][row], expected / 9, 1e-5)
    hottest = rates[chunk * table.chunk_rows] * 256
    # The level is the first at which the hottest row has its look-ups.
    assert hottest * steps >= 8 * (1 - 1e-9)
    assert level == 0 or hottest * steps / 4 < 8


def test_timetable_of_rows_out_of_order():
  # A frequent row behind rare ones is exchanged in time all the same.
  rates = np.full(4096, 1e-6)
  rates[3000] = 0.5
  spec = timetables.ExchangeSpec(1, 8.0, 200.0, 0.1)
  table = timetables.timetable({'a': rates, 'b': rates / 9}, 256, spec)
  assert table.due[0] == 3  # the chunks up to row 3071
  assert table.due[-1] == 4


def test_gain_is_that_of_a_quadratic_bowl():
  # n replicas of m steps each, against n m steps one after the other.
  slope, m, start = 0.01, 30, 5.0
  forgetting = -math.log(1 - slope)
  for n in (2, 3, 8):
    alone = start * (1 - slope) ** m
    serial = start * (1 - slope) ** (m * n)
    gain = replicas.gain(jnp.array([m * forgetting], jnp.float32), n)
    assert start + float(gain[0]) * n * (alone - start) == pytest.approx(
      serial, rel=1e-5
    )


def test_gain_goes_from_the_sum_to_the_mean():
  lookups = jnp.array([0.0, 1e-6, 1.0, 5.0, 1e6], jnp.float32)
  found = np.asarray(replicas.gain(lookups, 4))
  assert found[0] == 1 and found[-1] == 0.25
  assert (np.diff(found) <= 0).all() and found[2] < 0.9
