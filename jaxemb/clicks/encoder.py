"""The encoder of a trained model: makes ids and numbers of a user's columns.

It needs no training data. Numbers are transformed as `config.data.numbers`
says:

  log       log(1 + x), 0 below 0; as usual with Criteo's counts
  standard  (x - mean) / deviation of the training rows
  minmax    from 0 to 1 over the training rows
  none      as they are
  buckets   categories: floor(log(x)^2) of x > 2, else floor(x) (the winners of
            Criteo's contest, and the benchmark's Criteo_x4)
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.clicks import schema as schema_lib
from jaxemb.data import examples
from jaxemb.io import columns as columns_lib
from jaxemb.io import keys, tables
from jaxemb.storage import atomic, damage, export, formats

FORMAT = formats.Format(
  'an encoder of clicks',
  number=1,
  remedy='use that version, or train its model again',
)
_LABELS = {
  **dict.fromkeys(('1', '+1', 'true', 'yes'), 1),
  **dict.fromkeys(('0', '-1', 'false', 'no'), 0),
}
_NO_LABEL, _WRONG_LABEL = 2, 3
# What is read of `config.data` when rows are encoded.
_NEEDED = {
  'features', 'format', 'hash_size', 'multi_values', 'numbers', 'positive',
  'separator',
}  # fmt: skip


class Rows(NamedTuple):
  """Encoded rows, perhaps memory-mapped."""

  ids: np.ndarray  # [n, columns] int32
  numbers: np.ndarray  # [n, numbers] float32; float64 before they are scaled
  labels: np.ndarray  # [n] uint8

  def __len__(self) -> int:
    return len(self.labels)


class Values(NamedTuple):
  """The values of a field in some rows."""

  text: keys.Text
  hashes: np.ndarray  # [values] uint64
  # Rows and columns [values] of a list's values; None = one value in each row.
  cells: tuple[np.ndarray, np.ndarray] | None = None

  def put(
    self, ids: np.ndarray, field: examples.IdField, values: np.ndarray
  ) -> None:
    """Writes an id [values] for each value into ids [n, columns]."""
    if self.cells is None:
      ids[:, field.first_column] = values
    else:
      ids[self.cells[0], field.first_column + self.cells[1]] = values


class Columns(NamedTuple):
  """The columns of a table that a schema names, for n rows."""

  fields: list[Values]
  numbers: np.ndarray  # [n, numbers] float64, NaN = missing
  labels: np.ndarray  # [n] uint8
  num_cut: int  # values of lists that are left out
  num_unlabelled: int  # rows without a label, which are left out


@dataclasses.dataclass(frozen=True)
class Encoder:
  """Makes ids and numbers of columns."""

  schema: schema_lib.Schema
  settings: Mapping[str, Any]  # of `config.data`
  fields: examples.Fields
  # Of each field of categories, [num_ids - 1] uint64 in order of ids from 1 on;
  # empty if ids are hashes.
  hashes: tuple[np.ndarray, ...]
  scales: np.ndarray  # [numbers, 2] float64, what is subtracted, what divides

  def encode(self, table: Any, has_labels: bool) -> tuple[Rows, dict[str, int]]:
    """Returns the rows of a table, and the number of unknown categories.

    The table is of `io.tables` or Arrow; unknown categories are counted by
    field. Raises a `UserError` for a column that is missing, or a wrong label.
    """
    table = tables.Table.of(table)
    raw = read(table, self.schema, self.settings, has_labels=has_labels)
    shape = len(raw.labels), self.fields.num_columns
    ids = np.full(shape, examples.PADDING, np.int32)
    unknown: dict[str, int] = {}
    for field, known, values in zip(
      self.fields.ids, self._keys, raw.fields, strict=True
    ):
      if self.settings['hash_size']:
        local_ids = bucket(values.hashes, field.num_ids)
      else:
        local_ids = known.find(values.hashes, -1) + 1
        if num_unknown := len(local_ids) - int(np.count_nonzero(local_ids)):
          unknown[field.name] = num_unknown
      values.put(ids, field, local_ids + field.first_id)
    numbers = scaled(raw.numbers, self.settings['numbers'], self.scales)
    return Rows(ids, numbers, raw.labels), unknown

  @functools.cached_property
  def _keys(self):
    return [keys.Keys(x) for x in self.hashes]

  def save(self, folder: pathlib.Path) -> None:
    """Writes encoder.json and encoder.npz into a folder."""
    record = FORMAT.stamp() | {
      'schema': dataclasses.asdict(self.schema),
      'settings': dict(self.settings),
      'fields': [[*x] for x in self.fields.ids],
      'numbers': self.fields.numbers,
    }
    with atomic.write(folder / 'encoder.json') as file:
      file.write(json.dumps(record, indent=1).encode())
    arrays: dict[str, Any] = {
      f'hashes_{i}': x for i, x in enumerate(self.hashes)
    }
    with atomic.write(folder / 'encoder.npz') as file:
      np.savez(file, scales=self.scales, **arrays)


def load(folder: pathlib.Path) -> Encoder:
  """Reads what `Encoder.save` has written."""
  record = export.read_record(folder / 'encoder.json')
  FORMAT.check(folder / 'encoder.json', record)
  arrays = export.load_arrays(folder / 'encoder.npz')
  schema = schema_lib.Schema(
    **damage.checked_fields(schema_lib.Schema, record['schema'])
  )
  settings = _checked(record['settings'])
  fields = _fields(record['fields'])
  columns = schema.categories + schema.lists
  if settings['numbers'] == 'buckets':
    columns += schema.numbers
  if len(fields) != len(columns):
    raise ValueError(f'it has {len(fields)} fields for {len(columns)} columns')
  hashes = tuple(arrays[f'hashes_{i}'] for i in range(len(fields)))
  for x in hashes:
    if x.dtype != np.uint64 or x.ndim != 1 or np.any(x == keys.EMPTY):
      raise ValueError('its hashes are damaged')
  return Encoder(
    schema=schema,
    settings=settings,
    fields=examples.Fields(
      fields, damage.checked(tuple[str, ...], record['numbers'])
    ),
    hashes=hashes,
    scales=arrays['scales'],
  )


def _fields(record: Any) -> tuple[examples.IdField, ...]:
  """Returns fields that were stored; raises a `ValueError` for wrong ones."""
  names, fields = examples.IdField._fields, []
  for x in damage.checked(list, record):
    values = dict(zip(names, x, strict=True))
    values = damage.checked_fields(examples.IdField, values)
    fields.append(examples.IdField(**values))
  num_ids = sum(x.num_ids for x in fields)
  num_columns = sum(x.num_columns for x in fields)
  for x in fields:
    is_right = (
      min(x[1:5]) >= 0
      and x.first_id + x.num_ids <= num_ids
      and x.first_column + x.num_columns <= num_columns
    )
    if not is_right:
      raise ValueError(f'its field {x} is damaged')
  return tuple(fields)


def _checked(settings: Any) -> dict[str, Any]:
  """Returns settings; raises a `ValueError` unless they have what is used."""
  missing = _NEEDED.difference(settings if isinstance(settings, dict) else ())
  if missing:
    raise ValueError(f'its settings lack {", ".join(sorted(missing))}')
  return settings


def bucket(hashes: np.ndarray, num_ids: int) -> np.ndarray:
  """Returns int32 ids, from 0, of hashes, in a field with a fixed number."""
  # The lowest bit is always 1.
  return ((hashes >> np.uint64(1)) % np.uint64(num_ids)).astype(np.int32)


def scaled(numbers: np.ndarray, kind: str, scales: np.ndarray) -> np.ndarray:
  """Returns float32 [n, numbers] of float64, 0 where they are missing.

  Only the result is rounded: 1,000 times of one hour differ in digits that
  float32 does not have.
  """
  if kind == 'log':
    numbers = np.log(1 + np.maximum(numbers, 0))
  else:
    numbers = (numbers - scales[:, 0]) / scales[:, 1]
  return np.where(np.isnan(numbers), 0, numbers).astype(np.float32)


def read(
  table: tables.Table,
  schema: schema_lib.Schema,
  settings: Mapping[str, Any],
  has_labels: bool,
) -> Columns:
  """Reads the columns that a schema names, by the settings of `config.data`.

  Raises a `UserError` for a column that is missing, or a wrong label or number.
  """
  names = schema.columns[not has_labels :]
  for name in names:
    if name not in table.columns:
      what = ', the label,' if name == schema.label else ''
      raise errors.UserError(
        f'the column {name}{what} is missing; there are '
        f'{", ".join(list(table.columns)[:30])}'
      )
  num_all, labels = table.num_rows, np.zeros(table.num_rows, np.uint8)
  if has_labels:
    column = table.columns[schema.label]
    labels = _labels(column, schema.label, settings['positive'])
    has_label = labels != _NO_LABEL
    if not has_label.all():
      table = table.of_columns(names).select(has_label)
      labels = labels[has_label]
  is_buckets = settings['numbers'] == 'buckets'
  numbers = np.empty((len(labels), 0 if is_buckets else len(schema.numbers)))
  texts, num_cut = [], 0
  for i, name in enumerate(schema.numbers):
    column = _numbers(table.columns[name], name, settings.get('decimal', ''))
    if is_buckets:
      texts.append((_buckets(column), None))
    else:
      numbers[:, i] = column
  for name in schema.categories:
    texts.append((_values(table.columns[name], name), None))
  for name in schema.lists:
    text, cells, num = _lists(table.columns[name], name, settings)
    texts.append((text, cells))
    num_cut += num
  return Columns(
    # Hashing frees Python for other threads.
    fields=[Values(text, text.hashes(), cells) for text, cells in texts],
    numbers=numbers,
    labels=labels,
    num_cut=num_cut,
    num_unlabelled=num_all - len(labels),
  )


def _values(column, name):
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
  return columns_lib.names(
    pa.array(np.where(numbers > 2, logs, np.floor(numbers)))
  )


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
  values = _values(column.flatten(), name)
  values_before = np.cumsum(lengths) - lengths
  rows = np.repeat(np.arange(len(lengths)), lengths)
  is_value = values.stops > values.starts  # what is empty is none
  position = np.cumsum(np.append(0, is_value))
  columns = position[:-1] - position[values_before][rows]
  is_used = is_value & (columns < settings['multi_values'])
  num_cut = int(position[-1] - np.count_nonzero(is_used))
  return values.select(is_used), (rows[is_used], columns[is_used]), num_cut


def _labels(column, name, positive):
  """Returns [n] uint8 labels of a column, `_NO_LABEL` where it is missing."""
  import pyarrow as pa
  import pyarrow.compute as pc

  text = _values(column, name)
  if not positive:  # nearly always one digit
    first = text.data[np.minimum(text.starts, len(text.data) - 1)]
    labels = first - np.uint8(ord('0'))
    if ((text.stops - text.starts == 1) & (labels <= 1)).all():
      return labels
  encoded = pc.dictionary_encode(text.strings())
  by_value = dict.fromkeys(encoded.dictionary.to_pylist(), _WRONG_LABEL)
  if positive:
    by_value = dict.fromkeys(by_value, 0)
  else:
    by_value |= {k: v for k, v in _LABELS.items() if k in by_value}
  is_missing = columns_lib.is_missing(encoded.dictionary)
  by_value |= dict.fromkeys(
    encoded.dictionary.filter(is_missing).to_pylist(), _NO_LABEL
  )
  if positive:
    by_value[_values(pa.array([positive]), name).strings()[0].as_py()] = 1
  for value, label in by_value.items():
    if label == _WRONG_LABEL:
      raise errors.UserError(
        f'column {name} has the label {value!r}, and labels are 0 and 1; name '
        'the one that counts as 1 by --config.data.positive, or the right '
        'column by --config.data.columns=label:COLUMN'
      )
  labels = np.array([*by_value.values(), 0], np.uint8)
  return labels[encoded.indices.to_numpy()]
