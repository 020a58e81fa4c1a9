"""Shares of a text against plain loops, closed forms and statistics."""

import collections
import functools
import itertools
import math
import random

import numpy as np
import pytest
import scipy.stats

from jaxemb.text import encode, loader, partition_sampling, tokenize
from tests import corpora

_END = tokenize.END
_MASK = 2**64 - 1
_START = loader.Position(0, 0)
every_way = pytest.mark.parametrize('way', partition_sampling.METHODS)


def _random_ids(rng, num_words, num_vocab, mean_sentence=12):
  ids = []
  while num_words > 0:
    length = int(min(num_words, 1 + rng.geometric(1 / mean_sentence)))
    words = (num_vocab ** rng.random(length)).astype(int) - 1
    ids += [*words.tolist(), _END]
    num_words -= length
  return ids


def _share(way='shuffle', num_parts=10, rate=0.1, part=0, seed=1):
  return partition_sampling.Sampling(way, num_parts, rate, part, seed)


def _spec(**changes):
  spec = loader.LoaderSpec(
    seed=1, epochs=2, part_words=16, window=5, sample=1e-2
  )
  return loader.dataclasses.replace(spec, **changes)


# A second implementation, in Python's own integers.


def _splitmix64(x):
  x = (x + 0x9E3779B97F4A7C15) & _MASK
  x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
  x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
  return x ^ (x >> 31)


def _gets(share, epoch, place, num_ids):
  """Whether a part gets a sentence."""
  n, rate, part = share.num_parts, share.rate, share.part
  if share.method == 'equal':
    first = part * num_ids // n
    stop = first + round(rate * num_ids)
    if rate * n == 1:
      stop = (part + 1) * num_ids // n
    return first <= place < stop or place + num_ids < stop
  key = _splitmix64(_splitmix64(0x7368617265) ^ share.seed % 2**64)
  if share.method == 'shuffle':
    key = _splitmix64(key ^ _splitmix64(epoch + 1))
  own = _splitmix64(_splitmix64(key ^ (part + 1)) ^ _splitmix64(place)) >> 1
  is_mine = own < rate * 2**63
  if share.method == 'sampling':
    return is_mine
  # One draw says which part is the first to get it.
  draw = (_splitmix64(key ^ _splitmix64(place)) >> 1) / 2**63
  below = [
    math.expm1(k * math.log1p(-rate)) / math.expm1(n * math.log1p(-rate))
    for k in range(n + 1)
  ]
  first = next(k for k in range(n) if draw < below[k + 1])
  return part == first or (part > first and is_mine)


def _sentences(corpus):
  """(place, ids with their ends) of every sentence, block by block."""
  ids = np.concatenate(corpus.shards).tolist()
  starts = corpus.blocks.starts.tolist()
  found = []
  for start, stop in itertools.pairwise(starts):
    begin, seen = start, False
    mine = []
    for i in range(start, stop):
      if ids[i] != _END:
        if seen and ids[i - 1] == _END:
          mine.append((begin, ids[begin:i]))
          begin = i
        seen = True
    found.append([*mine, (begin, ids[begin:stop])])
  return found


@every_way
@pytest.mark.parametrize(('num_parts', 'rate'), [(10, 0.1), (3, 0.2), (4, 0.7)])
def test_who_gets_what_as_in_plain_python(way, num_parts, rate):
  num_ids = 10_007
  places = random.Random(0).sample(range(num_ids), 300)
  met = set()
  for part, epoch, seed in [(0, 0, 1), (1, 3, 1), (num_parts - 1, 1, 2**40)]:
    share = _share(way, num_parts, rate, part, seed)
    rule = partition_sampling.rule(share, epoch, num_ids)
    for place in places:
      found = partition_sampling.selects(rule, place)
      assert found == _gets(share, epoch, place, num_ids)
      met.add(found)
  assert met == {True, False}


