"""Items that are made ahead of their use."""

import threading
import time

import numpy as np
import pytest

from jaxemb.data import base


def _items(num_items):
  for i in range(num_items):
    yield base.Item(np.full(3, i), i, [0, i], i, i + 1)


def _has_thread():
  return any(x.name.startswith('prefetch') for x in threading.enumerate())


@pytest.mark.parametrize('num_items', [0, 1, 2, 50])
def test_the_same_in_order_by_another_thread(num_items):
  threads = set()

  def put(batch):
    threads.add(threading.current_thread())
    return int(batch[0]) * 10

  found = list(base.prefetch(_items(num_items), put))
  assert [item.batch for item in found] == [10 * i for i in range(num_items)]
  assert [x[1:] for x in found] == [x[1:] for x in _items(num_items)]
  assert len(threads) == min(num_items, 1)
  assert threading.current_thread() not in threads and not _has_thread()


@pytest.mark.parametrize('error', [ValueError('bad'), KeyboardInterrupt()])
def test_hands_on_errors(error):
  def failing_items():
    yield from _items(3)
    raise error

  def failing_put(batch):
    if batch[0] == 3:
      raise error

  for items, put in ((failing_items(), id), (_items(9), failing_put)):
    found = []
    with pytest.raises(type(error)) as caught:
      for item in base.prefetch(items, put):
        found.append(item.index)
    assert caught.value is error
    assert found == [0, 1, 2] and not _has_thread()


def test_stays_a_few_items_ahead():
  made = []
  found = base.prefetch(_items(100), made.append, depth=3)
  assert not made and not _has_thread()  # nothing starts before its use
  next(found)
  deadline = time.monotonic() + 5
  while len(made) < 4 and time.monotonic() < deadline:
    time.sleep(0.001)
  time.sleep(0.05)
  assert len(made) == 4  # one in use, three waiting
  found.close()
  assert not _has_thread() and len(made) == 4
