"""What readers of damaged files raise, and checks of values that JSON holds."""

import tokenize
import typing
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

# Beside `OSError`, which may also say that a file is missing or the disk fails.
ERRORS = (
  ValueError,
  LookupError,
  EOFError,
  OverflowError,
  MemoryError,  # of a header that promises more than any machine has
  RecursionError,  # of JSON and of headers with thousands of brackets
  NotImplementedError,  # of archives packed in another way
  tokenize.TokenError,  # of headers of arrays that are cut
  SyntaxError,  # of headers of arrays that are no Python
  zipfile.BadZipFile,
  zlib.error,
)


def checked(kind: Any, value: Any) -> Any:
  """Returns a value of JSON, of a type: str, int, float or bool.

  Of `tuple[X, ...]`, too, which is a list in JSON. Raises a `ValueError` for
  values of other types and whole numbers beyond 32 bits.
  """
  if typing.get_origin(kind) is tuple:
    item, _ = typing.get_args(kind)
    return tuple(checked(item, x) for x in checked(list, value))
  is_right = type(value) is kind or (kind is float and type(value) is int)
  if not is_right or (type(value) is int and abs(value) >= 1 << 31):
    raise ValueError(f'{str(value)[:40]!r} is no {kind.__name__}')
  return value


def checked_fields(kind: type, values: Any) -> dict[str, Any]:
  """Returns an object of JSON with values for fields of a class.

  See `checked`. Raises a `ValueError` for other fields, too.
  """
  kinds: Mapping[str, Any] = typing.get_type_hints(kind)
  if unknown := checked(dict, values).keys() - kinds.keys():
    raise ValueError(f'{sorted(unknown)[0][:40]!r} is no field')
  return {k: checked(kinds[k], x) for k, x in values.items()}
