"""word2vec text and binary files, and vocabulary files.

    text     `vocab dim`, then `word v1 ... vdim` a line; GloVe leaves out the
             first line, fastText's .vec is the same with it
    binary   `vocab dim`, then word, space, dim little-endian float32, newline
             (the newline may be missing)
    vocab    `word count` a line

Both hold float32 to the last bit: text has the shortest decimal that rounds
back. Words cannot contain white space: each such character, and an empty word,
becomes `_` (more of them where that word exists), and is counted.
"""

import array
import contextlib
import gzip
import pathlib
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np
import orjson

from jaxemb import errors
from jaxemb.storage import atomic

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 1 << 22
_MAX_LINE_BYTES = 1 << 20
_MAX_WORD_BYTES = 1 << 16
_MAX_GZIP_RATIO = 1100
_MAX_COUNT_DIGITS = 12  # sums over a vocabulary fit int64
_GZIP_MAGIC = b'\x1f\x8b'
_HEADER = re.compile(rb'\s*(\d+)[ \t]+(\d+)\s*')
_SPACE = re.compile(r'[ \t-\r]')
_DMWE = re.compile(rb'\d+ \d+ \d+\s+\S+ \d+\s*')  # see `senses.table`


class Loaded(NamedTuple):
  """Words and vectors of a file."""

  words: list[str]  # [vocab] different words, in the order of the file
  vectors: np.ndarray  # [vocab, dim] float32
  remarks: tuple[str, ...]  # what was replaced or left out, counted


def write(
  path: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  is_binary: bool,
) -> int:
  """Writes [vocab] words and [vocab, dim] vectors; gzip if named .gz.

  Returns:
    Number of words renamed.

  Raises:
    errors.UserError: the file cannot be written; an earlier one stays.
  """
  spelled, num_renamed = spell(words)
  with atomic.write(path) as file:
    if pathlib.Path(path).suffix == '.gz':
      with gzip.GzipFile('', 'wb', 6, file, mtime=0) as packed:
        put_rows(packed, spelled, vectors, is_binary)
    else:
      put_rows(file, spelled, vectors, is_binary)
  return num_renamed


def write_vocab(
  path: pathlib.Path | str, words: Sequence[str], counts: np.ndarray
) -> int:
  """Writes `word count` lines; returns the number of words renamed."""
  spelled, num_renamed = spell(words)
  with atomic.write(path) as file:
    put_counts(file, spelled, counts)
  return num_renamed


def spell(words: Sequence[str]) -> tuple[list[bytes], int]:
  """The words as the formats can hold them, and the number renamed."""
  taken, spelled, num_renamed = None, list(words), 0
  for i, word in enumerate(words):
    if word and not _SPACE.search(word):
      continue
    taken = set(words) if taken is None else taken
    name = _SPACE.sub('_', word) or '_'
    while name in taken:
      name += '_'
    taken.add(name)
    spelled[i] = name
    num_renamed += 1
  return [x.encode('utf-8', 'backslashreplace') for x in spelled], num_renamed


def put_rows(
  file: BinaryIO, words: list[bytes], vectors: np.ndarray, is_binary: bool
) -> None:
  """Writes the header and all rows to an open file."""
  file.write(b'%d %d\n' % vectors.shape)
  for start in range(0, len(words), _BLOCK_ROWS):
    block = np.asarray(vectors[start : start + _BLOCK_ROWS], '<f4')
    rows = map(np.ndarray.tobytes, block) if is_binary else text_rows(block)
    pairs = zip(words[start : start + _BLOCK_ROWS], rows, strict=True)
    file.write(b''.join(b'%b %b\n' % pair for pair in pairs))


def put_counts(file: BinaryIO, words: list[bytes], counts: np.ndarray) -> None:
  """Writes `word count` lines to an open file."""
  for word, count in zip(words, np.asarray(counts).tolist(), strict=True):
    file.write(b'%b %d\n' % (word, count))


