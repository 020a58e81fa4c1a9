"""Speed and memory of training as the work grows, one axis at a time.

  python experiments/bench_scaling.py --plot=scaling.svg
  python experiments/bench_scaling.py --axis=vocab

From a base point (72,000 rows, dim 100, 256 centers per step, two replicas on a
CPU) grow the vocabulary, the dim, the centers per step and the corpus. Every
point is a process of its own that trains skip-gram on random ids (zipf.py).
Axes that are measured again replace those in the output file.

Vocabulary, dim and batch: medians of dispatches of full steps, whose batches
are ready. Corpus: medians of whole epochs, with the loader.

  centers/s   centers are words that subsampling keeps, here two of three
  us/step     of one device; all devices step at once
  time        per center, relative to the base point of the same strategy
  tables      state of training on all devices
  peak        resident memory of the process, libraries and corpus included
  others      cores that other processes used: of up to three measurements the
              least disturbed counts
"""

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import experiment
import zipf

_MAX_RUNS = 3
_MAX_OTHERS_CORES = 0.1
_LABELS = {
  'vocab': 'vocabulary (rows)',
  'dim': 'dim',
  'batch_words': 'centers per step',
  'corpus_words': 'corpus (words), with the loader',
}


class Point(NamedTuple):
  """What one process measures."""

  vocab: int
  dim: int
  batch_words: int  # centers per step
  corpus_words: int = 0  # 0 = dispatches alone, else epochs with the loader
  strategy: str = 'replicas'  # on as many devices as training uses, or 'sync'


# Values along each axis; the first of the others are the base point.
_FULL = {
  'vocab': (72_000, 10_000, 100_000, 1_000_000, 10_000_000),
  'dim': (100, 50, 200, 300, 512, 1024),
  'batch_words': (256, 1024, 4096, 16384, 65536),
  'corpus_words': (1_000_000, 3_000_000, 10_000_000, 30_000_000),
}
_QUICK = {
  'vocab': (1000,),
  'dim': (8, 16),
  'batch_words': (64, 128),
  'corpus_words': (50_000,),
}


def _points(values: Mapping[str, Sequence[int]], axis: str) -> list[Point]:
  base = Point(*(values[x][0] for x in ('vocab', 'dim', 'batch_words')))
  return [
    base._replace(strategy=strategy, **{axis: value})
    for strategy in ('replicas', 'sync')[: 2 if axis == 'vocab' else 1]
    for value in values[axis]
  ]


def measure(point: Point, effort: zipf.Effort) -> dict[str, Any]:
  """Measures a point in this process."""
  import jax

  from jaxemb.runtime import resources

  settings = {
    'model.dim': point.dim,
    'train.batch_words': point.batch_words,
    'strategy.name': point.strategy,
  }
  job = zipf.make(settings, point.vocab)
  if obstacle := zipf.obstacle(job):
    return point._asdict() | {'devices': job.mesh.size, 'skipped': obstacle}
  corpus = zipf.corpus(job.counts, point.corpus_words or effort.ready_words)
  timed = zipf.time_epochs if point.corpus_words else zipf.time_dispatches
  others_cores = experiment.load()
  speeds = timed(job, corpus, effort)
  others_cores = others_cores()
  stats = jax.local_devices()[0].memory_stats() or {}
  return {
    **point._asdict(),
    **speeds,
    'others_cores': others_cores,
    'kept_fraction': job.kept_fraction,
    'peak_rss_bytes': resources.peak_rss_bytes(),
    'peak_device_bytes': stats.get('peak_bytes_in_use'),  # None on a CPU
  }


def _in_process(point: Point, is_quick: bool) -> dict[str, Any]:
  flags = [f'--point={json.dumps(point._asdict())}', *['--quick'] * is_quick]
  command = [sys.executable, __file__, *flags]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
  if done.returncode:
    why = f'its process ended with exit code {done.returncode}'
    return point._asdict() | {'skipped': why}
  return json.loads(done.stdout.splitlines()[-1])


