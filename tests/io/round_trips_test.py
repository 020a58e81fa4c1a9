"""What other programs write is read as it was, or refused."""

import csv
import json

import hypothesis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from jaxemb import errors
from jaxemb.io import columns, tables

_LETTERS = st.sampled_from(list('ab1"\\,;|:\t\n\r #%\'.-é日'))
_CELLS = st.text(_LETTERS, max_size=5).map(str.strip)
_ROWS = st.integers(2, 4).flatmap(
  lambda num: st.lists(
    st.lists(_CELLS, min_size=num, max_size=num).filter(any),
    min_size=1,
    max_size=30,
  )
)


def _texts(path, **options):
  """Rows of strings of a file."""
  reader = tables.Reader(str(path), max_bad=0.0, **options)
  rows = []
  for table in reader.tables(lambda *_: None, tables.Table.of):
    cells = [table.text(x).strings().to_pylist() for x in table.columns]
    rows += map(list, zip(*cells, strict=True))
  return rows


def _names(rows):
  """The rows as strings that are names."""
  texts = [columns.names(pa.array(x, pa.large_string())) for x in rows]
  return [x.strings().to_pylist() for x in texts]


def _header(rows):
  return [f'column {i}' for i in range(len(rows[0]))]


def _write_csv(path, rows, sign=',', **options):
  options = {'lineterminator': '\n'} | options
  with path.open('w', newline='', encoding='utf-8') as file:
    csv.writer(file, delimiter=sign, **options).writerows(
      [_header(rows), *rows]
    )


_WRITERS = {
  'csv': _write_csv,
  'crlf': lambda path, rows: _write_csv(path, rows, lineterminator='\r\n'),
  'quoted': lambda path, rows: _write_csv(path, rows, quoting=csv.QUOTE_ALL),
  'spark': lambda path, rows: _write_csv(
    path, rows, quoting=csv.QUOTE_ALL, doublequote=False, escapechar='\\'
  ),
  'semicolons': lambda path, rows: _write_csv(path, rows, ';'),
  'tabs': lambda path, rows: _write_csv(path, rows, '\t'),
  'pandas': lambda path, rows: pd.DataFrame(rows, columns=_header(rows)).to_csv(
    path, index=False
  ),
  'arrow': lambda path, rows: arrow_csv.write_csv(_arrow(rows), path),
}


def _arrow(rows):
  cells = zip(*rows, strict=True)
  return pa.table(dict(zip(_header(rows), cells, strict=True)))


@pytest.mark.parametrize('writer', _WRITERS)
@hypothesis.settings(max_examples=30)
@hypothesis.given(rows=_ROWS)
def test_rows_of_text(writer, rows, tmp_path_factory):
  path = tmp_path_factory.mktemp('rows') / 'x.csv'
  if writer == 'spark':  # which only an escaped quote tells from others
    rows = [['a"b' for _ in rows[0]], *rows]
  _WRITERS[writer](path, rows)
  try:
    read = _texts(path)
  except errors.UserError as error:
    assert '\n' not in str(error)
    return
  assert read == _names(rows)


_VALUES = {
  'int': st.integers(-(2**53), 2**53),
  'float': st.floats(allow_nan=False, allow_infinity=False, width=32)
  | st.integers(-999, 999).map(float),
  'bool': st.booleans(),
  'text': st.text(_LETTERS, min_size=1, max_size=4)
  .map(str.strip)
  .filter(lambda x: x.lower() not in columns.MISSING),
}
_COLUMNS = st.sampled_from(sorted(_VALUES)).flatmap(
  lambda kind: st.lists(
    st.none() | _VALUES[kind], min_size=5, max_size=20
  ).filter(lambda x: any(y is not None for y in x))
)


def _json(path, values):
  path.write_text(''.join(json.dumps({'x': x}) + '\n' for x in values))


@hypothesis.settings(max_examples=50)
@hypothesis.given(values=_COLUMNS)
def test_a_value_has_one_name(values, tmp_path_factory):
  folder = tmp_path_factory.mktemp('values')
  frame = pd.DataFrame({'x': pd.Series(values)})
  frame.assign(y=1).to_csv(folder / 'pandas.csv', index=False)
  arrow = pa.table({'x': values})
  parquet.write_table(arrow, folder / 'x.parquet')
  frame.to_parquet(folder / 'pandas.parquet')
  _json(folder / 'x.jsonl', values)
  read = {
    x: [row[0] for row in _texts(folder / x)]
    for x in ('x.parquet', 'pandas.parquet', 'x.jsonl', 'pandas.csv')
  }
  given = {'arrow': arrow, 'pandas': frame, 'lists': {'x': values}}
  given['strings'] = frame.astype('string')
  given['nullable'] = frame.convert_dtypes()
  if isinstance(next(x for x in values if x is not None), (int, float)):
    given['numpy'] = {'x': np.array(values, object)}
  for name, data in given.items():
    read[name] = columns.of(data)['x']
  for name in read:
    text = read[name]
    if isinstance(text, list):
      text = pa.array(text, pa.large_string())
    read[name] = columns.values(text).strings().to_pylist()
  for name, texts in read.items():
    assert texts == read['arrow'], name
