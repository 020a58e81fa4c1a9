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

from jaxemb.data import examples
from jaxemb.models import base, columns
from jaxemb.ops import rounding, sampling
from jaxemb.tables import spec as spec_lib

VECTORS, WEIGHTS = 'vectors', 'weights'
_INIT_SCALE = 0.01  # of vectors
_EPSILON = 1e-5  # added to variances
_DROPOUT = np.uint32(0x27D4EB2F)  # apart from other draws

Moments = tuple[jax.Array, ...]
Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ClickSpec:
  """Sizes and rules that the models share."""

  fields: examples.Fields
  dim: int
  hidden: tuple[int, ...]  # sizes of a perceptron's layers
  lower_hidden: tuple[int, ...]  # of the one below dot products
  cross_layers: int
  dropout: float  # fraction of units that a step leaves out
  batch_norm: bool
  optimizer: str  # of dense parameters, of optax
  dense_rate: float  # their learning rate, by that of rows
  dense_decay: float  # L2, added to their gradients
  row_ops: columns.RowOps = columns.WHOLE_ROWS
  axes: tuple[str, ...] = ()  # of the mesh, over which a step's examples lie


@dataclasses.dataclass(frozen=True)
class Inputs:
  """Inputs of a network: E examples."""

  vectors: jax.Array | None  # [E, fields, dim]
  weights: jax.Array | None  # [E, fields]
  numbers: jax.Array  # [E, numbers]

  def flat(self) -> jax.Array:
    """Returns [E, fields * dim + numbers], all of an example in a row."""
    assert self.vectors is not None
    flat = self.vectors.reshape(self.vectors.shape[0], -1)
    return jnp.concatenate([flat, self.numbers], 1)


class Pass:
  """How one pass through a network normalizes and drops out.

  Without moments it trains: it uses those of the batch, and keeps them in
  `seen`.
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
    self._trained = None if moments is None else iter(moments)
    self._layers = itertools.count()

  def moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns [units] mean and variance of x [E, units] over the step."""
    if self._trained is not None:
      return next(self._trained), next(self._trained)
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
    if not rate or self._trained is not None:
      return x
    assert self.key is not None
    key = rounding.key(self.key ^ _DROPOUT, next(self._layers))
    units = jnp.arange(x.shape[1])
    bits = rounding.random_bits(key, self.batch.positions, units)
    # Upper bits are the random ones; no float32 holds all 32.
    is_kept = (bits >> 8).astype(jnp.float32) >= rate * 2.0**24
    return jnp.where(is_kept, x / (1 - rate), 0)

  def layers(self, params: Params, x: jax.Array) -> jax.Array:
    """Applies layers with rectified outputs to x [E, size].

    They have batch normalization (Ioffe and Szegedy 2015) if the spec says so.
    """
    i = 0
    while f'layer_{i}' in params:
      x = _linear(params[f'layer_{i}'], x)
      if norm := params.get(f'norm_{i}'):
        mean, variance = self.moments(x)
        factor = norm['scale'] * jax.lax.rsqrt(variance + _EPSILON)
        x = (x - mean[None]) * factor[None] + norm['bias'][None]
      x = self.drop(jax.nn.relu(x))
      i += 1
    return x


def _linear(params, x):
  x = x @ params['kernel']
  return x + params['bias'][None] if 'bias' in params else x


def _first(params, inputs, run):
  total = params['bias'] + inputs.weights.sum(1)
  if 'slopes' in params:
    total += inputs.numbers @ params['slopes']
  return total


def _pairs(params, inputs, run):
  return pairs(inputs.vectors)


def _perceptron(params, x, run):
  return _linear(params['output'], run.layers(params.get('layers', {}), x))[
    :, 0
  ]


def _deep(params, inputs, run):
  return _perceptron(params, inputs.flat(), run)


def _cross(params, inputs, run):
  """Cross layers of vectors or matrices beside a perceptron, if it has any."""
  first = x = inputs.flat()
  for i in range(run.spec.cross_layers):
    x = first * _linear(params[f'cross_{i}'], x) + x
    # The bias is added behind the product with v_0 if w is a vector.
    if f'bias_{i}' in params:
      x = x + params[f'bias_{i}'][None]
  if 'layers' in params:
    x = jnp.concatenate([x, run.layers(params['layers'], first)], 1)
  return _linear(params['output'], x)[:, 0]


