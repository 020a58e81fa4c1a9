"""Losses that the models of targets share."""

import jax
import numpy as np

from jaxemb.models import targets


def test_log_chances_of_weighted_decisions():
  scores = np.array([[-40.0, -3, 0, 0.5, 40], [2.0, -2, 1, -1, 0]])
  weights = np.array([1.0, -1, 0, -0.3, 0.3])
  signs = np.sign(weights) + 0 * scores
  expected = np.abs(weights) * -np.logaddexp(0, -signs * scores)
  expected[0, 0] = targets.MIN_LOG
  given = scores.astype(np.float32), weights.astype(np.float32)[None]
  np.testing.assert_allclose(
    targets.log_chances(*given), expected, 1e-6, atol=1e-6
  )
  slopes = jax.grad(lambda x: targets.log_chances(x, given[1]).sum())(given[0])
  wanted = weights / (1 + np.exp(signs * scores))
  # A decision below the least logarithm is still pulled back.
  np.testing.assert_allclose(slopes, wanted, 1e-5, atol=1e-6)
