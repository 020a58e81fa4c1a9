"""Which words get several senses: the frequent ones, or those of a list."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors


class Choice(NamedTuple):
  """The union of three ways to be chosen."""

  top_n: int  # most frequent words
  top_ratio: float  # share of the vocabulary, the most frequent ones
  words: str  # file with a word per line; '' = none


def read_words(path: pathlib.Path | str) -> list[str]:
  """The first field of every line that has one; `#` begins a remark.

  Raises:
    UserError: The file cannot be read, or has no word.
  """
  path = pathlib.Path(path).expanduser()
  try:
    # A mark of byte order at the front is no part of the first word.
    lines = path.read_text(encoding='utf-8-sig').splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(
      f'cannot read config.senses.words={path}: {error}; give a text file with '
      "a word per line, or ''"
    ) from error
  found = [line.split()[0] for line in lines if line.split()]
  found = [word for word in found if not word.startswith('#')]
  if not found:
    raise errors.UserError(
      f"config.senses.words={path} has no word; give a word per line, or ''"
    )
  return found


class Chosen(NamedTuple):
  """The words with several senses."""

  is_ambiguous: np.ndarray  # [vocab] bool
  num_listed: int  # different words of the list
  num_unknown: int  # of these, that the vocabulary lacks


def choose(choice: Choice, words: Sequence[str], lowercase: bool) -> Chosen:
  """Which words have several senses.

  Args:
    choice: how they are chosen.
    words: [vocab], the most frequent first.
    lowercase: whether the words of the list are to be lower-cased.

  Raises:
    UserError: The list is of no use.
  """
  num_top = max(choice.top_n, int(np.ceil(choice.top_ratio * len(words))))
  chosen = np.arange(len(words)) < num_top
  if not choice.words:
    return Chosen(chosen, 0, 0)
  listed = {x.lower() if lowercase else x for x in read_words(choice.words)}
  is_listed = np.fromiter((x in listed for x in words), bool, len(words))
  num_known = int(is_listed.sum())
  if not num_known:
    raise errors.UserError(
      f'config.senses.words={choice.words} has none of the {len(words):,} '
      'words of the vocabulary; give other words (check the case of letters)'
    )
  return Chosen(chosen | is_listed, len(listed), len(listed) - num_known)
