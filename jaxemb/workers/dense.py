"""Dense parameters of workers: the coordinator's, and their exchange.

Workers take steps of their own, by optimizers of their own, and exchange what
these made of the parameters after every round, as with a parameter server
(Dean et al. 2012): a part of each change is added, as of rows
(`strategies.policies.parallel_weights`). Nobody misses more than what others
do meanwhile. The state of the optimizer is the one that was sent last: a
checkpoint has it, and workers that are started later begin with it.

In lockstep (`workers.lockstep`) a step is one of all workers, and the
coordinator has the only optimizer.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxemb.strategies import base


class Parameters:
  """Parameters, and the state of their optimizer, as trees of NumPy arrays."""

  def __init__(self, optimizer: Any, dense_rate: float):
    """An optax transformation; the rate is as of `models.base.Model`.

    `params` and `optimizer` are to be set.
    """
    # Accelerators of this machine are the workers'.
    jax.config.update('jax_platforms', 'cpu')
    self.params: Any = None
    self.optimizer: Any = None
    self._taken: dict[int, Any] = {}  # parameters that a worker has, by worker

    def step(*args):
      return base.dense_step(optimizer, dense_rate, *args)

    self._step = jax.jit(step)

  def take(self, worker: int) -> tuple[Any, Any]:
    """Returns both, for a worker that begins."""
    self._taken[worker] = self.params
    return self.params, self.optimizer

  def push(
    self, worker: int, params: Any, optimizer: Any, weight: float
  ) -> Any:
    """Adds a weighted part of what a worker has changed since it took them.

    Returns the parameters that it goes on with.
    """
    before, factor = self._taken[worker], np.float32(weight)
    if before is self.params and factor == 1:
      self.params = params  # to the last bit
    else:
      self.params = jax.tree.map(
        lambda x, new, old: x + factor * (new - old),
        self.params,
        params,
        before,
      )
    self.optimizer = optimizer
    return self.take(worker)[0]

  def step(
    self, grads: Sequence[Any], is_step: bool, learning_rate: float
  ) -> None:
    """Takes a step by the sum of some gradients, if it has any example."""
    total = jax.tree.map(lambda *x: sum(x[1:], x[0]), *grads)
    self.params, self.optimizer = jax.device_get(
      self._step(
        (self.params, self.optimizer),
        total,
        np.bool_(is_step),
        np.float32(learning_rate),
      )
    )


class Exchange:
  """The exchange of a worker with the coordinator."""

  # Whether a step is one of all: each takes a share of it.
  shares_steps = False

  def __init__(self, rows: Any, step_centers: int):
    """`rows` are `SharedRows`, with weights as if each center looked up."""
    self._rows, self._step_centers = rows, step_centers
    self.num_bytes = 0  # sent or received since somebody counted

  def _put(self, new, old):
    self.num_bytes += sum(x.nbytes for x in jax.tree.leaves(new))
    return jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), new, old)

  def begin(self, state: base.TrainState) -> base.TrainState:
    """Returns a state with the parameters of all."""
    params, optimizer = self._rows.ask('take_dense')
    return state._replace(
      params=self._put(params, state.params),
      optimizer=self._put(optimizer, state.optimizer),
    )

  def exchange(
    self,
    state: base.TrainState,
    num_steps: int,
    learning_rate: np.float32,
    examples: float,
  ) -> base.TrainState:
    """Returns the state after a stretch, with what others have learned, too.

    Of a shared step its optimizer's state is the gradient of this share
    (`strategies.base.gathered`), of all of the step's examples.
    """
    learned = jax.device_get(state[1:])
    weight = self._rows.weight(num_steps * self._step_centers)
    params = self._rows.ask('push_dense', *learned, weight)
    return self._learned(state, params, sent=learned)

  def _learned(self, state, params, sent):
    self.num_bytes += sum(x.nbytes for x in jax.tree.leaves(sent))
    return state._replace(params=self._put(params, state.params))
