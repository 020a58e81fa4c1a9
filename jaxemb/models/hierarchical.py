"""Skip-gram and CBOW with hierarchical softmax (Mikolov et al. 2013a).

Skip-gram predicts each center from every one of its contexts, CBOW from their
mean, as in word2vec.c:

  loss = -sum_{n in path(center)} log sigmoid((1 - 2 code_n) v . u_n)

with v the input vector of a context, or the mean of those of all contexts. The
gradients are the true ones; CBOW gives each of n contexts 1/n of it, which
word2vec.c omits. `models.targets` says how paths are looked up.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxemb.models import base, cbow, skipgram, targets
from jaxemb.ops import chunks


@dataclasses.dataclass(frozen=True)
class Hierarchical(skipgram.WindowModel):
  """Skip-gram or CBOW over one step's rows."""

  tree: targets.Tree
  averages: bool  # CBOW: the mean of a center's contexts predicts it

  contexts_table = ''  # outputs are of nodes, not of words

  @property
  def untrained_loss(self) -> float:
    """Of a pair, or of a center."""
    return self.tree.untrained_loss

  def ids(self, batch, key):
    """Input: [L / c, c + 2 W] windows. Output: nodes."""
    s = self.spec
    nodes = self.tree.find(s, batch, key)
    return {
      skipgram.INPUT: chunks.windows(batch.tokens, s.chunk, s.window),
      skipgram.OUTPUT: nodes.ids,
      targets.TARGETS: nodes,
    }

  def loss(self, params, rows, ids, batch, key):
    """Summed over the pairs, or for CBOW over centers with a context."""
    del params, key
    s, token_rows = self.spec, rows[skipgram.INPUT]
    if self.averages:
      token_rows, num_contexts = cbow.context_means(s, batch, token_rows)
      # The only token that predicts a center is its own mean.
      s = dataclasses.replace(s, window=0)
      examples = (num_contexts > 0).astype(jnp.float32)
      mask = examples * jnp.eye(s.chunk)[None]
    else:
      examples = skipgram.num_contexts(batch)
      mask = chunks.mask(batch.left, batch.right, s.chunk, s.window)
    loss = targets.window_loss(
      s,
      ids[targets.TARGETS],
      self.tree.compact_rest,
      token_rows,
      rows[skipgram.OUTPUT],
      mask,
    )
    return loss, base.Aux(examples.sum())


jax.tree_util.register_dataclass(
  Hierarchical, ['tree'], ['spec', 'tables', 'averages']
)


def make(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  averages: bool = False,
  num_shared: int = targets.SHARED_NODES,
) -> Hierarchical:
  """Hierarchical softmax for a corpus of at least two words."""
  tree = targets.tree(corpus, spec.chunk, num_shared)
  inputs = skipgram.window_lookups(spec, corpus)
  tables = skipgram.tables(spec, inputs, tree.lookups(spec, corpus))
  return Hierarchical(spec, tables, tree, averages)
