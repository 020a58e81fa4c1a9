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
from jaxemb.data import base
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


class Indexed(NamedTuple):
  """A corpus and its sentences."""

  corpus: encode.Encoded
  lengths: list[np.ndarray]  # of each block, [sentences] uint16, with the ends


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
  blocks = map(corpus.block, range(len(corpus.blocks.words)))
  return Indexed(corpus, [_lengths(ids) for ids in blocks])


def _lengths(ids: np.ndarray) -> np.ndarray:
  is_end = ids == tokenize.END
  starts = np.flatnonzero(is_end[:-1] & ~is_end[1:]) + 1
  # Ends before the first sentence are part of it.
  starts = starts[int(is_end[0]) :]
  return np.diff(starts, prepend=0, append=len(ids)).astype(np.uint16)


@numba.njit(nogil=True, cache=True)
def _select(ids, lengths, offset, rule, out):
  """Copies a part's sentences of a block; returns numbers of ids, sentences."""
  n = 0
  num_sentences = 0
  start = 0
  for length in lengths:
    stop = start + np.int64(length)
    if selects(rule, offset + start):
      for i in range(start, stop):
        out[n] = ids[i]
        n += 1
      num_sentences += 1
    start = stop
  return n, num_sentences


@numba.njit(nogil=True, cache=True)
def _add_counts(ids, counts):
  for i in range(len(ids)):
    if ids[i] != tokenize.END:
      counts[ids[i]] += 1


def count(indexed: Indexed, sampling: Sampling, epochs: int) -> SampleCounts:
  """Counts what a part will read."""
  corpus = indexed.corpus
  seen = np.zeros(len(corpus.vocabulary.counts), np.int64)
  starts = corpus.blocks.starts.tolist()
  num_sentences = 0
  # Where nothing is drawn anew, epochs are alike.
  different = epochs if sampling.method == 'shuffle' else 1
  ids = np.empty(encode.MAX_BLOCK_IDS, np.int32)
  for epoch in range(different):
    epoch_rule = rule(sampling, epoch, starts[-1])
    for block, lengths in enumerate(indexed.lengths):
      block_ids, start = corpus.block(block), starts[block]
      n, more = _select(block_ids, lengths, start, epoch_rule, ids)
      _add_counts(ids[:n], seen)
      num_sentences += more
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
  counts = indexed.corpus.vocabulary.counts
  keep_below = loader.keep_thresholds(counts, spec.sample)
  num_blocks = len(indexed.lengths)
  epoch, block = position or (0, 0)
  while epoch < spec.epochs:
    index = epoch * num_blocks + block
    key = loader.part_key(spec.seed, epoch, sampling.part)
    blocks = _blocks(indexed, sampling, epoch, key, block)
    batch, num_read, words = loader.make_batch(
      spec, keep_below, [(key, blocks)]
    )
    block += num_read
    if block == num_blocks:
      epoch, block = epoch + 1, 0
    if words:  # an epoch may end with blocks without a sentence of the part
      yield base.Item(batch, index, [epoch, block], done, done + words)
      done += words


def _blocks(
  indexed: Indexed,
  sampling: Sampling,
  epoch: int,
  key: np.uint64,
  first: int,
) -> loader.Blocks:
  """A part's sentences of each block, in an epoch's order from `first` on."""
  corpus, lengths = indexed
  starts, num_blocks = corpus.blocks.starts, len(lengths)
  epoch_rule = rule(sampling, epoch, int(starts[-1]))
  ids = np.empty(encode.MAX_BLOCK_IDS, np.int32)
  for i in range(first, num_blocks):
    block = loader.permuted(i, num_blocks, key)
    block_ids, start = corpus.block(block), starts[block]
    n, _ = _select(block_ids, lengths[block], start, epoch_rule, ids)
    yield block, ids[:n]
