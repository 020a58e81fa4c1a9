"""Names of words, and the rows that they have."""

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import multivectors
from jaxemb.io import columns
from jaxemb.storage import word2vec_format


def name(word: Any) -> Any:
  """Returns the name of a number or flag, such as '7' of 7.0; other words."""
  is_number = isinstance(word, numbers.Real | np.bool_)
  return columns.name(word) if is_number else word


def names(words: Iterable[Any]) -> list[str]:
  """Returns the names of words; raises a `UserError` for what is no word."""
  words = list(words)
  if {*map(type, words)} <= {str}:
    return words
  words = [name(x) for x in words]
  if bad := [x for x in words if not isinstance(x, str)]:
    raise errors.UserError(f'{bad[0]!r} is no word; give a string or a number')
  return words


def listed(words: Iterable[Any]) -> list:
  """Returns a list of words; raises a `TypeError` for text, which is none."""
  if isinstance(words, (str, bytes)):
    raise TypeError(
      f'{words!r} is one word or a text; give a list of words, such as '
      'text.split()'
    )
  return list(words)


def row(
  word: Any,
  known: Mapping[str, int],
  senses: multivectors.MultiVectors | None = None,
) -> int:
  """Returns the row of a name, of several senses the most frequent; or -1.

  White space is looked up as underscores, too, as exports have it.
  """
  if not isinstance(word, str):
    return -1
  position = known.get(word, -1)
  if position == -1 and word:
    spelled = word2vec_format.spell([word])[0][0]
    # Where another word has that name, two rows might be meant.
    if f'{spelled}_' not in known:
      position = known.get(spelled, -1)
  if position == -1 and senses is not None and word in senses.index:
    rows = senses.rows(senses.index[word])
    position = rows.start + int(senses.priors[rows].argmax())
  return position
