"""Optimizers of dense parameters, beside those of rows in tables."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.models import base


class Model(base.Model):
  """What models of examples share: rows and dense parameters of a `spec`."""

  spec: Any  # with `optimizer`, `dense_rate` and `dense_decay` of settings
  is_mean = True

  @property
  def dense_rate(self) -> float:
    """See `models.base.Model`."""
    return self.spec.dense_rate

  def ids(self, batch, key):
    """Returns [E, columns], the same ids for all tables."""
    return {table.name: batch.ids for table in self.tables}

  def optimizer(self):
    """Returns an optimizer at a learning rate of 1, which steps multiply."""
    return optimizer(self.spec.optimizer, self.spec.dense_decay)


def optimizer(name: str, decay: float) -> Any:
  """Makes one of optax at a learning rate of 1; L2 is added to gradients."""
  import optax  # takes a second

  make = {
    'sgd': lambda: optax.sgd(1.0),
    'adagrad': lambda: _adagrad(1e-10),
    'adam': lambda: optax.adam(1.0),
  }
  transform = make[name]()
  if decay:
    transform = optax.chain(optax.add_decayed_weights(decay), transform)
  return transform


def _adagrad(epsilon):
  """Makes Adagrad, with `epsilon` added to the root, as for rows and in torch.

  In `optax.adagrad` it is within the root, where 1e-10 counts like 1e-5 here:
  more than many slopes of a mean over thousands of examples.
  """
  import optax

  def init(params):
    return jax.tree.map(jnp.zeros_like, params)

  def update(grads, sums, params=None):
    del params
    sums = jax.tree.map(lambda s, g: s + jnp.square(g), sums, grads)
    updates = jax.tree.map(
      lambda s, g: -g / (jnp.sqrt(s) + epsilon), sums, grads
    )
    return updates, sums

  return optax.GradientTransformation(init, update)
