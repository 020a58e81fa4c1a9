"""A table of which the device has some rows, in the rows of a smaller table.

Steps look up cache rows (`stores.cache`) in place of ids. The smaller table may
be any that one device has whole: its codec, optimizer and order of updates are
those of a table that has all rows, up to the random bits of stochastic
rounding. Its last row is never used: XLA may compile a scatter that drops an
update into one that writes the last row back as it was, which would undo what
another thread writes there meanwhile.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.tables import spec as spec_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Cached(spec_lib.Table):
  """Looks up cache rows; from `num_rows` on they are padding."""

  spec: spec_lib.TableSpec  # of all rows
  cache: spec_lib.Table  # of as many rows as the device has, and one more

  @property
  def num_rows(self) -> int:
    """Rows of the smaller table."""
    return self.cache.spec.vocab

  @property
  def optimizer(self):
    return self.cache.optimizer

  @property
  def metrics(self):
    return self.cache.metrics

  @property
  def partition(self):
    return self.cache.partition

  def init(self, key):
    """Returns a cache without rows."""
    empty = jax.eval_shape(self.cache.init, key)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), empty)

  def lookup(self, state, ids):
    return self.cache.lookup(state, ids)

  def update(self, state, ids, row_grads, rows, step):
    return self.cache.update(state, ids, row_grads, rows=rows, step=step)

  @functools.cached_property
  def _tree(self):
    """The structure of rows as they are stored."""
    like = jax.eval_shape(self.init, jax.random.key(0))
    return jax.tree.structure(like.vectors)

  # Arrays of rows are as stored, then their optimizer state by name.

  def arrays(self, state: spec_lib.TableState) -> list[jax.Array]:
    """Returns the arrays [slots, ...] of a state."""
    names = sorted(self.state_names)
    opt_state = [getattr(state.opt_state, k) for k in names]
    return jax.tree.leaves(state.vectors) + opt_state

  def pack(self, block: spec_lib.RowBlock) -> list[np.ndarray]:
    """Returns arrays [n, ...] of rows."""
    opt_state = [block.opt_state[k] for k in sorted(self.state_names)]
    return spec_lib.to_stored(block.encoded) + opt_state

  def unpack(self, arrays: list[np.ndarray]) -> spec_lib.RowBlock:
    """Returns the rows of arrays [n, ...]."""
    num, names = self._tree.num_leaves, sorted(self.state_names)
    stored = jax.tree.unflatten(self._tree, arrays[:num])
    return spec_lib.RowBlock(
      spec_lib.from_stored(stored, self.spec.dtype),
      dict(zip(names, arrays[num:], strict=True)),
    )

  def with_arrays(
    self, state: spec_lib.TableState, arrays: list[Any]
  ) -> spec_lib.TableState:
    """Returns the state with other arrays."""
    num, names = self._tree.num_leaves, sorted(self.state_names)
    vectors = jax.tree.unflatten(self._tree, arrays[:num])
    opt_state = state.opt_state
    if names:
      new = dict(zip(names, arrays[num:], strict=True))
      opt_state = opt_state._replace(**new)
    return state._replace(vectors=vectors, opt_state=opt_state)
