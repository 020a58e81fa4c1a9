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
def _tree(counts, parents, codes):
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


class Links(NamedTuple):
  """What is above each word and inner node: 2 node + code; -1 of the root."""

  words: np.ndarray  # [vocab] int32
  nodes: np.ndarray  # [vocab - 1] int32


def links(counts: np.ndarray) -> Links:
  """Returns the tree of counts [vocab] int in any order.

  Deterministic; ValueError for fewer than two words.
  """
  num_words = len(counts)
  if num_words < 2:
    raise ValueError('a tree needs at least two words')
  # Of equal counts the later word is the rarer one.
  order = np.lexsort((-np.arange(num_words), counts))
  sums, parents, codes = np.zeros((3, 2 * num_words - 1), np.int64)
  sums[:num_words] = np.asarray(counts, np.int64)[order]
  _tree(sums, parents, codes)
  # The root, which comes last there, is node 0.
  above = (2 * (2 * num_words - 2 - parents) + codes).astype(np.int32)
  above[-1] = -1
  words = np.empty(num_words, np.int32)
  words[order] = above[:num_words]
  return Links(words, above[num_words:][::-1].copy())


def paths(tree: Links) -> Paths:
  """Returns the path of each word.

  >>> paths(links(np.array([4, 2, 1]))).codes.tolist()
  [[0, 0], [1, 0], [1, 1]]
  >>> paths(links(np.array([4, 2, 1]))).points.tolist()
  [[0, 2], [0, 1], [0, 1]]
  """
  num_words = len(tree.words)
  levels, above = [], tree.words
  while np.any(above >= 0):
    levels.append(above)
    above = np.where(above >= 0, tree.nodes[above >> 1], -1)
  lengths = np.zeros(num_words, np.int64)
  for level in levels:
    lengths += level >= 0
  points = np.full((num_words, len(levels)), num_words - 1, np.int32)
  codes = np.zeros(points.shape, np.uint8)
  for depth, above in enumerate(levels):
    below = np.flatnonzero(above >= 0)
    depths = lengths[below] - 1 - depth
    points[below, depths] = above[below] >> 1
    codes[below, depths] = above[below] & 1
  return Paths(points, codes, lengths.astype(np.int32))


def tree_paths(counts: np.ndarray) -> Paths:
  """Returns the path of each word in the tree of counts, see `links`."""
  return paths(links(counts))


@numba.njit(nogil=True, cache=True)
def _add_up(words, nodes, of_words, sums):
  for i in range(len(words)):
    sums[words[i] >> 1] += of_words[i]
  for node in range(len(nodes) - 1, 0, -1):
    sums[nodes[node] >> 1] += sums[node]


def sums(tree: Links, of_words: np.ndarray) -> np.ndarray:
  """Returns [vocab - 1] sums over the words below each inner node."""
  out = np.zeros(len(tree.nodes), np.asarray(of_words).dtype)
  _add_up(tree.words, tree.nodes, np.asarray(of_words), out)
  return out


def grown(
  old: Links, ids: np.ndarray, counts: np.ndarray
) -> tuple[Links, np.ndarray]:
  """Returns a tree with new words, and the old number of each node, or -1.

  The old words [n] have `ids` [n] among the counts [vocab]. What they share
  stays: their tree is a leaf of the tree of new words.
  """
  is_new = np.ones(len(counts), bool)
  is_new[ids] = False
  new = np.flatnonzero(is_new)
  num_new = len(new)
  words = np.empty(len(counts), np.int32)
  words[ids] = old.words + 2 * num_new
  nodes = np.where(old.nodes < 0, -1, old.nodes + 2 * num_new)
  if num_new:
    # Of equal counts the first one, that of the old words, is nearer the root.
    top = links(np.append(counts[ids].sum(), counts[new]))
    words[new] = top.words[1:]
    nodes[0] = top.words[0]
    nodes = np.append(top.nodes, nodes)
  tree = Links(words, nodes.astype(np.int32))
  # By falling count, and above each other where these are equal.
  order = np.argsort(-sums(tree, np.asarray(counts, np.int64)), kind='stable')
  ranks = np.empty(len(order), np.int32)
  ranks[order] = np.arange(len(order), dtype=np.int32)

  def renumbered(above):
    return np.where(above < 0, -1, 2 * ranks[above >> 1] + (above & 1))

  tree = Links(renumbered(tree.words), renumbered(tree.nodes[order]))
  tree = Links(*(x.astype(np.int32) for x in tree))
  return tree, np.where(order < num_new, -1, order - num_new).astype(np.int32)


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
