"""Batches against plain loops, closed forms and statistics."""

import collections
import itertools
import math
import threading
import time

import numpy as np
import pytest
import scipy.stats

from jaxemb.data import encode, loader, tokens, vocab
from jaxemb.data import shards as shards_lib

_END = tokens.END
_MASK = 2**64 - 1
_START = loader.Position(0, 0)


def _corpus(shards, num_vocab=None):
  """An encoded corpus of lists of ids, as `encode` would lay it out."""
  shards = [np.array(shard, np.int32) for shard in shards]
  first, starts = 0, []
  for shard in shards:
    starts += (
      first + shards_lib.block_starts(shard, shards_lib.BLOCK_WORDS)
    ).tolist()
    first += len(shard)
  ids = np.concatenate(shards)
  words = ids[ids != _END]
  counts = np.bincount(words, minlength=num_vocab or 0)
  vocabulary = vocab.Vocabulary([f'w{i}' for i in range(len(counts))], counts)
  blocks = np.array([*starts, first])
  return encode.Encoded(None, vocabulary, tuple(shards), blocks, len(words), {})


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
    seed=1, epochs=1, batch_words=16, window=5, sample=0.0, replicas=1
  )
  return loader.dataclasses.replace(spec, **changes)


def _batches(corpus, spec, position=_START, words_before=0):
  return list(loader.batches(corpus, spec, position, words_before))


def _used(batch, window):
  """ids, left and right of a batch without its padding."""
  num_words = np.count_nonzero(batch.left.astype(int) + batch.right)
  padding = batch.ids[-1]
  is_word = batch.ids[window : len(batch.ids) - window] != padding
  num_kept = int(is_word.sum())
  assert is_word[:num_kept].all()
  assert num_words <= num_kept
  ids = batch.ids[window : window + num_kept]
  return ids, batch.left[:num_kept], batch.right[:num_kept]


def _equal(first, second):
  for a, b in zip(first, second, strict=True):
    assert a._replace(batch=None) == b._replace(batch=None)
    assert a.batch.num_steps == b.batch.num_steps
    for x, y in zip(a.batch[:3], b.batch[:3], strict=True):
      assert x.dtype == y.dtype and x.tobytes() == y.tobytes()


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


def _expected(corpus, spec, position):
  """Centers, left, right and words read of the batch at a position."""
  all_ids = np.concatenate(corpus.shards).tolist()
  counts = corpus.vocabulary.counts.tolist()
  blocks = corpus.blocks.tolist()
  num_blocks = len(blocks) - 1
  key = _key(spec.seed, position.epoch)
  kept, words = [], 0
  stop = min(position.block + spec.group_blocks, num_blocks)
  for i in range(position.block, stop):
    b = _permuted(i, num_blocks, key)
    sentence = []
    for place in range(blocks[b], blocks[b + 1] + 1):
      if place == blocks[b + 1] or all_ids[place] == _END:
        length = len(sentence)
        kept += [
          (word, min(reach, j), min(reach, length - 1 - j))
          for j, (word, reach) in enumerate(sentence)
        ]
        sentence = []
        continue
      words += 1
      bits = _splitmix64(key ^ place)
      keep = 1.0
      if spec.sample:
        ratio = spec.sample * sum(counts) / counts[all_ids[place]]
        keep = min(1.0, math.sqrt(ratio) + ratio)
      if (bits >> 32) / 2**32 < keep:
        reach = 1 + (((bits & 0xFFFF) * spec.window) >> 16)
        sentence.append((all_ids[place], reach))
  return kept, words


