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

import ctypes
import dataclasses
import functools
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.ops import sampling
from jaxemb.runtime import hlo
from jaxemb.strategies import base
from jaxemb.tables import cache as cache_lib
from jaxemb.tables import cached, codecs, stores
from jaxemb.tables import spec as spec_lib

_LOG = logging.getLogger('jaxemb')
_ALONE = data_base.Share(0, 0, 1, 0, 1)
# Moved at once; for each power of two from here on a program is compiled.
_LEAST_ROWS = 256


class _Ids(NamedTuple):
  """What some steps of a dispatch look up, once it is computed."""

  batch: Any  # of the dispatch
  first: int  # step
  planned: Any

  def on_host(self, names: Iterable[str]) -> tuple[dict[str, np.ndarray], int]:
    """By table, [steps, n] int32; and the steps of the dispatch."""
    ids, count = jax.device_get(self.planned)
    flat = {k: ids[k].reshape(len(ids[k]), -1) for k in names}
    return flat, int(count)


class Fetched(NamedTuple):
  """What a stretch of steps needs, before it is on the device."""

  stop: int  # the step behind the stretch
  count: int  # steps of the dispatch
  moves: list[cache_lib.Moves]  # of each cache
  arrays: dict[str, list[np.ndarray]]  # by table, rows that come


def expected_rows(lookups: np.ndarray) -> float:
  """Different rows among lookups, of which [vocab] each are expected."""
  return float(-np.expm1(-lookups).sum())


class Predicted(NamedTuple):
  """What is expected of a table, before it is trained."""

  stretch_steps: float  # that have room on the device at once
  rows_per_step: float  # fetched, once all slots are in use
  hit_rate: float  # of the rows that a stretch needs


def predict(
  lookups: Mapping[str, np.ndarray], num_slots: int, most_steps: int
) -> dict[str, Predicted]:
  """By table, what [vocab] lookups of each step make of a cache they share.

  A row is there if any table used it within a time in which as many others were
  used as there are slots (Che's approximation, of LRU; LFU fetches a little
  less).
  """
  of_any = np.max(list(lookups.values()), 0)
  low, high = 1e-3, 1e9
  for _ in range(60):  # by bisection
    middle = (low * high) ** 0.5
    is_less = expected_rows(of_any * middle) < num_slots
    low, high = (middle, high) if is_less else (low, middle)
  num_steps = min(low, most_steps)
  found = {}
  for name, each in lookups.items():
    needs = -np.expm1(-each * num_steps)
    misses = float(np.sum(needs * np.exp(-of_any * low)))
    hit_rate = 1 - misses / needs.sum()
    found[name] = Predicted(num_steps, misses / num_steps, hit_rate)
  return found


def _padded(x: np.ndarray, size: int, value: int = 0) -> np.ndarray:
  widths = [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)
  return np.pad(x, widths, constant_values=value)


def _bucket(num: int) -> int:
  return max(_LEAST_ROWS, 1 << (num - 1).bit_length()) if num else 0


