"""Copies of rows on a worker, and how stale they may be.

The protocol of HET (Miao et al. 2022). A worker has copies of some rows of a
shared table (`shards`) in lines, which are the slots of its device's table. Of
each line this module knows the clock of its row when it was read, the updates
of this worker that were not pushed, and the row without these (`base`); the
rows themselves are on the device. An update is a lookup of a row, of which a
step may have several.

  read    Before a stretch of steps, rows without a line are read, and those
          with one if others pushed more than `read_bound` updates since.
  push    After it, rows with more than `write_bound` updates go to the shards,
          as the difference to their base; and so do all that leave their
          lines, before they can be read again. With a bound of 0 every row
          that was used is pushed.
  flush   Before a checkpoint, an evaluation or an export, all are pushed.

A row is pushed before it is read: what was read holds the worker's updates, or
it still has them beside it. So nothing is added twice, unlike in HET's released
code, and a worker always reads what it wrote.

What a worker sends is subtracted from what it still has to send: what rounding
takes off a difference goes with the next one. It may send less than it learned
of a row (`shared_rows` says when); then its copy goes back by the rest.

    own clock = clock when read + own pushes since;  own updates <= write_bound
    clock of the shard - own clock = pushes of others since <= read_bound

With reads that are made while the stretch before runs, what others push
meanwhile comes on top.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np

from jaxemb.tables import shards


class Fetched(NamedTuple):
  """What was read for a stretch of steps."""

  lines: np.ndarray  # [n] of rows that were newer, or had none
  ids: np.ndarray  # [n]
  clocks: np.ndarray  # [n] int64
  rows: np.ndarray  # [n, width] float32
  missed: int  # updates by others that the rows that were not read lack
  most_missed: int  # of these, by one row


class Changes(NamedTuple):
  """What has to be done to lines."""

  lines: np.ndarray  # [n] to be written
  rows: np.ndarray  # [n, width] float32
  added_lines: np.ndarray  # [m] with updates of this worker, to be added to
  added: np.ndarray  # [m, width] float32


class Pending(NamedTuple):
  """Updates of this worker that are to be pushed."""

  lines: np.ndarray  # [n]
  ids: np.ndarray  # [n]
  updates: np.ndarray  # [n] int64
  base: np.ndarray  # [n, width] float32, what they were added to
  is_first: np.ndarray  # [n] bool, whether nobody had changed that


@numba.njit(nogil=True, cache=True)
def _count(ids, counts, found, num):
  """Counts ids that are below the number of rows.

  `found` has the `num` ids whose `counts` are not 0. Returns how many there are
  then.
  """
  for id_ in ids:
    if id_ < counts.size:
      if not counts[id_]:
        found[num] = id_
        num += 1
      counts[id_] += 1
  return num


class Lookups:
  """Counts how often the steps of a stretch look up each row of a table."""

  def __init__(self, num_rows: int):
    """Of ids below `num_rows`; others are padding."""
    self._counts = np.zeros(num_rows, np.int32)

  def count(self, steps: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Ids [n] that differ, and lookups of each, int64.

    `steps` have the ids [m] int32 of each step, with repetitions.
    """
    most = min(sum(map(len, steps)), len(self._counts))
    found, num = np.empty(most, np.int64), 0
    for ids in steps:
      num = _count(ids, self._counts, found, num)
    found = found[:num]
    counts = self._counts[found].astype(np.int64)
    self._counts[found] = 0
    return found, counts


