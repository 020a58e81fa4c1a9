"""The protocol of shared tables holds under schedules drawn at random."""

import itertools

import numpy as np
import pytest

from jaxemb.stores import cache as cache_lib
from jaxemb.workers import copies, shards
from tests import marking

ROWS, WIDTH, ADDED, WORKERS = 60, 3, 2, 3


def _first(ids):
  """Whole numbers, whose sums are exact in any order."""
  return np.stack([ids, -ids, np.zeros_like(ids)], 1).astype(np.float32)


def _make(ids):
  return _first(ids).view(np.uint8)


class _Servers:
  """Shards in this process, which may go back to a snapshot."""

  def __init__(self, num=2):
    args = ROWS, 4 * WIDTH, ADDED
    self.shards = [shards.Shard(i, num, *args) for i in range(num)]
    self.sent = []  # of every call

  def call(self, requests):
    self.sent.append(requests)
    return [
      {i: getattr(self.shards[i], x.method)(*y) for i, y in x.args.items()}
      for x in requests
    ]

  def table(self, client):
    args = (
      'x',
      len(self.shards),
      ROWS,
      4 * WIDTH,
      _make,
      self.call,
      client,
      list,
    )
    return shards.Sharded(*args)


class _Worker:
  """A device with its cache: lines, and random steps that change them."""

  def __init__(self, servers, number, policy, bounds, log, capacity=24):
    self.log = log  # of what is pushed
    self.table = servers.table(f'worker {number}')
    self.cache = cache_lib.Cache(('x',), ROWS, capacity, policy)
    self.copies = copies.Copies(self.table, capacity, ADDED, *bounds)
    self.rows = np.zeros((capacity, WIDTH), np.float32)
    self.used = np.zeros(0, np.int64), np.zeros(0, np.int64)
    self.number = number
    # By id, as counted here: not pushed, pushed since the row was read, and the
    # clock that it had then.
    self.pending = np.zeros(ROWS, np.int64)
    self.sums = np.zeros((ROWS, ADDED))
    self.pushed, self.seen = np.zeros((2, ROWS), np.int64)

  def push(self, pending):
    ids = pending.ids
    push = self.copies.asking_push(pending, self.settle(pending))
    shards.together(self.table.call, [push])
    np.testing.assert_array_equal(pending.updates, self.pending[ids])
    self.pushed[ids] += pending.updates
    self.pending[ids], self.sums[ids] = 0, 0
    self.log(ids, pending.updates, self.number)

  def settle(self, pending):
    return self.copies.settle(pending, self.rows, pending.lines)

  def place(self, ids):
    """Finds lines for rows; what leaves is pushed, then what is old is read."""
    self.cache.foresee([[ids]])
    moves = self.cache.take(self.cache.num_fitting(1))
    lines = self.cache.cache_row_of[ids]
    self.push(self.copies.leave(moves.out['x'][0]))
    fetched = self.copies.read(lines, ids)
    self.copies.commit(fetched, self.rows, fetched.lines)
    self.seen[fetched.ids] = shards.num_updates(fetched.clocks)
    self.pushed[fetched.ids] = 0
    return lines

  def train(self, lines, ids, updates, deltas):
    self.copies.begin(lines, updates)
    self.rows[lines, :ADDED] += deltas
    self.rows[lines, ADDED:] = self.number
    self.pending[ids] += updates
    self.sums[ids] += deltas

  def finish(self, lines):
    self.push(self.copies.due(lines))


def _draw(rng, num=8):
  ids = np.unique(rng.zipf(1.3, num) % ROWS).astype(np.int32)
  updates = rng.integers(1, 4, len(ids))
  return ids, updates, rng.integers(-3, 4, (len(ids), ADDED))


def _state(servers):
  """Rows and clocks of all shards."""
  reader = servers.table('reader')
  found = reader.newer(np.arange(ROWS), np.full(ROWS, shards.NEVER), 0)
  order = np.argsort(found.at)
  rows = found.records.view(np.float32)[order]
  return rows, shards.num_updates(found.clocks[order])


SLOW = (3, 5), (100, 100), (0, 7), (20, 0)


