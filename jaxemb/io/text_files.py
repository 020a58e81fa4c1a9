"""Files of text as a stream of UTF-8 pieces.

A file, a folder or a glob; plain or packed. Other formats than plain
text have an extractor, a generator of byte blocks; one function cuts them into
pieces at line ends. Another encoding than UTF-8 is decoded on the way.

Uncompressed plain text is divisible: a piece is found without reading what is
before it, so that each of several processes reads only its own.
"""

import codecs
import collections
import concurrent.futures
import contextlib
import dataclasses
import errno
import glob
import hashlib
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxemb import errors
from jaxemb.data import base
from jaxemb.io import inputs
from jaxemb.storage import packed

BLOCK_BYTES = 1 << 20  # of reading and of batches of pages
_HEAD_BYTES = 1 << 16  # by which a format is recognised
_BOM = b'\xef\xbb\xbf'
_CONTROLS = bytes({*range(32), 127} - set(b'\t\n\v\f\r\x1b'))
UTF_8 = 'utf-8'
MAX_INVALID = 0.01  # share of a text's bytes: with more it is not UTF-8
# Encodings of scripts other than Latin: of decoded letters beyond ASCII, the
# share that lies in a range. Chinese, which takes in any bytes, comes last.
_SCRIPTS = (
  ('euc_kr', '\uac00', '\ud7a3', 0.8),
  ('shift_jis', '\u3041', '\u30fe', 0.3),
  ('euc_jp', '\u3041', '\u30fe', 0.3),
  ('cp1251', '\u0430', '\u044f', 0.8),
  ('koi8_r', '\u0430', '\u044f', 0.8),
  ('gb18030', '\u4e00', '\u9fff', 0.7),
)
_LINE_ENDS = b'\n', b'\r'
# White space other than line ends, at which a long line may be cut.
_SPACES = b' ', b'\t', b'\v', b'\f'


@dataclasses.dataclass
class ReadReport:
  """Counts and problems of reading one file; complete when it ends."""

  source_bytes: int = 0  # of the file read (compressed, if it is)
  replaced_bytes: int = 0  # not in the encoding, or not allowed in the format
  recoded_bytes: int = 0  # of text that was in another encoding than UTF-8
  problems: list[str] = dataclasses.field(default_factory=list)  # one line each


# Makes plain text of blocks of another format.
Extract = Callable[[Iterable[bytes], Any], Iterable[bytes]]
# Chooses it by the first bytes of a file; None = plain text.
Extractor = Callable[[bytes], Extract | None]


class Source(NamedTuple):
  """A file of the corpus."""

  path: pathlib.Path
  size_bytes: int  # on disk


class Piece(NamedTuple):
  """A stretch of text; all pieces of a source in a row are its text."""

  text: bytes  # UTF-8, but invalid bytes stay; a paragraph or document a line
  ends_line: bool  # False when the last line continues in the next piece
  number: int  # in its source


def find(path: str) -> list[Source]:
  """Returns the files at a path, sorted.

  A folder is searched recursively, without hidden files; in a glob ** stands
  for folders of any depth. Raises a `UserError` if nothing is there, or nothing
  but empty files.
  """
  expanded = os.path.expanduser(path)
  is_there = os.path.lexists(expanded)
  paths = [expanded] if is_there else glob.glob(expanded, recursive=True)
  if not paths:
    what = 'matches no file' if glob.has_magic(path) else 'does not exist'
    raise errors.UserError(
      f'{path} {what}: set config.data.path to a file, a folder or a glob'
    )
  try:
    files = sorted({pathlib.Path(x) for path in paths for x in _files(path)})
    sources = [Source(file, file.stat().st_size) for file in files]
  except OSError as error:
    remedy = 'check permissions'
    if isinstance(error, FileNotFoundError):
      remedy = 'mend or remove what leads there'
    raise errors.UserError(
      f'{error.filename} cannot be read ({error.strerror}): {remedy}'
    ) from error
  if not any(source.size_bytes for source in sources):
    what = 'only empty files' if sources else 'no files'
    raise errors.UserError(
      f'{path} holds no text ({what}): set config.data.path to where it is'
    )
  return sources


