"""Folders of the cache: made once, made again if they are damaged."""

import contextlib
import os

import pytest

from jaxemb import errors
from jaxemb.io import cache


def test_a_folder_is_made_once_and_again_if_it_is_damaged(tmp_path):
  made, folder = [], cache.folder_of(tmp_path, 'a-', [1, {'b': 2}])
  assert folder != cache.folder_of(tmp_path, 'a-', [1, {'b': 3}])

  def load(folder):
    text = (folder / 'x').read_text()
    if text != 'whole':
      raise ValueError(text)
    return text

  def make(folder):
    made.append(folder)
    (folder / 'x').write_text('whole')

  for damaged in ('', 'cut'):
    if damaged:
      (folder / 'x').write_text(damaged)
    for _ in range(2):
      assert cache.opened(folder, load, make) == 'whole'
  assert len(made) == 2
  (folder / 'x').unlink()
  (folder / 'x').mkdir()  # which cannot be read
  with pytest.raises(errors.UserError, match='set JAXEMB_CACHE to another'):
    cache.opened(folder, load, make)
  assert [*tmp_path.iterdir()] == [folder]


def test_the_log_has_only_folders_that_are_made_again(tmp_path, caplog):
  caplog.set_level('INFO', 'jaxemb')

  def load(folder):
    if not (folder / 'x').exists():
      raise ValueError('holds nothing')

  def make(folder):
    (folder / 'x').touch()

  cache.opened(tmp_path / 'a', load, make)
  assert not caplog.messages
  (tmp_path / 'a' / 'x').unlink()
  cache.opened(tmp_path / 'a', load, make)
  assert caplog.messages == [f'{tmp_path}/a is made again: holds nothing']


def test_the_identity_of_files_has_samples_of_their_bytes(tmp_path):
  path = tmp_path / 'x'
  path.write_bytes(bytes(1000))
  before, status = cache.identity_of([path]), path.stat()
  assert cache.identity_of([path]) == before
  path.write_bytes(bytes(999) + b'a')
  os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
  assert cache.identity_of([path]) != before


def _changed(path, how):
  data = path.read_bytes()
  if how == 'appended':
    path.write_bytes(data + b'more')
  elif how == 'cut':
    path.write_bytes(data[:-4])
  elif how == 'written over':
    path.write_bytes(data[::-1])
  elif how == 'written over and appended':
    path.write_bytes(data[::-1] + b'more')
  elif how == 'touched':
    path.touch()
  elif how == 'removed':
    path.unlink()


@pytest.mark.parametrize(
  'how, is_refused, may_grow',
  [
    ('not at all', False, False),
    ('touched', False, False),
    ('appended', True, False),
    ('appended', False, True),
    ('cut', True, True),
    ('written over', True, True),
    ('written over and appended', True, True),
    ('removed', False, False),
  ],
)
def test_a_file_that_changes_while_it_is_read_is_named(
  tmp_path, how, is_refused, may_grow
):
  path = tmp_path / 'text.txt'
  path.write_bytes(bytes(range(200)))
  os.utime(path, (1, 1))
  identity = cache.identity_of([path])
  _changed(path, how)
  refused = contextlib.nullcontext()
  if is_refused:
    refused = pytest.raises(errors.UserError, match=r'text\.txt was changed')
  with refused:
    cache.check_unchanged([path], identity, lambda _: may_grow)
