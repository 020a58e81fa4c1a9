"""The beginning of a file of rows about edges or nodes."""

import pathlib
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxemb import errors
from jaxemb.graphs import edge_columns, published
from jaxemb.io import tables

LINES = 5_000
COMMENT = r'(#|%|//)(\s|$)'  # how a line begins that may be one


class Head(NamedTuple):
  """The first rows of a file, and how its lines are to be cut."""

  rows: Sequence[Sequence[str]]  # the first may be a header
  lines: Sequence[str]  # the same, as they are
  layout: tables.Layout  # without columns
  comments: Sequence[str] = ()  # those that are skipped
  form: str = ''  # of a table, whose columns have names, '' = text

  def shown(self) -> str:
    """Return the form, or what is between columns, for log and report."""
    if self.form:
      return self.form
    sign = self.layout.delimiter
    names = {' ': 'white space', '\t': 'tabs', ',': 'commas'}
    return names.get(sign, f'{sign!r} between columns')


def read(path: pathlib.Path, what: str, comments: str = '') -> Head:
  """Read the head of a file of text or Parquet.

  `comments` is `data.comments`: the sign that comments begin with, 'none', or
  '' = lines with # or % in the head alone, if they are not as all others.
  Raises a `UserError` where no line has `what`, or comments cannot be told.
  """
  if (form := tables.guess(path)) in ('parquet', 'jsonl'):
    head = tables.head(path)
    if not (head.rows and head.rows[0]):
      raise errors.UserError(f'{path} has no column; give another file')
    return Head(head.rows, [], head.layout, form=form)
  marks = {'': '#%', 'none': ''}.get(comments, comments)
  if comments == marks and not re.fullmatch(r'[!-/:-@\[-`{-~]?', comments):
    raise errors.UserError(
      f'config.data.comments={comments} is not one sign, such as #, nor none'
    )
  block = next((bytes(x) for x, *_ in tables.blocks(path)), b'')
  lines = [x.decode('utf-8-sig', 'replace') for x in block.splitlines()[:LINES]]
  published.refuse(path, lines[:100])
  body = [x for x in lines if x.strip() and x[0] not in marks]
  body = body or [x for x in lines if _is_name(x)]
  nothing = errors.UserError(
    f'{path} has no line with {what}; give another file'
  )
  if not body:
    raise nothing
  delimiter = _delimiter(body)
  skip = 0
  if not comments:
    rows = [_cells(x, delimiter) for x in lines]
    width = statistics.mode(len(_cells(x, delimiter)) for x in body)
    while skip < len(lines) and lines[skip][:1] in {'', *marks}:
      line = lines[skip]
      is_row = len(rows[skip]) == width > 1 or line.endswith('}')
      if line.strip() and is_row and _begins_row(path, line, rows[skip:]):
        break
      skip += 1
    body = [x for x in lines[skip:] if x.strip()]
  if not body:
    raise nothing
  rows = [_cells(x, delimiter) for x in body]
  if delimiter == ' ' and any(x[:1] == '"' for row in rows for x in row):
    raise errors.UserError(
      f'{path} has names in quotes between white space; write commas or tabs '
      'between columns'
    )
  bare = [[rows[0][0][1:], *rows[0][1:]], *rows[1:]]
  if not comments and rows[0][0][:1] in marks and edge_columns.is_header(bare):
    rows = bare
  if skip and (named := _named(lines[skip - 1], rows[0], delimiter)):
    rows, body, skip = [named, *rows], [lines[skip - 1], *body], skip - 1
  layout = tables.Layout(
    delimiter=delimiter,
    skip_lines=skip,
    comment=marks if comments else '',
  )
  return Head(tables.with_end(rows), body, layout, comments=lines[:skip])


def lines(path: pathlib.Path, head: Head) -> Iterator[str]:
  """Yield the lines of a file of text that are no comments."""
  number, mark = 0, head.layout.comment
  for block, *_ in tables.blocks(path):
    for line in bytes(block).splitlines():
      text = line.decode('utf-8-sig', 'replace')
      is_row = text.strip() and not (mark and text.startswith(mark))
      if is_row and number >= head.layout.skip_lines:
        yield text
      number += 1


def refuse_comments(
  path: pathlib.Path | str, settings: Mapping[str, Any], names: Iterable[str]
) -> None:
  """Raises a `UserError` if one of some names looks like that of a comment."""
  name = next((x for x in names if re.match(COMMENT, x)), None)
  if name and not settings['comments']:
    raise errors.UserError(
      f'{path} has lines such as {name[:60]!r} ..., which may be '
      f'comments; give --config.data.comments={name[0]} if they are, none if '
      'they are not'
    )


def _delimiter(lines):
  """The sign between cells; the first line may be a comment or a count."""
  for some in lines, lines[1:]:
    layout, rows = tables.dialect('\n'.join(some))
    if layout.delimiter != ' ' and len((*rows, ())[0]) > 1:
      return layout.delimiter
  return ' '


def _cells(line, delimiter):
  rows = tables.cells(line, delimiter)
  return rows[0] if rows else ['']


def _named(comment, row, delimiter):
  """The names of columns that a comment has, as `numpy.savetxt` writes it."""
  names = _cells(comment.lstrip('#% '), delimiter)
  is_header = len(names) == len(row) > 2
  return names if is_header and edge_columns.is_header([names, names]) else []


def _is_name(line):
  """Whether a line begins with # or % as a name does, not a comment."""
  return bool(re.match(r'#\S|%[^\s%]', line))


def _begins_row(path, line, rows):
  """Whether the first of some lines, with # or %, is a row, not a comment."""
  mark, is_name = line[0], _is_name(line)
  alike = [
    x for row in rows for x in row if x[:1] == mark and _is_name(x) == is_name
  ]
  if not is_name:  # `# FromNodeId ToNodeId`, or a token #
    return alike.count(mark) > 1
  is_header = edge_columns.is_header([line[1:].split(), *rows[1:]])
  is_encoded = bool(re.match('%[0-9A-F]{2}', line))  # of a URL
  if is_header or is_encoded or len(alike) > 1 or len(rows) == 1:
    return True
  raise errors.UserError(
    f'the first line of {path} may be a comment or not, {line.strip()[:60]!r}; '
    f'give --config.data.comments={mark}, or none'
  )