def _memberships(share, epoch, num_places):
  """[parts, places] bool."""
  rows = []
  for part in range(share.num_parts):
    mine = partition_sampling.dataclasses.replace(share, part=part)
    rule = partition_sampling.rule(mine, epoch, num_places)
    rows.append(
      [partition_sampling.selects(rule, place) for place in range(num_places)]
    )
  return np.array(rows)


@pytest.mark.parametrize(
  ('num_parts', 'rate'), [(10, 0.1), (5, 0.4), (20, 0.1)]
)
def test_shuffle_is_drawn_again_until_somebody_gets_it(num_parts, rate):
  num_places = 4000
  found = _memberships(_share('shuffle', num_parts, rate), 0, num_places)
  # The rule itself, with chance of its own.
  rng = np.random.default_rng(0)
  literal = rng.random((num_parts, 10 * num_places)) < rate
  while (none := ~literal.any(0)).any():
    literal[:, none] = rng.random((num_parts, none.sum())) < rate
  copies = 1 / (1 - (1 - rate) ** num_parts) * rate * num_parts
  assert found.any(0).all()
  error = literal.sum(0).std() / math.sqrt(num_places)
  assert abs(found.sum(0).mean() - copies) < 4 * error
  each = found.mean(1)
  error = math.sqrt(each.mean() * (1 - each.mean()) / num_places)
  assert (abs(each - copies / num_parts) < 4 * error).all()
  # How many get a sentence, and how often two parts get it both.
  top = 6
  ours, theirs = (
    np.bincount(np.minimum(x.sum(0), top), minlength=top + 1)[1:]
    for x in (found, literal)
  )
  keep = theirs > 50
  table = np.stack([ours[keep], theirs[keep]])
  assert scipy.stats.chi2_contingency(table).pvalue > 1e-4
  both = np.triu(literal.astype(float) @ literal.T, 1) / literal.shape[1]
  mine = np.triu(found.astype(float) @ found.T, 1) / num_places
  error = np.sqrt(both / num_places)
  assert (abs(mine - both) <= 5 * error).all()


@pytest.mark.parametrize('rate', [0.1, 0.3])
def test_sampling_is_drawn_once_and_apart(rate):
  share, num_places = _share('sampling', 6, rate), 4000
  found = _memberships(share, 0, num_places)
  np.testing.assert_array_equal(found, _memberships(share, 7, num_places))
  error = math.sqrt(rate * (1 - rate) / num_places)
  assert (abs(found.mean(1) - rate) < 4 * error).all()
  # Some sentences are in none; parts do not know of each other.
  none = (~found.any(0)).mean()
  assert abs(none - (1 - rate) ** 6) < 4 * math.sqrt(none / num_places)
  other = _memberships(_share('sampling', 6, rate, seed=2), 0, num_places)
  assert abs((other == found).mean() - (1 - 2 * rate * (1 - rate))) < 0.02


def test_epochs_and_seeds_are_shuffled_apart():
  drawn = [
    _memberships(_share('shuffle', 4, 0.25, seed=seed), epoch, 2000)
    for seed, epoch in ((1, 0), (1, 1), (2, 0), (1 + 2**40, 0))
  ]
  rate = drawn[0].mean()
  for first, second in itertools.combinations(drawn, 2):
    assert abs((first & second).mean() - rate**2) < 0.02


@pytest.mark.parametrize('num_parts', [1, 3, 7, 10, 49])
def test_equal_parts_are_the_text_in_one_row(num_parts):
  found = _memberships(_share('equal', num_parts, 1 / num_parts), 0, 1003)
  assert (found.sum(0) == 1).all()
  owners = found.argmax(0)
  assert (np.diff(owners) >= 0).all()
  assert np.ptp(np.bincount(owners)) <= 1


