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

from jaxemb.stores import cached, lookahead
from jaxemb.stores import rows as rows_lib
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

  def begin(self, stretch: lookahead.Stretch) -> tuple[int, float]:
    """Returns when the worker may begin a round.

    The steps of the dispatch over which the learning rate falls, and the
    examples of the round.
    """
    if self._waits:
      self.wait('begin')
    return stretch.block.count, stretch.examples


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
    self.width = self._stops[-1]
    self.num_bytes = 4 * self.width
    self.num_added = self._stops[sum(k in sums for k in self._names)]

  def encode(self, block: spec_lib.RowBlock) -> np.ndarray:
    """[n, num_bytes] uint8, the records of rows."""
    return self._join(block.rows, block.opt_state).view(np.uint8)

  def decode(self, records: np.ndarray) -> spec_lib.RowBlock:
    """Returns the rows of records, in the table's dtype."""
    rows, opt_state = self._split(records.view(np.float32))
    encoded = spec_lib.encode_rows(rows, self.table.spec.dtype)
    return spec_lib.RowBlock(encoded, opt_state)

  def _join(self, rows, opt_state):
    parts = [opt_state[k].reshape(len(rows), -1) for k in self._names]
    return np.concatenate([rows, *parts], 1, dtype=np.float32)

  def _split(self, floats):
    rows, *parts = np.split(floats, self._stops[:-1], 1)
    parts = [
      x.reshape(len(floats), *shape)
      for x, shape in zip(parts, self._shapes, strict=True)
    ]
    return rows, dict(zip(self._names, parts, strict=True))

  def read(self, state: spec_lib.TableState, lines: np.ndarray) -> np.ndarray:
    """[n, width] float32, what the device has in lines [n], n > 0."""
    block = self.table.row_block(self.table.take(state, lines))
    return self._join(block.rows, block.opt_state)

  def write(
    self, state: spec_lib.TableState, lines: np.ndarray, floats: np.ndarray
  ) -> tuple[spec_lib.TableState, np.ndarray | None]:
    """Writes [n, width] into lines [n]; returns what rounding added."""
    rows, opt_state = self._split(floats)
    encoded = spec_lib.encode_rows(rows, self.table.spec.dtype)
    arrays = self.table.arrays_of(spec_lib.RowBlock(encoded, opt_state))
    if cached.are_in_memory():
      for view, new in zip(self.table.views(state), arrays, strict=True):
        new = np.ascontiguousarray(new).reshape(len(lines), -1)
        view[lines] = new.view(np.uint8)
    else:
      state = self.table.put(state, lines, arrays)
    if self.table.spec.dtype == 'float32':
      return state, None
    errors = np.zeros_like(floats)
    errors[:, : self.dim] = encoded.decode() - rows
    return state, errors


class Used(NamedTuple):
  """Rows of a table that a stretch uses."""

  lines: np.ndarray  # [n]
  ids: np.ndarray  # [n]
  updates: np.ndarray  # [n]


