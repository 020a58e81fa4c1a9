"""Link prediction: where the true end of an edge ranks among other nodes.

An edge (u, v) is held out. Of all nodes, but u and those to which it is known
to have an edge, v has the rank 1 + (how many score higher) + (ties) / 2, and

  MRR = mean of 1 / rank        Hits@k = share of ranks up to k

(filtered, Bordes et al. 2013). For a large graph the other nodes are drawn. AUC
is the chance that an edge scores higher than another u with one of these other
nodes, drawn as stated.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxemb.evaluation import clicks, ranking

_BLOCK_SCORES = 1 << 23  # that are in memory at once
_MAX_EDGES = 10_000  # more are drawn from
_NUM_DRAWN = 1000  # nodes for each edge, where not all are ranked
_HITS = 1, 3, 10


def evaluate(
  score: Callable[[np.ndarray, np.ndarray | None], np.ndarray],
  edges: np.ndarray,
  known: ranking.Sets,
  negatives: str = 'all',
  degrees: np.ndarray | None = None,
  num_total: int | None = None,
  num_relations: int = 1,
) -> dict[str, Any]:
  """Scores of held-out edges [n, 2] int, of their second ends.

  `score` gives scores [m, nodes] of nodes [m] with all others, or [m, k] with
  others [m, k]. `known` are for each node the second ends of all its edges,
  held out or not. `negatives` are 'all' nodes, or 1000 for each edge, drawn
  'uniform' or by 'degree', from `degrees` [nodes]. Edges beyond 10,000 are
  left out at random. `num_total` counts also edges of unknown nodes.

  With several relations edges are [n, 3], with that in the last column; `known`
  and `score` then have node * `num_relations` + relation in place of the node
  at whose edges they look.
  """
  rng = np.random.default_rng(0)
  num = len(edges)
  if num > _MAX_EDGES:
    edges = edges[np.sort(rng.choice(num, _MAX_EDGES, replace=False))]
  num_nodes = len(known) // num_relations
  sums = np.arange(1, num_nodes + 1, dtype=np.float64)
  if negatives == 'degree':
    sums = np.cumsum(degrees, dtype=np.float64)

  def draw(shape):
    found = np.searchsorted(sums, rng.random(shape) * sums[-1], 'right')
    return np.minimum(found, num_nodes - 1)

  width = num_nodes if negatives == 'all' else _NUM_DRAWN
  size = max(1, _BLOCK_SCORES // width)
  ranks, positives, others = [], [], []
  for start in range(0, len(edges), size):
    first, second, *relation = edges[start : start + size].T
    keys = first * num_relations + relation[0] if relation else first
    rows = np.arange(len(first))
    if negatives == 'all':
      scores = score(keys, None)
      own = scores[rows, second]
      near = known.select(keys)
      scores[near.owners(), near.ids] = -np.inf
      scores[rows, second] = scores[rows, first] = -np.inf
      drawn = scores[rows, draw(len(first))]
    else:
      drawn = draw((len(first), width))
      own = score(keys, second[:, None])[:, 0]
      scores = score(keys, drawn)
      near = known.select(keys)
      codes = near.owners() * num_nodes + near.ids
      scores[np.isin(rows[:, None] * num_nodes + drawn, codes)] = -np.inf
      scores[drawn == first[:, None]] = -np.inf
      drawn = scores[:, 0]
    others.append(drawn[drawn > -np.inf])
    higher = (scores > own[:, None]).sum(1)
    ties = (scores == own[:, None]).sum(1)
    ranks.append(1 + higher + ties / 2)
    positives.append(own)
  if not num:
    return {'score': float('nan'), 'found': 0, 'total': num_total or 0}
  ranks, positives, others = map(np.concatenate, (ranks, positives, others))
  labels = np.repeat([1, 0], [len(positives), len(others)])
  mrr = float(np.mean(1 / ranks))
  return {
    'score': mrr,
    'mrr': mrr,
    'mean_rank': float(np.mean(ranks)),
    **{f'hits@{k}': float(np.mean(ranks <= k)) for k in _HITS},
    'auc': clicks.auc(labels, np.concatenate([positives, others])),
    'negatives': negatives,
    'ranked_edges': len(edges),
    'found': num,
    'total': num if num_total is None else num_total,
  }


def products(
  firsts: np.ndarray, seconds: np.ndarray
) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray]:
  """Scores for `evaluate`: products of vectors [nodes, d] of both ends."""

  def score(nodes, others):
    if others is None:
      return firsts[nodes] @ seconds.T
    return np.einsum('md,mkd->mk', firsts[nodes], seconds[others])

  return score
