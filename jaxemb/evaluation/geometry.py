"""Lengths, directions, nearest neighbors and clusters of rows of vectors."""

import warnings
from collections.abc import Collection
from typing import Protocol

import numpy as np

# Rarer senses have learned too little to be shown.
MIN_PRIOR = 0.02
_BLOCK_ROWS = 8192
_ITERATIONS = 20
_CANDIDATES = 5  # of greedy k-means++


class Senses(Protocol):
  """Rows that are senses: those of word i are starts[i]..starts[i + 1]."""

  starts: np.ndarray  # [vocab + 1] int64
  priors: np.ndarray  # [rows] float32


def norms(vectors: np.ndarray) -> np.ndarray:
  """[rows] float32 lengths of [rows, dim] vectors, in bounded memory."""
  lengths = np.empty(len(vectors), np.float32)
  for start in range(0, len(vectors), _BLOCK_ROWS):
    block = slice(start, start + _BLOCK_ROWS)
    lengths[block] = np.linalg.norm(vectors[block], axis=1)
  return lengths


def divisors(lengths: np.ndarray) -> np.ndarray:
  """Lengths to divide by: 1 in place of 0."""
  return np.where(lengths > 0, lengths, np.float32(1))


def unit(vectors: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
  """[rows, dim] vectors scaled to length 1; zero rows stay zero."""
  if lengths is None:
    lengths = np.linalg.norm(vectors, axis=1)
  return vectors / divisors(lengths)[:, None]


def unit_vector(vector: np.ndarray) -> np.ndarray:
  """[dim] float32 vector scaled to length 1; zero stays zero.

  In double precision, rounded at the end, as gensim does it: cosines, and with
  them ranks, agree to the last bit.
  """
  return unit(np.asarray(vector, np.float64)[None])[0].astype(np.float32)


def num_rows(senses: Senses | None, num_words: int | None) -> int | None:
  """Rows of the first `num_words` words; None for all of them."""
  if senses is None or num_words is None:
    return num_words
  return int(senses.starts[: num_words + 1][-1])


def nearest(
  scores: np.ndarray,
  excluded: Collection[int],
  num: int,
  senses: Senses | None = None,
  min_prior: float = 0.0,
) -> np.ndarray:
  """[at most num] int64 rows by falling score, ties by row.

  `scores` are of the rows of the first words (see `num_rows`), without those
  `excluded`, with all others of their words, and senses of a prior below
  `min_prior`. Of a word with several senses only the best row counts: its
  senses lie close to each other, and would fill a list of neighbors with one or
  two words.
  """
  if senses is None:
    num_best = min(max(num, 0) + len(excluded), len(scores))
    if num < 1 or not num_best:
      return np.zeros(0, np.int64)
    best = np.argpartition(-scores, num_best - 1)[:num_best]
    best = best[np.lexsort((best, -scores[best]))]
    return best[~np.isin(best, list(excluded))][:num]
  starts = senses.starts[: np.searchsorted(senses.starts, len(scores)) + 1]
  if len(starts) < 2:
    return np.zeros(0, np.int64)
  is_rare = senses.priors[: len(scores)] < min_prior
  scores = np.where(is_rare, -np.inf, scores)
  of_words = np.maximum.reduceat(scores, starts[:-1])
  owners = np.searchsorted(senses.starts, [*excluded], 'right') - 1
  out = {*owners.tolist(), *np.flatnonzero(np.isneginf(of_words)).tolist()}
  best = [
    starts[word] + scores[starts[word] : starts[word + 1]].argmax()
    for word in nearest(of_words, out, num)
  ]
  return np.array(best, np.int64)


def cluster(
  points: np.ndarray, num_clusters: int, num_starts: int = 10, seed: int = 0
) -> np.ndarray:
  """[points] cluster of each of [points, dim]: k-means, the best of 10 starts.

  Starts are those of greedy k-means++ (Arthur and Vassilvitskii 2007), which
  often finds planted clusters where the plain one never does; the best has the
  smallest sum of squared distances.
  """
  from scipy.cluster import vq  # takes a quarter of a second

  points = np.asarray(points, np.float32)
  rng = np.random.default_rng(seed)
  best, lowest = None, np.inf
  with warnings.catch_warnings():
    # Of empty clusters, and of fewer different points than clusters.
    warnings.simplefilter('ignore')
    for _ in range(num_starts):
      start = points[_spread(points, num_clusters, rng)]
      centers, assigned = vq.kmeans2(points, start, _ITERATIONS, minit='matrix')
      cost = float(np.sum((points - centers[assigned]) ** 2))
      if cost < lowest:
        best, lowest = assigned, cost
  return best


def _spread(points: np.ndarray, num: int, rng: np.random.Generator) -> list:
  """Rows of points far apart: of each draw, the one that covers most."""
  chosen = [int(rng.integers(len(points)))]
  left = np.sum((points - points[chosen[0]]) ** 2, 1)
  while len(chosen) < num:
    total = left.sum()
    chances = left / total if total > 0 else None  # only copies are left
    drawn = rng.choice(len(points), _CANDIDATES, p=chances)
    distances = np.sum((points[drawn][:, None] - points) ** 2, 2)
    after = np.minimum(left, distances)
    best = int(after.sum(1).argmin())
    chosen.append(int(drawn[best]))
    left = after[best]
  return chosen
