"""Launches by a fake of the driver's, for a CPU, whose streams are none."""

import ctypes
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.kernels.gpu import launch

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 11)
_DIGEST, _KERNEL = (1 << 62) + 12345, 4321
_ERROR = 701
_FLOATS = ctypes.POINTER(ctypes.c_float)


def _fake(calls, kernel, *numbers):
  """A kernel (numbers [3], more [2], sums [3]) that adds numbers to sums."""
  *numbers, _, places, _ = numbers
  pointers = ctypes.cast(places, ctypes.POINTER(ctypes.POINTER(_FLOATS)))
  arrays = [ctypes.cast(pointers[i][0], _FLOATS) for i in range(5)]
  addresses = [ctypes.addressof(x.contents) for x in arrays]
  calls.append((kernel, *numbers))
  assert addresses[2] == addresses[3]  # in place
  for i in range(3):
    arrays[3][i] += arrays[0][i]
  for i in range(2):
    arrays[4][i] = 10 * arrays[1][i]
  return _ERROR if numbers[0] == 3 else 0


@pytest.fixture(name='calls')
def _calls():
  """What is launched, once a kernel is loaded."""
  calls = []
  fake = _LAUNCH(functools.partial(_fake, calls))
  launch.register('cpu')
  launch.put(_DIGEST, _KERNEL, ctypes.cast(fake, ctypes.c_void_p).value)
  yield calls


def _add(launched):
  numbers, more, sums = jnp.arange(3.0), jnp.float32([4, 5]), jnp.ones(3)

  def program(numbers, more, sums):
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (sums, more)]
    return launch.call(launched, [numbers, more, sums], shapes, aliases={2: 0})

  return jax.jit(program, donate_argnums=2)(numbers, more, sums)


def test_a_kernel_gets_arguments_and_results_in_place(calls):
  launched = launch.Launch(_DIGEST, 5, threads=128, shared_bytes=51_072)
  sums, tens = _add(launched)
  np.testing.assert_array_equal(sums, [1, 2, 3])
  np.testing.assert_array_equal(tens, [40, 50])
  assert calls == [(_KERNEL, 5, 1, 1, 128, 1, 1, 51_072)]


@pytest.mark.parametrize(
  ('blocks', 'digest', 'message'),
  [
    (3, _DIGEST, f'cuLaunchKernel: CUDA error {_ERROR}'),
    (5, 7, 'a kernel is not loaded'),
  ],
)
def test_a_launch_that_fails_raises(blocks, digest, message, calls):
  launched = launch.Launch(digest, blocks, threads=128, shared_bytes=0)
  with pytest.raises(jax.errors.JaxRuntimeError, match=message):
    jax.block_until_ready(_add(launched))


def test_a_kernel_that_is_loaded_again_takes_the_place_of_the_first(calls):
  launcher = launch._words[launch._LAUNCH]
  launch.put(_DIGEST, 99, launcher)
  _add(launch.Launch(_DIGEST, 5, threads=32, shared_bytes=0))
  assert calls[0][0] == 99


def test_a_program_holds_no_address_of_the_process():
  """It is kept on disk for other processes."""
  launched = launch.Launch(_DIGEST, 5, threads=128, shared_bytes=0)
  shape = jax.ShapeDtypeStruct((3,), jnp.float32)
  text = (
    jax.jit(lambda x: launch.call(launched, [x], [shape], aliases={0: 0}))
    .lower(shape)
    .as_text()
  )
  numbers = f'{_DIGEST}, 5, 128, 0'
  assert f'launch = dense<[{numbers}]>' in text or f': {numbers}>' in text
  for address in (launch._words[launch._LAUNCH], launch._words[1]):
    assert str(address) not in text
