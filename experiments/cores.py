"""Words/s, CPU seconds and quality with 1, 2, 4, ... and all cores.

  python experiments/cores.py                               speed, in minutes
  python experiments/cores.py --text=FILE --eval=FILES --threads=1,2,8

Speed is that of steps by themselves, on random ids, and of whole runs, whose
quality stands beside it: medians of --runs rounds, and of what is relative to
one thread in the same round. CPU seconds are those of the process. More threads
than cores tell what each would cost on a larger machine, but for what its cores
would wait for each other's memory. Where there are several sockets, the last
line is one table on each, as `jaxemb launch --sockets` has them. The embedded
corpus is small, and so only its speeds tell something. Quality is the mean of
MEN, WordSim-353, SimLex-999, rare words and analogies, or else of all sets.
"""

import argparse
import functools
import os
import pathlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import experiment
import zipf

from jaxemb.runtime import resources

_SOCKETS = 'one table a socket'
_RATE, _COST = 'words_per_sec', 'cpu_secs_per_word'
_STEP = 'step_'


def _doubled(last: int) -> list[int]:
  """1, 2, 4, ... and the last."""
  return sorted({*(2**i for i in range(last.bit_length())), last})


def _run(
  args: argparse.Namespace, threads: int, run: int, **program: Any
) -> dict[str, Any]:
  """A whole run in a process of its own; 0 threads are as many as are used."""
  with tempfile.TemporaryDirectory() as folder:
    workdir, settings = pathlib.Path(folder), {'train.threads': threads}
    found = experiment.score(args, run + 1, workdir, settings, **program)
    hosts = experiment.read_report(workdir)['hosts']
  five = experiment.mean_of_five(found['scores'])
  cores = sum(x['mean_cores'] for x in hosts)
  return found | {
    'quality': found['mean'] if five is None else five,
    _COST: cores / found[_RATE],
  }


def _steps(
  args: argparse.Namespace, threads: int, run: int
) -> dict[str, float]:
  """Steps on random ids, in this process."""
  del run
  job = zipf.make({'mesh.data': 1, 'train.threads': threads}, args.vocab)
  corpus = zipf.corpus(job.counts, args.words)
  effort = zipf.Effort(args.words, 2, args.secs)
  found = zipf.time_dispatches(job, corpus, effort)
  cost = found['cpu_secs_per_center'] * job.kept_fraction
  return {_STEP + _RATE: found[_RATE], _STEP + _COST: cost}


def _speed(args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
  """Rounds of runs, then of steps, by the number of threads."""
  most = max(args.threads)
  if most > resources.usable_cores():
    os.environ['NPROC'] = str(most)  # threads that XLA is to have
  sides = {str(x): functools.partial(_run, args, x) for x in args.threads}
  if len(resources.sockets()) > 1:
    program = '-m', 'jaxemb.launch', '--sockets', '--'
    sides[_SOCKETS] = functools.partial(_run, args, 0, program=program)
  found = experiment.in_turn(sides, args.runs)
  # They start JAX, with its threads, in this process.
  sides = {str(x): functools.partial(_steps, args, x) for x in args.threads}
  for name, rounds in experiment.in_turn(sides, args.runs).items():
    for run, step in zip(found[name], rounds, strict=True):
      run |= step
  return found


def _speed_table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
  head, first = {'threads': ''}, next(iter(found.values()))
  for kind in ('step', 'run'):
    head |= {f'{kind}: M words/s': '.2f'}
    head |= {f'{kind}: {x}': '.2f' for x in ('speed-up', 'CPU secs/word')}
  head['quality'] = '.4f'
  rows = []
  for name, rounds in found.items():
    row = [name]
    for kind in (_STEP, ''):
      cells = [None] * 3
      if kind + _RATE in rounds[0]:
        ratios = [
          [x[key] / one[key] for x, one in zip(rounds, first, strict=True)]
          for key in (kind + _RATE, kind + _COST)
        ]
        rates = [x[kind + _RATE] / 1e6 for x in rounds]
        cells = map(statistics.median, (rates, *ratios))
      row += cells
    rows.append([*row, statistics.mean(x['quality'] for x in rounds)])
  return experiment.table(head, rows)


def main() -> None:
  """Measures and prints the table."""
  parser = experiment.parser(__doc__)
  experiment.add_run_flags(parser, sample=1e-3, epochs=20)
  add = parser.add_argument
  add(
    '--threads',
    type=experiment.numbers,
    default=_doubled(resources.usable_cores()),
    help='default: 1, 2, 4, ... and all cores',
  )
  add('--runs', type=experiment.count, default=3)
  add('--vocab', type=int, default=72_000, help='of random ids')
  add('--words', type=int, default=4_000_000, help='of random ids')
  add('--secs', type=float, default=2.0, help='of steps on random ids')
  args = experiment.parse(parser)
  results = experiment.Results('cores', args)
  results.found = _speed(args)
  results.finish(_speed_table(results.found))


if __name__ == '__main__':
  experiment.main(main)
