"""Windows, masks and hits against loops; products against einsum."""

import doctest
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.ops import chunks, wire
from jaxemb.runtime import mesh
from tests import compiling, oracle

# (centers, chunk, window)
SIZES = {
  'plain': (24, 4, 2),
  'window_over_chunk': (12, 2, 5),
  'chunk_over_window': (32, 16, 1),
  'one_chunk': (6, 6, 3),
  'chunk_of_one': (5, 1, 4),
  'one_center': (1, 1, 1),
  'unrolled': (12, 4, 10),
  'in_a_loop': (12, 4, 11),
  'widest': (8, 4, 255),
}
NUM_DRAWS = 6
K, C, W, D = 3, 4, 6, 8


@jax.jit(static_argnames=('chunk', 'window'))
def _all(tokens, left, right, draws, chunk, window):
  return (
    chunks.windows(tokens, chunk, window),
    chunks.mask(left, right, chunk, window),
    chunks.num_hits(tokens, left, right, draws),
  )


def test_example_of_the_docstring():
  assert doctest.testmod(chunks) == (0, 1)


@pytest.mark.parametrize('runs', [(), (3, 2)], ids=['one', 'runs'])
@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
def test_windows_masks_and_hits(sizes, runs):
  """Tokens of a few ids; no chunk sees beyond the halo of its own run."""
  length, chunk, window = sizes
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, 4, (*runs, length + 2 * window)).astype(np.int32)
  left, right = rng.integers(0, window + 1, (2, *runs, length), np.uint8)
  left[..., 0], right[..., 0] = window, window
  left[..., -1] = right[..., -1] = 0
  num_chunks = left.size // chunk
  draws = rng.integers(0, 4, (num_chunks, NUM_DRAWS)).astype(np.int32)
  found = _all(tokens, left, right, draws, chunk, window)
  width = chunk + 2 * window
  words = np.zeros((num_chunks, width))
  mask = np.zeros((num_chunks, chunk, width))
  hits = np.zeros((num_chunks, chunk, NUM_DRAWS))
  places = [(x, i) for x in np.ndindex(runs) for i in range(length)]
  for center, (run, i) in enumerate(places):
    k, c = divmod(center, chunk)
    words[k] = tokens[run][i - c : i - c + width]
    around = oracle.contexts(i, left[run], right[run])
    contexts = [tokens[run][window + i + o] for o in around]
    mask[k, c, [window + c + o for o in around]] = 1
    hits[k, c] = [contexts.count(draw) for draw in draws[k]]
  for x, y in zip(found, (words, mask, hits), strict=True):
    np.testing.assert_array_equal(x, y)
  assert [x.dtype for x in found] == [jnp.int32, jnp.float32, jnp.float32]


def _random(*shapes):
  rng = np.random.default_rng(0)
  return [rng.normal(size=x).astype(np.float32) for x in shapes]


def _value_and_grads(product, left, right, slopes):
  """Of a sum that has these slopes; the products are its second value."""

  def total(left, right):
    found = product(left, right)
    return jnp.sum(slopes * jnp.tanh(found)), found

  return jax.value_and_grad(total, (0, 1), has_aux=True)(left, right)


def _equal(found, expected):
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-5), found, expected
  )


def _scores(left, right):
  return jnp.einsum('kcd,kwd->kcw', left, right)


@pytest.mark.parametrize('is_narrow', [False, True])
def test_scores_of_each_pair_of_a_chunk(is_narrow):
  args = _random((K, C, D), (K, W, D), (K, C, W))
  found = _value_and_grads(
    lambda *rows: chunks.WHOLE_ROWS.dot(*rows, is_narrow), *args
  )
  _equal(found, _value_and_grads(_scores, *args))


def test_weighted_sums_of_the_rows_of_a_chunk():
  args = _random((K, C, W), (K, W, D), (K, C, D))
  found, (weights, rows) = _value_and_grads(chunks.weighted_sums, *args)
  expected, grads = _value_and_grads(
    lambda weights, rows: jnp.einsum('kcw,kwd->kcd', weights, rows), *args
  )
  _equal((found, rows), (expected, grads[1]))
  assert not np.asarray(weights).any()  # they are data


def test_no_product_of_the_derivative_contracts_a_first_axis():
  """The form that takes twice the time on a CPU."""
  args = _random((K, C, D), (K, W, D), (K, C, W))
  step = functools.partial(_value_and_grads, chunks.scores)
  lines = compiling.text(jax.jit(step).lower(*args)).splitlines()
  lines = [line for line in lines if ' dot(' in line]
  assert len(lines) == 3
  assert all('lhs_contracting_dims={2}' in line for line in lines)


@pytest.mark.parametrize('num_devices', [1, 4])
def test_devices_that_split_columns_send_scores_alone(num_devices):
  args = _random((K, C, D), (K, W, D), (K, C, W))
  everywhere = jax.sharding.PartitionSpec()
  columns = jax.sharding.PartitionSpec(None, None, mesh.TABLE)
  ours = chunks.RowOps(wire.Axis(mesh.TABLE)).dot
  step = jax.jit(
    jax.shard_map(
      functools.partial(_value_and_grads, ours),
      mesh=mesh.make(mesh.Shape(2, num_devices)),
      in_specs=(columns, columns, everywhere),
      out_specs=((everywhere, everywhere), (columns, columns)),
      check_vma=False,
    )
  )
  _equal(step(*args), _value_and_grads(_scores, *args))
  if num_devices > 1:
    text = step.lower(*args).compile().as_text()
    (line,) = [x for x in text.splitlines() if ' all-reduce(' in x]
    assert f'f32[{K},{W},{C}]' in line
    assert 'all-gather' not in text and 'all-to-all' not in text
