"""Logs as others publish them: read as they come, or refused by name."""

import numpy as np
import pytest

from jaxemb import errors
from tests.clicks import encode_test

_RNG = np.random.default_rng(0)
_LABELS = _RNG.integers(0, 2, 60).tolist()
_CRITEO = [
  [
    y,
    *_RNG.integers(0, 900, 13),
    *(f'{x:08x}' for x in _RNG.integers(0, 4, 26)),
  ]
  for y in _LABELS
]
_AVAZU = 'id', 'click', 'hour', *(f'C{i}' for i in range(1, 22))
_SAMPLES = [
  [f'1{i:04}', y, f'141021{i % 24:02}', *(i % 3 for _ in _AVAZU[3:])]
  for i, y in enumerate(_LABELS)
]


def _lines(rows, sign, header=()):
  rows = [header, *rows] if header else rows
  return ''.join(sign.join(map(str, x)) + '\n' for x in rows)


def _rows(form):
  return ''.join(
    form.format(y=y, i=i % 7) + '\n' for i, y in enumerate(_LABELS)
  )


_FRAPPE, _FFM = '{y} {i}:1 2{i}:1 30:1', '{y} 0:{i}:1 1:2{i}:1'
_ADS = 'user,time_stamp,adgroup_id,pid,nonclk,clk\n'
# Name, file, text, and the numbers of categories and numbers, or why not.
LAYOUTS = [
  ('Criteo', 'train.txt', _lines(_CRITEO, '\t'), (26, 13)),
  (
    'Criteo_x4',
    'train.csv',
    _lines(_CRITEO, ',', ('label', *(f'I{i}' for i in range(39)))),
    (39, 0),
  ),
  ('Avazu', 'train', _lines(_SAMPLES, ',', _AVAZU), (24, 0)),
  ('Frappe, MovieLens by libFM', 'a.libfm', _rows(_FRAPPE), (3, 0)),
  ('iPinYou by libsvm', 'a.yzx.txt', _rows(_FRAPPE), (3, 0)),
  ('Criteo by libffm', 'a.ffm', _rows(_FFM), (2, 0)),
  ('Taobao ads', 'raw_sample.csv', _ADS + _rows('{i},1,2,p,1,{y}'), 'label'),
  ('KDD Cup 2012', 'train.txt', _rows('{y}\t1\t{i}\t4\t5'), 'label:COLUMN'),
]


@pytest.mark.parametrize(
  'name, text, fields', [x[1:] for x in LAYOUTS], ids=[x[0] for x in LAYOUTS]
)
def test_published_logs_are_read_or_refused(name, text, fields, tmp_path):
  path = tmp_path / name
  path.write_text(text)
  if isinstance(fields, str):
    with pytest.raises(errors.UserError, match=fields):
      encode_test._source(path, tmp_path)
    return
  source = encode_test._source(path, tmp_path)
  assert source.train.labels.tolist() == _LABELS
  assert (len(source.fields.ids), source.train.numbers.shape[1]) == fields


@pytest.mark.parametrize(
  'first, columns, labels',
  [
    ('label,user,item', '', 60),
    ('outcome,user,item', 'label:outcome', 60),
    ('"my, y",user,item', 'label:"my, y"', 60),
    ('0,1,2', 'label:1', 60),
    ('# label,user,item', '', 60),
    ('1,NA,i2', 'label:1', 61),
    ('0,?,', 'label:1', 61),
  ],
)
def test_first_rows_are_headers_or_rows(first, columns, labels, tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text(f'{first}\n' + _rows('{y},u{i},i{i}'))
  source = encode_test._source(path, tmp_path, columns=columns)
  assert source.train.labels.tolist()[-60:] == _LABELS
  assert len(source.train.labels) == labels and len(source.fields.ids) == 2
