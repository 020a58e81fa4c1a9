"""Graphs from files: lists of edges, matrices, folders of OGB.

What `config.data.path` names is told apart here, in folders of several files by
`published`: `edge_lists` and `matrices` read it, and `node_files` what other
files know of nodes.

  folder  as `graph.save` writes it, or of OGB as downloaded; `ogbn-arxiv`
          and others are downloaded
"""

import csv
import functools
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
from jaxemb.io import download, inputs

_SPLITS = 'train', 'valid', 'test'
_CACHED_BY = 'columns', 'comments', 'directed', 'num_nodes'
_FORMAT = 8  # of graphs in the cache

Progress = Callable[[str, int, int], None]


def read(
  settings: Mapping[str, Any], cache: pathlib.Path, progress: Progress
) -> graph_lib.Graph:
  """Read the graph that settings under `config.data` name.

  Lists of edges are built once into a folder of the `cache`. Raises a
  `UserError` for input that cannot be used.
  """
  path = settings['path']
  if path.startswith('ogbn-') and not pathlib.Path(path).exists():
    tell = functools.partial(progress, 'downloading')
    path = str(download.ogb(path, cache, tell))
  settings = {'comments': '', **settings, 'path': path}
  folder = pathlib.Path(path).expanduser()
  published.refuse(folder)
  is_list = False
  if toygraph.is_named(path):
    graph = toygraph.make(path)
  elif graph_lib.is_saved(folder):
    graph = graph_lib.load(folder)
  elif (folder / 'raw').is_dir():
    paths = [*folder.rglob('*.*')]
    graph = _built(_ogb, paths, settings, cache=cache, progress=progress)
  else:
    settings = published.find_files(settings)
    file = pathlib.Path(settings['path']).expanduser()
    is_list = file.suffix not in ('.npz', '.mat', '.json')
    if is_list:
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
  for key in ('columns', 'num_nodes'):
    if settings[key] and not is_list:
      raise errors.UserError(
        f'config.data.{key}={settings[key]} is for lists of edges, and '
        f'{settings["path"]} is none; remove it'
      )
  return node_files.with_files(graph, settings)


def located(settings: Mapping[str, Any]) -> Mapping[str, Any]:
  """Return settings that name files of a folder by role, also held-out edges.

  Raises a `UserError` where these cannot be told.
  """
  path = settings['path']
  folder = pathlib.Path(path).expanduser()
  is_one = graph_lib.is_saved(folder) or (folder / 'raw').is_dir()
  if is_one or not (folder.is_dir() or re.search(r'[*?[]', path)):
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
  from pyarrow import parquet

  settings = dict.fromkeys(('labels', 'label_column', 'features'), '')
  settings |= {'columns': columns, 'directed': directed, 'num_nodes': 0}
  is_array = isinstance(table, np.ndarray) and table.dtype.names is None
  if is_array and table.ndim != 2:
    raise errors.UserError(
      f'an array of shape {table.shape} has no edges; give one of [n, 2 or 3]'
    )
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'edges.parquet')
    if is_array:
      path, settings['comments'] = path.with_suffix('.tsv'), 'none'
      with path.open('w', encoding='utf-8', newline='') as file:
        csv.writer(file, 'excel-tab').writerows(table.tolist())
    else:
      parquet.write_table(columns_lib.of(table), path)
    settings['path'] = str(path)
    graph = read(settings, pathlib.Path(folder), lambda *_: None)
    return graph_lib.in_memory(graph)


