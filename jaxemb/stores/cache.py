"""Maps rows of a large table to rows of a small one on the device, the cache.

Tables of a model whose rows have the same ids, such as input and output vectors
of words, share one map from ids to cache rows. Rows that a stretch of steps
needs (its working set) get cache rows before it runs. Eviction prefers rows
that no step needs, as far as they are foreseen, and of these the ones that were
used

  lru  longest ago,
  lfu  most seldom;

then those that are needed last (Belady 1966). A use is a stretch. Rows that it
needs stay until it has ended.

Ranking all cache rows takes long where there are millions. The order of the
first `_SPARE` of them holds until they are used, so that one ranking serves
many stretches. By lfu this delays the eviction of rows that have come since,
which costs .1 % of the rows, and saves a third to three quarters of the time.
"""

import collections
import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numba
import numpy as np

_NEVER = np.iinfo(np.int32).max  # no step that is foreseen
_MOST_NUMBERS = 1 << 30  # of rows, which then are counted from 0 again
# Columns of the state of cache rows: the step that needs them next; the stretch
# that used them last, and for which tables; how many did; and which tables have
# a row there.
_NEXT_USE, _LAST_USE, _USED, _USES, _HELD = range(5)
_NEEDED = 1 << 61  # rank of rows that a step needs
_PRIOR = 100  # stretches, whose expected uses a row comes with
_USE = 16  # what a use counts, as expected ones are fractions
_MOST_USES = 1 << 29  # that are counted; shifted by 31 they are below `_NEEDED`
LOOK_AHEAD = 64  # steps
MOST_TABLES = 8  # bits of uint8
_SPARE = 1 / 16  # of the cache rows: those that are ranked ahead
_NUM_TABLES = np.array([x.bit_count() for x in range(256)])  # by these bits


class TooSmall(Exception):
  """A step needs so many rows, more than the cache has."""


Rows = dict[str, tuple[np.ndarray, np.ndarray]]  # by table: cache rows and ids


class Moves(NamedTuple):
  """What changes before a stretch of steps."""

  num_needed: int  # different rows of the working set, of all tables
  # Rows that are evicted, then those that are fetched.
  out: Rows
  into: Rows
  # Those that may move while the stretch before runs, which does not use their
  # cache rows, but not while the one before that does.
  out_beside: Rows
  into_beside: Rows


class _Rows(NamedTuple):
  """Rows that steps need, each once for a step, step after step."""

  ids: np.ndarray  # [n] int32
  tables: np.ndarray  # [n] uint8, a bit for each table that needs the row
  earlier: np.ndarray  # [n] int32, the row's number in a step before
  later: np.ndarray  # [n] int32, the next step that needs it, or `_NEVER`


@numba.njit(nogil=True, cache=True)
def _list(ids, bit, start, num, first, rows, numbers):
  """Adds rows that a table needs in a step; returns how many there are.

  Those of the step begin at `start`; `first` is the number of the first of all,
  and `numbers` are those that rows of all ids had last. Nobody can tell which
  row comes the first time, so nothing branches by that.
  """
  row_ids, tables, earlier, _ = rows
  for id_ in ids:
    if id_ < numbers.size:
      number = np.int64(numbers[id_])
      is_new = np.int64(number < first + start)
      row_ids[num], earlier[num] = id_, number
      at = is_new * num + (1 - is_new) * (number - first)
      tables[at] = (1 - is_new) * tables[at] | bit
      numbers[id_] = first + at
      num += is_new
  return num


@numba.njit(nogil=True, cache=True)
def _link(step, start, num, first, taken, rows, cache_row_of, states):
  """Notes where a step's rows are needed before that it needs them next.

  The first `taken` of the rows are in the cache.
  """
  row_ids, _, earlier, later = rows
  for i in range(start, num):
    later[i] = _NEVER
    at = earlier[i] - first
    if at >= taken:
      later[at] = step
    else:
      cache_row = cache_row_of[row_ids[i]]
      if cache_row < len(states):
        states[cache_row, _NEXT_USE] = step


