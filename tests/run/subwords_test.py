"""Whole runs of words with subwords: resuming, exports, unseen words."""

import numpy as np
import pytest

import jaxemb
from jaxemb.storage import orbax_export
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


def test_vectors_are_means_of_the_exported_rows(finished):
  vectors = jaxemb.load(finished)
  words = orbax_export.read(finished / 'export' / 'orbax')['words']
  for row in (0, 5, len(vectors) - 1):
    word = vectors.index_to_key[row]
    rows = [words[row], *(x for _, x in vectors.ngrams(word))]
    np.testing.assert_allclose(vectors[word], np.mean(rows, 0), 1e-4, 1e-6)
  known = next(x for x in vectors.index_to_key if len(x) > 6)
  unseen = f'{known}{known[-3:]}'
  rows = [x for _, x in vectors.ngrams(unseen)]
  assert unseen not in vectors.key_to_index and np.any(rows)
  np.testing.assert_allclose(vectors[unseen], np.mean(rows, 0), 1e-4, 1e-6)


def test_unseen_words_of_benchmarks_are_scored(finished, tmp_path):
  known = jaxemb.load(finished).index_to_key[:4]
  path = tmp_path / 'pairs.txt'
  lines = [f'{x} {x}hoods {i}' for i, x in enumerate(known)]
  path.write_text('\n'.join([*lines, f'{known[0]} {known[1]} 5']))
  workdir = tmp_path / 'run'
  assert runs.run(workdir, SETTINGS | {'eval.paths': str(path)}) == 0
  scores = runs.report(workdir)['evaluation']['pairs']
  assert scores['found'] == scores['total'] == 5


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
