"""The report of a run that made vectors: their neighbors, map and senses.

Words are chosen by frequency and category, never by their neighbours, so that
the page shows typical vectors rather than the best. Words whose vector is zero
or not finite are skipped.
"""

import collections
import dataclasses
import itertools
import math
import types
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from jaxemb import embeddings
from jaxemb.evaluation import benchmarks, geometry
from jaxemb.report import pages

_NUM_WORDS, _NUM_NEIGHBOURS = 36, 8
_NUM_AMBIGUOUS_WORDS, _NUM_SENSE_NEIGHBOURS = 12, 6
_MAX_AMBIGUOUS_CANDIDATES = 500
MAX_SEARCHED, _MAX_SEARCHED_FOR_SENSES = 200_000, 30_000  # words
_NUM_FUNCTION_WORDS = 100
_MAX_MAP_WORDS, _MAX_GROUPS, _NUM_CLUSTERS = 480, 24, 12

Categories = Mapping[str, Sequence[str]]  # words by category; may be empty


def page(
  vectors: embeddings.Embeddings,
  eval_sets: Sequence[benchmarks.Benchmark] = (),
  labels: Categories = types.MappingProxyType({}),
) -> pages.Page:
  """Returns the page of vectors, whose counts are known.

  `eval_sets` and `labels` give the map its categories.
  """
  words, limit = vectors.of_words(), slice(MAX_SEARCHED)
  searched = embeddings.Embeddings(
    words.index_to_key[limit], words.vectors[limit], _counts(words)[limit]
  )
  categories = collections.defaultdict(
    list, {name: [*x] for name, x in labels.items()}
  )
  for benchmark in eval_sets:
    if benchmark.kind == 'categorization':
      for (word,), name in zip(benchmark.words, benchmark.labels, strict=True):
        categories[str(name)].append(word)
  values = {
    'neighbours': neighbours(searched, categories),
    'num_searched': len(searched),
    'ambiguous': ambiguous_words(vectors),
    'map': word_map(searched, categories),
  }
  return pages.Page('words', 'words', values)


def _counts(vectors: embeddings.Embeddings) -> np.ndarray:
  """Returns the counts of vectors, which are known."""
  return cast(np.ndarray, vectors.counts)


class WordMap(NamedTuple):
  """A map of words: by group, (word, count, x, y), most frequent first."""

  groups: dict[str, list[tuple[str, int, float, float]]]
  is_clustered: bool  # groups are clusters rather than categories
  num_groups_omitted: int
  num_words_omitted: int
  explained_variance: float  # fraction that the two axes explain


def _finite(vectors: embeddings.Embeddings) -> embeddings.Embeddings:
  """With zeros, which are not shown, in place of vectors that are not finite.

  A report of what else there is beats none.
  """
  is_finite = np.isfinite(geometry.norms(vectors.vectors))
  if is_finite.all():
    return vectors
  mended = np.where(is_finite[:, None], vectors.vectors, np.float32(0))
  return dataclasses.replace(vectors, vectors=mended)


