"""Random walks over a graph, made when they are read and never stored.

DeepWalk (Perozzi et al. 2014) and node2vec (Grover and Leskovec 2016). Walk i
is a function of (key, i), whoever makes it. Every pass over the nodes begins a
walk at each, in an order of its own. node2vec prefers neighbors x of the node
that the walk is at, having come from node t, by

  1 / p   x = t
  1       t has an edge to x
  1 / q   otherwise

times the weight of the edge. Neighbors are drawn by weight and rejected with
what is missing to the largest of the three (KnightKing, Yang et al. 2019),
where that of going back is folded away if it is the largest: exact, and no
table for each edge. Weights are drawn from by Walker's alias
method (Vose 1991).

Many walks go on together, so that reads of memory need not wait for each other.
"""

from typing import NamedTuple

import numba
import numpy as np

from jaxemb.data import blocks
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import neighbors as neighbors_lib
from jaxemb.ops import hashing, memory

_TOGETHER = 64  # walks
_MIN_WALKS = 256  # of a thread
_SEARCHED = 32  # entries of a list, one after the other
_LINE = memory.LINE // 4  # entries
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_JIT = {'nogil': True, 'cache': True}


class Lists(NamedTuple):
  """Neighbors of all nodes, and how they are drawn by weight."""

  offsets: np.ndarray  # [nodes + 1] int64
  neighbors: np.ndarray  # [edges] int32
  # A drawn neighbor stays with a chance, or becomes another one of its node.
  # Empty = all weights are the same.
  stays: np.ndarray  # [edges] float32
  others: np.ndarray  # [edges] int32


