"""Updates of looked-up rows, each in one pass: summed, updated and written.

XLA has a scatter for each of these, of one thread. Here one call groups the
lookups: every thread has the ids of a class, and matches equal ones by a hash
table of positions that fits in its cache. Another adds their gradients to the
first in the order of the lookups, then updates these rows, class by class. So
rows have the same bits with any number of threads, and tables that are looked
up by the same ids share the first call, of which XLA makes one. The equations
are those of `tables.row_optimizers`.

The first call (`turns`) reads ids [n] int32 and [1] int32, the rows that tables
have. It makes positions [n] int32, targets [n] int32 and bounds [threads, 3]
int32: from bounds[c, 0] on lie the positions of the first lookups of class c's
rows, from bounds[c, 1] to bounds[c, 2] those of the others, last ones first;
targets are the first ones' positions of these.

The second reads ids, numbers float32, positions, targets and bounds. It changes
gradients [n, dim], which hold the sums then, vectors [vocab, dim] and optimizer
state.
"""

import numba
import numpy as np

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import rows, turns

CHUNKS_PER_CLASS = 4  # so that a turn is a class (`turns`)
_IDS, _VOCAB = range(turns.READ, turns.READ + 2)  # of the first call
_NUMBERS, _GROUPS = range(turns.READ + 1, turns.READ + 3)  # of the second
_GRADS, _VECTORS, _STATE = range(turns.RESULTS, turns.RESULTS + 3)
_AHEAD = 16  # rows that are asked for before they are updated


def num_scratch(num: int) -> int:
  """Returns numbers of 4 bytes with which a thread groups `num` lookups."""
  return table_size.py_func(num) + rows.padded.py_func(num + 1, 16)


@numba.njit(**rows.JIT)
def table_size(num):
  """Entries of the hash table, a power of two: at least half stay empty."""
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


@numba.njit(**rows.INLINE)
def _spread(id_):
  """The hash of an id; its lower bits depend on those of the id alone."""
  return np.uint32(np.uint32(id_) * np.uint32(0x9E3779B9))


@numba.njit(**rows.JIT)
def _select(ids, vocab, number, num_classes, chosen):
  """Writes the positions of a class's lookups, into one more than ids.

  Returns how many lookups of other classes lie before, and how many these are.
  """
  before = num = 0
  for i in range(ids.size):
    id_ = ids[i]
    spread = np.uint64(_spread(id_))
    class_ = np.intp((spread * np.uint64(num_classes)) >> np.uint64(32))
    is_row = 0 <= id_ < vocab
    # Without branches, of which no processor could foresee the half.
    chosen[num] = i
    num += np.intp(is_row & (class_ == number))
    before += np.intp(is_row & (class_ < number))
  return before, num


@numba.njit(**rows.JIT)
def _group(ids, chosen, entries, positions, targets):
  """Writes the positions of first lookups, and of others from the end on.

  `chosen` are those of all, `entries` of the hash table are zeros. Returns how
  many are first.
  """
  num, stop, last = 0, chosen.size, np.uint32(entries.size - 1)
  for j in range(chosen.size):
    i = chosen[j]
    spread = _spread(ids[i])
    entry = (spread ^ (spread >> np.uint32(15))) & last
    while entries[entry] and ids[entries[entry] - 1] != ids[i]:
      entry = (entry + np.uint32(1)) & last
    if entries[entry]:
      stop -= 1
      positions[stop] = i
      targets[stop] = entries[entry] - 1
    else:
      entries[entry] = i + 1
      positions[num] = i
      num += 1
  return num


def group(frame, first, stop, scratch, result):
  """Groups the lookups of one class."""
  ids = ffi.vector(frame, ffi.ARGUMENTS, _IDS, np.int32)
  vocab = ffi.vector(frame, ffi.ARGUMENTS, _VOCAB, np.int32)[0]
  positions = ffi.vector(frame, ffi.RESULTS, turns.RESULTS, np.int32)
  targets = ffi.vector(frame, ffi.RESULTS, turns.RESULTS + 1, np.int32)
  bounds = ffi.matrix(frame, ffi.RESULTS, turns.RESULTS + 2, np.int32)
  chosen = rows.take_vector(scratch, ids.size + 1, np.int32)[0]
  rest = scratch + np.uintp(4 * rows.padded(ids.size + 1, 16))
  number = first // CHUNKS_PER_CLASS
  begin, num = _select(ids, vocab, number, bounds.shape[0], chosen)
  entries = rows.take_vector(rest, table_size(num), np.int32)[0]
  entries[:] = 0  # there may have been another class
  end = begin + num
  num_first = _group(
    ids, chosen[:num], entries, positions[begin:end], targets[begin:end]
  )
  bounds[number, 0], bounds[number, 1] = begin, begin + num_first
  bounds[number, 2] = end
  turns.report(result, 0.0, 0.0)


