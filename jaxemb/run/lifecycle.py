"""A run, from settings to results."""

import contextlib
import functools
import logging
import os
import pathlib
import shutil
import threading
import time
import types
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.kernels.cpu import step as native
from jaxemb.run import build, loop, metrics, results, rundir
from jaxemb.run import partition as runner
from jaxemb.run import workers as workers_runner
from jaxemb.runtime import distributed, mesh, resources
from jaxemb.storage import bucket, checkpoint
from jaxemb.workers import remote

STOPPED = distributed.STOPPED  # exit code
_PUSH_SECS = 60.0  # at most, between copies of what changed to a bucket
_NO_MEMORY = 'RESOURCE_EXHAUSTED'  # in errors of JAX


def run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path | str,
  job: distributed.Job = distributed.ALONE,
  text_cache: pathlib.Path | None = None,
  **fixed: Any,
) -> int:
  """Trains or resumes, and writes all results; returns 0 or `STOPPED`.

  The `workdir` may be in a bucket. Without a `text_cache`, the usual cache gets
  encoded text and compiled programs; `fixed` are given fields of
  `config.Tuning`. Raises a `UserError` for input or settings that cannot be
  used.
  """
  if not bucket.is_url(workdir):
    return _run_in(
      config,
      workdir=pathlib.Path(workdir),
      job=job,
      text_cache=text_cache,
      fixed=fixed,
    )
  if job.coordinator or job.detects:
    raise errors.UserError(
      f'--workdir={workdir} is for one process; give a folder that all reach, '
      'such as a bucket that is mounted on each host (gcsfuse)'
    )
  every_secs = max(1.0, min(_PUSH_SECS, config.train.checkpoint_every_secs))
  # What is being copied, in the end above all, is not lost by a signal.
  stop = threading.Event()
  monitor = types.SimpleNamespace(request_stop=stop.set)
  with (
    distributed.stopping_on_signals(monitor, ('SIGTERM', 'SIGHUP')),
    bucket.opened(workdir, every_secs) as folder,
  ):
    code = STOPPED
    if not stop.is_set():
      code = _run_in(
        config, workdir=folder, job=job, text_cache=text_cache, fixed=fixed
      )
  metrics.LOG.info('what was in %s is in %s', folder, workdir)
  return code


def _run_in(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  job: distributed.Job,
  text_cache: pathlib.Path | None,
  fixed: Mapping[str, Any],
) -> int:
  started, code = time.time(), None
  home = runner.home(config, workdir)
  runner.check_alone(config, job)
  distributed.join(job)
  monitor = distributed.Monitor()
  with distributed.stopping_on_signals(monitor):
    try:
      code = _run_logged(
        home, config, workdir, started, monitor, text_cache, fixed
      )
    finally:
      monitor.close(code)
  return code


def _run_logged(
  home: pathlib.Path,
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  started: float,
  monitor: distributed.Monitor,
  *args: Any,
) -> int:
  is_first = distributed.is_first()
  with rundir.locked(home) if is_first else contextlib.nullcontext():
    with rundir.using(home):
      home.mkdir(parents=True, exist_ok=True)
      name = 'log' if is_first else f'log-{distributed.process_id()}'
      log = metrics.start_log(home / f'{name}.txt', is_first)
    try:
      return _run(config, workdir, started, monitor, *args)
    except Exception as error:
      if not isinstance(error, errors.UserError):
        # Collectives fail where another process is lost or was told to stop:
        # some with a ValueError.
        monitor.wait_for_loss()
        if distributed.num_processes() > 1 and monitor.stop.is_set():
          return STOPPED
      is_memory = isinstance(error, MemoryError) or _NO_MEMORY in str(error)
      if not is_memory and not isinstance(error, errors.UserError):
        raise
      line = str(error)
      if is_memory:
        kind = kinds.of(config)
        line = f'out of memory; {kind.smaller}, lower '
        line += f'--config.train.batch_{kind.unit}, '
        line += 'or give --config.mesh.data=1'
      # The caller prints it; it belongs in the log as well.
      log.emit(logging.makeLogRecord({'msg': line}))
      if not is_memory:
        raise
      raise errors.UserError(line) from error
    finally:
      metrics.LOG.removeHandler(log)
      log.close()


