r"""Node embeddings beside gensim on the same walks, and the speed of walks.

  python experiments/graphs.py labels --graph=blogcatalog.mat
  python experiments/graphs.py walks

labels  DeepWalk and node2vec, each a run of jaxemb from the file to the report,
        with macro and micro F1 of half of the labels. gensim trains on the same
        walks, written to a file first, with the same dimensions, windows,
        negatives and epochs; its vectors are scored by the same classifiers.
walks   steps/s on a random graph of --edges edges: by wall clock, and by
        seconds of the processor, which others on the machine do not take.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

import experiment
import numpy as np

from jaxemb import config as config_lib
from jaxemb import main as main_lib
from jaxemb.data import base
from jaxemb.evaluation import nodes
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import loader, walks
from jaxemb.storage import word2vec_format

_GENSIM = pathlib.Path(__file__).with_name('train_gensim.py')


def main() -> None:
  """Measures, and writes a file of results."""
  parser = experiment.parser(__doc__)
  parser.add_argument('what', choices=('labels', 'walks'))
  parser.add_argument('--graph', default='', help='with labels of nodes')
  parser.add_argument('--variants', default='deepwalk,node2vec')
  parser.add_argument('--no_gensim', action='store_true')
  parser.add_argument('--edges', type=int, default=10_000_000)
  parser.add_argument('--nodes', type=int, default=1_000_000)
  parser.add_argument('--repeats', type=int, default=5)
  args = parser.parse_args()
  found = _walks(args) if args.what == 'walks' else _labels(args)
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
    'node2vec p=.5 q=2': (plain, 0.5, 2),
  }
  found = {k: [] for k in kinds}
  makers = {
    k: walks.Walker.of(graph, 80, p, q, 1, num_threads=2)
    for k, (graph, p, q) in kinds.items()
  }
  for repeat in range(args.repeats + 1):
    for kind, maker in makers.items():
      begun, cpu = time.perf_counter(), time.process_time()
      made = maker.walks(np.arange(50_000) + 50_000 * repeat)
      secs = time.perf_counter() - begun, time.process_time() - cpu
      if repeat:
        found[kind].append([made.size / x / 1e6 for x in secs])
  return {
    'edges': plain.num_edges,
    'million_steps_per_sec': {
      k: dict(zip(('wall', 'processor'), np.median(x, 0).tolist(), strict=True))
      for k, x in found.items()
    },
  }


def _labels(args) -> dict:
  found = {}
  for variant in args.variants.split(','):
    with tempfile.TemporaryDirectory() as folder:
      found[variant] = _beside_gensim(variant, args, pathlib.Path(folder))
      print(variant, found[variant], flush=True)
  return found


def _beside_gensim(variant, args, folder) -> dict:
  config = main_lib.load(f'graph:{variant}', {'data.path': args.graph})
  begun = time.perf_counter()
  subprocess.run(
    [
      sys.executable, '-m', 'jaxemb.main', f'--config=graph:{variant}',
      f'--config.data.path={args.graph}', f'--workdir={folder / "run"}',
    ],
    check=True,
  )  # fmt: skip
  secs = time.perf_counter() - begun
  report = json.loads((folder / 'run' / 'report.json').read_text())
  ours = {
    **report['evaluation']['labels'],
    'words_per_sec': report['words_per_sec'],
    'whole_secs': secs,
  }
  if args.no_gensim:
    return {'jaxemb': ours}
  m, epochs = config.model, config.train.epochs
  source = _source(config, folder)
  begun = time.perf_counter()
  _write(source, folder / 'walks.txt')
  options = {
    'vector_size': m.dim, 'window': m.window, 'negative': m.negatives, 'sg': 1,
    'min_count': 1, 'sample': 0, 'workers': 2, 'epochs': epochs,
  }  # fmt: skip
  command = folder / 'walks.txt', folder / 'gensim.bin', json.dumps(options)
  subprocess.run([sys.executable, str(_GENSIM), *map(str, command)], check=True)
  secs = time.perf_counter() - begun
  keys, vectors, *_ = word2vec_format.read(folder / 'gensim.bin')
  places = {x: i for i, x in enumerate(keys)}
  vectors = np.asarray(vectors)[[places[x] for x in source.keys]]
  labels = graph_lib.label_matrix(source.graph, source.nodes)
  timed = json.loads((folder / 'gensim.json').read_text())
  theirs = {
    **nodes.evaluate(vectors, labels)['labels'],
    'words_per_sec': source.units_per_epoch * epochs / timed['train_secs'],
    'whole_secs': secs,
  }
  return {'jaxemb': ours, 'gensim': theirs}


def _source(config, cache) -> loader.Walks:
  settings = config_lib.check(config).data.to_dict()
  args = settings['path'], config.seed, 1, 1, 1024, config.model.window, 16, 1
  return loader.Walks(
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
