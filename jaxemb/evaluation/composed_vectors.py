"""Vectors of the words of a model of fastText, computed from rows in its file.

Word rows and rows of n-grams stay in the file, so that the memory needed does
not depend on the size of the model: single vectors read the rows that they are
the mean of, and what needs all vectors computes a part of their columns at a
time. fastText itself keeps all composed vectors in memory for queries.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from concurrent import futures
from typing import Any

import numba
import numpy as np

from jaxemb import errors
from jaxemb.evaluation import subwords
from jaxemb.io import cache
from jaxemb.ops import memory
from jaxemb.ops import ngrams as ngrams_lib
from jaxemb.runtime import resources
from jaxemb.storage import atomic, damage, export, fasttext_format

_BLOCK_WORDS = 4096
# Read at once by a thread: a buffer that stays in the cache of its core is
# filled twice as fast as one of four times the size.
_BLOCK_BYTES = 1 << 20
_AHEAD = 12  # n-grams whose rows are requested before they are needed
_TABLE_BYTES = 640 << 20  # of columns of all n-grams in memory
_LINE_NUMBERS = memory.LINE // 4
# Of fewer words, lengths are computed anew rather than cached in a file.
_MIN_CACHED = 200_000
_NORMS, _FORMAT = 'norms.npy', 1  # in the cache


@dataclasses.dataclass(frozen=True, eq=False)
class ComposedVectors(export.LazyRows):
  """Vectors of words, [vocab, dim] float32, that are computed when read.

  `norms` and `products`, of all words, read each row once or a few times,
  whatever number of words share it.
  """

  model: fasttext_format.Model
  ngrams: subwords.NgramVectors | None  # None = vectors are the word rows

  dtype = np.dtype(np.float32)

  @property
  def shape(self) -> tuple[int, ...]:  # type: ignore[override] # read only
    """Returns the numbers of words and of dimensions."""
    return self.model.inputs.shape

  def __getstate__(self) -> dict[str, Any]:
    """Returns what is pickled: nothing that is computed again when needed."""
    return {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}

  @functools.cached_property
  def bags(self) -> subwords.Bags:
    """Returns the rows of the n-grams of each word."""
    return self._bags_of(slice(None))

  def _bags_of(self, words: slice | np.ndarray) -> subwords.Bags:
    begins, ends = self.model.begins[words], self.model.ends[words]
    if self.ngrams is None:
      num = len(begins)
      return subwords.Bags(
        np.zeros(num + 1, np.int64), np.zeros(0, np.int32), np.ones(num, int)
      )
    return self.ngrams.bags(
      ngrams_lib.of_text(
        self.model.text,
        begins=begins,
        ends=ends,
        subwords=self.ngrams.subwords,
      )
    )

  def read(self, rows: np.ndarray) -> np.ndarray:
    """Returns the vectors of different words, [n, dim]."""
    out = np.empty((len(rows), self.shape[1]), np.float32)
    for first in range(0, len(rows), _BLOCK_WORDS):
      words = rows[first : first + _BLOCK_WORDS]
      block = out[first : first + len(words)]
      block[:] = self.model.inputs.read(words)
      if self.ngrams is not None:
        bags = self._bags_of(words)
        block += ngram_sums(bags, self.ngrams.rows)
        block /= bags.sizes[:, None].astype(np.float32)
    return out

  def __array__(self, dtype: Any = None, copy: bool | None = None):
    out = np.empty(self.shape, np.float32)
    self.copy_to(out)
    return out if dtype is None else out.astype(dtype, copy=False)

  def copy_to(self, out: np.ndarray) -> None:
    """Writes all vectors to an array, faster than in blocks of words."""

    def fill(first: int, columns: slice, block: np.ndarray) -> None:
      out[first : first + len(block), columns] = block

    self._by_columns(fill)

  def _by_columns(self, use: Callable[[int, slice, np.ndarray], None]) -> None:
    """Calls `use(first word, columns, [n, columns] vectors)` for all words.

    A part of the columns of all n-grams is in memory at once, and the rows of
    words are read in blocks: n-grams are shared, and one by one they would be
    read many times. Threads call it at once, for different words.
    """
    num_rows = 0 if self.ngrams is None else len(self.ngrams.rows)
    dim = self.shape[1]
    width = max(1, _TABLE_BYTES // (4 * max(1, num_rows)))
    if width >= _LINE_NUMBERS:  # rows begin with a line of the cache
      width = width // _LINE_NUMBERS * _LINE_NUMBERS
    width = min(width, dim)
    buffer = np.empty(num_rows * width + _LINE_NUMBERS, np.float32)
    buffer = buffer[-buffer.ctypes.data % memory.LINE // 4 :]
    table = buffer[: num_rows * width].reshape(num_rows, width)
    for left in range(0, dim, width):
      columns = slice(left, min(left + width, dim))
      self._one_round(table, columns, use)

  def _one_round(self, table, columns, use):
    starts, rows, sizes = self.bags
    width = columns.stop - columns.start

    def fill(first: int, block: np.ndarray) -> None:
      table[first : first + len(block), :width] = block[:, columns]

    def add(first: int, block: np.ndarray) -> None:
      part = np.ascontiguousarray(block[:, columns])
      _add(part, table, starts, rows, first)
      part /= sizes[first : first + len(part), None].astype(np.float32)
      use(first, columns, part)

    if self.ngrams is not None:
      _each_block(self.ngrams.rows, fill)
    _each_block(self.model.inputs, add)

  def norms(self) -> np.ndarray:
    """Returns the lengths of all vectors, [vocab] float32.

    Those of many words are in the cache after the first time.
    """
    norms = self._known_norms()
    return self._compose_all()[0] if norms is None else norms

  def _known_norms(self) -> np.ndarray | None:
    """Returns lengths that were computed before, here or by a process."""
    if '_norms' not in self.__dict__ and len(self) >= _MIN_CACHED:
      try:
        norms = export.load_array(self._cache_folder() / _NORMS)
        if norms.shape == self.shape[:1] and norms.dtype == np.float32:
          self.__dict__['_norms'] = norms
      except (OSError, *damage.ERRORS):  # none so far, or damaged
        pass
    return self.__dict__.get('_norms')

  def _cache_folder(self) -> pathlib.Path:
    """Returns where lengths are cached.

    Raises an `OSError` if another file has replaced the model's since it was
    opened: that has other lengths.
    """
    if fasttext_format.status_of(self.model.path) != self.model.status:
      raise OSError(f'{self.model.path} was replaced')
    identity = ['norms', _FORMAT, cache.identity_of([self.model.path])]
    return cache.folder_of(cache.default_folder(), 'norms-', identity)

  def _compose_all(
    self, target: np.ndarray | None = None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns lengths, and products with a target if there is one, float32.

    The lengths are known from then on.
    """
    squares, products = np.zeros((2, len(self)), np.float32)

    def add(first: int, columns: slice, block: np.ndarray) -> None:
      words = slice(first, first + len(block))
      squares[words] += np.vecdot(block, block)
      if target is not None:
        # Products of BLAS would be threads of threads.
        products[words] += np.vecdot(block, target[columns])

    self._by_columns(add)
    norms = self.__dict__['_norms'] = np.sqrt(squares)
    if len(self) >= _MIN_CACHED:
      try:
        with atomic.folder(self._cache_folder(), cache.REMEDY) as folder:
          np.save(folder / _NORMS, norms)
      except (OSError, errors.UserError):  # a cache that cannot be written
        pass
    return norms, products

  def products(
    self, target: np.ndarray, limit: int | None = None
  ) -> np.ndarray:
    """Returns products of the first words' vectors and a vector, float32.

    They are sums of the products of rows, of which no vectors are made: unless
    lengths are unknown, which cosines need and for which vectors are composed.
    """
    target = np.asarray(target, np.float32)
    if self.ngrams is not None and self._known_norms() is None:
      return self._compose_all(target)[1][:limit]
    num = len(range(*slice(limit).indices(len(self))))
    out = _products(self.model.inputs, target, num)
    if self.ngrams is None:
      return out[:, 0]
    table = _products(self.ngrams.rows, target)
    _add(out, table, self.bags.starts, self.bags.rows, 0)
    return out[:, 0] / self.bags.sizes[:num].astype(np.float32)


