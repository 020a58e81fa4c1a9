"""Batches of words with the row of each word's document."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np

from jaxemb.data import base, blocks, sentences, subsampling, windows
from jaxemb.ops import hashing
from jaxemb.runtime import resources

_PADDING = np.iinfo(np.int32).max  # above any number of documents
# One packs 200 million words/s, and one that trains learns from 25 million.
_CORES_PER_THREAD = 8
_TOO_MANY = 'a batch keeps more words than were expected of it'


class Batch(NamedTuple):
  """The words of one dispatch, for each of P parts of the corpus."""

  words: windows.Batch
  documents: base.Array  # [P, max_steps * L'] int32, the row of each center


class StepBatch(NamedTuple):
  """The centers of one step, or a device's share of them: P L' = L in all."""

  words: windows.StepBatch
  documents: jax.Array  # [P, L'] int32; rows above all others are padding

  @property
  def chunks(self) -> jax.Array:
    """[L / c] uint32, see `windows.StepBatch`."""
    return self.words.chunks

  def rows(self) -> jax.Array:
    """Returns [L / c, c] int32, the document of each center."""
    return self.documents.reshape(len(self.chunks), -1)

  def is_center(self) -> jax.Array:
    """Returns [L / c, c] bool, what is no padding."""
    return self.rows() != _PADDING


@dataclasses.dataclass(frozen=True)
class Steps(windows.Sizes):
  """Cuts a `Batch` into steps; implements `data.base.Steps`."""

  @property
  def words(self) -> windows.Steps:
    """Returns what cuts the words of a batch."""
    return windows.Steps(
      self.part_words, self.num_parts, window=self.window, chunk=self.chunk
    )

  def num_steps(self, batch: Batch) -> base.Array:
    """Returns [P] int32."""
    return self.words.num_steps(batch.words)

  def step(
    self, batch: Batch, index: jax.Array, share: base.Share, progress: jax.Array
  ) -> StepBatch:
    """Returns a device's share of the centers of a step."""
    words = self.words.step(batch.words, index, share, progress)
    return StepBatch(words, self.cut(batch.documents, index, share))

  def pad(self, step_batch: StepBatch, is_step: jax.Array) -> StepBatch:
    """Returns the same step, or one without a center."""
    documents = jnp.where(is_step, step_batch.documents, _PADDING)
    return StepBatch(self.words.pad(step_batch.words, is_step), documents)

  def counters(self, batch: Batch) -> dict[str, jax.Array]:
    """Counts centers and pairs of words."""
    return self.words.counters(batch.words)


@numba.njit(nogil=True, cache=True)
def count_words(ids, keep, num_words, num_kept):
  """Writes the words of each document, and how many are kept on average.

  `ids` have an END for each; `keep` [vocab] are chances.
  """
  document = 0
  for id_ in ids:
    if id_ == sentences.END:
      document += 1
    else:
      num_words[document] += 1
      num_kept[document] += keep[id_]


class _Blocks(NamedTuple):
  """Blocks of a part, in the order in which they are packed."""

  starts: np.ndarray  # [blocks] int64, in the ids of the text
  stops: np.ndarray  # [blocks] int64
  words: np.ndarray  # [blocks] int64, how many they have
  positions: np.ndarray  # [blocks] int64, from which random numbers count
  documents: np.ndarray  # [blocks] int64, of their first words


class _Out(NamedTuple):
  """Arrays that words are packed into."""

  ids: np.ndarray  # [size + 2 W] int32
  left: np.ndarray  # [size] uint8, or [0] without windows
  right: np.ndarray  # [size] uint8, or [0]
  documents: np.ndarray  # [size] int32


@numba.njit(nogil=True, cache=True)
def _pack(text, chosen, rows, keep_below, key, reaches, out):
  """Packs words that survive; returns how many, and their number of pairs.

  Documents get their `rows`, or their numbers if rows are [0]. Returns -1, 0 if
  the next block may not have room.
  """
  n = pairs = 0
  for i in range(chosen.starts.size):
    if n + chosen.words[i] > out.documents.size:
      return -1, 0
    ids = text[chosen.starts[i] : chosen.stops[i]]
    position, document, start = chosen.positions[i], chosen.documents[i], 0
    while start < ids.size:
      stop = start
      while stop < ids.size and ids[stop] != sentences.END:
        stop += 1
      # Random numbers of words go by their number: there may be many ENDs.
      first, words = n, ids[start:stop]
      if out.left.size:
        n, _, more_pairs = blocks.pack(
          words, position, keep_below, key, reaches, out.ids, out.left,
          out.right, n,
        )  # fmt: skip
        pairs += more_pairs
      else:
        n = _pack_words(words, position, keep_below, key, reaches[1], out, n)
      row = rows[document] if rows.size else np.int32(document)
      for j in range(first, n):
        out.documents[j] = row
      position += words.size
      document, start = document + 1, stop + 1
  return n, pairs


@numba.njit(nogil=True, cache=True)
def _pack_words(words, position, keep_below, key, window, out, n):
  """Appends words that survive, as `data.blocks.pack`, without windows."""
  for j in range(words.size):
    h = hashing.hashed(key ^ np.uint64(position + j))
    out.ids[window + n] = words[j]
    n += (h >> np.uint64(32)) < keep_below[words[j]]
  return n


