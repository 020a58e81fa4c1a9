"""Which devices train, and arrays that travel between them and the host."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxemb import errors
from jaxemb.run import loop
from jaxemb.runtime import mesh, resources

NAMED, SPEC = jax.sharding.NamedSharding, jax.sharding.PartitionSpec
CORES = min(2, resources.usable_cores())


def test_the_mesh_has_the_devices_asked_for():
  devices = mesh.make(mesh.Shape(3, 2))
  assert devices.shape == {mesh.DATA: 3, mesh.TABLE: 2}
  assert devices.devices.flatten().tolist() == jax.devices()[:6]
  # With explicit axes a plain gather or scatter is refused.
  assert devices.axis_types == (jax.sharding.AxisType.Auto,) * 2
  line = mesh.describe(mesh.make(mesh.Shape(2, 1)))
  assert line.startswith('one process on ') and line.endswith('cpu:0, cpu:1')


def test_more_devices_than_there_are_are_refused():
  for is_resumed, words in (
    (False, 'config.mesh.data=500 x config.mesh.table=2 needs 1000'),
    (True, 'begun on 1000 devices'),
  ):
    with pytest.raises(errors.UserError, match=words) as caught:
      mesh.start(mesh.Shape(500, 2), is_resumed=is_resumed)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  ('wanted', 'splits_tables', 'uses_cores', 'expected'),
  [
    ((8, 0), False, True, (8, 1)),  # those of the test session
    ((0, 0), False, True, (CORES, 1)),
    ((0, 0), False, False, (1, 1)),
    ((0, 0), True, True, (1, CORES)),
    ((0, 4), True, True, (1, 4)),
    ((2, 0), True, True, (2, 1)),
    ((2, 4), False, False, (2, 4)),
  ],
)
def test_open_axes_get_useful_devices(
  wanted, splits_tables, uses_cores, expected
):
  found = mesh.start(mesh.Shape(*wanted), splits_tables, uses_cores)
  assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(
  ('data', 'environment', 'expected'),
  [
    (0, {}, CORES),
    (4, {'XLA_FLAGS': '--xla_force_host_platform_device_count=5'}, 4),
  ],
)
def test_a_fresh_process_gets_cpu_devices(data, environment, expected):
  code = (
    'from jaxemb.runtime import mesh; '
    f'n = mesh.start(mesh.Shape({data}, 0)); print(n.data, mesh.make(n).size)'
  )
  env = os.environ | {'XLA_FLAGS': '', 'JAX_PLATFORMS': 'cpu'} | environment
  done = subprocess.run(
    [sys.executable, '-c', code], env=env, capture_output=True, text=True
  )
  assert done.stdout.split() == [str(expected)] * 2, done.stderr


def test_arrays_go_to_the_devices_and_every_copy_counts():
  devices = mesh.make(mesh.Shape(4, 2))
  over, copied = NAMED(devices, SPEC(mesh.DATA)), NAMED(devices, SPEC())
  split = NAMED(devices, SPEC(None, mesh.TABLE))
  assert mesh.my_parts(devices, 8) == range(8)
  whole = np.arange(24, dtype=np.float32).reshape(8, 3)
  placed = loop.put_parts({'a': whole}, over, 8)['a']
  assert placed.sharding == over
  np.testing.assert_array_equal(np.asarray(placed), whole)
  # What two batches share is placed once, if nobody can change it.
  shared, new = np.ones((8, 1)), np.zeros((8, 1))
  shared.flags.writeable = False
  batch, other = {'x': shared, 'y': whole}, {'x': new, 'y': whole, 'z': shared}
  first = loop.put_parts(batch, over, 8)
  second = loop.put_parts(other, over, 8, (batch, first))
  assert second['z'] is first['x'] and second['y'] is not first['y']
  assert not second['x'].any()
  state = {
    'copied': jax.device_put(np.zeros(10, np.float32), copied),
    'split': jax.device_put(np.zeros((4, 6), np.int8), split),
  }
  assert mesh.num_bytes(state) == 8 * 40 + 4 * 24


def test_devices_that_are_alone_in_a_process_have_cores(monkeypatch):
  def found(cores, places, data=2):
    for module, name, value in (
      (mesh.distributed, 'num_processes', len(places)),
      (mesh.distributed, 'everyone', places),
      (mesh.resources, 'usable_cores', cores),
    ):
      monkeypatch.setattr(module, name, lambda *_, value=value: value)
    return mesh.cores_of_device(mesh.Shape(data, 1))

  assert found(7, ['7 a [1]'], 1) == 7
  assert found(7, ['7 a [1]']) == 1  # two in one process
  assert found(7, ['7 a [1]', '5 b [1]']) == 5  # as many on all hosts
  assert found(7, ['7 a [1]', '7 a [1]']) == 3  # of one host
  assert found(4, ['4 a [0]', '4 a [1]']) == 4  # of one socket each
