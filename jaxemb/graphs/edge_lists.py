"""Graphs from lists of edges.

A list has an edge a line, plain or compressed, or a row of Parquet. Columns are
the two nodes, and maybe a weight and a relation. An adjacency list has a node a
line, and its neighbors behind it. Nodes are called by strings; where all are
numbers, by these. Blocks of lines are parsed in threads, and
edges wait on disk until their lists are made (`graph.build`).
"""

import contextlib
import functools
import itertools
import logging
import lzma
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.graphs import edge_columns, line_format
from jaxemb.graphs import graph as graph_lib
from jaxemb.io import keys, tables, text_files
from jaxemb.runtime import resources

_LOG = logging.getLogger('jaxemb')

_MAX_BAD = 0.01  # fraction of lines that may be skipped
_CHUNK = 1 << 22  # edges
_PARQUET_ROWS = 1 << 18  # of a block


class _NotIntegers(Exception):
  """A node has a name that is no number, or numbers are far apart."""


def learns_edges(settings: Mapping[str, Any]) -> bool:
  """Whether `config.data` learns from edges, not from walks or nodes."""
  return settings.get('source') == 'edges'


def listed(
  paths: Sequence[pathlib.Path],
  settings: Mapping[str, Any],
  folder: pathlib.Path,
  progress: Callable[[str, int, int], None],
) -> graph_lib.Graph:
  """Read lists of edges into a graph whose arrays are files of a folder.

  Raises a `UserError` if one cannot be read.
  """
  layouts = _layouts(paths, settings)
  for as_integers in (True, False):
    with tempfile.TemporaryDirectory(dir=folder) as spill:
      reader = _Reader(
        layouts, settings, spill=pathlib.Path(spill), as_integers=as_integers
      )
      try:
        reader.read(progress)
      except _NotIntegers:
        continue
      return reader.graph(folder)
  raise AssertionError


# How files are to be read.


class _Layout(NamedTuple):
  """How the rows of a file are laid out."""

  columns: dict[str, int]  # by role
  delimiter: str = ''  # '' = of Parquet
  width: int = 0  # fields of a line
  skips_first: bool = False  # a header, or sizes
  is_adjacency: bool = False  # a line is a node and its neighbors


@contextlib.contextmanager
def _reading(path, paths):
  """Raises a `UserError` for a file that cannot be read."""
  try:
    yield
  except (
    *(errors.UserError, OSError, EOFError, lzma.LZMAError, ValueError),
    NotImplementedError,  # a column of lists
  ) as error:
    message = str(error)
    if not isinstance(error, errors.UserError):
      message = (
        f'cannot read {path} as a list of edges: {errors.one_line(error)}; '
        'give --config.data.columns, or another file'
      )
    raise errors.UserError(message + _hint(path, paths)) from error


def _hint(path, paths):
  """What to do where files of other kinds are in a folder."""
  if len(paths) < 2:
    return ''
  largest = max(paths, key=lambda x: x.stat().st_size)
  pattern = largest.with_name('*' + (largest.suffix or largest.name))
  return f'; of {len(paths)} files, a glob such as {pattern} chooses some'


def _layouts(paths, settings) -> dict[pathlib.Path, _Layout]:
  """The layout of each file; all have the same columns."""
  layouts: dict[pathlib.Path, _Layout] = {}
  for path in paths:
    with _reading(path, paths):
      layout = layouts[path] = _layout(path, settings)
      first = layouts[paths[0]]
      signs = [
        'white space' if x.delimiter in (' ', '\t') else repr(x.delimiter)
        for x in (layout, first)
      ]
      if signs[0] != signs[1] and layout.delimiter and first.delimiter:
        raise errors.UserError(
          f'{path} has {signs[0]} between its columns, and the files before it '
          f'{signs[1]}; give files of one kind'
        )
      if layout.columns.keys() != first.columns.keys():
        raise errors.UserError(
          f'{path} has the columns {", ".join(sorted(layout.columns))}, and '
          f'the files before it {", ".join(sorted(first.columns))}; give files '
          'of one kind'
        )
  return layouts


