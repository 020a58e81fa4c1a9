"""Factorization against loops in float64, and its draws."""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.data import examples
from jaxemb.interactions import factorization
from jaxemb.models import base as models
from tests.graphs import edge_models_test

USERS, ITEMS, DIM, CHUNK, DRAWS = 7, 11, 5, 4, 6
KEY = np.array([5, 9], np.uint32)


def _model(loss_of, temperature=0.0):
  spec = models.WindowSpec(ITEMS, DIM, 1, 1, CHUNK, DRAWS)
  chances = [np.full(x, 1 / x) for x in (ITEMS, USERS)]
  source = types.SimpleNamespace(user_frequencies=chances[1])
  corpus = models.Corpus([], np.ones(ITEMS), chances[0], source)
  return factorization.make(spec, corpus, loss_of, temperature)


def _batch(num=12, num_examples=10, first=0):
  rng = np.random.default_rng(1)
  ids = np.stack([rng.integers(0, x, num) for x in (USERS, ITEMS)], 1)
  ids = ids.astype(np.int32)
  ids[num_examples:] = examples.PADDING
  weights = (np.arange(num) < num_examples).astype(np.float32)
  positions = np.arange(first, first + num, dtype=np.uint32)
  arrays = ids, np.zeros((num, 0), np.float32), weights, weights, positions
  return examples.StepBatch(*map(jnp.asarray, arrays))


def _slow(name, temperature, users, items, ids, num_examples):
  """The loss, example by example."""
  total = 0.0
  for i in range(num_examples):
    chunk = i // CHUNK
    user = users[ids['users'][chunk, i % CHUNK]]
    row = ids['items'][chunk]
    others = [row[i % CHUNK], *row[CHUNK:]]

    def score(item, user=user):
      product = float(user @ items[item])
      if not temperature:
        return product
      lengths = np.linalg.norm(user) * np.linalg.norm(items[item])
      return product / lengths / temperature

    first, *rest = map(score, others)
    if name == 'bpr':
      terms = [math.log1p(math.exp(x - first)) for x in rest]
      total += sum(terms) / len(terms)
    else:
      total += math.log(sum(map(math.exp, (first, *rest)))) - first
  return total


@pytest.mark.parametrize(
  ('name', 'temperature'), [('bpr', 0.0), ('softmax', 0.5)]
)
def test_loss_and_slopes_are_those_of_a_loop(name, temperature):
  model, batch = _model(getattr(factorization, name), temperature), _batch()
  rng = np.random.default_rng(2)
  users, items = (rng.normal(size=(x, DIM)) for x in (USERS, ITEMS))
  ids = jax.device_get(model.ids(batch, KEY))

  def loss(users, items):
    rows = {
      'users': users.at[ids['users']].get(mode='clip'),
      'items': items.at[ids['items']].get(mode='clip'),
    }
    return model.loss((), rows, ids, batch, KEY)

  arrays = users, items
  (value, aux), slopes = jax.value_and_grad(loss, (0, 1), has_aux=True)(
    *map(jnp.float32, arrays)
  )

  def slow():
    return _slow(name, temperature, users, items, ids, 10)

  np.testing.assert_allclose(value, slow(), rtol=1e-5)
  assert aux.examples == 10
  edge_models_test.check_slopes(slow, arrays, slopes)


def test_the_untrained_loss_is_that_of_equal_scores():
  assert math.isclose(
    _model(factorization.bpr).untrained_loss, math.log(2), rel_tol=1e-6
  )
  loss = _model(factorization.softmax).untrained_loss
  assert math.isclose(loss, math.log(1 + DRAWS), rel_tol=1e-6)
