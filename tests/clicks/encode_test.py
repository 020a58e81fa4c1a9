"""Logs of every form: read, encoded, cut into batches, and refused."""

import collections
import contextlib
import json
import lzma
import math

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.clicks import encode, loader, raw_log, toyclicks
from jaxemb.clicks import encoder as encoder_lib
from jaxemb.data import base, examples
from jaxemb.io import cache, tables
from jaxemb.runtime import resources
from jaxemb.storage import checksums

ROWS = 400


def _source(path, folder, num_parts=1, part_examples=32, epochs=1, **settings):
  """The source of a log; settings are those of `config.data`."""
  given = {'min_count': 1, **settings}
  roles = [(x, given.pop(x, '')) for x in ('category', 'number', 'list')]
  entries = [f'{k}:{x}' for k, v in roles for x in v.split(',') if x]
  given.setdefault('columns', ','.join(entries))
  given = {f'data.{k}': v for k, v in given.items()}
  usual = {'data.source': 'clicks', 'model.name': 'fm', 'strategy.name': 'sync'}
  config = config_lib.check(config_lib.default(), usual | given)
  readers = base.ALONE._replace(local_parts=range(num_parts))
  spec = base.SourceSpec(
    str(path), 3, epochs, num_parts, part_examples, 5, 1, 1,
    config.data.to_dict(), readers, folder / 'cache', lambda *_: None,
  )  # fmt: skip
  return loader.make(spec)


def _rows(num=ROWS, seed=0):
  """Lines of a log: label, color, size, price, tags."""
  rng = np.random.default_rng(seed)
  return [
    (
      int(rng.random() < 0.3),
      f'c{min(rng.geometric(0.3), 9)}',
      rng.choice(['s', 'm', 'l', '']),
      '' if rng.random() < 0.1 else f'{rng.gamma(2):.4f}',
      '|'.join(rng.choice(list('abcdef'), rng.integers(0, 4), False)),
    )
    for _ in range(num)
  ]


HEADER = 'label', 'color', 'size', 'price', 'tags'


def _text(rows, header=HEADER, between=','):
  return ''.join(between.join(map(str, x)) + '\n' for x in (header, *rows))


def _write(path, text):
  path.write_text(text)
  return path


def _decoded(source, rows):
  """What encoded rows stand for, as `_rows` has them but for numbers."""
  names, found = source.keys, []
  for ids in rows.ids:
    by_field = []
    for field in source.fields.ids:
      some = ids[field.first_column :][: field.num_columns]
      values = [names[i].partition('=')[2] for i in some if i < len(names)]
      by_field.append('|'.join(values))
    found.append(tuple(by_field))
  return found


def test_csv_is_read_without_a_schema(tmp_path):
  rows = _rows()
  path = _write(tmp_path / 'log.csv', _text(rows))
  source = _source(path, tmp_path, multi_values=3, list='tags',
                   category='color,size', number='price')  # fmt: skip
  assert _decoded(source, source.train) == [(x[1], x[2], x[4]) for x in rows]
  np.testing.assert_array_equal(source.train.labels, [x[0] for x in rows])
  logs = [math.log1p(float(x[3])) if x[3] else 0 for x in rows]
  np.testing.assert_allclose(source.train.numbers[:, 0], logs, 1e-6)
  assert source.dropped['missing_numbers'] == sum(x[3] == '' for x in rows)
  # Ids in order of frequency behind the unknown one, in each field.
  counts = collections.Counter(x[1] for x in rows)
  field = source.fields.ids[0]
  own = source.counts[field.first_id : field.first_id + field.num_ids]
  assert own.tolist() == [0, *sorted(counts.values(), reverse=True)]
  guessed = _source(path, tmp_path)
  assert guessed.fields.numbers == ('price',)
  assert [x.name for x in guessed.fields.ids] == ['color', 'size', 'tags']
  assert guessed.inputs[0].columns['number'] == 'price'