def _layout(path, settings):
  declared = settings['columns'].replace(' ', '')
  if tables.guess(path) == 'parquet':
    columns, _ = edge_columns.assign(path, _parquet_head(path), declared)
    return _Layout(columns)
  lines, title = line_format.head(path), tables.first_line(path)
  is_matrix = title.startswith('%%MatrixMarket')
  is_bipartite = bool(re.match(r'%\s*bip\b', title))  # KONECT's
  is_symmetric = re.match(r'%\s*sym\b|%%MatrixMarket.* symmetric', title)
  if is_symmetric and settings['directed']:
    raise errors.UserError(
      f'{path} has edges that lead both ways, as its first line says, once; '
      'leave out config.data.directed'
    )
  if is_matrix and len(lines) > 1:
    sizes, lines = lines[0].split(), lines[1:]
    is_bipartite = sizes[:1] != sizes[1:2]
  if is_bipartite:
    raise errors.UserError(
      f'{path} has edges between nodes of two kinds, which have the same '
      "numbers; give them names of their own, such as by awk '!/^%/ "
      '{print "a" $1, "b" $2}\''
    )
  delimiter = line_format.delimiter(path, lines)
  table = [line_format.cells(x, delimiter) for x in lines]
  is_adjacency = declared == edge_columns.ADJACENCY
  if not declared and 'adjlist' in re.sub('[_-]', '', path.name.lower()):
    _LOG.info('%s: read as an adjacency list', path)
    is_adjacency = True
  columns, has_header = {'source': 0, 'target': 1}, False
  if not is_adjacency:
    columns, has_header = edge_columns.assign(path, table, declared)
  return _Layout(
    columns=columns,
    delimiter=delimiter,
    width=len(table[0]),
    skips_first=has_header or is_matrix,
    is_adjacency=is_adjacency,
  )


def _parquet_head(path):
  """The names of columns, and the first rows as strings."""
  from pyarrow import parquet

  with parquet.ParquetFile(path) as reader:
    rows = [reader.schema_arrow.names]
    for batch in itertools.islice(reader.iter_batches(20), 1):
      columns = [map(str, x.to_pylist()) for x in batch.columns]
      rows += zip(*columns, strict=True)
  return rows


# Blocks of rows, which are parsed in threads.


class _Block(NamedTuple):
  """Parsed rows of a stretch of a file."""

  ends: tuple[keys.Text, keys.Text]
  numbers: np.ndarray | None  # [2, n] int64, if all nodes are integers
  weights: np.ndarray | None  # [n] float32
  relations: keys.Text | None
  bad: list[tuple[int, str]]  # lines, and what is wrong
  num_lines: int = 0
  num_alone: int = 0  # of an adjacency list, without neighbors
  num_comments: int = 0
  num_invalid: int = 0  # bytes that are not UTF-8
  read_bytes: int = 0  # of the file, with those before


def _jobs(path, layout, as_integers) -> Iterator[Callable[[], _Block]]:
  """Functions that parse a stretch of a file each."""
  if layout.delimiter:
    skips_first = layout.skips_first
    for text, read_bytes, num_invalid in tables.blocks(path):
      yield functools.partial(
        _parse,
        text,
        layout._replace(skips_first=skips_first),
        as_integers,
        num_invalid=num_invalid,
        read_bytes=read_bytes,
      )
      skips_first = False
    return
  from pyarrow import parquet

  with parquet.ParquetFile(path) as reader:
    total, num = max(1, reader.metadata.num_rows), 0
    for batch in reader.iter_batches(_PARQUET_ROWS):
      num += len(batch)
      yield functools.partial(
        _parse_parquet,
        batch,
        layout,
        as_integers,
        read_bytes=path.stat().st_size * num // total,
      )


def _parse_parquet(batch, layout, as_integers, read_bytes):
  import pyarrow as pa
  import pyarrow.compute as pc

  texts = {}
  for role, i in layout.columns.items():
    strings = pc.cast(batch.column(i), pa.large_string())
    texts[role] = keys.Text.of(pc.fill_null(strings, ''))
  return _block(texts, [], as_integers, read_bytes=read_bytes)


