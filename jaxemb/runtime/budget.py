"""The memory budget: what a run needs against what is free, before it is taken.

Five things take memory: the state (tables, optimizer state and dense
parameters), the rows of tables in a store that are on the device, batches with
the temporary arrays of a step, and first the checkpoints, then the results, for
which tables are copied. A run that they do not fit is refused with these
numbers and the setting to lower. `experiments/memory.py` compares the sum with
what processes take.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax

from jaxemb import errors
from jaxemb.runtime import resources

# Programs and threads take up to so much once steps are compiled; a new process
# has the other before it has tables.
_PROGRAM_BYTES, _PROCESS_BYTES = 130_000_000, 500_000_000
# With dense layers there are more programs, those of evaluations among them.
_DENSE_PROGRAM_BYTES = 230_000_000
# What threads keep of a snapshot that they copied, and programs that merge
# sub-models.
_COPYING_BYTES, _MERGING_BYTES = 60_000_000, 60_000_000


class _Room(NamedTuple):
  kind: str  # 'device' or 'host'
  free_bytes: int
  num_devices: int  # of this process that share it

  def check(self, what: str, needed_bytes: float, remedy: str) -> None:
    """Raises a `UserError` with the numbers if there is less than needed."""
    if needed_bytes > self.free_bytes:
      digits = 1 if needed_bytes >= 1e8 else 3
      needed, free = (
        f'{x / 1e9:,.{digits}f} GB' for x in (needed_bytes, self.free_bytes)
      )
      raise errors.UserError(
        f'{what} {needed} on each {self.kind}, where {free} are free; {remedy}'
      )


def _host() -> _Room:
  return _Room('host', resources.available_bytes(), 1)


def _room(devices: Sequence[jax.Device]) -> _Room:
  local = [d for d in devices if d.process_index == jax.process_index()]
  stats = local[0].memory_stats() if local else None
  if stats and stats.get('bytes_limit'):
    free_bytes = stats['bytes_limit'] - stats.get('bytes_in_use', 0)
    return _Room('device', free_bytes, 1)
  # CPU devices share the memory of the host.
  return _host()._replace(num_devices=len(local))


def free_bytes(devices: Sequence[jax.Device]) -> int:
  """Returns the memory that each of a mesh's devices has left."""
  room = _room(devices)
  return room.free_bytes // max(1, room.num_devices)


def check_host(what: str, needed_bytes: int, remedy: str) -> None:
  """Raises a `UserError` if data that are read do not fit into memory."""
  _host().check(what, needed_bytes, remedy)


def check_synthetic(path: str, needed_bytes: int) -> None:
  """Raises a `UserError` if synthetic data does not fit into memory."""
  what, remedy = f'config.data.path={path} takes', 'give a smaller one'
  check_host(what, needed_bytes, remedy)


def check_state(
  devices: Sequence[jax.Device],
  held_bytes: int,
  copy_bytes: int,
  result_bytes: int,
  smaller: str,
) -> None:
  """Raises a `UserError` if each device cannot hold `held_bytes`.

  It names the number of devices or hosts that have room for `copy_bytes`, one
  whole copy of the tables, and how to make these `smaller`. 0 = most of it is
  in layers, which are not divided. Each host has all results, `result_bytes`.
  """
  room = _room(devices)
  needed_bytes = held_bytes * room.num_devices
  if not copy_bytes:
    return room.check('layers and tables need', needed_bytes, smaller)
  left_bytes = room.free_bytes
  if room.kind == 'host':
    left_bytes -= result_bytes + _PROGRAM_BYTES + _COPYING_BYTES
  if left_bytes <= 0:
    return room.check('the tables need', needed_bytes, smaller)
  num = math.ceil(copy_bytes / left_bytes)
  num = 1 << (num - 1).bit_length()  # rows are divided by powers of two
  where = f'{num} {room.kind}{"s" if num > 1 else ""}'
  if room.kind == 'host':
    where += ' with as much memory, a process with one device on each'
  remedy = (
    f'split one copy of them over {where} '
    "(--config.table.layout='row' --config.strategy.name=sync "
    f'--config.mesh.data=1 --config.mesh.table={num}), or {smaller}'
  )
  room.check('the tables need', needed_bytes, remedy)


