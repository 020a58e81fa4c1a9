"""Writes of single rows on a TPU, by a kernel that copies each to its place.

XLA writes rows of a large table sixteen at a time: it fetches the tiles of 4 KB
that they lie in, waits, changes one after another, writes and waits, or streams
the whole table where it has many ids. Where all ids differ no write has to wait
for another: here the rows of a block are in the core's memory, one DMA for each
row is started, and then all are waited for.

Rows of numbers of 4 bytes lie in one piece for each 128 of them. Those of
smaller numbers share words with their neighbours, and are left to XLA.
"""

import jax
import jax.numpy as jnp

_BLOCK_BYTES = 1 << 20  # of rows in the core's memory; there are two blocks
_IDS_AT_ONCE = 1024  # a multiple of which a block has
_LANES = 128
_UNROLLED = 8


def can_put(array: jax.Array) -> bool:
  """Whether `put` takes an array."""
  return array.ndim == 2 and array.dtype.itemsize == 4


def put(
  array: jax.Array, ids: jax.Array, rows: jax.Array, interpret: bool = False
) -> jax.Array:
  """Replaces rows of an array [v, d], in place, of 4-byte numbers.

  Ids [n] int32 differ, where they are below v; others are padding. Rows are
  [n, d]. `interpret`: without a TPU.
  """
  import jax.experimental.pallas as pl  # takes long, and few need it
  import jax.experimental.pallas.tpu as pltpu

  (vocab, dim), num = array.shape, len(ids)
  row_bytes = 4 * _LANES * -(-dim // _LANES)
  block = max(1, _BLOCK_BYTES // row_bytes // _IDS_AT_ONCE) * _IDS_AT_ONCE
  ids = jnp.pad(ids, (0, -num % block), constant_values=vocab)

  def kernel(ids, rows, _, array, semaphore):
    def copy(i, at):
      source, target = rows.at[pl.ds(i, 1)], array.at[pl.ds(at, 1)]
      return pltpu.make_async_copy(source, target, semaphore)

    def start(i, num_started):
      is_row = ids[i] < vocab
      pl.when(is_row)(lambda: copy(i, ids[i]).start())
      return num_started + is_row.astype(jnp.int32)

    num_started = jax.lax.fori_loop(
      0, block, start, jnp.int32(0), unroll=_UNROLLED
    )
    # A semaphore counts bytes: one wait for each bit of the number of rows.
    for power in range(block.bit_length()):
      size = 1 << power
      some = rows.at[pl.ds(0, min(size, block))]
      wait = pltpu.make_async_copy(some, some, semaphore).wait
      pl.when(num_started & size != 0)(wait)

  return pl.pallas_call(
    kernel,
    out_shape=jax.ShapeDtypeStruct(array.shape, array.dtype),
    grid=len(ids) // block,
    in_specs=[
      pl.BlockSpec((block,), lambda i: (i,), memory_space=pltpu.SMEM),
      pl.BlockSpec((block, dim), lambda i: (i, 0)),
      pl.BlockSpec(memory_space=pltpu.HBM),
    ],
    out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
    scratch_shapes=[pltpu.SemaphoreType.DMA],
    input_output_aliases={2: 0},
    # Only rows of the array are written: to check it again takes three times
    # as long.
    compiler_params=pltpu.CompilerParams(disable_bounds_checks=True),
    interpret=interpret,
  )(ids, rows, array)
