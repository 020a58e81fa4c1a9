r"""Edges per second of models of edges, and a graph beyond memory.

  python -m experiments.edges speed
  python -m experiments.edges disk --nodes 20000000 --edges 20000000 --dim 64

Both train on a random graph whose degrees have a long tail. An edge counts
once, as in PyTorch-BigGraph, whatever its negatives: 100 on each side. Those of
a CPU-second are of two epochs more, and hold on a machine that others use. What
is printed comes from report.json; the peak of memory of `disk` is that of
training, before vectors are exported.
"""

import argparse
import json
import pathlib
import tempfile
import time

import numpy as np

from jaxemb import main, train
from jaxemb.graphs import graph as graph_lib


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
  if train.run(main.load('graph:relations', settings), workdir):
    raise SystemExit('stopped')
  return json.loads((workdir / 'report.json').read_text())


def speed(args: argparse.Namespace, folder: pathlib.Path) -> None:
  """Edges per second by loss and step, alternating."""
  path = random_graph(args.nodes, args.edges, folder / 'graph')
  fixed = {
    'data.path': path,
    'data.test': '',
    'model.dim': args.dim,
    'model.chunk': args.chunk,
    'model.shared_negatives': max(1, 101 - args.chunk),
    'optimizer.learning_rate': 0.1,
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
  settings = {
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
    'optimizer.learning_rate': 0.1,
  }
  found = run(settings, folder / 'run')
  kept = ('edges_per_sec', 'peak_rss_bytes', 'table_bytes', 'store', 'hosts')
  print(json.dumps({k: found[k] for k in kept}, indent=1))


def _main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('what', choices=['speed', 'disk'])
  parser.add_argument('--nodes', type=int, default=200_000)
  parser.add_argument('--edges', type=int, default=2_000_000)
  parser.add_argument('--dim', type=int, default=100)
  parser.add_argument('--losses', default='softmax')
  parser.add_argument('--steps', default='960,1920')
  parser.add_argument('--chunk', type=int, default=96)
  parser.add_argument('--repeats', type=int, default=3)
  parser.add_argument('--partitions', type=int, default=8)
  parser.add_argument('--room', default='25%')
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    {'speed': speed, 'disk': disk}[args.what](args, pathlib.Path(folder))


if __name__ == '__main__':
  _main()
