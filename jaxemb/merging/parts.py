"""The models to merge: opened wherever they are, checked, their words united.

A part is a run, an export, an earlier merge, an orbax checkpoint with a
vocab.txt, or a word2vec, GloVe or .vec file. Rows stay in their files. Every
read maps the file anew, so that earlier reads do not count as memory of this
process.
"""

import dataclasses
import itertools
import pathlib
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.merging import tables
from jaxemb.senses import table as senses_lib
from jaxemb.storage import checkpoint, export, word2vec_format

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
  # Further rows of the same words, by name: the context table and the slots of
  # row optimizers, `<table>.<slot>`.
  trainable: Mapping[str, Rows] = {}
  # [words] float weights of its votes; None = by counts, or all alike.
  votes: np.ndarray | None = None
  senses: senses_lib.Senses | None = None  # of words with several vectors

  @property
  def dim(self) -> int:
    """Numbers of each vector."""
    return self.vectors.shape[1]


def as_rows(array: np.ndarray) -> Rows:
  """Rows of an array; of a memory-mapped one, rows of its file."""
  base = array
  while base is not None and not isinstance(base, np.memmap):
    base = getattr(base, 'base', None)  # or the memory of another library
  is_whole = (
    base is not None
    and base.filename is not None
    and base.shape == array.shape
    and base.dtype == array.dtype
    and array.flags.c_contiguous
    and base.ctypes.data == array.ctypes.data
  )
  if not is_whole:
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


# Opening.


def open_all(
  paths: Sequence[str],
  scratch: pathlib.Path,
  trainable: bool,
  skip_bad: bool,
) -> tuple[list[Part], list[dict[str, str]]]:
  """Opens all parts.

  Args:
    paths: see `open_part`.
    scratch: folder for rows that cannot be read in place.
    trainable: whether to open context vectors and optimizer slots too.
    skip_bad: whether to leave out parts that cannot be opened.

  Returns:
    The parts; and {'name', 'reason'} of those left out.

  Raises:
    errors.UserError: a part cannot be opened.
  """
  opened, skipped = [], []
  for i, path in enumerate(paths):
    try:
      opened.append(open_part(path, scratch / str(i), trainable))
    except DiskError:
      raise
    except errors.UserError as error:
      if not skip_bad:
        raise errors.UserError(f'{error}; or give --skip-bad') from error
      skipped.append({'name': str(path), 'reason': str(error)})
  return opened, skipped


def open_part(
  path: pathlib.Path | str,
  scratch: pathlib.Path | None = None,
  trainable: bool = False,
) -> Part:
  """Opens one part.

  Args:
    path: a workdir, an export folder, the output of a merge, a folder of orbax
      checkpoints or one of them, or a word2vec, GloVe or .vec file.
    scratch: folder for rows that cannot be read in place; None = memory.
    trainable: whether to open context vectors and optimizer slots too.

  Raises:
    errors.UserError: it cannot be read, or lacks context vectors.
  """
  path = pathlib.Path(path)
  _check_model(path, trainable)
  if _is_checkpoint(path):
    return _open_checkpoint(path, scratch, trainable)
  home = _home(path)
  if trainable and _is_submodel(home):
    # Its export lacks the words that it has not seen, its tables do not.
    opened = _open_checkpoint(home / 'checkpoints', scratch, trainable)
    return opened._replace(name=str(path))
  words, vectors, counts, remarks, folder = export.read(path)
  for remark in remarks:
    warnings.warn(f'{path}: {remark}', stacklevel=2)
  senses = senses_lib.read(folder, words, counts, vectors) if folder else None
  if trainable and senses is not None:
    _refuse_senses(path)
  rows = as_rows(vectors)
  if not rows.is_file:
    rows = spool(vectors, scratch, 'vectors')
  more = {}
  if trainable:
    more = _open_tables(home, *rows.shape, scratch)
  if counts is not None and np.all(counts == 1):
    counts = None  # a merge of parts with unknown counts
  if senses is not None and _is_submodel(home):
    counts = _counts_of_submodel(home, words)
  return Part(str(path), words, rows, counts, more, senses=senses)


