"""The folder of a run, its settings, and the folder of caches."""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import time
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.io import cache
from jaxemb.storage import atomic, damage, formats

# What config.json holds beside the settings, or how its names begin.
_RECORDED = ('tuning.', 'fingerprint')


class BusyError(errors.UserError):
  """Another process is training in a folder."""


def cache_folder() -> pathlib.Path:
  """Where downloads, encoded corpora and compiled programs are kept."""
  return cache.default_folder()


def keep_programs(folder: pathlib.Path) -> None:
  """Has JAX keep compiled programs in a cache: the next start need not."""
  import jax  # imported here to keep --help fast

  jax.config.update('jax_compilation_cache_dir', str(folder / 'programs'))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


def named(text: str, flag: str) -> pathlib.Path:
  """The folder that a flag names, or a `UserError` for what orbax cannot."""
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise errors.UserError(
      f'{flag}={text!r} is no name in UTF-8; give another folder'
    ) from error
  return pathlib.Path(os.path.expanduser(text))


@contextlib.contextmanager
def using(workdir: pathlib.Path) -> Iterator[None]:
  """Raises a `UserError` for whatever keeps the folder from being used."""
  try:
    yield
  except OSError as error:
    raise errors.UserError(
      f'cannot use {workdir} as the folder of a run: {error}; '
      'give another --workdir'
    ) from error


def recorded(workdir: pathlib.Path) -> dict[str, Any]:
  """The flat settings in config.json of the run in the folder, or {}."""
  path = workdir / 'config.json'
  with using(workdir):
    data = path.read_bytes() if path.exists() else b'{}'
  try:
    return config_lib.flat(formats.RUN.check(workdir, json.loads(data)))
  except (AttributeError, *damage.ERRORS) as error:
    raise errors.UserError(
      f'{path} does not hold the settings of a run: '
      f'{errors.one_line(error)}; give another --workdir'
    ) from error


def check(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Raises a `UserError` naming the settings that differ from the run there."""
  ours, theirs = config_lib.flat(config), recorded(workdir)
  settings = {x for x in theirs if not x.startswith(_RECORDED)}
  for name in settings:
    config_lib.check_replaced(name)
  if theirs and ours.keys() != settings:
    raise errors.UserError(
      f'{workdir} is of another version of jaxemb; give another --workdir'
    )
  differing = [
    f'{x.name} ({theirs[x.name]!r} there, {ours[x.name]!r} now)'
    for x in config_lib.settings(config.data.source).values()
    if theirs and not x.may_change and ours[x.name] != theirs[x.name]
  ]
  if differing:
    raise errors.UserError(
      f'{workdir} holds a run with other settings: {"; ".join(differing)}; '
      'give another --workdir or the same settings'
    )


def check_start(workdir: pathlib.Path, path: str, fingerprint: str) -> None:
  """Raises a `UserError` if the run there began from another one.

  The `fingerprint` is that of the run at `path` now.
  """
  if recorded(workdir).get('fingerprint_from', fingerprint) != fingerprint:
    raise errors.UserError(
      f'--from={path} is not the run that {workdir} began from: its vectors '
      'have changed; restore it, or give another --workdir'
    )


def check_data(workdir: pathlib.Path, fingerprint: str) -> None:
  """Raises a `UserError` if the run there began with other data."""
  if recorded(workdir).get('fingerprint', fingerprint) != fingerprint:
    raise errors.UserError(
      f'the text is not the one that {workdir} began with: it has changed, or '
      'is cut into other files or compressed otherwise; give another --workdir'
    )


def record(
  settings: Mapping[str, Any],
  tuning: config_lib.Tuning,
  workdir: pathlib.Path,
  fingerprint: str,
  fingerprint_from: str = '',
) -> None:
  """Writes resolved settings and the fingerprint of the data to config.json.

  And that of the run which it continues, if it does.
  """
  data = {
    **formats.RUN.stamp(),
    **settings,
    'tuning': dataclasses.asdict(tuning),
  }
  data['fingerprint'] = fingerprint
  if fingerprint_from:
    data['fingerprint_from'] = fingerprint_from
  with atomic.write(workdir / 'config.json') as file:
    file.write(json.dumps(data, indent=1).encode())


@contextlib.contextmanager
def locked(workdir: pathlib.Path) -> Iterator[None]:
  """Makes and locks the folder, or raises a `BusyError` if another has."""
  with contextlib.ExitStack() as stack:
    with using(workdir):
      workdir.mkdir(parents=True, exist_ok=True)
      file = stack.enter_context(open(workdir / '.lock', 'a+'))
      try:
        with contextlib.suppress(ImportError):
          import fcntl  # not on Windows

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
  """Who `locked` the folder last, or ''; unique, to tell folders apart."""
  with contextlib.suppress(OSError):
    return (workdir / '.lock').read_text()
  return ''