@numba.njit(**rows.JIT)
def _sum(grads, first, others, targets, squares):
  """Adds gradients of others to those of their targets, the last ones first.

  `squares`, unless they are empty, get the sums of the mean squares of each
  gradient, at the positions of first lookups.
  """
  if squares.size:
    for i in first:
      squares[i] = _mean_square(grads[i])
  for j in range(others.size - 1, -1, -1):
    total, grad = grads[targets[j]], grads[others[j]]
    if squares.size:
      squares[targets[j]] += _mean_square(grad)
    for k in range(grad.size):
      total[k] += grad[k]


@numba.njit(**rows.INLINE)
def _begin(frame, first, scratch, has_squares):
  """Sums gradients; returns ids, sums, vectors, numbers, and where sums are.

  These are positions; the last are squares, as of `_sum`.
  """
  ids = ffi.vector(frame, ffi.ARGUMENTS, _IDS, np.int32)
  numbers = ffi.vector(frame, ffi.ARGUMENTS, _NUMBERS, np.float32)
  positions = ffi.vector(frame, ffi.ARGUMENTS, _GROUPS, np.int32)
  targets = ffi.vector(frame, ffi.ARGUMENTS, _GROUPS + 1, np.int32)
  bounds = ffi.matrix(frame, ffi.ARGUMENTS, _GROUPS + 2, np.int32)
  grads, vectors = _rows(frame, _GRADS), _rows(frame, _VECTORS)
  num = has_squares * ids.size
  squares = rows.take_vector(scratch, num, np.float32)[0]
  begin, middle, end = bounds[first // CHUNKS_PER_CLASS]
  firsts = positions[begin:middle]
  _sum(grads, firsts, positions[middle:end], targets[middle:end], squares)
  return ids, grads, vectors, numbers, firsts, squares


@numba.njit(**rows.INLINE)
def _rows(frame, number):
  return ffi.matrix(frame, ffi.RESULTS, number, np.float32)


@numba.njit(**rows.INLINE)
def _ask(table, ids, firsts, j):
  """Asks for a row that comes soon."""
  if j + _AHEAD < firsts.size:
    rows.prefetch(table, ids[firsts[j + _AHEAD]])


def adagrad(frame, first, stop, scratch, result):
  """As of `adagrad_full`; state [vocab] has sums of mean squares."""
  ids, grads, vectors, numbers, firsts, squares = _begin(
    frame, first, scratch, 1
  )
  sums = ffi.vector(frame, ffi.RESULTS, _STATE, np.float32)
  rate, decay, epsilon = numbers[0], numbers[1], numbers[2]
  for j in range(firsts.size):
    _ask(vectors, ids, firsts, j)
    grad, id_ = grads[firsts[j]], ids[firsts[j]]
    row = vectors[id_]
    sums[id_] += squares[firsts[j]]
    scale = rate / (np.sqrt(sums[id_]) + epsilon)
    for k in range(row.size):
      row[k] -= scale * (grad[k] + decay * row[k])
  turns.report(result, 0.0, 0.0)


def adagrad_full(frame, first, stop, scratch, result):
  """Numbers are the rate, L2 and epsilon; optimizer state sums of squares."""
  ids, grads, vectors, numbers, firsts, _ = _begin(frame, first, scratch, 0)
  sums = _rows(frame, _STATE)
  rate, decay, epsilon = numbers[0], numbers[1], numbers[2]
  for j in range(firsts.size):
    _ask(vectors, ids, firsts, j)
    _ask(sums, ids, firsts, j)
    grad, id_ = grads[firsts[j]], ids[firsts[j]]
    row, total = vectors[id_], sums[id_]
    for k in range(row.size):
      slope = grad[k] + decay * row[k]
      total[k] += slope * slope
      row[k] -= rate * slope / (np.sqrt(total[k]) + epsilon)
  turns.report(result, 0.0, 0.0)


def adam_full(frame, first, stop, scratch, result):
  """Numbers are the learning rate, L2, epsilon and both betas.

  Optimizer state is the two moments, and [vocab] the steps in which a row
  occurred.
  """
  ids, grads, vectors, numbers, firsts, _ = _begin(frame, first, scratch, 0)
  rate, decay, epsilon = numbers[0], numbers[1], numbers[2]
  beta1, beta2 = numbers[3], numbers[4]
  means, squares = _rows(frame, _STATE), _rows(frame, _STATE + 1)
  steps = ffi.vector(frame, ffi.RESULTS, _STATE + 2, np.float32)
  log1, log2 = np.log(np.float64(beta1)), np.log(np.float64(beta2))
  for j in range(firsts.size):
    _ask(vectors, ids, firsts, j)
    _ask(means, ids, firsts, j)
    _ask(squares, ids, firsts, j)
    grad, id_ = grads[firsts[j]], ids[firsts[j]]
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
  turns.report(result, 0.0, 0.0)
