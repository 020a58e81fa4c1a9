"""The vocabulary: which words have a row, in which order, and their counts.

Words are ordered by falling count, ties by their UTF-8 bytes, so that ids do
not depend on how the work was divided. Row i of every table is word i.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.storage import word2vec_format
from jaxemb.text import tokenize


class Vocabulary(NamedTuple):
  """Words by falling count."""

  words: Sequence[str]
  counts: np.ndarray  # [vocab] int64, occurrences in the corpus


def best(words: tokenize.Words, min_count: int, max_vocab: int) -> np.ndarray:
  """[num_chosen] int64, the words that get a row, in order of their rows.

  At most `max_vocab` of them, where that is not 0.
  """
  order = np.flatnonzero(words.counts >= min_count)
  order = order[np.argsort(-words.counts[order], kind='stable')]
  # Ties are sorted one count at a time: few words need be Python objects.
  is_last = np.diff(words.counts[order], append=-1) != 0
  word, start = words.reader(), 0
  for stop in np.flatnonzero(is_last) + 1:
    order[start:stop] = sorted(order[start:stop].tolist(), key=word)
    start = stop
    if max_vocab and stop >= max_vocab:
      return order[:max_vocab]
  return order


def select(
  words: tokenize.Words,
  min_count: int,
  max_vocab: int,
  num_different: int,
  most: int,
) -> tuple[Vocabulary, np.ndarray]:
  """Chooses the words that get a row, with the arguments of `best`.

  Also returns [n] int32, the id of each word, or -1. `num_different` and `most`
  are, for the message, the number of words and the highest count before any
  were left out.

  Raises:
    UserError: if fewer than two words remain.
  """
  order = best(words, min_count, max_vocab)
  word = words.reader()
  chosen = [word(i).decode() for i in order]
  if len(chosen) < 2:
    found = f'only one word ({chosen[0]!r})' if chosen else 'no word'
    raise errors.UserError(
      f'{found} occurs {min_count} times: {num_different:,} different words, '
      f'the most frequent {most:,} times, and two are needed to learn from '
      'contexts; lower --config.data.min_count or give more text'
    )
  ids = np.full(len(words.counts), -1, np.int32)
  ids[order] = np.arange(len(order), dtype=np.int32)
  return Vocabulary(chosen, words.counts[order]), ids


def read_counts(path: pathlib.Path) -> tokenize.Words:
  """Reads the file of `config.data.counts`: `word count` lines in any order.

  Raises:
    UserError: if it is not such a file.
  """
  try:
    words, counts = word2vec_format.read_vocab(path)
  except errors.UserError as error:
    raise errors.UserError(f'config.data.counts: {error}') from error
  return tokenize.from_counts([word.encode() for word in words], counts)
