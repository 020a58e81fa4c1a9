"""Skip-gram and CBOW with hierarchical softmax (Mikolov et al. 2013a).

Skip-gram predicts each center from every one of its contexts, CBOW from their
mean, as in word2vec.c:

  loss = -sum_{n in path(center)} log sigmoid((1 - 2 code_n) v . u_n)

with v the input vector of a context, or the mean of those of all contexts. The
gradients are the true ones; CBOW gives each context its n-th part, which
word2vec.c omits.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, skipgram, targets, tree
from jaxemb.ops import huffman, products, windows
from jaxemb.tables import spec as spec_lib

TARGETS = 'targets'  # beside the ids of the tables: weights of the nodes


@dataclasses.dataclass(frozen=True)
class Hierarchical:
  """The model over one step's rows; implements `base.Model`."""

  spec: base.WindowSpec
  outputs: tree.Outputs
  averages: bool  # CBOW: the mean of a center's contexts predicts it

  vectors_table = skipgram.INPUT
  usual = None

  @property
  def decisions(self) -> float:
    """Inner nodes on the path of a center."""
    return self.outputs.decisions

  def specs(self) -> Mapping[str, spec_lib.TableSpec]:
    """The input (context) table and that of the inner nodes."""
    s = self.spec
    return {
      skipgram.INPUT: spec_lib.TableSpec(
        skipgram.INPUT, s.vocab, s.dim, 0.5 / s.dim
      ),
      skipgram.OUTPUT: self.outputs.spec(s),
    }

  def constants(self) -> huffman.Split:
    """The paths."""
    return self.outputs.constants()

  def ids(
    self, constants: huffman.Split, batch: base.StepBatch, key: jax.Array
  ) -> dict[str, Any]:
    """Input: [L / c, c + 2 W] windows. Output: nodes."""
    s = self.spec
    found = self.outputs.find(s, constants, batch, key)
    return {
      skipgram.INPUT: windows.chunk_windows(batch.tokens, s.chunk, s.window),
      skipgram.OUTPUT: found.ids,
      TARGETS: found,
    }

  def loss(
    self,
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, Any],
    batch: base.StepBatch,
  ) -> jax.Array:
    """Summed over the examples, in nats."""
    s, g = self.spec, self.outputs.group
    sides = batch.left, batch.right
    mask = windows.window_mask(*sides, s.chunk, s.window)
    token_rows = rows[skipgram.INPUT]
    if self.averages:
      num_contexts = skipgram.num_contexts(batch).reshape(-1, s.chunk, 1)
      mean = mask / jnp.maximum(num_contexts, 1)
      token_rows = products.weighted_sums(mean, token_rows)
      # The tokens that predict a center are its own mean alone.
      s = dataclasses.replace(s, window=0)
      has = (num_contexts > 0).astype(jnp.float32)
      mask = has * jnp.eye(s.chunk)[None]
      near = has.reshape(-1, g, 1) * jnp.eye(g)[None]
    else:
      near = windows.window_mask(*sides, g, s.window)
    return targets.window_loss(
      s,
      ids[TARGETS],
      self.outputs.usual_rest,
      token_rows,
      rows[skipgram.OUTPUT],
      mask,
      near,
    )

  def lookup_rates(
    self, centers: np.ndarray, negatives: np.ndarray
  ) -> dict[str, np.ndarray]:
    """Of the tokens of windows, and of the nodes of paths."""
    s = self.spec
    windows_per_center = (s.chunk + 2 * s.window) / s.chunk
    return {
      skipgram.INPUT: windows_per_center * centers,
      skipgram.OUTPUT: self.outputs.rates(s, centers, negatives),
    }

  def num_examples(self, batch: base.StepBatch) -> jax.Array:
    """Number of (center, context) pairs, or of centers with a context."""
    num_contexts = skipgram.num_contexts(batch)
    if self.averages:
      num_contexts = (num_contexts > 0).astype(jnp.float32)
    return num_contexts.sum()
