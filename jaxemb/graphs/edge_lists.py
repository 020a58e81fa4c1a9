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
from jaxemb.graphs import graph as graph_lib
from jaxemb.io import keys
from jaxemb.io import tables as formats
from jaxemb.io import text_files as sources
from jaxemb.runtime import resources

_LOG = logging.getLogger('jaxemb')

COLUMNS = 'source', 'target', 'weight', 'relation'
_CALLED = {  # what columns are called in headers
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
_ADJACENCY = 'source,targets'  # `data.columns` of adjacency lists
_MAX_BAD = 0.01  # share of lines that are skipped
_CHUNK = 1 << 22  # edges


def _tell(progress, before, total, done):
  progress('reading', before + done, total)


class _NotIntegers(Exception):
  """A node has a name that is no number, or numbers are far apart."""


def listed(
  paths: Sequence[pathlib.Path],
  settings: Mapping[str, Any],
  folder: pathlib.Path,
  progress: Callable[[str, int, int], None],
) -> graph_lib.Graph:
  """The graph of lists of edges, whose arrays are in files of a folder.

  Raises a `UserError` if one cannot be read.
  """
  for as_integers in (True, False):
    with tempfile.TemporaryDirectory(dir=folder) as spill:
      rows = _Rows(
        paths=paths,
        settings=settings,
        spill=pathlib.Path(spill),
        as_integers=as_integers,
      )
      try:
        rows.read(progress)
      except _NotIntegers:
        continue
      return rows.graph(folder)
  raise AssertionError


class _Block(NamedTuple):
  """Parsed rows of a stretch of a file."""

  ends: tuple[keys.Text, keys.Text]
  numbers: np.ndarray | None  # [2, n] int64, or uint64 hashes of names
  weights: np.ndarray | None  # [n] float32
  relations: keys.Text | None
  bad: list[tuple[int, str]]  # lines, and what is wrong
  num_lines: int
  num_alone: int  # of an adjacency list, without neighbors
  num_comments: int
  read_bytes: int


class _Rows:
  """Reads edges of files into other files."""

  def __init__(self, paths, settings, spill, as_integers):
    self._paths, self._spill, self._as_integers = paths, spill, as_integers
    self._settings = settings
    self._num_nodes = settings['num_nodes']
    self._nodes, self._relations = keys.Keys(), keys.Keys()
    self._names, self._relation_names = [], []
    self._num = self._num_bad = self._num_comments = self._num_invalid = 0
    self._num_alone = 0
    self._largest, self._first_bad = -1, ''
    self._columns = self._sign = None
    # Integers are tried first.
    self._tell = _LOG.info if as_integers else lambda *_: None

  def read(self, progress):
    """Reads all, or raises `_NotIntegers`."""
    sizes = [x.stat().st_size for x in self._paths]
    with contextlib.ExitStack() as stack:
      self._files = {}
      for name in ('ends', 'weights', 'relations'):
        file = stack.enter_context((self._spill / name).open('wb'))
        self._files[name] = file
      done, total = 0, sum(sizes)
      for path, size in zip(self._paths, sizes, strict=True):
        tell = functools.partial(_tell, progress, done, total)
        done += size
        try:
          self._read(path, tell)
        except errors.UserError as error:
          raise errors.UserError(f'{error}{self._others(path)}') from error
    num = self._num + self._num_bad
    if self._num_bad > _MAX_BAD * num or not self._num:
      first = self._first_bad or 'no line has an edge'
      raise errors.UserError(
        f'{self._num_bad:,} of {num:,} edges of {self._paths[0]} cannot be '
        f'read: {first}; mend the file, or give --config.data.columns'
        f'{self._others(self._paths[0])}'
      )

  def _others(self, path):
    """What to do where files of other kinds are in a folder."""
    if len(self._paths) < 2:
      return ''
    largest = max(self._paths, key=lambda x: x.stat().st_size)
    some = largest.with_name('*' + (largest.suffix or largest.name))
    return f'; of {len(self._paths)} files, a glob such as {some} chooses some'

  def _read(self, path, progress):
    lines, threads = 1, resources.reading_threads()
    with futures.ThreadPoolExecutor(threads) as pool:
      jobs = ((x,) for x in self._jobs(path))
      made = sources.map_ahead(
        pool, function=lambda x: x(), items=jobs, depth=threads + 1
      )
      try:
        for block in made:
          for line, why in block.bad:
            self._num_bad += 1
            where = f'{path} line {lines + line}: {why}'
            self._first_bad = self._first_bad or where
          lines += block.num_lines
          self._num_comments += block.num_comments
          self._num_alone += block.num_alone
          self._add(block)
          progress(block.read_bytes)
      except (
        *(OSError, EOFError, lzma.LZMAError, ValueError),
        NotImplementedError,  # a column of lists
      ) as error:
        raise errors.UserError(
          f'cannot read {path} as a list of edges: '
          f'{errors.one_line(error)}; give --config.data.columns, or '
          'another file'
        ) from error

  def _add(self, block):
    if not len(block.ends[0].starts):
      return
    if self._as_integers:
      if block.numbers is None:
        raise _NotIntegers
      self._largest = max(self._largest, int(block.numbers.max()))
      if self._num_nodes and self._largest >= self._num_nodes:
        raise errors.UserError(
          f'an edge names node {self._largest}, and config.data.num_nodes='
          f'{self._num_nodes}, from 0 on; raise it, or remove the edge'
        )
      num = self._num + block.numbers.shape[1]
      if self._largest >= min(max(1 << 20, 64 * num), 1 << 31):
        raise _NotIntegers
      ends = block.numbers
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
      found, new = self._relations.add(block.relations.hashes())
      self._relation_names += block.relations.strings(new).to_pylist()
      found.tofile(self._files['relations'])

  def graph(self, folder):
    """The graph of what was read."""
    names, numbers, num_nodes = None, None, self._num_nodes
    if not self._as_integers:
      names = _names(self._names)
      if num_nodes and len(names) > num_nodes:
        raise errors.UserError(
          f'edges name {len(names):,} nodes, and config.data.num_nodes='
          f'{num_nodes}; give the right number'
        )
      num_nodes = len(names)
    elif not num_nodes:
      is_there = np.zeros(self._largest + 1, bool)
      for x in self._chunks(None):
        is_there[x.sources] = is_there[x.targets] = True
      self._refuse_sizes()
      num_nodes = int(is_there.sum())
      if num_nodes < len(is_there):
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = (np.cumsum(is_there) - 1).astype(np.int32)
        found = pa.array(np.flatnonzero(is_there))
        names = _names([pc.cast(found, pa.large_string())])
    chunks = functools.partial(self._chunks, numbers)
    relations = self._relation_names or None
    directed = self._settings['directed']
    # A triple has a head and a tail; a walk goes either way.
    directed |= bool(relations) and learns_edges(self._settings)
    found = graph_lib.build(chunks, num_nodes, directed, folder=folder)
    counted = {**found.counted, 'unreadable_edges': self._num_bad}
    counted['self_loops'] -= self._num_alone
    counted['comments'] = self._num_comments  # lines
    counted['invalid_utf8_bytes'] = self._num_invalid
    return found._replace(
      names=names, counted=counted, relation_names=relations
    )

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
    others = mapped('weights', np.float32), mapped('relations', np.int32)
    for i in range(0, len(ends), _CHUNK):
      some = np.asarray(ends[i : i + _CHUNK])
      if numbers is not None:
        some = numbers[some]
      cut = (x if x is None else np.asarray(x[i : i + _CHUNK]) for x in others)
      yield graph_lib.Edges(*some.T, *cut)

  def _jobs(self, path) -> Iterator[Callable[[], _Block]]:
    """Functions that parse a stretch of a file each."""
    if formats.guess(path) == 'parquet':
      yield from self._parquet(path)
      return
    head = head_of(path)
    title = formats.first_line(path)
    is_sized = title.startswith('%%MatrixMarket')
    has_parts = bool(re.match(r'%\s*bip\b', title))  # KONECT's
    is_symmetric = re.match(r'%\s*sym\b|%%MatrixMarket.* symmetric', title)
    if is_symmetric and self._settings['directed']:
      raise errors.UserError(
        f'{path} has edges that lead both ways, as its first line says, once; '
        'leave out config.data.directed'
      )
    if is_sized and len(head) > 1:
      sizes, head = head[0].split(), head[1:]
      has_parts = sizes[:1] != sizes[1:2]
    if has_parts:
      raise errors.UserError(
        f'{path} has edges between nodes of two kinds, which have the same '
        "numbers; give them names of their own, such as by awk '!/^%/ "
        '{print "a" $1, "b" $2}\''
      )
    delimiter = delimiter_of(path, head)
    table = [cells_of(x, delimiter) for x in head]
    given = self._settings['columns'].replace(' ', '')
    is_adjacency = given == _ADJACENCY or not given and _is_adjacency(path)
    if is_adjacency:
      self._tell('%s: read as an adjacency list', path)
      columns, has_header = {'source': 0, 'target': 1}, False
    else:
      columns, has_header = _columns(path, table, given, tell=self._tell)
    self._check_columns(columns, path, delimiter)
    first = has_header or is_sized
    for text, read_bytes, num_invalid in formats.blocks(path):
      self._num_invalid += num_invalid
      yield functools.partial(
        self._parse,
        text,
        delimiter,
        columns,
        first,
        is_adjacency,
        len(table[0]),
        read_bytes,
      )
      first = False

  def _check_columns(self, columns, path, delimiter=''):
    """All files have the same, and text the same signs between them."""
    sign = 'white space' if delimiter in (' ', '\t') else repr(delimiter)
    if delimiter and self._sign not in (None, sign):
      raise errors.UserError(
        f'{path} has {sign} between its columns, and the files before it '
        f'{self._sign}; give files of one kind'
      )
    self._sign = sign if delimiter else self._sign
    kinds = sorted(columns)
    if self._columns not in (None, kinds):
      raise errors.UserError(
        f'{path} has the columns {", ".join(kinds)}, and the files before it '
        f'{", ".join(self._columns)}; give files of one kind'
      )
    self._columns = kinds

  def _parquet(self, path):
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    size = path.stat().st_size

    def parse(batch, done):
      texts = {
        k: keys.Text.of(
          pc.fill_null(pc.cast(batch.column(i), pa.large_string()), '')
        )
        for k, i in columns.items()
      }
      return self._block(texts, [], 0, 0, 0, size * done // total)

    with parquet.ParquetFile(path) as reader:
      table = [reader.schema_arrow.names]
      for batch in itertools.islice(reader.iter_batches(20), 1):
        rows = zip(*(x.to_pylist() for x in batch.columns), strict=True)
        table += [list(map(str, x)) for x in rows]
      columns, _ = _columns(
        path, table, given=self._settings['columns'], tell=self._tell
      )
      self._check_columns(columns, path)
      done, total = 0, max(1, reader.metadata.num_rows)
      for batch in reader.iter_batches(1 << 18):
        done += len(batch)
        yield functools.partial(parse, batch, done)

  def _parse(
    self, text, delimiter, columns, has_header, is_adjacency, width, read_bytes
  ):
    data = np.frombuffer(text, np.uint8)
    if bytes(data[:3]) == b'\xef\xbb\xbf':
      data = data[3:]
    is_spaces = delimiter == ' '
    size, num_comments = _tidy(data, is_spaces)
    data = data[:size]
    quote = 0 if is_spaces else ord('"')
    delimiter = ord('\t' if is_spaces else delimiter)
    if is_adjacency:
      found = _neighbors(data, delimiter, quote)
      return self._block(*found, num_comments, read_bytes)
    most = np.count_nonzero(data == 10) + 1
    spans = np.empty((2, width, most), np.int32)
    bad = np.empty((2, most), np.int32)
    first = lines = 0
    if has_header:
      start = np.argmax((data != 10) & (data != 13))
      first = int(start + np.argmax(data[start:] == 10) + 1)
      lines = int(np.count_nonzero(data[:first] == 10))
    num, num_lines, num_bad = formats.split(
      data, first, delimiter, quote, *spans, *bad
    )
    texts = {
      k: keys.Text(data, spans[0, i, :num], spans[1, i, :num])
      for k, i in columns.items()
    }
    whys = [
      (int(line) + lines, 'a quote is not closed')
      if cells < 0
      else (int(line) + lines, f'it has {cells} of {width} fields')
      for line, cells in bad[:, :num_bad].T
    ]
    return self._block(
      texts, whys, num_lines + lines, 0, num_comments, read_bytes
    )

  def _block(self, texts, bad, *sizes):
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
      ends = tuple(_chosen(x, is_good) for x in ends)
      weights = weights if weights is None else weights[is_good]
      relations = relations and _chosen(relations, is_good)
    numbers = None
    if self._as_integers:
      numbers = np.empty((2, len(ends[0].starts)), np.int64)
      for out, text in zip(numbers, ends, strict=True):
        if not _integers(*text, out):
          numbers = None
          break
    return _Block(ends, numbers, weights, relations, bad, *sizes)


def learns_edges(settings: Mapping[str, Any]) -> bool:
  """Whether `config.data` learns from edges, not from walks or nodes."""
  return settings.get('source') == 'edges'


def _wrong(text, is_wrong, why) -> list[tuple[int, str]]:
  """For each wrong row the line of the first one, and what is wrong."""
  rows = np.flatnonzero(is_wrong)
  if not len(rows):
    return []
  line = np.count_nonzero(text.data[: text.starts[rows[0]]] == 10)
  return [(int(line), why)] * len(rows)


def _chosen(text, rows):
  return keys.Text(text.data, text.starts[rows], text.stops[rows])


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
  found, seen = [], set()
  for i, name in enumerate(names):
    while not name or name in seen:
      name = f'{name}#{i}'
    seen.add(name)
    found.append(name)
  return found


@numba.njit(nogil=True, cache=True)
def _is_hex(sign):
  return 48 <= sign < 58 or 65 <= sign < 71


def is_comment(line: str) -> bool:
  """Whether a line begins as comments do, and names of URLs do not."""
  return bool(re.match('#|%(?![0-9A-F]{2})', line))


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
  num, _, num_bad = formats.split(data, 0, 10, quote, *spans, *bad)
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
    found = np.full(len(strings), np.nan, np.float32)
    for i, x in enumerate(strings.to_pylist()):
      with contextlib.suppress(ValueError):
        found[i] = float(x)
    return found


def head_of(
  path: pathlib.Path, most: int = 20, what: str = 'an edge'
) -> list[str]:
  """The first lines that are no comments."""
  found = []
  for text, *_ in formats.blocks(path):
    if 0 in text[:1000]:
      raise errors.UserError(
        f'{path} is no text in UTF-8; give plain or compressed text'
      )
    for line in bytes(text).split(b'\n'):
      line = line.decode('utf-8-sig', 'replace').strip('\r')
      if line.strip() and not is_comment(line):
        found.append(line)
      if len(found) == most:
        return found
  if not found:
    raise errors.UserError(f'{path} has no line with {what}; give another file')
  return found


def delimiter_of(path: pathlib.Path, head: Sequence[str]) -> str:
  """A tab, a comma or another sign, or ' ' for runs of white space."""
  form = [x for x in path.suffixes if x in ('.csv', '.tsv')]
  if form:
    wanted = {'.csv': ',;|', '.tsv': '\t'}[form[-1]]
  else:
    wanted = '\t,;|'
  signs = [x for x in wanted if x in head[0]]
  if not signs:
    return ' '
  sign = signs[0]
  if sign == ',' and ';' in signs:  # 0,5 is a number where others have ';'
    counts = {x.count(';') for x in head}
    if len(counts) == 1 and counts.pop() > head[0].count(','):
      sign = ';'
  # KONECT has both spaces and tabs between numbers.
  cells = [y.split() for x in head for y in x.split(sign)]
  is_mixed = sign == '\t' and any(len(x) > 1 for x in cells)
  if is_mixed and all(is_number(y) for x in cells for y in x):
    return ' '
  return sign


def cells_of(line: str, delimiter: str) -> list[str]:
  """The fields of a line."""
  import csv

  if delimiter == ' ':
    return line.split()
  found = next(csv.reader([line], delimiter=delimiter), [])
  return [x.strip() for x in found]


def _is_adjacency(path):
  return 'adjlist' in re.sub('[_-]', '', path.name.lower())


def is_number(text: str) -> bool:
  """Whether `float` reads it."""
  try:
    float(text)
  except ValueError:
    return False
  return True


def _columns(
  path: pathlib.Path,
  table: Sequence[Sequence[str]],
  given: str,
  tell: Callable[..., None],
) -> tuple[dict[str, int], bool]:
  """The place of each kind of column, and whether the first line is a header.

  `table` has the first lines; only one, where it is surely a header.
  """
  first, rest = table[0], table[1:]
  called = {x for names in _CALLED.values() for x in names}
  lowered = [x.lower() for x in first]
  is_parquet = formats.guess(path) == 'parquet'
  has_header = is_parquet or sum(x in called for x in lowered) > 1
  if has_header and not is_parquet:  # not if these are nodes: u v, v w
    nodes = {y for x in rest for y in x}
    has_header = not any(x in called and x in nodes for x in first)
  if rest and not has_header:
    has_header = any(
      not is_number(x) and all(len(y) > i and is_number(y[i]) for y in rest)
      for i, x in enumerate(first)
    )
  if given:
    kinds = [x.strip() for x in given.split(',')]
    if unknown := sorted({*kinds} - {*COLUMNS, '-'}):
      raise errors.UserError(
        f'config.data.columns={given} names {unknown[0]!r}; give '
        f'{", ".join(COLUMNS)}, or - for others, in their order'
      )
    found = {x: i for i, x in enumerate(kinds) if x != '-'}
    if not {'source', 'target'} <= found.keys() or len(kinds) > len(first):
      raise errors.UserError(
        f'config.data.columns={given} must have a source and a target, and no '
        f'more columns than the {len(first)} of {path}'
      )
    return found, has_header
  if len(first) < 2:
    raise errors.UserError(
      f'{path} has one field in its first line, {first[0][:60]!r}, and an edge '
      'has two nodes; give a list of edges'
    )
  found: dict[str, int] = {}
  if has_header:
    for kind, names in _CALLED.items():
      places = [i for i, x in enumerate(lowered) if x in names]
      if places:
        found[kind] = places[0]
  used = {*found.values()}
  others = [
    i for i, x in enumerate(lowered) if i not in used and x not in _INDEX
  ]
  if has_header and len(used) + len(others) > 2:  # names of edges are no nodes
    others = [i for i in others if lowered[i] not in _OF_EDGES]
  for column in zip(*rest, strict=False):
    if all(re.fullmatch(r'\d+,\d+', x) for x in column):
      raise errors.UserError(
        f'{path} has numbers such as {column[0]}; write points, not commas'
      )
  if not has_header and len({len(x) for x in table}) > 3:
    raise errors.UserError(
      f'{path} has lines of {min(map(len, table))} to '
      f'{max(map(len, table))} fields; if it is an adjacency list, a node and '
      f'its neighbors, give --config.data.columns={_ADJACENCY}'
    )
  if not has_header and len(first) == 3:
    parts = [x for x in rest or table if len(x) > 2]
    has_number = [any(is_number(x[i]) for x in parts) for i in range(3)]
    if all(x[2] in ('', '{}') for x in parts):  # as NetworkX writes it
      kinds = COLUMNS[:2]
    elif not any(re.search(r'\w', x[1]) for x in parts):  # 1 -> 2
      kinds = 'source', '-', 'target'
    elif has_number == [True, True, False]:
      kinds = 'source', 'target', 'relation'
      _refuse_times(path, [x[2] for x in parts], tell)
    elif has_number[2]:
      kinds = COLUMNS[:3]
      _refuse_times(path, [x[2] for x in parts], tell)
    else:  # as of knowledge graphs: head, relation, tail
      kinds = 'source', 'relation', 'target'
    return {x: i for i, x in enumerate(kinds) if x != '-'}, False
  if not has_header and len(first) > 3:
    raise errors.UserError(
      f'{path} has {len(first)} columns and no header; say what they are, such '
      'as --config.data.columns=source,target,weight,-'
    )
  for kind in ('source', 'target'):
    if kind not in found:
      if not others:
        raise errors.UserError(
          f'{path} has no column of a {kind}; give --config.data.columns'
        )
      found[kind] = others.pop(0)
  if 'weight' not in found and len(others) == 1 and rest:
    # The only column that is left, if it has numbers.
    (i,) = others
    is_weight = all(len(x) > i and is_number(x[i]) for x in rest)
    if is_weight and lowered[i] not in _NO_WEIGHTS:
      _refuse_times(path, [x[i] for x in rest], tell)
      found['weight'] = i
  used = {*found.values()}
  if unused := [x for i, x in enumerate(first) if i not in used and x]:
    tell('%s: columns that are not used: %s', path, ', '.join(unused))
  return found, has_header


def _refuse_times(path, texts, tell):
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
    tell(
      '%s: numbers from %d on, which rise from line to line as times do, are '
      'read as weights; if they are none, give --config.data.columns='
      'source,target,-',
      *(path, numbers[0]),
    )
