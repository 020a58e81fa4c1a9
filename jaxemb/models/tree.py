"""Hierarchical softmax: the targets of a center are the nodes of its path.

P(o | v) is a product of one decision at each inner node of a Huffman tree from
the root to the leaf of o (`ops.huffman`), some twelve of them. Nodes near the
root are on most paths: the T most frequent ones are looked up once per chunk,
for all of its centers. What remains of the paths, half of them, is looked up
word by word; the ends of the paths of g centers lie one behind the other, with
padding at the end. Most groups need far less room than the longest paths would:
the products take as much as most steps need, and all of it in the others.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, skipgram, targets
from jaxemb.ops import huffman
from jaxemb.tables import spec as spec_lib

# Centers whose paths' ends meet the same tokens: a larger product wastes more,
# a smaller one runs slower.
_GROUP = 8
# The usual room leaves this many deviations above the mean.
_DEVIATIONS = 3.0


@dataclasses.dataclass(frozen=True)
class Outputs:
  """What centers are told by: a vocabulary's tree, cut for chunks of a size."""

  split: huffman.Split  # host arrays
  group: int  # g
  usual_rest: int  # nodes at the ends of the paths of a group, in most steps
  decisions: float  # mean length of the paths of centers

  @property
  def mean_targets(self) -> float:
    """Of a center."""
    return self.decisions

  def spec(self, spec: base.WindowSpec) -> spec_lib.TableSpec:
    """The table of inner nodes."""
    return spec_lib.TableSpec(skipgram.OUTPUT, spec.vocab - 1, spec.dim, 0.0)

  def constants(self) -> huffman.Split:
    """The paths."""
    return self.split

  def rates(
    self, spec: base.WindowSpec, centers: np.ndarray, negatives: np.ndarray
  ) -> np.ndarray:
    """[vocab - 1] float64, expected look-ups of each node per center."""
    del negatives
    split = self.split
    rates = np.zeros(spec.vocab)
    np.add.at(rates, split.deep >> 1, centers[:, None])
    exits = np.bincount(split.exits, centers, len(split.signs))
    on_path = exits @ (split.signs != 0)
    # Once per chunk that has one of its words.
    rates[: len(on_path)] = -np.expm1(-spec.chunk * on_path) / spec.chunk
    return rates[:-1]

  def find(
    self,
    spec: base.WindowSpec,
    constants: huffman.Split,
    batch: base.StepBatch,
    key: jax.Array,
  ) -> targets.Targets:
    """The nodes on the paths of a batch's centers.

    Args:
      spec: sizes.
      constants: `self.constants()`, on the device.
      batch: the step's tokens.
      key: is not used.
    """
    del key
    num_chunks, num_nodes = batch.left.size // spec.chunk, spec.vocab - 1
    centers = batch.tokens[:, spec.window : batch.tokens.shape[1] - spec.window]
    has_pairs = (batch.left.astype(jnp.int32) + batch.right) > 0
    has_pairs = has_pairs.reshape(-1)
    # Padding is no word; it takes what is no path.
    centers = jnp.minimum(centers.reshape(-1), spec.vocab - 1)
    exits = constants.exits.at[centers].get(mode='promise_in_bounds')
    signs = constants.signs.at[exits].get(mode='promise_in_bounds')
    signs = jnp.where(has_pairs[:, None], signs, 0)
    signs = signs.reshape(num_chunks, spec.chunk, -1)
    shared = jnp.where(
      jnp.any(signs != 0, 1), jnp.arange(signs.shape[-1])[None], num_nodes
    )
    weights, positives = jnp.abs(signs), jnp.maximum(signs, 0)
    depth, none = constants.deep.shape[1], 2 * num_nodes
    first = constants.firsts.at[exits].get(mode='promise_in_bounds')
    first = jnp.where(has_pairs[:, None], first, none)
    if not depth:
      lists = _lists(spec, shared, first, first[:, :0], first >> 1, none)
      return targets.Targets(shared, weights, positives, lists)
    deep = constants.deep.at[centers].get(mode='promise_in_bounds')
    deep = jnp.where(has_pairs[:, None], deep, none)
    groups = deep.reshape(-1, self.group, depth)
    # One path's end behind the other: place j of a group is node j - start of
    # the last center that starts at or before j.
    lengths = jnp.sum(groups < none, 2)
    stops = jnp.cumsum(lengths, 1)
    starts = stops - lengths
    places = jnp.arange(self.group * depth)[None]
    owners = jnp.sum(places[..., None] >= stops[:, None, :], 2)
    is_node = owners < self.group
    taken = jnp.minimum(owners, self.group - 1)
    levels = places - jnp.take_along_axis(starts, taken, 1)
    levels = jnp.clip(levels, 0, depth - 1)
    flat = deep.reshape(len(groups), -1)
    packed = jnp.take_along_axis(flat, taken * depth + levels, 1)
    packed = jnp.where(is_node, packed, none)
    ids = jnp.concatenate([shared, (packed >> 1).reshape(num_chunks, -1)], 1)
    is_zero = ((packed & 1) == 0).astype(jnp.float32)
    behind = shared.shape[1] + starts[..., None] + jnp.arange(depth)[None, None]
    # Groups of a chunk are one behind the other.
    groups = jnp.arange(len(flat))[:, None, None] % (spec.chunk // self.group)
    behind += self.group * depth * groups
    lists = _lists(
      spec,
      ids,
      first,
      deep,
      jnp.concatenate([first >> 1, behind.reshape(-1, depth)], 1),
      none,
    )
    return targets.Targets(ids, weights, positives, lists, owners, is_zero)


def _lists(
  spec: base.WindowSpec,
  ids: jax.Array,
  first: jax.Array,
  deep: jax.Array,
  places: jax.Array,
  none: int,
) -> targets.Lists:
  """The nodes of each center.

  Args:
    spec: sizes.
    ids: [k, ...] int32, of the chunks.
    first: [L, F] int32, 2 node + code, of the nodes next to the root.
    deep: [L, D - F] int32, of the others.
    places: [L, D] int32, among those of its chunk.
    none: where there is no node.
  """
  starts = ids.shape[1] * (jnp.arange(len(first)) // spec.chunk)
  packed = jnp.concatenate([first, deep], 1)
  return targets.Lists(
    starts[:, None] + places,
    1.0 - 2 * (packed & 1),
    jnp.stack([jnp.sum(x < none, 1) for x in (first, deep)], 1),
    first.shape[1],
  )


def grow(
  counts: np.ndarray, centers: np.ndarray, chunk: int, num_shared: int
) -> Outputs:
  """The tree of a vocabulary.

  Args:
    counts: [vocab] int, of words.
    centers: [vocab] float, chances that a center is each word.
    chunk: c.
    num_shared: T at most.
  """
  paths = huffman.tree_paths(counts)
  split = huffman.split(paths, num_shared)
  group = next(g for g in range(min(_GROUP, chunk), 0, -1) if chunk % g == 0)
  num_deep = (split.deep < 2 * (len(counts) - 1)).sum(1)
  mean = float(centers @ num_deep)
  variance = max(float(centers @ num_deep**2) - mean**2, 0.0)
  room = group * mean + _DEVIATIONS * math.sqrt(group * variance)
  usual = min(8 * math.ceil(room / 8), group * split.deep.shape[1])
  return Outputs(split, group, usual, float(centers @ paths.lengths))
