"""Words of a text that is asked about, as a vocabulary spells them."""

import unicodedata
from collections.abc import Container, Sequence
from typing import NamedTuple

from jaxemb import errors, spelling


def spelled(token: str, known: Container[str]) -> str | None:
  """The known word that a token of a text is; None = there is none.

  Tried in this order: as it stands, in lower case, and both without what is
  neither letter, digit nor mark at its ends, since training takes none of that
  for a part of a word. What training parts inside (don't) is not parted here.
  """
  inside = [i for i, x in enumerate(token) if _is_of_words(x)]
  bare = token[inside[0] : inside[-1] + 1] if inside else token
  tried = (token, token.lower(), bare, bare.lower())
  return next((word for word in tried if word in known), None)


def _is_of_words(char: str) -> bool:
  return char.isalnum() or unicodedata.category(char)[0] == 'M'


class Asked(NamedTuple):
  """A word of a text."""

  tokens: list[str]  # of the text
  word: str  # as it is known


def split(
  sentence: Sequence[str] | str,
  position: int,
  known: dict[str, int],
  window: int,
) -> Asked:
  """Finds the word at a position.

  Args:
    sentence: The words, or a text that is split at white space.
    position: Of the word that is asked about.
    known: All words.
    window: Known words around it that count.

  Raises:
    errors.UserError: There is no such position, or no such window.
    spelling.UnknownWordError: The word is not known.
  """
  tokens = sentence.split() if isinstance(sentence, str) else list(sentence)
  check_window(window)
  if not 0 <= position < len(tokens):
    raise errors.UserError(
      f'position {position} is none of the {len(tokens)} words of the '
      'sentence; they are counted from 0'
    )
  word = spelled(tokens[position], known)
  if word is None:
    raise spelling.UnknownWordError(tokens[position], list(known))
  return Asked(tokens, word)


def around(
  tokens: Sequence[str], position: int, window: int, known: dict[str, int]
) -> list[int]:
  """Numbers of the known words around a position.

  Args:
    tokens: of the text.
    position: of the word that is asked about.
    window: known words on each side, at least 1.
    known: numbers of words.
  """
  before, behind = (
    [known[x] for x in (spelled(t, known) for t in side) if x is not None]
    for side in (tokens[:position], tokens[position + 1 :])
  )
  return before[-window:] + behind[:window]


def check_window(window: int) -> None:
  """Raises a `UserError` for a number of words that cannot be."""
  if window < 0:
    raise errors.UserError(
      f'window={window} must be 0 (as many words as the vectors say) or more'
    )