def _parse(text, layout, as_integers, num_invalid, read_bytes):
  data = np.frombuffer(text, np.uint8)
  if bytes(data[:3]) == b'\xef\xbb\xbf':
    data = data[3:]
  is_spaces = layout.delimiter == ' '
  size, num_comments = _tidy(data, is_spaces)
  data = data[:size]
  quote = 0 if is_spaces else ord('"')
  delimiter = ord('\t' if is_spaces else layout.delimiter)
  counts = {
    'num_comments': num_comments,
    'num_invalid': num_invalid,
    'read_bytes': read_bytes,
  }
  if layout.is_adjacency:
    texts, bad, num_lines, num_alone = _neighbors(data, delimiter, quote)
    counts |= {'num_lines': num_lines, 'num_alone': num_alone}
    return _block(texts, bad, as_integers, **counts)
  most = np.count_nonzero(data == 10) + 1
  spans = np.empty((2, layout.width, most), np.int32)
  bad = np.empty((2, most), np.int32)
  first = lines = 0
  if layout.skips_first:
    start = np.argmax((data != 10) & (data != 13))
    first = int(start + np.argmax(data[start:] == 10) + 1)
    lines = int(np.count_nonzero(data[:first] == 10))
  num, num_lines, num_bad = tables.split(
    data, first, delimiter, quote, *spans, *bad
  )
  texts = {
    role: keys.Text(data, spans[0, i, :num], spans[1, i, :num])
    for role, i in layout.columns.items()
  }
  bad = [
    (int(line) + lines, 'a quote is not closed')
    if cells < 0
    else (int(line) + lines, f'it has {cells} of {layout.width} fields')
    for line, cells in bad[:, :num_bad].T
  ]
  return _block(texts, bad, as_integers, num_lines=num_lines + lines, **counts)


def _block(texts, bad, as_integers, **counts):
  """Drops rows without a name or with a wrong weight, as further `bad` ones."""
  ends = texts['source'], texts['target']
  is_good = np.ones(len(ends[0].starts), bool)
  for text in ends:
    is_good &= text.stops > text.starts
  bad = [*bad, *_wrong(ends[0], ~is_good, 'a node has no name')]
  weights = None
  if 'weight' in texts:
    weights = _floats(texts['weight'])
    is_weight = np.isfinite(weights) & (weights > 0)
    wrong = is_good & ~is_weight
    shown = texts['weight'].strings(np.flatnonzero(wrong)[:1]).to_pylist()
    why = f'the weight {"".join(shown)!r} is not above 0'
    bad += _wrong(ends[0], wrong, why)
    is_good &= is_weight
  relations = texts.get('relation')
  if not is_good.all():
    ends = tuple(_select(x, is_good) for x in ends)
    weights = weights if weights is None else weights[is_good]
    relations = relations and _select(relations, is_good)
  numbers = None
  if as_integers:
    numbers = np.empty((2, len(ends[0].starts)), np.int64)
    if not all(_integers(*x, y) for x, y in zip(ends, numbers, strict=True)):
      numbers = None
  return _Block(ends, numbers, weights, relations=relations, bad=bad, **counts)


def _wrong(text, is_wrong, why) -> list[tuple[int, str]]:
  """For each wrong row the line of the first one, and what is wrong."""
  rows = np.flatnonzero(is_wrong)
  if not len(rows):
    return []
  line = np.count_nonzero(text.data[: text.starts[rows[0]]] == 10)
  return [(int(line), why)] * len(rows)


def _select(text, rows):
  return keys.Text(text.data, text.starts[rows], text.stops[rows])


@numba.njit(nogil=True, cache=True)
def _is_hex(sign):
  return 48 <= sign < 58 or 65 <= sign < 71


@numba.njit(nogil=True, cache=True)
def _tidy(data, is_spaces):
  """Empties lines of comments; cells of others become separated by one tab.

  In place; returns the new size, and the number of comments.
  """
  n = i = num_comments = 0
  while i < len(data):
    start = n
    is_comment = data[i] == 35 or data[i] == 37  # '#', '%'
    if data[i] == 37 and i + 2 < len(data):  # but for a name such as %C3%A1
      is_comment = not (_is_hex(data[i + 1]) and _is_hex(data[i + 2]))
    num_comments += is_comment
    is_open = False
    while i < len(data) and data[i] != 10:
      is_space = data[i] == 32 or data[i] == 9 or data[i] == 13
      if not is_comment:
        if not is_spaces:
          data[n] = data[i]
          n += 1
        elif is_space:
          is_open = n > start
        else:
          if is_open:
            data[n] = 9
            n += 1
          is_open = False
          data[n] = data[i]
          n += 1
      i += 1
    if i < len(data):
      data[n] = 10
      n += 1
    i += 1
  return n, num_comments


