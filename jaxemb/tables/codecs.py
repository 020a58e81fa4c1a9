"""Rows of low precision: bfloat16, float16 and row-scaled int8.

Arithmetic is float32: a row is read and widened, the sum of a step's updates is
added, and it is rounded and written once per step (Zhang, Yang and Yuen 2018).
Of float32 rows, which are added to in place, a codec makes the initial values.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.ops import rounding, sampling
from jaxemb.tables import row_access, row_optimizers
from jaxemb.tables import spec as spec_lib

_TABLE = spec_lib.Axes.table
_BLOCK_NUMBERS = 1 << 22  # int8 rows are initialised from so many float32
# int8 clips what is beyond 2.2 root mean squares of its row: rounding noise is
# proportional to the step size, and coarser steps cost more than clipping.
_MAX_RMS = 2.2
_MIN_ROOM = 1e-18  # squares of smaller numbers underflow


def gather(
  vectors: Any, ids: jax.Array, copies: row_access.Copies | None = None
) -> Any:
  """Returns stored rows of ids; arbitrary ones of padding."""
  return jax.tree.map(lambda x: row_access.gather(x, ids, copies), vectors)


def encoding_of(stored: Any) -> jax.Array | None:
  """Returns what else encodes stored rows: the scales of int8."""
  return getattr(stored, 'scales', None)


def put(arrays: Any, start: jax.Array, new: Any) -> Any:
  """Writes elements of each array from `start` on."""
  return jax.tree.map(
    lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, start, 0),
    arrays,
    new,
  )


@dataclasses.dataclass(frozen=True)
class Codec:
  """How a table encodes its rows."""

  spec: spec_lib.TableSpec
  num_splits: int = 1  # devices of the table axis that split columns

  @property
  def dim(self) -> int:
    """Columns of a device; padded to the same number on all."""
    return -(-self.spec.dim // self.num_splits)

  def columns(self) -> jax.Array:
    """Returns [d] int32, the columns of this device."""
    first = jax.lax.axis_index(_TABLE) if self.num_splits > 1 else 0
    return self.dim * first + jnp.arange(self.dim)

  def partition(self, vectors: Any, scales: Any) -> Any:
    """Returns `PartitionSpec`s of stored rows, given those of the arrays."""
    is_scaled = self.spec.dtype == 'int8'
    return rounding.Scaled(vectors, scales) if is_scaled else vectors

  def _first_rows(self, key: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns [..., d] float32, initial values; padding columns are zero."""
    columns = self.columns()
    if not self.spec.init_scale:
      return jnp.zeros((*ids.shape, *columns.shape), jnp.float32)
    data = jax.random.key_data(key).reshape(-1)[:2]
    rows = sampling.uniform_rows(data, ids, columns, scale=self.spec.init_scale)
    is_column = (columns < self.spec.dim).reshape(*[1] * ids.ndim, -1)
    return jnp.where(is_column, rows, 0.0)

  def init(self, key: jax.Array, ids: jax.Array) -> Any:
    """Returns stored initial rows of ids [n, ...], rounded to nearest."""
    dtype = self.spec.dtype

    def block(ids):
      rows = self._first_rows(key, ids)
      scales = self._scales(rows) if dtype == 'int8' else None
      return rounding.encode(rows, dtype, scales=scales)

    def repeated(row):
      return jnp.broadcast_to(row, (len(ids), *row.shape[1:]))

    if not self.spec.init_scale:
      # XLA would add up the numbers of all rows at compile time.
      return jax.tree.map(repeated, block(ids[:1]))
    size = max(1, _BLOCK_NUMBERS // (ids[0].size * self.dim))
    if dtype != 'int8' or len(ids) <= size:
      return block(ids)

    # Scales need whole rows, and XLA would hold the whole table as float32.
    def write(i, rows):
      first = jnp.minimum(i * size, len(ids) - size)
      new = block(jax.lax.dynamic_slice_in_dim(ids, first, size))
      return put(rows, first, new)

    empty = jax.eval_shape(lambda: jax.tree.map(repeated, block(ids[:1])))
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), empty)
    return jax.lax.fori_loop(0, -(-len(ids) // size), write, empty)

  def encode(
    self,
    rows: jax.Array,
    ids: jax.Array,
    key: jax.Array | None,
    encoding: jax.Array | None = None,
  ) -> Any:
    """Rounds rows [n, d] float32 of ids [n] to storage.

    The encoding of the old rows (`encoding_of`) stays where it fits.
    """
    dtype, bits, scales = self.spec.dtype, None, None
    if dtype == 'float32':
      return rows
    if self.spec.rounding == 'stochastic':
      assert key is not None
      bits = rounding.random_bits(key, ids, self.columns())
    if dtype == 'int8':
      scales = self._scales(rows, encoding)
    return rounding.encode(rows, dtype, bits, scales=scales)

  def _scales(self, rows: jax.Array, old: jax.Array | None = None) -> jax.Array:
    """Returns [...] float32, scales of rows [..., d], old ones where they fit.

    Where columns are split, sums round differently, and so 1 in 100,000 scales.
    """
    largest, squares = jnp.max(jnp.abs(rows), -1), jnp.sum(rows * rows, -1)
    if self.num_splits > 1:
      largest = jax.lax.pmax(largest, _TABLE)
      squares = jax.lax.psum(squares, _TABLE)
    room = _MAX_RMS * jnp.sqrt(squares / self.spec.dim)
    return rounding.row_scales(largest, old, jnp.maximum(room, _MIN_ROOM))

  def learn(
    self,
    optimizer: row_optimizers.RowOptimizer,
    state: tuple[Any, Any],
    row_grads: row_optimizers.RowGrads,
    step: spec_lib.Step,
    copies: row_access.Copies | None,
    rows: jax.Array | None = None,
    ids_at: Callable[[jax.Array], jax.Array] = lambda positions: positions,
  ) -> tuple[Any, Any]:
    """Returns stored rows and optimizer state after gradients; see `Table`.

    `row_grads` have positions in this device's arrays for ids, which `ids_at`
    returns; those of padding are outside. `rows` are what is read there, if it
    is known. Rows of low precision come once.
    """
    (vectors, opt_state), positions = state, row_grads.ids
    dtype, shape = self.spec.dtype, row_grads.grads.shape
    decay = optimizer.decay
    if decay:
      if rows is None:
        rows = rounding.decode(gather(vectors, positions, copies), dtype)
        rows = jax.lax.optimization_barrier(rows)
      row_grads = row_optimizers.decayed(row_grads, rows.reshape(shape), decay)
    deltas, opt_state = optimizer.update(
      opt_state, row_grads, step.learning_rate
    )
    if dtype == 'float32':
      return row_access.add(
        vectors,
        positions,
        rows=deltas,
        are_unique=row_grads.counts is not None,
        copies=copies,
        old=rows,
      ), opt_state
    if rows is None:
      rows = rounding.decode(gather(vectors, positions), dtype)
    new = self.encode(
      rows.reshape(shape) + deltas,
      ids_at(positions),
      step.key,
      encoding=gather(encoding_of(vectors), positions),
    )
    # All is read before anything is written, or XLA copies the table.
    new = jax.lax.optimization_barrier(new)
    return jax.tree.map(
      lambda x, y: row_access.put(x, ids=positions, rows=y), vectors, new
    ), opt_state
