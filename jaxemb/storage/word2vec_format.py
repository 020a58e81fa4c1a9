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
import codecs
import collections
import contextlib
import io
import itertools
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Literal, NamedTuple, overload

import numpy as np
import orjson

from jaxemb import errors
from jaxemb.storage import atomic, packed

_BLOCK_ROWS = 4096
_FORMATTED_ROWS = 512  # at once, 2 ms in which no other thread runs
_BLOCK_BYTES = 1 << 22
_WRITTEN_BYTES = 1 << 20  # of vectors at once: their text is larger, and copied
_MAX_LINE_BYTES = 1 << 20
_MAX_WORD_BYTES, _MAX_NUMBER_BYTES = 1 << 16, 64
_MAX_DIM = 1 << 20
_MAX_COUNT_DIGITS = 12
MAX_COUNT = 10**_MAX_COUNT_DIGITS - 1  # sums over a vocabulary fit int64
_HEADER = re.compile(rb'\s*(\d+)[ \t]+(\d+)\s*')
_SPACE = re.compile(r'[ \t-\r]')
_SURROGATE = re.compile(r'[\ud800-\udfff]')  # which no UTF-8 has
_UNWRITABLE = re.compile(r'[ \t-\r\ud800-\udfff]')
_CONTROLS = re.compile(rb'[\0-\x08\x0e-\x1f\x7f]')
_NUMBER = re.compile(rb'\s[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?$')
_FRACTION = re.compile(rb'[-+]?\d*\.\d+([eE][-+]?\d+)?')
_COMMAS = re.compile(rb'(?s).*(\s[-+]?\d+,\d+([eE][-+]?\d+)?){2}\s*')
_NUM_HEAD_LINES = 100  # by which a file without header is understood
_REMEDY = 'check the path, or fetch the file again if it is cut or damaged'
_HEADER_REMEDY = 'correct that line, or the first one, `vocab dim`'
_OTHERS = (  # first bytes of formats that are not read, and what to do
  (
    rb'\xba\x16\x4f\x2f',
    'it is a model of fastText',
    'give its .vec, or write its vectors: '
    "jaxemb.load('model.bin').save_word2vec_format('vectors.txt')",
  ),
  (
    rb'\xff\xfe|\xfe\xff|\0\0\xfe\xff|[^\0]\0[^\0]\0|\0[^\0]\0[^\0]',
    'it is UTF-16 or UTF-32',
    "load it with encoding='utf-16', or convert it to UTF-8 (iconv -f UTF-16 "
    '-t UTF-8)',
  ),
)


class Vectors(NamedTuple):
  """Words with their vectors."""

  words: list[str]  # [vocab] different words
  vectors: np.ndarray  # [vocab, dim] float32, memory-mapped if stored as such
  counts: np.ndarray | None = None  # [vocab] int64, if known
  folder: pathlib.Path | None = None  # of an export


class Reading(NamedTuple):
  """How a file is to be read, where its caller knows; None = recognized."""

  is_binary: bool | None = None
  has_header: bool | None = None
  limit: int | None = None  # rows, from the first on
  # Of words: a name of Python's error handlers, such as 'strict', 'replace' or
  # 'ignore'; None = replaces and counts letters, and refuses more than a few.
  decoding_errors: str | None = None


_RECOGNIZED = Reading()


def write(
  path: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  is_binary: bool,
  has_header: bool = True,
  num_announced: int | None = None,
  appends: bool = False,
) -> int:
  """Writes [vocab] words and [vocab, dim] vectors; packed as the suffix says.

  The header announces `num_announced` vectors, None = those that are written.
  Rows that are appended to a file follow what it has, and an error leaves a
  part of them. Returns the number of words renamed. Raises a `UserError` if the
  file cannot be written; an earlier one stays.
  """
  names, num_renamed = spell(words)
  with _writing(path, appends) as file, packed.packer(file, path) as stream:
    put_rows(
      stream,
      words=names,
      vectors=vectors,
      is_binary=is_binary,
      has_header=has_header,
      num_announced=num_announced,
    )
  return num_renamed


