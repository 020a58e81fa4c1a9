"""Text in JSON, an object or string after the other, or in a column of a table.

One key of the objects, or one column, holds the text: the one that
`data.columns` names, or one whose name is known.
"""

import codecs
import csv
import dataclasses
import functools
import io
import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxemb import errors
from jaxemb.io import roles, text_files

if TYPE_CHECKING:
  from jaxemb.text import wiki

ROLES = (
  roles.Role('text', ('text reviewText content body',), is_required=True),
)

# Records of objects, or of strings in lists, which may be in one array.
_START = re.compile(
  rb'\s*(?:\[\s*){0,2}(?:\{\s*\}[\s,]*)*\{\s*"'
  rb'|\s*(?:\[\s*){1,3}"(?:[^"\\]|\\.)*"\s*[,\]]'
)
_KEY = re.compile(r'\s*(?:[{,]\s*)?("(?:[^"\\]|\\.)*")\s*:\s*')
_BETWEEN = re.compile(r'[\s,]*')
_ARRAY = re.compile(r'\s*\[')
# An object up to an array of records, which are what it is about.
_WRAPPER = re.compile(
  r'\s*\{(?:\s*"[^"]*"\s*:\s*[-\w.]+\s*,)*\s*("[^"]*")\s*:\s*\[\s*(?=[{"])'
)
_TABLE = re.compile(r'\.(csv|tsv)(\.|$)', re.IGNORECASE)
_MAX_RECORD_BYTES = 1 << 28
_MAX_BAD = 0.01  # of the rows of a table
_MAX_ROW_LINES = 10_000  # of a row whose quotes are closed
_BATCH_CHARS = 1 << 20
_MIN_CHARS = 1 << 12  # by which an array is not one of many objects'
_SPACE = re.compile(r'\s')
_ENTITY = re.compile(r'&(lt|gt|quot|amp);')
_CHARS = {'lt': '<', 'gt': '>', 'quot': '"', 'amp': '&'}
_DECODER = json.JSONDecoder()


def extractor(
  head: bytes, path: pathlib.Path | str, declared: str
) -> text_files.Extract | None:
  """Returns what makes plain text of records; None if there are none.

  `declared` is `data.columns`. Raises a `UserError` if it names no key or
  column, or if it is empty and not exactly one has a known name.
  """
  return _json(head, str(path), declared) or _table(head, str(path), declared)


def _between(text: str, position: int) -> int:
  """Returns the position behind white space and commas."""
  match = _BETWEEN.match(text, position)
  return match.end() if match else position


class _Head(NamedTuple):
  """The first bytes of a file as JSON."""

  records: list[Any]  # whole ones, one after the other
  rest: str  # behind them

  @classmethod
  def of(cls, text: str, position: int = 0) -> '_Head':
    """Reads records from a position on, up to one that is no JSON, or cut."""
    records = []
    while (position := _between(text, position)) < len(text):
      try:
        record, position = _DECODER.raw_decode(text, position)
      except (ValueError, RecursionError):
        break
      records.append(record)
    return cls(records, text[position:])

  def keys(self) -> dict[str, bool]:
    """Returns the keys of the records, and whether they have text."""
    has_text: dict[str, bool] = {}
    for record in [*self.records, _cut_record(self.rest)]:
      for x in _objects(record):
        for key, value in x.items():
          has_text[key] = has_text.get(key, False) or _has_text(value)
    return has_text


def _json(head, path, declared):
  start = _START.match(head)
  is_named = '.json' in pathlib.Path(path).name.lower()
  if not start and not (is_named and re.match(rb'\s*[\["{]', head)):
    return None
  text = head.decode(errors='ignore')
  records, opening, array = _opened(text, declared.partition(':')[2])
  keys = records.keys()
  # Prose may begin with a list of strings, too.
  is_json = any(keys) or records.rest[:1] in ('', *'["', ']'[:opening])
  if not is_named and not (start and keys and is_json):
    return None
  names = [x for x in keys if declared or keys[x]]
  if not names:
    raise errors.UserError(
      f'{path} is JSON without text in its first records'
      f'{", with " + " ".join(keys)[:80] if keys else ""}: name another key as '
      'config.data.columns=text:KEY, or take the texts out, such as by '
      "jq '.. | .KEY? | strings' FILE > texts.json"
    )
  if declared == f'text:{array}':
    declared = ''
  key = ''  # of strings and their lists
  if names != [''] or declared:
    columns = roles.assign(path, ROLES, names, declared=declared)
    key = names[roles.require(path, ROLES, columns).index('text')]
  if not opening and _is_line(text):
    return functools.partial(_lines, key=key)
  parser = _Parser(path, opening, array)
  return functools.partial(_stream, key=key, parser=parser)


