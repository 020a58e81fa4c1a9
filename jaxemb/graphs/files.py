"""Graphs from files: lists of edges, matrices, folders of OGB.

What `config.data.path` names is told apart here, in folders of several files by
`published`: `edge_lists` and `matrices` read it, and `node_files` what other
files know of nodes.

  folder  as `graph.save` writes it, or of OGB as downloaded; `ogbn-arxiv`
          and others are downloaded
"""

import collections
import contextlib
import functools
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.graphs import (
  edge_lists,
  matrices,
  node_files,
  published,
  toygraph,
)
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.io import cache as cache_lib
from jaxemb.io import columns as columns_lib
from jaxemb.io import download, inputs, tables

_OF_NODES = 'labels', 'features'
_CACHED_BY = 'columns', 'comments', 'directed', 'num_nodes'
# Of a folder of OGB, however few edges it has.
_MIN_NODES, _NODES_PER_BYTE = 1 << 20, 64
_FORMAT = 11  # of graphs in the cache

Progress = Callable[[str, int, int], None]


def read(
  settings: Mapping[str, Any], cache: pathlib.Path, progress: Progress
) -> graph_lib.Graph:
  """Read the graph that settings under `config.data` name.

  Lists of edges are built once into a folder of the `cache`. Raises a
  `UserError` for input that cannot be used.
  """
  path = settings['path']
  if path.startswith('ogbn-') and not os.path.exists(path):
    tell = functools.partial(progress, 'downloading')
    path = str(download.ogb(path, cache, tell))
  settings = {'comments': '', **settings, 'path': path}
  folder = pathlib.Path(os.path.expanduser(path))
  published.refuse(folder)
  is_list = False
  if toygraph.is_named(path):
    graph = toygraph.make(path)
  elif graph_lib.is_saved(folder):
    graph = graph_lib.load(folder)
  elif os.path.isdir(folder / 'raw'):
    paths = [*folder.rglob('*.*')]
    graph = _built(_ogb, paths, settings, cache=cache, progress=progress)
  else:
    settings = published.find_files(settings)
    file = pathlib.Path(os.path.expanduser(settings['path']))
    if is_list := _is_list(file):
      paths = inputs.together(settings['path'], 'list of edges')
      plans = edge_lists.planned(paths, settings)
      graph = _built(
        edge_lists.listed, plans, settings, cache=cache, progress=progress
      )
      graph = graph._replace(inputs=edge_lists.shown(plans))
    else:
      graph = matrices.read(file, settings['directed'])
      if folder.is_dir():
        splits = node_files.role_splits(folder, graph.num_nodes)
        graph = graph._replace(**splits)
  for key in ('columns', 'num_nodes', 'comments'):
    is_of_nodes = key == 'comments' and any(map(settings.get, _OF_NODES))
    if settings[key] and not (is_list or is_of_nodes):
      raise errors.UserError(
        f'config.data.{key}={settings[key]} is for lists of edges, and '
        f'{settings["path"]} is none; remove it'
      )
  return node_files.with_files(graph, settings)


def _is_list(file):
  """Whether a file has edges, a line each, and no matrix or object of JSON."""
  if file.suffix != '.json' or not os.path.isfile(file):
    return file.suffix not in ('.npz', '.mat', '.json')
  with contextlib.suppress(errors.UserError):
    if tables.guess(file) == 'jsonl':
      _, *rows = tables.json_head(file)
      return len(rows) > 1 or not any(x[:1] in '[{' for y in rows for x in y)
  return False


def located(settings: Mapping[str, Any]) -> Mapping[str, Any]:
  """Return settings that name files of a folder by role, also held-out edges.

  Raises a `UserError` where these cannot be told.
  """
  path = settings['path']
  folder = pathlib.Path(os.path.expanduser(path))
  is_one = graph_lib.is_saved(folder) or os.path.isdir(folder / 'raw')
  is_one |= toygraph.is_named(path)  # '' is no folder
  if is_one or not (os.path.isdir(folder) or re.search(r'[*?[]', path)):
    return settings
  return published.find_files(settings)


def from_table(
  table: Any, columns: str = '', directed: bool = False
) -> graph_lib.Graph:
  """Return the graph of a table of edges, as of a file with the same columns.

  A table of pandas, polars or pyarrow, lists by column, or an array [n, 2 or 3]
  whose columns have no names. `columns` is as `config.data.columns`. Raises a
  `UserError` where it cannot be used.

  To train on it, `graph.save` it and give the folder as `config.data.path`.
  """
  if isinstance(table, np.ndarray) and table.dtype.names is None:
    if table.ndim != 2:
      raise errors.UserError(
        f'an array of shape {table.shape} has no edges; give one of [n, 2 or 3]'
      )
    table = {str(i): x for i, x in enumerate(table.T)}
  settings = {'columns': columns, 'directed': directed, 'num_nodes': 0}
  plan = edge_lists.of_table(tables.Table.of(table), columns)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    plans = {'the table': plan}
    graph = edge_lists.listed(plans, settings, folder, progress=lambda *_: None)
    arrays = graph._asdict().items()
    copies: dict[str, Any]
    copies = {k: np.array(x) for k, x in arrays if isinstance(x, np.memmap)}
  return graph._replace(**copies, inputs=edge_lists.shown(plans))


