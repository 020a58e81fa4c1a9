"""Which columns of a list of edges are nodes, weights and relations.

A header or `data.columns` says so, or else what the first rows hold: there one
reading must be plausible, and several are a `UserError`.
"""

import collections
import re
from collections.abc import Sequence

from jaxemb import errors
from jaxemb.graphs import published
from jaxemb.io import roles, tables

ADJACENCY = 'source,targets'  # `data.columns` of adjacency lists
MATRIX = """is a matrix, with a row and a column for each node; write edges, \
such as by networkx.from_pandas_adjacency and to_pandas_edgelist"""

_NAMES = published.NAMES
# What the two nodes of an edge are called; the first pair wins.
_PAIRS = [*zip(_NAMES['sources'], _NAMES['targets'], strict=True)]
_STEMS = [x for x in _PAIRS if len(x[0]) > 2]
# What the first and the second of two numbered names have.
_SECONDS = ('1', '2'), ('0', '1'), ('(?<=..)a$', 'b'), ('(?<=..)x$', 'y')
# The first and the last cell of rows in signs that are in no name.
_SIGNS = (
  *[(rf'\{a}[^{b}]*', rf'[^{a}]*\{b}') for a, b in ('()', '{}')],
  (r'\[[^]]*', r'[^[]*\]'),
  ("'.*'", "'.*'"),
  ('.*:', '.*'),
  (r'\d+:\d+', r'\d+'),
)
_TIME = re.compile(r'\s*(1?\d{9}(\.\d+)?|1\d{12}|\d{4}-\d\d-\d\d.*+)\s*')
_YEAR = re.compile(r'(19|20)\d\d(\.0)?')
# Of nodes, as Neo4j names it. The first "ID(" of a line matches or none does.
_GROUP = re.compile(r'(?:^|\n)(?>.*?ID\()(.+)\)$')
_OTHERS = [roles.Role(x, _NAMES[x]) for x in ('relation', 'weight', 'time')]
_KNOWN = {y for x in _OTHERS for y in x.names} | {y for x in _STEMS for y in x}
_INDEX = {'', *_NAMES['index']}
_KINDS, _RELATIVES = {*_NAMES['kinds']}, {*_NAMES['relatives']}
_WHAT_NODES_ARE = ('entity', 'ip', 'address', *_NAMES['node'], *_KINDS)

Rows = Sequence[Sequence[str]]  # the first rows of a file


def _roles(source: Sequence[str], target: Sequence[str]):
  return (
    roles.Role('source', tuple(source), is_required=True),
    roles.Role('target', tuple(target), is_required=True),
    *_OTHERS,
  )


ROLES = _roles(_NAMES['sources'], _NAMES['targets'])


def assign(
  where: str, rows: Rows, declared: str, form: str = ''
) -> roles.Columns:
  """Return the `roles.Columns` of a table, whose first row may be a header.

  `declared` is `data.columns`; `form` that of a table whose columns have names,
  '' = text. Raises a `UserError` where the columns cannot be told.
  """
  if tables.has_row_names(rows):
    as_of_r = [['', *rows[0]], *rows[1:]]
    rows = as_of_r if is_header(as_of_r, declared) else rows
  first = rows[0]
  if len(first) < 2:
    raise errors.UserError(
      f'{where} has one field in its first line, {first[0][:60]!r}, and an '
      'edge has two nodes; give a list of edges'
    )
  for column in zip(*rows[1:], strict=False):
    if all(re.fullmatch(r'\d+,\d+', x) for x in column):
      raise errors.UserError(
        f'{where} has numbers such as {column[0]}; write points, not commas, '
        'and a line for each edge'
      )
  if not declared:
    _refuse_matrix(where, rows)
  if form or is_header(rows, declared):
    columns = _by_names(where, rows, declared, form=form)
  else:
    by_position = declared or ','.join(_by_content(where, rows))
    columns = roles.assign(
      where, ROLES, first, declared=by_position, has_header=False
    )
    roles.require(where, ROLES, columns)
  if not declared:
    _refuse_lists(where, rows, columns)
    if not columns.has_header:
      _refuse_names(where, rows, columns)
  return columns


def is_header(rows: Rows, declared: str = '') -> bool:
  """Whether the first of some rows is a header, see `roles.is_header`."""
  if ':' in declared and roles.is_header(ROLES, rows, declared):
    return True
  first, below = rows[0], {x for row in rows[1:] for x in row}
  if not below:  # one row, of no edge if it is `source target`
    return _pair([*map(roles.simplified, first)]) in _STEMS
  has_index = first[0] == ''
  if first[has_index:] == [*map(str, range(len(first) - has_index))]:
    return has_index or not any(map(roles.is_number, below))  # of pandas
  if any(map(roles.is_number, first)):
    return False
  if all(len(roles.simplified(x)) == 1 for x in first):  # of letters, u v
    if any(len(x) == 1 and x.isalpha() for x in below):
      return False
  names = [roles.simplified(x) for x in first if x not in below]
  if (pair := _pair(names)) and _are_names(pair, below):
    return True
  known = _KINDS | _RELATIVES | {'entity', *_NAMES['node']}
  num = sum(
    _kind(x) in known or bool(re.search('.(id|name)$', x)) for x in names
  )
  return num > 1 or roles.is_header(ROLES, rows)


