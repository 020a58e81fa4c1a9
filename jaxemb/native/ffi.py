"""Functions compiled by numba as handlers of XLA's typed FFI.

XLA calls a handler with one frame: C structs of pointers, whose layout is part
of XLA's stable interface (xla/ffi/api/c_api.h, version 0.3, which comes with
jaxlib). To read it takes a few offsets, and no compiler.
"""

import ctypes

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import ccallback
from numba.extending import intrinsic

SIGNATURE = types.uintp(types.uintp)  # of handlers: frame -> error, 0 = none

JIT = {'nogil': True, 'no_cpython_wrapper': True, 'no_cfunc_wrapper': True}
_VERSION = 0, 3
# Offsets in bytes: in XLA_FFI_CallFrame,
_EXTENSION, _INTERFACE, _CONTEXT, _STAGE = 8, 16, 24, 32
ARGUMENTS, RESULTS = 40, 80
_ARRAYS = 32  # in XLA_FFI_Args and XLA_FFI_Rets,
_DATA, _DIMS = 24, 40  # in XLA_FFI_Buffer,
_KIND, _METADATA = 8, 24  # in XLA_FFI_Metadata_Extension,
_MAJOR, _MINOR, _TRAITS = 24, 28, 32  # in XLA_FFI_Metadata,
_DESTROY_ERROR, _SCHEDULE = 64, 136  # and in XLA_FFI_Api.
_IS_METADATA, _EXECUTE = 1, 3


@intrinsic
def pointer(typing_context, address, kind):
  """A pointer to numbers of a NumPy type, given as a class, at an address."""

  def generate(context, builder, signature, args):
    form = context.get_value_type(signature.return_type)
    return builder.inttoptr(args[0], form)

  return types.CPointer(kind.dtype)(types.uintp, kind), generate


@numba.njit(**JIT)
def _word(address, offset):
  return numba.carray(pointer(address + np.uintp(offset), np.uintp), 1)[0]


@numba.njit(**JIT)
def _half(address, offset):
  return numba.carray(pointer(address + np.uintp(offset), np.int32), 1)


@numba.njit(**JIT)
def is_call(frame):
  """Whether a handler is to compute; XLA also asks what it was made for."""
  extension = _word(frame, _EXTENSION)
  if extension and _half(extension, _KIND)[0] == _IS_METADATA:
    metadata = _word(extension, _METADATA)
    _half(metadata, _MAJOR)[0], _half(metadata, _MINOR)[0] = _VERSION
    _half(metadata, _TRAITS)[0] = 0
    return False
  return _half(frame, _STAGE)[0] == _EXECUTE


@numba.njit(**JIT)
def _buffer(frame, buffers, number):
  array = _word(_word(frame, buffers + _ARRAYS), 8 * number)
  return _word(array, _DATA), _word(array, _DIMS)


@numba.njit(**JIT)
def vector(frame, buffers, number, kind):
  """The elements [n], of a NumPy type, of an argument or result.

  `buffers` is `ARGUMENTS` or `RESULTS`.
  """
  data, dims = _buffer(frame, buffers, number)
  return numba.carray(pointer(data, kind), np.intp(_word(dims, 0)))


@numba.njit(**JIT)
def matrix(frame, buffers, number, kind):
  """As `vector`, of one with two axes."""
  data, dims = _buffer(frame, buffers, number)
  shape = np.intp(_word(dims, 0)), np.intp(_word(dims, 8))
  return numba.carray(pointer(data, kind), shape)


@intrinsic
def _call(typing_context, function, arguments):
  """Calls a function of the interface, at an address, with a struct."""

  def generate(context, builder, signature, args):
    word = ir.IntType(64)
    form = ir.FunctionType(word, [word]).as_pointer()
    return builder.call(builder.inttoptr(args[0], form), [args[1]])

  return types.uintp(types.uintp, types.uintp), generate


@numba.njit(**JIT)
def schedule(frame, task, data, arguments):
  """Has a thread of XLA call a task, `void (*)(void*)`; whether one will.

  `arguments` [5] uintp is room for what it is asked with: an array made here
  would add seconds to the compilation of a kernel.
  """
  interface = _word(frame, _INTERFACE)
  arguments[0], arguments[1] = 40, 0  # bytes, extensions
  arguments[2] = _word(frame, _CONTEXT)
  arguments[3], arguments[4] = task, data
  error = _call(_word(interface, _SCHEDULE), arguments.ctypes.data)
  if error:
    arguments[0], arguments[2] = 24, error
    _call(_word(interface, _DESTROY_ERROR), arguments.ctypes.data)
  return error == 0


def register(name: str, handler: ccallback.CFunc) -> None:
  """Makes a compiled handler, of `SIGNATURE`, known to XLA for CPUs."""
  import jax  # takes a second; what only compiles does not need it

  address = ctypes.cast(handler.address, ctypes.c_void_p)
  capsule = ctypes.pythonapi.PyCapsule_New
  capsule.restype = ctypes.py_object
  capsule.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
  jax.ffi.register_ffi_target(name, capsule(address, None, None), 'cpu')
