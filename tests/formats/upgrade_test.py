"""The commit before reads what this one writes, or says in a line why not."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.formats import readers, write

_ROOT = pathlib.Path(__file__).parents[2]
_BUILD_SECS = 300


def _git(*args: str) -> bytes:
  """Output of git in this checkout; skips the test if there is none."""
  command = ['git', '-C', str(_ROOT), *args]
  try:
    return subprocess.run(command, check=True, capture_output=True).stdout
  except (OSError, subprocess.CalledProcessError):
    pytest.skip('there is no commit before this one here')


def _pip(*args: object) -> None:
  """Runs pip; skips the test if it cannot, as without a network."""
  command = [sys.executable, '-m', 'pip', '-q', *map(str, args)]
  try:
    subprocess.run(
      command, check=True, capture_output=True, timeout=_BUILD_SECS
    )
  except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
    pytest.skip(f'no wheel can be built here: {error}')


@pytest.fixture(scope='module')
def before(tmp_path_factory) -> pathlib.Path:
  """A folder with the package of the commit before, from its wheel."""
  folder = tmp_path_factory.mktemp('before')
  archive, source = folder / 'source.tar', folder / 'source'
  archive.write_bytes(_git('archive', 'HEAD~1'))
  shutil.unpack_archive(archive, source)
  _pip('wheel', '--no-deps', '-w', folder, source)
  (wheel,) = folder.glob('*.whl')
  _pip('install', '--no-deps', '--target', folder / 'installed', wheel)
  return folder / 'installed'


def _run(before: pathlib.Path, folder: pathlib.Path, *args: object):
  """Runs Python with the package of the commit before."""
  paths = {
    'PYTHONPATH': str(before),
    'JAXEMB_CACHE': str(folder / write.CACHES),
  }
  return subprocess.run(
    [sys.executable, *map(str, args)],
    cwd=folder,
    env=os.environ | paths,
    capture_output=True,
    text=True,
  )


def _check_read(before: pathlib.Path, folder: pathlib.Path) -> None:
  """All files have the same numbers for it, or it refuses them in a line."""
  done = _run(before, folder, readers.__file__, '.')
  assert done.returncode == 0, done.stderr
  path, *found = map(json.loads, done.stdout.splitlines())
  assert pathlib.Path(path).is_relative_to(before)
  assert [name for name, _ in found] == [*readers.READERS]
  for name, line in found:
    assert '\n' not in line
    if line:
      print(f'the commit before refuses {name}: {line}')


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commit_before_reads_and_resumes_or_refuses(before, tmp_path):
  write.make(tmp_path)
  write.write_expected(tmp_path)
  for name in ('run', 'stored-run', 'clicks'):
    export = tmp_path / name / 'export'
    export.rename(tmp_path / 'aside')
    config, settings = write.RUNS[name]
    flags = [f'--config.{k}={x}' for k, x in settings.items()]
    done = _run(
      before, tmp_path, '-m', 'jaxemb.main', f'--config={config}',
      f'--workdir={name}', *flags,
    )  # fmt: skip
    assert 'Traceback' not in done.stderr, done.stderr
    assert done.returncode in (0, 2), done.stderr
    if done.returncode:  # it refuses, and what is there is read below
      print(f'the commit before refuses {name}: {done.stderr.splitlines()[-1]}')
      (tmp_path / 'aside').rename(export)
    else:
      log = (tmp_path / name / 'log.txt').read_text()
      assert 'resuming after' in log
      shutil.rmtree(tmp_path / 'aside')
  _check_read(before, tmp_path)
