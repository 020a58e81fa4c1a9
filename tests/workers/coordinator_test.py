"""The coordinator gives every dispatch to somebody, whoever ends and when."""

import asyncio
import collections

import numpy as np
import pytest

from jaxemb.workers import coordinator, lockstep


def _make(pace, num_parts, num_workers, ahead=3):
  if pace == 'bsp':
    return lockstep.Coordinator(num_parts, num_workers)
  return coordinator.Coordinator(num_parts, None if pace == 'asp' else ahead)


class _World:
  """Parts with so many dispatches, and workers that train, end and join."""

  def __init__(self, pace, sizes, num_workers, rng):
    self.sizes, self.rng = sizes, rng
    self.actor = _make(pace, len(sizes), num_workers)
    self.starts = {}
    self.given = {}  # by worker, dispatches that it was given and has made
    self.making = {}  # the one that it is making
    self.trained = collections.Counter()
    self.repeats = 0

  def join(self, *workers):
    for worker in workers:
      self.starts[worker] = self.actor.join(worker)[0]
      self.given[worker] = collections.deque()

  def kill(self, worker):
    given = self.given.pop(worker)
    self.making.pop(worker, None)
    ended = self.actor.leave(worker)
    self.repeats += len(given)
    assert ended.units == sum(own for *_, own in given)

  def lease(self, worker):
    """Whether it was given something, or has made it."""
    made = ended = None
    if had := self.making.pop(worker, None):
      made, ended = self.make(worker, had)
    lease = self.actor.lease(worker, self.starts[worker], made, ended)
    if isinstance(lease, coordinator.Lease):
      self.making[worker] = lease
    return had is not None or worker in self.making

  def make(self, worker, lease):
    """A dispatch, or an end of the part."""
    number = lease.position or 0
    assert lease.done == 10 * number
    if number == self.sizes[lease.part]:
      return None, lease.part
    own = int(self.rng.integers(1, 9))
    self.given[worker].append((lease.part, number, own))
    return (lease.part, number + 1, 10 * (number + 1), own), None

  def train(self, worker):
    part, number, _ = self.given[worker].popleft()
    self.trained[part, number] += 1
    self.actor.trained(worker, self.starts[worker], part, {'pending': 3})

  def turn(self, worker):
    """A random thing that a worker does."""
    given = self.given[worker]
    if given and (len(given) > 2 or self.rng.random() < 0.5):
      return self.train(worker)
    if not self.lease(worker) and given:
      self.train(worker)

  def check(self):
    everything = {(p, i) for p, n in enumerate(self.sizes) for i in range(n)}
    assert self.actor.has_ended()
    assert set(self.trained) == everything
    # A dispatch is trained once: what was given and not trained, was given
    # again, and what was trained never.
    assert set(self.trained.values()) == {1}


@pytest.mark.parametrize('pace', ['asp', 'ssp', 'bsp'])
def test_every_dispatch_is_trained_once_whoever_ends(pace):
  repeats = 0
  for seed in range(5):
    rng = np.random.default_rng(seed)
    world = _World(pace, [7, 5, 9, 6, 7, 8], 3, rng)
    world.join(*range(3))
    while not world.actor.has_ended():
      workers = list(world.given)
      worker = workers[rng.integers(len(workers))]
      chance = rng.random()
      if chance < 0.05:
        world.kill(worker)
        world.join(worker)
      elif chance < 0.06 and len(workers) > 1:
        world.kill(worker)  # it leaves
      elif chance < 0.07 and len(workers) < 6:
        world.join(max(workers) + 1)
      else:
        world.turn(worker)
    world.check()
    for worker, start in world.starts.items():
      if worker in world.given:
        assert not world.actor.is_done()  # it may push
        world.actor.finish(worker, start, {})
    assert world.actor.is_done()
    repeats += world.repeats
  assert repeats


