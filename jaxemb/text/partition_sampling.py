"""Samples of a corpus's sentences, one for each of several sub-models.

  equal     contiguous stretches: that of part k of n begins k / n of the way
            through the text and is `rate` of it long, around its end
  sampling  every part draws each sentence with probability `rate`, once for all
            epochs; some sentences are in no part, some in several
  shuffle   draws anew in every epoch, and again for a sentence that no part
            got, until one does (Anand et al. 2019)

A sentence is identified by its offset in the ids of the corpus. Whether a part
gets it is a hash of (seed, epoch, offset), so nothing is shuffled or stored,
and reading can resume anywhere. The lengths of all sentences are in memory:
skipping one costs a hash. One longer than a block counts as several.

Vocabulary, subsampling and negatives are those of the whole corpus, which a
sub-model reads as a single part in the sense of `encode.divide`.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from typing import NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.data import base, windows
from jaxemb.text import encode, loader, tokenize

METHODS = ('equal', 'sampling', 'shuffle')

_STREAM = 0x7368617265  # the loader draws other numbers from the same seed
_ALL = 1 << 63  # draws are 63 bits


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How the sample of one part is drawn."""

  method: str  # one of METHODS
  num_parts: int
  rate: float  # expected share of the sentences
  part: int
  seed: int


class Rule(NamedTuple):
  """Who gets what in an epoch, as numbers for compiled code."""

  # A stretch of ids, around the end of all `num_ids`; a length of -1 = draws.
  first: np.int64
  length: np.int64
  num_ids: np.int64
  # Keys of a draw shared by all parts, and of this part's own.
  key: np.uint64
  own_key: np.uint64
  # If the shared draw is below `others`, a lower part has the sentence; below
  # `mine`, this is the first part that has it. In the first case, this part
  # has it too if its own draw is below `own`.
  others: np.uint64
  mine: np.uint64
  own: np.uint64


class Sentences(NamedTuple):
  """The sentences of a corpus, for compiled code."""

  shards: tuple[np.ndarray, ...]  # int32 ids
  shard_starts: np.ndarray  # [shards] int64, offset of each shard
  block_shards: np.ndarray  # [blocks] int64, shard of each block
  block_starts: np.ndarray  # [blocks + 1] int64, offset of each block
  firsts: np.ndarray  # [blocks + 1] int64, first sentence of each block
  lengths: np.ndarray  # [sentences] uint16, in ids with the ends


class Indexed(NamedTuple):
  """A corpus and its sentences."""

  corpus: encode.Encoded
  sentences: Sentences


class SampleCounts(NamedTuple):
  """What a part reads in all epochs, before subsampling."""

  seen: np.ndarray  # [vocab] int64, occurrences of each word
  words: int
  sentences: int


def rule(sampling: Sampling, epoch: int, num_ids: int) -> Rule:
  """The rule of an epoch, for a corpus of `num_ids` ids, ends included."""
  s = sampling
  key = _hashed(_hashed(_STREAM) ^ s.seed % 2**64)
  first = others = mine = 0
  length = -1
  if s.method == 'equal':
    first = s.part * num_ids // s.num_parts
    length = round(s.rate * num_ids)
    # No gaps from rounding; 1 / 49 * 49 is not 1.
    if math.isclose(s.rate * s.num_parts, 1):
      length = (s.part + 1) * num_ids // s.num_parts - first
  elif s.method == 'sampling':
    others = mine = _ALL  # whoever else has the sentence
  else:
    key = _hashed(key ^ _hashed(epoch + 1))
    others, mine = _none_before(s, s.part), _none_before(s, s.part + 1)
  return Rule(
    np.int64(first),
    np.int64(length),
    np.int64(num_ids),
    np.uint64(key),
    np.uint64(_hashed(key ^ (s.part + 1))),
    np.uint64(others),
    np.uint64(mine),
    np.uint64(round(s.rate * _ALL)),
  )


def _none_before(sampling: Sampling, part: int) -> int:
  """How many of 2^63 draws mean that a part before `part` has the sentence.

  Drawing for each part until one gets the sentence makes part f the first to
  get it with a probability proportional to (1 - rate)^f.
  """
  if sampling.rate >= 1:
    return _ALL if part else 0
  none = math.log1p(-sampling.rate)
  return round(
    _ALL * (math.expm1(part * none) / math.expm1(sampling.num_parts * none))
  )


