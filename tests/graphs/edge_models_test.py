"""Models of edges against loops in float64, and their draws."""

import itertools
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
from jaxemb.models import edge_scores
from jaxemb.ops import sampling
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
      relation_frequencies=np.full(KINDS, 1 / KINDS),
      end_frequencies=np.stack([degrees, degrees[::-1]]) / degrees.sum(),
      partitions=partitions,
    ),
  )


def _spec(vocab=NODES):
  return models.WindowSpec(vocab, DIM, 1, 3, CHUNK, DRAWS)


def _relations(operator, loss='softmax', measure='product', n3=0.0):
  score = edge_scores.EdgeScore(operator, measure, temperature=0.5)
  return edges.relations(_spec(), _corpus(), LOSSES[loss], score=score, n3=n3)


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
    by = 1 + complex(a[i], a[i + 1])
    by /= abs(by) if operator == 'rotation' else 1
    z = complex(x[i], x[i + 1]) * by
    found += [z.real, z.imag]
  return found


def _loss(name, first, others, num):
  if name == 'softmax':
    return math.log(sum(map(math.exp, (first, *others)))) - first
  if name == 'margin':
    return sum(max(0.0, 0.1 - first + x) for x in others)
  near = math.log1p(math.exp(-first))
  return near + sum(math.log1p(math.exp(x)) for x in others) / num


def _score(measure, query, vector):
  if measure == 'distance':
    return -sum((p - q) ** 2 for p, q in zip(query, vector, strict=True))
  lengths = 1.0
  if measure == 'cosine':
    lengths = np.linalg.norm(query) * np.linalg.norm(vector) * 0.5
  return float(query @ vector) / lengths


def _n3(operator, row, is_relation=False):
  if is_relation and operator == 'rotation':
    return 0.0
  shift = 1.0 if is_relation and operator != 'translation' else 0.0
  if operator not in ('complex', 'rotation'):
    return sum(abs(shift + x) ** 3 for x in row)
  pairs = zip(row[::2], row[1::2], strict=True)
  return sum(abs(shift + complex(*x)) ** 3 for x in pairs)


def _slow(model, name, nodes, operators, ids, batch):
  """The loss, edge by edge and side by side."""
  total, size = 0.0, CHUNK + DRAWS
  operator, measure = model.score.operator, model.score.measure
  for i in range(NUM):
    chunk, place = divmod(i, CHUNK)
    row, weight = ids['nodes'][chunk], float(batch.numbers[i, 0])
    for side in (0, 1):
      given, other = row[side * size + place], row[(1 - side) * size + place]
      which = int(batch.ids[i, 2]) + side * KINDS
      of = operators[which] if operator != 'none' else None
      query = np.array(_operated(operator, nodes[given], of))
      candidates = row[(1 - side) * size :][:size]
      if operator != 'none':
        candidates = [*candidates, given]
      true, *scores = (
        _score(measure, query, nodes[min(x, NODES - 1)])
        for x in (other, *candidates)
      )
      if operator != 'none' and name == 'softmax':
        degrees = np.arange(NODES, 0, -1)[:: 1 if side else -1] / 45
        # Of four nodes and six uniform draws each is among 10 negatives.
        counts = (4 * degrees + 6 / NODES) * NODES / 10
        for j, x in enumerate(candidates[:-1]):
          scores[j] -= math.log(counts[x]) if x < NODES else 0.0
      # Neither padding nor the true end; the mean is over all places.
      is_other = [x < NODES and x != other for x in candidates]
      others = list(itertools.compress(scores, is_other))
      loss = _loss(name, true, others, num=len(candidates))
      cubes = _n3(operator, nodes[given]) + _n3(operator, nodes[other])
      cubes += 0.0 if of is None else _n3(operator, of, True)
      total += weight * (loss + model.n3 * cubes)
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
  ('operator', 'name', 'measure', 'n3'),
  [
    ('none', 'softmax', 'product', 0.0),
    ('translation', 'margin', 'cosine', 0.0),
    ('rotation', 'softmax', 'distance', 0.2),
    marking.slow('diagonal', 'logistic', 'product', 0.2),
    marking.slow('complex', 'softmax', 'cosine', 0.2),
    marking.slow('translation', 'softmax', 'distance', 0.2),
  ],
)
def test_relations_are_those_of_a_loop(operator, name, measure, n3):
  model, batch = _relations(operator, name, measure, n3=n3), _batch()
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
    return _slow(model, name, *tables, ids=ids, batch=batch)

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
  model = edges.relations(_spec(), corpus, edges.margin, edge_scores.PRODUCT)
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
  loss = _relations('complex', n3=0.5).untrained_loss  # two numbers are 1
  assert math.isclose(loss, 2 * (math.log(11) + 0.5 * DIM / 2), rel_tol=0.1)
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
    edge_scores.EdgeScore('complex').operate(*jnp.ones((2, 2, 3)))
  with pytest.raises(errors.UserError, match=r'an even --config\.model\.dim'):
    edge_scores.EdgeScore('rotation').cubes(jnp.ones(3))
