"""Nearest rows by an index, in place of the cosines of all rows.

The index is usearch's HNSW graph (Malkov and Yashunin 2018) over unit rows
rounded to int8. It proposes rows, whose cosines are then computed from the
vectors themselves: what it returns has the right cosines and the right order,
and what it misses is missing.

It belongs to the vectors that it was built from. A saved index holds their
number, dimension and checksum and that of the graph, and is refused by others.
"""

import dataclasses
import functools
import json
import pathlib
import zlib
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import geometry
from jaxemb.storage import atomic, damage, export, formats

KINDS = ('hnsw',)
_GRAPH, _SETTINGS = 'graph.usearch', 'index.json'
FORMAT = formats.Format(
  'an index of neighbors', number=1, remedy='build it again'
)
_BLOCK_ROWS = 1 << 16
_BLOCK_QUERIES = 1 << 8
_BLOCK_BYTES = 1 << 22
_CANDIDATE_BYTES = 1 << 26  # of the vectors that queries are compared with
# The most frequent words are near to many and neighbors of few, so that graphs
# miss them: with these rows searched in full, recall for the first 1,000 words
# of trained vectors rises from .92 to .95, for a tenth of a millisecond.
_HEAD_ROWS = 2_000
_SPARE_ROWS = 16  # candidates beyond twice those wanted, for int8's order
_SAMPLE_ROWS = 1 << 14  # of which the range of int8 is taken
_CLIPPED = 1e-4  # of their components
_MAX_SETTING = 1 << 16  # usearch allocates lists of these sizes


