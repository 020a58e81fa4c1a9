"""Click models: the log odds of a label, from categories and numbers.

All are sums of terms over the vectors e of an example's fields, their weights w
(vectors of size 1) and its numbers x:

  first         b + sum_f w_f + a . x                  logistic regression
  pairs         sum_{f < g} e_f . e_g                  Rendle 2010, eq. 5
  deep          a perceptron of [e_1 .. e_F, x]        Cheng et al. 2016
  cross         v <- v_0 (w . v) + b + v               Wang et al. 2017, eq. 3
  cross_matrix  v <- v_0 * (W v + b) + v               Wang et al. 2021, eq. 1
  dots          a perceptron of a lower one of x and all dot products
                                                       Naumov et al. 2019

Wide&Deep is first + deep, FM first + pairs, DeepFM (Guo et al. 2017) all three.
DCN and DCN-V2 have their layers beside a perceptron, and one output of both.

A step's loss is the mean over its examples, as everywhere in this field. A
field with several values has their mean or sum. Where columns are split, every
device gathers whole rows, and computes the same.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxemb.data import examples
from jaxemb.models import base, columns, dense
from jaxemb.ops import rounding, sampling
from jaxemb.tables import spec as spec_lib

VECTORS, WEIGHTS = 'vectors', 'weights'
_INIT_SCALE = 0.01  # of vectors
_EPSILON = 1e-5  # added to variances
_DROPOUT = np.uint32(0x27D4EB2F)  # apart from other draws

Moments = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True)
class ClickSpec:
  """Sizes and rules that the models share."""

  fields: examples.Fields
  dim: int
  hidden: tuple[int, ...]  # sizes of a perceptron's layers
  lower_hidden: tuple[int, ...]  # of the one below dot products
  cross_layers: int
  dropout: float  # share of units that a step leaves out
  batch_norm: bool
  optimizer: str  # of dense parameters, of optax
  dense_rate: float  # their learning rate, by that of rows
  dense_decay: float  # L2, added to their gradients
  row_ops: columns.RowOps = columns.WHOLE_ROWS
  axes: tuple[str, ...] = ()  # of the mesh, over which a step's examples lie


class Pass:
  """How one pass through a network normalizes and drops out.

  Without moments it trains: those of the batch are used, and kept in `seen`.
  """

  def __init__(
    self,
    spec: ClickSpec,
    batch: examples.StepBatch,
    key: jax.Array | None,
    moments: Moments | None = None,
  ):
    self.spec, self.batch, self.key = spec, batch, key
    self.seen: list[jax.Array] = []
    self._given = None if moments is None else iter(moments)
    self._layers = itertools.count()

  def moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns [units] mean and variance of x [E, units] over the step."""
    if self._given is not None:
      return next(self._given), next(self._given)
    weights, axes = self.batch.weights[:, None], self.spec.axes

    def mean(y):
      total, num = jnp.sum(weights * y, 0), jnp.sum(weights)
      if axes:
        total, num = jax.lax.psum((total, num), axes)
      return total / jnp.maximum(num, 1)

    middle = mean(x)
    moments = middle, mean(jnp.square(x - middle[None]))
    self.seen.extend(moments)
    return moments

  def drop(self, x: jax.Array) -> jax.Array:
    """Applies dropout to x [E, units]."""
    rate = self.spec.dropout
    if not rate or self._given is not None:
      return x
    key = rounding.key(self.key ^ _DROPOUT, next(self._layers))
    units = jnp.arange(x.shape[1])
    bits = rounding.random_bits(key, self.batch.positions, units)
    # Upper bits are the random ones; no float32 holds all 32.
    kept = (bits >> 8).astype(jnp.float32) >= rate * 2.0**24
    return jnp.where(kept, x / (1 - rate), 0)


class _Norm(nnx.Module):
  """Batch normalization (Ioffe and Szegedy 2015)."""

  def __init__(self, size: int):
    self.scale = nnx.Param(jnp.ones(size))
    self.bias = nnx.Param(jnp.zeros(size))

  def __call__(self, x, run):
    mean, variance = run.moments(x)
    factor = self.scale * jax.lax.rsqrt(variance + _EPSILON)
    return (x - mean[None]) * factor[None] + self.bias[None]


class _Layers(nnx.Module):
  """Layers with rectified outputs."""

  def __init__(self, size, spec, sizes, rngs):
    self.num = len(sizes)
    for i, (before, after) in enumerate(itertools.pairwise((size, *sizes))):
      setattr(self, f'layer_{i}', _linear(before, after, rngs))
      if spec.batch_norm:
        setattr(self, f'norm_{i}', _Norm(after))

  def __call__(self, x, run):
    for i in range(self.num):
      x = getattr(self, f'layer_{i}')(x)
      if run.spec.batch_norm:
        x = getattr(self, f'norm_{i}')(x, run)
      x = run.drop(jax.nn.relu(x))
    return x


