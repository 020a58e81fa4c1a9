"""Parts of a graph that have few edges between them: each worker gets one.

A worker whose nodes are close to each other needs few rows, over and over, and
a cache has room for more of them. Nodes are given out one after the other, in
several passes: each goes to the part that has most of its neighbors, times the
share of the part that is still free,

  argmax_p |N(v) in p| (1 - load_p / capacity)

(linear deterministic greedy, Stanton and Kliot 2012; Nishimura and Ugander 2013
show that repeated passes come close to METIS).
"""

import numba
import numpy as np

_PASSES = 10
_SPARE = 1.05  # of a part's even share


@numba.njit(nogil=True, cache=True)
def _pass(offsets, neighbors, order, costs, capacity, part, loads):
  counts = np.zeros(len(loads), np.int64)
  for node in order:
    cost = costs[node]
    if part[node] >= 0:
      loads[part[node]] -= cost
    counts[:] = 0
    for edge in range(offsets[node], offsets[node + 1]):
      if part[neighbors[edge]] >= 0:
        counts[part[neighbors[edge]]] += 1
    best = loads.argmin()
    highest = counts[best] * (1 - loads[best] / capacity)
    for i in range(len(loads)):
      score = counts[i] * (1 - loads[i] / capacity)
      if score > highest and loads[i] + cost <= capacity:
        best, highest = i, score
    part[node] = best
    loads[best] += cost


def close(
  offsets: np.ndarray,
  neighbors: np.ndarray,
  costs: np.ndarray,
  num_parts: int,
  seed: int,
) -> np.ndarray:
  """[nodes] int32, the part of each node; parts cost nearly the same.

  The graph has the neighbors[offsets[i]:offsets[i + 1]] of node i; nodes cost
  `costs` [nodes] float64.
  """
  part = np.full(len(costs), -1, np.int32)
  loads = np.zeros(num_parts)
  capacity = max(_SPARE * costs.sum() / num_parts, 1e-9)
  order = np.random.default_rng((seed, num_parts)).permutation(len(costs))
  for _ in range(_PASSES):
    _pass(offsets, neighbors, order, costs, capacity, part, loads)
  return part
