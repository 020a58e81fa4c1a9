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
_FLOAT, _INT = ir.FloatType(), ir.IntType(64)
_X86 = 'x86_64', 'AMD64'


def _lanes() -> int:
  """Floats in the longest vectors of what numba compiles for."""
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

  def at(self, *place, kind=_FLOAT):
    """The pointer to an element; those of a row are neighbors."""
    builder = self._builder
    start = builder.ptrtoint(self._data, _INT)
    for index, stride in zip(place[:-1], self._strides, strict=False):
      start = builder.add(start, builder.mul(index, stride))
    start = builder.inttoptr(start, kind.as_pointer())
    return builder.gep(start, [place[-1]])

  def below(self, pointer, number):
    """The pointer to what is that many rows below."""
    builder = self._builder
    start = builder.ptrtoint(pointer, _INT)
    start = builder.add(start, builder.mul(_INT(number), self._strides[0]))
    return builder.inttoptr(start, pointer.type)

  def neighbors(self, *place):
    """Four elements of a row."""
    start, builder = self.at(*place), self._builder
    return [builder.load(builder.gep(start, [_INT(k)])) for k in range(SIZE)]

  def row(self, place):
    """Pointer to the row whose address the array has at a place."""
    address = self._builder.load(self.at(place, kind=_INT))
    return self._builder.inttoptr(address, _FLOAT.as_pointer())

  def rows(self, first):
    """Pointers to four rows."""
    add = self._builder.add
    return [self.row(add(first, _INT(k))) for k in range(SIZE)]


def _at(builder, pointer, offset, kind):
  """A pointer, `offset` floats on, to another type."""
  moved = builder.gep(pointer, [offset])
  return builder.bitcast(moved, kind.as_pointer())


def _load(builder, pointer, offset, kind=_VECTOR):
  return builder.load(_at(builder, pointer, offset, kind), align=4)


def _store(builder, value, pointer, offset):
  builder.store(value, _at(builder, pointer, offset, value.type), align=4)


def _widened(builder, given):
  """A vector of all lanes, with zeros after what is given."""
  if given.type == _VECTOR:
    return given
  zero, number = ir.Constant(_VECTOR, None), ir.IntType(32)
  if given.type == _FLOAT:
    return builder.insert_element(zero, given, number(0))
  count = given.type.count
  mask = [number(min(lane, count)) for lane in range(LANES)]
  zero = ir.Constant(given.type, None)
  mask = ir.Constant(ir.VectorType(number, LANES), mask)
  return builder.shuffle_vector(given, zero, mask)


def _spread(builder, number, kind=_VECTOR):
  """A vector of equal numbers."""
  if kind is _FLOAT:
    return number
  empty = ir.Constant(kind, ir.Undefined)
  one = builder.insert_element(empty, number, ir.IntType(32)(0))
  mask = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
  return builder.shuffle_vector(one, empty, mask)


def _add_product(builder, total, left, right):
  product = builder.fmul(left, right, flags=_FLAGS)
  return builder.fadd(total, product, flags=_FLAGS)


