"""Low-precision rows: what they cost in quality, and what they save.

  python experiments/low_precision.py --text=PATH --eval=FILES_AND_FOLDERS

Quality: one run of `python -m jaxemb.main` per case and seed, with its loss
curve; runs that the output file has already are not made again. Speed: steps of
one device on tables of --rows x --dim for a vocabulary by Zipf's law, all cases
in turn, in CPU time, which other programs disturb less, and in wall-clock time.
The cost of random bits is beyond the same step with a constant in their place.

The paper (Zhang, Yang and Yuen 2018, the abstract) trains click models with
tables of float16: half the memory and up to 1.2 times the speed, at the quality
of float32; its faster generator gained 30 % of speed.
"""

import argparse
import functools
import json
import math
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import experiment
import numpy as np

from jaxemb import errors

CASES = ('float32',) + tuple(
  f'{dtype} {rounding}'
  for dtype in ('bfloat16', 'float16', 'int8')
  for rounding in ('stochastic', 'nearest')
)
# In the plot: points, line and opacity by rounding.
_STYLES = {'stochastic': ('o', '-', 1), 'nearest': ('x', '--', 0.4)}
# Loss of quality that is accepted.
ACCEPTED = {
  'bfloat16 stochastic': 0.003,
  'float16 stochastic': 0.003,
  'int8 stochastic': 0.01,
}


def settings(case: str) -> dict[str, str]:
  """Those of a case."""
  names = ('table.dtype', 'table.rounding')
  return dict(zip(names, case.split(), strict=False))


def _run(
  args: argparse.Namespace, case: str, seed: int, folder: pathlib.Path
) -> dict[str, Any]:
  workdir = folder / 'run'
  run = experiment.score(args, seed, workdir, settings(case))
  report = experiment.read_report(workdir)
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  logged = [x for x in map(json.loads, lines) if x.get('loss') is not None]
  return run | {
    'table_bytes': report['table_bytes'],
    'vector_bytes': report['vector_bytes'],
    'curve': [[x['words'], x['loss']] for x in logged],
  }


def _timer(
  args: argparse.Namespace, case: str, is_random: bool
) -> Callable[[int], tuple[float, float]]:
  """A function that times a dispatch; returns CPU and wall seconds of a step.

  Bits are random, or a constant.
  """
  import jax
  import jax.numpy as jnp
  import zipf

  from jaxemb.ops import rounding

  sizes = {'model.dim': args.dim, 'train.batch_words': args.batch_words}
  sync = {'strategy.name': 'sync', 'mesh.data': 1, 'train.threads': 1}
  job = zipf.make(sizes | sync | settings(case), args.rows)
  corpus = zipf.corpus(job.counts, args.words)
  batch = next(zipf.full_batches(job, corpus))
  state, constants = zipf.start(job)

  def step(i: int) -> tuple[float, float]:
    nonlocal state
    args = constants, batch, zipf.schedule(job, i + 1)
    cpu_secs, secs = time.process_time(), time.perf_counter()
    state, metrics = job.strategy.step(state, *args)
    jax.block_until_ready((state, metrics))
    cpu_secs = time.process_time() - cpu_secs
    secs = time.perf_counter() - secs
    return cpu_secs / int(metrics.num_steps), secs / int(metrics.num_steps)

  def constant_bits(_: Any, ids: Any, columns: Any) -> Any:
    return jnp.full((*ids.shape, len(columns)), np.uint32(2**31))

  bits = rounding.random_bits if is_random else constant_bits
  with mock.patch.object(rounding, 'random_bits', bits):
    step(-1)  # compiles
  return step


def _speed(args: argparse.Namespace) -> dict[str, Any]:
  """By case, seconds of a step: fastest and median of --rounds dispatches."""
  timers = {}
  for case in args.cases:
    timers[case] = _timer(args, case, True)
    if 'stochastic' in case:
      timers[f'{case} without bits'] = _timer(args, case, False)
  times = experiment.in_turn(timers, args.rounds)
  found = {}
  for name, each in times.items():
    cpu, wall = zip(*each, strict=True)
    found[name] = {
      'cpu_secs': min(cpu),
      'median_cpu_secs': statistics.median(cpu),
      'wall_secs': min(wall),
      'median_wall_secs': statistics.median(wall),
    }
  return found


def quality_table(found: dict[str, dict[str, dict]]) -> str:
  """A line per case; losses are means of the differences of equal seeds."""
  rows, base = [], next(iter(found.values()))

  def middle(runs: dict, key: str) -> float:
    return statistics.median(x[key] for x in runs.values())

  for name, runs in found.items():
    means = [x['mean'] for x in runs.values()]
    same = [base[seed]['mean'] - x['mean'] for seed, x in runs.items()]
    lost = f'{statistics.mean(same):.4f}'
    if len(same) > 1:
      lost += f' +- {statistics.stdev(same) / len(same) ** 0.5:.4f}'
    sizes = (
      middle(runs, k) / middle(base, k) for k in ('vector_bytes', 'table_bytes')
    )
    spread = f'{min(means):.4f}-{max(means):.4f}'
    cells = statistics.mean(means), spread, lost, ACCEPTED.get(name)
    speed = middle(runs, 'words_per_sec') / 1e6
    rows.append([name, *cells, middle(runs, 'loss'), *sizes, speed])
  head = {
    'rows as': '', 'mean': '.4f', 'seeds': '', 'lost': '', 'accepted': '',
    'loss': '.4f', 'vectors': '.4f', 'tables': '.4f', 'M words/s': '.2f',
  }  # fmt: skip
  return experiment.table(head, rows)


