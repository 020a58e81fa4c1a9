"""Nearest rows by an index, in place of the cosines of all rows.

The index is usearch's HNSW graph (Malkov and Yashunin 2018) over rows rounded
to bfloat16. It proposes rows, whose cosines are then computed from the vectors
themselves: what it returns has the right cosines and the right order, and what
it misses is missing.

It belongs to the vectors that it was built from. A saved index holds their
number, dimension and checksum, and is refused by others.
"""

import dataclasses
import json
import pathlib
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import geometry
from jaxemb.storage import atomic, export

KINDS = ('hnsw',)
_GRAPH, _SETTINGS = 'graph.usearch', 'index.json'
_BLOCK_ROWS = 1 << 16
_BLOCK_QUERIES = 1 << 8
# The most frequent words are near to many and neighbors of few, so that graphs
# miss them: with these rows searched in full, recall for the first 1,000 words
# of trained vectors rises from .96 to .98, for a tenth of a millisecond.
_HEAD_ROWS = 2_000
_SPARE_ROWS = 16  # candidates beyond twice those wanted, for bfloat16's order


@dataclasses.dataclass(frozen=True)
class Settings:
  """What an index is built and searched with.

  `connectivity` is the number of neighbors of a row in the graph, of which
  memory and time are a multiple, `expansion_add` the number of candidates for
  them, and `expansion_search` the number of rows that a query compares at
  least: twice as many take nearly twice the time and miss about half.
  """

  connectivity: int = 32
  expansion_add: int = 200
  expansion_search: int = 256

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if not isinstance(value, int) or value < 2:
        raise errors.UserError(f'{name}={value!r} must be an int from 2 up')


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
  """An index of rows; `build` and `read` return it."""

  graph: Any  # usearch.index.Index
  vectors: np.ndarray  # [rows, dim]
  norms: np.ndarray  # [rows] float32
  settings: Settings

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
      self.graph.save(str(temporary / _GRAPH))
      values = dataclasses.asdict(self.settings) | _identity(self.vectors)
      (temporary / _SETTINGS).write_text(json.dumps(values, indent=1))

  def search(
    self, queries: np.ndarray, num: int = 10
  ) -> tuple[np.ndarray, np.ndarray]:
    """Finds the `num` rows nearest to each of [n, dim] queries, on all cores.

    Returns rows, [n, num] int64, by falling cosine, and the cosines; rows that
    are queries themselves are among them. Where fewer are found, rows are -1.
    """
    queries = geometry.unit(np.asarray(queries, np.float32))
    if queries.ndim != 2 or queries.shape[1] != self.vectors.shape[1]:
      raise errors.UserError(
        f'queries of shape {queries.shape} do not fit an index of '
        f'{self.vectors.shape[1]} dimensions'
      )
    rows = np.full((len(queries), num), -1, np.int64)
    cosines = np.full((len(queries), num), -np.inf, np.float32)
    for start in range(0, len(queries), _BLOCK_QUERIES):
      block = slice(start, start + _BLOCK_QUERIES)
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
    head, head_cosines = self._head(queries, num)
    rows = np.hstack([head, near])
    cosines = np.hstack([head_cosines, cosines])
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
    """Returns at most `num` rows by falling cosine with a target, and these.

    Leaves out what `geometry.nearest` does: words with a row in `excluded`,
    senses below `min_prior`, and all but the best row of a word.
    """
    count = 2 * (num + len(excluded)) + _SPARE_ROWS
    while num > 0:
      rows, cosines = self._candidates(target, count)
      best = _first_of_words(
        rows, excluded=excluded, senses=senses, min_prior=min_prior
      )
      if len(best) >= num or count >= len(self.vectors):
        best = best[:num]
        return rows[best], cosines[best]
      count *= 4  # senses of few words have filled the list
    return np.zeros(0, np.int64), np.zeros(0, np.float32)

  def _candidates(self, target, count):
    """Returns rows and their cosines with a target of length 1, both [n]."""
    near = self._proposed(target[None], count)[0]
    near = near[near >= _HEAD_ROWS]
    head, head_cosines = self._head(target[None], count)
    rows = np.concatenate([head[0], near])
    cosines = self._cosines(near, target[None])
    cosines = np.concatenate([head_cosines[0], cosines[0]])
    # A word that was never trained has no neighbors.
    is_trained = self.norms[rows] > 0
    rows, cosines = rows[is_trained], cosines[is_trained]
    order = np.lexsort((rows, -cosines))
    return rows[order], cosines[order]

  def _head(self, queries, num):
    """Returns the `num` nearest of the first rows, and cosines, [n, num]."""
    cosines = self._cosines(slice(_HEAD_ROWS), queries)
    cosines = np.where(self.norms[:_HEAD_ROWS] > 0, cosines, -np.inf)
    num = min(num, cosines.shape[1])
    rows = np.argpartition(-cosines, num - 1, axis=1)[:, :num]
    return rows, np.take_along_axis(cosines, rows, 1)

  def _proposed(self, queries, count):
    """Returns rows of the graph, [n, at most count] int64; -1 = no row."""
    count = min(count, len(self.vectors))
    # Threads of a single query would cost more than they save.
    matches = self.graph.search(queries, count, threads=len(queries) == 1)
    if len(queries) == 1:  # usearch takes it for a query of its own
      return matches.keys.astype(np.int64)[None]
    # What usearch has not filled is undefined.
    is_filled = np.arange(matches.keys.shape[1]) < matches.counts[:, None]
    return np.where(is_filled, matches.keys.astype(np.int64), -1)

  def _cosines(self, rows, queries):
    """Returns cosines, [n, rows] float32, of unit queries and rows."""
    vectors = np.asarray(self.vectors[rows], np.float32)
    # Threads of BLAS would wait for each other longer than one query takes.
    is_one = len(queries) == 1
    products = (
      np.vecdot(vectors, queries)[None] if is_one else queries @ vectors.T
    )
    return products / geometry.divisors(self.norms[rows])


