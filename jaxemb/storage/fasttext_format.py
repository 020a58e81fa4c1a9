"""fastText's model files, `.bin` and `.ftz`, of versions 11 and 12.

    int32      793712314, version
    settings   12 int32 and a float64, see `Settings`
    dictionary int32 entries, words, labels; int64 tokens, pruned n-grams;
               entries: word, 0 byte, int64 count, int8 type (0 word, 1 label);
               pruned n-grams: int32 bucket, int32 row
    bool       whether the input rows are quantized
    inputs     int64 rows, dim; float32 rows of words, then of n-grams
    bool       whether the output rows are quantized
    outputs    as the inputs; rows of words, of labels or of nodes of a tree

Numbers are little-endian. Quantized rows are codes of product quantization:
bool whether lengths are apart, int64 rows and dim, int32 bytes of codes, codes,
quantizer (int32 dim, parts, numbers of a part, of the last part; 256 float32
centroids of all parts), and codes and quantizer of lengths.

Rows stay in the file and are read when they are asked for, not mapped: pages of
a file of many GB would count as memory of the process.
"""

import dataclasses
import functools
import mmap
import os
import pathlib
import struct
import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import numba
import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic, export, packed

MAGIC = 793712314
_VERSIONS = 11, 12
_SETTINGS = struct.Struct('<12id')
MODELS = {1: 'cbow', 2: 'skipgram', 3: 'supervised'}
_LOSSES = {
  1: 'hierarchical_softmax',
  2: 'negative_sampling',
  3: 'softmax',
  4: 'one_vs_all',
}
_CENTROIDS = 256
_MAX_DIM = 1 << 20
_REMEDY = 'fetch or write the file again'
_OPENING = threading.Lock()
_MIN_COMPILED = 4  # runs of rows; fewer are not worth the call
# That of the C library.
_PREAD = numba.types.ExternalFunction(
  'pread',
  numba.int64(numba.int32, numba.uintp, numba.uintp, numba.int64),
)


