"""Tables of text files: cells, encodings, and what is refused."""

import contextlib
import time

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from jaxemb import errors
from jaxemb.io import columns, libsvm, tables


@pytest.mark.parametrize('between', [',', '\t'])
def test_lines_are_cut_as_pyarrow_does(between, tmp_path, monkeypatch):
  monkeypatch.setattr(tables, '_BLOCK_BYTES', 97)
  rng = np.random.default_rng(1)
  cells = ['', 'x', '0', '-1.25', 'a b', '"q' + between + '"', '"a""b"', 'ä']
  lines = [[str(i % 2), *rng.choice(cells, 4)] for i in range(300)]
  lines[170] = lines[170][:3]
  name = 'log.csv' if between == ',' else 'log.tsv'
  path = tmp_path / name
  rows = [[*'yabcd'], *lines]
  path.write_text(''.join(between.join(x) + '\n' for x in rows))
  reader = tables.Reader(str(path))
  found = pa.concat_tables(reader.tables(lambda *_: None))
  skipped = []

  def skip(row):
    skipped.append(row.number)
    return 'skip'

  expected = csv.read_csv(
    path,
    csv.ReadOptions(use_threads=False),
    csv.ParseOptions(delimiter=between, invalid_row_handler=skip),
    csv.ConvertOptions(column_types=dict.fromkeys('yabcd', 'string')),
  )
  assert found.to_pylist() == expected.to_pylist()
  assert skipped == [172] and reader.num_bad == 1
  assert f'line {skipped[0]}: 3 of 5 fields' in reader.first_bad


