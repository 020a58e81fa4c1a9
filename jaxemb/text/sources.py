"""The text of a corpus: any files become a stream of UTF-8 pieces.

Plain text, WikiExtractor output (<doc> or JSON lines) and MediaWiki XML dumps,
each a file, in a folder or by glob, and with .gz .bz2 .xz .zst. Every format is
a generator of byte blocks, and one function cuts any of them into pieces at
line ends; nothing but JSON is ever touched line by line.

Uncompressed plain text is divisible: the ends of its pieces are found without
reading what is before them, so that each of several processes reads its own
pieces only.
"""

import bz2
import collections
import concurrent.futures
import contextlib
import dataclasses
import errno
import glob
import gzip
import hashlib
import itertools
import lzma
import os
import pathlib
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import zstandard

from jaxemb import errors
from jaxemb.text import wiki

BLOCK_BYTES = 1 << 20  # of reading and of batches of pages
_HEAD_BYTES = 1 << 16  # by which a format is recognised
_MAX_WAITING_BATCHES = 16
_MAX_DAMAGES = 10  # reported one by one
_BOM = b'\xef\xbb\xbf'
_CONTROLS = bytes({*range(32), 127} - set(b'\t\n\v\f\r\x1b'))
_SUFFIXES = {
  b'\x1f\x8b': '.gz',
  b'BZh': '.bz2',
  b'\xfd7zXZ\x00': '.xz',
  b'\x28\xb5\x2f\xfd': '.zst',
}
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


class Source(NamedTuple):
  """A file of the corpus."""

  path: pathlib.Path
  size_bytes: int  # on disk
  mtime_ns: int


class Piece(NamedTuple):
  """A stretch of text; all pieces of a source in a row are its text."""

  text: bytes  # UTF-8, but invalid bytes stay; a paragraph or document a line
  ends_line: bool  # False when the last line continues in the next piece
  number: int = 0  # in its source
  splits_word: bool = False  # the last word continues in the next piece


@dataclasses.dataclass
class ReadReport:
  """What reading one source has met so far; complete when it ends."""

  source_bytes: int = 0  # of the file read (compressed, if it is)
  text_bytes: int = 0  # of text handed out
  pages: int = 0  # articles or documents used; 0 for plain text
  redirects: int = 0  # pages skipped because they only point to another
  other_namespace_pages: int = 0  # pages skipped: they are not articles
  lost_bytes: int = 0  # of markup that could not be used
  replaced_bytes: int = 0  # in XML: not UTF-8 or not allowed there
  problems: list[str] = dataclasses.field(default_factory=list)  # one line each
  sha256: str = ''  # of the file on disk; '' until its end was reached


def find(path: str) -> list[Source]:
  """The files at a path, sorted.

  Those in a folder, searched recursively without what is hidden, or those that
  match a glob, in which ** stands for folders of any depth.

  Raises:
    UserError: nothing is there, or nothing but empty files.
  """
  expanded = os.path.expanduser(path)
  if os.path.exists(expanded):
    paths = [expanded]
    if os.path.isfile(expanded) and os.path.getsize(expanded) == 0:
      raise errors.UserError(f'{path} is empty: give a file with text in it')
  else:
    paths = glob.glob(expanded, recursive=True)
    if not paths:
      what = 'matches no file' if glob.has_magic(path) else 'does not exist'
      raise errors.UserError(
        f'{path} {what}: set config.data.path to a file, a folder or a glob'
      )
  try:
    names = {name for path_ in paths for name in _files(path_)}
    sources = []
    for file in sorted(map(pathlib.Path, names)):
      status = file.stat()
      sources.append(Source(file, status.st_size, status.st_mtime_ns))
  except OSError as error:
    raise errors.UserError(
      f'{error.filename} cannot be read ({error.strerror}): check permissions'
    ) from error
  if not any(source.size_bytes for source in sources):
    what = 'only empty files' if sources else 'no files'
    raise errors.UserError(
      f'{path} holds {what}: set config.data.path to where the text is'
    )
  return sources


def _raise(error: OSError) -> None:
  raise error


