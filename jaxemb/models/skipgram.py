"""Skip-gram with negative sampling (Mikolov et al. 2013b, eq. 4).

For every pair of a center and a word in its window, with vectors v and u:

  loss = -log sigmoid(v . u) - sum_{k=1..K} log sigmoid(-v . u_k)

with negatives u_k ~ count^0.75. Computed one pair at a time this touches forty
rows per word. Here a chunk of c centers meets the c + 2 W tokens of its window
and N negatives that the chunk shares, in one matrix product:

               window (c + 2 W)    negatives (N)
  scores = [c]  masked to windows   weighted          = v @ [u_window; u_neg].T

A negative stands for K / N draws for each of a center's pairs, so the expected
gradient is that of K draws per pair. A draw that equals the pair's own context
does not count, as in word2vec.c: the weight of (center, negative) is K / N
times the number of the center's contexts that differ from the negative.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base
from jaxemb.ops import losses, sampling, windows
from jaxemb.tables import spec as spec_lib

INPUT = 'input'
OUTPUT = 'output'


def window_lookups(spec: base.WindowSpec) -> float:
  """Tokens of windows per center: neighbouring chunks share some."""
  return (spec.chunk + 2 * spec.window) / spec.chunk


def num_contexts(batch: base.StepBatch) -> jax.Array:
  """[P, L'] float32, number of contexts of each center."""
  return batch.left.astype(jnp.float32) + batch.right.astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class SkipGram(base.Model):
  """Skip-gram over one step's rows."""

  negatives: sampling.Alias  # distribution of negatives
  spec: base.WindowSpec
  loss_of: losses.Pointwise
  lookups: Mapping[str, np.ndarray] | None = None  # by table, see `TableSpec`

  vectors_table = INPUT
  contexts_table = OUTPUT

  @property
  def untrained_loss(self) -> float:
    """Of a pair: one decision for itself, and one for each negative."""
    return losses.untrained(self.loss_of, self.spec.negatives)

  def specs(self) -> dict[str, spec_lib.TableSpec]:
    """The input (center) and output (context) tables."""
    return tables(self.spec, self.lookups)

  def ids(self, batch: base.StepBatch, key: jax.Array) -> dict[str, jax.Array]:
    """Input: [L / c, c] centers. Output: [L / c, c + 2 W + N]."""
    s = self.spec
    window_ids = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    draws = draw_negatives(s, self.negatives, batch, key)
    return {
      INPUT: centers(s, batch),
      OUTPUT: jnp.concatenate([window_ids, draws], 1),
    }

  def loss(
    self,
    params: tuple[()],
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, jax.Array],
    batch: base.StepBatch,
    key: jax.Array,
  ) -> tuple[jax.Array, base.Aux]:
    """Summed over the (center, context) pairs."""
    del params, key
    s = self.spec
    width = s.chunk + 2 * s.window
    output_ids = ids[OUTPUT]
    draws = output_ids[:, width:]
    mask = windows.window_mask(batch.left, batch.right, s.chunk, s.window)
    hits = windows.num_hits(batch.tokens, batch.left, batch.right, draws)
    pairs = num_contexts(batch).reshape(-1, s.chunk, 1) - hits
    weights = jnp.concatenate(
      [mask, pairs * (s.negatives / s.shared_negatives)], 2
    )
    scores = s.row_ops.dot(rows[INPUT], rows[OUTPUT])
    labels = jnp.arange(scores.shape[-1]) < width
    labels = jnp.broadcast_to(labels.astype(jnp.float32), scores.shape)
    loss = jnp.sum(weights * self.loss_of(scores, labels))
    return loss, base.Aux(num_contexts(batch).sum())


jax.tree_util.register_dataclass(
  SkipGram, ['negatives'], ['spec', 'loss_of'], ['lookups']
)


def make(
  spec: base.WindowSpec, corpus: base.Corpus, loss_of: losses.Pointwise
) -> SkipGram:
  """Skip-gram for a corpus, with a loss of scores and labels."""
  negatives = negative_probabilities(corpus.counts)
  draws = spec.shared_negatives / spec.chunk * negatives
  lookups = {
    INPUT: corpus.centers,
    OUTPUT: window_lookups(spec) * corpus.centers + draws,
  }
  return SkipGram(sampling.alias_table(negatives), spec, loss_of, lookups)


def tables(
  spec: base.WindowSpec, lookups: Mapping[str, np.ndarray] | None
) -> dict[str, spec_lib.TableSpec]:
  """Input and output table, initialised as in word2vec.c."""
  lookups = lookups or {}
  return {
    name: spec_lib.TableSpec(
      name, spec.vocab, spec.dim, scale, lookups_per_center=lookups.get(name)
    )
    for name, scale in ((INPUT, 0.5 / spec.dim), (OUTPUT, 0.0))
  }


def centers(spec: base.WindowSpec, batch: base.StepBatch) -> jax.Array:
  """[L / c, c] int32."""
  w = spec.window
  return batch.tokens[:, w : batch.tokens.shape[1] - w].reshape(-1, spec.chunk)


def draw_negatives(
  spec: base.WindowSpec,
  negatives: sampling.Alias,
  batch: base.StepBatch,
  key: jax.Array,
) -> jax.Array:
  """[L / c, N] int32, the draws that the centers of a chunk share.

  A chunk without a pair gets padding: its draws must not count as lookups.
  """
  has_pairs = jnp.any(num_contexts(batch).reshape(-1, spec.chunk) > 0, 1)
  num = spec.shared_negatives
  positions = jnp.arange(num, dtype=jnp.uint32)
  positions = batch.chunks[:, None] * np.uint32(num) + positions[None]
  draws = sampling.draw(negatives, key, positions)
  return jnp.where(has_pairs[:, None], draws, spec.vocab)


def negative_probabilities(counts: np.ndarray) -> np.ndarray:
  """[vocab] float64: count^0.75, normalized."""
  weights = counts.astype(np.float64) ** 0.75
  return weights / weights.sum()
