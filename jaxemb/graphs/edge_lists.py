"""Graphs from lists of edges.

A list has an edge a line, plain or compressed, or a row of Parquet. Columns are
the two nodes, and maybe a weight and a relation. An adjacency list has a node a
line, and its neighbors behind it. Nodes are called by strings; where all are
numbers, by these. `io.tables` parses blocks of lines in threads, and edges wait
on disk until their lists are made (`graph.build`).
"""

import ast
import contextlib
import functools
import itertools
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.graphs import edge_columns, heads, published
from jaxemb.graphs import graph as graph_lib
from jaxemb.io import columns as columns_lib
from jaxemb.io import keys, roles, tables, text_files
from jaxemb.runtime import budget, resources

_NODE_BYTES = 8  # at least: where its edges begin
_CHUNK = 1 << 22  # edges
_ROWS = 1 << 17  # of a table, at once
_NAMED = 'source', 'target', 'relation'
_READ = *_NAMED, 'weight'


class _NotIntegers(Exception):
  """A node has a name that is no number, or numbers are far apart."""


def learns_edges(settings: Mapping[str, Any]) -> bool:
  """Whether `config.data` learns from edges, not from walks or nodes."""
  return settings.get('source') == 'edges'


class Plan(NamedTuple):
  """How a file of edges is read."""

  layout: tables.Layout
  shown: roles.Input
  prefixes: tuple[str, str] | None = None  # of nodes of two kinds
  num_rows: int | None = None  # as the first line says
  num_comments: int = 0
  # Rows that are no lines of columns: of Python, or as NetworkX writes them.
  blocks: Callable[[], Iterable[tables.Table]] | None = None


# By file, or by what stands for one.
Plans = Mapping[pathlib.Path, Plan] | Mapping[str, Plan]


def listed(
  plans: Plans,
  settings: Mapping[str, Any],
  folder: pathlib.Path,
  progress: Callable[[str, int, int], None],
) -> graph_lib.Graph:
  """Read lists of edges into a graph whose arrays are files of a folder.

  Raises a `UserError` if one cannot be read, or if its nodes have no room.
  """
  if num_nodes := settings['num_nodes']:
    budget.check_host(
      f'a graph of {num_nodes:,} nodes takes',
      _NODE_BYTES * num_nodes,
      remedy=f'lower --config.data.num_nodes={num_nodes}',
    )
  for as_integers in (True, False):
    with tempfile.TemporaryDirectory(dir=folder) as spill:
      edges = _Edges(settings, pathlib.Path(spill), as_integers=as_integers)
      try:
        edges.read(plans, functools.partial(progress, 'reading'))
      except _NotIntegers:
        continue
      return edges.graph(folder)
  raise AssertionError


# How files are to be read.


def planned(
  paths: Sequence[pathlib.Path], settings: Mapping[str, Any]
) -> dict[pathlib.Path, Plan]:
  """Plan how to read each file; all have the same columns."""
  plans = {x: _plan(x, settings) for x in paths}
  (first, plan), *others = plans.items()
  sign, columns = _columns(plan)
  for path, other in others:
    other_sign, others_columns = _columns(other)
    if others_columns != columns or (sign and other_sign not in ('', sign)):
      raise errors.UserError(
        f'{path} has {others_columns} with {other_sign} between them, and '
        f'{first} before it {columns} with {sign}; give files of one kind'
      )
  return plans


def shown(plans: Plans) -> list[roles.Input]:
  """Return what log and report show of files."""
  (_, first), *_ = plans.items()
  return [first.shown._replace(files=tuple(map(str, plans)))]


def _columns(plan):
  """What is between columns of text, and their names."""
  sign = plan.layout.delimiter
  sign = 'white space' if sign in (' ', '\t') else sign and repr(sign)
  return sign, ', '.join(sorted({*plan.layout.columns} - {'-'}))


