"""Shards: processes that hold tables together, each row with a clock.

A shard holds every n-th row of a table and adds what workers have changed: it
never sees a gradient. The clock of a row is the number of updates that were
pushed to it by all workers, on top of an epoch that grows when a shard comes
back from an older snapshot, so that copies from before count as old.

A record is float32 numbers where workers share the table: whatever is added is
added in float32. The first `num_added` of them add up: rows, and Adagrad's sums
of squares, which are then those of all workers. The others are as the last
worker left them: Adam's moments and their count belong together, and sums of
several decays could turn a mean square negative. Where one worker has the table
for itself, it writes its records, whose bytes mean nothing here.
"""

import pathlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numba
import numpy as np

from jaxemb.ops import hashing
from jaxemb.stores import local as stores
from jaxemb.workers import in_place, staleness
from jaxemb.workers import memory as memory_lib

_CLOCK_BYTES = 8
HOLDERS = 'holders'  # the file of processes that have the rows of a shard
# Numbers before the rows: updates that a process is adding; clients so far; and
# their last calls, of so many clients.
_ADDING, _CLIENTS, _DONE = range(3)
_HEAD = _DONE + 2 * 1024
_CALLS = 64  # of a client that may be repeated


def _num_rows(number, num_shards, num_rows):
  return len(range(number, num_rows, num_shards))


