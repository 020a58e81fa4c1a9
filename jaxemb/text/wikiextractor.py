"""WikiExtractor's two output formats, <doc> elements and JSON lines.

Its <doc> files are plain text but for the few lines around each article, so
they are stripped by whole blocks.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_MAX_LINE_BYTES = 1 << 23
_MAX_RECORD_BYTES = 1 << 28
_SPACES = (b' ', b'\t', b'\r', b'\v', b'\f')
_JSON_HEAD = re.compile(rb'\{\s*(?=")[^\n]*?"text"\s*:\s*"')
# What stands before (?<=...) is found first, which is faster than ^.
_OPEN_DOC = re.compile(rb'<(?<=\n<)doc [^\n]*\n')
_CLOSE_DOC = re.compile(rb'<(?<=\n<)/doc>\r?(?:\n|\Z)')
_ENTITY = re.compile(rb'&(lt|gt|quot|amp);')
_CHARS = {b'lt': b'<', b'gt': b'>', b'quot': b'"', b'amp': b'&'}


class Extract(NamedTuple):
  """Text of some articles.

  Attributes:
    text: UTF-8 with line ends.
    num_docs: Articles that begin in it.
    num_bad: Lines dropped because they were unusable.
    lost_bytes: The size of those.
  """

  text: bytes
  num_docs: int
  num_bad: int = 0
  lost_bytes: int = 0


def is_docs(head: bytes) -> bool:
  """Whether a file that begins like this holds <doc> elements."""
  return head.lstrip().startswith(b'<doc ')


def is_json(head: bytes) -> bool:
  """Whether a file that begins like this holds JSON lines with a "text"."""
  return bool(_JSON_HEAD.match(head.lstrip()))


def docs(blocks: Iterable[bytes]) -> Iterator[Extract]:
  """The text of <doc> elements, without their tags and with plain < > " &."""
  opens_line = True
  for block in _at_lines(blocks):
    # A line break in front lets the first line match like all others.
    data = b'\n' + block if opens_line else block
    data, num_docs = _OPEN_DOC.subn(b'', data)
    data = _unescape(_CLOSE_DOC.sub(b'', data))
    yield Extract(data[1:] if opens_line else data, num_docs)
    opens_line = block.endswith(b'\n')


def json_lines(blocks: Iterable[bytes]) -> Iterator[Extract]:
  """The "text" of one JSON object per line; lines without it are lost."""
  rest = b''
  is_cut = False  # whether `rest` goes on a line too long to be kept
  for block in itertools.chain(blocks, (b'\n',)):
    *lines, rest = (rest + block).split(b'\n')
    num_bad = lost_bytes = 0
    texts = []
    for line in lines:
      text = None if is_cut else _text_of(line)
      is_cut = False
      if text is not None:
        texts += (text, b'\n')
      elif line.strip():
        num_bad += 1
        lost_bytes += len(line)
    if len(rest) > _MAX_RECORD_BYTES:
      lost_bytes += len(rest)
      rest, is_cut = b'', True
    yield Extract(b''.join(texts), len(texts) // 2, num_bad, lost_bytes)


def _text_of(line: bytes) -> bytes | None:
  try:
    record = json.loads(line)
    text = record['text'].encode(errors='replace')
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
    return None
  # WikiExtractor escapes in JSON too; other programs mean what they write.
  return _unescape(text) if 'title' in record else text


def _unescape(data: bytes) -> bytes:
  return _ENTITY.sub(lambda match: _CHARS[match[1]], data)


def _at_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
  """The same bytes in blocks that end at a line end, or within a long line."""
  rest = b''
  for block in blocks:
    data = rest + block
    end = data.rfind(b'\n') + 1
    if not end and len(data) > _MAX_LINE_BYTES:
      end = max(data.rfind(space) for space in _SPACES) + 1 or len(data)
    rest = data[end:]
    if end:
      yield data[:end]
  if rest:
    yield rest
