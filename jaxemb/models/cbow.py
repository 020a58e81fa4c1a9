"""CBOW with negative sampling (Mikolov et al. 2013a): contexts predict a word.

With h the mean of the input vectors of a center's contexts and u the center's
output vector:

  loss = -log sigmoid(h . u) - sum_{k=1..K} log sigmoid(-h . u_k)

one example per center. Each of n contexts gets 1/n of the gradient, which
word2vec.c omits (Irsoy et al. 2021), so learning rates are larger (0.2 by
default). As in skip-gram, a chunk of c centers shares N negatives, each with
weight K / N, and a draw that equals the center does not count.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxemb.data import windows
from jaxemb.models import base, columns, skipgram
from jaxemb.ops import sampling


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cbow(skipgram.SkipGram):
  """CBOW with negative sampling."""

  def ids(self, batch, key):
    """Returns inputs [L / c, c + 2 W], windows, and outputs [L / c, c + N].

    If tokens are looked up once, inputs are their blocks, [P, B, c].
    """
    draws = skipgram.draw_negatives(self.spec, self.negatives, batch, key=key)
    outputs = jnp.concatenate([batch.centers(), draws], 1)
    inputs = batch.blocks() if self.spec.tokens_once else batch.windows()
    return {skipgram.INPUT: inputs, skipgram.OUTPUT: outputs}

  def loss(self, params, rows, ids, batch, key):
    """Sums over the centers that have a context."""
    left, num_contexts = self._hidden(batch, rows, ids)
    has_context = (num_contexts > 0).astype(jnp.float32)
    loss = self._weighted_loss(
      left,
      right=rows[skipgram.OUTPUT],
      weights=has_context * target_weights(self.spec, ids[skipgram.OUTPUT]),
      num_positive=self.spec.chunk,
    )
    return loss, base.Aux(has_context.sum())

  def _hidden(self, batch, rows, ids):
    """Returns the means of contexts [L / c, c, d], and counts [L / c, c, 1]."""
    tokens = rows[skipgram.INPUT]
    if self.spec.tokens_once:
      tokens = batch.windows_of(tokens)
    return context_means(batch, tokens)


def make(
  spec: base.WindowSpec, corpus: base.Corpus, loss_of: sampling.Pointwise
) -> Cbow:
  """Makes CBOW for a corpus, with a loss of scores and labels."""
  chances = skipgram.negative_probabilities(corpus.counts)
  outputs = corpus.centers + skipgram.draw_lookups(spec, corpus)
  inputs = skipgram.token_lookups(spec, corpus)
  return Cbow(
    spec=spec,
    tables=skipgram.tables(spec, inputs, outputs),
    negatives=sampling.alias_table(chances),
    loss_of=loss_of,
  )


def context_means(
  batch: windows.StepBatch, token_rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns means [k, c, d] of rows [k, c + 2 W, d], and counts [k, c, 1]."""
  num_contexts = batch.num_contexts()[..., None]
  means = batch.mask() / jnp.maximum(num_contexts, 1)
  return columns.weighted_sums(means, token_rows), num_contexts


def target_weights(spec: base.WindowSpec, ids: jax.Array) -> jax.Array:
  """Returns [k, c, c + N] float32, of ids [k, c + N] of centers and draws.

  1 for a center itself, K / N for a draw of another word, else 0.
  """
  centers, draws = ids[:, : spec.chunk], ids[:, spec.chunk :]
  of_centers = jnp.eye(spec.chunk, dtype=jnp.float32)[None]
  of_centers = jnp.broadcast_to(of_centers, (len(ids), spec.chunk, spec.chunk))
  differs = (centers[:, :, None] != draws[:, None, :]).astype(jnp.float32)
  weight = spec.negatives / spec.shared_negatives
  return jnp.concatenate([of_centers, weight * differs], 2)
