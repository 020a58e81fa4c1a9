"""What is measured before a run begins."""

import types
import weakref
from typing import NamedTuple

import jax
import pytest

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
    config=types.SimpleNamespace(strategy=types.SimpleNamespace(name='sync')),
    setup=types.SimpleNamespace(platform='cpu'),
    strategy=types.SimpleNamespace(device_bytes=lambda state: 7),
    tuning=types.SimpleNamespace(fused=False),
    source=types.SimpleNamespace(items=items),
    _snapshot_bytes=lambda state: 8,
    _result_bytes=lambda *unused: 9,
  )

  def memory(**sizes):
    return sizes['batch_bytes'], batches[0]()

  monkeypatch.setattr(budget, 'memory', memory)
  state = types.SimpleNamespace(params=())
  assert build.Parts._memory(parts, state, None) == (400, None)


@pytest.mark.parametrize(
  ('platform', 'num_replicas', 'expected'),
  [('cpu', 0, 0), ('cpu', 2, 800), ('gpu', 0, 1200), ('gpu', 2, 1200)],
)
def test_checkpoints_of_replicas_and_accelerators_are_copied(
  platform, num_replicas, expected
):
  own, common = (jax.ShapeDtypeStruct((x, 100), 'float32') for x in (4, 2))

  class State(NamedTuple):
    own: jax.ShapeDtypeStruct
    common: jax.ShapeDtypeStruct

    def trained(self):
      return self.own

  parts = types.SimpleNamespace(
    mesh=types.SimpleNamespace(local_devices=[0, 1], size=4),
    setup=types.SimpleNamespace(platform=platform),
    strategy=types.SimpleNamespace(num_replicas=num_replicas),
  )
  state = State(own, common)
  assert build.Parts._snapshot_bytes(parts, state) == expected


@pytest.mark.parametrize(
  ('exports_optimizer', 'derived', 'expected'),
  [(True, 50, 1400), (False, 50, 1200), (False, 300, 1800)],
)
def test_results_are_tables_and_what_is_computed_of_them(
  exports_optimizer, derived, expected
):
  array = jax.ShapeDtypeStruct((10, 15), 'float32')
  table = types.SimpleNamespace(vectors=array, opt_state=(array,))
  parts = types.SimpleNamespace(
    config=types.SimpleNamespace(
      model=types.SimpleNamespace(dim=15),
      table=types.SimpleNamespace(dtype='float32'),
      strategy=types.SimpleNamespace(name='sync'),
    ),
    kind=types.SimpleNamespace(exports_optimizer=exports_optimizer),
    source=types.SimpleNamespace(keys='ten words!'),
    strategy=types.SimpleNamespace(num_replicas=0),
    trainable=types.SimpleNamespace(
      model=types.SimpleNamespace(num_derived=lambda num_keys: derived)
    ),
  )
  state = types.SimpleNamespace(tables={'input': table})
  result_bytes = build.Parts._result_bytes(parts, state, has_store=False)
  assert result_bytes == expected
