"""Words shown in the report: nearest neighbours, senses and a map.

Words are chosen by frequency and category, never by their neighbours, so that
the page shows typical vectors rather than the best ones. Words whose vector is
zero or not finite are skipped.
"""

import collections
import itertools
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxemb.evaluation import geometry
from jaxemb.senses import table as senses_lib

_NUM_WORDS, _NUM_NEIGHBOURS = 36, 8
_NUM_AMBIGUOUS_WORDS, _NUM_SENSE_NEIGHBOURS = 12, 6
_MAX_AMBIGUOUS_CANDIDATES = 500
_MAX_SEARCHED_WORDS, _MAX_SEARCHED_SENSES = 200_000, 30_000
_NUM_FUNCTION_WORDS = 100
_MAX_MAP_WORDS, _MAX_GROUPS, _NUM_CLUSTERS = 480, 24, 12

Categories = Mapping[str, Sequence[str]]  # words by category; may be empty


class WordMap(NamedTuple):
  """A map of words: by group, (word, count, x, y), most frequent first."""

  groups: dict[str, list[tuple[str, int, float, float]]]
  is_clustered: bool  # groups are clusters rather than categories
  num_groups_omitted: int
  num_words_omitted: int
  explained_variance: float  # share that the two axes explain


class Table:
  """A vocabulary with its vectors, as far as they are searched."""

  def __init__(
    self, words: Sequence[str], vectors: np.ndarray, counts: np.ndarray
  ):
    """Takes [vocab] words, [vocab, dim] vectors and [vocab] counts."""
    self.words, self.counts = words[:_MAX_SEARCHED_WORDS], counts
    self.vectors = vectors[:_MAX_SEARCHED_WORDS]
    with np.errstate(all='ignore'):
      norms = geometry.norms(self.vectors)
    self.norms = np.where(np.isfinite(norms), norms, 0)

  def units(self, rows: Sequence[int]) -> np.ndarray:
    """[rows, dim] vectors of length 1."""
    return self.vectors[rows] / self.norms[rows, None]

  def content_rows(self) -> list[int]:
    """Rows of content words; all rows if words are not spelled out."""
    rows = np.flatnonzero(self.norms).tolist()
    first = min(_NUM_FUNCTION_WORDS, len(self.words) // 20)
    spelled = [i for i in rows if i >= first and _is_spelled(self.words[i])]
    return spelled if len(spelled) >= 3 else rows


def _is_spelled(word: str) -> bool:
  if len(word) < (3 if word.isascii() else 2):
    return False
  return word.isalpha() or all(unicodedata.category(c)[0] in 'LM' for c in word)


def neighbours(
  table: Table, categories: Categories
) -> list[tuple[str, int, int, list[tuple[str, float]]]]:
  """(word, rank from 1, count, its nearest words with cosines) of some words.

  They are at equal steps of log frequency rank: in each step the word of the
  category shown least so far; without one, the most frequent word.
  """
  rows = table.content_rows()
  if not rows:
    return []
  category_of = {w: name for name, words in categories.items() for w in words}
  num_shown = collections.Counter()  # by category

  def times_shown(row: int) -> float:
    category = category_of.get(table.words[row])
    return math.inf if category is None else num_shown[category]

  edges = np.geomspace(rows[0] + 1, rows[-1] + 2, _NUM_WORDS + 1) - 1
  chosen = []
  for start, stop in itertools.pairwise(np.searchsorted(rows, edges)):
    if start < stop:
      chosen.append(min(rows[start:stop], key=times_shown))
      num_shown[category_of.get(table.words[chosen[-1]])] += 1
  with np.errstate(all='ignore'):
    cosines = table.units(chosen) @ table.vectors.T / table.norms
  cosines = np.where(table.norms > 0, cosines, -np.inf)
  shown = []
  for row, scores in zip(chosen, cosines, strict=True):
    best = geometry.nearest(scores, {row}, _NUM_NEIGHBOURS)
    pairs = [(table.words[i], float(scores[i])) for i in best if table.norms[i]]
    shown.append((table.words[row], row + 1, int(table.counts[row]), pairs))
  return shown


def word_map(table: Table, categories: Categories) -> WordMap | None:
  """Frequent words by category, or by k-means cluster, on two PCA axes.

  The vectors are scaled to length 1 before PCA. None if there are fewer than
  three words to show.
  """
  row_of = {table.words[i]: i for i in np.flatnonzero(table.norms).tolist()}
  members = {}  # rows, most frequent first, each in its first category
  for name, words in categories.items():
    if rows := sorted(row_of.pop(word) for word in words if word in row_of):
      members[name] = rows
  names = sorted(members, key=lambda name: -len(members[name]))[:_MAX_GROUPS]
  # The most frequent words of every category in turn.
  turns = itertools.zip_longest(*(members[name] for name in names))
  known = [row for turn in turns for row in turn if row is not None]
  rows = sorted((known or table.content_rows())[:_MAX_MAP_WORDS])
  if len(rows) < 3:
    return None
  units = table.units(rows).astype(np.float32)
  if known:
    group_of = {row: name for name in names for row in members[name]}
  else:
    num_clusters = min(_NUM_CLUSTERS, max(1, len(rows) // 4))
    assigned = geometry.cluster(units, num_clusters).tolist()
    # A cluster is named after its most frequent word.
    names = [table.words[rows[assigned.index(k)]] for k in assigned]
    group_of = dict(zip(rows, names, strict=True))
  # The padding makes two axes of a single dimension.
  centered = np.pad(units - units.mean(axis=0), ((0, 0), (0, 1)))
  left, scales, _ = np.linalg.svd(centered, full_matrices=False)
  variances = np.square(scales)
  explained = variances[:2].sum() / variances.sum() if variances.any() else 1.0
  positions = (left[:, :2] * scales[:2]).round(4).tolist()
  groups = collections.defaultdict(list)
  for row, position in zip(rows, positions, strict=True):
    point = table.words[row], int(table.counts[row]), *position
    groups[group_of[row]].append(point)
  return WordMap(
    dict(sorted(groups.items())),
    not known,
    max(len(members) - _MAX_GROUPS, 0),
    max(len(known) - len(rows), 0),
    float(explained),
  )


def ambiguous_words(
  table: senses_lib.Senses | None,
) -> list[tuple[str, int, list[tuple[float, list[str]]]]]:
  """(word, count, its senses' priors and nearest words).

  Of the most frequent ambiguous words, those with the lowest expected cosine
  of two senses drawn from their priors.
  """
  if table is None:
    return []
  ambiguous = np.flatnonzero(np.diff(table.starts) > 1).tolist()
  candidates = [i for i in ambiguous if table.words[i].isalpha()]
  units = geometry.unit(table.vectors)
  searched = units[: geometry.num_rows(table, _MAX_SEARCHED_SENSES)]

  def expected_cosine(word: int) -> float:
    rows = table.rows(word)
    return float(np.square(table.priors[rows] @ units[rows]).sum())

  def near(row: int) -> list[str]:
    best = geometry.nearest(
      searched @ units[row], {row}, _NUM_SENSE_NEIGHBOURS, table,
      geometry.MIN_PRIOR,
    )  # fmt: skip
    return [table.words[i] for i in table.owners(best)]

  shown = []
  candidates = candidates[:_MAX_AMBIGUOUS_CANDIDATES]
  for word in sorted(candidates, key=expected_cosine)[:_NUM_AMBIGUOUS_WORDS]:
    senses = [
      (float(table.priors[row]), near(row))
      for row in range(len(units))[table.rows(word)]
      if table.priors[row] >= geometry.MIN_PRIOR
    ]
    shown.append((table.words[word], int(table.counts[word]), senses))
  return shown
