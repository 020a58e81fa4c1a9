"""Pushes and reads of rows that a worker and a shard have in one memory.

They do what `copies.Copies` and `shards.Shard` do by messages, in one pass over
a row: its numbers in the shard, on the worker's device and in the base of the
copy. A row that is pushed is read, too: it is then as new as the shard's.
"""

from typing import NamedTuple

import numba
import numpy as np

from jaxemb.ops import memory
from jaxemb.workers import staleness

# How far ahead of the one that is used rows are prefetched; and clocks, each of
# which is in another line of the cache.
_ROWS_AHEAD, _CLOCKS_AHEAD = 2, 16
# Of parts of a row, by what a push does with them.
KINDS = ('weighted', 'added', 'replaced')
_WEIGHTED, _ADDED, _REPLACED = range(3)


class Rows(NamedTuple):
  """Rows of a shard, which has every n-th of a table."""

  numbers: np.ndarray  # [rows, width] float32, records
  words: np.ndarray  # [rows, width / 2] int64, the same; updates, then the row
  is_known: np.ndarray  # [rows] bool, whether anybody ever changed a row
  num_shards: int
  epoch_clock: int  # of a row without updates


class Lines(NamedTuple):
  """What a worker has of a table; see `copies.Copies`."""

  parts: tuple[np.ndarray, ...]  # [lines, columns] float32 of its device
  starts: np.ndarray  # [parts] int64, in the numbers of a record
  kinds: np.ndarray  # [parts] int64, of `KINDS`
  ids: np.ndarray  # [lines] int64
  clocks: np.ndarray  # [lines] int64
  updates: np.ndarray  # [lines] int64
  base: np.ndarray  # [lines, numbers] float32


class Read(NamedTuple):
  """Counts of a read."""

  num_read: int
  num_unknown: int  # rows that nobody has changed, which are made elsewhere
  missed: int  # updates that copies of the others lack, in sum
  most_missed: int


@numba.njit(nogil=True, cache=True)
def select(
  lines: Lines,
  used: np.ndarray,
  leaving: np.ndarray,
  rule: staleness.Rule,
  out: np.ndarray,
) -> int:
  """Writes lines whose updates are to be pushed; returns how many.

  They are those of lines `leaving` that have any, and of those `used` last that
  have too many. Nothing is `leaving` twice.
  """
  num = 0
  for line in leaving:
    if lines.updates[line]:
      out[num] = line
      num += 1
      lines.updates[line] = -lines.updates[line]  # marked
  num_leaving = num
  for line in used:
    most = staleness.push_bound(lines.clocks[line], rule.bound, rule.share)
    if lines.updates[line] > most:
      out[num] = line
      num += 1
  for i in range(num_leaving):
    lines.updates[out[i]] = -lines.updates[out[i]]
  return num


