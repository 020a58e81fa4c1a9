"""The training loop: dispatch, count, save, evaluate, stop.

Batches are pure functions of the position of the source, and each is dispatched
as one compiled program of many steps. A checkpoint holds the state, the totals
and the fingerprint of the data, so a run that was killed repeats exactly what
it lost. What is trained, a run or some sub-models side by side, is a `Task`.
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors, metrics
from jaxemb.data import base as data_base
from jaxemb.ops import rounding
from jaxemb.runtime import distributed, hlo, mesh
from jaxemb.storage import checkpoint
from jaxemb.strategies import base as strategy_base

# Streams of random numbers of a seed.
_TABLES, _DISPATCHES = 0, 1


class Session(NamedTuple):
  """One start of a run."""

  started: float  # seconds since 1970
  encode_secs: float = 0.0  # until the data was ready


class Hook(Protocol):
  """Something to do between two dispatches, on all processes alike."""

  def due(self, item: data_base.Item) -> bool:
    """Whether to run after this item; a function of the item alone."""
    ...

  def run(self, state: Any, totals: metrics.Totals) -> None:
    """Called with the state after the item, which it must not keep."""
    ...


class Task(NamedTuple):
  """What is trained, from its present state to its end."""

  strategy: strategy_base.Strategy
  state: Any
  items: Iterator[data_base.Item]  # a generator, with batches on the devices
  schedule: Callable[[Any], strategy_base.Schedule]  # of an item
  totals: metrics.Totals
  meter: Any  # as `metrics.Meter`
  total: int  # units of progress at the end
  save: Callable[[Any, Any], None]  # state, learning rates
  checkpoint_every_secs: float
  decisions: distributed.Decisions
  hooks: Sequence[Hook] = ()
  program: Any = None  # the compiled dispatch, where there is one already


class Trained(NamedTuple):
  """The result of a task."""

  state: Any
  totals: metrics.Totals
  finished: bool  # to the end of the data
  program: Any


def run(task: Task, stop: threading.Event, session: Session) -> Trained:
  """Trains until the end, or until it is told to stop.

  Args:
    task: what to train; its state is used up.
    stop: set when training is to stop, after saving.
    session: this start of the run.
  """
  strategy, state, totals = task.strategy, task.state, task.totals
  constants = mesh.put(strategy.constants(), strategy.constants_sharding)
  meter, program, is_started = task.meter, task.program, False
  waiting: collections.deque = collections.deque()
  last_save = time.monotonic()
  secs_before = totals.total_secs
  try:
    for item in task.items:
      schedule = task.schedule(item)
      args = (constants, item.batch, schedule)
      program = program or _compile(task, args, session)
      if not is_started:
        totals.started = totals.started or session.started
        totals.encode_secs += session.encode_secs
        meter.start()
        is_started = True
      state, step_metrics = program(state, *args)
      rates = (schedule.first_learning_rate, schedule.last_learning_rate)
      waiting.append((item._replace(batch=None), rates, step_metrics))
      hooks = [hook for hook in task.hooks if hook.due(item)]
      due = time.monotonic() - last_save > task.checkpoint_every_secs
      is_last = item.done_after == task.total
      # Asked once: it may be set at any moment.
      decision = task.decisions.next(stop.is_set(), due)
      is_stopping = decision == distributed.STOP
      saves = is_last or decision != distributed.GO_ON
      # One dispatch is under way while the one before it is counted; all are
      # counted before what they led to is saved.
      while len(waiting) > (0 if saves or hooks else 1):
        meter.count(*waiting.popleft())
      if saves or hooks:
        state = strategy.flush(state)
      for hook in hooks:
        hook.run(state, totals)
        meter.resume()
      if saves:
        totals.total_secs = secs_before + time.time() - session.started
        task.save(state, rates[1])
        last_save = time.monotonic()
      if is_stopping and not is_last:
        return Trained(state, totals, False, program)
    return Trained(state, totals, True, program)
  finally:
    task.items.close()
    meter.close()


def _compile(task: Task, args: tuple, session: Session) -> Any:
  """Compiles a dispatch ahead of its use, so that its time is known apart."""
  strategy, totals = task.strategy, task.totals
  start = time.monotonic()
  compiled = strategy.step.lower(task.state, *args).compile()
  secs = time.monotonic() - start
  totals.compile_secs += secs
  totals.collectives = hlo.traffic(compiled.as_text(), strategy.loop)
  metrics.LOG.info(
    'compiled in %.1f s; first step %.1f s after start',
    secs,
    time.time() - session.started,
  )
  return compiled


def tables_key(seed: int) -> jax.Array:
  """The key of the tables' initial values."""
  # Named, so that a user's JAX settings cannot change what a seed means.
  key = jax.random.key(seed, impl='threefry2x32')
  return jax.random.fold_in(key, _TABLES)


