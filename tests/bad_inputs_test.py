"""Every case of experiments/bad_inputs.py has its line; some of chaos.py."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
sys.path.append(str(_ROOT / 'experiments'))
import bad_inputs  # noqa: E402
import chaos  # noqa: E402


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Files that are wrong, and a run."""
  folder = tmp_path_factory.mktemp('inputs')
  bad_inputs.write_files(folder)
  return folder


def _check(case, folder):
  code, said = bad_inputs.run(case, folder)
  assert not bad_inputs.problem(case, code, said), said


@pytest.mark.parametrize('case', bad_inputs.CASES, ids=lambda x: x.says)
def test_a_line_and_the_stated_exit_code(case, folder):
  _check(case, folder)


@pytest.mark.slow
@pytest.mark.parametrize('case', bad_inputs.IN_SHELL, ids=lambda x: x.command)
def test_streams_limits_and_environment(case, folder):
  _check(case, folder)


def test_damaged_files_of_a_run(folder):
  for case in bad_inputs.damaged(folder):
    _check(case, folder)


def test_the_tester_notices():
  case = bad_inputs.Case('', 'so it is')
  assert not bad_inputs.problem(case, 2, 'jaxemb: so\n  it is')
  for code, said in (
    (1, 'so it is'),
    (2, 'so it was'),
    (2, 'Traceback so it is'),
  ):
    assert bad_inputs.problem(case, code, said)


def _chaos(tmp_path, *flags):
  """The table that chaos.py makes: it forks, and this process has threads."""
  output = tmp_path / 'found.json'
  done = subprocess.run(
    [sys.executable, chaos.__file__, f'--output={output}', *flags],
    env=os.environ | {'PYTHONPATH': str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=900,
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(output.read_text())
  assert not found['lost']
  return found['results']


def test_damage_and_a_kill_are_noticed_or_harmless(tmp_path):
  none = '--moves=0', '--limits=0', '--counts=0'
  found = _chaos(tmp_path, '--only=kernel', '--kills=1', '--every=25', *none)
  assert found.keys() == {'kill', 'run', 'cache'}


@pytest.mark.slow
def test_nothing_is_lost_or_read_twice_over_changes_of_topology(tmp_path):
  none = '--kills=0', '--moves=0', '--limits=0', '--every=0'
  assert _chaos(tmp_path, '--only=edges', *none) == {'count': {'same': 1}}


@pytest.mark.slow
def test_a_killed_run_goes_on_elsewhere_with_the_same_vectors(tmp_path):
  none = '--kills=0', '--limits=0', '--every=0', '--counts=0'
  found = _chaos(tmp_path, '--only=row', '--moves=1', *none)
  assert found == {'moved': {'same': 1}}
