"""Updates of looked-up rows, each in one pass: summed, updated and written.

XLA has a scatter for each of these, of one thread. Here every thread has the
ids of some classes, finds equal ones by a hash table of positions that fits in
its cache, and adds their gradients to the first in the order of the lookups;
then it updates these rows. So rows have the same bits with any number of
threads. The equations are those of `tables.row_optimizers`.

The buffers of a call: arguments are ids [n] int32, gradients [n, dim], vectors
[vocab, dim], numbers [5] float32, the kernel's number [1] int32, slots; results
are gradients, which hold the sums, vectors, scratch [threads, m] and slots.
"""

import numba
import numpy as np

from jaxemb.native import ffi, rows

NUM_NUMBERS = 5
NUM_FIXED = 5, 3  # arguments and results before the slots
ALIASES = {1: 0, 2: 1}  # of arguments and results, but for slots
CLASSES_PER_THREAD = 4  # a turn is at least as many (`native.turns`)
_IDS, _NUMBERS, KERNEL = 0, 3, 4  # arguments
_GRADS, VECTORS, SCRATCH = 0, 1, 2  # results
_AHEAD = 16  # rows that are asked for before they are updated


def num_scratch(num: int) -> int:
  """Numbers of 4 bytes that a thread has for `num` lookups."""
  return _num_places.py_func(num) + 2 * rows.padded.py_func(num, 16)


@numba.njit(**rows.JIT)
def _num_places(num):
  """Places of the hash table, a power of two: at least half stay empty."""
  size = 16
  while size < 2 * num:
    size *= 2
  return size


@numba.njit(**rows.JIT)
def _mean_square(grad):
  total = np.float32(0)
  for x in grad:
    total += x * x
  return total / np.float32(grad.size)


@numba.njit(**rows.JIT)
def _sum(ids, grads, vocab, first, stop, num_threads, places, found, squares):
  """Adds gradients of equal ids to the first, for some classes of ids.

  `places` are zeros. Writes the positions of the first ones, to `found`, and
  returns how many there are; to `squares`, if they have room, at the same
  positions the sums of the mean squares of each gradient.
  """
  num, last = 0, np.uint32(places.size - 1)
  num_classes = np.uint64(CLASSES_PER_THREAD * num_threads)
  for i in range(ids.size):
    id_ = ids[i]
    # The lower bits of a product depend on those of the id alone.
    spread = np.uint32(np.uint32(id_) * np.uint32(0x9E3779B9))
    own = np.intp((np.uint64(spread) * num_classes) >> np.uint64(32))
    if not 0 <= id_ < vocab or not first <= own < stop:
      continue
    place = (spread ^ (spread >> np.uint32(15))) & last
    while places[place] and ids[places[place] - 1] != id_:
      place = (place + np.uint32(1)) & last
    if places[place]:
      total, grad = grads[places[place] - 1], grads[i]
      if squares.size:
        squares[places[place] - 1] += _mean_square(grad)
      for k in range(grad.size):
        total[k] += grad[k]
    else:
      if squares.size:
        squares[i] = _mean_square(grads[i])
      places[place] = i + 1
      found[num] = i
      num += 1
  return num


@numba.njit(**rows.INLINE)
def _begin(frame, first, stop, scratch, has_squares):
  """Ids, sums, vectors, numbers, and the positions of sums that there are.

  Then squares, as of `_sum`.
  """
  ids = ffi.vector(frame, ffi.ARGUMENTS, _IDS, np.int32)
  numbers = ffi.vector(frame, ffi.ARGUMENTS, _NUMBERS, np.float32)
  grads = ffi.matrix(frame, ffi.RESULTS, _GRADS, np.float32)
  vectors = ffi.matrix(frame, ffi.RESULTS, VECTORS, np.float32)
  threads = ffi.matrix(frame, ffi.RESULTS, SCRATCH, np.float32).shape[0]
  size = _num_places(ids.size)
  places = numba.carray(ffi.pointer(scratch, np.int32), size)
  places[:] = 0
  rest = scratch + np.uintp(4 * size)
  found = numba.carray(ffi.pointer(rest, np.int32), ids.size)
  rest += np.uintp(4 * rows.padded(ids.size, 16))
  squares = numba.carray(ffi.pointer(rest, np.float32), has_squares * ids.size)
  vocab = vectors.shape[0]
  args = ids, grads, vocab, first, stop, threads, places, found, squares
  num = _sum(*args)
  return ids, grads, vectors, numbers, found[:num], squares