def from_networkx(
  graph: Any, weight: str = 'weight', label: str = 'label'
) -> graph_lib.Graph:
  """Of a NetworkX graph, with weights of edges and labels of nodes by name.

  A list is several labels; None and NaN are none. Raises a `UserError` if there
  are none of a name, if weights are no numbers, or if names are not unique.

  To train on it, `graph.save` it and give the folder as `config.data.path`.
  """
  nodes = dict(graph.nodes(data=True))
  numbers = {x: i for i, x in enumerate(nodes)}
  names = [columns_lib.name(x) for x in nodes]
  counted = collections.Counter(names)
  if repeated := [x for x in names if counted[x] > 1 or not x]:
    raise errors.UserError(
      f'{counted[repeated[0]]} nodes are called {repeated[0]!r} as a string; '
      'rename them (networkx.relabel_nodes)'
    )
  edges = [(numbers[a], numbers[b], x) for a, b, x in graph.edges(data=True)]
  ends = np.array([x[:2] for x in edges], np.int64).reshape(-1, 2)
  try:
    weights = np.array([x[2].get(weight, 1) for x in edges], np.float32)
  except (TypeError, ValueError) as error:
    raise errors.UserError(
      f'the attribute {weight!r} of edges has other values than numbers '
      f'({errors.one_line(error)}); give another as weight='
    ) from error
  values = [x.get(label) for x in nodes.values()]
  lists = [x if isinstance(x, list | tuple) else [x] for x in values]
  labels = [
    (i, text)
    for i, x in enumerate(lists)
    for y in x
    if (text := columns_lib.name(y))
  ]
  if label != 'label' and not labels:
    raise errors.UserError(
      f'no node has the attribute {label!r}; give one that has labels'
    )
  labelled = np.array([i for i, _ in labels], np.int64)
  texts = [x for _, x in labels]
  return graph_lib.from_edges(
    ends[:, 0],
    ends[:, 1],
    num_nodes=len(names),
    weights=weights,
    directed=graph.is_directed(),
    names=graph_lib.Names.of(names),
    labels=labels_lib.Labels.of(labelled, texts, len(nodes)) if texts else None,
  )


def _built(make, paths, settings, cache, progress):
  """What `make` makes of files, from the cache if nothing has changed."""
  files = sorted(paths)
  of_files = cache_lib.identity_of(files)
  numbers, of_graph = _FORMAT, graph_lib.FORMAT.number
  if of_graph > 1:  # else as it was before that number was looked at
    numbers = _FORMAT, of_graph
  identity = [
    make.__name__,
    {x: settings[x] for x in _CACHED_BY},
    numbers,
    edge_lists.learns_edges(settings),
    of_files,
  ]

  def save(folder):
    graph_lib.save(make(paths, settings, folder, progress), folder)
    cache_lib.check_unchanged(files, of_files)

  folder = cache_lib.folder_of(pathlib.Path(cache), 'graph-', identity)
  return cache_lib.opened(folder, graph_lib.load, save)


# Open Graph Benchmark, as it unpacks a data set of nodes.


def _ogb(paths, settings, folder, progress):
  """The graph of a folder with raw/edge.csv.gz and others beside it."""
  raw = {x.name.split('.')[0]: x for x in paths if x.parent.name == 'raw'}
  for name in ('edge', 'num-node-list'):
    if name not in raw:
      raise errors.UserError(
        f'there is no raw/{name}.csv.gz in {settings["path"]}; give a folder '
        'of OGB with one kind of nodes'
      )
  num = _num_nodes(raw['num-node-list'], raw['edge'])
  settings = settings | {'columns': 'source,target', 'num_nodes': num}
  plans = edge_lists.planned([raw['edge']], settings)
  graph = edge_lists.listed(plans, settings, folder, progress=progress)
  known: dict[str, Any] = {}
  if path := raw.get('node-feat'):
    progress('reading features', 0, 1)
    known['features'] = _numbers(path, np.float32)
    node_files.check_size(path, 'lines', len(known['features']), num_nodes=num)
  if path := raw.get('node-label'):
    known['labels'] = node_files.array_labels(_numbers(path), path, num)
  splits = sorted({x.parent for x in paths if x.parent.parent.name == 'split'})
  nodes = {
    x.name[:2]: _numbers(x).ravel().astype(np.int64)
    for folder in splits[:1]
    for x in folder.iterdir()
    if x.name.startswith(('train.', 'valid.', 'test.'))
  }
  known |= node_files.splits_of(splits[0], nodes, num) if splits else {}
  return graph._replace(**known)


def _num_nodes(path, edges):
  num = _numbers(path).sum()
  # Of each edge a file has some bytes, packed or not.
  most = max(_MIN_NODES, _NODES_PER_BYTE * edges.stat().st_size)
  if not (1 <= num <= most and num == np.floor(num)):
    raise errors.UserError(
      f'{path} says that there are {num:,.0f} nodes, which {edges.name} is too '
      'small for; download it again'
    )
  return int(num)


def _numbers(path, kind=np.float64):
  """[rows, columns] of an OGB file."""
  import pyarrow.csv

  options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
  try:
    table = pyarrow.csv.read_csv(path, read_options=options)
    columns = [x.to_numpy() for x in table.columns]
    return np.stack(columns, 1).astype(kind)
  except (
    *(OSError, EOFError, ValueError, TypeError, NotImplementedError),
    *(OverflowError, MemoryError),
  ) as error:
    raise errors.UserError(
      f'cannot read {path}: {errors.one_line(error)}; download it again'
    ) from error