def _sums(builder, vectors):
  """Sums over the lanes of each vector, in as few vectors, in order.

  Halves of two vectors side by side are added to their other halves, until
  nothing is left to halve.
  """
  number, width = ir.IntType(32), LANES  # of what belongs to one sum
  while width > 1 and len(vectors) > 1:
    starts = range(0, 2 * LANES, width)
    halves = [
      ir.Constant(
        ir.VectorType(number, LANES),
        [number(x + y) for x in starts for y in range(half, half + width // 2)],
      )
      for half in (0, width // 2)
    ]
    vectors = [
      builder.fadd(
        *(builder.shuffle_vector(a, b, half) for half in halves), flags=_FLAGS
      )
      for a, b in zip(vectors[::2], vectors[1::2], strict=True)
    ]
    width //= 2
  return vectors


def _blocks(builder, num_columns, widths):
  """Loops over columns: first columns and widths of the blocks of each.

  Blocks have the first width, then, of what is left, the next, down to 1.
  """
  done = _INT(0)
  for width in widths:
    count = builder.udiv(builder.sub(num_columns, done), _INT(width))
    with cgutils.for_range(builder, count) as loop:
      yield builder.add(done, builder.mul(loop.index, _INT(width))), width
    done = builder.add(done, builder.mul(count, _INT(width)))


def _vectors(builder, first, width):
  """Offsets and type of the vectors of a block."""
  kind = ir.VectorType(_FLOAT, min(width, LANES)) if width > 1 else _FLOAT
  starts = range(0, width, min(width, LANES))
  return [builder.add(first, _INT(start)) for start in starts], kind


@intrinsic
def scores(typing_context, left, i, right, j, size, out, x, y):
  """out[x:x+4, y:y+4] = left[i:i+4] . right[j:j+4].T."""

  def generate(context, builder, signature, args):
    a, b, o = (
      _Array(context, builder, signature.args[k], args[k]) for k in (0, 2, 5)
    )
    first, second = a.rows(args[1]), b.rows(args[3])
    pairs = list(itertools.product(range(SIZE), range(SIZE)))
    zero = ir.Constant(_VECTOR, None)
    totals = [cgutils.alloca_once_value(builder, zero) for _ in pairs]
    for at, width in _blocks(builder, args[4], (LANES, *_NARROW)):
      (at,), kind = _vectors(builder, at, width)
      lefts, rights = (
        [_widened(builder, _load(builder, p, at, kind)) for p in side]
        for side in (first, second)
      )
      for total, (k, m) in zip(totals, pairs, strict=True):
        old = builder.load(total)
        builder.store(_add_product(builder, old, lefts[k], rights[m]), total)
    sums = _sums(builder, [builder.load(total) for total in totals])
    numbers = [(v, lane) for v in sums for lane in range(LANES)]
    number = ir.IntType(32)
    for k in range(SIZE):
      row = numbers[k * SIZE : (k + 1) * SIZE]
      mask = ir.Constant(
        ir.VectorType(number, SIZE), [number(lane) for _, lane in row]
      )
      four = builder.shuffle_vector(row[0][0], row[0][0], mask)
      pointer = o.at(builder.add(args[6], _INT(k)), args[7])
      _store(builder, four, pointer, _INT(0))
    return context.get_dummy_value()

  n = types.intp
  return types.void(left, n, right, n, n, out, n, n), generate


def _add(is_transposed):
  """An intrinsic that adds weighted sums of rows to each of four rows."""

  @intrinsic
  def add(
    typing_context, weights, x, y, step, rows, i, count, out, j, rates, size
  ):
    def generate(context, builder, signature, args):
      w, r, o, s = (
        _Array(context, builder, signature.args[k], args[k])
        for k in (0, 4, 7, 9)
      )
      _, x, y, step, _, i, count, _, j, _, size = args
      targets = list(zip(o.rows(j), s.neighbors(j), strict=True))
      for at, width in _blocks(builder, size, (*_WIDE, LANES, *_NARROW)):
        offsets, kind = _vectors(builder, at, width)
        zero = ir.Constant(kind, None if width > 1 else 0.0)
        totals = [
          [cgutils.alloca_once_value(builder, zero) for _ in offsets]
          for _ in targets
        ]
        # One row at a time, or LLVM loads more of them than it has registers.
        with cgutils.for_range(builder, count) as loop:
          if is_transposed:
            column = builder.mul(builder.lshr(loop.index, _INT(2)), step)
            place = builder.add(x, loop.index), builder.add(y, column)
            factors = w.neighbors(*place)
          else:
            corner = w.at(x, builder.add(y, loop.index))
            factors = [builder.load(w.below(corner, k)) for k in range(SIZE)]
          source = r.row(builder.add(i, loop.index))
          given = [_load(builder, source, k, kind) for k in offsets]
          for factor, total in zip(factors, totals, strict=True):
            factor = _spread(builder, factor, kind)
            for old, vector in zip(total, given, strict=True):
              new = _add_product(builder, builder.load(old), factor, vector)
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
    pointer = _FLOAT.as_pointer()
    given, out = (builder.inttoptr(x, pointer) for x in args[:2])
    for at, width in _blocks(builder, args[2], (LANES, *_NARROW)):
      (at,), kind = _vectors(builder, at, width)
      _store(builder, _load(builder, given, at, kind), out, at)
    return context.get_dummy_value()

  n = types.uintp
  return types.void(n, n, types.intp), generate
