"""Reads and writes cache rows of a table on a device (`stores.cached`).

Where the device's memory is that of the process, rows are copied where they
lie; elsewhere by programs, of which there is one for each power of two.
"""

import ctypes
import functools
from collections.abc import Sequence

import jax
import numpy as np

from jaxemb.stores import cached
from jaxemb.tables import spec as spec_lib

# Moved at once; for each power of two from here on a program is compiled.
_LEAST_ROWS = 256


def are_in_memory() -> bool:
  """Whether the device's memory is that of the process."""
  return jax.default_backend() == 'cpu'


def view(array: jax.Array) -> np.ndarray:
  """[n, bytes] uint8, an array of a CPU as it is in memory, to be changed.

  Nothing that was computed with it is under way, and nobody else has it.
  """
  buffer = (ctypes.c_uint8 * array.nbytes).from_address(
    array.unsafe_buffer_pointer()
  )
  return np.frombuffer(buffer, np.uint8).reshape(len(array), -1)


def padded(x: np.ndarray, size: int, value: int = 0) -> np.ndarray:
  """Returns the array with `size` rows."""
  widths = [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)
  return np.pad(x, widths, constant_values=value)


def bucket(num: int) -> int:
  """Returns how many rows, at least `num`, a program is compiled for."""
  return max(_LEAST_ROWS, 1 << (num - 1).bit_length()) if num else 0


@functools.partial(jax.jit, donate_argnums=0)
def _put(arrays, cache_rows, new):
  """Writes rows; those beyond the last are dropped."""
  return [
    x.at[cache_rows].set(y, mode='drop')
    for x, y in zip(arrays, new, strict=True)
  ]


@jax.jit
def _get(arrays, cache_rows):
  return [x.at[cache_rows].get(mode='clip') for x in arrays]


def get(
  table: cached.Cached, state: spec_lib.TableState, cache_rows: np.ndarray
) -> list[jax.Array]:
  """Returns `Cached.arrays` of cache rows [n], n > 0, then padding."""
  indices = padded(cache_rows.astype(np.int32), bucket(len(cache_rows)))
  return _get(table.arrays(state), indices)


def put(
  table: cached.Cached,
  state: spec_lib.TableState,
  cache_rows: np.ndarray,
  arrays: Sequence[np.ndarray],
) -> spec_lib.TableState:
  """Writes `Cached.arrays` into cache rows [n]; the state is donated."""
  if not (size := bucket(len(cache_rows))):
    return state
  indices = padded(cache_rows.astype(np.int32), size, table.num_rows)
  new = [padded(x, size) for x in arrays]
  return table.with_arrays(state, _put(table.arrays(state), indices, new))
