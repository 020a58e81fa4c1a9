"""Words with several vectors: which sense is meant, and how well they do.

Of a word w with senses v_k and priors pi_k among words o_1, o_2, ... the
posterior of a sense is (Tian et al. 2014, eq. 9)

  p(k | w, c) = softmax_k( log pi_k + sum_{o in c} log P(o | w, k) )

the way in which senses were trained: each of them predicts the words around it.
Where they were trained by what the words around mean, so is the posterior:

  p(k | w, c) = softmax_k( log pi_k - kappa |x(c) - m_k|^2 )

with the mean x of the context's words (`models.context_mixture`).
The context c is the known words up to `window` before and behind w, of all the
sentences that are given, words without a vector not counted.

Scores of SCWS (Huang et al. 2012; Reisinger and Mooney 2010), Spearman's
correlation of the mean ratings with

  MaxSimC  cosine of the most likely senses of both words in their contexts
  AvgSimC  mean cosine of all pairs of senses, weighted by both posteriors
  AvgSim   the same without contexts, all senses alike
  MaxSim   largest cosine of any two senses
  single   cosine of the means of the senses, weighted by priors
"""

import dataclasses
import functools
import math
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import benchmarks
from jaxemb.ops import huffman
from jaxemb.senses import texts

MEASURES = ('MaxSimC', 'AvgSimC', 'AvgSim', 'MaxSim', 'single')
_OF_CONTEXTS = ('MaxSimC', 'AvgSimC')
_TOKEN = re.compile(r'[^\W_]+')


class Contexts(NamedTuple):
  """What tells the senses of `models.context_mixture`."""

  means: np.ndarray  # [rows, dim] float32, of contexts; 0 where one sense is
  concentration: float  # of contexts around them
  half_weight: float  # share of the text of a word that weighs half in them


