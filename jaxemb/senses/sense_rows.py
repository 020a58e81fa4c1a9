"""Which rows of the table of senses are whose: one for each sense of a word."""

import dataclasses
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Senses:
  """Which words have several senses, as host arrays."""

  first_rows: np.ndarray  # [vocab] int32, row of a word's first sense
  # [vocab] int32, row of its priors; the number of rows where it has one sense
  priors_rows: np.ndarray
  num: int  # K, of the words that have several
  num_rows: int  # in the table of senses
  num_ambiguous: int  # rows in the table of priors

  def owners(self) -> np.ndarray:
    """[num_rows] int64, the word of each row."""
    sizes = np.diff(np.append(self.first_rows, self.num_rows))
    return np.repeat(np.arange(len(sizes)), sizes)


def number(is_ambiguous: np.ndarray, num: int) -> Senses:
  """Gives every word its rows.

  Args:
    is_ambiguous: [vocab] bool, which have several senses.
    num: K, how many.
  """
  is_ambiguous = np.asarray(is_ambiguous, bool) & (num > 1)
  sizes = np.where(is_ambiguous, num, 1)
  stops = np.cumsum(sizes)
  ambiguous = int(is_ambiguous.sum())
  numbers = np.cumsum(is_ambiguous) - 1
  return Senses(
    (stops - sizes).astype(np.int32),
    np.where(is_ambiguous, numbers, ambiguous).astype(np.int32),
    num,
    int(stops[-1]),
    ambiguous,
  )


class Constants(Protocol):
  """What every step reads: as `Senses` has them."""

  first_rows: jax.Array
  priors_rows: jax.Array


class Slots(NamedTuple):
  """The tokens of k windows, and those of them that have several senses."""

  ids: jax.Array  # of senses: [k, w], or [k w (1 + K)] if words have several
  is_single: jax.Array  # [k, w] bool
  # [k w] int32, of each slot's token among those of all windows; behind them =
  # none. Empty if no word has several.
  places: jax.Array
  priors_ids: jax.Array  # [k w] int32, of the slots


def are_ambiguous(
  senses: Senses, vocab: int, constants: Constants, window: jax.Array
) -> jax.Array:
  """[k, w] bool, which tokens have several senses."""
  words = jnp.minimum(window, vocab - 1)
  row = constants.priors_rows.at[words].get(mode='promise_in_bounds')
  return (window < vocab) & (row < senses.num_ambiguous)


def place(
  senses: Senses,
  vocab: int,
  constants: Constants,
  window: jax.Array,
  room: int | None = None,
) -> Slots:
  """Finds the rows of tokens, and a slot for each with several senses.

  Args:
    senses: which words have several.
    vocab: ids from here on are padding.
    constants: where words have their rows.
    window: [k, w] int32, ids of words.
    room: at least as many as there are such tokens; None = k w. That many slots
      are made, rather than k w.
  """
  words = jnp.minimum(window, vocab - 1)
  first = constants.first_rows.at[words].get(mode='promise_in_bounds')
  if not senses.num_ambiguous:
    ids = jnp.where(window < vocab, first, senses.num_rows)
    none = window[:0, 0]
    return Slots(ids, jnp.ones_like(window, bool), none, none)
  row = constants.priors_rows.at[words].get(mode='promise_in_bounds')
  is_word = window < vocab
  is_ambiguous = are_ambiguous(senses, vocab, constants, window)
  single = jnp.where(is_word & ~is_ambiguous, first, senses.num_rows)
  # Slot j is of the j-th ambiguous token.
  num = window.size
  is_slot = is_ambiguous.reshape(-1)
  slots = jnp.where(is_slot, jnp.cumsum(is_slot) - 1, num)
  places = jnp.full(num if room is None else room, num)
  places = places.at[slots].set(jnp.arange(num), mode='drop')
  first_of = (
    first.reshape(-1).at[places].get(mode='fill', fill_value=senses.num_rows)
  )
  rows = first_of[:, None] + jnp.arange(senses.num)[None]
  priors_ids = (
    row.reshape(-1).at[places].get(mode='fill', fill_value=senses.num_ambiguous)
  )
  ids = jnp.concatenate(
    [single.reshape(-1), jnp.minimum(rows, senses.num_rows).reshape(-1)]
  )
  return Slots(ids, is_word & ~is_ambiguous, places, priors_ids)
