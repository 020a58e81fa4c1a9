"""Columns of a log as arrays: hashes of categories, numbers and labels."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.clicks import schema as schema_lib
from jaxemb.io import keys
from jaxemb.io import tables as formats

_TRUE = '1', '+1', '1.0', 'true', 'True', 'yes'
_FALSE = '0', '0.0', 'false', 'False', 'no', '-1', '-1.0'


class Columns(NamedTuple):
  """Columns of a table of n rows."""

  # Of each field, [n] uint64 of values, and where they go: None, or for lists
  # (rows [n], columns [n]).
  hashes: list[tuple[np.ndarray, Any]]
  texts: list[keys.Text]  # of each field
  numbers: np.ndarray  # [n, numbers] float64, NaN = missing
  labels: np.ndarray  # [n] uint8
  num_cut: int  # values of lists that are left out


def read(
  table: formats.Table,
  schema: schema_lib.Schema,
  settings: Mapping[str, Any],
  has_labels: bool,
) -> Columns:
  """Reads the columns that a schema names, by the settings of `config.data`.

  Raises a `UserError` for a column that is missing, or a wrong label or number.
  """
  num_rows, columns = table.num_rows, table.columns
  for name in schema.columns[not has_labels :]:
    if name not in columns:
      what = ', the label,' if name == schema.label else ''
      raise errors.UserError(
        f'the column {name}{what} is missing; there are '
        f'{", ".join(list(columns)[:30])}'
      )
  labels = np.zeros(num_rows, np.uint8)
  if has_labels:
    labels = _labels(columns[schema.label], schema.label, settings['positive'])
  numbers = np.empty((num_rows, len(schema.numbers)))
  texts, num_cut = [], 0
  for i, name in enumerate(schema.numbers):
    column = _floats(columns[name], name)
    if settings['numbers'] == 'buckets':
      texts.append((keys.Text.of(_buckets(column)), None))
    else:
      numbers[:, i] = column
  for name in schema.categories:
    texts.append((_text(columns[name]), None))
  for name in schema.lists:
    values, cells, num = _lists(columns[name], settings)
    texts.append((values, cells))
    num_cut += num
  # Hashing frees Python for other threads.
  hashes = [(x.hashes(), cells) for x, cells in texts]
  if settings['numbers'] == 'buckets':
    numbers = numbers[:, :0]
  return Columns(
    hashes=hashes,
    texts=[x for x, _ in texts],
    numbers=numbers,
    labels=labels,
    num_cut=num_cut,
  )


def _plain(column):
  """Returns one array of a column in pieces or with a dictionary."""
  import pyarrow as pa

  if isinstance(column, pa.ChunkedArray):
    column = column.combine_chunks()
  is_dictionary = pa.types.is_dictionary(column.type)
  return column.dictionary_decode() if is_dictionary else column


def _is_text(column):
  import pyarrow as pa

  kind = column.type
  return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _text(column) -> keys.Text:
  """Returns strings, '' for missing values."""
  import pyarrow as pa
  import pyarrow.compute as pc

  if isinstance(column, keys.Text):
    return column
  column = _plain(column)
  if pa.types.is_floating(column.type):
    # 3.0 is 3, as where no value is missing.
    whole = pc.all(pc.equal(pc.floor(column), column)).as_py()
    column = column.cast(pa.int64()) if whole else column
  if not _is_text(column):
    column = column.cast(pa.large_string())
  if column.null_count:
    column = pc.fill_null(column, '')
  return keys.Text.of(column)


def _floats(column, name):
  """Returns [n] float64, NaN for missing values."""
  import pyarrow as pa
  import pyarrow.compute as pc

  if not isinstance(column, keys.Text):
    column = _plain(column)
  try:
    if isinstance(column, keys.Text) or _is_text(column):
      text = _text(column)
      numbers = np.empty(len(text.starts))
      hard = np.empty(len(numbers), np.int64)
      hard = hard[: _read_numbers(*text, numbers, hard)]
      if not len(hard):
        return numbers
      strings = pc.utf8_trim_whitespace(text.strings(hard))
      is_none = pc.is_in(
        pc.utf8_lower(strings), pa.array(schema_lib.MISSING, strings.type)
      )
      strings = pc.if_else(is_none, None, strings)
      rest = pc.cast(strings, pa.float64())
      numbers[hard] = rest.to_numpy(zero_copy_only=False)
    else:
      column = pc.cast(column, pa.float64())
      numbers = np.array(column.to_numpy(zero_copy_only=False), np.float64)
  except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
    raise errors.UserError(
      f'column {name} contains values that are not numbers: '
      f'{errors.one_line(error)}; name it in --config.data.categorical'
    ) from error
  numbers[~np.isfinite(numbers)] = np.nan
  return numbers


_TENS = 10.0 ** np.arange(20)


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


def _buckets(numbers):
  import pyarrow as pa

  logs = np.floor(np.log(np.maximum(numbers, 2)) ** 2)
  buckets = np.where(numbers > 2, logs, np.floor(numbers))
  is_missing = np.isnan(buckets)
  integers = pa.array(np.where(is_missing, 0, buckets).astype(np.int64))
  names = integers.cast(pa.large_string())
  if is_missing.any():
    import pyarrow.compute as pc

    names = pc.if_else(pa.array(is_missing), pa.scalar('', names.type), names)
  return names


def _lists(column, settings):
  """Returns values of all rows, their (rows, columns), and how many are cut."""
  import pyarrow as pa
  import pyarrow.compute as pc

  if isinstance(column, keys.Text) or not (
    pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
  ):
    text = _text(column).strings()
    column = pc.split_pattern(text, settings['separator'])
  column = _plain(column)
  lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(
    zero_copy_only=False
  )
  values = _text(column.flatten())
  rows = np.repeat(np.arange(len(lengths)), lengths)
  # What is empty is no value.
  is_kept = values.stops > values.starts
  number = np.cumsum(is_kept) - is_kept  # of values before
  before = np.append(number, is_kept.sum())[np.cumsum(lengths) - lengths]
  columns = number - before[rows]
  fits = columns < settings['multi_values']
  num_cut = int(np.sum(is_kept & ~fits))
  is_kept = is_kept & fits
  return values.select(is_kept), (rows[is_kept], columns[is_kept]), num_cut


def _labels(column, name, positive):
  import pyarrow.compute as pc

  text = _text(column)
  if not positive:  # nearly always one digit
    first = text.data[np.minimum(text.starts, len(text.data) - 1)]
    labels = first - np.uint8(ord('0'))
    if ((text.stops - text.starts == 1) & (labels <= 1)).all():
      return labels
  encoded = pc.dictionary_encode(text.strings())
  values = encoded.dictionary.to_pylist()
  of_value = [1 if x in _TRUE else 0 if x in _FALSE else -1 for x in values]
  if positive:
    of_value = [int(x == positive) for x in values]
  if -1 in of_value:
    wrong = values[of_value.index(-1)]
    raise errors.UserError(
      f'column {name} has the label {wrong!r}, and labels are 0 and 1; name '
      'the one that counts as 1 by --config.data.positive, or the right '
      'column by --config.data.label'
    )
  return np.array([*of_value, 0], np.uint8)[encoded.indices.to_numpy()]
