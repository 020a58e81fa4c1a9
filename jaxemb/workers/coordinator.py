"""The coordinator of workers: who trains which part of the data, and who waits.

The data is cut into parts, which are read side by side, a dispatch at a time. A
lease gives a worker the part of which least was read, and the position where
reading goes on; the worker returns the position behind the dispatch that it
read, and may lease the next one before that is trained. Dispatches that a
worker had leased and not trained when it ended are leased again.

A round is a stretch of steps between two exchanges with the shards. Workers
never wait (asp), or are at most some rounds ahead of the slowest (ssp, Ho et
al. 2013); for workers in lockstep (bsp) see `workers.lockstep`.
"""

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Lease(NamedTuple):
  """A dispatch that a worker is to read and to train."""

  part: int
  position: Any  # see `data.base.Item`
  done: int  # units of progress before it, as if all parts were read abreast
  # Units that all workers have done before it, if they are of one speed; None =
  # as many as if parts were read abreast, as they are.
  done_of_all: int | None = None
  num_workers: int = 1  # that have not ended


class Ended(NamedTuple):
  """What was left when a worker ended."""

  units: int  # of leased dispatches that are read again
  pending: int  # updates of rows that it had not pushed when it last reported


@dataclasses.dataclass
class _Part:
  """A part of the data."""

  position: Any = None  # behind all leased dispatches
  done: int = 0
  trained: tuple[Any, int] = (None, 0)  # the same, of trained dispatches
  num_trained: int = 0  # dispatches in this start
  is_read: bool = False  # whether it has no more dispatches
  owner: int | None = None
  is_being_read: bool = False  # a leased dispatch
  # Read and not trained: the position and progress behind each, and its units.
  leased: collections.deque = dataclasses.field(
    default_factory=collections.deque
  )

  @property
  def num_leased(self) -> int:
    """Dispatches in this start that are trained, leased or being read."""
    return self.num_trained + len(self.leased) + self.is_being_read

  @property
  def has_ended(self) -> bool:
    """Whether all of it is trained."""
    return self.is_read and not self.leased


@dataclasses.dataclass
class Member:
  """A worker that has not ended."""

  start: int  # which of its processes this is
  begun: Any  # the round that it waits for or has begun
  is_paused: bool = False
  pending: int = 0


class Stale(Exception):
  """A process calls that was replaced."""


PAUSE = 'pause'


