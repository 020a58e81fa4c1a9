"""Places points of many dimensions on a page: PCA and exact t-SNE, in NumPy.

t-SNE: van der Maaten and Hinton 2008, "Visualizing Data using t-SNE". With the
start (PCA) and the exaggeration of Kobak and Berens 2019, "The art of using
t-SNE for single-cell transcriptomics", which keep the global arrangement, so
that there is no random choice left. Time and memory grow with the square of
the number of points: about a second for 500.
"""

import numpy as np

_NUM_ITERATIONS = 750
_NUM_EXAGGERATED = 250
_EXAGGERATION = 12.0
_TINY = 1e-12


def pca(points: np.ndarray) -> tuple[np.ndarray, float]:
  """The two directions of largest variance.

  Args:
    points: [points, dim] float, finite.

  Returns:
    [points, 2] float64 positions, and the share of the variance that they
    keep, from 0 to 1 (1 if the points do not differ).
  """
  centred = np.asarray(points, np.float64)
  centred = centred - centred.mean(axis=0)
  left, scales, _ = np.linalg.svd(centred, full_matrices=False)
  kept = min(2, len(scales))
  positions = np.zeros((len(points), 2))
  positions[:, :kept] = left[:, :kept] * scales[:kept]
  # The sign of a direction is arbitrary; the farthest point decides it.
  farthest = np.abs(positions).argmax(axis=0)
  signs = np.sign(positions[farthest, [0, 1]])
  positions *= np.where(signs == 0, 1, signs)
  total = float((scales**2).sum())
  share = float((scales[:kept] ** 2).sum()) / total if total > 0 else 1.0
  return positions, share


def tsne(points: np.ndarray, perplexity: float) -> np.ndarray:
  """Positions that keep neighbours together.

  Args:
    points: [points, dim] float, finite; at least 4 points.
    perplexity: Number of neighbours that count, smoothly; above 1 and below
      the number of points.

  Returns:
    [points, 2] float64 positions, turned so that the first axis is the longer.
  """
  affinities = _affinities(_squared_distances(points), perplexity)
  affinities = affinities.astype(np.float32)
  exaggerated = affinities * np.float32(_EXAGGERATION)
  scratch = np.empty((2, *affinities.shape), np.float32)
  positions, _ = pca(points)
  positions *= 1e-4 / max(positions[:, 0].std(), _TINY)
  learning_rate = max(len(points) / _EXAGGERATION / 4, 50.0)
  velocity = np.zeros_like(positions)
  gains = np.ones_like(positions)
  for i in range(_NUM_ITERATIONS):
    is_early = i < _NUM_EXAGGERATED
    pull = exaggerated if is_early else affinities
    gradient = _gradient(pull, positions, scratch)
    # Delta-bar-delta, as in the authors' code.
    is_turning = np.sign(gradient) != np.sign(velocity)
    gains = np.maximum(np.where(is_turning, gains + 0.2, gains * 0.8), 0.01)
    momentum = 0.5 if is_early else 0.8
    velocity = momentum * velocity - learning_rate * gains * gradient
    positions = positions + velocity
    positions -= positions.mean(axis=0)
  return pca(positions)[0]


def _squared_distances(points: np.ndarray) -> np.ndarray:
  points = np.asarray(points, np.float64)
  squares = (points * points).sum(axis=1)
  distances = squares[:, None] + squares[None, :] - 2 * points @ points.T
  np.fill_diagonal(distances, 0)
  return np.maximum(distances, 0)


def _affinities(distances: np.ndarray, perplexity: float) -> np.ndarray:
  """Equations 1 and 2: [points, points], symmetric, of sum 1.

  The width of each point's Gaussian is sought by bisection, all points at
  once, until the entropy of its neighbours is log(perplexity).
  """
  num_points = len(distances)
  nearest = distances + np.diag(np.full(num_points, np.inf))
  nearest -= nearest.min(axis=1, keepdims=True)
  np.fill_diagonal(nearest, 0)  # its weight is set to 0 below
  low = np.zeros((num_points, 1))
  high = np.full((num_points, 1), np.inf)
  beta = np.ones((num_points, 1))
  for _ in range(60):
    weights = np.exp(-nearest * beta)
    np.fill_diagonal(weights, 0)
    totals = weights.sum(axis=1, keepdims=True)
    mean = (weights * nearest).sum(axis=1, keepdims=True) / totals
    is_wide = np.log(totals) + beta * mean > np.log(perplexity)
    low = np.where(is_wide, beta, low)
    high = np.where(is_wide, high, beta)
    beta = np.where(np.isinf(high), beta * 2, (low + high) / 2)
  weights /= totals
  return np.maximum((weights + weights.T) / (2 * num_points), _TINY)


def _gradient(
  pull: np.ndarray, positions: np.ndarray, scratch: np.ndarray
) -> np.ndarray:
  """Equation 5: [points, 2] gradient of the Kullback-Leibler divergence.

  This is where the time goes: single precision, no new arrays, and no BLAS,
  whose threads cost far more than they gain on products so small.
  """
  xs, ys = positions.astype(np.float32).T
  kernel, forces = scratch
  np.subtract.outer(xs, xs, out=kernel)
  kernel *= kernel
  np.subtract.outer(ys, ys, out=forces)
  forces *= forces
  kernel += forces
  kernel += 1
  np.reciprocal(kernel, out=kernel)
  np.fill_diagonal(kernel, 0)
  np.multiply(kernel, -1 / kernel.sum(), out=forces)
  forces += pull
  forces *= kernel
  totals = forces.sum(axis=1)
  pulled = [np.einsum('ij,j->i', forces, values) for values in (xs, ys)]
  return 4 * np.stack([totals * xs - pulled[0], totals * ys - pulled[1]], 1)
