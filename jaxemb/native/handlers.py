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

from jaxemb.native import ffi, kernels, rows

NUM_CHANGED = 4  # arrays; results are these, [2] loss and examples, scratch
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


@numba.njit(**rows.JIT)
def _rule(numbers, integers):
  return rows.Rule(
    np.int64(integers[0]),
    numbers[0],
    numbers[1],
    np.uint32(integers[1]),
    np.uint32(integers[2]),
    integers[3] != 0,
  )


@numba.njit(**rows.JIT)
def _finish(frame, found):
  out = ffi.result(frame, NUM_CHANGED, np.float32)
  out[0], out[1] = found
  return np.uintp(0)


@numba.njit(**rows.JIT)
def _tables(frame, kind):
  return (
    ffi.matrix_result(frame, 0, kind),
    ffi.matrix_result(frame, 1, kind),
    ffi.result(frame, 2, np.float32),
    ffi.result(frame, 3, np.float32),
  )


def _skipgram_handler(kind, version):
  def handle(frame):
    if not ffi.is_call(frame) or version == '':
      return np.uintp(0)
    numbers = ffi.argument(frame, 8, np.float32)
    integers = ffi.argument(frame, 9, np.int32)
    inputs, outputs, input_slots, output_slots = _tables(frame, kind)
    found = kernels.skipgram(
      inputs, outputs, input_slots, output_slots,
      ffi.matrix_argument(frame, 4, np.int32),
      ffi.matrix_argument(frame, 5, np.int32),
      ffi.matrix_argument(frame, 6, np.uint8),
      ffi.matrix_argument(frame, 7, np.uint8),
      numbers[2], _rule(numbers, integers),
      ffi.result(frame, NUM_CHANGED + 1, np.float32),
    )  # fmt: skip
    return _finish(frame, found)

  return handle


def _cbow_handler(kind, version):
  def handle(frame):
    if not ffi.is_call(frame) or version == '':
      return np.uintp(0)
    numbers = ffi.argument(frame, 8, np.float32)
    integers = ffi.argument(frame, 9, np.int32)
    inputs, outputs, input_slots, output_slots = _tables(frame, kind)
    found = kernels.cbow(
      inputs, outputs, input_slots, output_slots,
      ffi.matrix_argument(frame, 4, np.int32),
      ffi.matrix_argument(frame, 5, np.int32),
      ffi.matrix_argument(frame, 6, np.uint8),
      ffi.matrix_argument(frame, 7, np.uint8),
      numbers[2], _rule(numbers, integers),
      ffi.result(frame, NUM_CHANGED + 1, np.float32),
    )  # fmt: skip
    return _finish(frame, found)

  return handle


def _hierarchical_handler(kind, version):
  def handle(frame):
    if not ffi.is_call(frame) or version == '':
      return np.uintp(0)
    numbers = ffi.argument(frame, 10, np.float32)
    integers = ffi.argument(frame, 11, np.int32)
    inputs, outputs, input_slots, output_slots = _tables(frame, kind)
    found = kernels.hierarchical(
      inputs, outputs, input_slots, output_slots,
      ffi.matrix_argument(frame, 4, np.int32),
      ffi.argument(frame, 5, np.int32),
      ffi.matrix_argument(frame, 6, np.int32),
      ffi.matrix_argument(frame, 7, np.int32),
      ffi.matrix_argument(frame, 8, np.uint8),
      ffi.matrix_argument(frame, 9, np.uint8),
      integers[4] != 0, _rule(numbers, integers),
      ffi.result(frame, NUM_CHANGED + 1, np.float32),
    )  # fmt: skip
    return _finish(frame, found)

  return handle


_HANDLERS = {
  'skipgram': _skipgram_handler,
  'cbow': _cbow_handler,
  'hierarchical': _hierarchical_handler,
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
