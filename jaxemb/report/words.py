"""What the report shows of the vectors: neighbours of words, and a map.

Words are chosen by rules that do not look at the vectors, so that the page
shows what there is and not what came out well. Words whose vector is zero or
not finite are never shown.
"""

import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxemb.evaluation import clusters
from jaxemb.report import layout

_NUM_NEIGHBOUR_WORDS = 36
_NUM_NEAREST = 8
_MAX_SEARCHED_WORDS = 200_000
_MAX_MAP_WORDS = 480
_MAX_GROUPS = 24
_NUM_CLUSTERS = 12
_NUM_FUNCTION_WORDS = 100
_MIN_TSNE_WORDS = 16
_BLOCK_ROWS = 16384


class Neighbours(NamedTuple):
  """A word and the words nearest to it.

  Attributes:
    word: As in the vocabulary.
    rank: 1 for the most frequent word of all.
    count: Its occurrences in the corpus.
    nearest: (word, cosine), by falling cosine.
  """

  word: str
  rank: int
  count: int
  nearest: list[tuple[str, float]]


class WordMap(NamedTuple):
  """Words placed on a page.

  Attributes:
    words: By falling frequency.
    counts: Occurrences of each word.
    groups: [words] int, the group of each word.
    names: Of the groups.
    positions: [words, 2] float64.
    num_groups_left_out: Categories with words that are not on the map.
    num_words_left_out: Words of the shown categories that are not on it.
    is_clustered: Whether the groups are clusters that we made, named after
      their most frequent word, rather than given categories.
    perplexity: Of t-SNE; None if the layout is that of PCA.
    variance_share: That PCA keeps in two dimensions, whatever the layout.
  """

  words: list[str]
  counts: list[int]
  groups: np.ndarray
  names: list[str]
  positions: np.ndarray
  num_groups_left_out: int
  num_words_left_out: int
  is_clustered: bool
  perplexity: float | None
  variance_share: float


def neighbours(
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray,
  categories: Mapping[str, Sequence[str]],
) -> tuple[list[Neighbours], int]:
  """The nearest words of a few dozen words from all over the vocabulary.

  Args:
    words: [vocab] words, the most frequent first.
    vectors: [vocab, dim] float32; may be memory-mapped.
    counts: [vocab] int64, occurrences in the corpus.
    categories: Words by category; these are preferred.

  Returns:
    The words, the most frequent first, and how many words were searched.
  """
  num_searched = min(len(words), _MAX_SEARCHED_WORDS)
  vectors = vectors[:num_searched]
  norms = _norms(vectors)
  rows = _spread_rows(words[:num_searched], norms, categories)
  found = [
    Neighbours(
      words[row],
      row + 1,
      int(counts[row]),
      [(words[other], cosine) for other, cosine in nearest],
    )
    for row, nearest in zip(rows, _nearest(vectors, norms, rows), strict=True)
  ]
  return found, num_searched


def word_map(
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray,
  categories: Mapping[str, Sequence[str]],
) -> WordMap | None:
  """A map of frequent words by category, or by cluster if there are none.

  Args:
    words: [vocab] words, the most frequent first.
    vectors: [vocab, dim] float32; may be memory-mapped.
    counts: [vocab] int64, occurrences in the corpus.
    categories: Words by category; those not in the vocabulary are skipped.

  Returns:
    The map, or None if fewer than three words can be shown.
  """
  norms = _norms(vectors[:_MAX_SEARCHED_WORDS])
  members = _category_rows(words, norms, categories)
  is_clustered = not members
  if is_clustered:
    rows = _content_rows(words, norms)[:_MAX_MAP_WORDS]
    names, groups = _cluster(words, vectors, norms, rows)
    left_out = (0, 0)
  else:
    names, rows, groups, left_out = _choose(members)
  if len(rows) < 3:
    return None
  directions = vectors[rows] / norms[rows][:, None]
  positions, share = layout.pca(directions)
  perplexity = None
  if len(rows) >= _MIN_TSNE_WORDS:
    perplexity = min(15.0, (len(rows) - 1) / 3)
    positions = layout.tsne(directions, perplexity)
  return WordMap(
    words=[words[row] for row in rows],
    counts=[int(counts[row]) for row in rows],
    groups=groups,
    names=names,
    positions=positions,
    num_groups_left_out=left_out[0],
    num_words_left_out=left_out[1],
    is_clustered=is_clustered,
    perplexity=perplexity,
    variance_share=share,
  )


def _norms(vectors: np.ndarray) -> np.ndarray:
  """[rows] float32 lengths; 0 where a vector is not finite."""
  norms = np.empty(len(vectors), np.float32)
  for start in range(0, len(vectors), _BLOCK_ROWS):
    part = slice(start, start + _BLOCK_ROWS)
    with np.errstate(all='ignore'):
      norms[part] = np.linalg.norm(vectors[part], axis=1)
  return np.where(np.isfinite(norms), norms, 0)


