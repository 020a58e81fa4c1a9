"""The hash table against dict and Counter, with crafted collisions."""

import collections
import itertools
import random

import numpy as np
import pytest

from jaxemb.text import word_table


def _packed(words):
  """Bytes behind one another and where each word starts."""
  starts = np.cumsum([0, *map(len, words)]).astype(np.int64)
  return np.frombuffer(b''.join(words) + b'\0', np.uint8), starts


def _merged(table, counts):
  arena, starts = _packed(list(counts))
  return word_table.merge(
    table, arena, starts, np.array(list(counts.values()), np.int64)
  )


def _entries(table):
  """Words and counts in entry order."""
  words = list(word_table.words(table))
  return list(zip(words, table.counts[: len(words)].tolist(), strict=True))


def _find(table, word, h=None):
  text = np.frombuffer(word + b'\0', np.uint8)
  if h is None:
    h = word_table.hash_bytes(text, 0, len(word))
  return word_table.find(table, text, 0, len(word), np.uint64(h))


def _append(table, word, h):
  text = np.frombuffer(word + b'\0', np.uint8)
  return word_table.append(table, text, 0, len(word), np.uint64(h))


def _random_words(rng, num_words, max_bytes=12):
  return [
    bytes(rng.choices(b'ab\xc3\xa4\x00\xff', k=rng.randint(1, max_bytes)))
    for _ in range(num_words)
  ]


@pytest.mark.parametrize(
  'word, expected',
  [
    (b'', 0xCBF29CE484222325),
    (b'a', 0xAF63DC4C8601EC8C),
    (b'foobar', 0x85944171F73967E8),
  ],
)
def test_hash_is_fnv_1a(word, expected):
  text = np.frombuffer(b'xy' + word + b'z', np.uint8)
  assert word_table.hash_bytes(text, 2, 2 + len(word)) == expected


@pytest.mark.parametrize('max_words, max_bytes', [(1, 1), (1, 99), (4096, 1)])
def test_growing_table_counts_like_counter(max_words, max_bytes):
  rng = random.Random(max_words)
  expected = collections.Counter()
  table = word_table.empty(max_words, max_bytes)
  for num_words in (1, 2, 30, 3000, 500):
    counts = collections.Counter(_random_words(rng, num_words))
    expected.update(counts)
    table = _merged(table, counts)
    # Counter keeps the order of first arrival, as the table should.
    assert _entries(table) == list(expected.items())
  for i, word in enumerate(expected):
    assert _find(table, word) == i
    assert (_find(table, word + b'!') >= 0) == (word + b'!' in expected)
  num_slots = len(table.slots)
  assert num_slots & (num_slots - 1) == 0
  assert num_slots >= 2 * len(expected)
  used = table.slots[table.slots >= 0]
  assert sorted(used.tolist()) == list(range(len(expected)))


def test_order_of_merging_does_not_change_counts():
  rng = random.Random(1)
  parts = [collections.Counter(_random_words(rng, 300, 4)) for _ in range(3)]
  results = []
  for order in itertools.permutations(parts):
    table = word_table.empty(1, 1)
    for part in order:
      table = _merged(table, part)
    results.append(sorted(_entries(table)))
  assert all(result == results[0] for result in results)


def test_equal_hashes_are_told_apart_by_bytes():
  # One hash for all: same length, prefixes, other lengths, through growth.
  words = [b'ab', b'ba', b'a', b'abc', b'\0', b'\0\0', b'ab\0']
  words += [b'w%d' % i for i in range(100)]
  table = word_table.empty(1, 1)
  for i, word in enumerate(words):
    assert _find(table, word, 7) == -1
    table = _append(table, word, 7)
    assert _find(table, word, 7) == i
  assert [_find(table, word, 7) for word in words] == list(range(len(words)))
  assert _find(table, b'abcd', 7) == -1
  # The same bytes with another hash are another word to the table.
  assert _find(table, b'ab', 8) == -1


