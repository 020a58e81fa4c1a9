"""Tables of text files: cells, encodings, and what is refused."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from jaxemb import errors
from jaxemb.io import columns, tables


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


def test_integers_of_any_size_are_names():
  users = columns.of({'user': [10**30, 7, None]})['user']
  assert users.to_pylist() == [str(10**30), '7', None]
