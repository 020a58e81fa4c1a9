"""Random choices as hashes of (seed, epoch, position), compiled by numba."""

import functools

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def hashed(x):
  """splitmix64 (Steele et al. 2014), 64 bits to 64 bits."""
  x = (x + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


@numba.njit(nogil=True, cache=True)
def mix(x):
  """`ops.sampling._mix`, 32 bits; products of numba have 64 until cut."""
  x = np.uint32(x)
  x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD))
  x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97))
  return np.uint32(x ^ (x >> np.uint32(15)))


@numba.njit(nogil=True, cache=True)
def random_bits(first: int, second: int, position: int) -> np.uint32:
  """`ops.sampling.random_bits` of a key of two numbers."""
  x = np.uint32(np.uint32(position) * np.uint32(0x9E3779B9))
  return mix(mix(np.uint32(x + np.uint32(first))) ^ np.uint32(second))


@numba.njit(nogil=True, cache=True)
def fill_uniform(
  first: int,
  second: int,
  ids: np.ndarray,
  columns: np.ndarray,
  scale: np.float32,
  out: np.ndarray,
) -> None:
  """Writes `ops.sampling.uniform_rows` to [n, d] float32.

  Of a key of two numbers, ids [n] and columns [d].
  """
  other = np.uint32(0x5BD1E995)
  again, last = np.uint32(second) ^ other, np.uint32(first) ^ other
  for i in range(ids.size):
    row = random_bits(first, second, ids[i])
    crossed = random_bits(again, last, ids[i])
    for k in range(columns.size):
      column = np.uint32(np.uint32(columns[k]) * np.uint32(0x9E3779B9))
      bits = mix(mix(np.uint32(row + column)) ^ crossed)
      unit = np.float32(bits >> np.uint32(8)) * np.float32(2**-23)
      out[i, k] = scale * (unit - np.float32(1))


@numba.njit(nogil=True, cache=True)
def permuted(index: int, size: int, key: np.uint64) -> np.int64:
  """Returns where a keyed permutation of 0..size-1 sends `index`.

  A Feistel network of four rounds over the next even power of two, walked until
  it lands inside (Black and Rogaway 2002): no list of the corpus in memory.
  """
  half = np.uint64(1)
  while (np.uint64(1) << (np.uint64(2) * half)) < np.uint64(size):
    half += np.uint64(1)
  mask = (np.uint64(1) << half) - np.uint64(1)
  x = np.uint64(index)
  while True:
    left = x >> half
    right = x & mask
    for r in range(4):
      mixed = hashed(right ^ hashed(key ^ np.uint64(r))) & mask
      left, right = right, left ^ mixed
    x = (left << half) | right
    if x < np.uint64(size):
      return np.int64(x)


@numba.njit(nogil=True, cache=True)
def order(first: int, stop: int, size: int, key: np.uint64) -> np.ndarray:
  """Returns [n] int64, entries `first`.. of a permutation of 0..size-1."""
  positions = range(first, max(first, min(stop, size)))
  out = np.empty(len(positions), np.int64)  # a list takes long to compile
  for i in range(len(out)):
    out[i] = permuted(first + i, size, key)
  return out


@numba.njit(nogil=True, cache=True)
def hashed_all(numbers: np.ndarray) -> np.ndarray:
  """Returns [n] uint64, `hashed` of each of [n] uint64."""
  out = np.empty_like(numbers)
  for i in range(len(out)):
    out[i] = hashed(numbers[i])
  return out


@functools.lru_cache(1024)  # every batch asks for those of its parts
def part_key(seed: int, epoch: int, part: int) -> np.uint64:
  """Returns the key of all random choices for a part in an epoch."""
  # Compiled functions hand back Python ints, whose type numba would guess.
  inner = np.uint64(hashed(np.uint64(epoch)))
  key = np.uint64(hashed(np.uint64(seed % 2**64) ^ inner))
  return np.uint64(hashed(np.uint64(part) ^ key)) if part else key
