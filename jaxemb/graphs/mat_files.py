"""The arrays of a .mat file by SciPy, which trusts what the file says.

A damaged file may crash SciPy, so it reads in a process of its own.
"""

import contextlib
import io
import math
import pathlib
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.runtime import background

_HEADER_BYTES = 128  # of version 5, which begins with text
_COMPRESSED, _MATRIX = 15, 14  # types of elements
_INTEGERS = 5, 6  # of the sizes of a matrix
_SPARSE = 5  # a class of matrices
_MAX_DIMENSIONS = 32
_KINDS = 'biufcU'  # of dtypes; cell arrays and structs are objects
_DAMAGED, _UNSUPPORTED = 3, 4  # exit codes
_SPARSE_ARRAYS = 'data', 'indices', 'indptr', 'shape'


def load(path: pathlib.Path) -> tuple[dict[str, Any], list[str]]:
  """Returns arrays and sparse matrices by name, and names of anything else.

  Raises a `ValueError` if the file is damaged, and a `NotImplementedError` for
  version 7.3, which is HDF5.
  """
  _check_sizes(path)
  with tempfile.TemporaryDirectory() as folder:
    output = pathlib.Path(folder, 'arrays.npz')
    try:
      process = background.call(__name__, path, output, message=b'')
    except OSError:  # there is no Python to start
      return _named(_read(path))
    reason = process.stdout.decode(errors='replace')
    if process.returncode == _UNSUPPORTED:
      raise NotImplementedError(reason)
    if process.returncode:
      raise ValueError(reason or 'SciPy crashed, so it is damaged')
    return _unpacked(output)


def _unpacked(path: pathlib.Path) -> tuple[dict[str, Any], list[str]]:
  """Returns what `main` has written."""
  from scipy import sparse

  arrays: dict[str, Any] = {}
  with np.load(path) as file:
    for key in file.files:
      kind, _, name = key.partition('.')
      if kind == 'dense':
        arrays[name] = file[key]
      elif kind == 'data':
        *parts, shape = (file[f'{x}.{name}'] for x in _SPARSE_ARRAYS)
        arrays[name] = sparse.csc_matrix(tuple(parts), tuple(shape))
    return arrays, [*file['others']]


def _named(loaded: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
  """Returns the arrays of all that SciPy has read, and names of the rest."""
  from scipy import sparse

  arrays = {
    k: x
    for k, x in loaded.items()
    if sparse.issparse(x) or getattr(x, 'dtype', np.dtype('O')).kind in _KINDS
  }
  return arrays, sorted(loaded.keys() - arrays.keys())


def _read(path: pathlib.Path) -> Mapping[str, Any]:
  from scipy import io as scipy_io

  try:
    loaded = scipy_io.loadmat(path)
  except NotImplementedError:
    raise
  except Exception as error:  # of any class, where a file is damaged
    raise ValueError(errors.one_line(error)) from error
  return {k: x for k, x in loaded.items() if k[:1] not in ('', '_')}


def main(path: str, output: str) -> None:
  """Writes the arrays of a .mat file into an .npz file, or says what is wrong.

  Sparse matrices are in pieces; `others` are names of anything else.
  """
  from scipy import sparse

  sys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'utf-8')
  try:
    arrays, others = _named(_read(pathlib.Path(path)))
  except (NotImplementedError, ValueError) as error:
    print(errors.one_line(error), end='')
    is_damaged = isinstance(error, ValueError)
    sys.exit(_DAMAGED if is_damaged else _UNSUPPORTED)
  written = {'others': np.array(others, np.str_)}
  for name, array in arrays.items():
    if sparse.issparse(array):
      columns = array.tocsc()
      for part in _SPARSE_ARRAYS:
        written[f'{part}.{name}'] = np.asarray(getattr(columns, part))
    else:
      written[f'dense.{name}'] = array
  np.savez(output, **written)


def _check_sizes(path: pathlib.Path) -> None:
  """Raises a `ValueError` for matrices that are larger than their file."""
  data = np.memmap(path, np.uint8, 'r')
  is_little = bytes(data[126:128]) == b'IM'
  version = data[125:126] if is_little else data[124:125]
  if version.tolist() == [1] and data[:4].all():
    kind = '<u4' if is_little else '>u4'
    for stretch in _stretches(data, kind):
      _check(np.frombuffer(stretch, kind, len(stretch) // 4))


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
  """Refuses matrices larger than their file. `words` are uint32 [n] of it."""
  for i in 2 * np.flatnonzero(words[::2] == _MATRIX):
    _, _, _, _, flags, _, element, num_bytes = (*words[i : i + 8], *8 * [0])[:8]
    num = int(num_bytes) // 4
    if element not in _INTEGERS or not 2 <= num <= _MAX_DIMENSIONS:
      continue
    shape = words[i + 8 : i + 8 + num].tolist()
    if int(flags) & 0xFF != _SPARSE and math.prod(shape) > 4 * len(words):
      raise ValueError(
        f'a matrix of {" x ".join(map(str, shape))} is larger than the file'
      )


if __name__ == '__main__':
  main(*sys.argv[1:])
