"""Columns of tables as names or as numbers.

The same value has the same name wherever it comes from: text of a file, Arrow,
pandas, NumPy or a list. A whole number is named as an integer (110.0 is 110:
programs write the same ids so where one is missing), and '' is a missing value.
"""

import ast
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np

from jaxemb import errors
from jaxemb.io import keys

# What stands for a value that is missing, in lower case.
MISSING = '', '?', 'na', 'n/a', 'nan', 'none', 'null', '\\n', '<na>'
# Those that pandas reads as missing wherever they are, and booleans.
_NONE = 'NA', 'N/A', 'n/a', 'NaN', 'nan', 'NULL', 'null', 'None', '<NA>'
_FLAGS = 'True', 'TRUE', 'False', 'FALSE'
# With which these begin.
_BEGINS = np.isin(np.arange(256), [*b'FNTn<'])
_CURRENCIES = '$\u20ac\u00a3\u00a5'
_SIGNS = (
  rf'^\s*[{_CURRENCIES}]?\s*|\s*[%{_CURRENCIES}]?\s*$|[\x{{00a0}}\x{{202f}}]'
)
_TENS = 10.0 ** np.arange(20)
# Lists in a cell, as JSON, Python, NumPy or PostgreSQL write them.
_BRACKETED = re.compile(
  r'\s*((?:frozen)?set(?=\())?[\[({](.*)[\])}]\s*', re.DOTALL
)
_QUOTED = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''
_SCALAR = re.compile(rf'\bnp\.\w+\(({_QUOTED}|[^()]*)\)', re.DOTALL)


def plain(column: Any) -> Any:
  """Returns one Arrow array of a column in pieces or with a dictionary."""
  import pyarrow as pa

  if isinstance(column, pa.ChunkedArray):
    column = column.combine_chunks()
  if isinstance(column, pa.ExtensionArray):
    column = column.storage
  if pa.types.is_dictionary(column.type):
    column = column.dictionary_decode()
  return column


def is_text(kind: Any) -> bool:
  """Whether an Arrow type is one of strings."""
  import pyarrow as pa

  is_any = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
  return any(x(kind) for x in is_any)


def is_list(kind: Any) -> bool:
  """Whether an Arrow type is one of lists, of any length or of one."""
  import pyarrow as pa

  return (
    pa.types.is_list(kind)
    or pa.types.is_large_list(kind)
    or pa.types.is_fixed_size_list(kind)
  )


def is_nested(kind: Any) -> bool:
  """Whether an Arrow type has more in it than values, or lists of them."""
  import pyarrow as pa

  kind = kind.value_type if is_list(kind) else kind
  return pa.types.is_nested(kind) or pa.types.is_union(kind)


def names(column: Any) -> keys.Text:
  """Returns the strings of a column of text or of Arrow."""
  import pyarrow as pa
  import pyarrow.compute as pc

  if isinstance(column, keys.Text):
    return column.names()
  column = plain(column)
  kind = column.type
  if pa.types.is_floating(kind):
    column = _float_names(column)
  elif pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
    column = pc.cast(column, pa.large_binary())
  elif not pa.types.is_large_binary(kind):
    column = pc.cast(column, pa.large_string())
  if column.null_count:
    column = pc.fill_null(column, pa.scalar('', column.type))
  return keys.Text.of(column).names()


def _float_names(column):
  """Returns strings of floats, as of integers where they are whole."""
  import pyarrow as pa
  import pyarrow.compute as pc

  numbers = column.to_numpy(zero_copy_only=False)
  is_whole = (np.floor(numbers) == numbers) & (np.abs(numbers) < 2.0**63)
  whole = np.where(is_whole, numbers, 0).astype(np.int64)
  names = pc.cast(pa.array(whole), pa.large_string())
  if is_whole.all():
    return names
  others = [None if x != x else str(x) for x in numbers[~is_whole]]
  return pc.replace_with_mask(names, ~is_whole, pa.array(others, names.type))


def values(column: Any) -> keys.Text:
  """Returns `names` of values: what programs write for missing ones is ''.

  True and TRUE are as Arrow has them: true.
  """
  import pyarrow as pa
  import pyarrow.compute as pc

  if isinstance(column, keys.Text) and column.are_values():
    return column
  text = data, starts, stops = names(column)
  sizes = stops - starts
  rows = np.flatnonzero((sizes >= 2) & (sizes <= 5))
  rows = rows[_BEGINS[data[starts[rows]]]]
  if not len(rows):
    return text
  strings = text.strings(rows)
  is_none, is_flag = (
    pc.is_in(strings, pa.array(x, strings.type)).to_numpy(zero_copy_only=False)
    for x in (_NONE, _FLAGS)
  )
  if is_none.any():
    stops = stops.copy()
    stops[rows[is_none]] = starts[rows[is_none]]
  if is_flag.any():
    data, rows = data.copy(), rows[is_flag]
    for i in range(5):  # in small letters
      positions = starts[rows] + i
      data[positions[positions < stops[rows]]] |= 32
  return keys.Text(data, starts, stops)


