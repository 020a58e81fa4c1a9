"""Running sums over equal ids on a TPU, by one kernel.

XLA fetches the gradients of a step in the order of their ids, and `dedup` goes
over all of them once for each level of its tiles. Here blocks come one after
another: a block's rows are copied to the core, each tile is multiplied by a 0/1
matrix that says which earlier rows have the same id, and what the last row has
is added to those of the next tile that go on with its id.

Factors of products are of 8 bits there: a float32 is the sum of three such, and
0 and 1 are exact, so three products have all of its bits.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.tables import row_copies

_TILE = 128


def running_sums(
  rows: jax.Array, order: jax.Array, ids: jax.Array, interpret: bool = False
) -> jax.Array:
  """[n, d] float32, sums of rows[order] over those with the same id so far.

  Rows are [m, d] float32; `order` [n] int32; ids [n] int32 are sorted, and from
  0 on. `interpret`: without a TPU.
  """
  import jax.experimental.pallas as pl  # takes long, and few need it
  import jax.experimental.pallas.tpu as pltpu

  (_, dim), num = rows.shape, len(ids)
  block = row_copies.block_rows(dim)
  order, ids = (jnp.pad(x, (0, -num % block), 'edge') for x in (order, ids))
  if not interpret:
    rows = pltpu.with_memory_space_constraint(rows, pltpu.HBM)
  return pl.pallas_call(
    _kernel,
    grid=len(ids) // block,
    in_specs=[
      pl.BlockSpec((block,), lambda i: (i,), memory_space=pltpu.SMEM),
      pl.BlockSpec((block // _TILE, _TILE), lambda i: (i, 0)),
      pl.BlockSpec(memory_space=pltpu.HBM),
    ],
    out_specs=pl.BlockSpec((block, dim), lambda i: (i, 0)),
    out_shape=jax.ShapeDtypeStruct((num, dim), jnp.float32),
    scratch_shapes=[
      pltpu.VMEM((block, dim), jnp.float32),
      pltpu.VMEM((1, dim), jnp.float32),
      pltpu.VMEM((1, 1), jnp.int32),
      pltpu.SemaphoreType.DMA,
    ],
    compiler_params=pltpu.CompilerParams(disable_bounds_checks=True),
    interpret=interpret,
  )(order, ids.reshape(-1, _TILE), rows)


def _kernel(
  order: Any,
  ids: Any,
  array: Any,
  sums: Any,
  rows: Any,
  last_sum: Any,
  last_id: Any,
  semaphore: Any,
) -> None:
  """Sums of a block of rows."""
  import jax.experimental.pallas as pl

  @pl.when(pl.program_id(0) == 0)
  def _():
    last_sum[...] = jnp.zeros_like(last_sum)
    last_id[...] = jnp.full_like(last_id, -1)

  row_copies.read(order, array, rows, semaphore)
  shape = _TILE, _TILE
  is_earlier = jax.lax.broadcasted_iota(
    jnp.int32, shape, 1
  ) <= jax.lax.broadcasted_iota(jnp.int32, shape, 0)
  for i in range(ids.shape[0]):
    across = jnp.broadcast_to(ids[i : i + 1], shape)
    down = across.T
    same = ((down == across) & is_earlier).astype(jnp.float32)
    here = pl.ds(_TILE * i, _TILE)
    found = sum(
      jnp.dot(same.astype(x.dtype), x, preferred_element_type=jnp.float32)
      for x in _terms(rows[here])
    )
    goes_on = down[:, :1] == last_id[...]
    found += jnp.where(goes_on, last_sum[...], 0.0)
    sums[here] = found
    last_sum[...] = found[-1:]
    last_id[...] = down[-1:, :1]


def _terms(x: jax.Array) -> list[jax.Array]:
  """Three bfloat16 of which float32 numbers are the sum."""
  terms = []
  for _ in range(3):
    terms.append(x.astype(jnp.bfloat16))
    x -= terms[-1].astype(jnp.float32)
  return terms