def check_step(
  program: jax.stages.Compiled, devices: Sequence[jax.Device], smaller: str
) -> None:
  """Raises a `UserError` if a program has no room beside its arguments.

  `smaller` says what to do.
  """
  analysis = program.memory_analysis()
  if analysis is None:  # some back ends do not know
    return
  new_bytes = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
  needed_bytes = analysis.temp_size_in_bytes + max(0, new_bytes)
  room = _room(devices)
  room.check('a step needs', needed_bytes * room.num_devices, smaller)


class Memory(NamedTuple):
  """Bytes of the memory of this process at its peak, by what takes them."""

  process_bytes: int  # before there are tables
  program_bytes: int  # programs, and libraries that write results
  state_bytes: int  # of all devices that have the memory of the host
  rows_bytes: int  # of tables in a store, as of `Store`
  batch_bytes: int
  snapshot_bytes: int  # copies that a checkpoint is written from
  result_bytes: int  # copied when the last checkpoint is written

  @property
  def peak_bytes(self) -> int:
    """The sum, of snapshot and results the larger."""
    return sum(self) - min(self.snapshot_bytes, self.result_bytes)

  def describe(self) -> str:
    """The budget in a line."""
    parts = ', '.join(
      f'{name.removesuffix("_bytes")} {x / 1e6:,.0f}'
      for name, x in self._asdict().items()
    )
    return (
      f'memory of this process at most {self.peak_bytes / 1e6:,.0f} MB: {parts}'
    )

  def check(self, smaller: str) -> None:
    """Raises a `UserError` if the memory of this machine is too small."""
    needed_bytes = self.peak_bytes - self.process_bytes
    what = f'training and its results ({self.result_bytes / 1e9:.1f} GB) need'
    _host().check(what, needed_bytes, smaller)


def memory(
  has_dense: bool,
  merges: bool,
  state_bytes: int,
  rows_bytes: int,
  batch_bytes: int,
  snapshot_bytes: int,
  result_bytes: int,
) -> Memory:
  """Returns the budget of this process, which has no tables yet."""
  program_bytes = _DENSE_PROGRAM_BYTES if has_dense else _PROGRAM_BYTES
  program_bytes += _COPYING_BYTES * (snapshot_bytes > 0)
  return Memory(
    process_bytes=resources.rss_bytes(),
    program_bytes=program_bytes + _MERGING_BYTES * merges,
    state_bytes=state_bytes,
    rows_bytes=rows_bytes,
    batch_bytes=batch_bytes,
    snapshot_bytes=snapshot_bytes,
    result_bytes=result_bytes,
  )


class Store(NamedTuple):
  """Bytes of tables in a store, on the machine of the run."""

  table_bytes: int  # all rows
  resident_bytes: int  # of these in memory; of files few pages stay
  # In each process that trains: rows on a device that has the memory of the
  # host, the map of all rows, and rows and batches on their way.
  rows_bytes: int
  num_workers: int = 0  # 0 = the process of the run trains
  shared_bytes: int = 0  # object store, dense parameters at the coordinator

  @property
  def needed_bytes(self) -> int:
    """All of them, with what processes take beside tables."""
    each = self.rows_bytes + _PROGRAM_BYTES + _COPYING_BYTES
    if self.num_workers:
      each = self.num_workers * (each + _PROCESS_BYTES)
    return self.resident_bytes + each + self.shared_bytes

  def describe(self) -> str:
    """The budget in a line."""
    where = 'in this process'
    if self.num_workers:
      where = f'in each of {self.num_workers} workers'
    return (
      f'store: {self.table_bytes / 1e6:,.1f} MB of tables; '
      f'{self.rows_bytes / 1e6:,.1f} MB of rows and batches {where}; '
      f'{self.needed_bytes / 1e6:,.0f} MB needed in all, '
      f'{resources.available_bytes() / 1e6:,.0f} MB free'
    )

  def check(self, smaller: str) -> None:
    """Raises a `UserError` if the memory of this machine is too small."""
    what = f'tables of {self.table_bytes / 1e9:.1f} GB in a store need'
    _host().check(what, self.needed_bytes, smaller)
