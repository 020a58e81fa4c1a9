"""Fully synchronous training: one state, every step sees all earlier ones.

On a mesh of devices each takes its share of a step's examples, from the parts
of the data along the data axis: the step is the same on any mesh, and so are
its results, up to the order in which sums are rounded. Where tables let devices
of the table axis look up different ids, these split the examples of their parts
between them; where columns are split they all take the same ones.
"""

import functools

import jax
import jax.numpy as jnp

from jaxemb.data import base as data_base
from jaxemb.runtime import hlo
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.strategies import base


def sync(
  trainable: base.Trainable,
  mesh: jax.sharding.Mesh,
  splits_examples: bool = True,
) -> base.Strategy:
  """The strategy, of tables laid out on the mesh of a data and a table axis.

  `splits_examples` says whether devices of the table axis take different ones.
  """
  tables, init = trainable.tables, trainable.init
  num_splits = mesh.shape[mesh_lib.TABLE] if splits_examples else 1

  def step(state, constants, batch, schedule):
    """A dispatch, of a device's shards and its parts of the batch."""
    given = trainable.with_arrays(constants)
    num_steps = given.steps.num_steps(batch)
    count, num_parts, axes = jnp.max(num_steps), len(num_steps), ()
    share = data_base.Share(0, 0, num_parts, 0, 1)
    if mesh.size > 1:
      axes += (mesh_lib.DATA,)
      count = jax.lax.pmax(count, mesh_lib.DATA)
      share = share._replace(before=num_parts * jax.lax.axis_index(axes[0]))
    if num_splits > 1:
      axes += (mesh_lib.TABLE,)
      device = jax.lax.axis_index(mesh_lib.TABLE)
      share = data_base.share(num_parts, num_splits, share.before, device)
    devices = base.Devices(share, axes=axes)
    carry = state, given.no_metrics()
    state, metrics = base.training_steps(
      given, batch, schedule, devices, carry, jnp.int32(0), count, count
    )
    return state, base.over_devices(given, metrics, batch, count, axes)

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

  def export_rows(state, name, start=0, stop=None):
    return tables[name].export_rows(state.tables[name], start, stop)

  def import_rows(state, name, ids, rows, slots):
    new = tables[name].import_rows(state.tables[name], ids, rows, slots)
    return state._replace(tables=state.tables | {name: new})

  named = functools.partial(jax.sharding.NamedSharding, mesh)
  return base.Strategy(
    init,
    functools.partial(base.arrays_of, trainable.model),
    jax.jit(step, donate_argnums=0),
    export_rows,
    import_rows,
    *jax.tree.map(named, (state_spec, everywhere, over)),
    # The loop inside without a known length is the overflow rounds of the row
    # layout: most steps have one.
    hlo.Loop(
      trainable.steps_per_loop,
      inner=1,
      branch=1 / trainable.loss_every_steps,
    ),
  )
