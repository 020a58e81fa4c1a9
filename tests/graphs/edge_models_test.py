"""Models of edges against loops in float64, and their draws."""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb import errors
from jaxemb.data import examples
from jaxemb.graphs import edge_models as edges
from jaxemb.models import base as models
from jaxemb.ops import operators, sampling
from tests import marking

# Few nodes: most draws are some edge's true end.
NODES, KINDS, DIM, CHUNK, DRAWS, NUM = 9, 3, 4, 4, 6, 10
KEY = np.array([5, 9], np.uint32)
LOSSES = {
  'softmax': sampling.softmax_loss,
  'margin': edges.margin,
  'logistic': edges.logistic,
}


def _corpus(partitions=None):
  degrees = np.arange(NODES, 0, -1)
  return models.Corpus(
    [],
    degrees,
    2 * degrees / degrees.sum(),
    types.SimpleNamespace(
      relation_frequencies=np.full(KINDS, 1 / KINDS), partitions=partitions
    ),
  )


def _spec(vocab=NODES):
  return models.WindowSpec(vocab, DIM, 1, 3, CHUNK, DRAWS)


def _relations(operator, loss='softmax', temperature=0.0):
  args = _corpus(), LOSSES[loss], operator, temperature
  return edges.relations(_spec(), *args)


def _batch(num=12, num_edges=NUM, first=0):
  rng = np.random.default_rng(1)
  ids = rng.integers(0, (NODES, NODES, KINDS), (num, 3)).astype(np.int32)
  ids[num_edges:] = examples.PADDING
  weights = (np.arange(num) < num_edges).astype(np.float32)
  numbers = rng.uniform(0.5, 2, (num, 1)).astype(np.float32)
  positions = np.arange(first, first + num, dtype=np.uint32)
  arrays = ids, numbers, weights, weights, positions
  return examples.StepBatch(*map(jnp.asarray, arrays))


def _ids(model, batch):
  return jax.jit(lambda model, batch: model.ids(batch, KEY))(model, batch)


def _operated(operator, x, a):
  if operator == 'none':
    return x
  if operator == 'translation':
    return [p + q for p, q in zip(x, a, strict=True)]
  if operator == 'diagonal':
    return [p * (1 + q) for p, q in zip(x, a, strict=True)]
  found = []
  for i in range(0, DIM, 2):
    z = complex(x[i], x[i + 1]) * (1 + complex(a[i], a[i + 1]))
    found += [z.real, z.imag]
  return found


def _loss(name, first, others):
  if name == 'softmax':
    return math.log(sum(map(math.exp, (first, *others)))) - first
  if name == 'margin':
    return sum(max(0.0, 0.1 - first + x) for x in others)
  num = CHUNK + DRAWS  # those that do not count are among it
  near = math.log1p(math.exp(-first))
  return near + sum(math.log1p(math.exp(x)) for x in others) / num


def _slow(operator, name, temperature, nodes, operators, ids, batch):
  """The loss, edge by edge and side by side."""
  total = 0.0
  for i in range(NUM):
    chunk, place = divmod(i, CHUNK)
    row = ids['nodes'][chunk]
    size = CHUNK + DRAWS
    for side in (0, 1):
      given, other = row[side * size + place], row[(1 - side) * size + place]
      which = int(batch.ids[i, 2]) + side * KINDS
      of = operators[which] if operator != 'none' else None
      query = np.array(_operated(operator, nodes[given], of))

      def score(node, query=query):
        product = float(query @ nodes[node])
        if not temperature:
          return product
        lengths = np.linalg.norm(query) * np.linalg.norm(nodes[node])
        return product / lengths / temperature

      candidates = row[(1 - side) * size :][:size]
      # Neither padding nor the true end.
      rest = [x for x in candidates if x < NODES and x != other]
      weight = float(batch.numbers[i, 0])
      total += weight * _loss(name, score(other), [score(x) for x in rest])
  return total


def check_slopes(slow, arrays, slopes):
  """Slopes against differences of a loop, in some directions."""
  rng = np.random.default_rng(4)
  for _ in range(4):
    ways = [rng.normal(size=x.shape) for x in arrays]
    found = []
    for step in (1e-5, -1e-5):
      for x, way in zip(arrays, ways, strict=True):
        x += step * way
      found.append(slow())
      for x, way in zip(arrays, ways, strict=True):
        x -= step * way
    slope = sum(np.sum(x * y) for x, y in zip(slopes, ways, strict=True))
    np.testing.assert_allclose(slope, (found[0] - found[1]) / 2e-5, rtol=1e-3)


@pytest.mark.parametrize(
  ('operator', 'name', 'temperature'),
  [
    ('none', 'softmax', 0.0),
    ('translation', 'margin', 0.5),
    marking.slow('diagonal', 'logistic', 0.0),
    marking.slow('complex', 'softmax', 0.5),
  ],
)
def test_relations_are_those_of_a_loop(operator, name, temperature):
  model, batch = _relations(operator, name, temperature), _batch()
  rng = np.random.default_rng(2)
  arrays = [rng.normal(size=(NODES, DIM))]
  if operator != 'none':
    arrays.append(rng.normal(size=(2 * KINDS, DIM)))
  ids = jax.device_get(_ids(model, batch))
  assert list(ids) == list(model.specs())

  def loss(*arrays):
    rows = {
      k: x.at[ids[k]].get(mode='clip') for k, x in zip(ids, arrays, strict=True)
    }
    return model.loss((), rows, ids, batch, KEY)

  given = [jnp.float32(x) for x in arrays]
  grad = jax.value_and_grad(loss, tuple(range(len(given))), has_aux=True)
  (value, aux), slopes = jax.jit(grad)(*given)

  def slow():
    tables = arrays[0], arrays[-1]
    return _slow(operator, name, temperature, *tables, ids, batch)

  np.testing.assert_allclose(value, slow(), rtol=1e-5)
  assert aux.examples == NUM
  check_slopes(slow, arrays, slopes)


