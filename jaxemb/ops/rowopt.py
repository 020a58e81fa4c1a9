"""Optimizers of table rows: they touch the rows of a step, never the table.

A dense optimizer would write [vocab, dim] every step. These get the ids and the
gradients of the rows that were looked up, in which an id may come many times
(a frequent word occurs often in one step), and return what to add to each
occurrence, so that the table needs one scatter. What duplicates mean:

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

Ids at or above vocab are padding: they change nothing. Where the occurrences of
an id were added up before (`ops.duplicates`), each id comes once, with how many
they were and what their squares summed to: the updates are the same.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Slots = Any  # a NamedTuple of arrays with a leading vocab axis


class RowGrads(NamedTuple):
  """Gradients of rows that were looked up in a step."""

  ids: jax.Array  # [...] int32
  grads: jax.Array  # [..., dim] float32, of an occurrence or summed over some
  squares: jax.Array  # [...] float32, mean squares of gradients, summed alike
  # [...] float32, occurrences that were summed, all there were of the id, which
  # then comes once; None = every occurrence comes by itself.
  occurrences: jax.Array | None = None


class RowOptimizer(NamedTuple):
  """A pair of pure functions, as in optax."""

  # (vocab, dim) -> slots
  init: Callable[[int, int], Slots]
  # (slots, gradients, learning_rate) -> (deltas [..., dim], slots); deltas are
  # added to the rows, duplicates one after the other.
  update: Callable[[Slots, RowGrads, jax.Array], tuple[jax.Array, Slots]]


def mean_squares(row_grads: jax.Array) -> jax.Array:
  """[..., dim] float32 -> [...] float32."""
  return jnp.mean(jnp.square(row_grads), -1)


def _gather(array: jax.Array, ids: jax.Array) -> jax.Array:
  return array.at[ids].get(mode='clip')


def add_rows(
  array: jax.Array, ids: jax.Array, rows: jax.Array, are_unique: bool
) -> jax.Array:
  """Adds rows where their ids point; padding is dropped.

  Args:
    array: [vocab, ...] float32.
    ids: [...] int32.
    rows: [..., ...] float32.
    are_unique: whether all ids differ, so that no addition need be atomic.
  """
  return array.at[ids].add(rows, mode='drop', unique_indices=are_unique)


def _occurrences(
  scratch: jax.Array, ids: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """How often each id occurs, float32 like `ids`; and the scratch again.

  `scratch` is [vocab] zeros. It is written and cleaned at `ids` only, so that
  counting costs nothing that grows with the vocabulary.
  """
  scratch = scratch.at[ids].add(1.0, mode='drop')
  occurrences = _gather(scratch, ids)
  # Zeros that depend on what was read: they order the read before the write,
  # without which XLA copies the scratch.
  zeros = jnp.minimum(occurrences, 0.0)
  scratch = scratch.at[ids].set(zeros, mode='drop')
  return jnp.maximum(occurrences, 1.0), scratch


class SgdSlots(NamedTuple):
  """State of `sgd`."""

  scratch: jax.Array  # [vocab] float32, zeros between steps


def sgd(max_duplicates: float) -> RowOptimizer:
  """Stochastic gradient descent; `max_duplicates` 0 = no limit."""

  def init(vocab: int, dim: int) -> SgdSlots:
    del dim
    # Not empty: JAX loses the sharding of arrays without elements.
    return SgdSlots(jnp.zeros(vocab if max_duplicates else 1, jnp.float32))

  def update(slots, row_grads, learning_rate):
    if not max_duplicates:
      return -learning_rate * row_grads.grads, slots
    occurrences, scratch = row_grads.occurrences, slots.scratch
    if occurrences is None:
      occurrences, scratch = _occurrences(scratch, row_grads.ids)
    scale = -learning_rate * jnp.minimum(1.0, max_duplicates / occurrences)
    return scale[..., None] * row_grads.grads, SgdSlots(scratch)

  return RowOptimizer(init, update)


class AdagradSlots(NamedTuple):
  """State of `adagrad`."""

  sum_squares: jax.Array  # [vocab] float32


def adagrad(epsilon: float) -> RowOptimizer:
  """Row-wise Adagrad; `epsilon` is added to the root of the accumulator."""

  def init(vocab: int, dim: int) -> AdagradSlots:
    del dim
    return AdagradSlots(jnp.zeros(vocab, jnp.float32))

  def update(slots, row_grads, learning_rate):
    ids, once = row_grads.ids, row_grads.occurrences is not None
    sum_squares = add_rows(slots.sum_squares, ids, row_grads.squares, once)
    scale = -learning_rate / (jnp.sqrt(_gather(sum_squares, ids)) + epsilon)
    return scale[..., None] * row_grads.grads, AdagradSlots(sum_squares)

  return RowOptimizer(init, update)


class AdamSlots(NamedTuple):
  """State of `adam`."""

  mean: jax.Array  # [vocab, dim] float32, first moment
  mean_square: jax.Array  # [vocab] float32, second moment
  num_updates: jax.Array  # [vocab] float32, steps in which the row occurred
  scratch: jax.Array  # [vocab] float32, zeros between steps


def adam(beta1: float, beta2: float, epsilon: float) -> RowOptimizer:
  """Row-wise, lazy Adam."""

  def init(vocab: int, dim: int) -> AdamSlots:
    return AdamSlots(
      jnp.zeros((vocab, dim), jnp.float32),
      jnp.zeros(vocab, jnp.float32),
      jnp.zeros(vocab, jnp.float32),
      jnp.zeros(vocab, jnp.float32),
    )

  def update(slots, row_grads, learning_rate):
    ids, grads, squares, occurrences = row_grads
    scratch, once = slots.scratch, occurrences is not None
    share = jnp.ones_like(squares)
    if not once:
      # Each of n occurrences carries an n-th of what happens once per row.
      occurrences, scratch = _occurrences(scratch, ids)
      share = 1.0 / occurrences
    old_mean = jax.lax.optimization_barrier(_gather(slots.mean, ids))
    decay = (beta1 - 1) * share[..., None] * old_mean
    change = decay + (1 - beta1) * grads
    mean = add_rows(slots.mean, ids, change, once)
    decay = (beta2 - 1) * share * _gather(slots.mean_square, ids)
    change = decay + (1 - beta2) * squares
    mean_square = add_rows(slots.mean_square, ids, change, once)
    # Written, not added, so that a row's occurrences cannot round it away.
    steps = _gather(slots.num_updates, ids) + 1
    num_updates = slots.num_updates.at[ids].set(steps, mode='drop')
    # expm1 keeps 1 - beta^steps exact where beta^steps is close to 1.
    unbias1 = -jnp.expm1(steps * jnp.log(beta1))
    unbias2 = -jnp.expm1(steps * jnp.log(beta2))
    root = jnp.sqrt(_gather(mean_square, ids) / unbias2) + epsilon
    scale = -learning_rate * share / (unbias1 * root)
    deltas = scale[..., None] * _gather(mean, ids)
    return deltas, AdamSlots(mean, mean_square, num_updates, scratch)

  return RowOptimizer(init, update)


class AveragesSlots(NamedTuple):
  """State of `averages`."""

  scratch: jax.Array  # [vocab] float32, zeros between steps


def averages(
  momentum: float, learning_rate: float, final_learning_rate: float
) -> RowOptimizer:
  """Running averages of what a step's examples say, rather than descent.

  With every example a row moves to m row + (1 - m) x. A step has n of them, of
  which it knows the sums of (row - x) as the gradient and n as the gradient of
  the last column, which itself stays as it is. In place of m^n row plus the
  later examples more than the earlier ones, all count alike:

    row <- m^n row + (1 - m^n) mean(x)

  Args:
    momentum: m at the first learning rate; it rises to 1 in proportion as the
      learning rate falls.
    learning_rate: the first.
    final_learning_rate: the last; where it is the first, m stays.
  """
  span = learning_rate - final_learning_rate

  def init(vocab: int, dim: int) -> AveragesSlots:
    del dim
    return AveragesSlots(jnp.zeros(vocab, jnp.float32))

  def update(slots, row_grads, learning_rate):
    num, scratch = row_grads.grads[..., -1], slots.scratch
    if row_grads.occurrences is None:
      ids = row_grads.ids
      scratch = scratch.at[ids].add(num, mode='drop')
      num = _gather(scratch, ids)
      zeros = jnp.minimum(num, 0.0)  # as in `_occurrences`
      scratch = scratch.at[ids].set(zeros, mode='drop')
    left = 1.0
    if span:
      left = jnp.clip((learning_rate - final_learning_rate) / span, 0, 1)
    kept = (1 - (1 - momentum) * left) ** num
    scale = (kept - 1) / jnp.maximum(num, 1.0)
    deltas = scale[..., None] * row_grads.grads
    return deltas.at[..., -1].set(0.0), AveragesSlots(scratch)

  return RowOptimizer(init, update)
