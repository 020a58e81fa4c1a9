"""Trained vectors and queries, with the names and answers of gensim.

`Embeddings` has the queries of gensim's `KeyedVectors`, except `wmdistance`,
`get_vecattr` and `indexer=`. It cannot be changed: `add_vector` and its like
are not there. An integer is a name here, that of a node, item or token; `row`
takes numbers of rows.

Vectors stay as they are stored, perhaps in a memory-mapped file; only their
lengths are cached, no normalized copy.
"""

import dataclasses
import functools
import itertools
import numbers
import pathlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy  # parts of it are loaded when they are used

from jaxemb import errors
from jaxemb.evaluation import benchmarks, contexts, geometry, multivectors
from jaxemb.evaluation import words as words_lib
from jaxemb.storage import atomic, bucket, export, word2vec_format

Word = str | int  # 7 is the word '7'
# A word or a [dim] vector; in sums perhaps with a weight.
Key = Word | np.ndarray
Weighted = Key | tuple[Key, float]
Ranked = list[tuple[str, float]] | np.ndarray
_REQUIRED = object()
_UNCHANGED = (
  'vectors cannot be changed; make another Embeddings(words, vectors)'
)
_INSTEAD = {  # of what gensim has, and had
  'add_vector': _UNCHANGED,
  'add_vectors': _UNCHANGED,
  'set_vecattr': _UNCHANGED,
  'get_vecattr': 'counts are counts[get_index(word)]',
  'wmdistance': "gensim's takes files of save_word2vec_format",
  'load_word2vec_format': 'jaxemb.load reads files',
  'index2word': 'words are index_to_key',
  'vocab': 'rows of words are key_to_index',
  'wv': 'these are the vectors',
}
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
    relations = self.relations
    if relations and relations.targets is not None:
      relations = relations._replace(targets=np.array(relations.targets))
    vectors = np.array(self.vectors)
    return dataclasses.replace(self, vectors=vectors, relations=relations)

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
    name = _name(word)
    return isinstance(name, str) and (self._row(name) >= 0 or name in words)

  def __getattr__(self, name: str) -> Any:
    """Raises an `AttributeError` that says what stands for gensim's `name`."""
    line = f'{type(self).__name__!r} object has no attribute {name!r}'
    if hint := _INSTEAD.get(name):
      line += f'; {hint}'
    raise AttributeError(line)

  def __iter__(self) -> Iterator[str]:
    return iter(self.index_to_key)

  def __repr__(self) -> str:
    return f'Embeddings({len(self):,} words x {self.vector_size})'

  def __getitem__(self, words: Key | Sequence[Key]) -> np.ndarray:
    """[dim] vector of a word, or [words, dim] vectors of a list."""
    if isinstance(words, (str, numbers.Real)):
      return self.get_vector(words)
    if isinstance(words, slice):
      raise TypeError('rows are in `vectors`, and `row` takes their numbers')
    rows = [self.get_vector(word) for word in words]
    return np.array(rows, np.float32).reshape(-1, self.vector_size)

  def _row(self, word):
    """Returns -1 if unknown; white space is looked up as underscores, too."""
    row = self.key_to_index.get(word, -1)
    if row == -1 and word:
      name = word2vec_format.spell([word])[0][0]
      # Where another word has that name, two rows might be meant.
      if f'{name}_' not in self.key_to_index:
        row = self.key_to_index.get(name, -1)
    return row

  def get_index(self, word: Word, default: Any = _REQUIRED) -> Any:
    """Returns the row of a word; of an unknown one, `default` if given."""
    name, row = _name(word), -1
    if isinstance(name, str):
      row = self._row(name)
      if row == -1 and self.sense_table and name in self.sense_table.index:
        best, _ = max(self.senses(name), key=lambda sense: sense[1])
        row = self.key_to_index[best]
    if row >= 0:
      return row
    if default is _REQUIRED:
      raise errors.UnknownWordError(word, self.index_to_key)
    return default

  def has_index_for(self, word: Word) -> bool:
    """Returns whether a word has a vector, as `in` does."""
    return word in self

  def row(self, number: int) -> np.ndarray:
    """Returns a row by its number from 0 on, [dim] float32, read-only.

    The word of that row is `index_to_key[number]`. Raises an `IndexError`.
    """
    if not 0 <= number < len(self):
      raise IndexError(f'there is no row {number} among {len(self):,}')
    return self.get_vector(self.index_to_key[number])

  def get_vector(self, word: Word, norm: bool = False) -> np.ndarray:
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

  def similarity(self, w1: Word, w2: Word) -> float:
    """Returns the cosine of two words."""
    first, second = (geometry.unit_vector(self.get_vector(w)) for w in (w1, w2))
    return float(np.dot(first, second))

  def distance(self, w1: Word, w2: Word) -> float:
    """Returns 1 minus the cosine of two words."""
    return 1 - self.similarity(w1, w2)

  def distances(
    self, word_or_vector: Key, other_words: Sequence[Word] = ()
  ) -> np.ndarray:
    """Returns 1 minus the cosines with others, or with all rows, float32."""
    target = geometry.unit_vector(self._direction(word_or_vector))
    if len(other_words):
      return 1 - geometry.unit(self[other_words]) @ target
    return 1 - self._cosines(target, None)

  @staticmethod
  def cosine_similarities(
    vector_1: np.ndarray, vectors_all: np.ndarray
  ) -> np.ndarray:
    """Returns cosines of a [dim] vector with each of [n, dim] vectors."""
    return geometry.unit(vectors_all) @ geometry.unit_vector(vector_1)

  def get_mean_vector(
    self,
    keys: Sequence[Key],
    weights: Sequence[float] | None = None,
    pre_normalize: bool = True,
    post_normalize: bool = False,
    ignore_missing: bool = True,
  ) -> np.ndarray:
    """Returns the mean of words and vectors, [dim] float32; warns of unknown.

    It is divided by the sum of absolute weights. Raises a `ValueError` if no
    word is known, and a `KeyError` for an unknown one that is not ignored.
    """
    weights = np.ones(len(keys)) if weights is None else np.asarray(weights)
    if len(weights) != len(keys):
      raise ValueError(f'{len(weights)} weights do not fit {len(keys)} keys')
    words = [x for x in keys if not isinstance(x, np.ndarray)]
    known = set(self._known(words) if ignore_missing else words)
    is_used = [isinstance(x, np.ndarray) or x in known for x in keys]
    weights = weights[is_used]
    if not np.any(weights):
      raise ValueError('none of the words has a vector and a weight')
    rows = [
      x if isinstance(x, np.ndarray) else self.get_vector(x, pre_normalize)
      for x in itertools.compress(keys, is_used)
    ]
    mean = weights @ np.stack(rows) / np.abs(weights).sum()
    return np.float32(geometry.unit_vector(mean) if post_normalize else mean)

  def n_similarity(self, ws1: Sequence[Word], ws2: Sequence[Word]) -> float:
    """Returns the cosine of the means of two groups of words."""
    means = (
      geometry.unit_vector(self.get_mean_vector(words, pre_normalize=False))
      for words in (ws1, ws2)
    )
    return float(np.dot(*means))

  def closer_than(self, key1: Word, key2: Word) -> list[str]:
    """Returns the words that are nearer to `key1` than `key2` is, by row."""
    distances = self.distances(key1)
    distances[self.get_index(key1)] = np.inf
    rows = np.flatnonzero(distances < distances[self.get_index(key2)])
    return [self.index_to_key[row] for row in rows.tolist()]

  def rank(self, key1: Word, key2: Word) -> int:
    """Returns the rank of `key2`, from 1 on, by its distance from `key1`."""
    return len(self.closer_than(key1, key2)) + 1

  def most_similar_to_given(
    self, key1: Word, keys_list: Sequence[Word]
  ) -> Word:
    """Returns the one of some words that is nearest to `key1`."""
    return keys_list[int(self.distances(key1, keys_list).argmin())]

  def relative_cosine_similarity(
    self, wa: Word, wb: Word, topn: int = 10
  ) -> float:
    """Returns the cosine of two words over the sum of the `topn` nearest."""
    near = self.most_similar(wa, topn=topn)
    return self.similarity(wa, wb) / sum(cosine for _, cosine in near)

  def vectors_for_all(self, keys: Iterable[Word]) -> 'Embeddings':
    """Returns the vectors of different words, in order; warns of unknown."""
    words = self._known(list(dict.fromkeys(map(_name, keys))))
    rows = [self.get_index(x) for x in words]
    counts = None if self.counts is None else self.counts[rows]
    relations = self.relations
    if relations and relations.targets is not None:
      relations = relations._replace(targets=relations.targets[rows])
    return Embeddings(words, self[words], counts, relations=relations)

  def _known(self, words: Sequence[Word]) -> list[Word]:
    """Returns the words that have vectors; warns of others."""
    is_known = [word in self for word in words]
    if not all(is_known):
      unknown = itertools.compress(words, np.logical_not(is_known))
      line = f'left out, without vectors: {", ".join(map(str, unknown))}'
      warnings.warn(line, stacklevel=3)
    return list(itertools.compress(words, is_known))

  def edge_scores(self, edges: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Returns the scores that rank held-out edges, [n] float32.

    Edges are pairs of nodes; where relations have operators, a source, relation
    and target, of which the score is that of `related` and the target. It is
    the product, distance or cosine that the model was trained with, by vectors
    of targets if these are others; after walks the cosine.
    """
    if not len(edges):
      return np.zeros(0, np.float32)
    from jaxemb.models import edge_scores  # and with it JAX

    score, targets = edge_scores.of_relations(self.relations), self.vectors
    sources, *relations, ends = zip(*edges, strict=True)
    if relations:
      mapped = self._operated(sources, *relations)
    elif score.operator == 'none':
      mapped = self[sources]
    else:
      raise errors.UserError(
        'edges of this model have relations: give (source, relation, target) '
        f'with one of {", ".join(self.relations.names[:5])}'
      )
    if self.relations and self.relations.targets is not None:
      targets = self.relations.targets
    ends = targets[[self.get_index(x) for x in ends]]
    return np.asarray(score.of_pairs(mapped, ends))

  def related(self, source: str, relation: str) -> np.ndarray:
    """Applies the operator of a relation to a node's vector, [dim] float32.

    Targets are the nodes that score highest beside the result, as by their
    product with it, and sources those beside the result of 'RELATION (inverse)'
    for a target. Raises a `UserError` for a run
    without operators, or without this one.
    """
    return self._operated([source], [relation])[0]

  def _operated(self, sources, relations):
    """Applies operators of relations to vectors of nodes, [n, dim] float32."""
    names = self.relations.names if self.relations else ()
    index = {name: i for i, name in enumerate(names)}
    relations = [*map(_name, relations)]
    if unknown := [x for x in relations if x not in index]:
      raise errors.UserError(
        f'there is no operator of a relation {unknown[0]!r}, but '
        f'{", ".join(names[:5]) or "none"}; train graph:relations with an '
        'operator, or give one of these'
      )
    from jaxemb.models import edge_scores  # and with it JAX

    rows = self.relations.rows[[index[x] for x in relations]]
    score = edge_scores.of_relations(self.relations)
    return np.asarray(score.operate(self[sources], rows))

  def most_similar(
    self,
    positive: Weighted | Sequence[Weighted] = (),
    negative: Weighted | Sequence[Weighted] = (),
    topn: int | None = 10,
    clip_start: int = 0,
    clip_end: int | None = None,
    restrict_vocab: int | None = None,
    sense: int | None = None,
    min_prior: float = 0.0,
  ) -> Ranked:
    """Finds the words nearest to a sum of words minus others (3CosAdd).

    Arguments are words or [dim] vectors, alone or in lists, perhaps as (word,
    weight); default weights are 1 and -1. Only words from `clip_start` to
    `clip_end` are searched, or the first `restrict_vocab`. A word with several
    senses occurs once, as the nearest sense of at least `min_prior`; `sense`
    selects a sense of a single word.

    Returns (word, cosine) by falling cosine, without the arguments; with `topn`
    None, float32 cosines of the rows searched. Raises a `ValueError` without
    arguments, and a `UserError` if the sum is zero or a vector does not fit.
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
    if restrict_vocab is not None:
      clip_start, clip_end = 0, restrict_vocab
    scores = self._cosines(geometry.unit_vector(target), clip_end)
    return self._rank(
      scores,
      query=[key for key, _ in items],
      topn=topn,
      min_prior=min_prior,
      start=self._num_rows(clip_start),
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

  def similar_by_word(
    self, word: Word, topn: int | None = 10, restrict_vocab: int | None = None
  ) -> Ranked:
    """Finds the words nearest to a word; see `most_similar`."""
    return self.most_similar([word], topn=topn, restrict_vocab=restrict_vocab)

  similar_by_key = similar_by_word

  def similar_by_vector(
    self,
    vector: np.ndarray,
    topn: int | None = 10,
    restrict_vocab: int | None = None,
  ) -> Ranked:
    """Finds the words nearest to a [dim] vector; see `most_similar`."""
    vector = np.asarray(vector, np.float32)
    return self.most_similar([vector], topn=topn, restrict_vocab=restrict_vocab)

  def analogy(self, a: str, b: str, c: str, topn: int | None = 10) -> Ranked:
    """Finds words d such that a is to b as c is to d (3CosAdd)."""
    return self.most_similar([b, c], [a], topn=topn)

  def senses(self, word: str) -> list[tuple[str, float]]:
    """Returns (name of the row, prior) of every sense of a word."""
    table, word = self.sense_table, _name(word)
    if table is None or word not in table.index:
      row = self.get_index(word)
      prior = 1.0 if table is None else float(table.priors[row])
      return [(self.index_to_key[row], prior)]
    rows = table.rows(table.index[word])
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
    known = self._known(words)
    if not known:
      raise ValueError('none of the words has a vector')
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
      'analogies', analogies, restrict_vocab, case_insensitive
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
      fname, words, self.vectors, is_binary=binary, has_header=write_header
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
    if not isinstance(key, np.ndarray):
      return self.get_vector(key, norm=True)
    if key.shape != (self.vector_size,) or not np.isfinite(key).all():
      raise errors.UserError(
        f'a vector of shape {key.shape} was given; give one of '
        f'{self.vector_size} finite numbers'
      )
    return key

  def _num_rows(self, num_words: int | None) -> int | None:
    """Returns how many rows the first words have; None = all."""
    if num_words is None or self.sense_table is None:
      return num_words
    return int(self.sense_table.starts[: num_words + 1][-1])

  def _cosines(self, target: np.ndarray, num_words: int | None) -> np.ndarray:
    """Returns products of unit vectors and the target, float32 by row."""
    limit = self._num_rows(num_words)
    products = np.dot(self.vectors[:limit], target)
    return products / geometry.divisors(self.norms[:limit])

  def _rank(
    self,
    scores: np.ndarray,
    query: list[Key],
    topn: int | None,
    min_prior: float = 0.0,
    start: int = 0,
  ) -> Ranked:
    if topn is None:
      return scores[start:]
    rows = {self.get_index(x) for x in query if not isinstance(x, np.ndarray)}
    # A word that was never trained has no neighbors.
    known = np.where(self.norms[: len(scores)] > 0, scores, -np.inf)
    known[:start] = -np.inf
    senses = self.sense_table
    best = geometry.nearest(
      known, excluded=rows, num=topn, senses=senses, min_prior=min_prior
    )
    return [(self.index_to_key[i], float(scores[i])) for i in best.tolist()]


def _name(word: object) -> object:
  """Returns the name of a number or flag, such as '7' of 7.0; other words."""
  if not isinstance(word, numbers.Real | np.bool_):
    return word
  from jaxemb.io import columns  # which numba is loaded for

  return columns.name(word)


def _as_list(items: object) -> list:
  """Returns a list of a single item or of several, perhaps with weights.

  Raises a `ValueError` for two numbers, of which the second might be a weight.
  """
  is_weighted = (
    isinstance(items, tuple)
    and len(items) == 2
    and isinstance(items[1], numbers.Real)
    and not isinstance(items[0], tuple)
  )
  if is_weighted and isinstance(items[0], numbers.Real):
    raise ValueError(
      f'{items} may be two words, [{items[0]}, {items[1]}], or one with its '
      f'weight, [({items[0]}, {items[1]})]; give one of these lists'
    )
  is_vector = (
    isinstance(items, np.ndarray)
    and items.ndim == 1
    and items.dtype.kind == 'f'
  )
  if isinstance(items, (str, bytes, numbers.Real)) or is_weighted or is_vector:
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
  if not folder:
    return Embeddings(words, vectors, counts)
  senses = multivectors.read(
    folder, names=words, counts=counts, vectors=vectors
  )
  relations = export.read_relations(folder, num_nodes=len(words))
  return Embeddings(
    words, vectors, counts, sense_table=senses, relations=relations
  )


def model_folder(path: pathlib.Path | str) -> pathlib.Path | None:
  """Returns the folder of a model that predicts, or None for vectors."""
  folders = pathlib.Path(path), pathlib.Path(path, 'export')
  return next((x for x in folders if (x / 'model.json').is_file()), None)
