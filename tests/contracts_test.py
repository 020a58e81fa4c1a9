"""The contract of every table, optimizer, model and strategy.

The members are those that a setting can name: a new one is tested here as soon
as `config.kinds.members` has it, and fails until it has a learning rate below.
"""

import dataclasses
import functools
import sys
import types
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb.config import kinds
from jaxemb.data import windows
from jaxemb.documents import batches
from jaxemb.strategies import base
from tests import dispatches, marking, runs
from tests.documents import sources

# Two devices cannot share seven columns without one that only fills up.
VOCAB, DIM, WINDOW, CHUNK = 40, 7, 3, 8
BATCH_WORDS, MAX_STEPS = 32, 64
KEY = np.array([0xFFFFFFFF, 7], np.uint32)
DOCUMENTS = 'dbow', 'dm'  # models of documents

# Learning rates at which 2 x 64 steps learn the planted problem.
RATES = {
  'sgd': 0.1,
  'adagrad': 0.3,
  'adam': 0.05,
  'adagrad_full': 0.2,
  'adam_full': 0.05,
  'cbow-sgd': 0.3,
  'skipgram-subwords-sgd': 0.03,  # words share many of their n-grams
  'dm-sgd': 0.3,
}
OPTIMIZERS = tuple(kinds.members()['optimizer.name'])
LAYOUTS = tuple(kinds.members()['table.layout'])
# How steps are taken: an accelerator writes rows once, and its loops run on; a
# kernel takes all of a step.
DEVICES = {
  'cpu': {'deduplicates': False, 'steps_per_loop': 1},
  'gpu': {'deduplicates': True, 'steps_per_loop': 3},
  'kernel': {'fused': True},
  'kernel-bfloat16': {'fused': True},
  # As runs take them on the device that tests have, or all by XLA.
  'any': {'fused': None},
  'any-bfloat16': {'fused': None},
  'xla': {},
}
# Strategy, layout, optimizer, model, device. All members are met once.
_FIRST = OPTIMIZERS[0]
QUICK = [
  ('sync', 'replicated', _FIRST, 'skipgram', 'cpu'),
  *(('sync', x, 'adagrad', 'skipgram', 'cpu') for x in LAYOUTS[1:]),
  ('replicas', 'replicated', 'adam', 'cbow', 'cpu'),
  ('replicas-hot', 'replicated', 'sgd', 'skipgram', 'kernel'),
  ('replicas-my_policy:Average', 'replicated', 'sgd', 'skipgram', 'kernel'),
  ('sync', 'replicated', 'adagrad', 'skipgram-tree', 'cpu'),
  ('sync-memory', 'replicated', 'sgd', 'skipgram', 'kernel'),
  ('replicas', 'replicated', 'sgd', 'skipgram-subwords', 'kernel'),
  ('sync', 'replicated', 'sgd', 'dbow', 'kernel'),
]
# And other combinations of them.
SLOW = [
  ('sync', 'column', 'adagrad', 'mixture-tree', 'cpu'),
  ('replicas-hot', 'replicated', 'sgd', 'cbow', 'kernel'),
  ('sync', 'replicated', 'adagrad', 'skipgram', 'kernel-bfloat16'),
  *(('sync', 'replicated', x, 'cbow', 'gpu') for x in OPTIMIZERS[1:]),
  ('replicas', 'replicated', 'sgd', 'skipgram', 'gpu'),
  ('replicas-average', 'replicated', 'adagrad', 'skipgram', 'cpu'),
  ('replicas', 'replicated', 'adagrad', 'mixture', 'cpu'),
  ('sync', 'replicated', 'sgd', 'cbow-tree', 'kernel'),
  ('sync-memory', 'replicated', 'adagrad', 'contexts', 'cpu'),
  ('sync-disk', 'replicated', 'adam', 'cbow', 'cpu'),
  ('sync', 'row', 'adagrad', 'skipgram-subwords', 'cpu'),
  ('sync', 'column', 'adagrad', 'cbow-subwords', 'cpu'),
  ('sync-memory', 'replicated', 'sgd', 'skipgram-subwords', 'cpu'),
  ('sync', 'replicated', 'adagrad', 'cbow-subwords', 'kernel-bfloat16'),
  ('replicas-average', 'replicated', 'adam', 'cbow-subwords', 'gpu'),
  ('replicas', 'replicated', 'sgd', 'dm', 'kernel'),
  ('replicas-hot', 'replicated', 'adagrad', 'dbow', 'cpu'),
  ('sync', 'column', 'adam', 'dm', 'cpu'),
  ('sync', 'row', 'adagrad', 'dbow', 'cpu'),
  ('sync-memory', 'replicated', 'adagrad', 'dm', 'cpu'),
]


