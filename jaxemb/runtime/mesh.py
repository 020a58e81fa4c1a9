"""The mesh of devices, and moving arrays between hosts and devices.

A CPU is as many JAX devices as are asked for before JAX starts, each a thread
of its own. Two devices use two cores far better than one device with two
threads: the matrix products of a step are too small to be shared.
"""

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

  An axis that is left open gets the useful cores of a CPU, one accelerator, or
  all of them where the layout splits tables or there are several processes.

  Args:
    wanted: from the settings, or that of a run which is resumed.
    splits_tables: whether the layout splits tables along the table axis.
    uses_cores: whether training gains from several cores of a CPU.
    is_resumed: whether the run has to go on with just the wanted mesh.

  Raises:
    UserError: if there are not enough devices, or some would be idle.
  """
  default = min(resources.usable_cores(), _MAX_CPU_DEVICES) if uses_cores else 1
  data, table = wanted
  size = max(data, 1) * max(table, 1)
  is_given = data and (table or not splits_tables)
  num = size if is_given else max(size, default)
  _request_cpu_devices(-(-num // distributed.num_processes()), size > 1)
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


def _request_cpu_devices(num: int, is_more: bool) -> None:
  """Makes a CPU that many devices unless the user or JAX has chosen."""
  flags = os.environ.get('XLA_FLAGS', '')
  chosen = jax.config.jax_num_cpu_devices  # -1 = not
  if 'xla_force_host_platform_device_count' not in flags and (
    chosen < 1 or (is_more and num > chosen)
  ):
    try:
      jax.config.update('jax_num_cpu_devices', num)
    except RuntimeError:
      pass  # JAX has started (a notebook): the devices are what they are


def make(shape: Shape) -> jax.sharding.Mesh:
  """Returns a mesh of the first devices of all processes."""
  devices = np.array(jax.devices()[: shape.data * shape.table])
  return jax.sharding.Mesh(
    devices.reshape(shape),
    (DATA, TABLE),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )


def my_parts(mesh: jax.sharding.Mesh, num_parts: int) -> range:
  """Parts of the corpus, of `num_parts`, that this process's devices train on.

  The data axis divides them.
  """
  each = num_parts // mesh.shape[DATA]
  me = jax.process_index()
  mine = [
    i
    for i, row in enumerate(mesh.devices)
    if me in [device.process_index for device in row]
  ]
  return range(each * mine[0], each * (mine[-1] + 1)) if mine else range(0)


def put_parts(
  tree: Any, sharding: jax.sharding.NamedSharding, num_parts: int
) -> Any:
  """Puts arrays [len(my_parts), ...] on the mesh, as [num_parts, ...].

  `sharding` is over the leading axis.
  """

  def put(x):
    shape = (num_parts, *x.shape[1:])
    return jax.make_array_from_process_local_data(sharding, x, shape)

  return jax.tree.map(put, tree)


def num_bytes(state: Any) -> int:
  """Returns the bytes of a pytree of arrays on all devices together."""
  return sum(
    _shard_bytes(x.sharding, x) * len(x.sharding.device_set)
    for x in jax.tree.leaves(state)
  )


def bytes_per_device(shapes: Any, shardings: Any) -> int:
  """Returns the bytes that one device will hold of arrays not yet made.

  `shapes` is a pytree of `jax.ShapeDtypeStruct`; `shardings` is that of all of
  them, or a prefix of the tree.
  """
  each = jax.tree.map(
    lambda sharding, below: sum(
      _shard_bytes(sharding, x) for x in jax.tree.leaves(below)
    ),
    shardings,
    shapes,
  )
  return sum(jax.tree.leaves(each))


def _shard_bytes(sharding: jax.sharding.Sharding, x: Any) -> int:
  return math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize


def name(device: jax.Device) -> str:
  """Returns the name of a device in reports."""
  return f'{device.platform}:{device.id} {device.device_kind}'


def describe(mesh: jax.sharding.Mesh) -> str:
  """Returns a line on processes, hosts and devices; all processes take part."""
  devices = jax.devices()
  kinds = sorted({d.device_kind for d in devices})
  used = [f'{d.platform}:{d.id}' for d in mesh.devices.flatten()]
  shown = ', '.join(used if len(used) <= 8 else [*used[:7], '...'])
  hosts = set(distributed.everyone('hostnames', platform.node()))
  of_all = f'{len(hosts)} host(s) with ' if jax.process_count() > 1 else ''
  return (
    f'process {jax.process_index() + 1} of {jax.process_count()} on '
    f'{platform.node()}, {of_all}{len(devices)} device(s) of kind '
    f'{", ".join(kinds)}; '
    f'mesh {mesh.shape[DATA]} x {mesh.shape[TABLE]} (data x table): {shown}'
  )