def test_ids_and_amounts_are_told_apart(tmp_path):
  rng, num = np.random.default_rng(0), 5000
  whole = rng.integers(0, 10**6, num)
  columns = {
    'label': whole % 2,
    'visitor': rng.integers(0, 900, num),  # each of which comes several times
    'hour': rng.integers(0, 24, num),
    'pay': whole,
    'userID': whole,
    'item_id': whole,
    'paid': whole,
    'rate': np.round(rng.random(num), 3),
  }
  text = _text(zip(*columns.values(), strict=True), columns)
  _write(tmp_path / 'a.csv', text)
  parquet.write_table(pa.table(columns), tmp_path / 'a.parquet')
  missing = [float(x) if x % 7 else None for x in columns['visitor']]
  columns['visitor'] = missing  # as pandas has it
  parquet.write_table(pa.table(columns), tmp_path / 'b.parquet')
  for name in ('a.csv', 'a.parquet', 'b.parquet'):
    source = _source(tmp_path / name, tmp_path)
    names = [x.name for x in source.fields.ids]
    assert names == ['visitor', 'hour', 'userID', 'item_id'], name
    assert source.fields.numbers == ('pay', 'paid', 'rate')
    assert not any('.' in x for x in source.keys[1:900])


def test_two_known_names_of_labels_are_ambiguous(tmp_path):
  rows = [(i % 2, i % 3 // 2, f's{i % 5}') for i in range(60)]
  path = _write(tmp_path / 'a.csv', _text(rows, ('click', 'target', 'site')))
  with pytest.raises(errors.UserError, match='columns=label:click'):
    _source(path, tmp_path)
  source = _source(path, tmp_path, columns='label:target')
  np.testing.assert_array_equal(source.train.labels, [x[1] for x in rows])
  assert [x.name for x in source.fields.ids] == ['click', 'site']


@pytest.mark.parametrize('kind', ['xz', 'parquet'])
def test_forms_of_files_are_the_same(kind, tmp_path):
  rows = _rows()
  plain = _write(tmp_path / 'log.csv', _text(rows))
  path, data = tmp_path / f'log.csv.{kind}', plain.read_bytes()
  if kind == 'xz':
    path.write_bytes(lzma.compress(data))
  else:
    columns = dict(zip(HEADER, zip(*rows, strict=True), strict=True))
    columns['price'] = [float(x) if x else None for x in columns['price']]
    parquet.write_table(pa.table(columns), path)
  kinds = {'category': 'color,size', 'number': 'price', 'list': 'tags'}
  found, expected = (_source(x, tmp_path, **kinds) for x in (path, plain))
  for x, y in zip(found.train, expected.train, strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_splits_are_random_or_last_rows_or_files(tmp_path):
  rows = _rows(4000)
  path = _write(tmp_path / 'log.csv', _text(rows))
  kinds = {'category': 'color,size', 'number': 'price'}
  source = _source(path, tmp_path, valid='0.2', test='last:0.1', **kinds)
  sizes = [len(x) for x in (source.train, source.valid, source.test)]
  assert sum(sizes) == 4000 and sizes[2] == 400
  assert 0.16 < sizes[1] / 4000 < 0.2
  np.testing.assert_array_equal(source.test.labels, [x[0] for x in rows[3600:]])
  # Only rows for training are counted.
  assert source.counts[: source.fields.ids[0].num_ids].sum() == sizes[0]
  other = _write(
    tmp_path / 'new.csv', _text([*_rows(50, 1), (1, 'new', 's', 2, '')])
  )
  source = _source(path, tmp_path, test=str(other), **kinds)
  assert len(source.train) == 4000 and source.valid is None
  assert source.test.ids[-1, 0] == 0
  assert source.dropped['unknown_categories_in_test'] == 1


def test_numbers_are_transformed_by_training_rows(tmp_path):
  values = [0.5, 1, 3, 20, 400, -3]
  rows = [(i % 2, x, 'a') for i, x in enumerate(values)]
  path = _write(tmp_path / 'log.csv', _text(rows, ('y', 'x', 'c')))
  each = np.array(values)
  kinds = {'number': 'x', 'category': 'c'}
  for name, expected in (
    ('none', each),
    ('standard', (each - each.mean()) / each.std()),
    ('minmax', (each + 3) / 403),
  ):
    found = _source(path, tmp_path, numbers=name, **kinds).train.numbers[:, 0]
    np.testing.assert_allclose(found, expected, 1e-5)
  source = _source(path, tmp_path, numbers='buckets', **kinds)
  assert source.train.numbers.shape == (6, 0)
  expected = [math.floor(math.log(x) ** 2) if x > 2 else math.floor(x)
              for x in values]  # fmt: skip
  names = [source.keys[i] for i in source.train.ids[:, 0]]
  assert names == [f'x={x}' for x in expected]


def test_numbers_are_scaled_before_they_are_rounded(tmp_path):
  times = 1_700_000_000.5 + np.arange(1000)
  rows = [(i % 2, x, 'a') for i, x in enumerate(times)]
  path = _write(tmp_path / 'log.csv', _text(rows, ('y', 'time', 'c')))
  kinds = {'number': 'time', 'category': 'c', 'numbers': 'standard'}
  source = _source(path, tmp_path, **kinds)
  expected = (times - times.mean()) / times.std()
  np.testing.assert_allclose(source.train.numbers[:, 0], expected, 1e-6)


def test_rare_categories_are_unknown(tmp_path):
  rows = _rows()
  path = _write(tmp_path / 'log.csv', _text(rows))
  source = _source(path, tmp_path, min_count=20, category='color,size')
  counts = collections.Counter(x[1] for x in rows)
  common = {k for k, v in counts.items() if v >= 20}
  names = [source.keys[i] for i in source.train.ids[:, 0]]
  expected = [f'color={x[1]}' if x[1] in common else 'color?' for x in rows]
  assert names == expected
  assert source.dropped['rare_categories'] == len(counts) - len(common)


def test_hashes_need_no_vocabulary(tmp_path):
  path = _write(tmp_path / 'log.csv', _text(_rows()))
  source = _source(path, tmp_path, hash_size=7, category='color,size')
  assert source.fields.vocab == 14
  used = int(np.sum(source.counts > 0))
  assert source.dropped['hash_collisions'] == 9 + 4 - used > 0
  rows, unknown = source.encoder.encode(
    pa.table({'color': ['c1', 'never'], 'size': ['s', 'xl']}), False
  )
  assert not unknown and (rows.ids[:, 0] < 7).all()


def test_libsvm_has_columns_lists_or_numbers(tmp_path):
  lines = ['1 3:1 10:1', '-1 4:1 10:1', '-1 3:1 12:1'] * 20
  path = _write(tmp_path / 'a.libsvm', '\n'.join(lines) + '\n')
  source = _source(path, tmp_path)
  assert [x.num_ids for x in source.fields.ids] == [3, 3]
  assert source.train.labels[:3].tolist() == [1, 0, 0]
  lines = ['1 3:1 10:1', '0 4:1'] * 20
  source = _source(_write(tmp_path / 'b.libsvm', '\n'.join(lines)), tmp_path)
  assert source.fields.ids[0].pooling == 'mean'
  assert _decoded(source, source.train)[:2] == [('3|10',), ('4',)]
  lines = ['1 3:0.5 10:1', '0 4:2'] * 20
  path = _write(tmp_path / 'c.libsvm', '\n'.join(lines))
  source = _source(path, tmp_path, numbers='none', category='feature10')
  assert [x.num_ids for x in source.fields.ids] == [3]
  source = _source(path, tmp_path, numbers='none', number='feature3,feature4',
                   category='feature10')  # fmt: skip
  assert source.train.numbers[:2].tolist() == [[0.5, 0], [0, 2]]
  lines = ['1 0:7:1 1:2:1', '0 0:8:1 1:2:0.5'] * 20
  source = _source(_write(tmp_path / 'd.libffm', '\n'.join(lines)), tmp_path,
                   numbers='none')  # fmt: skip
  assert [x.name for x in source.fields.ids] == ['field0']
  assert source.train.numbers[:2, 0].tolist() == [1, 0.5]


def test_other_files_have_the_columns_of_the_first(tmp_path):
  # The first column is one of numbers, although in the test it never changes.
  first = _write(tmp_path / 'c.libsvm', '1 1:.5 2:1\n0 1:7 3:1\n' * 20)
  other = _write(tmp_path / 'd.libsvm', '1 1:1 2:1\n' * 20)
  source = _source(first, tmp_path, test=str(other), numbers='none')
  assert [x.name for x in source.fields.ids] == ['field2']
  assert source.train.numbers[:2, 0].tolist() == [0.5, 7]
  assert source.test.numbers[:, 0].tolist() == [1] * 20


_AS_OTHERS_WRITE = {
  'colons': lambda rows: _text(rows, HEADER[:4], '::'),
  'Excel': lambda rows: 'sep=;\n' + _text(rows, HEADER[:4], ';'),
  'pandas': lambda rows: _text(
    [(i, *x) for i, x in enumerate(rows)], ('', *HEADER[:4])
  ),
  'R': lambda rows: _text(
    [(i + 1, *x) for i, x in enumerate(rows)], HEADER[:4]
  ),
  'JSON lines': lambda rows: ''.join(
    json.dumps(dict(zip(HEADER, x, strict=False)) | {'more': {'a': 1}}) + '\n'
    for x in rows
  ),
  'missing labels': lambda rows: (
    _text(rows, HEADER[:4]) + ',c1,s,2\nnan,c1,,\n'
  ),
}


@pytest.mark.parametrize('form', _AS_OTHERS_WRITE)
def test_logs_as_others_write_them(form, tmp_path):
  rows = [x[:4] for x in _rows()]
  plain = _write(tmp_path / 'plain.csv', _text(rows, HEADER[:4]))
  path = _write(tmp_path / 'log.csv', _AS_OTHERS_WRITE[form](rows))
  found, expected = _source(path, tmp_path), _source(plain, tmp_path)
  for x, y in zip(found.train, expected.train, strict=True):
    np.testing.assert_array_equal(x, y)
  num_missing = 2 * (form == 'missing labels')
  assert found.dropped['missing_labels'] == num_missing


def test_decimal_commas_need_a_setting(tmp_path):
  rows = [(i % 2, 'a', f'1.{i:03d},5') for i in range(300)]
  path = _write(tmp_path / 'log.csv', _text(rows, ('y', 'c', 'price'), ';'))
  with pytest.raises(errors.UserError, match='config.data.decimal=,'):
    _source(path, tmp_path)
  source = _source(path, tmp_path, decimal=',', numbers='none')
  assert source.train.numbers[:2, 0].tolist() == [1000.5, 1001.5]
  path.write_text(path.read_text().replace('1.000,5', 'unknown', 1))
  with pytest.raises(errors.UserError, match="but for some such as 'unknown'"):
    _source(path, tmp_path, decimal=',')


def test_integers_that_no_float_is_are_categories(tmp_path):
  numbers = [2**60 + i for i in range(300)]
  table = pa.table({'click': [i % 2 for i in range(300)], 'x': numbers})
  parquet.write_table(table, tmp_path / 'a.parquet')
  fields = _source(tmp_path / 'a.parquet', tmp_path).fields
  assert [x.name for x in fields.ids] == ['x'] and not fields.numbers


def test_times_that_python_has_not_are_one_line_or_names(tmp_path):
  times = pa.array([2**62, -(2**62), 0] * 9, pa.timestamp('us'))
  flags, names = [i % 2 for i in range(27)], [f'a{i % 3}' for i in range(27)]
  table = pa.table({'click': flags, 'x': names, 't': times})
  parquet.write_table(table, tmp_path / 'a.parquet')
  with contextlib.suppress(errors.UserError):
    _source(tmp_path / 'a.parquet', tmp_path)


def test_json_may_change_its_types_behind_the_first_rows(tmp_path, monkeypatch):
  monkeypatch.setattr(tables, '_BLOCK_BYTES', 200)
  rows = [{'click': i % 2, 'x': 'ab', 'z': 7} for i in range(20)]
  rows += [{'click': 1, 'x': 5, 'z': 'cd'} for i in range(20)]
  path = tmp_path / 'log.jsonl'
  path.write_text(''.join(json.dumps(x) + '\n' for x in rows))
  source = _source(path, tmp_path)
  assert len(source.train) == 40 and 'x=5' in source.keys[:]


def test_the_fingerprint_is_of_what_is_trained_on(tmp_path):
  rows = _rows()
  paths = [tmp_path / f'{i}.csv' for i in range(4)]
  texts = [_text(rows), _text(rows), _text([*rows[1:], rows[0]])]
  texts.append(_text([(1 - rows[0][0], *rows[0][1:]), *rows[1:]]))
  for path, text in zip(paths, texts, strict=True):
    _write(path, text)
  kinds = {'category': 'color,size', 'number': 'price'}
  found = [_source(x, tmp_path, **kinds).fingerprint for x in paths]
  assert found[0] == found[1] and len(set(found)) == 3


def test_few_bad_rows_are_counted_and_named(tmp_path):
  text = _text([(x[0], x[1]) for x in _rows(1000)], HEADER[:2])
  source = _source(_write(tmp_path / 'log.csv', text + '1\n'), tmp_path)
  assert source.dropped['bad_rows'] == 1 and len(source.train) == 1000
  assert '1 of 2 fields' in source.dropped['problems'][0]


def _seen(source, position=None, done=0):
  """(position, rows as bytes) of every step of all parts, in order."""
  found = []
  for item in source.items(position, done):
    batch = item.batch
    steps = int(batch.num_steps[0])
    size = source.steps.part_examples
    for step in range(steps):
      here = slice(step * size, (step + 1) * size)
      ids = batch.ids[:, here].reshape(-1, batch.ids.shape[2])
      labels = batch.labels[:, here].reshape(-1)
      rows = [(*x, y) for x, y in zip(ids.tolist(), labels, strict=True)
              if y >= 0]  # fmt: skip
      found.append((item.position, item.done_after, rows))
  return found


@pytest.mark.parametrize('max_rows', [1 << 23, 100])
def test_epochs_are_permutations_that_parts_share(
  max_rows, tmp_path, monkeypatch
):
  monkeypatch.setattr(loader, '_MAX_ROWS', max_rows)
  monkeypatch.setattr(loader, '_BLOCK_ROWS', 16)
  monkeypatch.setattr(loader, '_GROUP_BLOCKS', 4)
  rows = [(i % 2, i) for i in range(2405)]
  path = _write(tmp_path / 'log.csv', _text(rows, ('y', 'number')))
  args = {'category': 'number', 'epochs': 2}
  whole = _seen(_source(path, tmp_path, **args))
  size = len(whole) // 2
  orders = [sum((x[2] for x in whole[i : i + size]), []) for i in (0, size)]
  assert all(sorted(x) == sorted(orders[0]) for x in orders)
  assert len(set(orders[0])) == 2405 and orders[0] != orders[1]
  assert orders[0] != sorted(orders[0])
  # Half of each step in each of two parts: the same steps.
  halves = _seen(_source(path, tmp_path, num_parts=2, part_examples=16, **args))
  assert [x[2] for x in halves] == [x[2] for x in whole]
  # From any position on.
  position, done, _ = whole[33]
  last = max(i for i, x in enumerate(whole) if x[0] == position)
  assert (
    _seen(_source(path, tmp_path, **args), position, done)
    == (whole[last + 1 :])
  )


def test_an_encoder_needs_no_training_data(tmp_path):
  rows = _rows()
  path = _write(tmp_path / 'log.csv', _text(rows))
  kinds = {'category': 'color,size', 'number': 'price', 'list': 'tags'}
  source = _source(path, tmp_path, numbers='standard', **kinds)
  source.encoder.save(tmp_path)
  encoder = encoder_lib.load(tmp_path)
  columns = dict(zip(HEADER, zip(*rows, strict=True), strict=True))
  del columns['label']
  found, unknown = encoder.encode(pa.table(columns), False)
  assert not unknown
  np.testing.assert_array_equal(found.ids, source.train.ids)
  np.testing.assert_array_equal(found.numbers, source.train.numbers)
  columns['color'] = ['never', *columns['color'][1:]]
  found, unknown = encoder.encode(pa.table(columns), False)
  assert unknown == {'color': 1} and found.ids[0, 0] == 0
  del columns['size']
  with pytest.raises(errors.UserError, match='column size is missing'):
    encoder.encode(pa.table(columns), False)


def test_the_embedded_log_is_as_planted():
  log = toyclicks.generate(100_000)
  first, pairs, all_ = log.log_odds.values()
  chances = 1 / (1 + np.exp(-all_))
  error = 4 * np.sqrt(np.mean(chances * (1 - chances)) / len(log.click))
  assert log.click.mean() == pytest.approx(chances.mean(), abs=error)
  # Fields alone tell nothing of pairs and triples.
  for name, values in log.columns.items():
    for rest in (pairs - first, all_ - pairs):
      num = np.bincount(values)
      mean = np.bincount(values, rest) / num
      is_usual = num > 500
      limit = 6 * rest.std() / np.sqrt(num[is_usual])
      assert (np.abs(mean[is_usual]) < limit).all(), name


@pytest.mark.parametrize(
  ('form', 'end', 'rows', 'sizes', 'clicks'),
  [
    ('criteo10k', 'tsv', (8000, 2000), (26, 13), 0.22),
    ('avazu10k', 'csv', (8999, 1000), (24, 0), 0.16),
  ],
)
def test_real_logs(form, end, rows, sizes, clicks, shared_data, tmp_path):
  train, test = (shared_data / 'ctr' / form / f'{x}.{end}'
                 for x in ('train', 'test'))  # fmt: skip
  source = _source(train, tmp_path, test=str(test))
  assert (len(source.train), len(source.test)) == rows
  assert (len(source.fields.ids), len(source.fields.numbers)) == sizes
  assert examples.PADDING not in source.train.ids
  assert source.train.labels.mean() == pytest.approx(clicks, abs=0.02)


@pytest.mark.parametrize(
  'size, says', [(10**9, '32-bit'), (10**8, 'counts of')]
)
def test_hashes_without_room_are_refused_before_they_are_counted(
  tmp_path, monkeypatch, size, says
):
  path = tmp_path / 'log.csv'
  path.write_text('label,a,b,c\n' + '1,x,y,z\n0,z,y,x\n' * 20)
  monkeypatch.setattr(resources, 'available_bytes', lambda: 10**9)
  monkeypatch.setattr(raw_log.RawLog, '_numbered', None)
  with pytest.raises(errors.UserError) as caught:
    _source(path, tmp_path, hash_size=size)
  assert says in str(caught.value)
  assert f'lower --config.data.hash_size={size}' in str(caught.value)


def test_a_cache_from_before_formats_had_numbers_is_used(tmp_path, monkeypatch):
  path = _write(tmp_path / 'log.csv', _text(_rows()))
  folder_of, identities = cache.folder_of, []

  def kept(*args):
    identities.append(args[-1])
    return folder_of(*args)

  monkeypatch.setattr(cache, 'folder_of', kept)
  folder = _source(path, tmp_path).encoded.folder
  assert identities[-1][0] == encode.FORMAT.number
  manifest = checksums.opened(folder)
  del manifest['format'], manifest['jaxemb']
  checksums.seal(folder, manifest)
  before = (folder / 'manifest.json').read_bytes()
  _source(path, tmp_path)
  assert (folder / 'manifest.json').read_bytes() == before


def test_a_log_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
  path = _write(tmp_path / 'log.csv', _text(_rows()))
  read = raw_log.RawLog.read

  def then_add(self, *args):
    read(self, *args)
    with path.open('a') as file:
      file.write('1,')

  monkeypatch.setattr(raw_log.RawLog, 'read', then_add)
  with pytest.raises(errors.UserError, match=r'log\.csv was changed while'):
    _source(path, tmp_path)
