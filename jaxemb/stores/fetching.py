"""Training on tables of which the device has some rows, fetched ahead.

Which rows a step looks up is a function of its batch and key alone. A dispatch
is cut into stretches of steps; while one runs, a thread finds the rows of the
next one, gives them cache rows on the device (`stores.cache`) and reads those
that are new, or newer elsewhere: from stores that this process has for itself
(`stores.cached`), or from tables that workers share (`workers.shared_rows`).
The steps are those of synchronous training, on cache rows in place of ids: with
stores of their own tables learn what they would with all rows on the device.

  device  | swap n | steps n ............. | swap n+1 | steps n+1 ......
  thread           | cache, rows of n+1 |            | cache, rows of n+2

Where a thread can copy rows to cache rows that the steps do not use (`beside`),
and there are some, swaps have nothing to do, and stretches follow each other.
"""

import collections
import dataclasses
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.ops import sampling
from jaxemb.runtime import hlo
from jaxemb.stores import cache as cache_lib
from jaxemb.stores import cached
from jaxemb.strategies import base
from jaxemb.tables import spec as spec_lib

_LOG = logging.getLogger('jaxemb')
MOST_STEPS = 64  # whose ids are computed at once, and of a stretch


class Block(NamedTuple):
  """Steps of a dispatch, whose ids were computed at once."""

  batch: Any
  schedule: base.Schedule
  first: int  # step
  # Ids as on the device, [steps, ...] by table, count and examples.
  computed: Any
  # Steps of the dispatch. A field, in place of tuple's method.
  count: int = 0  # type: ignore[assignment]
  ids: Mapping[str, np.ndarray] = {}  # [steps, n] int32, on the host
  examples: np.ndarray | None = None  # [steps] float32

  def on_host(self, names: Iterable[str]) -> 'Block':
    """Waits for the ids and returns them on the host, too."""
    ids, count, examples = jax.device_get(self.computed)
    count = int(count)
    num = max(0, count - self.first)
    return self._replace(
      computed=self.computed[0],
      count=count,
      ids={k: ids[k].reshape(len(ids[k]), -1)[:num] for k in names},
      examples=examples,
    )

  @property
  def stop(self) -> int:
    """The step behind the last."""
    return self.first + len(next(iter(self.ids.values())))


class Stretch(NamedTuple):
  """Steps that run at once, and the rows that they need."""

  block: Block
  first: int  # step
  num_steps: int
  caches: Sequence[cache_lib.Cache]
  moves: list[cache_lib.Moves]  # of each cache
  # By table, `Cached.views`, if rows may move beside steps; and what waits
  # until the stretch before the one that runs has ended.
  views: Mapping[str, list[np.ndarray]]
  wait: Callable[[], Any]

  @property
  def stop(self) -> int:
    """The step behind the last."""
    return self.first + self.num_steps

  @property
  def lookups(self) -> dict[str, np.ndarray]:
    """By table, [num_steps, n] int32 ids, with repetitions."""
    return {k: x[self._slice] for k, x in self.block.ids.items()}

  @property
  def examples(self) -> float:
    """Of all its steps, if they are shared."""
    examples = self.block.examples
    assert examples is not None
    return float(examples[self._slice].sum())

  @property
  def _slice(self):
    return slice(self.first - self.block.first, self.stop - self.block.first)

  @property
  def has_late(self) -> bool:
    """Whether rows move between the stretch before and this one."""
    return any(
      len(cache_rows)
      for moves in self.moves
      for cache_rows, _ in (*moves.out.values(), *moves.into.values())
    )


