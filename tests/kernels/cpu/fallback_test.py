"""Where there is no kernel XLA's step runs, and one line says so."""

import numba
import pytest

from jaxemb.kernels.cpu import ffi, handlers, step
from tests import runs

_SETTINGS = {'train.epochs': 2, 'mesh.data': 1}
_LINE = 'steps are not fused'
pytestmark = pytest.mark.slow


def _lines(workdir):
  return [x for x in runs.log(workdir).splitlines() if _LINE in x]


def _tuning(workdir):
  return runs.report(workdir, 'config.json')['tuning']


@pytest.fixture(scope='module')
def by_xla(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('fallback') / 'xla'
  assert runs.run(workdir, _SETTINGS | {'train.fused': False}) == 0
  return workdir


def test_a_kernel_is_used_without_a_word(tmp_path, by_xla):
  assert runs.run(tmp_path, _SETTINGS) == 0
  assert _tuning(tmp_path)['fused'] and not _tuning(by_xla)['fused']
  assert not _lines(tmp_path) and not _lines(by_xla)
  assert runs.vectors(tmp_path) != runs.vectors(by_xla)


@pytest.mark.parametrize('stage', ['compiled', 'registered'])
def test_xla_trains_where_a_kernel_cannot_be(
  stage, tmp_path, by_xla, monkeypatch
):
  def fail(*args, **settings):
    raise RuntimeError('no such\ninstruction')

  # What was compiled before stays for other tests.
  monkeypatch.setattr(step, 'register', step.register.__wrapped__)
  if stage == 'compiled':
    monkeypatch.setattr(handlers, 'compiled', handlers.compiled.__wrapped__)
    monkeypatch.setattr(numba, 'cfunc', fail)
  else:
    monkeypatch.setattr(ffi, 'register', fail)
  assert runs.run(tmp_path, _SETTINGS) == 0
  (line,) = _lines(tmp_path)
  assert 'no such instruction' in line
  # As if no kernel had been asked for.
  settings = runs.report(tmp_path, 'config.json')
  expected = runs.report(by_xla, 'config.json')
  for name in ('tuning', 'optimizer', 'model'):
    assert settings[name] == expected[name]
  assert runs.vectors(tmp_path) == runs.vectors(by_xla)