@dataclasses.dataclass(frozen=True, eq=False)
class Senses:
  """Words, the rows of their senses, and what tells these from each other.

  Attributes:
    words: [vocab], the most frequent first.
    counts: [vocab] int64.
    starts: [vocab + 1] int64: senses of word i are rows starts[i]..
    vectors: [rows, dim] float32.
    priors: [rows] float32, of a word's senses they sum to 1.
    outputs: [vocab or vocab - 1, dim] float32, of words or of inner nodes;
      None = there are none, as merges may leave none: only priors are known.
    loss: 'negative_sampling' or 'hierarchical_softmax'; None without outputs.
    negatives: per pair, of negative sampling.
    window: known words on each side that tell which sense is meant.
    contexts: what tells senses; None = the likelihoods of words do.
  """

  words: list[str]
  counts: np.ndarray
  starts: np.ndarray
  vectors: np.ndarray
  priors: np.ndarray
  outputs: np.ndarray | None
  loss: str | None
  negatives: int
  window: int
  contexts: Contexts | None = None

  @functools.cached_property
  def index(self) -> dict[str, int]:
    """Number of each word."""
    return {word: i for i, word in enumerate(self.words)}

  @property
  def can_tell(self) -> bool:
    """Whether a text tells which sense is meant."""
    return self.outputs is not None or self.contexts is not None

  @functools.cached_property
  def paths(self) -> huffman.Paths:
    """Of hierarchical softmax."""
    return huffman.tree_paths(self.counts)

  def rows(self, word: int) -> slice:
    """Rows of a word's senses."""
    return slice(int(self.starts[word]), int(self.starts[word + 1]))

  def owners(self, rows: np.ndarray) -> np.ndarray:
    """[n] int64, the words that rows [n] are senses of."""
    return np.searchsorted(self.starts, rows, 'right') - 1

  def by_row(self, numbers: np.ndarray) -> np.ndarray:
    """[rows], numbers [vocab] of words for each of their senses."""
    return np.repeat(numbers, np.diff(self.starts))

  def names(self) -> list[str]:
    """[rows] names: the word, or `word#sense` where it has several."""
    return row_names(self.words, self.starts)

  def mean_vectors(self) -> np.ndarray:
    """[vocab, dim] float32: means of senses, weighted by priors."""
    weighted = self.priors[:, None] * self.vectors
    return np.add.reduceat(weighted, self.starts[:-1], 0, np.float32)

  @functools.cached_property
  def _noise(self) -> np.ndarray:
    """[vocab] float64, chances of negatives."""
    weights = self.counts.astype(np.float64) ** 0.75
    return weights / weights.sum()

  def log_likelihoods(self, word: int, context: Sequence[int]) -> np.ndarray:
    """[senses, context] float64: log P(o | sense) of every word o.

    With negative sampling the cost of negatives is what K of them are expected
    to cost, the same for every word.
    """
    vectors = self.vectors[self.rows(word)].astype(np.float64)
    context = np.asarray(context, np.int64)
    if self.loss == 'negative_sampling':
      scores = vectors @ self.outputs[context].T
      everything = _log_sigmoid(-(vectors @ self.outputs.T))
      expected = self.negatives * (everything @ self._noise)
      return _log_sigmoid(scores) + expected[:, None]
    points, codes, lengths = (x[context] for x in self.paths)
    on_path = np.arange(points.shape[1]) < lengths[:, None]
    nodes = self.outputs[np.minimum(points, len(self.outputs) - 1)]
    scores = np.einsum('kd,cnd->kcn', vectors, nodes)
    terms = _log_sigmoid((1 - 2.0 * codes) * scores)
    return np.sum(np.where(on_path, terms, 0), -1)

  @functools.cached_property
  def directions(self) -> np.ndarray:
    """[vocab, dim] float32, mean vectors of length 1."""
    return unit_rows(self.mean_vectors())

  def around(self, context: Sequence[int]) -> np.ndarray:
    """[dim] float64, the mean x of words, see `models.context_mixture`."""
    context = np.asarray(context, np.int64)
    half = self.contexts.half_weight
    weights = half / (half + self.counts[context] / self.counts.sum())
    return weights @ self.directions[context] / weights.sum()

  def posterior(self, word: int, context: Sequence[int]) -> np.ndarray:
    """[senses] float64, p(k | w, c); without context, the priors."""
    priors = self.priors[self.rows(word)].astype(np.float64)
    logs = np.log(np.maximum(priors, 1e-30))
    if len(context) and len(logs) > 1:
      if self.contexts is not None:
        apart = self.around(context) - self.contexts.means[self.rows(word)]
        logs = logs - self.contexts.concentration * np.sum(apart**2, 1)
      else:
        self._check_outputs()
        logs = logs + self.log_likelihoods(word, context).sum(1)
    chances = np.exp(logs - logs.max())
    return chances / chances.sum()

  def _check_outputs(self) -> None:
    if self.outputs is None:
      raise errors.UserError(
        'these vectors came without outputs (outputs.npy), so that a sentence '
        'does not tell which sense is meant; merge.json of their merge says '
        'why, the parts of it can tell'
      )

  def context(
    self, tokens: Sequence[str], position: int, window: int = 0
  ) -> list[int]:
    """Numbers of the known words around a position.

    Args:
      tokens: of the text.
      position: of the word that is asked about.
      window: known words on each side; 0 = what the vectors say.
    """
    texts.check_window(window)
    return texts.around(tokens, position, window or self.window, self.index)

  def disambiguate(
    self, sentence: Sequence[str] | str, position: int, window: int = 0
  ) -> np.ndarray:
    """Which sense of a word is meant among others (Tian et al. 2014, eq. 9).

    Args:
      sentence: The words, or a text that is split at white space; see
        `texts.spelled` for how they are found.
      position: Of the word that is asked about.
      window: Known words on each side that count; 0 = what the vectors say.

    Returns:
      [senses] float64, the chance of each.

    Raises:
      errors.UserError: There is no such position, or window.
      spelling.UnknownWordError: The word does not exist.
    """
    tokens, word = texts.split(sentence, position, self.index, window)
    context = self.context(tokens, position, window)
    return self.posterior(self.index[word], context)


def unit_rows(rows: np.ndarray) -> np.ndarray:
  """[n, dim], rows at length 1; zeros stay."""
  lengths = np.linalg.norm(rows, axis=1, keepdims=True)
  return rows / np.maximum(lengths, 1e-30)


def row_names(words: Sequence[str], starts: np.ndarray) -> list[str]:
  """[rows] names: the word, or `word#sense` where it has several.

  Args:
    words: [vocab].
    starts: [vocab + 1] int, first row of each.
  """
  names, known = [], set(words)
  for word, size in zip(words, np.diff(starts).tolist(), strict=True):
    stem = word
    while size > 1 and f'{stem}#0' in known:
      stem += '#'  # a word of the text has that name
    names += [word] if size == 1 else [f'{stem}#{k}' for k in range(size)]
  return names


class Question(NamedTuple):
  """A pair of SCWS."""

  words: tuple[str, str]
  texts: tuple[list[str], list[str]]  # tokens around
  positions: tuple[int, int]  # of the words in them
  rating: float


