"""Links to shards by connections and by shared memory, without Ray."""

import os
import socket
import threading

import numpy as np
import pytest

from jaxemb.workers import actors, links, memory, shards, staleness

ROWS, WIDTH, NODE = 2000, 256, 'node'
RULE = staleness.Rule(0, memory=10.0, num_weighted=WIDTH)


def _make(ids):
  return np.repeat(ids[:, None], WIDTH, 1).astype(np.float32).view(np.uint8)


SIZES = 0, 1, ROWS, 4 * WIDTH, WIDTH, _make


class _Actor(actors.Actor):
  """An actor in this process."""

  def __init__(self, folder):
    self._folder, self._snapshot_secs, self._node = folder, 1e9, NODE
    self._shards, self._lock = {}, threading.Lock()
    self._server = links.Server('127.0.0.1', self.call)


@pytest.fixture
def actor(tmp_path):
  return _Actor(tmp_path)


def _far(actor):
  return links.Far(actor.place({'x': SIZES}), 5)


def _call(link, method, *args):
  link.send([('x', SIZES, method, args)])
  return link.receive(10)[0].value


def _push(ids, clocks=0):
  one = np.ones(len(ids), np.int64)
  deltas = np.ones((len(ids), WIDTH), np.float32).view(np.uint8)
  return shards.Push(ids, deltas, one, clocks * one)


def test_connections_have_answers_of_their_own(actor):
  ids = np.arange(ROWS)
  _call(_far(actor), 'write', ids, _make(ids))
  wrong = []

  def read(number):
    link, mine = _far(actor), ids[number * 1000 : (number + 1) * 1000]
    for _ in range(30):
      never = np.full(len(mine), staleness.NEVER)
      new = _call(link, 'newer', mine, never, staleness.Rule(0))
      if not np.array_equal(new.records, _make(mine[new.at])):
        wrong.append(number)

  threads = [threading.Thread(target=read, args=[i]) for i in range(2)]
  [x.start() for x in threads]
  [x.join() for x in threads]
  assert not wrong


def test_a_repeated_push_has_its_own_weights(actor):
  link, three, five = _far(actor), np.arange(3), np.arange(5)
  _call(link, 'add', 9, 1, _push(five), RULE)
  # Copies from before lack an update.
  first = _call(link, 'add', 7, 1, _push(three), RULE)
  np.testing.assert_allclose(first, np.exp(-0.1), rtol=1e-6)
  assert len(_call(link, 'add', 7, 2, _push(five), RULE)) == 5
  again = _call(link, 'add', 7, 1, _push(three), RULE)
  np.testing.assert_array_equal(again, first)
  # Another process has the rows and not the answer.
  actor._shards['x']._shard._weights.clear()
  assert np.isnan(_call(link, 'add', 7, 1, _push(three), RULE)).all()


def test_who_has_no_secret_or_no_right_to_call_is_refused(actor):
  with pytest.raises(OSError, match='this is no call of a link'):
    _call(_far(actor), 'snapshot', '/tmp/x')
  place = actor.place({'x': SIZES})
  with socket.create_connection((place.host, place.port), 5) as connection:
    connection.sendall(bytes(32))
    assert connection.recv(1) == b''
  with pytest.raises(OSError, match='index 2000 is out of bounds'):
    _call(_far(actor), 'write', np.array([ROWS]), _make(np.arange(1)))


def test_rows_outlive_the_process_that_made_them(actor, tmp_path):
  address = actor.place({'x': SIZES}).addresses['x']
  if address is None:
    pytest.skip('the system shares no memory without a name')
  ids = np.arange(5)
  near = links.near(
    actor.place({'x': SIZES}), NODE, folder=tmp_path, sizes={'x': SIZES}
  )
  _call(near, 'add', 7, 1, _push(ids), RULE)
  again = _Actor(tmp_path)  # in place of one that has ended
  never = np.full(5, staleness.NEVER)
  new = _call(_far(again), 'newer', ids, never, staleness.Rule(0))
  np.testing.assert_array_equal(new.records.view(np.float32)[:, 0], ids + 1)
  assert staleness.num_updates(new.clocks).tolist() == [1] * 5
  # Of another machine, of other sizes, and of a process that is not there.
  num_bytes = shards.buffer_bytes(*SIZES)
  assert memory.attach(address, 'another', num_bytes) is None
  assert memory.attach(address, NODE, num_bytes + 1) is None
  gone = address._replace(pid=2**22 + 1)
  assert memory.attach(gone, NODE, num_bytes) is None
  other = address._replace(token=address.token + 1)
  assert memory.attach(other, NODE, num_bytes) is None


def test_rows_that_stay_locked_are_late(actor, tmp_path):
  place = actor.place({'x': SIZES})
  if place.addresses['x'] is None:
    pytest.skip('the system shares no memory without a name')
  near, other = (
    links.near(place, NODE, folder=tmp_path, sizes={'x': SIZES})
    for _ in range(2)
  )
  with other._mapped['x'].memory.lock(1):
    near.send([('x', SIZES, 'num_known', ())])
    with pytest.raises(TimeoutError):
      near.receive(0.01)
  assert near.receive(1)[0].value == 0
  assert near.is_open()


def test_where_processes_cannot_be_watched_connections_serve(
  actor, tmp_path, monkeypatch
):
  place = actor.place({'x': SIZES})

  def fail(*unused):
    raise OSError(38, 'Function not implemented')

  monkeypatch.setattr(os, 'pidfd_open', fail, raising=False)
  assert links.near(place, NODE, folder=tmp_path, sizes={'x': SIZES}) is None
  monkeypatch.setattr(os, 'memfd_create', fail, raising=False)
  assert memory.create(100) is None
