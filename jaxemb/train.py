"""The training loop, from settings to results.

The loop takes batches, which are pure functions of the reader's position, and
dispatches each as one compiled program of many steps. A checkpoint holds the
state and the position, so a run that was killed repeats exactly what it lost.
"""

import collections
import dataclasses
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxemb import build, errors, mesh, metrics, results, signals, workdirs
from jaxemb.data import loader
from jaxemb.storage import checkpoint
from jaxemb.strategies import base as strategy_base

STOPPED = 75  # exit code: stopped by a signal after saving


class Trained(NamedTuple):
  """What the loop leaves behind."""

  state: strategy_base.TrainState
  totals: metrics.Totals
  finished: bool  # all words were read
  program: str  # text of the compiled dispatch, '' if none was needed


def run(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> int:
  """Trains, or resumes training, and writes all results to `workdir`.

  Args:
    config: settings that `config.check` accepts.
    workdir: folder of the run.

  Returns:
    The exit code: 0, or `STOPPED`.

  Raises:
    UserError: for input or settings that cannot be used.
  """
  started = time.time()
  workdirs.open_(config, workdir)
  log = metrics.start_log(workdir / 'log.txt')
  cache = build.cache_folder(config)
  # Programs compile once per machine: the cache is read on the next start.
  jax.config.update('jax_compilation_cache_dir', str(cache / 'programs'))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  metrics.LOG.info('%s; results in %s', mesh.describe(), workdir)
  with signals.stopping() as stop:
    stages = metrics.Stages(stop, config.train.log_every_secs)
    try:
      parts = build.parts(config, stages)
      encode_secs = time.time() - started
      workdirs.record(config, workdir)
      results.describe_corpus(parts.corpus)
      with checkpoint.Checkpoints(
        workdir / 'checkpoints',
        config.train.checkpoints_to_keep,
        metrics.LOG.error,
      ) as saved:
        trained = _train(config, workdir, parts, saved, stop)
      if not trained.finished:
        metrics.LOG.info('stopped by a signal; start again to resume')
        return STOPPED
      facts = {
        'started': started,
        'encode_secs': encode_secs,
        'program': trained.program,
        'table_bytes': sum(x.nbytes for x in jax.tree.leaves(trained.state)),
      }
      vectors = parts.strategy.result(trained.state)
      results.write(config, workdir, parts, vectors, trained.totals, facts)
      return 0
    except metrics.Stopped:
      metrics.LOG.info('stopped by a signal before training')
      return STOPPED
    except errors.UserError as error:
      # The caller shows it; the file should tell it as well.
      log.emit(logging.makeLogRecord({'msg': str(error)}))
      raise
    finally:
      stages.close()
      metrics.stop_log(log)


def _schedules(
  config: ml_collections.ConfigDict, total_words: int
) -> Callable[[loader.Loaded], strategy_base.Schedule]:
  """Linear decay on global progress, and the key of each dispatch."""
  o = config.optimizer

  def learning_rate(words: int) -> np.float32:
    span = o.final_learning_rate - o.learning_rate
    return np.float32(o.learning_rate + span * (words / total_words))

  # Streams of their own for the tables' start (0) and for negatives (1).
  negatives_key = jax.random.fold_in(_key(config.seed), 1)

  def schedule(item: loader.Loaded) -> strategy_base.Schedule:
    key = jax.random.fold_in(negatives_key, item.index)
    return strategy_base.Schedule(
      learning_rate(item.words_before),
      learning_rate(item.words_after),
      np.asarray(jax.random.key_data(key)),
    )

  return schedule


def _key(seed: int) -> jax.Array:
  # Named, so that a user's JAX settings cannot change what a seed means.
  return jax.random.key(seed, impl='threefry2x32')


@jax.jit
def _all_finite(state: Any) -> jax.Array:
  finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(state)]
  return jnp.stack(finite).all()


def _start(
  config: ml_collections.ConfigDict,
  parts: build.Parts,
  saved: checkpoint.Checkpoints,
) -> tuple[strategy_base.TrainState, metrics.Totals]:
  """A new state, or that of the newest checkpoint."""
  init = jax.jit(parts.strategy.init)
  key = jax.random.fold_in(_key(config.seed), 0)
  restored = saved.restore(jax.eval_shape(init, key))
  if restored is None:
    return init(key), metrics.Totals()
  if restored.record['corpus'] != parts.corpus.manifest['fingerprint']:
    raise errors.UserError(
      'the text has changed since this run began; give another --workdir'
    )
  totals = metrics.Totals(**restored.record['totals'])
  metrics.LOG.info('resuming behind %s words', f'{totals.words:,}')
  return restored.state, totals


def _batches(
  parts: build.Parts, totals: metrics.Totals, device: jax.Device
) -> Iterator[loader.Loaded]:
  """What remains to be read, brought to the device ahead of its use."""
  position = loader.Position(totals.epoch, totals.block)
  return loader.prefetch(
    loader.batches(parts.corpus, parts.loader_spec, position, totals.words),
    lambda batch: jax.device_put(batch, device),
  )


def _save(
  saved: checkpoint.Checkpoints,
  state: strategy_base.TrainState,
  totals: metrics.Totals,
  parts: build.Parts,
  learning_rate: float,
) -> None:
  """Saves in the background; refuses to keep a state that is not finite."""
  if not _all_finite(state):
    raise metrics.diverged(totals.steps, totals.words, float(learning_rate))
  record = {
    'totals': dataclasses.asdict(totals),
    'corpus': parts.corpus.manifest['fingerprint'],
  }
  saved.save(totals.steps, state, record)


def _train(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  saved: checkpoint.Checkpoints,
  stop: threading.Event,
) -> Trained:
  """The loop."""
  device = mesh.training_device()
  state, totals = _start(config, parts, saved)
  state = jax.device_put(state, device)
  constants = jax.device_put(parts.model.constants(), device)
  epoch_words, epochs = parts.corpus.num_words, config.train.epochs
  schedule = _schedules(config, epoch_words * epochs)
  meter = metrics.Meter(
    workdir, totals, epoch_words, epochs, config.train.log_every_secs
  )
  items = _batches(parts, totals, device)
  waiting: collections.deque = collections.deque()
  step, program = None, ''
  last_save = time.monotonic()
  try:
    for item in items:
      plan = schedule(item)
      args = (constants, item.batch, plan)
      if step is None:
        compile_start = time.monotonic()
        step = parts.strategy.step.lower(state, *args).compile()
        totals.compile_secs += time.monotonic() - compile_start
        program = step.as_text()
        metrics.LOG.info('compiled in %.1f s', totals.compile_secs)
        meter.start()
      state, step_metrics = step(state, *args)
      rates = (plan.first_learning_rate, plan.last_learning_rate)
      waiting.append((item._replace(batch=None), rates, step_metrics))
      due = time.monotonic() - last_save > config.train.checkpoint_every_secs
      is_last = item.words_after == epoch_words * epochs
      save = due or is_last or stop.is_set()
      # One dispatch is under way while the one before it is counted; all are
      # counted before what they led to is saved.
      while len(waiting) > (0 if save else 1):
        meter.count(*waiting.popleft())
      if save:
        _save(saved, state, totals, parts, plan.last_learning_rate)
        last_save = time.monotonic()
      if stop.is_set() and not is_last:
        return Trained(state, totals, False, program)
    return Trained(state, totals, True, program)
  finally:
    items.close()
    meter.close()
