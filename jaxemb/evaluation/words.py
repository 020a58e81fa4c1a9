"""Scores of word vectors: similarity, analogies and categories.

The measures are those of gensim's evaluators, so that scores compare:

- only the `restrict_vocab` first (most frequent) words count;
- words are compared in upper case, the most frequent spelling has the vector;
- items with a word out of vocabulary are left out, and counted;
- Spearman's rank correlation gives ties their mean rank;
- the three words of an analogy question, in any spelling, are no answers
  (gensim looks at the five nearest words for this; here it is exact).

Categorization is scored by the purity of clusters: the fraction of words that
belong to the largest category of their cluster.
"""

import logging
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import analogies, benchmarks, geometry

_LOG = logging.getLogger(__name__)
# Of each kind: title, and the key of the second score.
_KINDS = {
  'similarity': ('Spearman', 'Pearson', 'pearson'),
  'analogies': ('3CosAdd', '3CosMul', 'score_cosmul'),
  'categorization': ('purity', '', ''),
}


class Searched(NamedTuple):
  """The words that an evaluation knows, with their vectors."""

  vectors: np.ndarray  # [size, dim] float32
  norms: np.ndarray  # [size] float32
  rows: dict[str, int]  # first row of each word, as compared
  spellings: dict[int, list[int]]  # all rows of a word with several, by first
  is_upper: bool  # words are compared in upper case

  def find(self, words: Sequence[str]) -> list[int] | None:
    """Rows of the words, or None if one is out of vocabulary."""
    if self.is_upper:
      words = [word.upper() for word in words]
    rows = [self.rows.get(word, -1) for word in words]
    return None if -1 in rows else rows


