"""How good word vectors are: similarity, analogies, categories.

The measures are those of gensim's evaluators, so that figures compare:

- only the `restrict_vocab` first (most frequent) words count;
- words are compared in upper case, the most frequent spelling has the vector;
- items with a word out of vocabulary are left out, and counted;
- Spearman's rank correlation shares ranks among ties;
- the three words of an analogy question, in any spelling, are no answers
  (gensim looks at the five nearest words for this; here it is exact).
"""

import logging
import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import linalg, stats

from jaxemb import errors
from jaxemb.evaluation import analogies, benchmarks, clusters, nearest

_LOG = logging.getLogger(__name__)
_BLOCK_ROWS = 8192


class Vocabulary(NamedTuple):
  """The words that an evaluation knows.

  Attributes:
    rows: First row of each word, by the word as compared.
    spellings: All rows of a word by its first row, if it has several.
    size: Number of rows searched.
    is_upper: Whether words are compared in upper case.
  """

  rows: dict[str, int]
  spellings: dict[int, list[int]]
  size: int
  is_upper: bool

  def find(self, words: Sequence[str]) -> list[int] | None:
    """Rows of the words, or None if one is out of vocabulary."""
    if self.is_upper:
      words = [word.upper() for word in words]
    rows = [self.rows.get(word, -1) for word in words]
    return None if -1 in rows else rows


def index_vocabulary(
  words: Sequence[str],
  restrict_vocab: int | None = None,
  case_insensitive: bool = True,
) -> Vocabulary:
  """Looks at the first `restrict_vocab` words, or at all if None or 0."""
  rows, spellings = {}, {}
  size = min(restrict_vocab or len(words), len(words))
  for row in range(size):
    word = words[row].upper() if case_insensitive else words[row]
    first = rows.setdefault(word, row)
    if first != row:
      spellings.setdefault(first, [first]).append(row)
  return Vocabulary(rows, spellings, size, case_insensitive)


def evaluate(
  words: Sequence[str],
  vectors: np.ndarray,
  paths: Sequence[pathlib.Path | str],
  restrict_vocab: int = 300_000,
) -> dict[str, dict]:
  """Evaluates word vectors on every benchmark in files and folders.

  Args:
    words: [vocab] words, the most frequent first.
    vectors: [vocab, dim] float32, finite; may be memory-mapped.
    paths: Files, or folders that are walked in sorted order; files of unknown
      layout are named in one line of the log.
    restrict_vocab: Number of most frequent words that count; 0 for all.

  Returns:
    By benchmark, ready for JSON: `kind`, `layout`, `score` (None if nothing
    was found), `found`, `total`, `oov` (total - found), `malformed` (lines),
    `restrict_vocab`, `vocab` (words searched), and
      similarity: `score` is Spearman's correlation, `pearson`;
      analogies: `score` is the share right by 3CosAdd, `score_cosmul` by
        3CosMul; `sections` {name: {`score`, `score_cosmul`, `correct`,
        `found`, `total`}}; of a questions-words file also `semantic` and
        `syntactic` (sections named gram*), shaped as a section;
      categorization: `score` is purity, `clusters`, `blank` and `repeated`
        (rows left out).

  Raises:
    errors.UserError: A path is missing, nothing was recognised, or vectors
      are not finite.
  """
  found, skipped = benchmarks.find(paths)
  if skipped:
    names = ', '.join(path.name for path in skipped)
    _LOG.warning(
      'skipped %d file(s) of unknown layout: %s', len(skipped), names
    )
  vocabulary = index_vocabulary(words, restrict_vocab)
  vectors = vectors[: vocabulary.size]
  norms = row_norms(vectors)
  if not np.isfinite(norms).all():
    row = int(np.argmin(np.isfinite(norms)))
    raise errors.UserError(
      f'cannot evaluate: the vector of {words[row]!r} (row {row}) is not '
      'finite; train again with a lower learning rate'
    )
  common = {
    'restrict_vocab': restrict_vocab or len(words),
    'vocab': vocabulary.size,
  }
  measures = {
    benchmarks.Pairs: _evaluate_pairs,
    benchmarks.Analogies: _evaluate_analogies,
    benchmarks.Categories: _evaluate_categories,
  }
  return {
    benchmark.name: measures[type(benchmark)](
      benchmark, vocabulary, vectors, norms
    )
    | common
    for benchmark in found
  }


def row_norms(vectors: np.ndarray) -> np.ndarray:
  """[rows] float32 lengths of [rows, dim] vectors, in bounded memory."""
  norms = np.empty(len(vectors), np.float32)
  for start in range(0, len(vectors), _BLOCK_ROWS):
    part = slice(start, start + _BLOCK_ROWS)
    norms[part] = np.linalg.norm(vectors[part], axis=1)
  return norms


def unit_vector(vector: np.ndarray) -> np.ndarray:
  """A [dim] float32 vector at length 1, or as it is if its length is 0.

  In double precision by BLAS, rounded at the end, as gensim does it: cosines,
  and with them ranks, then agree to the last bit.
  """
  exact = np.asarray(vector, np.float64)
  length = linalg.blas.dnrm2(exact) if exact.size else 0.0
  scale = 1.0 / length if length else 1.0
  return (exact * scale).astype(np.float32)


