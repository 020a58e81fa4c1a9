"""Workers in lockstep: all that the pace bsp does differently.

All workers begin a round when all have pushed the one before, and push when all
have read its rows. Each has a part of the data of its own. Nothing is read
ahead. With no staleness and stretches of one step this is synchronous training.

Dense parameters make one step of all: each worker sends the gradient of its
share, and their sum makes a step of the optimizer. With rows that may be stale,
this is the setting of HET (Miao et al. 2022).
"""

import math
from typing import Any

import jax
import numpy as np

from jaxemb.stores import cached
from jaxemb.strategies import base as strategy_base
from jaxemb.workers import coordinator, dense, shared_rows


class Coordinator(coordinator.Coordinator):
  """Of workers that wait for each other in every round.

  Where a worker is: ((dispatch, round in it), whether it has read its rows).
  """

  def __init__(self, num_parts: int, num_workers: int, dense: Any = ()):
    super().__init__(num_parts, dense=dense)
    self._num_workers, self._pause_at = num_workers, 0
    # By worker, the steps of its dispatch, and the examples of its round.
    self._work: dict[int, tuple[int, float]] = {}
    # By round and worker, gradients of a step that has not ended.
    self._grads: dict[Any, dict[int, Any]] = {}

  def first_round(self) -> tuple[tuple[int, int], bool]:
    """Returns the round of a new member, before all others."""
    return (-1, -1), False

  def done_of_all(self) -> None:
    """See the base; parts are read abreast."""

  def may_lease(self, worker: int, part: Any) -> bool:
    """A worker has one part, and no other before that is trained."""
    if self.is_pausing and part.num_leased >= self._pause_at:
      return False
    has_part = any(x.owner == worker for x in self.parts)
    return part.owner == worker or not has_part

  def pause(self) -> bool:
    """See the base; all parts have to come as far as the first."""
    if not self.is_pausing:
      self._pause_at = max(x.num_leased for x in self.parts)
    return super().pause()

  def may_begin(self, worker: int) -> bool:
    """Whether all others are as far, or further."""
    # Workers with parts that have not ended.
    left = sum(not x.has_ended for x in self.parts)
    has_all = len(self.members) >= min(self._num_workers, left)
    return has_all and self.members[worker].begun <= self.slowest()

  def _workers_in(self, number):
    """Returns the workers that are in a round."""
    return {i for i, x in self.members.items() if x.begun[0] == number}

  async def begin(  # type: ignore[override] # its workers call it with more
    self,
    worker: int,
    start: int,
    number: tuple[int, int],
    num_steps: int,
    examples: float,
  ) -> tuple[int, float]:
    """Returns when a worker, which has pushed all, may begin a round.

    The most steps of a dispatch, and the examples of all in the round.
    """
    self.check(worker, start)
    self.members[worker].begun = number, False
    self._work[worker] = num_steps, examples
    self.changed()
    await self.until(self.may_begin, worker, start)
    steps = [x for i, (x, _) in self._work.items() if i in self.members]
    num_examples = [self._work[i][1] for i in self._workers_in(number)]
    return max(steps), sum(num_examples)

  def has_read(self, worker: int, start: int) -> None:
    """Notes that a worker has read the rows of its round."""
    self.check(worker, start)
    self.members[worker].begun = self.members[worker].begun[0], True
    self.changed()

  async def end(self, worker: int, start: int) -> None:
    """Returns when all have read the rows of the worker's round."""
    await self.until(self.may_begin, worker, start)

  async def step_dense(
    self,
    worker: int,
    start: int,
    grads: Any,
    is_step: bool,
    learning_rate: float,
  ) -> Any:
    """Returns the parameters after a step of all in the round.

    See `dense.Parameters.step`; gradients add up in the order of their workers.
    """
    self.check(worker, start)
    number, _ = self.members[worker].begun
    grads_of = self._grads.setdefault(number, {})
    grads_of[worker] = grads
    self.changed()

    def has_all(worker):
      has_ended = self._grads.get(number) is not grads_of
      return has_ended or self._workers_in(number) <= grads_of.keys()

    await self.until(has_all, worker, start)
    assert self.parameters is not None
    if self._grads.get(number) is grads_of:
      del self._grads[number]
      ordered = [grads_of[i] for i in sorted(grads_of)]
      self.parameters.step(ordered, is_step, learning_rate)
      self.changed()
    return self.parameters.params


class Rows(shared_rows.SharedRows):
  """Rows that all workers push before any of them reads."""

  adds_up = True
  may_read_ahead = False
  # The dispatch, the round in it, and the steps of the longest dispatch.
  _index, _number, _num_steps = 0, -1, 0

  def stretch_limit(self, num_steps: int) -> float:
    """See the base; one that begins has rounds as long as the others'."""
    return math.inf

  def start(self, index: int) -> None:
    """See the base."""
    self._index, self._number = index, -1

  def _begin_round(self, stretch):
    """See the base; of all workers, who have pushed the round before."""
    self._number += 1
    number = self._index, self._number
    most, examples = self.wait(
      'begin', number, stretch.block.count, stretch.examples
    )
    if not stretch.first:
      self._num_steps = most
    return self._num_steps, examples

  def _round(self, tables, stretch, fetched, leaving):
    """Pushes the round before, and reads what all have pushed of it."""
    _, used, _ = fetched
    self.wait('end')  # until all have read the rows of the round
    self._push_due(tables, leaving)
    self._exchange({})
    begun = self._begin_round(stretch)
    self._read(tables, used)
    self.ask('has_read')
    return begun

  def flush(self, tables: cached.Tables, held: cached.Held) -> cached.Tables:
    """See the base; once all have read the rows of the round."""
    self.wait('end')
    return super().flush(tables, held)


class Exchange(dense.Exchange):
  """Makes every step of dense parameters one of all workers."""

  shares_steps = True

  def begin(self, state: strategy_base.TrainState) -> strategy_base.TrainState:
    """See the base; the optimizer's state stays with the coordinator."""
    params, _ = self._rows.ask('take_dense')
    return state._replace(params=self._put(params, state.params))

  def exchange(
    self,
    state: strategy_base.TrainState,
    num_steps: int,
    learning_rate: np.float32,
    examples: float,
  ) -> strategy_base.TrainState:
    """See the base."""
    grads = jax.device_get(state.optimizer)
    params = self._rows.wait(
      'step_dense', grads, examples > 0, float(learning_rate)
    )
    return self._learned(state, params, sent=grads)
