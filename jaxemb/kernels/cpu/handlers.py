"""Kernels by name: compiled as C functions, which call each other by number.

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

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import (
  ahead,
  descent,
  edge_losses,
  negative_sampling,
  packing,
  paragraphs,
  row_updates,
  rows,
  trees,
  turns,
)
from jaxemb.ops import hashing

_DTYPES = {'float32': np.float32, 'bfloat16': np.uint16}
_SUMS = {'fastmath': rows.JIT['fastmath']}
# By name: signature, function and options.
_FUNCTIONS = {
  'task': (turns.TASK, turns.work, {}),
  'handler': (ffi.SIGNATURE, turns.handle, {}),
  'subsample-int32': (turns.KERNEL, packing.subsample, {}),
  'pack-int32': (turns.KERNEL, packing.pack, {}),
  'group-int32': (turns.KERNEL, row_updates.group, {}),
  'softmax_edges-float32': (turns.KERNEL, edge_losses.softmax, {}),
  'dbow-float32': (turns.KERNEL, paragraphs.dbow, {}),
  'dm-float32': (turns.KERNEL, paragraphs.dm, {}),
  'adagrad-float32': (turns.KERNEL, row_updates.adagrad, _SUMS),
  'adagrad_full-float32': (turns.KERNEL, row_updates.adagrad_full, _SUMS),
  'adam_full-float32': (turns.KERNEL, row_updates.adam_full, _SUMS),
}
for _dtype, _kind in _DTYPES.items():
  for _make in (
    negative_sampling.skipgram,
    negative_sampling.cbow,
    negative_sampling.skipgram_subwords,
    negative_sampling.cbow_subwords,
    trees.hierarchical,
  ):
    _FUNCTIONS[f'{_make.__name__}-{_dtype}'] = turns.KERNEL, _make(_kind), {}
  _change = descent.descent(_kind)
  _FUNCTIONS[f'descent-{_dtype}'] = descent.SIGNATURE, _change, _SUMS


def _named(name):
  """Returns the form and the function of a name, as numba's cache has it."""
  form, function, _ = _FUNCTIONS[name]
  # numba looks at the time of one source.
  function.__qualname__ = f'{name}-{ahead.source()[:16]}'
  return form, function


@functools.cache
def compiled(name: str) -> ccallback.CFunc:
  """Returns one of `_FUNCTIONS` with an address, compiled if it was not."""
  form, function = _named(name)
  # What is inlined has the options of what it is inlined in.
  options = {'_nrt': False, 'error_model': 'numpy', **_FUNCTIONS[name][2]}
  compiled = numba.cfunc(form, cache=True, **options)(function)
  ffi.publish(number(name), compiled)
  return compiled


def _is_cached(name):
  form, function = _named(name)
  try:
    context = ccallback.CFunc._targetdescr.target_context
    return caching.FunctionCache(function).load_overload(form, context)
  except (AttributeError, TypeError):  # of another numba, where these differ
    return True


def number(name: str) -> int:
  """Returns the number of one of `_FUNCTIONS`."""
  return list(_FUNCTIONS).index(name)


def load(name: str) -> int:
  """Compiles one of `_FUNCTIONS`, if it was not; returns its number.

  Another process compiles it. One that did so itself would call other copies of
  its functions than those that come from the cache, which round otherwise: a
  first run would have other bits than those after it.
  """
  if not _is_cached(name):
    with contextlib.suppress(OSError):
      ahead.compile(name).wait()
  compiled(name)
  return number(name)


def compile_batches() -> None:
  """Compiles what makes batches of the blocks of a text."""
  compiled('subsample-int32')
  compiled('pack-int32')
  # What chooses blocks, which the run would compile in twice the time.
  hashing.order(0, 1, size=1, key=hashing.part_key(0, 0, 0))


if __name__ == '__main__':
  from jaxemb.kernels.cpu import linking  # it goes by what is inside numba

  linking.hurry()
  mark, *names = sys.argv[1:]
  # All kernels need the first two.
  for name in 'task', 'handler', *names:
    compiled(name)
  if mark:
    pathlib.Path(mark).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(mark).touch()
  linking.leave()
