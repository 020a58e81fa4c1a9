"""Lengths, directions, nearest neighbors and clusters of rows of vectors."""

from collections.abc import Collection
from typing import Any

import numpy as np

# Senses with lower priors have learned too little to be shown.
MIN_PRIOR = 0.02
_ITERATIONS = 20
_STARTS = 10
_CANDIDATES = 5  # of greedy k-means++
_BLOCK_ROWS = 1 << 14
_MIN_THREADED = 1 << 23  # products


def norms(vectors: Any) -> np.ndarray:
  """Returns lengths of [rows, dim] vectors, [rows] float32.

  Vectors are an array, or compute this themselves.
  """
  if not isinstance(vectors, np.ndarray):
    return vectors.norms()
  return np.sqrt(np.vecdot(vectors, vectors, dtype=np.float32))


def divisors(lengths: np.ndarray) -> np.ndarray:
  """Returns lengths to divide by: 1 in place of 0."""
  return np.where(lengths > 0, lengths, np.float32(1))


def unit(vectors: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
  """Returns [rows, dim] vectors scaled to length 1; zero rows stay zero."""
  if lengths is None:
    lengths = np.linalg.norm(vectors, axis=1)
  return np.asarray(vectors) / divisors(lengths)[:, None]


def unit_vector(vector: np.ndarray) -> np.ndarray:
  """Returns a vector scaled to length 1, [dim] float32; zero stays zero.

  Rounded from double precision, as in gensim: ranks agree to the last bit.
  """
  return unit(np.asarray(vector, np.float64)[None])[0].astype(np.float32)


def products(
  vectors: Any, target: np.ndarray, limit: int | None = None
) -> np.ndarray:
  """Returns products of the first [limit, dim] vectors with a [dim] target.

  They are float32. Vectors are an array, or compute this themselves.
  """
  if not isinstance(vectors, np.ndarray):
    return vectors.products(target, limit)
  vectors = vectors[:limit]
  if vectors.dtype == target.dtype:
    return np.dot(vectors, target)
  result = np.empty(len(vectors), np.float32)
  for start in range(0, len(vectors), _BLOCK_ROWS):  # converted without a copy
    block = slice(start, start + _BLOCK_ROWS)
    result[block] = np.dot(vectors[block].astype(np.float32), target)
  return result


def nearest(
  scores: np.ndarray,
  excluded: Collection[int],
  num: int,
  senses: Any = None,
  min_prior: float = 0.0,
  rows: np.ndarray | None = None,
) -> np.ndarray:
  """Returns positions of at most `num` best scores, int64; ties by position.

  `scores` are those of `rows`, which ascend, and by default of the rows of the
  first words; `senses` is a `MultiVectors`. Leaves out scores of -inf, words
  with a row in `excluded`, senses with a prior below `min_prior`, and all but
  the best row of a word: its senses are close and would fill the list.
  """
  if num < 1 or len(scores) == 0:
    return np.zeros(0, np.int64)
  starts = np.arange(len(scores))  # of words, among the scores
  words = rows = starts if rows is None else rows
  excluded_words = np.array([*excluded], np.int64)
  word_scores = np.array(scores)
  if senses is not None:
    words = np.searchsorted(senses.starts, rows, 'right') - 1
    excluded_words = np.searchsorted(senses.starts, excluded_words, 'right') - 1
    scores = np.where(senses.priors[rows] < min_prior, -np.inf, scores)
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    word_scores = np.maximum.reduceat(scores, starts)
    words = words[starts]
  positions = np.searchsorted(words, excluded_words)
  is_scored = positions < len(words)
  is_scored[is_scored] = (
    words[positions[is_scored]] == excluded_words[is_scored]
  )
  word_scores[positions[is_scored]] = -np.inf
  num = min(num, len(word_scores))
  best = np.argpartition(-word_scores, num - 1)[:num]
  best = best[np.lexsort((best, -word_scores[best]))]
  best = best[word_scores[best] > -np.inf]
  if senses is None:
    return best
  ends = np.append(starts, len(scores))
  of_words = [
    starts[i] + scores[starts[i] : ends[i + 1]].argmax() for i in best
  ]
  return np.array(of_words, np.int64)


def cluster(points: np.ndarray, num_clusters: int) -> np.ndarray:
  """Assigns points [points, dim] to clusters by k-means, the best of 10 starts.

  Starts are those of greedy k-means++ (Arthur and Vassilvitskii 2007), which
  often finds planted clusters where plain k-means++ never does. The best result
  has the smallest sum of squared distances.
  """
  points = np.asarray(points, np.float32)
  rng = np.random.default_rng(0)
  results = []
  for _ in range(_STARTS):
    centers, assigned = _moved(points, _spread(points, num_clusters, rng))
    cost = float(np.sum((points - centers[assigned]) ** 2))
    results.append((cost, assigned))
  return min(results, key=lambda x: x[0])[1]


def _moved(points: np.ndarray, chosen: list) -> tuple[np.ndarray, np.ndarray]:
  """Moves centers, at first some points, to the means of what is nearest.

  Returns them with the center of each point.
  """
  centers, assigned = points[chosen], np.full(len(points), -1)
  # Threads of BLAS wait for each other longer than small products take, .01 s.
  is_small = points.size * len(centers) < _MIN_THREADED
  for _ in range(_ITERATIONS):
    if is_small:
      products = np.einsum('pd,cd->pc', points, centers)
    else:
      products = points @ centers.T
    nearest = (np.sum(centers**2, 1) - 2 * products).argmin(1)
    if (nearest == assigned).all():
      break
    assigned = nearest
    for number in np.unique(assigned):  # those of no point stay
      centers[number] = points[assigned == number].mean(0)
  return centers, assigned


def _spread(points: np.ndarray, num: int, rng: np.random.Generator) -> list:
  """Draws points far apart: of a few candidates, the one that covers most."""
  chosen = [int(rng.integers(len(points)))]
  left = np.sum((points - points[chosen[0]]) ** 2, 1)
  while len(chosen) < num:
    total = left.sum()
    chances = left / total if total > 0 else None  # only duplicates are left
    drawn = rng.choice(len(points), _CANDIDATES, p=chances)
    distances = np.sum((points[drawn][:, None] - points) ** 2, 2)
    after = np.minimum(left, distances)
    best = int(after.sum(1).argmin())
    chosen.append(int(drawn[best]))
    left = after[best]
  return chosen
