"""Calls of kernels by XLA, whose chunks several threads compute.

All kernels have one handler and these buffers: arguments are integers [3], the
kernel's number, chunks, and which result a failure fills with NaN (-1 = none);
what is only read; what changes. Results are [2] loss and examples, NaN if the
kernel fails; [threads, n] scratch; what has changed; what is new.

The thread that XLA calls asks XLA's pool for more of them. Each takes range
after range of chunks (a turn) by one counter, so that nobody waits for a thread
that comes late; the call ends when no chunk is left and no thread is at work. A
thread may still come after that: it reads so on the board, which the last to
leave frees.

The tables are shared without locks (Hogwild, Niu et al. 2011): of two changes
to a row at the same moment one may be lost, and a thread learns without what
the chunks would tell it that others are at. So these are not its neighbors,
which have the same subject and the same rare words: there are as many stretches
of chunks as threads, and turns are taken from each of them before the next.

A thread that the system stops in the midst of a turn has all others wait. So
where something else needs a core for long (`ffi.lend`), a thread waits between
turns, but for the one that XLA calls.
"""

import os

import numba
import numpy as np
from numba import types

from jaxemb.kernels import ffi

TARGET = 'jaxemb_chunks'  # XLA's name of the handler
TASK = types.void(types.uintp)  # the signature of `work`
TASK_NUMBER = 0  # of `work`, as of kernels (`ffi.publish`)
# Of kernels: (frame, first chunk, the one past the last, scratch, result), of
# which the last two are addresses: of a thread's scratch, and of loss and
# examples, two float64. They stay NaN if the kernel fails. A kernel that leaves
# something to do in its scratch says so by `keep_open`, and has one more turn,
# (frame, stop, stop, ..), before its thread leaves.
KERNEL = types.void(types.uintp, types.intp, types.intp, *[types.uintp] * 2)
_INTEGERS, READ = 0, 1  # arguments, of which more follow
_TOTALS, SCRATCH, RESULTS = 0, 1, 2  # results, of which more follow

_LINE = 64  # bytes of a line of the cache
# Offsets on the board, in bytes: words that threads change; others that they
# read; a request to XLA; a line for the result of each thread.
_NEXT, _ACTIVE, _REFERENCES, _JOINED = range(0, 32, 8)
_FRAME, _KERNEL, _NUM_CHUNKS, _SIZE = range(_LINE, _LINE + 32, 8)
_SCRATCH, _SCRATCH_BYTES, _STRETCHES = range(_LINE + 32, _LINE + 56, 8)
_REQUEST, _FIRST_RESULT = 2 * _LINE, 3 * _LINE
_TURNS = 64  # of each thread; in the end all wait for the longest one
_MIN_CHUNKS = 4  # of a turn, of which only the first is not fetched ahead
_SPINS = 1000  # before a thread that waits lets others run
# Then, before it naps: where there are more threads than cores, one that the
# system has stopped in the midst of a turn takes milliseconds.
_YIELDS = 50
_IS_OPEN = 16  # offset in a result
_MOST_LENT = 15  # cores: the task's word has that many beside a board
_NAP = 50 if os.name == 'posix' else 1  # us or ms, of a thread that waits

# Of the C library.
_allocate = types.ExternalFunction('calloc', types.uintp(*[types.uintp] * 2))
_free = types.ExternalFunction('free', types.void(types.uintp))
_let_others_run = types.ExternalFunction(
  'sched_yield' if os.name == 'posix' else 'SwitchToThread', types.int32()
)
_sleep = types.ExternalFunction(
  'usleep' if os.name == 'posix' else 'Sleep', types.int32(types.uint32)
)

_compute = ffi.calling(5)
_start = ffi.calling(1)


