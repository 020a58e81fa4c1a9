"""Rows that are running averages of a step's examples, not parameters.

With every example x a row moves to m row + (1 - m) x. A step has n of them, of
which it knows the sum of (row - x), as the gradient, and n, as the gradient of
the last column, which itself stays. All examples of a step count alike:

  row <- m^n row + (1 - m^n) mean(x)

m starts as `momentum` and rises to 1 in proportion as the learning rate falls
to the final one; where that equals the first, m is constant.
"""

import jax.numpy as jnp

from jaxemb.tables import row_optimizers


def optimizer(
  momentum: float, learning_rate: float, final_learning_rate: float
) -> row_optimizers.RowOptimizer:
  """Returns the optimizer for a run with these learning rates."""
  span = learning_rate - final_learning_rate

  def init(vocab, dim):
    return row_optimizers.ScratchState(jnp.zeros(vocab, jnp.float32))

  def update(state, row_grads, learning_rate):
    num, scratch = row_grads.grads[..., -1], state.scratch
    if row_grads.counts is None:
      num, scratch = row_optimizers.totals(scratch, row_grads.ids, num)
    left = 1.0
    if span:
      left = jnp.clip((learning_rate - final_learning_rate) / span, 0, 1)
    factor = (1 - (1 - momentum) * left) ** num
    scale = (factor - 1) / jnp.maximum(num, 1.0)
    deltas = scale[..., None] * row_grads.grads
    deltas = deltas.at[..., -1].set(0.0)
    return deltas, row_optimizers.ScratchState(scratch)

  return row_optimizers.RowOptimizer(init, update, uses_squares=False)