def search(
  words: Sequence[str],
  vectors: np.ndarray,
  restrict_vocab: int | None = None,
  case_insensitive: bool = True,
) -> Searched:
  """Indexes the first `restrict_vocab` words; all if None or 0."""
  rows, spellings = {}, {}
  vectors = vectors[: restrict_vocab or len(words)]
  for row in range(len(vectors)):
    word = words[row].upper() if case_insensitive else words[row]
    first = rows.setdefault(word, row)
    if first != row:
      spellings.setdefault(first, [first]).append(row)
  norms = geometry.norms(vectors)
  return Searched(vectors, norms, rows, spellings, case_insensitive)


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
    paths: files, and folders that are walked in sorted order; files of unknown
      layout are named in one line of the log.
    restrict_vocab: number of most frequent words that count; 0 for all.

  Returns:
    By benchmark, ready for JSON: `kind`, `layout`, `score` (None if no item
    was found), `found`, `total`, `oov` (total - found), `malformed` (lines),
    `restrict_vocab`, `vocab` (words searched), and
      similarity: `score` is Spearman's correlation, `pearson`;
      analogies: `score` is the fraction right by 3CosAdd, `score_cosmul` by
        3CosMul; `sections` {name: {`score`, `score_cosmul`, `correct`,
        `found`, `total`}}; of a questions-words file also `semantic` and
        `syntactic` (sections named gram*), shaped as a section;
      categorization: `score` is purity, `clusters`, `blank` and `repeated`
        (rows left out).

  Raises:
    errors.UserError: a path is missing, nothing was recognised, or vectors
      are not finite.
  """
  found, unknown = benchmarks.find(paths)
  if unknown:
    names = ', '.join(path.name for path in unknown)
    _LOG.warning(
      'skipped %d file(s) of unknown layout: %s', len(unknown), names
    )
  searched = search(words, vectors, restrict_vocab)
  is_finite = np.isfinite(searched.norms)
  if not is_finite.all():
    row = int(is_finite.argmin())
    raise errors.UserError(
      f'cannot evaluate: the vector of {words[row]!r} (row {row}) is not '
      'finite; train again with a lower learning rate'
    )
  measures = {
    benchmarks.Pairs: _evaluate_pairs,
    benchmarks.Analogies: _evaluate_analogies,
    benchmarks.Categories: _evaluate_categories,
  }
  results = {}
  for benchmark in found:
    result = measures[type(benchmark)](benchmark, searched)
    results[benchmark.name] = result | {
      'layout': benchmark.layout,
      'oov': result['total'] - result['found'],
      'malformed': benchmark.malformed,
      'restrict_vocab': restrict_vocab or len(words),
      'vocab': len(searched.vectors),
    }
  return results


def pair_cosines(benchmark: benchmarks.Pairs, searched: Searched) -> np.ndarray:
  """[pairs] float32 cosine of each pair; NaN if a word is out of vocabulary.

  A word with itself has exactly 1. (SCWS holds 241 such pairs; gensim leaves
  them to rounding errors of 1e-7, which break their ties at random.)
  """
  units = {}
  cosines = np.full(len(benchmark.pairs), np.nan, np.float32)
  for i, pair in enumerate(benchmark.pairs):
    found = searched.find(pair)
    if found is None:
      continue
    for row in found:
      if row not in units:
        units[row] = geometry.unit_vector(searched.vectors[row])
    cosine = np.dot(units[found[0]], units[found[1]])
    cosines[i] = 1 if found[0] == found[1] and cosine > 0 else cosine
  return cosines


def solve_analogies(
  benchmark: benchmarks.Analogies, searched: Searched
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """By section: found, [questions] bool, and right, [questions, 2] bool.

  `right` is by 3CosAdd and by 3CosMul, and False for what was not found.
  """
  every = [q for section in benchmark.sections.values() for q in section]
  questions = [searched.find(question) for question in every]
  found = np.array([x is not None for x in questions], bool)
  right = np.zeros((len(every), 2), bool)
  right[found] = analogies.solve(
    searched.vectors,
    searched.norms,
    np.array([x for x in questions if x], np.int64).reshape(-1, 4),
    searched.spellings,
  )
  ends = np.cumsum([len(section) for section in benchmark.sections.values()])
  sections = zip(
    np.split(found, ends[:-1]), np.split(right, ends[:-1]), strict=True
  )
  return dict(zip(benchmark.sections, sections, strict=True))


def _evaluate_pairs(
  benchmark: benchmarks.Pairs, searched: Searched
) -> dict[str, Any]:
  from scipy import stats  # takes a third of a second

  cosines = pair_cosines(benchmark, searched)
  is_found = ~np.isnan(cosines)
  ratings, cosines = benchmark.ratings[is_found], cosines[is_found]
  score = pearson = None
  # Without two different values on each side no correlation is defined.
  if len(set(ratings)) > 1 and len(set(cosines.tolist())) > 1:
    score = float(stats.spearmanr(ratings, cosines)[0])
    pearson = float(stats.pearsonr(ratings, cosines)[0])
    pearson = pearson if math.isfinite(pearson) else None
  return {
    'kind': 'similarity',
    'score': score,
    'pearson': pearson,
    'found': len(ratings),
    'total': len(is_found),
  }


def _evaluate_analogies(
  benchmark: benchmarks.Analogies, searched: Searched
) -> dict[str, Any]:
  solved = solve_analogies(benchmark, searched)
  result = {'kind': 'analogies', **_add_up([*solved.values()])}
  result['sections'] = {name: _add_up([x]) for name, x in solved.items()}
  if benchmark.layout == 'questions-words':
    for group, is_syntactic in (('semantic', False), ('syntactic', True)):
      result[group] = _add_up(
        [x for n, x in solved.items() if n.startswith('gram') == is_syntactic]
      )
  return result


def _add_up(sections: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
  num_found = sum(int(found.sum()) for found, _ in sections)
  right = sum((x.sum(axis=0) for _, x in sections), np.zeros(2, int)).tolist()
  return {
    'score': right[0] / num_found if num_found else None,
    'score_cosmul': right[1] / num_found if num_found else None,
    'correct': right[0],
    'found': num_found,
    'total': sum(len(found) for found, _ in sections),
  }


def _evaluate_categories(
  benchmark: benchmarks.Categories, searched: Searched
) -> dict[str, Any]:
  members = {}
  for word, category in benchmark.categories.items():
    found = searched.find([word])
    if found is not None:
      members[found[0]] = category
  names, labels = np.unique([*members.values()], return_inverse=True)
  purity = None
  if members:
    chosen = np.array([*members])
    clusters = geometry.cluster(
      geometry.unit(searched.vectors[chosen], searched.norms[chosen]),
      len(names),
    )
    table = np.zeros((len(names), len(names)), np.int64)
    np.add.at(table, (clusters, labels), 1)
    purity = float(table.max(axis=1).sum() / len(labels))
  return {
    'kind': 'categorization',
    'score': purity,
    'found': len(members),
    'total': len(benchmark.categories),
    'clusters': len(names),
    'blank': benchmark.blank,
    'repeated': benchmark.repeated,
  }


def format_table(results: dict[str, dict]) -> str:
  """Lines of text for the results of `evaluate`, by benchmark and section."""
  first = next(iter(results.values()))
  lines = [
    f'vocabulary limit {first["restrict_vocab"]:,}: {first["vocab"]:,} words '
    'searched, compared in upper case'
  ]
  if not any(result['found'] for result in results.values()):
    return f'{lines[0]}; they have no item of {", ".join(results)}'
  for kind, (title, second_title, second) in _KINDS.items():
    chosen = {n: r for n, r in results.items() if r['kind'] == kind}
    if chosen:
      header = f'{kind:<32} {title:>8} {second_title:>8}   found / total'
      lines += ['', header]
    for name, result in chosen.items():
      lines.append(_line(name, result, second) + _notes(result))
      lines += _section_lines(result, second) if result['found'] else []
  return '\n'.join(lines)


def _section_lines(result: dict[str, Any], second: str) -> Iterator[str]:
  for group in ('semantic', 'syntactic'):
    if result.get(group, {}).get('total'):
      yield _line(f'  {group}', result[group], second)
  sections = result.get('sections', {})
  if 'semantic' in result:
    for name, section in sections.items():
      yield _line(f'    {name}', section, second)
  elif sections:
    yield f'    ({len(sections)} sections: see the JSON file)'


def _line(name: str, result: dict[str, Any], second: str) -> str:
  first, other = (
    '' if not x else 'none' if result[x] is None else f'{result[x]:.4f}'
    for x in ('score', second)
  )
  coverage = f'{result["found"]:,} / {result["total"]:,}'
  return f'{name:<32} {first:>8} {other:>8}   {coverage}'


def _notes(result: dict[str, Any]) -> str:
  titles = {
    'malformed': 'malformed lines',
    'blank': 'blank words',
    'repeated': 'repeated words',
  }
  notes = [f'{result[k]:,} {v}' for k, v in titles.items() if result.get(k)]
  if result['layout'] == 'scws':
    notes.append('contexts not used')
  if 'clusters' in result:
    notes.insert(0, f'{result["clusters"]} clusters')
  return f'   ({", ".join(notes)})' if notes else ''
