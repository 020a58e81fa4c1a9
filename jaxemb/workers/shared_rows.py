"""Rows that workers share, between a worker's device and the shards.

The protocol of HET (Miao et al. 2022). A worker's device has copies of some
rows of tables that lie in shards (`workers.shards`), in lines, which are the
rows of its cache. Of each line this module knows the clock of its row when it
was read, the updates of this worker that were not pushed, and the row without
these (`base`); the rows themselves are on the device. An update is a lookup of
a row in a step, as the clocks of HET's released code count.

  read    Before a stretch of steps, rows without a line are read, and those
          with one if others pushed more updates since than they may lack
          (`shards.Rule`). Of other machines this may be while the stretch
          before runs: what others push meanwhile comes on top.
  push    After it, rows with more updates than that go to the shards, as the
          difference to their base; and so do all that leave their lines,
          before they can be read again. With a bound of 0 every row that was
          used is pushed.
  flush   Before a checkpoint, an evaluation or an export, all are pushed.

    own clock = clock when read + own pushes since;  own updates <= bound
    clock of the shard - own clock = pushes of others since <= bound

A row is pushed before it is read: what was read holds the worker's updates, or
it still has them beside it. So nothing is added twice, unlike in HET's released
code, and a worker always reads what it wrote. What rounding takes off a
difference goes with the next one.

Workers that learn much of a row from its old value, each by itself, overshoot
together. So a part of each push is added, exp(-m / tau) after m updates of
others that the worker's copy lacked (`shards.Rule`); the copy goes back by the
rest. And a copy of a row that has had few updates may lack only one in
`stale_share` of them: they are those that change it most.

What a shard has of a row is float32, whatever the device's dtype: the row, and
the state of its optimizer. Adagrad's squares add up over workers, so that all
have the learning rates of all; of Adam's moments the shard has the last ones
that were pushed, and a staleness of s lets them be that of s updates of others.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numba
import numpy as np

from jaxemb.stores import cached, fetching
from jaxemb.strategies import policies
from jaxemb.tables import spec as spec_lib
from jaxemb.workers import remote, shards


class Pending(NamedTuple):
  """Updates of this worker that are to be pushed, sorted by shard."""

  lines: np.ndarray  # [n]
  ids: np.ndarray  # [n]
  stops: np.ndarray  # [num_shards], see `shards.by_shard`
  updates: np.ndarray  # [n] int64


class Part(NamedTuple):
  """Numbers of rows that change alike."""

  numbers: np.ndarray  # [m, columns] float32
  kind: str  # 'weighted' | 'added' | 'replaced', by a push


class Block(NamedTuple):
  """Rows that are read and changed."""

  parts: Sequence[Part]  # of rows, in the order of their columns
  at: np.ndarray  # [n] int64, which of m rows they are

  def columns(self) -> Iterator[tuple[Part, slice]]:
    """Yields parts with their columns."""
    start = 0
    for part in self.parts:
      stop = start + part.numbers.shape[1]
      yield part, slice(start, stop)
      start = stop


@numba.njit(nogil=True, cache=True)
def _settle(numbers, at, base, lines, start, deltas):
  """Moves the base of lines [n] to their rows; writes what was learned."""
  stop = start + numbers.shape[1]
  for i in range(len(lines)):
    row, old = numbers[at[i]], base[lines[i], start:stop]
    delta = deltas[i, start:stop]
    for k in range(len(row)):
      delta[k] = row[k] - old[k]
      old[k] = row[k]


@numba.njit(nogil=True, cache=True)
def _go_back(numbers, at, base, lines, weights, deltas):
  """Takes off lines [n], and their base, what was not added of deltas [n]."""
  for i in range(len(lines)):
    row, old, delta = numbers[at[i]], base[lines[i]], deltas[i]
    for k in range(len(row)):
      rest = (weights[i] - np.float32(1)) * delta[k]
      row[k] += rest
      old[k] += rest


@numba.njit(nogil=True, cache=True)
def _find_due(lines, updates, clocks, bound, share, due):
  """Writes those of lines [n] that are to be pushed; returns how many."""
  num = 0
  for line in lines:
    known = shards.updates_of(clocks[line])
    most = max(0, shards.bound_of(known, bound, share))
    due[num] = line
    num += updates[line] > most
  return num


@numba.njit(nogil=True, cache=True)
def _copy(numbers, at, start, deltas):
  """Pushes rows as they are."""
  stop = start + numbers.shape[1]
  for i in range(len(at)):
    row, delta = numbers[at[i]], deltas[i, start:stop]
    for k in range(len(row)):
      delta[k] = row[k]


@numba.njit(nogil=True, cache=True)
def _merge(numbers, at, base, lines, has_updates, new, start, adds):
  """Writes rows that were read into lines [n], and adds pending updates.

  Columns that do not add up stay as they are where updates are pending.
  """
  stop = start + numbers.shape[1]
  for i in range(len(lines)):
    row, old = numbers[at[i]], base[lines[i], start:stop]
    read = new[i, start:stop]
    if not has_updates[i]:
      for k in range(len(row)):
        row[k] = read[k]
        old[k] = read[k]
    else:
      for k in range(len(row)):
        if adds:
          row[k] += read[k] - old[k]
        old[k] = read[k]


@numba.njit(nogil=True, cache=True)
def _tally(lookups, cache_row_of, counts, lines, ids):
  """Writes lines and ids of lookups [n], each once, and counts them by line.

  Those from `cache_row_of.size` on are padding. Returns how many differ.
  """
  num = 0
  for id_ in lookups:
    if id_ < cache_row_of.size:
      line = cache_row_of[id_]
      if counts[line] == 0:
        lines[num], ids[num] = line, id_
        num += 1
      counts[line] += 1
  return num


class Copies:
  """The lines of one table on one worker; one thread at a time uses it."""

  def __init__(self, table: remote.Sharded, capacity: int, rule: shards.Rule):
    """The capacity is the number of lines."""
    self.table, self._rule = table, rule
    self._ids = np.full(capacity, -1, np.int64)
    self._clocks = np.full(capacity, shards.NEVER, np.int64)
    self._updates = np.zeros(capacity, np.int64)
    self._base = np.zeros((capacity, table.num_bytes // 4), np.float32)
    # Deltas since the last exchange, and those that it pushes.
    self._deltas, self._pushed = (np.empty_like(self._base[:0]) for _ in '01')
    self._num_deltas = 0

  def read_request(
    self, lines: np.ndarray, ids: np.ndarray, stops: np.ndarray | None = None
  ) -> remote.Request:
    """Asks for the rows of ids [n] that differ, which have or get lines [n].

    They are sorted by shard if there are `stops`.
    """
    has_line = self._ids[lines] == ids
    clocks = np.where(has_line, self._clocks[lines], shards.NEVER)
    return self.table.newer_request(ids, clocks, self._rule, stops=stops)

  def commit(
    self, lines: np.ndarray, ids: np.ndarray, newer: shards.Newer, block: Block
  ) -> None:
    """Notes rows that were read into lines [n], whose old rows were settled.

    Those of ids [n] are `newer`. The block, what the device has in the lines,
    becomes what it is to have.
    """
    has_updates = (self._ids[lines] == ids) & (self._updates[lines] > 0)
    self._ids[lines], self._clocks[lines] = ids, newer.clocks
    for part, columns in block.columns():
      _merge(
        part.numbers,
        block.at,
        base=self._base,
        lines=lines,
        has_updates=has_updates,
        new=newer.records.view(np.float32),
        start=columns.start,
        adds=part.kind != 'replaced',
      )

  def rebase(self, lines: np.ndarray, errors: np.ndarray) -> None:
    """Adds rounding errors of lines [n] that were written to their base."""
    self._base[lines] += errors

  def begin(self, lines: np.ndarray, updates: np.ndarray) -> None:
    """Steps that update lines [n], each so often, begin."""
    self._updates[lines] += updates

  def num_updates(self) -> int:
    """Updates that were not pushed."""
    return int(np.sum(self._updates))

  def due(self, lines: np.ndarray) -> Pending:
    """Takes the updates to push of lines [n], when their steps are done."""
    due = np.empty(len(lines) + 1, np.int64)
    num = _find_due(
      lines,
      updates=self._updates,
      clocks=self._clocks,
      bound=self._rule.bound,
      share=self._rule.share,
      due=due,
    )
    return self._take(due[:num])

  def all(self) -> Pending:
    """Takes all updates that were not pushed."""
    return self._take(np.flatnonzero(self._updates))

  def leave(self, lines: np.ndarray) -> Pending:
    """Takes the updates of lines [n] that other rows are to get."""
    pending = self._take(lines[self._updates[lines] > 0])
    self._ids[lines] = -1
    return pending

  def _take(self, lines):
    ids = self._ids[lines]
    order, stops = self.table.by_shard(ids)
    lines, ids = lines[order], ids[order]
    updates = self._updates[lines]
    self._updates[lines] = 0
    return Pending(lines=lines, ids=ids, stops=stops, updates=updates)

  def _room(self, num):
    """Returns room for deltas, until an exchange after the next one begins."""
    start, self._num_deltas = self._num_deltas, self._num_deltas + num
    if self._num_deltas > len(self._deltas):
      # Not anew each time, as the system takes long for pages.
      size = start + 2 * num
      self._deltas = np.empty((size, self._base.shape[1]), np.float32)
    return self._deltas[start : self._num_deltas]

  def begin_push(self) -> None:
    """Notes that all that was settled is being pushed."""
    self._deltas, self._pushed = self._pushed, self._deltas
    self._num_deltas = 0

  def settle(self, pending: Pending, block: Block) -> shards.Push:
    """Returns what to push before anything else is read.

    The block has the rows of the lines.
    """
    lines = pending.lines
    clocks = self._clocks[lines]
    self._clocks[lines] += pending.updates
    deltas = self._room(len(lines))
    for part, columns in block.columns():
      if part.kind == 'replaced':
        _copy(part.numbers, block.at, start=columns.start, deltas=deltas)
      else:
        _settle(
          part.numbers,
          block.at,
          base=self._base,
          lines=lines,
          start=columns.start,
          deltas=deltas,
        )
    return shards.Push(
      ids=pending.ids,
      deltas=deltas.view(np.uint8),
      updates=pending.updates,
      clocks=clocks,
    )

  def forget(self, lines: np.ndarray) -> None:
    """Has lines [n] read again, when they are used next."""
    self._clocks[lines] = shards.NEVER

  def are_still(self, lines: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns whether lines [n] have the rows of ids [n]."""
    return self._ids[lines] == ids

  def go_back(
    self,
    lines: np.ndarray,
    block: Block,
    weights: np.ndarray,
    deltas: np.ndarray,
  ) -> None:
    """Takes back what was not added of deltas [n, width] that were pushed.

    A weighted part was, of the columns with weights. The block has the rows of
    lines [n].
    """
    _go_back(
      block.parts[0].numbers,
      block.at,
      base=self._base,
      lines=lines,
      weights=weights,
      deltas=deltas,
    )


