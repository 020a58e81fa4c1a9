"""Fully synchronous training: one state, every step sees all earlier ones.

On a mesh of devices each has its share of a step's centers, of the parts of the
corpus that lie along the data axis: the step is the same on any mesh, and so
are its results, up to the order in which sums are rounded. Where the tables let
devices of the table axis look up what they want, these split the centers of
their parts between them; where columns are split they all have the same ones.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import mesh as mesh_lib
from jaxemb.models import base as model_base
from jaxemb.strategies import base
from jaxemb.tables import spec as spec_lib


def sync(
  model: model_base.Model,
  tables: Mapping[str, spec_lib.Table],
  spec: base.StepSpec,
  mesh: jax.sharding.Mesh,
  splits_centers: bool = True,
) -> base.Strategy:
  """The strategy.

  Args:
    model: what to train.
    tables: the tables of `model.specs()`, laid out on the mesh.
    spec: sizes of a step; the data axis divides its parts.
    mesh: the devices, along a data and a table axis.
    splits_centers: whether devices of the table axis have centers of their own.
  """
  num_splits = mesh.shape[mesh_lib.TABLE] if splits_centers else 1
  axes = [mesh_lib.DATA] if mesh.size > 1 else []
  axes += [mesh_lib.TABLE] * (num_splits > 1)
  state_spec = base.TrainState(
    {name: table.partition for name, table in sorted(tables.items())}
  )

  def init(key: jax.Array) -> base.TrainState:
    return base.TrainState(base.init_tables(tables, key))

  def step(
    state: base.TrainState,
    constants: Any,
    batch: Any,
    schedule: base.Schedule,
  ) -> tuple[base.TrainState, base.DispatchMetrics]:
    """A dispatch; of a device's shards and its parts of the batch."""
    count = jnp.max(batch.num_steps)
    num_parts, before, device = len(batch.num_steps), 0, 0
    if mesh.size > 1:
      count = jax.lax.pmax(count, mesh_lib.DATA)
      before = num_parts * jax.lax.axis_index(mesh_lib.DATA)
    if num_splits > 1:
      device = jax.lax.axis_index(mesh_lib.TABLE)
    states, metrics = base.training_steps(
      model,
      tables,
      spec,
      constants,
      batch,
      schedule,
      base.StepRange(jnp.int32(0), count, count),
      base.share(num_parts, num_splits, before, device),
      (state.tables, jax.tree.map(jnp.asarray, base.NO_METRICS)),
    )
    return (
      base.TrainState(states),
      base.over_devices(metrics, batch, count, axes),
    )

  def result(state: base.TrainState) -> np.ndarray:
    name = model.vectors_table
    vectors = mesh_lib.to_host(state.tables[name].vectors)
    return tables[name].gather(vectors)

  everywhere = jax.sharding.PartitionSpec()
  over = jax.sharding.PartitionSpec(mesh_lib.DATA)
  if mesh.size > 1:
    # What leaves a step is the same along the data axis; JAX cannot tell.
    step = jax.shard_map(
      step,
      mesh=mesh,
      in_specs=(state_spec, everywhere, over, everywhere),
      out_specs=(state_spec, everywhere),
      check_vma=False,
    )
    init = jax.shard_map(
      init,
      mesh=mesh,
      in_specs=everywhere,
      out_specs=state_spec,
      check_vma=False,
    )
  named = jax.sharding.NamedSharding
  return base.Strategy(
    init,
    model.constants,
    jax.jit(step, donate_argnums=0),
    result,
    jax.tree.map(lambda x: named(mesh, x), state_spec),
    named(mesh, everywhere),
    named(mesh, over),
  )