def numbers(column: Any, decimal: str = '') -> np.ndarray:
  """Returns [n] float64, NaN for missing values and for infinite ones.

  Numbers in text may have the sign `decimal` before their fractions, the other
  one of comma and point between thousands, and signs of currencies; '' = a
  point, and none of these. Raises a `ValueError` for what is no number.
  """
  import pyarrow as pa
  import pyarrow.compute as pc

  if not isinstance(column, keys.Text):
    column = plain(column)
    if not is_text(column.type):
      try:
        column = pc.cast(column, pa.float64())
      except NotImplementedError as error:
        raise ValueError(f'they are of type {column.type}') from error
      out = np.array(column.to_numpy(zero_copy_only=False), np.float64)
      out[~np.isfinite(out)] = np.nan
      return out
    column = pc.fill_null(column.cast(pa.large_string()), '')
    column = keys.Text.of(column)
  out = np.empty(len(column.starts))
  hard = np.arange(len(out))
  if decimal != ',':
    hard = hard[: _read_numbers(*column, out, hard)]
  if len(hard):
    strings = column.strings(hard)
    strings = pc.if_else(is_missing(strings), None, strings)
    strings = pc.utf8_trim_whitespace(strings)
    strings = _decimal_points(strings, decimal) if decimal else strings
    rest = pc.cast(strings, pa.float64())
    out[hard] = rest.to_numpy(zero_copy_only=False)
  out[~np.isfinite(out)] = np.nan
  return out


def is_missing(strings: Any) -> Any:
  """Returns an Arrow array, whether each string stands for a missing value."""
  import pyarrow as pa
  import pyarrow.compute as pc

  lower = pc.utf8_lower(pc.utf8_trim_whitespace(strings))
  return pc.is_in(lower, pa.array(MISSING, strings.type))


def _decimal_points(strings, decimal):
  """Returns numbers with points alone; raises a `ValueError` for others.

  What has a point elsewhere, such as 3.45 beside 3.456, is not read by half.
  """
  import pyarrow as pa
  import pyarrow.compute as pc

  thousands = {',': "[.']", '.': "[,']"}[decimal]
  bare = pc.replace_substring_regex(strings, _SIGNS, '')
  form = (
    rf'^[+-]?(\d*|\d{{1,3}}({thousands}\d{{2,3}})*{thousands}\d{{3}})'
    rf'([{decimal}]\d*)?([eE][+-]?\d+)?$'
  )
  is_number = pc.fill_null(pc.match_substring_regex(bare, form), True)
  if others := strings.filter(pc.invert(is_number)).slice(0, 1).to_pylist():
    raise pa.ArrowInvalid(f'{others[0]!r} is no number with {decimal!r}')
  bare = pc.replace_substring_regex(bare, thousands, '')
  return pc.replace_substring(bare, decimal, '.')


def list_sign(cells: Sequence[str], signs: str = '|;, ') -> str:
  """Returns what is between the values of cells with several, as '|'.

  Before it '[' if most cells have brackets around; '' if they have one each. Of
  `signs` the one in most cells, white space if nearly none has another.
  """
  cells = [x.strip() for x in cells if x.strip().lower() not in MISSING]
  brackets = ''
  if 2 * sum(map(are_several, cells)) > len(cells):
    cells = [re.sub(_QUOTED, 'x', x[1:-1], flags=re.DOTALL) for x in cells]
    brackets, signs = '[', '|;, '
  nums = {x: sum(x in y for y in cells) for x in signs}
  num_spaced = nums.pop(' ', 0)
  sign = max(nums, key=nums.get, default='')
  if not sign or nums[sign] <= num_spaced // 10:
    sign = ' ' if num_spaced else ','[: len(brackets)]
  return brackets + sign


def are_several(cell: str) -> bool:
  """Whether a cell is a list in brackets."""
  return bool(_BRACKETED.fullmatch(cell))


