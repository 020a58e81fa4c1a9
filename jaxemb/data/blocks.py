"""From ids to batches: shuffled, subsampled, with a window per token.

A keyed permutation orders the blocks of the corpus in every epoch. The next
`group_blocks` make one batch: frequent words are dropped (word2vec.c: a token
of relative frequency f stays with probability sqrt(t / f) + t / f), the others
packed without gaps, each with a dynamic window (uniform in
shortest_window..window, cut at the sentence).

Every choice is a hash of (seed, epoch, position in the corpus): (epoch, next
block) is the reader's whole state.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.data import base, subsampling, windows
from jaxemb.ops import hashing

END = -1  # the id after a sentence
BLOCK_WORDS = 4096  # at most
# A sentence may end before and after every word.
MAX_BLOCK_IDS = 2 * BLOCK_WORDS + 1

# Pairs of the number of a block in its part and its ids.
Numbered = Iterable[tuple[int, np.ndarray]]


class Blocks(NamedTuple):
  """Runs of sentences within a piece, the units of shuffling.

  They are those of the whole corpus; blocks that only other processes read have
  no ids here.
  """

  starts: np.ndarray  # [num_blocks + 1] int64, in the ids
  words: np.ndarray  # [num_blocks] int64, number of words
  pieces: np.ndarray  # [num_blocks] int64; piece % num_parts is the part


def group_blocks(part_words: int) -> int:
  """Returns blocks per part and batch: enough for many steps.

  Then a last step that is not full costs little.
  """
  return max(128, 128 * part_words // BLOCK_WORDS)


def batch_words(part_words: int) -> int:
  """Returns centers of each part that a batch has room for, in whole steps."""
  num_words = group_blocks(part_words) * BLOCK_WORDS
  return -(-num_words // part_words) * part_words


@numba.njit(nogil=True, cache=True)
def _pack(ids, position, keep_below, key, reaches, out, left, right, n):
  """Appends a block's surviving tokens at `out[window + n:]`.

  `keep_below` is the keep probability scaled to 2^32. Returns the new n and the
  numbers of words read and pairs made.
  """
  shortest, window = reaches
  words = pairs = 0
  start = n  # of the sentence
  for i in range(len(ids) + 1):
    if i == len(ids) or ids[i] == END:
      for j in range(start, n):
        # The low half of the token's hash, stored in `left` and `right`.
        reach = left[j] | (np.int64(right[j]) << 8)
        reach = shortest + (reach * (window + 1 - shortest) >> 16)
        left[j] = min(reach, j - start)
        right[j] = min(reach, n - 1 - j)
        pairs += left[j] + right[j]
      start = n
      continue
    words += 1
    h = hashing.hashed(key ^ np.uint64(position + i))
    # Always written, and counted if it survives: a random branch costs more.
    out[window + n] = ids[i]
    left[n] = h & np.uint64(0xFF)
    right[n] = (h >> np.uint64(8)) & np.uint64(0xFF)
    n += (h >> np.uint64(32)) < keep_below[ids[i]]
  return n, words, pairs


def make_batch(
  spec: base.SourceSpec,
  keep_below: np.ndarray,
  parts: Sequence[tuple[np.uint64, Numbered]],
) -> tuple[windows.Batch, int, int]:
  """Packs the blocks of each part, given as (key, blocks), while they fit.

  Returns the batch, the number of blocks taken from the last part, and the
  words read, including those dropped.
  """
  num_parts, size = len(parts), batch_words(spec.part_words)
  # Ids above the vocabulary are padding: gathered as anything, never updated.
  shape = num_parts, size + 2 * spec.window
  ids = np.full(shape, len(keep_below), np.int32)
  left, right = np.zeros((2, num_parts, size), np.uint8)
  num_kept, pairs = np.zeros((2, num_parts), np.int32)
  num_blocks = num_words = 0
  reaches = spec.shortest_window, spec.window
  for i, (key, blocks) in enumerate(parts):
    rows = ids[i], left[i], right[i]
    n = num_pairs = num_blocks = 0
    for number, block_ids in blocks:
      # Of the block in its part, whatever was read before it.
      position = number * MAX_BLOCK_IDS
      n, more_words, more_pairs = _pack(
        block_ids, position, keep_below, key, reaches, *rows, n
      )
      num_words += more_words
      num_pairs += more_pairs
      num_blocks += 1
      if n + BLOCK_WORDS > size:
        break
    # Clear the entry of a dropped last word.
    ids[i, spec.window + n] = len(keep_below)
    left[i, n : n + 1] = right[i, n : n + 1] = 0
    num_kept[i], pairs[i] = n, num_pairs
  num_steps = -(-num_kept // spec.part_words)
  batch = windows.Batch(
    ids=ids,
    left=left,
    right=right,
    num_steps=num_steps,
    kept_words=num_kept,
    pairs=pairs,
  )
  return batch, num_blocks, num_words


class BlockSource:
  """A corpus as a `data.base.Source`; progress is in words.

  `corpus` is as `text.encode.Encoded`: it reads the ids of numbered blocks.
  """

  unit = 'words'

  def __init__(
    self,
    corpus: Any,
    spec: base.SourceSpec,
    eval_paths: Callable[[], Sequence[str]] = tuple,
  ):
    if spec.fit_part_words:
      fitted = spec.fit_part_words(corpus.num_words, len(corpus.words))
      spec = spec._replace(part_words=fitted)
    self.corpus, self.spec, self.eval_paths = corpus, spec, eval_paths
    self.steps, self.num_parts = windows.Steps.of(spec), spec.num_parts
    self.units_per_epoch, self.epochs = corpus.num_words, spec.epochs
    self.keys, self.counts = corpus.words, corpus.counts
    self.frequencies = subsampling.center_probabilities(
      self.counts, spec.settings['sample']
    )
    self.fingerprint = corpus.manifest.get('fingerprint')
    self.dropped = corpus.manifest.get('dropped')

  def items(
    self, position: Sequence[int] | None, done: int
  ) -> Iterator[base.Item]:
    """Yields batches from a position, [epoch, next block], to the end."""
    spec, blocks = self.spec, self.corpus.blocks
    keep_below = subsampling.keep_thresholds(
      self.counts, spec.settings['sample']
    )
    parts_of_blocks = blocks.pieces % self.num_parts
    by_part = [
      np.flatnonzero(parts_of_blocks == i) for i in range(self.num_parts)
    ]
    num_blocks = max(map(len, by_part))
    group = group_blocks(spec.part_words)
    num_batches = -(-num_blocks // group)
    epoch, block = position or (0, 0)
    while epoch < self.epochs:
      index = epoch * num_batches + block // group
      stop = block + group
      parts, words, local_words = [], 0, 0
      for part, part_blocks in enumerate(by_part):
        key = hashing.part_key(spec.seed, epoch, part)
        numbers = hashing.order(block, stop, size=len(part_blocks), key=key)
        chosen = part_blocks[numbers]
        words += (num := int(blocks.words[chosen].sum()))
        if part in spec.readers.local_parts:
          local_words += num
          texts = self.corpus.read(chosen)
          parts.append((key, zip(numbers, texts, strict=True)))
      batch, _, _ = make_batch(spec, keep_below, parts)
      epoch, block = (epoch, stop) if stop < num_blocks else (epoch + 1, 0)
      position = [epoch, block]
      yield base.Item(
        batch=batch,
        index=index,
        position=position,
        done_before=done,
        done_after=done + words,
        own=local_words,
      )
      done += words
