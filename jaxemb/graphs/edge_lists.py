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
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.graphs import edge_columns, heads, published
from jaxemb.graphs import graph as graph_lib
from jaxemb.io import keys, roles, tables

_CHUNK = 1 << 22  # edges
_READ = 'source', 'target', 'weight', 'relation'


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
  has_attributes: bool = False  # such as {'weight': 4}, by NetworkX


def listed(
  plans: Mapping[pathlib.Path, Plan],
  settings: Mapping[str, Any],
  folder: pathlib.Path,
  progress: Callable[[str, int, int], None],
) -> graph_lib.Graph:
  """Read lists of edges into a graph whose arrays are files of a folder.

  Raises a `UserError` if one cannot be read.
  """
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
  plans: dict[pathlib.Path, Plan] = {}
  for path in paths:
    plan = plans[path] = _plan(path, settings)
    pairs = zip(_described(plan), _described(plans[paths[0]]), strict=True)
    for here, before in pairs:
      if here and before and here != before:
        raise errors.UserError(
          f'{path} has {here}, and the files before it {before}; give files of '
          'one kind'
        )
  return plans


def shown(plans: Mapping[pathlib.Path, Plan]) -> list[roles.Input]:
  """Return what log and report show of files."""
  (path, first), *_ = plans.items()
  return [first.shown._replace(files=tuple(map(str, plans)))]


def _described(plan):
  """What is between columns of text, and which these are."""
  sign = plan.layout.delimiter
  sign = 'white space' if sign in (' ', '\t') else sign and repr(sign)
  names = ', '.join(sorted({*plan.layout.columns} - {'-'}))
  return sign and f'{sign} between its columns', f'the columns {names}'


_KONECT = {
  3: 'source,target,weight',
  4: 'source,target,weight,time',
}  # columns of out.*


def _plan(path, settings):
  head = heads.read(path, 'an edge', settings['comments'])
  title = (*head.comments, '')[0]
  num_comments = sum(bool(x.strip()) for x in head.comments)
  if settings['directed'] and re.match(
    r'%\s*sym\b|%%MatrixMarket.* symmetric', title
  ):
    raise errors.UserError(
      f'{path} has edges that lead both ways, as its first line says, once; '
      'leave out config.data.directed'
    )
  is_matrix = title.startswith('%%MatrixMarket') and len(head.rows) > 1
  konect = re.match(r'%\s*(sym|asym|bip)\b', title)
  prefixes, num_rows, declared = None, None, settings['columns']
  if konect and konect[1] == 'bip':
    prefixes = 'left:', 'right:'
  sizes = head.rows[0]
  if is_matrix:
    if sizes[:1] != sizes[1:2]:
      prefixes = 'row:', 'column:'
    head = head.below_first()
  elif len(sizes) == 1 and sizes[0].isdecimal() and len(head.rows) > 1:
    if len(head.rows[1]) > 1:  # as OpenKE has it
      num_rows, head = int(sizes[0]), head.below_first()
      if len(head.rows[0]) == 3 and all(map(str.isdecimal, head.rows[0])):
        declared = declared or 'source,target,relation'
  if konect or is_matrix or published.is_named(path, published.KONECT):
    declared = declared or _KONECT.get(len(head.rows[0]), '')
  plan = (
    _of_networkx(path, head)
    or _of_adjacency(path, head, declared)
    or _of_columns(path, head, declared, prefixes=prefixes)
  )
  return plan._replace(num_rows=num_rows, num_comments=num_comments)


def _of_columns(path, head, declared, prefixes):
  columns = edge_columns.assign(str(path), head.rows, declared, form=head.kind)
  has_header = columns.has_header
  prefixes = prefixes or edge_columns.prefixes(head.rows[1:], columns)
  first = list(head.rows[min(has_header, len(head.rows) - 1)])
  for role, prefix in zip(('source', 'target'), prefixes or (), strict=False):
    first[columns.index(role)] = prefix + first[columns.index(role)]
  layout = head.layout(columns.roles(), skips_first=has_header)
  shown = roles.Input.of([path], head.form(), columns, first)
  return Plan(layout, shown, prefixes)


def _of_adjacency(path, head, declared):
  """Of an adjacency list, by the setting, its name or NetworkX's comments."""
  is_named = 'adjlist' in re.sub('[_-]', '', path.name.lower())
  is_named |= any(re.match('# GMT ', x) for x in head.comments)
  if declared != edge_columns.ADJACENCY and (declared or not is_named):
    return None
  by_role = {'source': (0,), 'target': (1,)}
  columns = roles.Columns(('1', '2 ...'), by_role, has_header=False)
  shown = roles.Input.of(
    [path], f'adjacency list, {head.form()}', columns, head.rows[0]
  )
  return Plan(head.layout(['source', 'target'], is_ragged=True), shown)


