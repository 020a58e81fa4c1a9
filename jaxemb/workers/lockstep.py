"""Workers in lockstep: all that the pace bsp does differently.

All workers begin a round when all have pushed the one before, and push when all
have read its rows. Each has a part of the data of its own. Nothing is read
ahead. With no staleness and stretches of one step this is synchronous training.

Dense parameters make one step of all: each worker sends the gradient of its
share, and their sum makes a step of the optimizer. With rows that may be stale,
this is the setting of HET (Miao et al. 2022).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxemb.stores import fetching
from jaxemb.strategies import base as strategy_base
from jaxemb.workers import coordinator, dense, shared_rows


@dataclasses.dataclass
class _Member(coordinator.Member):
  """A worker; its rounds are (dispatch, round in it)."""

  read: tuple[int, int] = (-1, -1)  # the last round whose rows it has read
  num_steps: int = 0  # of the dispatch of the round
  examples: float = 0.0  # of the round


class Ledger(coordinator.Ledger):
  """Of workers that wait for each other in every round."""

  def __init__(self, num_parts: int, num_workers: int):
    super().__init__(num_parts)
    self._num_workers, self._pause_at = num_workers, 0

  def new_member(self, start: int) -> _Member:
    """Returns a member that is before all rounds."""
    return _Member(start, (-1, -1))

  def may_lease(self, worker: int, part: Any) -> bool:
    """A worker has one part, and no other before that is trained."""
    if self.is_pausing and part.done >= self._pause_at:
      return False
    has_part = any(x.owner == worker for x in self.parts)
    return part.owner == worker or not has_part

  def request_pause(self) -> None:
    """See the base; all parts have to come as far as the first."""
    if not self.is_pausing:
      self._pause_at = max(x.done for x in self.parts)
    super().request_pause()

  def align_rounds(self) -> None:
    """Does nothing: all are in the same round."""

  def begin(
    self,
    worker: int,
    number: tuple[int, int],
    num_steps: int,
    examples: float = 0.0,
  ) -> None:
    """Notes that a worker has pushed all, and wants to begin a round."""
    member = self.members[worker]
    member.begun, member.num_steps = number, num_steps
    member.examples = examples

  def may_begin(self, worker: int) -> bool:
    """Whether all others wait for the same round."""
    rounds = [x.begun for x in self.members.values() if not x.is_paused]
    number = self.members[worker].begun
    return len(self.members) >= self._expected and number <= min(rounds)

  def has_read(self, worker: int) -> None:
    """Notes that a worker has read the rows of its round."""
    member = self.members[worker]
    member.read = member.begun

  def may_push(self, worker: int) -> bool:
    """Whether all others have read rows of the round, or are behind it."""
    number, members = self.members[worker].begun, self.members.values()
    have_read = all(
      x.read >= number or x.begun > number or x.is_paused for x in members
    )
    return len(members) >= self._expected and have_read

  @property
  def _expected(self):
    """Workers with parts that have not ended."""
    left = sum(not x.has_ended for x in self.parts)
    return min(self._num_workers, left)

  def round_of(self, worker: int) -> tuple[Any, dict[int, float]]:
    """Returns a worker's round, and by worker in it, the examples of each."""
    number = self.members[worker].begun
    members = self.members.items()
    return number, {i: x.examples for i, x in members if x.begun == number}

  def most_steps(self) -> int:
    """Returns the most steps of the dispatches that workers are at."""
    return max(x.num_steps for x in self.members.values())