class Settings(NamedTuple):
  """How a model was trained, as its file says."""

  dim: int
  window: int = 5
  epochs: int = 5
  min_count: int = 5
  negatives: int = 5
  word_ngrams: int = 1  # of classifiers
  loss: int = 2  # a key of _LOSSES
  model: int = 2  # a key of MODELS
  buckets: int = 0  # of n-grams of characters and of words
  min_chars: int = 0
  max_chars: int = 0  # 0 = no n-grams of characters
  update_rate: int = 100  # tokens between updates of the learning rate
  sample: float = 1e-4


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A model as its file has it; rows are read when they are asked for."""

  path: pathlib.Path
  status: tuple[int, int]  # size and time of the file that was opened
  settings: Settings
  words: list[str]  # different ones
  # Words as bytes, which n-grams are of: text[begins[i]:ends[i]].
  text: np.ndarray  # uint8
  begins: np.ndarray  # [words] int64
  ends: np.ndarray  # [words] int64
  counts: np.ndarray  # [words] int64
  num_tokens: int  # of the text, with those of words that have no row
  labels: list[str]
  inputs: export.LazyRows  # [words, dim] float32, without n-grams
  ngrams: export.LazyRows  # [n-grams, dim] float32
  # [n-grams] int32, buckets of the n-grams that were not pruned; None = all.
  buckets: np.ndarray | None
  # [words or labels, dim] float32; with hierarchical softmax [words of the
  # file, dim], of nodes of a tree.
  outputs: export.LazyRows

  @property
  def kind(self) -> str:
    """Returns cbow, skipgram or supervised."""
    return MODELS[self.settings.model]

  @property
  def loss(self) -> str:
    """Returns the name of the loss, which says what output rows are of."""
    return _LOSSES[self.settings.loss]


def is_model(path: pathlib.Path | str) -> bool:
  """Returns whether a file, plain or packed, is a model of fastText."""
  path = pathlib.Path(path)
  if not path.is_file():
    return False
  magic = struct.pack('<i', MAGIC)
  try:
    with packed.File(path) as file:
      return file.peek(len(magic)).startswith(magic)
  except (OSError, ValueError, errors.UserError):
    return False


def read(path: pathlib.Path | str) -> Model:
  """Reads all but the rows of a model.

  Warns of repeated words (the first is kept) and of words that are not UTF-8,
  of which bytes are escaped. Raises a `UserError` if the file is missing,
  packed, of another format or version, or cut.
  """
  path = pathlib.Path(path)
  try:
    return _read(path)
  except (OSError, ValueError, struct.error) as error:
    problem = getattr(error, 'strerror', None) or str(error)
    if isinstance(error, struct.error):
      problem = 'it is cut'
    line = f'cannot read {path}: {problem}'
    raise errors.UserError(
      line if ';' in line else f'{line}; {_REMEDY}'
    ) from error


def status_of(file: pathlib.Path | int) -> tuple[int, int]:
  """Returns the size and the time of a file, by its path or descriptor."""
  status = os.stat(file)
  return status.st_size, status.st_mtime_ns


class _File:
  """An open file; what is unpickled opens it again once a row is read."""

  def __init__(self, path: pathlib.Path):
    self.path = path.absolute()
    self._number: int | None = os.open(self.path, os.O_RDONLY)
    self.status = status_of(self._number)
    self.size = self.status[0]

  @property
  def number(self) -> int:
    """Returns the descriptor.

    Raises a `UserError` if the file is gone or was changed.
    """
    with _OPENING:
      if self._number is None:
        self._number = self._reopened()
      return self._number

  def _reopened(self) -> int:
    """Returns a new descriptor of the file, if it is as it was."""
    try:
      file = _File(self.path)
      if file.status != self.status:
        raise OSError('it was changed')
    except OSError as error:
      raise errors.UserError(
        f'cannot read rows of {self.path}: {error.strerror or error}; load the '
        'file as it is now, or pickle vectors.in_memory()'
      ) from error
    # `file` no longer closes it.
    number, file._number = cast(int, file._number), None
    return number

  def fill(self, buffer: np.ndarray, position: int) -> None:
    """Reads bytes from a position until a buffer of uint8 is full."""
    view = memoryview(buffer)
    while view:
      num = os.preadv(self.number, [view], position)
      if not num:
        raise errors.UserError(
          f'{self.path} was cut while it was read; {_REMEDY}'
        )
      view, position = view[num:], position + num

  def __getstate__(self) -> dict:
    return self.__dict__ | {'_number': None}

  def __deepcopy__(self, memo: dict) -> '_File':
    return self

  def __del__(self, close=os.close):  # modules may be gone before it
    if (number := self.__dict__.get('_number')) is not None:
      close(number)


class _Cursor:
  """Reads what a file has one after the other."""

  def __init__(self, file: _File):
    self.file = file
    self.position = 0

  def skip(self, num_bytes: int, what: str) -> int:
    """Returns the position, and moves behind some bytes."""
    start, self.position = self.position, self.position + num_bytes
    if num_bytes < 0 or self.position > self.file.size:
      raise ValueError(
        f'it is cut or damaged: {self.file.size:,} bytes, and its {what} would '
        f'end at {self.position:,}'
      )
    return start

  def unpack(self, layout: str, what: str) -> tuple:
    """Returns numbers."""
    size = struct.calcsize(layout)
    start = self.skip(size, what)
    return struct.unpack(layout, os.pread(self.file.number, size, start))

  def array(self, dtype: str, num: int, what: str) -> np.ndarray:
    """Returns an array that is read at once."""
    # Checked before there is memory for it.
    start = self.skip(np.dtype(dtype).itemsize * num, what)
    array = np.empty(num, dtype)
    self.file.fill(array.view(np.uint8), start)
    return array


class _Dictionary(NamedTuple):
  """Entries of the dictionary: words, and labels behind them."""

  names: list[str]
  text: np.ndarray
  begins: np.ndarray
  ends: np.ndarray
  counts: np.ndarray
  num_words: int
  num_tokens: int
  first: np.ndarray | None  # [different words] int64; None = all words differ


def _read(path: pathlib.Path) -> Model:
  cursor = _Cursor(_File(path))
  settings = _read_settings(cursor, path)
  entries, num_pruned = _read_dictionary(cursor)
  pruned = None
  if num_pruned >= 0:
    pruned = cursor.array('<i4', 2 * num_pruned, 'pruned n-grams')
    pruned = pruned.reshape(-1, 2)
  inputs, outputs = _read_matrices(cursor, has_pruned=pruned is not None)
  num_ngrams = settings.buckets if pruned is None else num_pruned
  expected = entries.num_words + num_ngrams, settings.dim
  if inputs.shape != expected or outputs.shape[1] != settings.dim:
    raise ValueError(
      f'it has input rows {inputs.shape} and output rows {outputs.shape}, and '
      f'its header and dictionary say {expected}'
    )
  words: slice | np.ndarray = slice(entries.num_words)
  names = entries.names[: entries.num_words]
  rows: export.LazyRows = inputs.part(0, entries.num_words)
  if entries.first is not None:
    words = entries.first
    names = [names[i] for i in words.tolist()]
    rows = _selected(rows, words)
    is_of_words = MODELS[settings.model] != 'supervised'
    if is_of_words and _LOSSES[settings.loss] != 'hierarchical_softmax':
      outputs = _selected(outputs, words)
  return Model(
    path=path,
    status=cursor.file.status,
    settings=settings,
    words=names,
    text=entries.text,
    begins=entries.begins[words],
    ends=entries.ends[words],
    counts=entries.counts[words],
    num_tokens=entries.num_tokens,
    labels=entries.names[entries.num_words :],
    inputs=rows,
    ngrams=inputs.part(entries.num_words, len(inputs)),
    buckets=_buckets_of(pruned, settings.buckets),
    outputs=outputs,
  )


def _read_settings(cursor: _Cursor, path: pathlib.Path) -> Settings:
  magic, version = cursor.unpack('<2i', 'header')
  if magic != MAGIC:
    if any(path.name.endswith(x) for x in packed.SUFFIXES):
      raise ValueError('rows are read from places of the file; unpack it first')
    raise ValueError('it is no model of fastText; give its .bin or .ftz')
  if version not in _VERSIONS:
    raise ValueError(
      f'its version is {version}, which may hash n-grams otherwise; write it '
      f'with a fastText of version {" or ".join(map(str, _VERSIONS))}'
    )
  settings = Settings(*cursor.unpack('<12id', 'settings'))
  is_known = settings.model in MODELS and settings.loss in _LOSSES
  if not is_known or settings.buckets < 0 or not 0 < settings.dim <= _MAX_DIM:
    raise ValueError(f'its header is damaged: {settings}')
  is_old_classifier = version == 11 and MODELS[settings.model] == 'supervised'
  chars = max(settings.min_chars, 1), settings.max_chars
  if is_old_classifier or chars[0] > chars[1] or not settings.buckets:
    chars = 0, 0
  return settings._replace(min_chars=chars[0], max_chars=chars[1])


def _read_dictionary(cursor: _Cursor) -> tuple[_Dictionary, int]:
  """Returns the entries, and the number of pruned n-grams or -1."""
  sizes = cursor.unpack('<3i2q', 'dictionary')
  num_entries, num_words, num_labels, num_tokens, num_pruned = sizes
  if min(sizes[:3]) < 0 or num_entries != num_words + num_labels:
    raise ValueError(
      f'its dictionary is damaged: {num_entries:,} entries, {num_words:,} '
      f'words and {num_labels:,} labels'
    )
  text, begins, ends, counts, hashes = _read_entries(cursor, num_entries)
  names, has_escaped = _decoded(text, cursor.file.path)
  first = None
  # np.unique of NumPy 2.4 takes 20 times as long: it hashes.
  is_repeated = (np.diff(np.sort(hashes[:num_words])) == 0).any()
  if has_escaped or is_repeated:
    row_of: dict[str, int] = {}
    for row, name in enumerate(names[:num_words]):
      row_of.setdefault(name, row)
    if len(row_of) < num_words:
      first = np.array([*row_of.values()])
      warnings.warn(
        f'{cursor.file.path}: {num_words - len(first):,} repeated words, the '
        'first kept',
        stacklevel=6,
      )
  entries = _Dictionary(
    names,
    text,
    begins=begins,
    ends=ends,
    counts=counts,
    num_words=num_words,
    num_tokens=num_tokens,
    first=first,
  )
  return entries, num_pruned


def _read_entries(cursor: _Cursor, num: int) -> tuple[np.ndarray, ...]:
  """Returns text, begins, ends, counts and hashes of entries, of the words."""
  number = cursor.file.number
  with mmap.mmap(number, 0, access=mmap.ACCESS_READ) as mapped:
    data = np.frombuffer(mapped, np.uint8)
    # An entry has ten bytes or more: none is made for what is not there.
    ends = np.empty(min(num, len(data) // 10 + 1), np.int64)
    stop = _find_entries(data, cursor.position, ends)
    if len(ends) < num or stop < 0:
      del data
      raise ValueError(f'it is cut or damaged in its {num:,} words')
    starts = np.append(cursor.position, ends[:-1] + 10)[:num]
    lengths = ends - starts
    stops = np.cumsum(lengths + 1) - 1  # a 0 behind each word
    begins = stops - lengths
    text = np.zeros(stops[-1] + 1 if num else 0, np.uint8)
    counts, hashes = np.empty(num, np.int64), np.empty(num, np.uint64)
    _copy_entries(data, starts, ends, begins, text, counts, hashes)
    del data
  cursor.skip(stop - cursor.position, 'words')
  return text, begins, stops, counts, hashes


@numba.njit(nogil=True, cache=True)
def _find_entries(data, position, ends):
  """Writes where words end; returns where the last entry does, or -1."""
  for i in range(len(ends)):
    while position < len(data) and data[position] != 0:
      position += 1
    ends[i] = position
    position += 10
    if position > len(data):
      return -1
  return position


@numba.njit(nogil=True, cache=True)
def _copy_entries(data, starts, ends, begins, text, counts, hashes):
  for i in range(len(starts)):
    value = np.uint64(14695981039346656037)  # FNV-1a
    for j in range(ends[i] - starts[i]):
      byte = data[starts[i] + j]
      text[begins[i] + j] = byte
      value = (value ^ np.uint64(byte)) * np.uint64(1099511628211)
    hashes[i] = value
    count = np.uint64(0)
    for j in range(8):
      count |= np.uint64(data[ends[i] + 1 + j]) << np.uint64(8 * j)
    counts[i] = np.int64(count)


def _decoded(text: np.ndarray, path: pathlib.Path) -> tuple[list[str], bool]:
  """Returns the names of entries, and whether bytes of any are escaped."""
  data = text.tobytes()
  try:
    return data.decode().split('\0')[:-1], False
  except UnicodeDecodeError:
    words = data.split(b'\0')[:-1]
  names = [x.decode(errors='backslashreplace') for x in words]
  num = sum(x.encode() != y for x, y in zip(names, words, strict=True))
  warnings.warn(
    f'{path}: {num:,} words that are not UTF-8, with bytes escaped',
    stacklevel=6,
  )
  return names, True


def _read_matrices(
  cursor: _Cursor, has_pruned: bool
) -> tuple['_DenseRows | _QuantizedRows', export.LazyRows]:
  """Returns the rows of inputs and outputs."""
  (is_quantized,) = cursor.unpack('<?', 'input rows')
  if has_pruned and not is_quantized:
    raise ValueError('it lacks pruned rows; quantize the model again')
  read = _read_quantized if is_quantized else _read_dense
  inputs = read(cursor, 'input rows')
  (is_quantized_too,) = cursor.unpack('<?', 'output rows')
  read = read if is_quantized_too else _read_dense
  outputs = read(cursor, 'output rows')
  if cursor.position != cursor.file.size:
    raise ValueError(
      f'{cursor.file.size - cursor.position:,} bytes follow its output rows'
    )
  return inputs, outputs


@dataclasses.dataclass(frozen=True, eq=False)
class _DenseRows(export.LazyRows):
  """Float32 rows of a file."""

  file: _File
  start: int  # position of the first row
  shape: tuple[int, int]

  dtype = np.dtype(np.float32)

  def read(self, rows: np.ndarray) -> np.ndarray:
    block = np.empty((len(rows), self.shape[1]), '<f4')
    if not len(rows):
      return block
    # Neighbors are read at once.
    firsts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    lasts, num_read = np.append(firsts[1:], len(rows)), 0
    if len(firsts) >= _MIN_COMPILED:
      row_bytes = block.itemsize * block.shape[1]
      num_read = _read_runs(
        self.file.number,
        positions=self.start + row_bytes * rows[firsts],
        offsets=row_bytes * firsts,
        sizes=row_bytes * (lasts - firsts),
        out=block.view(np.uint8).reshape(-1),
      )
    runs = np.stack([firsts, lasts], axis=1)[num_read:]
    for first, last in runs.tolist():  # what is left, and what an error is of
      self.read_into(int(rows[first]), block[first:last])
    return block

  def read_into(self, first: int, block: np.ndarray) -> None:
    position = self.start + 4 * self.shape[1] * first
    self.file.fill(block.view(np.uint8).reshape(-1), position)

  def part(self, start: int, stop: int) -> '_DenseRows':
    """Returns the rows from `start` to `stop`."""
    position = self.start + 4 * self.shape[1] * start
    return _DenseRows(self.file, position, (stop - start, self.shape[1]))


@numba.njit(nogil=True, cache=True)
def _read_runs(number, positions, offsets, sizes, out):
  """Reads bytes from positions of a file to offsets of an array.

  Returns how many runs were read whole. A loop of Python takes three times as
  long as the calls themselves.
  """
  data = out.ctypes.data
  for i in range(len(positions)):
    done = 0
    while done < sizes[i]:
      num = _PREAD(
        number, data + offsets[i] + done, sizes[i] - done, positions[i] + done
      )
      if num <= 0:
        return i
      done += num
  return len(positions)


def _read_dense(cursor: _Cursor, what: str) -> _DenseRows:
  num_rows, dim = cursor.unpack('<2q', what)
  if num_rows < 0 or not 0 < dim <= _MAX_DIM:
    raise ValueError(f'its {what} are damaged: {num_rows:,} x {dim:,}')
  start = cursor.skip(4 * num_rows * dim, what)
  return _DenseRows(cursor.file, start, (num_rows, dim))


@dataclasses.dataclass(frozen=True, eq=False)
class _QuantizedRows(export.LazyRows):
  """Rows of which parts are centroids."""

  codes: np.ndarray  # [rows, parts] uint8
  centroids: list[np.ndarray]  # of each part, [256, numbers] float32
  lengths: np.ndarray | None  # [rows] float32, to multiply with

  dtype = np.dtype(np.float32)

  @property
  def shape(self) -> tuple[int, ...]:  # type: ignore[override] # read only
    """Returns the numbers of rows and of dimensions."""
    return len(self.codes), sum(x.shape[1] for x in self.centroids)

  def read(self, rows: np.ndarray) -> np.ndarray:
    parts = [x[self.codes[rows, i]] for i, x in enumerate(self.centroids)]
    block = np.concatenate(parts, axis=1)
    return block if self.lengths is None else block * self.lengths[rows, None]

  def part(self, start: int, stop: int) -> '_QuantizedRows':
    """Returns the rows from `start` to `stop`."""
    lengths = None if self.lengths is None else self.lengths[start:stop]
    return _QuantizedRows(self.codes[start:stop], self.centroids, lengths)


def _read_quantized(cursor: _Cursor, what: str) -> _QuantizedRows:
  has_lengths, num_rows, dim, num_codes = cursor.unpack('<?2qi', what)
  codes = cursor.array('u1', num_codes, what)
  centroids = _quantizer(cursor, what)
  lengths = None
  if has_lengths:
    codes_of_lengths = cursor.array('u1', num_rows, what)
    lengths = _quantizer(cursor, what)[0][codes_of_lengths, 0]
  size = sum(x.shape[1] for x in centroids)
  if num_rows < 0 or size != dim or num_codes != num_rows * len(centroids):
    raise ValueError(
      f'its quantized {what} are damaged: {num_rows:,} x {dim:,}'
    )
  return _QuantizedRows(codes.reshape(num_rows, -1), centroids, lengths)


def _quantizer(cursor: _Cursor, what: str) -> list[np.ndarray]:
  """Returns the centroids of each part of a row, [256, numbers] float32."""
  dim, num_parts, size, last = cursor.unpack('<4i', what)
  if min(num_parts, size, last) < 1 or dim != (num_parts - 1) * size + last:
    raise ValueError(f'its quantizer of {what} is damaged')
  flat = cursor.array('<f4', _CENTROIDS * dim, what)
  ends = [_CENTROIDS * size * i for i in range(1, num_parts)]
  return [x.reshape(_CENTROIDS, -1) for x in np.split(flat, ends)]


def _selected(rows: export.LazyRows, ids: np.ndarray) -> export.OnDemand:
  """Returns rows by their ids, [n] rising int64."""
  read = functools.partial(_read_selected, rows, ids)
  return export.OnDemand(read, (len(ids), *rows.shape[1:]), rows.dtype)


def _read_selected(rows, ids, wanted):
  return rows.read(ids[wanted])


def _buckets_of(pruned: np.ndarray | None, num_buckets: int):
  """Returns the bucket of each row of n-grams that is left, [rows] int32."""
  if pruned is None:
    return None
  buckets = np.full(len(pruned), -1, np.int32)
  is_row = (pruned[:, 1] >= 0) & (pruned[:, 1] < len(pruned))
  buckets[pruned[is_row, 1]] = pruned[is_row, 0]
  if np.any(buckets < 0) or np.any(buckets >= num_buckets):
    raise ValueError('its pruned n-grams are damaged')
  return buckets


def write(
  path: pathlib.Path | str,
  settings: Settings,
  words: Sequence[str],
  counts: np.ndarray | None,
  inputs: Iterable[np.ndarray],
  outputs: np.ndarray | export.LazyRows,
  num_others: int = 0,
) -> None:
  """Writes a model of version 12, rows of words and n-grams in blocks.

  `inputs` are blocks of the [words + settings.buckets, dim] float32 rows.
  Unknown counts, and zeros, become 1: gensim refuses a model that has words
  without any. The text had `num_others` tokens beside those of words. Raises a
  `UserError` if the file cannot be written, or for a word with a character 0.
  """
  counts = np.ones(len(words), np.int64) if counts is None else counts
  counts = np.maximum(counts, 1)
  encoded = [x.encode('utf-8', 'backslashreplace') for x in words]
  if bad := [x for x in words if '\0' in x]:
    raise errors.UserError(
      f'{bad[0]!r} has a character 0, which ends words in a .bin; rename it'
    )
  pairs = zip(encoded, np.asarray(counts).tolist(), strict=True)
  num_rows = len(words) + settings.buckets
  with atomic.write(path) as file:
    file.write(struct.pack('<2i', MAGIC, _VERSIONS[-1]))
    file.write(_SETTINGS.pack(*settings))
    total = int(np.sum(counts)) + num_others
    file.write(struct.pack('<3i2q', len(words), len(words), 0, total, -1))
    file.writelines(b'%b\0%b' % (x, struct.pack('<qb', n, 0)) for x, n in pairs)
    file.write(struct.pack('<?2q', False, num_rows, settings.dim))
    num_written = 0
    for block in inputs:
      file.write(np.ascontiguousarray(block, '<f4').data)
      num_written += len(block)
    if num_written != num_rows:
      raise ValueError(f'{num_written} rows do not fit the {num_rows}')
    file.write(struct.pack('<?2q', False, *outputs.shape))
    for block in export.blocks(outputs):
      file.write(np.ascontiguousarray(block, '<f4').data)
