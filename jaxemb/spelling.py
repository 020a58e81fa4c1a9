"""The error for a word without a vector, with words spelled nearly the same."""

import difflib
from collections.abc import Sequence

_MAX_COMPARED_WORDS = 200_000
_MAX_CANDIDATES = 5_000
_MAX_SUGGESTIONS = 5


class UnknownWordError(KeyError):
  """A word without a vector; the message names it and near spellings."""

  def __init__(self, word: object, known: Sequence[str] = ()):
    super().__init__(word)
    self._known = known

  def __str__(self) -> str:
    # Looked up only when shown: many callers just catch the error.
    word = self.args[0]
    message = f'no vector for {word!r} among {len(self._known):,} words'
    near = near_spellings(word, self._known) if isinstance(word, str) else []
    return f'{message}; near: {", ".join(near)}' if near else message


def near_spellings(word: str, known: Sequence[str]) -> list[str]:
  """Known words like this one, other cases of it first.

  Args:
    word: Any word.
    known: [vocab] words, the most frequent first; only words of nearly the
      same length and the same first letter are compared, and of those only the
      most frequent, so that this takes a fraction of a second.

  Returns:
    At most five words.
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
