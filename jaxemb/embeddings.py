"""Trained vectors and queries, with the names and answers of gensim.

`Embeddings` has the methods and arguments of gensim's `KeyedVectors`. Vectors
stay as they are stored, perhaps in a memory-mapped file; only their lengths are
cached, no normalized copy.
"""

import dataclasses
import functools
import numbers
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # parts of it are loaded when they are used

from jaxemb import errors
from jaxemb.evaluation import benchmarks, contexts, geometry, multivectors
from jaxemb.evaluation import words as words_lib
from jaxemb.storage import atomic, bucket, export, word2vec_format

# A word, a row or a [dim] vector; in sums perhaps with a weight.
Key = str | int | np.ndarray
Weighted = Key | tuple[Key, float]
Ranked = list[tuple[str, float]] | np.ndarray
_GROUP_ROWS = 1 << 17  # of Parquet, which are in memory at once


@dataclasses.dataclass(frozen=True, eq=False)
class Embeddings:
  """Words with their vectors, the most frequent first.

  A word without a vector raises an `errors.UnknownWordError`, a `KeyError`.
  """

  index_to_key: list[str]  # [vocab] different words
  vectors: np.ndarray  # [vocab, dim] float32; may be memory-mapped
  counts: np.ndarray | None = None  # [vocab] int64 in the corpus, if known
  # Of words with several vectors, whose rows are `word#0`, `word#1`.
  sense_table: multivectors.MultiVectors | None = None
  # Of vectors of nodes that were trained with operators.
  relations: export.Relations | None = None

  def __post_init__(self):
    shapes = (len(self.index_to_key), len(self.vectors), len(self.key_to_index))
    if self.vectors.ndim != 2 or len(set(shapes)) != 1:
      raise ValueError(
        f'{shapes[0]} words ({shapes[2]} different) do not fit vectors of '
        f'shape {self.vectors.shape}'
      )

  def in_memory(self) -> 'Embeddings':
    """Returns a copy whose vectors do not depend on a file."""
    return dataclasses.replace(self, vectors=np.array(self.vectors))

  @functools.cached_property
  def key_to_index(self) -> dict[str, int]:
    """Returns the row of each word."""
    return {word: row for row, word in enumerate(self.index_to_key)}

  @functools.cached_property
  def norms(self) -> np.ndarray:
    """Returns lengths of the vectors, [vocab] float32.

    Raises a `UserError` for one that is not finite.
    """
    norms = geometry.norms(self.vectors)
    if not (is_finite := np.isfinite(norms)).all():
      row = int(is_finite.argmin())
      raise errors.UserError(
        f'the vector of {self.index_to_key[row]!r} (row {row}) is not finite; '
        'mend or remove it'
      )
    return norms

  @property
  def vector_size(self) -> int:
    """Returns the dimension of the vectors."""
    return self.vectors.shape[1]

  def __len__(self) -> int:
    return len(self.index_to_key)

  def __contains__(self, word: object) -> bool:
    words = self.sense_table.index if self.sense_table else ()
    return isinstance(word, str) and (self._row(word) >= 0 or word in words)

  def __repr__(self) -> str:
    return f'Embeddings({len(self):,} words x {self.vector_size})'

  def __getitem__(self, words: Key | Sequence[Key]) -> np.ndarray:
    """[dim] vector of a word, or [words, dim] vectors of a list."""
    if isinstance(words, (str, numbers.Integral)):
      return self.get_vector(words)
    return np.stack([self.get_vector(word) for word in words])

  def _row(self, word):
    """Returns -1 if unknown; white space is looked up as underscores, too."""
    row = self.key_to_index.get(word, -1)
    if row == -1 and word:
      name = word2vec_format.spell([word])[0][0].decode()
      # Where another word has that name, two rows might be meant.
      if f'{name}_' not in self.key_to_index:
        row = self.key_to_index.get(name, -1)
    return row

  def get_index(self, word: str | int) -> int:
    """Returns the row of a word; a row number stands for itself."""
    row = self._row(word) if isinstance(word, str) else word
    if row == -1 and self.sense_table and word in self.sense_table.index:
      name, _ = max(self.senses(word), key=lambda sense: sense[1])
      row = self.key_to_index[name]
    if not isinstance(row, numbers.Integral) or not 0 <= row < len(self):
      raise errors.UnknownWordError(word, self.index_to_key)
    return int(row)

  def get_vector(self, word: str | int, norm: bool = False) -> np.ndarray:
    """Returns a word's vector, [dim] float32, read-only; length 1 if `norm`."""
    row = self.get_index(word)
    vector = self.vectors[row]
    if norm:
      vector = vector / (self.norms[row] or np.float32(1))
    vector.setflags(write=False)
    return vector

  def get_normed_vectors(self) -> np.ndarray:
    """Returns a copy of all vectors at length 1, [vocab, dim] float32."""
    return geometry.unit(self.vectors, self.norms)

  def similarity(self, w1: str, w2: str) -> float:
    """Returns the cosine of two words."""
    first, second = (geometry.unit_vector(self.get_vector(w)) for w in (w1, w2))
    return float(np.dot(first, second))

  def edge_scores(self, edges: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Returns the scores that rank held-out edges, [n] float32.

    The score of a pair of nodes is their cosine. That of a source, relation and
    target, in a run with operators, is the product of `related` and the target,
    or their cosine if a temperature was set.
    """
    if any(len(x) == 3 for x in edges):
      sources, relations, targets = zip(*edges, strict=True)
      mapped, ends = self._operated(sources, relations), self[targets]
      if self.relations.is_cosine:
        mapped, ends = geometry.unit(mapped), geometry.unit(ends)
      return np.vecdot(mapped, ends)
    rows = [[self.get_index(x) for x in edge] for edge in edges]
    first, second = (
      geometry.unit(self.vectors[x], self.norms[x])
      for x in np.array(rows, np.int64).reshape(-1, 2).T
    )
    return np.vecdot(first, second)

  def related(self, source: str, relation: str) -> np.ndarray:
    """Applies the operator of a relation to a node's vector, [dim] float32.

    The targets are near the result (`similar_by_vector`); sources are near the
    result of 'RELATION (inverse)' for a target. Raises a `UserError` for a run
    without operators, or without this one.
    """
    return self._operated([source], [relation])[0]

  def _operated(self, sources, relations):
    """Applies operators of relations to vectors of nodes, [n, dim] float32."""
    names = self.relations.names if self.relations else ()
    index = {name: i for i, name in enumerate(names)}
    if unknown := [x for x in relations if x not in index]:
      raise errors.UserError(
        f'there is no operator of a relation {unknown[0]!r}, but '
        f'{", ".join(names[:5]) or "none"}; train graph:relations with an '
        'operator, or give one of these'
      )
    from jaxemb.ops import operators  # and with it JAX

    rows = self.relations.rows[[index[x] for x in relations]]
    operator = self.relations.operator
    return np.asarray(operators.apply(operator, self[sources], rows))

  def most_similar(
    self,
    positive: Weighted | Sequence[Weighted] = (),
    negative: Weighted | Sequence[Weighted] = (),
    topn: int | None = 10,
    restrict_vocab: int | None = None,
    sense: int | None = None,
    min_prior: float = 0.0,
  ) -> Ranked:
    """Finds the words nearest to a sum of words minus others (3CosAdd).

    Arguments are words, rows or [dim] vectors, alone or in lists, perhaps as
    (word, weight); default weights are 1 and -1. Only the first
    `restrict_vocab` words are searched. A word with several senses occurs once,
    as the nearest sense of at least `min_prior`; `sense` selects a sense of a
    single word.

    Returns (word, cosine) by falling cosine, without the arguments; with `topn`
    None, float32 cosines of the rows searched. Raises a `ValueError` without
    arguments, and a `UserError` if the sum is zero.
    """
    positive, negative = _as_list(positive), _as_list(negative)
    if sense is not None:
      if len(positive) != 1 or negative or not isinstance(positive[0], str):
        raise ValueError('sense selects a sense of a single word')
      names = [name for name, _ in self.senses(positive[0])]
      if not 0 <= sense < len(names):
        line = f'{positive[0]!r} has {len(names)} senses, from 0 up'
        raise errors.UserError(line)
      positive = [names[sense]]
    items = [x if isinstance(x, tuple) else (x, 1.0) for x in positive]
    items += [x if isinstance(x, tuple) else (x, -1.0) for x in negative]
    if not items:
      raise ValueError('give at least one word or vector')
    target = sum(weight * self._direction(key) for key, weight in items)
    if not np.any(target):
      words = ', '.join(str(x) for x, _ in items if isinstance(x, str))
      raise errors.UserError(
        f'the sum of {words or "the vectors"} is a vector of zeros, which has '
        'no neighbors; give other words, or train longer'
      )
    scores = self._cosines(geometry.unit_vector(target), restrict_vocab)
    return self._rank(
      scores, query=[key for key, _ in items], topn=topn, min_prior=min_prior
    )

  def most_similar_cosmul(
    self,
    positive: Key | Sequence[Key] = (),
    negative: Key | Sequence[Key] = (),
    topn: int | None = 10,
    restrict_vocab: int | None = None,
  ) -> Ranked:
    """Ranks words by products of cosines (3CosMul, Levy and Goldberg 2014).

    Like `most_similar`, without weights, and with quotients in place of cosines
    (equation 4).
    """
    positive, negative = _as_list(positive), _as_list(negative)
    if not positive:
      raise ValueError('give at least one positive word or vector')

    def product(keys: list[Key]) -> np.ndarray | float:
      directions = map(self._direction, keys)
      factors = ((1 + self._cosines(x, restrict_vocab)) / 2 for x in directions)
      return functools.reduce(np.multiply, factors, np.float32(1))

    scores = product(positive) / (product(negative) + np.float32(1e-6))
    return self._rank(scores, positive + negative, topn)

  def similar_by_vector(
    self,
    vector: np.ndarray,
    topn: int | None = 10,
    restrict_vocab: int | None = None,
  ) -> Ranked:
    """Finds the words nearest to a [dim] vector; see `most_similar`."""
    return self.most_similar(
      [np.asarray(vector)],
      negative=(),
      topn=topn,
      restrict_vocab=restrict_vocab,
    )

  def analogy(self, a: str, b: str, c: str, topn: int | None = 10) -> Ranked:
    """Finds words d such that a is to b as c is to d (3CosAdd)."""
    return self.most_similar([b, c], [a], topn)

  def senses(self, word: str) -> list[tuple[str, float]]:
    """Returns (name of the row, prior) of every sense of a word."""
    table = self.sense_table
    if table is None:
      return [(self.index_to_key[self.get_index(word)], 1.0)]
    if word in table.index:
      rows = table.rows(table.index[word])
    else:
      row = self.get_index(word)
      rows = slice(row, row + 1)
    names, priors = self.index_to_key[rows], table.priors[rows].tolist()
    return list(zip(names, priors, strict=True))

  def disambiguate(
    self, sentence: Sequence[str] | str, position: int, window: int = 0
  ) -> np.ndarray:
    """Returns probabilities of the senses of a word in a sentence, [senses].

    `sentence` is a list of tokens, or a string that is split at white space.
    `window` known words on each side are used, 0 = as many as in training.
    Raises a `UserError` for a position outside the sentence or a negative
    window.
    """
    table = self.sense_table
    known = self.key_to_index if table is None else table.index
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
    word = multivectors.spelled(tokens[position], known)
    if word is None:
      raise errors.UnknownWordError(tokens[position], list(known))
    if table is None:
      return np.ones(1)
    context = table.context(tokens, position, window)
    return table.posterior(table.index[word], context)

  def of_words(self) -> 'Embeddings':
    """Returns one vector per word, the mean of its senses by priors."""
    table = self.sense_table
    if table is None:
      return self
    return Embeddings(table.words, table.mean_vectors(), table.counts)

  def doesnt_match(self, words: Sequence[str]) -> str:
    """Returns the word farthest from the mean of all; warns of unknown words.

    Raises a `ValueError` if no word is known.
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

  def evaluate(
    self,
    eval_sets: Sequence[benchmarks.Benchmark],
    restrict_vocab: int = 300_000,
    window: int = 0,
  ) -> dict[str, dict]:
    """Returns the results of `evaluation.words`, and of words in contexts.

    `window` known words on each side disambiguate; 0 = as many as in training.
    """
    words = self.of_words()
    results = words_lib.evaluate(
      words.index_to_key,
      words.vectors,
      eval_sets,
      restrict_vocab=restrict_vocab,
    )
    if self.sense_table is not None:
      results |= contexts.evaluate(self.sense_table, eval_sets, window)
    return results

  def evaluate_word_pairs(
    self,
    pairs: pathlib.Path | str,
    delimiter: str | None = None,
    restrict_vocab: int | None = 300_000,
    case_insensitive: bool = True,
    dummy4unknown: bool = False,
  ) -> tuple[tuple, tuple, float]:
    """Correlates cosines with the ratings of a similarity benchmark.

    Returns (Pearson's r, p), (Spearman's rho, p) and the percentage of pairs
    with an unknown word, which are left out or, with `dummy4unknown`, have
    cosine 0. Raises a `UserError` for a file that cannot be read, or if fewer
    than two pairs count.
    """
    benchmark, searched = self._read(
      'similarity', pairs, restrict_vocab, case_insensitive, delimiter
    )
    cosines = searched.pair_cosines(benchmark)
    is_known = ~np.isnan(cosines)
    counts = is_known | dummy4unknown
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

  def evaluate_word_analogies(
    self,
    analogies: pathlib.Path | str,
    restrict_vocab: int | None = 300_000,
    case_insensitive: bool = True,
    dummy4unknown: bool = False,
    similarity_function: str = 'most_similar',
  ) -> tuple[float, list[dict]]:
    """Answers the questions of an analogy benchmark.

    Returns the fraction answered right, and per section, with 'Total accuracy'
    last, {'section', 'correct', 'incorrect'}: its name and lists of questions.
    Those with an unknown word are left out or, with `dummy4unknown`, wrong.
    `similarity_function` is 'most_similar' or 'most_similar_cosmul' (gensim 4.4
    ignores it and takes the first). Raises a `UserError` for a file that cannot
    be read or holds no analogies.
    """
    functions = ('most_similar', 'most_similar_cosmul')
    if similarity_function not in functions:
      raise ValueError(f'similarity_function is one of {", ".join(functions)}')
    measure = functions.index(similarity_function)
    benchmark, searched = self._read(
      'analogies',
      path=analogies,
      limit=restrict_vocab,
      is_upper=case_insensitive,
    )
    is_found, is_right = searched.solve(benchmark)
    sections = {
      name: {'section': name, 'correct': [], 'incorrect': []}
      for name in (*benchmark.labels, 'Total accuracy')
    }
    total = sections['Total accuracy']
    for i, question in enumerate(benchmark.words):
      if case_insensitive:
        question = tuple(word.upper() for word in question)
      if is_found[i] or dummy4unknown:
        side = 'correct' if is_right[i, measure] else 'incorrect'
        for section in (sections[benchmark.labels[i]], total):
          section[side].append(question)
    num_right, num_wrong = len(total['correct']), len(total['incorrect'])
    fraction = num_right / max(num_right + num_wrong, 1)
    return fraction, list(sections.values())

  def save(self, folder: pathlib.Path | str) -> None:
    """Writes vectors.npy, vocab.txt, any senses and operators, for `load`.

    Raises a `UserError` if a file cannot be written.
    """
    export.write(
      folder,
      words=self.index_to_key,
      rows=export.Encoded(self.vectors),
      counts=self.counts,
      is_minimal=True,
    )
    multivectors.write(pathlib.Path(folder), self.sense_table)
    export.write_relations(pathlib.Path(folder), self.relations)

  def save_word2vec_format(
    self,
    fname: pathlib.Path | str,
    fvocab: pathlib.Path | str | None = None,
    binary: bool = False,
    write_header: bool = True,
  ) -> None:
    """Writes a word2vec file, and to `fvocab` the counts, `word count` a line.

    It is packed as its suffix says, such as .gz; without a header it is as
    GloVe's files are. White space in words becomes underscores, with a warning.
    Raises a `UserError` if a file cannot be written, a `ValueError` if `fvocab`
    is given but no counts are known, or for a binary file without a header.
    """
    if binary and not write_header:
      raise ValueError('a binary file needs its header')
    if fvocab is not None and self.counts is None:
      raise ValueError('no counts are known: leave out fvocab')
    words = self.index_to_key
    renamed = word2vec_format.write(
      fname,
      words,
      self.vectors,
      is_binary=binary,
      has_header=write_header,
    )
    if fvocab is not None:
      word2vec_format.write_vocab(fvocab, words, self.counts)
    if renamed:
      line = f'{renamed:,} words with white space were written with underscores'
      warnings.warn(f'{fname}: {line}', stacklevel=2)

  def save_parquet(self, fname: pathlib.Path | str) -> None:
    """Writes Parquet with the columns key, count (if known) and vector.

    Raises a `UserError` if the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    def group(start: int) -> pa.Table:
      some = slice(start, start + _GROUP_ROWS)
      flat = pa.array(np.asarray(self.vectors[some], np.float32).ravel())
      columns = {'key': pa.array(self.index_to_key[some], pa.string())}
      if self.counts is not None:
        columns['count'] = pa.array(self.counts[some])
      size = self.vector_size
      columns['vector'] = pa.FixedSizeListArray.from_arrays(flat, size)
      return pa.table(columns)

    with atomic.write(fname) as file:
      with parquet.ParquetWriter(file, group(0).schema) as writer:
        for start in range(0, max(1, len(self)), _GROUP_ROWS):
          writer.write_table(group(start))

  def _read(
    self, kind: str, path: Any, limit: int | None, is_upper: bool, *delimiter
  ) -> tuple[benchmarks.Benchmark, words_lib.Searched]:
    """Reads a benchmark of this kind; returns the words to answer it, too."""
    benchmark = benchmarks.read(path, *delimiter)
    if benchmark is None or benchmark.kind != kind:
      raise errors.UserError(f'{path} is no benchmark of {kind}')
    words = self.of_words()
    return benchmark, words_lib.Searched(
      words=words.index_to_key,
      vectors=words.vectors,
      restrict_vocab=limit,
      is_upper=is_upper,
    )

  def _direction(self, key: Key) -> np.ndarray:
    """Returns a word's vector at length 1; a vector as it is."""
    is_vector = isinstance(key, np.ndarray)
    return key if is_vector else self.get_vector(key, norm=True)

  def _cosines(self, target: np.ndarray, num_words: int | None) -> np.ndarray:
    """Returns products of unit vectors and the target, float32 by row."""
    limit, senses = num_words, self.sense_table
    if limit is not None and senses is not None:
      limit = int(senses.starts[: limit + 1][-1])
    products = np.dot(self.vectors[:limit], target)
    return products / geometry.divisors(self.norms[:limit])

  def _rank(
    self,
    scores: np.ndarray,
    query: list[Key],
    topn: int | None,
    min_prior: float = 0.0,
  ) -> Ranked:
    if topn is None:
      return scores
    rows = {self.get_index(x) for x in query if not isinstance(x, np.ndarray)}
    # A word that was never trained has no neighbors.
    known = np.where(self.norms[: len(scores)] > 0, scores, -np.inf)
    best = geometry.nearest(
      known,
      excluded=rows,
      num=topn,
      senses=self.sense_table,
      min_prior=min_prior,
    )
    return [(self.index_to_key[i], float(scores[i])) for i in best.tolist()]


def _as_list(items: object) -> list:
  """Returns a list of a single item or of several, perhaps with weights."""
  is_weighted = (
    isinstance(items, tuple)
    and len(items) == 2
    and isinstance(items[1], numbers.Real)
    and not isinstance(items[0], tuple)
  )
  is_vector = isinstance(items, np.ndarray) and items.ndim == 1
  if isinstance(items, (str, numbers.Integral)) or is_weighted or is_vector:
    return [items]
  return [] if items is None else list(items)


def load_vectors(
  path: pathlib.Path | str, encoding: str = 'utf-8'
) -> Embeddings:
  """Loads vectors of any format; warns of lines that were left out.

  Reads a workdir, its export folder or vectors.npy (memory-mapped), or a
  word2vec, GloVe or fastText .vec file, text or binary, plain or packed, with
  words in `encoding`. Runs may be in a bucket. Raises a `UserError` if the file
  is missing, not recognized, cut or damaged.
  """
  if bucket.is_url(path):
    with bucket.opened(path) as folder:
      return load_vectors(folder, encoding).in_memory()
  if folder := model_folder(path):
    raise errors.UserError(
      f'{folder} has a model of clicks, not vectors of words; jaxemb predict '
      'applies it'
    )
  words, vectors, counts, folder = export.read(path, encoding)
  senses = (
    multivectors.read(folder, names=words, counts=counts, vectors=vectors)
    if folder
    else None
  )
  relations = export.read_relations(folder) if folder else None
  return Embeddings(
    index_to_key=words,
    vectors=vectors,
    counts=counts,
    sense_table=senses,
    relations=relations,
  )


def model_folder(path: pathlib.Path | str) -> pathlib.Path | None:
  """Returns the folder of a model that predicts, or None for vectors."""
  folders = pathlib.Path(path), pathlib.Path(path, 'export')
  return next((x for x in folders if (x / 'model.json').is_file()), None)
