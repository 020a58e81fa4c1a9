"""Random walks over a graph, made when they are read and never stored.

DeepWalk (Perozzi et al. 2014) and node2vec (Grover and Leskovec 2016). Walk i
is a function of (key, i), whoever makes it. Every pass over the nodes begins a
walk at each, in an order of its own. node2vec prefers neighbors x of the node
that the walk is at, having come from node t, by

  1 / p   x = t
  1       t has an edge to x
  1 / q   otherwise

times the weight of the edge. Neighbors are drawn by weight and rejected with
what is missing to the largest of the three (KnightKing, Yang et al. 2019):
exact, and no table for each edge. Weights are drawn from by Walker's alias
method (Vose 1991).

Many walks go on together, so that reads of memory need not wait for each other.
"""

from concurrent import futures
from typing import NamedTuple

import numba
import numpy as np

from jaxemb.graphs import graph as graph_lib
from jaxemb.text import loader, tokenize

_TOGETHER = 64  # walks
_MIN_WALKS = 256  # of a thread
_SEARCHED = 32  # entries of a list, one after the other
_LOW = np.uint64(0xFFFFFFFF)
_JIT = {'nogil': True, 'cache': True}


class Walker(NamedTuple):
  """Makes walks of a graph."""

  offsets: np.ndarray  # [nodes + 1] int64
  neighbors: np.ndarray  # [edges] int32
  # Of the weights: a neighbor stays with a chance, or becomes another place of
  # its node. Empty = all weights are the same.
  stays: np.ndarray  # [edges] float32
  others: np.ndarray  # [edges] int32
  starts: np.ndarray  # [n] int32, the nodes that walks begin at
  length: int  # nodes of a walk
  return_bias: float  # p
  in_out_bias: float  # q
  key: np.uint64
  num_threads: int

  @classmethod
  def of(
    cls,
    graph: graph_lib.Graph,
    length: int,
    return_bias: float = 1.0,
    in_out_bias: float = 1.0,
    key: int = 0,
    num_threads: int = 1,
  ) -> 'Walker':
    """Of all nodes from which an edge leads on."""
    offsets, neighbors = map(np.asarray, (graph.offsets, graph.neighbors))
    stays, others = np.zeros(0, np.float32), np.zeros(0, np.int32)
    if graph.weights is not None:
      stays, others = _aliases(offsets, np.asarray(graph.weights))
    starts = np.flatnonzero(np.diff(offsets)).astype(np.int32)
    return cls(
      offsets, neighbors, stays, others, starts, length,
      return_bias, in_out_bias, np.uint64(key), num_threads,
    )  # fmt: skip

  def walks(self, numbers: np.ndarray) -> np.ndarray:
    """[n, length] int32 nodes of walks int64 [n].

    -1 follows a node without an edge that leads on.
    """
    out = np.empty((len(numbers), self.length), np.int32)
    num = min(self.num_threads, max(1, len(numbers) // _MIN_WALKS))
    bounds = np.linspace(0, len(numbers), num + 1).astype(int)

    def walk(i):
      some = slice(*bounds[i : i + 2])
      args = self.length, self.return_bias, self.in_out_bias, self.key
      _walk(*self[:5], *args[1:], numbers[some], out[some])

    if num == 1:
      walk(0)
    else:
      with futures.ThreadPoolExecutor(num) as pool:
        list(pool.map(walk, range(num)))
    return out


def with_ends(walks: np.ndarray) -> np.ndarray:
  """[m] int32, nodes of walks [n, length] with `tokenize.END` after each."""
  around = (0, 0), (0, 1)
  is_there = np.pad(walks >= 0, around, constant_values=True)
  return np.pad(walks, around, constant_values=tokenize.END)[is_there]


@numba.njit(**_JIT)
def _start(number, starts, key):
  """The first node of a walk: each pass is a permutation."""
  num = len(starts)
  turn, place = divmod(number, num)
  of_turn = np.uint64(loader.hashed(key ^ np.uint64(turn)))
  return starts[loader.permuted(place, num, of_turn)]


@numba.njit(**_JIT)
def lower_bound(neighbors, start, stop, node):
  """The place of the first entry that is not below a node, or `stop`."""
  while start < stop:
    middle = (start + stop) >> 1
    if neighbors[middle] < node:
      start = middle + 1
    else:
      stop = middle
  return start


@numba.njit(**_JIT)
def _has(neighbors, start, stop, node):
  """Whether a node is among the entries from `start` to `stop`, in order."""
  while stop - start > _SEARCHED:
    middle = (start + stop) >> 1
    if neighbors[middle] <= node:
      start = middle
    else:
      stop = middle
  found = np.int32(0)
  for i in range(start, stop):  # without branches that nobody can foresee
    found += np.int32(neighbors[i] == node)
  return found > 0


@numba.njit(**_JIT)
def _walk(
  offsets, neighbors, stays, others, starts, return_bias, in_out_bias, key,
  numbers, out,
):  # fmt: skip
  is_biased = return_bias != 1 or in_out_bias != 1
  largest = max(1.0, 1 / return_bias, 1 / in_out_bias)
  smallest = min(1.0, 1 / in_out_bias)  # of those that are not the last node
  back, far = 1 / return_bias / largest, 1 / in_out_bias / largest
  near, surely = 1 / largest, smallest / largest
  at_most = max(near, far)
  own = np.empty(_TOGETHER, np.uint64)
  first = np.empty(_TOGETHER, np.int64)
  sizes = np.empty(_TOGETHER, np.int64)
  for start in range(0, len(numbers), _TOGETHER):
    num = min(_TOGETHER, len(numbers) - start)
    here = out[start : start + num]
    for j in range(num):
      number = numbers[start + j]
      own[j] = loader.hashed(key ^ loader.hashed(np.uint64(number)))
      here[j, 0] = _start(number, starts, key)
    for step in range(1, out.shape[1]):
      for j in range(num):
        node = here[j, step - 1]
        if node < 0:
          sizes[j] = 0
        else:
          first[j] = offsets[node]
          sizes[j] = offsets[node + 1] - offsets[node]
      if not is_biased or step == 1:
        for j in range(num):
          # Sizes are below 2^31: the upper half of a product.
          draw = loader.hashed(own[j] + np.uint64(step))
          place = ((draw >> np.uint64(32)) * np.uint64(sizes[j])) >> np.uint64(
            32
          )
          at = first[j] + np.int64(place)
          if sizes[j] == 0:
            here[j, step] = -1
          elif len(stays):
            is_other = np.float32(draw & _LOW) >= stays[at] * np.float32(2**32)
            here[j, step] = neighbors[first[j] + others[at] if is_other else at]
          else:
            here[j, step] = neighbors[at]
        continue
      for j in range(num):
        size = sizes[j]
        if size < 2:
          here[j, step] = neighbors[first[j]] if size else -1
          continue
        last = here[j, step - 2]
        low, high = offsets[last], offsets[last + 1]
        trial = np.uint64(step)
        while True:
          draw = loader.hashed(own[j] + trial)
          place = ((draw >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32)
          at = first[j] + np.int64(place)
          if len(stays):
            if np.float32(draw & _LOW) >= stays[at] * np.float32(2**32):
              at = first[j] + others[at]
          node = neighbors[at]
          chance = (loader.hashed(draw) >> np.uint64(11)) * 2.0**-53
          if node == last:
            is_taken = chance < back
          elif chance < surely:
            is_taken = True
          elif chance >= at_most:
            is_taken = False
          else:
            is_near = _has(neighbors, low, high, node)
            is_taken = chance < (near if is_near else far)
          if is_taken:
            break
          trial += np.uint64(1 << 32)
        here[j, step] = node


@numba.njit(**_JIT)
def _aliases(offsets, weights):
  """Chances [edges] float32, other places [edges] int32 within each node."""
  stays = np.ones(len(weights), np.float32)
  others = np.zeros(len(weights), np.int32)
  most = 0
  for node in range(len(offsets) - 1):
    most = max(most, offsets[node + 1] - offsets[node])
  small, large = np.empty(most, np.int64), np.empty(most, np.int64)
  left = np.empty(most, np.float64)
  for node in range(len(offsets) - 1):
    first, num = offsets[node], offsets[node + 1] - offsets[node]
    total = 0.0
    for i in range(num):
      total += weights[first + i]
    num_small = num_large = 0
    for i in range(num):
      left[i] = weights[first + i] * num / total
      if left[i] < 1:
        small[num_small] = i
        num_small += 1
      else:
        large[num_large] = i
        num_large += 1
    while num_small and num_large:
      num_small -= 1
      less, more = small[num_small], large[num_large - 1]
      stays[first + less], others[first + less] = left[less], more
      left[more] -= 1 - left[less]
      if left[more] < 1:
        num_large -= 1
        small[num_small] = more
        num_small += 1
  return stays, others
