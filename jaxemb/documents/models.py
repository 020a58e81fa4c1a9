"""Paragraph vectors (Le & Mikolov 2014): a row for each document.

PV-DBOW: the row d of a document predicts each of its words, with output vector
u, as a bag:

  loss = -log sigmoid(d . u) - sum_{k=1..K} log sigmoid(-d . u_k)

PV-DM: the mean of d and of the input vectors of a word's n contexts does so in
place of d; each of the n + 1 gets 1 / (n + 1) of the gradient. As in CBOW, a
chunk of c centers shares N negatives, each with weight K / N, and a draw that
equals the center does not count.
"""

import dataclasses
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from jaxemb.data import base as data_base
from jaxemb.models import base, cbow, columns, skipgram
from jaxemb.ops import sampling
from jaxemb.tables import spec as spec_lib

DOCUMENTS = 'documents'


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dbow(skipgram.SkipGram):
  """PV-DBOW with negative sampling."""

  vectors_table = DOCUMENTS

  def ids(self, batch, key):
    """Returns documents [L / c, c], and outputs [L / c, c + N]."""
    draws = self._draws(batch, key)
    outputs = jnp.concatenate([batch.words.centers(), draws], 1)
    return {DOCUMENTS: batch.rows(), skipgram.OUTPUT: outputs}

  def loss(self, params, rows, ids, batch, key):
    """Sums over all centers."""
    return self._loss_of(rows[DOCUMENTS], rows, ids=ids, batch=batch)

  def _draws(self, batch, key):
    """Returns [L / c, N] int32, as of `skipgram.draw_negatives`."""
    return skipgram.draw_negatives(
      self.spec,
      self.negatives,
      batch.words,
      key=key,
      has_examples=jnp.any(batch.is_center(), 1),
    )

  def _loss_of(self, left, rows, ids, batch):
    """Sums over all centers the loss of `left` [k, c, d]."""
    is_center = batch.is_center()[..., None].astype(jnp.float32)
    outputs = ids[skipgram.OUTPUT]
    loss = self._weighted_loss(
      left,
      right=rows[skipgram.OUTPUT],
      weights=is_center * cbow.target_weights(self.spec, outputs),
      num_positive=self.spec.chunk,
    )
    return loss, base.Aux(is_center.sum())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dm(Dbow):
  """PV-DM with negative sampling, of means."""

  context_inputs_table = skipgram.INPUT

  def ids(self, batch, key):
    """Returns those of PV-DBOW, and inputs [L / c, c + 2 W], windows."""
    return {**super().ids(batch, key), skipgram.INPUT: batch.words.windows()}

  def loss(self, params, rows, ids, batch, key):
    """Sums over all centers."""
    fraction = 1 / (batch.words.num_contexts()[..., None] + 1)
    contexts = columns.weighted_sums(
      fraction * batch.words.mask(), rows[skipgram.INPUT]
    )
    left = contexts + fraction * rows[DOCUMENTS]
    return self._loss_of(left, rows, ids=ids, batch=batch)


_Model = TypeVar('_Model', bound=Dbow)


def dbow(
  spec: base.WindowSpec, corpus: base.Corpus, loss_of: sampling.Pointwise
) -> Dbow:
  """Makes PV-DBOW for the words of a source of documents."""
  return _make(Dbow, spec, corpus, loss_of=loss_of)


def dm(
  spec: base.WindowSpec, corpus: base.Corpus, loss_of: sampling.Pointwise
) -> Dm:
  """Makes PV-DM for the words of a source of documents."""
  inputs = skipgram.window_lookups(spec, corpus)
  table = skipgram.INPUT, inputs, 0.5 / spec.dim
  return _make(Dm, spec, corpus, table, loss_of=loss_of)


def _make(
  model: type[_Model],
  spec: base.WindowSpec,
  corpus: base.Corpus,
  *inputs: tuple[str, Any, float],
  loss_of: sampling.Pointwise,
) -> _Model:
  """Makes a model, whose rows of documents begin as those of words do."""
  source = cast(data_base.Source, corpus.source)
  documents = DOCUMENTS, source.frequencies, 0.5 / spec.dim
  outputs = corpus.centers + skipgram.draw_lookups(spec, corpus)
  return model(
    spec=spec,
    tables=spec_lib.describe(
      spec.dim, documents, *inputs, (skipgram.OUTPUT, outputs, 0.0)
    ),
    negatives=sampling.alias_table(
      skipgram.negative_probabilities(corpus.counts)
    ),
    loss_of=loss_of,
  )
