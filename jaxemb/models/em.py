"""One step of EM over draws of a sense: responsibilities, and priors from them.

With LL_k the log of the prior and the likelihood of what was drawn by sense k,
the responsibilities of EM are softmax(LL). They are annealed (Ueda and Nakano
1998): with a power beta that rises from 0 to 1 while training they are

  q = softmax(beta LL),  log sum_k exp(LL_k) >= sum_k q_k (LL_k - log q_k)

of which the bound, exact for beta = 1, is what an M step raises.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

MIN_LOG = -15.0  # of small numbers, as the paper's code has it


class Cases(NamedTuple):
  """Draws of a sense: of `a` tokens, `b` times each."""

  log_joint: jax.Array  # [k, a, K, b] float32: LL
  mask: jax.Array  # [k, a, b] float32, 1 = there is one
  priors: jax.Array  # [k, a, K + 1] float32, rows of priors


class Annealing(NamedTuple):
  """The power of responsibilities, by the share of training behind."""

  tied_until: float  # until then it is 0
  annealed_until: float  # until then it rises; from then on it is 1

  def power(self, progress: jax.Array | float) -> jax.Array:
    """float32, beta; progress is the share of training behind."""
    if self.annealed_until == self.tied_until:
      return jnp.where(progress < self.tied_until, 0.0, 1.0)
    span = self.annealed_until - self.tied_until
    return jnp.clip((progress - self.tied_until) / span, 0.0, 1.0)


def probabilities(rows: jax.Array, averages_logs: bool) -> jax.Array:
  """[..., K] float32, of rows [..., K] of the table of priors.

  They are differences from 1 / K, or averaged logarithms; zeros are uniform.
  """
  if averages_logs:
    return jax.nn.softmax(rows, axis=-1)
  return rows + 1 / rows.shape[-1]


def log_probabilities(rows: jax.Array, averages_logs: bool) -> jax.Array:
  """[..., K] float32, log pi, not below `MIN_LOG`."""
  found = probabilities(rows, averages_logs)
  return jnp.maximum(jnp.log(jnp.maximum(found, 1e-30)), MIN_LOG)


def responsibilities(cases: Cases, power: jax.Array | float) -> jax.Array:
  """[k, a, K, b] float32: q, which sums to 1 over senses."""
  return jax.nn.softmax(power * cases.log_joint, axis=-2)


def priors_grads(
  cases: Cases, chances: jax.Array, averages_logs: bool
) -> jax.Array:
  """What `rowopt.averages` wants of a row of priors.

  With gamma the responsibilities (q, where annealed) and LL the joint
  log-likelihoods of a draw, the paper's code averages one of two things:

    store_multinomial = 1   pi <- m pi + (1 - m) gamma
    store_multinomial = 0   a <- m a + (1 - m) LL,  pi = softmax(a)

  Args:
    cases: the draws.
    chances: [k, a, K, b] float32, their responsibilities.
    averages_logs: which of the two.

  Returns:
    [k, a, K + 1] float32: sums of (row - gamma) or (row - LL) over the draws of
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
