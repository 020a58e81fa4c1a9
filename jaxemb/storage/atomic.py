"""Files and folders that are written completely or not at all."""

import contextlib
import os
import pathlib
import platform
import shutil
from collections.abc import Iterator
from typing import BinaryIO

from jaxemb import errors


@contextlib.contextmanager
def write(path: pathlib.Path | str) -> Iterator[BinaryIO]:
  """Opens a temporary file that replaces `path` once it is complete.

  On any error an earlier file stays. The folder is created if missing. Raises a
  `UserError` if the file system refuses (full, read-only).
  """
  path = pathlib.Path(path)
  temporary = _temporary(path)
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary.open('wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except OSError as error:
    raise _unwritable(path, error) from error
  finally:
    with contextlib.suppress(OSError):
      temporary.unlink()


@contextlib.contextmanager
def folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes a temporary folder that replaces `path` once all is in it.

  On any error an earlier folder stays. Where another process has put one there
  in the meantime, that stays. Raises a `UserError` if the file system refuses.
  """
  temporary = _temporary(path)
  try:
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    shutil.rmtree(path, ignore_errors=True)
    try:
      temporary.rename(path)
    except OSError:
      if not path.exists():
        raise
  except OSError as error:
    raise _unwritable(path, error) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: pathlib.Path) -> pathlib.Path:
  # Other processes may write the same.
  writer = f'{platform.node()}-{os.getpid()}'
  return path.with_name(f'.{path.name}.tmp-{writer}')


def _unwritable(path: pathlib.Path, error: OSError) -> errors.UserError:
  return errors.UserError(
    f'cannot write {path}: {error.strerror or error}; free space or choose '
    'another folder'
  )
