"""From ids to batches: shuffled, subsampled, with a window per token.

A keyed permutation orders the blocks of the corpus in every epoch. The next
`group_blocks` make one batch: frequent words are dropped (word2vec.c: a token
of relative frequency f stays with probability sqrt(t / f) + t / f), the others
packed without gaps, each with a dynamic window (uniform in
shortest_window..window, cut at the sentence).

Every choice is a hash of (seed, epoch, position in the corpus): (epoch, next
block) is the reader's whole state. Where devices make batches
(`data.packing`), the host only chooses their blocks.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.data import base, packing, sentences, subsampling, windows
from jaxemb.ops import hashing

END = sentences.END
BLOCK_WORDS = 4096  # at most
# A sentence may end before and after every word.
MAX_BLOCK_IDS = 2 * BLOCK_WORDS + 1
_MOST = np.iinfo(np.int32).max  # pairs of a batch, and ids of a part

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
def pack(ids, position, keep_below, key, reaches, out, left, right, n):
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
      n, more_words, more_pairs = pack(
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


class Chosen(NamedTuple):
  """Blocks of a part, in the order of a batch."""

  key: np.uint64  # of the part and the epoch
  numbers: np.ndarray  # [n] int64, in the part
  blocks: np.ndarray  # [n] int64, in the corpus


class _OnHost:
  """Makes batches of blocks that are chosen in each part."""

  def __init__(self, corpus: Any, spec: base.SourceSpec):
    self._corpus, self._spec = corpus, spec
    self._keep_below = subsampling.keep_thresholds(
      corpus.counts, spec.settings['sample']
    )

  def __call__(self, parts: Sequence[Chosen]) -> windows.Batch:
    """Returns the batch."""
    numbered = [
      (x.key, zip(x.numbers, self._corpus.read(x.blocks), strict=True))
      for x in parts
    ]
    return make_batch(self._spec, self._keep_below, numbered)[0]


class _OnDevice:
  """Makes the `packing.Blocks` of batches of `group` blocks of each part."""

  def __init__(
    self,
    corpus: Any,
    spec: base.SourceSpec,
    by_part: Sequence[np.ndarray],
    group: int,
  ):
    self._corpus, self._spec, self._group = corpus, spec, group
    self._local = [by_part[i] for i in spec.readers.local_parts]
    # Of blocks that other processes read 0.
    self._lengths = np.diff(corpus.blocks.starts)
    lengths = [self._lengths[x] for x in self._local]
    # All processes compile the same program.
    self._batch_ids, groups, words, self._part_ids = self._all_most(
      _largest(lengths, group),
      _largest(map(packing.num_groups, lengths), group),
      _largest((corpus.blocks.words[x] for x in by_part), group),
      max(map(np.sum, lengths)),
    )
    keep_below = subsampling.keep_thresholds(
      corpus.counts, spec.settings['sample']
    )
    highest = packing.highest_kept(keep_below)
    # Read-only, as broadcast arrays are: on devices it is always the same.
    self._highest_kept = np.broadcast_to(
      highest, (len(self._local), len(highest))
    )
    self._ids: np.ndarray | None = None  # of the whole text, if items hold it
    self._starts: list[np.ndarray] = []  # in these, of the blocks of each part
    self.steps = packing.Steps(
      part_words=spec.part_words,
      num_parts=spec.num_parts,
      window=spec.window,
      chunk=spec.chunk,
      shortest_window=spec.shortest_window,
      num_groups=groups,
      num_words=-(-words // spec.part_words) * spec.part_words,
    )

  def _all_most(self, *numbers: int) -> list[int]:
    """Returns the highest of the numbers of all processes."""
    found = self._spec.readers.gather(json.dumps([*map(int, numbers)]).encode())
    return [max(x) for x in zip(*map(json.loads, found), strict=True)]

  def reside(self, room_bytes: int, shares_memory: bool) -> int:
    """See `BlockSource.reside`."""
    ids: np.ndarray | None = getattr(self._corpus, 'ids', None)
    num_parts = len(self._local)
    num_bytes = 4 * self._part_ids * self._spec.num_parts
    is_ready = (  # as it is, in a file
      ids is not None and num_parts == 1 and len(ids) == self._part_ids
    )
    fits = num_bytes <= room_bytes or (shares_memory and is_ready)
    fits &= ids is not None and self._part_ids <= _MOST
    (is_refused,) = self._all_most(not fits)
    if is_refused:
      return 0
    if ids is not None and is_ready:
      text = ids[None]
      self._starts = [self._corpus.blocks.starts[self._local[0]]]
    else:
      text = np.full((num_parts, self._part_ids), END, np.int32)
      self._starts = [
        _join(self._corpus.read(x), out)
        for x, out in zip(self._local, text, strict=True)
      ]
    text.flags.writeable = False
    self._ids = text
    return num_bytes

  def __call__(self, parts: Sequence[Chosen]) -> packing.Blocks:
    """Returns the blocks that are chosen in each part."""
    num_parts, ids = len(parts), self._ids
    if ids is None:
      ids = np.zeros((num_parts, self._batch_ids), np.int32)
    starts, lengths = np.zeros((2, num_parts, self._group), np.int32)
    positions = np.zeros((num_parts, self._group, 2), np.uint32)
    for i, part in enumerate(parts):
      num = len(part.blocks)
      if self._ids is None:
        starts[i, :num] = _join(self._corpus.read(part.blocks), ids[i])
      else:
        starts[i, :num] = self._starts[i][part.numbers]
      lengths[i, :num] = self._lengths[part.blocks]
      positions[i, :num] = packing.halves(part.numbers * MAX_BLOCK_IDS)
    return packing.Blocks(
      ids=ids,
      starts=starts,
      lengths=lengths,
      positions=positions,
      stops=np.cumsum(packing.num_groups(lengths), 1, dtype=np.int32),
      key=packing.halves([x.key for x in parts]),
      highest_kept=self._highest_kept,
    )


def _largest(numbers: Iterable[np.ndarray], num: int) -> int:
  """Returns the sum of so many of the highest numbers of any part."""
  return max(int(np.sort(x)[-num:].sum()) for x in numbers)


def _join(texts: Iterable[np.ndarray], out: np.ndarray) -> np.ndarray:
  """Writes texts one after the other; returns [texts] int64, their starts."""
  starts = [0]
  for ids in texts:
    starts.append(starts[-1] + len(ids))
    out[starts[-2] : starts[-1]] = ids
  return np.array(starts[:-1], np.int64)


class BlockSource:
  """A corpus as a `data.base.Source`; progress is in words.

  `corpus` is as `text.encode.Encoded`: it reads the ids of numbered blocks. One
  that has no `ids` makes them whenever it is read.
  """

  unit = 'words'
  has_device_batches = True  # where `spec.device_words` asks for them

  def __init__(
    self,
    corpus: Any,
    spec: base.SourceSpec,
    eval_paths: Callable[[], Sequence[str]] = tuple,
  ):
    self.corpus, self.eval_paths = corpus, eval_paths
    self.num_parts = spec.num_parts
    self.units_per_epoch: float = corpus.num_words
    self.keys = corpus.words
    self.counts = self.word_counts = corpus.counts
    text_counts = getattr(corpus, 'text_counts', None)
    self.earlier = None if text_counts is None else self.counts - text_counts
    self.earlier_words = self.earlier
    self.fingerprint = corpus.manifest.get('fingerprint')
    self.dropped = corpus.manifest.get('dropped')
    parts_of_blocks = corpus.blocks.pieces % self.num_parts
    self._by_part = [
      np.flatnonzero(parts_of_blocks == i) for i in range(self.num_parts)
    ]
    self._num_blocks = max(map(len, self._by_part))
    self._cut(spec)

  def _cut(self, spec: base.SourceSpec) -> None:
    """Sets what depends on epochs, subsampling and the size of steps."""
    self.spec = spec
    self.steps: base.Steps = windows.Steps.of(spec)
    self.epochs, occurring = spec.epochs, self.counts
    if self.earlier_words is not None:
      occurring = self.counts - self.earlier_words
    self.frequencies = subsampling.center_probabilities(
      self.counts, spec.settings['sample'], occurring
    )
    # Of each part in a batch.
    self._group = min(group_blocks(spec.part_words), self._most_blocks())
    self._make = self.batches_on_host()
    if spec.device_words and self.has_device_batches:
      self._group = self._device_group()
      self._make = _OnDevice(
        self.corpus, spec, self._by_part, group=self._group
      )
      self.steps = self._make.steps

  def batches_on_host(self) -> Callable[[Sequence[Chosen]], Any]:
    """Returns what makes a batch of blocks that are chosen in each part."""
    return _OnHost(self.corpus, self.spec)

  def describe(self) -> list[str]:
    """Returns lines about the corpus for the log."""
    return []

  def with_step(self, part_words: int) -> 'BlockSource':
    """Returns the same data in steps of so many centers of each part."""
    source = copy.copy(self)
    source._cut(self.spec._replace(part_words=part_words))
    return source

  def with_passes(self, epochs: int, sample: float) -> 'BlockSource':
    """Returns the same data for so many epochs, subsampled otherwise."""
    source = copy.copy(self)
    settings = {**self.spec.settings, 'sample': sample}
    source._cut(self.spec._replace(epochs=epochs, settings=settings))
    return source

  def _device_group(self) -> int:
    """Returns blocks per part of a batch that the device makes.

    Batches of an epoch have as many, but for the last one.
    """
    spec, words = self.spec, self.corpus.num_words
    num = max(words / spec.device_words, 1 / spec.batch_epochs)
    group = -(-self._num_blocks // math.ceil(num))
    return max(1, min(group, self._most_blocks()))

  def _most_blocks(self) -> int:
    """Returns blocks per part of a batch whose pairs 32 bits surely count."""
    block_pairs = 2 * self.spec.window * BLOCK_WORDS * self.num_parts
    return max(1, _MOST // block_pairs)

  def reside(self, room_bytes: int, shares_memory: bool = False) -> int:
    """Has items hold all ids, if these take no more bytes of device memory.

    Or if devices share the memory of this process, where those of one part are
    as they are needed. Returns what they take, or 0. Items are the same but for
    that. Does nothing where the host makes batches, or the ids whenever a block
    is read.
    """
    if not isinstance(self._make, _OnDevice):
      return 0
    return self._make.reside(room_bytes, shares_memory)

  def items(
    self, position: Sequence[int] | None, done: int
  ) -> Iterator[base.Item]:
    """Yields batches from a position, [epoch, next block], to the end."""
    spec, blocks = self.spec, self.corpus.blocks
    num_blocks, group = self._num_blocks, self._group
    num_batches = -(-num_blocks // group)
    epoch, block = position or (0, 0)
    while epoch < self.epochs:
      index = epoch * num_batches + block // group
      stop = block + group
      parts, words, local_words = [], 0, 0
      for part, part_blocks in enumerate(self._by_part):
        key = hashing.part_key(spec.seed, epoch, part)
        numbers = hashing.order(block, stop, size=len(part_blocks), key=key)
        chosen = part_blocks[numbers]
        words += (num := int(blocks.words[chosen].sum()))
        if part in spec.readers.local_parts:
          local_words += num
          parts.append(Chosen(key, numbers, chosen))
      batch = self._make(parts)
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
