"""Files of clicks as tables, some rows at a time.

Text files give columns of strings, of which '' is a missing value; libsvm and
libffm, whose lines have as many features as they please, columns of strings,
lists of them, or numbers.
"""

import glob
import io
import itertools
import lzma
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxemb import errors
from jaxemb.clicks import schema

FORMS = 'criteo', 'avazu', 'adult', 'csv', 'tsv', 'parquet', 'libsvm', 'libffm'

_PACKED = '.gz', '.bz2', '.xz', '.zst'
_BLOCK_BYTES = 1 << 23
_LINES = 1 << 15  # of libsvm in a table
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
_MAX_NUMBERS = 1000  # columns of libsvm that are not categories


class Reader:
  """Reads files of one form; counts rows that cannot be read."""

  def __init__(
    self,
    path: str,
    form: str = '',
    needed: Sequence[str] | None = None,
    max_bad: float = 0.01,
  ):
    """Finds the files of a path, folder, glob, or several with commas.

    Where `needed` columns are given a file without a header may lack the first
    one, the label. `max_bad` is the share of rows that may be skipped. Raises a
    `UserError` if there are no files.
    """
    self.path, self.files, self._needed = path, find(path), needed
    self._max_bad = max_bad
    self.form = form or guess(self.files[0])
    self.num_rows = self.num_bad = 0
    self.first_bad = ''
    self.read_bytes = 0
    self.size_bytes = sum(x.stat().st_size for x in self.files)
    self._features: _Features | None = None

  def tables(self, progress: Callable[[int, int], None]) -> Iterator[Any]:
    """Tables of rows in order; `progress` gets bytes read, and of all."""
    try:
      for file in self.files:
        before = self.read_bytes
        for table, read_bytes in self._tables(file):
          self.num_rows += len(table)
          self.read_bytes = before + read_bytes
          progress(self.read_bytes, self.size_bytes)
          if len(table):
            yield table
        self.read_bytes = before + file.stat().st_size
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
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

  def _tables(self, file):
    if self.form == 'parquet':
      yield from _parquet(file)
    elif self.form in ('libsvm', 'libffm'):
      yield from self._lines(file)
    else:
      yield from self._csv(file)

  def _csv(self, file):
    from pyarrow import csv

    def skip(row):
      if row.text.strip():
        why = f'{row.actual_columns} of {row.expected_columns} fields'
        self.bad(file, row.number, why)
      return 'skip'

    names = schema.HEADERS.get(self.form)
    if names and self._needed and not self._starts_with(file, names):
      delimiter = '\t' if self.form == 'criteo' else ','
      if _first_line(file).count(delimiter) == len(names) - 2:
        names = [x for x in names if x != self._needed[0]]
    is_tabs = self.form in ('criteo', 'tsv')
    stream, raw = _open(file)
    with stream:
      has_header = names is None or self._starts_with(file, names)
      header = names or _header(file, '\t' if is_tabs else ',')
      reader = csv.open_csv(
        stream,
        csv.ReadOptions(
          column_names=header,
          skip_rows=int(has_header),
          block_size=_BLOCK_BYTES,
        ),
        csv.ParseOptions(
          delimiter='\t' if is_tabs else ',',
          quote_char='"' if self.form != 'criteo' else False,
          invalid_row_handler=skip,
        ),
        csv.ConvertOptions(
          column_types=dict.fromkeys(header, 'string'),
          strings_can_be_null=False,
        ),
      )
      for batch in reader:
        yield self._tidied(batch), raw.tell()

  def _starts_with(self, file, names):
    """Whether a file begins with a header that it need not have."""
    stream, _ = _open(file)
    with stream:
      return bytes(stream.read(len(names[0]))).decode() == names[0]

  def _tidied(self, batch):
    """What known formats have: spaces, full stops, hours."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table(batch)
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

  def _lines(self, file):
    number = 0
    stream, raw = _open(file)
    with stream, io.TextIOWrapper(stream, 'utf-8', 'replace') as text:
      while lines := list(itertools.islice(text, _LINES)):
        rows = []
        for line in lines:
          number += 1
          try:
            rows.append(_parsed(line, self.form == 'libffm'))
          except ValueError:
            self.bad(file, number, f'{line.strip()[:60]!r}')
        rows = [x for x in rows if x]
        if self._features is None and rows:
          self._features = _Features(rows, self.form == 'libffm')
        if rows:
          table, num_bad = self._features.table(rows)
          for _ in range(num_bad):
            self.bad(file, None, 'has other features than the first lines')
          yield table, raw.tell()


def find(path: str) -> list[pathlib.Path]:
  """Files of a path, a folder, a glob, or several with commas between."""
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
      raise errors.UserError(f'there is no file {one}; give a log of clicks')
    found += some
  return found


def guess(file: pathlib.Path) -> str:
  """The form of a file by its name, or by its first line."""
  names = [x for x in file.suffixes if x not in _PACKED]
  form = _SUFFIXES.get(names[-1].lower() if names else '', '')
  if form == 'parquet':
    return form
  first = _first_line(file).strip()
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


def _first_line(file):
  stream, _ = _open(file)
  with stream:
    head = bytes(stream.read(1 << 20)).split(b'\n', 1)[0]
  return head.decode('utf-8-sig', 'replace').strip('\r')


def _header(file, delimiter):
  import csv

  line = _first_line(file)
  names = next(csv.reader([line], delimiter=delimiter), [])
  names = [x.strip() for x in names]
  if len(set(names)) < len(names) or not all(names):
    raise errors.UserError(
      f'the first line of {file} names a column twice, or not at all: '
      f'{line[:80]!r}; it must be a header'
    )
  return names


def _parquet(file):
  import pyarrow as pa
  from pyarrow import parquet

  size_bytes = file.stat().st_size
  with parquet.ParquetFile(file) as reader:
    done, total = 0, max(1, reader.metadata.num_rows)
    for batch in reader.iter_batches(1 << 16):
      done += len(batch)
      yield pa.table(batch), size_bytes * done // total


def _parsed(line, has_fields):
  """Label, and (feature or field, category or number, number) of a line."""
  label, *features = line.split('#', 1)[0].split() or ['']
  if not label:
    return None
  found = []
  for text in features:
    one = text.split(':')
    if len(one) != 2 + has_fields:
      raise ValueError(text)
    found.append((int(one[0]), one[-2], float(one[-1])))
  return str(float(label)), found


class _Features:
  """Columns of lines of libsvm or libffm, as the first ones have them.

  Features of value 1 are categories: a column for each place, if all lines have
  as many, else one list of them (libffm: a column or list for each field).
  Features with other values are numbers.
  """

  def __init__(self, rows, has_fields):
    self.has_fields = has_fields
    cells = [x for _, found in rows for x in found]
    if has_fields:
      self.names = sorted({x[0] for x in cells})
      self.are_numbers = {
        k: any(x[2] != 1 for x in cells if x[0] == k) for k in self.names
      }
      self.are_lists = {
        k: any(sum(x[0] == k for x in found) > 1 for _, found in rows)
        for k in self.names
      }
      return
    counts = {len(found) for _, found in rows}
    self.is_list = len(counts) > 1
    self.has_numbers = any(x[2] != 1 for x in cells)
    self.names = list(range(1, max(counts) + 1))
    if self.has_numbers:
      self.names = sorted({x[0] for x in cells})
      if len(self.names) > _MAX_NUMBERS:
        raise ValueError(
          f'{len(self.names):,} features have values other than 1, and at most '
          f'{_MAX_NUMBERS:,} can be numbers'
        )

  def table(self, rows):
    """The table of parsed lines, and how many do not fit."""
    import pyarrow as pa

    columns: dict[str, Any] = {'label': [x for x, _ in rows]}
    if self.has_fields:
      known = set(self.names)
      kept = [x for x in rows if all(y[0] in known for y in x[1])]
      columns['label'] = [x for x, _ in kept]
      for k in self.names:
        cells = [[y for y in found if y[0] == k] for _, found in kept]
        if self.are_numbers[k]:
          column = pa.array([y[0][2] if y else None for y in cells], 'float64')
        elif self.are_lists[k]:
          values = [[z[1] for z in y] for y in cells]
          column = pa.array(values, pa.list_(pa.string()))
        else:
          column = pa.array([y[0][1] if y else '' for y in cells], 'string')
        columns[f'field{k}'] = column
    elif self.has_numbers:
      known = {k: i for i, k in enumerate(self.names)}
      kept = [x for x in rows if all(y[0] in known for y in x[1])]
      columns['label'] = [x for x, _ in kept]
      cells = [[0.0] * len(kept) for _ in known]
      for i, (_, found) in enumerate(kept):
        for name, _, value in found:
          cells[known[name]][i] = value
      for name, values in zip(self.names, cells, strict=True):
        columns[f'feature{name}'] = pa.array(values, 'float64')
    elif self.is_list:
      kept = rows
      values = [[str(y[0]) for y in found] for _, found in rows]
      columns['features'] = pa.array(values, pa.list_(pa.string()))
    else:
      kept = [x for x in rows if len(x[1]) == len(self.names)]
      columns['label'] = [x for x, _ in kept]
      for i, name in enumerate(self.names):
        values = [str(x[1][i][0]) for x in kept]
        columns[f'field{name}'] = pa.array(values, 'string')
    return pa.table(columns), len(rows) - len(kept)
