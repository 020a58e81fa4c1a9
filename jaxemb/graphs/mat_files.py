"""The arrays of a .mat file by SciPy, which trusts what the file says.

A damaged file may crash SciPy, or have it allocate what the file cannot hold,
so it reads in a process of its own, which has a limit of memory.
"""

import contextlib
import io
import pathlib
import sys
import tempfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.runtime import background

_HEADER_BYTES, _COMPRESSED = 128, 15  # of version 5; a type of elements
_BLOCK_BYTES = 1 << 16  # unpacked, some thousand times as many at most
# Integers of a byte become numbers of eight, and are copied.
_LEAST_BYTES, _GROWTH = 1 << 30, 32
_KINDS = 'biufcU'  # of dtypes; cell arrays and structs are objects
_DAMAGED, _UNSUPPORTED = 3, 4  # exit codes
_SPARSE_ARRAYS = 'data', 'indices', 'indptr', 'shape'


def load(path: pathlib.Path) -> tuple[dict[str, Any], list[str]]:
  """Returns arrays and sparse matrices by name, and names of anything else.

  Raises a `ValueError` if the file is damaged, and a `NotImplementedError` for
  version 7.3, which is HDF5.
  """
  with tempfile.TemporaryDirectory() as folder:
    output = pathlib.Path(folder, 'arrays.npz')
    try:
      process = background.call(__name__, path, output, message=b'')
    except OSError:  # there is no Python to start
      return _named(_read(path))
    reason = process.stdout.decode(errors='replace')
    if process.returncode == 1:  # a traceback
      lines = process.stderr.decode(errors='replace').strip().splitlines()
      raise OSError(lines[-1] if lines else 'the reading process failed')
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
  _limit_memory(_LEAST_BYTES + _GROWTH * _unpacked_bytes(pathlib.Path(path)))
  try:
    arrays, others = _named(_read(pathlib.Path(path)))
  except (NotImplementedError, ValueError) as error:
    print(errors.one_line(error), end='')
    is_damaged = isinstance(error, ValueError)
    sys.exit(_DAMAGED if is_damaged else _UNSUPPORTED)
  written: dict[str, Any] = {'others': np.array(others, np.str_)}
  for name, array in arrays.items():
    if sparse.issparse(array):
      columns = array.tocsc()
      for part in _SPARSE_ARRAYS:
        written[f'{part}.{name}'] = np.asarray(getattr(columns, part))
    else:
      written[f'dense.{name}'] = array
  np.savez(output, **written)


def _limit_memory(num_bytes: int) -> None:
  """Has this process map no more than so much beside what it has."""
  with contextlib.suppress(ImportError, OSError, ValueError):  # not Linux
    import resource

    size = pathlib.Path('/proc/self/statm').read_text().split()[0]
    limit = int(size) * resource.getpagesize() + num_bytes
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
      resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _unpacked_bytes(path: pathlib.Path) -> int:
  """Returns the size of a file once the elements of version 5 are unpacked."""
  data = np.memmap(path, np.uint8, 'r')
  kind = '<u4' if bytes(data[126:128]) == b'IM' else '>u4'
  position, total = _HEADER_BYTES, len(data)
  while len(tag := data[position : position + 8]) == 8:
    element, num_bytes = tag.view(kind).tolist()
    start, position = position + 8, position + 8 + num_bytes
    if element == _COMPRESSED:
      unpacker = zlib.decompressobj()
      with contextlib.suppress(zlib.error):  # of which SciPy has a line
        for i in range(start, min(position, len(data)), _BLOCK_BYTES):
          block = data[i : min(i + _BLOCK_BYTES, position)]
          total += len(unpacker.decompress(block))
  return total


if __name__ == '__main__':
  main(*sys.argv[1:])
