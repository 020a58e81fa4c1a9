"""A dispatch of many steps against the oracle's loop over the same steps."""

import functools

import jax
import numpy as np
import pytest

from jaxemb.data import windows
from jaxemb.models import base as model_base
from jaxemb.models import cbow, skipgram
from jaxemb.ops import losses
from jaxemb.runtime import mesh
from jaxemb.strategies import base, sync
from jaxemb.tables import replicated, row_optimizers
from tests import dispatches, oracle

VOCAB, DIM, WINDOW, CHUNK = 40, 6, 3, 4
BATCH_WORDS, NEGATIVES, SHARED = 16, 5, 3
MAX_STEPS, NUM_STEPS = 8, 6
LOSS_EVERY = 4

MODELS = {
  'skipgram': (skipgram.make, oracle.skipgram),
  'cbow': (cbow.make, oracle.cbow),
}
# With the learning rate.
OPTIMIZERS = {
  'sgd': (
    row_optimizers.sgd(0),
    functools.partial(oracle.sgd, max_duplicates=0),
    0.3,
  ),
  'sgd_limited': (
    row_optimizers.sgd(2),
    functools.partial(oracle.sgd, max_duplicates=2),
    0.3,
  ),
  'adagrad': (
    row_optimizers.adagrad(1e-6),
    functools.partial(oracle.adagrad, epsilon=1e-6),
    0.2,
  ),
  'adam': (
    row_optimizers.adam(0.9, 0.999, 1e-6),
    functools.partial(oracle.adam, beta1=0.9, beta2=0.999, epsilon=1e-6),
    0.02,
  ),
}


