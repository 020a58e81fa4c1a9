"""Scores of edges: an operator on the vector of the known end, then a measure.

A relation is a vector a of the operator that maps a node's vector x to near
those of the nodes at the other end:

  none x    translation x + a    diagonal x * (1 + a)    complex z * (1 + c)
  rotation  z * (1 + c) / |1 + c|

where elements 2i and 2i + 1 of x and a are the complex numbers z and c. With
a = 0 all leave x as it is. The score of a mapped vector q and a vector y is

  product q . y    cosine q . y / (|q| |y| t)    distance -|q - y|^2

Training, ranks of held-out edges and exported models score by what is here.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.models import columns
from jaxemb.storage import export

Array = jax.Array | np.ndarray

_COMPLEX = 'complex', 'rotation'
_LEAST_SQUARE = 1e-12


@dataclasses.dataclass(frozen=True)
class EdgeScore:
  """How edges score."""

  operator: str = 'none'
  measure: str = 'product'
  temperature: float = 0.0  # t of cosines

  def operate(self, rows: Array, relations: Array) -> Array:
    """Returns [..., d], rows behind the operators of relations [..., d].

    Raises a `UserError` for complex numbers that lie on two devices.
    """
    if self.operator == 'translation':
      return rows + relations
    if self.operator == 'diagonal':
      return rows * (1 + relations)
    if self.operator == 'none':
      return rows
    (x, y), (a, b) = (self._parts(z) for z in (rows, relations))
    a = 1 + a
    if self.operator == 'rotation':
      scale = jax.lax.rsqrt(jnp.maximum(a * a + b * b, _LEAST_SQUARE))
      a, b = a * scale, b * scale
    pairs = x * a - y * b, y * a + x * b
    return jnp.stack(pairs, -1).reshape(rows.shape)

  def sizes(
    self, rows: Array, row_ops: columns.RowOps = columns.WHOLE_ROWS
  ) -> jax.Array:
    """Returns [...] of rows [..., d], what `scores` needs of them."""
    if self.measure == 'cosine':
      return columns.inverse_lengths(rows, row_ops)
    if self.measure == 'distance':
      return columns.sums(rows * rows, row_ops)
    return jnp.zeros(rows.shape[:-1], rows.dtype)

  def scores(self, products: Array, mapped: Array, others: Array) -> Array:
    """Returns [...], scores of products [...] of mapped vectors and others.

    `mapped` and `others` are their `sizes`, or broadcast to [...].
    """
    if self.measure == 'cosine':
      return products * (mapped / self.temperature) * others
    if self.measure == 'distance':
      return 2 * products - mapped - others
    return products

  def of_pairs(
    self,
    mapped: Array,
    others: Array,
    row_ops: columns.RowOps = columns.WHOLE_ROWS,
  ) -> Array:
    """Returns [...], scores of mapped vectors and others [..., d], by row."""
    sizes = (self.sizes(x, row_ops) for x in (mapped, others))
    return self.scores(columns.sums(mapped * others, row_ops), *sizes)

  def cubes(
    self,
    rows: jax.Array,
    row_ops: columns.RowOps = columns.WHOLE_ROWS,
    shift: float = 0.0,
  ) -> jax.Array:
    """Returns [...], sums of |shift + z|^3 over elements z of rows [..., d].

    The N3 norm (Lacroix et al. 2018, eq. 7). Elements are complex numbers if
    those of the operator are.
    """
    if self.operator not in _COMPLEX:
      return columns.sums(jnp.abs(shift + rows) ** 3, row_ops)
    x, y = self._parts(rows)
    squares = jnp.maximum((shift + x) ** 2 + y * y, _LEAST_SQUARE)
    return columns.sums(squares * jnp.sqrt(squares), row_ops)

  def operator_cubes(self, relations: jax.Array) -> jax.Array:
    """Returns [...], `cubes` of what whole rows [..., d] add or multiply by.

    Those of rotations are all 1, and count as 0.
    """
    if self.operator == 'rotation':
      return jnp.zeros(relations.shape[:-1], relations.dtype)
    shift = 0.0 if self.operator == 'translation' else 1.0
    return self.cubes(relations, shift=shift)

  def _parts(self, rows: Array) -> tuple[Array, Array]:
    """Real and imaginary parts [..., d / 2] of complex numbers."""
    if rows.shape[-1] % 2:
      raise errors.UserError(
        f'config.model.operator={self.operator} needs pairs of columns on '
        'every device; give an even --config.model.dim, or another '
        '--config.table.layout'
      )
    return rows[..., ::2], rows[..., 1::2]


PRODUCT = EdgeScore()
COSINE = EdgeScore(measure='cosine', temperature=1.0)


def of_relations(relations: export.Relations | None) -> EdgeScore:
  """Returns how edges of an exported model score, of others by cosines."""
  if relations is None:
    return COSINE
  return EdgeScore(relations.operator, relations.measure, relations.temperature)


def mapped(
  rows: np.ndarray,
  names: Sequence[str] | None,
  relations: export.Relations | None,
) -> np.ndarray:
  """Returns [n, d] rows of sources behind the operators of their relations.

  `names` are of the [n] relations; None = edges have no relations. Raises a
  `UserError` where these are not those of an exported model.
  """
  score, known = of_relations(relations), relations.names if relations else ()
  if names is None:
    if score.operator != 'none':
      raise errors.UserError(
        'edges of this model have relations: give (source, relation, target) '
        f'with one of {", ".join(known[:5])}'
      )
    return rows
  index = {name: i for i, name in enumerate(known)}
  if unknown := [x for x in names if x not in index]:
    raise errors.UserError(
      f'there is no operator of a relation {unknown[0]!r}, but '
      f'{", ".join(known[:5]) or "none"}; train graph:relations with an '
      'operator, or give one of these'
    )
  if relations is None:
    return rows  # of no names
  operators = relations.rows[[index[x] for x in names]]
  return np.asarray(score.operate(rows, operators))


def of_ends(
  sources: np.ndarray, targets: np.ndarray, relations: export.Relations | None
) -> np.ndarray:
  """Returns scores of [n, d] `mapped` sources and targets, [n] float32."""
  return np.asarray(of_relations(relations).of_pairs(sources, targets))
