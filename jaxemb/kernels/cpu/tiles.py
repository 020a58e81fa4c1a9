"""Products of a few rows by four, as vector instructions for numba's functions.

LLVM makes vectors of a loop over columns only where it can tell arrays apart,
and then of 64 columns at a time; so these loops are written in its own terms.
Rows are given by their addresses [n]: `size` float32 each, of which `i` and `j`
are the first of a tile. `x` and `y` are the first row and column of its scores
or weights.

Rows need not be a number of whole vectors long. The last vector of a row ends
where the row does, and its first lanes, which the one before has as well, do
not count. Rows shorter than one vector are taken in fours and ones.
"""

import functools
import itertools
import platform
from typing import NamedTuple

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
# Rows on the left of a tile of scores: a sum for each score, four rows and one
# more are in registers at once, of which x86 has 32 with AVX-512, else 16.
LEFT = 3 if LANES < 16 and platform.machine() in _X86 else 4
# Rows on the left of a tile of `scores_of`, of which there is one for each
# number of rows: its sums fit into the registers.
MOST_SCORED = 6 if LANES == 16 else LEFT
# Rows on the left of `exchange`, whose sums and, with AVX-512, values are in
# registers.
MOST_EXCHANGED = 10
_NARROW = (4, 1) if LANES > 4 else (1,)  # columns of rows that are short


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

  def rows(self, first, num=SIZE):
    """Returns pointers to some rows."""
    add = self._builder.add
    return [self.row(add(first, _INT(k))) for k in range(num)]


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


def _shuffled(builder, left, right, lanes):
  return builder.shuffle_vector(left, right, _lane_mask(lanes))


def _sums_of_four(builder, vectors):
  """Returns a vector of the sums over the lanes of each of four vectors.

  Neighbors are added within 128 bits, what moves between which is slow, then
  these parts.
  """
  quarters = range(0, LANES, 4)

  def neighbors(a, b, first, second):
    sides = (
      [q + x for q in quarters for x in lanes]
      + [q + LANES + x for q in quarters for x in lanes]
      for lanes in (first, second)
    )
    # In each quarter two lanes of a, then two of b.
    order = [
      side * len(quarters) * 2 + 2 * q + x
      for q in range(len(quarters))
      for side in (0, 1)
      for x in (0, 1)
    ]
    added = (
      _shuffled(builder, a, b, [lanes[k] for k in order]) for lanes in sides
    )
    return builder.fadd(*added, flags=_FLAGS)

  a, b = (
    neighbors(*pair, (0, 1), (2, 3)) for pair in (vectors[:2], vectors[2:])
  )
  total = neighbors(a, b, (0, 2), (1, 3))
  while total.type.count > 4:
    half = total.type.count // 2
    low, high = (range(k, k + half) for k in (0, half))
    total = builder.fadd(
      _shuffled(builder, total, total, low),
      _shuffled(builder, total, total, high),
      flags=_FLAGS,
    )
  return total


class _Last:
  """The last vector of rows of at least `LANES` columns."""

  def __init__(self, builder, size):
    lanes = _INT(LANES)
    above = builder.add(size, _INT(LANES - 1))
    self.count = builder.udiv(above, lanes)  # of vectors of a row
    self.start = builder.sub(size, lanes)
    self._index = builder.sub(self.count, _INT(1))
    before = builder.mul(self._index, lanes)
    self._known = builder.trunc(builder.sub(before, self.start), _LANE)
    self._builder = builder

  def offset(self, index):
    """Returns the first column of a vector."""
    builder, first = self._builder, self._builder.mul(index, _INT(LANES))
    is_last = builder.icmp_unsigned('==', index, self._index)
    return builder.select(is_last, self.start, first)

  def new(self, value):
    """Returns the vector with zeros for columns that the one before has."""
    return self._without(self._known, value)

  def keep(self, index):
    """Returns `new` for the last vector, for others what changes nothing."""
    builder = self._builder
    is_last = builder.icmp_unsigned('==', index, self._index)
    known = builder.select(is_last, self._known, _LANE(0))
    return functools.partial(self._without, known)

  def _without(self, num_lanes, value):
    builder = self._builder
    known = _spread(builder, num_lanes, ir.VectorType(_LANE, LANES))
    is_new = builder.icmp_signed('>=', _lane_mask(range(LANES)), known)
    return builder.select(is_new, value, ir.Constant(value.type, None))


def _blocks(builder, num_columns, widths):
  """Loops over columns; yields the first of a block, and its type.

  Blocks have the first width, then, of what is left, the next, down to 1.
  """
  done = _INT(0)
  for width in widths:
    kind = ir.VectorType(_FLOAT, width) if width > 1 else _FLOAT
    count = builder.udiv(builder.sub(num_columns, done), _INT(width))
    with cgutils.for_range(builder, count) as loop:
      yield builder.add(done, builder.mul(loop.index, _INT(width))), kind
    done = builder.add(done, builder.mul(count, _INT(width)))


