"""Downloads of Wikipedia dumps: resumed, checked, never half a file.

The published checksums name the dump by its date, and the folder of that date
never changes; so the date is looked up first and the file is taken from there.
What has arrived so far lies in NAME.part, and NAME.part.json says of which
file it is a part; only a part of the very same file is gone on with.
"""

import hashlib
import http.client
import json
import logging
import os
import pathlib
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import NamedTuple, TextIO

from jaxemb import errors

BASE_URL = 'https://dumps.wikimedia.org'
NAMES = ('simple', 'en')
_KIND = 'pages-articles-multistream.xml.bz2'
_AGENT = 'jaxemb (urllib)'
_BLOCK_BYTES = 1 << 20
_SPARE_BYTES = 1 << 28  # of the disk, left free
_LOCK_SECS = 0.5  # between two looks
_TIMEOUT_SECS = 60
_NETWORK_ERRORS = (OSError, http.client.HTTPException)
_log = logging.getLogger(__name__)


class _Notes(NamedTuple):
  """Of which file a part is a part.

  Attributes:
    url: Its address.
    tag: What the server calls this version of it; '' if nothing.
    total_bytes: Its size; 0 if unknown.
  """

  url: str
  tag: str
  total_bytes: int


def wikipedia(
  name: str,
  cache: pathlib.Path,
  progress: Callable[[int, int], None] = lambda done_bytes, total_bytes: None,
  base_url: str = BASE_URL,
  backoff_secs: float = 1.0,
) -> pathlib.Path:
  """Gets the newest dump of a Wikipedia's articles, unless it is there.

  Args:
    name: 'simple' (about 0.3 GB) or 'en' (about 25 GB).
    cache: Folder for the file; made if needed. A file put there by hand is
      used as it is.
    progress: Called with the bytes at hand and in all (0 if unknown).
    base_url: Server of the dumps, or a mirror with the same folders.
    backoff_secs: Wait before the second try; doubles with each failure.

  Returns:
    Path of the complete .xml.bz2 file. Its checksum was right; if none could
    be had, a warning was logged.

  Raises:
    UserError: No network, no space, no such dump, or a wrong checksum.
  """
  if name not in NAMES:
    raise errors.UserError(
      f'there is no Wikipedia {name!r} to download: choose one of {NAMES}'
    )
  wiki = f'{name}wiki'
  path = pathlib.Path(cache) / f'{wiki}-latest-{_KIND}'
  if path.exists():
    return path
  part = path.with_name(path.name + '.part')
  latest_url = f'{base_url}/{wiki}/latest/{path.name}'
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open(path.with_name(path.name + '.lock'), 'w')
  except OSError as error:
    raise _disk_error(path.parent, error) from error
  with lock:
    _wait_for(lock, progress)
    if path.exists():  # another process has fetched it
      return path
    try:
      url, sha1 = _find(wiki, base_url, backoff_secs)
      _fetch(url or latest_url, part, progress, backoff_secs)
    except _NETWORK_ERRORS as error:
      raise errors.UserError(
        f'the {wiki} dump cannot be downloaded ({error}): try again later '
        f'(what has arrived is kept), download {latest_url} to {path} by '
        'hand, or set config.data.path to text of your own'
      ) from error
    _check(part, sha1)
    os.replace(part, path)
    _notes_path(part).unlink(missing_ok=True)
    # Whoever waits for it, or comes later, finds the dump.
    pathlib.Path(lock.name).unlink(missing_ok=True)
  return path


def _wait_for(lock: TextIO, progress: Callable[[int, int], None]) -> None:
  """Waits until no other process downloads the same."""
  try:
    import fcntl
  except ImportError:
    return  # Windows
  while True:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      return
    except BlockingIOError:
      progress(0, 0)
      time.sleep(_LOCK_SECS)
    except OSError:
      return  # a file system without locks


def _disk_error(path: pathlib.Path, error: OSError) -> errors.UserError:
  return errors.UserError(
    f'{path} cannot be written ({error.strerror}): make room there or set '
    'another cache folder'
  )


def _open(url: str, headers: dict[str, str] | None = None):
  request = urllib.request.Request(
    url, headers={'User-Agent': _AGENT, **(headers or {})}
  )
  return urllib.request.urlopen(request, timeout=_TIMEOUT_SECS)


def _find(wiki: str, base_url: str, backoff_secs: float) -> tuple[str, str]:
  """Address and SHA-1 of the newest dump, or '' and '' if not published."""
  url = f'{base_url}/{wiki}/latest/{wiki}-latest-sha1sums.txt'
  why = 'names no such file'
  try:
    sums = _persist(lambda: _open(url).read(), lambda: 0, 2, backoff_secs)
    pattern = (
      rf'^([0-9a-f]{{40}}) [ *]({wiki}-(\d{{8}})-{re.escape(_KIND)})\s*$'
    )
    match = re.search(pattern, sums.decode(errors='replace'), re.MULTILINE)
    if match:
      sha1, file, date = match.groups()
      return f'{base_url}/{wiki}/{date}/{file}', sha1
  except urllib.error.HTTPError as error:
    why = f'cannot be had ({error})'
  _log.warning('%s %s: the download will not be checked', url, why)
  return '', ''


