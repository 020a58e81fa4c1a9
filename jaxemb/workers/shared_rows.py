"""Rows that workers share, between a worker's device and the shards.

The device has copies of some rows of tables that lie in shards
(`workers.shards`), each as stale as `workers.copies` allows. Between two
stretches of steps, what was read meanwhile comes to the device, and rows that
have had too many updates, or are evicted, are taken from it, to be pushed
beside the next stretch.

An update is a lookup of a row in a step, as the clocks of HET's released code
count. Workers that meet seldom learn much of a row from its old value, each by
itself, and the sum of that overshoots. A push is weighted as by the policy
`policies.Bounded`, from 1, the sum, to 1 / n, the mean of n workers, which DMWE
always has. Here tau does not grow as the learning rate falls: what a worker
pushes reaches the others two rounds later, which sums close to 1 do not bear.

What a shard has of a row is float32, whatever the device's dtype: the row, and
the state of its optimizer. Adagrad's squares add up over workers, so that all
have the learning rates of all; of Adam's moments the shard has the last ones
that were pushed, and a staleness of s lets them be that of s updates of others.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxemb.stores import cached, device_rows, fetching, owned_rows
from jaxemb.stores import local as stores
from jaxemb.strategies import policies
from jaxemb.tables import spec as spec_lib
from jaxemb.workers import copies, shards


class Pace:
  """Says when a worker may begin a round: a stretch of steps."""

  def __init__(
    self, ask: Callable[..., Any] = lambda *_: None, waits: bool = False
  ):
    """`ask` calls a method of the coordinator; without `waits` it decides."""
    self.ask, self._waits = ask, waits
    self.waited_secs = 0.0

  def wait(self, *args: Any) -> Any:
    """Asks for what may depend on other workers, and times it."""
    start = time.monotonic()
    answer = self.ask(*args)
    self.waited_secs += time.monotonic() - start
    return answer

  def start(self, index: int) -> None:
    """Begins a dispatch, the `index`-th of its part of the data."""

  def begin(self, needed: fetching.Needed) -> tuple[int, float]:
    """Returns when the worker may begin a round.

    The steps of the dispatch over which the learning rate falls, and the
    examples of the round.
    """
    if self._waits:
      self.wait('begin')
    return needed.count, needed.examples


class DeviceRows(NamedTuple):
  """Rows of a device, as float32 with their optimizer state."""

  rows: np.ndarray  # [m, width]
  at: np.ndarray  # [n], which of them are meant
  is_view: bool  # of the device's memory: what changes need not be written


class _Layout:
  """Rows as float32 numbers, with optimizer state, sums over steps first."""

  def __init__(self, table: cached.Cached, form: spec_lib.TableState):
    """`form` has the shapes of a state."""
    self.table, self.dim = table, table.spec.dim
    sums = table.optimizer.sums
    self.names = sorted(table.state_names, key=lambda k: (k not in sums, k))
    shapes = [getattr(form.opt_state, k).shape[1:] for k in self.names]
    self._shapes = dict(zip(self.names, shapes, strict=True))
    sizes = [int(np.prod(x)) for x in shapes]
    stops = (self.dim + np.cumsum([0, *sizes])).tolist()
    self.width = stops[-1]
    self.num_added = stops[sum(k in sums for k in self.names)]
    pairs = zip(stops, stops[1:], strict=False)
    self._columns = dict(
      zip(self.names, (slice(*x) for x in pairs), strict=True)
    )

  @property
  def record(self) -> stores.Record:
    """What a shard has of a row."""
    return stores.Record((np.dtype(np.float32),), ((self.width,),))

  def join(
    self, rows: np.ndarray, opt_state: Mapping[str, np.ndarray]
  ) -> np.ndarray:
    """[n, width] of rows [n, dim] and optimizer state by name."""
    parts = [rows]
    parts += [np.reshape(opt_state[k], (len(rows), -1)) for k in self.names]
    return np.concatenate(parts, 1, dtype=np.float32)

  def split(
    self, floats: np.ndarray
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows and optimizer state of [n, width]."""
    opt_state = {
      k: floats[:, self._columns[k]].reshape(len(floats), *self._shapes[k])
      for k in self.names
    }
    return floats[:, : self.dim], opt_state

  def read(self, state: spec_lib.TableState, lines: np.ndarray) -> np.ndarray:
    """[n, width], what the device has in lines [n]."""
    if not len(lines):
      return np.zeros((0, self.width), np.float32)
    if device_rows.are_in_memory():
      arrays = self.table.arrays(state)
      views = [device_rows.view(x)[lines] for x in arrays]
      pairs = zip(views, arrays, strict=True)
      arrays = [
        x.view(y.dtype).reshape(len(lines), *y.shape[1:]) for x, y in pairs
      ]
    else:
      arrays = device_rows.get(self.table, state, lines)
      arrays = [np.asarray(x)[: len(lines)] for x in arrays]
    block = self.table.row_block(arrays)
    return self.join(block.rows, block.opt_state)

  def rows_at(
    self, state: spec_lib.TableState, lines: np.ndarray
  ) -> DeviceRows:
    """Returns the rows of lines [n]."""
    is_plain = self.table.spec.dtype == 'float32' and not self.names
    if is_plain and device_rows.are_in_memory():
      (array,) = self.table.arrays(state)
      rows = device_rows.view(array).view(np.float32)
      return DeviceRows(rows, lines, is_view=True)
    rows = self.read(state, lines)
    return DeviceRows(rows, np.arange(len(lines)), is_view=False)

  def write(
    self, state: spec_lib.TableState, lines: np.ndarray, floats: np.ndarray
  ) -> tuple[spec_lib.TableState, np.ndarray | None]:
    """Writes [n, width] into lines [n]; returns what rounding added."""
    if not len(lines):
      return state, None
    rows, opt_state = self.split(floats)
    encoded = spec_lib.encode_rows(rows, self.table.spec.dtype)
    arrays = self.table.arrays_of(spec_lib.RowBlock(encoded, opt_state))
    if device_rows.are_in_memory():
      for array, new in zip(self.table.arrays(state), arrays, strict=True):
        new = np.ascontiguousarray(new).reshape(len(lines), -1)
        device_rows.view(array)[lines] = new.view(np.uint8)
    else:
      state = device_rows.put(
        self.table, state, cache_rows=lines, arrays=arrays
      )
    if self.table.spec.dtype == 'float32':
      return state, None
    errors = np.zeros_like(floats)
    errors[:, : self.dim] = encoded.decode() - rows
    return state, errors


