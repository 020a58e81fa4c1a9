"""The coordinator of workers: who trains which part of the data, and who waits.

The data is cut into parts, which are read side by side, a dispatch at a time. A
lease gives a worker the part of which least was read, and the position where
reading goes on; the worker returns the position behind the dispatch that it
made, and may lease the next one before that is trained. Dispatches that a
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
  """A dispatch that a worker is to make and to train."""

  part: int
  position: Any  # see `data.base.Item`
  done: int  # units of progress before it, as if all parts were read abreast


class Ended(NamedTuple):
  """What was left when a worker ended."""

  units: int  # of leased dispatches that are read again
  pending: int  # updates of rows that it had not pushed when it last reported


class Joined(NamedTuple):
  """How a process of a worker begins."""

  start: int  # which process of the worker it is
  rate_factor: float  # of its learning rates


@dataclasses.dataclass
class _Part:
  """A part of the data."""

  position: Any = None  # behind all leased dispatches
  done: int = 0
  trained: tuple[Any, int] = (None, 0)  # the same, of trained dispatches
  is_read: bool = False  # whether it has no more dispatches
  owner: int | None = None
  is_being_made: bool = False  # a leased dispatch
  # Made and not trained: the position and progress behind each, and its units.
  leased: collections.deque = dataclasses.field(
    default_factory=collections.deque
  )

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


class Ledger:
  """The state of a coordinator: parts of the data, workers and their rounds."""

  def __init__(self, num_parts: int, rounds_ahead: int | None = None):
    """Of workers at most `rounds_ahead` of the slowest; None = any number."""
    self.parts = [_Part() for _ in range(num_parts)]
    self.members: dict[int, Member] = {}
    self._rounds_ahead = rounds_ahead
    self._starts: collections.Counter = collections.Counter()
    self.is_pausing, self.rate_factor, self._is_over = False, 1.0, False

  # Membership.

  def join(self, worker: int) -> int:
    """Registers a process of a worker; returns which of them it is."""
    if worker in self.members:
      self.leave(worker)
    self._starts[worker] += 1
    self.members[worker] = self.new_member(self._starts[worker])
    return self._starts[worker]

  def new_member(self, start: int) -> Member:
    """Returns a member, whose rounds begin with those of the slowest."""
    begun = min((x.begun for x in self.members.values()), default=-1)
    return Member(start, begun)

  def leave(self, worker: int) -> Ended:
    """Removes a worker that has ended, and frees its parts for the others."""
    member, units = self.members.pop(worker, None), 0
    for part in self.parts:
      if part.owner == worker:
        units += sum(num for *_, num in part.leased)
        part.is_read &= not part.leased
        part.leased.clear()
        part.is_being_made = False
        part.position, part.done = part.trained
        part.owner = None
    return Ended(units, member.pending if member else 0)

  def check(self, worker: int, start: int) -> None:
    """Raises a `Stale` error unless the call is of the worker's process."""
    member = self.members.get(worker)
    if member is None or member.start != start:
      raise Stale(f'worker {worker} was replaced')

  # The data.

  def lease(self, worker: int) -> Lease | None:
    """Returns a worker's next dispatch; None = all is leased, or a pause."""
    free = [
      (x.done, number)
      for number, x in enumerate(self.parts)
      if not x.is_read and x.owner in (None, worker)
      if self.may_lease(worker, x)
    ]
    if not free or self._is_over:
      return None
    _, number = min(free)
    part = self.parts[number]
    part.owner, part.is_being_made = worker, True
    return Lease(part=number, position=part.position, done=part.done)

  def may_lease(self, worker: int, part: _Part) -> bool:
    """Whether a worker may lease a dispatch of a free part."""
    return not self.is_pausing

  def made(
    self, worker: int, number: int, position: Any, done: int, units: int
  ) -> None:
    """Notes what comes behind a leased dispatch, and its units of progress."""
    part = self.parts[number]
    part.leased.append((position, done, units))
    part.is_being_made = False
    part.position, part.done = position, done

  def end_part(self, worker: int, number: int) -> None:
    """Notes that a part has no more dispatches."""
    part = self.parts[number]
    part.is_read, part.is_being_made = True, False
    self._release(part)

  def trained(self, worker: int, number: int, pending: int) -> None:
    """Notes that the first leased dispatch of a part is trained."""
    part = self.parts[number]
    *behind, _ = part.leased.popleft()
    part.trained = tuple(behind)
    self.members[worker].pending = pending
    self._release(part)

  def _release(self, part):
    if not part.leased and not part.is_being_made:
      part.owner = None

  @property
  def has_ended(self) -> bool:
    """Whether all of the data is trained, or no more of it is to be."""
    return self._is_over or all(x.has_ended for x in self.parts)

  def state(self) -> list[dict[str, Any]]:
    """Returns what is trained, JSON-ready; during a pause."""
    return [
      {'position': x.trained[0], 'done': x.trained[1], 'has_ended': x.has_ended}
      for x in self.parts
    ]

  def restore(self, state: list[dict[str, Any]]) -> None:
    """Resumes from a `state`."""
    for part, saved in zip(self.parts, state, strict=True):
      part.trained = saved['position'], saved['done']
      part.position, part.done = part.trained
      part.is_read = saved['has_ended']

  # Pauses.

  def request_pause(self) -> None:
    """Has all workers push their updates, and wait."""
    self.is_pausing = True

  def pause(self, worker: int) -> None:
    """Notes that a worker has pushed all its updates."""
    self.members[worker].is_paused = True

  @property
  def has_paused(self) -> bool:
    """Whether all leased dispatches are trained and pushed."""
    return all(x.is_paused for x in self.members.values())

  def end_pause(self, rate_factor: float = 1.0, ends: bool = False) -> None:
    """Lets all workers go on, in the same round; or ends training."""
    self.is_pausing = False
    self.rate_factor, self._is_over = rate_factor, ends
    for member in self.members.values():
      member.is_paused = False
    self.align_rounds()

  def align_rounds(self) -> None:
    """Puts all workers in the round of the fastest."""
    newest = max((x.begun for x in self.members.values()), default=-1)
    for member in self.members.values():
      member.begun = newest

  # Rounds.

  def begin(self, worker: int) -> None:
    """Notes that a worker wants to begin its next round."""
    self.members[worker].begun += 1

  def may_begin(self, worker: int) -> bool:
    """Whether a worker may begin the round that it waits for."""
    if self._rounds_ahead is None:
      return True
    rounds = [x.begun for x in self.members.values() if not x.is_paused]
    return self.members[worker].begun - min(rounds) <= self._rounds_ahead