def _files(path: str) -> Iterator[str]:
  """Regular files at or below a path, through links, each folder once."""
  if not os.path.isdir(path):
    if not stat.S_ISREG(os.stat(path).st_mode):
      raise errors.UserError(
        f'{path} is not a regular file: the corpus is read more than once, '
        'so write it to a file first'
      )
    yield path
    return
  seen = set()
  walk = os.walk(path, onerror=_raise, followlinks=True)
  for folder, folders, names in walk:
    if (real := os.path.realpath(folder)) in seen:
      folders.clear()
      continue
    seen.add(real)
    folders[:] = sorted(name for name in folders if name[0] != '.')
    for name in names:
      file = os.path.join(folder, name)
      if name[0] != '.' and os.path.isfile(file):
        yield file


def pieces(
  source: Source,
  report: ReadReport,
  piece_bytes: int = 8 << 20,
  pool: concurrent.futures.Executor | None = None,
  wanted: Callable[[int], bool] = lambda number: True,
) -> Iterator[Piece]:
  """The text of one file, whatever its format, in order; updates the report.

  No piece has more than `piece_bytes`: a longer line is cut at white space.
  `pool` strips wikitext, and changes nothing else. Pieces that are not wanted
  are left out, by their numbers; only of divisible files are they not read.

  Raises:
    UserError: the file cannot be read, is not text, or its compressed data
      are cut or damaged.
  """
  splits_words = False
  try:
    if is_divisible(source):
      cut = _ranges(source, piece_bytes, report, wanted)
    else:
      cut = _streamed(source, piece_bytes, report, pool)
    for piece in cut:
      splits_words |= piece.splits_word
      if wanted(piece.number):
        report.text_bytes += len(piece.text)
        yield piece
    if splits_words:
      report.problems.append(
        f'{source.path}: no white space in {piece_bytes} bytes; cut inside a '
        'word'
      )
  except _DAMAGE as error:
    raise errors.UserError(
      f'{source.path} is cut or damaged ({error}): copy or download it again'
    ) from error
  except OSError as error:  # also what bz2 and gzip raise for damaged data
    raise errors.UserError(
      f'{source.path} cannot be read ({error.strerror or error}): check its '
      'permissions, or copy or download it again'
    ) from error


def is_divisible(source: Source) -> bool:
  """Whether a range of the file can be read without what is before it."""
  if not source.size_bytes or source.path.suffix.lower() in _SUFFIXES.values():
    return False
  with open(source.path, 'rb') as file:
    head = file.read(_HEAD_BYTES)
  _refuse_binary(head, source.path)
  return wiki.file_format(head.removeprefix(_BOM)) == 'plain'


def file_sha256(path: pathlib.Path) -> str:
  """SHA-256 of a file's bytes on disk, in hexadecimal."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


class _HashedFile:
  """A file that counts and hashes what is read from it."""

  def __init__(self, file: BinaryIO):
    self.read_bytes = 0
    self.sha256 = hashlib.sha256()
    self._file = file

  def read(self, num_bytes: int = -1) -> bytes:
    block = self._file.read(num_bytes)
    self.sha256.update(block)
    self.read_bytes += len(block)
    return block


def _streamed(
  source: Source,
  piece_bytes: int,
  report: ReadReport,
  pool: concurrent.futures.Executor | None,
) -> Iterator[Piece]:
  """All pieces of a file that has to be read from its start."""
  with open(source.path, 'rb', buffering=0) as opened:
    file = _HashedFile(opened)
    with contextlib.closing(_ahead(_unpack(file, source))) as blocks:
      text = _text(blocks, source.path, report, pool)
      for number, piece in enumerate(_cut_stream(text, piece_bytes)):
        report.source_bytes = file.read_bytes
        yield piece._replace(number=number)
    num_used = file.read_bytes
    while file.read(BLOCK_BYTES):
      pass
    report.source_bytes = file.read_bytes
    report.sha256 = file.sha256.hexdigest()
    if num_left := file.read_bytes - num_used:
      report.problems.append(
        f'{source.path}: {num_left} bytes after its compressed data ignored'
      )


def _unpack(file: _HashedFile, source: Source) -> Iterator[bytes]:
  """Blocks of a file, decompressed if its suffix says so.

  Every stream of a .gz, .bz2 or .xz file and every frame of a .zst file.
  Raises `_DAMAGE` or OSError when the data are cut or damaged.
  """
  suffix = source.path.suffix.lower()
  if not source.size_bytes:
    return iter(())
  if suffix == '.zst':
    return _unpack_zstd(file)
  openers = {
    '.gz': lambda: gzip.GzipFile(fileobj=file, mode='rb'),
    '.bz2': lambda: bz2.BZ2File(file),
    '.xz': lambda: lzma.LZMAFile(file),
  }
  reader = openers[suffix]() if suffix in openers else file
  return iter(lambda: reader.read(BLOCK_BYTES), b'')


def _unpack_zstd(file: _HashedFile) -> Iterator[bytes]:
  """Like the library's reader, but notices when the last frame is cut."""
  frame = None
  out: list[bytes] = []
  for block in iter(lambda: file.read(BLOCK_BYTES), b''):
    # Small steps, because a step's output has no limit but its input.
    for start in range(0, len(block), 4096):
      data = block[start : start + 4096]
      while data:
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        out.append(frame.decompress(data))
        data = frame.unused_data
        if frame.eof:
          frame = None
      if sum(map(len, out)) >= BLOCK_BYTES:
        yield b''.join(out)
        out.clear()
  if frame:
    raise EOFError('it ends in the middle of a frame')
  yield b''.join(out)


