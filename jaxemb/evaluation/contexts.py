"""Similarity of words in contexts: the SCWS benchmark (Huang et al. 2012).

Scores are Spearman's correlation of the mean ratings with (Reisinger and Mooney
2010)

  MaxSimC  cosine of the most likely senses of both words in their contexts
  AvgSimC  mean cosine of all pairs of senses, weighted by both posteriors
  AvgSim   mean cosine of all pairs of senses
  MaxSim   largest cosine of a pair of senses
  single   cosine of the means of the senses, weighted by priors
"""

import re
from collections.abc import Sequence
from typing import cast

import numpy as np

from jaxemb.evaluation import benchmarks, geometry, multivectors
from jaxemb.evaluation import words as words_lib

MEASURES = ('MaxSimC', 'AvgSimC', 'AvgSim', 'MaxSim', 'single')
_NEED_CONTEXTS = ('MaxSimC', 'AvgSimC')
_TOKEN = re.compile(r'[^\W_]+')


def _tokens(context: tuple[str, str, str]) -> tuple[list[str], int]:
  """Returns the tokens of a text, the word itself as one, and its position."""
  before, word, after = (
    _TOKEN.findall(re.sub('</?b>', ' ', x)) for x in context
  )
  # The word takes one position, even if it has several tokens.
  return [*before, ''.join(word) or 'x', *after], len(before)


def similarities(
  senses: multivectors.MultiVectors,
  benchmark: benchmarks.Benchmark,
  window: int = 0,
) -> np.ndarray:
  """Returns similarities [pairs, measures] float64; NaN for unknown words.

  Contexts have `window` known words on each side; 0 = `senses.window`.
  """
  result = np.full((len(benchmark.words), len(MEASURES)), np.nan)
  for i, pair in enumerate(benchmark.words):
    known = [senses.index.get(x, senses.index.get(x.lower())) for x in pair]
    words = [x for x in known if x is not None]
    if len(words) < len(known):
      continue
    contexts = [
      senses.context(*_tokens(x), window) if senses.can_disambiguate else ()
      for x in benchmark.contexts[i]
    ]
    first, second = map(senses.posterior, words, contexts)
    rows = [senses.rows(word) for word in words]
    vectors = [senses.vectors[x].astype(np.float64) for x in rows]
    means = [senses.priors[x] @ y for x, y in zip(rows, vectors, strict=True)]
    cosines = geometry.unit(vectors[0]) @ geometry.unit(vectors[1]).T
    lengths = [max(float(np.linalg.norm(x)), 1e-30) for x in means]
    result[i] = (
      cosines[first.argmax(), second.argmax()],
      first @ cosines @ second,
      cosines.mean(),
      cosines.max(),
      means[0] @ means[1] / (lengths[0] * lengths[1]),
    )
  # Cosines that differ only by rounding are ties.
  return np.round(result, 6)


def evaluate(
  senses: multivectors.MultiVectors,
  eval_sets: Sequence[benchmarks.Benchmark],
  window: int = 0,
) -> dict[str, dict]:
  """Returns scores on SCWS files by `file measure`, as `words.evaluate` does.

  Skips benchmarks without contexts, and measures that need contexts if the
  senses cannot be disambiguated. `window` is that of `similarities`.
  """
  results = {}
  for benchmark in eval_sets:
    if not benchmark.contexts:
      continue
    cosines = similarities(senses, benchmark, window)
    num_found = int(np.sum(~np.isnan(cosines[:, 0])))
    for name, column in zip(MEASURES, cosines.T, strict=True):
      if not senses.can_disambiguate and name in _NEED_CONTEXTS:
        continue
      results[f'{benchmark.path.stem} {name}'] = {
        'kind': 'similarity',
        'layout': 'scws-senses',
        **words_lib.correlations(cast(list[float], benchmark.labels), column),
        'found': num_found,
        'total': len(column),
        'oov': len(column) - num_found,
        'malformed': benchmark.malformed,
        'window': window or senses.window,
      }
  return results
