"""Fully synchronous training: one state, every step sees all earlier ones.

On a mesh of devices each has its share of a step's centers, of the parts of the
corpus that lie along the data axis: the step is the same on any mesh, and so
are its results, up to the order in which sums are rounded. Where the tables let
devices of the table axis look up what they want, these split the centers of
their parts between them; where columns are split they all have the same ones.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.models import base as model_base
from jaxemb.runtime import hlo
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.strategies import base
from jaxemb.tables import blocks
from jaxemb.tables import spec as spec_lib


@dataclasses.dataclass(frozen=True)
class _Sync:
  """The functions of the strategy over what they have in common."""

  model: model_base.Model
  tables: Mapping[str, spec_lib.Table]
  spec: base.StepSpec
  is_alone: bool  # one device
  num_splits: int  # of the centers of parts, along the table axis

  def init(self, key: jax.Array) -> base.TrainState:
    return base.TrainState(base.init_tables(self.tables, key))

  def step(
    self,
    state: base.TrainState,
    constants: Any,
    batch: Any,
    schedule: base.Schedule,
  ) -> tuple[base.TrainState, base.DispatchMetrics]:
    """A dispatch, of a device's shards and its parts of the batch."""
    count = jnp.max(batch.num_steps)
    num_parts, before, device, axes = len(batch.num_steps), 0, 0, []
    if not self.is_alone:
      axes.append(mesh_lib.DATA)
      count = jax.lax.pmax(count, mesh_lib.DATA)
      before = num_parts * jax.lax.axis_index(mesh_lib.DATA)
    if self.num_splits > 1:
      axes.append(mesh_lib.TABLE)
      device = jax.lax.axis_index(mesh_lib.TABLE)
    states, metrics = base.training_steps(
      self.model,
      self.tables,
      self.spec,
      constants,
      batch,
      schedule,
      base.StepRange(jnp.int32(0), count, count),
      base.share(num_parts, self.num_splits, before, device),
      (state.tables, jax.tree.map(jnp.asarray, base.NO_METRICS)),
    )
    return (
      base.TrainState(states),
      base.over_devices(metrics, batch, count, axes),
    )

  def export_rows(
    self,
    state: base.TrainState,
    name: str,
    start: int = 0,
    stop: int | None = None,
  ) -> blocks.RowBlock:
    return self.tables[name].export_rows(state.tables[name], start, stop)

  def import_rows(
    self, state: base.TrainState, name: str, *args: Any
  ) -> base.TrainState:
    new = self.tables[name].import_rows(state.tables[name], *args)
    return base.TrainState(state.tables | {name: new})


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
  made = _Sync(model, tables, spec, mesh.size == 1, num_splits)
  init, step = made.init, made.step
  everywhere = jax.sharding.PartitionSpec()
  over = jax.sharding.PartitionSpec(mesh_lib.DATA)
  state_spec = base.TrainState(
    {name: table.partition for name, table in sorted(tables.items())}
  )
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
    tables,
    made.export_rows,
    made.import_rows,
    jax.tree.map(lambda x: named(mesh, x), state_spec),
    named(mesh, everywhere),
    named(mesh, over),
    # The loop inside that has no known length is the rounds of `tables.routes`,
    # of which most steps have one.
    hlo.Loop(spec.steps_per_loop, inner=1, branch=1 / spec.loss_every_steps),
  )