def _plan(path, settings):
  head = heads.read(path, 'an edge', settings['comments'])
  title = (*head.comments, '')[0]
  if settings['directed'] and re.match(
    r'%\s*sym\b|%%MatrixMarket.* symmetric', title
  ):
    raise errors.UserError(
      f'{path} has edges that lead both ways, as its first line says, once; '
      'leave out config.data.directed'
    )
  prefixes, num_rows, declared = None, None, settings['columns']
  sizes, below = head.rows[0], (*head.rows, ())[1]
  is_matrix = title.startswith('%%MatrixMarket') and below
  if is_matrix and re.search(r'\b(array|complex)\b', title):
    raise errors.UserError(
      f'{path} has all numbers of a matrix, or complex ones; write those that '
      'are not 0 as real numbers (scipy.io.mmwrite of a sparse matrix)'
    )
  konect = re.match(r'%\s*(sym|asym|bip)\b', title)
  if konect and konect[1] == 'bip':
    prefixes = 'left:', 'right:'
  if is_matrix and sizes[:1] != sizes[1:2]:
    prefixes = 'row:', 'column:'
  # OpenKE has the number of rows.
  if len(sizes) == 1 and len(below) > 1:
    num_rows = roles.whole_number(sizes[0])
  if num_rows is not None:
    if len(below) == 3 and all(map(str.isdecimal, below)):
      declared = declared or 'source,target,relation'
  if is_matrix or num_rows is not None:
    layout = head.layout._replace(skip_lines=head.layout.skip_lines + 1)
    head = head._replace(
      rows=head.rows[1:], lines=head.lines[1:], layout=layout
    )
  if konect or is_matrix or published.is_named(path, published.KONECT):
    known = {3: 'source,target,weight', 4: 'source,target,weight,time'}
    declared = declared or known.get(len(head.rows[0]), '')
  plan = None if declared else _of_networkx(path, head)
  plan = plan or _of_columns(path, head, declared, prefixes=prefixes)
  num_comments = sum(bool(x.strip()) for x in head.comments)
  return plan._replace(num_rows=num_rows, num_comments=num_comments)


def _of_columns(where, head, declared, prefixes=None):
  is_named = bool(declared) or edge_columns.is_header(head.rows)
  edge_columns.refuse_signs(where, head.rows[1:] or head.rows, is_named)
  is_ragged = _is_adjacency(where, head, declared)
  if is_ragged:
    columns = roles.Columns(
      ('1', '2 ...'), {'source': (0,), 'target': (1,)}, has_header=False
    )
  else:
    columns = edge_columns.assign(where, head.rows, declared, form=head.form)
    prefixes = prefixes or edge_columns.prefixes(head.rows[1:], columns)
  has_header = columns.has_header
  first = list(head.rows[min(has_header, len(head.rows) - 1)])
  for role, prefix in zip(('source', 'target'), prefixes or (), strict=False):
    index = columns.index(role)
    if index < len(first):  # otherwise the row is counted as bad when read
      first[index] = prefix + first[index]
  layout = head.layout._replace(
    columns=columns.roles(), skips_first=has_header, is_ragged=is_ragged
  )
  form = 'adjacency list, ' * is_ragged + head.shown()
  return Plan(layout, roles.Input.of([where], form, columns, first), prefixes)


def _is_adjacency(where, head, declared):
  """Whether it is a list of neighbors, by the setting, its name or NetworkX."""
  name = re.sub('[_-]', '', pathlib.Path(where).name.lower())
  is_named = 'adjlist' in name or any(
    re.match('# GMT ', x) for x in head.comments
  )
  return declared == edge_columns.ADJACENCY or (is_named and not declared)


def of_table(table: tables.Table, declared: str) -> Plan:
  """Plan how to read a table of Python; columns 0, 1, .. have no names."""
  names, where = [*table.columns], 'the table'
  rows: list[Sequence[str]]
  rows = [*zip(*map(_shown, table.columns.values()), strict=True)]
  if not rows:
    raise errors.UserError(f'{where} has no row with an edge; give edges')
  layout, form = tables.Layout(), ''
  if names != [*map(str, range(len(names)))]:
    rows, form = [names, *rows], 'table'
  plan = _of_columns(where, heads.Head(rows, [], layout, form=form), declared)
  roles_of = plan.layout.columns
  columns = zip(roles_of, table.columns.values(), strict=True)
  used = {k: x for k, x in columns if k in _READ}
  skip = plan.layout.skips_first and not form

  def blocks():
    for i in range(skip, table.num_rows, _ROWS):
      yield tables.Table({k: _slice(x, i, _ROWS) for k, x in used.items()})

  return plan._replace(shown=plan.shown._replace(form='table'), blocks=blocks)


