"""A dispatch of many steps against the oracle's loop over the same steps."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb import mesh
from jaxemb.data import loader
from jaxemb.models import base as model_base
from jaxemb.models import cbow, skipgram
from jaxemb.ops import rowopt
from jaxemb.strategies import base, sync
from jaxemb.tables import sharded
from tests import oracle

VOCAB, DIM, WINDOW, CHUNK = 40, 6, 3, 4
BATCH_WORDS, NEGATIVES, SHARED = 16, 5, 3
MAX_STEPS, NUM_STEPS = 8, 6
LOSS_EVERY = 4
KEY = np.array([0xA4093822, 0x299F31D0], np.uint32)

MODELS = {
  'skipgram': (skipgram.SkipGram, oracle.skipgram),
  'cbow': (cbow.Cbow, oracle.cbow),
}
OPTIMIZERS = {
  'sgd': (rowopt.sgd(0), functools.partial(oracle.sgd, max_duplicates=0)),
  'sgd_limited': (
    rowopt.sgd(2),
    functools.partial(oracle.sgd, max_duplicates=2),
  ),
  'adagrad': (
    rowopt.adagrad(1e-6),
    functools.partial(oracle.adagrad, epsilon=1e-6),
  ),
  'adam': (
    rowopt.adam(0.9, 0.999, 1e-6),
    functools.partial(oracle.adam, beta1=0.9, beta2=0.999, epsilon=1e-6),
  ),
}
RATES = {'sgd': 0.3, 'sgd_limited': 0.3, 'adagrad': 0.2, 'adam': 0.02}

every_model = pytest.mark.parametrize('model_name', MODELS)
every_optimizer = pytest.mark.parametrize('optimizer_name', OPTIMIZERS)


class Made(NamedTuple):
  """A strategy and what it is made of."""

  model: model_base.Model
  strategy: base.Strategy


@functools.cache
def _make(model_name, optimizer_name, loss_every=LOSS_EVERY):
  spec = model_base.WindowSpec(VOCAB, DIM, WINDOW, NEGATIVES, CHUNK, SHARED)
  counts = 1000 // np.arange(1, VOCAB + 1)
  model = MODELS[model_name][0](spec, skipgram.negative_distribution(counts))
  tables = {
    name: sharded.replicated(table, OPTIMIZERS[optimizer_name][0])
    for name, table in model.specs().items()
  }
  spec = base.StepSpec(BATCH_WORDS, WINDOW, loss_every)
  strategy = sync.sync(model, tables, spec, mesh.data_mesh(1))
  return Made(model, strategy)


def _batch(num_steps=NUM_STEPS, seed=0, vocab=VOCAB):
  rng = np.random.default_rng(seed)
  # The last step in use is half empty.
  words = max(num_steps * BATCH_WORDS - BATCH_WORDS // 2, 0)
  sentences = oracle.random_sentences(rng, vocab, words, (1, 4, 11))
  size = MAX_STEPS * BATCH_WORDS
  return loader.Batch(
    *oracle.pack(sentences, VOCAB, size, WINDOW, rng), num_steps
  )


def _schedule(first, last, key=KEY):
  return base.Schedule(np.float32(first), np.float32(last), key)


def _start(made, seed=0):
  """A state with rows of training's size in both tables."""
  state = made.strategy.init(jax.random.key(0))
  rng = np.random.default_rng(seed)
  return base.TrainState(
    {
      name: table._replace(
        vectors=jnp.asarray(rng.normal(size=(VOCAB, DIM)) / 2, jnp.float32)
      )
      for name, table in sorted(state.tables.items())
    }
  )


def _copy(state):
  return jax.tree.map(jnp.array, state)


def _vectors(state):
  return {k: np.array(table.vectors) for k, table in state.tables.items()}


def _step_of(batch, i):
  tokens = oracle.middle(
    oracle.Tokens(*batch[:3]), i * BATCH_WORDS, BATCH_WORDS
  )
  return model_base.StepBatch(*tokens)


