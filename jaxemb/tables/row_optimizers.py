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

Numbers of which a row has one (accumulators, counts) are read and written
through `Figures`: where devices share the columns of all rows, each of them
holds the numbers of some rows only.
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
  # [...] float32, mean squares of gradients, summed alike; None = not used.
  squares: jax.Array | None
  # [...] float32, occurrences that were summed, all there were of the id, which
  # then comes once; None = every occurrence comes by itself.
  occurrences: jax.Array | None = None


class Figures(NamedTuple):
  """How numbers of rows are reached: arrays [vocab], wherever they lie."""

  # (array, ids [...]) -> [...], anything where an id is padding
  get: Callable[[jax.Array, jax.Array], jax.Array]
  # (array, ids, values [...], whether all ids differ) -> array
  add: Callable[[jax.Array, jax.Array, jax.Array, bool], jax.Array]
  # (array, ids, values [...]) -> array; equal ids have equal values
  set: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class RowOptimizer(NamedTuple):
  """A pair of pure functions, as in optax."""

  # (vocab, dim, rows that a device has the numbers of, if not all) -> slots
  init: Callable[..., Slots]
  # (slots, gradients, learning_rate, figures) -> (deltas [..., dim], slots);
  # deltas are added to the rows, duplicates one after the other.
  update: Callable[
    [Slots, RowGrads, jax.Array, Figures], tuple[jax.Array, Slots]
  ]
  uses_squares: bool


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


# All of them are on the device.
HERE = Figures(
  _gather,
  add_rows,
  lambda array, ids, values: array.at[ids].set(values, mode='drop'),
)


def dealt(num_rows: int, axis: str) -> Figures:
  """Of rows that are dealt in stretches to the devices along an axis.

  All devices ask for the same ids. Reading takes one `psum`.

  Args:
    num_rows: of each device.
    axis: of the mesh, inside `shard_map`.
  """

  def own(ids):
    local = ids - num_rows * jax.lax.axis_index(axis)
    # Different places beyond the end, as ids may be promised to differ.
    beyond = num_rows + jnp.arange(ids.size, dtype=ids.dtype)
    is_own = (local >= 0) & (local < num_rows)
    return jnp.where(is_own, local, beyond.reshape(ids.shape))

  def get(array, ids):
    found = array.at[own(ids)].get(mode='fill', fill_value=0)
    return jax.lax.psum(found, axis)

  return Figures(
    get,
    lambda array, ids, *values: add_rows(array, own(ids), *values),
    lambda array, ids, values: HERE.set(array, own(ids), values),
  )


def _occurrences(
  scratch: jax.Array, ids: jax.Array, figures: Figures
) -> tuple[jax.Array, jax.Array]:
  """How often each id occurs, float32 like `ids`; and the scratch again.

  `scratch` is [vocab] zeros. It is written and cleaned at `ids` only, so that
  counting costs nothing that grows with the vocabulary.
  """
  ones = jnp.ones(ids.shape, scratch.dtype)
  scratch = figures.add(scratch, ids, ones, False)
  occurrences = figures.get(scratch, ids)
  # Zeros that depend on what was read: they order the read before the write,
  # without which XLA copies the scratch.
  zeros = jnp.minimum(occurrences, 0.0)
  scratch = figures.set(scratch, ids, zeros)
  return jnp.maximum(occurrences, 1.0), scratch


class SgdSlots(NamedTuple):
  """State of `sgd`."""

  scratch: jax.Array  # [vocab] float32, zeros between steps


def sgd(max_duplicates: float) -> RowOptimizer:
  """Stochastic gradient descent; `max_duplicates` 0 = no limit."""

  def init(vocab: int, dim: int, own_rows: int | None = None) -> SgdSlots:
    del dim
    # Not empty: JAX loses the sharding of arrays without elements.
    size = (own_rows or vocab) if max_duplicates else 1
    return SgdSlots(jnp.zeros(size, jnp.float32))

  def update(slots, row_grads, learning_rate, figures=HERE):
    if not max_duplicates:
      return -learning_rate * row_grads.grads, slots
    occurrences, scratch = row_grads.occurrences, slots.scratch
    if occurrences is None:
      occurrences, scratch = _occurrences(scratch, row_grads.ids, figures)
    scale = -learning_rate * jnp.minimum(1.0, max_duplicates / occurrences)
    return scale[..., None] * row_grads.grads, SgdSlots(scratch)

  return RowOptimizer(init, update, uses_squares=False)


