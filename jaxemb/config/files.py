"""Reads config files: those that come with jaxemb, and users' own."""

import inspect
import os
import pathlib
import runpy
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_collections

from jaxemb import errors
from jaxemb.config import checks, kinds, schema


def built_in() -> dict[str, pathlib.Path]:
  """The config files that come with jaxemb, by name."""
  folder = pathlib.Path(__file__).parents[1] / 'configs'
  if not folder.is_dir():  # in a checkout
    folder = folder.parents[1] / 'configs'
  return {x.stem: x for x in sorted(folder.glob('*.py'))}


def read(
  name: str, values: Mapping[str, Any] = MappingProxyType({})
) -> ml_collections.ConfigDict:
  """The settings of a config file, with values set by dotted name, unchecked.

  `name` is FILE[:VARIANT], or NAME[:VARIANT] of a config that jaxemb has. A
  file's `get_config(variant)` may also take `data_path`, the user's own data:
  what it chooses for embedded data does not suit others. Raises a `UserError`
  for a file that cannot be used.
  """
  file, _, variant = name.partition(':')
  path = built_in().get(file) or pathlib.Path(os.path.expanduser(file))
  if not os.path.isfile(path):  # also of names that are too long
    raise errors.UserError(
      f'there is no config file {file}; give a file, or the name of a config '
      f'that comes with jaxemb: {", ".join(built_in())}'
    )
  try:
    get_config = runpy.run_path(str(path))['get_config']
    args = [variant] if variant else []
    config = get_config(*args)
    data_path = str(values.get('data.path', ''))
    takes_path = 'data_path' in inspect.signature(get_config).parameters
    if takes_path and not kinds.of(config).is_embedded(data_path):
      config = get_config(*args, data_path=data_path)
    checks.check_complete(schema.flat(config))
    config.update_from_flattened_dict(values)  # references follow
    return config
  except errors.UserError:
    raise
  except (Exception, SystemExit) as error:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [x.lineno for x in frames if x.filename == str(path)]
    where = f', line {lines[-1]}' if lines else ''
    why = errors.one_line(error)
    raise errors.UserError(
      f'cannot read the config {file}{where}: {type(error).__name__}: {why}'
    ) from error


def load(
  name: str, values: Mapping[str, Any] = MappingProxyType({})
) -> ml_collections.ConfigDict:
  """As `read`, checked: raises a `UserError` for settings that do not fit."""
  return checks.check(read(name, values))
