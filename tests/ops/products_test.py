"""Products and their derivatives against einsum and autodiff."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.ops import products, wire
from jaxemb.runtime import mesh
from tests import compiling

K, C, W, D = 3, 4, 6, 8


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


@pytest.mark.parametrize('ours', [products.scores, products.narrow_scores])
def test_scores_of_each_pair_of_a_chunk(ours):
  args = _random((K, C, D), (K, W, D), (K, C, W))
  _equal(_value_and_grads(ours, *args), _value_and_grads(_scores, *args))


def test_weighted_sums_of_the_rows_of_a_chunk():
  args = _random((K, C, W), (K, W, D), (K, C, D))
  found, (weights, rows) = _value_and_grads(products.weighted_sums, *args)
  expected, grads = _value_and_grads(
    lambda weights, rows: jnp.einsum('kcw,kwd->kcd', weights, rows), *args
  )
  _equal((found, rows), (expected, grads[1]))
  assert not np.asarray(weights).any()  # they are data


def test_no_product_of_the_derivative_contracts_a_first_axis():
  """The form that takes twice the time on a CPU."""
  args = _random((K, C, D), (K, W, D), (K, C, W))
  step = functools.partial(_value_and_grads, products.scores)
  lines = compiling.text(jax.jit(step).lower(*args)).splitlines()
  lines = [line for line in lines if ' dot(' in line]
  assert len(lines) == 3
  assert all('lhs_contracting_dims={2}' in line for line in lines)


@pytest.mark.parametrize('num_devices', [1, 4])
def test_devices_that_split_columns_send_scores_alone(num_devices):
  args = _random((K, C, D), (K, W, D), (K, C, W))
  everywhere = jax.sharding.PartitionSpec()
  columns = jax.sharding.PartitionSpec(None, None, mesh.TABLE)
  ours = functools.partial(products.scores, columns=wire.Axis(mesh.TABLE))
  step = jax.jit(
    jax.shard_map(
      functools.partial(_value_and_grads, lambda x, y: ours(x, y)),
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
