"""Files of rows as tables, some rows at a time.

Text files give columns of strings, of which '' is a missing value; libsvm and
libffm, whose lines have as many features as they please, columns of strings,
lists of them, or numbers. Text is cut into cells here: it takes less time than
with `pyarrow.csv` (334 against 243 MB/s of a core, of Criteo's form with
quotes), and lines that cannot be read are named.
"""

import codecs
import contextlib
import csv
import functools
import io
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
from jaxemb.io import columns as columns_lib
from jaxemb.io import inputs, json_text, keys, libsvm, roles, text_files
from jaxemb.runtime import resources
from jaxemb.storage import packed

WITH_NAMES = 'csv', 'tsv', 'parquet', 'jsonl'
FORMS = *WITH_NAMES, 'libsvm', 'libffm'

# Read at once; a quarter is a fifth slower. Names are numbered by block.
_BLOCK_BYTES = 1 << 22
_HEAD_BYTES = 1 << 20
_PARQUET_ROWS = 1 << 16
_SUFFIXES = {f'.{x}': x for x in FORMS} | {
  '.pq': 'parquet', '.ndjson': 'jsonl', '.svm': 'libsvm', '.libfm': 'libsvm',
  '.ffm': 'libffm',
}  # fmt: skip
# How it begins; names of nodes may begin with brackets, too.
_JSON = re.compile(r'\s*(\{\s*("|$)|\[\s*(["{]|\[\s*["\d-]|$))')
# Of Vowpal Wabbit, in so many characters of a line.
_VOWPAL = re.compile(r'-?\d+(\.\d+)? (\S+ )?(\S+)?\|[A-Za-z]\w*(:\S+)? \S')
_MAX_TOLD = 1000
# Of libsvm.
_COMMENT = r'(?m)(^|[ \t])#.*'
_HEAD_ROWS = 20
_MOST_TITLES = 6  # lines above a header that are looked at
_MAX_CELL = 1 << 20  # bytes of a cell in quotes
_PAIR = '\x1f'  # stands for `::`
_REPEATED = 'it repeats the header'
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)
# Row numbers as pandas writes them: without a name, or as it reads that again.
_MARKUP = re.compile(r'\s*<(\?xml|!doctype|html)\b', re.IGNORECASE)
_INDEX = re.compile(r'|Unnamed: 0(\.\d+)?|__index_level_\d+__')


class Layout(NamedTuple):
  """How lines are cut into columns; rows of Parquet have their names alone."""

  columns: Sequence[str] = ()
  delimiter: str = ','  # ' ' = runs of white space; '' = of Parquet
  quote: str = '"'  # '' = none
  escapes: bool = False  # a backslash before a quote within quotes
  skip_lines: int = 0  # at the beginning
  skips_first: bool = False  # a header
  comment: str = ''  # what lines begin with that are none; '' = all are
  is_ragged: bool = False  # a line is a key, and as many values as it pleases


class KnownForm(NamedTuple):
  """A form of text whose columns are known, with a header or without."""

  columns: Sequence[str]
  delimiter: str
  quote: str  # '' = none
  matches: Callable[[str], bool]  # whether a first line is of this form
  tidy: Callable[[Any], Any] | None = None  # what is done to a `pyarrow.Table`


