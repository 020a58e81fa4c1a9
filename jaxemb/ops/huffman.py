"""Huffman code of a vocabulary, for hierarchical softmax (Morin and Bengio).

Words are the leaves of a binary tree; a word's probability is the product of
the decisions at the inner nodes on its path (Mikolov et al. 2013a):

  P(o | v) = prod_{n in path(o)} sigmoid((1 - 2 code_n) v . u_n)

A Huffman tree has the shortest expected path. Inner nodes are numbered by
falling count, from the root, 0: numbers rise along a path, and the T nodes that
most paths begin with are 0..T-1.
"""

from typing import NamedTuple

import numba
import numpy as np


class Paths(NamedTuple):
  """The path from the root to every word, padded to the longest."""

  points: np.ndarray  # [vocab, length] int32, inner nodes; vocab - 1 = none
  codes: np.ndarray  # [vocab, length] uint8, 1 = the rarer child
  lengths: np.ndarray  # [vocab] int32


@numba.njit(nogil=True, cache=True)
def _tree(counts, parents, codes, depths):
  """Joins the two rarest nodes until the root is left.

  Arrays are [2 vocab - 1]: the words, by rising count, then the inner nodes.
  """
  num_words = (len(counts) + 1) // 2
  # Inner nodes come by rising count as well: two queues and no heap.
  word, inner = 0, num_words
  for new in range(num_words, len(counts)):
    for code in (1, 0):
      # Of equal counts words first: such a tree is the shallowest.
      if word < num_words and (inner >= new or counts[word] <= counts[inner]):
        child = word
        word += 1
      else:
        child = inner
        inner += 1
      parents[child] = new
      codes[child] = code
      counts[new] += counts[child]
  for node in range(len(counts) - 2, -1, -1):
    depths[node] = depths[parents[node]] + 1


def tree_paths(counts: np.ndarray) -> Paths:
  """Returns the path of each word, from counts [vocab] int in any order.

  Deterministic; ValueError for fewer than two words.

  >>> tree_paths(np.array([4, 2, 1])).codes.tolist()
  [[0, 0], [1, 0], [1, 1]]
  >>> tree_paths(np.array([4, 2, 1])).points.tolist()
  [[0, 2], [0, 1], [0, 1]]
  """
  num_words = len(counts)
  if num_words < 2:
    raise ValueError('a tree needs at least two words')
  # Of equal counts the later word is the rarer one.
  order = np.lexsort((-np.arange(num_words), counts))
  sums, parents, codes, depths = np.zeros((4, 2 * num_words - 1), np.int64)
  sums[:num_words] = np.asarray(counts, np.int64)[order]
  _tree(sums, parents, codes, depths=depths)
  nodes = np.argsort(order)
  lengths = depths[nodes]
  points = np.full((num_words, lengths.max()), num_words - 1, np.int32)
  path_codes = np.zeros(points.shape, np.uint8)
  for level in reversed(range(points.shape[1])):
    below = np.flatnonzero(lengths > level)
    points[below, level] = 2 * num_words - 2 - parents[nodes[below]]
    path_codes[below, level] = codes[nodes[below]]
    nodes[below] = parents[nodes[below]]
  return Paths(points, path_codes, lengths.astype(np.int32))


class Split(NamedTuple):
  """Paths cut after the first T nodes, which have a dense form.

  A path leaves them by one of at most T + 1 exits. Lists hold 2 node + code,
  padded with 2 (vocab - 1).
  """

  exits: np.ndarray  # [vocab] int32, at most T
  # [T + 1, T] float32: 1 or -1 = the path to the exit takes code 0 or 1 at the
  # node, 0 = the node is not on it
  signs: np.ndarray
  firsts: np.ndarray  # [T + 1, length] int32, the same as a list
  deep: np.ndarray  # [vocab, length] int32, the rest of each path


def split(paths: Paths, num_dense: int) -> Split:
  """Cuts every path after the nodes 0..T-1, or all if there are fewer."""
  num_words = len(paths.points)
  num_dense, none = min(num_dense, num_words - 1), 2 * (num_words - 1)
  # Numbers rise along a path: its order is the sorted one.
  packed = 2 * paths.points + paths.codes
  is_first = packed < 2 * num_dense
  num_first = is_first.sum(1)
  _, words, exits = np.unique(
    packed[np.arange(num_words), num_first - 1],
    return_index=True,
    return_inverse=True,
  )
  firsts = np.where(is_first, packed, none)[words, : num_first.max()]
  signs = np.zeros((len(words), num_dense + 1), np.float32)
  nodes = np.minimum(firsts >> 1, num_dense)
  np.put_along_axis(signs, nodes, 1 - 2.0 * (firsts & 1), 1)
  deep = np.sort(np.where(is_first, none, packed), 1)
  longest = max(1, (paths.lengths - num_first).max())
  return Split(
    exits=exits.astype(np.int32),
    signs=signs[:, :num_dense],
    firsts=firsts.astype(np.int32),
    deep=deep[:, :longest].astype(np.int32),
  )