def _neighbors(data, delimiter, quote):
  """Both ends of the edges of an adjacency list, bad lines, and lone nodes.

  A node without neighbors is its own here, which keeps it.
  """
  breaks = np.flatnonzero(data == 10)
  data[data == delimiter] = 10  # a cell a line
  cell_breaks = np.flatnonzero(data == 10)
  spans = np.empty((2, 1, len(cell_breaks)), np.int32)
  bad = np.empty((2, len(cell_breaks)), np.int32)
  num, _, num_bad = tables.split(data, 0, 10, quote, *spans, *bad)
  starts, stops = spans[:, 0, :num]
  is_node = np.diff(np.searchsorted(breaks, starts), prepend=-1) > 0
  is_alone = is_node & np.append(is_node[1:], True)
  nodes = np.maximum.accumulate(np.where(is_node, np.arange(num), 0))
  targets = np.flatnonzero(~is_node | is_alone)
  sources = nodes[targets]
  ends = {
    'source': keys.Text(data, starts[sources], stops[sources]),
    'target': keys.Text(data, starts[targets], stops[targets]),
  }
  lines = np.searchsorted(breaks, cell_breaks[bad[0, :num_bad]])
  whys = [(int(x), 'a quote is not closed') for x in lines]
  return ends, whys, len(breaks), int(is_alone.sum())


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
    numbers = np.full(len(strings), np.nan, np.float32)
    for i, x in enumerate(strings.to_pylist()):
      with contextlib.suppress(ValueError):
        numbers[i] = float(x)
    return numbers


