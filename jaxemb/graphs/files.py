"""Graphs from files: lists of edges, matrices, folders of OGB.

A list of edges has an edge a line, plain or compressed, or a row of Parquet.
Columns are the two nodes, and maybe a weight and a relation. Nodes are called
by strings; where all are numbers, by these. Blocks of lines are parsed in
threads, and edges wait on disk until their lists are made (`graph.build`).

  .npz    matrices by scipy, also with attributes and labels as
          Shchur et al. 2018, or edges as Platonov et al. 2023 write them
  .mat    `network` and `group`, as of the data of Tang and Liu
  folder  as `graph.save` writes it, or of OGB as downloaded; `ogbn-arxiv`
          and others are downloaded
"""

import contextlib
import functools
import hashlib
import itertools
import json
import lzma
import pathlib
import re
import tempfile
from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.clicks import formats, keys
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import toygraph
from jaxemb.storage import atomic
from jaxemb.text import download, encode, sources

COLUMNS = 'source', 'target', 'weight', 'relation'
_CALLED = {  # what columns are called in headers
  'source': {'source', 'src', 'from', 'head', 'subject', 'h', 'u', 'node1'},
  'target': {'target', 'dst', 'to', 'tail', 'object', 't', 'v', 'node2'},
  'weight': {'weight', 'w', 'value', 'strength'},
  'relation': {'relation', 'rel', 'predicate', 'type', 'edge_type', 'r'},
}
_INDEX = {'', 'unnamed: 0', '__index_level_0__'}  # of rows, as pandas writes it
_NO_WEIGHTS = {'id', 'index', 'time', 'timestamp', 'date', 'year', 'label'}
_MAX_BAD = 0.01  # share of lines that are skipped
_CHUNK = 1 << 22  # edges
_SPLITS = 'train', 'valid', 'test'

Progress = Callable[[str, int, int], None]


def read(
  settings: Mapping[str, Any], cache: pathlib.Path, progress: Progress
) -> graph_lib.Graph:
  """The graph that settings under `config.data` name.

  Lists of edges are built once into a folder of the `cache`. Raises a
  `UserError` for input that cannot be used.
  """
  path = settings['path']
  if path.startswith('ogbn-') and not pathlib.Path(path).exists():
    tell = functools.partial(progress, 'downloading')
    path = str(download.ogb(path, cache, tell))
    settings = {**settings, 'path': path}
  first = pathlib.Path(path).expanduser()
  _refuse_pickles(first)
  is_listed = False
  if toygraph.is_named(path):
    found = toygraph.make(path)
  elif graph_lib.is_saved(first):
    found = graph_lib.load(first)
  elif (first / 'raw').is_dir():
    found = _built(_ogb, [*first.rglob('*.*')], settings, cache, progress)
  elif first.suffix in ('.npz', '.mat'):
    found = _of_matrices(first, settings['directed'])
  else:
    paths = formats.find(path, 'list of edges')
    is_listed = True
    found = _built(_listed, paths, settings, cache, progress)
  for key in ('columns', 'num_nodes'):
    if settings[key] and not is_listed:
      raise errors.UserError(
        f'config.data.{key}={settings[key]} is for lists of edges, and '
        f'{path} is none; remove it'
      )
  return _with_nodes(found, settings)


def _refuse_pickles(path):
  """Raises a `UserError` for what only runs as a program of Python."""
  parts = [*path.glob('ind.*.graph')] if path.is_dir() else [path]
  is_planetoid = any(re.match(r'ind\..+\.\w+$', x.name) for x in parts)
  if is_planetoid or path.suffix in ('.pkl', '.pickle', '.pt', '.pth'):
    raise errors.UserError(
      f'{path} has pickles, which can run any code when they are read; write '
      'the graph as .npz with adj_data, adj_indices, adj_indptr, adj_shape, '
      'the same of attr_, labels, and idx_train, idx_val, idx_test'
    )


