"""Similarity of words in contexts: the SCWS benchmark (Huang et al. 2012).

Scores are Spearman's correlation of the mean ratings with (Reisinger and Mooney
2010)

  MaxSimC  cosine of the most likely senses of both words in their contexts
  AvgSimC  mean cosine of all pairs of senses, weighted by both posteriors
  AvgSim   mean cosine of all pairs of senses
  MaxSim   largest cosine of a pair of senses
  single   cosine of the means of the senses, weighted by priors
"""

import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import benchmarks, geometry
from jaxemb.evaluation import words as evaluation_words
from jaxemb.senses import table

MEASURES = ('MaxSimC', 'AvgSimC', 'AvgSim', 'MaxSim', 'single')
_NEED_CONTEXTS = ('MaxSimC', 'AvgSimC')
_TOKEN = re.compile(r'[^\W_]+')


class Question(NamedTuple):
  """A pair of SCWS."""

  words: tuple[str, str]
  texts: list[list[str]]  # two, of tokens, with the word itself
  positions: list[int]  # of the words in them
  rating: float


def read_scws(path: pathlib.Path | str) -> list[Question]:
  """Reads lines of 18 tab fields, the word between `<b>` and `</b>`.

  UserError if the file cannot be read, or has no such line.
  """
  try:
    text = pathlib.Path(path).read_bytes().decode('utf-8', errors='replace')
  except OSError as error:
    raise errors.UserError(
      f'cannot read {path}: {error.strerror or error}; check the path'
    ) from error
  questions = list(filter(None, map(_question, text.splitlines())))
  if not questions:
    raise errors.UserError(
      f'{path} is no SCWS file: expected 18 tab fields a line, with the word '
      'between <b> and </b> in fields 6 and 7'
    )
  return questions


def _question(line: str) -> Question | None:
  pair, texts, positions = benchmarks.parse_scws(line), [], []
  for field in line.split('\t')[5:7] if pair else ():
    parts = re.fullmatch('(.*?)<b>(.*?)</b>(.*)', field)
    if parts is None:
      return None
    before, word, after = (
      _TOKEN.findall(re.sub('</?b>', ' ', x)) for x in parts.groups()
    )
    positions.append(len(before))
    # The word may hold several tokens but takes one position.
    texts.append([*before, ''.join(word) or 'x', *after])
  return pair and Question(pair[1], texts, positions, pair[0])


def similarities(
  senses: table.Senses, questions: Sequence[Question], window: int = 0
) -> np.ndarray:
  """[questions, measures] float64; NaN if a word is unknown.

  Contexts are of `window` known words on each side; 0 = that of the vectors.
  """
  result = np.full((len(questions), len(MEASURES)), np.nan)
  for i, question in enumerate(questions):
    words = [
      senses.index.get(x, senses.index.get(x.lower())) for x in question.words
    ]
    if None in words:
      continue
    contexts = [
      senses.context(*x, window) if senses.can_disambiguate else ()
      for x in zip(question.texts, question.positions, strict=True)
    ]
    first, second = map(senses.posterior, words, contexts)
    rows = [senses.rows(word) for word in words]
    vectors = [senses.vectors[x].astype(np.float64) for x in rows]
    means = [senses.priors[x] @ y for x, y in zip(rows, vectors, strict=True)]
    cosines = geometry.unit(vectors[0]) @ geometry.unit(vectors[1]).T
    lengths = [max(np.linalg.norm(x), 1e-30) for x in means]
    result[i] = (
      cosines[first.argmax(), second.argmax()],
      first @ cosines @ second,
      cosines.mean(),
      cosines.max(),
      means[0] @ means[1] / (lengths[0] * lengths[1]),
    )
  # Cosines that differ by rounding only are ties.
  return np.round(result, 6)


def evaluate(
  senses: table.Senses,
  paths: Sequence[pathlib.Path | str],
  window: int = 0,
) -> dict[str, dict]:
  """Scores on SCWS files by `file measure`, in the form of `words.evaluate`.

  Senses that cannot be disambiguated have only the measures without contexts,
  which are of `window` known words on each side; 0 = that of the vectors.
  UserError if a file cannot be read.
  """
  results = {}
  for path in paths:
    questions = read_scws(path)
    ratings = [x.rating for x in questions]
    cosines = similarities(senses, questions, window)
    found = int(np.sum(~np.isnan(cosines[:, 0])))
    for name, column in zip(MEASURES, cosines.T, strict=True):
      if not senses.can_disambiguate and name in _NEED_CONTEXTS:
        continue
      results[f'{pathlib.Path(path).stem} {name}'] = {
        'kind': 'similarity',
        'layout': 'scws-senses',
        **evaluation_words.correlations(ratings, column),
        'found': found,
        'total': len(questions),
        'oov': len(questions) - found,
        'malformed': 0,
        'window': window or senses.window,
      }
  return results