def _are_names(pair, below):
  """Whether a pair is not of nodes that are told by numbers, as n1 and n2."""
  numbered = {*map(_numbered, pair)}
  if numbered & {_numbered(roles.simplified(x)) for x in below}:
    return False
  stems = [x[:-1] for x in pair]
  return len(numbered) > 1 or all(x.endswith(_WHAT_NODES_ARE) for x in stems)


def _numbered(name):
  """The name with 0 for what tells it from others of its kind, as in n7."""
  return re.sub(r'\d+|[a-z]$', '0', name)


def _refuse(where, what, *columns):
  """Raises a `UserError` that asks for one of some `data.columns`."""
  choices = ' or '.join(f'--config.data.columns={x}' for x in columns)
  raise errors.UserError(f'{where} has {what}; give {choices}')


def _by_names(where, rows, declared, form):
  """Columns below a header: pairs of names, then what is left."""
  header, rows = rows[0], rows[1:]
  names = [roles.simplified(x) for x in header]
  pair = _pair(names)
  known = _roles(pair[:1], pair[1:])
  columns = roles.assign(where, known, header, declared=declared)
  if declared:
    return roles.require(where, known, columns)
  by_role = dict(columns.by_role)
  taken = {i for x in by_role.values() for i in x}
  left = [i for i, x in enumerate(names) if i not in taken and x not in _INDEX]
  if not pair and len(left) == 2 and form != 'jsonl':
    by_role |= {'source': (left[0],), 'target': (left[1],)}
    columns, left = columns._replace(by_role=by_role), []
    _refuse_same(where, rows, columns)
  elif not pair and form == 'jsonl':
    where = f'{where} is JSON, and'
  roles.require(where, known, columns)
  texts = {k: _cells(rows, i) for k, (i,) in by_role.items()}
  nodes = ','.join(f'{k}:{columns.named()[k]}' for k in ('source', 'target'))
  kinds = {x.strip().lower() for x in texts.get('relation', ())}
  if kinds and kinds <= {'', 'directed', 'undirected'}:  # as Gephi writes it
    del by_role['relation']
  role, numeric = 'weight', [i for i in left if _are_numbers(_cells(rows, i))]
  if 'weight' in by_role or 'relation' in by_role:
    role, numeric = 'relation', by_role.get('relation', ())
    if names[(*numeric, 0)[0]] != 'label' or not _are_numbers(kinds):
      numeric = ()
  if len(numeric) == 1:
    name = header[numeric[0]]
    what = f'numbers in {name}, which may be a {role} or not'
    _refuse(where, what, f'{nodes},{role}:{name}', f'{nodes},-:{name}')
  if 'weight' in texts:
    _refuse_times(where, texts['weight'])
  return columns._replace(by_role=by_role)


def refuse_signs(where: str, rows: Rows, is_named: bool) -> None:
  """Raises a `UserError` for signs around the nodes of all rows."""
  for first, last in _SIGNS[: -1 if is_named else None]:
    if all(
      re.fullmatch(first, x[0]) and re.fullmatch(last, x[-1]) for x in rows
    ):
      raise errors.UserError(
        f'{where} has lines such as {" ".join(rows[0])[:60]!r}, with signs '
        "that seem to be in no name; remove them (tr '()[]:' ' ')"
      )


def _refuse_matrix(where, rows):
  """Raises a `UserError` for a row and a column for each node."""
  first, *rest = rows
  names, cells = first[1:], [x[0] for x in rest]
  is_named = 1 < len(cells) <= len(names) and names[: len(cells)] == cells
  weights = [x[1:] for x in rest] if is_named else rest
  is_square = len(rest) in (len(first), len(first) - 1)
  has_roles = {*map(roles.simplified, first)} & _KNOWN
  if is_named or (is_square and len(first) > 3 and not has_roles):
    if all(roles.is_number(y or '0') for x in weights for y in x):
      raise errors.UserError(f'{where} {MATRIX}')