def _log_sigmoid(x: np.ndarray) -> np.ndarray:
  return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def read_scws(path: pathlib.Path | str) -> list[Question]:
  """Reads pairs of words with their contexts.

  Args:
    path: 18 tab fields a line, the word between `<b>` and `</b>`.

  Raises:
    errors.UserError: The file cannot be read, or no line is such.
  """
  try:
    text = pathlib.Path(path).read_bytes().decode('utf-8', errors='replace')
  except OSError as error:
    raise errors.UserError(
      f'cannot read {path}: {error.strerror or error}; check the path'
    ) from error
  found = [_question(line) for line in text.splitlines()]
  found = [x for x in found if x is not None]
  if not found:
    raise errors.UserError(
      f'{path} is no SCWS file: expected 18 tab fields a line, with the word '
      'between <b> and </b> in fields 6 and 7'
    )
  return found


def _question(line: str) -> Question | None:
  pair = benchmarks.parse_scws(line)
  if pair is None:
    return None
  *words, rating = pair
  texts, positions = [], []
  for field in line.split('\t')[5:7]:
    before, mark, rest = field.partition('<b>')
    word, end, behind = rest.partition('</b>')
    if not mark or not end:
      return None
    tokens = _TOKEN.findall(before)
    positions.append(len(tokens))
    behind = behind.replace('<b>', ' ').replace('</b>', ' ')
    # What stands there may have more than one part; it has one place.
    texts.append([*tokens, ''.join(_TOKEN.findall(word)) or 'x'])
    texts[-1] += _TOKEN.findall(behind)
  return Question(tuple(words), tuple(texts), tuple(positions), rating)


def similarities(
  senses: Senses, questions: Sequence[Question], window: int = 0
) -> np.ndarray:
  """[questions, measures] float64; NaN where a word is not known.

  Args:
    senses: the vectors.
    questions: pairs in their contexts.
    window: known words on each side that count; 0 = what the vectors say.
  """
  found = np.full((len(questions), len(MEASURES)), np.nan)
  for i, question in enumerate(questions):
    index = [senses.index.get(w.lower()) for w in question.words]
    index = [
      senses.index.get(w, known)
      for w, known in zip(question.words, index, strict=True)
    ]
    if None in index:
      continue
    units, chances, means = [], [], []
    for word, text, position in zip(
      index, question.texts, question.positions, strict=True
    ):
      rows = senses.rows(word)
      vectors = senses.vectors[rows].astype(np.float64)
      units.append(unit_rows(vectors))
      context = (
        senses.context(text, position, window) if senses.can_tell else ()
      )
      chances.append(senses.posterior(word, context))
      means.append(senses.priors[rows] @ vectors)
    cosines = units[0] @ units[1].T
    lengths = [max(np.linalg.norm(x), 1e-30) for x in means]
    found[i] = (
      cosines[chances[0].argmax(), chances[1].argmax()],
      chances[0] @ cosines @ chances[1],
      cosines.mean(),
      cosines.max(),
      means[0] @ means[1] / (lengths[0] * lengths[1]),
    )
  # Cosines that are equal but for rounding are ties.
  return np.round(found, 6)


def evaluate(
  senses: Senses,
  path: pathlib.Path | str,
  window: int = 0,
) -> dict[str, dict]:
  """Scores of every measure, shaped as those of `words.evaluate`.

  Without outputs, of those that do not look at contexts.

  Args:
    senses: the vectors.
    path: of an SCWS file.
    window: known words on each side that count; 0 = what the vectors say.
  """
  from scipy import stats  # takes a third of a second

  questions = read_scws(path)
  ratings = np.array([x.rating for x in questions])
  found = similarities(senses, questions, window)
  is_found = ~np.isnan(found[:, 0])
  results = {}
  for name, cosines in zip(MEASURES, found.T, strict=True):
    if not senses.can_tell and name in _OF_CONTEXTS:
      continue
    pairs = ratings[is_found], cosines[is_found]
    is_defined = all(len(set(x.tolist())) > 1 for x in pairs)
    score = float(stats.spearmanr(*pairs)[0]) if is_defined else None
    pearson = float(stats.pearsonr(*pairs)[0]) if is_defined else math.nan
    results[name] = {
      'kind': 'similarity',
      'layout': 'scws-senses',
      'score': score,
      'pearson': pearson if math.isfinite(pearson) else None,
      'found': int(is_found.sum()),
      'total': len(questions),
      'oov': int((~is_found).sum()),
      'malformed': 0,
      'window': window or senses.window,
    }
  return results


def evaluate_files(
  senses: Senses, paths: Sequence[pathlib.Path | str], window: int = 0
) -> dict[str, dict]:
  """Scores on every SCWS file, by name and measure; see `evaluate`."""
  return {
    f'{pathlib.Path(path).stem} {name}': result
    for path in paths
    for name, result in evaluate(senses, path, window).items()
  }
