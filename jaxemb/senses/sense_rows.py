"""Which rows of the table of senses are whose: one for each sense of a word."""

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
class Senses:
  """Which words have several senses."""

  first_rows: Any  # [vocab] int32, row of a word's first sense
  # [vocab] int32, row of its priors; the number of rows where it has one sense
  priors_rows: Any
  num: int  # K, of the words that have several
  num_rows: int  # in the table of senses
  num_ambiguous: int  # rows in the table of priors

  def owners(self) -> np.ndarray:
    """[num_rows] int64, the word of each row."""
    sizes = np.diff(np.append(self.first_rows, self.num_rows))
    return np.repeat(np.arange(len(sizes)), sizes)

  def ambiguous_rows(self) -> np.ndarray:
    """[num_rows] bool, rows of words with several senses."""
    return (self.priors_rows < self.num_ambiguous)[self.owners()]

  def digest(self) -> str:
    """Identifies which rows are senses of which words."""
    return hashlib.sha256(self.first_rows.tobytes()).hexdigest()


jax.tree_util.register_dataclass(
  Senses, ['first_rows', 'priors_rows'], ['num', 'num_rows', 'num_ambiguous']
)


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


class Slots(NamedTuple):
  """The tokens of k windows, and those of them that have several senses."""

  ids: jax.Array  # of senses: [k, w], or [k w (1 + K)] if words have several
  is_single: jax.Array  # [k, w] bool
  # [k w] int32, of each slot's token among those of all windows; behind them =
  # none. Empty if no word has several.
  places: jax.Array
  priors_ids: jax.Array  # [k w] int32, of the slots


def are_ambiguous(senses: Senses, vocab: int, window: jax.Array) -> jax.Array:
  """[k, w] bool, which tokens have several senses."""
  words = jnp.minimum(window, vocab - 1)
  row = senses.priors_rows.at[words].get(mode='promise_in_bounds')
  return (window < vocab) & (row < senses.num_ambiguous)


def place(
  senses: Senses,
  vocab: int,
  window: jax.Array,
  room: int | None = None,
) -> Slots:
  """Finds the rows of tokens, and a slot for each with several senses.

  Args:
    senses: which words have several.
    vocab: ids from here on are padding.
    window: [k, w] int32, ids of words.
    room: at least as many as there are such tokens; None = k w. That many slots
      are made, rather than k w.
  """
  words = jnp.minimum(window, vocab - 1)
  first = senses.first_rows.at[words].get(mode='promise_in_bounds')
  if not senses.num_ambiguous:
    ids = jnp.where(window < vocab, first, senses.num_rows)
    none = window[:0, 0]
    return Slots(ids, jnp.ones_like(window, bool), none, none)
  row = senses.priors_rows.at[words].get(mode='promise_in_bounds')
  is_word = window < vocab
  is_ambiguous = are_ambiguous(senses, vocab, window)
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
  num_top = max(s.top_n, int(np.ceil(s.top_ratio * len(words))))
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