def without_splits(
  path: str, sources: Sequence[Source]
) -> tuple[list[Source], list[Source]]:
  """Returns the files of a folder to train on, and those that it holds out.

  Files and folders called valid or test are held out where there are others
  with the same name but for `train`. Files of a glob all belong to the text.
  """
  if not os.path.isdir(os.path.expanduser(path)):
    return list(sources), []
  # Of each file, its levels that name a split: (what they share, split).
  levels = [
    [
      ((level.parent, inputs.without_split(level.name)), split)
      for level in (source.path, *source.path.parents)
      if (split := inputs.split_of(level.name))
    ]
    for source in sources
  ]
  trained = {key for x in levels for key, split in x if split == 'train'}
  used: list[Source] = []
  held_out: list[Source] = []
  for source, named in zip(sources, levels, strict=True):
    is_held_out = any(x != 'train' and key in trained for key, x in named)
    (held_out if is_held_out else used).append(source)
  return used, held_out


def _files(path: str) -> Iterator[str]:
  """Yields regular files at or below a path, through links, once each."""

  def is_file(path):
    if os.path.islink(path) and not os.path.exists(path):
      raise errors.UserError(
        f'{path} is a link to {os.readlink(path)}, which is not there: mend or '
        'remove the link'
      )
    return os.path.isfile(path)

  def fail(error):
    raise error

  if not os.path.isdir(path):
    if not is_file(path):
      raise errors.UserError(
        f'{path} is not a regular file: the corpus is read more than once, '
        'so write it to a file first'
      )
    yield path
    return
  seen = set()
  for folder, folders, names in os.walk(path, onerror=fail, followlinks=True):
    real = os.path.realpath(folder)
    if real in seen:
      folders.clear()
      continue
    seen.add(real)
    folders[:] = sorted(x for x in folders if x[0] != '.')
    visible = (os.path.join(folder, x) for x in names if x[0] != '.')
    yield from filter(is_file, visible)


def pieces(
  source: Source,
  report: ReadReport,
  piece_bytes: int = 8 << 20,
  wanted: Callable[[int], bool] = lambda number: True,
  encoding: str = UTF_8,
  extractor: Extractor = lambda head: None,
) -> Iterator[Piece]:
  """Yields the text of one file in order; updates the report.

  No piece has more than `piece_bytes`: a longer line is cut at white space.
  Pieces whose number is not `wanted` are left out; in divisible files they are
  not even read. Raises a `UserError` if the file cannot be read, is not text,
  or its compressed data are damaged.
  """
  splits_words = False
  try:
    if is_divisible(source, encoding, extractor):
      cut = _ranges(source, piece_bytes, report, wanted=wanted)
    else:
      cut = _streamed(
        source,
        piece_bytes,
        report,
        encoding=encoding,
        extractor=extractor,
      )
    for piece in cut:
      splits_words |= not (piece.ends_line or piece.text[-1:].isspace())
      if wanted(piece.number):
        yield piece
  except OSError as error:
    raise errors.UserError(unreadable(source.path, error)) from error
  except UnicodeError as error:  # without the mark that tells the byte order
    raise errors.UserError(
      f'{source.path} is not in {encoding} ({errors.one_line(error)}); give '
      'another --config.data.encoding, such as utf-16-le'
    ) from error
  if splits_words:
    report.problems.append(
      f'no white space in {piece_bytes} bytes; cut inside a word'
    )
  report.problems = [f'{source.path}: {x}' for x in report.problems]


def unreadable(path: pathlib.Path, error: OSError) -> str:
  """Returns a message about a file."""
  reason = getattr(error, 'strerror', None) or error
  return (
    f'{path} cannot be read or unpacked ({reason}): check its permissions, or '
    'copy or download it again'
  )


