"""Rows that workers share, between a worker's device and the shards.

The device has copies of some rows of tables that lie in shards
(`tables.shards`), each as stale as `tables.copies` allows. Between two
stretches of steps, what was read meanwhile comes to the device, and rows that
have had too many updates, or lose their slots, are taken from it, to be pushed
beside the next stretch.

In lockstep (`Pace`) nothing is read ahead: all push, wait for each other, read,
and push again when all have read. With no staleness and stretches of one step that is synchronous training.

Workers that meet seldom learn much of a row from its old value, each by itself,
and the sum of that overshoots. Out of lockstep a push is weighted as by the
policy `policies.Bounded`: with m lookups of a row since its last push, by each
of n workers,

  g = (1 - q^n) / (n (1 - q)),    q = exp(-m / tau),

from 1, the sum, to 1 / n, the mean, which DMWE always has.

What a shard has of a row is float32, whatever the device's dtype: the row, and
the state of its optimizer. Adagrad's squares add up over workers, so that all
have the learning rates of all; of Adam's moments the shard has the last ones
that were pushed, and a staleness of s lets them be that of s updates of others.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxemb.strategies import device_rows, fetching, owned_rows
from jaxemb.tables import cached, copies, shards, stores
from jaxemb.tables import spec as spec_lib


class Pace(Protocol):
  """Which worker may begin a stretch of steps."""

  is_lockstep: bool

  def begin(self, needed: fetching.Needed) -> int:
    """Waits; the steps of the dispatch over which the learning rate falls.

    In lockstep all others have pushed what they did before.
    """

  def has_read(self) -> None:
    """Rows of the stretch were read."""

  def end(self) -> None:
    """Waits, in lockstep, until all have read rows of the stretch."""


class Weights(NamedTuple):
  """See the module."""

  num_workers: int
  memory_lookups: float  # tau at the first learning rate
  first_learning_rate: float

  def of(self, lookups: np.ndarray, rate: float) -> np.ndarray:
    """[n] float32, g of rows with lookups [n] at a learning rate."""
    tau = self.memory_lookups * self.first_learning_rate / max(rate, 1e-30)
    powers = np.arange(self.num_workers)[:, None]
    return np.mean(np.exp(-powers * (lookups / tau)), 0).astype(np.float32)


class _Layout:
  """A row and its slots as float32 numbers, those that add up before others."""

  def __init__(self, table: cached.Cached, form: spec_lib.TableState):
    """`form` has the shapes of a state."""
    self.table, self.dim = table, table.spec.dim
    self._tree = jax.tree.structure(form.vectors)
    sums = table.optimizer.sums
    self.names = sorted(table.slot_reductions, key=lambda k: (k not in sums, k))
    shapes = [getattr(form.slots, k).shape[1:] for k in self.names]
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
    self, rows: np.ndarray, slots: Mapping[str, np.ndarray]
  ) -> np.ndarray:
    """[n, width] of rows [n, dim] and slots by name."""
    parts = [rows]
    parts += [np.reshape(slots[k], (len(rows), -1)) for k in self.names]
    return np.concatenate(parts, 1, dtype=np.float32)

  def split(
    self, floats: np.ndarray
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows and slots of [n, width]."""
    slots = {
      k: floats[:, self._columns[k]].reshape(len(floats), *self._shapes[k])
      for k in self.names
    }
    return floats[:, : self.dim], slots

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
    num = self._tree.num_leaves
    stored = jax.tree.unflatten(self._tree, arrays[:num])
    rows = spec_lib.from_stored(stored, self.table.spec.dtype).decode()
    names = sorted(self.table.slot_reductions)
    return self.join(rows, dict(zip(names, arrays[num:], strict=True)))

  def write(
    self, state: spec_lib.TableState, lines: np.ndarray, floats: np.ndarray
  ) -> tuple[spec_lib.TableState, np.ndarray | None]:
    """Writes [n, width] into lines [n]; returns what rounding added."""
    if not len(lines):
      return state, None
    rows, slots = self.split(floats)
    encoded = spec_lib.encode_rows(rows, self.table.spec.dtype)
    arrays = spec_lib.to_stored(encoded)
    arrays += [slots[k] for k in sorted(self.names)]
    if device_rows.are_in_memory():
      for array, new in zip(self.table.arrays(state), arrays, strict=True):
        new = np.ascontiguousarray(new).reshape(len(lines), -1)
        device_rows.view(array)[lines] = new.view(np.uint8)
    else:
      state = device_rows.put(self.table, state, lines, arrays)
    if self.table.spec.dtype == 'float32':
      return state, None
    errors = np.zeros_like(floats)
    errors[:, : self.dim] = encoded.decode() - rows
    return state, errors


