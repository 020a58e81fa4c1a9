"""Batches of labelled examples, such as clicks, and how steps are cut of them.

An example has ids of categories, numbers and a label. All fields share one
space of ids, each with a range of its own. A field has one column of `ids`, or,
if it has several values, as many as it may have, filled up with padding, an id
beyond the vocabulary.
"""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import base

PADDING = np.int32(2**31 - 1)  # an id that no table has


class IdField(NamedTuple):
  """A field of categories."""

  name: str
  first_id: int  # of its range of ids
  num_ids: int
  first_column: int  # of its columns of ids
  num_columns: int = 1  # most values of an example
  pooling: str = ''  # 'mean' or 'sum' of several values; '' = there is one


class Fields(NamedTuple):
  """What an example has."""

  ids: tuple[IdField, ...]
  numbers: tuple[str, ...]  # names of numeric fields

  @property
  def vocab(self) -> int:
    """Ids of all fields."""
    return sum(x.num_ids for x in self.ids)

  @property
  def num_columns(self) -> int:
    """Columns of ids."""
    return sum(x.num_columns for x in self.ids)


class Batch(NamedTuple):
  """Examples of a dispatch; P parts, each with n, a multiple of a step's.

  The parts are those that a process reads.
  """

  ids: base.Array  # [P, n, columns] int32
  numbers: base.Array  # [P, n, numbers] float32
  labels: base.Array  # [P, n] float32, 0 to 1; -1 = no example
  num_steps: base.Array  # [P] int32
  examples: base.Array  # [P] int32


Fill = Callable[[int, range, np.ndarray, np.ndarray, np.ndarray], None]