def _products(rows, target: np.ndarray, stop: int | None = None):
  """Returns products of rows and a vector, [rows, 1] float32."""
  out = np.empty((len(rows) if stop is None else stop, 1), np.float32)

  def multiply(first: int, block: np.ndarray) -> None:
    out[first : first + len(block), 0] = np.vecdot(block, target)

  _each_block(rows, multiply, stop)
  return out


def _each_block(
  rows: export.LazyRows,
  use: Callable[[int, np.ndarray], None],
  stop: int | None = None,
) -> None:
  """Calls `use(first row, block)` for all rows, on all cores.

  A block is overwritten after the call.
  """
  stop = len(rows) if stop is None else min(stop, len(rows))
  size = max(1, _BLOCK_BYTES // (4 * rows.shape[1]))
  firsts = iter(range(0, stop, size))  # threads take the next one each

  def work(_) -> None:
    buffer = np.empty((size, rows.shape[1]), np.float32)
    for first in firsts:
      block = buffer[: min(size, stop - first)]
      rows.read_into(first, block)
      use(first, block)

  num_threads = len(resources.affinity())
  with futures.ThreadPoolExecutor(num_threads) as pool:
    for _ in pool.map(work, range(num_threads)):
      pass


def ngram_sums(
  bags: subwords.Bags, rows: np.ndarray | export.LazyRows
) -> np.ndarray:
  """Returns the sum of the rows of the n-grams of each word, [n, dim] float32.

  Rows are read one by one.
  """
  used, inverse = np.unique(bags.rows, return_inverse=True)
  table = np.ascontiguousarray(rows[used], np.float32)
  sums = np.zeros((len(bags.sizes), rows.shape[1]), np.float32)
  _add(sums, table, bags.starts, inverse.astype(np.int32), 0)
  return sums


@numba.njit(nogil=True, cache=True)
def _add(out, table, starts, rows, first):
  """Adds to row i of `out` the rows of the n-grams of word `first + i`.

  Rows of the table may be wider.
  """
  end = starts[first + len(out)]
  row_bytes = table.itemsize * table.shape[1]
  num_bytes = out.itemsize * out.shape[1]
  data = np.uint64(table.ctypes.data)
  for i in range(len(out)):
    for j in range(starts[first + i], starts[first + i + 1]):
      if j + _AHEAD < end:
        address = data + np.uint64(rows[j + _AHEAD]) * np.uint64(row_bytes)
        for line in range(0, num_bytes, memory.LINE):
          memory.prefetch_to_read(address + np.uint64(line))
      row = rows[j]
      for k in range(out.shape[1]):
        out[i, k] += table[row, k]
