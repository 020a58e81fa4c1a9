"""Losses of scores, with the derivatives that training runs on.

Negative sampling (Mikolov et al. 2013b, eq. 4) is logistic regression: a score
s = v . u is labelled 1 for a pair from the corpus and 0 for a drawn one.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# (scores [...], labels [...] 0 or 1) -> nats [...]
Pointwise = Callable[[jax.Array, jax.Array], jax.Array]

# Of a chance, the least logarithm, as the code of Tian et al. 2014 has it.
MIN_LOG = -15.0


@jax.custom_jvp
def logistic_loss(
  scores: jax.Array, labels: jax.Array, counts: jax.Array | float = 1.0
) -> jax.Array:
  """-log sigmoid(s) where the label is 1, -log sigmoid(-s) where it is 0.

  The derivative is sigmoid(s) - label, one exponential; what autodiff makes of
  a stable softplus costs several. All are [...] float and of any size: neither
  side overflows. Labels and counts are data, without a derivative. Examples
  that have a score in common are summed: `counts` of them, of which `labels`
  are labelled 1.

  >>> float(logistic_loss(jnp.float32(-1000), jnp.float32(1)))
  1000.0
  >>> float(logistic_loss(jnp.float32(-1000), 2.0, 5.0))
  2000.0
  """
  # In this order no small loss is lost beside a large score.
  linear = counts * jnp.maximum(scores, 0) - labels * scores
  return linear + counts * jnp.log1p(jnp.exp(-jnp.abs(scores)))


@logistic_loss.defjvp
def _logistic_loss_jvp(primals, tangents):
  scores, labels, counts = primals
  slope = counts * jax.nn.sigmoid(scores) - labels
  return logistic_loss(*primals), slope * tangents[0]


@jax.custom_jvp
def log_chances(scores: jax.Array, weights: jax.Array) -> jax.Array:
  """[...] nats, |w| log sigmoid(sign(w) s), of weighted decisions.

  The weights, which broadcast with the scores [...], are data; those of
  decisions against a score are negative. No logarithm counts as less than
  `MIN_LOG`, with the gradient that it has nonetheless.
  """
  return -jnp.abs(weights) * jnp.log(1 + _odds(scores, weights))


@log_chances.defjvp
def _log_chances_jvp(primals, tangents):
  odds = _odds(*primals)
  slope = primals[1] * (odds / (1 + odds))
  return log_chances(*primals), slope * tangents[0]


def _odds(scores, weights):
  return jnp.exp(jnp.minimum(-jnp.sign(weights) * scores, -MIN_LOG))


@jax.custom_vjp
def with_gradient(value: jax.Array, args: Any, grads: Any) -> jax.Array:
  """The value [], with these gradients with respect to a pytree of arrays.

  For losses that are differentiated where they are computed: autodiff of
  branches and loops keeps what any of them needs for its derivative, and fills
  in zeros for the others.
  """
  del args, grads
  return value


with_gradient.defvjp(
  lambda value, args, grads: (value, grads),
  lambda grads, slope: (slope, jax.tree.map(lambda x: slope * x, grads), None),
)
