"""Writes small runs as seeds: `python -m tests.fuzz.run_seeds [NAMES]`.

They are stored because training takes longer than many inputs. Once a format
changes, `test_seeds_are_read` fails and this writes them again.
"""

import contextlib
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

from jaxemb import config as config_lib
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.run import lifecycle
from tests.fuzz import folders

FOLDER = pathlib.Path(__file__).parent / 'seeds'
_SMALL = {'mesh.data': 1, 'train.epochs': 1, 'model.dim': 4}
_TEXT = _SMALL | {
  'train.threads': 1, 'data.sample': 0.0, 'data.min_count': 1,
}  # fmt: skip
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
  'run': (
    'wiki',
    _TEXT
    | {
      'data.path': 'text.txt',
      'eval.paths': 'none',
      'data.phrases': '1',
      'data.phrases_score': 'npmi',
      'data.phrases_min_count': 2,
    },
  ),
  'click_model': (
    'ctr:smoke',
    _SMALL
    | {
      'data.path': 'clicks.csv', 'data.min_count': 1, 'data.valid': '0.2',
      'data.test': '0.2', 'model.hidden': '4', 'train.batch_examples': 16,
    },
  ),
  'documents': ('documents:dm', _TEXT | {'data.path': 'documents.csv'}),
  'node_model': (
    'graphsage',
    _SMALL
    | {
      'data.path': 'graph', 'model.inputs': 'features', 'data.valid': '0.2',
      'data.test': '0.2', 'data.fanouts': '2,2', 'train.batch_examples': 4,
      'data.train_per_class': 3,
    },
  ),
}  # fmt: skip
# What nothing reads again, and what is large.
_SKIPPED = (
  r'report\.html|tensorboard|log\.txt|\.lock|projector|serving|vectors\.\w*t|'
  r'vectors\.bin|checkpoints|orbax'
)


def _write_inputs() -> None:
  rng = np.random.default_rng(0)
  words = 'alpha', 'beta', 'gamma', 'delta', 'epsilon', 'zeta'
  lines = [' '.join([*rng.choice(words, 6), 'new', 'york']) for _ in range(30)]
  pathlib.Path('text.txt').write_text('\n'.join(lines) + '\n')
  rows = [f'd{i},{line}' for i, line in enumerate(lines[:8])]
  pathlib.Path('documents.csv').write_text('\n'.join(['tag,text', *rows, '']))
  rows = [
    f'{rng.integers(2)},{rng.choice([*"abc"])},{rng.choice([*"xy"])},{age}'
    for age in rng.integers(20, 30, 80)
  ]
  pathlib.Path('clicks.csv').write_text(
    '\n'.join(['label,site,ad,age', *rows, ''])
  )
  num = 20
  graph = graph_lib.from_edges(
    *rng.integers(num, size=(2, 60)),
    num_nodes=num,
    features=rng.normal(size=(num, 3)).astype(np.float32),
    labels=labels_lib.Labels(np.arange(num) % 2, None, ['even', 'odd']),
  )
  graph_lib.save(graph, pathlib.Path('graph'))


def main() -> None:
  """Trains all runs, or those that are named."""
  names = sys.argv[1:] or RUNS
  FOLDER.mkdir(exist_ok=True)
  with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
    _write_inputs()
    for run in names:
      config, settings = RUNS[run]
      if lifecycle.run(config_lib.load(config, settings), run):
        raise RuntimeError(f'{run} was stopped')
      data = folders.of_folder(pathlib.Path(run), _SKIPPED)
      (FOLDER / run).write_bytes(data)
      print(run, f'{len(data):,} bytes:', *folders.split(data))


if __name__ == '__main__':
  main()