class Coordinator:
  """A ledger as an actor of Ray: calls wait here, not in the workers.

  A worker that gets `PAUSE` in place of a lease pushes its updates, calls
  `paused`, and leases again when that returns.
  """

  PAUSE = 'pause'

  def __init__(self, ledger: Ledger, dense: Sequence[Any] = ()):
    """`dense` are arguments of `dense.Parameters`, if there are any."""
    self.ledger, self.parameters = ledger, None
    if dense:
      from jaxemb.workers import dense as dense_lib  # and with it JAX

      self.parameters = dense_lib.Parameters(*dense)
    self._change = asyncio.Condition()
    self._reports: list[dict[str, Any]] = []

  async def changed(self) -> None:
    """Wakes the calls that wait."""
    async with self._change:
      self._change.notify_all()

  async def until(
    self, is_true: Callable[[], bool], worker: int, start: int
  ) -> None:
    """Returns once something is true."""
    async with self._change:
      while True:
        self.ledger.check(worker, start)
        if is_true():
          return
        await self._change.wait()

  # Of workers.

  async def join(self, worker: int) -> Joined:
    """See `Ledger`."""
    start = self.ledger.join(worker)
    await self.changed()
    return Joined(start, self.ledger.rate_factor)

  async def finish(
    self, worker: int, start: int, report: dict[str, Any]
  ) -> None:
    """Removes a worker that got no more leases and has pushed all."""
    self.ledger.check(worker, start)
    self.ledger.leave(worker)
    self._reports.append({'worker': worker, 'start': start, **report})
    await self.changed()

  async def leave(self, worker: int) -> Ended:
    """See `Ledger`."""
    ended = self.ledger.leave(worker)
    await self.changed()
    return ended

  async def lease(
    self, worker: int, start: int, made: tuple | None, ended: int | None
  ) -> Lease | str | None:
    """See `Ledger`; with the end of the last lease, or of its part."""
    self.ledger.check(worker, start)
    if made:
      self.ledger.made(worker, *made)
    if ended is not None:
      self.ledger.end_part(worker, ended)
    lease = self.ledger.lease(worker)
    await self.changed()
    is_paused = lease is None and self.ledger.is_pausing
    return self.PAUSE if is_paused else lease

  async def trained(
    self, worker: int, start: int, part: int, report: dict[str, Any]
  ) -> None:
    """See `Ledger`; keeps the report for `take`."""
    self.ledger.check(worker, start)
    self.ledger.trained(worker, part, report['pending'])
    self._reports.append({'worker': worker, 'start': start, **report})
    await self.changed()

  async def paused(self, worker: int, start: int) -> float:
    """Returns the factor of learning rates, once training goes on."""
    self.ledger.pause(worker)
    await self.changed()
    await self.until(lambda: not self.ledger.is_pausing, worker, start)
    return self.ledger.rate_factor

  async def begin(self, worker: int, start: int) -> None:
    """Returns once a worker may begin its next round."""
    self.ledger.check(worker, start)
    self.ledger.begin(worker)
    await self.changed()
    await self.until(lambda: self.ledger.may_begin(worker), worker, start)

  # Dense parameters.

  async def dense(self) -> tuple[Any, Any]:
    """Returns parameters, and the state of their optimizer."""
    return self.parameters.params, self.parameters.optimizer

  async def take_dense(self, worker: int, start: int) -> tuple[Any, Any]:
    """The same, for a worker that begins."""
    self.ledger.check(worker, start)
    return self.parameters.take(worker)

  async def push_dense(
    self, worker: int, start: int, params: Any, optimizer: Any, weight: float
  ) -> Any:
    """See `dense.Parameters.push`."""
    self.ledger.check(worker, start)
    return self.parameters.push(worker, params, optimizer, weight)

  # Of the run.

  async def take(self) -> list[dict[str, Any]]:
    """Returns the reports since the last call."""
    reports, self._reports = self._reports, []
    return reports

  async def pause(self) -> bool:
    """Has all workers pause; whether they have."""
    self.ledger.request_pause()
    await self.changed()
    return self.ledger.has_paused

  async def go_on(self, rate_factor: float, ends: bool) -> None:
    """Ends a pause; see `Ledger.end_pause`."""
    self.ledger.end_pause(rate_factor, ends)
    await self.changed()

  async def state(self) -> list[dict[str, Any]]:
    """See `Ledger`."""
    return self.ledger.state()

  async def restore(
    self, state: list[dict[str, Any]] | None, dense: Any, rate_factor: float
  ) -> None:
    """See `Ledger`; with what `dense` has returned. None = a new run."""
    self.ledger.rate_factor = rate_factor
    if state is not None:
      self.ledger.restore(state)
    if self.parameters:
      self.parameters.params, self.parameters.optimizer = dense

  async def has_ended(self) -> bool:
    """See `Ledger`."""
    return self.ledger.has_ended