def split_lists(column: Any, sign: str) -> Any:
  """Returns an Arrow array of lists of strings, which may have spaces around.

  `sign` is one of `list_sign`. Raises a `ValueError` for cells in brackets that
  are no lists of values.
  """
  import pyarrow as pa
  import pyarrow.compute as pc

  strings = pc.utf8_trim_whitespace(names(column).strings())
  if sign[:1] != '[':
    if sign.strip():
      return pc.split_pattern(strings, sign)
    return pc.split_pattern_regex(strings, r'\s+')
  between = r'\s' if sign[1] == ' ' else re.escape(sign[1])
  bare = rf'(?![\'"])[^{between}"()\[\]{{}}]+'
  element = re.compile(
    rf'\s*(?:u?({_QUOTED})|({bare})|)\s*(?:{between}|\Z)', re.DOTALL
  )
  lists = [_elements(x, element) for x in strings.to_pylist()]
  return pa.array(lists, pa.large_list(pa.large_string()))


def _elements(cell, element):
  """Returns the values of a cell, in brackets or alone."""
  if not (match := _BRACKETED.fullmatch(cell)):
    return [cell]
  is_set, inner = match.groups()
  if is_set and inner:
    return _elements(inner, element)
  inner, values, position = _SCALAR.sub(r'\1', inner).strip(), [], 0
  while position < len(inner):
    if not (match := element.match(inner, position)):
      raise ValueError(f'{cell[:80]!r} is no list of names or numbers')
    quoted, bare = match.groups()
    values.append(_unquoted(quoted) if quoted else bare)
    position = match.end()
  return values


def _unquoted(text):
  if '\\' not in text:
    return text[1:-1]
  with contextlib.suppress(ValueError):  # JSON
    return json.loads(text)
  try:
    return ast.literal_eval(text)
  except SyntaxError as error:
    raise ValueError(f'{text[:80]!r} cannot be read') from error


def likely_decimals(strings: Any) -> list[str]:
  """Returns the values of `decimal` with which all strings are numbers."""
  import pyarrow as pa
  import pyarrow.compute as pc

  fitting = []
  for decimal in ',.':
    with contextlib.suppress(pa.ArrowInvalid):
      pc.cast(_decimal_points(strings, decimal), pa.float64())
      fitting.append(decimal)
  return fitting if len(strings) else []


@numba.njit(nogil=True, cache=True)
def _read_numbers(data, starts, stops, out, hard):
  """Reads numbers as they are usually written; lists others, which it counts.

  Exact: digits and power of ten are below 2^53.
  """
  num_hard = 0
  for row in range(len(out)):
    i, stop = starts[row], stops[row]
    if i == stop:
      out[row] = np.nan
      continue
    is_negative = data[i] == 45
    i += is_negative
    whole = digits = behind = 0
    has_point = False
    while i < stop and digits <= 15:
      c = np.int64(data[i])
      if 48 <= c < 58:
        whole = 10 * whole + (c - 48)
        digits += 1
        behind += has_point
      elif c == 46 and not has_point:
        has_point = True
      else:
        break
      i += 1
    if i < stop or digits == 0 or digits > 15:
      hard[num_hard] = row
      num_hard += 1
      continue
    number = whole / _TENS[behind]
    out[row] = -number if is_negative else number
  return num_hard


def of(data: Any) -> Any:
  """Returns a `pyarrow.Table` of one, a table of pandas or polars, or a dict.

  Of anything that exports Arrow tables. Objects of several types in a column
  are strings. Raises a `UserError` for other data.
  """
  import pyarrow as pa

  if isinstance(data, pa.Table):
    return data
  if hasattr(data, 'iloc') and hasattr(data, 'columns'):  # pandas
    columns = [_array(x) for _, x in data.items()]
    return pa.Table.from_arrays(columns, [str(x) for x in data.columns])
  elif hasattr(data, '__arrow_c_stream__'):
    return pa.table(data)
  elif isinstance(data, np.ndarray) and data.dtype.names:
    data = {k: data[k] for k in data.dtype.names}
  elif (
    isinstance(data, (list, tuple)) and data and isinstance(data[0], Mapping)
  ):
    data = {
      k: [x.get(k) for x in data]
      for k in dict.fromkeys(y for x in data for y in x)
    }
  if not isinstance(data, Mapping):
    raise errors.UserError(
      f'{type(data).__name__} is no table; give a path, a table of pyarrow, '
      'pandas or polars, or lists by column'
    )
  return pa.table({str(k): _array(x) for k, x in data.items()})


def _array(values):
  """Returns an Arrow array of a column of Python."""
  import pyarrow as pa

  try:
    return pa.array(values, from_pandas=True)
  except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
    texts = [None if x is None or x != x else str(x) for x in values]
    return pa.array(texts, pa.large_string())
