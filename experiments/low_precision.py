"""Tables in fewer bits: what they cost in quality, and what they save.

  python experiments/low_precision.py --text=PATH --eval=FILES_AND_FOLDERS

Quality: each line is one run of `python -m jaxemb.main` per seed, with its loss
curve; a run that is in the output already is not made again. Speed: steps of
one device on tables of `--rows` x `--dim` for a vocabulary by Zipf's law, all
precisions in turn; beside wall-clock time stands the CPU time of the process,
which other programs on the machine disturb less. What the random bits cost is
told by the same step with a constant in their place.

The paper (Zhang, Yang and Yuen 2018, the abstract) trains click models with
tables of float16, up to twice the memory saved and up to 1.2 times the speed,
at the quality of float32; its faster generator made 30 % of speed.
"""

import argparse
import itertools
import json
import math
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import machine
import numpy as np
import scored


class Case(NamedTuple):
  """How rows are kept."""

  dtype: str
  rounding: str

  def __str__(self) -> str:
    return ' '.join(self).strip()


CASES = (
  Case('float32', ''),
  Case('bfloat16', 'stochastic'),
  Case('bfloat16', 'nearest'),
  Case('float16', 'stochastic'),
  Case('float16', 'nearest'),
  Case('int8', 'stochastic'),
  Case('int8', 'nearest'),
)
# Flags that may differ between calls that fill in one file of results.
_FREE = (
  'cases', 'stages', 'seeds', 'plot', 'output', 'rows', 'dim', 'batch_words',
  'words', 'rounds',
)  # fmt: skip
_COLORS = ('#222222', '#1b6ca8', '#c0392b', '#e08e0b')
# Of a way to round, in the plot: points, line, opacity.
_STYLES = {
  '': ('o', '-', 1),
  'stochastic': ('o', '-', 1),
  'nearest': ('x', '--', 0.4),
}
# Relative to float32, as the paper's abstract has it.
CLAIMED = {'bytes': 0.5, 'speed': 1.2, 'generator': 1.3}
# Quality lost that is accepted, and bytes of the vectors relative to float32.
EXPECTED = {
  'bfloat16 stochastic': {'lost': 0.003, 'bytes': 0.5, 'speed': 1.0},
  'float16 stochastic': {'lost': 0.003, 'bytes': 0.5},
  'int8 stochastic': {'lost': 0.01, 'bytes': 0.27},
}


def _flags(case: Case) -> list[str]:
  named = zip(('dtype', 'rounding'), case, strict=True)
  return [f'--config.table.{key}={value}' for key, value in named if value]


def _run(
  args: argparse.Namespace, case: Case, seed: int, workdir: pathlib.Path
) -> dict[str, Any]:
  """Figures of one run."""
  found = scored.run(args, seed, workdir, _flags(case))
  report = json.loads((workdir / 'report.json').read_text())
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  logged = [x for x in map(json.loads, lines) if x.get('loss') is not None]
  return found | {
    'table_bytes': report['table_bytes'],
    'vector_bytes': report['vector_bytes'],
    'curve': [[x['words'], x['loss']] for x in logged],
  }


def _quality(args: argparse.Namespace, found: dict, save: Callable) -> None:
  """Fills in the runs that are not there yet, all cases for each seed."""
  quality = found.setdefault('quality', {})
  for seed in range(1, args.seeds + 1):
    for case in _cases(args):
      if str(seed) in quality.get(str(case), {}):
        continue
      with tempfile.TemporaryDirectory() as folder:
        made = _run(args, case, seed, pathlib.Path(folder) / 'run')
      quality.setdefault(str(case), {})[str(seed)] = made
      shown = {k: v for k, v in made.items() if k != 'curve'}
      print(case, seed, shown, file=sys.stderr, flush=True)
      save()
  # In order, whatever was asked for first.
  found['quality'] = {
    str(x): quality[str(x)] for x in CASES if str(x) in quality
  }


def _cases(args: argparse.Namespace) -> list[Case]:
  wanted = args.cases.split(',')
  return [case for case in CASES if str(case) in wanted]


class _Program(NamedTuple):
  """A case that is being timed."""

  job: Any
  state: Any
  constants: Any
  batch: Any


