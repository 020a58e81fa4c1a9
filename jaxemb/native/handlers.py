"""Kernels as functions that XLA can call, and their compilation.

Three C functions, compiled apart: XLA calls the handler, which calls the task
that threads take turns in, which calls the kernel that the call names.

Nothing here needs JAX: a process of its own compiles a kernel into numba's
cache (`native.ahead`).

The buffers of a call: the arrays that change (two tables, then their slots),
contexts on the left and right, `numbers` float32, `integers` int32, of which
the last is the kernel, then ids.
"""

import functools
import pathlib
import sys

import numba
import numpy as np
from numba.core import ccallback

from jaxemb.native import ahead, ffi, kernels, rows, turns

TARGET = 'jaxemb_chunks'  # XLA's name for the handler
# Arrays; results are these, [2] loss and examples, [threads, n] scratch.
NUM_CHANGED = 4
_LEFT, _NUMBERS, _INTEGERS, _IDS = 4, 6, 7, 8  # arguments
_KERNEL = 5  # of the integers


# As parts of what calls them: LLVM optimizes once more what a function calls.


@numba.njit(**rows.INLINE)
def _call(frame, kind, first, stop, scratch, found):
  numbers = ffi.vector(frame, ffi.ARGUMENTS, _NUMBERS, np.float32)
  integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
  return kernels.Call(
    ffi.matrix(frame, ffi.RESULTS, 0, kind),
    ffi.matrix(frame, ffi.RESULTS, 1, kind),
    ffi.vector(frame, ffi.RESULTS, 2, np.float32),
    ffi.vector(frame, ffi.RESULTS, 3, np.float32),
    ffi.matrix(frame, ffi.ARGUMENTS, _LEFT, np.uint8),
    ffi.matrix(frame, ffi.ARGUMENTS, _LEFT + 1, np.uint8),
    numbers[2],
    integers[4] != 0,
    rows.Rule(
      np.int64(integers[0]),
      numbers[0],
      numbers[1],
      np.uint32(integers[1]),
      np.uint32(integers[2]),
      integers[3] != 0,
    ),
    np.intp(first),
    np.intp(stop),
    scratch,
    found,
  )


@numba.njit(**rows.INLINE)
def _ids(frame, number):
  return ffi.matrix(frame, ffi.ARGUMENTS, _IDS + number, np.int32)


# A version is in numba's key of what is compiled because a function names it. A
# function given by name would be in it too, another in every process.


def _skipgram(kind, version):
  def compute(frame, first, stop, scratch, found):
    _ = version
    call = _call(frame, kind, first, stop, scratch, found)
    kernels.skipgram(call, _ids(frame, 0), _ids(frame, 1))

  return compute


def _cbow(kind, version):
  def compute(frame, first, stop, scratch, found):
    _ = version
    call = _call(frame, kind, first, stop, scratch, found)
    kernels.cbow(call, _ids(frame, 0), _ids(frame, 1))

  return compute


def _hierarchical(kind, version):
  def compute(frame, first, stop, scratch, found):
    _ = version
    call = _call(frame, kind, first, stop, scratch, found)
    exits = ffi.vector(frame, ffi.ARGUMENTS, _IDS + 1, np.int32)
    firsts, deep = _ids(frame, 2), _ids(frame, 3)
    kernels.hierarchical(call, _ids(frame, 0), exits, firsts, deep)

  return compute


def _task(version):
  def work(board):
    _ = version
    turns.work(board)

  return work


def _handler(version):
  task = list(_PARTS).index(_TASK)

  def handle(frame):
    _ = version
    if ffi.is_call(frame):
      found = ffi.vector(frame, ffi.RESULTS, NUM_CHANGED, np.float32)
      found[:] = np.nan  # stays if it fails, of which XLA hears nothing
      left = ffi.matrix(frame, ffi.ARGUMENTS, _LEFT, np.uint8)
      integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
      scratch = ffi.matrix(frame, ffi.RESULTS, NUM_CHANGED + 1, np.float32)
      kernel = ffi.address(np.intp(integers[_KERNEL]))
      found[0], found[1] = turns.share(
        frame, kernel, ffi.address(task), left.shape[0], scratch
      )
    return np.uintp(0)

  return handle


_HANDLER, _TASK = 'handler', 'task'
_PARTS = {
  _HANDLER: (ffi.SIGNATURE, _handler),
  _TASK: (turns.TASK, _task),
} | {
  f'{name}-{dtype}': (turns.KERNEL, functools.partial(make, kind))
  for name, make in (
    ('skipgram', _skipgram), ('cbow', _cbow), ('hierarchical', _hierarchical)
  )
  for dtype, kind in (('float32', np.float32), ('bfloat16', np.uint16))
}  # fmt: skip


@functools.cache
def _compiled(part: str) -> ccallback.CFunc:
  """A part, at its address, compiled if it was not; it is kept."""
  form, make = _PARTS[part]
  compiled = numba.cfunc(form, cache=True)(make(ahead.source()))
  ffi.place(list(_PARTS).index(part), compiled)
  return compiled


def handler() -> ccallback.CFunc:
  """What XLA calls; of the kernels none need be compiled yet."""
  _compiled(_TASK)
  return _compiled(_HANDLER)


def load(kernel: str, dtype: str) -> int:
  """Compiles a kernel for tables of a dtype, if it was not; its number."""
  part = f'{kernel}-{dtype}'
  _compiled(part)
  return list(_PARTS).index(part)


if __name__ == '__main__':
  load(sys.argv[1], sys.argv[2])
  pathlib.Path(sys.argv[3]).parent.mkdir(parents=True, exist_ok=True)
  pathlib.Path(sys.argv[3]).touch()
