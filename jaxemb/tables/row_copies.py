"""Copies of single rows on a TPU, by kernels that start one DMA for each.

XLA writes rows of a large table sixteen at a time: it fetches the tiles of 4 KB
that they lie in, waits, changes one after another, writes and waits, or streams
the whole table where it has many ids. Where all ids differ no write has to wait
for another: here the rows of a block are in the core's memory, all their copies
are started, and then all are waited for. A table that would fit in the core's
memory XLA moves there in every step, and back: here it stays where it is.

Rows of numbers of 4 bytes lie in one piece for each 128 of them. Those of
smaller numbers share words with their neighbours, and are left to XLA.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

# A TPU has narrower rows column after column within steps (50 numbers, not 64,
# read in compiled programs): they would be copied into rows and back.
LEAST_WIDTH = 64
_BLOCK_BYTES = 1 << 20  # of rows in the core's memory; there are two blocks
_IDS_AT_ONCE = 1024  # a multiple of which a block has
_LANES = 128
_UNROLLED = 8


def can_copy(array: jax.Array) -> bool:
  """Whether `put` and `take` copy rows of an array."""
  is_wide = array.ndim == 2 and array.shape[1] >= LEAST_WIDTH
  return is_wide and array.dtype.itemsize == 4


def take(
  array: jax.Array, ids: jax.Array, interpret: bool = False
) -> jax.Array:
  """[n, d], rows of an array [v, d] of 4-byte numbers; ids [n] int32.

  Those of padding, which is from v on, are arbitrary. `interpret`: without a
  TPU.
  """
  return _call(False, array, ids, None, interpret)


def put(
  array: jax.Array, ids: jax.Array, rows: jax.Array, interpret: bool = False
) -> jax.Array:
  """Replaces rows of an array [v, d], in place, of 4-byte numbers.

  Ids [n] int32 differ, where they are below v; others are padding. Rows are
  [n, d]. `interpret`: without a TPU.
  """
  return _call(True, array, ids, rows, interpret)


def _call(writes, array, ids, rows, interpret):
  import jax.experimental.pallas as pl  # takes long, and few need it
  import jax.experimental.pallas.tpu as pltpu

  (vocab, dim), num = array.shape, len(ids)
  row_bytes = 4 * _LANES * -(-dim // _LANES)
  block = max(1, _BLOCK_BYTES // row_bytes // _IDS_AT_ONCE) * _IDS_AT_ONCE
  if not writes:
    ids = jnp.minimum(ids, vocab - 1)
  ids = jnp.pad(ids, (0, -num % block), constant_values=vocab * writes)
  on_core = pl.BlockSpec((block, dim), lambda i: (i, 0))
  in_memory = pl.BlockSpec(memory_space=pltpu.HBM)
  id_block = pl.BlockSpec((block,), lambda i: (i,), memory_space=pltpu.SMEM)
  call = functools.partial(
    pl.pallas_call,
    grid=len(ids) // block,
    scratch_shapes=[pltpu.SemaphoreType.DMA],
    # All rows are those of the array: to check it again takes three times as
    # long.
    compiler_params=pltpu.CompilerParams(disable_bounds_checks=True),
    interpret=interpret,
  )
  if not interpret:
    array = pltpu.with_memory_space_constraint(array, pltpu.HBM)
  kernel = functools.partial(_kernel, writes, block, vocab)
  if writes:
    return call(
      kernel,
      out_shape=pltpu.HBM(array.shape, array.dtype),
      in_specs=[id_block, on_core, in_memory],
      out_specs=in_memory,
      input_output_aliases={2: 0},
    )(ids, rows, array)
  return call(
    kernel,
    out_shape=jax.ShapeDtypeStruct((num, dim), array.dtype),
    in_specs=[id_block, in_memory],
    out_specs=on_core,
  )(ids, array)


def _kernel(writes: bool, block: int, vocab: int, ids: Any, *refs: Any) -> None:
  """Copies the rows of a block of ids."""
  import jax.experimental.pallas as pl
  import jax.experimental.pallas.tpu as pltpu

  if writes:
    rows, _, array, semaphore = refs
  else:
    array, rows, semaphore = refs

  def start(i, num_started):
    ends = rows.at[pl.ds(i, 1)], array.at[pl.ds(ids[i], 1)]
    copy = pltpu.make_async_copy(*ends[:: 1 if writes else -1], semaphore)
    if not writes:
      copy.start()
      return num_started
    is_row = ids[i] < vocab
    pl.when(is_row)(copy.start)
    return num_started + is_row.astype(jnp.int32)

  def wait(num):
    some = rows.at[pl.ds(0, num)]
    pltpu.make_async_copy(some, some, semaphore).wait()

  started = jax.lax.fori_loop(0, block, start, jnp.int32(0), unroll=_UNROLLED)
  if not writes:
    wait(block)
    return
  # A semaphore counts bytes: one wait for each bit of the number of rows.
  for power in range(block.bit_length()):
    size = 1 << power
    pl.when(started & size != 0)(functools.partial(wait, size))
