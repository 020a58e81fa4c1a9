"""Which sense of a word in one table is which in another.

Sense k of a word in part i is x_ik [dim], in a space that the parts share, with
a prior p_ik; c_i is how much part i has to say about the word. Each part's
senses are permuted so that parts agree,

  maximize sum_{i < j} sum_k sqrt(n_ij min(p_ik, p_jk)) cos(x_ik, x_jk)

with n_ij = sqrt(c_i c_j): the cosine of each pair that is made one, weighted by
the root of how often both would mean it, as the error of what is learned from
so many occurrences falls. Cosines, because how long the vector of a sense is
tells how often it was met, not what it means. A sense that is hardly ever meant
has learned hardly anything: it takes the place that is left, and with the
lesser of two priors it is not drawn to a frequent one that has lost its like.

What one part adds to the sum is an assignment problem. Parts join by falling
c_i, then each is assigned anew until none moves, as in generalized Procrustes
analysis with permutations for rotations: every step adds to the sum, so that it
ends. A part with fewer senses of a word than another has zeros for the others.
"""

from typing import NamedTuple

import numpy as np
from scipy import optimize

_MAX_ROUNDS = 20
_ROUNDING = 1e-9  # of a gain, relative to the sum of all weights


class Compared(NamedTuple):
  """All pairs of senses of each word: of part i and sense k with j and m."""

  weights: np.ndarray  # [b, n, K, n, K] float64; 0 where i = j
  scores: np.ndarray  # the same times cosines


class Matched(NamedTuple):
  """Permutations of senses."""

  places: np.ndarray  # [b, n, K] int, the sense of the result that each is
  rounds: int  # until no part moved


def num_bytes(num_parts: int, num_senses: int, dim: int) -> int:
  """Memory that `compare` takes for a word."""
  return 8 * num_parts * num_senses * (3 * num_parts * num_senses + 2 * dim)


def compare(
  rows: np.ndarray, priors: np.ndarray, votes: np.ndarray
) -> Compared:
  """Weights and scores of all pairs of senses.

  Args:
    rows: [b, n, K, dim], x; zeros where there is no such sense.
    priors: [b, n, K].
    votes: [b, n], c; 0 = the part lacks the word.
  """
  num_words, num_parts, num_senses, dim = rows.shape
  lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
  units = rows / np.where(lengths > 0, lengths, 1)
  units = units.reshape(num_words, -1, dim).astype(np.float64)
  has = (lengths[..., 0] > 0) & (votes[..., None] > 0)
  chances = np.where(has, priors, 0).astype(np.float64)
  weights = np.minimum(chances[:, :, :, None, None], chances[:, None, None])
  roots = np.sqrt(votes)
  weights *= roots[:, :, None, None, None] * roots[:, None, None, :, None]
  weights = np.sqrt(weights)
  own = np.arange(num_parts)
  weights[:, own, :, own] = 0
  cosines = units @ np.swapaxes(units, 1, 2)
  return Compared(weights, weights * cosines.reshape(weights.shape))


def assign(scores: np.ndarray) -> np.ndarray:
  """[b, K] int, permutations with the largest sum of scores.

  Args:
    scores: [b, K, K], of sense k of a part with sense j of the result.
  """
  found = np.argmax(scores, -1)
  # Where all want different ones, each has the best that there is.
  is_open = np.any(np.sort(found, -1) != np.arange(scores.shape[-1]), -1)
  for i in np.flatnonzero(is_open):
    found[i] = optimize.linear_sum_assignment(scores[i], maximize=True)[1]
  return found


def match(compared: Compared, votes: np.ndarray) -> Matched:
  """Permutes the senses of all parts, word by word.

  Args:
    compared: see `compare`.
    votes: [b, n], c.

  Returns:
    Places; those of senses that a part lacks are whatever is left.
  """
  scores = compared.scores
  num_words, num_parts, num_senses = scores.shape[:3]
  words = np.arange(num_words)
  order = np.argsort(-votes, 1, kind='stable')
  places = np.tile(np.arange(num_senses), (num_words, num_parts, 1))
  has_joined = np.zeros((num_words, num_parts))
  has_joined[words, order[:, 0]] = 1
  for step in range(1, num_parts):
    part = order[:, step]
    with_others = _with_others(scores[words, part], places, has_joined)
    places[words, part] = assign(with_others)
    has_joined[words, part] = 1
  limits = _ROUNDING * compared.weights.sum((1, 2, 3, 4))
  moving, rounds = words, 1
  while len(moving) and rounds < _MAX_ROUNDS and num_parts > 2:
    has_moved = np.zeros(len(moving), bool)
    for step in range(num_parts):
      part = order[moving, step]
      old = places[moving, part]
      with_others = _with_others(
        scores[moving, part], places[moving], has_joined[moving]
      )
      new = assign(with_others)
      gains = _sums(with_others, new) - _sums(with_others, old)
      moves = gains > limits[moving]
      places[moving, part] = np.where(moves[:, None], new, old)
      has_moved |= moves
    moving, rounds = moving[has_moved], rounds + 1
  return Matched(places, rounds)


def total(pairs: np.ndarray, places: np.ndarray) -> np.ndarray:
  """[b] float64, sum over the pairs that are made one.

  Args:
    pairs: [b, n, K, n, K], `Compared.scores` for what `match` maximizes.
    places: [b, n, K] int.
  """
  num_words, num_parts = places.shape[:2]
  everyone, found = np.ones((num_words, num_parts)), np.zeros(num_words)
  for i in range(num_parts):
    with_others = _with_others(pairs[:, i], places, everyone)
    found += _sums(with_others, places[:, i]) / 2
  return found


def cosines(
  compared: Compared, places: np.ndarray, matched: np.ndarray
) -> np.ndarray:
  """[b] float64, what `match` maximizes, on the scale of cosines.

  Of `matched` itself it is the mean cosine of the pairs that are made one. Of
  others it is over the same weights: by their own, a mean of few weights could
  be higher where the sum is lower.

  Args:
    compared: see `compare`.
    places: [b, n, K] int, that are asked about.
    matched: [b, n, K] int, those of `match`.
  """
  weights = total(compared.weights, matched)
  found = total(compared.scores, places)
  return found / np.where(weights > 0, weights, 1)


def _with_others(
  scores: np.ndarray, places: np.ndarray, has_joined: np.ndarray
) -> np.ndarray:
  """[b, K, K], of each sense of a part with each of the result.

  Args:
    scores: [b, K, n, K], of the part.
    places: [b, n, K], of all.
    has_joined: [b, n], 1 for parts that count.
  """
  senses = np.argsort(places, -1)[:, None]  # of each place
  placed = np.take_along_axis(scores, senses, -1)
  return np.sum(placed * has_joined[:, None, :, None], 2)


def _sums(scores: np.ndarray, places: np.ndarray) -> np.ndarray:
  return np.take_along_axis(scores, places[..., None], 2)[..., 0].sum(1)
