"""Shards: a table that many workers share, each row with a clock.

A shard holds every n-th row of a table and adds what workers have changed: it
never sees a gradient. The clock of a row is the number of updates that were
pushed to it by all workers, on top of a part that grows when a shard comes back
from an older snapshot, so that whoever holds a copy from before has an old one.

A record is float32 numbers where workers share the table: whatever is added is
added in float32. The first `num_added` of them add up: rows, and Adagrad's sums
of squares, which are then those of all workers. The others are as the last
worker left them: Adam's moments and their count belong together, and sums of
several decays could turn a mean square negative. Where one worker has the table
for itself, it writes its records, whose bytes mean nothing here.
"""

import json
import pathlib
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.storage import atomic
from jaxemb.stores import local as stores

NEVER = -1  # the clock of a row that was not read so far
_EPOCH = 1 << 40  # more than all updates of a row
CLOCK_BYTES = 8
_ANSWER_BYTES = 1 << 26  # of all shards, when whole tables are read


class Request(NamedTuple):
  """A call of shards of a table."""

  table: str
  method: str  # of `Shard`
  args: Mapping[int, tuple]  # by shard


# Requests, done in this order, -> the answers of each, by shard
Call = Callable[[Sequence[Request]], list[dict[int, Any]]]
# Yields requests, and gets their answers.
Asking = Generator[Request, dict[int, Any], Any]


def together(call: Call, asking: Sequence[Asking]) -> list[Any]:
  """Returns what each generator returns; their requests share calls."""
  results: list[Any] = [None] * len(asking)
  waiting: dict[int, Request] = {}
  answers: dict[int, Any] = dict.fromkeys(range(len(asking)))
  while answers:
    for i, answer in answers.items():
      try:
        waiting[i] = asking[i].send(answer)
      except StopIteration as end:
        results[i] = end.value
    new = call(list(waiting.values())) if waiting else []
    answers = dict(zip(waiting, new, strict=True))
    waiting = {}
  return results


class Newer(NamedTuple):
  """Rows that are newer than a worker's copies of them."""

  at: np.ndarray  # [n] int64, which of the ids that were asked for
  clocks: np.ndarray  # [n] int64
  is_known: np.ndarray  # [n] bool, whether anybody ever changed the row
  records: np.ndarray  # [n, num_bytes] uint8; a shard sends those known
  # Updates that copies of the other rows lack, in sum, and the most of one.
  missed: int = 0
  most_missed: int = 0


def num_updates(clocks: np.ndarray) -> np.ndarray:
  """[n] int64, updates that clocks [n] count; of `NEVER`, none."""
  return np.maximum(clocks, 0) % _EPOCH


@numba.njit(nogil=True, cache=True)
def _add(numbers, at, deltas, num_added):
  """Adds deltas [n, width] to rows at [n]; the last columns are replaced."""
  for i in range(len(at)):
    row = numbers[at[i]]
    for k in range(num_added):
      row[k] += deltas[i, k]
    for k in range(num_added, deltas.shape[1]):
      row[k] = deltas[i, k]


