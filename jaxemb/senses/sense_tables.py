"""From the tables of a mixture to the senses of words, and to files of them."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxemb.models import base, skipgram
from jaxemb.ops import rounding
from jaxemb.senses import context_mixture, em, mixture, sense_files
from jaxemb.senses import table as senses
from jaxemb.text import vocab

_MODELS = mixture.Mixture, context_mixture.ContextMixture


def collect(
  config: ml_collections.ConfigDict,
  model: base.Model,
  table: Callable[[str], Any],
  vocabulary: vocab.Vocabulary,
) -> senses.Senses | None:
  """The senses of a trained mixture; None of other models.

  Args:
    config: the settings.
    model: what was trained.
    table: gives the rows of a table, as they are kept; all processes call it.
    vocabulary: of the text.

  Returns:
    The senses, whose vectors are rows of the table, or such rows with what
    `context_mixture.shifted` adds.
  """
  if not isinstance(model, _MODELS):
    return None

  def decoded(name):
    return rounding.decode_on_host(table(name), config.table.dtype)

  found = model.senses
  by_contexts = found.num_ambiguous > 0 and isinstance(
    model, context_mixture.ContextMixture
  )
  starts = np.append(found.first_rows, found.num_rows).astype(np.int64)
  priors = np.ones(found.num_rows, np.float32)
  if found.num_ambiguous:
    rows = jnp.asarray(table(mixture.PRIORS)[:, : found.num])
    is_ambiguous = found.priors_rows < found.num_ambiguous
    owners = is_ambiguous[found.owners()]
    chances = em.probabilities(rows, model.averages_logs)
    # Sums of many small changes: what is below zero is rounding.
    chances = np.maximum(np.asarray(chances), 0)
    priors[owners] = (chances / chances.sum(1, keepdims=True)).reshape(-1)
  made = senses.Senses(
    list(vocabulary.words),
    np.asarray(vocabulary.counts),
    starts,
    decoded(skipgram.INPUT),
    priors,
    decoded(skipgram.OUTPUT),
    config.model.loss,
    config.model.negatives,
    config.senses.query_window or (1 + by_contexts) * config.model.window,
  )
  if not by_contexts:
    return made
  rows = np.asarray(table(context_mixture.MEANS))[:, :-1]
  means, vectors = np.zeros_like(made.vectors), made.vectors.copy()
  means[owners] = rows
  by_word = found.num_ambiguous, found.num
  common = made.mean_vectors()[is_ambiguous]
  shifts = context_mixture.shifted(
    common, priors[owners].reshape(by_word), rows.reshape(*by_word, -1)
  )
  vectors[owners] += model.shift * np.asarray(shifts).reshape(rows.shape)
  contexts = senses.Contexts(
    means, model.concentration, context_mixture.HALF_WEIGHT
  )
  return dataclasses.replace(made, vectors=vectors, contexts=contexts)


def exported(
  config: ml_collections.ConfigDict, rows: Any, found: senses.Senses | None
) -> tuple[Any, senses.Senses | None]:
  """Vectors of senses, as rows are kept in `config.table.dtype`.

  Args:
    config: the settings.
    rows: [rows, dim], of the table, as they are kept.
    found: the senses, of all rows; None = a word has one.

  Returns:
    The rows as files have them, and the senses with the same vectors, rounded.
  """
  if found is None or found.contexts is None:
    return rows, found
  rows = rounding.encode_on_host(found.vectors, config.table.dtype)
  vectors = rounding.decode_on_host(rows, config.table.dtype)
  return rows, dataclasses.replace(found, vectors=vectors)


def digest(model: base.Model) -> str:
  """Tells which rows are senses of which words; '' where none are."""
  if not isinstance(model, _MODELS):
    return ''
  return hashlib.sha256(model.senses.first_rows.tobytes()).hexdigest()


def write(folder: pathlib.Path, found: senses.Senses | None) -> None:
  """Writes the files, if any, beside those of the vectors in a folder."""
  if found is None:
    return
  facts = {
    'loss': found.loss,
    'negatives': found.negatives,
    'window': found.window,
  }
  means = None
  if found.contexts is not None:
    means, concentration, half_weight = found.contexts
    facts |= {'concentration': concentration, 'half_weight': half_weight}
  sense_files.write(
    folder,
    sense_files.Stored(
      found.words, found.starts, found.priors, found.outputs, means, facts
    ),
    found.vectors,
  )