class Head(NamedTuple):
  """How a file begins."""

  form: str  # of `FORMS`
  rows: Sequence[Sequence[str]]  # cells of the first, maybe of a header
  layout: Layout  # without columns
  has_names: bool = False  # the first row is one of names, without doubt


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
    has_header: Callable[[Sequence[Sequence[str]]], bool] = lambda rows: True,
  ):
    """Finds the files of a path, folder, glob, or several with commas.

    Where `needed` columns are given a file without a header may lack the first
    one, the label. `max_bad` is the fraction of rows that may be skipped;
    `features` those of another reader, of files with the same columns;
    `known_forms` are read besides `FORMS`. With `layouts` the files are those
    that have one. `remedy` ends messages. `has_header` tells by the first rows
    whether columns have names, or numbers from 1 on. Raises a `UserError` if
    there are no files.
    """
    self.path, self._needed = path, needed
    self.files = list(layouts) if layouts else inputs.together(path)
    self._max_bad, self._known_forms = max_bad, known_forms
    self._layouts, self._has_header = layouts or {}, has_header
    self.form = form or guess(self.files[0], known_forms)
    forms = ', '.join([*known_forms, *FORMS])
    self._remedy = remedy or f'give --config.data.format, one of {forms}'
    self.num_rows = self.num_bad = self.num_invalid_bytes = 0
    self.num_repeated = 0  # headers among bad rows
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
    import pyarrow as pa

    threads = resources.reading_threads()

    def parsed(parse, read_bytes):
      block = parse()
      num = block.table.num_rows
      return then(block.table) if num else None, num, block, read_bytes

    try:
      for file in self.files:
        self._file, self._line, before = file, 1, self.read_bytes
        with futures.ThreadPoolExecutor(threads) as pool:
          for result, num, block, read_bytes in text_files.map_ahead(
            pool, parsed, self._jobs(file), depth=threads + 1
          ):
            self.num_rows += num + len(block.bad)
            self.num_comments += block.num_comments
            for line, why in block.bad:
              self.count_bad(line, why)
              self.num_repeated += why == _REPEATED
            self.read_bytes = before + read_bytes
            progress(self.read_bytes, self.size_bytes)
            if num:
              yield result
            self._line += block.num_lines
        self.read_bytes = before + file.stat().st_size
    except errors.UserError as error:
      if str(self._file) in str(error):
        raise
      raise errors.UserError(f'{self._file}: {error}') from error
    except (ValueError, pa.ArrowException) as error:  # or a column of lists
      raise errors.UserError(
        f'cannot read {self._file} as {self.form}: {errors.one_line(error)}; '
        f'{self._remedy}'
      ) from error
    num_all = self.num_rows + self.num_bad
    # Files that were put together have their headers, which harm nobody.
    if self.num_bad - self.num_repeated > self._max_bad * num_all:
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
    layout, form = self._layouts.get(file), self.form
    if layout and not layout.delimiter:
      form = guess(file)
    if form == 'parquet':
      yield from _parquet(file, layout)
      return
    is_json, is_sparse = form == 'jsonl', form in ('libsvm', 'libffm')
    if is_json:
      names = json_head(file)[0] if self.size_bytes else []
      parse = functools.partial(
        _json, names=names, columns=layout.columns if layout else names
      )
      layout = None
    elif not (is_sparse or layout) and file.stat().st_size:
      layout = self._csv_layout(file)
    header, known = (), self._known_forms.get(form)
    for data, read_bytes, num_invalid in blocks(file, layout):
      self.num_invalid_bytes += num_invalid
      if is_sparse:
        self.features = self.features or libsvm.features_of(
          data, form == 'libffm'
        )
        parse = functools.partial(_sparse, libsvm.Features(*self.features))
      elif not is_json:
        if layout.skips_first:
          header = _first_row(data, layout)
        parse = functools.partial(
          _parse, layout=layout, tidy=known and known.tidy, header=header
        )
        layout = layout._replace(skips_first=False, skip_lines=0)
      yield functools.partial(parse, data), read_bytes

  def _csv_layout(self, file):
    if known := self._known_forms.get(self.form):
      first, names = _first_line(file), known.columns
      has_header = first.startswith(names[0])
      layout = Layout(names, known.delimiter, known.quote)
      num = first.count(known.delimiter) + 1
    else:
      _, rows, layout, has_names = head(
        file, self.form, is_header=self._has_header
      )
      if not rows:
        return layout._replace(columns=[''])
      has_header = has_names or self._has_header(rows)
      num = max(map(len, rows))
      names = [str(i + 1) for i in range(num)]
      if has_header and rows[0] != [str(i) for i in range(num)]:  # by pandas
        names = _header(file, rows)
      elif self._needed and {*self._needed} <= {*names, str(num + 1)}:
        names = [str(i + 1) for i in range(num + 1)]
    if self._needed and not has_header and num == len(names) - 1:
      names = [x for x in names if x != self._needed[0]]
    return layout._replace(columns=names, skips_first=has_header)


