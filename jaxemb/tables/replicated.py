"""Replicated layout: every device holds all rows.

Lookups are local; the gradients of the rows that were looked up are gathered
from all devices, each of which applies all of them, so that copies stay equal.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxemb.ops import rounding, wire
from jaxemb.tables import apply, codecs, row_optimizers
from jaxemb.tables import spec as spec_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Replicated(spec_lib.Table):
  """A table of which every device holds all rows.

  Attributes:
    spec: its size, initial values and precision.
    optimizer: of its rows.
    axes: of the mesh; each device looks up ids of its own.
    deduplicates: whether an update writes each row once.
  """

  spec: spec_lib.TableSpec
  optimizer: row_optimizers.RowOptimizer
  axes: spec_lib.Axes = spec_lib.Axes()
  deduplicates: bool = False

  @property
  def codec(self) -> codecs.Codec:
    return codecs.Codec(self.spec)

  @property
  def slot_reductions(self) -> Mapping[str, str]:
    return self.optimizer.slot_reductions

  @property
  def partition(self) -> spec_lib.TableState:
    everywhere = jax.sharding.PartitionSpec()
    return spec_lib.TableState(
      self.codec.partition(everywhere, everywhere),
      everywhere,
      () if self.codec.is_float32 else everywhere,
    )

  def init(self, key: jax.Array) -> spec_lib.TableState:
    vectors = self.codec.init(key, jnp.arange(self.spec.vocab))
    slots = self.optimizer.init(self.spec.vocab, self.spec.dim)
    return apply.new_state(self.codec, vectors, slots)

  def lookup(self, state, ids: jax.Array) -> spec_lib.Lookup:
    return spec_lib.Lookup(self.codec.read(state.vectors, ids), state)

  def update(self, state, ids, row_grads, rows, step):
    if names := self.axes.names():
      rows = None  # those of this device alone
      ids, row_grads = wire.all_gather(
        apply.flatten(ids, row_grads), names, self.spec.exchange_dtype
      )
    squares = apply.squares(self.optimizer, row_grads)
    row_grads = row_optimizers.RowGrads(ids, row_grads, squares)
    return apply.gradients(
      self.codec,
      self.optimizer,
      state,
      row_grads,
      step,
      self.deduplicates,
      rows,
    )

  def read_range(self, state, start, num: int) -> spec_lib.RowRange:
    return read_range(self, state, start, num)

  def write_range(self, state, start, rows, encoding, key):
    return write_range(self, state, start, rows, encoding, key)

  def write_rows(self, state, ids, rows, slots):
    return write_rows(self, state, ids, rows, slots)


# What follows also serves the column layout, whose rows may be padded.


def read_range(table, state, start, num: int) -> spec_lib.RowRange:
  """See `spec.Table`; of arrays in order of ids."""
  dim, codec = table.spec.dim, table.codec

  def without_padding(x):
    return x[:, :dim] if x.ndim > 1 else x

  stored = codecs.cut(state.vectors, start, num)
  stored = jax.tree.map(without_padding, stored)
  slots = {
    name: without_padding(codecs.cut(getattr(state.slots, name), start, num))
    for name in table.slot_reductions
    if hasattr(state.slots, name)
  }
  rows, encoding = codec.decode(stored), codec.encoding_of(stored)
  return spec_lib.RowRange(rows, stored, encoding, slots)


def write_range(table, state, start, rows, encoding, key):
  """See `spec.Table`."""
  ids = start + jnp.arange(len(rows))
  new = table.codec.encode(rows, ids, key, encoding)
  return state._replace(vectors=codecs.put(state.vectors, start, new))


def write_rows(table, state, ids, rows, slots):
  """See `spec.Table`."""

  def put(array, new):
    if array.ndim > 1:
      new = jnp.pad(new, ((0, 0), (0, array.shape[1] - new.shape[1])))
    return array.at[ids].set(new, mode='drop')

  new = rounding.encode(rows, table.spec.dtype)
  vectors = jax.tree.map(put, state.vectors, new)
  changed = {k: put(getattr(state.slots, k), v) for k, v in slots.items()}
  if changed:
    state = state._replace(slots=state.slots._replace(**changed))
  return state._replace(vectors=vectors)
