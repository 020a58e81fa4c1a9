"""A dispatch of many steps against the oracle's loop over the same steps.

On one device, and on meshes with the corpus in parts and tables in all layouts.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb import build
from jaxemb.models import base as model_base
from jaxemb.models import cbow, skipgram
from jaxemb.ops import wire
from jaxemb.runtime import mesh
from jaxemb.strategies import base, sync
from jaxemb.tables import row_optimizers as rowopt
from jaxemb.tables import spec as spec_lib
from jaxemb.text import loader
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


class Place(NamedTuple):
  """Where a step is made."""

  parts: int = 1
  shape: tuple[int, int] = (1, 1)
  layout: str = 'replicated'


ALONE = Place()
MESHES = {
  'parts': Place(4),
  # Devices of a table axis have parts of their own, or halves of the same.
  'replicated': Place(4, (2, 2)),
  'row': Place(2, (2, 2), 'row'),
  'column': Place(2, (2, 2), 'column'),
}


class Made(NamedTuple):
  """A strategy and what it is made of."""

  model: model_base.Model
  tables: dict[str, spec_lib.Table]
  strategy: base.Strategy
  place: Place

  @property
  def part_words(self):
    """Centers of each part in a step."""
    return BATCH_WORDS // self.place.parts

  def step(self, state, batch, schedule, constants=None):
    """A dispatch; the state is gone behind it."""
    if constants is None:
      constants = self.model.constants()
    return self.strategy.step(
      jax.device_put(state, self.strategy.state_sharding),
      jax.device_put(constants, self.strategy.constants_sharding),
      jax.device_put(batch, self.strategy.batch_sharding),
      schedule,
    )


@functools.cache
def _make(model_name, optimizer_name, loss_every=LOSS_EVERY, place=ALONE):
  devices = mesh.make(mesh.Shape(*place.shape))
  is_split = place.layout == 'column'
  spec = model_base.WindowSpec(
    VOCAB,
    DIM,
    WINDOW,
    NEGATIVES,
    CHUNK,
    SHARED,
    wire.Axis(mesh.TABLE) if is_split else None,
  )
  counts = 1000 // np.arange(1, VOCAB + 1)
  model = MODELS[model_name][0](spec, skipgram.negative_distribution(counts))
  axes = spec_lib.Axes(mesh.DATA, mesh.TABLE, *place.shape)
  tables = {
    name: build.LAYOUTS[place.layout](
      table, OPTIMIZERS[optimizer_name][0], axes
    )
    for name, table in model.specs().items()
  }
  spec = base.StepSpec(
    BATCH_WORDS // place.parts, place.parts, WINDOW, CHUNK, loss_every
  )
  strategy = sync.sync(model, tables, spec, devices, not is_split)
  return Made(model, tables, strategy, place)


def _batch(num_steps=NUM_STEPS, seed=0, vocab=VOCAB, parts=1):
  """The parts of a batch; all but the first one end a step early each."""
  rng = np.random.default_rng(seed)
  part_words = BATCH_WORDS // parts
  size = MAX_STEPS * part_words
  arrays, kept = [], []
  for i in range(parts):
    # The last step in use is half empty.
    words = max((num_steps - i) * part_words - part_words // 2, 0)
    sentences = oracle.random_sentences(rng, vocab, words, (1, 4, 11))
    arrays.append(oracle.pack(sentences, VOCAB, size, WINDOW, rng))
    kept.append(words)
  ids, left, right = map(np.stack, zip(*arrays, strict=True))
  pairs = (left.astype(int) + right).sum(1)
  kept = np.array(kept, np.int32)
  return loader.Batch(
    ids, left, right, -(-kept // part_words), kept, pairs.astype(np.int32)
  )


def _with_steps(batch, num_steps):
  """So many steps in use, whatever there is in the others."""
  return batch._replace(num_steps=np.full_like(batch.num_steps, num_steps))


def _schedule(first, last, key=KEY):
  return base.Schedule(np.float32(first), np.float32(last), key)


def _with_vectors(made, state, vectors):
  """A state with these rows, in the form of the layout."""
  layout, num_table = made.place.layout, made.place.shape[1]
  tables = {
    k: table._replace(
      vectors=jnp.asarray(oracle.in_layout(layout, vectors[k], num_table))
    )
    for k, table in state.tables.items()
  }
  return base.TrainState(tables)


def _start(made, seed=0):
  """A state with rows of training's size in both tables; slots are zero."""
  shapes = jax.eval_shape(made.strategy.init, jax.random.key(0))
  state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  rng = np.random.default_rng(seed)
  vectors = {
    k: (rng.normal(size=(VOCAB, DIM)) / 2).astype(np.float32)
    for k in sorted(state.tables)
  }
  return _with_vectors(made, state, vectors)


