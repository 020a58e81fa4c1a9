"""The ledger of workers: who reads which part of the data, and who has to wait.

The data is cut into parts, which are read side by side in turns of a dispatch.
A worker is given the part of which least was read, with the place where reading
goes on, and tells the place behind the dispatch that it made of it; it may be
given the next ones before that one is trained. What a worker was given and had
not trained when it ended goes back: somebody reads it again.

A round is a stretch of steps between two exchanges with the shards. Workers are

  asp  never made to wait,
  ssp  at most some rounds ahead of the slowest (Ho et al. 2013),
  bsp  in lockstep: all begin a round when all have pushed the one before, and
       push when all have read. Each has a part of its own.
"""

import asyncio
import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple


class Lease(NamedTuple):
  """A dispatch that a worker is to make and to train."""

  part: int
  position: Any  # see `data.base.Item`
  done: int  # units of progress before it, as if all parts were read abreast
  rate_factor: float = 1.0  # of its learning rates


class Ended(NamedTuple):
  """What was left when a worker ended."""

  units: int  # of dispatches that it was given, and somebody reads again
  pending: int  # updates of rows that it had not pushed when it last reported


@dataclasses.dataclass
class _Part:
  """A part of the data."""

  position: Any = None  # behind all that was given
  done: int = 0
  trained: tuple[Any, int] = (None, 0)  # the same, of what was trained
  has_ended: bool = False
  owner: int | None = None
  is_being_made: bool = False  # a dispatch that was given
  # Given, and not trained: what comes behind each, and its units.
  given: collections.deque = dataclasses.field(
    default_factory=collections.deque
  )


@dataclasses.dataclass
class _Member:
  """A worker that has not ended."""

  start: int  # which of its processes this is
  # The round that it would begin or has begun, and the last whose rows it has
  # read; in lockstep (dispatch, round in it).
  begun: Any
  read: Any
  num_steps: int = 0  # of the dispatch of the round
  examples: float = 0.0  # of the round
  is_paused: bool = False
  pending: int = 0
  reports: int = 0


class Stale(Exception):
  """A process calls that was replaced."""


