"""Freezes what jaxemb does: records small runs of a checkout, compares others.

  python experiments/golden.py record --checkout=FOLDER --output=golden.json
  python experiments/golden.py compare --checkout=FOLDER golden.json

Each case is one or more commands of the checkout, in a folder of their own, two
cases at a time. What they leave is recorded: SHA-256 of each file and array in
exports, parts, predictions and what is printed, and the numbers of reports but
for times, memory and settings. Arrays are kept in a folder beside golden.json.
`compare` prints a line for each case, `same` or what differs and by how much at
most, and ends with 1 if any does; --only=TEXT takes the cases whose names have
the text. Numbers are the same bits only on the same CPU and versions. Of what
is in --cache, kernels and encoded data are used by the same code only.
"""

import argparse
import concurrent.futures
import contextlib
import csv
import glob
import gzip
import hashlib
import json
import os
import pathlib
import platform
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import ml_dtypes
import numpy as np

# Kernels are the same bits with one thread only; other steps have none.
_SCORED = 'train wiki:smoke train.threads=1 train.batch_words=1024'
_TEXT = f'{_SCORED} eval.paths=none'
_XLA = 'train wiki:smoke train.fused=false eval.paths=none'
_MIXTURE = 'train mixture:smoke train.threads=1'
_TREE = 'model.loss=hierarchical_softmax'
_PARTS = 'strategy.name=partition strategy.num_parts=3 optimizer.name=adagrad'
_DEVICES = 'devices=8 strategy.name=sync'
_CLICKS = 'train ctr:smoke data.path=toyclicks:3000'
_OWN_CLICKS = (
  'train ctr:smoke data.path={files}/clicks.csv data.categorical=user,item '
  'data.numeric=price data.multi=tags data.valid=0.1 data.test=last:0.1'
)
_PREDICT = 'predict --model=run --output=predicted.csv --data={files}'
_FEW_CLICKS = 'train.epochs=2 model.dim=4 train.batch_examples=256'
_STORED_CLICKS = 'table.device_bytes=90% table.store'
_STORED = 'table.device_bytes=75% table.store'
_ITEMS = 'data.path={files}/items.txt data.valid=0.1 data.test=last:0.1'
_WALKS = 'data.path=toygraph:300 model.dim=16 train.threads=1'
_FEW_WALKS = 'data.walks=5 data.walk_length=20 train.epochs=2'
_STORED_WALKS = (
  'data.path=toygraph:1000 model.dim=16 train.threads=1 train.batch_words=128 '
  'data.walks=2 data.walk_length=20 train.epochs=1'
)
_EDGES = 'data.path=toygraph:300 model.dim=16 train.epochs=4'
_RELATIONS = (
  'train graph:relations data.path={files}/relations.tsv model.dim=16 '
  'train.epochs=3'
)
_NODES = (
  'train graphsage data.path=toygraph:300 train.epochs=3 '
  'train.batch_examples=64 data.train_per_class=0 data.valid=0.1 '
  'data.test=0.2 data.fanouts=3,5'
)
_NODE_WALKS = (
  'train graphsage:walks data.path=toygraph:300 train.epochs=2 '
  'data.fanouts=3,5 model.hidden=16 model.dim=16'
)
_PYTHON = """
import sys, jaxemb
lines = open(sys.argv[1]).read().splitlines()
for name, sentences in ('a', lines), ('b', [x.split() for x in lines]):
  vectors = jaxemb.train(
    sentences, dim=16, epochs=2, min_count=2, sample=0.0,
    settings={'train.threads': 1, 'train.batch_words': 1024}, workdir=name
  )
  vectors.save(name + '-saved')
  print(vectors.most_similar('w3'))
"""

