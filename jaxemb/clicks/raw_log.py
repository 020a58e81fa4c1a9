"""The first pass over a log: categories are numbered as they come.

Rows are written to the folder with these numbers, until it is known which rows
are for training and how often each category occurs in them.
"""

import contextlib
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.clicks import encoder as encoder_lib
from jaxemb.clicks import schema as schema_lib
from jaxemb.data import examples
from jaxemb.io import keys, roles, tables
from jaxemb.runtime import budget, resources

_COUNT_BYTES = 24  # of a hash: counts of a field, of all, and on their way
_ROWS = 1 << 16  # that a thread holds at once
_HEAD_BLOCKS = 4  # by which the roles of columns are guessed
_ENDINGS = 'ids', 'numbers', 'labels'
_RAW = 'raw_'  # how names of files begin that are removed in the end


class RawLog:
  """Rows as they were read, by file name: 'train' and others."""

  def __init__(
    self,
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    progress: Callable[[str, int, int], None],
    known: encoder_lib.Encoder | None = None,
  ):
    """The columns are those of a `known` encoder, or the log's own."""
    self.folder, self.settings, self.progress = folder, settings, progress
    self.schema: schema_lib.Schema | None = None
    self.layout = examples.Fields((), ())  # without ranges of ids
    self.features: Sequence[Any] = ()
    self.lines: list[str] = []  # for the log: what is left out
    self.inputs: list[roles.Input] = []
    self.num_rows: dict[str, int] = {}
    self.num_cut = 0  # values of lists that are left out
    self.num_unlabelled = 0  # rows that are left out
    # By field: the numbers of categories, and strings in order of numbers.
    self.keys: list[keys.Keys] = []
    self.strings: list[list[Any]] = []
    if known:
      self._set(known.schema, known.settings['features'])

  def _set(self, schema, features):
    """Sets what the columns are."""
    self.schema, self.features = schema, features
    self.layout = _layout(schema, self.settings)
    self.keys = [keys.Keys() for _ in self.layout.ids]
    self.strings = [[] for _ in self.layout.ids]
    if size := self.settings['hash_size']:
      num_ids = self.fields([size] * len(self.layout.ids)).vocab
      budget.check_host(
        f'counts of {num_ids:,} categories take',
        _COUNT_BYTES * num_ids,
        remedy=f'lower --config.data.hash_size={size}',
      )

  def read(self, name: str, reader: tables.Reader) -> None:
    """Writes the rows of a reader; the first one decides on the columns."""
    self._look(reader)
    reader.features = self.features
    num_rows = 0

    def encoded(table):
      assert self.schema is not None  # a file without rows may have none
      return encoder_lib.read(
        table, self.schema, self.settings, has_labels=True
      )

    # Columns are read in threads, as that takes most of the time.
    blocks = reader.tables(
      functools.partial(self.progress, 'reading clicks'), encoded
    )
    with futures.ThreadPoolExecutor(resources.reading_threads()) as pool:
      for block in blocks:
        self.num_cut += block.num_cut
        self.num_unlabelled += block.num_unlabelled
        ids = self._numbered(block, pool)
        rows = encoder_lib.Rows(ids, block.numbers, block.labels)
        append(self.folder, _RAW + name, rows)
        num_rows += len(rows)
    if not num_rows:
      problem = 'has no rows'
      if reader.num_rows and self.schema:
        problem = (
          f'has no row with a label in its column {self.schema.label}; name '
          'another one by --config.data.columns=label:COLUMN'
        )
      raise errors.UserError(f'{reader.path} {problem}')
    self.num_rows[name] = num_rows

  def _look(self, reader):
    """Records a reader's first rows; those of the first make the schema."""
    import pyarrow as pa

    settings = self.settings
    look = schema_lib.reader(
      reader.path, reader.form, declared=settings['columns'], max_bad=1.0
    )
    look.features = self.features
    with contextlib.closing(look.tables(lambda *_: None)) as blocks:
      blocks = [*itertools.islice(blocks, _HEAD_BLOCKS)]
    if not blocks:
      return
    head = blocks[0]
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError):
      # Unless later blocks of JSON have other types.
      head = pa.concat_tables(blocks, promote_options='permissive')
    if self.schema is None:
      schema, left_out = schema_lib.make(settings, reader, head)
      self._set(schema, look.features)
      if left_out:
        self.lines.append(
          f'left out: {", ".join(left_out)}; --config.data.columns assigns '
          'columns'
        )
      if not self.layout.ids:
        raise errors.UserError(
          f'{reader.path} has no column of categories, whose tables are what '
          'is trained; name one by --config.data.columns=category:COLUMN, or '
          'give --config.data.numbers=buckets'
        )
    self.inputs.append(schema_lib.shown(reader, head, self.schema))

  def _numbered(self, block, pool):
    """Returns int32 [n, columns], numbers of categories, -1 = none."""
    ids = np.full((len(block.labels), self.layout.num_columns), -1, np.int32)

    def number(field, known, strings, values):
      numbers, new = known.add(values.hashes)
      values.put(ids, field, numbers)
      if len(new) and not self.settings['hash_size']:
        strings.append(values.text.strings(new))

    # Each field has a hash table of its own.
    list(
      pool.map(number, self.layout.ids, self.keys, self.strings, block.fields)
    )
    return ids

  def fields(self, num_ids: Sequence[int]) -> examples.Fields:
    """Returns the fields with ranges of `num_ids` ids, one after another."""
    ends = np.cumsum([0, *num_ids]).tolist()
    if ends[-1] >= examples.PADDING:
      remedy = 'raise --config.data.min_count, or give --config.data.hash_size'
      if size := self.settings['hash_size']:
        remedy = f'lower --config.data.hash_size={size}'
      raise errors.UserError(
        f'{ends[-1]:,} categories are more than 32-bit ids can number; {remedy}'
      )
    return self.layout._replace(
      ids=tuple(
        field._replace(first_id=first, num_ids=num)
        for field, first, num in zip(
          self.layout.ids, ends, num_ids, strict=False
        )
      )
    )

  def offsets(self) -> np.ndarray:
    """Returns [fields + 1], where each field's categories begin in a row."""
    return np.cumsum([0, *(x.num for x in self.keys)])

  def starts(self) -> np.ndarray:
    """Returns [columns], the offset of each column's field."""
    widths = [x.num_columns for x in self.layout.ids]
    return np.repeat(self.offsets()[:-1], widths)

  def blocks(self, name: str) -> Iterator[tuple[int, encoder_lib.Rows]]:
    """Yields blocks of rows of a file, and the number of each one's first."""
    num = self.num_rows[name]
    rows = mapped(
      self.folder, _RAW + name, num, fields=self.layout, dtype=np.float64
    )
    for start in range(0, num, _ROWS):
      block = (np.asarray(x[start : start + _ROWS]) for x in rows)
      yield start, encoder_lib.Rows(*block)

  def remove(self) -> None:
    """Removes the files of rows."""
    for path in self.folder.glob(f'{_RAW}*'):
      path.unlink()


