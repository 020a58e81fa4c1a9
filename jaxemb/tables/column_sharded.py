"""Column layout: every device holds its share of the columns of all rows.

Rows never travel (Ordentlich et al. 2016): models sum products of rows over the
table axis, and gradients stay where they are. What an optimizer keeps one
number of for each row is split by rows instead.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxemb.ops import wire
from jaxemb.tables import apply, codecs, replicated, row_optimizers
from jaxemb.tables import spec as spec_lib

_ROWS_MULTIPLE = 256  # of arrays of one number per row; most meshes divide it


def num_scalars(vocab: int) -> int:
  """Length of arrays of one number per row, on all devices together."""
  return -(-vocab // _ROWS_MULTIPLE) * _ROWS_MULTIPLE


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnSharded(spec_lib.Table):
  """A table whose columns are split along the table axis.

  Columns are padded with zeros to a multiple of the devices. All devices of a
  table axis look up the same ids.

  Attributes:
    spec: its size, initial values and precision.
    optimizer: of its rows.
    axes: of the mesh.
    deduplicates: whether an update writes each row once.
  """

  spec: spec_lib.TableSpec
  optimizer: row_optimizers.RowOptimizer
  axes: spec_lib.Axes = spec_lib.Axes()
  deduplicates: bool = False

  @property
  def codec(self) -> codecs.Codec:
    num = self.axes.num_table
    return codecs.Codec(self.spec, self.axes.table if num > 1 else None, num)

  @property
  def slot_reductions(self) -> Mapping[str, str]:
    return self.optimizer.slot_reductions

  @property
  def num_scalars(self) -> int:
    return num_scalars(self.spec.vocab)

  @property
  def splits_scalars(self) -> bool:
    """Whether devices share these evenly; otherwise all have all of them."""
    num = self.axes.num_table
    return num > 1 and self.num_scalars % num == 0

  @property
  def own_scalars(self) -> int:
    """Those of a device."""
    num = self.axes.num_table if self.splits_scalars else 1
    return self.num_scalars // num

  def _new_slots(self) -> row_optimizers.Slots:
    return self.optimizer.init(
      self.spec.vocab, self.codec.dim, self.own_scalars
    )

  @property
  def partition(self) -> spec_lib.TableState:
    everywhere = jax.sharding.PartitionSpec()
    columns = jax.sharding.PartitionSpec(None, self.axes.table)
    by_shape = {(self.spec.vocab, self.codec.dim): columns}
    if self.splits_scalars:
      rows = jax.sharding.PartitionSpec(self.axes.table)
      by_shape[(self.own_scalars,)] = rows
    slots = jax.eval_shape(
      lambda: apply.slots_of(self.codec, self._new_slots())
    )
    return spec_lib.TableState(
      self.codec.partition(columns, everywhere),
      jax.tree.map(lambda x: by_shape.get(x.shape, everywhere), slots),
      () if self.codec.is_float32 else everywhere,
    )

  def init(self, key: jax.Array) -> spec_lib.TableState:
    vectors = self.codec.init(key, jnp.arange(self.spec.vocab))
    return apply.new_state(self.codec, vectors, self._new_slots())

  def lookup(self, state, ids: jax.Array) -> spec_lib.Lookup:
    return spec_lib.Lookup(self.codec.read(state.vectors, ids), state)

  def update(self, state, ids, row_grads, rows, step):
    ids, row_grads = apply.flatten(ids, row_grads)
    squares = apply.squares(self.optimizer, row_grads)
    if self.axes.num_table > 1 and squares is not None:
      share = self.codec.dim / self.spec.dim
      squares = jax.lax.psum(squares * share, self.axes.table)
    names = self.axes.names(with_table=False)
    gathered = wire.all_gather(
      (ids, row_grads, squares), names, self.spec.exchange_dtype
    )
    scalars = row_optimizers.LOCAL
    if self.splits_scalars:
      scalars = row_optimizers.sharded_scalars(
        self.own_scalars, self.axes.table
      )
    return apply.gradients(
      self.codec,
      self.optimizer,
      state,
      row_optimizers.RowGrads(*gathered),
      step,
      self.deduplicates,
      None if names else rows,
      scalars,
      self.num_scalars - self.spec.vocab,
    )

  def read_range(self, state, start, num: int) -> spec_lib.RowRange:
    return replicated.read_range(self, state, start, num)

  def write_range(self, state, start, rows, encoding, key):
    return replicated.write_range(self, state, start, rows, encoding, key)

  def write_rows(self, state, ids, rows, slots):
    return replicated.write_rows(self, state, ids, rows, slots)
