"""Files of rows as tables, some rows at a time.

Text files give columns of strings, of which '' is a missing value; libsvm and
libffm, whose lines have as many features as they please, columns of strings,
lists of them, or numbers.
"""

import codecs
import contextlib
import functools
import glob
import lzma
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

FORMS = 'csv', 'tsv', 'parquet', 'libsvm', 'libffm'

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
# How it begins; names of nodes may begin with brackets, too.
_JSON = re.compile(r'\s*(\{\s*("|$)|\[\s*(["{]|\[\s*["\d-]|$))')


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
  ):
    """Finds the files of a path, folder, glob, or several with commas.

    Where `needed` columns are given a file without a header may lack the first
    one, the label. `max_bad` is the fraction of rows that may be skipped;
    `features` those of another reader, of files with the same columns;
    `known_forms` are read besides `FORMS`. Raises a `UserError` if there are no
    files.
    """
    self.path, self.files, self._needed = path, find(path), needed
    self._max_bad = max_bad
    self._known_forms = known_forms
    self.form = form or guess(self.files[0], known_forms)
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
    """Yields `then(table)` of each `Table`, in order, computed in threads.

    `progress` gets bytes read, and of all.
    """
    threads = resources.reading_threads()

    def parsed(parse, read_bytes):
      table, bad, num_lines = parse()
      num = table.num_rows
      return then(table) if num else None, num, bad, num_lines, read_bytes

    try:
      for file in self.files:
        before, lines = self.read_bytes, 1
        with futures.ThreadPoolExecutor(threads) as pool:
          results = text_files.map_ahead(
            pool, function=parsed, items=self._jobs(file), depth=threads + 1
          )
          for result, num, bad, num_lines, read_bytes in results:
            for number, why in bad:
              self._count_bad(file, number and lines + number, why)
            lines += num_lines
            self.num_rows += num
            self.read_bytes = before + read_bytes
            progress(self.read_bytes, self.size_bytes)
            if num:
              yield result
        self.read_bytes = before + file.stat().st_size
    except (OSError, EOFError, lzma.LZMAError) as error:
      raise _unreadable(file, error) from error
    except ValueError as error:
      raise errors.UserError(
        f'cannot read {file} as {self.form}: {errors.one_line(error)}; give '
        f'--config.data.format, one of '
        f'{", ".join([*self._known_forms, *FORMS])}'
      ) from error
    if self.num_bad > self._max_bad * (self.num_rows + self.num_bad):
      raise errors.UserError(
        f'{self.num_bad:,} of {self.num_rows + self.num_bad:,} rows of '
        f'{self.path} cannot be read, the first is {self.first_bad}; mend the '
        'file, or give --config.data.format'
      )

  def _count_bad(self, file, number, why):
    """Counts a row that cannot be read."""
    self.num_bad += 1
    where = f' line {number}' if number else ''
    self.first_bad = self.first_bad or f'{file}{where}: {why}'

  def _jobs(self, file):
    """Yields functions that parse a block of a file, and where it ends."""
    if self.form == 'parquet':
      yield from _parquet(file)
    elif self.form in ('libsvm', 'libffm'):
      has_fields = self.form == 'libffm'
      for data, read_bytes in self._blocks(file):
        if not self.features:
          self.features = [*libsvm.features_of(data, has_fields)]
        features = libsvm.Features(*self.features)
        yield functools.partial(_sparse, features, data), read_bytes
    else:
      yield from self._csv(file)

  def _blocks(self, file):
    for data, read_bytes, num_invalid in blocks(file):
      self.num_invalid_bytes += num_invalid
      yield data, read_bytes

  def _csv(self, file):
    known, first = self._known_forms.get(self.form), first_line(file)
    names = known and known.columns
    delimiter = '\t' if self.form == 'tsv' else ','
    delimiter = known.delimiter if known else delimiter
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
    """Returns the table of a block of lines, bad lines, and all its lines."""
    data = np.frombuffer(text, np.uint8)
    most = text.count(b'\n')
    spans = np.empty((2, len(names), most), np.int32)
    bad = np.empty((2, most), np.int32)
    known = self._known_forms.get(self.form)
    quote = ord((known.quote if known else '"') or '\0')
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
    if known and known.tidy:
      table = Table.of(known.tidy(table.arrow()))
    return table, whys, num_lines + has_header


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
  names = [x for x in file.suffixes if x not in _PACKED]
  form = _SUFFIXES.get(names[-1].lower() if names else '', '')
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


def _open(file):
  """Opens a stream, and the file, whose position counts bytes read."""
  import pyarrow as pa

  if file.suffix == '.xz':
    raw = file.open('rb')
    return pa.PythonFile(lzma.open(raw), 'r'), raw
  raw = pa.OSFile(str(file))
  packed = {'.gz': 'gzip', '.bz2': 'bz2', '.zst': 'zstd'}.get(file.suffix)
  return (pa.CompressedInputStream(raw, packed) if packed else raw), raw


def first_line(file: pathlib.Path) -> str:
  """Reads the first line of a file, plain or compressed.

  Raises a `UserError` for what is no text in UTF-8.
  """
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

  def arrow(self, names: Iterable[str] | None = None) -> Any:
    """Returns a `pyarrow.Table` of all columns or of some."""
    import pyarrow as pa

    names = self.columns if names is None else names
    columns = {k: self.columns[k] for k in names}
    return pa.table({
      k: x.strings() if isinstance(x, keys.Text) else x
      for k, x in columns.items()
    })  # fmt: skip


def _sparse(features, text):
  columns, bad, num_lines = features.parse(text)
  return Table(columns), bad, num_lines


def blocks(file: pathlib.Path) -> Iterator[tuple[bytearray, int, int]]:
  """Yields blocks of lines of a file, where they end, and invalid bytes.

  Raises a `UserError` at the end if more than 1 % of all bytes are not UTF-8.
  """
  stream, raw = _open(file)
  rest, is_last = b'', False
  letters = text_files.Letters(file)
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
      parsed = Table.of(pa.table(batch)), (), 0
      yield functools.partial(tuple, parsed), size_bytes * done // total


@numba.njit(nogil=True, cache=True)
def split(data, i, delimiter, quote, starts, stops, bad_lines, bad_cells):
  """Finds the cells of each line, from `i` on; the text ends with a line end.

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
