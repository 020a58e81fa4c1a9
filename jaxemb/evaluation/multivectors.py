"""Words with several vectors (senses): type, disambiguation and files.

The posterior of sense k of a word w, with vector v_k and prior pi_k, in a
context c of words o_1, o_2, ... is computed as in training, from likelihoods

  p(k | w, c) = softmax_k( log pi_k + sum_{o in c} log P(o | w, k) )

(Tian et al. 2014, eq. 9) or from mean contexts m_k and the weighted mean x of
the unit vectors of c (Neelakantan et al. 2014)

  p(k | w, c) = softmax_k( log pi_k - kappa |x - m_k|^2 )

An export has these files next to those of `storage.word2vec_format`:

priors.txt     `word sense prior` lines, in the order of the rows
outputs.npy    [vocab or vocab - 1, dim] float32
means.npy      [rows, dim] float32
senses.json    loss, negatives, window, concentration, half_weight; no
               outputs.npy if loss is null, no means.npy if concentration is
"""

import dataclasses
import functools
import json
import pathlib
import re
import unicodedata
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import geometry
from jaxemb.ops import huffman
from jaxemb.storage import atomic, export

# The first one marks an export of senses.
FILES = ('senses.json', 'priors.txt', 'outputs.npy', 'means.npy')
_LOSSES = 'negative_sampling', 'hierarchical_softmax'
_MAX_FACT = 10**9
_PRIOR_TOLERANCE = 1e-3  # of sums of rounded and averaged priors
# The fields of `MultiVectors` in senses.json.
_FACTS = 'loss', 'negatives', 'window', 'concentration', 'half_weight'


@dataclasses.dataclass(frozen=True, eq=False)
class MultiVectors:
  """Words with one or several vectors each, and what disambiguates them."""

  words: list[str]  # [vocab], the most frequent first
  counts: np.ndarray  # [vocab] int64
  # [vocab + 1] int64; senses of word i are rows starts[i]:starts[i + 1]
  starts: np.ndarray
  vectors: np.ndarray  # [rows, dim] float32
  priors: np.ndarray  # [rows] float32; those of a word sum to 1
  # [vocab or vocab - 1, dim] float32, vectors of words or of the inner nodes of
  # the Huffman tree; None = unknown, as after some merges
  outputs: np.ndarray | None = None
  # 'negative_sampling' or 'hierarchical_softmax'; None without outputs
  loss: str | None = None
  negatives: int = 0  # per pair, with negative sampling
  window: int = 0  # context words on each side
  # [rows, dim] float32, mean contexts; zeros for single senses; None = unused
  means: np.ndarray | None = None
  concentration: float | None = None  # kappa, of mean contexts
  # Relative frequency of a word of weight 1/2 in a mean context.
  half_weight: float = 1e-3

  @functools.cached_property
  def index(self) -> dict[str, int]:
    """Returns the id of each word."""
    return {word: i for i, word in enumerate(self.words)}

  @property
  def can_disambiguate(self) -> bool:
    """Whether contexts change the posterior."""
    return self.outputs is not None or self.means is not None

  def rows(self, word: int) -> slice:
    """Returns the rows of the senses of a word."""
    return slice(int(self.starts[word]), int(self.starts[word + 1]))

  def owners(self, rows: np.ndarray) -> np.ndarray:
    """Returns the words of rows [n], [n] int64."""
    return np.searchsorted(self.starts, rows, 'right') - 1

  def by_row(self, values: np.ndarray) -> np.ndarray:
    """Returns values [vocab] repeated for each sense, [rows]."""
    return np.repeat(values, np.diff(self.starts))

  def names(self) -> list[str]:
    """Returns the names of the rows, see `row_names`."""
    return row_names(self.words, self.starts)

  def mean_vectors(self) -> np.ndarray:
    """Returns means of senses weighted by priors, [vocab, dim] float32."""
    weighted = self.priors[:, None] * self.vectors
    return np.add.reduceat(weighted, self.starts[:-1], 0, np.float32)

  @functools.cached_property
  def directions(self) -> np.ndarray:
    """Returns mean vectors at length 1, [vocab, dim] float32."""
    return geometry.unit(self.mean_vectors())

  @functools.cached_property
  def _paths(self) -> huffman.Paths:
    return huffman.tree_paths(self.counts)

  def _log_likelihoods(self, word, context):
    """Returns log P(o | word, k) of ids o, [senses, context] float64.

    Negatives contribute their expectation, the same for every o.
    """
    vectors = self.vectors[self.rows(word)].astype(np.float64)
    if self.loss == 'negative_sampling':
      scores = vectors @ self.outputs[context].T
      chances = self.counts.astype(np.float64) ** 0.75
      noise = _log_sigmoid(-(vectors @ self.outputs.T)) @ chances
      noise *= self.negatives / chances.sum()
      return _log_sigmoid(scores) + noise[:, None]
    points, codes, lengths = (x[context] for x in self._paths)
    on_path = np.arange(points.shape[1]) < lengths[:, None]
    nodes = self.outputs[np.minimum(points, len(self.outputs) - 1)]
    scores = np.einsum('kd,cnd->kcn', vectors, nodes)
    terms = _log_sigmoid((1 - 2.0 * codes) * scores)
    return np.sum(np.where(on_path, terms, 0), -1)

  def posterior(self, word: int, context: Sequence[int]) -> np.ndarray:
    """Returns p(k | w, c), [senses] float64; the priors without a context.

    Raises a `UserError` if contexts cannot disambiguate these senses.
    """
    priors = self.priors[self.rows(word)].astype(np.float64)
    logs = np.log(np.maximum(priors, 1e-30))
    words = np.asarray(context, np.int64)
    if len(words) and len(logs) > 1:
      if self.means is not None:
        distances = self._mean(words) - self.means[self.rows(word)]
        logs = logs - self.concentration * np.sum(distances**2, 1)
      elif self.outputs is not None:
        logs = logs + self._log_likelihoods(word, words).sum(1)
      else:
        raise errors.UserError(
          'these vectors have no outputs.npy and cannot disambiguate senses; '
          'merge.json of their merge gives the reason, the merged models can'
        )
    chances = np.exp(logs - logs.max())
    return chances / chances.sum()

  def _mean(self, context):
    """Returns x, the weighted mean of unit vectors, [dim] float64."""
    frequencies = self.counts[context] / self.counts.sum()
    weights = self.half_weight / (self.half_weight + frequencies)
    return weights @ self.directions[context] / weights.sum()

  def context(
    self, tokens: Sequence[str], position: int, window: int = 0
  ) -> list[int]:
    """Returns ids of up to `window` known words per side; 0 = `self.window`."""
    window = window or self.window
    before, after = (
      [self.index[x] for x in (spelled(t, self.index) for t in side) if x]
      for side in (tokens[:position], tokens[position + 1 :])
    )
    return before[-window:] + after[:window]


