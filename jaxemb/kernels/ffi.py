"""Functions compiled by numba as handlers of XLA's typed FFI.

XLA calls a handler with one frame: C structs of pointers, whose layout is part
of XLA's stable interface (xla/ffi/api/c_api.h, version 0.3, which comes with
jaxlib). Reading it takes a few offsets and no compiler.

Functions that are compiled apart look each other up by number, in a table of
addresses that has a symbol: linked together, each would be optimized once more
for every caller.
"""

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import ccallback, cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

SIGNATURE = types.uintp(types.uintp)  # of handlers: frame -> error, 0 = none

JIT = {'nogil': True, 'no_cpython_wrapper': True, 'no_cfunc_wrapper': True}
_VERSION = 0, 3
# Offsets in bytes: in XLA_FFI_CallFrame,
_EXTENSION, _INTERFACE, _CONTEXT, _STAGE = 8, 16, 24, 32
ARGUMENTS, RESULTS = 40, 80
_ATTRIBUTES = 120
_SIZE, _ARRAYS = 16, 32  # in XLA_FFI_Args and XLA_FFI_Rets,
_VALUES = 40  # in XLA_FFI_Attrs,
_NUMBERS = 16  # in XLA_FFI_Array,
_DATA, _DIMS = 24, 40  # in XLA_FFI_Buffer,
_KIND, _METADATA = 8, 24  # in XLA_FFI_Metadata_Extension,
_MAJOR, _MINOR, _TRAITS = 24, 28, 32  # in XLA_FFI_Metadata,
# and in XLA_FFI_Api.
_CREATE_ERROR, _DESTROY_ERROR, _STREAM, _SCHEDULE = 48, 64, 80, 136
_IS_METADATA, _EXECUTE = 1, 3
_INTERNAL = 13  # the code of an error

_INT = ir.IntType(64)
MOST_FUNCTIONS = 32  # compiled
LENT = MOST_FUNCTIONS  # `address` of it is how many cores are lent
_lock = threading.Lock()


class Unavailable(Exception):
  """A kernel cannot be compiled or used, for a reason of one line."""


def table(symbol: str, num_words: int) -> tuple[ctypes.Array, intrinsic]:
  """Makes a table of words that compiled functions read, by a symbol's name.

  What numba keeps on disk has the name and no address of this process. The
  intrinsic returns the word of a number.
  """
  words = (ctypes.c_uint64 * num_words)()
  binding.add_symbol(symbol, ctypes.addressof(words))

  def generate(context, builder, signature, args):
    form = ir.ArrayType(_INT, num_words)
    start = builder.module.globals.get(symbol)
    start = start or ir.GlobalVariable(builder.module, form, symbol)
    return builder.load(builder.gep(start, [_INT(0), args[0]]))

  @intrinsic
  def word(typing_context, number):
    return types.uintp(types.intp), generate

  return words, word


# `address` returns the address of the function published by a number.
_addresses, address = table('jaxemb_addresses', MOST_FUNCTIONS + 1)


def lend(cores: int) -> None:
  """Suspends so many more threads of kernels, whose cores others need."""
  with _lock:
    _addresses[LENT] += cores


def publish(number: int, function: ccallback.CFunc) -> None:
  """Makes a compiled function, which the caller keeps, `address(number)`."""
  if number >= MOST_FUNCTIONS:
    raise IndexError(f'{number} is not one of {MOST_FUNCTIONS} functions')
  _addresses[number] = function.address


def _at(context, builder, place, kind):
  """The pointer to a number of a type, at a `place`: address, offset."""
  form = context.get_value_type(kind).as_pointer()
  return builder.inttoptr(builder.add(*place), form)


@intrinsic
def get(typing_context, start, offset, kind):
  """The number of a NumPy type that is `offset` bytes after an address."""

  def generate(context, builder, signature, args):
    return builder.load(_at(context, builder, place=args[:2], kind=kind.dtype))

  return kind.dtype(types.uintp, types.intp, kind), generate


@intrinsic
def put(typing_context, start, offset, number, kind):
  """Writes a number of a NumPy type `offset` bytes after an address."""

  def generate(context, builder, signature, args):
    builder.store(
      args[2], _at(context, builder, place=args[:2], kind=kind.dtype)
    )
    return context.get_dummy_value()

  form = types.void(types.uintp, types.intp, kind.dtype, kind)
  return form, generate


