"""Batches of words that the threads of a CPU's kernel make."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxemb.data import packing as data_packing
from jaxemb.data import windows
from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import packing, step


@dataclasses.dataclass(frozen=True)
class Steps(data_packing.Steps):
  """As `data.packing.Steps`, without XLA's operations."""

  numbers: tuple[int, int]  # of the kernels that subsample and pack
  num_threads: int

  def prepare(self, batch: data_packing.Blocks) -> windows.Batch:
    """See `data.packing.Steps`."""
    num_parts, num_blocks = batch.lengths.shape
    subsample, pack = self.numbers
    num_chunks = num_parts * num_blocks
    scratch = self.num_threads, packing.STRIP
    sizes = self.shortest_window, self.window, batch.highest_kept.shape[1]
    arrays = batch.ids, batch.starts, batch.lengths, batch.stops
    read = *arrays, jnp.array(sizes, jnp.int32)

    def shaped(kind, *sizes):
      return jax.ShapeDtypeStruct((num_parts, *sizes), kind)

    totals, (reaches, counts) = step.call(
      subsample,
      num_chunks,
      scratch,
      read=[
        *read,
        batch.positions.reshape(num_parts, -1),
        batch.key,
        batch.highest_kept,
      ],
      new=[
        shaped(jnp.uint8, packing.GROUP * self.num_groups),
        shaped(jnp.int32, num_blocks),
      ],
    )
    stops = jnp.cumsum(counts, 1)
    size = self.num_words
    failures, (ids, left, right, pairs) = step.call(
      # No kernel has this number, so that this call fails as well.
      jnp.where(jnp.isnan(totals[0]), ffi.MOST_FUNCTIONS - 1, pack),
      num_chunks,
      scratch,
      read=[*read, reaches, counts, stops - counts],
      new=[
        shaped(jnp.int32, size + 2 * self.window),
        shaped(jnp.uint8, size),
        shaped(jnp.uint8, size),
        shaped(jnp.int32, num_blocks),
      ],
    )
    # Nothing is read of a batch that was not made.
    kept, pairs = (
      jnp.where(jnp.isnan(failures[0]), 0, x)
      for x in (stops[:, -1], jnp.sum(pairs, 1))
    )
    return windows.Batch(
      ids=ids,
      left=left,
      right=right,
      num_steps=-(-kept // self.part_words),
      kept_words=kept,
      pairs=pairs,
    )


def steps(
  made: data_packing.Steps, num_threads: int, later: bool = False
) -> Steps:
  """Returns the same steps, of batches that a kernel's threads make.

  `later` as of `step.load`. Raises `ffi.Unavailable`.
  """
  numbers = (
    step.load('subsample-int32', later),
    step.load('pack-int32', later),
  )
  return Steps(**vars(made), numbers=numbers, num_threads=num_threads)
