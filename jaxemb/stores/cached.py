"""A table of which only some rows are on the device, in slots of a small table.

The rows of a stretch of steps are put into slots before it runs, and it has
slots in place of ids (`strategies.fetching`), as have random bits of stochastic
rounding. The last slot is never given to a row: XLA may compile a scatter that
drops an update into one that writes the last row back as it was, which would
undo what another thread writes there meanwhile.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.tables import spec as spec_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Cached(spec_lib.Table):
  """Looks up slots; from the number of `slots` on they are padding."""

  spec: spec_lib.TableSpec  # of all rows
  slots: spec_lib.Table  # of as many rows as there are slots, and one more

  @property
  def optimizer(self):
    return self.slots.optimizer

  @property
  def metrics(self):
    return self.slots.metrics

  @property
  def partition(self):
    return self.slots.partition

  def init(self, key):
    """Slots without rows."""
    empty = jax.eval_shape(self.slots.init, key)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), empty)

  def lookup(self, state, ids):
    return self.slots.lookup(state, ids)

  def update(self, state, ids, row_grads, rows, step):
    return self.slots.update(state, ids, row_grads, rows=rows, step=step)

  def arrays(self, state: spec_lib.TableState) -> list[jax.Array]:
    """[slots, ...], all that belongs to rows: as stored, then their slots."""
    slots = [getattr(state.opt_state, k) for k in sorted(self.state_names)]
    return jax.tree.leaves(state.vectors) + slots

  def with_arrays(
    self, state: spec_lib.TableState, arrays: list[Any]
  ) -> spec_lib.TableState:
    """The state with other `arrays`, of which it may be a shape."""
    tree = jax.tree.structure(state.vectors)
    num, names = tree.num_leaves, sorted(self.state_names)
    state = state._replace(vectors=jax.tree.unflatten(tree, arrays[:num]))
    if not names:
      return state
    slots = dict(zip(names, arrays[num:], strict=True))
    return state._replace(opt_state=state.opt_state._replace(**slots))
