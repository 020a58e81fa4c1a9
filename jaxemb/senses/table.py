"""Words with several vectors (senses): type, disambiguation and files.

The posterior of sense k of a word w, with vector v_k and prior pi_k, in a
context c of words o_1, o_2, ... follows the method of training. Likelihoods
(Tian et al. 2014, eq. 9; `senses.mixture`):

  p(k | w, c) = softmax_k( log pi_k + sum_{o in c} log P(o | w, k) )

Contexts, with the weighted mean x of the context's unit vectors
(`senses.context_mixture`):

  p(k | w, c) = softmax_k( log pi_k - kappa |x(c) - m_k|^2 )

The context is the known words up to `window` before and after w; words without
a vector are skipped.

An export has these files next to those of `storage.word2vec_format`:

priors.txt     `word sense prior` lines, in the order of the rows
outputs.npy    [vocab or vocab - 1, dim] float32
means.npy      [rows, dim] float32, with the method 'contexts' only
senses.json    loss, negatives, window; concentration, half_weight of contexts;
               no outputs.npy if loss is null
dmwe.txt       the text format of Microsoft's distributed_skipgram_mixture:
               `vocab rows dim`; for each word `word senses`, then a line
               `prior v1 v2 ...` for each of its senses
"""

import dataclasses
import functools
import json
import math
import pathlib
import re
import unicodedata
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import geometry
from jaxemb.ops import huffman
from jaxemb.storage import atomic, word2vec_format

# The first one marks an export of senses.
FILES = ('senses.json', 'priors.txt', 'outputs.npy', 'means.npy', 'dmwe.txt')
_PRIOR_TOLERANCE = 1e-3  # of sums of rounded and averaged priors


class Contexts(NamedTuple):
  """Parameters of disambiguation by contexts."""

  means: np.ndarray  # [rows, dim] float32; zeros for words with one sense
  concentration: float  # kappa
  half_weight: float  # relative frequency of a word of weight 1/2 in contexts