every_member = pytest.mark.parametrize(
  'member',
  [*QUICK, *(marking.slow(x) for x in SLOW)],
  ids='-'.join,
)


class Made(NamedTuple):
  """A member, and how often its step was traced."""

  trainable: base.Trainable
  strategy: base.Strategy
  traces: list[int]
  rate: float
  num_parts: int
  program: Any  # a dispatch, compiled ahead of time as the training loop does

  def step(self, state, batch, schedule):
    """A dispatch; the program takes nothing of another form."""
    args = dispatches.args(self.strategy, batch, schedule)
    return self.program(state, *args)

  def result(self, state):
    """The vectors."""
    table = self.trainable.model.vectors_table
    return self.strategy.export_rows(state, table).rows


def _traced(kind, *sizes):
  """Steps of a class that note when one is traced."""

  @dataclasses.dataclass(frozen=True)
  class Traced(kind):
    traces: list[int] = dataclasses.field(default_factory=list, hash=False)

    def step(self, *args):
      self.traces.append(1)
      return kind.step(self, *args)

  return Traced(*sizes)


@functools.cache
def _make(member):
  strategy, layout, optimizer, model, device = member
  strategy, _, policy = strategy.partition('-')
  name, _, loss = model.partition('-')
  settings = {
    'optimizer.name': optimizer, 'optimizer.learning_rate': 0.1,
    'model.name': name, 'model.dim': DIM,
    'data.sample': 0.0, 'train.batch_words': BATCH_WORDS,
    'strategy.name': strategy, 'table.layout': layout,
    'table.dtype': device.partition('-')[2] or 'float32',
  }  # fmt: skip
  counts, window, source = np.full(VOCAB, 100), WINDOW, None
  if name in DOCUMENTS:
    settings['data.source'] = 'documents'
    source = sources.Counted(counts, VOCAB)
  if name == 'dbow':  # which has none
    window = config_lib.default().model.window
  else:
    settings['model.window'] = window
  if strategy == 'replicas':
    settings['strategy.sync_every'] = 2 * BATCH_WORDS
    settings['strategy.policy'] = policy or 'bounded'
  if policy in ('memory', 'disk'):
    settings |= {'table.store': policy, 'table.device_bytes': '98%'}
  if policy.startswith('my_policy'):  # of the docs
    sys.modules['my_policy'] = module = types.ModuleType('my_policy')
    exec(runs.examples()['my_policy'], module.__dict__)
  if policy == 'hot':
    settings['strategy.hot_every'] = BATCH_WORDS
    settings['strategy.num_hot'] = VOCAB // 4
  if loss == 'tree':
    settings['model.loss'] = 'hierarchical_softmax'
  else:
    settings['model.shared_negatives'] = 8
  if loss == 'subwords':
    settings['model.subwords'] = '1-3'
  if name in ('mixture', 'contexts'):
    settings |= {
      'model.name': 'mixture',
      'senses.number': 3,
      'senses.top_ratio': 6.5 / VOCAB,
      'senses.method': 'likelihoods' if name == 'mixture' else 'contexts',
    }
  shape = (1, 1) if strategy == 'sync' else (2, 1)
  if layout != 'replicated':
    shape = (1, 2)
  kind = batches.Steps if source else windows.Steps
  steps = _traced(kind, BATCH_WORDS, shape[0], window, CHUNK)
  made = dispatches.trainer(
    counts,
    settings,
    shape,
    steps,
    source=source,
    chunk=CHUNK,
    parts=shape[0],
    shared_nodes=4,
    loss_every_steps=1,
    memory_lookups=5.0,  # forty words forget soon
    **DEVICES[device] | ({'deduplicates': True} if layout == 'row' else {}),
  )
  rate = RATES.get(f'{model}-{optimizer}', RATES[optimizer])
  shapes = _documents_of if source else lambda words: words
  _, lowered = dispatches.lowered(*made, MAX_STEPS, shapes)
  return Made(*made, steps.traces, rate, shape[0], lowered.compile())


def is_fused(member) -> bool:
  """Whether a kernel takes the steps of a member."""
  return _make(member).trainable.fused is not None


def _planted(made, seed, num_steps=MAX_STEPS):
  """For each part, sentences of words of one half of the vocabulary."""
  rng, half = np.random.default_rng((seed, 1)), VOCAB // 2
  shape = made.num_parts, num_steps * BATCH_WORDS // 8
  words = rng.integers(0, half, (*shape, 8)) + half * rng.integers(
    0, 2, (*shape, 1)
  )
  batch = dispatches.pack(
    list(words), VOCAB, made.trainable.steps, MAX_STEPS, seed
  )
  is_of_documents = made.trainable.model.vectors_table == 'documents'
  return _documents_of(batch) if is_of_documents else batch


