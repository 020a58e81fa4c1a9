"""Downloads Wikipedia dumps and graphs: resumed, checked, never half a file.

Checksums are published per dated dump, whose files never change: the date is
looked up first and is part of the name of FILE.part. (pooch cannot resume.)
Those of graphs are in their .zip files.
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
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from jaxemb import errors
from jaxemb.storage import atomic

BASE_URL = 'https://dumps.wikimedia.org'
# The code of a language in the names of dumps: de, simple, zh_min_nan.
_LANGUAGE = re.compile('[a-z]{2,3}(_[a-z]{2,8})*|simple')
# Of the Open Graph Benchmark, those with nodes of one kind.
OGB_URL = 'http://snap.stanford.edu/ogb/data/nodeproppred'
OGB_NAMES = 'ogbn-arxiv', 'ogbn-products', 'ogbn-proteins'
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
  """Returns the newest dump of a Wikipedia's articles; downloads it if absent.

  `name` is the code of its language: 'simple' has about 0.3 GB, 'en' 25 GB. A
  file put into the cache by hand is used as it is. Raises a `UserError` without
  network or space, for a dump that does not exist and for a wrong checksum.
  """
  name = name.replace('-', '_')
  if not _LANGUAGE.fullmatch(name):
    raise errors.UserError(
      f'there is no Wikipedia {name!r} to download: give the code of its '
      'language, such as simple, en or de'
    )
  path = pathlib.Path(cache) / f'{name}wiki-latest-{_KIND}'
  if path.exists():
    return path
  latest_url = f'{BASE_URL}/{name}wiki/latest/{name}wiki-latest-'
  by_hand = (
    f'check the code {name!r}, download {latest_url}{_KIND} to {path} by hand, '
    'or set config.data.path to text of your own'
  )
  with _one_line_errors(f'the {name}wiki dump', by_hand, path.parent):
    url, sha1 = _newest(name, f'{latest_url}sha1sums.txt')
    part = path.with_name(url.rpartition('/')[2] + '.part')
    with _locked(part) as file:
      if not path.exists():
        _complete(file, url, sha1, progress=progress)
        os.replace(part, path)
    for leftover in path.parent.glob(f'{name}wiki-*-{_KIND}.part'):
      leftover.unlink(missing_ok=True)
  return path


def ogb(
  name: str,
  cache: pathlib.Path,
  progress: _Progress = lambda done_bytes, total_bytes: None,
) -> pathlib.Path:
  """Returns the folder of a data set of the Open Graph Benchmark.

  It is downloaded and unpacked if absent (arxiv 80 MB, proteins 220 MB,
  products 1.4 GB); one that was put into the cache by hand is used as it is.
  Raises a `UserError` as `wikipedia` does.
  """
  if name not in OGB_NAMES:
    raise errors.UserError(
      f'there is no {name!r} to download: choose one of '
      f'{", ".join(OGB_NAMES)}, or give the folder of one that is unpacked'
    )
  folder = pathlib.Path(cache) / name
  if folder.exists():
    return folder
  url = f'{OGB_URL}/{name.removeprefix("ogbn-")}.zip'
  part = folder.with_name(f'{name}.zip.part')
  by_hand = f'or unpack {url} by hand, with its raw/ at {folder / "raw"}'
  with _one_line_errors(name, by_hand, folder.parent), _locked(part) as file:
    if not folder.exists():
      _complete(file, url, sha1='', progress=progress)
      _unpack(part, folder)
    part.unlink(missing_ok=True)
  return folder


def _unpack(path: pathlib.Path, folder: pathlib.Path) -> None:
  """Unpacks the folders raw and split of a graph."""
  try:
    with atomic.folder(folder) as new, zipfile.ZipFile(path) as file:
      for member in file.infolist():
        parts = pathlib.PurePosixPath(member.filename).parts[1:]
        is_used = parts[:1] in (('raw',), ('split',)) and '..' not in parts
        if not is_used or member.is_dir():
          continue
        target_path = new.joinpath(*parts)
        target_path.parent.mkdir(parents=True, exist_ok=True)
        with file.open(member) as source, target_path.open('wb') as target:
          shutil.copyfileobj(source, target)
      if not (new / 'raw').is_dir():
        raise zipfile.BadZipFile('it has no folder raw/')
  except (zipfile.BadZipFile, zlib.error, EOFError) as error:
    path.unlink(missing_ok=True)
    raise errors.UserError(
      f'{path} is no .zip file of a graph ({error}) and was removed: download '
      'again'
    ) from error


@contextlib.contextmanager
def _locked(part: pathlib.Path) -> Iterator[BinaryIO]:
  """Opens the file of a download to append, alone among processes."""
  part.parent.mkdir(parents=True, exist_ok=True)
  with open(part, 'ab') as file:
    with contextlib.suppress(ImportError, OSError):  # where files can lock
      import fcntl  # not on Windows

      fcntl.flock(file, fcntl.LOCK_EX)
    yield file


@contextlib.contextmanager
def _one_line_errors(
  what: str, by_hand: str, folder: pathlib.Path
) -> Iterator[None]:
  """Turns failures of networks and disks into a `UserError`."""
  try:
    yield
  except _NETWORK_ERRORS as error:
    raise errors.UserError(
      f'{what} cannot be downloaded ({error}): try again later (what has '
      f'arrived is kept), {by_hand}'
    ) from error
  except OSError as error:
    raise errors.UserError(
      f'{folder} cannot be written ({error.strerror}): make room there or set '
      'another cache folder'
    ) from error


def _newest(name: str, sums_url: str) -> tuple[str, str]:
  """Returns the address and the SHA-1 of the newest dump."""
  sums = b''.join(block for _, block, _ in _blocks(sums_url))
  line = rf'^(\w{{40}})  ({name}wiki-(\d{{8}})-{re.escape(_KIND)})$'
  match = re.search(line, sums.decode(errors='replace'), re.MULTILINE)
  if not match:
    raise http.client.HTTPException(f'{sums_url} names no such file')
  sha1, file, date = match.groups()
  return f'{BASE_URL}/{name}wiki/{date}/{file}', sha1


def _complete(file: BinaryIO, url: str, sha1: str, progress: _Progress) -> None:
  """Downloads what is missing at the end of a file, and checks its SHA-1."""
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
  if not sha1:
    return
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
