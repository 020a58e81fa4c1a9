"""Word Mover's distance (Kusner et al. 2015)."""

import numpy as np


def distance(
  first: np.ndarray,
  second: np.ndarray,
  shares: tuple[np.ndarray, np.ndarray],
) -> float:
  """Returns the least mean distance that moves one set of points to another.

  Points are [n, dim] and [m, dim], and their shares [n] and [m] sum to 1, all
  float64. Exact: an optimal vertex of the linear program of transport.
  """
  from scipy import optimize, sparse  # which take long to import
  from scipy.spatial import distance as distances

  costs = distances.cdist(first, second)
  n, m = costs.shape
  # Sums of rows of the flow, then of its columns.
  sums = sparse.vstack([
    sparse.kron(sparse.eye(n), np.ones((1, m))),
    sparse.kron(np.ones((1, n)), sparse.eye(m)),
  ])  # fmt: skip
  # The last sum follows from the others, and would contradict them by rounding.
  result = optimize.linprog(
    costs.ravel(),
    A_eq=sums.tocsr()[:-1],
    b_eq=np.concatenate(shares)[:-1],
    method='highs-ds',
  )
  if not result.success:
    raise ArithmeticError(f'no optimal transport: {result.message}')
  return float(result.fun)
