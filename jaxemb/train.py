"""A run, from settings to results; and the same as a call from Python.

`jaxemb.train(...)` calls this module.
"""

import contextlib
import functools
import logging
import os
import pathlib
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import ml_collections

from jaxemb import build, embeddings, errors, loop, metrics, results, rundir
from jaxemb import config as config_lib
from jaxemb.data import base as data_base
from jaxemb.partition import runner
from jaxemb.runtime import distributed, mesh, resources
from jaxemb.storage import checkpoint

STOPPED = distributed.STOPPED  # exit code


def run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  job: distributed.Job = distributed.ALONE,
  text_cache: pathlib.Path | None = None,
) -> int:
  """Trains, or resumes training, and writes all results to `workdir`.

  Args:
    config: settings that `config.check` accepts.
    workdir: folder of the run.
    job: the processes that train together, and which one this is.
    text_cache: for the encoded text; None = the usual folder.

  Returns:
    The exit code: 0, or `STOPPED`.

  Raises:
    UserError: for input or settings that cannot be used.
  """
  session = loop.Session(time.time())
  home = runner.home(config, workdir)
  rundir.make(home)
  runner.check_alone(config, job)
  distributed.join(job)
  monitor = distributed.Monitor()
  is_first, code = distributed.is_first(), None
  with rundir.locked(home) if is_first else contextlib.nullcontext():
    with rundir.writing(home):
      name = 'log' if is_first else f'log-{distributed.process_id()}'
      log = metrics.start_log(home / f'{name}.txt', is_first)
    try:
      with distributed.stopping_on_signals(monitor):
        code = _run(config, workdir, session, monitor, text_cache)
      return code
    except errors.UserError as error:
      # The caller shows it; the file should have it as well.
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
  text_cache: pathlib.Path | None,
) -> int:
  distributed.agree('setting', config_lib.flat(config))
  distributed.agree(
    'version', resources.versions() | {'code': resources.code_digest()}
  )
  distributed.agree('folder', {'--workdir': rundir.holder(workdir)})
  config, devices = build.on_devices(config, rundir.recorded(workdir))
  rundir.check(config, workdir)
  # Programs compile once per machine: the cache is read on the next start.
  cache = build.cache_folder(config)
  if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    jax.config.update('jax_compilation_cache_dir', str(cache / 'programs'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  metrics.LOG.info('%s; results in %s', mesh.describe(devices), workdir)
  stages = metrics.Stages(monitor.stop, config.train.log_every_secs)
  try:
    parts = build.parts(config, devices, stages, text_cache or cache)
  except metrics.Stopped:
    metrics.LOG.info('stopped by a signal before training')
    return STOPPED
  finally:
    stages.close()
  monitor.has_begun.set()
  session = session._replace(encode_secs=time.time() - session.started)
  fingerprint = parts.source.fingerprint
  rundir.check_data(workdir, fingerprint)
  if config.strategy.name == 'partition':
    runner.check(config, workdir, fingerprint)
  if distributed.is_first():
    rundir.record(config, workdir, fingerprint)
  results.describe_data(parts.source)
  if config.strategy.name == 'partition':
    done = runner.run(config, workdir, parts, monitor.stop, session)
    return 0 if done else STOPPED
  with checkpoint.Checkpoints(
    workdir / 'checkpoints',
    config.train.checkpoints_to_keep,
    metrics.LOG.error,
  ) as checkpoints:
    trained = train(config, workdir, parts, checkpoints, monitor.stop, session)
    if not trained.finished:
      step = checkpoints.wait()
      metrics.LOG.info('stopped; saved at step %s; start again', step)
      return STOPPED
    if trained.totals.counters.get('pairs') == 0:
      raise errors.UserError(
        'nothing was learned: no word has another one in its window; give text '
        'with several words on a line, or raise --config.data.sample'
      )
    # While the last checkpoint is still being written.
    results.write_run(config, workdir, parts, trained)
    distributed.wait_for_first('results')
  return 0


def train(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path | None,
  parts: build.Parts,
  checkpoints: checkpoint.Checkpoints | None,
  stop: threading.Event,
  session: loop.Session,
) -> loop.Trained:
  """From a new state, or that of the newest checkpoint, to the end.

  Args:
    config: settings in which all is chosen.
    workdir: for the records of training; None = there are none.
    parts: what the run is made of.
    checkpoints: of the run; None = there are none.
    stop: set when training is to stop, after saving.
    session: this start of the run.

  Raises:
    UserError: if the data has changed since the run began, the tables do not
      fit the devices, or a new run cannot start from what it is to start from.
  """
  source, strategy = parts.source, parts.strategy
  key = loop.tables_key(config.seed)
  form = loop.form(strategy, key)
  build.check_fits(config, parts)
  fingerprints = build.fingerprints(parts)
  restored = None
  if checkpoints is not None:
    restored = loop.restore(checkpoints, form, fingerprints)
  if restored is None:
    totals = metrics.Totals(source.unit)
    state = build.new_state(config, parts, key)
  else:
    state, totals = restored
  items = data_base.prefetch(
    source.items(totals.position, totals.done),
    lambda batch: mesh.put_parts(
      batch,
      strategy.batch_sharding,
      mesh.my_parts(parts.mesh, source.num_parts),
      source.num_parts,
    ),
  )
  meter = _meter(config, workdir, parts, totals)
  total = source.units_per_epoch * source.epochs
  o = config.optimizer

  def save(state, learning_rate):
    if checkpoints is not None:
      loop.save(checkpoints, state, totals, fingerprints, learning_rate)

  task = loop.Task(
    strategy,
    state,
    items,
    loop.schedules(
      config.seed, (o.learning_rate, o.final_learning_rate), total
    ),
    totals,
    meter,
    total,
    save,
    config.train.checkpoint_every_secs,
    distributed.Decisions('saves'),
    results.hooks(config, workdir, parts),
  )
  return loop.run(task, stop, session)


def _meter(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path | None,
  parts: build.Parts,
  totals: metrics.Totals,
) -> metrics.Meter:
  """Of several processes one writes records, of all of them."""
  is_writer = workdir is not None and distributed.is_first()
  with rundir.writing(workdir) if is_writer else contextlib.nullcontext():
    return metrics.Meter(
      workdir if is_writer else None,
      totals,
      parts.source.units_per_epoch,
      parts.source.epochs,
      config.train.log_every_secs,
      parts.trainable.model.untrained_loss,
      functools.partial(distributed.latest, 'hosts'),
    )


def from_python(
  data: str | os.PathLike | Iterable[str | Sequence[str]] | Any,
  *,
  dim: int = 100,
  window: int = 5,
  negatives: int = 5,
  model: str = 'skipgram',
  min_count: int = 5,
  sample: float = 1e-4,
  epochs: int = 5,
  seed: int = 1,
  workdir: str | os.PathLike | None = None,
  settings: Mapping[str, Any] = types.MappingProxyType({}),
) -> embeddings.Embeddings:
  """Trains word vectors on sentences, files or what a config names.

  Args:
    data: a path as `config.data.path` has it; or sentences, each a string or a
      list of tokens, which are read once; or a whole config, which then has the
      settings that follow.
    dim: numbers of a vector.
    window: words on each side of a center at most.
    negatives: per positive.
    model: 'skipgram' or 'cbow'.
    min_count: rarer words are dropped.
    sample: threshold of frequent-word subsampling; 0 = off.
    epochs: how often the text is read.
    seed: of every random choice.
    workdir: folder of the run, which is resumed there; None = a temporary one.
    settings: any others, such as `{'optimizer.name': 'adagrad'}`.

  Returns:
    The vectors, in memory.

  Raises:
    UserError: for data or settings that cannot be used.
  """
  with contextlib.ExitStack() as stack:
    temporary = pathlib.Path(
      stack.enter_context(tempfile.TemporaryDirectory(prefix='jaxemb-'))
    )
    text_cache = None
    if isinstance(data, ml_collections.ConfigDict):
      config = data.copy_and_resolve_references()
    else:
      config = config_lib.default()
      config.update_from_flattened_dict(
        {
          'model.dim': dim,
          'model.window': window,
          'model.negatives': negatives,
          'model.name': model,
          'data.min_count': min_count,
          'data.sample': sample,
          'train.epochs': epochs,
          'eval.paths': 'none',
          'seed': seed,
        }
      )
      if isinstance(data, str | os.PathLike):
        config.data.path = os.fspath(data)
      else:
        path, has_tokens = _write_sentences(data, temporary / 'text.txt')
        config.data.path = str(path)
        config.data.tokens = 'whitespace' if has_tokens else 'words'
        config.data.lowercase = not has_tokens
        text_cache = temporary / 'cache'
    for key, value in settings.items():
      config_lib.check_key(key)
      config.update_from_flattened_dict({key: value})
    config_lib.check(config)
    folder = pathlib.Path(workdir) if workdir else temporary / 'run'
    if run(config, folder, text_cache=text_cache) == STOPPED:
      raise errors.UserError(
        'training was stopped by a signal; '
        + ('call again to resume' if workdir else 'give a workdir to resume')
      )
    return embeddings.load(folder).in_memory()


def _write_sentences(
  sentences: Iterable[str | Sequence[str]], path: pathlib.Path
) -> tuple[pathlib.Path, bool]:
  """One sentence a line; also whether they are lists of tokens."""
  kinds = set()
  with open(path, 'w', encoding='utf-8') as file:
    for sentence in sentences:
      kinds.add(isinstance(sentence, str))
      if not isinstance(sentence, str):
        bad = next((x for x in sentence if len(str(x).split()) != 1), None)
        if bad is not None:
          raise errors.UserError(
            f'token {bad!r} is empty or has white space; tokens are words'
          )
        sentence = ' '.join(map(str, sentence))
      file.write(' '.join(sentence.splitlines()) + '\n')
  if len(kinds) != 1:
    raise errors.UserError(
      'sentences are all strings or all lists of tokens, and at least one'
    )
  return path, kinds == {False}


class _Callable(types.ModuleType):
  """Lets `jaxemb.train` be this module and the function that users call."""

  def __call__(self, *args: Any, **kwargs: Any) -> embeddings.Embeddings:
    return from_python(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
