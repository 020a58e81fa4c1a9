"""A dispatch of many steps against the loop of the oracle, on any mesh."""

import functools
import pathlib
import sys

import jax
import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb.strategies import base
from tests import dispatches, oracle
from tests.tables import laying

VOCAB, DIM, WINDOW, CHUNK = 40, 6, 3, 4
MAX_STEPS, NUM_STEPS, LOSS_EVERY = 8, 6, 4
ORACLES = {'skipgram': oracle.skipgram, 'cbow': oracle.cbow}
RATES = {'sgd': 0.3, 'sgd_limited': 0.3, 'adagrad': 0.2, 'adam': 0.02}
LAYOUTS = tuple(config_lib.MEMBERS['table.layout'])


@functools.cache
def _make(
  model='skipgram',
  optimizer='sgd',
  loss_every=LOSS_EVERY,
  parts=1,
  layout='replicated',
  shape=(1, 1),
  deduplicates=False,
):
  name, constants = laying.OPTIMIZERS[optimizer]
  settings = {
    'model.name': model, 'model.dim': DIM, 'model.window': WINDOW,
    'model.shared_negatives': 3, 'strategy.name': 'sync',
    'optimizer.name': name, 'table.layout': layout,
    'train.batch_words': max(16, parts * CHUNK * 2),
  } | {f'optimizer.{k}': x for k, x in constants.items()}  # fmt: skip
  return dispatches.trainer(
    1000 // np.arange(1, VOCAB + 1),
    settings,
    shape,
    parts=parts,
    chunk=CHUNK,
    loss_every_steps=loss_every,
    deduplicates=deduplicates,
  )