def write_vocab(
  path: pathlib.Path | str,
  words: Sequence[str],
  counts: np.ndarray | None,
  appends: bool = False,
) -> None:
  """Writes `word count` lines, with words as `spell` renames them.

  Of unknown counts, it writes words alone.
  """
  with _writing(path, appends) as file:
    put_counts(file, spell(words)[0], counts)


@contextlib.contextmanager
def _writing(path: pathlib.Path | str, appends: bool) -> Iterator[BinaryIO]:
  """Opens a file to be replaced once it is complete, or to be appended to."""
  if not appends:
    with atomic.write(path) as file:
      yield file
    return
  if pathlib.Path(path).suffix.lower() == '.zip':
    raise errors.UserError(
      f'nothing can be appended to the archive {path}; give another suffix, '
      'such as .gz'
    )
  try:
    with open(path, 'ab') as file:
      yield file
  except OSError as error:
    raise errors.UserError(
      f'cannot append to {path}: {error.strerror or error}; choose another file'
    ) from error


def spell(
  words: Sequence[str], has_spaces: bool = False
) -> tuple[Sequence[str], int]:
  """Returns words as files can hold them, and the number renamed.

  White space becomes underscores, unless a file `has_spaces` in words, and what
  UTF-8 lacks an escape. The names of different words are different.
  """
  pattern = _SURROGATE if has_spaces else _UNWRITABLE
  renamed = [
    i for i, x in enumerate(words) if not (x or has_spaces) or pattern.search(x)
  ]
  if not renamed:
    return words, 0
  names, taken = list(words), set(words)
  for i in renamed:
    name = words[i].encode('utf-8', 'backslashreplace').decode()
    name = name if has_spaces else _SPACE.sub('_', name) or '_'
    while name in taken:
      name += '_'
    taken.add(name)
    names[i] = name
  return names, len(renamed)


def _encoded(words: Sequence[str]) -> list[bytes]:
  return [x.encode('utf-8', 'backslashreplace') for x in words]


