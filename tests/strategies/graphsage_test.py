"""GraphSAGE on meshes, layouts and stores, in replicas."""

import functools
import types

import jax
import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb.data import examples
from jaxemb.graphs import neighbors, trees
from jaxemb.models import base
from jaxemb.run import build
from jaxemb.runtime import hlo, mesh
from tests import dispatches, marking

NODES, CLASSES, PARTS, EXAMPLES = 240, 3, 4, 32
TREE = trees.Tree((3, 2))
RATE = 0.02
USUAL = {
  'data.source': 'nodes',
  'data.fanouts': '2,3',
  'eval.monitor': 'score',
  'strategy.name': 'sync',
  'model.name': 'graphsage',
  'model.inputs': 'both',
  'model.dim': 5,
  'model.hidden': '8',
  'train.batch_examples': EXAMPLES,
  'optimizer.name': 'adagrad_full',
  'optimizer.dense': 'sgd',
  'optimizer.learning_rate': RATE,
  'optimizer.final_learning_rate': RATE,
  'optimizer.dense_learning_rate': 0.5,
}


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


def trainer(shape=(1, 1), parts=PARTS, cluster=None, **settings):
  settings = USUAL | {k.replace('__', '.'): v for k, v in settings.items()}
  config = config_lib.check(config_lib.default(), settings)
  config, tuning = config_lib.resolve(config, 'cpu', shape, parts=parts)
  steps = examples.Steps(tuning.part_words, tuning.parts)
  offsets, others, features = _graph()
  chances = np.full(NODES, 1 / NODES)
  args = offsets, others, chances, TREE, False
  lookups = neighbors.expected_lookups(*args)
  nodes = trees.Nodes(TREE, features, CLASSES, False)
  names = [str(i) for i in range(NODES)]
  counts = np.diff(offsets)
  corpus = base.Corpus(
    names, counts, lookups, types.SimpleNamespace(nodes=nodes)
  )
  devices = mesh.make(mesh.Shape(*shape))
  args = config, tuning, devices, corpus, steps
  return build.trainer(*args, cluster=cluster)


def random_batch(num_parts, size, num, seed, num_trees=1):
  """`num` nodes in all, in parts whose last ones have a place without any."""
  rng = np.random.default_rng(seed)
  offsets, others, _ = _graph()
  roots = rng.integers(0, NODES, num_parts * size * num_trees).astype(np.int32)
  args = roots, np.arange(len(roots)), np.uint64(seed), TREE
  ids = neighbors.sample(offsets, others, *args)
  ids = ids.reshape(num_parts, size, -1)
  labels = (ids[..., 0] % CLASSES).astype(np.float32)
  each = np.full(num_parts, num // num_parts)
  each[: num % num_parts] += 1
  labels[np.arange(size)[None] >= each[:, None]] = -1
  numbers = np.zeros((num_parts, size, 0), np.float32)
  steps = np.full(num_parts, 4, np.int32)
  return examples.Batch(ids, numbers, labels, steps, each.astype(np.int32))


@functools.cache
def _trained(shape=(1, 1), num_dispatches=2, parts=PARTS, **settings):
  """Rows, dense parameters and mean losses after some dispatches."""
  made = trainer(shape, parts, **settings)
  strategy, losses = made.strategy, []
  state = dispatches.start(strategy)
  num_trees = made.trainable.model.spec.num_trees
  for i in range(num_dispatches):
    size = 4 * made.trainable.steps.part_examples
    # The last step is not full.
    num = parts * (size - 1) - 1
    batch = random_batch(parts, size, num, i % 2, num_trees)
    now = dispatches.schedule(RATE, RATE, np.array([i, 7], np.uint32))
    state, found = dispatches.run(strategy, state, batch, now)
    assert found.counters['examples'] == num
    assert found.steps.first_bad_step == -1
    losses.append(found.steps.loss / found.steps.examples)
  rows = {k: strategy.export_rows(state, k).rows for k in made.trainable.tables}
  params = jax.device_get(state.params)
  if strategy.store:
    strategy.store.close()
  return rows, params, losses


def _are_close(found, expected, tolerance):
  jax.tree.map(
    functools.partial(
      np.testing.assert_allclose, rtol=tolerance, atol=tolerance
    ),
    found[:2],
    expected[:2],
  )


WALKS = {
  'data__targets': 'walks',
  'train__batch_examples': 64 * PARTS,
  'model__temperature': 0.2,
}


@pytest.mark.slow
@pytest.mark.parametrize(
  'more',
  [
    {},
    {'model__inputs': 'features'},
    {'model__inputs': 'rows', 'model__aggregator': 'max'},
    WALKS,
  ],
  ids=['both', 'features', 'rows', 'walks'],
)
def test_models_learn(more):
  losses = _trained(num_dispatches=30, **more)[2]
  assert losses[-1] < (0.9 if more is WALKS else 0.5) * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('shape', 'layout', 'more'),
  [
    marking.slow((2, 2), 'row', {'model__dropout': 0.3}),
    # Without tables.
    marking.slow((2, 2), 'replicated', {'model__inputs': 'features'}),
    marking.slow((1, 2), 'column', WALKS),
  ],
)
def test_meshes_and_layouts_agree(shape, layout, more):
  if more is WALKS:  # chunks of 64 for each device
    more = more | {'train__batch_examples': 128 * PARTS}
  found = _trained(shape, table__layout=layout, **more)
  _are_close(found, _trained(**more), 1e-3)
  assert found[2] == pytest.approx(_trained(**more)[2], 1e-4)


@pytest.mark.slow
def test_stores_change_no_more_than_rounding():
  more = {'optimizer__name': 'adam_full', 'parts': 1}
  found = _trained(table__store='memory', table__device_bytes='95%', **more)
  _are_close(found, _trained(**more), 1e-5)


@pytest.mark.slow
def test_replicas_learn():
  more = {'strategy__name': 'replicas', 'strategy__sync_every': 2 * EXAMPLES}
  losses = _trained((2, 1), num_dispatches=30, **more)[2]
  assert losses[-1] < 0.6 * losses[0]


@pytest.mark.slow
def test_no_table_is_copied():
  made = trainer()
  now = dispatches.schedule(RATE, RATE)
  state = dispatches.start(made.strategy)
  args = dispatches.args(made.strategy, random_batch(PARTS, 32, 100, 0), now)
  text = made.strategy.step.lower(state, *args).compile().as_text()
  assert not {(NODES, 5)} & hlo.copied_arrays(text)
