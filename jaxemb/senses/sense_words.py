"""The words of parts in which words have several rows."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb.merging import parts as parts_lib
from jaxemb.senses import table as senses_lib


class Table(NamedTuple):
  """Which rows of a part are whose; one each, if its words have one vector."""

  words: Sequence[str]  # [vocab]
  starts: np.ndarray  # [vocab + 1] int64
  priors: np.ndarray  # [rows] float32
  seen: np.ndarray | None  # [vocab] int64, by the part; None = not known


@dataclasses.dataclass(frozen=True)
class MeanRows(parts_lib.Rows):
  """Means of senses, weighted by priors, as rows of words."""

  starts: np.ndarray = None
  priors: np.ndarray = None

  def read(self, rows: np.ndarray, out: np.ndarray) -> None:
    """As that of `Rows`; rows are words."""
    array, out[:] = self.open(), 0
    first, has = self.starts[np.maximum(rows, 0)], rows >= 0
    sizes = np.where(has, self.starts[np.maximum(rows, 0) + 1] - first, 0)
    for k in range(int(sizes.max(initial=0))):
      mine = sizes > k
      at = first[mine] + k
      out[mine] += self.priors[at, None] * array[at]


def mean_rows(
  rows: parts_lib.Rows, starts: np.ndarray, priors: np.ndarray
) -> MeanRows:
  """[vocab, dim], of the rows of senses.

  Args:
    rows: [rows, dim].
    starts: [vocab + 1] int64, first row of each word.
    priors: [rows] float32.
  """
  shape = len(starts) - 1, rows.shape[1]
  return MeanRows(shape, rows.open, starts=starts, priors=priors)


class Words(NamedTuple):
  """The words that any part has, the most frequent first."""

  names: list[str]  # [words]
  counts: np.ndarray  # [words] int64; all 1 = not known
  starts: np.ndarray  # [words + 1] int64, rows of the result
  rows: np.ndarray  # [n, words] int64, word of each part; -1 = it has no say
  votes: np.ndarray  # [n, words] float64, what it has to say about the word
  sizes: np.ndarray  # [n, words] int64, its senses of the word
  is_one: bool  # all parts are of one vocabulary, with the same counts


def table(part: parts_lib.Part) -> Table:
  """Whose the rows of a part are."""
  found, counts = part.senses, part.counts
  if found is None:
    num = len(part.words)
    return Table(part.words, np.arange(num + 1), np.ones(num), counts)
  starts = np.asarray(found.starts, np.int64)
  if counts is not None:
    counts = np.maximum.reduceat(counts, starts[:-1])
  return Table(found.words, starts, found.priors, counts)


def unite(
  parts: Sequence[parts_lib.Part], tables: Sequence[Table], by_counts: bool
) -> Words:
  """The words of all parts, with what each has to say about them.

  Args:
    parts: n parts.
    tables: of each, see `table`.
    by_counts: whether parts vote as often as they saw a word, if all know.
  """
  found = parts_lib.unite_words(
    [
      parts_lib.Part(part.name, table.words, part.vectors)
      for part, table in zip(parts, tables, strict=True)
    ]
  )
  rows = found.rows.astype(np.int64)
  seen, is_known = (rows >= 0).astype(np.float64), True
  for i, each in enumerate(tables):
    if each.seen is None:
      is_known = False
    else:
      seen[i] *= each.seen[np.maximum(rows[i], 0)]
  # What nobody saw stays as it began, with all parts.
  seen = np.where(seen.any(0), seen, rows >= 0)
  rows = np.where(seen > 0, rows, -1)
  votes = seen if by_counts and is_known else (rows >= 0).astype(np.float64)
  first = parts[0].senses
  is_one = first is not None and all(_is_like(x, first) for x in parts)
  counts = seen.sum(0).astype(np.int64)
  if is_one:
    counts = np.asarray(first.counts)[rows.max(0)]
    order = np.argsort(rows.max(0))
  elif is_known:
    order = np.argsort(-counts, kind='stable')
  else:
    counts, order = np.ones_like(counts), np.arange(len(counts))
  rows, votes = rows[:, order], votes[:, order]
  sizes = np.zeros_like(rows)
  for i, each in enumerate(tables):
    mine = np.diff(each.starts)[np.maximum(rows[i], 0)]
    sizes[i] = np.where(rows[i] >= 0, mine, 0)
  return Words(
    [found.words[i] for i in order.tolist()],
    counts[order],
    np.append(0, np.cumsum(sizes.max(0))),
    rows,
    votes,
    sizes,
    is_one,
  )


def _is_like(part: parts_lib.Part, first: senses_lib.Senses) -> bool:
  mine = part.senses
  return (
    mine is not None
    and mine.words == first.words
    and np.array_equal(mine.counts, first.counts)
  )


def of_part(values: np.ndarray, rows: np.ndarray, table: Table) -> np.ndarray:
  """[vocab] float64, values of all words for those of a part.

  Args:
    values: [words].
    rows: [words], word of the part, -1 = none.
    table: of the part; 0 where it has no say.
  """
  has, mine = rows >= 0, np.zeros(len(table.words))
  mine[rows[has]] = values[has]
  return mine


def by_row(values: np.ndarray, rows: np.ndarray, table: Table) -> np.ndarray:
  """[rows of the part] float64, what `of_part` gives, for each sense."""
  return np.repeat(of_part(values, rows, table), np.diff(table.starts))


def in_order(words: Words, rows: np.ndarray, table: Table) -> np.ndarray:
  """[rows of the part] int64, of the result if sense k is sense k; -1 = none.

  Args:
    words: of the result.
    rows: [words], word of the part, -1 = none.
    table: of the part.
  """
  has, firsts = rows >= 0, np.full(len(table.words), -1)
  firsts[rows[has]] = words.starts[:-1][has]
  sizes = np.diff(table.starts)
  each = np.repeat(firsts, sizes)
  senses = np.arange(len(each)) - np.repeat(table.starts[:-1], sizes)
  return np.where(each >= 0, each + senses, -1)
