"""Numbers strings by a hash table over Arrow's buffers, for numba.

A string is known by 64 bits of its hash (of 33 million different ones two are
taken for one with a probability of 3e-5). Without this a log's categories, 26
in a row, would become Python objects.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.ops import hashing

_FIRST_SLOTS = 1 << 12
_MAX_KEYS = 2**31 - 2
# As spreadsheets and C++ write large numbers by default.
_ROUNDED = re.compile(r'-?\d\.?(\d{0,5}E|\d{5}e)\+(\d\d)')
_LARGE_SLOTS = 1 << 20
_BLOCK = 32  # keys whose slots are loaded at once
EMPTY = np.uint64(0)  # no key: hashes are made odd
# Longest strings with such a first byte that may have another name, or none.
_LONGEST = np.zeros(256, np.int64)
_LONGEST[[*b'#<FNTn']] = 5
_LONGEST[[*range(33), 0xC2]] = 1 << 40  # white space, a no-break space
_FLAGS = tuple(np.frombuffer(x, np.uint8) for x in (b'true', b'false'))
_JIT = {'nogil': True, 'cache': True}


@numba.njit(**_JIT)
def _hash(data, start, stop):
  """uint64 of bytes, odd."""
  state = np.uint64(stop - start)
  while start + 8 <= stop:
    word = np.uint64(0)
    for i in range(8):  # one load
      word |= np.uint64(data[start + i]) << np.uint64(8 * i)
    state = np.uint64(hashing.hashed(state ^ word))
    start += 8
  if start < stop:
    word = np.uint64(0)
    for i in range(stop - start):
      word |= np.uint64(data[start + i]) << np.uint64(8 * i)
    state = np.uint64(hashing.hashed(state ^ word))
  return state | np.uint64(1)


# Slots of a table are pairs, so that a key costs one miss of the cache: a hash
# and its number. A key's first slot is its hash's upper bits: a table of twice
# the size has its entries in the same order, and is filled from one end to the
# other.


@numba.njit(**_JIT)
def _slot(slots, at, key):
  mask = np.uint64(len(slots) - 1)
  while slots[at, 0] != EMPTY and slots[at, 0] != key:
    at = (at + np.uint64(1)) & mask
  return at


@numba.njit(**_JIT)
def _fetch(slots, shift, keys):
  """Loads the first slots of keys into the cache, without waiting for any."""
  loaded = np.uint64(0)
  for key in keys:
    loaded |= slots[key >> shift, 0]
  return loaded


@numba.njit(**_JIT)
def _hashes(data, starts, stops, out):
  for i in range(len(out)):
    out[i] = _hash(data, starts[i], stops[i])


@numba.njit(**_JIT)
def _may_differ(data, starts, stops):
  """Whether a string may not be its own name, as `_tidy` makes it.

  Or may stand for a missing value. Hardly any does, and looking takes a third
  of hashing.
  """
  for i in range(len(starts)):
    start, stop = starts[i], stops[i]
    if start == stop:
      continue
    last = data[stop - 1]
    if last == 48 and stop >= start + 3:
      while data[stop - 1] == 48 and stop - 1 > start:
        stop -= 1
      if data[stop - 1] == 46 or data[stop - 1] == 58:
        return True
      stop = stops[i]
    size = stop - start
    if last <= 32 or size <= _LONGEST[data[start]]:
      return True
    if size >= 3 and (data[stop - 3] == 43 or last == 160):
      return True
    if size >= 19 and data[start + 10] == 84 and data[start + 13] == 58:
      return True
  return False


@numba.njit(**_JIT)
def _is_flag(data, start, stop):
  """Whether a string is True, TRUE, False or FALSE."""
  word = _FLAGS[int(stop - start == 5)]
  if stop - start != len(word) or data[start] & 32:
    return False
  for i in range(len(word)):
    if data[start + i] | 32 != word[i]:
      return False
    if i > 1 and (data[start + i] ^ data[start + 1]) & 32:
      return False
  return True


@numba.njit(**_JIT)
def _is_clock(data, first, stop):
  """Whether a string ends in a time of day, as 23:59:59."""
  return stop >= first + 8 and data[stop - 3] == data[stop - 6] == 58


@numba.njit(**_JIT)
def _tidy(data, starts, stops, new_starts, new_stops, listed):
  """Writes ranges without white space around, and without `.0` at the end.

  That is of whole numbers and of seconds; midnight behind a date goes too.
  Lists strings that end as 1.5e+18 does and, from the end, flags such as TRUE
  and times with a T behind the date; returns how many there are of both.
  """
  num_large = num_others = 0
  for i in range(len(starts)):
    first, stop = starts[i], stops[i]
    while first < stop:
      if 9 <= data[first] <= 13 or data[first] == 32:
        first += 1
      elif data[first] == 194 and first + 1 < stop and data[first + 1] == 160:
        first += 2
      else:
        break
    while first < stop:
      if 9 <= data[stop - 1] <= 13 or data[stop - 1] == 32:
        stop -= 1
      elif data[stop - 1] == 160 and stop > first + 1 and data[stop - 2] == 194:
        stop -= 2
      else:
        break
    new_starts[i], new_stops[i] = start, stop = first, stop
    if stop < first + 3:
      continue
    if data[stop - 3] == 43 and stop > first + 4 and data[stop - 4] == 101:
      listed[num_large] = i
      num_large += 1
    is_time = stop >= first + 19 and _is_clock(data, first + 11, first + 19)
    if _is_flag(data, first, stop) or (is_time and data[first + 10] == 84):
      num_others += 1
      listed[-num_others] = i
    if data[stop - 1] != 48:
      continue
    point = stop - 1
    while point > first and data[point] == 48:
      point -= 1
    if data[point] == 46 and _is_clock(data, first, point):
      new_stops[i] = stop = point
    if stop == first + 19 and _is_clock(data, first, stop):
      is_midnight = data[first + 4] == data[first + 7] == 45
      is_midnight &= data[stop - 9] in (32, 84)
      for k in (1, 2, 4, 5, 7, 8):
        is_midnight &= data[stop - k] == 48
      new_stops[i] -= 9 * is_midnight
    first += data[first] == 45  # a minus
    if data[point] != 46 or point <= first:
      continue
    while first < point and 48 <= data[first] < 58:
      first += 1
    if first == point:
      new_stops[i] = point
      is_zero = point == start + 2 and data[point - 1] == 48
      new_starts[i] += is_zero and data[start] == 45  # -0
  return num_large, num_others


@numba.njit(**_JIT)
def _gather(data, starts, stops, offsets, out):
  n = 0
  for i in range(len(starts)):
    j, stop = starts[i], stops[i]
    while j + 8 <= stop:
      for k in range(8):  # one load and one store
        out[n + k] = data[j + k]
      j, n = j + 8, n + 8
    while j < stop:
      out[n] = data[j]
      j, n = j + 1, n + 1
    offsets[i + 1] = n


@numba.njit(**_JIT)
def _find(slots, shift, keys, out, missing):
  for start in range(0, len(keys), _BLOCK):
    block = keys[start : start + _BLOCK]
    if _fetch(slots, shift, block) == EMPTY:  # never so unless all are missing
      out[start : start + _BLOCK] = missing
      continue
    for i in range(len(block)):
      at = _slot(slots, block[i] >> shift, block[i])
      is_there = slots[at, 0] != EMPTY
      number = np.int64(slots[at, 1])
      out[start + i] = number if is_there else missing


@numba.njit(**_JIT)
def _add(slots, shift, keys, out, num, new):
  """Finds or makes ids of keys; new ones are numbered from `num` on.

  `new` gets the indices of keys that are new. Stops where the table is three
  quarters full; returns how many keys have an id, and how many ids there are.
  """
  first = num
  for start in range(0, len(keys), _BLOCK):
    block = keys[start : start + _BLOCK]
    if 4 * (num + len(block)) > 3 * len(slots):
      return start, num
    loaded = _fetch(slots, shift, block)
    for i in range(len(block)):
      at = _slot(slots, block[i] >> shift, block[i])
      if slots[at, 0] == EMPTY:
        slots[at, 0], slots[at, 1] = block[i], num
        new[num - first] = start + i
        num += 1
        loaded = block[i]
      out[start + i] = slots[at, 1]
    if loaded == EMPTY:  # cannot be; `_fetch` would be left out otherwise
      return start, num
  return len(keys), num


@numba.njit(**_JIT)
def _refill(slots, shift, old):
  for i in range(len(old)):
    if old[i, 0] != EMPTY:
      at = _slot(slots, old[i, 0] >> shift, old[i, 0])
      slots[at] = old[i]


@numba.njit(**_JIT)
def _list(slots, hashes):
  for i in range(len(slots)):
    if slots[i, 0] != EMPTY:
      hashes[slots[i, 1]] = slots[i, 0]


class Text(NamedTuple):
  """Strings as ranges of the bytes that were read."""

  data: np.ndarray  # [bytes] uint8, UTF-8
  starts: np.ndarray  # [n] int
  stops: np.ndarray  # [n] int

  @classmethod
  def of(cls, strings: Any) -> 'Text':
    """Wraps an Arrow array without nulls, without a copy."""
    import pyarrow as pa

    is_large = strings.type in (pa.large_string(), pa.large_binary())
    kind = np.int64 if is_large else np.int32
    _, offsets, data = strings.buffers()
    first, num = strings.offset, len(strings)
    ends = np.zeros(1, kind)
    if num:
      ends = np.frombuffer(offsets, kind)[first : first + num + 1]
    bytes_ = np.zeros(1, np.uint8)
    if data and data.size:
      bytes_ = np.frombuffer(data, np.uint8)
    return cls(bytes_, ends[:-1], ends[1:])

  def select(self, rows: Any) -> 'Text':
    """Returns some of the strings, by index or mask."""
    return Text(self.data, self.starts[rows], self.stops[rows])

  def are_values(self) -> bool:
    """Whether all strings are names, and none is a missing value or a flag."""
    return not _may_differ(*self)

  def names(self) -> 'Text':
    """Returns the strings without white space around, each value as one name.

    110.0 is 110, and 1.1e+18 has 19 digits: programs write the same ids so if
    one is missing. TRUE is true, and 2024-01-31 00:00:00.000 the date.
    """
    if not _may_differ(*self):
      return self
    self._refuse_rounded()
    starts, stops = np.empty_like(self.starts), np.empty_like(self.stops)
    listed = np.empty(len(stops), np.int64)
    num_large, num_others = _tidy(*self, starts, stops, listed)
    data = self.data
    if num_others:
      data, rows = data.copy(), listed[len(listed) - num_others :]
      is_time = stops[rows] - starts[rows] > 5
      data[starts[rows[is_time]] + 10] = 32
      rows = rows[~is_time]
      for i in range(5):
        positions = starts[rows] + i
        data[positions[positions < stops[rows]]] |= 32
    text = Text(data, starts, stops)
    return text._with_integers(listed[:num_large]) if num_large else text

  def _refuse_rounded(self):
    """Raises a `UserError` for integers without their last digits."""
    rows = np.flatnonzero(self.stops - self.starts >= 5)
    is_exponent = self.data[self.stops[rows] - 3] == 43  # a plus
    for text in self.strings(rows[is_exponent]).unique().to_pylist():
      number = _ROUNDED.fullmatch(text.strip())
      if number and int(number[2]) > (10 if 'E' in text else 5):
        raise errors.UserError(
          f'names such as {text} lack digits, as if a spreadsheet had rounded '
          'them, and different ones may be the same: export them as text'
        )

  def _with_integers(self, rows):
    """Returns the strings, some rows as integers if they are whole numbers."""
    import pyarrow as pa

    names = self.strings().to_pylist()
    for i in rows:
      if re.fullmatch(r'-?\d(\.\d+)?e\+\d\d', names[i]):
        number = float(names[i])
        if number.is_integer() and abs(number) < 2.0**63:
          names[i] = str(int(number))
    return Text.of(pa.array(names, pa.large_string()))

  def hashes(self) -> np.ndarray:
    """[n] uint64."""
    out = np.empty(len(self.starts), np.uint64)
    _hashes(*self, out)
    return out

  def strings(self, rows: Any = slice(None)) -> Any:
    """Returns an Arrow array; replaces what is not UTF-8."""
    import pyarrow as pa

    _, starts, stops = self.select(rows)
    offsets = np.zeros(len(starts) + 1, np.int64)
    out = np.empty(int(np.sum(stops - starts)), np.uint8)
    _gather(self.data, starts, stops, offsets=offsets, out=out)
    buffers = [*map(pa.py_buffer, (offsets, out))]
    strings = pa.LargeStringArray.from_buffers(len(starts), *buffers)
    try:
      strings.validate(full=True)
    except pa.ArrowInvalid:
      binary = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(starts), [None, *buffers]
      )
      texts = [x.decode('utf-8', 'replace') for x in binary.to_pylist()]
      strings = pa.array(texts, pa.large_string())
    return strings


class Keys:
  """Numbers different hashes 0, 1, ... in order of appearance."""

  def __init__(self, known: Sequence[int] | np.ndarray = ()):
    """Begins with different hashes [n] uint64."""
    self.num = 0
    self._resize(max(_FIRST_SLOTS, 4 * len(known)))
    self.add(np.array(known, np.uint64))

  def _resize(self, size):
    bits = int(size - 1).bit_length()
    slots, shift = np.zeros((1 << bits, 2), np.uint64), np.uint64(64 - bits)
    if self.num:
      _refill(slots, shift, self._slots)
    self._slots, self._shift = slots, shift

  def add(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids [n] int32 of hashes [n], and the indices of new ones."""
    out, new, done = np.zeros(len(keys), np.int32), [], 0
    while done < len(keys):
      first, indices = self.num, np.zeros(len(keys) - done, np.int64)
      num_done, self.num = _add(
        self._slots,
        self._shift,
        keys[done:],
        out=out[done:],
        num=first,
        new=indices,
      )
      if self.num > _MAX_KEYS:
        raise errors.UserError(
          f'there are more than {_MAX_KEYS:,} different keys, of which ids '
          'have 32 bits; give fewer data'
        )
      new.append(done + indices[: self.num - first])
      done += num_done
      if done < len(keys):
        # New memory costs more than what a sparse table of a small size takes.
        growth = 4 if len(self._slots) < _LARGE_SLOTS else 2
        self._resize(growth * len(self._slots))
    return out, np.concatenate(new) if new else np.zeros(0, np.int64)

  def find(self, keys: np.ndarray, missing: int) -> np.ndarray:
    """Returns ids [n] int32 of hashes, `missing` where there is none."""
    out = np.zeros(len(keys), np.int32)
    _find(self._slots, self._shift, keys, out=out, missing=missing)
    return out

  def hashes(self) -> np.ndarray:
    """Returns [ids] uint64, the hash of each."""
    hashes = np.empty(self.num, np.uint64)
    _list(self._slots, hashes)
    return hashes
