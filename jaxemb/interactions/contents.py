"""What columns of interactions are, by the first rows, where none has a name.

Lines may be lists, `user item item ...`, or a table: a user, an item, and what
is no item, such as a rating or a time. Where all lines have as many cells, a
table shows in columns that have nothing in common. It is refused, as the
columns could only be guessed, but for users, items and times.
"""

import pathlib
import re
from collections.abc import Sequence

import numpy as np

from jaxemb import errors
from jaxemb.io import tables

PAIRS, TIMED, LISTS = 'user,item', 'user,item,time', 'user,items'
_NUM_ROWS = 2000
_ENOUGH_ROWS = 20  # to say what a column has
_MOST_RATINGS = 11  # different ones
_DATE = re.compile(r'\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?')
_SECONDS = (6e8, 4e9), (6e11, 4e12)  # since 1970, or milliseconds
_DECIMAL = re.compile(r'-?\d*\.\d*[1-9]\d*')
_RATED = re.compile(r'.+:\d+(\.\d+)?')

Rows = Sequence[Sequence[str]]


def sample(file: pathlib.Path) -> tables.Head:
  """Reads the first rows of a file, but for comments at its head.

  Raises a `UserError` if there is none.
  """
  head = tables.head(file, num_rows=_NUM_ROWS)
  rows, layout = [x for x in head.rows if any(x)], head.layout
  if not rows:
    raise errors.UserError(f'{file} has no line `user item item ...`')
  # A line alone has no tab, but spaces: both are white space.
  is_mixed = layout.delimiter == '\t' and any(
    len(x) == 1 and ' ' in x[0] for x in rows
  )
  if layout.delimiter and (is_mixed or all(len(x) == 1 for x in rows)):
    rows = [' '.join(x).split() for x in rows]
    layout = layout._replace(delimiter=' ', quote='', escapes=False)
  return head._replace(rows=rows, layout=layout)


def columns(file: pathlib.Path, rows: Rows, sign: str) -> str:
  """Returns the `data.columns` that fits rows without a header.

  `sign` is between their cells, ' ' for white space. Raises a `UserError` if
  none fits, or several do.
  """
  widths = {len(x) for x in rows}
  if sign != ' ' and 2 * sum(' ' in x[0] for x in rows) >= len(rows):
    raise errors.UserError(
      f'{file} has {rows[0][0][:60]!r} before the first {sign!r}: give '
      f'--config.data.columns={PAIRS} if that is the name of a user, or write '
      'the same sign between all names'
    )
  if widths == {2}:
    return _of_pairs(file, rows, sign)
  if len(widths) > 1:
    if len(rows) > 2 and all(x[0] == str(len(x) - 1) for x in rows):
      raise errors.UserError(
        f'{file} has lines that begin with the number of their items, as '
        "CiteULike's do; put users there (awk '{$1 = NR; print}')"
      )
    _refuse_amounts(file, rows)
    return LISTS
  (width,) = widths
  if width < 2:
    raise errors.UserError(
      f'{file} has no line `user item item ...`: one cell in each, such as '
      f'{rows[0][0][:60]!r}; give a file of users and their items'
    )
  by_column = [list(x) for x in zip(*rows, strict=True)]
  kinds = ['', _amount(by_column[1], by_column[2])]
  kinds += [_what(x, by_column[1]) for x in by_column[2:]]
  if kinds == ['', '', 'times']:
    return TIMED
  if any(kinds):
    raise errors.UserError(_refusal(file, by_column, kinds=kinds))
  if len(rows) >= max(_ENOUGH_ROWS, 2 * len({*by_column[0]})):
    raise errors.UserError(
      f'{file} has {width} columns and no header, and lines of the same user '
      'again and again; say what columns are, such as --config.data.columns='
      f"'{PAIRS},rating>=4' (in quotes), or give {LISTS} if they are lists"
    )
  return LISTS


def _of_pairs(file, rows, sign):
  """Of rows with two cells."""
  items = [x[1] for x in rows]
  if kind := _numeric(items):
    if kind in ('decimals', 'times'):
      raise errors.UserError(
        f'{file} has {kind} such as {items[0]} where items would be; give '
        f'--config.data.columns={PAIRS} if they are items, or another file'
      )
  num_lists = sum(bool(re.search(r'[^,\s],[^,\s]', x)) for x in items)
  if sign != ',' and num_lists:
    return LISTS
  if sign == '\t' and any(' ' in x or ',' in x for x in items):
    raise errors.UserError(
      f'{file} has {max(items, key=len)[:60]!r} behind a tab: give '
      f'--config.data.columns={PAIRS} if that is the name of an item, or '
      f'{LISTS} if it is several items'
    )
  return PAIRS


