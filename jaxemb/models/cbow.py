"""CBOW with negative sampling (Mikolov et al. 2013a): contexts predict a word.

With h the mean of the input vectors of a center's contexts and u the center's
output vector:

  loss = -log sigmoid(h . u) - sum_{k=1..K} log sigmoid(-h . u_k)

one example per center. The gradient is the true one: each context gets its
n-th part, which word2vec.c omits (Irsoy et al. 2021), so learning rates are
larger than word2vec.c's (0.15 is good). As in skip-gram, a chunk of c centers
shares N negatives, each with weight K / N, and a draw that equals the center
does not count.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, skipgram
from jaxemb.ops import losses, products, sampling, windows
from jaxemb.tables import spec as spec_lib


@dataclasses.dataclass(frozen=True)
class Cbow:
  """The model over one step's rows; implements `base.Model`."""

  spec: base.WindowSpec
  negatives: sampling.Alias  # distribution of negatives, host arrays

  vectors_table = skipgram.INPUT
  usual = None

  @property
  def decisions(self) -> float:
    """Binary decisions per center: its own and the negatives."""
    return 1.0 + self.spec.negatives

  def specs(self) -> Mapping[str, spec_lib.TableSpec]:
    """The input (context) and output (center) tables."""
    return skipgram.tables(self.spec)

  def constants(self) -> sampling.Alias:
    """The distribution of negatives."""
    return self.negatives

  def ids(
    self,
    constants: sampling.Alias,
    batch: base.StepBatch,
    key: jax.Array,
  ) -> dict[str, jax.Array]:
    """Input: [L / c, c + 2 W] windows. Output: [L / c, c + N]."""
    s = self.spec
    window_ids = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    draws = skipgram.draw_negatives(s, constants, batch, key)
    centers = window_ids[:, s.window : s.window + s.chunk]
    return {
      skipgram.INPUT: window_ids,
      skipgram.OUTPUT: jnp.concatenate([centers, draws], 1),
    }

  def loss(
    self,
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, jax.Array],
    batch: base.StepBatch,
  ) -> jax.Array:
    """Summed over the centers that have a context, in nats."""
    s = self.spec
    output_ids = ids[skipgram.OUTPUT]
    centers, draws = output_ids[:, : s.chunk], output_ids[:, s.chunk :]
    num_contexts = skipgram.num_contexts(batch).reshape(-1, s.chunk, 1)
    mask = windows.window_mask(batch.left, batch.right, s.chunk, s.window)
    mean = mask / jnp.maximum(num_contexts, 1)
    hidden = products.weighted_sums(mean, rows[skipgram.INPUT])
    scores = products.scores(hidden, rows[skipgram.OUTPUT], s.columns_axis)
    # Column i < c is center i's own word; the other centers are not examples.
    own = jnp.eye(s.chunk, dtype=jnp.float32)[None]
    differs = (centers[:, :, None] != draws[:, None, :]).astype(jnp.float32)
    weights = jnp.concatenate(
      [
        jnp.broadcast_to(own, (len(centers), s.chunk, s.chunk)),
        differs * (s.negatives / s.shared_negatives),
      ],
      2,
    )
    weights *= (num_contexts > 0).astype(jnp.float32)
    labels = jnp.arange(scores.shape[-1]) < s.chunk
    labels = jnp.broadcast_to(labels.astype(jnp.float32), scores.shape)
    return jnp.sum(weights * losses.logistic_loss(scores, labels))

  def lookup_rates(
    self, centers: np.ndarray, negatives: np.ndarray
  ) -> dict[str, np.ndarray]:
    """Of the tokens of windows, and of centers and draws."""
    s = self.spec
    windows_per_center = (s.chunk + 2 * s.window) / s.chunk
    draws_per_center = s.shared_negatives / s.chunk
    return {
      skipgram.INPUT: windows_per_center * centers,
      skipgram.OUTPUT: centers + draws_per_center * negatives,
    }

  def num_examples(self, batch: base.StepBatch) -> jax.Array:
    """Number of centers with at least one context."""
    return (skipgram.num_contexts(batch) > 0).astype(jnp.float32).sum()
