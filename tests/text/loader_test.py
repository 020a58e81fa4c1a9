"""Batches against plain loops, closed forms and statistics."""

import collections
import itertools
import math
import threading
import time

import numpy as np
import pytest
import scipy.stats

from jaxemb.text import encode, loader, tokenize
from tests import corpora

_END = tokenize.END
_MASK = 2**64 - 1
_START = loader.Position(0, 0)


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
  return loader.dataclasses.replace(spec, **changes)


def _batches(corpus, spec, position=_START, words_before=0, num_parts=1):
  division = encode.divide(corpus, num_parts)
  return list(loader.batches(corpus, division, spec, position, words_before))


def _one(item):
  """The only part of a batch, its arrays without their leading axis."""
  return loader.Batch(*(x[0] for x in item.batch))


def _used(batch, window):
  """ids, left and right of a part of a batch without its padding."""
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
    for x, y in zip(a.batch, b.batch, strict=True):
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


def _expected(corpus, spec, position, part=0, num_parts=1):
  """Centers, left, right and words read of the batch at a position."""
  all_ids = np.concatenate(corpus.shards).tolist()
  counts = corpus.vocabulary.counts.tolist()
  blocks = corpus.blocks.starts.tolist()
  mine = list(range(len(blocks) - 1))[part::num_parts]
  num_blocks = len(mine)
  key = _key(spec.seed, position.epoch)
  if part:
    key = _splitmix64(part ^ key)
  kept, words = [], 0
  stop = min(position.block + spec.group_blocks, num_blocks)
  for i in range(position.block, stop):
    number = _permuted(i, num_blocks, key)
    b = mine[number]
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
      offset = number * encode.MAX_BLOCK_IDS + place - blocks[b]
      bits = _splitmix64(key ^ offset)
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
  assert [loader.hashed(np.uint64(state)) for state in states] == expected
  assert [_splitmix64(state) for state in states] == expected


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'sample': 1e-3},
    {'sample': 1e-2, 'window': 1, 'seed': -3},
    {'sample': 1e-3, 'window': 255, 'part_words': 4096},
    {'sample': 1e-5, 'window': 2, 'seed': 2**70 + 5, 'part_words': 100},
  ],
)
def test_batches_as_in_a_plain_loop(monkeypatch, changes):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 50)
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
  position, num_words = _START, 0
  loaded = _batches(corpus, spec)
  assert len(loaded) == 2 * spec.num_batches(len(corpus.blocks.words))
  for index, item in enumerate(loaded):
    expected, words = _expected(corpus, spec, position)
    batch = _one(item)
    ids, left, right = _used(batch, spec.window)
    found = zip(ids.tolist(), left.tolist(), right.tolist(), strict=True)
    assert list(found) == expected
    assert item.index == index
    assert item.words_before == num_words
    num_words += words
    assert item.words_after == num_words
    assert batch.kept_words == len(expected)
    assert batch.pairs == sum(before + behind for _, before, behind in expected)
    assert batch.num_steps == math.ceil(len(expected) / spec.part_words)
    position = item.after
  assert position == loader.Position(2, 0)
  assert num_words == 2 * corpus.num_words


def test_shapes_and_padding():
  corpus = corpora.encoded([[0, 1, 2, _END, 1, 0, _END]])
  for window, part_words in ((1, 16), (5, 512), (255, 16)):
    spec = _spec(window=window, part_words=part_words)
    [item] = _batches(corpus, spec)
    size = spec.max_steps * part_words
    assert all(x.shape[0] == 1 for x in item.batch)
    batch = _one(item)
    assert batch.ids.shape == (size + 2 * window,)
    assert batch.left.shape == batch.right.shape == (size,)
    assert batch.ids.dtype == np.int32
    assert batch.left.dtype == batch.right.dtype == np.uint8
    used = slice(window, window + 5)
    assert batch.ids[used].tolist() == [0, 1, 2, 1, 0]
    assert (np.delete(batch.ids, used) == 3).all()
    assert not batch.left[5:].any() and not batch.right[5:].any()
    assert batch.num_steps == 1 and batch.kept_words == 5


