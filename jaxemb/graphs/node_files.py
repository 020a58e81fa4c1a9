"""What is known of nodes: labels, features and splits, from files and arrays.

Files have a row for each node, with its name and what is known of it; or, as
.npy, a row for each in the order of their numbers; or an object of JSON; or a
line for each community.
"""

import logging
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.graphs import features as features_lib
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import heads, published
from jaxemb.graphs import labels as labels_lib
from jaxemb.io import columns as columns_lib
from jaxemb.io import inputs, json_text, keys, roles, tables

_LOG = logging.getLogger('jaxemb')

_NODE_NAMES = published.NAMES['node']
_NODE = roles.Role('node', _NODE_NAMES, is_required=True)
_LABEL_NAMES = published.NAMES['label']  # the others may be features
_LABEL = roles.Role('label', _LABEL_NAMES + published.NAMES['other_labels'])
_ROLES = _NODE, _LABEL, roles.Role('feature', takes_many=True)
# Beside what pandas writes for missing values.
_NO_LABEL = re.compile(r'|nan|null|<na>|-\d+', re.IGNORECASE)
# Several labels, in one cell.
_LISTED = re.compile(r'\d+([,;]\d+)+|[^|]+(\|[^|]+)+')
_MOST_PLACES = 1 << 22
_WHOLE = rf'.*\.(npy|json)|{published.COMMUNITIES}'  # no columns


class _Rows(NamedTuple):
  """What a file has of nodes."""

  names: Sequence[str]
  values: Any  # [n] texts of labels, or [n, d] float32 features, maybe sparse
  shown: roles.Input
  num_bad: int = 0


def with_files(
  graph: graph_lib.Graph, settings: Mapping[str, Any]
) -> graph_lib.Graph:
  """Add labels and features from the files that settings name.

  Raises a `UserError` if one cannot be used.
  """
  known: dict[str, Any] = {}
  counted, inputs_ = dict(graph.counted), list(graph.inputs)
  for what in 'labels', 'features':
    if settings[what]:
      known[what], counts, shown = _read(what, graph, settings)
      counted |= counts
      inputs_.append(shown)
  path, column = settings['labels'], settings['label_column']
  if column and (not path or published.is_named(path, _WHOLE)):
    raise errors.UserError(
      f'config.data.label_column={column} is for labels in columns, and '
      f'{path or "config.data.labels"} has none; remove it, or give a file of '
      'such labels'
    )
  # Of files that were read now: the digest is another.
  digest = '' if known else graph.digest
  return graph._replace(**known, counted=counted, digest=digest, inputs=inputs_)


def _read(what, graph, settings):
  """Labels or features, counts of what was left out, and a `roles.Input`."""
  path, num_nodes, number = settings[what], graph.num_nodes, numbers(graph)
  if path.endswith('.npy'):
    make = array_labels if what == 'labels' else _checked
    return make(_array(path, graph), path, num_nodes), {}, _shown(path, what)
  if published.is_named(path, published.COMMUNITIES):
    rows = _communities(path, settings['comments'])
  elif published.is_named(path, _WHOLE):
    rows = _of_json(path, what)
  else:
    rows = _read_rows(path, settings, number, role=what[:-1])
  nodes = np.array([-1 if (x := number(y)) is None else x for y in rows.names])
  if not (is_known := nodes >= 0).any():
    raise errors.UserError(
      f'{path} has {what} of {len(nodes):,} nodes, none of which the graph '
      f'has; give lines `node {what} ...` with the names that edges have'
    )
  values = rows.values
  if what == 'labels':
    values = np.asarray(values, object)
  nodes, values = nodes[is_known], values[is_known]
  counts = {
    f'unreadable_{what}': rows.num_bad,
    f'{what}_of_unknown_nodes': int((~is_known).sum()),
  }
  if what == 'labels':
    labels, num_missing = _numbered(path, nodes, values, num_nodes=num_nodes)
    return labels, counts | {'missing_labels': num_missing}, rows.shown
  features = _by_node(nodes, values, num_nodes)
  if (node := features_lib.first_bad(features)) is not None:
    name = graph.keys()[node]
    raise errors.UserError(
      f'{path}: features of {name} are not all finite; give numbers'
    )
  num_described = len(np.unique(nodes))
  counts['repeated_features'] = len(nodes) - num_described
  counts['nodes_without_features'] = num_nodes - num_described
  return features, counts, rows.shown


