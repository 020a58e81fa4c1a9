"""Scores of word vectors: similarity, analogies and categories.

The measures are those of gensim's evaluators, so that scores compare:

- only the first `restrict_vocab` (most frequent) words are used;
- words are compared in upper case; the most frequent spelling has the vector;
- items with a word out of vocabulary are left out and counted;
- Spearman's rank correlation gives ties their mean rank;
- the three words of an analogy question, in any spelling, are no answers
  (gensim looks only at the five nearest words; here it is exact).

Categorization is scored by the purity of clusters: the fraction of words that
belong to the largest category of their cluster.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import benchmarks, geometry

# By kind: title of the score, title and key of the second score.
_KINDS = {
  'similarity': ('Spearman', 'Pearson', 'pearson'),
  'analogies': ('3CosAdd', '3CosMul', 'score_cosmul'),
  'categorization': ('purity', '', ''),
}
_NOTES = {
  'clusters': 'clusters',
  'malformed': 'malformed lines',
  'blank': 'blank words',
  'repeated': 'repeated words',
  'by_subwords': 'with unseen words, by their n-grams',
}


class Searched:
  """The first `restrict_vocab` words (None or 0 = all) and their vectors."""

  def __init__(
    self,
    words: Sequence[str],
    vectors: np.ndarray,
    restrict_vocab: int | None = None,
    is_upper: bool = True,
    unseen: Callable[[str], np.ndarray | None] | None = None,
  ):
    self.vectors = vectors[: restrict_vocab or len(words)]
    self.norms = geometry.norms(self.vectors)
    self.is_upper = is_upper  # whether words are compared in upper case
    self._fold = str.upper if is_upper else str
    self._rows: dict[str, int] = {}
    self._spellings: dict[int, list[int]] = {}  # all rows, by the first
    for row in range(len(self.vectors)):
      first = self._rows.setdefault(self._fold(words[row]), row)
      if first != row:
        self._spellings.setdefault(first, [first]).append(row)
    self._unseen = unseen
    self._is_lower = is_upper and not any(
      x != x.lower() for x in words[: len(self.vectors)]
    )

  def find(
    self, benchmark: benchmarks.Benchmark
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns [items] bool, whether all words are known, and their rows."""
    rows = np.array([
      [self._rows.get(self._fold(x), -1) for x in words]
      for words in benchmark.words
    ])  # fmt: skip
    is_known = np.all(rows >= 0, axis=1)
    return is_known, rows[is_known]

  def pair_cosines(self, benchmark: benchmarks.Benchmark) -> np.ndarray:
    """Returns cosines [pairs] float32; NaN if a word has no vector.

    Words out of vocabulary have those of their n-grams, if there are any.
    A word with itself has exactly 1. (SCWS has 241 such pairs, whose ties
    gensim breaks at random, by rounding errors of 1e-7.)
    """
    units: dict[str, np.ndarray | None] = {}
    for word in {x for pair in benchmark.words for x in pair}:
      vector = self._vector(word)
      units[word] = None if vector is None else geometry.unit_vector(vector)
    cosines = np.full(len(benchmark.words), np.nan, np.float32)
    for i, pair in enumerate(benchmark.words):
      first, second = (units[x] for x in pair)
      if first is not None and second is not None:
        is_same = self._fold(pair[0]) == self._fold(pair[1]) and first.any()
        cosines[i] = 1 if is_same else np.dot(first, second)
    return cosines

  def _vector(self, word: str) -> np.ndarray | None:
    """Returns a word's vector, perhaps of its n-grams; None if it has none."""
    row = self._rows.get(self._fold(word), -1)
    if row >= 0:
      return self.vectors[row]
    if self._unseen is None:
      return None
    # Where no word has capitals, no n-gram with one was trained.
    return self._unseen(word.lower() if self._is_lower else word)

  def solve(
    self, benchmark: benchmarks.Benchmark
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns [questions] bool, known, and [questions, 2] bool, right.

    The columns are 3CosAdd and 3CosMul.
    """
    from jaxemb.evaluation import analogies  # and with it JAX

    is_known, questions = self.find(benchmark)
    is_right = np.zeros((len(is_known), 2), bool)
    is_right[is_known] = analogies.solve(
      self.vectors, self.norms, questions, spellings=self._spellings
    )
    return is_known, is_right


def evaluate(
  words: Sequence[str],
  vectors: np.ndarray,
  eval_sets: Sequence[benchmarks.Benchmark],
  restrict_vocab: int = 300_000,
  unseen: Callable[[str], np.ndarray | None] | None = None,
) -> dict[str, dict]:
  """Scores words [vocab], most frequent first, by vectors [vocab, dim] float32.

  Vectors may be memory-mapped; the first `restrict_vocab` are used (0 = all).
  In similarity other words have the vectors that `unseen` returns, if any, and
  their items count as found.

  Returns:
    By benchmark, ready for JSON: `kind`, `layout`, `score` (None if no item
    was found), `found`, `total`, `oov` (total - found), `malformed` (lines),
    `restrict_vocab`, `vocab` (words searched), and
      similarity: `score` is Spearman's correlation, `pearson`, with `unseen`
        also `by_subwords` (items found by it alone);
      analogies: `score` is the fraction right by 3CosAdd, `score_cosmul` by
        3CosMul; `sections` {name: {`score`, `score_cosmul`, `correct`,
        `found`, `total`}}; of a questions-words file also `semantic` and
        `syntactic` (sections named gram*), shaped as a section;
      categorization: `score` is purity, `clusters`, `blank` and `repeated`
        (rows left out).

  Raises a `UserError` if vectors are not finite.
  """
  searched = Searched(words, vectors, restrict_vocab, unseen=unseen)
  is_finite = np.isfinite(searched.norms)
  if not is_finite.all():
    row = int(is_finite.argmin())
    raise errors.UserError(
      f'cannot evaluate: the vector of {words[row]!r} (row {row}) is not '
      'finite; train again with a lower learning rate'
    )
  results = {}
  for benchmark in eval_sets:
    is_known, _ = searched.find(benchmark)
    num_found, total = int(is_known.sum()), len(is_known)
    results[benchmark.name] = {
      'kind': benchmark.kind,
      'layout': benchmark.layout,
      'found': num_found,
      'total': total,
      'oov': total - num_found,
      'malformed': benchmark.malformed,
      'restrict_vocab': restrict_vocab or len(words),
      'vocab': len(searched.vectors),
      **_MEASURES[benchmark.kind](benchmark, searched),
    }
    if unseen is not None and benchmark.kind == 'similarity':
      _count_unseen(results[benchmark.name], searched, benchmark)
  return results


def _count_unseen(
  result: dict[str, Any], searched: Searched, benchmark: benchmarks.Benchmark
) -> None:
  """Counts items of which words have vectors from n-grams as found."""
  num_found = int((~np.isnan(searched.pair_cosines(benchmark))).sum())
  result['by_subwords'] = num_found - result['found']
  result['found'] = num_found
  result['oov'] = result['total'] - num_found


def correlations(
  ratings: Sequence[float], cosines: np.ndarray
) -> dict[str, float | None]:
  """Returns `score` (Spearman) and `pearson` of cosines [n]; NaN = unknown."""
  is_known = ~np.isnan(cosines)
  both = np.array(ratings)[is_known], cosines[is_known]
  # Correlations are undefined without two different values on each side.
  if any(len(np.unique(x)) < 2 for x in both):
    return {'score': None, 'pearson': None}
  pearson = _pearson(*both)
  return {
    'score': _pearson(*map(_ranks, both)),
    'pearson': pearson if math.isfinite(pearson) else None,
  }


# As of scipy.stats, which takes longer to import than all else here.


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
  """Returns the linear correlation of [n] and [n], NaN if one overflows."""
  centered = [a.astype(np.float64) - a.mean(dtype=np.float64) for a in (x, y)]
  scaled = [a / np.abs(a).max() for a in centered]
  first, second = (a / np.linalg.norm(a) for a in scaled)
  return float(np.clip(np.dot(first, second), -1, 1))


def _ranks(values: np.ndarray) -> np.ndarray:
  """Returns ranks from 1 on, [n] float64; of ties their mean."""
  _, indices, counts = np.unique(
    values, return_inverse=True, return_counts=True
  )
  return (np.cumsum(counts) - (counts - 1) / 2)[indices]


def _analogies(
  benchmark: benchmarks.Benchmark, searched: Searched
) -> dict[str, Any]:
  is_known, is_right = searched.solve(benchmark)
  labels = np.array(benchmark.labels)

  def count(chosen: np.ndarray) -> dict[str, Any]:
    num_found = int(is_known[chosen].sum())
    right = is_right[chosen].sum(axis=0).tolist()
    return {
      'score': right[0] / num_found if num_found else None,
      'score_cosmul': right[1] / num_found if num_found else None,
      'correct': right[0],
      'found': num_found,
      'total': int(chosen.sum()),
    }

  result = count(np.ones(len(labels), bool))
  names = dict.fromkeys(benchmark.labels)
  result['sections'] = {name: count(labels == name) for name in names}
  if benchmark.layout == 'questions-words':
    is_syntactic = np.char.startswith(labels, 'gram')
    result['semantic'] = count(~is_syntactic)
    result['syntactic'] = count(is_syntactic)
  return result


def _categories(
  benchmark: benchmarks.Benchmark, searched: Searched
) -> dict[str, Any]:
  is_known, rows = searched.find(benchmark)
  rows, purity = rows[:, 0], None
  categories = np.array(benchmark.labels)[is_known]
  names, labels = np.unique(categories, return_inverse=True)
  if len(rows):
    units = geometry.unit(searched.vectors[rows], searched.norms[rows])
    clusters = geometry.cluster(units, len(names))
    table = np.zeros((clusters.max() + 1, len(names)), np.int64)
    np.add.at(table, (clusters, labels), 1)
    purity = float(table.max(axis=1).sum() / len(labels))
  return {
    'score': purity,
    'clusters': len(names),
    'blank': benchmark.blank,
    'repeated': benchmark.repeated,
  }


_MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
  'similarity': lambda benchmark, searched: correlations(
    benchmark.labels, searched.pair_cosines(benchmark)
  ),
  'analogies': _analogies,
  'categorization': _categories,
}


def format_table(results: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns lines of text for the results of `evaluate`."""
  limits = (
    'vocabulary limit {restrict_vocab:,}: {vocab:,} words searched, compared '
    'in upper case'
  ).format_map(next(iter(results.values())))
  if not any(result['found'] for result in results.values()):
    return f'{limits}; they have no item of {", ".join(results)}'
  lines = [limits]
  for kind, (title, second_title, second) in _KINDS.items():
    chosen = {n: r for n, r in results.items() if r['kind'] == kind}
    if chosen:
      header = f'{kind:<32} {title:>8} {second_title:>8}   found / total'
      lines += ['', header]
    for name, result in chosen.items():
      lines.append(_line(name, result, second) + _notes(result))
      sections = result.get('sections', {}) if result['found'] else {}
      if sections and 'semantic' in result:
        groups = {f'  {x}': result[x] for x in ('semantic', 'syntactic')}
        shown = {name: x for name, x in groups.items() if x['total']}
        shown |= {f'    {name}': x for name, x in sections.items()}
        lines += [_line(name, x, second) for name, x in shown.items()]
      elif sections:
        lines.append(f'    ({len(sections)} sections: see the JSON file)')
  return '\n'.join(lines)


def _line(name, result, second):
  first, other = (
    '' if not x else 'none' if result[x] is None else f'{result[x]:.4f}'
    for x in ('score', second)
  )
  coverage = f'{result["found"]:,} / {result["total"]:,}'
  return f'{name:<32} {first:>8} {other:>8}   {coverage}'


def _notes(result):
  notes = [f'{result[k]:,} {v}' for k, v in _NOTES.items() if result.get(k)]
  if result['layout'] == 'scws':
    notes.append('contexts not used')
  return f'   ({", ".join(notes)})' if notes else ''
