"""Trees of sampled neighbors, in which GraphSAGE has its batches.

The ids of a tree are one row: the node, then its f_1 neighbors, then f_2
neighbors of each of these, and so on, in the order of their parents. Where a
node has fewer neighbors there is padding, whose children are padding.
"""

import itertools
from typing import NamedTuple

import numpy as np


class Tree(NamedTuple):
  """How many neighbors are sampled."""

  fanouts: tuple[int, ...]  # of the node, of its neighbors, and so on

  def widths(self) -> list[int]:
    """Nodes at each depth: 1, f_1, f_1 f_2, ..."""
    return list(itertools.accumulate((1, *self.fanouts), lambda x, f: x * f))

  def sizes(self) -> list[int]:
    """Nodes down to each depth."""
    return list(itertools.accumulate(self.widths()))


class Nodes(NamedTuple):
  """What a model knows of the nodes of a graph."""

  tree: Tree
  features: np.ndarray | None  # [nodes, d] float32
  num_classes: int  # 0 = there are no labels
  has_many: bool  # whether a node may have several classes
