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
class SkipGram:
  """The model over one step's rows; implements `base.Model`."""

  spec: base.WindowSpec
  outputs: tree.Outputs

  vectors_table = skipgram.INPUT

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
    """Summed over the (center, context) pairs, in nats."""
    s = self.spec
    sides = batch.left, batch.right
    return targets.window_loss(
      s,
      ids[TARGETS],
      self.outputs.usual_rest,
      rows[skipgram.INPUT],
      rows[skipgram.OUTPUT],
      windows.window_mask(*sides, s.chunk, s.window),
      windows.window_mask(*sides, self.outputs.group, s.window),
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
    """Number of (center, context) pairs."""
    return skipgram.num_contexts(batch).sum()


@dataclasses.dataclass(frozen=True)
class Cbow:
  """The model over one step's rows; implements `base.Model`."""

  spec: base.WindowSpec
  outputs: tree.Outputs

  vectors_table = skipgram.INPUT

  @property
  def decisions(self) -> float:
    """Inner nodes on the path of a center."""
    return self.outputs.decisions

  def specs(self) -> Mapping[str, spec_lib.TableSpec]:
    """The input (context) table and that of the inner nodes."""
    return SkipGram(self.spec, self.outputs).specs()

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
    """Summed over the centers that have a context, in nats."""
    s, g = self.spec, self.outputs.group
    num_contexts = skipgram.num_contexts(batch).reshape(-1, s.chunk, 1)
    mask = windows.window_mask(batch.left, batch.right, s.chunk, s.window)
    mean = mask / jnp.maximum(num_contexts, 1)
    hidden = products.weighted_sums(mean, rows[skipgram.INPUT])
    # The tokens that predict a center are its own mean alone.
    has = (num_contexts > 0).astype(jnp.float32)
    return targets.window_loss(
      dataclasses.replace(s, window=0),
      ids[TARGETS],
      self.outputs.usual_rest,
      hidden,
      rows[skipgram.OUTPUT],
      has * jnp.eye(s.chunk)[None],
      has.reshape(-1, g, 1) * jnp.eye(g)[None],
    )

  def lookup_rates(
    self, centers: np.ndarray, negatives: np.ndarray
  ) -> dict[str, np.ndarray]:
    """Of the tokens of windows, and of the nodes of paths."""
    return SkipGram(self.spec, self.outputs).lookup_rates(centers, negatives)

  def num_examples(self, batch: base.StepBatch) -> jax.Array:
    """Number of centers with at least one context."""
    return (skipgram.num_contexts(batch) > 0).astype(jnp.float32).sum()