class Coordinator:
  """An actor of Ray: calls wait here, not in the workers.

  A worker that gets `PAUSE` in place of a lease pushes its updates, calls
  `paused`, and leases again when that returns.
  """

  def __init__(
    self,
    num_parts: int,
    rounds_ahead: int | None = None,
    dense: Sequence[Any] = (),
  ):
    """Of workers at most `rounds_ahead` of the slowest; None = any number.

    `dense` are arguments of `dense.Parameters`, if there are any.
    """
    self.parts = [_Part() for _ in range(num_parts)]
    self.members: dict[int, Member] = {}
    self._rounds_ahead = rounds_ahead
    self._starts: collections.Counter = collections.Counter()
    self.is_pausing, self._rate_factor, self._is_over = False, 1.0, False
    self._reports: list[dict[str, Any]] = []
    self._change = asyncio.Event()
    # Dispatches that were leased; of those that were read, how many, and their
    # units; and units that earlier starts have trained.
    self._num_leased = self._num_read = self._units_read = 0
    self._units_before = 0
    self.parameters = None
    if dense:
      from jaxemb.workers import dense as dense_lib  # and with it JAX

      self.parameters = dense_lib.Parameters(*dense)

  def changed(self) -> None:
    """Wakes the calls that wait."""
    self._change.set()
    self._change = asyncio.Event()

  async def until(
    self, is_true: Callable[[int], bool], worker: int, start: int
  ) -> None:
    """Returns once something is true of a worker."""
    while True:
      self.check(worker, start)
      if is_true(worker):
        return
      await self._change.wait()

  # Membership.

  def join(self, worker: int) -> tuple[int, float, int]:
    """Registers a process of a worker.

    Returns its number among these, the factor of its learning rates, and units
    of progress that each worker has made so far.
    """
    if worker in self.members:
      self.leave(worker)
    self._starts[worker] += 1
    start = self._starts[worker]
    self.members[worker] = Member(start, self.first_round())
    self.changed()
    done = (self.done_of_all() or 0) // len(self.members)
    return start, self._rate_factor, done

  def first_round(self) -> Any:
    """Returns the round of a new member: that of the slowest."""
    return min((x.begun for x in self.members.values()), default=-1)

  def leave(self, worker: int) -> Ended:
    """Removes a worker that has ended, and frees its parts for the others."""
    member, units = self.members.pop(worker, None), 0
    for part in self.parts:
      if part.owner == worker:
        of_part = sum(num for *_, num in part.leased)
        units += of_part
        # They are leased and read again.
        self._num_leased -= len(part.leased) + part.is_being_read
        self._num_read -= len(part.leased)
        self._units_read -= of_part
        part.is_read &= not part.leased
        part.leased.clear()
        part.is_being_read = False
        part.position, part.done = part.trained
        part.owner = None
    self.changed()
    return Ended(units, member.pending if member else 0)

  def finish(self, worker: int, start: int, report: dict[str, Any]) -> None:
    """Removes a worker that got no more leases and has pushed all."""
    self.check(worker, start)
    self.leave(worker)
    self._reports.append({'worker': worker, 'start': start, **report})

  def check(self, worker: int, start: int) -> None:
    """Raises a `Stale` error unless the call is of the worker's process."""
    member = self.members.get(worker)
    if member is None or member.start != start:
      raise Stale(f'worker {worker} was replaced')

  # The data.

  def lease(
    self, worker: int, start: int, result: tuple | None, ended: int | None
  ) -> Lease | str | None:
    """Returns a worker's next dispatch, or `PAUSE`; None = all is leased.

    `result` is that of the last lease: the part, the position and progress
    behind the dispatch, and its units; or the part of it has `ended`.
    """
    self.check(worker, start)
    if result:
      number, *dispatch = result
      part = self.parts[number]
      part.leased.append(dispatch)
      part.position, part.done, units = dispatch
      self._num_read += 1
      self._units_read += units
      part.is_being_read = False
    if ended is not None:
      part = self.parts[ended]
      part.is_read, part.is_being_read = True, False
      self._num_leased -= 1  # it had no dispatch
      self._release(part)
    self.changed()
    free = [
      (x.done, number)
      for number, x in enumerate(self.parts)
      if not x.is_read and x.owner in (None, worker)
      if self.may_lease(worker, x)
    ]
    if not free or self._is_over:
      return PAUSE if self.is_pausing else None
    done, number = min(free)
    part = self.parts[number]
    part.owner, part.is_being_read = worker, True
    done_of_all = self.done_of_all()
    self._num_leased += 1
    return Lease(
      part=number,
      position=part.position,
      done=done,
      done_of_all=done_of_all,
      num_workers=len(self.members),
    )

  def done_of_all(self) -> int | None:
    """Returns `Lease.done_of_all` of the next lease.

    Workers of one speed begin their n-th dispatches together.
    """
    begun = self._num_leased - self._num_leased % max(len(self.members), 1)
    units = self._units_read / max(self._num_read, 1)
    return self._units_before + round(begun * units)

  def may_lease(self, worker: int, part: _Part) -> bool:
    """Whether a worker may lease a dispatch of a free part."""
    return not self.is_pausing

  def trained(
    self, worker: int, start: int, number: int, report: dict[str, Any]
  ) -> None:
    """Notes that the first leased dispatch of a part is trained.

    Keeps the report for `take`.
    """
    self.check(worker, start)
    part = self.parts[number]
    *behind, _ = part.leased.popleft()
    part.trained, part.num_trained = tuple(behind), part.num_trained + 1
    self.members[worker].pending = report['pending']
    self._release(part)
    self._reports.append({'worker': worker, 'start': start, **report})
    self.changed()

  def _release(self, part):
    if not part.leased and not part.is_being_read:
      part.owner = None

  # Rounds and pauses.

  async def begin(self, worker: int, start: int) -> None:
    """Returns once a worker may begin its next round."""
    self.check(worker, start)
    self.members[worker].begun += 1
    self.changed()
    await self.until(self.may_begin, worker, start)

  def may_begin(self, worker: int) -> bool:
    """Whether a worker may begin the round that it waits for."""
    if self._rounds_ahead is None:
      return True
    return self.members[worker].begun - self.slowest() <= self._rounds_ahead

  def slowest(self) -> Any:
    """Returns the first round at which a worker is that has not paused."""
    return min(x.begun for x in self.members.values() if not x.is_paused)

  async def paused(self, worker: int, start: int) -> float:
    """Returns the factor of learning rates, once training goes on.

    The worker has pushed all its updates.
    """
    self.check(worker, start)
    self.members[worker].is_paused = True
    await self.until(lambda worker: not self.is_pausing, worker, start)
    return self._rate_factor

  # Dense parameters.

  def dense(self) -> tuple[Any, Any]:
    """Returns parameters, and the state of their optimizer."""
    assert self.parameters is not None
    return self.parameters.params, self.parameters.optimizer

  def take_dense(self, worker: int, start: int) -> tuple[Any, Any]:
    """The same, for a worker that begins."""
    self.check(worker, start)
    assert self.parameters is not None
    return self.parameters.take(worker)

  def push_dense(
    self, worker: int, start: int, params: Any, optimizer: Any, weight: float
  ) -> Any:
    """See `dense.Parameters.push`."""
    self.check(worker, start)
    assert self.parameters is not None
    return self.parameters.push(worker, params, optimizer, weight)

  # Of the run.

  def take(self) -> list[dict[str, Any]]:
    """Returns the reports since the last call."""
    reports, self._reports = self._reports, []
    return reports

  def pause(self) -> bool:
    """Has all workers pause; whether all leased dispatches are pushed."""
    self.is_pausing = True
    self.changed()
    return all(x.is_paused for x in self.members.values())

  def go_on(self, rate_factor: float, ends: bool) -> None:
    """Ends a pause: all workers are in the round of the fastest, or end."""
    self.is_pausing = False
    self._rate_factor, self._is_over = rate_factor, ends
    newest = max((x.begun for x in self.members.values()), default=-1)
    for member in self.members.values():
      member.begun, member.is_paused = newest, False
    self.changed()

  def state(self) -> list[dict[str, Any]]:
    """Returns what is trained, JSON-ready; during a pause."""
    return [
      {'position': x.trained[0], 'done': x.trained[1], 'has_ended': x.has_ended}
      for x in self.parts
    ]

  def restore(
    self, state: list[dict[str, Any]] | None, dense: Any, rate_factor: float
  ) -> None:
    """Resumes from a `state`, with what `dense` returned; None = a new run."""
    self._rate_factor = rate_factor
    if state is not None:
      for part, saved in zip(self.parts, state, strict=True):
        part.trained = saved['position'], saved['done']
        part.position, part.done = part.trained
        part.is_read = saved['has_ended']
      self._units_before = sum(x['done'] for x in state) // len(state)
    if self.parameters:
      self.parameters.params, self.parameters.optimizer = dense

  def is_done(self) -> bool:
    """Whether all has ended, and no worker is left that may push."""
    return self.has_ended() and not self.members

  def has_ended(self) -> bool:
    """Whether all of the data is trained, or no more of it is to be."""
    return self._is_over or all(x.has_ended for x in self.parts)
