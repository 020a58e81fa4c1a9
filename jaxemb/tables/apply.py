"""Applies a step's row gradients to rows that this device holds.

One gather and one scatter per step: XLA may copy a whole table that is gathered
or scattered twice, or whose gather is fused past the scatter, so callers
concatenate ids and put an `optimization_barrier` behind their lookups.

An id that was looked up several times is written as often where that is cheap,
and once, with the sum of its gradients, where it is not (GPUs; low precision).
The two agree but for the order in which sums are rounded.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.tables import codecs, dedup, row_optimizers
from jaxemb.tables import spec as spec_lib


def flatten(ids: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
  """[...] and [..., d] as [n] and [n, d]."""
  return ids.reshape(-1), rows.reshape(-1, rows.shape[-1])


def squares(
  optimizer: row_optimizers.RowOptimizer, row_grads: jax.Array
) -> jax.Array | None:
  """Mean squares, where they are used: else they would be summed and sent."""
  if optimizer.uses_squares:
    return row_optimizers.mean_squares(row_grads)
  return None


def as_columns(tree: Any) -> Any:
  """Arrays [...] as [..., 1]."""
  return jax.tree.map(lambda x: x[..., None], tree)


def as_scalars(tree: Any) -> Any:
  """Arrays [..., 1] as [...]."""
  return jax.tree.map(lambda x: x[..., 0], tree)


def new_state(
  codec: codecs.Codec, vectors: Any, slots: Any
) -> spec_lib.TableState:
  """The state of a table that `gradients` updates."""
  if codec.is_float32:
    return spec_lib.TableState(vectors, slots)
  # Also where duplicates are summed by sorting: a run may be resumed on another
  # kind of device.
  scratch = jnp.zeros(codec.spec.vocab, jnp.int32)
  return spec_lib.TableState(vectors, slots_of(codec, slots), scratch)


def slots_of(codec: codecs.Codec, slots: Any) -> Any:
  """An optimizer's slots, without a scratch where counts come from `dedup`."""
  if not codec.is_float32 and hasattr(slots, 'scratch'):
    # Not empty: JAX loses the sharding of arrays without elements.
    return slots._replace(scratch=jnp.zeros(1, jnp.float32))
  return slots


def gradients(
  codec: codecs.Codec,
  optimizer: row_optimizers.RowOptimizer,
  state: spec_lib.TableState,
  row_grads: row_optimizers.RowGrads,
  step: spec_lib.Step,
  deduplicates: bool,
  rows: jax.Array | None = None,
  scalars: row_optimizers.RowScalars = row_optimizers.LOCAL,
  num_spare: int = 0,
) -> spec_lib.TableState:
  """The state after an update.

  Args:
    codec: of the rows.
    optimizer: of the rows.
    state: before.
    row_grads: of all devices.
    step: learning rate and key.
    deduplicates: whether float32 rows too are written once per step.
    rows: [..., d] float32, values of the rows before, if they are known.
    scalars: how the optimizer reaches one number per row.
    num_spare: how many of these belong to no row.
  """
  vocab, scratch = codec.spec.vocab, state.scratch
  if deduplicates or not codec.is_float32:
    columns = (row_grads.grads, as_columns(row_grads.squares))
    if deduplicates:
      found = dedup.by_sorting(row_grads.ids, columns, vocab)
      rows = None  # the order is another
    else:
      found, scratch = dedup.by_scratch(row_grads.ids, columns, vocab, scratch)
    ids, counts, (grads, sums) = found
    row_grads = row_optimizers.RowGrads(ids, grads, as_scalars(sums), counts)
  # Padding must not hit spare scalars, either.
  ids = row_grads.ids + num_spare * (row_grads.ids >= vocab)
  deltas, slots = optimizer.update(
    state.slots, row_grads._replace(ids=ids), step.learning_rate, scalars
  )
  if rows is not None:
    rows = rows.reshape(deltas.shape)
  vectors = codec.add(
    state.vectors, ids, deltas, ids, step.key, deduplicates, rows
  )
  return spec_lib.TableState(vectors, slots, scratch)
