"""Kernels by name: compiled as C functions, which find each other by number.

XLA calls the handler, which calls the task that threads take turns in, which
calls the kernel that the call names (`turns`).

Nothing here needs JAX: a process of its own compiles a kernel into numba's
cache (`ahead`).
"""

import contextlib
import functools
import pathlib
import sys

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

_DTYPES = {'float32': np.float32, 'bfloat16': np.uint16}
_SUMS = {'fastmath': rows.JIT['fastmath']}
# By name: signature, function and options.
_PARTS = {
  'task': (turns.TASK, turns.work, {}),
  'handler': (ffi.SIGNATURE, turns.handle, {}),
  'group-int32': (turns.KERNEL, row_updates.group, {}),
  'softmax_edges-float32': (turns.KERNEL, edge_losses.softmax, {}),
  'adagrad-float32': (turns.KERNEL, row_updates.adagrad, _SUMS),
  'adagrad_full-float32': (turns.KERNEL, row_updates.adagrad_full, _SUMS),
  'adam_full-float32': (turns.KERNEL, row_updates.adam_full, _SUMS),
} | {
  f'{make.__name__}-{dtype}': (turns.KERNEL, make(kind), {})
  for make in (kernels.skipgram, kernels.cbow, kernels.hierarchical)
  for dtype, kind in _DTYPES.items()
}


def _named(part):
  """The form and the function of a part, as numba's cache names it."""
  form, function, _ = _PARTS[part]
  # numba looks at the time of one source.
  function.__qualname__ = f'{part}-{ahead.source()[:16]}'
  return form, function


@functools.cache
def compiled(part: str) -> ccallback.CFunc:
  """Returns a part of `_PARTS` with an address, compiled if it was not.

  It is a key of `_PARTS`: 'task', 'handler' or a kernel ('skipgram-float32').
  """
  form, function = _named(part)
  # What is inlined has the options of what it is inlined in.
  options = {'error_model': 'numpy', **_PARTS[part][2]}
  compiled = numba.cfunc(form, cache=True, **options)(function)
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
  # Those that any kernel needs come first: who waits for the kernel has them.
  for part in 'task', 'handler', f'{sys.argv[1]}-{sys.argv[2]}':
    compiled(part)
  for mark in map(pathlib.Path, sys.argv[3:]):
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