@dataclasses.dataclass(frozen=True, eq=False)
class Senses:
  """Words with one or several vectors each, and what disambiguates them.

  Attributes:
    words: [vocab], the most frequent first.
    counts: [vocab] int64.
    starts: [vocab + 1] int64; the senses of word i are rows
      starts[i]..starts[i + 1].
    vectors: [rows, dim] float32.
    priors: [rows] float32; those of a word sum to 1.
    outputs: [vocab or vocab - 1, dim] float32, vectors of words or of the inner
      nodes of the Huffman tree; None = unknown, as after some merges.
    loss: 'negative_sampling' or 'hierarchical_softmax'; None without outputs.
    negatives: per pair, with negative sampling.
    window: context words on each side.
    contexts: None = senses are disambiguated by likelihoods.
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
    """Id of each word."""
    return {word: i for i, word in enumerate(self.words)}

  @property
  def can_disambiguate(self) -> bool:
    """Whether contexts change the posterior."""
    return self.outputs is not None or self.contexts is not None

  def rows(self, word: int) -> slice:
    """Rows of a word's senses."""
    return slice(int(self.starts[word]), int(self.starts[word + 1]))

  def owners(self, rows: np.ndarray) -> np.ndarray:
    """[n] int64, the words of rows [n]."""
    return np.searchsorted(self.starts, rows, 'right') - 1

  def by_row(self, values: np.ndarray) -> np.ndarray:
    """[rows], values [vocab] repeated for each sense."""
    return np.repeat(values, np.diff(self.starts))

  def names(self) -> list[str]:
    """[rows] names, see `row_names`."""
    return row_names(self.words, self.starts)

  def mean_vectors(self) -> np.ndarray:
    """[vocab, dim] float32, means of senses weighted by priors."""
    weighted = self.priors[:, None] * self.vectors
    return np.add.reduceat(weighted, self.starts[:-1], 0, np.float32)

  @functools.cached_property
  def directions(self) -> np.ndarray:
    """[vocab, dim] float32, unit mean vectors."""
    return geometry.unit(self.mean_vectors())

  @functools.cached_property
  def _paths(self) -> huffman.Paths:
    return huffman.tree_paths(self.counts)

  @functools.cached_property
  def _noise(self) -> np.ndarray:
    """[vocab] float64, the distribution of negatives."""
    weights = self.counts.astype(np.float64) ** 0.75
    return weights / weights.sum()

  def log_likelihoods(self, word: int, context: Sequence[int]) -> np.ndarray:
    """[senses, context] float64, log P(o | word, k) of ids o.

    Negatives contribute their expectation, the same for every o.
    """
    vectors = self.vectors[self.rows(word)].astype(np.float64)
    context = np.asarray(context, np.int64)
    if self.loss == 'negative_sampling':
      scores = vectors @ self.outputs[context].T
      noise = _log_sigmoid(-(vectors @ self.outputs.T)) @ self._noise
      return _log_sigmoid(scores) + (self.negatives * noise)[:, None]
    points, codes, lengths = (x[context] for x in self._paths)
    on_path = np.arange(points.shape[1]) < lengths[:, None]
    nodes = self.outputs[np.minimum(points, len(self.outputs) - 1)]
    scores = np.einsum('kd,cnd->kcn', vectors, nodes)
    terms = _log_sigmoid((1 - 2.0 * codes) * scores)
    return np.sum(np.where(on_path, terms, 0), -1)

  def posterior(self, word: int, context: Sequence[int]) -> np.ndarray:
    """[senses] float64, p(k | w, c) of ids; the priors if the context is empty.

    Raises:
      errors.UserError: contexts cannot disambiguate these senses.
    """
    priors = self.priors[self.rows(word)].astype(np.float64)
    logs = np.log(np.maximum(priors, 1e-30))
    if len(context) and len(logs) > 1:
      if self.contexts is not None:
        distances = self._mean(context) - self.contexts.means[self.rows(word)]
        logs = logs - self.contexts.concentration * np.sum(distances**2, 1)
      elif self.outputs is not None:
        logs = logs + self.log_likelihoods(word, context).sum(1)
      else:
        raise errors.UserError(
          'these vectors have no outputs.npy and cannot disambiguate senses; '
          'merge.json of their merge gives the reason, the merged models can'
        )
    chances = np.exp(logs - logs.max())
    return chances / chances.sum()

  def _mean(self, context: Sequence[int]) -> np.ndarray:
    """[dim] float64, x of `senses.context_mixture`."""
    context = np.asarray(context, np.int64)
    half = self.contexts.half_weight
    weights = half / (half + self.counts[context] / self.counts.sum())
    return weights @ self.directions[context] / weights.sum()

  def context(
    self, tokens: Sequence[str], position: int, window: int = 0
  ) -> list[int]:
    """Ids of the known words around a position of a text.

    There are up to `window` on each side; 0 = `self.window`.
    """
    window = window or self.window
    before, after = (
      [self.index[x] for x in (spelled(t, self.index) for t in side) if x]
      for side in (tokens[:position], tokens[position + 1 :])
    )
    return before[-window:] + after[:window]


def _log_sigmoid(x: np.ndarray) -> np.ndarray:
  return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def row_names(words: Sequence[str], starts: np.ndarray) -> list[str]:
  """[rows] names: the word, or `word#sense` if it has several.

  Of words [vocab] and the first row of each, [vocab + 1] int.
  """
  names, known = [], set(words)
  for word, size in zip(words, np.diff(starts).tolist(), strict=True):
    stem = word
    while size > 1 and f'{stem}#0' in known:
      stem += '#'  # the text has a word of that name
    names += [word] if size == 1 else [f'{stem}#{k}' for k in range(size)]
  return names


# ---- words of a query


