"""word2vec text and binary files, and vocabulary files.

    text     `vocab dim`, then `word v1 ... vdim` a line; fastText's .vec is the
             same, GloVe leaves out the first line
    binary   `vocab dim`, then word, space, dim little-endian float32, newline
             (the newline may be missing)
    vocab    `word count` a line, or `word` if no counts are known

Both hold float32 exactly: text has the shortest decimal that rounds back. White
space in a word, or an empty word, becomes `_` (several where that word exists);
words so renamed are counted.
"""

import array
import contextlib
import dataclasses
import pathlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np
import orjson

from jaxemb import errors
from jaxemb.storage import atomic, packed

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 1 << 22
_MAX_LINE_BYTES = 1 << 20
_MAX_WORD_BYTES = 1 << 16
_MAX_DIM = 1 << 20
_MAX_COUNT_DIGITS = 12  # sums over a vocabulary fit int64
_HEADER = re.compile(rb'\s*(\d+)[ \t]+(\d+)\s*')
_SPACE = re.compile(r'[ \t-\r]')


class Vectors(NamedTuple):
  """Words with their vectors."""

  words: list[str]  # [vocab] different words
  vectors: np.ndarray  # [vocab, dim] float32, memory-mapped if stored as such
  counts: np.ndarray | None = None  # [vocab] int64, if known
  folder: pathlib.Path | None = None  # of an export


def write(
  path: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  is_binary: bool,
) -> int:
  """Writes [vocab] words and [vocab, dim] vectors; packed as the suffix says.

  Returns the number of words renamed. Raises a `UserError` if the file cannot
  be written; an earlier one stays.
  """
  spelled, num_renamed = spell(words)
  with contextlib.ExitStack() as stack:
    file = stack.enter_context(atomic.write(path))
    file = stack.enter_context(packed.packer(file, path))
    put_rows(file, words=spelled, vectors=vectors, is_binary=is_binary)
  return num_renamed


def write_vocab(
  path: pathlib.Path | str, words: Sequence[str], counts: np.ndarray
) -> None:
  """Writes `word count` lines, with words as `spell` renames them."""
  spelled, _ = spell(words)
  with atomic.write(path) as file:
    put_counts(file, spelled, counts)


@dataclasses.dataclass(frozen=True, eq=False)
class Spelled(Sequence):
  """Words as the formats can hold them, made when they are asked for."""

  words: Sequence[str]
  renamed: Mapping[int, str]  # names of some, by their number

  def __len__(self) -> int:
    return len(self.words)

  def __getitem__(self, index):
    if not isinstance(index, slice):
      return self[index : index + 1][0]
    start, stop, _ = index.indices(len(self))
    names = self.words[index]
    if self.renamed:
      pairs = zip(range(start, stop), names, strict=True)
      names = [self.renamed.get(i, x) for i, x in pairs]
    return [x.encode('utf-8', 'backslashreplace') for x in names]


def spell(words: Sequence[str]) -> tuple[Spelled, int]:
  """The words as the formats can hold them, and the number renamed."""
  renamed = {i: x for i, x in enumerate(words) if not x or _SPACE.search(x)}
  taken = set(words) if renamed else set()
  for i, word in renamed.items():
    name = _SPACE.sub('_', word) or '_'
    while name in taken:
      name += '_'
    taken.add(name)
    renamed[i] = name
  return Spelled(words, renamed), len(renamed)


def put_rows(
  file: BinaryIO,
  words: Sequence[bytes],
  vectors: np.ndarray,
  is_binary: bool,
  seen: Callable[[int, list[bytes]], None] = lambda start, rows: None,
) -> None:
  """Writes the header and all rows to an open file.

  `seen` is called with the first number and the bytes of some rows at a time.
  """
  file.write(b'%d %d\n' % vectors.shape)
  for start in range(0, len(words), _BLOCK_ROWS):
    block = np.asarray(vectors[start : start + _BLOCK_ROWS], '<f4')
    rows = [x.tobytes() for x in block] if is_binary else text_rows(block)
    seen(start, rows)
    pairs = zip(words[start : start + _BLOCK_ROWS], rows, strict=True)
    file.write(b''.join(b'%b %b\n' % pair for pair in pairs))


