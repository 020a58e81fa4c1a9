"""Errors that a user can cause, apart from bugs.

Every command prints a `UserError` as one line on stderr and exits with its code
(`runtime.process`). Any other exception is a bug and keeps its traceback.
"""

import difflib
import importlib
import numbers
import types
from collections.abc import Sequence

_MAX_COMPARED_WORDS = 200_000
_MAX_CANDIDATES = 5_000
_MAX_SUGGESTIONS = 5


class UserError(Exception):
  """Unusable input or configuration.

  The message is one line: what is wrong, where, and what to do.
  """

  exit_code = 2

  def __init__(self, message: object = ''):
    # Names, and what a file holds, may end lines.
    super().__init__(' '.join(str(message).splitlines()))


class LostError(UserError):
  """A peer exited or this process was stopped; restart all to resume."""

  exit_code = 75


class UnknownWordError(KeyError):
  """A word without a vector; the message suggests similar spellings."""

  def __init__(self, word: object, known: Sequence[str] = ()):
    super().__init__(word)
    self._known = known

  def __str__(self) -> str:
    # Searched only when shown, as many callers just catch the error.
    word = self.args[0]
    message = f'no vector for {word!r} among {len(self._known):,} words'
    if isinstance(word, numbers.Integral):
      return f'{message}; rows by number are `vectors.row(number)`'
    near = _near_spellings(word, self._known) if isinstance(word, str) else []
    return f'{message}; near: {", ".join(near)}' if near else message


def _near_spellings(word: str, known: Sequence[str]) -> list[str]:
  """Returns a few similar frequent words, other cases of the word first."""
  folded = word.casefold()
  spellings: dict[str, list[str]] = {}
  for other in known[:_MAX_COMPARED_WORDS]:
    # Comparing all words would take seconds.
    if abs(len(other) - len(word)) <= 2 and other[:1].casefold() == folded[:1]:
      spellings.setdefault(other.casefold(), []).append(other)
  same = spellings.pop(folded, [])
  near = difflib.get_close_matches(
    folded, list(spellings)[:_MAX_CANDIDATES], _MAX_SUGGESTIONS, cutoff=0.75
  )
  return (same + [spellings[x][0] for x in near])[:_MAX_SUGGESTIONS]


def optional(module: str, extra: str) -> types.ModuleType:
  """Imports a module of an optional package.

  Raises a `UserError` that names the extra if it is missing or does not work.
  """
  try:
    return importlib.import_module(module)
  except ImportError as error:
    raise UserError(
      f'{module.split(".")[0]} is not installed or does not work here '
      f"({one_line(error)}): pip install 'jaxemb[{extra}]'"
    ) from error


def one_line(error: BaseException, max_chars: int = 300) -> str:
  """Returns the message of another library's error in one line."""
  return ' '.join(str(error).split())[:max_chars] or repr(error)
