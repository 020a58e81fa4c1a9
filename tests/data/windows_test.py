"""Which device takes which centers of a step, and what these meet."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.data import base, windows
from tests import oracle

WINDOW, CHUNK, MAX_STEPS = 2, 4, 3
# Centers of a part, chunk and window of a step.
SIZES = {
  'plain': (24, 4, 2),
  'window_over_chunk': (12, 2, 5),
  'chunk_over_window': (32, 16, 1),
  'chunk_of_one': (5, 1, 4),
  'one_center': (1, 1, 1),
  'unrolled': (12, 4, 10),
  'in_a_loop': (12, 4, 11),
  'widest': (8, 4, 255),
}
NUM_DRAWS = 6


@pytest.mark.parametrize(
  ('parts', 'data', 'table', 'chunks_per_part'),
  [
    (1, 1, 1, 1),
    (1, 1, 2, 4),
    (4, 1, 1, 2),
    (4, 2, 1, 1),
    (4, 1, 4, 1),  # as many parts as devices
    (8, 2, 2, 1),  # two parts each
    (2, 2, 4, 4),  # a quarter of a part each
    (6, 1, 4, 2),  # three halves of parts each
    (6, 2, 2, 2),
  ],
)
def test_devices_share_the_centers_of_a_step(
  parts, data, table, chunks_per_part
):
  part_words = chunks_per_part * CHUNK
  steps = windows.Steps(part_words, parts, WINDOW, CHUNK)
  # A number for each center of the text, from which its tokens are known.
  size, firsts = MAX_STEPS * part_words, 1000 * np.arange(parts)[:, None]
  centers = firsts + np.arange(size)
  ids = firsts - WINDOW + np.arange(size + 2 * WINDOW)
  none = np.zeros(parts, np.int32)
  batch = windows.Batch(ids, centers, -centers, none, none, none)
  each = parts // data
  for step in range(MAX_STEPS):
    found = {}
    for i in range(data):
      mine = windows.Batch(*(x[each * i : each * (i + 1)] for x in batch))
      for device in range(table):
        share = base.share(each, table, each * i, device)
        part = steps.step(mine, jnp.int32(step), share, 0.0)
        part = jax.device_get(part)
        assert part.chunks.dtype == np.uint32
        # All have as many centers, and around them their tokens.
        assert part.left.size == parts * part_words // (data * table)
        np.testing.assert_array_equal(part.right, -part.left)
        tokens = part.left[:, :1] - WINDOW + np.arange(part.tokens.shape[1])
        np.testing.assert_array_equal(part.tokens, tokens)
        np.testing.assert_array_equal(tokens[:, WINDOW:-WINDOW], part.left)
        firsts = part.left.reshape(-1, CHUNK)[:, 0].tolist()
        assert not found.keys() & set(part.chunks.tolist())
        found |= dict(zip(part.chunks.tolist(), firsts, strict=True))
    # Together they have each chunk of the step once.
    assert found == {
      (step * parts + part) * chunks_per_part + j: 1000 * part
      + step * part_words
      + j * CHUNK
      for part in range(parts)
      for j in range(chunks_per_part)
    }


@functools.partial(jax.jit, static_argnums=2)
def _found(batch, draws, weights):
  return batch.windows(), batch.mask(weights), batch.hits(draws, weights)


@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
@pytest.mark.parametrize('is_weighted', [False, True])
def test_windows_masks_and_hits(sizes, is_weighted, parts=3):
  """Tokens of a few ids; no chunk sees beyond the halo of its own part."""
  length, chunk, window = sizes
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, 4, (parts, length + 2 * window)).astype(np.int32)
  left, right = rng.integers(0, window + 1, (2, parts, length), np.uint8)
  left[:, 0], right[:, 0] = window, window
  left[:, -1] = right[:, -1] = 0
  num_chunks = left.size // chunk
  draws = rng.integers(0, 4, (num_chunks, NUM_DRAWS)).astype(np.int32)
  numbers = np.zeros(num_chunks, np.uint32)
  batch = windows.StepBatch(tokens, left, right, numbers)
  assert (batch.chunk, batch.window) == (chunk, window)
  width = chunk + 2 * window
  # Sums of any of them are exact.
  weights = tuple(2.0 ** -(np.arange(window) % 8) if is_weighted else ())
  by_offset = [1.0] * (window + 1)
  by_offset[1:] = weights or by_offset[1:]
  words = np.zeros((num_chunks, width))
  mask = np.zeros((num_chunks, chunk, width))
  hits = np.zeros((num_chunks, chunk, NUM_DRAWS))
  for center, (part, i) in enumerate(np.ndindex(parts, length)):
    k, c = divmod(center, chunk)
    words[k] = tokens[part][i - c : i - c + width]
    around = oracle.contexts(i, left[part], right[part])
    contexts = [tokens[part][window + i + o] for o in around]
    each = [by_offset[abs(o)] for o in around]
    mask[k, c, [window + c + o for o in around]] = each
    hits[k, c] = [
      sum(x for word, x in zip(contexts, each, strict=True) if word == draw)
      for draw in draws[k]
    ]
  found = _found(batch, draws, weights)
  for x, y in zip(found, (words, mask, hits), strict=True):
    np.testing.assert_array_equal(x, y)
  assert [x.dtype for x in found] == [jnp.int32, jnp.float32, jnp.float32]
  np.testing.assert_array_equal(batch.num_contexts(), (mask > 0).sum(2))
  centers = words[:, window : window + chunk]
  np.testing.assert_array_equal(batch.centers(), centers)
