"""Tables in device memory.

`replicated`: every device holds all rows. One gather and one scatter per step:
XLA may copy a whole table that is gathered or scattered twice, or whose gather
is fused past the scatter, so callers concatenate ids and put an
`optimization_barrier` behind their lookups.

An id that was looked up several times is written as often where that is cheap,
and once, with the sum of its gradients, where it is not (GPUs; `ops.duplicates`
says why). The two agree but for the order in which sums are rounded.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import duplicates, rowopt
from jaxemb.tables import spec as spec_lib


def replicated(
  spec: spec_lib.TableSpec,
  optimizer: rowopt.RowOptimizer,
  merges_duplicates: bool = False,
) -> spec_lib.Table:
  """A table of which every device holds all rows.

  Args:
    spec: its size and how it starts.
    optimizer: of its rows.
    merges_duplicates: whether an update writes each row once.
  """

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
    merged = None
    if merges_duplicates:
      squares = rowopt.mean_squares(row_grads)[..., None]
      ids, occurrences, (row_grads, squares) = duplicates.merge(
        ids, (row_grads, squares), spec.vocab
      )
      merged = rowopt.Merged(occurrences, squares[:, 0])
    deltas, slots = optimizer.update(
      state.slots, ids, row_grads, learning_rate, merged
    )
    vectors = rowopt.add_rows(state.vectors, ids, deltas, merges_duplicates)
    return spec_lib.TableState(vectors, slots)

  def gather(state):
    return np.asarray(state.vectors)

  return spec_lib.Table(init, lookup, update, gather)