def _refuse_amounts(file, rows):
  """Raises a `UserError` for lists with what is no item in them."""
  items = [y for x in rows for y in x[1:]]
  kinds = {
    'decimals': [x for x in items if _DECIMAL.fullmatch(x)],
    'times': [x for x in items if _is_time(x)],
    'items with ratings': [x for x in items if _RATED.fullmatch(x)],
  }
  for kind, found in kinds.items():
    share = len(found) / max(1, len(items))
    if share > 0.05 and (kind != 'times' or share < 0.9):
      raise errors.UserError(
        f'{file} has {kind} such as {found[0]} where items would be; give '
        f'--config.data.columns={LISTS} if they are items, or lines of users '
        'and items alone'
      )
  for first in (2, 3):  # ratings behind items, or in the third column
    step = 2 if first == 2 else 1
    second = [y for x in rows for y in x[1 : None if step == 2 else 2 : step]]
    third = [y for x in rows for y in x[2 : None if step == 2 else 3 : step]]
    if len(third) >= _ENOUGH_ROWS and (kind := _amount(third, second)):
      raise errors.UserError(
        f'{file} has {kind} such as {third[0]} behind items; give '
        f'--config.data.columns={LISTS} if they are items, or say what columns '
        f"are, such as '{PAIRS},rating>=4' (in quotes)"
      )


def _is_time(text):
  if _DATE.fullmatch(text):
    return True
  if not re.fullmatch(r'\d{9,13}(\.\d+)?', text):
    return False
  return any(low < float(text) < high for low, high in _SECONDS)


def _numeric(values: Sequence[str]) -> str:
  """What kind of numbers all values are, 'numbers' if of no other; or ''."""
  if all(map(_is_time, values)):
    return 'times'
  if not all(map(tables.is_number, values)):
    return ''
  numbers = np.array(values, np.float64)
  distinct = np.unique(numbers)
  is_half = (2 * numbers == np.floor(2 * numbers)).all()
  if is_half and numbers.min() >= -10 and numbers.max() <= 10:
    is_flag = any({*distinct} <= x for x in ({0, 1}, {-1, 1}))
    return 'labels' if is_flag else 'ratings'
  if any(map(_DECIMAL.fullmatch, values)):
    return 'decimals'
  return 'numbers'


def kind_of(values: Sequence[str]) -> str:
  """Whether a column has 'ratings' or 'labels', or ''."""
  values = [x for x in values if x]
  kind = _numeric(values) if len(values) >= _ENOUGH_ROWS else ''
  is_any = kind in ('ratings', 'labels') and len({*values}) > 1
  return kind if is_any and len({*values}) <= _MOST_RATINGS else ''


def _amount(values: Sequence[str], others: Sequence[str]) -> str:
  """The kind of numbers of a column where items have another; or ''."""
  kind, other = _numeric(values), _numeric(others)
  return kind if kind != other and (kind != 'numbers' or not other) else ''


def _what(values: Sequence[str], items: Sequence[str]) -> str:
  """What a column has that is not as another, of items; or ''."""
  num, num_items = len({*values}), len({*items})
  kind = _amount(values, items)
  if num == 1 and len(values) >= _ENOUGH_ROWS and kind != 'times':
    return 'one value'
  if kind:
    return kind
  if len(values) > 2 and not {*values} & {*items}:
    kind = 'values of another kind'
  if len(values) < _ENOUGH_ROWS:
    return kind
  if num <= _MOST_RATINGS and 4 * num <= num_items:
    return 'few values'
  if _numeric(values) and num_items < num == len(values):
    if (np.diff(np.array(values, np.float64)) > 0).all():
      return 'rising numbers'
  return kind


def _refusal(file, by_column, kinds):
  """Why columns are refused, with the setting to give."""
  first = _amount(by_column[0], by_column[1])
  is_sorted = [*by_column[0]] == sorted(by_column[0])
  if first == 'times' or (first in ('ratings', 'labels') and not is_sorted):
    kinds = [first, *kinds[1:]]
  i = next(i for i, x in enumerate(kinds) if x)
  return (
    f'{file} has {len(kinds)} columns and no header, and {kinds[i]} such as '
    f'{by_column[i][0]} in column {i + 1}; say what they are, such as '
    f"--config.data.columns='{_suggested(by_column, kinds)}' (in quotes), or "
    f'{LISTS} if each line is a user and several items'
  )


def _suggested(by_column, kinds):
  """A likely `data.columns`."""
  names = []
  for values, kind in zip(by_column, kinds, strict=True):
    name = {
      'times': 'time', 'labels': 'label', 'numbers': 'count', '': '',
      'values of another kind': '',
    }.get(kind, '-')  # fmt: skip
    if kind == 'ratings':
      name = f'rating>={1.6 * max(map(float, values)) // 1 / 2:g}'
    names.append(name)
  for role in 'user', 'item':
    empty = '' if '' in names else '-'
    if empty in names:
      names[names.index(empty)] = role
  return ','.join(x or '-' for x in names)