def _dots(params, inputs, run):
  vectors, terms = inputs.vectors, []
  if 'lower' in params:
    lower = run.layers(params['lower'], inputs.numbers)
    vectors = jnp.concatenate([lower[:, None], vectors], 1)
    terms = [lower]
  products = jnp.einsum('efd,egd->efg', vectors, vectors)
  left, right = np.tril_indices(vectors.shape[1], -1)
  x = jnp.concatenate([*terms, products[:, left, right]], 1)
  return _perceptron(params['upper'], x, run)


_TERMS = {
  'first': _first,
  'pairs': _pairs,
  'deep': _deep,
  'cross': _cross,
  'cross_matrix': _cross,
  'dots': _dots,
}


class _Init:
  """Makes the first parameters of terms, a pytree of dicts."""

  def __init__(self, spec: ClickSpec, key: jax.Array):
    self._spec, self._key = spec, key
    self._draws = itertools.count()

  def of_term(self, term: str) -> Params:
    """Returns the parameters of a term; {} = none."""
    spec = self._spec
    num_numbers, num_vectors = len(spec.fields.numbers), len(spec.fields.ids)
    size = num_vectors * spec.dim + num_numbers
    if term == 'first':
      slopes = {'slopes': jnp.zeros(num_numbers)} if num_numbers else {}
      return {'bias': jnp.zeros(())} | slopes
    if term == 'deep':
      return self._perceptron(size)
    if term in ('cross', 'cross_matrix'):
      is_matrix, params = term == 'cross_matrix', {}
      for i in range(spec.cross_layers):
        width = size if is_matrix else 1
        params[f'cross_{i}'] = self._linear(size, width, has_bias=is_matrix)
        if not is_matrix:
          params[f'bias_{i}'] = jnp.zeros(size)
      return params | self._perceptron(size, num_beside=size)
    if term == 'dots':
      lower, size = {}, 0
      if num_numbers:
        sizes = (*spec.lower_hidden, spec.dim)
        lower = {'lower': self._layers(num_numbers, sizes)}
        num_vectors, size = num_vectors + 1, spec.dim
      size += num_vectors * (num_vectors - 1) // 2
      return lower | {'upper': self._perceptron(size)}
    return {}

  def _perceptron(self, size, num_beside=0):
    """Layers, if the spec has any, and an output of them and of others."""
    hidden = self._spec.hidden
    params = {'layers': self._layers(size, hidden)} if hidden else {}
    num_inputs = num_beside + (hidden[-1] if hidden else 0)
    return params | {'output': self._linear(num_inputs or size, 1)}

  def _layers(self, size, sizes):
    params = {}
    for i, (before, after) in enumerate(itertools.pairwise((size, *sizes))):
      params[f'layer_{i}'] = self._linear(before, after)
      if self._spec.batch_norm:
        norm = {'scale': jnp.ones(after), 'bias': jnp.zeros(after)}
        params[f'norm_{i}'] = norm
    return params

  def _linear(self, before, after, has_bias=True):
    """A kernel as of Glorot and Bengio 2010, and biases of zero."""
    key = jax.random.fold_in(self._key, next(self._draws))
    params = {
      'kernel': jax.nn.initializers.glorot_normal()(key, (before, after))
    }
    if has_bias:
      next(self._draws)  # which flax counts
      params['bias'] = jnp.zeros(after)
    return params


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
class ClickModel(base.ExampleModel):
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
    init = _Init(self.spec, key)
    params = {term: init.of_term(term) for term in self.terms}
    return {term: x for term, x in params.items() if x}

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
    self._logits(params, rows, batch, run=run)
    return tuple(run.seen)

  def _logits(self, params, rows, batch, run):
    spec, by_table = self.spec, {}
    for table in self.tables:
      rows_of = columns.whole(rows[table.name], table.dim, spec.row_ops)
      by_table[table.name] = pooled(rows_of, batch.ids, spec.fields)
    weights = by_table.get(WEIGHTS)
    inputs = Inputs(
      vectors=by_table.get(VECTORS),
      weights=None if weights is None else weights[..., 0],
      numbers=batch.numbers,
    )
    return sum(
      _TERMS[term](params.get(term), inputs, run) for term in self.terms
    )


def of_terms(
  spec: ClickSpec, terms: tuple[str, ...], lookups: np.ndarray | None = None
) -> ClickModel:
  """Makes a sum of terms; `lookups` [vocab] are expected per example.

  Raises a `ValueError` for an unknown term.
  """
  for term in terms:
    if term not in _TERMS:
      raise ValueError(f'it has an unknown term {term}')
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