class FloatRows:
  """Records of float32 numbers, with optimizer state, sums over steps first."""

  dtype = 'float32'

  def __init__(self, table: cached.Cached):
    self.table, self.dim = table, table.spec.dim
    sums = table.optimizer.sums
    self._names = sorted(table.state_names, key=lambda k: (k not in sums, k))
    opt_state = table.form.opt_state
    self._shapes = [getattr(opt_state, k).shape[1:] for k in self._names]
    sizes = [int(np.prod(x)) for x in self._shapes]
    self._stops = (self.dim + np.cumsum([0, *sizes])).tolist()
    self.num_bytes = 4 * self._stops[-1]
    self.num_added = self._stops[sum(k in sums for k in self._names)]
    kinds = ['added' if k in sums else 'replaced' for k in self._names]
    self._kinds = ['weighted', *kinds]
    dtypes = [x.dtype for x in table.arrays(table.form)]
    # Whether the device has what records have, in memory of the process.
    self._is_in_place = cached.are_in_memory() and all(
      x == np.float32 for x in dtypes
    )

  def first_state(self) -> np.ndarray:
    """Returns what follows a row in its record before any update, float32."""
    empty = self.table.optimizer.init(1, self.dim)
    state = [np.asarray(getattr(empty, k)).reshape(-1) for k in self._names]
    return np.concatenate([*state, []], dtype=np.float32)

  def encode(self, block: spec_lib.RowBlock) -> np.ndarray:
    """[n, num_bytes] uint8, the records of rows."""
    return self._join(block).view(np.uint8)

  def decode(self, records: np.ndarray) -> spec_lib.RowBlock:
    """Returns the rows of records, in the table's dtype."""
    return self._split(records.view(np.float32))

  def _join(self, block):
    encoded, opt_state = block
    is_float32 = self.table.spec.dtype == 'float32'
    rows = encoded.data if is_float32 else block.rows
    state = [opt_state[k].reshape(len(rows), -1) for k in self._names]
    return np.concatenate([rows, *state], 1, dtype=np.float32)

  def _split(self, floats):
    rows, *state = np.split(floats, self._stops[:-1], 1)
    opt_state = {
      k: x.reshape(len(floats), *shape)
      for k, x, shape in zip(self._names, state, self._shapes, strict=True)
    }
    encoded = spec_lib.encode_rows(rows, self.table.spec.dtype)
    return spec_lib.RowBlock(encoded, opt_state)

  def read(self, state: spec_lib.TableState, lines: np.ndarray) -> Block:
    """Returns the rows that the device has in lines [n], n > 0.

    They are its memory itself if that has float32 and is of the process.
    """
    if self._is_in_place:
      vectors, *views = self.table.views(state)
      views = dict(zip(sorted(self._names), views, strict=True))
      arrays = [vectors, *(views[k] for k in self._names)]
      return self._block([x.view(np.float32) for x in arrays], lines)
    rows = self._join(self.table.row_block(self.table.take(state, lines)))
    arrays = np.split(rows, self._stops[:-1], 1)
    arrays = list(map(np.ascontiguousarray, arrays))
    return self._block(arrays, np.arange(len(rows)))

  def _block(self, arrays, at):
    pairs = zip(arrays, self._kinds, strict=True)
    return Block([Part(x, kind) for x, kind in pairs], at)

  def write(
    self, state: spec_lib.TableState, lines: np.ndarray, block: Block
  ) -> tuple[spec_lib.TableState, np.ndarray | None]:
    """Writes back a block that was changed; returns what rounding added."""
    if self._is_in_place:
      return state, None
    floats = np.concatenate([x.numbers for x in block.parts], 1)
    rows = self._split(floats)
    arrays = self.table.arrays_of(rows)
    if cached.are_in_memory():
      for view, new in zip(self.table.views(state), arrays, strict=True):
        new = np.ascontiguousarray(new).reshape(len(lines), -1)
        view[lines] = new.view(np.uint8)
    else:
      state = self.table.put(state, lines, arrays)
    if self.table.spec.dtype == 'float32':
      return state, None
    errors = np.zeros_like(floats)
    errors[:, : self.dim] = rows.rows - floats[:, : self.dim]
    return state, errors