class _Upcoming:
  """The steps to come, in order; caches foresee those whose ids are known."""

  def __init__(
    self,
    compute_ids: Callable[..., Any],
    names: Iterable[str],
    caches: Sequence[cache_lib.Cache],
  ):
    """`compute_ids` has (constants, batch, schedule, first step)."""
    self._compute_ids, self._names, self._caches = compute_ids, names, caches
    # Batches, schedules and first steps whose ids are not asked for.
    self._batches: collections.deque = collections.deque()
    self._computing: Block | None = None
    self._blocks: collections.deque[Block] = collections.deque()
    self.first = 0  # step of the next stretch
    self.last_batch: Any = None

  def append(self, batch: Any, schedule: base.Schedule) -> None:
    """Adds a dispatch, unless it was the last that was added."""
    if batch is not self.last_batch:
      self._batches.append((batch, schedule, 0))
      self.last_batch = batch

  @property
  def block(self) -> Block:
    """The block of the next stretch, after `look`."""
    return self._blocks[0]

  def look(self, constants: Any) -> None:
    """Has caches foresee as many steps as are known, or enough."""
    self._compute_next(constants)
    while self._computing and self._num_known() < cache_lib.LOOK_AHEAD:
      block, self._computing = self._computing.on_host(self._names), None
      self._blocks.append(block)
      for cache in self._caches:
        ids = (block.ids[name] for name in cache.names)
        cache.foresee(list(zip(*ids, strict=True)))
      if block.stop < block.count:
        self._batches.appendleft((block.batch, block.schedule, block.stop))
      self._compute_next(constants)

  def _num_known(self):
    """Returns the number of steps whose ids are known."""
    if not self._blocks:
      return 0
    taken = self.first - self.block.first
    return sum(x.stop - x.first for x in self._blocks) - taken

  def _compute_next(self, constants):
    """Has ids of the next steps computed, while others are used."""
    if self._computing is None and self._batches:
      batch, schedule, first = self._batches.popleft()
      computed = self._compute_ids(constants, batch, schedule, np.int32(first))
      self._computing = Block(
        batch=batch, schedule=schedule, first=first, computed=computed
      )

  def advance(self, num_steps: int) -> None:
    """Goes on behind a stretch of so many steps."""
    block, self.first = self.block, self.first + num_steps
    if self.first == block.stop:
      self._blocks.popleft()
      if self.first == block.count:
        self.first = 0


def _end(array):
  """Waits for it; when it was computed, or seen to be."""
  array.block_until_ready()
  return time.monotonic()


def expected_rows(lookups: np.ndarray) -> float:
  """Returns the expected number of different rows among [vocab] lookups."""
  return float(-np.expm1(-lookups).sum())


