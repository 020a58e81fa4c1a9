"""Lines of libsvm and libffm: `label [field:]feature:value ...`.

A line may be without a label.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.io import keys

_MAX_NUMBERS = 1000  # columns that are not categories


@numba.njit(nogil=True, cache=True)
def _cells(data, has_fields, labels, starts, fields, spans, lines):
  """Finds labels [2, rows] and cells; the text ends with a line end.

  `spans` is [4, cells]: feature from, to; value from, to. The field of a cell
  is its position where there are none; -1 = cannot be read. Returns rows, lines
  and cells.
  """
  i = row = line = num = 0
  while i < len(data):
    while data[i] <= 32 and data[i] != 10:
      i += 1
    if data[i] == 10 or data[i] == 35:
      while data[i] != 10:
        i += 1
      i += 1
      line += 1
      continue
    labels[0, row] = stop = i
    while data[stop] > 32 and data[stop] != 58:
      stop += 1
    if data[stop] != 58:  # or the line begins with a feature
      i = stop
    labels[1, row] = i
    starts[row] = num
    while True:
      while data[i] <= 32 and data[i] != 10:  # control characters as well
        i += 1
      if data[i] == 35:  # a comment
        while data[i] != 10:
          i += 1
      if data[i] == 10:
        break
      field = num - starts[row] + 1
      if has_fields:
        field = 0 if 48 <= data[i] < 58 else -1
        while 48 <= data[i] < 58 and field < 100_000_000:
          field = 10 * field + np.int64(data[i]) - 48
          i += 1
        if data[i] == 58:
          i += 1
        else:
          field = -1
      spans[0, num] = i
      while 48 <= data[i] < 58:
        i += 1
      spans[1, num] = i
      if i == spans[0, num] or data[i] != 58:
        field = -1
      spans[2, num] = i = i + (data[i] == 58)
      while data[i] > 32:
        i += 1
      spans[3, num] = i
      fields[num] = field
      num += 1
    lines[row] = line
    row += 1
    line += 1
    i += 1
  starts[row] = num
  return row, line, num


class Cells(NamedTuple):
  """Lines of libsvm or libffm."""

  data: np.ndarray  # [bytes] uint8
  labels: np.ndarray  # [2, n] int64, from where to where
  starts: np.ndarray  # [n + 1] int64, the cells of each line
  fields: np.ndarray  # [cells] int64, or places in their line; -1 = unreadable
  spans: np.ndarray  # [4, cells] int64, of feature and value
  lines: np.ndarray  # [n] int64, which in the block
  num_lines: int

  @classmethod
  def of(cls, text: bytearray, has_fields: bool) -> 'Cells':
    """Finds the cells of a block of lines."""
    data = np.frombuffer(text, np.uint8)
    n, most = text.count(b'\n'), np.count_nonzero(data <= 32) + 1
    labels, spans = np.empty((2, n), np.int64), np.empty((4, most), np.int64)
    starts, fields = np.empty(n + 1, np.int64), np.empty(most, np.int64)
    lines = np.empty(n, np.int64)
    n, num_lines, num = _cells(
      data,
      has_fields,
      labels,
      starts=starts,
      fields=fields,
      spans=spans,
      lines=lines,
    )
    return cls(
      data=data,
      labels=labels[:, :n],
      starts=starts[: n + 1],
      fields=fields[:num],
      spans=spans[:, :num],
      lines=lines[:n],
      num_lines=num_lines,
    )

  def texts(self, starts: np.ndarray, stops: np.ndarray) -> keys.Text:
    """Returns ranges of the data as strings."""
    return keys.Text(self.data, starts, stops)

  def rows(self) -> np.ndarray:
    """Returns [cells] int64, the row of each."""
    return np.repeat(np.arange(len(self.lines)), np.diff(self.starts))

  def features(self) -> np.ndarray:
    """Returns [cells] int64, -1 where there is none."""
    import pyarrow.compute as pc

    is_good = self.fields >= 0
    out = np.full(len(is_good), -1)
    texts = self.texts(*self.spans[:2, is_good]).strings()
    out[is_good] = pc.cast(texts, 'int64').to_numpy()
    return out

  def columns(self, kind: str) -> np.ndarray:
    """Returns [cells] int64, what tells columns apart, by `Features.kind`."""
    if kind == 'list':
      return np.zeros_like(self.fields)
    return self.features() if kind == 'dense' else self.fields

  def values(self) -> np.ndarray:
    """Returns [cells] float64, NaN where there is no number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    starts, stops = self.spans[2:]
    values = np.ones(len(starts))
    # Nearly all are `1`.
    first = self.data[np.minimum(starts, len(self.data) - 1)]
    others = np.flatnonzero((stops != starts + 1) | (first != ord('1')))
    texts = self.texts(starts[others], stops[others]).strings()
    try:
      values[others] = pc.cast(texts, 'float64').to_numpy()
    except pa.ArrowInvalid:
      for i, text in zip(others, texts.to_pylist(), strict=True):
        try:
          values[i] = float(text)
        except ValueError:
          values[i] = math.nan
    return values


