"""A run, from settings to results: `run` and the functions that it calls.

`_run_steps` lists the steps: agree with other processes, read the data and make
the parts (`run.build`), record settings, train (`run.loop`), write the results
(`run.results`).
"""

import contextlib
import functools
import logging
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.kernels import ffi
from jaxemb.ops import sampling
from jaxemb.run import (
  build,
  evaluation,
  loop,
  metrics,
  partition,
  results,
  rundir,
  workers,
)
from jaxemb.run import devices as devices_lib
from jaxemb.run import progress as progress_lib
from jaxemb.runtime import compile_time, distributed, mesh, resources
from jaxemb.storage import bucket, checkpoint
from jaxemb.workers import remote

STOPPED = distributed.STOPPED  # exit code
_PUSH_SECS = 60.0  # at most, between copies of what changed to a bucket
_NO_MEMORY = 'RESOURCE_EXHAUSTED'  # in errors of JAX


def run(
  config: ml_collections.ConfigDict,
  workdir: str | os.PathLike[str],
  job: distributed.Job = distributed.ALONE,
  text_cache: pathlib.Path | None = None,
  **fixed: Any,
) -> int:
  """Trains or resumes, and writes all results; returns 0 or `STOPPED`.

  The `workdir` may be in a bucket. Without a `text_cache`, the usual cache gets
  encoded text and compiled programs; `fixed` are fields of
  `config.Tuning`. Raises a `UserError` for input or settings that cannot be
  used.
  """

  def run_in(folder):
    start = _Start(
      config=config,
      workdir=pathlib.Path(folder),
      job=job,
      text_cache=text_cache,
      fixed=fixed,
      started=time.time(),
    )
    return _run_in(start)

  if not bucket.is_url(workdir):
    return run_in(workdir)
  if job.coordinator or job.detects:
    raise errors.UserError(
      f'--workdir={workdir} is for one process; give a folder that all reach, '
      'such as a bucket that is mounted on each host (gcsfuse)'
    )
  every_secs = max(1.0, min(_PUSH_SECS, config.train.checkpoint_every_secs))
  # Signals must not interrupt the final upload.
  stop = threading.Event()
  with (
    distributed.stopping_on_signals(stop.set, ('SIGTERM', 'SIGHUP')),
    bucket.opened(workdir, every_secs) as folder,
  ):
    code = STOPPED if stop.is_set() else run_in(folder)
  metrics.LOG.info('copied %s to %s', folder, workdir)
  return code


class _Start(NamedTuple):
  """One start of a run."""

  config: ml_collections.ConfigDict  # unresolved
  workdir: pathlib.Path
  job: distributed.Job
  text_cache: pathlib.Path | None
  fixed: Mapping[str, Any]  # fields of `config.Tuning`
  started: float  # seconds since 1970


def _run_in(start: _Start) -> int:
  """Runs in a local folder, connected with other processes of the job."""
  s, job, code = start.config.strategy, start.job, None
  if s.name == 'partition' and (job.coordinator or job.detects):
    raise errors.UserError(
      "config.strategy.name='partition' needs no connection between processes: "
      'leave out --coordinator and --distributed, and start a process for each '
      'sub-model, with --config.strategy.part=0, 1, ...'
    )
  home = start.workdir  # where this process logs
  if s.name == 'partition' and s.part >= 0:
    home = partition.folder(start.config, home, s.part)
  distributed.join(job)
  monitor, is_first = distributed.Monitor(), distributed.is_first()
  with distributed.stopping_on_signals(monitor.request_stop):
    try:
      with rundir.locked(home) if is_first else contextlib.nullcontext():
        code = _run_logged(start, home, monitor)
    finally:
      monitor.close(code)
  return code


def _run_logged(
  start: _Start, home: pathlib.Path, monitor: distributed.Monitor
) -> int:
  """Runs with a log in the folder, and errors told apart."""
  is_first = distributed.is_first()
  with rundir.using(home):
    home.mkdir(parents=True, exist_ok=True)
    name = 'log' if is_first else f'log-{distributed.process_id()}'
    log = metrics.start_log(home / f'{name}.txt', is_first)
  try:
    return _run_steps(start, monitor)
  except errors.UserError as error:
    # The caller prints it; it belongs in the log as well.
    log.emit(logging.makeLogRecord({'msg': str(error)}))
    raise
  except Exception as error:
    # Collectives fail where another process is lost or was told to stop: some
    # with a ValueError.
    monitor.wait_for_loss()
    if distributed.num_processes() > 1 and monitor.stop.is_set():
      return STOPPED
    if not (isinstance(error, MemoryError) or _NO_MEMORY in str(error)):
      raise
    kind = kinds.of(start.config)
    line = (
      f'out of memory; {kind.smaller}, lower --config.train.batch_{kind.unit}, '
      'or give --config.mesh.data=1'
    )
    log.emit(logging.makeLogRecord({'msg': line}))
    raise errors.UserError(line) from error
  finally:
    metrics.LOG.removeHandler(log)
    log.close()


