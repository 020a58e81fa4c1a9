"""Running sums over equal ids on a TPU, by one kernel.

XLA fetches the gradients of a step in the order of their ids, and `dedup` goes
over all of them once for each level of its tiles. Here blocks come one after
another: a block's rows are brought together, each tile is multiplied by a 0/1
matrix that says which earlier rows have the same id, and what the last row has
is added to those of the next tile that go on with its id.

If all rows of a step fit into the core's memory they are there, to be read in
half of the time, and the rows of tables that were looked up come along, which
saves reading them once more. Else they are copied one by one.

Factors of products are of 8 bits there: a float32 is the sum of three such, and
0 and 1 are exact, so three products have all of its bits.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.kernels.tpu import row_copies

_TILE = 128
_FRACTION = 0.6  # of the core's memory, for the rows of a step
_SMALL_BYTES = 1 << 24  # of v4 and before, where XLA puts no arrays


def running_sums(
  grads: jax.Array,
  order: jax.Array,
  ids: jax.Array,
  rows: jax.Array | None = None,
  interpret: bool = False,
  fits: bool | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """Returns sums of grads[order] over the same ids so far; and rows[order].

  Gradients and rows are [m, d] float32; `order` and ids are [n] int32, and ids
  are sorted, and from 0 on. Rows that have no room in the core's memory, or
  were None, are None; `fits` says whether they have. `interpret`: without
  a TPU.
  """
  import jax.experimental.pallas as pl  # takes long, and few need it
  import jax.experimental.pallas.tpu as pltpu

  (num_rows, dim), num = grads.shape, len(ids)
  arrays = [grads] if rows is None else [grads, rows]
  if fits is None:
    row_bytes = 4 * row_copies.LANES * -(-dim // row_copies.LANES)
    capacity = pltpu.get_tpu_info().vmem_capacity_bytes
    fits = len(arrays) * num_rows * row_bytes < _FRACTION * capacity
    fits &= capacity > _SMALL_BYTES
  arrays = arrays if fits else arrays[:1]
  space = pltpu.VMEM if fits else pltpu.HBM
  block = row_copies.block_rows(dim, num)
  order, ids = (jnp.pad(x, (0, -num % block), 'edge') for x in (order, ids))
  if not interpret:
    arrays = [pltpu.with_memory_space_constraint(x, space) for x in arrays]
  scratch = [
    pltpu.VMEM((block, dim), jnp.float32),
    pltpu.VMEM((1, dim), jnp.float32),
    pltpu.VMEM((1, 1), jnp.int32),
  ]
  sums, *rows = pl.pallas_call(
    functools.partial(_kernel, len(arrays)),
    grid=(len(ids) // block,),
    in_specs=[
      pl.BlockSpec((block,), lambda i: (i,), memory_space=pltpu.SMEM),
      pl.BlockSpec((block // _TILE, _TILE), lambda i: (i, 0)),
      *[pl.BlockSpec(memory_space=space)] * len(arrays),
    ],
    out_specs=[pl.BlockSpec((block, dim), lambda i: (i, 0))] * len(arrays),
    out_shape=[jax.ShapeDtypeStruct((num, dim), jnp.float32)] * len(arrays),
    scratch_shapes=scratch + [pltpu.SemaphoreType.DMA] * (not fits),
    compiler_params=pltpu.CompilerParams(disable_bounds_checks=True),
    interpret=interpret,
  )(order, ids.reshape(-1, _TILE), *arrays)
  return sums, rows[0] if rows else None


def _kernel(num_arrays: int, order: Any, ids: Any, *refs: Any) -> None:
  """Sums of a block of rows."""
  import jax.experimental.pallas as pl

  arrays, results = refs[:num_arrays], refs[num_arrays : 2 * num_arrays]
  rows, last_sum, last_id, *semaphore = refs[2 * num_arrays :]

  @pl.when(pl.program_id(0) == 0)
  def _():
    last_sum[...] = jnp.zeros_like(last_sum)
    last_id[...] = jnp.full_like(last_id, -1)

  if semaphore:
    row_copies.read(order, arrays[0], rows, *semaphore)
  else:
    for array, to in zip(arrays, [rows, *results[1:]], strict=True):
      row_copies.each(order, to, functools.partial(_copy, array))
  sums, shape = results[0], (_TILE, _TILE)
  is_earlier = jax.lax.broadcasted_iota(
    jnp.int32, shape, 1
  ) <= jax.lax.broadcasted_iota(jnp.int32, shape, 0)
  for i in range(ids.shape[0]):
    across = jnp.broadcast_to(ids[i : i + 1], shape)
    down = across.T
    same = ((down == across) & is_earlier).astype(jnp.float32)
    tile = pl.ds(_TILE * i, _TILE)
    total = sum(
      jnp.dot(same.astype(x.dtype), x, preferred_element_type=jnp.float32)
      for x in _terms(rows[tile])
    )
    goes_on = down[:, :1] == last_id[...]
    total += jnp.where(goes_on, last_sum[...], 0.0)
    sums[tile] = total
    last_sum[...] = total[-1:]
    last_id[...] = down[-1:, :1]


def _copy(array: Any, row: jax.Array, to: Any) -> None:
  import jax.experimental.pallas as pl

  to[...] = array[pl.ds(row, 1)]


def _terms(x: jax.Array) -> list[jax.Array]:
  """Three bfloat16 of which float32 numbers are the sum."""
  terms = []
  for _ in range(3):
    terms.append(x.astype(jnp.bfloat16))
    x -= terms[-1].astype(jnp.float32)
  return terms
