"""Training on tables that lie in a store, from which rows are fetched ahead.

Which rows a step looks up is a function of its batch and key alone. A dispatch
is cut into stretches of steps; while one runs, a thread finds the rows of the
next one (`plan`), gives them slots on the device (`tables.cache`), writes the
rows that had those to the store and reads the new ones (`tables.stores`). The
steps are those of synchronous training, on tables that know where rows are
(`tables.cached`): they learn what they would with all rows on the device.

  device  | swap n | plan n+1 | steps n ............ | swap n+1 | plan n+2 | ...
  thread           | write what went | read for n+1  |          | write ...
"""

import dataclasses
import functools
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.runtime import hlo
from jaxemb.strategies import base
from jaxemb.tables import cache as cache_lib
from jaxemb.tables import cached, codecs, stores
from jaxemb.tables import spec as spec_lib

_LOG = logging.getLogger('jaxemb')
_ALONE = data_base.Share(0, 0, 1, 0, 1)
# Moved at once; for each power of two from here on a program is compiled.
_LEAST_ROWS = 256


class Fetched(NamedTuple):
  """What a stretch of steps needs, before it is on the device."""

  stop: int  # the step behind the stretch
  count: int  # steps of the dispatch
  moves: list[cache_lib.Moves]  # of each cache
  arrays: dict[str, list[np.ndarray]]  # by table, rows that come


def expected_rows(lookups: np.ndarray) -> float:
  """Different rows among lookups, of which [vocab] each are expected."""
  return float(-np.expm1(-lookups).sum())


def _padded(x: np.ndarray, size: int, value: int = 0) -> np.ndarray:
  widths = [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)
  return np.pad(x, widths, constant_values=value)


def _bucket(num: int) -> int:
  return max(_LEAST_ROWS, 1 << (num - 1).bit_length()) if num else 0


@functools.partial(jax.jit, donate_argnums=0)
def _put(arrays, slots, new):
  """Writes rows into slots; those beyond the last are dropped."""
  return [
    x.at[slots].set(y, mode='drop') for x, y in zip(arrays, new, strict=True)
  ]


@jax.jit
def _get(arrays, slots):
  return [x.at[slots].get(mode='clip') for x in arrays]


@functools.partial(jax.jit, donate_argnums=0)
def _point(slot_of, ids, slots):
  return slot_of.at[ids].set(slots, mode='drop')