@intrinsic
def add(typing_context, start, offset, number):
  """Adds to the word that is `offset` bytes on, atomically; returns the old."""

  def generate(context, builder, signature, args):
    word = _at(context, builder, place=args[:2], kind=types.intp)
    return builder.atomic_rmw('add', word, args[2], 'seq_cst')

  return types.intp(types.uintp, types.intp, types.intp), generate


@intrinsic
def clear(typing_context, start, num_bytes):
  """Writes zeros at an address."""

  def generate(context, builder, signature, args):
    place = builder.inttoptr(args[0], cgutils.voidptr_t)
    cgutils.memset(builder, place, args[1], 0)
    return context.get_dummy_value()

  return types.void(types.uintp, types.intp), generate


def calling(num_arguments: int) -> intrinsic:
  """Makes an intrinsic that calls a C function, given its address and words.

  It returns a word, which has no meaning where the function returns nothing.
  """

  def generate(context, builder, signature, args):
    form = ir.FunctionType(_INT, [_INT] * num_arguments)
    function = builder.inttoptr(args[0], form.as_pointer())
    return builder.call(function, cgutils.unpack_tuple(builder, args[1]))

  @intrinsic
  def call(typing_context, function, words):
    words = types.UniTuple(types.uintp, num_arguments)
    return types.uintp(types.uintp, words), generate

  return call


def room(num_bytes: int) -> intrinsic:
  """Makes an intrinsic: the address of zeros on the stack of its caller."""

  def generate(context, builder, signature, args):
    form = ir.ArrayType(ir.IntType(8), num_bytes)
    start = cgutils.alloca_once(builder, form)
    start.align = 8
    builder.store(ir.Constant(form, None), start)
    return builder.ptrtoint(start, _INT)

  @intrinsic
  def zeros(typing_context):
    return types.uintp(), generate

  return zeros


_ask = calling(1)
_request_room = room(40)


@numba.njit(**JIT)
def is_call(frame):
  """Whether a handler is to compute; XLA also asks what it was made for."""
  extension = get(frame, _EXTENSION, np.uintp)
  if extension and get(extension, _KIND, np.int32) == _IS_METADATA:
    metadata = get(extension, _METADATA, np.uintp)
    put(metadata, _MAJOR, _VERSION[0], np.int32)
    put(metadata, _MINOR, _VERSION[1], np.int32)
    put(metadata, _TRAITS, 0, np.int32)
    return False
  return get(frame, _STAGE, np.int32) == _EXECUTE


def _word(context, builder, start, offset):
  place = start, _INT(offset) if isinstance(offset, int) else offset
  return builder.load(_at(context, builder, place=place, kind=types.uintp))


def _buffer(context, builder, args):
  """The addresses of the elements and of the shape of a buffer."""
  frame, buffers, number = args[:3]
  start = builder.add(buffers, _INT(_ARRAYS))
  arrays = _word(context, builder, frame, start)
  array = _word(context, builder, arrays, builder.mul(number, _INT(8)))
  return tuple(_word(context, builder, array, x) for x in (_DATA, _DIMS))


# Intrinsics: numba compiles a function anew for each constant that it is given.


def make_array(
  context: Any, builder: ir.IRBuilder, form: types.Array, data: ir.Value,
  shape: Sequence[ir.Value],
) -> ir.Value:  # fmt: skip
  """Generates an array without gaps, given the address of its numbers."""
  element = context.get_data_type(form.dtype)
  item_bytes = _INT(context.get_abi_sizeof(element))
  strides = [item_bytes]
  for size in shape[:0:-1]:
    strides.insert(0, builder.mul(strides[0], size))
  made = context.make_array(form)(context, builder)
  arrayobj.populate_array(
    made,
    data=builder.inttoptr(data, element.as_pointer()),
    shape=shape,
    strides=strides,
    itemsize=item_bytes,
    meminfo=None,
  )
  return made._getvalue()


def _elements(context, builder, form, args):
  """Generates the array of a buffer: of a frame, its buffers, its number."""
  data, dims = _buffer(context, builder, args)
  shape = [_word(context, builder, dims, 8 * i) for i in range(form.ndim)]
  return make_array(context, builder, form, data=data, shape=shape)


