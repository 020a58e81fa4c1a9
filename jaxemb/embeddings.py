"""Trained vectors and the questions people ask of them.

`Embeddings` has the names, arguments and answers of gensim's `KeyedVectors`.
Cosines are taken block by block from the vectors as they are stored, which may
be a memory-mapped file; only their lengths are kept, no normalised copy.
"""

import dataclasses
import functools
import numbers
import pathlib
import warnings
from collections.abc import Sequence

import numpy as np

from jaxemb import errors, exports, keys, spelling
from jaxemb.evaluation import gensim_results, nearest
from jaxemb.evaluation import words as measures
from jaxemb.senses import table as sense_table_lib
from jaxemb.storage import word2vec_format


@dataclasses.dataclass(frozen=True, eq=False)
class Embeddings:
  """Words with their vectors, the most frequent first.

  Attributes:
    index_to_key: [vocab] different words.
    vectors: [vocab, dim] float32; may be memory-mapped.
    counts: [vocab] int64 occurrences in the corpus, or None if not known.
    sense_table: Of vectors of senses, whose rows are `word#0`, `word#1`.
  """

  index_to_key: list[str]
  vectors: np.ndarray
  counts: np.ndarray | None = None
  sense_table: sense_table_lib.Senses | None = None

  def __post_init__(self):
    shapes = (len(self.index_to_key), len(self.vectors), len(self.key_to_index))
    if self.vectors.ndim != 2 or len(set(shapes)) != 1:
      raise ValueError(
        f'{shapes[0]} words ({shapes[2]} different) do not fit vectors of '
        f'shape {self.vectors.shape}'
      )

  @functools.cached_property
  def key_to_index(self) -> dict[str, int]:
    """Row of each word."""
    return {word: row for row, word in enumerate(self.index_to_key)}

  @functools.cached_property
  def norms(self) -> np.ndarray:
    """[vocab] float32, lengths of the vectors."""
    return measures.row_norms(self.vectors)

  @property
  def vector_size(self) -> int:
    """Numbers per vector."""
    return self.vectors.shape[1]

  def __len__(self) -> int:
    return len(self.index_to_key)

  def __contains__(self, word: object) -> bool:
    words = self.sense_table.index if self.sense_table else ()
    return isinstance(word, str) and (
      word in self.key_to_index or word in words
    )

  def __repr__(self) -> str:
    return f'Embeddings({len(self):,} words x {self.vector_size})'

  def __getitem__(self, words: keys.Key | Sequence[keys.Key]) -> np.ndarray:
    """[dim] vector of a word, or [words, dim] vectors of a list."""
    if isinstance(words, (str, numbers.Integral)):
      return self.get_vector(words)
    return np.stack([self.get_vector(word) for word in words])

  def get_index(self, word: str | int) -> int:
    """Row of a word; a row number stands for itself.

    Raises:
      spelling.UnknownWordError: The word, or row, does not exist.
    """
    row = self.key_to_index.get(word, -1) if isinstance(word, str) else word
    if row == -1 and self.sense_table and word in self.sense_table.index:
      rows = self._sense_rows(word)  # the sense that is meant most often
      row = int(rows[self.sense_table.priors[rows].argmax()])
    if not isinstance(row, numbers.Integral) or not 0 <= row < len(self):
      raise spelling.UnknownWordError(word, self.index_to_key)
    return int(row)

  def get_vector(self, word: str | int, norm: bool = False) -> np.ndarray:
    """[dim] float32 vector of a word, read-only; of length 1 if `norm`."""
    row = self.get_index(word)
    vector = self.vectors[row]
    if norm:
      vector = vector / (self.norms[row] or np.float32(1))
    vector.setflags(write=False)
    return vector

  def get_normed_vectors(self) -> np.ndarray:
    """[vocab, dim] float32 copy of all vectors at length 1."""
    return self.vectors / nearest.divisors(self.norms)[:, None]

  def similarity(self, w1: str, w2: str) -> float:
    """Cosine of two words."""
    first, second = (measures.unit_vector(self.get_vector(w)) for w in (w1, w2))
    return float(np.dot(first, second))

  def most_similar(
    self,
    positive: keys.Weighted | Sequence[keys.Weighted] = (),
    negative: keys.Weighted | Sequence[keys.Weighted] = (),
    topn: int | None = 10,
    restrict_vocab: int | None = None,
    sense: int | None = None,
    min_prior: float = 0.0,
  ) -> list[tuple[str, float]] | np.ndarray:
    """Words nearest to the sum of some words less others (3CosAdd).

    Of words with several senses each comes once, by the name of its nearest
    sense, and none of the given words' own senses does.

    Args:
      positive: A word, row, [dim] vector, or a list of them, each alone or as
        (word, weight); weights are 1 by default.
      negative: The same; weights are -1 by default.
      topn: Number of words, or None for all cosines.
      restrict_vocab: Only the first so many words are searched.
      sense: Which sense of the only word is meant, see `senses`.
      min_prior: Senses that are meant more seldom are not found.

    Returns:
      (word, cosine) by falling cosine, without the given words; with `topn`
      None, [rows of the words searched] float32 cosines.

    Raises:
      spelling.UnknownWordError: A given word has no vector.
      ValueError: Nothing was given.
    """
    positive, negative = keys.as_list(positive), keys.as_list(negative)
    if sense is not None:
      if len(positive) != 1 or negative or not isinstance(positive[0], str):
        raise ValueError('a sense is that of one word')
      positive = [self._sense(positive[0], sense)]
    items = [keys.weighted(item, 1.0) for item in positive]
    items += [keys.weighted(item, -1.0) for item in negative]
    if not items:
      raise ValueError('give at least one word or vector')
    target = sum(weight * self._direction(key) for key, weight in items)
    target = measures.unit_vector(target.astype(np.float32))
    scores, given = self._cosines(target, restrict_vocab), [k for k, _ in items]
    return self._rank(scores, given, topn, min_prior)

  def most_similar_cosmul(
    self,
    positive: keys.Key | Sequence[keys.Key] = (),
    negative: keys.Key | Sequence[keys.Key] = (),
    topn: int | None = 10,
    restrict_vocab: int | None = None,
  ) -> list[tuple[str, float]] | np.ndarray:
    """Words by products of cosines (3CosMul, Levy and Goldberg 2014, eq. 4).

    Args and results are those of `most_similar`, without weights; the second
    value is the quotient of products, not a cosine.
    """
    positive, negative = keys.as_list(positive), keys.as_list(negative)
    if not positive:
      raise ValueError('give at least one positive word or vector')

    def product(items: list[keys.Key]) -> np.ndarray | float:
      factors = (
        (1 + self._cosines(self._direction(key), restrict_vocab)) / 2
        for key in items
      )
      return functools.reduce(np.multiply, factors, np.float32(1))

    scores = product(positive) / (product(negative) + np.float32(1e-6))
    return self._rank(scores, positive + negative, topn)

  def similar_by_vector(
    self,
    vector: np.ndarray,
    topn: int | None = 10,
    restrict_vocab: int | None = None,
  ) -> list[tuple[str, float]] | np.ndarray:
    """Words nearest to a [dim] vector; see `most_similar`."""
    return self.most_similar(
      [np.asarray(vector)], topn=topn, restrict_vocab=restrict_vocab
    )

  def analogy(
    self, a: str, b: str, c: str, topn: int | None = 10
  ) -> list[tuple[str, float]]:
    """Words d such that a is to b as c is to d (3CosAdd)."""
    return self.most_similar([b, c], [a], topn)

  def senses(self, word: str) -> list[tuple[str, float]]:
    """(name of the row, prior) of every sense of a word."""
    rows, table = self._sense_rows(word), self.sense_table
    priors = np.ones(len(self)) if table is None else table.priors
    return [(self.index_to_key[row], float(priors[row])) for row in rows]

  def disambiguate(
    self, sentence: Sequence[str] | str, position: int, window: int = 0
  ) -> np.ndarray:
    """Probabilities of the senses of a word in a sentence.

    Args:
      sentence: tokens, or a text to split at white space.
      position: of the word, counted from 0.
      window: known words on each side that count; 0 = that of the vectors.

    Returns:
      [senses] float64.

    Raises:
      errors.UserError: The position is outside, or the window negative.
      spelling.UnknownWordError: The word is unknown.
    """
    table = self.sense_table
    known = self.key_to_index if table is None else table.index
    tokens, word = sense_table_lib.locate(sentence, position, known, window)
    if word is None:
      raise spelling.UnknownWordError(tokens[position], list(known))
    if table is None:
      return np.ones(1)
    context = table.context(tokens, position, window)
    return table.posterior(table.index[word], context)

  def of_words(self) -> 'Embeddings':
    """With one vector for each word: the mean of its senses, by priors."""
    t = self.sense_table
    if t is None:
      return self
    return Embeddings(t.words, t.mean_vectors(), t.counts)

  def _sense(self, word: str, sense: int) -> str:
    """Name of the row of a sense."""
    names = [name for name, _ in self.senses(word)]
    if not 0 <= sense < len(names):
      raise errors.UserError(f'{word!r} has {len(names)} senses, from 0 up')
    return names[sense]

  def _sense_rows(self, word: str) -> np.ndarray:
    """Rows of all senses of a word."""
    table = self.sense_table
    if table is None or word not in table.index:
      return np.array([self.get_index(word)])
    rows = table.rows(table.index[word])
    return np.arange(rows.start, rows.stop)

  def doesnt_match(self, words: Sequence[str]) -> str:
    """The word farthest from the mean of all; unknown ones are warned of.

    Raises:
      ValueError: None of the words is known.
    """
    known = [word for word in words if word in self]
    if not known:
      raise ValueError('none of the words has a vector')
    if len(known) < len(words):
      unknown = ', '.join(word for word in words if word not in self)
      warnings.warn(f'left out, without vectors: {unknown}', stacklevel=2)
    directions = np.stack([self.get_vector(word, norm=True) for word in known])
    cosines = directions @ directions.mean(axis=0)
    return min(zip(cosines.tolist(), known, strict=True))[1]

  def evaluate_word_pairs(
    self,
    pairs: pathlib.Path | str,
    delimiter: str | None = None,
    restrict_vocab: int | None = 300_000,
    case_insensitive: bool = True,
    dummy4unknown: bool = False,
  ) -> tuple[tuple, tuple, float]:
    """Correlates cosines with the ratings of a file of word pairs.

    Args:
      pairs: The file: `word1 word2 score` lines, or SCWS.
      delimiter: Of the fields; None for white space or commas.
      restrict_vocab: Only the first so many words count.
      case_insensitive: Compare words in upper case.
      dummy4unknown: Give pairs with unknown words cosine 0, not leave them
        out.

    Returns:
      (Pearson's r, p), (Spearman's rho, p), per cent of pairs with an unknown
      word.

    Raises:
      errors.UserError: The file cannot be read, or no pair is known.
    """
    one = self.of_words()
    vocabulary = measures.index_vocabulary(
      one.index_to_key, restrict_vocab, case_insensitive
    )
    return gensim_results.word_pairs(
      pairs, vocabulary, one.vectors, delimiter, dummy4unknown
    )

  def evaluate_word_analogies(
    self,
    analogies: pathlib.Path | str,
    restrict_vocab: int | None = 300_000,
    case_insensitive: bool = True,
    dummy4unknown: bool = False,
    similarity_function: str = 'most_similar',
  ) -> tuple[float, list[dict]]:
    """Answers the questions of an analogy file.

    Args:
      analogies: The file: `: section` lines and four words a line, or the
        SemEval csv.
      restrict_vocab: Only the first so many words count.
      case_insensitive: Compare words in upper case.
      dummy4unknown: Count questions with unknown words as wrong, not leave
        them out.
      similarity_function: 'most_similar' or 'most_similar_cosmul'.

    Returns:
      Share answered right, and per section, with 'Total accuracy' last,
      {'section', 'correct', 'incorrect'}: its name and lists of questions.

    Raises:
      errors.UserError: The file cannot be read or holds no analogies.
    """
    one = self.of_words()
    vocabulary = measures.index_vocabulary(
      one.index_to_key, restrict_vocab, case_insensitive
    )
    return gensim_results.word_analogies(
      analogies, vocabulary, one.vectors, one.norms, dummy4unknown,
      similarity_function,
    )  # fmt: skip

  def save_word2vec_format(
    self,
    fname: pathlib.Path | str,
    fvocab: pathlib.Path | str | None = None,
    binary: bool = False,
  ) -> None:
    """Writes a word2vec file, and the counts as `word count` lines.

    Words with white space are renamed with underscores, with a warning.

    Raises:
      errors.UserError: A file cannot be written.
      ValueError: `fvocab` is given, but no counts are known.
    """
    if fvocab is not None and self.counts is None:
      raise ValueError('no counts are known: leave out fvocab')
    num_renamed = word2vec_format.write(
      fname, self.index_to_key, self.vectors, binary
    )
    if fvocab is not None:
      word2vec_format.write_vocab(fvocab, self.index_to_key, self.counts)
    if num_renamed:
      warnings.warn(
        f'{fname}: {num_renamed:,} words with white space were written with '
        'underscores',
        stacklevel=2,
      )

  def _direction(self, key: keys.Key) -> np.ndarray:
    """A word's vector at length 1; a vector as it is."""
    if isinstance(key, np.ndarray):
      return key
    return self.get_vector(key, norm=True)

  def _cosines(self, target: np.ndarray, limit: int | None) -> np.ndarray:
    """[rows of the words searched] float32: products with unit vectors."""
    limit = nearest.num_rows(self.sense_table, limit)
    products = np.dot(self.vectors[:limit], target)
    return products / nearest.divisors(self.norms[:limit])

  def _rank(
    self,
    scores: np.ndarray,
    given: list[keys.Key],
    topn: int | None,
    min_prior: float = 0.0,
  ) -> list[tuple[str, float]] | np.ndarray:
    if topn is None:
      return scores
    out = {self.get_index(x) for x in given if not isinstance(x, np.ndarray)}
    table = self.sense_table
    if table is None:
      best = nearest.rows(scores, out, topn)
    else:
      best = nearest.rows_of_words(scores, table, out, topn, min_prior)
    return [(self.index_to_key[i], float(scores[i])) for i in best.tolist()]


def load(path: pathlib.Path | str) -> Embeddings:
  """Loads vectors, whatever form they are in.

  Args:
    path: The workdir of a run, its export folder or vectors.npy (mapped into
      memory, not read), or a word2vec, GloVe or fastText .vec file, text or
      binary, plain or .gz.

  Returns:
    The vectors; what had to be replaced or left out is warned of.

  Raises:
    errors.UserError: Missing, not recognised, cut or damaged.
  """
  path = pathlib.Path(path)
  if path.is_dir() or path.name == 'vectors.npy':
    return Embeddings(*exports.read(path))
  loaded = word2vec_format.read(path)
  for remark in loaded.remarks:
    warnings.warn(f'{path}: {remark}', stacklevel=2)
  return Embeddings(loaded.words, loaded.vectors)
