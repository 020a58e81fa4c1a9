"""What a GPU is worth, in order of worth, in six minutes.

  python experiments/device_hour.py --text=FILE --sets=FOLDER

The parts, of which --parts names some:

  text      a text from raw to exported vectors, by default settings: a first
            run, with empty caches, and a later one with another seed; words/s
            in training, seconds of the process and of its parts, and the mean
            of MEN, WordSim-353, SimLex-999, rare words and analogies; beside it
            the quality of a CPU
  steps     words/s of steps by themselves, on random ids of 1 M rows x 128
  embedded  analogies of the embedded corpus by each model, here and on a CPU
  variants  words/s with Adagrad, bfloat16 rows, wider rows, and by XLA alone,
            relative to SGD, float32 and 128 columns
  kernel    registers spilled and scalar atomic additions in the machine code
            that `text` compiled (two are of the loss); how often the host waits
            in an epoch
  clicks    samples/s of Wide&Deep in steps of 4,096 and 65,536 examples, beside
            torch where it is installed
  tests     `pytest --device=gpu`

What runs on the CPU, such as evaluation, runs beside what comes next on the
device. Rows are printed, and the file is written, as they come. A part that
fails is reported and the rest goes on; one for which there is no time is left
out. Without --text the embedded corpus is the text, without evaluation. On a
CPU, --quick goes through all of it at tiny sizes.
"""

import argparse
import contextlib
import datetime
import functools
import importlib.util
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from typing import Any, NamedTuple
from unittest import mock

import experiment

from jaxemb import errors

_MODELS = {
  'skip-gram': {},
  'CBOW': {'model.name': 'cbow'},
  'hierarchical softmax': {'model.loss': 'hierarchical_softmax'},
  'Adagrad': {'optimizer.name': 'adagrad'},
}
_VARIANTS = {
  'SGD, float32, dim 128': {},
  'Adagrad': {'optimizer.name': 'adagrad'},
  'bfloat16': {'table.dtype': 'bfloat16'},
  'dim 300': {'model.dim': 300},
  'XLA alone': {'train.fused': False},
}
_TPU_KERNELS = 'kernels for rows'  # which a TPU has, off by default
_RUN_WORDS = 80e6  # of `steps`: five epochs of 100 MB of text
_CLICKS_ROUNDS = 5
_FIRST_ROUNDS = 2  # of clicks, which are slow
# A floating-point addition to memory in machine code: scalar, unless it is
# followed by how many numbers are added at once.
_SCALAR_ADDITION = re.compile(
  r'\b(?:RED|ATOM)G?(?:\.\w+)*\.ADD(?:\.\w+)*\.F32(?!x\d)\b'
)
_VECTOR_ADDITION = re.compile(r'\b(?:RED|ATOM)G?\S*F32x\d')
_SPILL = re.compile(r'\b(?:STL|LDL)\b')  # to local memory, and back
_REGISTERS, _LOCAL_BYTES = 4, 3  # CUfunction_attribute in cuda.h
_KERNEL = 'train'  # its name in the machine code


class _Sizes(NamedTuple):
  """How much is measured."""

  settings: Mapping[str, Any]  # of all runs
  embedded: str  # data.path
  rows: int  # of random ids
  ready_words: int
  batch_words: int
  min_secs: float
  clicks_rows: int
  clicks_examples: tuple[int, ...]
  tests: tuple[str, ...]  # more arguments of pytest


_FULL = _Sizes(
  settings={},
  embedded='',
  rows=1_000_000,
  ready_words=16_000_000,
  batch_words=1 << 24,
  min_secs=0.1,
  clicks_rows=1_000_000,
  clicks_examples=(4096, 65_536),
  # They compile most of the time, each on a core.
  tests=('--device=gpu', '-n', '4'),
)
_QUICK = _Sizes(
  settings={'model.dim': 8, 'train.epochs': 1, 'data.min_count': 1},
  embedded='toywiki:20000',
  rows=1000,
  ready_words=50_000,
  batch_words=50_000,
  min_secs=0.0,
  clicks_rows=2600,
  clicks_examples=(64,),
  tests=('--device=cpu', '-k', 'updates_of_tables'),
)


