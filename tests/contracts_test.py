"""The contract of every table, optimizer, model and strategy.

The members are those that a setting can name: a new one is tested here as soon
as `config.MEMBERS` has it, and fails until it has a learning rate below.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.data import windows
from jaxemb.runtime import mesh
from jaxemb.strategies import base
from tests import oracle

# Two devices cannot share seven columns without one that only fills up.
VOCAB, DIM, WINDOW, CHUNK = 40, 7, 3, 8
BATCH_WORDS, MAX_STEPS = 32, 64
KEY = np.array([0xFFFFFFFF, 7], np.uint32)

# Learning rates at which 2 x 64 steps learn the planted problem.
RATES = {
  ('skipgram', 'sgd'): 0.1,
  ('skipgram', 'adagrad'): 0.3,
  ('skipgram', 'adam'): 0.05,
  ('cbow', 'sgd'): 0.3,
  ('cbow', 'adagrad'): 0.3,
  ('cbow', 'adam'): 0.05,
  ('skipgram-tree', 'adagrad'): 0.3,
  ('mixture-tree', 'adagrad'): 0.3,
  ('mixture', 'adagrad'): 0.3,
  ('contexts-tree', 'adagrad'): 0.3,
  ('contexts', 'adagrad'): 0.3,
}
STRATEGIES = 'replicas', 'sync', 'partition'
OPTIMIZERS = tuple(config_lib.MEMBERS['optimizer.name'])
LAYOUTS = tuple(config_lib.MEMBERS['table.layout'])
# How an accelerator takes its steps: rows written once, loops that run on.
DEVICES = {'cpu': (False, 1), 'gpu': (True, 3)}
MEMBERS = [
  (strategy, 'replicated', optimizer, model, 'cpu')
  for strategy in STRATEGIES
  for optimizer in OPTIMIZERS
  for model in ('skipgram', 'cbow')
  # Sub-models take the steps of the others: one of each will do.
  if strategy != 'partition'
  or (optimizer, model) in (('sgd', 'skipgram'), ('adam', 'cbow'))
]
MEMBERS += [
  ('sync', layout, optimizer, 'skipgram', 'cpu')
  for layout in LAYOUTS
  if layout != 'replicated'
  for optimizer in ('sgd', 'adagrad')
]
MEMBERS += [
  (strategy, 'replicated', optimizer, 'skipgram', 'gpu')
  for strategy in STRATEGIES
  for optimizer in ('sgd', 'adam')
  if strategy != 'partition' or optimizer == 'sgd'
]
MEMBERS.append(('sync', 'row', 'sgd', 'skipgram', 'gpu'))
# Tables and strategies are model-agnostic: each model meets each of them once.
MEMBERS += [
  ('sync', 'replicated', 'adagrad', 'skipgram-tree', 'cpu'),
  ('sync', 'replicated', 'adagrad', 'mixture-tree', 'cpu'),
  ('sync', 'row', 'adagrad', 'mixture-tree', 'cpu'),
  ('sync', 'column', 'adagrad', 'mixture-tree', 'cpu'),
  ('partition', 'replicated', 'adagrad', 'mixture', 'cpu'),
  ('replicas', 'replicated', 'adagrad', 'mixture', 'cpu'),
  ('sync', 'replicated', 'adagrad', 'contexts-tree', 'cpu'),
  ('sync', 'row', 'adagrad', 'contexts-tree', 'cpu'),
  ('sync', 'column', 'adagrad', 'contexts-tree', 'cpu'),
  ('replicas', 'replicated', 'adagrad', 'contexts', 'cpu'),
]
every_member = pytest.mark.parametrize(
  'member', MEMBERS, ids=['-'.join(member) for member in MEMBERS]
)


class Made(NamedTuple):
  """A member, and how often its step was traced."""

  trainable: base.Trainable
  strategy: base.Strategy
  traces: list[int]
  rate: float
  num_parts: int
  programs: list[Any]  # the compiled dispatch, once there is one

  is_partition: bool  # sub-models of their own, each with its own figures

  def step(self, state, batch, schedule):
    """A dispatch, compiled ahead of time as the training loop does.

    Of one program: it takes nothing of another form.
    """
    schedule = self.plan(schedule)
    args = state, _constants(self), _placed(self, batch), schedule
    if not self.programs:
      self.programs.append(self.strategy.step.lower(*args).compile())
    state, metrics = self.programs[0](*args)
    if self.is_partition:
      bad = metrics.steps.first_bad_step.max()
      steps = metrics.num_steps.max()
      metrics = jax.tree.map(lambda x: x.sum(), metrics)
      metrics = metrics._replace(
        steps=metrics.steps._replace(first_bad_step=bad), num_steps=steps
      )
    return state, metrics

  def plan(self, schedule):
    """For every sub-model one of its own."""
    if not self.is_partition:
      return schedule
    each = [schedule, schedule._replace(key=schedule.key ^ np.uint32(5))]
    return jax.tree.map(lambda *x: np.stack(x), *each)

  @property
  def model(self):
    """What is trained."""
    return self.trainable.model

  def result(self, state):
    """The vectors, of sub-models those of the first."""
    rows = self.strategy.export_rows(state, self.model.vectors_table).rows
    return rows[0] if self.is_partition else rows


@dataclasses.dataclass(frozen=True)
class _Traced(windows.Steps):
  """Steps that note when one is traced."""

  traces: list[int] = dataclasses.field(default_factory=list, hash=False)

  def step(self, *args):
    self.traces.append(1)
    return super().step(*args)


@functools.cache
def _make(member):
  strategy_name, layout, optimizer_name, model_name, device = member
  deduplicates, steps_per_loop = DEVICES[device]
  config = _config()
  config.strategy.name, config.table.layout = strategy_name, layout
  if strategy_name == 'replicas':
    config.strategy.sync_every = 2 * BATCH_WORDS
  config.optimizer.name = optimizer_name
  config.model.name, _, loss = model_name.partition('-')
  if loss == 'tree':
    config.model.loss = 'hierarchical_softmax'
  if config.model.name in ('mixture', 'contexts'):
    config.senses.number, config.senses.top_ratio = 3, 6.5 / VOCAB
    if config.model.name == 'mixture':
      config.senses.method = 'likelihoods'
    config.model.name = 'mixture'
  shape = (1, 1) if strategy_name == 'sync' else (2, 1)
  if layout != 'replicated':
    shape = (1, 2)
  config, tuning = config_lib.resolve(
    config,
    'cpu',
    shape,
    chunk=CHUNK,
    shared_nodes=4,
    deduplicates=deduplicates or layout == 'row',
    loss_every_steps=1,
    steps_per_loop=steps_per_loop,
    memory_lookups=5.0,  # forty words forget soon
  )
  steps = _Traced(BATCH_WORDS, tuning.parts, WINDOW, CHUNK)
  made = build.trainer(
    config,
    tuning,
    np.full(VOCAB, 100),
    mesh.make(mesh.Shape(*shape)),
    [str(i) for i in range(VOCAB)],
    steps=steps,
  )
  return Made(
    made.trainable,
    made.strategy,
    steps.traces,
    RATES[model_name, optimizer_name],
    shape[0],
    [],
    strategy_name == 'partition',
  )


def _config():
  config = config_lib.default()
  config.optimizer.learning_rate = 0.1
  config.model.dim, config.model.window = DIM, WINDOW
  config.model.shared_negatives = 8
  config.data.sample = 0.0
  config.train.batch_words = BATCH_WORDS
  return config


def _start(made, seed):
  """A state as the training loop makes it."""
  init = jax.jit(made.strategy.init, out_shardings=made.strategy.state_sharding)
  return init(jax.random.key(seed))


def _placed(made, batch):
  return jax.device_put(batch, made.strategy.batch_sharding)


def _constants(made):
  return jax.device_put(
    made.strategy.constants(), made.strategy.constants_sharding
  )


def _planted(made, seed, num_steps=MAX_STEPS):
  """For each part, sentences of words of one half of the vocabulary."""
  parts = [
    _planted_part(np.random.default_rng((seed, i)), num_steps)
    for i in range(made.num_parts)
  ]
  ids, left, right = (np.stack(x) for x in zip(*parts, strict=True))
  steps = np.full(made.num_parts, num_steps, np.int32)
  pairs = (left.astype(int) + right).sum(1).astype(np.int32)
  return windows.Batch(ids, left, right, steps, steps * BATCH_WORDS, pairs)


def _planted_part(rng, num_steps):
  sentences = [
    rng.integers(0, VOCAB // 2, 8) + VOCAB // 2 * rng.integers(0, 2)
    for _ in range(num_steps * BATCH_WORDS // 8)
  ]
  return oracle.pack(sentences, VOCAB, MAX_STEPS * BATCH_WORDS, WINDOW, rng)


def _schedule(first, last, key=KEY):
  return base.Schedule(np.float32(first), np.float32(last), key)


def _train(made, seed=0, key=KEY):
  """Two dispatches; the vectors and the metrics of both."""
  state = _start(made, seed)
  metrics = []
  for i in range(2):
    state, found = made.step(
      state,
      _planted(made, i),
      _schedule(made.rate, made.rate / 2, key + np.uint32(i)),
    )
    metrics.append(jax.device_get(found))
  return made.result(state), metrics


@functools.cache
def _trained(member):
  return _train(_make(member))


@every_member
def test_learns_the_planted_problem(member):
  vectors, metrics = _trained(member)
  losses = [m.steps.loss / m.steps.examples for m in metrics]
  # An untrained pair costs so many nats, (1 + 5) log 2 with five negatives; of
  # what a tree's cost, chance is what remains.
  untrained = _make(member).model.untrained_loss
  assert losses[1] < losses[0] < untrained
  assert losses[1] < (0.9 if 'tree' in member[3] else 4 / 6) * untrained
  assert all(m.steps.first_bad_step == -1 for m in metrics)
  num_parts = _make(member).num_parts
  for m in metrics:
    assert m.num_steps == MAX_STEPS
    kept_words, pairs = m.counters['kept_words'], m.counters['pairs']
    assert kept_words == num_parts * MAX_STEPS * BATCH_WORDS
    # Every context of every center, or every center that has one.
    examples = kept_words if 'cbow' in member[3] else pairs
    assert pairs > kept_words and m.steps.examples == examples
  if rows := getattr(_make(member).model, 'rows', None):
    vectors = vectors[rows.first]  # any sense is of a half
  units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  cosines = units @ units.T
  half = VOCAB // 2
  within = np.concatenate([cosines[:half, :half], cosines[half:, half:]])
  # Without a word's cosine with itself.
  within = (within.sum() - VOCAB) / (within.size - VOCAB)
  between = cosines[:half, half:].mean()
  assert within > between + 0.5, (within, between)


@every_member
def test_same_seed_same_bits(member):
  vectors, metrics = _train(_make(member))
  first, first_metrics = _trained(member)
  np.testing.assert_array_equal(vectors, first)
  jax.tree.map(np.testing.assert_array_equal, metrics, first_metrics)


@pytest.mark.parametrize(
  'member', [m for m in MEMBERS if m[4] == 'gpu'], ids='-'.join
)
def test_all_devices_learn_the_same(member):
  vectors, metrics = _trained(member)
  expected, expected_metrics = _trained((*member[:-1], 'cpu'))
  # Adam divides by roots of small squares: roundings grow.
  tolerance = 1e-2 if 'adam' in member else 1e-4
  np.testing.assert_allclose(vectors, expected, tolerance, tolerance)
  for found, other in zip(metrics, expected_metrics, strict=True):
    np.testing.assert_allclose(found.steps.loss, other.steps.loss, 1e-4)
    assert found.steps.examples == other.steps.examples
    assert found[1:] == other[1:]


@pytest.mark.parametrize(
  'member', [m for m in MEMBERS if m[1] != 'replicated'], ids='-'.join
)
def test_all_layouts_learn_the_same(member):
  vectors, metrics = _trained(member)
  strategy, _, *rest = member
  expected, expected_metrics = _trained((strategy, 'replicated', *rest))
  np.testing.assert_allclose(vectors, expected, 1e-4, 1e-4)
  for found, other in zip(metrics, expected_metrics, strict=True):
    np.testing.assert_allclose(found.steps.loss, other.steps.loss, 1e-4)
    assert found.steps.examples == other.steps.examples


@every_member
def test_another_seed_another_result(member):
  made = _make(member)
  vectors, _ = _trained(member)
  # Of the start, and of the negatives alone; a tree's words are not drawn.
  others = [(1, KEY), (0, KEY ^ np.uint32(1))]
  for seed, key in others[: 1 if 'tree' in member[3] else 2]:
    other, _ = _train(made, seed, key)
    assert (other != vectors).mean() > 0.9


@every_member
def test_one_program_for_all_dispatches(member):
  made = _make(member)
  _trained(member)
  num_traces = len(made.traces)
  assert num_traces >= 1
  state = _start(made, 2)
  for i, num_steps in enumerate([3, 1, 0]):
    plan = _schedule(0.1 * i, 0, KEY + np.uint32(i))
    batch = _placed(made, _planted(made, i, num_steps))
    # Nor would it be traced again.
    made.strategy.step.trace(state, _constants(made), batch, made.plan(plan))
    state, metrics = made.step(state, batch, plan)
    assert metrics.num_steps == num_steps
    assert (metrics.steps.examples > 0) == (num_steps > 0)
  assert len(made.traces) == num_traces


@every_member
def test_state_keeps_its_form_and_is_donated(member):
  made = _make(member)
  state = _start(made, 3)

  def form(state):
    return jax.tree.map(
      lambda x: (x.shape, x.dtype, x.weak_type, x.sharding.device_set), state
    )

  after, _ = made.step(state, _planted(made, 0, 2), _schedule(0.1, 0.1))
  assert form(after) == form(_start(made, 3))
  assert all(x.is_deleted() for x in jax.tree.leaves(state) if x.size)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))


@every_member
def test_result_is_the_vectors_that_users_want(member):
  made = _make(member)
  state = _start(made, 4)
  result = made.result(state)
  assert isinstance(result, np.ndarray)
  rows = made.model.specs()[made.model.vectors_table].vocab
  assert result.shape == (rows, DIM) and result.dtype == np.float32
  # A copy for good: training goes on without changing it.
  kept = result.copy()
  made.step(state, _planted(made, 0), _schedule(made.rate, 0))
  np.testing.assert_array_equal(result, kept)
