"""Corpus readers: any file of text becomes a stream of UTF-8 pieces.

Plain text, WikiExtractor output (<doc> or JSON lines) and MediaWiki XML dumps,
each alone, in a folder or by glob, and with .gz .bz2 .xz .zst. The idea: every
format is a generator of byte blocks, and one function cuts any of them into
pieces at line ends; nothing but JSON is ever touched line by line.
"""

import collections
import concurrent.futures
import contextlib
import glob as globs
import itertools
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jaxemb import errors
from jaxemb.text import compressed, cuts, wiki


class Source(NamedTuple):
  """A file of the corpus.

  Attributes:
    path: Where it is.
    size_bytes: Its size on disk.
    mtime_ns: When it was last changed.
  """

  path: pathlib.Path
  size_bytes: int
  mtime_ns: int


_HEAD_BYTES = 1 << 16
_MAX_WAITING_BATCHES = 16
_MAX_DAMAGES = 10
_CONTROLS = bytes({*range(32), 127} - set(b'\t\n\v\f\r\x1b'))


def sources(path: str) -> list[Source]:
  """Finds the files of a corpus.

  Args:
    path: A file, a folder (searched recursively; hidden files and folders are
      skipped) or a glob, in which ** matches folders of any depth.

  Returns:
    The files, sorted by path.

  Raises:
    UserError: Nothing is there, or nothing but empty files.
  """
  expanded = os.path.expanduser(path)
  if os.path.exists(expanded):
    places = [expanded]
    if os.path.isfile(expanded) and os.path.getsize(expanded) == 0:
      raise errors.UserError(f'{path} is empty: give a file with text in it')
  else:
    places = globs.glob(expanded, recursive=True)
    if not places:
      what = 'matches no file' if globs.has_magic(path) else 'does not exist'
      raise errors.UserError(
        f'{path} {what}: set config.data.path to a file, a folder or a glob'
      )
  try:
    names = {name for place in places for name in _files(place)}
    found = []
    for file in sorted(map(pathlib.Path, names)):
      status = file.stat()
      found.append(Source(file, status.st_size, status.st_mtime_ns))
  except OSError as error:
    raise errors.UserError(
      f'{error.filename} cannot be read ({error.strerror}): check permissions'
    ) from error
  if not sum(source.size_bytes for source in found):
    what = 'only empty files' if found else 'no files'
    raise errors.UserError(
      f'{path} holds {what}: set config.data.path to where the text is'
    )
  return found


def _raise(error: OSError) -> None:
  raise error


def _files(place: str) -> Iterator[str]:
  """Regular files at or below a place, through links, each folder once."""
  if not os.path.isdir(place):
    if not stat.S_ISREG(os.stat(place).st_mode):
      raise errors.UserError(
        f'{place} is not a regular file: the corpus is read more than once, '
        'so write it to a file first'
      )
    yield place
    return
  seen = set()
  walk = os.walk(place, onerror=_raise, followlinks=True)
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
  report: cuts.ReadReport,
  piece_bytes: int = 8 << 20,
  pool: concurrent.futures.Executor | None = None,
  wanted: cuts.Wanted = cuts.all_pieces,
) -> Iterator[cuts.Piece]:
  """Reads one file as text, whatever its format.

  Args:
    source: The file.
    report: Kept up to date while reading.
    piece_bytes: Most bytes of a piece. A longer line is cut at white space.
    pool: Workers that strip wikitext, if it is a dump and one process is too
      slow; the pieces are the same with and without it.
    wanted: Which pieces to hand out. Only plain text that is not compressed
      (`is_divisible`) is not read where it is not wanted.

  Yields:
    Pieces in the order of the file; none for an empty one.

  Raises:
    UserError: The file cannot be read, is not text, or its compressed data
      are cut or damaged.
  """
  try:
    if is_divisible(source):
      yield from cuts.ranges(
        source.path, source.size_bytes, piece_bytes, report, wanted
      )
      return
    with open(source.path, 'rb', buffering=0) as opened:
      file = compressed.CountedFile(opened)
      unpacked = compressed.unpack(file, source.path)
      if not source.size_bytes:
        unpacked = iter(())
      with contextlib.closing(compressed.ahead(unpacked)) as blocks:
        text = _text(blocks, source.path, report, pool)
        cut = cuts.stream(text, piece_bytes, source.path, report)
        for number, piece in enumerate(cut):
          report.source_bytes = file.read_bytes
          if wanted(number):
            report.text_bytes += len(piece.text)
            yield piece._replace(number=number)
      report.source_bytes = file.read_bytes
      report.sha256 = file.sha256()
      if num_left := file.read_bytes - report.source_bytes:
        report.problems.append(
          f'{source.path}: {num_left} bytes behind its compressed data ignored'
        )
      report.source_bytes = file.read_bytes
  except compressed.DAMAGE as error:
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
  if not source.size_bytes or compressed.is_compressed(source.path):
    return False
  with open(source.path, 'rb') as file:
    head = file.read(_HEAD_BYTES)
  _refuse_binary(head, source.path)
  return _format(head.removeprefix(cuts.BOM)) == 'plain'


