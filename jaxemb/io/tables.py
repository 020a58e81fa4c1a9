"""Files of rows as tables, some rows at a time.

Text files give columns of strings, of which '' is a missing value; libsvm and
libffm, whose lines have as many features as they please, columns of strings,
lists of them, or numbers.
"""

import codecs
import contextlib
import csv
import functools
import glob
import itertools
import pathlib
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.io import keys, libsvm, text_files
from jaxemb.runtime import resources
from jaxemb.storage import packed

FORMS = 'csv', 'tsv', 'parquet', 'libsvm', 'libffm'

_BLOCK_BYTES = 1 << 22
_HEAD_BYTES = 1 << 20
_PARQUET_ROWS = 1 << 16
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
# How it begins; names of nodes may begin with brackets, too.
_JSON = re.compile(r'\s*(\{\s*("|$)|\[\s*(["{]|\[\s*["\d-]|$))')


class Layout(NamedTuple):
  """How lines are cut into columns; rows of Parquet have their names alone."""

  columns: Sequence[str]
  delimiter: str = ','  # ' ' = runs of white space; '' = of Parquet
  quote: str = '"'  # '' = none
  skips_first: bool = False  # a header
  skip_lines: int = 0  # at the beginning, whatever they have
  comment: str = ''  # what lines begin with that are none; '' = all are
  is_ragged: bool = False  # a line is a key, and as many values as it pleases


class KnownForm(NamedTuple):
  """A form of text whose columns are known, with a header or without."""

  columns: Sequence[str]
  delimiter: str
  quote: str  # '' = none
  matches: Callable[[str], bool]  # whether a first line is of this form
  tidy: Callable[[Any], Any] | None = None  # what is done to a `pyarrow.Table`