def _program(
  args: argparse.Namespace, case: Case, folder: pathlib.Path, bits: bool
) -> _Program:
  """A compiled step, with its tables; `bits` False = without random ones."""
  import jax
  import jax.numpy as jnp
  import jobs

  from jaxemb import config as config_lib
  from jaxemb.ops import rounding

  config = config_lib.default()
  config.model.dim, config.train.batch_words = args.dim, args.batch_words
  config.strategy.name, config.mesh.data = 'sync', 1
  config.table.dtype = case.dtype
  config.table.rounding = case.rounding or config.table.rounding
  job = jobs.make(config, args.rows)
  path = folder / f'{args.rows}'
  corpus = jobs.write_corpus(job.counts, args.words, path)
  batch = next(jobs.full_batches(job, corpus)).batch
  random_bits = rounding.random_bits
  if not bits:
    rounding.random_bits = lambda key, ids, columns: jnp.full(
      (*ids.shape, len(columns)), np.uint32(2**31)
    )
  try:
    state, constants = jobs.start(job)
    plan = jobs.schedule(job, 0)
    state, _ = job.strategy.step(state, constants, batch, plan)
    return _Program(job, jax.block_until_ready(state), constants, batch)
  finally:
    rounding.random_bits = random_bits


def _speed(args: argparse.Namespace) -> dict[str, Any]:
  """Microseconds of a step: fastest and median of `--rounds` dispatches."""
  import jax
  import jobs

  times: dict[str, list[tuple[float, float]]] = {}
  with tempfile.TemporaryDirectory() as folder:
    programs = {}
    for case in _cases(args):
      for bits in (True, False):
        if bits or case.rounding == 'stochastic':
          name = f'{case}' + ' without bits' * (not bits)
          programs[name] = _program(args, case, pathlib.Path(folder), bits)
    for i in range(args.rounds):
      for name, (job, state, constants, batch) in programs.items():
        plan = jobs.schedule(job, i + 1)
        before = time.process_time(), time.perf_counter()
        state, metrics = job.strategy.step(state, constants, batch, plan)
        jax.block_until_ready((state, metrics))
        after = time.process_time(), time.perf_counter()
        programs[name] = programs[name]._replace(state=state)
        steps = int(metrics.num_steps)
        times.setdefault(name, []).append(
          tuple((b - a) / steps for a, b in zip(before, after, strict=True))
        )
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


def _quality_table(found: dict[str, dict[str, dict]]) -> list[str]:
  lines = [
    f'{"rows kept as":24} {"mean":>7} {"seeds":>15} {"lost":>17} '
    f'{"accepted":>8} {"loss":>7} {"vectors":>8} {"tables":>7} {"M words/s":>9}'
  ]
  first, base = None, next(iter(found.values()))
  for name, runs in found.items():

    def middle(key: str, runs: dict = runs) -> float:
      return statistics.median(x[key] for x in runs.values())

    means = [x['mean'] for x in runs.values()]
    here = {k: middle(k) for k in ('vector_bytes', 'table_bytes')}
    here['mean'] = statistics.mean(means)
    first = first or here
    sizes = [here[k] / first[k] for k in ('vector_bytes', 'table_bytes')]
    spread = f'{min(means):.4f}-{max(means):.4f}'
    # Runs of one seed beside each other.
    same = [base[seed]['mean'] - x['mean'] for seed, x in runs.items()]
    lost = f'{statistics.mean(same):.4f}'
    if len(same) > 1:
      lost += f' +- {statistics.stdev(same) / len(same) ** 0.5:.4f}'
    accepted = EXPECTED.get(name, {}).get('lost', '')
    lines.append(
      f'{name:24} {here["mean"]:7.4f} {spread:>15} '
      f'{lost:>17} {accepted:>8} '
      f'{middle("loss"):7.4f} {sizes[0]:8.4f} {sizes[1]:7.4f} '
      f'{middle("words_per_sec") / 1e6:9.2f}'
    )
  return lines


def _sets_table(found: dict[str, dict[str, dict]]) -> list[str]:
  """Means of the seeds by word set: the first case's, and how others differ."""
  lines = []
  base = next(iter(found.values()))
  # Of runs of one seed beside each other; by set, then by case.
  scores: dict[str, dict[str, list[float]]] = {}
  for name, runs in found.items():
    for seed, run in runs.items():
      for path, score in run['scores'].items():
        same = base[seed]['scores'].get(path)
        if score is None or same is None:
          continue
        beside = score if runs is base else score - same
        scores.setdefault(path, {}).setdefault(name, []).append(beside)
  # A case of three words has them below each other.
  heads = itertools.zip_longest(*map(str.split, found), fillvalue='')
  for i, head in enumerate(heads):
    title = '' if i else 'word set'
    lines.append(f'{title:30}' + ''.join(f'{x:>11}' for x in head))
  for path, by_case in scores.items():
    line = f'{path:30}'
    for name, runs in found.items():
      score = statistics.mean(by_case.get(name, [math.nan]))
      line += f'{score:11.4f}' if runs is base else f'{score:+11.4f}'
    lines.append(line)
  return lines


