"""The export folder of a run, and reading vectors in any form.

    vectors.npy   rows in their storage dtype         vectors.bin   word2vec
    vocab.txt     `word count` a line, by row         vectors.txt   word2vec
    projector/    for the TensorBoard projector       orbax/        all tables
    relations.npz  how edges score: operators of relations, if there are any
    attributes.npz  values of words by name, see `storage.attributes`
    export.json   the number of the format of all files of vectors
    targets.npy   vectors of nodes as targets of edges, where these are others
    tree.npz      of hierarchical softmax: what is above each word and node, 2
                  node + code, and -1 above the root (rows: `inner_nodes` of
                  orbax/)

Row i of every file is line i of vocab.txt. vectors.npy has float32 or float16;
bfloat16 as NumPy's `V2` (`np.load(path).view(ml_dtypes.bfloat16)` reads it); or
int8, where number j of row i is x[i, j] * s[i] with the s of scales.npy.

`tensorboard --logdir=projector` shows the most frequent words;
projector.tensorflow.org takes the two .tsv files by hand. Both draw at most
100,000 points.
"""

import bisect
import contextlib
import dataclasses
import errno
import json
import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, BinaryIO, NamedTuple, cast

import ml_dtypes
import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic, damage, formats, word2vec_format

VECTORS, SCALES, CONTEXTS = 'vectors.npy', 'scales.npy', 'context_vocab.txt'
RELATIONS, TARGETS, TREE = 'relations.npz', 'targets.npy', 'tree.npz'
SUBWORDS = 'subwords.json'  # see evaluation.subwords
DOCUMENTS = 'words/documents.json'  # see documents.trained
FORMAT = formats.Format(
  'an export',
  number=1,
  remedy='load it with that version, and give what save_word2vec_format writes',
)
_FORMAT_FILE = 'export.json'
_MAX_PROJECTOR_WORDS = 100_000
# At once; to read a number of a row may take the whole row.
_BLOCK_BYTES, _BLOCK_ROWS = 1 << 22, 1 << 14
_PROJECTOR_CONFIG = b"""embeddings {
  tensor_name: "words"
  tensor_path: "tensors.tsv"
  metadata_path: "metadata.tsv"
}
"""


