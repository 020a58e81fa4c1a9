"""Kernels as functions that XLA can call, and their compilation.

Three C functions, compiled apart: XLA calls the handler, which calls the task
that threads take turns in, which calls the kernel that the call names.

Nothing here needs JAX: a process of its own compiles a kernel into numba's
cache (`ahead`).

The buffers of a call of a whole step are `Arguments`, then ids; its results are
the arrays that change, [2] loss and examples, and [threads, n] scratch.
"""

import contextlib
import functools
import pathlib
import sys
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import caching, ccallback

from jaxemb.kernels.cpu import (
  ahead,
  edge_losses,
  ffi,
  kernels,
  row_updates,
  rows,
  turns,
)

TARGET = 'jaxemb_chunks'  # XLA's names for the handlers
GROUPS, UPDATES = 'jaxemb_row_groups', 'jaxemb_row_updates'
EDGE_LOSSES = 'jaxemb_edge_losses'


class Arguments(NamedTuple):
  """Buffers of a step, by position; ids of the kernel follow."""

  input_vectors: Any  # as the next three changed, and a result
  output_vectors: Any
  input_state: Any  # of the optimizer
  output_state: Any
  left: Any  # contexts of each center
  right: Any
  numbers: Any  # float32, `Numbers`
  integers: Any  # int32, `Integers`
  input_brakes: Any
  output_brakes: Any


class Numbers(NamedTuple):
  """The numbers of a step, by position."""

  learning_rate: Any
  parameter: Any  # max_duplicates of SGD, epsilon of Adagrad
  negatives: Any  # for each pair


class Integers(NamedTuple):
  """The integers of a step, by position."""

  rule: Any  # `rows.SGD` or `rows.ADAGRAD`
  key0: Any  # of stochastic rounding
  key1: Any
  is_stochastic: Any
  averages: Any  # of trees: whether they are of CBOW
  kernel: Any  # its number


NUM_CHANGED = 4
_TOTALS, _SCRATCH = NUM_CHANGED, NUM_CHANGED + 1  # results
_AT = Arguments(*range(len(Arguments._fields)))
_LEFT, _RIGHT, _BRAKES = _AT.left, _AT.right, _AT.input_brakes
_NUMBERS, _INTEGERS, _IDS = _AT.numbers, _AT.integers, len(_AT)
_RATE, _PARAMETER, _NEGATIVES = range(len(Numbers._fields))
_RULE, _KEY0, _KEY1, _IS_STOCHASTIC, _AVERAGES, _KERNEL = range(
  len(Integers._fields)
)
_TASK = 0  # the number of `_work`


@numba.njit(**rows.INLINE)
def _rule(frame, table):
  numbers = ffi.vector(frame, ffi.ARGUMENTS, _NUMBERS, np.float32)
  integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
  return rows.Rule(
    np.int64(integers[_RULE]),
    numbers[_RATE],
    numbers[_PARAMETER],
    np.uint32(integers[_KEY0]),
    np.uint32(integers[_KEY1]),
    integers[_IS_STOCHASTIC] != 0,
    ffi.vector(frame, ffi.ARGUMENTS, _BRAKES + table, np.float32),
  )


@numba.njit(**rows.INLINE)
def _call(frame, kind, first, stop, scratch, result):
  numbers = ffi.vector(frame, ffi.ARGUMENTS, _NUMBERS, np.float32)
  integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
  room = ffi.matrix(frame, ffi.RESULTS, _SCRATCH, np.float32)
  return kernels.Call(
    ffi.matrix(frame, ffi.RESULTS, 0, kind),
    ffi.matrix(frame, ffi.RESULTS, 1, kind),
    ffi.vector(frame, ffi.RESULTS, 2, np.float32),
    ffi.vector(frame, ffi.RESULTS, 3, np.float32),
    ffi.matrix(frame, ffi.ARGUMENTS, _LEFT, np.uint8),
    ffi.matrix(frame, ffi.ARGUMENTS, _RIGHT, np.uint8),
    numbers[_NEGATIVES],
    integers[_AVERAGES] != 0,
    _rule(frame, 0),
    _rule(frame, 1),
    np.intp(first),
    np.intp(stop),
    scratch,
    scratch + np.uintp(4 * room.shape[1]),
    result,
  )


