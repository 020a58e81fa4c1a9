"""Differentiable operations on rows whose columns several devices share.

Every device has some columns [..., d] of each row. Slopes of what all devices
have are the same on each, so no derivative needs an exchange of its own.
"""

import functools

import jax
import jax.numpy as jnp

from jaxemb.models import skipgram

_LEAST_LENGTH = 1e-6


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def whole(rows: jax.Array, dim: int, row_ops: skipgram.RowOps) -> jax.Array:
  """[..., dim], whole rows, of a device's columns [..., d]."""
  return row_ops.whole(rows, dim)


def _whole_backward(dim, row_ops, num_columns, slopes):
  # All devices have the same slopes; a device needs those of its columns.
  return (row_ops.own(slopes, num_columns),)


whole.defvjp(
  lambda rows, dim, row_ops: (row_ops.whole(rows, dim), rows.shape[-1]),
  _whole_backward,
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def sums(products: jax.Array, row_ops: skipgram.RowOps) -> jax.Array:
  """[...], sums over columns [..., d] of all devices."""
  return row_ops.sum_columns(jnp.sum(products, -1))


sums.defvjp(
  lambda x, row_ops: (sums(x, row_ops), x),
  lambda row_ops, x, slopes: (jnp.broadcast_to(slopes[..., None], x.shape),),
)


def inverse_lengths(rows: jax.Array, row_ops: skipgram.RowOps) -> jax.Array:
  """[...] of rows [..., d]."""
  squares = sums(jnp.square(rows), row_ops)
  return jax.lax.rsqrt(jnp.maximum(squares, _LEAST_LENGTH**2))
