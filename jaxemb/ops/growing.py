"""Arrays of rows to which rows are added."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb import errors

_BLOCK_ROWS = 1 << 14


def checked(rows: Any, shape: tuple[int, int], dtype: Any) -> np.ndarray:
  """Returns rows that are to be added; raises a `UserError` for others."""
  try:
    rows = np.asarray(rows, dtype)
  except (TypeError, ValueError) as error:
    raise errors.UserError(
      f'vectors are no {shape} numbers: {errors.one_line(error)}; give an '
      'array of them'
    ) from error
  if rows.size == 0 and shape[0] == 0:
    rows = rows.reshape(shape)
  if rows.shape != shape or not np.isfinite(rows).all():
    raise errors.UserError(
      f'vectors of shape {rows.shape} were given; {shape[0]} words need '
      f'{shape} finite numbers'
    )
  return rows


def reserved(num: int, dim: int, dtype: Any) -> np.ndarray:
  """Returns no rows, [0, dim], with room for some behind them."""
  return np.zeros((num, dim), dtype)[:0]


def grown(rows: np.ndarray, num_new: int, is_grown: bool) -> np.ndarray:
  """Returns [n, ...] rows in memory that can be changed, and zeros behind them.

  `is_grown` says that the rows are what a function of this module returned:
  they are copied only where they have no room, and the copy has more room than
  it needs, so that the time of adding rows one by one is linear. What is not
  written to takes no memory.
  """
  total = len(rows) + num_new
  whole = rows.base if is_grown else rows
  if not is_grown or whole is None or total > len(whole):
    spare = total // 2 if is_grown else 0
    whole = np.zeros((total + spare, *rows.shape[1:]), rows.dtype)
    if isinstance(rows, np.ndarray):
      _copy(rows, whole, np.arange(len(rows)))
    else:  # rows of a file
      rows.copy_to(whole[: len(rows)])
  return whole[:total]


def in_order(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
  """Returns a copy of [n, ...] rows in another order."""
  whole = np.empty((len(order), *rows.shape[1:]), rows.dtype)
  _copy(rows, whole, order)
  return whole[:]


def _copy(rows: np.ndarray, copy: np.ndarray, order: np.ndarray) -> None:
  for start in range(0, len(order), _BLOCK_ROWS):  # rows may be of a file
    block = slice(start, min(start + _BLOCK_ROWS, len(order)))
    copy[block] = rows[order[block]]


def positions(
  names: Sequence[str], known: Mapping[str, int], replaces: bool
) -> tuple[list[str], np.ndarray, np.ndarray]:
  """Returns where names go in a table: new names, rows and positions.

  New names follow the known ones. Row `rows[i]`, of a new name or, if it
  `replaces`, of any, is that of `names[positions[i]]`: of equal new names the
  first is added, and the last replaces.
  """
  new: dict[str, int] = {}
  by_row: dict[int, int] = {}
  for position, name in enumerate(names):
    row = known.get(name, new.get(name, -1))
    if row < 0:
      row = new[name] = len(known) + len(new)
      by_row[row] = position
    elif replaces:
      by_row[row] = position
  rows = np.array([*by_row], np.int64)
  return [*new], rows, np.array([*by_row.values()], np.int64)


def descending(values: np.ndarray) -> np.ndarray:
  """Returns the order in which values fall, [n] int64; equal ones by row."""
  return len(values) - 1 - np.argsort(values[::-1], kind='stable')[::-1]
