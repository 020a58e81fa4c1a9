"""word2vec text and binary files, and the export folder of a run.

    text     `vocab dim`, then `word v1 ... vdim` a line; GloVe leaves out the
             first line, fastText's .vec is the same with it
    binary   `vocab dim`, then word, space, dim little-endian float32, newline
             (the newline may be missing)
    vocab    `word count` a line

Both hold float32 to the last bit: text has the shortest decimal that rounds
back. Words cannot contain white space: each such character, and an empty word,
becomes `_` (more of them where that word exists), and is counted.
"""

import contextlib
import gzip
import os
import pathlib
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic, float_text, projector, rows_file

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 1 << 22
_MAX_LINE_BYTES = 1 << 20
_MAX_WORD_BYTES = 1 << 16
_MAX_GZIP_RATIO = 1100
_GZIP_MAGIC = b'\x1f\x8b'
_HEADER = re.compile(rb'\s*(\d+)[ \t]+(\d+)\s*')
_SPACE = re.compile(r'[ \t-\r]')


class Loaded(NamedTuple):
  """What a file held.

  Attributes:
    words: [vocab] different words, in the order of the file.
    vectors: [vocab, dim] float32.
    remarks: What was replaced or left out, counted; a sentence each.
  """

  words: list[str]
  vectors: np.ndarray
  remarks: tuple[str, ...]


def export(
  folder: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray,
  kept: rows_file.Kept | None = None,
) -> dict[str, int]:
  """Writes vectors.npy, vectors.bin, vectors.txt, vocab.txt and projector/.

  The four files replace those of an earlier export together, after all have
  been written. All use the same spelling of the words.

  Args:
    folder: Made if missing.
    words: [vocab] words, the most frequent first.
    vectors: [vocab, dim] float32; may be memory-mapped.
    counts: [vocab] int, occurrences of each word.
    kept: The same rows for vectors.npy; None = as float32.

  Returns:
    `words`, `renamed_words` (had white space) and `projector_words`.

  Raises:
    errors.UserError: A file cannot be written.
  """
  folder, vectors = pathlib.Path(folder), np.asarray(vectors)
  spelled, num_renamed = _spell(words)
  with contextlib.ExitStack() as stack:
    binary, text, vocab = files = [
      stack.enter_context(atomic.write(folder / name))
      for name in ('vectors.bin', 'vectors.txt', 'vocab.txt')
    ]
    files += rows_file.write(stack, folder, kept or rows_file.Kept(vectors))
    _put_rows(binary, spelled, vectors, _binary_rows)
    _put_rows(text, spelled, vectors, _text_rows)
    _put_counts(vocab, spelled, counts)
    for file in files:
      file.flush()
      os.fsync(file.fileno())
  names = [word.decode() for word in spelled]
  chosen = projector.write(folder / 'projector', names, vectors, counts)
  found = {'words': len(words), 'renamed_words': num_renamed}
  return found | {'projector_words': chosen.num_words}


def write(
  path: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  is_binary: bool,
) -> int:
  """Writes a text or binary file, compressed if its name ends in .gz.

  Args:
    path: Replaced only once the new file is whole.
    words: [vocab] words.
    vectors: [vocab, dim] float32; may be memory-mapped.
    is_binary: Which of the two formats.

  Returns:
    Number of words renamed.

  Raises:
    errors.UserError: The file cannot be written.
  """
  spelled, num_renamed = _spell(words)
  rows = _binary_rows if is_binary else _text_rows
  with atomic.write(path) as file:
    if pathlib.Path(path).suffix == '.gz':
      with gzip.GzipFile('', 'wb', 6, file, mtime=0) as packed:
        _put_rows(packed, spelled, vectors, rows)
    else:
      _put_rows(file, spelled, vectors, rows)
  return num_renamed


def write_vocab(
  path: pathlib.Path | str, words: Sequence[str], counts: np.ndarray
) -> int:
  """Writes `word count` lines; returns the number of words renamed."""
  spelled, num_renamed = _spell(words)
  with atomic.write(path) as file:
    _put_counts(file, spelled, counts)
  return num_renamed


