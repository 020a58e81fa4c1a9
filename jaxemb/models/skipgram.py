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

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base
from jaxemb.ops import chunks, losses, sampling
from jaxemb.tables import spec as spec_lib

INPUT = 'input'
OUTPUT = 'output'


@dataclasses.dataclass(frozen=True)
class WindowModel(base.Model):
  """A model of the windows of a text, with input and output vectors."""

  spec: base.WindowSpec
  tables: tuple[spec_lib.TableSpec, ...]

  vectors_table = INPUT
  contexts_table = OUTPUT

  def specs(self) -> dict[str, spec_lib.TableSpec]:
    """By name."""
    return {table.name: table for table in self.tables}


@dataclasses.dataclass(frozen=True)
class SkipGram(WindowModel):
  """Skip-gram over one step's rows."""

  negatives: sampling.Alias  # distribution of negatives
  loss_of: losses.Pointwise

  @property
  def untrained_loss(self) -> float:
    """Of an example and its negatives, while all scores are zero."""
    zero = jnp.float32(0)
    negatives = self.spec.negatives * self.loss_of(zero, zero)
    return float(self.loss_of(zero, zero + 1) + negatives)

  def ids(self, batch, key):
    """Input: [L / c, c] centers. Output: [L / c, c + 2 W + N]."""
    s = self.spec
    window_ids = chunks.windows(batch.tokens, s.chunk, s.window)
    draws = draw_negatives(s, self.negatives, batch, key)
    return {
      INPUT: centers(s, batch),
      OUTPUT: jnp.concatenate([window_ids, draws], 1),
    }

  def loss(self, params, rows, ids, batch, key):
    """Summed over the (center, context) pairs."""
    del params, key
    s = self.spec
    width = s.chunk + 2 * s.window
    mask = chunks.mask(batch.left, batch.right, s.chunk, s.window)
    draws = ids[OUTPUT][:, width:]
    hits = chunks.num_hits(batch.tokens, batch.left, batch.right, draws)
    pairs = num_contexts(batch).reshape(-1, s.chunk, 1) - hits
    weights = jnp.concatenate(
      [mask, pairs * (s.negatives / s.shared_negatives)], 2
    )
    loss = self._weighted_loss(rows[INPUT], rows[OUTPUT], weights, width)
    return loss, base.Aux(num_contexts(batch).sum())

  def _weighted_loss(self, left, right, weights, num_positive):
    """Of rows [k, c, d] and [k, w, d]; the first columns are positive."""
    scores = self.spec.row_ops.dot(left, right)
    labels = jnp.arange(scores.shape[-1]) < num_positive
    labels = jnp.broadcast_to(labels.astype(jnp.float32), scores.shape)
    return jnp.sum(weights * self.loss_of(scores, labels))


jax.tree_util.register_dataclass(
  SkipGram, ['negatives'], ['spec', 'tables', 'loss_of']
)


def make(
  spec: base.WindowSpec, corpus: base.Corpus, loss_of: losses.Pointwise
) -> SkipGram:
  """Skip-gram for a corpus, with a loss of scores and labels."""
  chances = negative_probabilities(corpus.counts)
  outputs = window_lookups(spec, corpus) + draw_lookups(spec, corpus)
  made = tables(spec, corpus.centers, outputs)
  return SkipGram(spec, made, sampling.alias_table(chances), loss_of)


def tables(
  spec: base.WindowSpec, inputs: np.ndarray, outputs: np.ndarray
) -> tuple[spec_lib.TableSpec, spec_lib.TableSpec]:
  """Input and output table, initialised as in word2vec.c.

  Takes the expected lookups of each row per center, [rows] float64.
  """
  each = (INPUT, inputs, 0.5 / spec.dim), (OUTPUT, outputs, 0.0)
  return tuple(
    spec_lib.TableSpec(name, len(x), spec.dim, scale, lookups_per_center=x)
    for name, x, scale in each
  )


def window_lookups(spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
  """[vocab], tokens of windows per center: neighbouring chunks share some."""
  return (spec.chunk + 2 * spec.window) / spec.chunk * corpus.centers


def draw_lookups(spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
  """[vocab], negatives per center."""
  chances = negative_probabilities(corpus.counts)
  return spec.shared_negatives / spec.chunk * chances


def num_contexts(batch: base.StepBatch) -> jax.Array:
  """[P, L'] float32, number of contexts of each center."""
  return batch.left.astype(jnp.float32) + batch.right.astype(jnp.float32)


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
