"""Samples of a corpus against plain loops, closed forms and statistics."""

import collections
import dataclasses
import itertools
import math
import re

import numpy as np
import pytest

from jaxemb.data import blocks as blocks_lib
from jaxemb.data import partition_sampling
from jaxemb.ops import hashing
from jaxemb.text import tokenize
from tests import corpora

_END = tokenize.END
_NUM_VOCAB = 60
_METHODS = 'equal', 'sampling', 'shuffle'
every_method = pytest.mark.parametrize('method', _METHODS)


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
  marks = ''.join('.' if i == _END else 'w' for i in ids)
  sentence, blocks = re.compile(r'\.*w+\.*'), []
  for ends in itertools.pairwise(corpus.blocks.starts.tolist()):
    spans = [x.span() for x in sentence.finditer(marks, *ends)]
    blocks.append([(start, ids[start:stop]) for start, stop in spans])
  return blocks


# Who gets what.


def _memberships(sampling, epoch, num_ids):
  """[parts, offsets] bool."""
  rows = []
  for part in range(sampling.num_parts):
    mine = dataclasses.replace(sampling, part=part)
    rule = partition_sampling.rule(mine, epoch, num_ids)
    rows.append([partition_sampling.selects(rule, i) for i in range(num_ids)])
  return np.array(rows)


@pytest.mark.parametrize(
  'method, num_parts, rate',
  [
    ('shuffle', 10, 0.1),
    ('shuffle', 5, 0.4),
    ('sampling', 6, 0.3),
  ],
)
def test_parts_draw_as_by_random_numbers(method, num_parts, rate):
  num_ids, rng = 4000, np.random.default_rng(0)
  found = _memberships(_sampling(method, num_parts, rate), 0, num_ids)
  literal = rng.random((num_parts, 50 * num_ids)) < rate
  while method == 'shuffle' and (none := ~literal.any(0)).any():
    literal[:, none] = rng.random((num_parts, none.sum())) < rate
  # How often a sentence is in 0, 1, ... parts, and in each two of them.
  for chances in (
    lambda x: np.bincount(x.sum(0), minlength=num_parts + 1) / x.shape[1],
    lambda x: x.astype(float) @ x.T / x.shape[1],
  ):
    expected = chances(literal)
    error = np.sqrt(expected / num_ids)
    assert (abs(chances(found) - expected) <= 5 * error).all()


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


# Counts and batches.


@pytest.fixture
def corpus(monkeypatch):
  """A sentence longer than blocks, and ends in a row."""
  monkeypatch.setattr(blocks_lib, 'BLOCK_WORDS', 24)
  monkeypatch.setattr(blocks_lib, 'MAX_BLOCK_IDS', 49)
  rng = np.random.default_rng(0)
  first, second = (
    corpora.random_ids(rng, n, _NUM_VOCAB, 12) for n in (9000, 7000)
  )
  long = [_END, *rng.integers(0, _NUM_VOCAB, 100), _END]
  return corpora.encoded([*first, *long, *second], _NUM_VOCAB)


def _drawn(corpus, sampling, epochs):
  """How many sentences a part gets, and how often each word."""
  num_ids, seen, sentences = int(corpus.blocks.starts[-1]), [], 0
  for epoch in range(epochs):
    for offset, ids in itertools.chain(*_sentences(corpus)):
      if _selects(sampling, epoch, offset, num_ids):
        seen += [x for x in ids if x != _END]
        sentences += 1
  return sentences, collections.Counter(seen)


def _expected(corpus, sampling, spec, epoch):
  """(word, left, right) of every center of an epoch, in its order."""
  counts = corpus.counts.tolist()
  num_ids = int(corpus.blocks.starts[-1])
  key = corpora.part_key(spec.seed, epoch, sampling.part)
  blocks = _sentences(corpus)
  centers = []
  for i in range(len(blocks)):
    block = hashing.permuted(i, len(blocks), np.uint64(key))
    mine = [
      ids
      for offset, ids in blocks[block]
      if _selects(sampling, epoch, offset, num_ids)
    ]
    position = block * blocks_lib.MAX_BLOCK_IDS
    ids = itertools.chain(*mine)
    centers += corpora.expected_centers(ids, position, key, spec, counts)
  return centers


def _read(corpus, sampling, spec, position=None, done=0):
  return list(partition_sampling.items(corpus, sampling, spec, position, done))


@every_method
@pytest.mark.parametrize('part', [0, 3])
def test_batches_as_in_a_plain_loop(corpus, method, part):
  sampling = _sampling(method, 4, 0.3, part)
  spec = corpora.spec(sample=1e-2, epochs=2)
  items = _read(corpus, sampling, spec)
  centers = collections.defaultdict(list)
  words = 0
  for item in items:
    assert item.done_before == words < item.done_after
    words = item.done_after
    epoch = item.index // len(corpus.blocks.words)
    centers[epoch] += corpora.centers(item, spec).tolist()
  counts = partition_sampling.count(corpus, sampling, 2)
  sentences, seen = _drawn(corpus, sampling, 2)
  assert words == counts.words and counts.sentences == sentences
  assert counts.seen.tolist() == [seen[i] for i in range(_NUM_VOCAB)]
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
    spec = corpora.spec(sample=sample, part_words=100)
    items = _read(corpus, _sampling('sampling', 3, rate), spec)
    size = blocks_lib.batch_words(100)
    kept = [int(item.batch.kept_words[0]) for item in items]
    assert max(kept) <= size and len(items) == num
    assert all(n > size - 2 * blocks_lib.BLOCK_WORDS for n in kept[:-1])
