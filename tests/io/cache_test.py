"""Folders of the cache: made once, made again if they are damaged."""

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


def test_the_identity_of_files_has_samples_of_their_bytes(tmp_path):
  path = tmp_path / 'x'
  path.write_bytes(bytes(1000))
  before, status = cache.identity_of([path]), path.stat()
  assert cache.identity_of([path]) == before
  path.write_bytes(bytes(999) + b'a')
  os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
  assert cache.identity_of([path]) != before