@numba.njit(**rows.INLINE)
def _ids(frame, number):
  return ffi.matrix(frame, ffi.ARGUMENTS, _IDS + number, np.int32)


def _skipgram(kind):
  def compute(frame, first, stop, scratch, result):
    call = _call(frame, kind, first, stop, scratch, result)
    kernels.skipgram(call, _ids(frame, 0), _ids(frame, 1))

  return compute


def _cbow(kind):
  def compute(frame, first, stop, scratch, result):
    call = _call(frame, kind, first, stop, scratch, result)
    kernels.cbow(call, _ids(frame, 0), _ids(frame, 1))

  return compute


def _hierarchical(kind):
  def compute(frame, first, stop, scratch, result):
    call = _call(frame, kind, first, stop, scratch, result)
    exits = ffi.vector(frame, ffi.ARGUMENTS, _IDS + 1, np.int32)
    firsts, deep = _ids(frame, 2), _ids(frame, 3)
    kernels.hierarchical(call, _ids(frame, 0), exits, firsts, deep)

  return compute


def _work(board):
  turns.work(board)


def _handle(frame):
  if ffi.is_call(frame):
    result = ffi.vector(frame, ffi.RESULTS, _TOTALS, np.float32)
    result[:] = np.nan  # signals failure; handlers cannot report errors
    left = ffi.matrix(frame, ffi.ARGUMENTS, _LEFT, np.uint8)
    integers = ffi.vector(frame, ffi.ARGUMENTS, _INTEGERS, np.int32)
    scratch = ffi.matrix(frame, ffi.RESULTS, _SCRATCH, np.float32)
    kernel = ffi.address(np.intp(integers[_KERNEL]))
    task = ffi.address(_TASK)
    if kernel:
      num_chunks = left.shape[0]
      loss, examples = turns.share(frame, kernel, task, num_chunks, scratch)
      result[0], result[1] = loss, examples
  return np.uintp(0)


# Kernels without a loss. None is a closure of what it calls: numba's cache goes
# by a hash of closures, and that of compiled functions differs between
# processes.


def _group(frame, first, stop, scratch, result):
  row_updates.group(frame, first, stop, scratch)
  ffi.put(result, 0, 0.0, np.float64)


def _adagrad(frame, first, stop, scratch, result):
  row_updates.adagrad(frame, first, stop, scratch)
  ffi.put(result, 0, 0.0, np.float64)


def _adagrad_full(frame, first, stop, scratch, result):
  row_updates.adagrad_full(frame, first, stop, scratch)
  ffi.put(result, 0, 0.0, np.float64)


def _adam_full(frame, first, stop, scratch, result):
  row_updates.adam_full(frame, first, stop, scratch)
  ffi.put(result, 0, 0.0, np.float64)


def _softmax(frame, first, stop, scratch, result):
  edge_losses.softmax(frame, first, stop, scratch)
  ffi.put(result, 0, 0.0, np.float64)


@numba.njit(**rows.INLINE)
def _share(frame, number, num_chunks, scratch):
  """Has a kernel without a loss compute all chunks; whether it did."""
  kernel, task = ffi.address(np.intp(number)), ffi.address(_TASK)
  if not kernel:
    return False
  loss, _ = turns.share(frame, kernel, task, num_chunks, scratch)
  return not np.isnan(loss)


@numba.njit(**rows.INLINE)
def _share_classes(frame, number, scratch):
  """The same, of all classes."""
  num_chunks = row_updates.CHUNKS_PER_CLASS * scratch.shape[0]
  return _share(frame, number, num_chunks, scratch)


def _handle_groups(frame):
  if ffi.is_call(frame):
    integers = row_updates.INTEGERS
    number = ffi.vector(frame, ffi.ARGUMENTS, integers, np.int32)[0]
    room = ffi.matrix(frame, ffi.RESULTS, row_updates.ROOM, np.float32)
    if not _share_classes(frame, number, room):
      # Signals failure to the call that gets this.
      bounds = ffi.matrix(frame, ffi.RESULTS, row_updates.BOUNDS, np.int32)
      bounds[:] = -1
  return np.uintp(0)


