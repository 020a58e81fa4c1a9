"""Losses of models that predict a center from its contexts.

Such a model (hierarchical softmax, the mixtures) gives every center i some
output rows n, its targets. With s = v . u_n the likelihood of center i for an
input row v is

  log P(i | v) = sum_n max(0, sign[i, n]) s - |sign[i, n]| log(1 + exp(s))

For hierarchical softmax n are the inner nodes on the center's path, with sign
1 where the path takes code 0 and -1 elsewhere. For negative sampling they are
the center itself, 1, and the negatives, -K / N. Scores are products of all
input rows of a chunk with all of its output rows; a score serves every pair
that has it, so no array of pairs is built.

A path has some twelve inner nodes of a Huffman tree (`ops.huffman`). The T most
frequent ones are on most paths: they are looked up once per chunk, for all of
its centers. What remains of the paths, half of the nodes, is looked up center
by center; the path ends of a group of g centers are packed one after the other,
with padding at the end, and meet only the tokens near their group:

                    shared (n)           rest, by groups of centers (m)
  [c + 2 W tokens]  the chunk's          | [g + 2 W tokens] x own | ...

Few groups need the room of the longest paths, so the products are sized for
most steps, and as large as possible in the others.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, cbow, skipgram
from jaxemb.ops import huffman, losses, sampling

TARGETS = 'targets'  # `Targets`, beside the ids of the tables

# Centers whose path ends meet the same tokens: a larger product wastes more, a
# smaller one runs slower.
_GROUP = 8
SHARED_NODES = 64  # T
# The compact room is this many deviations above the mean.
_DEVIATIONS = 3.0


class Targets(NamedTuple):
  """Of a step's k chunks of c centers."""

  ids: jax.Array  # [k, n + (c / g) m] int32, output rows
  signs: jax.Array  # [k, c, n] float32
  # The targets of each center, one by one, for those who want no others.
  places: jax.Array  # [L, D] int32, index into the step's flat output rows
  place_signs: jax.Array  # [L, D] float32, 0 = none
  # The rest, with padding at the end, or None.
  rest_owners: jax.Array | None = None  # [k c / g, m] int32, centers; g = none
  rest_positives: jax.Array | None = None  # [k c / g, m] float32, 1 or 0


