"""Vocabularies that grow: the words of a run, and new ones of another text."""

import numpy as np

from jaxemb import errors
from jaxemb.data import base
from jaxemb.text import tokenize


def words_of(known: base.Known) -> tokenize.Words:
  """Returns the words of a run, with its counts, sorted by hash."""
  words = tokenize.words_of([x.encode() for x in known.keys])
  words = words._replace(counts=np.array(known.counts, np.int64))
  return words.subset(np.argsort(words.hashes))


def grown(
  known: tokenize.Words,
  counted: tokenize.Words,
  min_count: int,
  max_vocab: int,
) -> tokenize.Words:
  """Returns a vocabulary with summed counts, the most frequent first.

  It has all `known` words and, of those that a text has `counted`, the others
  that occur `min_count` times, the most frequent ones up to `max_vocab` words
  in all (0 = all). Raises a `UserError` if there is no room for any of them.
  """
  is_new = ~np.isin(counted.hashes, known.hashes)
  new = counted.subset(np.flatnonzero(is_new))
  room = max_vocab - len(known.counts)
  if max_vocab and room <= 0 and np.any(new.counts >= min_count):
    raise errors.UserError(
      f'config.data.max_vocab={max_vocab} has no room for new words beside the '
      f'{len(known.counts):,} that train.init_from has; raise it, or 0 = any'
    )
  new = new.subset(new.best(min_count, room if max_vocab else 0))
  old = counted.subset(np.flatnonzero(~is_new))
  words = tokenize.add_up([known, old, new])
  return words.subset(words.best(0, 0))


def counts_in(words: tokenize.Words, counted: tokenize.Words) -> np.ndarray:
  """Returns [words] int64, their counts among those that were `counted`."""
  order = np.argsort(counted.hashes)
  hashes = np.append(counted.hashes[order], -1)
  positions = np.searchsorted(hashes[:-1], words.hashes)
  counts = np.append(counted.counts[order], 0)[positions]
  return np.where(hashes[positions] == words.hashes, counts, 0)
