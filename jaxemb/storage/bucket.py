"""Folders in buckets, such as gs://BUCKET/RUN: copies of local ones.

A run appends to its logs, locks its folder, and has its checkpoints renamed
once they are complete, none of which a bucket can. So it works in a local
folder: what the bucket has comes first, and what has changed goes there now and
then, and in the end. New files go before old ones are removed there: whenever a
run is lost, a complete checkpoint is in the bucket, or nothing was saved.
"""

import contextlib
import logging
import os
import pathlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from jaxemb import errors

_LOG = logging.getLogger('jaxemb')
_COMPLETE = 'commit_success.txt'  # what orbax writes last in a checkpoint
_UNFINISHED = '.tmp', 'orbax-checkpoint-tmp', '.lock'  # in names of files


def is_url(path: Any) -> bool:
  """Whether a path is of a bucket, or of whatever else fsspec knows."""
  return '://' in str(path)


def _is_last(name: str) -> tuple[bool, int]:
  """Orders files so that those come last that say a checkpoint is complete."""
  return name.endswith(_COMPLETE), -name.count('/')


class Copy:
  """A local copy of a folder in a bucket."""

  def __init__(self, url: str, folder: pathlib.Path):
    """Connects. Raises a `UserError` if that cannot be done."""
    import fsspec  # takes long, and few need it

    self._url, self._folder = url, folder
    with self._reaching():
      try:
        self._files, path = fsspec.core.url_to_fs(url)
      except (ImportError, ValueError) as error:
        extra = "pip install 'jaxemb[gcs]'" if url.startswith('gs:') else ''
        raise errors.UserError(
          f'cannot reach {url}: {errors.one_line(error)}'
          + (f'; {extra}' if extra else '; give a folder')
        ) from error
    self._root = path.rstrip('/')
    # By name in the folder, size and time of what the bucket has.
    self._known: dict[str, tuple[int, int]] = {}

  @contextlib.contextmanager
  def _reaching(self) -> Iterator[None]:
    """Raises a `UserError` for whatever fails in the bucket."""
    try:
      yield
    except errors.UserError:
      raise
    except Exception as error:  # of whatever library reaches it
      raise errors.UserError(
        f'cannot use {self._url}: {errors.one_line(error)}; see to access to '
        'it, or give a folder'
      ) from error

  def _local_files(self) -> dict[str, tuple[int, int]]:
    """Size and time of complete local files, by name."""
    files = {}
    for path in self._folder.rglob('*'):
      name = path.relative_to(self._folder).as_posix()
      # Files come and go while a run goes on.
      with contextlib.suppress(FileNotFoundError):
        if path.is_file() and not any(x in name for x in _UNFINISHED):
          stat = path.stat()
          files[name] = stat.st_size, stat.st_mtime_ns
    return files

  def fetch(self, has_checkpoints: bool) -> None:
    """Copies what the bucket has to the folder, perhaps no checkpoints."""
    with self._reaching():
      self._files.invalidate_cache()
      paths = []
      if self._files.exists(self._root):
        paths = self._files.find(self._root)
      names = {x.removeprefix(f'{self._root}/') for x in paths}
      for name in names - {self._root}:
        folder, _, rest = name.partition('/')
        if folder.startswith('checkpoints') and not has_checkpoints:
          continue
        complete = f'checkpoints/{rest.partition("/")[0]}/{_COMPLETE}'
        if folder == 'checkpoints' and complete not in names:
          continue  # the run was lost while this was copied
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        self._files.get_file(f'{self._root}/{name}', str(target))
    self._known = self._local_files()

  def push(self) -> None:
    """Copies what has changed to the bucket, and removes what is gone."""
    local = self._local_files()
    with self._reaching():
      for name in sorted(local, key=_is_last):
        if self._known.get(name) == local[name]:
          continue
        target = f'{self._root}/{name}'
        with contextlib.suppress(FileNotFoundError):
          self._files.makedirs(target.rpartition('/')[0], exist_ok=True)
          self._files.put_file(str(self._folder / name), target)
          self._known[name] = local[name]
      gone = self._known.keys() - local.keys()
      for name in sorted(gone, key=_is_last, reverse=True):
        with contextlib.suppress(FileNotFoundError):
          self._files.rm_file(f'{self._root}/{name}')
        del self._known[name]


@contextlib.contextmanager
def opened(
  path: str | os.PathLike[str], every_secs: float = 0.0
) -> Iterator[pathlib.Path]:
  """A local folder for a path; of a bucket, a copy that is removed again.

  `every_secs`: changes go to the bucket so often, and in the end; 0 = nothing
  is changed, and checkpoints are not copied.
  Raises a `UserError` if the bucket cannot be used; while changes are copied, a
  failure is logged and tried again; if the last one fails, the copy stays.
  """
  if not is_url(path):
    yield pathlib.Path(path)
    return
  folder, is_kept = pathlib.Path(tempfile.mkdtemp(prefix='jaxemb-')), False
  try:
    copy = Copy(str(path), folder)
    copy.fetch(has_checkpoints=bool(every_secs))
    if not every_secs:
      yield folder
      return
    ended = threading.Event()

    def push_now_and_then() -> None:
      while not ended.wait(every_secs):
        try:
          copy.push()
        except errors.UserError as error:
          _LOG.warning(f'{error}; trying again')

    thread = threading.Thread(target=push_now_and_then, daemon=True)
    thread.start()
    try:
      yield folder
    finally:
      ended.set()
      thread.join()
      try:
        copy.push()
      except errors.UserError as error:
        is_kept = True
        raise errors.UserError(f'{error}; all is in {folder}') from error
  finally:
    if not is_kept:
      shutil.rmtree(folder, ignore_errors=True)
