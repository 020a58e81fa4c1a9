"""Rows that workers share, between a worker's device and the shards.

The protocol of HET (Miao et al. 2022). A worker's device has copies of some
rows of tables that lie in shards (`workers.shards`), in lines, which are the
rows of its cache. Of each line this module knows the clock of its row when it
was read, the updates of this worker that were not pushed, and the row without
these (`base`); the rows themselves are on the device. An update is a lookup of
a row in a step, as the clocks of HET's released code count.

  read    Before a stretch of steps, rows without a line are read, and those
          with one if others pushed more updates since than they may lack
          (`staleness.Rule`). Of other machines this may be while the stretch
          before runs: what others push meanwhile comes on top.
  push    After it, rows with more updates than that go to the shards, as the
          difference to their base; and so do all that leave their lines,
          before they can be read again. With a bound of 0 every row that was
          used is pushed.
  flush   Before a checkpoint, an evaluation or an export, all are pushed.

A stretch is a round. The first ones have one step; they grow with what was
trained. With shards and device in the memory of one machine, a push also reads
its rows (`workers.in_place`), whose own clocks are then those of the shard.

    own clock = clock when read + own pushes since;  own updates <= bound
    clock of the shard - own clock = pushes of others since <= bound

A row is pushed before it is read: what was read holds the worker's updates, or
it still has them beside it. So nothing is added twice, unlike in HET's released
code, and a worker always reads what it wrote. What rounding takes off a
difference goes with the next one.

Workers that learn much of a row from its old value, each by itself, overshoot
together. So a part of each push is added, exp(-m / tau) after m updates of
others that the worker's copy lacked (`staleness.Rule`); the copy goes back by
the rest, or is read. And a copy of a row that has had few updates may lack only
one in `stale_share` of them: they are those that change it most.

What a shard has of a row is float32, whatever the device's dtype: the row, and
the state of its optimizer. Adagrad's squares add up over workers, so that all
have the learning rates of all; of Adam's moments the shard has the last ones
that were pushed, and a staleness of s lets them be that of s updates of others.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numba
import numpy as np

from jaxemb.stores import cached, fetching
from jaxemb.strategies import policies
from jaxemb.tables import spec as spec_lib
from jaxemb.workers import copies as copies_lib
from jaxemb.workers import links, remote, shards, staleness


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
    self.is_in_place = cached.are_in_memory() and all(
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

  def read(
    self, state: spec_lib.TableState, lines: np.ndarray
  ) -> copies_lib.Block:
    """Returns the rows that the device has in lines [n], n > 0.

    They are its memory itself if that has float32 and is of the process.
    """
    if self.is_in_place:
      return self.whole(state)._replace(at=lines)
    rows = self._join(self.table.row_block(self.table.take(state, lines)))
    arrays = np.split(rows, self._stops[:-1], 1)
    arrays = list(map(np.ascontiguousarray, arrays))
    return self._block(arrays, np.arange(len(rows)))

  def whole(self, state: spec_lib.TableState) -> copies_lib.Block:
    """Returns the memory of the device, with all lines, if it is in place."""
    vectors, *views = self.table.views(state)
    by_name = dict(zip(sorted(self._names), views, strict=True))
    arrays = [vectors, *(by_name[k] for k in self._names)]
    return self._block([x.view(np.float32) for x in arrays], np.zeros(0, int))

  def _block(self, arrays, at):
    pairs = zip(arrays, self._kinds, strict=True)
    return copies_lib.Block([copies_lib.Part(x, kind) for x, kind in pairs], at)

  def write(
    self, state: spec_lib.TableState, lines: np.ndarray, block: copies_lib.Block
  ) -> tuple[spec_lib.TableState, np.ndarray | None]:
    """Writes back a block that was changed; returns what rounding added."""
    if self.is_in_place:
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


# Steps after which rounds are one step longer.
_STEPS_A_STEP = 64


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
    bound: int,
    num_workers: int,
    memory_lookups: float,
  ):
    """`make_table` makes a table, as of `remote.Cluster.table`.

    Its arguments are those of `cached.Rows`, and how many numbers add up.
    The bound is of `staleness.Rule`; `memory_lookups` are those after which a
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
      k: staleness.Rule(
        bound,
        share=trainable.model.stale_share,
        memory=self._memory(tables[k].spec),
        num_weighted=x.dim,
      )
      for k, x in layouts.items()
    }
    self.join(lambda *_: None, waits=False)  # until there are others
    self.waited_secs = 0.0  # for other workers
    self.most_missed = 0  # since it was last set to 0
    self._steps_before, self._is_in_place = 0, False
    # Flushes so far: what was read before the last one lacks what it pushed.
    self._flushes = 0
    self._copies: dict[str, copies_lib.Copies] = {}
    self._last_lines: dict[str, np.ndarray] = {}
    self._tallies: dict[str, np.ndarray] = {}
    # What was taken from the device, to be pushed when something is read.
    self._pushes: list[tuple[str, copies_lib.Pending, shards.Push]] = []
    # Of these, those of which a part was added, and which part.
    self._rests: list[
      tuple[str, copies_lib.Pending, shards.Push, np.ndarray]
    ] = []

  def init(self, keys: Mapping[str, jax.Array]) -> None:
    """See the base; where others have begun, with their rows."""
    super().init(keys)
    for name, table in self.tables.items():
      self._copies[name] = copies_lib.Copies(
        self.stores[name],
        table.num_rows,
        rule=self._rules[name],
      )
      self._tallies[name] = np.zeros(table.num_rows, np.int64)
      self._last_lines[name] = np.zeros(0, np.int64)
    is_near = all(x.is_near() for x in self.stores.values())
    self.reads_ahead = self.may_read_ahead and not is_near
    # Whether shards and the device are memory of this process.
    self._is_in_place = is_near and all(
      x.is_in_place for x in self.layouts.values()
    )

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
    """Returns `memory` of a table's `staleness.Rule`."""
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

  def begin_after(self, num_steps: int) -> None:
    """Has rounds be as long as after so many steps."""
    self._steps_before = num_steps

  def stretch_limit(self, num_steps: int) -> float:
    """See the base; rounds are short as long as each changes rows much."""
    return max(1, (self._steps_before + num_steps) // _STEPS_A_STEP)

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
    for (name, pending, push), request, result in zip(
      pushes, requests, added, strict=True
    ):
      self._count_pushed(name, len(push.ids), int(np.sum(push.updates)))
      weights = self.stores[name].weights(request, result)
      if weights is not None:  # of rows of which a part was added
        self._rests.append((name, pending, push, weights))
    newer = {}
    for (name, request), result in zip(reads.items(), results, strict=True):
      newer[name] = list(self.stores[name].newer_of_shards(request, result))
      self._count_newer(name, len(used[name].ids), newer[name])
    return newer

  def _count_newer(self, name, num_checked, newer):
    self._count_read(
      name,
      num_checked=num_checked,
      num_new=sum(len(x.at) for x in newer),
      # Those that nobody has changed are made here.
      num_read=sum(int(np.count_nonzero(x.is_known)) for x in newer),
      missed=sum(x.missed for x in newer),
      most_missed=max(x.most_missed for x in newer),
    )

  def _count_read(
    self, name, num_checked, num_new, num_read, missed, most_missed
  ):
    self.most_missed = max(self.most_missed, most_missed)
    self.counts.add(
      rows_checked=num_checked,
      rows_fetched=num_read,
      # An id and a clock for each; where a row was, and its clock, too.
      bytes_sent=16 * num_checked,
      bytes_received=num_new * 17 + num_read * self.layouts[name].num_bytes,
      updates_missed=missed,
    )

  def _count_pushed(self, name, num_rows, num_updates):
    self.counts.add(
      rows_pushed=num_rows,
      updates_pushed=num_updates,
      bytes_sent=num_rows * (24 + self.layouts[name].num_bytes),
    )

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
    leaving = {
      k: x for moves in stretch.moves for k, (x, _) in moves.out.items()
    }
    self.counts.add(rows_evicted=sum(map(len, leaving.values())))
    begun = self._round(tables, stretch, fetched, leaving=leaving)
    for name, used in fetched[1].items():
      self._copies[name].begin(used.lines, used.updates)
      self._last_lines[name] = used.lines
    secs = time.monotonic() - start - (self.waited_secs - waited)
    self.counts.add(fetch_secs=secs, fetch_waited_secs=secs)
    return tables, *begun

  def _round(self, tables, stretch, fetched, leaving):
    """Puts rows that were read on the device, and begins a round.

    `leaving` are lines by table which other rows are to get.
    """
    flushes, used, newer = fetched
    if not self.reads_ahead:
      self._push_due(tables, leaving)
      if self._waits:  # others wait for what this worker has learned
        self._exchange({})
      begun = self._begin_round(stretch)
      self._read(tables, used)
      return begun
    self._settle_leaving(tables, leaving)
    if flushes != self._flushes:
      newer = self._exchange(used)
    self._commit(tables, used, newer)
    self._settle_due(tables)
    return self._begin_round(stretch)

  def _push_due(self, tables, leaving):
    """Pushes what is due, at once or with the next exchange."""
    if self._is_in_place:
      with contextlib.suppress(links.NotNear):
        self._push_in_place(tables, leaving)
        return
    self._settle_leaving(tables, leaving)
    self._settle_due(tables)

  def _read(self, tables, used):
    """Reads rows, and puts them on the device."""
    if self._is_in_place and not self._pushes:
      self._go_back(tables)
      with contextlib.suppress(links.NotNear):
        self._read_in_place(tables, used)
        return
    self._commit(tables, used, self._exchange(used))

  def _push_in_place(self, tables, leaving):
    requests = {
      k: x.push_in_place(
        self.layouts[k].whole(tables[k]), self._last_lines[k], leaving[k]
      )
      for k, x in self._copies.items()
    }
    for (name, request), results in self._call(requests):
      self._copies[name].has_left(leaving[name])
      updates, num_read = map(sum, zip(*results.values(), strict=True))
      self._count_pushed(name, request.num_rows, updates)
      self.counts.add(
        rows_fetched=num_read,
        bytes_received=num_read * (17 + self.layouts[name].num_bytes),
      )

  def _read_in_place(self, tables, used):
    requests = {
      k: self._copies[k].read_in_place(
        self.layouts[k].whole(tables[k]), x.lines, ids=x.ids, stops=x.stops
      )
      for k, x in used.items()
    }
    for (name, request), results in self._call(requests):
      new = list(self.stores[name].made_of_shards(request, results))
      for _, unknown in new:
        self._commit_new(name, tables, used[name], newer=unknown)
      found = [x for x, _ in new]
      self._count_read(
        name,
        num_checked=request.num_rows,
        num_new=sum(x.num_read + x.num_unknown for x in found),
        num_read=sum(x.num_read for x in found),
        missed=sum(x.missed for x in found),
        most_missed=max(x.most_missed for x in found),
      )

  def _call(self, requests):
    """Calls shards; returns requests by table with their results."""
    call = next(iter(self.stores.values())).call
    results = call(list(requests.values()))
    return zip(requests.items(), results, strict=True)

  def _commit(self, tables, used, newer):
    self._go_back(tables)
    for name, of_shards in newer.items():
      for new in of_shards:
        self._commit_new(name, tables, used[name], newer=new)

  def _commit_new(self, name, tables, used, newer):
    if len(newer.at):
      lines, ids = used.lines[newer.at], used.ids[newer.at]
      block = self.layouts[name].read(tables[name], lines)
      self._copies[name].commit(lines, ids, newer, block)
      self._write(name, tables, lines, block=block)

  def _write(self, name, tables, lines, block):
    tables[name], errors = self.layouts[name].write(tables[name], lines, block)
    if errors is not None:
      self._copies[name].rebase(lines, errors)

  def _settle_leaving(self, tables, leaving):
    for name, lines in leaving.items():
      self._settle(name, tables, self._copies[name].leave(lines))

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