@pytest.mark.parametrize('ids', [[0, 1], [0, _END, 1, _END], [1, 0, _END]])
def test_tiny_corpora(ids):
  corpus = corpora.encoded([ids])
  loaded = _batches(corpus, _spec(epochs=3))
  assert [item.after for item in loaded] == [(1, 0), (2, 0), (3, 0)]
  pairs = 0 if ids[1] == _END else 2
  for i, item in enumerate(loaded):
    assert (item.words_before, item.words_after) == (2 * i, 2 * i + 2)
    batch = _one(item)
    assert (batch.kept_words, batch.pairs, batch.num_steps) == (2, pairs, 1)


def test_a_batch_may_be_empty():
  # A threshold so low that nothing survives.
  corpus = corpora.encoded([[0, 1] * 500])
  [item] = _batches(corpus, _spec(sample=1e-30))
  batch = _one(item)
  assert (batch.kept_words, batch.num_steps, batch.pairs) == (0, 0, 0)
  assert item.words_after == 1000
  assert (item.batch.ids == 2).all()


@pytest.mark.parametrize('sample', [0.0, 1e-2])
def test_restart_anywhere_gives_the_same_batches(monkeypatch, sample):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 20)
  rng = np.random.default_rng(2)
  corpus = corpora.encoded([_random_ids(rng, 6000, 200)])
  spec = _spec(epochs=3, sample=sample)
  loaded = _batches(corpus, spec)
  assert len(loaded) >= 9
  for i, item in enumerate(loaded[:-1]):
    rest = _batches(corpus, spec, item.after, item.words_after)
    _equal(rest, loaded[i + 1 :])
  assert _batches(corpus, spec, loaded[-1].after, 0) == []


def test_epochs_and_seeds_differ(monkeypatch):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 20)
  rng = np.random.default_rng(3)
  corpus = corpora.encoded([_random_ids(rng, 1000, 50)])
  loaded = _batches(corpus, _spec(epochs=3, sample=1e-2))
  loaded += _batches(corpus, _spec(seed=2, sample=1e-2))
  loaded += _batches(corpus, _spec(seed=1 + 2**40, sample=1e-2))
  assert len(loaded) == 5
  assert len({item.batch.ids.tobytes() for item in loaded}) == 5
  assert len({item.batch.left.tobytes() for item in loaded}) == 5


@pytest.mark.parametrize('part_words', [16, 100])
def test_an_epoch_reads_every_block_once(monkeypatch, part_words):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 10)
  # Every word its own id, so that reading shows in the ids.
  ids = []
  for i in range(3000):
    ids += [i] if i % 7 else [i, _END]
  corpus = corpora.encoded([ids[:1000], ids[1000:]])
  spec = _spec(epochs=2, part_words=part_words)
  for _, items in itertools.groupby(
    _batches(corpus, spec), lambda item: item.after[0] - (not item.after[1])
  ):
    items = list(items)
    read = np.concatenate([_used(_one(item), 5)[0] for item in items])
    assert sorted(read.tolist()) == list(range(3000))
    assert sum(_one(item).kept_words for item in items) == 3000
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
  corpus = corpora.encoded([_random_ids(rng, 400_000, 300)], 300)
  counts = corpus.vocabulary.counts
  spec = _spec(sample=1e-3, part_words=1024)
  keep = loader.keep_probabilities(counts, spec.sample)
  assert (keep < 0.9).sum() > 50
  kept = np.zeros(300)
  for item in _batches(corpus, spec):
    kept += np.bincount(_used(_one(item), 5)[0], minlength=300)
  error = np.sqrt(counts * keep * (1 - keep))
  assert (np.abs(kept - counts * keep) <= 4 * error).all()
  assert abs((kept - counts * keep).sum()) <= 4 * np.sqrt((error**2).sum())