class Shard:
  """Every `num_shards`-th row of a table, from row `number` on."""

  def __init__(
    self,
    number: int,
    num_shards: int,
    num_rows: int,
    num_bytes: int,
    num_added: int = 0,
  ):
    """The table has `num_rows` of `num_bytes`; see the module for the last."""
    num_own = len(range(number, num_rows, num_shards))
    # Takes memory as rows are written.
    self._rows = stores.Memory(num_own, CLOCK_BYTES + num_bytes, _none)
    self._clocks = self._rows.records[:, :CLOCK_BYTES].view(np.int64)[:, 0]
    self._records = self._rows.records[:, CLOCK_BYTES:]
    # Float32 where workers share them; otherwise of no meaning.
    if not num_bytes % 4:
      self._numbers = self._rows.records.view(np.float32)[:, CLOCK_BYTES // 4 :]
    self._num_shards, self._num_added = num_shards, num_added
    self.epoch = 0  # how often it came back
    self.updates = 0  # of all rows
    # By client, the last call of `add`: one that is repeated, as the answer
    # was lost, is not done twice.
    self.done: dict[str, int] = {}

  def _places(self, ids):
    at = ids // self._num_shards
    return at, self._rows.is_known[at]

  def newer(self, ids: np.ndarray, clocks: np.ndarray, bound: int) -> Newer:
    """Those of ids [n] that had more than `bound` updates since clocks [n]."""
    at, is_known = self._places(ids)
    now = np.where(is_known, self._clocks[at], 0) + self.epoch * _EPOCH
    behind = now - clocks
    is_old = (clocks < 0) | (behind > bound)
    old, missed = np.flatnonzero(is_old), behind[~is_old]
    at, is_known = at[old], is_known[old]
    records = self._records[at[is_known]]
    return Newer(
      at=old,
      clocks=now[old],
      is_known=is_known,
      records=records,
      missed=int(np.sum(missed)),
      most_missed=int(np.max(missed, initial=0)),
    )

  def _begin(self, at, records):
    """Begins rows that no worker had changed."""
    self._clocks[at], self._records[at] = 0, records
    self._rows.is_known[at] = True

  def _tick(self, at, updates):
    self._clocks[at] += updates
    self.updates += int(np.sum(updates))

  def add(
    self,
    client: str,
    call: int,
    ids: np.ndarray,
    deltas: np.ndarray,
    updates: np.ndarray,
    first_at: np.ndarray,
    first: np.ndarray,
  ) -> np.ndarray:
    """Adds records of float32 to the rows of ids [n] that differ.

    Rows ids[first_at] begin as the records `first`, unless they are known.
    Calls of a client have rising numbers. Returns which of the rows are not
    known; if there are any, nothing has changed.
    """
    at, is_known = self._places(ids)
    if call <= self.done.get(client, -1):
      return np.zeros(0, np.int64)
    is_new = np.zeros(len(ids), bool)
    is_new[first_at] = True
    if len(missing := np.flatnonzero(~is_known & ~is_new)):
      return missing
    some = ~is_known[first_at]
    self._begin(at[first_at[some]], first[some])
    _add(
      self._numbers,
      at,
      deltas=deltas.view(np.float32),
      num_added=self._num_added,
    )
    self._tick(at, updates)
    self.done[client] = call
    return missing

  def write(self, ids: np.ndarray, records: np.ndarray) -> None:
    """Replaces the records of ids [n] that differ."""
    at, is_known = self._places(ids)
    self._begin(at[~is_known], records[~is_known])
    self._records[at] = records
    self._tick(at, np.ones(len(at), np.int64))

  def num_known(self) -> int:
    """Rows that anybody ever changed."""
    return int(np.count_nonzero(self._rows.is_known))

  def snapshot(self, path: pathlib.Path) -> int:
    """Writes all rows that are known to a file; returns its checksum."""
    return self._rows.snapshot(path)

  def restore(self, path: pathlib.Path, checksum: int) -> None:
    """Goes back to a snapshot. Raises a ValueError if it is damaged."""
    self._rows.restore(path, checksum)
    self.updates = int(np.sum(self._clocks, where=self._rows.is_known))
    self.epoch += 1


def _none(ids):
  raise AssertionError('rows that are not known are made by clients')


class Sharded:
  """A table over several shards, of which each has every n-th row.

  A `stores.Store`, and with clocks what `copies.Copies` talk to. Every call
  goes to all shards that have some of its rows, once.
  """

  def __init__(
    self,
    name: str,
    num_shards: int,
    num_rows: int,
    num_bytes: int,
    make: Callable[[np.ndarray], np.ndarray],
    call: Call,
    client: str,
    close: Callable[[], None],
  ):
    """`make` makes the first records of ids; names of clients are unique."""
    self.name, self.num_rows, self.num_bytes = name, num_rows, num_bytes
    self._num_shards, self._make, self.call = num_shards, make, call
    self._client, self._calls = client, 0
    self.close = close  # as of `stores.Store`

  def _split(self, ids):
    """By shard, which of the ids it has."""
    if self._num_shards == 1:
      return {0: np.arange(len(ids))} if len(ids) else {}
    shard = ids % self._num_shards
    places = ((i, np.flatnonzero(shard == i)) for i in range(self._num_shards))
    return {i: at for i, at in places if len(at)}

  def _ask(self, method, args):
    """Answers by shard."""
    return self.call([Request(self.name, method, args)])[0]

  def newer(self, ids: np.ndarray, clocks: np.ndarray, bound: int) -> Newer:
    """Those of ids [n] that had more than `bound` updates since clocks [n].

    All of `NEVER`; of rows that nobody changed it makes the records.
    """
    return together(self.call, [self.asking_newer(ids, clocks, bound)])[0]

  def asking_newer(
    self, ids: np.ndarray, clocks: np.ndarray, bound: int
  ) -> Asking:
    """`newer`, to be done `together`."""
    places = self._split(ids)
    args = {i: (ids[at], clocks[at], bound) for i, at in places.items()}
    answers = yield Request(self.name, 'newer', args)
    if not places:
      empty = np.zeros(0, np.int64)
      none = np.zeros((0, self.num_bytes), np.uint8)
      return Newer(
        at=empty, clocks=empty, is_known=empty.astype(bool), records=none
      )
    parts = [places[i][x.at] for i, x in answers.items()]
    at, clocks, is_known = (
      np.concatenate(x)
      for x in (
        parts,
        [x.clocks for x in answers.values()],
        [x.is_known for x in answers.values()],
      )
    )
    known = np.concatenate([x.records for x in answers.values()])
    if not is_known.all():
      records = np.empty((len(at), self.num_bytes), np.uint8)
      records[is_known] = known
      records[~is_known] = self._make(ids[at[~is_known]])
      known = records
    missed = [x.missed for x in answers.values()]
    most = [x.most_missed for x in answers.values()]
    return Newer(
      at=at,
      clocks=clocks,
      is_known=is_known,
      records=known,
      missed=sum(missed),
      most_missed=max(most),
    )

  def add(
    self,
    ids: np.ndarray,
    deltas: np.ndarray,
    updates: np.ndarray,
    first_at: np.ndarray,
    first: np.ndarray,
  ) -> None:
    """See `Shard.add`."""
    together(
      self.call,
      [self.asking_add(ids, deltas, updates, first_at=first_at, first=first)],
    )

  def asking_add(
    self,
    ids: np.ndarray,
    deltas: np.ndarray,
    updates: np.ndarray,
    first_at: np.ndarray,
    first: np.ndarray,
  ) -> Asking:
    """`add`, to be done `together`; whether it had to be repeated.

    Rows that a shard does not know, because it has come back from a snapshot,
    begin as they are made.
    """
    number_of = np.full(len(ids), -1)
    number_of[first_at] = np.arange(len(first_at))
    args = {}
    self._calls += 1
    for i, at in self._split(ids).items():
      new = np.flatnonzero(number_of[at] >= 0)
      rows = first[number_of[at[new]]]
      head = self._client, self._calls, ids[at], deltas[at], updates[at]
      args[i] = *head, new, rows
    num_calls = 0
    while args:
      answers = yield Request(self.name, 'add', args)
      self._calls, num_calls = self._calls + 1, num_calls + 1
      again = {}
      for i, missing in answers.items():
        if len(missing):
          client, _, ids, *rest, new, rows = args[i]
          rows = np.concatenate([rows, self._make(ids[missing])])
          new = np.concatenate([new, missing])
          again[i] = client, self._calls, ids, *rest, new, rows
      args = again
    return num_calls > 1

  def check(self) -> None:
    """Asks every shard for something."""
    self._ask('num_known', {i: () for i in range(self._num_shards)})

  def read(self, ids: np.ndarray) -> np.ndarray:
    """See `stores.Store`."""
    records = np.empty((len(ids), self.num_bytes), np.uint8)
    size = max(1, _ANSWER_BYTES // self.num_bytes)
    for i in range(0, len(ids), size):
      some = ids[i : i + size]
      newer = self.newer(some, np.full(len(some), NEVER), 0)
      records[i + newer.at] = newer.records
    return records

  def write(self, ids: np.ndarray, records: np.ndarray) -> None:
    """See `stores.Store`."""
    places = self._split(ids)
    args = {i: (ids[at], records[at]) for i, at in places.items()}
    self._ask('write', args)

  def snapshot(self, path: pathlib.Path) -> int:
    """See `stores.Store`; a folder with a file of each shard."""
    path.mkdir(parents=True, exist_ok=True)
    numbers = range(self._num_shards)
    sums = self._ask('snapshot', {i: (path / str(i),) for i in numbers})
    data = json.dumps([sums[i] for i in numbers]).encode()
    with atomic.write(path / 'checksums') as file:
      file.write(data)
    return zlib.crc32(data)

  def restore(self, path: pathlib.Path, checksum: int) -> None:
    """See `stores.Store`; of as many shards."""
    data = (path / 'checksums').read_bytes()
    if zlib.crc32(data) != checksum:
      raise ValueError(f'{path} is damaged')
    sums = json.loads(data)
    if len(sums) != self._num_shards:
      raise ValueError(f'{path} is of {len(sums)} shards')
    args = {i: (path / str(i), x) for i, x in enumerate(sums)}
    self._ask('restore', args)
