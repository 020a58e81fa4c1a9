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
import ml_collections
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
  encode_secs: float  # until the data was ready
  stop: threading.Event  # set when the run is to save and end


class Hook(Protocol):
  """Runs between dispatches, in all processes alike."""

  def due(self, item: data_base.Item) -> bool:
    """Whether to run after an item; depends on nothing else."""

  def run(self, state: Any, totals: metrics.Totals) -> None:
    """Reads the state, which the next dispatch donates."""


@dataclasses.dataclass
class Task:
  """What to train, from its present state to its end."""

  strategy: strategy_base.Strategy
  state: Any  # donated to every dispatch
  items: Iterator[data_base.Item]  # a generator; batches are on the devices
  total: int  # units of progress at the end
  meter: metrics.Meter
  schedule: Callable[[data_base.Item], strategy_base.Schedule]
  count: Callable[..., None]  # as `metrics.Meter.count`
  save: Callable[[Any, Any], None]  # state, learning rate
  save_every_secs: float
  hooks: Sequence[Hook] = ()
  program: Any = None  # the compiled dispatch, if there is one


def run(task: Task, session: Session) -> bool:
  """Trains to the end of the data, or until all is saved after `session.stop`.

  Returns whether it is the end; the task has the state.
  """
  strategy, meter, totals = task.strategy, task.meter, task.meter.totals
  constants = jax.device_put(strategy.constants(), strategy.constants_sharding)
  uncounted: collections.deque = collections.deque()
  last_save, secs_before = time.monotonic(), totals.total_secs
  try:
    for dispatch, item in enumerate(task.items):
      schedule = task.schedule(item)
      args = (constants, item.batch, schedule)
      if task.program is None:  # compiled before its use, to time it apart
        start = time.monotonic()
        task.program = strategy.step.lower(task.state, *args).compile()
        totals.compile_secs += (secs := time.monotonic() - start)
        start_secs = time.time() - session.started
        totals.collectives = hlo.traffic(task.program.as_text(), strategy.loop)
        metrics.LOG.info(
          f'compiled in {secs:.1f} s; first step {start_secs:.1f} s after start'
        )
      if not dispatch:
        totals.started = totals.started or session.started
        totals.encode_secs += session.encode_secs
        meter.start()
      task.state, step_metrics = task.program(task.state, *args)
      rates = (schedule.first_learning_rate, schedule.last_learning_rate)
      uncounted.append((item._replace(batch=None), rates, step_metrics))
      hooks = [hook for hook in task.hooks if hook.due(item)]
      is_due = time.monotonic() - last_save > task.save_every_secs
      is_last = item.done_after == task.total
      # Read once: a signal may set it at any moment.
      decision = distributed.decide(dispatch, session.stop.is_set(), is_due)
      saves = is_last or decision != distributed.GO_ON
      # One dispatch runs while the one before it is counted. A state is saved
      # with the totals of all its dispatches.
      while len(uncounted) > (0 if saves or hooks else 1):
        task.count(*uncounted.popleft())
      for hook in hooks:
        hook.run(task.state, totals)
        meter.resume()
      if saves:
        totals.total_secs = secs_before + time.time() - session.started
        task.save(task.state, rates[1])
        last_save = time.monotonic()
      if decision == distributed.STOP and not is_last:
        return False
    return True
  finally:
    task.items.close()
    meter.close()


def init_key(seed: int) -> jax.Array:
  """The key of the state before training."""
  # The implementation is named: a user's JAX settings cannot change a seed.
  key = jax.random.key(seed, impl='threefry2x32')
  return jax.random.fold_in(key, _TABLES)


def schedule(
  config: ml_collections.ConfigDict,
  item: data_base.Item,
  total: int,
  *stream: int,
) -> strategy_base.Schedule:
  """Linear decay over all training, `total` units, and a key for the dispatch.

  `stream` tells models that share a seed apart.
  """
  o = config.optimizer
  first, last = o.learning_rate, o.final_learning_rate
  progress = item.done_before / total, item.done_after / total
  rates = [first + (last - first) * x for x in progress]
  # NumPy's: a JAX operation would wait for the running dispatch.
  key = np.random.SeedSequence((config.seed, _DISPATCHES, item.index, *stream))
  return strategy_base.Schedule(
    *map(np.float32, rates),
    key.generate_state(2, np.uint32),
    *map(np.float32, progress),
  )


def save(
  checkpoints: checkpoint.Checkpoints,
  totals: metrics.Totals,
  fingerprints: Mapping[str, str],
  state: Any,
  learning_rate: float,
) -> None:
  """Saves in the background, with what the run depends on by its name.

  Raises a `UserError` with the learning rate if the state is not finite.
  """
  if not _all_finite(state):
    raise totals.diverged(float(learning_rate))
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

  `like` is as of `checkpoint.Checkpoints.restore`, `fingerprints` as of `save`.
  Raises a `UserError` if something that the run depends on has changed.
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
  metrics.LOG.info(f'resuming after {totals.done:,} {totals.unit}')
  return state, totals