def from_networkx(
  graph: Any, weight: str = 'weight', label: str = 'label'
) -> graph_lib.Graph:
  """Of a NetworkX graph, with weights of edges and labels of nodes by name.

  A list is several labels; None and NaN are none. Raises a `UserError` if there
  are none of a name, or if weights are no numbers.

  To train on it, `graph.save` it and give the folder as `config.data.path`.
  """
  nodes = dict(graph.nodes(data=True))
  names = edge_lists.distinct(map(_name, nodes))
  numbers = {x: i for i, x in enumerate(nodes)}
  edges = [(numbers[a], numbers[b], x) for a, b, x in graph.edges(data=True)]
  ends = np.array([x[:2] for x in edges], np.int64).reshape(-1, 2)
  try:
    weights = np.array([x[2].get(weight, 1) for x in edges], np.float32)
  except (TypeError, ValueError) as error:
    raise errors.UserError(
      f'the attribute {weight!r} of edges has other values than numbers '
      f'({errors.one_line(error)}); give another as weight='
    ) from error
  values = (x.get(label) for x in nodes.values())
  lists = (x if isinstance(x, list | tuple) else [x] for x in values)
  labels = [[_name(y) for y in x if y is not None and y == y] for x in lists]
  if label != 'label' and not any(labels):
    raise errors.UserError(
      f'no node has the attribute {label!r}; give one that has labels'
    )
  sources, targets = ends.T
  return graph_lib.from_edges(
    sources,
    targets,
    num_nodes=len(names),
    weights=weights,
    directed=graph.is_directed(),
    names=graph_lib.Names.of(names),
    labels=labels_lib.Labels.of(labels) if any(labels) else None,
  )


def _name(node):
  """The name of a node, as `io.columns` has it of a file."""
  if isinstance(node, bool | np.bool_):
    return str(node).lower()
  is_whole = isinstance(node, float | np.floating) and node == node // 1
  return str(int(node)) if is_whole else str(node)


def _built(make, paths, settings, cache, progress):
  """What `make` makes of files, from the cache if nothing has changed."""
  identity = [
    make.__name__,
    {x: settings[x] for x in _CACHED_BY},
    _FORMAT,
    edge_lists.learns_edges(settings),
    cache_lib.identity_of(sorted(paths)),
  ]

  def save(folder):
    graph_lib.save(make(paths, settings, folder, progress), folder)

  folder = cache_lib.folder_of(pathlib.Path(cache), 'graph-', identity)
  return cache_lib.opened(folder, graph_lib.load, save)


# Open Graph Benchmark, as it unpacks a data set of nodes.


def _ogb(paths, settings, folder, progress):
  """The graph of a folder with raw/edge.csv.gz and others beside it."""
  import pyarrow.csv

  by_name = {x.name.split('.')[0]: x for x in paths if x.parent.name == 'raw'}
  for name in ('edge', 'num-node-list'):
    if name not in by_name:
      raise errors.UserError(
        f'there is no raw/{name}.csv.gz in {settings["path"]}; give a folder '
        'of OGB with one kind of nodes'
      )

  def table(path, kind, num=None):
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
    try:
      rows = pyarrow.csv.read_csv(path, read_options=options)
      rows = np.stack([x.to_numpy() for x in rows.columns], 1).astype(kind)
    except (OSError, EOFError, ValueError) as error:
      raise errors.UserError(
        f'cannot read {path}: {errors.one_line(error)}; download it again'
      ) from error
    if num is not None:
      node_files.check_size(path, 'lines', len(rows), num_nodes=num)
    return rows

  num = int(table(by_name['num-node-list'], np.int64).sum())
  settings = settings | {'columns': 'source,target', 'num_nodes': num}
  graph = edge_lists.listed(
    edge_lists.planned([by_name['edge']], settings),
    settings=settings,
    folder=folder,
    progress=progress,
  )
  known: dict[str, Any] = {}
  if 'node-feat' in by_name:
    progress('reading features', 0, 1)
    known['features'] = table(by_name['node-feat'], np.float32, num)
  if 'node-label' in by_name:
    labels = table(by_name['node-label'], np.float64, num)
    labels = np.nan_to_num(labels, nan=-1).astype(np.int64)
    if labels.shape[1] > 1:  # a column for each
      rows, classes = np.nonzero(labels > 0)
      offsets = np.searchsorted(rows, np.arange(num + 1)).astype(np.int64)
      known['labels'] = labels_lib.Labels(classes.astype(np.int64), offsets)
    else:
      known['labels'] = labels_lib.Labels(labels[:, 0])
  splits = {x.parent: 0 for x in paths if x.parent.parent.name == 'split'}
  if splits:
    by_name = {x.name.split('.')[0]: x for x in min(splits).iterdir()}
    known['splits'] = {
      k: table(by_name[k], np.int64)[:, 0] for k in _SPLITS if k in by_name
    }
  return graph._replace(**known)
