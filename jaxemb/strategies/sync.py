"""Fully synchronous training: one state, every step sees all earlier ones.

On a mesh of devices each takes its share of a step's examples, from the parts
of the data along the data axis: the step is the same on any mesh, and so are
its results, up to the order in which sums are rounded. Where tables let devices
of the table axis look up different ids, these split the examples of their parts
between them; where columns are split they all take the same ones.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import base as data_base
from jaxemb.runtime import hlo
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.strategies import base
from jaxemb.tables import spec as spec_lib


def _dispatch(
  trainable: base.Trainable,
  num_splits: int,
  is_alone: bool,
  state: base.TrainState,
  constants: Any,
  batch: Any,
  schedule: base.Schedule,
) -> tuple[base.TrainState, base.DispatchMetrics]:
  """A dispatch, of a device's shards and its parts of the batch."""
  trainable = trainable.with_arrays(constants)
  num_steps = trainable.steps.num_steps(batch)
  count = jnp.max(num_steps)
  num_parts, axes = len(num_steps), ()
  share = data_base.Share(0, 0, num_parts, 0, 1)
  if not is_alone:
    axes += (mesh_lib.DATA,)
    count = jax.lax.pmax(count, mesh_lib.DATA)
    share = share._replace(before=num_parts * jax.lax.axis_index(axes[0]))
  if num_splits > 1:
    axes += (mesh_lib.TABLE,)
    device = jax.lax.axis_index(mesh_lib.TABLE)
    share = data_base.share(num_parts, num_splits, share.before, device)
  state, metrics = base.training_steps(
    trainable,
    batch,
    schedule,
    base.StepRange(jnp.int32(0), count, count),
    share,
    (state, trainable.no_metrics()),
    axes=axes,
  )
  return state, base.over_devices(trainable, metrics, batch, count, axes)


def _import_rows(
  tables: Mapping[str, spec_lib.Table],
  state: base.TrainState,
  name: str,
  ids: np.ndarray,
  rows: np.ndarray,
  slots: Mapping[str, np.ndarray],
) -> base.TrainState:
  new = tables[name].import_rows(state.tables[name], ids, rows, slots)
  return state._replace(tables=state.tables | {name: new})


def sync(
  trainable: base.Trainable,
  mesh: jax.sharding.Mesh,
  splits_examples: bool = True,
) -> base.Strategy:
  """The strategy.

  Args:
    trainable: what to train, with tables laid out on the mesh.
    mesh: the devices, along a data and a table axis.
    splits_examples: whether devices of the table axis take different examples.
  """
  tables = trainable.tables
  num_splits = mesh.shape[mesh_lib.TABLE] if splits_examples else 1
  init = trainable.init
  step = functools.partial(_dispatch, trainable, num_splits, mesh.size == 1)
  everywhere = jax.sharding.PartitionSpec()
  over = jax.sharding.PartitionSpec(mesh_lib.DATA)
  state_spec = base.TrainState(
    {name: table.partition for name, table in sorted(tables.items())},
    everywhere,
    everywhere,
  )
  if mesh.size > 1:
    # What leaves a step is the same along the data axis; JAX cannot tell.
    shard_map = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    step = shard_map(
      step,
      in_specs=(state_spec, everywhere, over, everywhere),
      out_specs=(state_spec, everywhere),
    )
    init = shard_map(init, in_specs=everywhere, out_specs=state_spec)
  named = functools.partial(jax.sharding.NamedSharding, mesh)
  return base.Strategy(
    init,
    functools.partial(base.arrays_of, trainable.model),
    jax.jit(step, donate_argnums=0),
    lambda state, name, start=0, stop=None: tables[name].export_rows(
      state.tables[name], start, stop
    ),
    functools.partial(base.flush, tables),
    functools.partial(_import_rows, tables),
    jax.tree.map(named, state_spec),
    named(everywhere),
    named(over),
    # The loop inside without a known length is the overflow rounds of the row
    # layout: most steps have one.
    hlo.Loop(
      trainable.steps_per_loop,
      inner=1,
      branch=1 / trainable.loss_every_steps,
    ),
  )
