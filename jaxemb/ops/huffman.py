"""Huffman's code of a vocabulary, for hierarchical softmax (Morin and Bengio).

Words are the leaves of a binary tree; a word's chance is a product of one
decision at each inner node from the root to its leaf (Mikolov et al. 2013a):

  P(o | v) = prod_{n in path(o)} sigmoid((1 - 2 code_n) v . u_n)

Huffman's tree gives the shortest expected path. Inner nodes are numbered by
falling count, the root 0: along a path the numbers rise, and the first T nodes,
which most paths begin with, are the ids 0..T-1.
"""

from typing import NamedTuple

import numba
import numpy as np


class Paths(NamedTuple):
  """The way from the root to every word, filled up to the longest one."""

  points: np.ndarray  # [vocab, length] int32, inner nodes; vocab - 1 = none
  codes: np.ndarray  # [vocab, length] uint8, 1 = the rarer child
  lengths: np.ndarray  # [vocab] int32


@numba.njit(nogil=True, cache=True)
def _parents(counts, parents, codes):
  """Joins the two rarest nodes until one is left; counts rise.

  Args:
    counts: [2 vocab - 1] int64, of the words, then room for the inner nodes.
    parents: [2 vocab - 1] int64, written but for the root's.
    codes: [2 vocab - 1] uint8, zeros.
  """
  num_words = (len(counts) + 1) // 2
  # Inner nodes come by rising count as well: two queues and no heap.
  word, inner = 0, num_words
  for new in range(num_words, len(counts)):
    total = 0
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
      total += counts[child]
    counts[new] = total


def tree_paths(counts: np.ndarray) -> Paths:
  """The code of each word; the same for the same counts.

  Args:
    counts: [vocab] int, not negative, in any order; at least two words.

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
  sums = np.zeros(2 * num_words - 1, np.int64)
  sums[:num_words] = np.asarray(counts, np.int64)[order]
  parents = np.zeros(2 * num_words - 1, np.int64)
  codes = np.zeros(2 * num_words - 1, np.uint8)
  _parents(sums, parents, codes)
  root = 2 * num_words - 2
  upward_points, upward_codes = [], []
  places = np.arange(num_words)
  lengths = np.zeros(num_words, np.int32)
  while True:
    is_below = places != root
    if not is_below.any():
      break
    lengths += is_below
    above = np.where(is_below, parents[places], root)
    upward_points.append(np.where(is_below, root - above, num_words - 1))
    upward_codes.append(np.where(is_below, codes[places], 0))
    places = above
  # From the leaf up, the other way round.
  depth = np.arange(len(upward_points))[None, :]
  level = np.maximum(lengths[:, None] - 1 - depth, 0)
  level[depth >= lengths[:, None]] = len(upward_points) - 1
  found = []
  for rows, fill in ((upward_points, num_words - 1), (upward_codes, 0)):
    turned = np.take_along_axis(np.stack(rows, 1), level, 1)
    found.append(np.where(depth < lengths[:, None], turned, fill))
  back = np.empty(num_words, np.int64)
  back[order] = np.arange(num_words)
  return Paths(
    found[0][back].astype(np.int32),
    found[1][back].astype(np.uint8),
    lengths[back],
  )


class Split(NamedTuple):
  """Paths cut behind the T first nodes, which have a dense form.

  A path leaves those nodes at one of T + 1 exits, so that words need only the
  number of theirs.
  """

  exits: np.ndarray  # [vocab] int32, at most T
  # [T + 1, T] float32, of each exit: 1 = the path takes code 0 at this node,
  # -1 = it takes code 1, 0 = the node is not on it
  signs: np.ndarray
  # [T + 1, length] int32, the same as a list: 2 node + code; 2 (vocab - 1)
  # where it has ended
  firsts: np.ndarray
  deep: np.ndarray  # [vocab, length] int32, the rest of each path, likewise


def split(paths: Paths, num_dense: int) -> Split:
  """Cuts every path behind the nodes 0..T-1.

  Args:
    paths: of a tree.
    num_dense: T, at least 1; of smaller trees, all nodes.
  """
  num_words, length = paths.points.shape
  num_dense = min(num_dense, num_words - 1)
  on_path = np.arange(length) < paths.lengths[:, None]
  is_dense = on_path & (paths.points < num_dense)
  num_first = is_dense.sum(1)
  last = np.arange(num_words), num_first - 1
  _, firsts, exits = np.unique(
    2 * paths.points[last] + paths.codes[last],
    return_index=True,
    return_inverse=True,
  )
  signs = np.zeros((num_dense + 1, num_dense), np.float32)
  rows, columns = np.nonzero(is_dense[firsts])
  taken = firsts[rows], columns
  signs[rows, paths.points[taken]] = 1 - 2.0 * paths.codes[taken]
  packed, none = 2 * paths.points + paths.codes, 2 * (num_words - 1)
  first = np.arange(num_first.max())
  has_first = first < num_first[firsts, None]
  dense = np.where(has_first, packed[firsts][:, first], none)
  rest = paths.lengths - num_first
  places = num_first[:, None] + np.arange(rest.max())
  places = np.minimum(places, length - 1)
  is_rest = np.arange(rest.max()) < rest[:, None]
  deep = np.where(is_rest, np.take_along_axis(packed, places, 1), none)
  return Split(
    exits.astype(np.int32),
    signs,
    dense.astype(np.int32),
    deep.astype(np.int32),
  )
