"""Whether numbers look random, within bounds that chance hardly ever passes."""

import numpy as np
import scipy.stats


def check_uncorrelated(unit: np.ndarray, axis: int) -> None:
  """Neighbours along an axis of numbers in [0, 1) do not know of each other."""
  unit = np.moveaxis(unit, axis, 0) - 0.5
  near, far = unit[1:], unit[:-1]
  assert abs((near * far).mean()) * 12 < 4 / np.sqrt(near.size)


def check_uniform(unit: np.ndarray) -> None:
  """Of independent numbers in [0, 1), neighbours along all axes."""
  cells = np.bincount((unit * 256).astype(int).reshape(-1), minlength=256)
  assert len(cells) == 256 and scipy.stats.chisquare(cells).pvalue > 1e-3
  assert abs(unit.mean() - 0.5) < 4 * np.sqrt(1 / 12 / unit.size)
  for axis in range(unit.ndim):
    check_uncorrelated(unit, axis)
