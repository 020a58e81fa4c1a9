"""Which devices train."""

import math
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxemb import errors
from jaxemb.runtime import mesh, resources


def test_the_mesh_has_the_devices_asked_for():
  devices = mesh.make(mesh.Shape(3, 2))
  assert devices.shape == {mesh.DATA: 3, mesh.TABLE: 2}
  assert devices.devices.tolist() == [
    jax.devices()[i : i + 2] for i in (0, 2, 4)
  ]
  # With explicit axes a plain gather or scatter is refused.
  assert devices.axis_types == (jax.sharding.AxisType.Auto,) * 2


def test_more_devices_than_there_are_is_told():
  with pytest.raises(errors.UserError) as caught:
    mesh.start(mesh.Shape(500, 2))
  line = str(caught.value)
  assert 'config.mesh.data=500 x config.mesh.table=2 needs 1000' in line
  assert '\n' not in line


def test_a_run_that_was_begun_on_more_devices_is_told():
  with pytest.raises(errors.UserError) as caught:
    mesh.start(mesh.Shape(0, 0), begun_with=mesh.Shape(1000, 1))
  assert 'begun on 1000 devices' in str(caught.value)
  assert 'give 0' not in str(caught.value) and '\n' not in str(caught.value)
  begun_with = mesh.Shape(3, 1)
  assert mesh.start(mesh.Shape(0, 0), begun_with=begun_with) == (3, 1)


CORES = min(2, resources.usable_cores())


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
def test_what_is_left_open_is_of_use(
  wanted, splits_tables, uses_cores, expected
):
  jax.devices()
  found = mesh.start(mesh.Shape(*wanted), splits_tables, uses_cores)
  assert found == expected


@pytest.mark.parametrize(
  ('data', 'xla_flags', 'expected'),
  [
    (0, '', CORES),
    (1, '', 1),
    (3, '', 3),
    (0, '--xla_force_host_platform_device_count=1', 1),
    (4, '--xla_force_host_platform_device_count=5', 4),
  ],
)
def test_a_fresh_process_gets_cpu_devices(data, xla_flags, expected):
  code = (
    'from jaxemb.runtime import mesh; '
    f'n = mesh.start(mesh.Shape({data}, 0)); print(n.data, mesh.make(n).size)'
  )
  env = os.environ | {'XLA_FLAGS': xla_flags, 'JAX_PLATFORMS': 'cpu'}
  if not xla_flags and data == 1:
    env['JAX_NUM_CPU_DEVICES'] = '1'  # chosen by the user
    code = code.replace('Shape(1, 0)', 'Shape(0, 0)')
  done = subprocess.run(
    [sys.executable, '-c', code], env=env, capture_output=True, text=True
  )
  assert done.stdout.split() == [str(expected)] * 2, done.stderr


def test_parts_of_a_process():
  devices = mesh.make(mesh.Shape(4, 2))
  assert mesh.my_parts(devices, 8) == range(8)
  assert mesh.my_parts(devices, 8, first_only=True) == range(8)


def test_parts_and_wholes_on_the_mesh_and_back():
  devices = mesh.make(mesh.Shape(2, 4))
  named, spec = jax.sharding.NamedSharding, jax.sharding.PartitionSpec
  whole = np.arange(12.0, dtype=np.float32).reshape(4, 3)
  over = named(devices, spec(mesh.DATA))
  placed = mesh.put_parts({'a': whole}, over, range(4), 4)['a']
  assert placed.sharding == over
  np.testing.assert_array_equal(mesh.to_host(placed), whole)
  everywhere = mesh.put([whole], named(devices, spec()))[0]
  assert len(everywhere.addressable_shards) == 8
  np.testing.assert_array_equal(mesh.to_host(everywhere), whole)


@pytest.mark.parametrize(
  ('shape', 'spec'),
  [
    ((7, 256, 3), (None, mesh.TABLE)),  # rows
    ((50, 8), (None, mesh.TABLE)),  # columns
    ((2, 31, 5), (mesh.DATA,)),  # replicas
    ((1, 8), (None, mesh.TABLE)),
    ((2, 8), (mesh.DATA, mesh.TABLE)),
  ],
)
def test_an_array_comes_to_the_host_by_pieces(shape, spec, monkeypatch):
  devices = mesh.make(mesh.Shape(2, 4))
  sharding = jax.sharding.NamedSharding(
    devices, jax.sharding.PartitionSpec(*spec)
  )
  whole = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
  array = jax.device_put(whole, sharding)
  sizes = []
  real = jax.lax.dynamic_slice_in_dim
  monkeypatch.setattr(
    jax.lax,
    'dynamic_slice_in_dim',
    lambda *args: sizes.append(args[2]) or real(*args),
  )
  found = mesh._piecewise(array, whole.nbytes // 4)
  np.testing.assert_array_equal(found, whole)
  # One program, of pieces that are no larger than they should be.
  axis = int(np.argmax([n if s is None else 0 for n, s in _axes(shape, spec)]))
  if len(spec) < 2 or None in spec:
    assert sizes == [max(1, shape[axis] // 4)]


def _axes(shape, spec):
  return list(zip(shape, (*spec, None, None)[: len(shape)], strict=True))


def test_bytes_of_a_device():
  devices = mesh.make(mesh.Shape(1, 2))
  split = jax.sharding.NamedSharding(
    devices, jax.sharding.PartitionSpec(None, mesh.TABLE)
  )
  shape = jax.ShapeDtypeStruct((10, 256, 25), np.float32)
  held_bytes = mesh.bytes_per_device([shape], split)
  assert held_bytes == 10 * 256 * 25 * 4 // 2


def test_bytes_count_every_copy():
  devices = mesh.make(mesh.Shape(4, 1))
  spec = jax.sharding.PartitionSpec
  named = jax.sharding.NamedSharding
  state = {
    'copied': jax.device_put(np.zeros(10, np.float32), named(devices, spec())),
    'shared': jax.device_put(
      np.zeros((4, 5), np.int8), named(devices, spec(mesh.DATA))
    ),
  }
  assert mesh.num_bytes(state) == 4 * 40 + 20


def test_description_names_the_devices_in_use():
  line = mesh.describe(mesh.make(mesh.Shape(2, 1)))
  assert 'process 1 of 1' in line and line.endswith('cpu:0, cpu:1')
