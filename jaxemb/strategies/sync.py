"""Fully synchronous training: one state, every step sees all earlier ones."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxemb.models import base as model_base
from jaxemb.strategies import base
from jaxemb.tables import spec as spec_lib


def sync(
  model: model_base.Model,
  tables: Mapping[str, spec_lib.Table],
  batch_words: int,
  window: int,
  loss_every_steps: int,
) -> base.Strategy:
  """The strategy on one device.

  Args:
    model: what to train.
    tables: the tables of `model.specs()`.
    batch_words: L, centers per step.
    window: W.
    loss_every_steps: the loss is measured in every so-manyth step.
  """
  spec = base.StepSpec(batch_words, window, loss_every_steps)

  def init(key: jax.Array) -> base.TrainState:
    states = {
      name: table.init(jax.random.fold_in(key, i))
      for i, (name, table) in enumerate(sorted(tables.items()))
    }
    return base.TrainState(states)

  def step(
    state: base.TrainState,
    constants: Any,
    batch: Any,
    schedule: base.Schedule,
  ) -> tuple[base.TrainState, base.StepMetrics]:
    states, metrics = base.training_steps(
      model, tables, spec, state.tables, constants, batch, schedule
    )
    return base.TrainState(states), metrics

  def result(state: base.TrainState) -> np.ndarray:
    name = model.vectors_table
    return tables[name].gather(state.tables[name])

  return base.Strategy(init, jax.jit(step, donate_argnums=0), result)
