"""Tokenized pieces of a text on disk, with words and ids of their own."""

import pathlib
from typing import NamedTuple

import numpy as np

from jaxemb.text import tokenize


class Piece(NamedTuple):
  """A tokenized piece of text, whose words and ids are on disk."""

  file: int  # index of its source
  number: int  # in its source
  num_different: int  # words
  path: pathlib.Path
  counters: dict[str, int]  # of what was read and dropped

  def open(self) -> tuple[tokenize.Words, np.ndarray]:
    """Returns its words, sorted by hash, and its text as their indices."""
    n = self.num_different
    data = np.asarray(np.memmap(self.path, np.uint8, 'r'))
    numbers = data[: 8 * (3 * n + 1)].view(np.int64)
    hashes, counts, starts = np.split(numbers, [n, 2 * n])
    first = len(data) - starts[-1]
    words = tokenize.Words(
      hashes=hashes, counts=counts, starts=starts, arena=data[first:]
    )
    return words, data[numbers.nbytes : first].view(np.int32)

  def words(self, first: int, stop: int) -> tokenize.Words:
    """Returns the words with hashes from `first` to below `stop`."""
    words, _ = self.open()
    i, j = np.searchsorted(words.hashes, [first, stop])
    return words._replace(
      hashes=words.hashes[i:j],
      counts=words.counts[i:j],
      starts=words.starts[i : j + 1],
    )


def write(path: pathlib.Path, words: tokenize.Words, ids: np.ndarray) -> None:
  """Writes words, sorted by hash, and [num_ids] int32 indices into them."""
  hashes, counts, starts, arena = words
  with open(path, 'wb') as file:
    for array in (hashes, counts, starts, ids, arena):
      file.write(array)
