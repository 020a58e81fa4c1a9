"""Rows of tables, read, changed and given slopes in functions for numba.

A kernel computes with rows that it has the addresses of (`tiles`). In
tables of float32 it reads rows, and plain gradient descent changes them, where
they are. Otherwise it has a chunk's rows and gradients in float32 buffers, and
another compiled function changes the table (`descent`).
"""

from typing import NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import tiles
from jaxemb.ops import hashing, memory

# A sum may be rounded in any order, nothing else is assumed of numbers. Arrays
# are XLA's: to count references to them keeps LLVM from what it does to loops.
JIT = {
  '_nrt': False,
  'nogil': True,
  'error_model': 'numpy',
  'no_cpython_wrapper': True,
  'no_cfunc_wrapper': True,
  'fastmath': {'nsz', 'arcp', 'contract', 'afn', 'reassoc'},
}

_INT = ir.IntType(64)
_change = ffi.calling(7)

# As part of its caller, whose options hold: with each function that calls a
# kernel, LLVM would optimize all of it once more, for over a second.
INLINE = {'inline': 'always'}

NO_ID = np.int32(2**31 - 1)


# Of `hashing` numba keeps the compiled function apart from its callers.
mix = numba.njit(**JIT)(hashing.mix.py_func)


class Table(NamedTuple):
  """A table, and how plain gradient descent changes its rows."""

  vectors: np.ndarray  # [vocab, dim], float32 or the bits of bfloat16
  learning_rate: np.float32
  parameter: np.float32  # occurrences of a row in a chunk that count, 0 = all
  # [h] of the first rows: what 1 + learning rate x this divides their rate.
  brakes: np.ndarray
  descent: np.uintp  # that of a `descent`, 0 = it is not needed
  frame: np.uintp  # of the call, in which this is the table of a
  number: int


class Rows(NamedTuple):
  """Buffers for n rows of a chunk, and where rows and gradients are."""

  ids: np.ndarray  # [n] int32
  values: np.ndarray  # [n, padded dim] float32, of rows that are copied
  grads: np.ndarray  # [n, padded dim] float32, of tables changed by `descend`
  sources: np.ndarray  # [n], addresses of rows
  targets: np.ndarray  # [n], addresses of what gradients are added to,
  rates: np.ndarray  # [n] float32, and by what they are multiplied then


@intrinsic
def as_type(typing_context, number, kind):
  """The number of a NumPy type, given as a class, that has the same bits."""

  def generate(context, builder, signature, args):
    return builder.bitcast(args[0], context.get_value_type(kind.dtype))

  return kind.dtype(number, kind), generate


@numba.njit(**JIT)
def padded(number, multiple):
  """The next multiple."""
  return (number + multiple - 1) // multiple * multiple


def _taken(context, builder, form, address, shape):
  """Generates an array at an address, and the address of the line after it."""
  made = ffi.make_array(context, builder, form, data=address, shape=shape)
  num_bytes = _INT(4 if form.ndim > 1 else 8)  # a number has no more
  for size in shape:
    num_bytes = builder.mul(num_bytes, size)
  num_bytes = builder.add(num_bytes, _INT(memory.LINE - 1))
  rest = builder.add(address, builder.and_(num_bytes, _INT(-memory.LINE)))
  kind = types.Tuple([form, types.uintp])
  return context.make_tuple(builder, kind, [made, rest])


# Intrinsics, as numba would compile NumPy's way anew for each type.


@intrinsic
def take(typing_context, address, num_rows, num_columns):
  """Float32 [num_rows, num_columns] at an address, and the address after it.

  Of columns there are whole vectors if the address is aligned to them.
  """
  form = types.Array(types.float32, 2, 'C')

  def generate(context, builder, signature, args):
    return _taken(context, builder, form, args[0], args[1:])

  kind = types.Tuple([form, types.uintp])
  return kind(types.uintp, types.intp, types.intp), generate


@intrinsic
def take_vector(typing_context, address, number, kind):
  """Numbers [number], of at most 8 bytes each, and the address after them."""
  form = types.Array(kind.dtype, 1, 'C')

  def generate(context, builder, signature, args):
    return _taken(context, builder, form, args[0], args[1:2])

  made = types.Tuple([form, types.uintp])
  return made(types.uintp, types.intp, kind), generate