def _all_examples(num_parts: int, schedule: base.Schedule) -> data_base.Share:
  """All examples of the parts in a batch."""
  return data_base.Share(
    before=cast(jax.Array, schedule.parts_before),  # in a program
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
    rows: cached.Rows,
    most_steps: int = 8,
    lend: Callable[[int], None] = lambda cores: None,
  ):
    """Tables are `stores.cached.Cached`; each is in one of the caches.

    A stretch has at most so many steps; `lend` takes as many more cores from
    the steps.
    """
    self.trainable, self.rows = trainable, rows
    self._lend, self._dense = lend, None
    self.tables = cast(Mapping[str, cached.Cached], trainable.tables)
    self.most_steps = min(most_steps, MOST_STEPS)
    self._thread = futures.ThreadPoolExecutor(1, 'fetch')
    self._clock = futures.ThreadPoolExecutor(1, 'clock')
    self._has_logged = False
    self._programs = (
      jax.jit(self._ids),
      jax.jit(self._steps, donate_argnums=0),
    )
    # Or compiled.
    self._compute_ids: Callable[..., Any] = self._programs[0]
    self._run: Callable[..., Any] = self._programs[1]
    self._no_metrics = jax.jit(lambda: self.trainable.no_metrics())
    self._finish = jax.jit(
      lambda measured, batch, count: base.over_devices(
        self.trainable, metrics=measured, batch=batch, num_steps=count, axes=()
      )
    )
    self._begin(caches)

  def _begin(self, caches):
    """Begins with no rows on the device."""
    self.caches = caches
    self._ahead = _Upcoming(
      lambda *args: self._compute_ids(*args), list(self.tables), caches
    )
    self._expected: tuple[Any, base.Schedule] | None = None
    # The stretch that is fetched; its cache rows by table, [most_steps, n]
    # int32 on the device; and what `Rows.fetch` returns.
    self._next: futures.Future | None = None
    self._is_flushed, self._num_steps = True, 0  # steps in all stretches
    # When the last two stretches ended.
    self._ended = [self._clock.submit(time.monotonic)] * 2

  def share(self, dense: Any) -> None:
    """Exchanges dense parameters by a `workers.dense.Exchange` from now on.

    Before there is a state.
    """
    self._dense = dense
    if dense.shares_steps:
      self.trainable = dataclasses.replace(self.trainable, dense=base.gathered)

  @property
  def _shares_steps(self):
    return self._dense is not None and self._dense.shares_steps

  # Programs.

  def _ids(self, constants, batch, schedule, first):
    """Returns [MOST_STEPS, ...] ids of the model in steps from `first` on.

    With the steps of the dispatch, and examples [MOST_STEPS], if these are
    shared.
    """
    trainable = self.trainable.with_arrays(constants)
    num_steps = trainable.steps.num_steps(batch)
    count = jnp.max(num_steps)
    examples = _all_examples(len(num_steps), schedule)
    stop = jnp.minimum(count, first + MOST_STEPS)
    span = schedule.last_progress - schedule.first_progress
    advance = span / jnp.maximum(count, 1).astype(jnp.float32)

    def ids_of(i):
      progress = schedule.first_progress + advance * i.astype(jnp.float32)
      step = trainable.steps.step(batch, i, examples, progress)
      ids, num = trainable.model.ids(step, schedule.key), jnp.float32(0)
      if self._shares_steps:
        num = self._num_examples(trainable.model, step, ids, key=schedule.key)
      return ids, num

    def put(i, computed):
      return jax.tree.map(
        lambda x, y: x.at[i - first].set(y), computed, ids_of(i)
      )

    empty = jax.tree.map(
      lambda x: jnp.zeros((MOST_STEPS, *x.shape), x.dtype),
      jax.eval_shape(ids_of, first),
    )
    ids, num_examples = jax.lax.fori_loop(first, stop, put, empty)
    return ids, count, num_examples

  def _num_examples(self, model, step, ids, key):
    """Examples of a step: of the loss, XLA keeps what they need."""
    params = jax.eval_shape(model.init, sampling.key_shape())
    params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
    tables = self.tables.items()
    rows = {k: jnp.zeros((*ids[k].shape, x.spec.dim)) for k, x in tables}
    _, aux = model.loss(params, rows, ids, batch=step, key=key)
    return aux.examples

  def _steps(
    self, state, measured, constants, batch, schedule, ids, cache_rows, at,
    examples,
  ):  # fmt: skip
    """Steps of a stretch; `at` are first, stop, count and the first of ids."""
    trainable = self.trainable.with_arrays(constants)
    first, stop, count, first_ids = at

    def ids_of(i):
      step_ids = jax.tree.map(lambda x: x[i - first_ids], ids)
      rows = {
        k: x[i - first].reshape(step_ids[k].shape)
        for k, x in cache_rows.items()
      }
      return step_ids, rows

    num_parts = len(trainable.steps.num_steps(batch))
    return base.training_steps(
      trainable,
      batch,
      schedule,
      devices=base.Devices(_all_examples(num_parts, schedule)),
      carry=(state, measured),
      first=first,
      stop=stop,
      count=count,
      ids_of=ids_of,
      examples=examples if self._shares_steps else None,
    )

  # As a compiled function.

  def lower(
    self, state: Any, constants: Any, batch: Any, schedule: base.Schedule
  ) -> 'Fetching':
    """As of `jax.jit`: the program of a stretch is compiled now."""
    compute_ids, run = self._programs
    args = constants, batch, schedule, np.int32(0)
    self._compute_ids = compute_ids.lower(*args).compile()
    ids, *_ = compute_ids.eval_shape(*args)
    cache_rows = {
      k: np.zeros((self.most_steps, ids[k].size // MOST_STEPS), np.int32)
      for k in self.tables
    }
    self._run = run.lower(
      state,
      self._no_metrics(),
      constants,
      batch=batch,
      schedule=schedule,
      ids=ids,
      cache_rows=cache_rows,
      at=np.zeros(4, np.int32),
      examples=np.float32(0),
    ).compile()
    arrays = (x.arrays(state.tables[k]) for k, x in self.tables.items())
    sizes = {tuple(x.shape) for xs in arrays for x in xs}
    if sizes & hlo.copied_arrays(self.as_text()):
      # Rows that were written to the other copy meanwhile would be lost.
      self.rows.is_beside = False
    return self

  def compile(self) -> 'Fetching':
    """Returns the same."""
    return self

  def as_text(self) -> str:
    """The program of a stretch."""
    return cast(jax.stages.Compiled, self._run).as_text() or ''

  def memory_analysis(self) -> Any:
    """What the compiled steps need."""
    return cast(jax.stages.Compiled, self._run).memory_analysis()

  # Rows.

  def init(self, key: jax.Array) -> base.TrainState:
    """Returns a state without rows; stores are as of a new table."""
    self._wait_for_next()
    self._begin([dataclasses.replace(x) for x in self.caches])
    names = enumerate(sorted(self.tables))
    self.rows.init({k: jax.random.fold_in(key, i) for i, k in names})
    # Rows are written into its memory, which has to be there.
    return jax.block_until_ready(jax.jit(self.trainable.init)(key))

  def _wait_for_next(self):
    """Waits until the thread uses no store."""
    if self._next is not None:
      futures.wait([self._next])

  def _num_fitting(self, block, first):
    """Returns how many steps of a block the caches have room for at once."""
    most = min(self.most_steps, self.rows.stretch_limit(self._num_steps))
    num_steps = most = min(most, block.stop - first)
    for cache in self.caches:
      try:
        num_steps = cache.num_fitting(num_steps, self.rows.is_beside)
      except cache_lib.TooSmall as error:
        raise errors.UserError(
          f'a step looks up {error.args[0]:,} different rows, and '
          f'config.table.device_bytes has room for {cache.capacity:,}; raise '
          'it, or lower --config.train.batch_words, or of examples '
          '.batch_examples'
        ) from error
    if num_steps < most and not self._has_logged:
      self._has_logged = True
      _LOG.info(f'rows of {num_steps} of {block.count} steps fit at once')
    return num_steps

  def _cache_rows(self, ids):
    """Returns the cache rows of ids [steps, n], for `most_steps` steps."""
    cache_rows = {}
    for cache in self.caches:
      for name in cache.names:
        num = ids[name].shape[1]
        cache_rows[name] = np.zeros((self.most_steps, num), np.int32)
        cache.look_up(
          ids[name].reshape(-1),
          padding=self.tables[name].num_rows,
          out=cache_rows[name].reshape(-1),
        )
    return jax.device_put(cache_rows)

  def _fetch(self, constants, views, ended):
    """Gives cache rows to the rows of the next stretch, and reads those.

    In the thread, on one core of its own but while it waits.
    """
    waited = 0.0

    def wait():
      nonlocal waited
      before = time.monotonic()
      self._lend(-1)
      ended.result()
      self._lend(1)
      waited += time.monotonic() - before

    self._lend(1)
    try:
      self._ahead.look(constants)
      start, block = time.monotonic(), self._ahead.block
      first, counts = self._ahead.first, self.rows.counts
      num_steps = self._num_fitting(block, first)
      moves = [x.take(num_steps, self.rows.is_beside) for x in self.caches]
      stretch = Stretch(
        block=block,
        first=first,
        num_steps=num_steps,
        caches=self.caches,
        moves=moves,
        views=views,
        wait=wait,
      )
      cache_rows = self._cache_rows(stretch.lookups)
      self._ahead.advance(num_steps)
      self._num_steps += num_steps
      counts.add(rows_needed=sum(x.num_needed for x in moves))
      fetched = self.rows.fetch(stretch)
      counts.add(fetch_secs=time.monotonic() - start - waited)
      return stretch, cache_rows, fetched
    finally:
      self._lend(-1)

  def _request(self, constants, tables):
    """Has the next stretch fetched, while one begins to run on these tables."""
    views = {}
    if self.rows.is_beside:
      views = {k: x.views(tables[k]) for k, x in self.tables.items()}
    self._next = self._thread.submit(
      self._fetch, constants, views, self._ended[1]
    )

  def expect(self, batch: Any, schedule: base.Schedule) -> None:
    """Announces the batch of the next call, so that its rows are fetched."""
    self._expected = batch, schedule

  def __call__(
    self, state: Any, constants: Any, batch: Any, schedule: base.Schedule
  ) -> tuple[Any, base.DispatchMetrics]:
    """Runs all steps of a dispatch."""
    self._is_flushed = False
    measured, called = self._no_metrics(), time.monotonic()
    self._ahead.append(batch, schedule)
    if self._expected:
      self._ahead.append(*self._expected)
      self._expected = None
    if self._next is None:
      self._request(constants, state.tables)
    while True:
      assert self._next is not None
      (stretch, cache_rows, fetched), self._next = self._next.result(), None
      self._wait_for_steps(stretch, called)
      tables, num, examples = self.rows.swap(state.tables, stretch, fetched)
      state = state._replace(tables=tables)
      block, first, stop = stretch.block, stretch.first, stretch.stop
      if stop < block.count or self._ahead.last_batch is not batch:
        # Before the steps, which JAX may have this thread compute.
        self._request(constants, tables)
      state, measured = self._run(
        state,
        measured,
        constants,
        batch=batch,
        schedule=schedule,
        ids=block.computed,
        cache_rows=cache_rows,
        at=np.array([first, stop, num, block.first], np.int32),
        examples=np.float32(examples),
      )
      self._ended = [self._ended[1], self._clock.submit(_end, measured.loss)]
      if self._dense and jax.tree.leaves(state.params):
        rate, last = schedule[:2]
        rate += (last - rate) / np.float32(max(num, 1)) * np.float32(first)
        state = self._dense.exchange(
          state, stop - first, learning_rate=rate, examples=examples
        )
      if stop >= block.count:
        break
    return state, self._finish(measured, batch, np.int32(block.count))

  def _wait_for_steps(self, stretch, called):
    """Waits for the stretch before if rows move between; counts idle time."""
    if not self.rows.is_beside or stretch.has_late:
      self._ended[1].result()
    if self._ended[1].done():
      # The device has nothing to do.
      since = max(called, self._ended[1].result())
      self.rows.counts.add(fetch_waited_secs=time.monotonic() - since)

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
    layouts, tables = self.rows.layouts, self.tables.items()
    return sum(layouts[k].num_bytes * x.spec.vocab for k, x in tables)

  @property
  def dense_bytes(self) -> int:
    """Bytes of dense parameters and their optimizer state."""
    _, *dense = jax.eval_shape(self.trainable.init, sampling.key_shape())
    return _num_bytes(dense)

  def rows_bytes(self, step_centers: int) -> int:
    """Bytes of rows in this process, beside stores, with steps of so many.

    They are rows on a device that has the memory of the process, maps, and rows
    on their way.
    """
    device_bytes = stretch_bytes = 0
    if cached.are_in_memory():
      state = jax.eval_shape(self.trainable.init, sampling.key_shape())
      device_bytes = _num_bytes(state)
    map_bytes = sum(x.num_bytes for x in self.caches)
    for name, table in self.tables.items():
      lookups = table.spec.lookups_per_center
      assert lookups is not None
      lookups = lookups * step_centers * self.most_steps
      num_rows = min(expected_rows(lookups), table.num_rows)
      stretch_bytes += int(num_rows) * self.rows.layouts[name].num_bytes
    return device_bytes + map_bytes + stretch_bytes + self.rows.copy_bytes

  def take_counts(self) -> dict[str, float]:
    """Rows and seconds since the last call, by name."""
    return self.rows.counts.take()

  # What is on the device, and what is in the stores.

  def _held(self, name):
    """Returns cache rows that now have rows of a table, and their ids."""
    index = next(i for i, x in enumerate(self.caches) if name in x.names)
    if self._next is not None:
      moves = self._next.result()[0].moves[index]
    cache_rows, ids = self.caches[index].held(name)
    if self._next is not None:
      # The next stretch has its cache rows, but not yet all its rows.
      is_held = ~np.isin(cache_rows, moves.into[name][0])
      pairs = (cache_rows[is_held], ids[is_held]), moves.out[name]
      cache_rows, ids = (np.concatenate(x) for x in zip(*pairs, strict=True))
    return cache_rows, ids

  def flush(self, state: Any) -> Any:
    """Writes what is on the device to the stores, too; returns the state."""
    if self._is_flushed:
      return state
    self._wait_for_next()
    jax.block_until_ready(state)
    tables = self.rows.flush(state.tables, self._held)
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
    stores = self.rows.stores.items()
    return self.rest(state), {k: x.snapshot(folder / k) for k, x in stores}

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


def fetching(step: Fetching, device: jax.sharding.Mesh) -> base.Strategy:
  """The strategy, on one device."""
  everywhere = jax.sharding.NamedSharding(device, jax.sharding.PartitionSpec())
  constants = step.trainable.arrays()

  def init(key):
    return jax.device_put(step.init(key), everywhere)

  def eval_shape(key):
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere),
      jax.eval_shape(step.trainable.init, key),
    )

  # As functions of `jax.jit` have; of them runs use no more, and of `step` no
  # more than `Fetching` has.
  init.eval_shape = eval_shape  # type: ignore[attr-defined]
  return base.Strategy(
    init=cast(base.Compiled, init),
    constants=lambda: jax.device_put(constants, everywhere),
    step=cast(base.Compiled, step),
    export_rows=step.export_rows,
    import_rows=step.import_rows,
    batch_sharding=everywhere,
    loop=hlo.Loop(
      step.trainable.steps_per_loop,
      inner=1,
      branch=1 / step.trainable.loss_every_steps,
    ),
    store=step,
  )
