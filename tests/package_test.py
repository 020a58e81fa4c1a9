"""Importing the package: numba's cache is private where homes are read-only."""

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

import jaxemb

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.skipif(not hasattr(os, 'getuid'), reason='needs file owners')
def test_a_cache_that_others_may_write_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  own = tmp_path / f'jaxemb-numba-{os.getuid()}'
  assert jaxemb._private_cache() == str(own)
  assert own.stat().st_mode & 0o777 == 0o700
  assert jaxemb._private_cache() == str(own)  # the next run finds it

  def refused(name):
    folder = jaxemb._private_cache()
    assert pathlib.Path(folder).name.startswith('jaxemb-numba-')
    assert folder != str(tmp_path / name)
    return os.stat(folder).st_mode & 0o777 == 0o700

  own.chmod(0o777)
  assert refused(own.name)
  own.rmdir()
  (tmp_path / 'elsewhere').mkdir(mode=0o700)
  own.symlink_to(tmp_path / 'elsewhere')
  assert refused(own.name)
  # A folder that exists already and belongs to somebody else.
  monkeypatch.setattr(os, 'getuid', lambda: 12345)
  (tmp_path / 'jaxemb-numba-12345').mkdir(mode=0o700)
  assert refused('jaxemb-numba-12345')


def test_numba_uses_it_where_package_and_home_are_read_only(tmp_path):
  code = (
    'import os; os.access = lambda *_: False; '
    "import jaxemb; print(os.environ['NUMBA_CACHE_DIR'])"
  )

  def folder(**environment):
    done = subprocess.run(
      [sys.executable, '-c', code],
      cwd=ROOT,
      env={'TMPDIR': str(tmp_path), **environment},
      capture_output=True,
      text=True,
      check=True,
    )
    return done.stdout.strip()

  assert folder().startswith(str(tmp_path / 'jaxemb-numba-'))
  assert folder(NUMBA_CACHE_DIR='/chosen') == '/chosen'
