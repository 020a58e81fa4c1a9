"""Columns of a log as arrays: hashes of categories, numbers and labels."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.clicks import schema as schema_lib
from jaxemb.io import columns as columns_lib
from jaxemb.io import keys, tables

_TRUE = '1', '+1', 'true', 'yes'
_FALSE = '0', 'false', 'no', '-1'


class Columns(NamedTuple):
  """Columns of a table of n rows."""

  # Of each field, [n] uint64 of values, and where they go: None, or for lists
  # (rows [n], columns [n]).
  hashes: list[tuple[np.ndarray, Any]]
  texts: list[keys.Text]  # of each field
  numbers: np.ndarray  # [n, numbers] float64, NaN = missing
  labels: np.ndarray  # [n] uint8
  num_cut: int  # values of lists that are left out
  num_unlabelled: int  # rows without a label, which are left out


def read(
  table: tables.Table,
  schema: schema_lib.Schema,
  settings: Mapping[str, Any],
  has_labels: bool,
) -> Columns:
  """Reads the columns that a schema names, by the settings of `config.data`.

  Raises a `UserError` for a column that is missing, or a wrong label or number.
  """
  for name in schema.columns[not has_labels :]:
    if name not in table.columns:
      what = ', the label,' if name == schema.label else ''
      raise errors.UserError(
        f'the column {name}{what} is missing; there are '
        f'{", ".join(list(table.columns)[:30])}'
      )
  num_all = table.num_rows
  labels = np.zeros(num_all, np.uint8)
  if has_labels:
    table = table.of_columns(schema.columns)
    table, labels = _labels(table, schema.label, settings['positive'])
  columns, texts, num_cut = table.columns, [], 0
  numbers = np.empty((len(labels), len(schema.numbers)))
  for i, name in enumerate(schema.numbers):
    column = _numbers(columns[name], name, settings.get('decimal', ''))
    if settings['numbers'] == 'buckets':
      texts.append((keys.Text.of(_buckets(column)), None))
    else:
      numbers[:, i] = column
  for name in schema.categories:
    texts.append((_names(columns[name], name), None))
  for name in schema.lists:
    values, cells, num = _lists(columns[name], name, settings)
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
    num_unlabelled=num_all - len(labels),
  )


def _names(column, name):
  try:
    return columns_lib.values(column)
  except NotImplementedError as error:
    raise errors.UserError(
      f'column {name} has values of type {column.type}, which are no '
      f'categories; leave it out by --config.data.columns=-:{name}'
    ) from error


def _numbers(column, name, decimal):
  try:
    return columns_lib.numbers(column, decimal)
  except ValueError as error:
    raise errors.UserError(
      f'column {name} contains values that are not numbers: '
      f'{errors.one_line(error)}; give --config.data.columns=category:{name}, '
      'or --config.data.decimal if they have decimal commas, commas between '
      'thousands or signs of a currency'
    ) from error


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


def _lists(column, name, settings):
  """Returns values of all rows, their (rows, columns), and how many are cut."""
  import pyarrow.compute as pc

  if not isinstance(column, keys.Text):
    column = columns_lib.plain(column)
  if isinstance(column, keys.Text) or not columns_lib.is_list(column.type):
    text = columns_lib.names(column).strings()
    column = pc.split_pattern(text, settings['separator'])
  lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(
    zero_copy_only=False
  )
  values = _names(column.flatten(), name)
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


def _labels(table, name, positive):
  """Returns the rows that have a label, and labels."""
  import pyarrow as pa
  import pyarrow.compute as pc

  text = _names(table.columns[name], name)
  if not positive:  # nearly always one digit
    first = text.data[np.minimum(text.starts, len(text.data) - 1)]
    labels = first - np.uint8(ord('0'))
    if ((text.stops - text.starts == 1) & (labels <= 1)).all():
      return table, labels
  encoded = pc.dictionary_encode(text.strings())
  is_missing = columns_lib.is_missing(encoded.dictionary).to_pylist()
  values = encoded.dictionary.to_pylist()
  of_value = [1 if x in _TRUE else 0 if x in _FALSE else -1 for x in values]
  if positive:
    wanted = _names(pa.array([positive]), name).strings()[0].as_py()
    of_value = [int(x == wanted) for x in values]
    is_missing = [
      x and y != wanted for x, y in zip(is_missing, values, strict=True)
    ]
  of_value = [2 if x else y for x, y in zip(is_missing, of_value, strict=True)]
  if -1 in of_value:
    wrong = values[of_value.index(-1)]
    raise errors.UserError(
      f'column {name} has the label {wrong!r}, and labels are 0 and 1; name '
      'the one that counts as 1 by --config.data.positive, or the right '
      'column by --config.data.columns=label:COLUMN'
    )
  labels = np.array([*of_value, 0], np.uint8)[encoded.indices.to_numpy()]
  if True in is_missing:
    has_label = labels != 2
    return table.select(has_label), labels[has_label]
  return table, labels
