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

from jaxemb.clicks import columns
from jaxemb.clicks import schema as schema_lib
from jaxemb.data import examples
from jaxemb.io import keys, tables
from jaxemb.storage import atomic


class Rows(NamedTuple):
  """Encoded rows, perhaps memory-mapped."""

  ids: np.ndarray  # [n, columns] int32
  numbers: np.ndarray  # [n, numbers] float32; float64 before they are scaled
  labels: np.ndarray  # [n] uint8

  def __len__(self) -> int:
    return len(self.labels)


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
    raw = columns.read(table, self.schema, self.settings, has_labels=has_labels)
    shape = table.num_rows, self.fields.num_columns
    ids = np.full(shape, examples.PADDING, np.int32)
    unknown = {}
    for field, known, (hashes, cells) in zip(
      self.fields.ids, self._keys, raw.hashes, strict=True
    ):
      if self.settings['hash_size']:
        local_ids = bucket(hashes, field.num_ids)
      else:
        local_ids = known.find(hashes, -1) + 1
        if num_unknown := int(np.sum(local_ids == 0)):
          unknown[field.name] = num_unknown
      put(ids, field, values=local_ids + field.first_id, cells=cells)
    numbers = scaled(raw.numbers, self.settings['numbers'], self.scales)
    return Rows(ids, numbers, raw.labels), unknown

  @functools.cached_property
  def _keys(self):
    return [keys.Keys(x) for x in self.hashes]

  def save(self, folder: pathlib.Path) -> None:
    """Writes encoder.json and encoder.npz into a folder."""
    record = {
      'schema': dataclasses.asdict(self.schema),
      'settings': dict(self.settings),
      'fields': [[*x] for x in self.fields.ids],
      'numbers': self.fields.numbers,
    }
    with atomic.write(folder / 'encoder.json') as file:
      file.write(json.dumps(record, indent=1).encode())
    arrays = {f'hashes_{i}': x for i, x in enumerate(self.hashes)}
    with atomic.write(folder / 'encoder.npz') as file:
      np.savez(file, scales=self.scales, **arrays)


def load(folder: pathlib.Path) -> Encoder:
  """Reads what `Encoder.save` has written."""
  record = json.loads((folder / 'encoder.json').read_text())
  arrays = np.load(folder / 'encoder.npz')
  schema = {
    k: tuple(x) if isinstance(x, list) else x
    for k, x in record['schema'].items()
  }
  fields = [examples.IdField(*x) for x in record['fields']]
  return Encoder(
    schema=schema_lib.Schema(**schema),
    settings=record['settings'],
    fields=examples.Fields(tuple(fields), tuple(record['numbers'])),
    hashes=tuple(arrays[f'hashes_{i}'] for i in range(len(fields))),
    scales=arrays['scales'],
  )


def bucket(hashes: np.ndarray, num_ids: int) -> np.ndarray:
  """Returns int32 ids, from 0, of hashes, in a field with a fixed number."""
  # The lowest bit is always 1.
  return ((hashes >> np.uint64(1)) % np.uint64(num_ids)).astype(np.int32)


def put(
  ids: np.ndarray, field: examples.IdField, values: np.ndarray, cells: Any
) -> None:
  """Writes a field's values; `cells` are None or of lists, (rows, columns)."""
  if cells is None:
    ids[:, field.first_column] = values
  else:
    ids[cells[0], field.first_column + cells[1]] = values


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
