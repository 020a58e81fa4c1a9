"""Vectors of words from the rows of their n-grams of characters.

The vector of a word is the mean of its own row and the rows of its n-grams,
that of an unseen word the mean of the rows of its n-grams (Bojanowski et al.
2017), as fastText and gensim compute them. Files of an export with n-grams,
beside vectors.npy, which has the vectors of words so computed:

    subwords.json  min_chars, max_chars, buckets
    ngrams.npy     [rows, dim] float32, rows of n-grams
    buckets.npy    [rows] int32, the bucket of each row; missing = row i is
                   bucket i. N-grams of other buckets count as rows of zeros
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.io import cache
from jaxemb.ops import memory
from jaxemb.ops import ngrams as ngrams_lib
from jaxemb.runtime import resources
from jaxemb.storage import atomic, export, fasttext_format

FACTS, NGRAMS, BUCKETS = export.SUBWORDS, 'ngrams.npy', 'buckets.npy'
_BLOCK_WORDS = 4096
_BLOCK_BYTES = 1 << 22  # read at once
_AHEAD = 12  # n-grams whose rows are requested before they are needed
_TABLE_BYTES = 640 << 20  # of columns of all n-grams in memory
# Of fewer words, lengths are computed anew rather than cached in a file.
_MIN_CACHED = 200_000

Rows = np.ndarray | export.OnDemand


@dataclasses.dataclass(frozen=True, eq=False)
class NgramVectors:
  """Rows of n-grams, from which words that were never seen have vectors."""

  subwords: ngrams_lib.Subwords
  rows: Rows  # [rows, dim] float32
  # [rows] int32, the bucket of each row; None = row i is bucket i.
  buckets: np.ndarray | None = None
  # Whether n-grams of buckets without a row count in means, as rows of zeros;
  # in quantized models of fastText they do not.
  counts_missing: bool = True
  # The file that they are from, if it is one of fastText.
  model: fasttext_format.Model | None = None

  @functools.cached_property
  def _order(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns sorted buckets and their rows."""
    order = np.argsort(self.buckets, kind='stable')
    return self.buckets[order], order.astype(np.int32)

  def rows_of(self, buckets: np.ndarray) -> np.ndarray:
    """Returns the row of each bucket, int32; -1 = it has none."""
    if self.buckets is None:
      return np.asarray(buckets, np.int32)
    if not len(self.buckets):
      return np.full(len(buckets), -1, np.int32)
    known, rows = self._order
    positions = np.minimum(np.searchsorted(known, buckets), len(known) - 1)
    return np.where(known[positions] == buckets, rows[positions], np.int32(-1))

  def ngrams(self, word: str) -> list[tuple[str, np.ndarray]]:
    """Returns the n-grams of a word that count, with their [dim] vectors."""
    pairs = ngrams_lib.of_word(word, self.subwords)
    rows = self.rows_of(np.array([x for _, x in pairs], np.int64))
    values = np.zeros((len(rows), self.rows.shape[1]), np.float32)
    if (rows >= 0).any():
      values[rows >= 0] = self.rows[rows[rows >= 0]]
    return [
      (pair[0], value)
      for pair, row, value in zip(pairs, rows.tolist(), values, strict=True)
      if row >= 0 or self.counts_missing
    ]

  def vector(self, word: str) -> np.ndarray | None:
    """Returns the vector of an unseen word, [dim], or None without n-grams."""
    values = [x for _, x in self.ngrams(word)]
    return np.mean(values, axis=0, dtype=np.float32) if values else None

  def has_vector(self, word: str) -> bool:
    """Returns whether a word has an n-gram that counts."""
    buckets = [x for _, x in ngrams_lib.of_word(word, self.subwords)]
    if self.counts_missing:
      return bool(buckets)
    return bool((self.rows_of(np.array(buckets, np.int64)) >= 0).any())

  def bags(self, buckets: ngrams_lib.Ngrams) -> 'Bags':
    """Returns the rows of words from the buckets of their n-grams."""
    sizes = np.diff(buckets.starts) + 1
    if self.buckets is None:
      return Bags(buckets.starts, buckets.buckets, sizes)
    rows = self.rows_of(buckets.buckets)
    before = np.append(0, np.cumsum(rows >= 0))
    starts = before[buckets.starts]
    if not self.counts_missing:
      sizes = np.diff(starts) + 1
    return Bags(starts, rows[rows >= 0], sizes)

  def in_memory(self) -> 'NgramVectors':
    """Returns a copy whose rows do not depend on a file."""
    return dataclasses.replace(self, rows=np.array(self.rows), model=None)

  def all_buckets(self) -> Iterator[np.ndarray]:
    """Yields the rows of all buckets in blocks, zeros where there is none."""
    if self.buckets is None:
      yield from export.blocks(self.rows)
      return
    dim = self.rows.shape[1]
    size = max(1, _BLOCK_BYTES // (4 * dim))
    for first in range(0, self.subwords.buckets, size):
      last = min(first + size, self.subwords.buckets)
      rows = self.rows_of(np.arange(first, last))
      block = np.zeros((len(rows), dim), np.float32)
      if (rows >= 0).any():
        block[rows >= 0] = self.rows[rows[rows >= 0]]
      yield block

  def own_rows(
    self, words: Sequence[str], vectors: Rows
  ) -> Iterator[np.ndarray]:
    """Yields words' own rows in blocks, of which their vectors are means."""
    if isinstance(vectors, ComposedVectors):
      yield from export.blocks(vectors.own_rows)
      return
    for first in range(0, len(words), _BLOCK_WORDS):
      block = np.array(vectors[first : first + _BLOCK_WORDS], np.float32)
      bags = self.bags(
        ngrams_lib.of_words(words[first : first + _BLOCK_WORDS], self.subwords)
      )
      sums = np.zeros_like(block)
      _add_some(sums, bags, rows=self.rows, words=np.arange(len(block)))
      yield block * bags.sizes[:, None].astype(np.float32) - sums


class Bags(NamedTuple):
  """Rows of the n-grams of n words, one word behind the other."""

  starts: np.ndarray  # [n + 1] int64, of each word in `rows`
  rows: np.ndarray  # [total] int32
  sizes: np.ndarray  # [n] int64, of how many rows a vector is the mean


@dataclasses.dataclass(frozen=True, eq=False)
class ComposedVectors:
  """Vectors of words, [vocab, dim] float32, that are computed when read.

  It is indexed as an array is. `norms` and `products`, of all words, read each
  row once or a few times, whatever number of words share it.
  """

  ngrams: NgramVectors
  own_rows: Rows  # [vocab, dim] float32, of words
  make_bags: Callable[[], Bags]  # called once they are needed
  file: pathlib.Path | None = None  # that they are from

  ndim = 2
  dtype = np.dtype(np.float32)

  @property
  def shape(self) -> tuple[int, int]:
    """Returns the numbers of words and of dimensions."""
    return self.own_rows.shape

  def __len__(self) -> int:
    return self.shape[0]

  @functools.cached_property
  def bags(self) -> Bags:
    """Returns the rows of the n-grams of each word."""
    return self.make_bags()

  def __getitem__(self, index: Any) -> np.ndarray:
    if isinstance(index, slice):
      return self._of(np.arange(*index.indices(len(self))))
    index = np.asarray(index)
    index = np.flatnonzero(index) if index.dtype == bool else index
    words = index.reshape(-1).astype(np.int64)
    if ((words < -len(self)) | (words >= len(self))).any():
      raise IndexError(f'rows {words} are not all among {len(self):,}')
    words = np.where(words < 0, words + len(self), words)
    return self._of(words).reshape(*index.shape, self.shape[1])

  def __array__(self, dtype: Any = None, copy: bool | None = None):
    out = np.empty(self.shape, np.float32)

    def fill(first: int, columns: slice, block: np.ndarray) -> None:
      out[first : first + len(block), columns] = block

    self._by_columns(fill)
    return out if dtype is None else out.astype(dtype, copy=False)

  def _of(self, words: np.ndarray) -> np.ndarray:
    """Returns the vectors of some words, [n, dim]."""
    out = np.empty((len(words), self.shape[1]), np.float32)
    for first in range(0, len(words), _BLOCK_WORDS):
      some = words[first : first + _BLOCK_WORDS]
      block = np.array(self.own_rows[some], np.float32)
      _add_some(block, self.bags, rows=self.ngrams.rows, words=some)
      block /= self.bags.sizes[some, None].astype(np.float32)
      out[first : first + len(some)] = block
    return out

  def _by_columns(self, use: Callable[[int, slice, np.ndarray], None]) -> None:
    """Calls `use(first word, columns, [n, columns] vectors)` for all words.

    Some columns of all n-grams are in memory at once, and the rows of words are
    read in blocks: n-grams are shared, and one by one they would be read many
    times. Threads call it at once, for other words.
    """
    num_rows, dim = self.ngrams.rows.shape
    num_rounds = -(-4 * num_rows * dim // _TABLE_BYTES) or 1
    width = -(-dim // num_rounds)
    buffer = np.empty(num_rows * width, np.float32)
    for left in range(0, dim, width):
      columns = slice(left, min(left + width, dim))
      size = columns.stop - left
      table = buffer[: num_rows * size].reshape(num_rows, size)
      self._one_round(table, columns, use)

  def _one_round(self, table, columns, use):
    starts, rows, sizes = self.bags

    def fill(first: int, block: np.ndarray) -> None:
      table[first : first + len(block)] = block[:, columns]

    def add(first: int, block: np.ndarray) -> None:
      block = np.array(block[:, columns])
      _add(block, table, starts, rows, first)
      block /= sizes[first : first + len(block), None].astype(np.float32)
      use(first, columns, block)

    _each_block(self.ngrams.rows, fill)
    _each_block(self.own_rows, add)

  def norms(self) -> np.ndarray:
    """Returns the lengths of all vectors, [vocab] float32.

    Those of many words are in the cache after the first time.
    """
    if self.file is None or len(self) < _MIN_CACHED:
      return self._norms()
    identity = ['norms', cache.identity_of([self.file])]
    folder = cache.folder_of(cache.default_folder(), 'norms-', identity)

    def make(new: pathlib.Path) -> None:
      np.save(new / 'norms.npy', self._norms())

    try:
      return cache.opened(folder, lambda x: np.load(x / 'norms.npy'), make)
    except errors.UserError:  # a cache that cannot be written
      return self._norms()

  def _norms(self) -> np.ndarray:
    squares = np.zeros(len(self), np.float32)

    def add(first: int, columns: slice, block: np.ndarray) -> None:
      squares[first : first + len(block)] += np.vecdot(block, block)

    self._by_columns(add)
    return np.sqrt(squares)

  def products(
    self, target: np.ndarray, limit: int | None = None
  ) -> np.ndarray:
    """Returns products of the first words' vectors and a vector, float32.

    They are sums of the products of rows, of which no vectors are made.
    """
    num = len(range(*slice(limit).indices(len(self))))
    target = np.asarray(target, np.float32)
    own = _products(self.own_rows, target, num)
    table = _products(self.ngrams.rows, target)
    _add(own, table, self.bags.starts, self.bags.rows, 0)
    return own[:, 0] / self.bags.sizes[:num].astype(np.float32)


def _products(rows, target: np.ndarray, stop: int | None = None):
  """Returns products of rows and a vector, [rows, 1] float32."""
  out = np.empty((len(rows) if stop is None else stop, 1), np.float32)

  def multiply(first: int, block: np.ndarray) -> None:
    # Products of BLAS would be threads of threads.
    out[first : first + len(block), 0] = np.vecdot(block, target)

  _each_block(rows, multiply, stop)
  return out


def _each_block(
  rows: np.ndarray | export.OnDemand,
  use: Callable[[int, np.ndarray], None],
  stop: int | None = None,
) -> None:
  """Calls `use(first row, block)` for all rows, on all cores."""
  stop = len(rows) if stop is None else min(stop, len(rows))
  size = max(1, _BLOCK_BYTES // (4 * rows.shape[1]))

  def read(first: int) -> None:
    block = rows[first : min(first + size, stop)]
    use(first, np.asarray(block, np.float32))

  with futures.ThreadPoolExecutor(len(resources.affinity())) as pool:
    for _ in pool.map(read, range(0, stop, size)):
      pass


def _add_some(out: np.ndarray, bags: Bags, rows: Rows, words: np.ndarray):
  """Adds to [n, dim] the rows of the n-grams of n words, read one by one."""
  firsts, ends = bags.starts[words], bags.starts[words + 1]
  starts = np.append(0, np.cumsum(ends - firsts))
  positions = np.repeat(firsts - starts[:-1], ends - firsts)
  positions += np.arange(starts[-1])
  used, inverse = np.unique(bags.rows[positions], return_inverse=True)
  table = np.ascontiguousarray(rows[used], np.float32)
  _add(out, table, starts, inverse.astype(np.int32), 0)


@numba.njit(nogil=True, cache=True)
def _add(out, table, starts, rows, first):
  """Adds to row i of `out` the rows of the n-grams of word `first + i`."""
  end = starts[first + len(out)]
  row_bytes = table.itemsize * table.shape[1]
  data = np.uint64(table.ctypes.data)
  for i in range(len(out)):
    for j in range(starts[first + i], starts[first + i + 1]):
      if j + _AHEAD < end:
        address = data + np.uint64(rows[j + _AHEAD]) * np.uint64(row_bytes)
        for line in range(0, row_bytes, memory.LINE):
          memory.prefetch_to_read(address + np.uint64(line))
      row = rows[j]
      for k in range(out.shape[1]):
        out[i, k] += table[row, k]


def of_file(
  path: pathlib.Path | str,
) -> tuple[fasttext_format.Model, Rows, NgramVectors | None]:
  """Reads a model of fastText; returns it, vectors of words and its n-grams.

  Raises a `UserError` for a file that cannot be read.
  """
  model = fasttext_format.read(path)
  settings = model.settings
  if not settings.max_chars or not len(model.ngrams):
    return model, np.asarray(model.inputs), None
  ngrams = NgramVectors(
    subwords=ngrams_lib.Subwords(
      settings.min_chars, settings.max_chars, settings.buckets
    ),
    rows=model.ngrams,
    buckets=model.buckets,
    counts_missing=False,
    model=model,
  )

  def make_bags() -> Bags:
    return ngrams.bags(
      ngrams_lib.of_text(
        model.text,
        begins=model.begins,
        ends=model.ends,
        subwords=ngrams.subwords,
      )
    )

  path = pathlib.Path(path)
  vectors = ComposedVectors(
    ngrams, own_rows=model.inputs, make_bags=make_bags, file=path
  )
  return model, vectors, ngrams


def write(folder: pathlib.Path, ngrams: NgramVectors | None) -> None:
  """Writes the files of n-grams, or removes those of another export.

  Raises a `UserError` if one cannot be written, or for n-grams of a quantized
  model, which have no such files.
  """
  if ngrams is None:
    for name in (FACTS, NGRAMS, BUCKETS):
      (folder / name).unlink(missing_ok=True)
    return
  if ngrams.buckets is not None and not ngrams.counts_missing:
    raise errors.UserError(
      'n-grams of a quantized model cannot be written: keep its .ftz, or write '
      'the words alone with save_word2vec_format'
    )
  with atomic.write(folder / NGRAMS) as file:
    export.put_array(file, ngrams.rows)
  if ngrams.buckets is None:
    (folder / BUCKETS).unlink(missing_ok=True)
  else:
    with atomic.write(folder / BUCKETS) as file:
      export.put_array(file, np.asarray(ngrams.buckets, np.int32))
  with atomic.write(folder / FACTS) as file:
    file.write(json.dumps(dataclasses.asdict(ngrams.subwords)).encode())


def read(folder: pathlib.Path, dim: int) -> NgramVectors | None:
  """Maps what `write` has written, or returns None.

  Raises a `UserError` if it is damaged, or of vectors of another dimension.
  """
  path = folder / FACTS
  if not path.exists():
    return None
  with export.reading(path):
    try:
      subwords = ngrams_lib.Subwords(**json.loads(path.read_bytes()))
    except TypeError as error:
      raise ValueError(f'expected three numbers: {error}') from error
  buckets = None
  with export.reading(folder / NGRAMS) as file:
    rows = export.open_array(file)
    if rows.ndim != 2 or rows.shape[1] != dim:
      raise ValueError(f'{rows.shape} does not fit vectors of {dim} numbers')
  with export.reading(folder / BUCKETS) as file:
    num_rows = subwords.buckets
    if file.exists():
      buckets = np.load(file)
      num_rows = len(buckets)
      limits = buckets.min(initial=0), buckets.max(initial=0)
      if limits[0] < 0 or limits[1] >= subwords.buckets:
        raise ValueError(f'it has buckets beyond {subwords.buckets:,}')
    if len(rows) != num_rows:
      raise ValueError(f'there are {len(rows):,} rows, not {num_rows:,}')
  return NgramVectors(subwords, rows, buckets)


def write_model(
  path: pathlib.Path | str,
  words: Sequence[str],
  vectors: Rows,
  counts: np.ndarray | None,
  ngrams: NgramVectors | None,
) -> None:
  """Writes a model of fastText, from which it has the same vectors.

  Settings and output rows are those of the model that the n-grams are from, if
  there is one of the same words; else fastText's defaults, and zeros. Raises a
  `UserError` if it cannot be written.
  """
  model = ngrams and ngrams.model
  if ngrams is not None and model is not None and ngrams.buckets is not None:
    raise errors.UserError(
      f'{path}: rows of a quantized model cannot be written; copy its .ftz'
    )
  settings, outputs = fasttext_format.Settings(vectors.shape[1]), None
  if model is not None and model.kind != 'supervised':
    settings = model.settings
    outputs = model.outputs if list(words) == model.words else None
  settings = settings._replace(buckets=0, min_chars=0, max_chars=0)
  if ngrams is not None:
    subwords = ngrams.subwords
    settings = settings._replace(
      buckets=subwords.buckets,
      min_chars=subwords.min_chars,
      max_chars=subwords.max_chars,
    )

  def inputs() -> Iterator[np.ndarray]:
    if ngrams is None:
      yield from export.blocks(vectors)
    else:
      yield from ngrams.own_rows(words, vectors)
      yield from ngrams.all_buckets()

  fasttext_format.write(
    path,
    settings=settings,
    words=words,
    counts=counts,
    inputs=inputs(),
    outputs=outputs,
  )
