"""What row kernels share: bits, whatever the threads, and equal ids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.kernels.cpu import turns
from tests import marking
from tests.tables import laying

KEY = np.zeros(2, np.uint32)


@pytest.mark.parametrize(
  'optimizer', marking.slow_after(0, ['adagrad', 'adam_full'])
)
def test_any_number_of_threads_gives_the_same_bits(optimizer):
  rng, num, found = np.random.default_rng(1), 30_000, []
  # Some ids are padding, most come many times, others never.
  ids = np.minimum(rng.zipf(1.2, num), laying.VOCAB + 2).astype(np.int32)
  grads = rng.normal(size=(num, laying.DIM)).astype(np.float32)
  for device in ('cpu1', 'cpu2', 'cpu5'):
    laid = laying.lay(f'replicated@{device}', (1, 1), optimizer, decay=0.1)
    state = laid.init(jax.random.key(0))
    for rate in np.float32([0.1, 0.2]):
      _, state = laid.step(state, ids, grads, rate, KEY)
    found.append(state)
  for state in found[1:]:
    jax.tree.map(np.testing.assert_array_equal, found[0], state)


def test_tables_with_the_same_ids_find_equal_ones_once():
  table = laying.lay('replicated@cpu2', (1, 1), 'adagrad_full').table
  states = 2 * [table.init(jax.random.key(0))]
  ids, grads = jnp.arange(40) % 7, jnp.ones((40, laying.DIM))

  @jax.jit
  def update(states, ids, grads):
    step = laying.spec_lib.Step(0.1)
    return [
      table.update(state, ids, scale * grads, None, step)
      for state, scale in zip(states, (1, 2), strict=True)
    ]

  text = update.lower(states, ids, grads).compile().as_text()
  assert text.count(f'custom_call_target="{turns.TARGET}"') == 3
