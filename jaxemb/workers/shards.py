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

import dataclasses
import json
import pathlib
import zlib
from collections.abc import Callable, Mapping, Sequence
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
  places: Mapping[int, np.ndarray] = {}  # by shard, which of the rows it has


# Requests, done in this order, -> the answers of each, by shard
Call = Callable[[Sequence[Request]], list[dict[int, Any]]]


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
    self.lost = 0  # updates of rows with which it has not come back
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
  ) -> None:
    """Adds records of float32 to the rows of ids [n] that differ.

    Rows ids[first_at] begin as the records `first`, unless they are known.
    Calls of a client have rising numbers. Updates of rows that this shard had
    and has not come back with are lost, as those before them.
    """
    if call <= self.done.get(client, -1):
      return
    self.done[client] = call
    at, is_known = self._places(ids)
    is_new = ~is_known[first_at]
    self._begin(at[first_at[is_new]], first[is_new])
    if len(lost := np.flatnonzero(~self._rows.is_known[at])):
      self.lost += int(np.sum(updates[lost]))
      at, deltas, updates = (
        np.delete(x, lost, 0) for x in (at, deltas, updates)
      )
    _add(
      self._numbers,
      at,
      deltas=deltas.view(np.float32),
      num_added=self._num_added,
    )
    self._tick(at, updates)

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


@dataclasses.dataclass
class Sharded:
  """A table over several shards, of which each has every n-th row.

  A `stores.Store`, and with clocks what `copies.Copies` talk to. Every call
  goes to all shards that have some of its rows, once.
  """

  name: str
  num_shards: int
  num_rows: int
  num_bytes: int
  make: Callable[[np.ndarray], np.ndarray]  # ids -> their first records
  call: Call
  client: str  # unique
  close: Callable[[], None]  # as of `stores.Store`
  calls: int = 0

  def _request(self, method, ids, *arrays):
    """Returns a call with ids [n] and arrays [n, ...], split by shard."""
    shard = ids % self.num_shards
    places = {i: np.flatnonzero(shard == i) for i in range(self.num_shards)}
    # Of no ids, from a shard that returns as many rows.
    places = {i: at for i, at in places.items() if len(at)} or {0: np.arange(0)}
    args = {i: (ids[at], *(x[at] for x in arrays)) for i, at in places.items()}
    return Request(self.name, method, args, places=places)

  def _ask(self, method, args):
    """Answers by shard."""
    return self.call([Request(self.name, method, args)])[0]

  def newer_request(
    self, ids: np.ndarray, clocks: np.ndarray, bound: int
  ) -> Request:
    """Asks for those of ids [n] with more than `bound` updates since clocks.

    All of `NEVER`.
    """
    request = self._request('newer', ids, clocks)
    args = {i: (*x, bound) for i, x in request.args.items()}
    return request._replace(args=args)

  def newer(self, request: Request, answers: Mapping[int, Newer]) -> Newer:
    """Joins the answers; makes the records of rows that nobody changed."""
    parts = list(answers.values())
    at = np.concatenate([request.places[i][x.at] for i, x in answers.items()])
    is_known = np.concatenate([x.is_known for x in parts])
    records = known = np.concatenate([x.records for x in parts])
    if not is_known.all():
      records = np.empty((len(at), self.num_bytes), np.uint8)
      records[is_known] = known
      ids = [request.args[i][0][x.at] for i, x in answers.items()]
      records[~is_known] = self.make(np.concatenate(ids)[~is_known])
    return Newer(
      at=at,
      clocks=np.concatenate([x.clocks for x in parts]),
      is_known=is_known,
      records=records,
      missed=sum(x.missed for x in parts),
      most_missed=max(x.most_missed for x in parts),
    )

  def add_request(
    self,
    ids: np.ndarray,
    deltas: np.ndarray,
    updates: np.ndarray,
    first_at: np.ndarray,
    first: np.ndarray,
  ) -> Request:
    """See `Shard.add`."""
    number_of = np.full(len(ids), -1)
    number_of[first_at] = np.arange(len(first_at))
    request = self._request('add', ids, deltas, updates, number_of)
    self.calls += 1
    args = {}
    for i, (*arrays, numbers) in request.args.items():
      new = np.flatnonzero(numbers >= 0)
      args[i] = self.client, self.calls, *arrays, new, first[numbers[new]]
    return request._replace(args=args)

  def check(self) -> None:
    """Asks every shard for something."""
    self._ask('num_known', {i: () for i in range(self.num_shards)})

  def read(self, ids: np.ndarray) -> np.ndarray:
    """See `stores.Store`."""
    records = np.empty((len(ids), self.num_bytes), np.uint8)
    size = max(1, _ANSWER_BYTES // self.num_bytes)
    for i in range(0, len(ids), size):
      some = ids[i : i + size]
      request = self.newer_request(some, np.full(len(some), NEVER), 0)
      newer = self.newer(request, self.call([request])[0])
      records[i + newer.at] = newer.records
    return records

  def write(self, ids: np.ndarray, records: np.ndarray) -> None:
    """See `stores.Store`."""
    self.call([self._request('write', ids, records)])

  def snapshot(self, path: pathlib.Path) -> int:
    """See `stores.Store`; a folder with a file of each shard."""
    path.mkdir(parents=True, exist_ok=True)
    numbers = range(self.num_shards)
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
    if len(sums) != self.num_shards:
      raise ValueError(f'{path} is of {len(sums)} shards')
    args = {i: (path / str(i), x) for i, x in enumerate(sums)}
    self._ask('restore', args)
