"""Columns of tables as names or as numbers.

The same value has the same name wherever it comes from: text of a file, Arrow,
pandas, NumPy or a list. A whole number is named as an integer (110.0 is 110:
programs write the same ids so where one is missing), a flag is true or false,
a time is as pandas writes it, and '' is a missing value.
"""

import ast
import contextlib
import datetime
import functools
import json
import numbers as numbers_lib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np

from jaxemb import errors
from jaxemb.io import keys

# Those that pandas reads as missing wherever they are.
_NONE = (
  'NA', 'N/A', 'n/a', 'NaN', 'nan', 'NULL', 'null', 'None', '<NA>', '#N/A',
  '#NA',
)  # fmt: skip
# What stands for a number that is missing, in lower case.
MISSING = (
  *dict.fromkeys(x.lower() for x in _NONE), '', '?', '\\n', '-nan',
  '#n/a n/a', '1.#ind', '-1.#ind', '1.#qnan', '-1.#qnan',
  '#div/0!', '#value!', '#ref!', '#num!', '#name?', '#null!',
)  # fmt: skip
# Values of Python, NumPy and pandas that are missing.
_NO_VALUES = 'None', 'nan', 'NaN', 'NaT', '<NA>'
# With which short strings begin that may be missing values.
_BEGINS = np.isin(np.arange(256), [*b'Nn<#'])
_TIMES = (
  datetime.date, datetime.time, datetime.timedelta, np.datetime64,
  np.timedelta64,
)  # fmt: skip
_CURRENCIES = '$\u20ac\u00a3\u00a5'
_SPACES = r'\x{00a0}\x{2009}\x{202f}'
_SIGNS = rf'^\s*[{_CURRENCIES}]?\s*|\s*[%{_CURRENCIES}]?\s*$|[{_SPACES}]'
# What may be between thousands.
_THOUSANDS = {',': "[.' \u2019]", '.': "[,' \u2019]"}
# A number with signs around it, which may be none.
_NEARLY = (
  r"^[^\w\s]{{0,2}}\s?(\d+|\d{{1,3}}([.,' ]\d{{3}})+)([.,]\d+){}"
  r'\s?[^\w\s]{{0,2}}$'
)
_MIN_FRACTIONS = 10
_TENS = 10.0 ** np.arange(20)
# Lists in a cell, as JSON, Python, NumPy or PostgreSQL write them.
_BRACKETED = re.compile(
  r'\s*((?:frozen)?set(?=\())?[\[({](.*)[\])}]\s*', re.DOTALL
)
_QUOTED = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''
_STRING = re.compile(_QUOTED, re.DOTALL)
_SCALAR = re.compile(rf'\bnp\.\w+\(({_QUOTED}|[^()]*)\)', re.DOTALL)


def plain(column: Any) -> Any:
  """Returns one Arrow array of a column in pieces or with a dictionary."""
  import pyarrow as pa
  import pyarrow.compute as pc

  if isinstance(column, pa.ChunkedArray):
    column = column.combine_chunks()
  if isinstance(column, pa.ExtensionArray):
    is_uuid = column.type.extension_name == 'arrow.uuid'
    texts = [x and str(x) for x in column.to_pylist()] if is_uuid else ()
    column = pa.array(texts, pa.large_string()) if is_uuid else column.storage
  if pa.types.is_dictionary(column.type):
    values = plain(column.dictionary)  # of polars they cannot be decoded
    column = pa.DictionaryArray.from_arrays(column.indices, values)
    column = column.dictionary_decode()
  if pa.types.is_string_view(column.type):
    column = pc.cast(column, pa.large_string())
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
  elif pa.types.is_timestamp(kind) or pa.types.is_time(kind):
    column = _time_names(column)
  elif pa.types.is_duration(kind):
    column = _duration_names(column)
  elif pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind):
    column = pc.cast(column, pa.large_binary())
  elif not pa.types.is_large_binary(kind):
    column = pc.cast(column, pa.large_string())
  if column.null_count:
    column = pc.fill_null(column, pa.scalar('', column.type))
  return keys.Text.of(column).names()


