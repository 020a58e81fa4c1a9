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
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

POLICIES = 'lru', 'lfu', 'lfu_opt'
_USES_THAT_STAY = 10
_MOST_STAY = 0.9  # of the slots: the others are for rows that come and go
_VICTIMS_AT_ONCE = 4  # times as many as are needed now are chosen


class TooSmall(Exception):
  """A working set has more rows than there are slots."""

  def __init__(self, num_rows: int):
    super().__init__(num_rows)
    self.num_rows = num_rows


class Moves(NamedTuple):
  """What changes before a stretch of steps."""

  ids: np.ndarray  # [n] of the working set
  slots: np.ndarray  # [n] int32
  new: np.ndarray  # [m] of the ids that had no slot
  gone: np.ndarray  # [g] ids that have none any more
  # By table: slots whose rows go to the store, with their ids; and slots whose
  # rows come from it.
  out: dict[str, tuple[np.ndarray, np.ndarray]]
  into: dict[str, tuple[np.ndarray, np.ndarray]]


def working_set(ids: np.ndarray, num_rows: int) -> np.ndarray:
  """The different ids in [...] int32, rising; from `num_rows` on is padding."""
  if num_rows > 16 * ids.size:
    found = np.unique(ids)
    return found[: np.searchsorted(found, num_rows)]
  is_used = np.zeros(num_rows + 1, bool)
  is_used[np.minimum(ids, num_rows)] = True
  return np.flatnonzero(is_used[:num_rows])


@dataclasses.dataclass
class Cache:
  """The places of some tables, whose rows have the same ids."""

  names: tuple[str, ...]  # of the tables
  num_rows: int
  capacity: int  # slots
  policy: str = 'lfu'

  def __post_init__(self) -> None:
    self.slot_of = np.full(self.num_rows, self.capacity, np.int32)
    self.id_of = np.full(self.capacity, -1, np.int64)
    # Of each table, whether a slot has a row of it.
    self.is_held = {x: np.zeros(self.capacity, bool) for x in self.names}
    self._last_use = np.full(self.capacity, -1, np.int64)
    self._uses = np.zeros(self.capacity, np.int64)
    self._free = self.capacity  # slots from the end on were never used
    self._now = 0
    self._victims = np.zeros(0, np.int64), np.zeros(0, np.int64)

  def held(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Slots that have rows of a table, and the ids of these."""
    slots = np.flatnonzero(self.is_held[name])
    return slots, self.id_of[slots]

  def admit(self, needed: Mapping[str, np.ndarray]) -> Moves:
    """Gives slots to working sets, by table. Raises `TooSmall`."""
    ids = next(iter(needed.values()))
    for others in list(needed.values())[1:]:
      if others is not ids:
        ids = np.union1d(ids, others)
    if len(ids) > self.capacity:
      raise TooSmall(len(ids))
    self._now += 1
    slots = self.slot_of[ids]
    is_new = slots == self.capacity
    old = slots[~is_new]
    self._last_use[old] = self._now
    self._uses[old] += 1
    new, into = ids[is_new], {}
    num_fresh = min(len(new), self._free)
    fresh = np.arange(self._free - num_fresh, self._free)
    victims = self._choose(len(new) - num_fresh)
    gone, out = self.id_of[victims], {}
    for name, is_held in self.is_held.items():
      leaving = victims[is_held[victims]]
      out[name] = leaving, self.id_of[leaving]
      is_held[leaving] = False
    self._free -= num_fresh
    self.slot_of[gone] = self.capacity
    places = np.concatenate([fresh, victims])
    self.slot_of[new], self.id_of[places] = places, new
    self._last_use[places], self._uses[places] = self._now, 1
    slots = self.slot_of[ids]
    for name, some in needed.items():
      at = self.slot_of[some]
      lacks = ~self.is_held[name][at]
      into[name] = at[lacks], some[lacks]
      self.is_held[name][at] = True
    return Moves(ids, slots, new, gone, out, into)

  def _choose(self, num: int) -> np.ndarray:
    """[num] int64, slots whose rows have to go."""
    if not num:
      return np.zeros(0, np.int64)
    # Those that were chosen in advance and have not been used since.
    slots, seen = self._victims
    is_good = self._last_use[slots] == seen
    slots = slots[is_good]
    if len(slots) < num:
      slots = self._ranked(num)
    chosen, rest = slots[:num], slots[num:]
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
