"""Graphs from files of matrices.

.npz    matrices by scipy, also with attributes and labels as
Shchur et al. 2018, or edges as Platonov et al. 2023 write them
.mat    `network` and `group`, as of the data of Tang and Liu
.json   Wiki-CS
"""

import json
import logging
import pathlib
import re
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.graphs import edge_lists, node_files
from jaxemb.graphs import graph as graph_lib

_LOG = logging.getLogger('jaxemb')

# What features and labels are called in .mat.
_FEATURES = 'attributes', 'attrb', 'features', 'fea', 'x'
_LABELS = 'group', 'label', 'labels', 'gnd', 'y'
# Beside edges in .npz: of Platonov et al. 2023, Rozemberczki, and PyTorch
# Geometric.
_NODE_LABELS = 'node_labels', 'target', 'labels', 'label', 'y'
_NODE_FEATURES = 'node_features', 'features', 'x'
_OF_NODES = 'labels', 'features', 'train_masks', 'val_masks', 'test_mask'


def read(path: pathlib.Path, directed: bool) -> graph_lib.Graph:
  """Read the graph of an .npz, .mat or .json file."""
  from scipy import sparse

  adjacency, labels, known = _read_file(path)
  if adjacency is None or adjacency.shape[0] != adjacency.shape[1]:
    raise errors.UserError(
      f'{path} has no square matrix of a graph (adj_data, or network); give '
      'another file'
    )
  if adjacency.dtype.kind not in 'biuf':
    raise errors.UserError(
      f'{path} has weights of {adjacency.dtype}; give real numbers above 0'
    )
  num_nodes = adjacency.shape[0]
  _check(path, known, num_nodes)
  adjacency.sum_duplicates()
  adjacency.eliminate_zeros()
  if not directed and not (adjacency != adjacency.T).nnz:
    adjacency = sparse.triu(adjacency, 0)
  edges = adjacency.tocoo()
  label_names = known.pop('label_names', None)
  if labels is not None:
    known['labels'] = node_files.classes(
      labels, path, num_nodes, names=label_names
    )
  weights = edges.data
  if edges.nnz and 0 < weights.min() == weights.max():
    weights = None  # edges both ways are one
  return graph_lib.from_edges(
    edges.row,
    targets=edges.col,
    num_nodes=num_nodes,
    weights=weights,
    directed=directed,
    **known,
  )


def _read_file(path):
  """The matrix or None, labels or None, and other fields of a graph."""
  import zipfile
  import zlib

  from scipy.io import matlab

  if not path.is_file():
    raise errors.UserError(f'there is no file {path}; give a graph')
  try:
    return {'.mat': _mat, '.json': _json}.get(path.suffix, _npz)(path)
  except (
    *(OSError, EOFError, ValueError, TypeError, KeyError, AttributeError),
    *(NotImplementedError, matlab.MatReadError, zipfile.BadZipFile),
    zlib.error,
  ) as error:
    why = errors.one_line(error)
    if 'v7.3' in why:  # HDF5
      why = 'it is of Matlab 7.3'
    raise errors.UserError(
      f'cannot read {path}: {why}; give a file by scipy.sparse.save_npz, or '
      'by save -v7 of Matlab'
    ) from error


def _check(path, known, num_nodes):
  """Raises a `UserError` for fields of another number of nodes."""
  for kind in ('features', 'names'):
    if kind in known and len(known[kind]) != num_nodes:
      raise errors.UserError(
        f'{path} has {kind} of {len(known[kind]):,} nodes, and a graph of '
        f'{num_nodes:,}; give as many'
      )
  for name, nodes in known.get('splits', {}).items():
    if len(nodes) and not 0 <= nodes.min() <= nodes.max() < num_nodes:
      raise errors.UserError(
        f'{path} has nodes for {name} that are not among its {num_nodes:,}; '
        'give masks, or numbers from 0 on'
      )