def guess(
  file: pathlib.Path,
  known_forms: Mapping[str, KnownForm] = types.MappingProxyType({}),
) -> str:
  """Returns the form of a file by its name, or by its first line.

  Raises a `UserError` for what is no text in UTF-8, and for JSON that is not of
  lines with an object each.
  """
  suffixes = [x.lower() for x in file.suffixes]
  suffixes = [x for x in suffixes if x not in packed.SUFFIXES]
  form = _SUFFIXES.get(suffixes[-1] if suffixes else '', '')
  if form == 'parquet':
    return form
  with _reading(file), file.open('rb') as stream:
    if stream.read(4) == b'PAR1':
      return 'parquet'
  first = _first_line(file).strip()
  for name, known in known_forms.items():
    if known.matches(first):
      return name
  with contextlib.suppress(ValueError):
    if isinstance(json_text.loads(first), dict):
      return 'jsonl'
  if _JSON.match(first):
    raise errors.UserError(
      f'{file} is JSON, and lines with a sign between columns are read; write '
      'such lines (pandas: to_csv), or Parquet; of clicks also lines with an '
      'object each'
    )
  text = _head(file) if first[:1] in '@%#' else first
  relation = re.search(r'(?im)^@relation\s', text)
  if relation and re.search(r'(?im)^@data\b', text[relation.end() :]):
    raise errors.UserError(
      f'{file} is ARFF, of Weka; write CSV (scipy.io.arff.loadarff reads it)'
    )
  if _VOWPAL.match(first[:_MAX_TOLD]):
    raise errors.UserError(
      f"{file} is of Vowpal Wabbit; write libsvm's lines, or CSV"
    )
  if form and form != 'jsonl':
    return form
  first = re.sub(_COMMENT, '', text).strip().partition('\n')[0].strip()
  for form, feature in ('libsvm', r'\d+:[^: ]+'), ('libffm', r'\d+:\d+:[^: ]+'):
    if re.fullmatch(rf'\S+( +{feature})+', first):
      return form
  return 'tsv' if '\t' in first else 'csv'


def head(
  file: pathlib.Path,
  form: str = '',
  num_rows: int = _HEAD_ROWS,
  is_header: Callable[[Sequence[Sequence[str]]], bool] = lambda rows: False,
) -> Head:
  """Returns how a file begins, whose form is found out if it is not given.

  Lines at its beginning with '% ', '# ' or '%%' are comments, but for a last
  one that `is_header` of the columns, as of `numpy.savetxt`.
  Raises a `UserError` for what cannot be read.
  """
  form = form or guess(file)
  if form in ('parquet', 'jsonl'):
    rows: Sequence[Sequence[str]]
    rows = parquet_head(file) if form == 'parquet' else json_head(file)
    return Head(form, rows, Layout(delimiter=''), has_names=True)
  text = _head(file)
  if _MARKUP.match(text):
    raise errors.UserError(
      f'{file} is HTML or XML; write what it has as CSV (of tables: pandas.'
      'read_html or pandas.read_xml)'
    )
  text = text[: text.rfind('\n') + 1] or text  # whole lines
  comments = re.match(r'(?:(?:[%#] |%%).*\n)+(?=[^%\n])', text)
  if of_excel := re.match(r'"?sep=(.)"?\r?\n', text):
    layout = Layout(delimiter=of_excel[1], skip_lines=1)
    rows = cells(text[of_excel.end() :], of_excel[1])
    return Head(form, with_end(rows), layout)
  if comments:
    text = text[comments.end() :]
  layout, rows = dialect(text, num_rows)
  skip_lines, has_names = 0, False
  if comments and rows:
    *others, last = comments[0].splitlines()
    names = cells(last.lstrip('%# '), layout.delimiter)
    has_names = len(names) == 1 and len(names[0]) == len(rows[0]) > 1
    has_names = has_names and is_header(2 * names)
    rows = [*names, *rows] if has_names else rows
    skip_lines = len(others) + (not has_names)
  if rows and not is_header(rows):
    _refuse_title(file, text, is_header)
  layout = layout._replace(skip_lines=skip_lines)
  return Head(form, with_end(rows), layout, has_names=has_names)


def _refuse_title(file, text, is_header):
  """Raises a `UserError` for lines of other cells above a header."""
  lines = [x for x in text.splitlines()[: 2 * _HEAD_ROWS] if x.strip()]
  for i in range(1, min(_MOST_TITLES, len(lines) - 1)):
    layout, (names, *rows) = dialect('\n'.join(lines[i : i + _HEAD_ROWS]))
    (title,) = cells(lines[0], layout.delimiter) or [()]
    is_below = rows and len(title) != len(names) == len(rows[0])
    if is_below and is_header([names, names]):
      raise errors.UserError(
        f'{file} has {lines[0][:60]!r} above its header, which is '
        f'{lines[i][:60]!r}; remove what is above it'
      )