def spelled(token: str, known: Container[str]) -> str | None:
  """The known word that a token stands for; None = there is none.

  Tries the token, its lower case, and both without what is neither letter,
  digit nor combining mark at the ends, which training never makes part of a
  word. Tokens that training would split (don't) are not split.
  """
  inside = [i for i, x in enumerate(token) if _is_word_character(x)]
  bare = token[inside[0] : inside[-1] + 1] if inside else token
  candidates = (token, token.lower(), bare, bare.lower())
  return next((word for word in candidates if word in known), None)


def _is_word_character(char: str) -> bool:
  return char.isalnum() or unicodedata.category(char)[0] == 'M'


def locate(
  sentence: Sequence[str] | str,
  position: int,
  known: Container[str],
  window: int,
) -> tuple[list[str], str | None]:
  """Tokens of a sentence, and the known word at a position (see `spelled`).

  A text is split at white space; positions count from 0.

  Raises:
    errors.UserError: the position is outside, or the window negative.
  """
  tokens = sentence.split() if isinstance(sentence, str) else list(sentence)
  if window < 0:
    raise errors.UserError(
      f'window={window} must be 0 (the window of the vectors) or more'
    )
  if not 0 <= position < len(tokens):
    raise errors.UserError(
      f'position {position} is outside the sentence of {len(tokens)} words; '
      'positions count from 0'
    )
  return tokens, spelled(tokens[position], known)


# ---- files


def write(folder: pathlib.Path, senses: Senses | None) -> None:
  """Writes the files of senses next to those of the vectors.

  They replace those of an earlier export; None = there are no senses. Words
  have no white space.

  Raises:
    errors.UserError: a file cannot be written.
  """
  for name in FILES:
    (folder / name).unlink(missing_ok=True)
  if senses is None:
    return
  facts = {key: getattr(senses, key) for key in _FACTS}
  arrays = {'outputs': senses.outputs}
  if senses.contexts is not None:
    facts |= {key: getattr(senses.contexts, key) for key in _CONTEXT_FACTS}
    arrays['means'] = senses.contexts.means
  for name, array in arrays.items():
    if array is not None:
      with atomic.write(folder / f'{name}.npy') as file:
        np.save(file, np.ascontiguousarray(array, '<f4'))
  num_words, (num_rows, dim) = len(senses.words), senses.vectors.shape
  with (
    atomic.write(folder / 'priors.txt') as priors,
    atomic.write(folder / 'dmwe.txt') as dmwe,
  ):
    dmwe.write(f'{num_words} {num_rows} {dim}\n'.encode())
    for i, word in enumerate(senses.words):
      chances, vectors = (
        x[senses.rows(i)] for x in (senses.priors, senses.vectors)
      )
      for k, prior in enumerate(chances.tolist()):
        priors.write(f'{word} {k} {prior:.9g}\n'.encode())
      dmwe.write(f'{word} {len(chances)}\n'.encode())
      lines = np.column_stack([chances, vectors]).astype(np.float32)
      for line in word2vec_format.text_rows(lines):
        dmwe.write(line + b'\n')
  with atomic.write(folder / 'senses.json') as file:
    file.write(json.dumps(facts, indent=1).encode())


