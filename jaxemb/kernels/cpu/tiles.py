"""Products of four rows by four, as vector instructions for numba's functions.

LLVM makes vectors of a loop over columns only where it can tell arrays apart,
and then of 64 columns at a time; so these loops are written in its own terms.
Rows are given by their addresses [n]: `size` float32 each, of which `i` and `j`
are the first of four. `x` and `y` are the first row and column of four by four
scores or weights.
"""

import itertools
import platform

import numba
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

SIZE = 4
_FLAGS = ('reassoc', 'contract', 'nsz')
_FLOAT, _INT, _LANE = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_X86 = 'x86_64', 'AMD64'


def _lanes() -> int:
  """Returns the floats in the longest vectors of what numba compiles for."""
  name, features = numba.config.CPU_NAME, numba.config.CPU_FEATURES or ''
  if not (features or name):
    features = binding.get_host_cpu_features().flatten()
  features = features.split(',')
  if '+avx512f' in features:
    return 16
  # Of a processor that is only named the features are not known.
  is_named = name and features == [''] and platform.machine() in _X86
  return 8 if '+avx2' in features or is_named else 4


LANES = _lanes()
_VECTOR = ir.VectorType(_FLOAT, LANES)
# Columns of a block, which for the wide ones are several vectors: as many as
# there are registers for.
_WIDE = (4 * LANES, 2 * LANES) if LANES == 16 else (2 * LANES,)
_NARROW = (4, 1) if LANES > 4 else (1,)


class _Array:
  """An array, in a function that is being generated."""

  def __init__(self, context, builder, kind, value):
    array = context.make_array(kind)(context, builder, value)
    self._builder, self._data = builder, array.data
    self._strides = cgutils.unpack_tuple(builder, array.strides)

  def at(self, *indices, kind=_FLOAT):
    """Returns the pointer to an element; those of a row are neighbors."""
    builder = self._builder
    start = builder.ptrtoint(self._data, _INT)
    for index, stride in zip(indices[:-1], self._strides, strict=False):
      start = builder.add(start, builder.mul(index, stride))
    start = builder.inttoptr(start, kind.as_pointer())
    return builder.gep(start, [indices[-1]])

  def column(self, x, y):
    """Loads four elements of a column, from row x on."""
    builder, top = self._builder, self.at(x, y)
    start = builder.ptrtoint(top, _INT)
    rows = (builder.mul(_INT(k), self._strides[0]) for k in range(SIZE))
    pointers = (builder.inttoptr(builder.add(start, k), top.type) for k in rows)
    return [builder.load(pointer) for pointer in pointers]

  def neighbors(self, *indices):
    """Loads four elements of a row."""
    start, builder = self.at(*indices), self._builder
    return [builder.load(builder.gep(start, [_INT(k)])) for k in range(SIZE)]

  def row(self, index):
    """Returns the pointer to the row whose address an element is."""
    address = self._builder.load(self.at(index, kind=_INT))
    return self._builder.inttoptr(address, _FLOAT.as_pointer())

  def rows(self, first):
    """Returns pointers to four rows."""
    add = self._builder.add
    return [self.row(add(first, _INT(k))) for k in range(SIZE)]


def _arrays(context, builder, signature, args, numbers):
  return [_Array(context, builder, signature.args[k], args[k]) for k in numbers]


def _at(builder, pointer, offset, kind):
  """Returns a pointer, `offset` floats on, to another type."""
  moved = builder.gep(pointer, [offset])
  return builder.bitcast(moved, kind.as_pointer())


def _load(builder, pointer, offset, kind=_VECTOR):
  return builder.load(_at(builder, pointer, offset, kind), align=4)


def _store(builder, value, pointer, offset):
  builder.store(value, _at(builder, pointer, offset, value.type), align=4)


def _lane_mask(lanes):
  return ir.Constant(
    ir.VectorType(_LANE, len(lanes)), [_LANE(lane) for lane in lanes]
  )


def _widened(builder, value):
  """Returns a vector of all lanes, with zeros after those of the value."""
  if value.type == _VECTOR:
    return value
  if value.type == _FLOAT:
    zero = ir.Constant(_VECTOR, None)
    return builder.insert_element(zero, value, _LANE(0))
  count = value.type.count
  mask = _lane_mask([min(lane, count) for lane in range(LANES)])
  return builder.shuffle_vector(value, ir.Constant(value.type, None), mask)


def _spread(builder, number, kind):
  """Returns a vector of equal numbers."""
  if kind is _FLOAT:
    return number
  empty = ir.Constant(kind, ir.Undefined)
  one = builder.insert_element(empty, number, _LANE(0))
  return builder.shuffle_vector(one, empty, _lane_mask([0] * kind.count))


def _add_product(builder, total, left, right):
  product = builder.fmul(left, right, flags=_FLAGS)
  return builder.fadd(total, product, flags=_FLAGS)


def _sums(builder, vectors):
  """Returns sums over the lanes of each vector, in as few vectors, in order.

  Halves of two vectors side by side are added to their other halves, until
  nothing is left to halve.
  """
  width = LANES  # of what belongs to one sum
  while width > 1 and len(vectors) > 1:
    starts, half = range(0, 2 * LANES, width), width // 2
    masks = [
      _lane_mask([x + y for x in starts for y in range(first, first + half)])
      for first in (0, half)
    ]
    vectors = [
      builder.fadd(
        *(builder.shuffle_vector(a, b, mask) for mask in masks), flags=_FLAGS
      )
      for a, b in zip(vectors[::2], vectors[1::2], strict=True)
    ]
    width = half
  return vectors


