"""Graphs from files of matrices.

.npz    matrices by scipy, also with attributes and labels as
Shchur et al. 2018, or edges as Platonov et al. 2023 write them
.mat    `network` and `group`, as of the data of Tang and Liu
.json   Wiki-CS

Each is read as arrays by name, of which `adj` or `edges` are the graph.
"""

import logging
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import mat_files, node_files, published
from jaxemb.io import json_text, roles
from jaxemb.storage import export

_LOG = logging.getLogger('jaxemb')

_FEATURES, _LABELS = (published.ARRAYS[x] for x in ('features', 'labels'))
# A graph may have so many nodes, whatever its edges.
_MIN_NODES, _NODES_PER_EDGE = 1 << 20, 64
_OF_NODES = 'labels', 'features', 'train_masks', 'val_masks', 'test_mask'


def read(path: pathlib.Path, directed: bool) -> graph_lib.Graph:
  """Read the graph of an .npz, .mat or .json file."""
  from scipy import sparse

  if not os.path.isfile(path):
    raise errors.UserError(f'there is no file {path}; give a graph')
  make_arrays = {'.mat': _mat, '.json': _json}.get(path.suffix, _npz)
  try:
    arrays = make_arrays(path)
    adjacency = _adjacency(arrays)
    known = _known(path, arrays, adjacency.shape[0])
    if adjacency.dtype.kind not in 'biuf':
      raise errors.UserError(
        f'{path} has weights of {adjacency.dtype}; give real numbers above 0'
      )
    adjacency.sum_duplicates()
    adjacency.eliminate_zeros()
  except (
    *(OSError, ValueError, TypeError, KeyError, AttributeError),
    *(NotImplementedError, IndexError, OverflowError),
  ) as error:
    why = errors.one_line(error)
    if 'v7.3' in why:  # HDF5
      why = 'it is of Matlab 7.3'
    raise errors.UserError(
      f'cannot read {path}: {why}; give a file by scipy.sparse.save_npz, or '
      'by save -v7 of Matlab'
    ) from error
  if not directed and not (adjacency != adjacency.T).nnz:
    adjacency = sparse.triu(adjacency, 0)
  edges = adjacency.tocoo()
  first = {}
  if edges.nnz:
    first = {'source': str(edges.row[0]), 'target': str(edges.col[0])}
  shapes = {k: str(np.shape(x)) for k, x in arrays.items()}
  shown = roles.Input(
    (str(path),), f'{path.suffix}, matrices', columns=shapes, first=first
  )
  weights = edges.data
  if edges.nnz and 0 < weights.min() == weights.max():
    weights = None  # edges both ways are one
  return graph_lib.from_edges(
    edges.row,
    targets=edges.col,
    num_nodes=adjacency.shape[0],
    weights=weights,
    directed=directed,
    inputs=[shown],
    **known,
  )


def _first(arrays, names):
  """The first array that is there, or None."""
  return next((arrays[x] for x in names if x in arrays), None)


def _adjacency(arrays):
  """The matrix, sparse by rows."""
  from scipy import sparse

  adjacency = arrays.get('adj')
  if 'edges' in arrays:
    edges = arrays['edges']
    if edges.ndim == 2 and len(edges) == 2 != edges.shape[1]:
      edges = edges.T
    if edges.ndim != 2 or edges.shape[1] != 2:
      raise ValueError(f'edges have the shape {edges.shape}, not [n, 2]')
    nodes = _first(arrays, (*_LABELS, *_FEATURES))
    num = nodes.shape[0] if nodes is not None else 1 + edges.max(initial=-1)
    if nodes is None:
      _check_size(num, len(edges))
    ones = np.ones(len(edges), np.float32)
    return sparse.csr_matrix((ones, tuple(edges.T)), (num, num))
  if adjacency is None or adjacency.shape[0] != adjacency.shape[1]:
    raise ValueError(
      'it has no square matrix of a graph (adj_data, or network)'
    )
  return sparse.csr_matrix(_checked(adjacency))


def _check_size(num_nodes, num_edges):
  """Raises a `ValueError` for far more nodes than edges name."""
  if num_nodes > max(_MIN_NODES, _NODES_PER_EDGE * num_edges):
    raise ValueError(
      f'it has {num_nodes:,} nodes and only {num_edges:,} edges; number the '
      'nodes from 0 on without gaps'
    )


def _checked(array):
  """An array; raises a `ValueError` for a damaged sparse matrix."""
  from scipy import sparse

  if sparse.issparse(array):
    if array.format in ('csr', 'csc', 'bsr'):
      array.check_format()  # SciPy writes wherever indices point
    else:
      _check_size(array.shape[0], array.nnz)
  return array