def test_splitmix64_is_the_published_one():
  # The first outputs of the generator seeded with 1234567.
  expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
  step = 0x9E3779B97F4A7C15
  states = [(1234567 + i * step) & _MASK for i in range(3)]
  assert [loader._hash(np.uint64(state)) for state in states] == expected
  assert [_splitmix64(state) for state in states] == expected


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'sample': 1e-3},
    {'sample': 1e-2, 'window': 1, 'seed': -3},
    {'sample': 1e-3, 'window': 255, 'batch_words': 4096},
    {'sample': 1e-5, 'window': 2, 'seed': 2**70 + 5, 'batch_words': 100},
  ],
)
def test_batches_as_in_a_plain_loop(monkeypatch, changes):
  monkeypatch.setattr(shards_lib, 'BLOCK_WORDS', 50)
  rng = np.random.default_rng(0)
  # Sentences shorter and longer than a block, ends at the beginning, and
  # several shards.
  shards = [
    [_END, *_random_ids(rng, 3000, 300)],
    [*_random_ids(rng, 2000, 300, 80), *rng.integers(0, 300, 120).tolist()],
    [_END, _END, *_random_ids(rng, 500, 300, 1)],
  ]
  corpus = _corpus(shards, 300)
  spec = _spec(epochs=2, **changes)
  position, num_words = _START, 0
  loaded = _batches(corpus, spec)
  assert len(loaded) == 2 * spec.num_batches(len(corpus.blocks) - 1)
  for index, item in enumerate(loaded):
    expected, words = _expected(corpus, spec, position)
    ids, left, right = _used(item.batch, spec.window)
    found = zip(ids.tolist(), left.tolist(), right.tolist(), strict=True)
    assert list(found) == expected
    assert item.index == index
    assert item.words_before == num_words
    num_words += words
    assert item.words_after == num_words
    assert item.kept_words == len(expected)
    assert item.pairs == sum(before + behind for _, before, behind in expected)
    assert item.num_steps == item.batch.num_steps
    assert item.num_steps == math.ceil(len(expected) / spec.batch_words)
    position = item.after
  assert position == loader.Position(2, 0)
  assert num_words == 2 * corpus.num_words


def test_shapes_and_padding():
  corpus = _corpus([[0, 1, 2, _END, 1, 0, _END]])
  for window, batch_words in ((1, 16), (5, 512), (255, 16)):
    spec = _spec(window=window, batch_words=batch_words)
    [item] = _batches(corpus, spec)
    size = spec.max_steps * batch_words
    batch = item.batch
    assert batch.ids.shape == (size + 2 * window,)
    assert batch.left.shape == batch.right.shape == (size,)
    assert batch.ids.dtype == np.int32
    assert batch.left.dtype == batch.right.dtype == np.uint8
    used = slice(window, window + 5)
    assert batch.ids[used].tolist() == [0, 1, 2, 1, 0]
    assert (np.delete(batch.ids, used) == 3).all()
    assert not batch.left[5:].any() and not batch.right[5:].any()
    assert item.num_steps == 1 and item.kept_words == 5


@pytest.mark.parametrize('ids', [[0, 1], [0, _END, 1, _END], [1, 0, _END]])
def test_tiny_corpora(ids):
  corpus = _corpus([ids])
  loaded = _batches(corpus, _spec(epochs=3))
  assert [item.after for item in loaded] == [(1, 0), (2, 0), (3, 0)]
  pairs = 0 if ids[1] == _END else 2
  for i, item in enumerate(loaded):
    assert (item.words_before, item.words_after) == (2 * i, 2 * i + 2)
    assert (item.kept_words, item.pairs, item.num_steps) == (2, pairs, 1)


def test_a_batch_may_be_empty():
  # A threshold so low that nothing survives.
  corpus = _corpus([[0, 1] * 500])
  [item] = _batches(corpus, _spec(sample=1e-30))
  assert (item.kept_words, item.num_steps, item.pairs) == (0, 0, 0)
  assert item.words_after == 1000
  assert (item.batch.ids == 2).all()


@pytest.mark.parametrize('sample', [0.0, 1e-2])
def test_restart_anywhere_gives_the_same_batches(monkeypatch, sample):
  monkeypatch.setattr(shards_lib, 'BLOCK_WORDS', 20)
  rng = np.random.default_rng(2)
  corpus = _corpus([_random_ids(rng, 6000, 200)])
  spec = _spec(epochs=3, sample=sample)
  loaded = _batches(corpus, spec)
  assert len(loaded) >= 9
  for i, item in enumerate(loaded[:-1]):
    rest = _batches(corpus, spec, item.after, item.words_after)
    _equal(rest, loaded[i + 1 :])
  assert _batches(corpus, spec, loaded[-1].after, 0) == []


def test_epochs_and_seeds_differ(monkeypatch):
  monkeypatch.setattr(shards_lib, 'BLOCK_WORDS', 20)
  rng = np.random.default_rng(3)
  corpus = _corpus([_random_ids(rng, 1000, 50)])
  loaded = _batches(corpus, _spec(epochs=3, sample=1e-2))
  loaded += _batches(corpus, _spec(seed=2, sample=1e-2))
  loaded += _batches(corpus, _spec(seed=1 + 2**40, sample=1e-2))
  assert len(loaded) == 5
  assert len({item.batch.ids.tobytes() for item in loaded}) == 5
  assert len({item.batch.left.tobytes() for item in loaded}) == 5


