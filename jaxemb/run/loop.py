"""The training loop: dispatch, count, save, evaluate, stop.

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.ops import rounding
from jaxemb.run import build, metrics
from jaxemb.runtime import budget, distributed, hlo, mesh, resources
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
  """Runs between dispatches, in all processes alike.

  What has a body here is optional.
  """

  def begin(self, totals: metrics.Totals) -> None:
    """Called before the first dispatch of a start, with what was done."""

  def due(self, item: data_base.Item) -> bool:
    """Whether to run after an item; depends on nothing else."""

  def run(self, state: Any, totals: metrics.Totals) -> None:
    """Reads the state, which the next dispatch donates."""

  def rate_factor(self) -> float:
    """What the learning rates of the next dispatches are multiplied by."""
    return 1.0

  def has_ended(self) -> bool:
    """Whether training ends here, before its last epoch."""
    return False


def open_checkpoints(workdir: pathlib.Path) -> checkpoint.Checkpoints:
  """The checkpoints of a run, to be used in a `with` statement."""
  return checkpoint.Checkpoints(
    workdir / 'checkpoints', checkpoint.TO_KEEP, metrics.LOG.error
  )


class Trained(NamedTuple):
  """What was trained to its end."""

  state: Any
  totals: metrics.Totals
  program: jax.stages.Compiled | None  # the dispatch; None = there was none


def train(
  checkpoints: checkpoint.Checkpoints,
  parts: build.Parts,
  session: Session,
  make_meter: Callable[[metrics.Totals], metrics.Meter],
  hooks: Sequence[Hook] = (),
  stream: Sequence[int] = (),
  program: jax.stages.Compiled | None = None,
) -> Trained | None:
  """Trains from the newest checkpoint, or from a new state, to the end.

  Returns None if it saved and ended at `session.stop`. `stream` tells models
  that share a seed apart; `program` is the compiled dispatch of an earlier one
  with the same strategy.
  """
  config, source, strategy = parts.config, parts.source, parts.strategy
  fingerprints, key = build.fingerprints(parts), init_key(config.seed)
  constants = strategy.constants()
  total = round(source.units_per_epoch * source.epochs)
  uncounted: collections.deque = collections.deque()
  restored = restore(
    checkpoints, parts, key, total=total, fingerprints=fingerprints
  )
  state, totals = restored or (None, metrics.Totals(source.unit))
  for hook in hooks:
    hook.begin(totals)
  if restored and any(hook.has_ended() for hook in hooks):
    return Trained(state, totals, program)
  put_args = strategy.batch_sharding, source.num_parts
  items = data_base.prefetch(
    item._replace(batch=mesh.put_parts(item.batch, *put_args))
    for item in source.items(totals.position, totals.done)
  )
  closing = contextlib.closing
  with closing(items), closing(make_meter(totals)) as meter:
    if restored is None:  # while the first batch is made
      state = build.new_state(parts, key)
    if strategy_base.chooses_layouts(parts.mesh):
      like = strategy.init.eval_shape(key)  # import and restoring choose theirs
      state = strategy_base.laid_out(state, like)
    resources.use_huge_pages(state)
    last_save, secs_before = time.monotonic(), totals.total_secs
    for dispatch, (item, following) in enumerate(_with_next(items)):
      now = schedule(config, item, total, *stream)
      factor = np.float32(math.prod(hook.rate_factor() for hook in hooks))
      now = now._replace(
        first_learning_rate=factor * now.first_learning_rate,
        last_learning_rate=factor * now.last_learning_rate,
      )
      args = (constants, item.batch, now)
      if program is None:  # compiled before its use, to time it apart
        start = time.monotonic()
        program = strategy.step.lower(state, *args).compile()
        smaller = f'lower --config.train.batch_{parts.kind.unit}'
        budget.check_step(program, list(parts.mesh.devices.flat), smaller)
        totals.compile_secs += (secs := time.monotonic() - start)
        start_secs = time.time() - session.started
        metrics.LOG.info(
          f'compiled in {secs:.1f} s; first step {start_secs:.1f} s after start'
        )
      if not dispatch:
        totals.collectives = hlo.traffic(program.as_text(), strategy.loop)
        totals.started = totals.started or session.started
        totals.encode_secs += session.encode_secs
        meter.start()
      if strategy.store and following:
        then = schedule(config, following, total, *stream)
        strategy.store.expect(following.batch, then)
      state, step_metrics = program(state, *args)
      rates = (now.first_learning_rate, now.last_learning_rate)
      uncounted.append((item._replace(batch=None), rates, step_metrics))
      due = [hook for hook in hooks if hook.due(item)]
      is_due = time.monotonic() - last_save > config.train.checkpoint_every_secs
      is_last = item.done_after == total
      # Read once: a signal may set it at any moment.
      decision = distributed.decide(dispatch, session.stop.is_set(), is_due)
      saves = is_last or decision != distributed.GO_ON
      # One dispatch runs while the one before it is counted. A state is saved
      # with the totals of all its dispatches.
      while len(uncounted) > (0 if saves or due else 1):
        try:
          meter.count(*uncounted.popleft())
        except errors.UserError:
          # A kernel that runs while Python ends crashes.
          jax.block_until_ready(state)
          raise
      if strategy.store:
        meter.count_store(strategy.store.take_counts())
      for hook in due:
        hook.run(state, totals)
        meter.resume()
      has_ended = any(hook.has_ended() for hook in due)
      if saves or has_ended:
        totals.total_secs = secs_before + time.time() - session.started
        if not _all_finite(state):
          raise totals.diverged(float(rates[1]))
        record = dataclasses.asdict(totals)
        record = {'totals': record, 'fingerprints': fingerprints}
        record['copies'] = strategy.num_replicas
        store = strategy.store
        write = functools.partial(store.save, state) if store else None
        checkpoints.save(totals.steps, state, record, write)
        last_save = time.monotonic()
      if has_ended:
        metrics.LOG.info(
          'training ends before its last epoch: it gets no better'
        )
        break
      if decision == distributed.STOP and not is_last:
        step = checkpoints.wait()
        metrics.LOG.info(
          f'stopped and saved at step {step}; run the same command to resume'
        )
        return None
  return Trained(state, totals, program)


def _with_next(items):
  """Pairs of an item and the one behind it, None after the last."""
  item = next(items, None)
  while item is not None:
    following = next(items, None)
    yield item, following
    item = following


def init_key(seed: int) -> jax.Array:
  """The key of the state before training."""
  # The implementation is named: a user's JAX settings cannot change a seed.
  key = jax.random.key(seed, impl='threefry2x32')
  return jax.random.fold_in(key, _TABLES)


def learning_rate(config: ml_collections.ConfigDict, progress: float) -> float:
  """After a share of all training."""
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
  rates = [learning_rate(config, x) for x in progress]
  # NumPy's: a JAX operation would wait for the running dispatch.
  key = np.random.SeedSequence((config.seed, _DISPATCHES, item.index, *stream))
  return strategy_base.Schedule(
    *map(np.float32, rates),
    key.generate_state(2, np.uint32),
    *map(np.float32, progress),
  )


@jax.jit
def _all_finite(state: Any) -> jax.Array:
  finite = [rounding.is_finite(x) for x in jax.tree.leaves(state)]
  return jnp.stack(finite).all()


def restore(
  checkpoints: checkpoint.Checkpoints,
  parts: build.Parts,
  key: jax.Array,
  total: int,
  fingerprints: Mapping[str, str],
) -> tuple[Any, metrics.Totals] | None:
  """State and totals of the newest checkpoint, if there is one.

  `total` are the units of training. Raises a `UserError` if something that the
  run depends on has changed.
  """
  convert, strategy = None, parts.strategy

  def like(record):
    nonlocal convert
    saved, convert = record['copies'], None
    if bool(strategy.store) != ('store' in record):
      raise errors.UserError(
        'config.table.store: tables of this run are '
        + ('in a store' if 'store' in record else 'on the device')
        + ', and with these settings they would not be; give those it began '
        'with, or another --workdir'
      )
    if strategy.store:
      return strategy.store.rest(strategy.init.eval_shape(key))
    if saved == strategy.num_replicas:
      return strategy.init.eval_shape(key)
    if strategy.from_replicas is None:
      raise errors.UserError(
        f'the run has {saved} replicas; go on with --config.mesh.data=2 or more'
      )
    metrics.LOG.info(
      f'going on with {strategy.num_replicas or 1} replicas, where there were '
      f'{saved or 1}'
    )
    rate = learning_rate(parts.config, record['totals']['done'] / total)
    shapes, convert = strategy.from_replicas(saved, rate)
    return shapes

  load = None
  if strategy.store:
    load = functools.partial(strategy.store.load, key)
  restored = checkpoints.restore(like, load)
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
  return convert(state) if convert else state, totals
