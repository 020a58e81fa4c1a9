"""From a graph to batches for GraphSAGE: nodes with trees of sampled neighbors.

The source gives labelled nodes, or walks: a node u, the node v at the end of a
short walk from it, and a node n drawn by degree^0.75. All are trees
(`neighbors`), sampled ahead of the device.

The order of an epoch is a keyed permutation, of all nodes or of those of each
part of the graph, and all draws are hashes of the position in it: (epoch, next
position) is the reader's whole state.

Parts of a graph have few edges between them, and each worker gets one: it needs
few rows, over and over, and a cache has room for more of them. Nodes are
assigned one after the other, in several passes: each goes to the part that has
most of its neighbors, times the fraction of the part that is still free,

  argmax_p |N(v) in p| (1 - load_p / capacity)

(linear deterministic greedy, Stanton and Kliot 2012; Nishimura and Ugander 2013
show that repeated passes come close to METIS).
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numba
import numpy as np

from jaxemb import errors
from jaxemb.data import base, examples
from jaxemb.graphs import features as features_lib
from jaxemb.graphs import files, neighbors
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.ops import hashing
from jaxemb.runtime import resources

_STEPS, _IDS = 32, 1 << 22  # of a dispatch, at most
_TREES, _WALKS, _DRAWS = 1, 2, 3  # streams of random numbers
_POWER = 0.75  # of degrees, to draw nodes
_MOST_THREADS = 8
_PASSES = 10  # over the nodes, to divide them
_SPARE = 1.05  # capacity of a part, by its even fraction


def _number(text: str, name: str, num: int) -> int:
  """Of `num` nodes, those that `config.data.NAME` asks for."""
  text = text.strip()
  if not text or text.isdecimal():
    return int(text or 0)
  refusal = (
    f'config.data.{name}={text} must be a number of nodes such as 500, or a '
    'share of those with labels such as 0.1'
  )
  fraction = base.held_out(text, refusal)
  if fraction is None or fraction[1]:
    raise errors.UserError(refusal)
  return round(fraction[0] * num)


def prepared(features: Any, normalizes: bool) -> Any:
  """Features in float32, sparse if that is less work; or a `UserError`."""
  features_lib.check(features)
  if features is not None:
    features = features_lib.compact(features)
  if features is not None and normalizes:
    features = features_lib.normalized(features)
  return features


def _read_fanouts(text: str) -> tuple[int, ...]:
  """Parses numbers by layer, that of the inputs first; or a `UserError`.

  The result begins with that of the node.
  """
  numbers = [x.strip() for x in text.split(',')]
  if not all(x.isdecimal() and int(x) for x in numbers):
    raise errors.UserError(
      f'config.data.fanouts={text} must be positive numbers separated by '
      'commas, one for each layer'
    )
  return tuple(int(x) for x in reversed(numbers))


@numba.njit(nogil=True, cache=True)
def _divide(offsets, neighbors, order, costs, capacity, part, loads):
  """Assigns each node to a part, once more if it has one."""
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


class NodeSource:
  """Nodes of a graph as a `data.base.Source`; progress is in nodes."""

  unit = 'examples'

  def __init__(self, graph: graph_lib.Graph, spec: base.SourceSpec):
    self.graph, self.spec, settings = graph, spec, spec.settings
    self.inputs, self.keys = graph.inputs, graph.keys()
    self.num_parts, self.epochs = spec.num_parts, spec.epochs
    self.fanouts = _read_fanouts(settings['fanouts'])
    self.trees = neighbors.Trees(
      graph.offsets,
      graph.neighbors,
      self.fanouts,
      replaces=settings['replacement'],
      num_threads=min(_MOST_THREADS, resources.usable_cores()),
    )
    self.from_walks = settings['targets'] == 'walks'
    labels = graph.labels
    if labels is None:
      labels = labels_lib.Labels(np.full(graph.num_nodes, -1))
    self.labels = labels
    self.counts = degrees = np.diff(graph.offsets)
    self.dropped = dict(graph.counted)
    # Labelled nodes, int32, without splits that have none.
    self.splits = {
      k: x.astype(np.int32) for k, x in self._split().items() if len(x)
    }
    self.valid: np.ndarray | None = None
    self.test: np.ndarray | None = None
    if self.from_walks:  # classes are not learned
      self.starts = np.flatnonzero(degrees).astype(np.int32)
      self._sums = np.cumsum(degrees**_POWER)
      self.dropped['nodes_without_neighbors'] = int((degrees == 0).sum())
    else:
      self.valid, self.test = map(self.splits.get, ('valid', 'test'))
      self.starts = self.splits['train']
    self.units_per_epoch = len(self.starts)
    self._bounds = np.zeros(0, np.int64)  # of the starts of each part
    if settings['local']:
      self._sort_by_part()
    self.frequencies = self._lookups()
    self.features = prepared(graph.features, settings['normalize'])
    self.steps = examples.Steps(spec.part_words, spec.num_parts)
    self.fingerprint = graph_lib.fingerprint(graph)

  @functools.cached_property
  def valid_blocks(self) -> tuple[np.ndarray, Sequence[neighbors.Block]]:
    """The nodes for validation, rising, and what layers need to score them."""
    nodes, graph = np.sort(cast(np.ndarray, self.valid)), self.graph
    lists = graph.offsets, graph.neighbors
    return nodes, neighbors.blocks(*lists, len(self.fanouts), nodes)

  def _split(self):
    """Nodes [n] of each split: that of the graph, or a random one."""
    labels, splits = self.labels, dict(self.graph.splits)
    if not len(labels.nodes):
      if not self.from_walks:
        raise errors.UserError(
          'the graph has no labels to learn; give it labels, or set '
          '--config.data.targets=walks'
        )
      return {}
    if not splits:
      return self._draw_splits()
    if not labels.has_many:  # of several labels, a node may have none
      labelled = {k: x[labels.classes[x] >= 0] for k, x in splits.items()}
      self.dropped['split_nodes_without_label'] = sum(
        len(splits[k]) - len(x) for k, x in labelled.items()
      )
      splits = labelled
    if not len(splits.get('train', ())) and not self.from_walks:
      raise errors.UserError(
        'the splits of the graph have no labelled nodes to learn from; give '
        'them train_mask or idx_train, or remove all of them'
      )
    return splits

  def _draw_splits(self):
    """Draws nodes to train on, then some for validation and some for the test.

    `train_per_class` nodes of each class are trained on, 0 = all that are left;
    a node of several classes counts as one of its first.
    """
    settings, labels, chosen = self.spec.settings, self.labels, []
    rng = np.random.default_rng((self.spec.seed, 1))
    order = rng.permutation(labels.nodes)
    num_valid, num_test = (
      _number(settings[x], x, len(order)) for x in ('valid', 'test')
    )
    if num := settings['train_per_class']:
      classes = labels.first(order)
      chosen = [
        np.flatnonzero(classes == x)[:num] for x in range(labels.num_classes)
      ]
      chosen = np.sort(np.concatenate(chosen))
    rest, num_held = np.delete(order, chosen), num_valid + num_test
    if num_held + (not num) > len(rest):
      raise errors.UserError(
        f'config.data.valid={settings["valid"]} and '
        f'config.data.test={settings["test"]} need {num_held:,} of '
        f'{len(rest):,} labelled nodes that are not trained on; lower them, or '
        '--config.data.train_per_class, such as --config.data.valid=0.1 '
        '--config.data.test=0.2'
      )
    return {
      'train': order[chosen] if num else rest[num_held:],
      'valid': rest[:num_valid],
      'test': rest[num_valid:num_held],
    }

  def _sort_by_part(self):
    """Sorts the starts by the part of the graph that they are in."""
    if self.num_parts == 1:
      raise errors.UserError(
        'config.data.local=true needs several workers or replicas, as each '
        'has a part of the graph; remove it, or set '
        '--config.strategy.name=workers'
      )
    graph, num, num_parts = self.graph, len(self.starts), self.num_parts
    num_nodes, size = graph.num_nodes, self.spec.part_words
    # As many starts in each part, and, as far as it goes, as many nodes.
    costs = np.bincount(self.starts, minlength=num_nodes) + num / num_nodes
    part, loads = np.full(num_nodes, -1, np.int32), np.zeros(num_parts)
    capacity = max(_SPARE * costs.sum() / num_parts, 1e-9)
    rng = np.random.default_rng((self.spec.seed, num_parts))
    order, lists = rng.permutation(num_nodes), (graph.offsets, graph.neighbors)
    for _ in range(_PASSES):
      _divide(*lists, order, costs, capacity, part, loads)
    self.starts = self.starts[np.argsort(part[self.starts], kind='stable')]
    # An epoch's last step may have too few nodes for all parts.
    whole, left = divmod(num, num_parts * size)
    more = np.clip(left - size * np.arange(num_parts), 0, size)
    self._bounds = np.concatenate([[0], np.cumsum(whole * size + more)])

  def _ordered(self, places, key):
    """[n] nodes at some places, of a step and a part, of an epoch's order."""
    start, first, stop = places.start, 0, len(self.starts)
    if len(self._bounds):
      size = self.spec.part_words
      step, in_step = divmod(places.start, self.num_parts * size)
      part, offset = divmod(in_step, size)
      start, (first, stop) = step * size + offset, self._bounds[part : part + 2]
    end, num = start + len(places), stop - first
    return self.starts[first + hashing.order(start, end, num, key)]

  def _lookups(self):
    """[nodes] float64, how often an example has each node."""
    lists = self.graph.offsets, self.graph.neighbors
    chances = np.bincount(self.starts, minlength=self.graph.num_nodes)
    chances = chances / len(self.starts)
    if self.from_walks:
      expected, max_steps = chances, self.spec.window
      for _ in range(max_steps):
        expected = neighbors.spread(*lists, expected)
        chances = chances + expected / max_steps
      drawn = np.diff(self._sums, prepend=0)
      chances = chances + drawn / drawn.sum()
    return self.trees.expected_lookups(chances)

  def eval_paths(self) -> list[str]:
    """None: a graph has its own splits."""
    return []

  def describe(self) -> list[str]:
    """What was read, for the log."""
    held = ''.join(
      f', {len(nodes):,} {name}'
      for name, nodes in (
        ('to learn from', self.splits.get('train')),
        ('for validation', self.valid),
        ('for the test', self.test),
      )
      if nodes is not None
    )
    features = 0 if self.features is None else self.features.shape[1]
    lines = [
      f'graph: {len(self.counts):,} nodes, {self.graph.num_edges:,} edges, '
      f'{features:,} features, {self.labels.num_classes} classes{held}'
    ]
    if len(self._bounds):
      lines.append('each part of a step has nodes of a part of the graph')
    if self.graph.splits:
      lines.append('the split is that of the data')
    if self.graph.weights is not None:
      lines.append(
        'weights of edges are not used: neighbors are equally likely'
      )
    return lines

  def items(
    self, position: Sequence[int] | None, done: int
  ) -> Iterator[base.Item]:
    """Batches from [epoch, next place] to the last epoch's end."""
    width = self.trees.size * (3 if self.from_walks else 1)
    step_ids = self.spec.part_words * self.num_parts * width
    has_numbers = self.labels.has_many and not self.from_walks
    yield from examples.items(
      self.spec,
      num=len(self.starts),
      most_steps=min(_STEPS, max(1, _IDS // step_ids)),
      widths=(width, self.labels.num_classes * has_numbers),
      fill=self._fill,
      position=position,
      done=done,
    )

  def _fill(self, epoch, places, ids, numbers, labels):
    """Samples trees of nodes at some places of an epoch's order."""
    nodes, ids[:] = self.sample(epoch, places)
    labels[:] = 1
    if numbers.shape[1]:
      numbers[:] = self.labels.matrix(nodes).toarray()
    elif not self.from_walks:
      labels[:] = self.labels.classes[nodes]

  def sample(self, epoch: int, places: range) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [n] at places of an epoch's order, and their trees [n, size]."""
    order, trees, walks, draws = (
      hashing.part_key(self.spec.seed, epoch, x)
      for x in (0, _TREES, _WALKS, _DRAWS)
    )
    nodes = self._ordered(places, order)
    roots, every = nodes[:, None], np.arange(places.start, places.stop)
    if self.from_walks:
      lists = self.graph.offsets, self.graph.neighbors
      ends = neighbors.walk(*lists, nodes, every, walks, self.spec.window)
      drawn = neighbors.uniform(every, draws) * self._sums[-1]
      drawn = np.searchsorted(self._sums, drawn, 'right').astype(np.int32)
      roots = np.stack([nodes, ends, drawn], 1)
    num_trees = roots.shape[1]
    numbers = num_trees * every[:, None] + np.arange(num_trees)
    ids = self.trees.sample(roots.reshape(-1), numbers.reshape(-1), trees)
    return nodes, ids.reshape(len(nodes), -1)


def make(spec: base.SourceSpec) -> NodeSource:
  """Reads the graph that the settings name.

  Raises a `UserError` for input that cannot be used.
  """
  return NodeSource(files.read(spec.settings, spec.cache, spec.progress), spec)