@pytest.mark.parametrize('batch_words', [16, 100])
def test_an_epoch_reads_every_block_once(monkeypatch, batch_words):
  monkeypatch.setattr(shards_lib, 'BLOCK_WORDS', 10)
  # Every word its own id, so that reading shows in the ids.
  ids = []
  for i in range(3000):
    ids += [i] if i % 7 else [i, _END]
  corpus = _corpus([ids[:1000], ids[1000:]])
  spec = _spec(epochs=2, batch_words=batch_words)
  for _, items in itertools.groupby(
    _batches(corpus, spec), lambda item: item.after[0] - (not item.after[1])
  ):
    items = list(items)
    read = np.concatenate([_used(item.batch, 5)[0] for item in items])
    assert sorted(read.tolist()) == list(range(3000))
    assert sum(item.kept_words for item in items) == 3000
    assert read.tolist() != list(range(3000))


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
      loader.permuted(index, size, np.uint64(loader._epoch_key(5, epoch)))
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
  corpus = _corpus([_random_ids(rng, 400_000, 300)], 300)
  counts = corpus.vocabulary.counts
  spec = _spec(sample=1e-3, batch_words=1024)
  keep = loader.keep_probabilities(counts, spec.sample)
  assert (keep < 0.9).sum() > 50
  kept = np.zeros(300)
  for item in _batches(corpus, spec):
    kept += np.bincount(_used(item.batch, 5)[0], minlength=300)
  error = np.sqrt(counts * keep * (1 - keep))
  assert (np.abs(kept - counts * keep) <= 4 * error).all()
  assert abs((kept - counts * keep).sum()) <= 4 * np.sqrt((error**2).sum())


def test_sample_zero_keeps_all():
  rng = np.random.default_rng(5)
  corpus = _corpus([_random_ids(rng, 20_000, 300)], 300)
  kept = sum(item.kept_words for item in _batches(corpus, _spec(sample=0.0)))
  assert kept == corpus.num_words


@pytest.mark.parametrize('window', [1, 2, 5, 10, 255])
def test_reach_is_uniform(window):
  corpus = _corpus([np.zeros(16 * shards_lib.BLOCK_WORDS, np.int32)])
  loaded = _batches(corpus, _spec(window=window, epochs=2))
  reaches = []
  for item in loaded:
    _, left, right = _used(item.batch, window)
    # A block holds one sentence: far from its ends nothing is cut.
    inside = np.arange(len(left)) % shards_lib.BLOCK_WORDS
    is_far = (inside >= window) & (inside < 2000)
    assert (left[is_far] == right[is_far]).all()
    reaches.append(left[is_far])
  reaches = np.concatenate(reaches)
  assert len(reaches) > 20_000
  assert reaches.min() == 1 and reaches.max() == window
  observed = np.bincount(reaches, minlength=window + 1)[1:]
  assert window == 1 or scipy.stats.chisquare(observed).pvalue > 1e-4


@pytest.mark.parametrize('sample', [0.0, 3e-3])
def test_windows_stay_in_the_sentence(sample):
  # A word's id tells its sentence.
  rng = np.random.default_rng(6)
  ids = []
  for sentence in range(4000):
    ids += [sentence] * int(rng.geometric(0.1)) + [_END]
  corpus = _corpus([ids], 4000)
  num_pairs = 0
  for item in _batches(corpus, _spec(window=8, sample=sample)):
    centers, left, right = _used(item.batch, 8)
    for i, sentence in enumerate(centers.tolist()):
      first, last = i - int(left[i]), i + int(right[i])
      assert max(left[i], right[i]) <= 8
      assert (item.batch.ids[8 + first : 9 + last] == sentence).all()
      # A shorter side means that the sentence ends there.
      if left[i] < right[i]:
        assert first == 0 or centers[first - 1] != sentence
      if right[i] < left[i]:
        assert last + 1 == len(centers) or centers[last + 1] != sentence
    num_pairs += item.pairs
  assert num_pairs > 10_000