def text_rows(block: np.ndarray) -> list[bytes]:
  """The numbers of each row of [rows, dim] float32, separated by spaces.

  Each number is the shortest decimal that rounds back to the same float32.
  """
  if not np.isfinite(block).all():  # which JSON cannot express
    return [' '.join(map(str, row)).encode() for row in block]
  text = orjson.dumps(
    np.ascontiguousarray(block, np.float32), option=orjson.OPT_SERIALIZE_NUMPY
  )
  return text[2:-2].replace(b',', b' ').split(b'] [')[: len(block)]


def read_vocab(path: pathlib.Path | str) -> tuple[list[str], np.ndarray]:
  """Different words and their counts, [vocab] int64, of `word count` lines.

  Raises:
    errors.UserError: the file cannot be read; a line is no UTF-8 word and
      whole number; a word comes twice; there is none.
  """
  try:
    lines = pathlib.Path(path).read_bytes().removeprefix(b'\xef\xbb\xbf')
  except OSError as error:
    raise errors.UserError(f'cannot read {path}: {error.strerror}') from error
  counts: dict[str, int] = {}
  num_lines = 0
  for number, line in enumerate(lines.split(b'\n'), 1):
    fields = line.split()
    if not fields:
      continue
    try:
      word, count = fields
      if not count.isdigit() or len(count) > _MAX_COUNT_DIGITS:
        raise ValueError
      counts[word.decode()] = int(count)
    except ValueError:
      raise errors.UserError(
        f'{path}, line {number}: expected a word in UTF-8 and its count, found '
        f'{line[:60].decode(errors="replace")!r}; correct or remove the line'
      ) from None
    num_lines += 1
  if len(counts) < num_lines or not counts:
    raise errors.UserError(
      f'{path} names {num_lines - len(counts):,} words twice; give each word '
      'one line with its total count'
      if counts
      else f'{path} is empty; give lines of a word and its count'
    )
  return [*counts], np.fromiter(counts.values(), np.int64, len(counts))


def read(path: pathlib.Path | str) -> Loaded:
  """Reads a text or binary file, with or without header, .gz or plain.

  Remarks count repeated words (the first is kept), invalid UTF-8 (replaced)
  and bytes after the last row.

  Raises:
    errors.UserError: missing, unknown format, truncated, damaged.
  """
  path = pathlib.Path(path)
  try:
    with _open(path) as file:
      return _read_open(path, file)
  except (OSError, EOFError, zlib.error) as error:
    raise errors.UserError(
      f'cannot read {path}: {getattr(error, "strerror", None) or error}; check '
      'the path, or fetch the file again if it is cut'
    ) from error


@contextlib.contextmanager
def _open(path: pathlib.Path) -> Iterator[BinaryIO]:
  with path.open('rb', buffering=1 << 20) as file:
    is_gzip = file.read(2) == _GZIP_MAGIC
    file.seek(0)
    if not is_gzip:
      yield file
      return
    with gzip.GzipFile(fileobj=file) as unpacked:
      yield unpacked


def _read_open(path: pathlib.Path, file: BinaryIO) -> Loaded:
  first = file.readline(_MAX_LINE_BYTES)
  header = _HEADER.fullmatch(first)
  if header:
    num_rows, dim = map(int, header.groups())
    is_text = _is_text_row(file.readline(_MAX_LINE_BYTES), dim)
    file.seek(len(first))
  else:
    if _DMWE.fullmatch(first + file.readline(_MAX_LINE_BYTES)):
      raise errors.UserError(
        f'{path} has the text format of distributed_skipgram_mixture, which is '
        f'for other programs; give its folder, {path.parent}'
      )
    dim = len(first.split()) - 1
    is_text = dim >= 2 and _is_text_row(first, dim)
    if not is_text:
      raise errors.UserError(
        f'{path} is no word2vec file: expected a first line `vocab dim` (text '
        'or binary), or a word and its numbers'
      )
    num_rows = None
    file.seek(0)
  if num_rows == 0 or not dim:
    raise errors.UserError(
      f'{path} holds no vectors: its header says {num_rows} x {dim}'
    )
  if is_text:
    return _tidy(*_read_text(path, file, num_rows, dim))
  _check_size(path, num_rows, dim, isinstance(file, gzip.GzipFile))
  return _tidy(*_read_binary(path, file, num_rows, dim))