def from_networkx(
  graph: Any, weight: str = 'weight', label: str = 'label'
) -> graph_lib.Graph:
  """Of a NetworkX graph, with weights of edges and labels of nodes by name.

  To train on it, `graph.save` it and give the folder as `config.data.path`.
  """
  names = _distinct(map(str, graph.nodes))
  numbers = {x: i for i, x in enumerate(graph.nodes)}
  found = [(numbers[a], numbers[b], x) for a, b, x in graph.edges(data=True)]
  ends = np.array([x[:2] for x in found], np.int64).reshape(-1, 2)
  weights = np.array([x[2].get(weight, 1) for x in found], np.float32)
  labels = [
    [str(x[label])] if label in x else [] for _, x in graph.nodes(data=True)
  ]
  known = _labels(labels) if any(labels) else {}
  args = *ends.T, len(names), weights, None, graph.is_directed()
  return graph_lib.from_edges(*args, names=graph_lib.Names.of(names), **known)


def _built(make, paths, settings, cache, progress):
  """What `make` makes of settings, from the cache if nothing has changed."""
  used = ('columns', 'directed', 'num_nodes')
  identity = [make.__name__, {k: settings[k] for k in used}, 3]
  for path in sorted(paths):
    status = path.stat()
    # Some tools set times: what is inside tells more.
    sample = sources.sample_sha256(path, max(1, 64 // len(paths)))
    known = status.st_size, status.st_mtime_ns, sample
    identity.append([str(path.absolute()), *known])
  digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
  folder = pathlib.Path(cache) / f'graph-{digest[:16]}'
  if graph_lib.is_saved(folder):
    with contextlib.suppress(errors.UserError):
      return graph_lib.load(folder)
  with atomic.folder(folder) as new:
    graph_lib.save(make(paths, settings, new, progress), new)
  return graph_lib.load(folder)


def _tell(progress, before, total, done):
  progress('reading', before + done, total)


class _NotIntegers(Exception):
  """A node has a name that is no number, or numbers are far apart."""


def _listed(paths, settings, folder, progress):
  """The graph of lists of edges."""
  for as_integers in (True, False):
    with tempfile.TemporaryDirectory(dir=folder) as spill:
      rows = _Rows(paths, settings, pathlib.Path(spill), as_integers)
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
    self._largest, self._first_bad = -1, ''
    self._columns = self._sign = None

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
    lines, threads = 1, encode.num_threads()
    with futures.ThreadPoolExecutor(threads) as pool:
      jobs = ((x,) for x in self._jobs(path))
      made = sources.map_ahead(pool, lambda x: x(), jobs, threads + 1)
      try:
        for block in made:
          for line, why in block.bad:
            self._num_bad += 1
            where = f'{path} line {lines + line}: {why}'
            self._first_bad = self._first_bad or where
          lines += block.num_lines
          self._num_comments += block.num_comments
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
      num_nodes = int(is_there.sum())
      if num_nodes < len(is_there):
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = (np.cumsum(is_there) - 1).astype(np.int32)
        found = pa.array(np.flatnonzero(is_there))
        names = _names([pc.cast(found, pa.large_string())])
    chunks = functools.partial(self._chunks, numbers)
    directed = self._settings['directed']
    found = graph_lib.build(chunks, num_nodes, directed, folder)
    counted = {**found.counted, 'unreadable_edges': self._num_bad}
    counted['comments'] = self._num_comments  # lines
    counted['invalid_utf8_bytes'] = self._num_invalid
    relations = self._relation_names or None
    return found._replace(
      names=names, counted=counted, relation_names=relations
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
    head = _head(path)
    is_sized = formats.first_line(path).startswith('%%MatrixMarket')
    if is_sized and len(head) > 1:
      head = head[1:]  # but for the sizes
    delimiter = _delimiter(path, head)
    table = [_cells(x, delimiter) for x in head]
    columns, has_header = _columns(path, table, self._settings['columns'])
    self._check_columns(columns, path, delimiter)
    first = has_header or is_sized
    for text, read_bytes, num_invalid in formats.blocks(path):
      self._num_invalid += num_invalid
      args = text, delimiter, columns, len(table[0]), first, read_bytes
      yield functools.partial(self._parse, *args)
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
      return self._block(texts, [], 0, 0, size * done // total)

    with parquet.ParquetFile(path) as reader:
      table = [reader.schema_arrow.names]
      for batch in itertools.islice(reader.iter_batches(20), 1):
        rows = zip(*(x.to_pylist() for x in batch.columns), strict=True)
        table += [list(map(str, x)) for x in rows]
      columns, _ = _columns(path, table, self._settings['columns'])
      self._check_columns(columns, path)
      done, total = 0, max(1, reader.metadata.num_rows)
      for batch in reader.iter_batches(1 << 18):
        done += len(batch)
        yield functools.partial(parse, batch, done)

  def _parse(self, text, delimiter, columns, width, has_header, read_bytes):
    data = np.frombuffer(text, np.uint8)
    if bytes(data[:3]) == b'\xef\xbb\xbf':
      data = data[3:]
    is_spaces = delimiter == ' '
    size, num_comments = _tidy(data, is_spaces)
    data = data[:size]
    most = text.count(b'\n') + 1
    spans = np.empty((2, width, most), np.int32)
    bad = np.empty((2, most), np.int32)
    quote = 0 if is_spaces else ord('"')
    delimiter = ord('\t' if is_spaces else delimiter)
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
    num_lines += lines
    return self._block(texts, whys, num_lines, num_comments, read_bytes)

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


def _distinct(names: Iterable[str]) -> list[str]:
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


def _is_comment(line: str) -> bool:
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


def _head(
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
      if line.strip() and not _is_comment(line):
        found.append(line)
      if len(found) == most:
        return found
  if not found:
    raise errors.UserError(f'{path} has no line with {what}; give another file')
  return found


def _delimiter(path: pathlib.Path, head: Sequence[str]) -> str:
  """A tab, a comma or another sign, or ' ' for runs of white space."""
  form = [x for x in path.suffixes if x in ('.csv', '.tsv')]
  if form:
    wanted = {'.csv': ',;|', '.tsv': '\t'}[form[-1]]
  else:
    wanted = '\t,;|'
  for sign in wanted:
    if all(sign in x for x in head[:1]):
      break
  else:
    return ' '
  # KONECT has both spaces and tabs between numbers.
  cells = [y.split() for x in head for y in x.split(sign)]
  is_mixed = sign == '\t' and any(len(x) > 1 for x in cells)
  if is_mixed and all(_is_number(y) for x in cells for y in x):
    return ' '
  return sign


def _cells(line: str, delimiter: str) -> list[str]:
  import csv

  if delimiter == ' ':
    return line.split()
  found = next(csv.reader([line], delimiter=delimiter), [])
  return [x.strip() for x in found]


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _columns(
  path: pathlib.Path, table: Sequence[Sequence[str]], given: str
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
      not _is_number(x) and all(len(y) > i and _is_number(y[i]) for y in rest)
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
  if not has_header and len(first) == 3:
    parts = [x for x in rest or table if len(x) > 2]
    has_number = [any(_is_number(x[i]) for x in parts) for i in range(3)]
    if all(x[2] in ('', '{}') for x in parts):  # as NetworkX writes it
      kinds = COLUMNS[:2]
    elif has_number == [True, True, False]:
      kinds = 'source', 'target', 'relation'
    elif has_number[2]:
      kinds = COLUMNS[:3]
      _refuse_times(path, [x[2] for x in parts])
    else:  # as of knowledge graphs: head, relation, tail
      kinds = 'source', 'relation', 'target'
    return {x: i for i, x in enumerate(kinds)}, False
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
    is_weight = all(len(x) > i and _is_number(x[i]) for x in rest)
    if is_weight and lowered[i] not in _NO_WEIGHTS:
      _refuse_times(path, [x[i] for x in rest])
      found['weight'] = i
  return found, has_header


def _refuse_times(path, texts):
  """Raises a `UserError` for what looks like seconds since 1970."""
  if all(re.fullmatch(r'1?\d{9}(\.0)?', x.strip()) for x in texts):
    raise errors.UserError(
      f'{path} has numbers such as {texts[0].strip()} where weights would be, '
      'which look like times; give --config.data.columns=source,target,-, or '
      'source,target,weight if they are weights'
    )


# What is known of nodes.


def _with_nodes(graph, settings):
  """The graph with labels and features of files that settings name."""
  known: dict[str, Any] = {}
  counted = dict(graph.counted)
  if settings['labels'] or settings['features']:
    number = numbers(graph)
  path = settings['labels']
  if path.endswith('.npy'):
    known |= _classes(_rows_of(path), path, graph.num_nodes)
  elif path:
    labels: list[list[str]] = [[] for _ in range(graph.num_nodes)]
    unknown = 0
    for _, (name, *found) in _lines(path, 2, _LABELS):
      node = number(name)
      if node is None:
        unknown += 1
      else:
        labels[node] += [
          y
          for x in found
          for y in (re.split('[,;]', x) if _LISTED.fullmatch(x) else [x])
        ]
    if not any(labels):
      raise errors.UserError(
        f'{path} has labels of {unknown:,} nodes, none of which the graph has; '
        'give lines `node label ...` with the names that edges have'
      )
    known |= _labels(labels)
    counted['labels_of_unknown_nodes'] = unknown
  if path := settings['features']:
    if path.endswith('.npy'):
      features = _rows_of(path)
      if features.dtype.kind not in 'biuf':
        raise errors.UserError(f'{path} has no numbers; give numbers')
      if features.ndim != 2 or len(features) != graph.num_nodes:
        raise errors.UserError(
          f'{path} has the shape {features.shape}, and the graph has '
          f'{graph.num_nodes:,} nodes; give a row for each'
        )
    else:
      features, unknown = None, 0
      for line, (name, *cells) in _lines(path, 2):
        if features is None:
          features = np.zeros((graph.num_nodes, len(cells)), np.float32)
          has_row = np.zeros(graph.num_nodes, bool)
        if len(cells) != features.shape[1]:
          raise errors.UserError(
            f'{path} line {line} has {len(cells)} features, and others have '
            f'{features.shape[1]}; give as many for each node'
          )
        node = number(name)
        if node is None:
          unknown += 1
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
        raise errors.UserError(
          f'{path} has features of {unknown:,} nodes, none of which the graph '
          'has; give lines `node number ...` with the names that edges have'
        )
      counted['features_of_unknown_nodes'] = unknown
      counted['nodes_without_features'] = int((~has_row).sum())
    known['features'] = features
  # Of files that were read now: the digest is another.
  digest = '' if known else graph.digest
  return graph._replace(**known, counted=counted, digest=digest)


# What columns are called in headers: of nodes, and of their labels.
_NODES = {'node', 'id', 'name', 'node_id', 'nodeid', 'vertex', 'key'}
_LABELS = {'label', 'labels', 'class', 'group', 'category', 'community', 'y'}
_LISTED = re.compile(r'\d+([,;]\d+)+')  # several labels, in one cell


def _rows_of(path):
  """The array of an .npy file."""
  try:
    return np.load(pathlib.Path(path).expanduser(), mmap_mode='r')
  except (OSError, ValueError, EOFError) as error:
    raise errors.UserError(
      f'cannot read {path}: {errors.one_line(error)}; give an array by '
      'numpy.save'
    ) from error


def numbers(graph) -> Callable[[str], int | None]:
  """A function from the name of a node to its number."""
  if graph.names is None:

    def number(name):
      is_node = name.isdecimal() and int(name) < graph.num_nodes
      return int(name) if is_node else None

    return number
  return {x: i for i, x in enumerate(graph.names)}.get


def _lines(
  path: str, least: int, called: Collection[str] = ()
) -> Iterator[tuple[int, list[str]]]:
  """Numbers and cells of lines, but for a header and comments.

  Of those below a header that has what is `called` so, a node and this.
  """
  (place,) = formats.find(path, 'file with a line for each node')[:1]
  delimiter = _delimiter(place, _head(place, 1, 'a node'))
  number, chosen, is_first = 0, None, True
  for text, *_ in formats.blocks(place):
    for line in bytes(text).splitlines():
      number += 1
      line = line.decode('utf-8-sig', 'replace')
      if not line.strip() or _is_comment(line):
        continue
      cells = _cells(line, delimiter)
      lowered = [x.lower() for x in cells]
      places = [i for i, x in enumerate(lowered) if x in called]
      has_node = bool(_NODES & {*lowered})
      if is_first and (lowered[0] in _NODES or (has_node and places)):
        is_first = False
        if called and (len(cells) > 2 or places == [0]):
          if len(places) != 1:
            raise errors.UserError(
              f'{path} has the columns {", ".join(cells)[:80]}; call one of '
              'them `label`, or leave two: the node and its label'
            )
          nodes = [i for i, x in enumerate(lowered) if x in _NODES]
          chosen = *(nodes or [0])[:1], *places
        continue
      is_first = False
      if chosen:
        cells = [cells[i] for i in chosen if i < len(cells)]
        if cells[1:] == [''] and cells[0]:
          continue  # a node that has none
      cells = [x for x in cells if x]
      if len(cells) < least:
        raise errors.UserError(
          f'{path} line {number} has {len(cells)} field(s); give a node and '
          'what is known of it'
        )
      yield number, cells


def _labels(labels: Sequence[Iterable[str]]) -> dict[str, Any]:
  """Fields of a graph, of the labels of each node."""
  labels = [list(dict.fromkeys(x)) for x in labels]
  names = {x for found in labels for x in found}
  is_number = all(re.fullmatch(r'\d{1,18}', x) for x in names)
  ordered = sorted(names, key=int if is_number else str)
  numbers = {x: i for i, x in enumerate(ordered)}
  sizes = [len(x) for x in labels]
  found: Any
  if max(sizes, default=0) > 1:
    flat = [numbers[y] for x in labels for y in x]
    offsets = np.cumsum([0, *sizes], dtype=np.int64)
    found = offsets, np.array(flat, np.int64)
  else:
    found = np.array([numbers[x[0]] if x else -1 for x in labels], np.int64)
  return {'labels': found, 'label_names': ordered}


# Matrices.


def _of_matrices(path: pathlib.Path, directed: bool) -> graph_lib.Graph:
  """The graph of an .npz or .mat file."""
  import zipfile
  import zlib

  from scipy import sparse
  from scipy.io import matlab

  if not path.is_file():
    raise errors.UserError(f'there is no file {path}; give a graph')
  try:
    read_file = _mat if path.suffix == '.mat' else _npz
    adjacency, labels, known = read_file(path)
  except (
    *(OSError, EOFError, ValueError, TypeError, KeyError, AttributeError),
    *(NotImplementedError, matlab.MatReadError, zipfile.BadZipFile),
    zlib.error,
  ) as error:
    why = errors.one_line(error)
    if 'v7.3' in why:  # HDF5
      why = 'it is of Matlab 7.3'
    raise errors.UserError(
      f'cannot read {path}: {why}; give a file by scipy.sparse.save_npz, or '
      'by save -v7 of Matlab'
    ) from error
  if adjacency is None or adjacency.shape[0] != adjacency.shape[1]:
    raise errors.UserError(
      f'{path} has no square matrix of a graph (adj_data, or network); give '
      'another file'
    )
  if adjacency.dtype.kind not in 'biuf':
    raise errors.UserError(
      f'{path} has weights of {adjacency.dtype}; give real numbers above 0'
    )
  num_nodes = adjacency.shape[0]
  adjacency.sum_duplicates()
  adjacency.eliminate_zeros()
  if not directed and not (adjacency != adjacency.T).nnz:
    adjacency = sparse.triu(adjacency, 0)
  edges = adjacency.tocoo()
  for kind in ('features', 'names'):
    if kind in known and len(known[kind]) != num_nodes:
      raise errors.UserError(
        f'{path} has {kind} of {len(known[kind]):,} nodes, and a graph of '
        f'{num_nodes:,}; give as many'
      )
  for name, nodes in known.get('splits', {}).items():
    if len(nodes) and not 0 <= nodes.min() <= nodes.max() < num_nodes:
      raise errors.UserError(
        f'{path} has nodes for {name} that are not among its {num_nodes:,}; '
        'give masks, or numbers from 0 on'
      )
  if labels is not None:
    known |= _classes(labels, path, num_nodes, known.get('label_names'))
  weights = edges.data
  if edges.nnz and 0 < weights.min() == weights.max():
    weights = None  # edges both ways are one
  args = edges.row, edges.col, num_nodes, weights, None, directed
  return graph_lib.from_edges(*args, **known)


def _mat(path):
  """Of a .mat file the matrix, labels or None, and other fields of a graph."""
  from scipy import io, sparse

  found = {k.lower(): x for k, x in io.loadmat(path).items() if k[0] != '_'}
  square = [
    (k == 'network', x.shape[0], k)
    for k, x in found.items()
    if (sparse.issparse(x) or x.dtype.kind in 'biufc')
    and x.ndim == 2
    and x.shape[0] == x.shape[1]
  ]
  matrix = sparse.csr_matrix(found[max(square)[2]]) if square else None
  known: dict[str, Any] = {}
  for name in ('attributes', 'attrb', 'features'):
    if name in found:
      features = sparse.csr_matrix(found[name]).toarray()
      known['features'] = features.astype(np.float32)
  return matrix, found.get('group', found.get('label')), known


def _npz(path):
  """As `_mat`, of an .npz file."""
  from scipy import sparse

  found = {}
  with np.load(path, allow_pickle=False) as file:
    for name in file.files:
      # Shchur et al. 2018 have both kinds of names.
      key = re.sub(r'^(adj|attr)_matrix\.', r'\1_', name)
      try:
        found[key] = file[name]
      except ValueError as error:  # objects, which could run any code
        if 'allow_pickle' not in str(error):
          raise
  known: dict[str, Any] = {}

  def matrix(name):
    parts = (found[f'{name}_{x}'] for x in ('data', 'indices', 'indptr'))
    made = sparse.csr_matrix(tuple(parts), shape=found[f'{name}_shape'])
    made.check_format()
    return made

  if 'format' in found:
    return sparse.load_npz(path).tocsr(), None, known
  if {'edges', 'node_labels'} <= found.keys():  # Platonov et al. 2023
    labels, edges = found['node_labels'], found['edges']
    known |= _splits(found, len(labels))
    if 'node_features' in found:
      known['features'] = found['node_features'].astype(np.float32)
    shape = len(labels), len(labels)
    ends = np.ones(len(edges), np.float32), tuple(edges.T)
    return sparse.coo_matrix(ends, shape).tocsr(), labels, known
  if 'adj_data' not in found:
    return None, None, known
  labels = found.get('labels')
  if 'labels_data' in found:
    labels = matrix('labels')
  if 'attr_data' in found:
    known['features'] = matrix('attr').toarray().astype(np.float32)
  elif 'attr_matrix' in found:
    known['features'] = found['attr_matrix'].astype(np.float32)
    if known['features'].ndim != 2:
      raise ValueError(
        f'attr_matrix has the shape {found["attr_matrix"].shape}'
      )
  if 'node_names' in found:
    names = _distinct(map(str, found['node_names']))
    known['names'] = graph_lib.Names.of(names)
  if 'class_names' in found and labels is not None:
    known['label_names'] = [str(x) for x in found['class_names']]
  adjacency = matrix('adj')
  known |= _splits(found, adjacency.shape[0])
  return adjacency, labels, known


def _splits(found, num_nodes):
  """The `splits` that arrays have as masks or numbers, of many the first.

  Several masks are rows or, as those of PyTorch Geometric, columns. Raises a
  `ValueError` for masks of another number of nodes.
  """
  splits = {}
  for name, keys_ in (
    ('train', ('train_mask', 'train_masks', 'idx_train')),
    ('valid', ('val_mask', 'val_masks', 'idx_val')),
    ('test', ('test_mask', 'test_masks', 'idx_test')),
  ):
    for key in keys_:
      if key in found:
        given = np.atleast_1d(np.squeeze(found[key]))
        is_mask = given.dtype == bool or 'mask' in key
        if given.ndim == 2:
          is_turned = is_mask and num_nodes == len(given) != given.shape[1]
          given = given[:, 0] if is_turned else given[0]
        if is_mask and given.shape != (num_nodes,):
          raise ValueError(
            f'{key} is of {len(given):,} nodes, and there are {num_nodes:,}'
          )
        splits[name] = np.flatnonzero(given) if is_mask else given
  if not splits:
    return {}
  return {'splits': {k: x.astype(np.int64) for k, x in splits.items()}}


def _classes(given, path, num_nodes, names=None) -> dict[str, Any]:
  """Fields of a graph, of an array with a label, or a row, for each node.

  A row has a number above 0 for each label of the node. Labels below 0 and NaN
  are unknown. With `names` labels are places in them, if there are as many.
  """
  from scipy import sparse

  is_matrix = given.ndim == 2 and min(given.shape) > 1
  if not is_matrix:
    given = given.toarray() if sparse.issparse(given) else given
    given = np.asarray(given).reshape(-1)
  if given.shape[0] != num_nodes:
    raise errors.UserError(
      f'{path} has labels of {given.shape[0]:,} nodes, and a graph of '
      f'{num_nodes:,}; give as many'
    )
  if is_matrix and given.dtype.kind not in 'biuf':
    raise errors.UserError(
      f'{path} has a matrix of labels that are no numbers; give numbers'
    )
  if is_matrix:
    rows, columns = (sparse.csr_matrix(given) > 0).nonzero()
    labels: list[list[int]] = [[] for _ in range(num_nodes)]
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
      labels[row].append(column)
  else:
    if given.dtype.kind == 'f':
      given = np.where(np.isfinite(given), given, -1)
      if (given == np.round(given)).all():
        given = given.astype(np.int64)
    is_text = given.dtype.kind in 'USO'
    labels = [[x] if is_text or x >= 0 else [] for x in given.tolist()]
  found = _labels([[*map(str, x)] for x in labels])
  places = found['label_names']
  if names and all(x.isdecimal() and int(x) < len(names) for x in places):
    found['label_names'] = [names[int(x)] for x in places]
  return found


# Open Graph Benchmark, as it unpacks a data set of nodes.


def _ogb(paths, settings, folder, progress):
  """The graph of a folder with raw/edge.csv.gz and others beside it."""
  import pyarrow.csv

  by_name = {x.name.split('.')[0]: x for x in paths if x.parent.name == 'raw'}
  for name in ('edge', 'num-node-list'):
    if name not in by_name:
      raise errors.UserError(
        f'there is no raw/{name}.csv.gz in {settings["path"]}; give a folder '
        'of OGB with one kind of nodes'
      )

  def table(path, kind, num=None):
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
    try:
      found = pyarrow.csv.read_csv(path, read_options=options)
      found = np.stack([x.to_numpy() for x in found.columns], 1).astype(kind)
    except (OSError, EOFError, ValueError) as error:
      raise errors.UserError(
        f'cannot read {path}: {errors.one_line(error)}; download it again'
      ) from error
    if num not in (None, len(found)):
      raise errors.UserError(
        f'{path} has {len(found):,} lines, and the graph {num:,} nodes; '
        'download it again'
      )
    return found

  num = int(table(by_name['num-node-list'], np.int64).sum())
  columns = {'columns': 'source,target', 'num_nodes': num}
  found = _listed([by_name['edge']], settings | columns, folder, progress)
  known: dict[str, Any] = {}
  if 'node-feat' in by_name:
    progress('reading features', 0, 1)
    known['features'] = table(by_name['node-feat'], np.float32, num)
  if 'node-label' in by_name:
    labels = table(by_name['node-label'], np.float64, num)
    labels = np.nan_to_num(labels, nan=-1).astype(np.int64)
    known['labels'] = labels[:, 0]
    if labels.shape[1] > 1:  # one column for each
      rows, classes = np.nonzero(labels > 0)
      offsets = np.searchsorted(rows, np.arange(num + 1))
      known['labels'] = offsets.astype(np.int64), classes.astype(np.int64)
  splits = {x.parent: 0 for x in paths if x.parent.parent.name == 'split'}
  if splits:
    by_name = {x.name.split('.')[0]: x for x in min(splits).iterdir()}
    known['splits'] = {
      k: table(by_name[k], np.int64)[:, 0] for k in _SPLITS if k in by_name
    }
  return found._replace(**known)