def _copy(state):
  return jax.tree.map(jnp.array, state)


def _vectors(state, place=ALONE):
  return {
    k: np.array(oracle.by_id(place.layout, table.vectors, VOCAB, DIM))
    for k, table in state.tables.items()
  }


def _step_of(batch, i):
  """The whole of a step, of which devices have their shares."""
  part_words = BATCH_WORDS // len(batch.ids)
  runs = [
    oracle.middle(oracle.Tokens(*run), i * part_words, part_words)
    for run in zip(*batch[:3], strict=True)
  ]
  num_chunks = BATCH_WORDS // CHUNK
  chunks = i * num_chunks + np.arange(num_chunks, dtype=np.uint32)
  return model_base.StepBatch(*map(np.stack, zip(*runs, strict=True)), chunks)


def _oracle_dispatch(model_name, optimizer_name, vectors, batch, schedule):
  """The tables behind every step, and (loss, examples) of every step."""
  made = _make(model_name, optimizer_name)
  ids_of = jax.jit(made.model.ids)
  vectors = {k: v.astype(np.float64) for k, v in vectors.items()}
  slots = {k: {} for k in vectors}
  first = float(schedule.first_learning_rate)
  last = float(schedule.last_learning_rate)
  measured = []
  num_steps = batch.num_steps.max()
  for i in range(num_steps):
    step = _step_of(batch, i)
    # Only the draws are taken from the model.
    ids = ids_of(made.model.constants(), step, schedule.key)
    draws = np.asarray(ids[skipgram.OUTPUT])
    draws = draws.reshape(BATCH_WORDS // CHUNK, -1)[:, -SHARED:]
    truth = oracle.in_runs(
      MODELS[model_name][1],
      *step[:3],
      draws,
      vectors,
      WINDOW,
      CHUNK,
      NEGATIVES,
    )
    measured.append((truth.loss, truth.examples))
    rate = first + (last - first) * i / num_steps
    for k in vectors:
      OPTIMIZERS[optimizer_name][1](
        vectors[k], slots[k], truth.ids[k], truth.grads[k], rate
      )
  return vectors, measured


def _check_a_dispatch(model_name, optimizer_name, place):
  made = _make(model_name, optimizer_name, place=place)
  batch = _batch(parts=place.parts)
  rate = RATES[optimizer_name]
  # The rate falls by half, so a wrong interpolation shows.
  schedule = _schedule(rate, rate / 2)
  state = _start(made)
  start = _vectors(state, place)
  expected, measured = _oracle_dispatch(
    model_name, optimizer_name, start, batch, schedule
  )
  state, metrics = made.step(state, batch, schedule)
  for k, vectors in _vectors(state, place).items():
    np.testing.assert_allclose(vectors, expected[k], 1e-5, 1e-5)
    assert np.abs(vectors - start[k]).max() > 0.05
  # The loss is that of the steps 0, 4, ..., before their updates.
  losses, examples = zip(*measured[::LOSS_EVERY], strict=True)
  np.testing.assert_allclose(metrics.steps.loss, sum(losses), 1e-5)
  assert metrics.steps.examples == sum(examples)
  assert metrics.steps.first_bad_step == -1
  assert metrics.num_steps == NUM_STEPS
  assert metrics.kept_words == batch.kept_words.sum()
  assert metrics.pairs == batch.pairs.sum()
  for table in state.tables.values():
    if hasattr(table.slots, 'scratch'):
      assert not np.asarray(table.slots.scratch).any()


@every_model
@every_optimizer
def test_a_dispatch_equals_the_loops(model_name, optimizer_name):
  _check_a_dispatch(model_name, optimizer_name, ALONE)


@pytest.mark.parametrize('place', MESHES.values(), ids=MESHES)
@pytest.mark.parametrize(
  ('model_name', 'optimizer_name'),
  [('skipgram', 'sgd_limited'), ('cbow', 'adagrad')],
)
def test_a_dispatch_of_several_parts(model_name, optimizer_name, place):
  _check_a_dispatch(model_name, optimizer_name, place)


@pytest.mark.parametrize('loss_every', [1, 5, 100])
def test_loss_of_every_nth_step(loss_every):
  made = _make('skipgram', 'sgd', loss_every)
  batch, schedule = _batch(), _schedule(0.1, 0.1)
  state = _start(made)
  _, measured = _oracle_dispatch(
    'skipgram', 'sgd', _vectors(state), batch, schedule
  )
  state, metrics = made.step(state, batch, schedule)
  losses, examples = zip(*measured[::loss_every], strict=True)
  np.testing.assert_allclose(metrics.steps.loss, sum(losses), 1e-5)
  assert metrics.steps.examples == sum(examples)
  # How often the loss is measured does not change what is learned.
  other = _make('skipgram', 'sgd')
  again, _ = other.step(_start(other), batch, schedule)
  for k, vectors in _vectors(again).items():
    np.testing.assert_allclose(vectors, _vectors(state)[k], 1e-6, 1e-6)


def test_learning_rate_of_each_step():
  # One word pair in every step, its gradient known: the rates come back.
  made = _make('skipgram', 'sgd')
  batch = _batch(0)
  vocab_rows = 2 * np.arange(MAX_STEPS)
  for i in range(MAX_STEPS):
    place = i * BATCH_WORDS
    inside = slice(WINDOW + place, WINDOW + place + 2)
    batch.ids[0, inside] = vocab_rows[i] + [0, 1]
    batch.right[0, place], batch.left[0, place + 1] = 1, 1
  first, last, num_steps = 0.8, 0.2, 5
  state = _start(made)
  zeros = np.zeros((VOCAB, DIM), np.float32)
  vectors = _vectors(state) | {'output': zeros}
  inputs = vectors['input']
  # Negatives come from a row that no pair has.
  weights = np.eye(VOCAB)[VOCAB - 1]
  state, _ = made.step(
    _with_vectors(made, state, vectors),
    _with_steps(batch, num_steps),
    _schedule(first, last),
    skipgram.negative_distribution(weights),
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
  cut = jax.tree.map(np.copy, _with_steps(full, 2))
  # Behind two steps and their halo there is nothing but padding.
  cut.ids[:, 2 * BATCH_WORDS + 2 * WINDOW :] = VOCAB
  cut.left[:, 2 * BATCH_WORDS :] = cut.right[:, 2 * BATCH_WORDS :] = 0
  state = _start(made)
  first, first_metrics = made.step(_copy(state), _with_steps(full, 2), schedule)
  second, second_metrics = made.step(_copy(state), cut, schedule)
  jax.tree.map(
    np.testing.assert_array_equal,
    (first, first_metrics),
    (second, second_metrics),
  )
  none, metrics = made.step(_copy(state), _with_steps(full, 0), schedule)
  jax.tree.map(np.testing.assert_array_equal, none, state)
  assert tuple(metrics.steps) == (0, 0, -1, 0) and metrics.num_steps == 0


@pytest.mark.parametrize('place', [ALONE, MESHES['replicated']])
def test_parts_end_at_different_times(place):
  # As many steps as the longest part has; the others have padding in theirs.
  place = place._replace(parts=4)
  made = _make('skipgram', 'sgd', place=place)
  batch, schedule = _batch(parts=4), _schedule(0.1, 0.1)
  for num_steps in ([3, 2, 0, 1], [0, 0, 0, 3]):
    some = batch._replace(num_steps=np.array(num_steps, np.int32))
    _, metrics = made.step(_start(made), some, schedule)
    assert metrics.num_steps == 3
  _, metrics = made.step(_start(made), _with_steps(batch, 0), schedule)
  assert metrics.num_steps == 0 and metrics.steps.examples == 0
  # What was counted of the batch is handed on as it is.
  assert metrics.kept_words == batch.kept_words.sum()


@pytest.mark.parametrize(
  ('bad_step', 'loss_every', 'expected'),
  [(0, 1, 0), (3, 1, 3), (3, 4, 4), (5, 1, 5), (5, 4, -1), (7, 1, -1)],
)
def test_first_bad_step(bad_step, loss_every, expected):
  made = _make('skipgram', 'sgd', loss_every)
  assert _first_bad_step(made, bad_step, 0) == expected


@pytest.mark.parametrize('place', MESHES.values(), ids=MESHES)
def test_first_bad_step_of_any_device(place):
  # One of them sees it first; all tell of it.
  made = _make('skipgram', 'sgd', 1, place)
  for part, bad_step in ((0, 2), (place.parts - 1, 0)):
    assert _first_bad_step(made, bad_step, part) == bad_step


def _first_bad_step(made, bad_step, part):
  # A word occurs in one step only, and its row is not finite. What is measured
  # next shows it; steps that are not taken do not.
  bad_word = VOCAB // 2
  batch = _batch(NUM_STEPS, vocab=bad_word, parts=made.place.parts)
  place = bad_step * made.part_words
  batch.ids[part, WINDOW + place : WINDOW + place + 4] = [0, bad_word, 1, 2]
  batch.left[part, place : place + 4] = [0, 1, 2, 3]
  batch.right[part, place : place + 4] = [3, 2, 1, 0]
  state = _start(made)
  vectors = _vectors(state, made.place)
  vectors['input'][bad_word] = np.inf
  weights = (np.arange(VOCAB) < bad_word).astype(float)
  _, metrics = made.step(
    _with_vectors(made, state, vectors),
    batch,
    _schedule(0.1, 0.1),
    skipgram.negative_distribution(weights),
  )
  return metrics.steps.first_bad_step


def test_training_step_alone():
  # What `sync` calls, by itself: the loss only if wanted.
  made = _make('skipgram', 'adagrad')
  batch, schedule = _batch(), _schedule(0.2, 0.2)
  state = _start(made)
  expected, measured = _oracle_dispatch(
    'skipgram',
    'adagrad',
    _vectors(state),
    _with_steps(batch, 1),
    schedule,
  )

  @jax.jit
  def step(states, constants, measure):
    return base.training_step(
      made.model,
      made.tables,
      states,
      constants,
      jax.tree.map(jnp.asarray, _step_of(batch, 0)),
      jnp.asarray(KEY),
      jnp.float32(0.2),
      measure,
    )

  for measure in (True, False):
    states, loss, _ = step(state.tables, made.model.constants(), measure)
    for k, table in states.items():
      np.testing.assert_allclose(table.vectors, expected[k], 1e-5, 1e-6)
    np.testing.assert_allclose(loss, measured[0][0] if measure else 0, 1e-5)


@pytest.mark.parametrize('place', [ALONE, *MESHES.values()])
def test_init_and_result(place):
  made = _make('skipgram', 'adagrad', place=place)
  init = jax.jit(made.strategy.init, out_shardings=made.strategy.state_sharding)
  state = init(jax.random.key(3))
  assert state.tables.keys() == made.model.specs().keys()
  vectors = _vectors(state, place)
  inputs = vectors['input']
  assert 0.45 / DIM < np.abs(inputs).max() <= 0.5 / DIM
  assert not vectors['output'].any()
  result = made.strategy.export_rows(state, 'input').rows
  assert isinstance(result, np.ndarray) and result.dtype == np.float32
  np.testing.assert_array_equal(result, inputs)
  # The same rows in any layout, on any mesh.
  alone = _make('skipgram', 'adagrad').strategy.init(jax.random.key(3))
  np.testing.assert_array_equal(inputs, _vectors(alone)['input'])
