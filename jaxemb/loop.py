"""The training loop: dispatch, count, save, evaluate, stop.

A dispatch is one compiled program of many steps over one batch of the source.
Batches are pure functions of the position, and a checkpoint holds state, totals
and fingerprints of the data: a run that was killed repeats exactly what it
lost. A run, or several sub-models side by side, is a `Task`.
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors, metrics
from jaxemb.data import base as data_base
from jaxemb.ops import rounding
from jaxemb.runtime import distributed, hlo
from jaxemb.storage import checkpoint
from jaxemb.strategies import base as strategy_base

# Streams of random numbers of a seed.
_TABLES, _DISPATCHES = 0, 1


class Session(NamedTuple):
  """One start of a run."""

  started: float  # seconds since 1970
  encode_secs: float = 0.0  # until the data was ready


class Hook(Protocol):
  """Runs between dispatches, in all processes alike."""

  def due(self, item: data_base.Item) -> bool:
    """Whether to run after an item; depends on nothing else."""
    ...

  def run(self, state: Any, totals: metrics.Totals) -> None:
    """Reads the state, which the next dispatch donates."""
    ...


class Task(NamedTuple):
  """What to train, from its present state to its end."""

  strategy: strategy_base.Strategy
  state: Any  # donated
  items: Iterator[data_base.Item]  # a generator; batches are on the devices
  schedule: Callable[[data_base.Item], strategy_base.Schedule]
  totals: metrics.Totals
  meter: metrics.Meter
  count: Callable[..., None]  # as `metrics.Meter.count`
  total: int  # units of progress at the end
  save: Callable[[Any, Any], None]  # state, learning rate
  checkpoint_every_secs: float
  hooks: Sequence[Hook] = ()
  program: Any = None  # the compiled dispatch, if there is one


class Trained(NamedTuple):
  """The result of a task."""

  state: Any
  totals: metrics.Totals
  finished: bool  # to the end of the data
  program: Any


def run(task: Task, stop: threading.Event, session: Session) -> Trained:
  """Trains to the end of the data, or until `stop` is set and all is saved."""
  strategy, state, totals = task.strategy, task.state, task.totals
  constants = jax.device_put(strategy.constants(), strategy.constants_sharding)
  meter, program, is_started = task.meter, task.program, False
  uncounted: collections.deque = collections.deque()
  last_save = time.monotonic()
  secs_before = totals.total_secs
  try:
    for dispatch, item in enumerate(task.items):
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
      uncounted.append((item._replace(batch=None), rates, step_metrics))
      hooks = [hook for hook in task.hooks if hook.due(item)]
      is_due = time.monotonic() - last_save > task.checkpoint_every_secs
      is_last = item.done_after == task.total
      # Read once: a signal may set it at any moment.
      decision = distributed.decide(dispatch, stop.is_set(), is_due)
      saves = is_last or decision != distributed.GO_ON
      # One dispatch runs while the one before it is counted. A state is saved
      # with the totals of all its dispatches.
      while len(uncounted) > (0 if saves or hooks else 1):
        task.count(*uncounted.popleft())
      for hook in hooks:
        hook.run(state, totals)
        meter.resume()
      if saves:
        totals.total_secs = secs_before + time.time() - session.started
        task.save(state, rates[1])
        last_save = time.monotonic()
      if decision == distributed.STOP and not is_last:
        return Trained(state, totals, False, program)
    return Trained(state, totals, True, program)
  finally:
    task.items.close()
    meter.close()


def _compile(task: Task, args: tuple, session: Session) -> Any:
  """Compiles a dispatch before its first use, to time it apart."""
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


def init_key(seed: int) -> jax.Array:
  """The key of the state before training."""
  # The implementation is named: a user's JAX settings cannot change a seed.
  key = jax.random.key(seed, impl='threefry2x32')
  return jax.random.fold_in(key, _TABLES)


def schedules(
  seed: int,
  learning_rates: tuple[float, float],
  total: int,
  stream: tuple[int, ...] = (),
) -> Callable[[data_base.Item], strategy_base.Schedule]:
  """Linear decay over all training, and a key for each dispatch.

  Args:
    seed: of the run.
    learning_rates: the first and the last.
    total: units of progress of all training.
    stream: tells models that share a seed apart.
  """
  first, last = learning_rates

  def learning_rate(done: int) -> np.float32:
    return np.float32(first + (last - first) * (done / total))

  def schedule(item: data_base.Item) -> strategy_base.Schedule:
    # NumPy's: a JAX operation would wait for the running dispatch.
    key = np.random.SeedSequence((seed, _DISPATCHES, item.index, *stream))
    return strategy_base.Schedule(
      learning_rate(item.done_before),
      learning_rate(item.done_after),
      key.generate_state(2, np.uint32),
      np.float32(item.done_before / total),
      np.float32(item.done_after / total),
    )

  return schedule


def save(
  checkpoints: checkpoint.Checkpoints,
  state: Any,
  totals: metrics.Totals,
  fingerprints: Mapping[str, str],
  learning_rate: float,
) -> None:
  """Saves in the background, with what the run depends on by its name.

  Raises:
    UserError: if the state is not finite; names the learning rate.
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
  checkpoints: checkpoint.Checkpoints,
  like: Any,
  fingerprints: Mapping[str, str],
) -> tuple[Any, metrics.Totals] | None:
  """State and totals of the newest checkpoint, if there is one.

  Args:
    checkpoints: of the run.
    like: as of `checkpoint.Checkpoints.restore`.
    fingerprints: as of `save`.

  Raises:
    UserError: if something that the run depends on has changed.
  """
  restored = checkpoints.restore(like)
  if restored is None:
    return None
  _, state, record = restored
  saved = record['fingerprints']
  for name, fingerprint in fingerprints.items():
    if saved.get(name) != fingerprint:
      raise errors.UserError(
        f'{name} has changed since this run began; restore the original or '
        'give another --workdir'
      )
  totals = metrics.Totals(**record['totals'])
  metrics.LOG.info('resuming after %s %s', f'{totals.done:,}', totals.unit)
  return state, totals
