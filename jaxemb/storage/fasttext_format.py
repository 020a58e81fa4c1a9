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
import mmap
import os
import pathlib
import struct
import warnings
from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic, export, packed

MAGIC = 793712314
_VERSIONS = 11, 12
_SETTINGS = struct.Struct('<12id')
_MODELS = {1: 'cbow', 2: 'skipgram', 3: 'supervised'}
_LOSSES = {
  1: 'hierarchical_softmax',
  2: 'negative_sampling',
  3: 'softmax',
  4: 'one_vs_all',
}
_CENTROIDS = 256
_MAX_DIM = 1 << 20
_REMEDY = 'fetch or write the file again'


class Settings(NamedTuple):
  """How a model was trained, as its file says."""

  dim: int
  window: int = 5
  epochs: int = 5
  min_count: int = 5
  negatives: int = 5
  word_ngrams: int = 1  # of classifiers
  loss: int = 2  # a key of _LOSSES
  model: int = 2  # a key of _MODELS
  buckets: int = 0  # of n-grams of characters and of words
  min_chars: int = 0
  max_chars: int = 0  # 0 = no n-grams of characters
  update_rate: int = 100  # tokens between updates of the learning rate
  sample: float = 1e-4


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A model as its file has it; rows are read when they are asked for."""

  settings: Settings
  words: list[str]
  # Words as bytes, which n-grams are of: text[begins[i]:ends[i]].
  text: np.ndarray  # uint8
  begins: np.ndarray  # [words] int64
  ends: np.ndarray  # [words] int64
  counts: np.ndarray  # [words] int64
  labels: list[str]
  inputs: export.OnDemand  # [words, dim] float32, their own rows
  ngrams: export.OnDemand  # [n-grams, dim] float32
  # [n-grams] int32, buckets of the n-grams that were not pruned; None = all.
  buckets: np.ndarray | None
  # [words, labels or inner nodes, dim] float32
  outputs: export.OnDemand

  @property
  def kind(self) -> str:
    """Returns cbow, skipgram or supervised."""
    return _MODELS[self.settings.model]

  @property
  def loss(self) -> str:
    """Returns the name of the loss, which says what output rows are of."""
    return _LOSSES[self.settings.loss]


def read(path: pathlib.Path | str) -> Model:
  """Reads all but the rows of a model.

  Warns of words that are not UTF-8, of which bytes are escaped. Raises a
  `UserError` if the file is missing, packed, of another format or version, or
  cut.
  """
  path = pathlib.Path(path)
  try:
    with path.open('rb') as file:
      return _read(file, path)
  except (OSError, ValueError, struct.error) as error:
    problem = getattr(error, 'strerror', None) or str(error)
    if isinstance(error, struct.error):
      problem = 'it is cut'
    line = f'cannot read {path}: {problem}'
    raise errors.UserError(
      line if ';' in line else f'{line}; {_REMEDY}'
    ) from error


class _Cursor:
  """Reads what a file has one after the other."""

  def __init__(self, file: BinaryIO):
    self.file = os.dup(file.fileno())
    self.size = os.fstat(self.file).st_size
    self.position = 0

  def skip(self, num_bytes: int, what: str) -> int:
    """Returns the position, and goes on behind some bytes."""
    start, self.position = self.position, self.position + num_bytes
    if num_bytes < 0 or self.position > self.size:
      raise ValueError(
        f'it is cut or damaged: {self.size:,} bytes, and its {what} would end '
        f'at {self.position:,}'
      )
    return start

  def unpack(self, layout: str, what: str) -> tuple:
    """Returns numbers."""
    size = struct.calcsize(layout)
    start = self.skip(size, what)
    return struct.unpack(layout, os.pread(self.file, size, start))

  def array(self, dtype: str, num: int, what: str) -> np.ndarray:
    """Returns an array that is read at once."""
    # Checked before there is memory for it.
    start = self.skip(np.dtype(dtype).itemsize * num, what)
    array = np.empty(num, dtype)
    _fill(self.file, array.view(np.uint8), start)
    return array


class _Handle:
  """A file that is open as long as rows of it may be read."""

  def __init__(self, number: int):
    self.number = number

  def __del__(self, close=os.close):  # modules may be gone before it
    close(self.number)


def _fill(file: int, buffer: np.ndarray, position: int) -> None:
  """Reads bytes from a position until a buffer of uint8 is full."""
  view = memoryview(buffer)
  while view:
    num = os.preadv(file, [view], position)
    if not num:
      raise errors.UserError('a model of fastText was cut while it was read')
    view, position = view[num:], position + num


def _read(file: BinaryIO, path: pathlib.Path) -> Model:
  cursor = _Cursor(file)
  handle = _Handle(cursor.file)
  settings = _read_settings(cursor, path)
  sizes = cursor.unpack('<3i2q', 'dictionary')
  num_entries, num_words, num_labels, _, num_pruned = sizes
  if min(sizes[:3]) < 0 or num_entries != num_words + num_labels:
    raise ValueError(
      f'its dictionary is damaged: {num_entries:,} entries, {num_words:,} '
      f'words and {num_labels:,} labels'
    )
  entries = _read_entries(file, cursor, num_entries)
  text, begins, ends, counts = entries
  names = _decoded(text, path)
  pruned = None
  if num_pruned >= 0:
    pruned = cursor.array('<i4', 2 * num_pruned, 'pruned n-grams')
    pruned = pruned.reshape(-1, 2)
  (is_quantized,) = cursor.unpack('<?', 'input rows')
  if pruned is not None and not is_quantized:
    raise ValueError('it lacks pruned rows; quantize the model again')
  inputs = _matrix(cursor, handle, is_quantized=is_quantized, what='input rows')
  (is_quantized_too,) = cursor.unpack('<?', 'output rows')
  outputs = _matrix(
    cursor,
    handle,
    is_quantized=is_quantized and is_quantized_too,
    what='output rows',
  )
  if cursor.position != cursor.size:
    raise ValueError(
      f'{cursor.size - cursor.position:,} bytes follow its output rows'
    )
  num_ngrams = settings.buckets if pruned is None else num_pruned
  expected = num_words + num_ngrams, settings.dim
  if inputs.shape != expected or outputs.shape[1] != settings.dim:
    raise ValueError(
      f'it has input rows {inputs.shape} and output rows {outputs.shape}, and '
      f'its header and dictionary say {expected}'
    )
  return Model(
    settings=settings,
    words=names[:num_words],
    text=text,
    begins=begins[:num_words],
    ends=ends[:num_words],
    counts=counts[:num_words],
    labels=names[num_words:],
    inputs=_part(inputs, 0, num_words),
    ngrams=_part(inputs, num_words, len(inputs)),
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
  is_known = settings.model in _MODELS and settings.loss in _LOSSES
  if not is_known or settings.buckets < 0 or not 0 < settings.dim <= _MAX_DIM:
    raise ValueError(f'its header is damaged: {settings}')
  is_old_classifier = version == 11 and _MODELS[settings.model] == 'supervised'
  chars = max(settings.min_chars, 1), settings.max_chars
  if is_old_classifier or chars[0] > chars[1] or not settings.buckets:
    chars = 0, 0
  return settings._replace(min_chars=chars[0], max_chars=chars[1])


def _read_entries(
  file: BinaryIO, cursor: _Cursor, num: int
) -> tuple[np.ndarray, ...]:
  """Returns text, begins, ends and counts of the entries of the dictionary."""
  with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
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
    counts = np.empty(num, np.int64)
    _copy_entries(data, starts, ends, begins, text, counts)
    del data
  cursor.skip(stop - cursor.position, 'words')
  return text, begins, stops, counts


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
def _copy_entries(data, starts, ends, begins, text, counts):
  for i in range(len(starts)):
    for j in range(ends[i] - starts[i]):
      text[begins[i] + j] = data[starts[i] + j]
    count = np.uint64(0)
    for j in range(8):
      count |= np.uint64(data[ends[i] + 1 + j]) << np.uint64(8 * j)
    counts[i] = np.int64(count)


def _decoded(text: np.ndarray, path: pathlib.Path) -> list[str]:
  if not len(text):
    return []
  data = text.tobytes()
  try:
    return data.decode().split('\0')[:-1]
  except UnicodeDecodeError:
    words = data.split(b'\0')[:-1]
  names = [x.decode(errors='backslashreplace') for x in words]
  num = sum(x.encode() != y for x, y in zip(names, words, strict=True))
  warnings.warn(
    f'{path}: {num:,} words that are not UTF-8, with bytes escaped',
    stacklevel=5,
  )
  return names


def _matrix(
  cursor: _Cursor, handle: _Handle, is_quantized: bool, what: str
) -> export.OnDemand:
  if is_quantized:
    return _quantized(cursor, what)
  num_rows, dim = cursor.unpack('<2q', what)
  if num_rows < 0 or not 0 < dim <= _MAX_DIM:
    raise ValueError(f'its {what} are damaged: {num_rows:,} x {dim:,}')
  start = cursor.skip(4 * num_rows * dim, what)

  def rows(ids: np.ndarray) -> np.ndarray:
    block = np.empty((len(ids), dim), '<f4')
    if not len(ids):
      return block
    size = 4 * dim
    flat = block.view(np.uint8)
    # Neighbors are read at once.
    firsts = np.flatnonzero(np.diff(ids, prepend=-2) != 1).tolist()
    for first, last in zip(firsts, [*firsts[1:], len(ids)], strict=True):
      position = start + size * int(ids[first])
      _fill(handle.number, flat[first:last].reshape(-1), position)
    return block

  return export.OnDemand(rows, (num_rows, dim), np.dtype(np.float32))


def _quantized(cursor: _Cursor, what: str) -> export.OnDemand:
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
  codes = codes.reshape(num_rows, -1)

  def rows(ids: np.ndarray) -> np.ndarray:
    parts = [x[codes[ids, i]] for i, x in enumerate(centroids)]
    block = np.concatenate(parts, axis=1)
    return block if lengths is None else block * lengths[ids, None]

  return export.OnDemand(rows, (num_rows, dim), np.dtype(np.float32))


def _quantizer(cursor: _Cursor, what: str) -> list[np.ndarray]:
  """Returns the centroids of each part of a row, [256, numbers] float32."""
  dim, num_parts, size, last = cursor.unpack('<4i', what)
  if min(num_parts, size, last) < 1 or dim != (num_parts - 1) * size + last:
    raise ValueError(f'its quantizer of {what} is damaged')
  flat = cursor.array('<f4', _CENTROIDS * dim, what)
  ends = [_CENTROIDS * size * i for i in range(1, num_parts)]
  return [x.reshape(_CENTROIDS, -1) for x in np.split(flat, ends)]


def _part(rows: export.OnDemand, start: int, stop: int) -> export.OnDemand:
  def read_rows(ids: np.ndarray) -> np.ndarray:
    return rows.read(ids + start)

  return export.OnDemand(read_rows, (stop - start, rows.shape[1]), rows.dtype)


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
  outputs: np.ndarray | export.OnDemand | None,
) -> None:
  """Writes a model of version 12, rows of words and n-grams in blocks.

  `inputs` are blocks of the [words + settings.buckets, dim] float32 rows.
  Unknown counts become 1; without outputs these are zeros. Raises a `UserError`
  if the file cannot be written, or for a word with a character 0.
  """
  counts = np.ones(len(words), np.int64) if counts is None else counts
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
    total = int(np.sum(counts))
    file.write(struct.pack('<3i2q', len(words), len(words), 0, total, -1))
    file.writelines(b'%b\0%b' % (x, struct.pack('<qb', n, 0)) for x, n in pairs)
    file.write(struct.pack('<?2q', False, num_rows, settings.dim))
    num_written = 0
    for block in inputs:
      file.write(np.ascontiguousarray(block, '<f4').data)
      num_written += len(block)
    if num_written != num_rows:
      raise ValueError(f'{num_written} rows do not fit the {num_rows}')
    num_outputs = len(words) if outputs is None else len(outputs)
    file.write(struct.pack('<?2q', False, num_outputs, settings.dim))
    for block in (
      zeros(num_outputs, settings.dim)
      if outputs is None
      else (export.blocks(outputs))
    ):
      file.write(np.ascontiguousarray(block, '<f4').data)


def zeros(num_rows: int, dim: int) -> Iterable[np.ndarray]:
  """Yields blocks of [num_rows, dim] float32 zeros."""
  block = np.zeros((min(num_rows, 4096), dim), np.float32)
  for first in range(0, num_rows, 4096):
    yield block[: num_rows - first]