@dataclasses.dataclass(frozen=True)
class Settings:
  """What an index is built and searched with.

  `connectivity` is the number of neighbors of a row in the graph, twice of
  which are stored. `expansion_search` is the number of nearest rows that a
  query holds while it searches: twice as many take nearly twice the time, and
  fewer neighbors are missed. `expansion_add` is the same for rows that are
  added. A query compares 20 to 30 rows for each that it holds.
  """

  connectivity: int = 32
  expansion_add: int = 200
  expansion_search: int = 128

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if not isinstance(value, int) or not 2 <= value <= _MAX_SETTING:
        raise errors.UserError(
          f'{name}={value!r} must be an int from 2 to {_MAX_SETTING:,}'
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
  """An index of rows; `build` and `read` return it."""

  graph: Any  # usearch.index.Index
  vectors: np.ndarray  # [rows, dim]
  norms: np.ndarray  # [rows] float32
  settings: Settings
  current: Callable[[], Any]  # returns `vectors` until they are changed

  def __repr__(self) -> str:
    rows, dim = self.vectors.shape
    return f'Index({rows:,} rows x {dim}, hnsw)'

  def save(self, folder: pathlib.Path | str) -> None:
    """Writes the index, without the vectors, for `read`.

    Raises a `UserError` if it cannot be written, or if the folder has files
    that are not of an index.
    """
    folder, files = pathlib.Path(folder), (_GRAPH, _SETTINGS)
    with atomic.folder(folder, replaces=files) as temporary:
      try:
        self.graph.save(str(temporary / _GRAPH))
      except RuntimeError as error:  # usearch says no more
        raise errors.UserError(
          f'cannot write {folder}: {errors.one_line(error)}; free space or '
          'choose another folder'
        ) from error
      values = dataclasses.asdict(self.settings) | _identity(self.vectors)
      values |= {'graph_checksum': _file_checksum(temporary / _GRAPH)}
      values |= FORMAT.stamp()
      (temporary / _SETTINGS).write_text(json.dumps(values, indent=1))

  def check(self, vectors: Any) -> None:
    """Raises a `UserError` unless the index is of these vectors, unchanged."""
    if vectors is not self.vectors:
      rows, dim = vectors.shape
      raise errors.UserError(
        f'{self!r} is of other vectors than these {rows:,} x {dim}, or these '
        'have been changed; build it again, by vectors.index()'
      )

  def search(
    self, queries: np.ndarray, num: int = 10
  ) -> tuple[np.ndarray, np.ndarray]:
    """Finds the `num` rows nearest to each of [n, dim] queries, on all cores.

    Returns rows, [n, num] int64, by falling cosine, and the cosines; rows that
    are queries themselves are among them. Where fewer are found, rows are -1.
    Raises a `UserError` if the vectors have been changed or queries do not fit.
    """
    self.check(self.current())
    queries = _checked(queries, self.vectors.shape[1])
    if num < 1:
      raise errors.UserError(f'num={num} must be 1 or more')
    rows = np.full((len(queries), num), -1, np.int64)
    cosines = np.full((len(queries), num), -np.inf, np.float32)
    query_bytes = 4 * (2 * num + _SPARE_ROWS) * self.vectors.shape[1]
    size = max(1, min(_BLOCK_QUERIES, _CANDIDATE_BYTES // query_bytes))
    for start in range(0, len(queries), size):
      block = slice(start, start + size)
      best = self._search_block(queries[block], num)
      width = best[0].shape[1]
      rows[block, :width], cosines[block, :width] = best
    rows[np.isneginf(cosines)] = -1
    return rows, cosines

  def _search_block(self, queries, num):
    """Returns rows and cosines, both [n, at most num], of unit queries."""
    near = self._proposed(queries, 2 * num + _SPARE_ROWS)
    products = np.matmul(self.vectors[near], queries[:, :, None])[:, :, 0]
    cosines = products / geometry.divisors(self.norms[near])
    cosines = np.where(near >= _HEAD_ROWS, cosines, -np.inf)
    head = self._head_cosines(queries)
    size = min(num, head.shape[1])
    head_rows = np.argpartition(-head, size - 1, axis=1)[:, :size]
    rows = np.hstack([head_rows, near])
    cosines = np.hstack([np.take_along_axis(head, head_rows, 1), cosines])
    order = np.argsort(-cosines, axis=1, kind='stable')[:, :num]
    rows, cosines = (np.take_along_axis(x, order, 1) for x in (rows, cosines))
    return rows, cosines

  def nearest(
    self,
    target: np.ndarray,
    num: int,
    excluded: Collection[int] = (),
    senses: Any = None,
    min_prior: float = 0.0,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `num` rows by falling cosine with a target, and cosines.

    The target has length 1. Leaves out what `geometry.nearest` does: words with
    a row in `excluded`, senses below `min_prior`, and all but the best row of a
    word.
    """
    count = 2 * (num + len(excluded)) + _SPARE_ROWS
    while num > 0:
      rows, cosines, least = self._candidates(target, count)
      best = geometry.nearest(
        cosines,
        excluded=excluded,
        num=num,
        senses=senses,
        min_prior=min_prior,
        rows=rows,
      )
      # Beyond what the graph has proposed, rows of other words may be missing:
      # senses of a few words have filled its list.
      is_full = len(best) == num and cosines[best[-1]] >= least
      if is_full or count >= len(self.vectors):
        return rows[best], cosines[best]
      count *= 4
    return np.zeros(0, np.int64), np.zeros(0, np.float32)

  def _candidates(self, target, count):
    """Returns rows, ascending, cosines with a unit target, and the least one.

    That is of the `count` rows that the graph has proposed.
    """
    head = self._head_cosines(target[None])[0]
    near = np.sort(self._proposed(target[None], count)[0])
    in_head, near = np.split(near, [np.searchsorted(near, len(head))])
    vectors = np.asarray(self.vectors[near], np.float32)
    cosines = np.vecdot(vectors, target) / self.norms[near]
    least = min(x.min(initial=np.inf) for x in (head[in_head], cosines))
    rows = np.concatenate([np.arange(len(head)), near])
    return rows, np.concatenate([head, cosines]), least

  @functools.cached_property
  def _head(self) -> np.ndarray:
    """Returns the first rows, [at most _HEAD_ROWS, dim] float32."""
    return np.array(self.vectors[:_HEAD_ROWS], np.float32)

  def _head_cosines(self, queries):
    """Returns cosines of unit queries and the first rows, -inf for zeros."""
    norms = self.norms[: len(self._head)]
    # Threads of BLAS would wait for each other longer than one query takes.
    is_one = len(queries) == 1
    products = (
      np.vecdot(self._head, queries)[None] if is_one else queries @ self._head.T
    )
    # A word that was never trained has no neighbors.
    return np.where(norms > 0, products / geometry.divisors(norms), -np.inf)

  def _proposed(self, queries, count):
    """Returns rows of the graph, [n, at most count] int64; -1 = no row."""
    count = min(count, len(self.vectors))
    largest = geometry.divisors(np.abs(queries).max(1))
    rounded = _rounded(queries, largest[:, None])
    # Threads of a single query would cost more than they save.
    matches = self.graph.search(rounded, count, threads=len(queries) == 1)
    if len(queries) == 1:  # usearch takes it for a query of its own
      return matches.keys.astype(np.int64)[None]
    # What usearch has not filled is undefined.
    is_filled = np.arange(matches.keys.shape[1]) < matches.counts[:, None]
    return np.where(is_filled, matches.keys.astype(np.int64), -1)


def _checked(queries: Any, dim: int) -> np.ndarray:
  """Returns unit queries; raises a `UserError` unless they are [n, dim]."""
  try:
    queries = np.asarray(queries, np.float32)
  except ValueError as error:  # such as words
    raise errors.UserError(
      f'queries are no vectors: {errors.one_line(error)}; give '
      'vectors[[word, ...]]'
    ) from error
  if queries.ndim != 2 or queries.shape[1] != dim:
    raise errors.UserError(
      f'queries of shape {queries.shape} do not fit an index of {dim} '
      f'dimensions; give them as [n, {dim}]'
    )
  if not np.isfinite(queries).all():
    raise errors.UserError('queries have numbers that are not finite')
  return geometry.unit(queries)


def build(
  vectors: np.ndarray,
  norms: np.ndarray,
  current: Callable[[], Any],
  kind: str = 'hnsw',
  **values: int,
) -> Index:
  """Builds an index of all rows but zeros, on all cores.

  `current` returns the vectors until they are changed; `values` are those of
  `Settings`. Raises a `UserError` for others.
  """
  names = [x.name for x in dataclasses.fields(Settings)]
  if kind not in KINDS or not values.keys() <= {*names}:
    raise errors.UserError(
      f'no index {kind!r} with {", ".join(values) or "defaults"}; give one of '
      f'{", ".join(KINDS)}, and of {", ".join(names)}'
    )
  settings = Settings(**values)
  usearch = errors.optional('usearch.index', 'ann')
  graph = usearch.Index(
    ndim=vectors.shape[1],
    metric='ip',  # of unit rows: two thirds of the time of cosines
    dtype='i8',
    connectivity=settings.connectivity,
    expansion_add=settings.expansion_add,
    expansion_search=settings.expansion_search,
  )
  rows = np.flatnonzero(norms)
  largest = _largest(vectors, norms, rows=rows) if len(rows) else 1.0
  for start in range(0, len(rows), _BLOCK_ROWS):
    block = rows[start : start + _BLOCK_ROWS]
    units = geometry.unit(np.asarray(vectors[block], np.float32), norms[block])
    graph.add(block, _rounded(units, largest))
  return Index(graph, vectors, norms=norms, settings=settings, current=current)


def _largest(vectors, norms, rows):
  """Returns what a component of a unit row exceeds once in 10,000 times."""
  chosen = rows[:: -(-len(rows) // _SAMPLE_ROWS)]
  units = geometry.unit(np.asarray(vectors[chosen], np.float32), norms[chosen])
  return np.quantile(np.abs(units), 1 - _CLIPPED) or 1.0


def _rounded(units, largest):
  """Returns rows as int8, of which 127 is the largest component."""
  return np.rint(np.clip(units * (127 / largest), -127, 127)).astype(np.int8)


def read(
  folder: pathlib.Path | str,
  vectors: np.ndarray,
  norms: np.ndarray,
  current: Callable[[], Any],
) -> Index:
  """Maps an index of these vectors that `save` has written.

  `current` returns the vectors until they are changed. Raises a `UserError` if
  the index is missing, damaged or of other vectors.
  """
  usearch = errors.optional('usearch.index', 'ann')
  folder = pathlib.Path(folder)
  atomic.complete(folder)
  try:
    values = FORMAT.check(folder, export.read_record(folder / _SETTINGS))
    identity = {k: values.pop(k) for k in _identity(vectors[:0])}
    checksum = values.pop('graph_checksum')
    settings = Settings(**values)
    if not all(type(x) is int for x in identity.values()):
      raise ValueError(f'{_SETTINGS} has {identity}, and ints are needed')
  except (OSError, TypeError, AttributeError, *damage.ERRORS) as error:
    reason = getattr(error, 'strerror', None) or errors.one_line(error)
    raise errors.UserError(
      f'{folder} is no index of vectors: {reason}; give the folder of '
      'index.save, or build it again'
    ) from error
  present = _identity(vectors)
  different = [k for k, x in present.items() if x != identity[k]]
  if different:
    raise errors.UserError(
      f'{folder} is an index of other vectors, {identity["rows"]:,} x '
      f'{identity["dim"]}, with another number, dimension or contents than '
      f'these {present["rows"]:,} x {present["dim"]}; build it again'
    )
  try:
    if _file_checksum(folder / _GRAPH) != checksum:
      raise ValueError('another checksum')
    graph = usearch.Index.restore(
      str(folder / _GRAPH),
      view=True,
      expansion_search=settings.expansion_search,
    )
    if graph is None or len(graph) != np.count_nonzero(norms):
      raise ValueError('another number of rows')
  except (RuntimeError, TypeError, OSError, *damage.ERRORS) as error:
    raise errors.UserError(
      f'{folder / _GRAPH} is damaged: {errors.one_line(error)}; build it again'
    ) from error
  return Index(graph, vectors, norms=norms, settings=settings, current=current)


def _identity(vectors: np.ndarray) -> dict[str, int]:
  """Returns the number, dimension and checksum of vectors."""
  checksum = 0
  for block in export.blocks(vectors):
    checksum = zlib.crc32(block.view(np.uint8), checksum)
  rows, dim = vectors.shape
  return {'rows': rows, 'dim': dim, 'checksum': checksum}


def _file_checksum(path: pathlib.Path) -> int:
  checksum = 0
  with open(path, 'rb') as file:
    while block := file.read(_BLOCK_BYTES):
      checksum = zlib.crc32(block, checksum)
  return checksum
