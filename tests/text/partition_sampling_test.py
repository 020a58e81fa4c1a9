"""Samples of a corpus against plain loops, closed forms and statistics."""

import collections
import dataclasses
import itertools
import math
import random

import numpy as np
import pytest

from jaxemb.text import encode, loader, partition_sampling, tokenize
from tests import corpora

_END = tokenize.END
_NUM_VOCAB = 60
every_method = pytest.mark.parametrize('method', partition_sampling.METHODS)


def _sampling(method='shuffle', num_parts=10, rate=0.1, part=0, seed=1):
  return partition_sampling.Sampling(method, num_parts, rate, part, seed)


def _selects(sampling, epoch, offset, num_ids):
  """Whether a part gets a sentence."""
  n, rate, part = sampling.num_parts, sampling.rate, sampling.part
  if sampling.method == 'equal':
    first = part * num_ids // n
    stop = first + round(rate * num_ids)
    if rate * n == 1:
      stop = (part + 1) * num_ids // n
    return first <= offset < stop or offset + num_ids < stop
  key = corpora.splitmix64(
    corpora.splitmix64(0x7368617265) ^ sampling.seed % 2**64
  )
  if sampling.method == 'shuffle':
    key = corpora.splitmix64(key ^ corpora.splitmix64(epoch + 1))
  own_key = corpora.splitmix64(key ^ (part + 1))
  own = corpora.splitmix64(own_key ^ corpora.splitmix64(offset)) >> 1
  is_mine = own < rate * 2**63
  if sampling.method == 'sampling':
    return is_mine
  # One draw says which part is the first to get it.
  draw = (corpora.splitmix64(key ^ corpora.splitmix64(offset)) >> 1) / 2**63
  below = [
    math.expm1(k * math.log1p(-rate)) / math.expm1(n * math.log1p(-rate))
    for k in range(n + 1)
  ]
  first = next(k for k in range(n) if draw < below[k + 1])
  return part == first or (part > first and is_mine)


def _sentences(corpus):
  """(offset, ids with their ends) of every sentence, block by block."""
  ids = corpus.ids.tolist()
  blocks = []
  for start, stop in itertools.pairwise(corpus.blocks.starts.tolist()):
    begin, seen = start, False
    sentences = []
    for i in range(start, stop):
      if ids[i] != _END:
        if seen and ids[i - 1] == _END:
          sentences.append((begin, ids[begin:i]))
          begin = i
        seen = True
    blocks.append([*sentences, (begin, ids[begin:stop])])
  return blocks


# Who gets what.


@every_method
@pytest.mark.parametrize(('num_parts', 'rate'), [(10, 0.1), (3, 0.2), (4, 0.7)])
def test_selection_as_in_plain_python(method, num_parts, rate):
  num_ids = 10_007
  offsets = random.Random(0).sample(range(num_ids), 300)
  results = set()
  for part, epoch, seed in [(0, 0, 1), (1, 3, 1), (num_parts - 1, 1, 2**40)]:
    sampling = _sampling(method, num_parts, rate, part, seed)
    rule = partition_sampling.rule(sampling, epoch, num_ids)
    for offset in offsets:
      result = partition_sampling.selects(rule, offset)
      assert result == _selects(sampling, epoch, offset, num_ids)
      results.add(result)
  assert results == {True, False}


def _memberships(sampling, epoch, num_ids):
  """[parts, offsets] bool."""
  rows = []
  for part in range(sampling.num_parts):
    mine = dataclasses.replace(sampling, part=part)
    rule = partition_sampling.rule(mine, epoch, num_ids)
    rows.append([partition_sampling.selects(rule, i) for i in range(num_ids)])
  return np.array(rows)


@pytest.mark.parametrize(
  ('num_parts', 'rate'), [(10, 0.1), (5, 0.4), (20, 0.1)]
)
def test_shuffle_draws_again_until_somebody_gets_it(num_parts, rate):
  num_ids = 4000
  found = _memberships(_sampling('shuffle', num_parts, rate), 0, num_ids)
  # The rule itself, with random numbers of its own.
  rng = np.random.default_rng(0)
  literal = rng.random((num_parts, 10 * num_ids)) < rate
  while (none := ~literal.any(0)).any():
    literal[:, none] = rng.random((num_parts, none.sum())) < rate
  copies = 1 / (1 - (1 - rate) ** num_parts) * rate * num_parts
  assert found.any(0).all()
  error = literal.sum(0).std() / math.sqrt(num_ids)
  assert abs(found.sum(0).mean() - copies) < 4 * error
  each = found.mean(1)
  error = math.sqrt(each.mean() * (1 - each.mean()) / num_ids)
  assert (abs(each - copies / num_parts) < 4 * error).all()
  # How often two parts both get it.
  both = np.triu(literal.astype(float) @ literal.T, 1) / literal.shape[1]
  mine = np.triu(found.astype(float) @ found.T, 1) / num_ids
  assert (abs(mine - both) <= 5 * np.sqrt(both / num_ids)).all()


@pytest.mark.parametrize('rate', [0.1, 0.3])
def test_sampling_draws_once_and_independently(rate):
  sampling, num_ids = _sampling('sampling', 6, rate), 4000
  found = _memberships(sampling, 0, num_ids)
  np.testing.assert_array_equal(found, _memberships(sampling, 7, num_ids))
  error = math.sqrt(rate * (1 - rate) / num_ids)
  assert (abs(found.mean(1) - rate) < 4 * error).all()
  none = (~found.any(0)).mean()
  assert abs(none - (1 - rate) ** 6) < 4 * math.sqrt(none / num_ids)


