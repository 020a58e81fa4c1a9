"""What is known of nodes: labels, features and splits, from files and arrays.

Files have a row for each node, with its name and what is known of it, or, as
.npy, a row for each in the order of their numbers; or one of the forms below.
"""

import json
import logging
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import heads, published
from jaxemb.graphs import labels as labels_lib
from jaxemb.io import columns as columns_lib
from jaxemb.io import inputs as inputs_lib
from jaxemb.io import roles, tables

_LOG = logging.getLogger('jaxemb')

_NODES = 'newid', 'node', 'nodeid', 'id', 'vertex', 'key', 'name'
_LABELS = ('label', 'labels', 'class', 'group', 'category', 'community', 'y')
_LABELS += ('target', 'mltarget', 'pagetype', 'mature')  # Rozemberczki's
_MISSING = 'nan', 'null', '<na>'  # in any case, beside what pandas writes
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
  counted, inputs = dict(graph.counted), list(graph.inputs)
  path, column = settings['labels'], settings['label_column']
  is_other = path.endswith('.npy') or _form(path) is not None
  if column and (is_other or not path):
    raise errors.UserError(
      f'config.data.label_column={column} is for labels in columns, and '
      f'{path or "config.data.labels"} has none; remove it, or give a file of '
      'such labels'
    )
  if path:
    known['labels'] = _read_labels(graph, settings, counted, inputs=inputs)
  if settings['features']:
    known['features'] = _read_features(graph, settings, counted, inputs=inputs)
  # Of files that were read now: the digest is another.
  digest = '' if known else graph.digest
  known |= {'counted': counted, 'digest': digest, 'inputs': inputs}
  return graph._replace(**known)


def _read_labels(graph, settings, counted, inputs):
  path, number = settings['labels'], numbers(graph)
  inputs.append(_whole(path, 'labels'))
  if path.endswith('.npy'):
    return classes(_array(path, graph), path, graph.num_nodes)
  if form := _form(path):
    cells_by_name = _FORMS[form][0](path)
  else:
    rows = _read_rows(path, settings, number, has_labels=True)
    cells_by_name = rows.label_cells()
    inputs[-1], counted['unreadable_labels'] = rows.shown, rows.num_bad
  labels: list[list[str]] = [[] for _ in range(graph.num_nodes)]
  num_unknown = num_missing = 0
  for name, cells in cells_by_name:
    node = number(name)
    num_unknown += node is None
    for cell in cells if node is not None else ():
      if not cell or cell.lower() in _MISSING:
        num_missing += 1
      else:
        is_list = _LISTED.fullmatch(cell)
        labels[node] += re.split('[,;]', cell) if is_list else [cell]
  if num_missing and not any(labels):
    raise errors.UserError(f'{path} has no labels but {num_missing:,} missing')
  if not any(labels):
    raise _none_known(path, 'labels', num_unknown)
  counted['labels_of_unknown_nodes'] = num_unknown
  counted['missing_labels'] = num_missing
  return labels_lib.Labels.of(labels)


def _whole(path, what):
  form = pathlib.Path(path).suffix
  return roles.Input((path,), form, columns={what: 'all'}, first={})


def _none_known(path, what, num_unknown):
  return errors.UserError(
    f'{path} has {what} of {num_unknown:,} nodes, none of which the graph has; '
    f'give lines `node {what} ...` with the names that edges have'
  )


def _read_features(graph, settings, counted, inputs):
  """[nodes, d] float32; zeros of nodes without any."""
  path, number = settings['features'], numbers(graph)
  num_nodes = graph.num_nodes
  inputs.append(_whole(path, 'features'))
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
    names, values = _FORMS[form][1](path)
  else:
    rows = _read_rows(path, settings, number)
    names, values = rows.nodes, _floats(path, rows.features)
    inputs[-1], counted['unreadable_features'] = rows.shown, rows.num_bad
  nodes = np.array([-1 if (x := number(y)) is None else x for y in names])
  if not (is_known := nodes >= 0).any():
    raise _none_known(path, 'features', len(nodes))
  if not (is_finite := np.isfinite(values).all(1)).all():
    raise errors.UserError(
      f'{path}: features of {names[int(is_finite.argmin())]} are not all '
      'finite; give numbers'
    )
  features = np.zeros((num_nodes, values.shape[1]), np.float32)
  features[nodes[is_known]] = values[is_known]
  counted['features_of_unknown_nodes'] = int((~is_known).sum())
  num_described = len({*nodes[is_known]})
  counted['repeated_features'] = int(is_known.sum()) - num_described
  counted['nodes_without_features'] = num_nodes - num_described
  return features


