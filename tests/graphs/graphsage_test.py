"""GraphSAGE against plain loops in float64."""

import dataclasses
import types

import jax
import numpy as np
import pytest
from scipy import sparse

from jaxemb.data import examples
from jaxemb.graphs import features as features_lib
from jaxemb.graphs import graphsage, neighbors
from jaxemb.models import base
from tests import marking

NUM_NODES, FEATURES, DIM, CLASSES = 30, 5, 3, 4
FANOUTS = (3, 2)
KEY = np.array([5, 9], np.uint32)
SPEC = graphsage.SageSpec(
  FANOUTS,
  NUM_NODES,
  FEATURES,
  DIM,
  (6, CLASSES),
  'mean',
  from_walks=False,
  has_many=False,
  dropout=0.0,
  negatives=5.0,
  chunk=4,
  temperature=0.0,
  step_examples=8,
  optimizer='sgd',
  dense_rate=1.0,
  dense_decay=0.0,
)


def _made(num_nodes=NUM_NODES, **more):
  """A model with random features, parameters and rows."""
  rng = np.random.default_rng(3)
  spec = dataclasses.replace(SPEC, num_nodes=num_nodes, **more)
  features = rng.normal(size=(1000, FEATURES)).astype(np.float32)
  rows = rng.normal(size=(1000, DIM)).astype(np.float32)[:num_nodes]
  features = features[:num_nodes] if spec.num_features else None
  source = types.SimpleNamespace(features=features)
  counts = np.ones(num_nodes)
  names = [str(i) for i in range(num_nodes)]
  model = graphsage.make(spec, base.Corpus(names, counts, counts, source))
  params = model.init(jax.random.key(1))
  params = jax.tree.map(
    lambda x: x + rng.normal(0, 0.2, x.shape).astype(np.float32), params
  )
  return model, params, rows


def _batch(spec, num=8):
  """Trees with padding, one of whose nodes does not count."""
  rng = np.random.default_rng(4)
  size = neighbors.tree_sizes(FANOUTS)[-1]
  ids = rng.integers(0, NUM_NODES, (num * spec.num_trees, size))
  ids[0, 1:] = ids[2, 2] = ids[2, 6:8] = ids[5, 9] = examples.PADDING
  weights = np.ones(num, np.float32)
  weights[3] = 0
  return examples.StepBatch(
    ids.reshape(num, -1).astype(np.int32),
    rng.integers(0, 2, (num, CLASSES)).astype(np.float32),
    rng.integers(0, CLASSES, num).astype(np.float32),
    weights,
    np.arange(num, dtype=np.uint32),
  )


def _product(x, own):
  """Of the features and the row of a node, or what a lower layer made."""
  rows = own.get('rows', np.zeros((0, 1)))
  total = 0.0
  if 'features' in own:
    num = len(own['features'])
    total = total + x[:num] @ own['features']
    x = x[num:]
  if len(rows) and len(x):
    total = total + x @ rows
  return total + own.get('bias', 0.0)


def _output(model, params, inputs, ids):
  """Of a tree, depth by depth; `inputs` [nodes, ...]."""
  children = {i: [] for i in range(10)}
  for i in range(1, 4):
    children[0].append(i)
    children[i] = [4 + 2 * (i - 1), 5 + 2 * (i - 1)]
  h = {i: inputs[x] for i, x in enumerate(ids) if x != examples.PADDING}
  for number, places in ((0, range(4)), (1, range(1))):
    layer, new = params[f'layer_{number}'], {}
    for i in places:
      if i not in h:
        continue
      some = [h[j] for j in children[i] if j in h]
      if model.spec.aggregator == 'max':
        some = [np.maximum(_product(x, layer['pool']), 0) for x in some]
        some = np.max(some, 0) if some else np.zeros(6)
      else:
        some = np.mean(some, 0) if some else np.zeros(len(h[i]))
      new[i] = _product(h[i], layer['own'])
      new[i] = new[i] + _product(some, layer['neighbors'])
    h = {k: np.maximum(x, 0) if number == 0 else x for k, x in new.items()}
  return h[0]


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _loss(model, params, inputs, batch):
  spec, total = model.spec, 0.0
  ids = batch.ids.reshape(len(batch.ids), spec.num_trees, -1)
  found = np.array(
    [[_output(model, params, inputs, x) for x in some] for some in ids]
  )
  if spec.temperature:
    found /= np.linalg.norm(found, axis=-1, keepdims=True)
  for i, outputs in enumerate(found):
    if not batch.weights[i]:
      continue
    if spec.from_walks:
      scale = spec.temperature or 1.0
      total -= np.log(_sigmoid(outputs[0] @ outputs[1] / scale))
      first = i // spec.chunk * spec.chunk
      others = range(first, first + spec.chunk)
      others = [j for j in others if batch.weights[j]]
      for j in others:
        score = outputs[0] @ found[j, 2] / scale
        total -= spec.negatives / len(others) * np.log(_sigmoid(-score))
    elif spec.has_many:
      chances = _sigmoid(outputs[0])
      right = np.where(batch.numbers[i], chances, 1 - chances)
      total -= np.log(right).mean()
    else:
      chances = np.exp(outputs[0]) / np.exp(outputs[0]).sum()
      total -= np.log(chances[int(batch.labels[i])])
  return total


