"""Workers on shared tables: quality, speed, rows moved, and what kills cost.

  python experiments/workers.py --text=FILE --eval=FILES_AND_FOLDERS
  python experiments/workers.py --model=wide_deep [--data=clicks.csv]
  python experiments/workers.py --model=graphsage [--data=cora.npz]

trains word vectors, or HET's models (Miao et al. 2022) on a file or random
data, in one process and by each of --cases.

Cases of text are STRATEGY:SETTING=VALUE:..., such as
workers:table.staleness=100:table.device_bytes=10% or replicas:mesh.data=4. With
kills=30 so many workers are killed (SIGKILL), evenly over the run, with
shard_kills=10 so many shards, and with coordinator_kills=1 the coordinator: the
run ends with exit code 75 then, and is started again.

With --machines=4 the workers are on so many machines of a Ray cluster, which
are namespaces of this one (machines.py), and with --link_gbits=1 each is behind
a link that takes so much each way.

Cases of other models are 'sync' (one process, as much in a step as one worker
has) or STALENESS:SETTING=VALUE:... of workers whose devices have room for a
tenth of the rows, and which exchange rows after every step, as HET's do; -1 is
without a cache.

  quality   mean of MEN, WordSim-353, SimLex-999, rare words and analogies, or
            of all sets if one is missing; AUC; accuracy
  CPU us    of all programs of the machine, per word while training
  moved     rows that were read and pushed, per row that a round needed (2 = as
            without a cache)
  saved     of the rows that would move if each lookup read and pushed one
  missed    updates by others that a row lacked when it was used
  killed    processes; replaced: workers that were
  lost      updates that, by the log, may be lost, of all; again: words that are
            read again, of all. All words are counted as trained once in an
            epoch, or the run counts as failed.

The random log: in each example every field has a category, p ~ 1 /
rank^exponent, and the log odds of a click are the sum of normal numbers of the
categories and of products of vectors of two fields.

The random graph is a block model with weights of nodes (Karrer and Newman
2011): node i has a weight of rank^-exponent, whatever its community, and an
edge has two ends by weight, both of one community, or with --mixing of any. The
nodes of most edges are learned from, --labelled of all; others are for the
test.
"""

import argparse
import contextlib
import functools
import os
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import experiment
import machines
import numpy as np
import psutil

from jaxemb import errors
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.run import metrics

_TEXT_CASES = [
  'one',
  'workers',
  'workers:table.staleness=10:table.device_bytes=10%',
  'workers:table.staleness=100:table.device_bytes=10%',
  'workers:table.staleness=-1:table.device_bytes=10%',
  'replicas:mesh.data=4',
]
# Settings of a case, and the actors of Ray that they kill.
_KILLED = {
  'kills': 'Worker', 'shard_kills': 'Actor', 'coordinator_kills': 'Coordinator',
}  # fmt: skip
_HET_CASES = ['sync', '-1', '0', '100']
_HIDDEN = 4
_MOST_TEST = 20_000  # nodes


# Data and settings.


def write_log(args: argparse.Namespace, path: pathlib.Path) -> None:
  """Writes the random log, whose last tenth is for the test."""
  rng = np.random.default_rng(0)
  num, shape = args.rows, (args.fields, args.categories)
  chances = np.cumsum(np.arange(1, shape[1] + 1) ** -args.exponent)
  drawn = rng.random((num, shape[0])) * chances[-1]
  ids = np.searchsorted(chances, drawn)
  each, vectors = (
    rng.normal(0, 0.5, shape),
    rng.normal(0, 0.5, (*shape, _HIDDEN)),
  )
  odds = each[np.arange(shape[0]), ids].sum(1) - 1
  for f in range(0, shape[0] - 1, 2):
    odds += np.sum(vectors[f, ids[:, f]] * vectors[f + 1, ids[:, f + 1]], 1)
  clicks = (rng.random(num) < 1 / (1 + np.exp(-odds))).astype(int)
  lines = np.column_stack([clicks, ids])
  names = ','.join(['click', *(f'f{i}' for i in range(shape[0]))])
  np.savetxt(path, lines, '%d', ',', header=names, comments='')