def _log_sigmoid(x: np.ndarray) -> np.ndarray:
  return -np.logaddexp(0, -x)


def row_names(words: Sequence[str], starts: np.ndarray) -> list[str]:
  """Returns the names of rows: the word, or `word#sense` if it has several."""
  names, known = [], set(words)
  for word, size in zip(words, np.diff(starts).tolist(), strict=True):
    stem = word
    while size > 1 and f'{stem}#0' in known:
      stem += '#'  # a word of the text has that name
    names += [word] if size == 1 else [f'{stem}#{k}' for k in range(size)]
  return names


def spelled(token: str, known: Container[str]) -> str | None:
  """Returns the known word that a token stands for, or None.

  Tries the token, its lower case, and both without leading and trailing
  characters that are no letters, digits or combining marks. Tokens that
  training would split (don't) are not split.
  """
  inside = [
    i
    for i, x in enumerate(token)
    if x.isalnum() or unicodedata.category(x)[0] == 'M'
  ]
  bare = token[inside[0] : inside[-1] + 1] if inside else token
  candidates = (token, token.lower(), bare, bare.lower())
  return next((word for word in candidates if word in known), None)


def disambiguate(
  tokens: Sequence[str],
  position: int,
  window: int,
  known: Mapping[str, int],
  senses: MultiVectors | None,
) -> np.ndarray:
  """Returns probabilities of the senses of a token among others, [senses].

  `known` are words with a vector, and `window` is that of `context`. Raises a
  `UserError` for a position that is not among the tokens or a negative window.
  """
  if window < 0:
    raise errors.UserError(
      f'window={window} must be 0 (the window of the vectors) or more'
    )
  if not 0 <= position < len(tokens):
    raise errors.UserError(
      f'position {position} is outside the sentence of {len(tokens)} words; '
      'positions count from 0'
    )
  word = spelled(tokens[position], known)
  if word is None:
    raise errors.UnknownWordError(tokens[position], list(known))
  if senses is None:
    return np.ones(1)
  context = senses.context(tokens, position, window)
  return senses.posterior(senses.index[word], context)


def write(folder: pathlib.Path, senses: MultiVectors | None) -> None:
  """Replaces the files of senses in an export, or with None removes them.

  Words have no white space. Raises a `UserError` if a file cannot be written.
  """
  if senses is None:
    for name in FILES:
      atomic.remove(folder / name)
    return
  facts = {key: getattr(senses, key) for key in _FACTS}
  for name in ('outputs', 'means'):
    array = getattr(senses, name)
    if array is None:
      atomic.remove(folder / f'{name}.npy')
    else:
      with atomic.write(folder / f'{name}.npy') as file:
        np.save(file, np.ascontiguousarray(array, '<f4'))
  with atomic.write(folder / 'priors.txt') as file:
    for i, word in enumerate(senses.words):
      for k, prior in enumerate(senses.priors[senses.rows(i)]):
        line = f'{word} {k} {prior:.9g}\n'
        file.write(line.encode('utf-8', 'backslashreplace'))
  with atomic.write(folder / FILES[0]) as file:
    file.write(json.dumps(facts, indent=1).encode())


