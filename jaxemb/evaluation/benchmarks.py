"""Benchmark files: similarity, analogies and categories, in any known layout.

A file's layout is recognised from its content, never from its name:

    pairs            `word1 word2 score`, by white space or commas; further
                     columns (single ratings) are ignored if they are numbers
    scws             18 tab fields (Huang et al. 2012): two words in contexts
                     and the mean rating
    questions-words  `: section` lines and four words a line (Mikolov et al.
                     2013)
    semeval          csv with the columns type, word1, word2, word3, target
    categories       csv with the columns category, word

Lines that do not fit their file's layout are counted, never fatal. Blank lines
and lines that start with `#` are neither read nor counted.
"""

import collections
import csv
import math
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors

_SNIFF_BYTES = 1 << 16
_SNIFF_LINES = 100
_SCWS_FIELDS = 18

_CSV_COLUMNS = {
  'categories': ('category', 'word'),
  'semeval': ('type', 'word1', 'word2', 'word3', 'target'),
}


class Pairs(NamedTuple):
  """Word pairs with human ratings."""

  name: str  # of the file, unique among those read together
  layout: str  # 'pairs' or 'scws'
  pairs: list[tuple[str, str]]  # as written
  ratings: np.ndarray  # [pairs] float64, larger is more similar, any scale
  malformed: int  # lines


class Analogies(NamedTuple):
  """Questions `a is to b as c is to d`, by section."""

  name: str
  layout: str  # 'questions-words' or 'semeval'
  sections: dict[str, list[tuple[str, str, str, str]]]  # as written
  malformed: int


class Categories(NamedTuple):
  """Words with the category that each belongs to."""

  name: str
  layout: str  # 'categories'
  categories: dict[str, str]  # by word; a word's first category, in any case
  blank: int  # rows without a word
  repeated: int  # rows whose word had come before
  malformed: int


Benchmark = Pairs | Analogies | Categories


def find(
  paths: Sequence[pathlib.Path | str],
) -> tuple[list[Benchmark], list[pathlib.Path]]:
  """Benchmarks in files and folders (walked in sorted order).

  Returns:
    The benchmarks with unique names, and the files of unknown layout.

  Raises:
    errors.UserError: a path is missing, or nothing was recognised.
  """
  found, unknown, names = [], [], collections.Counter()
  for path in _files(paths):
    benchmark = read(path)
    if benchmark is None:
      unknown.append(path)
      continue
    names[benchmark.name] += 1
    if names[benchmark.name] > 1:
      name = f'{benchmark.name}-{names[benchmark.name]}'
      benchmark = benchmark._replace(name=name)
    found.append(benchmark)
  if not found:
    raise errors.UserError(
      f'no benchmark recognised in {", ".join(map(str, paths))}: expected '
      '`word1 word2 score`, SCWS, `: section` analogies, or csv with columns '
      'category, word or type, word1, word2, word3, target'
    )
  return found, unknown


def with_contexts(paths: Sequence[pathlib.Path | str]) -> list[pathlib.Path]:
  """The files that hold words in contexts (SCWS), in files and folders."""
  found = ((path, read(path)) for path in _files(paths))
  return [path for path, x in found if x is not None and x.layout == 'scws']


def read(
  path: pathlib.Path | str, delimiter: str | None = None
) -> Benchmark | None:
  """Reads one benchmark file; None if no line fits any layout.

  Args:
    path: the file.
    delimiter: of a `pairs` file's fields; None for white space or commas.

  Raises:
    errors.UserError: the file cannot be read.
  """
  path = pathlib.Path(path)
  separator = re.compile(re.escape(delimiter) if delimiter else r'[\s,]+')
  try:
    with path.open('rb') as file:
      start = file.read(_SNIFF_BYTES)
      sample = [] if b'\0' in start else _lines(start)[:_SNIFF_LINES]
      layout = _layout(sample, separator)
      if layout is None:
        return None
      lines = _lines(start + file.read())
  except OSError as error:
    raise errors.UserError(
      f'cannot read benchmark {path}: {error.strerror}'
    ) from error
  items = _parse(lines, layout, separator)
  good = [item for item in items if item is not None]
  num_malformed = len(items) - len(good)
  if not good:
    return None
  if layout == 'categories':
    categories = {}
    for category, word in good:
      if word:
        categories.setdefault(word.upper(), (word, category))
    num_blank = sum(not word for _, word in good)
    num_repeated = len(good) - num_blank - len(categories)
    counts = num_blank, num_repeated, num_malformed
    return Categories(path.stem, layout, dict(categories.values()), *counts)
  if layout in ('pairs', 'scws'):
    name = 'scws' if layout == 'scws' else path.stem
    pairs = [(first, second) for first, second, _ in good]
    ratings = np.array([rating for *_, rating in good])
    return Pairs(name, layout, pairs, ratings, num_malformed)
  sections = {}
  for section, question in good:
    sections.setdefault(section, []).append(question)
  return Analogies(path.stem, layout, sections, num_malformed)


