"""What is known of nodes: labels, features and splits, from files and arrays.

Files have a line for each node, with its name first, or, as .npy, a row for
each in the order of their numbers.
"""

import logging
import pathlib
import re
from collections.abc import (
  Callable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.graphs import line_format, published
from jaxemb.io import tables

_LOG = logging.getLogger('jaxemb')


def with_files(
  graph: graph_lib.Graph, settings: Mapping[str, Any]
) -> graph_lib.Graph:
  """Add labels and features from the files that settings name.

  Raises a `UserError` if one cannot be used.
  """
  known: dict[str, Any] = {}
  counted = dict(graph.counted)
  labels, column = settings['labels'], settings['label_column']
  if labels:
    known['labels'] = _read_labels(graph, labels, column, counted=counted)
  elif column:
    raise _no_columns('config.data.labels', column)
  if path := settings['features']:
    known['features'] = _read_features(graph, path, counted)
  # Of files that were read now: the digest is another.
  digest = '' if known else graph.digest
  return graph._replace(**known, counted=counted, digest=digest)


def _no_columns(path, column):
  return errors.UserError(
    f'config.data.label_column={column} is for labels in columns, and {path} '
    'has none; remove it, or give a file of such labels'
  )


def _read_labels(graph, path, column, counted):
  is_array, number = path.endswith('.npy'), numbers(graph)
  labels_by_name = None if is_array else published.labels_of(path)
  if column and (is_array or labels_by_name is not None):
    raise _no_columns(path, column)
  if is_array:
    return classes(_array(path, graph), path, graph.num_nodes)
  if labels_by_name is None:
    rows = _lines(path, least=2, column=column.lower(), number_of=number)
    labels_by_name = ((name, cells) for _, (name, *cells) in rows)
  labels: list[list[str]] = [[] for _ in range(graph.num_nodes)]
  num_unknown = 0
  for name, cells in labels_by_name:
    node = number(name)
    if node is None:
      num_unknown += 1
      continue
    for cell in cells:
      is_list = _LISTED.fullmatch(cell)
      labels[node] += re.split('[,;]', cell) if is_list else [cell]
  if not any(labels):
    raise errors.UserError(
      f'{path} has labels of {num_unknown:,} nodes, none of which the graph '
      'has; give lines `node label ...` with the names that edges have'
    )
  counted['labels_of_unknown_nodes'] = num_unknown
  return labels_lib.Labels.of(labels)


def _read_features(graph, path, counted):
  """[nodes, d] float32; zeros of nodes without any."""
  num_nodes, number = graph.num_nodes, numbers(graph)
  if path.endswith('.npy'):
    features = _array(path, graph)
    if features.dtype.kind not in 'biuf':
      raise errors.UserError(f'{path} has no numbers; give numbers')
    if features.ndim != 2 or len(features) != num_nodes:
      raise errors.UserError(
        f'{path} has the shape {features.shape}, and the graph has '
        f'{num_nodes:,} nodes; give a row for each'
      )
    return features
  features_by_name = published.features_of(path)
  if features_by_name is None:
    rows = ((line, x, cells) for line, (x, *cells) in _lines(path, least=2))
  else:
    rows = ((i, *x) for i, x in enumerate(features_by_name.items()))
  features, num_unknown = None, 0
  for line, name, cells in rows:
    if features is None:
      features = np.zeros((num_nodes, len(cells)), np.float32)
      has_row = np.zeros(num_nodes, bool)
    if len(cells) != features.shape[1]:
      raise errors.UserError(
        f'{path} line {line} has {len(cells)} features, and others have '
        f'{features.shape[1]}; give as many for each node'
      )
    node = number(name)
    if node is None:
      num_unknown += 1
      continue
    try:
      features[node], has_row[node] = cells, True
      if not np.isfinite(features[node]).all():
        raise ValueError('not all are finite')
    except ValueError as error:
      raise errors.UserError(
        f'{path} line {line}: {errors.one_line(error)}; give numbers'
      ) from error
  if not has_row.any():
    raise errors.UserError(
      f'{path} has features of {num_unknown:,} nodes, none of which the graph '
      'has; give lines `node number ...` with the names that edges have'
    )
  counted['features_of_unknown_nodes'] = num_unknown
  counted['nodes_without_features'] = int((~has_row).sum())
  return features


# What columns are called in headers: of nodes, and of their labels.
_NODES = {'node', 'id', 'name', 'node_id', 'nodeid', 'vertex', 'key', 'new_id'}
_LABELS = {'label', 'labels', 'class', 'group', 'category', 'community', 'y'}
_LABELS |= {'target', 'ml_target', 'page_type', 'mature'}  # Rozemberczki's
_LISTED = re.compile(r'\d+([,;]\d+)+')  # several labels, in one cell


def _array(path, graph):
  """The array of an .npy file."""
  if graph.names is not None:
    first = ', '.join(graph.names[:3])
    _LOG.info('%s: rows are read as of the nodes %s, ..', path, first)
  try:
    return np.load(pathlib.Path(path).expanduser(), mmap_mode='r')
  except (OSError, ValueError, EOFError) as error:
    raise errors.UserError(
      f'cannot read {path}: {errors.one_line(error)}; give an array by '
      'numpy.save'
    ) from error


def numbers(graph: graph_lib.Graph) -> Callable[[str], int | None]:
  """Return a function from the name of a node to its number or None."""
  if graph.names is None:

    def number(name):
      is_node = name.isdecimal() and int(name) < graph.num_nodes
      return int(name) if is_node else None

    return number
  return {x: i for i, x in enumerate(graph.names)}.get


def _rank(column):
  """The lower, the more a column looks as if it names nodes as edges do."""
  if column in _NODES:
    return column != 'new_id'
  return 2 if column.endswith('id') else 3


def _lines(
  path: str,
  least: int,
  column: str = '',
  number_of: Callable[[str], int | None] | None = None,
) -> Iterator[tuple[int, list[str]]]:
  """Yield numbers and cells of lines, but for a header and comments.

  With `number_of` nodes these are labels: of columns below a header, the node
  and the `column`, or the one that is called as labels usually are.
  """
  file, *more = tables.find(path, 'file with a line for each node')
  if more:
    raise errors.UserError(
      f'{path} has {1 + len(more)} files; give one, with a line for each node'
    )
  delimiter = line_format.delimiter(file, line_format.head(file, 1, 'a node'))
  chosen, is_first = None, True
  for number, line in line_format.lines(file):
    cells = line_format.cells(line, delimiter)
    if is_first:
      is_first = False
      chosen = _header(
        path, cells, column, number_of=number_of, is_spaces=delimiter == ' '
      )
      if chosen is not None:
        continue
    if chosen:
      cells = [cells[i] for i in chosen if i < len(cells)]
    if number_of and cells[1:] == [''] and cells[0]:
      continue  # a node that has none
    cells = [x for x in cells if x]
    if len(cells) < least:
      raise errors.UserError(
        f'{path} line {number} has {len(cells)} field(s); give a node and '
        'what is known of it'
      )
    yield number, cells


def _header(path, cells, column, number_of, is_spaces):
  """Columns of node and label, () = all; None if this is no header."""
  names = [x.lower() for x in cells]
  label_names = {column} if column else _LABELS if number_of else ()
  label_columns = [i for i, x in enumerate(names) if x in label_names]
  is_header = bool(column) or names[0] in _NODES
  is_header |= bool(label_columns) and bool({*_NODES, ''} & {*names})
  if number_of and len(cells) > 2 and not is_spaces:
    # Nor is it a line of a node with several labels.
    is_text = not any(map(line_format.is_number, cells))
    is_header |= is_text and number_of(cells[0]) is None
  if not is_header:
    return None
  if not label_names or not (column or len(cells) > 2 or label_columns == [0]):
    return ()
  if len(label_columns) != 1:
    raise errors.UserError(
      f'{path} has the columns {", ".join(cells)[:80]}; say which one has the '
      'labels by --config.data.label_column'
    )
  others = [i for i in range(len(cells)) if i not in label_columns]
  others.sort(key=lambda i: _rank(names[i]))
  return *others[:1], *label_columns


_SPLIT_KEYS = {
  'train': ('train_mask', 'train_masks', 'idx_train'),
  'valid': ('val_mask', 'val_masks', 'idx_val'),
  'test': ('test_mask', 'test_masks', 'idx_test'),
}


def splits_of(
  arrays: Mapping[str, np.ndarray], num_nodes: int
) -> dict[str, Any]:
  """Find the `splits` that arrays have as masks or numbers, of many the first.

  Several masks are rows or, as those of PyTorch Geometric, columns. Raises a
  `ValueError` for masks of another number of nodes.
  """
  splits = {}
  for name, keys in _SPLIT_KEYS.items():
    for key in keys:
      if key not in arrays:
        continue
      nodes = np.atleast_1d(np.squeeze(arrays[key]))
      is_mask = nodes.dtype == bool or 'mask' in key
      if nodes.ndim == 2:
        is_turned = is_mask and num_nodes == len(nodes) != nodes.shape[1]
        nodes = nodes[:, 0] if is_turned else nodes[0]
      if is_mask and nodes.shape != (num_nodes,):
        raise ValueError(
          f'{key} is of {len(nodes):,} nodes, and there are {num_nodes:,}'
        )
      nodes = np.flatnonzero(nodes) if is_mask else nodes
      splits[name] = nodes.astype(np.int64)
  return {'splits': splits} if splits else {}


def classes(
  array: Any,
  path: pathlib.Path | str,
  num_nodes: int,
  names: Sequence[str] | None = None,
) -> labels_lib.Labels:
  """Read labels from an array with a label, or a row, for each node.

  A row has a number above 0 for each label of the node. Labels below 0 and NaN
  are unknown. With `names` labels are places in them, if there are as many.
  """
  from scipy import sparse

  is_matrix = array.ndim == 2 and min(array.shape) > 1
  if not is_matrix:
    array = array.toarray() if sparse.issparse(array) else array
    array = np.asarray(array).reshape(-1)
  if array.shape[0] != num_nodes:
    raise errors.UserError(
      f'{path} has labels of {array.shape[0]:,} nodes, and a graph of '
      f'{num_nodes:,}; give as many'
    )
  if is_matrix and array.dtype.kind not in 'biuf':
    raise errors.UserError(
      f'{path} has a matrix of labels that are no numbers; give numbers'
    )
  if is_matrix:
    rows, columns = (sparse.csr_matrix(array) > 0).nonzero()
    labels: list[list[int]] = [[] for _ in range(num_nodes)]
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
      labels[row].append(column)
  else:
    if array.dtype.kind == 'f':
      array = np.where(np.isfinite(array), array, -1)
      if (array == np.round(array)).all():
        array = array.astype(np.int64)
    is_text = array.dtype.kind in 'USO'
    labels = [[x] if is_text or x >= 0 else [] for x in array.tolist()]
  read_labels = labels_lib.Labels.of([[*map(str, x)] for x in labels])
  indices = read_labels.names
  if names and all(x.isdecimal() and int(x) < len(names) for x in indices):
    read_labels = read_labels._replace(names=[names[int(x)] for x in indices])
  return read_labels