def _content_rows(words: Sequence[str], norms: np.ndarray) -> list[int]:
  """Rows of spelt-out words behind the function words, by frequency.

  All rows if hardly any is spelt out, as when the words are numbers of nodes.
  """
  shown = np.flatnonzero(norms > 0).tolist()
  first = min(_NUM_FUNCTION_WORDS, len(words) // 20)
  spelt = [row for row in shown if row >= first and _is_spelt(words[row])]
  return spelt if len(spelt) >= 3 else shown


def _is_spelt(word: str) -> bool:
  """Letters only, with their marks, and long enough to mean something."""
  if len(word) < (3 if word.isascii() else 2):
    return False
  return word.isalpha() or all(unicodedata.category(c)[0] in 'LM' for c in word)


def _spread_rows(
  words: Sequence[str],
  norms: np.ndarray,
  categories: Mapping[str, Sequence[str]],
) -> list[int]:
  """Rows at equal steps of log frequency rank, by falling frequency.

  From each step the first word of the category shown least so far; without
  one, the most frequent word.
  """
  rows = _content_rows(words, norms)
  if len(rows) <= _NUM_NEIGHBOUR_WORDS:
    return rows
  category_of = {
    word: name for name, members in categories.items() for word in members
  }
  num_shown = dict.fromkeys(categories, 0)
  edges = np.geomspace(rows[0] + 1, rows[-1] + 2, _NUM_NEIGHBOUR_WORDS + 1)
  chosen = []
  for low, high in itertools.pairwise(np.searchsorted(rows, edges - 1)):
    step = [row for row in rows[low:high] if words[row] in category_of]
    if step:
      row = min(step, key=lambda row: num_shown[category_of[words[row]]])
      num_shown[category_of[words[row]]] += 1
      chosen.append(row)
    elif low < high:
      chosen.append(rows[low])
  # Narrow steps hold no word; the most frequent ones not shown fill up.
  spare = (row for row in rows if row not in set(chosen))
  missing = _NUM_NEIGHBOUR_WORDS - len(chosen)
  return sorted([*chosen, *itertools.islice(spare, missing)])


def _nearest(
  vectors: np.ndarray, norms: np.ndarray, rows: Sequence[int]
) -> list[list[tuple[int, float]]]:
  """For each of `rows`, (row, cosine) of the nearest others."""
  if not rows:
    return []
  queries = (vectors[rows] / norms[rows][:, None]).astype(np.float32)
  best_rows = np.zeros((len(rows), 0), np.int64)
  best = np.zeros((len(rows), 0), np.float32)
  for start in range(0, len(vectors), _BLOCK_ROWS):
    lengths = norms[start : start + _BLOCK_ROWS]
    kept = start + np.flatnonzero(lengths > 0)
    cosines = queries @ (vectors[kept] / norms[kept][:, None]).T
    cosines[np.asarray(rows)[:, None] == kept[None, :]] = -np.inf
    best = np.concatenate([best, cosines], axis=1)
    best_rows = np.concatenate(
      [best_rows, np.broadcast_to(kept, cosines.shape)], axis=1
    )
    order = np.argsort(-best, axis=1, kind='stable')[:, :_NUM_NEAREST]
    best = np.take_along_axis(best, order, axis=1)
    best_rows = np.take_along_axis(best_rows, order, axis=1)
  return [
    [
      (int(row), float(cosine))
      for row, cosine in zip(*pair, strict=True)
      if np.isfinite(cosine)
    ]
    for pair in zip(best_rows, best, strict=True)
  ]


def _category_rows(
  words: Sequence[str],
  norms: np.ndarray,
  categories: Mapping[str, Sequence[str]],
) -> dict[str, list[int]]:
  """Rows of the words of each category, by frequency; a word counts once."""
  row_of = {words[row]: row for row in range(len(norms)) if norms[row] > 0}
  members, seen = {}, set()
  for name, category in categories.items():
    rows = sorted({row_of[word] for word in category if word in row_of} - seen)
    seen.update(rows)
    if rows:
      members[name] = rows
  return members


def _choose(
  members: Mapping[str, Sequence[int]],
) -> tuple[list[str], list[int], np.ndarray, tuple[int, int]]:
  """The largest categories, and the most frequent words of each in turn.

  Returns:
    Names of the categories; rows of the words, by frequency; the category of
    each; and how many categories and words are left out.
  """
  by_size = sorted(members, key=lambda name: -len(members[name]))
  names = sorted(by_size[:_MAX_GROUPS])
  turns = itertools.zip_longest(*(members[name] for name in names))
  taken = [
    (row, group)
    for turn in turns
    for group, row in enumerate(turn)
    if row is not None
  ]
  shown = sorted(taken[:_MAX_MAP_WORDS])
  rows = [row for row, _ in shown]
  groups = np.array([group for _, group in shown], np.int64)
  left_out = len(members) - len(names), len(taken) - len(shown)
  return names, rows, groups, left_out


def _cluster(
  words: Sequence[str],
  vectors: np.ndarray,
  norms: np.ndarray,
  rows: Sequence[int],
) -> tuple[list[str], np.ndarray]:
  """k-means clusters of the words, named after the most frequent of each."""
  if not rows:
    return [], np.zeros(0, np.int64)
  directions = (vectors[rows] / norms[rows][:, None]).astype(np.float32)
  num_clusters = min(_NUM_CLUSTERS, max(1, len(rows) // 4))
  assigned = clusters.cluster(directions, num_clusters)
  # In order of the most frequent word; a cluster may have come out empty.
  _, firsts, inverse = np.unique(
    assigned, return_index=True, return_inverse=True
  )
  order = np.argsort(firsts)
  names = [words[rows[first]] for first in firsts[order]]
  return names, np.argsort(order)[inverse]