@numba.njit(**ffi.JIT)
def turn_size(num_chunks, num_threads):
  """Chunks of a turn."""
  if num_threads == 1:
    return num_chunks
  return max(_MIN_CHUNKS, num_chunks // (_TURNS * num_threads))


@numba.njit(**ffi.JIT)
def _num_turns(board):
  size = ffi.get(board, _SIZE, np.intp)
  num_chunks = ffi.get(board, _NUM_CHUNKS, np.intp)
  num_stretches = ffi.get(board, _STRETCHES, np.intp)
  return -(-num_chunks // (size * num_stretches)) * num_stretches


@numba.njit(**ffi.JIT)
def _take(board):
  """The first chunk of a turn, and the one past its last."""
  size = ffi.get(board, _SIZE, np.intp)
  num_chunks = ffi.get(board, _NUM_CHUNKS, np.intp)
  num_stretches = ffi.get(board, _STRETCHES, np.intp)
  num_turns = _num_turns(board)
  while True:
    turn = ffi.add(board, _NEXT, 1)
    if turn >= num_turns:
      return num_chunks, num_chunks
    start = turn % num_stretches * (num_turns // num_stretches)
    first = size * (start + turn // num_stretches)
    if first < num_chunks:  # stretches are equal, and the last ones shorter
      return first, min(first + size, num_chunks)


@numba.njit(**ffi.JIT)
def _leave(board):
  if ffi.add(board, _REFERENCES, -1) == 1:
    _free(board)


@numba.njit(**ffi.JIT)
def _begin(board, number):
  """Takes a turn once a thread's core is not lent, if there is one left."""
  while 0 < number <= np.intp(ffi.address(ffi.LENT)):
    if ffi.add(board, _NEXT, 0) >= _num_turns(board):
      break
    _sleep(np.uint32(_NAP))
  ffi.add(board, _ACTIVE, 1)  # before the turn, or the call could end meanwhile
  return _take(board)


@numba.njit(**ffi.JIT)
def report(result, loss, examples):
  """Writes what a kernel, or a thread so far, has measured."""
  ffi.put(result, 0, loss, np.float64)
  ffi.put(result, 8, examples, np.float64)


@numba.njit(**ffi.JIT)
def keep_open(result):
  """Asks for one more turn, of no chunks, after the last one of a thread."""
  ffi.put(result, _IS_OPEN, 1, np.intp)


@numba.njit(inline='always')
def _close(kernel, frame, stop, scratch, result):
  if ffi.get(result, _IS_OPEN, np.intp):
    _compute(kernel, (frame, stop, stop, scratch, result))
    ffi.put(result, _IS_OPEN, 0, np.intp)


@numba.njit(inline='always')
def scratch_stop(frame, scratch):
  """The address after the scratch of a thread, which is at an address."""
  size = ffi.matrix(frame, ffi.RESULTS, SCRATCH, np.float32).shape[1]
  return scratch + np.uintp(4 * size)


def work(data):
  """Takes turns until there are none left; what a thread does.

  `data` is a board and the number of the thread beside it.
  """
  helper = np.intp(data & np.uintp(_MOST_LENT))
  board = data - np.uintp(helper)
  first, stop = _begin(board, helper)
  if first < stop:
    number = ffi.add(board, _JOINED, 1)
    result = board + np.uintp(_FIRST_RESULT + _LINE * number)
    size_bytes = ffi.get(board, _SCRATCH_BYTES, np.uintp)
    scratch = ffi.get(board, _SCRATCH, np.uintp)
    scratch += np.uintp(number) * size_bytes
    ffi.clear(scratch, size_bytes)
    kernel = ffi.get(board, _KERNEL, np.uintp)
    frame = ffi.get(board, _FRAME, np.uintp)
    loss = examples = 0.0
    while first < stop:
      report(result, np.nan, np.nan)
      _compute(kernel, (frame, first, stop, scratch, result))
      loss += ffi.get(result, 0, np.float64)
      examples += ffi.get(result, 8, np.float64)
      if 0 < helper <= np.intp(ffi.address(ffi.LENT)):
        # The call may end meanwhile.
        _close(kernel, frame, stop, scratch, result)
        report(result, loss, examples)
        ffi.add(board, _ACTIVE, -1)
        first, stop = _begin(board, helper)
      else:
        first, stop = _take(board)
    _close(kernel, frame, stop, scratch, result)
    report(result, loss, examples)
  ffi.add(board, _ACTIVE, -1)
  _leave(board)


@numba.njit(**ffi.JIT)
def share(frame, kernel, task, num_chunks, scratch):
  """Has all chunks of a call computed, by several threads.

  `kernel` and `task` are the addresses of C functions, a kernel's and `work`;
  `scratch` [threads, n] float32 has a row for each thread, of zeros at first.
  Returns the sums of loss and examples.
  """
  num_threads, size = scratch.shape
  board = _allocate(_FIRST_RESULT + _LINE * num_threads, 1)
  if not board:
    return np.nan, np.nan
  ffi.put(board, _REFERENCES, num_threads + 1, np.intp)
  ffi.put(board, _FRAME, frame, np.uintp)
  ffi.put(board, _KERNEL, kernel, np.uintp)
  ffi.put(board, _NUM_CHUNKS, num_chunks, np.intp)
  ffi.put(board, _SIZE, turn_size(num_chunks, num_threads), np.intp)
  ffi.put(board, _STRETCHES, num_threads, np.intp)
  ffi.put(board, _SCRATCH, scratch.ctypes.data, np.uintp)
  ffi.put(board, _SCRATCH_BYTES, 4 * size, np.uintp)
  for number in range(1, num_threads):
    data = board + np.uintp(min(number, _MOST_LENT))
    if not ffi.schedule(frame, task, data, board + np.uintp(_REQUEST)):
      _leave(board)
  _start(task, (board,))
  spins = 0
  while ffi.add(board, _ACTIVE, 0):
    spins += 1
    if spins > _SPINS + _YIELDS:
      _sleep(np.uint32(_NAP))
    elif spins > _SPINS:
      _let_others_run()
  loss = examples = 0.0
  for number in range(ffi.add(board, _JOINED, 0)):
    result = board + np.uintp(_FIRST_RESULT + _LINE * number)
    loss += ffi.get(result, 0, np.float64)
    examples += ffi.get(result, 8, np.float64)
  _leave(board)
  return loss, examples


def handle(frame):
  """Has a kernel compute all chunks of a call."""
  if ffi.is_call(frame):
    integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
    totals = ffi.vector(frame, ffi.RESULTS, _TOTALS, np.float32)
    scratch = ffi.matrix(frame, ffi.RESULTS, SCRATCH, np.float32)
    kernel, task = ffi.address(np.intp(integers[0])), ffi.address(TASK_NUMBER)
    loss = examples = np.nan  # signals failure; handlers cannot report errors
    if kernel:
      num = np.intp(integers[1])
      loss, examples = share(frame, kernel, task, num, scratch)
    totals[0], totals[1] = loss, examples
    if np.isnan(loss) and integers[2] >= 0:
      number = RESULTS + np.intp(integers[2])
      ffi.matrix(frame, ffi.RESULTS, number, np.float32)[:] = np.nan
  return np.uintp(0)