@intrinsic
def flat(typing_context, array):
  """The numbers of an array without gaps, as a vector."""
  form = types.Array(array.dtype, 1, 'C')

  def generate(context, builder, signature, args):
    given = context.make_array(array)(context, builder, args[0])
    data = builder.ptrtoint(given.data, _INT)
    return ffi.make_array(
      context, builder, form, data=data, shape=[given.nitems]
    )

  return form(array), generate


@numba.njit(**INLINE)
def take_rows(address, number, dim):
  """`Rows`, and the address after them."""
  size = padded(dim, tiles.LANES)
  values, rest = take(address, number, size)
  grads, rest = take(rest, number, size)
  ids, rest = take_vector(rest, number, np.int32)
  sources, rest = take_vector(rest, number, np.uintp)
  targets, rest = take_vector(rest, number, np.uintp)
  rates, rest = take_vector(rest, number, np.float32)
  return Rows(ids, values, grads, sources, targets, rates), rest


@numba.njit(**JIT)
def reset(chunk):
  """Makes `Rows` those of no table, with a rate of 1."""
  num = chunk.ids.size
  point(chunk.values, 0, num, chunk.values, chunk.sources)
  point(chunk.grads, 0, num, chunk.grads, chunk.targets)
  for i in range(num):
    chunk.ids[i], chunk.rates[i] = NO_ID, 1


@numba.njit(**JIT)
def point(buffer, first, num, spare, out):
  """Writes addresses of `num` rows from `first` on, then those of `spare`."""
  start, size = np.uint64(buffer.ctypes.data), np.uint64(buffer.strides[0])
  for i in range(out.size):
    address = start + np.uint64(first + i) * size
    out[i] = address if i < num else np.uint64(spare.ctypes.data)


@numba.njit(**JIT)
def copy(ids, out, first):
  """Copies ids [n] to out[first:]; NumPy's way takes seconds to compile."""
  for j in range(ids.size):
    out[first + j] = ids[j]


@numba.njit(**JIT)
def prefetch(table, id_):
  """Asks for a row of a chunk that comes soon."""
  start, size = np.uint64(table.ctypes.data), np.uint64(table.strides[0])
  if id_ < table.shape[0]:
    _prefetch_row(start + np.uint64(id_) * size, table.strides[0])


@numba.njit(**JIT)
def _prefetch_row(address, row_bytes):
  for offset in range(0, row_bytes, memory.LINE):
    memory.prefetch_to_write(address + np.uint64(offset))


@numba.njit(**JIT)
def await_row(table, id_, out):
  """Adds the address of a row to `out`, behind those from out[2] on.

  out[0] counts them, out[1] is their size in bytes.
  """
  start, size = np.uint64(table.ctypes.data), np.uint64(table.strides[0])
  num = out[0]
  if id_ < table.shape[0]:
    out[np.uint64(2) + num] = start + np.uint64(id_) * size
    out[0], out[1] = num + np.uint64(1), size


@numba.njit(**JIT)
def await_rows(table, ids, first, stop, out):
  """As `await_row`, of ids[first:stop]."""
  for i in range(first, stop):
    await_row(table, ids[i], out)


@numba.njit(**JIT)
def prefetch_some(awaited, num):
  """Asks for the last `num` rows of `await_rows`, and takes them off.

  More at once than a core can wait for would delay what it computes.
  """
  last = np.int64(awaited[0])
  first = max(0, last - num)
  for i in range(first, last):
    _prefetch_row(awaited[2 + i], np.int64(awaited[1]))
  awaited[0] = first


@numba.njit(**JIT)
def _locate(table, ids, spare, out):
  """Addresses [n] of the table's rows of ids [n], of `spare` for padding."""
  start, size = np.uint64(table.ctypes.data), np.uint64(table.strides[0])
  for i in range(ids.size):
    is_known = ids[i] < table.shape[0]
    address = start + np.uint64(ids[i]) * size
    out[i] = address if is_known else np.uint64(spare.ctypes.data)


@numba.njit(**INLINE)
def gather(table, chunk, ids):
  """Copies the rows of ids [n], the first ones of a chunk's `Rows`.

  Zeros are those of padding.
  """
  _gather(table.vectors, ids, chunk.values, chunk.sources)