def write_graph(args: argparse.Namespace, path: pathlib.Path) -> None:
  """Writes the random graph, whose labels are communities."""
  rng, num = np.random.default_rng(0), args.nodes
  weights = rng.permutation(np.arange(1, num + 1) ** -float(args.exponent))
  communities = np.arange(num) % args.communities
  order = np.argsort(communities, kind='stable')
  sums = np.concatenate([[0], np.cumsum(weights[order])])
  bounds = np.searchsorted(communities[order], np.arange(args.communities + 1))

  def drawn(low, high):
    places = np.searchsorted(sums, low + rng.random(len(low)) * (high - low))
    return order[np.clip(places - 1, 0, num - 1)]

  zeros = np.zeros(args.edges - num)
  firsts = np.concatenate([np.arange(num), drawn(zeros, zeros + sums[-1])])
  own = communities[firsts]
  low, high = sums[bounds[own]], sums[bounds[own + 1]]
  is_any = rng.random(len(own)) < args.mixing
  seconds = drawn(np.where(is_any, 0, low), np.where(is_any, sums[-1], high))
  labels = labels_lib.Labels(communities)
  graph = graph_lib.from_edges(firsts, seconds, num, labels=labels)
  nodes = np.argsort(-np.diff(graph.offsets), kind='stable').astype(np.int32)
  num_train = int(args.labelled * num)
  test = rng.permutation(nodes[num_train:])[:_MOST_TEST]
  splits = {'train': np.sort(nodes[:num_train]), 'test': np.sort(test)}
  graph_lib.save(graph._replace(splits=splits), path)


def het_settings(args: argparse.Namespace, case: str) -> dict[str, Any]:
  """The settings of a case of clicks or nodes, as HET has them."""
  name, *more = case.split(':')
  settings = {
    'train.epochs': args.epochs, 'train.batch_examples': args.batch_examples,
    'model.dim': args.dim, 'eval.every_epochs': 0, 'train.patience': 0,
    'optimizer.plateau_factor': 1, 'mesh.data': 1,
    'optimizer.learning_rate': args.learning_rate,
    'optimizer.final_learning_rate': args.learning_rate,
    'optimizer.name': args.optimizer, 'optimizer.dense': args.dense,
    'optimizer.dense_learning_rate': args.dense_learning_rate,
  }  # fmt: skip
  if args.model == 'graphsage':
    # Depth and width of 2, as in HET; nodes are known by their rows alone.
    settings |= {
      'model.inputs': 'rows', 'data.fanouts': '2,2', 'model.hidden': '16',
      'data.train_per_class': 0, 'data.valid': '0.1', 'data.test': '1000',
    }  # fmt: skip
  else:
    settings |= {
      'model.name': args.model, 'model.hidden': '64,32',
      'data.test': 'last:0.1',
      'data.valid': '', 'data.min_count': 1,
      'data.columns': ','.join(
        ['label:click', *(f'category:f{i}' for i in range(args.fields))]
      ),
      'data.format': 'csv', 'optimizer.decay': 0, 'optimizer.dense_decay': 0,
    }  # fmt: skip
  if name != 'sync':
    settings |= {
      'strategy.name': 'workers', 'strategy.num_workers': args.workers,
      'strategy.sync_every': args.batch_examples, 'table.staleness': name,
      'table.device_bytes': '10%', 'mesh.data': 0,
    }  # fmt: skip
  settings |= dict(x.split('=', 1) for x in more)
  if settings.get('strategy.pace') == 'bsp':  # a step of all
    settings['strategy.sync_every'] = 0
    settings['train.batch_examples'] = args.workers * args.batch_examples
  return settings


def text_settings(case: str) -> tuple[dict[str, str], dict[str, int]]:
  """The settings of a case of text, and how many of what are killed."""
  strategy, *more = case.split(':')
  settings = {'train.threads': '1', 'strategy.name': strategy}
  if strategy == 'one':
    settings |= {'strategy.name': 'replicas', 'mesh.data': '1'}
  settings |= dict(x.split('=', 1) for x in more)
  return settings, {k: int(settings.pop(k, 0)) for k in _KILLED}


# Runs.