@functools.cache
def _make(model_name, optimizer_name, loss_every=LOSS_EVERY, parts=1):
  counts = 1000 // np.arange(1, VOCAB + 1)
  model = MODELS[model_name][0](
    model_base.WindowSpec(VOCAB, DIM, WINDOW, NEGATIVES, CHUNK, SHARED),
    model_base.Corpus((), counts, counts / counts.sum()),
    losses.logistic_loss,
  )
  tables = {
    name: replicated.Replicated(table, OPTIMIZERS[optimizer_name][0])
    for name, table in model.specs().items()
  }
  steps = windows.Steps(BATCH_WORDS // parts, parts, WINDOW, CHUNK)
  trainable = base.Trainable(model, tables, steps, loss_every)
  return trainable, sync.sync(trainable, mesh.make(mesh.Shape(1, 1)))


def _batch(trainable, num_steps=NUM_STEPS):
  """Parts that end a step earlier than the one before, in half a step."""
  steps = trainable.steps
  words = [
    max((num_steps - i) * steps.part_words - steps.part_words // 2, 0)
    for i in range(steps.num_parts)
  ]
  return dispatches.random_batch(words, VOCAB, steps, MAX_STEPS)


def _rows(seed=0):
  """Rows as large as trained ones."""
  rng = np.random.default_rng(seed)
  return {
    k: (rng.normal(size=(VOCAB, DIM)) / 2).astype(np.float32)
    for k in ('input', 'output')
  }


def _loops(trainable, model_name, optimizer_name, batch, schedule):
  """The tables after all steps, and (loss, examples) of each step."""
  vectors = {k: v.astype(np.float64) for k, v in _rows().items()}
  slots = {k: {} for k in vectors}
  first, last = map(float, schedule[:2])
  measured = []
  num_steps = batch.num_steps.max()
  for i in range(num_steps):
    truth = dispatches.true_step(
      trainable,
      MODELS[model_name][1],
      vectors,
      batch,
      i,
      range(trainable.steps.num_parts),
    )
    measured.append((truth.loss, truth.examples))
    rate = first + (last - first) * i / num_steps
    for k in vectors:
      OPTIMIZERS[optimizer_name][1](
        vectors[k], slots[k], truth.ids[k], truth.grads[k], rate
      )
  return vectors, measured


@pytest.mark.parametrize(
  ('model_name', 'optimizer_name', 'loss_every', 'parts'),
  [
    *((m, o, LOSS_EVERY, 1) for m in MODELS for o in OPTIMIZERS),
    ('skipgram', 'sgd', 1, 1),
    ('skipgram', 'sgd', 100, 1),
    ('skipgram', 'sgd_limited', LOSS_EVERY, 4),
    ('cbow', 'adagrad', LOSS_EVERY, 4),
  ],
)
def test_a_dispatch_equals_the_loops(
  model_name, optimizer_name, loss_every, parts
):
  trainable, strategy = _make(model_name, optimizer_name, loss_every, parts)
  batch = _batch(trainable)
  rate = OPTIMIZERS[optimizer_name][2]
  # The rate falls by half, so that a wrong interpolation shows.
  schedule = dispatches.schedule(rate, rate / 2)
  expected, measured = _loops(
    trainable, model_name, optimizer_name, batch, schedule
  )
  state = dispatches.start(strategy, _rows())
  state, metrics = dispatches.run(strategy, state, batch, schedule)
  for k, vectors in dispatches.exported(strategy, state).items():
    np.testing.assert_allclose(vectors, expected[k], 1e-5, 1e-5)
    assert np.abs(vectors - _rows()[k]).max() > 0.05
  # The loss is that of the steps 0, n, 2 n, ..., before their updates.
  sums, examples = zip(*measured[::loss_every], strict=True)
  np.testing.assert_allclose(metrics.steps.loss, sum(sums), 1e-5)
  assert metrics.steps.examples == sum(examples)
  assert metrics.steps.first_bad_step == -1
  assert metrics.num_steps == NUM_STEPS
  assert metrics.counters == {
    'kept_words': batch.kept_words.sum(),
    'pairs': batch.pairs.sum(),
  }


@pytest.mark.parametrize('optimizer_name', ['sgd_limited', 'adam'])
def test_steps_after_the_last_one_are_not_taken(optimizer_name):
  trainable, strategy = _make('skipgram', optimizer_name)
  schedule = dispatches.schedule(0.1, 0.1)
  full = _batch(trainable, MAX_STEPS)

  def run(batch, num_steps):
    batch = batch._replace(num_steps=np.array([num_steps], np.int32))
    state = dispatches.start(strategy, _rows())
    state, metrics = dispatches.run(strategy, state, batch, schedule)
    return jax.device_get((state, metrics.steps, metrics.num_steps))

  cut = jax.tree.map(np.copy, full)
  cut.ids[:, 2 * BATCH_WORDS + 2 * WINDOW :] = VOCAB
  cut.left[:, 2 * BATCH_WORDS :] = cut.right[:, 2 * BATCH_WORDS :] = 0
  jax.tree.map(np.testing.assert_array_equal, run(full, 2), run(cut, 2))
  state, steps, num_steps = run(full, 0)
  before = dispatches.start(strategy, _rows())
  jax.tree.map(np.testing.assert_array_equal, state, jax.device_get(before))
  assert steps == (0, 0, -1, {}) and num_steps == 0


@pytest.mark.parametrize(
  ('bad_step', 'loss_every', 'expected'),
  [(0, 1, 0), (3, 1, 3), (3, 4, 4), (5, 4, -1), (7, 1, -1)],
)
def test_first_bad_step(bad_step, loss_every, expected):
  # A word occurs in one step only, and its row is not finite: the loss that is
  # measured next shows it, steps that are not taken do not.
  trainable, strategy = _make('skipgram', 'sgd', loss_every)
  word, rows = VOCAB // 2, _rows()
  rows['input'][word] = np.inf
  batch = dispatches.with_rare_word(
    _batch(trainable), word, 0, bad_step * BATCH_WORDS
  )
  state = dispatches.start(strategy, rows)
  _, metrics = dispatches.run(
    strategy, state, batch, dispatches.schedule(0.1, 0.1)
  )
  assert metrics.steps.first_bad_step == expected
