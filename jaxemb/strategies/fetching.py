"""Training on tables of which the device has some rows, fetched ahead.

Which rows a step looks up is a function of its batch and key alone. A dispatch
is cut into stretches of steps; while one runs, a thread finds the rows of the
next one (`plan`), gives them slots on the device (`tables.cache`) and reads
those that are new, or newer elsewhere: from stores that this process has for
itself (`owned_rows`), or from tables that workers share (`shared_rows`). The
steps are those of synchronous training, on tables that know where rows are
(`tables.cached`): with stores of their own they learn what they would with all
rows on the device.

  device  | swap n | plan n+1 | steps n ............ | swap n+1 | plan n+2 | ...
  thread           | write what went | read for n+1  |          | write ...
"""

import dataclasses
import functools
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.runtime import hlo
from jaxemb.strategies import base, device_rows
from jaxemb.tables import cache as cache_lib
from jaxemb.tables import cached
from jaxemb.tables import spec as spec_lib

_LOG = logging.getLogger('jaxemb')


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


class Needed(NamedTuple):
  """The rows of a stretch of steps."""

  stop: int  # the step behind the stretch
  count: int  # steps of the dispatch
  caches: list[cache_lib.Cache]
  moves: list[cache_lib.Moves]  # of each cache
  # By table, [n] int32 ids that each step looks up, with repetitions.
  lookups: dict[str, list[np.ndarray]]
  is_first: bool  # stretch of the dispatch


class Counts:
  """Numbers that threads add to."""

  def __init__(self):
    """Of nothing."""
    self._numbers: dict[str, float] = {}
    self._lock = threading.Lock()

  def add(self, **numbers: float) -> None:
    """Adds numbers by name."""
    with self._lock:
      for name, number in numbers.items():
        self._numbers[name] = self._numbers.get(name, 0) + number

  def take(self) -> dict[str, float]:
    """The sums since the last call."""
    with self._lock:
      numbers, self._numbers = self._numbers, {}
    return numbers


class Rows(Protocol):
  """Where rows are that have no slot, and how they come and go."""

  COUNTS: tuple[str, ...]  # names of what it counts
  records: Mapping[str, Any]  # by table, `stores.Record`

  def init(self, keys: Mapping[str, jax.Array]) -> None:
    """Begins with new tables, each of its key."""

  def fetch(self, needed: Needed, counts: Counts) -> Any:
    """Reads rows of a stretch, while earlier steps change the device's."""

  def swap(
    self,
    tables: dict[str, Any],
    needed: Needed,
    fetched: Any,
    counts: Counts,
    later: Callable[[Callable[[], None]], None],
  ) -> tuple[dict[str, Any], int]:
    """Has rows go from tables' states and those come that were fetched.

    `later` has something done beside the steps, before the next `fetch`.
    Returns the states, and the steps of the dispatch over which the learning
    rate falls.
    """

  def flush(
    self,
    tables: dict[str, Any],
    held: Callable[[str], tuple[np.ndarray, np.ndarray]],
    counts: Counts,
  ) -> dict[str, Any]:
    """Writes what the device has; `held` are slots of a table, and ids.

    Returns the states of the tables.
    """

  def export_rows(self, name: str, ids: np.ndarray) -> spec_lib.RowBlock:
    """Rows of ids [n] of a table, none of which is changed on the device."""

  def import_rows(
    self,
    name: str,
    ids: np.ndarray,
    rows: np.ndarray,
    slots: Mapping[str, np.ndarray],
  ) -> None:
    """Replaces rows [n, dim] float32 of ids [n] that no device has."""

  def save(self, folder: pathlib.Path) -> dict[str, int]:
    """Writes all rows to a folder; returns checksums."""

  def load(self, folder: pathlib.Path, checksums: Mapping[str, int]) -> None:
    """Goes back to what was saved, or raises a ValueError."""

  def close(self) -> None:
    """Removes what is only for this run."""


@functools.partial(jax.jit, donate_argnums=0)
def _point(slot_of, ids, slots):
  return slot_of.at[ids].set(slots, mode='drop')