class Ledger:
  """See the module."""

  def __init__(
    self, num_parts: int, num_workers: int, pace: str, rounds_ahead: int
  ):
    """`pace` is 'asp', 'ssp' or 'bsp'; all bsp workers are waited for."""
    self._parts = [_Part() for _ in range(num_parts)]
    self._members: dict[int, _Member] = {}
    self._num_workers, self._pace = num_workers, pace
    self._rounds_ahead = rounds_ahead if pace == 'ssp' else 0
    self._starts: collections.Counter = collections.Counter()
    self.is_pausing, self._pause_at = False, 0
    self.rate_factor, self._is_over = 1.0, False

  # Who is there.

  def join(self, worker: int) -> int:
    """A process of a worker begins; which one of them it is."""
    if worker in self._members:
      self.leave(worker)
    self._starts[worker] += 1
    start, first = self._starts[worker], -1
    if self._pace == 'bsp':
      first = -1, -1
    elif self._members:
      first = min(x.begun for x in self._members.values())
    self._members[worker] = _Member(start, first, first)
    return start

  def leave(self, worker: int) -> Ended:
    """A worker ends, in whatever way; its parts are for the others."""
    member, units = self._members.pop(worker, None), 0
    for part in self._parts:
      if part.owner == worker:
        units += sum(own for *_, own in part.given)
        part.has_ended &= not part.given  # what was behind it, is to come again
        part.given.clear()
        part.is_being_made = False
        part.position, part.done = part.trained
        part.owner = None
    return Ended(units, member.pending if member else 0)

  def check(self, worker: int, start: int) -> None:
    """Raises a `Stale` error unless the call is of the worker's process."""
    member = self._members.get(worker)
    if member is None or member.start != start:
      raise Stale(f'worker {worker} was replaced')

  # The data.

  def lease(self, worker: int) -> Lease | None:
    """The next dispatch of a worker; None = all is given, or a pause.

    In lockstep a worker has one part, and no other before that is trained.
    """
    free = [
      (x.done, number)
      for number, x in enumerate(self._parts)
      if not x.has_ended and x.owner in (None, worker)
    ]
    has_part = any(x.owner == worker for x in self._parts)
    if self._pace == 'bsp' and has_part:  # each has one
      free = [x for x in free if self._parts[x[1]].owner == worker]
    if self.is_pausing:
      # In lockstep all have to come as far as the first.
      free = [x for x in free if x[0] < self._pause_at]
    if not free or self._is_over:
      return None
    number = min(free)[1]
    part = self._parts[number]
    part.owner, part.is_being_made = worker, True
    return Lease(
      part=number,
      position=part.position,
      done=part.done,
      rate_factor=self.rate_factor,
    )

  def made(
    self, worker: int, number: int, position: Any, done: int, own: int
  ) -> None:
    """What comes behind a dispatch that was given; it has `own` units."""
    part = self._parts[number]
    part.given.append((position, done, own))
    part.is_being_made = False
    part.position, part.done = position, done

  def end_part(self, worker: int, number: int) -> None:
    """There was nothing more to be given."""
    part = self._parts[number]
    part.has_ended, part.is_being_made = True, False
    self._release(part)

  def trained(self, worker: int, number: int, pending: int) -> None:
    """The first dispatch that was given of a part is trained."""
    part, member = self._parts[number], self._members[worker]
    *behind, _ = part.given.popleft()
    part.trained = tuple(behind)
    member.pending, member.reports = pending, member.reports + 1
    self._release(part)

  def _release(self, part):
    if not part.given and not part.is_being_made:
      part.owner = None

  @property
  def has_ended(self) -> bool:
    """Whether all of the data is trained, or no more of it is to be."""
    return self._is_over or all(
      x.has_ended and not x.given for x in self._parts
    )

  def state(self) -> list[dict[str, Any]]:
    """What is trained, JSON-ready; for a pause."""
    return [
      {
        'position': x.trained[0],
        'done': x.trained[1],
        'has_ended': x.has_ended and not x.given,
      }
      for x in self._parts
    ]

  def restore(self, state: list[dict[str, Any]]) -> None:
    """Goes on from a `state`."""
    for part, saved in zip(self._parts, state, strict=True):
      part.trained = saved['position'], saved['done']
      part.position, part.done = part.trained
      part.has_ended = saved['has_ended']

  # Pauses.

  def request_pause(self) -> None:
    """Has all workers push what they have, and wait."""
    if not self.is_pausing:
      self.is_pausing = True
      is_lockstep = self._pace == 'bsp'
      self._pause_at = max(x.done for x in self._parts) if is_lockstep else 0

  def pause(self, worker: int) -> None:
    """A worker has pushed all."""
    self._members[worker].is_paused = True

  @property
  def has_paused(self) -> bool:
    """Whether all that was given is trained and pushed."""
    return all(x.is_paused for x in self._members.values())

  def end_pause(self, rate_factor: float = 1.0, ends: bool = False) -> None:
    """All go on, none of them ahead of another; or nobody is given more."""
    self.is_pausing = False
    self.rate_factor, self._is_over = rate_factor, ends
    members = self._members.values()
    for member in members:
      member.is_paused = False
      if self._pace == 'ssp':
        member.begun = max(x.begun for x in members)

  # Rounds.

  def begin(
    self,
    worker: int,
    number: tuple[int, int] | None,
    num_steps: int,
    examples: float = 0.0,
  ) -> None:
    """A worker has pushed all before a round, and would begin it.

    Rounds in lockstep have numbers; None = the next one. `examples` are its own
    of the round.
    """
    member = self._members[worker]
    member.examples = examples
    member.begun = member.begun + 1 if number is None else number
    member.num_steps = num_steps

  def has_read(self, worker: int) -> None:
    """A worker has read the rows of its round."""
    member = self._members[worker]
    member.read = member.begun

  def may_begin(self, worker: int) -> bool:
    """Whether it may begin the round that it waits for."""
    if self._pace == 'asp':
      return True
    rounds = [x.begun for x in self._members.values() if not x.is_paused]
    own = self._members[worker].begun
    if self._pace == 'bsp':
      return len(self._members) >= self._expected and own <= min(rounds)
    return own - min(rounds) <= self._rounds_ahead

  def may_push(self, worker: int) -> bool:
    """Whether all in lockstep have read rows of its round, or are behind it."""
    number, members = self._members[worker].begun, self._members.values()
    have_read = all(
      x.read >= number or x.begun > number or x.is_paused for x in members
    )
    return len(members) >= self._expected and have_read

  @property
  def _expected(self):
    """Workers in lockstep: those that have parts which have not ended."""
    left = sum(not x.has_ended or bool(x.given) for x in self._parts)
    return min(self._num_workers, left)

  def round_of(self, worker: int) -> tuple[Any, dict[int, float]]:
    """Of a worker in lockstep; by worker in it, the examples of each."""
    number = self._members[worker].begun
    members = self._members.items()
    return number, {i: x.examples for i, x in members if x.begun == number}

  def most_steps(self) -> int:
    """Of the dispatches that workers in lockstep are at."""
    return max(x.num_steps for x in self._members.values())