def _run_steps(start: _Start, monitor: distributed.Monitor) -> int:
  """The steps of a run, one after the other."""
  workdir, name = start.workdir, start.config.strategy.name
  _agree_and_log(start)
  if not (start.text_cache or os.environ.get('JAX_COMPILATION_CACHE_DIR')):
    rundir.keep_programs(rundir.cache_folder())
  cluster = None
  if name == 'workers':
    # What a start that was killed has left.
    shutil.rmtree(workdir / 'store', ignore_errors=True)
    cluster = remote.Cluster()
  try:
    with compile_time.waited() as waited:
      parts = _build(start, monitor, cluster)
  except progress_lib.Stopped:
    metrics.LOG.info('stopped before training; nothing to save')
    return STOPPED
  monitor.has_begun.set()
  session = loop.Session(
    started=start.started,
    encode_secs=time.time() - start.started - waited.secs,
    stop=monitor.stop,
    compile_secs=waited.secs,
  )
  with contextlib.closing(parts):
    _record(workdir, parts)
    _log_data(parts)
    _log_step(parts)
    if name == 'partition':
      has_ended = partition.run(workdir, parts, session)
    elif cluster is not None:
      has_ended = workers.run(
        workdir, parts, session, cluster=cluster, cache=start.text_cache
      )
    else:
      has_ended = _train(workdir, parts, session)
  return 0 if has_ended else STOPPED


def _agree_and_log(start: _Start) -> None:
  """Has all processes compare what must be the same; logs the settings.

  These are those that differ from their documented defaults.
  """
  values = config_lib.flat(start.config)
  versions = resources.versions() | {'code': resources.code_digest()}
  distributed.agree('setting', values)
  distributed.agree('version', versions)
  distributed.agree('folder', {'--workdir': rundir.holder(start.workdir)})
  settings = config_lib.settings(values['data.source'])
  changed = [f'{k}={x}' for k, x in values.items() if x != settings[k].default]
  metrics.LOG.info('settings: %s', ', '.join(changed) or 'all defaults')


def _build(
  start: _Start, monitor: distributed.Monitor, cluster: remote.Cluster | None
) -> build.Parts:
  """Makes the parts of the run; without kernels where one cannot be used.

  Kernels are compiled while the data are read: whether all processes have them
  is known only then. Others read the data again, from its cache.
  """
  why = ''
  is_alone = distributed.num_processes() == 1
  read = functools.partial(_read_and_make, start, monitor.stop, cluster)
  with contextlib.ExitStack() as stores:  # closed unless the run goes on
    try:
      parts = read(start.fixed)
      stores.callback(parts.close)
      if is_alone:
        parts = _take_memory(parts)
        _compile_beside_kernel(parts)
      build.wait_for_kernel(parts)
    except ffi.Unavailable as error:
      why = str(error)
    whys = list(filter(None, distributed.everyone('fused', why)))
    if whys:
      metrics.LOG.info(f'steps are not fused, and slower: {whys[0]}')
      stores.close()
      parts = read({**start.fixed, 'fused': False})
      stores.callback(parts.close)
    if whys or not is_alone:
      parts = _take_memory(parts)
    stores.pop_all()
  return parts


def _take_memory(parts: build.Parts) -> build.Parts:
  """Has devices hold the data, beside tables for which there is room.

  Returns the parts with the memory that they will take. Raises a `UserError` if
  there is none. All processes take part, where each has made its parts.
  """
  resources.release_freed()  # of what was read
  memory = parts.check_fits()
  build.reside(parts)
  return parts._replace(memory=memory)


def _compile_beside_kernel(parts: build.Parts) -> None:
  """Has XLA compile the first steps while another process compiles a kernel.

  Programs of sub-models and of tables in a store, such as those of workers, are
  not known yet.
  """
  is_partition = parts.config.strategy.name == 'partition'
  is_apart = is_partition or parts.strategy.store
  if parts.compiling and not is_apart:
    with compile_time.waiting():
      loop.compile_ahead(parts)


