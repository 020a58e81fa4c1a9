"""Scores of a file of pairs or questions, with gensim's arguments and results.

`evaluation.words` has the same measures of many files at once.
"""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy  # scipy.stats is loaded when it is used

from jaxemb import errors
from jaxemb.evaluation import benchmarks
from jaxemb.evaluation import words as words_lib

_MEASURES = 'most_similar', 'most_similar_cosmul'  # columns of `solve`


class Vocabulary(NamedTuple):
  """The words that may answer, and how they are compared."""

  words: list[str]  # [vocab], the most frequent first
  vectors: np.ndarray  # [vocab, dim] float32
  restrict_vocab: int | None  # the first ones alone; None or 0 = all
  case_insensitive: bool
  # Items with an unknown word count as cosine 0 or wrong, not as left out.
  dummy4unknown: bool
  # Returns the vector of any other word, or None.
  unseen: Callable[[str], np.ndarray | None] | None = None

  def searched(self) -> words_lib.Searched:
    """Returns the words as benchmarks look them up."""
    return words_lib.Searched(
      words=self.words,
      vectors=self.vectors,
      restrict_vocab=self.restrict_vocab,
      is_upper=self.case_insensitive,
      unseen=self.unseen,
    )


def _read(path, kind, **options):
  benchmark = benchmarks.read(path, **options)
  if benchmark is None or benchmark.kind != kind:
    raise errors.UserError(f'{path} is no benchmark of {kind}')
  return benchmark


def word_pairs(
  vocabulary: Vocabulary,
  pairs: pathlib.Path | str,
  delimiter: str | None = None,
  encoding: str = 'utf-8',
) -> tuple[tuple, tuple, float]:
  """Correlates cosines with the ratings of a similarity benchmark.

  Returns (Pearson's r, p), (Spearman's rho, p) and the percentage of pairs with
  an unknown word. Raises a `UserError` for a file that cannot be read, or if
  fewer than two pairs count.
  """
  benchmark = _read(pairs, 'similarity', delimiter=delimiter, encoding=encoding)
  cosines = vocabulary.searched().pair_cosines(benchmark)
  is_known = ~np.isnan(cosines)
  counts = is_known | vocabulary.dummy4unknown
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
  vocabulary: Vocabulary,
  analogies: pathlib.Path | str,
  similarity_function: str = 'most_similar',
) -> tuple[float, list[dict]]:
  """Answers the questions of an analogy benchmark.

  Returns the fraction answered right, and per section, with 'Total accuracy'
  last, {'section', 'correct', 'incorrect'}: its name and lists of questions.
  Raises a `UserError` for a file that cannot be read or holds no analogies.
  """
  if similarity_function not in _MEASURES:
    raise ValueError(f'similarity_function is one of {", ".join(_MEASURES)}')
  measure = _MEASURES.index(similarity_function)
  benchmark = _read(analogies, 'analogies')
  is_found, is_right = vocabulary.searched().solve(benchmark)
  sections = {
    name: {'section': name, 'correct': [], 'incorrect': []}
    for name in (*benchmark.labels, 'Total accuracy')
  }
  total = sections['Total accuracy']
  for i, question in enumerate(benchmark.words):
    if vocabulary.case_insensitive:
      question = tuple(word.upper() for word in question)
    if is_found[i] or vocabulary.dummy4unknown:
      side = 'correct' if is_right[i, measure] else 'incorrect'
      for section in (sections[benchmark.labels[i]], total):
        section[side].append(question)
  num_right, num_wrong = len(total['correct']), len(total['incorrect'])
  fraction = num_right / max(num_right + num_wrong, 1)
  return fraction, list(sections.values())