class Reader:
  """Reads files of one form; counts rows that cannot be read."""

  def __init__(
    self,
    path: str,
    form: str = '',
    needed: Sequence[str] | None = None,
    max_bad: float = 0.01,
    features: Sequence[Any] = (),
    known_forms: Mapping[str, KnownForm] = types.MappingProxyType({}),
    layouts: Mapping[pathlib.Path, Layout] | None = None,
    remedy: str = '',
  ):
    """Finds the files of a path, folder, glob, or several with commas.

    Where `needed` columns are given a file without a header may lack the first
    one, the label. `max_bad` is the fraction of rows that may be skipped;
    `features` those of another reader, of files with the same columns;
    `known_forms` are read besides `FORMS`. With `layouts` the files are those
    that have one. `remedy` ends messages. Raises a `UserError` if there are no
    files.
    """
    self.path, self._needed = path, needed
    self.files = list(layouts) if layouts else find(path)
    self._max_bad, self._known_forms = max_bad, known_forms
    self._layouts = layouts or {}
    self.form = form or guess(self.files[0], known_forms)
    forms = ', '.join([*known_forms, *FORMS])
    self._remedy = remedy or f'give --config.data.format, one of {forms}'
    self.num_rows = self.num_bad = self.num_invalid_bytes = 0
    self.num_comments = 0
    self.first_bad = ''
    self._file, self._line = self.files[0], 1  # where the last table begins
    self.read_bytes = 0
    self.size_bytes = sum(x.stat().st_size for x in self.files)
    # Of libsvm and libffm, what columns there are; JSON-ready.
    self.features = features

  def tables(
    self,
    progress: Callable[[int, int], None],
    then: Callable[[Any], Any] = lambda table: table.arrow(),
  ) -> Iterator[Any]:
    """Yields `then(table)` of each `Table`, in order, computed in threads.

    `progress` gets bytes read, and of all.
    """
    threads = resources.reading_threads()

    def parsed(parse, read_bytes):
      block = parse()
      num = block.table.num_rows
      return then(block.table) if num else None, num, block, read_bytes

    try:
      for file in self.files:
        self._file, self._line, before = file, 1, self.read_bytes
        with futures.ThreadPoolExecutor(threads) as pool:
          results = text_files.map_ahead(
            pool,
            function=parsed,
            items=self._jobs(file),
            depth=threads + 1,
          )
          for result, num, block, read_bytes in results:
            self.num_rows += num + len(block.bad)
            self.num_comments += block.num_comments
            for line, why in block.bad:
              self.count_bad(line, why)
            self.read_bytes = before + read_bytes
            progress(self.read_bytes, self.size_bytes)
            if num:
              yield result
            self._line += block.num_lines
        self.read_bytes = before + file.stat().st_size
    except (ValueError, NotImplementedError) as error:  # or a column of lists
      raise errors.UserError(
        f'cannot read {self._file} as {self.form}: {errors.one_line(error)}; '
        f'{self._remedy}'
      ) from error
    num_all = self.num_rows + self.num_bad
    if self.num_bad > self._max_bad * num_all:
      raise errors.UserError(
        f'{self.num_bad:,} of {num_all:,} rows of {self.path} cannot be read, '
        f'the first is {self.first_bad}; mend the file, or {self._remedy}'
      )

  def count_bad(self, line: int, why: str, num: int = 1) -> None:
    """Counts rows of the last table, from a line on, that are of no use."""
    self.num_bad += num
    self.num_rows -= num
    self.first_bad = (
      self.first_bad or f'{self._file} line {self._line + line}: {why}'
    )

  def _jobs(self, file):
    """Yields functions that parse a block of a file, and where it ends."""
    layout = self._layouts.get(file)
    if self.form == 'parquet' or (layout and not layout.delimiter):
      yield from _parquet(file, layout)
    elif self.form in ('libsvm', 'libffm'):
      has_fields = self.form == 'libffm'
      for data, read_bytes in self._blocks(file):
        if not self.features:
          self.features = [*libsvm.features_of(data, has_fields)]
        features = libsvm.Features(*self.features)
        yield functools.partial(_sparse, features, data), read_bytes
    else:
      known = self._known_forms.get(self.form)
      for data, read_bytes in self._blocks(file):  # none if it is empty
        layout = layout or self._csv_layout(file)
        yield (
          functools.partial(_parse, data, layout, known and known.tidy),
          read_bytes,
        )
        layout = layout._replace(skips_first=False, skip_lines=0)

  def _blocks(self, file):
    for data, read_bytes, num_invalid in blocks(file):
      self.num_invalid_bytes += num_invalid
      yield data, read_bytes

  def _csv_layout(self, file):
    known, first = self._known_forms.get(self.form), first_line(file)
    names = known and known.columns
    delimiter = '\t' if self.form == 'tsv' else ','
    delimiter = known.delimiter if known else delimiter
    if names and self._needed and not first.startswith(names[0]):
      if first.count(delimiter) == len(names) - 2:
        names = [x for x in names if x != self._needed[0]]
    return Layout(
      columns=names or _header(file, first, delimiter),
      delimiter=delimiter,
      quote=known.quote if known else '"',
      skips_first=names is None or first.startswith(names[0]),
    )


def find(path: str, what: str = 'file of rows') -> list[pathlib.Path]:
  """Returns the files of a path, folder, glob, or several, with commas.

  Raises a `UserError`, which asks for `what`, where there are none.
  """
  all_files = []
  for name in filter(None, map(str.strip, path.split(','))):
    expanded = pathlib.Path(name).expanduser()
    if expanded.is_dir():
      files = [
        x for x in expanded.iterdir() if not x.name.startswith(('.', '_'))
      ]
    elif expanded.exists():
      files = [expanded]
    else:
      files = map(pathlib.Path, glob.glob(str(expanded), recursive=True))
    files = sorted(x for x in files if x.is_file())
    if not files:
      is_other = expanded.exists() and not expanded.is_dir()
      problem = f'{name} is not a regular file' if is_other else ''
      problem = problem or f'there is no file {name}'
      raise errors.UserError(f'{problem}; give a {what}')
    all_files += files
  return all_files