class _Hour:
  """What parts share: flags, folders, the rest of the time, and results."""

  def __init__(self, args: argparse.Namespace, folder: pathlib.Path):
    self.args, self.folder = args, folder
    self.sizes = _QUICK if args.quick else _FULL
    self.cache = folder / 'cache'
    self.results = experiment.Results('device_hour', args)
    self.results.found = {'rows': {}, 'failed': {}, 'left_out': []}
    self._end = time.monotonic() + args.seconds
    self._beside = futures.ThreadPoolExecutor(1)
    self._waiting: list[tuple[str, futures.Future]] = []
    self._lock = threading.Lock()  # of the results

  def secs_left(self) -> float:
    """Seconds until the limit, which may have passed."""
    return self._end - time.monotonic()

  def row(self, name: str, **values: Any) -> None:
    """Prints numbers, and adds them to those of this name in the file."""
    shown = ', '.join(f'{k} {_shown(x)}' for k, x in values.items())
    with self._lock:
      print(f'{name}: {shown}', flush=True)
      self.results.found['rows'].setdefault(name, {}).update(values)
      self.results.save()

  def attempt(self, part: str, measure: Callable[[], None]) -> None:
    """Measures; what goes wrong, of any kind, must not end the rest."""
    try:
      measure()
    except Exception as error:
      why = f'{type(error).__name__}: {errors.one_line(error)}'
      with self._lock:
        print(f'{part} failed: {why}', flush=True)
        self.results.found['failed'][part] = why
        self.results.save()

  def beside(self, part: str, measure: Callable[[], None]) -> None:
    """Measures on the CPU, one after another, beside what comes next."""
    name = f'{part}, CPU'
    future = self._beside.submit(self.attempt, name, measure)
    self._waiting.append((name, future))

  def finish(self) -> None:
    """Waits for what runs beside, until the time is over."""
    for name, future in self._waiting:
      try:
        future.result(timeout=max(1.0, self.secs_left()))
      except futures.TimeoutError:
        future.cancel()
        self.results.found['left_out'].append(name)
    self._beside.shutdown(wait=False, cancel_futures=True)

  def run_on_cpu(self, *arguments: str) -> None:
    """Runs `jaxemb` on the CPU, in a process of its own."""
    done = subprocess.run(
      [sys.executable, '-m', 'jaxemb', *arguments],
      env=os.environ | {'JAX_PLATFORMS': 'cpu'},
      cwd=experiment.ROOT,
      capture_output=True,
      text=True,
      timeout=max(1.0, self.secs_left()),
    )
    if done.returncode:
      raise RuntimeError(done.stderr[-500:])

  def settings(self, **more: Any) -> dict[str, Any]:
    """Those of a run that is not evaluated unless `more` say so."""
    return {'eval.paths': 'none', **self.sizes.settings, **more}


def _shown(value: Any) -> str:
  if isinstance(value, float):
    return f'{value:,.0f}' if value >= 1000 else f'{value:.4g}'
  return f'{value:,}' if isinstance(value, int) else str(value)


def _flags(settings: Mapping[str, Any]) -> list[str]:
  return [f'--config.{k}={x}' for k, x in settings.items()]


# A text, from raw to exported vectors.


def _text(hour: _Hour) -> None:
  for seed, name in enumerate(('first run', 'later run'), 1):
    workdir = hour.folder / name.replace(' ', '-')
    settings = hour.settings(**{'data.path': hour.args.text, 'seed': seed})
    started = time.time()
    report = experiment.train(
      hour.args, workdir, settings=settings, cache=hour.cache
    )
    total_secs = time.time() - started
    hour.row(
      f'text, {name}',
      words_per_sec=report['words_per_sec'],
      process_secs=total_secs,
      **_process_parts(workdir, report, started=started),
    )
    if hour.args.sets and hour.args.text:
      score = functools.partial(_score, hour, f'text, {name}', workdir)
      hour.beside('text', score)
  if hour.args.sets and hour.args.text:
    hour.beside('text', functools.partial(_text_on_cpu, hour))


