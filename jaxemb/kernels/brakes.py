"""Smaller steps of rows that many chunks look up at the same time.

Threads of a CPU, and blocks of a GPU, share tables without locks. What they all
look up all of them change, and as none knows of the others, together they may
go too far.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.strategies import base as strategy_base

# By how often others look rows up meanwhile, and by the learning rate; and the
# centers of others that need none. Measured on CPUs
# (experiments/results/step_notes.md) and an H100, where they keep 528 blocks
# from diverging.
_BRAKE, FREE_CENTERS = 10.0, 240
_LEAST = 0.2  # less than this changes a learning rate by a hundredth


def of_rows(lookups_per_center: np.ndarray, others: int) -> np.ndarray:
  """Returns [h] float32, the brakes of the first rows of a table.

  1 + learning rate x brake divides the learning rate of a row. `others` are the
  centers that others learn from at the same time.
  """
  scale = _BRAKE * max(0, others - FREE_CENTERS)
  brakes = (scale * lookups_per_center).astype(np.float32)
  size = np.flatnonzero(brakes > _LEAST).max(initial=0)
  return brakes[: size + 1]


def of_step(
  trainable: strategy_base.Trainable,
  others: Mapping[str, int],
  context: strategy_base.StepContext,
  state: strategy_base.TrainState,
) -> list[Any]:
  """Returns [h] float32 of tables, brakes of the first rows of the state.

  Those of `Trainable.brakes` are added to `of_rows`; `others` are as there, by
  table.
  """
  return [
    _of_table(trainable, name, num, context=context, state=state.tables[name])
    for name, num in others.items()
  ]


def _of_table(trainable, name, others, context, state):
  hot = of_rows(trainable.tables[name].spec.lookups_per_center, others)
  earlier = trainable.brakes.get(name)
  if earlier is None:
    return hot
  brakes = jnp.asarray(earlier)
  if hot.max() > _LEAST:
    brakes = brakes.at[: len(hot)].add(hot)
  if context.positions is None:
    return brakes
  ids, rows = context.ids[name], context.positions[name]
  num_rows = len(jax.tree.leaves(state.vectors)[0])
  of_ids = brakes.at[ids].get(mode='fill', fill_value=0)
  return jnp.zeros(num_rows, jnp.float32).at[rows].set(of_ids, mode='drop')