def guess(
  file: pathlib.Path,
  known_forms: Mapping[str, KnownForm] = types.MappingProxyType({}),
) -> str:
  """Returns the form of a file by its name, or by its first line."""
  names = [x.lower() for x in file.suffixes]
  names = [x for x in names if x not in packed.SUFFIXES]
  form = _SUFFIXES.get(names[-1] if names else '', '')
  if form == 'parquet':
    return form
  first = first_line(file).strip()
  for name, known in known_forms.items():
    if known.matches(first):
      return name
  if form:
    return form
  if re.fullmatch(r'\S+( +\d+:[^: ]+)+', first):
    return 'libsvm'
  if re.fullmatch(r'\S+( +\d+:\d+:[^: ]+)+', first):
    return 'libffm'
  return 'tsv' if '\t' in first else 'csv'


def first_line(file: pathlib.Path) -> str:
  """Reads the first line of a file, plain or compressed.

  Raises a `UserError` for what is no text in UTF-8.
  """
  with _reading(file), packed.File(file) as stream:
    head = stream.read(_HEAD_BYTES)
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
  encoding = 'UTF-16' if is_utf16 else text_files.guess_encoding(head)
  if encoding != text_files.UTF_8 and 2 * num_bad > num_high:
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


@contextlib.contextmanager
def _reading(file):
  try:
    yield
  except OSError as error:
    raise errors.UserError(
      f'cannot read {file}: {errors.one_line(error)}; copy or download it '
      'again, or rename it if its suffix is not that of what it holds'
    ) from error


def _header(file, line, delimiter):
  names = []
  with contextlib.suppress(csv.Error):  # such as a stray carriage return
    names = next(csv.reader([line], delimiter=delimiter), [])
  names = [x.strip() for x in names]
  if not names or len({*names}) < len(names) or not all(names):
    raise errors.UserError(
      f'the first line of {file} names a column twice, or not at all: '
      f'{line[:80]!r}; it must be a header'
    )
  return names


