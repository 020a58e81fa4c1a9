"""Files of folders: parts, splits, and what is refused."""

import logging

import pytest

from jaxemb import errors
from jaxemb.io import inputs


def _folder(tmp_path, names):
  for name in names.split():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('x')
  return str(tmp_path)


def _names(files):
  return ' '.join(x.name for x in files)


@pytest.mark.parametrize(
  'names, train, valid, test',
  [
    ('a.csv README.md .b _SUCCESS license.txt', 'a.csv', '', ''),
    ('train.txt test.txt', 'train.txt', '', 'test.txt'),
    ('train2id.txt valid2id.txt', 'train2id.txt', 'valid2id.txt', ''),
    ('wiki.train.tokens wiki.dev.tokens', 'wiki.train.tokens',
     'wiki.dev.tokens', ''),
    ('part-2.csv part-10.csv', 'part-2.csv part-10.csv', '', ''),
    ('train-00000-of-00002.parquet train-00001-of-00002.parquet '
     'test-00000-of-00001.parquet',
     'train-00000-of-00002.parquet train-00001-of-00002.parquet', '',
     'test-00000-of-00001.parquet'),
    ('part-0-0f3ae5b2-0c1d-c0.csv part-1-0f3ae5b2-0c1d-c0.csv',
     'part-0-0f3ae5b2-0c1d-c0.csv part-1-0f3ae5b2-0c1d-c0.csv', '', ''),
    ('train/part-0 train/part-1 test/part-0', 'part-0 part-1', '', 'part-0'),
    ('only/train.txt only/valid.txt', 'train.txt', 'valid.txt', ''),
    ('train.txt test.txt names.map', 'train.txt', '', 'test.txt'),
  ],
)  # fmt: skip
def test_parts_are_one_input_and_splits_have_names(
  names, train, valid, test, tmp_path
):
  found = inputs.find(
    _folder(tmp_path, names), is_other=lambda x: x.suffix == '.map'
  )
  held = {k: _names(x) for k, x in found.splits.items()}
  assert _names(found.train) == train
  assert held == {k: x for k, x in {'valid': valid, 'test': test}.items() if x}


@pytest.mark.parametrize(
  'names',
  [
    'a.csv b.csv',
    'test.csv valid.csv',
    'train.csv train_2.txt test.csv',
    'u1.base u2.base',
    'ratings_1.csv ratings_2.csv',
    'train/a.csv train/b.csv test/c.csv',
  ],
)
def test_other_folders_are_refused_with_the_list(names, tmp_path):
  with pytest.raises(errors.UserError) as caught:
    inputs.find(_folder(tmp_path, names))
  message = str(caught.value)
  assert '--config.data.path' in message and '\n' not in message
  first = names.split()[0].split('/')[0]
  assert first in message


def test_names_may_have_commas(tmp_path):
  folder = _folder(tmp_path, 'a,b.csv a')
  assert _names(inputs.together(f'{folder}/a,b.csv')) == 'a,b.csv'
  assert _names(inputs.together(f'{folder}/a, {folder}/a')) == 'a a'


def test_files_that_are_named_are_one_input(tmp_path):
  folder = _folder(tmp_path, 'a.csv b.txt c.csv')
  found = inputs.find(f'{folder}/b.txt, {folder}/a.csv')
  assert _names(found.train) == 'b.txt a.csv'
  assert _names(inputs.find(f'{folder}/*.csv').train) == 'a.csv c.csv'
  with pytest.raises(errors.UserError, match='no file .*x; give a list'):
    inputs.find(f'{folder}/x', 'list')


def test_names_together_may_be_longer_than_a_name_can_be(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  names = [f'{"n" * 60}{i}.csv' for i in range(9)]
  for name in names:
    (tmp_path / name).write_text('1 2')
  assert [str(x) for x in inputs.find(','.join(names)).train] == names
  for name in ('n' * 300, '~nobody/rows', 'a\0b'):
    with pytest.raises(errors.UserError, match='there is no file'):
      inputs.find(name)


def test_settings_go_before_splits_of_a_folder(tmp_path, caplog):
  folder = _folder(tmp_path, 'train.csv test.csv valid.csv')
  settings = {'path': folder, 'valid': '0.1', 'test': ''}
  with caplog.at_level(logging.INFO, 'jaxemb'):
    found = inputs.resolve(settings)
  assert found == {
    'path': f'{folder}/train.csv', 'valid': '0.1', 'test': f'{folder}/test.csv'
  }  # fmt: skip
  assert 'config.data.test=test.csv; not used: valid.csv' in caplog.text


def test_what_holds_nothing_out_has_no_splits(tmp_path):
  folder = _folder(tmp_path, 'train.csv test.csv')
  with pytest.raises(errors.UserError, match='several splits, with test.csv'):
    inputs.together(folder)
  assert _names(inputs.together(f'{folder}/test.csv')) == 'test.csv'