def _slice(column, start, size):
  if isinstance(column, keys.Text):
    return column.select(slice(start, start + size))
  return column.slice(start, size)


def _shown(column):
  """The first values of a column of Python, ? where they are no names."""
  head = _slice(column, 0, heads.LINES)
  try:
    return columns_lib.names(head).strings().to_pylist()
  except (ValueError, NotImplementedError):
    return ['?'] * len(head)


# Edges with attributes, as NetworkX writes them: 0 1 {'weight': 4}


def _of_networkx(path, head):
  lines = head.lines[:100]
  if any(re.fullmatch(r'\S+\s+\{.*\}\s*', x) for x in lines):
    raise errors.UserError(
      f'{path} is a multiline adjacency list; write edges instead '
      '(networkx.write_edgelist(networkx.read_multiline_adjlist(PATH), FILE))'
    )
  if not (lines and all(map(_has_attributes, lines))):
    return None
  names = ['source', 'target']
  names += ['weight'] * any(
    re.search('[\'"]weight["\']:', x) for x in head.lines
  )
  columns = roles.assign(
    str(path), edge_columns.ROLES, names, declared=','.join(names)
  )._replace(has_header=False)
  first = _attributed(path, head.lines[0])
  shown = roles.Input.of([path], 'edges by NetworkX', columns, first)

  def of_lines():
    lines = heads.lines(path, head)
    while block := [*itertools.islice(lines, _CHUNK)]:
      columns = zip(*(_attributed(path, x) for x in block), strict=True)
      yield tables.Table.of(dict(zip(names, columns, strict=False)))

  layout = head.layout._replace(columns=names)
  return Plan(layout, shown, blocks=of_lines)


def _has_attributes(line):
  """Whether two cells, between spaces or a tab, have a dict behind them."""
  match = re.search(r'\W\{', line)
  is_closed = line.rstrip().endswith('}')
  return match and is_closed and line.count('\t', 0, match.start()) < 2


def _attributed(path, line):
  """The nodes of an edge and its weight."""
  nodes, _, attributes = line.partition('{')
  sign = nodes[-1:]
  nodes = nodes.split() if not sign.strip() else nodes[:-1].split(sign)
  text = re.sub(r'np\.\w+\(([^()]*)\)', r'\1', '{' + attributes)
  text = re.sub(r'\b(nan|inf|null|true|false)\b(?=\s*[,}\]])', 'None', text)
  try:
    a, b = nodes
    return a, b, ast.literal_eval(text.strip()).get('weight', 1)
  except (
    *(ValueError, SyntaxError, AttributeError, TypeError),
    *(RecursionError, MemoryError),  # of nested brackets
  ) as error:
    raise errors.UserError(
      f'{path} has the line {line.strip()[:80]!r}, which is no edge as '
      'NetworkX writes it; write names without spaces, or CSV'
    ) from error


# Blocks of rows, which are parsed in threads.


class _Block(NamedTuple):
  """Edges of some rows."""

  texts: dict[str, keys.Text]  # by role
  ends: np.ndarray  # [2, n] int64 numbers of nodes, or uint64 hashes of names
  weights: np.ndarray | None  # [n] float32
  bad: list[tuple[int, str, int]]  # the first line, what is wrong, how many


