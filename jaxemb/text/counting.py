"""How often each word occurs: exactly, in bounded memory.

Words are counted in a table. One that gets too large goes to files, a bucket of
the words' hashes to each, and counting begins with an empty one. In the end the
buckets are added up one at a time, over all processes, and words that cannot be
in the vocabulary are dropped. What is counted does not depend on the order of
the text, nor on the number of threads, processes or buckets.
"""

import pathlib
from typing import NamedTuple

import numpy as np

from jaxemb.text import scan, teams, vocab, word_table

# So many words are held in a table (some 200 MB), and of a bucket in the tables
# of all processes together.
MAX_HELD_WORDS = 1 << 22

# Each is a file. From 2 billion words on, of all pieces together, a bucket
# may exceed the above.
MAX_BUCKETS = 512


class Counted(NamedTuple):
  """The words of a text."""

  table: word_table.WordTable  # at least those that get a row
  num_different: int  # words, of which the table may have only some


def count(
  pieces: list[scan.Piece],
  min_count: int,
  max_vocab: int,
  folder: pathlib.Path,
  team: teams.Team,
) -> Counted:
  """Counts the words of a text; all processes take part and get the same.

  Args:
    pieces: those that no other process counts.
    min_count: words that are rarer get no row.
    max_vocab: at most so many words do, the most frequent; 0 = no limit.
    folder: of this process, for what memory has no room for.
    team: who counts the others.

  Raises:
    UserError: if no word occurs often enough.
    OSError: if there is no room in the folder.
  """
  # No table can have more: a bucket is no larger than it should be.
  most_words = teams.total(team, sum(piece.num_different for piece in pieces))
  num_buckets = min(-(-most_words // MAX_HELD_WORDS), MAX_BUCKETS)
  table = _empty()
  num_set_aside = 0
  for piece in pieces:
    num_held = int(table.sizes[0])
    if num_held and num_held + piece.num_different > MAX_HELD_WORDS:
      _set_aside(table, folder, num_buckets)
      num_set_aside += num_held
      table = _empty()
    table = word_table.merge(table, *scan.load_words(piece.path))
  num_counted = num_set_aside + int(table.sizes[0])
  # No more means also that no process has set any aside.
  if teams.total(team, num_counted) <= MAX_HELD_WORDS:
    table = teams.table_of_all(table, team)
    return Counted(table, int(table.sizes[0]))
  _set_aside(table, folder, num_buckets)
  del table
  return _add_up(folder, num_buckets, min_count, max_vocab, team)


def _add_up(
  folder: pathlib.Path,
  num_buckets: int,
  min_count: int,
  max_vocab: int,
  team: teams.Team,
) -> Counted:
  """The words that may be in the vocabulary, bucket by bucket."""
  kept = _empty()
  num_different = most = 0
  for bucket in range(num_buckets):
    table = teams.table_of_all(_take(folder, bucket), team)
    counts = table.counts[: int(table.sizes[0])]
    num_different += len(counts)
    most = max(most, int(counts.max(initial=0)))
    entries = np.flatnonzero(counts >= min_count)
    kept = word_table.merge(kept, *word_table.subset(table, entries))
    # Not at every bucket: it takes as long as to sort them all.
    if max_vocab and kept.sizes[0] > 2 * max_vocab:
      best = vocab.best(kept, min_count, max_vocab)
      min_count = int(kept.counts[best[-1]])  # what a better one must reach
      kept = word_table.merge(_empty(), *word_table.subset(kept, best))
  if not kept.sizes[0]:
    raise vocab.none_left(min_count, num_different, most)
  return Counted(kept, num_different)


def _empty() -> word_table.WordTable:
  return word_table.empty(1 << 16, 1 << 20)


def _path(folder: pathlib.Path, bucket: int) -> pathlib.Path:
  return folder / f'bucket-{bucket:04d}'


def _set_aside(
  table: word_table.WordTable, folder: pathlib.Path, num_buckets: int
) -> None:
  """Appends words and counts to the files of their buckets."""
  buckets = word_table.buckets(table, num_buckets)
  order = np.argsort(buckets, kind='stable')
  ends = np.cumsum(np.bincount(buckets, minlength=num_buckets))
  for bucket, entries in enumerate(np.split(order, ends[:-1])):
    arrays = word_table.subset(table, entries)
    sizes = np.array([len(array) for array in arrays], np.int64)
    # Opened anew: so many files may not be open at once everywhere.
    with open(_path(folder, bucket), 'ab') as file:
      for array in (sizes, *arrays):
        file.write(array.tobytes())


def _take(folder: pathlib.Path, bucket: int) -> word_table.WordTable:
  """The count of a bucket's words that this process has; removes the file."""
  table = _empty()
  path = _path(folder, bucket)
  with open(path, 'rb') as file:
    while len(sizes := np.fromfile(file, np.int64, 3)):
      arena = np.fromfile(file, np.uint8, sizes[0])
      starts = np.fromfile(file, np.int64, sizes[1])
      counts = np.fromfile(file, np.int64, sizes[2])
      table = word_table.merge(table, arena, starts, counts)
  path.unlink()
  return table