class LazyRows:
  """A read-only array whose rows are read when they are asked for.

  It is indexed as an array is, and `np.asarray` reads all of it; what else
  arrays can do is one line that says so. Classes of it have a `shape`, a
  `dtype` and `read`.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  read: Callable[[np.ndarray], np.ndarray]  # different rows [n] -> [n, ...]

  def read_into(self, first: int, block: np.ndarray) -> None:
    """Fills a block [n, ...] with the rows from `first` on."""
    block[...] = self.read(np.arange(first, first + len(block)))

  def __len__(self) -> int:
    return self.shape[0]

  @property
  def ndim(self) -> int:
    """Returns the number of axes."""
    return len(self.shape)

  @property
  def size(self) -> int:
    """Returns how many numbers all rows have."""
    return math.prod(self.shape)

  @property
  def nbytes(self) -> int:
    """Returns the bytes of an array of all rows."""
    return self.size * np.dtype(self.dtype).itemsize

  def astype(self, dtype: Any) -> np.ndarray:
    """Returns an array of all rows in another type."""
    return np.asarray(self, dtype)

  def __getitem__(self, index: Any) -> np.ndarray:
    index = index if isinstance(index, tuple) else (index,)
    if not index or index[0] is None or index[0] is Ellipsis:
      return np.asarray(self)[index]
    first, *rest = index
    if isinstance(first, slice):
      return self._slice(np.arange(*first.indices(len(self))))[:, *rest]
    rows, positions = np.unique(self._rows(first), return_inverse=True)
    return self.read(rows)[positions, *rest]

  def _slice(self, rows: np.ndarray) -> np.ndarray:
    """Returns rows, read some at a time: reading may copy them twice."""
    if len(rows) <= _BLOCK_ROWS:
      return self.read(rows)
    result = np.empty((len(rows), *self.shape[1:]), self.dtype)
    for start in range(0, len(rows), _BLOCK_ROWS):
      some = slice(start, start + _BLOCK_ROWS)
      result[some] = self.read(rows[some])
    return result

  def _rows(self, index: Any) -> np.ndarray:
    """Returns the rows that ints or a mask select, from 0 on, of any shape."""
    rows = np.asarray(index)
    if rows.dtype == bool:
      if rows.shape != self.shape[:1]:
        raise IndexError(f'a mask of {rows.shape} is not of {len(self):,} rows')
      return np.flatnonzero(rows)
    rows = rows.astype(np.int64) if rows.size == 0 else rows
    if rows.dtype.kind not in 'iu':
      raise IndexError(
        f'{rows.dtype} are no rows; give ints, a slice or a mask'
      )
    if ((rows < -len(self)) | (rows >= len(self))).any():
      raise IndexError(f'rows {rows} are not all among {len(self):,}')
    return np.where(rows < 0, rows + len(self), rows)

  def __array__(self, dtype: Any = None, copy: bool | None = None):
    return np.asarray(self[:], dtype)

  def copy_to(self, out: np.ndarray) -> None:
    """Writes all rows to an array, some at a time."""
    first = 0
    for block in blocks(self):
      out[first : first + len(block)] = block
      first += len(block)

  def __eq__(  # type: ignore[override]  # by element, as of arrays
    self, other: object
  ) -> np.ndarray:
    return np.asarray(self) == other

  def __ne__(  # type: ignore[override]  # by element, as of arrays
    self, other: object
  ) -> np.ndarray:
    return np.asarray(self) != other

  __hash__ = object.__hash__  # as what the rows are read from

  def __getattr__(self, name: str) -> Any:
    """Raises an `AttributeError` that says how there is such an attribute."""
    raise AttributeError(
      f'{type(self).__name__!r} object has no attribute {name!r}: its rows are '
      'read when they are asked for; np.asarray(...) of it reads all'
    )


@dataclasses.dataclass(frozen=True, eq=False)
class OnDemand(LazyRows):
  """Rows that a function reads."""

  read: Callable[[np.ndarray], np.ndarray]  # different rows [n] -> [n, ...]
  shape: tuple[int, ...]
  dtype: np.dtype


class Encoded(NamedTuple):
  """Rows in a storage dtype, on the host, or read `OnDemand`."""

  data: np.ndarray  # [..., n, dim] float32, bfloat16, float16 or int8
  scales: np.ndarray | None = None  # [..., n] float32, of int8

  @property
  def dtype(self) -> str:
    """The name of the storage dtype."""
    return self.data.dtype.name

  def decode(self) -> np.ndarray:
    """[..., n, dim] float32; exact."""
    if isinstance(self.data, LazyRows):
      return self.on_demand()
    if self.scales is None:
      return self.data.astype(np.float32, copy=False)
    rows = self.data.astype(np.float32)
    rows *= self.scales[..., None]  # in place: large tables have little room
    return rows

  def on_demand(self) -> np.ndarray:
    """Returns [n, dim] float32, of which other types are decoded when read."""
    if self.data.dtype == np.float32 and self.scales is None:
      return self.data

    def read(rows):
      scales = None if self.scales is None else self.scales[rows]
      return Encoded(self.data[rows], scales).decode()

    rows = OnDemand(read, self.data.shape, np.dtype(np.float32))
    return cast(np.ndarray, rows)  # for which they stand


class Relations(NamedTuple):
  """How edges score; operators of relations, behind them the inverse ones."""

  operator: str  # as `config.model.operator`
  measure: str  # by which edges are ranked: product, cosine or distance
  temperature: float  # of cosines
  names: Sequence[str]
  rows: np.ndarray  # [names, dim] float32
  # [nodes, dim] float32, vectors as targets; None = the same ones.
  targets: np.ndarray | None = None

  @property
  def has_rows(self) -> bool:
    """Whether edges score by further rows than the vectors of nodes."""
    return self.operator != 'none' or self.targets is not None


def write_relations(folder: pathlib.Path, relations: Relations | None) -> None:
  """Writes relations.npz and targets.npy, or removes those of another run.

  Raises a `UserError` if it cannot be written.
  """
  if relations is None or relations.targets is None:
    atomic.remove(folder / TARGETS)
  else:
    with atomic.write(folder / TARGETS) as file:
      put_array(file, relations.targets)
  if relations is None:
    atomic.remove(folder / RELATIONS)
    return
  arrays = relations._asdict()
  arrays['has_targets'] = arrays.pop('targets') is not None
  arrays = {k: np.asarray(x) for k, x in arrays.items()}
  with atomic.write(folder / RELATIONS) as file:
    np.savez(file, **arrays)


def write_tree(
  folder: pathlib.Path, tree: tuple[np.ndarray, np.ndarray] | None
) -> None:
  """Writes tree.npz, of words and nodes, or removes that of another run.

  Raises a `UserError` if it cannot be written.
  """
  if tree is None:
    atomic.remove(folder / TREE)
    return
  with atomic.write(folder / TREE) as file:
    np.savez(file, words=tree[0], inner_nodes=tree[1])


def read_tree(
  folder: pathlib.Path, num_words: int
) -> tuple[np.ndarray, np.ndarray] | None:
  """Returns what `write_tree` has written, or None.

  Raises a `UserError` if it is damaged, or of another number of words.
  """
  path = folder / TREE
  if not path.exists():
    return None
  with reading(path):
    arrays = load_arrays(path)
    words, nodes = arrays['words'], arrays['inner_nodes']
    check_real(words, (num_words,))
    check_real(nodes, (num_words - 1,))
    # A node comes behind those above it.
    limits = np.append(np.full(num_words, num_words - 1), np.arange(len(nodes)))
    above = np.append(words, nodes)
    if nodes[0] != -1 or np.any(above >= 2 * limits) or np.sum(above < 0) != 1:
      raise ValueError('it is no tree')
    return words, nodes


def read_relations(folder: pathlib.Path, num_nodes: int) -> Relations | None:
  """What `write_relations` has written, or None.

  Raises a `UserError` if it is damaged, or of another number of nodes.
  """
  path = folder / RELATIONS
  if not path.exists():
    return None
  with reading(path):
    arrays = load_arrays(path)
    targets, measure, temperature = None, 'product', 0.0
    if arrays.get('has_targets', False):
      with reading(folder / TARGETS) as file:
        targets = open_array(file)
        check_real(targets, (num_nodes, *targets.shape[1:]))
    if 'measure' in arrays:
      measure = str(arrays['measure'])
      check_real(arrays['temperature'], ())
      temperature = float(arrays['temperature'])
    elif arrays['is_cosine']:  # of earlier exports, without a temperature
      measure, temperature = 'cosine', 1.0
    return Relations(
      operator=str(arrays['operator']),
      measure=measure,
      temperature=temperature,
      names=arrays['names'].tolist(),
      rows=arrays['rows'],
      targets=targets,
    )


def folders(path: str | os.PathLike[str]) -> list[pathlib.Path]:
  """Returns a folder and its export/, in either of which a model may be.

  Completes what was interrupted there, or in a folder that `merge` replaces
  with its export/; see `atomic.complete`. Raises a `UserError` for a name that
  no file can have.
  """
  try:
    os.stat(path)
  except (OSError, ValueError) as error:
    if getattr(error, 'errno', None) in (None, errno.ENAMETOOLONG):
      reason = getattr(error, 'strerror', None) or errors.one_line(error)
      raise errors.UserError(
        f'cannot read {path}: {reason}; give another path'
      ) from error
  found = [pathlib.Path(path), pathlib.Path(path, 'export')]
  outer = found[0].absolute()
  for folder in ([outer.parent] if outer.name == 'export' else []) + found:
    atomic.complete(folder)
  return found


@contextlib.contextmanager
def reading(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Raises a `UserError` that names a file of an export if it is damaged."""
  try:
    yield path
  except (OSError, *damage.ERRORS) as error:
    reason = getattr(error, 'strerror', None) or errors.one_line(error)
    raise errors.UserError(f'{path}: {reason}; export again') from error