def put_counts(
  file: BinaryIO, words: Sequence[bytes], counts: np.ndarray | None
) -> None:
  """Writes `word count` lines to an open file; of unknown counts, words."""
  if counts is None:
    file.writelines(word + b'\n' for word in words)
    return
  for start in range(0, max(len(words), len(counts)), _BLOCK_ROWS):
    some = slice(start, start + _BLOCK_ROWS)
    pairs = zip(words[some], np.asarray(counts[some]).tolist(), strict=True)
    file.writelines(b'%b %d\n' % pair for pair in pairs)


def text_rows(block: np.ndarray) -> list[bytes]:
  """Each row of [rows, dim] float32 in shortest exact decimals, with spaces."""
  if not np.isfinite(block).all():  # which JSON cannot express
    return [' '.join(map(str, row)).encode() for row in block]
  text = orjson.dumps(
    np.ascontiguousarray(block, np.float32), option=orjson.OPT_SERIALIZE_NUMPY
  )
  return text[2:-2].replace(b',', b' ').split(b'] [')[: len(block)]


def read_vocab(
  path: pathlib.Path | str, needs_counts: bool = True
) -> tuple[list[str], np.ndarray | None]:
  """Reads different words and their counts, [vocab] int64.

  Lines are `word count`, or of unknown counts, unless these are needed, `word`.
  Raises a `UserError` if the file cannot be read, a line is not a UTF-8 word
  and a whole number, a word comes twice, or there is none.
  """
  try:
    lines = pathlib.Path(path).read_bytes().removeprefix(b'\xef\xbb\xbf')
  except OSError as error:
    raise errors.UserError(f'cannot read {path}: {error.strerror}') from error
  words, counts, has_counts = [], [], True
  for number, line in enumerate(lines.split(b'\n'), 1):
    fields = line.split()
    if not fields:
      continue
    if not words and len(fields) == 1:
      has_counts = needs_counts
    try:
      word, count = fields if has_counts else (*fields, b'0')
      if not count.isdigit() or len(count) > _MAX_COUNT_DIGITS:
        raise ValueError
      words.append(word.decode())
      counts.append(int(count))
    except ValueError:
      raise errors.UserError(
        f'{path}, line {number}: expected a word in UTF-8 and its count, found '
        f'{line[:60].decode(errors="replace")!r}; correct or remove the line'
      ) from None
  if not words:
    raise errors.UserError(
      f'{path} is empty; give lines of a word and its count'
    )
  if num_twice := len(words) - len(set(words)):
    raise errors.UserError(
      f'{path} names {num_twice:,} words twice; give each word one line with '
      'its total count'
    )
  return words, np.array(counts, np.int64) if has_counts else None


def read(path: pathlib.Path | str) -> Vectors:
  """Reads a text or binary file, with or without header, .gz or plain.

  Warns, with their number, of repeated words (the first is kept), invalid UTF-8
  (replaced) and bytes after the last row. Raises a `UserError` if the file is
  missing, of an unknown format, cut or damaged.
  """
  path = pathlib.Path(path)
  if path.is_fifo():  # opening it would wait for whoever writes
    raise errors.UserError(
      f'{path} is a pipe, and vectors are read more than once; give a file'
    )
  try:
    raw, vectors, num_after = _read_file(path)
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'cannot read {path}: {getattr(error, "strerror", None) or error}; check '
      'the path, or fetch the file again if it is cut or damaged'
    ) from error
  words = [word.decode('utf-8', 'replace') for word in raw]
  rows: dict[str, int] = {}
  for row, word in enumerate(words):
    rows.setdefault(word, row)
  num_invalid = sum(
    '\ufffd' in word and word.encode() != given
    for word, given in zip(words, raw, strict=True)
  )
  for num, what in (
    (num_invalid, 'words with invalid UTF-8, replaced'),
    (len(words) - len(rows), 'repeated words, the first of each kept'),
    (num_after, 'bytes after the last vector, ignored'),
  ):
    if num:
      warnings.warn(f'{path}: {num:,} {what}', stacklevel=2)
  if len(rows) < len(words):
    vectors = vectors[list(rows.values())]
  return Vectors(list(rows), vectors)


