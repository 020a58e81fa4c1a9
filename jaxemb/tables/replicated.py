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

import jax
import jax.numpy as jnp

from jaxemb.ops import rounding, wire
from jaxemb.tables import codecs, dedup, row_optimizers
from jaxemb.tables import spec as spec_lib

_ROWS_MULTIPLE = 256  # of arrays of one number per row; most meshes divide it


def num_scalars(vocab: int) -> int:
  """Length of arrays of one number per row where columns are split."""
  return -(-vocab // _ROWS_MULTIPLE) * _ROWS_MULTIPLE


@dataclasses.dataclass(frozen=True, eq=False)
class Replicated(spec_lib.Table):
  """A table of which every device has all rows.

  Each device looks up ids of its own, along both axes of the mesh.
  """

  spec: spec_lib.TableSpec
  optimizer: row_optimizers.RowOptimizer
  axes: spec_lib.Axes = spec_lib.Axes()
  deduplicates: bool = False  # whether an update writes each row once

  splits_columns = False

  @property
  def _is_float32(self) -> bool:
    return self.spec.dtype == 'float32'

  @property
  def _num_splits(self) -> int:
    return self.axes.num_table if self.splits_columns else 1

  @property
  def _codec(self) -> codecs.Codec:
    axis = self.axes.table if self._num_splits > 1 else None
    return codecs.Codec(self.spec, axis, self._num_splits)

  def _num_scalars(self) -> tuple[int, int]:
    """Length of arrays of one number per row, of all devices and of one."""
    if not self.splits_columns:
      return self.spec.vocab, self.spec.vocab
    num, splits = num_scalars(self.spec.vocab), self._num_splits
    return num, num // splits if num % splits == 0 else num

  def _new_slots(self) -> row_optimizers.Slots:
    _, num_scalars = self._num_scalars()
    slots = self.optimizer.init(self.spec.vocab, self._codec.dim, num_scalars)
    if not self._is_float32 and hasattr(slots, 'scratch'):
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
    all_scalars, own_scalars = self._num_scalars()
    if own_scalars < all_scalars:
      by_shape[(own_scalars,)] = type(columns)(self.axes.table)
    return spec_lib.TableState(
      self._codec.partition(columns, everywhere),
      jax.tree.map(
        lambda x: by_shape.get(x.shape, everywhere),
        jax.eval_shape(self._new_slots),
      ),
      () if self._is_float32 else everywhere,
    )

  def init(self, key):
    vectors = self._codec.init(key, jnp.arange(self.spec.vocab))
    # Scratch also where duplicates are summed by sorting: a run may be resumed
    # on another kind of device.
    scratch = () if self._is_float32 else jnp.zeros(self.spec.vocab, jnp.int32)
    return spec_lib.TableState(vectors, self._new_slots(), scratch)

  def lookup(self, state, ids):
    if self._is_float32:
      rows = row_optimizers.gather(state.vectors, ids)
    else:
      stored = codecs.gather(state.vectors, ids)
      rows = rounding.decode(stored, self.spec.dtype)
    return spec_lib.Lookup(rows, state)

  def update(self, state, ids, row_grads, rows, step):
    axes, uses_squares = self.axes, self.optimizer.uses_squares
    names, squares = [], None
    if axes.num_data * axes.num_table > 1:
      names = axes.names(with_table=not self.splits_columns)
    if names:
      rows = None  # those of this device alone
      ids, row_grads = row_optimizers.flatten(ids, row_grads)
    if self._num_splits > 1 and uses_squares:
      share = self._codec.dim / self.spec.dim
      squares = row_optimizers.mean_squares(row_grads) * share
      squares = jax.lax.psum(squares, axes.table)
    if names:
      ids, row_grads, squares = wire.all_gather(
        (ids, row_grads, squares), names, self.spec.exchange_dtype
      )
    if squares is None and uses_squares:
      squares = row_optimizers.mean_squares(row_grads)
    row_grads = row_optimizers.RowGrads(ids, row_grads, squares)
    (vectors, slots, scratch), vocab = state, self.spec.vocab
    if self.deduplicates:
      rows = None  # dedup changes the order
      row_grads = dedup.by_sorting(row_grads, vocab)
    elif not self._is_float32:
      row_grads, scratch = dedup.by_scratch(row_grads, vocab, scratch)
    ids, scalars = row_grads.ids, row_optimizers.LOCAL
    all_scalars, own_scalars = self._num_scalars()
    if all_scalars > vocab:  # padding must not hit scalars of no row, either
      ids += (all_scalars - vocab) * (ids >= vocab)
    if own_scalars < all_scalars:
      scalars = row_optimizers.RowScalars(own_scalars, axes.table)
    row_grads = row_grads._replace(ids=ids)
    rate, is_unique = step.learning_rate, self.deduplicates
    deltas, slots = self.optimizer.update(slots, row_grads, rate, scalars)
    if self._is_float32:
      vectors = row_optimizers.add_rows(vectors, ids, deltas, is_unique)
    else:
      if rows is not None:
        rows = rows.reshape(deltas.shape)
      vectors = self._codec.add(vectors, ids, deltas, ids, step.key, rows)
    return spec_lib.TableState(vectors, slots, scratch)

  def read_range(self, state, start, num):
    def cut(x):
      x = jax.lax.dynamic_slice_in_dim(x, start, num)
      return x[:, : self.spec.dim] if x.ndim > 1 else x

    slots = {k: getattr(state.slots, k, None) for k in self.slot_reductions}
    return jax.tree.map(cut, (state.vectors, slots))

  def write_range(self, state, start, rows, encoding, key):
    ids = start + jnp.arange(len(rows))
    new = self._codec.encode(rows, ids, key, encoding)
    return state._replace(vectors=codecs.put(state.vectors, start, new))

  def positions(self, ids):
    return (ids,)


class SplitColumns(Replicated):
  """A table whose columns are split along the table axis.

  They are padded with zeros to as many on every device. Devices of the table
  axis look up the same ids.
  """

  splits_columns = True