def build(
  vectors: np.ndarray, norms: np.ndarray, kind: str = 'hnsw', **values: int
) -> Index:
  """Builds an index of all rows but zeros, on all cores.

  `values` are those of `Settings`. Raises a `UserError` for others.
  """
  names = [x.name for x in dataclasses.fields(Settings)]
  if kind not in KINDS or not values.keys() <= {*names}:
    raise errors.UserError(
      f'no index {kind!r} with {", ".join(values) or "defaults"}; give one of '
      f'{", ".join(KINDS)}, and of {", ".join(names)}'
    )
  settings, usearch = Settings(**values), _usearch()
  graph = usearch.Index(
    ndim=vectors.shape[1],
    metric='cos',
    dtype='bf16',
    connectivity=settings.connectivity,
    expansion_add=settings.expansion_add,
    expansion_search=settings.expansion_search,
  )
  for start in range(0, len(vectors), _BLOCK_ROWS):
    block = np.asarray(vectors[start : start + _BLOCK_ROWS], np.float32)
    rows = np.flatnonzero(norms[start : start + _BLOCK_ROWS])
    if len(rows):
      graph.add(rows + start, block[rows])
  return Index(graph, vectors, norms=norms, settings=settings)


def read(
  folder: pathlib.Path | str, vectors: np.ndarray, norms: np.ndarray
) -> Index:
  """Maps an index of these vectors that `save` has written.

  Raises a `UserError` if it is missing, damaged or of other vectors.
  """
  folder, usearch = pathlib.Path(folder), _usearch()
  try:
    values = json.loads((folder / _SETTINGS).read_text())
    identity = {k: values.pop(k) for k in _identity(vectors[:0])}
    settings = Settings(**values)
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
    graph = usearch.Index.restore(
      str(folder / _GRAPH),
      view=True,
      expansion_search=settings.expansion_search,
    )
    if graph is None or len(graph) != np.count_nonzero(norms):
      raise ValueError('another number of rows')
  except (RuntimeError, ValueError, OSError) as error:
    raise errors.UserError(
      f'{folder / _GRAPH} is damaged: {errors.one_line(error)}; build it again'
    ) from error
  return Index(graph, vectors, norms=norms, settings=settings)


def _first_of_words(rows, excluded, senses, min_prior):
  """Returns positions in `rows`, in order, of the first row of each word."""
  words, barred = rows, np.array([*excluded], np.int64)
  is_allowed = np.ones(len(rows), bool)
  if senses is not None:
    words = np.searchsorted(senses.starts, rows, 'right') - 1
    barred = np.searchsorted(senses.starts, barred, 'right') - 1
    is_allowed = senses.priors[rows] >= min_prior
  is_allowed &= ~np.isin(words, barred)
  positions = np.flatnonzero(is_allowed)
  _, firsts = np.unique(words[positions], return_index=True)
  return positions[np.sort(firsts)]


def _identity(vectors: np.ndarray) -> dict[str, int]:
  """Returns the number, dimension and checksum of vectors."""
  checksum = 0
  for block in export.blocks(vectors):
    checksum = zlib.crc32(block.view(np.uint8), checksum)
  rows, dim = vectors.shape
  return {'rows': rows, 'dim': dim, 'checksum': checksum}


def _usearch() -> Any:
  """Returns the module usearch.index; raises a `UserError` without it."""
  try:
    from usearch import index
  except ImportError as error:
    raise errors.UserError(
      'an index of neighbors needs usearch, which is not installed or does not '
      f"work here ({errors.one_line(error)}): pip install 'jaxemb[ann]'"
    ) from error
  return index
