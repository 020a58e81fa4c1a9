"""Recall and NDCG of recommended items, as LightGCN (He et al. 2020) has them.

All items are ranked for a user by score, except for the training items of the
user, which are masked. With n held-out items, of which some (hits) are among
the k best,

  Recall@k = hits / n
  NDCG@k   = sum over hits g(rank) / sum_{r=1}^{min(k, n)} g(r)
  Hits@k   = 1 if there is a hit, else 0

with g(r) = 1 / log2(1 + r). All are averaged over users. A held-out item that
is in no training set cannot be recommended; it counts among the n.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

_BLOCK_SCORES = 1 << 24  # in memory at once


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
  """Area under the ROC curve, of labels [n], 0 and 1, and scores [n].

  NaN if all labels are the same.
  """
  labels = np.asarray(labels).astype(bool)
  num, num_ones = len(labels), int(labels.sum())
  if num_ones in (0, num):
    return float('nan')
  _, values, counts = np.unique(scores, return_inverse=True, return_counts=True)
  ranks = (np.cumsum(counts) - (counts - 1) / 2)[values]
  total = ranks[labels].sum() - num_ones * (num_ones + 1) / 2
  return float(total / (num_ones * (num - num_ones)))


class Sets(NamedTuple):
  """A set of ids for each user; user u has ids[starts[u] : starts[u + 1]]."""

  starts: np.ndarray  # [users + 1] int64
  ids: np.ndarray  # [n] int32

  @classmethod
  def of(cls, sets: Iterable[Sequence[int]]) -> 'Sets':
    """Returns the sets of lists."""
    ids = [np.asarray(x, np.int32) for x in sets]
    starts = np.cumsum([0, *map(len, ids)])
    return cls(starts, np.concatenate([np.zeros(0, np.int32), *ids]))

  def __len__(self) -> int:
    return len(self.starts) - 1

  def sizes(self) -> np.ndarray:
    """Returns the sizes of the sets, [users] int64."""
    return np.diff(self.starts)

  def owners(self) -> np.ndarray:
    """Returns the user of each id, [n] int64."""
    return np.repeat(np.arange(len(self)), self.sizes())

  def select(self, users: np.ndarray) -> 'Sets':
    """Returns the sets of these users, in their order."""
    sizes = self.sizes()[users]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    return Sets(
      starts, self.ids[np.repeat(self.starts[:-1][users], sizes) + within]
    )


class Held(NamedTuple):
  """Held-out items of users."""

  users: np.ndarray  # [users] int64
  sets: Sets  # of these users, in their order: items of the vocabulary
  sizes: np.ndarray  # [users] int64, with items outside the vocabulary


@numba.njit(nogil=True, cache=True)
def _best(scores, k):
  """Returns items by falling score, ties by item, [users, k] int64."""
  num_users, num_items = scores.shape
  best = np.zeros((num_users, k), np.int64)
  for user in range(num_users):
    row, ids = scores[user], best[user]
    num = 0
    for item in range(num_items):
      if num == k and row[item] <= row[ids[k - 1]]:
        continue
      position = min(num, k - 1)
      while position and row[ids[position - 1]] < row[item]:
        ids[position] = ids[position - 1]
        position -= 1
      ids[position] = item
      num = min(num + 1, k)
  return best


def evaluate(
  users: np.ndarray,
  items: np.ndarray,
  train: Sets,
  held: Mapping[str, Held],
  ks: Sequence[int],
  biases: np.ndarray | float = 0.0,
) -> dict[str, dict[str, Any]]:
  """Scores a ranking of items [items, d] by products with users [users, d].

  Items are ranked once for all splits of `held`, whose scores are by name.
  `biases` [items] are added to the products. `score` and `ndcg` are recall and
  NDCG at the first of `ks`, none of which is more than there are items.
  `found` is the number of held-out interactions whose item can be recommended.
  """
  if not held:
    return {}
  num, gains = len(items), 1 / np.log2(np.arange(2, max(ks) + 2))
  # Pairs of a user and an item are numbers, rising by user.
  wanted = {
    k: np.unique(num * x.users[x.sets.owners()] + x.sets.ids)
    for k, x in held.items()
  }
  ranked = np.unique(np.concatenate([x.users for x in held.values()]))
  hits: dict[str, list[np.ndarray]] = {k: [] for k in held}
  num_found, size = dict.fromkeys(held, 0), max(1, _BLOCK_SCORES // num)
  for start in range(0, len(ranked), size):
    some = ranked[start : start + size]
    scores = users[some] @ items.T
    scores += biases
    train_items = train.select(some)
    owners, ids = train_items.owners(), train_items.ids
    scores[owners, ids] = -np.inf
    seen = num * some[owners] + ids
    best = num * some[:, None] + _best(scores, max(ks))
    for name, pairs in wanted.items():
      ends = np.searchsorted(pairs, (num * some[0], num * (some[-1] + 1)))
      pairs = np.setdiff1d(pairs[slice(*ends)], seen)
      num_found[name] += len(pairs)
      hits[name].append(np.isin(best, pairs))
  results = {}
  for name, x in held.items():
    of_users = np.concatenate(hits[name])[np.searchsorted(ranked, x.users)]
    scores_at = _metrics(of_users, x.sizes, gains=gains, ks=ks)
    results[name] = {
      'kind': 'ranking',
      'score': scores_at[f'recall@{ks[0]}'],
      'ndcg': scores_at[f'ndcg@{ks[0]}'],
      **scores_at,
      'ks': [*ks],
      'found': num_found[name],
      'total': int(x.sizes.sum()),
      'users': len(x.users),
    }
  return results


def _metrics(hits, sizes, gains, ks):
  """Means over users, by name, of hits [users, k] by rank."""
  ideal, values = np.concatenate([[0], np.cumsum(gains)]), {}
  for k in ks:
    first = hits[:, :k]
    by_user = {
      'recall': first.sum(1) / sizes,
      'ndcg': first @ gains[:k] / ideal[np.minimum(sizes, k)],
      'hits': first.any(1),
    }
    values |= {f'{name}@{k}': float(x.mean()) for name, x in by_user.items()}
  return values


def means(vectors: np.ndarray, sets: Sets) -> np.ndarray:
  """Returns the mean vector of each set, [users, d] float32; none is empty."""
  sums = np.add.reduceat(vectors[sets.ids], sets.starts[:-1], axis=0)
  return (sums / sets.sizes()[:, None]).astype(np.float32)


def describe(result: Mapping[str, Any]) -> str:
  """Returns the scores in one line."""
  shown = ', '.join(
    f'{name}@{k} {result[f"{name.lower()}@{k}"]:.4f}'
    for k in result['ks']
    for name in ('Recall', 'NDCG', 'Hits')
  )
  shown += (
    f' of {result["users"]:,} users; {result["found"]:,} of '
    f'{result["total"]:,} held-out items can be recommended'
  )
  if 'count_weight' in result:
    shown += (
      f'; scores are {result["product_weight"]:g} x product + '
      f'{result["count_weight"]:g} x log count'
    )
  return shown