def _ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
  """Fetches the next block in a thread while the last one is worked on."""
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    future = thread.submit(next, blocks, None)
    while (block := future.result()) is not None:
      future = thread.submit(next, blocks, None)
      yield block


def _refuse_binary(head: bytes, path: pathlib.Path) -> None:
  if head.startswith((b'\xff\xfe', b'\xfe\xff')):
    raise errors.UserError(
      f'{path} is UTF-16 or UTF-32: convert it to UTF-8 '
      '(iconv -f UTF-16 -t UTF-8)'
    )
  num_controls = len(head) - len(head.translate(None, _CONTROLS))
  if b'\0' not in head and num_controls <= len(head) // 10:
    return
  remedy = 'point config.data.path at text in UTF-8'
  for magic, suffix in _SUFFIXES.items():
    if head.startswith(magic):
      remedy = f'it looks compressed: give it the suffix {suffix}'
  if head[257:262] == b'ustar':
    remedy = 'it is a tar archive: unpack it first'
  raise errors.UserError(f'{path} is binary, not text: {remedy}')


def _text(
  blocks: Iterator[bytes],
  path: pathlib.Path,
  report: ReadReport,
  pool: concurrent.futures.Executor | None,
) -> Iterator[bytes]:
  """Recognises the format by the first bytes and hands out its text."""
  head = b''
  while len(head) < _HEAD_BYTES and (block := next(blocks, None)) is not None:
    head += block
  if not head:
    report.problems.append(f'{path}: empty')
  _refuse_binary(head[:_HEAD_BYTES], path)
  head = head.removeprefix(_BOM)
  blocks = itertools.chain((head,), blocks)
  match wiki.file_format(head[:_HEAD_BYTES]):
    case 'dump':
      batches = _articles(blocks, path, report)
      if pool is None:
        return itertools.starmap(wiki.plain_batch, batches)
      return map_ahead(pool, wiki.plain_batch, batches, _MAX_WAITING_BATCHES)
    case 'docs':
      return _extracted(wiki.docs(blocks), path, report)
    case 'json':
      return _extracted(wiki.json_lines(blocks), path, report)
  return blocks


_Batch = tuple[list[str], frozenset[str]]  # wikitext of pages, hidden links


def map_ahead(
  pool: concurrent.futures.Executor,
  function: Callable,
  items: Iterable,
  depth: int,
) -> Iterator[Any]:
  """`function(*item)` in order, computed up to `depth` items ahead of use."""
  jobs = collections.deque()
  for item in items:
    jobs.append(pool.submit(function, *item))
    if len(jobs) > depth:
      yield jobs.popleft().result()
  while jobs:
    yield jobs.popleft().result()