def _opened(text: str, declared: str) -> tuple[_Head, int, str]:
  """Returns the records of a head, and what opens an array of all of them.

  That is so many characters, 0 where there is none, and its key if it is in an
  object, whose records have not the key that is `declared`.
  """
  values = _Head.of(text)
  is_one = len(values.records) + bool(values.rest) == 1
  if is_one and (match := _ARRAY.match(text)):
    return _Head.of(text, match.end()), match.end(), ''
  wrapper = _WRAPPER.match(text)
  is_long = bool(values.records) or len(text) > _MIN_CHARS
  if not (wrapper and is_one and is_long) or _has_strings(values):
    return values, 0, ''
  array, name = _Head.of(text, wrapper.end()), _string(wrapper[1])
  if declared == name and '' not in array.keys():
    return values, 0, ''
  return array, wrapper.end(), name


def _string(text: str) -> str:
  """Returns a string of JSON; as it is written if it is damaged."""
  try:
    return json.loads(text, strict=False)
  except ValueError:
    return text[1:-1]


def _has_strings(head: _Head) -> bool:
  records = [*head.records, _cut_record(head.rest)]
  return any(
    isinstance(y, str) for x in records for z in _objects(x) for y in z.values()
  )


def _is_line(head: str) -> bool:
  """Whether the first line is a record, or is not over in a head."""
  lines = re.split(r'[\r\n]+', head.strip())
  try:
    json.loads(lines[0])
  except RecursionError:
    return False
  except ValueError:
    return len(lines) == 1 and not _Head.of(head).records
  return True


def _cut_record(text: str) -> Any:
  """Returns the beginning of a record whose end is missing."""
  text = text.lstrip('[ \t\r\n')
  if text[:1] == '"':
    return ''
  record, position = {}, 0
  while match := _KEY.match(text, position):
    key, position = _string(match[1]), match.end()
    try:
      record[key], position = _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
      start = re.match(r'((?:\[\s*)*)(")?', text[position:])
      record[key] = ([''] if start[1] else '') if start and start[2] else None
      break
  return record


def _objects(record: Any) -> list[dict[str, Any]]:
  """Returns the objects of a record; text without one has the key ''."""
  objects, rest = [], [record]
  while rest:  # lists may be nested more deeply than functions
    x = rest.pop()
    if isinstance(x, dict):
      objects.append(x)
    elif isinstance(x, list) and x and not _has_text(x):
      rest += reversed(x)
    elif isinstance(x, list | str):
      objects.append({'': x})
  return objects


def _has_text(value: Any) -> bool:
  rest = [value]
  while rest:
    x = rest.pop()
    if isinstance(x, str):
      return True
    if isinstance(x, list):
      rest += x
  return False


def _texts(value: Any) -> list[str]:
  """Returns the lines of a value; raises `ValueError`.

  Strings of a list are lines, but tokens, which have no white space, are one.
  """
  lines, rest = [], [value]
  while rest:
    x = rest.pop()
    if isinstance(x, str):
      lines.append(x)
    elif not isinstance(x, list):
      raise ValueError(x)
    elif any(isinstance(y, list) or _SPACE.search(y) for y in x):
      rest += reversed(x)
    else:
      lines.append(' '.join(x))
  return lines


def _text(record: Any, key: str) -> bytes:
  """Returns the lines of a record's text; raises `ValueError`."""
  lines = []
  for x in _objects(record):
    try:
      texts = _texts(x[key])
    except (KeyError, TypeError) as error:
      raise ValueError(key) from error
    # WikiExtractor escapes in JSON too; others mean what they write.
    if key == 'text' and 'title' in x:
      texts = [_ENTITY.sub(lambda match: _CHARS[match[1]], y) for y in texts]
    lines += texts
  if not lines:
    raise ValueError(key)
  return '\n'.join([*lines, '']).encode(errors='replace')


