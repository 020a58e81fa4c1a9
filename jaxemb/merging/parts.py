"""The models to merge: opened wherever they are, checked, their words united.

A part is a run, an export, an earlier merge, an orbax checkpoint with a
vocab.txt, or a word2vec, GloVe or .vec file. Rows stay in their files. Every
read maps the file anew, so that earlier reads do not count as memory of this
process.
"""

import dataclasses
import functools
import itertools
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.senses import table as senses_lib
from jaxemb.storage import export, word2vec_format

_BLOCK_ROWS = 65_536
# Files that mark a folder written by orbax.
_ORBAX = ('_METADATA', 'manifest.ocdbt', '_CHECKPOINT_METADATA')


class DiskError(errors.UserError):
  """Rows cannot be written; the part is not to blame."""


@dataclasses.dataclass(frozen=True)
class Rows:
  """Rows of numbers, in memory or in a file.

  Attributes:
    shape: (rows, numbers per row).
    open: returns the whole array; a file is mapped anew.
    is_file: whether the rows are in a file.
  """

  shape: tuple[int, ...]
  open: Callable[[], np.ndarray]
  is_file: bool = False

  def read(self, ids: np.ndarray, out: np.ndarray) -> None:
    """Reads rows [b] into out [b, ...]; zeros for negative ids."""
    array, first = self.open(), int(ids[0])
    if first >= 0 and np.array_equal(ids, np.arange(first, first + len(ids))):
      out[:] = array[first : first + len(ids)]
      return
    has = ids >= 0
    if has.all():
      out[:] = array[ids]
      return
    out[:] = 0
    out[has] = array[ids[has]]


class Part(NamedTuple):
  """One of the models to merge."""

  name: str
  words: Sequence[str]  # distinct; names of rows where words have senses
  vectors: Rows
  # [words] int64, how often the part saw each word; a row of count 0 has
  # learned nothing and is ignored. None = unknown.
  counts: np.ndarray | None = None
  # Further rows of the same words: 'context_vectors' and the slots of row
  # optimizers, 'optimizer/vectors/<slot>', 'optimizer/context_vectors/<slot>'.
  trainable: Mapping[str, Rows] = {}
  # [words] float weights of its votes; None = by counts, or all alike.
  votes: np.ndarray | None = None
  senses: senses_lib.Senses | None = None  # of words with several vectors
  rms_norm: float | None = None  # root mean square length, once checked

  @property
  def dim(self) -> int:
    """Numbers of each vector."""
    return self.vectors.shape[1]


def as_rows(array: np.ndarray) -> Rows:
  """Rows of an array; of a whole memory-mapped file, rows of that file."""
  base: Any = array
  while base is not None and not isinstance(base, np.memmap):
    base = getattr(base, 'base', None)
  is_file = (
    base is not None
    and base.filename is not None
    and array.flags.c_contiguous
    and (base.shape, base.dtype) == (array.shape, array.dtype)
    and base.ctypes.data == array.ctypes.data
  )
  if not is_file:
    return Rows(array.shape, lambda: array)
  file = (base.filename, base.dtype, 'r', base.offset, base.shape)
  return Rows(array.shape, lambda: np.memmap(*file), True)


def write_rows(
  blocks: Iterable[np.ndarray],
  shape: tuple[int, ...],
  path: pathlib.Path | None,
) -> np.ndarray:
  """[rows, dim] float32 of all blocks: in an .npy file, mapped, or in memory.

  Raises:
    DiskError: the file cannot be written.
  """
  if path is None:
    array, row = np.empty(shape, np.float32), 0
    for block in blocks:
      array[row : row + len(block)] = block
      row += len(block)
    return array
  header = {'descr': '<f4', 'fortran_order': False, 'shape': shape}
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('wb') as file:
      np.lib.format.write_array_header_1_0(file, header)
      for block in blocks:
        file.write(np.ascontiguousarray(block, '<f4').data)
  except OSError as error:
    raise DiskError(
      f'cannot write {path}: {error.strerror or error}; free space or choose '
      'another --output'
    ) from error
  return np.load(path, mmap_mode='r')