def _handle_updates(frame):
  if ffi.is_call(frame):
    number = ffi.vector(frame, ffi.ARGUMENTS, row_updates.KERNEL, np.int32)
    groups = row_updates.GROUPS
    bounds = ffi.matrix(frame, ffi.ARGUMENTS, groups + 2, np.int32)
    scratch = ffi.matrix(frame, ffi.RESULTS, row_updates.SCRATCH, np.float32)
    if bounds[0, 0] < 0 or not _share_classes(frame, number[0], scratch):
      # Signals failure: the next loss is NaN.
      vectors = ffi.matrix(frame, ffi.RESULTS, row_updates.VECTORS, np.float32)
      vectors[:] = np.nan
  return np.uintp(0)


def _handle_edge_losses(frame):
  if ffi.is_call(frame):
    number = ffi.vector(frame, ffi.ARGUMENTS, edge_losses.KERNEL, np.int32)
    losses = ffi.matrix(frame, ffi.RESULTS, edge_losses.LOSSES, np.float32)
    losses[:] = np.nan
    scratch = ffi.matrix(frame, ffi.RESULTS, edge_losses.SCRATCH, np.float32)
    if not _share(frame, number[0], losses.shape[0], scratch):
      # Signals failure: few losses are looked at, but all rows used.
      grads = ffi.matrix(frame, ffi.RESULTS, edge_losses.GRADS, np.float32)
      grads[:] = np.nan
  return np.uintp(0)


_PARTS = {
  'task': (turns.TASK, _work),
  'handler': (ffi.SIGNATURE, _handle),
  'groups': (ffi.SIGNATURE, _handle_groups),
  'updates': (ffi.SIGNATURE, _handle_updates),
  'edge_losses': (ffi.SIGNATURE, _handle_edge_losses),
  'group-int32': (turns.KERNEL, _group),
  'softmax_edges-float32': (turns.KERNEL, _softmax),
  'adagrad-float32': (turns.KERNEL, _adagrad),
  'adagrad_full-float32': (turns.KERNEL, _adagrad_full),
  'adam_full-float32': (turns.KERNEL, _adam_full),
} | {
  f'{name}-{dtype}': (turns.KERNEL, make(kind))
  for name, make in (
    ('skipgram', _skipgram), ('cbow', _cbow), ('hierarchical', _hierarchical)
  )
  for dtype, kind in (('float32', np.float32), ('bfloat16', np.uint16))
}  # fmt: skip


def _named(part):
  """The form and the function of a part, as numba's cache names it."""
  form, function = _PARTS[part]
  # numba looks at the time of one source.
  function.__qualname__ = f'{part}-{ahead.source()[:16]}'
  return form, function


@functools.cache
def compiled(part: str) -> ccallback.CFunc:
  """Returns a part of `_PARTS` with an address, compiled if it was not.

  It is a key of `_PARTS`: 'task', a handler or a kernel ('skipgram-float32').
  """
  form, function = _named(part)
  # What is inlined has the options of what it is inlined in.
  compiled = numba.cfunc(form, cache=True, error_model='numpy')(function)
  ffi.publish(list(_PARTS).index(part), compiled)
  return compiled


def _is_cached(part):
  form, function = _named(part)
  try:
    context = ccallback.CFunc._targetdescr.target_context
    return caching.FunctionCache(function).load_overload(form, context)
  except (AttributeError, TypeError):  # of another numba, where these differ
    return True


def load(kernel: str, dtype: str) -> int:
  """Compiles a kernel for tables of a dtype, if it was not; returns its number.

  Another process compiles it. One that did so itself would call other copies of
  its functions than those that come from the cache, which round otherwise: a
  first run would have other bits than those after it.
  """
  part = f'{kernel}-{dtype}'
  if not _is_cached(part):
    with contextlib.suppress(OSError):
      ahead.compile(kernel, dtype).wait()
  compiled(part)
  return list(_PARTS).index(part)


if __name__ == '__main__':
  compiled(f'{sys.argv[1]}-{sys.argv[2]}')
  for mark in map(pathlib.Path, sys.argv[3:]):
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
