"""A dispatch of many steps against the loop of the oracle, on any mesh."""

import functools
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxemb.config import kinds
from tests import dispatches, marking, oracle
from tests.tables import laying

VOCAB, DIM, WINDOW, CHUNK = 40, 6, 3, 4
MAX_STEPS, NUM_STEPS, LOSS_EVERY = 8, 6, 4
ORACLES = {'skipgram': oracle.skipgram, 'cbow': oracle.cbow}
RATES = {'sgd': 0.3, 'sgd_limited': 0.3, 'adagrad': 0.2, 'adam': 0.02}
LAYOUTS = tuple(kinds.members()['table.layout'])


class Case(NamedTuple):
  """What is trained, and on which mesh."""

  model: str = 'skipgram'
  optimizer: str = 'sgd'
  loss_every: int = LOSS_EVERY
  parts: int = 1
  layout: str = 'replicated'
  shape: tuple[int, int] = (1, 1)
  deduplicates: bool = False
  fused: bool = False
  is_continued: bool = False


CASES = [
  *(Case(optimizer=x) for x in RATES),
  Case('cbow'),
  Case(loss_every=100),
  Case(optimizer='sgd_limited', parts=4),
  Case(is_continued=True),
]
FUSED = [
  Case(fused=True),
  Case('cbow', fused=True),
  Case(is_continued=True, fused=True),
  # More chunks than one of which the loss is measured.
  Case(optimizer='adagrad', parts=40, fused=True),
]
ON_MESH = [
  *(Case('skipgram', 'adagrad', 1, 8, x, (4, 2), True) for x in LAYOUTS),
  *(
    Case('skipgram', 'sgd', 1, 8, x, (4, 2), is_continued=True) for x in LAYOUTS
  ),
]
# Counts of the run that is continued; some rows are new.
EARLIER = np.arange(VOCAB) % 3 * (VOCAB - np.arange(VOCAB))


@functools.cache
def _make(case):
  name, constants = laying.OPTIMIZERS[case.optimizer]
  settings = {
    'model.name': case.model, 'model.dim': DIM, 'model.window': WINDOW,
    'model.shared_negatives': 3, 'strategy.name': 'sync',
    'optimizer.name': name, 'table.layout': case.layout,
    'train.batch_words': max(16, case.parts * CHUNK * 2),
  } | {f'optimizer.{k}': x for k, x in constants.items()}  # fmt: skip
  return dispatches.trainer(
    1000 // np.arange(1, VOCAB + 1),
    settings,
    case.shape,
    parts=case.parts,
    chunk=CHUNK,
    loss_every_steps=case.loss_every,
    deduplicates=case.deduplicates or case.layout == 'row',
    fused=case.fused,
    earlier=EARLIER if case.is_continued else None,
  )


def _braked(ids, grads, rate):
  """Gradients of rows that have learned before."""
  slowed = []
  for i, grad in zip(ids, grads, strict=True):
    learned = 0.0
    if i < VOCAB and EARLIER[i]:
      ratio = 1e-4 * EARLIER.sum() / EARLIER[i]
      learned = EARLIER[i] * min(1, ratio**0.5 + ratio)
    slowed.append(grad / (1 + rate * learned))
  return np.array(slowed)


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


def _loops(case, trainable, batch, schedule):
  """The tables after all steps, and (loss, examples) of what is measured."""
  vectors = {k: v.astype(np.float64) for k, v in _rows().items()}
  opt_state, measured = {k: {} for k in vectors}, []
  first, last = map(float, schedule[:2])
  num_steps, parts = batch.num_steps.max(), range(len(batch.num_steps))
  for i in range(num_steps):
    rate = first + (last - first) * i / num_steps
    for j, piece in enumerate(dispatches.pieces(trainable, batch, i, parts)):
      truth = dispatches.true_step(
        trainable, ORACLES[case.model], vectors, piece
      )
      every = dispatches.LOSS_EVERY_CHUNKS if case.fused else case.loss_every
      if (j if case.fused else i) % every == 0:
        measured.append((truth.loss, truth.examples))
      for k in vectors:
        grads = truth.grads[k]
        if case.is_continued:
          grads = _braked(truth.ids[k], grads, rate)
        args = vectors[k], opt_state[k], truth.ids[k], grads, rate
        laying.learn(case.optimizer, *args)
  return vectors, measured