class Desk:
  """The ledger as an actor of Ray: calls wait here, not in the workers.

  `PAUSE` in place of a lease has a worker push all that it has, call `paused`,
  and ask again when that returns.
  """

  PAUSE = 'pause'

  def __init__(
    self,
    num_parts: int,
    num_workers: int,
    pace: str,
    rounds_ahead: int,
    dense: Sequence[Any] = (),
  ):
    """See `Ledger`; `dense` has arguments of `dense.Dense`, if any."""
    self._ledger = Ledger(
      num_parts=num_parts,
      num_workers=num_workers,
      pace=pace,
      rounds_ahead=rounds_ahead,
    )
    self._dense: Any = None
    # By round in lockstep and worker, gradients of a step that has not ended.
    self._shares: dict[Any, dict[int, Any]] = {}
    if dense:
      from jaxemb.workers import dense as dense_lib  # and with it JAX

      self._dense = dense_lib.Dense(*dense)
    self._change = asyncio.Condition()
    self._reports: list[dict[str, Any]] = []

  async def _changed(self):
    async with self._change:
      self._change.notify_all()

  async def _until(self, is_true, worker, start):
    async with self._change:
      while True:
        self._ledger.check(worker, start)
        if is_true():
          return
        await self._change.wait()

  # Of workers.

  async def join(self, worker: int) -> int:
    """See `Ledger`; the number of the process."""
    start = self._ledger.join(worker)
    await self._changed()
    return start

  async def finish(
    self, worker: int, start: int, report: dict[str, Any]
  ) -> None:
    """A worker that was given nothing more has pushed all, and ends."""
    self._ledger.check(worker, start)
    self._ledger.leave(worker)
    self._reports.append({'worker': worker, 'start': start, **report})
    await self._changed()

  async def leave(self, worker: int) -> Ended:
    """See `Ledger`."""
    ended = self._ledger.leave(worker)
    await self._changed()
    return ended

  async def lease(
    self, worker: int, start: int, made: tuple | None, ended: int | None
  ) -> Lease | str | None:
    """See `Ledger`; with what the last one became, or a part that has ended."""
    self._ledger.check(worker, start)
    if made:
      self._ledger.made(worker, *made)
    if ended is not None:
      self._ledger.end_part(worker, ended)
    lease = self._ledger.lease(worker)
    await self._changed()
    is_paused = lease is None and self._ledger.is_pausing
    return self.PAUSE if is_paused else lease

  async def trained(
    self, worker: int, start: int, part: int, report: dict[str, Any]
  ) -> None:
    """See `Ledger`; the report goes to whoever takes it."""
    self._ledger.check(worker, start)
    self._ledger.trained(worker, part, report['pending'])
    self._reports.append({'worker': worker, 'start': start, **report})
    await self._changed()

  async def paused(self, worker: int, start: int) -> None:
    """Returns when training goes on."""
    self._ledger.pause(worker)
    await self._changed()
    await self._until(lambda: not self._ledger.is_pausing, worker, start)

  async def begin(
    self,
    worker: int,
    start: int,
    number: tuple[int, int] | None,
    num_steps: int,
    examples: float,
  ) -> tuple[int, float]:
    """See `Ledger`; returns when it may.

    The most steps of a dispatch, and the examples of all in the round.
    """
    self._ledger.check(worker, start)
    self._ledger.begin(worker, number, num_steps, examples)
    await self._changed()
    await self._until(lambda: self._ledger.may_begin(worker), worker, start)
    _, examples_of = self._ledger.round_of(worker)
    return self._ledger.most_steps(), sum(examples_of.values())

  async def has_read(self, worker: int, start: int) -> None:
    """See `Ledger`."""
    self._ledger.check(worker, start)
    self._ledger.has_read(worker)
    await self._changed()

  async def end(self, worker: int, start: int) -> None:
    """See `Ledger.may_push`; returns when it may."""
    await self._until(lambda: self._ledger.may_push(worker), worker, start)

  # Dense parameters.

  async def dense(self) -> tuple[Any, Any]:
    """Parameters, and the state of their optimizer."""
    return self._dense.params, self._dense.optimizer

  async def take_dense(self, worker: int, start: int) -> tuple[Any, Any]:
    """The same, for a worker that begins."""
    self._ledger.check(worker, start)
    return self._dense.take(worker)

  async def push_dense(
    self, worker: int, start: int, params: Any, optimizer: Any, weight: float
  ) -> Any:
    """See `dense.Dense.push`."""
    self._ledger.check(worker, start)
    return self._dense.push(worker, params, optimizer, weight)

  async def step_dense(
    self,
    worker: int,
    start: int,
    grads: Any,
    is_step: bool,
    learning_rate: float,
  ) -> Any:
    """The parameters after a step, once all in lockstep have sent gradients.

    See `dense.Dense.step`; these add up in the order of their workers.
    """
    self._ledger.check(worker, start)
    number, _ = self._ledger.round_of(worker)
    shares = self._shares.setdefault(number, {})
    shares[worker] = grads
    await self._changed()

    def is_whole():
      _, members = self._ledger.round_of(worker)
      return (
        self._shares.get(number) is not shares
        or members.keys() <= shares.keys()
      )

    await self._until(is_whole, worker, start)
    if self._shares.get(number) is shares:
      del self._shares[number]
      some = [grads for _, grads in sorted(shares.items(), key=lambda x: x[0])]
      self._dense.step(some, is_step, learning_rate)
      await self._changed()
    return self._dense.params

  # Of whoever runs them.

  async def take(self) -> list[dict[str, Any]]:
    """The reports since the last call."""
    reports, self._reports = self._reports, []
    return reports

  async def pause(self) -> bool:
    """Has all pause; whether they have."""
    self._ledger.request_pause()
    await self._changed()
    return self._ledger.has_paused

  async def go_on(self, rate_factor: float, ends: bool) -> None:
    """Ends a pause; see `Ledger.end_pause`."""
    self._ledger.end_pause(rate_factor, ends)
    await self._changed()

  async def state(self) -> list[dict[str, Any]]:
    """See `Ledger`."""
    return self._ledger.state()

  async def restore(
    self, state: list[dict[str, Any]] | None, dense: Any, rate_factor: float
  ) -> None:
    """See `Ledger`; with what `Desk.dense` has returned. None = a new run."""
    self._ledger.rate_factor = rate_factor
    if state is not None:
      self._ledger.restore(state)
    if self._dense:
      self._dense.params, self._dense.optimizer = dense

  async def has_ended(self) -> bool:
    """See `Ledger`."""
    return self._ledger.has_ended
