"""Optimizers of table rows: they touch the rows of a step, never the table.

They get the ids and gradients of the rows that were looked up, in which an id
may come many times, and return what to add to each occurrence, so that the
table needs one scatter. What duplicates mean:

  sgd      gradients of all occurrences add up; if a row occurs n times and
           n > max_duplicates, their sum is scaled by max_duplicates / n.
           Without it, large steps sum hundreds of updates made from one old
           value of the row, and diverge.
  adagrad  row-wise (one accumulator per row): the mean square of every
           occurrence's gradient is added, then all occurrences are scaled by
           the new accumulator (Duchi et al. 2011; row-wise as in FBGEMM).
  adam     row-wise second moment, lazy: only rows that occur decay. The first
           moment takes the summed gradient, the second the summed mean squares
           (Kingma and Ba 2015), with the row's own count of updates in the bias
           correction.

Row-wise optimizers have one accumulator per row, so all elements of a row have
the same learning rate. `adagrad_full` and `adam_full` have squares of every
element, as other libraries do. They take a row's occurrences in a step as one,
with the sum of their gradients.

Ids at or above vocab are padding. A deduplicated step, in which each id comes
once with its count and summed squares, has the same updates.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxemb.tables import row_access

OptState = Any  # a NamedTuple of arrays [vocab, ...]


class RowGrads(NamedTuple):
  """Gradients of rows that were looked up in a step."""

  ids: jax.Array  # [...] int32
  grads: jax.Array  # [..., dim] float32, of an occurrence, or deduplicated
  # [...] float32, mean squares of gradients, summed alike; None = not used.
  squares: jax.Array | None
  # [...] float32, occurrences of each id; None = not deduplicated
  counts: jax.Array | None = None
  # [..., dim] float32, the rows as they were looked up; None = not known
  rows: jax.Array | None = None


def mean_squares(row_grads: jax.Array) -> jax.Array:
  """Returns [..., dim] float32 -> [...] float32."""
  return jnp.mean(jnp.square(row_grads), -1)


def decayed(row_grads: RowGrads, rows: jax.Array, decay: float) -> RowGrads:
  """Adds the gradient of L2; rows [n, dim] come once, or are padding.

  `squares` stay those of the loss.
  """
  return row_grads._replace(grads=row_grads.grads + decay * rows)


def of_all_rows(row_grads: RowGrads, vocab: int) -> RowGrads:
  """Returns gradients of all rows, each as if looked up once.

  Where no row was looked up, all are padding.
  """
  ids, grads = row_access.flatten(row_grads.ids, row_grads.grads)
  zeros = jnp.zeros((vocab, grads.shape[1]), jnp.float32)
  add = functools.partial(row_access.add, are_unique=False)
  grads, squares = add(zeros, ids, rows=grads), row_grads.squares
  if squares is not None:
    squares = add(zeros[:, 0], ids, rows=squares.reshape(-1))
  all_ids = jnp.arange(vocab, dtype=jnp.int32)
  all_ids += jnp.where(jnp.any(ids < vocab), 0, vocab)
  ones = jnp.ones(vocab, jnp.float32)
  return RowGrads(ids=all_ids, grads=grads, squares=squares, counts=ones)


class RowOptimizer(NamedTuple):
  """An optimizer of rows: two pure functions, as in optax, and options.

  `row_grads` are `RowGrads`: ids of the rows that were looked up in a step, and
  gradients of these rows.

  Attributes:
    init: `init(vocab, dim)` returns the state.
    update: `update(state, row_grads, learning_rate)` returns the changes of the
      rows, [..., dim], and the new state.
    uses_squares: whether `update` reads `row_grads.squares`, the mean squares
      of the gradients.
    state_names: fields of the state that are exported, and averaged when
      replicas synchronise.
    sums: fields of the state that are sums over steps; jaxemb adds the sums of
      all workers.
    needs_sums: whether `update` needs each row once, with the sum of its
      gradients and their count.
    decay: L2; a row times `decay` is added to its gradient.
    updates_all: whether a step updates all rows, not only those looked up.
    change: `change(state, row_grads, learning_rate)` does the same as `update`
      for rows without duplicates. It takes and returns the state of these rows
      only, in which fields that are not in `state_names` are None. A GPU
      kernel calls it for single rows; None = XLA updates rows.
  """

  init: Callable[[int, int], OptState]
  update: Callable[
    [OptState, RowGrads, jax.Array | float], tuple[jax.Array, OptState]
  ]
  uses_squares: bool
  state_names: tuple[str, ...] = ()
  sums: tuple[str, ...] = ()
  needs_sums: bool = False
  decay: float = 0.0
  updates_all: bool = False
  change: Callable[..., tuple[jax.Array, OptState]] | None = None


def totals(
  scratch: jax.Array, ids: jax.Array, values: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns sums of values [...] over all occurrences of ids, and the scratch.

  `scratch` is [vocab] zeros. It is written and cleaned at `ids` only, so that
  the cost does not grow with the vocabulary.
  """
  scratch = row_access.add(scratch, ids, rows=values, are_unique=False)
  totals = row_access.gather(scratch, ids)
  # Zeros that depend on the read order it first, or XLA copies the scratch.
  zeros = jnp.minimum(totals, 0.0)
  return totals, scratch.at[ids].set(zeros, mode='drop')


