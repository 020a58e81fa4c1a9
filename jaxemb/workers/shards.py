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

import json
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.storage import atomic
from jaxemb.stores import local as stores

NEVER = -1  # the clock of a row that was not read so far
EPOCH = 1 << 40  # more than all updates of a row
_CLOCK_BYTES = 8
_LEAST_SAVE_SECS = 5.0  # between two snapshots of a shard


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
  # [m, num_bytes] uint8, the records of rows that nobody had changed, to the
  # worker's knowledge, and which of n they are
  first_at: np.ndarray
  first: np.ndarray


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
    num_here = len(range(number, num_rows, num_shards))
    # Takes memory as rows are written; clients make those that are not known.
    self._rows = stores.Store(num_here, _CLOCK_BYTES + num_bytes, make=None)
    self._clocks = self._rows.records[:, :_CLOCK_BYTES].view(np.int64)[:, 0]
    self._records = self._rows.records[:, _CLOCK_BYTES:]
    self._num_shards, self._num_added = num_shards, num_added
    self.epoch = 0  # how often it came back
    self.updates = 0  # of all rows
    self.lost = 0  # updates of rows with which it has not come back
    # By client, the last call of `add`: one that is repeated, as the answer
    # was lost, is not done twice.
    self.done: dict[str, int] = {}

  def _find(self, ids):
    at = ids // self._num_shards
    return at, self._rows.is_known[at]

  def newer(self, ids: np.ndarray, clocks: np.ndarray, bound: int) -> Newer:
    """Those of ids [n] that had more than `bound` updates since clocks [n]."""
    at, is_known = self._find(ids)
    now = np.where(is_known, self._clocks[at], 0) + self.epoch * EPOCH
    behind = now - clocks
    is_old = (clocks < 0) | (behind > bound)
    old, missed = np.flatnonzero(is_old), behind[~is_old]
    at, is_known = at[old], is_known[old]
    return Newer(
      at=old,
      clocks=now[old],
      is_known=is_known,
      records=self._records[at[is_known]],
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

  def add(self, client: str, call: int, push: Push) -> None:
    """Adds updates to rows, which begin as `push.first` unless they are known.

    Calls of a client have rising numbers. Updates of rows that this shard had
    and has not come back with are lost, as those before them.
    """
    if call <= self.done.get(client, -1):
      return
    self.done[client] = call
    ids, deltas, updates, first_at, first = push
    at, is_known = self._find(ids)
    is_new = ~is_known[first_at]
    self._begin(at[first_at[is_new]], first[is_new])
    is_lost = ~self._rows.is_known[at]
    if is_lost.any():
      self.lost += int(np.sum(updates[is_lost]))
      at, deltas, updates = at[~is_lost], deltas[~is_lost], updates[~is_lost]
    numbers = self._rows.records.view(np.float32)[:, _CLOCK_BYTES // 4 :]
    deltas = deltas.view(np.float32)
    _add(numbers, at, deltas=deltas, num_added=self._num_added)
    self._tick(at, updates)

  def write(self, ids: np.ndarray, records: np.ndarray) -> None:
    """Replaces the records of ids [n] that differ."""
    at, is_known = self._find(ids)
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


class Answer(NamedTuple):
  """What a shard returns for a call."""

  starts: int  # processes that had the shard so far
  lost: int  # updates of rows, in all of them
  problem: str  # why there is no new snapshot, if one was due
  value: Any  # what the method returns


class _SavedShard:
  """A shard with snapshots, from which it goes on in another process."""

  def __init__(self, folder: pathlib.Path, snapshot_secs: float, *sizes: int):
    """The folder is this shard's; `sizes` are arguments of `Shard`."""
    folder.mkdir(parents=True, exist_ok=True)
    self._folder, self._latest = folder, folder / 'latest.json'
    self._every_secs, self._shard = snapshot_secs, Shard(*sizes)
    # Starts, epoch, updates, and updates lost, for the next start. The page
    # outlives the process.
    path = folder / 'counts'
    mode = 'r+' if path.exists() else 'w+'
    self._counts = np.memmap(path, np.int64, mode, shape=(4,))
    if self._latest.exists():
      saved = json.loads(self._latest.read_text())
      self._shard.restore(folder / saved['rows'], saved['checksum'])
      self._shard.done = saved['done']
    self._lost = self._counts[3] + self._counts[2] - self._shard.updates
    self._shard.epoch = int(self._counts[1]) + 1
    self._counts[0] += 1
    self._number, self._saved, self._save_secs = 0, time.monotonic(), 0.0
    self._count()

  def _count(self):
    shard, lost = self._shard, self._lost + self._shard.lost
    self._counts[1:4] = shard.epoch, shard.updates, lost

  def call(self, method: str, args: tuple) -> Answer:
    """Calls a method of the shard; saves it if that is due."""
    value = getattr(self._shard, method)(*args)
    self._count()
    # Snapshots take a twentieth of the time, if they are to be that frequent.
    every_secs = min(20 * self._save_secs, self._every_secs)
    every_secs = max(_LEAST_SAVE_SECS, every_secs)
    is_old, problem = time.monotonic() - self._saved > every_secs, ''
    if is_old or method == 'restore':
      try:
        self._save()
      except OSError as error:  # the snapshot before it stays
        problem, self._saved = str(error), time.monotonic()
    starts, _, _, lost = self._counts.tolist()
    return Answer(starts=starts, lost=lost, problem=problem, value=value)

  def _save(self):
    start = time.monotonic()
    path = self._folder / f'rows-{self._counts[0]}-{self._number % 2}'
    checksum = self._shard.snapshot(path)
    state = {'rows': path.name, 'checksum': checksum, 'done': self._shard.done}
    with atomic.write(self._latest) as file:
      file.write(json.dumps(state).encode())
    for old in self._folder.glob('rows-*'):
      if old != path:
        old.unlink()
    self._number, self._saved = self._number + 1, time.monotonic()
    self._save_secs = self._saved - start


class Actor:
  """A process with a shard of every table; Ray restarts it if it ends."""

  def __init__(self, folder: pathlib.Path, snapshot_secs: float):
    """The folder is for its snapshots."""
    self._folder, self._snapshot_secs = folder, snapshot_secs
    self._shards: dict[str, _SavedShard] = {}

  def call(
    self, calls: Sequence[tuple[str, tuple, str, tuple]]
  ) -> list[Answer]:
    """Calls shards, each by (table, sizes, method, arguments)."""
    answers = []
    for name, sizes, method, args in calls:
      if name not in self._shards:
        folder, secs = self._folder / name, self._snapshot_secs
        self._shards[name] = _SavedShard(folder, secs, *sizes)
      answers.append(self._shards[name].call(method, args))
    return answers

  def drop(self, name: str) -> None:
    """Removes the shard of a table."""
    self._shards.pop(name, None)
    shutil.rmtree(self._folder / name, ignore_errors=True)
