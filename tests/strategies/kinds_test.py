"""Models of clicks and of nodes on every layout, mesh, store and strategy."""

import functools
import types

import jax
import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb.data import examples
from jaxemb.graphs import labels, neighbors
from jaxemb.models import base
from jaxemb.runtime import hlo
from tests import dispatches, log_of_clicks

NODES, CLASSES, PARTS, EXAMPLES = 240, 3, 4, 32  # examples of a step in all
FANOUTS = 3, 2
RATE = 0.02
USUAL = {
  'strategy.name': 'sync',
  'model.dim': 5,
  'train.batch_examples': EXAMPLES,
  'optimizer.learning_rate': RATE,
  'optimizer.final_learning_rate': RATE,
}
CLICKS = {
  'data.source': 'clicks',
  'model.name': 'deepfm',
  'model.hidden': '8,4',
  'optimizer.name': 'adam_full',
}
GRAPH = {
  'data.source': 'nodes',
  'data.fanouts': '2,3',
  'model.name': 'graphsage',
  'model.inputs': 'both',
  'model.hidden': '8',
  'optimizer.name': 'adagrad_full',
  'optimizer.dense': 'sgd',
  'optimizer.dense_learning_rate': 0.5,
}
# Adam divides by the size of gradients, even of those that are nothing but
# rounding.
STEADY = {'optimizer__name': 'adagrad_full', 'optimizer__dense': 'sgd'}
WALKS = {
  'data__targets': 'walks',
  'train__batch_examples': 128 * PARTS,  # chunks of 64 for each device
  'model__temperature': 0.2,
}
pytestmark = pytest.mark.slow


