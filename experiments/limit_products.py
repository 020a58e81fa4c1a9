"""Runs a module with the matrix products of XLA limited to AVX2.

  python experiments/limit_products.py ADDRESSES -m MODULE FLAGS

--xla_cpu_max_isa limits what XLA compiles. Products it leaves to YNNPACK, which
asks the CPU itself and would take kernels for AVX-512. The answer is kept in a
variable of jaxlib's library, and set here before the first product. ADDRESSES
are what `addresses` returns, separated by commas.
"""

import ctypes
import functools
import pathlib
import runpy
import subprocess
import sys

import jaxlib.xla_client  # loads the library

from jaxemb import errors

_LIBRARY = pathlib.Path(jaxlib.__file__).with_name('libjax_common.so')
_ANSWER = 'ZN3ynn24get_supported_arch_flagsEvE5flags'
_SYMBOLS = (f'_Z{_ANSWER}', f'_ZGV{_ANSWER}')  # itself, and: it is known
_UP_TO_AVX2 = 0x7F  # of ynn::arch_flag


@functools.cache
def addresses() -> list[int]:
  """Those of the answer and of its guard in the library.

  Raises:
    UserError: this version of jaxlib has none.
  """
  try:
    symbols = subprocess.check_output(
      ['nm', '--defined-only', _LIBRARY], text=True
    )
    found = {name: at for at, _, name in map(str.split, symbols.splitlines())}
  except (OSError, ValueError, subprocess.CalledProcessError):
    found = {}
  if not found.keys() >= {*_SYMBOLS}:
    raise errors.UserError(
      f'the products of jaxlib {jaxlib.__version__} cannot be limited to AVX2 '
      'here (this needs nm, of binutils); measure on a CPU without AVX-512'
    )
  return [int(found[name], 16) for name in _SYMBOLS]


def _limit(answer: int, guard: int) -> None:
  maps = pathlib.Path('/proc/self/maps').read_text().splitlines()
  first = next(x for x in maps if x.endswith(_LIBRARY.name))
  start = int(first.split('-')[0], 16)
  ctypes.c_uint64.from_address(start + answer).value = _UP_TO_AVX2
  ctypes.c_uint8.from_address(start + guard).value = 1


if __name__ == '__main__':
  _, numbers, _, module, *sys.argv[1:] = sys.argv
  _limit(*map(int, numbers.split(',')))
  runpy.run_module(module, run_name='__main__', alter_sys=True)
