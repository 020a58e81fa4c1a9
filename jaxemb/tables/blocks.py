"""Blocks of table rows on the host: export and import, for any layout and mesh.

Rows travel a block at a time, so that neither a device nor a process needs room
for a second copy of a table. A state may hold several copies of a table along a
leading axis (replicas, sub-models).
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import rounding

_BLOCK_NUMBERS = 1 << 24  # of all copies, on every device at once


class Encoded(NamedTuple):
  """Rows in a storage dtype, on the host."""

  data: np.ndarray  # [..., n, dim] float32, uint16 (16-bit floats) or int8
  dtype: str = 'float32'
  scales: np.ndarray | None = None  # [..., n] float32, of int8

  def decode(self) -> np.ndarray:
    """[..., n, dim] float32; exact."""
    if self.dtype == 'float32':
      return self.data
    if self.dtype == 'bfloat16':
      return (self.data.astype(np.uint32) << 16).view(np.float32)
    if self.dtype == 'float16':
      return self.data.view(np.float16).astype(np.float32)
    return self.data * self.scales[..., None]

  def __getitem__(self, rows: Any) -> 'Encoded':
    """The same of some rows."""
    scales = None if self.scales is None else self.scales[rows]
    return Encoded(self.data[rows], self.dtype, scales)


class RowBlock(NamedTuple):
  """Rows of a range of ids with their optimizer slots, on the host."""

  encoded: Encoded
  slots: dict[str, np.ndarray]  # by name, [..., n] or [..., n, dim] float32

  @property
  def rows(self) -> np.ndarray:
    """[..., n, dim] float32."""
    return self.encoded.decode()


def encode(rows: np.ndarray, like: Encoded | str) -> Encoded:
  """Encodes rows on the host, rounded to nearest and never clipped.

  Args:
    rows: [n, dim] float32.
    like: one of `rounding.DTYPES`; or the rows before a change, so that int8
      rows keep their scales where they fit.
  """
  dtype = like if isinstance(like, str) else like.dtype
  if dtype == 'float32':
    return Encoded(rows)
  num_rows = max(1, _BLOCK_NUMBERS // max(rows.shape[1], 1))
  parts = []
  for start in range(0, max(len(rows), 1), num_rows):
    here = slice(start, start + num_rows)
    block, scales = jnp.asarray(rows[here]), None
    if dtype == 'int8' and not isinstance(like, str):
      largest = jnp.max(jnp.abs(block), -1)
      scales = rounding.row_scales(largest, like.scales[here])
    parts.append(jax.device_get(rounding.encode(block, dtype, None, scales)))
  return encoded(jax.tree.map(lambda *x: np.concatenate(x), *parts), dtype)


def encoded(stored: Any, dtype: str) -> Encoded:
  """Stored rows, fetched to the host."""
  if dtype == 'int8':
    return Encoded(stored.codes, dtype, stored.scales)
  return Encoded(stored, dtype)


@functools.partial(
  jax.jit, static_argnames=('table', 'num', 'has_copies', 'everywhere')
)
def _read(state, start, *, table, num, has_copies, everywhere):
  def read(state):
    found = table.read_range(state, start, num)
    return found.stored, found.slots

  found = (jax.vmap(read) if has_copies else read)(state)
  return jax.lax.with_sharding_constraint(found, everywhere)


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
    state: whole, perhaps with a leading axis of copies, which the rows then
      have as well.
    start: first id.
    stop: end of the range; None = all rows.
    has_copies: whether the state has such an axis.
  """
  leaf = jax.tree.leaves(state)[0]
  everywhere = leaf.sharding
  if isinstance(everywhere, jax.sharding.NamedSharding):
    everywhere = everywhere.update(spec=jax.sharding.PartitionSpec())
  stop = table.spec.vocab if stop is None else stop
  copies, axis = (len(leaf), 1) if has_copies else (1, 0)
  num = max(1, _BLOCK_NUMBERS // (copies * table.spec.dim))
  num = min(num, stop - start)
  parts = []
  for first in range(start, stop, max(num, 1)):
    found = _read(
      state,
      np.int32(min(first, stop - num)),
      table=table,
      num=num,
      has_copies=has_copies,
      everywhere=everywhere,
    )
    # The last block reaches back, so that all have one size.
    again = first - min(first, stop - num)
    here = (slice(None),) * axis + (slice(again, None),)
    parts.append(jax.tree.map(lambda x: x[here], jax.device_get(found)))  # noqa: B023
  stored, slots = parts[0]
  if len(parts) > 1:
    stored, slots = jax.tree.map(lambda *x: np.concatenate(x, axis), *parts)
  return RowBlock(encoded(stored, table.spec.dtype), slots)


@functools.partial(
  jax.jit,
  static_argnames=('table', 'has_copies', 'shardings'),
  donate_argnums=0,
)
def _write(state, ids, rows, slots, *, table, has_copies, shardings):
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
  """Replaces rows, in all copies; arguments as `spec.Table.import_rows`."""
  shardings = tuple(x.sharding for x in jax.tree.leaves(state))
  num = max(1, min(_BLOCK_NUMBERS // table.spec.dim, len(ids)))
  for start in range(0, len(ids), num):
    here = slice(start, start + num)
    padding = num - len(ids[here])

    def block(x, dtype, here=here, padding=padding, fill=0):
      width = ((0, padding),) + ((0, 0),) * (x.ndim - 1)
      return np.pad(x[here].astype(dtype), width, constant_values=fill)

    state = _write(
      state,
      block(ids, np.int32, fill=np.iinfo(np.int32).max),
      block(rows, np.float32),
      {name: block(x, np.float32) for name, x in slots.items()},
      table=table,
      has_copies=has_copies,
      shardings=shardings,
    )
  return state
