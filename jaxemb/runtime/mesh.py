"""The mesh of devices, and moving arrays between hosts and devices.

A CPU is as many JAX devices as are asked for before JAX starts. Where XLA takes
the steps, two devices use two cores far better than one does: the matrix
products of a step are too small to be shared. The threads of a kernel need one
device.
"""

import contextlib
import math
import os
import platform
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxemb import errors
from jaxemb.runtime import distributed, resources

DATA = 'data'  # axis along which the corpus is split
TABLE = 'table'  # axis along which tables are split

# A TPU has narrower rows column after column within steps (50 numbers, not 64,
# read in compiled programs).
LEAST_TPU_WIDTH = 64

# Four on two cores gain less than their synchronisations cost
# (experiments/results/step_notes.md).
_MAX_CPU_DEVICES = 2


class Shape(NamedTuple):
  """Devices along each axis of a mesh; 0 = chosen here."""

  data: int
  table: int


def all_devices() -> list[jax.Device]:
  """Returns JAX's devices; raises a `UserError` without any."""
  try:
    return jax.devices()
  except (RuntimeError, AssertionError) as error:
    platforms = os.environ.get('JAX_PLATFORMS', '')
    why = f' ({errors.one_line(error)})' if str(error) else ''
    raise errors.UserError(
      f'JAX finds no device for JAX_PLATFORMS={platforms!r}{why}; install '
      'what it needs, set JAX_PLATFORMS=cpu or unset it'
    ) from error


def start(
  wanted: Shape,
  splits_tables: bool = False,
  uses_cores: bool = True,
  is_resumed: bool = False,
  absent: Sequence[jax.Device] = (),
) -> Shape:
  """Chooses the mesh to train on; to be called before JAX is used.

  An axis that `wanted` leaves open gets the cores of a CPU if `uses_cores`, at
  most two, or one accelerator, or all of them if the layout splits tables or
  there are several processes. Devices that are `absent` are those to choose
  from, if there are any, and JAX's own are left alone. Raises a `UserError`,
  worded for a run that `is_resumed`, if there are not enough devices, or if
  some would be idle.
  """
  most = min(resources.usable_cores(), _MAX_CPU_DEVICES)
  default = most if uses_cores else 1
  data, table = wanted
  size = max(data, 1) * max(table, 1)
  is_given = data and (table or not splits_tables)
  num = size if is_given else max(size, most)  # for a later call that uses them
  per_process = -(-num // distributed.num_processes())
  is_free = 'xla_force_host_platform' not in os.environ.get('XLA_FLAGS', '')
  # -1 = not by the user. JAX adds its options at run time.
  chosen = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
  if chosen >= 1 and (size == 1 or per_process <= chosen):
    per_process = chosen
  if is_free and not absent:
    # JAX may have started (a notebook): the devices are what they are.
    with contextlib.suppress(RuntimeError):
      jax.config.update('jax_num_cpu_devices', per_process)
  devices = absent or all_devices()
  num_processes = len({x.process_index for x in devices})
  available = f'there are {len(devices)} ({devices[0].device_kind})'
  if size > len(devices):
    raise errors.UserError(
      f'the run was begun on {size} devices and {available}; resume it where '
      'there are as many (on a CPU, in a fresh process without XLA_FLAGS), or '
      'give another --workdir'
      if is_resumed
      else f'config.mesh.data={data} x config.mesh.table={table} needs {size} '
      f'devices and {available}; lower one of them, or give 0'
    )
  useful = len(devices)
  if num_processes == 1:
    if devices[0].platform == 'cpu':
      useful = min(default, useful)
    elif not splits_tables:
      useful = 1
  useful = max(useful, size)
  table = table or (useful // max(data, 1) if splits_tables else 1)
  data = data or max(useful // table, 1)
  if num_processes > 1 and data * table != len(devices):
    raise errors.UserError(
      f'config.mesh.data={data} x config.mesh.table={table} leaves devices of '
      f'some processes idle, {available}; make their product that number, or '
      'give 0'
    )
  return Shape(data, table)


def make(shape: Shape, devices: Sequence[jax.Device] = ()) -> jax.sharding.Mesh:
  """Returns a mesh of the first of JAX's devices in every process.

  Or of the first of these `devices`, which may be absent, see `start`.
  """
  processes: dict[int, list[jax.Device]] = {}
  for device in devices or jax.devices():
    processes.setdefault(device.process_index, []).append(device)
  num_devices = shape.data * shape.table
  per_process = -(-num_devices // len(processes))
  firsts = [x for i in sorted(processes) for x in processes[i][:per_process]]
  return jax.sharding.Mesh(
    np.array(firsts[:num_devices]).reshape(shape),
    (DATA, TABLE),
    # Outside `shard_map`, programs slice and gather rows that devices split, to
    # export, import or convert tables. With explicit axes each of them would
    # name the sharding of its result, and JAX lacks some of these slices.
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )


def cores_of_device(shape: Shape) -> int:
  """Returns the cores per device; all processes take part.

  That is 1 unless each is alone in its process, and as many in all processes:
  those of one host divide its cores.
  """
  if shape.data * shape.table != distributed.num_processes():
    return 1
  cores = resources.usable_cores()
  hosts = distributed.everyone(
    'cores', f'{cores} {platform.node()} {resources.affinity()}'
  )
  return max(1, min(int(x.split()[0]) // hosts.count(x) for x in hosts))


def my_parts(mesh: jax.sharding.Mesh, num_parts: int) -> range:
  """Returns the corpus shards that this process's devices train on.

  The data axis divides `num_parts`.
  """
  processes = np.vectorize(lambda x: x.process_index)(mesh.devices)
  rows = np.flatnonzero((processes == jax.process_index()).any(1)).tolist()
  per_row = num_parts // len(processes)
  return (
    range(per_row * rows[0], per_row * (rows[-1] + 1)) if rows else range(0)
  )


def num_bytes(state: Any) -> int:
  """Returns the bytes of arrays, or of their shapes, on all devices."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape))
    * x.dtype.itemsize
    * len(x.sharding.device_set)
    for x in jax.tree.leaves(state)
  )


def describe(mesh: jax.sharding.Mesh) -> str:
  """Returns a line on processes, hosts and devices; all processes take part."""
  devices, num = jax.devices(), jax.process_count()
  kinds = ', '.join(sorted({x.device_kind for x in devices}))
  used = [f'{x.platform}:{x.id}' for x in mesh.devices.flat]
  shown = ', '.join(used if len(used) <= 8 else [*used[:7], '...'])
  hosts = set(distributed.everyone('hostnames', platform.node()))
  process, of_all = 'one process', ''
  if num > 1:
    # Numbered from 0, as in the names of log files and in other messages.
    process = f'process {jax.process_index()} ({num} in all)'
    of_all = f'{len(hosts)} host(s) with '
  return (
    f'{process} on {platform.node()}, {of_all}{len(devices)} device(s) of '
    f'kind {kinds}; mesh {mesh.shape[DATA]} x '
    f'{mesh.shape[TABLE]} (data x table): {shown}'
  )
