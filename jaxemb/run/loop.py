"""The training loop: dispatch, count, evaluate, save, stop.

A dispatch is one compiled program of many steps over one batch of the source.
Batches are pure functions of the position, which a checkpoint holds with state
and totals: a run that was killed repeats exactly what it lost.
"""

import collections
import contextlib
import dataclasses
import functools
import math
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.ops import rounding, sampling
from jaxemb.run import build, metrics
from jaxemb.runtime import budget, distributed, hlo, resources
from jaxemb.storage import checkpoint
from jaxemb.strategies import base as strategy_base

# Streams of random numbers of a seed.
_TABLES, _DISPATCHES = 0, 1


class Session(NamedTuple):
  """One start of a run."""

  started: float  # seconds since 1970
  encode_secs: float  # until the data was ready
  stop: threading.Event  # set when the run is to save and end
  compile_secs: float = 0.0  # for which it waited before, apart from the data


class Hook:
  """Runs between dispatches, in all processes alike."""

  def begin(self, totals: metrics.Totals) -> None:
    """Called before the first dispatch of a start, with what was done."""

  def before(self, item: data_base.Item) -> None:
    """Called before the dispatch of an item."""

  def due(self, item: data_base.Item) -> bool:
    """Whether to run after an item; depends on nothing else."""
    return False

  def run(self, state: Any, totals: metrics.Totals) -> None:
    """Reads the state, which the next dispatch donates."""

  def rate_factor(self) -> float:
    """What the learning rates of the next dispatches are multiplied by."""
    return 1.0

  def has_ended(self) -> bool:
    """Whether training ends here, before its last epoch."""
    return False


class Meter:
  """Counts dispatches otherwise than `metrics.Meter`, which has these too."""

  def start(self) -> None:
    """Starts the clock, before the first dispatch of a start."""

  def count(
    self, item: data_base.Item, learning_rates: Sequence[float], measured: Any
  ) -> None:
    """Counts `DispatchMetrics`, waiting for the dispatch to end."""

  def count_store(self, counts: Mapping[str, float]) -> None:
    """Counts rows and seconds of a store, by name."""

  def resume(self) -> None:
    """Restarts the clock after other work than training."""

  def close(self) -> None:
    """Called at the end of a start, also after errors."""


class Trained(NamedTuple):
  """What was trained to its end."""

  state: Any
  totals: metrics.Totals
  program: jax.stages.Compiled | None  # the dispatch; None = there was none


def train(
  checkpoints: checkpoint.Checkpoints | None,
  parts: build.Parts,
  session: Session,
  make_meter: Callable[[metrics.Totals], Meter | metrics.Meter],
  hooks: Sequence[Hook] = (),
  stream: Sequence[int] = (),
  program: jax.stages.Compiled | None = None,
  state: Any = None,
  items_ahead: int = 2,
) -> Trained | None:
  """Trains from the newest checkpoint, or from a new state, to the end.

  Returns None if it saved and ended at `session.stop`. `stream` tells models
  that share a seed apart; `program` is the compiled dispatch of an earlier one
  with the same strategy. A worker saves no checkpoints and begins with a
  `state`. Batches are made `items_ahead` of their use; an item without a batch
  is a pause: hooks run on a flushed store, and nothing is trained.
  """
  restored = restore(checkpoints, parts) if checkpoints else None
  totals = metrics.Totals(parts.source.unit)
  if restored:
    state, totals = restored
  for hook in hooks:
    hook.begin(totals)
  if restored and any(hook.has_ended() for hook in hooks):
    return Trained(state, totals, program)
  start = _Start(
    checkpoints, parts, session, totals=totals, hooks=hooks, stream=stream
  )
  items = data_base.prefetch(start.items(), items_ahead)
  closing = contextlib.closing
  with closing(items), closing(make_meter(totals)) as start.meter:
    if state is None:  # while the first batch is made
      state = parts.new_state(init_key(parts.config.seed))
    state = start.place(state)
    for item, following in _with_next(items):
      if item.batch is None:
        state = start.pause(state, item)
        continue
      arguments = start.constants, item.batch, start.schedule(item)
      program = program or start.compile(state, arguments)
      start.prepare(item, following, program)
      state, step_metrics = program(state, *arguments)
      dispatched = item._replace(batch=None), arguments[2], step_metrics
      start.uncounted.append(dispatched)
      if start.finish(state, item, following):
        break
  return None if start.has_stopped else Trained(state, totals, program)


