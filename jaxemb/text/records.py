"""Text in JSON, an object or string after the other, or in a column of a table.

One key of the objects, or one column, holds the text: the one that
`data.columns` names, or one whose name is known.
"""

import codecs
import contextlib
import csv
import functools
import io
import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from jaxemb import errors
from jaxemb.io import roles, text_files

ROLES = (
  roles.Role('text', ('text reviewText content body',), is_required=True),
)

_START = re.compile(
  rb'\s*(?:\[\s*)?(?:\{\s*\}[\s,]*)*\{\s*"'
  rb'|\s*\[\s*"(?:[^"\\]|\\.)*"\s*(?:,\s*"|\]\s*\Z)'
)
_LINE = re.compile(rb'\s*[{"][^\r\n]*(?:[}"]\s*[\r\n]|\Z)')  # a whole record
_KEY = re.compile(r'[{,]?\s*("(?:[^"\\]|\\.)*")\s*:\s*')
_BETWEEN = re.compile(r'[\s,\[\]]*')
# An object up to an array of records, which are what it is about.
_WRAPPER = re.compile(
  r'\s*\{(?:\s*"[^"]*"\s*:\s*[-\w.]+\s*,)*\s*("[^"]*")\s*:\s*\[\s*(?=[{"])'
)
_TABLE = re.compile(r'\.(csv|tsv)(\.|$)', re.IGNORECASE)
_MAX_RECORD_BYTES = 1 << 28
_BATCH_CHARS = 1 << 20
_MIN_CHARS = 1 << 12  # by which an array is not one of many objects'
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


def _json(head, path, declared):
  start = _START.match(head)
  is_named = '.json' in pathlib.Path(path).name.lower()
  if not start and not (is_named and re.match(rb'\s*[\["{]', head)):
    return None
  text, skipped = head.decode(errors='ignore'), 0
  keys = _keys(text)
  wrapper = _WRAPPER.match(text)
  if wrapper and not any(keys.values()) and _is_whole_or_long(text):
    skipped = wrapper.end()
    keys = _keys(text[skipped:])
    if declared == f'text:{json.loads(wrapper[1])}' and '' in keys:
      declared = ''
  if not keys and start and not is_named:
    return None
  names = [x for x in keys if declared or keys[x]]
  if not names:
    raise errors.UserError(
      f'{path} is JSON without text in its first records'
      f'{", with " + " ".join(keys)[:80] if keys else ""}: write an object per '
      'line, such as {"text": "..."}, and name another key of its text as '
      'config.data.columns=text:KEY'
    )
  key = ''  # of strings
  if names != [''] or declared:
    columns = roles.assign(path, ROLES, names, declared=declared)
    key = names[roles.require(path, ROLES, columns).index('text')]
  if not skipped and _LINE.match(head):
    return functools.partial(_lines, key=key)
  return functools.partial(_stream, key=key, skipped=skipped)


def _is_whole_or_long(head: str) -> bool:
  with contextlib.suppress(ValueError, RecursionError):
    _DECODER.raw_decode(head)
    return True
  return len(head) > _MIN_CHARS


def _keys(head: str) -> dict[str, bool]:
  """Returns the keys of the first records, and whether they have text."""
  has_text, position = {}, 0
  while position < len(head):
    position = _BETWEEN.match(head, position).end()
    try:
      record, position = _DECODER.raw_decode(head, position)
    except (ValueError, RecursionError):
      record, position = _cut_record(head, position), len(head)
    for key, value in _as_object(record).items():
      has_text[key] = has_text.get(key, False) or isinstance(value, str)
  return has_text


def _cut_record(head: str, position: int) -> dict[str, Any]:
  """Returns the beginning of an object whose end is missing."""
  record = {}
  while match := _KEY.match(head, position):
    key, position = json.loads(match[1], strict=False), match.end()
    try:
      record[key], position = _DECODER.raw_decode(head, position)
    except (ValueError, RecursionError):
      record[key] = '' if head[position : position + 1] == '"' else None
      break
  return record


def _as_object(record: Any) -> dict[str, Any]:
  """Returns a record with its keys; a string has the key ''."""
  if isinstance(record, str):
    return {'': record}
  return record if isinstance(record, dict) else {}


