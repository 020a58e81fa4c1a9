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
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.runtime import mesh

_BLOCK_BYTES = 3 << 19  # of rows in the core's memory; there are two blocks
_IDS_AT_ONCE = 1024  # a multiple of which a block has
_BLOCK_ROWS = 64  # that are copied in the time that a block takes by itself
LANES = 128  # numbers of a line of memory
_SUBLANES = 8  # lines of a tile


def can_copy(array: jax.Array) -> bool:
  """Whether `put` and `take` copy rows of an array."""
  # Narrower rows would be copied into rows and back.
  is_wide = array.ndim == 2 and array.shape[1] >= mesh.LEAST_TPU_WIDTH
  return is_wide and array.dtype.itemsize == 4


def take(
  array: jax.Array, ids: jax.Array, interpret: bool = False
) -> jax.Array:
  """[n, d], rows of an array [v, d] of 4-byte numbers; ids [n] int32.

  Those of padding, which is from v on, are arbitrary. `interpret`: without a
  TPU.
  """
  return _call(False, array, ids, rows=None, interpret=interpret)


def put(
  array: jax.Array, ids: jax.Array, rows: jax.Array, interpret: bool = False
) -> jax.Array:
  """Replaces rows of an array [v, d], in place, of 4-byte numbers.

  Ids [n] int32 differ, where they are below v; others are padding. Rows are
  [n, d]. `interpret`: without a TPU.
  """
  return _call(True, array, ids, rows=rows, interpret=interpret)


def _call(writes, array, ids, rows, interpret):
  import jax.experimental.pallas as pl  # takes long, and few need it
  import jax.experimental.pallas.tpu as pltpu

  (vocab, dim), num = array.shape, len(ids)
  block = block_rows(dim, num)
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
  if writes:
    # Counted here: a kernel's core of scalars has more to do as it is.
    counts = jnp.sum((ids < vocab).reshape(-1, block), 1, dtype=jnp.int32)
    return call(
      functools.partial(_put, vocab),
      out_shape=pltpu.HBM(array.shape, array.dtype),
      in_specs=[
        id_block,
        pl.BlockSpec(memory_space=pltpu.SMEM),
        on_core,
        in_memory,
      ],
      out_specs=in_memory,
      input_output_aliases={3: 0},
    )(ids, counts, rows, array)
  return call(
    _take,
    out_shape=jax.ShapeDtypeStruct((num, dim), array.dtype),
    in_specs=[id_block, in_memory],
    out_specs=on_core,
  )(ids, array)


def block_rows(dim: int, num: int) -> int:
  """Of `num` rows of some width, those that a kernel copies at once."""
  row_bytes = 4 * LANES * -(-dim // LANES)
  most = max(1, _BLOCK_BYTES // row_bytes // _IDS_AT_ONCE)
  sizes = (_IDS_AT_ONCE * (1 + i) for i in range(most))
  # The last block is padded, by up to a tenth of the rows of a step.
  return min(sizes, key=lambda x: -(-num // x) * (x + _BLOCK_ROWS))


def each(ids: Any, rows: Any, do: Callable[[jax.Array, Any], None]) -> None:
  """Calls `do` with each of a kernel's ids [n] and its row of rows [n, d]."""
  import jax.experimental.pallas as pl

  def tile(i, _):
    first = pl.multiple_of(_SUBLANES * i, _SUBLANES)
    some = rows.at[pl.ds(first, _SUBLANES)]
    # Where a row lies in its tile is known when this is compiled.
    for k in range(_SUBLANES):
      do(ids[first + k], some.at[pl.ds(k, 1)])
    return _

  jax.lax.fori_loop(0, ids.shape[0] // _SUBLANES, tile, 0, unroll=2)


def read(ids: Any, array: Any, rows: Any, semaphore: Any) -> None:
  """In a kernel: copies rows of an array in memory to `rows` on the core."""
  import jax.experimental.pallas as pl
  import jax.experimental.pallas.tpu as pltpu

  def start(row, to):
    pltpu.make_async_copy(array.at[pl.ds(row, 1)], to, semaphore).start()

  each(ids, rows, start)
  # A semaphore counts bytes.
  pltpu.make_async_copy(rows, rows, semaphore).wait()


def _take(ids, array, rows, semaphore):
  read(ids, array, rows, semaphore=semaphore)


def _put(vocab, ids, counts, rows, _, array, semaphore):
  import jax.experimental.pallas as pl
  import jax.experimental.pallas.tpu as pltpu

  def start(row, source):
    copy = pltpu.make_async_copy(source, array.at[pl.ds(row, 1)], semaphore)
    pl.when(row < vocab)(copy.start)

  def wait(num):
    some = rows.at[pl.ds(0, num)]
    pltpu.make_async_copy(some, some, semaphore).wait()

  each(ids, rows, start)
  # One wait for each bit of the number of rows.
  num = counts[pl.program_id(0)]
  for power in range(ids.shape[0].bit_length()):
    size = 1 << power
    pl.when(num & size != 0)(functools.partial(wait, size))