# Edges with attributes, as NetworkX writes them: 0 1 {'weight': 4}


def _of_networkx(path, head):
  some = head.lines[:100]
  if any(re.fullmatch(r'\S+\s+\{.*\}\s*', x) for x in some):
    raise errors.UserError(
      f'{path} is a multiline adjacency list; write edges instead '
      '(networkx.write_edgelist(networkx.read_multiline_adjlist(PATH), FILE))'
    )
  if not (some and all(re.fullmatch(r'.*\W\{.*\}\s*', x) for x in some)):
    return None
  names = ['source', 'target']
  names += ['weight'] * any(
    re.search('[\'"]weight["\']:', x) for x in head.lines
  )
  columns = roles.Columns(
    tuple(names), {x: (i,) for i, x in enumerate(names)}, has_header=False
  )
  first = _attributed(path, head.lines[0])
  shown = roles.Input.of([path], 'edges by NetworkX', columns, first)
  return Plan(head.layout(names), shown, has_attributes=True)


def _attributed(path, line):
  """The nodes of an edge and its weight."""
  nodes, _, attributes = line.partition('{')
  sign = nodes[-1]
  nodes = nodes.split() if sign.isspace() else nodes[:-1].split(sign)
  text = re.sub(r'np\.\w+\(([^()]*)\)', r'\1', '{' + attributes)
  try:
    a, b = nodes
    return a, b, str(ast.literal_eval(text.strip()).get('weight', 1))
  except (ValueError, SyntaxError, AttributeError) as error:
    raise errors.UserError(
      f'{path} has the line {line.strip()[:80]!r}, which is no edge as '
      'NetworkX writes it; write names without spaces, or CSV'
    ) from error


def _attributed_tables(path, layout):
  import pyarrow as pa

  skip = layout.skip_lines
  for block, *_ in tables.blocks(path):
    lines = bytes(block).decode('utf-8-sig', 'replace').split('\n')
    edges = [_attributed(path, x) for x in lines[skip:] if x.strip()]
    columns, skip = zip(*edges, strict=True), 0
    yield tables.Table(
      {
        name: keys.Text.of(pa.array(x, pa.large_string()))
        for name, x in zip(layout.columns, columns, strict=False)
      }
    )


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
  texts = {k: table.text(k) for k in _READ if k in table.columns}
  source, target = texts['source'], texts['target']
  is_good = (source.stops > source.starts) & (target.stops > target.starts)
  bad, weights = _wrong(source, ~is_good, 'a node has no name'), None
  if relation := texts.get('relation'):
    is_wrong = is_good & (relation.stops == relation.starts)
    bad += _wrong(source, is_wrong, 'a relation has no name')
    is_good &= ~is_wrong
  if 'weight' in texts:
    weights = _floats(texts['weight'])
    is_weight = np.isfinite(weights) & (weights > 0)
    is_wrong = is_good & ~is_weight
    shown = texts['weight'].strings(np.flatnonzero(is_wrong)[:1]).to_pylist()
    why = f'the weight {"".join(shown)!r} is not above 0'
    bad += _wrong(source, is_wrong, why)
    is_good &= is_weight
    weights = weights[is_good]
  if not is_good.all():
    texts = {k: x.select(is_good) for k, x in texts.items()}
  if prefixes:
    for role, prefix in zip(('source', 'target'), prefixes, strict=True):
      texts[role] = _prefixed(texts[role], prefix)
  names = texts['source'], texts['target']
  if as_integers:
    ends = np.empty((2, len(names[0].starts)), np.int64)
    if not all(_integers(*x, y) for x, y in zip(names, ends, strict=True)):
      raise _NotIntegers
  else:
    ends = np.stack([x.hashes() for x in names])
  return _Block(texts, ends, weights=weights, bad=bad)


def _prefixed(text, prefix):
  import pyarrow as pa
  import pyarrow.compute as pc

  ends = [pa.scalar(x, pa.large_string()) for x in (prefix, '')]
  return keys.Text.of(
    pc.binary_join_element_wise(ends[0], text.strings(), ends[1])
  )


def _wrong(text, is_wrong, why):
  """The line of the first wrong row, what is wrong, and of how many."""
  rows = np.flatnonzero(is_wrong)
  if not len(rows):
    return []
  line = np.count_nonzero(text.data[: text.starts[rows[0]]] == 10)
  return [(int(line), why, len(rows))]


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


def _floats(text: keys.Text) -> np.ndarray:
  """[n] float32, NaN where there is no number."""
  import pyarrow as pa
  import pyarrow.compute as pc

  strings = text.strings()
  try:
    return pc.cast(strings, 'float32').to_numpy()
  except pa.ArrowInvalid:
    return np.array(
      [
        float(x) if tables.is_number(x) else np.nan for x in strings.to_pylist()
      ],
      np.float32,
    )


