"""Which rows of the table of senses are whose: one for each sense of a word."""

import dataclasses

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
