"""Edges held out of a graph, drawn at random or read from another list."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.data import base
from jaxemb.graphs import files, node_files, walks
from jaxemb.graphs import graph as graph_lib
from jaxemb.ops import hashing

_STREAM = 0x3A1D  # of random numbers
_SPLITS = 'valid', 'test'


@numba.njit(nogil=True, cache=True)
def _draw(first, second, key, below):
  """[n] bool, of edges, whether the hash of one is below."""
  is_below = np.empty(len(first), np.bool_)
  for i in range(len(first)):
    pair = np.uint64(first[i]) << np.uint64(32) | np.uint64(second[i])
    is_below[i] = hashing.hashed(key ^ hashing.hashed(pair)) < below
  return is_below


@numba.njit(nogil=True, cache=True)
def _has(offsets, neighbors, relations, edges, edge_relations):
  out = np.zeros(len(edges), np.bool_)
  for i in range(len(edges)):
    if edges[i, 0] < 0:
      continue
    start, stop = offsets[edges[i, 0]], offsets[edges[i, 0] + 1]
    j = walks.lower_bound(neighbors, start, stop, node=edges[i, 1])
    while j < stop and neighbors[j] == edges[i, 1] and not out[i]:
      out[i] = not len(edge_relations) or relations[j] == edge_relations[i]
      j += 1
  return out


def has_edges(
  graph: graph_lib.Graph,
  edges: np.ndarray,
  relations: np.ndarray | None = None,
) -> np.ndarray:
  """[n] bool, whether a graph has edges [n, 2], of relations [n].

  Those of unknown nodes or relations, -1, it does not have.
  """
  none = np.zeros(0, np.int64)
  columns = (none, none)
  if relations is not None:
    columns = np.asarray(graph.relations), relations
  offsets, neighbors = map(np.asarray, (graph.offsets, graph.neighbors))
  return _has(offsets, neighbors, columns[0], edges, columns[1])


class Held(NamedTuple):
  """Edges of a split."""

  name: str
  edges: np.ndarray  # [n, 2] int64 nodes; -1 = one the graph does not have
  relations: np.ndarray | None = None  # [n] int64, where edges have some
  # Of another list: what was read, and edges that are not among these.
  inputs: Sequence[Any] = ()
  counted: Mapping[str, int] = MappingProxyType({})

  def ids(
    self, ids_of: np.ndarray, relation_counts: Sequence[int] | np.ndarray = (1,)
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns sources, targets and relations [n], -1 where not in training.

    `ids_of` are of nodes, or -1; `relation_counts` of edges in training.
    """
    sources, targets = np.append(ids_of, -1)[self.edges.T]
    relations = np.zeros(len(self.edges), np.int64)
    if self.relations is not None:
      numbers = np.arange(len(relation_counts))
      numbers = np.where(relation_counts, numbers, -1)
      last = np.minimum(self.relations, len(numbers))
      relations = np.append(numbers, -1)[last]
    return sources, targets, relations

  def counts(self, ids: Sequence[np.ndarray]) -> dict[str, int]:
    """Returns what the report counts of the edges, whose `ids` are given."""
    is_node = np.min(ids[:2], 0) >= 0
    unknown = {f'{self.name}_edges_of_unknown_nodes': ~is_node}
    if self.relations is not None:
      is_unknown = is_node & (ids[2] < 0)
      unknown[f'{self.name}_edges_of_unknown_relations'] = is_unknown
    return {k: int(x.sum()) for k, x in unknown.items()} | dict(self.counted)


def located(
  splits: Mapping[str, Held],
  ids_of: np.ndarray,
  relation_counts: Sequence[int] | np.ndarray = (1,),
) -> tuple[
  dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], dict[str, int]
]:
  """Returns the ids of each split's edges, and what the report counts."""
  ids = {k: x.ids(ids_of, relation_counts) for k, x in splits.items()}
  counted: dict[str, int] = {}
  for name, held in splits.items():
    counted |= held.counts(ids[name])
  return ids, counted


