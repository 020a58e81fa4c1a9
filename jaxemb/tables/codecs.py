"""Row storage: float32, bfloat16, float16 and row-scaled int8.

Storage is low precision, arithmetic is float32: a row is read and widened, the
sum of a step's updates is added to it, and it is rounded and written, once in a
step (Zhang, Yang and Yuen 2018). float32 rows are added to in place.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.ops import rounding, sampling
from jaxemb.tables import row_optimizers
from jaxemb.tables import spec as spec_lib

_BLOCK_NUMBERS = 1 << 22  # int8 rows are initialised from so many float32
# int8 clips what is beyond 2.2 root mean squares of its row: rounding noise is
# proportional to the step size, and coarser steps cost more than clipping.
_MAX_RMS = 2.2
_MIN_ROOM = 1e-18  # squares of smaller numbers underflow
_BYTES = {'float32': 4, 'bfloat16': 2, 'float16': 2, 'int8': 1}


def sent_dtype(spec: spec_lib.TableSpec) -> str:
  """Of rows between devices: of storage and exchange, the narrower."""
  return min(spec.dtype, spec.exchange_dtype, key=_BYTES.__getitem__)


@dataclasses.dataclass(frozen=True)
class Codec:
  """How a table encodes its rows.

  Attributes:
    spec: of the table.
    axis: mesh axis over which columns are split, if any.
    num_splits: devices along that axis.
  """

  spec: spec_lib.TableSpec
  axis: str | None = None
  num_splits: int = 1

  @property
  def is_float32(self) -> bool:
    """Whether rows are stored as they are computed with."""
    return self.spec.dtype == 'float32'

  @property
  def dim(self) -> int:
    """Columns of a device; padded to the same number on all."""
    return -(-self.spec.dim // self.num_splits)

  def columns(self) -> jax.Array:
    """[d] int32, the columns of this device."""
    first = jax.lax.axis_index(self.axis) if self.axis else 0
    return self.dim * first + jnp.arange(self.dim)

  def partition(self, vectors: Any, scales: Any) -> Any:
    """`PartitionSpec`s of stored rows, given those of the arrays."""
    if self.spec.dtype == 'int8':
      return rounding.Scaled(vectors, scales)
    return vectors

  def _first_rows(self, key: jax.Array, ids: jax.Array) -> jax.Array:
    """[..., d] float32, initial values; padding columns are zero."""
    columns = self.columns()
    if not self.spec.init_scale:
      return jnp.zeros((*ids.shape, *columns.shape), jnp.float32)
    data = jax.random.key_data(key).reshape(-1)[:2]
    rows = sampling.uniform_rows(data, ids, columns, self.spec.init_scale)
    is_column = (columns < self.spec.dim).reshape(*[1] * ids.ndim, -1)
    return jnp.where(is_column, rows, 0.0)

  def init(self, key: jax.Array, ids: jax.Array) -> Any:
    """Stored initial rows of ids [n, ...], rounded to nearest."""

    def block(ids):
      rows = self._first_rows(key, ids)
      if self.spec.dtype != 'int8':
        return rounding.encode(rows, self.spec.dtype)
      return rounding.encode(rows, 'int8', scales=self._scales(rows))

    if not self.spec.init_scale:
      # XLA would add up the numbers of all rows at compile time.
      return jax.tree.map(
        lambda x: jnp.broadcast_to(x, (len(ids), *x.shape[1:])), block(ids[:1])
      )
    size = max(1, _BLOCK_NUMBERS // (ids[0].size * self.dim))
    if self.spec.dtype != 'int8' or len(ids) <= size:
      return block(ids)

    # Scales need whole rows, and XLA would hold the whole table as float32.
    def write(i, made):
      first = jnp.minimum(i * size, len(ids) - size)
      new = block(jax.lax.dynamic_slice_in_dim(ids, first, size))
      return put(made, first, new)

    empty = jax.tree.map(
      lambda x: jnp.zeros((len(ids), *x.shape[1:]), x.dtype),
      jax.eval_shape(block, ids[:size]),
    )
    return jax.lax.fori_loop(0, -(-len(ids) // size), write, empty)

  def decode(self, stored: Any) -> jax.Array:
    """[..., d] float32, exact."""
    return rounding.decode(stored, self.spec.dtype)

  def encode(
    self,
    rows: jax.Array,
    ids: jax.Array,
    key: jax.Array | None,
    encoding: jax.Array | None = None,
  ) -> Any:
    """Rounds rows [n, d] to storage.

    Args:
      rows: float32.
      ids: [n] int32, of the rows.
      key: [2] uint32, of the step.
      encoding: of the rows before, see `encoding_of`.

    Raises:
      ValueError: Rounding is stochastic, and there is no key.
    """
    if self.is_float32:
      return rows
    bits = scales = None
    if self.spec.rounding == 'stochastic':
      if key is None:
        raise ValueError(
          f'table {self.spec.name!r} rounds stochastically and got no key'
        )
      bits = rounding.random_bits(key, ids, self.columns())
    if self.spec.dtype == 'int8':
      scales = self._scales(rows, encoding)
    return rounding.encode(rows, self.spec.dtype, bits, scales)

  def encoding_of(self, stored: Any) -> jax.Array | None:
    """The scales of int8 rows; other rows have none."""
    return stored.scales if self.spec.dtype == 'int8' else None

  def _scales(self, rows: jax.Array, old: jax.Array | None = None) -> jax.Array:
    """[...] float32, scales of rows [..., d]; the old ones where they fit.

    Where columns are split, sums of squares round in another order, so that a
    scale differs from that of one device once in a hundred thousand times.
    """
    largest, squares = jnp.max(jnp.abs(rows), -1), jnp.sum(rows * rows, -1)
    if self.axis is not None:
      largest = jax.lax.pmax(largest, self.axis)
      squares = jax.lax.psum(squares, self.axis)
    room = _MAX_RMS * jnp.sqrt(squares / self.spec.dim)
    return rounding.row_scales(largest, old, jnp.maximum(room, _MIN_ROOM))

  def read(self, vectors: Any, ids: jax.Array) -> jax.Array:
    """[..., d] float32, rows of ids [...]; arbitrary ones of padding."""
    return self.decode(gather(vectors, ids))

  def add(
    self,
    vectors: Any,
    at: jax.Array,
    deltas: jax.Array,
    ids: jax.Array,
    key: jax.Array | None,
    are_unique: bool,
    rows: jax.Array | None = None,
  ) -> Any:
    """Adds to stored rows; padding is ignored.

    Args:
      vectors: stored rows.
      at: [n] int32, where the rows are stored on this device.
      deltas: [n, d] float32.
      ids: [n] int32, of the rows.
      key: [2] uint32, of the step.
      are_unique: whether all of `at` differ; always so in low precision.
      rows: [n, d] float32, values before, if they are known.
    """
    if self.is_float32:
      return row_optimizers.add_rows(vectors, at, deltas, are_unique)
    if rows is None:
      rows = self.read(vectors, at)
    encoding = self.encoding_of(vectors)
    if encoding is not None:
      encoding = encoding.at[at].get(mode='clip')
    new = self.encode(rows + deltas, ids, key, encoding)
    # All is read before anything is written, or XLA copies the table.
    new = jax.lax.optimization_barrier(new)
    return jax.tree.map(
      lambda x, y: x.at[at].set(y, mode='drop', unique_indices=True),
      vectors,
      new,
    )


def gather(vectors: Any, ids: jax.Array) -> Any:
  """Stored rows of ids; arbitrary ones of padding."""
  return jax.tree.map(lambda x: x.at[ids].get(mode='clip'), vectors)


def put(arrays: Any, start: jax.Array, new: Any) -> Any:
  """Writes elements of each array from `start` on."""
  return jax.tree.map(
    lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, start, 0),
    arrays,
    new,
  )
