"""Products and their derivatives against loops and against autodiff."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.ops import products, wire
from jaxemb.runtime import mesh
from tests import compiling

K, C, W, D = 3, 4, 6, 5


def _random(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


_SCORES = pytest.mark.parametrize(
  'scores', [products.scores, products.narrow_scores]
)


@_SCORES
def test_scores_are_the_dot_products_of_each_pair_of_a_chunk(scores):
  left, right = _random(0, K, C, D), _random(1, K, W, D)
  found = scores(left, right)
  for k in range(K):
    for i in range(C):
      for j in range(W):
        expected = sum(
          float(a) * float(b)
          for a, b in zip(left[k, i], right[k, j], strict=True)
        )
        assert found[k, i, j] == pytest.approx(expected, abs=1e-5)


def test_weighted_sums_add_up_the_rows_of_a_chunk():
  weights, rows = _random(0, K, C, W), _random(1, K, W, D)
  found = products.weighted_sums(weights, rows)
  for k in range(K):
    for i in range(C):
      expected = np.zeros(D)
      for j in range(W):
        expected += float(weights[k, i, j]) * rows[k, j].astype(np.float64)
      np.testing.assert_allclose(found[k, i], expected, atol=1e-5)


@_SCORES
def test_the_derivatives_of_scores_are_those_of_autodiff(scores):
  left, right = _random(0, K, C, D), _random(1, K, W, D)
  slopes = _random(2, K, C, W)

  def ours(left, right):
    return jnp.sum(slopes * scores(left, right))

  def plain(left, right):
    return jnp.sum(slopes * jnp.einsum('kcd,kwd->kcw', left, right))

  found = jax.grad(ours, (0, 1))(left, right)
  expected = jax.grad(plain, (0, 1))(left, right)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_derivative_of_weighted_sums_is_that_of_autodiff():
  weights, rows = _random(0, K, C, W), _random(1, K, W, D)
  slopes = _random(2, K, C, D)

  def ours(rows):
    return jnp.sum(slopes * products.weighted_sums(weights, rows))

  def plain(rows):
    return jnp.sum(slopes * jnp.einsum('kcw,kwd->kcd', weights, rows))

  np.testing.assert_allclose(
    jax.grad(ours)(rows), jax.grad(plain)(rows), atol=1e-5
  )


def test_no_product_of_the_derivative_contracts_a_first_axis():
  """The form that costs twice the time on a CPU."""
  left, right = _random(0, K, C, D), _random(1, K, W, D)

  def total(left, right):
    return jnp.sum(jnp.tanh(products.scores(left, right)))

  lowered = jax.jit(jax.grad(total, (0, 1))).lower(left, right)
  text = compiling.text(lowered)
  lines = [line for line in text.splitlines() if ' dot(' in line]
  assert len(lines) == 3
  for line in lines:
    assert 'lhs_contracting_dims={2}' in line


@pytest.mark.parametrize('num_devices', [1, 2, 4])
def test_scores_of_rows_of_which_devices_have_some_columns(num_devices):
  dim = 8
  left, right = _random(0, K, C, dim), _random(1, K, W, dim)
  slopes = _random(2, K, C, W)
  devices = mesh.make(mesh.Shape(2, num_devices))
  everywhere = jax.sharding.PartitionSpec()
  columns = jax.sharding.PartitionSpec(None, None, mesh.TABLE)

  @jax.jit
  @functools.partial(
    jax.shard_map,
    mesh=devices,
    in_specs=(columns, columns, everywhere),
    out_specs=(everywhere, everywhere, (columns, columns)),
    check_vma=False,
  )
  def on_devices(left, right, slopes):
    def total(left, right):
      scores = products.scores(left, right, wire.Axis(mesh.TABLE))
      return jnp.sum(slopes * jnp.tanh(scores)), scores

    (value, scores), grads = jax.value_and_grad(total, (0, 1), has_aux=True)(
      left, right
    )
    return value, scores, grads

  def plain(left, right):
    scores = jnp.einsum('kcd,kwd->kcw', left, right)
    return jnp.sum(slopes * jnp.tanh(scores)), scores

  (value, scores), grads = jax.value_and_grad(plain, (0, 1), has_aux=True)(
    left, right
  )
  found = on_devices(left, right, slopes)
  np.testing.assert_allclose(found[0], value, 1e-5)
  np.testing.assert_allclose(found[1], scores, 1e-5, 1e-5)
  for a, b in zip(found[2], grads, strict=True):
    np.testing.assert_allclose(a, b, 1e-5, 1e-5)


def test_only_scores_travel():
  # Rows and their gradients stay: one sum of [k, w, c] and no other.
  devices = mesh.make(mesh.Shape(1, 2))
  columns = jax.sharding.PartitionSpec(None, None, mesh.TABLE)

  def total(left, right):
    return jnp.sum(
      jnp.tanh(products.scores(left, right, wire.Axis(mesh.TABLE)))
    )

  step = jax.shard_map(
    jax.grad(total, (0, 1)),
    mesh=devices,
    in_specs=(columns, columns),
    out_specs=(columns, columns),
    check_vma=False,
  )
  text = (
    jax.jit(step)
    .lower(_random(0, K, C, 8), _random(1, K, W, 8))
    .compile()
    .as_text()
  )
  assert text.count(' all-reduce(') == 1
  (line,) = [x for x in text.splitlines() if ' all-reduce(' in x]
  assert f'f32[{K},{W},{C}]' in line
  assert 'all-gather' not in text and 'all-to-all' not in text