def items(
  spec: base.SourceSpec,
  num: int,
  most_steps: int,
  widths: tuple[int, int],
  fill: Fill,
  position: Sequence[int] | None,
  done: int,
  ends_of: Callable[[int], Sequence[int] | np.ndarray] | None = None,
) -> Iterator[base.Item]:
  """Yields items of epochs of `num` examples, from [epoch, example] on.

  A batch has room for `most_steps`, if an epoch has as many; a step takes a
  piece of an epoch's order for each part. For each piece of a part that this
  process reads `fill` gets the epoch and a range of its order, and writes ids
  [n, widths[0]], numbers [n, widths[1]] and labels [n] of these examples. No
  batch goes beyond one of the rising ends that `ends_of` gives for an epoch.
  """
  step_examples = spec.num_parts * spec.part_words
  num_steps = min(most_steps, -(-num // step_examples))
  epoch, first = position or (0, 0)
  while epoch < spec.epochs:
    ends = [0, *(ends_of(epoch) if ends_of else [num])]
    starts = [
      start
      for pair in itertools.pairwise(ends)
      for start in range(*pair, num_steps * step_examples)
    ]
    number = bisect.bisect_right(starts, first) - 1
    for stop in [*starts[number + 1 :], num]:
      fill_piece = functools.partial(fill, epoch)
      piece = range(first, stop)
      batch = _batch_of(spec, piece, num_steps, widths=widths, fill=fill_piece)
      after, index = done + len(piece), epoch * len(starts) + number
      first, number = stop, number + 1
      yield base.Item(
        batch=batch,
        index=index,
        position=[epoch, stop] if stop < num else [epoch + 1, 0],
        done_before=done,
        done_after=after,
        own=int(batch.examples.sum()),
      )
      done = after
    epoch, first = epoch + 1, 0


def _batch_of(spec, order, num_steps, widths, fill):
  """Returns the batch of a range of an epoch's order, of parts read here."""
  parts, part_examples = spec.readers.local_parts, spec.part_words
  step_examples = spec.num_parts * part_examples
  shape = len(parts), num_steps * part_examples
  ids = np.full((*shape, widths[0]), PADDING, np.int32)
  numbers = np.zeros((*shape, widths[1]), np.float32)
  labels = np.full(shape, -1, np.float32)
  counts = np.zeros(len(parts), np.int32)
  for row, part in enumerate(parts):
    for step in range(num_steps):
      start = step * step_examples + part * part_examples
      piece = order[start : start + part_examples]
      if not len(piece):
        continue
      counts[row] += len(piece)
      offset = step * part_examples
      rows = row, slice(offset, offset + len(piece))
      fill(piece, ids[rows], numbers[rows], labels[rows])
  steps = np.full(len(parts), -(-len(order) // step_examples), np.int32)
  return Batch(
    ids=ids, numbers=numbers, labels=labels, num_steps=steps, examples=counts
  )


class StepBatch(NamedTuple):
  """A device's share of a step: E examples."""

  ids: jax.Array  # [E, columns] int32
  numbers: jax.Array  # [E, numbers] float32
  labels: jax.Array  # [E] float32
  weights: jax.Array  # [E] float32, 1, or 0 for no example
  positions: jax.Array  # [E] uint32, within the dispatch; all differ

  def by_chunk(self, chunk: int) -> list[jax.Array]:
    """Returns the ids [E / c, c] of each column."""
    return [self.ids[:, i].reshape(-1, chunk) for i in range(self.ids.shape[1])]

  def draw_positions(self, chunk: int, num: int) -> jax.Array:
    """Returns [E / c, num] uint32, which differ, for the draws of chunks."""
    chunks = self.positions[::chunk] // np.uint32(chunk)
    within = jnp.arange(num, dtype=jnp.uint32)[None]
    return within + chunks[:, None] * np.uint32(num)


def where_used(draws: jax.Array, ids: jax.Array) -> jax.Array:
  """Returns draws [chunks, n], padding for chunks whose ids are all padding.

  They must not count as lookups.
  """
  is_used = jnp.any(ids != PADDING, 1, keepdims=True)
  return jnp.where(is_used, draws, PADDING)


@dataclasses.dataclass(frozen=True)
class Steps:
  """Cuts a `Batch` into steps; implements `data.base.Steps`."""

  part_examples: int  # of each part in a step
  num_parts: int  # P, of all data

  def num_steps(self, batch: Batch) -> base.Array:
    """Returns [P] int32."""
    return batch.num_steps

  def step(
    self, batch: Batch, index: jax.Array, share: base.Share, progress: jax.Array
  ) -> StepBatch:
    """Returns a device's share of the examples of a step."""
    size = self.part_examples // share.num_splits
    first = index * self.part_examples + share.split * size

    def cut(x):
      starts = (share.first_part, first, *[0] * (x.ndim - 2))
      sizes = (share.num_parts, size, *x.shape[2:])
      x = jax.lax.dynamic_slice(x, starts, sizes)
      return x.reshape(share.num_parts * size, *x.shape[2:])

    parts = share.before + share.first_part + jnp.arange(share.num_parts)
    before = (index * self.num_parts + parts) * self.part_examples
    positions = (before + share.split * size)[:, None] + jnp.arange(size)[None]
    labels = cut(batch.labels)
    # What fills a step up has no ids.
    ids = jnp.where(labels[:, None] < 0, PADDING, cut(batch.ids))
    return StepBatch(
      ids=ids,
      numbers=cut(batch.numbers),
      labels=jnp.maximum(labels, 0),
      weights=(labels >= 0).astype(jnp.float32),
      positions=positions.reshape(-1).astype(jnp.uint32),
    )

  def pad(self, step_batch: StepBatch, is_step: jax.Array) -> StepBatch:
    """Returns the same step, or one without an example."""
    return step_batch._replace(
      ids=jnp.where(is_step, step_batch.ids, PADDING),
      weights=jnp.where(is_step, step_batch.weights, 0),
    )

  def counters(self, batch: Batch) -> dict[str, jax.Array]:
    """Counts examples that were trained on."""
    return {'examples': jnp.sum(batch.examples)}