@numba.njit(**JIT)
def _gather(vectors, ids, values, sources):
  for i in range(ids.size):
    row = values[i]
    if ids[i] < vectors.shape[0]:
      stored = vectors[ids[i]]
      if vectors.itemsize == 4:
        start = np.uintp(stored.ctypes.data)
        tiles.copy(start, sources[i], stored.size)
      else:
        for k in range(stored.size):
          row[k] = widened(stored[k])
    else:
      for k in range(row.size):
        row[k] = 0


@numba.njit(**JIT)
def widened(stored):
  """The float32 of the bits of a bfloat16."""
  return as_type(np.uint32(np.uint32(stored) << np.uint32(16)), np.float32)


@numba.njit(**INLINE)
def find(table, chunk, ids):
  """As `gather`, but of rows that nothing changes while they are used."""
  if table.vectors.itemsize == 4:
    _locate(table.vectors, ids, chunk.values[0], chunk.sources)
  else:
    _gather(table.vectors, ids, chunk.values, chunk.sources)


@numba.njit(**JIT)
def rate(learning_rate, max_duplicates, brakes, ids, i):
  """What plain gradient descent takes gradients of ids[i] by."""
  id_, product = ids[i], -learning_rate
  if max_duplicates and max_duplicates < ids.size:
    count = np.float32(0)
    for j in range(ids.size):  # of numbers that LLVM counts sixteen at a time
      count += np.float32(ids[j] == id_)
    fraction = max_duplicates / count
    product *= fraction if fraction < 1 else np.float32(1)
  if id_ < brakes.size:
    product /= np.float32(1) + learning_rate * brakes[id_]
  return product


@numba.njit(**JIT)
def _set_rates(learning_rate, max_duplicates, brakes, ids, out):
  for i in range(ids.size):
    out[i] = rate(learning_rate, max_duplicates, brakes, ids, i)


@numba.njit(**JIT)
def clear(rows, num):
  """Sets the first rows of a buffer to 0."""
  for i in range(num):
    for k in range(rows.shape[1]):
      rows[i, k] = 0


@numba.njit(**INLINE)
def aim(table, chunk, ids):
  """Sets what gradients of ids [n] are added to, and by which rate.

  That is the rows of the table, or zeros for `descend`.
  """
  if table.descent:
    clear(chunk.grads, ids.size)
  else:
    _locate(table.vectors, ids, chunk.grads[0], chunk.targets)
    _set_rates(
      table.learning_rate, table.parameter, table.brakes, ids, chunk.rates
    )


@numba.njit(**INLINE)
def descend(table, chunk, ids, number):
  """Changes the rows of ids [n] by gradients that `aim` had added up.

  `number` tells changes of a call apart.
  """
  if table.descent:
    grads, start = chunk.grads.ctypes.data, ids.ctypes.data
    of_table, own = (table.frame, table.number), np.uintp(0)
    _change(table.descent, (*of_table, grads, start, ids.size, number, own))


@numba.njit(**INLINE)
def descend_by(table, chunk, ids, num, number, owners):
  """As `descend`, of the first `num` ids, with the gradients of `owners` [n].

  Only of tables that have a `descent`.
  """
  grads, start = chunk.grads.ctypes.data, ids.ctypes.data
  more = grads, start, num, number, owners.ctypes.data
  _change(table.descent, (table.frame, table.number, *more))


class LocalRows(NamedTuple):
  """Copies of the first rows of a table that a thread changes by itself.

  Rows that all threads change all the time would move from core to core with
  every change: a thread takes a copy, and adds what has changed later.
  """

  uses: np.ndarray  # [n] int64, since a copy was taken; 0 = there is none
  values: np.ndarray  # [n, padded dim] float32
  before: np.ndarray  # [n, padded dim] float32, as they were taken


@numba.njit(**INLINE)
def take_local(address, number, dim):
  """`LocalRows`, empty in a scratch of zeros, and the address after them."""
  size = padded(dim, tiles.LANES)
  uses, rest = take_vector(address, number, np.int64)
  values, rest = take(rest, number, size)
  before, rest = take(rest, number, size)
  return LocalRows(uses, values, before), rest


