"""Every case of experiments/bad_inputs.py has its line; some of chaos.py."""

import pathlib
import sys

import pytest

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


def test_damage_is_noticed_or_harmless(tmp_path):
  chaos.write_text(tmp_path / 'text.txt')
  code, said = chaos.here(tmp_path / 'alone')
  assert code == 0, said
  whole = chaos.vectors(tmp_path / 'alone')
  found = [*chaos.damages(tmp_path / 'alone', whole, tmp_path, 0, every=9)]
  assert {x.kind for x in found} == {'run', 'cache'}
  assert {x.outcome for x in found} <= {'same', 'noticed'}, found


@pytest.mark.slow
@pytest.mark.parametrize('numbers', [(9,), (15, 15)])
def test_a_killed_run_ends_with_the_same_vectors(tmp_path, numbers):
  chaos.write_text(tmp_path / 'text.txt')
  assert chaos.start(tmp_path / 'alone').wait(300) == 0
  whole = chaos.vectors(tmp_path / 'alone')
  args = tmp_path / 'killed', whole, 'saved', numbers, 0.05
  assert chaos.kill(*args) == 'same'