# What is read and pushed does not depend on what a policy evicts.
@pytest.mark.slow
@pytest.mark.parametrize(
  ('bounds', 'policy', 'num_turns'),
  [
    ((0, 0), 'lru', 2_000),
    *(
      marking.slow(x, policy, 10_000)
      for x, policy in zip(
        [(0, 0), *SLOW], itertools.cycle(('lru', 'lfu')), strict=False
      )
    ),
  ],
)
def test_invariants_hold_under_any_schedule(bounds, policy, num_turns):
  rng, servers = np.random.default_rng(sum(bounds)), _Servers()
  read_bound, write_bound = bounds
  pushed, last = np.zeros(ROWS, np.int64), {}

  def log(ids, updates, number):
    pushed[ids] += updates
    last.update(dict.fromkeys(ids, number))

  workers = [_Worker(servers, i, policy, bounds, log) for i in range(WORKERS)]
  sums = _first(np.arange(ROWS))[:, :ADDED].astype(float)
  running = {}
  for step in range(num_turns):
    worker = workers[rng.integers(WORKERS)]
    if (lines := running.pop(worker.number, None)) is not None:
      worker.finish(lines)
      # I3: what is not pushed when a stretch has ended.
      assert worker.pending.max() <= write_bound
      continue
    ids, updates, deltas = _draw(rng)
    lines = worker.place(ids)
    if step % 7 == 0:
      rows, clocks = _state(servers)
      # I1: a clock counts all that was pushed.
      np.testing.assert_array_equal(clocks, pushed)
      # I6: a copy's clock has risen by this worker's own pushes alone.
      own = shards.num_updates(worker.copies._clocks[lines])
      np.testing.assert_array_equal(own, (worker.seen + worker.pushed)[ids])
      # I3: what others have pushed since.
      missed = clocks[ids] - own
      assert 0 <= missed.min() and missed.max() <= read_bound
      # I4: what they have not pushed, but for stretches that run.
      idle = [x for x in workers if x.number not in running]
      others = sum(x.pending for x in idle) - worker.pending
      assert others.max() <= (len(idle) - 1) * write_bound
      if not read_bound:
        # I5: what lies in the shards, and what this worker has beside it.
        wanted = rows[ids, :ADDED] + worker.sums[ids]
        np.testing.assert_array_equal(worker.rows[lines, :ADDED], wanted)
    worker.train(lines, ids, updates, deltas)
    sums[ids] += deltas
    running[worker.number] = lines
  for worker in workers:
    worker.push(worker.copies.all())
  rows, clocks = _state(servers)
  # I2: nothing is lost, and nothing is added twice.
  np.testing.assert_array_equal(rows[:, :ADDED], sums)
  np.testing.assert_array_equal(clocks, pushed)
  # What does not add up is as its last writer left it.
  for row, number in last.items():
    assert rows[row, ADDED] == number


@pytest.mark.slow
@pytest.mark.parametrize('bounds', [(0, 0), (4, 6)])
def test_rows_read_while_a_stretch_runs_lose_nothing(bounds):
  rng, servers = np.random.default_rng(7), _Servers(3)
  workers = [
    _Worker(servers, i, 'lru', bounds, lambda *x: None) for i in range(WORKERS)
  ]
  sums = _first(np.arange(ROWS))[:, :ADDED].astype(float)
  ahead = {}
  for _ in range(3000):
    worker = workers[rng.integers(WORKERS)]
    copies_ = worker.copies
    # The stretch before has run while this one's rows were read.
    moves, fetched, lines, ids = ahead.pop(worker.number, [None] * 4)
    if fetched is not None:
      leaving = copies_.leave(moves.out['x'][0])
      gone = worker.settle(leaving)
      copies_.commit(fetched, worker.rows, fetched.lines)
      due = copies_.due(worker.lines)
      kept = worker.settle(due)
      updates = rng.integers(1, 4, len(ids))
      deltas = rng.integers(-3, 4, (len(ids), ADDED))
      worker.train(lines, ids, updates, deltas)
      sums[ids] += deltas
      # Beside the steps.
      for pending, deltas in ((leaving, gone), (due, kept)):
        push = copies_.asking_push(pending, deltas)
        assert shards.together(servers.call, [push]) == [False]
      worker.lines = lines
    else:
      worker.lines = np.zeros(0, np.int64)
    ids = _draw(rng)[0]
    worker.cache.foresee([[ids]])
    moves = worker.cache.take(worker.cache.num_fitting(1))
    lines = worker.cache.cache_row_of[ids]
    fetched = copies_.read(lines, ids)
    ahead[worker.number] = moves, fetched, lines, ids
  for worker in workers:
    pending = worker.copies.all()
    push = worker.copies.asking_push(pending, worker.settle(pending))
    shards.together(servers.call, [push])
  np.testing.assert_array_equal(_state(servers)[0][:, :ADDED], sums)


