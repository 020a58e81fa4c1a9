"""Batches that a device makes, against those that the host makes."""

import jax
import numpy as np
import pytest

from jaxemb.data import base, packing
from jaxemb.data import blocks as blocks_lib
from jaxemb.kernels.cpu import batches
from jaxemb.run import loop
from jaxemb.text import loader, tokenize
from tests import corpora, dispatches, marking

_END, _VOCAB = tokenize.END, 300


class _Walks:
  """A corpus that makes its blocks when they are read."""

  def __init__(self, corpus):
    self.words, self.counts, self.blocks = corpus[1:3] + (corpus.blocks,)
    self.num_words, self.manifest, self.read = corpus.num_words, {}, corpus.read


def _corpus():
  rng = np.random.default_rng(0)
  # Sentences shorter and longer than a block and than 32 ids, ends at the
  # beginning, and a run of them that is longer than any group.
  texts = [corpora.random_ids(rng, 1500, _VOCAB, mean) for mean in (2, 20, 80)]
  one = [_END, *rng.integers(0, _VOCAB, 120), *[_END] * 70]
  return corpora.encoded(texts[0] + one + texts[1] + texts[2], _VOCAB)


def _prepare(steps, num_threads):
  """Makes batches by the threads of a CPU's kernel, or of 0 by XLA."""
  if num_threads:
    steps = batches.steps(steps, num_threads)
  return jax.jit(steps.prepare)


def _sources(monkeypatch, corpus, spec, device_words):
  """Sources whose batches the host and a device make, of the same blocks."""
  spec = spec._replace(device_words=device_words)
  on_device = loader.TextSource(corpus, spec)
  group = next(on_device.items(None, 0)).batch.lengths.shape[1]
  monkeypatch.setattr(blocks_lib, 'group_blocks', lambda part_words: group)
  host = loader.TextSource(corpus, spec._replace(device_words=0))
  return host, on_device


def _cut(batch, spec):
  """The words of a batch; what follows them must be padding."""
  found = []
  for part in range(len(batch.ids)):
    ids, left, right, *numbers = (x[part] for x in batch)
    num = int(batch.kept_words[part])
    before, after = ids[: spec.window], ids[spec.window + num :]
    assert (before == _VOCAB).all() and (after == _VOCAB).all()
    assert len(left) == len(right) == len(ids) - 2 * spec.window >= num
    assert not left[num:].any() and not right[num:].any()
    kept = ids[spec.window :][:num], left[:num], right[:num]
    found.append([*map(np.ndarray.tolist, kept), *map(int, numbers)])
  return [x.dtype for x in batch], found


@pytest.mark.parametrize('num_threads', [0, 1, 2, 3])
@pytest.mark.parametrize(
  ('changes', 'num_parts', 'holds'),
  [
    ({'sample': 0.0}, 1, True),
    ({'sample': 1e-2, 'window': 1, 'seed': -3}, 3, True),
    ({'sample': 1e-2, 'window': 255}, 1, False),
    ({'sample': 1e-5, 'shortest_window': 5, 'part_words': 100}, 4, False),
  ],
)
def test_a_device_makes_the_batches_of_the_host(
  monkeypatch, changes, num_parts, holds, num_threads
):
  monkeypatch.setattr(blocks_lib, 'BLOCK_WORDS', 150)
  corpus, spec = _corpus(), corpora.spec(num_parts, epochs=2, **changes)
  host, source = _sources(monkeypatch, corpus, spec, device_words=1500)
  num_bytes = source.reside(10**6 if holds else 10)
  assert holds == (num_bytes >= 4 * len(corpus.ids))
  items, expected = (list(x.items(None, 0)) for x in (source, host))
  # Texts of three batches or more, of which the last one has fewer words.
  assert len(items) == len(expected) >= 6
  prepare = _prepare(source.steps, num_threads)
  for item, other in zip(items, expected, strict=True):
    assert item._replace(batch=None) == other._replace(batch=None)
    made = jax.device_get(prepare(item.batch))
    assert _cut(made, spec) == _cut(other.batch, spec)
  assert (items[0].batch.ids is items[-1].batch.ids) == holds
  for i, item in enumerate(items):  # reading goes on anywhere
    rest = source.items(item.position, item.done_after)
    corpora.same_items(list(rest), items[i + 1 :])


def test_positions_and_hashes_have_64_bits():
  rng = np.random.default_rng(1)
  # Halves of all and of no bits carry, or do not.
  edges = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64 - 2**32]
  numbers = [*edges, *rng.integers(0, 2**64, 1000, np.uint64).tolist()]
  made = packing._hashed(tuple(packing.halves(numbers).T))
  made = [int(x) << 32 | int(y) for x, y in zip(*made, strict=True)]
  assert made == [*map(corpora.splitmix64, numbers)]
  offset = np.uint32([7] * len(numbers))
  high, low = packing._add(
    tuple(packing.halves(numbers).T), (0 * offset, offset)
  )
  made = [int(x) << 32 | int(y) for x, y in zip(high, low, strict=True)]
  assert made == [(x + 7) % 2**64 for x in numbers]


