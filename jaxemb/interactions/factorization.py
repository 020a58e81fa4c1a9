"""Matrix factorization of who has what: vectors of users u and of items v.

The score of an item for a user is u . v, or with a temperature t their cosine
divided by t. An item that the user has is to score higher than N others, drawn
uniformly, which the c examples of a chunk share, so that their scores are one
matrix product:

  bpr      mean_n -log sigmoid(s - s_n)              Rendle et al. 2009, eq. 4
  softmax  -log (exp s / (exp s + sum_n exp s_n))    sampled softmax

Each example of BPR has draws of its own in most code, one or a few; sharing
many of them costs less and learns more in an epoch. That a draw may be an item
which the user has is ignored: of all draws it is the density of the matrix.
"""

import dataclasses
from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import examples
from jaxemb.models import base, columns
from jaxemb.ops import sampling
from jaxemb.tables import spec as spec_lib

if TYPE_CHECKING:
  from jaxemb.interactions import sources

USERS = 'users'
ITEMS = 'items'
_INIT_SCALE = 0.1


def bpr(positives: jax.Array, negatives: jax.Array) -> jax.Array:
  """[...] nats; scores [...] of items of users, and [..., N] of others."""
  margins = positives[..., None] - negatives
  return jnp.mean(sampling.logistic_loss(margins, 1.0), -1)


softmax = sampling.softmax_loss


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Factorization(base.Model):
  """Vectors of users and items."""

  spec: base.WindowSpec = base.static()
  tables: tuple[spec_lib.TableSpec, ...] = base.static()
  loss_of: sampling.Pointwise = base.static()  # such as `bpr`
  temperature: float = base.static()  # 0 = scores are plain products

  vectors_table, contexts_table = ITEMS, USERS

  @property
  def is_cosine(self) -> bool:
    """Whether lengths of vectors of items have no meaning."""
    return self.temperature > 0

  @property
  def untrained_loss(self) -> float:
    """Of an example whose scores are all zero."""
    scores = np.zeros(1 + self.spec.shared_negatives, np.float32)
    return float(jax.jit(self.loss_of)(scores[0], scores[1:]))

  def ids(self, batch: examples.StepBatch, key: jax.Array):
    """Users: [E / c, c]. Items: [E / c, c + N]."""
    s = self.spec
    users, items = batch.by_chunk(s.chunk)
    positions = batch.draw_positions(s.chunk, s.shared_negatives)
    draws = sampling.draw_uniform(s.vocab, key, positions)
    draws = examples.where_used(draws, users)
    return {USERS: users, ITEMS: jnp.concatenate([items, draws], 1)}

  def loss(self, params, rows, ids, batch, key):
    """Summed over the pairs of user and item."""
    s, users, items = self.spec, rows[USERS], rows[ITEMS]
    positives = columns.sums(users * items[:, : s.chunk], s.row_ops)
    negatives = s.row_ops.dot(users, items[:, s.chunk :])
    if self.is_cosine:
      # Scores, not rows, are divided by lengths: every device has all of them,
      # and all that their derivatives need, whoever has which columns.
      of_users = columns.inverse_lengths(users, s.row_ops) / self.temperature
      of_items = columns.inverse_lengths(items, s.row_ops)
      positives *= of_users * of_items[:, : s.chunk]
      negatives *= of_users[..., None] * of_items[:, None, s.chunk :]
    weights = batch.weights.reshape(-1, s.chunk)
    loss = jnp.sum(weights * self.loss_of(positives, negatives))
    return loss, base.Aux(jnp.sum(weights))


def make(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  loss_of: sampling.Pointwise,
  temperature: float,
) -> Factorization:
  """Users and items of a corpus that has both."""
  source = cast('sources.Interactions', corpus.source)
  draws = spec.shared_negatives / spec.chunk / spec.vocab
  tables = spec_lib.describe(
    spec.dim,
    (USERS, source.user_frequencies, _INIT_SCALE),
    (ITEMS, corpus.centers + draws, _INIT_SCALE),
  )
  return Factorization(spec, tables, loss_of=loss_of, temperature=temperature)