def _mat(path):
  """Of a .mat file the matrix, labels or None, and other fields of a graph."""
  from scipy import io, sparse

  arrays = {k.lower(): x for k, x in io.loadmat(path).items() if k[0] != '_'}
  features, labels = (
    next((x for x in names if x in arrays), '')
    for names in (_FEATURES, _LABELS)
  )
  square = [
    k
    for k, x in arrays.items()
    if (sparse.issparse(x) or x.dtype.kind in 'biufc')
    and x.ndim == 2
    and x.shape[0] == x.shape[1]
    and k not in (features, labels)
  ]
  if 'network' in square:
    square = ['network']
  if len(square) > 1:
    raise ValueError(
      f'{", ".join(square)} may all be the graph; call one `network`'
    )
  known: dict[str, Any] = {}
  if features:
    rows = sparse.csr_matrix(arrays[features]).toarray()
    known['features'] = rows.astype(np.float32)
  unused = [x for x in arrays if x not in (*square, features, labels)]
  if unused:
    _LOG.info('%s: not used: %s', path, ', '.join(unused))
  matrix = sparse.csr_matrix(arrays[square[0]]) if square else None
  return matrix, arrays.get(labels), known


def _json(path):
  """As `_mat`, of Wiki-CS: lists by node, of neighbors and others."""
  fields = json.loads(path.read_text('utf-8'))
  if not isinstance(fields, dict) or not {'links', 'labels'} <= fields.keys():
    raise ValueError('it has no `links` and `labels`, as Wiki-CS has')
  links = fields['links']
  sizes = [len(x) for x in links]
  ends = np.array([y for x in links for y in x], np.int64)
  arrays = {k: np.array(x) for k, x in fields.items() if k in _OF_NODES}
  arrays['edges'] = np.stack([np.repeat(np.arange(len(links)), sizes), ends], 1)
  return _of_edges(arrays)


def _npz(path):
  """As `_mat`, of an .npz file."""
  from scipy import sparse

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
  known: dict[str, Any] = {}

  def matrix(name):
    parts = (arrays[f'{name}_{x}'] for x in ('data', 'indices', 'indptr'))
    made = sparse.csr_matrix(tuple(parts), shape=arrays[f'{name}_shape'])
    made.check_format()
    return made

  if 'format' in arrays:
    return sparse.load_npz(path).tocsr(), None, known
  if unread:
    _LOG.info('%s: not used, as they are pickles: %s', path, ', '.join(unread))
  if 'edge_index' in arrays:
    arrays['edges'] = arrays['edge_index'].T
  if 'edges' in arrays:
    return _of_edges(arrays)
  if 'adj_data' not in arrays:
    return None, None, known
  labels = arrays.get('labels')
  if 'labels_data' in arrays:
    labels = matrix('labels')
  if 'attr_data' in arrays:
    known['features'] = matrix('attr').toarray().astype(np.float32)
  elif 'attr_matrix' in arrays:
    known['features'] = arrays['attr_matrix'].astype(np.float32)
    if known['features'].ndim != 2:
      raise ValueError(
        f'attr_matrix has the shape {arrays["attr_matrix"].shape}'
      )
  if 'node_names' in arrays:
    names = edge_lists.distinct(map(str, arrays['node_names']))
    known['names'] = graph_lib.Names.of(names)
  if 'class_names' in arrays and labels is not None:
    known['label_names'] = [str(x) for x in arrays['class_names']]
  adjacency = matrix('adj')
  known |= node_files.splits_of(arrays, adjacency.shape[0])
  return adjacency, labels, known


def _of_edges(arrays):
  """As `_mat`, of arrays by name."""
  from scipy import sparse

  known: dict[str, Any] = {}
  edges = arrays['edges']
  if edges.ndim == 2 and len(edges) == 2 != edges.shape[1]:
    edges = edges.T
  if edges.ndim != 2 or edges.shape[1] != 2:
    raise ValueError(f'edges have the shape {edges.shape}, not [n, 2]')
  labels, features = (
    next((arrays[x] for x in names if x in arrays), None)
    for names in (_NODE_LABELS, _NODE_FEATURES)
  )
  nodes = features if labels is None else labels
  num = 1 + edges.max(initial=-1) if nodes is None else len(nodes)
  known |= node_files.splits_of(arrays, num)
  if features is not None:
    known['features'] = features.astype(np.float32)
  shape = num, num
  ends = np.ones(len(edges), np.float32), tuple(edges.T)
  return sparse.coo_matrix(ends, shape).tocsr(), labels, known
