"""Purity of clusters: do words of one category fall together?

Spherical k-means (Dhillon and Modha 2001: unit vectors, centers are normalised
sums, similarity is the cosine) from k-means++ starts (Arthur and Vassilvitskii
2007). Of several starts the one with the highest sum of cosines is kept; the
categories take no part in that choice.
"""

import numpy as np

_NUM_CANDIDATES = 5
_MAX_ITERATIONS = 100


def purity(
  points: np.ndarray, labels: np.ndarray, num_starts: int = 10, seed: int = 0
) -> float:
  """Share of points that belong to the largest category of their cluster.

  Args:
    points: [points, dim] float32, of length 1 (or 0).
    labels: [points] int, category of each point; as many clusters are sought
      as there are categories.
    num_starts: Number of random starts.
    seed: Of the random starts.

  Returns:
    Purity, from near 0 to 1. One category, or one point per category, gives 1.
  """
  names, labels = np.unique(labels, return_inverse=True)
  clusters = cluster(points, len(names), num_starts, seed)
  table = np.zeros((len(names), len(names)), np.int64)
  np.add.at(table, (clusters, labels), 1)
  return float(table.max(axis=1).sum() / len(points))


def cluster(
  points: np.ndarray, num_clusters: int, num_starts: int = 10, seed: int = 0
) -> np.ndarray:
  """Spherical k-means.

  Args:
    points: [points, dim] float32, of length 1 (or 0).
    num_clusters: At least 1, at most the number of points.
    num_starts: Number of random starts; the best is kept.
    seed: Of the random starts.

  Returns:
    [points] int64, the cluster of each point.
  """
  best, best_fit = None, -np.inf
  for start in range(num_starts):
    rng = np.random.Generator(np.random.Philox(key=(seed, start)))
    centers = points[_spread(points, num_clusters, rng)]
    assigned, fit = _improve(points, centers)
    if fit > best_fit:
      best, best_fit = assigned, fit
  return best


def _spread(
  points: np.ndarray, num_clusters: int, rng: np.random.Generator
) -> list[int]:
  """Greedy k-means++: of a few drawn candidates, the one that leaves least."""
  chosen = [int(rng.integers(len(points)))]
  distance = np.maximum(1.0 - points @ points[chosen[0]], 0)
  distance[chosen] = 0
  while len(chosen) < num_clusters:
    total = distance.sum()
    if total > 0:
      drawn = rng.choice(len(points), _NUM_CANDIDATES, p=distance / total)
    else:
      drawn = rng.integers(len(points), size=1)
    left = np.minimum(distance, np.maximum(1.0 - points[drawn] @ points.T, 0))
    best = int(left.sum(axis=1).argmin())
    chosen.append(int(drawn[best]))
    distance = left[best]
    distance[chosen] = 0
  return chosen


def _improve(
  points: np.ndarray, centers: np.ndarray
) -> tuple[np.ndarray, float]:
  """Lloyd's iterations: the clusters, and the sum of cosines."""
  assigned = np.full(len(points), -1)
  for _ in range(_MAX_ITERATIONS):
    cosines = points @ centers.T
    previous, assigned = assigned, cosines.argmax(axis=1)
    if np.array_equal(previous, assigned):
      break
    nearest = cosines.max(axis=1)
    for empty in np.setdiff1d(np.arange(len(centers)), assigned):
      # An empty cluster takes the point that fits its own worst.
      worst = nearest.argmin()
      assigned[worst], nearest[worst] = empty, np.inf
    centers = _normalised_sums(points, assigned, len(centers))
  return assigned, float(cosines.max(axis=1).sum(dtype=np.float64))


def _normalised_sums(
  points: np.ndarray, assigned: np.ndarray, num_clusters: int
) -> np.ndarray:
  members = np.zeros((num_clusters, len(points)), points.dtype)
  members[assigned, np.arange(len(points))] = 1
  sums = members @ points
  lengths = np.linalg.norm(sums, axis=1, keepdims=True)
  return sums / np.where(lengths > 0, lengths, 1)
