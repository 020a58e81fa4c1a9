"""The mesh of devices, and moving arrays between hosts and devices.

A CPU is as many JAX devices as are asked for before JAX starts, each a thread
of its own. Two devices use two cores far better than one device with two
threads: the matrix products of a step are too small to be shared.
"""

import contextlib
import math
import os
import platform
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxemb import errors
from jaxemb.runtime import distributed, resources

DATA = 'data'  # axis along which the corpus is split
TABLE = 'table'  # axis along which tables are split

# Four on two cores gain less than their frequent meetings cost
# (experiments/results/step_notes.md).
_MAX_CPU_DEVICES = 2


class Shape(NamedTuple):
  """Devices along each axis of a mesh; 0 = chosen here."""

  data: int
  table: int


def start(
  wanted: Shape,
  splits_tables: bool = False,
  uses_cores: bool = True,
  is_resumed: bool = False,
) -> Shape:
  """Chooses the mesh to train on; to be called before JAX is used.

  An axis that `wanted` leaves open gets the useful cores of a CPU (one where
  training does not gain from more), one accelerator, or all of them where the
  layout splits tables along the table axis or there are several processes. A
  run that is resumed has to go on with just the wanted mesh. Raises a
  `UserError` if there are not enough devices, or some would be idle.
  """
  default = min(resources.usable_cores(), _MAX_CPU_DEVICES) if uses_cores else 1
  data, table = wanted
  size = max(data, 1) * max(table, 1)
  is_given = data and (table or not splits_tables)
  num = size if is_given else max(size, default)
  per_process = -(-num // distributed.num_processes())
  is_free = 'xla_force_host_platform' not in os.environ.get('XLA_FLAGS', '')
  chosen = jax.config.jax_num_cpu_devices  # -1 = not by the user
  if is_free and (chosen < 1 or (size > 1 and per_process > chosen)):
    # JAX may have started (a notebook): the devices are what they are.
    with contextlib.suppress(RuntimeError):
      jax.config.update('jax_num_cpu_devices', per_process)
  devices = jax.devices()
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
  if jax.process_count() == 1:
    if devices[0].platform == 'cpu':
      useful = min(default, useful)
    elif not splits_tables:
      useful = 1
  useful = max(useful, size)
  table = table or (useful // max(data, 1) if splits_tables else 1)
  data = data or max(useful // table, 1)
  if jax.process_count() > 1 and data * table != len(devices):
    raise errors.UserError(
      f'config.mesh.data={data} x config.mesh.table={table} leaves devices of '
      f'some processes idle, {available}; make their product that number, or '
      'give 0'
    )
  return Shape(data, table)


def make(shape: Shape) -> jax.sharding.Mesh:
  """Returns a mesh of the first devices of all processes."""
  devices = np.array(jax.devices()[: shape.data * shape.table])
  return jax.sharding.Mesh(
    devices.reshape(shape),
    (DATA, TABLE),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )


def my_parts(mesh: jax.sharding.Mesh, num_parts: int) -> range:
  """The parts of the corpus that this process's devices train on.

  The data axis divides `num_parts`.
  """
  each, me = num_parts // mesh.shape[DATA], jax.process_index()
  mine = [
    i
    for i, row in enumerate(mesh.devices)
    if any(x.process_index == me for x in row)
  ]
  return range(each * mine[0], each * (mine[-1] + 1)) if mine else range(0)


def put_parts(
  tree: Any, sharding: jax.sharding.NamedSharding, num_parts: int
) -> Any:
  """Puts arrays [len(my_parts), ...] on the mesh, as [num_parts, ...].

  `sharding` is over the leading axis.
  """
  put = jax.make_array_from_process_local_data
  return jax.tree.map(
    lambda x: put(sharding, x, (num_parts, *x.shape[1:])), tree
  )


def num_bytes(state: Any) -> int:
  """Returns the bytes of a pytree of arrays on all devices together."""
  return sum(
    _shard_bytes(x.sharding, x) * len(x.sharding.device_set)
    for x in jax.tree.leaves(state)
  )


def bytes_per_device(shapes: Any, shardings: Any) -> int:
  """Returns the bytes that one device will hold of arrays not yet made.

  `shapes` is a pytree of `jax.ShapeDtypeStruct`, `shardings` that of all of
  them, or a prefix of the tree.
  """
  shardings = jax.tree.broadcast(shardings, shapes)
  return sum(map(_shard_bytes, *map(jax.tree.leaves, (shardings, shapes))))


def _shard_bytes(sharding: jax.sharding.Sharding, x: Any) -> int:
  return math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize


def name(device: jax.Device) -> str:
  """Returns the name of a device in reports."""
  return f'{device.platform}:{device.id} {device.device_kind}'


def describe(mesh: jax.sharding.Mesh) -> str:
  """Returns a line on processes, hosts and devices; all processes take part."""
  devices, num = jax.devices(), jax.process_count()
  kinds = ', '.join(sorted({x.device_kind for x in devices}))
  used = [f'{x.platform}:{x.id}' for x in mesh.devices.flat]
  shown = ', '.join(used if len(used) <= 8 else [*used[:7], '...'])
  hosts = set(distributed.everyone('hostnames', platform.node()))
  of_all = f'{len(hosts)} host(s) with ' if num > 1 else ''
  return (
    f'process {jax.process_index() + 1} of {num} on {platform.node()}, {of_all}'
    f'{len(devices)} device(s) of kind {kinds}; mesh {mesh.shape[DATA]} x '
    f'{mesh.shape[TABLE]} (data x table): {shown}'
  )