def cells(
  text: str,
  sign: str,
  quote: str = '"',
  escapes: bool = False,
  num_rows: int = _HEAD_ROWS,
) -> list[list[str]]:
  """Returns cells of the first rows that are not empty."""
  if sign == '::':
    text, sign = text.replace('::', _PAIR), _PAIR
  text = re.sub('\r(?!\n)', ' ', text)  # which would end lines here
  if sign == ' ':
    lines = itertools.islice(filter(str.strip, io.StringIO(text)), num_rows)
    return [x.split() for x in lines]
  reader = csv.reader(
    io.StringIO(text, newline=''),
    delimiter=sign,
    quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
    quotechar=quote or None,
    doublequote=not escapes,
    escapechar='\\' if escapes else None,
    skipinitialspace=True,
  )
  rows = []
  with contextlib.suppress(csv.Error):  # such as a stray carriage return
    for row in itertools.islice(filter(None, reader), num_rows):
      rows.append([x.strip() for x in row])
  return rows


def dialect(
  text: str, num_rows: int = _HEAD_ROWS
) -> tuple[Layout, list[list[str]]]:
  """Returns the layout of a text, without columns, and its first rows.

  It is the one with which all rows have as many cells, or nearly all.
  """
  # By sign, the fraction of rows with as many cells as most have.
  fitting: dict[str, tuple[float, Layout, list[list[str]]]] = {}
  for sign in filter(text.__contains__, ('\t', '::', ';', ',', '|')):
    has_escapes = re.search(rf'\\"(?!["\r\n]|$|{re.escape(sign)})', text)
    for quote, escapes in ('"', bool(has_escapes)), ('"', False), ('', False):
      if sign == '::' and quote:
        continue
      rows = cells(text, sign, quote, escapes=escapes, num_rows=num_rows)
      sizes = [len(x) for x in rows]
      share = max(map(sizes.count, sizes)) / len(sizes) if rows else 0
      if rows and sizes[0] > 1 and share > fitting.get(sign, (0,))[0]:
        layout = Layout(delimiter=sign, quote=quote, escapes=escapes)
        fitting[sign] = share, layout, rows
  if {';', ','} <= {*fitting}:
    with_commas = [y for x in fitting[';'][2] for y in x if ',' in y]
    if not all(re.fullmatch(r'"?-?\d+,\d+"?', x) for x in with_commas):
      del fitting[';']  # which is within cells, and commas are between them
  usual = 0.0, Layout(), cells(text, ',', num_rows=num_rows)
  share, layout, rows = max([*fitting.values(), usual], key=lambda x: x[0])
  lines = cells(text, ' ', num_rows=num_rows)
  widths = {len(x) for x in lines}
  if len(widths) == 1 and widths != {1}:
    # KONECT has both spaces and tabs between numbers.
    is_mixed = layout.delimiter == '\t' and any(
      ' ' in y for x in rows for y in x
    )
    is_mixed = is_mixed and all(roles.is_number(y) for x in lines for y in x)
    if not share or is_mixed:
      return Layout(delimiter=' ', quote=''), lines
  return layout, rows


def _first_line(file):
  first, *others = _head(file).split('\n', 1)
  if '\r' in first.rstrip('\r') and not others:
    raise errors.UserError(
      f'lines of {file} end in carriage returns alone; convert it first '
      "(tr '\\r' '\\n')"
    )
  return first.strip('\r')


def _head(file):
  """Returns the text with which a file begins.

  Raises a `UserError` for what is no text in UTF-8.
  """
  with _reading(file), packed.File(file) as stream:
    data = stream.read(_HEAD_BYTES)
  is_utf16 = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
  if b'\0' in data and not is_utf16:
    raise errors.UserError(
      f'{file} is binary; give text, plain or compressed, or a Parquet file '
      'with the suffix .parquet'
    )
  # A letter may be cut at the end.
  text = codecs.getincrementaldecoder('utf-8-sig')('replace').decode(data)
  num_high = len(text) - len(text.encode('ascii', 'ignore'))
  encoding = 'UTF-16' if is_utf16 else text_files.guess_encoding(data)
  if encoding != text_files.UTF_8 and 2 * text.count('\ufffd') > num_high:
    raise errors.UserError(
      f'{file} is no text in UTF-8; convert it first (iconv -f {encoding} -t '
      'UTF-8)'
    )
  return text.replace('\n\ufeff', '\n')