# Commands of each case, one after another. `train` has a config, and settings,
# devices to simulate, a workdir other than `run`; `stopped` is to be stopped in
# between. Neighbors need other kernels, which are then compiled once.
CASES = {
  'text-skipgram': (
    _SCORED,
    'query --vectors=run king',
  ),
  'text-cbow': (f'{_SCORED} model.name=cbow',),
  'clicks-deepfm': (
    _OWN_CLICKS,
    f'{_PREDICT}/new.csv --keep=user',
  ),
  'text-tree': (f'{_TEXT} {_TREE}',),
  'mixture-contexts': (_MIXTURE,),
  'text-bfloat16': (f'{_TEXT} table.dtype=bfloat16',),
  'nodes': (_NODES, 'predict --model=run --output=out.csv --data=toygraph:300'),
  'text-xla': (_XLA,),
  'rec-softmax': (f'train rec {_ITEMS} train.epochs=3',),
  'graph-deepwalk': (f'train graph:deepwalk {_WALKS} {_FEW_WALKS}',),
  'text-cbow-tree': (f'{_TEXT} {_TREE} model.name=cbow',),
  'text-own': (
    f'{_SCORED} data.path={{files}}/text*.txt* data.tokens=whitespace '
    'data.lowercase=false data.sample=0 eval.paths={files}/pairs.txt '
    'eval.every_epochs=1 optimizer.name=adagrad',
    'evaluate --vectors=run --eval={files}/pairs.txt',
  ),
  'text-store-memory': (f'{_TEXT} {_STORED}=memory train.batch_words=256',),
  'text-store-disk': (
    f'{_TEXT} {_STORED}=disk table.evict=lru train.batch_words=256',
  ),
  'text-store-adam': (f'{_XLA} {_STORED}=memory optimizer.name=adam',),
  'text-int8': (f'{_XLA} table.dtype=int8',),
  'text-float16': (f'{_XLA} table.dtype=float16',),
  'text-adagrad_full': (f'{_XLA} optimizer.name=adagrad_full',),
  'text-adam': (f'{_XLA} optimizer.name=adam',),
  'text-adam_full': (f'{_XLA} optimizer.name=adam_full',),
  'text-resume': (
    f'stopped {_TEXT[6:]} train.epochs=40 train.checkpoint_every_secs=0',
    f'{_TEXT} train.epochs=40 train.checkpoint_every_secs=0',
  ),
  'text-init_from': (
    f'{_TEXT} workdir=first',
    f'{_TEXT} train.init_from=first data.path=toywiki:80000',
  ),
  'python': ('python {files}/text-a.txt',),
  'mixture-negatives': (
    f'{_MIXTURE} model.loss=negative_sampling eval.paths=none',
  ),
  'mixture-likelihoods': (
    'train mixture:dmwe train.threads=1 data.path=toywiki:60000 train.epochs=1 '
    'model.dim=16 senses.words={files}/words.txt senses.number=3',
  ),
  'mixture-partition': (
    f'{_MIXTURE} {_PARTS} train.epochs=1 senses.number=3 eval.paths=none',
  ),
  'partition-alir': (
    f'{_TEXT} {_PARTS}',
    'merge run/parts/* --trainable --output=merged',
    f'{_TEXT} train.init_from=merged workdir=last',
  ),
  'partition-pca': (
    f'{_TEXT} {_PARTS} strategy.merge=pca strategy.divide=sampling',
  ),
  'partition-concat': (
    f'{_TEXT} {_PARTS} strategy.merge=concat strategy.divide=equal',
  ),
  'replicas-bounded': (f'{_TEXT} mesh.data=2',),
  'replicas-average': (
    f'{_TEXT} mesh.data=2 strategy.policy=average strategy.sync_every=4096',
  ),
  'replicas-hot': (
    f'{_TEXT} mesh.data=2 strategy.policy=hot strategy.num_hot=64 '
    'strategy.hot_every=2048 strategy.sync_every=8192',
  ),
  'replicas-xla': (f'{_XLA} mesh.data=2 optimizer.name=adagrad',),
  'replicas-clicks': (
    f'{_CLICKS} strategy.name=replicas strategy.policy=average mesh.data=2',
  ),
  'sync-replicated': (f'{_TEXT} {_DEVICES} mesh.data=8',),
  'sync-row': (
    f'{_TEXT} {_DEVICES} mesh.data=2 mesh.table=4 table.layout=row '
    'optimizer.name=adagrad',
  ),
  'sync-column': (
    f'{_TEXT} {_DEVICES} mesh.data=2 mesh.table=4 table.layout=column '
    'model.name=cbow optimizer.name=adagrad',
  ),
  'sync-row-clicks': (
    f'{_CLICKS} {_DEVICES} mesh.data=2 mesh.table=4 table.layout=row',
  ),
  'clicks-dlrm': (f'{_CLICKS} model.name=dlrm',),
  'clicks-dcn_v2': (
    f'{_CLICKS} model.name=dcn_v2 optimizer.name=adagrad_full',
  ),
  'clicks-fm': (
    f'train ctr data.path=toyclicks:3000 {_FEW_CLICKS} model.name=fm '
    'optimizer.rows=all',
  ),
  'clicks-logistic': (
    f'train ctr data.path=toyclicks:3000 {_FEW_CLICKS} model.name=logistic '
    'optimizer.name=adagrad data.hash_size=100',
  ),
  'clicks-wide_deep': (
    f'{_CLICKS} model.name=wide_deep model.dropout=0.2 model.batch_norm=true '
    'optimizer.dense=adagrad eval.group=site',
  ),
  'clicks-store': (
    f'{_CLICKS} {_STORED_CLICKS}=memory train.batch_examples=64',
  ),
  'clicks-store-disk': (
    f'{_CLICKS} {_STORED_CLICKS}=disk train.batch_examples=64 '
    'train.fused=false',
  ),
  'rec-bpr': (f'train rec:bpr {_ITEMS} train.epochs=5',),
  'rec-item2vec': (
    f'train rec:item2vec {_ITEMS} train.epochs=3 model.dim=16',
  ),
  'graph-node2vec': (
    f'train graph:node2vec {_WALKS} {_FEW_WALKS} data.test=0.1',
  ),
  'graph-own': (
    'train graph data.path={files}/edges.csv data.labels={files}/labels.txt '
    f'{_FEW_WALKS} model.dim=16 train.threads=1 data.directed=true',
  ),
  'graph-store': (f'train graph {_STORED_WALKS} {_STORED}=memory',),
  'graph-store-disk': (
    f'train graph {_STORED_WALKS} {_STORED}=disk model.name=cbow',
  ),
  'line-1': (f'train graph:line {_EDGES}',),
  'line-2': (
    f'train graph:line {_EDGES} model.order=2 data.candidates=uniform',
  ),
  'relations': (_RELATIONS,),
  'relations-complex': (f'{_RELATIONS} model.operator=complex',),
  'relations-translation': (
    f'{_RELATIONS} model.operator=translation model.temperature=0.2',
  ),
  'relations-margin': (f'{_RELATIONS} model.loss=margin train.fused=false',),
  'relations-partitions': (
    f'{_RELATIONS} data.partitions=4 model.loss=logistic {_STORED}=disk '
    'table.evict=lru train.batch_examples=64 data.candidates=degree',
  ),
  'nodes-rows': (f'{_NODES} model.inputs=rows model.aggregator=max',),
  # Steps that fit at once are unrolled: of fewer rows, XLA takes minutes.
  'nodes-store': (
    f'{_NODES.replace(":300", ":1000")} model.inputs=both {_STORED}=memory '
    'train.batch_examples=32 data.fanouts=2,2 train.epochs=1',
  ),
  'nodes-walks': (_NODE_WALKS,),
  'nodes-walks-rows': (
    f'{_NODE_WALKS} model.inputs=both data.replacement=true',
  ),
}  # fmt: skip