@numba.njit(**rows.INLINE)
def _slots(frame, number):
  return ffi.matrix(frame, ffi.RESULTS, NUM_FIXED[1] + number, np.float32)


@numba.njit(**rows.INLINE)
def _ask(table, ids, own, j):
  """Asks for a row that comes soon."""
  if j + _AHEAD < own.size:
    soon = own[j + _AHEAD]
    rows.prefetch(table, ids[soon : soon + 1])


@numba.njit(**rows.JIT)
def adagrad(frame, first, stop, scratch):
  """As of `adagrad_full`; slots [vocab] are sums of mean squares."""
  ids, grads, vectors, numbers, own, squares = _begin(
    frame, first, stop, scratch, 1
  )
  sums = ffi.vector(frame, ffi.RESULTS, NUM_FIXED[1], np.float32)
  rate, decay, epsilon = numbers[0], numbers[1], numbers[2]
  for j in range(own.size):
    _ask(vectors, ids, own, j)
    grad, id_ = grads[own[j]], ids[own[j]]
    row = vectors[id_]
    sums[id_] += squares[own[j]]
    scale = rate / (np.sqrt(sums[id_]) + epsilon)
    for k in range(row.size):
      row[k] -= scale * (grad[k] + decay * row[k])


@numba.njit(**rows.JIT)
def adagrad_full(frame, first, stop, scratch):
  """Numbers are the learning rate, L2 and epsilon; slots the squares' sums."""
  ids, grads, vectors, numbers, own, _ = _begin(frame, first, stop, scratch, 0)
  sums = _slots(frame, 0)
  rate, decay, epsilon = numbers[0], numbers[1], numbers[2]
  for j in range(own.size):
    _ask(vectors, ids, own, j)
    _ask(sums, ids, own, j)
    grad, id_ = grads[own[j]], ids[own[j]]
    row, total = vectors[id_], sums[id_]
    for k in range(row.size):
      slope = grad[k] + decay * row[k]
      total[k] += slope * slope
      row[k] -= rate * slope / (np.sqrt(total[k]) + epsilon)


@numba.njit(**rows.JIT)
def adam_full(frame, first, stop, scratch):
  """Numbers are the learning rate, L2, epsilon and both betas.

  Slots are the two moments, and [vocab] the steps in which a row occurred.
  """
  ids, grads, vectors, numbers, own, _ = _begin(frame, first, stop, scratch, 0)
  rate, decay, epsilon = numbers[0], numbers[1], numbers[2]
  beta1, beta2 = numbers[3], numbers[4]
  means, squares = _slots(frame, 0), _slots(frame, 1)
  steps = ffi.vector(frame, ffi.RESULTS, NUM_FIXED[1] + 2, np.float32)
  log1, log2 = np.log(np.float64(beta1)), np.log(np.float64(beta2))
  for j in range(own.size):
    _ask(vectors, ids, own, j)
    _ask(means, ids, own, j)
    _ask(squares, ids, own, j)
    grad, id_ = grads[own[j]], ids[own[j]]
    row, mean, square = vectors[id_], means[id_], squares[id_]
    steps[id_] += np.float32(1)
    # expm1 keeps 1 - beta^steps exact where beta^steps is close to 1.
    unbias1 = np.float32(-np.expm1(steps[id_] * log1))
    unbias2 = np.float32(-np.expm1(steps[id_] * log2))
    scale, root = rate / unbias1, np.float32(1) / unbias2
    for k in range(row.size):
      slope = grad[k] + decay * row[k]
      mean[k] = beta1 * mean[k] + (np.float32(1) - beta1) * slope
      square[k] = beta2 * square[k] + (np.float32(1) - beta2) * slope * slope
      row[k] -= scale * mean[k] / (np.sqrt(square[k] * root) + epsilon)
