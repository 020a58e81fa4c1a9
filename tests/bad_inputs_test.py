"""Every case of experiments/bad_inputs.py has its line; some of chaos.py."""

import pathlib
import sys

import pytest

from tests import compiling

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'experiments'))
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


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
  """A folder with a run that nothing happened to."""
  folder = tmp_path_factory.mktemp('chaos') / 'alone'
  chaos.write_text(folder.parent / 'text.txt')
  code, said = chaos.here(folder)
  assert code == 0, said
  return folder


def test_damage_is_noticed_or_harmless(alone):
  whole = chaos.vectors(alone)
  found = [*chaos.damages(alone, whole, alone.parent, 0, every=9)]
  assert {x.kind for x in found} == {'run', 'cache'}
  outcomes = {x.outcome for x in found}
  assert 'same' in outcomes and outcomes <= {'same', 'noticed'}, found


@pytest.mark.slow
@pytest.mark.parametrize('numbers', [(9,), (15, 15)])
def test_a_killed_run_ends_with_the_same_vectors(alone, numbers, monkeypatch):
  for name, value in compiling.environment().items():
    monkeypatch.setenv(name, value)
  folder = alone.parent / f'killed{len(numbers)}'
  args = folder, chaos.vectors(alone), 'saved', numbers, 0.05
  assert chaos.kill(*args) == 'same'
