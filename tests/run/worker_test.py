"""What a worker reads of a source."""

import types

from jaxemb.data import base as data_base
from jaxemb.run import worker
from jaxemb.workers import coordinator


def test_without_own_units_all_units_of_an_item_are_the_workers():
  asked, leases = [], [coordinator.Lease(0, None, 0, 100, 2), None]

  def ask(method, *args):
    asked.append(args)
    return leases.pop(0)

  item = data_base.Item(
    batch=0, index=0, position=1, done_before=0, done_after=30
  )
  source = types.SimpleNamespace(
    unit='words',
    epochs=1,
    units_per_epoch=500,
    items=lambda position, done: iter([item]),
  )
  member = types.SimpleNamespace(ask=ask)
  items = worker._Leases(member, None, source)
  items._sources[0] = source
  (read,) = items.items(None, 0)
  # Two workers have made 100 units, and read as many more.
  assert (read.done_before, read.done_after, read.own_units) == (100, 160, 30)
  assert asked[1][0] == (0, 1, 30, 30)
