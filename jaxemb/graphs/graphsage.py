"""GraphSAGE (Hamilton et al. 2017): nodes from what their neighbors have.

Each of L layers makes of the vectors h of nodes, at first their features, their
rows of a table that is trained, or both side by side,

  mean   h'_v = relu(W h_v + b + U mean(h_u))
  max    h'_v = relu(W h_v + b + U max(relu(P h_u + c)))

over sampled neighbors u of v, both 0 for nodes without any. The last layer has
no relu: its outputs are log odds of classes, or, if it learns from walks, the
vectors z of nodes, where v is near u on a walk, n is any node, and

  loss = -log sigmoid(z_u . z_v) - K mean_n log sigmoid(-z_u . z_n)

A batch has trees of sampled neighbors (`neighbors`), whose upper levels are
what a layer makes of the level below. Nodes have several places in the trees of
a step; the table sums what their places learn. With a walk there are three
trees: of u, v and an n, which `chunk` walks share.

The products of layer 1 with fixed features are taken of all nodes at once where
that is less work than of the places of a step.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxemb.data import examples
from jaxemb.graphs import neighbors
from jaxemb.kernels.gpu import row_sums
from jaxemb.models import base, columns, dense
from jaxemb.ops import rounding, sampling
from jaxemb.tables import dedup, row_access, row_optimizers
from jaxemb.tables import spec as spec_lib

NODES = 'nodes'
_INIT_SCALE = 0.1  # of rows
_LEAST_LENGTH = 1e-6
_DROPOUT = np.uint32(0x165667B1)  # apart from other draws


@dataclasses.dataclass(frozen=True)
class SageSpec:
  """Sizes and rules of a network."""

  fanouts: tuple[int, ...]  # of the node, of its neighbors, and so on
  num_nodes: int
  num_features: int  # of each node; 0 = none
  dim: int  # of its row of the table; 0 = there is none
  sizes: tuple[int, ...]  # of each layer's outputs
  aggregator: str  # 'mean' or 'max'
  from_walks: bool  # or from classes
  has_many: bool  # whether a node may have several classes
  dropout: float  # share of the inputs of a layer that a step leaves out
  negatives: float  # K, for each pair on a walk
  chunk: int  # walks that share their negatives
  temperature: float  # scores are cosines divided by it; 0 = plain products
  step_examples: int  # of all devices
  optimizer: str  # of dense parameters, of optax
  dense_rate: float  # their learning rate, by that of rows
  dense_decay: float  # L2, added to their gradients
  row_ops: columns.RowOps = columns.WHOLE_ROWS
  # Whether a GPU's kernel sums slopes of a node (`kernels.gpu.row_sums`).
  sums_by_kernel: bool = False

  @property
  def num_trees(self) -> int:
    """Of an example."""
    return 3 if self.from_walks else 1


class _Linear(nnx.Module):
  """A product with features and rows side by side."""

  def __init__(self, num_features, dim, size, has_bias, rngs):
    # As large as those of one matrix (Glorot and Bengio 2010).
    bound = (6 / (num_features + dim + size)) ** 0.5
    for name, num in (('features', num_features), ('rows', dim)):
      if num:
        draw = jax.random.uniform(rngs.params(), (num, size))
        setattr(self, name, nnx.Param(bound * (2 * draw - 1)))
    if has_bias:
      self.bias = nnx.Param(jnp.zeros(size))

  def parts(self):
    """(name, matrix) of what there is."""
    return [
      (name, getattr(self, name)[...])
      for name in ('features', 'rows')
      if hasattr(self, name)
    ]

  def __call__(self, arrays):
    """[..., size] of [..., num] by name."""
    total = sum(arrays[name] @ matrix for name, matrix in self.parts())
    return self.with_bias(total)

  def with_bias(self, x):
    """[..., size], with its bias, if it has any."""
    if not hasattr(self, 'bias'):
      return x
    return x + self.bias[...].reshape(*[1] * (x.ndim - 1), -1)


class Layer(nnx.Module):
  """Of arrays by name, 'features' and 'rows'; in upper layers only rows."""

  def __init__(self, num_features, dim, size, width, is_max, rngs):
    self.own = _Linear(num_features, dim, size, has_bias=True, rngs=rngs)
    if is_max:
      self.pool = _Linear(num_features, dim, width, has_bias=True, rngs=rngs)
      num_features, dim = 0, width
    self.neighbors = _Linear(num_features, dim, size, has_bias=False, rngs=rngs)

  def messages(self, arrays: dict[str, jax.Array]) -> jax.Array:
    """[nodes, m], what neighbors pass on to be aggregated."""
    if hasattr(self, 'pool'):
      return jax.nn.relu(self.pool(arrays))
    return self.neighbors(arrays)

  def outputs(
    self, arrays: dict[str, jax.Array], aggregated: jax.Array
  ) -> jax.Array:
    """[nodes, size] before a relu."""
    if hasattr(self, 'pool'):
      aggregated = self.neighbors({'rows': aggregated})
    return self.own(arrays) + aggregated


class Network(nnx.Module):
  """Layers, the one next to the inputs first."""

  def __init__(self, spec: SageSpec, rngs: nnx.Rngs):
    sizes = list(spec.sizes)
    self.num_layers, width = len(sizes), max(sizes)
    inputs = [(spec.num_features, spec.dim), *((0, x) for x in sizes)]
    for i, ((num, dim), size) in enumerate(zip(inputs, sizes, strict=False)):
      setattr(
        self,
        f'layer_{i}',
        Layer(
          num_features=num,
          dim=dim,
          size=size,
          width=width,
          is_max=spec.aggregator == 'max',
          rngs=rngs,
        ),
      )


def layers_of(spec: SageSpec, params: Any) -> list[Layer]:
  """Layers with these parameters, from the inputs to the outputs."""
  graph, _ = nnx.split(nnx.eval_shape(lambda: Network(spec, nnx.Rngs(0))))
  network = nnx.merge(graph, nnx.State(params))
  return [getattr(network, f'layer_{i}') for i in range(network.num_layers)]


def _drop(x, rate, key, positions):
  """[..., d] without some numbers of each row, the others larger."""
  if not rate:
    return x
  bits = rounding.random_bits(key, positions, jnp.arange(x.shape[-1]))
  # Upper bits are the random ones; no float32 holds all 32.
  kept = (bits >> 8).astype(jnp.float32) >= rate * 2.0**24
  return jnp.where(kept, x / (1 - rate), 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _looked_up(num, by_kernel, rows, ids):
  """[..., d], rows [num, d] of ids [...]; their slopes have an order."""
  return rows[ids]


def _looked_up_backward(num, by_kernel, ids, slopes):
  def by_id(ids, slopes):
    zeros = jnp.zeros((num, slopes.shape[-1]), slopes.dtype)
    return zeros.at[ids].add(slopes)

  def by_sorting(ids, slopes):
    row_grads = row_optimizers.RowGrads(ids, slopes, None)
    kernels = row_access.XLA
    if by_kernel and row_sums.can_sum(slopes.shape[-1]):
      kernels = row_access.Kernels(sums=row_sums.sums)
    sums = dedup.by_sorting(row_grads, num, kernels)
    zeros = jnp.zeros((num, slopes.shape[-1]), slopes.dtype)
    return row_access.add(zeros, sums.ids, rows=sums.grads, are_unique=True)

  # A GPU would add them atomically.
  how = {'cuda': by_sorting, 'rocm': by_sorting, 'default': by_id}
  return jax.lax.platform_dependent(ids, slopes, **how), None


_looked_up.defvjp(
  lambda num, by_kernel, rows, ids: (rows[ids], ids), _looked_up_backward
)


class _Level:
  """Inputs of a layer at the nodes of some trees: [E, S, ...]."""

  def __init__(self, spec, ids, rows, features=None, key=None):
    self.spec, self.is_node = spec, ids < spec.num_nodes
    self.ids, self.features = jnp.where(self.is_node, ids, 0), features
    self.rows, self.key, self.gathers = rows, key, True
    if features is not None:
      # Else all nodes cost less than those of the step.
      self.gathers = ids.size < features.shape[0]
      if not self.gathers:
        nodes = jnp.arange(features.shape[0])
        self.features = _drop(
          features, rate=spec.dropout, key=key, positions=nodes
        )

  def _products(self, linear, places, after=lambda x: x):
    """Of the nodes at some columns; `after` is linear too."""
    total = 0.0
    for name, matrix in linear.parts():
      if name == 'rows':
        total += after(self.rows[:, places]) @ matrix
      elif not self.gathers:
        products = self.features @ matrix
        total += after(
          _looked_up(
            len(products),
            by_kernel=self.spec.sums_by_kernel,
            rows=products,
            ids=self.ids[:, places],
          )
        )
      else:
        ids = self.ids[:, places]
        some = _drop(
          self.features[ids],
          rate=self.spec.dropout,
          key=self.key,
          positions=ids,
        )
        total += after(some) @ matrix
    return total

  def apply(self, layer, depth):
    """[E, S', size], outputs of a layer at depths below `depth`."""
    sizes = neighbors.tree_sizes(self.spec.fanouts)
    upper = slice(0, sizes[depth - 1])
    lower = slice(1, sizes[depth])
    is_node = self.is_node[:, lower]
    if not hasattr(layer, 'pool'):

      def mean(x):
        x = jnp.where(is_node[..., None], x, 0)
        return self._reduced(x, jnp.sum) / nums

      nums = self._reduced(is_node[..., None].astype(jnp.float32), jnp.sum)
      nums = jnp.maximum(nums, 1)
      aggregated = self._products(layer.neighbors, lower, mean)
    else:
      x = self._products(layer.pool, lower)
      x = jax.nn.relu(layer.pool.with_bias(x))
      x = jnp.where(is_node[..., None], x, 0)
      aggregated = self._reduced(x, jnp.max)
      aggregated = aggregated @ layer.neighbors.rows[...]
    return layer.own.with_bias(self._products(layer.own, upper)) + aggregated

  def _reduced(self, x, reduce):
    """[E, S', d] of the children [E, S - 1, d] of each node."""
    fanouts, parts, start = self.spec.fanouts, [], 0
    widths = neighbors.tree_widths(fanouts)
    for width, fanout in zip(widths, fanouts, strict=False):
      if start == x.shape[1]:
        break
      some = x[:, start : start + width * fanout]
      some = some.reshape(x.shape[0], width, fanout, x.shape[2])
      parts.append(reduce(some, 2))
      start += width * fanout
    return jnp.concatenate(parts, 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GraphSage(dense.Model):
  """Classes or vectors of nodes."""

  spec: SageSpec = base.static()
  tables: tuple[spec_lib.TableSpec, ...] = base.static()
  features: Any  # [nodes, num] float32, or None

  vectors_table = NODES

  @property
  def untrained_loss(self) -> float:
    """Of an example whose outputs are all zero, or all the same."""
    if self.spec.from_walks:
      score = 1 / self.spec.temperature if self.spec.temperature else 0.0
      return float((1 + self.spec.negatives) * np.logaddexp(0, score))
    return float(np.log(2 if self.spec.has_many else self.spec.sizes[-1]))

  def init(self, key):
    """The network's parameters, a pytree of dicts."""
    network = Network(self.spec, nnx.Rngs(key))
    return nnx.to_pure_dict(nnx.state(network))

  def loss(self, params, rows, ids, batch, key):
    """Summed over the examples; its derivatives are means."""
    outputs = self.outputs(params, rows, batch, key=key)
    if self.spec.from_walks:
      losses = self._of_walks(outputs, batch.weights)
    elif self.spec.has_many:
      # The mean over classes, as it is usual.
      losses = sampling.logistic_loss(outputs[:, 0], batch.numbers).mean(-1)
    else:
      scores = jax.nn.log_softmax(outputs[:, 0])
      labels = batch.labels.astype(jnp.int32)[:, None]
      # A GPU would add up slopes of looked-up scores atomically.
      is_own = jnp.arange(scores.shape[1])[None] == labels
      losses = -jnp.sum(jnp.where(is_own, scores, 0), 1)
    return jnp.sum(batch.weights * losses), base.Aux(batch.weights.sum())

  def outputs(
    self,
    params: Any,
    rows: dict[str, jax.Array],
    batch: examples.StepBatch,
    key: jax.Array,
  ) -> jax.Array:
    """[E, trees, size] of the nodes of a step."""
    spec, num = self.spec, batch.ids.shape[0]
    size = neighbors.tree_sizes(spec.fanouts)[-1]
    ids = batch.ids.reshape(-1, size)
    if spec.dim:
      rows = columns.whole(rows[NODES], spec.dim, spec.row_ops)
      rows = rows.reshape(*ids.shape, spec.dim)
    key = key ^ _DROPOUT
    tree_columns = jnp.arange(spec.num_trees * size, dtype=jnp.uint32)[None]
    positions = (
      batch.positions[:, None] * np.uint32(tree_columns.size) + tree_columns
    )
    positions = positions.reshape(ids.shape)
    # Features and rows are left out by node, wherever it is in a step.
    step = batch.positions[0] // np.uint32(spec.step_examples)
    key_of_step = rounding.key(key, 0, step)
    if spec.dim:
      rows = _drop(
        rows, rate=spec.dropout, key=rounding.key(key_of_step, 1), positions=ids
      )
    level = _Level(
      spec=spec,
      ids=ids,
      rows=rows if spec.dim else None,
      features=self.features,
      key=key_of_step,
    )
    layers = layers_of(spec, params)
    for i, layer in enumerate(layers):
      depth = len(layers) - i
      x = level.apply(layer, depth)
      if depth == 1:
        return x[:, 0].reshape(num, spec.num_trees, -1)
      num_left = x.shape[1]
      x = _drop(
        jax.nn.relu(x),
        rate=spec.dropout,
        key=rounding.key(key, i + 1),
        positions=positions[:, :num_left],
      )
      level = _Level(spec, ids[:, :num_left], x)
    return None

  def _of_walks(self, outputs, weights):
    """[E] nats of u, v and n [E, 3, d]."""
    spec = self.spec
    if spec.temperature:
      squares = jnp.sum(jnp.square(outputs), -1, keepdims=True)
      length = jnp.sqrt(jnp.maximum(squares, _LEAST_LENGTH**2))
      outputs = outputs / length
    factor = 1 / (spec.temperature or 1.0)
    start, near, drawn = (outputs[:, i] for i in range(3))
    near = factor * jnp.sum(start * near, -1)
    start, drawn = (
      x.reshape(-1, spec.chunk, x.shape[-1]) for x in (start, drawn)
    )
    scores = factor * jnp.einsum('kcd,knd->kcn', start, drawn)
    present = weights.reshape(-1, 1, spec.chunk)
    scale = spec.negatives / jnp.maximum(present.sum(-1, keepdims=True), 1)
    losses = jnp.sum(scale * present * sampling.logistic_loss(scores, 0.0), -1)
    return sampling.logistic_loss(near, 1.0) + losses.reshape(-1)


def make(spec: SageSpec, corpus: base.Corpus) -> GraphSage:
  """The model of the nodes of a `corpus`."""
  each = [(NODES, corpus.centers, _INIT_SCALE)] if spec.dim else []
  tables = spec_lib.describe(spec.dim, *each)
  features = corpus.source.features if spec.num_features else None
  return GraphSage(spec, tables, features)
