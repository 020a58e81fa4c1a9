"""What a setting is, and reading the files that declare settings.

The core declares its settings in `config/settings.toml`, each kind of data its
own in `<kind>/settings.toml`: every setting once.
"""

import dataclasses
import math
import pathlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from jaxemb import errors


@dataclasses.dataclass(frozen=True)
class Setting:
  """One setting, given as `--config.NAME=VALUE`."""

  name: str
  default: bool | int | float | str  # has the type of all values
  help: str
  values: Sequence[float] | Sequence[str] = ()  # the limits, or all choices
  only_with: str = ''  # 'OTHER=A|B', a setting and its values that use this one
  may_change: bool = False  # when a run is resumed
  most_used: bool = False  # --help shows these first
  optional: bool = False  # only kinds of data that list it use it

  def check(self, value: Any, members: Mapping[str, str] | None = None) -> None:
    """Raises a `UserError` unless the setting may have this value.

    `members` are the names that stand for something importable, if any;
    'module:attribute' is then a choice as well.
    """
    kind, why = type(self.default), ''
    choices = (*self.values, *(members or ()))
    if type(value) is not kind and (type(value), kind) != (int, float):
      why = f'must be of type {kind.__name__}'
    elif kind is str and choices and value not in choices:
      shown = [repr(x) for x in choices]
      if members is not None:
        shown.append('module:attribute of your own')
      if members is None or ':' not in value:
        why = f'is not available; choose {" or ".join(shown)}'
    elif kind in (int, float):
      low, high = choices
      if not low <= value <= high:  # also a NaN
        why = f'must be at least {low:,}'
        why += f', at most {high:,}' * (high < math.inf)
    if why:
      raise errors.UserError(f'config.{self.name}={value!r} {why}')


def read(path: pathlib.Path) -> tuple[Setting, ...]:
  """The settings that a TOML file declares, in their order."""
  table = tomllib.loads(path.read_text('utf-8'))
  return tuple(Setting(name, **fields) for name, fields in table.items())


def flat(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Nested settings as one dict with dotted names."""
  result: dict[str, Any] = {}
  for key, value in config.items():
    name = f'{prefix}{key}'
    is_group = isinstance(value, Mapping | ml_collections.ConfigDict)
    result |= flat(value, f'{name}.') if is_group else {name: value}
  return result


def names(text: str) -> tuple[str, ...]:
  """Splits names separated by commas, each once."""
  return tuple(dict.fromkeys(x.strip() for x in text.split(',') if x.strip()))


def sizes(name: str, text: str) -> tuple[int, ...]:
  """Parses positive integers separated by commas, or raises a `UserError`."""
  numbers = [x.strip() for x in text.split(',') if text.strip()]
  if not all(x.isdecimal() and int(x) for x in numbers):
    raise errors.UserError(
      f'config.{name}={text} must be positive numbers separated by commas'
    )
  return tuple(map(int, numbers))


def room_bytes(text: str, whole_bytes: int) -> int:
  """Parses '64MB' or '10%' of `whole_bytes`; raises a `UserError`."""
  match = re.fullmatch(r'(\d+(?:\.\d*)?) *([kKMGT]?i?[bB]?|%)', text.strip())
  if not match or not float(match[1]):
    raise errors.UserError(
      f'config.table.device_bytes={text} is no size; give one such as 64MB, or '
      '10%'
    )
  if match[2] == '%':
    return round(whole_bytes * float(match[1]) / 100)
  power = ' KMGT'.index((match[2].upper() + ' ')[0].replace('B', ' '))
  return round(float(match[1]) * (1024 if 'i' in text else 1000) ** power)