def _persist(
  attempt: Callable[[], bytes | None],
  gained_bytes: Callable[[], int],
  max_tries: int,
  backoff_secs: float,
) -> bytes | None:
  """Tries again after network errors; gives up after tries without gain."""
  num_tries = 0
  best_bytes = gained_bytes()
  while True:
    try:
      return attempt()
    except _NETWORK_ERRORS as error:
      code = getattr(error, 'code', 500)
      now_bytes = gained_bytes()
      num_tries = 1 if now_bytes > best_bytes else num_tries + 1
      best_bytes = max(best_bytes, now_bytes)
      if num_tries == max_tries or code < 500 and code not in (408, 429):
        raise
      _log.info('%s: trying again', error)
      time.sleep(backoff_secs * 2 ** (num_tries - 1))


def _fetch(
  url: str,
  part: pathlib.Path,
  progress: Callable[[int, int], None],
  backoff_secs: float,
) -> None:
  """Completes the part, from where it ends or from the start."""
  _persist(
    lambda: _fetch_once(url, part, progress),
    lambda: part.stat().st_size if part.exists() else 0,
    6,
    backoff_secs,
  )


def _fetch_once(
  url: str, part: pathlib.Path, progress: Callable[[int, int], None]
) -> None:
  notes = _read_notes(part)
  done_bytes = part.stat().st_size if part.exists() else 0
  if not notes.tag or notes.url != url or done_bytes > notes.total_bytes:
    done_bytes = 0  # not known to be a part of this file
  if done_bytes and done_bytes == notes.total_bytes:
    return
  headers = {}
  if done_bytes:
    headers = {'Range': f'bytes={done_bytes}-', 'If-Range': notes.tag}
  with _open(url, headers) as answer:
    found = _notes_of(url, answer)
    if answer.status == 206:
      content_range = answer.headers['Content-Range'] or ''
      wanted = f'bytes {done_bytes}-'
      if found.tag != notes.tag or not content_range.startswith(wanted):
        part.unlink()
        raise ConnectionError(f'{url} is no longer what it was')
    else:
      done_bytes, notes = 0, found
    _copy(answer, part, done_bytes, notes, progress)


def _copy(
  answer: http.client.HTTPResponse,
  part: pathlib.Path,
  done_bytes: int,
  notes: _Notes,
  progress: Callable[[int, int], None],
) -> None:
  """Writes an answer to the part, behind what is there."""
  total_bytes = notes.total_bytes
  free_bytes = shutil.disk_usage(part.parent).free
  if free_bytes < total_bytes - done_bytes + _SPARE_BYTES:
    raise errors.UserError(
      f'{part.parent} has {free_bytes / 1e9:.1f} GB free, the download needs '
      f'{(total_bytes - done_bytes + _SPARE_BYTES) / 1e9:.1f} GB: make room '
      'there or set another cache folder'
    )
  with open(part, 'ab' if done_bytes else 'wb') as file:
    if not done_bytes:
      _notes_path(part).write_text(json.dumps(notes._asdict()))
    while block := answer.read(_BLOCK_BYTES):
      try:
        file.write(block)
        file.flush()
      except OSError as error:
        raise _disk_error(part, error) from error
      done_bytes += len(block)
      progress(done_bytes, total_bytes)
  if done_bytes < total_bytes:
    raise ConnectionError(f'{notes.url} ended after {done_bytes} bytes')


def _notes_path(part: pathlib.Path) -> pathlib.Path:
  return part.with_name(part.name + '.json')


def _read_notes(part: pathlib.Path) -> _Notes:
  try:
    return _Notes(**json.loads(_notes_path(part).read_text()))
  except (OSError, ValueError, TypeError):
    return _Notes('', '', 0)


def _notes_of(url: str, answer: http.client.HTTPResponse) -> _Notes:
  tag = answer.headers['ETag'] or ''
  if not tag or tag.startswith('W/'):  # weak tags do not promise equal bytes
    tag = answer.headers['Last-Modified'] or ''
  return _Notes(url, tag, int(answer.headers['Content-Length'] or 0))


def _check(part: pathlib.Path, sha1: str) -> None:
  if not sha1:
    return
  with open(part, 'rb') as file:
    found = hashlib.file_digest(file, 'sha1').hexdigest()
  if found != sha1:
    part.unlink()
    _notes_path(part).unlink(missing_ok=True)
    raise errors.UserError(
      f'{part} has the SHA-1 {found} instead of {sha1} and was removed: '
      'download again'
    )