class AdagradSlots(NamedTuple):
  """State of `adagrad`."""

  sum_squares: jax.Array  # [vocab] float32


def adagrad(epsilon: float) -> RowOptimizer:
  """Row-wise Adagrad; `epsilon` is added to the root of the accumulator."""

  def init(vocab: int, dim: int, own_rows: int | None = None) -> AdagradSlots:
    del dim
    return AdagradSlots(jnp.zeros(own_rows or vocab, jnp.float32))

  def update(slots, row_grads, learning_rate, figures=HERE):
    ids, once = row_grads.ids, row_grads.occurrences is not None
    sum_squares = slots.sum_squares
    sum_squares = figures.add(sum_squares, ids, row_grads.squares, once)
    root = jnp.sqrt(figures.get(sum_squares, ids))
    scale = -learning_rate / (root + epsilon)
    return scale[..., None] * row_grads.grads, AdagradSlots(sum_squares)

  return RowOptimizer(init, update, uses_squares=True)


class AdamSlots(NamedTuple):
  """State of `adam`."""

  mean: jax.Array  # [vocab, dim] float32, first moment
  mean_square: jax.Array  # [vocab] float32, second moment
  num_updates: jax.Array  # [vocab] float32, steps in which the row occurred
  scratch: jax.Array  # [vocab] float32, zeros between steps


def adam(beta1: float, beta2: float, epsilon: float) -> RowOptimizer:
  """Row-wise, lazy Adam."""

  def init(vocab: int, dim: int, own_rows: int | None = None) -> AdamSlots:
    mean = jnp.zeros((vocab, dim), jnp.float32)
    zeros = [jnp.zeros(own_rows or vocab, jnp.float32) for _ in range(3)]
    return AdamSlots(mean, *zeros)

  def update(slots, row_grads, learning_rate, figures=HERE):
    ids, grads, squares, occurrences = row_grads
    scratch, once = slots.scratch, occurrences is not None
    share = jnp.ones_like(squares)
    if not once:
      # Each of n occurrences carries an n-th of what happens once per row.
      occurrences, scratch = _occurrences(scratch, ids, figures)
      share = 1.0 / occurrences
    old_mean = jax.lax.optimization_barrier(_gather(slots.mean, ids))
    decay = (beta1 - 1) * share[..., None] * old_mean
    change = decay + (1 - beta1) * grads
    mean = add_rows(slots.mean, ids, change, once)
    decay = (beta2 - 1) * share * figures.get(slots.mean_square, ids)
    change = decay + (1 - beta2) * squares
    mean_square = figures.add(slots.mean_square, ids, change, once)
    # Written, not added, so that a row's occurrences cannot round it away.
    steps = figures.get(slots.num_updates, ids) + 1
    num_updates = figures.set(slots.num_updates, ids, steps)
    # expm1 keeps 1 - beta^steps exact where beta^steps is close to 1.
    unbias1 = -jnp.expm1(steps * jnp.log(beta1))
    unbias2 = -jnp.expm1(steps * jnp.log(beta2))
    root = jnp.sqrt(figures.get(mean_square, ids) / unbias2) + epsilon
    scale = -learning_rate * share / (unbias1 * root)
    deltas = scale[..., None] * _gather(mean, ids)
    return deltas, AdamSlots(mean, mean_square, num_updates, scratch)

  return RowOptimizer(init, update, uses_squares=True)


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

  def init(vocab: int, dim: int, own_rows: int | None = None) -> AveragesSlots:
    del dim
    return AveragesSlots(jnp.zeros(own_rows or vocab, jnp.float32))

  def update(slots, row_grads, learning_rate, figures=HERE):
    num, scratch = row_grads.grads[..., -1], slots.scratch
    if row_grads.occurrences is None:
      ids = row_grads.ids
      scratch = figures.add(scratch, ids, num, False)
      num = figures.get(scratch, ids)
      zeros = jnp.minimum(num, 0.0)  # as in `_occurrences`
      scratch = figures.set(scratch, ids, zeros)
    left = 1.0
    if span:
      left = jnp.clip((learning_rate - final_learning_rate) / span, 0, 1)
    kept = (1 - (1 - momentum) * left) ** num
    scale = (kept - 1) / jnp.maximum(num, 1.0)
    deltas = scale[..., None] * row_grads.grads
    return deltas.at[..., -1].set(0.0), AveragesSlots(scratch)

  return RowOptimizer(init, update, uses_squares=False)
