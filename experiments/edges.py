r"""Edges per second of models of edges, a graph beyond memory, and relations.

  python -m experiments.edges speed
  python -m experiments.edges disk --nodes 20000000 --edges 20000000 --dim 64
  python -m experiments.edges relations --triples wn18rr --seeds 1,2,3

`relations` ranks held-out edges, filtered, by each operator: of the folder of a
knowledge graph, such as WN18RR's, or else of a planted graph. Its nodes
are the points of a grid whose edges meet, and each relation a step on it, so
that nothing but the nodes and relations that are given tells a tail, and all
of it can be known: an operator that cannot tell a step from the one back ranks
tails second as often as first.

The others train on a random graph whose degrees have a long tail. An edge
counts once, as in PyTorch-BigGraph, whatever its negatives: 100 on each side.
Those of a CPU-second are of two epochs more, and hold on a machine that others
use. What is printed comes from report.json; the peak of memory of `disk` is
that of training, before vectors are exported.
"""

import argparse
import json
import pathlib
import tempfile
import time

import numpy as np

from jaxemb import config as config_lib
from jaxemb.graphs import graph as graph_lib
from jaxemb.run import lifecycle as train

# As PyTorch-BigGraph's: products of vectors, and squares of whole rows.
_PLAIN = {
  'model.operator': 'none',
  'model.n3': 0.0,
  'optimizer.name': 'adagrad',
  'optimizer.learning_rate': 0.1,
}

# What operators but complex need on WN18RR, by its validation split.
_TUNED = {
  'complex': {'model.n3': 0.1, 'train.epochs': 40},
  'diagonal': {'model.n3': 0.1, 'train.epochs': 60},
  'rotation': {
    'model.score': 'distance',
    'model.n3': 1.0,
    'model.dim': 200,
    'train.epochs': 40,
  },
  'translation': {
    'model.temperature': 0.15,
    'model.n3': 0.0,
    'model.dim': 128,
    'train.epochs': 40,
  },
}


def random_graph(num_nodes: int, num_edges: int, folder: pathlib.Path) -> str:
  """A folder with a graph; each node in turn chooses a popular one."""
  chunk = 1 << 22

  def chunks():
    rng = np.random.default_rng(0)
    for first in range(0, num_edges, chunk):
      size = min(chunk, num_edges - first)
      sources = np.arange(first, first + size) % num_nodes
      targets = (rng.random(size) ** 2 * num_nodes).astype(np.int64)
      yield graph_lib.Edges(sources, targets)

  graph = graph_lib.build(chunks, num_nodes, False, folder)
  graph_lib.save(graph, folder)
  return str(folder)


def run(settings: dict, workdir: pathlib.Path) -> dict:
  """The report of a run."""
  if train.run(config_lib.load('graph:relations', settings), workdir):
    raise SystemExit('stopped')
  return json.loads((workdir / 'report.json').read_text())


def write_grid(path: pathlib.Path, size: int = 30) -> None:
  """Triples of a planted graph of size * size nodes."""
  steps = {
    'east': (1, 0), 'far east': (2, 0), 'farther east': (3, 0),
    'north': (0, 1), 'far north': (0, 2), 'farther north': (0, 3),
    'northeast': (1, 1), 'southeast': (1, -1), 'knight': (2, 1),
  }  # fmt: skip
  with path.open('w') as file:
    for name, (right, up) in steps.items():
      for x in range(size):
        for y in range(size):
          to = (x + right) % size, (y + up) % size
          file.write(f'/m/{x}_{y}\t{name}\t/m/{to[0]}_{to[1]}\n')


def relations(args: argparse.Namespace, folder: pathlib.Path) -> None:
  """Ranks of held-out edges by operator and seed."""
  fixed = {'data.path': args.triples, 'data.test': ''}
  if not args.triples:
    write_grid(folder / 'train.txt')
    fixed = {'data.path': str(folder / 'train.txt'), 'data.test': '0.1'}
  for operator in args.operators.split(','):
    for seed in map(int, args.seeds.split(',')):
      given = {'model.operator': operator, 'seed': seed}
      workdir = folder / f'{operator}-{seed}'
      report = run(fixed | _TUNED[operator] | given, workdir)
      print(f'{operator} {seed}: {report["total_secs"]:.0f} s')
      for name, found in report['evaluation'].items():
        kept = [x for x in found if 'mrr' in x or 'hits@' in x]
        scores = ', '.join(f'{k} {found[k]:.4f}' for k in kept)
        print(f'  {name}: {scores}', flush=True)


def speed(args: argparse.Namespace, folder: pathlib.Path) -> None:
  """Edges per second by loss and step, alternating."""
  path = random_graph(args.nodes, args.edges, folder / 'graph')
  fixed = _PLAIN | {
    'data.path': path,
    'data.test': '',
    'model.dim': args.dim,
    'model.chunk': args.chunk,
    'model.shared_negatives': max(1, 101 - args.chunk),
  }
  rates: dict[str, list[tuple[float, float]]] = {}
  for i in range(args.repeats):
    for loss in args.losses.split(','):
      for size in map(int, args.steps.split(',')):
        given = {'model.loss': loss, 'train.batch_examples': size}
        secs = []
        for epochs in (1, 1, 3):
          start = time.process_time()
          more = {'train.epochs': epochs}
          name = f'{loss}-{size}-{i}-{len(secs)}'
          found = run(fixed | given | more, folder / name)
          secs.append(time.process_time() - start)
        per_cpu = 2 * found['corpus_edges'] / (secs[2] - secs[1])
        each = found['edges_per_sec'], per_cpu
        rates.setdefault(f'{loss} {size}', []).append(each)
  for name, x in rates.items():
    rate, per_cpu = np.median(x, 0)
    print(
      f'{name}: {rate:,.0f} edges/s, {per_cpu:,.0f} per CPU-second, '
      f'medians of {len(x)}'
    )


def disk(args: argparse.Namespace, folder: pathlib.Path) -> None:
  """Peak memory, and rows that move, of tables in files."""
  path = random_graph(args.nodes, args.edges, folder / 'graph')
  settings = _PLAIN | {
    'data.path': path,
    'data.test': '',
    'data.partitions': args.partitions,
    'model.dim': args.dim,
    'table.store': 'disk',
    'table.device_bytes': args.room,
    'table.evict': 'lru',
    'train.epochs': 1,
    'train.batch_examples': 8192,
    'train.checkpoint_every_secs': 1e6,
  }
  found = run(settings, folder / 'run')
  kept = ('edges_per_sec', 'peak_rss_bytes', 'table_bytes', 'store', 'hosts')
  print(json.dumps({k: found[k] for k in kept}, indent=1))


def _main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('what', choices=['speed', 'disk', 'relations'])
  parser.add_argument('--nodes', type=int, default=200_000)
  parser.add_argument('--edges', type=int, default=2_000_000)
  parser.add_argument('--dim', type=int, default=100)
  parser.add_argument('--losses', default='softmax')
  parser.add_argument('--steps', default='960,1920')
  parser.add_argument('--chunk', type=int, default=96)
  parser.add_argument('--repeats', type=int, default=3)
  parser.add_argument('--partitions', type=int, default=8)
  parser.add_argument('--room', default='25%')
  parser.add_argument('--triples', default='', help="'' = a planted graph")
  parser.add_argument('--seeds', default='1')
  parser.add_argument('--operators', default=','.join(_TUNED))
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    what = {'speed': speed, 'disk': disk, 'relations': relations}
    what[args.what](args, pathlib.Path(folder))


if __name__ == '__main__':
  _main()
