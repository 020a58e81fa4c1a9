"""Samples trees of neighbors, and means over all neighbors.

Sampling as in GraphSAGE (Hamilton et al. 2017, algorithm 2). A node of degree d
has, of f sampled neighbors,

  without replacement  min(d, f) different ones, each set equally likely (Floyd)
  with replacement     f independent ones, if d > 0

all of them equally likely, whatever the weights of edges. A draw is a hash of
(key, place of the tree, column of the tree): trees are the same whoever samples
them, in any order, on any number of threads.

The ids of a tree are one row: the node, then its f_1 neighbors, then f_2
neighbors of each of these, and so on, in the order of their parents. Where a
node has fewer neighbors there is padding, whose children are padding.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import NamedTuple

import numba
import numpy as np

from jaxemb.data import examples
from jaxemb.ops import hashing

_PADDING = examples.PADDING
_TREES = 64  # that a thread samples at once
_ROWS = 1024  # that it aggregates at once


def tree_widths(fanouts: Sequence[int]) -> list[int]:
  """Nodes of a tree at each depth: 1, f_1, f_1 f_2, ..."""
  return list(itertools.accumulate((1, *fanouts), lambda x, f: x * f))


def tree_sizes(fanouts: Sequence[int]) -> list[int]:
  """Nodes of a tree down to each depth."""
  return list(itertools.accumulate(tree_widths(fanouts)))


@numba.njit(nogil=True, cache=True)
def _drawn(state, column, num):
  """Below `num`; uneven by less than num / 2^32."""
  bits = hashing.hashed(state + np.uint64(column)) >> np.uint64(32)
  return np.int64((bits * np.uint64(num)) >> np.uint64(32))


@numba.njit(nogil=True, cache=True)
def _choose(state, at, fanout, degree, row):
  """Writes `fanout` different numbers below `degree` to the row."""
  for j in range(at, at + fanout):
    last = degree - fanout + j - at
    pick = _drawn(state, j, last + 1)
    for other in range(at, j):
      if row[other] == pick:
        pick = last
        break
    row[j] = pick


@numba.njit(nogil=True, cache=True)
def _grow(offsets, neighbors, places, key, fanouts, replaces, out):
  """Fills `out` [n, size], whose first column has the nodes."""
  num, first, width = len(places), 0, 1
  states = np.empty(num, np.uint64)
  for i in range(num):
    states[i] = hashing.hashed(key ^ hashing.hashed(np.uint64(places[i])))
  for depth in range(len(fanouts)):
    fanout = fanouts[depth]
    starts = np.empty((num, width), np.int64)
    degrees = np.empty((num, width), np.int64)
    # Reads that wait for no other one, or most time would go to waiting.
    for i in range(num):
      for j in range(width):
        node = out[i, first + j]
        node = len(offsets) - 2 if node == _PADDING else node
        starts[i, j] = offsets[node]
        degrees[i, j] = offsets[node + 1] - offsets[node]
    for i in range(num):
      for j in range(width):
        if out[i, first + j] == _PADDING:
          degrees[i, j] = 0
        elif degrees[i, j]:
          out[i, first + width + j * fanout] = neighbors[starts[i, j]]
    for i in range(num):
      row, state = out[i], states[i]
      for j in range(width):
        at = first + width + j * fanout
        start, degree = starts[i, j], degrees[i, j]
        if replaces and degree:
          for k in range(at, at + fanout):
            row[k] = neighbors[start + _drawn(state, k, degree)]
        elif degree <= fanout:
          for k in range(degree):
            row[at + k] = neighbors[start + k]
          for k in range(at + degree, at + fanout):
            row[k] = _PADDING
        else:
          _choose(state, at, fanout, degree=degree, row=row)
          for k in range(at, at + fanout):
            row[k] = neighbors[start + row[k]]
    first += width
    width *= fanout


@numba.njit(nogil=True, cache=True)
def _aggregate(offsets, neighbors, values, is_max, first, out):
  for i in range(len(out)):
    start, stop = offsets[first + i], offsets[first + i + 1]
    row = out[i]
    row[:] = 0
    for j in range(start, stop):
      other = values[neighbors[j]]
      if is_max:
        for k in range(len(row)):
          row[k] = max(row[k], other[k])
      else:
        for k in range(len(row)):
          row[k] += other[k]
    if not is_max and stop > start:
      row /= np.float32(stop - start)


@numba.njit(nogil=True, cache=True)
def walk(
  offsets: np.ndarray,
  neighbors: np.ndarray,
  starts: np.ndarray,
  places: np.ndarray,
  key: np.uint64,
  most_steps: int,
) -> np.ndarray:
  """[n] int32, the last other node of a walk from each of `starts` [n] int32.

  A walk has 1 to `most_steps` steps, each to any neighbor. Without neighbors
  it ends where it starts.
  """
  out = np.empty(len(starts), np.int32)
  for i in range(len(starts)):
    state = hashing.hashed(key ^ hashing.hashed(np.uint64(places[i])))
    node = out[i] = starts[i]
    num_steps = 1 + _drawn(state, 0, most_steps)
    for step in range(num_steps):
      first, stop = offsets[node], offsets[node + 1]
      if first == stop:
        break
      node = neighbors[first + _drawn(state, 1 + step, stop - first)]
      if node != starts[i]:
        out[i] = node
  return out


def uniform(places: np.ndarray, key: np.uint64) -> np.ndarray:
  """[n] float64 in 0..1, functions of the key and int64 places [n]."""
  bits = hashing.hashed_all(key ^ hashing.hashed_all(places.astype(np.uint64)))
  return (bits >> np.uint64(11)) * 2.0**-53


def on_threads(
  work: Callable[[slice], None], num: int, size: int, num_threads: int
) -> None:
  """Works on pieces of 0..num, of `size` each."""
  pieces = [slice(i, min(i + size, num)) for i in range(0, num, size)]
  is_alone = num_threads == 1 or len(pieces) == 1
  list((map if is_alone else _pool(num_threads).map)(work, pieces))


@functools.cache
def _pool(num_threads):
  return futures.ThreadPoolExecutor(num_threads, 'neighbors')


class Trees(NamedTuple):
  """Samples trees from a graph."""

  offsets: np.ndarray  # [nodes + 1] int64
  neighbors: np.ndarray  # [edges] int32
  fanouts: Sequence[int]  # of the node, of its neighbors, and so on
  replaces: bool = False
  num_threads: int = 1

  @property
  def size(self) -> int:
    """Nodes of a tree."""
    return tree_sizes(self.fanouts)[-1]

  def sample(
    self, nodes: np.ndarray, places: np.ndarray, key: np.uint64
  ) -> np.ndarray:
    """[n, size] int32, a tree of each of the nodes [n].

    `places` [n] int64 tell apart trees of the same `key`.
    """
    out = np.empty((len(nodes), self.size), np.int32)
    out[:, 0] = nodes
    fanouts = np.array(self.fanouts, np.int64)

    def work(some):
      _grow(*self[:2], places[some], key, fanouts, self.replaces, out[some])

    on_threads(work, len(nodes), _TREES, num_threads=self.num_threads)
    return out

  def expected_lookups(self, chances: np.ndarray) -> np.ndarray:
    """[nodes] float64, how often a tree has each node.

    Its first node is each one with `chances` [nodes].
    """
    degrees = np.diff(self.offsets)
    expected = np.asarray(chances, np.float64)
    total = expected.copy()
    for fanout in self.fanouts:
      num = fanout if self.replaces else np.minimum(degrees, fanout)
      expected = spread(self.offsets, self.neighbors, expected * num)
      total += expected
    return total


def spread(
  offsets: np.ndarray, neighbors: np.ndarray, values: np.ndarray
) -> np.ndarray:
  """[nodes] float64, values of nodes that their neighbors share evenly."""
  degrees = np.diff(offsets)
  per_neighbor = np.repeat(values / np.maximum(degrees, 1), degrees)
  return np.bincount(neighbors, per_neighbor, len(degrees))


def aggregated(
  offsets: np.ndarray,
  neighbors: np.ndarray,
  values: np.ndarray,
  is_max: bool,
  num_threads: int = 1,
) -> np.ndarray:
  """[nodes, d] float32, over all neighbors of each node; 0 without any.

  Of `values` [nodes, d] float32 the mean, or the largest ones of those above 0.
  """
  out = np.empty((len(offsets) - 1, values.shape[1]), np.float32)

  def work(some):
    _aggregate(offsets, neighbors, values, is_max, some.start, out[some])

  on_threads(work, num=len(out), size=_ROWS, num_threads=num_threads)
  return out


class Block(NamedTuple):
  """What a layer needs to be applied to some nodes, with all neighbors."""

  nodes: np.ndarray | None  # [n] of the graph, whose inputs it has; None = all
  own: np.ndarray | None  # [m] places in them, of its outputs; None = all
  offsets: np.ndarray  # [m + 1] int64
  neighbors: np.ndarray  # [edges] int32, places in the inputs too


def blocks(
  offsets: np.ndarray,
  neighbors: np.ndarray,
  num_layers: int,
  nodes: np.ndarray | None = None,
) -> list[Block]:
  """Returns a block for each layer, that of the inputs first.

  With `nodes` [n], rising, the last layer's outputs are theirs alone, and lower
  layers have what it needs.
  """
  if nodes is None:
    return [
      Block(None, None, offsets=offsets, neighbors=neighbors)
    ] * num_layers
  found = []
  for _ in range(num_layers):
    degrees = np.diff(offsets)[nodes]
    starts = np.append(0, np.cumsum(degrees))
    places = np.arange(starts[-1]) + np.repeat(
      offsets[nodes] - starts[:-1], degrees
    )
    others = neighbors[places]
    inputs = np.union1d(nodes, others)
    own, others = (np.searchsorted(inputs, x) for x in (nodes, others))
    others = others.astype(np.int32)
    found.append(Block(inputs, own, offsets=starts, neighbors=others))
    nodes = inputs
  return found[::-1]
