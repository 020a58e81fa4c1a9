"""The protocol of shared tables holds under schedules drawn at random."""

import numpy as np
import pytest

from jaxemb.stores import cache as cache_lib
from jaxemb.workers import copies, shards, staleness
from tests.workers import local_cluster

ROWS, WIDTH, ADDED, WORKERS = 60, 3, 2, 3


def _first(ids):
  """Whole numbers, whose sums are exact in any order."""
  return np.stack([ids, -ids, np.zeros_like(ids)], 1).astype(np.float32)


def _make(ids):
  return _first(ids).view(np.uint8)


def _table(cluster, num_shards=2):
  args = num_shards, ROWS, 4 * WIDTH, _make
  return cluster.table('x', *args, num_added=ADDED)


class _Worker:
  """A device with its cache: lines, and random steps that change them."""

  def __init__(
    self, servers, number, policy, bound, log, num_shards=2, is_in_place=False
  ):
    self.log = log  # of what is pushed
    self.is_in_place = is_in_place
    self.table = _table(servers, num_shards)
    capacity = 24
    self.cache = cache_lib.Cache(('x',), ROWS, capacity, policy)
    rule = bound if isinstance(bound, staleness.Rule) else staleness.Rule(bound)
    self.copies = copies.Copies(self.table, capacity, rule)
    self.servers, self.rule = servers, rule
    sums = np.zeros((capacity, ADDED), np.float32)
    last = np.zeros((capacity, WIDTH - ADDED), np.float32)
    kind = 'weighted' if rule.num_weighted else 'added'
    parts = copies.Part(sums, kind), copies.Part(last, 'replaced')
    self.sums_here, self.last_here, self.parts = sums, last, parts
    self.used = np.zeros(0, np.int64), np.zeros(0, np.int64)
    self.number = number
    # By id, as counted here: not pushed, pushed since the row was read, and the
    # clock that it had then.
    self.pending = np.zeros(ROWS, np.int64)
    self.sums = np.zeros((ROWS, ADDED))
    self.pushed, self.seen = np.zeros((2, ROWS), np.int64)

  def add_request(self, push):
    return self.table.add_request(push, self.rule)

  def push(self, pending):
    ids = pending.ids
    self.table.call([self.add_request(self.settle(pending))])
    np.testing.assert_array_equal(pending.updates, self.pending[ids])
    self.pushed[ids] += pending.updates
    self.pending[ids], self.sums[ids] = 0, 0
    self.log(ids, pending.updates, self.number)

  def block(self, lines):
    return copies.Block(self.parts, np.asarray(lines, np.int64))

  def settle(self, pending):
    return self.copies.settle(pending, self.block(pending.lines))

  def place(self, ids):
    """Finds lines for rows; what leaves is pushed, then what is old is read."""
    self.cache.foresee([[ids]])
    moves = self.cache.take(self.cache.num_fitting(1))
    lines = self.cache.cache_row_of[ids]
    if self.is_in_place:
      self.push_in_place(lines[:0], moves.out['x'][0])
      self.read_in_place(lines, ids)
      return lines
    self.push(self.copies.leave(moves.out['x'][0]))
    newer = self.commit(lines, ids, self.read(lines, ids))
    self.seen[ids[newer.at]] = staleness.num_updates(newer.clocks)
    self.pushed[ids[newer.at]] = 0
    return lines

  def read(self, lines, ids):
    request = self.copies.read_request(lines, ids)
    return local_cluster.newer(
      self.table, request, self.table.call([request])[0]
    )

  def commit(self, lines, ids, newer):
    lines, ids = lines[newer.at], ids[newer.at]
    self.copies.commit(lines, ids, newer, self.block(lines))
    return newer

  def train(self, lines, ids, updates, deltas):
    self.copies.begin(lines, updates)
    self.sums_here[lines] += deltas
    self.last_here[lines] = self.number
    self.pending[ids] += updates
    self.sums[ids] += deltas

  def finish(self, lines):
    if self.is_in_place:
      self.push_in_place(lines, lines[:0])
    else:
      self.push(self.copies.due(lines))

  def push_in_place(self, used, leaving):
    copies = self.copies
    before = copies._updates.copy(), copies._ids.copy()
    request = copies.push_in_place(self.block([]), used, leaving)
    (totals,) = self.table.call([request])
    copies.has_left(leaving)
    updates, ids = (x[before[0] > copies._updates] for x in before)
    assert sum(x for x, _ in totals.values()) == updates.sum()
    state = _state(self.servers, self.table.num_shards)
    if self.number == 0:  # a call that is repeated is done once
      (again,) = self.table.call([request])
      assert set(again.values()) == {(0, 0)}
      after = _state(self.servers, self.table.num_shards)
      for x, y in zip(state, after, strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(updates, self.pending[ids])
    lines = np.flatnonzero(copies._updates < before[0])
    # They are also read.
    self.seen[ids] = staleness.num_updates(copies._clocks[lines])
    self.pushed[ids] = self.pending[ids] = self.sums[ids] = 0
    self.log(ids, updates, self.number)
    # They are as new as those of the shards.
    is_here = copies._ids[lines] >= 0
    found = staleness.num_updates(copies._clocks[lines[is_here]])
    wanted = state[1][ids[is_here]]
    is_known = wanted > 0  # or their shard has lost them
    np.testing.assert_array_equal(found[is_known], wanted[is_known])

  def read_in_place(self, lines, ids):
    order, stops = self.table.by_shard(ids)
    lines, ids = lines[order].astype(np.int64), ids[order].astype(np.int64)
    before = self.copies._clocks[lines], self.copies._ids[lines]
    keep = lines[self.copies._updates[lines] > 0]
    last = self.last_here[keep]
    request = self.copies.read_in_place(
      self.block([]), lines, ids=ids, stops=stops
    )
    (results,) = self.table.call([request])
    num_read = 0
    for found, new in self.table.made_of_shards(request, results):
      self.commit(lines, ids, new)
      num_read += found.num_read + found.num_unknown
    np.testing.assert_array_equal(self.last_here[keep], last)
    clocks = self.copies._clocks[lines]
    is_read = (clocks != before[0]) | (self.copies._ids[lines] != before[1])
    assert np.count_nonzero(is_read) <= num_read <= len(ids)
    self.seen[ids[is_read]] = staleness.num_updates(clocks[is_read])
    self.pushed[ids[is_read]] = 0


def _draw(rng, num=8):
  ids = np.unique(rng.zipf(1.3, num) % ROWS).astype(np.int32)
  updates = rng.integers(1, 4, len(ids))
  return ids, updates, rng.integers(-3, 4, (len(ids), ADDED))


def _state(servers, num_shards=2):
  """Rows and clocks of all shards."""
  reader = _table(servers, num_shards)
  ids = np.arange(ROWS)
  request = reader.newer_request(
    ids, np.full(ROWS, staleness.NEVER), staleness.Rule(0)
  )
  found = local_cluster.newer(reader, request, reader.call([request])[0])
  order = np.argsort(found.at)
  rows = found.records.view(np.float32)[order]
  return rows, staleness.num_updates(found.clocks[order])


# What is read and pushed does not depend on what a policy evicts.
@pytest.mark.slow
@pytest.mark.parametrize('is_in_place', [False, True])
@pytest.mark.parametrize(('bound', 'policy'), [(0, 'lru'), (4, 'lfu')])
def test_invariants_hold_under_any_schedule(bound, policy, is_in_place):
  rng, servers = np.random.default_rng(bound), local_cluster.Cluster()
  pushed, last = np.zeros(ROWS, np.int64), {}

  def log(ids, updates, number):
    pushed[ids] += updates
    last.update(dict.fromkeys(ids, number))

  workers = [
    _Worker(servers, i, policy, bound, log, is_in_place=is_in_place)
    for i in range(WORKERS)
  ]
  sums = _first(np.arange(ROWS))[:, :ADDED].astype(float)
  running = {}
  for step in range(3000):
    worker = workers[rng.integers(WORKERS)]
    if (lines := running.pop(worker.number, None)) is not None:
      worker.finish(lines)
      # I3: what is not pushed when a stretch has ended.
      assert worker.pending.max() <= bound
      continue
    ids, updates, deltas = _draw(rng)
    lines = worker.place(ids)
    if step % 7 == 0:
      rows, clocks = _state(servers)
      # I1: a clock counts all that was pushed.
      np.testing.assert_array_equal(clocks, pushed)
      # I6: a copy's clock has risen by this worker's own pushes alone.
      own = staleness.num_updates(worker.copies._clocks[lines])
      np.testing.assert_array_equal(own, (worker.seen + worker.pushed)[ids])
      # I3: what others have pushed since.
      missed = clocks[ids] - own
      assert 0 <= missed.min() and missed.max() <= bound
      # I4: what they have not pushed, but for stretches that run.
      idle = [x for x in workers if x.number not in running]
      others = sum(x.pending for x in idle) - worker.pending
      assert others.max() <= (len(idle) - 1) * bound
      if not bound:
        # I5: what lies in the shards, and what this worker has beside it.
        wanted = rows[ids, :ADDED] + worker.sums[ids]
        np.testing.assert_array_equal(worker.sums_here[lines], wanted)
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
def test_a_part_of_what_stale_copies_learn_is_added_in_place_too():
  rule, states = staleness.Rule(0, memory=3.0, num_weighted=ADDED), []
  for is_in_place in (False, True):
    rng, servers = np.random.default_rng(3), local_cluster.Cluster()
    workers = [
      _Worker(servers, i, 'lru', rule, lambda *x: None, is_in_place=is_in_place)
      for i in range(WORKERS)
    ]
    running = {}
    for _ in range(300):
      worker = workers[rng.integers(WORKERS)]
      if (lines := running.pop(worker.number, None)) is not None:
        worker.finish(lines)
        continue
      ids, updates, deltas = _draw(rng)
      running[worker.number] = worker.place(ids)
      worker.train(running[worker.number], ids, updates, deltas)
    states.append(_state(servers))
  for by_messages, in_place in zip(*states, strict=True):
    np.testing.assert_array_equal(by_messages, in_place)
  assert (states[0][0][:, 0] % 1).any()


@pytest.mark.parametrize('is_in_place', [False, True])
@pytest.mark.parametrize('bound', [0, 4])
def test_averages_of_stale_copies_stay_between_what_they_average(
  bound, is_in_place
):
  rng, servers = np.random.default_rng(0), local_cluster.Cluster()
  memory = 3.0
  rule = staleness.Rule(bound, memory=memory, num_weighted=ADDED)
  workers = [
    _Worker(servers, i, 'lru', rule, lambda *x: None, is_in_place=is_in_place)
    for i in range(WORKERS)
  ]
  running = {}
  for _ in range(1000):
    worker = workers[rng.integers(WORKERS)]
    if (lines := running.pop(worker.number, None)) is not None:
      worker.finish(lines)
      continue
    ids, updates, _ = _draw(rng)
    lines = running[worker.number] = worker.place(ids)
    # Of ends of a range in which all rows begin: row <- m^n row + (1 - m^n) x.
    ends = ROWS * rng.choice([-1.0, 1.0], (len(ids), 1))
    part = 1 - np.exp(-updates / memory)[:, None]
    deltas = part * (ends - worker.sums_here[lines])
    worker.train(lines, ids, updates, deltas)
    assert np.abs(worker.sums_here).max() <= ROWS + 1e-4
  for worker in workers:
    worker.push(worker.copies.all())
  rows, _ = _state(servers)
  assert 0.9 * ROWS < np.abs(rows[:, :ADDED]).max() <= ROWS + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize('bound', [0, 5])
def test_rows_read_while_a_stretch_runs_lose_nothing(bound):
  rng, servers = np.random.default_rng(7), local_cluster.Cluster()
  workers = [
    _Worker(servers, i, 'lru', bound, lambda *x: None) for i in range(WORKERS)
  ]
  sums = _first(np.arange(ROWS))[:, :ADDED].astype(float)
  ahead = {}
  for _ in range(1000):
    worker = workers[rng.integers(WORKERS)]
    # The stretch before has run while this one's rows were read.
    moves, newer, lines, ids = ahead.pop(worker.number, [None] * 4)
    if newer is not None:
      gone = worker.settle(worker.copies.leave(moves.out['x'][0]))
      worker.commit(lines, ids, newer)
      kept = worker.settle(worker.copies.due(worker.lines))
      updates = rng.integers(1, 4, len(ids))
      deltas = rng.integers(-3, 4, (len(ids), ADDED))
      worker.train(lines, ids, updates, deltas)
      sums[ids] += deltas
      # Beside the steps.
      servers.call([worker.add_request(x) for x in (gone, kept)])
      worker.lines = lines
    else:
      worker.lines = np.zeros(0, np.int64)
    ids = _draw(rng)[0]
    worker.cache.foresee([[ids]])
    moves = worker.cache.take(worker.cache.num_fitting(1))
    lines = worker.cache.cache_row_of[ids]
    ahead[worker.number] = moves, worker.read(lines, ids), lines, ids
  for worker in workers:
    push = worker.settle(worker.copies.all())
    servers.call([worker.add_request(push)])
  np.testing.assert_array_equal(_state(servers)[0][:, :ADDED], sums)


@pytest.mark.parametrize('is_in_place', [False, True])
def test_a_shard_that_came_back_is_read_anew_and_loses_updates(
  is_in_place, tmp_path
):
  servers = local_cluster.Cluster()
  worker = _Worker(
    servers, 0, 'lru', 0, lambda *x: None, 1, is_in_place=is_in_place
  )
  shard = servers.shards['x'][0]
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
  np.testing.assert_array_equal(_state(servers, 1)[0][:4, :ADDED], expected)
  np.testing.assert_array_equal(_state(servers, 1)[1][:4], [2, 2, 1, 1])
  lines = train()  # rows that a shard has lost, while a stretch runs
  shard.restore(tmp_path / 'rows', checksum)
  worker.finish(lines)
  np.testing.assert_array_equal(_state(servers, 1)[1][:4], [2, 2, 0, 0])
  assert shard.lost == 2


def test_a_call_that_is_repeated_is_done_once():
  servers = local_cluster.Cluster()
  table, ids = _table(servers), np.array([3, 8, 9])
  deltas = np.ones((3, WIDTH), np.float32).view(np.uint8)
  two = np.full(3, 2)
  push = shards.Push(ids, deltas, two, two - 2)
  request = table.add_request(push, staleness.Rule(0))
  for _ in range(2):
    servers.call([request])
  rows, clocks = _state(servers)
  np.testing.assert_array_equal(rows[ids, 0], ids + 1)
  np.testing.assert_array_equal(clocks[ids], 2)
