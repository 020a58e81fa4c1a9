"""Compiled loops over pairs of neighbouring words: count, score and join them.

A pair consists of two words of a sentence with nothing between them but words
that connect, such as `bank of america`. As in gensim and word2phrase all pairs
with the same name are counted together, and with a word of that name: `a_b c`
with `a b_c`.

A name is known by a key: the polynomial of its bytes modulo a prime, so that
the key of a pair follows from those of its words. Tables are addressed by 62
mixed bits of it, the highest first: reading a table in order sorts it, and
sorted keys are added in order. Of 10 million names two are taken for one with a
probability of 1e-5.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np

from jaxemb.text import tokenize

KEY_BITS = 62
# Set in a total whose name is that of a word, not only of pairs.
IS_WORD = 1 << 62
_COUNT = IS_WORD - 1
SCORES = 'word2vec', 'npmi'

_PRIME = (1 << 61) - 1
_BASE = 0x9A3F1D5B7C24E61  # any numbers below the prime
_MIX = np.int64(-0x61C8864680B583EB)
_LOW_30, _LOW_31, _LOW_32 = (1 << 30) - 1, (1 << 31) - 1, (1 << 32) - 1
_LOW_62 = (1 << 62) - 1
_DELIMITER = ord('_') + 1

_INNER = {'nogil': True, 'no_cpython_wrapper': True, 'no_cfunc_wrapper': True}
_OUTER = {'nogil': True, 'cache': True, 'error_model': 'numpy'}


class Names(NamedTuple):
  """What the names of different words contribute to those of pairs."""

  keys: np.ndarray  # [n] int64
  powers: np.ndarray  # [n] int64, of the base, by the length of each
  connects: np.ndarray  # [n] bool, whether it may stand within a pair


class Pairs(NamedTuple):
  """Different words and pairs of a piece, sorted by key."""

  keys: np.ndarray  # [n] int64
  # Occurrences in the lower 32 bits; above them the position of the first word
  # of a pair, or -1 - the index of a word.
  values: np.ndarray  # [n] int64


class Totals(NamedTuple):
  """Occurrences of different names, sorted by key."""

  keys: np.ndarray  # [n] int64
  counts: np.ndarray  # [n] int64, also `IS_WORD`


class Index(NamedTuple):
  """Totals that pieces look up, and what they have looked up."""

  totals: Totals
  offsets: np.ndarray  # [2^k] int64, of keys by their first k bits
  shift: int  # KEY_BITS - k
  # By total, the first word, as its key + 1, of a pair that is a phrase: other
  # pieces need not return it again.
  returned: np.ndarray  # [n] int64


class Scoring(NamedTuple):
  """Which pairs are phrases, in a text whose words and pairs are counted."""

  score: str  # one of SCORES
  threshold: float  # which the score of a phrase exceeds
  min_count: int
  num_names: int  # different words and pairs
  num_words: int  # of the text


class Candidates(NamedTuple):
  """Phrases of a piece."""

  positions: np.ndarray  # [n] int64, where each begins in the piece
  counts: np.ndarray  # [n] int64, occurrences of the name
  scores: np.ndarray  # [n] float64


@numba.njit(**_INNER)
def _reduced(x):
  x = (x >> 61) + (x & _PRIME)
  return x - _PRIME if x >= _PRIME else x


@numba.njit(**_INNER)
def _times(a, b):
  """Returns a * b modulo the prime, in 63 bits: 2^61 is 1."""
  a_high, a_low, b_high, b_low = a >> 31, a & _LOW_31, b >> 31, b & _LOW_31
  middle = a_low * b_high + a_high * b_low
  high = 2 * a_high * b_high + (middle >> 30)
  return _reduced(high + ((middle & _LOW_30) << 31) + a_low * b_low)


@numba.njit(**_INNER)
def _joined(first, second, power):
  """Returns the key of two names with the delimiter between them."""
  first = _reduced(_times(first, _BASE) + _DELIMITER)
  return _reduced(_times(first, power) + second)


@numba.njit(**_INNER)
def _mixed(key):
  """Returns KEY_BITS bits that depend on all those of a key."""
  return (((key ^ (key >> 32)) * _MIX) >> 2) & _LOW_62


@numba.njit(**_OUTER)
def _name_keys(starts, arena, keys, powers):
  for i in range(len(keys)):
    key, power = np.int64(0), np.int64(1)
    for j in range(starts[i], starts[i + 1]):
      key = _reduced(_times(key, _BASE) + np.int64(arena[j]) + 1)
      power = _times(power, _BASE)
    keys[i], powers[i] = key, power


@numba.njit(**_INNER)
def _slot(entries, shift, mask, key):
  """Returns the slot of a key, or the empty one for it.

  There is room behind the last slot for all that do not fit.
  """
  slot = (key >> shift) & mask
  while entries[slot, 0] != 0 and entries[slot, 0] != key + 1:
    slot += 1
  return slot


@numba.njit(**_OUTER)
def _name_pairs(ids, names, starts, pair_keys):
  """Writes where pairs start, and their keys; returns how many there are.

  A loop of its own: with another one's branches it takes twice as long.
  """
  keys, powers, connects = names
  n, start, name = 0, -1, np.int64(0)
  for i in range(len(ids)):
    word = ids[i]
    if word < 0:
      start = -1
      continue
    if start >= 0:
      name = _joined(name, keys[word], powers[word])
    if not connects[word]:
      if start >= 0:
        starts[n], pair_keys[n] = start, name
        n += 1
      start, name = i, keys[word]
  return n


@numba.njit(**_OUTER)
def _count(ids, names, counts, starts, pair_keys, entries, shift):
  """Adds words with their counts, and pairs; returns how many differ.

  A slot holds a key + 1 and a value as in `Pairs`.
  """
  keys, connects = names.keys, names.connects
  mask, size = (np.int64(1) << (62 - shift)) - 1, 0
  for word in range(len(keys)):
    if not connects[word]:
      key = _mixed(keys[word])
      slot = _slot(entries, shift, mask, key)
      entries[slot, 0] = key + 1
      entries[slot, 1] = ((-1 - np.int64(word)) << 32) + counts[word]
      size += 1
  for i in range(len(starts)):
    start, key = np.int64(starts[i]), _mixed(pair_keys[i])
    slot = (key >> shift) & mask
    while entries[slot, 0] != 0:
      if entries[slot, 0] == key + 1:
        # A name that splits elsewhere, or is that of a word, is another entry.
        position = entries[slot, 1] >> 32
        if position >= 0 and ids[position] == ids[start]:
          break
      slot += 1
    if entries[slot, 0] == 0:
      entries[slot, 0], entries[slot, 1] = key + 1, start << 32
      size += 1
    entries[slot, 1] += 1
  return size


@numba.njit(**_OUTER)
def _add(entries, shift, mask, keys, values, are_pairs):
  """Adds totals, or the values of pairs; returns how many names are new."""
  num_new = 0
  for i in range(len(keys)):
    value = values[i]
    if are_pairs:
      value = (value & _LOW_32) | (IS_WORD if value < 0 else 0)
    slot = _slot(entries, shift, mask, keys[i])
    num_new += entries[slot, 0] == 0
    entries[slot, 0] = keys[i] + 1
    total = entries[slot, 1]
    entries[slot, 1] = (total & _COUNT) + (value & _COUNT)
    entries[slot, 1] |= (total | value) & IS_WORD
  return num_new


@numba.njit(**_OUTER)
def _read(entries, keys, values):
  """Reads a table in the order of its keys."""
  n, slot = 0, -1
  while n < len(keys):
    slot += 1
    key = entries[slot, 0] - 1
    if key < 0:
      continue
    # Only neighbours without an empty slot between them are out of order.
    i = n
    while i > 0 and keys[i - 1] > key:
      keys[i], values[i] = keys[i - 1], values[i - 1]
      i -= 1
    keys[i], values[i] = key, entries[slot, 1]
    n += 1


@numba.njit(**_INNER)
def _total(index, key):
  """Returns the index of a total, or -1."""
  keys = index.totals.keys
  i = index.offsets[key >> index.shift]
  while i < len(keys) and keys[i] < key:
    i += 1
  return i if i < len(keys) and keys[i] == key else -1


@numba.njit(**_OUTER)
def _select(ids, names, pairs, index, scoring, out):
  """Writes the phrases among the pairs; returns how many there are."""
  keys, powers, connects = names
  totals, returned = index.totals.counts, index.returned
  is_npmi, threshold, min_count, num_names, num_words = scoring
  positions, out_counts, scores = out
  counts = np.zeros(len(keys), np.int64)  # of words, in the whole text
  for i in range(len(pairs.keys)):
    if pairs.values[i] < 0:
      total = _total(index, pairs.keys[i])
      counts[-1 - (pairs.values[i] >> 32)] = totals[total] & _COUNT
  n = 0
  for i in range(len(pairs.keys)):
    start = pairs.values[i] >> 32
    total = _total(index, pairs.keys[i]) if start >= 0 else -1
    if total < 0 or totals[total] & _COUNT < min_count:
      continue
    first = ids[start]
    if returned[total] == keys[first] + 1:
      continue
    end = start + 1
    while connects[ids[end]]:
      end += 1
    a, b = float(counts[first]), float(counts[ids[end]])
    c = float(totals[total] & _COUNT)
    if is_npmi:
      # In gensim's order of operations, to round alike.
      p = c / num_words
      score = np.log(p / (a / num_words * (b / num_words))) / -np.log(p)
    else:
      score = (c - min_count) / (a * b) * num_names
    if score > threshold:
      returned[total] = keys[first] + 1
      positions[n], out_counts[n], scores[n] = (
        start,
        totals[total] & _COUNT,
        score,
      )
      n += 1
  return n


@numba.njit(**_OUTER)
def _enter(keys, entries, shift):
  """Writes the numbers of phrases behind their keys."""
  mask = (np.int64(1) << (62 - shift)) - 1
  for i in range(len(keys)):
    key = _mixed(keys[i])
    slot = (key >> shift) & mask
    while entries[slot, 0] != 0:  # also those of the same name
      slot += 1
    entries[slot, 0], entries[slot, 1] = key + 1, i


@numba.njit(**_OUTER)
def _look_up(ids, keys, starts, pair_keys, entries, shift, firsts):
  """Replaces the key of each pair by the number of its phrase, or -1."""
  mask = (np.int64(1) << (62 - shift)) - 1
  for i in range(len(starts)):
    key, phrase = _mixed(pair_keys[i]), np.int64(-1)
    slot = (key >> shift) & mask
    while entries[slot, 0] != 0:
      if entries[slot, 0] == key + 1:
        if firsts[entries[slot, 1]] == keys[ids[starts[i]]]:
          phrase = entries[slot, 1]
          break
      slot += 1
    pair_keys[i] = phrase


@numba.njit(**_OUTER)
def _join(ids, connects, phrases, first_id, numbers, out, used):
  """Writes ids with phrases joined, from left to right.

  `phrases` has a number or -1 for each pair. A phrase gets an id, from
  `first_id` on, when it first occurs: `numbers` has these by phrase, or -1, and
  `used` the phrases by id. Returns the number of ids, of phrases that occur,
  and of their occurrences.
  """
  n, num_used, num_joined = 0, 0, 0
  pair, has_first, start = -1, False, -1
  for i in range(len(ids)):
    word = out[n] = ids[i]
    n += 1
    if word < 0:
      has_first, start = False, -1
    elif not connects[word]:
      pair += has_first
      has_first = True
      phrase = phrases[pair] if start >= 0 else -1
      if phrase < 0:
        start = n - 1
        continue
      if numbers[phrase] < 0:
        numbers[phrase] = first_id + num_used
        used[num_used] = phrase
        num_used += 1
      out[start] = numbers[phrase]
      n, start = start + 1, -1
      num_joined += 1
  return n, num_used, num_joined


def names(words: tokenize.Words, connectors: np.ndarray) -> Names:
  """Returns the names of words; those with hashes in `connectors` connect."""
  n = len(words.starts) - 1
  keys, powers = np.empty(n, np.int64), np.empty(n, np.int64)
  _name_keys(words.starts, words.arena, keys, powers)
  return Names(keys, powers, np.isin(words.hashes, connectors))


def _table(num_entries: int) -> tuple[np.ndarray, int]:
  """Returns an empty table, and how many bits of a key number its slots.

  Pages that are never written take no memory.
  """
  bits = max(1, (num_entries * 5 // 4).bit_length())
  return np.zeros(((1 << bits) + num_entries + 1, 2), np.int64), bits


def _sorted(entries: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
  keys, values = np.empty(size, np.int64), np.empty(size, np.int64)
  _read(entries, keys, values)
  return keys, values


def _pairs(ids: np.ndarray, names: Names) -> tuple[np.ndarray, np.ndarray]:
  starts, keys = np.empty(len(ids), np.int32), np.empty(len(ids), np.int64)
  n = _name_pairs(ids, names, starts, keys)
  return starts[:n], keys[:n]


def count(ids: np.ndarray, names: Names, counts: np.ndarray) -> Pairs:
  """Counts the pairs of a piece; its words occur `counts` times."""
  starts, pair_keys = _pairs(ids, names)
  entries, bits = _table(len(starts) + len(counts))
  size = _count(ids, names, counts, starts, pair_keys, entries, KEY_BITS - bits)
  return Pairs(*_sorted(entries, size))


def add_up(parts: Sequence[Totals | Pairs], range_bits: int = 0) -> Totals:
  """Adds up names whose keys have their first `range_bits` bits in common."""
  entries, bits = _table(sum(len(part.keys) for part in parts))
  shift, mask, size = KEY_BITS - range_bits - bits, (1 << bits) - 1, 0
  for part in parts:
    are_pairs = isinstance(part, Pairs)
    size += _add(entries, shift, mask, *part, are_pairs)
  return Totals(*_sorted(entries, size))


def index(totals: Totals) -> Index:
  """Returns totals as `select` looks them up."""
  bits = max(1, len(totals.keys).bit_length() - 1)
  shift = KEY_BITS - bits
  limits = np.arange(1 << bits) << shift
  return Index(
    totals=totals,
    offsets=np.searchsorted(totals.keys, limits),
    shift=shift,
    returned=np.zeros(len(totals.keys), np.int64),
  )


def select(
  ids: np.ndarray, names: Names, pairs: Pairs, index: Index, scoring: Scoring
) -> Candidates:
  """Returns phrases of a piece, whose pairs are counted.

  The index has the totals of all words of the text, and of all pairs that may
  be phrases. Most of those that were returned of other pieces are left out.
  """
  n = len(pairs.keys)
  out = Candidates(
    positions=np.empty(n, np.int64),
    counts=np.empty(n, np.int64),
    scores=np.empty(n, np.float64),
  )
  numbers = scoring.score == 'npmi', float(scoring.threshold), *scoring[2:]
  n = _select(ids, names, pairs, index, numbers, out)
  return Candidates(*(x[:n].copy() for x in out))


class Joiner:
  """Joins phrases, whatever text they are from."""

  def __init__(
    self, phrases: Sequence[Sequence[bytes]], connectors: np.ndarray
  ):
    """`phrases` are the words of each, `connectors` as in `names`."""
    self._connectors = connectors
    self._words = tokenize.words_of([b'_'.join(x) for x in phrases])
    firsts = tokenize.words_of([x[0] for x in phrases])
    self._firsts = names(firsts, connectors).keys
    # Few of its entries are used: most pairs are no phrases.
    self._entries, bits = _table(4 * len(phrases))
    self._shift = KEY_BITS - bits
    _enter(names(self._words, connectors).keys, self._entries, self._shift)

  def join(
    self, words: tokenize.Words, ids: np.ndarray
  ) -> tuple[tokenize.Words, np.ndarray, int]:
    """Returns words, sorted by hash, and ids with phrases joined.

    The third result is how many times phrases occur.
    """
    own_names = names(words, self._connectors)
    starts, pairs = _pairs(ids, own_names)
    _look_up(
      ids,
      own_names.keys,
      starts,
      pairs,
      self._entries,
      self._shift,
      self._firsts,
    )
    phrases, first_id = self._words, len(words.counts)
    numbers = np.full(len(phrases.counts), -1, np.int32)
    used, out = np.empty(len(numbers), np.int64), np.empty(len(ids), np.int32)
    n, num_used, num_joined = _join(
      ids, own_names.connects, pairs, first_id, numbers, out, used
    )
    ids = out[:n]
    words = tokenize.concatenated([words, phrases.subset(used[:num_used])])
    # A phrase may have the name of a word or of another phrase.
    _, firsts, indices = np.unique(
      words.hashes, return_index=True, return_inverse=True
    )
    is_word = ids != tokenize.END
    counts = np.bincount(indices[ids[is_word]], minlength=len(firsts))
    remaining = np.flatnonzero(counts)
    new_ids = np.full(len(firsts), -1, np.int32)
    new_ids[remaining] = np.arange(len(remaining))
    new_ids = np.append(new_ids[indices], np.int32(tokenize.END))
    words = words.subset(firsts[remaining])._replace(counts=counts[remaining])
    return words, new_ids[ids], num_joined
