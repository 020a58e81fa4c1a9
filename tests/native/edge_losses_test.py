"""The softmax of edges that a kernel takes is that of XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.data import examples
from jaxemb.models import base, edges, factorization, skipgram
from jaxemb.native import updates

NUM_NODES = 50  # few: most draws are some edge's end


def _model(chunk, draws, dim, num_threads=0):
  degrees = np.arange(NUM_NODES, 0, -1)
  corpus = base.Corpus(
    [], degrees, 2 * degrees / degrees.sum(), relations=np.ones(1)
  )
  spec = skipgram.WindowSpec(NUM_NODES, dim, 1, 3, chunk, draws)
  args = spec, corpus, factorization.softmax, 'none', 0.0
  kernel = (lambda: updates.edge_softmax(num_threads)) if num_threads else None
  return edges.relations(*args, kernel)


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


@pytest.mark.parametrize(
  ('chunk', 'draws', 'dim'), [(4, 6, 4), (6, 1, 100), (64, 37, 50), (9, 3, 17)]
)
@pytest.mark.parametrize('scale', [0.5, 5.0])
def test_losses_and_slopes_are_those_of_xla(chunk, draws, dim, scale):
  given = _given(chunk, draws, dim, scale=scale)
  loss, slopes = _loss(_model(chunk, draws, dim), *given)
  found, found_slopes = _loss(_model(chunk, draws, dim, 2), *given)
  np.testing.assert_allclose(found, loss, rtol=1e-5)
  np.testing.assert_allclose(
    found_slopes, slopes, rtol=1e-4, atol=1e-5 * np.abs(slopes).max()
  )


def test_any_number_of_threads_gives_the_same_bits():
  given = _given(16, 5, 33, 60)
  one, many = (_loss(_model(16, 5, 33, x), *given) for x in (1, 3))
  for x, y in zip(one, many, strict=True):
    np.testing.assert_array_equal(x, y)
