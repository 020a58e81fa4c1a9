"""Operators of relations, which map a source's vector to near its targets'."""

import jax
import jax.numpy as jnp

from jaxemb import errors


def apply(name: str, rows: jax.Array, relations: jax.Array) -> jax.Array:
  """Returns [..., d], rows behind the operators of relations [..., d]."""
  if name == 'translation':
    return rows + relations
  if name == 'diagonal':
    return rows * (1 + relations)
  if rows.shape[-1] % 2:
    raise errors.UserError(
      'config.model.operator=complex needs pairs of columns on every device; '
      'give an even --config.model.dim, or another --config.table.layout'
    )
  (x, y), (a, b) = ((z[..., ::2], z[..., 1::2]) for z in (rows, relations))
  pairs = x + x * a - y * b, y + y * a + x * b
  return jnp.stack(pairs, -1).reshape(rows.shape)