class _Reader:
  """Reads edges of files into other files, and makes a graph of these."""

  def __init__(
    self,
    layouts: Mapping[pathlib.Path, _Layout],
    settings: Mapping[str, Any],
    spill: pathlib.Path,
    as_integers: bool,
  ):
    self._layouts, self._paths = layouts, list(layouts)
    self._spill, self._as_integers = spill, as_integers
    self._settings, self._num_nodes = settings, settings['num_nodes']
    self._nodes, self._relations = keys.Keys(), keys.Keys()
    self._names, self._relation_names = [], []
    self._num = self._num_bad = self._num_comments = self._num_invalid = 0
    self._num_alone = 0
    self._largest, self._first_bad = -1, ''

  def read(self, progress: Callable[[str, int, int], None]) -> None:
    """Read all files, or raise `_NotIntegers`."""
    sizes = {x: x.stat().st_size for x in self._paths}
    total, before = sum(sizes.values()), 0
    with contextlib.ExitStack() as stack:
      self._files = {
        name: stack.enter_context((self._spill / name).open('wb'))
        for name in ('ends', 'weights', 'relations')
      }
      for path, size in sizes.items():
        with _reading(path, self._paths):
          for read_bytes in self._read(path):
            progress('reading', before + read_bytes, total)
        before += size
    num = self._num + self._num_bad
    if self._num_bad > _MAX_BAD * num or not self._num:
      first, path = self._first_bad or 'no line has an edge', self._paths[0]
      raise errors.UserError(
        f'{self._num_bad:,} of {num:,} edges of {path} cannot be read: {first};'
        ' mend the file, or give --config.data.columns'
        f'{_hint(path, self._paths)}'
      )

  def _read(self, path) -> Iterator[int]:
    """Read a file; yields how many of its bytes were read."""
    lines, num_threads = 1, resources.reading_threads()
    jobs = _jobs(path, self._layouts[path], self._as_integers)
    with futures.ThreadPoolExecutor(num_threads) as pool:
      for block in text_files.map_ahead(
        pool,
        function=lambda job: job(),
        items=((x,) for x in jobs),
        depth=num_threads + 1,
      ):
        for line, why in block.bad:
          self._num_bad += 1
          self._first_bad = (
            self._first_bad or f'{path} line {lines + line}: {why}'
          )
        lines += block.num_lines
        self._add(block)
        yield block.read_bytes

  def _add(self, block):
    self._num_comments += block.num_comments
    self._num_alone += block.num_alone
    self._num_invalid += block.num_invalid
    if not len(block.ends[0].starts):
      return
    if self._as_integers:
      ends = self._checked(block.numbers)
    else:
      ends = np.empty((2, len(block.ends[0].starts)), np.int32)
      for out, text in zip(ends, block.ends, strict=True):
        out[:], new = self._nodes.add(text.hashes())
        self._names.append(text.strings(new))
    ends.T.astype(np.int32).tofile(self._files['ends'])
    self._num += ends.shape[1]
    if block.weights is not None:
      block.weights.tofile(self._files['weights'])
    if block.relations is not None:
      numbers, new = self._relations.add(block.relations.hashes())
      self._relation_names += block.relations.strings(new).to_pylist()
      numbers.tofile(self._files['relations'])

  def _checked(self, numbers):
    """The same numbers, if they may be those of nodes."""
    if numbers is None:
      raise _NotIntegers
    self._largest = max(self._largest, int(numbers.max()))
    if self._num_nodes and self._largest >= self._num_nodes:
      raise errors.UserError(
        f'an edge names node {self._largest}, and config.data.num_nodes='
        f'{self._num_nodes}, from 0 on; raise it, or remove the edge'
      )
    num = self._num + numbers.shape[1]
    if self._largest >= min(max(1 << 20, 64 * num), 1 << 31):
      raise _NotIntegers
    return numbers

  def graph(self, folder: pathlib.Path) -> graph_lib.Graph:
    """Make the graph of what was read."""
    if self._as_integers:
      names, numbers, num_nodes = self._used_numbers()
    else:
      names, numbers = _names(self._names), None
      num_nodes = len(names)
      if self._num_nodes and num_nodes > self._num_nodes:
        raise errors.UserError(
          f'edges name {num_nodes:,} nodes, and config.data.num_nodes='
          f'{self._num_nodes}; give the right number'
        )
    relations = self._relation_names or None
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
      'unreadable_edges': self._num_bad,
      'comments': self._num_comments,  # lines
      'invalid_utf8_bytes': self._num_invalid,
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
    self._refuse_sizes()
    num_nodes = int(is_used.sum())
    if num_nodes == len(is_used):
      return None, None, num_nodes
    import pyarrow as pa
    import pyarrow.compute as pc

    used = pc.cast(pa.array(np.flatnonzero(is_used)), pa.large_string())
    numbers = (np.cumsum(is_used) - 1).astype(np.int32)
    return _names([used]), numbers, num_nodes

  def _refuse_sizes(self):
    """Raises a `UserError` if the first edge seems to be `nodes edges`."""
    nodes, edges = (int(x[0]) for x in next(self._chunks(None))[:2])
    if edges != self._num - 1 or self._num < 5:
      return
    most = 0
    for i, x in enumerate(self._chunks(None)):
      others = np.stack(x[:2])[:, not i :]
      most = max(most, others.max(initial=0))
    if nodes >= most:
      raise errors.UserError(
        f'{self._paths[0]} begins with {nodes} {edges}, which seem to be the '
        'numbers of nodes and edges; remove this line'
      )

  def _chunks(self, numbers) -> Iterator[graph_lib.Edges]:
    def mapped(name, kind):
      path = self._spill / name
      return np.memmap(path, kind, 'r') if path.stat().st_size else None

    ends = mapped('ends', np.int32).reshape(-1, 2)
    columns = mapped('weights', np.float32), mapped('relations', np.int32)
    for i in range(0, len(ends), _CHUNK):
      some = np.asarray(ends[i : i + _CHUNK])
      if numbers is not None:
        some = numbers[some]
      cut = (x if x is None else np.asarray(x[i : i + _CHUNK]) for x in columns)
      yield graph_lib.Edges(*some.T, *cut)


def _names(arrays):
  """`Names` of Arrow arrays of strings."""
  texts = [keys.Text.of(x) for x in arrays]
  sizes = np.concatenate([x.stops - x.starts for x in texts])
  offsets = np.zeros(len(sizes) + 1, np.int64)
  np.cumsum(sizes, out=offsets[1:])
  parts = [x.data[x.starts[0] : x.stops[-1]] for x in texts if len(x.starts)]
  return graph_lib.Names(offsets, np.concatenate(parts))


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
