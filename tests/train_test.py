"""Whole runs: results, resuming after kills, signals, unusable input."""

import bz2
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import gensim.models
import ml_collections
import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors, loop, train
from jaxemb import rundir as workdirs
from jaxemb.data import base
from jaxemb.runtime import hlo
from jaxemb.storage import checkpoint

_ROOT = pathlib.Path(__file__).parents[1]
_SMOKE = '--config=configs/wiki.py:smoke'


def _config(**settings: object) -> ml_collections.ConfigDict:
  config = config_lib.default()
  config.data.path = 'toywiki:60000'
  config.data.min_count = 2
  config.model.dim = 16
  config.train.epochs = 2
  config.mesh.data = 2  # whatever the machine
  config.update_from_flattened_dict(settings)
  return config


def _command(workdir: pathlib.Path, *more: str) -> list:
  return [
    sys.executable, '-m', 'jaxemb.main', _SMOKE, f'--workdir={workdir}',
    *more,
  ]  # fmt: skip


def _vectors(workdir: pathlib.Path) -> bytes:
  return (workdir / 'export' / 'vectors.bin').read_bytes()


@pytest.fixture(scope='session')
def finished(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp('runs') / 'finished'
  assert train.run(_config(), workdir) == 0
  return workdir


def test_a_run_leaves_all_that_the_contract_names(finished):
  for name in (
    'config.json', 'metrics.jsonl', 'report.json', 'report.html', 'log.txt',
    'tensorboard', 'checkpoints', 'export/vectors.bin', 'export/vectors.txt',
    'export/vocab.txt', 'export/vectors.npy', 'export/projector',
  ):  # fmt: skip
    assert (finished / name).exists(), name
  report = json.loads((finished / 'report.json').read_text())
  for key in (
    'words_per_sec', 'corpus_words', 'train_secs', 'compile_secs',
    'total_secs', 'peak_rss_bytes', 'table_bytes', 'devices', 'versions',
    'collectives', 'dropped', 'evaluation',
  ):  # fmt: skip
    assert key in report, key
  assert report['evaluation']
  for result in report['evaluation'].values():
    assert {'score', 'found', 'total'} <= result.keys()
  vocab = report['vocab_words']
  # Two tables of float32 and the scratch row of the optimizer, and the rows as
  # they were last exchanged; a counter. All on two devices.
  assert report['table_bytes'] == 2 * (2 * vocab * (16 + 1 + 16) * 4 + 4)
  assert len(report['devices']) == 2
  rows = [
    json.loads(line)
    for line in (finished / 'metrics.jsonl').read_text().splitlines()
  ]
  # Two replicas exchange rows; nothing else travels.
  found = report['collectives']
  step, word = found['bytes_per_step_per_device'], found['bytes_per_word']
  assert {kind for kind in hlo.KINDS if found[kind]} == {'all-reduce'}
  assert step['all-reduce'] == step['total'] > 0
  steps = 2 * rows[-1]['step'] / rows[-1]['words']  # of both devices
  assert word['total'] == pytest.approx(step['total'] * steps)
  assert rows[-1]['words'] == 2 * report['corpus_words']
  assert rows[-1]['epoch'] == 2
  assert rows[-1]['learning_rate'] == pytest.approx(1e-4)
  (host,) = report['hosts']
  assert host['secs'] == pytest.approx(sum(x['hosts'][0]['secs'] for x in rows))
  assert host['mean_cores'] > 0
  assert rows[-1]['loss'] == pytest.approx(report['loss_per_example'], rel=0.2)


def test_the_exports_are_one_and_the_same_to_the_last_bit(finished):
  ours = jaxemb.load(finished)
  for name, binary in (('vectors.bin', True), ('vectors.txt', False)):
    theirs = gensim.models.KeyedVectors.load_word2vec_format(
      finished / 'export' / name, binary=binary
    )
    assert theirs.index_to_key == list(ours.index_to_key)
    assert np.array_equal(theirs.vectors, ours.vectors)


def test_a_finished_run_started_again_is_the_same(finished):
  before = _vectors(finished)
  assert train.run(_config(), finished) == 0
  assert _vectors(finished) == before


def test_the_seed_is_the_only_source_of_chance(finished, tmp_path):
  assert train.run(_config(), tmp_path / 'again') == 0
  assert _vectors(tmp_path / 'again') == _vectors(finished)
  assert train.run(_config(seed=2), tmp_path / 'other') == 0
  assert _vectors(tmp_path / 'other') != _vectors(finished)


def test_another_config_on_the_same_workdir_is_refused(finished):
  before = _vectors(finished)
  with pytest.raises(errors.UserError, match=r'model.dim \(16 there, 8 now\)'):
    train.run(_config(**{'model.dim': 8}), finished)
  assert _vectors(finished) == before


@pytest.mark.parametrize('model', ['skipgram', 'cbow'])
@pytest.mark.parametrize('optimizer', ['sgd', 'adagrad', 'adam'])
def test_every_model_with_every_optimizer(tmp_path, model, optimizer):
  rate = {'sgd': 0.03, 'adagrad': 0.2, 'adam': 0.005}[optimizer]
  if model == 'cbow':
    rate *= 5  # its gradient is divided among the contexts
  config = _config(
    **{
      'model.name': model,
      'optimizer.name': optimizer,
      'optimizer.learning_rate': rate,
      'train.epochs': 4,
      'eval.paths': 'none',
    },
  )
  assert train.run(config, tmp_path) == 0
  report = json.loads((tmp_path / 'report.json').read_text())
  # An untrained model scores 6 log 2 = 4.16 nats an example.
  assert report['loss_per_example'] < 4.1


def test_killed_five_times_it_ends_with_the_same_vectors(tmp_path):
  more = (
    '--config.train.epochs=30', '--config.train.checkpoint_every_secs=0.05',
    '--config.eval.paths=none',
  )  # fmt: skip
  subprocess.run(_command(tmp_path / 'whole', *more), cwd=_ROOT, check=True)
  rng = random.Random(0)
  killed = tmp_path / 'killed'
  saved = killed / 'checkpoints'
  for _ in range(5):
    before = set(saved.glob('[0-9]*'))
    process = subprocess.Popen(_command(killed, *more), cwd=_ROOT)
    # Some time behind a new checkpoint, whenever that is on this machine, and
    # often within the next one.
    while process.poll() is None and set(saved.glob('[0-9]*')) <= before:
      time.sleep(0.01)
    time.sleep(rng.random() * 0.3)
    process.kill()
    process.wait()
  subprocess.run(_command(killed, *more), cwd=_ROOT, check=True)
  assert _vectors(killed) == _vectors(tmp_path / 'whole')
  assert 'resuming after' in (killed / 'log.txt').read_text()
  words = [
    json.loads(line)['words']
    for line in (killed / 'metrics.jsonl').read_text().splitlines()
  ]
  assert words == sorted(set(words))


def test_sigterm_saves_and_exits_75_and_a_second_start_resumes(tmp_path):
  more = ('--config.train.epochs=150', '--config.eval.paths=none')
  whole, stopped = tmp_path / 'whole', tmp_path / 'stopped'
  subprocess.run(_command(whole, *more), cwd=_ROOT, check=True)
  process = subprocess.Popen(_command(stopped, *more), cwd=_ROOT)
  while not (stopped / 'metrics.jsonl').exists():
    assert process.poll() is None
    time.sleep(0.01)
  process.send_signal(signal.SIGTERM)
  assert process.wait(60) == train.STOPPED
  assert not (stopped / 'report.json').exists()
  assert os.listdir(stopped / 'checkpoints')
  subprocess.run(_command(stopped, *more), cwd=_ROOT, check=True)
  assert _vectors(stopped) == _vectors(whole)
  assert 'resuming after' in (stopped / 'log.txt').read_text()


def _text(tmp_path: pathlib.Path, data: bytes, name: str = 'a.txt') -> str:
  path = tmp_path / name
  path.write_bytes(data)
  return str(path)


_SENTENCE = b'one two three four five six seven eight nine ten\n'


@pytest.mark.parametrize(
  ('data', 'name', 'words'),
  [
    (b'', 'a.txt', 'empty'),
    (b'one two three\n', 'a.txt', 'no word occurs 5 times'),
    (b'one\n' * 9, 'a.txt', 'only one word'),
    (bytes(range(256)) * 99, 'a.txt', 'a.txt'),
    (bz2.compress(_SENTENCE * 9999)[:-40], 'a.txt.bz2', 'a.txt.bz2'),
  ],
)
def test_unusable_text_is_named_and_nothing_is_left(
  tmp_path, data, name, words
):
  config = _config(
    **{'data.path': _text(tmp_path, data, name), 'data.min_count': 5}
  )
  with pytest.raises(errors.UserError) as caught:
    train.run(config, tmp_path / 'run')
  assert words in str(caught.value) and '\n' not in str(caught.value)
  # The corrected command may use the same folder.
  config.data.path = _text(tmp_path, _SENTENCE * 99, 'good.txt')
  assert train.run(config, tmp_path / 'run') == 0


def test_invalid_utf8_is_replaced_counted_and_reported(tmp_path):
  path = _text(tmp_path, (_SENTENCE + b'two\xff\xfe three\n') * 99)
  assert train.run(_config(**{'data.path': path}), tmp_path / 'r') == 0
  report = json.loads((tmp_path / 'r' / 'report.json').read_text())
  assert report['dropped']['invalid_utf8_bytes'] == 2 * 99


def test_xml_cut_in_the_middle_is_used_so_far_and_the_loss_told(
  cache, finished, tmp_path
):
  del finished  # it has written the embedded corpus
  xml = next(cache.rglob('*.xml.bz2'))
  data = bz2.decompress(xml.read_bytes())
  path = _text(tmp_path, data[: len(data) * 2 // 3], 'cut.xml')
  assert train.run(_config(**{'data.path': path}), tmp_path / 'r') == 0
  problems = json.loads((tmp_path / 'r' / 'report.json').read_text())[
    'dropped'
  ]['problems']
  assert len(problems) == 1 and 'cut.xml' in problems[0]


def test_a_run_that_diverges_stops_and_says_where(tmp_path):
  config = _config(
    **{
      'optimizer.learning_rate': 1e4,
      'optimizer.max_duplicates': 0.0,
    },
  )
  with pytest.raises(errors.UserError) as caught:
    train.run(config, tmp_path)
  assert 'diverged at step' in str(caught.value)
  assert 'learning rate' in str(caught.value)
  assert not (tmp_path / 'export').exists()


def test_text_from_which_nothing_is_learned_is_told(tmp_path):
  path = _text(tmp_path, b'one\ntwo\nthree\n' * 99)
  with pytest.raises(errors.UserError, match='nothing was learned'):
    train.run(_config(**{'data.path': path}), tmp_path / 'run')


def test_large_steps_that_diverge_without_overflow_are_told(tmp_path):
  config = _config(
    **{
      'data.path': 'toywiki:200000',
      'train.batch_words': 4096,
      'optimizer.max_duplicates': 0.0,
      'optimizer.learning_rate': 0.05,
      'train.epochs': 5,
    },
  )
  with pytest.raises(errors.UserError, match='diverged'):
    train.run(config, tmp_path)


def test_schedules_join_up_and_keys_are_never_shared():
  schedule = loop.schedules(1, (0.03, 1e-4), 1000)
  first, second = (
    schedule(base.Item(None, i, None, before, after))
    for i, before, after in ((0, 0, 400), (1, 400, 1000))
  )
  assert first.first_learning_rate == np.float32(0.03)
  assert first.last_learning_rate == second.first_learning_rate
  assert second.last_learning_rate == pytest.approx(1e-4)
  other = loop.schedules(2, (0.03, 1e-4), 1000)(
    base.Item(None, 0, None, 0, 400)
  )
  keys = {tuple(plan.key) for plan in (first, second, other)}
  assert len(keys) == 3


def test_a_run_goes_on_with_the_devices_it_began_with(tmp_path):
  config = _config(**{'mesh.data': 3})
  assert train.run(config, tmp_path) == 0
  before = (tmp_path / 'export' / 'vectors.bin').read_bytes()
  # Left to choose, as on a machine with other cores.
  assert train.run(_config(**{'mesh.data': 0}), tmp_path) == 0
  assert (tmp_path / 'export' / 'vectors.bin').read_bytes() == before
  report = json.loads((tmp_path / 'report.json').read_text())
  assert len(report['devices']) == 3
  with pytest.raises(errors.UserError, match='begun with 3 replicas'):
    train.run(_config(**{'mesh.data': 2}), tmp_path)


def _sync(layout, data, table):
  return _config(
    **{
      'strategy.name': 'sync',
      'table.layout': layout,
      'mesh.data': data,
      'mesh.table': table,
      'train.epochs': 4,
      'train.batch_words': 256,
      'train.checkpoint_every_secs': 0.0,
      'eval.paths': 'none',
    },
  )


@pytest.fixture(scope='session')
def of_one_device(tmp_path_factory) -> np.ndarray:
  workdir = tmp_path_factory.mktemp('runs') / 'one'
  assert train.run(_sync('replicated', 1, 1), workdir, parts=2) == 0
  return jaxemb.load(workdir).vectors


@pytest.mark.parametrize(
  ('layout', 'first', 'then', 'mesh'),
  [
    # Two parts lie along two devices; others share their centers.
    ('replicated', (2, 1), (4, 1), (2, 2)),
    ('row', (2, 2), (2, 4), (2, 4)),
    ('row', (2, 2), (1, 1), (1, 1)),
    ('column', (1, 3), (2, 1), (2, 1)),  # 16 columns and two that fill up
  ],
)
def test_a_run_goes_on_with_another_mesh(
  tmp_path, interrupting, of_one_device, layout, first, then, mesh
):
  with interrupting(2), pytest.raises(KeyboardInterrupt):
    train.run(_sync(layout, *first), tmp_path, parts=2)
  assert train.run(_sync(layout, *then), tmp_path, parts=2) == 0
  assert 'resuming after' in (tmp_path / 'log.txt').read_text()
  report = json.loads((tmp_path / 'report.json').read_text())
  assert report['config']['mesh'] == {'data': mesh[0], 'table': mesh[1]}
  assert report['finished'] and len(report['devices']) == mesh[0] * mesh[1]
  # The rows of one device that was never interrupted, but for roundings.
  vectors = jaxemb.load(tmp_path).vectors
  np.testing.assert_allclose(vectors, of_one_device, 1e-5, 1e-5)
  # Another layout is another run.
  other = 'row' if layout == 'column' else 'column'
  with pytest.raises(errors.UserError, match='table.layout'):
    train.run(_sync(other, *then), tmp_path, parts=2)


def test_no_evaluation(tmp_path):
  path = _text(tmp_path, _SENTENCE * 99)
  config = _config(**{'eval.paths': 'none', 'data.path': path})
  assert train.run(config, tmp_path / 'run') == 0
  report = json.loads((tmp_path / 'run' / 'report.json').read_text())
  assert report['evaluation'] == {}
  assert (tmp_path / 'run' / 'report.html').exists()


@pytest.mark.parametrize('has_checkpoints', [True, False])
def test_text_that_changed_is_not_resumed_on(tmp_path, has_checkpoints):
  path = _text(tmp_path, _SENTENCE * 99)
  run = tmp_path / 'run'
  assert train.run(_config(**{'data.path': path}), run) == 0
  if not has_checkpoints:
    shutil.rmtree(run / 'checkpoints')

  def left():
    kept = [run / 'config.json', *run.glob('export/*.*')]
    return {x: x.read_bytes() for x in kept}

  before = left()
  other = _text(tmp_path, _SENTENCE * 98 + b'one two\n', 'other.txt')
  with pytest.raises(errors.UserError, match='text is not the one that'):
    train.run(_config(**{'data.path': other}), run)
  assert left() == before
  # Elsewhere the same text is the same.
  moved = _text(tmp_path, _SENTENCE * 99, 'moved.txt')
  assert train.run(_config(**{'data.path': moved}), run) == 0


def test_two_processes_do_not_share_a_workdir(tmp_path):
  with workdirs.locked(tmp_path):
    with pytest.raises(errors.UserError, match='another process'):
      train.run(_config(), tmp_path)


def test_a_wrong_evaluation_path_is_told_before_training(tmp_path):
  config = _config(**{'eval.paths': '/no/such/benchmark'})
  with pytest.raises(errors.UserError, match='/no/such/benchmark'):
    train.run(config, tmp_path)
  assert not (tmp_path / 'metrics.jsonl').exists()
  assert '/no/such/benchmark' in (tmp_path / 'log.txt').read_text()


def test_a_full_disk_does_not_end_training(tmp_path, monkeypatch):
  saves = []

  def fail(self, *args, **kwargs):
    saves.append(args)
    raise OSError(28, 'No space left on device')

  config = _config(**{'train.checkpoint_every_secs': 0.0})
  with monkeypatch.context() as patch:
    patch.setattr(checkpoint.ocp.CheckpointManager, 'save', fail)
    assert train.run(config, tmp_path) == 0
  assert saves
  log = (tmp_path / 'log.txt').read_text()
  assert 'checkpoint not saved' in log and 'No space left' in log
  assert (tmp_path / 'export' / 'vectors.bin').exists()