@numba.njit(nogil=True, cache=True)
def _use(ids, tables, later, now, cache_row_of, states, new, others, needed):
  """Notes that a stretch needs rows [n], each once for a step.

  Rows that are not in the cache become `new`, of which `cache_row_of` then has
  -1 - their index there. `others` are cache rows and tables that have no row
  there so far; `needed` [256] counts rows by their tables.
  Returns how many are new, and how many others.
  """
  new_ids, new_tables, new_later = new
  other_rows, other_tables = others
  num_new = num_others = 0
  for i in range(ids.size):
    cache_row = cache_row_of[ids[i]]
    if cache_row == len(states):
      new_ids[num_new], new_tables[num_new] = ids[i], tables[i]
      new_later[num_new] = later[i]
      cache_row_of[ids[i]] = -1 - num_new
      num_new += 1
    elif cache_row < 0:
      new_tables[-1 - cache_row] |= tables[i]
      new_later[-1 - cache_row] = later[i]
    else:
      known = states[cache_row]
      if known[_LAST_USE] != now:
        known[_LAST_USE], known[_USED] = now, 0
        known[_USES] = min(known[_USES] + _USE, _MOST_USES)
      known[_NEXT_USE] = later[i]
      needed[known[_USED]] -= 1
      known[_USED] |= tables[i]
      needed[known[_USED]] += 1
      missing = tables[i] & ~known[_HELD]
      if missing:
        known[_HELD] |= missing
        other_rows[num_others], other_tables[num_others] = cache_row, missing
        num_others += 1
  for i in range(num_new):
    needed[new_tables[i]] += 1
  return num_new, num_others


@numba.njit(nogil=True, cache=True)
def _rank(by_uses, first, last, states, ranks, ranked):
  """Writes ranks int64, lower ones of rows that had better be evicted.

  They are those of cache rows, written to `ranked`, whose last use is from
  `first` to `last`; returns how many there are.
  """
  num = 0
  for cache_row in range(len(states)):
    last_use = states[cache_row, _LAST_USE]
    next_use = states[cache_row, _NEXT_USE]
    if first <= last_use <= last:
      # Of equals the one that was used longest ago.
      rank = np.int64(last_use)
      if by_uses:
        rank += np.int64(states[cache_row, _USES]) << 31
      if next_use != _NEVER:
        rank = _NEEDED + _NEVER - next_use
      ranks[num], ranked[num] = rank, cache_row
      num += 1
  return num


@numba.njit(nogil=True, cache=True)
def _pick(spare, states, out):
  """Writes cache rows that no step needs or used since, in order, to `out`.

  They come of `spare` [n, 2], cache rows and when they were last used. Returns
  how many they are, and where others begin.
  """
  num = at = 0
  while num < out.size and at < len(spare):
    cache_row, used = spare[at]
    known = states[cache_row]
    if known[_LAST_USE] == used and known[_NEXT_USE] == _NEVER:
      out[num] = cache_row
      num += 1
    at += 1
  return num, at


@numba.njit(nogil=True, cache=True)
def _look_up(ids, cache_row_of, padding, out):
  for i in range(ids.size):
    out[i] = cache_row_of[ids[i]] if ids[i] < cache_row_of.size else padding


