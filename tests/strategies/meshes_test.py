"""The same steps on every mesh, in every layout: the rows of one device."""

import functools

import jax
import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.runtime import mesh
from tests import dispatches

VOCAB, DIM, WINDOW, CHUNK, PARTS = 300, 12, 2, 4, 8
BATCH_WORDS, STEPS = 128, 200
COUNTS = 100_000 // np.arange(1, VOCAB + 1)
LAYOUTS = tuple(config_lib.MEMBERS['table.layout'])
RATES = {'sgd': 0.05, 'adagrad': 0.1, 'adam': 0.01}


@functools.cache
def _make(layout, optimizer, shape, model, deduplicates):
  c = config_lib.default()
  c.model.name, c.model.dim, c.model.window = model, DIM, WINDOW
  c.model.shared_negatives, c.table.layout = 8, layout
  c.optimizer.name, c.optimizer.learning_rate = optimizer, RATES[optimizer]
  c.optimizer.max_duplicates = 3.0  # many rows are above it
  c.train.batch_words, c.strategy.name = BATCH_WORDS, 'sync'
  c, tuning = config_lib.resolve(
    c,
    'cpu',
    shape,
    parts=PARTS,
    chunk=CHUNK,
    loss_every_steps=1,
    deduplicates=deduplicates or layout == 'row',
  )
  return build.trainer(c, tuning, COUNTS, mesh.make(mesh.Shape(*shape)))


@functools.cache
def _batch(steps):
  # Parts end at different times, the first one in the middle of a step.
  size = STEPS * steps.part_words
  words = [size - 16 * i - 8 * (i == 0) for i in range(PARTS)]
  return dispatches.random_batch(words, VOCAB, steps, STEPS)


@functools.cache
def _trained(*args):
  """Rows and slots of all tables, and the metrics."""
  made = _make(*args)
  rate, strategy = RATES[args[1]], made.strategy
  state, metrics = dispatches.run(
    strategy,
    dispatches.start(strategy),
    _batch(made.trainable.steps),
    dispatches.schedule(rate, rate / 10),
  )
  exported = {k: strategy.export_rows(state, k) for k in sorted(state.tables)}
  return exported, jax.device_get(metrics)


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize(
  ('optimizer', 'shape', 'model', 'deduplicates'),
  [
    ('sgd', None, 'skipgram', False),
    ('adagrad', (4, 2), 'skipgram', True),
    ('adam', (2, 4), 'skipgram', False),
    ('sgd', (2, 4), 'cbow', False),
  ],
)
def test_200_steps_are_those_of_one_device(
  layout, optimizer, shape, model, deduplicates
):
  shape = shape or ((8, 1) if layout == 'replicated' else (1, 8))
  found, metrics = _trained(layout, optimizer, shape, model, deduplicates)
  expected, expected_metrics = _trained(
    'replicated', optimizer, (1, 1), model, False
  )
  # Adam divides by roots of small squares: roundings grow.
  tolerance = 1e-3 if optimizer == 'adam' else 1e-5
  for name, block in expected.items():
    assert found[name].rows.shape == (VOCAB, DIM)
    size = np.abs(block.rows).max()
    np.testing.assert_allclose(
      found[name].rows, block.rows, tolerance, tolerance * size
    )
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, tolerance, tolerance),
      found[name].slots,
      block.slots,
    )
  sums = metrics.steps.sums
  assert set(sums) == ({'overflow_rounds'} if layout == 'row' else set())
  metrics = metrics._replace(steps=metrics.steps._replace(sums={}))
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, 1e-5),
    metrics,
    expected_metrics,
  )
  assert metrics.num_steps == STEPS and metrics.steps.first_bad_step == -1


@pytest.mark.parametrize('layout', LAYOUTS)
def test_all_devices_know_the_first_bad_step_of_any(layout):
  made = _make(layout, 'adagrad', (4, 2), 'skipgram', True)
  word, strategy = VOCAB // 2, made.strategy
  part_words = made.trainable.steps.part_words
  rows = {'input': np.ones((VOCAB, DIM), np.float32)}
  rows['input'][word] = np.inf
  for part, bad_step in ((0, 2), (PARTS - 1, 0)):
    batch = dispatches.with_rare_word(
      _batch(made.trainable.steps), word, part, bad_step * part_words
    )
    state = dispatches.start(strategy, rows)
    _, metrics = dispatches.run(
      strategy, state, batch, dispatches.schedule(0.1, 0.1)
    )
    assert metrics.steps.first_bad_step == bad_step