def _by_node(nodes, values, num_nodes):
  """[num_nodes, d] of rows [n, d] of some nodes; of repeated ones the last."""
  if not features_lib.is_sparse(values):
    features = np.zeros((num_nodes, values.shape[1]), np.float32)
    features[nodes] = values
    return features
  from scipy import sparse

  rows = np.full(num_nodes, -1)
  rows[nodes] = np.arange(len(nodes))
  described = np.flatnonzero(rows >= 0)
  ones = np.ones(len(described), np.float32)
  places = described, rows[described]
  return sparse.csr_matrix((ones, places), (num_nodes, len(nodes))) @ values


def _numbered(path, nodes, texts, num_nodes):
  """`labels.Labels` of int nodes [n], but for missing ones, and how many."""
  cells = [
    re.split('[|]' if '|' in x else '[,;]', x) if _LISTED.fullmatch(x) else [x]
    for x in texts
  ]
  nodes = np.repeat(nodes, [*map(len, cells)])
  texts = [y for x in cells for y in x]
  rows = [i for i, x in enumerate(texts) if not _NO_LABEL.fullmatch(x)]
  num_missing = len(texts) - len(rows)
  if {*texts} == {'1', '-1'} or (num_missing and not rows):
    raise errors.UserError(
      f'{path} has no labels but {num_missing:,} missing ones, which are empty '
      'or below 0, and at most one class; call all classes by names'
    )
  labels = [texts[i] for i in rows]
  return labels_lib.Labels.of(nodes[rows], labels, num_nodes), num_missing


def _shown(path, what):
  form = pathlib.Path(path).suffix
  return roles.Input((path,), form, columns={what: 'all'}, first={})


def _checked(features, path, num_nodes):
  """Raises a `UserError` for an array that has no features of all nodes."""
  is_number = features.dtype.kind in 'biuf'
  if features.ndim != 2 or len(features) != num_nodes or not is_number:
    raise errors.UserError(
      f'{path} has the shape {features.shape} and the type {features.dtype}, '
      f'and the graph has {num_nodes:,} nodes; give numbers, a row for each'
    )
  return features


def _array(path, graph):
  """The array of an .npy file."""
  if graph.names is not None:
    first = ', '.join(graph.names[:3])
    _LOG.info('%s: rows are read as of the nodes %s, ..', path, first)
  try:
    return np.load(os.path.expanduser(path), mmap_mode='r')
  except Exception as error:  # of any class, where a file is damaged
    raise errors.UserError(
      f'cannot read {path}: {errors.one_line(error)}; give an array by '
      'numpy.save'
    ) from error


def numbers(graph: graph_lib.Graph) -> Callable[[str], int | None]:
  """Return a function from the name of a node to its number or None."""
  if graph.names is not None:
    return {x: i for i, x in enumerate(graph.names)}.get

  def number(name):
    node = roles.whole_number(name)
    is_node = node is not None and node < graph.num_nodes
    return node if is_node and str(node) == name else None

  return number


# Rows of nodes.


def _read_rows(path, settings, number, role):
  """Read the `_Rows` of nodes with a 'label', or with what is a 'feature'."""
  file = _file(path)
  head = heads.read(file, 'a node', settings['comments'])
  first, widths = head.rows[0], {len(x) for x in head.rows}
  is_content = published.is_named(path, published.CONTENT)
  if max(widths) < 2 + is_content:
    raise errors.UserError(
      f'{path} has lines of {len(first)} field(s), such as {first[0][:60]!r}; '
      f'give lines `node {"features " * is_content}{role} ...`'
    )
  column, is_ragged = settings['label_column'], False
  if is_content:
    has_header = first[0] == 'node_id'
    named = ['node', *['feature'] * (len(first) - 2), 'label']
    named = [x if x in ('node', role) else '-' for x in named]
  elif has_header := (role == 'label' and bool(column)) or _is_header(
    head, number, role
  ):
    named = _by_names(path, first, column, role=role)
  else:
    is_ragged = role == 'label' and widths != {2}
    named = ['node', *[role] * (1 if role == 'label' else len(first) - 1)]
    if is_ragged and len(widths) == 1:
      _refuse_columns(path, head.rows)
  if role not in named:
    raise errors.UserError(
      f'{path} has the first line {" ".join(first)[:60]!r}, which is shorter '
      f'than others; give lines `node {role} ...`, or a header'
    )
  columns = roles.assign(
    path,
    _ROLES,
    first[: len(named)],
    declared=','.join(named),
    has_header=has_header,
  )
  if is_ragged:
    columns = columns._replace(names=('1', '2 ...'))
  rows = _all_rows(file, head, columns, role=role, is_ragged=is_ragged)
  unknown = (x for x in rows.names if number(x) is None)
  heads.refuse_comments(path, settings, unknown)
  if role == 'label' and not (has_header or is_ragged):
    num_nodes, num_labels = (
      sum(number(y) is not None for y in {*x})
      for x in (rows.names, rows.values)
    )
    if num_labels > num_nodes:
      raise errors.UserError(
        f'{path} has {num_nodes:,} nodes of the graph in its first column, and '
        f'{num_labels:,} in its second; write lines `node label`, or a header '
        'such as label,node'
      )
  return rows