def test_files_in_other_encodings_are_told_from_marks_in_utf_8(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text('label,c\n1,a\ufffd\n')  # that others have left there
  assert tables.guess(path) == 'csv'
  for encoding in 'utf-16', 'cp1252':
    path.write_bytes('label,c\n1,caf\xe9\n'.encode(encoding))
    with pytest.raises(errors.UserError, match=f'(?i)iconv -f {encoding} -t'):
      tables.guess(path)


def test_json_is_told_from_names_in_brackets(tmp_path):
  path = tmp_path / 'log.csv'
  for first in '{set} b', '[[page]]\tb', '(a) [1]':
    path.write_text(f'{first}\n')
    assert tables.guess(path) == 'csv'
  for first in '{', ' [', '[{"a": 1},', '[["a", 1]', '["a", 1]':
    path.write_text(f'{first}\n')
    with pytest.raises(errors.UserError, match='is JSON'):
      tables.guess(path)


@pytest.mark.parametrize('signs', ['[]', ('{"a":', '}')])
@pytest.mark.parametrize('depth', [100, 100_000])
def test_rows_that_are_nested_deeply_are_bad(signs, depth, tmp_path):
  path = tmp_path / 'log.jsonl'
  value = f'{signs[0] * depth}1{signs[1] * depth}'
  path.write_text(f'{{"y": 1, "a": 2}}\n{{"y": {value}}}\n')
  rows, reader = _read(path)
  assert rows == [(1, 2)] and 'nested too deeply' in reader.first_bad
  path.write_text(f'{value}\n{{"y": 1, "a": 2}}\n')
  with contextlib.suppress(errors.UserError):
    _read(path)


def test_short_lines_below_a_header_take_little_memory(tmp_path):
  path = tmp_path / 'log.csv'
  header = ','.join(f'x{i}' for i in range(10_000))
  path.write_text(f'{header}\n{header.replace("x", "y")}\n' + '\n' * 1_000_000)
  rows, reader = _read(path)
  assert len(rows) == 1 and rows[0][-1] == 'y9999'


def test_a_file_of_a_line_end_has_no_rows(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_bytes(b'\r')
  assert _read(path)[0] == []


def test_long_lines_are_told_quickly(tmp_path):
  path = tmp_path / 'log'
  for text in ('1 ' + '|a:' * 100_000, '@relation \n' * 50_000):
    path.write_text(text)
    start_secs = time.process_time()
    tables.guess(path)
    assert time.process_time() - start_secs < 5  # quadratic time is minutes


def test_integers_of_any_size_are_names():
  users = columns.of({'user': [10**30, 7, None]})['user']
  assert users.to_pylist() == [str(10**30), '7', None]


def _read(path, **options):
  reader = tables.Reader(str(path), max_bad=1, **options)
  read = [y for x in reader.tables(lambda *_: None) for y in x.to_pylist()]
  return [tuple(x.values()) for x in read], reader


@pytest.mark.parametrize(
  'repeated',
  ['a,b', '"a","b"', 'A,"B"', '\ufeffa,b', '\ufeff"a",b\r', ' a , b'],
)
def test_repeated_headers_are_told_by_their_cells(repeated, tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text(f'a,b\n1,2\n{repeated}\n3,4\n5\n"x\na,b",6\n')
  rows, reader = _read(path)
  assert rows == [('1', '2'), ('3', '4'), ('x\na,b', '6')]
  assert reader.num_bad == 2 and 'line 3: it repeats' in reader.first_bad
  path.write_text(f'a,b\n1,2\n{repeated}\n3,4\n')  # not one bad row of four
  (table,) = tables.Reader(str(path)).tables(lambda *_: None)
  assert len(table) == 2
  path.write_text('a\n1\na\n')  # which may be a value
  assert _read(path)[0] == [('1',), ('a',)]


def test_headers_are_below_comments(tmp_path):
  path, layout = tmp_path / 'edges', tables.Layout('ab', comment='#')
  path.write_text('# c\na,b\n1,2\n# c\na,b\n# c\n')
  layouts = {path: layout._replace(skips_first=True)}
  rows, reader = _read(path, layouts=layouts)
  assert rows == [('1', '2')] and reader.num_comments == 3
  assert reader.num_bad == 1 and 'line 5: it repeats' in reader.first_bad


def test_marks_of_files_that_were_put_together_vanish(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text('\ufeffa,b\n\uff01,2\n\ufeffx,3\n\uff01,4\n')
  assert _read(path)[0] == [('\uff01', '2'), ('x', '3'), ('\uff01', '4')]


@pytest.mark.parametrize('header', ['a,b', 'a,b,'])
def test_a_delimiter_may_end_each_line(header, tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text(f'{header}\nx,1,\nx,2,\n')
  assert _read(path)[0] == [('x', '1'), ('x', '2')]
  path.write_text('a,b\nx,1,2\ny,1,\n')  # as R writes names of rows
  assert _read(path)[0] == [('x', '1', '2'), ('y', '1', '')]
  path.write_text('a,b\nx,1,2\nx,1,\n')
  assert not _read(path)[1].num_rows


def _is_header(rows):
  return rows[0][:1] == ['y'] and rows[0] not in rows[2:]


def test_a_comment_may_be_the_header(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text('# by x\n# y,c\n1,2\n')
  rows, reader = _read(path, has_header=_is_header)
  assert rows == [('1', '2')]
  rows = [('1', '2'), ('3', '4')]
  path.write_text('# x,y\n1,2\n3,4\n')
  assert _read(path, has_header=_is_header)[0] == rows
  path.write_text('# y\n1,2\n3,4\n')
  assert _read(path, has_header=_is_header)[0] == rows


@pytest.mark.parametrize(
  'text, message',
  [
    ('All clicks\n\ny,c\n1,2\n', "'All clicks' above its header, .*'y,c'"),
    ('%\n@RELATION x\n@attribute y {0,1}\n@DATA\n1\n', 'is ARFF'),
    ('By x, y\n\n\ny\tc\n1\t2\n', "'By x, y' above its header, "),
    ('1 |u a b |i:.5 c\n', 'Vowpal Wabbit'),
    ('-1 2.0 x|u a\n', 'Vowpal Wabbit'),
    ('\n<!DOCTYPE html>\n<p>y, c</p>\n', 'is HTML or XML'),
  ],
)
def test_other_forms_are_refused_by_name(text, message, tmp_path):
  path = tmp_path / 'log'
  path.write_text(text)
  with pytest.raises(errors.UserError, match=message):
    _read(path, has_header=_is_header)


def test_control_characters_are_white_space_in_libsvm(tmp_path):
  path = tmp_path / 'log.libsvm'
  path.write_bytes(b'\x02\n1 1:1\x01 2:1 \x03\n0 3:1\x0b4:1\n' * 3)
  rows, _ = _read(path, form='libsvm')
  assert [x for x in rows if x[0]] == [('1', '1', '2'), ('0', '3', '4')] * 3


@pytest.mark.parametrize('is_list', [False, True])
def test_parquet_with_text_that_is_not_utf8_is_one_line(tmp_path, is_list):
  path = tmp_path / 'log.parquet'
  buffers = pa.array([b'a', b'\xff']).buffers()
  names = pa.Array.from_buffers(pa.string(), 2, buffers)
  names = pa.ListArray.from_arrays([0, 1, 2], names) if is_list else names
  parquet.write_table(pa.table({'x': names}), path)
  with pytest.raises(errors.UserError, match='as parquet: .*UTF8'):
    list(tables.Reader(str(path)).tables(lambda *_: None))


@pytest.mark.parametrize('has_fields', [False, True])
def test_no_cell_of_libsvm_ends_before_it_begins(has_fields):
  # As many bytes fewer were kept for what was then written into them.
  text = bytearray(b'1 5 3:1\n0 0:4 0:6:1 7: :\n1 8\n')
  cells = libsvm.Cells.of(text, has_fields)
  assert np.all(cells.spans[0] <= cells.spans[1])
  assert np.all(cells.spans[2] <= cells.spans[3])


def test_lines_of_libsvm_may_have_comments(tmp_path):
  path = tmp_path / 'log'
  path.write_text('# x\n0 1:2 3:1 # c\n1 2:1 3:1\n')
  rows, reader = _read(path)
  assert reader.form == 'libsvm' and len(rows) == 2 and not reader.num_bad
  path.write_text('0,1\nx,y\nz,y\n')  # as pandas calls columns
  rows, reader = _read(path)
  assert rows == [('x', 'y'), ('z', 'y')]