class Walker(NamedTuple):
  """Makes walks of a graph."""

  lists: Lists
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
    return cls(
      lists=Lists(offsets, neighbors, stays=stays, others=others),
      starts=np.flatnonzero(np.diff(offsets)).astype(np.int32),
      length=length,
      return_bias=return_bias,
      in_out_bias=in_out_bias,
      key=np.uint64(key),
      num_threads=num_threads,
    )

  def walks(self, numbers: np.ndarray) -> np.ndarray:
    """[n, length] int32 nodes of walks int64 [n].

    -1 follows a node without an edge that leads on.
    """
    out = np.empty((len(numbers), self.length), np.int32)
    biases = self.return_bias, self.in_out_bias
    stop = self.length if biases == (1, 1) else min(2, self.length)

    def walk(some):
      _walk(self.lists, self.starts, self.key, numbers[some], out[some], stop)
      if biases != (1, 1):
        _walk_biased(self.lists, biases, self.key, numbers[some], out[some])

    size = max(_MIN_WALKS, -(-len(numbers) // self.num_threads))
    neighbors_lib.on_threads(
      walk, num=len(numbers), size=size, num_threads=self.num_threads
    )
    return out


def with_ends(walks: np.ndarray) -> np.ndarray:
  """[m] int32, nodes of walks [n, length] with `blocks.END` after each."""
  around = (0, 0), (0, 1)
  is_node = np.pad(walks >= 0, around, constant_values=True)
  return np.pad(walks, around, constant_values=blocks.END)[is_node]


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
  count = np.int32(0)
  for i in range(start, stop):  # without branches that nobody can foresee
    count += np.int32(neighbors[i] == node)
  return count > 0


@numba.njit(**_JIT)
def _prefetch(array, place):
  start, offset = np.uint64(array.ctypes.data), np.uint64(place)
  memory.prefetch_to_read(start + np.uint64(array.itemsize) * offset)


@numba.njit(**_JIT)
def _walk(lists, starts, key, numbers, out, stop):
  """DeepWalk's, before place `stop`."""
  offsets, neighbors, stays, others = lists
  has_weights = len(stays) > 0
  keys = np.empty(_TOGETHER, np.uint64)
  first, chosen = np.empty((2, _TOGETHER), np.int64)  # -1 = the walk has ended
  for start in range(0, len(numbers), _TOGETHER):
    num = min(_TOGETHER, len(numbers) - start)
    nodes = out[start : start + num]
    for j in range(num):
      keys[j] = hashing.hashed(
        key ^ hashing.hashed(np.uint64(numbers[start + j]))
      )
      # Each pass is a permutation.
      number, place = divmod(numbers[start + j], len(starts))
      pass_key = np.uint64(hashing.hashed(key ^ np.uint64(number)))
      nodes[j, 0] = starts[hashing.permuted(place, len(starts), pass_key)]
    # Each loop over the walks prefetches what the next one reads.
    for step in range(1, stop):
      for j in range(num):
        node = nodes[j, step - 1]
        chosen[j] = -1
        if node >= 0:
          first[j] = offsets[node]
          size = offsets[node + 1] - first[j]
          if size:
            # Sizes are below 2^31: the upper half of a product.
            draw = hashing.hashed(keys[j] + np.uint64(step)) >> _HALF
            at = first[j] + np.int64((draw * np.uint64(size)) >> _HALF)
            chosen[j] = at
            if has_weights:
              _prefetch(stays, at)
              _prefetch(others, at)
            else:
              _prefetch(neighbors, at)
      if has_weights:
        for j in range(num):
          at = chosen[j]
          if at >= 0:
            draw = hashing.hashed(keys[j] + np.uint64(step)) & _LOW
            if np.float32(draw) >= stays[at] * np.float32(2**32):
              at = first[j] + others[at]
              chosen[j] = at
            _prefetch(neighbors, at)
      for j in range(num):
        node = neighbors[chosen[j]] if chosen[j] >= 0 else -1
        nodes[j, step] = node
        _prefetch(offsets, max(node, 0))


@numba.njit(**_JIT)
def _chances(biases, has_weights):
  """Chances that a draw of a neighbor stays: going back, near and far.

  The largest bias rejects many. Where going back has it, what that has beyond
  the others is drawn apart, as some `more` places behind those of neighbors.
  """
  back, far = 1 / biases[0], 1 / biases[1]
  largest = max(1.0, far, back if has_weights else 0.0)
  more = max(0.0, back / largest - 1)
  return back / largest, 1 / largest, far / largest, more


@numba.njit(inline='always', **_JIT)
def _find_lists(lists, nodes, step, first, sizes, left):
  """Finds the lists of nodes that walks are at, to be drawn from.

  Walks without a choice go on; returns how many are `left`.
  """
  offsets, neighbors, stays, others = lists
  for j in range(len(nodes)):
    node = nodes[j, step - 1]
    sizes[j] = 0
    if node >= 0:
      first[j] = offsets[node]
      sizes[j] = offsets[node + 1] - offsets[node]
      # To be drawn from, and then looked through.
      last = min(sizes[j], _SEARCHED) - 1
      for i in range(0, last, _LINE):
        _prefetch(neighbors, first[j] + i)
      _prefetch(neighbors, first[j] + last)
  if len(stays):
    for j in range(len(nodes)):
      last = min(sizes[j], _SEARCHED) - 1
      for i in range(0, last + _LINE, _LINE):
        _prefetch(stays, first[j] + min(i, last))
        _prefetch(others, first[j] + min(i, last))
  num_left = 0
  for j in range(len(nodes)):
    if sizes[j] < 2:
      nodes[j, step] = neighbors[first[j]] if sizes[j] else -1
    left[num_left] = j
    num_left += sizes[j] > 1
  return num_left


@numba.njit(**_JIT)
def _walk_biased(lists, biases, key, numbers, out):
  """node2vec's, whose first two nodes are known."""
  for start in range(0, len(numbers), _TOGETHER):
    some, nodes = numbers[start:][:_TOGETHER], out[start:][:_TOGETHER]
    _walk_together(lists, biases, key, some, nodes)


@numba.njit(**_JIT)
def _walk_together(lists, biases, key, numbers, nodes):
  """The same of at most `_TOGETHER` walks."""
  _, neighbors, stays, others = lists
  has_weights = len(stays) > 0
  back, near, far, more = _chances(biases, has_weights)
  surely, at_most = min(near, far), max(near, far)
  keys = np.array(
    [hashing.hashed(key ^ hashing.hashed(np.uint64(x))) for x in numbers]
  )
  first, first_before = np.zeros((2, _TOGETHER), np.int64)
  sizes, sizes_before = np.zeros((2, _TOGETHER), np.int64)
  left, asked = np.empty((2, _TOGETHER), np.int64)  # walks without a next node
  drawn, chances = np.empty(_TOGETHER, np.int32), np.empty(_TOGETHER)
  for step in range(1, nodes.shape[1]):
    first_before[:], sizes_before[:] = first, sizes
    num_left = _find_lists(lists, nodes, step, first, sizes, left)
    # All walks draw, then all look at what they drew, without branches that
    # nobody can foresee: so reads of memory wait together.
    trial = np.uint64(step)
    while num_left and step > 1:
      for i in range(num_left):
        j = left[i]
        draw = hashing.hashed(keys[j] + trial)
        place = np.int64((draw >> _HALF) * 2.0**-32 * (sizes[j] + more))
        at = first[j] + min(place, sizes[j] - 1)
        if has_weights:
          if np.float32(draw & _LOW) >= stays[at] * np.float32(2**32):
            at = first[j] + others[at]
          draw = hashing.hashed(draw)
        drawn[i] = neighbors[at]
        chances[i] = (draw & _LOW) * 2.0**-32
        if place >= sizes[j]:  # back, if an edge leads there
          last = nodes[j, step - 2]
          is_edge = _has(neighbors, first[j], first[j] + sizes[j], last)
          drawn[i] = last if is_edge else -1
          chances[i] = 0.0 if is_edge else 1.0
      num_drawn, num_left, num_asked = num_left, 0, 0
      for i in range(num_drawn):
        j, node, chance = left[i], drawn[i], chances[i]
        nodes[j, step] = node
        is_last = node == nodes[j, step - 2]
        is_taken = chance < (back if is_last else surely)
        is_asked = (not is_taken) & (not is_last) & (chance < at_most)
        asked[num_asked] = j
        num_asked += is_asked
        left[num_left] = j
        num_left += (not is_taken) & (not is_asked)
      for i in range(num_asked):
        j = asked[i]
        low, high = first_before[j], first_before[j] + sizes_before[j]
        is_near = _has(neighbors, low, high, nodes[j, step])
        left[num_left] = j
        num_left += is_near != (near > far)
      trial += np.uint64(1 << 32)


@numba.njit(**_JIT)
def _aliases(offsets, weights):
  """Chances [edges] float32, other places [edges] int32 within each node."""
  stays = np.ones(len(weights), np.float32)
  others = np.empty(len(weights), np.int32)
  most = np.diff(offsets).max()
  small, large = np.empty((2, most), np.int64)
  left = np.empty(most, np.float64)
  for node in range(len(offsets) - 1):
    first, num = offsets[node], offsets[node + 1] - offsets[node]
    total = 0.0
    for i in range(num):
      total += weights[first + i]
    num_small = num_large = 0
    for i in range(num):
      others[first + i] = i  # a draw may round up to 1
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
