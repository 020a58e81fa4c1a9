"""Which rows of a large table have a place in a small one on the device.

The small table has slots; tables of a model whose rows have the same ids, such
as input and output vectors of words, share the places, so that one map from ids
to slots serves them all. Rows that a stretch of steps needs (its working set)
are given slots before it runs. Those that have to go are rows that no step
needs, as far as they are foreseen, and of these the ones that were used

  lru  longest ago,
  lfu  most seldom;

then those that are needed last (Belady 1966). A use is a stretch. Rows that it
needs stay until it has ended.

Ranking all slots takes long where there are millions. By lru an order of slots
holds until they are used, so that one ranking serves many stretches.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np

POLICIES = 'lru', 'lfu'
_NEVER = np.iinfo(np.int32).max  # no step that is foreseen
_MOST_NUMBERS = 1 << 30  # of rows, which then are counted from 0 again
# Of slots: the step that needs them next; the stretch that used them last, and
# for which tables; how many did; and which tables have a row there.
_NEXT_USE, _LAST_USE, _USED, _USES, _HELD = range(5)
_NEEDED = 1 << 61  # rank of rows that a step needs
_LOOK_AHEAD = 16  # steps
_SPARE = 1 / 8  # of the slots: those that are ranked ahead, by lru


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


class _Rows(NamedTuple):
  """Rows that steps need, each once for a step, step after step."""

  ids: np.ndarray  # [n] int32
  tables: np.ndarray  # [n] uint8, a bit for each table that needs the row
  earlier: np.ndarray  # [n] int32, the row's number in a step before
  later: np.ndarray  # [n] int32, the next step that needs it, or `_NEVER`


@numba.njit(nogil=True, cache=True)
def _find(ids, bit, start, num, first, rows, numbers):
  """Adds rows that a table needs in a step; returns how many there are.

  Those of the step begin at `start`; `first` is the number of the first of all,
  and `numbers` are those that rows of all ids had last. Nobody can tell which
  row comes the first time, so nothing branches by that.
  """
  found, tables, earlier, _ = rows
  for id_ in ids:
    if id_ < numbers.size:
      number = np.int64(numbers[id_])
      is_new = np.int64(number < first + start)
      found[num], earlier[num] = id_, number
      place = is_new * num + (1 - is_new) * (number - first)
      tables[place] = (1 - is_new) * tables[place] | bit
      numbers[id_] = first + place
      num += is_new
  return num


@numba.njit(nogil=True, cache=True)
def _link(step, start, num, first, taken, rows, slot_of, slots):
  """Notes where a step's rows are needed before that it needs them next.

  The first `taken` of the rows are in slots.
  """
  found, _, earlier, later = rows
  for i in range(start, num):
    later[i] = _NEVER
    place = earlier[i] - first
    if place >= taken:
      later[place] = step
    else:
      slot = slot_of[found[i]]
      if slot < len(slots):
        slots[slot, _NEXT_USE] = step


@numba.njit(nogil=True, cache=True)
def _use(ids, tables, later, now, slot_of, slots, new, others, needed):
  """Notes that a stretch needs rows [n], each once for a step.

  Rows without a slot become `new`, of which `slot_of` then has -1 - their
  place there. `others` are slots and tables of rows that have a slot, where
  these tables have no row so far; `needed` [256] counts rows by their tables.
  Returns how many are new, and how many others.
  """
  new_ids, new_tables, new_later = new
  other_slots, other_tables = others
  num_new = num_others = 0
  for i in range(ids.size):
    slot = slot_of[ids[i]]
    if slot == len(slots):
      new_ids[num_new], new_tables[num_new] = ids[i], tables[i]
      new_later[num_new] = later[i]
      slot_of[ids[i]] = -1 - num_new
      num_new += 1
    elif slot < 0:
      new_tables[-1 - slot] |= tables[i]
      new_later[-1 - slot] = later[i]
    else:
      known = slots[slot]
      if known[_LAST_USE] != now:
        known[_LAST_USE], known[_USED] = now, 0
        known[_USES] += 1
      known[_NEXT_USE] = later[i]
      needed[known[_USED]] -= 1
      known[_USED] |= tables[i]
      needed[known[_USED]] += 1
      missing = tables[i] & ~known[_HELD]
      if missing:
        known[_HELD] |= missing
        other_slots[num_others], other_tables[num_others] = slot, missing
        num_others += 1
  for i in range(num_new):
    needed[new_tables[i]] += 1
  return num_new, num_others


@numba.njit(nogil=True, cache=True)
def _rank(by_uses, first, last, slots, ranks, ranked):
  """Writes ranks [slots] int64, lower ones of rows that had better go.

  They are those of slots, written to `ranked`, whose last use is from `first`
  to `last`; returns how many there are.
  """
  num = 0
  for slot in range(len(slots)):
    last_use, next_use = slots[slot, _LAST_USE], slots[slot, _NEXT_USE]
    if first <= last_use <= last:
      # Of equals the one that was used longest ago.
      rank = np.int64(last_use)
      if by_uses:
        rank += np.int64(slots[slot, _USES]) << 31
      if next_use != _NEVER:
        rank = _NEEDED + _NEVER - next_use
      ranks[num], ranked[num] = rank, slot
      num += 1
  return num


@numba.njit(nogil=True, cache=True)
def _pick(spare, used, at, slots, out):
  """Writes slots that no step needs or used since, in order, to `out`.

  They come of `spare`, from `at` on, which were last `used` then. Returns how
  many they are, and where others begin.
  """
  num = 0
  while num < out.size and at < spare.size:
    known = slots[spare[at]]
    if known[_LAST_USE] == used[at] and known[_NEXT_USE] == _NEVER:
      out[num] = spare[at]
      num += 1
    at += 1
  return num, at


@numba.njit(nogil=True, cache=True)
def _place(ids, slot_of, padding, out):
  for i in range(ids.size):
    out[i] = slot_of[ids[i]] if ids[i] < slot_of.size else padding


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
    self._slots = np.zeros((self.capacity, 5), np.int32)
    self._slots[:, _NEXT_USE], self._slots[:, _LAST_USE] = _NEVER, -1
    # Room for what `_use` finds.
    size, kinds = self.capacity, (np.int32, np.uint8, np.int32)
    self._new = tuple(np.zeros(size, x) for x in kinds)
    size *= len(self.names)
    self._others = tuple(np.zeros(size, x) for x in kinds[:2])
    self._free = self.capacity  # slots from here on are in use
    # By lru, slots that go next, their last uses, and how many have gone.
    self._spare, self._spare_used = np.empty((2, 0), np.int64)
    self._spare_at = 0
    self._now = 0  # stretches so far
    self._numbers = np.full(self.num_rows, -1, np.int32)  # of rows, the last
    self._foreseen = collections.deque()  # steps whose rows are to be found
    # Of other steps, which were not taken: all rows, with others before them;
    # the number of the first, counted from the beginning; where these steps
    # begin; and where each of them ends.
    self._rows = _Rows(*(np.empty(0, x) for x in (*kinds, np.int32)))
    self._first, self._start, self._ends = 0, 0, []
    self._num_found = 0  # steps so far
    # Of the stretch before: the number of its first row, and how many it uses.
    self._running = _NEVER, 0
    # Kernels take memory when the first is loaded: before that is measured.
    self.places(np.empty(0, np.int32), 0, np.empty(0, np.int32))

  @property
  def num_bytes(self) -> int:
    """Of its arrays, and of what `_choose` ranks."""
    own = self.slot_of, self.id_of, self._slots, self._numbers
    arrays = *own, *self._new, *self._others
    return sum(x.nbytes for x in arrays) + 16 * self.capacity

  def held(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Slots that have rows of a table, and the ids of these."""
    bit = 1 << self.names.index(name)
    slots = np.flatnonzero(self._slots[:, _HELD] & bit)
    return slots, self.id_of[slots]

  def places(self, ids: np.ndarray, padding: int, out: np.ndarray) -> None:
    """Writes slots of ids [n] to `out`; `padding` for ids of no row."""
    _place(ids, self.slot_of, padding, out=out)

  def foresee(self, needed: Sequence[Sequence[np.ndarray]]) -> None:
    """Tells what steps need that come after all others.

    For each step `needed` has the ids [n] int32 that each table looks up, with
    repetitions; from `num_rows` on they are padding.
    """
    self._foreseen.extend(needed)

  def _find_next(self):
    """Finds the rows of a step."""
    tables = self._foreseen.popleft()
    # And one that may be written and does not count.
    most = 1 + min(self.num_rows, sum(map(len, tables)))
    if self._stop() + most > len(self._rows.ids):
      self._make_room(most)
    start = num = self._stop()
    for i, ids in enumerate(tables):
      num = _find(
        ids,
        bit=1 << i,
        start=start,
        num=num,
        first=self._first,
        rows=self._rows,
        numbers=self._numbers,
      )
    _link(
      self._num_found,
      start,
      num,
      first=self._first,
      taken=self._start,
      rows=self._rows,
      slot_of=self.slot_of,
      slots=self._slots,
    )
    self._ends.append(num)
    self._num_found += 1

  def _stop(self):
    return self._ends[-1] if self._ends else self._start

  def _make_room(self, most):
    """Drops rows that are taken, and has room for `most` more."""
    start, stop = self._start, self._stop()
    size = max(len(self._rows.ids), 2 * (stop - start + most))
    rows = _Rows(*(np.empty(size, x.dtype) for x in self._rows))
    for old, new in zip(self._rows, rows, strict=True):
      new[: stop - start] = old[start:stop]
    self._rows, self._start = rows, 0
    self._ends = [x - start for x in self._ends]
    self._first += start
    if self._first > _MOST_NUMBERS:
      for numbers in (self._numbers, rows.earlier):
        numbers[:] = np.maximum(numbers - self._first, -1)
      self._running = self._running[0] - self._first, self._running[1]
      self._first = 0

  def num_fitting(self, most: int, is_beside: bool = False) -> int:
    """How many of `most` steps there are slots for.

    If rows are to come beside the steps before, for the rows of these, too, or
    else for one step. Raises `TooSmall`.
    """
    while self._foreseen and len(self._ends) < most + _LOOK_AHEAD:
      self._find_next()
    total, both = 0, self._running[1] if is_beside else 0
    start, first = self._start, self._first + self._start
    for num, stop in enumerate(self._ends[:most]):
      earlier = self._rows.earlier[start:stop]
      total += np.count_nonzero(earlier < first)
      both += np.count_nonzero(earlier < self._running[0]) if is_beside else 0
      if max(total, both) > self.capacity and num:
        return num
      if total > self.capacity:
        raise TooSmall(total)
      start = stop
    return min(most, len(self._ends))

  def admit(self, needed: Sequence[Sequence[np.ndarray]]) -> Moves:
    """Forgets what was foreseen; `foresee` and `take` for as many as fit.

    Raises `TooSmall`.
    """
    self._foreseen.clear()
    self._start = self._stop()
    self._ends.clear()
    self._slots[:, _NEXT_USE] = _NEVER
    self.foresee(needed)
    return self.take(self.num_fitting(len(needed)))

  def take(self, num_steps: int, is_beside: bool = False) -> Moves:
    """Gives slots to the rows of the next steps, which fit."""
    start = stop = self._start
    if num_steps:
      stop = self._start = self._ends[num_steps - 1]
      del self._ends[:num_steps]
    ids, tables, _, later = (x[start:stop] for x in self._rows)
    self._now += 1
    needed, n = np.zeros(256, np.int64), self._now
    num_new, num_others = _use(
      ids,
      tables,
      later,
      now=n,
      slot_of=self.slot_of,
      slots=self._slots,
      new=self._new,
      others=self._others,
      needed=needed,
    )
    new = [x[:num_new] for x in self._new]
    others = [x[:num_others] for x in self._others]
    num_fresh = min(num_new, self._free)
    self._free -= num_fresh
    fresh = np.arange(self._free, self._free + num_fresh)
    victims = self._choose(num_new - num_fresh, 0, n - 1 - is_beside)
    # Then of those that run, beside which nothing may change.
    num_late = num_new - num_fresh - (len(victims) if is_beside else 0)
    if is_beside and num_late:
      late = self._choose(num_late, n - 1, n - 1)
      victims = np.concatenate([victims, late])
    gone, places = self.id_of[victims], np.concatenate([fresh, victims])
    out = self._by_table(victims, self._slots[victims, _HELD], num_late)
    self.slot_of[gone] = self.capacity
    self.slot_of[new[0]], self.id_of[places] = places, new[0]
    self._slots[places, :5] = np.stack(
      [new[2], 0 * new[2] + n, new[1], 0 * new[2] + 1, new[1]], 1
    )
    # What comes in slots in use, for tables that do not use it, is not late.
    slots, tables = (
      np.concatenate(x) for x in zip(others, (places, new[1]), strict=True)
    )
    num_late = num_late if is_beside else len(slots)
    into = self._by_table(slots, tables, num_late)
    ids = np.concatenate([gone, new[0]])
    bits = np.arange(256)
    num_needed = {
      name: int(needed[(bits >> i) & 1 == 1].sum())
      for i, name in enumerate(self.names)
    }
    self._running = self._first + start, needed[1:].sum()
    return Moves(
      num_steps=num_steps,
      num_needed=num_needed,
      ids=ids,
      slots=self.slot_of[ids],
      out=out[0],
      into=into[0],
      out_beside=out[1],
      into_beside=into[1],
    )

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

  def _choose(self, num: int, first: int, last: int) -> np.ndarray:
    """[num] int64, or fewer, slots that have to go of a range of last uses."""
    if not num:
      return np.empty(0, np.int64)
    if self.policy != 'lru' or first:
      return self._ranked(num, first, last)
    picked = self._pick(num)
    if len(picked) < num:
      more = max(num, int(_SPARE * self.capacity))
      spare = self._ranked(more, first, last)
      # One that a step needs goes only if there is no other.
      self._spare, self._spare_at = spare, 0
      self._spare_used = self._slots[spare, _LAST_USE].astype(np.int64)
      picked = self._pick(num)
      if len(picked) < num:
        self._spare_at = len(spare)
        return spare[:num]
    return picked

  def _pick(self, num):
    out = np.empty(num, np.int64)
    size, at = _pick(
      self._spare, self._spare_used, self._spare_at, self._slots, out
    )
    if size == num:
      self._spare_at = at
    return out[:size]

  def _ranked(self, num, first, last):
    """[num] or fewer, those that go first, in this order."""
    ranks, ranked = np.empty((2, self.capacity), np.int64)
    by_uses = self.policy != 'lru'
    size = _rank(
      by_uses, first, last, slots=self._slots, ranks=ranks, ranked=ranked
    )
    ranks, ranked = ranks[:size], ranked[:size]
    if num < size:
      some = np.argpartition(ranks, num)[:num]
      ranks, ranked = ranks[some], ranked[some]
    if by_uses:
      return ranked
    return ranked[np.argsort(ranks, kind='stable')]