def _cases(builder, number, most):
  """Yields 1 to `most`, for code of which that of a number runs."""
  end = builder.append_basic_block('end')
  switch = builder.switch(number, end)
  for k in range(1, most + 1):
    block = builder.append_basic_block(f'of_{k}')
    switch.add_case(_INT(k), block)
    builder.position_at_end(block)
    yield k
    builder.branch(end)
  builder.position_at_end(end)


def _vectors(builder, last):
  """Loops over vectors of rows; yields the numbers of some at a time.

  They are three, then two, as sums of one would wait for each other; only rows
  of one vector have one.
  """
  num = last.count
  is_one = builder.zext(builder.icmp_unsigned('==', num, _INT(1)), _INT)
  num = builder.sub(num, is_one)
  pairs = builder.urem(builder.mul(num, _INT(2)), _INT(3))  # of what 3 leave
  threes = builder.udiv(builder.sub(num, builder.mul(pairs, _INT(2))), _INT(3))
  done = _INT(0)
  for size, count in ((3, threes), (2, pairs), (1, is_one)):
    with cgutils.for_range(builder, count) as loop:
      first = builder.add(done, builder.mul(loop.index, _INT(size)))
      yield [builder.add(first, _INT(k)) for k in range(size)]
    done = builder.add(done, builder.mul(count, _INT(size)))


def _score(builder, arrays, firsts, size, num):
  """Generates the scores of `num` rows with four others."""
  (a, b, o), (i, j, x, y) = arrays, firsts
  sides = a.rows(i, num), b.rows(j)
  pairs = list(itertools.product(range(num), range(SIZE)))
  zero = ir.Constant(_VECTOR, None)
  totals = [cgutils.alloca_once(builder, _VECTOR) for _ in pairs]
  for total in totals:
    builder.store(zero, total)

  def add(offset, kind, changed=lambda value: value):
    lefts = [changed(_load(builder, p, offset, kind)) for p in sides[0]]
    lefts = [_widened(builder, x) for x in lefts]
    # One at a time: the sums leave a register for it.
    for m, pointer in enumerate(sides[1]):
      value = _widened(builder, _load(builder, pointer, offset, kind))
      for total, left in zip(totals[m::SIZE], lefts, strict=True):
        old = builder.load(total)
        builder.store(_add_product(builder, old, left, value), total)

  is_short = builder.icmp_unsigned('<', size, _INT(LANES))
  with builder.if_else(is_short) as (short, long):
    with short:
      for first, kind in _blocks(builder, size, _NARROW):
        add(first, kind)
    with long:
      last = _Last(builder, size)
      add(last.start, _VECTOR, last.new)
      others = builder.sub(last.count, _INT(1))
      with cgutils.for_range(builder, others) as loop:
        add(builder.mul(loop.index, _INT(LANES)), _VECTOR)
  for k in range(num):
    row = [builder.load(total) for total in totals[SIZE * k :][:SIZE]]
    pointer = o.at(builder.add(x, _INT(k)), y)
    _store(builder, _sums_of_four(builder, row), pointer, _INT(0))


@intrinsic
def scores(typing_context, left, i, right, j, size, out, x, y):
  """out[x : x + LEFT, y : y + 4] = left[i : i + LEFT] . right[j : j + 4].T."""

  def generate(context, builder, signature, args):
    arrays = _arrays(context, builder, signature, args, (0, 2, 5))
    _, i, _, j, size, _, x, y = args
    _score(builder, arrays, (i, j, x, y), size, LEFT)
    return context.get_dummy_value()

  n = types.intp
  return types.void(left, n, right, n, n, out, n, n), generate


@intrinsic
def scores_of(typing_context, num, left, x, right, y, size, out):
  """As `scores`, of `num` rows on the left, at most `MOST_SCORED`."""

  def generate(context, builder, signature, args):
    arrays = _arrays(context, builder, signature, args, (1, 3, 6))
    num, _, x, _, y, size, _ = args
    for k in _cases(builder, num, MOST_SCORED):
      _score(builder, arrays, (x, y, x, y), size, k)
    return context.get_dummy_value()

  n = types.intp
  return types.void(n, left, n, right, n, n, out), generate


def _weighted_sums(builder, factors_of, rows, spans, offsets, kind):
  """Returns sums of rows, by four factors each, as four lists of vectors.

  `spans` are pairs: the number of the first row, and how many.
  """
  zero = ir.Constant(kind, 0.0 if kind is _FLOAT else None)
  totals = [
    [cgutils.alloca_once_value(builder, zero) for _ in offsets]
    for _ in range(SIZE)
  ]
  for first, num in spans:
    # One row at a time, or LLVM loads more of them than it has registers.
    with cgutils.for_range(builder, num) as loop:
      number = builder.add(first, loop.index)
      factors, source = factors_of(number), rows(number)
      values = [_load(builder, source, k, kind) for k in offsets]
      for factor, total in zip(factors, totals, strict=True):
        factor = _spread(builder, factor, kind)
        for old, value in zip(total, values, strict=True):
          new = _add_product(builder, builder.load(old), factor, value)
          builder.store(new, old)
  return [[builder.load(x) for x in total] for total in totals]


