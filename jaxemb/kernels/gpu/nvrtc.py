"""CUDA C++ compiled for a GPU by NVRTC, the compiler that JAX's extras install.

Compiling needs neither a GPU nor another compiler. What was compiled is kept in
a folder.
"""

import contextlib
import ctypes
import functools
import hashlib
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from jaxemb.kernels import ffi
from jaxemb.storage import atomic

# Where the packages of CUDA have it, by the major version of CUDA.
_PACKAGES = {
  13: 'nvidia/cu13/lib/libnvrtc.so.13',
  12: 'nvidia/cuda_nvrtc/lib/libnvrtc.so.12',
}
_SYSTEM = 'libnvrtc.so.{}'
_CHECK_BYTES = 32  # a damaged file is compiled again
_OPTIONS = ('--std=c++17',)


def _paths(newest: int) -> Iterator[str]:
  """Yields where NVRTC may be, of CUDA up to a major version."""
  majors = [x for x in _PACKAGES if x <= newest]
  for major in majors:
    for folder in sys.path:
      path = pathlib.Path(folder, _PACKAGES[major])
      if path.exists():
        yield str(path)
  yield from map(_SYSTEM.format, majors)


@functools.cache
def library(newest: int = max(_PACKAGES)) -> ctypes.CDLL:
  """Returns NVRTC, of CUDA up to a major version, which the driver has.

  Raises `ffi.Unavailable` if there is none.
  """
  for path in _paths(newest):
    with contextlib.suppress(OSError):
      found = ctypes.CDLL(path)
      found.nvrtcGetErrorString.restype = ctypes.c_char_p
      return found
  extra = 'cuda13' if newest >= max(_PACKAGES) else 'cuda12'
  raise ffi.Unavailable(
    f'NVRTC, the compiler of CUDA, is not installed; pip install jax[{extra}]'
  )


def version(nvrtc: ctypes.CDLL) -> tuple[int, int]:
  """Returns the version of CUDA that NVRTC is of."""
  numbers = ctypes.c_int(), ctypes.c_int()
  _check(nvrtc, nvrtc.nvrtcVersion(*map(ctypes.byref, numbers)))
  return numbers[0].value, numbers[1].value


def architecture(nvrtc: ctypes.CDLL, capability: int) -> int:
  """Returns the newest architecture for a GPU that this NVRTC compiles for.

  Both are as 90 for sm_90; programs run on later GPUs of the same generation.
  Raises `ffi.Unavailable` if there is none.
  """
  num = ctypes.c_int()
  _check(nvrtc, nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(num)))
  known = (ctypes.c_int * num.value)()
  _check(nvrtc, nvrtc.nvrtcGetSupportedArchs(known))
  fitting = [x for x in known if capability // 10 * 10 <= x <= capability]
  if not fitting:
    major, minor = version(nvrtc)
    raise ffi.Unavailable(
      f'NVRTC {major}.{minor} does not compile for sm_{capability}; install '
      'the CUDA of a newer jax'
    )
  return max(fitting)


def _check(nvrtc: ctypes.CDLL, code: int, log: str = '') -> None:
  """Raises `ffi.Unavailable` for a code that is an error."""
  if code:
    # The first error says what is wrong; notes and warnings may come before.
    lines = [x for x in log.splitlines() if re.search(r'\berror\b', x)]
    name = nvrtc.nvrtcGetErrorString(code).decode()
    raise ffi.Unavailable(': '.join(['NVRTC', name, *lines[:1]]))


def digest(
  source: str, macros: Mapping[str, int], options: Sequence[str] = ()
) -> str:
  """Returns 64 hexadecimal digits that name a kernel on all GPUs."""
  text = repr((source, sorted(macros.items()), *_OPTIONS, *options))
  return hashlib.sha256(text.encode()).hexdigest()


def cubin(
  source: str,
  macros: Mapping[str, int],
  capability: int,
  options: Sequence[str] = (),
  folder: pathlib.Path | None = None,
  newest: int = max(_PACKAGES),
) -> bytes:
  """Returns the program of a source, for a GPU of a compute capability.

  `macros` are defined in the source; `options` are more of NVRTC's; the
  `folder` keeps programs; `capability` and `newest` are as above. Raises
  `ffi.Unavailable`, with the compiler's first error.
  """
  nvrtc = library(newest)
  number = architecture(nvrtc, capability)
  path = None
  if folder:
    named = repr((digest(source, macros, options), number, version(nvrtc)))
    name = hashlib.sha256(named.encode()).hexdigest()[:32]
    path = folder / f'{name}.cubin'
    with contextlib.suppress(OSError):
      kept = path.read_bytes()
      made = kept[:-_CHECK_BYTES]
      if made and _check_of(made) == kept[-_CHECK_BYTES:]:
        return made
  flags = (
    f'--gpu-architecture=sm_{number}',
    *_OPTIONS,
    *options,
    *(f'-D{k}={x}' for k, x in macros.items()),
  )
  made = _compiled(nvrtc, source, flags)
  if path:
    with contextlib.suppress(OSError):  # a folder that cannot be written
      path.parent.mkdir(parents=True, exist_ok=True)
      with atomic.write(path) as file:
        file.write(made + _check_of(made))
  return made


def _check_of(program):
  """What follows a program that is kept; readers of ELF files ignore it."""
  return hashlib.sha256(program).digest()


def _compiled(nvrtc, source, flags):
  program, size = ctypes.c_void_p(), ctypes.c_size_t()
  code = nvrtc.nvrtcCreateProgram(
    ctypes.byref(program), source.encode(), b'kernel.cu', 0, None, None
  )
  _check(nvrtc, code)
  try:
    array = (ctypes.c_char_p * len(flags))(*[x.encode() for x in flags])
    code = nvrtc.nvrtcCompileProgram(program, len(flags), array)
    if code:
      nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
      log = ctypes.create_string_buffer(size.value)
      nvrtc.nvrtcGetProgramLog(program, log)
      _check(nvrtc, code, log.value.decode(errors='replace'))
    _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    made = ctypes.create_string_buffer(size.value)
    _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, made))
    return made.raw
  finally:
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