def _read_file(path: pathlib.Path) -> tuple[list[bytes], np.ndarray, int]:
  """Words, [words, dim] vectors and bytes after them, or a `ValueError`."""
  with packed.File(path) as file:
    first, second = (file.readline(_MAX_LINE_BYTES) for _ in range(2))
  header = _HEADER.fullmatch(first)
  if header:
    num_rows, dim = map(int, header.groups())
    is_text = _is_text_row(second, dim)
  else:
    num_rows, dim = None, len(first.split()) - 1
    is_text = dim >= 2 and _is_text_row(first, dim)
    if not is_text:
      raise ValueError(
        'it is no word2vec file: expected a first line `vocab dim` (text or '
        'binary), or a word and its numbers'
      )
  if num_rows == 0 or not 0 < dim <= _MAX_DIM:
    raise ValueError(f'it holds no vectors: its header says {num_rows} x {dim}')
  # No room is made for what a damaged header promises.
  read_rows = _read_text if is_text else _read_binary
  with packed.File(path) as file:
    if header:
      file.readline()
    words, values, num_after = read_rows(file, num_rows, dim)
  if num_rows is not None and len(words) < num_rows:
    raise ValueError(
      f'it holds {len(words)} of the {num_rows} vectors that its first line '
      'promises'
    )
  if not is_text and num_after >= 4 * dim:
    raise ValueError(
      f'{num_after:,} bytes follow the {num_rows:,} vectors of {dim} numbers '
      'that its first line promises: it has another number of them'
    )
  vectors = np.frombuffer(values, '<f4').reshape(-1, dim)
  return words, vectors, num_after


def _is_text_row(line: bytes, dim: int) -> bool:
  fields = line.split()
  try:
    return len(fields) > dim and bool([*map(float, fields[-dim:])])
  except ValueError:
    return False


def _read_text(
  file: BinaryIO, num_rows: int | None, dim: int
) -> tuple[list[bytes], array.array, int]:
  words, values, num_after = [], array.array('f'), 0
  for number, line in enumerate(file, 1 if num_rows is None else 2):
    fields = line.split()
    if len(words) == num_rows:
      num_after += len(line) if fields else 0
    elif fields:
      try:
        if len(fields) <= dim:
          raise ValueError(f'expected a word and {dim} numbers')
        values.extend(map(float, fields[-dim:]))
      except ValueError as error:
        raise ValueError(f'line {number}: {error}') from error
      words.append(b' '.join(fields[:-dim]))
  return words, values, num_after


def _read_binary(
  file: BinaryIO, num_rows: int, dim: int
) -> tuple[list[bytes], bytearray, int]:
  words, values, data, position = [], bytearray(), b'', 0
  while len(words) < num_rows:
    space = data.find(b' ', position)
    end = space if space >= 0 else len(data)
    if end - position > _MAX_WORD_BYTES:
      raise ValueError(f'there is no word before vector {len(words) + 1}')
    stop = space + 1 + 4 * dim
    if space >= 0 and stop <= len(data):
      values += data[space + 1 : stop]
      words.append(data[position:space].lstrip(b'\r\n'))
      position = stop
      continue
    more = file.read(_BLOCK_BYTES)
    if not more:
      return words, values, 0
    data, position = data[position:] + more, 0
  num_after = len(data[position:].removeprefix(b'\r').removeprefix(b'\n'))
  while more := file.read(_BLOCK_BYTES):
    num_after += len(more)
  return words, values, num_after
