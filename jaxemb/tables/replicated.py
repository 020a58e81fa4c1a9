"""Replicated and column layouts: every device has all rows, or columns of them.

Lookups are local, and the row gradients of all devices that look up ids of
their own are gathered: every copy applies all of them, so that copies stay
equal. Where columns are split along the table axis (Ordentlich et al. 2016),
rows and gradients never travel along it: models sum products of rows. What an
optimizer keeps one number of for each row is then split by rows.

One gather and one scatter per step: XLA may copy a whole table that is gathered
or scattered twice, or whose gather is fused past the scatter, so callers
concatenate ids and put an `optimization_barrier` behind their lookups.

An id that was looked up several times is written as often where that is cheap,
and once, with the sum of its gradients, where it is not (GPUs; low precision).
The two agree but for the order in which sums are rounded.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxemb.ops import rounding, wire
from jaxemb.tables import codecs, dedup, row_optimizers
from jaxemb.tables import spec as spec_lib

_ROWS_MULTIPLE = 256  # of arrays of one number per row; most meshes divide it


def num_scalars(vocab: int) -> int:
  """Length of arrays of one number per row where columns are split."""
  return -(-vocab // _ROWS_MULTIPLE) * _ROWS_MULTIPLE


def by_columns(
  spec: spec_lib.TableSpec,
  optimizer: row_optimizers.RowOptimizer,
  axes: spec_lib.Axes,
  deduplicates: bool,
) -> 'Replicated':
  """A table whose columns are split over the table axis."""
  return Replicated(spec, optimizer, axes, deduplicates, True)


@dataclasses.dataclass(frozen=True, eq=False)
class Replicated(spec_lib.Table):
  """A table of which every device has all rows, or its columns of all rows.

  Attributes:
    spec: size, initial values and precision.
    optimizer: of its rows.
    axes: of the mesh; each device looks up ids of its own.
    deduplicates: whether an update writes each row once.
    splits_columns: whether devices along the table axis share the columns,
      padded with zeros to a multiple of them, and look up the same ids.
  """

  spec: spec_lib.TableSpec
  optimizer: row_optimizers.RowOptimizer
  axes: spec_lib.Axes = spec_lib.Axes()
  deduplicates: bool = False
  splits_columns: bool = False

  @property
  def slot_reductions(self) -> Mapping[str, str]:
    return self.optimizer.slot_reductions

  @property
  def _num_splits(self) -> int:
    return self.axes.num_table if self.splits_columns else 1

  @property
  def _codec(self) -> codecs.Codec:
    axis = self.axes.table if self._num_splits > 1 else None
    return codecs.Codec(self.spec, axis, self._num_splits)

  @property
  def _num_scalars(self) -> int:
    """Length of arrays of one number per row, on all devices together."""
    vocab = self.spec.vocab
    return num_scalars(vocab) if self.splits_columns else vocab

  @property
  def _splits_scalars(self) -> bool:
    """Whether devices share these evenly; otherwise all have all of them."""
    return self._num_splits > 1 and self._num_scalars % self._num_splits == 0

  @property
  def _own_scalars(self) -> int:
    return self._num_scalars // (
      self._num_splits if self._splits_scalars else 1
    )

  def _new_slots(self) -> row_optimizers.Slots:
    codec = self._codec
    slots = self.optimizer.init(self.spec.vocab, codec.dim, self._own_scalars)
    if not codec.is_float32 and hasattr(slots, 'scratch'):
      # Counts come from `dedup`. Not empty: JAX loses the sharding of that.
      return slots._replace(scratch=jnp.zeros(1, jnp.float32))
    return slots

  @property
  def partition(self) -> spec_lib.TableState:
    everywhere = columns = jax.sharding.PartitionSpec()
    by_shape = {}
    if self.splits_columns:
      columns = jax.sharding.PartitionSpec(None, self.axes.table)
      by_shape = {(self.spec.vocab, self._codec.dim): columns}
    if self._splits_scalars:
      by_shape[(self._own_scalars,)] = type(columns)(self.axes.table)
    return spec_lib.TableState(
      self._codec.partition(columns, everywhere),
      jax.tree.map(
        lambda x: by_shape.get(x.shape, everywhere),
        jax.eval_shape(self._new_slots),
      ),
      () if self._codec.is_float32 else everywhere,
    )

  def init(self, key: jax.Array) -> spec_lib.TableState:
    vectors = self._codec.init(key, jnp.arange(self.spec.vocab))
    if self._codec.is_float32:
      return spec_lib.TableState(vectors, self._new_slots())
    # Also where duplicates are summed by sorting: a run may be resumed on
    # another kind of device.
    scratch = jnp.zeros(self.spec.vocab, jnp.int32)
    return spec_lib.TableState(vectors, self._new_slots(), scratch)

  def lookup(self, state, ids: jax.Array) -> spec_lib.Lookup:
    return spec_lib.Lookup(self._codec.read(state.vectors, ids), state)

  def update(self, state, ids, row_grads, rows, step) -> spec_lib.TableState:
    names = self.axes.names(with_table=not self.splits_columns)
    if names:
      rows = None  # those of this device alone
      ids, row_grads = row_optimizers.flatten(ids, row_grads)
    squares = None
    if self._num_splits > 1 and self.optimizer.uses_squares:
      share = self._codec.dim / self.spec.dim
      squares = row_optimizers.mean_squares(row_grads) * share
      squares = jax.lax.psum(squares, self.axes.table)
    ids, row_grads, squares = wire.all_gather(
      (ids, row_grads, squares), names, self.spec.exchange_dtype
    )
    if squares is None and self.optimizer.uses_squares:
      squares = row_optimizers.mean_squares(row_grads)
    return self._apply(
      state, row_optimizers.RowGrads(ids, row_grads, squares), rows, step
    )

  def _apply(self, state, row_grads, rows, step) -> spec_lib.TableState:
    """Applies gradients of all devices; rows are the values before, or None."""
    vocab, codec, scratch = self.spec.vocab, self._codec, state.scratch
    if self.deduplicates:
      rows = None  # dedup changes the order
      row_grads = dedup.by_sorting(row_grads, vocab)
    elif not codec.is_float32:
      row_grads, scratch = dedup.by_scratch(row_grads, vocab, scratch)
    # Padding must not hit scalars of no row, either.
    spare = self._num_scalars - vocab
    ids = row_grads.ids + spare * (row_grads.ids >= vocab)
    scalars = row_optimizers.LOCAL
    if self._splits_scalars:
      scalars = row_optimizers.sharded_scalars(
        self._own_scalars, self.axes.table
      )
    deltas, slots = self.optimizer.update(
      state.slots, row_grads._replace(ids=ids), step.learning_rate, scalars
    )
    if rows is not None:
      rows = rows.reshape(deltas.shape)
    vectors = codec.add(
      state.vectors, ids, deltas, ids, step.key, self.deduplicates, rows
    )
    return spec_lib.TableState(vectors, slots, scratch)

  def read_range(self, state, start, num: int) -> spec_lib.RowRange:
    def cut(x):
      x = jax.lax.dynamic_slice_in_dim(x, start, num)
      return x[:, : self.spec.dim] if x.ndim > 1 else x

    stored = jax.tree.map(cut, state.vectors)
    slots = {
      name: cut(getattr(state.slots, name))
      for name in self.slot_reductions
      if hasattr(state.slots, name)
    }
    codec = self._codec
    return spec_lib.RowRange(
      codec.decode(stored), stored, codec.encoding_of(stored), slots
    )

  def write_range(self, state, start, rows, encoding, key):
    ids = start + jnp.arange(len(rows))
    new = self._codec.encode(rows, ids, key, encoding)
    return state._replace(vectors=codecs.put(state.vectors, start, new))

  def write_rows(self, state, ids, rows, slots):
    def put(array, new):
      if array.ndim > 1:
        new = jnp.pad(new, ((0, 0), (0, array.shape[1] - new.shape[1])))
      return array.at[ids].set(new, mode='drop')

    new = rounding.encode(rows, self.spec.dtype)
    vectors = jax.tree.map(put, state.vectors, new)
    changed = {k: put(getattr(state.slots, k), v) for k, v in slots.items()}
    if changed:
      state = state._replace(slots=state.slots._replace(**changed))
    return state._replace(vectors=vectors)
