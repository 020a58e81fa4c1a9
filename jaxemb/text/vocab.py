"""The vocabulary: which words have a row, in which order, and how often.

Words are ordered by falling count, ties by their UTF-8 bytes, so that ids do
not depend on how the work was divided. Row i of every table is word i.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.text import word_table


class Vocabulary(NamedTuple):
  """Words by falling count."""

  words: Sequence[str]
  counts: np.ndarray  # [vocab] int64, occurrences in the corpus


def best(
  table: word_table.WordTable, min_count: int, max_vocab: int
) -> np.ndarray:
  """[num_chosen] int64: the entries that get a row, in order of their rows.

  Args:
    table: words with their counts, in any order.
    min_count: words that are rarer are left out.
    max_vocab: at most so many words, the most frequent; 0 = no limit.
  """
  num_words = int(table.sizes[0])
  counts = table.counts[:num_words]
  word = _reader(table)
  order = np.flatnonzero(counts >= min_count)
  order = order[np.argsort(-counts[order], kind='stable')]
  # Words of one count at a time: not all of them need be held as objects.
  ends = [*(np.flatnonzero(np.diff(counts[order])) + 1), len(order)]
  start = 0
  for stop in ends:
    order[start:stop] = sorted(order[start:stop].tolist(), key=word)
    start = stop
    if max_vocab and stop >= max_vocab:
      return order[:max_vocab]
  return order


def _reader(table: word_table.WordTable) -> Callable[[int], bytes]:
  """What tells the word of an entry."""
  starts = table.starts[: int(table.sizes[0]) + 1]
  text = table.arena[: starts[-1]].tobytes()
  return lambda i: text[starts[i] : starts[i + 1]]


def none_left(min_count: int, num_words: int, most: int) -> errors.UserError:
  """What to say when no word of a text gets a row.

  Args:
    min_count: which none of them reaches.
    num_words: different ones that there are.
    most: occurrences of the most frequent one.
  """
  return errors.UserError(
    f'no word occurs {min_count} times: {num_words:,} different words, the '
    f'most frequent {most:,} times; '
    'lower --config.data.min_count or give more text'
  )


def select(
  table: word_table.WordTable, min_count: int, max_vocab: int
) -> tuple[Vocabulary, np.ndarray]:
  """Chooses the words that get a row.

  Args:
    table: all words with their counts.
    min_count: words that are rarer are left out.
    max_vocab: at most so many words, the most frequent; 0 = no limit.

  Returns:
    The vocabulary, and [num_words] int32: the id of each entry of the table,
    or -1.

  Raises:
    UserError: if fewer than two words remain.
  """
  num_words = int(table.sizes[0])
  counts = table.counts[:num_words]
  order = best(table, min_count, max_vocab)
  if not len(order):
    raise none_left(min_count, num_words, counts.max(initial=0))
  word = _reader(table)
  if len(order) == 1:
    raise errors.UserError(
      f'only one word ({word(order[0]).decode()!r}) occurs {min_count} '
      'times, and one word has no contexts to learn from; '
      'lower --config.data.min_count or give more text'
    )
  ids = np.full(num_words, -1, np.int32)
  ids[order] = np.arange(len(order), dtype=np.int32)
  return Vocabulary([word(i).decode() for i in order], counts[order]), ids


def write_counts(path: pathlib.Path, vocabulary: Vocabulary) -> None:
  """Writes `word count` lines, most frequent first."""
  with open(path, 'w', encoding='utf-8', newline='\n') as file:
    for word, count in zip(vocabulary.words, vocabulary.counts, strict=True):
      file.write(f'{word} {count}\n')


def _is_word(field: bytes) -> bool:
  try:
    return bool(field.decode())
  except UnicodeDecodeError:
    return False


def _is_count(field: bytes) -> bool:
  # As many digits as the sum of a vocabulary of counts in int64 allows.
  return field.isdigit() and len(field) < 13


def read_counts(path: pathlib.Path) -> word_table.WordTable:
  """Reads `word count` lines (any white space between), in any order.

  Raises:
    UserError: naming the first line that is not a word and a whole number, a
      word that comes twice, or an empty file.
  """
  try:
    lines = path.read_bytes().removeprefix(b'\xef\xbb\xbf').split(b'\n')
  except OSError as error:
    raise errors.UserError(
      f'cannot read the counts file {path}: {error.strerror}; '
      'check --config.data.counts'
    ) from error
  words, counts = [], []
  for number, line in enumerate(lines, 1):
    if not line.strip():
      continue
    fields = line.split()
    if len(fields) != 2 or not _is_word(fields[0]) or not _is_count(fields[1]):
      raise errors.UserError(
        f'{path}, line {number}: expected a word in UTF-8 and its count, found '
        f'{line[:60].decode(errors="replace")!r}; correct or remove the line'
      )
    words.append(fields[0])
    counts.append(int(fields[1]))
  if not words:
    raise errors.UserError(
      f'the counts file {path} is empty; give lines of a word and its count'
    )
  starts = np.zeros(len(words) + 1, np.int64)
  np.cumsum([len(word) for word in words], out=starts[1:])
  table = word_table.merge(
    word_table.empty(len(words), int(starts[-1])),
    np.frombuffer(b''.join(words), np.uint8),
    starts,
    np.asarray(counts, np.int64),
  )
  if int(table.sizes[0]) != len(words):
    raise errors.UserError(
      f'{path} names {len(words) - int(table.sizes[0]):,} words twice; '
      'give each word one line with its total count'
    )
  return table
