"""Which words ALiR fits its rotations on."""

import itertools
from collections.abc import Sequence

import numpy as np

# Per dimension of the largest part; see experiments/results/merge_notes.md.
_PER_DIMENSION = 500
_TIES = 20  # per dimension, that any two parts share


def choose(
  has: np.ndarray, limit: int, dims: Sequence[int]
) -> np.ndarray | None:
  """The words on which rotations are fitted.

  A word that one part alone has says nothing about rotations, and those of some
  hundred dimensions are known well from some ten thousand words. Frequent and
  rare ones alike are among them, because parts disagree on rare ones more, and
  `ops.align.restore` wants to know by how much.

  Args:
    has: [n, words] bool, which parts have each word, the most frequent first.
    limit: about how many to take; 0 = what suits the dimensions.
    dims: D_i; any two parts get so many words of both for each dimension, so
      that chosen words tie what all words tie.

  Returns:
    [chosen] int, rising; None = all.
  """
  limit = limit or _PER_DIMENSION * max(dims)
  shared = np.flatnonzero(has.sum(0) > 1)
  if len(shared) == has.shape[1] <= limit:
    return None
  is_chosen = np.zeros(has.shape[1], bool)
  evenly = np.linspace(0, len(shared) - 1, min(limit, len(shared)))
  is_chosen[shared[evenly.astype(np.int64)]] = True
  for i, j in itertools.combinations(range(len(has)), 2):
    both = has[i] & has[j]
    least = _TIES * min(dims[i], dims[j])
    missing = least - np.count_nonzero(is_chosen & both)
    if missing > 0:
      is_chosen[np.flatnonzero(both & ~is_chosen)[:missing]] = True
  return np.flatnonzero(is_chosen)
