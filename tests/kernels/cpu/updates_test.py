"""Rows that a kernel updates are those that XLA updates."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.kernels.cpu import handlers, updates
from jaxemb.tables import replicated, row_optimizers, spec
from tests import marking

VOCAB, DIM = 37, 5
SETTINGS = {'epsilon': 1e-3, 'beta1': 0.8, 'beta2': 0.95}
OPTIMIZERS = {
  'adagrad': row_optimizers.adagrad(1e-3),
  'adagrad_full': row_optimizers.adagrad_full(1e-3),
  'adam_full': row_optimizers.adam_full(0.8, 0.95, 1e-3),
}


class Step(NamedTuple):
  """What tables take of a step."""

  learning_rate: jax.Array
  key: None = None


def _train(optimizer, decay, num_threads=0, lookups=(400,)):
  """A table's state after some steps; with no threads, by XLA."""
  kernel = None
  if num_threads:
    kernel = updates.make({'name': optimizer, **SETTINGS}, num_threads)
  table = replicated.Replicated(
    spec.TableSpec('x', VOCAB, DIM, 0.1),
    OPTIMIZERS[optimizer]._replace(decay=decay),
    row_kernel=kernel,
  )
  state, update = table.init(jax.random.key(0)), jax.jit(table.update)
  rng, step = np.random.default_rng(1), Step(jnp.float32(0.1))
  for _ in range(4):
    # Some ids are padding, most come many times, others never.
    ids = np.minimum(rng.zipf(1.2, lookups), VOCAB + 2).astype(np.int32)
    grads = rng.normal(size=(*lookups, DIM)).astype(np.float32)
    state = update(state, jnp.asarray(ids), jnp.asarray(grads), None, step)
  return state.vectors, state.opt_state


@pytest.mark.parametrize('decay', [0.0, 0.3])
@pytest.mark.parametrize('optimizer', marking.slow_after(1, OPTIMIZERS))
@pytest.mark.parametrize('num_threads', [3, marking.slow(1)])
def test_rows_are_those_of_xla(optimizer, decay, num_threads):
  expected = _train(optimizer, decay)
  found = _train(optimizer, decay, num_threads)
  for x, y in zip(
    jax.tree.leaves(expected), jax.tree.leaves(found), strict=True
  ):
    np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize('optimizer', marking.slow_after(1, OPTIMIZERS))
def test_any_number_of_threads_gives_the_same_bits(optimizer):
  expected = _train(optimizer, 0.1, 1, (30_000,))
  for num_threads in (2, 5):
    found = _train(optimizer, 0.1, num_threads, (30_000,))
    for x, y in zip(
      jax.tree.leaves(expected), jax.tree.leaves(found), strict=True
    ):
      np.testing.assert_array_equal(x, y)


def test_tables_with_the_same_ids_find_equal_ones_once():
  kernel = updates.make({'name': 'adagrad_full', **SETTINGS}, 2)
  make = functools.partial(replicated.Replicated, row_kernel=kernel)
  wide = make(spec.TableSpec('x', VOCAB, DIM, 0.1), OPTIMIZERS['adagrad_full'])
  thin = make(spec.TableSpec('y', VOCAB, 1, 0.1), OPTIMIZERS['adagrad_full'])
  tables = wide, thin
  states = [table.init(jax.random.key(0)) for table in tables]
  step = Step(jnp.float32(0.1))

  @jax.jit
  def update(states, ids, grads):
    return [
      table.update(state, ids, grads[:, : table.spec.dim], None, step)
      for table, state in zip(tables, states, strict=True)
    ]

  ids, grads = jnp.arange(40) % 7, jnp.ones((40, DIM))
  text = update.lower(states, ids, grads).compile().as_text()
  assert text.count(f'custom_call_target="{handlers.GROUPS}"') == 1
  assert text.count(f'custom_call_target="{handlers.UPDATES}"') == 2
