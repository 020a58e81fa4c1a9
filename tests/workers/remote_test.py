"""Tables on actors of Ray, started here, and shards that are killed."""

import os
import re
import signal
import sys
import time

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.workers import copies, links, remote, shards, staleness
from tests.workers import local_cluster

ROWS, WIDTH = 301, 4
pytestmark = [pytest.mark.slow, pytest.mark.ray]


def _make(ids):
  return np.repeat(ids[:, None], WIDTH, 1).astype(np.float32).view(np.uint8)


@pytest.fixture(scope='module')
def _ray_here(tmp_path_factory):
  # As long as it has a table, there is Ray.
  held = remote.Cluster(address='local')
  table = _table(held, tmp_path_factory.mktemp('held'), 'held', 1)
  yield
  table.close()


@pytest.fixture
def cluster(_ray_here):
  return remote.Cluster()


@pytest.fixture
def is_far(monkeypatch):
  """Has clients use shards as if they were on another machine."""
  monkeypatch.setattr(links, 'near', lambda *args, **kwargs: None)


def _table(cluster, folder, name, num=3, secs=1e9, client=0):
  args = num, ROWS, 4 * WIDTH, _make, folder, secs, WIDTH
  return cluster.table(name, *args, client)


def _block(rows, lines):
  return copies.Block([copies.Part(rows, 'added')], lines)


def _push(worker, pending, rows):
  push = worker.settle(pending, _block(rows, pending.lines))
  worker.table.call([worker.table.add_request(push, staleness.Rule(0))])


def _newer(table, request):
  return local_cluster.newer(table, request, table.call([request])[0])


def _kill(table, number):
  """As the system kills it, at any moment from now on."""
  actor = table.call.actors[number]
  actor.__ray_call__.remote(lambda self: os._exit(9))


def _read_again(table, ids):
  """Rows, once a shard that is killed has ended and come back."""
  link = table.call._links[1]
  while isinstance(link, links.Near) and link.is_open():
    time.sleep(0.01)
  return table.read(ids)


def _clocks(table):
  ids = np.arange(ROWS)
  found = _newer(table, table.newer_request(ids, ids - ROWS, staleness.Rule(0)))
  clocks = np.empty(ROWS, np.int64)
  clocks[found.at] = staleness.num_updates(found.clocks)
  return clocks


@pytest.mark.parametrize('near', [True, False])
def test_a_shard_that_is_killed_says_what_it_lost(
  cluster, tmp_path, caplog, request, near
):
  if not near:
    request.getfixturevalue('is_far')
  table = _table(cluster, tmp_path, 'killed', num=2)
  ids = np.arange(10)
  table.write(ids, old := _make(ids + 1))
  # From here on a snapshot is there, of when a checkpoint was restored.
  checksum = table.snapshot(tmp_path / 'saved')
  table.restore(tmp_path / 'saved', checksum)
  new = _make(ids + 2)
  for _ in range(3):
    table.write(ids, new)
  _kill(table, 1)
  found = _read_again(table, ids)
  assert caplog.text.count('came back') == 1
  assert 'shard 1 of table killed' in caplog.text
  if near:  # this process has the rows, too
    np.testing.assert_array_equal(found, new)
    assert 'no update is lost' in caplog.text
  else:
    expected = np.where((ids % 2 == 1)[:, None], old, new)
    np.testing.assert_array_equal(found, expected)
    assert 'snapshot: 15 updates of rows' in caplog.text
  table.close()