def _append(packed: _Out, out: _Out, num_words: int, n: int) -> None:
  """Copies packed words behind the first n."""
  window = (out.ids.size - out.documents.size) // 2
  ids = packed.ids[window : window + num_words]
  out.ids[window + n :][:num_words] = ids
  for name in ('left', 'right', 'documents'):
    target = getattr(out, name)[n : n + num_words]
    target[:] = getattr(packed, name)[: target.size]


class OnHost:
  """Makes batches of blocks that are chosen in each part."""

  def __init__(
    self,
    corpus: Any,
    spec: base.SourceSpec,
    first_documents: np.ndarray,
    rows: np.ndarray | None,
    num_words: int,
    has_windows: bool,
  ):
    """`first_documents` [blocks] are numbers of documents in the text.

    `rows` [documents] are those of the table; None = the same numbers. A part
    of a batch keeps at most `num_words`. Without windows, `left` and `right`
    are zeros.
    """
    self._size = -(-num_words // spec.part_words) * spec.part_words
    self._corpus, self._spec = corpus, spec
    self._rows = np.zeros(0, np.int32) if rows is None else rows
    self._first_documents, self._has_windows = first_documents, has_windows
    self._keep_below = subsampling.keep_thresholds(
      corpus.counts, spec.settings['sample']
    )
    # Read-only, so that it is copied to devices once.
    shape = len(spec.readers.local_parts), self._size
    self._no_contexts = np.broadcast_to(np.uint8(0), shape)

  def __call__(self, parts: Sequence[blocks.Chosen]) -> Batch:
    """Returns the batch, of whole blocks."""
    shape, window = (len(parts), self._size), self._spec.window
    ids = np.empty((shape[0], shape[1] + 2 * window), np.int32)
    contexts = shape if self._has_windows else (len(parts), 0)
    left, right = np.empty((2, *contexts), np.uint8)
    documents = np.empty(shape, np.int32)
    num_kept, pairs = np.zeros((2, len(parts)), np.int32)
    for i, part in enumerate(parts):
      out = _Out(ids[i], left[i], right=right[i], documents=documents[i])
      num_kept[i], pairs[i] = n, _ = self._pack_part(part, out)
      ids[i, :window] = ids[i, window + n :] = len(self._keep_below)
      documents[i, n:] = _PADDING
      left[i, n:] = right[i, n:] = 0
    if not self._has_windows:
      left = right = self._no_contexts
    words = windows.Batch(
      ids=ids,
      left=left,
      right=right,
      num_steps=-(-num_kept // self._spec.part_words),
      kept_words=num_kept,
      pairs=pairs,
    )
    return Batch(words, documents)

  def _pack_part(self, part: blocks.Chosen, out: _Out) -> tuple[int, int]:
    """Packs the blocks of a part; returns the numbers of words and pairs."""
    starts, words = self._corpus.blocks.starts, self._corpus.blocks.words
    chosen = _Blocks(
      starts=starts[part.blocks],
      stops=starts[part.blocks + 1],
      words=words[part.blocks],
      positions=part.numbers * blocks.MAX_BLOCK_IDS,
      documents=self._first_documents[part.blocks],
    )
    num_threads = resources.usable_cores() // _CORES_PER_THREAD
    if num_threads < 2:
      return self._pack_blocks(chosen, part.key, out)
    bounds = np.linspace(0, len(part.blocks), num_threads + 1).astype(int)
    ranges = (
      _Blocks(*(x[i:j] for x in chosen)) for i, j in itertools.pairwise(bounds)
    )
    pack = functools.partial(self._pack_range, key=part.key)
    n = num_pairs = 0
    with futures.ThreadPoolExecutor(num_threads) as pool:
      for num, more_pairs, packed in pool.map(pack, ranges):
        if n + num > out.documents.size:
          raise RuntimeError(_TOO_MANY)
        _append(packed, out, num, n)
        n, num_pairs = n + num, num_pairs + more_pairs
    return n, num_pairs

  def _pack_range(
    self, chosen: _Blocks, key: np.uint64
  ) -> tuple[int, int, _Out]:
    """Packs blocks into new arrays; returns them with `_pack_blocks`'s."""
    size = int(chosen.words.sum())
    left, right = np.empty((2, size * self._has_windows), np.uint8)
    out = _Out(
      ids=np.empty(size + 2 * self._spec.window, np.int32),
      left=left,
      right=right,
      documents=np.empty(size, np.int32),
    )
    return *self._pack_blocks(chosen, key, out), out

  def _pack_blocks(
    self, chosen: _Blocks, key: np.uint64, out: _Out
  ) -> tuple[int, int]:
    """Packs blocks; returns the numbers of words and pairs."""
    n, num_pairs = _pack(
      self._corpus.ids,
      chosen,
      self._rows,
      self._keep_below,
      key,
      (self._spec.shortest_window, self._spec.window),
      out,
    )
    if n < 0:
      raise RuntimeError(_TOO_MANY)
    return n, num_pairs