def compile_ahead(parts: build.Parts) -> None:
  """Compiles what `train` begins with, for which JAX keeps it. Runs nothing."""
  source, strategy = parts.source, parts.strategy
  key, item = init_key(parts.config.seed), next(source.items(None, 0), None)
  if item is None:
    return

  def placed(array):
    shape = source.num_parts, *array.shape[1:]
    sharding = strategy.batch_sharding
    return jax.ShapeDtypeStruct(shape, array.dtype, sharding=sharding)

  arguments = (
    strategy.init.eval_shape(key),
    strategy.constants(),
    jax.tree.map(placed, item.batch),
    schedule(parts.config, item, parts.total_units),
  )
  strategy.init.lower(key).compile()
  strategy.step.lower(*arguments).compile()
  # What ends it.
  _all_finite.lower(arguments[0]).compile()
  checkpoint.compile_ahead(arguments[0])


class _Start:
  """One start of `train`: what surrounds a dispatch."""

  def __init__(
    self,
    checkpoints: checkpoint.Checkpoints | None,
    parts: build.Parts,
    session: Session,
    totals: metrics.Totals,
    hooks: Sequence[Hook],
    stream: Sequence[int],
  ):
    self._hooks, self._stream = hooks, stream
    self.meter: Meter | metrics.Meter  # which `train` sets
    self._checkpoints, self._parts, self._session = checkpoints, parts, session
    self._store, self._total = parts.strategy.store, parts.total_units
    self.totals, self.constants = totals, parts.strategy.constants()
    self.uncounted: collections.deque = collections.deque()
    self._dispatches, self._secs_before = 0, totals.total_secs
    self._last_save, self.has_stopped = 0.0, False

  def items(self) -> Iterator[data_base.Item]:
    """Yields the items that are left, with their batches on the devices."""
    source, sharding = self._parts.source, self._parts.strategy.batch_sharding
    before = None
    for item in source.items(self.totals.position, self.totals.done):
      batch = item.batch
      if batch is not None:
        batch = put_parts(batch, sharding, source.num_parts, before=before)
        before = item.batch, batch
      yield item._replace(batch=batch)

  def place(self, state: Any) -> Any:
    """Returns the state in the layouts and pages that training wants."""
    if strategy_base.chooses_layouts(self._parts.mesh):
      # Import and restoring choose theirs.
      like = self._parts.strategy.init.eval_shape(sampling.key_shape())
      state = strategy_base.laid_out(state, like)
    resources.use_huge_pages(state)
    self._last_save = time.monotonic()
    return state

  def schedule(self, item: data_base.Item) -> strategy_base.Schedule:
    """Returns the schedule of an item, with the factors of all hooks."""
    now = schedule(self._parts.config, item, self._total, *self._stream)
    factor = np.float32(math.prod(hook.rate_factor() for hook in self._hooks))
    return now._replace(
      first_learning_rate=factor * now.first_learning_rate,
      last_learning_rate=factor * now.last_learning_rate,
    )

  def compile(
    self, state: Any, arguments: Sequence[Any]
  ) -> jax.stages.Compiled:
    """Compiles a dispatch before its use, to time it apart."""
    start = time.monotonic()
    program = compile_dispatch(self._parts, state, arguments)
    resources.release_freed()
    self.totals.compile_secs += (secs := time.monotonic() - start)
    secs += self._session.compile_secs
    start_secs = time.time() - self._session.started
    metrics.LOG.info(
      f'compiled in {secs:.1f} s; first step {start_secs:.1f} s after start'
    )
    return program

  def prepare(
    self,
    item: data_base.Item,
    following: data_base.Item | None,
    program: jax.stages.Compiled,
  ) -> None:
    """Prepares a dispatch: the meter, hooks, rows of the one that follows."""
    if not self._dispatches:
      loop = self._parts.strategy.loop
      self.totals.collectives = hlo.traffic(program.as_text() or '', loop)
      self.meter.start()
      self.totals.begin(self._session)
    self._dispatches += 1
    for hook in self._hooks:
      hook.before(item)
    if self._store and following and following.batch is not None:
      self._store.expect(following.batch, self.schedule(following))

  def finish(
    self, state: Any, item: data_base.Item, following: data_base.Item | None
  ) -> bool:
    """Counts, evaluates and saves after a dispatch; whether the loop ends."""
    due = [hook for hook in self._hooks if hook.due(item)]
    is_last = item.done_after == self._total
    decision = self._decide()
    saves = is_last or decision != distributed.GO_ON
    # One dispatch runs while the one before it is counted. A state is saved
    # with the totals of all its dispatches.
    is_next = following is not None and following.batch is not None
    rate = self._count(state, 1 if is_next and not (saves or due) else 0)
    for hook in due:
      hook.run(state, self.totals)
      self.meter.resume()
    has_ended = any(hook.has_ended() for hook in due)
    if self._checkpoints and (saves or has_ended):
      if not _all_finite(state):
        raise self.totals.diverged(rate)
      secs = time.time() - self._session.started
      self.totals.total_secs = self._secs_before + secs
      save(self._checkpoints, self._parts, state, totals=self.totals)
      self._last_save = time.monotonic()
    if has_ended:
      log_early_stop()
    elif self._checkpoints and decision == distributed.STOP and not is_last:
      log_stop(self._checkpoints, self.totals.steps)
      self.has_stopped = True
    return has_ended or self.has_stopped

  def _decide(self):
    if not self._checkpoints:
      return distributed.GO_ON
    every_secs = self._parts.config.train.checkpoint_every_secs
    is_due = time.monotonic() - self._last_save > every_secs
    # Read once: a signal may set it at any moment.
    stops = self._session.stop.is_set()
    return distributed.decide(self._dispatches - 1, stops, is_due)

  def _count(self, state, num_left):
    """Counts dispatches but for the last ones; returns the newest rate."""
    rate = float(self.uncounted[-1][1].last_learning_rate)
    while len(self.uncounted) > num_left:
      item, now, step_metrics = self.uncounted.popleft()
      rates = now.first_learning_rate, now.last_learning_rate
      try:
        self.meter.count(item, rates, step_metrics)
      except errors.UserError:
        # A kernel that runs while Python ends crashes.
        jax.block_until_ready(state)
        raise
    if self._store:
      self.meter.count_store(self._store.take_counts())
    return rate

  def pause(self, state: Any, item: data_base.Item) -> Any:
    """Flushes the store and runs the hooks that an item is for."""
    state = self._store.flush(state)
    for hook in self._hooks:
      if hook.due(item):
        hook.run(state, self.totals)
    return state


