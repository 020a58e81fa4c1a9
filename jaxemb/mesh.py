"""Devices: the only place that chooses them and builds a mesh.

A CPU is as many JAX devices as one asks for before JAX starts, each a thread of
its own. Two use two cores far better than one device with two threads does: the
matrix products of a step are too small to be shared.
"""

import os
from typing import Any

import jax
import numpy as np

from jaxemb import errors

DATA = 'data'  # axis along the corpus: every device has its own part of it

# More would gain little, by what four on two cores cost: they have to meet too
# often (experiments/results/step_notes.md).
_MOST_CPU_DEVICES = 2


def _usable_cores() -> int:
  """Cores that this process may use, by affinity and by quota."""
  try:
    cores = len(os.sched_getaffinity(0))
  except AttributeError:  # not on Linux
    return os.cpu_count() or 1
  try:
    with open('/sys/fs/cgroup/cpu.max') as file:
      quota, period = file.read().split()[:2]
    if quota != 'max':
      cores = min(cores, max(1, round(int(quota) / int(period))))
  except (OSError, ValueError):
    pass  # no quota
  return cores


def start(data: int, begun_with: int = 0) -> int:
  """Prepares JAX, before its first use, for training along a data axis.

  Args:
    data: devices along the data axis; 0 = as many as are of use: two cores of a
      CPU, else one device.
    begun_with: what a run that is resumed was begun with; 0 = a new run.

  Returns:
    The number of devices along the data axis.

  Raises:
    UserError: if there are fewer devices than asked for.
  """
  needed = data or begun_with
  wanted = needed or min(_usable_cores(), _MOST_CPU_DEVICES)
  flags = os.environ.get('XLA_FLAGS', '')
  chosen = jax.config.jax_num_cpu_devices  # -1 = not
  if 'xla_force_host_platform_device_count' not in flags and (
    chosen < 1 or needed > chosen
  ):
    try:
      jax.config.update('jax_num_cpu_devices', wanted)
    except RuntimeError:
      pass  # JAX has started (a notebook): the devices are what they are
  devices = jax.local_devices()
  there = f'there are {len(devices)} ({devices[0].device_kind})'
  if data > len(devices):
    raise errors.UserError(
      f'config.mesh.data={data} needs {data} devices and {there}; lower it, or '
      'give 0'
    )
  if needed > len(devices):
    raise errors.UserError(
      f'the run was begun on {begun_with} devices and {there}; resume it where '
      'there are as many (on a CPU, in a fresh process without XLA_FLAGS), or '
      'give another --workdir'
    )
  if needed:
    return needed
  return min(wanted, len(devices)) if devices[0].platform == 'cpu' else 1


def data_mesh(data: int) -> jax.sharding.Mesh:
  """The first devices of this process along the data axis."""
  return jax.sharding.Mesh(
    np.array(jax.local_devices()[:data]),
    (DATA,),
    axis_types=(jax.sharding.AxisType.Auto,),
  )


def num_bytes(state: Any) -> int:
  """Bytes that a pytree of arrays takes on all devices of this process."""
  return sum(
    shard.data.nbytes
    for array in jax.tree.leaves(state)
    for shard in array.addressable_shards
  )


def name(device: jax.Device) -> str:
  """A device as reports name it."""
  return f'{device.platform}:{device.id} {device.device_kind}'


def describe(mesh: jax.sharding.Mesh) -> str:
  """One line on processes, devices and what is used of them."""
  devices = jax.devices()
  used = mesh.devices.flatten()
  return (
    f'process {jax.process_index() + 1} of {jax.process_count()}, '
    f'{len(devices)} device(s) of kind {used[0].device_kind}; '
    f'training on {", ".join(f"{d.platform}:{d.id}" for d in used)}'
  )
