"""A model that learns how often each word was read, and nothing else.

  --config.model.name=tests.counting:make       words, nodes, items
  --config.model.name=tests.counting:clicks     categories
  --config.strategy.policy=tests.counting:Sums  replicas that count together

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
import numpy as np

from jaxemb.clicks import models as click_models
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
OF_CLICKS = SETTINGS[:3]
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


@dataclasses.dataclass(frozen=True)
class Sums:
  """A policy by which what replicas learned adds up, all of it each time."""

  lookups_per_center: dict[str, np.ndarray]
  num_replicas: int
  every_steps: int

  chunk_rows = 1024

  @property
  def _num_chunks(self):
    vocab = max(len(x) for x in self.lookups_per_center.values())
    return -(-vocab // self.chunk_rows)

  def due(self, number: jax.Array) -> jax.Array:
    """All rows."""
    return jnp.int32(self._num_chunks)

  def weights(self, name, start, num, learning_rate):
    """1, of all rows."""
    return jnp.ones(num)

  def staleness_steps(self) -> np.ndarray:
    """Those between two synchronisations."""
    return np.full(self._num_chunks, self.every_steps)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Clicks(click_models.ClickModel):
  """Logistic regression whose weights count."""

  is_mean = False

  def loss(self, params, rows, ids, batch, key):
    """Minus the sum of the weights."""
    (name,) = ids
    is_known = ids[name] < self.spec.fields.vocab
    total = jnp.where(is_known[..., None], rows[name], 0).sum()
    return -total, base.Aux(batch.weights.sum())


def clicks(spec: click_models.ClickSpec, corpus: base.Corpus) -> Clicks:
  """Counts of the categories of a log."""
  made = click_models.of_terms(spec, ('first',), corpus.centers)
  return Clicks(made.spec, made.terms, made.tables)
