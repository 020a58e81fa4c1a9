"""Threads that take turns at the chunks of one call.

The thread that XLA calls asks XLA's pool for more of them. Each takes range
after range of chunks from one counter, so that nobody waits for a thread that
comes late; the call ends when no chunk is left and no thread is at work. A
thread may still come after that: it finds a board that says so, which the last
to leave frees.

The tables are shared without locks (Hogwild, Niu et al. 2011): of two changes
to a row at the same moment one may be lost.
"""

import os
from collections.abc import Callable

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from jaxemb.native import ffi, rows

_LINE = 8  # words of 8 bytes, of a line of the cache
# The board: words that threads change, others that they read, room for a call
# of XLA; then a line for what each thread found.
_NEXT, _ACTIVE, _REFERENCES, _JOINED = range(4)
_FRAME, _NUM_CHUNKS, _SIZE, _SCRATCH, _SCRATCH_SIZE = range(_LINE, _LINE + 5)
_CALL, _FOUND = 2 * _LINE, 3 * _LINE
_TURNS = 64  # of each thread; in the end all wait for the longest one
_MIN_CHUNKS = 4  # of a turn, of which only the first is not fetched ahead
_SPINS = 1000  # before a thread that waits lets others run
_INT, _POINTER = ir.IntType(64), ir.IntType(8).as_pointer()


def _libc(builder, name, result, *arguments):
  form = ir.FunctionType(result, arguments)
  return cgutils.get_or_insert_function(builder.module, form, name)


@intrinsic
def _allocate(typing_context, size_bytes):
  def generate(context, builder, signature, args):
    function = _libc(builder, 'malloc', _POINTER, _INT)
    return builder.ptrtoint(builder.call(function, args), _INT)

  return types.uintp(types.uintp), generate


@intrinsic
def _free(typing_context, address):
  def generate(context, builder, signature, args):
    function = _libc(builder, 'free', ir.VoidType(), _POINTER)
    builder.call(function, [builder.inttoptr(args[0], _POINTER)])
    return context.get_dummy_value()

  return types.void(types.uintp), generate


@intrinsic
def _let_others_run(typing_context):
  def generate(context, builder, signature, args):
    if os.name == 'posix':
      builder.call(_libc(builder, 'sched_yield', ir.IntType(32)), [])
    return context.get_dummy_value()

  return types.void(), generate


@intrinsic
def _add(typing_context, board, word, number):
  """Adds to a word of the board, atomically; returns the old."""

  def generate(context, builder, signature, args):
    place = builder.add(args[0], builder.mul(args[1], _INT(8)))
    place = builder.inttoptr(place, _INT.as_pointer())
    return builder.atomic_rmw('add', place, args[2], 'seq_cst')

  return types.intp(types.uintp, types.intp, types.intp), generate


@numba.njit(**ffi.JIT)
def _words(board):
  return numba.carray(ffi.pointer(board, np.intp), _FOUND)


@numba.njit(**ffi.JIT)
def _found(board, number):
  """Loss and examples, float64, of a thread."""
  address = board + np.uintp(8 * (_FOUND + _LINE * number))
  return numba.carray(ffi.pointer(address, np.float64), 2)


@numba.njit(**ffi.JIT)
def _take(board, words):
  """The first chunk of a turn, and the one past its last."""
  first = _add(board, _NEXT, words[_SIZE])
  return first, min(first + words[_SIZE], words[_NUM_CHUNKS])


@numba.njit(**ffi.JIT)
def _leave(board):
  if _add(board, _REFERENCES, -1) == 1:
    _free(board)


@numba.njit(**ffi.JIT)
def _end(board):
  _add(board, _ACTIVE, -1)
  _leave(board)


