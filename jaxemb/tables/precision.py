"""Rows in the precision that a table's spec names: read, added to, written.

Storage is low, arithmetic is float32: a row is read and widened, what all of
its occurrences add up to is added, and it is rounded and written, once in a
step (Zhang, Yang and Yuen 2018). Where rows or gradients travel between
devices, they may do so in fewer bits than they are kept in, and are summed in
float32 where they arrive.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxemb.ops import rounding, sampling
from jaxemb.tables import dedup as duplicates
from jaxemb.tables import row_optimizers as rowopt
from jaxemb.tables import spec as spec_lib

_BLOCK_NUMBERS = 1 << 22  # of float32, from which rows of int8 are made
# Root mean squares of a row, beyond which its few larger numbers are cut, so
# that all of them are kept by finer steps: the noise that rounding leaves is
# proportional to the steps, and costs more.
_SPREADS = 2.2
_LEAST_SPREAD = 1e-18
_BYTES = {'float32': 4, 'bfloat16': 2, 'float16': 2, 'int8': 1}


class Place(NamedTuple):
  """Where the rows of an update are in their table, whatever the mesh."""

  key: jax.Array | None  # [2] uint32, of the update
  ids: jax.Array  # [n] int32, of each row
  columns: jax.Array  # [d] int32
  axis: str | None = None  # of the mesh, over which the columns are split


class Old(NamedTuple):
  """Rows as they were before an update."""

  rows: jax.Array | None  # [n, d] float32, their values, if scales are learned
  scales: jax.Array | None  # [n] float32, of int8


def is_low(spec: spec_lib.TableSpec) -> bool:
  """Whether rows are kept in fewer bits than they are computed with."""
  return spec.dtype != 'float32'


def learns_scales(spec: spec_lib.TableSpec) -> bool:
  """Whether rows have scales that are learned."""
  return spec.dtype == 'int8' and spec.scales == 'learned'


def first_rows(
  spec: spec_lib.TableSpec,
  key: jax.Array,
  ids: jax.Array,
  columns: jax.Array,
) -> jax.Array:
  """[..., d] float32, how rows start; columns that only fill up are zero."""
  if not spec.init_scale:
    return jnp.zeros((*ids.shape, *columns.shape), jnp.float32)
  data = jax.random.key_data(key).reshape(-1)[:2]
  rows = sampling.uniform_rows(data, ids, columns, spec.init_scale)
  is_column = (columns < spec.dim).reshape(*[1] * ids.ndim, -1)
  return jnp.where(is_column, rows, 0.0)


def first_stored(
  spec: spec_lib.TableSpec,
  key: jax.Array,
  ids: jax.Array,
  columns: jax.Array,
  axis: str | None = None,
) -> Any:
  """`first_rows` as they are kept, rounded to the nearest.

  Args:
    spec: of the table.
    key: of the rows.
    ids: [n, ...] int32.
    columns: [d] int32.
    axis: of the mesh, over which the columns are split.
  """

  def block(ids):
    rows = first_rows(spec, key, ids, columns)
    if spec.dtype != 'int8':
      return rounding.encode(rows, spec.dtype)
    scales = _scales(spec, rows, axis)
    return rounding.encode(rows, spec.dtype, scales=scales)

  if not spec.init_scale:
    # XLA would add up the numbers of all rows while it compiles.
    return jax.tree.map(
      lambda x: jnp.broadcast_to(x, (len(ids), *x.shape[1:])), block(ids[:1])
    )
  size = max(1, _BLOCK_NUMBERS // (ids[0].size * columns.size))
  if spec.dtype != 'int8' or len(ids) <= size:
    return block(ids)

  # The largest number of a row comes before all others, and XLA would make all
  # rows of float32 to find it.
  def write(i, made):
    first = jnp.minimum(i * size, len(ids) - size)
    new = block(jax.lax.dynamic_slice_in_dim(ids, first, size))
    return jax.tree.map(
      lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, first, 0),
      made,
      new,
    )

  empty = jax.tree.map(
    lambda x: jnp.zeros((len(ids), *x.shape[1:]), x.dtype),
    jax.eval_shape(block, ids[:size]),
  )
  return jax.lax.fori_loop(0, -(-len(ids) // size), write, empty)


def _scales(
  spec: spec_lib.TableSpec,
  rows: jax.Array,
  axis: str | None,
  old: jax.Array | None = None,
) -> jax.Array:
  """[...] float32, scales that suit rows; the old ones where they do.

  Where columns are split, sums of squares may differ in the last place from
  those of one device, and once in a hundred thousand times so does a scale.
  """
  largest, spread = jnp.max(jnp.abs(rows), -1), None
  if axis is not None:
    largest = jax.lax.pmax(largest, axis)
  if spec.scales == 'learned':
    largest = jnp.maximum(largest, least_room(spec.dim))
  elif spec.scales == 'spread':
    squares = jnp.sum(rows * rows, -1)
    if axis is not None:
      squares = jax.lax.psum(squares, axis)
    # The squares of smaller numbers are nothing.
    spread = _SPREADS * jnp.sqrt(squares / spec.dim)
    spread = jnp.maximum(spread, _LEAST_SPREAD)
  return rounding.row_scales(largest, old, spread)


def least_room(dim: int) -> float:
  """What learned scales begin with where rows are zero, as vectors have."""
  return 0.5 / dim


def _new_scales(
  spec: spec_lib.TableSpec, rows: jax.Array, place: Place, old: Old | None
) -> jax.Array:
  """[n] float32, see `rounded`."""
  if old is None or not learns_scales(spec):
    scales = None if old is None else old.scales
    return _scales(spec, rows, place.axis, scales)
  steps = rounding.scale_steps(rows, rows - old.rows, old.scales)
  if place.axis is not None:
    steps = jax.lax.psum(steps, place.axis)
  return rounding.learned_scales(steps, old.scales, spec.dim)


def gather(vectors: Any, ids: jax.Array) -> Any:
  """Rows as they are kept; any for ids that are none."""
  return jax.tree.map(lambda x: x.at[ids].get(mode='clip'), vectors)


def read(spec: spec_lib.TableSpec, vectors: Any, ids: jax.Array) -> jax.Array:
  """[..., d] float32."""
  return rounding.decode(gather(vectors, ids), spec.dtype)


def rounded(
  spec: spec_lib.TableSpec,
  rows: jax.Array,
  place: Place,
  old: Old | None = None,
  scales: jax.Array | None = None,
) -> Any:
  """New values of rows, as they are kept.

  Args:
    spec: of the table.
    rows: [n, d] float32.
    place: of the rows.
    old: the rows before, whose scales stay where they do, or go on being
      learned.
    scales: [n] float32, of int8; None = what suits the rows.

  Raises:
    ValueError: if random bits are wanted and there is no key.
  """
  bits = None
  if spec.rounding == 'stochastic':
    if place.key is None:
      raise ValueError(f'table {spec.name!r} rounds at random and got no key')
    bits = rounding.random_bits(place.key, place.ids, place.columns)
  if spec.dtype == 'int8' and scales is None:
    scales = _new_scales(spec, rows, place, old)
  return rounding.encode(rows, spec.dtype, bits, scales)


def add(
  spec: spec_lib.TableSpec,
  vectors: Any,
  ids: jax.Array,
  deltas: jax.Array,
  are_unique: bool,
  place: Place,
  known: jax.Array | None = None,
) -> Any:
  """Adds to rows; padding is dropped.

  Args:
    spec: of the table.
    vectors: its rows as they are kept.
    ids: [n] int32, where they are kept.
    deltas: [n, d] float32.
    are_unique: whether all ids differ, as they do if precision is low.
    place: of the rows in the whole table.
    known: [n, d] float32, the values that the rows have; None = read here.
  """
  if not is_low(spec):
    return rowopt.add_rows(vectors, ids, deltas, are_unique)
  if known is None:
    known = read(spec, vectors, ids)
  scales = None
  if spec.dtype == 'int8':
    scales = vectors.scales.at[ids].get(mode='clip')
  new = rounded(spec, known + deltas, place, Old(known, scales))
  # All is read before anything is written, or XLA copies the table.
  new = jax.lax.optimization_barrier(new)
  return jax.tree.map(
    lambda x, y: x.at[ids].set(y, mode='drop', unique_indices=True),
    vectors,
    new,
  )


def sent_dtype(spec: spec_lib.TableSpec) -> str:
  """Of rows that travel: as kept where that is as short, else as wanted."""
  kept, wanted = spec.dtype, spec.exchange_dtype
  return kept if _BYTES[kept] <= _BYTES[wanted] else wanted


def to_send(spec: spec_lib.TableSpec, vectors: Any, ids: jax.Array) -> Any:
  """Rows as they travel, of `sent_dtype`; any for ids that are none."""
  rows, sent = gather(vectors, ids), sent_dtype(spec)
  if sent == spec.dtype:
    return rows
  return rounding.encode(rounding.decode(rows, spec.dtype), sent)


def gathered(tree: Any, names: list[str], dtype: str = 'float32') -> Any:
  """What the devices along these axes have, one behind the other.

  Args:
    tree: of arrays.
    names: of the axes.
    dtype: that rows of float32 travel in.
  """
  if not names:
    return tree

  def gather(x):
    is_rows = x.ndim == 2 and x.dtype == jnp.float32
    kept = dtype if is_rows else 'float32'
    x = rounding.encode(x, kept)
    return rounding.decode(
      jax.lax.all_gather(x, tuple(names), tiled=True), kept
    )

  return jax.tree.map(gather, tree)


def as_columns(tree: Any) -> Any:
  """Arrays [...] as [..., 1]."""
  return jax.tree.map(lambda x: x[..., None], tree)


def as_numbers(tree: Any) -> Any:
  """Arrays [..., 1] as [...]."""
  return jax.tree.map(lambda x: x[..., 0], tree)


def merged(
  row_grads: rowopt.RowGrads,
  vocab: int,
  merges_duplicates: bool,
  scratch: Any,
) -> tuple[rowopt.RowGrads, Any]:
  """Gradients as a table is to be written; and the scratch, if any, again."""
  has_scratch = not isinstance(scratch, tuple)
  if not (merges_duplicates or has_scratch):
    return row_grads, scratch
  columns = (row_grads.grads, as_columns(row_grads.squares))
  if merges_duplicates:
    found = duplicates.merge(row_grads.ids, columns, vocab)
  else:
    found, scratch = duplicates.merge_unsorted(
      row_grads.ids, columns, vocab, scratch
    )
  ids, occurrences, (grads, squares) = found
  row_grads = rowopt.RowGrads(ids, grads, as_numbers(squares), occurrences)
  return row_grads, scratch


def slots_of(spec: spec_lib.TableSpec, slots: Any) -> Any:
  """An optimizer's slots, without what a table of few bits needs not have."""
  if is_low(spec) and hasattr(slots, 'scratch'):
    # Duplicates are counted where they are summed. Not empty, see `rowopt.sgd`.
    return slots._replace(scratch=jnp.zeros(1, jnp.float32))
  return slots


