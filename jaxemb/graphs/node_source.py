"""From a graph to batches for GraphSAGE: nodes with trees of sampled neighbors.

The source gives labelled nodes, or walks: a node u, the node v at the end of a
short walk from it, and a node n drawn by degree^0.75. All are trees
(`neighbors`), sampled ahead of the device.

The order of an epoch is a keyed permutation, of all nodes or of those of each
part of the graph (`partitions`), and all draws are hashes of the place in it:
(epoch, next place) is the reader's whole state.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxemb import errors
from jaxemb.data import base, examples
from jaxemb.graphs import files, neighbors, partitions
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.ops import hashing
from jaxemb.runtime import resources

_STEPS, _IDS = 32, 1 << 22  # of a dispatch, at most
_TREES, _WALKS, _DRAWS = 1, 2, 3  # streams of random numbers
_POWER = 0.75  # of degrees, to draw nodes
_MOST_THREADS = 8


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


def split(
  labels: labels_lib.Labels, valid: str, test: str, per_class: int, seed: int
) -> dict[str, np.ndarray]:
  """Draws nodes to train on, then some for validation and some for the test.

  `per_class` nodes of each class are trained on, 0 = all that are left; a node
  of several classes counts as one of its first. Raises a `UserError` if there
  are too few.
  """
  order = np.random.default_rng((seed, 1)).permutation(labels.nodes)
  num_valid = _number(valid, 'valid', len(order))
  num_test = _number(test, 'test', len(order))
  kept = np.zeros(0, np.int64)
  if per_class:
    classes = labels.first(order)
    kept = [np.flatnonzero(classes == x) for x in range(labels.num_classes)]
    kept = np.sort(np.concatenate([x[:per_class] for x in kept]))
  rest, num_held = np.delete(order, kept), num_valid + num_test
  if num_held + (not per_class) > len(rest):
    raise errors.UserError(
      f'config.data.valid={valid} and config.data.test={test} need '
      f'{num_held:,} of {len(rest):,} labelled nodes that are not '
      'trained on; lower them, or --config.data.train_per_class, such as '
      '--config.data.valid=0.1 --config.data.test=0.2'
    )
  return {
    'train': order[kept] if per_class else rest[num_held:],
    'valid': rest[:num_valid],
    'test': rest[num_valid:num_held],
  }


def check_features(features: np.ndarray | None) -> None:
  """Raises a `UserError` for features that are no numbers.

  Of more than 1 GB only every n-th row is looked at.
  """
  if features is None:
    return
  if not features.shape[1]:
    raise errors.UserError(
      'nodes have features of no columns; give --config.data.features another '
      'file, or set --config.model.inputs=rows'
    )
  every = 1 + features.nbytes // 1_000_000_000
  for start in range(0, len(features), every << 16):
    rows = features[start : start + (every << 16) : every]
    if not (is_finite := np.isfinite(rows).all(1)).all():
      row = start + every * int(is_finite.argmin())
      raise errors.UserError(
        f'features of node {row:,} (from 0) are not all finite; mend them, '
        'such as by numpy.nan_to_num'
      )


def read_fanouts(text: str) -> tuple[int, ...]:
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


class NodeSource:
  """Nodes of a graph as a `data.base.Source`; progress is in nodes."""

  unit = 'examples'

  def __init__(self, graph: graph_lib.Graph, spec: base.SourceSpec):
    self.graph, self.spec, settings = graph, spec, spec.settings
    self.inputs = graph.inputs
    self.fanouts = read_fanouts(settings['fanouts'])
    self.from_walks = settings['targets'] == 'walks'
    self.replaces = settings['replacement']
    self.num_parts, self.epochs = spec.num_parts, spec.epochs
    num_nodes = graph.num_nodes
    degrees = np.diff(graph.offsets)
    self.labels = graph.labels or labels_lib.Labels(np.full(num_nodes, -1))
    self.dropped = dict(graph.counted)
    # Labelled nodes, int32, without splits that have none.
    self.splits = {
      k: x.astype(np.int32) for k, x in self._split().items() if len(x)
    }
    if self.from_walks:  # classes are not learned
      self.valid = self.test = None
      self.starts = np.flatnonzero(degrees).astype(np.int32)
      self._sums = np.cumsum(degrees**_POWER)
    else:
      self.valid, self.test = map(self.splits.get, ('valid', 'test'))
      self.starts = self.splits['train']
    self.units_per_epoch = len(self.starts)
    self._bounds = np.zeros(0, np.int64)  # of the starts of each part
    if settings['local']:
      self._sort_by_part()
    self.keys = graph.keys()
    self.counts = degrees
    self.frequencies = self._lookups()
    self.features = graph.features
    check_features(self.features)
    if self.features is not None and settings['normalize']:
      self.features = normalized(self.features)
    self.steps = examples.Steps(spec.part_words, spec.num_parts)
    self.fingerprint = graph_lib.fingerprint(graph)
    if self.from_walks:
      self.dropped['nodes_without_neighbors'] = int((degrees == 0).sum())
    self._threads = min(_MOST_THREADS, resources.usable_cores())

  def _split(self):
    settings = self.spec.settings
    if not len(self.labels.nodes):
      if not self.from_walks:
        raise errors.UserError(
          'the graph has no labels to learn; give it labels, or set '
          '--config.data.targets=walks'
        )
      return {}
    if splits := dict(self.graph.splits):
      if not self.labels.has_many:  # of several labels, a node may have none
        classes = self.labels.classes
        total = sum(map(len, splits.values()))
        splits = {k: x[classes[x] >= 0] for k, x in splits.items()}
        num = total - sum(map(len, splits.values()))
        self.dropped['split_nodes_without_label'] = num
      if not len(splits.get('train', ())) and not self.from_walks:
        raise errors.UserError(
          'the splits of the graph have no labelled nodes to learn from; give '
          'them train_mask or idx_train, or remove all of them'
        )
      return splits
    return split(
      self.labels,
      valid=settings['valid'],
      test=settings['test'],
      per_class=settings['train_per_class'],
      seed=self.spec.seed,
    )

  def _sort_by_part(self):
    """Has the starts of a part of the graph side by side."""
    if self.num_parts == 1:
      raise errors.UserError(
        'config.data.local=true needs several workers or replicas, as each '
        'has a part of the graph; remove it, or set '
        '--config.strategy.name=workers'
      )
    num, size = len(self.starts), self.spec.part_words
    num_nodes = self.graph.num_nodes
    # As many starts in each part, and, as far as it goes, as many nodes.
    costs = np.bincount(self.starts, minlength=num_nodes) + num / num_nodes
    part = partitions.close(
      self.graph.offsets,
      self.graph.neighbors,
      costs,
      num_parts=self.num_parts,
      seed=self.spec.seed,
    )
    self.starts = self.starts[np.argsort(part[self.starts], kind='stable')]
    # An epoch's last step may have too few nodes for all parts.
    whole, left = divmod(num, self.num_parts * size)
    more = np.clip(left - size * np.arange(self.num_parts), 0, size)
    self._bounds = np.concatenate([[0], np.cumsum(whole * size + more)])

  def _ordered(self, places, key):
    """[n] nodes at some places, of a step and a part, of an epoch's order."""
    if not len(self._bounds):
      num = len(self.starts)
      return self.starts[hashing.order(places.start, places.stop, num, key)]
    size = self.spec.part_words
    step, in_step = divmod(places.start, self.num_parts * size)
    part, offset = divmod(in_step, size)
    first, stop = self._bounds[part : part + 2]
    start = step * size + offset
    rows = hashing.order(start, start + len(places), stop - first, key)
    return self.starts[first + rows]

  def _lookups(self):
    """[nodes] float64, how often an example has each node."""
    offsets, others = self.graph.offsets, self.graph.neighbors
    degrees = np.diff(offsets)
    chances = np.bincount(self.starts, minlength=len(degrees))
    chances = chances / len(self.starts)
    if self.from_walks:
      expected, max_steps = chances, self.spec.window
      for _ in range(max_steps):
        per_neighbor = np.repeat(expected / np.maximum(degrees, 1), degrees)
        expected = np.bincount(others, per_neighbor, len(degrees))
        chances = chances + expected / max_steps
      drawn = np.diff(self._sums, prepend=0)
      chances = chances + drawn / drawn.sum()
    return neighbors.expected_lookups(
      offsets,
      neighbors=others,
      chances=chances,
      fanouts=self.fanouts,
      replaces=self.replaces,
    )

  def eval_paths(self) -> list[str]:
    """None: a graph has its own splits."""
    return []

  def describe(self) -> list[str]:
    """What was read, for the log."""
    num, labels = len(self.counts), self.labels
    held = [
      f'{len(nodes):,} {name}'
      for name, nodes in (
        ('to learn from', self.splits.get('train')),
        ('for validation', self.valid),
        ('for the test', self.test),
      )
      if nodes is not None
    ]
    features = 0 if self.features is None else self.features.shape[1]
    lines = [
      f'graph: {num:,} nodes, {self.graph.num_edges:,} edges, '
      f'{features:,} features, {labels.num_classes} classes'
      + (f', {", ".join(held)}' if held else '')
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
    """Batches from a position, [epoch, next place], to the last epoch's end."""
    size = neighbors.tree_sizes(self.fanouts)[-1] * (
      3 if self.from_walks else 1
    )
    step_ids = self.spec.part_words * self.num_parts * size
    most_steps = min(_STEPS, max(1, _IDS // step_ids))
    has_numbers = self.labels.has_many and not self.from_walks
    widths = size, self.labels.num_classes * has_numbers
    yield from examples.items(
      self.spec,
      num=len(self.starts),
      most_steps=most_steps,
      widths=widths,
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
    seed = self.spec.seed
    nodes = self._ordered(places, hashing.part_key(seed, epoch, 0))
    offsets, others = self.graph.offsets, self.graph.neighbors
    every = np.arange(places.start, places.stop)
    roots = nodes[:, None]
    if self.from_walks:
      walks, draws = (
        hashing.part_key(seed, epoch, x) for x in (_WALKS, _DRAWS)
      )
      most_steps = self.spec.window
      ends = neighbors.walk(offsets, others, nodes, every, walks, most_steps)
      drawn = neighbors.uniform(every, draws) * self._sums[-1]
      drawn = np.searchsorted(self._sums, drawn, 'right').astype(np.int32)
      roots = np.stack([nodes, ends, drawn], 1)
    num_trees = roots.shape[1]
    places = (num_trees * every[:, None] + np.arange(num_trees)).reshape(-1)
    ids = neighbors.sample(
      offsets,
      others,
      nodes=roots.reshape(-1),
      places=places,
      key=hashing.part_key(seed, epoch, _TREES),
      fanouts=self.fanouts,
      replaces=self.replaces,
      num_threads=self._threads,
    )
    return nodes, ids.reshape(len(nodes), -1)


def normalized(features: np.ndarray) -> np.ndarray:
  """[nodes, d] features divided by the sum of each row's sizes."""
  sums = np.abs(features).sum(1, keepdims=True)
  return features / np.maximum(sums, 1e-12)


def make(spec: base.SourceSpec) -> NodeSource:
  """Reads the graph that the settings name.

  Raises a `UserError` for input that cannot be used.
  """
  graph = files.read(spec.settings, spec.cache, spec.progress)
  return NodeSource(graph, spec)
