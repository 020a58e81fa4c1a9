"""Batches that a device makes from blocks of ids.

The host chooses blocks, some numbers each. The device has the ids: of the whole
text, where that fits its memory, or of the blocks alone. It drops frequent
words and packs the others with their windows, bit for bit as
`blocks.make_batch` does on the host: here in XLA's operations, on a CPU in the
threads of its kernel (`kernels.cpu.packing`).

Ids are read in groups of 32 (below: of a block, the last one filled up with
marks of an end), of which the bits of one number tell the kept words and
another's the ends of sentences:

  ids      a b | c d e | ...    | = END
  kept     1 0 0 1 1 0 0        position of c = kept words before the group
  ends     0 0 1 0 0 0 1                        + bits of `kept` below c's

Only numbers of groups have to be summed up over the batch.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import windows

_GROUP = 32  # ids
_LANES = np.arange(_GROUP, dtype=np.uint32)[None]  # [1, 32]
_BELOW = (np.uint32(1) << _LANES) - np.uint32(1)  # bits of earlier ids
_ABOVE = ~_BELOW << np.uint32(1)  # of later ones
_ALL = np.uint32(0xFFFFFFFF)
_END, _DROPPED = -1, -2  # in place of a word; `blocks.END`
# Of splitmix64: what is added, and two factors, in halves of 32 bits.
_ADDED = 0x9E3779B9, 0x7F4A7C15
_FACTORS = (30, 0xBF58476D, 0x1CE4E5B9), (27, 0x94D049BB, 0x133111EB)

_Half = jax.Array | np.uint32
_Wide = tuple[_Half, _Half]  # 64 bits as two uint32, the high one first


class Blocks(NamedTuple):
  """The blocks of a batch, of each of P parts of the corpus."""

  # [P, n] int32; those of the whole text are one array in all batches.
  ids: np.ndarray
  starts: np.ndarray  # [P, B] int32, where each block begins in the ids
  lengths: np.ndarray  # [P, B] int32; 0 = no block
  stops: np.ndarray  # [P, B] int32, groups of 32 ids up to the end of each
  # [P, B, 2] uint32, high and low half of the position of a block's first id,
  # which its random numbers depend on.
  positions: np.ndarray
  key: np.ndarray  # [P, 2] uint32, of part and epoch, as the positions
  # [P, vocab] uint32: a word stays if its 32 bits are no higher.
  highest_kept: np.ndarray


def num_groups(lengths: np.ndarray) -> np.ndarray:
  """Returns how many groups blocks of some lengths take: an end follows."""
  return np.where(lengths > 0, lengths // _GROUP + 1, 0)


def halves(numbers: Sequence[int | np.uint64] | np.ndarray) -> np.ndarray:
  """Returns [..., 2] uint32, high and low half of 64-bit numbers."""
  numbers = np.asarray(numbers, np.uint64)
  high, low = numbers >> np.uint64(32), numbers & np.uint64(_ALL)
  return np.stack([high, low], -1).astype(np.uint32)


def highest_kept(keep_below: np.ndarray) -> np.ndarray:
  """Returns [vocab] uint32, from `subsampling.keep_thresholds`, above 0."""
  return (keep_below - np.uint64(1)).astype(np.uint32)


@dataclasses.dataclass(frozen=True)
class Steps(windows.Steps):
  """Packs `Blocks` into a `windows.Batch`, and cuts that into steps."""

  shortest_window: int
  # The most that a part of a batch may have.
  num_groups: int  # of 32 ids
  num_words: int  # a multiple of `part_words`

  def prepare(self, batch: Blocks) -> windows.Batch:
    """Returns what `blocks.make_batch` returns, in arrays of `num_words`."""
    return jax.vmap(self._pack)(batch)

  def _pack(self, blocks: Blocks) -> windows.Batch:
    """Packs the blocks of one part; the arrays lack the leading axis."""
    words, reaches = _read(
      blocks,
      num_groups=self.num_groups,
      shortest=self.shortest_window,
      window=self.window,
    )
    # Both are read twice: XLA would make them twice.
    words, reaches = jax.lax.optimization_barrier((words, reaches))
    where = _windows(words, reaches)
    is_kept, vocab = words >= 0, len(blocks.highest_kept)
    size = self.num_words
    numbers = jnp.arange(words.size, dtype=jnp.int32).reshape(words.shape)
    # What is dropped is written nowhere, each id to a place of its own.
    outside = size + 2 * self.window + numbers

    def packed(values, padding, first=0):
      num = size + 2 * first
      out = jnp.full(num, padding, values.dtype)
      places = jnp.where(is_kept, first + where.positions, outside)
      return out.at[places].set(values, mode='drop', unique_indices=True)

    sides = (where.left | (where.right << 8)).astype(jnp.uint16)
    sides = packed(sides, 0)
    left, right = sides & 0xFF, sides >> 8
    return windows.Batch(
      # Ids above the vocabulary are padding: read as anything, never updated.
      ids=packed(words, vocab, self.window),
      left=left.astype(jnp.uint8),
      right=right.astype(jnp.uint8),
      num_steps=-(-where.num_kept // self.part_words),
      kept_words=where.num_kept,
      pairs=jnp.sum(left + right, dtype=jnp.int32),
    )


def _read(
  blocks: Blocks, num_groups: int, shortest: int, window: int
) -> tuple[jax.Array, jax.Array]:
  """Reads all blocks, in order, and subsamples them.

  Returns [groups, 32] int32 words, or `_END` or `_DROPPED`, and uint8 sizes of
  their windows.
  """
  stops = blocks.stops
  numbers = jnp.arange(num_groups, dtype=jnp.int32)
  block = jnp.searchsorted(stops, numbers, side='right', method='scan_unrolled')
  is_block = block < len(stops)
  block = jnp.minimum(block, len(stops) - 1)
  before = jnp.where(block > 0, stops[jnp.maximum(block - 1, 0)], 0)
  first = _GROUP * (numbers - before)
  length = jnp.where(is_block, blocks.lengths[block], 0)
  offsets = first[:, None] + _LANES.astype(np.int32)
  is_id = offsets < length[:, None]
  places = jnp.where(is_id, blocks.starts[block][:, None] + offsets, 0)
  ids = jnp.where(is_id, blocks.ids[places], _END)
  high, low = (blocks.positions[block, i][:, None] for i in range(2))
  high, low = _add((high, low), (np.uint32(0), offsets.astype(jnp.uint32)))
  high, low = _hashed((high ^ blocks.key[0], low ^ blocks.key[1]))
  # Those of a word that ends a sentence are never looked at.
  is_kept = high <= blocks.highest_kept[jnp.maximum(ids, 0)]
  words = jnp.where(is_kept | (ids < 0), ids, _DROPPED)
  reach = (low & 0xFFFF) * (window + 1 - shortest) >> 16
  return words, (shortest + reach).astype(jnp.uint8)


class _Windows(NamedTuple):
  """Of each id [groups, 32] int32, if it is a word that is kept."""

  positions: jax.Array  # among the kept words
  left: jax.Array  # contexts before it
  right: jax.Array  # contexts after it
  num_kept: jax.Array  # int32, of all


def _windows(words: jax.Array, reaches: jax.Array) -> _Windows:
  """Returns where kept words go, and their windows, cut at the sentence."""

  def bits(are):
    return jnp.sum(jnp.where(are, np.uint32(1) << _LANES, 0), 1, jnp.uint32)

  kept, ends = bits(words >= 0), bits(words == _END)
  stops = jnp.cumsum(_count(kept))
  starts = stops - _count(kept)

  def at(end, kept=kept, starts=starts):
    """Returns how many words are kept before an id of a group."""
    below = (np.uint32(1) << end.astype(jnp.uint32)) - np.uint32(1)
    return starts + _count(kept & below)

  # Kept words before the last end in earlier groups, and before the first end
  # in later ones: where the sentence of a group's first and last word begins
  # and stops.
  begun = jnp.where(ends > 0, at(31 - jax.lax.clz(ends)), 0)
  begun = jnp.pad(jax.lax.cummax(begun), (1, 0))[:-1]
  ended = jnp.where(ends > 0, at(_first(ends)), np.iinfo(np.int32).max)
  ended = jnp.pad(jax.lax.cummin(ended, reverse=True), (0, 1))[1:]

  kept, ends, starts, begun, ended = (
    x[:, None] for x in (kept, ends, starts, begun, ended)
  )
  before, after = ends & _BELOW, ends & _ABOVE
  positions = starts + _count(kept & _BELOW)
  in_group = at(31 - jax.lax.clz(before), kept, starts)
  begun = jnp.where(before > 0, in_group, begun)
  ended = jnp.where(after > 0, at(_first(after), kept, starts), ended)
  reaches = reaches.astype(jnp.int32)
  return _Windows(
    positions,
    left=jnp.minimum(reaches, positions - begun),
    right=jnp.minimum(reaches, ended - 1 - positions),
    num_kept=stops[-1],
  )


def _count(bits: jax.Array) -> jax.Array:
  return jax.lax.population_count(bits).astype(jnp.int32)


def _first(bits: jax.Array) -> jax.Array:
  """Returns the number of the lowest bit that is set."""
  return _count((bits & (~bits + np.uint32(1))) - np.uint32(1))


# Numbers of 64 bits, which JAX has only where all of it may use them.


def _add(a: _Wide, b: _Wide) -> _Wide:
  low = a[1] + b[1]
  return a[0] + b[0] + (low < b[1]).astype(jnp.uint32), low


def _shifted_xor(x: _Wide, bits: int) -> _Wide:
  """Returns x ^ (x >> bits), for fewer bits than 32."""
  high, low = x
  return high ^ (high >> bits), low ^ ((low >> bits) | (high << (32 - bits)))


def _product(x: _Wide, high: int, low: int) -> _Wide:
  """Returns the lower 64 bits of a product."""
  a, b, num = x[1] & 0xFFFF, x[1] >> 16, np.uint32
  c, d = num(low & 0xFFFF), num(low >> 16)
  middle = b * c + (a * c >> 16)  # no more than 32 bits, as the next
  other = a * d + (middle & 0xFFFF)
  top = b * d + (middle >> 16) + (other >> 16)
  return top + x[0] * num(low) + x[1] * num(high), x[1] * num(low)


def _hashed(x: _Wide) -> _Wide:
  """`ops.hashing.hashed`."""
  x = _add(x, (np.uint32(_ADDED[0]), np.uint32(_ADDED[1])))
  for bits, high, low in _FACTORS:
    x = _product(_shifted_xor(x, bits), high, low)
  return _shifted_xor(x, 31)
