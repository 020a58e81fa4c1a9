"""Scores of a file of pairs or questions, with gensim's arguments and results.

`evaluation.words` has the same measures of many files at once.
"""

import pathlib

import numpy as np
import scipy  # scipy.stats is loaded when it is used

from jaxemb import errors
from jaxemb.evaluation import benchmarks
from jaxemb.evaluation import words as words_lib

_MEASURES = 'most_similar', 'most_similar_cosmul'  # columns of `solve`


def _read(path, kind, **options):
  benchmark = benchmarks.read(path, **options)
  if benchmark is None or benchmark.kind != kind:
    raise errors.UserError(f'{path} is no benchmark of {kind}')
  return benchmark


def word_pairs(
  searched: words_lib.Searched,
  pairs: pathlib.Path | str,
  delimiter: str | None = None,
  encoding: str = 'utf-8',
  counts_unknown: bool = False,
) -> tuple[tuple, tuple, float]:
  """Correlates cosines with the ratings of a similarity benchmark.

  Returns (Pearson's r, p), (Spearman's rho, p) and the percentage of pairs with
  an unknown word, which are left out or, with `counts_unknown`, have cosine 0.
  Raises a `UserError` for a file that cannot be read, or if fewer than two
  pairs count.
  """
  benchmark = _read(pairs, 'similarity', delimiter=delimiter, encoding=encoding)
  cosines = searched.pair_cosines(benchmark)
  is_known = ~np.isnan(cosines)
  counts = is_known | counts_unknown
  if counts.sum() < 2:
    raise errors.UserError(
      f'{pairs}: fewer than two of its {len(counts)} pairs are in the '
      'vocabulary; check its language and the limit of the vocabulary'
    )
  both = np.array(benchmark.labels)[counts], np.nan_to_num(cosines)[counts]
  unknown_percent = 100 * float(np.mean(~is_known))
  return (
    scipy.stats.pearsonr(*both),
    scipy.stats.spearmanr(*both),
    unknown_percent,
  )


def word_analogies(
  searched: words_lib.Searched,
  analogies: pathlib.Path | str,
  measure: str = 'most_similar',
  counts_unknown: bool = False,
) -> tuple[float, list[dict]]:
  """Answers the questions of an analogy benchmark.

  Returns the fraction answered right, and per section, with 'Total accuracy'
  last, {'section', 'correct', 'incorrect'}: its name and lists of questions.
  Those with an unknown word are left out or, with `counts_unknown`, wrong.
  Raises a `UserError` for a file that cannot be read or holds no analogies.
  """
  if measure not in _MEASURES:
    raise ValueError(f'similarity_function is one of {", ".join(_MEASURES)}')
  column = _MEASURES.index(measure)
  benchmark = _read(analogies, 'analogies')
  is_known, is_right = searched.solve(benchmark)
  sections = {
    name: {'section': name, 'correct': [], 'incorrect': []}
    for name in (*benchmark.labels, 'Total accuracy')
  }
  total = sections['Total accuracy']
  for i, question in enumerate(benchmark.words):
    if searched.is_upper:
      question = tuple(word.upper() for word in question)
    if is_known[i] or counts_unknown:
      side = 'correct' if is_right[i, column] else 'incorrect'
      for section in (sections[benchmark.labels[i]], total):
        section[side].append(question)
  num_right, num_wrong = len(total['correct']), len(total['incorrect'])
  fraction = num_right / max(num_right + num_wrong, 1)
  return fraction, list(sections.values())
