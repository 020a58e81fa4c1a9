"""Products of four rows by four, as vector instructions for numba's functions.

LLVM makes vectors of a loop over columns only where it can tell arrays apart,
and then of 64 columns at a time; so these loops are written in its own terms.
Arrays are [n, d] float32, d a multiple of `LANES`; `i` and `j` are the first of
four rows, `x` and `y` the first row and column of four by four weights.
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


class _Rows:
  """Rows of an array, in a function that is being generated."""

  def __init__(self, context, builder, kind, value):
    array = context.make_array(kind)(context, builder, value)
    self._builder, self.data = builder, array.data
    self.shape = cgutils.unpack_tuple(builder, array.shape)
    self._strides = cgutils.unpack_tuple(builder, array.strides)

  def pointer(self, row, column=None):
    """To a number, which `row` and `column` are the places of."""
    builder = self._builder
    start = builder.ptrtoint(self.data, _INT)
    start = builder.add(start, builder.mul(row, self._strides[0]))
    if column is not None:
      start = builder.add(start, builder.mul(column, self._strides[1]))
    return builder.inttoptr(start, _FLOAT.as_pointer())

  def tile(self, first):
    """Pointers to four rows."""
    add = self._builder.add
    return [self.pointer(add(first, _INT(i))) for i in range(SIZE)]


def _at(builder, pointer, offset, kind):
  """A pointer, `offset` floats on, to another type."""
  moved = builder.gep(pointer, [offset])
  return builder.bitcast(moved, kind.as_pointer())


def _load(builder, pointer, offset, kind=_VECTOR):
  return builder.load(_at(builder, pointer, offset, kind), align=4)


def _store(builder, value, pointer, offset):
  builder.store(value, _at(builder, pointer, offset, value.type), align=4)


def _spread(builder, number, kind=_VECTOR):
  """A vector of equal numbers."""
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


def _blocks(builder, num_columns):
  """A loop over vectors of columns: their first columns."""
  count = builder.udiv(num_columns, _INT(LANES))
  return cgutils.for_range(builder, count)


@intrinsic
def scores(typing_context, left, i, right, j, out, x, y):
  """out[x:x+4, y:y+4] = left[i:i+4] . right[j:j+4].T."""

  def generate(context, builder, signature, args):
    a, b, o = (
      _Rows(context, builder, signature.args[k], args[k]) for k in (0, 2, 4)
    )
    first, second = a.tile(args[1]), b.tile(args[3])
    pairs = list(itertools.product(range(SIZE), range(SIZE)))
    zero = ir.Constant(_VECTOR, None)
    totals = [cgutils.alloca_once_value(builder, zero) for _ in pairs]
    with _blocks(builder, a.shape[1]) as loop:
      at = builder.mul(loop.index, _INT(LANES))
      lefts = [_load(builder, p, at) for p in first]
      rights = [_load(builder, p, at) for p in second]
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
      pointer = o.pointer(builder.add(args[5], _INT(k)), args[6])
      _store(builder, four, pointer, _INT(0))
    return context.get_dummy_value()

  n = types.intp
  return types.void(left, n, right, n, out, n, n), generate


def _add(weights_at):
  """An intrinsic that adds weighted sums of four rows to each of four rows."""

  @intrinsic
  def add(typing_context, weights, x, y, rows, i, out, j):
    def generate(context, builder, signature, args):
      w, r, o = (
        _Rows(context, builder, signature.args[k], args[k]) for k in (0, 3, 5)
      )
      sources, targets = r.tile(args[4]), o.tile(args[6])
      factors = [
        [
          _spread(
            builder,
            builder.load(
              w.pointer(
                builder.add(args[1], _INT(row)), builder.add(args[2], _INT(col))
              )
            ),
          )
          for row, col in (weights_at(k, m) for m in range(SIZE))
        ]
        for k in range(SIZE)
      ]
      with _blocks(builder, r.shape[1]) as loop:
        at = builder.mul(loop.index, _INT(LANES))
        given = [_load(builder, p, at) for p in sources]
        for pointer, row in zip(targets, factors, strict=True):
          total = _load(builder, pointer, at)
          for factor, vector in zip(row, given, strict=True):
            total = _add_product(builder, total, factor, vector)
          _store(builder, total, pointer, at)
      return context.get_dummy_value()

    n = types.intp
    return types.void(weights, n, n, rows, n, out, n), generate

  return add


# out[j:j+4] += weights[x:x+4, y:y+4] . rows[i:i+4], and the same of the
# weights' transpose.
add_rows = _add(lambda target, source: (target, source))
add_columns = _add(lambda target, source: (source, target))


@intrinsic
def add_scaled(typing_context, row, delta, scale):
  """Adds scale * delta[:d] to a row [d] of any size."""

  def generate(context, builder, signature, args):
    a, b = (_Rows(context, builder, signature.args[k], args[k]) for k in (0, 1))
    done = _INT(0)
    for width in (LANES, 4, 1):
      kind = ir.VectorType(_FLOAT, width) if width > 1 else _FLOAT
      factor = _spread(builder, args[2], kind) if width > 1 else args[2]
      left = builder.sub(a.shape[0], done)
      count = builder.udiv(left, _INT(width))
      with cgutils.for_range(builder, count) as loop:
        at = builder.add(done, builder.mul(loop.index, _INT(width)))
        old = _load(builder, a.data, at, kind)
        change = _load(builder, b.data, at, kind)
        new = _add_product(builder, old, factor, change)
        _store(builder, new, a.data, at)
      done = builder.add(done, builder.mul(count, _INT(width)))
    return context.get_dummy_value()

  return types.void(row, delta, types.float32), generate
