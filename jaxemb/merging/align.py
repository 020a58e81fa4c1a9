"""Merging of tables that were trained apart: Concat, PCA and ALiR.

Part i has rows M_i(w) [D_i] of the words w that it knows; a_i(w) is the weight
of its vote, 0 where it has none, and a = sum_i a_i. ALiR ("alternating linear
regression", Anand et al. 2019; generalized Procrustes analysis elsewhere) wants
one rotation for each part and one row Y(w) for each word that any part has,

  minimize sum_w sum_i a_i(w) |M_i(w) W_i - Y(w)|^2,   W_i W_i^T = 1

by turns: Y(w) = sum_i a_i M_i W_i / a, then W_i = U V^T of the singular vectors
of C_i = sum_w a_i M_i(w)^T Y(w). All that this asks of the rows is

  Q_ij = sum_w a_i a_j / a M_i(w)^T M_j(w)          C_i = sum_j Q_ij W_j

the Gram matrix of the scaled parts side by side, which adds up over blocks of
words. So the rows are read once for Q and once for Y, whatever the number of
iterations, and those take place on D x D matrices in float64. PCA of the
concatenation needs the same matrix, with all weights 1.

The mean of parts is short where they disagree: in the directions of which they
have learned least, so that what they do agree on there counts for too little.
`restore` gives each principal direction of Y the length that it has in the
turned parts (our addition): with P_i = sum_w a_i M_i(w)^T M_i(w),

  sum_w a |Y(w) v|^2 = v^T C v,  C = sum_ij W_i^T Q_ij W_j
  sum_w sum_i a_i |M_i(w) W_i v|^2 = v^T T v,  T = sum_i W_i^T P_i W_i

differ by what the parts disagree by along v. Parts that agree are not changed.
One matrix serves all words, so that products with what goes with the vectors
stay: words of one part alone, of which nothing was averaged, grow as well.

Rows lie side by side, [b, D_1 + ... + D_n], zeros where a part lacks the word.
A part of fewer dimensions than the result is turned into a subspace of it. One
of more is first reduced to its own principal directions.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from jaxemb.merging import gram as gram_lib
from jaxemb.ops import sampling

_ROUNDING = 1e-12  # of squares of lengths, relative to the largest

STARTS = ('zero', 'pca', 'random')


class Alignment(NamedTuple):
  """Rotations of all parts into one space."""

  rotations: np.ndarray  # [sum D_i, dim] float64, those of the parts stacked
  # Of each iteration: root of the weighted mean square of what Y moved by,
  # relative to that of Y.
  displacements: tuple[float, ...]


class Measured(NamedTuple):
  """Of each part, how it fits the others, summed over the words of a block."""

  squares: jax.Array  # [n], |M_i W_i|^2
  residuals: jax.Array  # [n], |M_i W_i - Y|^2
  cosines: jax.Array  # [n], of M_i W_i and what the other parts alone say
  words: jax.Array  # [n], that another part has too: the others do not count


@functools.partial(jax.jit, static_argnames=('seed', 'dim'))
def random_rows(
  seed: int, rows: np.ndarray, dim: int, scale: np.ndarray
) -> jax.Array:
  """[b, dim] float32, a random start of Y, each row times its scale.

  Args:
    seed: of the start.
    rows: [b] int32, which rows of Y.
    dim: numbers of a row, of variance 1.
    scale: [b] float32.
  """
  key = jnp.array([seed, 0], jnp.uint32)
  start = sampling.uniform_rows(key, rows, jnp.arange(dim), 3**0.5)
  return start * scale[:, None]


def procrustes(cross: np.ndarray) -> np.ndarray:
  """The W with orthonormal rows (or columns) that maximizes tr(W^T cross).

  It turns rows X to lie best on rows Y where cross is X^T Y.

  Args:
    cross: [d, dim] float64.

  Returns:
    [d, dim] float64.
  """
  left, _, right = scipy.linalg.svd(
    cross, full_matrices=False, check_finite=False
  )
  return left @ right


def principal(gram: np.ndarray, dim: int) -> np.ndarray:
  """[columns, dim] float64, orthonormal: the directions of largest variance.

  Uncentred, as in the authors' code; signs are such that the largest number of
  each direction is positive.

  Args:
    gram: [columns, columns] float64, Z^T Z.
    dim: number of directions, at most columns.
  """
  size = len(gram)
  _, vectors = scipy.linalg.eigh(
    gram, subset_by_index=(size - dim, size - 1), check_finite=False
  )
  vectors = vectors[:, ::-1]
  largest = np.take_along_axis(
    vectors, np.argmax(np.abs(vectors), 0)[None], axis=0
  )
  return vectors * np.where(largest < 0, -1, 1)


def _bases(gram: np.ndarray, dims: Sequence[int], dim: int) -> list[np.ndarray]:
  """[D_i, min(D_i, dim)] for each part: what of it takes part."""
  return [
    np.eye(d) if d <= dim else principal(gram[part, part], dim)
    for d, part in zip(dims, gram_lib.slices(dims), strict=True)
  ]


def _join(gram: np.ndarray, parts: list[slice], dim: int) -> np.ndarray:
  """Zero start: parts join one at a time, the most closely tied first.

  The first one stays as it is, Y being zero where it has no row; each further
  one is turned towards those that are there.
  """
  ties = np.array([[np.linalg.norm(gram[p, q]) for q in parts] for p in parts])
  size = np.diag(ties).copy()
  np.fill_diagonal(ties, 0)
  waiting = list(range(len(parts)))
  w = np.zeros((len(gram), dim))
  first = int(np.argmax(size))
  w[parts[first]] = np.eye(parts[first].stop - parts[first].start, dim)
  waiting.remove(first)
  near = ties[first].copy()
  while waiting:
    i = max(waiting, key=lambda i: near[i])
    w[parts[i]] = procrustes(gram[parts[i]] @ w)
    waiting.remove(i)
    near += ties[i]
  return w


def solve(
  gram: np.ndarray,
  dims: Sequence[int],
  dim: int,
  start: str,
  max_iterations: int,
  tolerance: float,
) -> Alignment:
  """ALiR on the Gram matrix of all parts.

  Args:
    gram: [columns, columns] float64, Q of the parts side by side. With start
      'random' it has `dim` more columns: of the random rows times sqrt(a).
    dims: D_i.
    dim: of the result.
    start: 'zero': the largest part, zeros where it lacks a word, and the others
      join it; 'pca': principal directions of the parts side by side; 'random':
      random rows.
    max_iterations: to stop after, at least 1.
    tolerance: displacement below which to stop.
  """
  dims = list(dims)
  bases = _bases(gram, dims, dim)
  extra = [np.eye(dim)] if start == 'random' else []
  base = scipy.linalg.block_diag(*bases, *extra)
  # A matrix of many columns is not copied if nothing is to be reduced.
  if base.shape[0] != base.shape[1]:
    gram = base.T @ gram @ base
  sizes = [b.shape[1] for b in bases]
  parts, num = gram_lib.slices(sizes), sum(sizes)
  moved = []
  if start == 'random':
    crosses, rest = gram[:num, num:], float(np.trace(gram[num:, num:]))
    gram = gram[:num, :num]
    w = np.concatenate([procrustes(crosses[part]) for part in parts])
    norm = float(np.sum(w * (gram @ w)))
    square = norm - 2 * float(np.sum(w * crosses)) + rest
    moved.append(_relative(square, norm))
  elif start == 'pca':
    # Of the length that rotations have, so that displacements tell something.
    w = principal(gram, min(dim, num)) * np.sqrt(len(parts))
    w = np.pad(w, ((0, 0), (0, dim - w.shape[1])))
  else:
    w = _join(gram, parts, dim)
  # Y is sum_i a_i M_i W_i / a, and Q W all that is asked of it.
  crosses = gram @ w
  while len(moved) < max_iterations and not (moved and moved[-1] <= tolerance):
    new = np.concatenate([procrustes(crosses[part]) for part in parts])
    new_crosses = gram @ new
    square = float(np.sum((new - w) * (new_crosses - crosses)))
    moved.append(_relative(square, float(np.sum(new * new_crosses))))
    w, crosses = new, new_crosses
  return Alignment(base[: sum(dims), :num] @ w, tuple(moved))


def restore(
  gram: np.ndarray, moments: Sequence[np.ndarray], rotations: np.ndarray
) -> np.ndarray:
  """What brings back the lengths that averaging took.

  Args:
    gram: [sum D_i, sum D_i] float64, Q.
    moments: [D_i, D_i] float64 of each part, P_i.
    rotations: [sum D_i, dim].

  Returns:
    [dim, dim] float64, symmetric and invertible; Y times it is the result.
  """
  mean = rotations.T @ gram @ rotations
  total, first = np.zeros_like(mean), 0
  for moment in moments:
    turn = rotations[first : first + len(moment)]
    total += turn.T @ moment @ turn
    first += len(moment)
  squares, directions = np.linalg.eigh(mean)
  totals = np.einsum('ij,ik,kj->j', directions, total, directions)
  # Directions that none of these words has are made of rounding. n parts that
  # have nothing in common are root n as long as their mean, at most.
  has = squares > _ROUNDING * squares.max()
  ratios = np.divide(totals, squares, out=np.ones_like(squares), where=has)
  lengths = np.sqrt(np.clip(ratios, 1, len(moments)))
  return (directions * lengths) @ directions.T


def flatten(gram: np.ndarray, power: float) -> np.ndarray:
  """What makes the lengths of a table's principal directions more alike.

  A length s, relative to the largest, becomes s ** power (the weighting of
  singular values of Levy, Goldberg and Dagan 2015 and of Caron 2001).

  Args:
    gram: [dim, dim] float64, of the table's rows.
    power: above 0; 1 changes nothing.

  Returns:
    [dim, dim] float64, symmetric and invertible, for the rows to be multiplied
    by.
  """
  squares, directions = np.linalg.eigh(gram)
  # Shorter ones are made of rounding.
  largest = max(squares.max(), np.finfo(np.float64).tiny)
  lengths = np.sqrt(np.maximum(squares / largest, _ROUNDING))
  return (directions * lengths ** (power - 1)) @ directions.T


def _relative(square: float, norm: float) -> float:
  return float(np.sqrt(max(square, 0) / norm)) if norm > 0 else 0.0


@functools.partial(jax.jit, static_argnames=('mesh', 'dims'))
def merge(
  rows: jax.Array,
  shares: jax.Array,
  rotations: jax.Array,
  outer: jax.Array,
  *,
  mesh: jax.sharding.Mesh,
  dims: tuple[int, ...],
) -> tuple[jax.Array, Measured]:
  """A block of the result, and how the parts fit it.

  Args:
    rows: [b, sum D_i] float32.
    shares: [b, n] float32, a_i / a: 0 where a part lacks the word.
    rotations: [sum D_i, dim] float32.
    outer: [dim, dim] float32, what Y is multiplied by in the end.
    mesh: the devices, over which rows are dealt.
    dims: D_i.

  Returns:
    [b, dim] float32, the result; and what was measured, of Y.
  """

  def block(rows, shares, rotations, outer):
    turned = [
      jnp.matmul(rows[:, p], rotations[p], precision=gram_lib.PRECISION)
      for p in gram_lib.slices(dims)
    ]
    y = sum(shares[:, i, None] * x for i, x in enumerate(turned))
    is_shared = jnp.sum(shares > 0, 1) > 1
    # As products, because a CPU adds up rows one number at a time.
    ones = jnp.ones(y.shape[1])

    def products(a, b):
      return jnp.matmul(a * b, ones, precision=gram_lib.PRECISION)

    y_y, found = products(y, y), []
    for i, x in enumerate(turned):
      share = shares[:, i]
      counts = (is_shared & (share > 0)).astype(jnp.float32)
      x_x, x_y = products(x, x), products(x, y)
      # The others say y - share x, up to its length.
      x_others = x_y - share * x_x
      others = y_y - 2 * share * x_y + share**2 * x_x
      lengths = jnp.sqrt(x_x * jnp.maximum(others, 0))
      cosines = x_others / jnp.where(lengths > 0, lengths, 1)
      found.append(
        Measured(
          jnp.sum(counts * x_x),
          jnp.sum(counts * products(x - y, x - y)),
          jnp.sum(counts * jnp.clip(cosines, -1, 1)),
          jnp.sum(counts),
        )
      )
    found = jax.tree.map(lambda *x: jnp.stack(x), *found)
    y = jnp.matmul(y, outer, precision=gram_lib.PRECISION)
    return y, jax.lax.psum(found, mesh.axis_names)

  over, everywhere = gram_lib.over(mesh), jax.sharding.PartitionSpec()
  return jax.shard_map(
    block,
    mesh=mesh,
    in_specs=(over, over, everywhere, everywhere),
    out_specs=(over, everywhere),
  )(rows, shares, rotations, outer)