def hold_out(
  graph: graph_lib.Graph, name: str, fraction: float, seed: int
) -> tuple[graph_lib.Graph, Held]:
  """Take a fraction of the edges, drawn by their nodes, out of a graph."""
  sources = np.repeat(
    np.arange(graph.num_nodes, dtype=np.int32), np.diff(graph.offsets)
  )
  first, second = sources, np.asarray(graph.neighbors)
  if not graph.directed:
    first, second = np.minimum(first, second), np.maximum(first, second)
  key = hashing.part_key(seed, _STREAM, _SPLITS.index(name))
  is_held = _draw(first, second, key, below=np.uint64(fraction * 2**64))
  sizes = np.bincount(sources[~is_held], minlength=graph.num_nodes)
  columns = {
    k: x[~is_held]
    for k in ('neighbors', 'weights', 'relations')
    if (x := getattr(graph, k)) is not None
  }
  offsets = np.append(0, np.cumsum(sizes))
  rest = graph._replace(offsets=offsets, digest='', **columns)
  if not graph.directed:  # each is in two lists
    is_held &= sources < graph.neighbors
  edges = np.stack([sources[is_held], graph.neighbors[is_held]], 1)
  relations = graph.relations
  if relations is not None:
    relations = relations[is_held].astype(np.int64)
  return rest, Held(name, edges.astype(np.int64), relations)


def read_held(
  path: str,
  name: str,
  graph: graph_lib.Graph,
  spec: base.SourceSpec,
) -> Held:
  """Read edges of another list, with the names that the graph has."""
  none = dict.fromkeys(('labels', 'label_column', 'features'), '')
  settings = {**spec.settings, 'path': path, **none}
  other = files.read(settings, spec.cache, spec.progress)
  number = node_files.numbers(graph)
  numbers = [number(x) for x in other.keys()]
  nodes = np.array([-1 if x is None else x for x in numbers], np.int64)
  sources = np.repeat(np.arange(other.num_nodes), np.diff(other.offsets))
  edges = np.stack([sources, np.asarray(other.neighbors)], 1)
  relations = _relations(other, graph, name)
  is_used = np.ones(len(edges), bool)
  if not other.directed:  # each is in two lists
    is_used = edges[:, 0] < edges[:, 1]
  edges = nodes[edges[is_used]]
  is_known = (edges >= 0).all(1)
  if relations is not None:
    relations = relations[is_used]
    is_known &= relations >= 0
  if not is_known.any():
    raise errors.UserError(
      f'config.data.{name}={path} has no edge between nodes that '
      'config.data.path has; give edges with the same names'
    )
  is_trained = has_edges(graph, edges, relations)
  counted = {
    f'{name}_edges_in_training': int(is_trained.sum()),
    f'{name}_self_loops': other.counted.get('self_loops', 0),  # left out
  }
  return Held(name, edges, relations, inputs=other.inputs, counted=counted)


def _relations(other, graph, name):
  """[edges] int64 the relations of a list by the numbers of a graph, or None.

  -1 = the graph has no such relation.
  """
  if graph.relations is None:
    return None
  if other.relations is None:
    raise errors.UserError(
      f'config.data.{name} has edges without a relation, and those of '
      'config.data.path have some; give them a column more'
    )
  if graph.relation_names is None:
    return np.asarray(other.relations, np.int64)
  numbers = {x: i for i, x in enumerate(graph.relation_names)}
  names = other.relation_names
  if names is None:
    names = map(str, range(int(other.relations.max()) + 1))
  by_number = np.array([numbers.get(x, -1) for x in names], np.int64)
  return by_number[np.asarray(other.relations)]


def split(
  spec: base.SourceSpec,
) -> tuple[graph_lib.Graph, dict[str, Held]]:
  """Read the graph that settings name, and hold out 'valid' and 'test'.

  Returns the rest, and what is held out. Raises a `UserError`.
  """
  settings = files.located(spec.settings)
  graph = files.read(settings, spec.cache, spec.progress)
  splits: dict[str, Held] = {}
  for name in _SPLITS:
    if not (text := settings[name]):
      continue
    fraction = base.held_out(
      text,
      f'config.data.{name}={text} must be a list of edges, or a share of '
      'them between 0 and 1',
    )
    if fraction is None:
      held = read_held(text, name, graph, spec=spec)
    elif fraction[1]:
      raise errors.UserError(
        f'config.data.{name}={text} asks for the last edges, and a graph has '
        f'no order; give {fraction[0]}, or a list of edges'
      )
    else:
      graph, held = hold_out(graph, name, fraction[0], seed=spec.seed)
      if not len(held.edges):
        raise errors.UserError(
          f'config.data.{name}={text} holds out no edge of the graph; give a '
          'larger fraction'
        )
    splits[name] = held
  if not len(graph.neighbors):
    raise errors.UserError(
      'no edge is left to learn from; hold out fewer with config.data.valid '
      'and config.data.test'
    )
  inputs = [*graph.inputs, *(y for x in splits.values() for y in x.inputs)]
  return graph._replace(inputs=inputs), splits