def _array(num_axes):
  """Makes an intrinsic that returns the elements of a buffer."""

  @intrinsic
  def array(typing_context, frame, buffers, number, kind):
    form = types.Array(kind.dtype, num_axes, 'C')

    def generate(context, builder, signature, args):
      return _elements(context, builder, form, args=args)

    return form(types.uintp, types.intp, types.intp, kind), generate

  return array


def matrix_of(buffers: int) -> intrinsic:
  """Makes an intrinsic: the elements of an argument, or of a result.

  Those [m, n] of a NumPy type, given a frame, its number and the type.
  """

  @intrinsic
  def matrix(typing_context, frame, number, kind):
    form = types.Array(kind.dtype, 2, 'C')

    def generate(context, builder, signature, args):
      buffer = args[0], _INT(buffers), args[1]
      return _elements(context, builder, form, args=buffer)

    return form(types.uintp, types.intp, kind), generate

  return matrix


# The elements [n] or [m, n], of a NumPy type, of an argument or result, given a
# frame, `ARGUMENTS` or `RESULTS`, its number and the type.
vector, matrix = _array(1), _array(2)


@numba.njit(**JIT)
def num_buffers(frame, buffers):
  """How many `ARGUMENTS` or `RESULTS` there are."""
  return get(frame, buffers + _SIZE, np.intp)


@intrinsic
def data(typing_context, frame, buffers, number):
  """The address of the elements of an argument or result."""

  def generate(context, builder, signature, args):
    return _buffer(context, builder, args)[0]

  return types.uintp(types.uintp, types.intp, types.intp), generate


@numba.njit(**JIT)
def attribute(frame, number):
  """The address of the numbers of an attribute that is an array.

  Attributes are in the order of their names.
  """
  values = get(frame, _ATTRIBUTES + _VALUES, np.uintp)
  return get(get(values, 8 * number, np.uintp), _NUMBERS, np.uintp)


@numba.njit(**JIT)
def stream(frame):
  """The stream that a GPU's handler is to use; 0 = XLA has none."""
  interface = get(frame, _INTERFACE, np.uintp)
  request = _request_room()
  put(request, 0, 32, np.uintp)  # bytes
  put(request, 16, get(frame, _CONTEXT, np.uintp), np.uintp)
  error = _ask(get(interface, _STREAM, np.uintp), (request,))
  if error:
    put(request, 0, 24, np.uintp)
    put(request, 16, error, np.uintp)
    _ask(get(interface, _DESTROY_ERROR, np.uintp), (request,))
    return np.uintp(0)
  return get(request, 24, np.uintp)


@numba.njit(**JIT)
def failure(frame, message):
  """The error that a handler returns, of the address of a C string."""
  interface = get(frame, _INTERFACE, np.uintp)
  request = _request_room()
  put(request, 0, 28, np.uintp)  # bytes
  put(request, 16, message, np.uintp)
  put(request, 24, _INTERNAL, np.int32)
  return _ask(get(interface, _CREATE_ERROR, np.uintp), (request,))


@numba.njit(**JIT)
def schedule(frame, task, data, request):
  """Has a thread of XLA call a task, `void (*)(void*)`; whether one will.

  `request` is the address of 40 bytes for XLA's struct of the request.
  """
  interface = get(frame, _INTERFACE, np.uintp)
  put(request, 0, 40, np.uintp)  # bytes
  put(request, 8, 0, np.uintp)  # extensions
  put(request, 16, get(frame, _CONTEXT, np.uintp), np.uintp)
  put(request, 24, task, np.uintp)
  put(request, 32, data, np.uintp)
  error = _ask(get(interface, _SCHEDULE, np.uintp), (request,))
  if error:
    put(request, 0, 24, np.uintp)
    put(request, 16, error, np.uintp)
    _ask(get(interface, _DESTROY_ERROR, np.uintp), (request,))
  return error == 0


def register(name: str, handler: ccallback.CFunc, platform: str) -> None:
  """Registers a compiled handler, of `SIGNATURE`, with XLA.

  `platform` is 'cpu' or 'CUDA'. The caller keeps the handler: XLA has only its
  address.
  """
  import jax  # takes a second; what only compiles does not need it

  start = ctypes.c_void_p(handler.address)
  capsule = ctypes.pythonapi.PyCapsule_New
  capsule.restype = ctypes.py_object
  capsule.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
  jax.ffi.register_ffi_target(name, capsule(start, None, None), platform)