def _lines(
  blocks: Iterable[bytes], report: 'wiki.ReadReport', key: str
) -> Iterator[bytes]:
  """Yields the text of one record per line; other lines are lost."""
  report.form, report.columns = 'JSON lines', {'text': key or 'all'}
  num_bad = 0
  for block in text_files.at_lines(blocks, _MAX_RECORD_BYTES):
    texts = []
    for line in filter(bytes.strip, block.splitlines()):
      try:
        texts.append(_text(json.loads(line), key))
      except (ValueError, RecursionError):
        num_bad += 1
        report.lost_bytes += len(line)
    report.pages += len(texts)
    yield b''.join(texts)
  if num_bad:
    report.problems.append(
      f'{num_bad} lines skipped: no JSON object with a "{key}"'
    )


def _stream(
  blocks: Iterable[bytes],
  report: 'wiki.ReadReport',
  key: str,
  parser: '_Parser',
) -> Iterator[bytes]:
  """Yields the text of records in an array or over several lines.

  What follows a damaged record is lost.
  """
  report.form, report.columns = 'JSON', {'text': key or 'all'}
  decoder = codecs.getincrementaldecoder('utf-8')('replace')
  data, least, num_bad, is_over = '', parser.skipped, 0, False
  for block in itertools.chain(blocks, (b'',)):
    text = decoder.decode(block, not block)
    report.replaced_bytes += text.count('\ufffd')
    data += text
    if is_over or (block and len(data) < least):
      continue
    records, data = parser.parse(data)
    texts = []
    for record in records:
      try:
        texts.append(_text(record, key))
      except ValueError:
        num_bad += 1
    report.pages += len(texts)
    yield b''.join(texts)
    # A record that is not complete is tried again when it has twice the size.
    least = 2 * len(data)
    is_over |= len(data) > _MAX_RECORD_BYTES or not block
  if data:
    report.lost_bytes += len(data)
    report.problems.append(f'JSON damaged after {report.pages} objects')
  if num_bad:
    report.problems.append(f'{num_bad} objects skipped: no text as "{key}"')
  if parser.unread:
    report.problems.append(f'not read: what is in {" ".join(parser.unread)}')


@dataclasses.dataclass
class _Parser:
  """Parses records, or arrays of them, in the text of a file."""

  path: str
  skipped: int = 0  # characters up to the first record of an array
  array: str = ''  # its key, if it is in an object
  unread: list[str] = dataclasses.field(default_factory=list)  # other arrays

  def __post_init__(self):
    self._state = 'array' if self.skipped else 'values'

  def parse(self, data: str) -> tuple[list[Any], str]:
    """Returns records, and the text of one that is not whole."""
    records, position, self.skipped = [], self.skipped, 0
    while (position := _between(data, position)) < len(data):
      if self._state == 'end':
        raise errors.UserError(
          f'{self.path} has more than the one object whose {self.array} was '
          f'read; give --config.data.columns=text:{self.array}, or take the '
          "texts out, such as by jq '.. | .KEY? | strings' FILE > texts.json"
        )
      if data[position] == ']' and self._state != 'rest':
        position += 1
        if self.array:
          data, position, self._state = '{"":0' + data[position:], 0, 'rest'
        elif self._state == 'array':
          self._state = 'between'
      elif data[position] == '[' and self._state == 'between':
        position, self._state = position + 1, 'array'
      else:
        try:
          record, position = _DECODER.raw_decode(data, position)
        except (ValueError, RecursionError):
          break
        if self._state != 'rest':
          records.append(record)
          continue
        self._state = 'end'
        self.unread = [
          k for k, x in record.items() if x and isinstance(x, list)
        ]
    return records, data[position:]