def new_state(
  spec: spec_lib.TableSpec, vectors: Any, slots: Any
) -> spec_lib.TableState:
  """Of rows that each device looks up by id.

  Args:
    spec: of the table.
    vectors: as they are kept.
    slots: of its optimizer.
  """
  slots = slots_of(spec, slots)
  if not is_low(spec):
    return spec_lib.TableState(vectors, slots)
  # Also where duplicates are merged by sorting: a run may go on with the other
  # way, on another kind of device.
  return spec_lib.TableState(vectors, slots, jnp.zeros(spec.vocab, jnp.int32))


def partition(
  spec: spec_lib.TableSpec,
  vectors: jax.sharding.PartitionSpec,
  scales: jax.sharding.PartitionSpec,
  slots: Any,
  scratch: Any = (),
) -> spec_lib.TableState:
  """How a state lies on the mesh; scales are those of rows of int8."""
  if spec.dtype == 'int8':
    vectors = rounding.Scaled(vectors, scales)
  return spec_lib.TableState(vectors, slots, scratch if is_low(spec) else ())


def written(
  spec: spec_lib.TableSpec,
  optimizer: rowopt.RowOptimizer,
  state: spec_lib.TableState,
  row_grads: rowopt.RowGrads,
  place: Place,
  merges_duplicates: bool,
  learning_rate: jax.Array,
  figures: rowopt.Figures = rowopt.HERE,
  beyond: int = 0,
  known: jax.Array | None = None,
) -> spec_lib.TableState:
  """The state of a table whose rows each device has, after an update.

  Args:
    spec: of the table.
    optimizer: of its rows.
    state: before.
    row_grads: of all devices.
    place: of their rows.
    merges_duplicates: whether rows of float32 are written once as well.
    learning_rate: float32.
    figures: how the optimizer reaches the numbers of rows.
    beyond: how many of these only fill up.
    known: what a look-up of these ids gave; None = the rows are read again, as
      they are in any case where they are merged in another order.
  """
  row_grads, scratch = merged(
    row_grads, spec.vocab, merges_duplicates, state.scratch
  )
  # Padding is none of the rows that only fill up, either.
  ids = row_grads.ids + beyond * (row_grads.ids >= spec.vocab)
  deltas, slots = optimizer.update(
    state.slots, row_grads._replace(ids=ids), learning_rate, figures
  )
  place = place._replace(ids=ids)
  if known is not None:
    known = None if merges_duplicates else known.reshape(deltas.shape)
  vectors = add(
    spec, state.vectors, ids, deltas, merges_duplicates, place, known
  )
  return spec_lib.TableState(vectors, slots, scratch)