def spool(array: np.ndarray, folder: pathlib.Path | None, name: str) -> Rows:
  """Moves an array to a file, so that it can be freed; None = no folder."""
  path = folder and folder / f'{name}.npy'
  return as_rows(write_rows([array], array.shape, path) if path else array)


def _attempt(
  attempts: Sequence[tuple[str, Callable[[], Part]]], skip_bad: bool, hint: str
) -> tuple[list[Part], list[dict[str, str]]]:
  """Parts that can be made, and those skipped, of (name, function) pairs."""
  made, skipped = [], []
  for name, make in attempts:
    try:
      made.append(make())
    except DiskError:
      raise
    except errors.UserError as error:
      if not skip_bad:
        raise errors.UserError(f'{error}; {hint} --skip-bad') from error
      skipped.append({'name': name, 'reason': str(error)})
  return made, skipped


# Opening.


def open_all(
  paths: Sequence[str], scratch: pathlib.Path, trainable: bool, skip_bad: bool
) -> tuple[list[Part], list[dict[str, str]]]:
  """Opens parts, see `open_part`.

  Returns:
    The parts; and {'name', 'reason'} of those left out, if allowed.

  Raises:
    errors.UserError: a part cannot be opened.
  """
  attempts = [
    (path, functools.partial(open_part, path, scratch / str(i), trainable))
    for i, path in enumerate(paths)
  ]
  return _attempt(attempts, skip_bad, 'or give')


def open_part(
  path: pathlib.Path | str,
  scratch: pathlib.Path | None = None,
  trainable: bool = False,
) -> Part:
  """Opens one part.

  Args:
    path: a workdir, an export folder, the output of a merge, an orbax
      checkpoint with a vocab.txt, or a word2vec, GloVe or .vec file.
    scratch: folder for rows that cannot be read in place; None = memory.
    trainable: whether to open context vectors and optimizer slots too.

  Raises:
    errors.UserError: it cannot be read, or lacks context vectors.
  """
  path = pathlib.Path(path)
  if _is_orbax(path) and not trainable:
    return _open_orbax(path, scratch)
  words, vectors, counts, remarks, folder = export.read(path)
  for remark in remarks:
    warnings.warn(f'{path}: {remark}', stacklevel=2)
  senses = senses_lib.read(folder, words, counts, vectors) if folder else None
  if trainable and senses is not None:
    raise errors.UserError(
      f'{path} has vectors of senses, which training cannot start from; leave '
      'out --trainable'
    )
  rows = as_rows(vectors)
  if not rows.is_file:
    rows = spool(vectors, scratch, 'vectors')
  more = {}
  if trainable and not (folder and has_trainable(folder)):
    raise errors.UserError(
      f'{path} has no context vectors of words (export/orbax/); give a run, or '
      'a merge with --trainable, or leave out --trainable'
    )
  if trainable:
    more = _open_trainable(folder, words, scratch)
  if counts is not None and np.all(counts == 1):
    counts = None  # a merge of parts with unknown counts
  if senses is not None and (folder.parent / 'vocab.txt').exists():
    counts = _counts_of_submodel(folder.parent / 'vocab.txt', words)
  return Part(str(path), words, rows, counts, more, senses=senses)


def has_trainable(path: pathlib.Path | str) -> bool:
  """Whether `open_part` can open context vectors and optimizer slots."""
  from jaxemb.storage import orbax_export

  path = pathlib.Path(path)
  folder = path.parent if path.name == 'vectors.npy' else path
  folder = folder / 'export' if (folder / 'export').is_dir() else folder
  if not (folder / 'orbax').is_dir():
    return False
  shapes = orbax_export.shapes(folder / 'orbax')
  # The outputs of hierarchical softmax are inner nodes, not words.
  return shapes.get('context_vectors', ())[:1] == shapes['vectors'][:1]