def write(
  folder: pathlib.Path | str,
  words: Sequence[str],
  rows: Encoded,
  counts: np.ndarray | None,
  is_minimal: bool = False,
  context_words: Sequence[str] = (),
) -> dict[str, int]:
  """Writes every form of the vectors, with one spelling of the words.

  Row i of `rows`, [vocab, dim], is word i, which occurs `counts[i]` times, the
  most frequent first; a minimal export has no text or word2vec files, and may
  be of unknown counts (None).
  `context_words` are what rows of context vectors are of, if not of words. The
  files replace those of an earlier export together, once all are written.

  Returns, for the report, how many words were renamed, see
  `word2vec_format.spell`, and how many the projector does not show. Raises a
  `UserError` if a file cannot be written.
  """
  folder = pathlib.Path(folder)
  spelled, num_renamed = word2vec_format.spell(words)
  with atomic.together(folder) as new, contextlib.ExitStack() as stack:

    def create(name: str) -> BinaryIO:
      return stack.enter_context(atomic.write(new / name))

    put_array(create(VECTORS), rows.data)
    if rows.scales is not None:
      put_array(create(SCALES), rows.scales)
    if not is_minimal:
      if counts is None:
        raise ValueError('all but minimal exports need counts')
      vectors = rows.on_demand()
      word2vec_format.put_rows(
        create('vectors.bin'), words=spelled, vectors=vectors, is_binary=True
      )
      _put_texts(create, words=spelled, vectors=vectors, counts=counts)
    word2vec_format.put_counts(create('vocab.txt'), spelled, counts)
    create(_FORMAT_FILE).write(json.dumps(FORMAT.stamp()).encode())
    if context_words:
      names, _ = word2vec_format.spell(context_words)
      word2vec_format.put_counts(create(CONTEXTS), names, None)
    for name, is_there in ((SCALES, rows.scales), (CONTEXTS, context_words)):
      if is_there is None or not len(is_there):  # of an earlier export
        atomic.remove(new / name)
  return {
    'words_renamed_in_exports': num_renamed,
    'words_left_out_of_projector': max(len(words) - _MAX_PROJECTOR_WORDS, 0),
  }


