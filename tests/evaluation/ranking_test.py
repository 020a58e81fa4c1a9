"""Recall, NDCG and hits against loops over users and ranks."""

import math

import numpy as np
import pytest

from jaxemb.evaluation import ranking


def _slow(users, items, biases, train, held, unknown, k):
  """Mean recall, NDCG and hits, ties by item, and the recommendable."""
  recall, ndcg, any_hit, found = [], [], [], 0
  for user, wanted in held.items():
    products = (float(users[user] @ x) for x in items)
    scores = [x + b for x, b in zip(products, biases, strict=True)]
    ranked = sorted(
      (x for x in range(len(items)) if x not in train[user]),
      key=lambda x: (-scores[x], x),
    )[:k]
    num = len(wanted) + unknown[user]
    recall.append(len(set(ranked) & wanted) / num)
    gains = [1 / math.log2(1 + rank) for rank in range(1, k + 1)]
    hits = (gains[i] for i, x in enumerate(ranked) if x in wanted)
    ndcg.append(sum(hits) / sum(gains[: min(k, num)]))
    any_hit.append(bool(set(ranked) & wanted))
    found += len(wanted - train[user])
  return *map(np.mean, (recall, ndcg, any_hit)), found


@pytest.mark.parametrize('block', [1, 100])
def test_scores_are_those_of_a_loop(block, monkeypatch):
  monkeypatch.setattr(ranking, '_BLOCK_SCORES', block)
  rng = np.random.default_rng(0)
  num_users, num_items, ks = 30, 40, (5, 1, 40)
  users = rng.integers(-2, 3, (num_users, 3)).astype(np.float32)  # with ties
  items = rng.integers(-2, 3, (num_items, 3)).astype(np.float32)
  biases = rng.integers(-1, 2, num_items).astype(np.float32)

  def drawn(size):
    return set(rng.choice(num_items, size, replace=False).tolist())

  train = [drawn(rng.integers(1, 9)) for _ in range(num_users)]
  splits = {
    name: {u: drawn(rng.integers(0, 9)) for u in of_split}
    for name, of_split in (('valid', range(28, 0, -2)), ('test', range(9, 30)))
  }
  unknown = [int(rng.integers(1, 3)) for _ in range(num_users)]
  held = {
    name: ranking.Held(
      np.array(list(x)),
      ranking.Sets.of(map(list, x.values())),
      np.array([len(wanted) + unknown[u] for u, wanted in x.items()]),
    )
    for name, x in splits.items()
  }
  sets = ranking.Sets.of(map(list, train))
  results = ranking.evaluate(users, items, sets, held, ks=ks, biases=biases)
  assert not ranking.evaluate(users, items, sets, {}, ks=ks)
  for name, of_split in splits.items():
    found = results[name]
    args = users, items, biases, train, of_split, unknown
    for k in ks:
      *expected, num_found = _slow(*args, k)
      at_k = [found[f'{x}@{k}'] for x in ('recall', 'ndcg', 'hits')]
      np.testing.assert_allclose(at_k, expected, rtol=1e-6)
    assert found['score'] == found['recall@5']
    assert found['ndcg'] == found['ndcg@5']
    assert (found['found'], found['users']) == (num_found, len(of_split))
    assert found['total'] == held[name].sizes.sum()


def test_sets_know_their_owners_and_means():
  sets = ranking.Sets.of([[3, 1], [2], [0, 1, 2]])
  assert sets.owners().tolist() == [0, 0, 1, 2, 2, 2]
  chosen = sets.select(np.array([2, 0]))
  assert chosen.ids.tolist() == [0, 1, 2, 3, 1]
  assert chosen.starts.tolist() == [0, 3, 5]
  vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
  expected = [vectors[[3, 1]].mean(0), vectors[2], vectors[:3].mean(0)]
  np.testing.assert_allclose(ranking.means(vectors, sets), expected)