class _Stretch(NamedTuple):
  """Rows of a table that a stretch needs."""

  lines: np.ndarray  # [n]
  ids: np.ndarray  # [n]
  updates: np.ndarray  # [n], steps that look the row up
  lookups: np.ndarray  # [n]


class SharedRows:
  """Implements `fetching.Rows`."""

  is_beside = False

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
    weights: Weights,
  ):
    """`make_table` makes a table, as of `remote.Cluster.table`.

    Its arguments are its name, number of rows, bytes of a record, function
    that makes the first records of ids, and numbers that add up. `staleness`
    is in updates of a row.
    """
    self.tables: Mapping[str, cached.Cached] = trainable.tables
    self._make_table, self._staleness = make_table, staleness
    self._weights = weights
    state = jax.eval_shape(trainable.init, jax.random.key(0))
    self._layouts = {
      k: _Layout(x, state.tables[k]) for k, x in self.tables.items()
    }
    self.records = {k: x.record for k, x in self._layouts.items()}
    self.pace: Pace | None = None  # of a worker
    self.shared: dict[str, shards.Sharded] = {}
    self.most_missed = 0  # since it was last set to 0
    # Flushes so far: what was read before the last one lacks what it pushed.
    self._flushes = 0
    self._uses, self._copies, self._last = {}, {}, {}
    self._rate = weights.first_learning_rate

  def init(self, keys: Mapping[str, jax.Array]) -> None:
    """See `fetching.Rows`; where others have begun, with their rows."""
    for name, key in keys.items():
      table, layout = self.tables[name], self._layouts[name]
      spec, empty = table.spec, table.optimizer.init(1, table.spec.dim)
      slots = {k: np.asarray(getattr(empty, k)) for k in layout.names}

      bits = owned_rows.key_bits(key)

      def make(ids, spec=spec, bits=bits, slots=slots, layout=layout):
        rows = owned_rows.first_rows(spec, bits, ids)
        own = {k: np.repeat(x, len(ids), 0) for k, x in slots.items()}
        return layout.join(rows, own).view(np.uint8)

      sizes = spec.vocab, self.records[name].num_bytes, make, layout.num_added
      if name in self.shared:
        self.shared[name].close()
      self.shared[name] = shared = self._make_table(name, *sizes)
      capacity, bounds = table.slots.spec.vocab, (self._staleness,) * 2
      self._copies[name] = copies.Copies(
        shared, capacity, layout.num_added, *bounds
      )
      self._uses[name] = copies.Uses(spec.vocab)
      self._last[name] = np.zeros(0, np.int64)

  def num_updates(self) -> int:
    """Updates of rows on the device that no shard has."""
    return sum(x.num_updates() for x in self._copies.values())

  # Between stretches.

  def fetch(
    self, needed: fetching.Needed, counts: fetching.Counts
  ) -> tuple[int, dict[str, _Stretch], dict[str, copies.Fetched] | None]:
    """See `fetching.Rows`."""
    stretches = {}
    for cache in needed.caches:
      for name in cache.names:
        found = self._uses[name].count(needed.lookups[name])
        stretches[name] = _Stretch(cache.slot_of[found[0]], *found)
    flushes, read = self._flushes, None
    if not self._is_lockstep:
      read = self._read(stretches, counts)
    return flushes, stretches, read

  def _read(self, stretches, counts):
    read = {}
    for name, stretch in stretches.items():
      found = self._copies[name].read(stretch.lines, stretch.ids)
      read[name], num = found, len(found.ids)
      self.most_missed = max(self.most_missed, found.most_missed)
      counts.add(
        rows_checked=len(stretch.ids),
        rows_fetched=num,
        # An id and a clock for each; where a row was, and its clock, too.
        bytes_sent=16 * len(stretch.ids),
        bytes_received=num * (17 + self.records[name].num_bytes),
        updates_missed=found.missed,
      )
    return read

  def swap(
    self,
    tables: dict[str, Any],
    needed: fetching.Needed,
    fetched: tuple,
    counts: fetching.Counts,
    later: Callable[[Callable[[], None]], None],
  ) -> tuple[dict[str, Any], int]:
    """See `fetching.Rows`."""
    flushes, stretches, read = fetched
    self._rate, pushes, count = needed.rate, [], needed.count
    tables = dict(tables)
    for moves in needed.moves:
      for name, (lines, _) in moves.out.items():
        leaving = self._copies[name].leave(lines)
        counts.add(rows_evicted=len(lines))
        rows = self._weighted(name, tables, leaving)
        pushes.append((name, leaving, rows))
    if self._is_lockstep:
      for name in stretches:
        pushes.append((name, *self._take_due(name, tables)))
      self.pace.end()
      self._push(pushes, counts)
      pushes = []
      count = self.pace.begin(needed)
      read = self._read(stretches, counts)
      self.pace.has_read()
    elif flushes != self._flushes:
      read = self._read(stretches, counts)
    for name, found in read.items():
      layout, own = self._layouts[name], self._copies[name]
      lines, rows, added_lines, added = own.commit(found)
      lines = np.concatenate([lines, added_lines])
      added += layout.read(tables[name], added_lines)
      rows = np.concatenate([rows, added])
      self._write(name, tables, lines, rows)
    for name, stretch in stretches.items():
      if not self._is_lockstep:
        pushes.append((name, *self._take_due(name, tables)))
      self._copies[name].begin(stretch.lines, stretch.updates, stretch.lookups)
      self._last[name] = stretch.lines
    if pushes:
      later(lambda: self._push(pushes, counts))
    if self.pace and not self._is_lockstep:
      count = self.pace.begin(needed)
    return tables, count

  def _write(self, name, tables, lines, rows):
    layout = self._layouts[name]
    tables[name], errors = layout.write(tables[name], lines, rows)
    if errors is not None:
      self._copies[name].rebase(lines, errors)

  def _take_due(self, name, tables):
    """What is to be pushed of rows that stay; and the rows."""
    pending = self._copies[name].due(self._last[name])
    return pending, self._stays(name, tables, pending)

  def _stays(self, name, tables, pending):
    rows = self._weighted(name, tables, pending)
    if not self._adds_up:
      self._write(name, tables, pending.lines, rows)
    return rows

  @property
  def _is_lockstep(self):
    return self.pace is not None and self.pace.is_lockstep

  @property
  def _adds_up(self):
    return self._weights.num_workers == 1 or self._is_lockstep

  def _weighted(self, name, tables, pending):
    """[n, width], rows with as much of what was learned as is pushed."""
    rows = self._layouts[name].read(tables[name], pending.lines)
    if not self._adds_up:
      dim = self._layouts[name].dim
      g = self._weights.of(pending.lookups, self._rate)[:, None]
      rows[:, :dim] = g * rows[:, :dim] + (1 - g) * pending.base[:, :dim]
    return rows

  def _push(self, pushes, counts):
    for name, pending, rows in pushes:
      self._copies[name].push(pending, rows)
      num, num_first = len(pending.ids), np.count_nonzero(pending.is_first)
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
    pushes, tables = [], dict(tables)
    if self._is_lockstep:
      self.pace.end()
    for name, own in self._copies.items():
      pending = own.all()
      pushes.append((name, pending, self._stays(name, tables, pending)))
    self._push(pushes, counts)
    self._flushes += 1
    return tables

  def export_rows(self, name: str, ids: np.ndarray) -> spec_lib.RowBlock:
    """See `fetching.Rows`."""
    records = self.shared[name].read(ids).view(np.float32)
    rows, slots = self._layouts[name].split(records)
    encoded = spec_lib.encode_rows(rows, self.tables[name].spec.dtype)
    return spec_lib.RowBlock(encoded, slots)

  def import_rows(
    self,
    name: str,
    ids: np.ndarray,
    rows: np.ndarray,
    slots: Mapping[str, np.ndarray],
  ) -> None:
    """See `fetching.Rows`."""
    layout, shared = self._layouts[name], self.shared[name]
    _, own = layout.split(shared.read(ids).view(np.float32))
    floats = layout.join(rows, {**own, **slots})
    shared.write(ids, floats.view(np.uint8))

  def save(self, folder: pathlib.Path) -> dict[str, int]:
    """See `fetching.Rows`."""
    return {k: x.snapshot(folder / k) for k, x in self.shared.items()}

  def load(self, folder: pathlib.Path, checksums: Mapping[str, int]) -> None:
    """See `fetching.Rows`."""
    for name, checksum in checksums.items():
      self.shared[name].restore(folder / name, checksum)

  def close(self) -> None:
    """See `fetching.Rows`."""
    for table in self.shared.values():
      table.close()