class Table(NamedTuple):
  """Rows, by column."""

  columns: Mapping[str, Any]  # `keys.Text`, or an array of Arrow

  @classmethod
  def of(cls, table: Any) -> 'Table':
    """Makes one of a `pyarrow.Table`; returns a `Table` as it is."""
    if isinstance(table, cls):
      return table
    return cls(dict(zip(table.column_names, table.columns, strict=True)))

  @property
  def num_rows(self) -> int:
    """The number of rows."""
    column = next(iter(self.columns.values()), ())
    return len(column.starts if isinstance(column, keys.Text) else column)

  def text(self, name: str) -> keys.Text:
    """Returns a column as strings, '' for missing values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = self.columns[name]
    if not isinstance(column, keys.Text):
      column = pc.cast(column.combine_chunks(), pa.large_string())
      column = keys.Text.of(pc.fill_null(column, ''))
    return column

  def arrow(self, names: Iterable[str] | None = None) -> Any:
    """Returns a `pyarrow.Table` of all columns or of some."""
    import pyarrow as pa

    names = self.columns if names is None else names
    columns = {k: self.columns[k] for k in names}
    return pa.table({
      k: x.strings() if isinstance(x, keys.Text) else x
      for k, x in columns.items()
    })  # fmt: skip


class _Block(NamedTuple):
  """What a stretch of a file has."""

  table: Table
  bad: Sequence[tuple[int, str]] = ()  # lines, and what is wrong
  num_lines: int = 0
  num_comments: int = 0


def _sparse(features, text):
  columns, bad, num_lines = features.parse(text)
  return _Block(Table(columns), bad, num_lines)


def _parse(text, layout, tidy):
  """Returns the `_Block` of some lines."""
  data = np.frombuffer(text, np.uint8)
  names = layout.columns[:1] if layout.is_ragged else layout.columns
  most = len(data) // 2 + 1 if layout.is_ragged else text.count(b'\n')
  spans = np.empty((2, len(names), most), np.int32)
  lines = np.empty(most, np.int32)
  bad = np.empty((2, most), np.int32)
  spaced, ragged = layout.delimiter == ' ' or None, layout.is_ragged or None
  quote = 0 if spaced else ord(layout.quote or '\0')
  num, num_lines, num_comments, num_bad = _split(
    data, ord(layout.delimiter), quote,
    layout.skips_first, layout.skip_lines, ord(layout.comment or '\0'),
    spaced, ragged,
    *spans, lines, *bad,
  )  # fmt: skip
  columns = [
    keys.Text(data, starts[:num], stops[:num])
    for starts, stops in zip(*spans, strict=True)
  ]
  if layout.is_ragged:
    columns = _pairs(*columns, lines[:num])
  table = Table(dict(zip(layout.columns, columns, strict=True)))
  whys = [
    (int(line), 'a quote is not closed')
    if cells < 0
    else (int(line), f'{cells} of {len(names)} fields')
    for line, cells in bad[:, :num_bad].T
  ]
  table = Table.of(tidy(table.arrow())) if tidy else table
  return _Block(table, whys, num_lines, num_comments=num_comments)


def _pairs(cells, lines):
  """Returns the first cell of a line for each of its others, and these.

  A key without values is its own.
  """
  is_key = np.diff(lines, prepend=-1) > 0
  is_alone = is_key & np.append(is_key[1:], True)
  keys_ = np.maximum.accumulate(np.where(is_key, np.arange(len(lines)), 0))
  values = np.flatnonzero(~is_key | is_alone)
  return cells.select(keys_[values]), cells.select(values)


def is_number(text: str) -> bool:
  """Whether `float` reads it."""
  try:
    float(text)
  except ValueError:
    return False
  return True


def delimiter(file: pathlib.Path, first: Sequence[str]) -> str:
  """Returns a tab, a comma or another sign, or ' ' for runs of white space."""
  suffixes = [x.lower() for x in file.suffixes]
  suffixes = [x for x in suffixes if x in ('.csv', '.tsv')]
  candidates = '\t,;|'
  if suffixes:
    candidates = {'.csv': ',;|', '.tsv': '\t'}[suffixes[-1]]
  signs = [x for x in candidates if x in first[0]]
  if not signs:
    return ' '
  sign = signs[0]
  if sign == ',' and ';' in signs:  # 0,5 is a number where others have ';'
    counts = {x.count(';') for x in first}
    if len(counts) == 1 and counts.pop() > first[0].count(','):
      sign = ';'
  # KONECT has both spaces and tabs between numbers.
  words = [y.split() for x in first for y in x.split(sign)]
  is_mixed = sign == '\t' and any(len(x) > 1 for x in words)
  if is_mixed and all(is_number(y) for x in words for y in x):
    return ' '
  return sign


def parquet_head(file: pathlib.Path) -> list[Sequence[str]]:
  """Reads the names of columns, and the first rows as strings."""
  from pyarrow import parquet

  try:
    with _reading(file), parquet.ParquetFile(file) as reader:
      head = [reader.schema_arrow.names]
      for batch in itertools.islice(reader.iter_batches(20), 1):
        columns = [map(str, x.to_pylist()) for x in batch.columns]
        head += zip(*columns, strict=True)
  except ValueError as error:
    raise errors.UserError(
      f'cannot read {file} as parquet: {errors.one_line(error)}; copy or '
      'download it again'
    ) from error
  return head


def blocks(file: pathlib.Path) -> Iterator[tuple[bytearray, int, int]]:
  """Yields blocks of lines of a file, where they end, and invalid bytes.

  Raises a `UserError` at the end if more than 1 % of all bytes are not UTF-8.
  """
  rest, is_last = b'', False
  letters = text_files.Letters(file)
  with _reading(file), packed.File(file) as stream:
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
        yield text, stream.read_bytes, letters.count(text)
    if stream.num_ignored:
      num = f'{stream.num_ignored:,}'
      raise OSError(f'{num} bytes follow its packed data')
  letters.check()


def _parquet(file, layout):
  import pyarrow as pa
  from pyarrow import parquet

  size_bytes = file.stat().st_size
  with _reading(file), parquet.ParquetFile(file) as reader:
    done, total = 0, max(1, reader.metadata.num_rows)
    for batch in reader.iter_batches(_PARQUET_ROWS):
      done += len(batch)
      table = Table.of(pa.table(batch))
      if layout:
        columns = table.columns.values()
        table = Table(dict(zip(layout.columns, columns, strict=True)))
      yield functools.partial(_Block, table), size_bytes * done // total


@numba.njit(nogil=True, cache=True)
def _is_space(sign):
  return sign == 32 or sign == 9 or sign == 13


@numba.njit(nogil=True, cache=True, inline='always')
def _cell(data, i, delimiter, quote):
  """Finds a cell and unquotes it in place, or takes spaces around it away.

  Returns where it starts and stops, where its delimiter is, and whether a quote
  is open.
  """
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
    return start, stop, i, is_open
  while data[i] != delimiter and data[i] != 10:
    i += 1
  stop = i
  if stop > start and data[stop - 1] == 13 and data[i] == 10:
    stop -= 1
  while stop > start and data[stop - 1] == 32:
    stop -= 1
  return start, stop, i, False


@numba.njit(nogil=True, cache=True, inline='always')
def _word(data, i):
  """As `_cell`, where any white space is a delimiter, of several the last."""
  start = i
  while data[i] != 10 and not _is_space(data[i]):
    i += 1
  stop = i
  while _is_space(data[i]):
    i += 1
  return start, stop, i - (data[i] != 10), False


@numba.njit(nogil=True, cache=True)
def _split(
  data, delimiter, quote, skips_first, skip_lines, comment, spaced, ragged,
  starts, stops, lines, bad_lines, bad_cells,
):  # fmt: skip
  """Finds the cells of each line; the text ends with a line end.

  Writes `starts` and `stops`, [columns, rows], and `lines` [rows]; of lines
  with another number of cells it, or -1 if a quote is open. Of ragged lines
  each cell that is not empty is a row; in spaced ones any white space is the
  delimiter. Both are True or None: numba leaves out what is None, without which
  all is slower by a third. Returns rows, lines, comments, bad lines.
  """
  num_columns = len(starts)
  row = line = num_bad = num_comments = 0
  i = 3 if data[0] == 239 and data[1] == 187 and data[2] == 191 else 0  # a BOM
  while i < len(data):
    is_comment = comment != 0 and data[i] == comment
    if spaced is not None:
      while _is_space(data[i]):
        i += 1
    is_empty = data[i] == 10 or (data[i] == 13 and data[i + 1] == 10)
    if is_comment or is_empty or skips_first or line < skip_lines:
      num_comments += is_comment
      if not (is_comment or is_empty or line < skip_lines):
        skips_first = False
      while data[i] != 10:
        i += 1
      i += 1
      line += 1
      continue
    column, first, is_open = 0, row, False
    while True:
      if spaced is not None:
        start, stop, i, is_open = _word(data, i)
      else:
        start, stop, i, is_open = _cell(data, i, delimiter, quote)
      if ragged is not None:
        if stop > start:
          starts[0, row], stops[0, row], lines[row] = start, stop, line
          row += 1
      else:
        if column < num_columns:
          starts[column, row], stops[column, row] = start, stop
      column += 1
      i += 1
      if data[i - 1] == 10:
        break
    is_bad = is_open
    if ragged is None:
      is_bad |= column != num_columns
      row += 1
    if is_bad:
      bad_lines[num_bad] = line
      bad_cells[num_bad] = -1 if is_open else column
      num_bad += 1
      row = first
    line += 1
  return row, line, num_comments, num_bad