@dataclasses.dataclass
class Cache:
  """The cache rows of some tables, whose rows have the same ids."""

  names: tuple[str, ...]  # of the tables, at most `MOST_TABLES`
  num_rows: int
  capacity: int  # cache rows
  policy: str = 'lfu'
  prior: np.ndarray | None = None  # see `prior_uses`; None = all are alike
  look_ahead: int = LOOK_AHEAD  # steps behind those that may be taken

  def __post_init__(self) -> None:
    self.cache_row_of = np.full(self.num_rows, self.capacity, np.int32)
    self.id_of = np.full(self.capacity, -1, np.int32)
    self._states = np.zeros((self.capacity, 5), np.int32)
    self._states[:, _NEXT_USE], self._states[:, _LAST_USE] = _NEVER, -1
    # Room for what `_use` returns.
    size, kinds = self.capacity, (np.int32, np.uint8, np.int32)
    self._new = tuple(np.zeros(size, x) for x in kinds)
    size *= len(self.names)
    self._others = tuple(np.zeros(size, x) for x in kinds[:2])
    self._free = self.capacity  # cache rows from here on are in use
    # Cache rows that go next, and their last uses.
    self._spare = np.empty((0, 2), np.int64)
    self._now = 0  # stretches so far
    self._numbers = np.full(self.num_rows, -1, np.int32)  # of rows, the last
    # Steps whose rows are not listed.
    self._foreseen: collections.deque[Sequence[np.ndarray]] = (
      collections.deque()
    )
    # Of other steps, which were not taken: all rows, with others before them;
    # the number of the first, counted from the beginning; where these steps
    # begin; and where each of them ends.
    self._rows = _Rows(*(np.empty(0, x) for x in (*kinds, np.int32)))
    self._first, self._start = 0, 0
    self._ends: list[int] = []
    self._num_steps = 0  # listed so far
    # Of the stretch before: the number of its first row, and how many it uses.
    self._running = _NEVER, 0
    # Kernels take memory when the first is loaded: before that is measured.
    self.look_up(np.empty(0, np.int32), 0, np.empty(0, np.int32))

  @property
  def num_bytes(self) -> int:
    """Bytes of its arrays, and of what `_choose` ranks."""
    maps = self.cache_row_of, self.id_of, self._states, self._numbers
    arrays = *maps, *self._new, *self._others
    if self.prior is not None:
      arrays = *arrays, self.prior
    return sum(x.nbytes for x in arrays) + 16 * self.capacity

  def held(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns cache rows that have rows of a table, and the ids of these."""
    bit = 1 << self.names.index(name)
    cache_rows = np.flatnonzero(self._states[:, _HELD] & bit)
    return cache_rows, self.id_of[cache_rows]

  def look_up(self, ids: np.ndarray, padding: int, out: np.ndarray) -> None:
    """Writes cache rows of ids [n] to `out`; `padding` for ids of no row."""
    _look_up(ids, self.cache_row_of, padding, out=out)

  def foresee(self, needed: Sequence[Sequence[np.ndarray]]) -> None:
    """Tells what steps need that come after all others.

    For each step `needed` has the ids [n] int32 that each table looks up, with
    repetitions; from `num_rows` on they are padding.
    """
    self._foreseen.extend(needed)

  def _list_next(self):
    """Lists the rows of a step."""
    tables = self._foreseen.popleft()
    # And one that may be written and does not count.
    most = 1 + min(self.num_rows, sum(map(len, tables)))
    if self._stop() + most > len(self._rows.ids):
      self._make_room(most)
    start = num = self._stop()
    for i, ids in enumerate(tables):
      num = _list(
        ids,
        bit=1 << i,
        start=start,
        num=num,
        first=self._first,
        rows=self._rows,
        numbers=self._numbers,
      )
    _link(
      self._num_steps,
      start,
      num,
      first=self._first,
      taken=self._start,
      rows=self._rows,
      cache_row_of=self.cache_row_of,
      states=self._states,
    )
    self._ends.append(num)
    self._num_steps += 1

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
    """Returns how many of `most` steps the cache has room for.

    If rows are to move beside the steps before, it has to have room for these,
    too, or else for one step. Raises `TooSmall`.
    """
    while self._foreseen and len(self._ends) < most + self.look_ahead:
      self._list_next()
    total, both = 0, self._running[1] if is_beside else 0
    start, first = self._start, self._first + self._start
    for num, stop in enumerate(self._ends[:most]):
      earlier = self._rows.earlier[start:stop]
      total += int(np.count_nonzero(earlier < first))
      if is_beside:
        both += int(np.count_nonzero(earlier < self._running[0]))
      if max(total, both) > self.capacity and num:
        return num
      if total > self.capacity:
        raise TooSmall(total)
      start = stop
    return min(most, len(self._ends))

  def take(self, num_steps: int, is_beside: bool = False) -> Moves:
    """Gives cache rows to the rows of the next steps, which fit."""
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
      cache_row_of=self.cache_row_of,
      states=self._states,
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
    evicted, filled = self.id_of[victims], np.concatenate([fresh, victims])
    out = self._by_table(victims, self._states[victims, _HELD], num_late)
    self._fill(filled, evicted, new)
    # What comes in cache rows in use, for tables that do not use it, is not
    # late.
    cache_rows, tables = (
      np.concatenate(x) for x in zip(others, (filled, new[1]), strict=True)
    )
    num_late = num_late if is_beside else len(cache_rows)
    into = self._by_table(cache_rows, tables, num_late)
    self._running = self._first + start, needed[1:].sum()
    return Moves(
      num_needed=int(needed @ _NUM_TABLES),
      out=out[0],
      into=into[0],
      out_beside=out[1],
      into_beside=into[1],
    )

  def _fill(self, filled, evicted, new):
    """Replaces evicted ids by new ones."""
    ids, tables, later = new
    self.cache_row_of[evicted] = self.capacity
    self.cache_row_of[ids], self.id_of[filled] = filled, ids
    states = np.empty((len(filled), 5), np.int32)
    states[:, _NEXT_USE], states[:, _LAST_USE] = later, self._now
    states[:, _USED], states[:, _HELD], states[:, _USES] = tables, tables, _USE
    if self.prior is not None:
      states[:, _USES] += self.prior[ids]
    self._states[filled] = states

  def _by_table(self, cache_rows, tables, num_late):
    """Returns `Rows` of cache rows [n], the last ones and the others."""
    late, early = {}, {}
    split = len(cache_rows) - num_late
    for i, name in enumerate(self.names):
      has_row = (tables & (1 << i)) != 0
      for part, rows in ((slice(split), early), (slice(split, None), late)):
        some = cache_rows[part][has_row[part]]
        rows[name] = some, self.id_of[some]
    return late, early

  def _choose(self, num: int, first: int, last: int) -> np.ndarray:
    """[num] int64, or fewer, cache rows to evict of a range of last uses."""
    if not num:
      return np.empty(0, np.int64)
    if first:
      return self._ranked(num, first, last)
    picked = self._pick(num)
    if len(picked) < num:
      more = max(num, int(_SPARE * self.capacity))
      spare = self._ranked(more, first, last)
      self._spare = np.stack([spare, self._states[spare, _LAST_USE]], 1)
      picked = self._pick(num)
      if len(picked) < num:
        # One that a step needs is evicted only if there is no other.
        self._spare, picked = self._spare[:0], spare[:num]
    return picked

  def _pick(self, num):
    out = np.empty(num, np.int64)
    size, at = _pick(self._spare, self._states, out)
    if size == num:
      self._spare = self._spare[at:]
    return out[:size]

  def _ranked(self, num, first, last):
    """[num] or fewer, those that are evicted first, in this order."""
    ranks, ranked = np.empty((2, self.capacity), np.int64)
    by_uses = self.policy != 'lru'
    size = _rank(
      by_uses, first, last, states=self._states, ranks=ranks, ranked=ranked
    )
    ranks, ranked = ranks[:size], ranked[:size]
    if num < size:
      some = np.argpartition(ranks, num)[:num]
      ranks, ranked = ranks[some], ranked[some]
    return ranked[np.argsort(ranks, kind='stable')]


def prior_uses(lookups: np.ndarray) -> np.ndarray:
  """Returns [rows] uint16, what the uses of rows begin with.

  A stretch is expected to look each row up `lookups` [rows] times.
  """
  return np.rint(-_USE * _PRIOR * np.expm1(-lookups)).astype(np.uint16)


def caches(
  vocabs: Mapping[str, int],
  capacities: Mapping[str, int],
  policy: str,
  lookups: Mapping[str, np.ndarray],
) -> list[Cache]:
  """Returns caches of tables, of which those of one vocabulary share maps.

  `lookups` [vocab] of each table are those that a stretch is expected to make.
  """
  by_vocab: dict[int, list[str]] = {}
  for name, vocab in sorted(vocabs.items()):
    by_vocab.setdefault(vocab, []).append(name)
  return [
    Cache(
      names=tuple(names[i : i + MOST_TABLES]),
      num_rows=vocab,
      capacity=capacities[names[0]],
      policy=policy,
      prior=prior_uses(
        functools.reduce(
          operator.add, [lookups[x] for x in names[i : i + MOST_TABLES]]
        )
      ),
    )
    for vocab, names in by_vocab.items()
    for i in range(0, len(names), MOST_TABLES)
  ]
