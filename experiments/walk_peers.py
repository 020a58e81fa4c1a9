"""node2vec's walks of other packages, for graphs.py.

  python experiments/walk_peers.py PACKAGE GRAPH.npz LENGTH P Q THREADS

PACKAGE is pecanpy or node2vec; the graph has `indptr` and `indices`. It prints
the seconds that it took until it could walk, by wall clock and by processor.
Then each line of its input asks for a number of walks, and it prints how many
steps it made and their seconds. This process imports nothing of jaxemb.

PecanPy's walks are timed before their nodes become strings, on random nodes.
node2vec walks from every node, whatever is asked for, and on one thread: its
others are processes, to each of which it sends the whole graph.
"""

import sys
import time

import numpy as np


def _pecanpy(indptr, indices, length, p, q, threads):
  import numba
  from numba_progress import ProgressBar
  from pecanpy import pecanpy

  numba.set_num_threads(threads)
  graph = pecanpy.SparseOTF(p, q, threads)
  graph.set_node_ids(None, True, len(indptr) - 1)
  graph.indptr, graph.indices = indptr.astype(np.uint32), indices
  graph.data = np.ones(len(indices), np.float32)
  functions = graph.get_has_nbrs(), graph.get_move_forward()
  rng = np.random.default_rng(0)

  def walk(number):
    starts = rng.integers(0, len(indptr) - 1, number).astype(np.uint32)
    with ProgressBar(total=number, disable=True) as progress:
      made = graph._random_walks(
        number, length - 1, 1, starts, *functions, progress
      )
    return int(made[:, -1].sum())

  walk(threads)  # compiles
  return walk


def _node2vec(indptr, indices, length, p, q, threads):
  import networkx as nx
  from node2vec import node2vec, parallel

  assert threads == 1
  graph = nx.Graph()
  owners = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
  graph.add_edges_from(zip(owners.tolist(), indices.tolist(), strict=True))
  node2vec.Node2Vec._generate_walks = lambda self: []  # those asked for
  made = node2vec.Node2Vec(graph, p=p, q=q, quiet=True)

  def walk(number):
    keys = made.NUM_WALKS_KEY, made.WALK_LENGTH_KEY, made.NEIGHBORS_KEY
    keys += made.PROBABILITIES_KEY, made.FIRST_TRAVEL_KEY
    walks = parallel.parallel_generate_walks(
      made.d_graph, length, 1, 0, {}, *keys, quiet=True
    )
    return sum(map(len, walks))

  return walk


def main(package, graph, length, p, q, threads):
  """Serves walks."""
  makers = {'pecanpy': _pecanpy, 'node2vec': _node2vec}
  with np.load(graph) as arrays:
    indptr, indices = arrays['indptr'], arrays['indices'].astype(np.uint32)
  times = time.perf_counter, time.process_time
  begun = [now() for now in times]
  walk = makers[package](
    indptr, indices, int(length), float(p), float(q), int(threads)
  )
  print(*(now() - x for now, x in zip(times, begun, strict=True)), flush=True)
  for line in sys.stdin:
    begun = [now() for now in times]
    steps = walk(int(line))
    secs = (now() - x for now, x in zip(times, begun, strict=True))
    print(steps, *secs, flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