@pytest.mark.slow
def test_what_rounding_takes_off_goes_with_the_next_push():
  servers = _Servers(1)
  worker = _Worker(servers, 0, 'lru', (0, 0), lambda *x: None)
  ids = np.array([5], np.int32)
  for _ in range(1000):
    lines = worker.place(ids)
    worker.train(lines, ids, np.ones(1, np.int64), np.full((1, ADDED), 0.1))
    worker.finish(lines)
  # One worker reads what it wrote, to the bit.
  found = _state(servers)[0][5, :ADDED]
  np.testing.assert_allclose(found, worker.rows[lines[0], :ADDED], rtol=2e-7)


def test_rows_travel_only_where_they_are_old():
  servers = _Servers()
  one, two = (
    _Worker(servers, i, 'lru', (1, 1), lambda *x: None) for i in range(2)
  )
  ids, once = np.arange(4, dtype=np.int32), np.ones(4, np.int64)
  lines = two.place(ids)
  for updates, num_read in ((1, 0), (1, 4), (1, 0), (2, 4)):
    lines = one.place(ids)
    one.train(lines, ids, updates * once, np.ones((4, ADDED)))
    one.push(one.copies.all())
    fetched = two.copies.read(two.cache.cache_row_of[ids], ids)
    assert len(fetched.ids) == num_read
    two.copies.commit(fetched, two.rows, fetched.lines)


def test_a_shard_that_came_back_is_read_anew_and_given_first_rows(tmp_path):
  servers = _Servers(1)
  shard = servers.shards[0]
  worker = _Worker(servers, 0, 'lru', (5, 0), lambda *x: None)
  ids, once = np.arange(4, dtype=np.int32), np.ones(4, np.int64)

  def train():
    lines = worker.place(ids)
    worker.train(lines, ids, once, np.ones((4, ADDED)))
    return lines

  worker.finish(train()[:2])
  checksum = shard.snapshot(tmp_path / 'rows')
  for _ in range(3):
    worker.finish(train())
  assert shard.updates == 2 + 14
  shard.restore(tmp_path / 'rows', checksum)
  assert shard.updates == 2
  worker.finish(train())
  # Two rows had one update and two none, before a new one.
  expected = _first(ids)[:, :ADDED] + np.array([[2], [2], [1], [1]])
  np.testing.assert_array_equal(_state(servers)[0][:4, :ADDED], expected)
  np.testing.assert_array_equal(_state(servers)[1][:4], [2, 2, 1, 1])
  lines = train()  # rows that a shard has lost, while a stretch runs
  shard.restore(tmp_path / 'rows', checksum)
  worker.finish(lines)
  np.testing.assert_array_equal(_state(servers)[1][:4], [2, 2, 1, 1])


def test_a_call_that_is_repeated_is_done_once():
  servers = _Servers(2)
  table, ids = servers.table('me'), np.array([3, 8, 9])
  deltas = np.ones((3, WIDTH), np.float32).view(np.uint8)
  first = np.zeros((0, 4 * WIDTH), np.uint8)
  none = np.zeros(0, np.int64)
  table.add(ids, deltas, np.full(3, 2), none, first)
  for requests in list(servers.sent):
    servers.call(requests)
  rows, clocks = _state(servers)
  np.testing.assert_array_equal(rows[ids, 0], ids + 1)
  np.testing.assert_array_equal(clocks[ids], 2)
