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
from jaxemb.ops import losses, products, sampling, windows
from jaxemb.tables import spec as spec_lib

INPUT = 'input'
OUTPUT = 'output'


def tables(spec: base.WindowSpec) -> dict[str, spec_lib.TableSpec]:
  """Input and output table as word2vec.c starts them."""
  return {
    INPUT: spec_lib.TableSpec(INPUT, spec.vocab, spec.dim, 0.5 / spec.dim),
    OUTPUT: spec_lib.TableSpec(OUTPUT, spec.vocab, spec.dim, 0.0),
  }


def draw_negatives(
  spec: base.WindowSpec,
  table: sampling.Alias,
  batch: base.StepBatch,
  key: jax.Array,
) -> jax.Array:
  """[L / c, N] int32, the draws that the centers of a chunk share.

  A chunk without a pair has padding: its draws must not count as look-ups.
  """
  has_pairs = jnp.any(num_contexts(batch).reshape(-1, spec.chunk) > 0, 1)
  num = spec.shared_negatives
  positions = jnp.arange(num, dtype=jnp.uint32)
  positions = batch.chunks[:, None] * np.uint32(num) + positions[None]
  draws = sampling.draw(table, key, positions)
  return jnp.where(has_pairs[:, None], draws, spec.vocab)


@dataclasses.dataclass(frozen=True)
class SkipGram:
  """The model over one step's rows; implements `base.Model`."""

  spec: base.WindowSpec
  negatives: sampling.Alias  # distribution of negatives, host arrays

  vectors_table = INPUT
  usual = None

  @property
  def decisions(self) -> float:
    """Binary decisions per pair: its own and the negatives."""
    return 1.0 + self.spec.negatives

  def specs(self) -> Mapping[str, spec_lib.TableSpec]:
    """The input (center) and output (context) tables."""
    return tables(self.spec)

  def constants(self) -> sampling.Alias:
    """The distribution of negatives."""
    return self.negatives

  def ids(
    self,
    constants: sampling.Alias,
    batch: base.StepBatch,
    key: jax.Array,
  ) -> dict[str, jax.Array]:
    """Input: [L / c, c] centers. Output: [L / c, c + 2 W + N]."""
    s = self.spec
    window_ids = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    draws = draw_negatives(s, constants, batch, key)
    centers = batch.tokens[:, s.window : batch.tokens.shape[1] - s.window]
    return {
      INPUT: centers.reshape(-1, s.chunk),
      OUTPUT: jnp.concatenate([window_ids, draws], 1),
    }

  def loss(
    self,
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, jax.Array],
    batch: base.StepBatch,
  ) -> jax.Array:
    """Summed over the (center, context) pairs, in nats."""
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
    scores = products.scores(rows[INPUT], rows[OUTPUT], s.columns_axis)
    labels = jnp.arange(scores.shape[-1]) < width
    labels = jnp.broadcast_to(labels.astype(jnp.float32), scores.shape)
    return jnp.sum(weights * losses.logistic_loss(scores, labels))

  def lookup_rates(
    self, centers: np.ndarray, negatives: np.ndarray
  ) -> dict[str, np.ndarray]:
    """Of centers, and of the tokens of windows and the draws."""
    s = self.spec
    windows_per_center = (s.chunk + 2 * s.window) / s.chunk
    draws_per_center = s.shared_negatives / s.chunk
    return {
      INPUT: centers,
      OUTPUT: windows_per_center * centers + draws_per_center * negatives,
    }

  def num_examples(self, batch: base.StepBatch) -> jax.Array:
    """Number of (center, context) pairs."""
    return num_contexts(batch).sum()


def num_contexts(batch: base.StepBatch) -> jax.Array:
  """[P, L'] float32, how many contexts each center has."""
  return batch.left.astype(jnp.float32) + batch.right.astype(jnp.float32)


def negative_probabilities(counts: np.ndarray) -> np.ndarray:
  """[vocab] float64: count^0.75, normalized."""
  weights = counts.astype(np.float64) ** 0.75
  return weights / weights.sum()


def negative_distribution(counts: np.ndarray) -> sampling.Alias:
  """The alias table of `negative_probabilities`."""
  return sampling.alias_table(negative_probabilities(counts))
