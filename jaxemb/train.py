"""A run, from settings to results.

A checkpoint holds the state and the position of the reader, of which batches
are pure functions, so a run that was killed repeats exactly what it lost.
"""

import contextlib
import functools
import logging
import os
import pathlib
import threading
import time
from typing import Any

import jax
import ml_collections

from jaxemb import build, dispatches, errors, loop, metrics, results, saving
from jaxemb import config as config_lib
from jaxemb import rundir as workdirs
from jaxemb.partition import submodels
from jaxemb.runtime import distributed, mesh, resources
from jaxemb.senses import sense_rows
from jaxemb.storage import checkpoint

STOPPED = distributed.STOPPED  # exit code


def run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  job: distributed.Job = distributed.ALONE,
) -> int:
  """Trains, or resumes training, and writes all results to `workdir`.

  Args:
    config: settings that `config.check` accepts.
    workdir: folder of the run.
    job: which process this is of those that train as one.

  Returns:
    The exit code: 0, or `STOPPED`.

  Raises:
    UserError: for input or settings that cannot be used.
  """
  session = loop.Session(time.time())
  home = submodels.home(config, workdir)
  workdirs.make(home)
  submodels.check_alone(config, job)
  distributed.join(job)
  monitor = distributed.Monitor()
  is_first, code = distributed.is_first(), None
  with workdirs.locked(home) if is_first else contextlib.nullcontext():
    with workdirs.writing(home):
      name = 'log' if is_first else f'log-{distributed.process_id()}'
      log = metrics.start_log(home / f'{name}.txt', is_first)
    try:
      with distributed.stopping_on_signals(monitor):
        code = _run(config, workdir, session, monitor)
      return code
    except errors.UserError as error:
      # The caller shows it; the file should tell it as well.
      log.emit(logging.makeLogRecord({'msg': str(error)}))
      raise
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
      is_memory = isinstance(error, MemoryError)
      if not is_memory:
        monitor.wait_for_loss()  # a collective failed: whose fault is it?
        if distributed.num_processes() > 1 and monitor.stop.is_set():
          return (code := STOPPED)  # another one's, which was told to stop
      if not is_memory and 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      raise errors.UserError(
        'out of memory; lower --config.model.dim, --config.data.max_vocab or '
        '--config.train.batch_words, or give --config.mesh.data=1'
      ) from error
    finally:
      monitor.close(code)
      metrics.stop_log(log)


def _run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  session: loop.Session,
  monitor: distributed.Monitor,
) -> int:
  distributed.agree('setting', config_lib.flat(config))
  distributed.agree(
    'version', resources.versions() | {'code': resources.code_digest()}
  )
  distributed.agree('folder', {'--workdir': workdirs.holder(workdir)})
  config, devices = build.on_devices(config, workdirs.recorded(workdir))
  workdirs.check(config, workdir)
  cache = build.cache_folder(config)
  # Programs compile once per machine: the cache is read on the next start.
  if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    jax.config.update('jax_compilation_cache_dir', str(cache / 'programs'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  metrics.LOG.info('%s; results in %s', mesh.describe(devices), workdir)
  stages = metrics.Stages(monitor.stop, config.train.log_every_secs)
  try:
    parts = build.parts(config, devices, stages)
  except metrics.Stopped:
    metrics.LOG.info('stopped by a signal before training')
    return STOPPED
  finally:
    stages.close()
  monitor.has_begun.set()
  session = session._replace(encode_secs=time.time() - session.started)
  text = parts.corpus.manifest['fingerprint']
  workdirs.check_text(workdir, text)
  if config.strategy.name == 'partition':
    submodels.check(config, workdir, text)
  if distributed.is_first():
    workdirs.record(config, workdir, text)
  results.describe_corpus(parts.corpus)
  if config.strategy.name == 'partition':
    done = submodels.run(config, workdir, parts, monitor.stop, session)
    return 0 if done else STOPPED
  with checkpoint.Checkpoints(
    workdir / 'checkpoints',
    config.train.checkpoints_to_keep,
    metrics.LOG.error,
  ) as saved:
    trained = _train(config, workdir, parts, saved, monitor.stop, session)
    if not trained.finished:
      metrics.LOG.info('stopped; saved at step %s; start again', saved.wait())
      return STOPPED
    if not trained.totals.pairs:
      raise errors.UserError(
        'nothing was learned: no word has another one in its window; give text '
        'with several words on a line, or raise --config.data.sample'
      )
    _write(config, workdir, parts, trained)
    distributed.wait_for_first('results')
  return 0


def _write(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  trained: loop.Trained,
) -> None:
  """What a run leaves, while its last checkpoint is still being written."""
  table_bytes = mesh.num_bytes(trained.state)
  export = functools.partial(parts.strategy.export_rows, trained.state)
  rows = export(parts.model.vectors_table).encoded
  senses = sense_rows.of_model(
    config,
    parts.model,
    lambda name: export(name).rows,
    parts.corpus.vocabulary,
  )
  if distributed.is_first():
    results.write(
      config,
      workdir,
      parts,
      rows,
      trained.totals,
      table_bytes,
      found=senses,
    )


def _meter(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  totals: metrics.Totals,
) -> metrics.Meter:
  """Of several processes one writes records, of all of them."""
  with workdirs.writing(workdir):
    return metrics.Meter(
      workdir if distributed.is_first() else None,
      totals,
      parts.corpus.num_words,
      config.train.epochs,
      config.train.log_every_secs,
      metrics.max_loss(parts.model.decisions),
      functools.partial(distributed.latest, 'hosts'),
    )


def _train(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  saved: checkpoint.Checkpoints,
  stop: threading.Event,
  session: loop.Session,
) -> loop.Trained:
  """From a new state, or that of the newest checkpoint, to the end."""
  key = dispatches.tables_key(config)
  state, totals = saving.start(config, key, parts, saved)
  total_words = parts.corpus.num_words * config.train.epochs

  def save(state: Any, rate: float, is_final: bool) -> None:
    saving.save(saved, state, totals, parts, rate, is_final)

  task = loop.Task(
    parts.strategy,
    state,
    dispatches.batches(parts, totals),
    dispatches.schedules(config, total_words),
    totals,
    _meter(config, workdir, parts, totals),
    total_words,
    save,
    config.train.checkpoint_every_secs,
    distributed.Decisions('saves'),
  )
  return loop.run(task, stop, session)
