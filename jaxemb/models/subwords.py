"""Skip-gram and CBOW whose input vectors share rows of character n-grams.

As in fastText (Bojanowski et al. 2017) the input vector of a word is the mean
of rows: its own and those of its n-grams, which hash to buckets
(`ops.ngrams`). CBOW's hidden vector is the mean of the rows of all contexts, a
context counting by its rows. Every row gets the whole gradient of that mean,
not divided by their number: the paper's gradient of a sum, and what fastText
does unless it classifies. So learning rates of CBOW are those of fastText, not
of `models.cbow`.

A table has rows of the buckets alone that n-grams of the vocabulary hash to,
those that are looked up most often first. Any other bucket would keep its
random start, and is exported as zeros.

The n-grams of the w tokens of a chunk are packed side by side, with padding at
the end; each has an owner among the tokens. There is room for the longest
words, and in a compact variant for most steps.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.evaluation import subwords as subwords_lib
from jaxemb.models import base, cbow, columns, skipgram
from jaxemb.ops import ngrams as ngrams_lib
from jaxemb.ops import sampling
from jaxemb.storage import export
from jaxemb.tables import spec as spec_lib

NGRAMS = 'ngrams'  # the table
_OWNERS = 'owners'  # beside the ids of the tables
_BLOCK_WORDS = 16_384  # whose vectors are composed at once
# The compact room is this many deviations above the mean.
_DEVIATIONS = 4.0


@dataclasses.dataclass(frozen=True)
class Buckets:
  """The buckets of the rows of the table of n-grams."""

  subwords: ngrams_lib.Subwords
  of_rows: np.ndarray = dataclasses.field(compare=False)  # [rows] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WordRows:
  """Rows of the n-grams of each word, one word behind the other."""

  # [vocab + 2] int32, of each word in `rows`; padding has none.
  starts: jax.Array
  rows: jax.Array  # [total] int32
  buckets: Buckets = base.static()

  def counts(self, tokens: jax.Array) -> jax.Array:
    """Returns [...] int32, n-grams of tokens; of padding 0."""
    tokens = jnp.minimum(tokens, len(self.starts) - 2)
    starts, stops = (
      self.starts.at[tokens + i].get(mode='promise_in_bounds') for i in (0, 1)
    )
    return stops - starts

  def means(self, ids: np.ndarray, inputs: Any, ngrams: Any) -> np.ndarray:
    """Returns vectors [n, dim] float32 of words, on the host.

    `inputs` [vocab, dim] and `ngrams` are float32 rows of both tables, or are
    read when they are indexed.
    """
    vectors = np.empty((len(ids), *inputs.shape[1:]), np.float32)
    starts, rows = np.asarray(self.starts), np.asarray(self.rows)
    for i in range(0, len(ids), _BLOCK_WORDS):
      block = ids[i : i + _BLOCK_WORDS]
      counts = starts[block + 1] - starts[block]
      stops = np.append(0, np.cumsum(counts))
      offsets = np.repeat(starts[block] - stops[:-1], counts)
      sums = _sums(ngrams, rows[offsets + np.arange(stops[-1])], stops)
      sums += inputs[block]
      totals = (1 + counts).astype(np.float32)
      vectors[i : i + len(block)] = sums / totals[:, None]
    return vectors

  def pack(self, tokens: jax.Array, room: int) -> tuple[jax.Array, jax.Array]:
    """Returns rows [k, room] of tokens [k, w], and their owners, 0..w - 1.

    Padding has owner w and rows that are not in the table.
    """
    width = tokens.shape[1]
    lengths = self.counts(tokens)
    stops = jnp.cumsum(lengths, 1)
    positions = jnp.arange(room)[None]
    owners = jnp.sum(positions[..., None] >= stops[:, None, :], 2)
    owner = jnp.minimum(owners, width - 1)
    # Position of a token's first row, less that of its n-gram in the chunk.
    firsts = jnp.minimum(tokens, len(self.starts) - 2)
    firsts = self.starts.at[firsts].get(mode='promise_in_bounds')
    offsets = jnp.take_along_axis(firsts - (stops - lengths), owner, 1)
    ids = self.rows.at[offsets + positions].get(mode='clip')
    none = np.int32(len(self.buckets.of_rows))
    return jnp.where(owners < width, ids, none), owners


def _sums(table: Any, ids: np.ndarray, stops: np.ndarray) -> np.ndarray:
  """Returns [n, dim] float32, sums of the rows of ids, stops[i] : stops[i + 1].

  An array is not copied; of rows that are read on demand each is read once.
  """
  from scipy import sparse  # takes a moment to import

  if isinstance(table, export.OnDemand):
    rows, ids = np.unique(ids, return_inverse=True)
    table = table[rows]
  ones = np.ones(len(ids), np.float32)
  shape = len(stops) - 1, len(table)
  return sparse.csr_array((ones, ids, stops), shape) @ table


@jax.custom_vjp
def _mean(sums: jax.Array, counts: jax.Array) -> jax.Array:
  """Returns sums [..., d] by counts [...], each row with the whole gradient."""
  return sums / counts[..., None]


_mean.defvjp(
  lambda sums, counts: (_mean(sums, counts), None),
  lambda _, slopes: (slopes, None),
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SkipGram(skipgram.SkipGram):
  """Skip-gram with subwords."""

  words: WordRows
  longest: int = base.static()  # n-grams of a word
  room: int = base.static()  # for rows of n-grams of a chunk
  compact_room: int = base.static()

  composed_of = (NGRAMS,)

  def composed(self, tables):
    """See `Model`: the means of the rows of words."""
    inputs, ngrams = (tables[x].decode() for x in (skipgram.INPUT, NGRAMS))

    def read(ids):
      return self.words.means(ids, inputs, ngrams)

    rows = export.OnDemand(read, inputs.shape, np.dtype(np.float32))
    is_read = isinstance(inputs, export.OnDemand)
    return export.Encoded(rows if is_read else rows[:])

  def composed_keys(self, name):
    """See `Model`: buckets."""
    return self.words.buckets.of_rows

  def composed_sums(self, name, of_keys):
    """See `Model`: weighted as in the means of words."""
    starts, rows = np.asarray(self.words.starts), np.asarray(self.words.rows)
    counts = np.diff(starts)[:-1]
    numbers = np.repeat(of_keys / (1 + counts), counts)
    return np.bincount(rows, numbers, len(self.words.buckets.of_rows))

  def ngram_vectors(self, rows):
    """See `Model`."""
    buckets = self.words.buckets
    return subwords_lib.NgramVectors(
      buckets.subwords, rows[NGRAMS], buckets.of_rows
    )

  @property
  def compact(self):
    """See `Model`."""
    if self.compact_room >= self.room:
      return None
    return dataclasses.replace(self, room=self.compact_room)

  def fits(self, batch):
    """See `Model`."""
    counts = self.words.counts(self._tokens(batch))
    return jnp.max(jnp.sum(counts, 1)) <= self.compact_room

  def ids(self, batch, key):
    """Returns those of `skipgram.SkipGram`, and n-grams [L / c, room]."""
    packed, owners = self.words.pack(self._tokens(batch), self.room)
    return super().ids(batch, key) | {NGRAMS: packed, _OWNERS: owners}

  def loss(self, params, rows, ids, batch, key):
    """See `skipgram.SkipGram`."""
    sums, counts = self._sums(rows, ids)
    rows = dict(rows) | {skipgram.INPUT: _mean(sums, counts)}
    return super().loss(params, rows, ids, batch, key)

  def _tokens(self, batch):
    """Returns [k, w] int32, tokens whose input vectors a step needs."""
    return batch.centers()

  def _sums(self, rows, ids):
    """Returns sums of the rows of tokens [..., d], and how many [...]."""
    inputs, tokens = rows[skipgram.INPUT], ids[skipgram.INPUT]
    width = tokens.shape[-1]
    owners = ids[_OWNERS][:, None, :] == jnp.arange(width)[None, :, None]
    sums = columns.weighted_sums(owners.astype(jnp.float32), rows[NGRAMS])
    counts = self.words.counts(tokens).astype(jnp.float32)
    return inputs + sums.reshape(inputs.shape), 1 + counts


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cbow(SkipGram, cbow.Cbow):
  """CBOW with subwords."""

  def loss(self, params, rows, ids, batch, key):
    """See `cbow.Cbow`."""
    return cbow.Cbow.loss(self, params, rows, ids, batch, key)

  def _tokens(self, batch):
    tokens = batch.blocks() if self.spec.tokens_once else batch.windows()
    return tokens.reshape(-1, tokens.shape[-1])

  def _hidden(self, batch, rows, ids):
    sums, counts = self._sums(rows, ids)
    if self.spec.tokens_once:
      sums, counts = batch.windows_of(sums), batch.windows_of(counts)
    mask, num_contexts = batch.mask(), batch.num_contexts()[..., None]
    counts = jnp.maximum(jnp.sum(mask * counts[:, None, :], 2), 1)
    return _mean(columns.weighted_sums(mask, sums), counts), num_contexts


class _Rows(NamedTuple):
  """The table of n-grams of a vocabulary."""

  words: WordRows
  lookups: np.ndarray  # [rows] float64, per center


def _rows(
  keys: Sequence[str],
  subwords: ngrams_lib.Subwords,
  lookups: np.ndarray,
) -> _Rows:
  """Numbers the buckets of a vocabulary; `lookups` [vocab] are of its words.

  Raises a `UserError` if no word has an n-gram.
  """
  ngrams = ngrams_lib.of_words(keys, subwords)
  lengths = np.diff(ngrams.starts)
  if not len(ngrams.buckets):
    raise errors.UserError(
      f'config.model.subwords={subwords.min_chars}-{subwords.max_chars}: no '
      'word is as long as that; lower the first number'
    )
  if len(ngrams.buckets) >= 2**31:
    raise errors.UserError(
      f'config.model.subwords: {len(ngrams.buckets):,} n-grams of all words '
      'are more than 2^31; lower --config.data.max_vocab'
    )
  buckets, numbers = np.unique(ngrams.buckets, return_inverse=True)
  by_bucket = np.bincount(numbers, np.repeat(lookups, lengths))
  order = np.argsort(-by_bucket, kind='stable')
  ranks = np.empty(len(order), np.int32)
  ranks[order] = np.arange(len(order), dtype=np.int32)
  starts = np.append(ngrams.starts, ngrams.starts[-1]).astype(np.int32)
  words = WordRows(
    cast(jax.Array, starts),  # of the host until a program takes them
    cast(jax.Array, ranks[numbers]),
    buckets=Buckets(subwords, buckets[order]),
  )
  return _Rows(words, by_bucket[order])


def make(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  loss_of: sampling.Pointwise,
  subwords: ngrams_lib.Subwords,
  is_cbow: bool,
) -> SkipGram:
  """Makes skip-gram or CBOW with subwords for a corpus.

  Raises a `UserError` if no word has an n-gram.
  """
  plain = (cbow if is_cbow else skipgram).make(spec, corpus, loss_of)
  inputs, outputs = (x.lookups_per_center for x in plain.tables)
  rows = _rows(corpus.keys, subwords, inputs)
  starts = 1 / spec.dim  # as in fastText
  tables = spec_lib.describe(
    spec.dim,
    (skipgram.INPUT, inputs, starts),
    (skipgram.OUTPUT, outputs, 0.0),
    (NGRAMS, rows.lookups, starts),
  )
  width = spec.chunk
  if is_cbow and not spec.tokens_once:
    width += 2 * spec.window
  lengths = np.diff(rows.words.starts)[:-1]
  mean = float(corpus.centers @ lengths)
  variance = max(float(corpus.centers @ lengths**2) - mean**2, 0.0)
  room = width * mean + _DEVIATIONS * math.sqrt(width * variance)
  kind = Cbow if is_cbow else SkipGram
  return kind(
    spec=spec,
    tables=tables,
    negatives=plain.negatives,
    loss_of=loss_of,
    words=rows.words,
    longest=int(lengths.max()),
    room=width * int(lengths.max()),
    compact_room=8 * math.ceil(room / 8),
  )