@dataclasses.dataclass(frozen=True)
class Tree:
  """The Huffman tree of a vocabulary, cut for chunks of a given size."""

  split: huffman.Split
  group: int  # g
  compact_rest: int  # nodes in the path ends of a group, in most steps
  untrained_loss: float  # nats per pair

  loss = 'hierarchical_softmax'

  def lookups(self, spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
    """[vocab - 1] float64, expected lookups of each node per center."""
    split = self.split
    lookups = np.zeros(spec.vocab)
    np.add.at(lookups, split.deep >> 1, corpus.centers[:, None])
    exits = np.bincount(split.exits, corpus.centers, len(split.signs))
    on_path = exits @ (split.signs != 0)
    # Once per chunk that has one of its words.
    lookups[: len(on_path)] = -np.expm1(-spec.chunk * on_path) / spec.chunk
    return lookups[:-1]

  def find(
    self, spec: base.WindowSpec, batch: base.StepBatch, key: jax.Array
  ) -> Targets:
    """The nodes on the paths of a batch's centers; nothing is drawn."""
    del key
    split, chunk, group = self.split, spec.chunk, self.group
    depth, none = split.deep.shape[1], 2 * (spec.vocab - 1)
    has_pairs = (skipgram.num_contexts(batch) > 0).reshape(-1, 1)
    # Padding is no word; it takes any path, all of whose nodes are masked.
    centers = skipgram.centers(spec, batch).reshape(-1)
    centers = jnp.minimum(centers, spec.vocab - 1)
    exits = split.exits.at[centers].get(mode='promise_in_bounds')

    def of_pairs(rows, index, nothing):
      found = rows.at[index].get(mode='promise_in_bounds')
      return jnp.where(has_pairs, found, nothing)

    signs = of_pairs(split.signs, exits, 0)
    first = of_pairs(split.firsts, exits, none)
    deep = of_pairs(split.deep, centers, none)
    num_shared = signs.shape[1]
    signs = signs.reshape(-1, chunk, num_shared)
    shared = jnp.where(
      jnp.any(signs != 0, 1), jnp.arange(num_shared)[None], none // 2
    )
    # Path ends one after the other: slot j of a group holds node j - start of
    # the last center that starts at or before j.
    lengths = jnp.sum(deep < none, 1).reshape(-1, group)
    stops = jnp.cumsum(lengths, 1)
    starts = stops - lengths
    slots = jnp.arange(group * depth)[None]
    owners = jnp.sum(slots[..., None] >= stops[:, None, :], 2)
    taken = jnp.minimum(owners, group - 1)
    levels = slots - jnp.take_along_axis(starts, taken, 1)
    levels = jnp.clip(levels, 0, depth - 1)
    packed = jnp.take_along_axis(
      deep.reshape(-1, group * depth), taken * depth + levels, 1
    )
    packed = jnp.where(owners < group, packed, none)
    ids = jnp.concatenate([shared, (packed >> 1).reshape(len(shared), -1)], 1)
    # The path of each center; the groups of a chunk follow one another.
    number = jnp.arange(len(deep))[:, None]
    ends = starts.reshape(-1, 1) + jnp.arange(depth)[None]
    ends += num_shared + number % chunk // group * (group * depth)
    path = jnp.concatenate([first, deep], 1)
    places = jnp.concatenate([first >> 1, ends], 1)
    places += number // chunk * ids.shape[1]
    return Targets(
      ids,
      signs,
      jnp.where(path < none, places, 0),
      jnp.where(path < none, 1.0 - 2 * (path & 1), 0.0),
      owners,
      ((packed & 1) == 0).astype(jnp.float32),
    )


jax.tree_util.register_dataclass(
  Tree, ['split'], ['group', 'compact_rest', 'untrained_loss']
)


def tree(
  corpus: base.Corpus, chunk: int, num_shared: int = SHARED_NODES
) -> Tree:
  """The tree of at least two words; chunks of c centers share up to T nodes."""
  paths = huffman.tree_paths(corpus.counts)
  split = huffman.split(paths, num_shared)
  group = next(g for g in range(min(_GROUP, chunk), 0, -1) if chunk % g == 0)
  num_deep = (split.deep < 2 * (len(corpus.counts) - 1)).sum(1)
  mean = float(corpus.centers @ num_deep)
  variance = max(float(corpus.centers @ num_deep**2) - mean**2, 0.0)
  room = group * mean + _DEVIATIONS * math.sqrt(group * variance)
  compact = min(8 * math.ceil(room / 8), group * split.deep.shape[1])
  decisions = float(corpus.centers @ paths.lengths)
  return Tree(split, group, compact, decisions * math.log(2))


@dataclasses.dataclass(frozen=True)
class Sampled:
  """Negative sampling of centers, in place of their paths.

  As in `models.cbow`, a chunk of c centers shares N negatives of weight K / N,
  and a negative that equals a pair's own word does not count.
  """

  negatives: sampling.Alias
  untrained_loss: float  # nats per pair

  loss = 'negative_sampling'
  compact_rest = 0

  def lookups(self, spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
    """[vocab] float64, expected lookups of each row per center."""
    return corpus.centers + skipgram.draw_lookups(spec, corpus)

  def find(
    self, spec: base.WindowSpec, batch: base.StepBatch, key: jax.Array
  ) -> Targets:
    """Centers and negatives: [L / c, c + N] ids."""
    draws = skipgram.draw_negatives(spec, self.negatives, batch, key)
    ids = jnp.concatenate([skipgram.centers(spec, batch), draws], 1)
    is_drawn = jnp.arange(ids.shape[1])[None, None] >= spec.chunk
    signs = cbow.target_weights(spec, ids)
    signs = jnp.where(is_drawn, -signs, signs)
    # Of each center: itself, and the negatives of its chunk.
    places = jnp.arange(ids.size).reshape(ids.shape)
    own, drawn = places[:, : spec.chunk, None], places[:, None, spec.chunk :]
    drawn_signs = signs[:, :, spec.chunk :]
    drawn = jnp.broadcast_to(drawn, drawn_signs.shape)
    each = (own, drawn), (jnp.ones(own.shape), drawn_signs)
    places, place_signs = (
      jnp.concatenate(x, 2).reshape(own.size, -1) for x in each
    )
    return Targets(ids, signs, places, place_signs)


jax.tree_util.register_dataclass(Sampled, ['negatives'], ['untrained_loss'])


def sampled(spec: base.WindowSpec, corpus: base.Corpus) -> Sampled:
  """Negative sampling for a corpus."""
  chances = skipgram.negative_probabilities(corpus.counts)
  untrained_loss = (1 + spec.negatives) * math.log(2)
  return Sampled(sampling.alias_table(chances), untrained_loss)


def _groups(x: jax.Array, group: int, window: int) -> jax.Array:
  """[k, c + 2 W, d] -> [k c / g, g + 2 W, d], windows of groups of centers."""
  num_chunks, width, dim = x.shape
  num, wanted = (width - 2 * window) // group, group + 2 * window
  # Blocks of g tokens and the ones behind, rather than a slice for each group:
  # the derivative of those is a sum of as many arrays.
  x = jnp.pad(x, [(0, 0), (0, -width % group), (0, 0)])
  blocks = x.reshape(num_chunks, -1, group, dim)
  pieces = [
    blocks[:, i : i + num, : wanted - i * group]
    for i in range(-(-wanted // group))
  ]
  return jnp.concatenate(pieces, 2).reshape(num_chunks * num, wanted, dim)


def window_loss(
  spec: base.WindowSpec,
  found: Targets,
  compact_rest: int,
  token_rows: jax.Array,
  target_rows: jax.Array,
  mask: jax.Array,
) -> jax.Array:
  """-log P(center | token), summed over the pairs of all chunks.

  Of token rows [k, c + 2 W, d] and target rows, those of `found.ids`; the mask
  [k, c, c + 2 W] float32 is 1 for tokens that are contexts of a center, and W
  is 0 where tokens are the centers' own. In most steps the path ends of a group
  have at most `compact_rest` nodes.
  """
  num_shared, turned = found.signs.shape[-1], mask.transpose(0, 2, 1)
  counts = jnp.einsum('kwc,kcn->kwn', turned, jnp.abs(found.signs))
  positives = jnp.maximum(found.signs, 0)
  positives = jnp.einsum('kwc,kcn->kwn', turned, positives)
  scores = spec.row_ops.dot(token_rows, target_rows[:, :num_shared])
  loss = jnp.sum(losses.logistic_loss(scores, positives, counts))
  if found.rest_owners is None:
    return loss
  num_groups, most = found.rest_owners.shape
  group, width = len(mask) * spec.chunk // num_groups, 2 * spec.window
  near = jnp.stack(
    [
      mask[:, i : i + group, i : i + group + width]
      for i in range(0, spec.chunk, group)
    ],
    1,
  ).reshape(num_groups, group, -1)
  # Padding has no pairs.
  near = jnp.pad(near, [(0, 0), (0, 1), (0, 0)])

  def rest_loss(num, args):
    # A target has one center and so its pairs: a gather instead of a product
    # with an array of ones and zeros, in a fifth of the time.
    rows, rest = args
    owners = found.rest_owners[:, :num, None]
    counts = jnp.take_along_axis(near, owners, 1).transpose(0, 2, 1)
    positives = counts * found.rest_positives[:, None, :num]
    scores = spec.row_ops.dot(rows, rest[:, :num])
    return jnp.sum(losses.logistic_loss(scores, positives, counts))

  # Devices that share the columns of rows have to take the same branch.
  is_whole = spec.row_ops.columns is not None or compact_rest >= most
  sizes = [most] if is_whole else [compact_rest, most]
  has_more = jnp.any(found.rest_owners[:, compact_rest:] < group)
  args = (
    _groups(token_rows, group, spec.window),
    target_rows[:, num_shared:].reshape(num_groups, most, -1),
  )
  value, grads = jax.lax.switch(
    has_more.astype(jnp.int32),
    [jax.value_and_grad(functools.partial(rest_loss, x)) for x in sizes],
    jax.lax.stop_gradient(args),
  )
  return loss + losses.with_gradient(value, args, grads)