def _speed_table(found: dict[str, dict[str, float]]) -> list[str]:
  lines = [
    'fastest dispatch (median)',
    f'{"step of one device":34} {"CPU us":>15} {"speed":>13} {"wall us":>15} '
    f'{"speed":>13} {"random bits, CPU":>16}',
  ]
  first = next(iter(found.values()))
  for name, x in found.items():
    line = f'{name:34}'
    for clock in ('cpu', 'wall'):
      keys = f'{clock}_secs', f'median_{clock}_secs'
      secs, speeds = [1e6 * x[k] for k in keys], [first[k] / x[k] for k in keys]
      line += f' {secs[0]:7.0f} ({secs[1]:5.0f}) {speeds[0]:5.2f} '
      line += f'({speeds[1]:4.2f})'
    without = found.get(f'{name} without bits')
    if without:
      shares = [1 - without[k] / x[k] for k in ('cpu_secs', 'median_cpu_secs')]
      line += f' {shares[0]:8.1%} ({shares[1]:5.1%})'
    lines.append(line)
  lines.append(
    f'published: {1 / CLAIMED["bytes"]:g} x less memory, up to '
    f'{CLAIMED["speed"]} x the speed; generator + '
    f'{CLAIMED["generator"] - 1:.0%} speed'
  )
  return lines


def _plot(found: dict[str, dict[str, dict]], path: pathlib.Path) -> None:
  """Quality of each case and seed, and loss beyond that of float32."""
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
  colors = dict(zip({c.dtype: 0 for c in CASES}, _COLORS, strict=True))
  base = next(iter(found.values()))
  for i, (name, runs) in enumerate(found.items()):
    dtype, _, way = name.partition(' ')
    points, line, alpha = _STYLES[way]
    style = dict(color=colors[dtype], alpha=alpha)
    means = [x['mean'] for x in runs.values()]
    left.plot([i] * len(runs), means, points, **style)
    if '1' not in runs or name == 'float32':
      continue
    words, loss = np.array(runs['1']['curve']).T
    same = np.interp(words, *np.array(base['1']['curve']).T)
    right.plot(words / 1e6, loss - same, line, label=name, lw=1, **style)
  left.set_xticks(range(len(found)), found, rotation=40, ha='right', fontsize=8)
  left.set_ylabel('mean of the word sets')
  right.set_xlabel('million words read')
  right.set_ylabel('loss beyond that of float32')
  right.axhline(0, color='#222222', lw=0.5)
  right.legend(fontsize=7, frameon=False)
  for axes in (left, right):
    axes.spines[['top', 'right']].set_visible(False)
  figure.tight_layout()
  figure.savefig(path)


def main() -> None:
  """Runs what is not there yet and prints the tables."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  add = parser.add_argument
  add('--text', default='', help='as config.data.path')
  add('--eval', default='', help='as config.eval.paths')
  add('--config', default='configs/wiki.py')
  add('--sample', type=float, default=1e-4)
  add('--epochs', type=machine.count, default=5)
  add('--seeds', type=machine.count, default=1)
  add('--restrict_vocab', type=int, default=0)
  add('--cases', default=','.join(map(str, CASES)))
  add('--stages', default='quality,speed')
  add('--rows', type=int, default=1_000_000)
  add('--dim', type=int, default=300)
  add('--batch_words', type=int, default=256)
  add('--words', type=int, default=1_500_000, help='of a dispatch, at most')
  add('--rounds', type=machine.count, default=7)
  add('--plot', type=pathlib.Path, help='file .svg or .png')
  add('--output', default='', help='JSON file; "" = in experiments/results')
  args = machine.parse(parser)
  unknown = set(args.cases.split(',')) - set(map(str, CASES))
  if unknown:
    parser.error(f'there is no case {unknown.pop()!r}')
  if str(CASES[0]) not in args.cases.split(','):
    parser.error(f'--cases has no {CASES[0]}, beside which the others stand')
  unknown = set(args.stages.split(',')) - {'quality', 'speed'}
  if unknown:
    parser.error(f'there is no stage {unknown.pop()!r}')
  results = pathlib.Path(__file__).parent / 'results'
  output = pathlib.Path(
    args.output or results / f'low-precision-{machine.today()}.json'
  )
  found = machine.earlier(output, args, _FREE)
  arguments = machine.arguments(args)

  def save() -> None:
    output.write_text(json.dumps(found | {'arguments': arguments}, indent=1))

  if 'quality' in args.stages.split(','):
    _quality(args, found, save)
  if 'speed' in args.stages.split(','):
    found['speed'] = _speed(args)
    found['speed_arguments'] = arguments
  facts = found['machine'] = machine.describe()
  save()
  print(machine.line(facts))
  if 'quality' in found:
    print('\n'.join(_quality_table(found['quality'])))
    print('\n'.join(_sets_table(found['quality'])))
  if 'speed' in found:
    print('\n'.join(_speed_table(found['speed'])))
  if args.plot and 'quality' in found:
    _plot(found['quality'], args.plot)
  print(f'all figures in {output}')


if __name__ == '__main__':
  machine.run(main)