def _floats(path, columns):
  """[n, columns] float32 of lists of texts."""
  import pyarrow as pa
  import pyarrow.compute as pc

  try:
    arrays = [pc.cast(pa.array(x), 'float32').to_numpy() for x in columns]
  except pa.ArrowInvalid as error:
    raise errors.UserError(
      f'cannot read features of {path}: {errors.one_line(error)}; '
      'give numbers, `node numbers` a line, or `node numbers label`'
    ) from error
  return np.stack(arrays, 1)


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


# Rows of nodes.


class _Rows(NamedTuple):
  """What a file has of nodes."""

  nodes: list[str]
  labels: list[str]  # [n], or [] = of features
  features: list[list[str]]  # by column
  num_bad: int
  shown: roles.Input

  def label_cells(self):
    """Return each node's name and a list of its label."""
    return [(x, [y]) for x, y in zip(self.nodes, self.labels, strict=True)]


def _read_rows(
  path: str,
  settings: Mapping[str, Any],
  number: Callable[[str], int | None],
  has_labels: bool = False,
) -> _Rows:
  """Read labels of nodes, one a row, or features, and log how."""
  file = _one_file(path)
  head = heads.read(file, 'a node', settings['comments'])
  column = settings['label_column']
  has_header = has_labels and bool(column)
  has_header = has_header or _is_header(head, number, has_labels)
  first, widths = head.rows[0], {len(x) for x in head.rows}
  if max(widths) < 2:
    raise errors.UserError(
      f'{path} has lines of 1 field(s); give a node and what is known of it'
    )
  is_ragged = has_labels and not has_header and widths != {2}
  if has_header:
    columns = _named(path, first, column, has_labels=has_labels)
  else:
    width = 2 if has_labels else len(first)
    names = ('label',) if has_labels else ('feature',) * (width - 1)
    columns = _columns(first[:width], ('node', *names), has_header=False)
    if is_ragged:
      columns = columns._replace(names=('1', '2 ...'))
  return _all_rows(file, head, columns, is_ragged=is_ragged)


def _all_rows(file, head, columns, is_ragged=False):
  """Rows of columns with roles; in a ragged file, but for nodes alone."""
  names = [f'{x} {i}' for i, x in enumerate(columns.roles())]
  reader = tables.Reader(
    str(file),
    form='nodes',
    layouts={
      file: head.layout(
        names, skips_first=columns.has_header, is_ragged=is_ragged
      )
    },
    remedy='give as many for each node',
  )
  texts: dict[str, list[list[str]]] = {x: [] for x in names if x[0] != '-'}
  for table in reader.tables(lambda *_: None, lambda table: table):
    cells = {x: table.text(x) for x in texts}
    if is_ragged:
      node, label = cells.values()
      is_value = node.starts != label.starts
      cells = {k: x.select(is_value) for k, x in cells.items()}
    for name, x in cells.items():
      x = columns_lib.values(x) if name.startswith('label') else x
      texts[name] += x.strings().to_pylist()
  by_role: dict[str, list[list[str]]] = {}
  for name, x in texts.items():
    by_role.setdefault(name.split()[0], []).append(x)
  (nodes,), (labels,) = by_role['node'], by_role.get('label', [[]])
  first = head.rows[min(columns.has_header, len(head.rows) - 1)]
  shown = roles.Input.of([file], head.form(), columns, first)
  features = by_role.get('feature', [])
  return _Rows(nodes, labels, features, num_bad=reader.num_bad, shown=shown)


def _one_file(path):
  """The file of a path, or a `UserError` if there are several."""
  file, *more = inputs_lib.together(path, 'file with a line for each node')
  if more:
    raise errors.UserError(
      f'{path} has {1 + len(more)} files; give one, with a line for each node'
    )
  return file


def _is_header(head, number, has_labels):
  """Whether the first row has names of columns: the graph has no such node."""
  first = head.rows[0]
  names = [roles.simplified(x) for x in first]
  if number(first[0]) is not None:
    return False
  if names[0] in (*_NODES, '') or (
    {*_NODES, ''} & {*names} and {*_LABELS} & {*names}
  ):
    return True
  is_text = not any(map(tables.is_number, first))
  if not has_labels:  # names above numbers
    columns = zip(first, zip(*head.rows[1:], strict=False), strict=False)
    return any(
      not tables.is_number(x) and all(map(tables.is_number, below))
      for x, below in columns
    )
  return len(first) > 2 and is_text and head.delimiter != ' '