def read(path: pathlib.Path | str) -> Loaded:
  """Reads a text or binary file, with or without header, .gz or plain.

  Args:
    path: The file; its format is recognised from its content.

  Returns:
    Words, vectors, and remarks on repeated words (the first is kept), invalid
    UTF-8 (replaced) and what stands behind the last row.

  Raises:
    errors.UserError: Missing, unknown format, truncated, damaged.
  """
  path = pathlib.Path(path)
  try:
    with _open(path) as file:
      _refuse_dmwe(path, file)
      return _read_open(path, file)
  except (OSError, EOFError, zlib.error) as error:
    raise errors.UserError(
      f'cannot read {path}: {getattr(error, "strerror", None) or error}; check '
      'the path, or fetch the file again if it is cut'
    ) from error


def _refuse_dmwe(path: pathlib.Path, file: BinaryIO) -> None:
  """Raises a `UserError` for dmwe.txt (see `senses.table`); else rewinds."""
  lines = [file.readline(_MAX_LINE_BYTES).split() for _ in range(3)]
  file.seek(0)
  numbers = [*lines[0], *lines[1][1:]]
  if (
    [len(x) for x in lines[:2]] == [3, 2]
    and all(x.isdigit() for x in numbers)
    and len(lines[2]) == int(lines[0][2]) + 1
  ):
    raise errors.UserError(
      f'{path} has the text format of distributed_skipgram_mixture, which is '
      f'for other programs; give its folder, {path.parent}'
    )


def read_vocab(path: pathlib.Path | str) -> tuple[list[str], np.ndarray]:
  """Reads `word count` lines.

  Args:
    path: The file.

  Returns:
    The words and their counts, [vocab] int64.

  Raises:
    errors.UserError: The file cannot be read or a line is not understood.
  """
  words, counts = [], []
  try:
    lines = pathlib.Path(path).read_bytes().split(b'\n')
  except OSError as error:
    raise errors.UserError(f'cannot read {path}: {error.strerror}') from error
  for number, line in enumerate(lines, 1):
    fields = line.split()
    if not fields:
      continue
    is_count = len(fields) == 2 and fields[1].isdigit()
    if not is_count or int(fields[1]) >= 2**63:
      raise errors.UserError(
        f'{path}, line {number}: expected `word count`; write the file again'
      )
    words.append(fields[0].decode('utf-8', 'replace'))
    counts.append(int(fields[1]))
  return words, np.array(counts, np.int64)


def _spell(words: Sequence[str]) -> tuple[list[bytes], int]:
  """The words as the formats can hold them, and how many had to change."""
  changed = {i: w for i, w in enumerate(words) if not w or _SPACE.search(w)}
  if not changed:
    return [word.encode('utf-8', 'backslashreplace') for word in words], 0
  taken, spelled = set(words), list(words)
  for i, word in changed.items():
    name = _SPACE.sub('_', word) or '_'
    while name in taken:
      name += '_'
    taken.add(name)
    spelled[i] = name
  encoded = [word.encode('utf-8', 'backslashreplace') for word in spelled]
  return encoded, len(changed)


def _put_rows(file, words: list[bytes], vectors: np.ndarray, rows) -> None:
  file.write(b'%d %d\n' % vectors.shape)
  for start in range(0, len(words), _BLOCK_ROWS):
    part = slice(start, start + _BLOCK_ROWS)
    file.write(rows(words[part], np.asarray(vectors[part], '<f4')))


def _binary_rows(words: list[bytes], block: np.ndarray) -> bytes:
  return b''.join(
    b'%b %b\n' % (word, row.tobytes())
    for word, row in zip(words, block, strict=True)
  )


def _text_rows(words: list[bytes], block: np.ndarray) -> bytes:
  lines = float_text.format_rows(block)
  return b''.join(b'%b %b' % pair for pair in zip(words, lines, strict=True))


def _put_counts(file, words: list[bytes], counts: np.ndarray) -> None:
  for word, count in zip(words, np.asarray(counts).tolist(), strict=True):
    file.write(b'%b %d\n' % (word, count))


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
    dim = len(first.split()) - 1
    is_text = dim >= 2 and _is_text_row(first, dim)
    if not is_text:
      raise errors.UserError(
        f'{path} is no word2vec file: expected a first line `vocab dim` (text '
        'or binary), or a word and its numbers'
      )
    file.seek(0)
    num_rows = _count_lines(file)
    file.seek(0)
  if not num_rows or not dim:
    raise errors.UserError(
      f'{path} holds no vectors: its header says {num_rows} x {dim}'
    )
  _check_size(path, num_rows, dim, is_text)
  if is_text:
    return _tidy(*_read_text(path, file, num_rows, dim, 2 if header else 1))
  return _tidy(*_read_binary(path, file, num_rows, dim))