class Fetching:
  """A strategy's step, before it is compiled or after, and its stores."""

  def __init__(
    self,
    trainable: base.Trainable,
    caches: list[cache_lib.Cache],
    make_store: Callable[..., stores.Store],
    stretch_steps: int,
  ):
    """Tables are `tables.cached.Cached`; each is in one of the caches.

    `make_store` makes the store of a table of its name, number of rows, bytes
    of a record and function that makes the first records of ids. A stretch has
    at most `stretch_steps`.
    """
    self.trainable, self.caches = trainable, caches
    self.tables: Mapping[str, cached.Cached] = trainable.tables
    self.size = stretch_steps
    self._make_store = make_store
    self._stores: dict[str, stores.Store] = {}
    self._thread = futures.ThreadPoolExecutor(1, 'fetch')
    self._tasks: list[futures.Future] = []
    self._next: tuple[Any, int, futures.Future] | None = None
    self._expected: tuple[Any, base.Schedule] | None = None
    self._is_flushed, self._has_cut = True, False
    self._counts: dict[str, float] = {}
    self._counting = threading.Lock()
    state = jax.eval_shape(trainable.init, jax.random.key(0))
    self.records = {
      name: stores.record_of(table.arrays(state.tables[name]))
      for name, table in self.tables.items()
    }
    self._slot_of: list[jax.Array] = []
    self._programs = (
      jax.jit(self._ids),
      jax.jit(self._steps, donate_argnums=(0, 1)),
    )
    self._plan, self._run = self._programs

  # Programs.

  def _given(self, constants, slot_of):
    tables = dict(self.tables)
    for cache, array in zip(self.caches, slot_of, strict=True):
      for name in cache.names:
        tables[name] = dataclasses.replace(tables[name], slot_of=array)
    given = self.trainable.with_arrays(constants)
    return dataclasses.replace(given, tables=tables)

  def _ids(self, constants, batch, schedule, first):
    """By table, [size, n] int32, ids of steps from `first` on; and count."""
    given = self.trainable.with_arrays(constants)
    count = jnp.max(given.steps.num_steps(batch))
    span = schedule.last_progress - schedule.first_progress
    advance = span / jnp.maximum(count, 1).astype(jnp.float32)

    def ids(i):
      progress = schedule.first_progress + advance * i.astype(jnp.float32)
      step = given.steps.step(batch, i, _ALONE, progress)
      step = given.steps.pad(step, i < count)
      found = given.model.ids(step, schedule.key)
      return {name: found[name].reshape(-1) for name in self.tables}

    return jax.lax.map(ids, first + jnp.arange(self.size)), count

  def _steps(self, state, measured, constants, slot_of, batch, schedule, *at):
    """Steps of a stretch; `at` are first, stop and count."""
    given = self._given(constants, slot_of)
    carry = state, measured
    devices = base.Devices(_ALONE)
    return base.training_steps(given, batch, schedule, devices, carry, *at)

  @functools.cached_property
  def _finish(self):
    def finish(measured, batch, count):
      return base.over_devices(self.trainable, measured, batch, count, ())

    return jax.jit(finish)

  @functools.cached_property
  def _no_metrics(self):
    return jax.jit(self.trainable.no_metrics)

  # As a compiled function.

  def lower(
    self, state: Any, constants: Any, batch: Any, schedule: base.Schedule
  ) -> 'Fetching':
    """As of `jax.jit`: the program of a stretch is compiled now."""
    number, measured = np.int32(0), self._no_metrics()
    at = number, number, number
    args = state, measured, constants, self._slots(), batch, schedule, *at
    plan, run = self._programs
    self._run = run.lower(*args).compile()
    self._plan = plan.lower(constants, batch, schedule, number).compile()
    return self

  def compile(self) -> 'Fetching':
    """The same."""
    return self

  def as_text(self) -> str:
    """The program of a stretch."""
    return self._run.as_text()

  # Rows.

  def init(self, key: jax.Array) -> base.TrainState:
    """A state with no rows, and stores as of a new table."""
    if self._next is not None:
      futures.wait([self._next[2]])
    self._finish_tasks()
    self._next, self._expected, self._slot_of = None, None, []
    self.caches = [dataclasses.replace(x) for x in self.caches]
    for i, name in enumerate(sorted(self.tables)):
      self._new_store(name, jax.random.fold_in(key, i))
    return jax.jit(self.trainable.init)(key)

  def _new_store(self, name, key):
    if name in self._stores:
      self._stores[name].close()
    table, record = self.tables[name], self.records[name]
    codec, optimizer = codecs.Codec(table.spec), table.optimizer
    names = sorted(table.slot_reductions)

    @jax.jit
    def first(key, ids):
      slots = optimizer.init(len(ids), table.spec.dim)
      rows = jax.tree.leaves(codec.init(key, ids))
      return rows + [getattr(slots, k) for k in names]

    def make(ids):
      size = _bucket(len(ids))
      with jax.default_device(jax.local_devices(backend='cpu')[0]):
        found = first(key, _padded(ids.astype(np.int32), size))
      return record.pack([np.asarray(x)[: len(ids)] for x in found])

    sizes = table.spec.vocab, record.num_bytes
    self._stores[name] = self._make_store(name, *sizes, make)

  def _slots(self):
    if not self._slot_of:
      self._slot_of = [jnp.asarray(x.slot_of) for x in self.caches]
    return self._slot_of

  def _request(self, constants, batch, schedule, first):
    """Has the rows of the stretch from step `first` on fetched."""
    planned = self._plan(constants, batch, schedule, np.int32(first))
    task = self._thread.submit(self._fetch, planned, first)
    self._next = batch, first, task

  def _fetch(self, planned, first):
    """In the thread: gives slots to a stretch's rows, and reads those."""
    ids = {name: np.asarray(x) for name, x in planned[0].items()}
    start = time.monotonic()
    count = int(planned[1])
    size = min(self.size, count - first)
    while True:
      try:
        moves = [
          cache.admit(
            {
              name: cache_lib.working_set(ids[name][:size], cache.num_rows)
              for name in cache.names
            }
          )
          for cache in self.caches
        ]
        break
      except cache_lib.TooSmall as error:
        if size <= 1:
          raise errors.UserError(
            f'a step looks up {error.num_rows:,} different rows, and '
            'config.table.device_bytes has room for fewer; raise it, or lower '
            '--config.train.batch_words'
          ) from error
        # Nothing was changed.
        size = -(-size // 2)
        if not self._has_cut:
          self._has_cut = True
          _LOG.info('rows of a dispatch are fetched in several turns')
    arrays = {}
    for cache, some in zip(self.caches, moves, strict=True):
      for name in cache.names:
        new = some.into[name][1]
        arrays[name] = self.records[name].unpack(self._stores[name].read(new))
        self._count('rows_fetched', len(new))
        self._count('rows_stored', len(some.out[name][1]))
      self._count('rows_needed', len(some.ids) * len(cache.names))
    self._count('fetch_secs', time.monotonic() - start)
    return Fetched(first + size, count, moves, arrays)

  def _count(self, name, number):
    with self._counting:
      self._counts[name] = self._counts.get(name, 0) + number

  def _store(self, out):
    """In the thread: writes rows that have left the device."""
    arrays = {k: [np.asarray(x) for x in xs] for k, (_, xs) in out.items()}
    start = time.monotonic()
    for name, (ids, _) in out.items():
      records = self.records[name].pack([x[: len(ids)] for x in arrays[name]])
      self._stores[name].write(ids, records)
    self._count('fetch_secs', time.monotonic() - start)

  def _swap(self, state, fetched):
    """Rows that have to go leave the device, and new ones come."""
    tables, out = dict(state.tables), {}
    for i, (cache, moves) in enumerate(
      zip(self.caches, fetched.moves, strict=True)
    ):
      for name in cache.names:
        table = self.tables[name]
        slots, ids = moves.out[name]
        old = table.arrays(tables[name])
        if size := _bucket(len(slots)):
          at = _padded(slots.astype(np.int32), size)
          out[name] = ids, _get(old, at)
        slots = moves.into[name][0]
        if size := _bucket(len(slots)):
          at = _padded(slots, size, cache.capacity)
          new = [_padded(x, size) for x in fetched.arrays[name]]
          tables[name] = table.with_arrays(tables[name], _put(old, at, new))
      ids = np.concatenate([moves.gone, moves.new]).astype(np.int32)
      if size := _bucket(len(ids)):
        at = _padded(ids, size, cache.num_rows)
        slot_of = _padded(cache.slot_of[ids], size)
        self._slot_of[i] = _point(self._slots()[i], at, slot_of)
    if out:
      self._tasks.append(self._thread.submit(self._store, out))
    return state._replace(tables=tables)

  def _finish_tasks(self):
    for task in self._tasks:
      task.result()
    self._tasks.clear()

  def expect(self, batch: Any, schedule: base.Schedule) -> None:
    """Tells the batch of the next call, so that its rows are fetched."""
    self._expected = batch, schedule

  def __call__(
    self, state: Any, constants: Any, batch: Any, schedule: base.Schedule
  ) -> tuple[Any, base.DispatchMetrics]:
    """Runs all steps of a dispatch."""
    self._is_flushed = False
    measured, first, waited = self._no_metrics(), 0, 0.0
    if self._next is None or self._next[0] is not batch:
      self._request(constants, batch, schedule, 0)
    while True:
      start = time.monotonic()
      fetched = self._next[2].result()
      waited += time.monotonic() - start
      state = self._swap(state, fetched)
      self._next = None
      stop, count = fetched.stop, fetched.count
      if stop < count:
        self._request(constants, batch, schedule, stop)
      elif self._expected:
        self._request(constants, *self._expected, 0)
        self._expected = None
      at = np.int32(first), np.int32(stop), np.int32(count)
      args = constants, self._slots(), batch, schedule
      state, measured = self._run(state, measured, *args, *at)
      if stop >= count:
        break
      first = stop
    metrics = self._finish(measured, batch, np.int32(count))
    self._count('fetch_waited_secs', waited)
    return state, metrics

  def take_counts(self) -> dict[str, float]:
    """Rows and seconds since the last call, by name."""
    with self._counting:
      counts, self._counts = self._counts, {}
    return counts

  # What is on the device, and what is in the stores.

  def _held(self, name):
    """Slots that now have rows of a table, and the ids of these."""
    index = next(i for i, x in enumerate(self.caches) if name in x.names)
    slots, ids = self.caches[index].held(name)
    if self._next is not None:
      # The next stretch has its slots, but not yet its rows.
      moves = self._next[2].result().moves[index]
      is_here = ~np.isin(slots, moves.into[name][0])
      pairs = (slots[is_here], ids[is_here]), moves.out[name]
      slots, ids = (np.concatenate(x) for x in zip(*pairs, strict=True))
    return slots, ids

  def flush(self, state: Any) -> None:
    """Writes what is on the device to the stores, too."""
    self._finish_tasks()
    if self._is_flushed:
      return
    for name, table in self.tables.items():
      slots, ids = self._held(name)
      arrays, record = table.arrays(state.tables[name]), self.records[name]
      size = max(1, spec_lib.NUMBERS_AT_ONCE // table.spec.dim)
      for i in range(0, len(slots), size):
        some = slots[i : i + size]
        at = _padded(some.astype(np.int32), _bucket(len(some)))
        rows = [np.asarray(x)[: len(some)] for x in _get(arrays, at)]
        self._stores[name].write(ids[i : i + size], record.pack(rows))
    self._is_flushed = True

  def export_rows(
    self, state: Any, name: str, start: int = 0, stop: int | None = None
  ) -> spec_lib.RowBlock:
    """See `tables.spec.Table`."""
    self.flush(state)
    table = self.tables[name]
    stop = table.spec.vocab if stop is None else stop
    records = self._stores[name].read(np.arange(start, stop))
    arrays = self.records[name].unpack(records)
    tree = jax.tree.structure(state.tables[name].vectors)
    stored = jax.tree.unflatten(tree, arrays[: tree.num_leaves])
    names = sorted(table.slot_reductions)
    slots = dict(zip(names, arrays[tree.num_leaves :], strict=True))
    return spec_lib.RowBlock(
      spec_lib.from_stored(stored, table.spec.dtype), slots
    )

  def import_rows(
    self,
    state: Any,
    name: str,
    ids: np.ndarray,
    rows: np.ndarray,
    slots: Mapping[str, np.ndarray],
  ) -> Any:
    """See `tables.spec.Table`; before training, while no row is held."""
    table, record = self.tables[name], self.records[name]
    arrays = record.unpack(self._stores[name].read(ids))
    rows = np.asarray(rows, np.float32)
    encoded = spec_lib.encode_rows(rows, table.spec.dtype)
    new = spec_lib.to_stored(encoded)
    arrays[: len(new)] = new
    for i, k in enumerate(sorted(table.slot_reductions)):
      if k in slots:
        arrays[len(new) + i] = np.asarray(slots[k], np.float32)
    self._stores[name].write(ids, record.pack(arrays))
    return state

  # Checkpoints.

  def save(
    self, state: Any, folder: pathlib.Path
  ) -> tuple[Any, dict[str, int]]:
    """Writes the stores to a folder; the rest of the state, and checksums."""
    self.flush(state)
    sums = {k: x.snapshot(folder / k) for k, x in self._stores.items()}
    return self.rest(state), sums

  def rest(self, state: Any) -> Any:
    """What of a state is not in the stores; also of shapes."""
    # Something, as checkpoints of nothing are refused.
    rest = {'params': state.params, 'optimizer': state.optimizer}
    return rest | {'format': np.ones(1, np.int32)}

  def load(
    self,
    key: jax.Array,
    folder: pathlib.Path,
    rest: Any,
    record: Mapping[str, Any],
  ) -> Any:
    """The state that was saved. Raises a ValueError if a file is damaged."""
    state = self.init(key)
    for name, checksum in record['store'].items():
      self._stores[name].restore(folder / name, checksum)
    return state._replace(params=rest['params'], optimizer=rest['optimizer'])

  def close(self) -> None:
    """Removes what is only for this run."""
    self._thread.shutdown(cancel_futures=True)
    for store in self._stores.values():
      store.close()


def stretch_steps(
  specs: Mapping[str, spec_lib.TableSpec],
  capacity: Mapping[str, int],
  step_centers: int,
  most: int = 16,
) -> int:
  """Steps whose rows are expected to take at most half of the slots."""
  num = most
  while num > 1 and any(
    expected_rows(x.lookups_per_center * step_centers * num) > capacity[k] / 2
    for k, x in specs.items()
  ):
    num //= 2
  return num


def fetching(step: Fetching, device: jax.sharding.Mesh) -> base.Strategy:
  """The strategy, on one device."""
  named = functools.partial(jax.sharding.NamedSharding, device)
  everywhere = jax.sharding.PartitionSpec()
  constants = base.arrays_of(step.trainable.model)

  class Init:
    """`Fetching.init`, whose shapes can be had without it."""

    def __call__(self, key):
      return jax.device_put(step.init(key), named(everywhere))

    def eval_shape(self, key):
      state = jax.eval_shape(step.trainable.init, key)
      return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
          x.shape, x.dtype, sharding=named(everywhere)
        ),
        state,
      )

  return base.Strategy(
    Init(),
    lambda: jax.device_put(constants, named(everywhere)),
    step,
    step.export_rows,
    step.import_rows,
    named(jax.sharding.PartitionSpec()),
    hlo.Loop(
      step.trainable.steps_per_loop,
      inner=1,
      branch=1 / step.trainable.loss_every_steps,
    ),
    store=step,
  )
