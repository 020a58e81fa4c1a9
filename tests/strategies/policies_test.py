"""When rows are synchronised, by a clock, and with which weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.strategies import policies

VOCAB, STEP_CENTERS, EVERY, LOOKUPS, MEMORY = 20_000, 256, 3, 8.0, 200.0


def _frequencies(vocab=VOCAB):
  weights = 1 / (3 + np.arange(vocab, dtype=np.float64))
  return weights / weights.sum()


def _bounded(lookups, num_replicas=3, every=EVERY, centers=STEP_CENTERS):
  return policies.bounded(
    lookups, num_replicas, centers, every, LOOKUPS, MEMORY, 0.1
  )


def _written_out(policy, num_steps):
  """Follows a schedule of three replicas, step by step.

  Returns, by table, the steps [vocab] that each row was apart at most, and how
  many chunks were due each time.
  """
  staleness = policy.staleness_steps()
  clocks, find_due = [policy.init() for _ in range(3)], jax.jit(policy.due)
  synced = {k: np.zeros(len(x), int) for k, x in staleness.items()}
  longest = {k: np.zeros(len(x), int) for k, x in staleness.items()}
  num_due = []
  for step in range(1, num_steps + 1):
    if step % policy.every_steps:
      continue
    dues = []
    for i, clock in enumerate(clocks):
      due, clocks[i] = find_due(clock)
      dues.append(int(due))
    assert len(set(dues)) == 1  # all replicas exchange the same rows
    num_due.append(dues[0])
    for k in synced:
      rows = slice(dues[0] * policy.chunk_rows)
      longest[k][rows] = np.maximum(longest[k][rows], step - synced[k][rows])
      synced[k][rows] = step
  # No row waits at the end for longer than that, either.
  for k, x in staleness.items():
    assert (num_steps - synced[k] <= x).all()
  return longest, num_due


def test_no_row_is_staler_than_stated():
  # Every node of a second table is looked up half as often.
  lookups = {'a': _frequencies(), 'b': _frequencies()[:-500] / 2}
  policy = _bounded(lookups)
  staleness = policy.staleness_steps()
  num_levels = len(policy.due_chunks)
  longest, num_due = _written_out(policy, 2 * EVERY * 4 ** (num_levels - 1))
  assert num_levels >= 3
  for k, x in lookups.items():
    np.testing.assert_array_equal(longest[k], staleness[k])
    # What the weights assume: lookups of a row by each replica in that time.
    expected = x * STEP_CENTERS * staleness[k]
    np.testing.assert_allclose(policy.lookups[k], expected, 1e-5)
  assert policy.mean_chunks() == pytest.approx(np.mean(num_due))
  # The most frequent row of a chunk has its lookups, and not four times as
  # many unless it is due every time.
  first = policy.lookups['a'][:: policy.chunk_rows]
  is_rarer = staleness['a'][:: policy.chunk_rows] > EVERY
  assert (first >= LOOKUPS * (1 - 1e-6)).all()
  assert (first[is_rarer] < 4 * LOOKUPS).all() and is_rarer.sum() > 10


@pytest.mark.parametrize('vocab', [1, 900, 5000])
@pytest.mark.parametrize(
  ('num_hot', 'rest_syncs'), [(1, 4), (1024, 3), (1500, 2), (10**9, 5)]
)
def test_hot_rows_are_synchronised_oftener(num_hot, rest_syncs, vocab):
  lookups = {'a': np.ones(vocab), 'b': np.ones(-(-vocab // 2))}
  policy = policies.hot(lookups, 3, EVERY, num_hot, rest_syncs)
  staleness = policy.staleness_steps()
  longest, num_due = _written_out(policy, 4 * EVERY * rest_syncs)
  num_hot = min(num_hot, vocab)
  for k, x in lookups.items():
    np.testing.assert_array_equal(longest[k], staleness[k])
    assert len(staleness[k]) == len(x)
    assert (staleness[k][:num_hot] == EVERY).all()
    # Of what is not asked for less than a chunk is hot.
    rest = staleness[k][num_hot + policy.hot_chunks :]
    assert (rest == EVERY * rest_syncs).all()
  assert policy.mean_chunks() == pytest.approx(np.mean(num_due))


def test_averages_are_of_all_rows():
  lookups = {'a': np.ones(3000), 'b': np.ones(10)}
  policy = policies.average(lookups, 4, EVERY)
  longest, num_due = _written_out(policy, 5 * EVERY)
  assert all((x == EVERY).all() for x in longest.values())
  assert set(num_due) == {3} and policy.mean_chunks() == 3
  elapsed = policies.Elapsed(jnp.float32(0.1))
  weights = policy.weights('a', jnp.int32(7), 5, elapsed)
  np.testing.assert_array_equal(weights, np.full(5, 0.25, np.float32))


@pytest.mark.parametrize('vocab', [1, 7, 1024, 1025, 100_000])
def test_every_row_is_due_at_some_time(vocab):
  policy = _bounded({'a': _frequencies(vocab)}, every=16, centers=256)
  assert policy.chunk_rows == min(vocab, 1024)
  assert (np.diff(policy.due_chunks) >= 0).all()
  assert (policy.due_chunks[-1] - 1) * policy.chunk_rows < vocab
  assert policy.due_chunks[-1] * policy.chunk_rows >= vocab


def test_a_frequent_row_after_rare_ones_meets_in_time():
  lookups = np.full(4096, 1e-6)
  lookups[3000] = 0.5
  policy = _bounded({'a': lookups, 'b': lookups / 9}, every=1, centers=256)
  assert policy.due_chunks[0] == 3  # the chunks up to row 3071
  assert policy.due_chunks[-1] == 4


@pytest.mark.parametrize('n', [2, 3, 8])
def test_weights_are_those_of_the_closed_form(n):
  m = np.array([0.0, 1e-3, 3.0, 40.0, 200.0, 1e6], np.float32)
  policy = policies.Bounded(
    {'a': np.append(np.ones(5, np.float32), m)}, n, EVERY, 11, (1,), MEMORY, 0.1
  )

  def weights(learning_rate=0.1):
    elapsed = policies.Elapsed(jnp.float32(learning_rate))
    return np.asarray(policy.weights('a', jnp.int32(5), len(m), elapsed))

  found = weights()
  q = np.exp(-m.astype(np.float64) / MEMORY)
  closed = (1 - q[1:] ** n) / (n * (1 - q[1:]))
  np.testing.assert_allclose(found, [1, *closed], 1e-5)
  # From the sum of what replicas learned to its mean.
  assert found[0] == 1 and found[-1] == pytest.approx(1 / n)
  assert (np.diff(found) <= 0).all() and (found >= (1 - 1e-6) / n).all()
  # Less is forgotten at a lower rate.
  assert (weights(0.1 / 3)[1:-1] > found[1:-1]).all()
