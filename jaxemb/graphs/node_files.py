"""What is known of nodes: labels, features and splits, from files and arrays.

Files have a line for each node, with its name first, or, as .npy, a row for
each in the order of their numbers; or one of the forms below.
"""

import itertools
import json
import logging
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.graphs import published
from jaxemb.io import tables

_LOG = logging.getLogger('jaxemb')

# What columns are called in headers: of nodes, and of their labels.
_NODES = {'node', 'id', 'name', 'node_id', 'nodeid', 'vertex', 'key', 'new_id'}
_LABELS = {'label', 'labels', 'class', 'group', 'category', 'community', 'y'}
_LABELS |= {'target', 'ml_target', 'page_type', 'mature'}  # Rozemberczki's
_LISTED = re.compile(r'\d+([,;]\d+)+')  # several labels, in one cell
_SPLIT_KEYS = {
  'train': ('train_mask', 'train_masks', 'idx_train', 'tr'),
  'valid': ('val_mask', 'val_masks', 'idx_val', 'va'),
  'test': ('test_mask', 'test_masks', 'idx_test', 'te'),
}


def with_files(
  graph: graph_lib.Graph, settings: Mapping[str, Any]
) -> graph_lib.Graph:
  """Add labels and features from the files that settings name.

  Raises a `UserError` if one cannot be used.
  """
  known: dict[str, Any] = {}
  counted = dict(graph.counted)
  path, column = settings['labels'], settings['label_column']
  is_other = path.endswith('.npy') or _form(path) is not None
  if column and (is_other or not path):
    raise errors.UserError(
      f'config.data.label_column={column} is for labels in columns, and '
      f'{path or "config.data.labels"} has none; remove it, or give a file of '
      'such labels'
    )
  if path:
    known['labels'] = _read_labels(graph, path, column, counted=counted)
  if path := settings['features']:
    known['features'] = _read_features(graph, path, counted)
  # Of files that were read now: the digest is another.
  digest = '' if known else graph.digest
  return graph._replace(**known, counted=counted, digest=digest)


def _read_labels(graph, path, column, counted):
  number, form = numbers(graph), _form(path)
  if path.endswith('.npy'):
    return classes(_array(path, graph), path, graph.num_nodes)
  if form:
    cells_by_name = _FORMS[form][0](path)
  else:
    rows = _lines(path, column=column.lower(), number_of=number)
    cells_by_name = ((name, cells) for _, (name, *cells) in rows)
  labels: list[list[str]] = [[] for _ in range(graph.num_nodes)]
  num_unknown = 0
  for name, cells in cells_by_name:
    node = number(name)
    if node is None:
      num_unknown += 1
      continue
    for cell in cells:
      is_list = _LISTED.fullmatch(cell)
      labels[node] += re.split('[,;]', cell) if is_list else [cell]
  if not any(labels):
    raise _none_known(path, 'labels', num_unknown)
  counted['labels_of_unknown_nodes'] = num_unknown
  return labels_lib.Labels.of(labels)


def _none_known(path, what, num_unknown):
  return errors.UserError(
    f'{path} has {what} of {num_unknown:,} nodes, none of which the graph has; '
    f'give lines `node {what} ...` with the names that edges have'
  )


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
  form = _form(path)
  if form and _FORMS[form][1]:
    rows = enumerate(_FORMS[form][1](path).items(), 1)
  else:
    rows = ((line, (name, cells)) for line, (name, *cells) in _lines(path))
  features, num_unknown = None, 0
  for line, (name, cells) in rows:
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
    raise _none_known(path, 'features', num_unknown)
  counted['features_of_unknown_nodes'] = num_unknown
  counted['nodes_without_features'] = int((~has_row).sum())
  return features


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


# Lines of nodes.


def _file_rows(path):
  """The delimiter of a file, and numbers and cells of its lines."""
  file, *more = tables.find(path, 'file with a line for each node')
  if more:
    raise errors.UserError(
      f'{path} has {1 + len(more)} files; give one, with a line for each node'
    )
  tables.first_line(file)  # refuses what is no text
  return tables.rows(file, 'a node')


def _lines(
  path: str,
  column: str = '',
  number_of: Callable[[str], int | None] | None = None,
) -> Iterator[tuple[int, list[str]]]:
  """Yield numbers and cells of lines, but for a header and comments.

  With `number_of` nodes these are labels: of columns below a header, the node
  and the `column`, or the one that is called as labels usually are.
  """
  delimiter, rows = _file_rows(path)
  first = next(rows)
  chosen = _header(
    path, first[1], column, number_of=number_of, is_spaces=delimiter == ' '
  )
  if chosen is None:
    rows = itertools.chain([first], rows)
  for number, cells in rows:
    if chosen:
      cells = [cells[i] for i in chosen if i < len(cells)]
    if number_of and cells[1:] == [''] and cells[0]:
      continue  # a node that has none
    cells = [x for x in cells if x]
    if len(cells) < 2:
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
    is_text = not any(map(tables.is_number, cells))
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


def _rank(column):
  """The lower, the more a column looks as if it names nodes as edges do."""
  if column in _NODES:
    return column != 'new_id'
  return 2 if column.endswith('id') else 3


# Other forms.