def _processes(name: str, above: psutil.Process) -> list[psutil.Process]:
  """Those of Ray that run an actor of a class, below a process."""
  found = []
  for one in above.children(recursive=True):
    with contextlib.suppress(psutil.NoSuchProcess):
      has_ended = one.status() == psutil.STATUS_ZOMBIE
      if not has_ended and one.name().startswith(f'ray::{name}'):
        found.append(one)
  return found


def _kills(numbers: Mapping[str, int], epochs: int) -> list[tuple[float, str]]:
  """Returns when to kill what, by epoch; each kind evenly over the run."""
  return sorted(
    (epochs * (i + 0.5) / num, _KILLED[name])
    for name, num in numbers.items()
    for i in range(num)
  )


def _kill(
  process: subprocess.Popen, path: pathlib.Path, epoch: float, name: str
) -> bool:
  """Kills an actor of a run once it has come so far; False if it ended."""
  done, processes, above = 0.0, [], psutil.Process()
  while done < epoch or not processes:
    if process.poll() is not None:
      return False
    time.sleep(0.05)
    if records := metrics.read(path):
      done = records[-1].get('epoch', 0.0)
    if done >= epoch:
      processes = _processes(name, above)
  # The one that has run longest: all workers, one after the other.
  os.kill(min(processes, key=lambda x: x.create_time()).pid, signal.SIGKILL)
  return True


