"""The arrays of a .mat file by SciPy, which trusts the sizes in it."""

import contextlib
import math
import pathlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_HEADER_BYTES = 128  # of version 5, which begins with text
_COMPRESSED, _MATRIX = 15, 14  # types of elements
_INTEGERS = 5, 6  # of the sizes of a matrix
_NESTED, _SPARSE = (1, 2, 3, 16, 17), 5  # classes: cells, structs, objects ..
_MAX_NESTED = 1000  # of which each may be in another: SciPy's stack has to do
_MAX_DIMENSIONS = 32


def load(path: pathlib.Path) -> Mapping[str, Any]:
  """Returns the arrays of a file by name.

  Raises a `ValueError` if it is damaged, and a `NotImplementedError` for
  version 7.3, which is HDF5.
  """
  from scipy import io

  data = np.memmap(path, np.uint8, 'r')
  is_little = bytes(data[126:128]) == b'IM'
  version = data[125:126] if is_little else data[124:125]
  if version.tolist() == [1] and data[:4].all():
    kind = '<u4' if is_little else '>u4'
    for stretch in _stretches(data, kind):
      _check(np.frombuffer(stretch, kind, len(stretch) // 4))
  try:
    return io.loadmat(path)
  except NotImplementedError:
    raise
  except Exception as error:  # of any class, where a file is damaged
    raise ValueError(str(error)) from error


def _stretches(data: np.ndarray, kind: str) -> Iterator[bytes | np.ndarray]:
  """Yields stretches of bytes, unpacked, with matrices at multiples of 8."""
  position, seen = _HEADER_BYTES, set()
  while len(tag := data[position : position + 8]) == 8:
    element, num_bytes = tag.view(kind).tolist()
    start, position = position, position + 8 + num_bytes
    if element == _COMPRESSED:
      unpacker = zlib.decompressobj()
      with contextlib.suppress(zlib.error):  # of which SciPy has a line
        yield unpacker.decompress(data[start + 8 : position])
    elif start % 8 not in seen:  # a matrix may be longer than it says
      seen.add(start % 8)
      yield data[start % 8 :]


def _check(words: np.ndarray) -> None:
  """Refuses matrices larger than their file, and too many nested ones.

  `words` are uint32 [n] of a stretch.
  """
  num_nested = 0
  for i in 2 * np.flatnonzero(words[::2] == _MATRIX):
    _, _, _, _, flags, _, element, num_bytes = (*words[i : i + 8], *8 * [0])[:8]
    num = int(num_bytes) // 4
    if element not in _INTEGERS or not 2 <= num <= _MAX_DIMENSIONS:
      continue
    kind = int(flags) & 0xFF
    shape = words[i + 8 : i + 8 + num].tolist()
    num_nested += kind in _NESTED
    if kind != _SPARSE and math.prod(shape) > 4 * len(words):
      raise ValueError(
        f'a matrix of {" x ".join(map(str, shape))} is larger than the file'
      )
  if num_nested > _MAX_NESTED:
    raise ValueError(f'it has more than {_MAX_NESTED:,} cell arrays or structs')
