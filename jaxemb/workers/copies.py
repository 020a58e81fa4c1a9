"""Copies of rows on a worker, and how stale they may be.

The protocol of HET (Miao et al. 2022). A worker has copies of some rows of a
shared table (`shards`) in lines, which are the rows of its device's cache. Of
each line this module knows the clock of its row when it was read, the updates
of this worker that were not pushed, and the row without these (`base`); the
rows themselves are on the device. An update is a lookup of a row, of which a
step may have several.

  read    Before a stretch of steps, rows without a line are read, and those
          with one if others pushed more than `bound` updates since.
  push    After it, rows with more than `bound` updates go to the shards,
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

    own clock = clock when read + own pushes since;  own updates <= bound
    clock of the shard - own clock = pushes of others since <= bound

With reads that are made while the stretch before runs, what others push
meanwhile comes on top.
"""

from typing import NamedTuple

import numba
import numpy as np

from jaxemb.workers import shards


class Pending(NamedTuple):
  """Updates of this worker that are to be pushed."""

  lines: np.ndarray  # [n]
  ids: np.ndarray  # [n]
  updates: np.ndarray  # [n] int64
  # [m, width] float32, rows that nobody had changed, and which of n they are
  first: np.ndarray
  first_at: np.ndarray


@numba.njit(nogil=True, cache=True)
def _settle(rows, base, lines, weights, num_weighted, num_added):
  """Moves the base of lines [n] to where their rows have been pushed.

  Of the first columns of rows [n, width] a weighted part is pushed, and the row
  becomes that; others add up; the last are pushed as they are.
  Returns what is pushed, [n, width].
  """
  deltas = np.empty((len(lines), rows.shape[1]), np.float32)
  for i in range(len(lines)):
    row, old = rows[i], base[lines[i]]
    for k in range(num_weighted):
      deltas[i, k] = weights[i] * (row[k] - old[k])
      old[k] += deltas[i, k]
      row[k] = old[k]
    for k in range(num_weighted, num_added):
      deltas[i, k] = row[k] - old[k]
      old[k] = row[k]
    for k in range(num_added, rows.shape[1]):
      deltas[i, k] = row[k]
  return deltas


@numba.njit(nogil=True, cache=True)
def _merge(rows, base, lines, has_own, new, num_added):
  """Writes rows that were read into lines [n], and adds pending updates.

  Columns that do not add up stay as they are where updates are pending.
  """
  for i in range(len(lines)):
    row, old = rows[i], base[lines[i]]
    for k in range(rows.shape[1]):
      if not has_own[i]:
        row[k] = new[i, k]
      elif k < num_added:
        row[k] += new[i, k] - old[k]
      old[k] = new[i, k]


class Copies:
  """The lines of one table on one worker; one thread at a time uses it."""

  def __init__(
    self,
    table: shards.Sharded,
    capacity: int,
    num_added: int,
    bound: int,
  ):
    """`num_added` is as of `shards`; the bound is in updates of a row."""
    self.table, self._num_added, self.bound = table, num_added, bound
    width = table.num_bytes // 4
    self._ids = np.full(capacity, -1, np.int64)
    self._clocks = np.full(capacity, shards.NEVER, np.int64)
    self._updates = np.zeros(capacity, np.int64)
    self._base = np.zeros((capacity, width), np.float32)

  def read_request(self, lines: np.ndarray, ids: np.ndarray) -> shards.Request:
    """Asks for the rows of ids [n] that differ, which have or get lines [n]."""
    has_line = self._ids[lines] == ids
    clocks = np.where(has_line, self._clocks[lines], shards.NEVER)
    return self.table.newer_request(ids, clocks, self.bound)

  def commit(
    self,
    lines: np.ndarray,
    ids: np.ndarray,
    newer: shards.Newer,
    rows: np.ndarray,
  ) -> None:
    """Notes rows that were read into lines [n], whose old rows were settled.

    Those of ids [n] are `newer`. `rows` [n, width] float32, what the device has
    in the lines, become what it is to have.
    """
    has_own = (self._ids[lines] == ids) & (self._updates[lines] > 0)
    self._ids[lines], self._clocks[lines] = ids, newer.clocks
    _merge(
      rows,
      self._base,
      lines=lines,
      has_own=has_own,
      new=newer.records.view(np.float32),
      num_added=self._num_added,
    )

  def rebase(self, lines: np.ndarray, errors: np.ndarray) -> None:
    """Adds rounding errors of lines [n] that were written to their base."""
    self._base[lines] += errors

  def begin(self, lines: np.ndarray, updates: np.ndarray) -> None:
    """Steps that update lines [n], each so often, begin."""
    self._updates[lines] += updates

  def due(self, lines: np.ndarray) -> Pending:
    """Takes the updates to push of lines [n], when their steps are done."""
    least = max(self.bound, 0)
    return self._take(lines[self._updates[lines] > least])

  def num_updates(self) -> int:
    """Updates that were not pushed."""
    return int(np.sum(self._updates))

  def all(self) -> Pending:
    """Takes all updates that were not pushed."""
    return self._take(np.flatnonzero(self._updates))

  def leave(self, lines: np.ndarray) -> Pending:
    """Takes the updates of lines [n] that other rows are to get."""
    pending = self._take(lines[self._updates[lines] > 0])
    self._ids[lines] = -1
    return pending

  def _take(self, lines):
    updates = self._updates[lines]
    self._updates[lines] = 0
    new = np.flatnonzero(shards.num_updates(self._clocks[lines]) == 0)
    first = self._base[lines[new]]
    return Pending(
      lines=lines,
      ids=self._ids[lines],
      updates=updates,
      first=first,
      first_at=new,
    )

  def settle(
    self,
    pending: Pending,
    rows: np.ndarray,
    weights: np.ndarray | None = None,
    num_weighted: int = 0,
  ) -> np.ndarray:
    """Returns [n, width] float32 to push before anything else is read.

    `rows` [n, width] float32 are those of the lines. Of the first
    `num_weighted` numbers a part is pushed, by weights [n] float32, and the
    rows become that.
    """
    lines = pending.lines
    self._clocks[lines] += pending.updates
    if weights is None:
      weights = np.ones(len(lines), np.float32)
    return _settle(
      rows,
      self._base,
      lines=lines,
      weights=weights,
      num_weighted=num_weighted,
      num_added=self._num_added,
    )

  def push_request(
    self, pending: Pending, deltas: np.ndarray
  ) -> shards.Request:
    """Pushes the deltas of `settle`."""
    return self.table.add_request(
      pending.ids,
      deltas.view(np.uint8),
      pending.updates,
      first_at=pending.first_at,
      first=pending.first.view(np.uint8),
    )
