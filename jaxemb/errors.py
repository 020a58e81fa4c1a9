"""Errors that a user can cause, apart from bugs.

Every entry point turns a `UserError` into one line on stderr and exit code 2;
anything else that escapes is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Sequence

_MAX_COMPARED_WORDS = 200_000
_MAX_CANDIDATES = 5_000
_MAX_SUGGESTIONS = 5


class UserError(Exception):
  """Unusable input or configuration.

  The message is one line: what is wrong, where, and what to do.
  """


def one_line(error: BaseException, max_chars: int = 300) -> str:
  """The message of an error of another library, in one line."""
  return ' '.join(str(error).split())[:max_chars]


class UnknownWordError(KeyError):
  """A word without a vector; the message suggests similar spellings."""

  def __init__(self, word: object, known: Sequence[str] = ()):
    super().__init__(word)
    self._known = known

  def __str__(self) -> str:
    # Looked up only when shown: many callers just catch the error.
    word = self.args[0]
    message = f'no vector for {word!r} among {len(self._known):,} words'
    near = _near_spellings(word, self._known) if isinstance(word, str) else []
    return f'{message}; near: {", ".join(near)}' if near else message


def _near_spellings(word: str, known: Sequence[str]) -> list[str]:
  """At most five of the known words, other cases of the word first.

  Only frequent words of nearly the same length and with the same first letter
  are compared, so that this takes a fraction of a second.
  """
  folded = word.casefold()
  same_letters, candidates = [], {}
  for other in known[:_MAX_COMPARED_WORDS]:
    if abs(len(other) - len(word)) > 2 or not other:
      continue
    other_folded = other.casefold()
    if other_folded == folded:
      same_letters.append(other)
    elif other_folded[:1] == folded[:1] and len(candidates) < _MAX_CANDIDATES:
      candidates.setdefault(other_folded, other)
  near = difflib.get_close_matches(
    folded, candidates, _MAX_SUGGESTIONS, cutoff=0.75
  )
  near = [candidates[match] for match in near]
  return (same_letters + near)[:_MAX_SUGGESTIONS]
