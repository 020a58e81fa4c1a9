"""What columns of interactions are, by the first rows, where none has a name.

Lines may be lists, `user item item ...`, or a table: a user, an item, and what
is no item, such as a rating or a time. Where all lines have as many cells, a
table shows in columns that have nothing in common. It is refused, as the
columns could only be guessed, but for users, items and times.
"""

import collections
import pathlib
import re
from collections.abc import Callable, Sequence

import numpy as np

from jaxemb import errors
from jaxemb.io import columns as columns_lib
from jaxemb.io import roles, tables

PAIRS, TIMED, LISTS = 'user,item', 'user,item,time', 'user,items'
# What labels are written as.
FLAGS = {'true': 1, 'yes': 1, 't': 1, 'y': 1} | {
  'false': 0, 'no': 0, 'f': 0, 'n': 0
}  # fmt: skip
_NUM_ROWS = 2000
_ENOUGH_ROWS = 20  # to tell by their number
_MOST_RATINGS = 11  # different ones
_MOST_GRADE = 100
_DATE = re.compile(r'\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?')
_SECONDS = (6e8, 4e9), (6e11, 4e12)  # since 1970, or milliseconds
_DECIMAL = re.compile(r'-?\d*\.(?:(?![1-9])\d)*[1-9]\d*')
_LIST = re.compile(r'\d+(\s*[|;,]\s*\d+|\s+\d+)+|[^|]+(\|[^|]+)+')
_COMMAS = re.compile(r'-?\d+,\d+')
# Names of columns of numbers that grade nothing.
_NO_GRADE = re.compile(
  r'[a-z]I[dD]s?$|(?i:(^|[\W_])(ids?|key|code|index|idx|no|nr|num|number|rank'
  r'|position|price|age|year|month|week|day|hour|row|fold|split)$|^unnamed|^$)'
)

Rows = Sequence[Sequence[str]]


