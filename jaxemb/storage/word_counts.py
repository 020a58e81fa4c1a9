"""Files of `word count` lines: vocabularies and given counts."""

import pathlib
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np

from jaxemb import errors

# The counts of a million words add up to less than 2^63.
_MAX_DIGITS = 12


def write(file: BinaryIO, words: Iterable[bytes], counts: np.ndarray) -> None:
  """Writes a line for each word, in UTF-8 and without white space."""
  for word, count in zip(words, np.asarray(counts).tolist(), strict=True):
    file.write(b'%b %d\n' % (word, count))


def parse(
  data: bytes, path: pathlib.Path, replaces_invalid: bool = False
) -> tuple[list[str], np.ndarray]:
  """The words and their [num_words] int64 counts; skips blank lines.

  Args:
    data: the content of the file; any white space separates word and count.
    path: of the file, for the error.
    replaces_invalid: whether invalid UTF-8 becomes U+FFFD.

  Raises:
    UserError: naming the first line that is not a word and a whole number.
  """
  words, counts = [], []
  decoding = 'replace' if replaces_invalid else 'strict'
  lines = data.removeprefix(b'\xef\xbb\xbf').split(b'\n')
  for number, line in enumerate(lines, 1):
    try:
      match line.split():
        case [word, count] if count.isdigit() and len(count) <= _MAX_DIGITS:
          words.append(word.decode(errors=decoding))
          counts.append(int(count))
        case []:
          pass
        case _:
          raise ValueError
    except ValueError as error:
      raise errors.UserError(
        f'{path}, line {number}: expected a word in UTF-8 and its count, found '
        f'{line[:60].decode(errors="replace")!r}; correct or remove the line'
      ) from error
  return words, np.array(counts, np.int64)
