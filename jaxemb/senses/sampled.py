"""Negative sampling with the center as what is predicted, for the mixture.

As in `models.skipgram` a chunk of c centers shares N negatives, each of weight
K / N, and a draw that equals a pair's own word does not count. There the center
predicts its contexts and here they predict it: the pairs are the same.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, skipgram, targets
from jaxemb.ops import sampling
from jaxemb.tables import spec as spec_lib


@dataclasses.dataclass(frozen=True)
class Outputs:
  """Outputs of negative sampling; `hierarchical.Tree` has those of a tree."""

  negatives: sampling.Alias
  decisions: float  # per pair
  group: int  # c: no output row is of use to one center alone
  mean_targets: float  # of a center
  compact_rest: int = 0

  @property
  def untrained_loss(self) -> float:
    """Nats per pair."""
    return self.decisions * math.log(2)

  def table(
    self, spec: base.WindowSpec, lookups: np.ndarray | None
  ) -> spec_lib.TableSpec:
    """The table of output rows."""
    return spec_lib.TableSpec(
      skipgram.OUTPUT, spec.vocab, spec.dim, 0.0, lookups_per_center=lookups
    )

  def lookups(self, spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
    """[vocab] float64, expected lookups of each output row per center."""
    negatives = skipgram.negative_probabilities(corpus.counts)
    return corpus.centers + spec.shared_negatives / spec.chunk * negatives

  def find_targets(
    self, spec: base.WindowSpec, batch: base.StepBatch, key: jax.Array
  ) -> targets.Targets:
    """Centers and negatives: [L / c, c + N] ids."""
    draws = skipgram.draw_negatives(spec, self.negatives, batch, key)
    centers = skipgram.centers(spec, batch)
    differs = (centers[:, :, None] != draws[:, None, :]).astype(jnp.float32)
    own = jnp.broadcast_to(
      jnp.eye(spec.chunk)[None], (len(centers), spec.chunk, spec.chunk)
    )
    share = spec.negatives / spec.shared_negatives
    weights = share * differs
    ids = jnp.concatenate([centers, draws], 1)
    # The center itself, and what its chunk draws.
    places = jnp.arange(ids.size).reshape(ids.shape)
    drawn = jnp.broadcast_to(places[:, None, spec.chunk :], weights.shape)
    both = places[:, : spec.chunk, None], drawn
    all_weights = jnp.concatenate(
      [jnp.ones_like(weights[..., :1]), -weights], 2
    )
    depth = all_weights.shape[-1]
    lists = targets.Lists(
      jnp.concatenate(both, 2).reshape(-1, depth),
      all_weights.reshape(-1, depth),
      jnp.broadcast_to(jnp.array([depth, 0]), (centers.size, 2)),
      depth,
    )
    return targets.Targets(
      ids,
      jnp.concatenate([own, weights], 2),
      jnp.concatenate([own, jnp.zeros_like(differs)], 2),
      lists,
    )


jax.tree_util.register_dataclass(
  Outputs,
  ['negatives'],
  ['decisions', 'group', 'mean_targets', 'compact_rest'],
)


def outputs(spec: base.WindowSpec, corpus: base.Corpus) -> Outputs:
  """Negative sampling for a corpus."""
  negatives = skipgram.negative_probabilities(corpus.counts)
  return Outputs(
    sampling.alias_table(negatives),
    1.0 + spec.negatives,
    spec.chunk,
    1.0 + spec.shared_negatives,
  )
