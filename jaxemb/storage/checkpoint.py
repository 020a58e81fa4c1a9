"""Checkpoints through orbax: saved in the background, verified when read.

A checkpoint holds a pytree of arrays (the training state) and a JSON record
(where reading goes on) with a checksum of every array, and of itself: if the
newest checkpoint is damaged, the one before it is used. A save that fails (on a
full disk, say) is reported, and training goes on.

Orbax's V1 API can read these checkpoints. Up to orbax 0.12 it is in a package
named `experimental`, so jaxemb uses the older API.
"""

import contextlib
import errno
import functools
import json
import logging
import pathlib
import shutil
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from jaxemb import errors
from jaxemb.runtime import process
from jaxemb.storage import damage, formats, orbax_export

_METADATA = '_CHECKPOINT_METADATA'  # by orbax, of a checkpoint
TO_KEEP = 3  # newest checkpoints of a run
_BLOCK_NUMBERS = 1 << 20  # of an array, whose checksum is made at once
# Of state, record and what a store writes with them.
FORMAT = formats.Format(
  'a checkpoint',
  number=6,
  remedy='go on with that version, or give another --workdir',
)
# Of a number that is no valid time.
_NO_TIME = errno.EOVERFLOW, errno.EINVAL
# Errors that say nothing about the checkpoint itself.
_PASSING = (errno.EACCES, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM)


