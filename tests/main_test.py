"""The command line as a user meets it: first wrong inputs, exit codes."""

import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[1]


def _run(*args: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, '-m', 'jaxemb.main', *args],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )


@pytest.mark.parametrize(
  ('args', 'words'),
  [
    ([], 'give a config'),
    (['--config=configs/nope.py'], 'no config file configs/nope.py'),
    (
      ['--config', 'configs/nope.py:small', '--config.seed=2'],
      'no config file configs/nope.py',
    ),
    (
      ['--config=configs', '--config.eval.paths=none'],
      'cannot read the config configs: ',
    ),
    (['--config=configs/wiki.py:nope'], "no variant 'nope'"),
    (['--config.model.dmi=3'], '--config.model.dim'),
    (['--config.model.dim=many'], 'invalid literal'),
    (['--config.model.dim=1.5'], 'invalid literal'),
    (['--config.model.dim=0'], 'config.model.dim=0 must be at least 1'),
    (['--config.data.lowercase=perhaps'], 'boolean'),
    (['--confg=x'], 'Did you mean: config'),
    (['words.txt'], "'words.txt' is not understood"),
    (['--config.data.path=/no/such/text'], '/no/such/text does not exist'),
  ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(tmp_path, args, words):
  if args and not args[0].startswith('--config='):
    args = ['--config=configs/wiki.py:smoke', *args]
  result = _run(*args, f'--workdir={tmp_path / "run"}')
  assert result.returncode == 2, result.stderr
  last = result.stderr.strip().splitlines()[-1]
  assert last.startswith('jaxemb: ') and words in last
  assert 'Traceback' not in result.stderr


def test_help_does_not_train():
  result = _run('--help')
  assert result.returncode == 0
  assert '--config.model.dim=100' in result.stdout