def _aligned(num_bytes):
  return -(-num_bytes // 64) * 64


def _record_bytes(num_bytes):
  """Bytes of a record with its clock, whose numbers are aligned."""
  return _CLOCK_BYTES + -(-num_bytes // 8) * 8


def buffer_bytes(
  number: int, num_shards: int, num_rows: int, num_bytes: int, *_: int
) -> int:
  """Bytes of the buffer of a `Shard`, by its first arguments."""
  num_here = _num_rows(number, num_shards, num_rows)
  head_bytes = _aligned(8 * _HEAD + num_here)
  return head_bytes + num_here * _record_bytes(num_bytes)


class Newer(NamedTuple):
  """Rows that are newer than a worker's copies of them."""

  at: np.ndarray  # [n] int64, indices into the ids of the request
  clocks: np.ndarray  # [n] int64
  is_known: np.ndarray  # [n] bool, whether anybody ever changed the row
  records: np.ndarray  # [n, num_bytes] uint8; a shard sends those known
  # Updates that copies of the other rows lack, in sum, and the most of one.
  missed: int = 0
  most_missed: int = 0


class Push(NamedTuple):
  """Updates of rows that a worker made."""

  ids: np.ndarray  # [n], which differ
  deltas: np.ndarray  # [n, num_bytes] uint8, records of float32
  updates: np.ndarray  # [n] int64, of each row
  clocks: np.ndarray  # [n] int64, of the worker's copies before these updates


class FirstRecords(NamedTuple):
  """What makes the records of rows that nobody has changed."""

  key: tuple[int, int]  # of a new table
  dim: int
  scale: float  # of numbers of a row, which are uniform; 0 = all are 0
  rest: np.ndarray  # float32, what follows a row in its record

  def __call__(self, ids: np.ndarray) -> np.ndarray:
    """Returns the records [n, bytes] uint8 of ids [n]."""
    records = np.zeros((len(ids), self.dim + len(self.rest)), np.float32)
    records[:, self.dim :] = self.rest
    if self.scale:
      hashing.fill_uniform(
        *self.key,
        ids=ids.astype(np.uint32),
        columns=np.arange(self.dim, dtype=np.uint32),
        scale=np.float32(self.scale),
        out=records,
      )
    return records.view(np.uint8)


@numba.njit(nogil=True, cache=True)
def _sort_by_shard(ids, num_shards, order, stops):
  for id_ in ids:
    stops[id_ % num_shards] += 1
  total = 0
  for i in range(num_shards):
    total, stops[i] = total + stops[i], total
  for i in range(len(ids)):
    number = ids[i] % num_shards
    order[stops[number]] = i
    stops[number] += 1


def by_shard(ids: np.ndarray, num_shards: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns an order [n] of ids [n] that has those of a shard side by side.

  And where those of each shard stop, [num_shards].
  """
  order, stops = np.empty(len(ids), np.int64), np.zeros(num_shards, np.int64)
  _sort_by_shard(ids, num_shards, order, stops)
  return order, stops


@numba.njit(nogil=True, cache=True)
def _find_old(words, is_known, at, clocks, epoch, bound, share, old, now):
  """Writes which of rows at [n] had too many updates since clocks [n].

  Of these `old` has the numbers of n, and `now` the clocks. Returns how many
  they are, and how many updates the others have had, in sum and at most.
  """
  num = missed = most = 0
  for i in range(len(at)):
    updates = words[at[i], 0] if is_known[at[i]] else 0
    clock = epoch + updates
    behind = clock - clocks[i]
    if clocks[i] < 0 or behind > staleness.bound_of(updates, bound, share):
      old[num], now[num] = i, clock
      num += 1
    else:
      missed += behind
      most = max(most, behind)
  return num, missed, most


@numba.njit(nogil=True, cache=True)
def _gather(records, is_known, at, old, known, out):
  """Writes records of rows at[old] that are known, and which of them are."""
  num = 0
  for i in range(len(old)):
    row = at[old[i]]
    known[i] = is_known[row]
    if known[i]:
      source, target = records[row], out[num]
      for k in range(len(target)):
        target[k] = source[_CLOCK_BYTES + k]
      num += 1
  return num


@numba.njit(nogil=True, cache=True)
def _find_new(is_known, at, clocks, new):
  """Writes which of rows at [n] nobody has changed; returns how many."""
  num = 0
  for i in range(len(at)):
    if not is_known[at[i]] and staleness.updates_of(clocks[i]) == 0:
      new[num] = i
      num += 1
  return num


@numba.njit(nogil=True, cache=True)
def _weigh(words, at, clocks, memory, weights):
  """Writes the parts of pushes that are added; see `staleness.Rule`."""
  for i in range(len(at)):
    weights[i] = staleness.weight_of(words[at[i], 0], clocks[i], memory)


@numba.njit(nogil=True, cache=True)
def _add(
  numbers, words, is_known, at, deltas, updates, weights, num_weighted,
  num_added,
):  # fmt: skip
  """Adds deltas [n, width] to rows at [n]; the last columns are replaced.

  Of the first ones weighted parts. Returns updates of rows that are known, and
  of others, which are lost.
  """
  first = _CLOCK_BYTES // 4
  added = lost = 0
  for i in range(len(at)):
    if not is_known[at[i]]:
      lost += updates[i]
      continue
    row, delta = numbers[at[i]], deltas[i]
    for k in range(num_weighted):
      row[first + k] += weights[i] * delta[k]
    for k in range(num_weighted, num_added):
      row[first + k] += delta[k]
    for k in range(num_added, len(delta)):
      row[first + k] = delta[k]
    words[at[i], 0] += updates[i]
    added += updates[i]
  return added, lost


# Numbers of a shard that outlive its process and its rows: how many processes
# had it so far; how often it has lost rows; updates of all rows; and updates
# that are lost.
COUNTS = np.dtype([
  (name, np.int64) for name in ('starts', 'epoch', 'updates', 'lost')
])  # fmt: skip


def saved_counts(folder: pathlib.Path) -> np.ndarray:
  """Returns `COUNTS` of a shard in a file, whose page outlives the process."""
  path = folder / 'counts'
  mode: Literal['r+', 'w+'] = 'r+' if path.exists() else 'w+'
  return np.memmap(path, COUNTS, mode, shape=(1,)).view(np.ndarray)


class Shard:
  """Every `num_shards`-th row of a table, from row `number` on."""

  def __init__(
    self,
    number: int,
    num_shards: int,
    num_rows: int,
    num_bytes: int,
    num_added: int = 0,
    make: Callable[[np.ndarray], np.ndarray] | None = None,
    *,
    buffer: memoryview | None = None,
    counts: np.ndarray | None = None,
  ):
    """The table has `num_rows` of `num_bytes`; see the module for `num_added`.

    `make` makes the records of rows that nobody has changed, from their ids;
    needed where rows are added to.

    The buffer has `buffer_bytes`, and other processes may have shards of it;
    None = memory of this process, taken as rows are written.
    """
    num_here = _num_rows(number, num_shards, num_rows)
    record_bytes = _record_bytes(num_bytes)
    # Unknown rows are made by this class, and none is read of the store.
    makes_none: Any = None
    self._rows = stores.Store(num_here, record_bytes, makes_none)
    self._make = make
    if buffer is not None:
      head = 8 * _HEAD
      start = _aligned(head + num_here)
      self._head = np.frombuffer(buffer, np.int64, _HEAD)
      self._rows.is_known = np.frombuffer(buffer, bool, num_here, head)
      self._rows.records = np.frombuffer(
        buffer, np.uint8, num_here * record_bytes, start
      ).reshape(num_here, record_bytes)
    else:
      self._head = np.zeros(_HEAD, np.int64)
    self._words = self._rows.records.view(np.int64)
    self._numbers = self._rows.records.view(np.float32)
    self._num_bytes = num_bytes
    self._num_shards, self._num_added = num_shards, num_added
    self.counts = np.zeros(1, COUNTS) if counts is None else counts
    # By client, the last call of `add`: one that is repeated, as the answer
    # was lost, is not done twice.
    self._done = self._head[_DONE:].reshape(-1, 2)
    # By client and call, what the last few of these have returned.
    self._weights: dict[int, dict[int, np.ndarray]] = {}
    self._answers = threading.local()  # each thread sends its own

  @property
  def updates(self) -> int:
    """Updates of all rows."""
    return self._get('updates')

  @property
  def lost(self) -> int:
    """Updates that are lost."""
    return self._get('lost')

  def _get(self, name):
    return int(self.counts[name][0])

  def _count(self, name, number):
    self.counts[name] += number

  def _is_known(self, at):
    return self._rows.is_known[at]

  def newer(
    self, ids: np.ndarray, clocks: np.ndarray, rule: staleness.Rule
  ) -> Newer:
    """Those of ids [n] that had too many updates since clocks [n].

    Records are valid until the next call by the same thread.
    """
    self._recover()
    rule, at = staleness.Rule(*rule), ids // self._num_shards
    old, now = np.empty((2, len(at)), np.int64)
    num, missed, most = _find_old(
      self._words,
      self._rows.is_known,
      at,
      clocks=clocks,
      epoch=self._get('epoch') * staleness.EPOCH,
      bound=rule.bound,
      share=rule.share,
      old=old,
      now=now,
    )
    old, now, known = old[:num], now[:num], np.empty(num, bool)
    records = getattr(self._answers, 'records', None)
    # Not anew each time, as the system takes long for pages.
    if records is None or len(records) < num:
      records = np.empty((num + num // 4 + 1, self._num_bytes), np.uint8)
      self._answers.records = records
    num = _gather(
      self._rows.records,
      self._rows.is_known,
      at,
      old=old,
      known=known,
      out=records,
    )
    return Newer(
      at=old,
      clocks=now,
      is_known=known,
      records=records[:num],
      missed=missed,
      most_missed=most,
    )

  def _recover(self):
    """Counts updates as lost whose process ended while it added them."""
    if self._head[_ADDING]:
      self._count('lost', int(self._head[_ADDING]))
      self._head[_ADDING] = 0

  def _begin(self, at, records):
    """Begins rows that no worker had changed."""
    self._words[at, 0] = 0
    self._set(at, records)
    self._rows.is_known[at] = True

  def _set(self, at, records):
    stop = _CLOCK_BYTES + self._num_bytes
    self._rows.records[at, _CLOCK_BYTES:stop] = records

  def add(
    self, client: int, call: int, push: Push, rule: staleness.Rule
  ) -> np.ndarray | None:
    """Adds updates to rows.

    Returns which part of each row's was added, [n] float32; None = all. NaN is
    a part that nobody knows any more, as a process has ended.

    Calls of a client have rising numbers. Updates of rows that this shard had
    and has not come back with are lost, as those before them.
    """
    self._recover()
    ids, deltas, updates, clocks = push
    rule = staleness.Rule(*rule)
    if call <= self._last_call(client):
      return self._weights_of(client, call, rule, num=len(ids))
    self._head[_ADDING] = np.sum(updates)
    self._note_done(client, call)
    at = ids // self._num_shards
    new = np.empty(len(at), np.int64)
    num = _find_new(self._rows.is_known, at, clocks=clocks, new=new)
    if num:
      assert self._make is not None
      self._begin(at[new[:num]], self._make(ids[new[:num]]))
    weights, num_weighted = np.empty(len(at), np.float32), 0
    if rule.memory:
      num_weighted = rule.num_weighted
      _weigh(self._words, at, clocks, memory=rule.memory, weights=weights)
    added, lost = _add(
      self._numbers,
      self._words,
      self._rows.is_known,
      at,
      deltas=deltas.view(np.float32),
      updates=updates,
      weights=weights,
      num_weighted=num_weighted,
      num_added=self._num_added,
    )
    self._count('updates', added)
    self._head[_ADDING] = 0
    if lost:
      self._count('lost', lost)
    if not rule.memory:
      return None
    calls = self._weights.setdefault(client, {})
    calls[call] = weights
    if len(calls) > _CALLS:
      del calls[min(calls)]
    return weights

  # In the memory of a worker.

  def _in_place(self):
    return in_place.Rows(
      numbers=self._numbers,
      words=self._words,
      is_known=self._rows.is_known,
      num_shards=self._num_shards,
      epoch_clock=self._get('epoch') * staleness.EPOCH,
    )

  def push_in_place(
    self, lines: in_place.Lines, pushed: np.ndarray, rule: staleness.Rule
  ) -> tuple[int, int]:
    """Adds updates of lines [n] that a worker pushes, and has it read them.

    Returns how many these are, and the number of rows that others had changed.
    A call may be repeated: a line without updates is pushed.
    """
    self._recover()
    rows, new = self._in_place(), np.empty(len(pushed), np.int64)
    num, total = in_place.find_new(rows, lines, pushed, new)
    if num:
      ids = lines.ids[new[:num]]
      assert self._make is not None
      self._begin(ids // self._num_shards, self._make(ids))
    self._head[_ADDING] = total
    added, lost, num_read = in_place.push(
      rows, lines, pushed, rule=rule, first=_CLOCK_BYTES // 4
    )
    self._count('updates', added)
    self._head[_ADDING] = 0
    if lost:
      self._count('lost', lost)
    return total, num_read

  def read_in_place(
    self,
    lines: in_place.Lines,
    used: np.ndarray,
    ids: np.ndarray,
    rule: staleness.Rule,
  ) -> tuple[in_place.Read, np.ndarray, int]:
    """Reads rows of ids [n] into lines [n] that lack them, or are too old.

    But for those that nobody has changed: it returns which of n these are, too,
    and their clock.
    """
    self._recover()
    rows, unknown = self._in_place(), np.empty(len(ids), np.int64)
    found = in_place.Read(
      *in_place.read(
        rows,
        lines,
        used,
        ids=ids,
        rule=rule,
        first=_CLOCK_BYTES // 4,
        unknown=unknown,
      )
    )
    return found, unknown[: found.num_unknown], rows.epoch_clock

  def _weights_of(self, client, call, rule, num):
    """Returns what a call has returned; NaN if a process had it that ended."""
    if not rule.memory:
      return None
    weights = self._weights.get(client, {}).get(call)
    return np.full(num, np.nan, np.float32) if weights is None else weights

  def _last_call(self, client):
    entry = np.flatnonzero(self._done[:, 0] == client)
    return int(self._done[entry[0], 1]) if len(entry) else -1

  @property
  def done(self) -> dict[int, int]:
    """By client, its last call of `add` that was done."""
    return dict(self._done[self._done[:, 0] != 0].tolist())

  def _note_done(self, client, call):
    found = np.flatnonzero(self._done[:, 0] == client)
    if not len(found):  # in a free entry, or that of the oldest client
      found = [self._head[_CLIENTS] % len(self._done)]
      self._head[_CLIENTS] += 1
    self._done[found[0]] = client, call

  def write(self, ids: np.ndarray, records: np.ndarray) -> None:
    """Replaces the records of ids [n] that differ."""
    self._recover()
    at = ids // self._num_shards
    is_known = self._is_known(at)
    self._begin(at[~is_known], records[~is_known])
    self._set(at, records)
    self._words[at, 0] += 1
    self._count('updates', len(at))

  def num_known(self) -> int:
    """Rows that anybody ever changed."""
    return int(np.count_nonzero(self._rows.is_known))

  def snapshot(self, path: pathlib.Path) -> int:
    """Writes all rows that are known to a file; returns its checksum."""
    return self._rows.snapshot(path)

  def restore(self, path: pathlib.Path, checksum: int) -> None:
    """Goes back to a snapshot. Raises a ValueError if it is damaged."""
    self._rows.restore(path, checksum)
    updates = int(np.sum(self._words[:, 0], where=self._rows.is_known))
    self._count('updates', updates - self.updates)
    self._count('epoch', 1)

  def begin_again(
    self, path: pathlib.Path | None, checksum: int, done: Mapping[int, int]
  ) -> None:
    """Goes on in a new process without the rows of the last one.

    It has those of a snapshot, if there is a path; `done` is as of then.
    """
    before = self.updates
    if path:
      self.restore(path, checksum)
      for client, call in done.items():
        self._note_done(client, call)
    else:
      self._count('updates', -before)
      self._count('epoch', 1)
    self._count('lost', before - self.updates)


class Answer(NamedTuple):
  """What a shard returns for a call."""

  starts: int  # processes that had the shard so far
  lost: int  # updates of rows, in all of them
  problem: str  # why there is no new snapshot, if one was due
  value: Any  # what the method returns


def answer(shard: Shard, value: Any, problem: str = '') -> Answer:
  """Returns an answer of a shard."""
  starts, _, _, lost = shard.counts[0].item()
  return Answer(starts=starts, lost=lost, problem=problem, value=value)


class Mapped:
  """A shard whose rows lie in memory that processes of a machine share."""

  def __init__(
    self, memory: memory_lib.Memory, folder: pathlib.Path, *sizes: Any
  ):
    """The folder is the shard's; `sizes` are arguments of `Shard`."""
    self.memory = memory
    counts = saved_counts(folder)
    self.shard = Shard(*sizes, buffer=memory.buffer, counts=counts)

  def call(self, method: str, args: tuple) -> Answer:
    """Calls a method of the shard, while it is locked."""
    value = getattr(self.shard, method)(*args)
    return answer(self.shard, value)
