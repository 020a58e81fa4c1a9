"""The logistic loss against scalar arithmetic, and its derivatives."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.ops import losses
from tests import oracle


def test_example_of_the_docstring():
  assert doctest.testmod(losses).attempted
  assert not doctest.testmod(losses).failed


@pytest.mark.parametrize('label', [0, 1])
def test_value_and_slope(label):
  some = [-3e38, -1000, -88.8, -1e-8, 0, 1e-8, 88.8, 1000, 3e38]
  scores = np.append(np.linspace(-30, 30, 241), some).astype(np.float32)

  def total(scores):
    value = losses.logistic_loss(scores, jnp.full(scores.shape, float(label)))
    return value.sum(), value

  slope, value = jax.grad(total, has_aux=True)(scores)
  assert value.dtype == slope.dtype == jnp.float32
  expected = [oracle.logistic_loss(float(s), label) for s in scores]
  np.testing.assert_allclose(value, expected, 1e-5, 2e-6)
  expected = [oracle.sigmoid(float(s)) - label for s in scores]
  np.testing.assert_allclose(slope, expected, 1e-5, 1e-7)


def test_log_chances_of_weighted_decisions():
  scores = np.array([[-40.0, -3, 0, 0.5, 40], [2.0, -2, 1, -1, 0]])
  weights = np.array([1.0, -1, 0, -0.3, 0.3])
  signs = np.sign(weights) + 0 * scores
  expected = np.abs(weights) * -np.logaddexp(0, -signs * scores)
  expected[0, 0] = losses.MIN_LOG
  given = scores.astype(np.float32), weights.astype(np.float32)[None]
  np.testing.assert_allclose(
    losses.log_chances(*given), expected, 1e-6, atol=1e-6
  )
  slopes = jax.grad(lambda x: losses.log_chances(x, given[1]).sum())(given[0])
  wanted = weights / (1 + np.exp(signs * scores))
  # A decision below the least logarithm is still pulled back.
  np.testing.assert_allclose(slopes, wanted, 1e-5, atol=1e-6)
