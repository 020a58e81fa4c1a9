"""The parts of a merge: words, and rows that are read when they are wanted.

Rows stay in their files. Each read maps the file anew, so that what was read
before does not count as memory of this process.
"""

import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.senses import table as senses_lib

_BLOCK_ROWS = 65_536


class NoRoomError(errors.UserError):
  """Rows cannot be kept aside, which is no fault of the part."""


@dataclasses.dataclass(frozen=True)
class Rows:
  """Rows of numbers, in memory or in a file.

  Attributes:
    shape: (rows, numbers of each), or (rows,).
    open: -> the whole array, mapped anew where it is a file.
    is_file: whether it is.
  """

  shape: tuple[int, ...]
  open: Callable[[], np.ndarray]
  is_file: bool = False

  def read(self, rows: np.ndarray, out: np.ndarray) -> None:
    """Reads some rows.

    Args:
      rows: [b] int, which ones; zeros for those below 0.
      out: [b, ...] float32, where they go.
    """
    array, first = self.open(), int(rows[0])
    if np.array_equal(rows, np.arange(first, first + len(rows))) and first >= 0:
      out[:] = array[first : first + len(rows)]
      return
    has = rows >= 0
    if has.all():
      out[:] = array[rows]
      return
    out[:] = 0
    out[has] = array[rows[has]]


class Part(NamedTuple):
  """One of the tables that are merged."""

  name: str
  words: Sequence[str]  # different ones
  vectors: Rows
  # [words] int64, how often the part has seen each; 0 = never, so that its row
  # has learned nothing and does not count. None = not known.
  counts: np.ndarray | None = None
  # Rows of the same words that go with the vectors, by name: the context table
  # and the state of the row optimizers, see `merging.tables`.
  others: Mapping[str, Rows] = {}
  # [words] float, how much it has to say about each word beside other parts;
  # None = as the counts have it, or as much as they.
  votes: np.ndarray | None = None
  # Whose rows these are, if words have several: `words` are names of rows.
  senses: senses_lib.Senses | None = None

  @property
  def dim(self) -> int:
    """Numbers of each vector."""
    return self.vectors.shape[1]


def of_array(array: np.ndarray) -> Rows:
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


def spooled(array: np.ndarray, folder: pathlib.Path | None, name: str) -> Rows:
  """Rows of a file that this writes, so that the array can be dropped.

  Args:
    array: [rows, ...].
    folder: where the file goes; None = the array stays in memory.
    name: of the file, without .npy.
  """
  if folder is None:
    return of_array(array)
  path = folder / f'{name}.npy'
  try:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
  except OSError as error:
    raise NoRoomError(
      f'cannot write {path}: {error.strerror or error}; free space or choose '
      'another --output'
    ) from error
  return of_array(np.load(path, mmap_mode='r'))


def check(part: Part) -> float:
  """Looks at all rows once.

  Returns:
    Root of the mean square of the lengths of its vectors.

  Raises:
    errors.UserError: There is no row, or none but zeros, or one has NaNs or
      infinities.
  """
  num_rows = part.vectors.shape[0]
  if not num_rows or not part.dim:
    raise errors.UserError(
      f'{part.name} is empty: {num_rows:,} vectors of {part.dim:,} numbers'
    )
  if part.counts is not None and not np.any(part.counts > 0):
    raise errors.UserError(f'{part.name} is empty: all its counts are 0')
  for name, rows in part.others.items():
    _check_finite(part, rows, f'vectors of {name}')
  total = _check_finite(part, part.vectors, 'vectors')
  if not total:
    raise errors.UserError(f'{part.name} is empty: all its vectors are zero')
  return float(np.sqrt(total / num_rows))


