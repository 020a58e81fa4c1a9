"""Windows over a run of tokens, cut in chunks for batched matrix products.

L centers with a halo of W tokens on both sides are cut in L / c chunks; the
contexts of a chunk's c centers all lie in one window of c + 2 W tokens:

  tokens   h h [ a b c d | e f g h ] h h        L = 8, c = 4, W = 2
  chunk 0  h h   a b c d   e f                  centers a b c d
  chunk 1        c d   e f g h   h h            centers e f g h

so a chunk's scores are one [c, c + 2 W] product, masked to the dynamic windows.
"""

import jax
import jax.numpy as jnp

# Offsets beyond are compared in a loop: they would make long programs.
_MAX_UNROLLED_WINDOW = 10


def chunk_windows(tokens: jax.Array, chunk: int, window: int) -> jax.Array:
  """The window of each chunk.

  Args:
    tokens: [..., L + 2 * window], L a multiple of `chunk`; runs of their own
      along the leading axes.
    chunk: c, centers per chunk.
    window: W.

  Returns:
    [k, c + 2 * window], of the k chunks of one run after the other.

  >>> chunk_windows(jnp.arange(6), 2, 1)
  Array([[0, 1, 2, 3],
         [2, 3, 4, 5]], dtype=int32)
  """
  width = chunk + 2 * window
  num_chunks = (tokens.shape[-1] - 2 * window) // chunk
  starts = chunk * jnp.arange(num_chunks)[:, None]
  return tokens[..., starts + jnp.arange(width)[None, :]].reshape(-1, width)


def window_mask(
  left: jax.Array, right: jax.Array, chunk: int, window: int
) -> jax.Array:
  """Which tokens of a chunk's window are contexts of which center.

  Args:
    left: [..., L] int, number of contexts before each center, at most
      `window`.
    right: [..., L] int, number of contexts behind it.
    chunk: c.
    window: W.

  Returns:
    [k, c, c + 2 * window] float32, 1 for a context; a center is never its own
    context.
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
  """How many of a center's contexts are the same word as each draw.

  Args:
    tokens: [..., L + 2 W] int32.
    left: [..., L] int, number of contexts before each center, at most W.
    right: [..., L] int, number of contexts behind it.
    draws: [k, N] int32, those that a chunk of c centers shares.

  Returns:
    [k, c, N] float32.
  """
  num_chunks, length = draws.shape[0], left.shape[-1]
  window = (tokens.shape[-1] - length) // 2
  left = left.astype(jnp.int32).reshape(num_chunks, -1)
  right = right.astype(jnp.int32).reshape(num_chunks, -1)

  def hits_at(offset, contexts):
    inside = (offset >= -left) & (offset <= right) & (offset != 0)
    contexts = jnp.where(inside, contexts.reshape(num_chunks, -1), -1)
    same = contexts[:, :, None] == draws[:, None, :]
    return same.astype(jnp.int32)

  def hits_in_loop(offset, hits):
    contexts = jax.lax.dynamic_slice_in_dim(tokens, window + offset, length, -1)
    return hits + hits_at(offset, contexts)

  hits = jnp.zeros((num_chunks, left.shape[1], draws.shape[1]), jnp.int32)
  if window <= _MAX_UNROLLED_WINDOW:
    for offset in (*range(-window, 0), *range(1, window + 1)):
      first = window + offset
      hits += hits_at(offset, tokens[..., first : first + length])
  else:
    hits = jax.lax.fori_loop(-window, window + 1, hits_in_loop, hits)
  return hits.astype(jnp.float32)
