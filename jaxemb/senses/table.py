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
    """[senses, context] float64, log P(o | word, k).

    Negatives contribute their expectation, the same for every o.

    Args:
      word: id.
      context: ids of the words o.
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
    """[senses] float64, p(k | w, c); the priors if the context is empty.

    Args:
      word: id.
      context: ids.

    Raises:
      errors.UserError: Contexts cannot disambiguate these senses.
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
    """Ids of the known words around a position.

    Args:
      tokens: of the text.
      position: of the word to disambiguate.
      window: known words on each side; 0 = `self.window`.
    """
    check_window(window)
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

  Args:
    words: [vocab].
    starts: [vocab + 1] int, first row of each.
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

  Args:
    sentence: tokens, or a text to split at white space.
    position: counted from 0.
    known: all words.
    window: to check.

  Raises:
    errors.UserError: The position is outside, or the window negative.
  """
  tokens = sentence.split() if isinstance(sentence, str) else list(sentence)
  check_window(window)
  if not 0 <= position < len(tokens):
    raise errors.UserError(
      f'position {position} is outside the sentence of {len(tokens)} words; '
      'positions count from 0'
    )
  return tokens, spelled(tokens[position], known)


def check_window(window: int) -> None:
  """Raises a `UserError` for a negative window."""
  if window < 0:
    raise errors.UserError(
      f'window={window} must be 0 (the window of the vectors) or more'
    )


# ---- files


def remove(folder: pathlib.Path) -> None:
  """Removes the files of senses, if any."""
  for name in FILES:
    (folder / name).unlink(missing_ok=True)


def write(folder: pathlib.Path, senses: Senses | None) -> None:
  """Writes the files of senses next to those of the vectors.

  Args:
    folder: created if missing.
    senses: of words without white space; None = nothing to write.

  Raises:
    errors.UserError: A file cannot be written.
  """
  if senses is None:
    return
  facts = {
    'loss': senses.loss,
    'negatives': senses.negatives,
    'window': senses.window,
  }
  arrays = {'outputs': senses.outputs, 'means': None}
  if senses.contexts is not None:
    arrays['means'], facts['concentration'], facts['half_weight'] = (
      senses.contexts
    )
  for name, array in arrays.items():
    if array is None:
      (folder / f'{name}.npy').unlink(missing_ok=True)
      continue
    with atomic.write(folder / f'{name}.npy') as file:
      np.save(file, np.ascontiguousarray(array, '<f4'))
  starts, vectors = senses.starts.tolist(), senses.vectors
  with atomic.write(folder / 'priors.txt') as file:
    for i, word in enumerate(senses.words):
      for row in range(starts[i], starts[i + 1]):
        line = f'{word} {row - starts[i]} {senses.priors[row]:.9g}\n'
        file.write(line.encode())
  with atomic.write(folder / 'dmwe.txt') as file:
    file.write(
      f'{len(senses.words)} {len(vectors)} {vectors.shape[1]}\n'.encode()
    )
    for i, word in enumerate(senses.words):
      rows = senses.rows(i)
      file.write(f'{word} {rows.stop - rows.start}\n'.encode())
      lines = np.column_stack([senses.priors[rows], vectors[rows]])
      for line in word2vec_format.text_rows(lines.astype(np.float32)):
        file.write(line + b'\n')
  with atomic.write(folder / 'senses.json') as file:
    file.write(json.dumps(facts, indent=1).encode())


def read(
  folder: pathlib.Path,
  names: Sequence[str],
  counts: np.ndarray,
  vectors: np.ndarray,
) -> Senses | None:
  """Reads what `write` wrote; None if the folder has no senses.

  Args:
    folder: of the files.
    names: [rows], of the vectors.
    counts: [rows] int64.
    vectors: [rows, dim] float32.

  Raises:
    errors.UserError: A file is missing or damaged, or of other vectors.
  """
  if not (folder / 'senses.json').exists():
    return None
  facts = _read_facts(folder / 'senses.json')
  words, starts, priors = _read_priors(folder / 'priors.txt')
  num_rows, dim = vectors.shape
  if len(priors) != num_rows:
    raise errors.UserError(
      f'{folder}: priors.txt has {len(priors)} lines, vocab.txt {num_rows}; '
      'export again'
    )
  _check_names(folder, names, row_names(words, starts))
  outputs = contexts = None
  if facts['loss'] is not None:
    sizes = len(words), len(words) - 1
    outputs = _read_array(folder / 'outputs.npy', sizes, dim)
  if 'concentration' in facts:
    means = _read_array(folder / 'means.npy', (num_rows,), dim)
    contexts = Contexts(means, facts['concentration'], facts['half_weight'])
  return Senses(
    words,
    counts[starts[:-1]],
    starts,
    vectors,
    priors,
    outputs,
    *(facts[key] for key in ('loss', 'negatives', 'window')),
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
  expected = dict(_FACTS)
  if facts.keys() & _CONTEXT_FACTS.keys():
    expected |= _CONTEXT_FACTS
  for key, is_valid in expected.items():
    if key not in facts:
      raise _damaged(path, f'has no {key}')
    if not is_valid(facts[key]):
      raise _damaged(path, f'{key} must not be {facts[key]!r}')
  return facts


def _read_priors(
  path: pathlib.Path,
) -> tuple[list[str], np.ndarray, np.ndarray]:
  """Words, starts and priors, as in `Senses`."""
  try:
    lines = [x for x in path.read_text(encoding='utf-8').split('\n') if x]
    fields = [line.rsplit(' ', 2) for line in lines]
    rows = [(word, int(k), float(prior)) for word, k, prior in fields]
  except (OSError, ValueError) as error:
    raise _damaged(path, error) from error
  words: list[str] = []
  starts: list[int] = []
  for row, (word, k, _) in enumerate(rows):
    if not k:
      words.append(word)
      starts.append(row)
    if not words or word != words[-1] or k != row - starts[-1]:
      raise _damaged(path, f'line {row + 1}, {word!r} {k}, is out of order')
  if not words:
    raise _damaged(path, 'is empty')
  priors = np.array([prior for *_, prior in rows], np.float32)
  sums = np.add.reduceat(priors.astype(np.float64), starts)
  # Negated, so that a NaN is wrong.
  is_right = np.minimum.reduceat(priors, starts) > -_PRIOR_TOLERANCE
  is_wrong = ~(is_right & (np.abs(sums - 1) < _PRIOR_TOLERANCE))
  if is_wrong.any():
    word = words[int(is_wrong.argmax())]
    raise _damaged(
      path, f'priors of {word!r} must not be negative, and sum to 1'
    )
  return words, np.array([*starts, len(rows)], np.int64), priors


def _check_names(
  folder: pathlib.Path, names: Sequence[str], expected: list[str]
) -> None:
  """Raises a `UserError` if priors.txt is that of other rows."""
  for row, pair in enumerate(zip(names, expected, strict=True)):
    # vocab.txt has underscores for white space, perhaps several.
    first, second = (re.sub(r'[_\s]', '', x) for x in pair)
    if first != second:
      raise errors.UserError(
        f'{folder}: row {row} is {pair[0]!r} in vocab.txt, {pair[1]!r} by '
        'priors.txt; export again'
      )


def _read_array(
  path: pathlib.Path, sizes: Sequence[int], dim: int
) -> np.ndarray:
  """[one of the sizes, dim], memory-mapped."""
  try:
    array = np.load(path, mmap_mode='r')
  except (OSError, ValueError, EOFError) as error:
    raise _damaged(path, error) from error
  if array.shape not in [(size, dim) for size in sizes]:
    raise errors.UserError(
      f'{path} has shape {array.shape}, the vectors need {(sizes[0], dim)}; '
      'export again'
    )
  return array
