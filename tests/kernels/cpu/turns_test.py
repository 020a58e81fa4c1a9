"""Threads that share a call: every chunk once, whoever comes late."""

import functools
import types

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import ahead, handlers, step, turns

# What fails in a kernel, pytest may hear of in another test.
pytestmark = pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnraisableExceptionWarning'
)

_FREE = len(handlers._FUNCTIONS)  # the first place that no kernel has
_COUNTS = turns.RESULTS


@numba.cfunc(turns.KERNEL)
def _count(frame, first, stop, scratch, found):
  """Adds 1 to the place of each chunk, slowly; scratch counts the turns."""
  counts = ffi.vector(frame, ffi.RESULTS, _COUNTS, np.float32)
  busy = 0.0
  for i in range(first, stop):
    for j in range(1000):
      busy += np.sqrt(j + busy)
    counts[i] += 1 + 0 * busy
  num_turns = ffi.get(scratch, 0, np.float32) + np.float32(1)
  ffi.put(scratch, 0, num_turns, np.float32)
  ffi.put(found, 0, stop - first, np.float64)
  ffi.put(found, 8, num_turns, np.float64)


@numba.cfunc(turns.KERNEL)
def _fail(frame, first, stop, scratch, found):
  """Fails at the chunk in the middle of 100."""
  if first <= 50 < stop:
    raise ValueError
  ffi.put(found, 0, 0.0, np.float64)
  ffi.put(found, 8, 0.0, np.float64)


@numba.cfunc(turns.KERNEL)
def _keep(frame, first, stop, scratch, found):
  """Counts chunks in scratch, and adds them to the first place at the end."""
  counts = ffi.vector(frame, ffi.RESULTS, _COUNTS, np.float32)
  if first == stop:
    ffi.add(counts.ctypes.data, 0, np.intp(ffi.get(scratch, 0, np.float64)))
  total = ffi.get(scratch, 0, np.float64) + (stop - first)
  ffi.put(scratch, 0, total, np.float64)
  turns.keep_open(found)
  turns.report(found, 0.0, 0.0)


_KERNELS = _count, _fail, _keep


@functools.cache
def _place():
  step.register()
  for number, kernel in enumerate(_KERNELS, _FREE):
    ffi.publish(number, kernel)


def _call(kernel, num_chunks, num_threads):
  """A call; returns what was counted and the totals."""
  _place()
  number = _FREE + _KERNELS.index(kernel)

  def run():
    totals, (counts,) = step.call(
      number,
      num_chunks,
      scratch=(num_threads, 4),
      changed=[jnp.zeros(num_chunks)],
    )
    return counts, totals

  return jax.jit(run)


@pytest.mark.parametrize(
  ('num_chunks', 'num_threads'), [(1, 3), (63, 50), (1000, 1), (1000, 3)]
)
def test_every_chunk_is_computed_once(num_chunks, num_threads):
  call = _call(_count, num_chunks, num_threads)
  for _ in range(20):
    counts, found = jax.device_get(call())
    assert (counts == 1).all()
    assert found[0] == num_chunks
    # Each thread has scratch of its own, in which it counts its turns.
    assert 1 <= found[1] <= sum(range(64 * 51))


def test_calls_at_the_same_time_do_not_wait_for_each_other():
  devices = jax.devices()
  call = _call(_count, 500, 4)
  made = []
  for _ in range(10):
    for device in devices[:4]:
      with jax.default_device(device):
        made.append(call())
  for counts, found in jax.device_get(made):
    assert (counts == 1).all() and found[0] == 500


@pytest.mark.parametrize('num_threads', [1, 3])
def test_threads_have_one_more_turn_for_what_they_keep(num_threads):
  counts, found = jax.device_get(_call(_keep, 1000, num_threads)())
  assert counts[:2].view(np.int64)[0] == 1000
  assert (found == 0).all()


@pytest.mark.parametrize('num_threads', [1, 3])
def test_a_kernel_that_fails_is_seen(num_threads):
  _, found = _call(_fail, 100, num_threads)()
  assert np.isnan(found).all()


def test_kernels_are_found_in_the_cache_of_numba():
  """It hashes what closures hold, which is the same for types alone."""
  for _, function, _ in handlers._FUNCTIONS.values():
    for cell in function.__closure__ or ():
      assert isinstance(cell.cell_contents, type)


def test_another_process_compiles_kernels(monkeypatch):
  """What this one compiled would round otherwise than what it finds."""
  asked = []

  def compile(*kernel):
    asked.append(kernel)
    return types.SimpleNamespace(wait=int)

  nothing = types.SimpleNamespace(load_overload=lambda *_: None)
  monkeypatch.setattr(handlers.caching, 'FunctionCache', lambda _: nothing)
  monkeypatch.setattr(ahead, 'compile', compile)
  handlers.load('group-int32')
  assert asked == [('group-int32',)]


@pytest.mark.slow
def test_that_process_imports_nothing_from_the_current_folder(
  tmp_path, monkeypatch
):
  (tmp_path / 'random.py').write_text('raise SystemExit(9)')
  monkeypatch.chdir(tmp_path)
  assert ahead.compile('group-int32', mark=tmp_path / 'mark').wait() == 0
  assert (tmp_path / 'mark').exists()