def _process_parts(
  workdir: pathlib.Path, report: Mapping[str, Any], started: float
) -> dict[str, float]:
  """Seconds of a process by what it did, from its log and its report.

  All before the first step that is neither encoding nor compiling is
  `import_secs`, so that nothing is counted twice.
  """
  lines = (workdir / 'log.txt').read_text().splitlines()

  def logged(text):
    line = next(x for x in lines if re.match(rf'\S+ \S+ {text}', x))
    written = datetime.datetime.strptime(line[:23], '%Y-%m-%d %H:%M:%S,%f')
    return written.timestamp()

  first_step = logged('compiled in ')
  trained = first_step + report['train_secs']
  encode_secs, compile_secs = report['encode_secs'], report['compile_secs']
  return {
    'import_secs': first_step - started - encode_secs - compile_secs,
    'encode_secs': encode_secs,
    'compile_secs': compile_secs,
    'train_secs': report['train_secs'],
    'export_secs': logged('results in ') - trained,
  }


def _score(hour: _Hour, name: str, workdir: pathlib.Path) -> None:
  """Evaluates vectors on the sets, on all words."""
  path = workdir / 'scores.json'
  hour.run_on_cpu(
    'evaluate', f'--vectors={workdir}', f'--eval={hour.args.sets}',
    '--restrict_vocab=0', f'--json={path}',
  )  # fmt: skip
  found = {k: x['score'] for k, x in json.loads(path.read_text()).items()}
  five = experiment.mean_of_five(found)
  hour.row(name, **({} if five is None else {'mean_of_five': five}), **found)


def _text_on_cpu(hour: _Hour) -> None:
  workdir = hour.folder / 'cpu'
  settings = hour.settings(**{'data.path': hour.args.text})
  hour.run_on_cpu(
    'train', f'--config={hour.args.config}', f'--workdir={workdir}',
    *_flags(settings), *hour.args.override,
  )  # fmt: skip
  rate = experiment.read_report(workdir)['words_per_sec']
  hour.row('text, CPU', words_per_sec=rate)
  _score(hour, 'text, CPU', workdir)


# Steps on random ids.


def _rate(hour: _Hour, settings: Mapping[str, Any], **fixed: Any) -> float:
  """Words/s of steps."""
  import zipf

  dim = 8 if hour.args.quick else 128
  settings = {'model.dim': dim, 'mesh.data': 1, **settings}
  if hour.args.quick:
    settings['model.dim'] = min(16, settings['model.dim'])
  job = zipf.make(settings, hour.sizes.rows, run_words=_RUN_WORDS, **fixed)
  if obstacle := zipf.obstacle(job):
    raise errors.UserError(obstacle)
  effort = zipf.Effort(hour.sizes.ready_words, 3, hour.sizes.min_secs)
  corpus = zipf.corpus(job.counts, effort.ready_words)
  return zipf.time_dispatches(job, corpus, effort)['words_per_sec']


def _steps(hour: _Hour) -> None:
  rate = _rate(hour, {})
  hour.row(f'steps on {hour.sizes.rows:,} rows', words_per_sec=rate)
  if hour.args.trace:
    import jax

    with jax.profiler.trace(hour.args.trace):
      _rate(hour, {})


def _batches(hour: _Hour) -> None:
  """Measures what makes the batches of an epoch of random ids."""
  import jax
  import zipf

  job = zipf.make({'model.dim': 8, 'mesh.data': 1}, hour.sizes.rows)
  num_words = hour.sizes.batch_words
  spec = job.spec._replace(device_words=num_words)
  corpus = zipf.corpus(job.counts, num_words)
  source = job._replace(spec=spec).source(corpus)
  source.reside(1 << 40)
  items, host_secs, device_secs = source.items(None, 0), [], []
  prepare, first = jax.jit(source.steps.prepare), next(items)
  batch = jax.device_put(first.batch, job.strategy.batch_sharding)
  jax.block_until_ready(prepare(batch))
  for _ in range(5):
    start = time.perf_counter()
    next(items)
    host_secs.append(time.perf_counter() - start)
    start = time.perf_counter()
    jax.block_until_ready(prepare(batch))
    device_secs.append(time.perf_counter() - start)
  hour.row(
    f'batches of {num_words:,} words',
    words_per_sec=num_words / statistics.median(device_secs),
    host_secs=statistics.median(host_secs),
  )