@numba.njit(**JIT)
def find_local(table, ids, most_uses, local, sources, targets):
  """Replaces addresses of the table's first rows by those of their copies.

  A row is copied at its first use, and merged and copied again after
  `most_uses`.
  """
  for i in range(ids.size):
    if ids[i] < local.uses.size:
      copied = use_local(table, ids[i], most_uses, local, sources[i])
      sources[i] = targets[i] = copied


@numba.njit(**JIT)
def use_local(table, id_, most_uses, local, address):
  """Returns the address of a row's copy, as of `find_local`.

  `address` is that of the row in the table.
  """
  uses, values, before = local
  if uses[id_] == most_uses:
    _merge(table, id_, values, before)
    uses[id_] = 0
  copied = np.uintp(values[id_].ctypes.data)
  if not uses[id_]:
    tiles.copy(address, copied, table.shape[1])
    # Not from the table, which others change meanwhile.
    tiles.copy(copied, np.uintp(before[id_].ctypes.data), table.shape[1])
  uses[id_] += 1
  return copied


@numba.njit(**JIT)
def _merge(table, id_, values, before):
  row, new, old = table[id_], values[id_], before[id_]
  for j in range(row.size):
    row[j] += new[j] - old[j]


@numba.njit(**JIT)
def merge_local(table, local):
  """Adds to rows what has changed in their copies, and forgets these."""
  uses, values, before = local
  for id_ in range(uses.size):
    if uses[id_]:
      _merge(table, id_, values, before)
      uses[id_] = 0


@numba.njit(**JIT)
def score(lefts, first, stop, rights, y, dim, out):
  """Writes products of some rows on the left with four on the right.

  Rows are given by their addresses; out[first:stop, y : y + 4] get them. There
  are at least `tiles.LEFT` on the left.
  """
  for x in range(first, stop, tiles.LEFT):
    x = min(x, stop - tiles.LEFT)
    tiles.scores(lefts, x, rights, y, dim, out, x, y)


@numba.njit(**JIT)
def add_rows(weights, y, sources, j, count, targets, rates, dim):
  """Adds `count` sources, by weights [:, y:], to the target of each row.

  They are those from j on; rows are whole tiles.
  """
  for g in range(0, weights.shape[0], tiles.SIZE):
    tiles.add_rows(
      weights, g, y, sources, j, count, 0, 0, targets, g, rates, dim
    )


@numba.njit(**JIT)
def add_columns(weights, first, sources, count, targets, rates, dim):
  """Adds `count` sources, by weights [:, first:], to the target of each column.

  Targets [n] are those of whole tiles of columns.
  """
  for j in range(0, targets.size, tiles.SIZE):
    tiles.add_columns(
      weights, 0, first + j, sources, 0, count, 0, 0, targets, j, rates, dim
    )


@numba.njit(**JIT)
def slopes(scores, weights):
  """Scores [n] become derivatives of their weighted logistic loss, to 2e-7.

  The loss is -w log sigmoid(-s), and for negative weights w, which are those of
  positive examples, w log sigmoid(s); the derivative |w| sigmoid(s), or
  w sigmoid(-s). sigmoid(x) is (1 + tanh(x / 2)) / 2, with tanh as the quotient
  of polynomials that Eigen uses: LLVM vectorizes it, but no call of exp.
  """
  for i in range(scores.size):
    w, h = weights[i], np.float32(0.5) * scores[i]
    h = -h if w < 0 else h
    h = min(max(h, np.float32(-9)), np.float32(9))
    q = h * h
    p = np.float32(-2.76076847742355e-16)
    p = p * q + np.float32(2.00018790482477e-13)
    p = p * q + np.float32(-8.60467152213735e-11)
    p = p * q + np.float32(5.12229709037114e-08)
    p = p * q + np.float32(1.48572235717979e-05)
    p = p * q + np.float32(6.37261928875436e-04)
    p = p * q + np.float32(4.89352455891786e-03)
    d = np.float32(1.19825839466702e-06)
    d = d * q + np.float32(1.18534705686654e-04)
    d = d * q + np.float32(2.26843463243900e-03)
    d = d * q + np.float32(4.89352518554385e-03)
    scores[i] = w * (np.float32(0.5) + np.float32(0.5) * h * p / d)