def _view(array: jax.Array) -> np.ndarray:
  """[n, bytes] uint8, an array of a CPU as it is in memory, to be changed.

  Nothing that was computed with it is under way, and nobody else has it.
  """
  place = (ctypes.c_uint8 * array.nbytes).from_address(
    array.unsafe_buffer_pointer()
  )
  return np.frombuffer(place, np.uint8).reshape(len(array), -1)


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

  # What `take_counts` may have: rows and bytes that came to the device and that
  # went, different rows that stretches needed; time for both, and of it, time
  # in which the device had nothing to do.
  COUNTS = (
    'rows_needed',
    'rows_fetched',
    'rows_stored',
    'bytes_fetched',
    'bytes_stored',
    'fetch_secs',
    'fetch_waited_secs',
  )

  def __init__(
    self,
    trainable: base.Trainable,
    caches: list[cache_lib.Cache],
    make_store: Callable[..., stores.Store],
    stretch_steps: int = 64,
  ):
    """Tables are `tables.cached.Cached`; each is in one of the caches.

    `make_store` makes the store of a table of its name, number of rows, bytes
    of a record and function that makes the first records of ids. Ids of
    `stretch_steps` are found at once.
    """
    self.trainable, self.caches = trainable, caches
    self.tables: Mapping[str, cached.Cached] = trainable.tables
    self.size = stretch_steps
    self._make_store = make_store
    self._stores: dict[str, stores.Store] = {}
    self._thread = futures.ThreadPoolExecutor(1, 'fetch')
    self._copying = futures.ThreadPoolExecutor(len(trainable.tables), 'copy')
    self._tasks: list[futures.Future] = []
    self._next: tuple[Any, int, futures.Future] | None = None
    self._expected: tuple[Any, base.Schedule] | None = None
    self._is_flushed, self._has_told = True, False
    self._ids_ahead: _Ids | None = None
    # Whether the device has its rows in the memory of this process.
    self._is_shared_memory = False
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
    """[size, ...], ids of the model in steps from `first` on; and count."""
    given = self.trainable.with_arrays(constants)
    count = jnp.max(given.steps.num_steps(batch))
    stop = jnp.minimum(count, first + self.size)
    span = schedule.last_progress - schedule.first_progress
    advance = span / jnp.maximum(count, 1).astype(jnp.float32)

    def ids_of(i):
      progress = schedule.first_progress + advance * i.astype(jnp.float32)
      step = given.steps.step(batch, i, _ALONE, progress)
      return given.model.ids(step, schedule.key)

    def put(i, made):
      return jax.tree.map(lambda x, y: x.at[i - first].set(y), made, ids_of(i))

    made = jax.tree.map(
      lambda x: jnp.zeros((self.size, *x.shape), x.dtype),
      jax.eval_shape(ids_of, first),
    )
    return jax.lax.fori_loop(first, stop, put, made), count

  def _steps(self, state, measured, constants, slot_of, *args):
    """Steps of a stretch; `at` are first, stop, count and the first of ids."""
    batch, schedule, ids, (*at, first) = args
    given, devices = self._given(constants, slot_of), base.Devices(_ALONE)

    def ids_of(i):
      return jax.tree.map(lambda x: x[i - first], ids)

    args = given, batch, schedule, devices, (state, measured), *at
    return base.training_steps(*args, ids_of)

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
    plan, run = self._programs
    args = constants, batch, schedule, number
    self._plan = plan.lower(*args).compile()
    ids, _ = plan.eval_shape(*args)
    args = state, measured, constants, self._slots(), batch, schedule, ids
    self._run = run.lower(*args, (number,) * 4).compile()
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
    self._ids_ahead = None
    self.caches = [dataclasses.replace(x) for x in self.caches]
    for i, name in enumerate(sorted(self.tables)):
      self._new_store(name, jax.random.fold_in(key, i))
    return jax.jit(self.trainable.init)(key)

  def _new_store(self, name, key):
    if name in self._stores:
      self._stores[name].close()
    table, record = self.tables[name], self.records[name]
    spec, codec = table.spec, codecs.Codec(table.spec)

    @jax.jit
    def first(key, ids):
      slots = table.optimizer.init(len(ids), spec.dim)
      slots = [getattr(slots, k) for k in sorted(table.slot_reductions)]
      return jax.tree.leaves(codec.init(key, ids)), slots

    rows, slots = jax.device_get(first(key, np.zeros(1, np.int32)))
    bits = np.asarray(jax.random.key_data(key)).reshape(-1)[:2]

    def make(ids):
      new = [np.repeat(x, len(ids), 0) for x in rows]
      if spec.init_scale and spec.dtype == 'int8':
        padded = _padded(ids.astype(np.int32), _bucket(len(ids)))
        new = jax.device_get(first(key, padded))[0]
        new = [x[: len(ids)] for x in new]
      elif spec.init_scale:
        # Without JAX, whose programs would wait for the steps.
        columns = np.arange(spec.dim)
        new = sampling.uniform_rows(bits, ids, columns, spec.init_scale)
        new = spec_lib.to_stored(spec_lib.encode_rows(new, spec.dtype))
      return record.pack(new + [np.repeat(x, len(ids), 0) for x in slots])

    sizes = spec.vocab, record.num_bytes
    self._stores[name] = self._make_store(name, *sizes, make)
    self._is_shared_memory = jax.default_backend() == 'cpu' and all(
      getattr(x, 'swap', None) for x in self._stores.values()
    )

  def _slots(self):
    if not self._slot_of:
      self._slot_of = [jnp.array(x.slot_of) for x in self.caches]
    return self._slot_of

  def _request(self, constants, batch, schedule, first):
    """Has the rows of a stretch from step `first` on fetched."""
    ids = self._ids_ahead
    if ids is None or ids.batch is not batch or first >= ids.first + self.size:
      # Before the steps that come now, or it would wait for them.
      planned = self._plan(constants, batch, schedule, np.int32(first))
      ids = self._ids_ahead = _Ids(batch, first, planned)
    self._next = batch, first, self._thread.submit(self._fetch, ids, first)

  def _fetch(self, ids, first):
    """In the thread: gives slots to a stretch's rows, and reads those."""
    by_table, count = ids.on_host(self.tables)
    start = time.monotonic()
    here = range(first - ids.first, min(self.size, count - ids.first))
    moves, num_steps = [], len(here)
    for i, cache in enumerate(self.caches):
      needed = [[by_table[name][k] for name in cache.names] for k in here]
      try:
        moves.append(cache.admit(needed[:num_steps]))
      except cache_lib.TooSmall as error:
        raise errors.UserError(
          f'a step looks up {error.num_rows:,} different rows, and '
          f'config.table.device_bytes has room for {cache.capacity:,}; raise '
          'it, or lower --config.train.batch_words'
        ) from error
      # Caches that come later may hold fewer; what is here too early stays.
      num_steps = min(num_steps, moves[i].num_steps)
    if num_steps < len(here) and not self._has_told:
      self._has_told = True
      _LOG.info(f'rows of {num_steps} of {count} steps fit at once')
    arrays = {}
    for cache, some in zip(self.caches, moves, strict=True):
      for name in cache.names:
        new = some.into[name][1]
        if self._is_shared_memory:
          self._stores[name].know(new)
        else:
          rows = self._stores[name].read(new)
          arrays[name] = self.records[name].unpack(rows)
        self._count('rows_fetched', len(new))
        self._count('rows_stored', len(some.out[name][1]))
        self._count('rows_needed', some.num_needed[name])
        num_bytes = self.records[name].num_bytes
        self._count('bytes_fetched', num_bytes * len(new))
        self._count('bytes_stored', num_bytes * len(some.out[name][1]))
    self._count('fetch_secs', time.monotonic() - start)
    return Fetched(first + num_steps, count, moves, arrays)

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
    if self._is_shared_memory:
      return self._swap_in_place(state, fetched)
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
      if size := _bucket(len(moves.ids)):
        ids = _padded(moves.ids, size, cache.num_rows)
        at = ids, _padded(moves.slots, size)
        self._slot_of[i] = _point(self._slots()[i], *at)
    if out:
      self._tasks.append(self._thread.submit(self._store, out))
    return state._replace(tables=tables)

  def _swap_in_place(self, state, fetched):
    """The same where the device's memory is that of the store.

    Rows are copied once, from one to the other.
    """
    start = time.monotonic()
    for array, moves in zip(self._slots(), fetched.moves, strict=True):
      _view(array).view(np.int32)[moves.ids, 0] = moves.slots
      swaps = []
      for name, out in moves.out.items():
        arrays = self.tables[name].arrays(state.tables[name])
        args = [_view(x) for x in arrays], out, moves.into[name]
        swaps.append(self._copying.submit(self._stores[name].swap, *args))
      for swap in swaps:
        swap.result()
    secs = time.monotonic() - start
    self._count('fetch_secs', secs)
    self._count('fetch_waited_secs', secs)
    return state

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
      ids = self._ids_ahead
      # Only what comes when the device has nothing to do is waited for.
      jax.block_until_ready(state)
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
      at = tuple(map(np.int32, (first, stop, count, ids.first)))
      args = constants, self._slots(), batch, schedule, ids.planned[0], at
      state, measured = self._run(state, measured, *args)
      if stop >= count:
        break
      first = stop
    metrics = self._finish(measured, batch, np.int32(count))
    self._count('fetch_waited_secs', waited)
    return state, metrics

  @property
  def store_bytes(self) -> int:
    """Of all rows in the stores."""
    pairs = self.tables.values(), self.records.values()
    return sum(
      x.spec.vocab * record.num_bytes for x, record in zip(*pairs, strict=True)
    )

  def predicted(self, step_centers: int) -> dict[str, Predicted]:
    """By table, what is expected of steps with so many centers."""
    found = {}
    for cache in self.caches:
      lookups = {
        name: self.tables[name].spec.lookups_per_center * step_centers
        for name in cache.names
      }
      found |= predict(lookups, cache.capacity, self.size)
    return found

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
    self._copying.shutdown()
    for store in self._stores.values():
      store.close()


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
