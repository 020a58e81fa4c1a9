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


def chunk_windows(tokens: jax.Array, chunk: int, window: int) -> jax.Array:
  """The window of each chunk.

  Args:
    tokens: [L + 2 * window], L a multiple of `chunk`.
    chunk: c, centers per chunk.
    window: W.

  Returns:
    [L / c, c + 2 * window].

  >>> chunk_windows(jnp.arange(6), 2, 1)
  Array([[0, 1, 2, 3],
         [2, 3, 4, 5]], dtype=int32)
  """
  num_chunks = (tokens.shape[0] - 2 * window) // chunk
  starts = chunk * jnp.arange(num_chunks)[:, None]
  return tokens[starts + jnp.arange(chunk + 2 * window)[None, :]]


def window_mask(
  left: jax.Array, right: jax.Array, chunk: int, window: int
) -> jax.Array:
  """Which tokens of a chunk's window are contexts of which center.

  Args:
    left: [L] int, number of contexts before each center, at most `window`.
    right: [L] int, number of contexts behind it.
    chunk: c.
    window: W.

  Returns:
    [L / c, c, c + 2 * window] float32, 1 for a context; a center is never its
    own context.
  """
  left = left.astype(jnp.int32).reshape(-1, chunk, 1)
  right = right.astype(jnp.int32).reshape(-1, chunk, 1)
  offset = jnp.arange(chunk + 2 * window) - window
  offset = (offset[None, :] - jnp.arange(chunk)[:, None])[None]
  inside = (offset >= -left) & (offset <= right) & (offset != 0)
  return inside.astype(jnp.float32)
