"""Sub-models that never meet: each is trained on its own share of the text.

The arrays of the state have a leading axis of models, split over the devices of
the data axis, as those of `replicas` have; here nothing is ever exchanged, and
the program has no collective of any kind. What a model learns does not depend
on the others: its batch, its learning rates and its key are its own (Anand et
al. 2019 train such models in jobs of their own and align them once, in the
end). One on each device is the same to the last bit as one alone. Of several on
a device products are computed together, which keeps an accelerator busy and may
round them differently.
"""

import dataclasses
from collections.abc import Callable, Mapping
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
class _Partition:
  """The functions of the strategy over what they have in common."""

  model: model_base.Model
  tables: Mapping[str, spec_lib.Table]
  spec: base.StepSpec
  num: int  # models

  def init(self, key: jax.Array) -> base.TrainState:
    """All models start from the same rows."""
    states = base.init_tables(self.tables, key)
    return base.TrainState(base.stacked(states, self.num))

  def step(
    self,
    state: base.TrainState,
    constants: Any,
    batch: Any,
    schedule: base.Schedule,
  ) -> tuple[base.TrainState, base.DispatchMetrics]:
    """A dispatch of one device's models."""
    # All of them run as many steps, some of padding; other devices do not wait.
    stop = jnp.max(batch.num_steps)

    def dispatch(tables, batch, schedule):
      count = batch.num_steps
      # One part of the corpus, which is all that this model sees.
      batch = jax.tree.map(lambda x: x[None], batch)
      tables, metrics = base.training_steps(
        self.model,
        self.tables,
        self.spec,
        constants,
        batch,
        schedule,
        base.StepRange(jnp.int32(0), stop, count),
        base.share(1, 1, 0, 0),
        (tables, jax.tree.map(jnp.asarray, base.NO_METRICS)),
      )
      return tables, base.over_devices(metrics, batch, count, ())

    args = state.tables, batch, schedule
    tables, metrics = _each_model(dispatch, args)
    return base.TrainState(tables), metrics

  def export_rows(
    self,
    state: base.TrainState,
    name: str,
    start: int = 0,
    stop: int | None = None,
  ) -> blocks.RowBlock:
    """Arrays have a leading axis of models."""
    return blocks.read(
      self.tables[name], state.tables[name], start, stop, has_copies=True
    )

  def import_rows(
    self, state: base.TrainState, name: str, *args: Any
  ) -> base.TrainState:
    """Replaces the rows of every model."""
    new = blocks.write(
      self.tables[name], state.tables[name], *args, has_copies=True
    )
    return base.TrainState(state.tables | {name: new})


def _each_model(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
  """A function of one model's arrays, of a device's models.

  Args:
    function: of arrays without the leading axis.
    args: of `function`, with a leading axis of models.

  Returns:
    What it returns, with the leading axis.
  """
  if len(jax.tree.leaves(args)[0]) > 1:
    return jax.vmap(function)(*args)
  found = function(*jax.tree.map(lambda x: x[0], args))
  return jax.tree.map(lambda x: x[None], found)


def partition(
  model: model_base.Model,
  tables: Mapping[str, spec_lib.Table],
  spec: base.StepSpec,
  mesh: jax.sharding.Mesh,
  per_device: int = 1,
) -> base.Strategy:
  """The strategy.

  Its batches and schedules have the models as their leading axis, and so have
  its metrics and exported rows.

  Args:
    model: what each is.
    tables: the tables of `model.specs()`, of one device.
    spec: sizes of a step of one model, with one part of the corpus.
    mesh: the devices, along the data axis.
    per_device: models that a device trains at once.
  """
  num = per_device * mesh.shape[mesh_lib.DATA]
  made = _Partition(model, tables, spec, num)
  over = jax.sharding.PartitionSpec(mesh_lib.DATA)
  everywhere = jax.sharding.PartitionSpec()
  step = jax.shard_map(
    made.step,
    mesh=mesh,
    in_specs=(over, everywhere, over, over),
    out_specs=over,
    check_vma=False,
  )
  named = jax.sharding.NamedSharding
  return base.Strategy(
    made.init,
    model.constants,
    jax.jit(step, donate_argnums=0),
    tables,
    made.export_rows,
    made.import_rows,
    base.TrainState(named(mesh, over)),
    named(mesh, everywhere),
    named(mesh, over),
    hlo.Loop(spec.steps_per_loop, branch=1 / spec.loss_every_steps),
  )
