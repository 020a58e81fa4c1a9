"""The ledger gives every dispatch to somebody, whoever ends and when."""

import asyncio
import collections

import numpy as np
import pytest

from jaxemb.workers import coordinator, lockstep


def _ledger(pace, num_parts, num_workers, ahead=3):
  if pace == 'bsp':
    return lockstep.Ledger(num_parts, num_workers)
  return coordinator.Ledger(num_parts, None if pace == 'asp' else ahead)


class _World:
  """Parts with so many dispatches, and workers that train, end and join."""

  def __init__(self, pace, sizes, num_workers, rng):
    self.sizes, self.rng = sizes, rng
    self.ledger = _ledger(pace, len(sizes), num_workers)
    self.given = {}  # by worker, dispatches that it was given and has made
    self.making = {}  # the one that it is making
    self.trained = collections.Counter()
    self.repeats = 0

  def join(self, worker):
    self.ledger.join(worker)
    self.given[worker] = collections.deque()

  def kill(self, worker):
    given = self.given.pop(worker)
    self.making.pop(worker, None)
    ended = self.ledger.leave(worker)
    self.repeats += len(given)
    assert ended.units == sum(own for *_, own in given)

  def lease(self, worker):
    """Whether it was given something, or has made it."""
    if worker in self.making:
      self.make(worker, self.making.pop(worker))
      return True
    if (lease := self.ledger.lease(worker)) is None:
      return False
    self.making[worker] = lease
    return True

  def make(self, worker, lease):
    """A dispatch, or an end of the part."""
    number = lease.position or 0
    assert lease.done == 10 * number
    if number == self.sizes[lease.part]:
      self.ledger.end_part(worker, lease.part)
    else:
      own = int(self.rng.integers(1, 9))
      behind = number + 1, 10 * (number + 1), own
      self.ledger.made(worker, lease.part, *behind)
      self.given[worker].append((lease.part, number, own))

  def train(self, worker):
    part, number, _ = self.given[worker].popleft()
    self.trained[part, number] += 1
    self.ledger.trained(worker, part, pending=3)

  def turn(self, worker):
    """A random thing that a worker does."""
    given = self.given[worker]
    if given and (len(given) > 2 or self.rng.random() < 0.5):
      return self.train(worker)
    if not self.lease(worker) and given:
      self.train(worker)

  def check(self):
    everything = {(p, i) for p, n in enumerate(self.sizes) for i in range(n)}
    assert self.ledger.has_ended
    assert set(self.trained) == everything
    # A dispatch is trained once: what was given and not trained, was given
    # again, and what was trained never.
    assert set(self.trained.values()) == {1}


@pytest.mark.parametrize('pace', ['asp', 'ssp', 'bsp'])
@pytest.mark.parametrize('seed', range(5))
def test_every_dispatch_is_trained_once_whoever_ends(pace, seed):
  rng = np.random.default_rng(seed)
  world = _World(pace, [7, 5, 9, 6, 7, 8], 3, rng)
  for worker in range(3):
    world.join(worker)
  for _ in range(10_000):
    workers = list(world.given)
    worker = workers[rng.integers(len(workers))]
    chance = rng.random()
    if chance < 0.02:
      world.kill(worker)
      world.join(worker)
    elif chance < 0.03 and len(workers) > 1:
      world.kill(worker)  # it leaves
    elif chance < 0.04 and len(workers) < 6:
      world.join(max(workers) + 1)
    else:
      world.turn(worker)
    if world.ledger.has_ended:
      break
  world.check()
  assert world.repeats or pace == 'bsp'


def test_parts_are_read_abreast():
  rng = np.random.default_rng(0)
  world = _World('asp', [20] * 8, 2, rng)
  for worker in range(2):
    world.join(worker)
  for _ in range(150):
    world.turn(int(rng.integers(2)))
    far = [x.done for x in world.ledger.parts]
    assert max(far) - min(far) <= 20


@pytest.mark.parametrize('pace', ['asp', 'ssp', 'bsp'])
def test_a_run_goes_on_from_a_pause(pace):
  rng = np.random.default_rng(0)
  sizes = [6] * (3 if pace == 'bsp' else 12)
  world = _World(pace, sizes, 3, rng)
  for worker in range(3):
    world.join(worker)
  for _ in range(20):
    world.turn(int(rng.integers(3)))
  assert not world.ledger.has_paused
  world.ledger.request_pause()
  for worker in range(3):
    while world.lease(worker) or world.given[worker]:
      if world.given[worker]:
        world.train(worker)
    world.ledger.pause(worker)
  assert world.ledger.has_paused
  state = world.ledger.state()
  if pace == 'bsp':  # all have come as far as the first
    assert len({x['done'] for x in state}) == 1
  # In another process, with other workers.
  num = 3 if pace == 'bsp' else 5
  world.ledger = _ledger(pace, len(sizes), num)
  world.ledger.restore(state)
  world.given, world.making = {}, {}
  for worker in range(num):
    world.join(worker)
  while not world.ledger.has_ended:
    world.turn(int(rng.integers(num)))
  world.check()


