"""Files that are written completely or not at all, whatever interrupts."""

import contextlib
import os
import pathlib
import platform
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
  # Other processes may write the same file.
  writer = f'{platform.node()}-{os.getpid()}'
  temporary = path.with_name(f'.{path.name}.tmp-{writer}')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary.open('wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except OSError as error:
    raise errors.UserError(
      f'cannot write {path}: {error.strerror or error}; free space or choose '
      'another folder'
    ) from error
  finally:
    with contextlib.suppress(OSError):
      temporary.unlink()