def pair_cosines(
  benchmark: benchmarks.Pairs, vocabulary: Vocabulary, vectors: np.ndarray
) -> np.ndarray:
  """[pairs] float32 cosine of each pair; NaN if a word is out of vocabulary.

  A word with itself has exactly 1. (SCWS holds 241 such pairs; gensim leaves
  them to rounding errors of 1e-7, which break their ties at random.)
  """
  unit_vectors = {}

  def unit(row: int) -> np.ndarray:
    if row not in unit_vectors:
      unit_vectors[row] = unit_vector(vectors[row])
    return unit_vectors[row]

  cosines = np.full(len(benchmark.pairs), np.nan, np.float32)
  for i, pair in enumerate(benchmark.pairs):
    rows = vocabulary.find(pair)
    if rows is not None:
      cosine = np.dot(unit(rows[0]), unit(rows[1]))
      is_same = rows[0] == rows[1] and cosine > 0
      cosines[i] = 1 if is_same else cosine
  return cosines


def solve_analogies(
  benchmark: benchmarks.Analogies,
  vocabulary: Vocabulary,
  vectors: np.ndarray,
  norms: np.ndarray,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """By section: found, [questions] bool, and right, [questions, 2] bool.

  `right` is by 3CosAdd and by 3CosMul, and False for what was not found.
  """
  every = [q for section in benchmark.sections.values() for q in section]
  rows = [vocabulary.find(question) for question in every]
  found = np.array([row is not None for row in rows], bool)
  right = np.zeros((len(every), 2), bool)
  known = np.array([row for row in rows if row is not None], np.int64)
  right[found] = analogies.solve(
    vectors[: vocabulary.size],
    norms[: vocabulary.size],
    known.reshape(-1, 4),
    vocabulary.spellings,
  )
  ends = np.cumsum([len(section) for section in benchmark.sections.values()])
  parts = zip(
    np.split(found, ends[:-1]), np.split(right, ends[:-1]), strict=True
  )
  return dict(zip(benchmark.sections, parts, strict=True))


def _evaluate_pairs(
  benchmark: benchmarks.Pairs,
  vocabulary: Vocabulary,
  vectors: np.ndarray,
  norms: np.ndarray,
) -> dict:
  del norms
  cosines = pair_cosines(benchmark, vocabulary, vectors)
  is_found = ~np.isnan(cosines)
  ratings, cosines = benchmark.ratings[is_found], cosines[is_found]
  # Without two different values on each side no correlation is defined.
  is_defined = len(set(ratings)) > 1 and len(set(cosines.tolist())) > 1
  score = pearson = None
  if is_defined:
    score = float(stats.spearmanr(ratings, cosines)[0])
    pearson = _finite(stats.pearsonr(ratings, cosines)[0])
  return {
    'kind': 'similarity',
    'layout': benchmark.layout,
    'score': score,
    'pearson': pearson,
    **_coverage(len(ratings), len(is_found)),
    'malformed': benchmark.malformed,
  }


def _evaluate_analogies(
  benchmark: benchmarks.Analogies,
  vocabulary: Vocabulary,
  vectors: np.ndarray,
  norms: np.ndarray,
) -> dict:
  solved = solve_analogies(benchmark, vocabulary, vectors, norms)
  total = _section_result(list(solved.values()))
  result = {
    'kind': 'analogies',
    'layout': benchmark.layout,
    **total,
    **_coverage(total['found'], total['total']),
    'malformed': benchmark.malformed,
    'sections': {
      name: _section_result([part]) for name, part in solved.items()
    },
  }
  if benchmark.layout == 'questions-words':
    for group, is_syntactic in (('semantic', False), ('syntactic', True)):
      result[group] = _section_result(
        [
          part
          for name, part in solved.items()
          if name.startswith('gram') == is_syntactic
        ]
      )
  return result


def _section_result(parts: list[tuple[np.ndarray, np.ndarray]]) -> dict:
  num_found = sum(int(found.sum()) for found, _ in parts)
  num_right = sum((right.sum(axis=0) for _, right in parts), np.zeros(2, int))
  return {
    'score': int(num_right[0]) / num_found if num_found else None,
    'score_cosmul': int(num_right[1]) / num_found if num_found else None,
    'correct': int(num_right[0]),
    'found': num_found,
    'total': sum(len(found) for found, _ in parts),
  }


def _evaluate_categories(
  benchmark: benchmarks.Categories,
  vocabulary: Vocabulary,
  vectors: np.ndarray,
  norms: np.ndarray,
) -> dict:
  members = {}
  for word, category in benchmark.categories.items():
    rows = vocabulary.find([word])
    if rows is not None:
      members[rows[0]] = category
  rows = np.array(list(members), np.int64)
  names, labels = np.unique(list(members.values()), return_inverse=True)
  lengths = nearest.divisors(norms[rows])
  points = vectors[rows].astype(np.float32) / lengths[:, None]
  return {
    'kind': 'categorization',
    'layout': benchmark.layout,
    'score': clusters.purity(points, labels) if members else None,
    **_coverage(len(members), len(benchmark.categories)),
    'clusters': len(names),
    'malformed': benchmark.malformed,
    'blank': benchmark.blank,
    'repeated': benchmark.repeated,
  }


def _coverage(num_found: int, num_total: int) -> dict:
  return {'found': num_found, 'total': num_total, 'oov': num_total - num_found}


def _finite(value: float) -> float | None:
  return float(value) if math.isfinite(value) else None
