"""Skip-gram and CBOW with hierarchical softmax (Mikolov et al. 2013a).

Skip-gram predicts each center from every one of its contexts, CBOW from their
mean, as in word2vec.c:

  loss = -sum_{n in path(center)} log sigmoid((1 - 2 code_n) v . u_n)

with v the input vector of a context, or the mean of those of all contexts, each
of which gets 1/n of the gradient. `models.targets` looks up the paths.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxemb.models import base, cbow, skipgram, targets


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hierarchical(skipgram.WindowModel):
  """Skip-gram or CBOW with hierarchical softmax."""

  tree: targets.Tree
  averages: bool = base.static()  # CBOW: the mean of the contexts predicts

  contexts_table = ''  # outputs are of nodes, not of words
  nodes_table = skipgram.OUTPUT

  @property
  def nodes(self) -> targets.Nodes:
    """See `Model`."""
    return self.tree.nodes

  @property
  def untrained_loss(self) -> float:
    """Of a pair, or of a center."""
    return self.tree.untrained_loss

  def ids(self, batch, key):
    """Returns inputs [L / c, c + 2 W], windows, and outputs, nodes."""
    nodes = self.tree.find(self.spec, batch, key)
    return {
      skipgram.INPUT: batch.windows(),
      skipgram.OUTPUT: nodes.ids,
      targets.TARGETS: nodes,
    }

  def loss(self, params, rows, ids, batch, key):
    """Sums over the pairs, or for CBOW over the centers with a context."""
    token_rows = rows[skipgram.INPUT]
    if self.averages:
      token_rows, num_contexts = cbow.context_means(batch, token_rows)
      examples = (num_contexts > 0).astype(jnp.float32)
      # The only token that predicts a center is its own mean.
      mask = examples * jnp.eye(batch.chunk)[None]
    else:
      examples, mask = batch.num_contexts(), batch.mask()
    loss = targets.window_loss(
      self.spec.row_ops,
      targets=ids[targets.TARGETS],
      compact_rest=self.tree.compact_rest,
      token_rows=token_rows,
      target_rows=rows[skipgram.OUTPUT],
      mask=mask,
    )
    return loss, base.Aux(examples.sum())


def make(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  averages: bool,
  num_shared: int,
) -> Hierarchical:
  """Makes hierarchical softmax for a corpus of at least two words."""
  tree = targets.tree(corpus, spec.chunk, num_shared)
  inputs = skipgram.window_lookups(spec, corpus)
  return Hierarchical(
    spec=spec,
    tables=skipgram.tables(spec, inputs, tree.lookups(spec, corpus)),
    tree=tree,
    averages=averages,
  )
