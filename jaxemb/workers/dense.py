"""Dense parameters of workers: one copy at the desk, which all train.

A step of all workers in lockstep is one of synchronous training: each sends the
gradient of its share, and their sum makes one step of the optimizer. Otherwise
workers take steps of their own, by optimizers of their own, and exchange what
these made of the parameters after every round, as with a parameter server
(Dean et al. 2012): a part of each change is added, as of rows
(`shared_rows.Weights`). Nobody misses more than what others do meanwhile.

The state of the optimizer is that of all in lockstep, and otherwise the one
that was sent last: a checkpoint has it, and workers that are started later
begin with it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxemb.strategies import base


class Dense:
  """Parameters, and the state of their optimizer, as trees of NumPy arrays."""

  def __init__(self, optimizer: Any, dense_rate: float):
    """An optax transformation; the rate is as of `models.base.Model`.

    `params` and `optimizer` are to be set.
    """
    # Accelerators of this machine are the workers'.
    jax.config.update('jax_platforms', 'cpu')
    self.params: Any = None
    self.optimizer: Any = None
    self._given: dict[int, Any] = {}  # by worker, what it has begun with

    def step(*args):
      return base.dense_step(optimizer, dense_rate, *args)

    self._step = jax.jit(step)

  def take(self, worker: int) -> tuple[Any, Any]:
    """Both, for a worker that begins."""
    self._given[worker] = self.params
    return self.params, self.optimizer

  def push(
    self, worker: int, params: Any, optimizer: Any, weight: float
  ) -> Any:
    """What a worker has made of the parameters that it was given last.

    So much of the change is added. Returns the parameters that it goes on with.
    """
    before, weight = self._given[worker], np.float32(weight)
    if before is self.params and weight == 1:
      self.params = params  # to the last bit
    else:
      self.params = jax.tree.map(
        lambda x, new, old: x + weight * (new - old),
        self.params,
        params,
        before,
      )
    self.optimizer = optimizer
    return self.take(worker)[0]

  def step(
    self, shares: Sequence[Any], is_step: bool, learning_rate: float
  ) -> None:
    """A step by the sum of some gradients, if it has any example."""
    grads = jax.tree.map(lambda *x: sum(x[1:], x[0]), *shares)
    found = self._step(
      (self.params, self.optimizer),
      grads,
      np.bool_(is_step),
      np.float32(learning_rate),
    )
    self.params, self.optimizer = jax.device_get(found)
