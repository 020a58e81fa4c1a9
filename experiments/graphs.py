r"""Node embeddings beside gensim and packages for walks.

  python experiments/graphs.py labels --graph=blogcatalog.mat
  python experiments/graphs.py whole --graph=blogcatalog.mat --repeats=1
  python experiments/graphs.py walks --peer_python=/path/to/python

labels  DeepWalk and node2vec, each a run of jaxemb from the file to the report,
        with macro and micro F1 of half of the labels. gensim trains on the same
        walks, written to a file first, with the same dimensions, windows,
        negatives and epochs; its vectors are scored by the same classifiers.
whole   Whole processes in turns, from the graph in Matlab's form to vectors:
        jaxemb's DeepWalk, which also evaluates and writes a report, and
        deepwalk_gensim.py, which makes its walks in Python.
walks   steps/s on a random graph of --edges edges; of a peer and of jaxemb in
        turns. node2vec, which has a table for every pair of edges, walks with
        one thread on --table_nodes nodes of as many edges each.

Seconds are by wall clock, and of the processor, which others on the machine do
not take. gensim, PecanPy and node2vec run in --peer_python; without it, gensim
runs here, and the others do not.
"""

import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import experiment
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.data import base
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import node_classification as nodes
from jaxemb.graphs import walk_source, walks
from jaxemb.storage import word2vec_format

_GENSIM, _WHOLE_GENSIM, _PEERS = (
  pathlib.Path(__file__).with_name(f'{name}.py')
  for name in ('train_gensim', 'deepwalk_gensim', 'walk_peers')
)
_P, _Q, _LENGTH = 0.5, 2.0, 80  # of walks that are timed


def main() -> None:
  """Measures, and writes a file of results."""
  parser = experiment.parser(__doc__)
  parser.add_argument('what', choices=('labels', 'whole', 'walks'))
  parser.add_argument('--graph', default='', help='with labels of nodes')
  parser.add_argument('--variants', default='deepwalk,node2vec')
  parser.add_argument('--no_gensim', action='store_true')
  parser.add_argument('--edges', type=int, default=10_000_000)
  parser.add_argument('--nodes', type=int, default=1_000_000)
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--seed', type=int, default=1, help='of the first repeat')
  experiment.add_names(parser, '--peers', ('pecanpy', 'node2vec'))
  parser.add_argument('--peer_python', default='')
  parser.add_argument('--table_nodes', type=int, default=20_000)
  args = parser.parse_args()
  found = {'labels': _labels, 'whole': _whole, 'walks': _walks}[args.what](args)
  print(json.dumps(found, indent=1))
  if args.output:
    args.output.write_text(json.dumps(found, indent=1) + '\n')


def _walks(args) -> dict:
  rng = np.random.default_rng(0)
  ends = rng.integers(0, args.nodes, (2, args.edges), dtype=np.int32)
  weights = rng.random(args.edges).astype(np.float32)
  plain = graph_lib.from_edges(*ends)
  weighted = graph_lib.from_edges(*ends, weights=weights)
  kinds = {
    'deepwalk': (plain, 1, 1),
    'deepwalk, weights': (weighted, 1, 1),
    'node2vec': (plain, _P, _Q),
  }
  found = {k: [] for k in kinds}
  makers = {
    k: walks.Walker.of(graph, _LENGTH, p, q, 1, num_threads=2)
    for k, (graph, p, q) in kinds.items()
  }
  for repeat in range(args.repeats + 1):
    for kind, maker in makers.items():
      found[kind].append(_timed(maker, 50_000, repeat))
  num_edges = len(ends[0]) // args.nodes * args.table_nodes
  smaller = rng.integers(0, args.table_nodes, (2, num_edges), dtype=np.int32)
  beside = {}
  for peer in args.peers if args.peer_python else ():
    is_small = peer == 'node2vec'
    graph = graph_lib.from_edges(*smaller) if is_small else plain
    beside[peer] = _beside(peer, graph, 1 if is_small else 2, args)
  speeds = {k: _speeds(x) for k, x in found.items()}
  given = {'edges': plain.num_edges, 'p': _P, 'q': _Q, 'length': _LENGTH}
  return {**given, 'million_steps_per_sec': speeds, 'beside': beside}


def _timed(maker, number, repeat):
  """Steps, and their seconds by wall clock and processor, of other walks."""
  begun, cpu = time.perf_counter(), time.process_time()
  made = maker.walks(np.arange(number) + number * repeat)
  return made.size, time.perf_counter() - begun, time.process_time() - cpu


def _speeds(timed):
  """Medians of all but the first, which compiles."""
  steps, *secs = np.array(timed[1:]).T
  speeds = [float(np.median(steps / x / 1e6)) for x in secs]
  return dict(zip(('wall', 'processor'), speeds, strict=True))


