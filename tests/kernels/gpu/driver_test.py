"""A driver and devices that are fakes."""

import ctypes
import types

import pytest

from jaxemb.kernels import ffi
from jaxemb.kernels.gpu import driver


def _device(capability='9.0', **facts):
  facts = {'core_count': 132, 'shared_memory_per_block_optin': 232_448} | facts
  return types.SimpleNamespace(
    platform='gpu',
    device_kind='a GPU',
    local_hardware_id=1,
    compute_capability=capability,
    **{k: x for k, x in facts.items() if x is not None},
  )


class _Cuda:
  """Records calls; fails in the one named."""

  def __init__(self, version=13000, failing=''):
    self.version, self.failing, self.calls = version, failing, []

  def __getattr__(self, name):
    if not name.startswith('cu') or (
      name == 'cuLibraryLoadData' and self.version < 12000
    ):
      raise AttributeError(name)
    return lambda *args: self._call(name, *args)

  def _call(self, name, *args):
    self.calls.append((name, *args))
    out = getattr(args[0], '_obj', None) if args else None
    match name:
      case 'cuDriverGetVersion':
        out.value = self.version
      case 'cuDeviceGet':
        out.value = args[1]
      case 'cuDeviceGetAttribute':
        out.value = 1000 + args[1]
      case 'cuLibraryGetKernel':
        out.value = 4321
      case 'cuGetErrorString':
        args[1]._obj.value = b'bad luck'
    return 7 if name == self.failing else 0


def _use(monkeypatch, **settings):
  cuda = _Cuda(**settings)
  monkeypatch.setattr(driver, 'library', lambda: cuda)
  return cuda


def test_facts_are_those_of_jax_and_else_the_drivers(monkeypatch):
  assert driver.facts(_device()) == (90, 132, 232_448)
  assert driver.facts(_device('12.0'))[0] == 120
  cuda = _use(monkeypatch)
  bare = _device(core_count=None, shared_memory_per_block_optin=None)
  assert driver.facts(bare) == (90, 1016, 1097)
  assert cuda.calls[0][0] == 'cuDeviceGet' and cuda.calls[0][2] == 1


@pytest.mark.parametrize(
  ('capability', 'message'),
  [('7.0', 'capability 7.0, and the kernel needs 7.5'), ('gfx942', 'a GPU')],
)
def test_other_gpus_are_one_line(capability, message):
  with pytest.raises(ffi.Unavailable, match=message):
    driver.facts(_device(capability))


def test_a_driver_that_is_too_old_is_one_line(monkeypatch):
  _use(monkeypatch)
  assert driver.cuda_version() == 13
  _use(monkeypatch, version=11080)
  with pytest.raises(ffi.Unavailable, match=r'CUDA 11\.8.*needs.*CUDA 12'):
    driver.cuda_version()


def test_a_kernel_gets_its_shared_memory_on_every_device(monkeypatch):
  cuda = _use(monkeypatch)
  assert driver.load(b'cubin', 'train', 64 << 10, ordinals=[2, 5]) == 4321
  names = [x[0] for x in cuda.calls]
  assert names[:2] == ['cuLibraryLoadData', 'cuLibraryGetKernel']
  set_on = [x for x in cuda.calls if x[0] == 'cuKernelSetAttribute']
  assert [(x[1], x[2], x[4].value) for x in set_on] == [
    (8, 64 << 10, 2),
    (8, 64 << 10, 5),
  ]
  cuda = _use(monkeypatch)
  driver.load(b'cubin', 'train', 48 << 10, ordinals=[0])
  assert 'cuKernelSetAttribute' not in [x[0] for x in cuda.calls]


def test_an_error_of_the_driver_is_one_line(monkeypatch):
  _use(monkeypatch, failing='cuLibraryLoadData')
  with pytest.raises(ffi.Unavailable) as caught:
    driver.load(b'cubin', 'train', 0, ordinals=[])
  assert str(caught.value) == 'cuLibraryLoadData: CUDA error 7 (bad luck)'


def test_without_a_driver_one_line_says_so(monkeypatch):
  def fail(name):
    raise OSError(name)

  monkeypatch.setattr(ctypes, 'CDLL', fail)
  with pytest.raises(ffi.Unavailable, match=r'libcuda\.so\.1'):
    driver.library.__wrapped__()