def _task(work):
  """An intrinsic: the address of a C function of a board, a thread's work."""

  @intrinsic
  def task(typing_context, kind):
    steps = (work, (types.uintp, kind)), (_end, (types.uintp,))
    for function, kinds in steps:
      of_type = typing_context.resolve_value_type(function)
      of_type.get_call_type(typing_context, kinds, {})

    def generate(context, builder, signature, args):
      form = ir.FunctionType(ir.VoidType(), [_POINTER])
      name = builder.module.get_unique_name('jaxemb_task')
      entry = ir.Function(builder.module, form, name)
      entry.linkage = 'internal'
      inner = ir.IRBuilder(entry.append_basic_block())
      board = inner.ptrtoint(entry.args[0], _INT)
      values = board, context.get_dummy_value()
      # Whatever becomes of the work, the thread ends it.
      for function, kinds in steps:
        compiled = function.overloads[kinds]
        context.active_code_library.add_linking_library(compiled.library)
        target = context.declare_function(builder.module, compiled.fndesc)
        call = context.call_conv.call_function
        call(inner, target, types.none, kinds, values[: len(kinds)])
      inner.ret_void()
      return builder.ptrtoint(entry, _INT)

    return types.uintp(kind), generate

  return task


@intrinsic
def _run(typing_context, task, board):
  def generate(context, builder, signature, args):
    form = ir.FunctionType(ir.VoidType(), [_POINTER]).as_pointer()
    board = builder.inttoptr(args[1], _POINTER)
    builder.call(builder.inttoptr(args[0], form), [board])
    return context.get_dummy_value()

  return types.void(types.uintp, types.uintp), generate


def sharing(kernel: Callable) -> Callable:
  """A function that has all chunks of a call computed, by several threads.

  `kernel(frame, kind, first, stop, scratch)`, for numba, computes the chunks
  `first` to `stop` and returns loss and examples. What is returned takes
  (frame, kind, number of chunks, scratch) and returns the sums of both;
  `scratch` [threads, n] float32 has a row for each thread, of zeros at first.
  """

  @numba.njit(**rows.JIT)
  def work(board, kind):
    """Takes turns until there are none left."""
    _add(board, _ACTIVE, 1)  # before the turn, or the call could end meanwhile
    words = _words(board)
    first, stop = _take(board, words)
    if first >= stop:
      return
    number = _add(board, _JOINED, 1)
    found, loss, examples = _found(board, number), 0.0, 0.0
    found[:] = np.nan  # stays if the kernel fails
    size = words[_SCRATCH_SIZE]
    address = np.uintp(words[_SCRATCH] + 4 * size * number)
    scratch = numba.carray(ffi.pointer(address, np.float32), size)
    scratch[:] = 0
    while first < stop:
      more = kernel(np.uintp(words[_FRAME]), kind, first, stop, scratch)
      loss += more[0]
      examples += more[1]
      first, stop = _take(board, words)
    found[0], found[1] = loss, examples

  task_of = _task(work)

  @numba.njit(**rows.INLINE)
  def share(frame, kind, num_chunks, scratch):
    num_threads, size = scratch.shape
    board = _allocate(np.uintp(8 * (_FOUND + _LINE * num_threads)))
    if not board:
      return np.nan, np.nan
    words = _words(board)
    words[:] = 0
    words[_REFERENCES] = num_threads + 1
    words[_FRAME], words[_NUM_CHUNKS] = frame, num_chunks
    size_of_turns = max(_MIN_CHUNKS, num_chunks // (_TURNS * num_threads))
    words[_SIZE] = size_of_turns if num_threads > 1 else num_chunks
    words[_SCRATCH], words[_SCRATCH_SIZE] = scratch.ctypes.data, size
    task = task_of(kind)
    address = board + np.uintp(8 * _CALL)
    call = numba.carray(ffi.pointer(address, np.uintp), _LINE)
    for _ in range(num_threads - 1):
      if not ffi.schedule(frame, task, board, call):
        _leave(board)
    _run(task, board)
    spins = 0
    while _add(board, _ACTIVE, 0):
      spins += 1
      if spins > _SPINS:
        _let_others_run()
    loss = examples = 0.0
    for number in range(_add(board, _JOINED, 0)):
      found = _found(board, number)
      loss += found[0]
      examples += found[1]
    _leave(board)
    return loss, examples

  return share