def _run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  started: float,
  monitor: distributed.Monitor,
  text_cache: pathlib.Path | None,
  fixed: Mapping[str, Any],
) -> int:
  versions = resources.versions() | {'code': resources.code_digest()}
  distributed.agree('setting', config_lib.flat(config))
  distributed.agree('version', versions)
  distributed.agree('folder', {'--workdir': rundir.holder(workdir)})
  recorded = rundir.recorded(workdir)
  saved = checkpoint.newest_record(workdir / 'checkpoints')
  if saved and recorded.get('strategy.name') == 'replicas':
    # A start that failed may have had another number of them.
    recorded |= {'mesh.data': saved['copies'] or 1, 'mesh.table': 1}
  given = config
  config, tuning, devices = build.on_devices(given, recorded, **fixed)
  rundir.check(config, workdir)
  cache = rundir.cache_folder()
  if not (text_cache or os.environ.get('JAX_COMPILATION_CACHE_DIR')):
    # The next start need not compile.
    jax.config.update('jax_compilation_cache_dir', str(cache / 'programs'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  metrics.LOG.info('%s; results in %s', mesh.describe(devices), workdir)
  progress = metrics.Progress(config.train.log_every_secs, monitor.stop)
  why_not_fused = ''
  try:
    args = config, tuning, devices, progress, text_cache or cache
    is_workers, cluster = config.strategy.name == 'workers', None
    if is_workers:
      # What a start that was killed has left.
      shutil.rmtree(workdir / 'store', ignore_errors=True)
      cluster = remote.Cluster()
    parts = build.parts(*args, workdir / 'store', cluster)
  except native.Unavailable as error:
    why_not_fused = str(error)
  except metrics.Stopped:
    metrics.LOG.info('stopped before training; nothing to save')
    return STOPPED
  finally:
    progress.close()
  if whys := list(filter(None, distributed.everyone('fused', why_not_fused))):
    metrics.LOG.info(f'steps are not fused, and slower: {whys[0]}')
    fixed = {**fixed, 'fused': False}
    return _run(
      given,
      workdir,
      started,
      monitor=monitor,
      text_cache=text_cache,
      fixed=fixed,
    )
  tuning = parts.tuning
  if tuning.threads > 1:
    cores = resources.usable_cores()
    of_each = ' of each process' * (distributed.num_processes() > 1)
    metrics.LOG.info(
      f'training on {min(tuning.threads, cores)} of {cores} cores{of_each}: '
      f'{tuning.threads} threads share the tables, and a second run will not '
      'be identical; with --config.train.threads=1 it would be'
    )
    num_sockets = len(resources.sockets())
    if num_sockets > 1 and distributed.num_processes() == 1:
      metrics.LOG.info(
        f'this machine has {num_sockets} sockets; one table on each, and what '
        'they learn exchanged: jaxemb launch --sockets'
      )
  monitor.has_begun.set()
  session = loop.Session(started, time.time() - started, monitor.stop)
  fingerprint = parts.source.fingerprint
  rundir.check(config, workdir, fingerprint)
  is_partition = config.strategy.name == 'partition'
  if is_partition:
    runner.check(config, workdir, fingerprint)
  if distributed.is_first():
    rundir.record(config, tuning, workdir, fingerprint=fingerprint)
  results.log_data(parts)
  build.check_fits(parts)
  if is_partition:
    return 0 if runner.run(workdir, parts, session) else STOPPED
  if is_workers:
    own = _own_results(parts)
    return (
      0
      if workers_runner.run(
        workdir, parts, session, cluster=cluster, cache=text_cache, own=own
      )
      else STOPPED
    )
  return 0 if _train(workdir, parts, session) else STOPPED


def _train(
  workdir: pathlib.Path, parts: build.Parts, session: loop.Session
) -> bool:
  """Trains from the newest checkpoint, or from a new state, to the results."""
  is_first, source = distributed.is_first(), parts.source
  num_devices = len(parts.mesh.local_devices)

  def make_meter(totals):
    with rundir.using(workdir):
      return metrics.Meter(
        workdir=workdir if is_first else None,
        totals=totals,
        units_per_epoch=source.units_per_epoch,
        epochs=source.epochs,
        log_every_secs=parts.config.train.log_every_secs,
        untrained_loss=parts.trainable.model.untrained_loss,
        gather=functools.partial(distributed.latest, 'hosts'),
        num_devices=num_devices,
        every_steps=getattr(parts.strategy.policy, 'every_steps', 0),
      )

  store = parts.strategy.store
  closing = contextlib.closing(store) if store else contextlib.nullcontext()
  with closing, loop.open_checkpoints(workdir) as checkpoints:
    own = _own_results(parts)
    hook = (own or results).Evaluation(workdir, parts)
    trained = loop.train(
      checkpoints, parts, session, make_meter=make_meter, hooks=[hook]
    )
    if trained is None:
      return False
    if trained.totals.counters.get('pairs') == 0:
      is_text = parts.config.data.source != 'item_sets'
      one, given = ('word', 'text') if is_text else ('item', 'users')
      raise errors.UserError(
        f'nothing was learned: no {one} has another one in its window; give '
        f'{given} with several {one}s on a line, or raise --config.data.sample'
      )
    if own:
      own.write(workdir, parts, trained.state, totals=trained.totals, hook=hook)
      return True
    # The last checkpoint is still being written.
    export = results.collect(parts, trained.state)
    if is_first:
      results.write(workdir, parts, export, totals=trained.totals)
  return True


def _own_results(parts: build.Parts) -> types.ModuleType | None:
  """What evaluates and exports a model of clicks or nodes, if it is one."""
  source = parts.config.data.source
  if source == 'clicks':
    from jaxemb.clicks import results as own  # and with it pyarrow
  elif source == 'nodes':
    from jaxemb.graphs import node_results as own
  else:
    return None
  own.check(parts.config, parts.source)
  return own
