"""Which devices train."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxemb import errors, mesh


def test_the_mesh_has_the_devices_asked_for():
  devices = mesh.data_mesh(3)
  assert devices.shape == {mesh.DATA: 3}
  assert list(devices.devices) == jax.local_devices()[:3]
  # With explicit axes a plain gather or scatter is refused.
  assert devices.axis_types == (jax.sharding.AxisType.Auto,)


def test_more_devices_than_there_are_is_told():
  with pytest.raises(errors.UserError) as caught:
    mesh.start(1000)
  assert 'config.mesh.data=1000' in str(caught.value)
  assert '\n' not in str(caught.value)


def test_a_run_that_was_begun_on_more_devices_is_told():
  with pytest.raises(errors.UserError) as caught:
    mesh.start(0, begun_with=1000)
  assert 'begun on 1000 devices' in str(caught.value)
  assert 'give 0' not in str(caught.value) and '\n' not in str(caught.value)
  assert mesh.start(0, begun_with=3) == 3


def test_devices_that_exist_are_kept_once_jax_has_started():
  jax.devices()
  assert mesh.start(8) == 8  # those of the test session
  assert mesh.start(0) == min(2, mesh._usable_cores())


@pytest.mark.parametrize(
  ('data', 'xla_flags', 'expected'),
  [
    (0, '', min(2, mesh._usable_cores())),
    (1, '', 1),
    (3, '', 3),
    (0, '--xla_force_host_platform_device_count=1', 1),
    (4, '--xla_force_host_platform_device_count=5', 4),
  ],
)
def test_a_fresh_process_gets_cpu_devices(data, xla_flags, expected):
  code = (
    'from jaxemb import mesh; '
    f'n = mesh.start({data}); print(n, mesh.data_mesh(n).size)'
  )
  env = os.environ | {'XLA_FLAGS': xla_flags, 'JAX_PLATFORMS': 'cpu'}
  if not xla_flags and data == 1:
    env['JAX_NUM_CPU_DEVICES'] = '1'  # chosen by the user
    code = code.replace('start(1)', 'start(0)')
  done = subprocess.run(
    [sys.executable, '-c', code], env=env, capture_output=True, text=True
  )
  assert done.stdout.split() == [str(expected)] * 2, done.stderr


def test_bytes_count_every_copy():
  devices = mesh.data_mesh(4)
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
  line = mesh.describe(mesh.data_mesh(2))
  assert 'process 1 of 1' in line and line.endswith('cpu:0, cpu:1')
