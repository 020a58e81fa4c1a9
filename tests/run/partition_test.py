"""Runs of sub-models: side by side, as jobs, interrupted, merged, refused."""

import json
import os
import pathlib
import re
import shutil
import signal
import time

import numpy as np
import pytest

import jaxemb
from jaxemb import errors
from jaxemb.cli import merge
from jaxemb.run import lifecycle as train
from jaxemb.run import metrics, rundir
from jaxemb.runtime import distributed
from jaxemb.storage import orbax_export, word2vec_format
from tests import runs

_NUM_PARTS = 3
_SETTINGS = {
  'train.epochs': 2,
  'strategy.name': 'partition',
  'strategy.num_parts': _NUM_PARTS,
}


def _run(workdir: pathlib.Path, settings=()) -> int:
  return runs.run(workdir, _SETTINGS | dict(settings))


def _refused(workdir: pathlib.Path, settings=(), *args: object) -> str:
  return runs.refused(workdir, _SETTINGS | dict(settings), *args)


def _vectors(workdir: pathlib.Path, part: int) -> bytes:
  return runs.vectors(workdir / f'parts/{part:02}')


@pytest.fixture(scope='module')
def together(tmp_path_factory) -> pathlib.Path:
  """Three on two devices: first two, then the last one."""
  workdir = tmp_path_factory.mktemp('runs') / 'together'
  assert _run(workdir) == 0
  return workdir


@pytest.fixture
def copied(together, tmp_path) -> pathlib.Path:
  return shutil.copytree(together, tmp_path / 'run')


def test_sub_models_have_the_words_that_they_learned(together):
  merged, report = jaxemb.load(together), runs.report(together)
  text_words = word2vec_format.read_vocab(together / 'parts/00/vocab.txt')[0]
  parts = [jaxemb.load(together / f'parts/0{i}') for i in range(_NUM_PARTS)]
  # The merge has all words of any, in the order and with counts of the text.
  assert set(merged.index_to_key) == {w for x in parts for w in x.index_to_key}
  assert merged.index_to_key == [w for w in text_words if w in merged]
  assert (np.diff(merged.counts) <= 0).all()
  assert report['vocab_words'] == report['merge']['words'] == len(merged)
  num_missing = len(text_words) - len(merged)
  assert report['merge']['missing_words'] == num_missing
  for i, (part, values) in enumerate(zip(parts, report['parts'], strict=True)):
    folder = together / f'parts/{i:02}'
    words, seen = word2vec_format.read_vocab(folder / 'vocab.txt')
    assert words == text_words
    # Words that it never read have no vector, nor those without a neighbor.
    has_vector = seen > 0
    assert 0.5 < has_vector.mean() < 1
    assert has_vector.sum() <= values['words_seen'] < len(words)
    assert part.index_to_key == [words[j] for j in np.flatnonzero(has_vector)]
    assert part.counts.tolist() == seen[has_vector].tolist()
    assert values['part'] == i and values['vocab_words'] == len(part)
    assert 0 <= values['words'] - sum(seen) < values['words'] / 50
    # About half of the text, with the words drawn again.
    assert values['corpus_fraction'] == pytest.approx(9 / 19, rel=0.1)
    assert values['loss_per_example'] < 4.2 and values['train_secs'] > 0
    arrays = orbax_export.read(folder / 'export' / 'orbax')
    np.testing.assert_array_equal(arrays['vectors'], part.vectors)
    assert len(arrays['context_vectors']) == len(part)
  assert len({_vectors(together, i) for i in range(_NUM_PARTS)}) == _NUM_PARTS


