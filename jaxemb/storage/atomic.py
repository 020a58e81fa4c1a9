"""Files and folders that are written completely or not at all, or unnamed."""

import contextlib
import errno
import functools
import glob
import hashlib
import os
import pathlib
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from typing import BinaryIO

import psutil

from jaxemb import errors

# In a folder: complete files that are to replace those beside it; in that
# folder, how names of files begin that mark others as removed, and what marks a
# folder that is replaced as one.
_REPLACEMENT, _REMOVED, _WHOLE = '.replacement', '.removed-', '.whole'
_TEMPORARY = re.compile(r'\.(.+)\.tmp-.+-\d+')  # see `temporary_of`
# Of file systems that have nothing to wait for.
_NO_SYNC = errno.EINVAL, errno.ENOTSUP, errno.EROFS
_NOT_EMPTY = errno.ENOTEMPTY, errno.EEXIST  # of folders that rename and rmdir
_NOT_ALLOWED = errno.EACCES, errno.EPERM, errno.EROFS
_MAX_ROUNDS = 3  # of writers who are faster
_WAIT_SECS, _POLL_SECS = 5, 0.05  # for a writer who is at it
_LEFTOVER_SECS = 7 * 24 * 3600  # of processes that cannot be looked up


@contextlib.contextmanager
def write(path: pathlib.Path | str) -> Iterator[BinaryIO]:
  """Opens a temporary file that replaces `path` once it is complete.

  On any error an earlier file stays. The folder is created if missing. What is
  no file, such as a pipe or /dev/null, is written to and never replaced. Raises
  a `UserError` if the file system refuses (full, read-only).
  """
  path = pathlib.Path(path)
  if os.path.exists(path) and not (path.is_file() or path.is_dir()):
    with _refusals(path, 'choose another file'), path.open('wb') as file:
      yield file
    return
  with _temporary(path, 'choose another folder') as temporary:
    remove_leftovers(path.parent, path.name)
    with temporary.open('wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync(path.parent)


@contextlib.contextmanager
def folder(
  path: pathlib.Path,
  remedy: str = 'choose another folder',
  replaces: Collection[str] | None = None,
  is_checked: bool = False,
) -> Iterator[pathlib.Path]:
  """Makes a temporary folder that replaces `path` once all is in it.

  On any error an earlier folder stays. Where another process has put one there
  in the meantime, that stays. If readers check what `is_checked`, that does not
  wait for the disk. Raises a `UserError`, which ends with the remedy,
  if the file system refuses, if something there is of another kind than what
  replaces it, or if there is a folder with files whose names are not those that
  it `replaces`; None = any.
  """
  if _is_nested(path):  # nobody reads it yet
    shutil.rmtree(path, ignore_errors=True)
  complete(path)
  if replaces is not None and path.is_dir():
    remove_leftovers(path)
    names = {x.name for x in path.iterdir()} - {*replaces}
    # Of another process that writes it at this moment.
    others = sorted(x for x in names if not x.startswith(f'{_REPLACEMENT}.tmp'))
    if others:
      raise errors.UserError(
        f'{path} has {others[0]!r}, which would be lost; {remedy}'
      )
  with _replacing(path, remedy, is_whole=True, is_checked=is_checked) as new:
    yield new
    if _is_nested(path):  # an earlier one may be where it will be
      (new / _WHOLE).touch()


@contextlib.contextmanager
def together(
  path: pathlib.Path | str, remedy: str = 'choose another folder'
) -> Iterator[pathlib.Path]:
  """Makes a temporary folder whose files replace those of `path` together.

  Files of `path` with other names stay, apart from those that `remove` is
  called for in the temporary folder. On any error all stay. Within another
  replacement, it is a part of that. Raises a `UserError` as `folder` does.
  """
  path = pathlib.Path(path)
  if _is_nested(path):
    path.mkdir(parents=True, exist_ok=True)
    yield path
    return
  complete(path)
  with _replacing(path, remedy, is_whole=False) as new:
    yield new


@contextlib.contextmanager
def _replacing(
  path: pathlib.Path, remedy: str, is_whole: bool, is_checked: bool = False
) -> Iterator[pathlib.Path]:
  """Makes a temporary folder that becomes `path`, or replaces its files.

  No file system exchanges two folders at once everywhere. A folder that exists
  gets the new files in one of its own, whose name says that they are complete;
  from then on `complete` moves them to their places, in this process or in the
  next one that reads or writes the folder.
  """
  is_new = not os.path.isdir(path)
  target = path if is_new else path / _REPLACEMENT
  with _temporary(target, remedy) as temporary:
    temporary.mkdir()
    remove_leftovers(target.parent)
    yield temporary
    marks = []
    if not is_new:
      _mark_removed(temporary, path, is_whole)
      _check_places(temporary, path)
    elif not _is_nested(path):
      marks = _take_marks(temporary)
    if not is_checked:
      _sync_all(temporary)
    if not _renamed(temporary, target) and not (is_new and is_whole):
      # Another process has just written this folder.
      complete(path)
      if is_new:
        target = path / _REPLACEMENT
        for mark in marks:
          mark.parent.mkdir(parents=True, exist_ok=True)
          mark.touch()
        _mark_removed(temporary, path, is_whole)
        _check_places(temporary, path)
        _sync_all(temporary)
      while not _renamed(temporary, target):
        complete(path)
    _sync(target.parent)
  if target != path:
    complete(path)


def _renamed(temporary: pathlib.Path, target: pathlib.Path) -> bool:
  """Renames a folder; False if there is one that is not empty."""
  try:
    temporary.rename(target)
  except OSError as error:
    if error.errno not in _NOT_EMPTY:
      raise
    return False
  return True


def complete(path: pathlib.Path | str) -> None:
  """Completes an interrupted replacement of files in a folder, if there is one.

  Whoever reads several files of a folder that `folder` or `together` writes
  calls this first. Processes may do so at once. Raises a `UserError` if the
  file system refuses.
  """
  replacement = pathlib.Path(path, _REPLACEMENT)
  if not os.path.isdir(replacement):
    return
  try:
    for _ in range(_MAX_ROUNDS):
      if not os.path.isdir(replacement):
        break
      _move_all(replacement, pathlib.Path(path))
    else:
      if os.path.isdir(replacement):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    _sync(pathlib.Path(path))
  except OSError as error:
    remedy = 'free space'
    if error.errno in _NOT_ALLOWED:
      if _is_completed(replacement):
        return
      remedy = 'let its owner read it once, or make it writable'
    raise errors.UserError(
      f'{path} was being replaced, which cannot be completed: '
      f'{error.strerror or error}; {remedy}'
    ) from error


def _move_all(replacement: pathlib.Path, path: pathlib.Path) -> None:
  """Moves the files of a replacement, until another one is there."""
  for inner, _, names in os.walk(replacement, topdown=False):
    source = pathlib.Path(inner)
    target = path / source.relative_to(replacement)
    for name in names:
      with contextlib.suppress(FileNotFoundError):  # another process has
        _move(source / name, target)
    with contextlib.suppress(OSError):  # it is not empty, or not there
      target.rmdir()
    try:
      source.rmdir()
    except FileNotFoundError:
      pass
    except OSError as error:  # of a later writer
      if error.errno not in _NOT_EMPTY:
        raise


def _is_completed(replacement: pathlib.Path) -> bool:
  """Waits until the process that replaces files has done so, if one does."""
  stop = time.monotonic() + _WAIT_SECS
  while os.path.isdir(replacement):
    if time.monotonic() > stop:
      return False
    time.sleep(_POLL_SECS)
  return True


def _move(source: pathlib.Path, target: pathlib.Path) -> None:
  """Moves a file to a folder, or removes the file there that it marks."""
  marked = source.name.removeprefix(_REMOVED)
  if marked != source.name:
    source.stat()  # else a later writer may have put a file there
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
      (target / marked).unlink()
    source.unlink()
    return
  target.mkdir(parents=True, exist_ok=True)
  source.replace(target / source.name)


def _check_places(new: pathlib.Path, path: pathlib.Path) -> None:
  """Raises a `UserError` if files of `new` cannot be moved to those of `path`.

  Once their folder says that they are complete, it would be too late.
  """
  files = [x.relative_to(new) for x in new.rglob('*') if not x.is_dir()]
  folders, filled = set(), set()
  for file in files:
    is_mark = file.name.startswith(_REMOVED)
    place = path / file.with_name(file.name.removeprefix(_REMOVED))
    if is_mark and not os.path.lexists(place):
      continue
    if place.is_dir() and not (is_mark and place.is_symlink()):
      raise errors.UserError(
        f'{place} is a folder, where a file is to be replaced; move it away'
      )
    folders |= {*file.parents}
    filled |= set() if is_mark else {*file.parents}
  for name in sorted(folders):
    place = path / name
    if not place.is_dir():
      if name in filled and os.path.lexists(place):
        raise errors.UserError(
          f'{place} is a file, where a folder is to be made; move it away'
        )
    elif name in filled and place.stat().st_dev != new.stat().st_dev:
      raise errors.UserError(
        f'{place} is on another file system than {path}, so that their files '
        'cannot be replaced together; move it away'
      )
    elif not os.access(place, os.W_OK | os.X_OK):
      raise errors.UserError(
        f'{place} cannot be written; make it writable, or move it away'
      )


def remove(path: pathlib.Path) -> None:
  """Removes a file if there is one.

  In the folder of `together`, the file of this name that others replace.
  """
  if _is_nested(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(_REMOVED + path.name).touch()
  with contextlib.suppress(NotADirectoryError):
    path.unlink(missing_ok=True)


def _mark_removed(new: pathlib.Path, old: pathlib.Path, is_whole: bool) -> None:
  """Marks files of `old` that are not in `new`, of folders replaced as one."""
  wholes = {x.parent for x in new.rglob(_WHOLE)} | (
    {new} if is_whole else set()
  )
  for inner in wholes:
    (inner / _WHOLE).unlink(missing_ok=True)
    earlier = old / inner.relative_to(new)
    for path in earlier.rglob('*'):
      name = path.relative_to(earlier)
      is_kept = (inner / name).exists() or '.tmp-' in str(name)
      if is_kept or (path.is_dir() and not path.is_symlink()):
        continue
      same = inner / name
      same.parent.mkdir(parents=True, exist_ok=True)
      same.with_name(_REMOVED + same.name).touch()


def _is_nested(path: pathlib.Path) -> bool:
  """Whether a path is in a temporary folder of this process."""
  end = temporary_of(pathlib.Path('x')).name.removeprefix('.x')
  return any(x.endswith(end) for x in path.parts)


def _take_marks(new: pathlib.Path) -> list[pathlib.Path]:
  """Removes marks from a folder that replaces none; returns their paths."""
  marks = [
    x for x in new.rglob('*') if x.name == _WHOLE or x.name.startswith(_REMOVED)
  ]
  for mark in marks:
    mark.unlink()
    if mark.parent != new:
      with contextlib.suppress(OSError):  # it has files
        mark.parent.rmdir()
  return marks


def _sync_all(folder: pathlib.Path) -> None:
  for inner, _, names in os.walk(folder):
    for name in ('', *names):
      _sync(pathlib.Path(inner, name))


def _sync(path: pathlib.Path) -> None:
  """Waits until a file, or the names in a folder, are on the disk."""
  try:
    number = os.open(path, os.O_RDONLY)
  except PermissionError:  # a folder that may be written, and not read
    return
  try:
    os.fsync(number)
  except OSError as error:
    if error.errno not in _NO_SYNC:
      raise
  finally:
    os.close(number)


@contextlib.contextmanager
def _temporary(path: pathlib.Path, remedy: str) -> Iterator[pathlib.Path]:
  """Yields the path of a temporary file or folder, which is removed again."""
  if not path.name or '\0' in str(path):
    raise errors.UserError(
      f'cannot write {str(path)!r}; give the name of a file'
    )
  temporary = temporary_of(path)
  try:
    with _refusals(path, remedy):
      path.parent.mkdir(parents=True, exist_ok=True)
      _remove(temporary)
      yield temporary
  finally:
    _remove(temporary)


@contextlib.contextmanager
def _refusals(path: pathlib.Path, remedy: str) -> Iterator[None]:
  """Has errors of the file system end in a line."""
  try:
    yield
  except OSError as error:
    raise errors.UserError(
      f'cannot write {final(path)}: {error.strerror or error}; free space or '
      f'{remedy}'
    ) from error


def final(path: pathlib.Path) -> pathlib.Path:
  """Returns where a file in temporary folders will be."""
  names = [x for x in path.parts if not x.startswith(_REPLACEMENT)]
  return pathlib.Path(*(_TEMPORARY.sub(r'\1', x) for x in names))


@contextlib.contextmanager
def removed(path: pathlib.Path) -> Iterator[None]:
  """Removes a temporary file or folder in the end."""
  try:
    yield
  finally:
    _remove(path)


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
  name = path.name.removeprefix('.')
  return path.with_name(f'.{name}.tmp-{machine()}-{os.getpid()}')


def remove_leftovers(folder: pathlib.Path, name: str = '') -> None:
  """Removes temporaries of `name` (or all) whose processes were killed.

  Those of processes on other machines go by their age.
  """
  name = glob.escape(name.removeprefix('.')) or '*'
  for left in folder.glob(f'.{name}.tmp-*'):
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
