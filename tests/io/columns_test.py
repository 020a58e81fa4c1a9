"""Columns of every type as names and numbers."""

import datetime
import io
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from jaxemb import errors
from jaxemb.io import columns


def _values(column):
  return columns.values(column).strings().to_pylist()


def _text(*values):
  return pa.array(values, pa.large_string())


_TIMES = pd.Series(pd.DatetimeIndex(['2024-01-31T00', '2024-02-29T01']))
_DAYS = _TIMES.dt.normalize()


@pytest.mark.parametrize(
  'values',
  [
    _TIMES,
    _DAYS,
    _DAYS.astype('datetime64[ns]'),
    _TIMES + pd.Timedelta('500ms'),
    pd.Series([*_TIMES, None]),
    _TIMES.dt.tz_localize('UTC'),
    _TIMES.dt.tz_localize('Europe/Berlin'),
    _TIMES.dt.to_period('M'),
    pd.Series(pd.to_timedelta(['1h', '-1h', '2 days', None])),
    pd.Series([datetime.date(2024, 1, 31), None]),
    pd.Series([datetime.time(1, 2, 3)]),
    pd.Series([True, False, None]),
    pd.Series([0, 0, 1], dtype='Sparse[int]'),
    pd.Series([0.1, 1e-5, 3, 1e17, 12345678901.5, np.inf, None]),
    pd.Series([0.1, 1e-5, 3, 1e6 + 0.5], dtype='f4'),
    pd.Series([0.1, 1e-5, 3, 60000], dtype='f2'),
    pd.Series([1, 258]).astype('>i8'),
  ],
  ids=lambda x: str(x.dtype),
)
@pytest.mark.filterwarnings('error::RuntimeWarning')
def test_a_value_is_named_as_pandas_writes_it(values):
  frame = pd.DataFrame({'x': values})
  file = io.BytesIO(frame.assign(y=1).to_csv(index=False).encode())
  options = arrow_csv.ConvertOptions(column_types={'x': pa.large_string()})
  written = arrow_csv.read_csv(file, convert_options=options)['x']
  assert _values(columns.of(frame)['x']) == _values(written)
  if values.dtype.kind not in 'fV':  # of which objects have other types
    assert list(map(columns.name, values)) == _values(written)
  if values.dtype.kind in 'mM':
    batch = pa.RecordBatch.from_pandas(frame)
    assert _values(batch['x']) == _values(written)


def test_text_of_one_value_has_one_name():
  for name, texts in {
    'a b': ('a b', ' a b ', '\ta b\t', '\u00a0a b\u00a0', 'a b\r\n'),
    '3': ('3', '3.0', '3.000', ' 3 ', '\u00a03.0'),
    'true': ('True', 'TRUE', 'true', '\tTrue'),
    '2024-01-31': ('2024-01-31 00:00:00', '2024-01-31T00:00:00.000'),
    '2024-01-31 01:00:05': (
      '2024-01-31 01:00:05',
      '2024-01-31 01:00:05.000000',
      '2024-01-31T01:00:05',
      '2024-01-31T01:00:05.000',
    ),
    '': ('', 'NaN', 'nan', 'NULL', '<NA>', '#N/A', '\u00a0', '\t'),
  }.items():
    assert _values(_text(*texts)) == [name] * len(texts)
  others = ['A long nameThe 12:00:00', '2024-01-31Tuesday 12:00']
  others += ['tRUE', 'Truer', '#a', 'node', 'x 0', '1.0.0', '0:00', 'a\u00a0b']
  assert _values(_text(*others)) == others


def test_columns_of_polars_are_read():
  pl, words = pytest.importorskip('polars'), ['x', 'y']
  frame = pl.DataFrame({
    'category': pl.Series(words, dtype=pl.Categorical),
    'enum': pl.Series(words, dtype=pl.Enum(words)),
    'string': words,
  })  # fmt: skip
  for name, column in zip(frame.columns, columns.of(frame), strict=True):
    assert _values(column) == words, name
  parquet.write_table(columns.of(frame), io.BytesIO())


def test_columns_of_python_are_read():
  words, numbers = ['x', 'y'], np.array([7, 8], '>f4')
  structured = np.array([(7, 7.0), (8, 8.0)], [('a', '>i2'), ('b', '>f8')])
  tables = structured, {'a': numbers}, {'a': (x for x in numbers)}
  for table in tables:
    assert _values(columns.of(table)['a']) == ['7', '8']
  masked = columns.of({'a': np.ma.array([7, 8], mask=[0, 1])})['a']
  assert _values(masked) == ['7', '']
  known = uuid.UUID(int=5)
  assert _values(pa.array([known.bytes, None], pa.uuid())) == [str(known), '']
  named = pd.DataFrame({'a': [7, 8]}, index=pd.Index(words, name='user'))
  assert columns.of(named).column_names == ['user', 'a']
  lists = columns.of({'a': np.array([[1, 2], [3, 4]])})['a']
  assert lists.to_pylist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
  ('data', 'words'),
  [
    ({'user': 'u1', 'item': 'i1'}, "column user is 'u1', which is no list"),
    ({'user': 1}, 'or a list of dicts'),
    ({'user': {'u1', 'u2'}}, 'no list'),
    ({'user': ['u1', 'u2'], 'item': ['i1']}, '2 (user), 1 (item)'),
    ({'user': np.array([1j])}, 'column user cannot be read'),
    ({'user': [['u1'], 'u2']}, 'lists beside other values'),
    (pd.DataFrame({'user': ['u1']}).iloc[0], 'Series is no table'),
    ([{'user': 'u1'}, 'u2'], 'list is no table'),
    (pa.array(['u1']), 'is no table'),
  ],
)
def test_what_is_no_table_is_one_line(data, words):
  with pytest.raises(errors.UserError) as caught:
    columns.of(data)
  assert words in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize('decimal', ['', ',', '.'])
def test_missing_and_infinite_numbers_are_none(decimal):
  texts = 'inf', '-Infinity', '#N/A', '#DIV/0!', '1.#IND', 'None', '-nan', '?'
  assert np.isnan(columns.numbers(_text(*texts), decimal)).all()
  assert columns.numbers(_text('\u22122', '3'), decimal).tolist() == [-2, 3]


def test_signs_between_thousands():
  for sign in " .'\u00a0\u2009\u202f\u2019":
    assert columns.numbers(_text(f'1{sign}047,2'), ',').tolist() == [1047.2]
  assert columns.likely_decimals(_text('1 047,2', '3,5')) == [',']


_PRICES = [f'{x:.2f}' for x in np.arange(1.25, 20, 0.37)]


@pytest.mark.parametrize(
  ('strings', 'odd'),
  [
    ([*_PRICES, 'unknown'], 'unknown'),
    ([x.replace('.', ',') for x in _PRICES] + ['-'], '-'),
    ([f'({x})' for x in _PRICES], '(1.25)'),
    ([f'{x}-' for x in _PRICES], '1.25-'),
    ([f'10.0.{i}.1' for i in range(50)], ''),
    ([f'{i % 28 + 1}.12.{i + 2000}' for i in range(50)], ''),
    ([*map(str, range(50)), 'u1'], ''),
    ([*_PRICES, '10.2.1'], ''),
    (['1.0', '1.1', '2.0.3'], ''),
  ],
)
def test_numbers_but_for_some_are_found(strings, odd):
  assert columns.odd_number(_text(*strings), '') == odd


def test_names_in_brackets_are_no_lists():
  assert columns.list_sign(['(x5)', '(x6)']) == ''
  assert columns.list_sign(['(x5, x6)', '(x6)']) == '[,'
