"""When replicas meet: quality, bytes and CPU time of every policy.

  python experiments/consistency.py --text=FILE --eval=FILES_AND_FOLDERS

trains on one device with one thread, and by each case with each number of
replicas. More replicas than there are cores take turns at them: quality and
bytes are those of as many cores, and CPU seconds tell what more cores would
give, which words/s do not.

  --cases=CASE,...   a policy, or POLICY:SETTING=VALUE:..., such as
                     hot:strategy.num_hot=4096; `one` is the one device. With
                     bounded:then=2 a run is stopped halfway and goes on with
                     two replicas
  quality            mean of MEN, WordSim-353, SimLex-999, rare words and
                     Google's analogies, or of all sets if one is missing
  lost               that of one device less this one
  bytes/word         that all replicas send, as the compiled program says, per
                     corpus word before frequent-word subsampling
  CPU s              of all cores per word while training, as a multiple of
                     those of one device
  synchronisations   of each replica, in the run
  stale              words by each other replica that a row lacks at most when
                     it is read: the longest of any row, and the mean over
                     lookups

Published by Ji et al. 2016 (as remembered), on the 1B-word benchmark with 300
dimensions, whose nodes average the 1024 * 2^m most frequent rows at every
2^m-th exchange, at twice the learning rate on four nodes (.05): one node 5.8 M
words/s, 32 nodes 110 M, and WordSim-353 and analogies within about a point of
one node's up to 16 to 32 nodes.
"""

import argparse
import functools
import pathlib
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import experiment

from jaxemb import errors
from jaxemb.run import metrics

_ONE = 'one'
_CASES = 'bsp', 'average', 'bounded', 'hot', 'never'
_STOPPED = 75  # exit code of a run that saved because a signal asked for it


def settings_of(name: str) -> tuple[dict[str, str], str]:
  """The settings of a case by its name, and the replicas after a restart."""
  case, num_replicas = name.split(' x ')
  policy, *more = case.split(':')
  settings = {'mesh.data': num_replicas, 'train.threads': '1'}
  if policy != _ONE:
    settings['strategy.policy'] = policy
  settings |= dict(x.split('=', 1) for x in more)
  then = settings.pop('then', '')
  return settings, then


def _stop_halfway(
  args: argparse.Namespace, workdir: pathlib.Path, settings: Mapping[str, Any]
) -> None:
  process = subprocess.Popen(
    experiment.training_command(args, workdir, settings),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  path, epoch = workdir / 'metrics.jsonl', 0.0
  while epoch < args.epochs / 2 and process.poll() is None:
    time.sleep(0.1)
    if records := metrics.read(path):
      epoch = records[-1].get('epoch', 0.0)
  process.send_signal(signal.SIGTERM)
  if process.wait() != _STOPPED:
    raise errors.UserError(
      'the run has ended before it could be stopped halfway; give more text'
    )


def run(
  args: argparse.Namespace, name: str, seed: int, folder: pathlib.Path
) -> dict[str, Any]:
  """Trains and evaluates a case."""
  workdir = folder / 'run'
  settings, then = settings_of(name)
  if then:
    own = experiment.run_settings(args, seed) | settings
    _stop_halfway(args, workdir, own)
    settings['mesh.data'] = then
  found = experiment.score(args, seed, workdir, settings)
  report = experiment.read_report(workdir)
  words = report['corpus_words'] * args.epochs
  cpu_secs = sum(x['mean_cores'] * x['secs'] for x in report['hosts'])
  sent = report['collectives']['bytes_per_word'].get('total', 0.0)
  five = experiment.mean_of_five(found['scores'])
  return found | {
    'quality': found['mean'] if five is None else five,
    'bytes_per_word': sent,
    'cpu_secs_per_word': cpu_secs / words,
    'staleness': report.get('staleness'),
    'synchronisations': report['hosts'][0].get('synchronisations', 0),
    'dim': report['dim'],
  }


def _medians(runs: Mapping[str, Any]) -> dict[str, float]:
  keys = 'quality', 'bytes_per_word', 'cpu_secs_per_word', 'words_per_sec'
  return {k: statistics.median(x[k] for x in runs.values()) for k in keys}


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
  """A line per case and number of replicas: medians over its seeds."""
  rows, one = [], None
  for name, runs in found.items():
    case, num_replicas = name.split(' x ')
    x = _medians(runs)
    one = one or x
    first = next(iter(runs.values()))
    stale = first['staleness'] or {}
    rows.append(
      [
        case,
        num_replicas,
        x['quality'],
        one['quality'] - x['quality'],
        x['bytes_per_word'],
        x['cpu_secs_per_word'] / one['cpu_secs_per_word'],
        x['words_per_sec'] / 1e6,
        first['synchronisations'],
        stale.get('max_words'),
        stale.get('mean_words'),
      ]
    )
  head = {
    'case': '', 'replicas': '', 'quality': '.4f', 'lost': '.4f',
    'bytes/word': ',.0f', 'CPU s': '.2f', 'M words/s': '.2f',
    'syncs': ',.0f', 'stale, most': ',.0f', 'mean': ',.0f',
  }  # fmt: skip
  return experiment.table(head, rows)


def plot(found: Mapping[str, Mapping[str, Any]], path: pathlib.Path) -> None:
  """Draws quality against bytes per word, a line for each case."""
  figure, (panel,) = experiment.start_plot(1, (6, 4))
  lines: dict[str, list[tuple[float, float, str]]] = {}
  for name, runs in found.items():
    case, num_replicas = name.split(' x ')
    x = _medians(runs)
    # What sends nothing stands at the left.
    sent = max(x['bytes_per_word'], 1.0)
    lines.setdefault(case, []).append((sent, x['quality'], num_replicas))
  for case, points in lines.items():
    sent, quality, _ = zip(*points, strict=True)
    panel.plot(sent, quality, 'o-', label=case)
    for x, y, num_replicas in points:
      panel.annotate(num_replicas, (x, y), fontsize=7)
  panel.set(xscale='log', xlabel='bytes per word', ylabel='quality')
  panel.legend(frameon=False, fontsize=8)
  figure.savefig(path)


def main() -> None:
  """Runs all cases and prints the table."""
  parser = experiment.parser(__doc__)
  experiment.add_run_flags(parser)
  add = parser.add_argument
  add('--seeds', type=experiment.count, default=1)
  add('--replicas', type=experiment.numbers, default=[2, 4, 8, 16])
  add('--cases', type=lambda x: x.split(','), default=[*_CASES])
  add('--plot', type=pathlib.Path, help='default: next to the results')
  args = experiment.parse(parser)
  results = experiment.Results('consistency', args, ('text', 'epochs'))
  names = [f'{_ONE} x 1'] + [
    f'{case} x {num}' for case in args.cases for num in args.replicas
  ]
  seeds, measure = range(1, args.seeds + 1), functools.partial(run, args)
  experiment.add_runs(results, results.found, names, seeds, measure)
  plot(results.found, args.plot or results.path.with_suffix('.svg'))
  results.finish(table(results.found))


if __name__ == '__main__':
  experiment.main(main)