@pytest.mark.slow
def test_a_job_of_one_part_is_that_part_to_the_last_bit(together, tmp_path):
  assert _run(tmp_path, {'strategy.part': 1, 'mesh.data': 0}) == 0
  folder = tmp_path / 'parts/01'
  assert _vectors(tmp_path, 1) == _vectors(together, 1)
  for name in ('report.html', 'log.txt', 'metrics.jsonl'):
    assert (folder / name).exists() and not (tmp_path / name).exists(), name
  assert [x.name for x in (tmp_path / 'parts').iterdir()] == ['01']
  ours, theirs = (
    runs.report(x, 'parts/01/part.json') for x in (tmp_path, together)
  )
  for key in ('words', 'sentences', 'words_seen', 'loss_per_example'):
    assert ours[key] == theirs[key]
  assert ours['totals']['loss'] == theirs['totals']['loss']
  # Jobs of machines that share nothing are merged by the command.
  paths = [str(x / 'parts/0') for x in (together, tmp_path, together)]
  paths = [f'{path}{i}' for i, path in enumerate(paths)]
  assert merge.main([*paths, f'--output={tmp_path}/merged']) == 0
  merged, expected = jaxemb.load(tmp_path / 'merged'), jaxemb.load(together)
  rows = merged[expected.index_to_key]
  np.testing.assert_allclose(rows, expected.vectors, atol=1e-5)
  # A run of all trains the others side by side, and merges the same model.
  before = (folder / 'part.json').stat().st_mtime_ns
  assert _run(tmp_path) == 0
  assert (folder / 'part.json').stat().st_mtime_ns == before
  assert runs.vectors(tmp_path) == runs.vectors(together)
  for part in range(_NUM_PARTS):
    assert _vectors(tmp_path, part) == _vectors(together, part)


@pytest.mark.slow
def test_each_part_resumes_where_it_stands(together, tmp_path, interrupting):
  # As jobs, parts 0 and 1 are trained by half.
  for part in range(2):
    with interrupting(1), pytest.raises(KeyboardInterrupt):
      job = {'strategy.part': part, 'mesh.data': 1}
      _run(tmp_path, runs.SAVE_ALWAYS | job)
  for folder in (tmp_path / 'parts/00', tmp_path / 'parts/01'):
    assert any(folder.glob('checkpoints/[0-9]*'))
    assert not (folder / 'part.json').exists()

  def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)  # the main thread is told

  # Side by side they resume; part 2 is not begun.
  with interrupting(0, stop):
    assert _run(tmp_path, runs.SAVE_ALWAYS) == train.STOPPED
  assert not (tmp_path / 'report.json').exists()
  assert not (tmp_path / 'parts/02').exists()
  assert _run(tmp_path) == 0
  assert runs.log(tmp_path).count('resuming after') >= 2
  for part in range(_NUM_PARTS):
    assert _vectors(tmp_path, part) == _vectors(together, part)
    done = f'parts/0{part}/part.json'
    ours, theirs = (
      runs.report(x, done)['totals'] for x in (tmp_path, together)
    )
    assert ours['loss'] == theirs['loss'] and ours['epoch'] == 1
  words = [row['words'] for row in metrics.read(tmp_path / 'metrics.jsonl')]
  assert words == sorted(set(words))


def test_the_same_sub_models_are_merged_in_another_way(copied):
  (copied / 'metrics.jsonl').unlink()  # as if all had been jobs
  shutil.rmtree(copied / 'export')
  assert _run(copied, {'strategy.merge': 'none'}) == 0
  assert len(runs.report(copied)['parts']) == _NUM_PARTS
  with pytest.raises(errors.UserError, match=r'sub-models, .*parts/\*'):
    jaxemb.load(copied)
  assert _run(copied, {'strategy.merge': 'concat'}) == 0
  report = runs.report(copied)
  assert report['merge']['method'] == 'concat' and report['dim'] == 48
  assert jaxemb.load(copied).vector_size == 48


_SENSES = {
  'model.name': 'mixture',
  'senses.number': 3,
  'senses.top_ratio': 0.005,
  'strategy.num_parts': 2,
  'eval.paths': '',
}