def _articles(
  blocks: Iterable[bytes], path: pathlib.Path, report: ReadReport
) -> Iterator[_Batch]:
  batch: list[str] = []
  batch_chars = num_damages = 0
  hidden = wiki.HIDDEN
  for item in wiki.pages(blocks):
    if isinstance(item, wiki.Damage):
      report.lost_bytes += item.lost_bytes
      report.replaced_bytes += item.replaced_bytes
      num_damages += bool(item.message)
      if item.message and num_damages <= _MAX_DAMAGES:
        report.problems.append(f'{path}: {item.message}')
    elif item.redirect:
      report.redirects += 1
    elif item.namespace != 0 or item.model != 'wikitext':
      report.other_namespace_pages += 1
    else:
      report.pages += 1
      hidden = item.hidden
      batch.append(item.text)
      batch_chars += len(item.text)
      if batch_chars >= BLOCK_BYTES:
        yield batch, hidden
        batch, batch_chars = [], 0
  if batch:
    yield batch, hidden
  if num_damages > _MAX_DAMAGES:
    num_more = num_damages - _MAX_DAMAGES
    report.problems.append(f'{path}: damaged in {num_more} more places')
  if not report.pages:
    report.problems.append(f'{path}: a dump without a single article')


def _extracted(
  extracts: Iterable[wiki.Extract], path: pathlib.Path, report: ReadReport
) -> Iterator[bytes]:
  num_bad = 0
  for extract in extracts:
    report.pages += extract.num_docs
    report.lost_bytes += extract.lost_bytes
    num_bad += extract.num_bad
    yield extract.text
  if num_bad:
    report.problems.append(
      f'{path}: {num_bad} lines skipped: no JSON object with a "text"'
    )


def _cut_stream(blocks: Iterable[bytes], piece_bytes: int) -> Iterator[Piece]:
  """Cuts a stream of text into pieces, at line ends wherever it can."""
  if piece_bytes < 4:
    raise ValueError(f'piece_bytes is {piece_bytes}: less than a character')
  parts: list[bytes] = []
  num_bytes = 0
  for block in blocks:
    parts.append(block)
    num_bytes += len(block)
    if num_bytes <= piece_bytes:
      continue
    data = b''.join(parts)
    start = 0
    while (limit := start + piece_bytes) < num_bytes:
      end, ends_line, splits_word = _cut(data, start, limit)
      yield Piece(data[start:end], ends_line, splits_word=splits_word)
      start = end
    parts = [data[start:]]
    num_bytes -= start
  if num_bytes:
    yield Piece(b''.join(parts), True)


def _ranges(
  source: Source,
  piece_bytes: int,
  report: ReadReport,
  wanted: Callable[[int], bool],
) -> Iterator[Piece]:
  """Wanted pieces of plain text, found without reading those before.

  Piece j ends at the last line end of the j-th of equal ranges, each half a
  piece long, so that no piece is longer than `piece_bytes`.
  """
  step = max(4, piece_bytes // 2)
  digest = hashlib.sha256()
  with open(source.path, 'rb') as file:
    for number in filter(wanted, range(-(-source.size_bytes // step))):
      start, end = (
        _range_end(file, limit, step, source.size_bytes)
        for limit in (number * step, (number + 1) * step)
      )
      file.seek(start[0])
      data = file.read(end[0] - start[0])
      digest.update(data)
      report.source_bytes += len(data)
      if not start[0]:
        data = data.removeprefix(_BOM)
      if data:
        yield Piece(data, end[1], number, end[2])
  if report.source_bytes == source.size_bytes:
    report.sha256 = digest.hexdigest()


def _range_end(
  file: BinaryIO, limit: int, step: int, size_bytes: int
) -> tuple[int, bool, bool]:
  """Where the range before `limit` ends, at a line end?, inside a word?"""
  if limit >= size_bytes:
    return size_bytes, True, False
  if not limit:
    return 0, False, False
  first = max(0, limit - step)
  file.seek(first)
  data = file.read(limit + 1 - first)
  if len(data) <= limit - first:
    raise OSError(errno.EIO, 'it became shorter while it was read')
  end, ends_line, splits_word = _cut(data, 0, limit - first)
  return first + end, ends_line, splits_word


def _cut(data: bytes, start: int, limit: int) -> tuple[int, bool, bool]:
  """Where to end a piece of data[start:limit], at a line end?, inside a word?

  After the last line end, else the last white space, else at the last
  character of UTF-8 that begins at or before `limit`.
  """
  if end := data.rfind(b'\n', start, limit) + 1:
    return end, True, False
  spaces = (b' ', b'\t', b'\r', b'\v', b'\f')
  if end := max(data.rfind(space, start, limit) for space in spaces) + 1:
    return end, False, False
  end = limit
  while end > max(0, limit - 3) and 0x80 <= data[end] < 0xC0:
    end -= 1
  return end, False, True