def _rows(model, rows, batch):
  ids = np.where(batch.ids < model.spec.num_nodes, batch.ids, 0)
  return {graphsage.NODES: rows[ids]} if model.spec.dim else {}


@pytest.mark.parametrize(
  'more',
  [
    {'dim': 0, 'aggregator': 'max', 'has_many': True},
    *marking.slow_after(
      0,
      [
        {},
        {'from_walks': True, 'aggregator': 'max'},
        {'from_walks': True, 'temperature': 0.3, 'num_features': 0},
      ],
    ),
  ],
)
def test_loss_is_that_of_loops(more):
  # With many nodes features are gathered, with few multiplied first.
  for num_nodes in (NUM_NODES, 1000):
    model, params, rows = _made(num_nodes, **more)
    batch = _batch(model.spec)
    args = params, _rows(model, rows, batch), {}, batch, KEY
    found, aux = model.loss(*args)
    assert aux.examples == 7
    params64 = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    inputs = np.zeros((num_nodes, 0))
    if model.spec.num_features:
      inputs = np.concatenate([inputs, model.features], 1)
    if model.spec.dim:
      inputs = np.concatenate([inputs, rows], 1)
    expected = _loss(model, params64, inputs.astype(np.float64), batch)
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.slow
def test_dropout_is_by_node_and_right_on_average():
  found = {}
  for num_nodes in (NUM_NODES, 1000):
    model, params, rows = _made(num_nodes, dropout=0.4)
    batch = _batch(model.spec)
    args = params, _rows(model, rows, batch), batch
    found[num_nodes] = model.outputs(*args, KEY)
  # Whether features are gathered before or behind the product.
  np.testing.assert_allclose(found[NUM_NODES], found[1000], atol=1e-5)
  # Without a relu the network is linear, and what is dropped has no effect on
  # the mean.
  model, params, rows = _made(dropout=0.4, sizes=(CLASSES,), fanouts=(9,))
  args = params, _rows(model, rows, batch), batch
  keys = np.random.default_rng(0).integers(0, 2**32, (1000, 2), np.uint32)
  each = jax.vmap(lambda key: model.outputs(*args, key))(keys)
  model = dataclasses.replace(
    model, spec=dataclasses.replace(model.spec, dropout=0.0)
  )
  whole = model.outputs(*args, KEY)
  error = np.std(each, 0) / 1000**0.5
  assert np.all(np.abs(np.mean(each, 0) - whole) < 5 * error + 1e-6)
  assert np.std(each, 0).min() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize('dropout', [0.0, 0.4])
def test_sparse_features_learn_what_dense_ones_do(dropout):
  model, params, rows = _made(1000, dropout=dropout, dim=0)
  # Of one feature all nodes, of another none; a node without any.
  rng = np.random.default_rng(0)
  matrix = rng.random((1000, FEATURES)) * (rng.random((1000, FEATURES)) < 0.1)
  matrix[:, 1], matrix[:, 3], matrix[7] = rng.random(1000), 0, 0
  matrix = matrix.astype(np.float32)
  batch = _batch(model.spec)
  batch.ids[4:, 0], batch.ids[1, 0] = np.arange(960, 964), 7
  lists = features_lib.on_device(sparse.csr_matrix(matrix))

  def loss(params, features):
    made = dataclasses.replace(model, features=features)
    return made.loss(params, {}, {}, batch, KEY)[0]

  dense, of_lists = (
    jax.value_and_grad(loss)(params, x) for x in (matrix, lists)
  )
  for x, y in zip(*map(jax.tree.leaves, (dense, of_lists)), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
