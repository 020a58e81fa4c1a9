"""Text in JSON: an object per line, several over lines, or an array of them.

One key of the objects holds the text: the one that `data.columns` names, or one
whose name is known.
"""

import codecs
import functools
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

_START = re.compile(rb'\s*(\[\s*)?(?:\{\s*\}[\s,]*)*\{\s*"')
_LINE = re.compile(rb'\s*\{[^\r\n]*(?:\}\s*[\r\n]|\Z)')  # of one whole object
_KEY = re.compile(r'[{,]?\s*("(?:[^"\\]|\\.)*")\s*:\s*')
_BETWEEN = re.compile(r'[\s,\[\]]*')
_MAX_RECORD_BYTES = 1 << 28
_ENTITY = re.compile(r'&(lt|gt|quot|amp);')
_CHARS = {'lt': '<', 'gt': '>', 'quot': '"', 'amp': '&'}
_DECODER = json.JSONDecoder()


def extractor(
  head: bytes, path: pathlib.Path | str, declared: str
) -> text_files.Extract | None:
  """Returns what makes plain text of JSON; None if a file is something else.

  `declared` is `data.columns`. Raises a `UserError` if it names no key of the
  objects, or if it is empty and not exactly one has a known name.
  """
  is_named = '.json' in pathlib.Path(path).name.lower()
  start = _START.match(head)
  if not start and is_named and re.match(rb'\s*[\["{]', head):
    raise errors.UserError(
      f'{path} is JSON without objects: write an object per line, such as '
      '{"text": "..."}'
    )
  found = _keys(head.decode(errors='ignore')) if start else {}
  if not (found or (start and is_named)):
    return None
  names = [x for x in found if declared or found[x]]
  if not names:
    raise errors.UserError(
      f'{path} has no text in its first objects, with {" ".join(found)[:80]}: '
      'write an object per line, and name the key of its text as '
      'config.data.columns=text:KEY'
    )
  columns = roles.assign(str(path), ROLES, names, declared=declared)
  roles.require(str(path), ROLES, columns)
  key = names[columns.index('text')]
  is_lines = not start[1] and _LINE.match(head)
  return functools.partial(_lines if is_lines else _stream, key=key)


def _keys(head: str) -> dict[str, bool]:
  """Returns the keys of the first objects, and whether they have text."""
  found, position = {}, 0
  while position < len(head):
    position = _BETWEEN.match(head, position).end()
    try:
      record, position = _DECODER.raw_decode(head, position)
    except (ValueError, RecursionError):
      record, position = _cut_record(head, position), len(head)
    for key, value in record.items() if isinstance(record, dict) else ():
      found[key] = found.get(key, False) or isinstance(value, str)
  return found


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


def _lines(
  blocks: Iterable[bytes], report: text_files.ReadReport, key: str
) -> Iterator[bytes]:
  """Yields the text of one object per line; other lines are lost."""
  report.form, report.columns = 'JSON lines', {'text': key}
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
  blocks: Iterable[bytes], report: text_files.ReadReport, key: str
) -> Iterator[bytes]:
  """Yields the text of objects in an array or over several lines.

  What follows a damaged object is lost.
  """
  report.form, report.columns = 'JSON', {'text': key}
  decoder = codecs.getincrementaldecoder('utf-8')('replace')
  data, least, num_bad, is_damaged = '', 0, 0, False
  for block in itertools.chain(blocks, (b'',)):
    text = decoder.decode(block, not block)
    report.replaced_bytes += text.count('\ufffd')
    data += text
    if is_damaged or (block and len(data) < least):
      continue
    texts, position = [], 0
    while (position := _BETWEEN.match(data, position).end()) < len(data):
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
    # An object that is not complete is tried again when it has twice the size.
    least = 2 * len(data)
    is_damaged = len(data) > _MAX_RECORD_BYTES or not block
  if data:
    report.lost_bytes += len(data)
    report.problems.append(f'JSON damaged after {report.pages} objects')
  if num_bad:
    report.problems.append(f'{num_bad} objects skipped: no text as "{key}"')


def _text(record: Any, key: str) -> bytes:
  """Returns the text of an object with its line end; raises `ValueError`."""
  if not (isinstance(record, dict) and isinstance(record.get(key), str)):
    raise ValueError(key)
  text = record[key]
  # WikiExtractor escapes in JSON too; others mean what they write.
  if key == 'text' and 'title' in record:
    text = _ENTITY.sub(lambda match: _CHARS[match[1]], text)
  return text.encode(errors='replace') + b'\n'