def name(value: Any) -> str:
  """Returns the name of a value of Python, as it has in a column; '' = none."""
  if isinstance(value, str):
    return value
  text = str(value)
  if text in _NO_VALUES:
    return ''
  if isinstance(value, bool | np.bool_):
    return text.lower()
  if isinstance(value, _TIMES):
    return names(array([value])).strings()[0].as_py()
  is_whole = isinstance(value, numbers_lib.Real) and value == value // 1
  return str(int(value)) if is_whole and abs(value) < 2**63 else text


def _float_names(column):
  """Returns strings of floats, as of integers where they are whole."""
  import pyarrow as pa
  import pyarrow.compute as pc

  numbers = column.to_numpy(zero_copy_only=False)
  sizes = np.abs(numbers, dtype=np.float64)
  is_whole = (np.floor(numbers) == numbers) & (sizes < 2.0**63)
  whole = np.where(is_whole, numbers, 0).astype(np.int64)
  names = pc.cast(pa.array(whole), pa.large_string())
  if is_whole.all():
    return names
  numbers, sizes = numbers[~is_whole], sizes[~is_whole]
  # Where Arrow writes what Python does, which takes ten times as long.
  most = {2: 0, 4: 1e6, 8: 1e10}[numbers.itemsize]
  is_short = (sizes >= 1e-3) & (sizes < most)
  others = pc.cast(pa.array(np.where(is_short, numbers, 0)), names.type)
  long = [None if x != x else str(x) for x in numbers[~is_short]]
  others = pc.replace_with_mask(others, ~is_short, pa.array(long, names.type))
  return pc.replace_with_mask(names, ~is_whole, others)


def _time_names(column):
  """Returns strings of times, as pandas writes them."""
  import pyarrow as pa
  import pyarrow.compute as pc

  column = pc.cast(column, pa.large_string())
  for pattern, text in (
    (r'(\.\d+?)(000)+([Z+-]|$)', r'\1\3'),
    (r'\.000([Z+-]|$)', r'\1'),
    ('Z$', '+00:00'),
    (r'([+-]\d\d)(\d\d)$', r'\1:\2'),
  ):
    column = pc.replace_substring_regex(column, pattern, text)
  return column


def _duration_names(column):
  """Returns strings of durations, such as 1 days 00:30:00, as pandas' are."""
  import pyarrow as pa
  import pyarrow.compute as pc

  micros = pc.cast(column, pa.duration('us'), safe=False)
  micros = pc.fill_null(pc.cast(micros, pa.int64()), 0).to_numpy()
  days, rest = np.divmod(micros, 86_400_000_000)
  times = _time_names(pc.cast(pa.array(rest), pa.time64('us')))
  ends = np.where(days < 0, ' days +', ' days ')
  days = pc.cast(pa.array(days), times.type)
  names = pc.binary_join_element_wise(days, times, pa.array(ends, times.type))
  return pc.if_else(pc.is_null(column), None, names)


def values(column: Any) -> keys.Text:
  """Returns `names` of values: what programs write for missing ones is ''."""
  if isinstance(column, keys.Text) and column.are_values():
    return column
  data, starts, stops = text = names(column)
  sizes = stops - starts
  rows = np.flatnonzero((sizes >= 2) & (sizes <= 5))
  rows = rows[_BEGINS[data[starts[rows]]]]
  rows = rows[np.isin(text.select(rows).hashes(), _hashes_of_none())]
  if len(rows):
    stops = stops.copy()
    stops[rows] = starts[rows]
  return keys.Text(data, starts, stops)


@functools.cache
def _hashes_of_none():
  import pyarrow as pa

  return keys.Text.of(pa.array(_NONE)).hashes()


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
    strings = pc.replace_substring(strings, '\N{MINUS SIGN}', '-')
    strings = _with_points(strings, decimal) if decimal else strings
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


