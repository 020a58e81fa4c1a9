"""Fully synchronous training: one state, every step sees all earlier ones."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base as model_base
from jaxemb.strategies import base
from jaxemb.tables import spec as spec_lib


def sync(
  model: model_base.Model,
  tables: Mapping[str, spec_lib.Table],
  spec: base.StepSpec,
  mesh: jax.sharding.Mesh,
) -> base.Strategy:
  """The strategy on one device.

  Args:
    model: what to train.
    tables: the tables of `model.specs()`.
    spec: sizes of a step.
    mesh: its first device trains.
  """
  sharding = jax.sharding.SingleDeviceSharding(mesh.devices.flatten()[0])

  def init(key: jax.Array) -> base.TrainState:
    return base.TrainState(base.init_tables(tables, key))

  def step(
    state: base.TrainState,
    constants: Any,
    batch: Any,
    schedule: base.Schedule,
  ) -> tuple[base.TrainState, base.StepMetrics]:
    count = jnp.asarray(batch.num_steps, jnp.int32)
    zero = jnp.int32(0)
    states, metrics = base.training_steps(
      model,
      tables,
      spec,
      constants,
      batch,
      schedule,
      base.StepRange(zero, count, zero, count),
      (state.tables, jax.tree.map(jnp.asarray, base.NO_METRICS)),
    )
    return base.TrainState(states), metrics

  def result(state: base.TrainState) -> np.ndarray:
    name = model.vectors_table
    return tables[name].gather(state.tables[name])

  return base.Strategy(
    init,
    model.constants,
    jax.jit(step, donate_argnums=0),
    result,
    sharding,
    sharding,
  )
