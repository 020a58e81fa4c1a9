"""Batches of words that know the document of each."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np

from jaxemb.data import base, blocks, sentences, subsampling, windows

_PADDING = np.iinfo(np.int32).max  # above any number of documents


class Batch(NamedTuple):
  """The words of one dispatch, for each of P parts of the corpus."""

  words: windows.Batch
  documents: np.ndarray  # [P, max_steps * L'] int32, the row of each center


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
class Steps(windows.Steps):
  """Cuts a `Batch` into steps; implements `data.base.Steps`."""

  def num_steps(self, batch: Batch) -> jax.Array:
    """Returns [P] int32."""
    return super().num_steps(batch.words)

  def step(
    self, batch: Batch, index: jax.Array, share: base.Share, progress: jax.Array
  ) -> StepBatch:
    """Returns a device's share of the centers of a step."""
    words = super().step(batch.words, index, share, progress)
    return StepBatch(words, self.cut(batch.documents, index, share))

  def pad(self, step_batch: StepBatch, is_step: jax.Array) -> StepBatch:
    """Returns the same step, or one without a center."""
    documents = jnp.where(is_step, step_batch.documents, _PADDING)
    return StepBatch(super().pad(step_batch.words, is_step), documents)

  def counters(self, batch: Batch) -> dict[str, jax.Array]:
    """Counts centers and pairs of words."""
    return super().counters(batch.words)


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


@numba.njit(nogil=True, cache=True)
def _pack(ids, position, keep_below, key, reaches, arrays, n, document):
  """Appends a block's surviving tokens, as `data.blocks.pack`.

  `arrays` are ids, left, right, documents; the first word is of a `document`.
  Returns the new n, and the numbers of words read and of pairs made.
  """
  out, left, right, documents = arrays
  words = pairs = start = 0
  for i in range(len(ids) + 1):
    if i == len(ids) or ids[i] == sentences.END:
      before = n
      # Random numbers of words go by their number: there may be many ENDs.
      n, more_words, more_pairs = blocks.pack(
        ids[start:i], position + words, keep_below, key, reaches, out, left,
        right, n,
      )  # fmt: skip
      documents[before:n] = document
      words, pairs = words + more_words, pairs + more_pairs
      document, start = document + 1, i + 1
  return n, words, pairs


class OnHost:
  """Makes batches of blocks that are chosen in each part."""

  def __init__(
    self,
    corpus: Any,
    spec: base.SourceSpec,
    first_documents: np.ndarray,
    rows: np.ndarray | None,
    num_words: int,
  ):
    """`first_documents` [blocks] are numbers of documents in the text.

    `rows` [documents] are those of the table; None = the same numbers. A part
    of a batch keeps at most `num_words`.
    """
    self._size = -(-num_words // spec.part_words) * spec.part_words
    self._corpus, self._spec, self._rows = corpus, spec, rows
    self._first_documents = first_documents
    self._keep_below = subsampling.keep_thresholds(
      corpus.counts, spec.settings['sample']
    )

  def __call__(self, parts: Sequence[blocks.Chosen]) -> Batch:
    """Returns the batch, of whole blocks."""
    spec, vocab = self._spec, len(self._keep_below)
    size, num_parts = self._size, len(parts)
    shape = num_parts, size + 2 * spec.window
    ids = np.full(shape, vocab, np.int32)
    left, right = np.zeros((2, num_parts, size), np.uint8)
    documents = np.full((num_parts, size), _PADDING, np.int32)
    num_kept, pairs = np.zeros((2, num_parts), np.int32)
    pack = functools.partial(
      self._pack_part, reaches=(spec.shortest_window, spec.window)
    )
    for i, part in enumerate(parts):
      arrays = ids[i], left[i], right[i], documents[i]
      num_kept[i], pairs[i] = n, _ = pack(part, arrays)
      # Clear the entry of a dropped last word.
      ids[i, spec.window + n] = vocab
      left[i, n : n + 1] = right[i, n : n + 1] = 0
      if self._rows is not None:
        documents[i, :n] = self._rows[documents[i, :n]]
    words = windows.Batch(
      ids=ids,
      left=left,
      right=right,
      num_steps=-(-num_kept // spec.part_words),
      kept_words=num_kept,
      pairs=pairs,
    )
    return Batch(words, documents)

  def _pack_part(self, part, arrays, reaches):
    """Packs the blocks of a part; returns the numbers of centers and pairs."""
    n = num_pairs = 0
    numbered = zip(part.numbers, part.blocks, strict=True)
    for number, block in numbered:
      n, _, more_pairs = _pack(
        self._corpus.block(block),
        number * blocks.MAX_BLOCK_IDS,
        self._keep_below,
        part.key,
        reaches,
        arrays,
        n,
        self._first_documents[block],
      )
      num_pairs += more_pairs
    return n, num_pairs
