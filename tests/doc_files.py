"""Files and values that code blocks of the documentation begin with."""

import json
import pathlib
import shutil
import warnings
from typing import Any

import numpy as np
from pyarrow import csv

import jaxemb
from jaxemb.evaluation import multivectors
from jaxemb.evaluation import subwords as subwords_lib
from jaxemb.ops import ngrams
from jaxemb.storage import export, fasttext_format
from tests import doc_blocks, runs

_STORED = doc_blocks.ROOT / 'tests/formats/v1'
_SENTENCES = [
  'the king rules the land', 'the queen rules the land', 'a man is a father',
  'a woman is a mother', 'paris is a city of the land',
  'the bank of the river', 'the bank lends money',
]  # fmt: skip


def text(*names: str) -> None:
  """Writes a small text under each name."""
  for name in names:
    pathlib.Path(name).write_text('\n'.join(_SENTENCES * 200))


def many_words() -> None:
  """Writes a text of more words than a small cache has room for."""
  drawn = np.random.default_rng(0).integers(0, 2000, (4000, 10)).tolist()
  lines = [' '.join(f'word{x}' for x in sentence) for sentence in drawn]
  pathlib.Path('TEXT').write_text('\n'.join(lines))


def words(num: int = 5) -> jaxemb.Embeddings:
  """Returns random vectors of words, most frequent first."""
  rows = np.random.default_rng(0).normal(size=(num, 8)).astype(np.float32)
  names = ['the', 'king', 'queen', 'man', 'woman'][:num]
  return jaxemb.Embeddings(names, rows, np.arange(num, 0, -1))


def readme() -> dict[str, Any]:
  """Writes the texts and configs of the README."""
  text('PATH')
  pathlib.Path('configs').symlink_to(doc_blocks.ROOT / 'configs')
  return {}


def fasttext_model(path: str, buckets: int) -> None:
  """Writes a model of fastText with n-grams of five characters."""
  subwords = ngrams.Subwords(min_chars=5, max_chars=5, buckets=buckets)
  rows = np.random.default_rng(8).normal(size=(buckets, 4))
  rows = rows.astype(np.float32)
  vectors = jaxemb.Embeddings(
    ['king', 'queen', 'sea'],
    rows[:3],
    np.array([9, 7, 1]),
    subwords=subwords_lib.NgramVectors(subwords, rows),
  )
  with warnings.catch_warnings(action='ignore'):  # its output rows are zeros
    vectors.save_fasttext(path)


def run_of_relations(folder: str) -> None:
  """Writes a run on a graph whose relations have operators."""
  relations = export.Relations(
    operator='translation',
    measure='product',
    temperature=1.0,
    names=['capital_of', 'capital_of (inverse)'],
    rows=np.array([[-1, 1], [1, -1]], np.float32),
  )
  nodes = np.array([[1, 0], [0, 1], [1, 1], [2, 0]], np.float32)
  jaxemb.Embeddings(
    ['rome', 'italy', 'paris', 'france'], nodes, relations=relations
  ).save(f'{folder}/export')


def run_of_senses(folder: str) -> None:
  """Writes a run in which `bank` has two senses."""
  senses = multivectors.MultiVectors(
    words=['bank', 'river', 'money'],
    counts=np.array([9, 6, 3]),
    starts=np.array([0, 2, 3, 4]),
    vectors=np.array([[1, 1], [1, -1], [0, 1], [1, 0]], np.float32),
    priors=np.array([0.75, 0.25, 1, 1], np.float32),
    outputs=np.array([[0, 0], [0, -6], [0, 6]], np.float32),
    loss='negative_sampling',
    negatives=5,
    window=5,
  )
  runs.write_senses(f'{folder}/export', senses)


def clicks() -> dict[str, Any]:
  """Writes logs of clicks."""
  rng = np.random.default_rng(0)
  colors = rng.choice(['red', 'green', 'blue'], 600)
  labels = (colors == 'red').astype(int)
  rows = [
    f'{label},{i},{color},{rng.random():.3f}'
    for i, (label, color) in enumerate(zip(labels, colors, strict=True))
  ]
  log = '\n'.join(['click,id,color,price', *rows])
  for name in ('clicks.csv', 'NEW', 'new.csv'):
    pathlib.Path(name).write_text(log)
  return {}


