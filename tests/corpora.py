"""Encoded corpora of a few ids, and what their batches should hold."""

import math

import numpy as np

from jaxemb.data import base, windows
from jaxemb.data import blocks as blocks_lib
from jaxemb.text import encode, tokenize


def encoded(ids, num_vocab=0):
  """An encoded corpus of ids, as `encode` would lay it out.

  Every block is a piece of its own.
  """
  ids = np.array(ids, np.int32)
  starts, sizes = encode.block_starts(ids, blocks_lib.BLOCK_WORDS)
  counts = np.bincount(ids[ids != tokenize.END], minlength=num_vocab)
  words = [f'w{i}' for i in range(len(counts))]
  turns = np.arange(len(starts))
  blocks = blocks_lib.Blocks(np.append(starts, len(ids)), sizes, turns)
  return encode.Encoded(None, words, counts, ids, blocks, {})


def spec(num_parts=1, sample=0.0, readers=None, **changes):
  """A `SourceSpec` of small batches; all parts are read here."""
  readers = readers or base.ALONE._replace(local_parts=range(num_parts))
  sizes = dict(part_words=16, window=5, chunk=1, shortest_window=1) | changes
  settings = {'seed': 1, 'epochs': 1, 'settings': {'sample': sample}} | sizes
  return base.SourceSpec(
    path='', num_parts=num_parts, readers=readers, cache=None, progress=None,
    **settings,
  )  # fmt: skip


def random_ids(rng, num_words, num_vocab, mean_sentence=20):
  """Zipf-distributed words in sentences of any length."""
  words = (num_vocab ** rng.random(num_words)).astype(np.int32) - 1
  ids = []
  while len(words):
    length = 1 + rng.geometric(1 / mean_sentence)
    ids += [*words[:length].tolist(), tokenize.END]
    words = words[length:]
  return ids


# A second implementation of `loader`, in Python's own integers.

_MASK = 2**64 - 1


def splitmix64(x):
  x = (x + 0x9E3779B97F4A7C15) & _MASK
  x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
  x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
  return x ^ (x >> 31)


def part_key(seed, epoch, part):
  key = splitmix64((seed & _MASK) ^ splitmix64(epoch))
  return splitmix64(part ^ key) if part else key


def expected_centers(ids, position, key, spec, counts):
  """[[id, left, right]] of a block at a position, subsampled, with windows."""
  total = sum(counts)
  centers, sentence = [], []
  for i, word in enumerate([*ids, tokenize.END], position):
    if word == tokenize.END:
      last = len(sentence) - 1
      centers += [
        [kept, min(reach, k), min(reach, last - k)]
        for k, (kept, reach) in enumerate(sentence)
      ]
      sentence = []
      continue
    bits = splitmix64(key ^ i)
    sample = spec.settings['sample']
    ratio = sample * total / counts[word]
    keep = math.sqrt(ratio) + ratio if sample else 1.0
    if (bits >> 32) / 2**32 < keep:
      sentence.append((word, 1 + (((bits & 0xFFFF) * spec.window) >> 16)))
  return centers


def centers(item, spec, part=0):
  """[n, 3], id, left and right in a part of a batch; the rest is padding."""
  batch = windows.Batch(*(x[part] for x in item.batch))
  size, kept = blocks_lib.batch_words(spec.part_words), int(batch.kept_words)
  assert batch.ids.shape == (size + 2 * spec.window,)
  assert batch.left.shape == batch.right.shape == (size,)
  assert batch.ids.dtype == np.int32
  assert batch.left.dtype == batch.right.dtype == np.uint8
  assert batch.num_steps == -(-kept // spec.part_words)
  used = slice(spec.window, spec.window + kept)
  padding = np.delete(batch.ids, used)
  assert (padding == padding[0]).all()
  assert padding[0] > batch.ids[used].max(initial=-1)
  assert not batch.left[kept:].any() and not batch.right[kept:].any()
  columns = batch.ids[used], batch.left[:kept], batch.right[:kept]
  assert batch.pairs == columns[1].sum(dtype=int) + columns[2].sum(dtype=int)
  return np.stack(columns, 1)


def same_items(items, others):
  """Checks that two lists of `data.base.Item` are equal, to the last bit."""
  for a, b in zip(items, others, strict=True):
    assert a._replace(batch=None) == b._replace(batch=None)
    for x, y in zip(a.batch, b.batch, strict=True):
      assert x.dtype == y.dtype and x.tobytes() == y.tobytes()