@pytest.mark.parametrize('pace', ['asp', 'ssp', 'bsp'])
def test_a_run_goes_on_from_a_pause(pace):
  rng = np.random.default_rng(0)
  sizes = [6] * (3 if pace == 'bsp' else 12)
  world = _World(pace, sizes, 3, rng)
  world.join(*range(3))
  for _ in range(20):
    world.turn(int(rng.integers(3)))
  assert not world.actor.pause()
  for worker in range(3):
    while world.lease(worker) or world.given[worker]:
      if world.given[worker]:
        world.train(worker)
    world.actor.members[worker].is_paused = True
  assert world.actor.pause()
  state = world.actor.state()
  if pace == 'bsp':  # all have come as far as the first
    assert len({x['done'] for x in state}) == 1
  # In another process, with other workers.
  num = 3 if pace == 'bsp' else 5
  world.actor = _make(pace, len(sizes), num)
  world.actor.restore(state, None, 1.0)
  world.given, world.making = {}, {}
  world.join(*range(num))
  while not world.actor.has_ended():
    world.turn(int(rng.integers(num)))
  world.check()


@pytest.mark.parametrize(
  'pace,ahead', [('asp', 10**6), ('ssp', 0), ('ssp', 2), ('ssp', 5)]
)
def test_no_worker_is_further_ahead_than_it_may(pace, ahead):
  rng = np.random.default_rng(0)
  actor = _make(pace, 4, 3, ahead)
  rounds, waits, seen = dict.fromkeys(range(3), 0), set(), 0
  for worker in rounds:
    actor.join(worker)
  for _ in range(2000):
    # One of them is slow.
    worker = int(rng.choice(3, p=[0.45, 0.45, 0.1]))
    if worker not in waits:
      actor.members[worker].begun += 1
      waits.add(worker)
    if actor.may_begin(worker):
      waits.discard(worker)
      rounds[worker] += 1
      spread = max(rounds.values()) - min(rounds.values())
      seen = max(seen, spread)
  if pace == 'ssp':
    assert ahead <= seen <= ahead + 1  # one of them may not know it yet
  else:
    assert seen > 100
  # Who ends is not waited for.
  actor.leave(2)
  waiting = [x for x in waits if x != 2]
  assert all(map(actor.may_begin, waiting)) or pace == 'ssp'


def test_lockstep_reads_what_all_have_pushed_and_no_more():
  rng = np.random.default_rng(0)
  num, rounds = 4, 30
  # Workers have other numbers of rounds in the same dispatch.
  sizes = rng.integers(1, 5, (num, rounds))
  actor = lockstep.Coordinator(num, num)
  pushed, log = collections.Counter(), []

  async def work(worker):
    start, *_ = actor.join(worker)
    made = None
    for dispatch in range(rounds):
      part = actor.lease(worker, start, made, None).part
      made = part, dispatch + 1, 10 * (dispatch + 1), 1
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
        actor.has_read(worker, start)
      actor.lease(worker, start, made, None)
      made = None
      actor.trained(worker, start, part, {'pending': 0})
    actor.lease(worker, start, None, part)
    await actor.end(worker, start)
    pushed[worker] += 1
    actor.finish(worker, start, {})

  async def all_of_them():
    await asyncio.wait_for(asyncio.gather(*map(work, range(num))), 60)

  asyncio.run(all_of_them())
  assert actor.has_ended()
  assert sum(pushed.values()) == sizes.sum()
  # All who read rows of a round have read the same.
  seen = {}
  for _, dispatch, i, found in log:
    assert seen.setdefault((dispatch, i), found) == found


def test_who_joins_knows_how_much_each_has_trained():
  actor, made = coordinator.Coordinator(4), {}
  starts = []
  for worker in range(2):
    start, _, done = actor.join(worker)
    starts.append(start)
    assert done == 0
  for i in range(10):
    for worker, start in enumerate(starts):
      lease = actor.lease(worker, start, made.get(worker), None)
      if worker in made:
        actor.trained(worker, start, made[worker][0], {'pending': 0})
      made[worker] = lease.part, i + 1, 100 * (i + 1), 100
  assert actor.join(0)[2] in (900, 1000)
  lockstep_actor = lockstep.Coordinator(2, 2)
  assert lockstep_actor.join(0)[2] == 0


def test_a_process_that_was_replaced_is_told():
  actor = coordinator.Coordinator(2)
  old, *_ = actor.join(0)
  actor.lease(0, old, None, None)
  new, *_ = actor.join(0)
  with pytest.raises(coordinator.Stale, match='worker 0 was replaced'):
    actor.lease(0, old, (0, 1, 10, 5), None)
  lease = actor.lease(0, new, None, None)
  assert lease[:3] == (0, None, 0)