def _with_points(strings, decimal):
  """Returns numbers with points alone; raises a `ValueError` for others.

  What has a point elsewhere, such as 3.45 beside 3.456, is not read by half.
  """
  import pyarrow as pa
  import pyarrow.compute as pc

  others = strings.filter(pc.invert(_are_numbers(strings, decimal)))
  if len(others):
    raise pa.ArrowInvalid(
      f'{others[0].as_py()!r} is no number with {decimal!r}'
    )
  bare = pc.replace_substring_regex(strings, _SIGNS, '')
  bare = pc.replace_substring_regex(bare, _THOUSANDS[decimal], '')
  return pc.replace_substring(bare, decimal, '.')


def _are_numbers(strings, decimal):
  """Returns an Arrow array, whether strings are numbers; null ones are."""
  import pyarrow.compute as pc

  form = r'\d+\.?\d*|\.\d+'
  if decimal:
    strings = pc.replace_substring_regex(strings, _SIGNS, '')
    sign = _THOUSANDS[decimal]
    form = rf'\d+|\d{{1,3}}({sign}\d{{2,3}})*{sign}\d{{3}}'
    form = rf'({form})([{decimal}]\d*)?|[{decimal}]\d+'
  form = rf'(?i)^[+-]?(({form})(e[+-]?\d+)?|inf(inity)?)$'
  return pc.fill_null(pc.match_substring_regex(strings, form), True)


def list_sign(cells: Sequence[str], signs: str = '|;, ') -> str:
  """Returns what is between the values of cells with several, as '|'.

  Before it '[' if most cells have brackets around; '' if they have one each. Of
  `signs` the one in most cells, white space if nearly none has another.
  """
  cells = [x.strip() for x in cells if x.strip().lower() not in MISSING]
  brackets = ''
  lists = [x for x in cells if are_several(x)]
  # (x5) may be a name, where no other cell is such as (x5, x6).
  is_any = any(x[0] in '[{' or re.search(r'[\s,;|\'"]', x) for x in lists)
  if is_any and 2 * len(lists) > len(cells):
    cells = [_without_strings(x[1:-1]) for x in cells]
    brackets, signs = '[', '|;, '
  nums = {x: sum(x in y for y in cells) for x in signs}
  num_spaced = nums.pop(' ', 0)
  sign = max(nums, key=nums.__getitem__, default='')
  if not sign or nums[sign] <= num_spaced // 10:
    sign = ' ' if num_spaced else ','[: len(brackets)]
  return brackets + sign


def _without_strings(text):
  """Replaces strings in quotes by x, in linear time."""
  pieces, start, position, quotes = [], 0, 0, '"\''
  while quotes and (quote := re.compile(f'[{quotes}]').search(text, position)):
    position = quote.end()
    if string := _STRING.match(text, quote.start()):
      pieces += text[start : quote.start()], 'x'
      start = position = string.end()
    else:  # no later quote of this kind is closed
      quotes = quotes.replace(quote[0], '')
  return ''.join(pieces) + text[start:]


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
  element = _element(between)
  lists = [_elements(x, element) for x in strings.to_pylist()]
  return pa.array(lists, pa.large_list(pa.large_string()))


def _element(between):
  """Returns the pattern of a value, in quotes or bare, and what is behind it.

  A bare value begins with a quote only behind white space. Every alternative
  fails at once where white space remains before it: time is linear.
  """
  char = rf'[^{between}"()\[\]{{}}]'
  bare = rf'(?![\s\'"]){char}++|\s\'{char}*+'
  return re.compile(
    rf'\s*(?:u?({_QUOTED})|({bare})|(?!\s))\s*(?:{between}|\Z)', re.DOTALL
  )


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
  import pyarrow.compute as pc

  if not len(strings):
    return []
  return [x for x in ',.' if pc.all(_are_numbers(strings, x)).as_py()]


