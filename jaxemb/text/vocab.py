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


def best(
  table: tokenize.WordTable, min_count: int, max_vocab: int
) -> np.ndarray:
  """[num_chosen] int64, the entries that get a row, in order of their rows.

  At most `max_vocab` of them, where that is not 0.
  """
  counts = table.counts[: int(table.sizes[0])]
  order = np.flatnonzero(counts >= min_count)
  order = order[np.argsort(-counts[order], kind='stable')]
  # Ties are sorted one count at a time: few words need be Python objects.
  word = tokenize.reader(table)
  start = 0
  for stop in [*(np.flatnonzero(np.diff(counts[order])) + 1), len(order)]:
    order[start:stop] = sorted(order[start:stop].tolist(), key=word)
    start = stop
    if max_vocab and stop >= max_vocab:
      return order[:max_vocab]
  return order


def none_left(min_count: int, num_words: int, most: int) -> errors.UserError:
  """The error for `num_words` words that occur `most` times or less."""
  return errors.UserError(
    f'no word occurs {min_count} times: {num_words:,} different words, the '
    f'most frequent {most:,} times; '
    'lower --config.data.min_count or give more text'
  )


def select(
  table: tokenize.WordTable, min_count: int, max_vocab: int
) -> tuple[Vocabulary, np.ndarray]:
  """Chooses the words that get a row, with the arguments of `best`.

  Also returns [num_words] int32, the id of each entry of the table, or -1.

  Raises:
    UserError: if fewer than two words remain.
  """
  counts = table.counts[: int(table.sizes[0])]
  order = best(table, min_count, max_vocab)
  if not len(order):
    raise none_left(min_count, len(counts), counts.max(initial=0))
  word = tokenize.reader(table)
  words = [word(i).decode() for i in order]
  if len(words) == 1:
    raise errors.UserError(
      f'only one word ({words[0]!r}) occurs {min_count} times, and one word '
      'has no contexts to learn from; lower --config.data.min_count or give '
      'more text'
    )
  ids = np.full(len(counts), -1, np.int32)
  ids[order] = np.arange(len(order), dtype=np.int32)
  return Vocabulary(words, counts[order]), ids


def write_counts(path: pathlib.Path, vocabulary: Vocabulary) -> None:
  """Writes `word count` lines, in the order of the rows."""
  words = [word.encode() for word in vocabulary.words]
  with open(path, 'wb') as file:
    word2vec_format.put_counts(file, words, vocabulary.counts)


def read_counts(path: pathlib.Path) -> tokenize.WordTable:
  """Reads the file of `config.data.counts`: `word count` lines in any order.

  Raises:
    UserError: if it is not such a file.
  """
  try:
    words, counts = word2vec_format.read_vocab(path)
  except errors.UserError as error:
    raise errors.UserError(f'config.data.counts: {error}') from error
  return tokenize.from_words([word.encode() for word in words], counts)
