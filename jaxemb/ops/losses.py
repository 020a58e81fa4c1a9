"""Logistic loss of scores, with the derivative that training runs on.

Negative sampling (Mikolov et al. 2013b, eq. 4) is logistic regression: a score
s = v . u is labelled 1 for a pair from the corpus and 0 for a drawn one.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

# (scores [...], labels [...] 0 or 1) -> nats [...]
Pointwise = Callable[[jax.Array, jax.Array], jax.Array]

# Of a chance, the least logarithm, as the code of Tian et al. 2014 has it.
MIN_LOG = -15.0


@jax.custom_jvp
def logistic_loss(scores: jax.Array, labels: jax.Array) -> jax.Array:
  """-log sigmoid(s) where the label is 1, -log sigmoid(-s) where it is 0.

  The derivative is sigmoid(s) - label, one exponential; what autodiff makes of
  a stable softplus costs several. Labels are data: they have no derivative.

  Args:
    scores: [...] float, any size: neither side overflows.
    labels: [...] float, 0 or 1, of the shape of `scores`.

  Returns:
    [...] float, nats, not averaged.

  >>> float(logistic_loss(jnp.float32(-1000), jnp.float32(1)))
  1000.0
  """
  # In this order no small loss is lost beside a large score.
  linear = jnp.maximum(scores, 0) - labels * scores
  return linear + jnp.log1p(jnp.exp(-jnp.abs(scores)))


@logistic_loss.defjvp
def _logistic_loss_jvp(primals, tangents):
  scores, labels = primals
  slope = jax.nn.sigmoid(scores) - labels
  return logistic_loss(scores, labels), slope * tangents[0]


def untrained(loss: Pointwise, num_negatives: int) -> float:
  """Nats of an example and its negatives while all scores are zero."""
  if loss is logistic_loss:  # without starting a back end
    return (1 + num_negatives) * math.log(2)
  zero = jnp.float32(0)
  return float(loss(zero, zero + 1) + num_negatives * loss(zero, zero))


@jax.custom_jvp
def counted_logistic_loss(
  scores: jax.Array, counts: jax.Array, positives: jax.Array
) -> jax.Array:
  """Summed over examples that have their score in common.

  Args:
    scores: [...] float.
    counts: [...] float, examples of each score; data, as is
    positives: [...] float, how many of them are labelled 1.

  Returns:
    [...] float, nats.

  >>> float(counted_logistic_loss(jnp.float32(-1e3), jnp.float32(3), 1.0))
  1000.0
  """
  linear = counts * jnp.maximum(scores, 0) - positives * scores
  return linear + counts * jnp.log1p(jnp.exp(-jnp.abs(scores)))


@counted_logistic_loss.defjvp
def _counted_logistic_loss_jvp(primals, tangents):
  scores, counts, positives = primals
  slope = counts * jax.nn.sigmoid(scores) - positives
  return counted_logistic_loss(*primals), slope * tangents[0]


@jax.custom_jvp
def log_chances(scores: jax.Array, weights: jax.Array) -> jax.Array:
  """Weighted logarithms of the chances of decisions.

  Args:
    scores: [...] float32.
    weights: float32, broadcasts with `scores`; of a decision against it
      negative. Data.

  Returns:
    [...] float32, nats: |w| log sigmoid(sign(w) s). No logarithm counts as less
    than `MIN_LOG`, with the gradient that it has nonetheless.
  """
  odds = jnp.exp(jnp.minimum(-jnp.sign(weights) * scores, -MIN_LOG))
  return -jnp.abs(weights) * jnp.log(1 + odds)


@log_chances.defjvp
def _log_chances_jvp(primals, tangents):
  scores, weights = primals
  odds = jnp.exp(jnp.minimum(-jnp.sign(weights) * scores, -MIN_LOG))
  return log_chances(*primals), weights * (odds / (1 + odds)) * tangents[0]
