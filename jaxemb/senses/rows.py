"""Ambiguous words, and the rows of their senses in the tables of a mixture.

A word has one row of the vector table, or K consecutive ones and a row of the
table of priors. The windows of a step look up

  [k, c + 2 W] rows   of words with one sense, padding for others
  [slots, K] rows     of ambiguous tokens, packed, padding at the end

so that words with one sense pay nothing for the others.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxemb import errors
from jaxemb.senses import table
from jaxemb.tables import blocks
from jaxemb.text import vocab


@dataclasses.dataclass(frozen=True)
class Rows:
  """The rows of each word; a pytree."""

  first: Any  # [vocab] int32, row of a word's first sense
  priors: Any  # [vocab] int32, row of its priors; `num_ambiguous` = has none
  num_senses: int  # K, of ambiguous words
  num: int  # rows of the vector table
  num_ambiguous: int  # rows of the table of priors

  def owners(self) -> np.ndarray:
    """[num] int64, the word of each row."""
    sizes = np.diff(np.append(self.first, self.num))
    return np.repeat(np.arange(len(sizes)), sizes)

  def are_ambiguous(self) -> np.ndarray:
    """[vocab] bool."""
    return np.asarray(self.priors) < self.num_ambiguous

  def digest(self) -> str:
    """Identifies which rows are senses of which words."""
    return hashlib.sha256(np.asarray(self.first).tobytes()).hexdigest()

  def find(self, window: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[k, w] bool, words with one sense and ambiguous ones; others are padding.

    Args:
      window: [k, w] int32, ids of words; those at or above vocab are padding.
    """
    is_word = window < len(self.first)
    is_ambiguous = is_word & (_take(self.priors, window) < self.num_ambiguous)
    return is_word & ~is_ambiguous, is_ambiguous


jax.tree_util.register_dataclass(
  Rows, ['first', 'priors'], ['num_senses', 'num', 'num_ambiguous']
)


def _take(array: jax.Array, ids: jax.Array) -> jax.Array:
  """Elements of an array; padding has those of the last word."""
  ids = jnp.minimum(ids, len(array) - 1)
  return array.at[ids].get(mode='promise_in_bounds')


def number(mask: np.ndarray, num_senses: int) -> Rows:
  """Numbers the rows of all words, those in the mask [vocab] ambiguous."""
  mask = np.asarray(mask, bool) & (num_senses > 1)
  sizes = np.where(mask, num_senses, 1)
  stops, num_ambiguous = np.cumsum(sizes), int(mask.sum())
  priors = np.where(mask, np.cumsum(mask) - 1, num_ambiguous)
  return Rows(
    (stops - sizes).astype(np.int32),
    priors.astype(np.int32),
    num_senses,
    int(stops[-1]),
    num_ambiguous,
  )


class Slots(NamedTuple):
  """Rows of the tokens of k windows, with a slot for each ambiguous token."""

  ids: jax.Array  # [k, w], or [k w + slots K] if any word is ambiguous
  is_single: jax.Array  # [k, w] bool, words with one sense
  # [slots] int32, the token of each slot among the k w; k w = none. Empty if no
  # word is ambiguous.
  tokens: jax.Array
  priors_ids: jax.Array  # [slots] int32


def slots(rows: Rows, window: jax.Array, num_slots: int | None = None) -> Slots:
  """Finds the rows of all tokens.

  Args:
    rows: of all words.
    window: [k, w] int32, ids of words.
    num_slots: at least the number of ambiguous tokens; None = k w.
  """
  is_single, is_ambiguous = rows.find(window)
  first = _take(rows.first, window)
  ids = jnp.where(is_single, first, rows.num)
  if not rows.num_ambiguous:
    none = window[:0, 0]
    return Slots(ids, jnp.ones_like(window, bool), none, none)
  is_ambiguous = is_ambiguous.reshape(-1)
  slot = jnp.where(is_ambiguous, jnp.cumsum(is_ambiguous) - 1, window.size)
  tokens = jnp.full(num_slots or window.size, window.size)
  tokens = tokens.at[slot].set(jnp.arange(window.size), mode='drop')

  def of_slots(array, padding):
    return array.reshape(-1).at[tokens].get(mode='fill', fill_value=padding)

  senses = of_slots(first, rows.num)[:, None]
  senses = senses + jnp.arange(rows.num_senses)[None]
  senses = jnp.minimum(senses, rows.num)
  return Slots(
    jnp.concatenate([ids.reshape(-1), senses.reshape(-1)]),
    is_single,
    tokens,
    of_slots(_take(rows.priors, window), rows.num_ambiguous),
  )


