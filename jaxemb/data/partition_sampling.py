"""Samples of the sentences of a corpus, one for each of several sub-models.

  equal     part k of n gets a fraction `rate` of the text, which begins at
            k / n and continues at the start where the text ends
  sampling  every part draws each sentence with probability `rate`, once for all
            epochs; some sentences are in no part, some in several
  shuffle   draws again in every epoch, and again for a sentence that no part
            got, until one does (Anand et al. 2019)

Whether a part gets a sentence is a hash of (seed, epoch, offset in the ids of
the corpus): nothing is shuffled or stored, and reading can resume anywhere. A
sentence longer than a block counts as several.

Vocabulary, subsampling and negatives are those of the whole corpus, which the
process must have encoded as one part.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.data import base, subsampling
from jaxemb.data import blocks as blocks_lib
from jaxemb.ops import hashing
from jaxemb.runtime import resources

_STREAM = 0x7368617265  # the loader draws other numbers from the same seed
_ALL = 1 << 63  # draws are 63 bits


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How the sample of one part is drawn."""

  method: str  # 'equal', 'sampling' or 'shuffle'
  num_parts: int
  rate: float  # expected fraction of the sentences
  part: int
  seed: int


class SampleCounts(NamedTuple):
  """What a part reads in all epochs, before subsampling."""

  seen: np.ndarray  # [vocab] int64, occurrences of each word
  words: int
  sentences: int


def rule(sampling: Sampling, epoch: int, num_ids: int) -> tuple[np.uint64, ...]:
  """Returns the arguments of `selects` for an epoch over `num_ids` ids.

  The draw of a sentence is its distance behind `first` in a circle of `circle`
  ids or, if that is 0, a hash with `key`. Below `shared_below` a lower part may
  have the sentence, and this part has it only if a second draw, a hash with
  `part_key`, is below `part_below`. Otherwise this part has it if the draw is
  below `below`.
  """
  s = sampling
  key = _hashed(_hashed(_STREAM) ^ s.seed % 2**64)
  first = circle = shared_below = 0
  if s.method == 'equal':
    first, circle = s.part * num_ids // s.num_parts, num_ids
    below = round(s.rate * num_ids)
    # Avoids gaps from rounding; 1 / 49 * 49 is not 1.
    if math.isclose(s.rate * s.num_parts, 1):
      below = (s.part + 1) * num_ids // s.num_parts - first
  elif s.method == 'sampling':
    shared_below = below = _ALL  # only second draws count
  else:
    key = _hashed(key ^ _hashed(epoch + 1))
    shared_below, below = _taken(s, s.part), _taken(s, s.part + 1)
  part_key, part_below = _hashed(key ^ (s.part + 1)), round(s.rate * _ALL)
  numbers = first, circle, key, shared_below, part_key, part_below, below
  return tuple(map(np.uint64, numbers))


def _taken(sampling: Sampling, part: int) -> int:
  """Returns how many of 2^63 draws give the sentence to a part before `part`.

  Drawing for one part after the other until one gets the sentence makes part f
  the first to get it with a probability proportional to (1 - rate)^f.
  """
  if sampling.rate >= 1:
    return _ALL if part else 0
  none = math.log1p(-sampling.rate)
  return round(
    _ALL * (math.expm1(part * none) / math.expm1(sampling.num_parts * none))
  )


def _hashed(x: int) -> int:
  return int(hashing.hashed(np.uint64(x)))


@numba.njit(nogil=True, cache=True)
def selects(rule: tuple[np.uint64, ...], offset: int) -> bool | np.bool:
  """Returns whether a part gets the sentence at an offset."""
  first, circle, key, shared_below, part_key, part_below, below = rule
  x = np.uint64(offset)
  if circle:
    draw = (x + circle - first) % circle
  else:
    draw = hashing.hashed(key ^ hashing.hashed(x)) >> np.uint64(1)
  if draw >= shared_below:
    return draw < below
  return (
    hashing.hashed(part_key ^ hashing.hashed(x)) >> np.uint64(1) < part_below
  )


