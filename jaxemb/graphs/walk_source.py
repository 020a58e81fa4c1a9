"""Walks over a graph as a corpus: a walk is a sentence, its nodes are words.

The corpus is the same in every epoch, and has `data.walks` walks from each
node. Its blocks are walked whenever they are read, so that all that trains on
text trains on walks: windows, subsampling and sub-models are those of text.

Ids are nodes by falling count. Counts come from walking once over the corpus,
or, where that is long and no walk ends early, over some of its blocks.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxemb.data import base, growth
from jaxemb.data import blocks as blocks_lib
from jaxemb.graphs import edge_splits, walks
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import link_ranking as links
from jaxemb.graphs import node_classification as nodes
from jaxemb.ops import hashing
from jaxemb.runtime import resources

_COUNTED_STEPS = 1 << 26  # at most, where counts are estimated
_READ_BLOCKS = 32  # at once
_READ_NODES = 1 << 16  # whose lists are looked through at once
_WALK_STREAM = 0x3A1C  # of random numbers


class Corpus:
  """Walks in blocks, as an encoded text."""

  def __init__(self, graph: graph_lib.Graph, spec: base.SourceSpec):
    """Makes the walks that settings under `config.data` name, and counts."""
    settings = {k: spec.settings[k] for k in ('walks', 'walk_length', 'p', 'q')}
    num, length, return_bias, in_out_bias = settings.values()
    self.walker = walks.Walker.of(
      graph,
      length=length,
      return_bias=return_bias,
      in_out_bias=in_out_bias,
      key=int(hashing.part_key(spec.seed, _WALK_STREAM, 0)),
      num_threads=resources.reading_threads(),
    )
    starts = self.walker.starts
    num_walks = num * len(starts)
    # [blocks + 1], the first walk of each.
    size = max(1, blocks_lib.BLOCK_WORDS // length)
    self._bounds = np.append(np.arange(0, num_walks, size), num_walks)
    words = np.diff(self._bounds) * length
    # Walks end early where no edge leads on.
    self.is_sampled = not graph.directed and words.sum() > _COUNTED_STEPS
    counts = self._visits(words, spec.progress)
    # Every pass begins a walk at each.
    counts[starts] = np.maximum(counts[starts], num)
    visits, keys = counts, graph.keys()
    if spec.known:
      counts = visits + growth.earlier(spec.known, keys).counts
    # [vocab], the node of each id, by falling count.
    self.nodes = np.argsort(-counts, kind='stable')[: np.count_nonzero(counts)]
    self.counts = counts[self.nodes]
    # Of these, those of the walks, if there are others.
    self.text_counts = visits[self.nodes] if spec.known else None
    self.words = [keys[i] for i in self.nodes]
    # [nodes] int32; -1 = no walk comes there.
    self.ids_of = np.full(graph.num_nodes, -1, np.int32)
    self.ids_of[self.nodes] = np.arange(len(self.nodes))
    ids = np.cumsum(words + np.diff(self._bounds))
    first_ids = np.concatenate([[0], ids])
    self.blocks = blocks_lib.Blocks(first_ids, words, np.arange(len(words)))
    self.num_words = int(words.sum())  # nodes of all walks
    self.manifest = {
      'fingerprint': f'{graph_lib.fingerprint(graph)} {settings}'
    }

  def block(self, number: int) -> np.ndarray:
    """[n] int32, the ids of a block."""
    return next(self.read(np.array([number])))

  def read(self, numbers: np.ndarray) -> Iterator[np.ndarray]:
    """The ids of several blocks, walked together."""
    for i in range(0, len(numbers), _READ_BLOCKS):
      for walked in self._walked(numbers[i : i + _READ_BLOCKS]):
        yield walks.with_ends(np.where(walked < 0, walked, self.ids_of[walked]))

  def _walked(self, numbers):
    """[walks, length] int32 nodes of each block."""
    every = [np.arange(*self._bounds[i : i + 2]) for i in numbers]
    stops = np.cumsum([len(x) for x in every])
    return np.split(self.walker.walks(np.concatenate(every)), stops[:-1])

  def _visits(self, words, progress):
    """[nodes] int64 visits; of some of the blocks, extrapolated, if sampled.

    Sets `words` [blocks] of the blocks that are walked to their nodes.
    """
    blocks = np.arange(len(words))
    if self.is_sampled:
      blocks = blocks[:: -(-int(words.sum()) // _COUNTED_STEPS)]
    counts = np.zeros(len(self.walker.lists.offsets) - 1, np.int64)
    for i in range(0, len(blocks), _READ_BLOCKS):
      some = blocks[i : i + _READ_BLOCKS]
      for number, walked in zip(some, self._walked(some), strict=True):
        visited = walked[walked >= 0]
        counts += np.bincount(visited, minlength=len(counts))
        words[number] = len(visited)
      progress('counting walks', i + len(some), len(blocks))
    if self.is_sampled:
      counts = np.round(counts * (words.sum() / counts.sum())).astype(np.int64)
    return counts


class Walks(blocks_lib.BlockSource):
  """Walks as a `data.base.Source`; progress is in nodes of walks."""

  def __init__(self, spec: base.SourceSpec):
    graph, held = edge_splits.split(spec)
    if spec.known:
      absent = growth.earlier(spec.known, graph.keys()).absent
      graph = graph.with_nodes(absent)
    self.held = {k: x._replace(relations=None) for k, x in held.items()}
    super().__init__(Corpus(graph, spec), spec)
    self.graph, self.inputs = graph, graph.inputs
    isolated = int((self.corpus.ids_of < 0).sum())
    found = edge_splits.located(self.held, self.corpus.ids_of)
    self._held_ids, counted = found
    self.dropped = {**graph.counted, 'isolated_nodes': isolated, **counted}

  def describe(self) -> list[str]:
    """What was read, for the log."""
    graph, corpus, settings = self.graph, self.corpus, self.spec.settings
    labels, held = '', ''.join(
      f', {len(x.edges):,} held out for {name}' for name, x in self.held.items()
    )  # fmt: skip
    if graph.labels is not None:
      labels = (
        f', {len(graph.labels.nodes):,} with labels of '
        f'{graph.labels.num_classes:,} classes'
      )
    exact = 'estimated' if corpus.is_sampled else 'exact'
    return [
      f'graph: {graph.num_nodes:,} nodes, {graph.num_edges:,} '
      f'{"" if graph.directed else "un"}directed edges'
      f'{" with weights" * (graph.weights is not None)}, at most '
      f'{np.diff(graph.offsets).max():,} of a node{labels}{held}',
      f'walks: {settings["walks"]} of {settings["walk_length"]} nodes from '
      f'each of {len(corpus.walker.starts):,}, in all {corpus.num_words:,}; '
      f'counts of {len(self.keys):,} nodes are {exact}',
    ]

  def evaluate(
    self,
    vectors: np.ndarray,
    contexts: np.ndarray | None,
    ks: Sequence[int] = (),
  ) -> dict[str, dict[str, Any]]:
    """What vectors [vocab, d] tell of labels and of edges held out."""
    graph, corpus = self.graph, self.corpus
    scores: dict[str, dict[str, Any]] = {}
    if graph.labels is not None:
      labels = graph.labels.matrix(corpus.nodes)
      total = len(graph.labels.nodes)
      scores |= nodes.evaluate(vectors, labels, num_total=total)
    return scores | links.evaluate(
      links.cosines(vectors),
      self._held_ids,
      self._known,
      degrees=np.diff(graph.offsets)[corpus.nodes],
      candidates=self.spec.settings['candidates'],
      ks=ks,
    )

  @functools.cached_property
  def categories(self) -> dict[str, list[str]]:
    """Names of nodes by their first label, for a map."""
    labels = self.graph.labels
    return labels.keys_by_class(self.keys, self.corpus.nodes) if labels else {}

  def _known(self) -> Iterator[links.Edges]:
    """All edges, held out or not, in parts; undirected ones both ways."""
    graph, ids_of = self.graph, self.corpus.ids_of
    for first in range(0, graph.num_nodes, _READ_NODES):
      offsets = graph.offsets[first : first + _READ_NODES + 1]
      sources = np.repeat(ids_of[first : first + _READ_NODES], np.diff(offsets))
      targets = ids_of[graph.neighbors[offsets[0] : offsets[-1]]]
      yield sources, targets, np.zeros_like(sources)
    for sources, targets, relations in self._held_ids.values():
      yield sources, targets, relations
      if not graph.directed:
        yield targets, sources, relations
