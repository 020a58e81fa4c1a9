"""Batches against plain loops, closed forms and statistics."""

import numpy as np
import pytest
import scipy.stats

from jaxemb.data import blocks as blocks_lib
from jaxemb.ops import hashing
from jaxemb.text import loader, tokenize
from tests import corpora, marking

_END = tokenize.END


def _items(corpus, spec, position=None, done=0):
  return list(loader.TextSource(corpus, spec).items(position, done))


def _kept_ids(items, spec):
  parts = range(spec.num_parts)
  found = [
    corpora.centers(item, spec, part) for item in items for part in parts
  ]
  return np.concatenate(found)[:, 0].tolist()


def _permuted(index, size, key):
  half = 1
  while 4**half < size:
    half += 1
  while True:
    left, right = index >> half, index % 2**half
    for r in range(4):
      mixed = corpora.splitmix64(right ^ corpora.splitmix64(key ^ r)) % 2**half
      left, right = right, left ^ mixed
    index = left << half | right
    if index < size:
      return index


def _expected(corpus, spec, position, part):
  """Centers with left and right, and words read, of the batch at a position."""
  epoch, first_block = position
  counts = corpus.counts.tolist()
  mine = range(len(corpus.blocks.words))[part :: spec.num_parts]
  key = corpora.part_key(spec.seed, epoch, part)
  centers, words = [], 0
  stop = min(first_block + blocks_lib.group_blocks(spec.part_words), len(mine))
  for i in range(first_block, stop):
    number = _permuted(i, len(mine), key)
    start, end = corpus.blocks.starts[mine[number] : mine[number] + 2]
    ids = corpus.ids[start:end].tolist()
    words += len(ids) - ids.count(_END)
    block = number * blocks_lib.MAX_BLOCK_IDS
    centers += corpora.expected_centers(ids, block, key, spec, counts)
  return centers, words


def test_splitmix64_is_the_published_one():
  # The first outputs of the generator seeded with 1234567.
  expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
  states = [1234567 + i * 0x9E3779B97F4A7C15 & 2**64 - 1 for i in range(3)]
  for number in (lambda x: hashing.hashed(np.uint64(x)), corpora.splitmix64):
    assert [*map(number, states)] == expected


@pytest.mark.parametrize(
  'changes, num_parts',
  [
    ({'sample': 0.0}, 2),
    ({'sample': 1e-2, 'window': 1, 'seed': -3}, 3),
    ({'sample': 1e-3, 'window': 255, 'part_words': 4096}, 1),
    ({'sample': 1e-5, 'window': 2, 'seed': 2**70 + 5, 'part_words': 100}, 8),
  ],
)
def test_batches_as_in_a_plain_loop(monkeypatch, changes, num_parts):
  monkeypatch.setattr(blocks_lib, 'BLOCK_WORDS', 30)
  rng = np.random.default_rng(0)
  # Sentences shorter and longer than a block, and ends at the beginning.
  texts = [corpora.random_ids(rng, 2500, 300, mean) for mean in (20, 80)]
  long_sentence = [_END, *rng.integers(0, 300, 120), _END, _END]
  corpus = corpora.encoded(texts[0] + long_sentence + texts[1], 300)
  spec = corpora.spec(num_parts, epochs=2, **changes)
  items = _items(corpus, spec)
  position, num_words = [0, 0], 0
  for index, item in enumerate(items):
    assert (item.index, item.done_before) == (index, num_words)
    for part in range(num_parts):
      centers, words = _expected(corpus, spec, position, part)
      assert corpora.centers(item, spec, part).tolist() == centers
      num_words += words
    assert item.done_after == num_words
    position = item.position
    if index % 3 == 0:  # reading goes on anywhere
      rest = _items(corpus, spec, position, num_words)
      corpora.same_items(rest, items[index + 1 :])
  assert position == [2, 0] and num_words == 2 * corpus.num_words


