"""Kernels loaded by NVIDIA's driver, and what it says of a GPU."""

import ctypes
import functools
from typing import Any, NamedTuple

import jax

from jaxemb.kernels import ffi

LEAST_CAPABILITY = 75  # of Turing, sm_75
_LEAST_CUDA = 12  # whose drivers load kernels for all contexts
_FREE_SHARED_BYTES = 48 << 10  # of a block, which need not be asked for
# Of enumerations in cuda.h.
_MULTIPROCESSORS, _SHARED_BYTES = 16, 97  # CUdevice_attribute
_MAJOR, _MINOR = 75, 76
_DYNAMIC_BYTES = 8  # CUfunction_attribute


class Facts(NamedTuple):
  """What a launch depends on."""

  capability: int  # as 90 for sm_90
  multiprocessors: int
  shared_bytes: int  # that a block can have


@functools.cache
def library() -> ctypes.CDLL:
  """Returns the driver, started. Raises `ffi.Unavailable` without one."""
  try:
    cuda = ctypes.CDLL('libcuda.so.1')
  except OSError as error:
    raise ffi.Unavailable(
      "NVIDIA's driver, libcuda.so.1, cannot be loaded"
    ) from error
  _call(cuda, 'cuInit', 0)
  return cuda


def _call(cuda, name, *args):
  """Calls a function of the driver. Raises `ffi.Unavailable` if it fails."""
  if code := getattr(cuda, name)(*args):
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(code, ctypes.byref(text))
    shown = f' ({text.value.decode()})' if text.value else ''
    raise ffi.Unavailable(f'{name}: CUDA error {code}{shown}')


def cuda_version() -> int:
  """Returns the newest major version of CUDA that the driver runs.

  Raises `ffi.Unavailable` for a driver that is too old.
  """
  cuda, number = library(), ctypes.c_int()
  _call(cuda, 'cuDriverGetVersion', ctypes.byref(number))
  major = number.value // 1000
  if major < _LEAST_CUDA or not hasattr(cuda, 'cuLibraryLoadData'):
    raise ffi.Unavailable(
      f"NVIDIA's driver is of CUDA {major}.{number.value % 1000 // 10}, and "
      f'the kernel needs one of CUDA {_LEAST_CUDA} or newer'
    )
  return major


def is_nvidia(device: jax.Device) -> bool:
  """Whether a device is a GPU whose compute capability is known."""
  capability = str(getattr(device, 'compute_capability', ''))
  return device.platform == 'gpu' and capability.replace('.', '').isdecimal()


def facts(device: jax.Device) -> Facts:
  """Returns what JAX says of a GPU, or else the driver.

  The GPU may be one to compile for that is not there. Raises `ffi.Unavailable`
  for one that is too old, or of another maker.
  """
  if not is_nvidia(device):
    raise ffi.Unavailable(f'there is no kernel for {device.device_kind}')
  major, _, minor = str(device.compute_capability).partition('.')
  capability = 10 * int(major) + int(minor or 0)
  if capability < LEAST_CAPABILITY:
    raise ffi.Unavailable(
      f'{device.device_kind} has compute capability {major}.{minor or 0}, and '
      f'the kernel needs {LEAST_CAPABILITY / 10}'
    )
  return Facts(
    capability=capability,
    multiprocessors=_fact(device, 'core_count', _MULTIPROCESSORS),
    shared_bytes=_fact(device, 'shared_memory_per_block_optin', _SHARED_BYTES),
  )


def _fact(device: jax.Device, name: str, number: int) -> int:
  """Returns what JAX knows of a device by a name, the driver by a number."""
  known: Any = getattr(device, name, None)
  if known is not None:
    return int(known)
  return _ask(number, ordinal=device.local_hardware_id)


def _ask(number: int, ordinal: int) -> int:
  cuda, device, value = library(), ctypes.c_int(), ctypes.c_int()
  _call(cuda, 'cuDeviceGet', ctypes.byref(device), ordinal)
  _call(cuda, 'cuDeviceGetAttribute', ctypes.byref(value), number, device)
  return value.value


def launcher() -> int:
  """Returns the address of `cuLaunchKernel`."""
  return ctypes.cast(library().cuLaunchKernel, ctypes.c_void_p).value or 0


def load(
  program: bytes, name: str, shared_bytes: int, ordinals: list[int]
) -> int:
  """Loads a kernel for all contexts; returns its `CUkernel`.

  It stays loaded. Of dynamic shared memory a block has `shared_bytes`, on the
  devices that CUDA numbers so. Raises `ffi.Unavailable`.
  """
  cuda, loaded, kernel = library(), ctypes.c_void_p(), ctypes.c_void_p()
  no_options = None, None, 0
  out = ctypes.byref(loaded)
  _call(cuda, 'cuLibraryLoadData', out, program, *no_options, *no_options)
  out = ctypes.byref(kernel)
  _call(cuda, 'cuLibraryGetKernel', out, loaded, name.encode())
  if shared_bytes > _FREE_SHARED_BYTES:
    for ordinal in ordinals:
      device = ctypes.c_int()
      _call(cuda, 'cuDeviceGet', ctypes.byref(device), ordinal)
      given = shared_bytes, kernel, device
      _call(cuda, 'cuKernelSetAttribute', _DYNAMIC_BYTES, *given)
  return kernel.value or 0