def has_trainable(path: pathlib.Path | str) -> bool:
  """Whether `open_part` can open context vectors and optimizer slots."""
  path = pathlib.Path(path)
  home, settings = _home(path), _run_settings(path)
  if _has_tree(settings) or _has_senses(settings):
    return False
  is_here = any((home / x).is_dir() for x in (tables.FOLDER, 'checkpoints'))
  return is_here if not _is_checkpoint(path) else bool(settings)


def _home(path: pathlib.Path) -> pathlib.Path:
  """The folder of the run or merge that a path belongs to."""
  path = path.parent if path.name == 'vectors.npy' else path
  return path.parent if path.name == 'export' else path


def _run_settings(path: pathlib.Path) -> Mapping[str, Mapping]:
  """Settings of the run that a path belongs to; {} = it is no run."""
  around = map(tables.settings, [path, *path.absolute().parents[:3]])
  return next(filter(None, around), {})


def _has_tree(settings: Mapping[str, Mapping]) -> bool:
  return settings.get('model', {}).get('loss') == 'hierarchical_softmax'


def _has_senses(settings: Mapping[str, Mapping]) -> bool:
  return settings.get('model', {}).get('name') == 'mixture'


def _check_model(path: pathlib.Path, trainable: bool) -> None:
  settings = _run_settings(path) if path.is_dir() else {}
  if _has_senses(settings):
    if trainable:
      _refuse_senses(path)
    if _is_checkpoint(path):
      raise errors.UserError(
        f'{path} is a checkpoint of config.model.name=mixture, which lacks the '
        'words of the senses; give the folder of the run or its export'
      )
  if trainable and _has_tree(settings):
    raise errors.UserError(
      f'{path} was trained with config.model.loss=hierarchical_softmax, whose '
      'other table is not one of words; leave out --trainable'
    )


def _refuse_senses(path: pathlib.Path) -> None:
  raise errors.UserError(
    f'{path} has vectors of senses, which training cannot start from; leave '
    'out --trainable'
  )


def _is_submodel(folder: pathlib.Path) -> bool:
  return (folder / 'checkpoints').is_dir() and (folder / 'vocab.txt').exists()


def _counts_of_submodel(
  folder: pathlib.Path, names: Sequence[str]
) -> np.ndarray:
  words, counts = word2vec_format.read_vocab(folder / 'vocab.txt')
  if words != list(names):
    raise errors.UserError(
      f'{folder}/vocab.txt does not fit the {len(names):,} rows of the export; '
      'remove the folder and train that sub-model again'
    )
  return counts


def _open_tables(
  folder: pathlib.Path, vocab: int, dim: int, scratch: pathlib.Path | None
) -> dict[str, Rows]:
  """Trainable rows of a run or a merge."""
  if (folder / tables.FOLDER).is_dir():
    opened = tables.of_merge(folder)
    wrong = [k for k, v in opened.items() if v.shape[0] != vocab]
    if wrong:
      raise errors.UserError(
        f'{folder / tables.FOLDER}: {wrong[0]} does not have the {vocab:,} '
        'words of the export; merge again'
      )
    return opened
  if not (folder / 'checkpoints').is_dir():
    raise errors.UserError(
      f'{folder} has no context vectors: neither {tables.FOLDER}/ nor '
      'checkpoints/; give the folder of a run or a merge, or leave out '
      '--trainable'
    )
  form = _form(tables.settings(folder))
  opened = tables.of_checkpoint(
    folder / 'checkpoints', *form, vocab, dim, scratch
  )
  opened.pop(tables.EXPORTED, None)
  return opened


def _form(settings: Mapping[str, Mapping]) -> tuple[str, str]:
  table = settings.get('table', {})
  return table.get('layout', 'replicated'), table.get('dtype', 'float32')


def _is_checkpoint(path: pathlib.Path) -> bool:
  """Whether orbax wrote into a folder, or into numbered folders in it."""
  if not path.is_dir() or (path / 'export').is_dir():
    return False
  if (path / 'vectors.npy').exists():
    return False
  inside = [path, path / 'state', *path.glob('[0-9]*/state')]
  inside += path.glob('[0-9]*')
  return any((folder / name).exists() for folder in inside for name in _ORBAX)


