"""Copies of rows on a worker: lines, their clocks and what was not pushed.

See `workers.shared_rows` for the protocol. Here are its two ways: copies that
ask shards, and are told what is newer (`Copies.read_request`, `commit`), and
push what they have learned (`settle`), wherever the shards are; and copies
beside shards in memory that this process has mapped, too, where one pass over
a row does all of it (`push_in_place`, `read_in_place`).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numba
import numpy as np

from jaxemb.workers import in_place, remote, shards, staleness


class Pending(NamedTuple):
  """Updates of this worker that are to be pushed, sorted by shard."""

  lines: np.ndarray  # [n]
  ids: np.ndarray  # [n]
  stops: np.ndarray  # [num_shards], see `shards.by_shard`
  updates: np.ndarray  # [n] int64


class Part(NamedTuple):
  """Numbers of rows that change alike."""

  numbers: np.ndarray  # [m, columns] float32
  kind: str  # of `in_place.KINDS`, by what a push does


class Block(NamedTuple):
  """Rows that are read and changed."""

  parts: Sequence[Part]  # of rows, in the order of their columns
  at: np.ndarray  # [n] int64, which of m rows they are

  def columns(self) -> Iterator[tuple[Part, slice]]:
    """Yields parts with their columns."""
    start = 0
    for part in self.parts:
      stop = start + part.numbers.shape[1]
      yield part, slice(start, stop)
      start = stop


@numba.njit(nogil=True, cache=True)
def _settle(numbers, at, base, lines, start, deltas):
  """Moves the base of lines [n] to their rows; writes what was learned."""
  stop = start + numbers.shape[1]
  for i in range(len(lines)):
    row, old = numbers[at[i]], base[lines[i], start:stop]
    delta = deltas[i, start:stop]
    for k in range(len(row)):
      delta[k] = row[k] - old[k]
      old[k] = row[k]


@numba.njit(nogil=True, cache=True)
def _go_back(numbers, at, base, lines, weights, deltas):
  """Takes off lines [n], and their base, what was not added of deltas [n]."""
  for i in range(len(lines)):
    row, old, delta = numbers[at[i]], base[lines[i]], deltas[i]
    for k in range(len(row)):
      rest = (weights[i] - np.float32(1)) * delta[k]
      row[k] += rest
      old[k] += rest


@numba.njit(nogil=True, cache=True)
def _find_due(lines, updates, clocks, bound, share, due):
  """Writes those of lines [n] that are to be pushed; returns how many."""
  num = 0
  for line in lines:
    due[num] = line
    num += updates[line] > staleness.push_bound(clocks[line], bound, share)
  return num


@numba.njit(nogil=True, cache=True)
def _copy(numbers, at, start, deltas):
  """Pushes rows as they are."""
  stop = start + numbers.shape[1]
  for i in range(len(at)):
    row, delta = numbers[at[i]], deltas[i, start:stop]
    for k in range(len(row)):
      delta[k] = row[k]


@numba.njit(nogil=True, cache=True)
def _merge(numbers, at, base, lines, has_updates, new, start, weights):
  """Writes rows that were read into lines [n], and adds pending updates.

  Of each row a part with a weight; without weights [n] numbers stay as they are
  where updates are pending.
  """
  stop = start + numbers.shape[1]
  for i in range(len(lines)):
    row, old = numbers[at[i]], base[lines[i], start:stop]
    read = new[i, start:stop]
    if not has_updates[i]:
      for k in range(len(row)):
        row[k] = read[k]
        old[k] = read[k]
    else:
      for k in range(len(row)):
        if len(weights):
          row[k] = read[k] + weights[i] * (row[k] - old[k])
        old[k] = read[k]


@numba.njit(nogil=True, cache=True)
def _weights_of(newer, clocks, memory):
  """Returns the parts [n] of updates of copies that stay; see `Rule`."""
  weights = np.ones(len(clocks), np.float32)
  for i in range(len(clocks)):
    if memory:
      updates = staleness.updates_of(newer[i])
      weights[i] = staleness.weight_of(updates, clocks[i], memory)
  return weights


@numba.njit(nogil=True, cache=True)
def _add_updates(updates, lines, more):
  for i in range(len(lines)):
    updates[lines[i]] += more[i]


class Copies:
  """The lines of one table on one worker; one thread at a time uses it."""

  def __init__(
    self, table: remote.Sharded, capacity: int, rule: staleness.Rule
  ):
    """The capacity is the number of lines."""
    self.table, self._rule = table, rule
    self._ids = np.full(capacity, -1, np.int64)
    self._clocks = np.full(capacity, staleness.NEVER, np.int64)
    self._updates = np.zeros(capacity, np.int64)
    self._base = np.zeros((capacity, table.num_bytes // 4), np.float32)
    # Deltas since the last exchange, and those that it pushes.
    self._deltas, self._pushed = (np.empty_like(self._base[:0]) for _ in '01')
    self._num_deltas = 0

  def read_request(
    self, lines: np.ndarray, ids: np.ndarray, stops: np.ndarray | None = None
  ) -> remote.Request:
    """Asks for the rows of ids [n] that differ, which have or get lines [n].

    They are sorted by shard if there are `stops`.
    """
    has_line = self._ids[lines] == ids
    clocks = np.where(has_line, self._clocks[lines], staleness.NEVER)
    return self.table.newer_request(ids, clocks, self._rule, stops=stops)

  def commit(
    self, lines: np.ndarray, ids: np.ndarray, newer: shards.Newer, block: Block
  ) -> None:
    """Notes rows that were read into lines [n], whose old rows were settled.

    Those of ids [n] are `newer`. The block, what the device has in the lines,
    becomes what it is to have.
    """
    has_updates = (self._ids[lines] == ids) & (self._updates[lines] > 0)
    clocks = self._clocks[lines]
    self._ids[lines], self._clocks[lines] = ids, newer.clocks
    weights = {
      'weighted': _weights_of(newer.clocks, clocks, self._rule.memory),
      'added': np.ones(len(lines), np.float32),
      'replaced': np.zeros(0, np.float32),
    }
    for part, columns in block.columns():
      _merge(
        part.numbers,
        block.at,
        base=self._base,
        lines=lines,
        has_updates=has_updates,
        new=newer.records.view(np.float32),
        start=columns.start,
        weights=weights[part.kind],
      )

  def rebase(self, lines: np.ndarray, errors: np.ndarray) -> None:
    """Adds rounding errors of lines [n] that were written to their base."""
    self._base[lines] += errors

  def begin(self, lines: np.ndarray, updates: np.ndarray) -> None:
    """Steps that update lines [n], each so often, begin."""
    _add_updates(self._updates, lines, updates)

  def num_updates(self) -> int:
    """Updates that were not pushed."""
    return int(np.sum(self._updates))

  def due(self, lines: np.ndarray) -> Pending:
    """Takes the updates to push of lines [n], when their steps are done."""
    due = np.empty(len(lines) + 1, np.int64)
    num = _find_due(
      lines,
      updates=self._updates,
      clocks=self._clocks,
      bound=self._rule.bound,
      share=self._rule.share,
      due=due,
    )
    return self._take(due[:num])

  def all(self) -> Pending:
    """Takes all updates that were not pushed."""
    return self._take(np.flatnonzero(self._updates))

  def leave(self, lines: np.ndarray) -> Pending:
    """Takes the updates of lines [n] that other rows are to get."""
    pending = self._take(lines[self._updates[lines] > 0])
    self.has_left(lines)
    return pending

  def _take(self, lines):
    ids = self._ids[lines]
    order, stops = self.table.by_shard(ids)
    lines, ids = lines[order], ids[order]
    updates = self._updates[lines]
    self._updates[lines] = 0
    return Pending(lines=lines, ids=ids, stops=stops, updates=updates)

  def _room(self, num):
    """Returns room for deltas, until an exchange after the next one begins."""
    start, self._num_deltas = self._num_deltas, self._num_deltas + num
    if self._num_deltas > len(self._deltas):
      # Not anew each time, as the system takes long for pages.
      size = start + 2 * num
      self._deltas = np.empty((size, self._base.shape[1]), np.float32)
    return self._deltas[start : self._num_deltas]

  def begin_push(self) -> None:
    """Notes that all that was settled is being pushed."""
    self._deltas, self._pushed = self._pushed, self._deltas
    self._num_deltas = 0

  def settle(self, pending: Pending, block: Block) -> shards.Push:
    """Returns what to push before anything else is read.

    The block has the rows of the lines.
    """
    lines = pending.lines
    clocks = self._clocks[lines]
    self._clocks[lines] += pending.updates
    deltas = self._room(len(lines))
    for part, columns in block.columns():
      if part.kind == 'replaced':
        _copy(part.numbers, block.at, start=columns.start, deltas=deltas)
      else:
        _settle(
          part.numbers,
          block.at,
          base=self._base,
          lines=lines,
          start=columns.start,
          deltas=deltas,
        )
    return shards.Push(
      ids=pending.ids,
      deltas=deltas.view(np.uint8),
      updates=pending.updates,
      clocks=clocks,
    )

  def forget(self, lines: np.ndarray) -> None:
    """Has lines [n] read again, when they are used next."""
    self._clocks[lines] = staleness.NEVER

  def are_still(self, lines: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns whether lines [n] have the rows of ids [n]."""
    return self._ids[lines] == ids

  def go_back(
    self,
    lines: np.ndarray,
    block: Block,
    weights: np.ndarray,
    deltas: np.ndarray,
  ) -> None:
    """Takes back what was not added of deltas [n, width] that were pushed.

    A weighted part was, of the columns with weights. The block has the rows of
    lines [n].
    """
    _go_back(
      block.parts[0].numbers,
      block.at,
      base=self._base,
      lines=lines,
      weights=weights,
      deltas=deltas,
    )

  # In place: `block` has all lines, in their order.

  def _lines(self, block):
    starts = [columns.start for _, columns in block.columns()]
    kinds = [in_place.KINDS.index(x.kind) for x in block.parts]
    return in_place.Lines(
      parts=tuple(x.numbers for x in block.parts),
      starts=np.array(starts),
      kinds=np.array(kinds),
      ids=self._ids,
      clocks=self._clocks,
      updates=self._updates,
      base=self._base,
    )

  def push_in_place(
    self, block: Block, used: np.ndarray, leaving: np.ndarray
  ) -> remote.Request:
    """Pushes what `due` and `leave` return, of lines used last and leaving.

    Those that leave have left when it is done.
    """
    lines, rule = self._lines(block), self._rule
    found = np.empty(len(used) + len(leaving), np.int64)
    num = in_place.select(lines, used, leaving=leaving, rule=rule, out=found)
    found = found[:num]
    order, stops = self.table.by_shard(self._ids[found])
    return self.table.in_place_request(
      'push_in_place', lines, [found[order]], rule=rule, stops=stops
    )

  def has_left(self, lines: np.ndarray) -> None:
    """Notes that other rows may get lines [n], of which all was pushed."""
    self._ids[lines] = -1

  def read_in_place(
    self, block: Block, lines: np.ndarray, ids: np.ndarray, stops: np.ndarray
  ) -> remote.Request:
    """Reads those of ids [n] that lines [n] lack, or have too old.

    They are sorted by shard.
    """
    return self.table.in_place_request(
      'read_in_place',
      self._lines(block),
      [lines, ids],
      rule=self._rule,
      stops=stops,
    )
