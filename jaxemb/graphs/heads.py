"""The beginning of a file of lines about edges or nodes."""

import pathlib
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxemb import errors
from jaxemb.graphs import edge_columns
from jaxemb.io import tables

_LINES = 5_000
_BLOCK_BYTES = 1 << 22  # nodes are numbered in the order of blocks


class Head(NamedTuple):
  """The first rows of a file, and how its lines are to be cut."""

  rows: Sequence[Sequence[str]]  # the first may be a header
  lines: Sequence[str]  # the same, as they are
  delimiter: str  # as of `tables.Layout`
  skip_lines: int = 0  # comments in the head
  comment: str = ''  # what lines begin with that are comments anywhere
  comments: Sequence[str] = ()  # those that are skipped
  kind: str = ''  # 'parquet' or 'jsonl': the first row has names

  def below_first(self) -> 'Head':
    """Return it without the first row, such as one of sizes."""
    return self._replace(
      rows=self.rows[1:], lines=self.lines[1:], skip_lines=self.skip_lines + 1
    )

  def form(self) -> str:
    """Return what is between its columns, as it is shown."""
    names = {'': self.kind, ' ': 'white space', '\t': 'tabs', ',': 'commas'}
    return names.get(self.delimiter, f'{self.delimiter!r} between columns')

  def layout(self, columns: Sequence[str], **options: bool) -> tables.Layout:
    """Return the layout of the file's columns."""
    return tables.Layout(
      columns,
      delimiter=self.delimiter,
      skip_lines=self.skip_lines,
      comment=self.comment,
      block_bytes=_BLOCK_BYTES,
      **options,
    )


def read(path: pathlib.Path, what: str, comments: str = '') -> Head:
  """Read the head of a file of text or Parquet.

  `comments` is `data.comments`: the sign that comments begin with, 'none', or
  '' = lines with # or % in the head alone, if they are not as all others.
  Raises a `UserError` where no line has `what`, or comments cannot be told.
  """
  if (kind := tables.guess(path)) in ('parquet', 'jsonl'):
    return Head(tables.head(path).rows, [], '', kind=kind)
  block = next((bytes(x) for x, *_ in tables.blocks(path)), b'')
  lines = [
    x.decode('utf-8-sig', 'replace') for x in block.splitlines()[:_LINES]
  ]
  marks = {'': '#%', 'none': ''}.get(comments, comments)
  if comments == marks and not re.fullmatch(r'[!-/:-@\[-`{-~]?', comments):
    raise errors.UserError(
      f'config.data.comments={comments} is not one sign, such as #, nor none'
    )
  body = [x for x in lines if x.strip() and x[0] not in marks]
  body = body or [x for x in lines if _is_name(x)]
  if not body:
    raise errors.UserError(f'{path} has no line with {what}; give another file')
  delimiter = tables.dialect('\n'.join(body))[0].delimiter
  if delimiter not in body[0]:
    delimiter = ' '
  if comments:
    rows = [_cells(x, delimiter) for x in body]
    return Head(rows, body, delimiter, comment=marks)
  rows = [_cells(x, delimiter) for x in lines]
  width = statistics.mode(len(_cells(x, delimiter)) for x in body)
  skip = 0
  while skip < len(lines) and lines[skip][:1] in {'', *marks}:
    is_row = len(rows[skip]) == width > 1 or lines[skip].endswith('}')
    if lines[skip].strip() and is_row and _begins_row(path, lines[skip], rows):
      break
    skip += 1
  rows = [x for x in rows[skip:] if any(x)]
  if not rows:
    raise errors.UserError(f'{path} has no line with {what}; give another file')
  _refuse_comments(path, delimiter, rows)
  if rows[0][0][:1] in marks and edge_columns.is_header(
    [[rows[0][0][1:], *rows[0][1:]], *rows[1:]]
  ):
    rows[0][0] = rows[0][0][1:]
  body = [x for x in lines[skip:] if x.strip()]
  return Head(rows, body, delimiter, skip_lines=skip, comments=lines[:skip])


def lines(path: pathlib.Path) -> Iterator[str]:
  """Yield lines of text, but for comments in the head."""
  is_head = True
  for block, *_ in tables.blocks(path):
    for line in bytes(block).splitlines():
      text = line.decode('utf-8-sig', 'replace')
      is_head &= not text.strip() or bool(re.match(r'[#%](\W|$)', text))
      if text.strip() and not is_head:
        yield text


def _is_name(line):
  """Whether a line begins with # or % as a name does, not a comment."""
  return bool(re.match(r'#\S|%[^\s%]', line))


def _begins_row(path, line, rows):
  """Whether a line that begins with # or % is a row, not a comment."""
  mark, is_name = line[0], _is_name(line)
  alike = [
    x for row in rows for x in row if x[:1] == mark and _is_name(x) == is_name
  ]
  if not is_name:  # `# FromNodeId ToNodeId`, or a token #
    return alike.count(mark) > 1
  is_header = edge_columns.is_header([line[1:].split(), *rows[1:]])
  if (
    is_header
    or len(alike) > 1
    or re.match('%[0-9A-F]{2}', line)
    or len(rows) == 1
  ):
    return True
  raise errors.UserError(
    f'the first line of {path} may be a comment or not, {line.strip()[:60]!r}; '
    f'give --config.data.comments={mark}, or none'
  )


def _refuse_comments(path, delimiter, rows):
  """Raises a `UserError` for what looks like comments between rows."""
  if delimiter != ' ':
    return
  if any(x[:1] == '"' for row in rows for x in row):
    raise errors.UserError(
      f'{path} has names in quotes between white space; write commas or tabs '
      'between columns'
    )
  cells = [x for row in rows for x in row if x in ('#', '%')]
  first = [row for row in rows if row[0] in ('#', '%')]
  if first and len(cells) == len(first):
    raise errors.UserError(
      f'{path} has lines such as {" ".join(first[0])[:60]!r}, which may be '
      f'comments; give --config.data.comments={first[0][0]} if they are, none '
      'if they are not'
    )


def _cells(line, delimiter):
  rows = tables.cells(line, delimiter)
  return rows[0] if rows else []
