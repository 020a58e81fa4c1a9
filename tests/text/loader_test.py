"""Batches against plain loops, closed forms and statistics."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats

from jaxemb.data import windows
from jaxemb.text import encode, loader, tokenize
from tests import corpora

_END = tokenize.END
_MASK = 2**64 - 1


def _random_ids(rng, num_words, num_vocab, mean_sentence=20):
  """Zipf-distributed words in sentences of any length."""
  words = (num_vocab ** rng.random(num_words)).astype(np.int32) - 1
  ids = []
  while len(words):
    length = 1 + rng.geometric(1 / mean_sentence)
    ids += [*words[:length].tolist(), _END]
    words = words[length:]
  return ids


def _spec(**changes):
  spec = loader.LoaderSpec(
    seed=1, epochs=1, part_words=16, window=5, sample=0.0
  )
  return dataclasses.replace(spec, **changes)


def _items(corpus, spec, position=None, done=0, num_parts=1):
  division = encode.divide(corpus, num_parts)
  source = loader.TextSource(corpus, division, spec, None)
  return list(source.items(position, done))


def _part(item, part=0):
  """A part of a batch, its arrays without their leading axis."""
  return windows.Batch(*(x[part] for x in item.batch))


def _centers(item, spec, part=0):
  """[3, centers], ids, left and right; the rest must be padding."""
  batch = _part(item, part)
  kept = int(batch.kept_words)
  assert batch.num_steps == -(-kept // spec.part_words)
  used = slice(spec.window, spec.window + kept)
  assert len(np.unique(np.delete(batch.ids, used))) <= 1
  assert (np.delete(batch.ids, used) > batch.ids[used].max(initial=-1)).all()
  assert not batch.left[kept:].any() and not batch.right[kept:].any()
  centers = np.stack([batch.ids[used], batch.left[:kept], batch.right[:kept]])
  assert batch.pairs == centers[1:].sum()
  return centers


# A second implementation, in Python's own integers.


def _splitmix64(x):
  x = (x + 0x9E3779B97F4A7C15) & _MASK
  x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
  x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
  return x ^ (x >> 31)


def _key(seed, epoch):
  return _splitmix64((seed & _MASK) ^ _splitmix64(epoch))


def _permuted(index, size, key):
  half = 1
  while 4**half < size:
    half += 1
  while True:
    left, right = index >> half, index % 2**half
    for r in range(4):
      mixed = _splitmix64(right ^ _splitmix64(key ^ r)) % 2**half
      left, right = right, left ^ mixed
    index = left << half | right
    if index < size:
      return index


def _expected(corpus, spec, position, part, num_parts):
  """Centers with left and right, and words read, of the batch at a position."""
  epoch, first_block = position
  all_ids = np.concatenate(corpus.shards).tolist()
  counts = corpus.vocabulary.counts.tolist()
  blocks = corpus.blocks.starts.tolist()
  mine = list(range(len(blocks) - 1))[part::num_parts]
  key = _key(spec.seed, epoch)
  if part:
    key = _splitmix64(part ^ key)
  centers, words = [], 0
  stop = min(first_block + spec.group_blocks, len(mine))
  for i in range(first_block, stop):
    number = _permuted(i, len(mine), key)
    start, end = blocks[mine[number] : mine[number] + 2]
    sentence = []
    for j in range(start, end + 1):
      if j == end or all_ids[j] == _END:
        last = len(sentence) - 1
        centers += [
          (word, min(reach, k), min(reach, last - k))
          for k, (word, reach) in enumerate(sentence)
        ]
        sentence = []
        continue
      words += 1
      bits = _splitmix64(key ^ (number * encode.MAX_BLOCK_IDS + j - start))
      keep = 1.0
      if spec.sample:
        ratio = spec.sample * sum(counts) / counts[all_ids[j]]
        keep = min(1.0, math.sqrt(ratio) + ratio)
      if (bits >> 32) / 2**32 < keep:
        reach = 1 + (((bits & 0xFFFF) * spec.window) >> 16)
        sentence.append((all_ids[j], reach))
  return centers, words


def test_splitmix64_is_the_published_one():
  # The first outputs of the generator seeded with 1234567.
  expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
  step = 0x9E3779B97F4A7C15
  states = [(1234567 + i * step) & _MASK for i in range(3)]
  assert [loader.hashed(np.uint64(state)) for state in states] == expected
  assert [_splitmix64(state) for state in states] == expected


@pytest.mark.parametrize(
  'changes, num_parts',
  [
    ({}, 1),
    ({'sample': 1e-3}, 2),
    ({'sample': 1e-2, 'window': 1, 'seed': -3}, 3),
    ({'sample': 1e-3, 'window': 255, 'part_words': 4096}, 1),
    ({'sample': 1e-5, 'window': 2, 'seed': 2**70 + 5, 'part_words': 100}, 8),
  ],
)
def test_batches_as_in_a_plain_loop(monkeypatch, changes, num_parts):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 30)
  rng = np.random.default_rng(0)
  # Sentences shorter and longer than a block, ends at the beginning, and
  # several shards.
  shards = [
    [_END, *_random_ids(rng, 3000, 300)],
    [*_random_ids(rng, 2000, 300, 80), *rng.integers(0, 300, 120).tolist()],
    [_END, _END, *_random_ids(rng, 500, 300, 1)],
  ]
  corpus = corpora.encoded(shards, 300)
  spec = _spec(epochs=2, **changes)
  items = _items(corpus, spec, num_parts=num_parts)
  longest = -(-len(corpus.blocks.words) // num_parts)
  assert len(items) == 2 * spec.num_batches(longest)
  position, num_words = [0, 0], 0
  for index, item in enumerate(items):
    assert (item.index, item.done_before) == (index, num_words)
    for part in range(num_parts):
      centers, words = _expected(corpus, spec, position, part, num_parts)
      assert _centers(item, spec, part).T.tolist() == [*map(list, centers)]
      num_words += words
    assert item.done_after == num_words
    position = item.position
    # Reading goes on anywhere.
    if index % 3 == 0:
      rest = _items(corpus, spec, position, num_words, num_parts)
      for a, b in zip(rest, items[index + 1 :], strict=True):
        assert a._replace(batch=None) == b._replace(batch=None)
        for x, y in zip(a.batch, b.batch, strict=True):
          assert x.dtype == y.dtype and x.tobytes() == y.tobytes()
  assert position == [2, 0] and num_words == 2 * corpus.num_words


@pytest.mark.parametrize('window, part_words', [(1, 16), (5, 512), (255, 16)])
def test_shapes(window, part_words):
  spec = _spec(window=window, part_words=part_words)
  [item] = _items(corpora.encoded([[0, 1, 2, _END, 1, 0, _END]]), spec)
  batch = item.batch
  size = spec.max_steps * part_words
  assert batch.ids.shape == (1, size + 2 * window)
  assert batch.left.shape == batch.right.shape == (1, size)
  assert batch.ids.dtype == np.int32
  assert batch.left.dtype == batch.right.dtype == np.uint8
  assert _centers(item, spec)[0].tolist() == [0, 1, 2, 1, 0]
  assert batch.num_steps == 1


@pytest.mark.parametrize(
  'ids, sample, kept, pairs',
  [
    ([0, 1], 0.0, 2, 2),
    ([1, 0, _END], 0.0, 2, 2),
    ([0, _END, 1, _END], 0.0, 2, 0),
    ([0, 1], 1e-30, 0, 0),  # a threshold so low that nothing survives
  ],
)
def test_tiny_corpora(ids, sample, kept, pairs):
  spec = _spec(epochs=3, sample=sample)
  items = _items(corpora.encoded([ids]), spec)
  assert [item.position for item in items] == [[1, 0], [2, 0], [3, 0]]
  for i, item in enumerate(items):
    assert (item.done_before, item.done_after) == (2 * i, 2 * i + 2)
    assert _centers(item, spec).shape == (3, kept)
    assert item.batch.pairs == pairs


def test_epochs_and_seeds_differ(monkeypatch):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 20)
  corpus = corpora.encoded([_random_ids(np.random.default_rng(3), 1000, 50)])
  items = _items(corpus, _spec(epochs=3, sample=1e-2))
  items += _items(corpus, _spec(seed=2, sample=1e-2))
  items += _items(corpus, _spec(seed=1 + 2**40, sample=1e-2))
  assert len(items) == 5
  assert len({item.batch.ids.tobytes() for item in items}) == 5
  assert len({item.batch.left.tobytes() for item in items}) == 5


@pytest.mark.parametrize('num_parts', [1, 3, 8, 40])
def test_an_epoch_reads_every_block_once(monkeypatch, num_parts):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 10)
  # Every word its own id, so that reading shows in the ids; pieces of one block
  # and of many, some without words, so that parts are of all sizes.
  ids = []
  for i in range(3000):
    ids += [i] if i % 7 else [i, _END]
  corpus = corpora.encoded([ids[:1000], ids[1000:]])
  num_blocks = len(corpus.blocks.words)
  sizes = np.random.default_rng(0).choice([0, 1, 1, 3, 90], 40)
  pieces = np.repeat(np.arange(40), sizes)[:num_blocks]
  pieces = np.pad(pieces, (0, num_blocks - len(pieces)), 'edge')
  names = np.stack([np.arange(40) // 15, np.arange(40) % 15], 1)
  corpus = corpus._replace(
    blocks=corpus.blocks._replace(pieces=pieces), pieces=names
  )
  division = encode.divide(corpus, num_parts)
  assert [*division.local] == list(range(num_parts))
  assert sorted(np.concatenate([*division.local.values()])) == [
    *range(num_blocks)
  ]
  for part, blocks in division.local.items():
    # File and number of its piece say whose a block is.
    assert (names[pieces[blocks]].sum(1) % num_parts == part).all()
    words = division.block_words[part]
    np.testing.assert_array_equal(words, corpus.blocks.words[blocks])
  spec = _spec(epochs=2)
  items = _items(corpus, spec, num_parts=num_parts)
  longest = max(map(len, division.block_words))
  assert len(items) == 2 * spec.num_batches(longest)
  half = len(items) // 2
  for epoch in (items[:half], items[half:]):
    parts = range(num_parts)
    read = [_centers(x, spec, part)[0] for x in epoch for part in parts]
    read = np.concatenate(read).tolist()
    assert sorted(read) == list(range(3000)) != read
  assert [x.done_after for x in (items[half - 1], items[-1])] == [3000, 6000]
  assert min(map(len, division.block_words)) == 0 or num_parts < 40


@pytest.mark.parametrize('size', [*range(1, 201), 1024, 4095, 65537, 300_000])
def test_permutation_is_a_bijection(size):
  image = [
    loader.permuted(i, size, np.uint64(size * 7919)) for i in range(size)
  ]
  assert sorted(image) == list(range(size))
  for i in range(0, size, 1 + size // 10):
    assert image[i] == _permuted(i, size, size * 7919)


def test_permutation_of_a_huge_corpus():
  size = 3 * 10**9
  image = {loader.permuted(i, size, np.uint64(9)) for i in range(2000)}
  assert len(image) == 2000
  assert 0 <= min(image) < size / 100 and size * 0.99 < max(image) < size


def test_permutations_look_random():
  # Where block 0 goes, and which block follows it, over many keys.
  size, num_keys = 10, 5000
  for index in (0, 3, 9):
    image = [
      loader.permuted(index, size, loader.part_key(5, epoch, 0))
      for epoch in range(num_keys)
    ]
    observed = np.bincount(image, minlength=size)
    assert scipy.stats.chisquare(observed).pvalue > 1e-4


def test_keep_probabilities_are_those_of_word2vec():
  counts = np.array([5, 1000, 1, 200_000, 33, 10**12])
  for sample in (1e-3, 1e-5, 0.5, 1e-12):
    total = counts.sum()
    for count, keep in zip(
      counts, loader.keep_probabilities(counts, sample), strict=True
    ):
      # word2vec.c, with the same names but these.
      ran = (math.sqrt(count / (sample * total)) + 1) * (sample * total) / count
      assert keep == pytest.approx(min(ran, 1.0), rel=1e-12)
  kept = loader.keep_probabilities(counts, 0.0)
  assert kept.tolist() == [1.0] * 6


def test_words_survive_at_their_rates():
  rng = np.random.default_rng(4)
  corpus = corpora.encoded([_random_ids(rng, 400_000, 300)], 300)
  counts = corpus.vocabulary.counts
  spec = _spec(sample=1e-3, part_words=1024)
  keep = loader.keep_probabilities(counts, spec.sample)
  assert (keep < 0.9).sum() > 50
  kept = np.zeros(300)
  for item in _items(corpus, spec):
    kept += np.bincount(_centers(item, spec)[0], minlength=300)
  error = np.sqrt(counts * keep * (1 - keep))
  assert (np.abs(kept - counts * keep) <= 4 * error).all()
  assert abs((kept - counts * keep).sum()) <= 4 * np.sqrt((error**2).sum())


@pytest.mark.parametrize('window', [1, 2, 5, 10, 255])
def test_reach_is_uniform(window):
  corpus = corpora.encoded([np.zeros(16 * encode.BLOCK_WORDS, np.int32)])
  spec = _spec(window=window, epochs=2)
  reaches = []
  for item in _items(corpus, spec):
    _, left, right = _centers(item, spec)
    # A block holds one sentence: far from its ends nothing is cut.
    inside = np.arange(len(left)) % encode.BLOCK_WORDS
    is_far = (inside >= window) & (inside < 2000)
    assert (left[is_far] == right[is_far]).all()
    reaches.append(left[is_far])
  observed = np.bincount(np.concatenate(reaches))[1:]
  assert len(observed) == window and observed.sum() > 20_000
  assert window == 1 or scipy.stats.chisquare(observed).pvalue > 1e-4


@pytest.mark.parametrize('exponent', range(4, 17))
def test_batches_never_overflow(exponent):
  for part_words in {2**exponent, 2**exponent - 1, 3 * 2**exponent // 2}:
    spec = _spec(part_words=part_words)
    size = spec.max_steps * part_words
    group_words = spec.group_blocks * encode.BLOCK_WORDS
    assert group_words <= size < group_words + part_words
    assert spec.num_batches(1) == 1
    assert spec.num_batches(spec.group_blocks) == 1
    assert spec.num_batches(spec.group_blocks + 1) == 2


@pytest.mark.parametrize('part_words', [16, 1000, 4096, 65536])
def test_full_batches(part_words):
  # Blocks as full as they can be, as many as a batch takes and one more.
  spec = _spec(part_words=part_words)
  num_words = (spec.group_blocks + 1) * encode.BLOCK_WORDS
  ids = np.arange(num_words, dtype=np.int32) % 1000
  [item] = _items(corpora.encoded([ids[encode.BLOCK_WORDS :]]), spec)
  assert item.position == [1, 0] and item.batch.num_steps == spec.max_steps
  first, second = _items(corpora.encoded([ids]), spec)
  assert [first.position, second.position] == [[0, spec.group_blocks], [1, 0]]
  for item, num_blocks in ((first, spec.group_blocks), (second, 1)):
    assert len(_centers(item, spec)[0]) == num_blocks * encode.BLOCK_WORDS
