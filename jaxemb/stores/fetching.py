"""Training on tables of which the device has some rows, fetched ahead.

Which rows a step looks up is a function of its batch and key alone. A dispatch
is cut into stretches of steps; while one runs, a thread finds the rows of the
next one, gives them slots on the device (`tables.cache`) and reads those that
are new, or newer elsewhere: from stores that this process has for itself
(`owned_rows`), or from tables that workers share (`shared_rows`). The steps are
those of synchronous training, on slots in place of ids: with stores of their
own tables learn what they would with all rows on the device.

  device  | swap n | steps n ............. | swap n+1 | steps n+1 ......
  thread           | places, rows of n+1 |           | places, rows of n+2

Where a thread can copy rows to slots that the steps do not use (`beside`), and
there are some, swaps have nothing to do, and stretches follow each other.
"""

import collections
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
from jaxemb.stores import cache as cache_lib
from jaxemb.stores import cached, device_rows
from jaxemb.stores import local as stores
from jaxemb.strategies import base
from jaxemb.tables import spec as spec_lib

_LOG = logging.getLogger('jaxemb')
MOST_STEPS = 64  # whose ids are found at once, and of a stretch
_LOOK_AHEAD = 16  # steps


class _Block(NamedTuple):
  """Steps of a dispatch, whose ids were found at once."""

  batch: Any
  schedule: base.Schedule
  first: int  # step
  planned: Any  # ids as on the device, [steps, ...] by table
  count: int = 0  # steps of the dispatch
  ids: Mapping[str, np.ndarray] = {}  # [steps, n] int32, on the host
  examples: np.ndarray | None = None  # [steps] float32

  def on_host(self, names: Iterable[str]) -> '_Block':
    """Once ids are computed, also with those of tables."""
    ids, count, examples = jax.device_get(self.planned)
    count = int(count)
    ids = {k: ids[k].reshape(len(ids[k]), -1) for k in names}
    ids = {k: x[: max(0, count - self.first)] for k, x in ids.items()}
    planned = self.planned[0]
    return self._replace(
      planned=planned, count=count, ids=ids, examples=examples
    )

  @property
  def stop(self) -> int:
    """The step behind the last."""
    return self.first + len(next(iter(self.ids.values())))


