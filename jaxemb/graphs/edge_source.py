"""Edges of a graph as examples, in a random order in each epoch.

An example is (source, target) and, where edges have one, the relation. Either
end of an undirected edge is the source, at random in each epoch.

With P partitions of nodes the edges come in buckets: those within a partition,
and those between two, in either direction. Rows of two partitions are needed at
a time. Buckets have an order in which every one shares a partition with the one
before (PyTorch-BigGraph, Lerer et al. 2019, section 4.1): each of the
P (P - 1) / 2 pairs but the first loads one partition, and fewer cannot be.
Every second epoch goes the order back, and begins with what is there.

The order of an epoch is a function of (seed, epoch), and the reader's whole
state (epoch, next place).
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.data import base, examples, growth
from jaxemb.graphs import edge_splits
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import link_ranking as links
from jaxemb.graphs import node_classification as nodes
from jaxemb.models import edge_scores

_DISPATCH = 1 << 17  # edges, or one step if that has more


def bucket_order(
  num_partitions: int, is_back: bool = False
) -> list[tuple[int, int]]:
  """All pairs (i, j), i <= j, each sharing a partition with the one before.

  >>> bucket_order(3)
  [(0, 1), (0, 0), (1, 1), (0, 2), (2, 2), (1, 2)]
  """
  pairs = []
  for i in range(num_partitions - 1):
    others = range(i + 1, num_partitions)
    pairs += [(i, j) for j in (reversed(others) if i % 2 else others)]
  order: dict[tuple[int, int], None] = {}
  for i, j in pairs[::-1] if is_back else pairs:
    order |= dict.fromkeys([(i, j), (i, i), (j, j)])
  return list(order) or [(0, 0)]


def num_loads(order: Sequence[tuple[int, int]]) -> int:
  """Partitions that are loaded, where two have room at a time."""
  held: list[int] = []
  loads = 0
  for pair in order:
    loads += len({*pair} - {*held})
    held = [*[x for x in held if x not in pair], *{*pair}][-2:]
  return loads


def _grown(graph: graph_lib.Graph, known: base.Known) -> graph_lib.Graph:
  """The graph with all nodes and relations that a run has known."""
  graph = graph.with_nodes(growth.earlier(known, graph.keys()).absent)
  if (names := graph.relation_names) is None:
    return graph
  # Behind them are the inverse ones.
  before = known.contexts[: len(known.contexts) // 2]
  absent = growth.absent_names(before, list(names))
  return graph._replace(relation_names=[*names, *absent])


class Edges:
  """Edges as a `data.base.Source`: ids [..., 2 or 3]; progress is in edges."""

  unit = 'edges'

  def __init__(self, spec: base.SourceSpec):
    self.spec, self.num_parts, self.epochs = spec, spec.num_parts, spec.epochs
    graph, self.held = edge_splits.split(spec)
    if spec.known:
      graph = _grown(graph, spec.known)
    self.graph, self.inputs = graph, graph.inputs
    degrees = np.diff(graph.offsets)
    if graph.directed:
      degrees += np.bincount(graph.neighbors, minlength=graph.num_nodes)
    counts, earlier = degrees, None
    if spec.known:
      earlier = growth.earlier(spec.known, graph.keys()).counts
      counts = degrees + earlier
    # Nodes without an edge come last, and are left out.
    order = np.argsort(-counts, kind='stable')
    order = order[: np.count_nonzero(counts)].astype(np.int32)
    num = spec.settings['partitions']
    if num > len(order):
      raise errors.UserError(
        f'config.data.partitions={num} is more than the {len(order):,} nodes '
        'that have edges; lower it'
      )
    # In each partition, frequent nodes come first.
    partitions = [order[i::num] for i in range(num)]
    self._nodes = order = np.concatenate(partitions)
    # [partitions + 1] int64, the first id of each; None = there is one.
    starts = np.cumsum([0, *map(len, partitions)])
    self.partitions = starts if num > 1 else None
    self._ids_of = np.full(graph.num_nodes, -1, np.int32)
    self._ids_of[order] = np.arange(len(order), dtype=np.int32)
    self.keys = graph_lib.Chosen(graph.names, order)
    self.counts = counts[order]
    self.earlier = None if earlier is None else earlier[order]
    self._make_columns(starts)
    self.units_per_epoch = len(self._columns[0])
    # [keys] float64, how often an edge has each as an end.
    self.frequencies = degrees[order] / self.units_per_epoch
    # [2, keys] float64, chances that the source and the target are each.
    ends = [np.bincount(x, minlength=len(order)) for x in self._columns[:2]]
    if not graph.directed:
      ends = 2 * [np.mean(ends, 0)]
    self.end_frequencies = np.stack(ends) / self.units_per_epoch
    names, counts = graph.relation_names, np.array([self.units_per_epoch])
    if graph.relations is not None:
      counts = np.bincount(graph.relations, minlength=len(names or ()))
    self.num_relations = len(counts)
    self.relation_frequencies = counts / counts.sum()
    # Of models with operators.
    names = list(names or map(str, range(len(counts))))
    self.context_keys = names + [f'{x} (inverse)' for x in names]
    # Relations, which a run has not counted.
    self.earlier_contexts = np.zeros(len(self.context_keys), np.int64)
    self.fingerprint = f'{graph_lib.fingerprint(graph)} {num} partitions'
    isolated = graph.num_nodes - len(self.keys)
    found = edge_splits.located(self.held, self._ids_of, counts)
    self._held_ids, counted = found
    self.dropped = {**graph.counted, 'isolated_nodes': isolated, **counted}
    self.steps = examples.Steps(spec.part_words, spec.num_parts)

  def _make_columns(self, starts: np.ndarray) -> None:
    """Columns of edges [n], by bucket, and where buckets begin."""
    graph, num = self.graph, len(starts) - 1
    sources = np.repeat(self._ids_of, np.diff(graph.offsets))
    columns = [sources, targets := self._ids_of[graph.neighbors]]
    if graph.relations is not None:
      columns.append(np.asarray(graph.relations, np.int32))
    self._num_ids = len(columns)
    if graph.weights is not None:
      weights = np.asarray(graph.weights, np.float32)
      columns.append(weights / np.float32(weights.mean()))
    if not graph.directed:  # each is in two lists
      is_first = sources < targets
      columns = [x[is_first] for x in columns]
    self._order = bucket_order(num)
    numbers = {x: i for i, x in enumerate(self._order)}
    back = [numbers[x] for x in bucket_order(num, is_back=True)]
    # Numbers of buckets, in even epochs and in odd ones.
    self._orders = list(range(len(numbers))), back
    self._starts = np.array([0, len(columns[0])])
    if num > 1:
      bucket_of = np.zeros((num, num), np.int32)
      for (a, b), i in numbers.items():
        bucket_of[a, b] = bucket_of[b, a] = i
      ends = (np.searchsorted(starts, x, 'right') - 1 for x in columns[:2])
      buckets = bucket_of[tuple(ends)]
      order = np.argsort(buckets, kind='stable')
      columns = [x[order] for x in columns]
      sizes = np.bincount(buckets, minlength=len(numbers))
      self._starts = np.concatenate([[0], np.cumsum(sizes)])
    self._columns = columns

  def eval_paths(self) -> list[str]:
    """None: what is held out is not of words."""
    return []

  def describe(self) -> list[str]:
    """What was read, for the log."""
    graph = self.graph
    held = ''.join(
      f', {len(x.edges):,} held out for {name}' for name, x in self.held.items()
    )
    lines = [
      f'edges: {self.units_per_epoch:,} '
      f'{"" if graph.directed else "un"}directed'
      f'{" with weights" * (graph.weights is not None)} between '
      f'{len(self.keys):,} nodes, of {self.num_relations:,} relations{held}'
    ]
    if self.partitions is not None:
      lines.append(
        f'buckets: {len(self._order):,} of {len(self.partitions) - 1} '
        f'partitions; {num_loads(self._order):,} partitions are loaded in an '
        'epoch'
      )
    return lines

  def items(
    self, position: Sequence[int] | None, done: int
  ) -> Iterator[base.Item]:
    """Batches from [epoch, next place] to the last epoch's end."""
    num, spec = self.units_per_epoch, self.spec
    read = functools.lru_cache(1)(self._bucket)
    return examples.items(
      spec,
      num=num,
      most_steps=min(_DISPATCH, num) // (spec.part_words * spec.num_parts) or 1,
      widths=(self._num_ids, len(self._columns) - self._num_ids),
      fill=functools.partial(self._fill, read),
      position=position,
      done=done,
      ends_of=lambda epoch: self._buckets(epoch)[1],
    )

  def _buckets(self, epoch: int) -> tuple[list[int], np.ndarray]:
    """Numbers of buckets in the order of an epoch, and where each ends."""
    order = self._orders[epoch % 2]
    return order, np.cumsum(np.diff(self._starts)[order])

  def _fill(self, read, epoch, places, ids, numbers, labels):
    """Copies edges of a bucket at some places of an epoch's order."""
    order, ends = self._buckets(epoch)
    number = np.searchsorted(ends, places.start, 'right')
    bucket_ids, bucket_numbers = read(epoch, order[number])
    first = places.start - ends[number] + len(bucket_ids)
    rows = slice(first, first + len(places))
    ids[:], numbers[:], labels[:] = bucket_ids[rows], bucket_numbers[rows], 1

  def _bucket(self, epoch: int, bucket: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids [n, 2 or 3] and numbers [n, 0 or 1] in the order of an epoch."""
    rng = np.random.default_rng((self.spec.seed, epoch, bucket))
    start, stop = self._starts[bucket : bucket + 2]
    kind = np.uint32 if stop < 2**32 else np.int64
    order = rng.permutation(np.arange(start, stop, dtype=kind))
    ids = np.empty((len(order), self._num_ids), np.int32)
    numbers = np.empty(
      (len(order), len(self._columns) - self._num_ids), np.float32
    )
    for i, column in enumerate(self._columns):
      out = ids[:, i] if i < self._num_ids else numbers[:, i - self._num_ids]
      out[:] = column[order]
    if not self.graph.directed:
      is_turned = rng.integers(0, 2, len(ids), bool)
      ids[is_turned, :2] = ids[is_turned, 1::-1]
    return ids, numbers

  def evaluate(
    self,
    vectors: np.ndarray,
    contexts: np.ndarray | None,
    score: edge_scores.EdgeScore = edge_scores.PRODUCT,
    ks: Sequence[int] = (),
    is_last: bool = True,
  ) -> dict[str, dict[str, Any]]:
    """What vectors [vocab, d] tell of labels and of edges held out.

    Both ends of an edge are looked for. With an operator `contexts` are those
    of relations, in both directions, else of nodes as targets. While training
    goes on only the validation split is scored, if there is one.
    """
    scores: dict[str, dict[str, Any]] = {}
    is_whole = is_last or 'valid' not in self.held
    if self.graph.labels is not None and is_whole:
      labels = self.graph.labels.matrix(self._nodes)
      scores |= nodes.evaluate(vectors, labels)
    return scores | links.evaluate(
      self._scorer(vectors, contexts, score),
      base.scored_splits(self._held_ids, is_last),
      self._known,
      degrees=self.counts,
      num_relations=self.num_relations,
      candidates=self.spec.settings['candidates'],
      ks=ks,
    )

  def _scorer(self, vectors, contexts, score):
    """The `score` of `links.evaluate`, for both directions of all relations."""
    # Of those that are known, by direction.
    ends = 2 * [links.Vectors(vectors, score)]
    if contexts is not None and score.operator == 'none':
      ends[1] = links.Vectors(contexts, score)

    def score_queries(queries, others):
      nodes, relations = np.divmod(queries, 2 * self.num_relations)
      if score.operator != 'none':
        mapped = score.operate(ends[0].take(nodes), contexts[relations])
        return ends[0].scores(np.asarray(mapped), others)
      is_back = relations >= self.num_relations
      if ends[0] is ends[1] or not is_back.any():
        return ends[1].scores(ends[0].take(nodes), others)
      num = len(vectors) if others is None else others.shape[1]
      scores = np.empty((len(queries), num), np.float32)
      for i in (0, 1):
        rows = np.flatnonzero(is_back == i)
        some = None if others is None else others[rows]
        scores[rows] = ends[1 - i].scores(ends[i].take(nodes[rows]), some)
      return scores

    return score_queries

  def _known(self) -> Iterator[links.Edges]:
    """All edges, held out or not; undirected ones both ways."""
    none = np.zeros(len(self._columns[0]), np.int32)
    trained = (*self._columns[: self._num_ids], none)[:3]
    for edges in (trained, *self._held_ids.values()):
      sources, targets, relations = edges
      yield sources, targets, relations
      if not self.graph.directed:
        yield targets, sources, relations

  @functools.cached_property
  def categories(self) -> dict[str, list[str]]:
    """Names of nodes by their first label, for a map."""
    labels = self.graph.labels
    return labels.keys_by_class(self.keys, self._nodes) if labels else {}
