"""The training loop, from settings to results.

The loop takes batches, which are pure functions of the reader's position, and
dispatches each as one compiled program of many steps. A checkpoint holds the
state and the position, so a run that was killed repeats exactly what it lost.
"""

import collections
import contextlib
import functools
import logging
import math
import pathlib
import threading
import time
from typing import Any, NamedTuple

import jax
import ml_collections

from jaxemb import (
  build,
  dispatches,
  errors,
  mesh,
  metrics,
  processes,
  progress,
  report,
  results,
  saving,
  signals,
  watch,
  workdirs,
)
from jaxemb import config as config_lib
from jaxemb.storage import checkpoint

STOPPED = watch.STOPPED  # exit code


class Trained(NamedTuple):
  """What the loop leaves behind."""

  state: Any
  totals: metrics.Totals
  finished: bool  # all words were read


def run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  place: processes.Place = processes.ALONE,
) -> int:
  """Trains, or resumes training, and writes all results to `workdir`.

  Args:
    config: settings that `config.check` accepts.
    workdir: folder of the run.
    place: which process this is of those that train as one.

  Returns:
    The exit code: 0, or `STOPPED`.

  Raises:
    UserError: for input or settings that cannot be used.
  """
  session = _Session(time.time())
  workdirs.make(workdir)
  processes.start(place)
  watching = watch.Watch()
  is_first, code = processes.is_first(), None
  with workdirs.locked(workdir) if is_first else contextlib.nullcontext():
    with workdirs.writing(workdir):
      path = workdir / processes.file_name('log.txt')
      log = metrics.start_log(path, is_first)
    try:
      with signals.stopping(watching.stop):
        code = _run(config, workdir, session, watching)
      return code
    except errors.UserError as error:
      # The caller shows it; the file should tell it as well.
      log.emit(logging.makeLogRecord({'msg': str(error)}))
      raise
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
      is_memory = isinstance(error, MemoryError)
      if not is_memory:
        watching.wait_for_loss()  # a collective failed: whose fault is it?
        if processes.num_joined() > 1 and watching.stop.is_set():
          return (code := STOPPED)  # another one's, which was told to stop
      if not is_memory and 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      raise errors.UserError(
        'out of memory; lower --config.model.dim, --config.data.max_vocab or '
        '--config.train.batch_words, or give --config.mesh.data=1'
      ) from error
    finally:
      watching.close(says_bye=code is not None, stops=code == STOPPED)
      metrics.stop_log(log)


def _run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  session: '_Session',
  watching: watch.Watch,
) -> int:
  processes.agree('settings', config_lib.flat(config), 'setting')
  processes.agree('versions', results.versions_of_code(), 'version')
  processes.agree('folders', {'--workdir': workdirs.holder(workdir)}, 'folder')
  config, devices = build.on_devices(config, workdirs.recorded(workdir))
  workdirs.check(config, workdir)
  cache = build.cache_folder(config)
  # Programs compile once per machine: the cache is read on the next start.
  jax.config.update('jax_compilation_cache_dir', str(cache / 'programs'))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  metrics.LOG.info('%s; results in %s', mesh.describe(devices), workdir)
  stages = progress.Stages(watching.stop, config.train.log_every_secs)
  try:
    parts = build.parts(config, devices, stages)
  except progress.Stopped:
    metrics.LOG.info('stopped by a signal before training')
    return STOPPED
  finally:
    stages.close()
  watching.has_begun.set()
  session = session._replace(encode_secs=time.time() - session.started)
  if processes.is_first():
    workdirs.record(config, workdir)
  results.describe_corpus(parts.corpus)
  with checkpoint.Checkpoints(
    workdir / 'checkpoints',
    config.train.checkpoints_to_keep,
    metrics.LOG.error,
  ) as saved:
    trained = _train(config, workdir, parts, saved, watching.stop, session)
    if not trained.finished:
      metrics.LOG.info('stopped; saved at step %s; start again', saved.wait())
      return STOPPED
    if not trained.totals.pairs:
      raise errors.UserError(
        'nothing was learned: no word has another one in its window; give text '
        'with several words on a line, or raise --config.data.sample'
      )
    # While the last checkpoint is still being written.
    table_bytes = mesh.num_bytes(trained.state)
    vectors = parts.strategy.result(trained.state)
    if processes.is_first():
      results.write(
        config, workdir, parts, vectors, trained.totals, table_bytes
      )
    processes.follow_first('results')
  return 0


class _Session(NamedTuple):
  """One start of a run."""

  started: float  # seconds since 1970
  encode_secs: float = 0.0  # until the corpus was ready


def _compile(
  strategy: Any, state: Any, args: tuple, totals: metrics.Totals
) -> Any:
  """Compiles a dispatch ahead of its use, so that its time is known apart."""
  start = time.monotonic()
  compiled = strategy.step.lower(state, *args).compile()
  totals.compile_secs += (secs := time.monotonic() - start)
  totals.collectives = report.collectives(compiled.as_text(), strategy.loop)
  since = metrics.process_secs()
  told = '' if since is None else f'; training after {since:.1f} s'
  metrics.LOG.info('compiled in %.1f s%s', secs, told)
  return compiled


def _meter(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  totals: metrics.Totals,
) -> metrics.Meter:
  """Of several processes one writes records, of all of them."""
  with workdirs.writing(workdir):
    return metrics.Meter(
      workdir if processes.is_first() else None,
      totals,
      parts.corpus.num_words,
      config.train.epochs,
      config.train.log_every_secs,
      # Thrice what a model that knows nothing scores.
      3 * (1 + config.model.negatives) * math.log(2),
      functools.partial(processes.latest, 'hosts'),
    )


def _train(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  saved: checkpoint.Checkpoints,
  stop: threading.Event,
  session: _Session,
) -> Trained:
  """The loop."""
  strategy = parts.strategy
  key = dispatches.tables_key(config)
  state, totals = saving.start(config, key, parts, saved)
  constants = mesh.put(strategy.constants(), strategy.constants_sharding)
  epoch_words, epochs = parts.corpus.num_words, config.train.epochs
  meter = _meter(config, workdir, parts, totals)
  schedule = dispatches.schedules(config, epoch_words * epochs)
  items = dispatches.batches(parts, totals)
  waiting: collections.deque = collections.deque()
  step = None
  last_save = time.monotonic()
  secs_before = totals.total_secs
  decisions = processes.Decisions('saves')
  try:
    for item in items:
      plan = schedule(item)
      args = (constants, item.batch, plan)
      if step is None:
        step = _compile(strategy, state, args, totals)
        totals.started = totals.started or session.started
        totals.encode_secs += session.encode_secs
        meter.start()
      state, step_metrics = step(state, *args)
      rates = (plan.first_learning_rate, plan.last_learning_rate)
      waiting.append((item._replace(batch=None), rates, step_metrics))
      due = time.monotonic() - last_save > config.train.checkpoint_every_secs
      is_last = item.words_after == epoch_words * epochs
      # Asked once: it may be set at any moment.
      decision = decisions.next(stop.is_set(), due)
      stopping = decision == processes.STOP
      save = is_last or decision != processes.GO_ON
      # One dispatch is under way while the one before it is counted; all are
      # counted before what they led to is saved.
      while len(waiting) > (0 if save else 1):
        meter.count(*waiting.popleft())
      if save:
        totals.total_secs = secs_before + time.time() - session.started
        saving.save(saved, state, totals, parts, rates[1], is_last or stopping)
        last_save = time.monotonic()
      if stopping and not is_last:
        return Trained(state, totals, False)
    return Trained(state, totals, True)
  finally:
    items.close()
    meter.close()