@pytest.mark.parametrize(
  'pace,ahead', [('asp', 10**6), ('ssp', 0), ('ssp', 2), ('ssp', 5)]
)
def test_no_worker_is_further_ahead_than_it_may(pace, ahead):
  rng = np.random.default_rng(0)
  book = _ledger(pace, 4, 3, ahead)
  rounds, waits, seen = dict.fromkeys(range(3), 0), set(), 0
  for worker in rounds:
    book.join(worker)
  for _ in range(2000):
    # One of them is slow.
    worker = int(rng.choice(3, p=[0.45, 0.45, 0.1]))
    if worker not in waits:
      book.begin(worker)
      waits.add(worker)
    if book.may_begin(worker):
      waits.discard(worker)
      rounds[worker] += 1
      spread = max(rounds.values()) - min(rounds.values())
      seen = max(seen, spread)
  if pace == 'ssp':
    assert ahead <= seen <= ahead + 1  # one of them may not know it yet
  else:
    assert seen > 100
  # Who ends is not waited for.
  book.leave(2)
  waiting = [x for x in waits if x != 2]
  assert all(map(book.may_begin, waiting)) or pace == 'ssp'


def test_lockstep_reads_what_all_have_pushed_and_no_more():
  rng = np.random.default_rng(0)
  num, rounds = 4, 30
  # Workers have other numbers of rounds in the same dispatch.
  sizes = rng.integers(1, 5, (num, rounds))
  actor = lockstep.Coordinator(lockstep.Ledger(num, num))
  pushed, log = collections.Counter(), []

  async def work(worker):
    start, _ = await actor.join(worker)
    part = None
    for dispatch in range(rounds):
      lease = await actor.lease(worker, start, None, None)
      part = lease.part
      actor.ledger.made(worker, part, dispatch + 1, 10 * (dispatch + 1), 1)
      for i in range(sizes[worker, dispatch]):
        if dispatch or i:
          await actor.end(worker, start)
          pushed[worker] += 1
        await asyncio.sleep(rng.random() * 1e-3)
        args = (dispatch, i), int(sizes[worker, dispatch]), 1.0 + worker
        most, examples = await actor.begin(worker, start, *args)
        if i == 0:
          assert most == sizes[:, dispatch].max()
        assert examples == np.sum(1.0 + np.flatnonzero(sizes[:, dispatch] > i))
        log.append((worker, dispatch, i, dict(pushed)))
        await asyncio.sleep(rng.random() * 1e-3)
        await actor.has_read(worker, start)
      report = {'pending': 0}
      await actor.trained(worker, start, part, report)
    await actor.lease(worker, start, None, part)
    await actor.end(worker, start)
    pushed[worker] += 1
    await actor.finish(worker, start, {})

  async def all_of_them():
    await asyncio.wait_for(asyncio.gather(*map(work, range(num))), 60)

  asyncio.run(all_of_them())
  assert actor.ledger.has_ended
  assert sum(pushed.values()) == sizes.sum()
  # All who read rows of a round have read the same.
  seen = {}
  for _, dispatch, i, found in log:
    assert seen.setdefault((dispatch, i), found) == found


def test_whoever_comes_first_has_one_part_in_lockstep():
  book = lockstep.Ledger(2, 2)
  book.join(0)
  assert book.lease(0).part == 0
  book.made(0, 0, 1, 10, 5)
  assert book.lease(0).part == 0
  book.end_part(0, 0)
  assert book.lease(0) is None  # the other one is not there yet
  book.join(1)
  assert book.lease(1).part == 1


def test_lockstep_ends_a_dispatch_beside_workers_that_pause():
  book = lockstep.Ledger(2, 2)
  for worker in range(2):
    book.join(worker)
    book.lease(worker)
    book.made(worker, worker, 1, 10, 5)
    book.begin(worker, (0, 0), 3)
    book.has_read(worker)
  book.request_pause()
  book.pause(0)  # its dispatch had one round
  assert book.may_push(1)
  book.begin(1, (0, 1), 3)
  assert book.may_begin(1)
  book.has_read(1)
  assert book.may_push(1)


def test_a_process_that_was_replaced_is_told():
  async def calls():
    actor = coordinator.Coordinator(coordinator.Ledger(2))
    old, _ = await actor.join(0)
    await actor.lease(0, old, None, None)
    new, _ = await actor.join(0)
    with pytest.raises(coordinator.Stale, match='worker 0 was replaced'):
      await actor.lease(0, old, (0, 1, 10, 5), None)
    lease = await actor.lease(0, new, None, None)
    assert lease == coordinator.Lease(0, None, 0)

  asyncio.run(calls())
