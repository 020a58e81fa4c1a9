"""Items that are made ahead of their use."""

import threading

import pytest

from jaxemb.data import base


def _has_thread():
  return any(x.name.startswith('prefetch') for x in threading.enumerate())


@pytest.mark.parametrize('num_items', [0, 50])
def test_the_same_in_order_by_another_thread(num_items):
  threads = set()

  def make(i):
    threads.add(threading.current_thread())
    return 10 * i

  found = list(base.prefetch(map(make, range(num_items))))
  assert found == [10 * i for i in range(num_items)]
  assert len(threads) == min(num_items, 1)
  assert threading.current_thread() not in threads and not _has_thread()


@pytest.mark.parametrize('error', [ValueError('bad'), KeyboardInterrupt()])
def test_hands_on_errors(error):
  def failing_items():
    yield from range(3)
    raise error

  found = []
  with pytest.raises(type(error)) as caught:
    found.extend(base.prefetch(failing_items()))
  assert caught.value is error
  assert found == [0, 1, 2] and not _has_thread()


def test_stays_a_few_items_ahead():
  numbers, events = [], [threading.Event() for _ in range(100)]

  def make(i):
    numbers.append(i)
    events[i].set()
    return i

  items = base.prefetch(map(make, range(100)), depth=3)
  for ahead in (3, 4):  # three are waiting; then one is in use as well
    assert events[ahead - 1].wait(5)
    assert len(numbers) == ahead
    next(items)
  items.close()
  assert not _has_thread() and len(numbers) <= 5