def sample(
  file: pathlib.Path, is_header: Callable[[Rows], bool]
) -> tables.Head:
  """Reads the first rows of a file, but for comments at its head.

  A last one may be a header.

  Raises a `UserError` if there is none.
  """
  head = tables.head(file, num_rows=_NUM_ROWS, is_header=is_header)
  rows, layout = [x for x in head.rows if any(x)], head.layout
  if not rows:
    raise errors.UserError(f'{file} has no line `user item item ...`')
  # A line alone has spaces, and no tab before its end: both are white space.
  is_mixed = layout.delimiter == '\t' and any(
    ' ' in x[0] and not any(x[1:]) for x in rows
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
  while all(len(x) > 2 and not x[-1].strip() for x in rows):
    rows = [x[:-1] for x in rows]  # delimiters at the ends of lines
  widths = {len(x) for x in rows}
  if max(widths) < 2:
    raise errors.UserError(
      f'{file} has no line `user item item ...`: one cell in each, such as '
      f'{rows[0][0][:60]!r}; give a file of users and their items'
    )
  first = rows[0][0]
  if sign != ' ' and 2 * sum(' ' in x[0] for x in rows) >= len(rows):
    raise _refusal(file, f'{first[:60]!r} before the first {sign!r}', PAIRS)
  if widths == {2}:
    return _of_pairs(file, [x[1] for x in rows], sign)
  if len(widths) == 1:
    return _of_table(file, [list(x) for x in zip(*rows, strict=True)])
  if len(rows) > 2 and all(x[0] == str(len(x) - 1) for x in rows):
    raise errors.UserError(
      f'{file} has lines that begin with the number of their items, as '
      "CiteULike's do; put users there (awk '{$1 = NR; print}')"
    )
  _refuse_amounts(file, [x[1:] for x in rows])
  return LISTS


def _refusal(file, what, suggested):
  """The error for a file without a header that has `what`."""
  return errors.UserError(
    f'{file} has no header, and {what}; say what its columns are, such as '
    f"--config.data.columns='{suggested}' (in quotes), or {LISTS} if each line "
    'is a user and items'
  )


def _of_pairs(file, items, sign):
  """Returns the columns of rows with a user and one more cell."""
  kind = _numeric(items)
  if kind in ('decimals', 'times'):
    raise _refusal(
      file, f'{kind} such as {items[0]} where items would be', PAIRS
    )
  if sign != ',' and any(re.search(r'[^,\s],[^,\s]', x) for x in items):
    return LISTS
  if columns_lib.list_sign(items).startswith('['):
    return LISTS
  is_open = sign == '\t' and any(' ' in x or ',' in x for x in items)
  if is_open or several(items):
    name = 'a tab' if sign == '\t' else repr(sign)
    what = f'{max(items, key=len)[:60]!r} behind {name}'
    raise _refusal(file, f'{what}, which may be a name or several', PAIRS)
  return PAIRS


def several(cells: Sequence[str]) -> str:
  """Returns a cell if most seem to be lists, else ''.

  Between commas and semicolons, which names have, if values change places.
  """
  lists = [x for x in cells if columns_lib.are_several(x) or _LIST.fullmatch(x)]
  for sign in ',;':
    signed = [x for x in cells if sign in x]
    places = collections.defaultdict(list)
    for cell in signed:
      for place, value in enumerate(cell.split(sign)):
        places[value.strip()].append(place)
    repeated = [x for x in places.values() if len(x) > 1]
    if 2 * sum(len({*x}) > 1 for x in repeated) > len(repeated):
      lists = max(lists, signed, key=len)
  return lists[0][:60] if 2 * len(lists) > len(cells) else ''


def refuse_signs(file: pathlib.Path, rows: Rows, sign: str) -> None:
  """Raises a `UserError` for brackets around cells, or colons behind users."""
  items = {y for x in rows for y in x[1:]} | {''}
  heads = [x[0].partition(':') for x in rows]
  num_items = sum(x[2] in items for x in heads)
  if all(x[1] for x in heads) and 2 * num_items > len(rows):
    sign = sign.replace('\t', '\\t')
    raise errors.UserError(
      f'{file} has colons behind users, such as {rows[0][0][:60]!r}; write '
      f"another sign (sed 's/: */{sign}/')"
    )
  is_list = columns_lib.are_several
  if all(
    len(x) == 2 and is_list(x[1]) == x[1].endswith((']', ')', '}'))
    for x in rows
  ):
    return
  lines = [' '.join(x) for x in rows]
  for cells in lines, [x.partition(' ')[2] for x in lines]:
    if 2 * sum(map(is_list, cells)) > len(rows):
      raise errors.UserError(
        f'{file} has brackets, such as {cells[0][:60]!r}; remove them, such as '
        'by tr -d "[](){}"'
      )


def _of_table(file, by_column):
  """Returns the columns of rows with as many cells each, three or more."""
  users, items, *others = by_column
  kinds = ['', _amount(items, others[0]), *(_unlike(x, items) for x in others)]
  if kinds == ['', '', 'times']:
    return TIMED
  if any(kinds):
    is_sorted = users == sorted(users)
    first = _amount(users, items)
    if first == 'times' or (first in ('ratings', 'labels') and not is_sorted):
      kinds[0] = first
    i = next(i for i, x in enumerate(kinds) if x)
    what = f'{kinds[i]} such as {by_column[i][0]} in column {i + 1}'
    raise _refusal(file, what, _suggested(by_column, kinds))
  if len(users) >= max(_ENOUGH_ROWS, 2 * len({*users})):
    what = 'lines of the same user again and again'
    raise _refusal(file, what, f'{PAIRS},rating>=4')
  return LISTS


def _refuse_amounts(file, lists):
  """Raises a `UserError` for lists with what is no item in them."""
  items = [y for x in lists for y in x]
  kinds = {
    'decimals': [x for x in items if _DECIMAL.fullmatch(x)],
    'times': [x for x in items if _is_time(x)],
    'items with ratings': [x for x in items if re.fullmatch(r'.+:[\d.]+', x)],
  }
  for kind, alike in kinds.items():
    share = len(alike) / max(1, len(items))
    if share > 0.05 and (kind != 'times' or share < 0.9):
      what = f'{kind} such as {alike[0]} where items would be'
      raise _refusal(file, what, f'{PAIRS},-')
  for step, last in (2, None), (1, 2):  # behind each item, or the first
    before = [y for x in lists for y in x[0 : last and 1 : step]]
    behind = [y for x in lists for y in x[1:last:step]]
    if len(behind) >= _ENOUGH_ROWS and (kind := _amount(behind, before)):
      what = f'{kind} such as {behind[0]} behind items'
      raise _refusal(file, what, f'{PAIRS},rating>=4')


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
  if not all(map(roles.is_number, values)):
    return ''
  numbers = np.array(values, np.float64)
  is_half = (2 * numbers == np.floor(2 * numbers)).all()
  if is_half and numbers.min() >= -10 and numbers.max() <= 10:
    is_flag = any({*numbers} <= x for x in ({0, 1}, {-1, 1}))
    return 'labels' if is_flag else 'ratings'
  is_decimal = any(map(_DECIMAL.fullmatch, values))
  return 'decimals' if is_decimal else 'numbers'


def _are_flags(values):
  words = {x.lower() for x in values}
  return len(words) > 1 and words <= {*FLAGS}


def grade(name: str, values: Sequence[str]) -> str:
  """Returns 'rating' or 'label' if a column of an unknown name may be one.

  One of numbers up to 100, or of words such as yes and no, that differ.
  """
  values = [x for x in values if x.lower() not in columns_lib.MISSING]
  if _NO_GRADE.search(name) or len({*values}) < 2:
    return ''
  if _are_flags(values):
    return 'label'
  if all(map(_COMMAS.fullmatch, values)):
    values = [x.replace(',', '.') for x in values]
  kind = _numeric(values)
  if kind in ('numbers', 'decimals'):
    numbers = np.abs(np.array(values, np.float64))
    return 'rating' if numbers.max() <= _MOST_GRADE else ''
  return {'ratings': 'rating', 'labels': 'label'}.get(kind, '')


def _amount(values: Sequence[str], others: Sequence[str]) -> str:
  """The kind of numbers of a column where items have another; or ''."""
  kind, other = _numeric(values), _numeric(others)
  return kind if kind != other and (kind != 'numbers' or not other) else ''


def _unlike(values: Sequence[str], items: Sequence[str]) -> str:
  """What a column has that one of items has not; or ''."""
  num, num_items = len({*values}), len({*items})
  if _are_flags(values):
    return 'labels'
  kind, is_enough = _amount(values, items), len(values) >= _ENOUGH_ROWS
  if num == 1 and is_enough and kind != 'times':
    return 'one value'
  if kind:
    return kind
  if is_enough:
    if num <= _MOST_RATINGS and 4 * num <= num_items:
      return 'few values'
    if _numeric(values) and num_items < num == len(values):
      if (np.diff(np.array(values, np.float64)) > 0).all():
        return 'rising numbers'
  is_apart = len(values) > 2 and not {*values} & {*items}
  return 'values of another kind' if is_apart else ''


def _suggested(by_column, kinds):
  """A likely `data.columns`."""
  roles = {'times': 'time', 'labels': 'label', 'numbers': 'count'}
  names = []
  for values, kind in zip(by_column, kinds, strict=True):
    if kind == 'ratings':
      names.append(f'rating>={threshold(values)}')
    else:
      is_free = kind in ('', 'values of another kind')
      names.append('' if is_free else roles.get(kind, '-'))
  for role in 'user', 'item':
    free = '' if '' in names else '-'
    if free in names:
      names[names.index(free)] = role
  return ','.join(x or '-' for x in names)


def threshold(ratings: Sequence[str]) -> str:
  """Returns four fifths of the highest of some ratings, to a half."""
  texts = [x.replace(',', '.') for x in ratings]
  numbers = [float(x) for x in texts if re.fullmatch(r'-?(?:\d*\.)?\d+', x)]
  highest = max(numbers, default=5)
  return f'{1.6 * highest // 1 / 2:g}'
