"""vectors.npy: rows in the precision that they were trained in.

    float32, float16   as NumPy has them
    bfloat16           its bits, as NumPy's `V2`
    int8               with scales.npy: number j of row i is x[i, j] * s[i]

`np.load(path).view(ml_dtypes.bfloat16)` reads the bits of bfloat16.
"""

import pathlib
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors

NAME, SCALES_NAME = 'vectors.npy', 'scales.npy'
_TYPES = {'float32': '<f4', 'bfloat16': 'V2', 'float16': '<f2', 'int8': 'i1'}


class Encoded(NamedTuple):
  """Rows in a storage dtype, on the host."""

  data: np.ndarray  # [..., n, dim] float32, uint16 (16-bit floats) or int8
  dtype: str = 'float32'  # or 'bfloat16', 'float16', 'int8'
  scales: np.ndarray | None = None  # [..., n] float32, of int8

  def decode(self) -> np.ndarray:
    """[..., n, dim] float32; exact."""
    if self.dtype == 'bfloat16':
      return (self.data.astype(np.uint32) << 16).view(np.float32)
    if self.dtype == 'float16':
      return self.data.view(np.float16).astype(np.float32)
    if self.dtype == 'int8':
      return self.data * self.scales[..., None]
    return self.data

  def select(self, rows: Any) -> 'Encoded':
    """The same of some rows, or of one copy of all."""
    scales = None if self.scales is None else self.scales[rows]
    return Encoded(self.data[rows], self.dtype, scales)

  def files(self) -> dict[str, np.ndarray]:
    """Arrays by file name."""
    is_float32 = self.dtype == 'float32'
    data = np.ascontiguousarray(self.data, '<f4' if is_float32 else None)
    files = {NAME: data.view(_TYPES[self.dtype])}
    if self.scales is not None:
      files[SCALES_NAME] = np.asarray(self.scales, '<f4')
    return files


def load(path: pathlib.Path) -> np.ndarray:
  """[vocab, dim] float32 from vectors.npy, memory-mapped if stored as such.

  Raises:
    errors.UserError: int8 rows without matching scales; complex numbers.
    OSError, ValueError, EOFError: it cannot be read.
  """
  rows: Any = np.load(path, mmap_mode='r')
  if np.iscomplexobj(rows):
    raise errors.UserError(f'{path} has complex numbers; give real ones')
  if rows.dtype == np.dtype('V2'):
    return Encoded(rows.view(np.uint16), 'bfloat16').decode()
  if rows.dtype == np.float16:
    return Encoded(rows, 'float16').decode()
  if rows.dtype != np.int8:
    return np.asarray(rows)
  scales_path = path.with_name(SCALES_NAME)
  try:
    scales = np.load(scales_path)
    if scales.shape != rows.shape[:1]:
      raise ValueError(f'{len(scales)} scales for the {len(rows)} rows')
  except (OSError, ValueError, EOFError) as error:
    raise errors.UserError(
      f'{path} has int8 rows, and their scales in {scales_path} cannot be '
      f'used: {error}; export again'
    ) from error
  return Encoded(rows, 'int8', scales).decode()
