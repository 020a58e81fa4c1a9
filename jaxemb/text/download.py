"""Downloads Wikipedia dumps: resumed, checked, never half a file.

Checksums are published per dated dump, whose files never change: the date is
looked up first and is part of the name of FILE.part. (pooch cannot resume.)
"""

import contextlib
import hashlib
import http.client
import os
import pathlib
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import BinaryIO

from jaxemb import errors

BASE_URL = 'https://dumps.wikimedia.org'
NAMES = ('simple', 'en')
_KIND = 'pages-articles-multistream.xml.bz2'
_SPARE_BYTES = 1 << 28  # of the disk, left free
_BACKOFF_SECS = 1.0  # before the second try; doubles with each failure
_HTTP_ERRORS = (urllib.error.URLError, http.client.HTTPException)
_NETWORK_ERRORS = (*_HTTP_ERRORS, ConnectionError, TimeoutError)
_Progress = Callable[[int, int], None]


def wikipedia(
  name: str,
  cache: pathlib.Path,
  progress: _Progress = lambda done_bytes, total_bytes: None,
) -> pathlib.Path:
  """Path of the newest dump of a Wikipedia's articles, downloaded if absent.

  'simple' has about 0.3 GB, 'en' about 25 GB. A file put into the cache by hand
  is used as it is. Raises a `UserError` without network or space, for a dump
  that does not exist and for a wrong checksum.
  """
  if name not in NAMES:
    raise errors.UserError(
      f'there is no Wikipedia {name!r} to download: choose one of {NAMES}'
    )
  path = pathlib.Path(cache) / f'{name}wiki-latest-{_KIND}'
  if path.exists():
    return path
  latest_url = f'{BASE_URL}/{name}wiki/latest/{name}wiki-latest-'
  try:
    url, sha1 = _newest(name, f'{latest_url}sha1sums.txt')
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(url.rpartition('/')[2] + '.part')
    with open(part, 'ab') as file:
      with contextlib.suppress(ImportError, OSError):  # where files can lock
        import fcntl  # not on Windows

        fcntl.flock(file, fcntl.LOCK_EX)  # others may download the same
      if not path.exists():
        _complete(file, url, sha1, progress)
        os.replace(part, path)
    for leftover in path.parent.glob(f'{name}wiki-*-{_KIND}.part'):
      leftover.unlink(missing_ok=True)
  except _NETWORK_ERRORS as error:
    raise errors.UserError(
      f'the {name}wiki dump cannot be downloaded ({error}): try again later '
      f'(what has arrived is kept), download {latest_url}{_KIND} to {path} by '
      'hand, or set config.data.path to text of your own'
    ) from error
  except OSError as error:
    raise errors.UserError(
      f'{path.parent} cannot be written ({error.strerror}): make room there or '
      'set another cache folder'
    ) from error
  return path


def _newest(name: str, sums_url: str) -> tuple[str, str]:
  """Address and SHA-1 of the newest dump."""
  sums = b''.join(block for _, block, _ in _blocks(sums_url))
  line = rf'^(\w{{40}})  ({name}wiki-(\d{{8}})-{re.escape(_KIND)})$'
  match = re.search(line, sums.decode(errors='replace'), re.MULTILINE)
  if not match:
    raise http.client.HTTPException(f'{sums_url} names no such file')
  sha1, file, date = match.groups()
  return f'{BASE_URL}/{name}wiki/{date}/{file}', sha1


def _complete(file: BinaryIO, url: str, sha1: str, progress: _Progress) -> None:
  """Downloads what is missing at the end of a file, and checks it."""
  num_bytes = os.path.getsize(file.name)
  for start, block, total_bytes in _blocks(url, num_bytes):
    free_bytes = shutil.disk_usage(os.path.dirname(file.name)).free
    needed_bytes = total_bytes - start + _SPARE_BYTES
    if free_bytes < needed_bytes:
      raise errors.UserError(
        f'{file.name}: {free_bytes / 1e9:.1f} GB are free, the download needs '
        f'{needed_bytes / 1e9:.1f} GB: make room or set another cache folder'
      )
    file.truncate(start)
    file.write(block)
    file.flush()
    progress(start + len(block), total_bytes)
  with open(file.name, 'rb') as written:
    digest = hashlib.file_digest(written, 'sha1').hexdigest()
  if digest != sha1:
    os.unlink(file.name)
    raise errors.UserError(
      f'{file.name} has the SHA-1 {digest} instead of {sha1} and was removed: '
      'download again'
    )


def _blocks(url: str, start: int = 0) -> Iterator[tuple[int, bytes, int]]:
  """Yields (position, block, bytes in all), resuming after network errors."""
  num_failures = 0
  while True:
    headers = {'User-Agent': 'jaxemb (urllib)'}
    if start:
      headers['Range'] = f'bytes={start}-'
    try:
      request = urllib.request.Request(url, headers=headers)
      with urllib.request.urlopen(request, timeout=60) as answer:
        if answer.status != 206:  # the whole file
          start = 0
        total_bytes = start + int(answer.headers['Content-Length'] or 0)
        while block := answer.read(1 << 20):
          yield start, block, total_bytes
          start += len(block)
          num_failures = 0
      if start >= total_bytes:
        return
      raise ConnectionError(f'{url} ended after {start} bytes')
    except _NETWORK_ERRORS as error:
      code = getattr(error, 'code', 500)
      if code == 416 and start:  # the file has no more
        return
      num_failures += 1
      is_final = code < 500 and code not in (408, 429)
      if is_final or num_failures == (6 if start else 2):
        raise
      time.sleep(_BACKOFF_SECS * 2 ** (num_failures - 1))
