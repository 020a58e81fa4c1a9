"""Batches of small matrix products, with the derivatives that a CPU likes.

A small product is fast on a CPU where the contracted axis is the last of the
left factor and the second of the right one: [c, w] x [w, d]. What autodiff
makes of a step has products that contract the first axis of both factors, at
half the speed. Here the left factor of those, which is the small one, is
transposed first: an eighth of a training step is saved. Chunks are as in
`ops.windows`: k chunks of c centers and w rows of d numbers each.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxemb.ops import wire


def _turned(x: jax.Array) -> jax.Array:
  """[k, c, w] -> [k, w, c], in memory."""
  # The barriers keep XLA from folding the transpose into the product again.
  x = jax.lax.optimization_barrier(x)
  return jax.lax.optimization_barrier(x.transpose(0, 2, 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def scores(
  left: jax.Array, right: jax.Array, columns: wire.Axis | None = None
) -> jax.Array:
  """Every product of a left and a right row of the same chunk.

  Args:
    left: [k, c, d] float32.
    right: [k, w, d] float32.
    columns: axis of the mesh over which the columns of both are split, d being
      one device's share: the products are summed over it, and derivatives stay
      on their device. None = rows are whole.

  Returns:
    [k, c, w] float32.
  """
  # The right factor of a product is repacked: let it be the smaller one.
  turned = jnp.einsum('kwd,kcd->kwc', right, left)
  if columns is not None:
    turned = wire.psum(turned, columns)
  return jax.lax.optimization_barrier(turned).transpose(0, 2, 1)


def _scores_forward(left, right, columns):
  return scores(left, right, columns), (left, right)


def _scores_backward(columns, factors, slopes):
  del columns  # every device has all slopes, and its columns of the rows
  left, right = factors
  # Or the transpose of the scores is folded into the first product.
  slopes = jax.lax.optimization_barrier(slopes)
  return (
    jnp.einsum('kcw,kwd->kcd', slopes, right),
    jnp.einsum('kwc,kcd->kwd', _turned(slopes), left),
  )


scores.defvjp(_scores_forward, _scores_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def narrow_scores(
  left: jax.Array, right: jax.Array, columns: wire.Axis | None = None
) -> jax.Array:
  """As `scores`, where there are few left rows, c = 2 to 8 or so.

  To repack the right rows, though more, is then a third of the time.
  """
  found = jnp.einsum('kcd,kwd->kcw', left, right)
  if columns is not None:
    found = wire.psum(found, columns)
  return jax.lax.optimization_barrier(found)


def _narrow_scores_forward(left, right, columns):
  return narrow_scores(left, right, columns), (left, right)


narrow_scores.defvjp(_narrow_scores_forward, _scores_backward)


@jax.custom_vjp
def weighted_sums(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """Sums of the rows of a chunk; weights are data, without a derivative.

  Args:
    weights: [k, c, w] float32.
    rows: [k, w, d] float32.

  Returns:
    [k, c, d] float32.
  """
  return jnp.einsum('kcw,kwd->kcd', weights, rows)


def _weighted_sums_forward(weights, rows):
  return weighted_sums(weights, rows), weights


def _weighted_sums_backward(weights, slopes):
  rows = jnp.einsum('kwc,kcd->kwd', _turned(weights), slopes)
  return jnp.zeros_like(weights), rows


weighted_sums.defvjp(_weighted_sums_forward, _weighted_sums_backward)


@dataclasses.dataclass(frozen=True)
class RowOps:
  """What a layout hands to models, so that they need not know of devices.

  Rows are whole, or a device has d of their `dim` columns (`tables`' column
  layout), filled up with zeros to as many on every device.
  """

  columns: wire.Axis | None = None

  def dot(self, left: jax.Array, right: jax.Array) -> jax.Array:
    """[k, c, d] x [k, w, d] -> [k, c, w], see `scores`."""
    return scores(left, right, self.columns)

  def narrow_dot(self, left: jax.Array, right: jax.Array) -> jax.Array:
    """The same where c is small, see `narrow_scores`."""
    return narrow_scores(left, right, self.columns)

  def sum_columns(self, sums: jax.Array) -> jax.Array:
    """[...], from sums over a device's columns to sums over all."""
    return (
      sums if self.columns is None else jax.lax.psum(sums, self.columns.name)
    )

  def whole(self, rows: jax.Array, dim: int) -> jax.Array:
    """[..., d] -> [..., dim], on every device."""
    if self.columns is None:
      return rows
    rows = jax.lax.all_gather(rows, self.columns.name, axis=-1, tiled=True)
    return rows[..., :dim]

  def own(self, rows: jax.Array, num_columns: int) -> jax.Array:
    """[..., dim] -> [..., d], a device's d = `num_columns` columns."""
    if self.columns is None:
      return rows
    filling = (
      num_columns * jax.lax.axis_size(self.columns.name) - rows.shape[-1]
    )
    rows = jnp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, filling)])
    first = num_columns * jax.lax.axis_index(self.columns.name)
    return jax.lax.dynamic_slice_in_dim(rows, first, num_columns, -1)


WHOLE_ROWS = RowOps()
