"""Link prediction: where the true end of an edge ranks among all nodes.

A query (u, r, ?) asks for the targets of a node by a relation, (?, r, v) for
the sources; an edge that is held out answers one of each. All nodes are
candidates, also u itself, but for the other known answers: those of edges in
training or held out. The rank of an answer is 1 + (how many score higher) +
(how many others tie) / 2, and

  MRR = mean of 1 / rank        Hits@k = fraction of ranks up to k
  AUC = mean fraction of other candidates that score lower, a tie being a half

(filtered, realistic ranks, as of PyKEEN and LibKGE). Means are over all edges:
where a node or the relation has no vector, the answer ranks in the middle, as
if all tied. `known_mrr` and `known_hits@k` are of the other edges alone.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numba
import numpy as np

from jaxemb.evaluation import ranking
from jaxemb.models import edge_scores

_LOG = logging.getLogger('jaxemb')
_BLOCK_SCORES = 1 << 23  # that are in memory at once
_BLOCK_NUMBERS = 1 << 23  # of vectors
_MOST_DRAWN = 20_000  # queries, where candidates are drawn
_NUM_DRAWN = 1000  # candidates of a query, where not all nodes are
_MANY_SCORES = 1e10  # take a minute or more
_HITS = 1, 3, 10

# [m, nodes] scores of int64 queries [m] with all nodes, or [m, k] with others
# [m, k]. With R relations u * 2R + r is (u, r, ?), v * 2R + R + r is (?, r, v).
Score = Callable[[np.ndarray, np.ndarray | None], np.ndarray]
# Sources, targets and relations [n] of edges; -1 = unknown.
Edges = tuple[np.ndarray, np.ndarray, np.ndarray]


def evaluate(
  score: Score,
  held: Mapping[str, Edges],
  known: Callable[[], Iterable[Edges]],
  degrees: np.ndarray,
  num_relations: int = 1,
  candidates: str = 'all',
  ks: Sequence[int] = (),
) -> dict[str, dict[str, Any]]:
  """Scores of the edges of each split, whose two ends are ranked.

  `known` gives all edges, held out or not, in parts. `degrees` are of all nodes
  [nodes]. `candidates` are 'all' of them, or 1000 for each query and at most
  20,000 queries, drawn 'uniform' or by 'degree', as the title then says. `ks`
  are those of Hits@k, by default 1, 3 and 10.
  """
  num_nodes, by_title = len(degrees), {}
  for name, edges in held.items():
    queries, answers = _queries(edges, num_relations)
    title, num_others, draw = f'{name} edges', num_nodes - 1, None
    if candidates != 'all':
      rng, num_others = np.random.default_rng(0), _NUM_DRAWN
      weights = degrees if candidates == 'degree' else np.ones(num_nodes)
      draw = functools.partial(_draw, rng, np.cumsum(weights, dtype=np.float64))
      num = min(len(queries), _MOST_DRAWN)
      rows = np.sort(rng.choice(len(queries), num, replace=False))
      queries, answers = queries[rows], answers[rows]
      title += f', {num:,} queries among {num_others:,} {candidates}'
    others = np.full(len(queries), num_others, np.int64)
    ranks, is_known = 1 + others / 2, queries >= 0
    queries, answers = queries[is_known], answers[is_known]
    wanted, rows = np.unique(queries, return_inverse=True)
    near = _filters(wanted, known(), num_relations, num_nodes=num_nodes)
    if draw is None:
      found = _rank_among_all(
        score, wanted, rows, answers=answers, near=near, num_nodes=num_nodes
      )
    else:
      found = _rank_among_drawn(
        score, queries, answers, near=near.select(rows), draw=draw
      )
    ranks[is_known], others[is_known] = found
    counts = _counts(edges)
    by_title[title] = _summary(ranks, others, is_known, ks=ks or _HITS) | counts
  return by_title


def _counts(edges):
  is_known = np.min(edges, 0) >= 0
  return {
    'found': int(is_known.sum()),
    'total': len(is_known),
    'self_loops': int((is_known & (edges[0] == edges[1])).sum()),
  }


def _queries(edges, num_relations):
  """Queries [2n] of edges, -1 where one is not known, and their answers."""
  sources, targets, relations = (np.asarray(x, np.int64) for x in edges)
  nodes = np.concatenate([2 * sources, 2 * targets + 1])
  queries = nodes * num_relations + np.tile(relations, 2)
  queries[np.tile(np.min(edges, 0) < 0, 2)] = -1
  return queries, np.concatenate([targets, sources])


def _filters(wanted, known, num_relations, num_nodes):
  """`ranking.Sets` of the known answers of queries [n], which rise."""
  is_wanted = np.zeros(num_nodes, bool)
  is_wanted[wanted // (2 * num_relations)] = True
  rows, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
  for edges in known:
    queries, answers = _queries(edges, num_relations)
    some = (queries >= 0) & is_wanted[queries // (2 * num_relations)]
    queries, answers = queries[some], answers[some]
    places = np.minimum(np.searchsorted(wanted, queries), len(wanted) - 1)
    is_same = wanted[places] == queries
    rows.append(places[is_same])
    ids.append(answers[is_same])
  rows, ids = np.concatenate(rows), np.concatenate(ids)
  sizes, order = np.bincount(rows, minlength=len(wanted)), np.argsort(rows)
  starts = np.concatenate([[0], np.cumsum(sizes)])
  return ranking.Sets(starts, ids[order].astype(np.int32))


def _summary(ranks, others, is_known, ks):
  if not len(ranks):
    return {'kind': 'edges', 'score': float('nan')}

  def means(ranks, name=''):
    hits = {f'{name}hits@{k}': float(np.mean(ranks <= k)) for k in ks}
    return {f'{name}mrr': float(np.mean(1 / ranks)), **hits}

  every, known = means(ranks), {}
  if 0 < is_known.sum() < len(ranks):
    known = means(ranks[is_known], 'known_')
  lower = 1 - (ranks - 1) / np.maximum(others, 1)
  return {
    'kind': 'edges',
    'score': every['mrr'],
    **every,
    'mean_rank': float(np.mean(ranks)),
    'auc': float(np.mean(lower)),
    'ks': [*ks],
    **known,
  }


def _draw(rng, sums, shape):
  """Nodes by their weights, whose running sums are [nodes]."""
  nodes = np.searchsorted(sums, rng.random(shape) * sums[-1], 'right')
  return np.minimum(nodes, len(sums) - 1)


def _rank_among_all(score, wanted, rows, answers, near, num_nodes):
  """Ranks of answers [n] to queries `wanted[rows]`, and numbers of others.

  Equal queries are scored once.
  """
  if len(wanted) * num_nodes > _MANY_SCORES:
    _LOG.info(
      'ranking %s nodes for each of %s queries, which takes long; '
      'config.data.candidates=uniform draws some of both',
      *(f'{num_nodes:,}', f'{len(wanted):,}'),
    )
  order = np.argsort(rows, kind='stable')
  starts = np.searchsorted(rows[order], np.arange(len(wanted) + 1))
  answers, ranks = answers[order], np.empty((2, len(order)))
  size = max(1, _BLOCK_SCORES // num_nodes)
  for i in range(0, len(wanted), size):
    scores = score(wanted[i : i + size], None)
    own, others = (x[i : i + size + 1] for x in (starts, near.starts))
    scores = np.require(scores, np.float32, 'CW')
    _rank(scores, own, answers, others, near.ids, ranks)
  found = np.empty_like(ranks)
  found[:, order] = ranks
  return found


def _rank_among_drawn(score, queries, answers, near, draw):
  """As `_rank_among_all`, but among 1000 drawn nodes for each query."""
  ranks = np.empty((2, len(queries)))
  size = _BLOCK_SCORES // _NUM_DRAWN
  for i in range(0, len(queries), size):
    some = np.arange(i, min(i + size, len(queries)))
    drawn = draw((len(some), _NUM_DRAWN))
    nodes = np.concatenate([answers[some, None], drawn], 1)
    sets, starts = near.select(some), np.arange(len(some) + 1)
    num = 1 + max(drawn.max(), sets.ids.max(initial=0))
    codes = sets.owners() * num + sets.ids
    is_near = np.isin(starts[:-1, None] * num + nodes, codes)
    places = np.concatenate([[0], np.cumsum(is_near.sum(1))])
    scores = np.require(score(queries[some], nodes), np.float32, 'CW')
    zeros, columns = np.zeros_like(some), is_near.nonzero()[1]
    _rank(scores, starts, zeros, places, columns, ranks[:, some[0] :])
  return ranks


@numba.njit(nogil=True, cache=True)
def _rank(scores, starts, answers, near_starts, near, out):
  """Ranks answers by the scores of their row, and counts other candidates.

  Row i has answers[starts[i] : starts[i + 1]]. Scores of known ends, of which
  answers are some, become NaN. What has no score ranks as if all tied.
  """
  for i in range(len(scores)):
    row, own = scores[i], answers[starts[i] : starts[i + 1]]
    values = row[own]
    row[near[near_starts[i] : near_starts[i + 1]]] = np.nan
    num = 0
    for k in range(len(row)):  # by place: a third of the time
      num += row[k] == row[k]
    for j, value in enumerate(values):
      higher = ties = 0
      for k in range(len(row)):
        higher += row[k] > value
        ties += row[k] == value
      ties = ties if value == value else num  # noqa: PLR0124
      out[0, starts[i] + j] = 1 + higher + ties / 2
      out[1, starts[i] + j] = num


class Vectors:
  """Vectors [nodes, d] of ends, of which few are in memory at once.

  They may be an array, or what gives rows for a slice or for ints.
  """

  def __init__(self, rows: np.ndarray, score: edge_scores.EdgeScore):
    self._rows, self._score = rows, score

  def _blocks(self):
    size = max(1, _BLOCK_NUMBERS // self._rows.shape[1])
    for start in range(0, len(self._rows), size):
      yield slice(start, start + size), self._rows[start : start + size]

  @functools.cached_property
  def _sizes(self):
    return np.concatenate([self._sizes_of(x) for _, x in self._blocks()])

  def _sizes_of(self, rows: np.ndarray) -> np.ndarray:
    """Returns [...], what scores need of rows [..., d]."""
    return np.asarray(self._score.sizes(rows))

  def take(self, nodes: np.ndarray) -> np.ndarray:
    """[m, d] those of nodes [m]."""
    return self._rows[nodes]

  def scores(self, mapped: np.ndarray, others: np.ndarray | None) -> np.ndarray:
    """Of mapped [m, d]: [m, nodes] with all, or [m, k] with others [m, k]."""
    sizes = self._sizes_of(mapped)[:, None]
    if others is None:
      scores = np.empty((len(mapped), len(self._rows)), np.float32)
      for some, rows in self._blocks():
        np.matmul(mapped, rows.T, out=scores[:, some])
      return np.asarray(self._score.scores(scores, sizes, self._sizes))
    scores = np.empty(others.shape, np.float32)
    size = max(1, _BLOCK_NUMBERS // max(1, others[:1].size * mapped.shape[1]))
    for i in range(0, len(mapped), size):
      some = slice(i, i + size)
      ends = self.take(others[some].ravel())
      ends = ends.reshape(-1, others.shape[1], mapped.shape[1])
      products = np.einsum('md,mkd->mk', mapped[some], ends)
      of_ends = self._sizes_of(ends)
      scores[some] = self._score.scores(products, sizes[some], of_ends)
    return scores


def cosines(vectors: np.ndarray) -> Score:
  """Scores for `evaluate`, without relations: cosines of vectors [nodes, d]."""
  ends = Vectors(vectors, edge_scores.COSINE)
  return lambda queries, others: ends.scores(ends.take(queries // 2), others)
