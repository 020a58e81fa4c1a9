"""Checkpoints through orbax: saved in the background, checked when read.

A checkpoint holds the training state and a JSON record that says where reading
goes on. The record carries a checksum of every array, so that a damaged
checkpoint is noticed and the one before it is used. A save that fails (a full
disk, say) is reported and training goes on; earlier checkpoints stay.
"""

import contextlib
import errno
import json
import logging
import pathlib
import shutil
from collections.abc import Callable
from concurrent import futures
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from jaxemb import errors

# Errors that say nothing about the checkpoint itself.
_PASSING = (errno.EACCES, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM)


class Restored(NamedTuple):
  """A checkpoint that was read and found intact."""

  step: int
  state: Any  # as saved, host arrays
  record: dict[str, Any]


@jax.jit
def _checksum(array: jax.Array) -> jax.Array:
  """uint32, of an array's bits and their places, on whatever mesh it lies.

  Zeros do not count: columns that only fill up a table are another number on
  another mesh.
  """
  if array.dtype == jnp.bool_ or array.dtype.itemsize == 1:
    bits = array.astype(jnp.uint8)
  else:
    unsigned = {2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(array, unsigned)
  weights = jnp.full(array.shape, 0x9E3779B9, jnp.uint32)
  for axis in range(array.ndim):
    place = jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
    weights = (weights ^ place) * np.uint32(0x21F0AAAD)
    weights ^= weights >> 15
  # Odd, so that no change of a single number is lost.
  return jnp.sum(bits.astype(jnp.uint32) * (weights | 1), dtype=jnp.uint32)


def _checksums(state: Any) -> list[int]:
  return [int(_checksum(array)) for array in jax.tree.leaves(state)]


def _host_copy(array: Any) -> np.ndarray:
  """An array of the host's own.

  On a CPU device arrays are shared with the host, and the next step overwrites
  donated ones while they are being written. Shard by shard, because JAX keeps
  what it makes of an array on several devices for as long as the array.
  """
  if not isinstance(array, jax.Array):
    return np.array(array)
  copy = np.empty(array.shape, array.dtype)
  for shard in array.addressable_shards:
    if shard.replica_id == 0:
      copy[shard.index] = np.asarray(shard.data)
  return copy


def _restore_args(like: Any) -> Any:
  """Into the form of an array, or of a shape on a mesh."""
  sharding = getattr(like, 'sharding', None)
  if not isinstance(like, jax.ShapeDtypeStruct) or sharding is None:
    return ocp.RestoreArgs(restore_type=np.ndarray, dtype=like.dtype)
  return ocp.ArrayRestoreArgs(
    sharding=sharding,
    global_shape=like.shape,
    dtype=like.dtype,
    # Another mesh may fill up columns to another number; checksums tell
    # whether anything else was cut off.
    strict=False,
  )


class Checkpoints:
  """The checkpoints of one run; a context manager that waits for saves."""

  def __init__(
    self,
    folder: pathlib.Path,
    max_to_keep: int,
    report: Callable[[str], None],
  ):
    """Opens or creates the folder.

    Args:
      folder: where the checkpoints are.
      max_to_keep: older ones are removed after a save.
      report: called with one line when something went wrong.
    """
    self._folder = folder.absolute()
    self._max_to_keep = max_to_keep
    self._report = report
    # Orbax's own background threads wait for ever after a save that failed.
    self._thread = futures.ThreadPoolExecutor(1, 'checkpoint')
    self._saving: futures.Future | None = None
    self._last_step: int | None = None
    # Orbax logs pages of tracebacks for an error that is reported here.
    self._absl = logging.getLogger('absl')
    self._absl_level = self._absl.level
    self._absl.setLevel(logging.CRITICAL)
    self._manager = self._open()

  def _open(self) -> ocp.CheckpointManager:
    # What a run that was killed had begun to save.
    if jax.process_index() == 0:
      for unfinished in self._folder.glob('*orbax-checkpoint-tmp*'):
        shutil.rmtree(unfinished, ignore_errors=True)
    return ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        max_to_keep=self._max_to_keep,
        create=True,
        enable_async_checkpointing=False,
      ),
      item_handlers={
        # Trained numbers hardly compress, and trying takes twice their memory.
        'state': ocp.PyTreeCheckpointHandler(use_compression=False),
        'record': ocp.JsonCheckpointHandler(),
      },
    )

  def __enter__(self) -> 'Checkpoints':
    return self

  def __exit__(self, *unused: object) -> None:
    self.wait()
    self._thread.shutdown()
    self._manager.close()
    self._absl.setLevel(self._absl_level)

  def save(
    self, step: int, state: Any, record: dict[str, Any], is_final: bool
  ) -> None:
    """Saves in the background; of several processes, all take part.

    Args:
      step: number of the checkpoint; a step that exists is not saved again.
      state: pytree of arrays; may change as soon as this returns, unless final.
      record: JSON-ready.
      is_final: whether the state will not change any more: no copy is made.
    """
    self.wait()
    if step in self._manager.all_steps():
      self._last_step = step
      return
    record = record | {'checksums': _checksums(state)}
    if jax.process_count() > 1:
      # Every process writes its shards, and all wait for each other: not beside
      # training, where they wait for each other too.
      self._saving = futures.Future()
      try:
        self._saving.set_result(self._save(step, state, record))
      except Exception as error:  # told by `wait`, as of the thread
        self._saving.set_exception(error)
      return
    if not is_final:
      state = jax.tree.map(_host_copy, state)
    self._saving = self._thread.submit(self._save, step, state, record)

  def _save(self, step: int, state: Any, record: dict[str, Any]) -> None:
    self._manager.save(
      step,
      args=ocp.args.Composite(
        state=ocp.args.PyTreeSave(state),
        record=ocp.args.JsonSave(record),
      ),
    )
    self._last_step = step

  def wait(self) -> int | None:
    """Waits for the save that is under way; the step that was saved last."""
    saving, self._saving = self._saving, None
    try:
      if saving is not None:
        saving.result()
    except Exception as error:  # orbax and tensorstore raise many types
      cause = ' '.join(str(error).split())[:300]
      self._report(
        f'checkpoint not saved in {self._folder}: {cause}; training goes on '
        'and the last good checkpoint stays: free space on that disk'
      )
      # The manager keeps the failed step in mind; a new one reads the folder.
      # Where even that cannot be had, the next save will tell again.
      with contextlib.suppress(OSError, ValueError):
        reopened = self._open()
        self._manager.close()
        self._manager = reopened
    return self._last_step

  def restore(self, like: Any) -> Restored | None:
    """The newest intact checkpoint, or None if there is no checkpoint.

    Damaged ones that are newer are set aside, in a folder beside this one.

    Args:
      like: pytree of arrays or `jax.ShapeDtypeStruct`s as saved. What has a
        sharding comes back as an array on its mesh, which need not be that on
        which it was saved; what has none, on the host.

    Raises:
      UserError: if there are checkpoints and none can be read; all stay.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    damaged = []
    for step in steps:
      try:
        read = self._read(step, like)
      except Exception as error:  # whatever a damaged file makes orbax raise
        if isinstance(error, MemoryError) or (
          isinstance(error, OSError) and error.errno in _PASSING
        ):
          raise
        cause = ' '.join(str(error).split())[:200]
        if jax.process_count() > 1:
          # Others may have read their part and go on with it.
          raise errors.UserError(
            f'checkpoint {step} in {self._folder} cannot be read by process '
            f'{jax.process_index()} ({cause}); move it away and start all '
            'processes again to go on from the one before'
          ) from error
        damaged.append((step, cause))
        continue
      for bad_step, cause in damaged:
        self._report(
          f'checkpoint {bad_step} is damaged and set aside, going on from '
          f'checkpoint {step}: {cause}'
        )
        self._set_aside(bad_step)
      return Restored(step, read.state, read.record)
    if damaged:
      raise errors.UserError(
        f'no checkpoint in {self._folder} can be read ({damaged[0][1]}); '
        'delete that folder to start again from the beginning'
      )
    return None

  def _read(self, step: int, like: Any) -> Any:
    read = self._manager.restore(
      step,
      args=ocp.args.Composite(
        state=ocp.args.PyTreeRestore(
          like, restore_args=jax.tree.map(_restore_args, like)
        ),
        record=ocp.args.JsonRestore(),
      ),
    )
    if _checksums(read.state) != read.record['checksums']:
      raise ValueError('its checksums differ')
    return read

  def _set_aside(self, step: int) -> None:
    """Moves a damaged checkpoint so that its number can be saved again."""
    self._manager.close()
    damaged = self._folder / str(step)
    if damaged.exists() and jax.process_index() == 0:
      aside = self._folder.with_name(f'{self._folder.name}-damaged')
      aside.mkdir(exist_ok=True)
      shutil.rmtree(aside / str(step), ignore_errors=True)
      damaged.rename(aside / str(step))
    self._manager = self._open()


class Arrays:
  """The arrays of a checkpoint, each read when it is wanted."""

  def __init__(self, folder: pathlib.Path | str):
    """Looks at what there is.

    Args:
      folder: of all checkpoints of a run, of which the newest counts; of one
        of them; or any other that orbax has saved a tree of arrays in.

    Raises:
      UserError: if there is none.
    """
    folder = pathlib.Path(folder).absolute()
    steps = [x for x in folder.glob('*') if x.name.isdigit()]
    folder = max(steps, key=lambda x: int(x.name), default=folder)
    record = folder / 'record' / 'metadata'
    self.folder = folder / 'state' if (folder / 'state').is_dir() else folder
    self._reader = ocp.PyTreeCheckpointHandler()
    try:
      tree = self._reader.metadata(self.folder).tree
      # What other programs saved has no checksums.
      self._checksums = (
        set(json.loads(record.read_text())['checksums'])
        if record.exists()
        else None
      )
    except Exception as error:  # orbax raises many types
      cause = ' '.join(str(error).split())[:200]
      raise errors.UserError(
        f'no usable checkpoint in {folder}: {cause}'
      ) from error
    leaves, _ = jax.tree_util.tree_flatten_with_path(
      tree, is_leaf=lambda x: hasattr(x, 'shape')
    )
    # Keys of dicts, and numbers of lists.
    paths = {
      tuple(getattr(k, 'key', getattr(k, 'idx', None)) for k in path): leaf
      for path, leaf in leaves
    }
    self._keys = {'/'.join(map(str, path)): path for path in paths}
    self.shapes = {
      '/'.join(map(str, path)): tuple(leaf.shape)
      for path, leaf in paths.items()
    }

  def read(self, name: str) -> np.ndarray:
    """An array, on the host.

    Args:
      name: one of `shapes`.

    Raises:
      UserError: if it is damaged.
    """
    item, args = 0, ocp.RestoreArgs(restore_type=np.ndarray)
    for key in reversed(self._keys[name]):
      item, args = {key: item}, {key: args}
    try:
      found = self._reader.restore(
        self.folder,
        args=ocp.args.PyTreeRestore(
          item=item, restore_args=args, partial_restore=True
        ),
      )
      for key in self._keys[name]:
        found = found[key]
      if self._checksums and int(_checksum(found)) not in self._checksums:
        raise ValueError(f'the checksum of {name} differs')
    except Exception as error:  # whatever a damaged file makes orbax raise
      cause = ' '.join(str(error).split())[:200]
      raise errors.UserError(
        f'checkpoint {self.folder} is damaged: {cause}'
      ) from error
    return found
