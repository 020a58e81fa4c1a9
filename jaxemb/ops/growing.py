"""Arrays of rows to which rows are added."""

import numpy as np

_BLOCK_ROWS = 1 << 14


def with_room(
  rows: np.ndarray, buffer: np.ndarray | None, num_new: int
) -> np.ndarray:
  """Returns a buffer that begins with [n, dim] rows and has room for new ones.

  That is the buffer if it has room, else a copy. A copy of a buffer has more
  room than it needs, so that the time of adding rows one by one is linear; what
  is not written to takes no memory.
  """
  total = len(rows) + num_new
  if buffer is not None and total <= len(buffer):
    return buffer
  spare = 0 if buffer is None else total // 2
  larger = np.empty((total + spare, rows.shape[1]), rows.dtype)
  for start in range(0, len(rows), _BLOCK_ROWS):  # rows may be read on demand
    block = slice(start, min(start + _BLOCK_ROWS, len(rows)))
    larger[block] = rows[block]
  return larger


def with_zeros(values: np.ndarray, num_new: int) -> np.ndarray:
  """Returns [n] values with zeros behind them."""
  return np.concatenate([values, np.zeros(num_new, values.dtype)])


def descending(values: np.ndarray) -> np.ndarray:
  """Returns the order in which values fall, [n] int64; equal ones by row."""
  return len(values) - 1 - np.argsort(values[::-1], kind='stable')[::-1]