def _known(path, arrays, num_nodes):
  """What is known of nodes, as fields of a graph."""
  from scipy import sparse

  known: dict[str, Any] = {}
  features = _first(arrays, _FEATURES)
  if features is not None:
    if features.ndim != 2:
      raise ValueError(f'features have the shape {features.shape}')
    node_files.check_size(
      path, 'features', features.shape[0], num_nodes=num_nodes
    )
    known['features'] = _checked(features).astype(np.float32)
    if sparse.issparse(features):
      known['features'] = sparse.csr_matrix(known['features'])
  if 'node_names' in arrays:
    names = _distinct(map(str, arrays['node_names']))
    known['names'] = graph_lib.Names.of(names)
    node_files.check_size(path, 'names', len(names), num_nodes=num_nodes)
  labels = _first(arrays, _LABELS)
  if labels is not None:
    names = arrays.get('class_names')
    names = names if names is None else [str(x) for x in names]
    known['labels'] = node_files.array_labels(
      _checked(labels), path, num_nodes, names=names
    )
  return known | node_files.splits_of(path, arrays, num_nodes)


def _mat(path) -> Mapping[str, Any]:
  """The arrays of a .mat file."""
  from scipy import sparse

  loaded, others = mat_files.load(path)
  arrays = {k.lower(): x for k, x in loaded.items()}
  of_nodes = {*_FEATURES, *_LABELS}
  square = [
    k
    for k, x in arrays.items()
    if (sparse.issparse(x) or x.dtype.kind in 'biufc')
    and x.ndim == 2
    and x.shape[0] == x.shape[1]
    and k not in of_nodes
  ]
  graph, *more = ['network'] if 'network' in square else square or ['']
  if more:
    raise ValueError(
      f'{", ".join(square)} may all be the graph; call one `network`'
    )
  firsts = [[x for x in y if x in arrays][:1] for y in (_FEATURES, _LABELS)]
  used = {x: arrays[x] for y in firsts for x in y}
  if unused := sorted({*arrays, *others} - used.keys() - {graph}):
    _LOG.info('%s: not used: %s', path, ', '.join(unused))
  return used | ({'adj': arrays[graph]} if graph else {})


def _json(path) -> Mapping[str, Any]:
  """The arrays of Wiki-CS, which has lists by node, of neighbors and others."""
  fields = json_text.loads(path.read_text('utf-8'))
  fields = fields if isinstance(fields, dict) else {}
  if not {'links', 'labels'} <= fields.keys():
    readers = {'nodes': 'node_link_graph', 'elements': 'cytoscape_graph'}
    reader = next((v for k, v in readers.items() if k in fields), '')
    if fields and all(isinstance(x, list) for x in fields.values()):
      reader = reader or 'from_dict_of_lists'
    what = 'has no `links` and `labels`, as Wiki-CS has; write lines with an '
    what += 'object for each edge (jq -c .[]), or CSV'
    if reader:
      what = published.READER.format(f'networkx.{reader}')
      what = what.replace('(PATH)', '(json.load(open(PATH)))')
    raise errors.UserError(f'{path} {what}')
  links = fields['links']
  sizes = [len(x) for x in links]
  ends = np.array([y for x in links for y in x], np.int64)
  arrays = {k: np.array(x) for k, x in fields.items() if k in _OF_NODES}
  arrays['edges'] = np.stack([np.repeat(np.arange(len(links)), sizes), ends], 1)
  return arrays


def _npz(path) -> Mapping[str, Any]:
  """The arrays of an .npz file; those in pieces become sparse matrices."""
  from scipy import sparse

  try:
    arrays, unread = _loaded(path)
    if 'format' in arrays:
      matrix = sparse.load_npz(path)
      if matrix.format in ('csr', 'csc', 'bsr'):
        _check_format(matrix)
      return {'adj': matrix}
  except Exception as error:  # of any class, where a file is damaged
    raise ValueError(errors.one_line(error)) from error
  if unread:
    _LOG.info('%s: not used, as they are pickles: %s', path, ', '.join(unread))
  for name in ('adj', 'attr', 'labels'):
    if f'{name}_data' in arrays:
      parts = tuple(
        arrays[f'{name}_{x}'] for x in ('data', 'indices', 'indptr')
      )
      arrays[name] = sparse.csr_matrix(parts, shape=arrays[f'{name}_shape'])
      _check_format(arrays[name])
  if 'edge_index' in arrays:
    arrays['edges'] = arrays['edge_index'].T
  return arrays


def _check_format(matrix):
  """Raises a `ValueError` if a matrix in pieces is damaged.

  SciPy would write beyond its arrays.
  """
  if np.any(matrix.indptr[1:] < matrix.indptr[:-1]):  # which SciPy may pass
    raise ValueError('its indptr falls')
  matrix.check_format()


def _loaded(path):
  """Arrays by name, and names of those that are pickles."""
  arrays, unread = {}, []
  with np.load(path, allow_pickle=False) as file:
    for name in file.files:
      # Shchur et al. 2018 have both kinds of names.
      key = re.sub(r'^(adj|attr)_matrix\.', r'\1_', name)
      try:
        arrays[key] = file[name]
      except ValueError as error:  # objects, which could run any code
        if 'allow_pickle' not in str(error):
          raise
        unread.append(name)
      else:
        export.check_member(name, arrays[key])
  return arrays, unread


def _distinct(names):
  """The same, where a name is repeated or empty with the node's number.

  Titles and people may have one name.
  """
  unique = {}
  for i, name in enumerate(names):
    while not name or name in unique:
      name = f'{name}#{i}'
    unique[name] = i
  return [*unique]