def _blocks(builder, num_columns, widths):
  """Loops over columns; yields the vectors of a block: offsets, and their type.

  Blocks have the first width, then, of what is left, the next, down to 1.
  """
  done = _INT(0)
  for width in widths:
    size = min(width, LANES)
    kind = ir.VectorType(_FLOAT, size) if width > 1 else _FLOAT
    count = builder.udiv(builder.sub(num_columns, done), _INT(width))
    with cgutils.for_range(builder, count) as loop:
      first = builder.add(done, builder.mul(loop.index, _INT(width)))
      yield [builder.add(first, _INT(x)) for x in range(0, width, size)], kind
    done = builder.add(done, builder.mul(count, _INT(width)))


@intrinsic
def scores(typing_context, left, i, right, j, size, out, x, y):
  """out[x:x+4, y:y+4] = left[i:i+4] . right[j:j+4].T."""

  def generate(context, builder, signature, args):
    a, b, o = _arrays(context, builder, signature, args, (0, 2, 5))
    sides = a.rows(args[1]), b.rows(args[3])
    pairs = list(itertools.product(range(SIZE), range(SIZE)))
    zero = ir.Constant(_VECTOR, None)
    totals = [cgutils.alloca_once_value(builder, zero) for _ in pairs]
    for (offset,), kind in _blocks(builder, args[4], (LANES, *_NARROW)):
      lefts, rights = (
        [_widened(builder, _load(builder, p, offset, kind)) for p in side]
        for side in sides
      )
      for total, (k, m) in zip(totals, pairs, strict=True):
        old = builder.load(total)
        builder.store(_add_product(builder, old, lefts[k], rights[m]), total)
    sums = _sums(builder, [builder.load(total) for total in totals])
    numbers = [(v, lane) for v in sums for lane in range(LANES)]
    for k in range(SIZE):
      row = numbers[k * SIZE : (k + 1) * SIZE]
      mask = _lane_mask([lane for _, lane in row])
      four = builder.shuffle_vector(row[0][0], row[0][0], mask)
      pointer = o.at(builder.add(args[6], _INT(k)), args[7])
      _store(builder, four, pointer, _INT(0))
    return context.get_dummy_value()

  n = types.intp
  return types.void(left, n, right, n, n, out, n, n), generate


def _add(is_transposed):
  """Makes an intrinsic that adds weighted sums of rows to each of four rows."""

  @intrinsic
  def add(
    typing_context, weights, x, y, step, rows, i, count, out, j, rates, size
  ):
    def generate(context, builder, signature, args):
      w, r, o, s = _arrays(context, builder, signature, args, (0, 4, 7, 9))
      _, x, y, step, _, i, count, _, j, _, size = args
      targets = list(zip(o.rows(j), s.neighbors(j), strict=True))
      widths = *_WIDE, LANES, *_NARROW
      for offsets, kind in _blocks(builder, size, widths):
        zero = ir.Constant(kind, 0.0 if kind is _FLOAT else None)
        totals = [
          [cgutils.alloca_once_value(builder, zero) for _ in offsets]
          for _ in targets
        ]
        # One row at a time, or LLVM loads more of them than it has registers.
        with cgutils.for_range(builder, count) as loop:
          if is_transposed:
            column = builder.mul(builder.lshr(loop.index, _INT(2)), step)
            factors = w.neighbors(
              builder.add(x, loop.index), builder.add(y, column)
            )
          else:
            factors = w.column(x, builder.add(y, loop.index))
          source = r.row(builder.add(i, loop.index))
          values = [_load(builder, source, k, kind) for k in offsets]
          for factor, total in zip(factors, totals, strict=True):
            factor = _spread(builder, factor, kind)
            for old, value in zip(total, values, strict=True):
              new = _add_product(builder, builder.load(old), factor, value)
              builder.store(new, old)
        # Rows may be the same: one after the other.
        for (target, rate), total in zip(targets, totals, strict=True):
          rate = _spread(builder, rate, kind)
          for offset, change in zip(offsets, total, strict=True):
            old = _load(builder, target, offset, kind)
            new = _add_product(builder, old, rate, builder.load(change))
            _store(builder, new, target, offset)
      return context.get_dummy_value()

    n = types.intp
    kinds = weights, n, n, n, rows, n, n, out, n, rates, n
    return types.void(*kinds), generate

  return add


# out[j + k] += rates[j + k] * sum of weights . rows[i : i + count], for k < 4.
# Weights are those at [x + k, y :], or at [x :, y + k], whose columns move on
# by `step` after each four rows.
add_rows = _add(False)
add_columns = _add(True)


@intrinsic
def copy(typing_context, source, target, size):
  """Copies a row [size], given addresses."""

  def generate(context, builder, signature, args):
    source, target = (
      builder.inttoptr(x, _FLOAT.as_pointer()) for x in args[:2]
    )
    cgutils.raw_memcpy(builder, target, source, args[2], SIZE, align=SIZE)
    return context.get_dummy_value()

  n = types.uintp
  return types.void(n, n, types.intp), generate
