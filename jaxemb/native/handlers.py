"""Kernels as functions that XLA can call, and their compilation.

Nothing here needs JAX: a process of its own compiles a kernel into numba's
cache while the text is read (`python -m jaxemb.native.handlers KERNEL DTYPE`),
because numba compiles one function at a time in each process.

The buffers of a call: the arrays that change (two tables, then their slots),
ids, contexts on the left and right, `numbers` float32 and `integers` int32.
"""

import functools
import hashlib
import pathlib
import subprocess
import sys

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba.core import ccallback

from jaxemb.native import ffi, kernels, rows, turns

# Arrays; results are these, [2] loss and examples, [threads, n] scratch.
NUM_CHANGED = 4
_KINDS = {'float32': np.float32, 'bfloat16': np.uint16}


@functools.cache
def source() -> str:
  """A digest of what kernels are compiled from, and by and for what.

  numba looks at one file to tell whether what it has compiled before is still
  right; a kernel is made of several.
  """
  folder = pathlib.Path(__file__).parent
  texts = [x.read_bytes() for x in sorted(folder.glob('*.py'))]
  names = (
    sys.version, numba.__version__, llvmlite.__version__,
    numba.config.CPU_NAME or binding.get_host_cpu_name(),
    numba.config.CPU_FEATURES or '',
  )  # fmt: skip
  return hashlib.sha256(b''.join(texts) + repr(names).encode()).hexdigest()


@numba.njit(**rows.INLINE)
def _rule(numbers, integers):
  return rows.Rule(
    np.int64(integers[0]),
    numbers[0],
    numbers[1],
    np.uint32(integers[1]),
    np.uint32(integers[2]),
    integers[3] != 0,
  )


@numba.njit(**rows.INLINE)
def _changed(frame, kind):
  return (
    ffi.matrix(frame, ffi.RESULTS, 0, kind),
    ffi.matrix(frame, ffi.RESULTS, 1, kind),
    ffi.vector(frame, ffi.RESULTS, 2, np.float32),
    ffi.vector(frame, ffi.RESULTS, 3, np.float32),
  )


@numba.njit(**rows.INLINE)
def _contexts(frame, number):
  return (
    ffi.matrix(frame, ffi.ARGUMENTS, number, np.uint8),
    ffi.matrix(frame, ffi.ARGUMENTS, number + 1, np.uint8),
  )


@numba.njit(**rows.INLINE)
def _constants(frame, number):
  return (
    ffi.vector(frame, ffi.ARGUMENTS, number, np.float32),
    ffi.vector(frame, ffi.ARGUMENTS, number + 1, np.int32),
  )


@numba.njit(**rows.INLINE)
def _sampling(frame, kind):
  """What `kernels.skipgram` and `kernels.cbow` take of a frame."""
  numbers, integers = _constants(frame, 8)
  return (
    *_changed(frame, kind),
    ffi.matrix(frame, ffi.ARGUMENTS, 4, np.int32),
    ffi.matrix(frame, ffi.ARGUMENTS, 5, np.int32),
    *_contexts(frame, 6),
    numbers[2],
    _rule(numbers, integers),
  )


@numba.njit(**rows.INLINE)
def _skipgram(frame, kind, first, stop, scratch):
  return kernels.skipgram(*_sampling(frame, kind), first, stop, scratch)


@numba.njit(**rows.INLINE)
def _cbow(frame, kind, first, stop, scratch):
  return kernels.cbow(*_sampling(frame, kind), first, stop, scratch)


@numba.njit(**rows.INLINE)
def _hierarchical(frame, kind, first, stop, scratch):
  numbers, integers = _constants(frame, 10)
  return kernels.hierarchical(
    *_changed(frame, kind),
    ffi.matrix(frame, ffi.ARGUMENTS, 4, np.int32),
    ffi.vector(frame, ffi.ARGUMENTS, 5, np.int32),
    ffi.matrix(frame, ffi.ARGUMENTS, 6, np.int32),
    ffi.matrix(frame, ffi.ARGUMENTS, 7, np.int32),
    *_contexts(frame, 8),
    integers[4] != 0,
    _rule(numbers, integers),
    first,
    stop,
    scratch,
  )


def _calling(kernel, left):
  """A function of calls whose argument `left` has a row for every chunk."""
  share = turns.sharing(kernel)

  @numba.njit(**rows.INLINE)
  def call(frame, kind):
    if ffi.is_call(frame):
      found = ffi.vector(frame, ffi.RESULTS, NUM_CHANGED, np.float32)
      found[:] = np.nan  # stays if it fails, of which XLA hears nothing
      num_chunks = ffi.matrix(frame, ffi.ARGUMENTS, left, np.uint8).shape[0]
      scratch = ffi.matrix(frame, ffi.RESULTS, NUM_CHANGED + 1, np.float32)
      found[0], found[1] = share(frame, kind, num_chunks, scratch)
    return np.uintp(0)

  return call


_call_skipgram = _calling(_skipgram, 6)
_call_cbow = _calling(_cbow, 6)
_call_hierarchical = _calling(_hierarchical, 8)


# Handlers name the version so that it is in numba's key of what is compiled;
# a function given by name here would be in it too, another in every process.


def _skipgram_handler(kind, version):
  def handle(frame):
    return _call_skipgram(frame, kind) if version else frame

  return handle


def _cbow_handler(kind, version):
  def handle(frame):
    return _call_cbow(frame, kind) if version else frame

  return handle


def _tree_handler(kind, version):
  def handle(frame):
    return _call_hierarchical(frame, kind) if version else frame

  return handle


_HANDLERS = {
  'skipgram': _skipgram_handler,
  'cbow': _cbow_handler,
  'hierarchical': _tree_handler,
}


@functools.cache
def load(kernel: str, dtype: str) -> ccallback.CFunc:
  """The handler of a kernel for tables of a dtype, compiled if it was not.

  It is kept: XLA has nothing but its address.
  """
  handler = _HANDLERS[kernel](_KINDS[dtype], source())
  return numba.cfunc(ffi.SIGNATURE, cache=True)(handler)


def compiling(
  kernel: str, dtype: str, folder: pathlib.Path
) -> subprocess.Popen | None:
  """A process that compiles a kernel; None = `folder` says that one did."""
  mark = folder / f'{kernel}-{dtype}-{source()[:16]}'
  if mark.exists():
    return None
  command = [sys.executable, '-m', __name__, kernel, dtype, str(mark)]
  return subprocess.Popen(command, stderr=subprocess.DEVNULL)


if __name__ == '__main__':
  load(sys.argv[1], sys.argv[2])
  pathlib.Path(sys.argv[3]).parent.mkdir(parents=True, exist_ok=True)
  pathlib.Path(sys.argv[3]).touch()