class SharedRows(rows_lib.Rows):
  """See the module."""

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

    Its arguments are those of `rows.Rows`, and how many numbers add up.
    `staleness` is in updates of a row; for `memory_lookups` see
    `policies.Bounded`.
    """
    tables = trainable.tables
    layouts = {k: FloatRows(x) for k, x in tables.items()}

    def make_store(name, *args):
      return make_table(name, *args, layouts[name].num_added)

    super().__init__(tables, make_store, layouts)
    self._staleness, self._num_workers = staleness, num_workers
    self._memory_lookups = memory_lookups
    self.adds_up |= num_workers == 1
    self.pace = Pace()  # until it joins others
    self.most_missed = 0  # since it was last set to 0
    # Flushes so far: what was read before the last one lacks what it pushed.
    self._flushes = 0
    self._copies, self._last = {}, {}
    # What was taken from the device, to be pushed when something is read.
    self._pushes: list[tuple[str, copies.Pending, np.ndarray]] = []

  def init(self, keys: Mapping[str, jax.Array]) -> None:
    """See the base; where others have begun, with their rows."""
    super().init(keys)
    for name, table in self.tables.items():
      self._copies[name] = copies.Copies(
        self.stores[name],
        table.num_rows,
        self.layouts[name].num_added,
        bound=self._staleness,
      )
      self._last[name] = np.zeros(0, np.int64)

  @property
  def copy_bytes(self) -> int:
    """See the base."""
    tables = self.tables.items()  # an id, a clock and updates of each row
    return sum(x.num_rows * (24 + self.layouts[k].num_bytes) for k, x in tables)

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
    taken = sum(int(np.sum(x.updates)) for _, x, _ in self._pushes)
    return taken + sum(x.num_updates() for x in self._copies.values())

  # Between stretches.

  def fetch(
    self, stretch: lookahead.Stretch
  ) -> tuple[int, dict[str, Used], dict[str, shards.Newer] | None]:
    """See the base."""
    flushes, used = self._flushes, self._used(stretch)
    return flushes, used, self._exchange(used)

  def _used(self, stretch):
    lookups, used = stretch.lookups, {}
    for cache in stretch.caches:
      for name in cache.names:
        ids, updates = np.unique(lookups[name], return_counts=True)
        num = np.searchsorted(ids, cache.num_rows)  # others are padding
        ids, updates = ids[:num], updates[:num]
        used[name] = Used(cache.cache_row_of[ids], ids, updates)
    return used

  def _exchange(self, used: Mapping[str, Used]) -> dict[str, shards.Newer]:
    """Pushes what was settled, and reads; in one call for each shard."""
    pushes, self._pushes = self._pushes, []
    requests = [self._copies[k].push_request(x, y) for k, x, y in pushes]
    reads = {
      k: self._copies[k].read_request(x.lines, x.ids) for k, x in used.items()
    }
    call = next(iter(self.stores.values())).call
    answers = call([*requests, *reads.values()])[len(requests) :]
    self._count_pushes(pushes)
    newer = {}
    for (name, request), answer in zip(reads.items(), answers, strict=True):
      ids = used[name].ids
      newer[name] = new = self.stores[name].newer(request, answer)
      self.most_missed = max(self.most_missed, new.most_missed)
      self.counts.add(
        rows_checked=len(ids),
        rows_fetched=len(new.at),
        # An id and a clock for each; where a row was, and its clock, too.
        bytes_sent=16 * len(ids),
        bytes_received=len(new.at) * (17 + self.layouts[name].num_bytes),
        updates_missed=new.missed,
      )
    return newer

  def _count_pushes(self, pushes):
    for name, pending, _ in pushes:
      num, num_first = len(pending.ids), len(pending.first_at)
      size = self.layouts[name].num_bytes
      self.counts.add(
        rows_pushed=num,
        updates_pushed=int(np.sum(pending.updates)),
        bytes_sent=num * (16 + size) + num_first * size,
      )

  def swap(
    self, tables: Mapping[str, Any], stretch: lookahead.Stretch, fetched: tuple
  ) -> tuple[Mapping[str, Any], int, float]:
    """See the base."""
    start, waited = time.monotonic(), self.pace.waited_secs
    tables = dict(tables)
    for moves in stretch.moves:
      for name, (lines, _) in moves.out.items():
        self.counts.add(rows_evicted=len(lines))
        self._settle(name, tables, self._copies[name].leave(lines), stays=False)
    begun = self._round(tables, stretch, fetched)
    for name, used in fetched[1].items():
      self._copies[name].begin(used.lines, used.updates)
      self._last[name] = used.lines
    secs = time.monotonic() - start - (self.pace.waited_secs - waited)
    self.counts.add(fetch_secs=secs, fetch_waited_secs=secs)
    return tables, *begun

  def _round(self, tables, stretch, fetched):
    """Puts rows that were read on the device, and begins a round."""
    flushes, used, newer = fetched
    if flushes != self._flushes:
      newer = self._exchange(used)
    self._commit(tables, used, newer)
    self._settle_due(tables)
    return self.pace.begin(stretch)

  def _commit(self, tables, used, newer):
    for name, new in newer.items():
      if not len(new.at):
        continue
      lines, ids = used[name].lines[new.at], used[name].ids[new.at]
      rows = self.layouts[name].read(tables[name], lines)
      self._copies[name].commit(lines, ids, new, rows)
      self._write(name, tables, lines, rows=rows)

  def _write(self, name, tables, lines, rows):
    tables[name], errors = self.layouts[name].write(tables[name], lines, rows)
    if errors is not None:
      self._copies[name].rebase(lines, errors)

  def _settle_due(self, tables):
    for name, lines in self._last.items():
      self._settle(name, tables, self._copies[name].due(lines))

  def _settle(self, name, tables, pending, stays=True):
    """Takes updates off the device, to be pushed with the next read."""
    layout, lines = self.layouts[name], pending.lines
    if not len(lines):
      return
    rows = layout.read(tables[name], lines)
    weights = None if self.adds_up else self.weights(pending.updates)
    num_weighted = 0 if self.adds_up else layout.dim
    deltas = self._copies[name].settle(
      pending, rows, weights, num_weighted=num_weighted
    )
    self._pushes.append((name, pending, deltas))
    if stays and num_weighted:
      self._write(name, tables, lines, rows=rows)

  def flush(
    self,
    tables: Mapping[str, Any],
    held: Callable[[str], tuple[np.ndarray, np.ndarray]],
  ) -> Mapping[str, Any]:
    """See the base."""
    tables = dict(tables)
    for name, rows in self._copies.items():
      self._settle(name, tables, rows.all())
    self._exchange({})
    self._flushes += 1
    return tables

  def check(self) -> None:
    """Calls every shard, which notices those that were restarted."""
    for table in self.stores.values():
      table.check()
