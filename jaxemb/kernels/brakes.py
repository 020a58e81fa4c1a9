"""Smaller steps of rows that many chunks look up at the same time.

Threads of a CPU, and blocks of a GPU, share tables without locks. What they all
look up all of them change, and as none knows of the others, together they may
go too far.
"""

import numpy as np

# By how often others look rows up meanwhile, and by the learning rate; and the
# centers of others that need none. Measured on CPUs
# (experiments/results/step_notes.md) and an H100, where they keep 528 blocks
# from diverging.
_BRAKE, FREE_CENTERS = 10.0, 240
_LEAST = 0.2  # less than this changes a learning rate by a hundredth


def of_rows(lookups_per_center: np.ndarray, others: int) -> np.ndarray:
  """Returns [h] float32, the brakes of the first rows of a table.

  1 + learning rate x brake divides the learning rate of a row. `others` are the
  centers that others learn from at the same time.
  """
  scale = _BRAKE * max(0, others - FREE_CENTERS)
  brakes = (scale * lookups_per_center).astype(np.float32)
  size = np.flatnonzero(brakes > _LEAST).max(initial=0)
  return brakes[: size + 1]
