"""Ids of strings: a hash table over Arrow's buffers, for numba.

A string is known by 64 bits of its hash (of 33 million different ones two are
taken for one with a probability of 3e-5). Without this a log's categories, 26
in a row, would become Python objects.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.text import loader

_FIRST_SLOTS = 1 << 12
EMPTY = np.uint64(0)  # no key: hashes are made odd
_JIT = {'nogil': True, 'cache': True}


@numba.njit(**_JIT)
def _hash(data, start, stop):
  """uint64 of bytes, odd."""
  found = np.uint64(stop - start)
  while start + 8 <= stop:
    word = np.uint64(0)
    for i in range(8):  # one load
      word |= np.uint64(data[start + i]) << np.uint64(8 * i)
    found = np.uint64(loader.hashed(found ^ word))
    start += 8
  if start < stop:
    word = np.uint64(0)
    for i in range(stop - start):
      word |= np.uint64(data[start + i]) << np.uint64(8 * i)
    found = np.uint64(loader.hashed(found ^ word))
  return found | np.uint64(1)


@numba.njit(**_JIT)
def _slot(slots, key):
  mask = np.uint64(len(slots) - 1)
  at = (key >> np.uint64(1)) & mask
  while slots[at] != EMPTY and slots[at] != key:
    at = (at + np.uint64(1)) & mask
  return at


@numba.njit(**_JIT)
def _hashes(data, starts, stops, out):
  for i in range(len(out)):
    out[i] = _hash(data, starts[i], stops[i])


@numba.njit(**_JIT)
def _gather(data, starts, stops, offsets, out):
  n = 0
  for i in range(len(starts)):
    for j in range(starts[i], stops[i]):
      out[n] = data[j]
      n += 1
    offsets[i + 1] = n


@numba.njit(**_JIT)
def _find(slots, values, keys, out, missing):
  for i in range(len(keys)):
    at = _slot(slots, keys[i])
    out[i] = values[at] if slots[at] != EMPTY else missing


@numba.njit(**_JIT)
def _add(slots, values, keys, out, num, new):
  """Ids of keys, those not known being numbered from `num` on.

  `new` gets the places of keys that are new. Stops where the table is half
  full; returns how many keys have an id, and how many ids there are.
  """
  first = num
  for i in range(len(keys)):
    at = _slot(slots, keys[i])
    if slots[at] == EMPTY:
      if 2 * num >= len(slots):
        return i, num
      slots[at], values[at] = keys[i], num
      new[num - first] = i
      num += 1
    out[i] = values[at]
  return len(keys), num


@numba.njit(**_JIT)
def _refill(slots, values, old_slots, old_values):
  for i in range(len(old_slots)):
    if old_slots[i] != EMPTY:
      at = _slot(slots, old_slots[i])
      slots[at], values[at] = old_slots[i], old_values[i]


@numba.njit(**_JIT)
def mixed(numbers):
  """[n] uint64, as good as random, of [n] uint64."""
  out = np.empty_like(numbers)
  for i in range(len(out)):
    out[i] = loader.hashed(numbers[i])
  return out


class Text(NamedTuple):
  """Strings that lie somewhere in the bytes that were read."""

  data: np.ndarray  # [bytes] uint8, UTF-8
  starts: np.ndarray  # [n] int
  stops: np.ndarray  # [n] int

  @classmethod
  def of(cls, strings: Any) -> 'Text':
    """Those of an Arrow array without nulls, which is not copied."""
    import pyarrow as pa

    kind = np.int64 if pa.types.is_large_string(strings.type) else np.int32
    _, offsets, data = strings.buffers()
    first, num = strings.offset, len(strings)
    places = np.zeros(1, kind)
    if num:
      places = np.frombuffer(offsets, kind)[first : first + num + 1]
    bytes_ = np.zeros(1, np.uint8)
    if data and data.size:
      bytes_ = np.frombuffer(data, np.uint8)
    return cls(bytes_, places[:-1], places[1:])

  def hashes(self) -> np.ndarray:
    """[n] uint64."""
    out = np.empty(len(self.starts), np.uint64)
    _hashes(*self, out)
    return out

  def strings(self, rows: Any = slice(None)) -> Any:
    """An Arrow array of all, or of some."""
    import pyarrow as pa

    starts, stops = self.starts[rows], self.stops[rows]
    offsets = np.zeros(len(starts) + 1, np.int64)
    out = np.empty(int(np.sum(stops - starts)), np.uint8)
    _gather(self.data, starts, stops, offsets, out)
    buffers = map(pa.py_buffer, (offsets, out))
    return pa.LargeStringArray.from_buffers(len(starts), *buffers)


class Keys:
  """Numbers 0, 1, ... of different hashes, in order of their coming."""

  def __init__(self, known: Sequence[int] | np.ndarray = ()):
    """Begins with different hashes [n] uint64."""
    self.num = 0
    self._resize(max(_FIRST_SLOTS, 4 * len(known)))
    self.add(np.array(known, np.uint64))

  def _resize(self, size):
    slots = np.zeros(1 << int(size - 1).bit_length(), np.uint64)
    values = np.zeros(len(slots), np.int32)
    if self.num:
      _refill(slots, values, self._slots, self._values)
    self._slots, self._values = slots, values

  def add(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids [n] int32 of hashes [n], and the places of those that are new."""
    out, new, done = np.zeros(len(keys), np.int32), [], 0
    while done < len(keys):
      first, places = self.num, np.zeros(len(keys) - done, np.int64)
      args = self._slots, self._values, keys[done:], out[done:]
      num_done, self.num = _add(*args, first, places)
      new.append(done + places[: self.num - first])
      done += num_done
      if done < len(keys):
        self._resize(2 * len(self._slots))
    return out, np.concatenate(new) if new else np.zeros(0, np.int64)

  def find(self, keys: np.ndarray, missing: int) -> np.ndarray:
    """Ids [n] int32 of hashes, `missing` of those that are not known."""
    out = np.zeros(len(keys), np.int32)
    _find(self._slots, self._values, keys, out, missing)
    return out

  def hashes(self) -> np.ndarray:
    """[ids] uint64, the hash of each."""
    used, out = self._slots != EMPTY, np.zeros(self.num, np.uint64)
    out[self._values[used]] = self._slots[used]
    return out
