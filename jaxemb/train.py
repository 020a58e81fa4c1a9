"""The training loop, from settings to results.

The loop takes batches, which are pure functions of the reader's position, and
dispatches each as one compiled program of many steps. A checkpoint holds the
state and the position, so a run that was killed repeats exactly what it lost.
"""

import collections
import logging
import math
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb import (
  build,
  errors,
  mesh,
  metrics,
  report,
  results,
  saving,
  signals,
  workdirs,
)
from jaxemb import config as config_lib
from jaxemb.data import loader
from jaxemb.storage import checkpoint
from jaxemb.strategies import base as strategy_base

STOPPED = 75  # exit code: stopped by a signal after saving


class Trained(NamedTuple):
  """What the loop leaves behind."""

  state: strategy_base.TrainState
  totals: metrics.Totals
  finished: bool  # all words were read


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
  session = _Session(time.time())
  config = config_lib.resolved(config)
  workdirs.open_(config, workdir)
  with workdirs.locked(workdir):
    with workdirs.writing(workdir):
      log = metrics.start_log(workdir / 'log.txt')
    try:
      with signals.stopping() as stop:
        return _run(config, workdir, session, stop)
    except errors.UserError as error:
      # The caller shows it; the file should tell it as well.
      log.emit(logging.makeLogRecord({'msg': str(error)}))
      raise
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
      is_memory = isinstance(error, MemoryError)
      if not is_memory and 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      raise errors.UserError(
        'out of memory; lower --config.model.dim, --config.data.max_vocab or '
        '--config.train.batch_words'
      ) from error
    finally:
      metrics.stop_log(log)


def _run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  session: '_Session',
  stop: threading.Event,
) -> int:
  cache = build.cache_folder(config)
  # Programs compile once per machine: the cache is read on the next start.
  jax.config.update('jax_compilation_cache_dir', str(cache / 'programs'))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  metrics.LOG.info('%s; results in %s', mesh.describe(), workdir)
  stages = metrics.Stages(stop, config.train.log_every_secs)
  try:
    parts = build.parts(config, stages)
  except metrics.Stopped:
    metrics.LOG.info('stopped by a signal before training')
    return STOPPED
  finally:
    stages.close()
  session = session._replace(encode_secs=time.time() - session.started)
  workdirs.record(config, workdir)
  results.describe_corpus(parts.corpus)
  with checkpoint.Checkpoints(
    workdir / 'checkpoints',
    config.train.checkpoints_to_keep,
    metrics.LOG.error,
  ) as saved:
    trained = _train(config, workdir, parts, saved, stop, session)
    saved_step = saved.wait()
  if not trained.finished:
    metrics.LOG.info('stopped; saved at step %s; start again', saved_step)
    return STOPPED
  if not trained.totals.pairs:
    raise errors.UserError(
      'nothing was learned: no word has another one in its window; give text '
      'with several words on a line, or raise --config.data.sample'
    )
  table_bytes = sum(x.nbytes for x in jax.tree.leaves(trained.state))
  vectors = parts.strategy.result(trained.state)
  results.write(config, workdir, parts, vectors, trained.totals, table_bytes)
  return 0


class _Session(NamedTuple):
  """One start of a run."""

  started: float  # seconds since 1970
  encode_secs: float = 0.0  # until the corpus was ready


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


def _batches(
  parts: build.Parts, totals: metrics.Totals, device: jax.Device
) -> Iterator[loader.Loaded]:
  """What remains to be read, brought to the device ahead of its use."""
  position = loader.Position(totals.epoch, totals.block)
  return loader.prefetch(
    loader.batches(parts.corpus, parts.loader_spec, position, totals.words),
    lambda batch: jax.device_put(batch, device),
  )


def _compile(step: Any, state: Any, args: tuple, totals: metrics.Totals) -> Any:
  """Compiles a dispatch ahead of its use, so that its time is known apart."""
  start = time.monotonic()
  compiled = step.lower(state, *args).compile()
  secs = time.monotonic() - start
  totals.compile_secs += secs
  totals.collectives = report.collectives(compiled.as_text())
  metrics.LOG.info('compiled in %.1f s', secs)
  return compiled


def _train(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  saved: checkpoint.Checkpoints,
  stop: threading.Event,
  session: _Session,
) -> Trained:
  """The loop."""
  device = mesh.training_device()
  key = jax.random.fold_in(_key(config.seed), 0)
  state, totals = saving.start(key, parts, saved)
  state = jax.device_put(state, device)
  constants = jax.device_put(parts.model.constants(), device)
  epoch_words, epochs = parts.corpus.num_words, config.train.epochs
  schedule = _schedules(config, epoch_words * epochs)
  with workdirs.writing(workdir):
    meter = metrics.Meter(
      workdir,
      totals,
      epoch_words,
      epochs,
      config.train.log_every_secs,
      # Thrice what a model that knows nothing scores.
      3 * (1 + config.model.negatives) * math.log(2),
    )
  items = _batches(parts, totals, device)
  waiting: collections.deque = collections.deque()
  step = None
  last_save = time.monotonic()
  secs_before = totals.total_secs
  try:
    for item in items:
      plan = schedule(item)
      args = (constants, item.batch, plan)
      if step is None:
        step = _compile(parts.strategy.step, state, args, totals)
        totals.started = totals.started or session.started
        totals.encode_secs += session.encode_secs
        meter.start()
      state, step_metrics = step(state, *args)
      rates = (plan.first_learning_rate, plan.last_learning_rate)
      waiting.append((item._replace(batch=None), rates, step_metrics))
      due = time.monotonic() - last_save > config.train.checkpoint_every_secs
      is_last = item.words_after == epoch_words * epochs
      stopping = stop.is_set()  # once: it may be set at any moment
      save = due or is_last or stopping
      # One dispatch is under way while the one before it is counted; all are
      # counted before what they led to is saved.
      while len(waiting) > (0 if save else 1):
        meter.count(*waiting.popleft())
      if save:
        totals.total_secs = secs_before + time.time() - session.started
        saving.save(saved, state, totals, parts, plan.last_learning_rate)
        last_save = time.monotonic()
      if stopping and not is_last:
        return Trained(state, totals, False)
    return Trained(state, totals, True)
  finally:
    items.close()
    meter.close()
