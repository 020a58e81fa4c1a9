"""Which rows of a large table have a place in a small one on the device.

The small table has slots; tables of a model whose rows have the same ids, such
as input and output vectors of words, share the places, so that one map from ids
to slots serves them all. Rows that a stretch of steps needs (its working set)
are given slots before it runs; the rows that have to go are those that were
used

  lru      longest ago,
  lfu      most seldom,
  lfu_opt  most seldom, but for rows that were used ten times, which stay (the
           light LFU of HET, Miao et al. 2022).

A use is a stretch. Rows that it needs stay until it has ended.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np

POLICIES = 'lru', 'lfu', 'lfu_opt'
_USES_THAT_STAY = 10
_MOST_STAY = 0.9  # of the slots: the others are for rows that come and go
_VICTIMS_AT_ONCE = 4  # times as many as are needed now are chosen


class TooSmall(Exception):
  """A step needs more rows than there are slots."""

  def __init__(self, num_rows: int):
    super().__init__(num_rows)
    self.num_rows = num_rows


class Moves(NamedTuple):
  """What changes before a stretch of steps."""

  num_steps: int
  num_needed: dict[str, int]  # by table, different rows of the working set
  # Ids whose slots change, and where they are from now on.
  ids: np.ndarray  # [n] int32
  slots: np.ndarray  # [n] int32
  # By table: slots whose rows go to the store, with their ids; and slots whose
  # rows come from it.
  out: dict[str, tuple[np.ndarray, np.ndarray]]
  into: dict[str, tuple[np.ndarray, np.ndarray]]


@numba.njit(nogil=True, cache=True)
def _collect(ids, seen, start, bit, found, num_found):
  """Adds ids that a table has not yet needed in this stretch to `found`.

  What was `seen` of a row is `start`, the number of the stretch in its upper
  bits, and below it a `bit` for each table that needs the row. Returns how many
  ids there are then, and how many no table had needed.
  """
  num_new = 0
  for id_ in ids:
    if id_ < seen.size:
      known = seen[id_]
      if known < start:
        num_new += 1
        known = start
      if not known & bit:
        seen[id_] = known | bit
        found[num_found] = id_
        num_found += 1
  return num_found, num_new


@numba.njit(nogil=True, cache=True)
def _touch(ids, slot_of, capacity, is_held, last_use, uses, now, new, num_new):
  """Notes uses of rows; returns how many are `new`, and ids not in `is_held`.

  Ids without a slot get the slot -1 - k, k being their place in `new`.
  """
  into = np.empty(ids.size, np.int32)
  num_into = 0
  for id_ in ids:
    slot = slot_of[id_]
    if slot == capacity:
      new[num_new] = id_
      slot_of[id_] = slot = -1 - num_new
      num_new += 1
    if slot < 0:
      # Of rows to come, whether this table needs them, is noted behind.
      slot = capacity - 1 - slot
    elif last_use[slot] != now:
      last_use[slot] = now
      uses[slot] += 1
    if not is_held[slot]:
      is_held[slot] = True
      into[num_into] = id_
      num_into += 1
  return num_new, into[:num_into]


@dataclasses.dataclass
class Cache:
  """The places of some tables, whose rows have the same ids."""

  names: tuple[str, ...]  # of the tables
  num_rows: int
  capacity: int  # slots
  policy: str = 'lfu'

  def __post_init__(self) -> None:
    self.slot_of = np.full(self.num_rows, self.capacity, np.int32)
    self.id_of = np.full(self.capacity, -1, np.int32)
    # Of each table, whether a slot has a row of it; behind the slots are as
    # many places for rows that come.
    self._is_held = {x: np.zeros(2 * self.capacity, bool) for x in self.names}
    # The stretch that last needed a row, and the tables that did.
    self._seen = np.zeros(self.num_rows, np.int64)
    self._last_use = np.full(self.capacity, -1, np.int64)
    self._uses = np.zeros(self.capacity, np.int64)
    self._free = self.capacity  # slots from here on are in use
    self._now = 0
    self._victims = np.zeros(0, np.int64), np.zeros(0, np.int64)

  def held(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Slots that have rows of a table, and the ids of these."""
    slots = np.flatnonzero(self._is_held[name][: self.capacity])
    return slots, self.id_of[slots]

  def admit(self, needed: Sequence[Sequence[np.ndarray]]) -> Moves:
    """Gives slots to the rows of as many steps as there are slots for.

    For each step `needed` has the ids [n] int32 that each table looks up, with
    repetitions; from `num_rows` on they are padding. Raises `TooSmall`.
    """
    self._now += 1
    num_rows, num_steps = 0, 0
    # A step that does not fit any more is collected, too.
    most = max((len(ids) for tables in needed for ids in tables), default=0)
    room = min(self.num_rows, self.capacity + most)
    lists = np.empty((len(self.names), room), np.int32)
    sizes = [0] * len(self.names)
    for tables in needed:
      after, total = list(sizes), num_rows
      for i, ids in enumerate(tables):
        bits = self._now << len(self.names), 1 << i
        args = self._seen, *bits, lists[i]
        after[i], num = _collect(ids, *args, sizes[i])
        total += num
      if total > self.capacity:
        if not num_steps:
          raise TooSmall(total)
        break
      sizes, num_rows, num_steps = after, total, num_steps + 1
    new, num_new, into = np.empty(num_rows, np.int32), 0, {}
    for i, (name, is_held) in enumerate(self._is_held.items()):
      args = self.slot_of, self.capacity, is_held, self._last_use, self._uses
      num_new, into[name] = _touch(
        lists[i, : sizes[i]], *args, self._now, new, num_new
      )
    new = new[:num_new]
    num_fresh = min(num_new, self._free)
    fresh = np.arange(self._free - num_fresh, self._free)
    victims = self._choose(num_new - num_fresh)
    gone, out = self.id_of[victims], {}
    places = np.concatenate([fresh, victims])
    for name, is_held in self._is_held.items():
      leaving = victims[is_held[victims]]
      out[name] = leaving, self.id_of[leaving]
      comes = slice(self.capacity, self.capacity + num_new)
      is_held[places] = is_held[comes]
      is_held[comes] = False
    self._free -= num_fresh
    self.slot_of[gone] = self.capacity
    self.slot_of[new], self.id_of[places] = places, new
    self._last_use[places], self._uses[places] = self._now, 1
    into = {name: (self.slot_of[ids], ids) for name, ids in into.items()}
    ids = np.concatenate([gone, new])
    num_needed = dict(zip(self.names, sizes, strict=True))
    return Moves(num_steps, num_needed, ids, self.slot_of[ids], out, into)

  def _choose(self, num: int) -> np.ndarray:
    """[num] int64, slots whose rows have to go."""
    if not num:
      return np.zeros(0, np.int64)
    # Those that were chosen in advance and have not been used since.
    slots, seen = self._victims
    slots = slots[self._last_use[slots] == seen]
    if len(slots) < num:
      slots = self._ranked(num)
    chosen, rest = slots[:num], slots[num:]
    if self.policy != 'lru':
      # Rows that come from now on will have been used once.
      rest = rest[self._uses[rest] <= 1]
    self._victims = rest, self._last_use[rest]
    return chosen

  def _ranked(self, num: int) -> np.ndarray:
    """At least `num` slots, from the first that has to go."""
    can_go = (self._last_use >= 0) & (self._last_use < self._now)
    if self.policy == 'lfu_opt':
      stays = can_go & (self._uses >= _USES_THAT_STAY)
      room = self.capacity - (np.count_nonzero(~can_go) + num)
      if np.count_nonzero(stays) <= min(room, _MOST_STAY * self.capacity):
        can_go &= ~stays
    slots = np.flatnonzero(can_go)
    rank = self._last_use if self.policy == 'lru' else self._uses
    rank = rank[slots]
    if (most := _VICTIMS_AT_ONCE * num) < len(slots):
      first = np.argpartition(rank, most)[:most]
      slots, rank = slots[first], rank[first]
    # Of equals the one that was used longest ago.
    return slots[np.lexsort((self._last_use[slots], rank))]