def test_equal_stretches_of_another_rate_go_around_the_end():
  found = _memberships(_share('equal', 4, 0.5), 0, 1000)
  assert (found.sum(1) == 500).all() and (found.sum(0) == 2).all()
  assert np.flatnonzero(found[3]).tolist() == [*range(250), *range(750, 1000)]
  found = _memberships(_share('equal', 3, 0.1), 0, 1000)
  assert (found.sum(1) == 100).all() and (found.sum(0) <= 1).all()


@every_way
def test_a_rate_of_one_is_all(way):
  assert _memberships(_share(way, 3, 1.0), 1, 500).all()


@pytest.fixture
def small_blocks(monkeypatch):
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 24)
  monkeypatch.setattr(encode, 'MAX_BLOCK_IDS', 49)


def _text(seed=0):
  """Two shards; a sentence longer than blocks, and ends in a row."""
  rng = np.random.default_rng(seed)
  first = _random_ids(rng, 9000, 60)
  second = [_END, *rng.integers(0, 60, 100).tolist(), _END]
  second += _random_ids(rng, 7000, 60)
  return corpora.encoded([first, second], 60)


def test_sentences_are_found(small_blocks):
  corpus = _text()
  places = partition_sampling.index(corpus).sentences
  expected = _sentences(corpus)
  assert places.firsts[-1] == sum(map(len, expected))
  assert np.diff(places.firsts).tolist() == list(map(len, expected))
  lengths = [len(ids) for block in expected for _, ids in block]
  assert places.lengths.tolist() == lengths
  assert sum(lengths) == len(corpus.shards[0]) + len(corpus.shards[1])


@every_way
def test_census_counts_what_a_part_gets(small_blocks, way):
  corpus = _text()
  num_ids = int(corpus.blocks.starts[-1])
  share = _share(way, 4, 0.25, 2)
  seen, sentences = collections.Counter(), 0
  for epoch in range(3):
    for place, ids in itertools.chain(*_sentences(corpus)):
      if _gets(share, epoch, place, num_ids):
        seen.update(x for x in ids if x != _END)
        sentences += 1
  found = partition_sampling.count(partition_sampling.index(corpus), share, 3)
  assert found.seen.tolist() == [seen[i] for i in range(60)]
  assert found.words == sum(seen.values()) and found.sentences == sentences


def _expected(corpus, share, spec, epoch):
  """(word, left, right) of every center of an epoch, in its order."""
  counts = corpus.vocabulary.counts
  keep = np.ceil(loader.keep_probabilities(counts, spec.sample) * 2.0**32)
  num_ids = int(corpus.blocks.starts[-1])
  key = _splitmix64(spec.seed ^ _splitmix64(epoch))
  if share.part:
    key = _splitmix64(share.part ^ key)
  blocks = _sentences(corpus)
  found = []
  for i in range(len(blocks)):
    block = loader.permuted(i, len(blocks), np.uint64(key))
    place_in_share = block * encode.MAX_BLOCK_IDS
    for place, ids in blocks[block]:
      if not _gets(share, epoch, place, num_ids):
        continue
      kept = []
      for word in ids:
        bits = _splitmix64(key ^ place_in_share)
        place_in_share += 1
        if word != _END and bits >> 32 < keep[word]:
          kept.append((word, 1 + ((bits & 0xFFFF) * spec.window >> 16)))
      for j, (word, reach) in enumerate(kept):
        found.append((word, min(reach, j), min(reach, len(kept) - 1 - j)))
  return found


def _read(corpus, share, spec, position=_START, words=0):
  return list(
    partition_sampling.batches(
      partition_sampling.index(corpus), share, spec, position, words
    )
  )


