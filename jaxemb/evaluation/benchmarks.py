"""Reads benchmark files: similarity, analogies and categories.

A file's layout is recognised from its content, never from its name:

    pairs            `word1 word2 score`, by white space or commas; further
                     columns (single ratings) are ignored if they are numbers
    scws             18 tab fields (Huang et al. 2012): two words in contexts
                     and the mean rating
    questions-words  `: section` lines and four words a line (Mikolov et al.
                     2013)
    semeval          csv with the columns type, word1, word2, word3, target
    categories       csv with the columns category, word

Lines that do not fit the layout of their file are counted, never fatal. Blank
lines and lines that start with `#` are neither read nor counted.
"""

import collections
import csv
import logging
import math
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxemb import errors

_LOG = logging.getLogger(__name__)
_SNIFF_BYTES = 1 << 16
_SNIFF_LINES = 100
_SCWS_FIELDS = 18
_CSV_COLUMNS = {
  'categories': ('category', 'word'),
  'semeval': ('type', 'word1', 'word2', 'word3', 'target'),
}
_KINDS = {
  'pairs': 'similarity',
  'scws': 'similarity',
  'questions-words': 'analogies',
  'semeval': 'analogies',
  'categories': 'categorization',
}
# (label, words), in SCWS also contexts, as in `Benchmark`.
Item = tuple


class Benchmark(NamedTuple):
  """The items of one file."""

  path: pathlib.Path
  name: str  # of the file, unique among those read together
  layout: str
  words: list[tuple[str, ...]]  # of each item, as written: 2, 4 or 1
  # By item: rating (larger is more similar), section or category.
  labels: list[float] | list[str]
  malformed: int  # lines
  blank: int = 0  # rows of categories without a word
  repeated: int = 0  # rows of categories with a word of an earlier row
  # In SCWS, for both words: the text before the word, the word, the text after.
  contexts: Sequence[list[tuple[str, str, str]]] = ()

  @property
  def kind(self) -> str:
    """'similarity', 'analogies' or 'categorization'."""
    return _KINDS[self.layout]


def find(paths: Iterable[pathlib.Path | str]) -> list[Benchmark]:
  """Reads the benchmarks in files and folders; logs files of unknown layout.

  Raises a `UserError` if a path is missing or no benchmark is recognised.
  """
  paths = list(paths)
  names: collections.Counter[str] = collections.Counter()
  recognised, unknown = [], []
  for path in _files(paths):
    benchmark = read(path)
    if benchmark is None:
      unknown.append(path.name)
      continue
    names[benchmark.name] += 1
    if (count := names[benchmark.name]) > 1:
      benchmark = benchmark._replace(name=f'{benchmark.name}-{count}')
    recognised.append(benchmark)
  if not recognised:
    raise errors.UserError(
      f'no benchmark recognised in {", ".join(map(str, paths))}: expected '
      '`word1 word2 score`, SCWS, `: section` analogies, or csv with columns '
      'category, word or type, word1, word2, word3, target'
    )
  if unknown:
    _LOG.warning(
      f'skipped {len(unknown)} file(s) of unknown layout: {", ".join(unknown)}'
    )
  return recognised


def _files(paths: Iterable[pathlib.Path | str]) -> Iterator[pathlib.Path]:
  for path in map(pathlib.Path, paths):
    if path.is_dir():
      yield from sorted(p for p in path.rglob('*') if p.is_file())
    elif path.is_file():
      yield path
    else:
      raise errors.UserError(
        f'no benchmark file or folder at {path}: check the path'
      )