def _refuse_lists(where, rows, columns):
  """Raises a `UserError` for cells that have several nodes."""
  rows = rows[columns.has_header :]
  ends = [_cells(rows, columns.index(x)) for x in ('source', 'target')]
  for cells, others in ends, ends[::-1]:
    nodes, lists = {*cells, *others}, []
    are_plain = not any(x[:1] in '[{' for x in others)
    for cell in cells:
      # Names may have spaces between words.
      signs = r'[][{}()|,;\'"]+' if re.search('[a-z]', cell, re.I) else r'\D+'
      pieces = [x for x in re.split(signs, cell) if x]
      is_list = are_plain and bool(re.fullmatch(r'\[.*\]|\{.*\}', cell))
      are_nodes = pieces and cell not in pieces and nodes.issuperset(pieces)
      if is_list or are_nodes:
        lists.append(cell)
    if lists and 5 * len(lists) >= len(cells):
      raise errors.UserError(
        f'{where} has cells such as {lists[0][:60]!r}, as if they were lists '
        'of nodes; write a line for each edge (pandas: str.split and explode), '
        'or a node and its neighbors with one sign between all, and give '
        f'--config.data.columns={ADJACENCY}'
      )


def _refuse_names(where, rows, columns):
  """Raises a `UserError` for a first row that may be of unknown names.

  All other nodes are of a form that its cells do not have, or nearly all return
  and its own do not; or its relation is the only one that does not.
  """
  first, rest = rows[0], rows[1:]
  cells = {k: _cells(rest, i) for k, (i,) in columns.by_role.items()}
  names = {k: first[i] for k, (i,) in columns.by_role.items()}
  edges = zip(cells['source'], cells['target'], strict=False)
  nodes = collections.Counter(x for edge in edges for x in {*edge})
  relations = {*cells.get('relation', ())}
  if len(rest) < 5 or any(
    x in nodes or x in relations or roles.is_number(x) for x in names.values()
  ):
    return
  num_once = sum(x == 1 for x in nodes.values())
  is_other = len(rest) > 50 and num_once < len(nodes) / 50
  if not is_other:
    ends = [(names[x], cells[x]) for x in ('source', 'target')]
    forms = [(_form(x), {*map(_form, below)}) for x, below in ends]
    is_other = all(len(y) == 1 and x not in y for x, y in forms)
  if is_other or 0 < 10 * len(relations) < len(rest):
    setting = ','.join(f'{k}:{x}' for k, x in names.items())
    what = f'{" ".join(first)[:60]!r} in its first line, as if it were a header'
    _refuse(where, what, setting, ','.join(columns.roles()))


def _form(cell):
  """What kinds of signs a cell has, in their order."""
  return re.sub(r'[^\W\d_]+', 'a', re.sub(r'\d+', '0', cell))


def _refuse_same(where, rows, columns):
  """Raises a `UserError` for the same numbers below two unknown names."""
  a, b = (columns.named()[x] for x in ('source', 'target'))
  ends = [_cells(rows, columns.index(x)) for x in ('source', 'target')]
  if prefixes(rows, columns) or not all(map(_are_numbers, ends)) or a == b:
    return
  if {*ends[0]} & {*ends[1]}:
    raise errors.UserError(
      f'{where} has the same numbers in {a} and {b}: if they are the same '
      f'nodes, give --config.data.columns=source:{a},target:{b}, else names of '
      'their own'
    )


def _cells(rows, column):
  return [x[column] for x in rows if len(x) > column]


def _pair(names: Sequence[str]) -> tuple[str, ...]:
  """The names of the columns of two nodes, or ()."""
  for a, b in _PAIRS:
    if a in names and b in names:
      return a, b
  found = []
  forms = [*map(_numbered, names)]
  for name in names:
    others = [x + name for x in _NAMES['related'] if len(name) > 3]
    others += [name + x for x in '12' if re.search('.[a-z]$', name)]
    if not name.isdecimal() and forms.count(_numbered(name)) == 2:
      others += [re.sub(a, b, name, count=1) for a, b in _SECONDS]
    for a, b in _STEMS:
      if name.startswith(a):
        others.append(b + name.removeprefix(a))
      if name.endswith(a):
        others.append(name.removesuffix(a) + b)
    found += [(name, x) for x in others if x != name and x in names]

  def is_worse(pair):  # than one of numbers of nodes, or than one of nodes
    is_type = re.search('(type|kind|class|group|label)s?$', pair[0])
    return bool(is_type), not re.search('(id|index|idx|key)$', pair[0])

  return min(found, key=is_worse, default=())