@numba.njit(nogil=True, cache=True)
def _select(ids, offset, rule, out):
  """Copies the sentences of a part; returns the numbers of ids, sentences."""
  n = num_sentences = stop = 0
  while stop < len(ids):
    start = stop
    # END marks before the first sentence belong to it.
    while stop < len(ids) and ids[stop] == blocks_lib.END:
      stop += 1
    while stop < len(ids) and ids[stop] != blocks_lib.END:
      stop += 1
    while stop < len(ids) and ids[stop] == blocks_lib.END:
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
    if ids[i] != blocks_lib.END:
      counts[ids[i]] += 1


def count(corpus: Any, sampling: Sampling, epochs: int) -> SampleCounts:
  """Counts the words and sentences that a part reads."""
  seen = np.zeros(len(corpus.counts), np.int64)
  starts, sentences = corpus.blocks.starts, 0
  # Only 'shuffle' draws again in every epoch.
  different = epochs if sampling.method == 'shuffle' else 1
  ids = np.empty(blocks_lib.MAX_BLOCK_IDS, np.int32)
  for epoch in range(different):
    epoch_rule = rule(sampling, epoch, int(starts[-1]))
    for block in range(len(starts) - 1):
      n, more = _select(
        corpus.block(block), offset=starts[block], rule=epoch_rule, out=ids
      )
      _add_counts(ids[:n], seen)
      sentences += more
  seen *= epochs // different
  return SampleCounts(seen, int(seen.sum()), sentences * epochs // different)


def count_all(
  corpus: Any, samplings: Sequence[Sampling], epochs: int
) -> list[SampleCounts]:
  """Counts what each part reads; raises a `UserError` if that is nothing."""
  with futures.ThreadPoolExecutor(resources.reading_threads()) as pool:
    counts = list(pool.map(lambda x: count(corpus, x, epochs), samplings))
  for sampling, part_counts in zip(samplings, counts, strict=True):
    if not part_counts.words:
      raise errors.UserError(
        f'sub-model {sampling.part} of {sampling.num_parts} gets no sentence; '
        'lower --config.strategy.num_parts or raise --config.strategy.rate'
      )
  return counts


def items(
  corpus: Any,
  sampling: Sampling,
  spec: base.SourceSpec,
  position: Sequence[int] | None,
  done: int,
) -> Iterator[base.Item]:
  """Yields the batches of a part, as `data.base.Source.items` does.

  A batch is filled from as many blocks as needed. Progress is in words of the
  part.
  """
  keep_below = subsampling.keep_thresholds(
    corpus.counts, spec.settings['sample']
  )
  starts = corpus.blocks.starts
  num_blocks = len(starts) - 1
  ids = np.empty(blocks_lib.MAX_BLOCK_IDS, np.int32)

  def blocks(epoch: int, key: np.uint64, first: int) -> blocks_lib.Numbered:
    """Yields the sentences of the part, by block, in the order of an epoch."""
    epoch_rule = rule(sampling, epoch, int(starts[-1]))
    for i in range(first, num_blocks):
      block = hashing.permuted(i, num_blocks, key)
      n, _ = _select(
        corpus.block(block), offset=starts[block], rule=epoch_rule, out=ids
      )
      yield block, ids[:n]

  epoch, block = position or (0, 0)
  while epoch < spec.epochs:
    index = epoch * num_blocks + block
    key = hashing.part_key(spec.seed, epoch, sampling.part)
    batch, num_read, words = blocks_lib.make_batch(
      spec, keep_below, [(key, blocks(epoch, key, block))]
    )
    block += num_read
    if block == num_blocks:
      epoch, block = epoch + 1, 0
    if words:  # the last blocks may have no sentence of the part
      yield base.Item(
        batch=batch,
        index=index,
        position=[epoch, block],
        done_before=done,
        done_after=done + words,
      )
      done += words
