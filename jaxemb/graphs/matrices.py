"""Graphs from files of matrices.

.npz    matrices by scipy, also with attributes and labels as
Shchur et al. 2018, or edges as Platonov et al. 2023 write them
.mat    `network` and `group`, as of the data of Tang and Liu
"""

import pathlib
import re
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.graphs import edge_lists, node_files
from jaxemb.graphs import graph as graph_lib


def read(path: pathlib.Path, directed: bool) -> graph_lib.Graph:
  """The graph of an .npz or .mat file."""
  import zipfile
  import zlib

  from scipy import sparse
  from scipy.io import matlab

  if not path.is_file():
    raise errors.UserError(f'there is no file {path}; give a graph')
  try:
    read_file = _mat if path.suffix == '.mat' else _npz
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
    known |= node_files.classes(
      labels, path, num_nodes, known.get('label_names')
    )
  weights = edges.data
  if edges.nnz and 0 < weights.min() == weights.max():
    weights = None  # edges both ways are one
  args = edges.row, edges.col, num_nodes, weights, None, directed
  return graph_lib.from_edges(*args, **known)


def _mat(path):
  """Of a .mat file the matrix, labels or None, and other fields of a graph."""
  from scipy import io, sparse

  found = {k.lower(): x for k, x in io.loadmat(path).items() if k[0] != '_'}
  square = [
    (k == 'network', x.shape[0], k)
    for k, x in found.items()
    if (sparse.issparse(x) or x.dtype.kind in 'biufc')
    and x.ndim == 2
    and x.shape[0] == x.shape[1]
  ]
  matrix = sparse.csr_matrix(found[max(square)[2]]) if square else None
  known: dict[str, Any] = {}
  for name in ('attributes', 'attrb', 'features'):
    if name in found:
      features = sparse.csr_matrix(found[name]).toarray()
      known['features'] = features.astype(np.float32)
  return matrix, found.get('group', found.get('label')), known


def _npz(path):
  """As `_mat`, of an .npz file."""
  from scipy import sparse

  found = {}
  with np.load(path, allow_pickle=False) as file:
    for name in file.files:
      # Shchur et al. 2018 have both kinds of names.
      key = re.sub(r'^(adj|attr)_matrix\.', r'\1_', name)
      try:
        found[key] = file[name]
      except ValueError as error:  # objects, which could run any code
        if 'allow_pickle' not in str(error):
          raise
  known: dict[str, Any] = {}

  def matrix(name):
    parts = (found[f'{name}_{x}'] for x in ('data', 'indices', 'indptr'))
    made = sparse.csr_matrix(tuple(parts), shape=found[f'{name}_shape'])
    made.check_format()
    return made

  if 'format' in found:
    return sparse.load_npz(path).tocsr(), None, known
  # Platonov et al. 2023, and Rozemberczki's for PyTorch Geometric.
  for one, other in ('target', 'node_labels'), ('features', 'node_features'):
    found.setdefault(other, found.get(one))
  if 'edges' in found and found['node_labels'] is not None:
    labels, edges = found['node_labels'], found['edges']
    known |= node_files.splits_of(found, len(labels))
    if found['node_features'] is not None:
      known['features'] = found['node_features'].astype(np.float32)
    shape = len(labels), len(labels)
    ends = np.ones(len(edges), np.float32), tuple(edges.T)
    return sparse.coo_matrix(ends, shape).tocsr(), labels, known
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