@pytest.mark.slow
def test_sub_models_of_senses_are_merged(tmp_path):
  settings = {'model.loss': 'hierarchical_softmax'}
  settings |= {'optimizer.name': 'adagrad'}
  workdir = tmp_path / 'run'
  assert _run(workdir, _SENSES | settings) == 0
  report = runs.report(workdir)
  senses, loaded = report['merge']['senses'], jaxemb.load(workdir)
  assert senses['words'] == senses['matched_words'] > 0 and senses['outputs']
  assert senses['cosine_matched'] >= senses['cosine_in_order']
  assert 'senses MaxSimC' in report['evaluation']
  parts = [jaxemb.load(workdir / f'parts/0{i}').sense_table for i in range(2)]
  table = loaded.sense_table
  assert table.words == parts[0].words
  assert table.counts.tolist() == parts[0].counts.tolist()
  assert len(loaded.senses(table.words[0])) == 3
  assert len(loaded.disambiguate(table.words[0], 0)) == 3
  # The command merges the folders to the same, if not for training.
  paths = [str(workdir / f'parts/0{i}') for i in range(2)]
  argv = [*paths, f'--output={tmp_path}/merged']
  assert merge.main(argv) == 0
  again = jaxemb.load(tmp_path / 'merged')
  np.testing.assert_allclose(again.vectors, loaded.vectors, atol=1e-5)


def test_a_part_that_another_process_trains_is_left_to_it(copied):
  shutil.rmtree(copied / 'parts/01')
  (copied / 'parts/01').mkdir()
  with rundir.locked(copied / 'parts/01'):
    assert _run(copied) == train.STOPPED
  log = runs.log(copied)
  assert 'sub-models 1 are being trained by other processes' in log


def test_other_settings_and_texts_are_refused(copied):
  assert 'strategy.divide' in _refused(copied, {'strategy.divide': 'equal'})
  begun = runs.report(copied, 'config.json') | {'fingerprint': 'another'}
  (copied / 'parts/01/config.json').write_text(json.dumps(begun))
  assert 'parts/01 began' in _refused(copied)
  # Where only the parts know: folders of jobs that were put together.
  (copied / 'config.json').unlink()
  assert 'parts/00 holds a run with' in _refused(copied, {'seed': 2})
  # Where only the run knows.
  shutil.rmtree(copied / 'parts/01')
  (copied / 'config.json').write_text(json.dumps(begun))
  job = {'strategy.part': 1, 'mesh.data': 1}
  assert 'text is not the one' in _refused(copied, job)
  assert not (copied / 'parts/01/config.json').exists()


def test_what_cannot_be_trained_or_merged_is_named(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('one two three four five\n' * 6)
  jobs = distributed.Job('localhost:1', 2, 1, False)
  assert '--config.strategy.part=0, 1' in _refused(tmp_path / 'a', (), jobs)
  large = {'strategy.num_parts': 100, 'model.dim': 300, 'mesh.data': 1}
  assert 'strategy.merge=none' in _refused(tmp_path / 'b', large)
  assert not any(tmp_path.glob('b/parts/*/checkpoints'))
  many = {'strategy.num_parts': 99, 'strategy.divide': 'equal'}
  many |= {'data.path': str(path)}
  line = _refused(tmp_path / 'c', many)
  assert 'sub-model' in line and 'of 99 gets no sentence' in line
  fast = {'optimizer.learning_rate': 1e4, 'optimizer.max_duplicates': 0.0}
  line = _refused(tmp_path / 'd', fast)
  assert re.match('sub-model [01]: training diverged', line)


@pytest.mark.parametrize(
  ('name', 'how', 'words'),
  [
    ('part.json', 'cut', 'part.json is damaged'),
    ('export/vectors.npy', 'nan', 'and run the same command again'),
  ],
)
def test_damaged_parts_are_named(copied, name, how, words):
  path = copied / 'parts/01' / name
  if how == 'nan':
    vectors = np.load(path)
    vectors[3] = np.nan
    np.save(path, vectors)
  elif how == 'cut':
    path.write_bytes(path.read_bytes()[:-50])
  line = _refused(copied)
  assert words in line and 'remove' in line and 'parts/01' in line
  assert '--skip-bad' not in line