def _documents_of(words):
  """A batch whose centers are of any document of their half."""
  size, half = words.left.shape[1], VOCAB // 2
  window = (words.ids.shape[1] - size) // 2
  centers = words.ids[:, window : window + size]
  documents = np.random.default_rng(3).integers(0, half, centers.shape)
  documents += half * (centers >= half)
  is_center = np.arange(size) < words.kept_words[:, None]
  padding = np.iinfo(np.int32).max
  documents = np.where(is_center, documents, padding).astype(np.int32)
  return batches.Batch(words, documents)


def _train(made, seed=0, key=KEY):
  """Two dispatches; the vectors and the metrics of both."""
  state, metrics = dispatches.start(made.strategy, seed=seed), []
  for i in range(2):
    schedule = dispatches.schedule(made.rate, made.rate / 2, key + np.uint32(i))
    state, found = made.step(state, _planted(made, i), schedule)
    metrics.append(jax.device_get(found))
  return made.result(state), metrics


@functools.cache
def _trained(member):
  return _train(_make(member))


@every_member
def test_learns_the_planted_problem(member):
  vectors, metrics = _trained(member)
  made = _make(member)
  losses = [m.steps.loss / m.steps.examples for m in metrics]
  # Of what a tree's words cost, chance is what remains.
  untrained = made.trainable.model.untrained_loss
  assert losses[1] < losses[0] < untrained
  assert losses[1] < (0.9 if 'tree' in member[3] else 0.7) * untrained
  for m in metrics:
    assert m.steps.first_bad_step == -1 and m.num_steps == MAX_STEPS
    kept_words, pairs = m.counters['kept_words'], m.counters['pairs']
    assert pairs > kept_words == made.num_parts * MAX_STEPS * BATCH_WORDS
    # Every context of every center, or every center that has one.
    is_of_centers = member[3].partition('-')[0] in ('cbow', *DOCUMENTS)
    examples = kept_words if is_of_centers else pairs
    if made.trainable.fused:  # of a chunk of each step, here one in four
      assert 0 < m.steps.examples < 0.5 * examples
    else:
      spec = getattr(made.trainable.model, 'spec', None)
      weights = getattr(spec, 'context_weights', ()) or (1,)
      assert examples * min(weights) <= m.steps.examples
      assert m.steps.examples <= examples * max(weights)
  if rows := getattr(made.trainable.model, 'rows', None):
    vectors = vectors[rows.starts[:-1]]  # any sense is of a half
  units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  cosines = units @ units.T
  half = VOCAB // 2
  within = np.concatenate([cosines[:half, :half], cosines[half:, half:]])
  # Without a word's cosine with itself.
  within = (within.sum() - VOCAB) / (within.size - VOCAB)
  assert within > cosines[:half, half:].mean() + 0.5


@every_member
def test_the_same_seed_gives_the_same_bits_and_others_do_not(member):
  made, first = _make(member), _trained(member)
  jax.tree.map(np.testing.assert_array_equal, _train(made), first)
  # Of the start, and of the negatives alone; a tree's words are not drawn.
  others = [(1, KEY), (0, KEY ^ np.uint32(1))]
  for seed, key in others[: 1 if 'tree' in member[3] else 2]:
    assert (_train(made, seed, key)[0] != first[0]).mean() > 0.9


@every_member
def test_one_program_for_all_dispatches_changes_the_state_in_place(member):
  made = _make(member)
  _trained(member)
  num_traces = len(made.traces)
  assert num_traces >= 1

  def form(state):
    return jax.tree.map(
      lambda x: (x.shape, x.dtype, x.weak_type, x.sharding.device_set), state
    )

  state = dispatches.start(made.strategy)
  before, result = form(state), made.result(state)
  rows = made.trainable.tables[made.trainable.model.vectors_table].spec.vocab
  assert result.shape == (rows, DIM) and result.dtype == np.float32
  kept = result.copy()
  for i, num_steps in enumerate([3, 1, 0]):
    schedule = dispatches.schedule(0.1 * i, 0, KEY + np.uint32(i))
    batch = _planted(made, i, num_steps)
    # Nor would it be traced again.
    if not made.strategy.store:  # which has several programs
      args = dispatches.args(made.strategy, batch, schedule)
      made.strategy.step.trace(state, *args)
    old, (state, metrics) = state, made.step(state, batch, schedule)
    assert metrics.num_steps == num_steps
    assert (metrics.steps.examples > 0) == (num_steps > 0)
    assert all(x.is_deleted() for x in jax.tree.leaves(old) if x.size)
    assert form(state) == before
  assert len(made.traces) == num_traces
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
  # What was exported is a copy.
  np.testing.assert_array_equal(result, kept)