def schedules(
  seed: int,
  learning_rates: tuple[float, float],
  total: int,
  stream: tuple[int, ...] = (),
) -> Callable[[data_base.Item], strategy_base.Schedule]:
  """Linear decay on global progress, and the key of each dispatch.

  Args:
    seed: of the run.
    learning_rates: the first and the last.
    total: units of progress of all training.
    stream: names the random choices where several models share a seed.
  """
  first, last = learning_rates

  def learning_rate(done: int) -> np.float32:
    return np.float32(first + (last - first) * (done / total))

  def schedule(item: data_base.Item) -> strategy_base.Schedule:
    # NumPy's, because a JAX operation would wait for the dispatch under way.
    key = np.random.SeedSequence((seed, _DISPATCHES, item.index, *stream))
    return strategy_base.Schedule(
      learning_rate(item.done_before),
      learning_rate(item.done_after),
      key.generate_state(2, np.uint32),
      np.float32(item.done_before / total),
      np.float32(item.done_after / total),
    )

  return schedule


def form(strategy: strategy_base.Strategy, key: jax.Array) -> Any:
  """Shapes, dtypes and shardings of a state."""
  return jax.tree.map(
    lambda sharding, part: jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part
    ),
    strategy.state_sharding,
    jax.eval_shape(strategy.init, key),
  )


def save(
  checkpoints: checkpoint.Checkpoints,
  state: Any,
  totals: metrics.Totals,
  fingerprints: dict[str, str],
  learning_rate: float,
) -> None:
  """Saves in the background; refuses to keep a state that is not finite.

  Args:
    checkpoints: of the run.
    state: to save.
    totals: so far.
    fingerprints: of what state and totals belong to, by name.
    learning_rate: now, for the error.
  """
  if not _all_finite(state):
    raise metrics.diverged(totals, float(learning_rate))
  record = {'totals': dataclasses.asdict(totals), 'fingerprints': fingerprints}
  checkpoints.save(totals.steps, state, record)


@jax.jit
def _all_finite(state: Any) -> jax.Array:
  finite = [rounding.is_finite(x) for x in jax.tree.leaves(state)]
  return jnp.stack(finite).all()


def restore(
  checkpoints: checkpoint.Checkpoints, like: Any, fingerprints: dict[str, str]
) -> tuple[Any, metrics.Totals] | None:
  """The state and the totals of the newest checkpoint; None = there is none.

  Args:
    checkpoints: of the run.
    like: the state's form, see `checkpoint.Checkpoints.restore`.
    fingerprints: as they were saved, of what has not changed since.

  Raises:
    UserError: if the data, or what else the run depends on, has changed.
  """
  restored = checkpoints.restore(like)
  if restored is None:
    return None
  saved = restored.record.get('fingerprints')
  if saved is None:
    raise errors.UserError(
      'the checkpoints are of an older version of jaxemb; give another '
      '--workdir'
    )
  for name, fingerprint in fingerprints.items():
    if saved.get(name) != fingerprint:
      raise errors.UserError(
        f'{name} changed since this run began; give what it began with, or '
        'another --workdir'
      )
  totals = metrics.Totals(**restored.record['totals'])
  metrics.LOG.info('resuming after %s %s', f'{totals.done:,}', totals.unit)
  return restored.state, totals
