"""Which device takes which centers of a step."""

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
  size = MAX_STEPS * part_words
  ids = np.arange(parts * (size + 2 * WINDOW)).reshape(parts, -1)
  left = np.arange(parts * size).reshape(parts, -1)
  none = np.zeros(parts, np.int32)
  batch = windows.Batch(ids, left, -left, none, none, none)
  each = parts // data
  for step in range(MAX_STEPS):
    found = {}
    sizes = set()
    for i in range(data):
      mine = windows.Batch(*(x[each * i : each * (i + 1)] for x in batch))
      for device in range(table):
        share = base.share(each, table, each * i, device)
        part = steps.step(mine, jnp.int32(step), share, 0.0)
        assert part.chunks.dtype == jnp.uint32
        sizes.add(part.left.size)
        tokens, before, behind = (
          np.asarray(x) for x in (part.tokens, part.left, part.right)
        )
        assert tokens.shape[1] == before.shape[1] + 2 * WINDOW
        per_run = before.shape[1] // CHUNK
        for j, chunk in enumerate(part.chunks.tolist()):
          run, first = j // per_run, j % per_run * CHUNK
          assert chunk not in found
          found[chunk] = (
            tokens[run, first : first + CHUNK + 2 * WINDOW].tolist(),
            before[run, first : first + CHUNK].tolist(),
            behind[run, first : first + CHUNK].tolist(),
          )
    # All as many, and together each chunk of the step once.
    assert sizes == {parts * part_words // (data * table)}
    expected = {}
    for part in range(parts):
      for j in range(chunks_per_part):
        first = step * part_words + j * CHUNK
        chunk = (step * parts + part) * chunks_per_part + j
        expected[chunk] = (
          ids[part, first : first + CHUNK + 2 * WINDOW].tolist(),
          left[part, first : first + CHUNK].tolist(),
          (-left)[part, first : first + CHUNK].tolist(),
        )
    assert found == expected
