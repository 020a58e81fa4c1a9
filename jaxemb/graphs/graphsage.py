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
that is less work than of the places of a step, and if they are sparse
(`features`).

Dense parameters are dicts, {'layer_0': {'own': {'features', 'rows', 'bias'},
'neighbors', 'pool'}, ..}, with what there is: W b, U, and P c.
"""

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import examples
from jaxemb.graphs import features as features_lib
from jaxemb.graphs import neighbors
from jaxemb.kernels.gpu import row_sums
from jaxemb.models import base, columns
from jaxemb.ops import rounding, sampling
from jaxemb.tables import dedup, row_access
from jaxemb.tables import spec as spec_lib

if TYPE_CHECKING:
  from jaxemb.graphs import node_source

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
  dropout: float  # fraction of the inputs of a layer that a step leaves out
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
    """Trees of an example."""
    return 3 if self.from_walks else 1


def _linear(draw, inputs, size, has_bias=True):
  """Draws matrices for inputs side by side, of sizes by name, and a bias."""
  # As large as those of one matrix (Glorot and Bengio 2010).
  bound = (6 / (sum(inputs.values()) + size)) ** 0.5
  linear = {
    name: bound * (2 * draw((num, size)) - 1)
    for name, num in inputs.items()
    if num
  }
  return linear | ({'bias': jnp.zeros(size)} if has_bias else {})


def _with_bias(linear, x):
  if 'bias' not in linear:
    return x
  return x + linear['bias'].reshape(*[1] * (x.ndim - 1), -1)


def product(
  linear: Any, inputs: dict[str, jax.Array], added: jax.Array | float = 0.0
) -> jax.Array:
  """[..., size] of inputs [..., num] by name; some may be `added` already."""
  total = sum((x @ linear[name] for name, x in inputs.items()), added)
  return _with_bias(linear, total)


def _drop(x, rate, key, positions):
  """[..., d] without some numbers of each row, the others larger."""
  rows, columns = positions[..., None], jnp.arange(x.shape[-1])
  columns = columns.reshape(*[1] * positions.ndim, -1)
  return features_lib.drop(x, rate, key, rows=rows, columns=columns)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _look_up(num, by_kernel, rows, ids):
  """[..., d], rows [num, d] of ids [...]; their slopes have an order."""
  return rows[ids]


def _look_up_backward(num, by_kernel, ids, slopes):
  dim, kernels = slopes.shape[-1], row_access.XLA
  if by_kernel:
    kernels = row_sums.kernels(dim)
  zeros = jnp.zeros((num, dim), slopes.dtype)
  return dedup.add(zeros, ids, rows=slopes, kernels=kernels), None


_look_up.defvjp(
  lambda num, by_kernel, rows, ids: (rows[ids], ids), _look_up_backward
)


class _Level:
  """Inputs of a layer at the nodes of some trees: [E, S, ...]."""

  def __init__(self, spec, ids, rows, features=None, key=None):
    self.spec, self.rows, self.features, self.key = spec, rows, features, key
    self.is_node = ids < spec.num_nodes
    self.ids = jnp.where(self.is_node, ids, 0)
    self.is_sparse = isinstance(features, features_lib.Sparse)
    # Whether all nodes cost less than those of the step.
    self.is_whole = self.is_sparse or (
      features is not None and ids.size >= len(features)
    )
    if self.is_whole and not self.is_sparse:
      nodes = jnp.arange(len(features))
      self.features = _drop(features, spec.dropout, key, positions=nodes)

  def _product(self, linear, places, reduce=lambda x: x):
    """Products of the nodes at some places; `reduce` is linear too."""
    total = 0.0
    if 'features' in linear:
      ids, matrix = self.ids[:, places], linear['features']
      if self.is_whole:
        rows, by_kernel = self._whole(matrix), self.spec.sums_by_kernel
        total += reduce(_look_up(len(rows), by_kernel, rows=rows, ids=ids))
      else:
        rate = self.spec.dropout
        rows = _drop(self.features[ids], rate, self.key, positions=ids)
        total += reduce(rows) @ matrix
    if 'rows' in linear:
      total += reduce(self.rows[:, places]) @ linear['rows']
    return total

  def _whole(self, matrix):
    """Products of all nodes."""
    if self.is_sparse:
      rate = self.spec.dropout
      features, key = self.features, self.key
      return features_lib.product(rate, features, key=key, matrix=matrix)
    return self.features @ matrix

  def apply(self, layer, depth):
    """[E, S', size], outputs of a layer at depths below `depth`."""
    sizes = neighbors.tree_sizes(self.spec.fanouts)
    upper, lower = slice(0, sizes[depth - 1]), slice(1, sizes[depth])
    is_node = self.is_node[:, lower, None]
    if 'pool' in layer:
      x = self._product(layer['pool'], lower)
      x = jax.nn.relu(_with_bias(layer['pool'], x))
      aggregated = self._reduce(jnp.where(is_node, x, 0), jnp.max)
      aggregated = aggregated @ layer['neighbors']['rows']
    else:
      nums = self._reduce(is_node.astype(jnp.float32), jnp.sum)
      nums = jnp.maximum(nums, 1)

      def mean(x):
        return self._reduce(jnp.where(is_node, x, 0), jnp.sum) / nums

      aggregated = self._product(layer['neighbors'], lower, mean)
    own = layer['own']
    return _with_bias(own, self._product(own, upper)) + aggregated

  def _reduce(self, x, reduce):
    """[E, S', d] of the children [E, S - 1, d] of each node."""
    fanouts, reduced, start = self.spec.fanouts, [], 0
    for width, fanout in zip(
      neighbors.tree_widths(fanouts), fanouts, strict=False
    ):
      if start < x.shape[1]:
        children = x[:, start : start + width * fanout]
        children = children.reshape(len(x), width, fanout, x.shape[2])
        reduced.append(reduce(children, 2))
        start += width * fanout
    return jnp.concatenate(reduced, 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GraphSage(base.ExampleModel):
  """Classes or vectors of nodes."""

  spec: SageSpec = base.static()
  tables: tuple[spec_lib.TableSpec, ...] = base.static()
  features: Any  # [nodes, num] float32, or `features.Sparse`, or None

  vectors_table = NODES
  stale_share = 4  # nodes have few updates, of which each changes them much

  @property
  def untrained_loss(self) -> float:
    """Of an example whose outputs are all zero, or all the same."""
    if self.spec.from_walks:
      score = 1 / self.spec.temperature if self.spec.temperature else 0.0
      return float((1 + self.spec.negatives) * np.logaddexp(0, score))
    return float(np.log(2 if self.spec.has_many else self.spec.sizes[-1]))

  def num_derived(self, num_keys):
    """See `base.Model`: inputs, messages and outputs of a layer."""
    widths = self.spec.dim, *self.spec.sizes
    pairs = itertools.pairwise(widths)
    return num_keys * max(x + 2 * y for x, y in pairs)

  def init(self, key):
    """The network's parameters, a pytree of dicts."""
    spec, numbers = self.spec, itertools.count()

    def draw(shape):
      return jax.random.uniform(jax.random.fold_in(key, next(numbers)), shape)

    params, width = {}, max(spec.sizes)
    inputs = {'features': spec.num_features, 'rows': spec.dim}
    for i, size in enumerate(spec.sizes):
      params[f'layer_{i}'] = layer = {'own': _linear(draw, inputs, size)}
      if spec.aggregator == 'max':
        layer['pool'] = _linear(draw, inputs, width)
        inputs = {'rows': width}
      layer['neighbors'] = _linear(draw, inputs, size, has_bias=False)
      inputs = {'rows': size}
    return params

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
      is_label = jnp.arange(scores.shape[1])[None] == labels
      losses = -jnp.sum(jnp.where(is_label, scores, 0), 1)
    return jnp.sum(batch.weights * losses), base.Aux(batch.weights.sum())

  def outputs(
    self,
    params: Any,
    rows: dict[str, jax.Array],
    batch: examples.StepBatch,
    key: jax.Array,
  ) -> jax.Array:
    """[E, trees, size] of the nodes of a step."""
    spec, num = self.spec, len(batch.ids)
    size = neighbors.tree_sizes(spec.fanouts)[-1]
    ids = batch.ids.reshape(-1, size)
    key = key ^ _DROPOUT
    tree_columns = jnp.arange(spec.num_trees * size, dtype=jnp.uint32)[None]
    positions = batch.positions[:, None] * np.uint32(tree_columns.size)
    positions = (positions + tree_columns).reshape(ids.shape)
    # Features and rows are left out by node, wherever it is in a step.
    step = batch.positions[0] // np.uint32(spec.step_examples)
    step_key, x = rounding.key(key, 0, step), None
    if spec.dim:
      x = columns.whole(rows[NODES], spec.dim, spec.row_ops)
      x = x.reshape(*ids.shape, spec.dim)
      x = _drop(x, spec.dropout, rounding.key(step_key, 1), positions=ids)
    level = _Level(spec, ids, x, features=self.features, key=step_key)
    for i in range(len(spec.sizes)):
      depth = len(spec.sizes) - i
      x = level.apply(params[f'layer_{i}'], depth)
      if depth > 1:
        places = positions[:, : x.shape[1]]
        layer_key = rounding.key(key, i + 1)
        x = _drop(jax.nn.relu(x), spec.dropout, layer_key, positions=places)
        level = _Level(spec, ids[:, : x.shape[1]], x)
    return cast(jax.Array, x)[:, 0].reshape(num, spec.num_trees, -1)

  def _of_walks(self, outputs, weights):
    """[E] nats of u, v and n [E, 3, d]."""
    spec = self.spec
    if spec.temperature:
      squares = jnp.sum(jnp.square(outputs), -1, keepdims=True)
      outputs = outputs / jnp.sqrt(jnp.maximum(squares, _LEAST_LENGTH**2))
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
  tables = [(NODES, corpus.centers, _INIT_SCALE)] if spec.dim else []
  source = cast('node_source.NodeSource', corpus.source)
  features = source.features if spec.num_features else None
  features = features_lib.on_device(features)
  return GraphSage(spec, spec_lib.describe(spec.dim, *tables), features)
