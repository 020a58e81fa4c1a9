"""CBOW with negative sampling (Mikolov et al. 2013a): contexts predict a word.

With h the mean of the input vectors of a center's contexts and u the center's
output vector:

  loss = -log sigmoid(h . u) - sum_{k=1..K} log sigmoid(-h . u_k)

one example per center. The gradient is the true one: each of n contexts gets
1/n of it, which word2vec.c omits (Irsoy et al. 2021), so learning rates are
larger than word2vec.c's (0.2 by default). As in skip-gram, a chunk of c centers
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
class Cbow(base.Model):
  """CBOW over one step's rows."""

  negatives: sampling.Alias  # distribution of negatives
  spec: base.WindowSpec
  loss_of: losses.Pointwise
  lookups: Mapping[str, np.ndarray] | None = None  # by table, see `TableSpec`

  vectors_table = skipgram.INPUT
  contexts_table = skipgram.OUTPUT

  @property
  def untrained_loss(self) -> float:
    """Of a center: one decision for itself, and one for each negative."""
    return losses.untrained(self.loss_of, self.spec.negatives)

  def specs(self) -> dict[str, spec_lib.TableSpec]:
    """The input (context) and output (center) tables."""
    return skipgram.tables(self.spec, self.lookups)

  def ids(self, batch: base.StepBatch, key: jax.Array) -> dict[str, jax.Array]:
    """Input: [L / c, c + 2 W] windows. Output: [L / c, c + N]."""
    s = self.spec
    window_ids = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    draws = skipgram.draw_negatives(s, self.negatives, batch, key)
    centers = window_ids[:, s.window : s.window + s.chunk]
    return {
      skipgram.INPUT: window_ids,
      skipgram.OUTPUT: jnp.concatenate([centers, draws], 1),
    }

  def loss(
    self,
    params: tuple[()],
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, jax.Array],
    batch: base.StepBatch,
    key: jax.Array,
  ) -> tuple[jax.Array, base.Aux]:
    """Summed over the centers that have a context."""
    del params, key
    s = self.spec
    output_ids = ids[skipgram.OUTPUT]
    centers, draws = output_ids[:, : s.chunk], output_ids[:, s.chunk :]
    num_contexts = skipgram.num_contexts(batch).reshape(-1, s.chunk, 1)
    mask = windows.window_mask(batch.left, batch.right, s.chunk, s.window)
    mean = mask / jnp.maximum(num_contexts, 1)
    hidden = products.weighted_sums(mean, rows[skipgram.INPUT])
    scores = s.row_ops.dot(hidden, rows[skipgram.OUTPUT])
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
    has_context = (num_contexts > 0).astype(jnp.float32)
    weights *= has_context
    labels = jnp.arange(scores.shape[-1]) < s.chunk
    labels = jnp.broadcast_to(labels.astype(jnp.float32), scores.shape)
    loss = jnp.sum(weights * self.loss_of(scores, labels))
    return loss, base.Aux(has_context.sum())


jax.tree_util.register_dataclass(
  Cbow, ['negatives'], ['spec', 'loss_of'], ['lookups']
)


def make(
  spec: base.WindowSpec, corpus: base.Corpus, loss_of: losses.Pointwise
) -> Cbow:
  """CBOW for a corpus, with a loss of scores and labels."""
  negatives = skipgram.negative_probabilities(corpus.counts)
  draws = spec.shared_negatives / spec.chunk * negatives
  lookups = {
    skipgram.INPUT: skipgram.window_lookups(spec) * corpus.centers,
    skipgram.OUTPUT: corpus.centers + draws,
  }
  return Cbow(sampling.alias_table(negatives), spec, loss_of, lookups)
