"""Blocks of table rows on the host: export and import, for any layout and mesh.

Rows leave the devices a block at a time, so that none needs room for a second
copy of a table. A state may hold several copies of a table along a leading axis
(replicas, sub-models).
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import rounding
from jaxemb.storage import vectors_npy

_BLOCK_NUMBERS = 1 << 24  # of all copies


class RowBlock(NamedTuple):
  """Rows of a range of ids with their optimizer slots, on the host."""

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
  """Encodes rows on the host, rounded to nearest and never clipped.

  Args:
    rows: [n, dim] float32.
    like: one of `rounding.DTYPES`; or the rows before a change, so that int8
      rows keep their scales where they fit.
  """
  dtype = like if isinstance(like, str) else like.dtype
  if dtype == 'float32':
    return vectors_npy.Encoded(rows)
  num_rows = max(1, _BLOCK_NUMBERS // max(rows.shape[1], 1))
  parts = []
  for start in range(0, max(len(rows), 1), num_rows):
    here = slice(start, start + num_rows)
    block, scales = jnp.asarray(rows[here]), None
    if dtype == 'int8' and not isinstance(like, str):
      largest = jnp.max(jnp.abs(block), -1)
      scales = rounding.row_scales(largest, like.scales[here])
    parts.append(jax.device_get(rounding.encode(block, dtype, None, scales)))
  return from_stored(jax.tree.map(lambda *x: np.concatenate(x), *parts), dtype)


@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5))
def _read(table, state, start, num, has_copies, sharding):
  def read(state):
    found = table.read_range(state, start, num)
    return found.stored, found.slots

  found = (jax.vmap(read) if has_copies else read)(state)
  return jax.lax.with_sharding_constraint(found, sharding)


def read(
  table: Any,
  state: Any,
  start: int = 0,
  stop: int | None = None,
  has_copies: bool = False,
) -> RowBlock:
  """Rows of a range of ids; all processes take part and get them.

  Args:
    table: a `spec.Table` that can read ranges.
    state: whole.
    start: first id.
    stop: end of the range; None = all rows.
    has_copies: whether the state, and so the block, has an axis of copies.
  """
  leaf = jax.tree.leaves(state)[0]
  everywhere = leaf.sharding
  if isinstance(everywhere, jax.sharding.NamedSharding):
    everywhere = everywhere.update(spec=jax.sharding.PartitionSpec())
  stop = table.spec.vocab if stop is None else stop
  numbers = table.spec.dim * (len(leaf) if has_copies else 1)
  size = max(1, _BLOCK_NUMBERS // numbers)
  parts = []
  for first in range(start, max(stop, start + 1), size):
    num = min(size, stop - first)
    part = _read(table, state, np.int32(first), num, has_copies, everywhere)
    parts.append(jax.device_get(part))
  stored, slots = parts[0]
  if len(parts) > 1:
    axis = int(has_copies)
    stored, slots = jax.tree.map(lambda *x: np.concatenate(x, axis), *parts)
  return RowBlock(from_stored(stored, table.spec.dtype), slots)


@functools.partial(jax.jit, static_argnums=(0, 5, 6), donate_argnums=1)
def _write(table, state, ids, rows, slots, has_copies, shardings):
  def write(state):
    return table.write_rows(state, ids, rows, slots)

  state = (jax.vmap(write) if has_copies else write)(state)
  leaves, tree = jax.tree.flatten(state)
  leaves = jax.lax.with_sharding_constraint(leaves, list(shardings))
  return jax.tree.unflatten(tree, leaves)


def write(
  table: Any,
  state: Any,
  ids: np.ndarray,
  rows: np.ndarray,
  slots: Mapping[str, np.ndarray] = {},
  has_copies: bool = False,
) -> Any:
  """Replaces rows, in all copies; see `spec.Table.import_rows`."""
  shardings = tuple(x.sharding for x in jax.tree.leaves(state))
  ids, rows = np.asarray(ids, np.int32), np.asarray(rows, np.float32)
  return _write(table, state, ids, rows, dict(slots), has_copies, shardings)
