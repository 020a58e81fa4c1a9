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
    slope = (
      schedule.last_learning_rate - schedule.first_learning_rate
    ) / jnp.maximum(batch.num_steps, 1).astype(jnp.float32)

    def body(i, carry):
      states, metrics = carry
      first = i * batch_words
      step_batch = model_base.StepBatch(
        jax.lax.dynamic_slice(batch.ids, (first,), (batch_words + 2 * window,)),
        jax.lax.dynamic_slice(batch.left, (first,), (batch_words,)),
        jax.lax.dynamic_slice(batch.right, (first,), (batch_words,)),
      )
      measure = i % loss_every_steps == 0
      states, loss = base.training_step(
        model,
        tables,
        states,
        constants,
        step_batch,
        schedule.key,
        i,
        schedule.first_learning_rate + slope * i.astype(jnp.float32),
        measure,
      )
      bad = ~jnp.isfinite(loss) & (metrics.first_bad_step < 0)
      examples = jnp.where(measure, model.num_examples(step_batch), 0.0)
      return states, base.StepMetrics(
        metrics.loss + loss,
        metrics.examples + examples,
        jnp.where(bad, i, metrics.first_bad_step),
      )

    zero = base.StepMetrics(jnp.float32(0), jnp.float32(0), jnp.int32(-1))
    states, metrics = jax.lax.fori_loop(
      0, batch.num_steps, body, (state.tables, zero)
    )
    return base.TrainState(states), metrics

  def result(state: base.TrainState) -> np.ndarray:
    name = model.vectors_table
    return tables[name].gather(state.tables[name])

  return base.Strategy(init, jax.jit(step, donate_argnums=0), result)
