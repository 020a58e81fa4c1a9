"""Vectors of new documents, by the rows of words of a trained model.

Words are frozen, so that a vector depends on nothing but its document and a
seed: random numbers are hashes of both. A document learns from one word after
the other, with K negatives each, as in gensim.
"""

import functools
import math
from collections.abc import Sequence
from concurrent import futures
from typing import NamedTuple

import numba
import numpy as np

from jaxemb.data import subsampling
from jaxemb.models import skipgram
from jaxemb.ops import hashing, sampling
from jaxemb.runtime import resources

_WORDS = 1 << 14  # of the documents that a thread takes at once, about


class Rows(NamedTuple):
  """Rows of words, and how they are drawn and subsampled."""

  outputs: np.ndarray  # [vocab, dim] float32
  inputs: np.ndarray  # [vocab, dim] float32 of PV-DM, [0, dim] of PV-DBOW
  keep_below: np.ndarray  # [vocab] uint64, of `subsampling.keep_thresholds`
  chances: np.ndarray  # [n] float32, of an alias table
  aliases: np.ndarray  # [n] int32


class Options(NamedTuple):
  """How documents are inferred."""

  window: int
  shortest_window: int
  negatives: int
  epochs: int
  learning_rate: float
  final_learning_rate: float
  seed: int


def rows(
  outputs: np.ndarray,
  inputs: np.ndarray | None,
  counts: np.ndarray,
  sample: float,
) -> Rows:
  """Returns `Rows` of words; PV-DBOW has no inputs."""
  chances = skipgram.negative_probabilities(counts)
  pairs = np.asarray(sampling.alias_table(chances).lines).reshape(-1, 2)
  outputs = np.ascontiguousarray(outputs, np.float32)
  inputs = outputs[:0] if inputs is None else inputs
  return Rows(
    outputs=outputs,
    inputs=np.ascontiguousarray(inputs, np.float32),
    keep_below=subsampling.keep_thresholds(counts, sample),
    chances=np.ascontiguousarray(pairs[:, 0]).view(np.float32),
    aliases=np.ascontiguousarray(pairs[:, 1]),
  )


@numba.njit(nogil=True, cache=True, fastmath=True)
def _dot(a, b):
  total = np.float32(0)
  for k in range(a.size):
    total += a[k] * b[k]
  return total


@numba.njit(nogil=True, cache=True, fastmath=True)
def _add(out, factor, row):
  for k in range(out.size):
    out[k] += factor * row[k]


@numba.njit(nogil=True, cache=True)
def _draw(chances, aliases, bits):
  """A word that 64 random bits draw."""
  high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
  entry = np.int64(high * np.uint64(chances.size) >> np.uint64(32))
  coin = np.float32(low >> np.uint64(8)) * np.float32(2**-24)
  return entry if coin < chances[entry] else np.int64(aliases[entry])


@numba.njit(nogil=True, cache=True)
def _learn_word(mean, word, outputs, draw, negatives, key, change):
  """Adds to a change what a word and its negatives give a mean."""
  chances, aliases = draw
  for k in range(negatives + 1):
    target, label = word, np.float32(1)
    if k:
      bits = hashing.hashed(key + np.uint64(k))
      target, label = _draw(chances, aliases, bits), np.float32(0)
      if target == word:
        continue
    row = outputs[target]
    score = min(max(_dot(mean, row), np.float32(-30)), np.float32(30))
    slope = label - np.float32(1 / (1 + math.exp(-score)))
    _add(change, slope, row)


@numba.njit(nogil=True, cache=True)
def _keep(ids, keep_below, key, words, hashes):
  """Writes the words that survive subsampling; returns how many do."""
  num = 0
  for i in range(ids.size):
    h = hashing.hashed(key ^ np.uint64(i))
    if (h >> np.uint64(32)) < keep_below[ids[i]]:
      words[num], hashes[num] = ids[i], h
      num += 1
  return num


@numba.njit(nogil=True, cache=True)
def _infer(ids, rows_of_words, options, key, vector):
  """Writes the vector of a document."""
  outputs, inputs, keep_below, chances, aliases = rows_of_words
  window, shortest, negatives, epochs, first_rate, last_rate, _ = options
  dim = vector.size
  for k in range(dim):
    bits = hashing.hashed(key ^ np.uint64(k)) >> np.uint64(40)
    unit = np.float32(bits) * np.float32(2**-24) - np.float32(0.5)
    vector[k] = unit / np.float32(dim)
  words, hashes = np.empty(ids.size, np.int32), np.empty(ids.size, np.uint64)
  mean, change = np.empty(dim, np.float32), np.empty(dim, np.float32)
  for epoch in range(epochs):
    epoch_key = hashing.hashed(key + np.uint64(epoch + 1))
    num = _keep(ids, keep_below, epoch_key, words, hashes)
    done = epoch / max(1, epochs - 1)
    rate = np.float32(first_rate + (last_rate - first_rate) * done)
    for i in range(num):
      mean[:] = vector
      fraction = np.float32(1)
      if len(inputs):
        low = np.int64(hashes[i] & np.uint64(0xFFFF))
        reach = shortest + (low * (window + 1 - shortest) >> 16)
        start, stop = max(0, i - reach), min(num, i + reach + 1)
        fraction = np.float32(1) / np.float32(stop - start)
        for j in range(start, stop):
          if j != i:
            _add(mean, np.float32(1), inputs[words[j]])
        mean *= fraction
      change[:] = 0
      word_key = hashing.hashed(hashes[i])
      _learn_word(
        mean, words[i], outputs, (chances, aliases), negatives, word_key, change
      )
      _add(vector, rate * fraction, change)


@numba.njit(nogil=True, cache=True)
def _infer_range(first, stop, ids, starts, rows_of_words, options, vectors):
  """Writes the vectors of documents first to stop."""
  for i in range(first, stop):
    document = ids[starts[i] : starts[i + 1]]
    key = hashing.hashed(np.uint64(options[6]))
    for id_ in document:
      key = hashing.hashed(key ^ np.uint64(id_))
    if document.size:
      _infer(document, rows_of_words, options, key, vectors[i])


def infer(
  ids: np.ndarray,
  starts: Sequence[int] | np.ndarray,
  rows_of_words: Rows,
  options: Options,
) -> np.ndarray:
  """Returns [documents, dim] float32, zeros of documents without a word.

  Document i has the words ids[starts[i] : starts[i + 1]]. All cores take part;
  a vector depends on its own words, their order and the options alone.
  """
  starts = np.asarray(starts, np.int64)
  ids = np.ascontiguousarray(ids, np.int32)
  num = len(starts) - 1
  vectors = np.zeros((num, rows_of_words.outputs.shape[1]), np.float32)
  # Ranges of documents with about as many words.
  words = np.arange(0, len(ids) + _WORDS, _WORDS)
  bounds = np.unique(np.append(np.searchsorted(starts[:-1], words), num))
  bounds = np.unique(np.append(0, bounds))
  work = functools.partial(
    _infer_range,
    ids=ids,
    starts=starts,
    rows_of_words=tuple(rows_of_words),
    options=tuple(options),
    vectors=vectors,
  )
  with futures.ThreadPoolExecutor(resources.usable_cores()) as pool:
    list(pool.map(work, bounds[:-1], bounds[1:]))
  return vectors