def documents() -> dict[str, Any]:
  """Writes texts of documents."""
  text('PATH', 'new.txt')
  lines = [json.dumps({'tag': str(i), 'text': x}) for i, x in
           enumerate(_SENTENCES * 20)]  # fmt: skip
  pathlib.Path('NEW.jsonl').write_text('\n'.join(lines))
  return {}


def graphs() -> dict[str, Any]:
  """Writes edges with a node named NODE, and triples."""
  rng = np.random.default_rng(0)
  ends = rng.integers(0, 60, (600, 2)).tolist()
  names = ['NODE', *(f'node{i}' for i in range(59))]
  lines = [f'{names[a]}\t{names[b]}' for a, b in ends]
  pathlib.Path('edges.tsv').write_text('\n'.join(lines))
  folder = pathlib.Path('FB15k-237')
  folder.mkdir()
  triples = [
    f'{names[a]}\trelation{i % 3}\t{names[b]}' for i, (a, b) in enumerate(ends)
  ]
  for name, some in (
    ('train', triples[:500]), ('valid', triples[500:550]),
    ('test', triples[550:]),
  ):  # fmt: skip
    (folder / f'{name}.txt').write_text('\n'.join(some))
  return {}


def nodes() -> dict[str, Any]:
  """Writes a graph of nodes with features and classes, and a second one."""
  rng = np.random.default_rng(0)
  num = 2000
  edges = rng.integers(0, num, (2, 8000))
  labels = np.arange(num) % 4
  features = np.eye(4)[labels] + rng.normal(size=(num, 4))
  np.savez('cora.npz', edges=edges, node_features=features, node_labels=labels)
  lines = [f'{a}\t{b}' for a, b in edges.T.tolist()]
  pathlib.Path('edges.tsv').write_text('\n'.join(lines))
  rows = [
    ','.join([str(i), *(f'{y:.3f}' for y in x)]) for i, x in enumerate(features)
  ]
  header = 'node,' + ','.join(f'f{i}' for i in range(4))
  pathlib.Path('features.csv').write_text('\n'.join([header, *rows]))
  return {}


def ratings() -> dict[str, Any]:
  """Writes ratings with an item named ITEM."""
  import pandas as pd

  rng = np.random.default_rng(0)
  users, items = rng.integers(0, 50, 2000), rng.integers(0, 40, 2000)
  frame = pd.DataFrame(
    {
      'user': [f'u{x}' for x in users],
      'item': [f'i{x}' if x else 'ITEM' for x in items],
      'rating': rng.integers(1, 6, 2000),
    }
  )
  frame.to_csv('ratings.csv', index=False)
  return {}


def models_to_merge() -> dict[str, Any]:
  """Writes runs and files of vectors."""
  text('TEXT')
  for number in range(2):
    vectors = words()
    runs.write_trained(
      pathlib.Path(f'runs/part-{number}'),
      vectors.index_to_key,
      vectors.vectors,
      vectors.counts,
    )
  words().save_word2vec_format('vectors.bin', binary=True)
  words().save_word2vec_format('glove.txt', write_header=False)
  return {}


def formats() -> dict[str, Any]:
  """Copies a click model; returns vectors and a log for it."""
  shutil.copytree(_STORED / 'clicks', 'runs/ctr-...')
  data = csv.read_csv(_STORED / 'inputs/clicks.csv')
  return {'jaxemb': jaxemb, 'vectors': words(), 'data': data}


def texts_of_gensim() -> dict[str, Any]:
  """Returns texts, cut into words."""
  return {'texts': [x.split() for x in _SENTENCES], 'sentences': _SENTENCES}


def senses() -> dict[str, Any]:
  """Writes a text and a run of senses."""
  text('PATH')
  run_of_senses('runs/mixture-...')
  return {}


def texts() -> dict[str, Any]:
  """Writes texts, and a model of fastText."""
  text('PATH', 'NEW')
  known = ['king', 'queen', 'sea']
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(2 * len(known) + 1000, 8)).astype(np.float32)
  fasttext_format.write(
    'cc.en.300.bin',
    fasttext_format.Settings(
      dim=8, model=1, buckets=1000, min_chars=5, max_chars=5
    ),
    words=known,
    counts=np.array([9, 7, 1]),
    inputs=[rows[len(known) :]],
    outputs=rows[: len(known)],
  )
  return {}
