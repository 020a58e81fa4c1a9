"""The folder of a run and the settings that it belongs to."""

import contextlib
import json
import pathlib
from collections.abc import Iterator

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.storage import atomic


@contextlib.contextmanager
def _writing(workdir: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    raise errors.UserError(
      f'cannot use {workdir} as the folder of a run: {error}; '
      'give another --workdir'
    ) from error


def open_(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Makes the folder of a run, or checks that its settings are the same.

  Raises:
    UserError: if another run is there, naming the settings that differ.
  """
  path = workdir / 'config.json'
  with _writing(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
    if not path.exists():
      return
    text = path.read_text(encoding='utf-8')
  try:
    differing = config_lib.differences(config.to_dict(), json.loads(text))
  except ValueError as error:
    raise errors.UserError(
      f'{path} is not JSON: {error}; give another --workdir'
    ) from error
  if differing:
    raise errors.UserError(
      f'{workdir} holds a run with other settings: {"; ".join(differing)}; '
      'give another --workdir or the same settings'
    )


def record(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Writes config.json, once the settings have led to something to train."""
  with _writing(workdir), atomic.write(workdir / 'config.json') as file:
    file.write(json.dumps(config.to_dict(), indent=1).encode())
