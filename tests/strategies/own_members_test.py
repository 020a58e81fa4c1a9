"""A model, table and source of one's own: dense parameters and metrics.

Logistic regression on clicks: rows of the items' table, a dense vector and a
bias. Nothing of it is text.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxemb import errors
from jaxemb.models import base as model_base
from jaxemb.ops import sampling
from jaxemb.runtime import mesh
from jaxemb.strategies import base, policies, replicas
from jaxemb.tables import replicated, row_optimizers, row_sharded
from jaxemb.tables import spec as spec_lib
from tests import counting, dispatches, oracle

VOCAB, DIM, PARTS, PART_EXAMPLES, MAX_STEPS = 50, 4, 4, 8, 6
RATE, DENSE_RATE, MOMENTUM = 0.2, 0.3, 0.9
SCHEDULE = dispatches.schedule(RATE, RATE, progress=(0.25, 0.75))


class _Clicks(NamedTuple):
  """A batch; items from the vocabulary on are padding."""

  items: np.ndarray  # [P, steps, examples] int32
  clicked: np.ndarray  # [P, steps, examples] float32
  num_steps: np.ndarray  # [P] int32


class _Steps:
  """Cuts clicks into steps of (items, clicked, progress)."""

  def num_steps(self, batch):
    return batch.num_steps

  def step(self, batch, index, share, progress):
    size = PART_EXAMPLES // share.num_splits
    starts = share.first_part, index, share.split * size
    items, clicked = (
      jax.lax.dynamic_slice(x, starts, (share.num_parts, 1, size))[:, 0]
      for x in batch[:2]
    )
    return items, clicked, progress

  def pad(self, step_batch, is_step):
    return jnp.where(is_step, step_batch[0], VOCAB), *step_batch[1:]

  def counters(self, batch):
    return {'clicks': jnp.sum(batch.clicked).astype(jnp.int32)}


class _Plain(model_base.Model):
  """Of a class that JAX does not know."""

  vectors_table = 'items'
  dtype = 'float32'  # not an array for having one
  metrics = ('clicks', 'progress')
  traces = 0

  def specs(self):
    return {'items': spec_lib.TableSpec('items', VOCAB, DIM, 0.5)}

  def init(self, key):
    weights = jax.random.normal(key, (DIM,))
    return {'weights': weights, 'bias': jnp.zeros(())}

  def optimizer(self):
    return optax.sgd(DENSE_RATE, MOMENTUM)

  def ids(self, batch, key):
    self.__class__.traces += 1
    return {'items': batch[0]}

  def offsets(self, items):
    return jnp.zeros(items.shape)

  def loss(self, params, rows, ids, batch, key):
    items, clicked, progress = batch
    is_example = (items < VOCAB).astype(jnp.float32)
    scores = rows['items'] @ params['weights'] + params['bias']
    scores += self.offsets(items)
    loss = sampling.logistic_loss(scores, clicked) * is_example
    count = is_example.sum()
    metrics = {
      'clicks': jnp.sum(is_example * clicked),
      'progress': progress * count,
    }
    return loss.sum(), model_base.Aux(count, metrics)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Registered(_Plain):
  """Of a class that JAX knows, with an array."""

  offset: jax.Array  # [VOCAB] float32

  def offsets(self, items):
    return self.offset.at[items].get(mode='clip')


class _Counting(replicated.Replicated):
  """A table that counts its lookups."""

  metrics = ('lookups',)

  def lookup(self, state, ids):
    found = super().lookup(state, ids)
    return found._replace(metrics={'lookups': jnp.int32(1)})


@functools.cache
def _batch():
  rng = np.random.default_rng(0)
  shape = PARTS, MAX_STEPS, PART_EXAMPLES
  items = rng.integers(0, VOCAB, shape).astype(np.int32)
  # The last part has two steps, and a batch has one that nobody takes.
  num_steps = np.array([5, 5, 5, 2], np.int32)
  items[np.arange(MAX_STEPS) >= num_steps[:, None]] = VOCAB
  return _Clicks(items, (items % 3 == 0).astype(np.float32), num_steps)


def _trainable(model, steps_per_loop=1, layout=_Counting, *axes):
  spec = model.specs()['items']
  tables = {'items': layout(spec, row_optimizers.sgd(0), *axes)}
  return base.Trainable(model, tables, _Steps(), 1, steps_per_loop)


def _alone(model):
  return base.sync(_trainable(model), mesh.make(mesh.Shape(1, 1)))


@functools.cache
def _loops():
  """Rows, dense parameters and their momentum after two dispatches."""
  start = _trainable(_Plain()).init(jax.random.key(0))
  rows = np.asarray(start.tables['items'].vectors, np.float64)
  dense = np.append(start.params['weights'], 0.0).astype(np.float64)
  speed = np.zeros(DIM + 1)
  for step in [*range(5), *range(5)]:
    items = _batch().items[:, step].reshape(-1)
    clicked = _batch().clicked[:, step].reshape(-1)
    changes, slopes = np.zeros_like(rows), []
    for item, label in zip(items, clicked, strict=True):
      if item < VOCAB:
        row = np.append(rows[item], 1)
        slope = oracle.sigmoid(row @ dense) - label
        changes[item] -= RATE * slope * dense[:-1]
        slopes.append(slope * row)
    speed = MOMENTUM * speed + np.mean(slopes, 0)
    dense = dense - DENSE_RATE * speed
    rows += changes
  return rows, dense, speed


@pytest.mark.slow
@pytest.mark.parametrize(
  ('shape', 'steps_per_loop', 'layout'),
  [
    ((1, 1), 4, _Counting),  # the last three of eight steps are padding
    ((2, 2), 4, row_sharded.RowSharded),
  ],
)
def test_dense_parameters_learn_as_in_a_loop(shape, steps_per_loop, layout):
  axes = spec_lib.Axes(*shape)
  trainable = _trainable(_Plain(), steps_per_loop, layout, axes)
  strategy = base.sync(trainable, mesh.make(mesh.Shape(*shape)))
  state = dispatches.start(strategy)
  for _ in range(2):
    state, metrics = dispatches.run(strategy, state, _batch(), SCHEDULE)
  rows, *expected = _loops()
  found = dispatches.exported(strategy, state)['items']
  np.testing.assert_allclose(found, rows, 1e-5, 1e-6)
  for tree, dense in zip(state[1:], expected, strict=True):
    bias, weights = jax.tree.leaves(tree)
    np.testing.assert_allclose([*weights, bias], dense, 1e-5, 1e-6)
  items, clicked, _ = _batch()
  sums, count = metrics.steps.sums, (items < VOCAB).sum()
  assert sums['clicks'] == clicked[items < VOCAB].sum()
  # From .25 to .75 in five steps.
  progress = 0.25 + 0.1 * np.arange(MAX_STEPS)
  np.testing.assert_allclose(
    sums['progress'], ((items < VOCAB).sum((0, 2)) * progress).sum(), 1e-5
  )
  # Every device looks up in every step, and a loop is run to its end.
  run = -(-5 // steps_per_loop) * steps_per_loop
  lookups = {'lookups': run} if layout is _Counting else {'overflow_rounds': 0}
  assert {k: sums[k] for k in sums if k not in _Plain.metrics} == lookups
  assert metrics.steps.examples == count and metrics.num_steps == 5
  assert metrics.counters == {'clicks': clicked.sum()}


@pytest.mark.slow
def test_replicas_average_dense_parameters():
  lookups = {'items': np.full(VOCAB, 1 / VOCAB)}
  # They synchronise once, after all steps.
  policy = policies.bounded(lookups, 4, PART_EXAMPLES, 5, 1e9, 1.0, 1.0)
  devices = mesh.make(mesh.Shape(4, 1))
  strategy = replicas.replicas(_trainable(_Plain()), devices, lambda _: policy)
  start = dispatches.start(strategy)
  one, metrics = jax.device_get(
    dispatches.run(strategy, start, _batch(), SCHEDULE)
  )
  strategy, alone = _alone(_Plain()), []
  for i in range(4):
    batch = jax.tree.map(lambda x, i=i: x[i : i + 1], _batch())
    start = dispatches.start(strategy)
    alone.append(dispatches.run(strategy, start, batch, SCHEDULE)[0])
  alone = jax.tree.map(lambda *x: np.stack(x), *alone)
  for k, x in one.params.items():
    np.testing.assert_array_equal(x, np.broadcast_to(x[:1], x.shape))
    np.testing.assert_allclose(x[0], alone.params[k].mean(0), 1e-5, 1e-6)
  # The state of the optimizer stays with its replica.
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6),
    one.optimizer,
    alone.optimizer,
  )
  items, clicked = _batch()[:2]
  assert (
    metrics.steps.sums['clicks'] == np.where(items < VOCAB, clicked, 0).sum()
  )
  assert metrics.steps.sums['lookups'] == 5


def test_models_share_a_dispatch_if_their_arrays_are_arguments():
  offset = np.linspace(-1, 1, VOCAB, dtype=np.float32)
  strategy = _alone(_Registered(offset))
  np.testing.assert_array_equal(strategy.constants()[0], offset)
  _Registered.traces = 0

  def trained(offset):
    state = dispatches.start(strategy)
    _, batch, schedule = dispatches.args(strategy, _batch(), SCHEDULE)
    state, _ = strategy.step(state, [jnp.asarray(offset)], batch, schedule)
    return np.asarray(state.params['bias'])

  first, other = trained(offset), trained(offset + 1)
  assert _Registered.traces == 1 and first != other
  # What is compiled into a program needs no arguments.
  assert _alone(_Plain()).constants() == []


def without_lookups(spec, corpus, loss_of):
  """A model that does not say how often rows are looked up."""
  model = counting.make(spec, corpus, loss_of)
  table = dataclasses.replace(model.table, lookups_per_center=None)
  return dataclasses.replace(model, table=table)


@pytest.mark.parametrize(
  ('shape', 'settings'),
  [
    ((2, 1), {'strategy.name': 'replicas'}),
    ((1, 1), {'table.store': 'memory', 'table.device_bytes': '50%'}),
  ],
)
def test_replicas_and_stores_need_lookups_of_rows(shape, settings):
  settings |= {'model.name': f'{__name__}:without_lookups'}
  with pytest.raises(errors.UserError, match="'input' has no lookups_per_cent"):
    dispatches.trainer(np.full(40, 100), settings, shape)