def read(
  folder: pathlib.Path,
  names: Sequence[str],
  counts: np.ndarray,
  vectors: np.ndarray,
) -> Senses | None:
  """Reads what `write` wrote; None if the folder has no senses.

  Takes the rows of the vectors: names, counts [rows] int64 and [rows, dim]
  float32.

  Raises:
    errors.UserError: a file is missing or damaged, or of other vectors.
  """
  if not (folder / 'senses.json').exists():
    return None
  facts = _read_facts(folder / 'senses.json')
  path, (num_rows, dim) = folder / 'priors.txt', vectors.shape
  words, starts, priors = _read_priors(path)
  if len(priors) != num_rows:
    raise _damaged(path, f'has {len(priors)} lines, vocab.txt {num_rows}')
  for row, pair in enumerate(zip(names, row_names(words, starts), strict=True)):
    # vocab.txt has underscores for white space, perhaps several.
    first, second = (re.sub(r'[_\s]', '', x) for x in pair)
    if first != second:
      raise _damaged(
        path, f'row {row} is {pair[1]!r}, {pair[0]!r} in vocab.txt'
      )
  outputs = contexts = None
  if facts['loss'] is not None:
    is_tree = facts['loss'] == 'hierarchical_softmax'
    shape = len(words) - is_tree, dim
    outputs = _read_array(folder / 'outputs.npy', shape)
  if 'concentration' in facts:
    means = _read_array(folder / 'means.npy', vectors.shape)
    contexts = Contexts(means, *(facts[key] for key in _CONTEXT_FACTS))
  return Senses(
    words,
    counts[starts[:-1]],
    starts,
    vectors,
    priors,
    outputs,
    *(facts[key] for key in _FACTS),
    contexts,
  )


def _damaged(path: pathlib.Path, what: object) -> errors.UserError:
  what = getattr(what, 'strerror', None) or what
  return errors.UserError(f'{path}: {what}; export again')


_FACTS = {
  'loss': lambda x: x in (None, 'negative_sampling', 'hierarchical_softmax'),
  'negatives': lambda x: type(x) is int and x >= 0,
  'window': lambda x: type(x) is int and x >= 1,
}
_CONTEXT_FACTS = {
  'concentration': lambda x: type(x) in (int, float) and 0 <= x < math.inf,
  'half_weight': lambda x: type(x) in (int, float) and 0 < x < math.inf,
}


def _read_facts(path: pathlib.Path) -> dict[str, Any]:
  try:
    facts = json.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError) as error:
    raise _damaged(path, error) from error
  if not isinstance(facts, dict):
    raise _damaged(path, f'has no {", ".join(_FACTS)}')
  has_contexts = facts.keys() & _CONTEXT_FACTS.keys()
  checks = _FACTS | (_CONTEXT_FACTS if has_contexts else {})
  for key, is_valid in checks.items():
    if key not in facts:
      raise _damaged(path, f'has no {key}')
    if not is_valid(facts[key]):
      raise _damaged(path, f'{key} must not be {facts[key]!r}')
  return facts


def _read_priors(
  path: pathlib.Path,
) -> tuple[list[str], np.ndarray, np.ndarray]:
  """Words, starts and priors, as in `Senses`."""
  words: list[str] = []
  starts: list[int] = []
  priors: list[float] = []
  try:
    for line in filter(None, path.read_text(encoding='utf-8').split('\n')):
      word, k, prior = line.rsplit(' ', 2)
      if int(k) == 0:
        words.append(word)
        starts.append(len(priors))
      priors.append(float(prior))
      if word not in words[-1:] or int(k) != len(priors) - 1 - starts[-1]:
        raise ValueError(f'line {len(priors)}, {word!r} {k}, is out of order')
    if not words:
      raise ValueError('is empty')
  except (OSError, ValueError) as error:
    raise _damaged(path, error) from error
  array = np.array(priors, np.float32)
  sums = np.add.reduceat(array.astype(np.float64), starts)
  # Negated, so that a NaN is wrong.
  is_right = np.minimum.reduceat(array, starts) > -_PRIOR_TOLERANCE
  is_wrong = ~(is_right & (np.abs(sums - 1) < _PRIOR_TOLERANCE))
  if is_wrong.any():
    word = words[int(is_wrong.argmax())]
    raise _damaged(
      path, f'priors of {word!r} must not be negative, and sum to 1'
    )
  return words, np.array([*starts, len(priors)], np.int64), array


def _read_array(path: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray:
  """A memory-mapped array of this shape."""
  try:
    array = np.load(path, mmap_mode='r')
  except (OSError, ValueError, EOFError) as error:
    raise _damaged(path, error) from error
  if array.shape != shape:
    raise _damaged(path, f'has shape {array.shape}, the vectors need {shape}')
  return array
