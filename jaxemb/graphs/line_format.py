"""The form of text files with a record a line: comments, signs, cells."""

import csv
import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence

from jaxemb import errors
from jaxemb.io import tables


def is_comment(line: str) -> bool:
  """Whether a line begins as comments do, and names of URLs do not."""
  return bool(re.match('#|%(?![0-9A-F]{2})', line))


def is_number(text: str) -> bool:
  """Whether `float` reads it."""
  try:
    float(text)
  except ValueError:
    return False
  return True


def lines(path: pathlib.Path) -> Iterator[tuple[int, str]]:
  """Yield numbers, from 1 on, and texts of lines that are no comments."""
  number = 0
  for block, *_ in tables.blocks(path):
    if 0 in block[:1000]:
      raise errors.UserError(
        f'{path} is no text in UTF-8; give plain or compressed text'
      )
    for line in bytes(block).splitlines():
      number += 1
      line = line.decode('utf-8-sig', 'replace')
      if line.strip() and not is_comment(line):
        yield number, line


def head(
  path: pathlib.Path, num_lines: int = 20, what: str = 'an edge'
) -> list[str]:
  """Read the first lines that are no comments."""
  first = [line for _, line in itertools.islice(lines(path), num_lines)]
  if not first:
    raise errors.UserError(f'{path} has no line with {what}; give another file')
  return first


def delimiter(path: pathlib.Path, first: Sequence[str]) -> str:
  """Return a tab, a comma or another sign, or ' ' for runs of white space."""
  suffixes = [x for x in path.suffixes if x in ('.csv', '.tsv')]
  candidates = '\t,;|'
  if suffixes:
    candidates = {'.csv': ',;|', '.tsv': '\t'}[suffixes[-1]]
  signs = [x for x in candidates if x in first[0]]
  if not signs:
    return ' '
  sign = signs[0]
  if sign == ',' and ';' in signs:  # 0,5 is a number where others have ';'
    counts = {x.count(';') for x in first}
    if len(counts) == 1 and counts.pop() > first[0].count(','):
      sign = ';'
  # KONECT has both spaces and tabs between numbers.
  words = [y.split() for x in first for y in x.split(sign)]
  is_mixed = sign == '\t' and any(len(x) > 1 for x in words)
  if is_mixed and all(is_number(y) for x in words for y in x):
    return ' '
  return sign


def cells(line: str, delimiter: str) -> list[str]:
  """Split a line."""
  if delimiter == ' ':
    return line.split()
  row = next(csv.reader([line], delimiter=delimiter), [])
  return [x.strip() for x in row]