def _linear(before, after, rngs):
  init = nnx.initializers.glorot_normal()
  return nnx.Linear(before, after, kernel_init=init, rngs=rngs)


class _Deep(nnx.Module):
  def __init__(self, size, spec, rngs):
    self.layers = _Layers(size=size, spec=spec, sizes=spec.hidden, rngs=rngs)
    self.output = _linear((size, *spec.hidden)[-1], 1, rngs)

  def __call__(self, inputs, run):
    return self.of(inputs.flat(), run)

  def of(self, x, run):
    """[E], of x [E, size]."""
    return self.output(self.layers(x, run))[:, 0]


class _First(nnx.Module):
  def __init__(self, spec):
    self.bias = nnx.Param(jnp.zeros(()))
    if spec.fields.numbers:
      self.slopes = nnx.Param(jnp.zeros(len(spec.fields.numbers)))

  def __call__(self, inputs, run):
    total = self.bias + inputs.weights.sum(1)
    if hasattr(self, 'slopes'):
      total += inputs.numbers @ self.slopes
    return total


class _Cross(nnx.Module):
  """Cross layers of vectors or matrices beside a perceptron, if it has any."""

  def __init__(self, size, spec, has_matrices, rngs):
    self.num, width = spec.cross_layers, size if has_matrices else 1
    for i in range(self.num):
      # The bias is added behind the product with v_0 if w is a vector.
      layer = nnx.Linear(
        size,
        width,
        use_bias=has_matrices,
        kernel_init=nnx.initializers.glorot_normal(),
        rngs=rngs,
      )
      setattr(self, f'cross_{i}', layer)
      if not has_matrices:
        setattr(self, f'bias_{i}', nnx.Param(jnp.zeros(size)))
    self.layers = _Layers(size=size, spec=spec, sizes=spec.hidden, rngs=rngs)
    deep = spec.hidden[-1] if spec.hidden else 0
    self.output = _linear(size + deep, 1, rngs)

  def __call__(self, inputs, run):
    first = x = inputs.flat()
    for i in range(self.num):
      new = first * getattr(self, f'cross_{i}')(x) + x
      bias = getattr(self, f'bias_{i}', None)
      x = new if bias is None else new + bias[None]
    if self.layers.num:
      x = jnp.concatenate([x, self.layers(first, run)], 1)
    return self.output(x)[:, 0]