def test_sample_zero_keeps_all():
  rng = np.random.default_rng(5)
  corpus = corpora.encoded([_random_ids(rng, 20_000, 300)], 300)
  loaded = _batches(corpus, _spec(sample=0.0))
  kept = sum(_one(item).kept_words for item in loaded)
  assert kept == corpus.num_words


@pytest.mark.parametrize('window', [1, 2, 5, 10, 255])
def test_reach_is_uniform(window):
  corpus = corpora.encoded([np.zeros(16 * encode.BLOCK_WORDS, np.int32)])
  loaded = _batches(corpus, _spec(window=window, epochs=2))
  reaches = []
  for item in loaded:
    _, left, right = _used(_one(item), window)
    # A block holds one sentence: far from its ends nothing is cut.
    inside = np.arange(len(left)) % encode.BLOCK_WORDS
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
  corpus = corpora.encoded([ids], 4000)
  num_pairs = 0
  for item in _batches(corpus, _spec(window=8, sample=sample)):
    centers, left, right = _used(_one(item), 8)
    for i, sentence in enumerate(centers.tolist()):
      first, last = i - int(left[i]), i + int(right[i])
      assert max(left[i], right[i]) <= 8
      assert (item.batch.ids[0, 8 + first : 9 + last] == sentence).all()
      # A shorter side means that the sentence ends there.
      if left[i] < right[i]:
        assert first == 0 or centers[first - 1] != sentence
      if right[i] < left[i]:
        assert last + 1 == len(centers) or centers[last + 1] != sentence
    num_pairs += _one(item).pairs
  assert num_pairs > 10_000


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
  # Blocks as full as they can be, as many as a batch takes or one more.
  spec = _spec(part_words=part_words)
  num_words = (spec.group_blocks + 1) * encode.BLOCK_WORDS
  ids = np.arange(num_words, dtype=np.int32) % 1000
  [item] = _batches(corpora.encoded([ids[encode.BLOCK_WORDS :]]), spec)
  assert item.after == (1, 0) and _one(item).num_steps == spec.max_steps
  items = _batches(corpora.encoded([ids]), spec)
  first, second = map(_one, items)
  assert first.kept_words == spec.group_blocks * encode.BLOCK_WORDS
  assert first.num_steps == spec.max_steps
  assert second.kept_words == encode.BLOCK_WORDS
  assert [x.after for x in items] == [(0, spec.group_blocks), (1, 0)]
  kept = first.kept_words
  assert (first.ids[5 : 5 + kept] < 1000).all()
  assert (first.ids[:5] == 1000).all()
  assert (first.ids[5 + kept :] == 1000).all()


@pytest.mark.parametrize('num_parts', [2, 3, 8])
def test_parts_as_in_a_plain_loop(monkeypatch, num_parts):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 10)
  corpus = corpora.encoded(
    [_random_ids(np.random.default_rng(0), 9000, 100)], 100
  )
  spec = _spec(sample=1e-2, epochs=2)
  loaded = _batches(corpus, spec, num_parts=num_parts)
  position, num_words, epoch_kept = _START, 0, 0
  for item in loaded:
    for part in range(num_parts):
      batch = loader.Batch(*(x[part] for x in item.batch))
      expected, words = _expected(corpus, spec, position, part, num_parts)
      ids, left, right = _used(batch, spec.window)
      found = zip(ids.tolist(), left.tolist(), right.tolist(), strict=True)
      assert list(found) == expected
      assert batch.kept_words == len(expected)
      num_words += words
      epoch_kept += len(expected)
    assert item.words_after == num_words
    position = item.after
  assert num_words == 2 * corpus.num_words


