"""Which sentences each of several sub-models reads, and batches of them.

  equal     one contiguous stretch of the text for each: part k of n begins
            behind k / n of it and is as long as the rate, around the end
  sampling  every part draws each sentence at the rate, once for all epochs;
            some sentences are in no part, some in several
  shuffle   the draws are made anew for every epoch, and again for a sentence
            that no part got, until one does (Anand et al. 2019)

A sentence is known by its place, which is where it begins among the ids of the
corpus: whether a part gets it is a hash of (seed, epoch, place), so nothing is
shuffled or stored, and a part can be read anywhere. The lengths of all
sentences are kept in memory: one that a part does not get costs a hash, not a
look at its words. A sentence that is longer than a block of the corpus
(`encode.BLOCK_WORDS`) counts as several.

The words, their counts and all that follows from these (frequent words dropped,
negatives) are those of the whole corpus. Parts of the corpus in the sense of
`encode.divide`, pieces of the text that devices read side by side, are another
thing: of those a sub-model has one.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numba
import numpy as np

from jaxemb.text import encode, loader, tokenize

WAYS = ('equal', 'sampling', 'shuffle')

_STREAM = 0x7368617265  # of random numbers: the loader has others of the seed
_ALL = 1 << 63  # draws are 63 bits


@dataclasses.dataclass(frozen=True)
class Share:
  """What one of several parts gets."""

  way: str  # one of WAYS
  num_parts: int
  rate: float  # of the sentences
  part: int
  seed: int


class Rule(NamedTuple):
  """A share in one epoch, as plain numbers for compiled code."""

  # A stretch of the ids, around their end; a length of -1 = draws.
  first: np.int64
  length: np.int64
  num_ids: np.int64
  # Draws, of all parts and of this one.
  key: np.uint64
  own_key: np.uint64
  # Of all parts' draw: below the first, parts before this one got the sentence;
  # from there to the second this is the first part that did.
  others_below: np.uint64
  mine_below: np.uint64
  own_below: np.uint64  # of the own draw, that the part gets it too


class Places(NamedTuple):
  """Where the sentences of a corpus are, for compiled code."""

  shards: tuple[np.ndarray, ...]  # int32 ids
  firsts: np.ndarray  # [shards] int64, place of each one's first id
  owners: np.ndarray  # [blocks] int64, shard of each block
  starts: np.ndarray  # [blocks + 1] int64, place of each block
  sentences: np.ndarray  # [blocks + 1] int64, sentences before each block
  lengths: np.ndarray  # [sentences] uint16, ids, with the ends behind


class Text(NamedTuple):
  """A whole corpus, ready to be shared out."""

  corpus: encode.Encoded
  places: Places


class Census(NamedTuple):
  """What a part reads in all epochs, before frequent words are dropped."""

  seen: np.ndarray  # [vocab] int64, occurrences of each word
  words: int
  sentences: int


def _first_is_before(part: int, num_parts: int, rate: float) -> int:
  """How many of 2^63 draws say that a part before this one has the sentence.

  Drawing for each part until one gets the sentence makes part f the first to
  get it with a chance in proportion to (1 - rate)^f.
  """
  if rate >= 1:
    return _ALL if part else 0
  none = math.log1p(-rate)
  return round(_ALL * (math.expm1(part * none) / math.expm1(num_parts * none)))


def rule(share: Share, epoch: int, num_ids: int) -> Rule:
  """What a part gets in an epoch.

  Args:
    share: of the part.
    epoch: which one.
    num_ids: of the corpus, with the ends of its sentences.
  """
  key = _mixed(_mixed(_STREAM) ^ share.seed % 2**64)
  if share.way == 'shuffle':
    key = _mixed(key ^ _mixed(epoch + 1))
  first = length = others_below = mine_below = 0
  if share.way == 'equal':
    first = share.part * num_ids // share.num_parts
    length = round(share.rate * num_ids)
    # No gaps from rounding; 1 / 49 * 49 is not 1.
    if math.isclose(share.rate * share.num_parts, 1):
      length = (share.part + 1) * num_ids // share.num_parts - first
  elif share.way == 'sampling':
    others_below = mine_below = _ALL  # nobody asks what others get
  else:
    others_below, mine_below = (
      _first_is_before(part, share.num_parts, share.rate)
      for part in (share.part, share.part + 1)
    )
  return Rule(
    np.int64(first),
    np.int64(length if share.way == 'equal' else -1),
    np.int64(num_ids),
    np.uint64(key),
    np.uint64(_mixed(key ^ (share.part + 1))),
    np.uint64(others_below),
    np.uint64(mine_below),
    np.uint64(round(share.rate * _ALL)),
  )


def _mixed(x: int) -> int:
  return int(loader.hashed(np.uint64(x)))


@numba.njit(nogil=True, cache=True)
def gets(place: int, rule: Rule) -> bool:
  """Whether a part gets the sentence at a place."""
  if rule.length >= 0:
    behind = place - rule.first
    return (behind if behind >= 0 else behind + rule.num_ids) < rule.length
  mixed = loader.hashed(np.uint64(place))
  draw = loader.hashed(rule.key ^ mixed) >> np.uint64(1)
  if draw >= rule.mine_below:
    return False
  if draw >= rule.others_below:
    return True
  return (loader.hashed(rule.own_key ^ mixed) >> np.uint64(1)) < rule.own_below


@numba.njit(nogil=True, cache=True)
def _lengths(ids, starts):
  """Ids of each sentence of the blocks of a shard, and sentences by block."""
  num = len(starts)
  for i in range(1, len(ids)):
    num += ids[i - 1] == tokenize.END
  lengths = np.empty(num, np.uint16)
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


def text(corpus: encode.Encoded) -> Text:
  """Finds the sentences of a corpus; this process must have all of it."""
  sizes = [len(shard) for shard in corpus.shards]
  firsts = np.cumsum([0, *sizes], dtype=np.int64)
  starts = corpus.blocks.starts
  owners = np.searchsorted(firsts, starts[:-1], 'right') - 1
  lengths, counts = [], [np.zeros(1, np.int64)]
  for i, ids in enumerate(corpus.shards):
    first, stop = np.searchsorted(owners, (i, i + 1))
    # A shard ends with its last block.
    places = np.append(starts[first:stop], firsts[i + 1]) - firsts[i]
    found = _lengths(ids, places)
    lengths.append(found[0])
    counts.append(found[1])
  places = Places(
    tuple(map(np.asarray, corpus.shards)),
    firsts[:-1],
    owners,
    starts,
    np.cumsum(np.concatenate(counts), dtype=np.int64),
    np.concatenate(lengths),
  )
  return Text(corpus, places)


@numba.njit(nogil=True, cache=True)
def _choose(places, b, rule, out):
  """Copies what a part gets of a block; how many ids, sentences."""
  owner = places.owners[b]
  ids = places.shards[owner]
  start = places.starts[b] - places.firsts[owner]
  place = places.starts[b]
  n = 0
  sentences = 0
  for s in range(places.sentences[b], places.sentences[b + 1]):
    length = np.int64(places.lengths[s])
    if gets(place, rule):
      for i in range(length):
        out[n + i] = ids[start + i]
      n += length
      sentences += 1
    start += length
    place += length
  return n, sentences


@numba.njit(nogil=True, cache=True)
def _count(places, rule, chosen, seen):
  """Adds up the words that a part gets in an epoch; sentences."""
  sentences = 0
  for b in range(len(places.owners)):
    n, more = _choose(places, b, rule, chosen)
    sentences += more
    for i in range(n):
      if chosen[i] != tokenize.END:
        seen[chosen[i]] += 1
  return sentences


def _scratch() -> np.ndarray:
  """For what a part gets of a block."""
  return np.empty(encode.MAX_BLOCK_IDS, np.int32)


def census(text: Text, share: Share, epochs: int) -> Census:
  """What a part reads, known before it is read: a look at every sentence.

  Args:
    text: the corpus.
    share: of the part.
    epochs: how often the corpus is read.
  """
  seen = np.zeros(len(text.corpus.vocabulary.counts), np.int64)
  num_ids = int(text.places.starts[-1])
  sentences = 0
  # Where nothing is drawn anew, epochs are alike.
  different = epochs if share.way == 'shuffle' else 1
  for epoch in range(different):
    found = rule(share, epoch, num_ids)
    sentences += _count(text.places, found, _scratch(), seen)
  seen *= epochs // different
  return Census(seen, int(seen.sum()), epochs // different * sentences)


@numba.njit(nogil=True, cache=True)
def _fill(
  places, rule, key, block, keep_below, reach, sizes, chosen, ids, left, right
):
  """Fills a batch from a position in an epoch's order on.

  `reach` are the shortest window and the longest one, `sizes` the words and
  the ids of a block at most. Returns the position
  behind it, centers, words read and pairs.
  """
  kept = 0
  words = 0
  pairs = 0
  num_blocks = len(places.owners)
  # Until the next block might not fit.
  while block < num_blocks and kept + sizes[0] <= len(left):
    b = loader.permuted(block, num_blocks, key)
    n, _ = _choose(places, b, rule, chosen)
    kept, more_words, more_pairs = loader.pack(
      chosen[:n],
      b * sizes[1],
      keep_below,
      key,
      reach[0],
      reach[1],
      ids,
      left,
      right,
      kept,
    )
    words += more_words
    pairs += more_pairs
    block += 1
  return block, kept, words, pairs


def _batch(
  text: Text,
  share: Share,
  spec: loader.LoaderSpec,
  keep_below: np.ndarray,
  position: loader.Position,
) -> tuple[loader.Batch, int, int]:
  """The batch at a position, the block behind it and the words it read."""
  places = text.places
  size = spec.max_steps * spec.part_words
  ids = np.full(size + 2 * spec.window, len(keep_below), np.int32)
  left, right = np.zeros((2, size), np.uint8)
  block, kept, words, pairs = _fill(
    places,
    rule(share, position.epoch, int(places.starts[-1])),
    # As the loader has it for a part of this number.
    loader.part_key(spec, position.epoch, share.part),
    position.block,
    keep_below,
    (spec.shortest_window, spec.window),
    (encode.BLOCK_WORDS, encode.MAX_BLOCK_IDS),
    _scratch(),
    ids,
    left,
    right,
  )
  # What the last word that was not kept has left behind.
  ids[spec.window + kept] = len(keep_below)
  left[kept : kept + 1] = right[kept : kept + 1] = 0
  figures = -(-kept // spec.part_words), kept, pairs
  batch = loader.Batch(
    ids[None],
    left[None],
    right[None],
    *(np.array([x], np.int32) for x in figures),
  )
  return batch, block, words


def batches(
  text: Text,
  share: Share,
  spec: loader.LoaderSpec,
  position: loader.Position,
  words_before: int,
) -> Iterator[loader.Loaded]:
  """All batches of a part from a position to the end of the last epoch.

  A batch is filled from as many blocks as it takes. Words are the part's own.

  Args:
    text: the corpus.
    share: of the part.
    spec: how the part is cut into batches.
    position: where to begin.
    words_before: words that the part has read before it.
  """
  keep = loader.keep_probabilities(text.corpus.vocabulary.counts, spec.sample)
  keep_below = np.ceil(keep * 2.0**32).astype(np.uint64)
  num_blocks = len(text.places.owners)
  while position.epoch < spec.epochs:
    index = position.epoch * num_blocks + position.block
    batch, block, words = _batch(text, share, spec, keep_below, position)
    position = loader.Position(position.epoch, block)
    if block == num_blocks:
      position = loader.Position(position.epoch + 1, 0)
    if words:  # an epoch may end with blocks of which the part gets nothing
      after = words_before + words
      yield loader.Loaded(batch, index, position, words_before, after)
      words_before = after