def _files(paths: Sequence[pathlib.Path | str]) -> Iterator[pathlib.Path]:
  for path in map(pathlib.Path, paths):
    if path.is_dir():
      yield from sorted(p for p in path.rglob('*') if p.is_file())
    elif path.exists():
      yield path
    else:
      raise errors.UserError(
        f'no benchmark file or folder at {path}: check the path'
      )


def _lines(data: bytes) -> list[str]:
  text = data.decode('utf-8-sig', errors='replace')
  lines = text.replace('\r\n', '\n').replace('\r', '\n').split('\n')
  return [line for line in lines if line.strip() and line[0] != '#']


def _layout(sample: list[str], separator: re.Pattern) -> str | None:
  """The layout that fits a file's first lines, or None."""
  if not sample:
    return None
  header = {field.lower() for field in _csv_fields(sample[0])}
  for layout, columns in _CSV_COLUMNS.items():
    if header.issuperset(columns):
      return layout
  if sample[0].startswith(':'):
    return 'questions-words'
  fitting = {
    layout: [x for x in _parse(sample, layout, separator) if x is not None]
    for layout in ('scws', 'pairs', 'questions-words')
  }
  # Four fields that end in a number are rather a pair.
  fitting['questions-words'] = [
    x for _, x in fitting['questions-words'] if _number(x[3]) is None
  ]
  layout = max(fitting, key=lambda layout: len(fitting[layout]))
  return layout if 2 * len(fitting[layout]) >= len(sample) else None


def _parse(lines: list[str], layout: str, separator: re.Pattern) -> list:
  """What each line holds, None where malformed.

  Pairs are (word, word, rating), questions (section, words), and categorized
  words (category, word).
  """
  if layout == 'scws':
    return [parse_scws(line) for line in lines]
  if layout == 'pairs':
    return [_parse_pair(line, separator) for line in lines]
  items, section = [], 'unnamed'
  if layout == 'questions-words':
    for line in lines:
      if line.startswith(':'):
        section = line[1:].strip() or 'unnamed'
        continue
      words = tuple(line.split())
      items.append((section, words) if len(words) == 4 else None)
    return items
  header = [field.lower() for field in _csv_fields(lines[0])]
  for fields in map(_csv_fields, lines[1:]):
    row = dict(zip(header, fields, strict=False))
    first, *words = (row.get(x, '') for x in _CSV_COLUMNS[layout])
    if len(fields) != len(header):
      items.append(None)
    elif layout == 'semeval':
      items.append((first, tuple(words)) if all(words) else None)
    else:
      items.append((first, *words) if first else None)
  return items


def _csv_fields(line: str) -> list[str]:
  try:
    return [field.strip() for field in next(csv.reader([line]))]
  except csv.Error:
    return []


def _number(field: str) -> float | None:
  """The field as a finite number, or None."""
  try:
    number = float(field)
  except ValueError:
    return None
  return number if math.isfinite(number) else None


def _parse_pair(
  line: str, separator: re.Pattern
) -> tuple[str, str, float] | None:
  fields = [field.strip() for field in separator.split(line.strip())]
  words, numbers = fields[:2], [_number(field) for field in fields[2:]]
  if not numbers or None in numbers or '' in words:
    return None
  # Several numbers after a word that is one: a table of vectors.
  if len(numbers) > 1 and any(_number(word) is not None for word in words):
    return None
  return words[0], words[1], numbers[0]


def parse_scws(line: str) -> tuple[str, str, float] | None:
  """The words and mean rating of a line of SCWS, or None."""
  fields = [field.strip() for field in line.split('\t')]
  if len(fields) != _SCWS_FIELDS or not (fields[1] and fields[3]):
    return None
  rating = _number(fields[7])
  return None if rating is None else (fields[1], fields[3], rating)