# Parts of a report that differ from run to run, or are settings.
_VOLATILE = (
  'config', 'settings', 'tuning', 'machine', 'versions', 'hosts', 'devices',
  'started', 'store', 'output', 'seconds',
)  # fmt: skip
# How many rows go and come depends on when a thread looks.
_COUNTED = 'rows_fetched', 'rows_stored', 'bytes_fetched', 'bytes_stored'
_VOLATILE_ENDS = '_secs', '_rss_bytes', '_rss', '_path'
# What has names of modules in it, or times.
_SKIPPED = 'serving/function', 'orbax', 'projector_config.pbtxt'
_CACHE = pathlib.Path(tempfile.gettempdir(), f'jaxemb-golden-{os.getuid()}')
_ORBAX_LOCK = threading.Lock()


def main() -> int:
  """Runs the command; returns its exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  commands = parser.add_subparsers(dest='command', required=True)
  record, compare = map(commands.add_parser, ('record', 'compare'))
  record.add_argument('--output', required=True, type=pathlib.Path)
  compare.add_argument('golden', type=pathlib.Path)
  for command in record, compare:
    command.add_argument('--checkout', required=True, type=pathlib.Path)
    command.add_argument('--only', default='', help='cases with this text')
    command.add_argument('--jobs', type=int, default=2, help='at a time')
    command.add_argument('--cache', default=_CACHE, type=pathlib.Path)
    command.add_argument('--work', type=pathlib.Path, help='keep all here')
  flags = parser.parse_args()
  started = time.monotonic()
  with tempfile.TemporaryDirectory(prefix='golden-') as temporary:
    work = (flags.work or pathlib.Path(temporary)).absolute()
    work.mkdir(parents=True, exist_ok=True)
    runner = Runner(flags.checkout.resolve(), work, flags.cache)
    if flags.command == 'record':
      failed = _record(runner, flags)
    else:
      failed = _compare(runner, flags)
  secs = time.monotonic() - started
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu = used.ru_utime + used.ru_stime
  print(f'{failed or "no"} case(s) failed or differ; {secs:.0f} s', end='')
  print(f', {cpu:.0f} s of processors')
  return 1 if failed else 0


def _record(runner: 'Runner', flags: argparse.Namespace) -> int:
  arrays_folder = flags.output.with_suffix('')
  arrays_folder.mkdir(parents=True, exist_ok=True)
  names = [x for x in CASES if flags.only in x]
  cases, failed = {}, 0
  for name, found, why, secs in runner.results(names, flags.jobs):
    if why:
      failed += 1
      print(f'FAILED {name}: {why}', flush=True)
      continue
    values, arrays = found
    np.savez_compressed(arrays_folder / f'{name}.npz', **arrays)
    cases[name] = values
    print(f'recorded {name}: {len(values)} values, {secs:.1f} s', flush=True)
  commands = {x: CASES[x] for x in cases}
  if flags.only and flags.output.exists():
    before = json.loads(flags.output.read_text())
    cases = before['cases'] | cases
    commands = before['commands'] | commands
  golden = {'on': _versions(), 'commands': commands, 'cases': cases}
  flags.output.write_text(json.dumps(golden, indent=1))
  return failed


def _compare(runner: 'Runner', flags: argparse.Namespace) -> int:
  golden = json.loads(flags.golden.read_text())
  if golden['on'] != _versions():
    print(f'recorded on {golden["on"]}, now {_versions()}')
  names = [x for x in golden['cases'] if flags.only in x]
  failed = 0
  for name, found, why, secs in runner.results(names, flags.jobs):
    if not why and golden['commands'].get(name) != [*CASES.get(name, ())]:
      why = 'other commands now: record it again'
    if not why:
      path = flags.golden.with_suffix('') / f'{name}.npz'
      with np.load(path) as arrays:
        why = _difference(golden['cases'][name], arrays, *found)
    failed += bool(why)
    print(f'DIFFERS {name}: {why}' if why else f'same {name}', end='')
    print(f' ({secs:.1f} s)', flush=True)
  return failed


def _difference(
  expected: Mapping[str, Any],
  expected_arrays: Mapping[str, np.ndarray],
  found: Mapping[str, Any],
  arrays: Mapping[str, np.ndarray],
) -> str:
  """What differs, or ''."""
  expected = {k: v for k, v in expected.items() if not k.endswith(_COUNTED)}
  found = {k: v for k, v in found.items() if not k.endswith(_COUNTED)}
  lines = [f'no {x}' for x in expected if x not in found]
  lines += [f'new {x}' for x in found if x not in expected]
  for key in expected:
    if key not in found:
      continue
    a, b = expected[key], found[key]
    if repr(a) == repr(b):  # also of NaN
      continue
    if key in arrays:
      line = _distance(expected_arrays[key], arrays[key])
    elif isinstance(a, str) and len(a) == 64:
      line = 'is another file'
    else:
      line = f'was {a!r}, is {b!r}'
    lines.append(f'{key} {line}')
  num_more = len(lines) - 8
  more = [f'and {num_more} more'] if num_more > 0 else []
  return '; '.join(lines[:8] + more)


def _distance(a: np.ndarray, b: np.ndarray) -> str:
  if (a.shape, a.dtype) != (b.shape, b.dtype):
    return f'was {a.dtype}{[*a.shape]}, is {b.dtype}{[*b.shape]}'
  if a.dtype.kind not in 'fiub':
    return f'differs in {np.count_nonzero(a != b)} of {a.size}'
  gaps = np.abs(a.astype(np.float64) - b.astype(np.float64))
  largest = np.nanmax(gaps) if np.isfinite(gaps).any() else np.nan
  return f'by {largest:.3g} in {np.count_nonzero(gaps)} of {gaps.size}'


def _versions() -> dict[str, str]:
  names = 'jax', 'jaxlib', 'numpy', 'numba', 'orbax-checkpoint'
  lines = []
  if os.path.exists('/proc/cpuinfo'):
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  cpu = [x.split(':')[1].strip() for x in lines if x.startswith('model name')]
  found = {x: metadata.version(x) for x in names}
  return found | {'python': platform.python_version(), 'cpu': f'{cpu[:1]}'}


class Runner:
  """Runs the commands of a checkout, each case in a folder of its own."""

  def __init__(
    self, checkout: pathlib.Path, work: pathlib.Path, cache: pathlib.Path
  ):
    self._checkout, self._work = checkout, work
    self._files = work / 'files'
    _write_files(self._files)
    own = 'JAX', 'XLA', 'NUMBA', 'PYTHON', 'RAY', 'XDG'
    env = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    folder = cache.absolute()
    own_folder = folder / _digest(checkout)
    self._env = env | {
      'PYTHONPATH': str(checkout),
      'PYTHONDONTWRITEBYTECODE': '1',
      'JAX_PLATFORMS': 'cpu',
      'JAXEMB_CACHE': str(own_folder),
      'NUMBA_CACHE_DIR': str(own_folder / 'numba'),
      # XLA's are found by the programs themselves, whoever wrote them.
      'JAX_COMPILATION_CACHE_DIR': str(folder / 'xla'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    }
    code = 'import jaxemb; print(jaxemb.__file__)'
    command = sys.executable, '-c', code
    shown = subprocess.check_output(command, env=self._env, cwd=work, text=True)
    if pathlib.Path(shown.strip()) != checkout / 'jaxemb' / '__init__.py':
      sys.exit(f'{shown.strip()} is imported in place of {checkout}')

  def results(
    self, names: Sequence[str], jobs: int
  ) -> Iterator[tuple[str, tuple[dict, dict], str, float]]:
    """Yields the name, values and arrays, what failed or '', and seconds."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
      futures = [pool.submit(self._case, x) for x in names]
      try:
        for future in concurrent.futures.as_completed(futures):
          yield future.result()
      finally:
        for future in futures:
          future.cancel()

  def _case(self, name: str) -> tuple[str, tuple[dict, dict], str, float]:
    folder, started = self._work / 'cases' / name, time.monotonic()
    folder.mkdir(parents=True)
    found, why = ({}, {}), ''
    try:
      for i, line in enumerate(CASES[name]):
        self._call(folder, i, line)
      found = _collect(folder)
    except Exception as error:
      why = f'{type(error).__name__}: {error}'
    return name, found, why, time.monotonic() - started

  def _call(self, folder: pathlib.Path, index: int, line: str) -> None:
    env, words = dict(self._env), shlex.split(line)
    words = [x.replace('{files}', str(self._files)) for x in words]
    kind, rest = words[0], words[1:]
    if kind in ('train', 'stopped'):
      command, own = self._train(rest)
      env |= own
    elif kind == 'python':
      command = ['-c', _PYTHON, *rest]
    else:
      # As a shell does it.
      parts = [sorted(glob.glob(x, root_dir=folder)) or [x] for x in rest]
      command = ['-m', f'jaxemb.{kind}', *sum(parts, [])]
    shown, log = folder / f'shown-{index}.txt', folder / f'log-{index}.txt'
    if kind in ('train', 'stopped', 'merge'):  # these show seconds
      shown = folder / f'log-{index}-shown.txt'
    with open(shown, 'wb') as out, open(log, 'wb') as err:
      process = subprocess.Popen(
        [sys.executable, *command], env=env, cwd=folder, stdout=out, stderr=err
      )
      if kind == 'stopped':
        _stop_once_saved(process, folder / 'run' / 'checkpoints')
      try:
        code = process.wait(600)
      finally:
        process.kill()
    if code != (75 if kind == 'stopped' else 0):
      last = log.read_text(errors='replace').strip().splitlines()[-2:]
      raise RuntimeError(f'{line!r} ended with {code}: {" / ".join(last)}')

  def _train(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    file, _, variant = words[0].partition(':')
    path = self._checkout / 'configs' / f'{file}.py'
    config = f'{path}:{variant}' if variant else f'{path}'
    own, workdir, flags = {}, 'run', {}
    for word in words[1:]:
      key, _, value = word.partition('=')
      if key == 'devices':
        option = '--xla_force_host_platform_device_count'
        own['XLA_FLAGS'] = f'{option}={value}'
      elif key == 'workdir':
        workdir = value
      else:
        flags[key] = f'--config.{word}'
    command = ['-m', 'jaxemb.main', f'--config={config}']
    return [*command, f'--workdir={workdir}', *flags.values()], own


def _digest(checkout: pathlib.Path) -> str:
  """Of all code of a checkout, and where it is."""
  found = hashlib.sha256(str(checkout).encode())
  for folder in checkout / 'jaxemb', checkout / 'configs':
    for path in sorted(folder.rglob('*')):
      if path.is_file() and path.parent.name != '__pycache__':
        found.update(f'{path}'.encode() + path.read_bytes())
  return found.hexdigest()[:16]


def _stop_once_saved(
  process: subprocess.Popen, checkpoints: pathlib.Path
) -> None:
  while process.poll() is None:
    if any(checkpoints.glob('*/commit_success.txt')):
      process.send_signal(signal.SIGTERM)
      return
    time.sleep(0.01)


# What a case has left.


def _collect(
  folder: pathlib.Path,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Digests, numbers and texts by name, and arrays by name."""
  values, arrays = {}, {}
  for path in sorted(folder.rglob('*')):
    name = path.relative_to(folder).as_posix()
    if path.name == 'orbax':
      arrays |= {f'{name}:{k}': v for k, v in _restored(path)}
    if not path.is_file() or not _is_kept(name):
      continue
    if path.suffix == '.json':
      values |= {f'{name}:{k}': v for k, v in _flat(path)}
    elif path.suffix == '.npy':
      arrays[name] = np.load(path)
    elif path.suffix == '.npz':
      with np.load(path) as file:
        arrays |= {f'{name}:{k}': file[k] for k in file.files}
    else:
      if path.suffix == '.csv':
        arrays |= {f'{name}:{k}': v for k, v in _columns(path)}
      values[name] = hashlib.sha256(path.read_bytes()).hexdigest()
  for key, array in arrays.items():
    array = np.ascontiguousarray(array)
    form = f'{array.dtype}{[*array.shape]}'.encode()
    values[key] = hashlib.sha256(form + array.tobytes()).hexdigest()
    if array.dtype == 'V2':  # bfloat16, which NumPy does not know
      arrays[key] = array.view(ml_dtypes.bfloat16).astype(np.float32)
  return values, arrays


def _is_kept(name: str) -> bool:
  parts = name.split('/')
  if any(f'/{x}' in f'/{name}' for x in _SKIPPED):
    return False
  if 'checkpoints' in parts or parts[-1].startswith('log'):
    return False
  is_top = len(parts) == 1
  is_saved = parts[0].endswith('-saved')
  own = 'report.json', 'merge.json'
  return is_top or is_saved or 'export' in parts or parts[-1] in own


def _restored(path: pathlib.Path) -> list[tuple[str, np.ndarray]]:
  """The arrays of an export of orbax."""
  with _ORBAX_LOCK:
    import jax
    import orbax.checkpoint as ocp

    tree = ocp.PyTreeCheckpointer().restore(path)
    leaves = jax.tree.flatten_with_path(tree)[0]
  return [(jax.tree_util.keystr(k), np.asarray(v)) for k, v in leaves]


def _columns(path: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
  """The columns of numbers of predictions."""
  with open(path, newline='') as file:
    rows = [*csv.reader(file)]
  for name, *cells in zip(*rows, strict=True):
    with contextlib.suppress(ValueError):
      yield name, np.array([float(x) for x in cells])


def _flat(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Numbers and texts of a file of JSON, but for those that vary."""

  def visit(prefix, value):
    if isinstance(value, dict):
      for key, x in value.items():
        is_volatile = key in _VOLATILE or key.endswith(_VOLATILE_ENDS)
        if not is_volatile and '_per_sec' not in key:
          yield from visit(f'{prefix}.{key}' if prefix else key, x)
    elif isinstance(value, list):
      for i, x in enumerate(value):
        yield from visit(f'{prefix}[{i}]', x)
    else:
      yield prefix, value

  return visit('', json.loads(path.read_text()))


# Data.


def _write_files(folder: pathlib.Path) -> None:
  """Writes small files of all kinds, always the same."""
  folder.mkdir(parents=True, exist_ok=True)
  draw = random.Random(7)
  sentences = []
  for _ in range(800):
    topic = draw.randrange(10)
    numbers = [
      draw.choice((topic * 20 + draw.randrange(20), int(draw.paretovariate(1))))
      for _ in range(draw.randrange(4, 20))
    ]
    sentences.append(' '.join(f'w{x % 250}' for x in numbers))
  (folder / 'text-a.txt').write_text('\n'.join(sentences[:500]) + '\n')
  rest = '\n'.join(sentences[500:]) + '\n'
  (folder / 'text-b.txt.gz').write_bytes(gzip.compress(rest.encode(), mtime=0))
  pairs = [(draw.randrange(100), draw.randrange(100)) for _ in range(60)]
  lines = [f'w{a}\tw{b}\t{(a // 20 == b // 20) + a / 999}' for a, b in pairs]
  (folder / 'pairs.txt').write_text('\n'.join(lines) + '\n')
  (folder / 'words.txt').write_text('king\nbank\nriver\ncity\nwater\n')
  header = 'click,user,item,tags,price\n'
  lines = []
  for _ in range(1200):
    user, item = draw.randrange(60), draw.randrange(40)
    tags = '|'.join(f't{draw.randrange(9)}' for _ in range(draw.randrange(4)))
    price = round(draw.expovariate(0.1), 2)
    odds = 0.7 if user % 4 == item % 4 else 0.2
    click = int(draw.random() < odds)
    lines.append(f'{click},u{user},i{item},{tags},{price}\n')
  (folder / 'clicks.csv').write_text(header + ''.join(lines))
  (folder / 'new.csv').write_text(header + ''.join(lines[:200]))
  lines = []
  for user in range(120):
    group = user % 6
    items = {
      group * 15 + draw.randrange(15) if draw.random() < 0.8 else
      draw.randrange(90) for _ in range(14)
    }  # fmt: skip
    lines.append(' '.join([f'u{user}', *(f'i{x}' for x in sorted(items))]))
  (folder / 'items.txt').write_text('\n'.join(lines) + '\n')
  lines = []
  for _ in range(1600):
    head, relation = draw.randrange(400), draw.randrange(3)
    tail = (head * (relation + 2) + draw.randrange(4)) % 400
    lines.append(f'n{head}\tr{relation}\tn{tail}')
  (folder / 'relations.tsv').write_text('\n'.join(lines) + '\n')
  lines = ['source,target,weight']
  for _ in range(900):
    node, near = draw.randrange(150), draw.randrange(1, 6)
    lines.append(f'{node},{(node + near) % 150},{draw.randrange(1, 5)}')
  (folder / 'edges.csv').write_text('\n'.join(lines) + '\n')
  lines = [f'{x} c{x // 30}' for x in range(150)]
  (folder / 'labels.txt').write_text('\n'.join(lines) + '\n')


if __name__ == '__main__':
  sys.exit(main())
