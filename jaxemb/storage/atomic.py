"""Files and folders that are written completely or not at all, or unnamed."""

import contextlib
import errno
import functools
import glob
import hashlib
import os
import pathlib
import platform
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from typing import BinaryIO

import psutil

from jaxemb import errors

_LEFTOVER_SECS = 7 * 24 * 3600  # of processes that cannot be looked up


@contextlib.contextmanager
def write(path: pathlib.Path | str) -> Iterator[BinaryIO]:
  """Opens a temporary file that replaces `path` once it is complete.

  On any error an earlier file stays. The folder is created if missing. Raises a
  `UserError` if the file system refuses (full, read-only).
  """
  path = pathlib.Path(path)
  with _temporary(path, 'choose another folder') as temporary:
    remove_leftovers(path.parent, path.name)
    with temporary.open('wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)


@contextlib.contextmanager
def folder(
  path: pathlib.Path,
  remedy: str = 'choose another folder',
  replaces: Collection[str] | None = None,
) -> Iterator[pathlib.Path]:
  """Makes a temporary folder that replaces `path` once all is in it.

  On any error an earlier folder stays. Where another process has put one there
  in the meantime, that stays. Raises a `UserError`, which ends with the remedy,
  if the file system refuses, or if there is a folder with files whose names
  are not those that it `replaces`; None = any.
  """
  if replaces is not None and path.is_dir():
    others = sorted({x.name for x in path.iterdir()} - {*replaces})
    if others:
      raise errors.UserError(
        f'{path} has {others[0]!r}, which would be lost; {remedy}'
      )
  with _temporary(path, remedy) as temporary:
    temporary.mkdir()
    remove_leftovers(path.parent)
    yield temporary
    shutil.rmtree(path, ignore_errors=True)
    try:
      temporary.rename(path)
    except OSError:
      if not path.is_dir():
        raise


@contextlib.contextmanager
def _temporary(path: pathlib.Path, remedy: str) -> Iterator[pathlib.Path]:
  """Yields the path of a temporary file or folder, which is removed again."""
  temporary = temporary_of(path)
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove(temporary)
    yield temporary
  except OSError as error:
    raise errors.UserError(
      f'cannot write {path}: {error.strerror or error}; free space or {remedy}'
    ) from error
  finally:
    _remove(temporary)


def _remove(path: pathlib.Path) -> None:
  with contextlib.suppress(OSError):
    path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)


@functools.cache
def machine() -> str:
  """Returns a name of the processes whose ids this process can look up.

  Containers may share a host name, and have ids of their own.
  """
  identity = ''
  with contextlib.suppress(OSError):  # not Linux
    identity = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text()
    identity += os.readlink('/proc/self/ns/pid')
  digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
  return f'{platform.node()}-{digest}'


def temporary_of(path: pathlib.Path) -> pathlib.Path:
  """Returns the path that this process writes before it replaces another."""
  return path.with_name(f'.{path.name}.tmp-{machine()}-{os.getpid()}')


def remove_leftovers(folder: pathlib.Path, name: str = '') -> None:
  """Removes temporaries of `name` (or all) whose processes were killed.

  Those of processes on other machines go by their age.
  """
  for left in folder.glob(f'.{glob.escape(name) or "*"}.tmp-*'):
    writer, _, pid = left.name.split('.tmp-', 1)[1].rpartition('-')
    if not (writer and pid.isdecimal()):
      continue  # of another program
    with contextlib.suppress(OSError):  # another process has removed it
      is_dead = writer == machine() and not psutil.pid_exists(int(pid))
      if is_dead or time.time() - left.stat().st_mtime > _LEFTOVER_SECS:
        _remove(left)


def unnamed(folder: pathlib.Path, size: int, content: str) -> BinaryIO:
  """Opens a file of `size` bytes that has no name, to be mapped into memory.

  Its room is free again when this process ends, however it does.
  """
  folder.mkdir(parents=True, exist_ok=True)
  file = tempfile.TemporaryFile(dir=folder, buffering=0)
  try:
    if hasattr(os, 'posix_fallocate'):
      # A write that finds no room later would end the process.
      os.posix_fallocate(file.fileno(), 0, size)
    else:  # macOS
      file.truncate(size)
  except OSError as error:
    file.close()
    if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
      raise
    raise errors.UserError(
      f'{folder} needs {size / 1e9:.1f} GB for {content}, and there is less '
      'free; give another --workdir'
    ) from error
  return file