class Coordinator(coordinator.Coordinator):
  """See the module."""

  def __init__(self, ledger: Ledger, dense: Any = ()):
    super().__init__(ledger, dense)
    # By round and worker, gradients of a step that has not ended.
    self._grads: dict[Any, dict[int, Any]] = {}

  async def begin(
    self,
    worker: int,
    start: int,
    number: tuple[int, int],
    num_steps: int,
    examples: float,
  ) -> tuple[int, float]:
    """Returns when a worker may begin a round.

    The most steps of a dispatch, and the examples of all in the round.
    """
    self.ledger.check(worker, start)
    self.ledger.begin(worker, number, num_steps, examples=examples)
    await self.changed()
    await self.until(lambda: self.ledger.may_begin(worker), worker, start)
    _, examples_of = self.ledger.round_of(worker)
    return self.ledger.most_steps(), sum(examples_of.values())

  async def has_read(self, worker: int, start: int) -> None:
    """See `Ledger`."""
    self.ledger.check(worker, start)
    self.ledger.has_read(worker)
    await self.changed()

  async def end(self, worker: int, start: int) -> None:
    """Returns when a worker may push its updates of a round."""
    await self.until(lambda: self.ledger.may_push(worker), worker, start)

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
    self.ledger.check(worker, start)
    number, _ = self.ledger.round_of(worker)
    grads_of = self._grads.setdefault(number, {})
    grads_of[worker] = grads
    await self.changed()

    def is_whole():
      _, members = self.ledger.round_of(worker)
      has_ended = self._grads.get(number) is not grads_of
      return has_ended or members.keys() <= grads_of.keys()

    await self.until(is_whole, worker, start)
    if self._grads.get(number) is grads_of:
      del self._grads[number]
      ordered = [x for _, x in sorted(grads_of.items(), key=lambda x: x[0])]
      self.parameters.step(ordered, is_step, learning_rate)
      await self.changed()
    return self.parameters.params


class Pace(shared_rows.Pace):
  """Asks the coordinator before and after every round of a worker."""

  def __init__(self, ask: Any):
    """`ask` calls a method of the coordinator."""
    super().__init__(ask, waits=True)
    self._index, self._round, self._num_steps = 0, 0, 0

  def start(self, index: int) -> None:
    """See the base."""
    self._index, self._round = index, -1

  def begin(self, needed: fetching.Needed) -> tuple[int, float]:
    """See the base; of all workers, who have pushed the round before."""
    self._round += 1
    most, examples = self.wait(
      'begin', (self._index, self._round), needed.count, needed.examples
    )
    if needed.is_first:
      self._num_steps = most
    return self._num_steps, examples

  def has_read(self) -> None:
    """Notes that the rows of the round were read."""
    self.ask('has_read')

  def end(self) -> None:
    """Waits until all have read the rows of the round."""
    self.wait('end')


class Rows(shared_rows.SharedRows):
  """Rows that all workers push before any of them reads."""

  adds_up = True

  def fetch(
    self, needed: fetching.Needed, counts: fetching.Counts
  ) -> tuple[int, dict[str, shared_rows.Stretch], None]:
    """Reads nothing ahead."""
    return self._flushes, self._stretches(needed), None

  def _round(self, tables, needed, fetched, counts):
    """Pushes the round before, and reads what all have pushed of it."""
    _, stretches, _ = fetched
    self._settle_due(tables, stretches)
    self._paced(self.pace.end)
    self._exchange({}, counts)
    begun = self._paced(self.pace.begin, needed)
    read = self._exchange(stretches, counts)
    self.pace.has_read()
    self._commit(tables, read)
    return begun

  def flush(
    self,
    tables: dict[str, Any],
    held: Callable[[str], tuple[np.ndarray, np.ndarray]],
    counts: fetching.Counts,
  ) -> dict[str, Any]:
    """See the base; once all have read the rows of the round."""
    self.pace.end()
    return super().flush(tables, held, counts)


class Exchange(dense.Exchange):
  """Makes every step of dense parameters one of all workers."""

  shares_steps = True

  def begin(self, state: strategy_base.TrainState) -> strategy_base.TrainState:
    """See the base; the optimizer's state stays with the coordinator."""
    params, _ = self._pace.ask('take_dense')
    return state._replace(params=self._put(params, state.params))

  def exchange(
    self,
    state: strategy_base.TrainState,
    num_steps: int,
    learning_rate: np.float32,
    examples: float,
  ) -> strategy_base.TrainState:
    """See `fetching.Exchange`."""
    grads = jax.device_get(state.optimizer)
    params = self._pace.wait(
      'step_dense', grads, examples > 0, float(learning_rate)
    )
    return self._learned(state, params, sent=grads)