class Needed(NamedTuple):
  """The rows of a stretch of steps."""

  stop: int  # the step behind the stretch
  count: int  # steps of the dispatch
  examples: float  # of the stretch, if steps are shared
  caches: list[cache_lib.Cache]
  moves: list[cache_lib.Moves]  # of each cache
  # By table, [n] int32 ids that each step looks up, with repetitions.
  lookups: dict[str, list[np.ndarray]]
  is_first: bool  # stretch of the dispatch
  # By table, `device_rows.view` of its arrays, if rows may move beside steps;
  # and what waits until the stretch before the one that runs has ended.
  views: dict[str, list[np.ndarray]]
  wait: Callable[[], Any]


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
  # Whether `fetch` has rows go and come that may do so beside steps.
  is_beside: bool
  copy_bytes: int  # of copies in this process of rows that others change, too
  records: Mapping[str, stores.Record]  # by table
  stores: Mapping[str, stores.Store]  # by table, once there is a state

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
  ) -> tuple[dict[str, Any], int, float]:
    """Has rows go from tables' states and those come that were fetched.

    `later` has something done beside the steps, before the next `fetch`.
    Returns the states, the steps of the dispatch over which the learning rate
    falls, and the examples of the stretch, of all who share it.
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
    opt_state: Mapping[str, np.ndarray],
  ) -> None:
    """Replaces rows [n, dim] float32 of ids [n] that no device has."""

  def close(self) -> None:
    """Ends what it has begun, but for the stores."""


class Dense(Protocol):
  """Dense parameters that others train, too."""

  # Whether a step is one of all: each takes a share of it.
  shares_steps: bool

  def exchange(
    self,
    state: base.TrainState,
    num_steps: int,
    learning_rate: np.float32,
    examples: float,
  ) -> base.TrainState:
    """A state after a stretch of steps with what others have learned, too.

    Of a shared step its optimizer's state is the gradient of this share
    (`strategies.base.gathered`), of all of the step's examples.
    """


def _done(value):
  future = futures.Future()
  future.set_result(value)
  return future


def _end(array):
  """Waits for it; when it was computed, or seen to be."""
  array.block_until_ready()
  return time.monotonic()


def _has_late(moves):
  return any(len(x) for x, _ in (*moves.out.values(), *moves.into.values()))


def expected_rows(lookups: np.ndarray) -> float:
  """Different rows among lookups, of which [vocab] each are expected."""
  return float(-np.expm1(-lookups).sum())


def _share(num_parts: int, schedule: base.Schedule) -> data_base.Share:
  """All examples of the parts in a batch."""
  return data_base.Share(
    before=schedule.parts_before,
    first_part=0,
    num_parts=num_parts,
    split=0,
    num_splits=1,
  )


def _num_bytes(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


class Fetching:
  """A strategy's step, before it is compiled or after, and its stores."""

  def __init__(
    self,
    trainable: base.Trainable,
    caches: list[cache_lib.Cache],
    rows: Rows,
    most_steps: int = 8,
    lend: Callable[[int], None] = lambda cores: None,
  ):
    """Tables are `tables.cached.Cached`; each is in one of the caches.

    A stretch has at most so many steps; `lend` has the steps do without as many
    more cores.
    """
    self.trainable, self.caches, self.rows = trainable, caches, rows
    self._lend, self._dense = lend, None
    self.tables: Mapping[str, cached.Cached] = trainable.tables
    self.size = MOST_STEPS
    self.most_steps = min(most_steps, self.size)
    self._thread = futures.ThreadPoolExecutor(1, 'fetch')
    self._clock = futures.ThreadPoolExecutor(1, 'clock')
    self._has_told = False
    self._counts = Counts()
    self._forget()
    self._programs = (
      jax.jit(self._ids),
      jax.jit(self._steps, donate_argnums=0),
    )
    self._plan, self._run = self._programs

  def _forget(self):
    self._tasks: list[futures.Future] = []
    self._next: futures.Future | None = None  # stretch
    self._expected: tuple[Any, base.Schedule] | None = None
    self._is_flushed = True
    # Batches and schedules whose ids are not yet sought, and the first step;
    # steps whose ids are, and those that are known and not yet fetched.
    self._coming: collections.deque = collections.deque()
    self._sought: _Block | None = None
    self._blocks: collections.deque[_Block] = collections.deque()
    self._first = 0  # step of the next stretch
    self._last_batch: Any = None  # that is coming
    # When the last two stretches ended.
    self._ended = [_done(0.0), _done(0.0)]

  def share(self, dense: Dense) -> None:
    """Exchanges dense parameters from now on; before there is a state."""
    self._dense = dense
    if dense.shares_steps:
      more = {'dense': base.gathered}
      self.trainable = dataclasses.replace(self.trainable, **more)

  @property
  def _shares_steps(self):
    return self._dense is not None and self._dense.shares_steps

  # Programs.

  def _ids(self, constants, batch, schedule, first):
    """[size, ...], ids of the model in steps from `first` on.

    With the steps of the dispatch, and [size] examples of each, if these are
    shared.
    """
    given = self.trainable.with_arrays(constants)
    num_steps = given.steps.num_steps(batch)
    count, share = jnp.max(num_steps), _share(len(num_steps), schedule)
    stop = jnp.minimum(count, first + self.size)
    span = schedule.last_progress - schedule.first_progress
    advance = span / jnp.maximum(count, 1).astype(jnp.float32)

    def examples_of(step, ids):
      # Of the loss, XLA keeps what they need.
      params = jax.eval_shape(given.model.init, jax.random.key(0))
      params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
      tables = self.tables.items()
      rows = {k: jnp.zeros((*ids[k].shape, x.spec.dim)) for k, x in tables}
      return given.model.loss(params, rows, ids, batch=step, key=schedule.key)[
        1
      ].examples

    def ids_of(i):
      progress = schedule.first_progress + advance * i.astype(jnp.float32)
      step = given.steps.step(batch, i, share, progress)
      ids = given.model.ids(step, schedule.key)
      num = examples_of(step, ids) if self._shares_steps else jnp.float32(0)
      return ids, num

    def put(i, made):
      return jax.tree.map(lambda x, y: x.at[i - first].set(y), made, ids_of(i))

    made = jax.tree.map(
      lambda x: jnp.zeros((self.size, *x.shape), x.dtype),
      jax.eval_shape(ids_of, first),
    )
    ids, examples = jax.lax.fori_loop(first, stop, put, made)
    return ids, count, examples

  def _steps(self, state, measured, constants, *args):
    """Steps of a stretch; `at` are first, stop, count and the first of ids."""
    batch, schedule, ids, places, (*at, first_ids), examples = args
    given = self.trainable.with_arrays(constants)
    num_parts = len(given.steps.num_steps(batch))
    devices = base.Devices(_share(num_parts, schedule))

    def ids_of(i):
      own = jax.tree.map(lambda x: x[i - first_ids], ids)
      found = {k: x[i - at[0]].reshape(own[k].shape) for k, x in places.items()}
      return own, found

    args = given, batch, schedule, devices, (state, measured), *at
    whole = examples if self._shares_steps else None
    return base.training_steps(*args, ids_of, whole)

  @functools.cached_property
  def _finish(self):
    def finish(measured, batch, count):
      return base.over_devices(
        self.trainable, metrics=measured, batch=batch, num_steps=count, axes=()
      )

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
    ids, *_ = plan.eval_shape(*args)
    places = {
      k: np.zeros((self.most_steps, ids[k].size // self.size), np.int32)
      for k in self.tables
    }
    self._run = run.lower(
      state,
      measured,
      constants,
      batch,
      schedule,
      ids,
      places,
      np.zeros(4, np.int32),
      np.float32(0),
    ).compile()
    arrays = (x.arrays(state.tables[k]) for k, x in self.tables.items())
    sizes = {tuple(x.shape) for xs in arrays for x in xs}
    if sizes & hlo.copied_arrays(self.as_text()):
      # Rows that were written to the other copy meanwhile would be lost.
      self.rows.is_beside = False
    return self

  def compile(self) -> 'Fetching':
    """The same."""
    return self

  def as_text(self) -> str:
    """The program of a stretch."""
    return self._run.as_text()

  def memory_analysis(self) -> Any:
    """What the compiled steps need."""
    return self._run.memory_analysis()

  # Rows.

  def init(self, key: jax.Array) -> base.TrainState:
    """A state with no rows, and stores as of a new table."""
    if self._next is not None:
      futures.wait([self._next])
    self._finish_tasks()
    self._forget()
    self.caches = [dataclasses.replace(x) for x in self.caches]
    names = enumerate(sorted(self.tables))
    self.rows.init({k: jax.random.fold_in(key, i) for i, k in names})
    return jax.jit(self.trainable.init)(key)

  def _seek(self, constants):
    """Has ids of the next steps computed, which are not on the host."""
    if self._sought is None and self._coming:
      batch, schedule, first = self._coming.popleft()
      planned = self._plan(constants, batch, schedule, np.int32(first))
      self._sought = _Block(
        batch=batch, schedule=schedule, first=first, planned=planned
      )

  def _look_ahead(self, constants):
    """Has the caches know of as many steps as can be, or enough."""
    self._seek(constants)
    while self._sought and (
      not self._blocks or self._blocks[-1].stop - self._first < _LOOK_AHEAD
    ):
      block = self._sought.on_host(self.tables)
      self._blocks.append(block)
      for cache in self.caches:
        ids = (block.ids[name] for name in cache.names)
        cache.foresee(list(zip(*ids, strict=True)))
      self._sought = None
      if block.stop < block.count:
        self._coming.appendleft((*block[:2], block.stop))
      self._seek(constants)

  def _fetch(self, constants, views, ended):
    """In the thread, on one core of its own: see `_prepare`."""
    self._lend(1)
    try:
      return self._prepare(constants, views, ended)
    finally:
      self._lend(-1)

  def _prepare(self, constants, views, ended):
    """Gives slots to a stretch's rows, and reads those."""
    self._look_ahead(constants)
    start = time.monotonic()
    block, first = self._blocks[0], self._first
    here, is_beside = first - block.first, self.rows.is_beside
    num_steps = most = min(self.most_steps, block.stop - first)
    for cache in self.caches:
      try:
        num_steps = cache.num_fitting(num_steps, is_beside)
      except cache_lib.TooSmall as error:
        raise errors.UserError(
          f'a step looks up {error.num_rows:,} different rows, and '
          f'config.table.device_bytes has room for {cache.capacity:,}; raise '
          'it, or lower --config.train.batch_words, or of examples '
          '.batch_examples'
        ) from error
    if num_steps < most and not self._has_told:
      self._has_told = True
      _LOG.info(f'rows of {num_steps} of {block.count} steps fit at once')
    moves = [x.take(num_steps, is_beside) for x in self.caches]
    for some in moves:
      self._counts.add(rows_needed=sum(some.num_needed.values()))
    lookups = {k: list(x[here:][:num_steps]) for k, x in block.ids.items()}
    places = {}
    for cache in self.caches:
      for name in cache.names:
        ids = block.ids[name][here:][:num_steps]
        places[name] = np.zeros((self.most_steps, ids.shape[1]), np.int32)
        cache.places(
          ids.reshape(-1),
          self.tables[name].slots.spec.vocab,
          places[name].reshape(-1),
        )
    places = jax.device_put(places)
    self._first = stop = first + num_steps
    if stop == block.stop:
      self._blocks.popleft()
      self._first = stop if stop < block.count else 0
    waited = 0.0

    def wait():
      nonlocal waited
      before = time.monotonic()
      self._lend(-1)
      ended.result()
      self._lend(1)
      waited += time.monotonic() - before

    examples = float(block.examples[here:][:num_steps].sum())
    needed = Needed(
      stop=stop,
      count=block.count,
      examples=examples,
      caches=self.caches,
      moves=moves,
      lookups=lookups,
      is_first=not first,
      views=views,
      wait=wait,
    )
    fetched = self.rows.fetch(needed, self._counts)
    self._counts.add(fetch_secs=time.monotonic() - start - waited)
    return block, first, needed, places, fetched

  def _request(self, constants, tables):
    """Has the next stretch fetched, while one begins to run on these tables."""
    views = self._views(tables) if self.rows.is_beside else {}
    self._next = self._thread.submit(
      self._fetch, constants, views, self._ended[1]
    )

  def _views(self, tables):
    arrays = {k: x.arrays(tables[k]) for k, x in self.tables.items()}
    return {k: [device_rows.view(x) for x in xs] for k, xs in arrays.items()}

  def _later(self, task):
    self._tasks.append(self._thread.submit(task))

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
    measured, called = self._no_metrics(), time.monotonic()
    if self._last_batch is not batch:
      self._coming.append((batch, schedule, 0))
      self._last_batch = batch
    if self._expected:
      self._coming.append((*self._expected, 0))
      self._last_batch, self._expected = self._expected[0], None
    if self._next is None:
      self._request(constants, state.tables)
    while True:
      block, first, needed, places, fetched = self._next.result()
      self._next = None
      stop, count = needed.stop, needed.count
      if not self.rows.is_beside or any(map(_has_late, needed.moves)):
        self._ended[1].result()
      if self._ended[1].done():
        # The device has nothing to do.
        since = max(called, self._ended[1].result())
        self._counts.add(fetch_waited_secs=time.monotonic() - since)
      tables, num, examples = self.rows.swap(
        state.tables, needed, fetched, self._counts, self._later
      )
      state = state._replace(tables=tables)
      if stop < count or self._last_batch is not batch:
        # Before the steps, which JAX may have this thread compute.
        self._request(constants, tables)
      at = np.array([first, stop, num, block.first], np.int32)
      state, measured = self._run(
        state,
        measured,
        constants,
        batch,
        schedule,
        block.planned,
        places,
        at,
        np.float32(examples),
      )
      self._ended = [self._ended[1], self._clock.submit(_end, measured.loss)]
      if self._dense and jax.tree.leaves(state.params):
        rate, last = schedule[:2]
        rate += (last - rate) / np.float32(max(num, 1)) * np.float32(first)
        state = self._dense.exchange(state, stop - first, rate, examples)
      if stop >= count:
        break
    return state, self._finish(measured, batch, np.int32(count))

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

  @property
  def dense_bytes(self) -> int:
    """Bytes of dense parameters and their optimizer state."""
    _, *dense = jax.eval_shape(self.trainable.init, jax.random.key(0))
    return _num_bytes(dense)

  def rows_bytes(self, step_centers: int) -> int:
    """Bytes of rows in this process, beside stores, with steps of so many.

    They are rows on a device that has the memory of the process, maps, and rows
    on their way.
    """
    device_bytes = stretch_bytes = 0
    if device_rows.are_in_memory():
      state = jax.eval_shape(self.trainable.init, jax.random.key(0))
      device_bytes = _num_bytes(state)
    map_bytes = sum(x.num_bytes for x in self.caches)
    for name, table in self.tables.items():
      lookups = table.spec.lookups_per_center * step_centers * self.most_steps
      num_rows = min(expected_rows(lookups), table.slots.spec.vocab)
      stretch_bytes += int(num_rows) * self.rows.records[name].num_bytes
    return device_bytes + map_bytes + stretch_bytes + self.rows.copy_bytes

  def take_counts(self) -> dict[str, float]:
    """Rows and seconds since the last call, by name."""
    return self._counts.take()

  # What is on the device, and what is in the stores.

  def _held(self, name):
    """Slots that now have rows of a table, and the ids of these."""
    index = next(i for i, x in enumerate(self.caches) if name in x.names)
    if self._next is not None:
      moves = self._next.result()[2].moves[index]
    slots, ids = self.caches[index].held(name)
    if self._next is not None:
      # The next stretch has its slots, but not yet all its rows.
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

  def rows_on_demand(self, state: Any, name: str) -> spec_lib.RowBlock:
    """All rows of a table, which are read when they are asked for.

    They are those of the state, and to be read before it changes.
    """
    self.flush(state)
    lock = threading.Lock()  # one thread at a time uses a store

    def read(ids):
      with lock:
        return self.rows.export_rows(name, ids)

    return spec_lib.on_demand(read, self.tables[name].spec.vocab)

  def import_rows(
    self,
    state: Any,
    name: str,
    ids: np.ndarray,
    rows: np.ndarray,
    opt_state: Mapping[str, np.ndarray],
  ) -> Any:
    """See `tables.spec.Table`; before training, while no row is held."""
    self.rows.import_rows(name, ids, np.asarray(rows, np.float32), opt_state)
    return state

  # Checkpoints.

  def save(
    self, state: Any, folder: pathlib.Path
  ) -> tuple[Any, dict[str, int]]:
    """Writes the stores to a folder; the rest of the state, and checksums."""
    self.flush(state)
    found = self.rows.stores.items()
    return self.rest(state), {k: x.snapshot(folder / k) for k, x in found}

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
      self.rows.stores[name].restore(folder / name, checksum)
    return state._replace(params=rest['params'], optimizer=rest['optimizer'])

  def close(self) -> None:
    """Removes what is only for this run."""
    self._thread.shutdown(cancel_futures=True)
    self._clock.shutdown()
    self.rows.close()
    for store in self.rows.stores.values():
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
    init=Init(),
    constants=lambda: jax.device_put(constants, named(everywhere)),
    step=step,
    export_rows=step.export_rows,
    import_rows=step.import_rows,
    batch_sharding=named(jax.sharding.PartitionSpec()),
    loop=hlo.Loop(
      step.trainable.steps_per_loop,
      inner=1,
      branch=1 / step.trainable.loss_every_steps,
    ),
    store=step,
  )
