"""Models of edges: vectors of nodes that tell which edge is there.

An edge leads from node s to node t, by relation r. `Line` has one vector for
each node (first order), or another one where a node is the end (second order),
and learns as skip-gram does, from draws that the c edges of a chunk share:

  -log sigmoid(v_s . u_t) - sum_{k=1..K} log sigmoid(-v_s . u_k),  u_k ~ d^0.75

(Tang et al. 2015, eq. 7). `Relations` is the model of
PyTorch-BigGraph (Lerer et al. 2019): a relation has an operator f_r on vectors
(`models.edge_scores`), and f_r(v_s) is to score higher with v_t than with v_n
of others: the ends of the chunk's other edges and N nodes that it draws;
likewise g_r(v_t) with v_s among other sources, with an operator g_r of its own
(reciprocal relations, Lacroix et al. 2018). The operator is always on the end
that stays, so that a chunk has one matrix product a side, whatever its
relations are. A negative that is the true end does not count.

Where relations have operators, two things make up for draws being few. Softmax
estimates that over all nodes: from the score of a negative comes off the
logarithm of how often it is expected among them (Bengio and Senecal 2008), by
uniform draws 0. And an operator near the identity ranks a node as its own
relative, which draws hardly ever are: the own node is one negative more. The
loss may have N3 (Lacroix et al. 2018, eq. 8) of the rows of an edge.

Nodes may lie in partitions, ranges of ids: then draws are from those of the
chunk's own ends, so that a bucket of edges needs no row of another partition.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import examples
from jaxemb.models import base, columns, edge_scores
from jaxemb.ops import sampling
from jaxemb.tables import spec as spec_lib

if TYPE_CHECKING:
  from jaxemb.graphs import edge_source

NODES, CONTEXTS, RELATIONS = 'nodes', 'contexts', 'relations'
# Rare nodes keep what is random in their vectors, which distances suffer from.
_INIT_SCALES = {'product': 0.1, 'cosine': 0.1, 'distance': 0.01}
_NEVER = -1e9  # the score of what does not count
_POWER = 0.75  # power of degrees, by which LINE draws


def margin(
  positives: jax.Array, negatives: jax.Array, least: float = 0.1
) -> jax.Array:
  """[...], what scores lack of being `least` above each of the others, summed.

  Scores are [...] of edges and [..., N] of others.
  """
  return jnp.sum(jax.nn.relu(least - positives[..., None] + negatives), -1)


def logistic(positives: jax.Array, negatives: jax.Array) -> jax.Array:
  """[...] nats, of the edge and of the mean of others; as of `margin`."""
  others = jnp.mean(sampling.logistic_loss(negatives, 0.0), -1)
  return sampling.logistic_loss(positives, 1.0) + others


def _weights(batch, chunk):
  """[E / c, c], those of edges, where the data have them."""
  weights = batch.weights
  if batch.numbers.shape[1]:
    weights = weights * batch.numbers[:, 0]
  return weights.reshape(-1, chunk)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Line(base.Model):
  """Vectors of nodes, by their proximity of first or second order."""

  noise: sampling.Alias
  spec: base.WindowSpec = base.static()
  tables: tuple[spec_lib.TableSpec, ...] = base.static()
  loss_of: sampling.Pointwise = base.static()

  vectors_table, has_contexts_of_keys = NODES, True
  score = edge_scores.PRODUCT

  @property
  def contexts_table(self) -> str:
    """Of the second order."""
    return CONTEXTS if len(self.tables) > 1 else ''

  @property
  def untrained_loss(self) -> float:
    """Of an edge whose scores are all zero."""
    zero, one = (cast(jax.Array, np.float32(x)) for x in (0, 1))
    edge, other = self.loss_of(zero, one), self.loss_of(zero, zero)
    return float(edge + self.spec.negatives * other)

  def ids(self, batch: examples.StepBatch, key: jax.Array):
    """Sources [E / c, c], and others [E / c, c + N], or both in one."""
    s = self.spec
    sources, targets, *_ = batch.by_chunk(s.chunk)
    positions = batch.draw_positions(s.chunk, s.shared_negatives)
    draws = sampling.draw(self.noise, key, positions)
    draws = examples.where_used(draws, sources)
    if self.contexts_table:
      others = jnp.concatenate([targets, draws], 1)
      return {NODES: sources, CONTEXTS: others}
    return {NODES: jnp.concatenate([sources, targets, draws], 1)}

  def loss(self, params, rows, ids, batch, key):
    """Summed over edges."""
    s, first = self.spec, rows[NODES][:, : self.spec.chunk]
    if self.contexts_table:
      others, numbers = rows[CONTEXTS], ids[CONTEXTS]
    else:
      others, numbers = (x[NODES][:, s.chunk :] for x in (rows, ids))
    positives = columns.sums(first * others[:, : s.chunk], s.row_ops)
    negatives = s.row_ops.dot(first, others[:, s.chunk :])
    counts = numbers[:, : s.chunk, None] != numbers[:, None, s.chunk :]
    counts = counts * np.float32(s.negatives / s.shared_negatives)
    loss = self.loss_of(positives, 1.0)
    loss += jnp.sum(counts * self.loss_of(negatives, 0.0), -1)
    loss = jnp.sum(_weights(batch, s.chunk) * loss)
    return loss, base.Aux(jnp.sum(batch.weights))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Relations(base.Model):
  """Vectors of nodes, and operators of relations."""

  starts: edge_scores.Array  # [partitions + 1] int32, the first id of each
  spec: base.WindowSpec = base.static()
  tables: tuple[spec_lib.TableSpec, ...] = base.static()
  loss_of: sampling.Pointwise = base.static()  # such as `margin`
  score: edge_scores.EdgeScore = base.static()
  # [2, vocab] float32, logarithm of how often each node is among negative
  # sources and targets, over that of uniform draws; None = not corrected.
  log_counts: edge_scores.Array | None
  n3: float = base.static()  # weight of N3 of the rows of an edge
  # (rows, ids, weights, vocab) -> the loss: softmax of plain products.
  kernel: Callable[..., jax.Array] | None = base.static(default=None)

  vectors_table = NODES

  @property
  def contexts_table(self) -> str:
    """The operators f of all relations, and behind them those g."""
    return RELATIONS if len(self.tables) > 1 else ''

  @property
  def untrained_loss(self) -> float:
    """Of an edge whose scores are all zero."""
    scores = np.zeros(self.spec.chunk + self.spec.shared_negatives, np.float32)
    loss = float(jax.jit(self.loss_of)(scores[0], scores[1:]))
    if self.n3 and self.contexts_table:
      relation = np.zeros(self.spec.dim, np.float32)
      loss += self.n3 * float(jax.jit(self.score.operator_cubes)(relation))
    return 2 * loss

  def ids(self, batch: examples.StepBatch, key: jax.Array):
    """Nodes: [E / c, 2 (c + N)], sources first. Relations: [E / c, 2 c]."""
    s = self.spec
    sources, targets, *relations = batch.by_chunk(s.chunk)
    positions = batch.draw_positions(s.chunk, 2 * s.shared_negatives)
    nodes = []
    halves = jnp.split(positions, 2, 1)
    for ends, half in zip((sources, targets), halves, strict=True):
      draws = self._draw(key, half, ends)
      nodes += [ends, examples.where_used(draws, ends)]
    ids = {NODES: jnp.concatenate(nodes, 1)}
    if self.contexts_table:
      is_padding = sources == examples.PADDING
      forth = relations[0] if relations else jnp.where(is_padding, sources, 0)
      back = jnp.where(is_padding, sources, forth + self.tables[1].vocab // 2)
      ids[RELATIONS] = jnp.concatenate([forth, back], 1)
    return ids

  def _draw(self, key, positions, ends):
    """[E / c, N], each from the partition of one of the ends [E / c, c]."""
    num = len(self.starts) - 1
    if num == 1:
      return sampling.draw_uniform(self.spec.vocab, key, positions)
    ends = ends[:, np.arange(positions.shape[1]) % self.spec.chunk]
    partitions = jnp.searchsorted(self.starts, ends, side='right') - 1
    partitions = jnp.clip(partitions, 0, num - 1)
    # Partitions differ by a node at most: a draw beyond the end is its last.
    draws = sampling.draw_uniform(-(-self.spec.vocab // num), key, positions)
    lasts = self.starts[partitions + 1] - 1
    return jnp.minimum(self.starts[partitions] + draws, lasts)

  def loss(self, params, rows, ids, batch, key):
    """Summed over edges, and both of their ends."""
    s, c = self.spec, self.spec.chunk
    aux, weights = base.Aux(jnp.sum(batch.weights)), _weights(batch, c)
    if self.kernel:
      return self.kernel(rows[NODES], ids[NODES], weights, s.vocab), aux
    sides = jnp.split(rows[NODES], 2, 1)  # [E / c, c + N, d] each
    sides_ids = jnp.split(ids[NODES], 2, 1)
    relations = 2 * [None]
    if self.contexts_table:
      relations = jnp.split(rows[RELATIONS], 2, 1)
    total = 0.0
    for i in (0, 1):
      own, others = sides[i][:, :c], sides[1 - i]
      own_ids, others_ids = sides_ids[i][:, :c], sides_ids[1 - i]
      mapped = self.score.operate(own, relations[i])
      positives, negatives = self._scores(mapped, others)
      if self.log_counts is not None:
        log_counts = jnp.asarray(self.log_counts)[1 - i]
        log_counts = log_counts.at[others_ids].get(mode='clip')
        negatives -= log_counts[:, None]
      is_node = others_ids[:, None] != examples.PADDING
      is_other = others_ids[:, None] != others_ids[:, :c, None]
      negatives = jnp.where(is_node & is_other, negatives, _NEVER)
      if self.contexts_table:
        selves = self.score.of_pairs(mapped, own, s.row_ops)
        selves = jnp.where(own_ids != others_ids[:, :c], selves, _NEVER)
        negatives = jnp.concatenate([negatives, selves[..., None]], -1)
      total += self.loss_of(positives, negatives)
      if self.n3:
        total += self.n3 * self._n3(own, others[:, :c], relations[i])
    return jnp.sum(weights * total), aux

  def _scores(self, mapped, others):
    """Those of edges [k, c], and of mapped vectors with others [k, c, c + N].

    Arguments are [k, c, d] and [k, c + N, d]; the first c others are true.
    """
    s, score = self.spec, self.score
    ends = others[:, : s.chunk]
    # Both factors are of a size: what spares the larger one only costs.
    products = s.row_ops.dot(mapped, others, is_narrow=True)
    sizes = score.sizes(mapped, s.row_ops), score.sizes(others, s.row_ops)
    positives = columns.sums(mapped * ends, s.row_ops)
    positives = score.scores(positives, sizes[0], sizes[1][:, : s.chunk])
    return positives, score.scores(
      products, sizes[0][..., None], sizes[1][:, None]
    )

  def _n3(self, own, ends, relations):
    """[k, c], cubes of the rows [k, c, d] of edges."""
    score, row_ops = self.score, self.spec.row_ops
    total = score.cubes(own, row_ops) + score.cubes(ends, row_ops)
    if relations is not None:
      # Without columns that are only padding, which would be 1 as well.
      relations = columns.whole(relations, self.spec.dim, row_ops)
      total += score.operator_cubes(relations)
    return total


def line(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  loss_of: sampling.Pointwise,
  order: int,
) -> Line:
  """Of first or second order; `corpus.centers` are degrees by edge."""
  degrees = np.asarray(corpus.counts, np.float64) ** _POWER
  draws = spec.shared_negatives / spec.chunk * degrees / degrees.sum()
  ends = corpus.centers / 2  # of undirected edges either is first
  scale = 0.5 / spec.dim
  described = [(NODES, ends, scale), (CONTEXTS, ends + draws, 0.0)]
  if order == 1:
    described = [(NODES, 2 * ends + draws, scale)]
  tables = spec_lib.describe(spec.dim, *described)
  return Line(sampling.alias_table(degrees), spec, tables, loss_of=loss_of)


def relations(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  loss_of: sampling.Pointwise,
  score: edge_scores.EdgeScore,
  n3: float = 0.0,
  make_kernel: Callable[[], Callable[..., jax.Array]] | None = None,
) -> Relations:
  """Nodes of a corpus, and its relations if there is an operator.

  `make_kernel` makes the `Relations.kernel`, if that can be used.
  """
  source = cast('edge_source.Edges', corpus.source)
  draws = 2 * spec.shared_negatives / spec.chunk / spec.vocab
  scale = _INIT_SCALES[score.measure]
  tables = [(NODES, corpus.centers + draws, scale)]
  if score.operator != 'none':
    # Operators of both directions.
    both = np.tile(source.relation_frequencies, 2)
    tables.append((RELATIONS, both, 0.0))
  log_counts = None
  if score.operator != 'none' and loss_of is sampling.softmax_loss:
    num, uniform = spec.chunk + spec.shared_negatives, 1 / spec.vocab
    others = spec.chunk * source.end_frequencies
    log_counts = np.log((others + spec.shared_negatives * uniform) / num)
    log_counts = (log_counts - np.log(uniform)).astype(np.float32)
  starts = getattr(source, 'partitions', None)
  is_plain = score == edge_scores.PRODUCT and not n3
  has_kernel = is_plain and loss_of is sampling.softmax_loss
  return Relations(
    np.asarray([0, spec.vocab] if starts is None else starts, np.int32),
    spec,
    tables=spec_lib.describe(spec.dim, *tables),
    loss_of=loss_of,
    score=score,
    log_counts=log_counts,
    n3=n3,
    kernel=make_kernel() if make_kernel and has_kernel else None,
  )
