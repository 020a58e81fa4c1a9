"""Negative sampling with the center as what is predicted, for the mixture.

As in `models.skipgram` a chunk of c centers shares N negatives, each of weight
K / N, and a draw that equals a pair's own word does not count. There the center
predicts its contexts and here they predict it: the pairs are the same.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, skipgram, targets
from jaxemb.ops import sampling
from jaxemb.tables import spec as spec_lib


@dataclasses.dataclass(frozen=True)
class Outputs:
  """What centers are told by; see `tree.Outputs` for the other way."""

  negatives: sampling.Alias  # host arrays
  decisions: float  # per pair
  group: int  # c: no output row is of use to one center alone
  mean_targets: float  # of a center
  usual_rest: int = 0

  def spec(self, spec: base.WindowSpec) -> spec_lib.TableSpec:
    """The table of output rows."""
    return spec_lib.TableSpec(skipgram.OUTPUT, spec.vocab, spec.dim, 0.0)

  def constants(self) -> sampling.Alias:
    """The distribution of negatives."""
    return self.negatives

  def rates(
    self, spec: base.WindowSpec, centers: np.ndarray, negatives: np.ndarray
  ) -> np.ndarray:
    """[vocab] float64, expected look-ups of each output row per center."""
    return centers + spec.shared_negatives / spec.chunk * negatives

  def find(
    self,
    spec: base.WindowSpec,
    constants: sampling.Alias,
    batch: base.StepBatch,
    key: jax.Array,
  ) -> targets.Targets:
    """Centers and negatives: [L / c, c + N] ids."""
    draws = skipgram.draw_negatives(spec, constants, batch, key)
    w = spec.window
    centers = batch.tokens[:, w : batch.tokens.shape[1] - w]
    centers = centers.reshape(-1, spec.chunk)
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


def outputs(spec: base.WindowSpec, negatives: sampling.Alias) -> Outputs:
  """Of a distribution of negatives."""
  return Outputs(
    negatives, 1.0 + spec.negatives, spec.chunk, 1.0 + spec.shared_negatives
  )
