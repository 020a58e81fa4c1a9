"""Encoded corpora of a few ids, as tests want them."""

import numpy as np

from jaxemb.text import encode, tokenize, vocab


def encoded(shards, num_vocab=None):
  """An encoded corpus of lists of ids, as `encode` would lay it out.

  Every block is a piece of its own.
  """
  shards = [np.array(shard, np.int32) for shard in shards]
  first, starts, sizes = 0, [], []
  for shard in shards:
    found, words = encode.block_starts(shard, encode.BLOCK_WORDS)
    starts += (first + found).tolist()
    sizes += words.tolist()
    first += len(shard)
  ids = np.concatenate(shards)
  words = ids[ids != tokenize.END]
  counts = np.bincount(words, minlength=num_vocab or 0)
  vocabulary = vocab.Vocabulary([f'w{i}' for i in range(len(counts))], counts)
  numbers = np.arange(len(sizes), dtype=np.int32)
  blocks = encode.Blocks(np.array([*starts, first]), np.array(sizes), numbers)
  pieces = np.stack([np.zeros_like(numbers), numbers], 1)
  return encode.Encoded(
    None, vocabulary, tuple(shards), blocks, pieces, len(words), {}
  )
