"""Losses of models that predict a center from its contexts.

Such a model (hierarchical softmax, the mixtures) gives every center i some
output rows n, its targets. With s = v . u_n the likelihood of center i for an
input row v is

  log P(i | v) = sum_n max(0, sign[i, n]) s - |sign[i, n]| log(1 + exp(s))

For hierarchical softmax these are the inner nodes on the center's path, with
sign 1 where it takes code 0 and -1 elsewhere; for negative sampling the center
itself, 1, and the negatives, -K / N. Scores are products of all input and all
output rows of a chunk; a score serves every pair that has it, so no array of
pairs is built.

A path has some twelve inner nodes of a Huffman tree (`ops.huffman`). The T most
frequent ones are on most paths, and are looked up once per chunk. What remains
of the paths, half of the nodes, is looked up center by center; the path ends of
a group of g centers are packed, with padding at the end, and meet only the
tokens near their group:

                    shared (n)           rest, by groups of centers (m)
  [c + 2 W tokens]  the chunk's          | [g + 2 W tokens] x own | ...

Few groups have the longest paths, so the products have a size that fits most
steps, and the full size in the others.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import windows
from jaxemb.models import base, cbow, columns, skipgram
from jaxemb.ops import huffman, sampling
from jaxemb.storage import word2vec_format

TARGETS = 'targets'  # `Targets`, beside the ids of the tables

# g: larger products waste more, smaller ones run slower.
_GROUP = 8
# The compact room is this many deviations above the mean.
_DEVIATIONS = 3.0
MIN_LOG = -15.0  # of probabilities, as in the code of Tian et al. 2014


class Targets(NamedTuple):
  """The targets of a step's k chunks of c centers."""

  ids: jax.Array  # [k, n + (c / g) m] int32, output rows
  signs: jax.Array  # [k, c, n] float32
  # The targets of each center alone.
  places: jax.Array  # [L, D] int32, index into the step's flat output rows
  place_signs: jax.Array  # [L, D] float32, 0 = none
  # The rest, with padding at the end, or None.
  rest_owners: jax.Array | None = None  # [k c / g, m] int32, centers; g = none
  rest_positives: jax.Array | None = None  # [k c / g, m] float32, 1 or 0