def _read_and_make(
  start: _Start,
  stop: threading.Event,
  cluster: remote.Cluster | None,
  fixed: Mapping[str, Any],
) -> build.Parts:
  """Chooses devices and what settings leave open, reads the data."""
  workdir = start.workdir
  begun = rundir.recorded(workdir)  # by the run that is resumed, or {}
  fits_steps = not (begun or start.config.train.batch_words)
  left_open = () if begun else config_lib.left_open(start.config)
  saved = checkpoint.newest_record(workdir / 'checkpoints')
  if saved and begun.get('strategy.name') == 'replicas':
    # A start that failed may have had another number of them.
    begun |= {'mesh.data': saved['copies'] or 1, 'mesh.table': 1}
  setup = devices_lib.choose(start.config, begun, **fixed)
  rundir.check(setup.config, workdir)
  metrics.LOG.info('%s; results in %s', mesh.describe(setup.mesh), workdir)
  progress = progress_lib.Progress(setup.config.train.log_every_secs, stop)
  with contextlib.closing(progress):
    return build.parts(
      setup,
      start.text_cache or rundir.cache_folder(),
      progress=progress,
      folder=workdir / 'store',
      cluster=cluster,
      fits_steps=fits_steps,
      left_open=left_open,
    )


def _record(workdir: pathlib.Path, parts: build.Parts) -> None:
  """Records settings and data, or refuses those of another run."""
  fingerprint, known = parts.source.fingerprint, parts.known
  if known:
    rundir.check_start(workdir, known.path, known.fingerprint)
  rundir.check_data(workdir, fingerprint)
  if parts.config.strategy.name == 'partition':
    partition.check(parts.config, workdir, fingerprint)
  if distributed.is_first():
    settings = parts.config.to_dict()
    rundir.record(
      settings,
      parts.tuning,
      workdir,
      fingerprint=fingerprint,
      fingerprint_from=known.fingerprint if known else '',
    )


def _log_data(parts: build.Parts) -> None:
  """Logs what was read and what was dropped."""
  dropped = dict(parts.dropped)
  problems = dropped.pop('problems', ())
  counted = ', '.join(f'{k} {v:,}' for k, v in dropped.items() if v)
  for x in getattr(parts.source, 'inputs', ()):
    metrics.LOG.info('read %s', x.line())
  for line in (*parts.source.describe(), f'dropped: {counted or "nothing"}'):
    metrics.LOG.info('%s', line)
  for line in problems:
    metrics.LOG.warning('%s', line)


def _log_step(parts: build.Parts) -> None:
  """Logs what takes the steps and how tables are stored."""
  config, tuning = parts.config, parts.tuning
  platform = parts.setup.platform.upper()
  state = parts.strategy.init.eval_shape(sampling.key_shape())
  num_threads = tuning.threads if tuning.fused else tuning.row_threads
  threads = f'{num_threads} thread' + 's' * (num_threads > 1)
  step = f'{config.model.name}, XLA ({platform})'
  if tuning.fused and platform == 'GPU':
    step = (
      f'{config.model.name} kernel (GPU), {num_threads} '
      f'block{"s" * (num_threads > 1)}, {parts.setup.words_in_flight:,} words '
      f'in flight, {config.train.batch_words:,} words a step'
    )
  elif tuning.fused:
    step = f'{config.model.name} kernel ({platform}), {threads}'
    if tuning.threads > 1:
      cores = resources.usable_cores()
      step += (
        f' on {min(tuning.threads, cores)} of {cores} cores, which share the '
        'tables: a second run will not be identical; with '
        '--config.train.threads=1 it would be'
      )
  elif tuning.row_threads:
    step += f', rows updated by a kernel, {threads}'
  elif tuning.row_sums:
    step += ', rows summed by a kernel'
  metrics.LOG.info(
    f'step: {step}; tables: {config.table.dtype}, {config.table.layout}, '
    f'{mesh.num_bytes(state) / 1e6:,.1f} MB'
  )


def _train(
  workdir: pathlib.Path, parts: build.Parts, session: loop.Session
) -> bool:
  """Trains from the newest checkpoint, or from a new state, to the results."""
  source = parts.source

  def make_meter(totals):
    with rundir.using(workdir):
      return metrics.Meter(
        workdir=workdir if distributed.is_first() else None,
        totals=totals,
        units_per_epoch=source.units_per_epoch,
        epochs=source.epochs,
        log_every_secs=parts.config.train.log_every_secs,
        untrained_loss=parts.trainable.model.untrained_loss,
        gather=functools.partial(distributed.latest, 'hosts'),
        num_devices=len(parts.mesh.local_devices),
        every_steps=getattr(parts.strategy.policy, 'every_steps', 0),
      )

  with loop.open_checkpoints(workdir) as checkpoints:
    hook = evaluation.Evaluation(workdir, parts)
    trained = loop.train(
      checkpoints,
      parts,
      session,
      make_meter=make_meter,
      hooks=[hook] if hook.is_needed() else [],
    )
    if trained is None:
      return False
    parts.kind.check_trained(trained.totals.counters)
    # The last checkpoint is still being written. Where that takes copies,
    # those of the results come after them.
    if parts.memory and parts.memory.snapshot_bytes:
      checkpoints.wait()
    results.finish(
      workdir, parts, trained.state, totals=trained.totals, hook=hook
    )
  return True