def _counts(scratch, row_grads):
  """Returns occurrences of each id, at least 1, and the scratch."""
  if row_grads.counts is not None:
    return row_grads.counts, scratch
  ones = jnp.ones(row_grads.ids.shape, scratch.dtype)
  counts, scratch = totals(scratch, row_grads.ids, ones)
  return jnp.maximum(counts, 1.0), scratch


def _by_row(numbers):
  """Adds an axis for products with rows; the number of one row stays."""
  return numbers[..., None] if numbers.ndim else numbers


class ScratchState(NamedTuple):
  """No state between steps."""

  scratch: jax.Array  # [vocab] float32, zeros between steps


def sgd(max_duplicates: float) -> RowOptimizer:
  """Stochastic gradient descent; `max_duplicates` 0 = no limit."""

  def init(vocab, dim):
    # Not empty: JAX loses the sharding of arrays without elements.
    size = vocab if max_duplicates else 1
    return ScratchState(jnp.zeros(size, jnp.float32))

  def change(state, row_grads, learning_rate):
    if not max_duplicates:
      return -learning_rate * row_grads.grads, state
    limit = jnp.minimum(1.0, max_duplicates / row_grads.counts)
    return _by_row(-learning_rate * limit) * row_grads.grads, state

  def update(state, row_grads, learning_rate):
    if max_duplicates:
      counts, scratch = _counts(state.scratch, row_grads)
      state = ScratchState(scratch)
      row_grads = row_grads._replace(counts=counts)
    return change(state, row_grads, learning_rate)

  return RowOptimizer(init, update, uses_squares=False, change=change)


class AdagradState(NamedTuple):
  """State of `adagrad` and `adagrad_full`."""

  sum_squares: jax.Array  # [vocab] or [vocab, dim] float32


def adagrad(epsilon: float) -> RowOptimizer:
  """Row-wise Adagrad; `epsilon` is added to the root of the accumulator."""

  def init(vocab, dim):
    return AdagradState(jnp.zeros(vocab, jnp.float32))

  def update(state, row_grads, learning_rate):
    ids, are_unique = row_grads.ids, row_grads.counts is not None
    sum_squares = row_access.add(
      state.sum_squares, ids, rows=row_grads.squares, are_unique=are_unique
    )
    seen = row_access.gather(sum_squares, ids)
    deltas = scaled(seen, row_grads.grads, learning_rate)
    return deltas, AdagradState(sum_squares)

  def scaled(sum_squares, grads, learning_rate):
    scale = -learning_rate / (jnp.sqrt(sum_squares) + epsilon)
    return _by_row(scale) * grads

  def change(state, row_grads, learning_rate):
    new = state.sum_squares + row_grads.squares
    return scaled(new, row_grads.grads, learning_rate), AdagradState(new)

  return RowOptimizer(
    init=init,
    update=update,
    uses_squares=True,
    state_names=('sum_squares',),
    sums=('sum_squares',),
    change=change,
  )


class AdamState(NamedTuple):
  """State of `adam`."""

  mean: jax.Array  # [vocab, dim] float32, first moment
  mean_square: jax.Array  # [vocab] float32, second moment
  num_updates: jax.Array  # [vocab] float32, steps in which the row occurred
  scratch: jax.Array  # [vocab] float32, zeros between steps


