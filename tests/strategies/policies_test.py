"""When rows are synchronised, and with which weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.strategies import policies

VOCAB, STEP_CENTERS, EVERY, LOOKUPS, MEMORY = 20_000, 256, 3, 8.0, 200.0


def _frequencies(vocab=VOCAB):
  weights = 1 / (3 + np.arange(vocab, dtype=np.float64))
  return weights / weights.sum()


def _bounded(lookups, every=EVERY):
  return policies.bounded(
    lookups,
    3,
    STEP_CENTERS,
    every_steps=every,
    lookups=LOOKUPS,
    memory_lookups=MEMORY,
    first_learning_rate=0.1,
  )


def _check_staleness(policy, num_syncs):
  """Follows a schedule; returns the steps [chunks] that a chunk waits."""
  staleness, due = policy.staleness_steps(), jax.jit(policy.due)
  synced, longest = np.zeros((2, len(staleness)), int)
  num_due = []
  for number in range(1, num_syncs + 1):
    num_due.append(int(due(number)))
    step, chunks = number * policy.every_steps, slice(num_due[-1])
    waited = step - synced[chunks]
    longest[chunks] = np.maximum(longest[chunks], waited)
    synced[chunks] = step
  np.testing.assert_array_equal(longest, staleness)
  # No row waits at the end for longer than that, either.
  assert (num_syncs * policy.every_steps - synced <= staleness).all()
  assert policies.mean_chunks(policy) == pytest.approx(np.mean(num_due))
  return staleness


def test_no_row_is_staler_than_stated():
  # Every node of a second table is looked up half as often.
  lookups = {'a': _frequencies(), 'b': _frequencies()[:-500] / 2}
  policy = _bounded(lookups)
  staleness = _check_staleness(policy, 2 * policy.periods[-1])
  assert len(set(staleness)) >= 3
  by_row = np.repeat(staleness, policy.chunk_rows)
  for k, x in lookups.items():
    # What the weights assume: lookups of a row by each replica in that time.
    expected = x * STEP_CENTERS * by_row[: len(x)]
    np.testing.assert_allclose(policy.lookups[k], expected, 1e-5)
  # The most frequent row of a chunk has its lookups, and not four times as
  # many unless it is due every time.
  first, is_rarer = policy.lookups['a'][:: policy.chunk_rows], staleness > EVERY
  assert (first >= LOOKUPS * (1 - 1e-6)).all()
  assert (first[is_rarer] < 4 * LOOKUPS).all() and is_rarer.sum() > 10


@pytest.mark.parametrize('vocab', [1, 900, 5000])
@pytest.mark.parametrize(
  ('num_hot', 'rest_syncs'), [(1, 4), (1024, 3), (1500, 2), (10**9, 5)]
)
def test_hot_rows_are_synchronised_oftener(num_hot, rest_syncs, vocab):
  lookups = {'a': np.ones(vocab), 'b': np.ones(-(-vocab // 2))}
  policy = policies.hot(lookups, 3, EVERY, num_hot, rest_syncs)
  staleness = np.repeat(
    _check_staleness(policy, 4 * rest_syncs), policy.chunk_rows
  )
  num_hot, num_chunks = min(num_hot, vocab), len(policy.periods)
  assert (staleness[:num_hot] == EVERY).all()
  # Less than a chunk more than what is asked for is hot.
  rest = staleness[num_hot + num_chunks :]
  assert (rest == EVERY * rest_syncs).all()
  assert policy.chunk_rows * (num_chunks - 1) < vocab <= len(staleness)


def test_a_frequent_row_after_rare_ones_is_due_in_time():
  lookups = np.full(4096, 1e-6)
  lookups[3000] = 0.5
  policy = _bounded({'a': lookups, 'b': lookups / 9}, every=1)
  assert (policy.periods[:3] == 1).all()  # the chunks up to row 3071
  assert len(policy.periods) == 4 and policy.periods[3] > 1


@pytest.mark.parametrize('n', [2, 3, 8])
def test_weights_are_those_of_the_closed_form(n):
  m = np.array([0.0, 1e-3, 3.0, 40.0, 200.0, 1e6], np.float32)
  policy = policies.Bounded(
    np.ones(1, np.int32),
    n,
    EVERY,
    chunk_rows=11,
    lookups={'a': np.append(np.ones(5, np.float32), m)},
    memory_lookups=MEMORY,
    first_learning_rate=0.1,
  )

  def weights(learning_rate=0.1):
    rate = jnp.float32(learning_rate)
    return np.asarray(policy.weights('a', jnp.int32(5), len(m), rate))

  found = weights()
  q = np.exp(-m.astype(np.float64) / MEMORY)
  closed = (1 - q[1:] ** n) / (n * (1 - q[1:]))
  np.testing.assert_allclose(found, [1, *closed], 1e-5)
  # From the sum of what replicas learned to its mean.
  assert found[0] == 1 and found[-1] == pytest.approx(1 / n)
  # Less is forgotten at a lower rate.
  assert (weights(0.1 / 3)[1:-1] > found[1:-1]).all()
