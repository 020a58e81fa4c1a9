"""Whole runs whose steps a GPU's kernel would take, as its driver is a fake.

They train nothing: the fake kernel counts its launches. XLA cuts the steps, on
a CPU.
"""

import ctypes
import dataclasses

import jax
import pytest

from jaxemb import config as config_lib
from jaxemb.kernels import ffi
from jaxemb.kernels.gpu import driver, launch, nvrtc, step
from jaxemb.run import devices as devices_lib
from tests import runs

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 11)
_MULTIPROCESSORS = 132
_SETTINGS = {'mesh.data': 1, 'train.threads': 0, 'train.epochs': 2}
_TOTALS = 16  # the number of loss and examples among the arrays of a launch


@pytest.fixture(name='blocks')
def _blocks(monkeypatch):
  """The blocks of each launch, on a machine that seems to have a GPU."""
  blocks, resolve = [], config_lib.resolve

  def fake(kernel, num_blocks, *numbers):
    places = ctypes.cast(numbers[-2], ctypes.POINTER(ctypes.c_void_p))
    totals = ctypes.cast(
      places[_TOTALS], ctypes.POINTER(ctypes.POINTER(ctypes.c_float))
    )[0]
    totals[0], totals[1] = 30.0, 10.0
    blocks.append(num_blocks)
    return 0

  launched = _LAUNCH(fake)
  address = ctypes.cast(launched, ctypes.c_void_p).value
  facts = driver.Facts(90, _MULTIPROCESSORS, shared_bytes=232_448)
  register = launch.register

  def resolve_for_gpu(config, platform, mesh, cores, **fixed):
    config, tuning = resolve(config, 'gpu', mesh, _MULTIPROCESSORS, **fixed)
    # Pallas has no kernels for a CPU.
    return config, dataclasses.replace(tuning, row_sums=False)

  for where, name, value in (
    (devices_lib.Setup, 'platform', 'gpu'),
    (config_lib, 'resolve', resolve_for_gpu),
    (driver, 'facts', lambda device: facts),
    (driver, 'cuda_version', lambda: 13),
    (driver, 'load', lambda *args, **more: 1),
    (driver, 'launcher', lambda: address),
    (launch, 'register', lambda: register('cpu')),
    (nvrtc, 'cubin', lambda *args, **more: b''),
    (step, '_compiling', {}),
    (step, '_loaded', {}),
  ):
    monkeypatch.setattr(where, name, value)
  yield blocks
  jax.clear_caches()


def _log_of_steps(workdir):
  (line,) = (x for x in runs.log(workdir).splitlines() if ' step: ' in f' {x}')
  return line


def test_log_and_report_say_what_is_in_flight(blocks, tmp_path):
  assert runs.run(tmp_path, _SETTINGS) == 0
  report, config = runs.report(tmp_path), runs.report(tmp_path, 'config.json')
  num = config['tuning']['threads']
  # As many as the vocabulary is large enough for.
  assert num == report['vocab_words'] // 500 > 1
  assert report['words_in_flight'] == 16 * num
  line = _log_of_steps(tmp_path)
  assert f'skipgram kernel (GPU), {num} blocks' in line
  assert f'{16 * num:,} words in flight' in line
  # Steps fit the text, and all are of the same size.
  size = config['train']['batch_words']
  assert size == config['tuning']['part_words'] >= 8 * 16 * num
  assert size % 16 == 0 and size < 16_384
  steps = report['kept_words'] // size
  assert steps <= len(blocks) and max(blocks) == num
  assert report['loss_per_example'] == pytest.approx(3)


def test_a_run_goes_on_with_the_steps_that_it_began_with(blocks, tmp_path):
  assert runs.run(tmp_path, _SETTINGS) == 0
  size = runs.report(tmp_path, 'config.json')['train']['batch_words']
  assert runs.run(tmp_path, _SETTINGS | {'train.threads': 2}) == 0
  config = runs.report(tmp_path, 'config.json')
  assert config['train']['batch_words'] == size
  assert config['tuning']['part_words'] == size
  assert config['tuning']['threads'] == 2


def test_steps_that_are_given_are_taken(blocks, tmp_path):
  assert runs.run(tmp_path, _SETTINGS | {'train.batch_words': 4096}) == 0
  config = runs.report(tmp_path, 'config.json')
  assert config['train']['batch_words'] == 4096 and blocks


@pytest.mark.slow
@pytest.mark.parametrize('module', [nvrtc, driver])
def test_without_a_kernel_one_line_says_so_and_xla_trains(
  module, blocks, tmp_path, monkeypatch
):
  def fail(*args, **more):
    raise ffi.Unavailable('no such thing')

  name = 'cubin' if module is nvrtc else 'load'
  monkeypatch.setattr(module, name, fail)
  assert runs.run(tmp_path, _SETTINGS) == 0
  (line,) = (x for x in runs.log(tmp_path).splitlines() if 'not fused' in x)
  assert 'no such thing' in line and 'XLA' in _log_of_steps(tmp_path)
  config = runs.report(tmp_path, 'config.json')
  assert not blocks and not config['tuning']['fused']
  # Steps see what those before have taught, and not what their own words do.
  size = config['train']['batch_words']
  assert runs.report(tmp_path)['words_in_flight'] == size