def adam(
  beta1: float,
  beta2: float,
  epsilon: float,
  copies: row_access.Copies | None = None,
) -> RowOptimizer:
  """Row-wise, lazy Adam."""

  def init(vocab, dim):
    zeros = [jnp.zeros(vocab, jnp.float32) for _ in range(3)]
    return AdamState(jnp.zeros((vocab, dim), jnp.float32), *zeros)

  def update(state, row_grads, learning_rate):
    ids, grads, squares, counts, _ = row_grads
    scratch = state.scratch
    add = functools.partial(row_access.add, are_unique=counts is not None)
    fraction = jnp.ones_like(squares)
    if counts is None:
      # Each of n occurrences carries an n-th of what happens once per row.
      counts, scratch = _counts(scratch, row_grads)
      fraction = 1.0 / counts
    old_mean = row_access.gather(state.mean, ids, copies)
    old_mean = jax.lax.optimization_barrier(old_mean)
    decay = (beta1 - 1) * fraction[..., None] * old_mean
    change = decay + (1 - beta1) * grads
    mean = add(state.mean, ids, rows=change, copies=copies)
    decay = (beta2 - 1) * fraction * row_access.gather(state.mean_square, ids)
    change = decay + (1 - beta2) * squares
    mean_square = add(state.mean_square, ids, rows=change)
    # Written, not added, so that a row's occurrences cannot round it away.
    steps = row_access.gather(state.num_updates, ids) + 1
    num_updates = state.num_updates.at[ids].set(steps, mode='drop')
    # expm1 keeps 1 - beta^steps exact where beta^steps is close to 1.
    unbias1 = -jnp.expm1(steps * jnp.log(beta1))
    unbias2 = -jnp.expm1(steps * jnp.log(beta2))
    root = jnp.sqrt(row_access.gather(mean_square, ids) / unbias2) + epsilon
    scale = -learning_rate * fraction / (unbias1 * root)
    deltas = scale[..., None] * row_access.gather(mean, ids, copies)
    new = AdamState(mean, mean_square, num_updates, scratch=scratch)
    return deltas, new

  return RowOptimizer(
    init=init,
    update=update,
    uses_squares=True,
    state_names=('mean', 'mean_square', 'num_updates'),
  )


def adagrad_full(
  epsilon: float, copies: row_access.Copies | None = None
) -> RowOptimizer:
  """Adagrad with an accumulator for every number (Duchi et al. 2011)."""

  def init(vocab, dim):
    return AdagradState(jnp.zeros((vocab, dim), jnp.float32))

  def change(state, row_grads, learning_rate):
    grads = row_grads.grads
    new = state.sum_squares + jnp.square(grads)
    deltas = -learning_rate * grads / (jnp.sqrt(new) + epsilon)
    return deltas, AdagradState(new)

  # Without `change`: a GPU's kernel for it compiles, but was never measured.
  return RowOptimizer(
    init=init,
    update=_by_rows(change, copies),
    uses_squares=False,
    state_names=('sum_squares',),
    sums=('sum_squares',),
    needs_sums=True,
  )


def _by_rows(change, copies):
  """Returns an `update` of rows that come once."""

  def update(state, row_grads, learning_rate):
    ids = row_grads.ids
    old = jax.tree.map(lambda x: row_access.gather(x, ids, copies), state)
    old = jax.lax.optimization_barrier(old)  # read before they are written
    deltas, new = change(old, row_grads, learning_rate)
    state = jax.tree.map(
      lambda x, y: row_access.put(x, ids, rows=y, copies=copies), state, new
    )
    return deltas, state

  return update


class FullAdamState(NamedTuple):
  """State of `adam_full`."""

  mean: jax.Array  # [vocab, dim] float32, first moment
  mean_square: jax.Array  # [vocab, dim] float32, second moment
  num_updates: jax.Array  # [vocab] float32, steps in which the row occurred


def adam_full(
  beta1: float,
  beta2: float,
  epsilon: float,
  copies: row_access.Copies | None = None,
) -> RowOptimizer:
  """Lazy Adam with a second moment for every number (Kingma and Ba 2015)."""

  def init(vocab, dim):
    zeros = [jnp.zeros((vocab, dim), jnp.float32) for _ in range(2)]
    return FullAdamState(*zeros, jnp.zeros(vocab, jnp.float32))

  def change(state, row_grads, learning_rate):
    mean, square, steps = state
    mean = beta1 * mean + (1 - beta1) * row_grads.grads
    square = beta2 * square + (1 - beta2) * jnp.square(row_grads.grads)
    steps += 1
    new = FullAdamState(mean, square, steps)
    unbias1 = -jnp.expm1(steps * jnp.log(beta1))[..., None]
    unbias2 = -jnp.expm1(steps * jnp.log(beta2))[..., None]
    root = jnp.sqrt(square / unbias2) + epsilon
    return -learning_rate * mean / (unbias1 * root), new

  return RowOptimizer(
    init=init,
    update=_by_rows(change, copies),
    uses_squares=False,
    state_names=('mean', 'mean_square', 'num_updates'),
    needs_sums=True,
  )
