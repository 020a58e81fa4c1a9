"""The package: its names and version, and numba's cache, which is private."""

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

import jaxemb

ROOT = pathlib.Path(__file__).parents[1]


def test_names():
  assert {'train', 'load', 'Embeddings'} <= set(dir(jaxemb))
  with pytest.raises(AttributeError, match='nothing'):
    _ = jaxemb.nothing


@pytest.mark.skipif(not hasattr(os, 'getuid'), reason='needs file owners')
def test_a_cache_that_others_may_write_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  own = tmp_path / f'jaxemb-numba-{os.getuid()}'

  def made():
    folder = pathlib.Path(jaxemb._private_cache())
    assert folder.stat().st_mode & 0o777 == 0o700
    return folder

  assert made() == own == made()  # the next run finds it
  own.chmod(0o777)
  assert made() != own
  own.rmdir()
  (tmp_path / 'elsewhere').mkdir(mode=0o700)
  own.symlink_to(tmp_path / 'elsewhere')
  assert made() != own
  # A folder that exists already and belongs to somebody else.
  monkeypatch.setattr(os, 'getuid', lambda: 12345)
  (tmp_path / 'jaxemb-numba-12345').mkdir(mode=0o700)
  assert made().name not in (own.name, 'jaxemb-numba-12345')


@pytest.mark.slow
def test_numba_uses_it_where_package_and_home_are_read_only(tmp_path):
  code = (
    'import os; os.access = lambda *_: False; import jaxemb; '
    "print(os.environ['NUMBA_CACHE_DIR'])"
  )
  for given, expected in (
    ({}, str(tmp_path / f'jaxemb-numba-{os.getuid()}')),
    ({'NUMBA_CACHE_DIR': '/chosen'}, '/chosen'),
  ):
    environment = {'TMPDIR': str(tmp_path)} | given
    command = [sys.executable, '-c', code]
    found = subprocess.check_output(command, cwd=ROOT, env=environment)
    assert found.decode().strip() == expected
