"""Reads files of every format with what any version of jaxemb offers.

`python readers.py FOLDER` reads what `tests.formats.write` has written there
with whichever jaxemb is installed, and prints by name whether the numbers are
those of expected.npz, or the line by which the files are refused.
"""

import json
import pathlib
import sys
from collections.abc import Callable, Mapping

import numpy as np

import jaxemb
from jaxemb import errors

Arrays = Mapping[str, np.ndarray]


def _of(vectors: jaxemb.Embeddings) -> dict[str, np.ndarray]:
  arrays = {
    'words': np.array(vectors.index_to_key),
    'vectors': np.asarray(vectors.vectors),
  }
  if vectors.counts is not None:
    arrays['counts'] = np.asarray(vectors.counts)
  return arrays


def vectors(path: pathlib.Path) -> Arrays:
  """Vectors of a file, a folder or a run, and all that comes with them."""
  loaded = jaxemb.load(path)
  arrays = _of(loaded)
  arrays |= {
    f'attribute {k}': np.array(x.tolist())  # text is held as objects
    for k, x in loaded.attributes.items()
  }
  if senses := loaded.sense_table:
    names = 'starts', 'priors', 'outputs', 'means'
    arrays |= {f'senses {x}': np.asarray(getattr(senses, x)) for x in names}
  if (relations := loaded.relations) is not None:
    arrays |= {
      'relations': np.array(relations.names),
      'operators': relations.rows,
      'targets': np.asarray(relations.targets),
      'scoring': np.array([relations.operator, relations.measure]),
    }
  if loaded.subwords:
    arrays['unseen'] = loaded['unseen']
  return arrays


def documents(path: pathlib.Path) -> Arrays:
  """Vectors of documents and of words."""
  model = jaxemb.load(path)
  arrays = {f'documents {k}': x for k, x in _of(model.dv).items()}
  arrays |= {f'words {k}': x for k, x in _of(model.wv).items()}
  return arrays | {'epochs': np.array(model.epochs)}


def clicks(path: pathlib.Path) -> Arrays:
  """Tables of a model of clicks, and what it predicts."""
  model = jaxemb.load(path)
  rows = {'site': ['a', 'b', 'new'], 'ad': ['x', 'y', 'x'], 'age': [1, 2, 3]}
  arrays = {f'table {k}': np.asarray(x) for k, x in model.tables.items()}
  return arrays | {'close': model.predict(rows)}


def network(path: pathlib.Path) -> Arrays:
  """Vectors of nodes, and what a network makes of nodes of a graph."""
  from jaxemb.graphs import graph, inference

  model = inference.load(path)
  inferred = model.infer(graph.load(path.with_name('graph')))
  arrays = vectors(path) | {'classes': np.array(model.classes)}
  return arrays | {'close': inferred.outputs}


def graph(path: pathlib.Path) -> Arrays:
  """All of a graph."""
  from jaxemb.graphs import graph as graph_lib

  loaded = graph_lib.load(path)
  return {
    'offsets': loaded.offsets,
    'neighbors': loaded.neighbors,
    'weights': loaded.weights,
    'names': np.array(loaded.keys()),
    'features': loaded.features,
    'labels': loaded.labels.classes,
  }


def phrases(path: pathlib.Path) -> Arrays:
  """Phrases and their scores."""
  scores = jaxemb.load_phrases(path).export_phrases()
  return {
    'phrases': np.array([*scores]),
    'scores': np.array([*scores.values()]),
  }


def index(path: pathlib.Path) -> Arrays:
  """Neighbors by an index."""
  of = jaxemb.load(path.with_name('vectors'))
  rows, cosines = of.load_index(path).search(of.vectors[:4], num=3)
  return {'rows': rows, 'close': cosines}


READERS: dict[str, Callable[[pathlib.Path], Arrays]] = {
  'run': vectors,
  'stored-run': vectors,
  'sub-models': vectors,
  'clicks': clicks,
  'nodes': network,
  'documents': documents,
  'vectors': vectors,
  'senses': vectors,
  'relations': vectors,
  'subwords': vectors,
  'int8': vectors,
  'index': index,
  'phrases.txt': phrases,
  'graph': graph,
  'words.bin': vectors,
  'words.txt': vectors,
  'words.safetensors': vectors,
  'fasttext.bin': vectors,
}


def expected(folder: pathlib.Path, name: str) -> dict[str, np.ndarray]:
  """The numbers that were read when the files were written."""
  with np.load(folder / 'expected.npz') as arrays:
    names = [x for x in arrays if x.startswith(f'{name}: ')]
    return {x.split(': ')[1]: arrays[x] for x in names}


def compare(found: Arrays, wanted: Arrays) -> None:
  """Raises an `AssertionError` where numbers differ from the expected ones.

  They are the same to the last bit, but for those that a CPU computes.
  """
  assert found.keys() == wanted.keys()
  for name, array in wanted.items():
    if name == 'close':
      np.testing.assert_allclose(found[name], array, 1e-5, 1e-6)
    else:
      np.testing.assert_array_equal(found[name], array, name)
      assert found[name].dtype == array.dtype, name


def main(folder: pathlib.Path) -> None:
  """Prints where jaxemb is, and by name '' or why files are refused."""
  print(json.dumps(jaxemb.__file__))
  for name, read in READERS.items():
    line = ''
    try:
      compare(read(folder / name), expected(folder, name))
    except errors.UserError as error:
      line = str(error)
    print(json.dumps([name, line]), flush=True)


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