def prefixes(rows: Rows, columns: roles.Columns) -> tuple[str, str] | None:
  """Prefixes for nodes of two kinds that may have the same names, or None.

  A header names the kinds, such as user and movie, or Neo4j's groups.
  """
  if not columns.has_header:
    return None
  positions = [columns.by_role[x][0] for x in ('source', 'target')]
  ends = [columns.names[x] for x in positions]
  groups = [_GROUP.search(x) for x in ends]
  kinds = [x[1] for x in groups if x]
  if len(kinds) < 2:
    kinds = [_kind(roles.simplified(x)) for x in ends]
    if not {*kinds} & _KINDS or {*kinds} & _RELATIVES:
      return None
  names = [_cells(rows, x) for x in positions]
  may_clash = all(map(_are_numbers, names)) or {*names[0]} & {*names[1]}
  is_same = kinds[0].endswith(kinds[1]) or kinds[1].endswith(kinds[0])
  if is_same or not may_clash:  # paper, citedpaper
    return None
  return f'{kinds[0]}:', f'{kinds[1]}:'


def _kind(name):
  """What a column such as `userid` numbers."""
  return re.sub(r'(ids?|index|idx|key|code|name)$', '', name) or name


# Columns by what they hold.


def _by_content(where, rows):
  """Roles in order of columns, below no header."""
  first, widths = rows[0], [len(x) for x in rows]
  num_other = sum(x != len(first) for x in widths)
  if num_other > len(rows) / 2 or (len({*widths}) > 3 and num_other > 2):
    what = f'lines of {min(widths)} to {max(widths)} fields, as if a line were'
    _refuse(where, f'{what} a node and its neighbors', ADJACENCY)
  if len(first) == 4 and all(x[3:] == ['.'] for x in rows):  # N-Triples
    return ['source', 'relation', 'target', '-']
  if all(len(x) > 2 and x[-1] == '' for x in rows):
    return [*_by_content(where, [x[:-1] for x in rows]), '-']
  if all(x[0].startswith('/a/[') and len(x) == 5 for x in rows):  # ConceptNet
    return ['-', 'relation', 'source', 'target', '-']
  if len(first) > 3:
    others = ',weight' + ',-' * (len(first) - 3)
    _refuse(
      where,
      f'{len(first)} columns and no header that could say what they are',
      f'source,target{others}' if len(first) < 9 else 'source:1,target:2',
    )
  if len(first) == 2:
    return ['source', 'target']
  rows = [x for x in rows if len(x) > 2]
  if not any(re.search(r'\w', x[1]) for x in rows):  # 1 -> 2
    return ['source', '-', 'target']
  if third := _third(where, rows):
    return third
  _refuse(
    where,
    f'three columns, such as {" ".join(rows[0])[:80]}, and no header: which '
    'are nodes, and is one a relation, a weight or a time?',
    'source,target,weight, source,relation,target, source,target,relation or '
    'source,target,-',
    f'{ADJACENCY} of a node and its neighbors',
  )


def _third(where, rows):
  """Roles of three columns, or None where several readings are plausible."""
  columns = [[x[i] for x in rows] for i in range(3)]
  sets = [{*x} for x in columns]
  is_number = [_are_numbers(x) for x in columns]
  weighted = ['source', 'target', 'weight']
  middle = ['source', 'relation', 'target']
  last = ['source', 'target', 'relation']
  # A relation has few values, which no node has.
  sizes = [len(x) for x in sets]
  few = [4 * sizes[i] <= min(sizes[0], sizes[3 - i]) for i in (1, 2)]
  if 4 * sizes[0] <= min(sizes[1:]) and sets[1] & sets[2]:
    return ['relation', 'source', 'target']
  _refuse_times(where, columns[2])
  if not is_number[2]:
    if not any(few):
      few = [not sets[i] & (sets[0] | sets[3 - i]) for i in (1, 2)]
      if few[0] == few[1]:
        return None
    return middle if few[0] else last
  if any(re.fullmatch(r'0\d+', x) for x in columns[2]):  # names of nodes
    return middle if few[0] and not is_number[1] else None
  if not all(float(x).is_integer() for x in columns[2]):
    return weighted
  if all(is_number):
    return weighted if sets[2] == {'1'} else None
  if is_number[0] and few[0] and sets[0] & sets[2]:
    return middle
  # Numbers that hardly return may be nodes behind a relation.
  are_nodes = is_number[0] and not is_number[1] and 2 * sizes[2] > len(rows)
  return None if are_nodes or (few[0] and not sets[0] & sets[1]) else weighted


def _are_numbers(texts):
  return bool(texts) and all(map(roles.is_number, texts))


def _refuse_times(where, texts):
  """Raises a `UserError` for what looks like seconds, dates or years."""
  are_years = len({*texts}) > 2 and all(map(_YEAR.fullmatch, texts))
  if texts and (are_years or all(map(_TIME.fullmatch, texts))):
    what = f'values such as {texts[0].strip()}, which look like times, where'
    weights = 'source,target,weight if they are weights'
    _refuse(where, f'{what} weights would be', 'source,target,-', weights)
