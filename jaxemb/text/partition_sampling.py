"""Samples of a corpus's sentences, one for each of several sub-models.

  equal     contiguous stretches: that of part k of n begins k / n of the way
            through the text and is `rate` of it long, around its end
  sampling  every part draws each sentence with probability `rate`, once for all
            epochs; some sentences are in no part, some in several
  shuffle   draws anew in every epoch, and again for a sentence that no part
            got, until one does (Anand et al. 2019)

A sentence is identified by its offset in the ids of the corpus. Whether a part
gets it is a hash of (seed, epoch, offset), so nothing is shuffled or stored,
and reading can resume anywhere. One longer than a block counts as several.

Vocabulary, subsampling and negatives are those of the whole corpus, which a
sub-model reads as a single part in the sense of `encode`; its process must have
all of it.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
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


class SampleCounts(NamedTuple):
  """What a part reads in all epochs, before subsampling."""

  seen: np.ndarray  # [vocab] int64, occurrences of each word
  words: int
  sentences: int


def rule(sampling: Sampling, epoch: int, num_ids: int) -> tuple[np.uint64, ...]:
  """Who gets what of `num_ids` ids in an epoch: the numbers for `selects`.

  A sentence has a draw: its distance behind `first` in a circle of `circle`
  ids, or where that is 0 a hash with `key`. Below `others`, a lower part has
  the sentence, and this part only if its own draw, a hash with `own_key`, is
  below `own`. Otherwise the part has it if the draw is below `mine`.
  """
  s = sampling
  key = _hashed(_hashed(_STREAM) ^ s.seed % 2**64)
  first = circle = others = own_key = 0
  own = round(s.rate * _ALL)
  if s.method == 'equal':
    first, circle = s.part * num_ids // s.num_parts, num_ids
    mine = round(s.rate * num_ids)
    # No gaps from rounding; 1 / 49 * 49 is not 1.
    if math.isclose(s.rate * s.num_parts, 1):
      mine = (s.part + 1) * num_ids // s.num_parts - first
  elif s.method == 'sampling':
    key, mine = _hashed(key ^ (s.part + 1)), own
  else:
    key = _hashed(key ^ _hashed(epoch + 1))
    own_key = _hashed(key ^ (s.part + 1))
    others, mine = _none_before(s, s.part), _none_before(s, s.part + 1)
  numbers = first, circle, key, others, own_key, own, mine
  return tuple(map(np.uint64, numbers))


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
def selects(rule: tuple[np.uint64, ...], offset: int) -> bool:
  """Whether a part gets the sentence at an offset."""
  first, circle, key, others, own_key, own, mine = rule
  x = np.uint64(offset)
  if circle:
    draw = (x + circle - first) % circle
  else:
    draw = loader.hashed(key ^ loader.hashed(x)) >> np.uint64(1)
  if draw >= others:
    return draw < mine
  return loader.hashed(own_key ^ loader.hashed(x)) >> np.uint64(1) < own


@numba.njit(nogil=True, cache=True)
def _select(ids, offset, rule, out):
  """Copies a part's sentences of a block; returns numbers of ids, sentences."""
  n = num_sentences = stop = 0
  while stop < len(ids):
    start = stop
    # Ends before the first sentence are part of it.
    while stop < len(ids) and ids[stop] == tokenize.END:
      stop += 1
    while stop < len(ids) and ids[stop] != tokenize.END:
      stop += 1
    while stop < len(ids) and ids[stop] == tokenize.END:
      stop += 1
    if selects(rule, offset + start):
      for i in range(start, stop):
        out[n] = ids[i]
        n += 1
      num_sentences += 1
  return n, num_sentences


@numba.njit(nogil=True, cache=True)
def _add_counts(ids, counts):
  for i in range(len(ids)):
    if ids[i] != tokenize.END:
      counts[ids[i]] += 1


def count(
  corpus: encode.Encoded, sampling: Sampling, epochs: int
) -> SampleCounts:
  """Counts what a part will read."""
  seen = np.zeros(len(corpus.vocabulary.counts), np.int64)
  starts, sentences = corpus.blocks.starts, 0
  # Where nothing is drawn anew, epochs are alike.
  different = epochs if sampling.method == 'shuffle' else 1
  ids = np.empty(encode.MAX_BLOCK_IDS, np.int32)
  for epoch in range(different):
    epoch_rule = rule(sampling, epoch, int(starts[-1]))
    for block in range(len(starts) - 1):
      n, more = _select(corpus.block(block), starts[block], epoch_rule, ids)
      _add_counts(ids[:n], seen)
      sentences += more
  seen *= epochs // different
  return SampleCounts(seen, int(seen.sum()), sentences * epochs // different)


def count_all(
  corpus: encode.Encoded, samplings: Sequence[Sampling], epochs: int
) -> dict[int, SampleCounts]:
  """What several parts will read, by part.

  Raises:
    UserError: if a part gets no sentence.
  """
  with futures.ThreadPoolExecutor(encode.num_threads()) as pool:
    counts = list(pool.map(lambda x: count(corpus, x, epochs), samplings))
  for sampling, each in zip(samplings, counts, strict=True):
    if not each.words:
      raise errors.UserError(
        f'sub-model {sampling.part} of {sampling.num_parts} gets no sentence; '
        'lower --config.strategy.num_parts or raise --config.strategy.rate'
      )
  return {x.part: each for x, each in zip(samplings, counts, strict=True)}


def items(
  corpus: encode.Encoded,
  sampling: Sampling,
  spec: loader.LoaderSpec,
  position: Sequence[int] | None,
  done: int,
) -> Iterator[base.Item]:
  """A part's batches from a position to the end of the last epoch.

  A batch is filled from as many blocks as it takes. Progress is in words of the
  part. Arguments are as of `data.base.Source.items`.
  """
  keep_below = loader.keep_thresholds(corpus.vocabulary.counts, spec.sample)
  starts = corpus.blocks.starts
  num_blocks = len(starts) - 1
  ids = np.empty(encode.MAX_BLOCK_IDS, np.int32)

  def blocks(epoch: int, key: np.uint64, first: int) -> loader.Blocks:
    """The part's sentences of each block, in an epoch's order."""
    epoch_rule = rule(sampling, epoch, int(starts[-1]))
    for i in range(first, num_blocks):
      block = loader.permuted(i, num_blocks, key)
      n, _ = _select(corpus.block(block), starts[block], epoch_rule, ids)
      yield block, ids[:n]

  epoch, block = position or (0, 0)
  while epoch < spec.epochs:
    index = epoch * num_blocks + block
    key = loader.part_key(spec.seed, epoch, sampling.part)
    batch, num_read, words = loader.make_batch(
      spec, keep_below, [(key, blocks(epoch, key, block))]
    )
    block += num_read
    if block == num_blocks:
      epoch, block = epoch + 1, 0
    if words:  # an epoch may end with blocks without a sentence of the part
      yield base.Item(batch, index, [epoch, block], done, done + words)
      done += words
