"""Folders of the cache, named by what they were made from.

The identity of a folder is all that its content depends on: the format, the
settings and the input files. It is JSON-ready, and the folder's name is a hash
of it. Sizes and times of files alone do not tell: some tools set times.
"""

import hashlib
import json
import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxemb import errors
from jaxemb.storage import atomic

T = TypeVar('T')

_LOG = logging.getLogger('jaxemb')

REMEDY = 'set JAXEMB_CACHE to another folder'

_SAMPLES = 64  # of all files together, but at least one of each file
_SAMPLE_BYTES = 1 << 14


def default_folder() -> pathlib.Path:
  """Returns the folder of downloads, encoded texts and compiled programs."""
  base = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  folder = os.environ.get('JAXEMB_CACHE') or f'{base}/jaxemb'
  return pathlib.Path(os.path.expanduser(folder))


def identity_of(files: Sequence[pathlib.Path]) -> list[list[Any]]:
  """Returns [path, size, time, hash of samples] of each file."""
  identity = []
  for path in files:
    status = path.stat()
    sample = sample_sha256(path, max(1, _SAMPLES // len(files)))
    name = str(path.absolute())
    identity.append([name, status.st_size, status.st_mtime_ns, sample])
  return identity


def check_unchanged(
  files: Sequence[pathlib.Path],
  identity: Sequence[Sequence[Any]],
  may_grow: Callable[[pathlib.Path], bool] = lambda path: False,
) -> None:
  """Raises a `UserError` if files are no longer what they were identified as.

  They may be gone: what is open can be read to its end. What is added to those
  that `may_grow` was not read. If only the time of one differs, as after
  `touch`, a warning is logged.
  """
  for path, (_, size, time_ns, sample) in zip(files, identity, strict=True):
    try:
      status = path.stat()
      if (status.st_size, status.st_mtime_ns) == (size, time_ns):
        continue
      num = max(1, _SAMPLES // len(files))
      may_be_same = status.st_size == size or (
        status.st_size > size and may_grow(path)
      )
      if may_be_same and sample_sha256(path, num, size) == sample:
        if status.st_size == size:
          _LOG.warning(
            '%s has another time since it was read; samples of its bytes are '
            'the same',
            path,
          )
        continue
    except OSError:
      continue
    raise errors.UserError(
      f'{path} was changed while it was read; start again when it is complete, '
      'or give a copy of it'
    )


def folder_of(cache: pathlib.Path, name: str, identity: Any) -> pathlib.Path:
  """Returns the folder of `cache` for a kind of content and its identity."""
  text = json.dumps(identity, sort_keys=True)
  return cache / f'{name}{hashlib.sha256(text.encode()).hexdigest()[:16]}'


def opened(
  folder: pathlib.Path,
  load: Callable[[pathlib.Path], T],
  make: Callable[[pathlib.Path], None],
) -> T:
  """Returns what `load` makes of a folder, which `make` fills if needed.

  A folder that `load` cannot open, for whatever reason, is made again, and
  replaced when it is complete. Raises a `UserError` if it cannot be read or
  written.
  """
  try:
    return load(folder)
  except FileNotFoundError:
    pass
  except OSError as error:  # the folder may be whole
    raise errors.UserError(
      f'cannot read {folder}: {errors.one_line(error)}; mend that, or set '
      'JAXEMB_CACHE to another folder'
    ) from error
  except Exception as error:  # damaged in any way, or of another format
    if folder.exists():
      log_unusable(folder, error)
  with atomic.folder(folder, REMEDY, is_checked=True) as temporary:
    make(temporary)
  return load(folder)


def log_unusable(folder: pathlib.Path, error: Exception) -> None:
  """Logs why a folder is made again."""
  _LOG.info('%s is made again: %s', folder, errors.one_line(error))


def sample_sha256(
  path: pathlib.Path, num_samples: int, size: int | None = None
) -> str:
  """Returns the SHA-256 of samples of 16 KB, evenly apart, first to last.

  Of the first `size` bytes; None = of all.
  """
  import numpy as np  # imported here to keep --help fast

  digest = hashlib.sha256()
  with open(path, 'rb', buffering=0) as file:
    size = os.fstat(file.fileno()).st_size if size is None else size
    last = max(0, size - _SAMPLE_BYTES)
    starts = np.linspace(0, last, num_samples, dtype=np.int64)
    for start in sorted({*starts.tolist()}):
      file.seek(start)
      digest.update(file.read(min(_SAMPLE_BYTES, size - start)))
  return digest.hexdigest()