def _table(head, path, declared):
  text = head.decode(errors='replace')
  first = text.lstrip().partition('\n')[0]
  is_table = declared or _TABLE.search(pathlib.Path(path).name)
  if not is_table and not _has_known(re.split('[,;\t|]', first)):
    return None
  from jaxemb.io import tables  # which takes a while, and few need

  layout, rows = tables.dialect(text)
  widths = {len(x) for x in rows}
  is_known = len(rows) > 1 and _has_known(rows[0])
  is_alike = len(widths) == 1 and widths != {1}
  if not is_known and (not is_table or not rows or len(rows[0]) == 1):
    return None
  if is_known and not (is_table or is_alike):
    return None
  is_number = declared[-1:].isdigit()
  has_header = is_known or not is_number or roles.is_header(ROLES, rows)
  columns = roles.assign(
    path, ROLES, rows[0], declared=declared, has_header=has_header
  )
  if not (is_known or declared):
    raise _no_header(path, rows)
  roles.require(path, ROLES, columns)
  return functools.partial(_rows, layout=layout, columns=columns, path=path)


def _no_header(path, rows):
  """The error for a table whose first row names no text."""
  columns = list(itertools.zip_longest(*rows, fillvalue=''))
  longest = max(columns, key=lambda x: sum(map(len, x)))
  number = 1 + columns.index(longest)
  return errors.UserError(
    f'{path} is a table whose first row, {" ".join(rows[0])[:60]!r}, has no '
    'name known as text; give a column by its name or its number, such as '
    f'--config.data.columns=text:{number} for that with {longest[-1][:40]!r}'
  )


def _has_known(cells: Iterable[str]) -> bool:
  return any(roles.simplified(x) in ROLES[0].known()[0] for x in cells)


def _reader(blocks, report, layout):
  """A `csv.reader` of some blocks."""

  def lines() -> Iterator[str]:
    for block in text_files.at_lines(blocks, _MAX_RECORD_BYTES):
      text = block.decode(errors='replace').replace('\0', '\ufffd')
      report.replaced_bytes += text.count('\ufffd')
      yield from io.StringIO(text, newline='')

  csv.field_size_limit(_MAX_RECORD_BYTES)
  return csv.reader(
    lines(),
    delimiter=layout.delimiter,
    quoting=csv.QUOTE_MINIMAL if layout.quote else csv.QUOTE_NONE,
    quotechar=layout.quote or None,
    doublequote=not layout.escapes,
    escapechar='\\' if layout.escapes else None,
    skipinitialspace=True,
  )


def _rows(
  blocks: Iterable[bytes],
  report: 'wiki.ReadReport',
  layout: Any,
  columns: roles.Columns,
  path: str,
) -> Iterator[bytes]:
  """Yields the cells of a column, in rows of a `tables.Layout`.

  Raises a `UserError` if more than one in a hundred rows has too few cells, or
  more than there are columns, and for a quote that is not closed.
  """
  report.form, report.columns = 'table', columns.named()
  rows = _reader(blocks, report, layout)
  column, num_columns = columns.by_role['text'][0], len(columns.names)
  texts, num_chars, first_bad, num_bad, num_headers = [], 0, '', 0, 0
  row, num_lines, is_open = [], 0, False
  for row in itertools.islice(filter(None, rows), columns.has_header, None):
    is_open = rows.line_num > num_lines + _MAX_ROW_LINES
    if is_open:
      break
    num_lines = rows.line_num
    if columns.has_header and len(row) > 1 and [*columns.names] == row:
      num_headers += 1
      continue
    if len(row) <= column or any(row[num_columns:]):
      first_bad = first_bad or f'line {rows.line_num}: {len(row)} cells'
      num_bad += 1
      continue
    texts.append(f'{row[column]}\n')
    num_chars += len(texts[-1])
    report.pages += 1
    if num_chars >= _BATCH_CHARS:
      yield ''.join(texts).encode(errors='replace')
      texts, num_chars = [], 0
  yield ''.join(texts).encode(errors='replace')
  if is_open or (row and row[-1].endswith('\n')):  # the end of the file
    raise errors.UserError(
      f'{path} has a quote that is not closed, in the row that ends in line '
      f'{rows.line_num}; mend it'
    )
  if num_bad > _MAX_BAD * (num_bad + report.pages):
    raise errors.UserError(
      f'{num_bad:,} of {num_bad + report.pages:,} rows of {path} have not '
      f'{num_columns} cells, as its first row has; the first is {first_bad}; '
      'mend the file, such as by quotes around texts'
    )
  if num_bad:
    report.problems.append(f'{num_bad} rows skipped: {first_bad}')
  if num_headers:
    report.problems.append(f'{num_headers} rows skipped: they are the header')
