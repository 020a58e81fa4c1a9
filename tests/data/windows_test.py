"""Which device takes which centers of a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.data import base, windows

WINDOW, CHUNK, MAX_STEPS = 2, 4, 3


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
