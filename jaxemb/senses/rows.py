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
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxemb import errors


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
    """Which ids [k, w] are words with one sense, and which ambiguous ones.

    [k, w] bool each; ids at or above vocab are padding and neither.
    """
    is_word = window < len(self.first)
    priors = self.priors.at[window].get(mode='clip')
    is_ambiguous = is_word & (priors < self.num_ambiguous)
    return is_word & ~is_ambiguous, is_ambiguous


jax.tree_util.register_dataclass(
  Rows, ['first', 'priors'], ['num_senses', 'num', 'num_ambiguous']
)


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

  ids: jax.Array  # [k w + slots K]
  is_single: jax.Array  # [k, w] bool, words with one sense
  # [slots] int32, the token of each slot among the k w; k w = none. Empty if no
  # word is ambiguous.
  tokens: jax.Array
  priors_ids: jax.Array  # [slots] int32


def slots(rows: Rows, window: jax.Array, num_slots: int | None = None) -> Slots:
  """Finds the rows of all tokens [k, w], ids of words.

  There are at least as many slots as ambiguous tokens; None = k w.
  """
  is_single, is_ambiguous = rows.find(window)
  first = rows.first.at[window].get(mode='clip')
  ids = jnp.where(is_single, first, rows.num).reshape(-1)
  if not rows.num_ambiguous:
    return Slots(ids, is_single, ids[:0], ids[:0])
  is_ambiguous = is_ambiguous.reshape(-1)
  slot = jnp.where(is_ambiguous, jnp.cumsum(is_ambiguous) - 1, window.size)
  tokens = jnp.full(num_slots or window.size, window.size)
  tokens = tokens.at[slot].set(jnp.arange(window.size), mode='drop')

  def of_slots(array, padding):
    return array.reshape(-1).at[tokens].get(mode='fill', fill_value=padding)

  senses = of_slots(first, rows.num)[:, None]
  senses += jnp.arange(rows.num_senses)[None]
  senses = jnp.minimum(senses, rows.num).reshape(-1)
  priors = rows.priors.at[window].get(mode='clip')
  return Slots(
    jnp.concatenate([ids, senses]),
    is_single,
    tokens,
    of_slots(priors, rows.num_ambiguous),
  )


class Ambiguous(NamedTuple):
  """Words that get several senses."""

  mask: np.ndarray  # [vocab] bool
  num_listed: int = 0  # distinct words of the list
  num_unknown: int = 0  # of these, outside the vocabulary


def ambiguous(
  config: ml_collections.ConfigDict, words: Sequence[str]
) -> Ambiguous:
  """The words [vocab], by falling count, that get several senses.

  The file `config.senses.words` has a word in the first field of each line that
  is neither blank nor a `#` comment. UserError if it cannot be read, or has no
  word of these.
  """
  path = config.senses.words
  mask = np.arange(len(words)) < np.ceil(config.senses.top_ratio * len(words))
  if not path:
    return Ambiguous(mask)
  try:
    text = pathlib.Path(path).expanduser().read_text(encoding='utf-8-sig')
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(
      f'cannot read config.senses.words={path}: {error}; give a text file with '
      "a word per line, or ''"
    ) from error
  text = text.lower() if config.data.lowercase else text
  fields = [line.split()[0] for line in text.splitlines() if line.split()]
  listed = {word for word in fields if not word.startswith('#')}
  is_listed = np.array([word in listed for word in words])
  num_known = int(is_listed.sum())
  if not num_known:
    raise errors.UserError(
      f'config.senses.words={path} has {len(listed):,} words, none of the '
      f'{len(words):,} of the vocabulary; give one per line (check upper and '
      'lower case)'
    )
  return Ambiguous(mask | is_listed, len(listed), len(listed) - num_known)