class Copies:
  """The lines of one table on one worker; one thread at a time uses it."""

  def __init__(
    self,
    table: shards.Sharded,
    capacity: int,
    num_added: int,
    read_bound: int,
    write_bound: int,
  ):
    """`num_added` is as of `shards`; the bounds are in updates of a row."""
    self.table, self._num_added = table, num_added
    self.read_bound, self.write_bound = read_bound, write_bound
    width = table.num_bytes // 4
    self._ids = np.full(capacity, -1, np.int64)
    self._clocks = np.full(capacity, shards.NEVER, np.int64)
    self._updates = np.zeros(capacity, np.int64)
    self._base = np.zeros((capacity, width), np.float32)

  def read(self, lines: np.ndarray, ids: np.ndarray) -> Fetched:
    """Asks for the rows of ids [n] that differ, which have or get lines [n].

    Changes nothing here: see `commit`.
    """
    return shards.together(self.table.call, [self.asking_read(lines, ids)])[0]

  def asking_read(self, lines: np.ndarray, ids: np.ndarray) -> shards.Asking:
    """`read`, to be done `together`."""
    has_line = self._ids[lines] == ids
    clocks = np.where(has_line, self._clocks[lines], shards.NEVER)
    args = ids, clocks, self.read_bound
    found = yield from self.table.asking_newer(*args)
    rows = found.records.view(np.float32)
    missed = found.missed, found.most_missed
    return Fetched(lines[found.at], ids[found.at], found.clocks, rows, *missed)

  def commit(self, fetched: Fetched) -> Changes:
    """What was read gets its lines; whatever left these was taken before."""
    lines, ids, clocks, rows = fetched[:4]
    has_own = (self._ids[lines] == ids) & (self._updates[lines] > 0)
    added_lines = lines[has_own]
    added = rows[has_own] - self._base[added_lines]
    added[:, self._num_added :] = 0  # as the worker has them
    self._ids[lines], self._clocks[lines] = ids, clocks
    self._base[lines] = rows
    written = ~has_own
    return Changes(lines[written], rows[written], added_lines, added)

  def rebase(self, lines: np.ndarray, errors: np.ndarray) -> None:
    """Adds what rounding made of lines [n] that were written to their base."""
    self._base[lines] += errors

  def begin(self, lines: np.ndarray, updates: np.ndarray) -> None:
    """Steps that update lines [n], each so often, begin."""
    self._updates[lines] += updates

  def due(self, lines: np.ndarray) -> Pending:
    """Takes what has to be pushed of lines [n], when their steps are done."""
    least = max(self.write_bound, 0)
    return self._take(lines[self._updates[lines] > least])

  def num_updates(self) -> int:
    """Updates that were not pushed."""
    return int(np.sum(self._updates))

  def all(self) -> Pending:
    """Takes all that was not pushed."""
    return self._take(np.flatnonzero(self._updates))

  def leave(self, lines: np.ndarray) -> Pending:
    """Takes what was not pushed of lines [n], which are empty from now on.

    It has to be pushed before anything else is read.
    """
    pending = self._take(lines[self._updates[lines] > 0])
    self._ids[lines] = -1
    return pending

  def _take(self, lines):
    updates = self._updates[lines]
    self._updates[lines] = 0
    is_first = shards.num_updates(self._clocks[lines]) == 0
    ids, base = self._ids[lines], self._base[lines]
    return Pending(lines, ids, updates, base, is_first)

  def push(self, pending: Pending, rows: np.ndarray) -> None:
    """Pushes what was taken; rows [n, width] float32 were then in its lines."""
    shards.together(self.table.call, [self.asking_push(pending, rows)])

  def asking_push(self, pending: Pending, rows: np.ndarray) -> shards.Asking:
    """`push`, to be done `together`; whether it had to be repeated.

    What is read in the same call then lacks it.
    """
    lines, ids, updates, base, is_first = pending
    deltas = rows - base
    deltas[:, self._num_added :] = rows[:, self._num_added :]
    new = np.flatnonzero(is_first)
    first = base[new].view(np.uint8)
    still = self._ids[lines] == ids
    self._base[lines[still]] += deltas[still]
    self._clocks[lines[still]] += updates[still]
    args = ids, deltas.view(np.uint8), updates, new, first
    return (yield from self.table.asking_add(*args))