def test_epochs_and_seeds_draw_independently():
  drawn = [
    _memberships(_sampling('shuffle', 4, 0.25, seed=seed), epoch, 2000)
    for seed, epoch in ((1, 0), (1, 1), (2, 0), (1 + 2**40, 0))
  ]
  rate = drawn[0].mean()
  for first, second in itertools.combinations(drawn, 2):
    assert abs((first & second).mean() - rate**2) < 0.02


def test_equal_parts_cover_the_text_in_order():
  for num_parts in (1, 3, 7, 10, 49):
    found = _memberships(_sampling('equal', num_parts, 1 / num_parts), 0, 1003)
    assert (found.sum(0) == 1).all()
    owners = found.argmax(0)
    assert (np.diff(owners) >= 0).all()
    assert np.ptp(np.bincount(owners)) <= 1
  # Stretches of another rate wrap around.
  found = _memberships(_sampling('equal', 4, 0.5), 0, 1000)
  assert (found.sum(1) == 500).all() and (found.sum(0) == 2).all()
  assert np.flatnonzero(found[3]).tolist() == [*range(250), *range(750, 1000)]
  found = _memberships(_sampling('equal', 3, 0.1), 0, 1000)
  assert (found.sum(1) == 100).all() and (found.sum(0) <= 1).all()


@every_method
def test_a_rate_of_one_is_all(method):
  assert _memberships(_sampling(method, 3, 1.0), 1, 500).all()


# Counts and batches.


def _spec(**changes):
  spec = loader.LoaderSpec(
    seed=1, epochs=2, part_words=16, window=5, sample=1e-2
  )
  return dataclasses.replace(spec, **changes)


@pytest.fixture
def corpus(monkeypatch):
  """A sentence longer than blocks, and ends in a row."""
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 24)
  monkeypatch.setattr(encode, 'MAX_BLOCK_IDS', 49)
  rng = np.random.default_rng(0)
  first, second = (
    corpora.random_ids(rng, n, _NUM_VOCAB, 12) for n in (9000, 7000)
  )
  long = [_END, *rng.integers(0, _NUM_VOCAB, 100), _END]
  return corpora.encoded([*first, *long, *second], _NUM_VOCAB)


@every_method
def test_counts_what_a_part_gets(corpus, method):
  num_ids = int(corpus.blocks.starts[-1])
  sampling = _sampling(method, 4, 0.25, 2)
  seen, sentences = collections.Counter(), 0
  for epoch in range(3):
    for offset, ids in itertools.chain(*_sentences(corpus)):
      if _selects(sampling, epoch, offset, num_ids):
        seen.update(x for x in ids if x != _END)
        sentences += 1
  counts = partition_sampling.count(corpus, sampling, 3)
  assert counts.seen.tolist() == [seen[i] for i in range(_NUM_VOCAB)]
  assert (counts.words, counts.sentences) == (seen.total(), sentences)


def _expected(corpus, sampling, spec, epoch):
  """(word, left, right) of every center of an epoch, in its order."""
  counts = corpus.vocabulary.counts.tolist()
  num_ids = int(corpus.blocks.starts[-1])
  key = corpora.part_key(spec.seed, epoch, sampling.part)
  blocks = _sentences(corpus)
  centers = []
  for i in range(len(blocks)):
    block = loader.permuted(i, len(blocks), np.uint64(key))
    mine = [
      ids
      for offset, ids in blocks[block]
      if _selects(sampling, epoch, offset, num_ids)
    ]
    position = block * encode.MAX_BLOCK_IDS
    ids = itertools.chain(*mine)
    centers += corpora.expected_centers(ids, position, key, spec, counts)
  return centers


def _read(corpus, sampling, spec, position=None, done=0):
  return list(partition_sampling.items(corpus, sampling, spec, position, done))


@every_method
@pytest.mark.parametrize('part', [0, 3])
def test_batches_as_in_a_plain_loop(corpus, method, part):
  sampling, spec = _sampling(method, 4, 0.3, part), _spec()
  items = _read(corpus, sampling, spec)
  centers = collections.defaultdict(list)
  words = 0
  for item in items:
    assert item.done_before == words < item.done_after
    words = item.done_after
    epoch = item.index // len(corpus.blocks.words)
    centers[epoch] += corpora.centers(item, spec).tolist()
  assert words == partition_sampling.count(corpus, sampling, 2).words
  assert len({item.index for item in items}) == len(items) > 3
  assert centers == {e: _expected(corpus, sampling, spec, e) for e in range(2)}
  assert (centers[0] != centers[1]) and items[-1].position == [2, 0]
  # Reading resumes anywhere.
  for i, item in enumerate(items):
    rest = _read(corpus, sampling, spec, item.position, item.done_after)
    corpora.same_items(rest, items[i + 1 :])


def test_batches_are_full_but_never_too_full():
  # Without a word dropped, and with as little as a part may get.
  rng = np.random.default_rng(3)
  ids = rng.integers(0, _NUM_VOCAB, (110_000, 11), np.int32)
  ids[:, -1] = _END
  corpus = corpora.encoded(ids.reshape(-1), _NUM_VOCAB)
  for rate, sample, num in ((1.0, 0.0, 3), (0.02, 1e-3, 1)):
    spec = _spec(sample=sample, epochs=1, part_words=100)
    items = _read(corpus, _sampling('sampling', 3, rate), spec)
    size = spec.max_steps * 100
    kept = [int(item.batch.kept_words[0]) for item in items]
    assert max(kept) <= size and len(items) == num
    assert all(n > size - 2 * encode.BLOCK_WORDS for n in kept[:-1])