def _check_finite(part: Part, rows: Rows, what: str) -> float:
  """The sum of all squares; see `check`."""
  total, num_bad, first_bad = 0.0, 0, ''
  for first in range(0, rows.shape[0], _BLOCK_ROWS):
    block = rows.open()[first : first + _BLOCK_ROWS]
    square = float(np.vdot(block, block))
    if np.isfinite(square):
      total += square
      continue
    # So large numbers are as good as infinite: their squares are.
    with np.errstate(over='ignore', invalid='ignore'):
      wide = block.reshape(len(block), -1)
      bad = ~np.isfinite(np.einsum('ij,ij->i', wide, wide))
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
  rms_norms: list[float]  # see `check`
  skipped: list[dict[str, str]]  # {'name', 'reason'} of those left out
  started: float  # when looking began, by `time.monotonic`


def usable(parts: Sequence[Part], skip_bad: bool) -> Usable:
  """The parts that can be used.

  Args:
    parts: all.
    skip_bad: whether to go on without those that cannot be.

  Raises:
    errors.UserError: One cannot be used, or fewer than two are left.
  """
  started = time.monotonic()
  used, rms_norms, skipped = [], [], []
  for part in parts:
    try:
      rms_norms.append(check(part))
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


class Union(NamedTuple):
  """The words that any part has, the most frequent first."""

  words: list[str]
  counts: np.ndarray  # [words] int64, summed; all 1 = not known
  rows: np.ndarray  # [n, words] int32, row in each part, -1 = it has none
  has_counts: bool  # of all parts


def unite(parts: Sequence[Part], names: Sequence[str] | None = None) -> Union:
  """The words of all parts, by falling count.

  Where the counts of a part are not known, words are in the order of the rank
  that is best among its parts. Ties are in the order of first appearance.

  Args:
    parts: n parts.
    names: all words in the order that is wanted; None = as above.
  """
  words = list(dict.fromkeys(itertools.chain(*(part.words for part in parts))))
  ids = dict(zip(words, range(len(words)), strict=True))
  of_part: list[np.ndarray] = []
  for i, part in enumerate(parts):
    same = next((j for j in range(i) if parts[j].words == part.words), None)
    if same is None:
      found = map(ids.__getitem__, part.words)
      of_part.append(np.fromiter(found, np.int32, len(part.words)))
    else:
      of_part.append(of_part[same])
  size = len(words)
  rows = np.full((len(parts), size), -1, np.int32)
  counts = np.zeros(size, np.int64)
  ranks = np.full(size, np.iinfo(np.int64).max)
  for i, (part, found) in enumerate(zip(parts, of_part, strict=True)):
    order = np.arange(len(found))
    if part.counts is not None:
      known = part.counts > 0
      found, order = found[known], order[known]
      counts[found] += part.counts[known]
    rows[i, found] = order
    ranks[found] = np.minimum(ranks[found], order)
  has_counts = all(part.counts is not None for part in parts)
  order = np.argsort(-counts if has_counts else ranks, kind='stable')
  if names is not None:
    wanted = (ids.get(name, -1) for name in names)
    order = np.fromiter(wanted, np.int64, len(names))
    order = order[order >= 0]
  # Words that no part has seen are nowhere.
  order = order[(rows[:, order] >= 0).any(0)]
  return Union(
    [words[i] for i in order.tolist()],
    # Sums over some of the parts would be taken for counts of all.
    counts[order] if has_counts else np.ones_like(order),
    np.ascontiguousarray(rows[:, order]),
    has_counts,
  )


def weights(
  parts: Sequence[Part], rows: np.ndarray, by_counts: bool
) -> np.ndarray:
  """[b, n] float32, how much each part has to say about each word.

  A word weighs as much as it has parts; by counts, they share that as they saw
  the word; or as their votes are, where parts have some.

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
  # Where nobody has anything to say, all have as much.
  seen = np.where(seen.any(1, keepdims=True), seen, has)
  total = np.maximum(seen.sum(1, keepdims=True), np.finfo(np.float64).tiny)
  return (seen / total * has.sum(1, keepdims=True)).astype(np.float32)
