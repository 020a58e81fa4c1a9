"""Cache lines are requested to be read, or to be written."""

import re

import numba
import numpy as np
import pytest

from jaxemb.ops import memory


@pytest.mark.parametrize(
  'prefetch, writes',
  [(memory.prefetch_to_read, 0), (memory.prefetch_to_write, 1)],
)
def test_asks_for_any_address_and_says_what_for(prefetch, writes):
  @numba.njit
  def ask(array, offset):
    prefetch(np.uint64(array.ctypes.data) + np.uint64(offset))

  numbers = np.arange(3)
  for offset in (0, 8, -(1 << 40)):
    ask(numbers, offset)
  assert numbers.tolist() == [0, 1, 2]
  (code,) = ask.inspect_llvm().values()
  calls = re.findall(r'call void @llvm\.prefetch\.p0\S*\(.*\)', code)
  assert calls and all(f'i32 {writes}, i32 3, i32 1)' in x for x in calls)
