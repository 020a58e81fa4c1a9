"""Which columns of a list of edges are nodes, weights and relations."""

import logging
import pathlib
import re
from collections.abc import Sequence

from jaxemb import errors
from jaxemb.io import tables

_LOG = logging.getLogger('jaxemb')

ROLES = 'source', 'target', 'weight', 'relation'
ADJACENCY = 'source,targets'  # `data.columns` of adjacency lists
_NAMES = {  # of columns in headers
  'source': {'source', 'src', 'from', 'head', 'subject', 'h', 'u'}
  | {'node1', 'node_1'},
  'target': {'target', 'dst', 'to', 'tail', 'object', 't', 'v'}
  | {'node2', 'node_2'},
  'weight': {'weight', 'w', 'value', 'strength'},
  'relation': {'relation', 'rel', 'predicate', 'type', 'edge_type', 'r'},
}
_INDEX = {'', 'unnamed: 0', '__index_level_0__'}  # of rows, as pandas writes it
_OF_EDGES = {'id', 'index', 'edge', 'edge_id', 'edgeid'}
_NO_WEIGHTS = {'id', 'index', 'time', 'timestamp', 'date', 'year', 'label'}

Table = Sequence[Sequence[str]]  # the first rows of a file


def assign(
  path: pathlib.Path, table: Table, declared: str
) -> tuple[list[str], bool]:
  """Find the role of each column, or '-', and whether there is a header.

  `table` has a single row where that is surely a header. `declared` is
  `data.columns`. Raises a `UserError` where the columns cannot be told.
  """
  first, has_header = table[0], _has_header(path, table)
  if declared:
    roles = _declared(path, declared, len(first))
    return [*roles, *['-'] * (len(first) - len(roles))], has_header
  if len(first) < 2:
    raise errors.UserError(
      f'{path} has one field in its first line, {first[0][:60]!r}, and an edge '
      'has two nodes; give a list of edges'
    )
  for column in zip(*table[1:], strict=False):
    if all(re.fullmatch(r'\d+,\d+', x) for x in column):
      raise errors.UserError(
        f'{path} has numbers such as {column[0]}; write points, not commas'
      )
  return (_by_names if has_header else _by_content)(path, table), has_header


def _has_header(path, table):
  first, rest = [x.lower() for x in table[0]], table[1:]
  names = set().union(*_NAMES.values())
  if tables.guess(path) == 'parquet':
    return True
  if sum(x in names for x in first) > 1:
    nodes = {y for x in rest for y in x}  # of edges such as u v, v w
    if not any(x in names and x in nodes for x in table[0]):
      return True
  return bool(rest) and any(
    not tables.is_number(x)
    and all(len(y) > i and tables.is_number(y[i]) for y in rest)
    for i, x in enumerate(first)
  )


def _declared(path, declared, width):
  roles = [x.strip() for x in declared.split(',')]
  if unknown := sorted({*roles} - {*ROLES, '-'}):
    raise errors.UserError(
      f'config.data.columns={declared} names {unknown[0]!r}; give '
      f'{", ".join(ROLES)}, or - for others, in their order'
    )
  if not {'source', 'target'} <= {*roles} or len(roles) > width:
    raise errors.UserError(
      f'config.data.columns={declared} must have a source and a target, and no '
      f'more columns than the {width} of {path}'
    )
  return roles


def _by_content(path, table):
  """Columns below no header."""
  first, widths = table[0], [len(x) for x in table]
  if len({*widths}) > 3:
    raise errors.UserError(
      f'{path} has lines of {min(widths)} to {max(widths)} fields; if it is an '
      'adjacency list, a node and its neighbors, give '
      f'--config.data.columns={ADJACENCY}'
    )
  if len(first) > 3:
    raise errors.UserError(
      f'{path} has {len(first)} columns and no header; say what they are, such '
      'as --config.data.columns=source,target,weight,-'
    )
  if len(first) == 2:
    return ['source', 'target']
  rows = [x for x in table[1:] or table if len(x) > 2]
  has_number = [any(tables.is_number(x[i]) for x in rows) for i in (0, 1, 2)]
  if all(x[2] in ('', '{}') for x in rows):  # as NetworkX writes it
    return ['source', 'target', '-']
  if not any(re.search(r'\w', x[1]) for x in rows):  # 1 -> 2
    return ['source', '-', 'target']
  third = 'weight' if has_number[2] else 'relation'
  if not has_number[2] and not all(has_number[:2]):
    return ['source', 'relation', 'target']  # of knowledge graphs
  _refuse_times(path, [x[2] for x in rows])
  return ['source', 'target', third]


def _by_names(path, table):
  """Columns below a header: by its names, then from left to right."""
  rest, names = table[1:], [x.lower() for x in table[0]]
  columns = {
    role: next(i for i, x in enumerate(names) if x in known)
    for role, known in _NAMES.items()
    if known & {*names}
  }
  others = [
    i
    for i, x in enumerate(names)
    if i not in columns.values() and x not in _INDEX
  ]
  if len(columns) + len(others) > 2:  # names of edges are no nodes
    others = [i for i in others if names[i] not in _OF_EDGES]
  for role in ('source', 'target'):
    if role not in columns:
      if not others:
        raise errors.UserError(
          f'{path} has no column of a {role}; give --config.data.columns'
        )
      columns[role] = others.pop(0)
  if 'weight' not in columns and len(others) == 1 and rest:
    # The only column that is left, if it has numbers.
    (i,) = others
    is_weight = all(len(x) > i and tables.is_number(x[i]) for x in rest)
    if is_weight and names[i] not in _NO_WEIGHTS:
      _refuse_times(path, [x[i] for x in rest])
      columns['weight'] = i
  roles = {i: role for role, i in columns.items()}
  if unused := [x for i, x in enumerate(table[0]) if i not in roles and x]:
    _LOG.info('%s: columns that are not used: %s', path, ', '.join(unused))
  return [roles.get(i, '-') for i in range(len(names))]


def _refuse_times(path, texts):
  """Raises a `UserError` for what looks like seconds since 1970, or dates."""
  times = r'\s*(1?\d{9}(\.\d+)?|\d{4}-\d\d-\d\d.*)\s*'
  if all(re.fullmatch(times, x) for x in texts):
    raise errors.UserError(
      f'{path} has values such as {texts[0].strip()} where weights would be, '
      'which look like times; give --config.data.columns=source,target,-, or '
      'source,target,weight if they are weights'
    )
  are_whole = all(x.strip().isdecimal() for x in texts)
  numbers = [int(x) for x in texts] if are_whole else []
  if len({*numbers}) > 4 and numbers == sorted(numbers):
    _LOG.info(
      '%s: numbers from %d on, which rise from line to line as times do, are '
      'read as weights; if they are none, give --config.data.columns='
      'source,target,-',
      *(path, numbers[0]),
    )