def _hashed(x: int) -> int:
  return int(loader.hashed(np.uint64(x)))


@numba.njit(nogil=True, cache=True)
def selects(rule: Rule, offset: int) -> bool:
  """Whether a part gets the sentence at an offset."""
  if rule.length >= 0:
    distance = offset - rule.first
    return (distance + rule.num_ids * (distance < 0)) < rule.length
  hashed = loader.hashed(np.uint64(offset))
  draw = loader.hashed(rule.key ^ hashed) >> np.uint64(1)
  if draw >= rule.mine:
    return False
  if draw >= rule.others:
    return True
  return (loader.hashed(rule.own_key ^ hashed) >> np.uint64(1)) < rule.own


def index(corpus: encode.Encoded) -> Indexed:
  """Finds the sentences of a corpus; this process must have all of it."""
  shard_starts = np.cumsum([0, *map(len, corpus.shards)], dtype=np.int64)
  starts = corpus.blocks.starts
  owners = np.searchsorted(shard_starts, starts[:-1], 'right') - 1
  lengths, counts = [], [np.zeros(1, np.int64)]
  for i, ids in enumerate(corpus.shards):
    # A shard ends with its last block.
    edges = np.append(starts[:-1][owners == i], shard_starts[i + 1])
    shard_lengths, shard_counts = _lengths(ids, edges - shard_starts[i])
    lengths.append(shard_lengths)
    counts.append(shard_counts)
  sentences = Sentences(
    tuple(map(np.asarray, corpus.shards)),
    shard_starts[:-1],
    owners,
    starts,
    np.cumsum(np.concatenate(counts), dtype=np.int64),
    np.concatenate(lengths),
  )
  return Indexed(corpus, sentences)


@numba.njit(nogil=True, cache=True)
def _lengths(ids, starts):
  """Lengths of the sentences of a shard's blocks, and sentences by block."""
  lengths = np.empty(len(starts) + np.sum(ids == tokenize.END), np.uint16)
  counts = np.empty(len(starts) - 1, np.int64)
  n = 0
  for b in range(len(counts)):
    before = n
    begin = starts[b]
    has_words = False
    for i in range(begin, starts[b + 1]):
      if ids[i] != tokenize.END:
        if has_words and ids[i - 1] == tokenize.END:
          lengths[n] = i - begin
          n += 1
          begin = i
        has_words = True
    lengths[n] = starts[b + 1] - begin
    n += 1
    counts[b] = n - before
  return lengths[:n].copy(), counts


@numba.njit(nogil=True, cache=True)
def _copy_block(sentences, b, rule, out):
  """Copies a part's sentences of a block; returns numbers of ids, sentences."""
  shard = sentences.block_shards[b]
  ids, shift = sentences.shards[shard], sentences.shard_starts[shard]
  offset = sentences.block_starts[b]
  n = 0
  num_sentences = 0
  for s in range(sentences.firsts[b], sentences.firsts[b + 1]):
    stop = offset + np.int64(sentences.lengths[s])
    if selects(rule, offset):
      for i in range(offset, stop):
        out[n] = ids[i - shift]
        n += 1
      num_sentences += 1
    offset = stop
  return n, num_sentences


@numba.njit(nogil=True, cache=True)
def _count(sentences, rule, ids, seen):
  """Adds an epoch's words to `seen`; returns the number of sentences."""
  num_sentences = 0
  for b in range(len(sentences.block_shards)):
    n, more = _copy_block(sentences, b, rule, ids)
    num_sentences += more
    for i in range(n):
      if ids[i] != tokenize.END:
        seen[ids[i]] += 1
  return num_sentences


def count(indexed: Indexed, sampling: Sampling, epochs: int) -> SampleCounts:
  """Counts what a part will read."""
  seen = np.zeros(len(indexed.corpus.vocabulary.counts), np.int64)
  num_ids = int(indexed.sentences.block_starts[-1])
  num_sentences = 0
  # Where nothing is drawn anew, epochs are alike.
  different = epochs if sampling.method == 'shuffle' else 1
  block = np.empty(encode.MAX_BLOCK_IDS, np.int32)
  for epoch in range(different):
    epoch_rule = rule(sampling, epoch, num_ids)
    num_sentences += _count(indexed.sentences, epoch_rule, block, seen)
  seen *= epochs // different
  num_sentences *= epochs // different
  return SampleCounts(seen, int(seen.sum()), num_sentences)


