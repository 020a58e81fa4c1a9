"""What `linking` compiles computes the same, and is optimized once."""

import json
import subprocess
import sys

_PROGRAM = """
import json
import numba
from jaxemb.kernels.cpu import linking

linking.install()
optimized = []
libraries = linking._Library
optimize = libraries._optimize_final_module

def count(library):
  optimized.append(library.name)
  optimize(library)

libraries._optimize_final_module = count
apart = {'no_cpython_wrapper': True, 'no_cfunc_wrapper': True}
third = numba.njit(**apart)(lambda x: 3 * x)
both = numba.njit(**apart)(lambda x: third(x) + max(x, third(7)))
compiled = numba.cfunc('int64(int64)')(lambda x: both(x) + third(x))
called = numba.njit(lambda x: both(x) - 1)
numbers = [compiled.ctypes(2), called(30), called(2)]
print(json.dumps([numbers, [x for x in optimized if 'lambda' in x]]))
"""


def test_functions_are_optimized_with_their_callers_alone():
  output = subprocess.check_output([sys.executable, '-c', _PROGRAM])
  numbers, optimized = json.loads(output)
  both = [3 * x + max(x, 21) for x in (2, 30)]
  assert numbers == [both[0] + 6, both[1] - 1, both[0] - 1]
  assert len(optimized) == 2, optimized
