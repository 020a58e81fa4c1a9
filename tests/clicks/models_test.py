"""Models of clicks against plain loops in float64, and on meshes."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxemb.clicks import kind as click_kind
from jaxemb.clicks import models as clicks
from jaxemb.data import examples
from tests import log_of_clicks, marking

MODELS = tuple(click_kind.KINDS[0].models)
FIELDS = log_of_clicks.FIELDS
DIM = 3
KEY = np.array([5, 9], np.uint32)


def _model(name, **more):
  spec = clicks.ClickSpec(
    FIELDS, DIM, (5, 4), (4,), 2, 0.0, False, 'sgd', 1.0, 0.0
  )
  spec = dataclasses.replace(spec, **more)
  corpus = log_of_clicks.CORPUS
  return getattr(clicks, name)(spec, corpus)


def _filled(tree, rng):
  return jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape), tree)


def _perceptron(x, params):
  i = 0
  while f'layer_{i}' in params:
    layer = params[f'layer_{i}']
    x = np.maximum(x @ layer['kernel'] + layer['bias'], 0)
    i += 1
  return x


def _log_odds(name, params, vectors, weights, numbers):
  """Of one example, from its fields' vectors and weights."""
  flat = np.concatenate([*vectors, numbers])
  total = 0.0
  if 'first' in params:
    own = params['first']
    total += float(own['bias']) + sum(weights) + numbers @ own['slopes']
  if name in ('fm', 'deepfm'):
    for i, left in enumerate(vectors):
      for right in vectors[:i]:
        total += left @ right
  if 'deep' in params:
    own = params['deep']
    hidden = _perceptron(flat, own['layers'])
    total += (hidden @ own['output']['kernel'] + own['output']['bias'])[0]
  if name in ('dcn', 'dcn_v2'):
    own, x = params['cross' if name == 'dcn' else 'cross_matrix'], flat
    for i in range(2):
      layer = own[f'cross_{i}']
      if name == 'dcn':
        x = flat * (x @ layer['kernel'][:, 0]) + own[f'bias_{i}'] + x
      else:
        x = flat * (x @ layer['kernel'] + layer['bias']) + x
    x = np.concatenate([x, _perceptron(flat, own['layers'])])
    total += (x @ own['output']['kernel'] + own['output']['bias'])[0]
  if name == 'dlrm':
    own = params['dots']
    lower = _perceptron(numbers, own['lower'])
    every = [lower, *vectors]
    dots = [every[i] @ every[j] for i in range(len(every)) for j in range(i)]
    x = _perceptron(np.concatenate([lower, dots]), own['upper']['layers'])
    output = own['upper']['output']
    total += (x @ output['kernel'] + output['bias'])[0]
  return total


def _loss(name, params, tables, batch):
  """Summed over the examples, one by one."""
  total = 0.0
  for ids, numbers, label, weight in zip(*batch[:4], strict=True):
    pooled = {}
    for table, rows in tables.items():
      pooled[table] = []
      for field in FIELDS.ids:
        here = ids[field.first_column :][: field.num_columns]
        found = [rows[i] for i in here if i < FIELDS.vocab]
        each = sum(found, np.zeros(rows.shape[1]))
        if field.pooling == 'mean':
          each = each / max(len(found), 1)
        pooled[table].append(each)
    weights = [x[0] for x in pooled.get('weights', ())]
    odds = _log_odds(name, params, pooled.get('vectors', ()), weights, numbers)
    total += weight * np.logaddexp(0, -odds if label else odds)
  return total


def _of_rows(model, params, tables, batch):
  rows = {
    k: x[np.minimum(batch.ids, FIELDS.vocab - 1)] for k, x in tables.items()
  }
  return model.loss(params, rows, model.ids(batch, KEY), batch, KEY)[0]