def _text(record: Any, key: str) -> bytes:
  """Returns the text of a record with its line end; raises `ValueError`."""
  record = _as_object(record)
  text = record.get(key)
  if not isinstance(text, str):
    raise ValueError(key)
  # WikiExtractor escapes in JSON too; others mean what they write.
  if key == 'text' and 'title' in record:
    text = _ENTITY.sub(lambda match: _CHARS[match[1]], text)
  return text.encode(errors='replace') + b'\n'


def _lines(
  blocks: Iterable[bytes], report: text_files.ReadReport, key: str
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
  report: text_files.ReadReport,
  key: str,
  skipped: int = 0,
) -> Iterator[bytes]:
  """Yields the text of records in an array or over several lines.

  What follows a damaged record is lost. `skipped` characters are those of an
  object before the array of records, the rest of which is not read.
  """
  report.form, report.columns = 'JSON', {'text': key or 'all'}
  decoder = codecs.getincrementaldecoder('utf-8')('replace')
  between = re.compile(r'[\s,]*') if skipped else _BETWEEN
  data, least, num_bad, is_over, to_skip = '', skipped, 0, False, skipped
  for block in itertools.chain(blocks, (b'',)):
    text = decoder.decode(block, not block)
    report.replaced_bytes += text.count('\ufffd')
    if is_over and skipped:
      continue
    data += text
    if is_over or (block and len(data) < least):
      continue
    texts, position, to_skip = [], to_skip, 0
    while (position := between.match(data, position).end()) < len(data):
      if skipped and data[position] == ']':
        data, is_over = '', True
        break
      try:
        record, position = _DECODER.raw_decode(data, position)
      except (ValueError, RecursionError):
        break
      try:
        texts.append(_text(record, key))
      except ValueError:
        num_bad += 1
    report.pages += len(texts)
    yield b''.join(texts)
    data = data[position:]
    # A record that is not complete is tried again when it has twice the size.
    least = 2 * len(data)
    is_over |= len(data) > _MAX_RECORD_BYTES or not block
  if data:
    report.lost_bytes += len(data)
    report.problems.append(f'JSON damaged after {report.pages} objects')
  if num_bad:
    report.problems.append(f'{num_bad} objects skipped: no text as "{key}"')


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
  roles.require(path, ROLES, columns)
  return functools.partial(_rows, layout=layout, columns=columns)


def _has_known(cells: Iterable[str]) -> bool:
  return any(roles.simplified(x) in ROLES[0].known()[0] for x in cells)


def _rows(
  blocks: Iterable[bytes],
  report: text_files.ReadReport,
  layout: Any,
  columns: roles.Columns,
) -> Iterator[bytes]:
  """Yields the cells of a column, in rows of a `tables.Layout`."""
  report.form, report.columns = 'table', columns.named()

  def lines() -> Iterator[str]:
    for block in text_files.at_lines(blocks, _MAX_RECORD_BYTES):
      text = block.decode(errors='replace').replace('\0', '\ufffd')
      report.replaced_bytes += text.count('\ufffd')
      yield from io.StringIO(text, newline='')

  csv.field_size_limit(_MAX_RECORD_BYTES)
  rows = csv.reader(
    lines(),
    delimiter=layout.delimiter,
    quoting=csv.QUOTE_MINIMAL if layout.quote else csv.QUOTE_NONE,
    quotechar=layout.quote or None,
    doublequote=not layout.escapes,
    escapechar='\\' if layout.escapes else None,
    skipinitialspace=True,
  )
  column, num_short = columns.index('text'), 0
  texts, num_chars = [], 0
  for row in itertools.islice(filter(None, rows), columns.has_header, None):
    if len(row) <= column:
      num_short += 1
      continue
    texts.append(f'{row[column]}\n')
    num_chars += len(texts[-1])
    report.pages += 1
    if num_chars >= _BATCH_CHARS:
      yield ''.join(texts).encode(errors='replace')
      texts, num_chars = [], 0
  yield ''.join(texts).encode(errors='replace')
  if num_short:
    report.problems.append(f'{num_short} rows skipped: they are too short')
