"""Clocks of rows, and how stale copies of them may be.

The clock of a row is the number of updates that were pushed to it, on top of an
epoch that grows when its shard comes back from an older snapshot.
"""

import math
from typing import NamedTuple

import numba
import numpy as np

NEVER = -1  # the clock of a row that was not read so far
EPOCH = 1 << 40  # more than all updates of a row


def num_updates(clocks: np.ndarray) -> np.ndarray:
  """[n] int64, updates that clocks [n] count; of `NEVER`, none."""
  return np.maximum(clocks, 0) % EPOCH


@numba.njit(nogil=True, cache=True)
def updates_of(clock: int) -> int:
  """`num_updates` of one clock, in kernels."""
  return max(clock, 0) % EPOCH


class Rule(NamedTuple):
  """How stale copies may be, and what becomes of updates of stale ones."""

  # Updates that a copy may lack, at most; -1 = it is always read and pushed.
  bound: int
  # And no more than one in so many of those that its row has had: while a row
  # has few, each changes it much. 0 = the bound alone.
  share: int = 0
  # Of updates of a copy that lacked m updates exp(-m / memory) is added to the
  # first `num_weighted` numbers: in a quadratic bowl, one after the other, they
  # would have come as far. 0 = all of it.
  memory: float = 0.0
  num_weighted: int = 0


@numba.njit(nogil=True, cache=True)
def bound_of(updates: int, bound: int, share: int) -> int:
  """Returns how many updates a copy of a row that had so many may lack."""
  return min(bound, updates // share) if share else bound


@numba.njit(nogil=True, cache=True)
def push_bound(clock: int, bound: int, share: int) -> int:
  """Returns how many updates a copy with a clock may keep unpushed."""
  return max(0, bound_of(updates_of(clock), bound, share))


@numba.njit(nogil=True, cache=True)
def weight_of(updates: int, clock: int, memory: float) -> float:
  """Returns the part of a push that is added; see `Rule`.

  To a row that has had so many updates, of a copy with a clock.
  """
  # Of other epochs as far as is known.
  missed = max(0, updates - updates_of(clock))
  return math.exp(-missed / memory)