def sets_table(found: dict[str, dict[str, dict]]) -> str:
  """Means over seeds by benchmark: the first case, and how others differ."""
  base, rows = next(iter(found.values())), []
  for name in next(iter(base.values()))['scores']:
    row = [name]
    for runs in found.values():
      values = []
      for seed, run in runs.items():
        score, old = run['scores'][name], base[seed]['scores'][name]
        if score is not None and old is not None:
          values.append(score if runs is base else score - old)
      mean = statistics.mean(values) if values else math.nan
      row.append(f'{mean:.4f}' if runs is base else f'{mean:+.4f}')
    rows.append(row)
  return experiment.table(('benchmark', *found), rows)


def speed_table(found: dict[str, dict[str, float]]) -> str:
  """A line per case: the fastest dispatch (the median)."""
  first, rows = next(iter(found.values())), []
  for name, x in found.items():
    row = [name]
    for clock in ('cpu', 'wall'):
      keys = f'{clock}_secs', f'median_{clock}_secs'
      secs, speeds = [1e6 * x[k] for k in keys], [first[k] / x[k] for k in keys]
      row.append('{:.0f} ({:.0f})'.format(*secs))
      row.append('{:.2f} ({:.2f})'.format(*speeds))
    if without := found.get(f'{name} without bits'):
      keys = ('cpu_secs', 'median_cpu_secs')
      shares = [1 - without[k] / x[k] for k in keys]
      row.append('{:.1%} ({:.1%})'.format(*shares))
    rows.append(row)
  head = ('step of one device', 'CPU us', 'speed', 'wall us', 'speed', 'bits')
  return experiment.table(head, rows)


def _plot(found: dict[str, dict[str, dict]], path: pathlib.Path) -> None:
  """Quality of each case and seed, and loss minus that of float32."""
  figure, (left, right) = experiment.start_plot(2, (10, 3.6))
  colors = {'float32': 'C7', 'bfloat16': 'C0', 'float16': 'C3', 'int8': 'C1'}
  base = next(iter(found.values()))
  for i, (name, runs) in enumerate(found.items()):
    dtype, _, mode = name.partition(' ')
    points, line, alpha = _STYLES.get(mode, _STYLES['stochastic'])
    style = {'color': colors[dtype], 'alpha': alpha}
    means = [x['mean'] for x in runs.values()]
    left.plot([i] * len(runs), means, points, **style)
    if '1' in runs and runs is not base:
      words, loss = np.array(runs['1']['curve']).T
      same = np.interp(words, *np.array(base['1']['curve']).T)
      right.plot(words / 1e6, loss - same, line, label=name, **style)
  left.set_xticks(range(len(found)), found, rotation=40, ha='right')
  left.set_ylabel('mean of the benchmarks')
  right.set(xlabel='million words read', ylabel='loss minus that of float32')
  if right.lines:
    right.legend(fontsize=7, frameon=False)
  figure.savefig(path)


def main() -> None:
  """Makes the runs that are missing and prints the tables."""
  parser = experiment.parser(__doc__)
  experiment.add_run_flags(parser)
  add = parser.add_argument
  add('--seeds', type=experiment.count, default=1)
  experiment.add_names(parser, '--cases', CASES)
  experiment.add_names(parser, '--stages', ('quality', 'speed'))
  add('--rows', type=int, default=1_000_000)
  add('--dim', type=int, default=300)
  add('--batch_words', type=int, default=256)
  add('--words', type=int, default=1_500_000, help='of a dispatch, at most')
  add('--rounds', type=experiment.count, default=7)
  add('--plot', type=pathlib.Path, help='file .svg or .png')
  args = experiment.parse(parser)
  if CASES[0] not in args.cases:
    raise errors.UserError(f'--cases needs {CASES[0]}, to compare with')
  results = experiment.Results('low-precision', args, experiment.RUN_FLAGS)
  if 'quality' in args.stages:
    quality = results.found.setdefault('quality', {})
    seeds, run = range(1, args.seeds + 1), functools.partial(_run, args)
    experiment.add_runs(results, quality, args.cases, seeds, run)
  if 'speed' in args.stages:
    results.found['speed'] = _speed(args)
  tables = []
  if 'quality' in results.found:
    quality = results.found['quality']
    quality = {x: quality[x] for x in CASES if x in quality}
    tables += [quality_table(quality), sets_table(quality)]
    if args.plot:
      _plot(quality, args.plot)
  if 'speed' in results.found:
    tables.append(speed_table(results.found['speed']))
  results.finish(*tables)


if __name__ == '__main__':
  experiment.main(main)