def odd_number(strings: Any, decimal: str) -> str:
  """Returns a string that is no number, if most of the others nearly are.

  '' = none, or they have no fractions, as ids have none.
  """
  import pyarrow.compute as pc

  num_nearly, num_fractions = (
    pc.sum(pc.match_substring_regex(strings, x)).as_py() or 0
    for x in (_NEARLY.format('?'), _NEARLY.format(''))
  )
  if num_fractions < _MIN_FRACTIONS or num_nearly <= len(strings) / 2:
    return ''
  signs = dict.fromkeys([decimal, '', ',', '.'])
  are_numbers = [_are_numbers(strings, x) for x in signs]
  most = max(are_numbers, key=lambda x: pc.sum(x).as_py())
  others = strings.filter(pc.invert(most))
  odd = others[0].as_py() if len(others) else ''
  # Versions and dates are no numbers that went wrong.
  is_other = re.fullmatch(r'\d+([.-]\d+){2,}|\d+\.\d+[a-z]', odd)
  return '' if is_other else odd


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
    if any(x is not None for x in data.index.names):  # which it writes, too
      data = data.reset_index(allow_duplicates=True)
    columns = [*data.items()]
  elif hasattr(data, '__arrow_c_stream__') and not hasattr(data, 'to_frame'):
    table = pa.table(data)
    names = table.column_names  # views of polars are not written as Parquet
    return pa.Table.from_arrays([plain(x) for x in table.columns], names)
  elif isinstance(data, np.ndarray) and data.dtype.names:
    columns = [(x, data[x]) for x in data.dtype.names]
  elif _are_rows(data):
    names = dict.fromkeys(y for x in data for y in x)
    columns = [(k, [x.get(k) for x in data]) for k in names]
  elif isinstance(data, Mapping):
    columns = [*data.items()]
  else:
    raise errors.UserError(
      f'{type(data).__name__} is no table; give a path, a table of pyarrow, '
      'pandas or polars, or lists by column'
    )
  arrays = [_column(str(x), y) for x, y in columns]
  sizes = {str(x): len(y) for (x, _), y in zip(columns, arrays, strict=True)}
  if len({*sizes.values()}) > 1:
    raise errors.UserError(
      f'the columns have {", ".join(f"{v} ({k})" for k, v in sizes.items())} '
      'values; give as many in each'
    )
  return pa.Table.from_arrays(arrays, [str(x) for x, _ in columns])


def _are_rows(data):
  """Whether data is a list of dicts."""
  is_list = isinstance(data, (list, tuple)) and len(data)
  return is_list and all(isinstance(x, Mapping) for x in data)


def _column(name, values):
  """Returns `array` of a column; raises a `UserError` if it is none."""
  import pyarrow as pa

  is_one = isinstance(values, (str, bytes)) or not hasattr(values, '__iter__')
  if is_one or isinstance(values, (Mapping, set, frozenset)):
    raise errors.UserError(
      f'column {name} is {str(values)[:60]!r}, which is no list; give a list '
      f"of values, {{'{name}': [...]}}, or a list of dicts"
    )
  try:
    return array(values)
  except (pa.ArrowException, NotImplementedError, TypeError) as error:
    raise errors.UserError(
      f'column {name} cannot be read: {errors.one_line(error)}; give names, '
      'numbers or lists of them'
    ) from error


def array(values: Any) -> Any:
  """Returns an Arrow array of a column of Python; of mixed objects, strings."""
  import pyarrow as pa

  kind = getattr(values, 'dtype', None)
  if isinstance(kind, np.dtype) and not kind.isnative:
    values = values.astype(kind.newbyteorder('='))
  elif str(kind).startswith('Sparse'):
    values = values.sparse.to_dense()
  if getattr(values, 'ndim', 1) != 1 or not hasattr(values, '__len__'):
    values = list(values)
  try:
    column = pa.array(values, from_pandas=True)
    if not isinstance(column, pa.ExtensionArray):
      return column
  except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
    pass
  values = list(values)  # of pandas' periods, too
  if any(isinstance(x, (list, tuple, Mapping, np.ndarray)) for x in values):
    raise TypeError('it has lists beside other values')
  return pa.array([name(x) or None for x in values], pa.large_string())
