"""A model that learns how often each word was read, and nothing else.

  --config.model.name=tests.counting:make

Its loss is minus the sum of the rows of what a step is made of: each center of
a window, each end of an edge, user, item or category. With SGD and a learning
rate of 1 throughout, each reading adds exactly 1 to a row of zeros. So what a
run exports is how often each was read by the devices, over all stops, kills
and topologies: a word that was lost is one short, one that was read twice one
above.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.data import windows
from jaxemb.models import base, skipgram
from jaxemb.tables import spec as spec_lib

# With which every reading adds 1.
SETTINGS = (
  'optimizer.name=sgd',
  'optimizer.learning_rate=1',
  'optimizer.final_learning_rate=1',
  'optimizer.max_duplicates=0',
)
_NAME = skipgram.INPUT


@dataclasses.dataclass(frozen=True)
class Counts(base.Model):
  """Counts of keys, in all columns of a table."""

  table: spec_lib.TableSpec
  of_users: bool  # whose items are counted

  vectors_table = _NAME

  def specs(self) -> dict[str, spec_lib.TableSpec]:
    """By name."""
    return {_NAME: self.table}

  def ids(self, batch: Any, key: jax.Array) -> dict[str, jax.Array]:
    """Centers [L / c, c]; both ends of edges [E, 2]; items [E, 1]."""
    if isinstance(batch, windows.StepBatch):
      return {_NAME: batch.centers()}
    return {_NAME: batch.ids[:, 1:2] if self.of_users else batch.ids[:, :2]}

  def loss(self, params, rows, ids, batch, key):
    """Minus the sum of the rows; of padding they are arbitrary."""
    is_known = ids[_NAME] < self.table.vocab
    total = jnp.where(is_known[..., None], rows[_NAME], 0).sum()
    return -total, base.Aux(is_known.sum().astype(jnp.float32))


def make(spec: base.WindowSpec, corpus: base.Corpus, loss_of: Any) -> Counts:
  """Counts of the keys of a corpus."""
  del loss_of
  table = spec_lib.TableSpec(
    _NAME, spec.vocab, spec.dim, 0.0, lookups_per_center=corpus.centers
  )
  return Counts(table, hasattr(corpus.source, 'user_frequencies'))