def _variants(hour: _Hour) -> None:
  import jax

  rates = []

  def measure(name, settings, **fixed):
    rates.append(_rate(hour, settings, **fixed))
    relative = rates[-1] / rates[0]
    hour.row(name, words_per_sec=rates[-1], relative=relative)

  for name, settings in _VARIANTS.items():
    name = f'steps, {name}'
    hour.attempt(name, functools.partial(measure, name, settings))
  if jax.devices()[0].platform == 'tpu':
    measure(f'steps, {_TPU_KERNELS}', {}, row_copies=True)


# The embedded corpus.


def _analogies(workdir: pathlib.Path) -> float:
  found = experiment.read_report(workdir)['evaluation']['analogies']['score']
  return 0.0 if found is None else found


def _embedded(hour: _Hour) -> None:
  def settings(model):
    of_all = {'data.path': hour.sizes.embedded, 'eval.paths': ''}
    return hour.settings(**of_all, **_MODELS[model])

  def on_cpu(model, workdir):
    flags = _flags(settings(model))
    hour.run_on_cpu('train', '--config=wiki', f'--workdir={workdir}', *flags)
    hour.row(f'embedded, {model}', analogies_on_cpu=_analogies(workdir))

  args = argparse.Namespace(config='wiki', override=[])
  for model in _MODELS:
    folder = hour.folder / 'embedded' / model.replace(' ', '-')
    hour.beside('embedded', functools.partial(on_cpu, model, folder / 'cpu'))
    experiment.train(
      args, folder / 'device', settings=settings(model), cache=hour.cache
    )
    found = _analogies(folder / 'device')
    hour.row(f'embedded, {model}', analogies=found)


# Machine code, and the host.


def _kernel(hour: _Hour) -> None:
  for path in sorted(hour.cache.rglob('*.cubin')):
    hour.row(f'kernel {path.stem[:8]}', **_of_machine_code(path))
  from jaxemb import api
  from jaxemb.run import metrics

  waits, count = [], metrics.Meter.count

  def counted(self, *args):
    waits.append(1)
    return count(self, *args)

  with mock.patch.object(metrics.Meter, 'count', counted):
    with mock.patch.dict(os.environ, JAXEMB_CACHE=str(hour.cache)):
      settings = hour.settings(**{'train.epochs': 1})
      name = '' if hour.args.text else 'wiki'
      api.train(hour.args.text, config=name, settings=settings)
  hour.row('an epoch', host_waits=len(waits))


def _of_machine_code(path: pathlib.Path) -> dict[str, Any]:
  """Counts what is slow in a kernel; with what is not there for it, less."""
  if program := _cuobjdump():
    text = subprocess.run(
      [program, '-sass', '-res-usage', path],
      capture_output=True,
      text=True,
      check=True,
    ).stdout
    return {
      'registers': int(re.search(r'REG:(\d+)', text)[1]),
      'spills': len(_SPILL.findall(text)),
      'scalar_additions': len(_SCALAR_ADDITION.findall(text)),
      'vector_additions': len(_VECTOR_ADDITION.findall(text)),
    }
  import ctypes

  from jaxemb.kernels.gpu import driver

  cuda, number = driver.library(), ctypes.c_int()
  kernel = driver.load(path.read_bytes(), _KERNEL, 0, ordinals=[])
  found, device = {}, ctypes.c_int()
  cuda.cuDeviceGet(ctypes.byref(device), 0)
  for name, attribute in ('registers', _REGISTERS), ('spills', _LOCAL_BYTES):
    code = cuda.cuKernelGetAttribute(
      ctypes.byref(number), attribute, ctypes.c_void_p(kernel), device
    )
    if code:
      raise RuntimeError(f'cuKernelGetAttribute: CUDA error {code}')
    found[name] = number.value
  return found


def _cuobjdump() -> str | None:
  """Where NVIDIA's reader of machine code is, if it is."""
  packages = (pathlib.Path(x) / 'nvidia/cu13/bin' for x in sys.path if x)
  folders = [os.environ.get('PATH', ''), *map(str, packages)]
  return shutil.which('cuobjdump', path=os.pathsep.join(folders))