def _least_disturbed(point: Point, is_quick: bool) -> dict[str, Any]:
  experiment.progress('measuring', point)
  runs = []
  while len(runs) < (1 if is_quick else _MAX_RUNS):
    runs.append(_in_process(point, is_quick))
    if runs[-1].get('others_cores', 0.0) <= _MAX_OTHERS_CORES:
      break
  return min(runs, key=lambda run: run.get('others_cores', float('inf')))


def _table(axis: str, points: Sequence[dict[str, Any]]) -> str:
  rows = []
  for p in points:
    row = [p[axis], p['strategy']]
    if 'skipped' not in p:
      speeds = (p[f'{x}centers_per_sec'] for x in ('', 'min_', 'max_'))
      row += [p['devices'], *speeds, 1e6 * p['step_secs'], p['time_ratio']]
      row += [p['table_bytes'] / 1e6, p['peak_rss_bytes'] / 1e6]
      row.append(p['others_cores'])
    rows.append(row)
  head = {
    axis: ',', 'strategy': '', 'devices': '', 'centers/s': ',.0f',
    'min': ',.0f', 'max': ',.0f', 'us/step': ',.1f', 'time': '.2f',
    'tables MB': ',.0f', 'peak MB': ',.0f', 'others': '.2f',
  }  # fmt: skip
  skipped = [f'skipped: {x["skipped"]}' for x in points if 'skipped' in x]
  return '\n'.join([experiment.table(head, rows), *skipped, ''])


def _plot(axes: dict[str, dict], path: pathlib.Path) -> None:
  """Speed over each axis, a line per strategy."""
  figure, panels = experiment.start_plot(len(_LABELS), (11, 2.6))
  for panel, (axis, label) in zip(panels, _LABELS.items(), strict=True):
    panel.set(xscale='log', yscale='log', xlabel=label)
    panel.grid(which='major', color='#e6e6e6')
    by_strategy: dict[str, list[tuple[float, float]]] = {}
    for x in axes.get(axis, {'points': []})['points']:
      if 'skipped' not in x:
        pair = x[axis], x['centers_per_sec']
        by_strategy.setdefault(x['strategy'], []).append(pair)
    for strategy, pairs in by_strategy.items():
      panel.plot(*zip(*sorted(pairs), strict=True), marker='.', label=strategy)
  panels[0].set_ylabel('centers / s')
  panels[0].legend(frameon=False)
  figure.savefig(path)


def main() -> None:
  """Measures the axes asked for and prints their tables."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--axis', choices=[*_LABELS], action='append', help='default: all')
  add('--plot', type=pathlib.Path, help='file .svg or .png')
  add('--quick', action='store_true', help='tiny, for tests')
  add('--point', type=json.loads, help=argparse.SUPPRESS)
  args = parser.parse_args()
  values, effort = _FULL, zipf.Effort(4_000_000, 5, 2.0)
  if args.quick:
    values, effort = _QUICK, zipf.Effort(50_000, 2, 0.0)
  if args.point is not None:
    print(json.dumps(measure(Point(**args.point), effort)))
    return
  results = experiment.Results('scaling', args, same=())
  known: dict[Point, dict] = {}
  for axis in args.axis or values:
    points, bases = [], {}
    for point in _points(values, axis):
      if point not in known:
        known[point] = _least_disturbed(point, args.quick)
      points.append(dict(known[point]))
    for p in (p for p in points if 'skipped' not in p):
      base = bases.setdefault(p['strategy'], p)['centers_per_sec']
      p['time_ratio'] = base / p['centers_per_sec']
    results.found[axis] = {
      'points': points,
      'commit': experiment.commit(),
      'date': experiment.today(),
    }
    results.save()
    print(_table(axis, points), flush=True)
  if args.plot:
    _plot(results.found, args.plot)
  # Only now: no process needs the device any more.
  results.finish()


if __name__ == '__main__':
  experiment.main(main)