@pytest.mark.parametrize('exponent', range(4, 17))
def test_batches_never_overflow(exponent):
  for batch_words in {2**exponent, 2**exponent - 1, 3 * 2**exponent // 2}:
    spec = _spec(batch_words=batch_words)
    size = spec.max_steps * batch_words
    group_words = spec.group_blocks * shards_lib.BLOCK_WORDS
    assert group_words <= size < group_words + batch_words
    assert spec.num_batches(1) == 1
    assert spec.num_batches(spec.group_blocks) == 1
    assert spec.num_batches(spec.group_blocks + 1) == 2


@pytest.mark.parametrize('batch_words', [16, 1000, 4096, 65536])
def test_full_batches(batch_words):
  # Blocks as full as they can be, as many as a batch takes or one more.
  spec = _spec(batch_words=batch_words)
  num_words = (spec.group_blocks + 1) * shards_lib.BLOCK_WORDS
  ids = np.arange(num_words, dtype=np.int32) % 1000
  [item] = _batches(_corpus([ids[shards_lib.BLOCK_WORDS :]]), spec)
  assert item.after == (1, 0) and item.num_steps == spec.max_steps
  first, second = _batches(_corpus([ids]), spec)
  assert first.kept_words == spec.group_blocks * shards_lib.BLOCK_WORDS
  assert first.num_steps == spec.max_steps
  assert second.kept_words == shards_lib.BLOCK_WORDS
  assert first.after == (0, spec.group_blocks) and second.after == (1, 0)
  kept = first.kept_words
  assert (first.batch.ids[5 : 5 + kept] < 1000).all()
  assert (first.batch.ids[:5] == 1000).all()
  assert (first.batch.ids[5 + kept :] == 1000).all()


def _items(num_items):
  for i in range(num_items):
    batch = loader.Batch(np.full(3, i), None, None, i)
    yield loader.Loaded(batch, i, i, (0, i), i, i + 1, i, i)


def _loader_threads():
  return [t for t in threading.enumerate() if t.name == 'loader']


def test_prefetch_gives_the_same_in_order():
  threads = collections.Counter()

  def put(batch):
    threads[threading.current_thread().name] += 1
    return int(batch.ids[0]) * 10

  for num_items in (0, 1, 2, 50):
    found = list(loader.prefetch(_items(num_items), put))
    assert [item.batch for item in found] == [10 * i for i in range(num_items)]
    assert [item.index for item in found] == list(range(num_items))
    for item, made in zip(found, _items(num_items), strict=True):
      assert item[1:] == made[1:]
  assert threads == {'loader': 53}
  assert not _loader_threads()


@pytest.mark.parametrize('error', [ValueError('bad'), KeyboardInterrupt()])
def test_prefetch_hands_on_errors(error):
  def failing_items():
    yield from _items(3)
    raise error

  def failing_put(batch):
    if batch.num_steps == 3:
      raise error
    return batch

  cases = [(failing_items(), lambda batch: batch), (_items(9), failing_put)]
  for items, put in cases:
    found = []
    with pytest.raises(type(error)) as caught:
      for item in loader.prefetch(items, put):
        found.append(item.index)
    assert caught.value is error
    assert found == [0, 1, 2]
    assert not _loader_threads()


def test_prefetch_stays_a_few_items_ahead():
  made = []

  def put(batch):
    made.append(batch.num_steps)
    return batch

  found = loader.prefetch(_items(100), put, depth=3)
  assert not made and not _loader_threads()  # nothing starts before its use
  next(found)
  deadline = time.monotonic() + 5
  while len(made) < 4 and time.monotonic() < deadline:
    time.sleep(0.001)
  time.sleep(0.05)
  # One in use, three waiting, one at the door.
  assert 4 <= len(made) <= 5
  found.close()
  assert not _loader_threads()
  assert len(made) <= 6


def test_prefetch_stops_when_its_user_fails():
  with pytest.raises(ZeroDivisionError):
    found = loader.prefetch(_items(1000), lambda batch: batch)
    try:
      for item in found:
        item.index // 0
    finally:
      found.close()
  assert not _loader_threads()


def test_reads_an_encoded_corpus(tmp_path, monkeypatch):
  rng = np.random.default_rng(8)
  path = tmp_path / 'a.txt'
  lines = [
    ' '.join(f'w{int(40 ** rng.random())}' for _ in range(rng.integers(30)))
    for _ in range(2000)
  ]
  path.write_text('\n'.join(lines))
  settings = encode.Settings('words', True, 1, 0, '')
  corpus = encode.encode(str(path), settings, tmp_path, lambda *args: None)
  in_memory = _corpus([np.array(shard) for shard in corpus.shards])
  spec = _spec(epochs=2, sample=1e-2)
  loaded = _batches(corpus, spec)
  _equal(loaded, _batches(in_memory, spec))
  _equal(loader.prefetch(iter(loaded), lambda batch: batch), loaded)
  assert loaded[-1].words_after == 2 * corpus.num_words