def _checksum(array: jax.Array, axis: int | None) -> jax.Array:
  """uint32 of an array's bits and their indices, on any mesh.

  It is read in blocks along an axis; None = at once. Zeros do not count: the
  number of padding columns depends on the mesh.
  """
  if array.size <= _BLOCK_NUMBERS or axis is None:
    return _sum(_bits(array))
  # At once, the weights of bytes would take four times their memory.
  num = array.shape[axis]
  size = max(1, _BLOCK_NUMBERS * num // array.size)
  if array.dtype.itemsize == 2:
    array = _bits(array)  # or XLA makes float32 of all bfloat16

  def add(i, total):
    first = jnp.minimum(i * size, num - size)
    block = jax.lax.dynamic_slice_in_dim(array, first, size, axis)
    # The last block has numbers of the one before.
    is_new = first + jnp.arange(size) >= i * size
    bits = jnp.where(jnp.expand_dims(is_new, others), _bits(block), 0)
    return total + _sum(bits, axis=axis, first=first)

  others = [x for x in range(array.ndim) if x != axis]
  return jax.lax.fori_loop(0, -(-num // size), add, jnp.uint32(0))


def _bits(array: jax.Array) -> jax.Array:
  """Returns unsigned integers of the bits of an array."""
  if array.dtype == jnp.bool_ or array.dtype.itemsize == 1:
    return array.astype(jnp.uint8)
  unsigned = {2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
  return jax.lax.bitcast_convert_type(array, unsigned)


def _sum(
  bits: jax.Array, axis: int = 0, first: jax.Array | int = 0
) -> jax.Array:
  """uint32 of a part of an array, which begins at `first` of an axis."""
  weights = jnp.full(bits.shape, 0x9E3779B9, jnp.uint32)
  for i in range(bits.ndim):
    index = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, i)
    if i == axis:
      index += jnp.uint32(first)
    weights = (weights ^ index) * np.uint32(0x21F0AAAD)
    weights ^= weights >> 15
  # Odd, so that no change of a single number is lost.
  return jnp.sum(bits.astype(jnp.uint32) * (weights | 1), dtype=jnp.uint32)


@functools.partial(jax.jit, static_argnums=1)
def _all_checksums(
  arrays: list[jax.Array], axes: tuple[int | None, ...]
) -> list[jax.Array]:
  return list(map(_checksum, arrays, axes))


def _block_axis(array: Any) -> int | None:
  """Returns the longest axis, but for columns, that devices do not share."""
  sharding, shape = getattr(array, 'sharding', None), array.shape
  local = shape if sharding is None else sharding.shard_shape(shape)
  axes = [i for i in range(max(1, len(shape) - 1)) if i < len(shape)]
  axes = [i for i in axes if local[i] == shape[i]]
  return max(axes, key=lambda i: shape[i], default=None)


def _checksums(state: Any) -> list[int]:
  # In one program: a GPU compiles each for a while.
  leaves = jax.tree.leaves(state)
  sums = jax.device_get(_all_checksums(leaves, tuple(map(_block_axis, leaves))))
  return list(map(int, sums))


def compile_ahead(shapes: Any) -> None:
  """Compiles what saves a state of these shapes."""
  leaves = jax.tree.leaves(shapes)
  _all_checksums.lower(leaves, tuple(map(_block_axis, leaves))).compile()


def _record_checksum(record: dict[str, Any]) -> int:
  """CRC-32 of all of a record but its checksum."""
  rest = {k: x for k, x in record.items() if k != 'checksum'}
  return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def _is_intact(record: dict[str, Any]) -> bool:
  """Whether a record is as it was saved; older ones have no checksum."""
  return record.get('checksum') in (None, _record_checksum(record))


def _restore_args(like: Any) -> ocp.RestoreArgs:
  sharding = getattr(like, 'sharding', None)
  if sharding is None:
    return ocp.RestoreArgs(restore_type=np.ndarray, dtype=like.dtype)
  return ocp.ArrayRestoreArgs(
    sharding=sharding,
    global_shape=like.shape,
    dtype=like.dtype,
    # Another mesh may have other padding columns; checksums tell whether
    # anything else was cut off.
    strict=False,
  )


def _type_handlers() -> Any:
  """Returns what orbax saves arrays by.

  Its own have each device write a part of what several devices hold, such as
  the rows that replicas have in common, from a copy. Of one process that is no
  faster, and takes the memory of all these arrays.
  """
  handlers, is_shared = ocp.type_handlers, jax.process_count() > 1
  return handlers.create_type_handler_registry(
    (jax.Array, handlers.ArrayHandler(use_replica_parallel=is_shared)),
    (np.ndarray, handlers.NumpyHandler()),
  )


def newest_record(folder: pathlib.Path) -> dict[str, Any] | None:
  """The record of the newest checkpoint of a run, if it can be read."""
  paths = folder.glob('*/record/metadata')
  # A save under way, or killed, has another name.
  steps = {int(x.parts[-3]): x for x in paths if x.parts[-3].isdecimal()}
  newest = steps[max(steps)] if steps else None
  with contextlib.suppress(OSError, *damage.ERRORS):
    record = json.loads(newest.read_bytes()) if newest else {}
    if isinstance(record, dict) and _is_intact(record):
      return record if record.get('format') == FORMAT.number else None
  return None


class Checkpoints:
  """The checkpoints of one run; a context manager that waits for saves."""

  def __init__(
    self, folder: pathlib.Path, max_to_keep: int, report: Callable[[str], None]
  ):
    """Opens or creates the folder; `report` gets a line for each problem."""
    self._folder, self._max_to_keep = folder.absolute(), max_to_keep
    self._report = report
    # Orbax logs pages of tracebacks for an error that is reported here.
    self._absl = logging.getLogger('absl')
    self._absl.addFilter(self._is_critical)
    process.filter_dropped(orbax_export.is_late)
    self._remove_unfinished()
    self._remove_damaged_metadata()
    self._manager: ocp.CheckpointManager | None = self._opened()

  def _is_critical(self, record: logging.LogRecord) -> bool:
    return record.levelno >= logging.CRITICAL

  def _open(self) -> ocp.CheckpointManager:
    """Returns the manager, opened again if a save failed."""
    if self._manager is None:
      self._manager = self._opened()
    return self._manager

  def _opened(self) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        max_to_keep=self._max_to_keep,
        create=True,
        # Processes that train as one also wait for each other in training:
        # saves of all of them must not run in the background.
        enable_async_checkpointing=jax.process_count() == 1,
        # With True, threads that wait for the folder of a save that failed
        # hang for 20 minutes when the program ends (orbax 0.12.8).
        async_options=ocp.options.AsyncOptions(
          create_directories_asynchronously=False
        ),
      ),
      item_handlers={
        # Trained numbers hardly compress, and trying takes twice their memory.
        'state': ocp.PyTreeCheckpointHandler(
          use_compression=False, type_handler_registry=_type_handlers()
        ),
        'record': ocp.JsonCheckpointHandler(),
      },
    )

  def _remove_unfinished(self) -> None:
    """Removes saves that failed or were killed."""
    if jax.process_index() == 0:
      for unfinished in self._folder.glob('*orbax-checkpoint-tmp*'):
        shutil.rmtree(unfinished, ignore_errors=True)

  def _remove_damaged_metadata(self) -> None:
    """Removes times of checkpoints that would keep orbax from opening any.

    A checkpoint is whole without them.
    """
    if jax.process_index() != 0:
      return
    for step in ocp.path.step.standard_name_format().find_all(self._folder):
      try:
        _ = step.commit_timestamp
      except (OSError, *damage.ERRORS) as error:
        if isinstance(error, OSError) and error.errno not in _NO_TIME:
          raise
        path = self._folder / step.path.name / _METADATA
        path.unlink(missing_ok=True)
        self._report(f'removed {path}, which was damaged: {error}')

  def __enter__(self) -> 'Checkpoints':
    return self

  def __exit__(self, *unused: object) -> None:
    self.wait()
    self._close()
    self._absl.removeFilter(self._is_critical)

  def save(
    self,
    step: int,
    state: Any,
    record: dict[str, Any],
    write: Callable[[pathlib.Path], tuple[Any, Any]] | None = None,
  ) -> None:
    """Saves in the background, once a step; all processes take part.

    Arrays of `state` may be donated once this returns; `record` is JSON-ready.
    If what is to be saved is in a store, `write` writes that to a folder and
    returns the rest of the state, and what tells whether a file is damaged.
    """
    self.wait()
    with self._reported():
      manager = self._open()
      if step in manager.all_steps():
        return
      if write:
        state, record['store'] = write(self._new_folder(step))
      record = record | FORMAT.stamp() | {'checksums': _checksums(state)}
      record['checksum'] = _record_checksum(record)
      args = ocp.args.Composite(
        state=ocp.args.PyTreeSave(state), record=ocp.args.JsonSave(record)
      )
      manager.save(step, args=args)

  def _folder_of(self, step: int) -> pathlib.Path:
    """What a store has written with a checkpoint, which orbax is not told."""
    return self._folder.with_name(f'{self._folder.name}-stores') / str(step)

  def _new_folder(self, step: int) -> pathlib.Path:
    """Makes an empty one, and removes those of removed checkpoints."""
    folder, known = self._folder_of(step), set(self._open().all_steps())
    for old in folder.parent.glob('*'):
      if not (old.name.isdecimal() and int(old.name) in known):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder

  def wait(self) -> int | None:
    """Waits for the save under way; the step of the newest checkpoint."""
    if self._manager:
      with self._reported():
        self._manager.wait_until_finished()
    with contextlib.suppress(OSError, ValueError):
      return self._open().latest_step()
    return None

  @contextlib.contextmanager
  def _reported(self):
    try:
      yield
    except Exception as error:  # orbax and tensorstore raise many types
      self._report(
        f'checkpoint not saved in {self._folder}: {errors.one_line(error)}; '
        'training goes on and the last good checkpoint stays: free space on '
        'that disk'
      )
      self._forget_unfinished()

  def _forget_unfinished(self) -> None:
    """Removes a save that failed, which the manager remembers."""
    if jax.process_count() == 1:
      # Parts of it may still be written in the background. Their errors would
      # be raised by the next save.
      self._close()
    self._remove_unfinished()
    # If reading the folder fails, too, the next save will report it.
    with contextlib.suppress(OSError, ValueError):
      self._open().reload()

  def _close(self) -> None:
    """Closes the manager, and drops errors of saves that are reported."""
    manager, self._manager = self._manager, None
    if manager is None:
      return
    for _ in range(2):  # the first one raises such an error, and closes little
      with contextlib.suppress(Exception):
        manager.close()
        return

  def restore(
    self,
    like: Callable[[dict[str, Any]], Any],
    load: Callable[[pathlib.Path, Any, dict[str, Any]], Any] | None = None,
  ) -> tuple[int, Any, dict[str, Any]] | None:
    """Step, state and record of the newest intact checkpoint, if there is one.

    `like` returns, for a record, a pytree of arrays or
    `jax.ShapeDtypeStruct`s as saved: leaves
    with a sharding are restored onto its mesh, which may differ from the one
    they were saved on, others as host arrays. `load` makes the state of a
    folder that `save` wrote to and of the rest, and raises a ValueError if it
    is damaged. Newer, damaged checkpoints are
    moved to a folder next to this one. Raises a `UserError` if no checkpoint
    can be read (all stay), or if they are of another version of jaxemb.
    """
    damaged: dict[int, str] = {}
    for step in sorted(self._open().all_steps(), reverse=True):
      try:
        state, record = self._read(step, like)
        if load:
          state = load(self._folder_of(step), state, record)
      except (MemoryError, errors.UserError):
        raise
      except Exception as error:  # whatever a damaged file makes orbax raise
        if isinstance(error, OSError) and error.errno in _PASSING:
          raise
        damaged[step] = errors.one_line(error)
        if jax.process_count() > 1:
          # Others may have read their shards and go on with them.
          raise errors.UserError(
            f'checkpoint {step} in {self._folder} cannot be read by process '
            f'{jax.process_index()} ({damaged[step]}); move it away and start '
            'all processes again to go on from the one before'
          ) from error
        continue
      # Set aside, so that their numbers can be saved again.
      aside = self._folder.with_name(f'{self._folder.name}-damaged')
      for other, cause in damaged.items():
        self._report(
          f'checkpoint {other} is damaged and set aside, going on from '
          f'checkpoint {step}: {cause}'
        )
        aside.mkdir(exist_ok=True)
        shutil.rmtree(aside / str(other), ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
          (self._folder / str(other)).rename(aside / str(other))
      self._open().reload()
      return step, state, record
    if damaged:
      cause = next(iter(damaged.values()))
      raise errors.UserError(
        f'no checkpoint in {self._folder} can be read ({cause}); delete that '
        'folder to start again from the beginning'
      )
    return None

  def _read(self, step, like) -> tuple[Any, dict[str, Any]]:
    def restored(**args: Any) -> Any:
      return self._open().restore(step, args=ocp.args.Composite(**args))

    record = restored(record=ocp.args.JsonRestore()).record
    if not _is_intact(record):
      raise ValueError('its record has changed')
    FORMAT.check(self._folder / str(step), record)
    like = like(record)
    args = jax.tree.map(_restore_args, like)
    state = restored(state=ocp.args.PyTreeRestore(like, args)).state
    if _checksums(state) != record['checksums']:
      raise ValueError('its checksums differ')
    return state, record
