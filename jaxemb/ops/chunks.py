"""Chunks of centers: their windows, and products of their rows.

L centers with a halo of W tokens on both sides are cut in L / c chunks; the
contexts of a chunk's c centers all lie in one window of c + 2 W tokens:

  tokens   h h [ a b c d | e f g h ] h h        L = 8, c = 4, W = 2
  chunk 0  h h   a b c d   e f                  centers a b c d
  chunk 1        c d   e f g h   h h            centers e f g h

so a chunk's scores are one [c, c + 2 W] product, masked to the dynamic windows.

Such a small product is fast on a CPU where the contracted axis is the last of
the left factor and the second of the right one: [c, w] x [w, d]. What autodiff
makes of a step contracts the first axis of both factors, at half the speed.
Here the left factor of those, which is the small one, is transposed first: an
eighth of a training step is saved.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxemb.ops import wire

# Offsets beyond are compared in a loop: they would make long programs.
_MAX_UNROLLED_WINDOW = 10


def windows(tokens: jax.Array, chunk: int, window: int) -> jax.Array:
  """[k, c + 2 W], the windows of all chunks of tokens [..., L + 2 W].

  Runs along the leading axes follow one another; L is a multiple of c.

  >>> windows(jnp.arange(6), 2, 1)
  Array([[0, 1, 2, 3],
         [2, 3, 4, 5]], dtype=int32)
  """
  width = chunk + 2 * window
  num_chunks = (tokens.shape[-1] - 2 * window) // chunk
  starts = chunk * jnp.arange(num_chunks)[:, None]
  return tokens[..., starts + jnp.arange(width)[None, :]].reshape(-1, width)


def mask(
  left: jax.Array, right: jax.Array, chunk: int, window: int
) -> jax.Array:
  """[k, c, c + 2 W] float32, 1 = the token is a context of the center.

  Of the numbers of contexts before and behind each center, [..., L] int of at
  most W. A center is never its own context.
  """
  left = left.astype(jnp.int32).reshape(-1, chunk, 1)
  right = right.astype(jnp.int32).reshape(-1, chunk, 1)
  offset = jnp.arange(chunk + 2 * window) - window
  offset = (offset[None, :] - jnp.arange(chunk)[:, None])[None]
  inside = (offset >= -left) & (offset <= right) & (offset != 0)
  return inside.astype(jnp.float32)


def num_hits(
  tokens: jax.Array, left: jax.Array, right: jax.Array, draws: jax.Array
) -> jax.Array:
  """[k, c, N] float32, how many of a center's contexts are each draw.

  Of the draws [k, N] that a chunk shares; tokens [..., L + 2 W] and numbers of
  contexts [..., L] are as above.
  """
  num_chunks, length = draws.shape[0], left.shape[-1]
  window = (tokens.shape[-1] - length) // 2
  left = left.astype(jnp.int32).reshape(num_chunks, -1)
  right = right.astype(jnp.int32).reshape(num_chunks, -1)

  def add_hits(offset, hits):
    inside = (offset >= -left) & (offset <= right) & (offset != 0)
    contexts = jax.lax.dynamic_slice_in_dim(tokens, window + offset, length, -1)
    contexts = jnp.where(inside, contexts.reshape(num_chunks, -1), -1)
    same = contexts[:, :, None] == draws[:, None, :]
    return hits + same.astype(jnp.int32)

  hits = jnp.zeros((num_chunks, left.shape[1], draws.shape[1]), jnp.int32)
  if window > _MAX_UNROLLED_WINDOW:
    hits = jax.lax.fori_loop(-window, window + 1, add_hits, hits)
  else:
    for offset in (*range(-window, 0), *range(1, window + 1)):
      hits = add_hits(offset, hits)
  return hits.astype(jnp.float32)


def _turned(x: jax.Array) -> jax.Array:
  """[k, c, w] -> [k, w, c], in memory."""
  # The barriers keep XLA from folding the transpose into the product again.
  x = jax.lax.optimization_barrier(x)
  return jax.lax.optimization_barrier(x.transpose(0, 2, 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def scores(
  left: jax.Array,
  right: jax.Array,
  columns: wire.Axis | None = None,
  is_narrow: bool = False,
) -> jax.Array:
  """[k, c, w], products of all rows [k, c, d] and [k, w, d] of each chunk.

  With an axis of the mesh over which columns are split, d is a device's share
  of them: products are summed over it, and derivatives stay on their device.
  """
  # The right factor of a product is repacked: let it be the smaller one. Where
  # the left one is very narrow (c = 2 to 8 or so), to repack the right one,
  # though more, is a third of the time.
  if is_narrow:
    found = jnp.einsum('kcd,kwd->kcw', left, right)
  else:
    found = jnp.einsum('kwd,kcd->kwc', right, left)
  if columns is not None:
    found = wire.psum(found, columns)
  found = jax.lax.optimization_barrier(found)
  return found if is_narrow else found.transpose(0, 2, 1)


def _scores_forward(left, right, columns, is_narrow):
  return scores(left, right, columns, is_narrow), (left, right)


def _scores_backward(columns, is_narrow, factors, slopes):
  del columns, is_narrow  # every device has all slopes, and its own columns
  left, right = factors
  # Or the transpose of the scores is folded into the first product.
  slopes = jax.lax.optimization_barrier(slopes)
  return (
    jnp.einsum('kcw,kwd->kcd', slopes, right),
    jnp.einsum('kwc,kcd->kwd', _turned(slopes), left),
  )


scores.defvjp(_scores_forward, _scores_backward)


@jax.custom_vjp
def weighted_sums(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """[k, c, d], sums of rows [k, w, d]; weights [k, c, w] have no derivative."""
  return jnp.einsum('kcw,kwd->kcd', weights, rows)


def _weighted_sums_backward(weights, slopes):
  return None, jnp.einsum('kwc,kcd->kwd', _turned(weights), slopes)


weighted_sums.defvjp(
  lambda weights, rows: (weighted_sums(weights, rows), weights),
  _weighted_sums_backward,
)


@dataclasses.dataclass(frozen=True)
class RowOps:
  """What a layout hands to models, so that they need not know of devices.

  Rows are whole, or a device has d of their `dim` columns (`tables`' column
  layout), filled up with zeros to as many on every device.
  """

  columns: wire.Axis | None = None

  def dot(
    self, left: jax.Array, right: jax.Array, is_narrow: bool = False
  ) -> jax.Array:
    """[k, c, d] x [k, w, d] -> [k, c, w], see `scores`."""
    return scores(left, right, self.columns, is_narrow)

  def sum_columns(self, sums: jax.Array) -> jax.Array:
    """[...], from sums over a device's columns to sums over all."""
    return jax.lax.psum(sums, self.columns.name) if self.columns else sums

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
    size = num_columns * jax.lax.axis_size(self.columns.name)
    filling = [(0, 0)] * (rows.ndim - 1) + [(0, size - rows.shape[-1])]
    first = num_columns * jax.lax.axis_index(self.columns.name)
    rows = jnp.pad(rows, filling)
    return jax.lax.dynamic_slice_in_dim(rows, first, num_columns, -1)


WHOLE_ROWS = RowOps()
