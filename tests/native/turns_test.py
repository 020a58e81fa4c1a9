"""Threads that share a call: every chunk once, whoever comes late."""

import functools

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

from jaxemb.native import ffi, turns


@numba.njit
def _count(frame, kind, first, stop, scratch):
  """Adds 1 to the place of each chunk, slowly; scratch counts the turns."""
  counts = ffi.vector(frame, ffi.RESULTS, 0, kind)
  busy = 0.0
  for i in range(first, stop):
    for j in range(1000):
      busy += np.sqrt(j + busy)
    counts[i] += 1 + 0 * busy
  scratch[0] += 1
  return stop - first, scratch[0]


@numba.njit
def _fail(frame, kind, first, stop, scratch):
  """Fails at the chunk in the middle of 100."""
  if first <= 50 < stop:
    raise ValueError
  return 0.0, 0.0


@functools.cache  # a name stands for one handler in a process
def _registered(kernel):
  """The name of a handler; the handler itself is kept."""
  share = turns.sharing(kernel)

  def handle(frame):
    if ffi.is_call(frame):
      counts = ffi.vector(frame, ffi.RESULTS, 0, np.float32)
      found = ffi.vector(frame, ffi.RESULTS, 1, np.float32)
      scratch = ffi.matrix(frame, ffi.RESULTS, 2, np.float32)
      counts[:] = 0
      found[0], found[1] = share(frame, np.float32, counts.size, scratch)
    return np.uintp(0)

  handler = numba.cfunc(ffi.SIGNATURE)(handle)
  name = f'jaxemb_test{kernel.py_func.__name__}'
  ffi.register(name, handler)
  return name, handler


def _call(kernel, num_chunks, num_threads):
  target, _ = _registered(kernel)
  shapes = [(num_chunks,), (2,), (num_threads, 4)]
  results = [jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes]
  return jax.jit(lambda: jax.ffi.ffi_call(target, results)())


@pytest.mark.parametrize('num_threads', [1, 2, 3, 50])
@pytest.mark.parametrize('num_chunks', [1, 2, 63, 1000])
def test_every_chunk_is_computed_once(num_chunks, num_threads):
  call = _call(_count, num_chunks, num_threads)
  for _ in range(20):
    counts, found, _ = jax.device_get(call())
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
  for counts, found, _ in jax.device_get(made):
    assert (counts == 1).all() and found[0] == 500


@pytest.mark.parametrize('num_threads', [1, 3])
def test_a_kernel_that_fails_is_seen(num_threads):
  _, found, _ = _call(_fail, 100, num_threads)()
  assert np.isnan(found).all()
