"""Labels of nodes: one class of each node, or several."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


def entries(
  offsets: np.ndarray, nodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Locate the entries of nodes int [n] in lists that begin at `offsets`.

  Returns for each entry the index of its node, 0..n-1, and its position.
  """
  starts = offsets[nodes]
  sizes = offsets[nodes + 1] - starts
  owners = np.repeat(np.arange(len(nodes)), sizes)
  return owners, np.arange(len(owners)) + (starts - np.cumsum(sizes) + sizes)[
    owners
  ]


class Labels(NamedTuple):
  """The classes of all nodes; a node without any is not labelled."""

  # [nodes] int, -1 = none; with offsets, the classes of node 0, then of 1, ..
  classes: np.ndarray
  offsets: np.ndarray | None = None  # [nodes + 1] int64, of several by node
  names: Sequence[str] | None = None  # of classes; None = 0, 1, ..

  @classmethod
  def of(
    cls, nodes: np.ndarray, texts: Sequence[str], num_nodes: int
  ) -> 'Labels':
    """Number the labels [n] of int nodes [n]: by value if all are numbers."""
    different = {*texts}
    is_number = all(re.fullmatch(r'\d{1,18}', x) for x in different)
    names = sorted(different, key=int if is_number else str)
    numbers = {x: i for i, x in enumerate(names)}
    classes = np.array([numbers[x] for x in texts], np.int64)
    # Once each, in their order.
    _, first = np.unique(nodes * len(names) + classes, return_index=True)
    first = np.sort(first)
    order = first[np.argsort(nodes[first], kind='stable')]
    nodes, classes = nodes[order], classes[order]
    sizes = np.bincount(nodes, minlength=num_nodes)
    if sizes.max(initial=0) > 1:
      return cls(classes, np.append(0, np.cumsum(sizes)), names)
    of_nodes = np.full(num_nodes, -1, np.int64)
    of_nodes[nodes] = classes
    return cls(of_nodes, None, names)

  def with_nodes(self, num: int) -> 'Labels':
    """The labels of more nodes, which have none."""
    if self.offsets is None:
      classes = np.pad(self.classes, (0, num), constant_values=-1)
      return self._replace(classes=classes)
    return self._replace(offsets=np.pad(self.offsets, (0, num), 'edge'))

  @property
  def has_many(self) -> bool:
    """Whether a node may have several classes."""
    return self.offsets is not None

  @property
  def num_classes(self) -> int:
    """Count the classes, with those up to the largest number."""
    return 1 + int(np.max(self.classes, initial=-1))

  @property
  def class_names(self) -> list[str]:
    """Names of all classes."""
    return [str(x) for x in self.names or range(self.num_classes)]

  @property
  def nodes(self) -> np.ndarray:
    """[n] int64, the labelled nodes."""
    if self.offsets is None:
      return np.flatnonzero(np.asarray(self.classes) >= 0)
    return np.flatnonzero(np.diff(self.offsets))

  def first(self, nodes: np.ndarray) -> np.ndarray:
    """[n] int, one class of each labelled node."""
    if self.offsets is None:
      return self.classes[nodes]
    return self.classes[self.offsets[nodes]]

  def matrix(self, nodes: np.ndarray) -> Any:
    """[n, classes] bool, sparse by rows: a dense one may not fit in memory."""
    from scipy import sparse

    if self.offsets is None:
      classes = np.asarray(self.classes)[nodes]
      rows = np.flatnonzero(classes >= 0)
      classes = classes[rows]
    else:
      rows, positions = entries(self.offsets, nodes)
      classes = self.classes[positions]
    ones = np.ones(len(rows), bool)
    shape = len(nodes), self.num_classes
    return sparse.csr_matrix((ones, (rows, classes)), shape)

  def keys_by_class(
    self, keys: Sequence[str], nodes: np.ndarray
  ) -> dict[str, list[str]]:
    """Group the keys [n] of nodes int [n] by the first class of each."""
    groups: dict[str, list[str]] = {}
    matrix, names = self.matrix(nodes), self.class_names
    bounds = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    for key, (start, stop) in zip(keys, bounds, strict=True):
      if start < stop:
        groups.setdefault(names[matrix.indices[start]], []).append(key)
    return groups
