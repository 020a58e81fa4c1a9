"""Where there is no kernel XLA's step runs, and one line says so."""

import subprocess
import sys

import numba
import pytest

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import ahead, handlers, step
from jaxemb.run import build, rundir
from tests import runs

_SETTINGS = {'train.epochs': 2, 'mesh.data': 1}


def _lines(workdir):
  lines = runs.log(workdir).splitlines()
  return [x for x in lines if 'steps are not fused' in x]


@pytest.mark.slow
@pytest.mark.parametrize('stage', ['compiled', 'registered', 'finished'])
def test_xla_trains_where_a_kernel_cannot_be(stage, tmp_path, monkeypatch):
  def fail(*args, **settings):
    raise RuntimeError('no such\ninstruction')

  # What was compiled before stays for other tests.
  monkeypatch.setattr(step, 'register', step.register.__wrapped__)
  if stage == 'compiled':
    monkeypatch.setattr(handlers, 'compiled', handlers.compiled.__wrapped__)
    monkeypatch.setattr(numba, 'cfunc', fail)
  elif stage == 'registered':
    monkeypatch.setattr(ffi, 'register', fail)
  else:  # what is compiled while XLA compiles the step
    process = subprocess.Popen([sys.executable, '-c', 'raise SystemExit(1)'])
    compiling = ahead.Compiling(process, ('skipgram-float32',))
    monkeypatch.setattr(
      build,
      '_compiling',
      lambda setup, _: compiling if setup.tuning.fused else None,
    )
    monkeypatch.setattr(rundir, 'cache_folder', lambda: tmp_path)
    monkeypatch.setattr(handlers, 'load', fail)
  failed, by_xla = tmp_path / 'failed', tmp_path / 'xla'
  assert runs.run(failed, _SETTINGS) == 0
  assert runs.run(by_xla, _SETTINGS | {'train.fused': False}) == 0
  (line,) = _lines(failed)
  assert 'no such instruction' in line and not _lines(by_xla)
  # As if no kernel had been asked for.
  settings, expected = (runs.report(x, 'config.json') for x in (failed, by_xla))
  for name in ('tuning', 'optimizer', 'model'):
    assert settings[name] == expected[name]
  assert runs.vectors(failed) == runs.vectors(by_xla)
