"""Rows of a step that share an id, summed by a kernel on a GPU (Pallas).

XLA reads and writes the gradients of a step five times until rows are changed:
it brings them into the order of their ids, sums equal ones by products of
matrices (`dedup`), and adds what is left to the table. Here a program has the
16 or 32 positions of a tile of the sorted ids. It reads each gradient where it
lies, adds those of a row one after another, applies the optimizer to the sum
and writes the row in place: gradients are read once, rows are read and written
once.

A run of equal ids that goes on beyond its tile leaves one sum in each. A second
kernel adds these up, with a program for each tile that such a run begins in.
Sums are added in the same order in every run of a program, none by an atomic
operation.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxemb.tables import dedup, row_access, row_optimizers

_LEAST_CAPABILITY = 8.0  # of NVIDIA's GPUs, for which Triton compiles
_MOST_WIDTH = 1024  # numbers of a row, which a program has in registers
_TILE = 16  # positions of a program
_LARGE_TILE = 32  # with fewer parts of runs, where programs are many
_LARGE = 1 << 16  # positions of a step, from which on they are
_AT_ONCE = 8  # of them, whose rows are in registers
_TILES_AT_ONCE = 8  # whose sums are read at once
_LANES = 32
_NUMBERS_OF_LANE = 4  # of a row; one instruction reads 16 bytes


def can_sum(dim: int) -> bool:
  """Whether rows have room in registers."""
  return dim <= _MOST_WIDTH


def kernels(dim: int) -> row_access.Kernels:
  """Returns the kernels for rows of a width, or XLA for those too wide."""
  if not can_sum(dim):
    return row_access.XLA
  return row_access.Kernels(sums=sums, sums_of_sorted=sums_of_sorted)


def compiles_for(device: jax.Device) -> bool:
  """Whether the kernels compile for a GPU."""
  capability = str(getattr(device, 'compute_capability', ''))
  try:
    return float(capability) >= _LEAST_CAPABILITY
  except ValueError:  # AMD's have names
    return False


def sums(
  row_grads: row_optimizers.RowGrads, vocab: int, interpret: bool = False
) -> row_optimizers.RowGrads:
  """As `dedup.by_sorting`, but ids are at the first position of their run.

  Sums of padding are arbitrary. `interpret`: without a GPU.
  """
  in_order = Sorted.of(row_grads, vocab)
  sums = _sums_of_sorted(in_order, vocab, interpret)
  ids = in_order.ids
  unused = vocab + jnp.arange(len(ids), dtype=jnp.int32)
  is_first = jnp.append(True, ids[1:] != ids[:-1]) & (ids < vocab)
  return sums._replace(ids=jnp.where(is_first, ids, unused))


def sums_of_sorted(
  row_grads: row_optimizers.RowGrads,
  order: jax.Array,
  vocab: int,
  interpret: bool = False,
) -> row_optimizers.RowGrads:
  """Returns sums without ids, each at the first position of equal ids.

  Ids are sorted; gradients have the `order` [n] of these.
  """
  ids, grads, squares, _, _ = row_grads
  in_order = Sorted(ids, order, grads, squares=squares)
  return _sums_of_sorted(in_order, vocab, interpret)


def _sums_of_sorted(in_order, vocab, interpret):
  in_order, num = in_order.padded(vocab), len(in_order.ids)
  shapes = (num, in_order.grads.shape[1]), (num,), (num,)
  outs = [jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes]
  has_squares = in_order.squares is not None
  kernel = _Kernel(vocab, has_squares, change=None, interpret=interpret)
  grads, squares, counts = kernel(in_order, [], outs, ())
  squares = squares if has_squares else None
  return row_optimizers.RowGrads(None, grads, squares, counts=counts)


@dataclasses.dataclass(frozen=True)
class RowKernel:
  """A `tables.replicated.Replicated.row_kernel`, of float32 rows."""

  optimizer: row_optimizers.RowOptimizer
  interpret: bool = False  # without a GPU

  def __call__(
    self,
    vectors: jax.Array,
    opt_state: row_optimizers.OptState,
    row_grads: row_optimizers.RowGrads,
    decay: float,
    learning_rate: jax.Array,
  ) -> tuple[jax.Array, row_optimizers.OptState]:
    """Vectors [vocab, dim] and optimizer state after a step."""
    names = list(self.optimizer.state_names)
    arrays = [vectors, *(getattr(opt_state, x) for x in names)]

    def change(rows, total, rate):
      vector, *numbers = rows
      old = type(opt_state)(**dict.fromkeys(opt_state._fields))._replace(
        **dict(zip(names, numbers, strict=True))
      )
      if decay:
        total = row_optimizers.decayed(total, vector, decay)
      delta, new = self.optimizer.change(old, total, rate)
      return [vector + delta, *(getattr(new, x) for x in names)]

    vocab = len(vectors)
    kernel = _Kernel(
      vocab,
      self.optimizer.uses_squares,
      change=change,
      interpret=self.interpret,
    )
    in_order = Sorted.of(row_grads, vocab).padded(vocab)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    vectors, *others = kernel(in_order, arrays, shapes, (learning_rate,))
    changed = dict(zip(names, others, strict=True))
    return vectors, opt_state._replace(**changed) if names else opt_state


class Sorted(NamedTuple):
  """Gradients of a step where they lie, and the order of their ids."""

  ids: jax.Array  # [n] int32, in rising order
  order: jax.Array  # [n] int32, positions of gradients
  grads: jax.Array  # [n, dim] float32
  squares: jax.Array | None = None  # [n], mean squares; None = of `grads`
  counts: jax.Array | None = None  # [n], of occurrences; None = 1

  @classmethod
  def of(cls, row_grads: row_optimizers.RowGrads, vocab: int) -> 'Sorted':
    """Sorts; ids from `vocab` on are padding."""
    ids, grads = row_access.flatten(row_grads.ids, row_grads.grads)
    ids, order = dedup.in_order(jnp.minimum(ids, vocab), vocab)
    more = [
      None if x is None else x.reshape(-1)
      for x in (row_grads.squares, row_grads.counts)
    ]
    return cls(ids, order, grads, *more)

  @property
  def tile(self) -> int:
    """Positions of a program."""
    return _LARGE_TILE if len(self.ids) >= _LARGE else _TILE

  def padded(self, vocab: int) -> 'Sorted':
    """With ids and an order for whole tiles."""
    padding = 0, -len(self.ids) % self.tile
    ids = jnp.pad(self.ids, padding, constant_values=vocab)
    return self._replace(ids=ids, order=jnp.pad(self.order, padding))


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """Both kernels; a run of equal ids has a target, the row that it changes.

  That is its id's, or where nothing is changed its first position.
  """

  vocab: int
  uses_squares: bool
  # (rows at the target, sums, learning rate) -> new rows; None: the sums.
  change: Callable[..., list[jax.Array]] | None
  interpret: bool

  def __call__(
    self,
    in_order: Sorted,
    arrays: list[jax.Array],
    outs: list[jax.ShapeDtypeStruct],
    numbers: Sequence[jax.Array],
  ) -> list[jax.Array]:
    """Returns arrays that are changed, or new."""
    import jax.experimental.pallas as pl  # takes long, and few need it
    import jax.experimental.pallas.triton as plt

    dim = in_order.grads.shape[1]
    block = max(_LANES, 1 << (dim - 1).bit_length())
    num_tiles = len(in_order.ids) // in_order.tile
    numbers = [jnp.asarray(x, jnp.float32).reshape(1) for x in numbers]
    # Of each tile: of the run that goes on from the one before (a head), and of
    # the run that goes on in the next (a tail).
    parts = [jax.ShapeDtypeStruct((num_tiles, dim), jnp.float32)]
    parts += [jax.ShapeDtypeStruct((num_tiles,), jnp.float32)] * 2
    parts = [*parts, *parts]

    def call(body, first, aliased, outs):
      first, tree = jax.tree.flatten(first)

      def kernel(*refs):
        inputs, refs = refs[: len(first)], refs[len(first) :]
        refs = refs[len(aliased) :]  # results are the same arrays
        at = _Place(
          triton=plt,
          index=pl.program_id(0),
          tile=in_order.tile,
          dim=dim,
          block=block,
        )
        body(at, jax.tree.unflatten(tree, inputs), refs)

      kernel.__name__ = body.__name__.strip('_')  # in traces
      return pl.pallas_call(
        kernel,
        grid=num_tiles,
        out_shape=outs,
        input_output_aliases={len(first) + i: i for i in range(len(aliased))},
        compiler_params=plt.CompilerParams(
          num_warps=max(1, block // (_LANES * _NUMBERS_OF_LANE)), num_stages=1
        ),
        interpret=self.interpret,
      )(*first, *aliased)

    tiles = in_order, numbers
    results = call(self._sum_tiles, tiles, aliased=arrays, outs=[*outs, *parts])
    changed, parts = results[: len(outs)], results[len(outs) :]
    runs = in_order.ids, tuple(parts), numbers
    return call(self._sum_runs, runs, aliased=changed, outs=outs)

  def _sum_tiles(self, at: '_Place', inputs: Any, refs: Any) -> None:
    """Changes the rows of runs within a tile, sums the parts of others."""
    (ids_ref, order, grads, squares, counts), numbers = inputs
    tables, heads, tails = refs[:-6], refs[-6:-3], refs[-3:]
    before = at.id_before(ids_ref)

    def gradient(position):
      index = order[position]
      row = at.row(grads, index, True)
      square = jnp.float32(0)
      if squares is not None:
        square = squares[index]
      elif self.uses_squares:
        square = jnp.sum(row * row) / at.dim
      count = jnp.float32(1) if counts is None else counts[index]
      return _sum(row, square, count)

    def add_some(i, carry):
      start = at.index * at.tile + i * _AT_ONCE
      head, total, previous, target = carry
      ids = [at.id(ids_ref, start + j, self.vocab) for j in range(_AT_ONCE + 1)]
      # All that is read is asked for before anything is written.
      added = [gradient(start + j) for j in range(_AT_ONCE)]
      pairs = list(zip(ids[:-1], ids[1:], strict=True))
      ends = [(x != before) & (x != y) & (x < self.vocab) for x, y in pairs]
      olds = [self._read(at, tables, *x) for x in zip(ids, ends, strict=False)]
      for j, (id_, old) in enumerate(zip(ids, olds, strict=False)):
        total = _plus(_where(id_ == previous, total), added[j])
        head = _plus(head, _where(id_ == before, added[j]))
        if not self.change:
          target = jnp.where(id_ == previous, target, start + j)
        new = self._changed(old, total, numbers)
        at_row = id_ if self.change else target
        self._write(at, tables, target=at_row, rows=new, where=ends[j])
        previous = id_
      return head, total, previous, target

    zeros = _sum(jnp.zeros(at.block), jnp.float32(0), jnp.float32(0))
    start = zeros, zeros, before, jnp.int32(0)
    head, total, last, _ = jax.lax.fori_loop(
      0, at.tile // _AT_ONCE, add_some, start
    )
    first = ids_ref[at.index * at.tile]
    goes_on = at.id(ids_ref, (at.index + 1) * at.tile, self.vocab) == last
    at.put(heads, i=at.index, total=head, where=first == before)
    at.put(tails, i=at.index, total=total, where=goes_on & (last != before))

  def _sum_runs(self, at: '_Place', inputs: Any, tables: Any) -> None:
    """Changes the row of a run that begins in a tile and ends in another."""
    ids_ref, parts, numbers = inputs
    heads, tails = parts[:3], parts[3:]
    end = (at.index + 1) * at.tile
    id_, after = ids_ref[end - 1], at.id(ids_ref, end, self.vocab)
    goes_on = (id_ != at.id_before(ids_ref)) & (id_ == after)
    goes_on &= id_ < self.vocab
    total = at.part(tails, at.index, goes_on)

    def more(x):
      return x[-1]

    def add(x):
      total, first, _ = x
      tiles = [first + j for j in range(_TILES_AT_ONCE)]
      goes_on = [at.id(ids_ref, x * at.tile, self.vocab) == id_ for x in tiles]
      pairs = list(zip(tiles, goes_on, strict=True))
      for part in [at.part(heads, x, y) for x, y in pairs]:
        total = _plus(total, part)
      return total, first + _TILES_AT_ONCE, goes_on[-1]

    # Gradients come first: Triton takes the n-th value of a loop for its n-th
    # result, and crashes if results in front of an array were dropped for want
    # of a use (in its TritonGPURemoveLayoutConversions).
    start = total, at.index + 1, goes_on
    total, *_ = jax.lax.while_loop(more, add, start)
    target = id_
    if not self.change:
      ids = [ids_ref[end - 1 - j] for j in range(at.tile)]
      target = end - sum((x == id_).astype(jnp.int32) for x in ids)
    old = self._read(at, tables, id_, where=goes_on)
    new = self._changed(old, total, numbers)
    self._write(at, tables, target, rows=new, where=goes_on)

  def _read(self, at, tables, id_, where):
    if not self.change:
      return []
    return [at.row(x, id_, where) for x in tables]

  def _changed(self, rows, total, numbers):
    if not self.change:
      return jax.tree.leaves(total)
    return self.change(rows, total, *(x[0] for x in numbers))

  def _write(self, at, tables, target, rows, where):
    for table, row in zip(tables, rows, strict=True):
      at.put_row(table, i=target, row=row, where=where)


def _sum(grads, squares, counts):
  """Returns a sum of gradients [block] with the same id, or a single one."""
  return row_optimizers.RowGrads(None, grads, squares, counts=counts)


def _plus(total, other):
  return jax.tree.map(jnp.add, total, other)


def _where(condition, total):
  """Returns a sum, or that of none."""
  return jax.tree.map(lambda x: jnp.where(condition, x, 0.0), total)


class _Place(NamedTuple):
  """A program of a kernel, and how it reads and writes rows."""

  triton: Any
  # Of its tile. A field, in place of tuple's method.
  index: jax.Array  # type: ignore[assignment]
  tile: int  # positions of it
  dim: int
  block: int  # numbers of a row, with padding to a power of two

  @property
  def _columns(self):
    return jnp.arange(self.block, dtype=jnp.int32)

  def load(self, ref, index, where, other):
    """A masked load."""
    return self.triton.load(ref.at[index], mask=where, other=other)

  def id_before(self, ids: Any) -> jax.Array:
    """The id before those of the tile."""
    start = self.index * self.tile
    return jnp.where(start > 0, ids[jnp.maximum(start - 1, 0)], -1)

  def id(self, ids: Any, position: jax.Array, beyond: int) -> jax.Array:
    """The id at a position, which may be the one after the last."""
    return self.load(
      ids, index=(position,), where=position < ids.shape[0], other=beyond
    )

  def row(self, ref: Any, i: jax.Array, where: Any) -> jax.Array:
    """[block] or [], a row or number; 0 elsewhere."""
    if len(ref.shape) == 1:
      return self.load(ref, index=(i,), where=where, other=0.0)
    mask = (self._columns < self.dim) & where
    return self.load(ref, index=(i, self._columns), where=mask, other=0.0)

  def put_row(self, ref: Any, i: jax.Array, row: Any, where: Any) -> None:
    """Writes it."""
    at: tuple[jax.Array, ...] = (i,)
    if len(ref.shape) > 1:
      where = (self._columns < self.dim) & where
      at = i, self._columns
    self.triton.store(ref.at[at], row, mask=where)

  def put(self, refs: Any, i: jax.Array, total: Any, where: Any) -> None:
    """Writes a sum."""
    for ref, x in zip(refs, jax.tree.leaves(total), strict=True):
      self.put_row(ref, i, row=x, where=where)

  def part(self, refs: Any, i: jax.Array, where: Any) -> Any:
    """Reads a sum."""
    return _sum(*(self.row(x, i, where) for x in refs))