def expected_rows(lookups: np.ndarray) -> float:
  """Different rows among lookups, of which [vocab] each are expected."""
  return float(-np.expm1(-lookups).sum())


class Predicted(NamedTuple):
  """What is expected of a table, before it is trained."""

  stretch_steps: float  # that have room on the device at once
  rows_per_step: float  # fetched, once all slots are in use
  hit_rate: float  # of the rows that a stretch needs
  needs: np.ndarray  # [vocab], chance that a stretch needs a row
  misses: np.ndarray  # [vocab], and that it is not there then


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
    misses = np.exp(-of_any * low)
    num_misses = float(np.sum(needs * misses))
    hit_rate = 1 - num_misses / needs.sum()
    args = num_steps, num_misses / num_steps, hit_rate
    found[name] = Predicted(*args, needs, misses)
  return found


def _share(schedule: base.Schedule) -> data_base.Share:
  """All examples of the only part in a batch."""
  return data_base.Share(schedule.parts_before, 0, 1, 0, 1)


class Fetching:
  """A strategy's step, before it is compiled or after, and its stores."""

  def __init__(
    self,
    trainable: base.Trainable,
    caches: list[cache_lib.Cache],
    rows: Rows,
    most_steps: int = 64,
  ):
    """Tables are `tables.cached.Cached`; each is in one of the caches.

    A stretch has at most so many steps.
    """
    self.trainable, self.caches, self.rows = trainable, caches, rows
    self.tables: Mapping[str, cached.Cached] = trainable.tables
    self.size = 64  # steps whose ids are found at once
    self.most_steps = min(most_steps, self.size)
    self._thread = futures.ThreadPoolExecutor(1, 'fetch')
    self._tasks: list[futures.Future] = []
    self._next: tuple[Any, int, futures.Future] | None = None
    self._expected: tuple[Any, base.Schedule] | None = None
    self._is_flushed, self._has_told = True, False
    self._ids_ahead: _Ids | None = None
    self._counts = Counts()
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
      step = given.steps.step(batch, i, _share(schedule), progress)
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
    given = self._given(constants, slot_of)
    devices = base.Devices(_share(schedule))

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
    self._is_flushed = True
    names = enumerate(sorted(self.tables))
    self.rows.init({k: jax.random.fold_in(key, i) for i, k in names})
    return jax.jit(self.trainable.init)(key)

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
    task = self._thread.submit(self._fetch, ids, first)
    self._next = batch, first, task

  def _fetch(self, ids, first):
    """In the thread: gives slots to a stretch's rows, and reads those."""
    by_table, count = ids.on_host(self.tables)
    start = time.monotonic()
    here = range(first - ids.first, min(self.size, count - ids.first))
    here = here[: self.most_steps]
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
    for some in moves:
      self._counts.add(rows_needed=sum(some.num_needed.values()))
    lookups = {
      k: list(x[here.start :][:num_steps]) for k, x in by_table.items()
    }
    args = count, self.caches, moves, lookups, not first
    needed = Needed(first + num_steps, *args)
    fetched = self.rows.fetch(needed, self._counts)
    self._counts.add(fetch_secs=time.monotonic() - start)
    return needed, fetched

  def _later(self, task):
    self._tasks.append(self._thread.submit(task))

  def _swap(self, state, needed, fetched):
    """Rows that have to go leave the device, and new ones come."""
    start, slot_of = time.monotonic(), self._slots()
    for i, (cache, moves) in enumerate(
      zip(self.caches, needed.moves, strict=True)
    ):
      if device_rows.are_in_memory():
        view = device_rows.view(slot_of[i]).view(np.int32)
        view[moves.ids, 0] = moves.slots
      elif size := device_rows.bucket(len(moves.ids)):
        ids = device_rows.padded(moves.ids, size, cache.num_rows)
        slots = device_rows.padded(moves.slots, size)
        slot_of[i] = _point(slot_of[i], ids, slots)
    secs = time.monotonic() - start
    self._counts.add(fetch_secs=secs, fetch_waited_secs=secs)
    args = needed, fetched, self._counts, self._later
    tables, count = self.rows.swap(state.tables, *args)
    return state._replace(tables=tables), count

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
      needed, fetched = self._next[2].result()
      waited += time.monotonic() - start
      state, rate_steps = self._swap(state, needed, fetched)
      self._next = None
      stop, count = needed.stop, needed.count
      if stop < count:
        self._request(constants, batch, schedule, stop)
      elif self._expected:
        self._request(constants, *self._expected, 0)
        self._expected = None
      at = tuple(map(np.int32, (first, stop, rate_steps, ids.first)))
      args = constants, self._slots(), batch, schedule, ids.planned[0], at
      state, measured = self._run(state, measured, *args)
      if stop >= count:
        break
      first = stop
    metrics = self._finish(measured, batch, np.int32(count))
    self._counts.add(fetch_waited_secs=waited)
    return state, metrics

  @property
  def counted(self) -> tuple[str, ...]:
    """Names of what `take_counts` has.

    Different rows that stretches needed; what `rows` count; time of fetching,
    and of it, time in which the device had nothing to do.
    """
    of_all = 'rows_needed', 'fetch_secs', 'fetch_waited_secs'
    return of_all + self.rows.COUNTS

  @property
  def store_bytes(self) -> int:
    """Of all rows in the stores."""
    vocabs = {k: x.spec.vocab for k, x in self.tables.items()}
    return sum(x.num_bytes * vocabs[k] for k, x in self.rows.records.items())

  def predicted(self, step_centers: int) -> dict[str, Predicted]:
    """By table, what is expected of steps with so many centers."""
    found = {}
    for cache in self.caches:
      lookups = {
        name: self.tables[name].spec.lookups_per_center * step_centers
        for name in cache.names
      }
      found |= predict(lookups, cache.capacity, self.most_steps)
    return found

  def take_counts(self) -> dict[str, float]:
    """Rows and seconds since the last call, by name."""
    return self._counts.take()

  # What is on the device, and what is in the stores.

  def _held(self, name):
    """Slots that now have rows of a table, and the ids of these."""
    index = next(i for i, x in enumerate(self.caches) if name in x.names)
    slots, ids = self.caches[index].held(name)
    if self._next is not None:
      # The next stretch has its slots, but not yet its rows.
      moves = self._next[2].result()[0].moves[index]
      is_here = ~np.isin(slots, moves.into[name][0])
      pairs = (slots[is_here], ids[is_here]), moves.out[name]
      slots, ids = (np.concatenate(x) for x in zip(*pairs, strict=True))
    return slots, ids

  def flush(self, state: Any) -> Any:
    """Writes what is on the device to the stores, too; returns the state."""
    self._finish_tasks()
    if self._is_flushed:
      return state
    jax.block_until_ready(state)
    tables = self.rows.flush(state.tables, self._held, self._counts)
    self._is_flushed = True
    return state._replace(tables=tables)

  def export_rows(
    self, state: Any, name: str, start: int = 0, stop: int | None = None
  ) -> spec_lib.RowBlock:
    """See `tables.spec.Table`."""
    self.flush(state)
    stop = self.tables[name].spec.vocab if stop is None else stop
    return self.rows.export_rows(name, np.arange(start, stop))

  def import_rows(
    self,
    state: Any,
    name: str,
    ids: np.ndarray,
    rows: np.ndarray,
    slots: Mapping[str, np.ndarray],
  ) -> Any:
    """See `tables.spec.Table`; before training, while no row is held."""
    self.rows.import_rows(name, ids, np.asarray(rows, np.float32), slots)
    return state

  # Checkpoints.

  def save(
    self, state: Any, folder: pathlib.Path
  ) -> tuple[Any, dict[str, int]]:
    """Writes the stores to a folder; the rest of the state, and checksums."""
    self.flush(state)
    return self.rest(state), self.rows.save(folder)

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
    self.rows.load(folder, record['store'])
    return state._replace(params=rest['params'], optimizer=rest['optimizer'])

  def close(self) -> None:
    """Removes what is only for this run."""
    self._thread.shutdown(cancel_futures=True)
    self.rows.close()


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