def _beside(peer, graph, threads, args) -> dict:
  """node2vec's walks of a package and of jaxemb, in turns on one graph."""
  maker = walks.Walker.of(graph, _LENGTH, _P, _Q, 1, threads)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'graph.npz'
    np.savez(path, indptr=graph.offsets, indices=graph.neighbors)
    flags = peer, path, _LENGTH, _P, _Q, threads
    process = subprocess.Popen(
      [args.peer_python, str(_PEERS), *map(str, flags)],
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def read():
      if not (line := process.stdout.readline()):
        raise errors.UserError(f'{peer} has ended in {args.peer_python}')
      return [float(x) for x in line.split()]

    begun, ours, theirs = read(), [], []
    for repeat in range(args.repeats + 1):
      ours.append(_timed(maker, 50_000, repeat))
      print(10_000, file=process.stdin, flush=True)
      theirs.append(read())
    process.stdin.close()
    process.wait()
  return {
    'nodes': graph.num_nodes, 'edges': graph.num_edges, 'threads': threads,
    'secs_before_walks': dict(zip(('wall', 'processor'), begun, strict=True)),
    'million_steps_per_sec': {'jaxemb': _speeds(ours), peer: _speeds(theirs)},
  }  # fmt: skip


def _spent(command) -> dict:
  """Seconds of a process, by wall clock and of the processor."""
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  begun = time.perf_counter()
  subprocess.run([str(x) for x in command], check=True)
  wall = time.perf_counter() - begun
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu = sum(after[:2]) - sum(before[:2])  # user and system
  return {'whole_secs': wall, 'whole_processor_secs': cpu}


def _whole(args) -> dict:
  found = {'jaxemb': [], 'gensim': []}
  for repeat in range(args.repeats):
    with tempfile.TemporaryDirectory() as folder:
      seed, folder = args.seed + repeat, pathlib.Path(folder)
      found['jaxemb'].append(_ours('deepwalk', args.graph, folder, seed))
      if not args.no_gensim:
        config = config_lib.load('graph:deepwalk', {'data.path': args.graph})
        data, output = config.data, folder / 'gensim.bin'
        options = {'walks': data.walks, 'walk_length': data.walk_length}
        options |= {'seed': seed, **_options(config)}
        command = args.peer_python or sys.executable, _WHOLE_GENSIM, args.graph
        spent = _spent([*command, output, json.dumps(options)])
        scores = _scores(output, _source(config, folder))
        found['gensim'].append({**scores, **spent})
    print(found, flush=True)
  return found


def _labels(args) -> dict:
  found = {}
  for variant in args.variants.split(','):
    with tempfile.TemporaryDirectory() as folder:
      found[variant] = _beside_gensim(variant, args, pathlib.Path(folder))
      print(variant, found[variant], flush=True)
  return found


def _ours(variant, graph, folder, seed) -> dict:
  """A whole run of jaxemb."""
  spent = _spent([
    sys.executable, '-m', 'jaxemb.main', f'--config=graph:{variant}',
    f'--config.data.path={graph}', f'--workdir={folder / "run"}',
    f'--config.seed={seed}',
  ])  # fmt: skip
  report = json.loads((folder / 'run' / 'report.json').read_text())
  speed = {'words_per_sec': report['words_per_sec']}
  return {**report['evaluation']['labels'], **speed, **spent}


def _options(config) -> dict:
  """Arguments of gensim's Word2Vec."""
  m = config.model
  return {
    'vector_size': m.dim, 'window': m.window, 'negative': m.negatives, 'sg': 1,
    'min_count': 1, 'sample': 0, 'workers': 2, 'epochs': config.train.epochs,
  }  # fmt: skip


def _scores(path, source) -> dict:
  """What vectors in a file tell of the labels."""
  keys, vectors, *_ = word2vec_format.read(path)
  places = {x: i for i, x in enumerate(keys)}
  vectors = np.asarray(vectors)[[places[x] for x in source.keys]]
  labels = source.graph.labels.matrix(source.corpus.nodes)
  return nodes.evaluate(vectors, labels)['labels']


def _beside_gensim(variant, args, folder) -> dict:
  ours = _ours(variant, args.graph, folder, args.seed)
  if args.no_gensim:
    return {'jaxemb': ours}
  config = config_lib.load(f'graph:{variant}', {'data.path': args.graph})
  config.seed = args.seed
  source, output = _source(config, folder), folder / 'gensim.bin'
  _write(source, folder / 'walks.txt')
  spent = _spent([
    args.peer_python or sys.executable, _GENSIM, folder / 'walks.txt', output,
    json.dumps(_options(config)),
  ])  # fmt: skip
  timed = json.loads((folder / 'gensim.json').read_text())
  num_words = source.units_per_epoch * config.train.epochs
  speed = {'words_per_sec': num_words / timed['train_secs']}
  theirs = {**_scores(output, source), **speed, **spent}
  return {'jaxemb': ours, 'gensim': theirs}


def _source(config, cache) -> walk_source.Walks:
  settings = config_lib.check(config).data.to_dict()
  args = settings['path'], config.seed, 1, 1, 1024, config.model.window, 16, 1
  return walk_source.Walks(
    base.SourceSpec(*args, settings, base.ALONE, cache, lambda *x: None)
  )


def _write(source, path) -> None:
  """All walks, one a line, in the order in which blocks have them."""
  corpus, keys = source.corpus, np.array(list(source.keys))
  with path.open('w') as file:
    for ids in corpus.read(np.arange(len(corpus.blocks.words))):
      for walk in np.split(ids, np.flatnonzero(ids < 0)):
        if len(walk := walk[walk >= 0]):
          file.write(' '.join(keys[walk]) + '\n')


if __name__ == '__main__':
  main()
