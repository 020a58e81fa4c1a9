"""JSON of files that anybody may have written."""

import json
from typing import Any

_MAX_DEPTH = 64  # of lists and objects


def loads(text: str | bytes) -> Any:
  """Returns the value of a JSON text.

  Raises a `ValueError` for what is no JSON, or nested so deeply that whatever
  walks through the value would fail or take long.
  """
  try:
    value = json.loads(text)
  except RecursionError as error:
    raise ValueError('it is nested too deeply') from error
  if isinstance(text, bytes):
    num_opened = text.count(b'[') + text.count(b'{')
  else:
    num_opened = text.count('[') + text.count('{')
  if num_opened > _MAX_DEPTH and _is_deep(value):
    raise ValueError('it is nested too deeply')
  return value


def _is_deep(value: Any) -> bool:
  level = [value]
  for _ in range(_MAX_DEPTH):
    lists = [x.values() if isinstance(x, dict) else x for x in level]
    level = [y for x in lists for y in x if isinstance(y, list | dict)]
  return bool(level)