class _Edges:
  """Edges that were read into files, and their graph."""

  def __init__(
    self, settings: Mapping[str, Any], spill: pathlib.Path, as_integers: bool
  ):
    self._settings, self._num_nodes = settings, settings['num_nodes']
    self._spill, self._as_integers = spill, as_integers
    self._nodes, self._relations = keys.Keys(), keys.Keys()
    self._names, self._relation_names = [], []
    self._num = 0
    self._num_alone = 0  # nodes of an adjacency list without neighbors
    self._largest = -1

  def read(
    self,
    plans: Mapping[pathlib.Path, Plan],
    progress: Callable[[int, int], None],
  ) -> None:
    """Read all files, or raise `_NotIntegers`."""
    self._path, first = next(iter(plans.items()))
    if first.prefixes and self._as_integers:
      raise _NotIntegers
    self._num_comments = sum(x.num_comments for x in plans.values())
    self._reader = tables.Reader(
      str(self._path),
      form='edges',
      layouts={k: x.layout for k, x in plans.items()},
      remedy='give --config.data.columns or .comments, or another file',
    )
    then = functools.partial(
      _block, prefixes=first.prefixes, as_integers=self._as_integers
    )
    if first.has_attributes:
      blocks = (
        then(y)
        for path, x in plans.items()
        for y in _attributed_tables(path, x.layout)
      )
    else:
      blocks = self._reader.tables(progress, then)
    with contextlib.ExitStack() as stack:
      self._files = {
        name: stack.enter_context((self._spill / name).open('wb'))
        for name in ('ends', 'weights', 'relations')
      }
      for block in blocks:
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
    numbers = None
    if self._as_integers:
      names, numbers, num_nodes = self._used_numbers()
    else:
      names = _names(self._names)
      num_nodes = len(names)
      if self._num_nodes and num_nodes > self._num_nodes:
        raise errors.UserError(
          f'edges name {num_nodes:,} nodes, and config.data.num_nodes='
          f'{self._num_nodes}; give the right number'
        )
    relations = self._relation_names or None
    if relations and len(relations) > num_nodes:
      if not self._settings['columns']:
        raise errors.UserError(
          f'{self._path} has {len(relations):,} relations between '
          f'{num_nodes:,} nodes, as if its columns were others; give '
          '--config.data.columns, such as source,target,relation'
        )
    directed = self._settings['directed']
    # A triple has a head and a tail; a walk goes either way.
    directed |= bool(relations) and learns_edges(self._settings)
    graph = graph_lib.build(
      functools.partial(self._chunks, numbers),
      num_nodes,
      directed,
      folder=folder,
    )
    counted = {
      **graph.counted,
      'unreadable_edges': self._reader.num_bad,
      'comments': self._reader.num_comments + self._num_comments,  # lines
      'invalid_utf8_bytes': self._reader.num_invalid_bytes,
    }
    counted['self_loops'] -= self._num_alone
    return graph._replace(
      names=names, counted=counted, relation_names=relations
    )

  def _used_numbers(self):
    """Names of nodes or None, numbers from 0 on of those used, and how many."""
    if self._num_nodes:
      return None, None, self._num_nodes
    is_used = np.zeros(self._largest + 1, bool)
    for x in self._chunks(None):
      is_used[x.sources] = is_used[x.targets] = True
    ends = self._mapped('ends', np.int32).reshape(-1, 2)
    nodes, edges = ends[0].tolist()
    if edges == self._num - 1 > 3 and nodes >= ends[1:].max():
      raise errors.UserError(
        f'{self._path} begins with {nodes} {edges}, which seem to be the '
        'numbers of nodes and edges; remove this line'
      )
    num_nodes = int(is_used.sum())
    if num_nodes == len(is_used):
      return None, None, num_nodes
    import pyarrow as pa
    import pyarrow.compute as pc

    used = pc.cast(pa.array(np.flatnonzero(is_used)), pa.large_string())
    numbers = (np.cumsum(is_used) - 1).astype(np.int32)
    return _names([used]), numbers, num_nodes

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


def _names(arrays):
  """`Names` of Arrow arrays of strings."""
  import pyarrow as pa

  data, _, stops = keys.Text.of(pa.concat_arrays(arrays))
  offsets = np.append(0, stops)
  return graph_lib.Names(offsets, data[: offsets[-1]])


def distinct(names: Iterable[str]) -> list[str]:
  """The same, where a name is given again or is empty with the node's number.

  Titles and people may have one name.
  """
  unique, seen = [], set()
  for i, name in enumerate(names):
    while not name or name in seen:
      name = f'{name}#{i}'
    seen.add(name)
    unique.append(name)
  return unique
