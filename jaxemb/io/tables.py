"""Files of clicks as tables, some rows at a time.

Text files give columns of strings, of which '' is a missing value; libsvm and
libffm, whose lines have as many features as they please, columns of strings,
lists of them, or numbers.
"""

import codecs
import contextlib
import functools
import glob
import lzma
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.clicks import schema
from jaxemb.io import keys
from jaxemb.io import text_files as sources
from jaxemb.runtime import resources

FORMS = 'criteo', 'avazu', 'adult', 'csv', 'tsv', 'parquet', 'libsvm', 'libffm'

_PACKED = '.gz', '.bz2', '.xz', '.zst'
_BLOCK_BYTES = 1 << 22
_HEAD_BYTES = 1 << 20
_SUFFIXES = {
  '.csv': 'csv',
  '.tsv': 'tsv',
  '.parquet': 'parquet',
  '.pq': 'parquet',
  '.libsvm': 'libsvm',
  '.svm': 'libsvm',
  '.libfm': 'libsvm',
  '.libffm': 'libffm',
  '.ffm': 'libffm',
}
_BOM = b'\xef\xbb\xbf'
_MAX_NUMBERS = 1000  # columns of libsvm that are not categories
# How it begins; names of nodes may begin with brackets, too.
_JSON = re.compile(r'\s*(\{\s*("|$)|\[\s*(["{]|\[\s*["\d-]|$))')