def _train(
  args: argparse.Namespace,
  workdir: pathlib.Path,
  settings: Mapping[str, Any],
  kills: list[tuple[float, str]],
) -> None:
  """Trains, and kills what is to be killed; starts again what was stopped."""
  kills, log = list(kills), workdir.with_suffix('.log')
  command, code = experiment.training_command(args, workdir, settings), 75
  with contextlib.ExitStack() as stack:
    environment = None
    if args.machines and settings.get('strategy.name') == 'workers':
      cluster = stack.enter_context(
        machines.Cluster(
          args.machines,
          workdir.parent / 'ray',
          link_gbits=args.link_gbits,
          num_cpus=-(-args.workers // args.machines),
        )
      )
      command = cluster.command(0, command)
      environment = os.environ | cluster.environment
    while code == 75:
      with open(log, 'w') as file:
        process = subprocess.Popen(
          command, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        may_stop = False
        while kills and not may_stop:
          if not _kill(process, workdir / 'metrics.jsonl', *kills[0]):
            break
          may_stop = kills.pop(0)[1] == 'Coordinator'
        code = process.wait()
      if code and not (may_stop and code == 75):
        line = log.read_text().splitlines()[-1:]
        raise errors.UserError(f'the run has failed: {line}')
  if kills:
    raise errors.UserError(f'the run ended before {len(kills)} kills')


def _losses(workdir: pathlib.Path, epochs: int) -> dict[str, float]:
  """Returns what kills have cost, by the log; checks that all was trained."""
  report = experiment.read_report(workdir)
  words = report['corpus_words'] * epochs
  trained = metrics.read(workdir / 'metrics.jsonl')[-1]['words']
  if trained != words:
    raise AssertionError(f'{trained:,} of {words:,} words were trained')
  log = (workdir / 'log.txt').read_text()

  def total(pattern):
    return sum(int(x.replace(',', '')) for x in re.findall(pattern, log))

  lost = total(r'([\d,]+) updates of [^:;]* are lost')
  return {
    'lost': lost / report['store']['updates_pushed'],
    'again': total(r'started again; ([\d,]+)') / words,
  }


def run(
  args: argparse.Namespace, case: str, seed: int, folder: pathlib.Path
) -> dict[str, Any]:
  """Trains and evaluates a case."""
  workdir, kills = folder / 'run', []
  if args.model:
    settings = {'data.path': args.data, 'seed': seed}
    settings |= het_settings(args, case)
  else:
    settings, numbers = text_settings(case)
    kills = _kills(numbers, args.epochs)
    settings = experiment.run_settings(args, seed) | settings
  _train(args, workdir, settings, kills)
  report = experiment.read_report(workdir)
  scores = {k: x['score'] for k, x in report['evaluation'].items()}
  if args.model:
    quality = scores['test']
  else:
    quality = experiment.mean_of_five(scores)
    if quality is None:
      quality = statistics.mean(x for x in scores.values() if x is not None)
  busy = report['hosts'][0]['mean_host_busy_cores'] * report['train_secs']
  per_sec = report['examples_per_sec' if args.model else 'words_per_sec']
  units = per_sec * report['train_secs']
  found = {
    'quality': quality,
    'units_per_sec': per_sec,
    'busy_secs_per_unit': busy / units,
    'commit': experiment.commit(),
    'date': experiment.today(),
  }
  if 'workers' in report:
    store, workers = report['store'], report['workers']
    moved = store['rows_fetched'] + store['rows_pushed']
    sent = store['bytes_sent'] + store['bytes_received']
    found |= {
      'read': store['rows_fetched'] / store['rows_needed'],
      'moved': moved / store['rows_needed'],
      # All updates are pushed in the end, and each is a lookup.
      'saved': 1 - moved / (2 * store['updates_pushed']),
      'bytes_per_unit': sent / units,
      'missed': workers['mean_missed_updates'],
    }
  if kills:
    found |= {
      'killed': len(kills),
      'replaced': report['workers']['replaced'],
      **_losses(workdir, args.epochs),
    }
  return found


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
  """A line for each case, of medians over seeds."""
  head = {
    'quality': '.4f', 'units_per_sec': ',.0f', 'busy_secs_per_unit': '.2g',
    'read': '.3f', 'moved': '.3f', 'saved': '.1%', 'bytes_per_unit': ',.0f',
    'missed': '.2f', 'killed': '.0f', 'replaced': '.0f', 'lost': '.3%',
    'again': '.2%',
  }  # fmt: skip
  rows = []
  for name, runs in found.items():
    row = [name]
    for key in head:
      values = [x[key] for x in runs.values() if key in x]
      row.append(statistics.median(values) if values else None)
    rows.append(row)
  return experiment.table({'case': '', **head}, rows)


def add_data_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of random data, and of who reads it."""
  add, count = parser.add_argument, experiment.count
  add('--model', default='', help='graphsage, or one of clicks')
  add('--workers', type=count, default=4)
  add('--rows', type=count, default=200_000)
  add('--fields', type=count, default=8)
  add('--categories', type=count, default=10_000, help='of a field')
  add('--exponent', type=float, default=1.2)
  add('--nodes', type=count, default=200_000)
  add('--edges', type=count, default=2_000_000)
  add('--communities', type=count, default=40)
  add('--mixing', type=float, default=0.2)
  add('--labelled', type=float, default=0.1, help='share that is learned from')
  add('--batch_examples', type=count, default=128)


def main() -> None:
  """Runs all cases and prints the table."""
  parser = experiment.parser(__doc__)
  experiment.add_run_flags(parser, epochs=0)
  add, count = parser.add_argument, experiment.count
  add('--seeds', type=count, default=1)
  add('--cases', type=lambda x: x.split(','), help='default: see above')
  add_data_flags(parser)
  add('--data', default='', help="of the model; '' = random")
  add('--dim', type=count, default=16)
  add('--optimizer', default='sgd', help='of rows')
  add('--learning_rate', type=float, default=1.0)
  add('--dense', default='sgd')
  add('--dense_learning_rate', type=float, default=0.05)
  add('--machines', type=int, default=0, help='0 = this one')
  add('--link_gbits', type=float, default=None)
  args = experiment.parse(parser)
  if args.machines and (problem := machines.missing()):
    parser.error(f'--machines={args.machines}: {problem}')
  if args.model:
    args.config = 'graphsage' if args.model == 'graphsage' else 'ctr'
  args.epochs = args.epochs or (1 if args.model else 5)
  cases = args.cases or (_HET_CASES if args.model else _TEXT_CASES)
  # What stays the same where results are added to a file.
  same = sorted(vars(args).keys() - {'output', 'cases', 'seeds', 'eval'})
  results = experiment.Results('workers', args, same)
  with tempfile.TemporaryDirectory() as folder:
    if args.model and not args.data:
      args.data = str(pathlib.Path(folder, 'log.csv'))
      write = write_graph if args.model == 'graphsage' else write_log
      write(args, pathlib.Path(args.data))
    experiment.add_runs(
      results,
      results.found,
      cases,
      seeds=range(1, args.seeds + 1),
      run=functools.partial(run, args),
    )
  results.finish(table(results.found))


if __name__ == '__main__':
  experiment.main(main)