@pytest.mark.parametrize('name', marking.slow_after(2, MODELS))
def test_losses_and_slopes_equal_the_loops(name):
  rng = np.random.default_rng(0)
  model = _model(name)
  params = _filled(jax.eval_shape(model.init, jax.random.key(0)), rng)
  tables = {
    k: rng.normal(0, 0.7, (FIELDS.vocab, x.dim))
    for k, x in model.specs().items()
  }
  batch = log_of_clicks.step_batch(9, rng)
  with jax.enable_x64(True):
    found = _of_rows(model, params, tables, batch)
    assert float(found) == pytest.approx(
      _loss(name, params, tables, batch), 1e-6
    )
    # Along random directions, by differences of the loops.
    slopes = jax.grad(lambda args: _of_rows(model, *args, batch))(
      (params, tables)
    )
    for seed in range(3):
      rng = np.random.default_rng(seed)
      way = _filled((params, tables), rng)

      def at(t, way=way):
        moved = jax.tree.map(lambda x, y: x + t * y, (params, tables), way)
        return _loss(name, *moved, batch)

      slope = (at(1e-5) - at(-1e-5)) / 2e-5
      products = jax.tree.map(lambda x, y: float(np.sum(x * y)), slopes, way)
      assert sum(jax.tree.leaves(products)) == pytest.approx(slope, 1e-4, 1e-4)


def test_units_are_dropped_at_random_but_repeatably():
  rng = np.random.default_rng(0)
  model = _model('wide_deep', dropout=0.4, hidden=(400,))
  run = clicks.Pass(model.spec, log_of_clicks.step_batch(64, rng), KEY)
  x = np.ones((64, 400), np.float32)
  first, second = np.asarray(run.drop(x)), np.asarray(run.drop(x))
  assert (first != second).mean() > 0.3  # layers differ
  again = clicks.Pass(model.spec, run.batch, KEY)
  np.testing.assert_array_equal(again.drop(x), first)
  np.testing.assert_allclose(np.unique(first), [0, 1 / 0.6])
  assert (first == 0).mean() == pytest.approx(0.4, abs=0.02)
  for axis in (0, 1):
    assert (first == 0).mean(axis).std() < 0.1
  # What predicts drops nothing.
  kept = clicks.Pass(model.spec, run.batch, None, ()).drop(x)
  np.testing.assert_array_equal(kept, x)


def test_norms_have_the_moments_of_examples_alone():
  rng = np.random.default_rng(0)
  batch = log_of_clicks.step_batch(64, rng)
  run = clicks.Pass(_model('wide_deep').spec, batch, KEY)
  x = rng.normal(2, 3, (64, 5)).astype(np.float32)
  x[np.asarray(batch.weights) == 0] = 1e6
  mean, variance = run.moments(x)
  real = x[np.asarray(batch.weights) > 0]
  np.testing.assert_allclose(mean, real.mean(0), 1e-5)
  np.testing.assert_allclose(variance, real.var(0), 1e-4)


def test_steps_are_cut_as_they_are_shared():
  steps = examples.Steps(4, 2)
  batch = log_of_clicks.batch(num_parts=2, size=8, num=13)
  whole = steps.step(batch, 1, _share(0, 2, 0, 1), 0)
  halves = [steps.step(batch, 1, _share(0, 2, i, 2), 0) for i in range(2)]
  order = np.argsort(np.concatenate([x.positions for x in halves]))
  for name in examples.StepBatch._fields:
    both = np.concatenate([getattr(x, name) for x in halves])
    np.testing.assert_array_equal(both[order], getattr(whole, name))
  assert len(set(np.asarray(whole.positions).tolist())) == 8
  is_none = np.asarray(whole.weights) == 0
  assert is_none.any()
  assert (np.asarray(whole.ids)[is_none] == examples.PADDING).all()
  padded = steps.pad(whole, np.bool_(False))
  assert not np.asarray(padded.weights).any()
  assert (np.asarray(padded.ids) == examples.PADDING).all()


def _share(first, num, split, num_splits):
  from jaxemb.data import base

  return base.Share(0, first, num, split, num_splits)


def test_small_slopes_count_for_dense_adagrad():
  # Such as means over thousands of examples have.
  optimizer = _model('deepfm', optimizer='adagrad').optimizer()
  params = {'a': np.zeros(3, np.float32)}
  slopes = {'a': np.array([1e-6, -3.0, 0.0], np.float32)}
  first, state = optimizer.update(slopes, optimizer.init(params), params)
  second, _ = optimizer.update(slopes, state, params)
  np.testing.assert_allclose(first['a'], [-1, 1, 0], rtol=2e-4)
  np.testing.assert_allclose(second['a'], np.array([-1, 1, 0]) / 2**0.5, 2e-4)
