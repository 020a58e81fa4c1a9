"""One step of EM over draws of a sense: responsibilities, and priors from them.

With LL_k the log of the prior and the likelihood of what was drawn by sense k,
the responsibilities of EM are gamma = softmax(LL). Any others bound what is to
be raised, for fixed q with the gradient of the likelihoods weighted by q:

  log sum_k exp(LL_k) >= sum_k q_k (LL_k - log q_k),   equal for q = gamma

Annealed EM has q = softmax(beta LL), and where beta is small all senses of a
word are one (Rose 1998; Ueda and Nakano 1998). Of its powers two are used here:
0, from which senses that started apart become alike, and 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxemb.ops import losses


class Cases(NamedTuple):
  """Draws of a sense: of `a` tokens, `b` times each."""

  log_joint: jax.Array  # [a, K, b] float32: LL
  mask: jax.Array  # [a, b] float32, 1 = there is one
  priors: jax.Array  # [a, K + 1] float32, rows of priors


def probabilities(rows: jax.Array, averages_logs: bool) -> jax.Array:
  """[..., K] float32, of rows [..., K] of the table of priors.

  They are differences from 1 / K, or averaged logarithms; zeros are uniform.
  """
  if averages_logs:
    return jax.nn.softmax(rows, axis=-1)
  # Sums of many small changes are zero but for rounding, which would add up.
  return rows - jnp.mean(rows, -1, keepdims=True) + 1 / rows.shape[-1]


def log_probabilities(rows: jax.Array, averages_logs: bool) -> jax.Array:
  """[..., K] float32, log pi, not below `losses.MIN_LOG`."""
  found = probabilities(rows, averages_logs)
  return jnp.maximum(jnp.log(jnp.maximum(found, 1e-30)), losses.MIN_LOG)


def responsibilities(cases: Cases, are_tied: jax.Array | bool) -> jax.Array:
  """[a, K, b] float32: q, which sums to 1 over senses; 1 / K if tied."""
  return jax.nn.softmax(jnp.where(are_tied, 0.0, cases.log_joint), axis=-2)


def priors_grads(
  cases: Cases, chances: jax.Array, averages_logs: bool
) -> jax.Array:
  """What `rowopt.averages` wants of a row of priors.

  With gamma the responsibilities (q, where tied) and LL the joint
  log-likelihoods of a draw, the paper's code averages one of two things:

    store_multinomial = 1   pi <- m pi + (1 - m) gamma
    store_multinomial = 0   a <- m a + (1 - m) LL,  pi = softmax(a)

  Args:
    cases: the draws.
    chances: [a, K, b] float32, their responsibilities.
    averages_logs: which of the two.

  Returns:
    [a, K + 1] float32: sums of (row - gamma) or (row - LL) over the draws of
    a token, and how many there are.
  """
  mask = cases.mask[..., None, :]
  num = jnp.sum(cases.mask, -1, keepdims=True)
  rows = cases.priors[..., :-1]
  if averages_logs:
    said = jnp.sum(mask * cases.log_joint, -1)
  else:
    said = jnp.sum(mask * chances, -1) - num / rows.shape[-1]
  return jnp.concatenate([num * rows - said, num], -1)