def _oracle_dispatch(model_name, optimizer_name, vectors, batch, schedule):
  """The tables behind every step, and (loss, examples) of every step."""
  made = _make(model_name, optimizer_name)
  ids_of = jax.jit(made.model.ids)
  vectors = {k: v.astype(np.float64) for k, v in vectors.items()}
  slots = {k: {} for k in vectors}
  first = float(schedule.first_learning_rate)
  last = float(schedule.last_learning_rate)
  measured = []
  for i in range(batch.num_steps):
    step = _step_of(batch, i)
    # Only the draws are taken from the model.
    ids = ids_of(made.model.constants(), step, schedule.key, jnp.int32(i))
    draws = np.asarray(ids[skipgram.OUTPUT])
    draws = draws.reshape(BATCH_WORDS // CHUNK, -1)[:, -SHARED:]
    truth = MODELS[model_name][1](
      *step, draws, vectors, WINDOW, CHUNK, NEGATIVES
    )
    measured.append((truth.loss, truth.examples))
    rate = first + (last - first) * i / batch.num_steps
    for k in vectors:
      OPTIMIZERS[optimizer_name][1](
        vectors[k], slots[k], truth.ids[k], truth.grads[k], rate
      )
  return vectors, measured


@every_model
@every_optimizer
def test_a_dispatch_equals_the_loops(model_name, optimizer_name):
  made = _make(model_name, optimizer_name)
  batch = _batch()
  rate = RATES[optimizer_name]
  # The rate falls by half, so a wrong interpolation shows.
  schedule = _schedule(rate, rate / 2)
  state = _start(made)
  expected, measured = _oracle_dispatch(
    model_name, optimizer_name, _vectors(state), batch, schedule
  )
  start = _vectors(state)
  state, metrics = made.strategy.step(
    state, made.model.constants(), batch, schedule
  )
  for k, vectors in _vectors(state).items():
    np.testing.assert_allclose(vectors, expected[k], 1e-5, 1e-5)
    assert np.abs(vectors - start[k]).max() > 0.05
  # The loss is that of the steps 0, 4, ..., before their updates.
  losses, examples = zip(*measured[::LOSS_EVERY], strict=True)
  np.testing.assert_allclose(metrics.loss, sum(losses), 1e-5)
  assert metrics.examples == sum(examples)
  assert metrics.first_bad_step == -1
  for table in state.tables.values():
    if hasattr(table.slots, 'scratch'):
      assert not np.asarray(table.slots.scratch).any()


@pytest.mark.parametrize('loss_every', [1, 5, 100])
def test_loss_of_every_nth_step(loss_every):
  made = _make('skipgram', 'sgd', loss_every)
  batch, schedule = _batch(), _schedule(0.1, 0.1)
  state = _start(made)
  _, measured = _oracle_dispatch(
    'skipgram', 'sgd', _vectors(state), batch, schedule
  )
  state, metrics = made.strategy.step(
    state, made.model.constants(), batch, schedule
  )
  losses, examples = zip(*measured[::loss_every], strict=True)
  np.testing.assert_allclose(metrics.loss, sum(losses), 1e-5)
  assert metrics.examples == sum(examples)
  # How often the loss is measured does not change what is learned.
  other = _make('skipgram', 'sgd')
  again, _ = other.strategy.step(
    _start(other), made.model.constants(), batch, schedule
  )
  for k, vectors in _vectors(again).items():
    np.testing.assert_allclose(vectors, _vectors(state)[k], 1e-6, 1e-6)


def test_learning_rate_of_each_step():
  # One word pair in every step, its gradient known: the rates come back.
  made = _make('skipgram', 'sgd')
  batch = _batch(0)
  vocab_rows = 2 * np.arange(MAX_STEPS)
  for i in range(MAX_STEPS):
    place = i * BATCH_WORDS
    batch.ids[WINDOW + place : WINDOW + place + 2] = vocab_rows[i] + [0, 1]
    batch.right[place], batch.left[place + 1] = 1, 1
  first, last, num_steps = 0.8, 0.2, 5
  state = _start(made)
  zeros = jnp.zeros((VOCAB, DIM), jnp.float32)
  tables = dict(state.tables)
  tables['output'] = tables['output']._replace(vectors=zeros)
  inputs = np.array(tables['input'].vectors)
  # Negatives come from a row that no pair has.
  weights = np.eye(VOCAB)[VOCAB - 1]
  state, _ = made.strategy.step(
    base.TrainState(tables),
    skipgram.negative_distribution(weights),
    batch._replace(num_steps=num_steps),
    _schedule(first, last),
  )
  outputs = _vectors(state)['output']
  for i in range(MAX_STEPS):
    # u = 0, so sigmoid - label = -1/2: the context moves by rate * v / 2.
    rate = first + (last - first) * i / num_steps if i < num_steps else 0
    word = vocab_rows[i]
    np.testing.assert_allclose(
      outputs[word + 1], rate * inputs[word] / 2, 1e-5, 1e-7
    )


@every_optimizer
def test_steps_behind_num_steps_are_not_taken(optimizer_name):
  made = _make('skipgram', optimizer_name)
  schedule = _schedule(0.1, 0.1)
  full = _batch(MAX_STEPS)
  two = full._replace(num_steps=2)
  cut = [x.copy() for x in full[:3]]
  # Behind two steps and their halo there is nothing but padding.
  cut[0][2 * BATCH_WORDS + 2 * WINDOW :] = VOCAB
  cut[1][2 * BATCH_WORDS :] = cut[2][2 * BATCH_WORDS :] = 0
  constants = made.model.constants()
  state = _start(made)
  first, first_metrics = made.strategy.step(
    _copy(state), constants, two, schedule
  )
  second, second_metrics = made.strategy.step(
    _copy(state), constants, loader.Batch(*cut, 2), schedule
  )
  jax.tree.map(
    np.testing.assert_array_equal,
    (first, first_metrics),
    (second, second_metrics),
  )
  none, metrics = made.strategy.step(
    _copy(state), constants, full._replace(num_steps=0), schedule
  )
  jax.tree.map(np.testing.assert_array_equal, none, state)
  assert tuple(metrics) == (0, 0, -1)


@pytest.mark.parametrize(
  ('bad_step', 'loss_every', 'expected'),
  [(0, 1, 0), (3, 1, 3), (3, 4, 4), (5, 1, 5), (5, 4, -1), (7, 1, -1)],
)
def test_first_bad_step(bad_step, loss_every, expected):
  # A word occurs in one step only, and its row is not finite. What is measured
  # next shows it; steps that are not taken do not.
  bad_word = VOCAB // 2
  made = _make('skipgram', 'sgd', loss_every)
  batch = _batch(NUM_STEPS, vocab=bad_word)
  place = bad_step * BATCH_WORDS
  batch.ids[WINDOW + place : WINDOW + place + 4] = [0, bad_word, 1, 2]
  batch.left[place : place + 4] = [0, 1, 2, 3]
  batch.right[place : place + 4] = [3, 2, 1, 0]
  state = _start(made)
  tables = dict(state.tables)
  vectors = tables['input'].vectors.at[bad_word].set(jnp.inf)
  tables['input'] = tables['input']._replace(vectors=vectors)
  weights = (np.arange(VOCAB) < bad_word).astype(float)
  _, metrics = made.strategy.step(
    base.TrainState(tables),
    skipgram.negative_distribution(weights),
    batch,
    _schedule(0.1, 0.1),
  )
  assert metrics.first_bad_step == expected


def test_training_step_alone():
  # What `sync` calls, by itself: the loss only if wanted.
  made = _make('skipgram', 'adagrad')
  tables = {
    name: sharded.replicated(table, OPTIMIZERS['adagrad'][0])
    for name, table in made.model.specs().items()
  }
  batch, schedule = _batch(), _schedule(0.2, 0.2)
  state = _start(made)
  expected, measured = _oracle_dispatch(
    'skipgram',
    'adagrad',
    _vectors(state),
    batch._replace(num_steps=1),
    schedule,
  )

  @jax.jit
  def step(states, constants, measure):
    return base.training_step(
      made.model,
      tables,
      states,
      constants,
      jax.tree.map(jnp.asarray, _step_of(batch, 0)),
      jnp.asarray(KEY),
      jnp.int32(0),
      jnp.float32(0.2),
      measure,
    )

  for measure in (True, False):
    states, loss = step(state.tables, made.model.constants(), measure)
    for k, table in states.items():
      np.testing.assert_allclose(table.vectors, expected[k], 1e-5, 1e-6)
    np.testing.assert_allclose(loss, measured[0][0] if measure else 0, 1e-5)


def test_init_and_result():
  made = _make('skipgram', 'adam')
  state = made.strategy.init(jax.random.key(3))
  assert state.tables.keys() == made.model.specs().keys()
  inputs = np.asarray(state.tables['input'].vectors)
  assert 0.45 / DIM < np.abs(inputs).max() <= 0.5 / DIM
  assert not np.asarray(state.tables['output'].vectors).any()
  result = made.strategy.result(state)
  assert isinstance(result, np.ndarray) and result.dtype == np.float32
  np.testing.assert_array_equal(result, inputs)