class Used(NamedTuple):
  """Rows of a table that a stretch uses."""

  lines: np.ndarray  # [n] int64, sorted by shard
  ids: np.ndarray  # [n] int64
  stops: np.ndarray  # [num_shards], see `shards.by_shard`
  updates: np.ndarray  # [n] int64


class SharedRows(cached.Rows):
  """See the module."""

  adds_up = False  # whether pushes have no weights
  # Whether rows on other machines are read while the round before runs; those
  # of this machine are read, in little time, when it has ended.
  may_read_ahead = True
  reads_ahead = False

  # Of `rows_checked`, `updates_missed` by those that were not read.
  COUNTS = (
    'rows_checked',
    'rows_fetched',
    'rows_pushed',
    'rows_evicted',
    'bytes_received',
    'bytes_sent',
    'updates_missed',
    'updates_pushed',
  )

  def __init__(
    self,
    trainable: Any,
    make_table: Callable[..., remote.Sharded],
    staleness: int,
    num_workers: int,
    memory_lookups: float,
  ):
    """`make_table` makes a table, as of `remote.Cluster.table`.

    Its arguments are those of `cached.Rows`, and how many numbers add up.
    `staleness` is in updates of a row; `memory_lookups` are those after which a
    row has forgotten what it was.
    """
    tables = trainable.tables
    layouts = {k: FloatRows(x) for k, x in tables.items()}

    def make_store(name, *args):
      return make_table(name, *args, layouts[name].num_added)

    super().__init__(tables, make_store, layouts)
    self._num_workers = num_workers
    self._memory_lookups = memory_lookups
    self.adds_up |= num_workers == 1
    self._rules = {
      k: shards.Rule(
        staleness,
        share=trainable.model.stale_share,
        memory=self._memory(tables[k].spec),
        num_weighted=x.dim,
      )
      for k, x in layouts.items()
    }
    self.join(lambda *_: None, waits=False)  # until there are others
    self.waited_secs = 0.0  # for other workers
    self.most_missed = 0  # since it was last set to 0
    # Flushes so far: what was read before the last one lacks what it pushed.
    self._flushes = 0
    self._copies, self._last_lines, self._tallies = {}, {}, {}
    # What was taken from the device, to be pushed when something is read.
    self._pushes: list[tuple[str, Pending, shards.Push]] = []
    # Of these, those of which a part was added, and which part.
    self._rests: list[tuple[str, Pending, shards.Push, np.ndarray]] = []

  def init(self, keys: Mapping[str, jax.Array]) -> None:
    """See the base; where others have begun, with their rows."""
    super().init(keys)
    for name, table in self.tables.items():
      self._copies[name] = Copies(
        self.stores[name],
        table.num_rows,
        rule=self._rules[name],
      )
      self._tallies[name] = np.zeros(table.num_rows, np.int64)
      self._last_lines[name] = np.zeros(0, np.int64)
    is_near = all(x.is_near() for x in self.stores.values())
    self.reads_ahead = self.may_read_ahead and not is_near

  def _new_store(self, name, key):
    """See the base; shards make rows, too."""
    table, layout = self.tables[name], self.layouts[name]
    bits = np.asarray(jax.random.key_data(key)).reshape(-1)[:2].tolist()
    make = shards.FirstRecords(
      key=tuple(bits),
      dim=layout.dim,
      scale=float(table.spec.init_scale),
      rest=layout.first_state(),
    )
    return self._make_store(name, table.spec.vocab, layout.num_bytes, make)

  def _memory(self, spec):
    """Returns `memory` of a table's `shards.Rule`."""
    # Workers move a running average most of the way: sums would overshoot.
    if spec.memory_lookups is not None:
      return float(spec.memory_lookups)
    return 0.0 if self.adds_up else float(self._memory_lookups)

  @property
  def copy_bytes(self) -> int:
    """See the base."""
    tables = self.tables.items()  # an id, a clock and updates of each row
    return sum(x.num_rows * (24 + self.layouts[k].num_bytes) for k, x in tables)

  def weight(self, lookups: int) -> float:
    """Returns the part of what dense parameters learn that is added.

    As if each of so many lookups had been of them; see `policies.Bounded`.
    """
    times = np.array([lookups * self._num_workers / self._memory_lookups])
    (weight,) = policies.parallel_weights(times, self._num_workers, np)
    return float(weight)

  def num_updates(self) -> int:
    """Updates of rows on the device that no shard has."""
    taken = sum(int(np.sum(x.updates)) for *_, x in self._pushes)
    return taken + sum(x.num_updates() for x in self._copies.values())

  # Rounds, which are stretches of steps.

  def join(self, ask: Callable[..., Any], waits: bool) -> None:
    """Has the coordinator say when a round may begin, if that `waits`.

    `ask` calls a method of the coordinator.
    """
    self.ask, self._waits = ask, waits

  def wait(self, *args: Any) -> Any:
    """Asks for what may depend on other workers, and times it."""
    start = time.monotonic()
    answer = self.ask(*args)
    self.waited_secs += time.monotonic() - start
    return answer

  def start(self, index: int) -> None:
    """Begins a dispatch, the `index`-th of its part of the data."""

  def _begin_round(self, stretch: fetching.Stretch) -> tuple[int, float]:
    """Returns steps and examples as `swap` does, once a round may begin."""
    if self._waits:
      self.wait('begin')
    return stretch.block.count, stretch.examples

  # Between stretches.

  def fetch(
    self, stretch: fetching.Stretch
  ) -> tuple[int, dict[str, Used], dict[str, list[shards.Newer]] | None]:
    """See the base."""
    flushes, used = self._flushes, self._used(stretch)
    newer = self._exchange(used) if self.reads_ahead else None
    return flushes, used, newer

  def _used(self, stretch):
    lookups, used = stretch.lookups, {}
    for cache in stretch.caches:
      for name in cache.names:
        ids, tally = lookups[name].reshape(-1), self._tallies[name]
        lines, found = np.empty((2, min(len(ids), len(tally))), np.int64)
        num = _tally(
          ids, cache.cache_row_of, counts=tally, lines=lines, ids=found
        )
        order, stops = self.stores[name].by_shard(found[:num])
        lines, ids = lines[order], found[order]
        used[name] = Used(lines, ids, stops=stops, updates=tally[lines])
        tally[lines] = 0
    return used

  def _exchange(
    self, used: Mapping[str, Used]
  ) -> dict[str, list[shards.Newer]]:
    """Pushes what was settled, and reads; in one call for each shard."""
    pushes, self._pushes = self._pushes, []
    if pushes:
      for copies in self._copies.values():
        copies.begin_push()
    requests = [
      self.stores[k].add_request(push, self._rules[k], x.stops)
      for k, x, push in pushes
    ]
    reads = {
      k: self._copies[k].read_request(x.lines, x.ids, x.stops)
      for k, x in used.items()
    }
    call = next(iter(self.stores.values())).call
    results = call([*requests, *reads.values()])
    added, results = results[: len(requests)], results[len(requests) :]
    for push, request, result in zip(pushes, requests, added, strict=True):
      self._count_push(push, request, result)
    newer = {}
    for (name, request), result in zip(reads.items(), results, strict=True):
      new = list(self.stores[name].newer_of_shards(request, result))
      newer[name] = new
      most = max(x.most_missed for x in new)
      self.most_missed = max(self.most_missed, most)
      num, num_new = len(used[name].ids), sum(len(x.at) for x in new)
      # Those that nobody has changed are made here.
      num_read = sum(int(np.count_nonzero(x.is_known)) for x in new)
      self.counts.add(
        rows_checked=num,
        rows_fetched=num_read,
        # An id and a clock for each; where a row was, and its clock, too.
        bytes_sent=16 * num,
        bytes_received=num_new * 17 + num_read * self.layouts[name].num_bytes,
        updates_missed=sum(x.missed for x in new),
      )
    return newer

  def _count_push(self, settled, request, result):
    """Counts a push, and notes of which rows a part was added."""
    name, pending, push = settled
    num, size = len(push.ids), self.layouts[name].num_bytes
    self.counts.add(
      rows_pushed=num,
      updates_pushed=int(np.sum(push.updates)),
      bytes_sent=num * (24 + size),
    )
    weights = self.stores[name].weights(request, result)
    if weights is not None:
      self._rests.append((name, pending, push, weights))

  def _go_back(self, tables):
    """Takes off the device what was not added, before rows are read."""
    for name, pending, push, weights in self._rests:
      copies, layout = self._copies[name], self.layouts[name]
      is_here = copies.are_still(pending.lines, pending.ids)
      # Nobody knows which part was added.
      copies.forget(pending.lines[is_here & np.isnan(weights)])
      at = np.flatnonzero(is_here & (weights < 1))
      if len(at):
        lines = pending.lines[at]
        block = layout.read(tables[name], lines)
        deltas = push.deltas.view(np.float32)[at]
        copies.go_back(lines, block, weights=weights[at], deltas=deltas)
        self._write(name, tables, lines, block=block)
    self._rests.clear()

  def swap(
    self, tables: cached.Tables, stretch: fetching.Stretch, fetched: tuple
  ) -> tuple[cached.Tables, int, float]:
    """See the base."""
    start, waited = time.monotonic(), self.waited_secs
    tables = dict(tables)
    for moves in stretch.moves:
      for name, (lines, _) in moves.out.items():
        self.counts.add(rows_evicted=len(lines))
        self._settle(name, tables, self._copies[name].leave(lines))
    begun = self._round(tables, stretch, fetched)
    for name, used in fetched[1].items():
      self._copies[name].begin(used.lines, used.updates)
      self._last_lines[name] = used.lines
    secs = time.monotonic() - start - (self.waited_secs - waited)
    self.counts.add(fetch_secs=secs, fetch_waited_secs=secs)
    return tables, *begun

  def _round(self, tables, stretch, fetched):
    """Puts rows that were read on the device, and begins a round."""
    flushes, used, newer = fetched
    if not self.reads_ahead:
      self._settle_due(tables)
      if self._waits:  # others wait for what this worker has learned
        self._exchange({})
      begun = self._begin_round(stretch)
      self._commit(tables, used, self._exchange(used))
      return begun
    if flushes != self._flushes:
      newer = self._exchange(used)
    self._commit(tables, used, newer)
    self._settle_due(tables)
    return self._begin_round(stretch)

  def _commit(self, tables, used, newer):
    self._go_back(tables)
    for name, of_shards in newer.items():
      for new in of_shards:
        if not len(new.at):
          continue
        lines, ids = used[name].lines[new.at], used[name].ids[new.at]
        block = self.layouts[name].read(tables[name], lines)
        self._copies[name].commit(lines, ids, new, block)
        self._write(name, tables, lines, block=block)

  def _write(self, name, tables, lines, block):
    tables[name], errors = self.layouts[name].write(tables[name], lines, block)
    if errors is not None:
      self._copies[name].rebase(lines, errors)

  def _settle_due(self, tables):
    for name, lines in self._last_lines.items():
      self._settle(name, tables, self._copies[name].due(lines))

  def _settle(self, name, tables, pending):
    """Takes updates off the device, to be pushed with the next read."""
    if len(pending.lines):
      block = self.layouts[name].read(tables[name], pending.lines)
      push = self._copies[name].settle(pending, block)
      self._pushes.append((name, pending, push))

  def flush(self, tables: cached.Tables, held: cached.Held) -> cached.Tables:
    """See the base."""
    tables = dict(tables)
    for name, copies in self._copies.items():
      self._settle(name, tables, copies.all())
    self._exchange({})
    self._go_back(tables)
    self._flushes += 1
    return tables

  def check(self) -> None:
    """Calls every shard, which notices those that were restarted."""
    for table in self.stores.values():
      table.check()