@pytest.mark.parametrize('num_threads', [0, 2])
def test_a_word_is_kept_below_its_threshold(num_threads):
  corpus, spec = corpora.encoded([0]), corpora.spec(device_words=1)
  source = loader.TextSource(corpus, spec)
  batch = next(source.items(None, 0)).batch
  key = corpora.part_key(spec.seed, epoch=0, part=0)
  bits = corpora.splitmix64(key) >> 32
  for below, expected in ((bits, 0), (bits + 1, 1), (2**32, 1)):
    highest = packing.highest_kept(np.array([below], np.uint64))
    prepare = _prepare(source.steps, num_threads)
    made = prepare(batch._replace(highest_kept=highest[None]))
    assert int(made.kept_words[0]) == expected


def test_batches_have_what_devices_count_and_end_at_evaluations(monkeypatch):
  corpus = corpora.encoded(np.zeros(9 * blocks_lib.BLOCK_WORDS, np.int32))

  def sizes(**changes):
    spec = corpora.spec(**{'device_words': 10**6, **changes})
    items = loader.TextSource(corpus, spec).items(None, 0)
    words = (x.done_after - x.done_before for x in items)
    return [x // blocks_lib.BLOCK_WORDS for x in words]

  assert sizes() == [9]
  assert sizes(device_words=5 * blocks_lib.BLOCK_WORDS) == [5, 4]
  assert sizes(batch_epochs=0.25) == [3, 3, 3]
  # Blocks of 2^31 pairs are not counted together.
  two_blocks = 2 * 255 * 2 * blocks_lib.BLOCK_WORDS
  monkeypatch.setattr(blocks_lib, '_MOST', two_blocks)
  assert sizes(window=255) == [2, 2, 2, 2, 1]


@pytest.mark.slow
def test_what_makes_its_blocks_and_what_has_no_room_is_sent():
  corpus, spec = _corpus(), corpora.spec(device_words=10**6)
  walks = loader.TextSource(_Walks(corpus), spec)
  text = loader.TextSource(corpus, spec)
  assert not walks.reside(10**9) and not text.reside(4 * len(corpus.ids) - 1)
  assert not loader.TextSource(corpus, corpora.spec()).reside(10**9)
  refused = base.ALONE._replace(gather=lambda x: [x, b'[9999, 999, 999, 9999]'])
  # Another process has more ids, and needs more room.
  larger = loader.TextSource(corpus, spec._replace(readers=refused))
  assert larger.steps.num_groups == 999
  items = [next(x.items(None, 0)) for x in (walks, text, larger)]
  made = [
    jax.device_get(source.steps.prepare(item.batch))
    for source, item in zip((walks, text, larger), items, strict=True)
  ]
  assert len({str(_cut(x, spec)) for x in made}) == 1
  assert items[2].batch.ids.shape == (1, 9999)


def test_a_cpu_reads_the_text_where_it_is(tmp_path):
  corpus, spec = _corpus(), corpora.spec(device_words=10**6)
  corpus.ids.tofile(tmp_path / 'ids.bin')
  ids = np.asarray(np.memmap(tmp_path / 'ids.bin', '<i4', 'r'))
  corpus = corpus._replace(ids=ids)
  source = loader.TextSource(corpus, spec)
  # Whatever memory there is, as it takes none.
  assert source.reside(0, True) == ids.nbytes and not source.reside(0)
  batch = next(source.items(None, 0)).batch
  (device,) = jax.devices()[:1]
  placed = loop.put_parts(batch, jax.sharding.SingleDeviceSharding(device), 1)
  assert placed.ids.unsafe_buffer_pointer() == ids.ctypes.data
  # Parts that lie between each other are copied, and have to fit.
  parts = loader.TextSource(corpus, corpora.spec(2, device_words=10**6))
  assert not parts.reside(0, True)


@pytest.mark.parametrize(
  ('strategy', 'shape', 'fused'),
  [
    ('sync', (1, 1), False),
    marking.slow('sync', (2, 1), False),
    marking.slow('replicas', (2, 1), False),
    ('sync', (1, 1), True),
    marking.slow('replicas', (2, 1), True),
  ],
)
def test_dispatches_prepare_their_batches(monkeypatch, strategy, shape, fused):
  corpus, parts = _corpus(), shape[0]
  settings = {
    'model.dim': 4, 'model.window': 5, 'strategy.name': strategy,
    'train.batch_words': 32 * (parts if strategy == 'sync' else 1),
    'optimizer.max_duplicates': 0.0,
  }  # fmt: skip
  spec = corpora.spec(parts, sample=1e-2, part_words=32, chunk=16)
  found = []
  for source in _sources(monkeypatch, corpus, spec, device_words=10**6):
    source.reside(10**6)
    made = dispatches.trainer(
      corpus.counts,
      settings,
      shape,
      steps=source.steps,
      fused=fused,
      parts=parts,
      chunk=16,
      threads=1,
    )
    state, metrics = dispatches.run(
      made.strategy,
      dispatches.start(made.strategy),
      next(source.items(None, 0)).batch,
      dispatches.schedule(0.1, 0.05),
    )
    found.append((dispatches.exported(made.strategy, state), metrics))
  assert found[0][1].counters['kept_words'] > 1000
  steps = made.trainable.steps
  assert isinstance(steps, batches.Steps if fused else packing.Steps)
  same = jax.tree.map(lambda x, y: (x == y).all(), *found)
  assert all(jax.tree.leaves(same))
