"""Link prediction: where the true end of an edge ranks among other nodes.

An edge (u, v) is held out. Of all nodes, but u and those to which it is known
to have an edge, v has the rank 1 + (how many score higher) + (ties) / 2, and

  MRR = mean of 1 / rank        Hits@k = fraction of ranks up to k

(filtered, Bordes et al. 2013). For a large graph the other nodes are drawn. AUC
is the chance that an edge scores higher than another u with one of these other
nodes, drawn as stated.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jaxemb.evaluation import geometry, ranking

_BLOCK_SCORES = 1 << 23  # that are in memory at once
_BLOCK_NUMBERS = 1 << 23  # of vectors
_MAX_EDGES = 10_000  # more are drawn from
_NUM_DRAWN = 1000  # nodes for each edge, where not all are ranked
_HITS = 1, 3, 10


def evaluate(
  score: Callable[[np.ndarray, np.ndarray | None], np.ndarray],
  edges: np.ndarray,
  known: Callable[[np.ndarray], ranking.Sets],
  negatives: str = 'all',
  degrees: np.ndarray | None = None,
  num_total: int | None = None,
  num_relations: int = 1,
) -> dict[str, Any]:
  """Scores of held-out edges [n, 2] int, of their second ends.

  `score` gives scores [m, nodes] of nodes [m] with all others, or [m, k] with
  others [m, k]. `known` gives for each node the second ends of all its edges,
  held out or not; those of nodes that it is not called with are not looked at.
  `negatives` are 'all' nodes, or 1000 for each edge, drawn
  'uniform' or by 'degree', from `degrees` [nodes]. Edges beyond 10,000 are
  left out at random. `num_total` counts also edges of unknown nodes.

  With several relations edges are [n, 3], with that in the last column; `known`
  and `score` then have node * `num_relations` + relation in place of the node
  at whose edges they look.
  """
  num, rng = len(edges), np.random.default_rng(0)
  counts = {'found': num, 'total': num if num_total is None else num_total}
  if not num:
    return {'score': float('nan'), **counts}
  if num > _MAX_EDGES:
    edges = edges[np.sort(rng.choice(num, _MAX_EDGES, replace=False))]
  keys = edges[:, 0] * num_relations + edges[:, 2:].sum(1)
  known_ends = known(np.unique(keys))
  num_nodes = len(known_ends) // num_relations
  weights = degrees if negatives == 'degree' else np.ones(num_nodes)
  draw = functools.partial(_draw, rng, np.cumsum(weights, dtype=np.float64))
  is_all = negatives == 'all'
  rank = _rank_among_all if is_all else _rank_among_drawn
  size = max(1, _BLOCK_SCORES // (num_nodes if is_all else _NUM_DRAWN))
  blocks = []
  for start in range(0, len(edges), size):
    some = slice(start, start + size)
    near = known_ends.select(keys[some])
    score_of = functools.partial(score, keys[some])
    blocks.append(rank(score_of, *edges[some, :2].T, near=near, draw=draw))
  ranks, positives, others = map(np.concatenate, zip(*blocks, strict=True))
  return {
    **_summary(ranks, positives, others),
    'negatives': negatives,
    'ranked_edges': len(edges),
    **counts,
  }


def _summary(ranks, positives, others):
  labels = np.repeat([1, 0], [len(positives), len(others)])
  mrr = float(np.mean(1 / ranks))
  return {
    'score': mrr,
    'mrr': mrr,
    'mean_rank': float(np.mean(ranks)),
    **{f'hits@{k}': float(np.mean(ranks <= k)) for k in _HITS},
    'auc': ranking.auc(labels, np.concatenate([positives, others])),
  }


def _draw(rng, sums, shape):
  """Nodes by their weights, whose running sums are [nodes]."""
  nodes = np.searchsorted(sums, rng.random(shape) * sums[-1], 'right')
  return np.minimum(nodes, len(sums) - 1)


def _rank_among_all(score, first, second, near, draw):
  """Ranks and scores of edges [n], and scores of drawn other nodes."""
  scores, rows = score(None), np.arange(len(first))
  positives = scores[rows, second]
  scores[near.owners(), near.ids] = -np.inf
  scores[rows, second] = scores[rows, first] = -np.inf
  return _ranked(scores, positives, scores[rows, draw(len(first))])


def _rank_among_drawn(score, first, second, near, draw):
  """As `_rank_among_all`, but among 1000 drawn nodes for each edge."""
  drawn = draw((len(first), _NUM_DRAWN))
  positives, scores = score(second[:, None])[:, 0], score(drawn)
  num_nodes = 1 + max(drawn.max(), near.ids.max(initial=0))
  rows = np.arange(len(first))[:, None]
  codes = near.owners() * num_nodes + near.ids
  scores[np.isin(rows * num_nodes + drawn, codes)] = -np.inf
  scores[drawn == first[:, None]] = -np.inf
  return _ranked(scores, positives, scores[:, 0])


def _ranked(scores, positives, others):
  higher = (scores > positives[:, None]).sum(1)
  ties = (scores == positives[:, None]).sum(1)
  return 1 + higher + ties / 2, positives, others[others > -np.inf]


def ends_of(
  wanted: np.ndarray,
  pairs: Iterable[tuple[np.ndarray, np.ndarray]],
  num_keys: int,
) -> ranking.Sets:
  """The sets of ends of `wanted` keys [n], of others nothing.

  Pairs are keys and ends [m] of some edges; -1 = none.
  """
  is_wanted = np.zeros(num_keys, bool)
  is_wanted[wanted] = True
  chosen = []
  for keys, ends in pairs:
    rows = np.flatnonzero(is_wanted[keys] & (keys >= 0) & (ends >= 0))
    chosen.append((keys[rows], ends[rows]))
  keys, ends = map(np.concatenate, zip(*chosen, strict=True))
  sizes, order = np.bincount(keys, minlength=num_keys), np.argsort(keys)
  starts = np.concatenate([[0], np.cumsum(sizes)])
  return ranking.Sets(starts, ends[order].astype(np.int32))


class Vectors:
  """Vectors [nodes, d] of ends, of which few are in memory at once.

  They may be an array, or what gives rows for a slice or for ints.
  """

  def __init__(self, rows: np.ndarray, is_cosine: bool):
    self._rows, self._is_cosine = rows, is_cosine

  def _blocks(self):
    size = max(1, _BLOCK_NUMBERS // self._rows.shape[1])
    for start in range(0, len(self._rows), size):
      yield slice(start, start + size), self._rows[start : start + size]

  @functools.cached_property
  def _divisors(self):
    lengths = [np.linalg.norm(x, axis=1) for _, x in self._blocks()]
    return geometry.divisors(np.concatenate(lengths))

  def take(self, nodes: np.ndarray) -> np.ndarray:
    """[m, d] those of nodes [m], of length 1 for cosines."""
    rows = self._rows[nodes]
    return geometry.unit(rows) if self._is_cosine else rows

  def products(
    self, firsts: np.ndarray, others: np.ndarray | None
  ) -> np.ndarray:
    """Of vectors [m, d]: [m, nodes] with all, or [m, k] with others [m, k]."""
    if others is None:
      scores = np.empty((len(firsts), len(self._rows)), np.float32)
      for some, rows in self._blocks():
        np.matmul(firsts, rows.T, out=scores[:, some])
      return scores / self._divisors if self._is_cosine else scores
    scores = np.empty(others.shape, np.float32)
    size = max(1, _BLOCK_NUMBERS // max(1, others[:1].size * firsts.shape[1]))
    for i in range(0, len(firsts), size):
      some = slice(i, i + size)
      seconds = self.take(others[some].ravel())
      seconds = seconds.reshape(-1, others.shape[1], firsts.shape[1])
      scores[some] = np.einsum('md,mkd->mk', firsts[some], seconds)
    return scores


def products(
  firsts: np.ndarray, seconds: np.ndarray, is_cosine: bool = False
) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray]:
  """Scores for `evaluate`: products of vectors [nodes, d] of both ends."""
  ends = Vectors(firsts, is_cosine), Vectors(seconds, is_cosine)
  return lambda nodes, others: ends[1].products(ends[0].take(nodes), others)