def _add_to_rows(builder, targets, rates, sums, offsets):
  """Adds vectors to four rows, given by their pointers.

  Rows may be the same: one after the other. Of a row all is read before any is
  written: what the last vector has twice gets the same numbers, and a read of
  what was just written in parts would wait.
  """
  for target, rate, changes in zip(targets, rates, sums, strict=True):
    kind = changes[0].type
    rate = _spread(builder, rate, kind)
    olds = [_load(builder, target, offset, kind) for offset in offsets]
    for offset, old, change in zip(offsets, olds, changes, strict=True):
      new = _add_product(builder, old, rate, change)
      _store(builder, new, target, offset)


def _columns(builder, size, generate):
  """Generates what is done to the columns of a row, some vectors at a time.

  `generate` takes their offsets and their type.
  """
  is_short = builder.icmp_unsigned('<', size, _INT(LANES))
  with builder.if_else(is_short) as (short, long):
    with short:
      for first, kind in _blocks(builder, size, _NARROW):
        generate([first], kind)
    with long:
      last = _Last(builder, size)
      for numbers in _vectors(builder, last):
        generate([last.offset(k) for k in numbers], _VECTOR)


def _add(is_transposed):
  """Makes an intrinsic that adds weighted sums of rows to each of four rows."""

  @intrinsic
  def add(
    typing_context, weights, x, y, rows, i, count, gap, more, out, j, rates,
    size,
  ):  # fmt: skip
    def generate(context, builder, signature, args):
      w, r, o, s = _arrays(context, builder, signature, args, (0, 3, 8, 10))
      _, x, y, _, i, count, gap, more, _, j, _, size = args
      spans = (_INT(0), count), (builder.add(count, gap), more)
      targets, steps = o.rows(j), s.neighbors(j)

      def factors_of(number):
        if is_transposed:
          return w.neighbors(builder.add(x, number), y)
        return w.column(x, builder.add(y, number))

      def add_sums(offsets, kind):
        sums = _weighted_sums(
          builder,
          factors_of,
          lambda number: r.row(builder.add(i, number)),
          spans=spans,
          offsets=offsets,
          kind=kind,
        )
        _add_to_rows(builder, targets, steps, sums=sums, offsets=offsets)

      _columns(builder, size, add_sums)
      return context.get_dummy_value()

    n = types.intp
    kinds = weights, n, n, rows, n, n, n, n, out, n, rates, n
    return types.void(*kinds), generate

  return add


# out[j + k] += rates[j + k] * sum of weights . rows, for k < 4, of rows from i
# on: `count` and, after a gap, so many more. Weights are those at [x + k, y :]
# or, for columns, at [x :, y + k], with the same gap.
add_rows = _add(False)
add_columns = _add(True)


def _exchange(
  builder, lefts, rights, first, num, count, slopes, offset, kind, keep
):
  """Generates `exchange` of some columns of `num` rows on the left."""
  zero = ir.Constant(kind, 0.0 if kind is _FLOAT else None)
  changes = [cgutils.alloca_once(builder, kind) for _ in range(num)]
  for change in changes:
    builder.store(zero, change)
  sources = lefts.sources.rows(first, num)
  values = [_load(builder, source, offset, kind) for source in sources]

  def add(side, number, change):
    old = _load(builder, side.targets.row(number), offset, kind)
    rate = _spread(builder, builder.load(side.rates.at(number)), kind)
    new = _add_product(builder, old, rate, keep(change))
    _store(builder, new, side.targets.row(number), offset)

  with cgutils.for_range(builder, count) as loop:
    right = _load(builder, rights.sources.row(loop.index), offset, kind)
    total = zero
    for k, (value, change) in enumerate(zip(values, changes, strict=True)):
      slope = builder.load(slopes.at(builder.add(first, _INT(k)), loop.index))
      slope = _spread(builder, slope, kind)
      old = builder.load(change)
      builder.store(_add_product(builder, old, slope, right), change)
      total = _add_product(builder, total, slope, value)
    add(rights, loop.index, total)
  for k, change in enumerate(changes):
    add(lefts, builder.add(first, _INT(k)), builder.load(change))


class _Side(NamedTuple):
  """Rows of which each learns from all of another side."""

  sources: _Array
  targets: _Array
  rates: _Array


