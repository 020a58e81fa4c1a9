"""Which rows of a large table have a place in a small one on the device.

The small table has slots; tables of a model whose rows have the same ids, such
as input and output vectors of words, share the places, so that one map from ids
to slots serves them all. Rows that a stretch of steps needs (its working set)
are given slots before it runs. Those that have to go are rows that no step
needs, as far as they are foreseen, and of these the ones that were used

  lru      longest ago,
  lfu      most seldom,
  lfu_opt  most seldom, but for rows that were used ten times, which stay (the
           light LFU of HET, Miao et al. 2022);

then those that are needed last (Belady 1966). A use is a stretch. Rows that it
needs stay until it has ended.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np

POLICIES = 'lru', 'lfu', 'lfu_opt'
_USES_THAT_STAY = 10
_MOST_STAY = 0.9  # of the slots: the others are for rows that come and go
_NEVER = np.iinfo(np.int32).max  # no step that is foreseen
_MOST_NUMBERS = 1 << 30  # of rows, which then are counted from 0 again
# Ranks of rows that are needed, that the stretch before uses, and that stay.
_NEEDED, _RUNNING, _STAYS = 1 << 60, 1 << 61, 1 << 62


class TooSmall(Exception):
  """A step needs more rows than there are slots."""

  def __init__(self, num_rows: int):
    super().__init__(num_rows)
    self.num_rows = num_rows


Rows = dict[str, tuple[np.ndarray, np.ndarray]]  # by table: slots and ids


class Moves(NamedTuple):
  """What changes before a stretch of steps."""

  num_steps: int
  num_needed: dict[str, int]  # by table, different rows of the working set
  # Ids whose slots change, and where they are from now on.
  ids: np.ndarray  # [n] int32
  slots: np.ndarray  # [n] int32
  # Rows that go to the store, then those that come from it.
  out: Rows
  into: Rows
  # Those that may go and come while the stretch before runs, which does not use
  # their slots, but not while the one before that does.
  out_beside: Rows
  into_beside: Rows


class _Steps(NamedTuple):
  """Rows of steps that are foreseen, each once for a step."""

  first: int  # the number of the first, counted over all steps
  ids: np.ndarray  # [n] int32
  tables: np.ndarray  # [n] uint8, a bit for each table that needs the row
  earlier: np.ndarray  # [n] int32, the row's number in a step before
  later: np.ndarray  # [n] int32, the next step that needs it, or `_NEVER`
  ends: list[int]  # of each step


def _no_steps(first: int, size: int) -> _Steps:
  kinds = np.int32, np.uint8, np.int32, np.int32
  return _Steps(first, *(np.empty(size, x) for x in kinds), [])


@numba.njit(nogil=True, cache=True)
def _find(ids, bit, step, start, num, first, rows, before, where):
  """Adds rows that a table needs in a step; returns how many there are.

  Those of the step begin at `start` of `rows`, which are arrays of `_Steps`.
  """
  found, tables, earlier, later = rows
  numbers, slot_of, next_use = where
  for id_ in ids:
    if id_ >= numbers.size:
      continue
    number = numbers[id_]
    if number >= first + start:
      tables[number - first] |= bit
      continue
    numbers[id_] = first + num
    found[num], tables[num] = id_, bit
    earlier[num], later[num] = number, _NEVER
    num += 1
    if number >= first:
      later[number - first] = step
      continue
    if number >= first - before.size:
      before[number - first] = step  # from its end
    slot = slot_of[id_]
    if slot < next_use.size and next_use[slot] == _NEVER:
      next_use[slot] = step
  return num


@numba.njit(nogil=True, cache=True)
def _use(ids, tables, later, now, slot_of, slots, new, others, needed):
  """Notes that a stretch needs rows [n], each once for a step.

  Rows without a slot become `new`, of which `slot_of` then has -1 - their
  place there. `others` are slots and tables of rows that have a slot, where
  these tables have no row so far; `needed` [256] counts rows by their tables.
  Returns how many are new, and how many others.
  """
  next_use, held, used, last_use, uses = slots
  new_ids, new_tables, new_later = new
  other_slots, other_tables = others
  num_new = num_others = 0
  for i in range(ids.size):
    slot = slot_of[ids[i]]
    if slot == held.size:
      new_ids[num_new], new_tables[num_new] = ids[i], tables[i]
      new_later[num_new] = later[i]
      slot_of[ids[i]] = -1 - num_new
      num_new += 1
    elif slot < 0:
      new_tables[-1 - slot] |= tables[i]
      new_later[-1 - slot] = later[i]
    else:
      if last_use[slot] != now:
        last_use[slot], used[slot] = now, 0
        uses[slot] += 1
      next_use[slot] = later[i]
      needed[used[slot]] -= 1
      used[slot] |= tables[i]
      needed[used[slot]] += 1
      missing = tables[i] & ~held[slot]
      if missing:
        held[slot] |= missing
        other_slots[num_others], other_tables[num_others] = slot, missing
        num_others += 1
  for i in range(num_new):
    needed[new_tables[i]] += 1
  return num_new, num_others


@numba.njit(nogil=True, cache=True)
def _rank(by_uses, now, is_beside, next_use, last_use, uses, ranks):
  """Writes ranks [slots] int64, lower ones of rows that had better go.

  A slot without a row, or one that is needed now, has the highest.
  """
  for slot in range(ranks.size):
    # Of equals the one that was used longest ago.
    rank = np.int64(last_use[slot])
    if by_uses:
      rank += np.int64(uses[slot]) << 31
    if next_use[slot] != _NEVER:
      rank = _NEEDED + _NEVER - next_use[slot]
    if is_beside and last_use[slot] == now - 1:
      rank += _RUNNING
    is_free = last_use[slot] < 0 or last_use[slot] == now
    ranks[slot] = np.iinfo(np.int64).max if is_free else rank


@numba.njit(nogil=True, cache=True)
def _place(ids, slot_of, capacity, out):
  for i in range(ids.size):
    out[i] = slot_of[ids[i]] if ids[i] < slot_of.size else capacity


@dataclasses.dataclass
class Cache:
  """The places of some tables, whose rows have the same ids."""

  names: tuple[str, ...]  # of the tables, at most eight
  num_rows: int
  capacity: int  # slots
  policy: str = 'lfu'

  def __post_init__(self) -> None:
    self.slot_of = np.full(self.num_rows, self.capacity, np.int32)
    self.id_of = np.full(self.capacity, -1, np.int32)
    # Of slots: the step that needs them next; tables that have a row there;
    # the stretch that used them last, and for which tables; and how many did.
    self._next_use = np.full(self.capacity, _NEVER, np.int32)
    self._held = np.zeros(self.capacity, np.uint8)
    self._used = np.zeros(self.capacity, np.uint8)
    self._last_use = np.full(self.capacity, -1, np.int32)
    self._uses = np.zeros(self.capacity, np.int32)
    self._free = self.capacity  # slots from here on are in use
    self._now = 0  # stretches so far
    self._numbers = np.full(self.num_rows, -1, np.int32)  # of rows, the last
    self._num_foreseen = 0  # steps
    self._steps = [_no_steps(0, 0)]  # the last ones, and others not yet taken
    self._num_taken = 0  # of the first of these
    # Of the stretch before: the number of its first row, and how many it uses.
    self._running = _NEVER, 0

  def held(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Slots that have rows of a table, and the ids of these."""
    slots = np.flatnonzero(self._held & (1 << self.names.index(name)))
    return slots, self.id_of[slots]

  def places(self, ids: np.ndarray, out: np.ndarray) -> None:
    """Writes slots of ids [n] to `out`; the capacity for padding."""
    _place(ids, self.slot_of, self.capacity, out)

  def foresee(self, needed: Sequence[Sequence[np.ndarray]]) -> None:
    """Tells what steps need that come after all others.

    For each step `needed` has the ids [n] int32 that each table looks up, with
    repetitions; from `num_rows` on they are padding.
    """
    before = self._steps[-1]
    first = before.first + len(before.ids)
    if first > _MOST_NUMBERS:
      self._numbers[:], first, before = -1, 0, _no_steps(0, 0)
    most = sum(min(self.num_rows, sum(map(len, x))) for x in needed)
    steps, num = _no_steps(first, most), 0
    where = self._numbers, self.slot_of, self._next_use
    for tables in needed:
      start = num
      for i, ids in enumerate(tables):
        args = first, steps[1:5], before.later, where
        num = _find(ids, 1 << i, self._num_foreseen, start, num, *args)
      steps.ends.append(num)
      self._num_foreseen += 1
    rows = (x[:num] for x in steps[1:5])
    self._steps.append(_Steps(first, *rows, steps.ends))
    if self._num_taken == len(self._steps[0].ends):
      del self._steps[0]
      self._num_taken = 0

  def num_fitting(self, most: int, is_beside: bool = False) -> int:
    """How many of `most` steps there are slots for.

    If rows are to come beside the steps before, for the rows of these, too, or
    else for one step. Raises `TooSmall`.
    """
    steps, num_running = self._next_steps(), self._running[1]
    total, both = 0, num_running if is_beside else 0
    start = first = self._start()
    for num, stop in enumerate(steps.ends[self._num_taken :][:most]):
      earlier = steps.earlier[start:stop]
      total += np.count_nonzero(earlier < steps.first + first)
      both += np.count_nonzero(earlier < self._running[0]) if is_beside else 0
      if max(total, both) > self.capacity and num:
        return num
      if total > self.capacity:
        raise TooSmall(total)
      start = stop
    return min(most, len(steps.ends) - self._num_taken)

  def _next_steps(self):
    if len(self._steps) > 1 and self._num_taken == len(self._steps[0].ends):
      del self._steps[0]
      self._num_taken = 0
    return self._steps[0]

  def _start(self):
    return self._steps[0].ends[self._num_taken - 1] if self._num_taken else 0

  def admit(self, needed: Sequence[Sequence[np.ndarray]]) -> Moves:
    """Forgets what was foreseen; has as many steps as fit: `foresee`, `take`.

    Raises `TooSmall`.
    """
    self._steps, self._num_taken = [self._steps[-1]], 0
    self._steps[0].ends.clear()
    self._next_use[:] = _NEVER
    self.foresee(needed)
    return self.take(self.num_fitting(len(needed)))

  def take(self, num_steps: int, is_beside: bool = False) -> Moves:
    """Gives slots to the rows of the next steps, which fit."""
    steps, start = self._next_steps(), self._start()
    self._num_taken += num_steps
    ids, tables, _, later = (x[start : self._start()] for x in steps[1:5])
    self._now += 1
    new = [np.empty(len(ids), x) for x in (np.int32, np.uint8, np.int32)]
    slots = [np.empty(len(ids), x) for x in (np.int32, np.uint8)]
    needed, n = np.zeros(256, np.int64), self._now
    state = self._next_use, self._held, self._used, self._last_use, self._uses
    args = self.slot_of, state, tuple(new), tuple(slots), needed
    num_new, num_others = _use(ids, tables, later, n, *args)
    new, slots = [x[:num_new] for x in new], [x[:num_others] for x in slots]
    num_fresh = min(num_new, self._free)
    self._free -= num_fresh
    fresh = np.arange(self._free, self._free + num_fresh)
    victims = self._choose(num_new - num_fresh, is_beside)
    # Of those that run, beside which nothing may change, which are the last.
    num_late = len(victims)
    if is_beside:
      num_late = np.count_nonzero(self._last_use[victims] == n - 1)
    gone, places = self.id_of[victims], np.concatenate([fresh, victims])
    out = self._by_table(victims, self._held[victims], num_late)
    self.slot_of[gone] = self.capacity
    self.slot_of[new[0]], self.id_of[places] = places, new[0]
    self._held[places] = self._used[places] = new[1]
    self._last_use[places], self._uses[places] = n, 1
    self._next_use[places] = new[2]
    # What comes in slots in use, for tables that do not use it, is not late.
    slots, tables = (
      np.concatenate(x) for x in zip(slots, (places, new[1]), strict=True)
    )
    num_late = num_late if is_beside else len(slots)
    into = self._by_table(slots, tables, num_late)
    ids = np.concatenate([gone, new[0]])
    bits = np.arange(256)
    num_needed = {
      name: int(needed[(bits >> i) & 1 == 1].sum())
      for i, name in enumerate(self.names)
    }
    self._running = steps.first + start, needed[1:].sum()
    args = num_steps, num_needed, ids, self.slot_of[ids], out[0], into[0]
    return Moves(*args, out[1], into[1])

  def _by_table(self, slots, tables, num_late):
    """`Rows` of slots [n], the last ones and the others."""
    late, early = {}, {}
    split = len(slots) - num_late
    for i, name in enumerate(self.names):
      is_there = (tables & (1 << i)) != 0
      for part, found in ((slice(split), early), (slice(split, None), late)):
        some = slots[part][is_there[part]]
        found[name] = some, self.id_of[some]
    return late, early

  def _choose(self, num: int, is_beside: bool) -> np.ndarray:
    """[num] int64, slots whose rows have to go, those that run last."""
    if not num:
      return np.zeros(0, np.int64)
    ranks = np.empty(self.capacity, np.int64)
    args = self._next_use, self._last_use, self._uses, ranks
    _rank(self.policy != 'lru', self._now, is_beside, *args)
    if self.policy == 'lfu_opt':
      can_go = (self._last_use >= 0) & (self._last_use < self._now)
      stays = can_go & (self._uses >= _USES_THAT_STAY)
      room = self.capacity - (np.count_nonzero(~can_go) + num)
      if np.count_nonzero(stays) <= min(room, _MOST_STAY * self.capacity):
        ranks[stays] += _STAYS
    chosen = np.argpartition(ranks, num - 1)[:num]
    is_late = self._last_use[chosen] == self._now - 1
    return np.concatenate([chosen[~is_late], chosen[is_late]])