def test_a_process_reads_its_parts_as_if_it_read_all(monkeypatch):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 10)
  corpus = corpora.encoded(
    [_random_ids(np.random.default_rng(1), 6000, 100)], 100
  )
  spec = _spec(sample=1e-2, epochs=2)
  whole = encode.divide(corpus, 4)
  expected = list(loader.batches(corpus, whole, spec, _START, 0))
  for mine in ((0,), (1, 2), (3,)):
    division = whole._replace(mine=tuple(whole.mine[i] for i in mine))
    found = list(loader.batches(corpus, division, spec, _START, 0))
    for a, b in zip(found, expected, strict=True):
      assert a._replace(batch=None) == b._replace(batch=None)
      for x, y in zip(a.batch, b.batch, strict=True):
        np.testing.assert_array_equal(x, y[list(mine)])


@pytest.mark.parametrize('num_parts', [1, 3, 8, 40])
def test_parts_have_every_block_once(monkeypatch, num_parts):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 10)
  # Every word its own id; pieces of one block and of many, some without words,
  # so that parts are of all sizes.
  ids = []
  for i in range(3000):
    ids += [i] if i % 7 else [i, _END]
  corpus = corpora.encoded([ids[:1000], ids[1000:]])
  rng = np.random.default_rng(0)
  sizes = rng.choice([0, 1, 1, 3, 90], 40)
  pieces = np.repeat(np.arange(40), sizes)[: len(corpus.blocks.words)]
  pieces = np.pad(
    pieces, (0, len(corpus.blocks.words) - len(pieces)), 'edge'
  ).astype(np.int32)
  places = np.stack([np.arange(40) // 15, np.arange(40) % 15], 1)
  corpus = corpus._replace(
    blocks=corpus.blocks._replace(pieces=pieces), pieces=places
  )
  division = encode.divide(corpus, num_parts)
  dealt = np.concatenate([part.blocks for part in division.mine])
  assert sorted(dealt) == list(range(len(pieces)))
  for part, words in zip(division.mine, division.block_words, strict=True):
    # File and number of its piece say whose a block is.
    of_piece = places[pieces[part.blocks]].sum(1) % num_parts
    assert (of_piece == part.index).all()
    np.testing.assert_array_equal(words, corpus.blocks.words[part.blocks])
  spec = _spec(epochs=2)
  loaded = _batches(corpus, spec, num_parts=num_parts)
  longest = max(len(part.blocks) for part in division.mine)
  assert len(loaded) == 2 * spec.num_batches(longest)
  half = len(loaded) // 2
  for items in (loaded[:half], loaded[half:]):
    read = []
    for item in items:
      for part in range(num_parts):
        batch = loader.Batch(*(x[part] for x in item.batch))
        found = _used(batch, spec.window)[0].tolist()
        assert len(found) == batch.kept_words
        assert batch.num_steps == -(-len(found) // spec.part_words)
        read += found
    assert sorted(read) == list(range(3000))
  assert loaded[half - 1].words_after == loaded[half].words_before == 3000
  assert loaded[-1].words_after == 6000
  if num_parts == 40:  # some of them have nothing to read
    assert min(len(part.blocks) for part in division.mine) == 0


def _items(num_items):
  for i in range(num_items):
    batch = loader.Batch(np.full(3, i), None, None, i, i, i)
    yield loader.Loaded(batch, i, (0, i), i, i + 1)


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
  monkeypatch.setattr(encode, 'piece_bytes', lambda total_bytes: 1 << 20)
  corpus = encode.encode(str(path), settings, tmp_path, lambda *args: None)
  in_memory = corpora.encoded([np.array(shard) for shard in corpus.shards])
  assert len(corpus.pieces) == 1  # blocks end as in memory
  spec = _spec(epochs=2, sample=1e-2)
  loaded = _batches(corpus, spec)
  _equal(loaded, _batches(in_memory, spec))
  _equal(loader.prefetch(iter(loaded), lambda batch: batch), loaded)
  assert loaded[-1].words_after == 2 * corpus.num_words
