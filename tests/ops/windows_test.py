"""Chunks and masks against loops over centers."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.ops import windows
from tests import oracle

# (centers, chunk, window)
SIZES = {
  'plain': (24, 4, 2),
  'window_over_chunk': (12, 2, 5),
  'chunk_over_window': (32, 16, 1),
  'one_chunk': (6, 6, 3),
  'chunk_of_one': (5, 1, 4),
  'one_center': (1, 1, 1),
  'widest': (8, 4, 255),
}


def test_examples_of_the_docstrings():
  assert doctest.testmod(windows).attempted
  assert not doctest.testmod(windows).failed


@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
def test_chunk_windows(sizes):
  length, chunk, window = sizes
  tokens = np.random.default_rng(0).integers(0, 99, length + 2 * window)
  found = windows.chunk_windows(jnp.asarray(tokens, jnp.int32), chunk, window)
  assert found.shape == (length // chunk, chunk + 2 * window)
  assert found.dtype == jnp.int32
  for k in range(length // chunk):
    for j in range(chunk + 2 * window):
      assert found[k, j] == tokens[k * chunk + j]


@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
def test_window_mask(sizes):
  length, chunk, window = sizes
  rng = np.random.default_rng(1)
  left = rng.integers(0, window + 1, length).astype(np.uint8)
  right = rng.integers(0, window + 1, length).astype(np.uint8)
  left[0], right[0] = window, window
  right[-1] = left[-1] = 0
  found = jax.jit(windows.window_mask, static_argnums=(2, 3))(
    left, right, chunk, window
  )
  expected = np.zeros((length // chunk, chunk, chunk + 2 * window))
  for i in range(length):
    for offset in oracle.contexts(i, left, right):
      expected[i // chunk, i % chunk, window + i % chunk + offset] = 1
  assert found.dtype == jnp.float32
  np.testing.assert_array_equal(found, expected)


def test_mask_and_windows_meet():
  # What the mask lets through are the words around the center.
  tokens = np.arange(100, 100 + 12 + 6, dtype=np.int32)
  left = np.array([3, 0, 1, 2] * 3, np.uint8)
  right = np.array([0, 3, 2, 1] * 3, np.uint8)
  words = windows.chunk_windows(jnp.asarray(tokens), 4, 3)
  mask = windows.window_mask(left, right, 4, 3)
  for i in range(12):
    found = np.asarray(words[i // 4])[np.asarray(mask[i // 4, i % 4]) > 0]
    center = 100 + 3 + i
    expected = [
      *range(center - left[i], center),
      *range(center + 1, center + right[i] + 1),
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize('window', [1, 3, 10, 11, 30])
def test_hits_are_counted_as_in_a_loop(window):
  rng = np.random.default_rng(window)
  chunk, num_chunks, num_draws = 4, 5, 6
  length = chunk * num_chunks
  tokens = rng.integers(0, 4, length + 2 * window).astype(np.int32)
  left = rng.integers(0, window + 1, length).astype(np.uint8)
  right = rng.integers(0, window + 1, length).astype(np.uint8)
  draws = rng.integers(0, 4, (num_chunks, num_draws)).astype(np.int32)
  found = windows.num_hits(tokens, left, right, draws)
  assert found.shape == (num_chunks, chunk, num_draws)
  for i in range(length):
    contexts = [
      tokens[window + i + o]
      for o in range(-int(left[i]), int(right[i]) + 1)
      if o
    ]
    for n, draw in enumerate(draws[i // chunk]):
      assert found[i // chunk, i % chunk, n] == contexts.count(draw)


@pytest.mark.parametrize('window', [2, 11])
def test_runs_are_read_one_after_the_other(window):
  # What is made of several runs is what each of them gives by itself, and no
  # chunk sees beyond the halo of its own run.
  rng = np.random.default_rng(0)
  shape, length, chunk, num_draws = (3, 2), 12, 4, 5
  tokens = rng.integers(0, 6, (*shape, length + 2 * window)).astype(np.int32)
  left, right = rng.integers(0, window + 1, (2, *shape, length), np.uint8)
  num_chunks = length // chunk
  draws = rng.integers(0, 6, (6 * num_chunks, num_draws)).astype(np.int32)
  found = (
    windows.chunk_windows(jnp.asarray(tokens), chunk, window),
    windows.window_mask(left, right, chunk, window),
    windows.num_hits(jnp.asarray(tokens), left, right, draws),
  )
  for i, run in enumerate(np.ndindex(shape)):
    mine = slice(i * num_chunks, (i + 1) * num_chunks)
    alone = (
      windows.chunk_windows(jnp.asarray(tokens[run]), chunk, window),
      windows.window_mask(left[run], right[run], chunk, window),
      windows.num_hits(
        jnp.asarray(tokens[run]), left[run], right[run], draws[mine]
      ),
    )
    for whole, part in zip(found, alone, strict=True):
      assert len(whole) == 6 * num_chunks and len(part) == num_chunks
      np.testing.assert_array_equal(whole[mine], part)