@pytest.mark.parametrize(
  'case',
  [
    *CASES,
    *marking.slow_after(1, FUSED),
    *marking.slow_after(1, ON_MESH),
    marking.slow(Case('cbow', 'adam', 4, 8, 'replicated', (8, 1))),
  ],
  ids=lambda case: '-'.join(map(str, case)),
)
def test_a_dispatch_equals_the_loops(case):
  check_a_dispatch(case)


def check_a_dispatch(case, error=1e-5):
  """Compares a dispatch with the loops; a kernel has ten times the error."""
  trainable, strategy = _make(case)
  batch, rate = _batch(trainable), RATES[case.optimizer]
  # The rate falls by half, so that a wrong interpolation shows.
  schedule = dispatches.schedule(rate, rate / 2)
  expected, measured = _loops(case, trainable, batch, schedule)
  state = dispatches.start(strategy, _rows())
  state, metrics = dispatches.run(strategy, state, batch, schedule)
  # Chunks are more steps, each of which the errors of those before pass.
  error = 10 * error if case.fused else error
  for k, vectors in dispatches.exported(strategy, state).items():
    np.testing.assert_allclose(vectors, expected[k], error, error)
    assert np.abs(vectors - _rows()[k]).max() > 0.05
  # The loss is that of the steps 0, n, 2 n, ..., before their updates.
  sums, examples = zip(*measured, strict=True)
  np.testing.assert_allclose(metrics.steps.loss, sum(sums), error)
  np.testing.assert_allclose(metrics.steps.examples, sum(examples), 1e-5)
  assert metrics.steps.first_bad_step == -1
  assert set(metrics.steps.sums) == {'overflow_rounds'} & {
    name for table in trainable.tables.values() for name in table.metrics
  }
  assert metrics.num_steps == NUM_STEPS
  assert metrics.counters == {
    'kept_words': batch.kept_words.sum(),
    'pairs': batch.pairs.sum(),
  }


@pytest.mark.parametrize(
  'case',
  [Case(optimizer='adam'), Case(fused=True)],
)
def test_steps_after_the_last_one_are_not_taken(case):
  trainable, strategy = _make(case)
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
  ('case', 'part', 'bad_step', 'expected'),
  [
    (Case(loss_every=1), 0, 3, 3),
    (Case(loss_every=4), 0, 3, 4),
    (Case(loss_every=4), 0, 5, -1),
    (Case(loss_every=1), 0, 7, -1),
    (Case(fused=True), 0, 5, 5),
    (Case(fused=True), 0, 7, -1),
    # All devices of a mesh know it.
    *marking.slow_after(1, ((x, 7, 0, 0) for x in ON_MESH)),
  ],
)
def test_first_bad_step(case, part, bad_step, expected):
  # A word occurs in one step only, and its row is not finite: the loss that is
  # measured next shows it, steps that are not taken do not.
  trainable, strategy = _make(case)
  word, rows, steps = VOCAB // 2, _rows(), trainable.steps
  rows['input'][word] = np.inf
  words = [NUM_STEPS * steps.part_words - steps.part_words // 2]
  batch = dispatches.random_batch(
    words * steps.num_parts, VOCAB, steps, MAX_STEPS
  )
  batch.ids[batch.ids == word] = 0
  first = bad_step * steps.part_words
  batch.ids[part, WINDOW + first : WINDOW + first + 2] = [word, 1]
  batch.right[part, first] = batch.left[part, first + 1] = 1
  state = dispatches.start(strategy, rows)
  schedule = dispatches.schedule(0.1, 0.1)
  _, metrics = dispatches.run(strategy, state, batch, schedule)
  assert metrics.steps.first_bad_step == expected