def _named(path, header, column, has_labels):
  """`roles.Columns` of the node, and of its label or its features."""
  names = [roles.simplified(x) for x in header]
  wanted = [roles.simplified(column)] if column else _LABELS
  if not has_labels:  # a label among features would give itself away
    wanted = {roles.simplified(column), 'label', 'labels', 'class'} - {''}
  found = [i for i, x in enumerate(names) if x in wanted]
  if has_labels and len(header) == 2 and not (found or column):
    found = [1]
  if has_labels and len(found) != 1:
    raise errors.UserError(
      f'{path} has the columns {", ".join(header)[:80]}; say which one has the '
      'labels by --config.data.label_column'
    )
  named = ['-' if has_labels else 'feature'] * len(header)
  for i in found:
    named[i] = 'label' if has_labels else '-'
  others = [i for i in range(len(header)) if i not in found]
  named[min(others, key=lambda i: _rank(names[i]))] = 'node'
  if not {*named} & {'label', 'feature'}:
    raise errors.UserError(
      f'{path} has no features but {", ".join(header)[:80]}; give numbers'
    )
  return _columns(header, named, has_header=True)


def _columns(names, named, has_header):
  by_role: dict[str, tuple[int, ...]] = {}
  for i, role in enumerate(named):
    if role != '-':
      by_role[role] = (*by_role.get(role, ()), i)
  shown = names if has_header else map(str, range(1, 1 + len(names)))
  return roles.Columns(tuple(shown), by_role, has_header=has_header)


def _rank(column):
  """The lower, the more a column looks as if it names nodes as edges do."""
  if column in _NODES:
    return _NODES.index(column)
  return 90 if column.endswith('id') else 91


# Other forms.


def _members(path):
  """Nodes with labels; a line is a community: maybe a name, and its nodes."""
  with_names = published.is_named(path, r'.*\.circles')
  for number, line in enumerate(heads.lines(_one_file(path))):
    name, sep, rest = line.strip().rpartition(';')
    nodes = rest.split()
    if not sep:
      name, *nodes = nodes if with_names else [str(number), *nodes]
    for node in nodes:
      yield node, [name]


def _described(path):
  """The `_Rows` of nodes with features and, in the last column, a label."""
  file = _one_file(path)
  head = heads.read(file, 'a node')
  first = head.rows[0]
  if len(first) < 3:
    raise errors.UserError(
      f'{path} has a line of {len(first)} field(s), {first[0][:60]!r}, ..; '
      'give lines `node features label`'
    )
  named = 'node', *['feature'] * (len(first) - 2), 'label'
  columns = _columns(first, named, has_header=first[0] == 'node_id')
  return _all_rows(file, head, columns)


def _described_features(path):
  """Names and their features; Actor has the numbers of words instead of all."""
  rows = _described(path)
  columns = rows.features
  if len(columns) == 1:  # with commas
    lists = [[y for y in x.split(',') if y] for x in columns[0]]
    if len({*map(len, lists)}) > 1:
      return rows.nodes, _from_places(path, lists)
    columns = list(zip(*lists, strict=True))
  return rows.nodes, _floats(path, columns)


def _from_places(path, lists: Iterable[Sequence[Any]]) -> np.ndarray:
  """[n, d] float32, ones in places that are listed."""
  try:
    places = [np.array(x, np.int64) for x in lists]
    if any(x.min(initial=0) < 0 for x in places):
      raise ValueError('there is a number below 0')
  except (ValueError, TypeError) as error:
    raise errors.UserError(
      f'cannot read features of {path}: {errors.one_line(error)}; give an '
      'object {"node": [numbers of what it has], ..}, or lines `node numbers '
      'label`'
    ) from error
  size = 1 + max(int(x.max(initial=-1)) for x in places)
  rows = np.zeros((len(places), size), np.float32)
  for row, x in zip(rows, places, strict=True):
    row[x] = 1
  return rows


def _json_features(path):
  """Names and their features: rows of numbers, or places of ones."""
  fields = _json(path)
  names, lists = list(fields), list(fields.values())
  try:
    values = {y for x in lists for y in x}
    sizes = {len(x) for x in lists}
    # Places differ from each other.
    are_flags = values <= {0, 1} and len(sizes) == 1 and max(sizes) > 2
    if are_flags or any(isinstance(x, float) for x in values):
      if len(sizes) > 1:
        raise ValueError(f'nodes have {min(sizes)} to {max(sizes)} features')
      return names, np.array(lists, np.float32)
  except (ValueError, TypeError) as error:
    raise errors.UserError(
      f'cannot read features of {path}: {errors.one_line(error)}; give an '
      'object {"node": [numbers of what it has], ..}'
    ) from error
  return names, _from_places(path, lists)


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
    lambda path: _described(path).label_cells(),
    _described_features,
  ),
  r'.*\.json': (_json_labels, _json_features),
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
