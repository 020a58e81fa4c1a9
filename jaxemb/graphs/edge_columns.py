"""Which columns of a list of edges are nodes, weights and relations."""

import logging
import pathlib
import re
from collections.abc import Sequence

from jaxemb import errors
from jaxemb.graphs import line_format
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
) -> tuple[dict[str, int], bool]:
  """Find the column of each role, and whether the first line is a header.

  `table` has a single row where that is surely a header. `declared` is
  `data.columns`. Raises a `UserError` where the columns cannot be told.
  """
  first = table[0]
  has_header = _has_header(path, table)
  if declared:
    return _declared(path, declared, len(first)), has_header
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
  if has_header:
    return _by_names(path, table), True
  return _by_content(path, table), False


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
    not line_format.is_number(x)
    and all(len(y) > i and line_format.is_number(y[i]) for y in rest)
    for i, x in enumerate(first)
  )


def _declared(path, declared, width):
  roles = [x.strip() for x in declared.split(',')]
  if unknown := sorted({*roles} - {*ROLES, '-'}):
    raise errors.UserError(
      f'config.data.columns={declared} names {unknown[0]!r}; give '
      f'{", ".join(ROLES)}, or - for others, in their order'
    )
  columns = {x: i for i, x in enumerate(roles) if x != '-'}
  if not {'source', 'target'} <= columns.keys() or len(roles) > width:
    raise errors.UserError(
      f'config.data.columns={declared} must have a source and a target, and no '
      f'more columns than the {width} of {path}'
    )
  return columns


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
  roles = ROLES[:2]
  if len(first) == 3:
    rows = [x for x in table[1:] or table if len(x) > 2]
    has_number = [
      any(line_format.is_number(x[i]) for x in rows) for i in (0, 1, 2)
    ]
    if all(x[2] in ('', '{}') for x in rows):  # as NetworkX writes it
      roles = ROLES[:2]
    elif not any(re.search(r'\w', x[1]) for x in rows):  # 1 -> 2
      roles = 'source', '-', 'target'
    elif has_number[2]:
      roles = ROLES[:3]
    elif has_number == [True, True, False]:
      roles = 'source', 'target', 'relation'
    else:  # as of knowledge graphs: head, relation, tail
      roles = 'source', 'relation', 'target'
    if roles[1:] in (('target', 'weight'), ('target', 'relation')):
      _refuse_times(path, [x[2] for x in rows])
  return {x: i for i, x in enumerate(roles) if x != '-'}


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
    is_weight = all(len(x) > i and line_format.is_number(x[i]) for x in rest)
    if is_weight and names[i] not in _NO_WEIGHTS:
      _refuse_times(path, [x[i] for x in rest])
      columns['weight'] = i
  used = columns.values()
  if unused := [x for i, x in enumerate(table[0]) if i not in used and x]:
    _LOG.info('%s: columns that are not used: %s', path, ', '.join(unused))
  return columns


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
