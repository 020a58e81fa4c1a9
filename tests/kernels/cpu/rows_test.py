"""Slopes of scores, against NumPy."""

import numba
import numpy as np

from jaxemb.kernels.cpu import rows


@numba.njit
def _slopes(scores, weights):  # which Python cannot call
  rows.slopes(scores, weights)


def test_slopes_of_scores_of_any_size():
  scores = np.concatenate([np.linspace(-40, 40, 4001), [0, -1e30, 1e30]])
  scores = scores.astype(np.float32)
  for weight in (-1.0, -0.25, 0.0, 0.5, 5.0):
    found = scores.copy()
    _slopes(found, np.full(len(scores), weight, np.float32))
    sign = -1 if weight < 0 else 1
    wide = np.clip(scores.astype(np.float64), -700, 700)
    expected = weight / (1 + np.exp(-sign * wide))
    np.testing.assert_allclose(found, expected, 0, 3e-7 * abs(weight))