def _block(table, prefixes, as_integers):
  """Drops rows without a name or with a wrong weight, as `bad` ones.

  May raise `_NotIntegers`.
  """
  texts = {k: table.text(k) for k in _NAMED if k in table.columns}
  has_name = {k: x.stops > x.starts for k, x in texts.items()}
  wrong = {'a node has no name': ~(has_name['source'] & has_name['target'])}
  weights, bad = None, []
  if 'relation' in texts:
    wrong['a relation has no name'] = ~has_name['relation']
  if 'weight' in table.columns:
    weights = _floats(table.columns['weight'])
    is_wrong = ~(np.isfinite(weights) & (weights > 0))
    row = _slice(table.columns['weight'], int(np.argmax(is_wrong)), 1)
    shown = columns_lib.names(row).strings().to_pylist()
    wrong[f'the weight {"".join(shown)!r} is not above 0'] = is_wrong
  is_good = np.ones(table.num_rows, bool)
  for why, is_wrong in wrong.items():
    if len(rows := np.flatnonzero(is_good & is_wrong)):
      bad.append((_line(table, rows[0]), why, len(rows)))
      is_good &= ~is_wrong
  if bad:
    texts = {k: x.select(is_good) for k, x in texts.items()}
    weights = weights if weights is None else weights[is_good]
  for role, prefix in zip(('source', 'target'), prefixes or (), strict=False):
    texts[role] = _prefixed(texts[role], prefix)
  names = texts['source'], texts['target']
  if as_integers:
    ends = np.empty((2, len(names[0].starts)), np.int64)
    if not all(_integers(*x, y) for x, y in zip(names, ends, strict=True)):
      raise _NotIntegers
  else:
    ends = np.stack([x.hashes() for x in names])
  return _Block(texts, ends, weights=weights, bad=bad)


def _line(table, row):
  """The line of a row in its block."""
  text = table.columns['source']
  if not isinstance(text, keys.Text):  # of Parquet, JSON or Python
    return int(row)
  return int(np.count_nonzero(text.data[: text.starts[row]] == 10))


def _prefixed(text, prefix):
  import pyarrow as pa
  import pyarrow.compute as pc

  ends = [pa.scalar(x, pa.large_string()) for x in (prefix, '')]
  return keys.Text.of(
    pc.binary_join_element_wise(ends[0], text.strings(), ends[1])
  )


@numba.njit(nogil=True, cache=True)
def _integers(data, starts, stops, out):
  """Whether all strings are numbers as they are usually written."""
  for i in range(len(starts)):
    start, stop = starts[i], stops[i]
    if stop - start > 18 or (data[start] == 48 and stop - start > 1):
      return False
    number = 0
    for j in range(start, stop):
      digit = np.int64(data[j]) - 48
      if digit < 0 or digit > 9:
        return False
      number = 10 * number + digit
    out[i] = number
  return True


def _floats(column: Any) -> np.ndarray:
  """[n] float32, NaN where there is no number."""
  try:
    return columns_lib.numbers(column).astype(np.float32)
  except ValueError:
    texts = columns_lib.names(column).strings().to_pylist()
    numbers = [float(x) if roles.is_number(x) else np.nan for x in texts]
    return np.array(numbers, np.float32)


class _Tables:
  """Tables that are no lines of files, as `tables.Reader` has files."""

  num_bad = num_comments = num_invalid_bytes = 0

  def __init__(self, where: str, items: Iterable[tables.Table]):
    self._where, self._items, self._num_rows = where, items, 0
    self._first_bad = ''

  def tables(
    self, progress: Any, then: Callable[[tables.Table], _Block]
  ) -> Iterator[_Block]:
    """Yields what `then` makes of each table, and checks them at the end."""
    num_threads = resources.reading_threads()
    items = ((x,) for x in self._items)
    with futures.ThreadPoolExecutor(num_threads) as pool:
      try:
        for block, num_rows in text_files.map_ahead(
          pool, lambda x: (then(x), x.num_rows), items, depth=num_threads + 1
        ):
          yield block
          self._num_rows += num_rows
      except ValueError as error:
        raise errors.UserError(
          f'{self._where} has {errors.one_line(error)}; give numbers or strings'
        ) from error
    if 100 * self.num_bad > self._num_rows:
      raise errors.UserError(
        f'{self.num_bad:,} of {self._num_rows:,} rows of {self._where} cannot '
        f'be read, the first is {self._first_bad}; mend it'
      )

  def count_bad(self, row: int, why: str, num: int) -> None:
    """Counts rows of the last table, from one on, that are of no use."""
    self.num_bad += num
    self._first_bad = (
      self._first_bad or f'row {self._num_rows + row + 1}: {why}'
    )


