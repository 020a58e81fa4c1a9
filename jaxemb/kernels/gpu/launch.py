"""Launches of CUDA kernels by XLA, through one handler of its typed FFI.

XLA keeps compiled programs on disk, so that they have no address of a process:
a call names its kernel by a digest, which the handler looks up in a table of
the kernels that this process has loaded. A kernel gets the addresses of all
arguments, then those of all results, and runs on XLA's stream.
"""

import ctypes
import functools
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numba
import numpy as np
from numba.core import ccallback

from jaxemb.kernels import ffi, sources

TARGET = 'jaxemb_gpu_kernel'  # XLA's name of the handler
_MOST_KERNELS = 256  # that a process loads
_MOST_BUFFERS = 32  # arguments and results of a kernel
# Words of the table: the addresses of cuLaunchKernel and of messages, how many
# kernels there are, and a digest and a `CUkernel` of each.
_LAUNCH, _MISSING, _FAILED, _NUM, _FIRST = range(5)
_DIGITS = 3  # of a CUDA error, at the end of its message

_words, _word = ffi.table(
  'jaxemb_gpu_kernels', num_words=_FIRST + 2 * _MOST_KERNELS
)
_messages = {
  _MISSING: ctypes.create_string_buffer(
    b'a kernel is not loaded, or has more arrays than a launch takes'
  ),
  _FAILED: ctypes.create_string_buffer(b'cuLaunchKernel: CUDA error ' + b'000'),
}
_CODE = len(_messages[_FAILED].value) - _DIGITS
for _number, _message in _messages.items():
  _words[_number] = ctypes.addressof(_message)
_lock = threading.Lock()

_launch = ffi.calling(11)
_room = ffi.room(16 * _MOST_BUFFERS)


class Launch(NamedTuple):
  """A kernel and how it is launched; a program holds these numbers."""

  digest: int  # of the kernel, below 2^63
  blocks: int
  threads: int  # of a block
  shared_bytes: int  # of a block, dynamic


@numba.njit(**ffi.JIT)
def _find(digest):
  for i in range(np.intp(_word(_NUM))):
    if _word(_FIRST + 2 * i) == digest:
      return _word(_FIRST + 2 * i + 1)
  return np.uintp(0)


@numba.njit(**ffi.JIT)
def _describe(code):
  """The address of a message with a CUDA error."""
  message = _word(_FAILED)
  for i in range(_DIGITS):
    digit = np.uint8(ord('0') + code % 10)
    ffi.put(message, _CODE + _DIGITS - 1 - i, digit, np.uint8)
    code //= 10
  return message


@numba.njit(**ffi.JIT)
def _pointers(frame, room, num_arguments, num):
  """Writes addresses of arrays, and the addresses of these; returns that."""
  places = room + np.uintp(8 * _MOST_BUFFERS)
  for i in range(num):
    if i < num_arguments:
      start = ffi.data(frame, ffi.ARGUMENTS, i)
    else:
      start = ffi.data(frame, ffi.RESULTS, i - num_arguments)
    ffi.put(room, 8 * i, start, np.uintp)
    ffi.put(places, 8 * i, room + np.uintp(8 * i), np.uintp)
  return places


def handle(frame):
  """Launches the kernel that a call names."""
  if not ffi.is_call(frame):
    return np.uintp(0)
  launch = ffi.attribute(frame, 0)
  kernel = _find(ffi.get(launch, 0, np.uintp))
  num_arguments = ffi.num_buffers(frame, ffi.ARGUMENTS)
  num = num_arguments + ffi.num_buffers(frame, ffi.RESULTS)
  if not kernel or num > _MOST_BUFFERS:
    return ffi.failure(frame, _word(_MISSING))
  places = _pointers(frame, _room(), num_arguments, num)
  one = np.uintp(1)
  blocks = ffi.get(launch, 8, np.uintp)
  threads = ffi.get(launch, 16, np.uintp)
  shared_bytes = ffi.get(launch, 24, np.uintp)
  code = _launch(
    _word(_LAUNCH),
    (
      kernel, blocks, one, one, threads, one, one, shared_bytes,
      ffi.stream(frame), places, np.uintp(0),
    ),
  )  # fmt: skip
  code = np.intp(code & np.uintp(0xFFFFFFFF))
  if code:
    return ffi.failure(frame, _describe(code))
  return np.uintp(0)


@functools.cache  # XLA has only its address
def _compiled() -> ccallback.CFunc:
  here = pathlib.Path(__file__)
  digest = sources.digest((here, here.parents[1] / 'ffi.py'))
  handle.__qualname__ = f'handle-{digest[:16]}'
  make = numba.cfunc(ffi.SIGNATURE, cache=True, error_model='numpy')
  return make(handle)


@functools.cache  # XLA takes a name once
def register(platform: str = 'CUDA') -> None:
  """Registers the handler with XLA, compiled."""
  ffi.register(TARGET, _compiled(), platform)


def put(digest: int, kernel: int, launcher: int) -> None:
  """Makes a `CUkernel` the one that launches name by a digest.

  `launcher` is the address of `cuLaunchKernel`. Raises `ffi.Unavailable` for
  more kernels than the table has room for.
  """
  with _lock:
    _words[_LAUNCH] = launcher
    num = _words[_NUM]
    known = [_words[_FIRST + 2 * i] for i in range(num)]
    number = known.index(digest) if digest in known else num
    if number == _MOST_KERNELS:
      raise ffi.Unavailable(f'this process has loaded {num} kernels already')
    _words[_FIRST + 2 * number + 1] = kernel
    _words[_FIRST + 2 * number] = digest
    _words[_NUM] = max(num, number + 1)


def call(
  launch: Launch,
  arguments: Sequence[jax.Array],
  results: Sequence[jax.ShapeDtypeStruct],
  aliases: Mapping[int, int],
) -> Sequence[jax.Array]:
  """Launches a kernel; returns its results.

  `aliases` are the results, by the arguments that become them in place.
  """
  function = jax.ffi.ffi_call(
    TARGET, list(results), input_output_aliases=dict(aliases)
  )
  return function(*arguments, launch=np.array(launch, np.int64))