@contextlib.contextmanager
def _reading(file):
  try:
    yield
  except OSError as error:
    raise errors.UserError(
      f'cannot read {file}: {errors.one_line(error)}; copy or download it '
      'again, or rename it if its suffix is not that of what it holds'
    ) from error


def _header(file, rows):
  """Returns the names of columns; '' = behind the last delimiter of lines."""
  names, has_end = rows[0], len(rows[0]) > 1 and _is_empty(rows, -1)
  if has_row_names(rows):
    names = ['', *names]
  if names and not names[0] and all(names[1 : len(names) - has_end]):
    names = ['Unnamed: 0', *names[1:]]
  named = names[: len(names) - has_end]
  if not named or len({*named}) < len(named) or not all(named):
    line = ','.join(rows[0])
    raise errors.UserError(
      f'the first line of {file} names a column twice, or not at all: '
      f'{line[:80]!r}; it must be a header'
    )
  return names


def with_end(rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
  """Returns rows, the first with a cell more if all others end in a sign."""
  first, *rest = rows or [()]
  is_longer = {len(x) for x in rest} == {len(first) + 1}
  return [[*first, ''], *rest] if is_longer and _is_empty(rest, -1) else rows


def _is_empty(rows, column):
  return not any(x[column] for x in rows if x)


def has_row_names(rows: Sequence[Sequence[str]]) -> bool:
  """Whether all rows but the first begin with a name of their own, as in R."""
  first, *rest = rows
  is_longer = {len(x) for x in rest} == {len(first) + 1}
  return is_longer and len({x[0] for x in rest}) == len(rest)


def is_index(name: str) -> bool:
  """Whether a column is called as pandas calls row numbers."""
  return _INDEX.fullmatch(name) is not None


class Table(NamedTuple):
  """Rows, by column."""

  columns: Mapping[str, Any]  # `keys.Text`, or an array of Arrow

  @classmethod
  def of(cls, data: Any) -> 'Table':
    """Makes one of what `columns.of` takes; returns a `Table` as it is."""
    if isinstance(data, cls):
      return data
    table = columns_lib.of(data)
    if len({*table.column_names}) < table.num_columns:
      raise errors.UserError(
        f'the columns {", ".join(table.column_names)[:200]} have a name twice; '
        'rename one'
      )
    return cls(dict(zip(table.column_names, table.columns, strict=True)))

  @property
  def num_rows(self) -> int:
    """The number of rows."""
    column = next(iter(self.columns.values()), ())
    return len(column.starts if isinstance(column, keys.Text) else column)

  def text(self, name: str) -> keys.Text:
    """Returns a column as names; see `columns.names`."""
    try:
      return columns_lib.names(self.columns[name])
    except NotImplementedError as error:  # of Arrow
      raise ValueError(f'column {name}: {error}') from error

  def arrow(self, names: Iterable[str] | None = None) -> Any:
    """Returns a `pyarrow.Table` of all columns or of some."""
    import pyarrow as pa

    names = self.columns if names is None else names
    columns = {k: self.columns[k] for k in names}
    return pa.table({
      k: x.strings() if isinstance(x, keys.Text) else x
      for k, x in columns.items()
    })  # fmt: skip

  def of_columns(self, names: Iterable[str]) -> 'Table':
    """Returns some of the columns."""
    return Table({k: self.columns[k] for k in names})

  def select(self, rows: np.ndarray) -> 'Table':
    """Returns the rows of a mask."""
    return Table({
      k: x.select(rows) if isinstance(x, keys.Text) else x.filter(rows)
      for k, x in self.columns.items()
    })  # fmt: skip


class _Block(NamedTuple):
  """What a stretch of a file has."""

  table: Table
  bad: Sequence[tuple[int, str]] = ()  # lines, and what is wrong
  num_lines: int = 0
  num_comments: int = 0


def _sparse(features, text):
  if b'#' in text:
    text = bytearray(re.sub(_COMMENT.encode(), b'', text))
  columns, bad, num_lines = features.parse(text)
  return _Block(Table(columns), bad, num_lines)


def _json(text, names, columns):
  """Returns the `_Block` of lines with a JSON object each."""
  rows, bad, number = [], [], -1
  for number, line in enumerate(bytes(text).split(b'\n')[:-1]):
    if not line.strip():
      continue
    try:
      row = json_text.loads(line.decode('utf-8-sig', 'replace'))
      if not isinstance(row, dict):
        raise ValueError('it is no object')
      rows.append(row)
    except ValueError as error:
      bad.append((number, errors.one_line(error)))
  lists = ([x.get(k) for x in rows] for k in names)
  table = Table.of(dict(zip(columns, lists, strict=True)))
  return _Block(table, bad, number + 1)


def _first_row(text, layout):
  """Returns the cells of the first row of a block."""
  lines = bytes(text[:_HEAD_BYTES]).decode('utf-8-sig', 'replace')
  lines = lines.splitlines(keepends=True)[layout.skip_lines :]
  if layout.comment:
    lines = [x for x in lines if not x.startswith(layout.comment)]
  rows = cells(
    ''.join(lines),
    layout.delimiter,
    layout.quote,
    escapes=layout.escapes,
    num_rows=1,
  )
  return rows[0] if rows else []


def _parse(text, layout, tidy, header):
  """Returns the `_Block` of some lines, but for those that are the `header`."""
  sign = layout.delimiter
  if b'\xef' in text:  # maybe marks of files that were put together
    data = np.frombuffer(text, np.uint8)
    if np.any(data[np.flatnonzero(data[1:] == 239)] == 10):
      text = text.replace(b'\n' + codecs.BOM_UTF8, b'\n')
  if sign == '::':
    text, sign = text.replace(b'::', _PAIR.encode()), _PAIR
  data = np.frombuffer(text, np.uint8)
  names = layout.columns[:1] if layout.is_ragged else layout.columns
  most = np.count_nonzero(data == 10)  # `count` is ten times slower
  most = len(data) // 2 + 1 if layout.is_ragged else most
  # A row has a delimiter in front of each cell but the first; the cells of the
  # last one are written before they are counted.
  most_rows = most if layout.is_ragged else len(data) // len(names) + 1
  spans = np.empty((2, len(names), min(most, most_rows)), np.int32)
  lines = np.empty(most, np.int32)
  bad = np.empty((2, most), np.int32)
  spaced, ragged = sign == ' ' or None, layout.is_ragged or None
  quote = 0 if spaced else ord(layout.quote or '\0')
  num, num_lines, num_comments, num_bad = _split(
    data, ord(sign), quote, layout.escapes,
    layout.skip_lines, layout.skips_first, ord(layout.comment or '\0'),
    spaced, ragged,
    *spans, lines, *bad,
  )  # fmt: skip
  columns = [
    keys.Text(data, starts[:num], stops[:num])
    for starts, stops in zip(*spans, strict=True)
  ]
  if layout.is_ragged:
    columns = _pairs(*columns, lines[:num])
  whys = [
    (int(line), 'a quote is not closed')
    if cells < 0
    else (int(line), f'{cells} of {len(names)} fields')
    for line, cells in bad[:, :num_bad].T
  ]
  table = dict(zip(layout.columns, columns, strict=True))
  table = Table({k: x for k, x in table.items() if k})
  if len(repeated := _equal_rows(columns, header)):
    starts = columns[0].starts[repeated]
    ends = (np.count_nonzero(data[:x] == 10) for x in starts)
    whys += [(x, _REPEATED) for x in ends]
    table = table.select(~np.isin(np.arange(table.num_rows), repeated))
  table = Table.of(tidy(table.arrow())) if tidy else table
  return _Block(table, sorted(whys), num_lines, num_comments=num_comments)


def _equal_rows(columns, header):
  """Returns the rows with the header's cells, in capitals or not.

  A single column may have its name as a value.
  """
  if not 1 < len(header) == len(columns):
    return ()
  rows = np.arange(len(columns[0].starts))
  for (data, starts, stops), name in zip(columns, header, strict=True):
    name = np.frombuffer(name.encode().lower(), np.uint8)
    rows = rows[(stops - starts)[rows] == len(name)]
    for i, sign in enumerate(name):
      if not len(rows):  # a name may be very long
        return ()
      rows = rows[_LOWER[data[starts[rows] + i]] == sign]
  return rows


def _pairs(cells, lines):
  """Returns the first cell of a line for each of its others, and these.

  A key without values is its own.
  """
  is_key = np.diff(lines, prepend=-1) > 0
  is_alone = is_key & np.append(is_key[1:], True)
  keys_ = np.maximum.accumulate(np.where(is_key, np.arange(len(lines)), 0))
  values = np.flatnonzero(~is_key | is_alone)
  return cells.select(keys_[values]), cells.select(values)


def parquet_head(file: pathlib.Path) -> list[Sequence[str]]:
  """Reads the names of columns, and the first rows as strings."""
  import pyarrow as pa
  from pyarrow import parquet

  try:
    with _reading(file), parquet.ParquetFile(file) as reader:
      head = [reader.schema_arrow.names]
      for batch in itertools.islice(reader.iter_batches(_HEAD_ROWS), 1):
        columns = [map(str, x.to_pylist()) for x in batch.columns]
        head += zip(*columns, strict=True)
  except (pa.ArrowException, ValueError, OverflowError) as error:
    raise errors.UserError(
      f'cannot read {file} as parquet: {errors.one_line(error)}; copy or '
      'download it again'
    ) from error
  return head


def json_head(file: pathlib.Path) -> list[Sequence[str]]:
  """Reads the names of the first lines' values, and the first rows."""
  rows = []
  for line in _head(file).splitlines():
    with contextlib.suppress(ValueError):  # the last one may be cut
      row = json_text.loads(line)
      rows += [row] if isinstance(row, dict) else []
  names = list(dict.fromkeys(k for row in rows for k in row))
  head = [[str(x.get(k, '')) for k in names] for x in rows[:_HEAD_ROWS]]
  return [names, *head]


def blocks(
  file: pathlib.Path, layout: Layout | None = None
) -> Iterator[tuple[bytearray, int, int]]:
  """Yields blocks of lines of a file, where they end, and invalid bytes.

  With a layout they are blocks of rows, which may have line ends in quotes.
  Raises a `UserError` at the end if more than 1 % of all bytes are not UTF-8.
  """
  rest, is_last = bytearray(), False
  num_bytes = num_invalid = 0
  likely = ''  # encoding
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
      quote = layout.quote.encode() if layout else b''
      if (
        layout
        and quote
        and quote in text
        and len(layout.delimiter) == 1
        and not is_last
      ):
        data = np.frombuffer(memoryview(text)[:stop], np.uint8)
        stop = _last_row(
          data, ord(layout.delimiter), ord(quote), layout.escapes
        )
        del data
      rest = text[stop:]
      del text[stop:]
      if text:
        num, some = text_files.invalid(text)
        if num and not likely:
          likely = text_files.guess_encoding(some)
        num_bytes, num_invalid = num_bytes + len(text), num_invalid + num
        yield text, stream.read_bytes, num
    if stream.num_ignored:
      raise OSError(f'{stream.num_ignored:,} bytes follow its packed data')
  if num_invalid > text_files.MAX_INVALID * num_bytes:
    raise errors.UserError(
      f'{num_invalid:,} of {num_bytes:,} bytes of {file} are not UTF-8; '
      f'convert it first (iconv -f {likely} -t UTF-8)'
    )


def _parquet(file, layout):
  from pyarrow import parquet

  size_bytes = file.stat().st_size
  with _reading(file), parquet.ParquetFile(file) as reader:
    done, total = 0, max(1, reader.metadata.num_rows)
    for batch in reader.iter_batches(_PARQUET_ROWS):
      done += len(batch)
      rows = functools.partial(_of_batch, batch, layout)
      yield rows, size_bytes * done // total


def _of_batch(batch, layout):
  """Returns the `_Block` of some rows of Parquet."""
  import pyarrow as pa

  batch.validate(full=True)  # text, and indices into dictionaries
  table = Table.of(pa.table(batch))
  if layout:
    columns = table.columns.values()
    table = Table(dict(zip(layout.columns, columns, strict=True)))
  return _Block(table, num_lines=len(batch))


@numba.njit(nogil=True, cache=True)
def _is_space(sign):
  return sign == 32 or sign == 9 or sign == 13


@numba.njit(nogil=True, cache=True)
def _closing(data, i, delimiter, quote, escapes):
  """Finds the end of a cell that begins with a quote.

  Returns the position of the quote that closes it; -1 if something else than a
  delimiter is behind that, and the cell is as it is written; -2 if no quote
  closes it.
  """
  is_long = False
  for j in range(i + 1, min(len(data), i + _MAX_CELL)):
    if j <= i:
      continue
    if data[j] == 10:
      is_long = True
    if escapes and data[j] == 92:
      i = j + 1
    elif data[j] == quote:
      if data[j + 1] == quote:
        i = j + 1
        continue
      end = j + 1
      while data[end] == 32 or data[end] == 13:
        end += 1
      if data[end] == delimiter or data[end] == 10:
        return j
      if data[j - 1] != 92:
        return -2 if is_long else -1
  return -2


@numba.njit(nogil=True, cache=True)
def _last_row(data, delimiter, quote, escapes):
  """Returns where the last row ends that may be whole."""
  i = last = 0
  is_first = True  # of a cell
  while i < len(data):
    if data[i] == quote and is_first:
      closing = _closing(data, i, delimiter, quote, escapes)
      if closing == -2 and i + _MAX_CELL > len(data):
        return last
      i = max(i, closing)
      is_first = False
    else:
      is_first = (
        data[i] == delimiter or data[i] == 10 or (is_first and data[i] == 32)
      )
      if data[i] == 10:
        last = i + 1
    i += 1
  return last


@numba.njit(nogil=True, cache=True)
def _unquoted(data, i, closing, quote, escapes):
  """Removes quotes and escapes of a cell in place.

  Returns where it stops, and the line ends in it.
  """
  stop, num_lines = i + 1, 0
  i += 1
  while i < closing:
    is_slash = data[i] == 92 and i + 1 < closing
    if data[i] == quote or (
      is_slash and (escapes or (data[i + 1] == quote and data[i + 2] != quote))
    ):
      i += 1
    num_lines += data[i] == 10
    data[stop] = data[i]
    stop += 1
    i += 1
  return stop, num_lines


@numba.njit(nogil=True, cache=True, inline='always')
def _cell(data, i, delimiter, quote, escapes):
  """Finds a cell and unquotes it in place, or takes spaces around it away.

  Returns where it starts and stops, where its delimiter is, and the line ends
  in it, or -1 if a quote is not closed.
  """
  while data[i] == 32:
    i += 1
  start, num_lines = i, 0
  if quote and data[i] == quote:
    closing = _closing(data, i, delimiter, quote, escapes)
    if closing >= 0:
      stop, num_lines = _unquoted(data, i, closing, quote, escapes)
      i = closing + 1
      while data[i] != delimiter and data[i] != 10:
        i += 1
      return start + 1, stop, i, num_lines
    if closing == -2:
      num_lines = -1
  while data[i] != delimiter and data[i] != 10:
    i += 1
  stop = i
  if stop > start and data[stop - 1] == 13 and data[i] == 10:
    stop -= 1
  while stop > start and data[stop - 1] == 32:
    stop -= 1
  return start, stop, i, num_lines


@numba.njit(nogil=True, cache=True, inline='always')
def _word(data, i):
  """As `_cell`, where any white space is a delimiter, of several the last."""
  start = i
  while data[i] != 10 and not _is_space(data[i]):
    i += 1
  stop = i
  while _is_space(data[i]):
    i += 1
  return start, stop, i - (data[i] != 10), 0


@numba.njit(nogil=True, cache=True)
def _split(
  data, delimiter, quote, escapes, skip_lines, skips_first, comment,
  spaced, ragged,
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
    if is_comment or is_empty or line < skip_lines:
      num_comments += is_comment
      while data[i] != 10:
        i += 1
      i, line = i + 1, line + 1
      continue
    column, first, is_open, more_lines = 0, row, False, 0
    while True:
      if spaced is not None:
        start, stop, i, num = _word(data, i)
      else:
        start, stop, i, num = _cell(data, i, delimiter, quote, escapes)
      is_open |= num < 0
      more_lines += max(num, 0)
      if ragged is not None:
        if stop > start:
          starts[0, row], stops[0, row], lines[row] = start, stop, line
          row += 1
      elif column < num_columns:
        starts[column, row], stops[column, row] = start, stop
      column, i = column + 1, i + 1
      if data[i - 1] == 10:
        break
    if ragged is None:
      row += 1
    if skips_first:
      row, skips_first = first, False
    elif is_open or (ragged is None and column != num_columns):
      bad_lines[num_bad] = line
      bad_cells[num_bad] = -1 if is_open else column
      num_bad += 1
      row = first
    line += 1 + more_lines
  return row, line, num_comments, num_bad
