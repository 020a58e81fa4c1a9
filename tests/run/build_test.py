"""What is measured before a run begins."""

import types
import weakref

from jaxemb.run import build
from jaxemb.runtime import budget


class _Array:
  nbytes = 100


def test_a_batch_that_is_measured_does_not_count_as_used(monkeypatch):
  batches = []

  def items(*unused):
    array = _Array()
    batches.append(weakref.ref(array))
    yield types.SimpleNamespace(batch=[array])

  parts = types.SimpleNamespace(
    mesh=types.SimpleNamespace(local_devices=[0]),
    setup=types.SimpleNamespace(platform='cpu'),
    strategy=types.SimpleNamespace(device_bytes=lambda state: 7),
    tuning=types.SimpleNamespace(fused=False),
    source=types.SimpleNamespace(items=items),
    _result_bytes=lambda *unused: 9,
  )

  def memory(**sizes):
    return sizes['batch_bytes'], batches[0]()

  monkeypatch.setattr(budget, 'memory', memory)
  state = types.SimpleNamespace(params=())
  assert build.Parts._memory(parts, state, None) == (400, None)