def test_kills_at_random_lose_what_is_said_and_no_more(
  cluster, tmp_path, caplog, is_far
):
  rng = np.random.default_rng(1)
  tables = [
    _table(cluster, tmp_path, 'random', secs=0.05, client=i + 1)
    for i in range(3)
  ]
  # Lines are ids: every row has one.
  workers = [copies.Copies(x, ROWS, staleness.Rule(2)) for x in tables]
  rows, pushed = np.zeros((3, ROWS, WIDTH), np.float32), 0
  for step in range(60):
    number = rng.integers(3)
    worker, own = workers[number], rows[number]
    if step % 20 == 10:
      _kill(tables[0], step // 20 % 3)
    ids = np.unique(rng.zipf(1.3, 40) % ROWS)
    newer = _newer(worker.table, worker.read_request(ids, ids))
    lines = ids[newer.at]
    worker.commit(lines, lines, newer, _block(own, lines))
    worker.begin(ids, np.ones(len(ids), np.int64))
    own[ids] += 1
    due = worker.due(ids)
    pushed += due.updates.sum()
    _push(worker, due, own)
  for worker, own in zip(workers, rows, strict=True):
    due = worker.all()
    pushed += due.updates.sum()
    _push(worker, due, own)
  clocks = _clocks(tables[0])
  [_clocks(x) for x in tables[1:]]  # all have heard of all restarts
  lost = {}
  for message in caplog.messages:
    found = re.search(r'shard (\d) .*: ([\d,]+) updates', message)
    if found:
      lost.setdefault(found[1], []).append(int(found[2].replace(',', '')))
  # Every worker says it, unless a shard ended twice between its calls.
  assert len(lost) == 3
  assert 0 < pushed - clocks.sum() <= sum(map(sum, lost.values()))
  # Rows are what their clocks say.
  expected = np.arange(ROWS) + clocks
  found = tables[0].read(np.arange(ROWS)).view(np.float32)
  np.testing.assert_array_equal(found, np.repeat(expected[:, None], WIDTH, 1))
  tables[0].close()


def _suspend(table, number):
  import ray

  actor = table.call.actors[number]
  pid = ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))
  os.kill(pid, signal.SIGSTOP)
  return pid


def test_a_shard_that_was_suspended_is_asked_again(
  cluster, tmp_path, monkeypatch, is_far
):
  table = _table(cluster, tmp_path, 'late', num=2)
  ids, one = np.arange(10), np.ones(10, np.int64)
  rows = _make(ids)
  table.read(ids)  # once actors have started
  monkeypatch.setattr(remote, 'CALL_SECS', 2)
  pid, receive = _suspend(table, 1), links.Far.receive

  def receive_or_resume(self, secs):
    try:
      return receive(self, secs)
    except TimeoutError:
      monkeypatch.setattr(remote, 'CALL_SECS', 60)  # it may be slow
      os.kill(pid, signal.SIGCONT)
      raise

  monkeypatch.setattr(links.Far, 'receive', receive_or_resume)
  push = shards.Push(ids, rows, one, one - 1)
  table.call([table.add_request(push, staleness.Rule(0))])
  # Both calls have come, and one was done.
  np.testing.assert_array_equal(
    table.read(ids).view(np.float32), 2 * rows.view(np.float32)
  )
  table.close()


def test_a_shard_that_has_ended_is_one_line(cluster, tmp_path, monkeypatch):
  import ray

  table = _table(cluster, tmp_path, 'gone')
  table.read(np.arange(3))
  monkeypatch.setattr(remote, 'WAIT_SECS', 1)
  monkeypatch.setattr(remote, 'CALL_SECS', 1)
  ray.kill(actor := table.call.actors[1])
  with pytest.raises(ray.exceptions.RayActorError):
    while True:  # it may still answer for a moment
      ray.get(actor.__ray_call__.remote(lambda self: None))
  while table.call._links[1].is_open():
    time.sleep(0.01)
  start = time.monotonic()
  with pytest.raises(errors.UserError, match='^shard 1 of the tables has not'):
    table.read(np.arange(3))
  table.close()
  assert time.monotonic() - start < 30


def test_shards_have_the_priority_of_the_command(cluster, tmp_path):
  import ray

  table = _table(cluster, tmp_path, 'priority', num=1)
  call = table.call.actors[0].__ray_call__.remote(lambda self: os.nice(0))
  assert ray.get(call) == os.nice(0)
  table.close()


def test_without_ray_the_extra_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  with pytest.raises(errors.UserError, match=r"pip install -e '\.\[ray\]'"):
    remote.Cluster()


def test_who_is_stopped_while_ray_starts_may_be_started_again(
  cluster, monkeypatch, tmp_path
):
  import ray

  def start(*unused, **others):  # its handler, until it has connected
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    signal.raise_signal(signal.SIGTERM)

  monkeypatch.setattr(ray, 'is_initialized', lambda: False)
  monkeypatch.setattr(ray, 'init', start)
  handler = signal.getsignal(signal.SIGTERM)
  with pytest.raises(errors.LostError, match='nothing to save'):
    _table(remote.Cluster(), tmp_path, 'x')
  assert signal.getsignal(signal.SIGTERM) is handler