@functools.cache
def _graph():
  """Nodes whose neighbors are mostly of their class, with noisy features."""
  rng = np.random.default_rng(0)
  degrees = rng.integers(0, 6, NODES)
  offsets = np.concatenate([[0], np.cumsum(degrees)])
  others = rng.integers(0, NODES // CLASSES, offsets[-1]) * CLASSES
  others += np.repeat(np.arange(NODES) % CLASSES, degrees)
  features = np.eye(CLASSES, 4)[np.arange(NODES) % CLASSES]
  features += rng.normal(0, 1, features.shape)
  return offsets, others.astype(np.int32), features.astype(np.float32)


def _graph_corpus():
  offsets, others, features = _graph()
  trees = neighbors.Trees(offsets, others, FANOUTS)
  lookups = trees.expected_lookups(np.full(NODES, 1 / NODES))
  names = [str(i) for i in range(NODES)]
  source = types.SimpleNamespace(
    fanouts=FANOUTS,
    features=features,
    labels=labels.Labels(np.arange(NODES) % CLASSES),
  )
  return base.Corpus(names, np.diff(offsets), lookups, source)


def trainer(is_graph, shape=(1, 1), parts=PARTS, cluster=None, **settings):
  """What trains, given settings whose names have __ for dots."""
  usual = USUAL | (GRAPH if is_graph else CLICKS)
  settings = usual | {k.replace('__', '.'): v for k, v in settings.items()}
  config = config_lib.check(config_lib.default(), settings)
  config, tuning = config_lib.resolve(config, 'cpu', shape, parts=parts)
  steps = examples.Steps(tuning.part_words, tuning.parts)
  corpus = _graph_corpus() if is_graph else log_of_clicks.CORPUS
  return dispatches.made(
    config, tuning, shape, corpus=corpus, steps=steps, cluster=cluster
  )


def batch(is_graph, num_parts, size, num, seed, num_trees=1):
  """`num` examples in all, in parts whose last ones have places without any."""
  if not is_graph:
    return log_of_clicks.batch(num_parts, size, num, seed)
  rng = np.random.default_rng(seed)
  offsets, others, _ = _graph()
  roots = rng.integers(0, NODES, num_parts * size * num_trees).astype(np.int32)
  trees = neighbors.Trees(offsets, others, FANOUTS)
  ids = trees.sample(roots, np.arange(len(roots)), np.uint64(seed))
  ids = ids.reshape(num_parts, size, -1)
  labels = (ids[..., 0] % CLASSES).astype(np.float32)
  each = np.full(num_parts, num // num_parts)
  each[: num % num_parts] += 1
  labels[np.arange(size)[None] >= each[:, None]] = -1
  numbers = np.zeros((num_parts, size, 0), np.float32)
  steps = np.full(num_parts, 4, np.int32)
  return examples.Batch(ids, numbers, labels, steps, each.astype(np.int32))


@functools.cache
def _trained(is_graph, shape=(1, 1), num_dispatches=2, parts=PARTS, **settings):
  """Rows by table, dense parameters and mean losses after some dispatches."""
  made = trainer(is_graph, shape, parts, **settings)
  strategy, losses = made.strategy, []
  state = dispatches.start(strategy)
  num_trees = made.trainable.model.spec.num_trees if is_graph else 1
  size = 4 * made.trainable.steps.part_examples
  num = parts * (size - 1) - 1  # the last step is not full
  for i in range(num_dispatches):
    some = batch(is_graph, parts, size, num, i % 2, num_trees)
    some = some._replace(num_steps=np.full(parts, 4, np.int32))
    now = dispatches.schedule(RATE, RATE, np.array([i, 7], np.uint32))
    state, found = dispatches.run(strategy, state, some, now)
    assert found.counters['examples'] == num
    assert found.steps.first_bad_step == -1
    losses.append(found.steps.loss / found.steps.examples)
  rows = {k: strategy.export_rows(state, k).rows for k in made.trainable.tables}
  params = jax.device_get(state.params)
  if strategy.store:
    strategy.store.close()
  return rows, params, losses


def _assert_close(found, expected, tolerance):
  close = functools.partial(
    np.testing.assert_allclose, rtol=tolerance, atol=tolerance
  )
  jax.tree.map(close, found, expected)


# What a mesh and a layout do they do to any model: each of them is met with a
# model or two, and each model with one of them.
@pytest.mark.parametrize(
  ('is_graph', 'shape', 'layout', 'more'),
  [
    (False, (2, 2), 'row', STEADY | {'optimizer__decay': 0.01}),
    (False, (2, 2), 'column', STEADY | {'model__name': 'wide_deep',
                                        'model__batch_norm': True}),
    (False, (2, 1), 'replicated', STEADY | {'model__name': 'wide_deep',
                                            'model__dropout': 0.3}),
    (True, (2, 2), 'row', {'model__dropout': 0.3}),
    (True, (2, 2), 'replicated', {'model__inputs': 'features'}),  # no tables
    (True, (1, 2), 'column', WALKS),
  ],
)  # fmt: skip
def test_meshes_and_layouts_agree(is_graph, shape, layout, more):
  more = more | {'optimizer__dense': 'sgd'}
  found = _trained(is_graph, shape, table__layout=layout, **more)
  _assert_close(found, _trained(is_graph, **more), 1e-3)


@pytest.mark.parametrize(('is_graph', 'size'), [(False, '90%'), (True, '95%')])
def test_stores_change_no_more_than_rounding(is_graph, size):
  more = {'optimizer__name': 'adam_full', 'parts': 1}
  kept = {'table__store': 'memory', 'table__device_bytes': size}
  found = _trained(is_graph, **kept, **more)
  _assert_close(found[:2], _trained(is_graph, **more)[:2], 1e-5)


@pytest.mark.parametrize('is_graph', [False, True])
def test_replicas_learn(is_graph):
  more = {'strategy__name': 'replicas', 'strategy__sync_every': 2 * EXAMPLES}
  if not is_graph:
    more |= {'strategy__policy': 'hot', 'strategy__hot_every': EXAMPLES}
  losses = _trained(is_graph, (2, 1), num_dispatches=30, **more)[2]
  assert losses[-1] < (0.6 if is_graph else 0.95) * losses[0]


@pytest.mark.parametrize(
  ('is_graph', 'more'),
  [
    (False, {'optimizer__decay': 0.01}),
    (False, {'optimizer__name': 'adagrad_full', 'table__dtype': 'bfloat16'}),
    (True, {}),
  ],
)
def test_no_table_is_copied(is_graph, more):
  made = trainer(is_graph, **more)
  now = dispatches.schedule(RATE, RATE)
  state = dispatches.start(made.strategy)
  some = batch(is_graph, PARTS, 32, 100, 0)
  args = dispatches.args(made.strategy, some, now)
  text = made.strategy.step.lower(state, *args).compile().as_text()
  num = NODES if is_graph else log_of_clicks.FIELDS.vocab
  assert not {(num, 5), (num, 1)} & hlo.copied_arrays(text)
