"""Evaluations of one file with the results in the shape that gensim gives."""

import pathlib

import numpy as np
from scipy import stats

from jaxemb import errors
from jaxemb.evaluation import benchmarks, words


def word_pairs(
  path: pathlib.Path | str,
  vocabulary: words.Vocabulary,
  vectors: np.ndarray,
  delimiter: str | None = None,
  count_unknown: bool = False,
) -> tuple[tuple, tuple, float]:
  """Correlates cosines with ratings.

  Args:
    path: A similarity benchmark.
    vocabulary: Of the vectors.
    vectors: [vocab, dim] float32.
    delimiter: Of the fields; None for white space or commas.
    count_unknown: Give pairs with unknown words cosine 0, not leave them out.

  Returns:
    (Pearson's r, p), (Spearman's rho, p), per cent of pairs with an unknown
    word.

  Raises:
    errors.UserError: The file cannot be read, or fewer than two pairs count.
  """
  benchmark = _read_as(benchmarks.Pairs, path, delimiter)
  cosines = words.pair_cosines(benchmark, vocabulary, vectors)
  is_known = ~np.isnan(cosines)
  oov_percent = 100 * float(np.mean(~is_known))
  if count_unknown:
    cosines = np.where(is_known, cosines, np.float32(0))
    is_known[:] = True
  if is_known.sum() < 2:
    raise errors.UserError(
      f'{path}: fewer than two of its {len(is_known)} pairs are in the '
      'vocabulary; check its language and the limit of the vocabulary'
    )
  ratings, cosines = benchmark.ratings[is_known], cosines[is_known]
  pearson = stats.pearsonr(ratings, cosines)
  return pearson, stats.spearmanr(ratings, cosines), oov_percent


def word_analogies(
  path: pathlib.Path | str,
  vocabulary: words.Vocabulary,
  vectors: np.ndarray,
  norms: np.ndarray,
  count_unknown: bool = False,
  similarity_function: str = 'most_similar',
) -> tuple[float, list[dict]]:
  """Answers analogy questions.

  Args:
    path: An analogy benchmark.
    vocabulary: Of the vectors.
    vectors: [vocab, dim] float32.
    norms: [vocab] float32, lengths of the vectors.
    count_unknown: Count questions with unknown words as wrong, not leave them
      out.
    similarity_function: 'most_similar' or 'most_similar_cosmul'. (gensim 4.4
      ignores it and always takes the first.)

  Returns:
    Share answered right, and per section, with 'Total accuracy' last,
    {'section', 'correct', 'incorrect'}: its name and lists of questions.

  Raises:
    errors.UserError: The file cannot be read or holds no analogies.
    ValueError: No such similarity function.
  """
  functions = ('most_similar', 'most_similar_cosmul')
  if similarity_function not in functions:
    raise ValueError(f'similarity_function is one of {", ".join(functions)}')
  measure = functions.index(similarity_function)
  benchmark = _read_as(benchmarks.Analogies, path)
  solved = words.solve_analogies(benchmark, vocabulary, vectors, norms)
  sections = []
  for name, (is_found, is_right) in solved.items():
    section = {'section': name, 'correct': [], 'incorrect': []}
    for i, question in enumerate(benchmark.sections[name]):
      if vocabulary.is_upper:
        question = tuple(word.upper() for word in question)
      if is_found[i] or count_unknown:
        side = 'correct' if is_right[i, measure] else 'incorrect'
        section[side].append(question)
    sections.append(section)
  total = {'section': 'Total accuracy'}
  for side in ('correct', 'incorrect'):
    total[side] = [question for s in sections for question in s[side]]
  num_counted = len(total['correct']) + len(total['incorrect'])
  score = len(total['correct']) / num_counted if num_counted else 0.0
  return score, [*sections, total]


def _read_as(
  kind: type, path: pathlib.Path | str, delimiter: str | None = None
) -> benchmarks.Benchmark:
  benchmark = benchmarks.read(path, delimiter)
  if not isinstance(benchmark, kind):
    raise errors.UserError(f'{path} holds no {kind.__name__.lower()}')
  return benchmark
