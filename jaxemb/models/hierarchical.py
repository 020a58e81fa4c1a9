"""Skip-gram and CBOW with hierarchical softmax (Mikolov et al. 2013a).

Skip-gram predicts each center from every one of its contexts, CBOW from their
mean, as in word2vec.c:

  loss = -sum_{n in path(center)} log sigmoid((1 - 2 code_n) v . u_n)

with v the input vector of a context, or the mean of those of all contexts. The
gradients are the true ones; CBOW gives each of n contexts 1/n of it, which
word2vec.c omits.

A path has some twelve inner nodes of a Huffman tree (`ops.huffman`). The T most
frequent ones are on most paths: they are looked up once per chunk, for all of
its centers. What remains of the paths, half of the nodes, is looked up center
by center; the path ends of a group of g centers are packed one after the other,
with padding at the end. Few groups need the room of the longest paths, so the
products are sized for most steps, and as large as possible in the others.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, skipgram, targets
from jaxemb.ops import huffman, products, windows
from jaxemb.tables import spec as spec_lib

TARGETS = 'targets'  # beside the ids of the tables: weights of the nodes

# Centers whose path ends meet the same tokens: a larger product wastes more, a
# smaller one runs slower.
_GROUP = 8
_SHARED_NODES = 64  # T
# The compact room is this many deviations above the mean.
_DEVIATIONS = 3.0


@dataclasses.dataclass(frozen=True)
class Tree:
  """A vocabulary's tree, cut for chunks of a given size."""

  split: huffman.Split
  group: int  # g
  compact_rest: int  # nodes in the path ends of a group, in most steps
  decisions: float  # mean length of the paths of centers

  loss = 'hierarchical_softmax'

  @property
  def untrained_loss(self) -> float:
    """Nats per pair."""
    return self.decisions * math.log(2)

  def table(
    self, spec: base.WindowSpec, lookups: np.ndarray | None
  ) -> spec_lib.TableSpec:
    """The table of inner nodes."""
    return spec_lib.TableSpec(
      skipgram.OUTPUT,
      spec.vocab - 1,
      spec.dim,
      0.0,
      lookups_per_center=lookups,
    )

  def lookups(self, spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
    """[vocab - 1] float64, expected lookups of each node per center."""
    split = self.split
    lookups = np.zeros(spec.vocab)
    np.add.at(lookups, split.deep >> 1, corpus.centers[:, None])
    exits = np.bincount(split.exits, corpus.centers, len(split.signs))
    on_path = exits @ (split.signs != 0)
    # Once per chunk that has one of its words.
    shared = -np.expm1(-spec.chunk * on_path) / spec.chunk
    lookups[: len(on_path)] = shared
    return lookups[:-1]

  def find_targets(
    self, spec: base.WindowSpec, batch: base.StepBatch, key: jax.Array
  ) -> targets.Targets:
    """The nodes on the paths of a batch's centers; nothing is drawn."""
    del key
    split = self.split
    num_chunks, num_nodes = batch.left.size // spec.chunk, spec.vocab - 1
    has_pairs = (skipgram.num_contexts(batch) > 0).reshape(-1)
    # Padding is no word; it takes any path, all of whose nodes are masked.
    centers = skipgram.centers(spec, batch).reshape(-1)
    centers = jnp.minimum(centers, spec.vocab - 1)
    exits = split.exits.at[centers].get(mode='promise_in_bounds')
    signs = split.signs.at[exits].get(mode='promise_in_bounds')
    signs = jnp.where(has_pairs[:, None], signs, 0)
    signs = signs.reshape(num_chunks, spec.chunk, -1)
    shared = jnp.where(
      jnp.any(signs != 0, 1), jnp.arange(signs.shape[-1])[None], num_nodes
    )
    weights, positives = jnp.abs(signs), jnp.maximum(signs, 0)
    depth, none = split.deep.shape[1], 2 * num_nodes
    first = split.firsts.at[exits].get(mode='promise_in_bounds')
    first = jnp.where(has_pairs[:, None], first, none)
    if not depth:
      lists = _lists(spec, shared, first, first[:, :0], first >> 1, none)
      return targets.Targets(shared, weights, positives, lists)
    deep = split.deep.at[centers].get(mode='promise_in_bounds')
    deep = jnp.where(has_pairs[:, None], deep, none)
    groups = deep.reshape(-1, self.group, depth)
    # Path ends one after the other: slot j of a group holds node j - start of
    # the last center that starts at or before j.
    lengths = jnp.sum(groups < none, 2)
    stops = jnp.cumsum(lengths, 1)
    starts = stops - lengths
    slots = jnp.arange(self.group * depth)[None]
    owners = jnp.sum(slots[..., None] >= stops[:, None, :], 2)
    is_node = owners < self.group
    taken = jnp.minimum(owners, self.group - 1)
    levels = slots - jnp.take_along_axis(starts, taken, 1)
    levels = jnp.clip(levels, 0, depth - 1)
    flat = deep.reshape(len(groups), -1)
    packed = jnp.take_along_axis(flat, taken * depth + levels, 1)
    packed = jnp.where(is_node, packed, none)
    ids = jnp.concatenate([shared, (packed >> 1).reshape(num_chunks, -1)], 1)
    is_zero = ((packed & 1) == 0).astype(jnp.float32)
    ends = shared.shape[1] + starts[..., None] + jnp.arange(depth)[None, None]
    # The groups of a chunk follow one another.
    groups = jnp.arange(len(flat))[:, None, None] % (spec.chunk // self.group)
    ends += self.group * depth * groups
    positions = jnp.concatenate([first >> 1, ends.reshape(-1, depth)], 1)
    lists = _lists(spec, ids, first, deep, positions, none)
    return targets.Targets(ids, weights, positives, lists, owners, is_zero)


jax.tree_util.register_dataclass(
  Tree, ['split'], ['group', 'compact_rest', 'decisions']
)


def _lists(
  spec: base.WindowSpec,
  ids: jax.Array,
  first: jax.Array,
  deep: jax.Array,
  positions: jax.Array,
  none: int,
) -> targets.Lists:
  """The nodes of each center.

  Args:
    spec: sizes.
    ids: [k, ...] int32, of the chunks.
    first: [L, F] int32, 2 node + code, of the nodes next to the root.
    deep: [L, D - F] int32, of the others.
    positions: [L, D] int32, among those of its chunk.
    none: where there is no node.
  """
  starts = ids.shape[1] * (jnp.arange(len(first)) // spec.chunk)
  packed = jnp.concatenate([first, deep], 1)
  return targets.Lists(
    starts[:, None] + positions,
    1.0 - 2 * (packed & 1),
    jnp.stack([jnp.sum(x < none, 1) for x in (first, deep)], 1),
    first.shape[1],
  )


def tree(
  corpus: base.Corpus, chunk: int, num_shared: int = _SHARED_NODES
) -> Tree:
  """The tree of a corpus; chunks of c centers share up to T nodes."""
  paths = huffman.tree_paths(corpus.counts)
  split = huffman.split(paths, num_shared)
  group = next(g for g in range(min(_GROUP, chunk), 0, -1) if chunk % g == 0)
  num_deep = (split.deep < 2 * (len(corpus.counts) - 1)).sum(1)
  mean = float(corpus.centers @ num_deep)
  variance = max(float(corpus.centers @ num_deep**2) - mean**2, 0.0)
  room = group * mean + _DEVIATIONS * math.sqrt(group * variance)
  compact = min(8 * math.ceil(room / 8), group * split.deep.shape[1])
  decisions = float(corpus.centers @ paths.lengths)
  return Tree(split, group, compact, decisions)


@dataclasses.dataclass(frozen=True)
class Hierarchical(base.Model):
  """Skip-gram or CBOW over one step's rows."""

  tree: Tree
  spec: base.WindowSpec
  averages: bool  # CBOW: the mean of a center's contexts predicts it
  lookups: Mapping[str, np.ndarray] | None = None  # by table, see `TableSpec`

  vectors_table = skipgram.INPUT

  @property
  def untrained_loss(self) -> float:
    """Of a pair, or of a center."""
    return self.tree.untrained_loss

  def specs(self) -> dict[str, spec_lib.TableSpec]:
    """The input (context) table and that of the inner nodes."""
    lookups = self.lookups or {}
    return skipgram.tables(self.spec, lookups) | {
      skipgram.OUTPUT: self.tree.table(self.spec, lookups.get(skipgram.OUTPUT))
    }

  def ids(self, batch: base.StepBatch, key: jax.Array) -> dict[str, Any]:
    """Input: [L / c, c + 2 W] windows. Output: nodes."""
    s = self.spec
    nodes = self.tree.find_targets(s, batch, key)
    return {
      skipgram.INPUT: windows.chunk_windows(batch.tokens, s.chunk, s.window),
      skipgram.OUTPUT: nodes.ids,
      TARGETS: nodes,
    }

  def loss(
    self,
    params: tuple[()],
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, Any],
    batch: base.StepBatch,
    key: jax.Array,
  ) -> tuple[jax.Array, base.Aux]:
    """Summed over the pairs, or for CBOW over centers with a context."""
    del params, key
    s, g = self.spec, self.tree.group
    mask = windows.window_mask(batch.left, batch.right, s.chunk, s.window)
    token_rows = rows[skipgram.INPUT]
    examples = num_contexts = skipgram.num_contexts(batch)
    if self.averages:
      num_contexts = num_contexts.reshape(-1, s.chunk, 1)
      mean = mask / jnp.maximum(num_contexts, 1)
      token_rows = products.weighted_sums(mean, token_rows)
      # The only token that predicts a center is its own mean.
      s = dataclasses.replace(s, window=0)
      examples = (num_contexts > 0).astype(jnp.float32)
      mask = examples * jnp.eye(s.chunk)[None]
      near = examples.reshape(-1, g, 1) * jnp.eye(g)[None]
    else:
      near = windows.window_mask(batch.left, batch.right, g, s.window)
    loss = targets.window_loss(
      s,
      ids[TARGETS],
      self.tree.compact_rest,
      token_rows,
      rows[skipgram.OUTPUT],
      mask,
      near,
    )
    return loss, base.Aux(examples.sum())


jax.tree_util.register_dataclass(
  Hierarchical, ['tree'], ['spec', 'averages'], ['lookups']
)


def make(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  averages: bool = False,
  num_shared: int = _SHARED_NODES,
) -> Hierarchical:
  """Hierarchical softmax for a corpus of at least two words."""
  outputs = tree(corpus, spec.chunk, num_shared)
  lookups = {
    skipgram.INPUT: skipgram.window_lookups(spec) * corpus.centers,
    skipgram.OUTPUT: outputs.lookups(spec, corpus),
  }
  return Hierarchical(outputs, spec, averages, lookups)
