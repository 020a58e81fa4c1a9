"""Collectives that may send bfloat16 but sum in float32.

A sum of bfloat16 would round every partial sum. Here each device gets its share
of all terms as bfloat16, adds them up as float32 and sends the sums as
bfloat16: two exchanges, as in a ring, of half the bytes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxemb.ops import rounding


class Axis(NamedTuple):
  """An axis of the mesh, or several, inside `shard_map`."""

  name: str | tuple[str, ...]
  dtype: str = 'float32'  # of what travels along it, or 'bfloat16'


def psum(x: jax.Array, axis: Axis) -> jax.Array:
  """Returns [...] float32, the sum over the devices of an axis, on all."""
  if axis.dtype == 'float32':
    return jax.lax.psum(x, axis.name)
  num = jax.lax.axis_size(axis.name)
  flat = jnp.pad(x.reshape(-1), (0, -x.size % num)).reshape(num, -1)
  terms = jax.lax.all_to_all(rounding.encode(flat, axis.dtype), axis.name, 0, 0)
  sums = jnp.sum(rounding.decode(terms, axis.dtype), 0)
  sums = jax.lax.all_gather(
    rounding.encode(sums, axis.dtype), axis.name, tiled=True
  )
  return rounding.decode(sums, axis.dtype)[: x.size].reshape(x.shape)


def all_gather(tree: Any, names: Sequence[str], dtype: str = 'float32') -> Any:
  """Concatenates arrays [n, ...] of a pytree over devices of the named axes.

  Rows, [n, d] float32, travel in the dtype.
  """
  if not names:
    return tree

  def gather(x):
    is_rows = x.ndim == 2 and x.dtype == jnp.float32
    sent = dtype if is_rows else 'float32'
    x = jax.lax.all_gather(rounding.encode(x, sent), tuple(names), tiled=True)
    return rounding.decode(x, sent)

  return jax.tree.map(gather, tree)