def _with_next(items):
  """Yields items with the one behind each, None after the last or a pause."""
  item = next(items, None)
  while item is not None:
    is_pause = item.batch is None  # nothing follows until its hooks have run
    following = None if is_pause else next(items, None)
    yield item, following
    item = next(items, None) if is_pause else following


def put_parts(
  batch: Any,
  sharding: jax.sharding.Sharding,
  num_parts: int,
  before: tuple[Any, Any] | None = None,
) -> Any:
  """Puts arrays [corpus shards of this process, ...] on the mesh.

  There they are [num_parts, ...]. `before` is another batch, and what this made
  of it: read-only arrays of both are taken from there.
  """
  pairs = zip(*map(jax.tree.leaves, before), strict=True) if before else ()
  placed = {id(x): y for x, y in pairs if _is_read_only(x)}
  put = jax.make_array_from_process_local_data

  def place(x):
    if id(x) in placed:
      return placed[id(x)]
    return put(sharding, x, (num_parts, *x.shape[1:]))

  return jax.tree.map(place, batch)


def _is_read_only(x):
  return isinstance(x, np.ndarray) and not x.flags.writeable


def compile_dispatch(
  parts: build.Parts, state: Any, arguments: Sequence[Any]
) -> jax.stages.Compiled:
  """Compiles a dispatch and checks that it fits the devices."""
  program = parts.strategy.step.lower(state, *arguments).compile()
  smaller = f'lower --config.train.batch_{parts.kind.unit}'
  budget.check_step(program, list(parts.mesh.devices.flat), smaller)
  return program


def init_key(seed: int) -> jax.Array:
  """The key of the state before training."""
  return _init_key(np.int64(seed))


@jax.jit
def _init_key(seed: jax.Array) -> jax.Array:
  # The implementation is named: a user's JAX settings cannot change a seed.
  key = jax.random.key(seed, impl='threefry2x32')
  return jax.random.fold_in(key, _TABLES)


def _learning_rate(config: ml_collections.ConfigDict, progress: float) -> float:
  """Returns the learning rate after a fraction of all training."""
  first = config.optimizer.learning_rate
  return first + (config.optimizer.final_learning_rate - first) * progress


