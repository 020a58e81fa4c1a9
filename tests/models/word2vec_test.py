"""Which rows skip-gram and CBOW look up (steps: `kernels.cpu.step_test`)."""

import jax
import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb.models import base, cbow, skipgram
from jaxemb.ops import sampling
from jaxemb.run import kind
from tests import dispatches
from tests.kernels.cpu import step_test

KEY = np.array([0x13198A2E, 0x03707344], np.uint32)
CASE = step_test.Case(runs=3)


def _ids(make, counts=None, **spec):
  """Ids of a step's tables, and the step."""
  c, counts = CASE, np.ones(CASE.vocab) if counts is None else counts
  spec = base.WindowSpec(
    c.vocab, c.dim, c.window, c.negatives, c.chunk, c.shared, **spec
  )
  corpus = base.Corpus((), counts, counts / counts.sum())
  batch = dispatches.random_step(c)
  model = make(spec, corpus, sampling.logistic_loss)
  return jax.device_get(jax.jit(model.ids)(batch, KEY)), batch


def test_tokens_are_looked_up_once():
  for make, table, draws in (
    (skipgram.make, skipgram.OUTPUT, 3 * 4 * 4),
    (cbow.make, skipgram.INPUT, 0),
  ):
    ids, batch = _ids(make, tokens_once=True)
    tokens = np.concatenate([np.minimum(x, CASE.vocab) for x in batch.tokens])
    num = np.sum(tokens < CASE.vocab) + draws
    assert np.sum(np.ravel(ids[table]) < CASE.vocab) == num


def test_draws_are_those_of_key_and_chunk():
  counts = 1000 / np.arange(1, CASE.vocab + 1)
  for make in (skipgram.make, cbow.make):
    ids, batch = _ids(make, counts)
    draws = ids[skipgram.OUTPUT][:, -CASE.shared :]
    positions = batch.chunks[:, None] * CASE.shared + np.arange(CASE.shared)
    table = sampling.alias_table(counts**0.75 / np.sum(counts**0.75))
    drawn = jax.jit(sampling.draw)(table, KEY, positions.astype(np.uint32))
    # Chunks without a pair draw none.
    has_pairs = (batch.left + batch.right).reshape(len(drawn), -1).any(1)
    drawn = np.where(has_pairs[:, None], drawn, CASE.vocab)
    np.testing.assert_array_equal(draws, drawn)


@pytest.mark.parametrize(
  ('settings', 'has_weights', 'shortest', 'draws'),
  [
    ({}, True, 4, 16),
    ({'model.dynamic_window': False}, False, 4, 24),
    ({'model.name': 'cbow'}, False, 1, 24),
    ({'model.name': 'cbow', 'model.shared_negatives': 3}, False, 1, 3),
    ({'model.loss': 'hierarchical_softmax'}, False, 1, 0),
    ({'data.source': 'graph'}, False, 1, 24),
  ],
)
def test_words_are_weighted_or_windows_drawn(
  settings, has_weights, shortest, draws
):
  settings = {'model.window': 4} | settings
  config = config_lib.check(config_lib.default(), settings)
  resolved, tuning = config_lib.resolve(config, 'cpu', (1, 1))
  weights = np.array(kind.context_weights(resolved, tuning))
  assert kind.shortest_window(resolved, tuning) == shortest
  assert resolved.model.shared_negatives == draws
  if config.model.name == 'skipgram' and draws:
    assert resolved.optimizer.learning_rate == (0.035 if has_weights else 0.04)
  assert len(weights) == (4 if has_weights else 0)
  # As 1 / distance, with as much in all as windows of 1 to 4 on average.
  np.testing.assert_allclose(weights * np.arange(1, len(weights) + 1), 1.2)


def test_windows_are_drawn_in_a_run_that_began_with_them():
  drawn = config_lib.resolve(
    config_lib.default(), 'cpu', (1, 1), weights_contexts=False
  )
  config, _ = drawn
  assert (
    kind.context_weights(*drawn) == () and kind.shortest_window(*drawn) == 1
  )
  assert config.model.shared_negatives == 24
  assert config.optimizer.learning_rate == 0.04