class Ambiguous(NamedTuple):
  """Words that get several senses."""

  mask: np.ndarray  # [vocab] bool
  num_listed: int  # distinct words of the list
  num_unknown: int  # of these, outside the vocabulary


def read_words(path: pathlib.Path | str) -> list[str]:
  """The first field of each line that is neither blank nor a `#` comment.

  Raises:
    errors.UserError: The file cannot be read, or has no word.
  """
  path = pathlib.Path(path).expanduser()
  try:
    lines = path.read_text(encoding='utf-8-sig').splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(
      f'cannot read config.senses.words={path}: {error}; give a text file with '
      "a word per line, or ''"
    ) from error
  words = [line.split()[0] for line in lines if line.split()]
  words = [word for word in words if not word.startswith('#')]
  if not words:
    raise errors.UserError(
      f"config.senses.words={path} has no word; give a word per line, or ''"
    )
  return words


def ambiguous(
  config: ml_collections.ConfigDict, words: Sequence[str]
) -> Ambiguous:
  """The words that `config.senses` gives several senses.

  Args:
    config: checked settings.
    words: [vocab], the most frequent first.

  Raises:
    errors.UserError: The list cannot be read, or has no word of these.
  """
  s = config.senses
  num_top = int(np.ceil(s.top_ratio * len(words)))
  mask = np.arange(len(words)) < num_top
  if not s.words:
    return Ambiguous(mask, 0, 0)
  listed = set(read_words(s.words))
  if config.data.lowercase:
    listed = {word.lower() for word in listed}
  is_listed = np.fromiter((x in listed for x in words), bool, len(words))
  num_known = int(is_listed.sum())
  if not num_known:
    raise errors.UserError(
      f'config.senses.words={s.words} has none of the {len(words):,} words of '
      'the vocabulary; give other words (check upper and lower case)'
    )
  return Ambiguous(mask | is_listed, len(listed), len(listed) - num_known)


def of_model(
  config: ml_collections.ConfigDict,
  model: Any,
  rows: Callable[[str], np.ndarray],
  vocabulary: vocab.Vocabulary,
) -> table.Senses | None:
  """The senses of a trained model; None if its words have one vector each.

  Args:
    config: the settings.
    model: one with `export_senses`, or another.
    rows: name of a table -> its rows, float32; a collective call of all
      processes.
    vocabulary: of the text.
  """
  if not hasattr(model, 'export_senses'):
    return None
  senses = model.export_senses(rows, vocabulary)
  window = config.senses.query_window or senses.window
  return dataclasses.replace(senses, loss=config.model.loss, window=window)


def digest(model: Any) -> str:
  """Identifies which rows are senses of which words; '' for other models."""
  return model.rows_digest() if hasattr(model, 'rows_digest') else ''


def exported(
  rows: blocks.Encoded, senses: table.Senses | None
) -> tuple[blocks.Encoded, table.Senses | None]:
  """Vectors in the dtype in which they are stored.

  Args:
    rows: [rows, dim], of the table.
    senses: None = words have one vector each.

  Returns:
    Rows for the files, and the senses with the same, rounded vectors.
  """
  if senses is None or senses.contexts is None:
    return rows, senses
  rows = blocks.encode(senses.vectors, rows.dtype)
  return rows, dataclasses.replace(senses, vectors=rows.decode())
