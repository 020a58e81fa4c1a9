"""Low-precision rows: what they cost in quality, and what they save.

  python experiments/low_precision.py --text=PATH --eval=FILES_AND_FOLDERS

Quality: one run of `python -m jaxemb.main` per case and seed, with its loss
curve; runs that the output file has already are not made again. Speed: steps of
one device on tables of --rows x --dim for a vocabulary by Zipf's law, all cases
in turn; CPU time of the process is disturbed less by other programs than
wall-clock time. The cost of random bits is the difference from the same step
with a constant in their place.

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
import tempfile
import time
from collections.abc import Callable
from typing import Any

import experiment
import numpy as np

from jaxemb import errors

CASES = (
  'float32',
  'bfloat16 stochastic',
  'bfloat16 nearest',
  'float16 stochastic',
  'float16 nearest',
  'int8 stochastic',
  'int8 nearest',
)
_STAGES = ('quality', 'speed')
# Flags that may differ between calls that add to one file.
_MAY_CHANGE = (
  'cases', 'stages', 'seeds', 'plot', 'rows', 'dim', 'batch_words', 'words',
  'rounds',
)  # fmt: skip
# In the plot: points, line and opacity by rounding.
_STYLES = {'stochastic': ('o', '-', 1), 'nearest': ('x', '--', 0.4)}
# Relative to float32, from the paper's abstract.
CLAIMED = {'bytes': 0.5, 'speed': 1.2, 'generator': 1.3}
# Loss of quality that is accepted, and bytes of vectors relative to float32.
EXPECTED = {
  'bfloat16 stochastic': {'lost': 0.003, 'bytes': 0.5, 'speed': 1.0},
  'float16 stochastic': {'lost': 0.003, 'bytes': 0.5},
  'int8 stochastic': {'lost': 0.01, 'bytes': 0.27},
}


def _settings(case: str) -> dict[str, str]:
  names = ('table.dtype', 'table.rounding')
  return dict(zip(names, case.split(), strict=False))


def _run(
  args: argparse.Namespace, case: str, seed: int, workdir: pathlib.Path
) -> dict[str, Any]:
  run = experiment.score(args, seed, workdir, _settings(case))
  report = experiment.read_report(workdir)
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  logged = [x for x in map(json.loads, lines) if x.get('loss') is not None]
  return run | {
    'table_bytes': report['table_bytes'],
    'vector_bytes': report['vector_bytes'],
    'curve': [[x['words'], x['loss']] for x in logged],
  }


def _quality(args: argparse.Namespace, results: experiment.Results) -> None:
  """Makes the runs that are missing, all cases for each seed."""
  quality = results.found.get('quality', {})
  for seed in range(1, args.seeds + 1):
    for case in args.cases:
      if str(seed) in quality.get(case, {}):
        continue
      with tempfile.TemporaryDirectory() as folder:
        run = _run(args, case, seed, pathlib.Path(folder) / 'run')
      quality.setdefault(case, {})[str(seed)] = run
      shown = {k: v for k, v in run.items() if k != 'curve'}
      experiment.progress(case, seed, shown)
      results.found['quality'] = {x: quality[x] for x in CASES if x in quality}
      results.save()


def stepper(
  args: argparse.Namespace, case: str, folder: pathlib.Path, random: bool
) -> Callable[[int], tuple[float, float]]:
  """A function that times a dispatch; returns CPU and wall seconds of a step.

  Args:
    args: the flags.
    case: to time.
    folder: for random ids.
    random: whether bits are random, or a constant.
  """
  import jax
  import jax.numpy as jnp
  import zipf

  from jaxemb.ops import rounding

  sizes = {'model.dim': args.dim, 'train.batch_words': args.batch_words}
  sync = {'strategy.name': 'sync', 'mesh.data': 1}
  job = zipf.make(sizes | sync | _settings(case), args.rows)
  corpus = zipf.write_corpus(job.counts, args.words, folder / 'ids')
  batch = next(zipf.full_batches(job, corpus))
  state, constants = zipf.start(job)

  def step(i: int) -> tuple[float, float]:
    nonlocal state
    before = time.process_time(), time.perf_counter()
    state, metrics = job.strategy.step(
      state, constants, batch, zipf.schedule(job, i + 1)
    )
    jax.block_until_ready((state, metrics))
    after = time.process_time(), time.perf_counter()
    num = int(metrics.num_steps)
    return (after[0] - before[0]) / num, (after[1] - before[1]) / num

  random_bits = rounding.random_bits
  if not random:
    rounding.random_bits = lambda key, ids, columns: jnp.full(
      (*ids.shape, len(columns)), np.uint32(2**31)
    )
  try:
    step(-1)  # compiles
  finally:
    rounding.random_bits = random_bits
  return step


def _speed(args: argparse.Namespace) -> dict[str, Any]:
  """By case, seconds of a step: fastest and median of --rounds dispatches."""
  steppers = {}
  with tempfile.TemporaryDirectory() as folder:
    make = functools.partial(stepper, args, folder=pathlib.Path(folder))
    for case in args.cases:
      steppers[case] = make(case, random=True)
      if 'stochastic' in case:
        steppers[f'{case} without bits'] = make(case, random=False)
    times = experiment.in_turn(steppers, args.rounds)
  found = {}
  for name, each in times.items():
    found[name] = {}
    for clock, secs in zip(
      ('cpu', 'wall'), zip(*each, strict=True), strict=True
    ):
      found[name][f'{clock}_secs'] = min(secs)
      found[name][f'median_{clock}_secs'] = statistics.median(secs)
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
      f'{middle(runs, k) / middle(base, k):.4f}'
      for k in ('vector_bytes', 'table_bytes')
    )
    rows.append(
      [
        name,
        f'{statistics.mean(means):.4f}',
        f'{min(means):.4f}-{max(means):.4f}',
        lost,
        EXPECTED.get(name, {}).get('lost'),
        f'{middle(runs, "loss"):.4f}',
        *sizes,
        f'{middle(runs, "words_per_sec") / 1e6:.2f}',
      ]
    )
  head = (
    'rows as', 'mean', 'seeds', 'lost', 'accepted', 'loss', 'vectors', 'tables',
    'M words/s',
  )  # fmt: skip
  return experiment.table(head, rows)


def sets_table(found: dict[str, dict[str, dict]]) -> str:
  """Means over seeds by benchmark: the first case, and how others differ."""
  base, rows = next(iter(found.values())), []
  for name in next(iter(base.values()))['scores']:
    row = [name]
    for runs in found.values():
      pairs = [
        (run['scores'][name], base[seed]['scores'][name])
        for seed, run in runs.items()
      ]
      values = [
        score if runs is base else score - old
        for score, old in pairs
        if score is not None and old is not None
      ]
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
  return (
    f'{experiment.table(head, rows)}\npublished: {1 / CLAIMED["bytes"]:g} x '
    f'less memory, up to {CLAIMED["speed"]} x the speed; generator '
    f'{CLAIMED["generator"] - 1:+.0%} speed'
  )


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
  add('--cases', type=experiment.choices('case', CASES), default=[*CASES])
  add('--stages', type=experiment.choices('stage', _STAGES), default=_STAGES)
  add('--rows', type=int, default=1_000_000)
  add('--dim', type=int, default=300)
  add('--batch_words', type=int, default=256)
  add('--words', type=int, default=1_500_000, help='of a dispatch, at most')
  add('--rounds', type=experiment.count, default=7)
  add('--plot', type=pathlib.Path, help='file .svg or .png')
  args = experiment.parse(parser)
  if CASES[0] not in args.cases:
    raise errors.UserError(f'--cases needs {CASES[0]}, to compare with')
  results = experiment.Results('low-precision', args, _MAY_CHANGE)
  if 'quality' in args.stages:
    _quality(args, results)
  if 'speed' in args.stages:
    results.found['speed'] = _speed(args)
  tables = []
  if 'quality' in results.found:
    quality = results.found['quality']
    tables += [quality_table(quality), sets_table(quality)]
    if args.plot:
      _plot(quality, args.plot)
  if 'speed' in results.found:
    tables.append(speed_table(results.found['speed']))
  results.finish(*tables)


if __name__ == '__main__':
  experiment.main(main)
