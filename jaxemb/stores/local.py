"""Stores: whole tables outside the devices, in memory or in a file.

A row and its optimizer state are one record of bytes, as the device has them: a
store never computes with numbers. Rows that were never written take no memory:
they are drawn when they are read, by the key of the table.
"""

import contextlib
import dataclasses
import functools
import mmap
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numba
import numpy as np
import psutil

from jaxemb.storage import atomic

_BLOCK_BYTES = 1 << 26  # of a snapshot, read and written at once
# Pages of a large file that this process may have mapped: all that were ever
# used would count as its memory.
MAPPED_BYTES = 1 << 30
_ROWS_MAPPED_AT_ONCE = 4096


class Record:
  """How the arrays of a row are laid out in its record."""

  def __init__(
    self, dtypes: Sequence[np.dtype], shapes: Sequence[tuple[int, ...]]
  ):
    """Of each array, its dtype and its shape for a row."""
    fields = enumerate(zip(dtypes, shapes, strict=True))
    self._dtype = np.dtype([(str(i), *x) for i, x in fields])
    self._names = [str(i) for i in range(len(dtypes))]
    self.num_bytes = self._dtype.itemsize

  def pack(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """[n, num_bytes] uint8 of arrays [n, ...]."""
    records = np.empty((len(arrays[0]), 1), self._dtype)
    for name, array in zip(self._names, arrays, strict=True):
      records[name][:, 0] = array
    return records.view(np.uint8)

  def unpack(self, records: np.ndarray) -> list[np.ndarray]:
    """Arrays [n, ...] of records [n, num_bytes] uint8."""
    records = np.ascontiguousarray(records).view(self._dtype)[:, 0]
    return [np.ascontiguousarray(records[x]) for x in self._names]


def _by_array(arrays, records):
  """Yields each array of a device with its columns of records [n, bytes]."""
  start = 0
  for array in arrays:
    stop = start + array.shape[1]
    yield array, records[:, start:stop]
    start = stop


@numba.njit(nogil=True, cache=True)
def _copy_rows(source, indices, target, new_indices):
  for i in range(indices.size):
    row, new = source[indices[i]], target[new_indices[i]]
    for k in range(row.size):
      new[k] = row[k]


@dataclasses.dataclass
class Store:
  """Records of a table, by id, in memory, which it takes as rows are written.

  One thread at a time uses it.
  """

  num_rows: int
  num_bytes: int  # of a record
  make: Callable[[np.ndarray], np.ndarray]  # ids [n] -> first records
  records: np.ndarray = dataclasses.field(init=False, repr=False)
  is_known: np.ndarray = dataclasses.field(init=False, repr=False)

  def __post_init__(self) -> None:
    self.records = np.zeros((self.num_rows, self.num_bytes), np.uint8)
    self.is_known = np.zeros(self.num_rows, bool)

  def read(self, ids: np.ndarray) -> np.ndarray:
    """[n, num_bytes] uint8, records of ids [n] that differ."""
    records = self.records.take(ids, 0)
    if len(new := np.flatnonzero(~self.is_known[ids])):
      records[new] = self.make(ids[new])
    return records

  def write(self, ids: np.ndarray, records: np.ndarray) -> None:
    """Replaces the records of ids [n] that differ."""
    self.records[ids] = records
    self.is_known[ids] = True

  def swap(
    self,
    arrays: Sequence[np.ndarray],
    out: tuple[np.ndarray, np.ndarray],
    into: tuple[np.ndarray, np.ndarray],
  ) -> None:
    """Copies rows between the store and arrays [rows, bytes] of a device.

    `out` has cache rows and ids of rows that are written to the store, `into`
    of those that are read, maybe to the same cache rows. Rows that were never
    written are drawn.
    """
    is_known = self.is_known[into[1]]
    cache_rows, ids = (x[~is_known] for x in into)
    into = into[0][is_known], into[1][is_known]
    for array, part in _by_array(arrays, self.records):
      _copy_rows(array, indices=out[0], target=part, new_indices=out[1])
      _copy_rows(part, indices=into[1], target=array, new_indices=into[0])
    self.is_known[out[1]] = True
    for some in self._blocks(np.arange(len(ids))):
      for array, part in _by_array(arrays, self.make(ids[some])):
        _copy_rows(
          part,
          indices=np.arange(len(part)),
          target=array,
          new_indices=cache_rows[some],
        )

  def _blocks(self, ids: np.ndarray) -> Iterator[np.ndarray]:
    size = max(1, _BLOCK_BYTES // self.num_bytes)
    yield from (ids[i : i + size] for i in range(0, len(ids), size))

  def snapshot(self, path: pathlib.Path) -> int:
    """Writes all that was ever written to a file; returns its checksum."""
    ids = np.flatnonzero(self.is_known)
    with open(path, 'wb') as file:
      checksum = _put(file, len(ids).to_bytes(8, 'little'), 0)
      for some in self._blocks(ids):
        checksum = _put(file, some.astype('<i8'), checksum)
        checksum = _put(file, self.read(some), checksum)
      file.flush()
      os.fsync(file.fileno())
    return checksum

  def restore(self, path: pathlib.Path, checksum: int) -> None:
    """Goes back to a snapshot. Raises a ValueError if it is damaged."""
    self.is_known[:] = False
    with open(path, 'rb') as file:
      head, actual = _take(file, 8, 0)
      num_records = int.from_bytes(head, 'little')
      for some in self._blocks(np.arange(min(num_records, self.num_rows))):
        data, actual = _take(file, 8 * len(some), actual)
        ids = np.frombuffer(data, '<i8')
        data, actual = _take(file, len(some) * self.num_bytes, actual)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.num_rows:
          raise ValueError(f'{path} is of another table')
        records = np.frombuffer(data, np.uint8)
        self.write(ids, records.reshape(len(some), -1))
      if file.read(1) or num_records > self.num_rows or actual != checksum:
        raise ValueError(f'{path} is damaged')

  def close(self) -> None:
    """Frees its memory."""
    self.records = np.zeros((0, self.num_bytes), np.uint8)


def _put(file: BinaryIO, data: Any, checksum: int) -> int:
  file.write(memoryview(data).cast('B'))
  return zlib.crc32(memoryview(data).cast('B'), checksum)


def _by_second(
  pair: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns arrays [n] in the order of the second one."""
  order = np.argsort(pair[1])
  return pair[0][order], pair[1][order]


def _take(file: BinaryIO, num_bytes: int, checksum: int) -> tuple[bytes, int]:
  data = file.read(num_bytes)
  if len(data) != num_bytes:
    raise ValueError(f'{file.name} is cut off')
  return data, zlib.crc32(data, checksum)


_process = functools.cache(psutil.Process)  # takes longer than to ask it


def _mapped_bytes() -> int:
  """Of files, in the memory of this process; 0 where that is not known."""
  return getattr(_process(os.getpid()).memory_info(), 'shared', 0)


@dataclasses.dataclass
class Disk(Store):
  """Records in a file that is mapped into memory.

  The system writes pages back, and keeps those in memory that it has room for.
  """

  folder: pathlib.Path = dataclasses.field(kw_only=True)

  def __post_init__(self) -> None:
    size = self.num_rows * self.num_bytes
    with atomic.unnamed(self.folder, size, 'a table') as file:
      self._map = mmap.mmap(file.fileno(), size)
    self._map.madvise(mmap.MADV_RANDOM)
    records = np.frombuffer(self._map, np.uint8)
    self.records = records.reshape(self.num_rows, self.num_bytes)
    self.is_known = np.zeros(self.num_rows, bool)

  def _few(self, num: int) -> Iterator[slice]:
    """Slices of `num` rows, with not too many pages mapped after each.

    How many a row takes depends on the file system, which maps neighbors, too.
    """
    is_large = self.records.nbytes > MAPPED_BYTES
    size = _ROWS_MAPPED_AT_ONCE if is_large else max(1, num)
    for i in range(0, num, size):
      yield slice(i, i + size)
      if is_large and _mapped_bytes() > MAPPED_BYTES:
        self._map.madvise(mmap.MADV_DONTNEED)

  def read(self, ids: np.ndarray) -> np.ndarray:
    """See `Store`."""
    records = np.empty((len(ids), self.num_bytes), np.uint8)
    for some in self._few(len(ids)):
      records[some] = super().read(ids[some])
    return records

  def write(self, ids: np.ndarray, records: np.ndarray) -> None:
    """See `Store`."""
    for some in self._few(len(ids)):
      super().write(ids[some], records[some])

  def swap(
    self,
    arrays: Sequence[np.ndarray],
    out: tuple[np.ndarray, np.ndarray],
    into: tuple[np.ndarray, np.ndarray],
  ) -> None:
    """See `Store`."""
    # Rows that lie side by side are in the same pages.
    out, into = _by_second(out), _by_second(into)
    none = into[0][:0], into[1][:0]
    for some in self._few(len(out[0])):
      super().swap(arrays, (out[0][some], out[1][some]), none)
    for some in self._few(len(into[0])):
      super().swap(arrays, none, (into[0][some], into[1][some]))

  def close(self) -> None:
    """See `Store`."""
    super().close()
    with contextlib.suppress(BufferError):  # an array of it is still there
      self._map.close()
