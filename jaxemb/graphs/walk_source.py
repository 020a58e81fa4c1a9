"""Walks over a graph as a corpus: a walk is a sentence, its nodes are words.

The corpus is the same in every epoch, and has `data.walks` walks from each
node. Its blocks are walked whenever they are read, so that all that trains on
text trains on walks: windows, subsampling and sub-models are those of text.

Ids are nodes by falling count. Counts come from walking once over the corpus,
or, where that is long and no walk ends early, over a part of its blocks.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb.data import base
from jaxemb.data import blocks as blocks_lib
from jaxemb.evaluation import ranking
from jaxemb.graphs import edge_splits, walks
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.graphs import link_ranking as links
from jaxemb.graphs import node_classification as nodes
from jaxemb.ops import hashing
from jaxemb.runtime import resources

_COUNTED_STEPS = 1 << 26  # at most, where counts are estimated
_READ_BLOCKS = 32  # at once
_WALK_STREAM = 0x3A1C  # of random numbers


class Corpus(NamedTuple):
  """Walks in blocks, as an encoded text."""

  walker: walks.Walker
  block_walks: int  # walks of a block
  num_walks: int
  words: Sequence[str]  # names of nodes, by falling count
  counts: np.ndarray  # [vocab] int64, visits
  ids_of: np.ndarray  # [nodes] int32; -1 = no walk comes there
  blocks: blocks_lib.Blocks
  manifest: dict[str, Any]

  @property
  def num_words(self) -> int:
    """Nodes of all walks."""
    return int(self.blocks.words.sum())

  def block(self, number: int) -> np.ndarray:
    """[n] int32, the ids of a block."""
    (ids,) = self.read(np.array([number]))
    return ids

  def read(self, numbers: np.ndarray) -> Iterator[np.ndarray]:
    """The ids of several blocks, walked together."""
    for i in range(0, len(numbers), _READ_BLOCKS):
      for walked in self.walked(numbers[i : i + _READ_BLOCKS]):
        yield walks.with_ends(np.where(walked < 0, walked, self.ids_of[walked]))

  def walked(self, numbers: np.ndarray) -> list[np.ndarray]:
    """[walks, length] int32 nodes of each block."""
    size = self.block_walks
    starts = numbers * size
    sizes = np.minimum(size, self.num_walks - starts)
    every = np.concatenate([
      np.arange(a, a + n) for a, n in zip(starts, sizes, strict=True)
    ])  # fmt: skip
    return np.split(self.walker.walks(every), np.cumsum(sizes)[:-1])


def make_corpus(
  graph: graph_lib.Graph,
  settings: Mapping[str, Any],
  seed: int,
  progress: Any,
) -> Corpus:
  """The walks that settings under `config.data` name.

  Raises a `UserError` if no edge leads anywhere.
  """
  length, num_threads = settings['walk_length'], resources.reading_threads()
  walker = walks.Walker.of(
    graph,
    length,
    settings['p'],
    settings['q'],
    int(hashing.part_key(seed, _WALK_STREAM, 0)),
    num_threads,
  )
  num_walks = settings['walks'] * len(walker.starts)
  size = max(1, blocks_lib.BLOCK_WORDS // length)
  num_blocks = -(-num_walks // size)
  block_walks = np.full(num_blocks, size)
  block_walks[-1] = num_walks - size * (num_blocks - 1)
  words = block_walks * length
  corpus = Corpus(
    walker=walker,
    block_walks=size,
    num_walks=num_walks,
    words=(),
    counts=np.zeros(0),
    ids_of=np.zeros(0),
    blocks=None,
    manifest={},
  )
  # Walks end early where no edge leads on.
  is_sampled = not graph.directed and words.sum() > _COUNTED_STEPS
  counts = _visits(corpus, words, is_sampled, progress=progress)
  # Every pass begins a walk at each.
  counts[walker.starts] = np.maximum(counts[walker.starts], settings['walks'])
  order = np.argsort(-counts, kind='stable')
  order = order[: np.count_nonzero(counts)]
  ids_of = np.full(graph.num_nodes, -1, np.int32)
  ids_of[order] = np.arange(len(order))
  keys = graph.keys()
  starts = np.concatenate([[0], np.cumsum(words + block_walks)])
  blocks = blocks_lib.Blocks(starts, words, np.arange(num_blocks))
  walk_settings = {k: settings[k] for k in ('walks', 'walk_length', 'p', 'q')}
  dropped = {k: x for k, x in graph.counted.items()}
  manifest = {
    'fingerprint': f'{graph_lib.fingerprint(graph)} {walk_settings}',
    'dropped': dropped,
    'are_counts_exact': not is_sampled,
  }
  return corpus._replace(
    words=[keys[i] for i in order],
    counts=counts[order],
    ids_of=ids_of,
    blocks=blocks,
    manifest=manifest,
  )


def _visits(corpus, words, is_sampled, progress):
  """[nodes] int64 visits; of a part of the blocks, extrapolated, if sampled.

  Sets `words` [blocks] of the blocks that are walked to their nodes.
  """
  blocks = np.arange(len(words))
  if is_sampled:
    blocks = blocks[:: -(-int(words.sum()) // _COUNTED_STEPS)]
  counts = np.zeros(len(corpus.walker.offsets) - 1, np.int64)
  for i in range(0, len(blocks), _READ_BLOCKS):
    some = blocks[i : i + _READ_BLOCKS]
    for number, walked in zip(some, corpus.walked(some), strict=True):
      visited = walked[walked >= 0]
      counts += np.bincount(visited, minlength=len(counts))
      words[number] = len(visited)
    progress('counting walks', i + len(some), len(blocks))
  if is_sampled:
    counts = np.round(counts * (words.sum() / counts.sum())).astype(np.int64)
  return counts


class Walks(blocks_lib.BlockSource):
  """Walks as a `data.base.Source`; progress is in nodes of walks."""

  def __init__(self, spec: base.SourceSpec):
    settings = spec.settings
    graph, self.held, dropped = edge_splits.split(spec)
    self.graph = graph
    corpus = make_corpus(graph, settings, spec.seed, progress=spec.progress)
    super().__init__(corpus, spec)
    degrees = np.diff(graph.offsets)
    self.dropped = {
      **corpus.manifest['dropped'],
      **dropped,
      'isolated_nodes': int((corpus.ids_of < 0).sum()),
    }
    self.max_degree = int(degrees.max())

  def describe(self) -> list[str]:
    """What was read, for the log."""
    graph, corpus = self.graph, self.corpus
    held = ''.join(
      f', {len(x.edges):,} held out for {name}' for name, x in self.held.items()
    )
    settings = self.spec.settings
    labelled = (
      ''
      if graph.labels is None
      else (
        f', {len(graph.labels.nodes):,} with labels of '
        f'{graph.labels.num_classes:,} classes'
      )
    )
    exact = 'exact' if corpus.manifest['are_counts_exact'] else 'estimated'
    return [
      f'graph: {graph.num_nodes:,} nodes, {graph.num_edges:,} '
      f'{"" if graph.directed else "un"}directed edges'
      f'{" with weights" * (graph.weights is not None)}, at most '
      f'{self.max_degree:,} of a node{labelled}{held}',
      f'walks: {settings["walks"]} of {settings["walk_length"]} nodes from '
      f'each of {len(corpus.walker.starts):,}, in all {corpus.num_words:,}; '
      f'counts of {len(self.keys):,} nodes are {exact}',
    ]

  def evaluate(
    self, vectors: np.ndarray, contexts: np.ndarray | None, is_cosine: bool
  ) -> dict[str, dict[str, Any]]:
    """What vectors [vocab, d] tell of labels and of edges held out."""
    graph, scores = self.graph, {}
    if graph.labels is not None:
      labels = graph.labels.matrix(self.nodes)
      total = len(graph.labels.nodes)
      scores |= nodes.evaluate(vectors, labels, num_total=total)
    for name, held in self.held.items():
      edges = self.corpus.ids_of[held.edges]
      edges = edges[(edges >= 0).all(1)]
      if not graph.directed:
        edges = np.concatenate([edges, edges[:, ::-1]])
      scores[f'{name} edges'] = links.evaluate(
        links.products(vectors, vectors, is_cosine=True),
        edges,
        self._known,
        negatives=self.spec.settings['candidates'],
        degrees=np.diff(graph.offsets)[self.nodes],
        num_total=(len(held.edges) + held.num_unknown)
        * (1 if graph.directed else 2),
      )
    return scores

  @functools.cached_property
  def categories(self) -> dict[str, list[str]]:
    """Names of nodes by their first label, for a map."""
    labels = self.graph.labels
    return labels.keys_by_class(self.keys, self.nodes) if labels else {}

  @functools.cached_property
  def nodes(self) -> np.ndarray:
    """[vocab] the node of each id."""
    order = np.flatnonzero(self.corpus.ids_of >= 0)
    return order[np.argsort(self.corpus.ids_of[order])]

  def _known(self, wanted):
    """The second ends of all edges of ids [n], held out or not.

    Of the others nothing: lists of all edges would be as large as the graph.
    """
    graph, ids_of = self.graph, self.corpus.ids_of
    owners, places = labels_lib.entries(graph.offsets, self.nodes[wanted])
    pairs = [np.stack([wanted[owners], ids_of[graph.neighbors[places]]])]
    for held in self.held.values():
      edges = ids_of[held.edges.T]
      for some in [edges] if graph.directed else [edges, edges[::-1]]:
        pairs.append(some[:, np.isin(some[0], wanted)])
    first, second = np.concatenate(pairs, 1)
    first, second = first[second >= 0], second[second >= 0]
    order = np.argsort(first, kind='stable')
    sizes = np.bincount(first, minlength=len(self.keys))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return ranking.Sets(starts, second[order].astype(np.int32))