class Features(NamedTuple):
  """Columns of lines of libsvm or libffm, as the first ones have them.

  In libffm a column for each field, or a list if lines have several of it. In
  libsvm a column for each place, if all lines have as many features, else one
  list of them. A column whose feature is always the same and whose value is not
  is one of numbers; if that is not so, each feature is one.
  """

  kind: str  # 'columns', 'list' (one of all features) or 'dense' (numbers)
  names: list[int]  # of columns: fields, places or features, sorted; or 0
  numbers: list[int]  # those whose value counts, not the feature
  lists: list[int]
  has_fields: bool

  def parse(
    self, text: bytearray
  ) -> tuple[dict[str, Any], list[tuple[int, str]], int]:
    """Returns the columns of a block of lines, bad lines, and all its lines."""
    cells = Cells.of(text, self.has_fields)
    rows, values, names = cells.rows(), cells.values(), cells.columns(self.kind)
    problems = self._problems(cells, rows, values, names=names)
    is_good = problems == ''
    bad = [(int(cells.lines[i]), problems[i]) for i in np.flatnonzero(~is_good)]
    columns = {'label': cells.texts(*cells.labels[:, is_good])}
    new_rows = np.cumsum(is_good) - 1
    for number in self.names:
      chosen = np.flatnonzero((names == number) & is_good[rows])
      name = {
        'columns': f'field{number}',
        'list': 'features',
        'dense': f'feature{number}',
      }[self.kind]
      columns[name] = self._column(
        number,
        rows=new_rows[rows[chosen]],
        num_rows=int(is_good.sum()),
        values=values[chosen],
        texts=cells.texts(*cells.spans[:2, chosen]),
      )
    return columns, bad, cells.num_lines

  def _problems(self, cells, rows, values, names):
    """Returns what is wrong with each row, '' = nothing."""
    problems = np.full(len(cells.lines), '', object)
    is_other = (values != 1) & ~np.isin(names, self.numbers)
    problems[rows[is_other]] = 'a category has a value not 1'
    is_new = ~np.isin(names, self.names)
    problems[rows[is_new]] = 'it has other features than the first lines'
    if self.kind == 'columns' and not self.has_fields:
      is_short = np.diff(cells.starts) < len(self.names)
      problems[is_short] = 'it has fewer features'
    is_unreadable = (cells.fields < 0) | np.isnan(values)
    problems[rows[is_unreadable]] = 'it has no number'
    return problems

  def _column(self, number, rows, num_rows, values, texts):
    """Makes a column of cells with values and texts, in rows [cells]."""
    import pyarrow as pa

    if number in self.numbers:
      column = np.full(num_rows, 0.0 if self.kind == 'dense' else math.nan)
      column[rows] = values
      return pa.array(column, from_pandas=True)
    if number in self.lists:
      offsets = np.searchsorted(rows, np.arange(num_rows + 1))
      return pa.ListArray.from_arrays(
        pa.array(offsets, 'int32'), texts.strings()
      )
    spans = np.zeros((2, num_rows), np.int64)
    spans[:, rows] = texts.starts, texts.stops
    return keys.Text(texts.data, *spans)


def features_of(text: bytearray, has_fields: bool) -> Features:
  """Returns what columns there are, by the first lines."""
  cells = Cells.of(text, has_fields)
  rows, lengths = cells.rows(), np.diff(cells.starts)
  is_good, kind = cells.fields >= 0, 'columns'
  is_other = is_good & (cells.values() != 1)
  if not has_fields and len(lengths):
    usual = np.median(lengths)
    if np.mean(lengths != usual) > 0.01:
      kind = 'dense' if is_other.any() else 'list'
    else:
      is_good &= (lengths == usual)[rows]
      features = cells.features()
      for field in np.unique(cells.fields[is_other & is_good]):
        of_field = features[(cells.fields == field) & is_good]
        kind = 'dense' if (of_field != of_field[0]).any() else kind
  if kind == 'list':
    return Features(
      kind, names=[0], numbers=[], lists=[0], has_fields=has_fields
    )
  columns = cells.columns(kind)
  names = np.unique(columns[is_good])
  if len(names) > _MAX_NUMBERS:
    what = 'features have values other than 1' if kind == 'dense' else 'fields'
    raise ValueError(
      f'{len(names):,} {what}, and there can be {_MAX_NUMBERS:,}'
    )
  numbers = names if kind == 'dense' else np.unique(columns[is_other & is_good])
  pairs = np.stack([rows, columns], 1)[is_good]
  pairs, counts = np.unique(pairs, axis=0, return_counts=True)
  lists = np.setdiff1d(pairs[counts > 1, 1], numbers)
  return Features(
    kind,
    names=names.tolist(),
    numbers=numbers.tolist(),
    lists=lists.tolist(),
    has_fields=has_fields,
  )
