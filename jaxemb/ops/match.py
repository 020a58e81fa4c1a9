"""Which sense of a word in one table is which in another.

Sense k of a word in part i is x_ik [dim], in a space that the parts share, with
a prior p_ik; c_i is how much part i has to say about the word. Each part's
senses are permuted so that parts agree,

  maximize sum_{i < j} sqrt(c_i c_j) sum_k sqrt(p_ik p_jk) cos(x_ik, x_jk)

the cosine of each pair that is made one, weighted by how often it is meant: two
parts with the same senses and priors have sum_k .. = 1, which is the most there
is. Cosines, because how long the vector of a sense is tells how often it was
met. A sense that is hardly ever meant has learned hardly anything: it takes the
place that is left.

With z_ik = sqrt(c_i p_ik) x_ik / |x_ik| these are products z_ik . z_jk, and
what one part adds to the sum is an assignment of its senses to the sums of the
others', S_k = sum_{j != i} z_jk. Parts join by falling c_i, then each is
assigned anew until none moves (as in generalized Procrustes analysis, with
permutations for rotations): every step adds to the sum, so that it ends.

A part with fewer senses of a word than another has zeros for the others.
"""

from typing import NamedTuple

import numpy as np
from scipy import optimize

_MAX_ROUNDS = 20
_ROUNDING = 1e-9  # of a gain, relative to the sum of all squares


class Matched(NamedTuple):
  """Permutations of senses."""

  places: np.ndarray  # [b, n, K] int, the sense of the result that each is
  rounds: int  # until no part moved


def scaled(
  rows: np.ndarray, priors: np.ndarray, votes: np.ndarray
) -> np.ndarray:
  """[b, n, K, dim] float64, z.

  Args:
    rows: [b, n, K, dim], x; zeros where there is no such sense.
    priors: [b, n, K].
    votes: [b, n], c; 0 = the part lacks the word.
  """
  lengths = np.linalg.norm(rows, axis=-1)
  scale = np.sqrt(np.maximum(priors, 0) * votes[..., None])
  scale = np.where(lengths > 0, scale / np.where(lengths > 0, lengths, 1), 0)
  return rows.astype(np.float64) * scale[..., None]


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


def match(z: np.ndarray, votes: np.ndarray) -> Matched:
  """Permutes the senses of all parts, word by word.

  Args:
    z: [b, n, K, dim] float64, see `scaled`.
    votes: [b, n], c.

  Returns:
    Places; senses that all parts lack are anywhere behind.
  """
  num_words, num_parts, num_senses = z.shape[:3]
  words = np.arange(num_words)
  order = np.argsort(-votes, 1, kind='stable')
  places = np.tile(np.arange(num_senses), (num_words, num_parts, 1))
  limits = _ROUNDING * np.maximum(np.sum(z**2, (1, 2, 3)), 1e-300)
  total = z[words, order[:, 0]].copy()
  for step in range(1, num_parts):
    part = order[:, step]
    mine = z[words, part]
    places[words, part] = assign(mine @ np.swapaxes(total, 1, 2))
    total += _placed(mine, places[words, part])
  moving, rounds = np.arange(num_words), 1
  while len(moving) and rounds < _MAX_ROUNDS and num_parts > 2:
    has_moved = np.zeros(len(moving), bool)
    for step in range(num_parts):
      part = order[moving, step]
      mine, old = z[moving, part], places[moving, part]
      others = total[moving] - _placed(mine, old)
      scores = mine @ np.swapaxes(others, 1, 2)
      new = assign(scores)
      gains = _sums(scores, new) - _sums(scores, old)
      moves = gains > limits[moving]
      new = np.where(moves[:, None], new, old)
      places[moving, part] = new
      total[moving] = others + _placed(mine, new)
      has_moved |= moves
    moving, rounds = moving[has_moved], rounds + 1
  return Matched(places, rounds)


def total(z: np.ndarray, places: np.ndarray) -> np.ndarray:
  """[b] float64, the sum over pairs of parts that `match` maximizes.

  Args:
    z: [b, n, K, dim] float64.
    places: [b, n, K] int.
  """
  placed = np.empty_like(z)
  np.put_along_axis(placed, places[..., None], z, 2)
  squares = np.sum(placed.sum(1) ** 2, (1, 2))
  return (squares - np.sum(z**2, (1, 2, 3))) / 2


def cosines(z: np.ndarray, places: np.ndarray) -> np.ndarray:
  """[b] float64, mean cosine of senses that are made one, weighted as there."""
  lengths = np.linalg.norm(z, axis=-1, keepdims=True)
  weights = total(lengths, places)
  return total(z, places) / np.where(weights > 0, weights, 1)


def _placed(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
  """[b, K, dim], each sense where it belongs."""
  placed = np.empty_like(rows)
  np.put_along_axis(placed, places[..., None], rows, 1)
  return placed


def _sums(scores: np.ndarray, places: np.ndarray) -> np.ndarray:
  return np.take_along_axis(scores, places[..., None], 2)[..., 0].sum(1)
