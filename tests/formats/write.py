"""Writes small files of every format: `python -m tests.formats.write FOLDER`.

A folder of these files is named after the version of the formats and is never
changed: later versions read it. The numbers are the same each time on the same
machine; times, and what they are part of, are not.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

import jaxemb
from jaxemb import config as config_lib
from jaxemb.evaluation import multivectors
from jaxemb.evaluation import subwords as subwords_lib
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.ops import ngrams
from jaxemb.run import lifecycle
from jaxemb.storage import export, ngram_files
from jaxemb.tables import spec as spec_lib
from tests.formats import readers

INPUTS, CACHES = 'inputs', 'caches'
WORDS = ['alpha', 'beta', 'gamma', 'delta', 'epsilon', 'zeta', 'new', 'york']
_SMALL = {'mesh.data': 1, 'train.epochs': 2, 'model.dim': 4}
_TEXT = _SMALL | {
  'data.path': f'{INPUTS}/text.txt', 'data.sample': 0.0, 'eval.paths': 'none',
  'data.min_count': 1, 'train.threads': 1,
}  # fmt: skip
# By name, a config and its settings.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
  'run': (
    'wiki',
    _TEXT
    | {
      'data.phrases': '1', 'data.phrases_score': 'npmi',
      'data.phrases_min_count': 2, 'optimizer.name': 'adagrad',
    },
  ),
  'stored-run': (
    'wiki',
    _TEXT
    | {
      'data.path': f'{INPUTS}/words.txt', 'table.store': 'memory',
      'table.device_bytes': '60%',
    },
  ),
  'sub-models': (
    'wiki',
    _TEXT
    | {'strategy.name': 'partition', 'strategy.num_parts': 2,
       'strategy.rate': 0.7},
  ),
  'clicks': (
    'ctr:smoke',
    _SMALL
    | {
      'data.path': f'{INPUTS}/clicks.csv', 'data.valid': '0.2',
      'data.test': '0.2', 'model.hidden': '4', 'train.batch_examples': 16,
      'model.batch_norm': True,
    },
  ),
  'documents': (
    'documents:dm',
    _SMALL
    | {
      'data.path': f'{INPUTS}/documents.csv', 'data.sample': 0.0,
      'data.min_count': 1, 'train.threads': 1,
    },
  ),
  'nodes': (
    'graphsage',
    _SMALL
    | {
      'data.path': 'graph', 'model.inputs': 'features', 'data.valid': '0.2',
      'data.test': '0.2', 'data.fanouts': '2,2', 'train.batch_examples': 4,
      'data.train_per_class': 4,
    },
  ),
}  # fmt: skip
# What a page, a program or TensorBoard reads, and not jaxemb.
_LEFT_OUT = (
  'report.html', 'tensorboard', 'log.txt', '.lock', 'projector', 'serving',
  'vectors.txt', '.tmp*',
)  # fmt: skip


def write_inputs(folder: pathlib.Path) -> None:
  """Writes text, clicks and documents."""
  rng = np.random.default_rng(0)
  folder.mkdir()
  lines = [
    ' '.join([*rng.choice(WORDS[:6], 6), 'new', 'york']) for _ in range(30)
  ]
  (folder / 'text.txt').write_text('\n'.join(lines) + '\n')
  many = (f'w{i}' for i in rng.integers(150, size=600))
  (folder / 'words.txt').write_text(' '.join(many))
  rows = ['label,site,ad,age']
  for _ in range(80):
    site, ad, age = rng.choice(list('abc')), rng.choice(list('xy')), 20
    rows.append(f'{rng.integers(2)},{site},{ad},{age + rng.integers(90) / 8}')
  (folder / 'clicks.csv').write_text('\n'.join(rows) + '\n')
  rows = [f'd{i},{line}' for i, line in enumerate(lines[:8])]
  (folder / 'documents.csv').write_text('\n'.join(['tag,text', *rows]) + '\n')


def write_graph(folder: pathlib.Path) -> None:
  """Writes a graph with weights, names, features and labels."""
  rng = np.random.default_rng(1)
  num = 20
  graph_lib.save(
    graph_lib.from_edges(
      *rng.integers(num, size=(2, 60)),
      num_nodes=num,
      weights=1 + rng.random(60),
      names=graph_lib.Names.of(f'node {i}' for i in range(num)),
      features=rng.normal(size=(num, 3)).astype(np.float32),
      labels=labels_lib.Labels(np.arange(num) % 2, None, ['even', 'odd']),
    ),
    folder,
  )


def _rows(num: int, dim: int = 4) -> np.ndarray:
  return np.random.default_rng(num).normal(size=(num, dim)).astype(np.float32)


def _vectors(**more: Any) -> jaxemb.Embeddings:
  counts = np.arange(2 * len(WORDS), len(WORDS), -1)
  return jaxemb.Embeddings(WORDS, _rows(len(WORDS)), counts, **more)


def _senses() -> jaxemb.Embeddings:
  starts = np.array([0, 1, 3, 4])
  priors = np.array([1, 0.25, 0.75, 1], np.float32)
  senses = multivectors.MultiVectors(
    words=WORDS[:3],
    counts=np.array([9, 5, 2]),
    starts=starts,
    vectors=_rows(4),
    priors=priors,
    outputs=_rows(3),
    loss='negative_sampling',
    negatives=5,
    window=2,
    means=_rows(4),
    concentration=3.0,
    half_weight=0.1,
  )
  return jaxemb.Embeddings(
    senses.names(), senses.vectors, np.array([9, 5, 5, 2]), senses
  )


def write_vectors(folder: pathlib.Path) -> None:
  """Writes vectors in all forms that have no run."""
  plain = _vectors()
  plain.save_word2vec_format(folder / 'words.bin', binary=True)
  plain.save_word2vec_format(folder / 'words.txt')
  plain.save_safetensors(folder / 'words.safetensors')
  relations = export.Relations(
    'translation', 'cosine', 0.5, ['likes', 'knows'], _rows(2), _rows(8) + 1
  )
  subwords = subwords_lib.NgramVectors(
    ngrams.Subwords(2, 3, 50), _rows(20), np.arange(0, 40, 2, dtype=np.int32)
  )
  _vectors(relations=relations).save(folder / 'relations')
  _vectors(subwords=subwords).save(folder / 'subwords')
  _senses().save(folder / 'senses')
  every = subwords_lib.NgramVectors(ngrams.Subwords(2, 3, 20), _rows(20))
  _vectors(subwords=every).save_fasttext(folder / 'fasttext.bin')
  attributes = {
    'weight': np.linspace(0, 1, len(WORDS)), 'tag': np.array(WORDS[::-1]),
  }  # fmt: skip
  plain = _vectors(attributes=attributes)
  plain.save(folder / 'vectors')
  plain.index('hnsw', connectivity=4).save(folder / 'index')
  rows = spec_lib.encode_rows(_rows(len(WORDS)), 'int8')
  export.write(
    folder / 'int8', WORDS, rows, counts=plain.counts, is_minimal=True
  )
  ngram_files.write(folder / 'int8', None)


@contextlib.contextmanager
def working(
  folder: pathlib.Path, cache: pathlib.Path
) -> Iterator[Mapping[str, str]]:
  """Changes to a folder, with a cache, as paths of runs are relative."""
  before = os.environ.get('JAXEMB_CACHE')
  os.environ['JAXEMB_CACHE'] = str(cache)
  try:
    with contextlib.chdir(folder):
      yield os.environ
  finally:
    del os.environ['JAXEMB_CACHE']
    if before is not None:
      os.environ['JAXEMB_CACHE'] = before


def config_of(name: str) -> Any:
  """The config of a run."""
  config, settings = RUNS[name]
  return config_lib.load(config, settings)


def write_run(name: str, folder: pathlib.Path) -> None:
  """Trains a run in the folder whose inputs it has, and in its cache."""
  with working(folder, folder / CACHES):
    if lifecycle.run(config_of(name), name):
      raise RuntimeError(f'{name} was stopped')


def _keep_few(folder: pathlib.Path) -> None:
  """Removes all but the last checkpoint of each run, and one report."""
  for report in folder.glob('*/report.json'):
    if report.parent.name != 'run':
      report.unlink()
  for checkpoints in folder.rglob('checkpoints*'):
    steps = [x for x in checkpoints.iterdir() if x.name.isdecimal()]
    for step in sorted(steps, key=lambda x: int(x.name))[:-1]:
      shutil.rmtree(step)


def make(folder: pathlib.Path) -> None:
  """Writes files of all formats into a folder, and what they are made of."""
  write_inputs(folder / INPUTS)
  write_graph(folder / 'graph')
  write_vectors(folder)
  for name in RUNS:
    write_run(name, folder)
  phrases = folder / 'run' / 'export' / 'phrases.txt'
  shutil.copyfile(phrases, folder / phrases.name)


def write_expected(folder: pathlib.Path) -> None:
  """Writes the numbers that files have now."""
  arrays = {
    f'{name}: {key}': array
    for name, read in readers.READERS.items()
    for key, array in read(folder / name).items()
  }
  np.savez_compressed(folder / 'expected.npz', **arrays)


def write(folder: pathlib.Path) -> None:
  """Writes a new folder with few files of each format and their numbers."""
  with tempfile.TemporaryDirectory() as name:
    temporary = pathlib.Path(name, 'files')
    temporary.mkdir()
    make(temporary)
    caches = temporary / CACHES
    for path in caches.iterdir():  # programs, and the graph that is here
      if path.name == 'programs' or path.name.startswith(('toy', 'graph-')):
        shutil.rmtree(path)
    _keep_few(temporary)
    left_out = shutil.ignore_patterns(*_LEFT_OUT)
    shutil.copytree(temporary, folder, ignore=left_out)
  write_expected(folder)


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('folder', type=pathlib.Path)
  jax.config.update('jax_num_cpu_devices', 1)
  write(parser.parse_args().folder)