def _open_trainable(
  folder: pathlib.Path, words: Sequence[str], scratch: pathlib.Path | None
) -> dict[str, Rows]:
  """All of export/orbax/ but the vectors, by path in the tree."""
  from flax import traverse_util

  from jaxemb.storage import orbax_export

  tree = orbax_export.read(folder / 'orbax')
  if len(tree.pop('vectors')) != len(words):
    raise errors.UserError(
      f'{folder}: orbax/ does not have the {len(words):,} rows of vocab.txt; '
      'export again'
    )
  return {
    path: spool(array.reshape(len(words), -1), scratch, path)
    for path, array in traverse_util.flatten_dict(tree, sep='/').items()
  }


def _counts_of_submodel(file: pathlib.Path, names: Sequence[str]) -> np.ndarray:
  """How often the sub-model saw the words; the export counts the whole text."""
  words, counts = word2vec_format.read_vocab(file)
  if words != list(names):
    raise errors.UserError(
      f'{file} does not fit the {len(names):,} rows of the export; remove its '
      'folder and train that sub-model again'
    )
  return counts


def _is_orbax(path: pathlib.Path) -> bool:
  """Whether orbax wrote into a folder that is no run and no export."""
  if (path / 'export').is_dir() or (path / 'vectors.npy').exists():
    return False
  inside = [path, *path.glob('[0-9]*'), *path.glob('[0-9]*/*')]
  return any((folder / name).exists() for folder in inside for name in _ORBAX)


def _open_orbax(path: pathlib.Path, scratch: pathlib.Path | None) -> Part:
  """A checkpoint of another program, with vocab.txt in it or around it."""
  import jax

  from jaxemb.storage import orbax_export

  steps = [x for x in path.glob('*') if x.name.isdigit()]
  folder = max(steps, key=lambda x: int(x.name), default=path)
  if (folder / 'record').is_dir():
    raise errors.UserError(
      f'{path} has checkpoints that only training can read; give the folder of '
      'the run'
    )
  around = [path, *path.absolute().parents[:3]]
  files = [x / 'vocab.txt' for x in around if (x / 'vocab.txt').exists()]
  if not files:
    raise errors.UserError(
      f'{path} is a checkpoint without words: put a vocab.txt (`word count` '
      'lines, in order of the rows) into that folder'
    )
  words, counts = word2vec_format.read_vocab(files[0])
  if (folder / 'default').is_dir():
    folder = folder / 'default'
  arrays = jax.tree.leaves(orbax_export.read(folder))
  fitting = [x for x in arrays if x.ndim == 2 and len(x) == len(words)]
  if len(fitting) != 1:
    raise errors.UserError(
      f'{path}: expected one array of {len(words):,} rows, the words in '
      f'{files[0]}, found {len(fitting)}; save that array alone'
    )
  rows = spool(np.asarray(fitting[0], np.float32), scratch, 'vectors')
  return Part(str(path), words, rows, counts)


# Checking.


def check_all(
  parts: Sequence[Part], skip_bad: bool
) -> tuple[list[Part], list[dict[str, str]]]:
  """Checks parts, see `check_rows`.

  Returns:
    The parts; and {'name', 'reason'} of those left out, if allowed.

  Raises:
    errors.UserError: a part cannot be used, or fewer than two are left.
  """
  attempts = [(x.name, functools.partial(check_rows, x)) for x in parts]
  hint = 'make that part again, or go on without it:'
  usable, skipped = _attempt(attempts, skip_bad, hint)
  if len(usable) < 2:
    raise errors.UserError(
      f'there is nothing to merge: {len(usable)} of {len(parts)} part(s) can '
      'be used; give two or more' + ''.join(f'; {x["reason"]}' for x in skipped)
    )
  return usable, skipped


def check_rows(part: Part) -> Part:
  """Reads all rows; returns the part with the length of its vectors.

  Raises:
    errors.UserError: there is no row, or only zeros, or one is not finite.
  """
  num_rows = part.vectors.shape[0]
  if not num_rows or not part.dim:
    raise errors.UserError(
      f'{part.name} is empty: {num_rows:,} vectors of {part.dim:,} numbers'
    )
  if part.counts is not None and not np.any(part.counts > 0):
    raise errors.UserError(f'{part.name} is empty: all its counts are 0')
  for name, rows in part.trainable.items():
    _sum_squares(part, rows, f'vectors of {name}')
  total = _sum_squares(part, part.vectors, 'vectors')
  if not total:
    raise errors.UserError(f'{part.name} is empty: all its vectors are zero')
  return part._replace(rms_norm=float(np.sqrt(total / num_rows)))