def blocks(
  array: np.ndarray | LazyRows, start: int = 0, stop: int | None = None
) -> Iterator[np.ndarray]:
  """Rows of an array in memory, or read `OnDemand`, some at a time."""
  row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
  size = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
  stop = min(len(array), len(array) if stop is None else stop)
  for i in range(start, stop, size):
    yield np.ascontiguousarray(array[i : min(i + size, stop)])


def put_header(file: IO[bytes], dtype: Any, shape: Sequence[int]) -> None:
  """Writes the header of an .npy file.

  Its size is the same for any number of rows, which may be written later.
  """
  header = np.lib.format.header_data_from_array_1_0(np.empty(0, dtype))
  header['shape'] = tuple(shape)
  np.lib.format.write_array_header_1_0(file, header)


def put_array(file: IO[bytes], array: np.ndarray | LazyRows) -> None:
  """As `np.save`, of rows that need not be in memory all at once."""
  put_header(file, array.dtype, array.shape)
  for block in blocks(array):
    file.write(block.view(np.uint8))


def load_array(path: pathlib.Path, mmap_mode: str | None = None) -> np.ndarray:
  """Loads an .npy file; raises a `ValueError` if it is damaged."""
  array = _load(path, mmap_mode)
  if not isinstance(array, np.ndarray):
    array.close()
    raise ValueError('it is an archive, not one array')
  return array


def _load(path, mmap_mode=None):
  try:
    return np.load(path, mmap_mode=mmap_mode)
  except damage.ERRORS as error:
    if isinstance(error, (ValueError, EOFError)):
      raise
    is_large = isinstance(error, MemoryError)
    problem = 'it is too large' if is_large else 'its header is damaged'
    raise ValueError(f'{problem}: {errors.one_line(error)}') from error


def load_arrays(
  path: pathlib.Path, is_needed: Callable[[str], bool] = lambda name: True
) -> dict[str, np.ndarray]:
  """Loads arrays of an .npz file, by name, if these are needed.

  Raises one of `damage.ERRORS` if it is damaged.
  """
  file = _load(path)
  if isinstance(file, np.ndarray):
    raise ValueError('it is one array, not an archive of arrays')
  with file:
    try:
      arrays = {x: file[x] for x in file.files if is_needed(x)}
    except RuntimeError as error:  # such as of a member that is encrypted
      raise ValueError(errors.one_line(error)) from error
  for name, array in arrays.items():
    check_member(name, array)
  return arrays


def check_member(name: str, array: np.ndarray | bytes) -> None:
  """Raises a `ValueError` if a member of an .npz file is no array of its type.

  NumPy returns the bytes of other files, and arrays of text with numbers that
  are no characters.
  """
  if not isinstance(array, np.ndarray):
    raise ValueError(f'{name} in it is no array')
  if array.dtype.kind == 'U' and array.dtype.itemsize:
    codes = np.ascontiguousarray(array).view(f'{array.dtype.byteorder}u4')
    if np.any(codes > sys.maxunicode):
      raise ValueError(f'{name} in it has text that is damaged')


def check_real(array: np.ndarray, shape: tuple[int, ...]) -> None:
  """Raises a `ValueError` unless an array has real numbers in a shape."""
  is_real = array.dtype.kind in 'fiub' or array.dtype == ml_dtypes.bfloat16
  if not is_real or array.shape != shape:
    raise ValueError(
      f'it has {array.dtype} of shape {array.shape}; real numbers of shape '
      f'{shape} are needed'
    )