def test_neighbouring_slots_are_probed_past_the_end():
  # Hashes whose slots all are the last of 16: the search wraps around.
  table = word_table.empty(7, 64)
  mix = 0x9E3779B97F4A7C15
  hashes = [
    h for h in range(2000) if (h * mix % 2**64 >> 32) % len(table.slots) == 15
  ][:7]
  for i, h in enumerate(hashes):
    table = _append(table, b'%d' % i, h)
  assert len(table.slots) == 16
  assert (table.slots[:6] >= 0).all() and table.slots[15] == 0
  for i, h in enumerate(hashes):
    assert _find(table, b'%d' % i, h) == i


def test_append_leaves_the_count_at_zero_after_reuse_of_memory():
  table = _append(word_table.empty(2, 8), b'x', 1)
  assert _entries(table) == [(b'x', 0)]


@pytest.mark.parametrize('num_buckets', [1, 2, 7, 512])
def test_buckets_are_of_the_word_and_even(num_buckets):
  counts = {b'w%d' % i: i for i in range(20_000)}
  table = _merged(word_table.empty(1, 1), counts)
  buckets = word_table.buckets(table, num_buckets)
  assert buckets.dtype == np.uint16 and len(buckets) == len(counts)
  backwards = _merged(
    word_table.empty(1, 1), {w: counts[w] for w in reversed(counts)}
  )
  np.testing.assert_array_equal(
    word_table.buckets(backwards, num_buckets)[::-1], buckets
  )
  sizes = np.bincount(buckets, minlength=num_buckets)
  expected = len(counts) / num_buckets
  assert len(sizes) == num_buckets
  assert np.abs(sizes - expected).max() <= 6 * expected**0.5


def test_words_of_a_bucket_have_slots_of_their_own():
  counts = {b'w%d' % i: 1 for i in range(100_000)}
  table = _merged(word_table.empty(1, 1), counts)
  entries = np.flatnonzero(word_table.buckets(table, 256) == 5)
  assert 300 < len(entries) < 500
  part = word_table.merge(
    word_table.empty(512, 1), *word_table.subset(table, entries)
  )
  # As many slots in a row as of words that are spread evenly.
  runs = ''.join('x' if s >= 0 else ' ' for s in part.slots).split()
  assert max(map(len, runs)) < 30


def test_subset_is_merged_again():
  rng = random.Random(2)
  counts = {word: rng.randint(1, 8) for word in _random_words(rng, 500)}
  table = _merged(word_table.empty(1, 1), counts)
  for entries in ([], [3], [7, 0, 5], range(len(counts))):
    arrays = word_table.subset(table, np.array(entries, np.int64))
    assert [len(a) for a in arrays[1:]] == [len(entries) + 1, len(entries)]
    assert len(arrays[0]) == arrays[1][-1]
    found = word_table.merge(word_table.empty(1, 1), *arrays)
    assert _entries(found) == [list(counts.items())[i] for i in entries]


def test_lookup_finds_entries_or_minus_one():
  rng = random.Random(3)
  known = list(dict.fromkeys(_random_words(rng, 400)))
  table = _merged(word_table.empty(1, 1), dict.fromkeys(known, 1))
  asked = rng.choices(known, k=300) + _random_words(rng, 300)
  entries = word_table.lookup(table, *_packed(asked))
  assert entries.dtype == np.int32
  index = {word: i for i, word in enumerate(known)}
  assert entries.tolist() == [index.get(word, -1) for word in asked]
  assert len(word_table.lookup(table, *_packed([]))) == 0


def test_from_words_numbers_them_in_order():
  words = ['der', 'die', 'Ä', '東京', '🦓', "d'", 'de']
  table = word_table.from_words(words)
  assert _entries(table) == [(word.encode(), 0) for word in words]
  assert [_find(table, w.encode()) for w in words] == list(range(len(words)))
  assert _entries(word_table.from_words([])) == []
  assert _find(word_table.from_words([]), b'x') == -1
