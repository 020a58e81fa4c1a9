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
  """The graph of an .npz, .mat or .json file."""
  import zipfile
  import zlib

  from scipy import sparse
  from scipy.io import matlab

  if not path.is_file():
    raise errors.UserError(f'there is no file {path}; give a graph')
  try:
    read_file = {'.mat': _mat, '.json': _json}.get(path.suffix, _npz)
    adjacency, labels, known = read_file(path)
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
  adjacency.sum_duplicates()
  adjacency.eliminate_zeros()
  if not directed and not (adjacency != adjacency.T).nnz:
    adjacency = sparse.triu(adjacency, 0)
  edges = adjacency.tocoo()
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
  if labels is not None:
    known['labels'] = node_files.classes(
      labels, path, num_nodes, names=known.pop('label_names', None)
    )
  weights = edges.data
  if edges.nnz and 0 < weights.min() == weights.max():
    weights = None  # edges both ways are one
  return graph_lib.from_edges(
    edges.row,
    targets=edges.col,
    num_nodes=num_nodes,
    weights=weights,
    relations=None,
    directed=directed,
    **known,
  )


def _mat(path):
  """Of a .mat file the matrix, labels or None, and other fields of a graph."""
  from scipy import io, sparse

  found = {k.lower(): x for k, x in io.loadmat(path).items() if k[0] != '_'}
  features, labels = (
    next((x for x in names if x in found), '') for names in (_FEATURES, _LABELS)
  )
  square = [
    k
    for k, x in found.items()
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
    rows = sparse.csr_matrix(found[features]).toarray()
    known['features'] = rows.astype(np.float32)
  unused = [x for x in found if x not in (*square, features, labels)]
  if unused:
    _LOG.info('%s: not used: %s', path, ', '.join(unused))
  matrix = sparse.csr_matrix(found[square[0]]) if square else None
  return matrix, found.get(labels), known


def _json(path):
  """As `_mat`, of Wiki-CS: lists by node, of neighbors and others."""
  found = json.loads(path.read_text('utf-8'))
  if not isinstance(found, dict) or not {'links', 'labels'} <= found.keys():
    raise ValueError('it has no `links` and `labels`, as Wiki-CS has')
  links = found['links']
  sizes = [len(x) for x in links]
  ends = np.array([y for x in links for y in x], np.int64)
  arrays = {k: np.array(x) for k, x in found.items() if k in _OF_NODES}
  arrays['edges'] = np.stack([np.repeat(np.arange(len(links)), sizes), ends], 1)
  return _of_edges(arrays)


def _npz(path):
  """As `_mat`, of an .npz file."""
  from scipy import sparse

  found, unread = {}, []
  with np.load(path, allow_pickle=False) as file:
    for name in file.files:
      # Shchur et al. 2018 have both kinds of names.
      key = re.sub(r'^(adj|attr)_matrix\.', r'\1_', name)
      try:
        found[key] = file[name]
      except ValueError as error:  # objects, which could run any code
        if 'allow_pickle' not in str(error):
          raise
        unread.append(name)
  known: dict[str, Any] = {}

  def matrix(name):
    parts = (found[f'{name}_{x}'] for x in ('data', 'indices', 'indptr'))
    made = sparse.csr_matrix(tuple(parts), shape=found[f'{name}_shape'])
    made.check_format()
    return made

  if 'format' in found:
    return sparse.load_npz(path).tocsr(), None, known
  if unread:
    _LOG.info('%s: not used, as they are pickles: %s', path, ', '.join(unread))
  if 'edge_index' in found:
    found['edges'] = found['edge_index'].T
  if 'edges' in found:
    return _of_edges(found)
  if 'adj_data' not in found:
    return None, None, known
  labels = found.get('labels')
  if 'labels_data' in found:
    labels = matrix('labels')
  if 'attr_data' in found:
    known['features'] = matrix('attr').toarray().astype(np.float32)
  elif 'attr_matrix' in found:
    known['features'] = found['attr_matrix'].astype(np.float32)
    if known['features'].ndim != 2:
      raise ValueError(
        f'attr_matrix has the shape {found["attr_matrix"].shape}'
      )
  if 'node_names' in found:
    names = edge_lists.distinct(map(str, found['node_names']))
    known['names'] = graph_lib.Names.of(names)
  if 'class_names' in found and labels is not None:
    known['label_names'] = [str(x) for x in found['class_names']]
  adjacency = matrix('adj')
  known |= node_files.splits_of(found, adjacency.shape[0])
  return adjacency, labels, known


def _of_edges(found):
  """As `_mat`, of arrays by name."""
  from scipy import sparse

  known: dict[str, Any] = {}
  edges = found['edges']
  if edges.ndim == 2 and len(edges) == 2 != edges.shape[1]:
    edges = edges.T
  if edges.ndim != 2 or edges.shape[1] != 2:
    raise ValueError(f'edges have the shape {edges.shape}, not [n, 2]')
  labels, features = (
    next((found[x] for x in names if x in found), None)
    for names in (_NODE_LABELS, _NODE_FEATURES)
  )
  nodes = features if labels is None else labels
  num = 1 + edges.max(initial=-1) if nodes is None else len(nodes)
  known |= node_files.splits_of(found, num)
  if features is not None:
    known['features'] = features.astype(np.float32)
  shape = num, num
  ends = np.ones(len(edges), np.float32), tuple(edges.T)
  return sparse.coo_matrix(ends, shape).tocsr(), labels, known
