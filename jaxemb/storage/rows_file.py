"""vectors.npy: rows in the precision that they were trained in.

    float32    as ever                  bfloat16   its bits, as numpy's `V2`
    float16    numpy's own              int8       scales.npy beside it: number
                                                   j of row i is x[i, j] * s[i]

`np.load(path).view(ml_dtypes.bfloat16)` reads the bits of bfloat16.
"""

import contextlib
import pathlib
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic

NAME, SCALES_NAME = 'vectors.npy', 'scales.npy'


class Kept(NamedTuple):
  """Rows as they are kept.

  Attributes:
    rows: [vocab, dim] float32, uint16 (the bits of 16-bit numbers) or int8.
    dtype: 'float32', 'bfloat16', 'float16' or 'int8'.
    scales: [vocab] float32, of rows of int8.
  """

  rows: np.ndarray
  dtype: str = 'float32'
  scales: np.ndarray | None = None


def write(
  stack: contextlib.ExitStack, folder: pathlib.Path, kept: Kept
) -> list[BinaryIO]:
  """Writes vectors.npy, and scales.npy if need be.

  Args:
    stack: on whose end the files appear.
    folder: where.
    kept: the rows.

  Returns:
    The files, open.

  Raises:
    errors.UserError: the file system refuses.
  """
  kinds = {'float32': '<f4', 'bfloat16': 'V2', 'float16': '<f2', 'int8': 'i1'}
  rows, kind = np.ascontiguousarray(kept.rows), kinds[kept.dtype]
  if rows.dtype == np.uint16:
    rows = rows.view(kind)
  rows = rows.astype(kind, copy=False)
  arrays = {NAME: rows}
  if kept.scales is not None:
    arrays[SCALES_NAME] = np.asarray(kept.scales, '<f4')
  else:

    def remove(kind: type | None, *_: Any) -> None:
      if kind is None:  # the files are there
        (folder / SCALES_NAME).unlink(missing_ok=True)

    stack.push(remove)  # scales of rows that were there before
  files = []
  for name, array in arrays.items():
    files.append(stack.enter_context(atomic.write(folder / name)))
    np.save(files[-1], array)
  return files


def load(path: pathlib.Path) -> np.ndarray:
  """[vocab, dim] float32, mapped into memory where it is kept like that.

  Args:
    path: of vectors.npy.

  Raises:
    errors.UserError: It needs scales, and there are none that fit; or its
      numbers are complex.
    OSError: It cannot be read, as ValueError and EOFError.
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
      f'{path} has whole numbers, and their scales in {scales_path} cannot be '
      f'read: {error}; export again'
    ) from error
  if scales.shape != rows.shape[:1]:
    raise errors.UserError(
      f'{scales_path} has {len(scales):,} scales for the {len(rows):,} rows '
      f'of {path}; export again'
    )
  return rows * scales[:, None]
