"""The softmax of edges that a kernel takes, against a loop in float64."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.data import examples
from jaxemb.graphs import edge_models as edges
from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import updates
from jaxemb.models import base, edge_scores
from jaxemb.ops import sampling
from tests import marking

NUM_NODES = 50  # few: most draws are some edge's end


def _model(chunk, draws, dim, num_threads=0):
  degrees = np.arange(NUM_NODES, 0, -1)
  source = types.SimpleNamespace(relation_frequencies=np.ones(1))
  corpus = base.Corpus([], degrees, 2 * degrees / degrees.sum(), source)
  spec = base.WindowSpec(NUM_NODES, dim, 1, 3, chunk, draws)
  args = spec, corpus, sampling.softmax_loss, edge_scores.PRODUCT
  kernel = (lambda: updates.edge_softmax(num_threads)) if num_threads else None
  return edges.relations(*args, make_kernel=kernel)


def _loss(model, rows, ids, batch):
  def loss(rows):
    return model.loss((), {'nodes': rows}, {'nodes': ids}, batch, None)[0]

  return jax.jit(jax.value_and_grad(loss))(rows)


def _given(chunk, draws, dim, num_chunks=9, scale=0.5):
  rng, num = np.random.default_rng(chunk), num_chunks * chunk
  ids = rng.integers(0, NUM_NODES, (num, 2)).astype(np.int32)
  is_edge = np.arange(num) < num - chunk - 1  # one chunk has none
  ids[~is_edge] = examples.PADDING
  numbers = rng.uniform(0.5, 2, (num, 1)).astype(np.float32)
  weights, positions = np.float32(is_edge), np.arange(num, dtype=np.uint32)
  arrays = ids, numbers, weights, weights, positions
  batch = examples.StepBatch(*map(jnp.asarray, arrays))
  key = np.array([3, 4], np.uint32)
  found = _model(chunk, draws, dim).ids(batch, key)['nodes']
  table = np.float32(scale * rng.normal(size=(NUM_NODES, dim)))
  rows = jnp.asarray(table).at[found].get(mode='fill', fill_value=0)
  return rows, found, batch


def _slow(rows, ids, batch):
  rows, ids = np.asarray(rows, np.float64), np.asarray(ids)
  weights = np.asarray(batch.weights * batch.numbers[:, 0], np.float64)
  num_chunks, size = len(rows), rows.shape[1] // 2
  total, slopes = 0.0, np.zeros_like(rows)
  for place, weight in enumerate(weights):
    g, i = divmod(place, len(weights) // num_chunks)
    for own, true, first in ((i, size + i, size), (size + i, i, 0)):
      others = first + np.arange(size)
      counts = (ids[g, others] != ids[g, true]) & (ids[g, others] < NUM_NODES)
      others = np.append(true, others[counts])
      scores = rows[g, others] @ rows[g, own]
      chances = np.exp(scores - scores.max())
      total += weight * (np.log(chances.sum()) + scores.max() - scores[0])
      slope = weight * chances / chances.sum()
      slope[0] -= weight
      slopes[g, own] += slope @ rows[g, others]
      np.add.at(slopes[g], others, slope[:, None] * rows[g, own])
  return total, slopes


@pytest.mark.parametrize(
  ('chunk', 'draws', 'dim', 'scale'),
  marking.slow_after(
    0, [(9, 3, 17, 0.5), (6, 1, 100, 5.0), (64, 37, 50, 0.5), (4, 301, 3, 5.0)]
  ),
)
def test_losses_and_slopes_are_those_of_a_loop(chunk, draws, dim, scale):
  given = _given(chunk, draws, dim, scale=scale)
  loss, slopes = _slow(*given)
  found, found_slopes = _loss(_model(chunk, draws, dim, 2), *given)
  np.testing.assert_allclose(found, loss, rtol=1e-6)
  least = 2e-6 * np.abs(slopes).max()
  np.testing.assert_allclose(found_slopes, slopes, rtol=1e-5, atol=least)


@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_bits():
  given = _given(16, 5, 33, 60)
  one, many = (_loss(_model(16, 5, 33, x), *given) for x in (1, 3))
  for x, y in zip(one, many, strict=True):
    np.testing.assert_array_equal(x, y)


def test_a_kernel_that_fails_is_seen_in_losses_and_rows():
  model, given = _model(4, 6, 4, 2), _given(4, 6, 4)
  number = model.kernel.number
  address, ffi._addresses[number] = ffi._addresses[number], 0
  try:
    for found in _loss(model, *given):
      assert np.isnan(found).all()
  finally:
    ffi._addresses[number] = address
