"""Models of edges: vectors of nodes that tell which edge is there.

An edge leads from node s to node t, by relation r. `Line` has one vector for
each node (first order), or another one where a node is the end (second order),
and learns as skip-gram does, from draws that the c edges of a chunk share:

  -log sigmoid(v_s . u_t) - sum_{k=1..K} log sigmoid(-v_s . u_k),  u_k ~ d^0.75

(Tang et al. 2015, eq. 7). `Relations` is the model of PyTorch-BigGraph (Lerer
et al. 2019): a relation is an operator f_r on vectors,

  none f(x) = x    translation x + a    diagonal x * (1 + a)
  complex x * (1 + a), numbers 2i and 2i + 1 of which are one complex number

and f_r(v_s) . v_t is to be high among f_r(v_s) . v_n for others n: the ends of
the chunk's other edges and N nodes that it draws; likewise g_r(v_t) . v_s among
other sources, with an operator g_r of its own. The operator is always on the
end that stays, so that a chunk has one matrix product a side, whatever its
relations are. A negative that is the true end does not count.

Nodes may lie in partitions, ranges of ids: then draws are from those of the
chunk's own ends, so that a bucket of edges needs no row of another partition.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import examples
from jaxemb.models import base, columns
from jaxemb.ops import operators, sampling
from jaxemb.tables import spec as spec_lib

NODES, CONTEXTS, RELATIONS = 'nodes', 'contexts', 'relations'
_INIT_SCALE = 0.1
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

  @property
  def contexts_table(self) -> str:
    """Of the second order."""
    return CONTEXTS if len(self.tables) > 1 else ''

  @property
  def untrained_loss(self) -> float:
    """Of an edge whose scores are all zero."""
    zero = np.float32(0)
    edge, other = self.loss_of(zero, 1.0), self.loss_of(zero, 0.0)
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

  starts: jax.Array  # [partitions + 1] int32, the first id of each
  spec: base.WindowSpec = base.static()
  tables: tuple[spec_lib.TableSpec, ...] = base.static()
  loss_of: object = base.static()  # such as `margin`
  operator: str = base.static()
  temperature: float = base.static()  # 0 = scores are plain products
  # (rows, ids, weights, vocab) -> the loss: softmax of plain products.
  kernel: Callable[..., jax.Array] | None = base.static(default=None)

  vectors_table = NODES

  @property
  def contexts_table(self) -> str:
    """The operators f of all relations, and behind them those g."""
    return RELATIONS if len(self.tables) > 1 else ''

  @property
  def is_cosine(self) -> bool:
    """Whether lengths of vectors have no meaning."""
    return self.temperature > 0

  @property
  def untrained_loss(self) -> float:
    """Of an edge whose scores are all zero."""
    scores = np.zeros(self.spec.chunk + self.spec.shared_negatives, np.float32)
    return 2 * float(jax.jit(self.loss_of)(scores[0], scores[1:]))

  def operate(self, rows: np.ndarray, relations: np.ndarray) -> jax.Array:
    """[..., d]; arguments as of `operators.apply`."""
    return operators.apply(self.operator, rows, relations)

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
    stay = [x[:, :c] for x in sides]
    # Both factors are of a size: what spares the larger one only costs.
    dot = functools.partial(s.row_ops.dot, is_narrow=True)
    if self.contexts_table:
      relations = jnp.split(rows[RELATIONS], 2, 1)
      stay = [self.operate(*x) for x in zip(stay, relations, strict=True)]
      scores = [dot(stay[0], sides[1]), dot(stay[1], sides[0])]
    else:
      # Those among the chunk's own nodes are in the first product.
      scores = [dot(stay[0], sides[1])]
      drawn = s.row_ops.dot(stay[1], sides[0][:, c:])
      in_chunk = scores[0][:, :, :c].transpose(0, 2, 1)
      scores.append(jnp.concatenate([in_chunk, drawn], 2))
    total = 0.0
    for i in (0, 1):
      others, others_ids, negative = sides[1 - i], sides_ids[1 - i], scores[i]
      positive = columns.sums(stay[i] * others[:, :c], s.row_ops)
      if self.is_cosine:
        stay_lengths = columns.inverse_lengths(stay[i], s.row_ops)
        stay_lengths /= self.temperature
        other_lengths = columns.inverse_lengths(others, s.row_ops)
        positive *= stay_lengths * other_lengths[:, :c]
        negative *= stay_lengths[..., None] * other_lengths[:, None]
      is_node = others_ids != examples.PADDING
      is_other = others_ids[:, None] != others_ids[:, :c, None]
      negative = jnp.where(is_other & is_node[:, None], negative, _NEVER)
      total += self.loss_of(positive, negative)
    return jnp.sum(weights * total), aux


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
  tables = [(NODES, ends, scale), (CONTEXTS, ends + draws, 0.0)]
  if order == 1:
    tables = [(NODES, 2 * ends + draws, scale)]
  tables = spec_lib.describe(spec.dim, *tables)
  return Line(sampling.alias_table(degrees), spec, tables, loss_of=loss_of)


def relations(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  loss_of: object,
  operator: str,
  temperature: float,
  make_kernel: Callable[[], Callable[..., jax.Array]] | None = None,
) -> Relations:
  """Nodes of a corpus, and its relations if there is an operator.

  `make_kernel` makes the `Relations.kernel`, if that can be used.
  """
  draws = 2 * spec.shared_negatives / spec.chunk / spec.vocab
  tables = [(NODES, corpus.centers + draws, _INIT_SCALE)]
  if operator != 'none':
    # Operators of both directions.
    both = np.tile(corpus.source.relation_frequencies, 2)
    tables.append((RELATIONS, both, 0.0))
  starts = getattr(corpus.source, 'partitions', None)
  is_plain = operator == 'none' and not temperature
  has_kernel = make_kernel and is_plain and loss_of is sampling.softmax_loss
  return Relations(
    np.asarray([0, spec.vocab] if starts is None else starts, np.int32),
    spec,
    tables=spec_lib.describe(spec.dim, *tables),
    loss_of=loss_of,
    operator=operator,
    temperature=temperature,
    kernel=make_kernel() if has_kernel else None,
  )
