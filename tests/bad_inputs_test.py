"""Every case of experiments/bad_inputs.py has its exit code and its line."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'experiments'))
import bad_inputs  # noqa: E402


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