@intrinsic
def exchange(
  typing_context, slopes, lefts, left_targets, left_rates, first, num, rights,
  right_targets, right_rates, count, size,
):  # fmt: skip
  """Adds to both sides of products what their slopes give, in one walk.

  left_targets[x] += left_rates[x] * sum over y of slopes[x, y] rights[y] and
  right_targets[y] += right_rates[y] * sum over x of slopes[x, y] lefts[x], for
  first <= x < first + num, y < count. `num` is at most `MOST_EXCHANGED`, and 1
  of rows shorter than a vector. Sources may be the same rows as their targets.
  """

  def generate(context, builder, signature, args):
    arrays = _arrays(context, builder, signature, args, (0, 1, 2, 3, 6, 7, 8))
    num, size = args[5], args[10]
    exchange_columns = functools.partial(
      _exchange,
      builder,
      _Side(*arrays[1:4]),
      _Side(*arrays[4:]),
      first=args[4],
      count=args[9],
      slopes=arrays[0],
    )
    last = _Last(builder, size)
    is_short = builder.icmp_unsigned('<', size, _INT(LANES))
    with builder.if_else(is_short) as (short, long):
      with short:
        for offset, kind in _blocks(builder, size, _NARROW):
          exchange_columns(num=1, offset=offset, kind=kind, keep=lambda x: x)
      with long:
        for k in _cases(builder, num, MOST_EXCHANGED):
          with cgutils.for_range(builder, last.count) as loop:
            exchange_columns(
              num=k,
              offset=last.offset(loop.index),
              kind=_VECTOR,
              keep=last.keep(loop.index),
            )
    return context.get_dummy_value()

  n = types.intp
  sides = lefts, left_targets, left_rates, n, n, rights, right_targets
  return types.void(slopes, *sides, right_rates, n, n), generate


@intrinsic
def copy(typing_context, source, target, size):
  """Copies a row [size], given addresses."""

  def generate(context, builder, signature, args):
    source, target = (
      builder.inttoptr(x, _FLOAT.as_pointer()) for x in args[:2]
    )

    def move(offset, kind):
      _store(builder, _load(builder, source, offset, kind), target, offset)

    is_short = builder.icmp_unsigned('<', args[2], _INT(LANES))
    with builder.if_else(is_short) as (short, long):
      with short:
        for first, kind in _blocks(builder, args[2], _NARROW):
          move(first, kind)
      with long:
        last = _Last(builder, args[2])
        with cgutils.for_range(builder, last.count) as loop:
          move(last.offset(loop.index), _VECTOR)
    return context.get_dummy_value()

  n = types.uintp
  return types.void(n, n, types.intp), generate


@intrinsic
def sum_rows(typing_context, sources, first, count, scale, target, size):
  """Writes `scale` times the sum of `count` rows to that at an address."""

  def generate(context, builder, signature, args):
    (rows,) = _arrays(context, builder, signature, args, (0,))
    _, first, count, scale, target, size = args
    target = builder.inttoptr(target, _FLOAT.as_pointer())

    def write(offsets, kind):
      zero = ir.Constant(kind, 0.0 if kind is _FLOAT else None)
      totals = [cgutils.alloca_once(builder, kind) for _ in offsets]
      for total in totals:
        builder.store(zero, total)
      with cgutils.for_range(builder, count) as loop:
        source = rows.row(builder.add(first, loop.index))
        for offset, total in zip(offsets, totals, strict=True):
          value = _load(builder, source, offset, kind)
          value = builder.fadd(builder.load(total), value, flags=_FLAGS)
          builder.store(value, total)
      factor = _spread(builder, scale, kind)
      for offset, total in zip(offsets, totals, strict=True):
        value = builder.fmul(builder.load(total), factor, flags=_FLAGS)
        _store(builder, value, target, offset)

    _columns(builder, size, write)
    return context.get_dummy_value()

  n = types.intp
  return types.void(sources, n, n, types.float32, types.uintp, n), generate


@intrinsic
def add_to_rows(typing_context, source, targets, rates, first, count, size):
  """targets[j] += rates[j] * source, for j from `first` on.

  The source is given by its address, and is none of the targets.
  """

  def generate(context, builder, signature, args):
    rows, steps = _arrays(context, builder, signature, args, (1, 2))
    source, _, _, first, count, size = args
    source = builder.inttoptr(source, _FLOAT.as_pointer())
    with cgutils.for_range(builder, count) as loop:
      j = builder.add(first, loop.index)
      target, rate = rows.row(j), builder.load(steps.at(j))

      def add(offsets, kind, target=target, rate=rate):
        changes = [_load(builder, source, x, kind) for x in offsets]
        _add_to_rows(builder, [target], [rate], sums=[changes], offsets=offsets)

      _columns(builder, size, add)
    return context.get_dummy_value()

  n = types.intp
  return types.void(types.uintp, targets, rates, n, n, n), generate