def read(
  path: pathlib.Path | str,
  delimiter: str | None = None,
  encoding: str = 'utf-8',
) -> Benchmark | None:
  """Reads a benchmark file; returns None if no line fits any layout.

  `delimiter` separates the fields of a `pairs` file; None = white space or
  commas. Raises a `UserError` if the file cannot be read.
  """
  path = pathlib.Path(path)
  separator = re.compile(re.escape(delimiter) if delimiter else r'[\s,]+')
  try:
    with path.open('rb') as file:
      data = file.read(_SNIFF_BYTES)
      sample = [] if b'\0' in data else _lines(data, encoding)[:_SNIFF_LINES]
      layout = _layout(sample, separator)
      data += file.read() if layout else b''
  except (OSError, ValueError) as error:  # such as of names with zeros
    reason = getattr(error, 'strerror', None) or errors.one_line(error)
    raise errors.UserError(f'cannot read benchmark {path}: {reason}') from error
  except LookupError as error:
    raise errors.UserError(
      f'there is no encoding {encoding!r}; give another, such as utf-8'
    ) from error
  items = []
  if layout:
    items = _parse(_lines(data, encoding), layout, separator)
  good = [item for item in items if item is not None]
  num_good, num_blank, num_repeated = len(good), 0, 0
  if layout == 'categories':
    named = [item for item in good if item[1] != ('',)]
    first: dict[str, Item] = {}
    for item in named:
      first.setdefault(item[1][0].upper(), item)
    good = list(first.values())
    num_blank = num_good - len(named)
    num_repeated = len(named) - len(good)
  if layout is None or not good:
    return None
  labels, words, *contexts = map(list, zip(*good, strict=True))
  return Benchmark(
    path=path,
    name='scws' if layout == 'scws' else path.stem,
    layout=layout,
    words=words,
    labels=labels,
    malformed=len(items) - num_good,
    blank=num_blank,
    repeated=num_repeated,
    contexts=contexts[0] if contexts else (),
  )


def _lines(data: bytes, encoding: str) -> list[str]:
  text = data.decode(encoding, errors='replace').removeprefix('\ufeff')
  lines = text.replace('\r\n', '\n').replace('\r', '\n').split('\n')
  return [line for line in lines if line.strip() and line[0] != '#']


def _layout(sample: list[str], separator: re.Pattern) -> str | None:
  """Returns the layout that fits the first lines of a file, or None."""
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
  # Four fields that end in a number are more likely a pair.
  fitting['questions-words'] = [
    words
    for _, words in fitting['questions-words']
    if _number(words[3]) is None
  ]
  layout = max(fitting, key=lambda layout: len(fitting[layout]))
  return layout if 2 * len(fitting[layout]) >= len(sample) else None


def _parse(
  lines: list[str], layout: str, separator: re.Pattern
) -> list[Item | None]:
  """Returns the item of each line, None for malformed lines."""
  if layout == 'scws':
    return [_parse_scws(line) for line in lines]
  if layout == 'pairs':
    return [_parse_pair(line, separator) for line in lines]
  items: list[Item | None] = []
  section = 'unnamed'
  if layout == 'questions-words':
    for line in lines:
      if line.startswith(':'):
        section = line[1:].strip() or 'unnamed'
      else:
        four = tuple(line.split())
        items.append((section, four) if len(four) == 4 else None)
    return items
  header = [field.lower() for field in _csv_fields(lines[0])]
  for fields in map(_csv_fields, lines[1:]):
    row = dict(zip(header, fields, strict=False))
    label, *words = (row.get(x, '') for x in _CSV_COLUMNS[layout])
    needed = words if layout == 'semeval' else [label]
    is_good = len(fields) == len(header) and all(needed)
    items.append((label, tuple(words)) if is_good else None)
  return items


def _csv_fields(line: str) -> list[str]:
  try:
    return [field.strip() for field in next(csv.reader([line]))]
  except csv.Error:
    return []


def _number(field: str) -> float | None:
  """Returns the field as a finite number, or None."""
  try:
    number = float(field)
  except ValueError:
    return None
  return number if math.isfinite(number) else None


def _parse_pair(line: str, separator: re.Pattern) -> Item | None:
  fields = [field.strip() for field in separator.split(line.strip())]
  words, numbers = tuple(fields[:2]), [_number(field) for field in fields[2:]]
  if not numbers or None in numbers or '' in words:
    return None
  # Several numbers after a numeric word: a table of vectors.
  if len(numbers) > 1 and any(_number(word) is not None for word in words):
    return None
  return numbers[0], words


def _parse_scws(line: str) -> Item | None:
  fields = [field.strip() for field in line.split('\t')]
  if len(fields) != _SCWS_FIELDS or not (fields[1] and fields[3]):
    return None
  rating = _number(fields[7])
  contexts = [_parse_context(x) for x in fields[5:7]]
  if rating is None or None in contexts:
    return None
  return rating, (fields[1], fields[3]), contexts


def _parse_context(text: str) -> tuple[str, str, str] | None:
  before, opening, rest = text.partition('<b>')
  word, closing, after = rest.partition('</b>')
  return (before, word, after) if opening and closing else None
