"""The folder of a run and the settings that it belongs to."""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import time
from collections.abc import Iterator
from typing import Any

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.storage import atomic

try:
  import fcntl
except ImportError:  # Windows
  fcntl = None

_TEXT = 'text.sha256'  # beside config.json


class BusyError(errors.UserError):
  """Another process is training in a folder."""


@contextlib.contextmanager
def using(workdir: pathlib.Path) -> Iterator[None]:
  """Makes one line of whatever keeps the folder from being used."""
  try:
    yield
  except OSError as error:
    raise errors.UserError(
      f'cannot use {workdir} as the folder of a run: {error}; '
      'give another --workdir'
    ) from error


def recorded(workdir: pathlib.Path) -> dict[str, Any]:
  """The settings of the run that is in the folder, flat, or {}."""
  path = workdir / 'config.json'
  with using(workdir):
    data = path.read_bytes() if path.exists() else b'{}'
  try:
    return config_lib.flat(json.loads(data))
  except (ValueError, AttributeError) as error:
    raise errors.UserError(
      f'{path} does not hold the settings of a run: {error}; '
      'give another --workdir'
    ) from error


def check(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  fingerprint: str = '',
) -> None:
  """Raises a `UserError` if a run with other settings or other data is there.

  The settings that differ are named; '' = the data is not known yet.
  """
  ours, theirs = config_lib.flat(config), recorded(workdir)
  settings = {x for x in theirs if not x.startswith('tuning.')}
  if theirs and ours.keys() != settings:
    raise errors.UserError(
      f'{workdir} is of another version of jaxemb; give another --workdir'
    )
  differing = [
    f'{x.name} ({theirs[x.name]!r} there, {ours[x.name]!r} now)'
    for x in config_lib.SETTINGS
    if theirs and not x.may_change and ours[x.name] != theirs[x.name]
  ]
  if differing:
    raise errors.UserError(
      f'{workdir} holds a run with other settings: {"; ".join(differing)}; '
      'give another --workdir or the same settings'
    )
  path = workdir / _TEXT
  with using(workdir):
    begun_with = path.read_bytes().strip() if path.exists() else b''
  if fingerprint and begun_with not in (b'', fingerprint.encode()):
    raise errors.UserError(
      f'the text is not the one that {workdir} began with: it has changed, or '
      'is cut into other files or compressed otherwise; give another --workdir'
    )


def record(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  workdir: pathlib.Path,
  fingerprint: str,
) -> None:
  """Writes config.json, once the settings have led to something to train.

  All is chosen in the settings; the fingerprint is that of the data.
  """
  settings = config.to_dict() | {'tuning': dataclasses.asdict(tuning)}
  with atomic.write(workdir / _TEXT) as file:
    file.write(f'{fingerprint}\n'.encode())
  with atomic.write(workdir / 'config.json') as file:
    file.write(json.dumps(settings, indent=1).encode())


@contextlib.contextmanager
def locked(workdir: pathlib.Path) -> Iterator[None]:
  """Makes the folder; keeps others out, who would mix their records with ours.

  Raises a `BusyError` if another process is training there.
  """
  with contextlib.ExitStack() as stack:
    with using(workdir):
      workdir.mkdir(parents=True, exist_ok=True)
      file = stack.enter_context(open(workdir / '.lock', 'a+'))
      try:
        if fcntl:
          fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError as error:
        raise BusyError(
          f'another process is training in {workdir}; wait for it, or give '
          'another --workdir'
        ) from error
      file.truncate(0)
      file.write(f'{platform.node()} {os.getpid()} {time.time_ns()}')
      file.flush()
      os.fsync(file.fileno())
    yield


def holder(workdir: pathlib.Path) -> str:
  """Who has `locked` the folder last; '' if nobody has.

  No two are the same, so that processes can tell whether they share it.
  """
  with contextlib.suppress(OSError):
    return (workdir / '.lock').read_text()
  return ''