def _batch(trainable, num_steps=NUM_STEPS):
  """Parts that end a step earlier than the one before, in half a step."""
  steps = trainable.steps
  words = [
    max((num_steps - i) * steps.part_words - steps.part_words // 2, 0)
    for i in range(steps.num_parts)
  ]
  return dispatches.random_batch(words, VOCAB, steps, MAX_STEPS)


def _rows():
  """Rows as large as trained ones."""
  rng = np.random.default_rng(0)
  return {
    k: (rng.normal(size=(VOCAB, DIM)) / 2).astype(np.float32)
    for k in ('input', 'output')
  }


def _loops(trainable, model, optimizer, batch, schedule):
  """The tables after all steps, and (loss, examples) of each step."""
  vectors = {k: v.astype(np.float64) for k, v in _rows().items()}
  slots, measured = {k: {} for k in vectors}, []
  first, last = map(float, schedule[:2])
  num_steps, parts = batch.num_steps.max(), range(len(batch.num_steps))
  for i in range(num_steps):
    truth = dispatches.true_step(
      trainable, ORACLES[model], vectors, batch, i, parts
    )
    measured.append((truth.loss, truth.examples))
    rate = first + (last - first) * i / num_steps
    for k in vectors:
      args = vectors[k], slots[k], truth.ids[k], truth.grads[k], rate
      laying.learn(optimizer, *args)
  return vectors, measured


@pytest.mark.parametrize(
  ('model', 'optimizer', 'loss_every', 'parts', 'layout', 'shape', 'merges'),
  [
    *(
      (m, o, 4, 1, 'replicated', (1, 1), False) for m in ORACLES for o in RATES
    ),
    ('skipgram', 'sgd', 1, 1, 'replicated', (1, 1), False),
    ('skipgram', 'sgd', 100, 1, 'replicated', (1, 1), False),
    ('skipgram', 'sgd_limited', 4, 4, 'replicated', (1, 1), False),
    ('skipgram', 'adam', 4, 8, 'replicated', (8, 1), False),
    *(('skipgram', 'sgd_limited', 4, 8, x, (1, 8), False) for x in LAYOUTS[1:]),
    *(('skipgram', 'adagrad', 1, 8, x, (4, 2), True) for x in LAYOUTS),
    *(('skipgram', 'adam', 1, 8, x, (2, 4), False) for x in LAYOUTS[1:]),
    *(('cbow', 'sgd_limited', 4, 8, x, (2, 4), False) for x in LAYOUTS),
  ],
)
def test_a_dispatch_equals_the_loops(
  model, optimizer, loss_every, parts, layout, shape, merges
):
  trainable, strategy = _make(
    model,
    optimizer,
    loss_every,
    parts,
    layout,
    shape,
    merges or layout == 'row',
  )
  batch, rate = _batch(trainable), RATES[optimizer]
  # The rate falls by half, so that a wrong interpolation shows.
  schedule = dispatches.schedule(rate, rate / 2)
  expected, measured = _loops(trainable, model, optimizer, batch, schedule)
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
  assert set(metrics.steps.sums) == {'overflow_rounds'} & {
    name for table in trainable.tables.values() for name in table.metrics
  }
  assert metrics.num_steps == NUM_STEPS
  assert metrics.counters == {
    'kept_words': batch.kept_words.sum(),
    'pairs': batch.pairs.sum(),
  }


@pytest.mark.parametrize('optimizer', ['sgd_limited', 'adam'])
def test_steps_after_the_last_one_are_not_taken(optimizer):
  trainable, strategy = _make(optimizer=optimizer)
  size = trainable.steps.part_words
  schedule = dispatches.schedule(0.1, 0.1)
  full = _batch(trainable, MAX_STEPS)

  def run(batch, num_steps):
    batch = batch._replace(num_steps=np.array([num_steps], np.int32))
    state = dispatches.start(strategy, _rows())
    state, metrics = dispatches.run(strategy, state, batch, schedule)
    return jax.device_get((state, metrics.steps, metrics.num_steps))

  cut = jax.tree.map(np.copy, full)
  cut.ids[:, 2 * size + 2 * WINDOW :] = VOCAB
  cut.left[:, 2 * size :] = cut.right[:, 2 * size :] = 0
  jax.tree.map(np.testing.assert_array_equal, run(full, 2), run(cut, 2))
  state, steps, num_steps = run(full, 0)
  before = dispatches.start(strategy, _rows())
  jax.tree.map(np.testing.assert_array_equal, state, jax.device_get(before))
  assert steps == (0, 0, -1, {}) and num_steps == 0


@pytest.mark.parametrize(
  ('bad_step', 'loss_every', 'expected', 'part', 'layout'),
  [
    (0, 1, 0, 0, ''),
    (3, 1, 3, 0, ''),
    (3, 4, 4, 0, ''),
    (5, 4, -1, 0, ''),
    (7, 1, -1, 0, ''),
    # All devices of a mesh know it.
    *((2, 1, 2, 0, x) for x in LAYOUTS),
    *((0, 1, 0, 7, x) for x in LAYOUTS),
  ],
)
def test_first_bad_step(bad_step, loss_every, expected, part, layout):
  # A word occurs in one step only, and its row is not finite: the loss that is
  # measured next shows it, steps that are not taken do not.
  if layout:
    made = _make('skipgram', 'adagrad', 1, 8, layout, (4, 2), True)
  else:
    made = _make(loss_every=loss_every)
  word, rows = VOCAB // 2, _rows()
  rows['input'][word] = np.inf
  steps = made.trainable.steps
  words = [NUM_STEPS * steps.part_words - steps.part_words // 2]
  batch = dispatches.random_batch(
    words * steps.num_parts, VOCAB, steps, MAX_STEPS
  )
  place = bad_step * steps.part_words
  batch = dispatches.with_rare_word(batch, word, part, place)
  state = dispatches.start(made.strategy, rows)
  _, metrics = dispatches.run(
    made.strategy, state, batch, dispatches.schedule(0.1, 0.1)
  )
  assert metrics.steps.first_bad_step == expected


def test_a_step_goes_through_few_files():
  # Made anew: what JAX has traced before goes through no file.
  trainable, strategy = _make.__wrapped__(optimizer='sgd_limited')
  args = dispatches.args(
    strategy, _batch(trainable), dispatches.schedule(0.1, 0.1)
  )
  state, found = dispatches.start(strategy), set()
  package = pathlib.Path(base.__file__).parents[1]

  def profile(frame, event, arg):
    path = pathlib.Path(frame.f_code.co_filename)
    if event == 'call' and path.is_relative_to(package):
      found.add(str(path.relative_to(package)))

  sys.setprofile(profile)
  strategy.step.lower(state, *args)
  sys.setprofile(None)
  assert found == {
    'data/windows.py',
    'models/skipgram.py',
    'ops/chunks.py',
    'ops/losses.py',
    'ops/sampling.py',
    'strategies/base.py',
    'strategies/sync.py',
    'tables/replicated.py',
    'tables/row_optimizers.py',
  }
