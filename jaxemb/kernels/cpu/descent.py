"""Changes rows of a table by gradients that a kernel has added up.

Adagrad and bfloat16 need it. It is compiled apart, and called by its address,
so that no kernel for plain gradient descent in float32 has to compile it.
"""

import numba
import numpy as np
from numba import types
from numba.extending import overload

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import arguments, rows, tiles

# (frame, number of the table, address of gradients [m, padded dim] float32, of
# ids [n] int32, n, number of the change, address of the gradient of each id [n]
# int32; 0 = its own)
SIGNATURE = types.void(
  types.uintp, types.intp, *[types.uintp] * 2, *[types.intp] * 2, types.uintp
)
SGD, ADAGRAD = 0, 1


def _add_row(row, grad, scale, id_, i, number, rounding):
  """Adds a gradient to a row; bfloat16 are rounded as by `ops.rounding`.

  `rounding` is (key0, key1, whether it is stochastic).
  """
  raise NotImplementedError


@overload(_add_row)
def _(row, grad, scale, id_, i, number, rounding):
  if row.dtype == types.float32:

    def add(row, grad, scale, id_, i, number, rounding):
      for k in range(row.size):
        row[k] += scale * grad[k]

    return add

  def add(row, grad, scale, id_, i, number, rounding):
    key0, key1, is_stochastic = rounding
    bits = np.uint32(id_) * np.uint32(0x9E3779B9) + np.uint32(i)
    bits = rows.mix(bits + key0)
    bits += np.uint32(number) * np.uint32(0x85EBCA6B)
    first = rows.mix(bits ^ key1)
    second = rows.mix(bits + key1) | np.uint32(1)
    for k in range(row.size):
      value = np.float32(rows.widened(row[k]) + scale * grad[k])
      whole = rows.as_type(value, np.uint32)
      # Random bits below those that stay, or to nearest.
      column = np.uint32(np.uint32(k) * np.uint32(0x9E3779B9))
      column ^= column >> np.uint32(15)
      more = np.uint32((first ^ column) * second) >> np.uint32(16)
      if not is_stochastic:
        more = np.uint32(0x7FFF) + ((whole >> np.uint32(16)) & np.uint32(1))
      # From the largest number on nothing rounds up.
      if whole & np.uint32(0x7FFFFFFF) < np.uint32(0x7F7F0000):
        whole += more
      row[k] = np.uint16(whole >> np.uint32(16))

  return add


@numba.njit(**rows.JIT)
def _change(vectors, opt_state, brakes, grads, ids, owners, number, settings):
  """Changes rows; `settings`: if by Adagrad, its numbers, and `rounding`.

  `owners` [n] are numbers of gradients; if empty, those of the ids.
  """
  num_rows, dim = vectors.shape
  is_adagrad, learning_rate, parameter, rounding = settings
  if is_adagrad:
    for i in range(ids.size):
      if ids[i] < num_rows:
        grad, total = grads[owners[i] if owners.size else i], np.float32(0)
        for k in range(grad.size):
          total += grad[k] * grad[k]
        opt_state[ids[i]] += total / np.float32(dim)
  for i in range(ids.size):
    if ids[i] >= num_rows:
      continue
    if is_adagrad:
      root = np.sqrt(opt_state[ids[i]])
      scale = -learning_rate / (root + parameter)
    else:
      scale = rows.rate(learning_rate, parameter, brakes, ids, i)
    grad = grads[owners[i] if owners.size else i]
    _add_row(vectors[ids[i]], grad, scale, ids[i], i, number, rounding)


def descent(kind):
  """Changes rows of a type as `tables.row_optimizers` does.

  It says what ids that come several times mean; stochastic rounding rounds the
  sum after each.
  """

  def change(frame, table, grads, ids, size, number, owners):
    numbers = ffi.vector(frame, ffi.ARGUMENTS, arguments.NUMBERS, np.float32)
    integers = ffi.vector(frame, ffi.ARGUMENTS, arguments.INTEGERS, np.int32)
    brakes = ffi.vector(
      frame, ffi.ARGUMENTS, arguments.BRAKES + table, np.float32
    )
    vectors = ffi.matrix(frame, ffi.RESULTS, arguments.VECTORS + table, kind)
    num_tables = (ffi.num_buffers(frame, ffi.RESULTS) - arguments.VECTORS) >> 1
    state = arguments.VECTORS + num_tables + table
    opt_state = ffi.vector(frame, ffi.RESULTS, state, np.float32)
    columns = rows.padded(vectors.shape[1], tiles.LANES)
    key0, key1 = np.uint32(integers[1]), np.uint32(integers[2])
    rounding = key0, key1, integers[3] != 0
    settings = integers[0] == ADAGRAD, numbers[0], numbers[1], rounding
    _change(
      vectors,
      opt_state,
      brakes,
      # Those of some ids are fewer, of which none behind the last is read.
      rows.take(grads, size, columns)[0],
      rows.take_vector(ids, size, np.int32)[0],
      rows.take_vector(owners, size if owners else 0, np.int32)[0],
      number,
      settings,
    )

  return change
