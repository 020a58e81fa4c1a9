"""The rows with the best scores: of all, or of each word with several the best.

The senses of a word lie close to each other, and those of a near word do too:
as rows they would fill a list of neighbours with one or two words.
"""

from collections.abc import Collection

import numpy as np

from jaxemb.senses import table as senses

# A sense that is hardly ever meant has learned nothing to be shown.
MIN_PRIOR = 0.02


def rows(scores: np.ndarray, excluded: Collection[int], num: int) -> np.ndarray:
  """[at most num] int64, by falling score.

  Args:
    scores: [rows].
    excluded: Rows that are left out.
    num: How many are wanted.
  """
  num_best = min(max(num, 0) + len(excluded), len(scores))
  if num < 1 or not num_best:
    return np.zeros(0, np.int64)
  best = np.argpartition(-scores, num_best - 1)[:num_best]
  best = best[np.lexsort((best, -scores[best]))]
  return best[~np.isin(best, list(excluded))][:num]


def divisors(norms: np.ndarray) -> np.ndarray:
  """Lengths to divide by: 1 in place of 0."""
  return np.where(norms > 0, norms, np.float32(1))


def num_rows(table: senses.Senses | None, num_words: int | None) -> int | None:
  """Rows of the first so many words, whose table is None if each has one."""
  if table is None or num_words is None:
    return num_words
  return int(table.starts[len(table.words[:num_words])])


def rows_of_words(
  scores: np.ndarray,
  table: senses.Senses,
  excluded: Collection[int],
  num: int,
  min_prior: float = 0.0,
) -> np.ndarray:
  """[at most num] int64, by falling score, no two of a word.

  Args:
    scores: [rows], of the first words, see `num_rows`.
    table: Whose they are.
    excluded: Rows that are left out with all others of their words.
    num: How many are wanted.
    min_prior: Senses that are meant more seldom are left out.
  """
  num_words = int(np.searchsorted(table.starts, len(scores)))
  if not num_words:
    return np.zeros(0, np.int64)
  starts = table.starts[: num_words + 1]
  is_rare = table.priors[: len(scores)] < min_prior
  found = np.where(is_rare, -np.inf, scores)
  best = np.maximum.reduceat(found, starts[:-1])
  left_out = {*table.owners(np.array([*excluded], np.int64)).tolist()}
  left_out.update(np.flatnonzero(np.isneginf(best)).tolist())
  return np.array(
    [
      starts[word] + found[starts[word] : starts[word + 1]].argmax()
      for word in rows(best, left_out, num).tolist()
    ],
    np.int64,
  )
