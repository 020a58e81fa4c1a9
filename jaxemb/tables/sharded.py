"""Tables in device memory.

`replicated`: every device holds all rows. One gather and one scatter per step:
XLA may copy a whole table that is gathered or scattered twice, or whose gather
is fused past the scatter, so callers concatenate ids and put an
`optimization_barrier` behind their lookups.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import rowopt
from jaxemb.tables import spec as spec_lib


def replicated(
  spec: spec_lib.TableSpec, optimizer: rowopt.RowOptimizer
) -> spec_lib.Table:
  """A table of which every device holds all rows."""

  def init(key: jax.Array) -> spec_lib.TableState:
    shape = (spec.vocab, spec.dim)
    if spec.init_scale:
      scale = spec.init_scale
      vectors = jax.random.uniform(key, shape, jnp.float32, -scale, scale)
    else:
      vectors = jnp.zeros(shape, jnp.float32)
    return spec_lib.TableState(vectors, optimizer.init(spec.vocab, spec.dim))

  def lookup(state, ids):
    return state.vectors.at[ids].get(mode='clip'), state

  def update(state, ids, row_grads, learning_rate):
    deltas, slots = optimizer.update(state.slots, ids, row_grads, learning_rate)
    vectors = state.vectors.at[ids].add(deltas, mode='drop')
    return spec_lib.TableState(vectors, slots)

  def gather(state):
    return np.asarray(state.vectors)

  return spec_lib.Table(init, lookup, update, gather)