def count_all(
  indexed: Indexed, samplings: Iterable[Sampling], epochs: int
) -> dict[int, SampleCounts]:
  """What several parts will read, by part.

  Raises:
    UserError: if a part gets no sentence.
  """
  samplings = list(samplings)
  with futures.ThreadPoolExecutor(encode.num_threads()) as pool:
    counts = list(pool.map(lambda x: count(indexed, x, epochs), samplings))
  for sampling, each in zip(samplings, counts, strict=True):
    if not each.words:
      raise errors.UserError(
        f'sub-model {sampling.part} of {sampling.num_parts} gets no sentence; '
        'lower --config.strategy.num_parts or raise --config.strategy.rate'
      )
  return {x.part: each for x, each in zip(samplings, counts, strict=True)}


@numba.njit(nogil=True, cache=True)
def _fill(
  sentences, rule, key, block, keep_below, windows, sizes, chosen, ids, left,
  right,
):  # fmt: skip
  """Fills a batch from a position in an epoch's order on.

  `windows` are the shortest and the longest, `sizes` words and ids of a block
  at most. Returns the next position, centers, words read and pairs.
  """
  kept = 0
  words = 0
  pairs = 0
  num_blocks = len(sentences.block_shards)
  # Until the next block might not fit.
  while block < num_blocks and kept + sizes[0] <= len(left):
    b = loader.permuted(block, num_blocks, key)
    n, _ = _copy_block(sentences, b, rule, chosen)
    kept, more_words, more_pairs = loader.pack(
      chosen[:n], b * sizes[1], keep_below, key, windows[0], windows[1], ids,
      left, right, kept,
    )  # fmt: skip
    words += more_words
    pairs += more_pairs
    block += 1
  return block, kept, words, pairs


def _batch(
  indexed: Indexed,
  sampling: Sampling,
  spec: loader.LoaderSpec,
  keep_below: np.ndarray,
  position: loader.Position,
) -> tuple[windows.Batch, int, int]:
  """The batch at a position, the block after it and the words it read."""
  size = spec.max_steps * spec.part_words
  ids = np.full(size + 2 * spec.window, len(keep_below), np.int32)
  left, right = np.zeros((2, size), np.uint8)
  block, kept, words, pairs = _fill(
    indexed.sentences,
    rule(sampling, position.epoch, int(indexed.sentences.block_starts[-1])),
    # As the loader has it for a part of this number.
    loader.part_key(spec, position.epoch, sampling.part),
    position.block,
    keep_below,
    (spec.shortest_window, spec.window),
    (encode.BLOCK_WORDS, encode.MAX_BLOCK_IDS),
    np.empty(encode.MAX_BLOCK_IDS, np.int32),
    ids,
    left,
    right,
  )
  # Clear what the last word left that subsampling dropped.
  ids[spec.window + kept] = len(keep_below)
  left[kept : kept + 1] = right[kept : kept + 1] = 0
  numbers = -(-kept // spec.part_words), kept, pairs
  arrays = (ids, left, right, *(np.int32(x) for x in numbers))
  return windows.Batch(*(x[None] for x in arrays)), block, words


def items(
  indexed: Indexed,
  sampling: Sampling,
  spec: loader.LoaderSpec,
  position: Sequence[int] | None,
  done: int,
) -> Iterator[base.Item]:
  """A part's batches from a position to the end of the last epoch.

  A batch is filled from as many blocks as it takes. Progress is in words of the
  part. Arguments are as of `data.base.Source.items`.
  """
  keep = loader.keep_probabilities(
    indexed.corpus.vocabulary.counts, spec.sample
  )
  keep_below = np.ceil(keep * 2.0**32).astype(np.uint64)
  num_blocks = len(indexed.sentences.block_shards)
  position = loader.Position(*(position or (0, 0)))
  while position.epoch < spec.epochs:
    number = position.epoch * num_blocks + position.block
    batch, block, words = _batch(indexed, sampling, spec, keep_below, position)
    position = loader.Position(position.epoch, block)
    if block == num_blocks:
      position = loader.Position(position.epoch + 1, 0)
    if words:  # an epoch may end with blocks without a sentence of the part
      yield base.Item(batch, number, list(position), done, done + words)
      done += words
