"""The peak memory that runs predict, beside what their processes take.

One run for each kind of data and way to store tables, on random data with many
keys, so that tables, rows, batches and results are most of the memory. The
prediction and the peak are those of report.json: the peak is the kernel's, once
results are written, with the pages of files that the process has mapped. (The
kernel's when a process has ended is at least that of who started it.)
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import experiment
import numpy as np


class _Data(NamedTuple):
  """What files of random data are made of."""

  keys: int
  lines: int
  keys_of_line: int
  prefixes: tuple[str, ...] = ('w',)  # of keys, by column


class _Case(NamedTuple):
  """A run."""

  data: str
  settings: Mapping[str, Any]
  config: str = 'wiki'


_DATA = {
  'text': _Data(200_000, 50_000, 20),
  'words': _Data(3_000_000, 300_000, 20),
  'documents': _Data(100_000, 100_000, 20),
  'edges': _Data(300_000, 400_000, 2),
  'triples': _Data(300_000, 400_000, 3, ('n', 'r', 'n')),
  'interactions': _Data(300_000, 400_000, 2, ('u', 'i')),
}
_TEXT = {
  'data.min_count': 1, 'data.sample': 0.0, 'data.max_vocab': 0,
  'eval.paths': 'none', 'train.epochs': 1, 'model.dim': 200,
}  # fmt: skip
_STORE = {'table.store': 'memory', 'table.device_bytes': '25%'}
_CASES = {
  'skip-gram, two threads': _Case('text', {**_TEXT, 'train.threads': 2}),
  'CBOW, bfloat16': _Case(
    'text',
    {
      **_TEXT, 'model.name': 'cbow', 'table.dtype': 'bfloat16',
      'model.dim': 400,
    },
  ),
  'skip-gram, int8, Adagrad': _Case(
    'text',
    {
      **_TEXT, 'table.dtype': 'int8', 'model.dim': 400,
      'optimizer.name': 'adagrad_full',
    },
  ),
  'n-grams': _Case(
    'text', {**_TEXT, 'model.subwords': '3-6', 'model.dim': 120}
  ),
  'senses': _Case(
    'text', {**_TEXT, 'senses.top_ratio': 0.3, 'model.dim': 80}, 'mixture'
  ),
  'documents': _Case(
    'documents',
    {
      'data.min_count': 1, 'data.sample': 0.0, 'train.epochs': 1,
      'model.dim': 400,
    },
    'documents',
  ),
  'tables in memory': _Case('text', {**_TEXT, **_STORE}),
  'three million words': _Case('words', {**_TEXT, 'model.dim': 16}),
  'sub-models, merged': _Case(
    'text', {
      **_TEXT, 'model.dim': 100, 'strategy.name': 'partition',
      'strategy.num_parts': 2,
    },
  ),
  'clicks, DeepFM': _Case(
    '',
    {
      'data.path': 'toyclicks:20000', 'data.hash_size': 400_000,
      'train.epochs': 1, 'optimizer.name': 'adagrad',
    },
    'ctr',
  ),
  'edges, LINE': _Case(
    'edges',
    {'train.epochs': 1, 'model.order': 2, 'model.dim': 128},
    'graph:line',
  ),
  'edges, ComplEx': _Case(
    'triples', {'train.epochs': 1, 'model.dim': 128}, 'graph:relations'
  ),
  'nodes, GraphSAGE': _Case(
    'edges',
    {'train.epochs': 1, 'model.inputs': 'rows', 'model.dim': 128},
    'graphsage:walks',
  ),
  'interactions': _Case(
    'interactions', {'train.epochs': 1, 'model.dim': 128}, 'rec'
  ),
}  # fmt: skip


def _flags() -> argparse.Namespace:
  parser = experiment.parser(__doc__)
  experiment.add_names(parser, '--cases', _CASES, separator=';')
  parser.add_argument(
    '--scale', type=float, default=1.0, help='of the number of keys'
  )
  parser.add_argument(
    '--cache', type=pathlib.Path, help='of compiled kernels; default: a new one'
  )
  return experiment.parse(parser)


def _write(path: pathlib.Path, data: _Data, scale: float) -> None:
  """Writes lines of random keys, each of them at least once."""
  rng = np.random.default_rng(0)
  keys, lines = (max(1, int(scale * x)) for x in (data.keys, data.lines))
  num = lines * data.keys_of_line
  ids = rng.permutation(np.resize(np.arange(keys), num))
  prefixes = np.resize(np.array(data.prefixes, object), num)
  if 'r' in data.prefixes:  # of relations there are few
    ids[data.prefixes.index('r') :: data.keys_of_line] %= 100
  names = prefixes + ids.astype(str).astype(object)
  with path.open('w') as file:
    for line in names.reshape(lines, data.keys_of_line):
      file.write(' '.join(line) + '\n')


def _run(
  args: argparse.Namespace, name: str, folder: pathlib.Path
) -> dict[str, Any]:
  """Trains a case; returns its peak and what was predicted."""
  case = _CASES[name]
  settings = dict(case.settings)
  if case.data:
    path = folder / f'{case.data}.txt'
    if not path.exists():
      _write(path, _DATA[case.data], args.scale)
    settings['data.path'] = path
  elif args.scale != 1:
    settings['data.hash_size'] = int(args.scale * settings['data.hash_size'])
  workdir = folder / 'run' / str(time.monotonic_ns())
  args.config = case.config
  command = experiment.training_command(args, workdir, settings)
  environment = os.environ | {'JAXEMB_CACHE': str(args.cache or folder / 'c')}
  with (folder / 'output.txt').open('w+') as output:
    process = subprocess.run(
      command, env=environment, stdout=output, stderr=subprocess.STDOUT
    )
    output.seek(0)
    text = output.read()
  if process.returncode:
    raise RuntimeError(f'{" ".join(command)}:\n{text[-3000:]}')
  report = experiment.read_report(workdir)
  shutil.rmtree(workdir)
  return {'peak_bytes': report['peak_rss_bytes'], **report['memory']}


def _table(found: Mapping[str, Mapping[str, int]]) -> str:
  """Returns a table of what was predicted, and measured, in MB."""
  columns = (
    'process', 'program', 'state', 'rows', 'batch', 'snapshot', 'result',
  )  # fmt: skip
  rows = []
  for name, x in found.items():
    parts = [x[f'{column}_bytes'] / 1e6 for column in columns]
    predicted, peak = x['predicted_peak_bytes'] / 1e6, x['peak_bytes'] / 1e6
    rows.append([name, *parts, predicted, peak, peak / predicted])
  formats = dict.fromkeys((*columns, 'predicted', 'measured'), '.0f')
  return experiment.table({'MB': '', **formats, 'ratio': '.2f'}, rows)


def main() -> None:
  """Measures all cases."""
  args = _flags()
  results = experiment.Results('memory', args, same=('scale',))
  with tempfile.TemporaryDirectory() as folder:
    for name in args.cases:
      if name not in results.found:
        results.found[name] = _run(args, name, pathlib.Path(folder))
        experiment.progress(name, results.found[name])
        results.save()
  results.finish(_table(results.found))


if __name__ == '__main__':
  experiment.main(main)