def _sum_squares(part: Part, rows: Rows, what: str) -> float:
  total, bad = 0.0, []
  for first in range(0, rows.shape[0], _BLOCK_ROWS):
    block = rows.open()[first : first + _BLOCK_ROWS]
    # Numbers whose squares overflow are as bad as infinite ones.
    with np.errstate(over='ignore', invalid='ignore'):
      squares = np.vecdot(block, block)
    is_good = np.isfinite(squares)
    total += squares.sum(dtype=np.float64, where=is_good)
    bad += (first + np.flatnonzero(~is_good)).tolist()
  if bad:
    raise errors.UserError(
      f'{part.name}: {len(bad):,} of {rows.shape[0]:,} {what} are not finite '
      f'(that of {part.words[bad[0]]!r} is the first)'
    )
  return total


# Words.


class Union(NamedTuple):
  """The words of all parts, the most frequent first."""

  words: list[str]
  counts: np.ndarray  # [words] int64, summed; all 1 = unknown
  rows: np.ndarray  # [n, words] int32, row in each part, -1 = none
  has_counts: bool  # all parts have counts


def unite_words(
  parts: Sequence[Part], names: Sequence[str] | None = None
) -> Union:
  """The words of all parts, by falling count.

  Where a part has no counts, words are ordered by their best rank in any part;
  ties by first appearance. Words of count 0 in all parts are left out.

  Args:
    parts: n parts.
    names: all words in the wanted order; None = as above.
  """
  words = list(dict.fromkeys(itertools.chain(*(part.words for part in parts))))
  ids = dict(zip(words, range(len(words)), strict=True))
  rows = np.full((len(parts), len(words)), -1, np.int32)
  counts = np.zeros(len(words), np.int64)
  ranks = np.full(len(words), np.iinfo(np.int64).max)
  for i, part in enumerate(parts):
    mine = np.fromiter(map(ids.__getitem__, part.words), np.int32)
    order = np.arange(len(mine))
    if part.counts is not None:
      seen = part.counts > 0
      mine, order = mine[seen], order[seen]
      counts[mine] += part.counts[seen]
    rows[i, mine] = order
    ranks[mine] = np.minimum(ranks[mine], order)
  has_counts = all(part.counts is not None for part in parts)
  order = np.argsort(-counts if has_counts else ranks, kind='stable')
  if names is not None:
    order = np.array([ids[name] for name in names if name in ids], np.int64)
  order = order[(rows[:, order] >= 0).any(0)]
  return Union(
    [words[i] for i in order.tolist()],
    # Sums over some of the parts would be mistaken for those of all.
    counts[order] if has_counts else np.ones_like(order),
    np.ascontiguousarray(rows[:, order]),
    has_counts,
  )


def vote_weights(
  parts: Sequence[Part], rows: np.ndarray, by_counts: bool
) -> np.ndarray:
  """[b, n] float32 voting weights of the parts, per word.

  They sum to the number of parts that have the word, so that frequent words do
  not outweigh all others; parts share the sum by counts, or by their `votes`.

  Args:
    parts: n parts.
    rows: [n, b] int, row of each word in each part, -1 = none.
    by_counts: whether to use counts, which all parts have.
  """
  has = (rows >= 0).T.astype(np.float32)
  votes = [
    part.counts if by_counts and part.votes is None else part.votes
    for part in parts
  ]
  if any(mine is None for mine in votes):
    return has
  seen = np.zeros(has.shape)
  for i, mine in enumerate(votes):
    seen[:, i] = np.where(rows[i] >= 0, mine[np.maximum(rows[i], 0)], 0)
  seen = np.where(seen.any(1, keepdims=True), seen, has)
  total = np.maximum(seen.sum(1, keepdims=True), np.finfo(np.float64).tiny)
  return (seen / total * has.sum(1, keepdims=True)).astype(np.float32)
