"""Workers on shared tables: speed, quality, rows moved, and what kills cost.

  python experiments/workers.py --text=FILE --eval=FILES_AND_FOLDERS

trains on one device with one thread, and by each case:

  --cases=CASE,...  STRATEGY:SETTING=VALUE:..., such as
                    workers:table.staleness=100:table.device_bytes=10% or
                    replicas:mesh.data=4; with table.staleness=-1 nothing is
                    kept, as without a cache. With kills=3 so many workers are
                    killed (SIGKILL), one after the other, and with
                    shard_kills=1 so many shards
  quality           mean of MEN, WordSim-353, SimLex-999, rare words and
                    Google's analogies, or of all sets if one is missing
  CPU us            of all programs of the machine, per word while training
  moved             rows that were read and pushed, per row that a round needed
                    (2 = as without a cache)
  bytes/word        that all workers send and receive
  hidden            time of reading and pushing in which steps ran
  missed            updates by others that a row lacked when it was used, mean
                    and most
"""

import argparse
import functools
import os
import pathlib
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import experiment
import psutil

from jaxemb import errors
from jaxemb.run import metrics

_CASES = [
  'workers',
  'workers:table.staleness=10:table.device_bytes=10%',
  'workers:table.staleness=100:table.device_bytes=10%',
  'workers:table.staleness=-1:table.device_bytes=10%',
  'replicas:mesh.data=4',
]


def settings_of(case: str) -> tuple[dict[str, str], dict[str, int]]:
  """The settings of a case, and how many of what are killed."""
  strategy, *more = case.split(':')
  settings = {'train.threads': '1', 'strategy.name': strategy}
  if strategy == 'one':
    settings |= {'strategy.name': 'replicas', 'mesh.data': '1'}
  settings |= dict(x.split('=', 1) for x in more)
  names = 'kills', 'shard_kills'
  return settings, {k: int(settings.pop(k, 0)) for k in names}


def _processes(name: str, above: psutil.Process) -> list[psutil.Process]:
  """Those of Ray that run an actor of a class, below a process."""
  found = []
  for one in above.children(recursive=True):
    if one.is_running() and one.name().startswith(f'ray::{name}'):
      found.append(one)
  return sorted(found, key=lambda x: x.pid)


def _train(
  args: argparse.Namespace,
  workdir: pathlib.Path,
  settings: Mapping[str, Any],
  kills: Mapping[str, int],
) -> None:
  """Trains, and kills what is to be killed, evenly over the run."""
  wanted = ['Worker'] * kills['kills'] + ['Actor'] * kills['shard_kills']
  with open(workdir.with_suffix('.log'), 'w') as log:
    process = subprocess.Popen(
      experiment.training_command(args, workdir, settings),
      stdout=log,
      stderr=subprocess.STDOUT,
    )
    above, path = psutil.Process(process.pid), workdir / 'metrics.jsonl'
    for i, name in enumerate(wanted):
      epoch, place = 0.0, args.epochs * (i + 1) / (len(wanted) + 1)
      while epoch < place and process.poll() is None:
        time.sleep(0.05)
        if records := metrics.read(path):
          epoch = records[-1].get('epoch', 0.0)
      if found := _processes(name, above):
        os.kill(found[i % len(found)].pid, signal.SIGKILL)
    if process.wait():
      line = workdir.with_suffix('.log').read_text().splitlines()[-1:]
      raise errors.UserError(f'the run has failed: {line}')


def run(
  args: argparse.Namespace, name: str, seed: int, folder: pathlib.Path
) -> dict[str, Any]:
  """Trains and evaluates a case."""
  workdir = folder / 'run'
  settings, kills = settings_of(name)
  settings = experiment.run_settings(args, seed) | settings
  _train(args, workdir, settings, kills)
  report = experiment.read_report(workdir)
  scores = {k: x['score'] for k, x in report['evaluation'].items()}
  five = experiment.mean_of_five(scores)
  if five is None:
    five = statistics.mean(x for x in scores.values() if x is not None)
  words = report['corpus_words'] * args.epochs
  busy = report['hosts'][0]['mean_host_busy_cores'] * report['train_secs']
  found = {
    'quality': five,
    'words_per_sec': report['words_per_sec'],
    'busy_secs_per_word': busy / words,
    'commit': experiment.commit(),
    'date': experiment.today(),
  }
  if 'workers' in report:
    store, workers = report['store'], report['workers']
    moved = store['rows_fetched'] + store['rows_pushed']
    sent = store['bytes_sent'] + store['bytes_received']
    found |= {
      'moved': moved / store['rows_needed'],
      'bytes_per_word': sent / words,
      'hidden': store['hidden'],
      'missed': workers['mean_missed_updates'],
      'most_missed': workers['most_missed_updates'],
      'replaced': workers['replaced'],
    }
    log = (workdir / 'log.txt').read_text()
    found['told'] = [x for x in log.splitlines() if ' ended' in x]
  return found


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
  """A line for each case, of medians over seeds."""
  rows = []
  for name, runs in found.items():

    def median(key, runs=runs):
      values = [x[key] for x in runs.values() if key in x]
      return statistics.median(values) if values else None

    rows.append(
      [
        name,
        median('quality'),
        median('words_per_sec') / 1e6,
        median('busy_secs_per_word') * 1e6,
        *map(median, ('moved', 'bytes_per_word', 'hidden', 'missed')),
        *map(median, ('most_missed', 'replaced')),
      ]
    )
  head = {
    'case': '', 'quality': '.4f', 'M words/s': '.3f', 'CPU us': '.2f',
    'moved': '.3f', 'bytes/word': ',.0f', 'hidden': '.2f', 'missed': '.2f',
    'most': ',.0f', 'replaced': '.0f',
  }  # fmt: skip
  return experiment.table(head, rows)


def main() -> None:
  """Runs all cases and prints the table."""
  parser = experiment.parser(__doc__)
  experiment.add_run_flags(parser)
  add = parser.add_argument
  add('--seeds', type=experiment.count, default=1)
  add('--cases', type=lambda x: x.split(','), default=_CASES)
  args = experiment.parse(parser)
  results = experiment.Results('workers', args, ('text', 'epochs'))
  names, seeds = ['one', *args.cases], range(1, args.seeds + 1)
  measure = functools.partial(run, args)
  experiment.add_runs(results, results.found, names, seeds, measure)
  results.finish(table(results.found))


if __name__ == '__main__':
  experiment.main(main)
