"""Whole runs: results, resuming after kills, signals, unusable input."""

import json
import pathlib
import shutil
import signal
import threading
import types

import jax
import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.cli import train as main
from jaxemb.config import kinds
from jaxemb.data import base
from jaxemb.run import build, devices, loop, metrics, rundir
from jaxemb.run import lifecycle as train
from jaxemb.runtime import distributed, hlo, mesh, resources
from jaxemb.storage import checkpoint, orbax_export
from tests import runs

_SENTENCE = b'one two three four five six seven eight nine ten\n'
_EPOCHS = {'train.epochs': 4}  # one dispatch each
_EVALUATED = {'eval.paths': '', 'eval.every_epochs': 2.0}


def _run(workdir: pathlib.Path, settings=(), **fixed: object) -> int:
  return runs.run(workdir, _EPOCHS | dict(settings), **fixed)


@pytest.fixture(scope='module')
def finished(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp('runs') / 'finished'
  assert _run(workdir, _EVALUATED) == 0
  return workdir


@pytest.fixture(scope='module')
def drawn(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp('runs') / 'drawn'
  assert _run(workdir, _EVALUATED, weights_contexts=False) == 0
  return workdir


@pytest.fixture
def copied(finished, tmp_path) -> pathlib.Path:
  return shutil.copytree(finished, tmp_path / 'run')


# Results.


def test_a_run_writes_all_files_and_report_keys(finished):
  for name in (
    'config.json', 'metrics.jsonl', 'report.json', 'report.html', 'log.txt',
    'tensorboard', 'checkpoints', 'export/vectors.bin', 'export/vectors.txt',
    'export/vocab.txt', 'export/vectors.npy', 'export/projector',
  ):  # fmt: skip
    assert (finished / name).exists(), name
  report = runs.report(finished)
  for key in (
    'words_per_sec', 'words_per_sec_with_compilation', 'corpus_words',
    'train_secs', 'compile_secs', 'encode_secs', 'total_secs', 'started',
    'peak_rss_bytes', 'table_bytes', 'vector_bytes', 'machine', 'versions',
    'dropped', 'pairs', 'finished',
  ):  # fmt: skip
    assert report[key], key
  assert len(report['devices']) == 2


@pytest.mark.slow
def test_threads_do_not_share_few_rows(tmp_path, monkeypatch):
  monkeypatch.setattr(resources, 'usable_cores', lambda: 2)
  (tmp_path / 'text.txt').write_bytes(_SENTENCE * 2000)
  more = {'data.path': str(tmp_path / 'text.txt'), 'data.sample': 0.0}
  config = config_lib.load('wiki', more | {'eval.paths': 'none'})
  assert train.run(config, tmp_path / 'run') == 0
  assert runs.report(tmp_path / 'run')['tuning']['threads'] == 1


def test_metrics_add_up_to_the_report(finished):
  report, rows = runs.report(finished), metrics.read(finished / 'metrics.jsonl')
  assert rows[-1]['words'] == 4 * report['corpus_words']
  assert rows[-1]['epoch'] == 4
  assert rows[-1]['learning_rate'] == pytest.approx(1e-4)
  assert rows[-1]['loss'] == pytest.approx(report['loss_per_example'], rel=0.2)
  (host,) = report['hosts']
  assert host['secs'] == pytest.approx(sum(x['hosts'][0]['secs'] for x in rows))
  assert host['mean_cores'] > 0
  assert host['words'] == pytest.approx(rows[-1]['words'])
  steps, words = rows[-1]['step'], report['tuning']['part_words']
  staleness = report['staleness']
  assert 0 < staleness['mean_words'] <= staleness['max_words']
  most = min(staleness['bound_words'], steps * words)
  assert staleness['max_words'] == most
  # Two replicas exchange rows, and nothing else.
  traffic = report['collectives']
  assert {kind for kind in hlo.KINDS if traffic[kind]} == {'all-reduce'}
  sent = 2 * rows[-1]['step'] * traffic['bytes_per_step_per_device']['total']
  assert traffic['bytes_per_word']['total'] == pytest.approx(
    sent / rows[-1]['words']
  )
  assert sent > 0


def test_vectors_are_evaluated_while_they_are_trained(finished):
  lines = (finished / 'evaluation.jsonl').read_text().splitlines()
  first, last = map(json.loads, lines)
  assert (first['epoch'], last['epoch']) == (2, 4)
  assert 0 < first['step'] < last['step']
  final = runs.report(finished)['evaluation']
  assert final and final == last['evaluation'] != first['evaluation']
  for result in final.values():
    assert {'score', 'found', 'total'} <= result.keys()
  assert 'epoch 2.00: ' in runs.log(finished)


def test_all_exports_hold_the_same_bits(finished):
  ours = jaxemb.load(finished)
  for name in ('vectors.bin', 'vectors.txt'):
    theirs = jaxemb.load(finished / 'export' / name)
    assert theirs.index_to_key == ours.index_to_key
    assert np.array_equal(theirs.vectors, ours.vectors)
  arrays = orbax_export.read(finished / 'export' / 'orbax')
  assert np.array_equal(arrays['vectors'], ours.vectors)
  assert arrays['context_vectors'].shape == ours.vectors.shape


# Resuming.


@pytest.mark.slow
def test_killed_at_any_dispatch_it_ends_with_the_same_bits(
  finished, tmp_path, interrupting
):
  run = tmp_path / 'run'
  for num_counted in (0, 1):
    with interrupting(num_counted), pytest.raises(KeyboardInterrupt):
      _run(run, runs.SAVE_ALWAYS)
  assert _run(run) == 0
  assert runs.vectors(run) == runs.vectors(finished)
  assert runs.log(run).count('resuming after') == 1
  words = [row['words'] for row in metrics.read(run / 'metrics.jsonl')]
  assert words == sorted(set(words)) and len(words) == 4
  # Finished, it is not trained again.
  assert _run(run) == 0
  assert runs.vectors(run) == runs.vectors(finished)
  assert len(metrics.read(run / 'metrics.jsonl')) == 4


@pytest.mark.slow
@pytest.mark.parametrize('began_with', ['windows', 'weights', 'no record'])
def test_a_run_goes_on_with_the_windows_that_it_began_with(
  finished, tmp_path, interrupting, drawn, began_with
):
  weights, run = began_with == 'weights', tmp_path / 'run'
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    _run(run, _EVALUATED | runs.SAVE_ALWAYS, weights_contexts=weights)
  path = run / 'config.json'
  recorded = json.loads(path.read_text())
  assert recorded['tuning']['weights_contexts'] == weights
  assert recorded['model']['shared_negatives'] == (16 if weights else 24)
  if began_with == 'no record':  # of a version that always drew windows
    del recorded['tuning']['weights_contexts']
    path.write_text(json.dumps(recorded))
  assert _run(run, _EVALUATED) == 0
  assert 'resuming after' in runs.log(run)
  expected = finished if weights else drawn
  assert runs.vectors(run) == runs.vectors(expected)
  assert runs.vectors(drawn) != runs.vectors(finished)
  draws = {'model.shared_negatives': 16 if not weights else 24}
  assert 'holds a run with other settings' in _refused(run, draws)


def test_batches_that_a_device_makes_train_the_same_bits(
  finished, tmp_path, interrupting, monkeypatch
):
  # A batch is an epoch of this text on both sides.
  placed = []
  put = jax.make_array_from_process_local_data
  monkeypatch.setattr(
    jax,
    'make_array_from_process_local_data',
    lambda sharding, x, shape: placed.append(x) or put(sharding, x, shape),
  )
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    _run(tmp_path, _EVALUATED | runs.SAVE_ALWAYS, device_words=10**6)
  placed.clear()
  assert _run(tmp_path, _EVALUATED | runs.SAVE_ALWAYS, device_words=10**6) == 0
  assert 'resuming after' in runs.log(tmp_path)
  assert 'which holds all 0.3 MB of ids' in runs.log(tmp_path)
  # Two arrays of the data are placed once, five more with each item.
  assert sum(not x.flags.writeable for x in placed) == 2
  assert sum(x.flags.writeable for x in placed) % 5 == 0
  assert runs.vectors(tmp_path) == runs.vectors(finished)
  report, other = runs.report(tmp_path), runs.report(finished)
  assert report['pairs'] == other['pairs']
  assert report['evaluation'] == other['evaluation']


def test_sigterm_saves_and_exits_with_75(
  finished, tmp_path, interrupting, capfd
):
  settings = runs.SETTINGS | _EPOCHS | {'data.sample': 1e-4}
  flags = [f'--config.{key}={value}' for key, value in settings.items()]
  flags += [f'--workdir={tmp_path}']
  # A terminal that closes, and a scheduler that repeats itself.
  numbers = signal.SIGHUP, signal.SIGTERM, signal.SIGTERM
  with interrupting(0, lambda: [*map(signal.raise_signal, numbers)]):
    assert main.main(flags) == train.STOPPED == 75
  assert 'run the same command to resume' in capfd.readouterr().err
  assert not (tmp_path / 'report.json').exists()
  assert main.main(flags) == 0
  assert 'resuming after' in capfd.readouterr().err
  assert runs.vectors(tmp_path) == runs.vectors(finished)


@pytest.mark.slow
def test_replicas_go_on_with_another_number(tmp_path, interrupting):
  settings = runs.SAVE_ALWAYS | {
    'strategy.policy': 'bounded', 'train.batch_words': 512,
    'table.dtype': 'int8', 'optimizer.name': 'adagrad',
  }  # fmt: skip
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    _run(tmp_path, settings | {'mesh.data': 4})
  with pytest.raises(errors.UserError, match='divided among 3 replicas'):
    _run(tmp_path, settings | {'mesh.data': 3})
  assert _run(tmp_path, settings | {'mesh.data': 1}) == 0
  assert '1 replicas, where there were 4' in runs.log(tmp_path)
  report = runs.report(tmp_path)
  assert len(report['devices']) == 1
  assert report['loss_per_example'] < 3.9
  # All of the text was read as often as it should.
  assert report['tuning']['parts'] == 4
  assert metrics.read(tmp_path / 'metrics.jsonl')[-1]['epoch'] == 4


def _sync(layout: str, data: int, table: int) -> dict:
  return {
    'mesh.data': data, 'mesh.table': table, 'strategy.name': 'sync',
    'table.layout': layout, 'train.batch_words': 256, 'train.fused': False,
  }  # fmt: skip


@pytest.fixture(scope='module')
def on_one_device(tmp_path_factory) -> np.ndarray:
  workdir = tmp_path_factory.mktemp('runs') / 'one'
  assert _run(workdir, _sync('replicated', 1, 1)) == 0
  return jaxemb.load(workdir).vectors


@pytest.mark.slow
@pytest.mark.parametrize(
  ('layout', 'first', 'then'),
  [
    ('column', (1, 3), (2, 1)),  # 16 columns and two of padding
    ('row', (2, 2), (1, 1)),
  ],
)
def test_sync_resumes_on_another_mesh(
  tmp_path, interrupting, on_one_device, layout, first, then
):
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    _run(tmp_path, _sync(layout, *first) | runs.SAVE_ALWAYS)
  assert _run(tmp_path, _sync(layout, *then)) == 0
  assert 'resuming after' in runs.log(tmp_path)
  assert len(runs.report(tmp_path)['devices']) == then[0] * then[1]
  # The same but for the order of sums.
  vectors = jaxemb.load(tmp_path).vectors
  np.testing.assert_allclose(vectors, on_one_device, 1e-5, 1e-5)
  other = 'row' if layout == 'column' else 'column'
  with pytest.raises(errors.UserError, match='table.layout'):
    _run(tmp_path, _sync(other, *then))


def test_schedules_join_up_and_keys_are_never_shared():
  config = config_lib.default()

  def schedule(seed, index, before, after):
    config.seed, config.optimizer.learning_rate = seed, 0.03
    item = base.Item(None, index, None, before, after)
    return loop.schedule(config, item, 1000)

  first, second = schedule(1, 0, 0, 400), schedule(1, 1, 400, 1000)
  assert first.first_learning_rate == np.float32(0.03)
  assert first.last_learning_rate == second.first_learning_rate
  assert second.last_learning_rate == pytest.approx(1e-4)
  all_three = first, second, schedule(2, 0, 0, 400)
  assert len({tuple(x.key) for x in all_three}) == 3


# What is refused.


def _refused(workdir: pathlib.Path, settings=()) -> str:
  line = runs.refused(workdir, _EPOCHS | dict(settings))
  assert line in runs.log(workdir)
  return line


def test_another_version_is_refused(copied):
  for path in copied.glob('checkpoints/*/record/metadata'):
    record = json.loads(path.read_text())
    del record['checksum']  # which came later
    path.write_text(json.dumps(record | {'format': 1}))
  assert 'reads format 6; go on' in _refused(copied, _EVALUATED)


def _text(tmp_path: pathlib.Path, data: bytes) -> dict:
  (tmp_path / 'a.txt').write_bytes(data)
  return {'data.path': str(tmp_path / 'a.txt')}


@pytest.mark.slow
def test_changed_text_is_refused_and_moved_text_is_not(copied, cache, tmp_path):
  moved = tmp_path / 'moved.xml.gz'
  shutil.copy(next(cache.glob('toywiki-60000-*/*.xml.gz')), moved)
  assert _run(copied, {'data.path': str(moved)}) == 0
  other = _text(tmp_path, _SENTENCE * 99)
  assert 'text is not the one that' in _refused(copied, other)
  shutil.rmtree(copied / 'checkpoints')
  assert 'text is not the one that' in _refused(copied, other)


def test_text_without_pairs_is_named(tmp_path):
  settings = _text(tmp_path, b'one\ntwo\nthree\n' * 99) | {'data.min_count': 5}
  assert 'nothing was learned' in _refused(tmp_path / 'run', settings)
  assert not (tmp_path / 'run' / 'export').exists()


@pytest.mark.slow
def test_a_full_disk_does_not_end_training(tmp_path, monkeypatch):
  def fail(*args: object, **more: object) -> None:
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(checkpoint.ocp.CheckpointManager, 'save', fail)
  assert _run(tmp_path, runs.SAVE_ALWAYS) == 0
  assert 'checkpoint not saved' in runs.log(tmp_path)
  assert 'No space left' in runs.log(tmp_path) and runs.vectors(tmp_path)


def test_out_of_memory_is_one_line(tmp_path, monkeypatch):
  def fail(*args: object, **more: object) -> None:
    raise MemoryError

  monkeypatch.setattr(build, 'parts', fail)
  assert 'out of memory; lower --config.model.dim' in _refused(tmp_path)


def test_who_shares_a_folder_is_refused(tmp_path):
  with rundir.locked(tmp_path):
    with pytest.raises(errors.UserError, match='another process'):
      _run(tmp_path)


def test_what_fails_waits_for_the_loss_of_another_process(
  monkeypatch, tmp_path
):
  # Of collectives whose other end is gone, JAX raises a ValueError too.
  waited = []

  def fail(*_):
    raise ValueError('UNKNOWN: Gloo AllGather failed')

  monkeypatch.setattr(train, '_run_steps', fail)
  monkeypatch.setattr(
    distributed.Monitor, 'wait_for_loss', lambda _: waited.append(1)
  )
  with pytest.raises(ValueError, match='Gloo'):
    train.run(config_lib.load('wiki', {}), tmp_path)
  assert waited


def test_keys_are_not_read_for_no_benchmarks():
  # A click log has tens of millions of keys, which took minutes.
  source = types.SimpleNamespace(eval_paths=list)
  assert build.source_benchmarks(config_lib.default(), source) == []


# Steps that nobody gave.


@pytest.mark.slow
def test_a_default_step_shrinks_to_the_rows_that_fit(tmp_path):
  settings = {
    'mesh.data': 1, 'optimizer.name': 'adam', 'train.epochs': 1,
    'table.store': 'memory', 'table.device_bytes': '8%',
  }  # fmt: skip
  given = runs.refused(tmp_path, settings | {'train.batch_words': 256})
  assert 'a step of 256 words looks up about' in given
  assert runs.run(tmp_path, settings) == 0
  line = 'steps have 64 words in place of 256'
  assert runs.log(tmp_path).count(line) == 1
  assert runs.report(tmp_path, 'config.json')['train']['batch_words'] == 64
  assert runs.report(tmp_path)['tuning']['part_words'] == 64
  # A run goes on with the steps that it began with.
  assert runs.run(tmp_path, settings) == 0
  assert runs.log(tmp_path).count(line) == 1
  less = runs.refused(tmp_path, settings | {'table.device_bytes': '3%'})
  assert 'a step of 64 words looks up about' in less


@pytest.mark.parametrize(
  ('settings', 'before', 'after'),
  [
    ({}, 2048, 256),
    (
      {'strategy.name': 'partition', 'optimizer.name': 'adam'},
      2048,
      256,
    ),
    ({'train.batch_words': 1024}, 1024, 1024),
  ],
)
def test_a_gpus_steps_fit_the_text(
  tmp_path, monkeypatch, settings, before, after
):
  monkeypatch.setattr(devices.Setup, 'platform', 'gpu')
  config = config_lib.check(config_lib.default(), runs.SETTINGS | settings)
  resolved = config_lib.resolve(config, 'gpu', (1, 1), fused=False)
  setup = devices.Setup(
    *resolved, mesh.make(mesh.Shape(1, 1)), kinds.of(config)
  )
  parts = build.parts(
    setup, tmp_path, fits_steps='train.batch_words' not in settings
  )
  assert setup.tuning.part_words == before
  assert parts.config.train.batch_words == parts.tuning.part_words == after
  assert parts.source.steps == parts.trainable.steps
  assert parts.source.steps.part_words == after
  assert next(parts.source.items(None, 0)).done_after > 0


def test_what_is_compiled_ahead_is_not_compiled_again(tmp_path):
  config = config_lib.check(
    config_lib.default(), runs.SETTINGS | {'mesh.data': 1}
  )
  parts = build.parts(devices.choose(config, {}), tmp_path / 'cache')
  build.reside(parts)
  loop.compile_ahead(parts)
  compiled = []

  def listen(event, secs, **more):
    if 'backend_compile' in event:
      compiled.append(more)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    with loop.open_checkpoints(tmp_path) as checkpoints:
      trained = loop.train(
        checkpoints,
        parts,
        loop.Session(0.0, 0.0, threading.Event()),
        make_meter=lambda totals: loop.Meter(),
      )
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
  assert trained and not compiled
