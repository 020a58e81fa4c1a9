"""Reads and writes rows of arrays, by XLA or by kernels of a device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Copies(NamedTuple):
  """Kernels that copy single rows of an array (`kernels.tpu.row_copies`)."""

  can_copy: Callable[[jax.Array], bool]
  take: Callable[[jax.Array, jax.Array], jax.Array]  # (array, ids [n]) -> rows
  # (array, ids [n], rows) -> array; ids differ.
  put: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class Kernels(NamedTuple):
  """Kernels that take the place of XLA's operations on rows; None = XLA."""

  copies: Copies | None = None
  # Where `copies` can copy gradients, as `kernels.tpu.sorted_sums`:
  # (gradients, order, ids, rows) -> (running sums, rows or None).
  running_sums: Callable[..., Any] | None = None
  # As of `kernels.gpu.row_sums`: (`RowGrads`, vocab) -> sums over each id, and
  # (`RowGrads` with sorted ids, order of gradients, vocab) -> sums without ids.
  sums: Callable[..., Any] | None = None
  sums_of_sorted: Callable[..., Any] | None = None


XLA = Kernels()


def flatten(ids: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Reshapes [...] and [..., d] to [n] and [n, d]."""
  return ids.reshape(-1), rows.reshape(-1, rows.shape[-1])


def gather(
  array: jax.Array, ids: jax.Array, copies: Copies | None = None
) -> jax.Array:
  """Returns [..., d], rows of ids [...]; arbitrary ones of padding."""
  if copies and copies.can_copy(array):
    rows = copies.take(array, ids.reshape(-1))
    return rows.reshape(*ids.shape, -1)
  return array.at[ids].get(mode='clip')


def put(
  array: jax.Array,
  ids: jax.Array,
  rows: jax.Array,
  copies: Copies | None = None,
) -> jax.Array:
  """Replaces rows of ids, which all differ."""
  if copies and copies.can_copy(array):
    return copies.put(array, ids, rows)
  return array.at[ids].set(rows, mode='drop', unique_indices=True)


def add(
  array: jax.Array,
  ids: jax.Array,
  rows: jax.Array,
  are_unique: bool,
  copies: Copies | None = None,
  old: jax.Array | None = None,
) -> jax.Array:
  """Adds rows to those of ids; `are_unique` promises that all ids differ.

  Then a kernel may do it, which needs the `old` rows, and reads them where they
  are not given.
  """
  if are_unique and copies and copies.can_copy(array):
    rows += gather(array, ids, copies) if old is None else old
    rows = jax.lax.optimization_barrier(rows)
    return copies.put(array, ids, rows)
  return array.at[ids].add(rows, mode='drop', unique_indices=are_unique)