def _members(path):
  """Nodes with labels; a line is a community: maybe a name, and its nodes."""
  with_names = published.is_named(path, r'.*\.circles')
  (file,) = tables.find(path, 'file of nodes')[:1]
  for number, (_, line) in enumerate(tables.lines(file)):
    name, sep, rest = line.strip().rpartition(';')
    nodes = rest.split()
    if not sep:
      name, *nodes = nodes if with_names else [str(number), *nodes]
    for node in nodes:
      yield node, [name]


def _described(path):
  """Nodes with features [str] and a label, of lines `node .. label`."""
  for _, (name, *cells) in _file_rows(path)[1]:
    if name == 'node_id':
      continue
    if len(cells) < 2:
      raise errors.UserError(
        f'{path} has a line of {len(cells) + 1} field(s), {name[:60]!r}, ..; '
        'give lines `node features label`'
      )
    yield name, cells[:-1], cells[-1]


def _described_features(path):
  """By node its features; Actor has the numbers of words instead of all."""
  lists = {
    name: [y for x in cells for y in x.split(',') if y]
    for name, cells, _ in _described(path)
  }
  return _rows(path, lists, len({len(x) for x in lists.values()}) == 1)


def _rows(path, lists, are_rows=None):
  """By node a row of numbers, or one that is made of the places of ones."""
  remedy = 'lines `node numbers label`'
  if are_rows is None:
    remedy = 'an object {"node": [numbers of what it has], ..}'
  try:
    if are_rows is None:
      values = {y for x in lists.values() for y in x}
      sizes = {len(x) for x in lists.values()}
      # Places differ from each other.
      are_flags = values <= {0, 1} and len(sizes) == 1 and max(sizes) > 2
      are_rows = are_flags or any(isinstance(x, float) for x in values)
    if are_rows:
      return {k: np.array(x, np.float32) for k, x in lists.items()}
    places = {k: np.array(x, np.int64) for k, x in lists.items()}
    if any(x.min(initial=0) < 0 for x in places.values()):
      raise ValueError('there is a number below 0')
  except (ValueError, TypeError) as error:
    raise errors.UserError(
      f'cannot read features of {path}: {errors.one_line(error)}; give {remedy}'
    ) from error
  size = 1 + max(int(x.max(initial=-1)) for x in places.values())
  rows = {k: np.zeros(size, np.float32) for k in places}
  for k, x in places.items():
    rows[k][x] = 1
  return rows


def _json(path) -> dict[str, Any]:
  file = pathlib.Path(path).expanduser()
  try:
    fields = json.loads(file.read_text('utf-8'))
    if not isinstance(fields, dict) or not fields:
      raise ValueError('it is no object of nodes')
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'cannot read {path}: {errors.one_line(error)}; give an object of nodes'
    ) from error
  return fields


def _json_labels(path):
  """A label of each node, or several, or zeros and ones for all labels."""
  labels = {
    k: x if isinstance(x, list) else [] if x is None else [x]
    for k, x in _json(path).items()
  }
  sizes = {len(x) for x in labels.values()}
  are_flags = len(sizes) == 1 and sizes.pop() > 1
  are_flags &= all(y in (0, 1) for x in labels.values() for y in x)
  for name, x in labels.items():
    if are_flags:
      x = [i for i, y in enumerate(x) if y]
    yield name, [*map(str, x)]


# By names of files, how their labels are read, and their features.
_FORMS = {
  published.COMMUNITIES: (_members, None),
  published.CONTENT: (
    lambda path: ((name, [label]) for name, _, label in _described(path)),
    _described_features,
  ),
  r'.*\.json': (_json_labels, lambda path: _rows(path, _json(path))),
}


def _form(path):
  return next((x for x in _FORMS if published.is_named(path, x)), None)


# Arrays.


def check_size(
  path: pathlib.Path | str, what: str, size: int, num_nodes: int
) -> None:
  """Raises a `UserError` for rows of another number of nodes."""
  if size != num_nodes:
    raise errors.UserError(
      f'{path} has {what} of {size:,} nodes, and the graph has {num_nodes:,}; '
      'give as many'
    )


def role_splits(folder: pathlib.Path, num_nodes: int) -> dict[str, Any]:
  """The `splits` of a graph that a folder's role.json has, if there is one."""
  path = folder / 'role.json'
  if not path.is_file():
    return {}
  nodes = _json(path)
  arrays = {
    k: np.array(nodes[k], np.int64) for k in ('tr', 'va', 'te') if nodes.get(k)
  }
  return splits_of(path, arrays, num_nodes)


def splits_of(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], num_nodes: int
) -> dict[str, Any]:
  """Find the `splits` that arrays have as masks or numbers, of many the first.

  Several masks are rows or, as those of PyTorch Geometric, columns. Raises a
  `UserError` for those of other nodes.
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
      if is_mask:
        check_size(path, key, len(nodes), num_nodes=num_nodes)
        nodes = np.flatnonzero(nodes)
      if len(nodes) and not 0 <= nodes.min() <= nodes.max() < num_nodes:
        raise errors.UserError(
          f'{path} has nodes for {name} that are not among the {num_nodes:,} '
          'of the graph; give masks, or numbers from 0 on'
        )
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
  check_size(path, 'labels', array.shape[0], num_nodes=num_nodes)
  if is_matrix and array.dtype.kind not in 'biuf':
    raise errors.UserError(
      f'{path} has a matrix of labels that are no numbers; give numbers'
    )
  if is_matrix:
    rows = sparse.csr_matrix(sparse.csr_matrix(array) > 0)
    rows.sort_indices()
    labels = [x.tolist() for x in np.split(rows.indices, rows.indptr[1:-1])]
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
