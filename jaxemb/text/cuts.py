"""Text cut into pieces, the unit in which a corpus is read and divided.

Pieces end at line ends wherever they can. A file of plain text is cut at places
that a process finds without reading what is before them, so that each process
of several reads its own pieces only; any other text is a stream that is cut as
it comes.
"""

import dataclasses
import errno
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

BOM = b'\xef\xbb\xbf'
_SPACES = (b' ', b'\t', b'\r', b'\v', b'\f')


class Piece(NamedTuple):
  """A stretch of text; all pieces of a source in a row are its text.

  Attributes:
    text: UTF-8; each line is a sentence, paragraph or document. Bytes that
      are not UTF-8 stay as they are.
    ends_line: False when the last line goes on in the next piece.
  """

  text: bytes
  ends_line: bool
  number: int = 0  # in its source


# Whether this process reads the piece of a source of that number.
Wanted = Callable[[int], bool]


def all_pieces(number: int) -> bool:
  """Wants every piece."""
  del number
  return True


@dataclasses.dataclass
class ReadReport:
  """What reading one source has met so far; complete when it ends.

  Attributes:
    source_bytes: Bytes of the file read (compressed, if it is).
    text_bytes: Bytes of text handed out.
    pages: Articles or documents used; 0 for plain text.
    redirects: Pages skipped because they only point to another.
    other_namespace_pages: Pages skipped because they are not articles.
    lost_bytes: Bytes of markup that could not be used.
    replaced_bytes: Bytes replaced in XML: not UTF-8 or not allowed there.
    problems: One line each about what was lost, naming the file.
    sha256: Of the file as it is on disk; '' until the end was reached.
  """

  source_bytes: int = 0
  text_bytes: int = 0
  pages: int = 0
  redirects: int = 0
  other_namespace_pages: int = 0
  lost_bytes: int = 0
  replaced_bytes: int = 0
  problems: list[str] = dataclasses.field(default_factory=list)
  sha256: str = ''


def _white_space_end(data: bytes, start: int, limit: int) -> int:
  """Just behind the last white space of data[start:limit]; 0 if none."""
  return max(data.rfind(space, start, limit) for space in _SPACES) + 1


def stream(
  blocks: Iterable[bytes],
  piece_bytes: int,
  path: pathlib.Path,
  report: ReadReport,
) -> Iterator[Piece]:
  """Cuts a stream of text into pieces, at line ends wherever it can.

  Args:
    blocks: the text.
    piece_bytes: most bytes of a piece; a longer line is cut at white space.
    path: of the file, for the report.
    report: told of words that were cut.
  """
  if piece_bytes < 4:
    raise ValueError(f'piece_bytes is {piece_bytes}: less than a character')
  parts: list[bytes] = []
  num_bytes = 0
  splits_words = False
  for block in blocks:
    parts.append(block)
    num_bytes += len(block)
    if num_bytes <= piece_bytes:
      continue
    data = b''.join(parts)
    start = 0
    while (limit := start + piece_bytes) < num_bytes:
      end = data.rfind(b'\n', start, limit) + 1
      ends_line = end > 0
      if not end:
        end = _white_space_end(data, start, limit)
      if not end:
        splits_words = True
        end = _character_end(data, limit)
      yield Piece(data[start:end], ends_line)
      start = end
    parts = [data[start:]]
    num_bytes -= start
  if num_bytes:
    yield Piece(b''.join(parts), True)
  if splits_words:
    report.problems.append(
      f'{path}: no white space in {piece_bytes} bytes; cut inside a word'
    )


def ranges(
  path: pathlib.Path,
  size_bytes: int,
  piece_bytes: int,
  report: ReadReport,
  wanted: Wanted,
) -> Iterator[Piece]:
  """Pieces of plain text, each found without reading those before it.

  Piece j ends at the last line end of the j-th of equal ranges, each half a
  piece long, so that no piece is longer than `piece_bytes`.

  Args:
    path: of the file.
    size_bytes: its size.
    piece_bytes: most bytes of a piece; a longer line is cut at white space.
    report: kept up to date while reading.
    wanted: which pieces to hand out; the others are not read.
  """
  step = max(4, piece_bytes // 2)
  digest = hashlib.sha256()
  num_pieces = -(-size_bytes // step)
  is_whole, splits_words = True, False
  with open(path, 'rb') as file:
    for number in range(num_pieces):
      if not wanted(number):
        is_whole = False
        continue
      start, _, _ = _range_end(file, number * step, step, size_bytes)
      end, ends_line, splits = _range_end(
        file, (number + 1) * step, step, size_bytes
      )
      splits_words |= splits
      file.seek(start)
      data = file.read(end - start)
      digest.update(data)
      report.source_bytes += len(data)
      if not start:
        data = data.removeprefix(BOM)
      if data:
        report.text_bytes += len(data)
        yield Piece(data, ends_line, number)
  if is_whole:
    report.sha256 = digest.hexdigest()
  if splits_words:
    report.problems.append(
      f'{path}: no white space in {piece_bytes} bytes; cut inside a word'
    )


def _range_end(
  file: BinaryIO, limit: int, step: int, size_bytes: int
) -> tuple[int, bool, bool]:
  """Where the range before `limit` ends, at a line, or inside a word."""
  if limit >= size_bytes:
    return size_bytes, True, False
  first = max(0, limit - step)
  file.seek(first)
  data = file.read(limit + 1 - first)
  if len(data) <= limit - first:
    raise OSError(errno.EIO, 'it became shorter while it was read')
  size = limit - first
  if end := data.rfind(b'\n', 0, size) + 1:
    return first + end, True, False
  if end := _white_space_end(data, 0, size):
    return first + end, False, False
  return first + _character_end(data, size), False, limit > 0


def _character_end(data: bytes, limit: int) -> int:
  """The last place up to `limit` where a character of UTF-8 begins."""
  end = limit
  while end > max(0, limit - 3) and 0x80 <= data[end] < 0xC0:
    end -= 1
  return end