class Reader:
  """Reads files of one form; counts rows that cannot be read."""

  def __init__(
    self,
    path: str,
    form: str = '',
    needed: Sequence[str] | None = None,
    max_bad: float = 0.01,
    features: Sequence[Any] = (),
  ):
    """Finds the files of a path, folder, glob, or several with commas.

    Where `needed` columns are given a file without a header may lack the first
    one, the label. `max_bad` is the share of rows that may be skipped;
    `features` those of another reader, of files with the same columns. Raises a
    `UserError` if there are no files.
    """
    self.path, self.files, self._needed = path, find(path), needed
    self._max_bad = max_bad
    self.form = form or guess(self.files[0])
    self.num_rows = self.num_bad = self.num_invalid_bytes = 0
    self.first_bad = ''
    self.read_bytes = 0
    self.size_bytes = sum(x.stat().st_size for x in self.files)
    # Of libsvm and libffm, what columns there are; JSON-ready.
    self.features = features

  def tables(
    self,
    progress: Callable[[int, int], None],
    then: Callable[[Any], Any] = lambda table: table.arrow(),
  ) -> Iterator[Any]:
    """What `then` makes of each `Table`, in order, computed in threads.

    `progress` gets bytes read, and of all.
    """
    threads = resources.reading_threads()
    try:
      for file in self.files:
        before, lines = self.read_bytes, 1
        with futures.ThreadPoolExecutor(threads) as pool:
          made = sources.map_ahead(
            pool,
            function=lambda parse, read_bytes: (
              *_made(parse, then),
              read_bytes,
            ),
            items=self._jobs(file),
            depth=threads + 1,
          )
          for found, num, bad, num_lines, read_bytes in made:
            for number, why in bad:
              self.bad(file, number and lines + number, why)
            lines += num_lines
            self.num_rows += num
            self.read_bytes = before + read_bytes
            progress(self.read_bytes, self.size_bytes)
            if num:
              yield found
        self.read_bytes = before + file.stat().st_size
    except (OSError, EOFError, lzma.LZMAError) as error:
      raise _unreadable(file, error) from error
    except ValueError as error:
      raise errors.UserError(
        f'cannot read {file} as {self.form}: {errors.one_line(error)}; give '
        f'--config.data.format, one of {", ".join(FORMS)}'
      ) from error
    if self.num_bad > self._max_bad * (self.num_rows + self.num_bad):
      raise errors.UserError(
        f'{self.num_bad:,} of {self.num_rows + self.num_bad:,} rows of '
        f'{self.path} cannot be read, the first is {self.first_bad}; mend the '
        'file, or give --config.data.format'
      )

  def bad(self, file: pathlib.Path, number: int | None, why: str) -> None:
    """Counts a row."""
    self.num_bad += 1
    where = f' line {number}' if number else ''
    self.first_bad = self.first_bad or f'{file}{where}: {why}'

  def _jobs(self, file):
    """Functions that parse a stretch of a file, and where it ends."""
    if self.form == 'parquet':
      yield from _parquet(file)
    elif self.form in ('libsvm', 'libffm'):
      has_fields = self.form == 'libffm'
      for data, read_bytes in self._blocks(file):
        if not self.features:
          cells = _Cells.of(data, has_fields)
          self.features = [*_Features.found(cells, has_fields)]
        features = _Features(*self.features)
        yield functools.partial(features.parse, data), read_bytes
    else:
      yield from self._csv(file)

  def _blocks(self, file):
    for data, read_bytes, num_invalid in blocks(file):
      self.num_invalid_bytes += num_invalid
      yield data, read_bytes

  def _csv(self, file):
    names = schema.HEADERS.get(self.form)
    delimiter = '\t' if self.form in ('criteo', 'tsv') else ','
    first = first_line(file)
    if names and self._needed and not first.startswith(names[0]):
      if first.count(delimiter) == len(names) - 2:
        names = [x for x in names if x != self._needed[0]]
    has_header = names is None or first.startswith(names[0])
    names = names or _header(file, first, delimiter)
    for number, (data, read_bytes) in enumerate(self._blocks(file)):
      yield (
        functools.partial(
          self._parse, data, names, delimiter, not number and has_header
        ),
        read_bytes,
      )

  def _parse(self, text, names, delimiter, has_header):
    """The table of a block of lines, lines that are no rows, all its lines."""
    data = np.frombuffer(text, np.uint8)
    most = text.count(b'\n')
    spans = np.empty((2, len(names), most), np.int32)
    bad = np.empty((2, most), np.int32)
    quote = 0 if self.form == 'criteo' else ord('"')
    first = text.find(b'\n') + 1 if has_header else 0
    first += 3 * (not first and text.startswith(_BOM))
    num, num_lines, num_bad = split(
      data, first, ord(delimiter), quote, *spans, *bad
    )
    table = Table({
      name: keys.Text(data, starts[:num], stops[:num])
      for name, starts, stops in zip(names, *spans, strict=True)
    })  # fmt: skip
    whys = [
      (int(line) + has_header, 'a quote is not closed')
      if cells < 0
      else (int(line) + has_header, f'{cells} of {len(names)} fields')
      for line, cells in bad[:, :num_bad].T
    ]
    if self.form in ('adult', 'avazu'):
      table = Table.of(self._tidied(table.arrow()))
    return table, whys, num_lines + has_header

  def _tidied(self, table):
    """What known formats have: spaces, full stops, hours."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if self.form == 'adult':
      columns = [pc.utf8_trim_whitespace(x) for x in table.columns]
      columns = [pc.if_else(pc.equal(x, '?'), '', x) for x in columns]
      columns[-1] = pc.utf8_rtrim(columns[-1], '.')
      return pa.table(columns, table.column_names)
    if self.form == 'avazu' and 'hour' in table.column_names:
      times = pc.strptime(table['hour'], '%y%m%d%H', 's')
      day = pc.day_of_week(times)
      new = pc.hour(times), day, pc.greater_equal(day, 5)
      table = table.drop_columns(
        [x for x in ('id', 'hour') if x in table.column_names]
      )
      for name, column in zip(schema.TIMES, new, strict=True):
        column = pc.cast(pc.cast(column, pa.int64()), pa.string())
        table = table.append_column(name, column)
    return table


def find(path: str, what: str = 'log of clicks') -> list[pathlib.Path]:
  """Files of a path, a folder, a glob, or several with commas between.

  Raises a `UserError`, which asks for `what`, where there are none.
  """
  found = []
  for one in filter(None, map(str.strip, path.split(','))):
    place = pathlib.Path(one).expanduser()
    if place.is_dir():
      some = [x for x in place.iterdir() if not x.name.startswith(('.', '_'))]
    elif place.exists():
      some = [place]
    else:
      some = map(pathlib.Path, glob.glob(str(place), recursive=True))
    some = sorted(x for x in some if x.is_file())
    if not some:
      is_other = place.exists() and not place.is_dir()
      which = f'{one} is not a regular file' if is_other else ''
      which = which or f'there is no file {one}'
      raise errors.UserError(f'{which}; give a {what}')
    found += some
  return found


def guess(file: pathlib.Path) -> str:
  """The form of a file by its name, or by its first line."""
  names = [x for x in file.suffixes if x not in _PACKED]
  form = _SUFFIXES.get(names[-1].lower() if names else '', '')
  if form == 'parquet':
    return form
  first = first_line(file).strip()
  if first.count('\t') == len(schema.HEADERS['criteo']) - 1:
    if not first.startswith('label'):
      return 'criteo'
  if first.startswith('id,click,hour,C1'):
    return 'avazu'
  if form:
    return form
  if first.count(', ') == len(schema.HEADERS['adult']) - 1:
    return 'adult'
  if re.fullmatch(r'\S+( +\d+:[^: ]+)+', first):
    return 'libsvm'
  if re.fullmatch(r'\S+( +\d+:\d+:[^: ]+)+', first):
    return 'libffm'
  return 'tsv' if '\t' in first else 'csv'


def _open(file):
  """A stream, and what knows how many bytes of the file were read."""
  import pyarrow as pa

  if file.suffix == '.xz':
    raw = file.open('rb')
    return pa.PythonFile(lzma.open(raw), 'r'), raw
  raw = pa.OSFile(str(file))
  packed = {'.gz': 'gzip', '.bz2': 'bz2', '.zst': 'zstd'}.get(file.suffix)
  return (pa.CompressedInputStream(raw, packed) if packed else raw), raw


def first_line(file: pathlib.Path) -> str:
  """The first line, plain or compressed. Raises a `UserError`."""
  try:
    stream, _ = _open(file)
    with stream:
      head = bytes(stream.read(_HEAD_BYTES))
  except (OSError, EOFError, lzma.LZMAError) as error:
    raise _unreadable(file, error) from error
  is_utf16 = head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
  if b'\0' in head and not is_utf16:
    raise errors.UserError(
      f'{file} is binary; give text, plain or compressed, or a Parquet file '
      'with the suffix .parquet'
    )
  # A letter may be cut at the end.
  text = codecs.getincrementaldecoder('utf-8-sig')('replace').decode(head)
  num_bad = text.count('\ufffd')
  num_high = len(text) - len(text.encode('ascii', 'ignore'))
  encoding = 'UTF-16' if is_utf16 else sources.guess_encoding(head)
  if encoding != sources.UTF_8 and 2 * num_bad > num_high:
    raise errors.UserError(
      f'{file} is no text in UTF-8; convert it first (iconv -f {encoding} -t '
      'UTF-8)'
    )
  first, *others = text.split('\n', 1)
  if _JSON.match(first):
    raise errors.UserError(
      f'{file} is JSON, and lines with a sign between columns are read; write '
      'such lines (pandas: to_csv), or Parquet'
    )
  if '\r' in first.rstrip('\r') and not others:
    raise errors.UserError(
      f'lines of {file} end in carriage returns alone; convert it first '
      "(tr '\\r' '\\n')"
    )
  return first.strip('\r')


def _unreadable(file, error):
  return errors.UserError(
    f'cannot read {file}: {errors.one_line(error)}; copy or download it again, '
    'or rename it if its suffix is not that of what it holds'
  )


def _header(file, line, delimiter):
  import csv

  names = []
  with contextlib.suppress(csv.Error):  # such as a stray carriage return
    names = next(csv.reader([line], delimiter=delimiter), [])
  names = [x.strip() for x in names]
  if len(set(names)) < len(names) or not all(names):
    raise errors.UserError(
      f'the first line of {file} names a column twice, or not at all: '
      f'{line[:80]!r}; it must be a header'
    )
  return names


class Table(NamedTuple):
  """Some rows."""

  columns: Mapping[str, Any]  # `keys.Text`, or an array of Arrow

  @classmethod
  def of(cls, table: Any) -> 'Table':
    """Those of a `pyarrow.Table`, or that itself."""
    if isinstance(table, cls):
      return table
    return cls(dict(zip(table.column_names, table.columns, strict=True)))

  @property
  def num_rows(self) -> int:
    """How many there are."""
    column = next(iter(self.columns.values()), ())
    return len(column.starts if isinstance(column, keys.Text) else column)

  def arrow(self, names: Iterable[str] | None = None) -> Any:
    """As a `pyarrow.Table`, of all columns or of some."""
    import pyarrow as pa

    names = self.columns if names is None else names
    found = {k: self.columns[k] for k in names}
    return pa.table({
      k: x.strings() if isinstance(x, keys.Text) else x
      for k, x in found.items()
    })  # fmt: skip


def _made(parse, then):
  table, bad, num_lines = parse()
  num = table.num_rows
  return then(table) if num else None, num, bad, num_lines


def blocks(file: pathlib.Path) -> Iterator[tuple[bytearray, int, int]]:
  """Lines of a file, some megabytes of them, and where they end in it.

  And how many bytes of them are not UTF-8; at the end raises a `UserError` if
  more than 1 % of all were.
  """
  stream, raw = _open(file)
  rest, is_last = b'', False
  letters = sources.Letters(file)
  with stream:
    while not is_last:
      text = bytearray(len(rest) + _BLOCK_BYTES)
      text[: len(rest)] = rest
      size = len(rest)
      with memoryview(text) as room:
        while size < len(text) and (num := stream.readinto(room[size:])):
          size += num
      if is_last := size < len(text):
        del text[size:]
        text += b'\n' * (not text.endswith(b'\n') and size > 0)
      stop = text.rfind(b'\n') + 1
      rest = text[stop:]
      del text[stop:]
      if text:
        yield text, raw.tell(), letters.count(text)
  letters.check()


def _parquet(file):
  import pyarrow as pa
  from pyarrow import parquet

  size_bytes = file.stat().st_size
  with parquet.ParquetFile(file) as reader:
    done, total = 0, max(1, reader.metadata.num_rows)
    for batch in reader.iter_batches(1 << 16):
      done += len(batch)
      found = Table.of(pa.table(batch)), (), 0
      yield functools.partial(tuple, found), size_bytes * done // total


@numba.njit(nogil=True, cache=True)
def split(data, i, delimiter, quote, starts, stops, bad_lines, bad_cells):
  """Where the cells of each line are, from `i` on; the text ends a line.

  Writes `starts` and `stops`, [columns, rows]; of lines with another number of
  cells it, or -1 if a quote is open. Quoted cells are unquoted in place; others
  lose spaces around them. Returns rows, lines, bad lines.
  """
  num_columns = len(starts)
  row = line = num_bad = 0
  while i < len(data):
    if data[i] == 10 or (data[i] == 13 and data[i + 1] == 10):
      i += 1 + (data[i] == 13)
      line += 1
      continue
    column = 0
    is_open = False
    while True:
      while data[i] == 32:
        i += 1
      start = i
      if quote and data[i] == quote:
        i += 1
        start = stop = i
        is_open = True
        while data[i] != 10:
          if data[i] == quote:
            i += 1
            if data[i] != quote:
              is_open = False
              break
          data[stop] = data[i]
          stop += 1
          i += 1
        while data[i] != delimiter and data[i] != 10:
          i += 1
      else:
        while data[i] != delimiter and data[i] != 10:
          i += 1
        stop = i
        if stop > start and data[stop - 1] == 13 and data[i] == 10:
          stop -= 1
        while stop > start and data[stop - 1] == 32:
          stop -= 1
      if column < num_columns:
        starts[column, row] = start
        stops[column, row] = stop
      column += 1
      i += 1
      if data[i - 1] == 10:
        break
    if is_open or column != num_columns:
      bad_lines[num_bad] = line
      bad_cells[num_bad] = -1 if is_open else column
      num_bad += 1
    else:
      row += 1
    line += 1
  return row, line, num_bad


# Libsvm and libffm: `label [field:]feature:value ...`, or without a label.


@numba.njit(nogil=True, cache=True)
def _cells(data, has_fields, labels, starts, fields, spans, lines):
  """Where labels [2, rows] and cells are; the text ends a line.

  `spans` is [4, cells]: feature from, to; value from, to. The field of a cell
  is its place where there are none; -1 = cannot be read. Returns rows, lines
  and cells.
  """
  i = row = line = num = 0
  while i < len(data):
    while data[i] == 32 or data[i] == 9 or data[i] == 13:
      i += 1
    if data[i] == 10 or data[i] == 35:
      while data[i] != 10:
        i += 1
      i += 1
      line += 1
      continue
    labels[0, row] = stop = i
    while data[stop] > 32 and data[stop] != 58:
      stop += 1
    if data[stop] != 58:  # or the line begins with a feature
      i = stop
    labels[1, row] = i
    starts[row] = num
    while True:
      while data[i] == 32 or data[i] == 9 or data[i] == 13:
        i += 1
      if data[i] == 35:  # a comment
        while data[i] != 10:
          i += 1
      if data[i] == 10:
        break
      field = num - starts[row] + 1
      if has_fields:
        field = 0 if 48 <= data[i] < 58 else -1
        while 48 <= data[i] < 58 and field < 100_000_000:
          field = 10 * field + np.int64(data[i]) - 48
          i += 1
        if data[i] == 58:
          i += 1
        else:
          field = -1
      spans[0, num] = i
      while 48 <= data[i] < 58:
        i += 1
      spans[1, num] = i
      if i == spans[0, num] or data[i] != 58:
        field = -1
      spans[2, num] = i + 1
      while data[i] > 32:
        i += 1
      spans[3, num] = i
      fields[num] = field
      num += 1
    lines[row] = line
    row += 1
    line += 1
    i += 1
  starts[row] = num
  return row, line, num


class _Cells(NamedTuple):
  """Lines of libsvm or libffm."""

  data: np.ndarray  # [bytes] uint8
  labels: np.ndarray  # [2, n] int64, from where to where
  starts: np.ndarray  # [n + 1] int64, the cells of each line
  fields: np.ndarray  # [cells] int64, or places in their line; -1 = unreadable
  spans: np.ndarray  # [4, cells] int64, of feature and value
  lines: np.ndarray  # [n] int64, which in the block
  num_lines: int

  @classmethod
  def of(cls, text: bytearray, has_fields: bool) -> '_Cells':
    """Those of a block of lines."""
    data = np.frombuffer(text, np.uint8)
    rows, most = text.count(b'\n'), text.count(b':') + len(text.split()) + 1
    labels, starts = np.empty((2, rows), np.int64), np.empty(rows + 1, np.int64)
    fields, spans = np.empty(most, np.int64), np.empty((4, most), np.int64)
    lines = np.empty(rows, np.int64)
    n, num_lines, num = _cells(
      data,
      has_fields,
      labels,
      starts=starts,
      fields=fields,
      spans=spans,
      lines=lines,
    )
    return cls(
      data,
      labels[:, :n],
      starts[: n + 1],
      fields[:num],
      spans[:, :num],
      lines[:n],
      num_lines,
    )

  def texts(self, starts: np.ndarray, stops: np.ndarray) -> keys.Text:
    """Stretches of the data."""
    return keys.Text(self.data, starts, stops)

  def rows(self) -> np.ndarray:
    """[cells] int64, the row of each."""
    return np.repeat(np.arange(len(self.lines)), np.diff(self.starts))

  def features(self) -> np.ndarray:
    """[cells] int64, -1 where there is none."""
    import pyarrow.compute as pc

    is_good = self.fields >= 0
    out = np.full(len(is_good), -1)
    texts = self.texts(*self.spans[:2, is_good]).strings()
    out[is_good] = pc.cast(texts, 'int64').to_numpy()
    return out

  def values(self) -> np.ndarray:
    """[cells] float64, NaN where there is no number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    starts, stops = self.spans[2:]
    found = np.ones(len(starts))
    # Nearly all are `1`.
    first = self.data[np.minimum(starts, len(self.data) - 1)]
    others = np.flatnonzero((stops != starts + 1) | (first != ord('1')))
    texts = self.texts(starts[others], stops[others]).strings()
    try:
      found[others] = pc.cast(texts, 'float64').to_numpy()
    except pa.ArrowInvalid:
      for i, text in zip(others, texts.to_pylist(), strict=True):
        try:
          found[i] = float(text)
        except ValueError:
          found[i] = math.nan
    return found