def schedule(
  config: ml_collections.ConfigDict,
  item: data_base.Item,
  total: int,
  *stream: int,
) -> strategy_base.Schedule:
  """Linear decay over `total` units of training, and a key for the dispatch."""
  progress = item.done_before / total, item.done_after / total
  rates = [_learning_rate(config, x) for x in progress]
  # NumPy's: a JAX operation would wait for the running dispatch.
  key = np.random.SeedSequence((config.seed, _DISPATCHES, item.index, *stream))
  return strategy_base.Schedule(
    first_learning_rate=np.float32(rates[0]),
    last_learning_rate=np.float32(rates[1]),
    key=key.generate_state(2, np.uint32),
    first_progress=np.float32(progress[0]),
    last_progress=np.float32(progress[1]),
    parts_before=np.int32(item.part),
  )


@jax.jit
def _all_finite(state: Any) -> jax.Array:
  finite = [rounding.is_finite(x) for x in jax.tree.leaves(state)]
  return jnp.stack(finite).all()


# Checkpoints.


def open_checkpoints(workdir: pathlib.Path) -> checkpoint.Checkpoints:
  """The checkpoints of a run, to be used in a `with` statement."""
  return checkpoint.Checkpoints(
    workdir / 'checkpoints', checkpoint.TO_KEEP, metrics.LOG.error
  )


def save(
  checkpoints: checkpoint.Checkpoints,
  parts: build.Parts,
  state: Any,
  totals: metrics.Totals,
) -> None:
  """Saves a state, with the totals of all its dispatches."""
  record = {
    'totals': dataclasses.asdict(totals),
    'fingerprints': parts.fingerprints,
    'copies': parts.strategy.num_replicas,
  }
  store = parts.strategy.store
  write = functools.partial(store.save, state) if store else None
  checkpoints.save(totals.steps, state, record, write)


def log_early_stop() -> None:
  """Logs that training ends before its last epoch."""
  metrics.LOG.info('early stopping: no improvement')


def log_stop(checkpoints: checkpoint.Checkpoints, step: int) -> None:
  """Logs that a run was stopped at a step, once its checkpoint is written."""
  newest = checkpoints.wait()
  what = f'stopped and saved at step {step}'
  if newest != step:
    before = 'none before' if newest is None else f'the newest is step {newest}'
    what = f'stopped at step {step}, which is not saved ({before})'
  metrics.LOG.info(f'{what}; run the same command to resume')


def restore(
  checkpoints: checkpoint.Checkpoints, parts: build.Parts
) -> tuple[Any, metrics.Totals] | None:
  """State and totals of the newest checkpoint, if there is one.

  Raises a `UserError` if something that the run depends on has changed.
  """
  strategy, key = parts.strategy, init_key(parts.config.seed)
  store, convert = strategy.store, None

  def like(record):
    nonlocal convert
    saved, convert = record['copies'], None
    if bool(store) != ('store' in record):
      raise errors.UserError(
        'config.table.store: tables of this run are '
        + ('in a store' if 'store' in record else 'on the device')
        + ', and with these settings they would not be; give those it began '
        'with, or another --workdir'
      )
    shapes = strategy.init.eval_shape(key)
    if store:
      return store.rest(shapes)
    if saved == strategy.num_replicas:
      return shapes
    if strategy.from_replicas is None:
      raise errors.UserError(
        f'the run has {saved} replicas; go on with --config.mesh.data=2 or more'
      )
    metrics.LOG.info(
      f'going on with {strategy.num_replicas or 1} replicas, where there were '
      f'{saved or 1}'
    )
    progress = record['totals']['done'] / parts.total_units
    rate = _learning_rate(parts.config, progress)
    shapes, convert = strategy.from_replicas(saved, rate)
    return shapes

  load = functools.partial(store.load, key) if store else None
  restored = checkpoints.restore(like, load)
  if restored is None:
    return None
  _, state, record = restored
  for name, fingerprint in parts.fingerprints.items():
    if record['fingerprints'].get(name) != fingerprint:
      raise errors.UserError(
        f'{name} has changed since this run began; restore the original or '
        'give another --workdir'
      )
  totals = metrics.Totals(**record['totals'])
  metrics.LOG.info(f'resuming after {totals.done:,} {totals.unit}')
  return convert(state) if convert else state, totals
