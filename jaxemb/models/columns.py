"""Products and other operations on rows whose columns devices may share.

Every device has some columns [..., d] of each row. Slopes of what all devices
have are the same on each, so no derivative needs an exchange of its own.

Products of a chunk are small, and fast on a CPU as [c, w] x [w, d]. Autodiff's
contract the first axis of both factors, at half the speed: transposing the left
factor, which is small, saves an eighth of a training step.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import wire

_LEAST_LENGTH = 1e-6


def _transposed(x: jax.Array) -> jax.Array:
  """Returns [k, c, w] -> [k, w, c], in memory."""
  # The barriers keep XLA from folding the transpose into the product again.
  x = jax.lax.optimization_barrier(x)
  return jax.lax.optimization_barrier(x.transpose(0, 2, 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _dot(left, right, columns, is_narrow):
  # The right factor of a product is repacked: let it be the smaller one,
  # unless that is narrow (c = 2 to 8 or so), which takes three times as long.
  if is_narrow:
    scores = jnp.einsum('kcd,kwd->kcw', left, right)
  else:
    scores = jnp.einsum('kwd,kcd->kwc', right, left)
  if columns is not None:
    scores = wire.psum(scores, columns)
  scores = jax.lax.optimization_barrier(scores)
  return scores if is_narrow else scores.transpose(0, 2, 1)


def _dot_backward(columns, is_narrow, factors, slopes):
  left, right = factors  # every device has all slopes, and its own columns
  # Keeps the transpose of the scores from being folded into the first product.
  slopes = jax.lax.optimization_barrier(slopes)
  return (
    jnp.einsum('kcw,kwd->kcd', slopes, right),
    jnp.einsum('kwc,kcd->kwd', _transposed(slopes), left),
  )


_dot.defvjp(lambda *args: (_dot(*args), args[:2]), _dot_backward)


@jax.custom_vjp
def weighted_sums(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """Sums rows [k, w, d] by weights [k, c, w], which have no derivative."""
  return jnp.einsum('kcw,kwd->kcd', weights, rows)


def _weighted_sums_backward(weights, slopes):
  return None, jnp.einsum('kwc,kcd->kwd', _transposed(weights), slopes)


weighted_sums.defvjp(
  lambda weights, rows: (weighted_sums(weights, rows), weights),
  _weighted_sums_backward,
)


@dataclasses.dataclass(frozen=True)
class RowOps:
  """Operations on rows that hide from models how a layout splits columns.

  Rows are whole, or have d of `dim` columns, padded with zeros to as many on
  every device.
  """

  columns: wire.Axis | None = None

  def dot(
    self, left: jax.Array, right: jax.Array, is_narrow: bool = False
  ) -> jax.Array:
    """Returns [k, c, w], products of rows [k, c, d] and [k, w, d] of chunks.

    They are summed over devices, their derivatives not; `is_narrow`: c is tiny.
    """
    return _dot(left, right, self.columns, is_narrow=is_narrow)

  def sum_columns(self, sums: jax.Array) -> jax.Array:
    """Returns [...], sums over a device's columns -> sums over all."""
    return jax.lax.psum(sums, self.columns.name) if self.columns else sums

  def whole(self, rows: jax.Array, dim: int) -> jax.Array:
    """Returns [..., d] -> [..., dim], on every device."""
    if self.columns is None:
      return rows
    rows = jax.lax.all_gather(rows, self.columns.name, axis=-1, tiled=True)
    return rows[..., :dim]

  def own(self, rows: jax.Array, num_columns: int) -> jax.Array:
    """Returns [..., dim] -> [..., d], a device's d = `num_columns` columns."""
    if self.columns is None:
      return rows
    size = num_columns * jax.lax.axis_size(self.columns.name)
    padding = [(0, 0)] * (rows.ndim - 1) + [(0, size - rows.shape[-1])]
    first = num_columns * jax.lax.axis_index(self.columns.name)
    rows = jnp.pad(rows, padding)
    return jax.lax.dynamic_slice_in_dim(rows, first, num_columns, -1)


WHOLE_ROWS = RowOps()


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def whole(rows: jax.Array, dim: int, row_ops: RowOps) -> jax.Array:
  """Returns [..., dim], whole rows, of a device's columns [..., d]."""
  return row_ops.whole(rows, dim)


def _whole_backward(dim, row_ops, num_columns, slopes):
  # All devices have the same slopes; a device needs those of its columns.
  return (row_ops.own(slopes, num_columns),)


whole.defvjp(
  lambda rows, dim, row_ops: (row_ops.whole(rows, dim), rows.shape[-1]),
  _whole_backward,
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def sums(products: jax.Array | np.ndarray, row_ops: RowOps) -> jax.Array:
  """Returns [...], sums over columns [..., d] of all devices."""
  return row_ops.sum_columns(jnp.sum(products, -1))


sums.defvjp(
  lambda x, row_ops: (sums(x, row_ops), x),
  lambda row_ops, x, slopes: (jnp.broadcast_to(slopes[..., None], x.shape),),
)


def inverse_lengths(rows: jax.Array | np.ndarray, row_ops: RowOps) -> jax.Array:
  """Returns [...] of rows [..., d]."""
  squares = sums(jnp.square(rows), row_ops)
  return jax.lax.rsqrt(jnp.maximum(squares, _LEAST_LENGTH**2))