def _all_rows(file, head, columns, role, is_ragged):
  """Read the `_Rows` of columns; cells may be lists."""
  import pyarrow.compute as pc

  names = [f'{x} {i}' for i, x in enumerate(columns.roles())]
  values_of = [x for x in names if x.startswith(role)]
  first = head.rows[min(columns.has_header, len(head.rows) - 1)]
  column = names.index(values_of[0])
  cells = [x[column] for x in head.rows if len(x) > column]
  # Elsewhere a class may be called a, b, and 1,5 be 1.5.
  is_content = published.is_named(file, published.CONTENT) and role == 'feature'
  sign = '' if is_ragged or values_of[1:] else columns_lib.list_sign(cells, ',')
  sign = sign if is_content or sign[:1] == '[' else ''
  is_text = bool(sign) or role == 'label'
  layout = head.layout._replace(
    columns=names, skips_first=columns.has_header, is_ragged=is_ragged
  )
  reader = tables.Reader(
    str(file),
    form='nodes',
    layouts={file: layout},
    remedy=f'give {"numbers, " * (role == "feature")}as many for each node, in '
    f'lines `node {role}s` or `node numbers label`',
  )

  def parsed(table):
    nodes = table.text(next(x for x in names if x.startswith('node')))
    if not is_text:
      values = [columns_lib.numbers(table.columns[x]) for x in values_of]
      return nodes.strings().to_pylist(), np.stack(values, 1).astype('f4')
    values = table.columns[values_of[0]]
    if sign:
      values = _lists(values, sign)
      if role == 'feature':
        return nodes.strings().to_pylist(), values.to_pylist()
      owners = pc.list_parent_indices(values).to_numpy(zero_copy_only=False)
      nodes, values = nodes.select(owners), pc.list_flatten(values)
    values = columns_lib.values(values)
    if is_ragged:  # a node alone has no label
      is_value = nodes.starts != values.starts
      nodes, values = nodes.select(is_value), values.select(is_value)
    return nodes.strings().to_pylist(), values.strings().to_numpy(False)

  blocks = list(reader.tables(lambda *_: None, parsed))
  nodes = [x for block, _ in blocks for x in block]
  if sign and role == 'feature':
    values = _of_lists(file, [x for _, block in blocks for x in block])
  else:
    none = np.zeros((0,) if is_text else (0, len(values_of)))
    values = np.concatenate([none, *(x for _, x in blocks)])
  shown = roles.Input.of([file], head.shown(), columns, first)
  return _Rows(nodes, values, shown, num_bad=reader.num_bad)


def _lists(column, sign):
  """An Arrow array of lists, of a column of these or of their texts."""
  if not isinstance(column, keys.Text):
    column = columns_lib.plain(column)
  if isinstance(column, keys.Text) or not columns_lib.is_list(column.type):
    column = columns_lib.split_lists(column, sign)
  return column


def _file(path):
  """The file of a path, or a `UserError` if there are several."""
  file, *more = inputs.together(path, 'file with a line for each node')
  if more:
    raise errors.UserError(
      f'{path} has {1 + len(more)} files; give one, with a line for each node'
    )
  return file


def _is_header(head, number, role):
  """Whether the first row has names of columns: the graph has no such node."""
  first = head.rows[0]
  if number(first[0]) is not None:
    return False
  if roles.simplified(first[0]) in ('', *_NODE_NAMES):
    return True
  is_table = role == 'label' and len(first) > 2 and head.layout.delimiter != ' '
  return roles.is_header((_NODE, _LABEL), head.rows) or (
    is_table and not any(map(roles.is_number, first))
  )


