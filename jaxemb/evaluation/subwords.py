"""Vectors of words from the rows of their n-grams of characters.

The vector of a word is the mean of its word row and the rows of its n-grams,
that of an unseen word the mean of the rows of its n-grams (Bojanowski et al.
2017), as fastText and gensim compute them.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.ops import ngrams as ngrams_lib
from jaxemb.storage import export, fasttext_format, ngram_files

_BLOCK_BYTES = 1 << 22  # of rows at once


@dataclasses.dataclass(frozen=True, eq=False)
class NgramVectors:
  """Rows of n-grams, from which words that were never seen have vectors."""

  subwords: ngrams_lib.Subwords
  rows: np.ndarray | export.LazyRows  # [rows, dim] float32
  # [rows] int32, the bucket of each row; None = row i is bucket i.
  buckets: np.ndarray | None = None
  # Whether n-grams of buckets without a row count in means, as rows of zeros;
  # in quantized models of fastText they do not.
  counts_missing: bool = True

  @functools.cached_property
  def _order(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns sorted buckets and their rows."""
    assert self.buckets is not None
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

  def gather(self, rows: np.ndarray) -> np.ndarray:
    """Returns rows by their numbers, [n, dim] float32; zeros for -1."""
    values = np.zeros((len(rows), self.rows.shape[1]), np.float32)
    if (rows >= 0).any():
      values[rows >= 0] = self.rows[rows[rows >= 0]]
    return values

  def ngrams(self, word: str) -> list[tuple[str, np.ndarray]]:
    """Returns the n-grams of a word that count, with their [dim] vectors."""
    pairs = ngrams_lib.of_word(word, self.subwords)
    rows = self.rows_of(np.array([x for _, x in pairs], np.int64))
    return [
      (ngram, value)
      for (ngram, _), row, value in zip(
        pairs, rows.tolist(), self.gather(rows), strict=True
      )
      if row >= 0 or self.counts_missing
    ]

  def vector(self, word: str) -> np.ndarray | None:
    """Returns the mean of the n-grams of a word, [dim], or None without any."""
    values = [x for _, x in self.ngrams(word)]
    return np.stack(values).mean(0, dtype=np.float32) if values else None

  def has_vector(self, word: str) -> bool:
    """Returns whether a word has an n-gram that counts."""
    buckets = [x for _, x in ngrams_lib.of_word(word, self.subwords)]
    if self.counts_missing:
      return bool(buckets)
    return bool((self.rows_of(np.array(buckets, np.int64)) >= 0).any())

  def bags(self, ngrams: ngrams_lib.Ngrams) -> 'Bags':
    """Returns the rows of words from the buckets of their n-grams."""
    sizes = np.diff(ngrams.starts) + 1
    if self.buckets is None:
      return Bags(ngrams.starts, ngrams.buckets, sizes)
    rows = self.rows_of(ngrams.buckets)
    before = np.append(0, np.cumsum(rows >= 0))
    starts = before[ngrams.starts]
    if not self.counts_missing:
      sizes = np.diff(starts) + 1
    return Bags(starts, rows[rows >= 0], sizes)

  def in_memory(self) -> 'NgramVectors':
    """Returns a copy whose rows do not depend on a file."""
    return dataclasses.replace(self, rows=np.array(self.rows))

  def all_buckets(self) -> Iterator[np.ndarray]:
    """Yields the rows of all buckets in blocks, zeros where there is none."""
    if self.buckets is None:
      yield from export.blocks(self.rows)
      return
    size = max(1, _BLOCK_BYTES // (4 * self.rows.shape[1]))
    for first in range(0, self.subwords.buckets, size):
      last = min(first + size, self.subwords.buckets)
      yield self.gather(self.rows_of(np.arange(first, last)))

  def table(self) -> ngram_files.Table:
    """Returns what `ngram_files.write` writes.

    Raises a `UserError` for n-grams of a quantized model, which have no such
    files.
    """
    if not self.counts_missing and self.buckets is not None:
      raise errors.UserError(
        'n-grams of a quantized model cannot be written: keep its .ftz, or '
        'write the words alone with save_word2vec_format'
      )
    settings = dataclasses.asdict(self.subwords)
    return ngram_files.Table(settings, self.rows, self.buckets)


class Bags(NamedTuple):
  """Rows of the n-grams of n words, one word behind the other."""

  starts: np.ndarray  # [n + 1] int64, of each word in `rows`
  rows: np.ndarray  # [total] int32
  sizes: np.ndarray  # [n] int64, of how many rows a vector is the mean


def read(folder: pathlib.Path, dim: int) -> NgramVectors | None:
  """Maps the n-grams of an export, if it has some.

  Raises a `UserError` if they are damaged, or of vectors of another dimension.
  """
  table = ngram_files.read(folder, dim)
  if table is None:
    return None
  path = folder / ngram_files.FACTS
  return NgramVectors(
    subwords_of(path, **table.settings), table.rows, table.buckets
  )


def of_model(model: fasttext_format.Model) -> NgramVectors | None:
  """Returns the n-grams of a model of fastText, if it has some.

  Raises a `UserError` for n-grams of an impossible length.
  """
  settings = model.settings
  if not settings.max_chars or not len(model.ngrams):
    return None
  subwords = subwords_of(
    model.path, settings.min_chars, settings.max_chars, settings.buckets
  )
  return NgramVectors(
    subwords, model.ngrams, model.buckets, counts_missing=False
  )


def subwords_of(path: pathlib.Path, *args: int, **kwargs: int):
  """Returns `ngrams.Subwords`; what is wrong with them names a file."""
  try:
    return ngrams_lib.Subwords(*args, **kwargs)
  except errors.UserError as error:
    raise errors.UserError(f'{path}: {error}') from error