def open_array(path: pathlib.Path) -> np.ndarray:
  """Maps what `put_array` has written, bfloat16 too.

  Raises a `ValueError` for what is damaged.
  """
  array = load_array(path, mmap_mode='r')
  return array.view(ml_dtypes.bfloat16) if array.dtype == 'V2' else array


def _put_texts(
  create: Callable[[str], BinaryIO],
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray,
) -> None:
  """Writes vectors.txt, and its most frequent words for the projector."""
  order = np.argsort(-np.asarray(counts), kind='stable')
  rows = np.sort(order[:_MAX_PROJECTOR_WORDS]).tolist()
  tensors = create('projector/tensors.tsv')

  def show(start: int, lines: list[bytes]) -> None:
    stop = start + len(lines)
    first, last = (bisect.bisect_left(rows, x) for x in (start, stop))
    shown = b''.join(lines[row - start] + b'\n' for row in rows[first:last])
    tensors.write(shown.replace(b' ', b'\t'))

  text = create('vectors.txt')
  word2vec_format.put_rows(text, words, vectors, is_binary=False, seen=show)
  metadata = create('projector/metadata.tsv')
  lines = [f'{words[i]}\t{counts[i]}\n' for i in rows]
  table = ''.join(['word\tcount\n', *lines])
  metadata.write(table.encode('utf-8', 'backslashreplace'))
  create('projector/projector_config.pbtxt').write(_PROJECTOR_CONFIG)


def read(
  path: pathlib.Path | str, encoding: str = 'utf-8'
) -> word2vec_format.Vectors:
  """Reads a workdir, its export folder or vectors.npy, or a word2vec file.

  `encoding` is that of words in a file. Raises a `UserError` if it is missing,
  not recognised, cut or damaged.
  """
  path = pathlib.Path(path)
  folders(path.parent if path.name == VECTORS else path)
  if not path.is_dir() and path.name != VECTORS:
    return word2vec_format.read(path, encoding)
  folder = path if path.is_dir() else path.parent
  if (folder / 'export').is_dir():
    folder = folder / 'export'
  check_format(folder)
  try:
    rows = open_array(folder / VECTORS)
  except (OSError, *damage.ERRORS) as error:
    hint = 'a workdir whose run has ended, its export folder or a word2vec file'
    if (folder / 'parts').is_dir():
      hint = f'its sub-models, {folder}/parts/*, or let the run merge them'
    raise errors.UserError(
      f'no usable vectors.npy in {folder}: {error}; give {hint}'
    ) from error
  words, counts = word2vec_format.read_vocab(
    folder / 'vocab.txt', needs_counts=False
  )
  if rows.ndim != 2:
    raise errors.UserError(
      f'{folder}: vectors.npy has {rows.ndim} axes, not 2; export again'
    )
  # Before rows are decoded, which may take four times their bytes.
  if len(words) != len(rows):
    raise errors.UserError(
      f'{folder}: vocab.txt has {len(words)} words, vectors.npy has '
      f'{len(rows)} rows; export again'
    )
  return word2vec_format.Vectors(
    words=words,
    vectors=_decoded(rows, folder / VECTORS),
    counts=counts,
    folder=folder,
  )


def check_format(folder: pathlib.Path) -> None:
  """Raises a `UserError` for an export that this version cannot read."""
  path = folder / _FORMAT_FILE
  if path.exists():  # not in a folder that a user has filled
    with reading(path):
      FORMAT.check(folder, read_record(path))


def read_record(path: pathlib.Path) -> Any:
  """Reads a file of JSON; raises a `ValueError` or `OSError` if it cannot."""
  return json.loads(path.read_text('utf-8'))


def _decoded(rows: np.ndarray, path: pathlib.Path) -> np.ndarray:
  """[vocab, dim] float32, memory-mapped if stored as such."""
  if np.iscomplexobj(rows):
    raise errors.UserError(f'{path} has complex numbers; give real ones')
  with reading(path):
    check_real(rows, rows.shape)
  if rows.dtype != np.int8:
    return Encoded(np.asarray(rows)).decode()
  scales_path = path.with_name(SCALES)
  try:
    scales = load_array(scales_path)
    check_real(scales, rows.shape[:1])
  except (OSError, *damage.ERRORS) as error:
    raise errors.UserError(
      f'{path} has int8 rows, and their scales in {scales_path} cannot be '
      f'used: {error}; export again'
    ) from error
  return Encoded(rows, scales).decode()
