"""Runs jaxemb with updates that come as late as on a machine of many cores.

  python experiments/late_updates.py FOLDER THREADS -m jaxemb.main FLAGS

The kernel is the right one, with as many threads, but a chunk is computed from
copies of its rows and then, before it changes any, waits until THREADS - 1
others have been: what it learns from lacks the updates of exactly so many
chunks, of all that are under way. A call of XLA begins with none under way, and
at its end threads leave one by one, as on such a machine. What is not there:
changes that are lost because two cores make them at the same moment, and what
cores wait for each other's memory.

FOLDER has the compiled kernel, apart from the right one, and gets seen.json:
how many updates the chunks lacked, but for those where a call begins and ends.
For models with negative sampling, on Linux.
"""

import json
import os
import pathlib
import runpy
import sys
import types as python_types

import numba
import numpy as np
from numba import types

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import ahead, rows, turns
from jaxemb.runtime import resources

_PLACE = ffi.MOST_FUNCTIONS - 1  # in the table of addresses of functions
_LINE = 64  # bytes
_WORDS = (
  'threads',
  'live',  # threads that have not left the call
  'turns',  # the address of the board of the call
  # Chunks of the call that were computed, that may be written, and half of
  # those that were.
  'computed', 'free', 'half_written',
  # Of all calls: chunks that all threads were there for, how many updates they
  # missed, the fewest and the most.
  'seen', 'missed', 'fewest', 'most',
)  # fmt: skip
(
  _THREADS, _LIVE, _TURNS, _COMPUTED, _FREE, _HALVES, _SEEN, _MISSED, _FEWEST,
  _MOST,
) = range(0, 8 * len(_WORDS), 8)  # fmt: skip
# Then come semaphores: one that lets a thread at the board, and those that
# chunks wait for, each of which another chunk has when the one before is free.
_LOCK = 2 * _LINE
_CHUNKS = 3 * _LINE

_start = types.ExternalFunction(
  'sem_init', types.int32(types.uintp, types.int32, types.uint32)
)
_post = types.ExternalFunction('sem_post', types.int32(types.uintp))
_wait = types.ExternalFunction('sem_wait', types.int32(types.uintp))


@numba.njit(**ffi.JIT)
def _of_chunk(board, number):
  threads = ffi.get(board, _THREADS, np.intp)
  return board + np.uintp(_CHUNKS + _LINE * (number % threads))


@numba.njit(**ffi.JIT)
def _free_one(board):
  """Lets the first that waits go on, if all threads wait."""
  free = ffi.get(board, _FREE, np.intp)
  computed = ffi.get(board, _COMPUTED, np.intp)
  if computed - free >= max(1, ffi.get(board, _LIVE, np.intp)):
    ffi.put(board, _FREE, free + 1, np.intp)
    _post(_of_chunk(board, free))


_share, _take = turns.share, turns._take
_slopes, _descend = rows.slopes, rows.descend


@numba.njit(**ffi.JIT)
def _share_late(frame, kernel, task, num_chunks, scratch):
  board = ffi.address(_PLACE)
  threads = ffi.get(board, _THREADS, np.intp)
  # All of them get a turn, because who has one waits for the others.
  num_turns = -(-num_chunks // turns.turn_size(num_chunks, threads))
  ffi.put(board, _LIVE, min(threads, num_turns), np.intp)
  ffi.put(board, _TURNS, 0, np.uintp)
  ffi.put(board, _COMPUTED, 0, np.intp)
  ffi.put(board, _FREE, 0, np.intp)
  ffi.put(board, _HALVES, 0, np.intp)
  _start(board + np.uintp(_LOCK), 0, 1)
  for number in range(threads):
    _start(_of_chunk(board, number), 0, 0)
  return _share(frame, kernel, task, num_chunks, scratch)


@numba.njit(**ffi.JIT)
def _take_late(call):
  """Takes a turn, or tells that a thread leaves."""
  first, stop = _take(call)
  board = ffi.address(_PLACE)
  _wait(board + np.uintp(_LOCK))
  if first < stop:
    ffi.put(board, _TURNS, call, np.uintp)
  elif ffi.get(board, _TURNS, np.uintp) == call:  # not of an earlier call
    ffi.add(board, _LIVE, -1)
    _free_one(board)
  _post(board + np.uintp(_LOCK))
  return first, stop


@numba.njit(**rows.JIT)
def _slopes_late(scores, weights):
  """Waits, once a chunk, between what it read and what it will write."""
  _slopes(scores, weights)
  board = ffi.address(_PLACE)
  _wait(board + np.uintp(_LOCK))
  number = ffi.add(board, _COMPUTED, 1)
  threads = ffi.get(board, _THREADS, np.intp)
  if number >= threads - 1 and ffi.get(board, _LIVE, np.intp) == threads:
    missed = number - ffi.get(board, _HALVES, np.intp) // 2
    ffi.add(board, _SEEN, 1)
    ffi.add(board, _MISSED, missed)
    fewest = ffi.get(board, _FEWEST, np.intp)
    ffi.put(board, _FEWEST, min(fewest, missed), np.intp)
    most = ffi.get(board, _MOST, np.intp)
    ffi.put(board, _MOST, max(most, missed), np.intp)
  _free_one(board)
  _post(board + np.uintp(_LOCK))
  _wait(_of_chunk(board, number))


@numba.njit(**rows.JIT)
def _descend_late(table, chunk, ids, number):
  _descend(table, chunk, ids, number)
  ffi.add(ffi.address(_PLACE), _HALVES, 1)


def _patch(num_threads: int) -> np.ndarray:
  """Makes updates late; returns the board, int64."""
  room = np.zeros(_CHUNKS + _LINE * (num_threads + 1), np.uint8)
  start = -room.ctypes.data % _LINE
  board = room[start : start + 8 * len(_WORDS)].view(np.int64)
  board[_WORDS.index('threads')] = num_threads
  board[_WORDS.index('fewest')] = np.iinfo(np.int64).max
  ffi.publish(_PLACE, python_types.SimpleNamespace(address=board.ctypes.data))
  turns.share, turns._take = _share_late, _take_late
  rows.slopes, rows.descend = _slopes_late, _descend_late
  rows.find = rows.gather  # copies, which nothing changes meanwhile
  # This process compiles what is patched.
  ahead.compiling = lambda *_, **__: None
  # Those that wait take threads of XLA away.
  os.environ['NPROC'] = str(num_threads + resources.usable_cores())
  return board


if __name__ == '__main__':
  _, folder, threads, _, module, *sys.argv[1:] = sys.argv
  numba.config.CACHE_DIR = folder
  board = _patch(int(threads))
  try:
    runpy.run_module(module, run_name='__main__', alter_sys=True)
  finally:
    seen = dict(zip(_WORDS, board.tolist(), strict=True))
    mean = seen['missed'] / max(1, seen['seen'])
    seen = {k: seen[k] for k in ('threads', 'fewest', 'most')} | {'mean': mean}
    pathlib.Path(folder, 'seen.json').write_text(json.dumps(seen))