class _Dots(nnx.Module):
  def __init__(self, spec, rngs):
    num = len(spec.fields.ids)
    size = 0
    if spec.fields.numbers:
      num, size = num + 1, spec.dim
      sizes = (*spec.lower_hidden, spec.dim)
      self.lower = _Layers(
        size=len(spec.fields.numbers), spec=spec, sizes=sizes, rngs=rngs
      )
    self.upper = _Deep(size + num * (num - 1) // 2, spec, rngs)

  def __call__(self, inputs, run):
    vectors, parts = inputs.vectors, []
    if hasattr(self, 'lower'):
      lower = self.lower(inputs.numbers, run)
      vectors = jnp.concatenate([lower[:, None], vectors], 1)
      parts = [lower]
    products = jnp.einsum('efd,egd->efg', vectors, vectors)
    left, right = np.tril_indices(vectors.shape[1], -1)
    x = jnp.concatenate([*parts, products[:, left, right]], 1)
    return self.upper.of(x, run)


@dataclasses.dataclass(frozen=True)
class Inputs:
  """Inputs of a network: E examples."""

  vectors: jax.Array | None  # [E, fields, dim]
  weights: jax.Array | None  # [E, fields]
  numbers: jax.Array  # [E, numbers]

  def flat(self) -> jax.Array:
    """Returns [E, fields * dim + numbers], all of an example in a row."""
    flat = self.vectors.reshape(self.vectors.shape[0], -1)
    return jnp.concatenate([flat, self.numbers], 1)


class Network(nnx.Module):
  """A sum of terms."""

  def __init__(self, spec: ClickSpec, terms: tuple[str, ...], rngs: nnx.Rngs):
    size = len(spec.fields.ids) * spec.dim + len(spec.fields.numbers)
    makers = {
      'first': lambda: _First(spec),
      'deep': lambda: _Deep(size, spec, rngs),
      'cross': lambda: _Cross(
        size=size, spec=spec, has_matrices=False, rngs=rngs
      ),
      'cross_matrix': lambda: _Cross(
        size=size, spec=spec, has_matrices=True, rngs=rngs
      ),
      'dots': lambda: _Dots(spec, rngs),
    }
    self.terms = terms
    for term in terms:
      if term in makers:
        setattr(self, term, makers[term]())

  def __call__(self, inputs: Inputs, run: Pass) -> jax.Array:
    """[E] log odds."""
    total = 0.0
    for term in self.terms:
      if term == 'pairs':
        total += pairs(inputs.vectors)
      else:
        total += getattr(self, term)(inputs, run)
    return total


def pairs(vectors: jax.Array) -> jax.Array:
  """Returns [E], sums of products of all pairs of vectors [E, fields, dim].

  In linear time (Rendle 2010, lemma 3.1).
  """
  total, squares = vectors.sum(1), jnp.square(vectors).sum((1, 2))
  return 0.5 * (jnp.square(total).sum(1) - squares)


def pooled(
  rows: jax.Array, ids: jax.Array, fields: examples.Fields
) -> jax.Array:
  """Pools rows [E, columns, d] of ids [E, columns] to [E, fields, d]."""
  if all(not x.pooling for x in fields.ids):
    return rows
  by_field = []
  for field in fields.ids:
    span = slice(field.first_column, field.first_column + field.num_columns)
    values = rows[:, span]
    if field.pooling:
      # Rows of padding are those of any id.
      is_value = (ids[:, span] < fields.vocab)[..., None]
      values = jnp.where(is_value, values, 0).sum(1, keepdims=True)
      if field.pooling == 'mean':
        values /= jnp.maximum(is_value.sum(1, keepdims=True), 1)
    by_field.append(values)
  return jnp.concatenate(by_field, 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClickModel(dense.Model):
  """The log odds of a label, as a sum of terms."""

  spec: ClickSpec = base.static()
  terms: tuple[str, ...] = base.static()
  tables: tuple[spec_lib.TableSpec, ...] = base.static()

  untrained_loss = float(np.log(2))

  @property
  def vectors_table(self) -> str:
    """The vectors, or the weights of a model that has no vectors."""
    return self.tables[0].name

  def init(self, key):
    """Returns the network's first parameters, a pytree of dicts."""
    network = Network(self.spec, self.terms, nnx.Rngs(key))
    return nnx.to_pure_dict(nnx.state(network))

  def loss(self, params, rows, ids, batch, key):
    """Returns the loss summed over examples; its derivatives are means."""
    run = Pass(self.spec, batch, key)
    logits = self._logits(params, rows, batch, run=run)
    losses = sampling.logistic_loss(logits, batch.labels)
    return jnp.sum(batch.weights * losses), base.Aux(batch.weights.sum())

  def logits(
    self,
    params: Any,
    rows: Mapping[str, jax.Array],
    batch: examples.StepBatch,
    moments: Moments,
  ) -> jax.Array:
    """Returns [E] log odds of examples that are not trained on."""
    run = Pass(spec=self.spec, batch=batch, key=None, moments=moments)
    return self._logits(params, rows, batch, run=run)

  def moments(
    self, params: Any, rows: Mapping[str, jax.Array], batch: examples.StepBatch
  ) -> Moments:
    """Returns means and variances of a batch, by normalized layer."""
    spec = dataclasses.replace(self.spec, dropout=0.0, axes=())
    run = Pass(spec, batch, None)
    dataclasses.replace(self, spec=spec)._logits(params, rows, batch, run=run)
    return tuple(run.seen)

  def _logits(self, params, rows, batch, run):
    spec, by_table = self.spec, {}
    for table in self.tables:
      rows_of = columns.whole(rows[table.name], table.dim, spec.row_ops)
      by_table[table.name] = pooled(rows_of, batch.ids, spec.fields)
    weights = by_table.get(WEIGHTS)
    inputs = Inputs(
      by_table.get(VECTORS),
      None if weights is None else weights[..., 0],
      batch.numbers,
    )
    graph, _ = nnx.split(
      nnx.eval_shape(lambda: Network(spec, self.terms, nnx.Rngs(0)))
    )
    network = nnx.merge(graph, nnx.State(params))
    return network(inputs, run)


def of_terms(
  spec: ClickSpec, terms: tuple[str, ...], lookups: np.ndarray | None = None
) -> ClickModel:
  """Makes a sum of terms; `lookups` [vocab] are expected per example."""
  sizes = {VECTORS: spec.dim} if set(terms) != {'first'} else {}
  sizes |= {WEIGHTS: 1} if 'first' in terms else {}
  # Of vectors so small products are nothing, and nothing else is learned from.
  scale = spec.dim**-0.5 if 'dots' in terms else _INIT_SCALE
  scales = {VECTORS: scale, WEIGHTS: 0.0}
  vocab = spec.fields.vocab
  tables = tuple(
    spec_lib.TableSpec(
      name=name,
      vocab=vocab,
      dim=dim,
      init_scale=scales[name],
      lookups_per_center=lookups,
    )
    for name, dim in sizes.items()
  )
  return ClickModel(spec, terms, tables)


def _make(*terms: str) -> Callable[[ClickSpec, base.Corpus], ClickModel]:
  def make(spec: ClickSpec, corpus: base.Corpus) -> ClickModel:
    """Makes the model of fields whose ids a `corpus` has counted."""
    return of_terms(spec, terms, corpus.centers)

  return make


logistic = _make('first')
fm = _make('first', 'pairs')
wide_deep = _make('first', 'deep')
deepfm = _make('first', 'pairs', 'deep')
dcn = _make('cross')
dcn_v2 = _make('cross_matrix')
dlrm = _make('dots')
