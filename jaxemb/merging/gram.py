"""Gram matrices of tables side by side, added up over blocks of their rows.

Rows lie side by side, [b, D_1 + ... + D_n], those of a part in its own columns.
They are dealt to the devices of a mesh; each adds up its own, and only matrices
of columns by columns leave it. float32 would lose what the thousandth block
adds to a large sum: what rounding lost is carried along (Kahan 1965).
"""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_CHUNK_COLUMNS = 512  # only the upper triangle is computed, in so high steps
PRECISION = jax.lax.Precision.HIGHEST  # GPUs and TPUs would round to 10 bits


class Sums(NamedTuple):
  """Upper triangle of a Gram matrix, by chunks of rows, per device.

  Each number is `total` - `lost` (Kahan 1965): float32 alone would lose what
  blocks add to a large sum.
  """

  total: tuple[jax.Array, ...]  # [devices, c, columns from the chunk on]
  lost: tuple[jax.Array, ...]


def slices(dims: Sequence[int]) -> list[slice]:
  """Columns of each part, of parts side by side."""
  ends = list(itertools.accumulate(dims, initial=0))
  return [slice(*pair) for pair in itertools.pairwise(ends)]


def over(mesh: jax.sharding.Mesh) -> jax.sharding.PartitionSpec:
  """Rows dealt to all devices of a mesh."""
  return jax.sharding.PartitionSpec(mesh.axis_names)


def put(mesh: jax.sharding.Mesh, rows: np.ndarray) -> jax.Array:
  """[b, ...] host rows on the devices, which divide b."""
  return jax.device_put(rows, jax.sharding.NamedSharding(mesh, over(mesh)))


def scale(weights: np.ndarray) -> np.ndarray:
  """[b, n] float32 a_i / sqrt(a): scales of rows that make their Gram matrix Q.

  Args:
    weights: [b, n] float, a_i.
  """
  total = np.sum(weights, 1, keepdims=True)
  return (weights / np.sqrt(np.where(total > 0, total, 1))).astype(np.float32)


def zeros(mesh: jax.sharding.Mesh, num_columns: int) -> Sums:
  """Sums of no block."""
  shapes = [
    (mesh.size, min(_CHUNK_COLUMNS, num_columns - first), num_columns - first)
    for first in range(0, num_columns, _CHUNK_COLUMNS)
  ]

  def make():
    return tuple(put(mesh, np.zeros(shape, np.float32)) for shape in shapes)

  return Sums(make(), make())


@functools.partial(
  jax.jit, static_argnames=('mesh', 'dims'), donate_argnames='sums'
)
def add(
  sums: Sums,
  rows: jax.Array,
  scale: jax.Array,
  *,
  mesh: jax.sharding.Mesh,
  dims: tuple[int, ...],
) -> Sums:
  """Adds Z^T Z of a block, Z being the scaled rows.

  Args:
    sums: so far; donated.
    rows: [b, sum D_i] float32.
    scale: [b, n] float32, of the rows of each part.
    mesh: the devices, over which rows are dealt; nothing travels.
    dims: D_i.
  """

  def add(sums, rows, scale):
    z = rows * spread(scale, dims)
    total, lost, first = [], [], 0
    for old, rest in zip(*sums, strict=True):
      left = z[:, first : first + old.shape[1]]
      product = jnp.einsum('bi,bj->ij', left, z[:, first:], precision=PRECISION)
      product = product[None] - rest
      new = old + product
      total.append(new)
      lost.append((new - old) - product)
      first += old.shape[1]
    return Sums(tuple(total), tuple(lost))

  return jax.shard_map(
    add, mesh=mesh, in_specs=(over(mesh),) * 3, out_specs=over(mesh)
  )(sums, rows, scale)


@functools.partial(
  jax.jit, static_argnames=('mesh', 'dims'), donate_argnames='sums'
)
def add_each(
  sums: tuple[Sums, ...],
  rows: jax.Array,
  scale: jax.Array,
  *,
  mesh: jax.sharding.Mesh,
  dims: tuple[int, ...],
) -> tuple[Sums, ...]:
  """As `add`, but adds Z_i^T Z_i of each part alone to the sums of its own.

  Args:
    sums: so far, n of them; donated.
    rows: [b, sum D_i] float32.
    scale: [b, n] float32, of the rows of each part.
    mesh: the devices, over which rows are dealt; nothing travels.
    dims: D_i.
  """
  return tuple(
    add(one, rows[:, part], scale[:, i, None], mesh=mesh, dims=dims[i : i + 1])
    for i, (one, part) in enumerate(zip(sums, slices(dims), strict=True))
  )


def spread(scale: jax.Array, dims: tuple[int, ...]) -> jax.Array:
  """[b, n], a number for each part -> [b, sum D_i], one for each column."""
  return jnp.repeat(
    scale, np.array(dims), axis=1, total_repeat_length=sum(dims)
  )


def result(sums: Sums) -> np.ndarray:
  """[columns, columns] float64, on the host, summed over all devices."""
  num_columns = sums.total[0].shape[2]
  gram = np.zeros((num_columns, num_columns))
  first = 0
  for total, lost in zip(*sums, strict=True):
    stop = first + total.shape[1]
    for one, rest in zip(np.asarray(total), np.asarray(lost), strict=True):
      gram[first:stop, first:] += one.astype(np.float64) - rest
    first = stop
  for first in range(0, num_columns, _CHUNK_COLUMNS):
    stop = first + _CHUNK_COLUMNS
    block = np.triu(gram[first:stop, first:stop])
    gram[first:stop, first:stop] = block + np.triu(block, 1).T
    gram[stop:, first:stop] = gram[first:stop, stop:].T
  return gram