def _by_names(path, header, column, role):
  """The role of each column below a header: of one node, and of `role`."""
  names = [roles.simplified(x) for x in header]
  wanted = (roles.simplified(column),) if column else _LABEL.names
  if role == 'feature':  # a label among features would give itself away
    wanted = (*wanted[: bool(column)], *_LABEL_NAMES)
  labels = [i for i, x in enumerate(names) if x in wanted]
  rest = [i for i in range(len(names)) if i not in labels]
  ranks = {x: i for i, x in enumerate(_NODE_NAMES)}  # else `..id`, or the first
  node = min(
    rest,
    key=lambda i: ranks.get(names[i], 99 - names[i].endswith('id')),
    default=None,
  )
  rest = [i for i in rest if i != node and not tables.is_index(header[i])]
  is_other = role == 'feature' or (len(header) == 2 and not labels + [*column])
  chosen = rest if is_other else labels
  if node is None or not chosen or (role == 'label' and len(chosen) > 1):
    raise errors.UserError(
      f'{path} has no {role}s but {", ".join(header)[:80]}; give numbers, or '
      'say which column has labels by --config.data.label_column'
    )
  return [
    'node' if i == node else role if i in chosen else '-'
    for i in range(len(header))
  ]


def _refuse_columns(path, rows):
  """Raises a `UserError` for columns that seem to have something else each."""
  columns = [{*x} for x in zip(*rows, strict=True)][1:]
  columns = [x for x in columns if x != {''}]
  for i, values in enumerate(columns):
    others = columns[:i] + columns[i + 1 :]
    if others and not values & set().union(*others):
      raise errors.UserError(
        f'{path} has {len(rows[0])} columns and no header, such as '
        f'{" ".join(rows[0])[:80]!r}: are all labels? Write a header, and give '
        '--config.data.label_column, or lines `node label` for each label'
      )


# Other forms.


def _communities(path, comments):
  """The `_Rows` of a file whose lines are maybe a name, and its nodes."""
  file, names, labels = _file(path), [], []
  head = heads.read(file, 'a node', comments)
  with_names = published.is_named(path, r'.*\.circles')
  for number, line in enumerate(heads.lines(file, head)):
    name, sep, rest = line.strip().rpartition(';')
    nodes = rest.split()
    if not sep:
      name, *nodes = nodes if with_names else [str(number), *nodes]
    names += nodes
    labels += [name] * len(nodes)
  return _Rows(names, labels, _shown(path, 'labels'))


def _json(path) -> dict[str, Any]:
  file = pathlib.Path(os.path.expanduser(path))
  try:
    fields = json_text.loads(file.read_text('utf-8'))
    if not isinstance(fields, dict) or not fields:
      raise ValueError('it is no object of nodes')
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'cannot read {path}: {errors.one_line(error)}; give an object of nodes'
    ) from error
  return fields


def _of_json(path, what):
  """The `_Rows` of an object of nodes.

  Labels are one of each node, or several, or zeros and ones for all labels.
  """
  fields, shown = _json(path), _shown(path, what)
  if what == 'features':
    return _Rows([*fields], _of_lists(path, [*fields.values()]), shown)
  lists = [x if isinstance(x, list) else [x] for x in fields.values()]
  sizes = {len(x) for x in lists}
  if len(sizes) == 1 and sizes.pop() > 1:
    if all(y in (0, 1) for x in lists for y in x):
      lists = [np.flatnonzero(x) for x in lists]
  names = [k for k, x in zip(fields, lists, strict=True) for _ in x]
  texts = [columns_lib.name(y) for x in lists for y in x]
  return _Rows(names, texts, shown)


