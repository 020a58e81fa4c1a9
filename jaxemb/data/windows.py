"""Batches of token runs with a window around every center.

Text is one source of them; random walks over a graph are another. A step is L'
centers of each of P parts, with a halo of W tokens on both sides, in chunks of
c centers, which share draws and a window of c + 2 W tokens:

  tokens   h h [ a b c d | e f g h ] h h        L' = 8, c = 4, W = 2
  chunk 0  h h   a b c d   e f                  centers a b c d
  chunk 1        c d   e f g h   h h            centers e f g h
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import base

_PADDING = np.iinfo(np.int32).max  # above any vocabulary
# More offsets are compared in a loop: they would make long programs.
_MAX_UNROLLED_WINDOW = 10


class Batch(NamedTuple):
  """The tokens of one dispatch, for each of P parts of the corpus."""

  ids: base.Array  # [P, max_steps * L' + 2 W] int32
  left: base.Array  # [P, max_steps * L'] uint8, contexts before each center
  right: base.Array  # [P, max_steps * L'] uint8, contexts after it
  num_steps: base.Array  # [P] int32; what comes after them is padding
  kept_words: base.Array  # [P] int32, centers
  pairs: base.Array  # [P] int32, (center, context) pairs


class StepBatch(NamedTuple):
  """The centers of one step, or a device's share of them: P L' = L in all."""

  tokens: jax.Array  # [P, L' + 2 W] int32; ids above the vocabulary are padding
  left: jax.Array  # [P, L'] uint8, contexts before each center, at most W
  right: jax.Array  # [P, L'] uint8, contexts after it
  # [L / c] uint32, the number of each chunk within the dispatch: its draws do
  # not depend on the device that has it.
  chunks: jax.Array
  progress: jax.Array | float = 1.0  # float32, share of training done

  @property
  def chunk(self) -> int:
    """c, centers of a chunk."""
    return self.left.size // len(self.chunks)

  @property
  def window(self) -> int:
    """W, the most contexts on a side."""
    return (self.tokens.shape[1] - self.left.shape[1]) // 2

  def centers(self) -> jax.Array:
    """Returns [L / c, c] int32."""
    first, stop = self.window, self.tokens.shape[1] - self.window
    return self.tokens[:, first:stop].reshape(len(self.chunks), -1)

  def num_contexts(self) -> jax.Array:
    """Returns [L / c, c] float32, of each center."""
    num = self.left.astype(jnp.float32) + self.right.astype(jnp.float32)
    return num.reshape(len(self.chunks), -1)

  def windows(self) -> jax.Array:
    """Returns [L / c, c + 2 W] int32, tokens around each chunk's centers."""
    return self.windows_of(self.blocks())

  def blocks(self) -> jax.Array:
    """Returns [P, B, c] int32, all tokens of a step once, and padding."""
    padding = -self.tokens.shape[1] % self.chunk
    tokens = jnp.pad(
      self.tokens, ((0, 0), (0, padding)), constant_values=_PADDING
    )
    return tokens.reshape(len(tokens), -1, self.chunk)

  def windows_of(self, blocks: jax.Array) -> jax.Array:
    """Returns [L / c, c + 2 W, ...] of chunks from `blocks` [P, B, c, ...]."""
    width, num = self.chunk + 2 * self.window, self.left.shape[1] // self.chunk
    # Whole blocks: a TPU takes longer to look tokens up one by one.
    pieces = [blocks[:, i : i + num] for i in range(-(-width // self.chunk))]
    windows = jnp.concatenate(pieces, 2)[:, :, :width]
    return windows.reshape(-1, width, *blocks.shape[3:])

  def mask(self, weights: Sequence[float] = ()) -> jax.Array:
    """Returns [L / c, c, c + 2 W] float32, weights of a center's contexts.

    `weights` [W] are those of contexts by distance, from 1 on; () = 1 each.
    """
    offset = np.arange(self.chunk + 2 * self.window) - self.window
    offset = offset[None, :] - np.arange(self.chunk)[:, None]
    mask = self._are_contexts(offset[None]).astype(jnp.float32)
    if not weights:
      return mask
    by_distance = np.array([0, *weights], np.float32)
    distance = np.minimum(np.abs(offset), self.window)
    return mask * by_distance[distance][None]

  def hits(self, draws: jax.Array, weights: Sequence[float] = ()) -> jax.Array:
    """Returns [L / c, c, N] float32, of a center's contexts that equal a draw.

    Sums their weights, as in `mask`. `draws` are [L / c, N], N shared by each
    chunk.
    """
    window, length = self.window, self.left.shape[1]
    by_distance = np.array([0, *(weights or [1] * window)], np.float32)

    def add_hits(offset, hits):
      tokens = jax.lax.dynamic_slice_in_dim(
        self.tokens, window + offset, length, 1
      )
      tokens = tokens.reshape(len(self.chunks), -1, 1)
      tokens = jnp.where(self._are_contexts(offset), tokens, -1)
      weight = jnp.asarray(by_distance)[jnp.abs(offset)]
      return hits + jnp.where(tokens == draws[:, None, :], weight, 0)

    hits = jnp.zeros((len(draws), self.chunk, draws.shape[1]), jnp.float32)
    if window > _MAX_UNROLLED_WINDOW:
      # A GPU starts some kernels for each turn.
      hits = jax.lax.fori_loop(-window, window + 1, add_hits, hits, unroll=8)
    else:
      for offset in (*range(-window, 0), *range(1, window + 1)):
        hits = add_hits(offset, hits)
    return hits

  def _are_contexts(self, offset):
    """Returns [L / c, c, ...] bool, whether tokens at offsets are contexts."""
    left, right = (
      x.astype(jnp.int32).reshape(len(self.chunks), -1, 1)
      for x in (self.left, self.right)
    )
    return (offset >= -left) & (offset <= right) & (offset != 0)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of steps, by which arrays of a batch are cut."""

  part_words: int  # L', centers of each part in a step
  num_parts: int  # P, of the whole corpus
  window: int  # W
  chunk: int  # c

  @classmethod
  def of(cls, spec: base.SourceSpec) -> Self:
    """Returns steps of the sizes that the settings name."""
    return cls(spec.part_words, spec.num_parts, spec.window, spec.chunk)

  def cut(
    self, x: base.Array, index: jax.Array, share: base.Share, halo: int = 0
  ) -> jax.Array:
    """Returns a device's share [parts, n + halo] of an array [P, ...].

    Of that it takes the numbers of step `index`, one for each center.
    """
    size = self.part_words // share.num_splits
    first = index * self.part_words + share.split * size
    return jax.lax.dynamic_slice(
      x, (share.first_part, first), (share.num_parts, size + halo)
    )


@dataclasses.dataclass(frozen=True)
class Steps(Sizes):
  """Cuts a `Batch` into steps; implements `data.base.Steps`."""

  def num_steps(self, batch: Batch) -> base.Array:
    """Returns [P] int32."""
    return batch.num_steps

  def step(
    self, batch: Batch, index: jax.Array, share: base.Share, progress: jax.Array
  ) -> StepBatch:
    """Returns a device's share of the centers of a step."""
    size = self.part_words // share.num_splits
    cut = functools.partial(self.cut, index=index, share=share)
    parts = share.before + share.first_part + jnp.arange(share.num_parts)
    before = (index * self.num_parts + parts) * self.part_words
    before = (before + share.split * size) // self.chunk
    chunks = before[:, None] + jnp.arange(size // self.chunk)[None, :]
    return StepBatch(
      tokens=cut(batch.ids, halo=2 * self.window),
      left=cut(batch.left),
      right=cut(batch.right),
      chunks=chunks.reshape(-1).astype(jnp.uint32),
      progress=progress,
    )

  def pad(self, step_batch: StepBatch, is_step: jax.Array) -> StepBatch:
    """Returns the same step, or one without a center."""
    return step_batch._replace(
      tokens=jnp.where(is_step, step_batch.tokens, _PADDING),
      left=jnp.where(is_step, step_batch.left, 0),
      right=jnp.where(is_step, step_batch.right, 0),
    )

  def counters(self, batch: Batch) -> dict[str, jax.Array]:
    """Counts centers and (center, context) pairs."""
    return {x: jnp.sum(getattr(batch, x)) for x in ('kept_words', 'pairs')}


def pack(ids: np.ndarray, window: int, part_words: int) -> Batch:
  """Returns a batch of runs of ids, all with windows of full size.

  Int `ids` are [P, n], n a multiple of `part_words`.
  """
  num_parts, size = ids.shape
  around = ((0, 0), (window, window))
  tokens = np.pad(ids.astype(np.int32), around, constant_values=_PADDING)
  left = np.minimum(np.arange(size), window).astype(np.uint8)
  left = np.tile(left, (num_parts, 1))
  right = left[:, ::-1].copy()
  return Batch(
    ids=tokens,
    left=left,
    right=right,
    num_steps=np.full(num_parts, size // part_words, np.int32),
    kept_words=np.full(num_parts, size, np.int32),
    pairs=np.add.reduce(left.astype(np.int32) + right, 1, dtype=np.int32),
  )
