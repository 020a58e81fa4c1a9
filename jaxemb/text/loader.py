"""From id shards to batches: shuffled, subsampled, with a window per token.

Blocks of the corpus come in an order that a keyed permutation gives for every
epoch, `group_blocks` at a time. Of each group, frequent words are dropped
(word2vec.c: a token of relative frequency f stays with probability
sqrt(t / f) + t / f), the rest is packed without gaps, and every token gets its
dynamic window (uniform in shortest_window..window, cut at the sentence). A
group becomes one batch, that is one dispatch of up to `max_steps` steps.

Every choice is a hash of (seed, epoch, position in the corpus), so a batch is a
pure function of (seed, epoch, next block), which is the reader's whole state.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.data import base, windows
from jaxemb.text import encode, tokenize


class Position(NamedTuple):
  """The next block to read, in an epoch's order of each part."""

  epoch: int
  block: int


@dataclasses.dataclass(frozen=True)
class LoaderSpec:
  """How a corpus is cut into batches."""

  seed: int
  epochs: int
  part_words: int  # centers of each part of the corpus per step
  window: int  # largest distance between a center and its context
  sample: float  # threshold of frequent-word subsampling, 0 = off
  shortest_window: int = 1  # windows are drawn from this one up

  @property
  def group_blocks(self) -> int:
    """Blocks of each part per batch: a half-empty last step is no loss."""
    return max(128, 128 * self.part_words // encode.BLOCK_WORDS)

  @property
  def max_steps(self) -> int:
    """Steps of a batch of which no token was dropped."""
    return -(-self.group_blocks * encode.BLOCK_WORDS // self.part_words)

  def num_batches(self, num_blocks: int) -> int:
    """Batches per epoch of a corpus whose longest part has so many blocks."""
    return -(-num_blocks // self.group_blocks)


def keep_probabilities(counts: np.ndarray, sample: float) -> np.ndarray:
  """[vocab] float64: chance that a token survives subsampling.

  Mikolov et al. 2013b as word2vec.c computes it; `sample` 0 keeps all.
  """
  if not sample:
    return np.ones(len(counts))
  ratio = sample * counts.sum() / np.maximum(counts, 1)
  return np.minimum(1.0, np.sqrt(ratio) + ratio)


@numba.njit(nogil=True, cache=True)
def hashed(x):
  """splitmix64 (Steele et al. 2014), 64 bits to 64 bits."""
  x = (x + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


@numba.njit(nogil=True, cache=True)
def permuted(index: int, size: int, key: np.uint64) -> int:
  """Where a keyed permutation of 0..size-1 sends `index`.

  A Feistel network of four rounds over the next even power of two, walked until
  it lands inside (Black and Rogaway 2002): no list of the corpus in memory.
  """
  half = np.uint64(1)
  while (np.uint64(1) << (np.uint64(2) * half)) < np.uint64(size):
    half += np.uint64(1)
  mask = (np.uint64(1) << half) - np.uint64(1)
  x = np.uint64(index)
  while True:
    left = x >> half
    right = x & mask
    for r in range(4):
      mixed = hashed(right ^ hashed(key ^ np.uint64(r))) & mask
      left, right = right, left ^ mixed
    x = (left << half) | right
    if x < np.uint64(size):
      return np.int64(x)


@numba.njit(nogil=True, cache=True)
def pack(ids, position, keep_below, key, shortest, window, out, left, right, n):
  """Appends a block's surviving tokens at `out[window + n:]`.

  `keep_below` is the keep probability scaled to 2^32. Returns the new n, the
  words read and the pairs made.
  """
  words = 0
  pairs = 0
  start = n  # of the sentence
  for i in range(len(ids) + 1):
    if i == len(ids) or ids[i] == tokenize.END:
      for j in range(start, n):
        # The low half of the token's hash, kept aside in `left` and `right`.
        reach = left[j] | (np.int64(right[j]) << 8)
        reach = shortest + (reach * (window + 1 - shortest) >> 16)
        left[j] = min(reach, j - start)
        right[j] = min(reach, n - 1 - j)
        pairs += left[j] + right[j]
      start = n
      continue
    words += 1
    h = hashed(key ^ np.uint64(position + i))
    # Written in any case, kept by counting it: a branch that is taken at random
    # costs more than the writes.
    out[window + n] = ids[i]
    left[n] = h & np.uint64(0xFF)
    right[n] = (h >> np.uint64(8)) & np.uint64(0xFF)
    n += (h >> np.uint64(32)) < keep_below[ids[i]]
  return n, words, pairs


def center_probabilities(counts: np.ndarray, sample: float) -> np.ndarray:
  """[vocab] float64: chance that a token that survived is each word."""
  kept = counts * keep_probabilities(counts, sample)
  return kept / kept.sum()


def _epoch_key(seed: int, epoch: int) -> np.uint64:
  """The key of all choices of an epoch."""
  # Compiled functions hand back Python ints, whose type numba would guess.
  inner = np.uint64(hashed(np.uint64(epoch)))
  return np.uint64(hashed(np.uint64(seed % 2**64) ^ inner))


def _ids(corpus: encode.Encoded, start: int, stop: int) -> np.ndarray:
  for shard in corpus.shards:
    if start < len(shard):
      return shard[start:stop]
    start -= len(shard)
    stop -= len(shard)
  raise IndexError(start)


@numba.njit(nogil=True, cache=True)
def _group_words(block_words, first, stop, key):
  """Words of the blocks that come first..stop-1 in an epoch's order."""
  words = 0
  for i in range(first, stop):
    words += block_words[permuted(i, len(block_words), key)]
  return words


def part_key(spec: LoaderSpec, epoch: int, part: int) -> np.uint64:
  """The key of all choices that are made for a part in an epoch."""
  key = _epoch_key(spec.seed, epoch)
  return np.uint64(hashed(np.uint64(part) ^ key)) if part else key


def _fill(
  corpus: encode.Encoded,
  part: encode.Part,
  spec: LoaderSpec,
  keep_below: np.ndarray,
  position: Position,
  out: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[int, int]:
  """Fills a part's arrays of a batch; returns its centers and pairs."""
  num_blocks = len(part.blocks)
  key = part_key(spec, position.epoch, part.index)
  kept = pairs = 0
  stop = min(position.block + spec.group_blocks, num_blocks)
  for i in range(position.block, stop):
    block = permuted(i, num_blocks, key)
    number = part.blocks[block]
    first, last = corpus.blocks.starts[number : number + 2]
    kept, _, new_pairs = pack(
      _ids(corpus, first, last),
      # Where the block is in its part, whoever holds the others.
      block * encode.MAX_BLOCK_IDS,
      keep_below,
      key,
      spec.shortest_window,
      spec.window,
      *out,
      kept,
    )
    pairs += new_pairs
  ids, left, right = out
  # What the last word that was not kept has left behind.
  ids[spec.window + kept] = len(keep_below)
  left[kept : kept + 1] = right[kept : kept + 1] = 0
  return kept, pairs


def _make_batch(
  corpus: encode.Encoded,
  parts: Sequence[encode.Part],
  spec: LoaderSpec,
  keep_below: np.ndarray,
  position: Position,
) -> windows.Batch:
  """The batch at a position, of the parts that this process reads."""
  # Ids behind the vocabulary are padding: gathered as anything, never updated.
  num, size = len(parts), spec.max_steps * spec.part_words
  ids = np.full((num, size + 2 * spec.window), len(keep_below), np.int32)
  left, right = np.zeros((2, num, size), np.uint8)
  kept, pairs = np.zeros((2, num), np.int32)
  for i, part in enumerate(parts):
    kept[i], pairs[i] = _fill(
      corpus, part, spec, keep_below, position, (ids[i], left[i], right[i])
    )
  return windows.Batch(
    ids, left, right, -(-kept // spec.part_words), kept, pairs
  )


@dataclasses.dataclass(frozen=True)
class TextSource:
  """An encoded corpus as a `data.base.Source`; progress is in its words."""

  corpus: encode.Encoded  # what this process holds
  division: encode.Division  # of the corpus into parts
  spec: LoaderSpec
  steps: windows.Steps

  unit = 'words'

  @property
  def units_per_epoch(self) -> int:
    """Words of the corpus inside the vocabulary."""
    return self.corpus.num_words

  @property
  def epochs(self) -> int:
    """How often the corpus is read."""
    return self.spec.epochs

  @property
  def num_parts(self) -> int:
    """Parts of the corpus that are read side by side."""
    return len(self.division.block_words)

  @property
  def keys(self) -> Sequence[str]:
    """Words, the most frequent first."""
    return self.corpus.vocabulary.words

  @property
  def counts(self) -> np.ndarray:
    """[vocab] int, falling."""
    return self.corpus.vocabulary.counts

  @property
  def frequencies(self) -> np.ndarray:
    """[vocab] float64, chance that a center is each word."""
    return center_probabilities(self.counts, self.spec.sample)

  @property
  def fingerprint(self) -> str:
    """Of the encoded text."""
    return self.corpus.manifest['fingerprint']

  @property
  def dropped(self) -> Mapping[str, Any]:
    """What encoding left out, counted."""
    return self.corpus.manifest['dropped']

  def describe(self) -> list[str]:
    """What was read, for the log."""
    manifest = self.corpus.manifest
    files = manifest['files']
    read_bytes = sum(x['read_bytes'] for x in files)
    size_bytes = sum(x['size_bytes'] for x in files)
    num_read = sum(x['read_bytes'] > 0 for x in files)
    return [
      f'corpus: {self.corpus.num_words:,} words, vocabulary '
      f'{len(self.keys):,}, {manifest["text_bytes"]:,} bytes of text in '
      f'{self.corpus.folder}',
      f'this process read {read_bytes:,} of {size_bytes:,} bytes in {num_read} '
      'file(s)',
    ]

  def items(
    self, position: Sequence[int] | None, done: int
  ) -> Iterator[base.Item]:
    """Batches from a position to the end of the last epoch."""
    keep = keep_probabilities(self.counts, self.spec.sample)
    keep_below = np.ceil(keep * 2.0**32).astype(np.uint64)
    block_words, group = self.division.block_words, self.spec.group_blocks
    num_blocks = max(len(words) for words in block_words)
    num_batches = self.spec.num_batches(num_blocks)
    position = Position(*(position or (0, 0)))
    while position.epoch < self.epochs:
      index = position.epoch * num_batches + position.block // group
      batch = _make_batch(
        self.corpus, self.division.mine, self.spec, keep_below, position
      )
      words = 0
      for part, sizes in enumerate(block_words):
        stop = min(position.block + group, len(sizes))
        key = part_key(self.spec, position.epoch, part)
        words += _group_words(sizes, position.block, stop, key)
      position = Position(position.epoch, position.block + group)
      if position.block >= num_blocks:
        position = Position(position.epoch + 1, 0)
      yield base.Item(batch, index, list(position), done, done + words)
      done += words
