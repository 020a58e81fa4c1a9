"""Trained vectors and queries, with the names and answers of gensim.

`Embeddings` has what gensim's `KeyedVectors` has; what it lacks raises an
`AttributeError` that says what to use instead (docs/gensim.md). An integer is a
name here, that of a node, item or token; `row` takes numbers of rows.

Vectors stay as they are stored, perhaps in a memory-mapped file, until they are
changed; only their lengths are cached, no normalized copy.
"""

import collections
import dataclasses
import functools
import itertools
import math
import numbers
import pathlib
import types
import warnings
from collections.abc import (
  Callable,
  Container,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Any

import numpy as np

from jaxemb import errors, gensim_names, vector_files
from jaxemb.evaluation import (
  benchmarks,
  contexts,
  files,
  geometry,
  multivectors,
  neighbor_index,
  word_movers,
)
from jaxemb.evaluation import subwords as subwords_lib
from jaxemb.evaluation import words as words_lib
from jaxemb.io import onnx_lookups, static_models
from jaxemb.ops import growing
from jaxemb.storage import attributes as attributes_lib
from jaxemb.storage import bucket, export, parquet, word2vec_format

Word = str | int  # 7 is the word '7'
# A word or a [dim] vector; in sums perhaps with a weight.
Key = Word | np.ndarray
Weighted = Key | tuple[Key, float]
Ranked = list[tuple[str, float]] | np.ndarray
# What is computed from an attribute, and forgotten when that is set.
_DERIVED = {
  'vectors': ('norms', '_buffer'),
  'index_to_key': ('key_to_index',),
  'norms': ('norms',),
}


@dataclasses.dataclass(init=False, eq=False, repr=False)
class Embeddings:
  """Words with their vectors, the most frequent first.

  A word without a vector raises an `errors.UnknownWordError`, a `KeyError`.
  Methods that change vectors change this object alone: the first one copies
  them into memory, and no file or array that they are from is written to.
  """

  index_to_key: list[str]  # [vocab] different words
  vectors: np.ndarray  # [vocab, dim] float32; may be memory-mapped
  counts: np.ndarray | None = None  # [vocab] int64 in the corpus, if known
  # Of words with several vectors, whose rows are `word#0`, `word#1`.
  sense_table: multivectors.MultiVectors | None = None
  # Of vectors of nodes that were trained with operators.
  relations: export.Relations | None = None
  # Further values by word, each [vocab], as `set_vecattr` sets them.
  attributes: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  # Rows of n-grams of characters, from which unseen words have vectors.
  subwords: subwords_lib.NgramVectors | None = None

  def __init__(
    self,
    index_to_key: Sequence[str] | int = (),
    vectors: np.ndarray | None = None,
    counts: np.ndarray | None = None,
    sense_table: multivectors.MultiVectors | None = None,
    relations: export.Relations | None = None,
    attributes: Mapping[str, np.ndarray] = types.MappingProxyType({}),
    subwords: subwords_lib.NgramVectors | None = None,
    *,
    vector_size: int | None = None,
    count: int = 0,
    dtype: Any = np.float32,
  ):
    """Names rows of vectors; or, as in gensim, begins without any.

    `vector_size`, or an int in place of words, is the dimension of vectors that
    are to be added, and `count` the rows that memory is reserved for.
    """
    if isinstance(index_to_key, numbers.Integral):
      index_to_key, vector_size = (), int(index_to_key)
    buffer = None
    if vectors is None:
      if vector_size is None or len(index_to_key):
        raise TypeError('give words and their vectors, or a vector_size')
      buffer = np.empty((count, vector_size), dtype)
      vectors = buffer[:0]
    self.index_to_key = list(index_to_key)
    self.vectors = vectors
    self.counts = None if counts is None else np.array(counts)
    self.sense_table = sense_table
    self.relations = relations
    self.attributes = {k: np.array(x) for k, x in attributes.items()}
    self.subwords = subwords
    if buffer is not None:
      self._buffer = buffer
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
    return dataclasses.replace(
      self,
      vectors=np.array(self.vectors),
      relations=relations,
      subwords=self.subwords and self.subwords.in_memory(),
    )

  def __setattr__(self, name: str, value: Any) -> None:
    """Sets an attribute, and forgets what was computed from it.

    After a change in `vectors` itself, `norms = None` has them computed again.
    """
    for derived in _DERIVED.get(name, ()):
      self.__dict__.pop(derived, None)
    if name != 'norms' or value is not None:
      object.__setattr__(self, name, value)

  def __getstate__(self) -> dict[str, Any]:
    """Returns what is pickled: no spare memory behind the rows."""
    return {k: x for k, x in self.__dict__.items() if k != '_buffer'}

  def __copy__(self) -> 'Embeddings':
    """Returns an object that shares the vectors until either is changed."""
    self.__dict__.pop('_buffer', None)
    return dataclasses.replace(self)

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
    """Whether a word has a vector, with subwords that of its n-grams."""
    words = self.sense_table.index if self.sense_table else ()
    name = _name(word)
    if not isinstance(name, str):
      return False
    if self._row(name) >= 0 or name in words:
      return True
    return self.subwords is not None and self.subwords.has_vector(name)

  def __getattr__(self, name: str) -> Any:
    """Raises an `AttributeError` that says what stands for gensim's `name`."""
    raise AttributeError(gensim_names.missing(type(self).__name__, name))

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

  def get_index(self, key: Word, default: Any = None) -> Any:
    """Returns the row of a word; of an unknown one, `default` if not None."""
    name, row = _name(key), -1
    if isinstance(name, str):
      row = self._row(name)
      if row == -1 and self.sense_table and name in self.sense_table.index:
        best, _ = max(self.senses(name), key=lambda sense: sense[1])
        row = self.key_to_index[best]
    if row >= 0:
      return row
    if default is None:
      raise errors.UnknownWordError(key, self.index_to_key)
    return default

  def has_index_for(self, key: Word) -> bool:
    """Returns whether a word has a row."""
    return self.get_index(key, -1) >= 0

  def row(self, number: int) -> np.ndarray:
    """Returns a row by its number from 0 on, [dim] float32, read-only.

    The word of that row is `index_to_key[number]`. Raises an `IndexError`.
    """
    if not 0 <= number < len(self):
      raise IndexError(f'there is no row {number} among {len(self):,}')
    return self.get_vector(self.index_to_key[number])

  def get_vector(self, key: Word, norm: bool = False) -> np.ndarray:
    """Returns a word's vector, [dim] float32, read-only; length 1 if `norm`."""
    row = self.get_index(key, None if self.subwords is None else -1)
    if row < 0:
      return self._unseen(key, norm)
    vector = self.vectors[row]
    if norm and isinstance(self.vectors, np.ndarray):
      vector = vector / (self.norms[row] or np.float32(1))
    elif norm:  # lengths of all words take a while
      vector = geometry.unit_vector(vector)
    vector.setflags(write=False)
    return vector

  def _unseen(self, key: Word, norm: bool) -> np.ndarray:
    """Returns the mean of the rows of a word's n-grams, read-only."""
    name = _name(key)
    vector = self.subwords.vector(name) if isinstance(name, str) else None
    if vector is None:
      raise errors.UnknownWordError(key, self.index_to_key)
    vector = geometry.unit_vector(vector) if norm else vector
    vector.setflags(write=False)
    return vector

  def ngrams(self, word: Word) -> list[tuple[str, np.ndarray]]:
    """Returns the n-grams of a word with their [dim] vectors.

    The vector of an unseen word is their mean, that of a known one the mean of
    these and a row of its own. Raises a `UserError` without subwords.
    """
    if self.subwords is None:
      raise errors.UserError(
        'these vectors have no n-grams; train with --config.model.subwords=3-6 '
        'or load a .bin of fastText'
      )
    return self.subwords.ngrams(str(_name(word)))

  def get_normed_vectors(self) -> np.ndarray:
    """Returns a copy of all vectors at length 1, [vocab, dim] float32."""
    return geometry.unit(self.vectors, self.norms)

  def fill_norms(self, force: bool = False) -> None:
    """Computes `norms`; with `force`, again, after a change in `vectors`."""
    if force:
      self.norms = None
    _ = self.norms

  def init_sims(self, replace: bool = False) -> None:
    """Computes `norms`; `replace` scales all vectors to length 1."""
    self.unit_normalize_all() if replace else self.fill_norms()

  def unit_normalize_all(self) -> None:
    """Scales all vectors of this object to length 1; zeros stay zeros."""
    self._make_room()
    lengths = self.norms
    divisors = geometry.divisors(lengths)[:, None]
    np.divide(self.vectors, divisors, out=self.vectors, casting='same_kind')
    self.norms = (lengths > 0).astype(np.float32)

  def add_vector(self, key: Word, vector: np.ndarray) -> int:
    """Adds a word; returns its row. One that has a row keeps its vector."""
    self.add_vectors([key], [vector])
    return self.key_to_index[_name(key)]

  def add_vectors(
    self,
    keys: Word | Sequence[Word],
    weights: np.ndarray | Sequence[np.ndarray],
    extras: Mapping[str, np.ndarray] | None = None,
    replace: bool = False,
  ) -> None:
    """Adds words, [n, dim] vectors and values of attributes, each [n].

    Words that have a row keep what they have unless `replace`. Values that are
    not given are zero. Raises a `UserError` for vectors or values that do not
    fit, and then changes nothing.
    """
    names, rows, values = self._checked(keys, weights, extras or {})
    new_names = {x for x in names if x not in self.key_to_index}
    self._make_room(len(new_names))
    positions = {}  # in what is added, by row
    for position, name in enumerate(names):
      row = self.key_to_index.setdefault(name, len(self.index_to_key))
      if row == len(self.index_to_key):
        self.index_to_key.append(name)
        positions[row] = position
      elif replace:
        positions[row] = position
    changed = np.array([*positions], np.int64)
    chosen = np.array([*positions.values()], np.int64)
    self.vectors[changed] = rows[chosen]
    if 'norms' in self.__dict__:
      self.norms[changed] = geometry.norms(rows[chosen])
    for name, array in values.items():
      self._values(name, array.dtype)[changed] = array[chosen]

  def __setitem__(
    self,
    keys: Word | Sequence[Word],
    weights: np.ndarray | Sequence[np.ndarray],
  ) -> None:
    """Adds a word or several, or replaces their vectors."""
    self.add_vectors(keys, weights, replace=True)

  def _checked(self, keys, weights, extras):
    """Returns names, [n, dim] vectors and [n] values of what is to be added."""
    is_one = isinstance(keys, (str, bytes, numbers.Real))
    names = [_name(x) for x in ([keys] if is_one else keys)]
    if bad := [x for x in names if not isinstance(x, str)]:
      raise errors.UserError(
        f'{bad[0]!r} is no word; give a string or a number'
      )
    rows = np.asarray(weights, self.vectors.dtype)
    rows = rows[None] if is_one and rows.ndim == 1 else rows
    shape = len(names), self.vector_size
    if rows.size == 0 and not names:
      rows = rows.reshape(shape)
    if rows.shape != shape or not np.isfinite(rows).all():
      raise errors.UserError(
        f'vectors of shape {rows.shape} were given; {shape[0]} words need '
        f'{shape} finite numbers'
      )
    values = {k: np.asarray(x) for k, x in extras.items()}
    for name, array in values.items():
      if len(array) != len(names):
        raise errors.UserError(
          f'{len(array)} values of {name!r} do not fit {len(names)} words'
        )
      known = self.expandos.get(name)
      attributes_lib.holding(known, name, dtype=array.dtype, num_words=0)
    return names, rows, values

  def _make_room(self, num_new: int = 0) -> None:
    """Copies the vectors into memory, and adds rows and zeros for new words.

    Raises a `UserError` if they cannot be changed.
    """
    self._check_changeable()
    norms = self.__dict__.get('norms')
    total = len(self) + num_new
    buffer = self.__dict__.get('_buffer')
    buffer = growing.with_room(self.vectors, buffer, num_new)
    self.vectors = buffer[:total]
    self._buffer = buffer
    if norms is not None:
      self.norms = growing.with_zeros(norms, num_new)
    if num_new and self.counts is not None:
      self.counts = growing.with_zeros(self.counts, num_new)
    for name, values in self.attributes.items():
      self.attributes[name] = growing.with_zeros(values, num_new)

  def _check_changeable(self) -> None:
    """Raises a `UserError` where further vectors belong to the rows."""
    targets = self.relations and self.relations.targets
    if self.sense_table is not None or targets is not None:
      raise errors.UserError(
        'vectors of senses, or of nodes that have others as targets, cannot be '
        'changed; change Embeddings(words, vectors) of them'
      )

  @property
  def expandos(self) -> Mapping[str, np.ndarray]:
    """Returns the attributes of words by name, each [vocab], and counts."""
    counts = {} if self.counts is None else {'count': self.counts}
    return types.MappingProxyType({**counts, **self.attributes})

  def set_vecattr(self, key: Word, attr: str, val: Any) -> None:
    """Sets an attribute of a word, such as 'count'.

    The first value of an attribute determines its type, and is zero for other
    words. Raises a `TypeError` for a value of another type.
    """
    row = self.get_index(key)
    self._values(attr, np.asarray(val).dtype)[row] = val

  def get_vecattr(self, key: Word, attr: str) -> Any:
    """Returns an attribute of a word; raises a `KeyError` if there is none.

    Unknown counts are made up, with a warning, to fall by row as in gensim.
    """
    row = self.get_index(key)
    if attr == 'count' and self.counts is None:
      warnings.warn('no counts are known; they are made up', stacklevel=2)
      return len(self) - row
    if attr not in self.expandos:
      names = ', '.join(self.expandos) or 'none'
      raise KeyError(f'no attribute {attr!r}, but {names}')
    return self.expandos[attr][row]

  def _values(self, name: str, dtype: np.dtype) -> np.ndarray:
    """Returns the [vocab] values of an attribute, which may be new.

    Raises a `TypeError` if it cannot hold values of a type.
    """
    values = attributes_lib.holding(
      self.expandos.get(name), name, dtype=dtype, num_words=len(self)
    )
    if name == 'count':
      self.counts = values
    else:
      self.attributes[name] = values
    return values

  def sort_by_descending_frequency(self) -> None:
    """Sorts the rows by falling counts; without counts, warns and does not."""
    if self.counts is None:
      warnings.warn('no counts are known; rows stay as they are', stacklevel=2)
      return
    order = growing.descending(self.counts)
    if (np.diff(order) > 0).all():
      return
    self._check_changeable()
    self.index_to_key = [self.index_to_key[row] for row in order.tolist()]
    self.vectors = self._buffer = self.vectors[order]
    self.counts = self.counts[order]
    self.attributes = {k: x[order] for k, x in self.attributes.items()}

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
    limit = distances[self.get_index(key2)]
    distances[self.get_index(key1)] = np.inf
    rows = np.flatnonzero(distances < limit)
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

  def vectors_for_all(
    self,
    keys: Iterable[Word],
    allow_inference: bool = True,
    copy_vecattrs: bool = False,
  ) -> 'Embeddings':
    """Returns the vectors of different words, in order; warns of unknown.

    With `copy_vecattrs` they have their counts and other attributes. Without
    `allow_inference` a word needs a row of exactly its name.
    """
    known = self if allow_inference else self.key_to_index
    words = self._known(list(dict.fromkeys(map(_name, keys))), known)
    rows = np.array([self.get_index(x, -1) for x in words], np.int64)
    values = dict(self.expandos) if copy_vecattrs else {}
    # Unseen words, which have vectors from n-grams, have values of zero.
    values = {k: np.where(rows < 0, 0, x[rows]) for k, x in values.items()}
    relations = self.relations
    if relations and relations.targets is not None:
      relations = relations._replace(targets=relations.targets[rows])
    return Embeddings(
      words,
      self[words],
      values.pop('count', None),
      relations=relations,
      attributes=values,
    )

  def _known(
    self, words: Sequence[Word], known: Container[Word] | None = None
  ) -> list[Word]:
    """Returns the words that have vectors, or are `known`; warns of others."""
    known = self if known is None else known
    is_known = [word in known for word in words]
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
    indexer: neighbor_index.Index | Any = None,
    sense: int | None = None,
    min_prior: float = 0.0,
  ) -> Ranked:
    """Finds the words nearest to a sum of words minus others (3CosAdd).

    Arguments are words or [dim] vectors, alone or in lists, perhaps as (word,
    weight); default weights are 1 and -1. Only words from `clip_start` to
    `clip_end` are searched, or the first `restrict_vocab`. A word with several
    senses occurs once, as the nearest sense of at least `min_prior`; `sense`
    selects a sense of a single word. An `indexer`, of `index`, proposes the
    rows that are compared, of all; any other object answers itself, by its
    `most_similar(unit vector, topn)`.

    Returns (word, cosine) by falling cosine, without the arguments; with `topn`
    None, float32 cosines of the rows searched. Raises a `ValueError` without
    arguments, and a `UserError` if the sum is zero or a vector does not fit.
    """
    target, query = self._target(positive, negative, sense=sense)
    if restrict_vocab:
      clip_start, clip_end = 0, restrict_vocab
    if indexer is not None:
      if topn is None or clip_start or clip_end:
        raise errors.UserError(
          'an indexer finds some neighbors among all words; leave out indexer, '
          'or give a topn and no limits of the vocabulary'
        )
      return self._indexed(
        indexer,
        target=target,
        query=query,
        topn=topn,
        min_prior=min_prior,
      )
    scores = self._cosines(target, clip_end or None)
    return self._rank(
      scores,
      query=query,
      topn=topn,
      min_prior=min_prior,
      start=self._num_rows(clip_start),
    )

  def index(self, kind: str = 'hnsw', **settings: int) -> neighbor_index.Index:
    """Builds an index of the vectors, for `most_similar(..., indexer=index)`.

    `settings` are those of `neighbor_index.Settings`. Changed vectors need
    another index. Raises a `UserError` without usearch, the extra `ann`.
    """
    return neighbor_index.build(self.vectors, self.norms, kind, **settings)

  def load_index(self, folder: pathlib.Path | str) -> neighbor_index.Index:
    """Maps an index of these vectors that `index.save(folder)` has written.

    Raises a `UserError` if it is missing, damaged or of other vectors.
    """
    return neighbor_index.read(folder, self.vectors, self.norms)

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
      limit = restrict_vocab or None
      factors = ((1 + self._cosines(x, limit)) / 2 for x in directions)
      return functools.reduce(np.multiply, factors, np.float32(1))

    scores = product(positive) / (product(negative) + np.float32(1e-6))
    return self._rank(scores, positive + negative, topn)

  def similar_by_word(
    self, word: Word, topn: int | None = 10, restrict_vocab: int | None = None
  ) -> Ranked:
    """Finds the words nearest to a word; see `most_similar`."""
    return self.most_similar([word], topn=topn, restrict_vocab=restrict_vocab)

  def similar_by_key(
    self, key: Word, topn: int | None = 10, restrict_vocab: int | None = None
  ) -> Ranked:
    """Finds the words nearest to a word; see `most_similar`."""
    return self.most_similar([key], topn=topn, restrict_vocab=restrict_vocab)

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

  def rank_by_centrality(
    self, words: Sequence[Word], use_norm: bool = True
  ) -> list[tuple[float, Word]]:
    """Ranks words by cosines with the mean of all; warns of unknown words.

    Returns (cosine, word), the nearest first; with `use_norm` False products
    of vectors as they are with the mean at length 1. Raises a `ValueError` if
    no word is known.
    """
    known = self._known(words)
    if not known:
      raise ValueError('none of the words has a vector')
    rows = np.stack([self.get_vector(word, norm=use_norm) for word in known])
    products = rows @ geometry.unit_vector(rows.mean(axis=0))
    return sorted(zip(products.tolist(), known, strict=True), reverse=True)

  def doesnt_match(self, words: Sequence[Word]) -> Word:
    """Returns the word farthest from the mean of all; warns of unknown words.

    Raises a `ValueError` if no word is known.
    """
    return self.rank_by_centrality(words)[-1][1]

  def wmdistance(
    self,
    document1: Sequence[Word],
    document2: Sequence[Word],
    norm: bool = True,
  ) -> float:
    """Returns Word Mover's distance of two lists of words; warns of unknown.

    That is the least mean distance that the words of one are moved to be those
    of the other, between vectors of length 1 unless `norm` is False; infinite
    if one has no word with a vector.
    """
    if isinstance(document1, str) or isinstance(document2, str):
      raise TypeError('documents are lists of words; split the text first')
    tokens = [self._known(x) for x in (document1, document2)]
    if not all(tokens):
      return math.inf
    counts = [collections.Counter(x) for x in tokens]
    rows = [
      np.array([self.get_vector(x, norm) for x in words], np.float64)
      for words in counts
    ]
    shares = [np.array([*x.values()]) / x.total() for x in counts]
    return word_movers.distance(*rows, shares)

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
      unseen=self._unseen_words(),
    )
    if self.sense_table is not None:
      results |= contexts.evaluate(self.sense_table, eval_sets, window)
    return results

  def evaluate_word_pairs(
    self,
    pairs: pathlib.Path | str,
    delimiter: str | None = None,
    encoding: str = 'utf8',
    restrict_vocab: int | None = 300_000,
    case_insensitive: bool = True,
    dummy4unknown: bool = False,
  ) -> tuple[tuple, tuple, float]:
    """Correlates cosines with the ratings of a similarity benchmark.

    Fields are separated by `delimiter`, None = white space or commas. Returns
    (Pearson's r, p), (Spearman's rho, p) and the percentage of pairs with an
    unknown word, which are left out or, with `dummy4unknown`, have cosine 0.
    Raises a `UserError` for a file that cannot be read, or if fewer than two
    pairs count.
    """
    vocabulary = self._vocabulary(
      restrict_vocab, case_insensitive, dummy4unknown
    )
    return files.word_pairs(
      vocabulary, pairs, delimiter=delimiter, encoding=encoding
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
    vocabulary = self._vocabulary(
      restrict_vocab, case_insensitive, dummy4unknown
    )
    return files.word_analogies(vocabulary, analogies, similarity_function)

  def _vocabulary(self, limit, is_upper, counts_unknown) -> files.Vocabulary:
    words = self.of_words()
    return files.Vocabulary(
      words=words.index_to_key,
      vectors=words.vectors,
      restrict_vocab=limit,
      case_insensitive=is_upper,
      dummy4unknown=counts_unknown,
      unseen=self._unseen_words(),
    )

  def _unseen_words(self) -> Callable[[str], np.ndarray | None] | None:
    """Returns what gives words outside of a vocabulary vectors, if any."""
    if self.subwords is None:
      return None
    return lambda word: self.get_vector(word) if word in self else None

  def save(self, folder: pathlib.Path | str, **options: Any) -> None:
    """Writes vectors.npy, vocab.txt, any senses and operators, for `load`.

    Raises a `UserError` if a file cannot be written, and a `TypeError` for
    gensim's `options` of pickles.
    """
    if options:
      raise TypeError(
        f'save takes a folder and no {", ".join(options)}: every array is a '
        'file of its own there, and nothing is pickled'
      )
    vector_files.write(folder, self._contents())

  def _contents(self) -> vector_files.Contents:
    return vector_files.Contents(
      self.index_to_key,
      self.vectors,
      self.counts,
      sense_table=self.sense_table,
      relations=self.relations,
      attributes=self.attributes,
      subwords=self.subwords,
    )

  def save_fasttext(self, fname: pathlib.Path | str) -> None:
    """Writes fastText's `.bin`, which gensim's load_facebook_model reads, too.

    Settings and output rows are those of the `.bin` that the vectors are from,
    and else fastText's defaults and zeros. Unknown counts become 1. Raises a
    `UserError` if it cannot be written, or for words of several vectors.
    """
    vector_files.write_fasttext(fname, self._contents())

  @classmethod
  def load(
    cls, fname: pathlib.Path | str, mmap: str | None = None
  ) -> 'Embeddings':
    """Loads what `jaxemb.load` does; `mmap` may be 'r'.

    Files that `save` writes are memory-mapped with either, and are never
    written to.
    """
    if mmap not in (None, 'r'):
      raise ValueError(
        f"mmap={mmap!r} would write to the file; give 'r' or leave it out"
      )
    return load_vectors(fname)

  def save_word2vec_format(
    self,
    fname: pathlib.Path | str,
    fvocab: pathlib.Path | str | None = None,
    binary: bool = False,
    total_vec: int | None = None,
    write_header: bool = True,
    prefix: str = '',
    append: bool = False,
    sort_attr: str = 'count',
  ) -> None:
    """Writes a word2vec file, and to `fvocab` the counts, `word count` a line.

    It is packed as its suffix says, such as .gz; without a header it is as
    GloVe's files are. Words begin with `prefix`, and are sorted by an attribute
    that falls, `sort_attr`, if it is known. `append` adds to files that are
    there, of which a header may announce the total as `total_vec`. White space
    in words becomes underscores, with a warning.
    Raises a `UserError` if a file cannot be written, a `ValueError` if
    `sort_attr` is needed for `fvocab` and not known, or for a binary file
    without a header.
    """
    values = self.expandos.get(sort_attr)
    if binary and not write_header and not append:
      raise ValueError('a binary file needs its header')
    if values is None and (fvocab is not None or sort_attr != 'count'):
      raise ValueError(f'no {sort_attr}s are known: leave out fvocab')
    num_renamed = vector_files.write_word2vec(
      fname,
      self.index_to_key,
      self.vectors,
      order_by=values,
      vocab_path=fvocab,
      prefix=prefix,
      is_binary=binary,
      has_header=write_header,
      num_announced=total_vec,
      appends=append,
    )
    _warn_of_renamed(fname, num_renamed)

  @classmethod
  def load_word2vec_format(
    cls,
    fname: pathlib.Path | str,
    fvocab: pathlib.Path | str | None = None,
    binary: bool | None = None,
    encoding: str = 'utf8',
    unicode_errors: str = 'strict',
    limit: int | None = None,
    datatype: Any = np.float32,
    no_header: bool | None = None,
  ) -> 'Embeddings':
    """Loads a word2vec, GloVe or .vec file with gensim's arguments.

    `binary` and `no_header` are recognized if they are None. `fvocab` has the
    counts, `word count` a line; without it they are unknown. `limit` is the
    number of rows to read, and `datatype` that of their numbers in memory.
    Raises a `UserError` for a file that cannot be read or is another than these
    say, and a `UnicodeDecodeError` for words that are not in the encoding
    unless `unicode_errors` is 'replace' or 'ignore'.
    """
    reading = word2vec_format.Reading(
      is_binary=binary,
      has_header=None if no_header is None else not no_header,
      limit=limit or None,
      decoding_errors=unicode_errors,
    )
    words, vectors, *_ = word2vec_format.read(fname, encoding, reading)
    counts = None
    if fvocab is not None:
      counts = word2vec_format.counts_of(fvocab, words, unicode_errors)
    return cls(words, vectors.astype(datatype, copy=False), counts)

  def intersect_word2vec_format(
    self,
    fname: pathlib.Path | str,
    lockf: float | None = None,
    binary: bool | None = None,
    encoding: str = 'utf8',
    unicode_errors: str = 'strict',
  ) -> None:
    """Replaces vectors of the words that a word2vec file has, too.

    Its other words are not added. Raises a `UserError` for a file that cannot
    be read, or of another dimension, and a `TypeError` for `lockf`.
    """
    if lockf is not None:
      raise TypeError('vectors are not trained further; leave out lockf')
    other = Embeddings.load_word2vec_format(
      fname, binary=binary, encoding=encoding, unicode_errors=unicode_errors
    )
    if other.vector_size != self.vector_size:
      raise errors.UserError(
        f'{fname} has vectors of {other.vector_size} numbers, these are of '
        f'{self.vector_size}; give a file of the same dimension'
      )
    common = [x for x in other.index_to_key if x in self.key_to_index]
    if common:
      self[common] = other[common]

  def save_safetensors(self, fname: pathlib.Path | str) -> None:
    """Writes safetensors: vectors, any counts, and words in the metadata.

    Raises a `UserError` if the file cannot be written.
    """
    static_models.write(
      fname, self.index_to_key, vectors=self.vectors, counts=self.counts
    )

  def save_onnx(self, fname: pathlib.Path | str) -> None:
    """Writes an ONNX model from `words` to `vectors`, zeros of unknown ones.

    Raises a `UserError` if the file would be too large or cannot be written.
    """
    onnx_lookups.write(fname, self.index_to_key, self.vectors)

  def save_static_model(
    self,
    folder: pathlib.Path | str,
    tokens: str = 'words',
    lowercase: bool | None = None,
  ) -> None:
    """Writes a folder that model2vec and sentence-transformers load.

    A sentence becomes the mean of the vectors of its words. `tokens` and
    `lowercase` are those of `config.data` of the run; without the latter,
    sentences are lower-cased if no word has capitals. Warns of words that no
    sentence can have. Raises a `UserError` if the folder cannot be written.
    """
    words = self.of_words()
    static_models.write_model(
      folder,
      words.index_to_key,
      vectors=words.vectors,
      tokens=tokens,
      lowercase=lowercase,
    )

  def save_parquet(self, fname: pathlib.Path | str) -> None:
    """Writes Parquet with the columns key, count (if known) and vector.

    Raises a `UserError` if the file cannot be written.
    """
    parquet.write(fname, self.index_to_key, self.vectors, counts=self.counts)

  def _target(self, positive, negative, sense):
    """Returns the direction of a weighted sum, and its words and vectors."""
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
    return geometry.unit_vector(target), [key for key, _ in items]

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
    products = geometry.products(self.vectors, target, limit)
    return products / geometry.divisors(self.norms[:limit])

  def _indexed(self, indexer, target, query, topn, min_prior):
    """Returns (word, cosine) of what an index finds near a unit target."""
    if not isinstance(indexer, neighbor_index.Index):
      return indexer.most_similar(target, topn)  # as gensim calls it
    if indexer.vectors is not self.vectors:
      raise errors.UserError(
        f'{indexer!r} is of other vectors than {self!r}, or these have been '
        'changed; build it again, by vectors.index()'
      )
    rows, cosines = indexer.nearest(
      target,
      num=topn,
      excluded=self._rows_of(query),
      senses=self.sense_table,
      min_prior=min_prior,
    )
    words = [self.index_to_key[row] for row in rows.tolist()]
    return list(zip(words, cosines.tolist(), strict=True))

  def _rows_of(self, query: list[Key]) -> set[int]:
    """Returns the rows of the words among words and vectors."""
    words = [x for x in query if not isinstance(x, np.ndarray)]
    rows = {self.get_index(x, -1) for x in words}
    return rows - {-1}  # of words that have vectors from their n-grams alone

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
    # A word that was never trained has no neighbors.
    known = np.where(self.norms[: len(scores)] > 0, scores, -np.inf)
    known[:start] = -np.inf
    senses = self.sense_table
    best = geometry.nearest(
      known,
      excluded=self._rows_of(query),
      num=topn,
      senses=senses,
      min_prior=min_prior,
    )
    return [(self.index_to_key[i], float(scores[i])) for i in best.tolist()]


def _name(word: object) -> object:
  """Returns the name of a number or flag, such as '7' of 7.0; other words."""
  if not isinstance(word, numbers.Real | np.bool_):
    return word
  from jaxemb.io import columns  # which numba is loaded for

  return columns.name(word)


def _warn_of_renamed(path: pathlib.Path | str, num_words: int) -> None:
  if num_words:
    line = f'{num_words:,} words with white space were written with underscores'
    warnings.warn(f'{path}: {line}', stacklevel=3)


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
  words in `encoding`; safetensors of vectors or of model2vec; or a fastText
  model, .bin or .ftz. Runs may be in a bucket. Raises a `UserError` if the file
  is missing, not recognized, cut or damaged.
  """
  with bucket.opened(path) as local:
    vectors = Embeddings(*vector_files.read(local, encoding))
    return vectors.in_memory() if bucket.is_url(path) else vectors
