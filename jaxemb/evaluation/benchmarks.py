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
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors

_SNIFF_BYTES = 1 << 16
_SNIFF_LINES = 100
_SCWS_FIELDS = 18

_Quadruple = tuple[str, str, str, str]


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
  sections: dict[str, list[_Quadruple]]  # as written
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
  try:
    with path.open('rb') as file:
      start = file.read(_SNIFF_BYTES)
      layout = None if b'\0' in start else _layout(_lines(start), delimiter)
      if layout is None:
        return None
      lines = _lines(start + file.read())
  except OSError as error:
    raise errors.UserError(
      f'cannot read benchmark {path}: {error.strerror}'
    ) from error
  if layout == 'categories':
    benchmark = _read_categories(path.stem, lines)
    return benchmark if benchmark.categories else None
  if layout in ('semeval', 'questions-words'):
    rows = _semeval_rows if layout == 'semeval' else _question_rows
    benchmark = _read_analogies(path.stem, layout, rows(lines))
    return benchmark if benchmark.sections else None
  name = 'scws' if layout == 'scws' else path.stem
  rows = [*map(_pair_parser(layout, delimiter), lines)]
  understood = [row for row in rows if row is not None]
  ratings = np.array([row[2] for row in understood], np.float64)
  pairs = [row[:2] for row in understood]
  num_malformed = len(rows) - len(pairs)
  return Pairs(name, layout, pairs, ratings, num_malformed) if pairs else None


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


def _layout(lines: list[str], delimiter: str | None) -> str | None:
  """The layout that fits a file's first lines, or None."""
  if not lines:
    return None
  header = {x.strip().lower() for x in next(csv.reader(lines[:1]), [])}
  if {'category', 'word'} <= header:
    return 'categories'
  if {'type', 'word1', 'word2', 'word3', 'target'} <= header:
    return 'semeval'
  if lines[0].startswith(':'):
    return 'questions-words'
  sample = lines[:_SNIFF_LINES]
  parsers = {
    'scws': parse_scws,
    'pairs': _pair_parser('pairs', delimiter),
    'questions-words': _parse_question,
  }
  votes = {
    layout: sum(parse(line) is not None for line in sample)
    for layout, parse in parsers.items()
  }
  layout = max(votes, key=votes.__getitem__)
  return layout if 2 * votes[layout] >= len(sample) else None


def _number(field: str) -> float | None:
  """The field as a finite number, or None."""
  try:
    number = float(field)
  except ValueError:
    return None
  return number if math.isfinite(number) else None


def _pair_parser(layout: str, delimiter: str | None) -> Callable:
  if layout == 'scws':
    return parse_scws
  separator = re.compile(re.escape(delimiter) if delimiter else r'[\s,]+')

  def parse(line: str) -> tuple[str, str, float] | None:
    fields = [f.strip() for f in separator.split(line.strip())]
    if len(fields) < 3 or not (fields[0] and fields[1]):
      return None
    numbers = [_number(field) for field in fields]
    # Two words before the numbers, so that no table of vectors passes.
    is_wide = len(fields) > 3
    if is_wide and numbers[:2] != [None, None] or None in numbers[2:]:
      return None
    return fields[0], fields[1], numbers[2]

  return parse


def parse_scws(line: str) -> tuple[str, str, float] | None:
  """The words and mean rating of a line of SCWS, or None."""
  fields = line.split('\t')
  if len(fields) != _SCWS_FIELDS:
    return None
  first, second, rating = fields[1].strip(), fields[3].strip(), fields[7]
  if not (first and second) or _number(rating) is None:
    return None
  return first, second, float(rating)


def _parse_question(line: str) -> _Quadruple | None:
  fields = tuple(line.split())
  is_question = len(fields) == 4 and _number(fields[3]) is None
  return fields if is_question else None


def _question_rows(lines: list[str]) -> Iterator[tuple[str, object]]:
  section = 'unnamed'
  for line in lines:
    if line.startswith(':'):
      section = line[1:].strip() or 'unnamed'
    else:
      fields = tuple(line.split())
      yield section, fields if len(fields) == 4 else None


def _csv_rows(lines: list[str]) -> Iterator[dict[str, str] | None]:
  """Rows below the header as {lower-case column: field}; None if malformed."""
  reader = csv.reader(lines)
  columns = [column.strip().lower() for column in next(reader)]
  while True:
    try:
      fields = [field.strip() for field in next(reader)]
    except StopIteration:
      return
    except csv.Error:
      fields = []
    is_whole = len(fields) == len(columns)
    yield dict(zip(columns, fields, strict=True)) if is_whole else None


def _semeval_rows(lines: list[str]) -> Iterator[tuple[str, object]]:
  for row in _csv_rows(lines):
    row = row or {'type': ''}
    words = tuple(row.get(c, '') for c in ('word1', 'word2', 'word3', 'target'))
    yield row['type'], words if all(words) else None


def _read_analogies(name: str, layout: str, rows: Iterator) -> Analogies:
  sections, malformed = {}, 0
  for section, question in rows:
    if question is None:
      malformed += 1
    else:
      sections.setdefault(section, []).append(question)
  return Analogies(name, layout, sections, malformed)


def _read_categories(name: str, lines: list[str]) -> Categories:
  categories, seen = {}, set()
  blank = repeated = malformed = 0
  for row in _csv_rows(lines):
    if row is None or not row['category']:
      malformed += 1
    elif not row['word']:
      blank += 1
    elif row['word'].upper() in seen:
      repeated += 1
    else:
      seen.add(row['word'].upper())
      categories[row['word']] = row['category']
  return Categories(name, 'categories', categories, blank, repeated, malformed)
