"""vectors.npy: rows in the precision that they were trained in.

    float32, float16   as NumPy has them
    bfloat16           its bits, as NumPy's `V2`
    int8               with scales.npy: number j of row i is x[i, j] * s[i]

`np.load(path).view(ml_dtypes.bfloat16)` reads the bits of bfloat16.
"""

import contextlib
import pathlib
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic

NAME, SCALES_NAME = 'vectors.npy', 'scales.npy'
_TYPES = {'float32': '<f4', 'bfloat16': 'V2', 'float16': '<f2', 'int8': 'i1'}


class Rows(NamedTuple):
  """Rows in their storage dtype."""

  rows: np.ndarray  # [vocab, dim] float32, uint16 (bits) or int8
  dtype: str = 'float32'  # or 'bfloat16', 'float16', 'int8'
  scales: np.ndarray | None = None  # [vocab] float32, of int8


def write(
  stack: contextlib.ExitStack, folder: pathlib.Path, stored: Rows
) -> list[BinaryIO]:
  """Opens and fills vectors.npy (and scales.npy), which appear with `stack`.

  Raises:
    errors.UserError: the file system refuses.
  """
  rows, dtype = np.ascontiguousarray(stored.rows), _TYPES[stored.dtype]
  rows = rows.view(dtype) if rows.dtype == np.uint16 else rows
  arrays = {NAME: rows.astype(dtype, copy=False)}
  if stored.scales is not None:
    arrays[SCALES_NAME] = np.asarray(stored.scales, '<f4')
  else:

    def remove(kind: type | None, *_: Any) -> None:
      if kind is None:  # the new files are complete
        (folder / SCALES_NAME).unlink(missing_ok=True)

    stack.push(remove)  # scales of an earlier export
  files = []
  for name, array in arrays.items():
    files.append(stack.enter_context(atomic.write(folder / name)))
    np.save(files[-1], array)
  return files


def load(path: pathlib.Path) -> np.ndarray:
  """[vocab, dim] float32 from vectors.npy, memory-mapped if stored as such.

  Raises:
    errors.UserError: int8 rows without matching scales; complex numbers.
    OSError: it cannot be read, as ValueError and EOFError.
  """
  rows: Any = np.load(path, mmap_mode='r')
  if rows.dtype == np.dtype('V2'):
    return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
  if rows.dtype == np.float16:
    return rows.astype(np.float32)
  if np.iscomplexobj(rows):
    raise errors.UserError(f'{path} has complex numbers; give real ones')
  if rows.dtype != np.int8:
    return np.asarray(rows)
  scales_path = path.with_name(SCALES_NAME)
  try:
    scales = np.load(scales_path)
  except (OSError, ValueError, EOFError) as error:
    raise errors.UserError(
      f'{path} has int8 rows, and their scales in {scales_path} cannot be '
      f'read: {error}; export again'
    ) from error
  if scales.shape != rows.shape[:1]:
    raise errors.UserError(
      f'{scales_path} has {len(scales):,} scales for the {len(rows):,} rows '
      f'of {path}; export again'
    )
  return rows * scales[:, None]
