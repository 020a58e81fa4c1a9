"""Table rows on the host, encoded as tables store them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import rounding
from jaxemb.storage import vectors_npy

# Of all copies of a table: what devices and hosts hold at once beside it.
NUMBERS_AT_ONCE = 1 << 24


class RowBlock(NamedTuple):
  """Rows of a range of ids with their optimizer slots."""

  encoded: vectors_npy.Encoded
  slots: dict[str, np.ndarray]  # by name, [..., n] or [..., n, dim] float32

  @property
  def rows(self) -> np.ndarray:
    """[..., n, dim] float32."""
    return self.encoded.decode()


def from_stored(stored: Any, dtype: str) -> vectors_npy.Encoded:
  """Rows as `rounding.encode` returns them, fetched to the host."""
  if dtype == 'int8':
    return vectors_npy.Encoded(stored.codes, dtype, stored.scales)
  return vectors_npy.Encoded(stored, dtype)


def encode(
  rows: np.ndarray, like: vectors_npy.Encoded | str
) -> vectors_npy.Encoded:
  """Rounds rows [n, dim] float32 to nearest, never clipped.

  `like` is one of `rounding.DTYPES`; or the rows before a change, so that int8
  rows keep their scales where they fit.
  """
  dtype = like if isinstance(like, str) else like.dtype
  if dtype == 'float32':
    return vectors_npy.Encoded(rows)
  num_rows = max(1, NUMBERS_AT_ONCE // max(rows.shape[1], 1))
  parts = []
  for start in range(0, max(len(rows), 1), num_rows):
    here = slice(start, start + num_rows)
    block, scales = jnp.asarray(rows[here]), None
    if dtype == 'int8' and not isinstance(like, str):
      largest = jnp.max(jnp.abs(block), -1)
      scales = rounding.row_scales(largest, like.scales[here])
    parts.append(jax.device_get(rounding.encode(block, dtype, None, scales)))
  return from_stored(jax.tree.map(lambda *x: np.concatenate(x), *parts), dtype)