def _content_rows(vectors: embeddings.Embeddings) -> list[int]:
  """Rows of content words; all rows if words are not spelled out."""
  rows = np.flatnonzero(vectors.norms > 0).tolist()
  first = min(_NUM_FUNCTION_WORDS, len(vectors) // 20)
  spelled = [
    i for i in rows if i >= first and _is_spelled(vectors.index_to_key[i])
  ]
  return spelled if len(spelled) >= 3 else rows


def _is_spelled(word: str) -> bool:
  if len(word) < (3 if word.isascii() else 2):
    return False
  return word.isalpha() or all(unicodedata.category(c)[0] in 'LM' for c in word)


def neighbours(
  vectors: embeddings.Embeddings, categories: Categories
) -> list[tuple[str, int, int, embeddings.Ranked]]:
  """(word, rank from 1, count, its nearest words with cosines) of some words.

  One in each of equal steps of log frequency rank: of the category shown least
  so far; without categories, the most frequent.
  """
  vectors = _finite(vectors)
  rows, words = _content_rows(vectors), vectors.index_to_key
  if not rows:
    return []
  category_of = {w: name for name, x in categories.items() for w in x}
  num_shown: collections.Counter[str | None] = collections.Counter()

  def times_shown(row: int) -> float:
    category = category_of.get(words[row])
    return math.inf if category is None else num_shown[category]

  edges = np.geomspace(rows[0] + 1, rows[-1] + 2, _NUM_WORDS + 1) - 1
  shown = []
  for start, stop in itertools.pairwise(np.searchsorted(rows, edges)):
    if start < stop:
      row = min(rows[start:stop], key=times_shown)
      num_shown[category_of.get(words[row])] += 1
      near = vectors.most_similar(words[row], topn=_NUM_NEIGHBOURS)
      shown.append((words[row], row + 1, int(_counts(vectors)[row]), near))
  return shown


def word_map(
  vectors: embeddings.Embeddings, categories: Categories
) -> WordMap | None:
  """Frequent words by category, or by k-means cluster, on two PCA axes.

  The axes are those of unit vectors; None if there are fewer than three words.
  """
  vectors = _finite(vectors)
  keys = vectors.index_to_key
  row_of = {keys[i]: i for i in np.flatnonzero(vectors.norms > 0).tolist()}
  members = {}  # rows, most frequent first, each in its first category
  for name, words in categories.items():
    if rows := sorted(row_of.pop(word) for word in words if word in row_of):
      members[name] = rows
  names = sorted(members, key=lambda name: -len(members[name]))[:_MAX_GROUPS]
  # The most frequent words of every category in turn.
  by_rank = itertools.zip_longest(*(members[name] for name in names))
  known = [row for rows in by_rank for row in rows if row is not None]
  rows = sorted((known or _content_rows(vectors))[:_MAX_MAP_WORDS])
  if len(rows) < 3:
    return None
  units = geometry.unit(vectors.vectors[rows], vectors.norms[rows])
  if known:
    group_of = {row: name for name in names for row in members[name]}
  else:
    num_clusters = min(_NUM_CLUSTERS, max(1, len(rows) // 4))
    assigned = geometry.cluster(units, num_clusters).tolist()
    # A cluster is named after its most frequent word.
    names = [keys[rows[assigned.index(k)]] for k in assigned]
    group_of = dict(zip(rows, names, strict=True))
  # The padding makes two axes of a single dimension.
  centered = np.pad(units - units.mean(axis=0), ((0, 0), (0, 1)))
  left, scales, _ = np.linalg.svd(centered, full_matrices=False)
  variances = np.square(scales)
  explained = variances[:2].sum() / variances.sum() if variances.any() else 1.0
  positions = (left[:, :2] * scales[:2]).round(4).tolist()
  groups = collections.defaultdict(list)
  for row, position in zip(rows, positions, strict=True):
    point = keys[row], int(_counts(vectors)[row]), *position
    groups[group_of[row]].append(point)
  return WordMap(
    groups=dict(sorted(groups.items())),
    is_clustered=not known,
    num_groups_omitted=max(len(members) - _MAX_GROUPS, 0),
    num_words_omitted=max(len(known) - len(rows), 0),
    explained_variance=float(explained),
  )


def ambiguous_words(
  vectors: embeddings.Embeddings,
) -> list[tuple[str, int, list[tuple[float, list[str]]]]]:
  """(word, count, its senses' priors and nearest words) of frequent words.

  Those with the lowest expected cosine of two senses drawn from their priors.
  """
  table = vectors.sense_table
  if table is None:
    return []
  vectors = _finite(vectors)
  ambiguous = np.flatnonzero(np.diff(table.starts) > 1).tolist()
  candidates = [i for i in ambiguous if table.words[i].isalpha()]

  def expected_cosine(word: int) -> float:
    rows = table.rows(word)
    units = geometry.unit(table.vectors[rows])
    return float(np.square(table.priors[rows] @ units).sum())

  def near(row: int) -> list[str]:
    best = vectors.most_similar(
      vectors.index_to_key[row],
      topn=_NUM_SENSE_NEIGHBOURS,
      restrict_vocab=_MAX_SEARCHED_FOR_SENSES,
      min_prior=geometry.MIN_PRIOR,
    )
    owners = table.owners(
      np.array([vectors.key_to_index[name] for name, _ in best], np.int64)
    )
    return [table.words[i] for i in owners]

  shown = []
  candidates = candidates[:_MAX_AMBIGUOUS_CANDIDATES]
  for word in sorted(candidates, key=expected_cosine)[:_NUM_AMBIGUOUS_WORDS]:
    senses = [
      (float(table.priors[row]), near(row))
      for row in range(table.starts[word], table.starts[word + 1])
      if table.priors[row] >= geometry.MIN_PRIOR
    ]
    shown.append((table.words[word], int(table.counts[word]), senses))
  return shown
