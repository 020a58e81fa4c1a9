"""Speed and memory of training as the work grows, one axis at a time.

  python experiments/bench_scaling.py --plot=scaling.svg
  python experiments/bench_scaling.py --axis=vocab

From a base point (72,000 rows, dim 100, 256 centers a step, two replicas on a
CPU) grow the vocabulary, the dim, the centers of a step and the corpus. Every
point is a process of its own that trains skip-gram with the package's parts and
default settings on random ids, see jobs.py. An axis measured again replaces
what the output file has of it.

A word here is a CENTER: a word that subsampling kept, here about two of three
raw words (`kept_share` in the file). Vocabulary, dim and batch: the median of
several dispatches of full steps, whose batches are ready before the clock
starts. Corpus: the median of whole epochs, with the loader at work beside.

  us/step   of one device; all devices step at once
  time      of a center, relative to the base point of the same strategy
  tables    state of training on all devices
  peak      resident memory of the process, with libraries and the mapped corpus
  others    cores that other processes took meanwhile: a point that they
            disturbed is measured again, and the least disturbed counts
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jobs
import machine
import ml_collections
import numpy as np

from jaxemb import config as config_lib

_MAX_RUNS = 3  # of a point, while other processes disturb it
_MAX_OTHERS_CORES = 0.1
_RESULTS = pathlib.Path(__file__).resolve().parent / 'results'


class Point(NamedTuple):
  """What one process measures."""

  vocab: int = 72_000
  dim: int = 100
  batch_words: int = 256  # centers of a step
  corpus_words: int = 0  # 0 = dispatches alone, else epochs with the loader
  strategy: str = 'replicas'  # on as many devices as training uses, or 'sync'


class Plan(NamedTuple):
  """What to measure, and for how long."""

  base: Point
  axes: dict[str, list[Point]]  # the first points have what others relate to
  effort: jobs.Effort


def _plan() -> Plan:
  base = Point()
  axes = {
    'vocab': [
      base._replace(vocab=rows, strategy=strategy)
      for strategy in ('replicas', 'sync')
      for rows in (10_000, 72_000, 100_000, 1_000_000, 10_000_000)
    ],
    'dim': [base._replace(dim=dim) for dim in (50, 100, 200, 300, 512, 1024)],
    'batch_words': [
      base._replace(batch_words=words)
      for words in (256, 1024, 4096, 16_384, 65_536)
    ],
    'corpus_words': [
      base._replace(corpus_words=words)
      for words in (1_000_000, 3_000_000, 10_000_000, 30_000_000)
    ],
  }
  return Plan(base, axes, jobs.Effort(4_000_000, 5, 2.0))


def _quick_plan() -> Plan:
  base = Point(vocab=1000, dim=8, batch_words=64)
  axes = {
    'vocab': [
      base,
      base._replace(strategy='sync'),
      base._replace(vocab=1_000_000, dim=65_536),  # fits no memory
    ],
    'dim': [base, base._replace(dim=16)],
    'batch_words': [base, base._replace(batch_words=128)],
    'corpus_words': [base._replace(corpus_words=50_000)],
  }
  return Plan(base, axes, jobs.Effort(50_000, 2, 0.0))


# One point, in a process of its own.


def _config(point: Point) -> ml_collections.ConfigDict:
  """The default settings, but for what the point says."""
  config = config_lib.default()
  config.model.dim = point.dim
  config.train.batch_words = point.batch_words
  config.train.epochs = 10**6  # until it took long enough
  config.strategy.name = point.strategy
  config_lib.check(config)
  return config


def _measure(point: Point, effort: jobs.Effort) -> dict[str, Any]:
  job = jobs.make(_config(point), point.vocab)
  facts = point._asdict() | {'devices': job.mesh.size}
  reason = jobs.too_large(job)
  if reason:
    return facts | {'skipped': reason}
  with tempfile.TemporaryDirectory() as folder:
    corpus = jobs.write_corpus(
      job.counts,
      point.corpus_words or effort.ready_words,
      pathlib.Path(folder) / 'ids',
    )
    timed = jobs.time_epochs if point.corpus_words else jobs.time_dispatches
    start_secs = time.perf_counter()
    tables = jobs.start(job)
    start_secs = time.perf_counter() - start_secs
    load = machine.Load()
    figures = timed(job, corpus, effort, *tables)
    others_cores = load.others_cores()
  stats = jax.local_devices()[0].memory_stats() or {}
  return {
    **facts,
    **figures,
    'start_secs': start_secs,  # until the tables are there
    'others_cores': others_cores,
    'kept_share': job.kept_share,
    'peak_rss_bytes': machine.peak_rss_bytes(),
    'peak_device_bytes': stats.get('peak_bytes_in_use'),  # None on a CPU
  }


def _in_process(point: Point, quick: bool) -> dict[str, Any]:
  text = json.dumps(point._asdict())
  command = [sys.executable, __file__, f'--point={text}']
  result = subprocess.run(
    command + ['--quick'] * quick, stdout=subprocess.PIPE, text=True
  )
  if result.returncode:
    return point._asdict() | {
      'skipped': f'its process ended with exit code {result.returncode}'
    }
  return json.loads(result.stdout.splitlines()[-1])


def _undisturbed(point: Point, quick: bool) -> dict[str, Any]:
  """The least disturbed of at most so many measurements."""
  best = _in_process(point, quick)
  for _ in range(0 if quick else _MAX_RUNS - 1):
    if best.get('others_cores', 0) <= _MAX_OTHERS_CORES:
      break
    again = _in_process(point, quick)
    if again.get('others_cores', np.inf) < best['others_cores']:
      best = again
  return best


# All points.


def _run(
  axis: str, plan: Plan, quick: bool, known: dict[Point, dict]
) -> list[dict[str, Any]]:
  """The points of an axis; what is known already is not measured again."""
  for point in plan.axes[axis]:
    print(f'  measuring {point}', file=sys.stderr, flush=True)
    if point not in known:
      known[point] = _undisturbed(point, quick)
  points = [dict(known[point]) for point in plan.axes[axis]]
  done = [p for p in points if 'skipped' not in p]
  base_value = getattr(plan.base, axis)
  bases = {p['strategy']: p for p in reversed(done)}  # the first ones
  bases |= {p['strategy']: p for p in done if p[axis] == base_value}
  for point in done:
    base = bases[point['strategy']]
    point['time_ratio'] = base['centers_per_sec'] / point['centers_per_sec']
  return points


def _table(axis: str, points: Sequence[dict[str, Any]]) -> str:
  lines = [
    f'{axis:>13}{"strategy":>10}{"devices":>8}{"centers/s":>12}{"min":>12}'
    f'{"max":>12}{"us/step":>11}{"time":>7}{"tables MB":>10}{"peak MB":>8}'
    f'{"others":>7}'
  ]
  for point in points:
    name = f'{point[axis]:13,}{point["strategy"]:>10}'
    if 'skipped' in point:
      lines.append(f'{name}   skipped: {point["skipped"]}')
      continue
    lines.append(
      f'{name}{point["devices"]:8}{point["centers_per_sec"]:12,.0f}'
      f'{point["min_centers_per_sec"]:12,.0f}'
      f'{point["max_centers_per_sec"]:12,.0f}{1e6 * point["step_secs"]:11,.1f}'
      f'{point["time_ratio"]:7.2f}{point["table_bytes"] / 1e6:10,.0f}'
      f'{point["peak_rss_bytes"] / 1e6:8,.0f}{point["others_cores"]:7.2f}'
    )
  return '\n'.join(lines)


def _plot(axes: dict[str, dict], path: pathlib.Path) -> None:
  """Four small panels: speed over each axis, with the peak memory in words."""
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot, ticker

  labels = {
    'vocab': 'vocabulary (rows)',
    'dim': 'dim',
    'batch_words': 'centers of a step',
    'corpus_words': 'corpus (words), with the loader',
  }
  figure, panels = pyplot.subplots(
    1, 4, figsize=(11, 2.6), sharey=True, layout='constrained'
  )
  prefixed = ticker.EngFormatter(sep='')

  def plain(value, _):
    return f'{value:,.0f}' if value < 1e5 else prefixed(value)

  for panel, (axis, label) in zip(panels, labels.items(), strict=True):
    panel.set(xscale='log', yscale='log', xlabel=label)
    panel.xaxis.label.set_size(8)
    panel.margins(x=0.1, y=0.12)
    panel.grid(which='major', color='#e6e6e6', lw=0.6)
    panel.spines[['top', 'right']].set_visible(False)
    points = axes.get(axis, {'points': []})['points']
    done = [p for p in points if 'skipped' not in p]
    _draw(panel, axis, done)
    shown = _apart([p[axis] for p in done], 1.4)
    panel.xaxis.set_major_locator(ticker.FixedLocator(shown))
    panel.xaxis.set_major_formatter(plain)
    panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(prefixed)
    panel.minorticks_off()
    panel.tick_params(labelsize=6.5, length=2)
  panels[0].set_ylabel('centers / s', fontsize=8)
  panels[0].legend(fontsize=6.5, frameon=False, loc='lower left')
  figure.savefig(path, dpi=200)


def _draw(panel: Any, axis: str, done: list[dict[str, Any]]) -> None:
  """A line for each strategy; peak memory beside the points."""
  styles = {'replicas': ('#1f5fa8', '-'), 'sync': ('#8a8a8a', '--')}
  for strategy, (color, line) in styles.items():
    mine = {p[axis]: p for p in done if p['strategy'] == strategy}
    if not mine:
      continue
    devices = next(iter(mine.values()))['devices']
    panel.plot(
      list(mine),
      [p['centers_per_sec'] for p in mine.values()],
      line,
      color=color,
      marker='o',
      markersize=3,
      lw=1.2,
      label=f'{strategy}, {devices} device{"s" * (devices > 1)}',
    )
    for x in _apart(list(mine), 1.4):
      panel.annotate(
        f'{mine[x]["peak_rss_bytes"] / 1e9:.1f} GB',
        (x, mine[x]['centers_per_sec']),
        (0, 4),
        textcoords='offset points',
        fontsize=5.5,
        color='#777777',
      )


def _apart(values: list[float], factor: float) -> list[float]:
  """The values in order, without those too near to the one before."""
  kept: list[float] = []
  for value in sorted(set(values)):
    if not kept or value >= factor * kept[-1]:
      kept.append(value)
  return kept


def _arguments(plan: Plan) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--axis', choices=list(plan.axes), action='append', help='default: all'
  )
  parser.add_argument(
    '--output', type=pathlib.Path, help='default: results/scaling-DATE.json'
  )
  parser.add_argument('--plot', type=pathlib.Path, help='file .svg or .png')
  parser.add_argument('--quick', action='store_true', help='tiny, for tests')
  parser.add_argument('--point', type=json.loads, help=argparse.SUPPRESS)
  return parser.parse_args()


def main() -> None:
  """Measures the axes asked for, prints their tables and writes the file."""
  plan = _plan()
  args = _arguments(plan)
  if args.quick:
    plan = _quick_plan()
  if args.point is not None:
    print(json.dumps(_measure(Point(**args.point), plan.effort)))
    return
  output = args.output or _RESULTS / f'scaling-{machine.today()}.json'
  axes = json.loads(output.read_text())['axes'] if output.exists() else {}
  known: dict[Point, dict] = {}
  measured = args.axis or list(plan.axes)
  for axis in measured:
    axes[axis] = {'points': _run(axis, plan, args.quick, known)}
    print(_table(axis, axes[axis]['points']) + '\n', flush=True)
  facts = machine.describe()  # starts JAX: no process needs the device any more
  for axis in measured:
    axes[axis] |= {'commit': facts['commit'], 'date': facts['date']}
  print(machine.line(facts))
  result = {'machine': facts, 'words': 'centers', 'axes': axes}
  output.parent.mkdir(parents=True, exist_ok=True)
  output.write_text(json.dumps(result, indent=1) + '\n')
  if args.plot:
    _plot(axes, args.plot)


if __name__ == '__main__':
  machine.run(main)