def put_rows(
  file: BinaryIO,
  words: Sequence[str],
  vectors: np.ndarray,
  is_binary: bool,
  seen: Callable[[int, list[bytes]], None] = lambda start, rows: None,
  has_header: bool = True,
  num_announced: int | None = None,
) -> None:
  """Writes the header, if any, and all rows to an open file.

  `seen` is called with the first number and the bytes of some rows at a time.
  The header has the number of rows, or `num_announced`.
  """
  num_rows, dim = vectors.shape
  if has_header:
    num_rows = num_rows if num_announced is None else num_announced
    file.write(b'%d %d\n' % (num_rows, dim))
  size = max(1, min(_BLOCK_ROWS, _WRITTEN_BYTES // max(1, 4 * dim)))
  for start in range(0, len(words), size):
    block = np.asarray(vectors[start : start + size], '<f4')
    rows = [x.tobytes() for x in block] if is_binary else text_rows(block)
    seen(start, rows)
    names = _encoded(words[start : start + size])
    pairs = zip(names, rows, strict=True)
    file.write(b''.join(b'%b %b\n' % pair for pair in pairs))


def put_counts(
  file: BinaryIO, words: Sequence[str], counts: np.ndarray | None
) -> None:
  """Writes `word count` lines to an open file; of unknown counts, words."""
  for start in range(0, len(words), _BLOCK_ROWS):
    some = slice(start, start + _BLOCK_ROWS)
    lines = _encoded(words[some])
    if counts is not None:
      pairs = zip(lines, np.asarray(counts[some]).tolist(), strict=True)
      lines = [b'%b %b' % (x, str(count).encode()) for x, count in pairs]
    file.writelines(line + b'\n' for line in lines)


def text_rows(block: np.ndarray) -> list[bytes]:
  """Each row of [rows, dim] float32 in shortest exact decimals, with spaces."""
  if not np.isfinite(block).all():  # which JSON cannot express
    return [' '.join(map(str, row)).encode() for row in block]
  rows, block = [], np.ascontiguousarray(block, np.float32)
  for start in range(0, len(block), _FORMATTED_ROWS):
    text = orjson.dumps(
      block[start : start + _FORMATTED_ROWS], option=orjson.OPT_SERIALIZE_NUMPY
    )
    rows += text[2:-2].replace(b',', b' ').split(b'] [')
  return rows


@overload
def read_vocab(
  path: pathlib.Path | str,
  needs_counts: Literal[True] = True,
  decoding_errors: str = 'strict',
) -> tuple[list[str], np.ndarray]: ...


@overload
def read_vocab(
  path: pathlib.Path | str, needs_counts: bool, decoding_errors: str = 'strict'
) -> tuple[list[str], np.ndarray | None]: ...


def read_vocab(
  path: pathlib.Path | str,
  needs_counts: bool = True,
  decoding_errors: str = 'strict',
) -> tuple[list[str], np.ndarray | None]:
  """Reads different words and their counts, [vocab] int64.

  Lines are `word count`, or of unknown counts, unless these are needed, `word`.
  What is not UTF-8 is an error, or as `decoding_errors` says, 'replace' or
  'ignore'. Raises a `UserError` if the file cannot be read, a line is not a
  UTF-8 word and a whole number, a word comes twice, or there is none.
  """
  try:
    lines = pathlib.Path(path).read_bytes().removeprefix(b'\xef\xbb\xbf')
  except OSError as error:
    raise errors.UserError(f'cannot read {path}: {error.strerror}') from error
  words: list[str] = []
  counts: list[int] = []
  has_counts = True
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
      words.append(word.decode('utf-8', decoding_errors))
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


def counts_of(
  path: pathlib.Path | str, words: Sequence[str], decoding_errors: str
) -> np.ndarray:
  """Returns the counts of words in a vocabulary file, [words] int64.

  Warns of words that it lacks, whose counts are 0. Raises a `UserError` if it
  cannot be read.
  """
  names, counts = read_vocab(path, decoding_errors=decoding_errors)
  known = dict(zip(names, counts.tolist(), strict=True))
  if missing := [x for x in words if x not in known]:
    warnings.warn(
      f'{path} has no counts of {len(missing):,} words, such as '
      f'{missing[0]!r}; they are 0',
      stacklevel=3,
    )
  return np.array([known.get(x, 0) for x in words], np.int64)


def read(
  path: pathlib.Path | str,
  encoding: str = 'utf-8',
  reading: Reading = _RECOGNIZED,
) -> Vectors:
  """Reads a text or binary file, with or without header, plain or packed.

  `encoding` is that of the words. Warns, with their number, of repeated words
  (the first is kept), empty words (left out) and words that are not in the
  encoding (replaced). Raises a `UserError` if the file is missing, of another
  format, cut or damaged, if its first line or `reading` contradicts its rows,
  or if over 1 % of its words are not in the encoding; a `UnicodeDecodeError` if
  one is not and `reading.decoding_errors` is 'strict'.
  """
  path = pathlib.Path(path)
  if path.is_fifo():  # opening it would wait for whoever writes
    raise errors.UserError(
      f'{path} is a pipe, and vectors are read more than once; give a file'
    )
  try:
    codec = codecs.lookup(encoding).name
    is_wide = codec.startswith(('utf-16', 'utf-32'))
    ' '.encode(encoding)  # which no codec of bytes does
    before = _status(path)
    rows = _read_file(path, wide=codec if is_wide else '', reading=reading)
    if path.exists() and _status(path) != before:
      raise ValueError(
        'it was changed while it was read',
        'start again when it is complete, or give a copy of it',
      )
  except LookupError as error:
    raise errors.UserError(
      f'there is no encoding {encoding!r}; give another, such as utf-8'
    ) from error
  except (OSError, ValueError) as error:
    problem, remedy = getattr(error, 'strerror', None) or str(error), _REMEDY
    if type(error) is ValueError and len(error.args) == 2:
      problem, remedy = error.args
    raise errors.UserError(
      f'cannot read {path}: {problem}; {remedy}'
    ) from error
  return _named(
    rows,
    path,
    encoding='utf-8' if is_wide else codec,
    decoding_errors=reading.decoding_errors,
  )


class _Rows(NamedTuple):
  """Rows as a file has them."""

  words: list[bytes]
  values: array.array | bytearray  # little-endian float32
  max_invalid: float = 0.01  # fraction of words that are not in the encoding


def _decoded(
  word: bytes, encoding: str, decoding_errors: str, path: pathlib.Path
) -> str:
  try:
    return word.decode(encoding, decoding_errors)
  except LookupError as error:
    raise errors.UserError(
      f'unicode_errors={decoding_errors!r} is unknown; give strict, replace or '
      'ignore'
    ) from error
  except UnicodeDecodeError as error:
    error.reason += (
      f" (a word of {path}); give its encoding, or unicode_errors='replace'"
    )
    raise


def _named(
  rows: _Rows,
  path: pathlib.Path,
  encoding: str,
  decoding_errors: str | None = None,
) -> Vectors:
  """Returns the rows of different words; counts what is wrong with others."""
  raw = rows.words
  num_invalid = num_empty = 0
  index: dict[str, int] = {}
  for row, word in enumerate(raw):
    if not word.strip():
      num_empty += 1
      continue
    name = _decoded(word, encoding, decoding_errors or 'replace', path=path)
    if '\ufffd' in name and decoding_errors is None:
      num_invalid += name.encode(encoding, 'replace') != word
    index.setdefault(name, row)
  if not index:
    raise errors.UserError(
      f'none of the {len(raw):,} rows of {path} begins with a word; write one '
      'before its numbers, without spaces before it'
    )
  if num_invalid > rows.max_invalid * len(raw):
    raise errors.UserError(
      f'{num_invalid:,} of {len(raw):,} words of {path} are not in {encoding}: '
      "give its encoding, such as encoding='cp1252' (--encoding=cp1252 on the "
      'command line), or convert it'
    )
  vectors = np.frombuffer(rows.values, '<f4').reshape(len(raw), -1)
  is_finite = np.isfinite(vectors.max(1)) & np.isfinite(vectors.min(1))
  num_infinite = len(raw) - int(is_finite.sum())
  for num, what in (
    (num_invalid, f'words that are not in {encoding}, with letters replaced'),
    (num_empty, 'empty words, left out'),
    (len(raw) - num_empty - len(index), 'repeated words, the first kept'),
    (num_infinite, 'vectors that are not finite, kept'),
  ):
    if num:
      warnings.warn(f'{path}: {num:,} {what}', stacklevel=3)
  if len(index) < len(raw):
    vectors = vectors[list(index.values())]
  return Vectors(list(index), vectors)


def _status(path: pathlib.Path) -> tuple[int, int]:
  status = path.stat()
  return status.st_size, status.st_mtime_ns


def _open(path: pathlib.Path, wide: str) -> BinaryIO:
  """Opens a file behind any byte order mark, in UTF-8 if it was in `wide`.

  Raises a `ValueError` for formats that are known and not read.
  """
  file = packed.File(path)
  head = file.peek(16)[:16]
  if wide:
    with file:
      text = file.read().decode(wide).removeprefix('\ufeff')
    return io.BytesIO(text.encode())
  for magic, what, remedy in _OTHERS:
    if re.match(magic, head):
      file.close()
      raise ValueError(what, remedy)
  if head.startswith(codecs.BOM_UTF8):
    file.read(len(codecs.BOM_UTF8))
  return file


def _read_file(path: pathlib.Path, wide: str, reading: Reading) -> _Rows:
  """Reads all rows, or raises a `ValueError`."""
  with _open(path, wide) as file:
    first = file.readline(_MAX_LINE_BYTES)
    every = iter(lambda: file.readline(_MAX_LINE_BYTES), b'')
    lines = [*itertools.islice(filter(bytes.strip, every), _NUM_HEAD_LINES)]
  header = _HEADER.fullmatch(first)
  if reading.has_header is not None:
    header = _expected(header, reading.has_header)
  if any(_COMMAS.fullmatch(x) for x in [first, *lines][:2]):
    raise ValueError(
      'its numbers have decimal commas', "write points (tr ',' '.')"
    )
  num_rows, is_text = None, True
  if header:
    num_rows, dim = map(int, header.groups())
    is_text = bool(lines) and _is_text(lines[0], dim)
  else:
    counts = collections.Counter(map(_num_numbers, [first, *lines]))
    dim = counts.most_common(1)[0][0]
    if b'\r' in first.rstrip() and not lines:
      raise ValueError(
        'its lines end in carriage returns alone', "convert it (tr '\\r' '\\n')"
      )
    if dim < 2 or not _num_numbers(first):
      raise ValueError(
        'it is no word2vec file: expected a first line `vocab dim` (text or '
        'binary), or a word and its numbers, such as `the 0.1 -0.2`'
      )
  if num_rows == 0 or not 0 < dim <= _MAX_DIM:
    raise ValueError(f'it holds no vectors: its header says {num_rows} x {dim}')
  if reading.is_binary not in (None, not is_text):
    kind = 'text' if is_text else 'binary'
    raise ValueError(f'it is a {kind} file', f'give binary={not is_text}')
  # No room is made for what a damaged header promises.
  with _open(path, wide) as file:
    if header:
      file.readline()
    if num_rows is None or is_text:
      rows = _read_text(file, num_rows, dim, limit=reading.limit)
    else:
      rows = _read_binary(file, num_rows, dim, limit=reading.limit)
  num_fractions = sum(bool(_FRACTION.fullmatch(x)) for x in rows.words)
  if not header and num_fractions > max(1, len(rows.words) / 2):
    raise ValueError(
      'its rows are numbers without words', 'write a word before those of each'
    )
  if num_rows is not None:
    num_wanted = _least(num_rows, reading.limit)
    if len(rows.words) < num_wanted:
      raise ValueError(
        f'it holds {len(rows.words)} of the {num_wanted} vectors that its '
        'first line promises'
      )
  return rows


def _expected(
  header: re.Match[bytes] | None, has_header: bool
) -> re.Match[bytes] | None:
  """Returns the header if there is to be one; raises a `ValueError`."""
  if has_header and header is None:
    raise ValueError(
      'its first line is not `vocab dim`', 'give no_header=True if it has none'
    )
  return header if has_header else None


def _least(number: int, limit: int | None) -> int:
  """Returns the number, or a limit below it; None = no limit."""
  return number if limit is None else min(number, limit)


def _num_numbers(line: bytes) -> int:
  """Returns how many numbers stand at the end of a line, without its word."""
  fields = line.split()
  num = 0
  for field in reversed(fields):
    if not _is_number(field):
      break
    num += 1
  is_all = num == len(fields) > 0  # the first is a word if no space precedes it
  return num - (is_all and not line[:1].isspace())


def _is_number(field: bytes) -> bool:
  try:
    float(field)
  except ValueError:
    return False
  return True


def _is_text(line: bytes, dim: int) -> bool:
  """Whether the line behind a header is a row of text, perhaps a bad one."""
  num = _num_numbers(line)
  return num >= dim or (num > 0 and not _CONTROLS.search(line))


def _read_text(
  file: BinaryIO, num_rows: int | None, dim: int, limit: int | None = None
) -> _Rows:
  words: list[bytes] = []
  values, num_extra = array.array('f'), 0
  most = _MAX_WORD_BYTES + dim * _MAX_NUMBER_BYTES
  lines = iter(lambda: file.readline(most), b'')
  for number, line in enumerate(lines, 1 if num_rows is None else 2):
    if len(line) == most and not line.endswith(b'\n'):
      raise ValueError(
        f'line {number} has more than {most:,} bytes for a word and {dim:,} '
        'numbers'
      )
    line = line.rstrip()
    if not line:
      continue
    if len(words) == limit:
      break
    word, numbers, row = _row(line, dim)
    if len(words) == num_rows:
      raise ValueError(
        f'line {number} follows the {num_rows:,} vectors that its first line '
        'promises', _HEADER_REMEDY,
      )  # fmt: skip
    is_extra = b' ' in word and _NUMBER.search(word)
    if len(row) < dim or (is_extra and _is_of_vector(word, numbers)):
      problem = f'line {number}: {_num_numbers(line)} numbers behind a word, '
      if num_rows is None:
        raise ValueError(f'{problem}not {dim}, as in other lines')
      raise ValueError(
        f'{problem}not {dim}, as its first line says', _HEADER_REMEDY
      )
    num_extra += bool(is_extra)
    words.append(word)
    values.extend(row)
  if num_extra > max(1, len(words) / 2):
    raise ValueError(
      f'{num_extra:,} of {len(words):,} rows have more numbers than {dim}',
      'correct or remove its first line',
    )
  for strip, space in ((bytes.lstrip, 0), (bytes.rstrip, -1)):
    if all(x[space : space + 1 or None].isspace() for x in words):
      words = [*map(strip, words)]  # of columns that are aligned
  return _Rows(words, values)


def _row(
  line: bytes, dim: int
) -> tuple[bytes, Sequence[bytes], Sequence[float]]:
  """Returns a word and its numbers, as they are and as floats; () = too few."""
  last = b'\t' if line.rfind(b'\t') > line.rfind(b' ') else b' '
  for sign in last, None:  # None = any spaces
    word, *numbers = line.rsplit(sign, dim)
    if sign is None and len(numbers) == dim - 1 and line[:1].isspace():
      word, numbers = b'', [word, *numbers]
    if len(numbers) == dim:
      try:
        return word, numbers, [*map(float, numbers)]
      except ValueError:
        continue
  return word, numbers, ()


def _is_of_vector(word: bytes, numbers: Sequence[bytes]) -> bool:
  """Whether the number at the end of a word looks like those behind it.

  Names end in whole numbers, and seldom in others.
  """
  is_whole = word.rsplit(None, 1)[-1].isdigit()
  return not is_whole or all(x.isdigit() for x in numbers)


def _has_end(data: bytes, size: int) -> bool:
  """Whether a first binary row ends a line, at any space within its word."""
  space = data.find(b' ')
  while space >= 0 and not _CONTROLS.search(data[:space]):
    if data[space + 1 + size :][:1] == b'\n':
      return True
    space = data.find(b' ', space + 1)
  return False


def _read_binary(
  file: BinaryIO, num_rows: int, dim: int, limit: int | None = None
) -> _Rows:
  """Reads rows that all end in a line end, or none."""
  words: list[bytes] = []
  values, data, position = bytearray(), b'', 0
  num_needed = _MAX_WORD_BYTES + 4 * dim + 2
  has_ends = None
  num_wanted = _least(num_rows, limit)
  while len(words) < num_wanted:
    if len(data) - position < num_needed:
      data = data[position:] + file.read(max(_BLOCK_BYTES, num_needed))
      position = 0
    end = position + _MAX_WORD_BYTES
    space = data.find(b' ', position, end)
    stop = space + 1 + 4 * dim
    if has_ends is None:
      has_ends = _has_end(data[:end], 4 * dim)
    while has_ends and space >= 0 and stop < len(data) and data[stop] != 10:
      space = data.find(b' ', space + 1, end)  # in a word with spaces
      stop = space + 1 + 4 * dim
    if space < 0 and len(data) > end:
      raise ValueError(f'there is no word before vector {len(words) + 1}')
    if space < 0 or stop > len(data):
      return _Rows(words, values)
    word = data[position:space]
    if not has_ends:  # old files have line ends before words
      word = word.lstrip(b'\n')
    if b'\n' in word or (b'\0' in word and not has_ends):
      raise ValueError(
        f'vector {len(words) + 1} has no word before it: {dim} numbers, as its '
        'first line says, are not those of a row', 'correct its first line',
      )  # fmt: skip
    words.append(word)
    values += data[space + 1 : stop]
    position = stop + has_ends
  rest = (data[position:] + file.read(_BLOCK_BYTES)).strip(b'\r\n')
  if rest and num_wanted == num_rows:
    raise ValueError(
      f'{len(rest):,} bytes or more follow the {num_rows:,} vectors of {dim} '
      'numbers that its first line promises', 'correct its first line',
    )  # fmt: skip
  # Without line ends a space within a word shifts what is behind it.
  return _Rows(words, values, max_invalid=0.01 if has_ends else 0)
