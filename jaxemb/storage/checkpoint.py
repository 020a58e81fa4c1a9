"""Checkpoints through orbax: saved in the background, checked when read.

A checkpoint holds the training state and a JSON record that says where reading
goes on. The record carries a checksum of every array, so that a damaged
checkpoint is noticed and the one before it is used. A save that fails (a full
disk, say) is reported and training goes on; earlier checkpoints stay.
"""

import contextlib
import errno
import logging
import pathlib
import shutil
import zlib
from collections.abc import Callable
from concurrent import futures
from typing import Any, NamedTuple

import jax
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


def _pieces(array: Any) -> list[tuple[Any, np.ndarray]]:
  """Where each shard of an array is, and the shard, in order of memory.

  Shard by shard, because JAX keeps what it makes of an array on several devices
  for as long as the array.
  """
  if not isinstance(array, jax.Array):
    return [((...,), np.asarray(array))]
  shards = [x for x in array.addressable_shards if x.replica_id == 0]
  # Along the leading axis only: so their bytes follow one another.
  assert all(x.data.shape[1:] == array.shape[1:] for x in shards)
  shards.sort(key=lambda x: x.index[0].start or 0 if x.index else 0)
  return [(x.index, np.asarray(x.data)) for x in shards]


def _checksums(state: Any) -> list[int]:
  checksums = []
  for array in jax.tree.leaves(state):
    checksum = 0
    for _, piece in _pieces(array):
      checksum = zlib.crc32(np.ascontiguousarray(piece), checksum)
    checksums.append(checksum)
  return checksums


def _host_copy(array: Any) -> np.ndarray:
  """An array of the host's own.

  On a CPU device arrays are shared with the host, and the next step overwrites
  donated ones while they are being written.
  """
  copy = np.empty(array.shape, array.dtype)
  for place, piece in _pieces(array):
    copy[place] = piece
  return copy


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
    """Saves in the background.

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
    if not is_final:
      state = jax.tree.map(_host_copy, state)
    self._saving = self._thread.submit(self._save, step, state, record)

  def _save(self, step: int, state: Any, record: dict[str, Any]) -> None:
    record = record | {'checksums': _checksums(state)}
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
      like: pytree of arrays or `jax.ShapeDtypeStruct`s as saved.

    Raises:
      UserError: if there are checkpoints and none can be read; all stay.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    target = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), like)
    damaged = []
    for step in steps:
      try:
        read = self._read(step, target)
      except Exception as error:  # whatever a damaged file makes orbax raise
        if isinstance(error, MemoryError) or (
          isinstance(error, OSError) and error.errno in _PASSING
        ):
          raise
        damaged.append((step, ' '.join(str(error).split())[:200]))
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

  def _read(self, step: int, target: Any) -> Any:
    read = self._manager.restore(
      step,
      args=ocp.args.Composite(
        state=ocp.args.PyTreeRestore(
          target,
          restore_args=ocp.checkpoint_utils.construct_restore_args(target),
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
    if damaged.exists():
      aside = self._folder.with_name(f'{self._folder.name}-damaged')
      aside.mkdir(exist_ok=True)
      shutil.rmtree(aside / str(step), ignore_errors=True)
      damaged.rename(aside / str(step))
    self._manager = self._open()