def _is_text_row(line: bytes, dim: int) -> bool:
  fields = line.split()
  if len(fields) <= dim:
    return False
  try:
    list(map(float, fields[-dim:] if dim else ()))
  except ValueError:
    return False
  return True


def _count_lines(file: BinaryIO) -> int:
  """Number of lines that are not blank at the end of the file."""
  num_lines, is_open = 0, False
  while block := file.read(_BLOCK_BYTES):
    num_lines += block.count(b'\n')
    is_open = not block.endswith(b'\n')
  return num_lines + is_open


def _check_size(
  path: pathlib.Path, num_rows: int, dim: int, is_text: bool
) -> None:
  """Refuses a header that the file cannot fulfil, before allocating."""
  with path.open('rb') as file:
    is_gzip = file.read(2) == _GZIP_MAGIC
  size_bytes = path.stat().st_size
  most_bytes = size_bytes * (_MAX_GZIP_RATIO if is_gzip else 1)
  row_bytes = 2 * dim + 1 if is_text else 4 * dim + 1
  if num_rows * row_bytes > most_bytes:
    raise errors.UserError(
      f'{path} is cut or no word2vec file: {num_rows} x {dim} vectors need '
      f'{num_rows * row_bytes} bytes, it has {size_bytes}: fetch it again'
    )


def _read_text(
  path: pathlib.Path, file: BinaryIO, num_rows: int, dim: int, first_line: int
) -> tuple[list[bytes], np.ndarray, int]:
  vectors = np.empty((num_rows, dim), np.float32)
  words = []
  num_behind = 0
  for number, line in enumerate(file, first_line):
    fields = line.split()
    if not fields:
      continue
    if len(words) == num_rows:
      num_behind += len(line)
      continue
    if len(fields) <= dim:
      raise errors.UserError(
        f'{path}, line {number}: expected a word and {dim} numbers, found '
        f'{len(fields)} fields; the file is cut or damaged: fetch it again'
      )
    try:
      vectors[len(words)] = list(map(float, fields[-dim:]))
    except ValueError as error:
      raise errors.UserError(
        f'{path}, line {number}: {error}; the file is damaged: fetch it again'
      ) from error
    words.append(b' '.join(fields[:-dim]))
  if len(words) < num_rows and first_line == 2:
    _fail_short(path, len(words), num_rows)
  return words, vectors[: len(words)], num_behind


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
  behind = data[position:].removeprefix(b'\r').removeprefix(b'\n')
  num_behind = len(behind)
  while more := file.read(_BLOCK_BYTES):
    num_behind += len(more)
  return words, vectors, num_behind


def _fail_short(path: pathlib.Path, num_found: int, num_rows: int) -> NoReturn:
  raise errors.UserError(
    f'{path} is cut: it holds {num_found} of the {num_rows} vectors that its '
    'first line promises; fetch it again'
  )


def _tidy(encoded: list[bytes], vectors: np.ndarray, num_behind: int) -> Loaded:
  """Decodes the words and keeps the first of each."""
  words, num_invalid = [], 0
  for word in encoded:
    try:
      words.append(word.decode())
    except UnicodeDecodeError:
      words.append(word.decode('utf-8', 'replace'))
      num_invalid += 1
  rows = {}
  for row, word in enumerate(words):
    rows.setdefault(word, row)
  num_repeated = len(words) - len(rows)
  if num_repeated:
    words, vectors = list(rows), vectors[list(rows.values())]
  remarks = (
    (num_invalid, 'words with invalid UTF-8, replaced'),
    (num_repeated, 'repeated words, the first of each kept'),
    (num_behind, 'bytes behind the last vector, ignored'),
  )
  remarks = tuple(f'{n:,} {what}' for n, what in remarks if n)
  return Loaded(words, vectors, remarks)
