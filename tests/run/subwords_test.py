"""Whole runs of words with subwords."""

import pytest

from tests import runs

SETTINGS = {
  'model.subwords': '3-5',
  'model.buckets': 5000,  # some are shared
  'train.epochs': 2,  # a dispatch each
  'mesh.data': 1,
}


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('runs') / 'finished'
  assert runs.run(workdir, SETTINGS) == 0
  return workdir


def test_a_run_that_was_killed_ends_with_the_same_bits(
  finished, tmp_path, interrupting
):
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    runs.run(tmp_path, SETTINGS | runs.SAVE_ALWAYS)
  other = runs.refused(tmp_path, SETTINGS | {'model.subwords': '3-6'})
  assert 'model.subwords' in other
  assert runs.run(tmp_path, SETTINGS) == 0
  assert 'resuming after' in runs.log(tmp_path)
  assert runs.vectors(tmp_path) == runs.vectors(finished)