def is_divisible(
  source: Source,
  encoding: str = UTF_8,
  extractor: Extractor = lambda head: None,
) -> bool:
  """Whether a range of the file can be read without what is before it."""
  if not source.size_bytes or encoding != UTF_8:
    return False
  with packed.File(source.path) as file:
    if file.packing:
      return False
    head = file.read(_HEAD_BYTES)
  _check_text(head, source.path)
  return extractor(head.removeprefix(_BOM)) is None


def file_sha256(path: pathlib.Path) -> str:
  """Returns the SHA-256 of a file's bytes on disk, in hexadecimal."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def invalid(text: bytes | bytearray) -> tuple[int, bytes]:
  """Returns how many bytes are not UTF-8, and some from the first one on."""
  try:
    if not text.isascii():  # by far the quickest to tell
      text.decode()
  except UnicodeDecodeError as error:
    num = len(text) - len(text.decode(errors='ignore').encode())
    return num, bytes(text[error.start : error.start + (1 << 16)])
  return 0, b''


def guess_encoding(data: bytes) -> str:
  """Guesses the encoding of text, which may end inside a letter.

  Text that is not UTF-8 is Western if it has a few accents among ASCII letters;
  otherwise the first encoding is taken whose decoded text is in its script.
  """
  with contextlib.suppress(UnicodeDecodeError):
    codecs.getincrementaldecoder(UTF_8)().decode(data)
    return UTF_8
  num_high = len(data) - len(data.decode('ascii', 'ignore'))
  num_letters = len(data.translate(None, bytes(range(33))))
  if num_high > num_letters / 3:
    for encoding, first, last, share in _SCRIPTS:
      text = data.decode(encoding, 'replace')
      high = [c for c in text if c > '\x7f']
      num = sum(first <= c <= last for c in high)
      if num > share * len(high):
        return encoding
  return 'cp1252'


def map_ahead(
  pool: concurrent.futures.Executor,
  function: Callable,
  items: Iterable,
  depth: int,
) -> Iterator[Any]:
  """Yields `function(*item)` in order, computed up to `depth` items ahead."""
  jobs: collections.deque[concurrent.futures.Future[Any]] = collections.deque()
  for item in items:
    jobs.append(pool.submit(function, *item))
    if len(jobs) > depth:
      yield jobs.popleft().result()
  while jobs:
    yield jobs.popleft().result()


def _streamed(
  source: Source,
  piece_bytes: int,
  report: ReadReport,
  encoding: str,
  extractor: Extractor,
) -> Iterator[Piece]:
  """Yields all pieces of a file that must be read from its start."""
  with packed.File(source.path) as file:
    blocks = blocks_of(file, report)
    if encoding != UTF_8:
      blocks = _recoded(blocks, encoding, report)
    with contextlib.closing(base.prefetch(blocks, 1)) as blocks:
      head = b''
      while len(head) < _HEAD_BYTES and (block := next(blocks, b'')):
        head += block
      if not head:
        report.problems.append('empty')
      _check_text(head[:_HEAD_BYTES], source.path)
      text: Iterable[bytes] = itertools.chain(
        (head.removeprefix(_BOM),), blocks
      )
      if extract := extractor(head[:_HEAD_BYTES].removeprefix(_BOM)):
        text = extract(text, report)
      yield from _cut_stream(text, piece_bytes)


def blocks_of(file: packed.File, report: ReadReport) -> Iterator[bytes]:
  """Yields blocks of a file, unpacked; counts its bytes on disk."""
  while block := file.read(BLOCK_BYTES):
    report.source_bytes = file.read_bytes
    yield block
  if file.num_ignored:
    report.problems.append(
      f'{file.num_ignored} bytes after its compressed data ignored'
    )


def _recoded(
  blocks: Iterable[bytes], encoding: str, report: ReadReport
) -> Iterator[bytes]:
  """Yields blocks in UTF-8; counts and replaces what does not fit."""
  decoder = codecs.getincrementaldecoder(encoding)('replace')
  for block in itertools.chain(blocks, (b'',)):
    text = decoder.decode(block, not block)
    report.replaced_bytes += text.count('\ufffd')
    recoded = text.encode('utf-8', 'replace')
    report.recoded_bytes += len(recoded)
    yield recoded


def _is_text(head: bytes) -> bool:
  num_controls = len(head) - len(head.translate(None, _CONTROLS))
  return b'\0' not in head and num_controls <= len(head) // 10


def _check_text(head: bytes, path: pathlib.Path) -> None:
  """Refuses a file that does not begin as text in UTF-8 does."""
  if head.startswith((b'\xff\xfe', b'\xfe\xff')):
    raise errors.UserError(
      f'{path} is UTF-16 or UTF-32: convert it to UTF-8 '
      '(iconv -f UTF-16 -t UTF-8), or give --config.data.encoding=utf-16'
    )
  if _is_text(head):
    return
  raise errors.UserError(
    f'{path} is binary, not text: point config.data.path at text in UTF-8'
  )


def _cut_stream(blocks: Iterable[bytes], piece_bytes: int) -> Iterator[Piece]:
  """Cuts a stream of text into pieces, at line ends wherever it can."""
  data, numbers = bytearray(), itertools.count()
  for block in blocks:
    data += block
    while len(data) > piece_bytes:
      text = bytes(memoryview(data)[: _cut(data, piece_bytes)])
      yield Piece(text, text.endswith(_LINE_ENDS), next(numbers))
      del data[: len(text)]
  if data:
    yield Piece(bytes(data), True, next(numbers))


def _ranges(
  source: Source,
  piece_bytes: int,
  report: ReadReport,
  wanted: Callable[[int], bool],
) -> Iterator[Piece]:
  """Yields wanted pieces of plain text without reading those before.

  Piece j ends at the last line end of the j-th range of `piece_bytes` / 2, so
  that no piece is longer than `piece_bytes`.
  """
  step, size = max(4, piece_bytes // 2), source.size_bytes
  with open(source.path, 'rb') as file:
    for number in filter(wanted, range(-(-size // step))):
      before = step if number else 0  # of the range in which it begins
      offset = number * step - before
      is_last = offset + before + step >= size
      num_bytes = size - offset if is_last else before + step + 1
      file.seek(offset)
      data = file.read(num_bytes)
      if len(data) < num_bytes:
        raise OSError(errno.EIO, 'it became shorter while it was read')
      start = _cut(data, step) if number else 0
      end = num_bytes if is_last else before + _cut(data[before:], step)
      data = data[start:end]
      report.source_bytes += len(data)
      if not number:
        data = data.removeprefix(_BOM)
      if data:
        yield Piece(data, is_last or data.endswith(_LINE_ENDS), number)


def _cut(data: bytes | bytearray, limit: int) -> int:
  """Returns where to end a piece of data[:limit].

  After the last line end, else the last white space, else the last whole UTF-8
  character.
  """
  if end := max(data.rfind(sign, 0, limit) for sign in _LINE_ENDS) + 1:
    return end + (data[end - 1 : end + 1] == b'\r\n')
  if end := max(data.rfind(space, 0, limit) for space in _SPACES) + 1:
    return end
  end = limit
  while end > limit - 3 and 0x80 <= data[end] < 0xC0:
    end -= 1
  return end


def at_lines(blocks: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
  """Yields the same bytes in blocks that end with a line, or in a longer one.

  Lines of more than `max_bytes` are cut at white space.
  """
  rest = b''
  for block in blocks:
    data = rest + block
    end = max(data.rfind(sign) for sign in _LINE_ENDS) + 1
    if not end and len(data) > max_bytes:
      end = max(data.rfind(space) for space in _SPACES) + 1 or len(data)
    rest = data[end:]
    if end:
      yield data[:end]
  if rest:
    yield rest