def _open_checkpoint(
  path: pathlib.Path, scratch: pathlib.Path | None, trainable: bool
) -> Part:
  """A checkpoint with a vocab.txt in it or around it."""
  around = [path, *path.absolute().parents[:3]]
  files = [
    x / name for x in around for name in ('vocab.txt', 'export/vocab.txt')
  ]
  file = next((file for file in files if file.exists()), None)
  if file is None:
    raise errors.UserError(
      f'{path} is a checkpoint without words: put a vocab.txt (`word count` '
      'lines, in order of the rows) into that folder'
    )
  words, counts = word2vec_format.read_vocab(file)
  saved, run = checkpoint.Arrays(path), _run_settings(path)
  exported = f'tables/{tables.EXPORTED}/vectors'
  if run and any(x in saved.shapes for x in (exported, f'{exported}/codes')):
    opened = tables.of_checkpoint(
      saved.folder.parent,
      *_form(run),
      len(words),
      run['model']['dim'],
      scratch,
    )
    vectors = opened.pop(tables.EXPORTED)
    more = opened if trainable else {}
    return Part(str(path), words, vectors, counts, more)
  fitting = [
    name
    for name, shape in saved.shapes.items()
    if len(shape) == 2 and shape[0] == len(words)
  ]
  if len(fitting) != 1 or trainable:
    needed = '; --trainable needs checkpoints of runs' if trainable else ''
    raise errors.UserError(
      f'{path}: expected one array of {len(words):,} rows, the words in '
      f'{file}, found {len(fitting)} ({", ".join(fitting[:3]) or "none"})'
      f'{needed}'
    )
  rows = np.asarray(saved.read(fitting[0]), np.float32)
  return Part(str(path), words, spool(rows, scratch, 'vectors'), counts)


# Checking.


def check_rows(part: Part) -> float:
  """Reads all rows; returns the root mean square length of the vectors.

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
  return float(np.sqrt(total / num_rows))


def _sum_squares(part: Part, rows: Rows, what: str) -> float:
  total, num_bad, first_bad = 0.0, 0, ''
  for first in range(0, rows.shape[0], _BLOCK_ROWS):
    block = rows.open()[first : first + _BLOCK_ROWS]
    square = float(np.vdot(block, block))
    if np.isfinite(square):
      total += square
      continue
    # Numbers whose squares overflow are as bad as infinite ones.
    with np.errstate(over='ignore', invalid='ignore'):
      bad = ~np.isfinite(np.vecdot(block, block))
    num_bad += int(bad.sum())
    if not first_bad and bad.any():
      first_bad = part.words[first + int(np.argmax(bad))]
  if num_bad:
    raise errors.UserError(
      f'{part.name}: {num_bad:,} of {rows.shape[0]:,} {what} are not finite '
      f'(that of {first_bad!r} is the first)'
    )
  return total


class Usable(NamedTuple):
  """Parts that can be merged."""

  parts: list[Part]
  rms_norms: list[float]  # see `check_rows`
  skipped: list[dict[str, str]]  # {'name', 'reason'}
  started: float  # `time.monotonic` before the check


def usable_parts(parts: Sequence[Part], skip_bad: bool) -> Usable:
  """Checks all parts; leaves out bad ones if allowed.

  Raises:
    errors.UserError: a part cannot be used, or fewer than two are left.
  """
  started = time.monotonic()
  used, rms_norms, skipped = [], [], []
  for part in parts:
    try:
      rms_norms.append(check_rows(part))
      used.append(part)
    except errors.UserError as error:
      if not skip_bad:
        raise errors.UserError(
          f'{error}; make that part again, or go on without it: --skip-bad'
        ) from error
      skipped.append({'name': part.name, 'reason': str(error)})
  if len(used) < 2:
    raise errors.UserError(
      f'there is nothing to merge: {len(used)} of {len(parts)} part(s) can be '
      'used; give two or more' + ''.join(f'; {x["reason"]}' for x in skipped)
    )
  return Usable(used, rms_norms, skipped, started)


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
  word_ids: list[np.ndarray] = []
  rows = np.full((len(parts), len(words)), -1, np.int32)
  counts = np.zeros(len(words), np.int64)
  ranks = np.full(len(words), np.iinfo(np.int64).max)
  for i, part in enumerate(parts):
    same = next((j for j in range(i) if parts[j].words == part.words), None)
    if same is None:
      mine = np.fromiter(map(ids.__getitem__, part.words), np.int32)
    else:
      mine = word_ids[same]  # saves time where all parts have one vocabulary
    word_ids.append(mine)
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
