"""Chunks, masks and hits against loops over centers."""

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
  'unrolled': (12, 4, 10),
  'in_a_loop': (12, 4, 11),
  'widest': (8, 4, 255),
}
NUM_DRAWS = 6


def _random(shape, window):
  """Tokens of a few ids, and windows; runs are along the last axis."""
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, 4, (*shape[:-1], shape[-1] + 2 * window))
  left, right = rng.integers(0, window + 1, (2, *shape), np.uint8)
  left[..., 0], right[..., 0] = window, window
  left[..., -1] = right[..., -1] = 0
  return tokens.astype(np.int32), left, right


@jax.jit(static_argnames=('chunk', 'window'))
def _all(tokens, left, right, draws, chunk, window):
  return (
    windows.chunk_windows(tokens, chunk, window),
    windows.window_mask(left, right, chunk, window),
    windows.num_hits(tokens, left, right, draws),
  )


def test_examples_of_the_docstrings():
  assert doctest.testmod(windows).attempted
  assert not doctest.testmod(windows).failed


@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
def test_windows_masks_and_hits(sizes):
  length, chunk, window = sizes
  tokens, left, right = _random((length,), window)
  num_chunks, width = length // chunk, chunk + 2 * window
  draws = np.random.default_rng(1).integers(0, 4, (num_chunks, NUM_DRAWS))
  found = _all(tokens, left, right, draws.astype(np.int32), chunk, window)
  words = np.zeros((num_chunks, width))
  mask = np.zeros((num_chunks, chunk, width))
  hits = np.zeros((num_chunks, chunk, NUM_DRAWS))
  for k in range(num_chunks):
    words[k] = tokens[k * chunk : k * chunk + width]
    for c in range(chunk):
      around = oracle.contexts(k * chunk + c, left, right)
      contexts = [tokens[window + k * chunk + c + o] for o in around]
      mask[k, c, [window + c + o for o in around]] = 1
      hits[k, c] = [contexts.count(draw) for draw in draws[k]]
  for x, y in zip(found, (words, mask, hits), strict=True):
    np.testing.assert_array_equal(x, y)
  assert [x.dtype for x in found] == [jnp.int32, jnp.float32, jnp.float32]


@pytest.mark.parametrize('window', [2, 11])
def test_runs_are_read_one_after_the_other(window):
  # Each by itself: no chunk sees beyond the halo of its own run.
  shape, chunk = (3, 2, 12), 4
  tokens, left, right = _random(shape, window)
  draws = np.random.default_rng(1).integers(0, 4, (6, 3, NUM_DRAWS))
  draws = draws.astype(np.int32)
  whole = _all(tokens, left, right, draws.reshape(-1, NUM_DRAWS), chunk, window)
  for i, run in enumerate(np.ndindex(shape[:-1])):
    alone = _all(tokens[run], left[run], right[run], draws[i], chunk, window)
    for x, y in zip(whole, alone, strict=True):
      assert len(x) == 18 and len(y) == 3
      np.testing.assert_array_equal(x[3 * i : 3 * i + 3], y)