def _of_lists(path, lists: Sequence[Any]) -> Any:
  """[n, d] float32 of lists of numbers, or, sparse, of the places of ones.

  Lists of several lengths are places, whole numbers that differ in each list;
  those of one are numbers. Raises a `UserError` for what may be both.
  """
  try:
    lists = [[y for y in x if y != ''] for x in lists]
    arrays = [np.asarray(x, float) for x in lists]
    if any(x.ndim > 1 for x in arrays):
      raise ValueError('they are lists of lists')
    sizes = {len(x) for x in arrays}
    has_points = any('.' in str(y) for x in lists for y in x)
    are_places = not has_points and all(
      (x == abs(x // 1)).all() and len(x) == len(np.unique(x)) for x in arrays
    )
    most = max(x.max(initial=0) for x in arrays)
    if len(sizes) > 1 and not are_places:
      raise ValueError(f'nodes have {min(sizes)} to {max(sizes)} features')
    if len(sizes) == 1 and are_places and most > 1:
      raise ValueError('they may be numbers, or places of ones')
    if are_places and most > _MOST_PLACES:
      raise ValueError(f'the place {most:.0f} is too large')
    if len(sizes) == 1:
      return np.array(arrays, np.float32)
  except (ValueError, TypeError, OverflowError) as error:
    raise errors.UserError(
      f'cannot read features of {path}: {errors.one_line(error)}; give as '
      'many numbers for each node, with points, or all as .npy, or an object '
      '{"node": [places of ones], ..}'
    ) from error
  from scipy import sparse

  columns = np.concatenate(arrays).astype(int)
  offsets = np.append(0, np.cumsum([*map(len, arrays)]))
  ones = np.ones(len(columns), np.float32)
  shape = len(arrays), 1 + int(most)
  return sparse.csr_matrix((ones, columns, offsets), shape)


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
  if not os.path.isfile(path):
    return {}
  try:
    nodes = {k: np.array(x, np.int64) for k, x in _json(path).items() if x}
    return splits_of(path, nodes, num_nodes)
  except (ValueError, TypeError, OverflowError) as error:
    raise errors.UserError(
      f'cannot read {path}: {errors.one_line(error)}; give an object of lists '
      'of nodes'
    ) from error


def splits_of(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], num_nodes: int
) -> dict[str, Any]:
  """Find the `splits` that arrays have as masks or numbers, of many the first.

  Several masks are rows or, as those of PyTorch Geometric, columns. Raises a
  `UserError` for those of other nodes.
  """
  splits = {}
  for name in 'train', 'valid', 'test':
    for key in published.ARRAYS[name]:
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


def array_labels(
  array: Any,
  path: pathlib.Path | str,
  num_nodes: int,
  names: Sequence[str] | None = None,
) -> labels_lib.Labels:
  """Read labels from an array with a label, or a row, for each node.

  A row has a number above 0 for each label of the node. Numbers below 0 and NaN
  are no labels. With `names` labels are places in them, if there are as many.
  """
  from scipy import sparse

  is_matrix = array.ndim == 2 and min(array.shape) > 1
  if not is_matrix:
    array = array.toarray() if sparse.issparse(array) else array
    array = np.asarray(array).reshape(-1)
  check_size(path, 'labels', array.shape[0], num_nodes=num_nodes)
  if array.dtype.kind not in ('biuf' if is_matrix else 'biufUSO'):
    raise errors.UserError(
      f'{path} has labels of type {array.dtype}; give numbers'
    )
  numbers_of = None  # places of the values of nodes
  if is_matrix:
    rows = sparse.csr_matrix(sparse.csr_matrix(array) > 0)
    rows.sort_indices()
    nodes, classes = rows.nonzero()
    texts = [*map(str, classes.tolist())]
  else:
    if array.dtype.kind == 'f':
      array = np.where(np.isfinite(array), array, np.nan).astype(np.float64)
    elif array.dtype.kind == 'O':  # cells of Matlab
      array = np.array([str(np.squeeze(x)) for x in array])
    if array.dtype.kind in 'biuf':
      array, numbers_of = np.unique(array, return_inverse=True)
    nodes = np.arange(len(array))
    try:
      column = columns_lib.array(array)
    except UnicodeError as error:  # of a damaged array
      raise errors.UserError(
        f'cannot read labels of {path}: {errors.one_line(error)}'
        '; give an array by numpy.save'
      ) from error
    texts = columns_lib.values(column).strings().to_pylist()
  num = num_nodes if numbers_of is None else len(array)
  labels, _ = _numbered(path, nodes, texts, num_nodes=num)
  if numbers_of is not None:
    labels = labels._replace(classes=labels.classes[numbers_of])
  used = labels.names
  places = [roles.whole_number(x) for x in used]
  if names and all(x is not None and x < len(names) for x in places):
    labels = labels._replace(names=[names[x] for x in places if x is not None])
  return labels
