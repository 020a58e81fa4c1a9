"""HET's models by workers: quality and rows moved (docs/workers.md).

  python experiments/het_models.py
  python experiments/het_models.py --data=clicks.csv --model=dcn
  python experiments/het_models.py --model=graphsage
  python experiments/het_models.py --model=graphsage --data=cora.npz

trains Wide&Deep, or another model of clicks, on a random log, or on a file; or
GraphSAGE with a row for each node, on a random graph, or on a file. Each case
is one process ('sync', as much in a step as one worker has), or
STALENESS:SETTING=VALUE:... of workers whose devices have room for a tenth of
the rows, and which exchange rows after every step, as HET's do; -1 is without a
cache.

  moved    rows that were read and pushed, per row that a step needed
           (2 = as without a cache)
  saved    the share of it that a case need not move against a row read and
           one pushed for each lookup, and against s = -1 and s = 0, where
           these are among the cases

The random log: in each example every field has a category, p ~ 1 /
rank^exponent, and the log odds of a click are the sum of normal numbers of the
categories and of products of vectors of two fields.

The random graph is a block model with weights of nodes (Karrer and Newman
2011): node i has a weight of rank^-exponent, whatever its community, and an
edge has two ends by weight, both of one community, or with --mixing of any.
Every node has an edge that begins there. As in ogbn-products, nodes of most
edges are learned from, --labelled of all; others are for the test.
"""

import argparse
import functools
import pathlib
import statistics
import tempfile
from collections.abc import Mapping
from typing import Any

import experiment
import numpy as np

from jaxemb.graphs import graph as graph_lib

_CASES = ['sync', '-1', '0', '100']
_HIDDEN = 4
_MOST_TEST = 20_000  # nodes


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
  graph = graph_lib.from_edges(firsts, seconds, num, labels=communities)
  nodes = np.argsort(-np.diff(graph.offsets), kind='stable').astype(np.int32)
  num_train = int(args.labelled * num)
  test = rng.permutation(nodes[num_train:])[:_MOST_TEST]
  splits = {'train': np.sort(nodes[:num_train]), 'test': np.sort(test)}
  graph_lib.save(graph._replace(splits=splits), path)


def settings_of(args: argparse.Namespace, case: str) -> dict[str, Any]:
  """Settings of a case."""
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
      'data.valid': '', 'data.label': 'click', 'data.min_count': 1,
      'data.categorical': ','.join(f'f{i}' for i in range(args.fields)),
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


def run(
  args: argparse.Namespace,
  data: str,
  name: str,
  seed: int,
  folder: pathlib.Path,
) -> dict[str, Any]:
  """Trains and evaluates a case."""
  settings = {'data.path': data, 'seed': seed} | settings_of(args, name)
  report = experiment.train(args, folder / 'run', settings)
  test = report['evaluation']['test']
  found = {
    'quality': test['score'],
    'log_loss': test['log_loss'],
    'train_secs': report['train_secs'],
    'commit': experiment.commit(),
    'date': experiment.today(),
  }
  if 'workers' in report:
    store, needed = report['store'], report['store']['rows_needed']
    moved = store['rows_fetched'] + store['rows_pushed']
    # All updates are pushed in the end, and each is a lookup.
    lookups = store['updates_pushed']
    found |= {
      'read': store['rows_fetched'] / needed,
      'pushed': store['rows_pushed'] / needed,
      'moved': moved / needed,
      'saved_of_lookups': 1 - moved / (2 * lookups),
      'missed': report['workers']['mean_missed_updates'],
    }
  return found


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
  """A line for each case, of means over seeds."""

  def mean(name, key):
    values = [x[key] for x in found.get(name, {}).values() if key in x]
    return statistics.mean(values) if values else None

  rows, keys = [], (
    'quality', 'log_loss', 'read', 'pushed', 'moved', 'missed',
    'saved_of_lookups',
  )  # fmt: skip
  for name in found:
    row, tail = [mean(name, key) for key in keys], name.partition(':')[2]
    for base in ('-1', '0'):
      before = mean(f'{base}:{tail}'.rstrip(':'), 'moved')
      row.append(row[4] and before and 1 - row[4] / before)
    rows.append([name, *row])
  head = {
    'case': '', 'quality': '.4f', 'log loss': '.4f', 'read': '.3f',
    'pushed': '.3f', 'moved': '.3f', 'missed': '.2f', 'of lookups': '.1%',
    'of -1': '.1%', 'of 0': '.1%',
  }  # fmt: skip
  return experiment.table(head, rows)


def main() -> None:
  """Runs all cases and prints the table."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--data', default='', help="'' = a random log")
  add('--model', default='wide_deep')
  add('--seeds', type=experiment.count, default=1)
  add('--workers', type=experiment.count, default=4)
  add('--rows', type=experiment.count, default=200_000)
  add('--fields', type=experiment.count, default=8)
  add('--categories', type=experiment.count, default=10_000, help='of a field')
  add('--exponent', type=float, default=1.2)
  add('--nodes', type=experiment.count, default=200_000)
  add('--edges', type=experiment.count, default=2_000_000)
  add('--communities', type=experiment.count, default=40)
  add('--mixing', type=float, default=0.2)
  add('--labelled', type=float, default=0.1, help='share that is learned from')
  add('--epochs', type=experiment.count, default=1)
  add('--dim', type=experiment.count, default=16)
  add('--batch_examples', type=experiment.count, default=128)
  add('--optimizer', default='sgd', help='of rows')
  add('--learning_rate', type=float, default=1.0)
  add('--dense', default='sgd')
  add('--dense_learning_rate', type=float, default=0.05)
  add('--cases', type=lambda x: x.split(','), default=_CASES)
  args = experiment.parse(parser)
  args.config = 'graphsage' if args.model == 'graphsage' else 'ctr'
  keys = (
    'model', 'data', 'rows', 'fields', 'categories', 'exponent', 'epochs',
    'dim', 'batch_examples', 'optimizer', 'learning_rate', 'workers',
    'dense', 'dense_learning_rate', 'nodes', 'edges', 'communities', 'mixing',
    'labelled',
  )  # fmt: skip
  results = experiment.Results('het_models', args, keys)
  seeds = range(1, args.seeds + 1)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(args.data or pathlib.Path(folder, 'log.csv'))
    if not args.data:
      is_graph = args.model == 'graphsage'
      (write_graph if is_graph else write_log)(args, path)
    measure = functools.partial(run, args, str(path))
    experiment.add_runs(results, results.found, args.cases, seeds, measure)
  results.finish(table(results.found))


if __name__ == '__main__':
  experiment.main(main)