def _format(head: bytes) -> str:
  """'dump', 'docs', 'json' or 'plain', by the first bytes of a text."""
  begin = head[:_HEAD_BYTES].lstrip()
  if begin.startswith((b'<mediawiki', b'<page>')) or (
    begin.startswith((b'<?xml', b'<!--')) and b'<mediawiki' in begin
  ):
    return 'dump'
  if wiki.is_docs(begin):
    return 'docs'
  return 'json' if wiki.is_json(begin) else 'plain'


def _text(
  blocks: Iterator[bytes],
  path: pathlib.Path,
  report: cuts.ReadReport,
  pool: concurrent.futures.Executor | None,
) -> Iterator[bytes]:
  """Recognises the format by the first bytes and hands out its text."""
  head = b''
  while len(head) < _HEAD_BYTES and (block := next(blocks, None)) is not None:
    head += block
  if not head:
    report.problems.append(f'{path}: empty')
  _refuse_binary(head[:_HEAD_BYTES], path)
  head = head.removeprefix(cuts.BOM)
  blocks = itertools.chain((head,), blocks)
  kind = _format(head)
  if kind == 'dump':
    return _dump_text(blocks, path, report, pool)
  if kind == 'docs':
    return _extracted_text(wiki.docs(blocks), path, report)
  if kind == 'json':
    return _extracted_text(wiki.json_lines(blocks), path, report)
  return blocks


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
  for magic, suffix in compressed.SUFFIXES.items():
    if head.startswith(magic):
      remedy = f'it looks compressed: give it the suffix {suffix}'
  if head[257:262] == b'ustar':
    remedy = 'it is a tar archive: unpack it first'
  raise errors.UserError(f'{path} is binary, not text: {remedy}')


def _dump_text(
  blocks: Iterable[bytes],
  path: pathlib.Path,
  report: cuts.ReadReport,
  pool: concurrent.futures.Executor | None,
) -> Iterator[bytes]:
  batches = _articles(blocks, path, report)
  if pool is None:
    yield from itertools.starmap(wiki.plain_batch, batches)
    return
  waiting: collections.deque[concurrent.futures.Future[bytes]]
  waiting = collections.deque()
  for batch in batches:
    waiting.append(pool.submit(wiki.plain_batch, *batch))
    if len(waiting) == _MAX_WAITING_BATCHES:
      yield waiting.popleft().result()
  for future in waiting:
    yield future.result()


def _articles(
  blocks: Iterable[bytes], path: pathlib.Path, report: cuts.ReadReport
) -> Iterator[tuple[list[str], frozenset[str]]]:
  """Batches of articles' wikitext, each with its hidden link prefixes."""
  batch: list[str] = []
  batch_chars = 0
  hidden = wiki.HIDDEN
  num_damages = 0
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
      if batch_chars >= compressed.BLOCK_BYTES:
        yield batch, hidden
        batch, batch_chars = [], 0
  if batch:
    yield batch, hidden
  if num_damages > _MAX_DAMAGES:
    num_more = num_damages - _MAX_DAMAGES
    report.problems.append(f'{path}: damaged in {num_more} more places')
  if not report.pages:
    report.problems.append(f'{path}: a dump without a single article')


def _extracted_text(
  extracts: Iterable[wiki.Extract],
  path: pathlib.Path,
  report: cuts.ReadReport,
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
