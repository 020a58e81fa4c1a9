"""Alignment of tables that were trained apart: ALiR and PCA on Gram matrices.

Part i has rows M_i(w) [D_i] for the words w that it knows; a_i(w) is the weight
of its vote, 0 for unknown words, and a = sum_i a_i. ALiR ("alternating linear
regression", Anand et al. 2019; also known as generalized Procrustes analysis)
looks for one rotation W_i per part and one row Y(w) per word of any part,

  minimize sum_w sum_i a_i(w) |M_i(w) W_i - Y(w)|^2,   W_i W_i^T = 1

by alternating Y = sum_i a_i M_i W_i / a and W_i = U V^T, singular vectors of
C_i = sum_w a_i M_i^T Y. The rows enter only through the Gram matrix

  Q_ij = sum_w a_i a_j / a M_i^T M_j,                 C_i = sum_j Q_ij W_j

so they are read once for Q and once for Y, and all iterations work on D x D
matrices in float64. PCA of the parts side by side needs Q of equal weights.

Averaging shrinks the directions in which parts disagree: those learned least.
`length_correction` gives each principal direction of Y the length that it has
in the rotated parts (our addition): with P_i = sum_w a_i M_i^T M_i,

  sum_w a |Y v|^2 = v^T C v,                C = sum_ij W_i^T Q_ij W_j
  sum_w sum_i a_i |M_i W_i v|^2 = v^T T v,  T = sum_i W_i^T P_i W_i

differ by the disagreement of the parts along v. It is one matrix for all words,
so that inner products with context vectors can be kept; words of a single part,
which were not averaged, grow as well.

A part with fewer dimensions than the result is rotated into a subspace of it;
one with more is first reduced to its principal directions.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import scipy  # parts of it are loaded when they are used

STARTS = ('zero', 'pca', 'random')

_EPSILON = 1e-12  # relative to the largest squared length: rounding errors
_FIT_WORDS = 500  # per dimension; see experiments/results/merge_notes.md
_SHARED_WORDS = 20  # of any two parts, per dimension


def slices(dims: Sequence[int]) -> list[slice]:
  """The columns of each part, parts being side by side."""
  ends = itertools.accumulate(dims, initial=0)
  return [slice(*pair) for pair in itertools.pairwise(ends)]


def fit_words(has: np.ndarray, limit: int, dims: Sequence[int]) -> np.ndarray:
  """[chosen] int, ascending: the words that rotations are fitted on.

  `has` [n, words] bool tells which parts know a word, most frequent first;
  `limit` is the approximate number, 0 = by the dimensions.

  Words of one part alone say nothing about rotations. The others are taken
  evenly from frequent to rare, as parts disagree more on rare words, which
  `length_correction` measures; more where two parts have too few in common.
  """
  shared = np.flatnonzero(has.sum(0) > 1)
  num = min(limit or _FIT_WORDS * max(dims), len(shared))
  is_chosen = np.zeros(has.shape[1], bool)
  evenly = np.linspace(0, len(shared) - 1, num).astype(np.int64)
  is_chosen[shared[evenly]] = True
  for i, j in itertools.combinations(range(len(has)), 2):
    both = has[i] & has[j]
    least = _SHARED_WORDS * min(dims[i], dims[j])
    missing = max(least - np.count_nonzero(is_chosen & both), 0)
    is_chosen[np.flatnonzero(both & ~is_chosen)[:missing]] = True
  return np.flatnonzero(is_chosen)


def procrustes(cross: np.ndarray) -> np.ndarray:
  """[d, dim] orthonormal W that fits rows X W to Y best; `cross` is X^T Y."""
  left, _, right = scipy.linalg.svd(
    cross, full_matrices=False, check_finite=False
  )
  return left @ right


def principal(gram: np.ndarray, dim: int) -> np.ndarray:
  """[columns, dim] uncentered principal directions; largest entry positive."""
  size = len(gram)
  _, vectors = scipy.linalg.eigh(
    gram, subset_by_index=(size - dim, size - 1), check_finite=False
  )
  vectors = vectors[:, ::-1]
  largest = vectors[np.argmax(np.abs(vectors), 0), np.arange(dim)]
  return vectors * np.where(largest < 0, -1, 1)


def _join(gram: np.ndarray, parts: list[slice], dim: int) -> np.ndarray:
  """Zero start: parts join one at a time, the most closely related first.

  The largest stays as it is; each further one is rotated towards those before.
  """
  ties = np.array([[np.linalg.norm(gram[p, q]) for q in parts] for p in parts])
  first = int(np.argmax(np.diag(ties)))
  waiting = [i for i in range(len(parts)) if i != first]
  w = np.zeros((len(gram), dim))
  w[parts[first]] = np.eye(parts[first].stop - parts[first].start, dim)
  near = ties[first].copy()
  while waiting:
    i = max(waiting, key=lambda i: near[i])
    w[parts[i]] = procrustes(gram[parts[i]] @ w)
    waiting.remove(i)
    near += ties[i]
  return w


def alir(
  gram: np.ndarray,
  dims: Sequence[int],
  dim: int,
  start: str,
  max_iterations: int,
  tolerance: float,
) -> tuple[np.ndarray, list[float]]:
  """[sum D_i, dim] rotations of parts of D_i = `dims` dimensions, stacked.

  `gram` is Q, [sum D_i, sum D_i] float64. The start is 'zero' (the largest
  part, zeros where it lacks a word), 'pca' (principal directions of the parts
  side by side) or 'random' (random rows Y, for which Q has `dim` more columns,
  times sqrt(a)).

  Also returns the relative displacement of Y (root mean square) in each
  iteration; one below the tolerance is the last.
  """
  bases = [
    np.eye(d) if d <= dim else principal(gram[part, part], dim)
    for d, part in zip(dims, slices(dims), strict=True)
  ]
  extra = [np.eye(dim)] if start == 'random' else []
  base = scipy.linalg.block_diag(*bases, *extra)
  if base.shape[0] != base.shape[1]:
    gram = base.T @ gram @ base
  sizes = [b.shape[1] for b in bases]
  parts, num = slices(sizes), sum(sizes)

  def rotations(crosses):
    return np.concatenate([procrustes(crosses[part]) for part in parts])

  def displacement(square, norm):
    return float(np.sqrt(max(square, 0) / norm)) if norm > 0 else 0.0

  moved = []
  if start == 'random':
    crosses, rest = gram[:num, num:], np.trace(gram[num:, num:])
    gram = gram[:num, :num]
    w = rotations(crosses)
    norm = np.sum(w * (gram @ w))
    moved.append(displacement(norm - 2 * np.sum(w * crosses) + rest, norm))
  elif start == 'pca':
    # As long as rotations are, so that displacements are comparable.
    w = principal(gram, min(dim, num)) * np.sqrt(len(parts))
    w = np.pad(w, ((0, 0), (0, dim - w.shape[1])))
  else:
    w = _join(gram, parts, dim)
  crosses = gram @ w
  while len(moved) < max_iterations and not (moved and moved[-1] <= tolerance):
    new = rotations(crosses)
    new_crosses = gram @ new
    square = np.sum((new - w) * (new_crosses - crosses))
    moved.append(displacement(square, np.sum(new * new_crosses)))
    w, crosses = new, new_crosses
  return base[: sum(dims), :num] @ w, moved


def length_correction(
  gram: np.ndarray, moments: Sequence[np.ndarray], rotations: np.ndarray
) -> np.ndarray:
  """[dim, dim] symmetric and invertible matrix that undoes the shrinking of Y.

  Takes Q, all P_i and the stacked rotations [sum D_i, dim], all float64.
  """
  mean = rotations.T @ gram @ rotations
  total = rotations.T @ scipy.linalg.block_diag(*moments) @ rotations
  squares, directions = np.linalg.eigh(mean)
  totals = np.einsum('ij,ik,kj->j', directions, total, directions)
  # Directions without any words are rounding errors. The mean of n unrelated
  # parts is shorter than they are by root n, at most.
  has = squares > _EPSILON * squares.max()
  ratios = np.divide(totals, squares, out=np.ones_like(squares), where=has)
  lengths = np.sqrt(np.clip(ratios, 1, len(moments)))
  return (directions * lengths) @ directions.T


def spectral_power(gram: np.ndarray, power: float) -> np.ndarray:
  """[dim, dim] matrix that raises lengths of principal directions to a power.

  A length s, relative to the largest, becomes s ** power (as in Levy, Goldberg
  and Dagan 2015 and Caron 2001). Rows of this Gram matrix are to be multiplied
  by the result, which is symmetric and invertible.
  """
  squares, directions = np.linalg.eigh(gram)
  largest = max(squares.max(), np.finfo(np.float64).tiny)
  lengths = np.sqrt(np.maximum(squares / largest, _EPSILON))
  return (directions * lengths ** (power - 1)) @ directions.T


def agreement(
  rotated: Sequence[np.ndarray], fractions: np.ndarray, y: np.ndarray
) -> np.ndarray:
  """[4, n] float64, how well rotated parts agree on a block of words.

  Sums over the words that another part knows too, of: |M_i W_i|^2;
  |M_i W_i - Y|^2; the cosine of M_i W_i and the mean of the other parts; and 1.
  Takes M_i W_i [b, dim] of each part, a_i / a [n, b] and Y [b, dim].
  """
  is_shared = np.count_nonzero(fractions, 0) > 1
  result = np.zeros((4, len(rotated)))
  for i, (x, fraction) in enumerate(zip(rotated, fractions, strict=True)):
    others = y - fraction[:, None] * x  # but for the length
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(others, axis=1)
    cosines = np.vecdot(x, others) / np.where(lengths > 0, lengths, 1)
    squares, gaps = np.vecdot(x, x), np.vecdot(x - y, x - y)
    counts = is_shared & (fraction > 0)
    values = squares, gaps, np.clip(cosines, -1, 1), counts
    result[:, i] = [
      np.sum(value, where=counts, dtype=np.float64) for value in values
    ]
  return result
