"""Copies of rows on a worker, and how stale they may be.

The protocol of HET (Miao et al. 2022). A worker has copies of some rows of a
shared table (`shards`) in lines, which are the slots of its device's table. Of
each line this module knows the clock of its row when it was read, the updates
of this worker that were not pushed, and the row without these (`base`); the
rows themselves are on the device. An update is one step in which a row was
looked up, however often.

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
takes off a difference goes with the next one.

    own clock = clock when read + own pushes since;  own updates <= write_bound
    clock of the shard - own clock = pushes of others since <= read_bound

With reads that are made while the stretch before runs, what others push
meanwhile comes on top.
"""

from typing import NamedTuple

import numpy as np

from jaxemb.tables import shards


class Fetched(NamedTuple):
  """What was read for a stretch of steps."""

  lines: np.ndarray  # [n] of rows that were newer, or had none
  ids: np.ndarray  # [n]
  clocks: np.ndarray  # [n] int64
  rows: np.ndarray  # [n, width] float32


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
    has_line = self._ids[lines] == ids
    clocks = np.where(has_line, self._clocks[lines], shards.NEVER)
    found = self.table.newer(ids, clocks, self.read_bound)
    rows = found.records.view(np.float32)
    return Fetched(lines[found.at], ids[found.at], found.clocks, rows)

  def commit(self, fetched: Fetched) -> Changes:
    """What was read gets its lines; whatever left these was taken before."""
    lines, ids, clocks, rows = fetched
    has_own = (self._ids[lines] == ids) & (self._updates[lines] > 0)
    added_lines = lines[has_own]
    added = rows[has_own] - self._base[added_lines]
    added[:, self._num_added :] = 0  # as the worker has them
    self._ids[lines], self._clocks[lines] = ids, clocks
    self._base[lines] = rows
    written = ~has_own
    return Changes(lines[written], rows[written], added_lines, added)

  def begin(self, lines: np.ndarray, updates: np.ndarray) -> None:
    """Steps that update lines [n], each so often, begin."""
    self._updates[lines] += updates

  def due(self, lines: np.ndarray) -> Pending:
    """Takes what has to be pushed of lines [n], when their steps are done."""
    return self._take(lines[self._updates[lines] > self.write_bound])

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
    return Pending(
      lines, self._ids[lines], updates, self._base[lines], is_first
    )

  def push(self, pending: Pending, rows: np.ndarray) -> None:
    """Pushes what was taken; rows [n, width] float32 were then in its lines."""
    lines, ids, updates, base, is_first = pending
    if not len(lines):
      return
    deltas = rows - base
    deltas[:, self._num_added :] = rows[:, self._num_added :]
    new = np.flatnonzero(is_first)
    first = base[new].view(np.uint8)
    self.table.add(ids, deltas.view(np.uint8), updates, new, first)
    still = self._ids[lines] == ids
    self._base[lines[still]] += deltas[still]
    self._clocks[lines[still]] += updates[still]
