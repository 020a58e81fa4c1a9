"""How words are named in questions: alone or in lists, perhaps weighted."""

import numbers

import numpy as np

Key = str | int | np.ndarray
Weighted = Key | tuple[Key, float]


def as_list(items: object) -> list:
  """What was given alone, or in a list."""
  is_single = isinstance(items, (str, numbers.Integral)) or _has_weight(items)
  if is_single or (isinstance(items, np.ndarray) and items.ndim == 1):
    return [items]
  return [] if items is None else list(items)


def _has_weight(item: object) -> bool:
  return (
    isinstance(item, tuple)
    and len(item) == 2
    and isinstance(item[1], numbers.Real)
    and not isinstance(item[0], tuple)
  )


def weighted(item: Weighted, weight: float) -> tuple[Key, float]:
  """With the weight that it has, or this one."""
  return item if isinstance(item, tuple) else (item, weight)
