"""Trained vectors and queries, with the names and answers of gensim.

`Embeddings` has what gensim's `KeyedVectors` has; what it lacks raises an
`AttributeError` that says what to use instead; see
docs/guides/keyed_vectors.md. An integer is a name, that of a node, item or
token; `row` takes numbers of rows.

Vectors stay as they are stored, perhaps in a memory-mapped file, until they are
changed; only their lengths are cached, no normalized copy.
"""

import dataclasses
import functools
import itertools
import numbers
import os
import pathlib
import types
import warnings
import weakref
from collections.abc import (
  Callable,
  Container,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Any, cast

import numpy as np

from jaxemb import errors, missing_names, vector_files
from jaxemb.evaluation import (
  benchmarks,
  contexts,
  fasttext_models,
  files,
  geometry,
  groups,
  lookup,
  multivectors,
  neighbor_index,
  neighbors,
)
from jaxemb.evaluation import subwords as subwords_lib
from jaxemb.evaluation import words as words_lib
from jaxemb.ops import growing
from jaxemb.storage import attributes as attributes_lib
from jaxemb.storage import bucket, export, fasttext_format, word2vec_format

Word = str | int  # 7 is the word '7'
# A word or a [dim] vector; in sums perhaps with a weight.
Key = Word | np.ndarray
Weighted = Key | tuple[Key, float]
Ranked = list[tuple[str, float]] | np.ndarray
# What is computed from an attribute, and forgotten when that is set.
_DERIVED = {
  'vectors': ('norms',),
  'index_to_key': ('key_to_index',),
  'norms': ('norms',),
}
_MAX_NAMED = 20  # unknown words in a warning
# Arrays that grow, beside those of attributes, whose names are strings.
_ROWS, _NORMS = 0, 1


@dataclasses.dataclass(init=False, eq=False, repr=False)
class Embeddings:
  """Word vectors, with almost all methods of gensim's `KeyedVectors`.

  Trained vectors begin with the most frequent word. A word without a vector
  raises an `errors.UnknownWordError`, which is a `KeyError`. Methods never
  change the file or array that the vectors come from. Methods that change
  vectors raise a `UserError` for vectors of senses and of `graph:line` with
  `model.order` 2.

  Examples:
    The examples of all methods begin with these vectors:

    >>> import numpy as np
    >>> import jaxemb
    >>> words = ['king', 'queen', 'man', 'woman', 'sea']
    >>> rows = [[3, 1, 0], [3, -1, 0], [1, 2, 0], [1, -2, 0], [0, 0, 2]]
    >>> counts = np.array([9, 7, 5, 3, 1])
    >>> vectors = jaxemb.Embeddings(words, np.array(rows), counts)
    >>> vectors
    Embeddings(5 words x 3)
    >>> vectors['king']
    array([3., 1., 0.], dtype=float32)
    >>> vectors[['king', 'sea']]
    array([[3., 1., 0.],
           [0., 0., 2.]], dtype=float32)
    >>> 'queen' in vectors, 'prince' in vectors
    (True, False)
  """

  index_to_key: list[str]  # [vocab] different words
  # [vocab, dim] floats, float32 if trained; may be memory-mapped.
  vectors: np.ndarray
  counts: np.ndarray | None = None  # [vocab] int64 in the corpus, if known
  # Of words with several vectors, whose rows are `word#0`, `word#1`.
  sense_table: multivectors.MultiVectors | None = None
  # Of vectors of nodes that were trained with operators.
  relations: export.Relations | None = None
  # Further values by word, each [vocab], as `set_vecattr` sets them.
  attributes: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  # Rows of n-grams of characters, from which unseen words have vectors.
  subwords: subwords_lib.NgramVectors | None = None
  # The model of fastText or the export that the vectors are from, if any, whose
  # settings and output rows `save_fasttext` writes.
  origin: fasttext_format.Model | fasttext_models.Export | None = None

  def __init__(
    self,
    index_to_key: Sequence[str] | int = (),
    vectors: np.ndarray | None = None,
    counts: np.ndarray | None = None,
    sense_table: multivectors.MultiVectors | None = None,
    relations: export.Relations | None = None,
    attributes: Mapping[str, np.ndarray] = types.MappingProxyType({}),
    subwords: subwords_lib.NgramVectors | None = None,
    origin: fasttext_format.Model | fasttext_models.Export | None = None,
    *,
    vector_size: int | None = None,
    count: int | None = None,
    dtype: Any = None,
  ):
    """Names rows of vectors; or, as in gensim, begins without any.

    `vector_size`, or an int in place of words, is the dimension of vectors that
    are to be added, `count` the rows that memory is reserved for, by default 0,
    and `dtype` their type, float32. Raises a `ValueError` for words, vectors,
    counts or attributes that do not fit each other.
    """
    words: Sequence[str]
    if isinstance(index_to_key, int | numbers.Integral):
      # In gensim's order: vector_size, count, dtype.
      words, vector_size = (), int(index_to_key)
      vectors, count = None, cast(Any, vectors) if count is None else count
      counts, dtype = None, counts if dtype is None else dtype
    else:
      words = index_to_key
    self._grown: weakref.WeakValueDictionary[str | int, np.ndarray]
    self._grown = weakref.WeakValueDictionary()
    if vectors is None:
      if vector_size is None or len(words):
        raise TypeError('give words and their vectors, or a vector_size')
      dtype = np.float32 if dtype is None else dtype
      vectors = growing.reserved(count or 0, vector_size, dtype)
      self._grown[_ROWS] = vectors
    elif (vector_size, count, dtype) != (None, None, None):
      raise TypeError(
        'vector_size, count and dtype are of vectors that are to be added; '
        'leave them out beside vectors'
      )
    self.index_to_key = lookup.names(words)
    self.vectors = vectors
    self.counts = counts
    self.sense_table = sense_table
    self.relations = relations
    self.attributes = dict(attributes)
    self.subwords = subwords
    self.origin = origin
    checked = vector_files.checked(self._contents(), len(self.key_to_index))
    self.counts, self.attributes = checked.counts, dict(checked.attributes)

  def in_memory(self) -> 'Embeddings':
    """Returns a copy in memory, which does not depend on a file.

    Examples:
      >>> import shutil
      >>> vectors.save('vectors')
      >>> loaded = jaxemb.load('vectors').in_memory()
      >>> shutil.rmtree('vectors')
      >>> loaded['king']
      array([3., 1., 0.], dtype=float32)
    """
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
    if name == 'vectors':
      value = vector_files.array(value)
    if name != 'norms' or value is not None:
      object.__setattr__(self, name, value)

  def __getstate__(self) -> dict[str, Any]:
    """Returns what is pickled: no spare memory behind the rows."""
    return {k: x for k, x in self.__dict__.items() if k != '_grown'}

  def __setstate__(self, state: Mapping[str, Any]) -> None:
    """Sets what was pickled."""
    self.__dict__.update(state, _grown=weakref.WeakValueDictionary())

  def __copy__(self) -> 'Embeddings':
    """Returns an object that shares the vectors until either is changed."""
    self._grown.clear()
    return dataclasses.replace(self)

  # Rows, and how they are looked up.

  @functools.cached_property
  def key_to_index(self) -> dict[str, int]:
    """Returns the row number of each word.

    Examples:
      >>> vectors.key_to_index['man']
      2
    """
    return {word: row for row, word in enumerate(self.index_to_key)}

  @functools.cached_property
  def norms(self) -> np.ndarray:
    """Returns the lengths of all vectors, [vocab] float32.

    Raises a `UserError` if a vector is not finite.

    Examples:
      >>> vectors.norms.round(2)
      array([3.16, 3.16, 2.24, 2.24, 2.  ], dtype=float32)
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
    dim: int = self.vectors.shape[1]
    return dim

  def __len__(self) -> int:
    return len(self.index_to_key)

  def __contains__(self, word: object) -> bool:
    """Returns whether a word has a vector, perhaps from its n-grams."""
    if self.has_index_for(cast(Word, word)):
      return True
    name = lookup.name(word)
    if self.subwords is None or not isinstance(name, str):
      return False
    return self.subwords.has_vector(name)

  def __getattr__(self, name: str) -> Any:
    """Raises an `AttributeError` that says what stands for gensim's `name`."""
    raise AttributeError(missing_names.missing(type(self).__name__, name))

  def __iter__(self) -> Iterator[str]:
    return iter(self.index_to_key)

  def __repr__(self) -> str:
    return f'Embeddings({len(self):,} words x {self.vector_size})'

  def __getitem__(self, words: Key | Sequence[Key]) -> np.ndarray:
    """[dim] vector of a word, or [words, dim] vectors of a list."""
    if isinstance(words, (str, bytes, numbers.Real)):
      return self.get_vector(cast(Word, words))
    if isinstance(words, slice):
      raise TypeError('rows are in `vectors`, and `row` takes their numbers')
    keys: list[Any] = list(cast(Iterable[Any], words))
    default = None if self.subwords is None else -1
    rows = np.array([self.get_index(x, default) for x in keys], np.int64)
    # At once, as rows of a file are read, and composed, faster in blocks.
    known = np.asarray(self.vectors[rows[rows >= 0]], np.float32)
    if len(known) == len(rows):
      return known
    vectors = np.empty((len(rows), self.vector_size), np.float32)
    vectors[rows >= 0] = known
    for position in np.flatnonzero(rows < 0).tolist():
      vectors[position] = self.get_vector(keys[position])
    return vectors

  def get_index(self, key: Word, default: Any = None) -> Any:
    """Returns the row number of a word, or `default` for an unknown word.

    Raises a `KeyError` for an unknown word if `default` is None.

    Examples:
      >>> vectors.get_index('man')
      2
      >>> vectors.get_index('prince', -1)
      -1
    """
    row = lookup.row(lookup.name(key), self.key_to_index, self.sense_table)
    if row < 0 and default is None:
      raise errors.UnknownWordError(key, self.index_to_key)
    return row if row >= 0 else default

  def has_index_for(self, key: Word) -> bool:
    """Returns whether a word has a row.

    Examples:
      >>> vectors.has_index_for('prince')
      False
    """
    return bool(self.get_index(key, -1) >= 0)

  def row(self, number: int) -> np.ndarray:
    """Returns row `number`, from 0, as a read-only [dim] array.

    The word of the row is `index_to_key[number]`. Raises an `IndexError` if
    there is no such row.

    Examples:
      >>> vectors.index_to_key[4], vectors.row(4)
      ('sea', array([0., 0., 2.], dtype=float32))
    """
    if not 0 <= number < len(self):
      raise IndexError(f'there is no row {number} among {len(self):,}')
    return self.get_vector(self.index_to_key[number])

  def get_vector(self, key: Word, norm: bool = False) -> np.ndarray:
    """Returns the vector of a word, [dim], read-only.

    Its type is that of `vectors`. With `norm`, it is scaled to length 1.

    Examples:
      >>> vectors.get_vector('sea')
      array([0., 0., 2.], dtype=float32)
      >>> vectors.get_vector('sea', norm=True)
      array([0., 0., 1.], dtype=float32)
    """
    row = self.get_index(key, None if self.subwords is None else -1)
    if row < 0:
      return self._unseen(key, norm)
    vector: np.ndarray = self.vectors[row]
    if norm and isinstance(self.vectors, np.ndarray):
      vector = vector / (self.norms[row] or np.float32(1))
    elif norm:  # lengths of all words take a while
      vector = geometry.unit_vector(vector)
    vector.setflags(write=False)
    return vector

  def _unseen(self, key: Word, norm: bool) -> np.ndarray:
    """Returns the mean of the rows of a word's n-grams, read-only."""
    name = lookup.name(key)
    vector = None
    if self.subwords is not None and isinstance(name, str):
      vector = self.subwords.vector(name)
    if vector is None:
      raise errors.UnknownWordError(key, self.index_to_key)
    vector = geometry.unit_vector(vector) if norm else vector
    vector.setflags(write=False)
    return vector

  def ngrams(self, word: Word) -> list[tuple[str, np.ndarray]]:
    """Returns the n-grams of a word with their vectors, each [dim].

    The vector of an unseen word is the mean of its n-grams. The vector of a
    known word is the mean of its n-grams and its own trained vector. Raises a
    `UserError` if the vectors have no n-grams.

    Examples:
      >>> model = jaxemb.load('model.bin')  # of fastText, with n-grams of 5
      >>> [name for name, vector in model.ngrams('kings')]
      ['<king', 'kings', 'ings>']
    """
    if self.subwords is None:
      raise errors.UserError(
        'these vectors have no n-grams; train with --config.model.subwords=3-6 '
        'or load a .bin of fastText'
      )
    return self.subwords.ngrams(str(lookup.name(word)))

  def get_normed_vectors(self) -> np.ndarray:
    """Returns all vectors, copied and scaled to length 1, [vocab, dim].

    Examples:
      >>> vectors.get_normed_vectors().round(2)[:2]
      array([[ 0.95,  0.32,  0.  ],
             [ 0.95, -0.32,  0.  ]], dtype=float32)
    """
    return geometry.unit(self.vectors, self.norms)

  def fill_norms(self, force: bool = False) -> None:
    """Computes `norms`.

    Pass `force` after you changed elements of the array `vectors`.

    Examples:
      >>> vectors.vectors[4] = 0, 0, 3
      >>> vectors.fill_norms(force=True)
      >>> vectors.norms[4]
      np.float32(3.0)
    """
    if force:
      self.norms = None  # type: ignore[assignment]  # means: forget it
    _ = self.norms

  def init_sims(self, replace: bool = False) -> None:
    """Computes `norms`. With `replace`, scales all vectors to length 1.

    Examples:
      >>> vectors.init_sims(replace=True)
      >>> vectors['sea']
      array([0., 0., 1.], dtype=float32)
    """
    self.unit_normalize_all() if replace else self.fill_norms()

  # Changes.

  def unit_normalize_all(self) -> None:
    """Scales all vectors to length 1, except zero vectors.

    Examples:
      >>> vectors.unit_normalize_all()
      >>> vectors['sea']
      array([0., 0., 1.], dtype=float32)
    """
    self._make_room()
    lengths = self.norms
    divisors = geometry.divisors(lengths)[:, None]
    np.divide(self.vectors, divisors, out=self.vectors, casting='same_kind')
    self.norms = (lengths > 0).astype(np.float32)

  def add_vector(self, key: Word, vector: np.ndarray) -> int:
    """Adds a word and returns its row number. A known word keeps its vector.

    Examples:
      >>> vectors.add_vector('lake', np.array([0, 1, 2]))
      5
      >>> vectors['lake']
      array([0., 1., 2.], dtype=float32)
    """
    self.add_vectors([key], [vector])
    return self.key_to_index[lookup.name(key)]

  def add_vectors(
    self,
    keys: Word | Sequence[Word],
    weights: np.ndarray | Sequence[np.ndarray],
    extras: Mapping[str, np.ndarray] | None = None,
    replace: bool = False,
  ) -> None:
    """Adds words with vectors [n, dim] and attributes, each [n].

    Known words keep their vectors and attributes unless `replace`. Attributes
    of new words that are not passed are zero. Raises a `UserError` for vectors
    or attributes of a wrong shape, and a `TypeError` for attributes of a wrong
    type. After an error, nothing has changed.

    Examples:
      >>> rows = np.array([[0, 1, 2], [1, 0, 2]])
      >>> counts = np.array([4, 2])
      >>> vectors.add_vectors(['lake', 'ship'], rows, {'count': counts})
      >>> vectors
      Embeddings(7 words x 3)
      >>> vectors.get_vecattr('lake', 'count')
      np.int64(4)
    """
    is_one = isinstance(keys, (str, bytes, numbers.Real))
    names = lookup.names([keys] if is_one else cast(Sequence[Word], keys))
    if is_one and np.ndim(weights) == 1:
      weights = [cast(np.ndarray, weights)]
    shape = len(names), self.vector_size
    rows = growing.checked(weights, shape, self.vectors.dtype)
    values = attributes_lib.checked(extras or {}, self.expandos, len(names))
    new, changed, chosen = growing.positions(names, self.key_to_index, replace)
    if len(changed):
      self._make_room(len(new))
      self.vectors[changed] = rows[chosen]
      if 'norms' in self.__dict__:
        self.norms[changed] = geometry.norms(rows[chosen])
      self.key_to_index.update(zip(new, itertools.count(len(self))))
      self.index_to_key.extend(new)
    for name, array in values.items():
      self._values(name, array)[changed] = array[chosen]

  def __setitem__(
    self,
    keys: Word | Sequence[Word],
    weights: np.ndarray | Sequence[np.ndarray],
  ) -> None:
    """Adds a word or several, or replaces their vectors."""
    self.add_vectors(keys, weights, replace=True)

  def _make_room(self, num_new: int = 0) -> None:
    """Copies the vectors into memory, and adds rows and zeros for new words.

    Raises a `UserError` if they cannot be changed.
    """
    self._check_changeable()
    arrays: dict[Any, np.ndarray] = {_ROWS: self.vectors}
    if 'norms' in self.__dict__:
      arrays[_NORMS] = self.norms
    if num_new:
      arrays |= self.expandos
    for name, array in arrays.items():
      is_grown = self._grown.get(name) is array
      arrays[name] = growing.grown(array, num_new, is_grown)
    self._grown.update(arrays)
    self.vectors = arrays.pop(_ROWS)
    if _NORMS in arrays:
      self.norms = arrays.pop(_NORMS)
    for name, array in arrays.items():
      self._set_values(name, array)

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
    """Returns counts and other attributes of words by name, each [vocab].

    Examples:
      >>> vectors.expandos['count']
      array([9, 7, 5, 3, 1])
    """
    counts = {} if self.counts is None else {'count': self.counts}
    return types.MappingProxyType({**counts, **self.attributes})

  def set_vecattr(self, key: Word, attr: str, val: Any) -> None:
    """Sets an attribute of a word, such as 'count'.

    The first value of an attribute determines its type. Other words get the
    value zero. Raises a `TypeError` for a value that this type cannot hold, and
    a `ValueError` for a count below 0 or of 10^12 or more.

    Examples:
      >>> vectors.set_vecattr('king', 'is_title', True)
      >>> vectors.expandos['is_title']
      array([ True, False, False, False, False])
    """
    row = self.get_index(key)
    kind = None if np.isscalar(val) else object
    self._values(attr, np.asarray(val, kind))[row] = val

  def get_vecattr(self, key: Word, attr: str) -> Any:
    """Returns an attribute of a word.

    Raises a `KeyError` for an unknown word or attribute. If counts are unknown,
    warns and, as in gensim, returns the number of words minus the row number as
    the count.

    Examples:
      >>> vectors.get_vecattr('king', 'count')
      np.int64(9)
    """
    row = self.get_index(key)
    if attr == 'count' and self.counts is None:
      warnings.warn('no counts are known; they are made up', stacklevel=2)
      return len(self) - row
    if attr not in self.expandos:
      names = ', '.join(self.expandos) or 'none'
      raise KeyError(f'no attribute {attr!r}, but {names}')
    return self.expandos[attr][row]

  def _values(self, name: str, new: np.ndarray) -> np.ndarray:
    """Returns the [vocab] values of an attribute, which may be new.

    Raises a `TypeError` if it cannot hold new values.
    """
    values = attributes_lib.holding(
      self.expandos.get(name), name, new, num_words=len(self)
    )
    self._set_values(name, values)
    return values

  def _set_values(self, name: str, values: np.ndarray) -> None:
    if name == attributes_lib.COUNT:
      self.counts = values
    else:
      self.attributes[name] = values

  def sort_by_descending_frequency(self) -> None:
    """Sorts the rows by descending count.

    If counts are unknown, warns and leaves the order unchanged.

    Examples:
      >>> vectors.set_vecattr('sea', 'count', 20)
      >>> vectors.sort_by_descending_frequency()
      >>> vectors.index_to_key
      ['sea', 'king', 'queen', 'man', 'woman']
    """
    if self.counts is None:
      warnings.warn('no counts are known; rows stay as they are', stacklevel=2)
      return
    order = growing.descending(self.counts)
    if (np.diff(order) > 0).all():
      return
    self._check_changeable()
    self.index_to_key = [self.index_to_key[row] for row in order.tolist()]
    self.vectors = self._grown[_ROWS] = growing.in_order(self.vectors, order)
    self.counts = self.counts[order]
    self.attributes = {k: x[order] for k, x in self.attributes.items()}

  # Comparisons.

  def similarity(self, w1: Word, w2: Word) -> float:
    """Returns the cosine of two words.

    Examples:
      >>> round(vectors.similarity('king', 'queen'), 3)
      0.8
    """
    first, second = (geometry.unit_vector(self.get_vector(w)) for w in (w1, w2))
    return float(np.dot(first, second))

  def distance(self, w1: Word, w2: Word) -> float:
    """Returns 1 minus the cosine of two words.

    Examples:
      >>> round(vectors.distance('king', 'queen'), 3)
      0.2
    """
    return 1 - self.similarity(w1, w2)

  def distances(
    self, word_or_vector: Key, other_words: Iterable[Word] = ()
  ) -> np.ndarray:
    """Returns 1 minus the cosines with `other_words`, or with all words.

    Examples:
      >>> vectors.distances('king', ['queen', 'sea']).round(2)
      array([0.2, 1. ], dtype=float32)
    """
    target = geometry.unit_vector(self._direction(word_or_vector))
    if len(other_words := lookup.listed(other_words)):
      cosines: np.ndarray = geometry.unit(self[other_words]) @ target
    else:
      cosines = self._cosines(target, None)
    return 1 - cosines

  @staticmethod
  def cosine_similarities(
    vector_1: np.ndarray, vectors_all: np.ndarray
  ) -> np.ndarray:
    """Returns the cosines of a [dim] vector with [n, dim] vectors, [n].

    Examples:
      >>> vectors.cosine_similarities(vectors['king'], vectors.vectors).round(2)
      array([1.  , 0.8 , 0.71, 0.14, 0.  ], dtype=float32)
    """
    cosines: np.ndarray
    cosines = geometry.unit(vectors_all) @ geometry.unit_vector(vector_1)
    return cosines

  def get_mean_vector(
    self,
    keys: Iterable[Key],
    weights: Sequence[float] | None = None,
    pre_normalize: bool = True,
    post_normalize: bool = False,
    ignore_missing: bool = True,
  ) -> np.ndarray:
    """Returns the weighted mean of words and vectors, [dim] float32.

    The weighted sum is divided by the sum of absolute weights. `pre_normalize`
    scales words, not arrays, to length 1, and `post_normalize` scales the mean.
    Warns of unknown words; without `ignore_missing`, raises a `KeyError`.
    Raises a `ValueError` if no key is a vector or a known word.

    Examples:
      >>> vectors.get_mean_vector(['king', 'queen'], pre_normalize=False)
      array([3., 0., 0.], dtype=float32)
    """
    keys = lookup.listed(keys)
    factors = np.ones(len(keys)) if weights is None else np.asarray(weights)
    if len(factors) != len(keys):
      raise ValueError(f'{len(factors)} weights do not fit {len(keys)} keys')
    used = self._known(keys) if ignore_missing else range(len(keys))
    rows = {i: keys[i] for i in used}
    words = [i for i, key in rows.items() if not isinstance(key, np.ndarray)]
    vectors = self[[keys[i] for i in words]]
    vectors = geometry.unit(vectors) if pre_normalize else vectors
    rows |= zip(words, vectors, strict=True)
    return groups.mean([*rows.values()], factors[used], is_unit=post_normalize)

  def n_similarity(self, ws1: Iterable[Word], ws2: Iterable[Word]) -> float:
    """Returns the cosine of the mean vectors of two groups of words.

    Examples:
      >>> round(vectors.n_similarity(['king', 'man'], ['queen', 'woman']), 3)
      0.28
    """
    means = (
      geometry.unit_vector(self.get_mean_vector(words, pre_normalize=False))
      for words in (ws1, ws2)
    )
    return float(np.dot(*means))

  def closer_than(self, key1: Word, key2: Word) -> list[str]:
    """Returns the words that are nearer to `key1` than `key2` is.

    Examples:
      >>> vectors.closer_than('king', 'woman')
      ['queen', 'man']
    """
    distances = self.distances(key1)
    limit = distances[self.get_index(key2)]
    distances[self.get_index(key1)] = np.inf
    rows = np.flatnonzero(distances < limit)
    return [self.index_to_key[row] for row in rows.tolist()]

  def rank(self, key1: Word, key2: Word) -> int:
    """Returns the rank of `key2`, from 1, among the neighbors of `key1`.

    Examples:
      >>> vectors.rank('king', 'woman')
      3
    """
    return len(self.closer_than(key1, key2)) + 1

  def most_similar_to_given(
    self, key1: Word, keys_list: Sequence[Word]
  ) -> Word:
    """Returns the word of a list that is nearest to `key1`.

    Examples:
      >>> vectors.most_similar_to_given('man', ['queen', 'woman', 'sea'])
      'queen'
    """
    if not len(keys_list):
      raise ValueError('give at least one word to choose from')
    return keys_list[int(self.distances(key1, keys_list).argmin())]

  def relative_cosine_similarity(
    self, wa: Word, wb: Word, topn: int = 10
  ) -> float:
    """Returns the cosine of two words, relative to the neighbors of `wa`.

    The cosine is divided by the sum of the cosines of `wa` with its `topn`
    nearest neighbors.

    Examples:
      >>> round(vectors.relative_cosine_similarity('king', 'queen', topn=2), 3)
      0.531
    """
    near = self.most_similar(wa, topn=topn)
    return self.similarity(wa, wb) / sum(cosine for _, cosine in near)

  def rank_by_centrality(
    self, words: Iterable[Word], use_norm: bool = True
  ) -> list[tuple[float, Word]]:
    """Ranks words by their cosine with the mean of all words passed.

    Returns (cosine, word), the nearest first. Warns of unknown words. If
    `use_norm` is False, it returns dot products of unscaled vectors with the
    mean, which is scaled to length 1. Raises a `ValueError` if no word is
    known.

    Examples:
      >>> ranked = vectors.rank_by_centrality(['sea', 'man', 'king', 'queen'])
      >>> [word for cosine, word in ranked]
      ['king', 'queen', 'man', 'sea']
    """
    words = lookup.listed(words)
    known = [words[i] for i in self._known(words)]
    rows = [self.get_vector(word, norm=use_norm) for word in known]
    products = groups.centralities(rows).tolist()
    return sorted(zip(products, known, strict=True), reverse=True)

  def doesnt_match(self, words: Iterable[Word]) -> Word:
    """Returns the word farthest from the mean of the words passed, by cosine.

    Warns of unknown words. Raises a `ValueError` if no word is known.

    Examples:
      >>> vectors.doesnt_match(['king', 'sea', 'queen'])
      'sea'
    """
    return self.rank_by_centrality(words)[-1][1]

  def wmdistance(
    self,
    document1: Iterable[Word],
    document2: Iterable[Word],
    norm: bool = True,
  ) -> float:
    """Returns the Word Mover's Distance of two lists of words.

    It is the smallest mean distance over which the words of one list can be
    moved to the words of the other. Vectors are scaled to length 1 unless
    `norm` is False. Warns of unknown words. The distance is infinite if one
    list has no known word.

    Examples:
      >>> near = vectors.wmdistance(['king'], ['queen'])
      >>> far = vectors.wmdistance(['king'], ['sea'])
      >>> round(near, 3), round(far, 3)
      (0.632, 1.414)
    """
    documents = [lookup.listed(x) for x in (document1, document2)]
    documents = [[words[i] for i in self._known(words)] for words in documents]
    return groups.movers_distance(
      documents, lambda word: self.get_vector(word, norm)
    )

  def vectors_for_all(
    self,
    keys: Iterable[Word],
    allow_inference: bool = True,
    copy_vecattrs: bool = False,
  ) -> 'Embeddings':
    """Returns the vectors of words, each word once, in the order passed.

    Warns of unknown words. With `copy_vecattrs`, the result has their counts
    and other attributes. Without `allow_inference`, only words with a row are
    known.

    Examples:
      >>> chosen = vectors.vectors_for_all(['sea', 'king'], copy_vecattrs=True)
      >>> chosen.index_to_key, chosen.counts
      (['sea', 'king'], array([1, 9]))
    """
    words = list(dict.fromkeys(map(lookup.name, lookup.listed(keys))))
    known = self if allow_inference else self.key_to_index
    words = [words[i] for i in self._known(words, known)]
    rows = np.array([self.get_index(x, -1) for x in words], np.int64)
    values = dict(self.expandos) if copy_vecattrs else {}
    # Unseen words, which have vectors from n-grams, have values of zero.
    values = {k: attributes_lib.chosen(x, rows) for k, x in values.items()}
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
    self, keys: Sequence[Key], known: Container[Word] | None = None
  ) -> list[int]:
    """Returns positions of vectors, and of words that have one or are `known`.

    Warns of the other words, and names the first ones.
    """
    known = self if known is None else known
    is_known = [isinstance(x, np.ndarray) or x in known for x in keys]
    if not all(is_known):
      unknown = [*itertools.compress(keys, np.logical_not(is_known))]
      line = ', '.join(map(str, unknown[:_MAX_NAMED]))
      if (num_more := len(unknown) - _MAX_NAMED) > 0:
        line += f' and {num_more:,} more'
      warnings.warn(f'left out, without vectors: {line}', stacklevel=3)
    return list(itertools.compress(range(len(keys)), is_known))

  # Edges of graphs.

  def edge_scores(self, edges: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Returns the scores of edges, [n] float32.

    An edge is a pair (source, target). If the model has operators, which
    transform vectors by relation, it is a triple (source, relation, target).
    The score is the dot product, negative squared distance or cosine that the
    model was trained with. After training on walks, it is the cosine.

    Examples:
      >>> vectors.edge_scores([('king', 'queen'), ('king', 'sea')]).round(2)
      array([0.8, 0. ], dtype=float32)
      >>> nodes = jaxemb.load('runs/graph')  # a run with operators
      >>> edges = [('rome', 'capital_of', x) for x in ('italy', 'france')]
      >>> nodes.edge_scores(edges)
      array([1., 0.], dtype=float32)
    """
    if not len(edges):
      return np.zeros(0, np.float32)
    from jaxemb.models import edge_scores  # and with it JAX

    sources, *relations, ends = zip(*edges, strict=True)
    names = [lookup.name(x) for x in relations[0]] if relations else None
    mapped = edge_scores.mapped(self[sources], names, self.relations)
    targets = self.relations and self.relations.targets
    targets = self.vectors if targets is None else targets
    rows = targets[[self.get_index(x) for x in ends]]
    return edge_scores.of_ends(mapped, rows, self.relations)

  def related(self, source: str, relation: str) -> np.ndarray:
    """Applies the operator of a relation to the vector of a node, [dim].

    The likely targets of the node have the highest scores with the result. For
    likely sources, apply 'RELATION (inverse)' to a target. Raises a `UserError`
    if the model has no operators or no such relation.

    Examples:
      >>> nodes = jaxemb.load('runs/graph')
      >>> nodes.related('rome', 'capital_of')
      array([0., 1.], dtype=float32)
      >>> nodes['italy']
      array([0., 1.], dtype=float32)
    """
    from jaxemb.models import edge_scores  # and with it JAX

    names = [lookup.name(relation)]
    rows = edge_scores.mapped(self[[source]], names, self.relations)
    return cast(np.ndarray, rows[0])

  # Neighbors.

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
    """Finds the nearest neighbors of a sum of words minus words (3CosAdd).

    `positive` and `negative` are words or [dim] vectors, or lists of them. A
    list may have pairs (word or vector, weight); the default weights are 1 and
    -1. The search covers the words from `clip_start` to `clip_end`, or the
    first `restrict_vocab`. `indexer` is the result of `index`, or an object
    with gensim's `most_similar(vector, topn)`; then `topn` is required, and the
    search covers all words.

    A model of senses has several vectors per word, each with a prior: the
    probability of the sense without a context. If the query is a single word,
    `sense` selects the sense to search with, by its number from 0. Each word is
    found once, by its nearest sense with a prior of at least `min_prior`.

    Returns (word, cosine) by descending cosine, without the words passed. If
    `topn` is None, returns the cosines of all words searched, float32. Raises a
    `ValueError` if no word or vector is passed, and a `UserError` if the sum is
    zero or a vector has a wrong shape.

    Examples:
      >>> vectors.most_similar('king', topn=2)
      [('queen', 0.80...), ('man', 0.707...)]
      >>> vectors.most_similar(['king', 'woman'], ['man'], topn=1)
      [('queen', 0.779...)]
    """
    items = neighbors.weighted(positive, negative)
    if sense is not None:
      items = [(neighbors.sense_of(items, sense, self.senses), 1.0)]
    target = neighbors.direction(items, self._direction)
    if restrict_vocab:
      clip_start, clip_end = 0, restrict_vocab
    limits: dict[str, Any] = {
      'num': topn,
      'excluded': self._rows_of(key for key, _ in items),
      'senses': self.sense_table,
      'min_prior': min_prior,
    }
    if indexer is None:
      scores = self._cosines(target, clip_end or None)
      start = neighbors.num_rows(clip_start, self.sense_table) or 0
      return self._ranked(scores, start=start, **limits)
    if topn is None or clip_start or clip_end:
      raise errors.UserError(
        'an indexer searches all words and finds no more than topn; leave out '
        'indexer, or give a topn and no limits of the vocabulary'
      )
    return self._near_by_index(indexer, target, limits)

  def _near_by_index(
    self, indexer: Any, target: np.ndarray, limits: Mapping[str, Any]
  ) -> Ranked:
    """Returns the words that an index, or another object, finds nearest."""
    if not isinstance(indexer, neighbor_index.Index):
      found: Ranked = indexer.most_similar(target, limits['num'])  # as gensim
      return found
    near = neighbors.by_index(indexer, self.vectors, target, **limits)
    return self._named(*near)

  def _direction(self, key: Key) -> np.ndarray:
    """Returns a word's vector at length 1; a vector as it is."""
    if isinstance(key, np.ndarray):
      return neighbors.checked(key, self.vector_size)
    return self.get_vector(key, norm=True)

  def _cosines(self, target: np.ndarray, num_words: int | None) -> np.ndarray:
    """Returns products of unit vectors and the target, float32 by row."""
    limit = neighbors.num_rows(num_words, self.sense_table)
    # First, as composed vectors compute lengths on the way.
    products = geometry.products(self.vectors, target, limit)
    cosines: np.ndarray = products / geometry.divisors(self.norms[:limit])
    return cosines

  def _rows_of(self, query: Iterable[Key]) -> set[int]:
    """Returns the rows of the words among words and vectors."""
    words = [x for x in query if not isinstance(x, np.ndarray)]
    rows = {self.get_index(x, -1) for x in words}
    return rows - {-1}  # of words that have vectors from their n-grams alone

  def _ranked(
    self, scores: np.ndarray, num: int | None, start: int = 0, **limits: Any
  ) -> Ranked:
    """Returns words by the scores of the first rows; with None these."""
    if num is None:
      return scores[start:]
    near = neighbors.nearest(scores, self.norms, start, num=num, **limits)
    return self._named(*near)

  def _named(
    self, rows: np.ndarray, scores: np.ndarray
  ) -> list[tuple[str, float]]:
    words = [self.index_to_key[row] for row in rows.tolist()]
    return list(zip(words, scores.tolist(), strict=True))

  def index(self, kind: str = 'hnsw', **settings: int) -> neighbor_index.Index:
    """Builds an index for `most_similar(..., indexer=index)`.

    `kind` must be 'hnsw'. `settings` may have `connectivity` (default: 32),
    `expansion_search` (default: 128) and `expansion_add` (default: 200). Larger
    values miss fewer neighbors, but need more memory or time. If the vectors
    change, build a new index. Raises a `UserError` for other settings, or if
    the extra `ann` is not installed.

    Examples:
      >>> index = vectors.index('hnsw')
      >>> vectors.most_similar('king', topn=1, indexer=index)
      [('queen', 0.80...)]
    """
    return neighbor_index.build(
      self.vectors,
      self.norms,
      current=lambda: self.vectors,
      kind=kind,
      **settings,
    )

  def load_index(self, folder: pathlib.Path | str) -> neighbor_index.Index:
    """Loads an index of these vectors that `index.save(folder)` has written.

    The files are memory-mapped. Raises a `UserError` if the index is missing,
    damaged or of other vectors.

    Examples:
      >>> vectors.index('hnsw').save('king.index')
      >>> index = vectors.load_index('king.index')
      >>> vectors.most_similar('king', topn=1, indexer=index)
      [('queen', 0.80...)]
    """
    return neighbor_index.read(
      folder,
      self.vectors,
      self.norms,
      current=lambda: self.vectors,
    )

  def most_similar_cosmul(
    self,
    positive: Key | Sequence[Key] = (),
    negative: Key | Sequence[Key] = (),
    topn: int | None = 10,
    restrict_vocab: int | None = None,
  ) -> Ranked:
    """Finds the nearest neighbors by products of cosines (3CosMul).

    The score is equation 4 of Levy and Goldberg 2014. `positive` and `negative`
    are words or [dim] vectors, or lists of them, without weights. `topn`,
    `restrict_vocab` and the result are as in `most_similar`. Raises a
    `ValueError` if `positive` is empty.

    Examples:
      >>> vectors.most_similar_cosmul(['king', 'woman'], ['man'], topn=1)
      [('queen', 1.34...)]
    """
    positive = neighbors.as_list(positive)
    negative = neighbors.as_list(negative)
    if not positive:
      raise ValueError('give at least one positive word or vector')
    limit = restrict_vocab or None
    cosines = (
      (self._cosines(self._direction(x), limit) for x in keys)
      for keys in (positive, negative)
    )
    return self._ranked(
      neighbors.cosmul(*cosines),
      num=topn,
      excluded=self._rows_of(positive + negative),
      senses=self.sense_table,
    )

  def similar_by_word(
    self, word: Word, topn: int | None = 10, restrict_vocab: int | None = None
  ) -> Ranked:
    """Finds the nearest neighbors of a word; see `most_similar`.

    Examples:
      >>> vectors.similar_by_word('king', topn=1)
      [('queen', 0.80...)]
    """
    return self.most_similar([word], topn=topn, restrict_vocab=restrict_vocab)

  def similar_by_key(
    self, key: Word, topn: int | None = 10, restrict_vocab: int | None = None
  ) -> Ranked:
    """Finds the nearest neighbors of a word; see `most_similar`.

    Examples:
      >>> vectors.similar_by_key('king', topn=1)
      [('queen', 0.80...)]
    """
    return self.most_similar([key], topn=topn, restrict_vocab=restrict_vocab)

  def similar_by_ngrams(
    self, word: Word, topn: int | None = 10, restrict_vocab: int | None = None
  ) -> Ranked:
    """Finds the nearest neighbors of the mean of a word's n-grams.

    For a known word, they are the neighbors that it would have if it were
    unseen. Raises a `UserError` if the vectors have no n-grams, and a
    `KeyError` if the word has none.

    Examples:
      >>> model = jaxemb.load('model.bin')  # of fastText
      >>> model.similar_by_ngrams('king', topn=1)
      [('queen', 0.758...)]
    """
    vectors = [x for _, x in self.ngrams(word)]
    if not vectors:
      raise errors.UnknownWordError(word, self.index_to_key)
    mean = np.asarray(np.mean(vectors, axis=0, dtype=np.float32))
    # Words of the query are left out, with a weight of 0, too.
    return self.most_similar(
      [mean, (word, 0.0)], topn=topn, restrict_vocab=restrict_vocab
    )

  def similar_by_vector(
    self,
    vector: np.ndarray,
    topn: int | None = 10,
    restrict_vocab: int | None = None,
  ) -> Ranked:
    """Finds the nearest neighbors of a [dim] vector; see `most_similar`.

    Examples:
      >>> vectors.similar_by_vector(np.array([0, 1, 5]), topn=1)
      [('sea', 0.980...)]
    """
    vector = np.asarray(vector, np.float32)
    return self.most_similar([vector], topn=topn, restrict_vocab=restrict_vocab)

  def analogy(self, a: str, b: str, c: str, topn: int | None = 10) -> Ranked:
    """Finds words d such that a is to b as c is to d (3CosAdd).

    Examples:
      >>> vectors.analogy('man', 'king', 'woman', topn=1)
      [('queen', 0.779...)]
    """
    return self.most_similar([b, c], [a], topn=topn)

  # Senses.

  def senses(self, word: str) -> list[tuple[str, float]]:
    """Returns (name, prior) for each sense of a word.

    The name is the key of the sense's row. The prior is the probability of the
    sense without a context.

    Examples:
      >>> senses = jaxemb.load('runs/mixture')
      >>> senses.senses('bank')
      [('bank#0', 0.75), ('bank#1', 0.25)]
    """
    table, word = self.sense_table, lookup.name(word)
    if table is not None and word in table.index:
      rows = table.rows(table.index[word])
    else:
      row = self.get_index(word)
      rows = slice(row, row + 1)
    names = self.index_to_key[rows]
    priors = [1.0] if table is None else table.priors[rows].tolist()
    return list(zip(names, priors, strict=True))

  def disambiguate(
    self, sentence: Sequence[str] | str, position: int, window: int = 0
  ) -> np.ndarray:
    """Returns the probabilities of the senses of a word in context, [senses].

    `sentence` is a list of tokens, or a string that is split at white space.
    The context has `window` known words on each side; 0 = the setting
    `senses.query_window` of the run. Raises a `UserError` for a position
    outside the sentence or a negative window.

    Examples:
      >>> senses = jaxemb.load('runs/mixture')
      >>> senses.disambiguate('the bank of the river', 1).round(2)
      array([0.31, 0.69])
    """
    tokens = sentence.split() if isinstance(sentence, str) else list(sentence)
    table = self.sense_table
    known = self.key_to_index if table is None else table.index
    return multivectors.disambiguate(
      tokens, position, window=window, known=known, senses=table
    )

  def of_words(self) -> 'Embeddings':
    """Returns one vector per word: the mean of its senses, weighted by priors.

    Examples:
      >>> senses = jaxemb.load('runs/mixture')
      >>> len(senses), len(senses.of_words())
      (4, 3)
    """
    table = self.sense_table
    if table is None:
      return self
    return Embeddings(table.words, table.mean_vectors(), table.counts)

  # Benchmarks.

  def evaluate(
    self,
    eval_sets: Sequence[benchmarks.Benchmark],
    restrict_vocab: int = 300_000,
    window: int = 0,
  ) -> dict[str, dict[str, Any]]:
    r"""Evaluates the vectors on benchmarks.

    Returns a dict for each benchmark, by name. Its keys include 'kind', 'score'
    (None if no item was found), 'found' (items whose words are known) and
    'total' (items). The score is Spearman's correlation for similarity,
    accuracy for analogies and purity for categorization. The search covers the
    first `restrict_vocab` words; 0 = all. To disambiguate a word with several
    senses, the method uses `window` known words on each side; 0 = the setting
    `senses.query_window` of the run. Raises a `UserError` if a vector is not
    finite.

    Examples:
      >>> import pathlib
      >>> from jaxemb.evaluation import benchmarks
      >>> pairs = ['king queen 9', 'king man 7', 'king sea 1']
      >>> _ = pathlib.Path('pairs.txt').write_text('\n'.join(pairs))
      >>> results = vectors.evaluate(benchmarks.find(['pairs.txt']))
      >>> round(results['pairs']['score'], 3), results['pairs']['found']
      (1.0, 3)
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
  ) -> tuple[tuple[float, float], tuple[float, float], float]:
    r"""Correlates cosines with the ratings of a similarity benchmark.

    `delimiter` separates fields; None = white space or commas. Returns
    (Pearson's r, p), (Spearman's rho, p) and the percentage of pairs with an
    unknown word. These pairs are left out or, with `dummy4unknown`, have a
    cosine of 0. Raises a `UserError` if the file cannot be read, or if fewer
    than two pairs remain.

    Examples:
      >>> import pathlib
      >>> pairs = ['king queen 9', 'king man 7', 'king sea 1', 'king prince 8']
      >>> _ = pathlib.Path('pairs.txt').write_text('\n'.join(pairs))
      >>> pearson, spearman, unknown = vectors.evaluate_word_pairs('pairs.txt')
      >>> round(spearman[0], 3), unknown
      (np.float64(1.0), 25.0)
    """
    return files.word_pairs(
      self._searched(restrict_vocab, case_insensitive),
      pairs,
      delimiter=delimiter,
      encoding=encoding,
      counts_unknown=dummy4unknown,
    )

  def evaluate_word_analogies(
    self,
    analogies: pathlib.Path | str,
    restrict_vocab: int | None = 300_000,
    case_insensitive: bool = True,
    dummy4unknown: bool = False,
    similarity_function: str = 'most_similar',
  ) -> tuple[float, list[dict[str, Any]]]:
    r"""Evaluates the vectors on an analogy benchmark.

    Returns the accuracy, and for each section a dict with its name ('section')
    and the lists of 'correct' and 'incorrect' questions. The last section is
    'Total accuracy'. Questions with an unknown word are left out or, with
    `dummy4unknown`, count as incorrect. `similarity_function` is 'most_similar'
    or 'most_similar_cosmul' (gensim 4.4 ignores it and uses 'most_similar').
    Raises a `UserError` if the file cannot be read or has no analogies.

    Examples:
      >>> import pathlib
      >>> questions = ': titles\nman king woman queen\n'
      >>> _ = pathlib.Path('questions.txt').write_text(questions)
      >>> accuracy, sections = vectors.evaluate_word_analogies('questions.txt')
      >>> accuracy, [x['section'] for x in sections]
      (1.0, ['titles', 'Total accuracy'])
    """
    return files.word_analogies(
      self._searched(restrict_vocab, case_insensitive),
      analogies,
      measure=similarity_function,
      counts_unknown=dummy4unknown,
    )

  def _searched(self, limit: int | None, is_upper: bool) -> words_lib.Searched:
    words = self.of_words()
    return words_lib.Searched(
      words.index_to_key,
      words.vectors,
      limit,
      is_upper=is_upper,
      unseen=self._unseen_words(),
    )

  def _unseen_words(self) -> Callable[[str], np.ndarray | None] | None:
    """Returns what gives words outside of a vocabulary vectors, if any."""
    if self.subwords is None:
      return None
    return lambda word: self.get_vector(word) if word in self else None

  # Files.

  def save(self, folder: pathlib.Path | str, **options: Any) -> None:
    """Writes a folder with everything, for `load`.

    Raises a `UserError` if a file cannot be written, and a `TypeError` for any
    further argument.

    Examples:
      >>> vectors.save('vectors')
      >>> jaxemb.load('vectors')
      Embeddings(5 words x 3)
    """
    if options:
      raise TypeError(
        f'save takes a folder and no {", ".join(options)}: every array is a '
        'file of its own there, and nothing is pickled'
      )
    vector_files.write(folder, self._writable())

  def _contents(self) -> vector_files.Contents:
    fields = dataclasses.fields(self)
    return vector_files.Contents(*(getattr(self, x.name) for x in fields))

  def _writable(self) -> vector_files.Contents:
    """Returns what is written.

    Raises a `UserError` for words, vectors, counts or attributes that were set
    and do not fit each other: no file of them could be loaded.
    """
    try:
      return vector_files.checked(self._contents(), len(set(self.index_to_key)))
    except ValueError as error:
      raise errors.UserError(
        f'{error}; set index_to_key, vectors, counts and attributes alike '
        'before they are saved'
      ) from error

  def save_fasttext(self, fname: pathlib.Path | str) -> None:
    """Writes fastText's `.bin`, which gensim's load_facebook_model reads, too.

    If the vectors were loaded from a `.bin` or from a run with negative
    sampling, the new file has the settings and output vectors of that `.bin`
    or run. Otherwise it has fastText's default settings and zeros as output
    vectors, with a warning. Unknown or zero counts become 1. Raises a
    `UserError` if the file cannot be written, or if words have several senses.

    Examples:
      >>> vectors.save_fasttext('king.bin')
      >>> jaxemb.load('king.bin')
      Embeddings(5 words x 3)
    """
    vector_files.write_fasttext(fname, self._writable())

  @classmethod
  def load(
    cls, fname: pathlib.Path | str, mmap: str | None = None
  ) -> 'Embeddings':
    """Loads vectors, like `jaxemb.load`. `mmap` may be None or 'r'.

    In both cases, files that `save` wrote are memory-mapped and never changed.
    Raises a `ValueError` for another `mmap`, and a `UserError` if the path
    cannot be read or has a click model.

    Examples:
      >>> vectors.save('vectors')
      >>> jaxemb.Embeddings.load('vectors', mmap='r')
      Embeddings(5 words x 3)
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
    """Writes a word2vec file and, to `fvocab`, words with their `sort_attr`.

    A suffix such as .gz compresses the file. Without a header, the file is in
    GloVe's format. `prefix` is put before each word. Words are sorted by
    descending `sort_attr`; unknown counts leave the order unchanged. `append`
    adds to existing files, whose header may announce the total number of words
    (`total_vec`). White space in words becomes underscores, with a warning.

    Raises a `UserError` if a file cannot be written. Raises a `ValueError` for
    an unknown `sort_attr` other than 'count', for `fvocab` without known
    counts, or for a new binary file without a header.

    Examples:
      >>> vectors.save_word2vec_format('king.bin', 'counts.txt', binary=True)
      >>> print(open('counts.txt').read())
      king 9
      queen 7
      man 5
      woman 3
      sea 1
      <BLANKLINE>
    """
    values = self.expandos.get(sort_attr)
    if binary and not write_header and not append:
      raise ValueError('a binary file needs its header')
    if values is None and (fvocab is not None or sort_attr != 'count'):
      remedy = 'leave out fvocab' if sort_attr == 'count' else 'add it'
      raise ValueError(f'no {sort_attr}s are known: {remedy}')
    vector_files.write_word2vec(
      fname,
      self._writable(),
      order_by=values,
      vocab_path=fvocab,
      prefix=prefix,
      is_binary=binary,
      has_header=write_header,
      num_announced=total_vec,
      appends=append,
    )

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
    """Loads a word2vec, GloVe or .vec file, with gensim's arguments.

    If `binary` or `no_header` is None, it is detected. `fvocab` is a file of
    lines `word count`; without it, counts are unknown. `limit` is the number of
    rows to read, and `datatype` their type in memory. Raises a `UserError` if
    the file cannot be read or does not fit the arguments, and a
    `UnicodeDecodeError` for words in another encoding unless `unicode_errors`
    is 'replace' or 'ignore'.

    Examples:
      >>> vectors.save_word2vec_format('king.txt')
      >>> jaxemb.Embeddings.load_word2vec_format('king.txt', limit=2)
      Embeddings(2 words x 3)
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
    """Replaces the vectors of known words by those in a word2vec file.

    Unknown words in the file are ignored. Raises a `UserError` if the file
    cannot be read or has another dimension, and a `TypeError` for `lockf`.

    Examples:
      >>> others = jaxemb.Embeddings(['sea', 'lake'], np.ones((2, 3)))
      >>> others.save_word2vec_format('others.bin', binary=True)
      >>> vectors.intersect_word2vec_format('others.bin')
      >>> vectors['sea'], 'lake' in vectors
      (array([1., 1., 1.], dtype=float32), False)
    """
    if lockf is not None:
      raise TypeError('vectors are not trained further; leave out lockf')
    other = Embeddings.load_word2vec_format(
      fname, binary=binary, encoding=encoding, unicode_errors=unicode_errors
    )
    vector_files.check_dim(fname, other.vector_size, self.vector_size)
    common = [x for x in other.index_to_key if x in self.key_to_index]
    self.add_vectors(common, other[common], replace=True)

  def save_safetensors(self, fname: pathlib.Path | str) -> None:
    """Writes a safetensors file with vectors, words and any counts.

    Raises a `UserError` if the file cannot be written.

    Examples:
      >>> vectors.save_safetensors('king.safetensors')
      >>> jaxemb.load('king.safetensors')
      Embeddings(5 words x 3)
    """
    vector_files.write_safetensors(fname, self._writable())

  def save_onnx(self, fname: pathlib.Path | str) -> None:
    """Writes an ONNX model that returns `vectors` and row numbers of `words`.

    The output `rows` has the row numbers. An unknown word has a zero vector,
    and its row number is the size of the vocabulary. Raises a `UserError` if
    the extra `onnx` is not installed, or if the file would be too large or
    cannot be written.

    Examples:
      >>> import onnxruntime
      >>> vectors.save_onnx('king.onnx')
      >>> session = onnxruntime.InferenceSession('king.onnx')
      >>> (rows,) = session.run(['vectors'], {'words': np.array(['sea', '?'])})
      >>> rows
      array([[0., 0., 2.],
             [0., 0., 0.]], dtype=float32)
    """
    vector_files.write_onnx(fname, self._writable())

  def save_static_model(
    self,
    folder: pathlib.Path | str,
    tokens: str = 'words',
    lowercase: bool | None = None,
  ) -> None:
    """Writes a folder that model2vec and sentence-transformers load.

    The vector of a sentence is the mean of the vectors of its words. Pass the
    `data.tokens` and `data.lowercase` of the run as `tokens` and `lowercase`.
    If `lowercase` is None, sentences are lower-cased if no word has capitals. A
    word with several senses has the vector that `of_words` returns, with a
    warning. Warns of words that the tokenizer cannot produce. Raises a
    `UserError` if the folder cannot be written.

    Examples:
      >>> from model2vec import StaticModel
      >>> vectors.save_static_model('king-model')
      >>> model = StaticModel.from_pretrained('king-model')
      >>> model.encode(['the king, the queen']).round(2)
      array([[3., 0., 0.]], dtype=float32)
    """
    vector_files.write_static_model(
      folder, self._writable(), tokens=tokens, lowercase=lowercase
    )

  def save_parquet(self, fname: pathlib.Path | str) -> None:
    """Writes a Parquet file with the columns key, count (if known) and vector.

    Read it with pandas, polars or Hugging Face's datasets. `jaxemb.load` does
    not read it. Raises a `UserError` if it cannot be written.

    Examples:
      >>> from pyarrow import parquet
      >>> vectors.save_parquet('king.parquet')
      >>> parquet.read_table('king.parquet').column_names
      ['key', 'count', 'vector']
    """
    vector_files.write_parquet(fname, self._writable())


def load_vectors(
  path: str | os.PathLike[str], encoding: str = 'utf-8'
) -> Embeddings:
  """Loads vectors of any format; warns of lines that were left out.

  Reads a workdir, its export folder or vectors.npy (memory-mapped), or a
  word2vec, GloVe or fastText .vec file, text or binary, plain or packed, with
  words in `encoding`; safetensors of vectors or of model2vec; or a fastText
  model, .bin or .ftz. Runs may be in a bucket. Raises a `UserError` if the file
  is missing, not recognized, cut or damaged.
  """
  with bucket.opened(path) as local:
    contents = vector_files.read(local, encoding)
    try:
      vectors = Embeddings(*contents)
    except ValueError as error:  # words, counts or values of something else
      raise errors.UserError(f'{path} is damaged: {error}') from error
    return vectors.in_memory() if bucket.is_url(path) else vectors