def read(
  folder: pathlib.Path,
  names: Sequence[str],
  counts: np.ndarray | None,
  vectors: np.ndarray,
) -> MultiVectors | None:
  """Reads what `write` wrote; returns None if the folder has no senses.

  Takes names, counts [rows] int64 and vectors [rows, dim] float32 of the rows.
  Raises a `UserError` if a file is missing, damaged or of other vectors.
  """
  if not (folder / FILES[0]).exists():
    return None
  with export.reading(folder / FILES[0]) as path:
    facts = json.loads(path.read_text(encoding='utf-8'))
    if not isinstance(facts, dict) or not facts.keys() >= {*_FACTS}:
      missing = {*_FACTS}.difference(facts if isinstance(facts, dict) else ())
      raise ValueError(f'has no {", ".join(sorted(missing))}')
    _check_facts(facts)
  with export.reading(folder / 'priors.txt') as path:
    words, starts, priors = _parse_priors(path.read_text(encoding='utf-8'))
    if counts is None:
      raise ValueError('is of senses, and vocab.txt has no counts')
    if len(priors) != len(names):
      raise ValueError(f'has {len(priors)} lines, vocab.txt {len(names)}')
    pairs = zip(names, row_names(words, starts), strict=True)
    for row, (name, expected) in enumerate(pairs):
      # vocab.txt has underscores for white space, perhaps several.
      if re.sub(r'[_\s]', '', name) != re.sub(r'[_\s]', '', expected):
        raise ValueError(f'row {row} is {expected!r}, {name!r} in vocab.txt')
  outputs = means = None
  if facts['loss'] is not None:
    is_tree = facts['loss'] == 'hierarchical_softmax'
    shape = len(words) - is_tree, vectors.shape[1]
    outputs = _load(folder / 'outputs.npy', shape)
  if facts['concentration'] is not None:
    means = _load(folder / 'means.npy', vectors.shape)
  return MultiVectors(
    words=words,
    counts=counts[starts[:-1]],
    starts=starts,
    vectors=vectors,
    priors=priors,
    outputs=outputs,
    means=means,
    **{key: facts[key] for key in _FACTS},
  )


def _check_facts(facts: Mapping[str, Any]) -> None:
  """Raises a `ValueError` for facts that contexts cannot be used with."""
  if facts['loss'] not in (None, *_LOSSES):
    raise ValueError(f'loss {facts["loss"]!r} is none of {", ".join(_LOSSES)}')
  numbers = [facts[x] for x in ('negatives', 'window', 'half_weight')]
  if facts['concentration'] is not None:
    numbers.append(facts['concentration'])
  for x in numbers:
    if type(x) not in (int, float) or not 0 <= x <= _MAX_FACT:
      raise ValueError(f'{x!r} is no number from 0 to {_MAX_FACT:,}')
  if type(facts['window']) is not int:
    raise ValueError(f'window {facts["window"]!r} is no int')


def _parse_priors(text: str) -> tuple[list[str], np.ndarray, np.ndarray]:
  """Returns words, starts and priors, as in `MultiVectors`."""
  words, starts = [], []
  priors: list[float] = []
  for line in filter(None, text.split('\n')):
    word, k, prior = line.rsplit(' ', 2)
    if int(k) == 0:
      words.append(word)
      starts.append(len(priors))
    if word not in words[-1:] or int(k) != len(priors) - starts[-1]:
      raise ValueError(f'line {len(priors) + 1}, {word!r} {k}, is out of order')
    priors.append(float(prior))
  if not words:
    raise ValueError('is empty')
  sums = np.add.reduceat(np.array(priors), starts)
  # Negated, so that NaN is an error.
  is_right = np.minimum.reduceat(priors, starts) > -_PRIOR_TOLERANCE
  is_wrong = ~(is_right & (np.abs(sums - 1) < _PRIOR_TOLERANCE))
  if is_wrong.any():
    word = words[int(is_wrong.argmax())]
    raise ValueError(f'priors of {word!r} must not be negative, and sum to 1')
  stops = np.array([*starts, len(priors)], np.int64)
  return words, stops, np.array(priors, np.float32)


def _load(path: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray:
  """Memory-maps an array; raises a `UserError` if it has another shape."""
  with export.reading(path):
    array = export.load_array(path, mmap_mode='r')
    export.check_real(array, shape)
  return array