class _Edges:
  """Edges that were read into files, and their graph."""

  def __init__(
    self, settings: Mapping[str, Any], spill: pathlib.Path, as_integers: bool
  ):
    self._settings, self._num_nodes = settings, settings['num_nodes']
    self._spill, self._as_integers = spill, as_integers
    self._nodes, self._relations = keys.Keys(), keys.Keys()
    self._names: list[Any] = []  # Arrow arrays
    self._relation_names: list[str] = []
    self._num = 0
    self._num_alone = 0  # nodes of an adjacency list without neighbors
    self._largest = -1

  def read(
    self,
    plans: Plans,
    progress: Callable[[int, int], None],
  ) -> None:
    """Read all files, or raise `_NotIntegers`."""
    self._path, first = next(iter(plans.items()))
    if first.prefixes and self._as_integers:
      raise _NotIntegers
    self._may_have_comments = first.layout.delimiter and not first.blocks
    self._reader: tables.Reader | _Tables
    if first.blocks:
      items = (y for x in plans.values() if x.blocks for y in x.blocks())
      self._reader = _Tables(str(self._path), items)
    else:
      self._reader = tables.Reader(
        str(self._path),
        form='edges',
        layouts={pathlib.Path(k): x.layout for k, x in plans.items()},
        remedy='give --config.data.columns or .comments, or another file',
      )
    self._num_comments = sum(x.num_comments for x in plans.values())
    then = functools.partial(
      _block, prefixes=first.prefixes, as_integers=self._as_integers
    )
    with contextlib.ExitStack() as stack:
      self._files = {
        name: stack.enter_context((self._spill / name).open('wb'))
        for name in ('ends', 'weights', 'relations')
      }
      for block in self._reader.tables(progress, then):
        for line, why, num in block.bad:
          self._reader.count_bad(line, why, num=num)
        self._add(block)
    if not self._num:
      raise errors.UserError(
        f'{self._path} has no line with an edge; give another file'
      )
    num_rows = self._num + self._reader.num_bad
    if first.num_rows not in (None, num_rows) and len(plans) == 1:
      raise errors.UserError(
        f'{self._path} has {num_rows:,} lines of edges, and its first line '
        f'says {first.num_rows:,}; remove this line, or copy the file again'
      )

  def _add(self, block):
    ends = block.ends
    if not ends.size:
      return
    names = block.texts['source'], block.texts['target']
    if self._as_integers:
      self._check(ends)
    else:
      ids = [self._nodes.add(x) for x in ends]
      self._names += [
        text.strings(new) for text, (_, new) in zip(names, ids, strict=True)
      ]
      ends = np.stack([x for x, _ in ids])
    if names[0].data is names[1].data:  # of an adjacency list
      self._num_alone += int(np.sum(names[0].starts == names[1].starts))
    ends.T.astype(np.int32).tofile(self._files['ends'])
    self._num += ends.shape[1]
    if block.weights is not None:
      block.weights.tofile(self._files['weights'])
    if relations := block.texts.get('relation'):
      numbers, new = self._relations.add(relations.hashes())
      self._relation_names += relations.strings(new).to_pylist()
      numbers.tofile(self._files['relations'])

  def _check(self, numbers):
    """Raises `_NotIntegers` for numbers that can hardly be those of nodes."""
    self._largest = max(self._largest, int(numbers.max()))
    if self._num_nodes and self._largest >= self._num_nodes:
      raise errors.UserError(
        f'an edge names node {self._largest}, and config.data.num_nodes='
        f'{self._num_nodes}, from 0 on; raise it, or remove the edge'
      )
    num = self._num + numbers.shape[1]
    if self._largest >= min(max(1 << 20, 64 * num), 1 << 31):
      raise _NotIntegers

  def graph(self, folder: pathlib.Path) -> graph_lib.Graph:
    """Make the graph of what was read."""
    names, numbers, num_nodes = self._named()
    relations, directed = self._relation_names, self._settings['directed']
    if len(relations) > num_nodes and not self._settings['columns']:
      raise errors.UserError(
        f'{self._path} has {len(relations):,} relations between '
        f'{num_nodes:,} nodes, as if its columns were others; give '
        '--config.data.columns, such as source,target,relation'
      )
    # A triple has a head and a tail; a walk goes either way.
    directed |= bool(relations) and learns_edges(self._settings)
    chunks = functools.partial(self._chunks, numbers)
    graph = graph_lib.build(chunks, num_nodes, directed, folder=folder)
    counted = {
      **graph.counted,
      'unreadable_edges': self._reader.num_bad,
      'comments': self._reader.num_comments + self._num_comments,  # lines
      'invalid_utf8_bytes': self._reader.num_invalid_bytes,
    }
    counted['self_loops'] -= self._num_alone
    return graph._replace(
      names=names, counted=counted, relation_names=relations or None
    )

  def _named(self):
    """Names of nodes or None, numbers of those in files or None, how many."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = self._mapped('ends', np.int32).reshape(-1, 2)
    if not self._as_integers:
      names = pa.concat_arrays(self._names)
      self._refuse_sizes(ends, names)
      if self._may_have_comments and not self._settings['comments']:
        is_sign = pc.match_substring_regex(names, '^' + heads.COMMENT)
        nodes = np.flatnonzero(is_sign.to_numpy(False))
        if len(nodes) and not np.isin(ends[:, 1], nodes).any():
          some = names.take(nodes[:1]).to_pylist()
          heads.refuse_comments(self._path, self._settings, some)
      if self._num_nodes and len(names) > self._num_nodes:
        raise errors.UserError(
          f'edges name {len(names):,} nodes, and config.data.num_nodes='
          f'{self._num_nodes}; give the right number'
        )
      return _names(names), None, len(names)
    if self._num_nodes:
      return None, None, self._num_nodes
    self._refuse_sizes(ends)
    is_used = np.zeros(self._largest + 1, bool)
    for x in self._chunks(None):
      is_used[x.sources] = is_used[x.targets] = True
    if is_used.all():
      return None, None, len(is_used)
    used = pc.cast(pa.array(np.flatnonzero(is_used)), pa.large_string())
    return _names(used), (np.cumsum(is_used) - 1).astype(np.int32), len(used)

  def _refuse_sizes(self, ends, names=None):
    """Raises a `UserError` for a first line of counts of nodes and edges."""
    sizes = [str(names[x]) if names else str(x) for x in ends[0].tolist()]
    if self._num < 5 or sizes[1] != str(self._num - 1):
      return
    num_nodes = len(np.unique(ends[1:]))
    if (roles.whole_number(sizes[0]) or 0) >= num_nodes:
      raise errors.UserError(
        f'{self._path} begins with {" ".join(sizes)}, which seem to be the '
        'numbers of nodes and edges; remove this line'
      )

  def _mapped(self, name, kind):
    path = self._spill / name
    return np.memmap(path, kind, 'r') if path.stat().st_size else None

  def _chunks(self, numbers) -> Iterator[graph_lib.Edges]:
    ends = self._mapped('ends', np.int32).reshape(-1, 2)
    columns = (
      self._mapped('weights', np.float32),
      self._mapped('relations', np.int32),
    )
    for i in range(0, len(ends), _CHUNK):
      some = np.asarray(ends[i : i + _CHUNK])
      if numbers is not None:
        some = numbers[some]
      cut = (x if x is None else np.asarray(x[i : i + _CHUNK]) for x in columns)
      yield graph_lib.Edges(*some.T, *cut)


def _names(strings):
  """`Names` of an Arrow array of strings."""
  data, _, stops = keys.Text.of(strings)
  offsets = np.append(0, stops)
  return graph_lib.Names(offsets, data[: offsets[-1]])