def _is_text_row(line: bytes, dim: int) -> bool:
  fields = line.split()
  try:
    return len(fields) > dim and bool([*map(float, fields[-dim:])])
  except ValueError:
    return False


def _check_size(
  path: pathlib.Path, num_rows: int, dim: int, is_gzip: bool
) -> None:
  """Refuses a header that the file cannot fulfil, before allocating."""
  size_bytes = path.stat().st_size
  need_bytes = num_rows * (4 * dim + 1)
  if need_bytes > size_bytes * (_MAX_GZIP_RATIO if is_gzip else 1):
    raise errors.UserError(
      f'{path} is cut or no word2vec file: {num_rows} x {dim} vectors need '
      f'{need_bytes} bytes, it has {size_bytes}: fetch it again'
    )


def _read_text(
  path: pathlib.Path, file: BinaryIO, num_rows: int | None, dim: int
) -> tuple[list[bytes], np.ndarray, int]:
  words, values = [], array.array('f')
  num_after = 0
  for number, line in enumerate(file, 1 if num_rows is None else 2):
    fields = line.split()
    if not fields:
      continue
    if len(words) == num_rows:
      num_after += len(line)
      continue
    try:
      if len(fields) <= dim:
        raise ValueError(
          f'expected a word and {dim} numbers, found {len(fields)} fields'
        )
      values.extend(map(float, fields[-dim:]))
    except ValueError as error:
      raise errors.UserError(
        f'{path}, line {number}: {error}; the file is cut or damaged: fetch it '
        'again'
      ) from error
    words.append(b' '.join(fields[:-dim]))
  if num_rows is not None and len(words) < num_rows:
    _fail_short(path, len(words), num_rows)
  return words, np.frombuffer(values, np.float32).reshape(-1, dim), num_after


def _read_binary(
  path: pathlib.Path, file: BinaryIO, num_rows: int, dim: int
) -> tuple[list[bytes], np.ndarray, int]:
  vectors = np.empty((num_rows, dim), '<f4')
  target = memoryview(vectors).cast('B')
  row_bytes = 4 * dim
  words, data, position = [], b'', 0
  for row in range(num_rows):
    while True:
      space = data.find(b' ', position)
      end = space if space >= 0 else len(data)
      if end - position > _MAX_WORD_BYTES:
        raise errors.UserError(
          f'{path} is damaged: no word before vector {row + 1} of {num_rows}; '
          'fetch it again'
        )
      if space >= 0 and len(data) - space > row_bytes:
        break
      more = file.read(_BLOCK_BYTES)
      if not more:
        _fail_short(path, row, num_rows)
      data, position = data[position:] + more, 0
    words.append(data[position:space].lstrip(b'\r\n'))
    position = space + 1 + row_bytes
    target[row * row_bytes : (row + 1) * row_bytes] = data[space + 1 : position]
  after = data[position:].removeprefix(b'\r').removeprefix(b'\n')
  num_after = len(after)
  while more := file.read(_BLOCK_BYTES):
    num_after += len(more)
  return words, vectors, num_after


def _fail_short(path: pathlib.Path, num_found: int, num_rows: int) -> NoReturn:
  raise errors.UserError(
    f'{path} is cut: it holds {num_found} of the {num_rows} vectors that its '
    'first line promises; fetch it again'
  )


def _tidy(encoded: list[bytes], vectors: np.ndarray, num_after: int) -> Loaded:
  """Decodes the words and keeps the first of each."""
  words = [word.decode('utf-8', 'replace') for word in encoded]
  num_invalid = sum(
    '\ufffd' in word and word.encode() != raw
    for word, raw in zip(words, encoded, strict=True)
  )
  rows: dict[str, int] = {}
  for row, word in enumerate(words):
    rows.setdefault(word, row)
  num_repeated = len(words) - len(rows)
  if num_repeated:
    words, vectors = list(rows), vectors[list(rows.values())]
  remarks = (
    (num_invalid, 'words with invalid UTF-8, replaced'),
    (num_repeated, 'repeated words, the first of each kept'),
    (num_after, 'bytes after the last vector, ignored'),
  )
  return Loaded(words, vectors, tuple(f'{n:,} {x}' for n, x in remarks if n))
