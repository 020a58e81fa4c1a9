"""Sources of graphs, made of settings, and what holds for all of them."""

import numpy as np

from jaxemb import config as config_lib
from jaxemb.data import base


def spec(cache, path='toygraph:200', num_parts=1, parts=None, **settings):
  """Two epochs in steps of 8 examples a part, read by one process."""
  parts = range(num_parts) if parts is None else parts
  return base.SourceSpec(
    path=path,
    seed=7,
    epochs=2,
    num_parts=num_parts,
    part_words=8,
    window=3,
    chunk=4,
    shortest_window=3,
    settings=config_lib.default().data.to_dict() | {'path': path} | settings,
    readers=base.Readers(parts, 0, 1, None),
    cache=cache,
    progress=lambda *_: None,
  )


def check_resumes(make):
  """Reading goes on where it stopped; `make` makes the same source again."""
  items = list(make().items(None, 0))
  assert [x.index for x in items] == sorted(x.index for x in items)
  for i in range(0, len(items) - 1, 1 + len(items) // 5):
    rest = list(make().items(items[i].position, items[i].done_after))
    for x, y in zip(rest, items[i + 1 :], strict=True):
      assert x[1:] == y[1:]
      for a, b in zip(x.batch, y.batch, strict=True):
        np.testing.assert_array_equal(a, b)
