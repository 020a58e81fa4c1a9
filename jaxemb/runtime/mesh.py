"""Devices: the only place that chooses them and builds a mesh.

A CPU is as many JAX devices as one asks for before JAX starts, each a thread of
its own. Two use two cores far better than one device with two threads does: the
matrix products of a step are too small to be shared.
"""

import math
import os
import platform
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxemb import errors
from jaxemb.runtime import hosts, processes

DATA = 'data'  # axis along the corpus: every device has its own part of it
TABLE = 'table'  # axis along the tables: every device has its own share of them

# More would gain little, by what four on two cores cost: they have to meet too
# often (experiments/results/step_notes.md).
_MOST_CPU_DEVICES = 2

# Of an array that goes to the hosts of several processes, at once.
_PIECE_BYTES = 64 << 20


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


class Shape(NamedTuple):
  """Devices along the axes of a mesh; 0 = as many as are of use."""

  data: int
  table: int


def start(
  wanted: Shape,
  splits_tables: bool = False,
  uses_cores: bool = True,
  begun_with: Shape | None = None,
) -> Shape:
  """Prepares JAX, before its first use, for training on a mesh.

  Args:
    wanted: axes that the settings give. What they leave open is cores of a
      CPU, one accelerator, or all of them where the layout splits tables, and
      all devices of several processes, along the table axis where the layout
      splits tables, else the data axis.
    splits_tables: whether devices of the table axis hold different things.
    uses_cores: whether two cores of a CPU are of more use than one.
    begun_with: what a run that is resumed was begun with, where it cannot go on
      with another mesh; None = any will do.

  Returns:
    The mesh to use, without zeros.

  Raises:
    UserError: if there are fewer devices than asked for.
  """
  needed = begun_with or wanted
  default = min(_usable_cores(), _MOST_CPU_DEVICES) if uses_cores else 1
  size = max(needed.data, 1) * max(needed.table, 1)
  is_given = needed.data and (needed.table or not splits_tables)
  num = size if is_given else max(size, default)
  _want_cpu_devices(-(-num // processes.num_joined()), size > 1)
  devices = jax.devices()
  kind = devices[0].device_kind
  there = f'there are {len(devices)} ({kind})'
  if begun_with and size > len(devices):
    raise errors.UserError(
      f'the run was begun on {size} devices and {there}; resume it where '
      'there are as many (on a CPU, in a fresh process without XLA_FLAGS), or '
      'give another --workdir'
    )
  if size > len(devices):
    raise errors.UserError(
      f'config.mesh.data={wanted.data} x config.mesh.table={wanted.table} '
      f'needs {size} devices and {there}; lower one of them, or give 0'
    )
  if jax.process_count() > 1:
    of_use = len(devices)
  elif devices[0].platform == 'cpu':
    of_use = min(default, len(devices))
  else:
    of_use = len(devices) if splits_tables else 1
  found = _completed(needed, max(of_use, size), splits_tables)
  if jax.process_count() > 1 and found.data * found.table != len(devices):
    raise errors.UserError(
      f'config.mesh.data={found.data} x config.mesh.table={found.table} leaves '
      f'devices of some processes without work, {there}; make their product '
      'that number, or give 0'
    )
  return found


def _completed(needed: Shape, size: int, splits_tables: bool) -> Shape:
  """The mesh of about `size` devices with what was left open filled in."""
  data, table = needed
  if not table:
    table = size // max(data, 1) if splits_tables else 1
  return Shape(data or max(size // table, 1), table)


def _want_cpu_devices(num: int, is_more: bool) -> None:
  """Makes a CPU so many devices, unless the user or JAX has chosen."""
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
  """The first devices, of all processes, along a data and a table axis."""
  devices = np.array(jax.devices()[: shape.data * shape.table])
  return jax.sharding.Mesh(
    devices.reshape(shape),
    (DATA, TABLE),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )


def my_parts(
  mesh: jax.sharding.Mesh, num_parts: int, first_only: bool = False
) -> range:
  """Which of the parts along the data axis this process's devices work on.

  Args:
    mesh: the devices.
    num_parts: of the corpus; the data axis divides them.
    first_only: whether to leave out those that a process before this one works
      on as well.
  """
  each = num_parts // mesh.shape[DATA]
  me = jax.process_index()
  rows = [[d.process_index for d in row] for row in mesh.devices]
  mine = [i for i, row in enumerate(rows) if me in row]
  if first_only:
    mine = [i for i in mine if min(rows[i]) == me]
  return range(each * mine[0], each * (mine[-1] + 1)) if mine else range(0)


def put(tree: Any, sharding: Any) -> Any:
  """Host arrays, the same in all processes, as arrays on the mesh.

  Args:
    tree: pytree of whole arrays.
    sharding: of all of them, or a prefix of the tree.
  """
  if jax.process_count() == 1:
    return jax.device_put(tree, sharding)

  def place(sharding, part):
    return jax.tree.map(
      lambda x: jax.make_array_from_callback(
        np.shape(x), sharding, lambda index: np.asarray(x)[index]
      ),
      part,
    )

  return jax.tree.map(place, sharding, tree)


def put_parts(
  tree: Any,
  sharding: jax.sharding.NamedSharding,
  parts: range,
  num_parts: int,
) -> Any:
  """Arrays of which this process has some parts, as arrays on the mesh.

  Args:
    tree: pytree of [len(parts), ...] host arrays.
    sharding: over the leading axis.
    parts: which parts these are.
    num_parts: of all processes.
  """
  if len(parts) == num_parts and jax.process_count() == 1:
    return jax.device_put(tree, sharding)

  def place(x):
    def piece(index):
      first, stop, _ = index[0].indices(num_parts)
      return x[first - parts.start : stop - parts.start]

    return jax.make_array_from_callback(
      (num_parts, *x.shape[1:]), sharding, piece
    )

  return jax.tree.map(place, tree)


def to_host(array: jax.Array) -> np.ndarray:
  """A whole array in the host's memory; all processes take part."""
  if array.is_fully_addressable or array.is_fully_replicated:
    return np.asarray(array)
  return _piecewise(array)


def _piecewise(array: jax.Array, piece_bytes: int = _PIECE_BYTES) -> np.ndarray:
  """The same, by pieces that every device holds whole for a moment.

  A whole table may be more than a device has room for.

  Args:
    array: on a mesh, with an axis that is not split.
    piece_bytes: of a piece, about.
  """
  shard = array.sharding.shard_shape(array.shape)
  whole = [i for i, n in enumerate(array.shape) if n == shard[i]]
  if not whole:
    return multihost_utils.process_allgather(array, tiled=True)
  axis = max(whole, key=lambda i: array.shape[i])
  length = array.shape[axis]
  size = max(1, min(length, piece_bytes * length // max(array.nbytes, 1)))
  everywhere = array.sharding.update(spec=jax.sharding.PartitionSpec())
  cut = jax.jit(
    lambda x, first: jax.lax.dynamic_slice_in_dim(x, first, size, axis),
    out_shardings=everywhere,
  )
  found = np.empty(array.shape, array.dtype)
  for first in range(0, length, size):
    first = min(first, length - size)
    index = (slice(None),) * axis + (slice(first, first + size),)
    found[index] = cut(array, np.int32(first)).addressable_data(0)
  return found


def num_bytes(state: Any) -> int:
  """Bytes that a pytree of arrays takes on all devices, of all processes."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape))
    * x.dtype.itemsize
    * len(x.sharding.device_set)
    for x in jax.tree.leaves(state)
  )


def bytes_per_device(shapes: Any, shardings: Any) -> int:
  """Bytes that one device will hold of arrays that are not yet made.

  Args:
    shapes: pytree of `jax.ShapeDtypeStruct`s.
    shardings: of all of them, or a prefix of the tree.
  """

  def held(sharding, part):
    return sum(
      math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize
      for x in jax.tree.leaves(part)
    )

  return sum(jax.tree.leaves(jax.tree.map(held, shardings, shapes)))


def check_fits(
  mesh: jax.sharding.Mesh, held_bytes: int, is_split: bool
) -> None:
  """Refuses what a device has no room for.

  Args:
    mesh: the devices.
    held_bytes: that each of them is to hold.
    is_split: whether devices of the table axis hold different things.

  Raises:
    UserError: naming the number of devices, or hosts, that would do.
  """
  mine = [
    d for d in mesh.devices.flat if d.process_index == jax.process_index()
  ]
  stats = mine[0].memory_stats() if mine else None
  if stats and stats.get('bytes_limit'):
    what = 'device'
    free_bytes = stats['bytes_limit'] - stats.get('bytes_in_use', 0)
    needed_bytes = held_bytes
  else:
    what = 'host'  # the devices of a CPU share its memory
    free_bytes = hosts.free_bytes()
    needed_bytes = held_bytes * len(mine)
  if free_bytes is None or needed_bytes <= free_bytes:
    return
  copy_bytes = held_bytes * (mesh.shape[TABLE] if is_split else 1)
  num = math.ceil(copy_bytes / max(free_bytes, 1))
  num = 1 << (num - 1).bit_length()  # rows are dealt to powers of two
  wanted = f'{num} {what}{"s" if num > 1 else ""}'
  if what == 'host':
    wanted += ' with as much memory, a process with one device on each'
  raise errors.UserError(
    f'the tables need {needed_bytes / 1e9:,.1f} GB on each {what} and '
    f'{free_bytes / 1e9:,.1f} GB are free there; split one copy of them over '
    f"{wanted} (--config.table.layout='row' --config.strategy.name=sync "
    f'--config.mesh.data=1 --config.mesh.table={num}), or lower '
    '--config.model.dim or --config.data.max_vocab'
  )


def name(device: jax.Device) -> str:
  """A device as reports name it."""
  return f'{device.platform}:{device.id} {device.device_kind}'


def describe(mesh: jax.sharding.Mesh) -> str:
  """One line on processes, hosts, devices and what is used of them.

  All processes take part, once.
  """
  devices = jax.devices()
  kinds = sorted({d.device_kind for d in devices})
  used = [f'{d.platform}:{d.id}' for d in mesh.devices.flatten()]
  shown = ', '.join(used if len(used) <= 8 else [*used[:7], '...'])
  nodes = set(processes.everyone('nodes', platform.node()))
  of_all = f'{len(nodes)} host(s) with ' if jax.process_count() > 1 else ''
  return (
    f'process {jax.process_index() + 1} of {jax.process_count()} on '
    f'{platform.node()}, {of_all}{len(devices)} device(s) of kind '
    f'{", ".join(kinds)}; '
    f'mesh {mesh.shape[DATA]} x {mesh.shape[TABLE]} (data x table): {shown}'
  )