def _centers(item, spec):
  kept = int(item.batch.kept_words[0])
  ids = item.batch.ids[0, spec.window : spec.window + kept]
  # Padding before and behind.
  assert (item.batch.ids[0, : spec.window] == 60).all()
  assert (item.batch.ids[0, spec.window + kept :] == 60).all()
  left, right = item.batch.left[0], item.batch.right[0]
  assert not left[kept:].any() and not right[kept:].any()
  assert item.batch.num_steps[0] == -(-kept // spec.part_words)
  assert item.batch.pairs[0] == left.astype(int).sum() + right.sum()
  return list(
    zip(ids.tolist(), left[:kept].tolist(), right[:kept].tolist(), strict=True)
  )


@every_way
@pytest.mark.parametrize('part', [0, 3])
def test_batches_as_in_a_plain_loop(small_blocks, way, part):
  corpus, share, spec = _text(), _share(way, 4, 0.3, part), _spec()
  items = _read(corpus, share, spec)
  census = partition_sampling.count(partition_sampling.index(corpus), share, 2)
  found = collections.defaultdict(list)
  words = 0
  for item in items:
    assert item.words_before == words < item.words_after
    words = item.words_after
    num_blocks = len(corpus.blocks.words)
    found[item.index // num_blocks] += _centers(item, spec)
  assert words == census.words
  assert len({item.index for item in items}) == len(items) > 3
  assert found == {e: _expected(corpus, share, spec, e) for e in range(2)}
  assert (found[0] != found[1]) and items[-1].after == (2, 0)


@every_way
def test_reading_goes_on_anywhere(small_blocks, way):
  corpus, share, spec = _text(), _share(way, 4, 0.3, 1), _spec()
  items = _read(corpus, share, spec)
  for i, item in enumerate(items):
    rest = _read(corpus, share, spec, item.after, item.words_after)
    for a, b in zip(rest, items[i + 1 :], strict=True):
      assert a._replace(batch=None) == b._replace(batch=None)
      for x, y in zip(a.batch, b.batch, strict=True):
        np.testing.assert_array_equal(x, y)


def test_batches_are_full_but_never_too_full():
  # Without a word dropped, and with as little as a part may get.
  rng = np.random.default_rng(3)
  ids = rng.integers(0, 60, (110_000, 11), np.int32)
  ids[:, -1] = _END
  corpus = corpora.encoded([ids.reshape(-1)], 60)
  for rate, sample in ((1.0, 0.0), (0.02, 1e-3)):
    spec = _spec(sample=sample, epochs=1, part_words=100)
    items = _read(corpus, _share('sampling', 3, rate), spec)
    size = spec.max_steps * 100
    kept = [int(item.batch.kept_words[0]) for item in items]
    assert max(kept) <= size
    for n in kept[:-1]:
      assert n > size - 2 * encode.BLOCK_WORDS
    assert len(items) == (3 if rate == 1 else 1)


def _divergence(part, whole):
  """Kullback and Leibler's, of a part's words from the whole's, nats."""
  p, q = part / part.sum(), whole / whole.sum()
  used = p > 0
  return float(np.sum(p[used] * np.log(p[used] / q[used])))


@functools.cache
def _topics():
  """Ten topics, one after the other, with words that others hardly use."""
  rng = np.random.default_rng(5)
  shape = (40_000, 11)
  topics = np.arange(shape[0])[:, None] // 4000
  own = 1000 + 100 * topics + rng.integers(0, 100, shape)
  common = (1000 ** rng.random(shape)).astype(int) - 1
  ids = np.where(rng.random(shape) < 0.5, own, common)
  ids[:, -1] = _END
  return corpora.encoded([ids.reshape(-1)], 2000)


@every_way
def test_words_are_those_of_the_whole_unless_parts_are_stretches(way):
  text, whole = partition_sampling.index(_topics()), _topics().vocabulary.counts
  found, floors = [], []
  for part in range(10):
    census = partition_sampling.count(text, _share(way, 10, 0.1, part), 1)
    found.append(_divergence(census.seen, whole))
    floors.append(((whole > 0).sum() - 1) / 2 / census.words)
  if way == 'equal':
    assert min(found) > 0.1
  else:
    assert max(found) < 1.5 * max(floors)