@pytest.mark.parametrize('order', marking.slow_after(1, [2, 1]))
def test_line_is_that_of_a_loop(order):
  model = edges.line(_spec(), _corpus(), sampling.logistic_loss, order)
  batch = _batch()
  rng = np.random.default_rng(3)
  arrays = [rng.normal(size=(NODES, DIM)) for _ in range(order)]
  ids = jax.device_get(_ids(model, batch))
  ids = {k: ids[k] for k in model.specs()}  # nodes, contexts

  def loss(*arrays):
    tables = zip(ids, arrays, strict=True)
    rows = {k: x.at[ids[k]].get(mode='clip') for k, x in tables}
    return model.loss((), rows, ids, batch, KEY)

  def slow():
    total = 0.0
    for i in range(NUM):
      chunk = i // CHUNK
      draws = list(ids.values())[-1][chunk, -DRAWS:]
      source, target = np.asarray(batch.ids)[i, :2]
      first, second = arrays[0][source], arrays[-1]
      term = math.log1p(math.exp(-float(first @ second[target])))
      for x in draws:
        if x != target:
          other = math.log1p(math.exp(float(first @ second[x])))
          term += 3 / DRAWS * other
      total += float(batch.numbers[i, 0]) * term
    return total

  grad = jax.value_and_grad(loss, tuple(range(order)), has_aux=True)
  (value, _), slopes = grad(*map(jnp.float32, arrays))
  np.testing.assert_allclose(value, slow(), rtol=1e-5)
  check_slopes(slow, arrays, slopes)


def test_draws_are_uniform_or_by_degree():
  num = 8192
  model = _relations('none')
  whole = np.asarray(_ids(model, _batch(num, num))['nodes'])
  late = _ids(model, _batch(num // 2, num // 2, num // 2))['nodes']
  size = CHUNK + DRAWS
  drawn = np.concatenate([whole[:, CHUNK:size], whole[:, size + CHUNK :]], 1)
  np.testing.assert_array_equal(
    drawn[len(whole) // 2 :, :DRAWS], late[:, CHUNK:size]
  )
  counts = np.bincount(drawn.ravel(), minlength=NODES)
  expected = drawn.size / NODES
  assert np.abs(counts - expected).max() < 5 * math.sqrt(expected)
  line = edges.line(_spec(), _corpus(), sampling.logistic_loss, 2)
  drawn = np.asarray(_ids(line, _batch(num, num))['contexts'])[:, CHUNK:]
  counts = np.bincount(drawn.ravel(), minlength=NODES)
  expected = np.arange(NODES, 0, -1) ** 0.75
  expected *= drawn.size / expected.sum()
  assert np.abs(counts - expected).max() < 5 * math.sqrt(expected.max())


def test_draws_stay_in_the_partitions_of_the_edges():
  starts = np.array([0, 4, 7, 9])
  corpus = _corpus(starts)
  model = edges.relations(_spec(), corpus, edges.margin, 'none', 0.0)
  batch = _batch(64, 64)
  ids = np.asarray(batch.ids)
  ids = np.where(ids[:, :1] >= 4, ids[:, :1] % 4, 4 + ids[:, 1:2] % 3)
  batch = batch._replace(ids=jnp.asarray(np.repeat(ids, 3, 1)))
  found = np.asarray(_ids(model, batch)['nodes'])
  assert found.max() < 7 and len(np.unique(found)) == 7
  batch = batch._replace(ids=jnp.minimum(batch.ids, 3))
  assert np.asarray(_ids(model, batch)['nodes']).max() == 3


def test_expected_lookups_and_losses_without_training():
  batch = _batch(8, 8)
  for model in (
    _relations('complex'),
    edges.line(_spec(), _corpus(), sampling.logistic_loss, 1),
    edges.line(_spec(), _corpus(), sampling.logistic_loss, 2),
  ):
    ids = _ids(model, batch)
    for name, spec in model.specs().items():
      assert math.isclose(spec.lookups_per_center.sum() * 8, ids[name].size)
  assert math.isclose(model.untrained_loss, 4 * math.log(2), rel_tol=1e-6)
  loss = _relations('none').untrained_loss
  assert math.isclose(loss, 2 * math.log(CHUNK + DRAWS), rel_tol=1e-6)


def test_data_without_relations_have_one():
  batch = _batch(12, 3)
  ids = _ids(_relations('diagonal'), batch._replace(ids=batch.ids[:, :2]))
  assert (ids['nodes'][1:] == examples.PADDING).all()
  found = np.asarray(ids['relations'])
  assert (found[0, :3] == 0).all() and (found[0, 4:7] == KINDS).all()
  assert (found[1:] == examples.PADDING).all() and found[0, 3] > 2 * KINDS


def test_numbers_that_are_not_in_pairs_are_refused():
  with pytest.raises(errors.UserError, match=r'an even --config\.model\.dim'):
    operators.apply('complex', jnp.ones((2, 3)), jnp.ones((2, 3)))