@numba.njit(nogil=True, cache=True)
def find_new(
  rows: Rows, lines: Lines, pushed: np.ndarray, new: np.ndarray
) -> tuple[int, int]:
  """Writes which of lines that are pushed have rows that nobody has changed.

  Returns how many they are, and the updates of all that are pushed.
  """
  num = total = 0
  for line in pushed:
    total += lines.updates[line]
    is_known = rows.is_known[lines.ids[line] // rows.num_shards]
    if not is_known and staleness.updates_of(lines.clocks[line]) == 0:
      new[num] = line
      num += 1
  return num, total


@numba.njit(nogil=True, cache=True)
def _prefetch_clock(rows, id_):
  address = np.uint64(rows.words.ctypes.data)
  row_bytes = np.uint64(rows.words.strides[0])
  memory.prefetch_to_write(
    address + np.uint64(id_ // rows.num_shards) * row_bytes
  )


@numba.njit(nogil=True, cache=True)
def _prefetch_row(array, at):
  row_bytes = np.uint64(array.strides[0])
  address = np.uint64(array.ctypes.data) + np.uint64(at) * row_bytes
  for offset in range(0, row_bytes + memory.LINE - 1, memory.LINE):
    memory.prefetch_to_write(address + np.uint64(offset))


@numba.njit(nogil=True, cache=True)
def _prefetch(rows, lines, line, id_):
  """Prefetches a row in the shard and in a line."""
  _prefetch_row(rows.numbers, id_ // rows.num_shards)
  _prefetch_row(lines.base, line)
  for i in range(len(lines.parts)):
    _prefetch_row(lines.parts[i], line)


@numba.njit(nogil=True, cache=True)
def _push_row(shared, row, base, weight):
  for k in range(len(row)):
    number = shared[k] + weight * (row[k] - base[k])
    shared[k] = number
    row[k] = number
    base[k] = number


@numba.njit(nogil=True, cache=True)
def _copy(source, one, other):
  for k in range(len(source)):
    number = source[k]
    one[k] = number
    other[k] = number


@numba.njit(nogil=True, cache=True)
def _merge(shared, row, base, weight):
  for k in range(len(row)):
    row[k] = shared[k] + weight * (row[k] - base[k])
    base[k] = shared[k]


@numba.njit(nogil=True, cache=True)
def push(
  rows: Rows, lines: Lines, pushed: np.ndarray, rule: staleness.Rule, first: int
) -> tuple[int, int, int]:
  """Adds the updates of lines to their rows; see `shards.Shard.add`.

  Of a record, numbers of a row begin at `first`. Returns updates that were
  added; those that are lost, as the shard lacks their rows; and the number of
  rows that are read, too, as others have changed them.
  """
  added = lost = num_read = 0
  for j in range(len(pushed)):
    if j + _ROWS_AHEAD < len(pushed):
      ahead = pushed[j + _ROWS_AHEAD]
      _prefetch(rows, lines, ahead, lines.ids[ahead])
    line = pushed[j]
    at = lines.ids[line] // rows.num_shards
    updates, lines.updates[line] = lines.updates[line], 0
    if not updates:  # it was pushed by a call that is repeated
      continue
    if not rows.is_known[at]:
      lost += updates  # as the epoch is another: the row is read again
      continue
    weight = np.float32(1)
    if rule.memory:
      clock = lines.clocks[line]
      weight = np.float32(
        staleness.weight_of(rows.words[at, 0], clock, rule.memory)
      )
    for i in range(len(lines.parts)):
      row = lines.parts[i][line]
      start = lines.starts[i]
      base = lines.base[line, start : start + len(row)]
      shared = rows.numbers[at, first + start : first + start + len(row)]
      if lines.kinds[i] == _REPLACED:
        _copy(row, shared, base)
      else:
        is_weighted = lines.kinds[i] == _WEIGHTED
        part = weight if is_weighted else np.float32(1)
        _push_row(shared, row, base, part)
    # Where everything is read before each round, it is counted then.
    is_old = rows.epoch_clock + rows.words[at, 0] > lines.clocks[line]
    num_read += is_old and rule.bound >= 0
    rows.words[at, 0] += updates
    lines.clocks[line] = rows.epoch_clock + rows.words[at, 0]
    added += updates
  return added, lost, num_read


@numba.njit(nogil=True, cache=True)
def _read_row(rows, lines, line, id_, first, memory):
  at = id_ // rows.num_shards
  keeps = lines.ids[line] == id_ and lines.updates[line] > 0
  weight = np.float32(1)  # of what is not pushed
  if keeps and memory:
    clock = lines.clocks[line]
    weight = np.float32(staleness.weight_of(rows.words[at, 0], clock, memory))
  for i in range(len(lines.parts)):
    row = lines.parts[i][line]
    start = lines.starts[i]
    base = lines.base[line, start : start + len(row)]
    shared = rows.numbers[at, first + start : first + start + len(row)]
    if not keeps:
      _copy(shared, row, base)
    elif lines.kinds[i] == _REPLACED:
      _copy(shared, base, base)
    else:
      is_weighted = lines.kinds[i] == _WEIGHTED
      part = weight if is_weighted else np.float32(1)
      _merge(shared, row, base, part)
  lines.ids[line] = id_
  lines.clocks[line] = rows.epoch_clock + rows.words[at, 0]


@numba.njit(nogil=True, cache=True)
def read(
  rows: Rows,
  lines: Lines,
  used: np.ndarray,
  ids: np.ndarray,
  rule: staleness.Rule,
  first: int,
  unknown: np.ndarray,
) -> tuple[int, int, int, int]:
  """Reads rows of ids [n] into lines `used` [n] that lack them, or are old.

  See `copies.Copies.commit`. `unknown` gets which of n are to be read, and
  nobody has changed. Returns a `Read`.
  """
  num_read = num_unknown = missed = most = 0
  old = np.empty(len(used), np.int64)
  for j in range(len(used)):
    if j + _CLOCKS_AHEAD < len(used):
      _prefetch_clock(rows, ids[j + _CLOCKS_AHEAD])
    line, at = used[j], ids[j] // rows.num_shards
    updates = rows.words[at, 0] if rows.is_known[at] else 0
    behind = rows.epoch_clock + updates - lines.clocks[line]
    if (
      lines.ids[line] == ids[j]
      and lines.clocks[line] >= 0
      and behind <= staleness.bound_of(updates, rule.bound, rule.share)
    ):
      missed += behind
      most = max(most, behind)
    elif rows.is_known[at]:
      old[num_read] = j
      num_read += 1
    else:
      unknown[num_unknown] = j
      num_unknown += 1
  for j in range(num_read):
    if j + _ROWS_AHEAD < num_read:
      ahead = old[j + _ROWS_AHEAD]
      _prefetch(rows, lines, used[ahead], ids[ahead])
    line, id_ = used[old[j]], ids[old[j]]
    _read_row(rows, lines, line, id_=id_, first=first, memory=rule.memory)
  return num_read, num_unknown, missed, most