class _Features(NamedTuple):
  """Columns of lines of libsvm or libffm, as the first ones have them.

  In libffm a column for each field, or a list if lines have several of it. In
  libsvm a column for each place, if all lines have as many features, else one
  list of them. A column whose feature is always the same and whose value is not
  is one of numbers; if that is not so, each feature is one.
  """

  kind: str  # 'columns', 'list' (one of all features) or 'dense' (numbers)
  names: list[int]  # of columns: fields, places or features, sorted
  numbers: list[int]  # those whose value counts, not the feature
  lists: list[int]
  has_fields: bool

  @classmethod
  def found(cls, cells: '_Cells', has_fields: bool) -> '_Features':
    """By the first lines."""
    rows, is_good = cells.rows(), cells.fields >= 0
    lengths, places = np.diff(cells.starts), cells.fields
    features = cells.features()
    is_other, kind = is_good & (cells.values() != 1), 'columns'
    if not has_fields and len(lengths):
      usual = np.median(lengths)
      if np.mean(lengths != usual) > 0.01:
        kind = 'dense' if is_other.any() else 'list'
      else:
        is_good &= (lengths == usual)[rows]
        for place in np.unique(places[is_other & is_good]):
          if len(np.unique(features[(places == place) & is_good])) > 1:
            kind = 'dense'
    if kind == 'list':
      return cls(kind, [], [], [], has_fields)
    of = features if kind == 'dense' else places
    names = np.unique(of[is_good])
    if len(names) > _MAX_NUMBERS:
      what = (
        'features have values other than 1' if kind == 'dense' else 'fields'
      )
      raise ValueError(
        f'{len(names):,} {what}, and there can be {_MAX_NUMBERS:,}'
      )
    numbers = sorted({*of[is_other & is_good].tolist()})
    pairs = np.stack([rows, of], 1)[is_good]
    pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    lists = sorted({*pairs[counts > 1, 1].tolist()} - {*numbers})
    return cls(kind, names.tolist(), numbers, lists, has_fields)

  def parse(self, text: bytearray) -> tuple[Any, list[tuple[int, str]], int]:
    """The table of a block of lines, lines that are no rows, all its lines."""
    import pyarrow as pa

    cells = _Cells.of(text, self.has_fields)
    rows, values, n = cells.rows(), cells.values(), len(cells.lines)
    is_dense, is_list = self.kind == 'dense', self.kind == 'list'
    found = cells.features() if is_dense else cells.fields
    whys = np.full(n, '', object)
    if not is_list:
      names = np.array([*self.names, -2])
      place = np.searchsorted(names[:-1], found)
      is_known = names[place] == found
      whys[rows[~is_known]] = 'it has other features than the first lines'
      if not self.has_fields and not is_dense:
        whys[np.diff(cells.starts) < len(self.names)] = 'it has fewer features'
    if not is_dense:
      is_number = np.isin(found, self.numbers)
      whys[rows[(values != 1) & ~is_number]] = 'a category has a value not 1'
    whys[rows[(cells.fields < 0) | np.isnan(values)]] = 'it has no number'
    is_good = whys == ''
    new_rows = np.cumsum(is_good) - 1
    kept = int(is_good.sum())
    columns = {'label': cells.texts(*cells.labels[:, is_good])}
    if is_list:
      here = is_good[rows]
      offsets = np.append(0, np.cumsum(np.diff(cells.starts)[is_good]))
      columns['features'] = pa.ListArray.from_arrays(
        pa.array(offsets, 'int32'),
        cells.texts(*cells.spans[:2, here]).strings(),
      )
    for i, name in enumerate(self.names if not is_list else ()):
      here = np.flatnonzero((place == i) & is_good[rows])
      row, spans = new_rows[rows[here]], cells.spans[:2, here]
      if is_dense or name in self.numbers:
        column = np.full(kept, 0.0 if is_dense else math.nan)
        column[row] = values[here]
        columns[f'{"feature" if is_dense else "field"}{name}'] = pa.array(
          column, from_pandas=True
        )
      elif name in self.lists:
        offsets = np.searchsorted(row, np.arange(kept + 1))
        columns[f'field{name}'] = pa.ListArray.from_arrays(
          pa.array(offsets, 'int32'), cells.texts(*spans).strings()
        )
      else:
        both = np.zeros((2, kept), np.int64)
        both[:, row] = spans
        columns[f'field{name}'] = cells.texts(*both)
    bad = [(int(cells.lines[i]), whys[i]) for i in np.flatnonzero(whys != '')]
    return Table(columns), bad, cells.num_lines