@dataclasses.dataclass(frozen=True)
class Nodes:
  """Inner nodes of a tree, of which output rows are."""

  links: huffman.Links = dataclasses.field(compare=False)
  # [nodes] int32, of a run that is continued the row of each, or -1.
  old_rows: np.ndarray | None = dataclasses.field(default=None, compare=False)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tree:
  """The Huffman tree of a vocabulary, cut for chunks of a given size."""

  split: huffman.Split
  nodes: Nodes = base.static()
  group: int = base.static()  # g
  compact_rest: int = base.static()  # m in most steps
  untrained_loss: float = base.static()  # nats per pair

  loss = 'hierarchical_softmax'

  def lookups(self, spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
    """Returns [vocab - 1] float64, expected lookups of each node per center."""
    split = self.split
    lookups = np.zeros(spec.vocab)
    np.add.at(lookups, split.deep >> 1, corpus.centers[:, None])
    exits = np.bincount(split.exits, corpus.centers, len(split.signs))
    on_path = exits @ (split.signs != 0)
    # Once per chunk that has one of its words.
    lookups[: len(on_path)] = -np.expm1(-spec.chunk * on_path) / spec.chunk
    return lookups[:-1]

  def find(
    self, spec: base.WindowSpec, batch: windows.StepBatch, key: jax.Array
  ) -> Targets:
    """Finds the nodes on the paths of a batch's centers; nothing is drawn."""
    split, chunk, group = self.split, spec.chunk, self.group
    depth, none = split.deep.shape[1], 2 * (spec.vocab - 1)
    has_pairs = batch.num_contexts().reshape(-1, 1) > 0
    # Padding takes any path, all of whose nodes are masked.
    centers = batch.centers().reshape(-1)
    centers = jnp.minimum(centers, spec.vocab - 1)
    exits = jnp.asarray(split.exits).at[centers].get(mode='promise_in_bounds')

    def of_pairs(rows, index, nothing):
      values = rows.at[index].get(mode='promise_in_bounds')
      return jnp.where(has_pairs, values, nothing)

    signs = of_pairs(split.signs, exits, 0)
    first = of_pairs(split.firsts, exits, none)
    deep = of_pairs(split.deep, centers, none)
    num_shared = signs.shape[1]
    signs = signs.reshape(-1, chunk, num_shared)
    shared = jnp.where(
      jnp.any(signs != 0, 1), jnp.arange(num_shared)[None], none // 2
    )
    # Position j of a group has node j - start of the last center to start by j.
    lengths = jnp.sum(deep < none, 1).reshape(-1, group)
    stops = jnp.cumsum(lengths, 1)
    starts = stops - lengths
    positions = jnp.arange(group * depth)[None]
    owners = jnp.sum(positions[..., None] >= stops[:, None, :], 2)
    center = jnp.minimum(owners, group - 1)
    levels = positions - jnp.take_along_axis(starts, center, 1)
    levels = jnp.clip(levels, 0, depth - 1)
    packed = jnp.take_along_axis(
      deep.reshape(-1, group * depth), center * depth + levels, 1
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
      ids=ids,
      signs=signs,
      places=jnp.where(path < none, places, 0),
      place_signs=jnp.where(path < none, 1.0 - 2 * (path & 1), 0.0),
      rest_owners=owners,
      rest_positives=((packed & 1) == 0).astype(jnp.float32),
    )


def tree(corpus: base.Corpus, chunk: int, num_shared: int) -> Tree:
  """Makes the tree of two words or more; chunks share `num_shared` nodes."""
  nodes = _nodes(corpus)
  paths = huffman.paths(nodes.links)
  split = huffman.split(paths, num_shared)
  group = next(g for g in range(min(_GROUP, chunk), 0, -1) if chunk % g == 0)
  num_deep = (split.deep < 2 * (len(corpus.counts) - 1)).sum(1)
  mean = float(corpus.centers @ num_deep)
  variance = max(float(corpus.centers @ num_deep**2) - mean**2, 0.0)
  room = group * mean + _DEVIATIONS * math.sqrt(group * variance)
  compact = min(8 * math.ceil(room / 8), group * split.deep.shape[1])
  decisions = float(corpus.centers @ paths.lengths)
  return Tree(
    split=split,
    nodes=nodes,
    group=group,
    compact_rest=compact,
    untrained_loss=decisions * math.log(2),
  )


def _nodes(corpus: base.Corpus) -> Nodes:
  """Returns the inner nodes of a corpus; a run that is continued has most."""
  run = corpus.known
  if run is None or run.tree is None:
    return Nodes(huffman.links(corpus.counts))
  spelled, _ = word2vec_format.spell(corpus.keys)
  ids_of = {x: i for i, x in enumerate(spelled)}
  ids = np.array([ids_of[x] for x in run.keys])
  old = huffman.Links(*run.tree)
  return Nodes(*huffman.grown(old, ids, counts=corpus.counts))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampled:
  """Negative sampling of centers, as in `models.cbow`, in place of paths."""

  negatives: sampling.Alias
  untrained_loss: float = base.static()  # nats per pair

  loss = 'negative_sampling'
  compact_rest = 0

  def lookups(self, spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
    """Returns [vocab] float64, expected lookups of each row per center."""
    return corpus.centers + skipgram.draw_lookups(spec, corpus)

  def find(
    self, spec: base.WindowSpec, batch: windows.StepBatch, key: jax.Array
  ) -> Targets:
    """Finds centers and negatives, [L / c, c + N] ids."""
    draws = skipgram.draw_negatives(spec, self.negatives, batch, key=key)
    ids = jnp.concatenate([batch.centers(), draws], 1)
    is_drawn = jnp.arange(ids.shape[1])[None, None] >= spec.chunk
    signs = cbow.target_weights(spec, ids)
    signs = jnp.where(is_drawn, -signs, signs)
    # Of each center: itself, and the negatives of its chunk.
    places = jnp.arange(ids.size).reshape(ids.shape)
    centers = places[:, : spec.chunk, None]
    drawn = places[:, None, spec.chunk :]
    drawn_signs = signs[:, :, spec.chunk :]
    drawn = jnp.broadcast_to(drawn, drawn_signs.shape)
    places, place_signs = (
      jnp.concatenate(x, 2).reshape(centers.size, -1)
      for x in ((centers, drawn), (jnp.ones(centers.shape), drawn_signs))
    )
    return Targets(ids=ids, signs=signs, places=places, place_signs=place_signs)


def sampled(spec: base.WindowSpec, corpus: base.Corpus) -> Sampled:
  """Makes negative sampling for a corpus."""
  chances = skipgram.negative_probabilities(corpus.counts)
  untrained_loss = (1 + spec.negatives) * math.log(2)
  return Sampled(sampling.alias_table(chances), untrained_loss)


def _groups(x: jax.Array, group: int, halo: int) -> jax.Array:
  """Cuts [k, c + 2 W, d] into windows of groups, [k c / g, g + 2 W, d]."""
  num_chunks, width, dim = x.shape
  num, size = (width - halo) // group, group + halo
  # Blocks of g tokens rather than a slice for each group, the derivative of
  # which is a sum of as many arrays.
  x = jnp.pad(x, [(0, 0), (0, -width % group), (0, 0)])
  blocks = x.reshape(num_chunks, -1, group, dim)
  pieces = [
    blocks[:, i : i + num, : size - i * group] for i in range(-(-size // group))
  ]
  return jnp.concatenate(pieces, 2).reshape(num_chunks * num, size, dim)


def window_loss(
  row_ops: columns.RowOps,
  targets: Targets,
  compact_rest: int,
  token_rows: jax.Array,
  target_rows: jax.Array,
  mask: jax.Array,
) -> jax.Array:
  """Returns -log P(center | token), summed over the pairs of all chunks.

  Takes token rows [k, c + 2 W, d], the rows of `targets.ids`, and the mask [k,
  c, c + 2 W] float32, 1 for tokens that are contexts of a center; W is 0 where
  each center has one token.
  """
  chunk, width = mask.shape[1:]
  num_shared, by_token = targets.signs.shape[-1], mask.transpose(0, 2, 1)
  counts = jnp.einsum('kwc,kcn->kwn', by_token, jnp.abs(targets.signs))
  positives = jnp.maximum(targets.signs, 0)
  positives = jnp.einsum('kwc,kcn->kwn', by_token, positives)
  scores = row_ops.dot(token_rows, target_rows[:, :num_shared])
  loss = jnp.sum(sampling.logistic_loss(scores, positives, counts))
  if targets.rest_owners is None:
    return loss
  num_groups, most = targets.rest_owners.shape
  group, halo = len(mask) * chunk // num_groups, width - chunk
  near = jnp.stack(
    [
      mask[:, i : i + group, i : i + group + halo]
      for i in range(0, chunk, group)
    ],
    1,
  ).reshape(num_groups, group, -1)
  # Padding has no pairs.
  near = jnp.pad(near, [(0, 0), (0, 1), (0, 0)])

  def rest_loss(num, args):
    # A target has the pairs of its one center: a gather takes a fifth of the
    # time of a product with an array of ones and zeros.
    rows, rest = args
    owners = targets.rest_owners[:, :num, None]
    counts = jnp.take_along_axis(near, owners, 1).transpose(0, 2, 1)
    positives = counts * targets.rest_positives[:, None, :num]
    scores = row_ops.dot(rows, rest[:, :num])
    return jnp.sum(sampling.logistic_loss(scores, positives, counts))

  # Devices that share the columns of rows have to take the same branch.
  is_whole = row_ops.columns is not None or compact_rest >= most
  sizes = [most] if is_whole else [compact_rest, most]
  has_more = jnp.any(targets.rest_owners[:, compact_rest:] < group)
  args = (
    _groups(token_rows, group, halo),
    target_rows[:, num_shared:].reshape(num_groups, most, -1),
  )
  value, grads = jax.lax.switch(
    has_more.astype(jnp.int32),
    [jax.value_and_grad(functools.partial(rest_loss, x)) for x in sizes],
    jax.lax.stop_gradient(args),
  )
  return loss + with_gradient(value, args, grads)


@jax.custom_jvp
def log_chances(scores: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns [...] nats, |w| log sigmoid(sign(w) s), of weighted decisions.

  The weights, which broadcast with the scores [...], are data, negative for
  decisions against a score. Logarithms are clipped at `MIN_LOG`, but keep the
  gradient that they have there.
  """
  return -jnp.abs(weights) * jnp.log(1 + _odds(scores, weights))


@log_chances.defjvp
def _log_chances_jvp(primals, tangents):
  odds = _odds(*primals)
  slope = primals[1] * (odds / (1 + odds))
  return log_chances(*primals), slope * tangents[0]


def _odds(scores, weights):
  return jnp.exp(jnp.minimum(-jnp.sign(weights) * scores, -MIN_LOG))


@jax.custom_vjp
def with_gradient(value: jax.Array, args: Any, grads: Any) -> jax.Array:
  """Returns the value [], with these gradients of a pytree of arrays.

  For losses that are differentiated where they are computed: autodiff of
  branches and loops would store what any of them needs for its derivative.
  """
  return value


with_gradient.defvjp(
  lambda value, args, grads: (value, grads),
  lambda grads, slope: (slope, jax.tree.map(lambda x: slope * x, grads), None),
)
