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
  def most_rest(self) -> int:
    """Nodes that a group may have at the ends of its paths."""
    return self.group * self.split.deep.shape[1]

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
    depth = constants.deep.shape[1]
    if not depth:
      return targets.Targets(shared, weights, positives)
    deep = constants.deep.at[centers].get(mode='promise_in_bounds')
    deep = jnp.where(has_pairs[:, None], deep, 2 * num_nodes)
    deep = deep.reshape(-1, self.group, depth)
    # One path's end behind the other: place j of a group is node j - start of
    # the last center that starts at or before j.
    lengths = jnp.sum(deep < 2 * num_nodes, 2)
    stops = jnp.cumsum(lengths, 1)
    places = jnp.arange(self.group * depth)[None]
    owners = jnp.sum(places[..., None] >= stops[:, None, :], 2)
    is_node = owners < self.group
    taken = jnp.minimum(owners, self.group - 1)
    starts = jnp.take_along_axis(stops - lengths, taken, 1)
    levels = jnp.clip(places - starts, 0, depth - 1)
    flat = deep.reshape(len(deep), -1)
    packed = jnp.take_along_axis(flat, taken * depth + levels, 1)
    packed = jnp.where(is_node, packed, 2 * num_nodes)
    ids = jnp.concatenate([shared, (packed >> 1).reshape(num_chunks, -1)], 1)
    first = ((packed & 1) == 0).astype(jnp.float32)
    return targets.Targets(ids, weights, positives, owners, first)


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
