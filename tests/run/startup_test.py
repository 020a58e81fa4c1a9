"""What a run does before its first step, and how long it waits there."""

import re
import time
import types

import jax
import pytest

from jaxemb.kernels.cpu import ahead, handlers
from jaxemb.run import build, loop, rundir
from jaxemb.runtime import compile_time, resources
from jaxemb.stores import fetching
from tests import runs

_SETTINGS = {'train.epochs': 1, 'mesh.data': 1}
_SECS = 0.5  # that each wait takes


@pytest.fixture
def start(tmp_path, monkeypatch):
  """Returns what trains while, as in a first run, the kernel is compiled."""
  process = types.SimpleNamespace(wait=lambda: time.sleep(_SECS))
  names = 'skipgram-float32', 'subsample-int32', 'pack-int32'
  compiling = ahead.Compiling(process, names)

  def make(setup, cache):
    return compiling if setup.tuning.fused else None

  cache = tmp_path / 'cache'
  monkeypatch.setattr(build, '_compiling', make)
  monkeypatch.setattr(rundir, 'cache_folder', lambda: cache)

  def run(workdir, settings=()):
    settings = _SETTINGS | dict(settings)
    return runs.run(workdir, settings, text_cache=cache)

  return run


def test_waits_for_compilation_are_timed_once(start, tmp_path, monkeypatch):
  compile_ahead = loop.compile_ahead

  def slowly(parts):
    time.sleep(_SECS)
    compile_ahead(parts)

  monkeypatch.setattr(loop, 'compile_ahead', slowly)
  assert start(tmp_path) == 0
  report = runs.report(tmp_path)
  secs, train_secs = report['compile_secs'], report['train_secs']
  assert secs >= 2 * _SECS
  assert report['encode_secs'] + secs + train_secs <= report['total_secs']
  rate = report['corpus_words'] / (train_secs + secs)
  assert report['words_per_sec_with_compilation'] == pytest.approx(rate)
  (compiled,) = re.findall(r'compiled in (.*) s;', runs.log(tmp_path))
  assert float(compiled) == pytest.approx(secs, abs=0.1)


@pytest.fixture
def waiting_long(monkeypatch):
  """Has a run wait for its kernel, as it says, for 1000 seconds."""
  wait = build.wait_for_kernel

  def wait_long(parts):
    wait(parts)
    jax.monitoring.record_event_duration_secs(compile_time._EVENT, 1000.0)

  monkeypatch.setattr(build, 'wait_for_kernel', wait_long)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('settings', 'home'),
  [
    ({}, '.'),
    ({'strategy.name': 'partition', 'mesh.data': 2}, '.'),
    ({'strategy.name': 'partition', 'strategy.part': 1}, 'parts/01'),
  ],
)
def test_sub_models_share_a_wait(waiting_long, settings, home, tmp_path):
  assert runs.run(tmp_path, _SETTINGS | settings) == 0
  assert 1000 < runs.report(tmp_path / home)['compile_secs'] < 1500


@pytest.mark.slow
@pytest.mark.ray
def test_workers_compile_after_the_run_has_waited(waiting_long, tmp_path):
  workers = {'strategy.name': 'workers', 'strategy.num_workers': 2}
  workers |= {'train.batch_words': 512, 'strategy.sync_every': 512}
  settings = _SETTINGS | workers | {'mesh.data': 0, 'train.epochs': 5}
  assert runs.run(tmp_path, settings) == 0
  assert 1000.1 < runs.report(tmp_path)['compile_secs'] < 1500


def test_what_does_not_fit_is_refused_before_it_is_compiled(
  start, tmp_path, monkeypatch
):
  def fail(*unused):
    raise AssertionError('takes memory and time')

  monkeypatch.setattr(resources, 'available_bytes', lambda: 1000)
  for module, name in ((loop, 'compile_ahead'), (build, 'reside')):
    monkeypatch.setattr(module, name, fail)
  with pytest.raises(runs.errors.UserError, match='the tables need'):
    start(tmp_path)
  assert not (tmp_path / 'config.json').exists()


@pytest.fixture
def events(monkeypatch):
  """Lists what happens to stores of tables."""
  events, close = [], fetching.Fetching.close
  make = fetching.Fetching.__init__

  def record_make(self, *args, **settings):
    events.append('made')
    make(self, *args, **settings)

  def record_close(self):
    events.append('closed')
    close(self)

  monkeypatch.setattr(fetching.Fetching, '__init__', record_make)
  monkeypatch.setattr(fetching.Fetching, 'close', record_close)
  return events


_STORE = {'table.store': 'memory', 'table.device_bytes': '50%'}


@pytest.mark.slow
def test_stores_are_closed_where_a_kernel_fails_late(
  start, events, tmp_path, monkeypatch
):
  def fail(name):
    raise RuntimeError('no such instruction')

  monkeypatch.setattr(handlers, 'load', fail)
  assert start(tmp_path, _STORE) == 0
  assert 'steps are not fused, and slower' in runs.log(tmp_path)
  assert events == ['made', 'closed'] * 2


def test_stores_are_closed_where_a_run_cannot_begin(
  start, events, tmp_path, monkeypatch
):
  def fail(parts):
    raise runs.errors.UserError('no room')

  monkeypatch.setattr(build, 'reside', fail)
  with pytest.raises(runs.errors.UserError, match='no room'):
    start(tmp_path, _STORE)
  assert events == ['made', 'closed']