# Clicks.


def _clicks(hour: _Hour) -> None:
  import ctr

  num_ids = hour.sizes.clicks_rows // ctr.FIELDS
  for size in hour.sizes.clicks_examples:
    train = ctr.ours(num_ids, 'adagrad_full', step_examples=size)
    sides = {'jaxemb': lambda _, train=train: _secs(train)}
    peer = None
    if importlib.util.find_spec('torch'):
      threads = os.cpu_count() or 1
      peer = ctr.Peer(
        sys.executable, 'torch', num_ids, threads=threads, step_examples=size
      )
      sides['torch'] = lambda _, peer=peer: peer.secs()
    train()
    rounds = _FIRST_ROUNDS if hour.args.quick else _CLICKS_ROUNDS
    found = experiment.in_turn(sides, rounds)
    if peer:
      peer.close()
    examples = ctr.STEPS * size
    hour.row(
      f'clicks, {size:,} examples a step',
      **{
        f'{k}_per_sec': examples / statistics.median(x)
        for k, x in found.items()
      },
    )


def _secs(train: Callable[[], None]) -> float:
  start = time.perf_counter()
  train()
  return time.perf_counter() - start


# Tests.


def _tests(hour: _Hour) -> None:
  command = [
    sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider',
    *hour.sizes.tests,
  ]  # fmt: skip
  log, code = hour.folder / 'tests.txt', None
  with log.open('w') as file, contextlib.suppress(subprocess.TimeoutExpired):
    code = subprocess.run(
      command,
      cwd=experiment.ROOT,
      stdout=file,
      stderr=file,
      timeout=max(1.0, hour.secs_left()),
    ).returncode
  lines = log.read_text().splitlines() or ['']
  failed = [x for x in lines if x.startswith(('FAILED', 'ERROR'))]
  summary = lines[-1]
  if code is None:
    summary = f'not finished: {_ended(lines)}'
  hour.row('tests', result=summary, exit_code=code, failed=failed)


def _ended(lines: Iterable[str]) -> str:
  """How many tests have ended, by the letters that pytest prints for them."""
  rows = (re.match(r'([.FEsxX]+)( +\[|$)', x) for x in lines)
  letters = ''.join(x[1] for x in rows if x)
  names = {'.': 'passed', 'F': 'failed', 'E': 'errors', 's': 'skipped'}
  counts = ((letters.count(k), x) for k, x in names.items())
  return ', '.join(f'{num} {x}' for num, x in counts if num) or 'none ended'


class _Part(NamedTuple):
  measure: Callable[[_Hour], None]
  secs: float  # that it may take on an H100: not begun with less


_PARTS = {
  'text': _Part(_text, 40),
  'steps': _Part(_steps, 15),
  'embedded': _Part(_embedded, 40),
  'batches': _Part(_batches, 10),
  'variants': _Part(_variants, 40),
  'kernel': _Part(_kernel, 15),
  'clicks': _Part(_clicks, 20),
  'tests': _Part(_tests, 30),
}


def main() -> None:
  """Measures in order of worth until the time is over."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--text', default='', help='config.data.path')
  add('--sets', default='', help='folders and files, separated by commas')
  add('--config', default='wiki', help='name or file of a config')
  add('--seconds', type=float, default=360.0, help='begin nothing after that')
  add('--trace', default='', help="folder for a trace of steps; '' = none")
  add('--quick', action='store_true', help='tiny, for tests')
  experiment.add_names(parser, '--parts', _PARTS)
  args = experiment.parse(parser)
  # Processes take turns at the memory of the device.
  os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    hour = _Hour(args, pathlib.Path(folder))
    for name in args.parts:
      part = _PARTS[name]
      if hour.secs_left() < part.secs:
        hour.results.found['left_out'].append(name)
        continue
      hour.attempt(name, functools.partial(part.measure, hour))
    hour.finish()
    found = hour.results.found
    left_out = ', '.join(found['left_out'])
    lines = [f'no time for {left_out}'] * bool(left_out)
    hour.results.finish(*lines)


if __name__ == '__main__':
  experiment.main(main)
