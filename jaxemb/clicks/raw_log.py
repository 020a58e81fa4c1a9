"""The first pass over a log: categories are numbered as they come.

Rows are written to the folder with these numbers, until it is known which rows
are for training and how often each category occurs in them.
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.clicks import columns
from jaxemb.clicks import encoder as encoder_lib
from jaxemb.clicks import schema as schema_lib
from jaxemb.data import examples
from jaxemb.io import keys, tables
from jaxemb.runtime import resources

_ROWS = 1 << 16  # that a thread holds at once
_ENDINGS = 'raw_ids', 'raw_numbers', 'raw_labels'
_TYPES = np.int32, np.float64, np.uint8


class RawLog:
  """Rows as they were read, by file name: 'train' and others."""

  def __init__(
    self,
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    progress: Callable[[str, int, int], None],
  ):
    self.folder, self.settings, self.progress = folder, settings, progress
    self.schema: schema_lib.Schema | None = None
    self.features: tuple[Any, ...] | list[Any] = ()
    self.lines: list[str] = []  # for the log: what was guessed
    self.num_rows: dict[str, int] = {}
    self.num_cut = 0  # values of lists that are left out
    # By field: the numbers of categories, how often each occurs in the file for
    # training, and strings in order of numbers.
    self.keys: list[keys.Keys] = []
    self.train_counts: list[np.ndarray] = []
    self.strings: list[list[Any]] = []

  def read(self, name: str, reader: tables.Reader) -> None:
    """Writes the rows of a reader; the first one decides on the columns."""
    if self.schema is None:
      self._choose_columns(reader)
    reader.features = self.features
    num_rows = 0
    # In threads: what takes most of the time.
    made = reader.tables(
      functools.partial(self.progress, 'reading clicks'),
      lambda table: columns.read(
        table, self.schema, self.settings, has_labels=True
      ),
    )
    with (
      futures.ThreadPoolExecutor(resources.reading_threads()) as pool,
      contextlib.ExitStack() as stack,
    ):
      files = [
        stack.enter_context(open(self.folder / f'{name}.{x}', 'wb'))
        for x in _ENDINGS
      ]
      for raw in made:
        self.num_cut += raw.num_cut
        arrays = self._numbered(raw, pool), raw.numbers, raw.labels
        for array, file in zip(arrays, files, strict=True):
          array.tofile(file)
        num_rows += len(raw.labels)
    if not num_rows:
      raise errors.UserError(f'{reader.path} has no rows')
    self.num_rows[name] = num_rows
    if name == 'train':
      self.train_counts = [x.counts() for x in self.keys]

  def _choose_columns(self, reader):
    """Sets the schema, by the first rows."""
    look = schema_lib.reader(reader.path, reader.form, max_bad=1.0)
    with contextlib.closing(look.tables(lambda *_: None)) as pieces:
      head = next(pieces, None)
    if head is None:
      return
    self.features = look.features
    self.schema, lines = schema_lib.make(self.settings, reader.form, head)
    self.lines += lines
    num_fields = len(self.names())
    if not num_fields:
      raise errors.UserError(
        f'{reader.path} has no column of categories, whose tables are what is '
        'trained; name one in --config.data.categorical, or give '
        '--config.data.numbers=buckets'
      )
    self.keys = [keys.Keys() for _ in range(num_fields)]
    self.strings = [[] for _ in range(num_fields)]

  def _numbered(self, raw, pool):
    """Returns int32 [n, columns], numbers of categories, -1 = none."""
    fields = self.fields([1] * len(self.keys)).ids
    width = sum(x.num_columns for x in fields)
    ids = np.empty((len(raw.labels), width), np.int32)

    def number(field, known, strings, text, hashed):
      hashes, cells = hashed
      numbers, new = known.add(hashes)
      if cells is not None:
        ids[:, field.first_column :][:, : field.num_columns] = -1
      encoder_lib.put(ids, field, values=numbers, cells=cells)
      if len(new) and not self.settings['hash_size']:
        strings.append(text.strings(new))

    # A field has a table of its own.
    jobs = zip(
      fields, self.keys, self.strings, raw.texts, raw.hashes, strict=True
    )
    list(pool.map(lambda job: number(*job), jobs))
    return ids

  def names(self) -> tuple[str, ...]:
    """Returns the names of all fields of categories."""
    is_buckets = self.settings['numbers'] == 'buckets'
    numbers = self.schema.numbers if is_buckets else ()
    return (*numbers, *self.schema.categories, *self.schema.lists)

  def fields(self, num_ids: list[int]) -> examples.Fields:
    """Returns the fields, of which each has so many ids."""
    fields, first_id, column = [], 0, 0
    for name, num in zip(self.names(), num_ids, strict=True):
      is_list = name in self.schema.lists
      width = self.settings['multi_values'] if is_list else 1
      fields.append(
        examples.IdField(
          name=name,
          first_id=first_id,
          num_ids=num,
          first_column=column,
          num_columns=width,
          pooling=self.settings['pooling'] if is_list else '',
        )
      )
      first_id, column = first_id + num, column + width
    if first_id >= examples.PADDING:
      raise errors.UserError(
        f'{first_id:,} categories are too many; raise --config.data.min_count, '
        'or give --config.data.hash_size'
      )
    is_buckets = self.settings['numbers'] == 'buckets'
    numbers = () if is_buckets else self.schema.numbers
    return examples.Fields(tuple(fields), tuple(numbers))

  def offsets(self) -> np.ndarray:
    """Returns [fields + 1], where the numbers of each field begin in a row."""
    return np.cumsum([0, *(x.num for x in self.keys)])

  def blocks(self, name: str) -> Iterator[tuple[int, encoder_lib.Rows]]:
    """Yields the first row and the rows of some after others."""
    fields = self.fields([1] * len(self.keys))
    num = self.num_rows[name]
    shapes = (num, fields.num_columns), (num, len(fields.numbers)), (num,)
    arrays = [
      mapped(self.folder / f'{name}.{ending}', dtype, shape)
      for ending, dtype, shape in zip(_ENDINGS, _TYPES, shapes, strict=True)
    ]
    for start in range(0, num, _ROWS):
      block = (np.asarray(x[start : start + _ROWS]) for x in arrays)
      yield start, encoder_lib.Rows(*block)

  def remove(self) -> None:
    """Removes the files of rows."""
    for path in self.folder.glob('*.raw_*'):
      path.unlink()


def mapped(
  path: pathlib.Path, dtype: Any, shape: tuple[int, ...]
) -> np.ndarray:
  """Returns an array of a file without a header, mapped into memory."""
  if not np.prod(shape):
    return np.zeros(shape, dtype)
  return np.memmap(path, dtype, 'r', shape=shape)