def _layout(schema, settings):
  """Returns the fields of a schema, without ranges of ids."""
  is_buckets = settings['numbers'] == 'buckets'
  numbers, fields, column = schema.numbers, [], 0
  names = *(numbers if is_buckets else ()), *schema.categories, *schema.lists
  for name in names:
    is_list = name in schema.lists
    field = examples.IdField(
      name=name,
      first_id=0,
      num_ids=0,
      first_column=column,
      num_columns=settings['multi_values'] if is_list else 1,
      pooling=settings['pooling'] if is_list else '',
    )
    fields.append(field)
    column += field.num_columns
  return examples.Fields(tuple(fields), () if is_buckets else numbers)


def append(folder: pathlib.Path, name: str, rows: encoder_lib.Rows) -> None:
  """Appends rows to files without a header, one for each array."""
  for array, ending in zip(rows, _ENDINGS, strict=True):
    with open(folder / f'{name}.{ending}', 'ab') as file:
      array.tofile(file)


def mapped(
  folder: pathlib.Path,
  name: str,
  num: int,
  fields: examples.Fields,
  dtype: Any = np.float32,
) -> encoder_lib.Rows:
  """Returns rows as `append` wrote them, mapped into memory.

  `dtype` is that of numbers.
  """
  shapes = (num, fields.num_columns), (num, len(fields.numbers)), (num,)
  types = np.int32, dtype, np.uint8
  return encoder_lib.Rows(*(
    np.memmap(folder / f'{name}.{ending}', dtype, 'r', shape=shape)
    if np.prod(shape)
    else np.zeros(shape, dtype)
    for ending, dtype, shape in zip(_ENDINGS, types, shapes, strict=True)
  ))  # fmt: skip