class Stretch(NamedTuple):
  """Rows of a table that a stretch needs."""

  lines: np.ndarray  # [n]
  ids: np.ndarray  # [n]
  updates: np.ndarray  # [n]


class SharedRows:
  """Implements `fetching.Rows`."""

  is_beside = False
  adds_up = False  # whether pushes have no weights

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
    make_table: Callable[..., shards.Sharded],
    staleness: int,
    num_workers: int,
    memory_lookups: float,
  ):
    """`make_table` makes a table, as of `remote.Cluster.table`.

    Its arguments are its name, number of rows, bytes of a record, function
    that makes the first records of ids, and numbers that add up. `staleness`
    is in updates of a row; for `memory_lookups` see `policies.Bounded`.
    """
    self.tables: Mapping[str, cached.Cached] = trainable.tables
    self._make_table, self._staleness = make_table, staleness
    self._num_workers, self._memory_lookups = num_workers, memory_lookups
    self.adds_up |= num_workers == 1
    state = jax.eval_shape(trainable.init, jax.random.key(0))
    self._layouts = {
      k: _Layout(x, state.tables[k]) for k, x in self.tables.items()
    }
    self.records = {k: x.record for k, x in self._layouts.items()}
    self.pace = Pace()  # until it joins others
    self._paced_secs = 0.0
    self.stores: dict[str, shards.Sharded] = {}
    self.most_missed = 0  # since it was last set to 0
    # Flushes so far: what was read before the last one lacks what it pushed.
    self._flushes = 0
    self._lookups, self._copies, self._last = {}, {}, {}
    # What was taken from the device, to be pushed when something is read.
    self._pushes: list[tuple[str, copies.Pending, np.ndarray]] = []

  def init(self, keys: Mapping[str, jax.Array]) -> None:
    """See `fetching.Rows`; where others have begun, with their rows."""
    for name, key in keys.items():
      table, layout = self.tables[name], self._layouts[name]
      spec, empty = table.spec, table.optimizer.init(1, table.spec.dim)
      opt_state = {k: np.asarray(getattr(empty, k)) for k in layout.names}

      bits = owned_rows.key_bits(key)

      def make(ids, spec=spec, bits=bits, opt_state=opt_state, layout=layout):
        rows = owned_rows.first_rows(spec, bits, ids)
        new = {k: np.repeat(x, len(ids), 0) for k, x in opt_state.items()}
        return layout.join(rows, new).view(np.uint8)

      sizes = spec.vocab, self.records[name].num_bytes, make, layout.num_added
      if name in self.stores:
        self.stores[name].close()
      self.stores[name] = shared = self._make_table(name, *sizes)
      self._copies[name] = copies.Copies(
        shared,
        table.num_rows,
        layout.num_added,
        read_bound=self._staleness,
        write_bound=self._staleness,
      )
      self._lookups[name] = copies.Lookups(spec.vocab)
      self._last[name] = np.zeros(0, np.int64)

  @property
  def copy_bytes(self) -> int:
    """See `fetching.Rows`."""
    sizes = {k: x.num_bytes for k, x in self.records.items()}
    return sum(
      copies.num_bytes(x.spec.vocab, x.num_rows, sizes[k])
      for k, x in self.tables.items()
    )

  def join(self, pace: Pace) -> None:
    """Takes turns with other workers from now on, as the pace says."""
    self.pace = pace

  def weights(self, lookups: np.ndarray) -> np.ndarray:
    """Returns [n] float32, the weights of pushes of rows with lookups [n]."""
    times = lookups / self._memory_lookups
    weights = policies.parallel_weights(times, self._num_workers, np)
    return weights.astype(np.float32)

  def num_updates(self) -> int:
    """Updates of rows on the device that no shard has."""
    taken = sum(int(np.sum(x[1].updates)) for x in self._pushes)
    return taken + sum(x.num_updates() for x in self._copies.values())

  # Between stretches.

  def fetch(
    self, needed: fetching.Needed, counts: fetching.Counts
  ) -> tuple[int, dict[str, Stretch], dict[str, copies.Fetched] | None]:
    """See `fetching.Rows`."""
    flushes, stretches = self._flushes, self._stretches(needed)
    return flushes, stretches, self._exchange(stretches, counts)

  def _stretches(self, needed):
    stretches = {}
    for cache in needed.caches:
      for name in cache.names:
        ids, updates = self._lookups[name].count(needed.lookups[name])
        stretches[name] = Stretch(cache.cache_row_of[ids], ids, updates)
    return stretches

  def _exchange(self, stretches, counts):
    """Pushes what was settled, and reads; in one call for each shard."""
    pushes, self._pushes = self._pushes, []
    asking = [
      self._copies[name].asking_push(pending, deltas)
      for name, pending, deltas in pushes
      if len(pending.lines)
    ]
    num_pushes = len(asking)
    for name, stretch in stretches.items():
      asking.append(self._copies[name].asking_read(stretch.lines, stretch.ids))
    call = next(iter(self.stores.values())).call
    answers = shards.together(call, asking)
    self._count_pushes(pushes, counts)
    if stretches and any(answers[:num_pushes]):
      return self._exchange(stretches, counts)
    read = dict(zip(stretches, answers[num_pushes:], strict=True))
    for name, stretch in stretches.items():
      fetched, num = read[name], len(read[name].ids)
      self.most_missed = max(self.most_missed, fetched.most_missed)
      counts.add(
        rows_checked=len(stretch.ids),
        rows_fetched=num,
        # An id and a clock for each; where a row was, and its clock, too.
        bytes_sent=16 * len(stretch.ids),
        bytes_received=num * (17 + self.records[name].num_bytes),
        updates_missed=fetched.missed,
      )
    return read

  def swap(
    self,
    tables: dict[str, Any],
    needed: fetching.Needed,
    fetched: tuple,
    counts: fetching.Counts,
    later: Callable[[Callable[[], None]], None],
  ) -> tuple[dict[str, Any], int, float]:
    """See `fetching.Rows`."""
    start, waited = time.monotonic(), self._paced_secs
    tables = dict(tables)
    for moves in needed.moves:
      for name, (lines, _) in moves.out.items():
        leaving = self._copies[name].leave(lines)
        counts.add(rows_evicted=len(lines))
        self._settle(name, tables, leaving, stays=False)
    begun = self._round(tables, needed, fetched, counts=counts)
    for name, stretch in fetched[1].items():
      self._copies[name].begin(stretch.lines, stretch.updates)
      self._last[name] = stretch.lines
    secs = time.monotonic() - start - (self._paced_secs - waited)
    counts.add(fetch_secs=secs, fetch_waited_secs=secs)
    return tables, *begun

  def _round(self, tables, needed, fetched, counts):
    """Puts rows that were read on the device, and begins a round."""
    flushes, stretches, read = fetched
    if flushes != self._flushes:
      read = self._exchange(stretches, counts)
    self._commit(tables, read)
    self._settle_due(tables, stretches)
    return self._paced(self.pace.begin, needed)

  def _commit(self, tables, read):
    for name, fetched in read.items():
      device = self._layouts[name].rows_at(tables[name], fetched.lines)
      self._copies[name].commit(fetched, device.rows, device.at)
      self._write(name, tables, fetched.lines, device=device)

  def _paced(self, call, *args):
    """Calls a method of `pace`, whose waiting is not for rows."""
    start = time.monotonic()
    answer = call(*args)
    self._paced_secs += time.monotonic() - start
    return answer

  def _write(self, name, tables, lines, device):
    if device.is_view:
      return
    rows = device.rows[device.at]
    tables[name], errors = self._layouts[name].write(tables[name], lines, rows)
    if errors is not None:
      self._copies[name].rebase(lines, errors)

  def _settle_due(self, tables, stretches):
    for name in stretches:
      pending = self._copies[name].due(self._last[name])
      self._settle(name, tables, pending)

  def _settle(self, name, tables, pending, stays=True):
    """Takes updates off the device, to be pushed with the next read."""
    layout, lines = self._layouts[name], pending.lines
    if not len(lines):
      return
    device = layout.rows_at(tables[name], lines)
    weights = None if self.adds_up else self.weights(pending.updates)
    num_weighted = 0 if self.adds_up else layout.dim
    deltas = self._copies[name].settle(
      pending,
      device.rows,
      device.at,
      weights=weights,
      num_weighted=num_weighted,
    )
    self._pushes.append((name, pending, deltas))
    if stays and num_weighted:
      self._write(name, tables, lines, device=device)

  def _count_pushes(self, pushes, counts):
    for name, pending, _ in pushes:
      num, num_first = len(pending.ids), len(pending.first_at)
      size = self.records[name].num_bytes
      counts.add(
        rows_pushed=num,
        updates_pushed=int(np.sum(pending.updates)),
        bytes_sent=num * (16 + size) + num_first * size,
      )

  # All rows.

  def flush(
    self,
    tables: dict[str, Any],
    held: Callable[[str], tuple[np.ndarray, np.ndarray]],
    counts: fetching.Counts,
  ) -> dict[str, Any]:
    """See `fetching.Rows`."""
    tables = dict(tables)
    for name, rows in self._copies.items():
      self._settle(name, tables, rows.all())
    self._exchange({}, counts)
    self._flushes += 1
    return tables

  def check(self) -> None:
    """Calls every shard, which notices those that were restarted."""
    for table in self.stores.values():
      table.check()

  def export_rows(self, name: str, ids: np.ndarray) -> spec_lib.RowBlock:
    """See `fetching.Rows`."""
    records = self.stores[name].read(ids).view(np.float32)
    rows, opt_state = self._layouts[name].split(records)
    encoded = spec_lib.encode_rows(rows, self.tables[name].spec.dtype)
    return spec_lib.RowBlock(encoded, opt_state)

  def import_rows(
    self,
    name: str,
    ids: np.ndarray,
    rows: np.ndarray,
    opt_state: Mapping[str, np.ndarray],
  ) -> None:
    """See `fetching.Rows`."""
    layout, shared = self._layouts[name], self.stores[name]
    _, old = layout.split(shared.read(ids).view(np.float32))
    floats = layout.join(rows, {**old, **opt_state})
    shared.write(ids, floats.view(np.uint8))

  def close(self) -> None:
    """See `fetching.Rows`."""
