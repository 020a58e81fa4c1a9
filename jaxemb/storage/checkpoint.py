"""Checkpoints through orbax: saved in the background, checked when read.

A checkpoint holds the training state and a JSON record that says where reading
goes on. The record carries a checksum of every array, so that a damaged
checkpoint is noticed and the one before it is used. A save that fails (a full
disk, say) is reported and training goes on; earlier checkpoints stay.
"""

import pathlib
import shutil
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxemb import errors


class Restored(NamedTuple):
  """A checkpoint that was read and found intact."""

  step: int
  state: Any  # as saved, host arrays
  record: dict[str, Any]


def _checksums(state: Any) -> list[int]:
  return [zlib.crc32(np.ascontiguousarray(x)) for x in jax.tree.leaves(state)]


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
    self._manager = self._open()

  def _open(self) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        max_to_keep=self._max_to_keep, create=True
      ),
    )

  def __enter__(self) -> 'Checkpoints':
    return self

  def __exit__(self, *unused: object) -> None:
    self.wait()
    self._manager.close()

  def save(self, step: int, state: Any, record: dict[str, Any]) -> None:
    """Saves in the background; the state may change as soon as this returns.

    Args:
      step: number of the checkpoint; a step that exists is not saved again.
      state: pytree of arrays.
      record: JSON-ready.
    """
    self.wait()
    if step in self._manager.all_steps():
      return
    # A copy, because on a CPU device arrays are shared with the host and the
    # next step overwrites donated ones while they are being written.
    host_state = jax.tree.map(lambda x: np.array(x, copy=True), state)
    record = record | {'checksums': _checksums(host_state)}
    self._guarded(
      lambda: self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(host_state),
          record=ocp.args.JsonSave(record),
        ),
      )
    )

  def wait(self) -> None:
    """Returns when the save that is under way has ended, well or not."""
    self._guarded(self._manager.wait_until_finished)

  def _guarded(self, action: Callable[[], Any]) -> None:
    try:
      action()
    except Exception as error:  # orbax and tensorstore raise many types
      cause = ' '.join(str(error).split())[:300]
      self._report(
        f'checkpoint not saved in {self._folder}: {cause}; training goes on '
        'and the last good checkpoint stays: free space on that disk'
      )
      # The manager keeps the failed step in mind; a new one reads the folder.
      self._manager.close()
      for unfinished in self._folder.glob('*orbax-checkpoint-tmp*'):
        shutil.rmtree(unfinished, ignore_errors=True)
      self._manager = self._open()

  def restore(self, like: Any) -> Restored | None:
    """The newest intact checkpoint, or None if there is no checkpoint.

    Args:
      like: pytree of arrays or `jax.ShapeDtypeStruct`s as saved.

    Raises:
      UserError: if there are checkpoints and none can be read.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    target = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), like)
    for step in steps:
      try:
        read = self._manager.restore(
          step,
          args=ocp.args.Composite(
            state=ocp.args.StandardRestore(target),
            record=ocp.args.JsonRestore(),
          ),
        )
        if _checksums(read.state) != read.record['checksums']:
          raise ValueError('its checksums differ')
      except Exception as error:  # whatever a damaged file makes orbax raise
        cause = ' '.join(str(error).split())[:200]
        self._report(
          f'checkpoint {step} is damaged and set aside, using the one before: '
          f'{cause}'
        )
        self._set_aside(step)
        continue
      return Restored(step, read.state, read.record)
    if steps:
      raise errors.UserError(
        f'no checkpoint in {self._folder} can be read; delete that folder to '
        'start again from the beginning'
      )
    return None

  def _set_aside(self, step: int) -> None:
    """Renames a damaged checkpoint so that its number can be saved again."""
    self._manager.close()
    damaged = self._folder / str(step)
    if damaged.exists():
      aside = self._folder.with_name(f'{self._folder.name}-damaged')
      aside.mkdir(exist_ok=True)
      shutil.rmtree(aside / str(step), ignore_errors=True)
      damaged.rename(aside / str(step))
    self._manager = self._open()
