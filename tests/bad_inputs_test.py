"""Every case of bad_inputs.py has its line; some cases of chaos.py."""

import collections
import functools

import pytest

from tests import bad_inputs, chaos, compiling, forks


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Files that are wrong, and a run."""
  folder = tmp_path_factory.mktemp('inputs')
  bad_inputs.write_files(folder)
  return folder


def _check(case, folder):
  code, said = bad_inputs.run(case, folder)
  assert not bad_inputs.problem(case, code, said), said


@pytest.mark.slow
@pytest.mark.parametrize('case', bad_inputs.CASES, ids=lambda x: x.says)
def test_a_line_and_the_stated_exit_code(case, folder):
  _check(case, folder)


@pytest.mark.slow
@pytest.mark.parametrize('case', bad_inputs.IN_SHELL, ids=lambda x: x.command)
def test_streams_limits_and_environment(case, folder, monkeypatch):
  for name, value in compiling.environment().items():
    monkeypatch.setenv(name, value)
  _check(case, folder)


@pytest.mark.slow
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


@pytest.mark.slow
def test_damage_and_a_kill_are_noticed_or_harmless(tmp_path):
  # One file of the run, and one of its cache.
  tried = functools.partial(chaos.Tester.killed_and_damaged, every=1000)
  found = collections.Counter(chaos.outcome(tried, tmp_path, forks.server()))
  assert {x for x, _ in found} == {'kill', 'run', 'cache'}
  assert {x for _, x in found} <= {'same', 'noticed'}, found
  assert found['kill', 'same'] == 1


@pytest.mark.slow
def test_nothing_is_lost_or_read_twice_over_changes_of_topology(tmp_path):
  counted = chaos.Tester.counted
  assert chaos.outcome(counted, tmp_path, forks.server()) == 'same'