@pytest.mark.parametrize('num_parts', [1, 8, 40])
def test_an_epoch_reads_every_block_once(monkeypatch, num_parts):
  monkeypatch.setattr(blocks_lib, 'BLOCK_WORDS', 10)
  # Every word its own id, so that reading shows in the ids; pieces of one block
  # and of many, some without words, so that parts are of all sizes.
  ids = []
  for i in range(3000):
    ids += [i] if i % 7 else [i, _END]
  corpus = corpora.encoded(ids)
  num_blocks = len(corpus.blocks.words)
  sizes = np.random.default_rng(0).choice([0, 1, 1, 3, 90], 40)
  turns = np.repeat(np.arange(40) // 15 + np.arange(40) % 15, sizes)
  turns = np.pad(turns[:num_blocks], (0, max(0, num_blocks - len(turns))))
  corpus = corpus._replace(blocks=corpus.blocks._replace(pieces=turns))
  spec = corpora.spec(num_parts, epochs=2)
  items = _items(corpus, spec)
  blocks = np.bincount(turns % num_parts, minlength=num_parts)
  group = blocks_lib.group_blocks(spec.part_words)
  assert len(items) == 2 * -(-max(blocks) // group)
  half = len(items) // 2
  for epoch in (items[:half], items[half:]):
    read = _kept_ids(epoch, spec)
    assert sorted(read) == list(range(3000)) != read
  assert [x.done_after for x in (items[half - 1], items[-1])] == [3000, 6000]


@pytest.mark.parametrize('size', [*range(1, 6), 17, 1024, 4095, 3 * 10**9])
def test_permutation_is_a_bijection(size):
  key, num = np.uint64(size * 7919 % 2**32), min(size, 65537)
  image = [hashing.permuted(i, size, key) for i in range(num)]
  assert len(set(image)) == num and 0 <= min(image) <= max(image) < size
  for i in range(0, num, 1 + num // 10):
    assert image[i] == _permuted(i, size, int(key))


def test_words_survive_at_the_rates_of_word2vec():
  rng = np.random.default_rng(4)
  corpus = corpora.encoded(corpora.random_ids(rng, 400_000, 300), 300)
  counts, sample = corpus.counts, 1e-3
  spec = corpora.spec(sample=sample, part_words=1024)
  # As word2vec.c writes it.
  total, seen = sample * counts.sum(), np.maximum(counts, 1)
  keep = np.minimum(1, (np.sqrt(seen / total) + 1) * total / seen)
  kept = np.bincount(_kept_ids(_items(corpus, spec), spec), minlength=300)
  error = np.sqrt(counts * keep * (1 - keep))
  assert (np.abs(kept - counts * keep) <= 4 * error).all()
  assert abs((kept - counts * keep).sum()) <= 4 * np.sqrt((error**2).sum())


@pytest.mark.parametrize('window', [1, 5, 255])
def test_reach_is_uniform(window):
  corpus = corpora.encoded(np.zeros(16 * blocks_lib.BLOCK_WORDS, np.int32))
  spec = corpora.spec(window=window, epochs=2)
  reaches = []
  for item in _items(corpus, spec):
    _, left, right = corpora.centers(item, spec).T
    # A block holds one sentence: far from its ends nothing is cut.
    inside = np.arange(len(left)) % blocks_lib.BLOCK_WORDS
    is_far = (inside >= window) & (inside < 2000)
    assert (left[is_far] == right[is_far]).all()
    reaches.append(left[is_far])
  observed = np.bincount(np.concatenate(reaches))[1:]
  assert len(observed) == window and observed.sum() > 20_000
  assert window == 1 or scipy.stats.chisquare(observed).pvalue > 1e-4


@pytest.mark.parametrize('part_words', marking.slow_after(1, [23, 65535]))
def test_full_batches(part_words):
  # Blocks as full as they can be, as many as a batch takes and one more.
  spec = corpora.spec(part_words=part_words)
  group = blocks_lib.group_blocks(part_words)
  num_words = (group + 1) * blocks_lib.BLOCK_WORDS
  ids = np.arange(num_words, dtype=np.int32) % 1000
  [item] = _items(corpora.encoded(ids[blocks_lib.BLOCK_WORDS :]), spec)
  assert item.position == [1, 0]
  first, second = _items(corpora.encoded(ids), spec)
  assert [first.position, second.position] == [[0, group], [1, 0]]
  for item, num_blocks in ((first, group), (second, 1)):
    num_centers = len(corpora.centers(item, spec))
    assert num_centers == num_blocks * blocks_lib.BLOCK_WORDS
